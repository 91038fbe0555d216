"""The compiler's panes in a page, held to Python's figures: checks of gradients, times, why not, what if, reuse, peak.

What is asked of a kernel is played by the test; from a document alone every button says why it cannot act.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import networks
import pytest
import view_networks
from bare_page import AUDIT, live, mount, open_tab, trained
from browser import box_of
from playwright.sync_api import Locator, Page, expect

from gdlab import CompileOptions
from gdlab.base.words import cell, duration, nbytes, sig
from gdlab.op.machines import Machine
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.answer_record import Answer
from gdlab.view.answer.making import gradient_answer
from gdlab.view.ask.chain import sentence
from gdlab.view.document.document import Document
from gdlab.view.document.runs import times_of
from gdlab.view.text.graph_text import _figures
from gdlab.view.text.plan_text import at_peak, own_lines, reuse_words, widths_of
from gdlab.view.text.twin import twin


@cache
def measured() -> tuple[Study, Any]:
    """A study with everything that can be measured, and its document."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", adam=1e-3, init=0)
    study.run(2)
    study.trace(3)
    study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    study.variant(compile=CompileOptions(fuse_dispatches=False))
    study.measure(3)
    document = study.doc
    study.close()
    return study, document


def asked(page: Page, name: str) -> Any:
    """The newest command of the page, of this name."""
    sent = page.evaluate("sent.filter(each => each.type === 'command').at(-1)")
    assert sent["name"] == name
    return sent


def answer(page: Page, sent: Any, result: Any = None, message: str = "") -> None:
    error = {"kind": "E", "message": message, "about": None} if message else None
    reply = {"type": "reply", "req": sent["req"], "ok": not message, "result": result, "error": error}
    page.evaluate("m => tell(m)", reply)


def rows(table: Locator) -> list[list[str]]:
    found: list[list[str]] = table.locator("tbody tr:not(.gd-spacer)").evaluate_all(
        "all => all.map(row => [...row.children].map(each => each.innerText.trim()))"
    )
    return found


# autodiff stepper -----------------------------------------------------------------------------------------------------
def test_a_gradient_is_checked_against_differences(page: Page) -> None:
    live(page, trained())
    open_tab(page, "grad")
    for _ in range(2):
        page.locator('[data-command="autodiff-next"]').click()
    step = trained().steps(3)[2]
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    for wrong in (False, True):
        page.locator('[data-command="check"]').click()
        sent = asked(page, "check")
        assert sent["args"] == {"node": step["node"], "stage": "written"}
        result = study.check_gradient(step["node"]).to_json() | ({"ok": False} if wrong else {})
        answer(page, sent, result)
        told = page.locator('[data-value="check"]')
        assert told.inner_text() == f"{'✗' if wrong else '✓'} {result['text']}"
        assert told.get_attribute("data-level") == ("error" if wrong else "ok")
        assert result["told"].endswith(f"\nthe gradient that arrives: l2 norm {sig(result['norm'])}")
    html = answer_html(gradient_answer(study.check_gradient(step["node"]), study))
    page.locator('[data-command="check"]').click()
    answer(page, asked(page, "check"), result | {"html": html})
    drawn = page.locator(".gd-frame > .gd-asked > .gd-answer")
    expect(drawn.locator("tbody tr")).to_have_count(1)
    box, frame = box_of(drawn), box_of(page.locator(".gd-frame"))
    assert frame["y"] < box["y"] and box["y"] + box["height"] < frame["y"] + frame["height"]
    page.get_by_role("button", name="close the answer").click()
    expect(drawn).to_have_count(0)
    page.locator('[data-command="autodiff-next"]').click()
    assert page.locator('[data-value="check"]').count() == 0
    page.locator('[data-command="autodiff-previous"]').click()
    assert page.locator('[data-value="check"]').count() == 1, "what was found stays"
    page.locator('[data-command="check"]').click()
    answer(page, asked(page, "check"), message="no such node")
    page.locator('.gd-stepper [role="alert"]', has_text="no such node").wait_for()


def test_rules_are_shown_as_mathematics_and_a_rewrite_as_two_pictures(page: Page) -> None:
    document = trained()
    mount(page, document)
    open_tab(page, "grad")
    page.locator('[data-command="autodiff-end"]').click()  # the first product
    line, code = page.locator('.gd-stepper [data-value="math"]'), page.locator(".gd-stepper pre.gd-code")
    expect(line).to_have_attribute("aria-label", "∂a = g · bᵀ,  ∂b = aᵀ · g")
    expect(line.locator("> div")).to_have_count(2)
    assert line.locator(".gd-flows").all_inner_texts() == ["g", "g"]
    expect(code).to_be_hidden()
    page.locator(".gd-stepper .gd-fold", has_text="its Python").click()
    expect(code).to_contain_text("def _(g: Value, out: Value, a: Value, b: Value)")
    open_tab(page, "rewrites")
    fused = [k for k, step in enumerate(document.steps(0)) if step["label"] == "MatMul+BiasAdd→FusedMatMulAdd"][0]
    page.locator(f'[data-pane="rewrites"] tr[data-entity="step:0.{fused}"]').click()
    detail = page.locator('[data-pane="rewrites"] .gd-detail')
    told = "bias_add(matmul(x, w1), b1) ⇒ fused_matmul_add(x, w1, b1)"
    expect(detail.locator('[data-value="sides"]')).to_have_attribute("aria-label", told)
    assert detail.locator(".gd-side-picture .gd-node").count() == 5 + 4
    stated = "a · b + c → fused_matmul_add(a, b, c)"
    expect(detail.locator('[data-value="math"]')).to_have_attribute("aria-label", stated)
    expect(detail.locator("pre.gd-code")).to_be_hidden()
    assert "mathematics:\n" in twin(document, "rewrites") and stated in twin(document, "rewrites")
    assert re.search(r"^  matmul +∂a = g · bᵀ,  ∂b = aᵀ · g$", twin(document, "grad"), re.M)


def test_in_a_narrow_plan_names_have_the_room_that_phases_leave(page: Page) -> None:
    mount(page, measured()[1])
    page.set_viewport_size({"width": 600, "height": 900})
    open_tab(page, "plan")
    expect(page.locator(".gd-legend")).to_have_text(re.compile(r"^width = measured time, .* writes over it$"))
    gap = "e => e.getBoundingClientRect().right - e.tHead.rows[0].lastChild.getBoundingClientRect().right"
    table = page.locator("table.gd-dispatches")
    assert abs(table.evaluate(gap)) < 1 and table.evaluate("e => e.offsetWidth >= e.parentElement.clientWidth")
    names = table.locator("tbody td.gd-label").evaluate_all("all => all.map(e => e.clientWidth)")
    assert min(names) > 120, names


# Whether a stroke of what flows passes through the words beside it.
CROSSED = """pane => { const note = pane.querySelector('.gd-note-on-edge');
  if (!note) return null;
  const box = note.getBBox(), path = note.parentElement.querySelector('.gd-stroke');
  return Array.from({length: 101}, (_, i) => path.getPointAtLength(path.getTotalLength() * i / 100)).some(({x, y}) =>
    x > box.x - 2 && x < box.x + box.width + 2 && y > box.y + 3 && y < box.y + box.height - 3); }"""


def test_the_symbol_of_what_flows_lies_beside_its_edge(page: Page) -> None:
    """Rows of a narrow view are close: a slanted edge of 20 pixels goes aside behind the words."""
    document = Study(view_networks.experts(), train=True, device="cpu", name="experts").doc
    mount(page, document)
    page.set_viewport_size({"width": 600, "height": 900})
    open_tab(page, "grad")
    lanes, crossed = page.locator('[data-pane="lanes"]'), []
    for k in range(1, 24):
        page.locator('[data-command="autodiff"]').fill(str(k))
        crossed.append(lanes.evaluate(CROSSED))
    assert crossed.count(False) > 8 and True not in crossed, crossed


def test_the_stepper_builds_the_derivative(page: Page) -> None:
    """T1: later adjoints are outlines, the gradient that arrives is thick, kept wires are solid, a meter grows."""
    document = trained()
    mount(page, document)
    open_tab(page, "grad")
    lanes, fact = page.locator('[data-pane="lanes"]'), page.locator('[data-pane="lanes"] .gd-fact')
    expect(lanes.locator("[data-later]")).to_have_count(0)  # nobody steps: the whole picture
    expect(fact).to_contain_text("dashed = kept")
    number = next(i for i, each in enumerate(document.data["passes"]) if each["key"] == "differentiate:written")
    steps, stage = list(document.steps(number)), document.data["passes"][number]["to"]
    for k in range(len(steps)):
        page.locator('[data-command="autodiff"]').fill(str(k))
        if k == 0:
            page.locator('[data-command="autodiff-next"]').click()
            page.locator('[data-command="autodiff-previous"]').click()
        later = {f"node:{stage}.{i}" for each in steps[k + 1 :] for i in (*each["accumulated"], *each["added"])}
        kept = {r["node"]: r["nbytes"] for each in steps[: k + 1] for r in each["residuals"] or ()}
        every = {r["node"]: r["nbytes"] for each in steps for r in each["residuals"] or ()}
        expect(fact).to_have_text(f"{nbytes(sum(kept.values()))} of {nbytes(sum(every.values()))} kept")
        outlined = lanes.locator("[data-later]").evaluate_all("all => all.map(each => each.dataset.entity)")
        assert set(outlined) == later, k
        symbols = lanes.locator(".gd-note-on-edge").evaluate_all("all => all.map(each => each.textContent)")
        assert len(symbols) <= 1 and all(each.startswith("∂L/∂") for each in symbols)
        assert lanes.locator(".gd-edge-flow").count() >= 1, k
    assert lanes.locator(".gd-edge-saved.gd-edge-kept").count() == lanes.locator(".gd-edge-saved").count() > 0
    full = lanes.locator(".gd-keptall, .gd-keptnow").evaluate_all("all => all.map(each => each.getAttribute('height'))")
    assert full[0] == full[1]
    page.locator('[data-pane="stepper"] select').select_option("2")
    page.locator('[data-command="autodiff-play"]').click()  # at the end: from the loss again
    expect(page.locator(".gd-stepper")).to_contain_text(f"op {len(steps)} of {len(steps)}", timeout=20_000)
    page.keyboard.press("Escape")
    expect(lanes.locator("[data-later]")).to_have_count(0)
    expect(fact).to_contain_text("dashed = kept")


def test_the_status_line_is_the_sentence_of_the_text_twin(page: Page) -> None:
    """T10: one or two of a kind by name, more as a number."""
    document = trained()
    mount(page, document)
    fused = False
    for i, node in enumerate(document.nodes(0)):
        if not node["inputs"]:
            continue
        page.locator(f'[data-pane="before"] .gd-node[data-entity="node:0.{i}"]').first.dispatch_event("click")
        expect(page.locator(".gd-chain")).to_have_text(sentence(document, f"node:0.{i}"))
        fused = fused or ("→ fused_matmul_add →" in sentence(document, f"node:0.{i}"))
    assert fused
    last = len(document.plan("dispatches")) - 1
    open_tab(page, "plan")
    page.locator(f'[data-pane="plan"] [data-entity="dispatch:{last}"]').first.dispatch_event("click")
    expect(page.locator(".gd-chain")).to_have_text(sentence(document, f"dispatch:{last}"))
    open_tab(page, "arena")
    for k, interval in enumerate(document.plan("intervals")):
        if interval["kind"] == "intermediate":
            page.locator(f'[data-pane="arena"] [data-entity="interval:{k}"]').first.dispatch_event("click")
            expect(page.locator(".gd-chain")).to_have_text(sentence(document, f"interval:{k}"))
            assert "→ read by " in sentence(document, f"interval:{k}")
    assert sentence(document, "interval:0") in twin(document, "links", "interval:0").split("\n")[0]


def test_without_a_kernel_every_question_says_why_it_cannot_be_asked(page: Page) -> None:
    mount(page, measured()[1])
    for tab in ("opt", "grad", "diff", "plan"):
        open_tab(page, tab)
        if tab == "opt":
            page.locator('[data-pane="report"] tr[data-entity^="rule:"]').first.click()
        if tab == "diff":
            page.locator(".gd-whatif .gd-fold").click()
        buttons = page.locator("[data-asks]:visible")
        assert buttons.count() >= 1, tab
        assert {(b.is_disabled(), b.get_attribute("title")) for b in buttons.all()} == {
            (True, "no live kernel to ask: run the cell again")
        }


def test_a_kernel_that_ends_takes_the_questions_along(page: Page) -> None:
    live(page, trained())
    open_tab(page, "plan")
    button = page.locator('[data-command="trace"]')
    assert button.is_enabled() and "over 3 steps" in str(button.get_attribute("title"))
    page.evaluate("end()")
    page.wait_for_function("document.querySelector('[data-command=trace]').disabled")


# plan -----------------------------------------------------------------------------------------------------------------
def test_times_are_answered_as_a_picture_that_a_new_document_leaves(page: Page) -> None:
    """The times change the document: the view is drawn anew, before the answer comes or after it."""
    document, html = measured()[1], answer_html(Answer("", "ok", "16 dispatches", None))
    live(page, trained())
    open_tab(page, "plan")
    drawn = page.locator(".gd-frame > .gd-asked > .gd-answer")
    for rev, first in ((9, "document"), (10, "answer")):
        page.locator('[data-command="trace"]').click()
        sent = asked(page, "trace")
        if first == "answer":
            answer(page, sent, {"html": html})
            expect(drawn).to_have_count(1)
        page.evaluate("([d, rev]) => tell({type: 'doc', rev, doc: {...JSON.parse(d), id: `later ${rev}`}})",
                      [document.json().decode(), rev])  # fmt: skip
        page.locator(".gd-legend", has_text="width = measured time").wait_for()
        if first == "document":
            answer(page, sent, {"html": html})
        expect(drawn).to_have_text(["✓16 dispatches"])
    assert page.evaluate(AUDIT) == []


UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def test_times_stand_beside_their_prediction(page: Page) -> None:
    document = measured()[1]
    mount(page, document)
    open_tab(page, "plan")
    times = times_of(document)
    assert times is not None
    table = page.locator(".gd-dispatches")
    page.locator(".gd-foldrow button").click()
    shown = [row for row in rows(table) if len(row) == 8]
    count = len(times["median"])
    assert [row[0] for row in shown] == [str(k) for k in range(count)]
    assert [row[6] for row in shown] == [cell(each * 1e6) for each in times["median"]]
    shares = [each.split(", ")[1].split(" %")[0] for each in times["verdict"]]
    assert [row[7] for row in shown] == [each.replace("over ", ">").replace("under ", "<") for each in shares]
    assert table.locator("tfoot").inner_text().split()[-1] == cell(sum(times["median"]) * 1e6)
    page.locator('tr[data-entity="dispatch:9"]').click()
    told = page.locator('[data-value="verdict"]')
    assert times["verdict"][9] in told.inner_text() and told.get_attribute("title") == times["machine"]
    timeline(page, times["median"])
    axis = page.locator(".gd-timeline .gd-axis").all_text_contents()
    assert "width = measured time" in axis[-1] and axis[0] == "0"
    ticks = [float(number.replace(",", "")) * UNITS[unit] for number, unit in (text.split(" ") for text in axis[1:-1])]
    total = sum(times["median"])
    assert ticks == pytest.approx([k * ticks[0] for k in range(1, len(ticks) + 1)])
    assert ticks[-1] <= total < ticks[-1] + ticks[0], "they reach as far as the bars"
    page.get_by_role("group", name="width of a dispatch").get_by_text("order").click()
    page.locator(".gd-legend", has_text="width = one dispatch").wait_for()
    timeline(page, [1.0] * count)
    page.locator('.gd-tick[data-entity="dispatch:9"][data-lit]').wait_for()


def timeline(page: Page, widths: Sequence[float]) -> None:
    """Bars are as wide as they should be, one after the other."""
    places = """all => all.map(each => { const {left, right} = each.getBoundingClientRect(); return [left, right]; })"""
    bars = page.locator(".gd-tick rect").evaluate_all(places)
    room = page.locator(".gd-timeline").evaluate("e => e.width.baseVal.value") - 32
    start = bars[0][0]
    for k, (left, right) in enumerate(bars):
        wanted = room * sum(widths[:k]) / sum(widths), room * sum(widths[: k + 1]) / sum(widths)
        assert abs(left - start - wanted[0]) < 1 and -4.5 < right - start - wanted[1] < 1, (k, wanted)


@pytest.mark.parametrize("machine", [Machine(), Machine(1e-6, 1e9, 1e10, "cpu, a small one")], ids=["nominal", "kept"])
def test_the_plan_is_a_timeline_first(page: Page, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: columns are barrier groups, predicted where nobody timed, for the machine in use where its figures are kept;
    arrows are hazards, WGSL lies in a drawer."""
    monkeypatch.setattr("gdlab.view.document.make.known_machine", lambda device: machine)
    document = Study(networks.mlp(), train=True, device="cpu", name="mlp").doc
    mount(page, document)
    page.set_viewport_size({"width": 1440, "height": 900})
    open_tab(page, "plan")
    page.locator(".gd-timeline").wait_for()
    basis, widths = widths_of(document)
    assert basis == "predicted"
    whose = machine.name or "a nominal GPU"
    assert f"  predicted for {whose}" in twin(document, "plan").splitlines()
    assert f"width = time predicted for {whose}" in page.locator(".gd-legend").inner_html()
    timeline(page, widths)
    groups, names = list(document.plan("groups")), document.plan("intervals").column("name")
    titles = page.locator(".gd-column title").all_text_contents()
    assert [each.split(": ")[1].split(" ")[0] for each in titles] == [str(g["stop"] - g["start"]) for g in groups]
    assert f"{duration(sum(widths[: groups[0]['stop']]))} predicted" in twin(document, "plan")
    hazards = [h for g in groups for h in g["because"] or ()]
    arrows = page.locator(".gd-hazard")
    assert arrows.evaluate_all("all => all.map(e => [e.dataset.entity, e.dataset.hazard])") == [
        [f"interval:{h['interval']}", h["hazard"]] for h in hazards
    ]
    first = hazards[0]
    assert arrows.first.locator("title").text_content() == (
        f"dispatch {first['to']} reads what was written by dispatch {first['from']}: {names[first['interval']]} (raw)"
    )
    page.locator('[data-pane="kernels"][data-rail]').click()
    page.locator('[data-pane="kernels"]:not([data-rail]) .gd-wgsl').wait_for()
    page.wait_for_function("document.querySelector('[data-pane=kernels]').offsetWidth > 400")
    box = "document.querySelector('.gd-timebox').clientWidth"
    fits = f"document.querySelector('.gd-timeline').width.baseVal.value <= {box}"
    page.wait_for_function(fits)


def test_dispatches_are_sorted_and_cut_down_with_their_sums(page: Page) -> None:
    document = measured()[1]
    mount(page, document)
    open_tab(page, "plan")
    times, records = times_of(document), list(document.plan("dispatches"))
    assert times is not None
    table = page.locator(".gd-dispatches")
    table.get_by_role("button", name="µs").click()
    slowest = sorted(range(len(records)), key=lambda k: -times["median"][k])
    assert [row[0] for row in rows(table)] == [str(k) for k in slowest]
    assert table.locator('th[aria-sort="descending"]').inner_text().startswith("µs")
    page.get_by_label("dispatches", exact=True).select_option("family update")
    mine = [k for k in slowest if records[k]["family"] == "update"]
    assert [row[0] for row in rows(table)] == [str(k) for k in mine]
    total = next(line for line in twin(document, "plan").splitlines() if line.startswith("  family update"))
    foot = table.locator("tfoot td").all_inner_texts()
    assert foot[1].startswith(f"{len(mine)} dispatches in ") and total.split()[2] == str(len(mine))
    assert foot[6] == total.split()[-1] and foot[4] == total.split()[3]
    page.get_by_label("dispatches", exact=True).select_option("")
    table.get_by_role("button", name="#").click()
    assert len(rows(table)) == len(records) - 4 + 1, "the update is folded again"


def refusals(document: Document) -> dict[int, str]:
    """The fusions that were not made, by node, as the text twin says them."""
    found = re.findall(r"dispatch:\d+  (not fused with .*) \(node:\d+\.(\d+)\)", twin(document, "plan"))
    return {int(node): said for said, node in found}


def why_two(document: Document, a: int, b: int, said: dict[int, str]) -> list[str]:
    """Tell why dispatch `a` and the later `b` are not one: the fusions at nodes of `a` that nodes of `b` read."""
    dispatches, stage = document.plan("dispatches"), document.data["plan"]["stage"]
    inputs = document.nodes(stage).column("inputs")

    def nodes_of(k: int) -> list[int]:
        return list(document.provenance.behind("dispatch", f"node:{stage}", k))

    read = {i for node in nodes_of(b) for i in inputs[node]}
    compiled = next(one for one in document.data["passes"] if one["role"] == "compile")
    found = [m for m in compiled["report"]["missed"] if m["node"] in nodes_of(a) and m["node"] in read]
    if found:
        return [said[m["node"]] for m in found]
    if set(dispatches[b]["reads"]) & set(dispatches[a]["writes"]):
        return [f"no fusion joins dispatch {a} and dispatch {b}"]
    return [f"dispatch {b} reads nothing that dispatch {a} writes"]


def test_why_two_dispatches(page: Page) -> None:
    study, document = measured()
    mount(page, document)
    open_tab(page, "plan")
    said = refusals(document)
    relu = next(m.node for m in study.missed if m.label == "Relu+ReluGrad")
    assert said[relu] == "not fused with relu_grad: relu is also read by dispatch 6"
    for k in (0, 1, 2, 7):
        page.locator(f'tr[data-entity="dispatch:{k}"]').click()
        mine = [said[m.node] for m in study.missed if m.node in study.plan.dispatches[k].origin]
        assert page.locator('[data-value="apart"]').all_inner_texts() == (["; ".join(mine)] if mine else [])
    told = set()
    for a, b in ((0, 7), (7, 8), (0, 2), (2, 3)):
        page.locator(f'tr[data-entity="dispatch:{b}"]').click()
        page.locator(f'tr[data-entity="dispatch:{a}"]').click(modifiers=["Shift"])
        wanted = why_two(document, a, b, said)
        assert page.locator('[data-value="apart"]').inner_text() == "; ".join(wanted), (a, b)
        told |= {wanted[0].split(":")[0].split()[-1]}
    assert told >= {"relu_grad"} and len(told) == 4, f"every kind of answer was seen: {told}"


def test_a_whole_kernel_is_lit_quietly(page: Page) -> None:
    document = measured()[1]
    mount(page, document)
    open_tab(page, "kernels")
    page.locator(".gd-kernel").nth(1).click()
    body = page.locator(".gd-codebody")
    ground = "e => getComputedStyle(e).backgroundColor"
    plain = page.locator(".gd-frame").evaluate(ground)
    assert body.get_attribute("data-whole") is not None
    page.wait_for_function(f"({ground})(document.querySelector('.gd-wgsl > [data-lit]')) === '{plain}'")  # it fades
    assert page.locator(".gd-wgsl > :not([data-lit])").count() == 0, "they are lit all the same"
    times, dispatches = times_of(document), list(document.plan("dispatches"))
    assert times is not None
    took = sum(times["median"][k] for k, d in enumerate(dispatches) if d["kernel"] == 1)
    assert page.locator(".gd-facts", has_text="time").inner_text().split("time")[1].split()[0] == f"{took * 1e6:.3g}"
    page.locator(".gd-wgsl > [title^=from]").first.click()
    assert body.get_attribute("data-whole") is None
    page.wait_for_function(f"({ground})(document.querySelector('.gd-wgsl > [data-lit]')) !== '{plain}'")


# arena ----------------------------------------------------------------------------------------------------------------
def test_what_memory_would_be_without_reuse(page: Page) -> None:
    document = measured()[1]
    mount(page, document)
    open_tab(page, "arena")
    arena = page.locator('[data-pane="arena"]')
    assert arena.locator(".gd-ghosts").count() == 0
    page.locator('[data-command="without-reuse"]').click()
    memory = document.data["plan"]["memory"]
    assert arena.locator(".gd-fact").inner_text() == f"{reuse_words(memory)}, dashed"
    extra = sum(len(slot["tenants"]) - 1 for slot in document.plan("slots"))
    assert arena.locator(".gd-ghosts rect").count() == extra > 0
    saved = memory["logical_bytes"] + memory["padding_bytes"] - memory["physical_bytes"]
    assert arena.locator(".gd-ghosts .gd-axis").inner_html() == f"+ {nbytes(saved)}"
    assert page.evaluate("document.activeElement.dataset.command") == "without-reuse"
    page.locator('[data-command="without-reuse"]').click()
    assert arena.locator(".gd-ghosts").count() == 0


def test_no_outline_has_a_negative_width(page: Page) -> None:
    """A dispatch has a part of a pixel."""
    mount(page, Study(view_networks.deep_mlp(120), train=True, device="cpu", name="deep").doc)
    page.set_viewport_size({"width": 440, "height": 900})
    open_tab(page, "arena")
    page.locator('[data-command="without-reuse"]').click()
    outlines = page.locator(".gd-ghosts rect")
    assert outlines.count() > 0
    assert min(outlines.evaluate_all("all => all.map(each => Number(each.getAttribute('width')))")) >= 3


def test_the_space_for_rows_out_of_sight_adds_no_column(page: Page) -> None:
    mount(page, measured()[1])
    open_tab(page, "plan")
    columns = page.locator(".gd-dispatches thead th").count()
    spans = page.locator(".gd-dispatches tbody td").evaluate_all("all => all.map(each => each.colSpan)")
    assert len(spans) > columns > 1 and max(spans) <= columns


def test_what_is_in_memory_at_the_peak(page: Page) -> None:
    document = measured()[1]
    mount(page, document)
    open_tab(page, "arena")
    page.locator('[data-command="at-peak"]').click()
    listed, records = page.locator(".gd-atpeak"), list(document.plan("intervals"))
    found, stage = at_peak(document), document.data["plan"]["stage"]
    entities = listed.locator("tbody tr:not(.gd-spacer)").evaluate_all(
        "all => all.map(row => [...row.querySelectorAll('[data-entity]')].map(each => each.dataset.entity))"
    )
    for i, shown, cells in zip(found, entities, rows(listed), strict=True):
        node = f"node:{stage}.{records[i]['node']}"
        lines = own_lines(document, node)
        first: dict[int, int] = {}
        for row in lines:
            first.setdefault(document.lines[row]["line"], row)
        assert shown == [f"interval:{i}", node, *(f"line:{row}" for row in first.values())]
        assert cells[0] == nbytes(records[i]["nbytes"])
    memory = document.data["plan"]["memory"]
    told = f"{len(found)} buffers, {nbytes(memory['peak_bytes'])} padded, in group {memory['peak_group']}"
    assert listed.locator("th").last.inner_text() == told
    listed.locator("[data-entity^='line:']").first.click()
    assert page.locator(".gd-interval[data-lit]").count() >= 1


# why not, what if -----------------------------------------------------------------------------------------------------
def test_nodes_in_an_answer_are_links(page: Page) -> None:
    live(page, trained())
    report = page.locator('[data-pane="report"]')
    report.locator('tr[data-entity^="rule:"]').first.click()
    page.locator('[data-command="why"]').click()
    sent = asked(page, "why")
    text = "A+B was used at %5.\nA+B was not used at %3: %3 is read by %4 too.\n%77 is none"
    answer(page, sent, {"text": text, "guards": [["rules.py", 12, "single_use(x)"]]})
    links = report.locator(".gd-why .gd-link")
    assert links.evaluate_all("all => all.map(each => each.dataset.entity)") == [
        "node:0.5", "node:1.3", "node:1.3", "node:1.4"
    ]  # fmt: skip
    assert report.locator(".gd-guard").inner_text() == "single_use(x)" and "rules.py:12" in report.inner_text()
    links.last.click()
    assert page.locator('[data-pane="after"] [data-entity="node:1.4"][data-selected]').count() == 1


def test_a_rule_that_was_off_can_be_forced(page: Page) -> None:
    live(page, trained())
    report, table = page.locator('[data-pane="report"]'), trained().data["passes"][0]["report"]["rules"]
    report.locator(".gd-fold").click()
    for i, rule in enumerate(table):
        if rule["enabled"] or "forward" not in rule["phases"]:
            continue
        report.locator(f'tr[data-entity="rule:0.{i}"]').click()
        page.locator('[data-command="what-if"]', has_text="Force it").click()
        args = asked(page, "optimize")["args"]
        bold = rule["tag"] in ("reassoc", "approx")
        assert args == {"disable": [], "allow": rule["tag"]} if bold else {"disable": [], "enable": [rule["id"]]}
        study = Study(networks.mlp(), train=True, device="cpu", name="mlp").variant(**args)
        assert next(r for r in study.report.rules if r.id == rule["id"]).enabled
        return
    raise AssertionError("no rule is off")


def test_other_options_make_a_variant_and_show_it(page: Page) -> None:
    live(page, trained())
    page.locator('[data-command="compare"]').click()
    page.get_by_label("fusion").uncheck()
    page.get_by_label("serial").check()
    boxes = page.locator(".gd-ticks2 input")
    dropped = str(boxes.nth(1).get_attribute("value"))
    boxes.nth(1).uncheck()
    page.get_by_label("rules that are allowed").select_option("exact")
    page.locator('[data-command="apply"]').click()
    sent = asked(page, "optimize")
    assert sent["args"] == {
        "disable": [dropped], "allow": "exact", "fuse": False, "alias": True, "serial": True
    }  # fmt: skip
    study, document = measured()
    answer(page, sent, {"name": "no fusion", "text": ""})
    page.evaluate("d => tell({type: 'doc', rev: 9, doc: JSON.parse(d)})", document.json().decode())
    table = page.locator(".gd-variants")
    table.wait_for()
    keys = [stage["key"] for stage in document.data["stages"]]
    right, fact = page.locator('[aria-label="right"]'), page.locator('[data-pane="diff"] .gd-fact')
    assert right.input_value() == str(keys.index("variant:no fusion"))
    assert fact.inner_text().endswith("0 changed, 0 moved into 0, 0 removed, 0 added")
    wanted = [_figures(row) for row in document.data["variants"]]  # the study is closed by now
    assert rows(table) == [
        [f.name, *map(str, (f.nodes, f.dispatches, f.groups)),
         *map(nbytes, (f.bytes_moved, f.peak_bytes, f.physical_bytes)), str(f.step)] for f in wanted
    ]  # fmt: skip
    table.get_by_role("button", name="show plain").click()
    assert right.input_value() == str(keys.index("variant:plain"))
    page.evaluate("d => tell({type: 'doc', rev: 10, doc: {...JSON.parse(d), id: 'later'}})", document.json().decode())
    page.locator('.gdlab[data-doc="later"]').wait_for()
    assert right.input_value() == str(keys.index("variant:plain")), "what a person chose stays"
    page.locator('[data-command="measure"]').click()
    assert asked(page, "measure")["args"] == {"steps": 20}
    answer(page, asked(page, "measure"), message="run: session: given a measurement while 1 of 2 are done")
    page.locator('.gd-whatif [role="alert"]', has_text="while 1 of 2").wait_for()
