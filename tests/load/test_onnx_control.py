"""If and Loop of ONNX: a branch that a constant takes, both where the graph chooses, loops step by step; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import N, agree, f, given, ints, model

import gdlab as gd
from gdlab.study.model_files import open_model

X = f(2, 3)
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
ADDED = N("Add", ["v", "v"], ["w"])
TRUE, FALSE = np.array(True), np.array(False)


def graph(nodes: list[Any], outputs: str, inputs: str = "", **held: np.ndarray) -> Any:
    """A graph as an attribute; names such as "v:f" have their kinds of numbers."""
    typed = [[helper.make_tensor_value_info(n.partition(":")[0], KINDS[n.partition(":")[2] or "f"], None)
              for n in names.split()] for names in (inputs, outputs)]  # fmt: skip
    return helper.make_graph(nodes, "g", *typed, [numpy_helper.from_array(a, n) for n, a in held.items()])


def branches(*outputs: str, condition: str = "c") -> Any:
    """exp(x) + k, else -x: both have a name `t` of their own."""
    then = graph([N("Exp", ["x"], ["t"]), N("Add", ["t", "k"], ["a"])], "a", k=np.float32([1, 2, 3]))
    other = graph([N("Relu", ["x"], ["t"]), N("Sub", ["t", "x"], ["b"])], "b")
    return N("If", [condition], list(outputs), name="choose", then_branch=then, else_branch=other)


@pytest.mark.parametrize("condition", [TRUE, FALSE, np.array([True])])
def test_a_constant_takes_its_branch_alone(condition: np.ndarray) -> None:
    made = agree(model([branches("y")], {"x": X}, {"c": condition}, ["y"]), {"x": X})
    assert ("exp" in {n.op for n in made.graph}) == condition.all() and not made.notes


def test_a_condition_of_shapes_is_constant() -> None:
    nodes = [N("Shape", ["x"], ["s"]), N("Gather", ["s", "one"], ["n"]), N("Equal", ["n", "three"], ["c"])]
    nodes.append(branches("y"))
    made = agree(model(nodes, {"x": X}, {"one": np.array(1), "three": np.array(3)}, ["y"]), {"x": X})
    assert "exp" in {n.op for n in made.graph} and "relu" not in {n.op for n in made.graph}


@pytest.mark.parametrize("sign", [1, -1])
def test_what_the_graph_chooses_is_both_branches_and_a_choice(sign: int) -> None:
    nodes = [N("ReduceSum", ["x"], ["s"], keepdims=0), N("Greater", ["s", "zero"], ["c"]), branches("y")]
    x = sign * np.abs(X)
    made = agree(model(nodes, {"x": x}, {"zero": np.float32(0)}, ["y"]), {"x": x})
    assert made.notes == ("both branches are computed, and a condition chooses: If (choose)",)
    assert {"exp", "relu", "where"} <= {n.op for n in made.graph}


def test_graphs_in_graphs_see_the_names_outside() -> None:
    inner = N("If", ["d"], ["u"], then_branch=graph([N("Add", ["x", "h"], ["a"])], "a"), else_branch=graph([], "h"))
    before = [N("Neg", ["x"], ["h"]), N("Greater", ["x0", "zero"], ["d"])]
    outer = graph([*before, inner, N("Mul", ["u", "w"], ["z"])], "z")
    first = [N("Slice", ["x", "from", "to"], ["part"]), N("ReduceMax", ["part"], ["x0"], keepdims=0)]
    nodes = [*first, N("If", ["c"], ["y"], then_branch=outer, else_branch=graph([], "x"))]
    held = {"c": TRUE, "zero": np.float32(0), "from": ints(0), "to": ints(1), "w": f(2, 3)}
    agree(model(nodes, {"x": X}, held, ["y"]), {"x": X})


def loop(
    nodes: list[Any], inputs: list[str], outputs: list[str], going: str = "go", more: str = "", **held: Any
) -> Any:  # fmt: skip
    """A loop that carries v; its body gives `going` and what stands in `more`."""
    body = graph(nodes, f"{going}:b {more}".strip(), "i:i go:b v", **held)
    return N("Loop", inputs, outputs, name="turns", body=body)


def test_a_loop_of_constant_trips_is_written_out() -> None:
    nodes = [N("Cast", ["i"], ["n"], to=1), N("Mul", ["v", "half"], ["h"]), N("Add", ["h", "n"], ["w"]),
             N("ReduceSum", ["w", "first"], ["row"], keepdims=0), N("Identity", ["go"], ["on"])]  # fmt: skip
    turns = loop(nodes, ["m", "c", "x"], ["last", "rows"], "on", "w row", half=np.float32(0.5), first=ints(0))
    for steps in (4, 1):
        held = {"m": np.array(steps), "c": TRUE}
        made = agree(model([turns, N("Relu", ["last"], ["y"])], {"x": X}, held, ["y", "rows"]), {"x": X})
        assert sum(n.op == "sum" for n in made.graph) == steps


def test_numbers_of_steps_are_stacked() -> None:
    """[steps] of scalars, as ONNX says; its reference gives [steps, 1]."""
    turns = loop([ADDED, N("ReduceMax", ["w"], ["most"], keepdims=0)], ["m", "", "x"], ["y", "z"], more="w most")
    loaded = gd.load_onnx(model([turns], {"x": X}, {"m": np.array(3)}, ["z"]))
    (got,) = given(loaded, {"x": X})
    np.testing.assert_allclose(got, X.max() * np.float32([2, 4, 8]), rtol=1e-6)


def test_a_loop_ends_where_its_condition_does() -> None:
    nodes = [N("Add", ["v", "v"], ["w"]), N("Less", ["i", "two"], ["on"])]
    turns = loop(nodes, ["", "c", "x"], ["y"], "on", "w", two=np.array(2))
    made = agree(model([turns], {"x": X}, {"c": TRUE}, ["y"]), {"x": X})
    assert sum(n.op == "add" for n in made.graph) == 3
    agree(model([turns, N("Neg", ["y"], ["z"])], {"x": X}, {"c": FALSE}, ["z"]), {"x": X})


def test_a_constant_that_a_later_branch_reads_is_kept() -> None:
    nodes = [N("Relu", ["x"], ["a"]), N("Add", ["a", "k"], ["b"]),
             N("If", ["c"], ["y"], then_branch=graph([N("Mul", ["b", "k"], ["z"])], "z"), else_branch=graph([], "b"))]
    made = [N("Shape", ["x"], ["s"]), N("Cast", ["s"], ["k0"], to=1), N("ReduceSum", ["k0"], ["k"], keepdims=0), *nodes]
    agree(model(made, {"x": X}, {"c": TRUE}, ["y"]), {"x": X})


CHOSEN = [N("ReduceSum", ["x"], ["s"], keepdims=0), N("Greater", ["s", "zero"], ["d"]), N("Cast", ["s"], ["m"], to=7)]
TURNED = graph([N("Transpose", ["x"], ["t"])], "t")
REFUSED: dict[str, list[Any]] = {
    "If (y): a branch that the graph chooses, with results of two kinds: float32[2, 3] and float32[3, 2]": [
        *CHOSEN, N("If", ["d"], ["y"], then_branch=graph([], "x"), else_branch=TURNED)],
    "Loop (turns): a number of steps that the graph computes": [
        *CHOSEN, loop([ADDED], ["m", "", "x"], ["y"], more="w")],
    "Loop (turns): a condition that the graph computes": [*CHOSEN, loop([ADDED], ["", "d", "x"], ["y"], more="w")],
    "Loop (turns): a loop without an end": [loop([ADDED], ["", "", "x"], ["y"], more="w")],
    "operators: given Det (y/then/t)": [
        N("If", ["c"], ["y"], then_branch=graph([N("Det", ["x"], ["t"])], "t"), else_branch=graph([], "x"))],
    "branches: given 1 and 2 results, wanted equally many": [
        *CHOSEN, N("If", ["d"], ["y"], then_branch=graph([], "x"), else_branch=graph([], "x s"))],
    "If (y): results: given 2, wanted at most 1": [
        N("If", ["c"], ["y", "z"], then_branch=graph([], "x"), else_branch=graph([], "x"))],
    "Loop (turns): body: given 3 inputs and 1 results": [loop([ADDED], ["three", "", "x"], ["y"])],
    "input 'q': given nothing": [
        N("If", ["c"], ["y"], then_branch=graph([N("Neg", ["q"], ["t"])], "t"), else_branch=graph([], "x"))],
    "a loop of more than 512 steps": [loop([ADDED], ["many", "", "x"], ["y"], more="w")],
    "the values of no step": [loop([ADDED], ["none", "", "x"], ["z", "y"], more="w w")],
    "values of steps that differ in shape": [
        loop([N("Concat", ["v", "v"], ["w"], axis=0)], ["three", "", "x"], ["z", "y"], more="w w")],
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_written_out_is_refused_by_name(message: str) -> None:
    held = {"c": TRUE, "zero": np.float32(0), "three": np.array(3), "many": np.array(513), "none": np.array(0)}
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(model(REFUSED[message], {"x": X}, held, ["y"]))
    assert message in str(caught.value)


def test_a_document_says_that_both_branches_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model([*CHOSEN, branches("y", condition="d")], {"x": X}, {"zero": np.float32(0)}, ["y"]))
    assert open_model(path).notes == ("both branches are computed, and a condition chooses: If (choose)",)
