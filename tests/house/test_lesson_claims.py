"""Every notebook from top to bottom: it shows what it should, its documents hold, and what its first cell promises is
true in them.

The sentences are those of `docs/lessons.md`. Each claim works its facts out of a document, and its sentence says them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from documents import checked, plan_holds
from lessons import LESSONS, SHOWN, read, run_lesson
from places import REPO

import gdlab as gd
from gdlab.base.types import TensorType
from gdlab.base.words import nbytes
from gdlab.graph import Graph
from gdlab.op.machines import Machine
from gdlab.rewrite import RULES
from gdlab.study.study import Study
from gdlab.view.document.document import Document

Names = dict[str, Any]
ITEM = re.compile(r"^\d\. (.*)$", re.MULTILINE)


# reading a document ---------------------------------------------------------------------------------------------------
def differentiated(document: Document, key: str) -> Any:
    return next(i for i, p in enumerate(document.data["passes"]) if p["key"] == key)


def kept_by(document: Document, key: str, op: str) -> list[tuple[str, int]]:
    """Return the nodes that the gradient rules of this op's nodes read again: op and name of each, and its bytes."""
    number = differentiated(document, key)
    one = document.data["passes"][number]
    before, after = document.nodes(one["from"]), document.nodes(one["to"])
    steps = [step for step in document.steps(number) if before[step["node"]]["op"] == op]
    found = [each for step in steps for each in step["residuals"]]
    return [(f"{after[e['node']]['op']} {after[e['node']]['name']}".strip(), e["nbytes"]) for e in found]


def shared(document: Document, first: str, second: str) -> tuple[int, int, int, int]:
    """Of two buffers that lie in one slot: its number, who writes the first, who reads it last, who writes the second;
    `second` is the first tenant of that name behind the first."""
    intervals = document.plan("intervals")
    for number, slot in enumerate(document.plan("slots")):
        tenants = [intervals[i] for i in slot["tenants"]]
        for one in tenants:
            for other in tenants:
                if (one["name"], other["name"]) == (first, second) and one["last"] < other["first"]:
                    return number, one["first"], one["last"], other["first"]
    raise AssertionError((first, second))


def saved(document: Document, label: str) -> int:
    """The bytes that the first rewrite of a label saves beside a launch, by the nominal model of its costs."""
    machine = Machine()
    for number, one in enumerate(document.data["passes"]):
        for step in document.steps(number) if one["role"] == "optimize" else ():
            if step["label"] == label:
                seconds = (step["cost_before"] - step["cost_after"]) * 1e-6 - machine.launch_seconds
                return round(seconds * machine.bytes_per_second)
    raise AssertionError(label)


def ops(document: Document, stage: int | str) -> list[str]:
    return [node["op"] for node in document.nodes(stage) if node["inputs"]]


# what the sentences say -----------------------------------------------------------------------------------------------
Claims = Iterator[list[str]]  # for each sentence the words that the facts put into it


def tour(names: Names, _: str) -> Claims:
    document = names["mlp"].doc
    (relu,) = kept_by(document, "differentiate:written", "relu")
    assert relu[0] == "relu h" and relu in kept_by(document, "differentiate:written", "matmul")
    yield ["`h` twice", nbytes(relu[1])]
    slot, writer, reader, heir = shared(document, "z", "relu_grad")
    size = nbytes(document.plan("slots")[slot]["nbytes"])
    yield [f"Dispatch {writer} writes `z`", f"dispatch {heir} writes `relu_grad`", f"dispatch {reader} is the",
           f"slot {slot}, {size}"]  # fmt: skip
    label = "MatMul+BiasAdd→FusedMatMulAdd"
    written, optimized = document.nodes("written"), document.nodes("optimized")
    moved = sum(next(n["bytes_moved"] for n in written if n["op"] == op) for op in ("matmul", "bias_add"))
    assert saved(document, label) == moved - next(n["bytes_moved"] for n in optimized if n["op"] == "fused_matmul_add")
    yield [f"`{label}`", nbytes(saved(document, label))]


def chain_rule(names: Names, _: str) -> Claims:
    chain = names["chain"].doc
    (e,) = kept_by(chain, "differentiate:written", "exp")
    assert e[0] == "exp e" and ops(chain, "derivative:written").count("exp") == 1
    yield ["`chain` the result `e`", nbytes(e[1]), "no exponential"]
    fork = names["fork"].doc
    number = differentiated(fork, "differentiate:written")
    (step,) = (
        s for s in fork.steps(number) if fork.nodes(fork.data["passes"][number]["from"])[s["node"]]["name"] == "h"
    )
    joins = [fork.nodes(fork.data["passes"][number]["to"])[i]["op"] for i in step["accumulated"]]
    assert (len(step["cotangents"]), joins) == (3, ["add", "add"])
    yield ["three gradients arrive at `h`, and two additions"]
    net = names["net"].doc
    (h,) = kept_by(net, "differentiate:written", "relu")
    assert h[0] == "relu h" and h in kept_by(net, "differentiate:written", "matmul")
    assert kept_by(net, "differentiate:written", "bias_add") == []
    yield [f"kept once ({nbytes(h[1])})", "the bias reads nothing"]


def fusion(names: Names, _: str) -> Claims:
    block, without, apart = names["block"].doc, names["without"].doc, names["shared"].doc
    label = "Silu+Mul→SwiGLU"
    yield [f"`{label}` saves {nbytes(saved(block, label))}"]
    stage = next(s["key"] for s in without.data["stages"] if s["role"] == "optimized")
    assert "silu" not in ops(without, stage) and "swiglu" in ops(block, "optimized")
    count = len(block.plan("dispatches"))
    assert count == len(without.plan("dispatches"))
    yield [f"{len(ops(without, stage))} ops are left in place of {len(ops(block, 'optimized'))}", f"{count} dispatches"]
    (missed,) = (m for m in apart.data["passes"][0]["report"]["missed"] if m["label"] == label)
    readers = [
        n["op"] for n in apart.nodes("optimized") for i in n["inputs"] if apart.nodes("optimized")[i]["name"] == "s"
    ]
    assert sorted(readers) == ["mul", "sum_all"] and "too" in missed["text"]
    yield ["`s` stays apart because the sum reads it too"]


def where_the_bytes_live(names: Names, text: str) -> Claims:
    net, fragile = names["net"].doc, names["fragile"]
    slot, writer, reader, heir = shared(net, "h1", "relu_grad")
    size = nbytes(net.plan("slots")[slot]["nbytes"])
    yield [f"Dispatch {writer} writes `h1`", f"dispatch {heir} writes", f"dispatch {reader} is the last",
           f"slot {slot}, {size}"]  # fmt: skip
    memory = net.data["plan"]["memory"]
    whole, slots = memory["physical_bytes"], memory["parts"]["reusable slots"]
    assert set(memory["parts"]) == {"inputs", "parameters", "gradients", "outputs", "reusable slots"}
    yield [f"Of the {nbytes(whole)}", f"{nbytes(whole - slots)} are always there", f"{nbytes(slots)} are slots"]
    log = next(n.id for n in fragile.graph if n.op == "log")
    line = fragile.graph.source(log)[0].line
    assert f", line {line} of <graph fragile" in text and "it read safe −0.4" in text
    yield ["came from `log`, in step 21", "`safe` below zero"]


def tape(names: Names, text: str) -> Claims:
    (gradient,) = re.findall(r"^∂w  f32\[3\] (.*)$", text, re.MULTILINE)
    steps = re.findall(r"^%\d+ (\w+)  ∂ ", text, re.MULTILINE)  # the twin of the stepper
    (factor,) = re.findall(r"^y = x \* 2  .*f32\[3\] (.*)$", text, re.MULTILINE)
    assert steps == ["sum_all", "mul"] and gradient == factor == "[2, 4, −6]"
    yield ["two steps lead from the loss to `w`", "(2, 4, −6)"]
    turns = re.search(r"^1\.0 \['input', (.*)\]$", text, re.MULTILINE)
    assert turns is not None and len(turns[1].split(", ")) == 3 and "greater" not in turns[1]
    yield ["three, and no comparison"]
    assert names["plan_launches"] < names["launches"]
    yield ["`planned` takes fewer launches"]


def models(names: Names, text: str) -> Claims:
    classifier, letters, packed = (names[n].doc for n in ("classifier", "letters", "letters_q8"))
    held = [node["name"] for node in classifier.nodes("written") if node["op"] == "parameter"]
    norms = {name.partition(".bn.")[0] for name in held if ".bn." in name}
    assert len(norms) == 3 and all(
        [n for n in held if n.startswith(f"{norm}.bn.")] == [f"{norm}.bn.{p}.folded" for p in ("weight", "bias")]
        for norm in norms
    )
    yield ["a batch norm is two parameters", "`stem.bn.weight.folded` and `stem.bn.bias.folded`", "the four tensors"]
    types = {name: parameters(names[name].graph) for name in ("letters", "letters_q8")}
    sizes = [nbytes(sum(type.data_bytes for type in own.values())) for own in types.values()]
    bits = {8 * type.data_bytes / type.num_elements for type in types["letters_q8"].values() if type.rank == 2}
    assert bits == {8.5} and {type.dtype.name for type in types["letters"].values()} == {"f32"}
    assert letters.data["stages"][0]["groups"]["label"] == packed.data["stages"][0]["groups"]["label"]
    first, second = re.findall(r"^a cell.{48}$", text, re.MULTILINE)
    assert first == second and names["text"].startswith(first)
    yield ["8.5 bits for each element", f"{sizes[1]} of parameters in place of {sizes[0]}", "the same letters"]
    (place,) = {names["net"].graph.source(n.id)[0] for n in names["net"].graph if n.op == "gelu_erf"}
    assert linecache.getline(place.file, place.line).strip() == "wide = F.gelu(self.up(self.norm(x)))"
    yield [f"line {place.line} of `{place.file.rpartition('/')[2]}`", "neither the module's code nor PyTorch"]


def parameters(graph: Graph) -> dict[str, TensorType]:
    return {node.name: node.type for node in graph.parameters}


CLAIMS: dict[str, Callable[[Names, str], Claims]] = {
    "tour": tour, "chain_rule": chain_rule, "fusion": fusion, "bytes": where_the_bytes_live, "tape": tape,
    "models": models,
}  # fmt: skip


# what the cells print -------------------------------------------------------------------------------------------------
def chain_rule_shows(names: Names, text: str) -> None:
    row = next(line for line in text.splitlines() if line.startswith("%1    parameter  w     f32[3]"))
    assert row.split("  ")[-1].strip() == "[1, 2, −3]"
    assert "exponentials forward: 1\nexponentials in all:  1" in text
    assert "arrive at h:    3 gradients\njoined by:      ['add', 'add']" in text
    assert "bias_add             reads again: nothing" in text and "relu                 reads again: %6 relu h" in text
    w = names["stopped"].session.read_param("w")
    np.testing.assert_array_equal(names["values"].gradient[0], w)
    assert "[8.0, 12.0, 12.0]" in text and "net: nothing broke: 1 output and 3 gradients agree" in text


def fusion_shows(names: Names, text: str) -> None:
    block, without = names["block"], names["without"]
    assert "11 ops as written" in text and "4 ops as optimized" in text
    assert "swiglu" in [n.op for n in block.optimized]
    assert names["report"].num_enodes > len(block.graph)
    assert [n.op for n in without.optimized].count("mul") == 2 and "swiglu" not in [n.op for n in without.optimized]
    assert len(without.plan.dispatches) == len(block.plan.dispatches), "the lesson says: as many dispatches as before"
    assert "is read by %4 too" in text
    assert [n.op for n in names["odd"].optimized if n.inputs] == ["tanh"]
    assert re.search(r"rule root_of_a_square: sides: given [\d.]+ and -[\d.]+ at .*, where x = −", text)
    assert "False True" in text and "rule root_is_abs: gradients: given nan and 0.0" in text
    assert not {"tanh_is_odd", "root_is_abs", "root_of_a_square"} & {r.name for r in RULES}
    assert "block: nothing broke: 1 output agrees" in text


def bytes_shows(names: Names, text: str) -> None:
    net, fragile = names["net"], names["fragile"]
    forward, backward = re.search(r"forward .* sizes (.*)\nbackward .* sizes (.*)\n", text).groups()  # type: ignore[union-attr]
    assert set(eval(forward)) == {1} and max(eval(backward)) == 3
    assert "'from': 0, 'to': 1," in text and "'hazard': 'raw'" in text
    saved = 1 - net.plan.memory.physical_bytes / net.plan.memory.logical_bytes
    assert f"saved: {saved:.0%}" in text and 0.05 < saved < 0.33
    assert "read_node: node " in text and "took over" in text and "pinning h0 costs 16,384 bytes" in text
    assert "paused after 21 steps: loss is NaN at step 21" in text
    log = next(n.id for n in fragile.graph if n.op == "log")
    line = fragile.graph.source(log)[0].line
    assert f", line {line} of <graph fragile" in text and "it read safe \N{MINUS SIGN}0.4" in text
    assert "step 22: " in text and "first: dispatch" in text
    assert "step 21 would not be finite\nweights finite: True" in text
    assert "ready after 100 steps; loss -" in text


def tape_shows(_: Names, text: str) -> None:
    assert "y = x * 2" in text and "# f32[3] [2, 4, −6]" in text and "∂w  # f32[3] [2, 4, −6]" in text
    assert "1.0 ['input', 'scale', 'scale', 'scale']" in text or "1.0 ['input', 'div', 'div', 'div']" in text
    same = re.search(r"^(\d+) (\d+) \(8, 12\)$", text, re.MULTILINE)
    assert "mul  ∂ f32[3] [1, 1, 1]\n    mul  f32[3] [2, 4, −6]\n∂w  f32[3] [2, 4, −6]" in text
    assert same and same[1] == same[2]
    assert "True\neager.get_value: stale handle" in text
    tape, study = re.search(r"^tape  (\S+)\nstudy (\S+)$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert tape == study and re.search(r"^\d+ \d+ True$", text, re.MULTILINE) and "[ 3. 12.]" in text


OPENED = ("classifier", "letters", "letters_q8", "net")


def models_shows(names: Names, text: str) -> None:
    labels = {n: names[n].doc.data["stages"][0]["groups"]["label"]["words"] for n in OPENED}
    assert {"stem", "blocks.0", "blocks.1"} <= set(labels["classifier"])
    assert {"layers.0", "self_attn", "mlp"} <= set(labels["letters"]) == set(labels["letters_q8"])
    assert labels["net"] == ["layers", "layers.0", "layers.1"]
    sentence = "a cell becomes a graph, a graph becomes a plan, a plan"
    assert text.count(f"{sentence}\n") == 2 and f"{sentence[:30]}\n" in text
    assert "image: f32[8, 3, 16, 16]" in text and "q8_0[64, 32] 8.5 bits an element" in text
    weights = dict(gd.load_onnx("classifier.onnx").weights)
    for n, node in names["classifier"].weights.items():
        np.testing.assert_array_equal(node, weights[n])
    try:
        import torch
    except ImportError:
        assert "PyTorch is not installed here" in text
    else:
        assert torch.__version__ and "mlp_graph" in names


SHOWS: dict[str, Callable[[Names, str], None]] = {
    "chain_rule": chain_rule_shows, "fusion": fusion_shows, "bytes": bytes_shows, "tape": tape_shows,
    "models": models_shows,
}  # fmt: skip


def sentences(name: str) -> list[str]:
    """The sentences of a notebook in `docs/lessons.md`."""
    text = (REPO / "docs" / "lessons.md").read_text("utf-8")
    section = next(
        part for part in re.split(r"^## ", text, flags=re.MULTILINE) if f"(`notebooks/{name}.ipynb`)" in part
    )
    found = re.findall(r"^\d\. (.*)\n   \*Where:\* .+$", section, re.MULTILINE)
    assert len(found) == 3
    return found


@pytest.mark.parametrize("name", [*LESSONS, *SHOWN])
def test_what_a_notebook_promises_is_so(lesson_shell: Any, name: str) -> None:
    said = sentences(name)
    first = read(name).cells[0].source
    assert "**Afterwards you can say" in first and ITEM.findall(first) == said
    assert ("<details>" in first) == (name in LESSONS), "a lesson asks before it shows"
    printed, names = run_lesson(lesson_shell, name)
    text = "\n".join(printed)
    if name in SHOWS:  # tests/jupyter/test_lab.py reads the tour
        SHOWS[name](names, text)
    for sentence, words in zip(said, CLAIMS[name](names, text), strict=True):
        assert [w for w in words if w not in sentence] == [], sentence
    studies = [value for key, value in list(names.items()) if isinstance(value, Study) and not key.startswith("_")]
    assert studies
    for study in studies:
        plan_holds(checked(study.doc))
