"""The text twin of every view: each entity of the view, the figures of the reports, and labels shown as they stand."""

from __future__ import annotations

import re

import networks
import pytest
from documents import doc_of, entities
from places import REPO

from gdlab import ops
from gdlab.base.errors import UnknownNameError
from gdlab.base.words import plural, sig
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.ask.slices import VIEWS as SLICES
from gdlab.view.ask.slices import view_slice
from gdlab.view.document.layouts import drawn, layout_of
from gdlab.view.document.make import Document, graph_doc
from gdlab.view.picture.picture import picture
from gdlab.view.text.twin import VIEWS, everything, markdown, twin

EVIL = "</script><img src=x onerror=alert(1)>"


def named_in(text: str) -> set[str]:
    """The entities that a text names."""
    return set(re.findall(r"(?<![\w.])(?:node|line|step|rule|kernel|dispatch|interval|wgsl):\d+(?:\.\d+)?", text))


# Which entities each view is of, by their beginnings.
OF_VIEW = {
    "graph": ("node:0.", "line:"),
    "opt": ("node:0.", "node:1.", "rule:0.", "rule:2."),
    "rewrites": ("step:0.", "step:2."),
    "grad": ("node:4.", "step:3."),
    "plan": ("dispatch:",),
    "arena": ("interval:",),
    "kernels": ("kernel:", "wgsl:"),
}


@pytest.mark.parametrize("view", OF_VIEW)
def test_a_twin_names_every_entity_of_its_view(mlp: Document, view: str) -> None:
    wanted = {e for e in entities(mlp) if e.startswith(OF_VIEW[view])}
    assert len(wanted) > 3 and wanted <= named_in(twin(mlp, view))


def test_the_links_view_names_everything_that_lights(mlp: Document) -> None:
    for entity in ("line:3", "node:0.5", "step:0.0", "dispatch:1", "interval:6", "kernel:0", "rule:0.13", "edge:1.4.0"):
        text = twin(mlp, "links", entity)
        assert mlp.select(entity) - named_in(text) <= {entity} and entity in text, entity


def test_a_chain_goes_from_the_source_line_to_the_wgsl_line(mlp: Document) -> None:
    lines = twin(mlp, "links", "dispatch:0").splitlines()[1:]
    kinds = list(dict.fromkeys(line.split(":")[0].strip() for line in lines))
    assert kinds == ["line", "node", "step", "dispatch", "interval", "kernel", "wgsl"]
    assert any("h = ops.relu(x @ ops.parameter" in line for line in lines)


def test_at_an_entity_a_view_says_only_what_concerns_it(mlp: Document) -> None:
    whole_text, part = twin(mlp, "plan"), twin(mlp, "plan", "node:0.7")
    shown = {e for e in named_in(part) if e.startswith("dispatch:")}
    assert shown and shown == {e for e in mlp.select("node:0.7") if e.startswith("dispatch:")}
    assert len(part.splitlines()) < len(whole_text.splitlines())


def test_the_twin_of_the_report_has_its_figures(trained: Study, mlp: Document) -> None:
    text, report = twin(mlp, "opt"), trained.report
    assert f"{report.nodes_before} → {report.nodes_after} nodes" in text
    assert f"stopped: saturated, {plural(len(report.iterations), 'iteration')}" in text
    used = next(i for i, rule in enumerate(report.rules) if rule.label == "MatMul+BiasAdd→FusedMatMulAdd")
    (row,) = [line.split() for line in text.splitlines() if line.strip().startswith(f"rule:0.{used} ")]
    stat = report.rules[used]
    assert row[1:6] == [stat.label, stat.tag, str(stat.matched), str(stat.created), str(stat.used)] and stat.used == 2
    idle = sum(not (rule.matched or rule.used) for rule in report.rules)
    assert f"{idle} rules without a match: rule:0." in text


def test_the_twin_of_the_plan_has_its_counts(trained: Study, mlp: Document) -> None:
    text, plan = twin(mlp, "plan"), trained.plan
    groups = trained.session.num_groups()
    assert text.startswith(
        f"plan mlp: {len(plan.dispatches)} + 4 dispatches (Adam, lr 0.001), {groups} groups, physical "
    )
    totals = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.split()[0] in ("update", "all")}
    assert totals == {"update": "4", "all": str(len(plan.dispatches) + 4)}
    assert re.search(r"group 1, dispatches 1 … 1, [0-9.]+ µs predicted: raw \w+ \(0 before 1\)", text)


def test_the_twin_of_the_session(trained: Study, mlp: Document) -> None:
    text, losses = twin(mlp, "session"), trained.runner.losses
    assert f"loss: {sig(losses[0][1])} at step {losses[0][0]} → {sig(losses[-1][1])} at step {losses[-1][0]}" in text
    assert trained.session.memory_summary().text in text
    assert twin(graph_doc(networks.mlp(), "net"), "session").startswith("no session yet: %graph_run net 100")


def test_the_twin_of_the_derivative_says_what_is_kept(mlp: Document) -> None:
    text = twin(mlp, "grad")
    relu = next(line for line in text.splitlines() if "relu_grad" in line and line.strip().startswith("step:"))
    assert "32.8 KB" in relu and "activations saved" in text


def test_without_a_plan_the_views_say_so() -> None:
    document = graph_doc(networks.mlp())
    for view in ("plan", "arena", "kernels"):
        assert twin(document, view).startswith("no plan")
    assert twin(document, "grad") == "no derivative: a study for training has one\n"


def test_an_unknown_view_is_refused(mlp: Document) -> None:
    with pytest.raises(UnknownNameError, match="explain: view: given plam, wanted one of graph, .*nearest: plan"):
        twin(mlp, "plam")
    with pytest.raises(UnknownNameError, match="nearest: plan"):
        view_slice(mlp, "plam")


def test_every_view_has_a_twin_and_a_slice() -> None:
    assert set(VIEWS) == set(SLICES)


# labels as they stand ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", [EVIL, "a\nb\tc\x1b[31mred", "x" * 10_000, "שלום \u202etxt", "zero\u200bwidth", "| a | `b` |"]
)
def test_labels_are_shown_and_steer_nothing(name: str) -> None:
    with Graph() as g:
        g.set_outputs(ops.relu(ops.input("x", (2, 3))).named(name))
    document = doc_of(Study(g, device="cpu", name=name))
    text = everything(document)
    assert "\x1b" not in text and all(len(line) < 60_000 for line in text.splitlines())
    rows = [line for line in twin(document, "graph").splitlines() if line.strip().startswith("node:0.1 ")]
    assert len(rows) == 1 and name.split()[0][:20] in rows[0]
    table = [line for line in markdown(document).splitlines() if line.startswith("| node:0.1 |")]
    assert (
        len(table) == 1 and len(re.findall(r"(?<!\\)\|", table[0])) == 6 and "<img" not in table[0].replace("\\<", "")
    )


def test_markdown_shows_the_tables(mlp: Document) -> None:
    text = markdown(mlp)
    assert text.startswith("# mlp\n") and "## As written" in text and "## Plan" in text
    head = next(line for line in text.splitlines() if line.startswith("| entity | group |"))
    rows = [line for line in text.splitlines() if line.startswith("| dispatch:")]
    assert len(rows) == mlp.plan("dispatches").count and all(r.count(" | ") == head.count(" | ") for r in rows)


# pictures ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("show", ["graph", "opt", "grad", "plan", "arena", "kernels", "session", "rewrites", "text"])
def test_pictures_carry_the_summary_and_their_entities(mlp: Document, show: str) -> None:
    svg = picture(mlp, show)
    assert svg.startswith("<svg ") and f"{mlp.data['summary'].replace('>', '&gt;')}</desc>" in svg
    found = set(re.findall(r'data-entity="([^"]+)"', svg))
    assert found <= set(entities(mlp)) and len(svg.encode()) <= 100_000
    if show in ("plan", "arena"):
        assert {e for e in entities(mlp) if e.startswith(("dispatch:", "interval:"))} <= found
    if show == "opt":
        assert {e for e in entities(mlp) if e.startswith(("node:0.", "node:1."))} <= found
    if show == "grad":
        assert {e for e in entities(mlp) if e.startswith("node:4.")} <= found


def test_a_layout_is_read_back_as_it_was_written(mlp: Document) -> None:
    from gdlab.view.layout.layered import auto

    for s, stage in enumerate(mlp.data["stages"]):
        raw = stage["layouts"]["auto"]
        read = layout_of(raw, stage["nodes"]["count"])
        assert read.to_json() == raw
        assert auto(drawn(mlp, s)).to_json() | {"seconds": 0} == raw | {"seconds": 0}


def test_a_large_plan_says_what_it_leaves_out() -> None:
    document = doc_of(Study(networks.transformer(layers=6), train=True, device="cpu"), schema=False)
    svg, count = picture(document, "plan"), document.plan("dispatches").count
    assert f"showing 60 of {count} dispatches" in svg and len(svg.encode()) <= 300_000
    assert svg.count('data-entity="dispatch:') == 60 < count


def test_every_pane_of_the_page_names_its_text_twin() -> None:
    panes = REPO / "labextension" / "src" / "panes"
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(panes.glob("*.ts")))
    made = re.findall(r'export const \w+Pane: PaneRecord = pane\("(\w+)"', source)
    table = (panes / "state.ts").read_text(encoding="utf-8").partition("const NAMES = {")[2].partition("};")[0]
    twins = dict(re.findall(r'^  (\w+): \{ title: .*twin: "(\w+)"', table, re.M))
    listed = re.findall(r"^  (\w+)Pane,$", (panes / "later.ts").read_text(encoding="utf-8"), re.M)
    assert len(made) == 17 and set(made) == set(twins) == {*listed, "before", "after", "lanes"}
    assert set(twins.values()) <= set(VIEWS)
