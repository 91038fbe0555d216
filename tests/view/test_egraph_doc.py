"""The growth of an e-graph in documents: the replay law, the choice with its costs, what is recorded, and its text."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import networks
import pytest
from documents import checked, doc_of
from growing import replayed
from IPython.core.interactiveshell import InteractiveShell
from networks import gated_block, there_and_back
from random_graphs import random_graph
from shells import complete, run

import gdlab
import gdlab.ops as ops
from gdlab.autodiff import differentiate
from gdlab.graph import Graph
from gdlab.jupyter import display
from gdlab.rewrite import OptimizeReport, optimize
from gdlab.rewrite.engine.history import RECORDED, sorted_operands
from gdlab.session.stages import PipelineStage
from gdlab.study.study import Study
from gdlab.view.ask.slices import view_slice
from gdlab.view.document.closure import problems
from gdlab.view.document.columns import Table
from gdlab.view.document.document import Document, read_doc
from gdlab.view.document.growth import grown
from gdlab.view.document.make import DocumentDraft, graph_summary
from gdlab.view.document.reduced import NO_GROWTH, without_growth
from gdlab.view.text.twin import everything, twin


def documented(graph: Graph, report: OptimizeReport, result: Graph) -> Document:
    """The document of one call of `optimize`."""
    draft = DocumentDraft(graph, "g", False, {})
    draft.add(PipelineStage("optimized", "optimized", "Optimized", "written", result, report))
    return draft.document(graph_summary(graph, "g"))


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(gated_block(), name="block", device="cpu")


@pytest.fixture(scope="module")
def document(study: Study) -> Document:
    return doc_of(study)


GRAPHS: dict[str, Any] = {
    "block": gated_block, "back": there_and_back, "training": lambda: differentiate(networks.mlp())[0],
    "transformer": lambda: networks.transformer(1),
} | {f"random{i}": (lambda i=i: random_graph(i)) for i in range(12)}  # fmt: skip


@pytest.mark.parametrize("engine", ["auto", "fallback"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_document_replays_to_the_e_graph_of_every_iteration(name: str, engine: Any) -> None:
    graph = GRAPHS[name]()
    result, report = optimize(graph, phase="full", engine=engine, history=True)
    one = checked(documented(graph, report, result)).data["passes"][0]
    assert len(one["deltas"]) == len(report.iterations) + 1
    for k, delta in enumerate(report.deltas):
        wanted = sorted((n.cls, n.op, list(n.children)) for n in replayed(report.deltas, k))
        held = [(n.cls, n.op, list(sorted_operands(n.op, tuple(n.children)))) for n in grown(one, k)]
        assert sorted(held) == wanted
        assert len(one["deltas"][k]["gone"]) == delta.collapsed
    chosen_is_the_result(graph, report, result, one)


def chosen_is_the_result(graph: Graph, report: OptimizeReport, result: Graph, one: dict[str, Any]) -> None:
    """Of every class that became a node the chosen e-node is that node; all of them cost what the report says."""
    made = {c["name"]: c["made"] for c in Table(one["classes"], "eclasses")}
    chosen = [node for node in grown(one) if node.chosen]
    for node in chosen:
        became = result.node(made[node.cls])
        assert (became.op, sorted(became.inputs)) == (node.op, sorted(made[c] for c in node.children))
        assert node.more == 0.0
    became_of = [made[node.cls] for node in chosen]
    assert len(set(became_of)) == len(chosen) and {n.id for n in result if n.inputs} <= set(became_of)
    assert sum(node.cost or 0.0 for node in chosen) == pytest.approx(report.cost_after)
    assert all(node.more is None or node.more >= -1e-9 for node in grown(one)), "nothing that costs less was left lying"


def test_what_another_way_would_cost_the_whole_counts_what_it_reads(document: Document) -> None:
    ways = {(n.op, *n.children): n for n in grown(document.data["passes"][0])}
    chosen, bias = ways["fused_matmul_add", "%0", "%1", "%3"], ways["bias_add", "%2", "%3"]
    product = ways["matmul", "%0", "%1"]
    assert chosen.chosen and not bias.chosen and product.more is None, "nobody needs the bare product"
    assert bias.cost is not None and product.cost is not None and chosen.cost is not None
    assert bias.more == pytest.approx(bias.cost + product.cost - chosen.cost)
    add, broadcast = ways["add", "%2", "%4"], ways["broadcast_to", "%3"]
    assert add.more == pytest.approx(add.cost + product.cost + broadcast.cost - chosen.cost)  # type: ignore[operator]


def test_each_e_node_names_the_rule_that_made_it(document: Document) -> None:
    one = document.data["passes"][0]
    made = {(n.op, n.since, n.label) for n in grown(one) if n.cls in ("%5", "%13")}
    assert made == {
        ("add", 0, ""), ("mul", 0, ""), ("bias_add", 1, "Add+BroadcastTo→BiasAdd"),
        ("fused_matmul_add", 1, "MatMul+Add→FusedMatMulAdd"), ("fused_matmul_add", 2, "MatMul+BiasAdd→FusedMatMulAdd"),
        ("swiglu", 2, "Silu+Mul→SwiGLU"),
    }  # fmt: skip
    fired = dict(one["deltas"][1]["fired"])
    assert fired == {"Add+BroadcastTo→BiasAdd": 2, "Mul+Sigmoid→Silu": 1, "MatMul+Add→FusedMatMulAdd": 3}


def test_what_gdlab_folds_before_the_first_iteration_has_its_label() -> None:
    graph = there_and_back()
    result, report = optimize(graph, phase="inference", history=True)
    folded = [n for n in grown(documented(graph, report, result).data["passes"][0], 0) if n.label]
    assert [(n.op, n.label) for n in folded] == [("full", "Fold Constant")] * 2, "6.0 and its broadcast"


def test_classes_that_become_one_take_their_e_nodes_along() -> None:
    graph = there_and_back()
    result, report = optimize(graph, phase="inference", history=True)
    one = checked(documented(graph, report, result)).data["passes"][0]
    tanh, negated = 3, 5  # −(−tanh) is tanh
    merged = [tuple(pair) for delta in one["deltas"] for pair in delta["merged"]]
    assert (f"%{tanh}", f"%{negated}") in merged
    held = {c["name"]: c["nodes"] for c in Table(one["classes"], "eclasses")}
    assert {tanh, negated} < set(held[f"%{tanh}"]) and f"%{negated}" not in held
    loops = [n for n in grown(one) if n.cls in n.children]
    assert {n.op for n in loops} == {"scale"} and {n.cost for n in loops} == {None}, "it reads itself: it is no choice"


def test_every_node_of_the_graph_is_in_one_class_but_dead_ones(study: Study, document: Document) -> None:
    nodes = [i for c in Table(document.data["passes"][0]["classes"], "eclasses") for i in c["nodes"]]
    assert sorted(nodes) == list(range(len(study.graph)))
    types = [document.types[c["type"]]["text"] for c in Table(document.data["passes"][0]["classes"], "eclasses")]
    assert types == [str(study.graph.node(c).type) for c in range(len(types))]


# when it is recorded -------------------------------------------------------------------------------------------------
def chain_of(length: int) -> Graph:
    with Graph() as g:
        x = ops.input("x", (2, 3))
        for _ in range(length):
            x = ops.tanh(x)
        g.output(x)
    return g


def recorded(study: Study) -> list[bool]:
    return [one["deltas"] is not None for one in study.doc.data["passes"] if one["role"] == "optimize"]


def test_small_graphs_are_recorded_and_large_ones_where_somebody_asks() -> None:
    at_most, above = chain_of(RECORDED - 1), chain_of(RECORDED)
    assert recorded(Study(at_most, device="cpu")) == [True]
    assert recorded(Study(at_most, device="cpu", egraph=False)) == [False]
    assert recorded(Study(above, device="cpu")) == [False]
    asked = Study(above, device="cpu", egraph=True)
    assert recorded(asked) == [True]
    asked.variant("plain", disable=["fuse_silu"])
    assert recorded(asked) == [True, True], "a variant is recorded as its study is"


def test_training_records_both_passes_and_changes_nothing_else() -> None:
    graph = networks.mlp()
    plain, told, again = (Study(graph, train=True, name="mlp", device="cpu", egraph=e) for e in (False, None, None))
    assert recorded(told) == [True, True]
    bare, full = plain.doc.portable(timeless=True).data, without_growth(told.doc).portable(timeless=True).data
    assert bare["passes"][0]["steps"] == full["passes"][0]["steps"] and bare["stages"] == full["stages"]
    assert told.doc.id != plain.doc.id and told.doc.id == again.doc.id


def test_it_is_small() -> None:
    document = Study(networks.transformer(2), train=True, device="cpu").doc
    for one in document.data["passes"]:
        if one["role"] == "optimize":
            size = len(json.dumps([one["deltas"], one["classes"]], ensure_ascii=False, separators=(",", ":")))
            assert size < 150 * len(document.nodes(one["from"]))


def test_an_output_above_its_limit_leaves_it_out_first_and_says_so(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, bare = len(display.pack(document)), len(display.pack(without_growth(document)))
    data, _ = display.bundle(document, ["opt"])
    assert read_doc(data[display.MIME]).data["passes"][0]["deltas"]
    monkeypatch.setattr(display, "_MAX_PACKED_BYTES", (whole + bare) // 2)
    data, _ = display.bundle(document, ["opt"])
    left = read_doc(data[display.MIME])
    assert left.data["passes"][0]["deltas"] is left.data["passes"][0]["classes"] is None
    assert [note["text"] for note in left.data["notes"]][-1] == NO_GROWTH
    assert left.check() == () and left.data["stages"] == document.data["stages"]
    assert without_growth(left) is left


# closure -------------------------------------------------------------------------------------------------------------
def first_delta(data: dict[str, Any]) -> dict[str, Any]:
    return data["passes"][0]["deltas"][1]  # type: ignore[no-any-return]


def unknown_class(data: dict[str, Any]) -> None:
    first_delta(data)["added"]["class"]["words"][0] = "%99"


def unknown_operand(data: dict[str, Any]) -> None:
    first_delta(data)["added"]["children"]["words"][0] = "+7"


def unknown_rule(data: dict[str, Any]) -> None:
    first_delta(data)["fired"][0][0] = "Nothing→Something"


def two_chosen(data: dict[str, Any]) -> None:
    first_delta(data)["added"]["chosen"] = [1] * 6


def unknown_node(data: dict[str, Any]) -> None:
    data["passes"][0]["classes"]["made"][5] = 99


def gone_too_early(data: dict[str, Any]) -> None:
    first_delta(data)["gone"] = [12]


FAULTS = {
    unknown_class: "step:0: iteration 1: names class %99, which there is not",
    unknown_operand: "step:0: iteration 1: names class +7, which there is not",
    unknown_rule: "step:0: iteration 1: names rule Nothing→Something, which there is not",
    two_chosen: "step:0: class %5: 3 e-nodes are chosen",
    unknown_node: "step:0: class %5: names a node that there is not",
    gone_too_early: "step:0: iteration 1: e-node 12 goes before it came",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_document_whose_deltas_name_what_is_not_there_fails_its_check(fault: Any, document: Document) -> None:
    data = copy.deepcopy(document.data)
    assert problems(data) == ()
    fault(data)
    assert problems(data)[0] == FAULTS[fault]


# as text -------------------------------------------------------------------------------------------------------------
def test_the_text_tells_every_iteration_and_the_choice(document: Document) -> None:
    text = twin(document, "egraph")
    head, *lines = text.splitlines()
    assert head == "pass 0: optimize:inference: e-graph: 3 iterations, 11 classes, 20 e-nodes and 6 leaves"
    assert [line for line in lines if line.startswith("iteration")] == [
        "iteration 0, the graph as it came in: 11 new e-nodes",
        "iteration 1, Add+BroadcastTo→BiasAdd ×2, Mul+Sigmoid→Silu ×1, MatMul+Add→FusedMatMulAdd ×3: 6 new e-nodes",
        "iteration 2, BiasAdd→Add+BroadcastTo ×2, Silu+Mul→SwiGLU ×1, MatMul+BiasAdd→FusedMatMulAdd ×2: 3 new e-nodes",
        "iteration 3: nothing new",
    ]
    rows = [" ".join(line.split()) for line in lines]
    assert "node:0.13 %13 swiglu(g, u) Silu+Mul→SwiGLU" in rows
    assert "the choice: saturated; 4 e-nodes of 20, cost 33.5 → 12.2 µs, modelled for a nominal GPU" in rows
    row = 'node:0.5 g f32[32, 128] * fused_matmul_add(x, wg, bg, addend="row") 3.06 MatMul+BiasAdd→FusedMatMulAdd'
    assert row in rows and "node:0.5 g f32[32, 128] bias_add(%2, bg) 3.03 +3.03 Add+BroadcastTo→BiasAdd" in rows
    assert f"== egraph ==\n{text}" in everything(document)
    assert "  e-graph: 3 iterations; the view egraph tells how it grew" in twin(document, "rewrites")


def test_the_text_of_one_class_is_what_lights_with_its_node(document: Document) -> None:
    lines = [line for line in twin(document, "egraph", "node:0.13").splitlines() if "node:" in line]
    assert lines and {line.split()[0] for line in lines} == {"node:0.13"}
    assert re.findall(r"swiglu|mul", lines[0]) == ["mul"]


def test_classes_that_became_one_are_told() -> None:
    graph = there_and_back()
    result, report = optimize(graph, phase="inference", history=True)
    text = twin(documented(graph, report, result), "egraph")
    assert "  %5 and %3 are one class now\n" in text and "Fold Constant" in text
    assert re.search(r"node:0\.5 +%5 +neg\(%4\)", text), "until then it had its own node"


def test_without_a_record_the_text_says_what_to_type() -> None:
    text = twin(Study(gated_block(), device="cpu", egraph=False).doc, "egraph")
    assert text == (
        "pass 0: optimize:inference: how its e-graph grew was not recorded (17 nodes; up to 300 it is by itself): "
        "%%graph NAME --egraph records it, and so does Study(graph, egraph=True)\n"
    )


def test_the_slice_holds_what_the_view_reads(document: Document) -> None:
    cut = view_slice(document, "egraph")
    assert cut["passes"][0]["deltas"] == document.data["passes"][0]["deltas"]
    assert [stage["key"] for stage in cut["stages"]] == ["written", "optimized"]
    left = Document({**document.data, **cut})
    assert twin(left, "egraph") == twin(document, "egraph")


# in a notebook -------------------------------------------------------------------------------------------------------
CELL = 'x = input("x", (2, 3))\nfor _ in range({n}):\n    x = tanh(x)\nx'


def test_a_cell_records_opens_and_completes(shell: InteractiveShell) -> None:
    out, error = run(shell, f"%%graph long --egraph --show egraph --device cpu --static\n{CELL.format(n=RECORDED + 1)}")
    assert error is None and recorded(shell.user_ns["long"]) == [True]
    (shown,) = out.outputs
    left = read_doc(shown.data[display.MIME])
    assert left.data["view"]["show"] == ["egraph"] and left.data["passes"][0]["deltas"]
    assert "e-graph: 1 iteration, 301 classes, 301 e-nodes and 1 leaf" in shown.data["text/plain"]
    _, error = run(shell, f"%%graph plain --quiet --device cpu\n{CELL.format(n=RECORDED + 1)}")
    assert error is None and recorded(shell.user_ns["plain"]) == [False]
    assert complete("%%graph g --eg") == ["--egraph"] and complete("%%graph g --show eg") == ["egraph"]
    out, _ = run(shell, "%graph plain --egraph")
    wanted = "wanted a %%graph cell or a Graph: a study has its own"
    assert f"%graph plain: given --egraph, {wanted}" in out.stdout + out.stderr


def test_the_function_takes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("gdlab.jupyter.opening.show_study", lambda study, *_, **__: seen.append(study))
    gdlab.show(chain_of(RECORDED), egraph=True, device="cpu")
    assert recorded(seen[0]) == [True]
