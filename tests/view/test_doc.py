"""The document: closed under provenance, in its form, stable from run to run, and true to what the passes did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networks
import pytest
from documents import STAGES, brute, checked, doc_of, entities, faults_of_form, holds_form, validator
from matrix import count
from places import REPO, TESTS
from random_graphs import random_graph

from gdlab import ops
from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.op.text import parse
from gdlab.study.study import Study
from gdlab.view.document.columns import Table
from gdlab.view.document.document import Document
from gdlab.view.document.links import link
from gdlab.view.document.make import graph_doc, study_doc
from gdlab.view.document.shortened import restored
from gdlab.view.document.sources import function_source


def node(document: Document, stage: str, **wanted: Any) -> int:
    """The index of the only node of a stage with these fields."""
    found = [i for i, n in enumerate(document.nodes(stage)) if all(n[k] == v for k, v in wanted.items())]
    assert len(found) == 1, (stage, wanted, found)
    return found[0]


# the whole -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("make", [networks.mlp, networks.transformer])
def test_documents_of_the_tour_keep_every_rule(make: Any, train: bool) -> None:
    document = doc_of(Study(make(), train=train, device="cpu"))
    assert [s["key"] for s in document.data["stages"]] == (STAGES if train else STAGES[:2])
    assert document.data["notes"] == []
    parents = [s["parent"] for s in document.data["stages"]]
    assert parents == ([-1, 0, 1, 2, 0] if train else [-1, 0])


@pytest.mark.parametrize("seed", range(count(20, 50)))
def test_random_documents_keep_every_rule(seed: int) -> None:
    train = seed % 2 == 0
    study = Study(random_graph(seed, scalar_loss=train), train=train, device="cpu")
    document = doc_of(study, schema=seed % 5 == 0)
    assert document.data["notes"] == []
    replayed(document)


def test_the_compiled_schema_refuses_what_the_schema_refuses() -> None:
    """Values of a small document in turn are replaced by one of another type: both say yes, or both say no."""
    with Graph() as g:
        g.set_outputs(ops.neg(ops.neg(ops.input("x", (3, 4)))) + ops.input("y", (3, 4)))
    data = restored(json.loads(Study(g, device="cpu").doc.json()))
    found = list(places(data))
    said = []
    for at, (inside, key) in enumerate(found[:: len(found) // 20]):
        kept, inside[key] = inside[key], (None, -1.5, "no", [], {"no": 1}, [1, 2, 3, 4, 5, 6])[at % 6]
        said.append(validator().is_valid(data))
        assert holds_form(data) == said[-1], (at, key, kept)
        inside[key] = kept
    assert said.count(False) > 8 and faults_of_form(data) == []


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every field of a document, and of the first values of its lists."""
    keys = list(value) if isinstance(value, dict) else range(min(2, len(value)))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_a_bare_graph_has_a_document() -> None:
    document = checked(graph_doc(networks.mlp(), "net"))
    assert document.data["plan"] is None and [s["key"] for s in document.data["stages"]] == ["written"]
    assert str(document) == "graph net: 14 nodes, 4 parameters (9,610 values), 1 output"


def test_a_derivative_alone_is_drawn_in_lanes() -> None:
    study = Study(networks.mlp(), train=True, device="cpu")
    document = checked(graph_doc(study.derivative))
    assert document.data["stages"][0]["layouts"]["auto"]["engine"] == "lanes"


# stages --------------------------------------------------------------------------------------------------------------
def test_keys_survive_rewrites_and_name_what_made_the_others(mlp: Document) -> None:
    written, optimized = mlp.nodes("written").column("key"), mlp.nodes("optimized").column("key")
    assert written == [f"n{i}" for i in range(len(written))]
    relu = node(mlp, "written", op="relu")
    assert optimized[node(mlp, "optimized", op="relu")] == f"n{relu}"
    fused = [n["key"] for n in mlp.nodes("optimized") if n["op"] == "fused_matmul_add"]
    added = [n["key"] for step in mlp.steps(0) for n in step["added"]]
    assert len(fused) == 2 and set(fused) <= set(added) and all(key.startswith("0.") for key in fused)
    assert len(set(mlp.nodes("final").column("key"))) == len(mlp.nodes("final"))


def test_adjoints_stand_in_their_lane_beside_their_twin(mlp: Document) -> None:
    nodes = mlp.nodes("derivative:written")
    grad = nodes[node(mlp, "derivative:written", op="relu_grad")]
    assert grad["lane"] == "adjoint" and nodes[grad["twin"]]["op"] == "relu"
    assert nodes[grad["twin"]]["flags"] == ["saved"] and nodes[grad["twin"]]["lane"] == "forward"
    final = mlp.nodes("final")
    grad = final[node(mlp, "final", op="relu_grad")]
    assert grad["lane"] == "adjoint" and final[grad["twin"]]["op"] == "relu"


def test_outputs_and_flags(mlp: Document) -> None:
    outputs = list(mlp.outputs("final"))
    assert [(o["kind"], o["of"]) for o in outputs] == [
        ("user", ""),
        *(("gradient", n) for n in ("w1", "b1", "w2", "b2")),
    ]
    nodes = mlp.nodes("final")
    assert {"output", "loss"} <= set(nodes[outputs[0]["node"]]["flags"])
    assert "gradient" in nodes[outputs[1]["node"]]["flags"]
    assert set(nodes[node(mlp, "final", name="w1")]["flags"]) == {"leaf", "parameter"}
    fused = [n for n in nodes if "fused" in n["flags"]]
    assert {n["op"] for n in fused} == {"fused_matmul_add"}


def test_a_name_used_twice_is_told_apart() -> None:
    with Graph() as g:
        h = ops.relu(ops.input("x", (3, 4))).named("h")
        g.set_outputs(ops.tanh(h).named("h"))
    assert [n for n in graph_doc(g).nodes().column("name") if n] == ["x", "h#1", "h"]


def test_costs_are_those_of_the_cost_model(mlp: Document) -> None:
    matmul = mlp.nodes("written")[next(i for i, n in enumerate(mlp.nodes("written")) if n["op"] == "matmul")]
    assert matmul["flops"] == 2 * 64 * 64 * 128
    assert matmul["bytes_moved"] == 4 * (64 * 64 + 64 * 128 + 64 * 128)
    assert matmul["cost_seconds"] == pytest.approx(3e-6 + matmul["bytes_moved"] / 1e12)


def test_hashes_are_equal_where_the_same_is_computed() -> None:
    first, second = graph_doc(networks.mlp()), graph_doc(networks.mlp())
    assert first.nodes().column("hash") == second.nodes().column("hash")
    other = graph_doc(networks.mlp(batch=32))
    same = set(first.nodes().column("hash")) & set(other.nodes().column("hash"))
    assert len(same) == 4  # the parameters alone are of the same type


def test_a_node_that_goes_nowhere_says_why() -> None:
    with Graph() as g:
        x = ops.input("x", (3, 4))
        ops.exp(x)  # nothing reads it
        g.set_outputs(ops.tanh(ops.neg(ops.neg(x))))
    document = doc_of(Study(g, device="cpu"))
    fates = document.nodes("written").column("fate")
    assert fates[1] == {"kind": "dead", "into": None, "reason": "no output depends on it"}
    assert document.select("node:0.4") >= {"node:1.1", "dispatch:0"}
    assert all(fates[i] or document.provenance.down for i in (2, 3))


# passes --------------------------------------------------------------------------------------------------------------
def replayed(document: Document) -> None:
    """All steps of every optimize pass, applied to the records of its stage, give the next stage exactly."""
    types = document.types.column("text")
    for p, one in enumerate(document.data["passes"]):
        if one["role"] != "optimize":
            continue
        before, after = document.nodes(one["from"]), document.nodes(one["to"])
        live = {n["key"]: record(n, before, types) for n in before}
        outputs = [before[i]["key"] for i in document.outputs(one["from"]).column("node")]
        order = list(live)
        for step in document.steps(p):
            live |= {n["key"]: dict(n) for n in step["added"]}
            for key, port, new in step["rewired"]:
                if port < 0:
                    outputs[-1 - port] = new
                else:
                    inputs = live[key]["inputs"]
                    live[key] = {**live[key], "inputs": [*inputs[:port], new, *inputs[port + 1 :]]}
            for key in step["removed"]:
                del live[key]
            order = step["order"] or order
        assert order == after.column("key")
        assert [live[key] for key in order] == [record(n, after, types) for n in after]
        assert outputs == [after[i]["key"] for i in document.outputs(one["to"]).column("node")]


def record(n: dict[str, Any], nodes: Table, types: list[str]) -> dict[str, Any]:
    keys = nodes.column("key")
    return {
        "key": n["key"],
        "op": n["op"],
        "inputs": [keys[i] for i in n["inputs"]],
        "attrs": n["attrs"] or {},
        "type": types[n["type"]],
        "name": n["name"].partition("#")[0],
    }


def test_steps_replay_from_the_document_alone(mlp: Document) -> None:
    replayed(mlp)
    assert mlp.steps(0)[-1]["label"] == "sweep"


def test_a_chain_of_rewrites_lights_every_step_that_led_to_it() -> None:
    with Graph() as g:
        gate, up = ops.input("gate", (4, 4)), ops.input("up", (4, 4))
        g.set_outputs(gate * ops.sigmoid(gate) * up)
    document = doc_of(Study(g, device="cpu"))
    labels = {f"step:0.{i}": step["label"] for i, step in enumerate(document.steps(0))}
    chain = {entity for entity, label in labels.items() if label in ("Mul+Sigmoid→Silu", "Silu+Mul→SwiGLU")}
    swiglu = f"node:1.{node(document, 'optimized', op='swiglu')}"
    sigmoid = f"node:0.{node(document, 'written', op='sigmoid')}"
    assert len(chain) == 2 and chain <= document.select(swiglu) and chain <= document.select(sigmoid)
    assert swiglu in document.select(sigmoid) and "dispatch:0" in document.select(sigmoid)


def test_the_report_is_told_unchanged(trained: Study, mlp: Document) -> None:
    report, told = trained.report, mlp.data["passes"][0]["report"]
    assert (told["nodes_before"], told["nodes_after"]) == (report.nodes_before, report.nodes_after)
    assert [(r["id"], r["matched"], r["used"]) for r in told["rules"]] == [
        (r.id, r.matched, r.used) for r in report.rules
    ]
    assert told["rules_fired"] == [list(pair) for pair in report.rules_fired]
    labels = [step["label"] for step in mlp.steps(0) if step["label"] != "sweep"]
    assert [[label, labels.count(label)] for label in dict.fromkeys(labels)] == told["rules_fired"]


def test_each_gradient_step_says_what_it_made_and_kept(trained: Study, mlp: Document) -> None:
    number = [p["key"] for p in mlp.data["passes"]].index("differentiate:written")
    steps, nodes = list(mlp.steps(number)), mlp.nodes("derivative:written")
    ops_of = [nodes[s["node"]]["op"] for s in steps]
    assert ops_of[0] == "cross_entropy_loss" and ops_of[-1] == "matmul"
    relu = steps[ops_of.index("relu")]
    assert [nodes[i]["op"] for i in relu["added"]] == ["relu_grad"]
    assert relu["residuals"] == [{"node": relu["node"], "nbytes": 4 * 64 * 128}]
    source = mlp.data["passes"][number]["sources"]["relu"]
    assert source["name"] == "gdlab/ops/elementwise.py" and source["text"].startswith("@relu.vjp\ndef ")
    line = mlp.lines[relu["line"]]
    assert "relu(" in mlp.data["sources"][line["source"]]["text"].split("\n")[line["line"] - first_line(mlp, line)]


def first_line(document: Document, line: dict[str, Any]) -> int:
    return int(document.data["sources"][line["source"]]["first_line"])


def test_rule_sources_stand_as_in_their_files() -> None:
    study = Study(networks.mlp(), device="cpu")
    sources = study.doc.data["passes"][0]["sources"]
    assert set(sources) >= {rule.id for rule in study.report.rules if rule.label != "CSE"} - {"cse", "fold_constant"}
    for source in sources.values():
        listing = (REPO / source["name"]).read_text(encoding="utf-8").split("\n")
        assert listing[source["line"] - 1].strip() == source["text"].split("\n")[0].strip()


def test_a_function_with_its_signature_on_many_lines_is_told_whole() -> None:
    source = function_source(study_doc)
    assert source is not None and source["name"] == "gdlab/view/document/make.py"
    lines = source["text"].rstrip().split("\n")
    assert lines[0].startswith("def study_doc(") and lines[-1].lstrip().startswith("return ")
    wide = function_source(many_lines)
    assert wide is not None and wide["text"].endswith("    )\n") and "given" in wide["text"]


def many_lines(
    given: int,
) -> tuple[
    int,
    ...,
]:
    return (
        given,
        given,
    )


# plan ----------------------------------------------------------------------------------------------------------------
def test_the_plan_is_told_with_the_update_behind_it(trained: Study, mlp: Document) -> None:
    plan = mlp.data["plan"]
    assert plan["updates"] == 4 and plan["optimizer"] == "Adam, lr 0.001"
    assert plan["dispatches"]["count"] == len(trained.plan.dispatches) + 4
    assert plan["groups"]["count"] == trained.session.num_groups()
    dispatches, names = list(mlp.plan("dispatches")), mlp.plan("intervals").column("name")
    last = dispatches[-1]
    assert last["phase"] == "update" and last["group"] == plan["groups"]["count"] - 1
    assert [names[i] for i in last["reads"]] == ["∂b2", "b2", "adam_m.b2", "adam_v.b2"]
    assert plan["memory"]["state_bytes"] == trained.session.memory_summary().adam_state_bytes
    assert plan["memory"]["physical_bytes"] == trained.session.memory_summary().total_buffer_bytes


def test_an_update_lengthens_lives_and_says_what_it_waits_for(trained: Study, mlp: Document) -> None:
    count = mlp.plan("dispatches").count
    lives = {row["name"]: (row["first"], row["last"], row["last_group"]) for row in mlp.plan("intervals")}
    last = mlp.plan("groups").count - 1
    assert lives["b2"] == (-1, count - 1, last) and lives["adam_v.b2"] == (-1, count - 1, last)
    assert lives["∂b2"][1] == count - 1 and lives["relu"][1] < len(trained.plan.dispatches)
    names = mlp.plan("intervals").column("name")
    raw = {(names[h["interval"]], h["to"]) for h in mlp.plan("groups")[last]["because"] if h["hazard"] == "raw"}
    before = mlp.plan("groups")[last - 1]
    written = {(f"∂{name}", count - 4 + i) for i, name in enumerate(("w1", "b1", "w2", "b2"))}
    assert set() < raw <= written
    assert all(before["start"] <= h["from"] < before["stop"] for h in mlp.plan("groups")[last]["because"])


def test_an_update_reaches_the_python_that_made_it(mlp: Document) -> None:
    last = mlp.plan("dispatches").count - 1
    kinds = [
        mlp.data["sources"][mlp.lines[int(e[5:])]["source"]] for e in mlp.select(f"dispatch:{last}") if e[:5] == "line:"
    ]
    assert {(s["kind"], s["name"]) for s in kinds} >= {("generated", "gdlab/plan/update.py")}


def test_without_a_session_there_is_no_update() -> None:
    document = doc_of(Study(networks.mlp(), train=True, device="cpu"))
    assert document.data["plan"]["updates"] == 0 and document.data["runs"] == []
    assert "state" not in document.plan("intervals").column("kind")


def test_equal_kernels_are_told_once(mlp: Document) -> None:
    texts = mlp.plan("kernels").column("wgsl")
    assert len(set(texts)) == len(texts)
    twice = doc_of(Study(networks.transformer(layers=2), device="cpu"))
    assert twice.plan("kernels").count < twice.plan("dispatches").count
    plan = Study(networks.transformer(layers=2), device="cpu").plan
    kernels = twice.plan("kernels").column("wgsl")
    for d, kernel in zip(plan.dispatches, twice.plan("dispatches").column("kernel"), strict=True):
        assert kernels[kernel] == plan.wgsl(d.index)[0].removesuffix("\n")


def test_wgsl_lines_belong_to_the_nodes_of_the_line_map() -> None:
    study = Study(networks.transformer(layers=2), device="cpu")
    document = doc_of(study)
    expected = set()
    for d, kernel in zip(study.plan.dispatches, document.plan("dispatches").column("kernel"), strict=True):
        expected |= {(kernel, line, i) for line, nodes in study.plan.wgsl(d.index)[1] for i in nodes}
    found = set()
    for k, kernel in enumerate(document.plan("kernels")):
        for n in range(1, kernel["wgsl"].count("\n") + 2):
            row = document.data["wgsl_base"][k] + n - 1
            found |= {(k, n, i) for i in document.provenance.behind("wgsl", "node:1", row)}
    assert found == expected


# sources -------------------------------------------------------------------------------------------------------------
CELL = """%%graph net
def dense(v, n):
    return v @ parameter("w" + n, (4, 4))
x = input("x", (2, 4))
h = dense(x, "1"); k = relu(h)
dense(k, "2")
"""


def from_cell() -> Document:
    code = compile(CELL.replace("%%graph net", "", 1), "<graph net, cell 7>", "exec")
    scope: dict[str, Any] = {name: getattr(ops, name) for name in ("parameter", "input", "relu")}
    with Graph() as g:
        exec(code, scope)
        g.set_outputs(g.value(len(g) - 1))
    return doc_of(Study(g, device="cpu", name="net", source={"<graph net, cell 7>": CELL}))


def test_a_cell_is_a_source_and_calls_are_its_lines() -> None:
    document = from_cell()
    (source,) = document.data["sources"]
    assert (source["kind"], source["name"], source["first_line"], source["text"]) == ("cell", "Cell 7", 1, CELL)
    lines = list(document.lines)
    texts = {i: CELL.split("\n")[n["line"] - 1][n["col"] : n["end_col"]] for i, n in enumerate(lines)}
    assert sorted(set(texts.values())) == sorted(
        {'input("x", (2, 4))', 'dense(x, "1")', "relu(h)", 'dense(k, "2")', 'parameter("w" + n, (4, 4))',
         'v @ parameter("w" + n, (4, 4))'}
    )  # fmt: skip


def test_a_call_inside_a_function_knows_its_caller() -> None:
    document = from_cell()
    texts = [CELL.split("\n")[n["line"] - 1][n["col"] : n["end_col"]] for n in document.lines]
    products = [i for i, text in enumerate(texts) if text.startswith("v @")]
    callers = [[texts[k] for k in document.lines[i]["stack"]] for i in products]
    assert callers == [['dense(x, "1")'], ['dense(k, "2")']]
    first = texts.index('dense(x, "1")')
    assert {e for e in document.select(f"line:{first}") if e.startswith("node:0.")} == {"node:0.1", "node:0.2"}


def test_two_ops_of_one_line_light_alone_and_their_line_lights_both() -> None:
    with Graph() as g:
        x = ops.input("x", (8, 8))
        g.set_outputs([ops.sum_all(ops.exp(x)), ops.transpose(x) @ ops.transpose(x)])
    document = doc_of(Study(g, device="cpu"))
    lit = document.select(f"node:0.{node(document, 'written', op='exp')}")
    assert f"node:0.{node(document, 'written', op='matmul')}" not in lit
    assert {e for e in lit if e.startswith("node:0.")} == {"node:0.1"}


def test_files_give_their_lines_without_their_folder(mlp: Document) -> None:
    assert {s["name"] for s in mlp.data["sources"]} >= {"networks.py", "documents.py"}
    assert str(TESTS) not in mlp.json().decode() and os.path.expanduser("~") not in mlp.json().decode()
    for source in mlp.data["sources"]:
        if source["name"] == "networks.py":
            listing = Path(networks.__file__).read_text(encoding="utf-8").split("\n")
            shown = source["text"].rstrip("\n").split("\n")
            first = source["first_line"]
            assert shown == listing[first - 1 : first - 1 + len(shown)] and len(shown) < 20


def test_a_graph_that_no_call_wrote_reaches_its_own_text() -> None:
    graph = parse(networks.mlp().text())
    document = doc_of(Study(graph, train=True, device="cpu"))
    (source,) = document.data["sources"]
    assert source["kind"] == "generated" and source["text"] == str(graph)
    lit = document.select("dispatch:0")
    relu = next(n.id for n in graph if n.op == "relu")
    texts = [source["text"].split("\n")[document.lines[int(e[5:])]["line"] - 1] for e in lit if e.startswith("line:")]
    assert any(text.startswith(f"%{relu} = relu(") for text in texts)


# links ---------------------------------------------------------------------------------------------------------------
def test_selecting_equals_the_contract_for_every_entity(mlp: Document) -> None:
    listed = entities(mlp)
    some = [e for e in listed if not e.startswith("wgsl:")] + [e for e in listed if e.startswith("wgsl:")][::17]
    for entity in some:
        assert mlp.select(entity) == brute(mlp, entity), entity


def test_a_node_lights_its_own_lines_of_a_kernel_and_a_dispatch_all(mlp: Document) -> None:
    text = mlp.plan("kernels")[mlp.plan("dispatches")[0]["kernel"]]["wgsl"]
    whole = {e for e in mlp.select("dispatch:0") if e.startswith("wgsl:")}
    assert len(whole) == text.count("\n") + 1
    relu = f"node:3.{node(mlp, 'final', op='relu')}"
    own = {e for e in mlp.select(relu) if e.startswith("wgsl:0.")}
    assert own and own < whole
    assert all("relu" in text.split("\n")[int(e.partition(".")[2]) - 1] or "after" in text for e in own)


def test_links_are_transposes() -> None:
    made = link("line", "node:0", [(2, 0), (0, 1), (2, 0), (2, 1), (1, 1)], 4, 2)
    assert made["out"] == {"start": [0, 1, 2, 4, 4], "ids": [1, 1, 0, 1]}
    assert made["back"] == {"start": [0, 1, 4], "ids": [2, 0, 1, 2]}


@pytest.mark.parametrize("entity", ["node:0.99", "node:9.0", "wgsl:0.9999", "wgsl:99.1", "edge:0.0.0", "rule:3.0",
                                    "kernel:-1", "nodes:1", "node:1", "dispatch:", "", "line:1.2"])  # fmt: skip
def test_an_entity_that_is_not_there_is_refused(mlp: Document, entity: str) -> None:
    with pytest.raises(ArgumentError, match="select: entity: given "):
        mlp.select(entity)
