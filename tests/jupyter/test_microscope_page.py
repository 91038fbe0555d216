"""The microscope in a page whose kernel answers as the real one does: what it shows is what Python says, by hand and
by keys, live and from a document alone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from bare_page import AUDIT, CUT, live, mount, open_tab
from browser import box_of, settled
from playwright.sync_api import Locator, Page

from gdlab import ops
from gdlab.base.errors import GdlabError
from gdlab.graph import Graph
from gdlab.jupyter.commands import COMMANDS
from gdlab.jupyter.widget import _rows
from gdlab.study.study import Study

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    """Four axes with NaN in them, a matrix wider than a heat map, and a name that nobody would give."""
    with Graph() as g:
        x, w = ops.input("x", (2, 3, 20, 40)), ops.parameter("w", (130, 200))
        g.output(ops.sum_all(ops.square(x)) + ops.sum_all(ops.square(w * 0.5).named(HOSTILE)))
    study = Study(g, device="cpu", name="odd")
    data = np.random.default_rng(0).normal(size=(2, 3, 20, 40)).astype(np.float32)
    data[1, 2, 3, 4], data[1, 2, 19, 39] = np.nan, np.inf
    study.session.set_input("x", data)
    study.prepare(init=0)
    study.runner.set_watch("off")
    study.watch("x", "w")
    study.run(1)
    yield study
    study.close()


def tell(page: Page, study: Study, **more: Any) -> None:
    """The figures of a session that stands still, as the kernel sends them."""
    watches, _ = _rows(study.runner.lookout)
    figures = {"state": "ready", "wanted": study.session.step_count, "dispatch": -1, "place": "", "breaks": []}
    page.evaluate(
        "([step, more]) => tell(metrics(++window.frame || (window.frame = 1), step, [[1, 1]], {full: true, ...more}))",
        [study.session.step_count, {**figures, "watches": [asdict(w) for w in watches], **more}],
    )


def answered(page: Page, study: Study) -> list[dict[str, Any]]:
    """Answers what the page has asked until it asks no more; what that was."""
    asked: list[dict[str, Any]] = []
    while commands := [m for m in page.evaluate("window.sent.splice(0)") if m["type"] == "command"]:
        for message in commands:
            asked.append(message["args"])
            reply: dict[str, Any] = {"type": "reply", "req": message["req"], "ok": True, "result": None, "error": None}
            try:
                reply["result"] = COMMANDS[message["name"]](study, message["args"]) or {}
            except GdlabError as error:
                wrong = {"kind": type(error).__name__, "message": str(error), "about": None}
                reply |= {"ok": False, "error": wrong}
            page.evaluate("reply => tell(reply)", reply)
        page.evaluate("() => new Promise(done => setTimeout(done))")
    return asked


def opened(page: Page, study: Study) -> Locator:
    live(page, study.doc)
    open_tab(page, "session")
    tell(page, study)
    return page.locator(".gd-glass")


def rows(glass: Locator) -> list[list[str]]:
    found: list[list[str]] = glass.locator(".gd-window tr").evaluate_all(
        "all => all.slice(1).map(row => [...row.cells].slice(1).map(cell => cell.innerText))"
    )
    return found


def test_b17_numbers_histogram_and_heat_map_are_those_of_python(page: Page, study: Study) -> None:
    glass = opened(page, study)
    page.get_by_role("button", name="look at x").click()
    assert answered(page, study) == [{"name": "x", "slice": [], "row": 0, "col": 0, "against": ""}]
    found = study.look("x")
    for name in ("min", "max", "mean", "std", "l2"):
        shown = glass.locator(f'[data-value="glass-{name}"]')
        assert float(shown.get_attribute("data-number") or "") == getattr(found.summary, name)
    counts = glass.locator('[data-value="glass-counts"]')
    assert (
        counts.inner_text() == "4,800 elements, 0 zero, 1 NaN, 1 infinite" and counts.get_attribute("data-broken") == ""
    )
    assert rows(glass) == found.window.texts()
    assert [len(rows(glass)), len(rows(glass)[0])] == [16, 16]
    bars = glass.locator(".gd-bars").get_attribute("d") or ""
    assert bars.count("M") == sum(c > 0 for c in found.summary.histogram.counts)
    assert glass.locator(".gd-glassname").inner_text() == "x" and "after step 1, 19.2 KB read" in glass.inner_text()
    heat = glass.locator('[data-command="heat"]')
    low, high = (glass.locator(f'[data-value="glass-{n}"]').inner_text() for n in ("min", "max"))
    told = (
        f"heat map of x, f32 2 by 3 by 20 by 40, {low} to {high}, 2 not finite; arrows move the window of exact values"
    )
    assert heat.get_attribute("aria-label") == told and low.startswith("\N{MINUS SIGN}")
    page.locator(".gd-voice", has_text=told).wait_for(state="attached")
    assert painted(glass) == bytes_of(found)
    assert glass.locator(".gd-holes").count() == 0, "not in this slice"


def painted(glass: Locator) -> list[float]:
    """The tint of each cell of the heat map, read off its paths; NaN: a cross."""
    found = glass.locator(".gd-heat path").evaluate_all(
        "all => all.map(p => [p.getAttribute('class'), p.style.getPropertyValue('--gd-tint'), p.getAttribute('d')])"
    )
    box = "e => [e.viewBox.baseVal.width, e.viewBox.baseVal.height]"
    cols, tall = map(int, glass.locator(".gd-heat svg").evaluate(box))
    cells = [0.0] * (cols * tall)
    for kind, tint, d in found:
        sign = -1 if "elementwise" in kind else 1
        for c, r in re.findall(r"M(\d+) (\d+)", d):
            cells[int(r) * cols + int(c)] = float("nan") if kind == "gd-holes" else sign * float(tint[:-1]) / 100
    return cells


def bytes_of(found: Any) -> list[float]:
    """Return the tints that are right: against zero, in sixteenths."""
    small = found.summary.thumbnail
    most = max(-small.low, small.high)
    values = [small.low + b / 254 * (small.high - small.low) for b in small.data]
    return [float(np.floor(16 * v / most + 0.5)) / 16 + 0.0 for v in values]


def test_slices_windows_and_the_largest_difference(page: Page, study: Study) -> None:
    glass = opened(page, study)
    page.get_by_role("button", name="look at x").click()
    answered(page, study)
    fields = glass.locator('[data-command="slice"]')
    assert [f.get_attribute("aria-label") for f in fields.all()] == [
        "slice of axis 0: 0 to 1",
        "slice of axis 1: 0 to 2",
    ]
    box = box_of(glass.locator(".gd-heat"))
    fields.nth(0).fill("1")
    fields.nth(1).fill("2")
    fields.nth(1).press("Enter")
    assert answered(page, study)[-1]["slice"] == [1, 2]
    assert rows(glass) == study.look("x", slice=(1, 2)).window.texts() and rows(glass)[3][4] == "nan"
    assert glass.locator(".gd-holes").get_attribute("d") == "M4 3m.2 .2l.6 .6m0-.6l-.6 .6M39 19m.2 .2l.6 .6m0-.6l-.6 .6"
    assert "×: something is not finite" in glass.inner_text()
    assert box_of(glass.locator(".gd-heat")) == box, "nothing has moved"
    fields.nth(0).fill("7")
    fields.nth(0).press("Enter")
    answered(page, study)
    note = glass.locator('[data-value="glass-note"]')
    assert note.inner_text() == "look: slice: given [7, 2], wanted an index below each of 2 x 3"
    fields.nth(0).fill("1")
    fields.nth(0).press("Enter")
    answered(page, study)

    heat = glass.locator('[data-command="heat"]')
    heat.focus()
    for key, at in (("ArrowRight", (0, 1)), ("ArrowDown", (1, 1)), ("Shift+ArrowRight", (1, 17)), ("ArrowUp", (0, 17)),
                    ("Shift+ArrowRight", (0, 24)), ("ArrowLeft", (0, 23)), ("ArrowUp", (0, 23))):  # fmt: skip
        page.keyboard.press(key)
        last = answered(page, study)[-1]
        assert (last["row"], last["col"], last["slice"]) == (*at, [1, 2]), key
        assert rows(glass) == study.look("x", slice=(1, 2), row=at[0], col=at[1]).window.texts()
    assert page.evaluate("document.activeElement.dataset.command") == "heat", "the arrows stay there"
    heat.click(position={"x": 2, "y": 2})
    assert answered(page, study)[-1] == {"name": "x", "slice": [1, 2], "row": 0, "col": 0, "against": ""}

    glass.get_by_label("compare with").select_option("cpu")
    assert answered(page, study)[-1]["against"] == "cpu"
    assert glass.locator('[data-value="difference"]').inner_text() == "against cpu: equal"


def test_the_largest_difference_is_marked_and_shown(page: Page, study: Study) -> None:
    glass = opened(page, study)
    page.get_by_role("button", name="look at w").click()
    answered(page, study)
    kept = study.session.read_param("w")
    found = study.look("w").to_json()
    found["difference"] = {"to": "cpu", "error": 1e-3, "ulp": 512.0, "at": [100, 150], "got": 1.0, "want": 2.0,
                           "unlike": 0, "text": "cpu: at most 0.001; 512 ulp at [100, 150]: 1 for 2"}  # fmt: skip
    glass.get_by_label("compare with").select_option("reference")
    (asked,) = [m for m in page.evaluate("window.sent.splice(0)") if m["type"] == "command"]
    page.evaluate("r => tell(r)", {"type": "reply", "req": asked["req"], "ok": True, "result": found, "error": None})
    page.wait_for_function("() => document.querySelector('.gd-worst')")
    mark = {n: glass.locator(".gd-worst").get_attribute(n) for n in ("x", "y", "width", "height")}
    assert mark == {"x": "48", "y": "49", "width": "1", "height": "1"}
    page.evaluate("window.sent.length = 0")
    glass.locator('[data-command="worst"]').click()
    (asked,) = [m for m in page.evaluate("window.sent.splice(0)") if m["type"] == "command"]
    assert (asked["args"]["row"], asked["args"]["col"]) == (92, 142)
    found["window"] = study.look("w", row=92, col=142).to_json()["window"]
    page.evaluate("r => tell(r)", {"type": "reply", "req": asked["req"], "ok": True, "result": found, "error": None})
    page.wait_for_function("() => document.querySelector('[data-worst]')")
    assert glass.locator("[data-worst]").inner_text() == str(kept[100, 150])


def test_a_difference_in_another_slice_is_not_marked_and_found(page: Page, study: Study) -> None:
    glass = opened(page, study)
    page.get_by_role("button", name="look at x").click()
    (asked,) = [m for m in page.evaluate("window.sent.splice(0)") if m["type"] == "command"]
    found = study.look("x").to_json()
    found["difference"] = {"to": "cpu", "error": "nan", "ulp": 0.0, "at": [1, 2, 3, 4], "got": "nan", "want": 2.0,
                           "unlike": 1, "text": "cpu: 1 element is not finite in one of the two alone"}  # fmt: skip
    page.evaluate("r => tell(r)", {"type": "reply", "req": asked["req"], "ok": True, "result": found, "error": None})
    glass.locator('[data-command="worst"]').click()
    assert glass.locator(".gd-worst").count() == 0 == glass.locator("[data-worst]").count()
    (asked,) = [m for m in page.evaluate("window.sent.splice(0)") if m["type"] == "command"]
    assert asked["args"] == {"name": "x", "slice": [1, 2], "row": 0, "col": 0, "against": ""}
    found |= study.look("x", slice=(1, 2)).to_json() | {"difference": found["difference"]}
    page.evaluate("r => tell(r)", {"type": "reply", "req": asked["req"], "ok": True, "result": found, "error": None})
    page.wait_for_function("() => document.querySelector('[data-worst]')")
    assert glass.locator("[data-worst]").inner_text() == "nan" and glass.locator(".gd-worst").get_attribute("y") == "3"


def test_what_is_selected_and_what_cannot_be_looked_at(page: Page, study: Study) -> None:
    glass = opened(page, study)
    look = page.locator('[data-command="look"]')
    look.click()
    assert glass.is_hidden() and "select a node, edge or buffer first" in page.locator(".gd-watches").inner_text()
    assert answered(page, study) == []
    node = next(n.id for n in study.graph if n.name == HOSTILE)
    open_tab(page, "opt")
    page.locator(f'[data-pane="before"] [data-entity="node:0.{node}"]').first.click()
    page.keyboard.press("l")
    assert [a["name"] for a in answered(page, study)] == [f"node:0.{node}"]
    assert glass.is_visible() and glass.locator(".gd-glassname").inner_text() in (HOSTILE, f"node:0.{node}")
    note = glass.locator('[data-value="glass-note"]')
    assert page.locator("img").count() == 0
    assert note.is_hidden() or note.inner_text().startswith("look: " + HOSTILE)

    page.get_by_role("button", name="look at w").click()
    answered(page, study)
    size = "e => [e.offsetWidth, e.offsetHeight]"
    before = glass.locator(".gd-glassbody").evaluate(size)
    tell(page, study, state="running", wanted=50)
    assert note.inner_text() == "the session is running: pause it to look" and glass.get_attribute("data-old") == ""
    assert look.is_disabled() and look.get_attribute("title") == "the session is running"
    assert answered(page, study) == [], "nothing is asked while it runs"
    tell(page, study, state="paused", wanted=50)
    assert [a["name"] for a in answered(page, study)] == ["w"], "looked at again by itself"
    assert note.is_hidden() and glass.get_attribute("data-old") is None
    assert glass.locator(".gd-glassbody").evaluate(size) == before, "nothing has moved"
    page.evaluate("end()")
    assert note.inner_text().startswith("the session is closed") and rows(glass) == study.look("w").window.texts()
    page.get_by_role("button", name="close the microscope").click()
    assert glass.is_hidden()


@pytest.mark.parametrize("colours", ["none", "active"])
def test_a_document_alone_shows_what_was_looked_at(page: Page, study: Study, colours: Any) -> None:
    page.emulate_media(forced_colors=colours)
    study.look("x", slice=(1, 2))
    study.clear(next(w.id for w in study.runner.lookout.watches.values() if w.name == "x"))
    document = study.doc
    study.watch("x", "w")
    mount(page, document.portable())
    open_tab(page, "session")
    glass, values = page.locator(".gd-glass"), document.data["runs"][-1]["values"]
    names = page.locator(".gd-watchlist button")
    assert names.all_inner_texts() == [v["name"] for v in values] and {"x", "w"} <= set(names.all_inner_texts())
    page.get_by_role("button", name="look at x").click()
    value = next(v for v in values if v["name"] == "x")
    assert float(glass.locator('[data-value="glass-mean"]').get_attribute("data-number") or "") == value["mean"]
    assert glass.locator('[data-value="glass-note"]').inner_text().startswith("as the document has it: ")
    assert glass.locator(".gd-window").is_hidden() and glass.locator('[data-command="heat"]').is_disabled()
    assert [f.input_value() for f in glass.locator('[data-command="slice"]').all()] == ["1", "2"]
    assert glass.get_by_label("compare with").is_disabled()
    small = base64.b64decode(value["thumbnail"]["data"])
    crosses = glass.locator(".gd-holes").get_attribute("d") or ""
    assert crosses.count("M") == small.count(255) == 2
    fill = "e => getComputedStyle(e).fill"
    assert glass.locator(".gd-cells").first.evaluate(fill) != glass.locator(".gd-cells").last.evaluate(fill)
    assert page.evaluate(AUDIT) == []


def test_zoomed_to_200_percent_nothing_is_cut(page: Page, study: Study) -> None:
    glass = opened(page, study)
    page.get_by_role("button", name="look at w").click()
    answered(page, study)
    assert page.evaluate(AUDIT) == []
    page.set_viewport_size({"width": 555, "height": 450})
    settled(page)
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth") and page.evaluate(CUT) == []
    box, frame = (box_of(part) for part in (glass.locator(".gd-heat"), glass))
    assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
