"""Write out If and Loop: the branch that a constant condition takes, or both with a choice; a loop step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gdlab.load.onnx.numbers import settled
from gdlab.load.onnx.onnx_layout import joined, reshaped
from gdlab.load.onnx.onnx_math import MATH
from gdlab.load.onnx.proto import Subgraph
from gdlab.load.onnx.tensor import NodeRecord, OnnxCall, Tensor, known
from gdlab.load.shared import Malformed, Unsupported

MOST_STEPS = 512
Results = list[Tensor | None]  # None is what came of something unsupported
Run = Callable[[str, Subgraph, Sequence[Tensor | None]], Results]  # of a graph, under names with a part of their own
_GRAPHS = {"If": ("then_branch", "else_branch"), "Loop": ("body",)}


def is_control(node: NodeRecord) -> bool:
    """Return whether a node is a branch or a loop, with its graphs."""
    graphs = () if node.domain else _GRAPHS.get(node.op, ())
    return bool(graphs) and all(isinstance(node.attrs.get(name), Subgraph) for name in graphs)


def controlled(call: OnnxCall, run: Run, chosen: list[str]) -> Results:
    """Return the results of a branch or a loop; `chosen` gets the names of nodes both of whose branches are computed.
    """
    made = _branched(call, run, chosen) if call.node.op == "If" else _looped(call, run)
    if len(made) < len(call.node.outputs):
        raise Malformed("results", len(call.node.outputs), f"at most {len(made)}, as its graph has")
    return made


def _truth(t: Tensor) -> bool:
    """Return the value of a constant condition."""
    if t.size != 1:
        raise Malformed("condition", list(t.shape), "one element")
    return bool(np.asarray(t.array).reshape(-1)[0])


# branches -------------------------------------------------------------------------------------------------------------
def _branched(call: OnnxCall, run: Run, chosen: list[str]) -> Results:
    condition = call.tensor(0)
    then, other = (call.node.attrs[name] for name in _GRAPHS["If"])
    if condition.known:
        return run("then/", then, ()) if _truth(condition) else run("else/", other, ())
    if condition.size != 1:
        raise Malformed("condition", list(condition.shape), "one element")
    both = run("then/", then, ()), run("else/", other, ())
    if len(both[0]) != len(both[1]):
        raise Malformed("branches", f"{len(both[0])} and {len(both[1])} results", "equally many")
    made = [_either(call, condition, a, b) for a, b in zip(*both, strict=True)]
    chosen.append(str(call.node))
    return made


def _either(call: OnnxCall, condition: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the one of two results that the condition chooses."""
    if a is None or b is None:
        return None
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        given = f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        raise Unsupported(f"a branch that the graph chooses, with results of two kinds: {given}")
    name = next(filter(None, call.node.outputs), "")
    node = NodeRecord("Where", call.node.name, "", ("c", "a", "b"), (name,), {}, call.opset)
    choice = OnnxCall(node, (replace(reshaped(call.home, condition, ()), dtype="bool"), a, b), call.home)
    made = MATH["Where"](choice)
    return settled(choice, made if isinstance(made, Tensor) else made[0])


# loops ----------------------------------------------------------------------------------------------------------------
def _looped(call: OnnxCall, run: Run) -> Results:
    """Return the carried values at the end, and the values of each step, stacked."""
    body: Subgraph = call.node.attrs["body"]
    carried: Results = list(call.inputs[2:])
    if len(body.inputs) != 2 + len(carried) or len(body.outputs) < 1 + len(carried):
        given = f"{len(body.inputs)} inputs and {len(body.outputs)} results"
        raise Malformed("body", given, f"{2 + len(carried)} inputs, at least {1 + len(carried)} results")
    most, going = _trips(call), call.optional(1)
    rows: list[Results] = []
    while (most is None or len(rows) < most) and (going is None or _truth(_constant(going))):
        step = len(rows)
        if step == MOST_STEPS:
            raise Unsupported(f"a loop of more than {MOST_STEPS} steps, which are written out")
        count = replace(known(np.int64(step)), dtype="int64")
        going, *made = run(f"{step}/", body, [count, replace(known(np.bool_(True)), dtype="bool"), *carried])
        if going is None:
            raise Unsupported("a condition of something that is not taken")
        carried = made[: len(carried)]
        rows.append(made[len(carried) :])
    stacks = len(body.outputs) - 1 - len(carried)
    if stacks and not rows:
        raise Unsupported("the values of no step")
    return [*carried, *(_stacked(call, [row[i] for row in rows]) for i in range(stacks))]


def _trips(call: OnnxCall) -> int | None:
    count = call.optional(0)
    if count is None:
        if call.optional(1) is None:
            raise Unsupported("a loop without an end")
        return None
    if not count.known:
        raise Unsupported("a number of steps that the graph computes, where it must be constant")
    if count.size != 1 or count.kind != "int":
        raise Malformed("trip count", f"{count.kind}{list(count.shape)}", "one int")
    return int(np.asarray(count.array).reshape(-1)[0])


def _constant(condition: Tensor) -> Tensor:
    if not condition.known:
        raise Unsupported("a condition that the graph computes, where it must be constant")
    return condition


def _stacked(call: OnnxCall, parts: Results) -> Tensor | None:
    found = [t for t in parts if t is not None]
    if len(found) < len(parts):
        return None
    if any((t.shape, t.dtype) != (found[0].shape, found[0].dtype) for t in found):
        raise Unsupported("values of steps that differ in shape")
    made = joined(call.home, [reshaped(call.home, t, (1, *t.shape)) for t in found], 0)
    bounds = [t.bounds for t in found if t.bounds is not None]
    whole = (min(low for low, _ in bounds), max(high for _, high in bounds)) if len(bounds) == len(found) else None
    return replace(made, dtype=found[0].dtype, bounds=whole)
