"""Follow bucket axes through any op: by the extent rule of its record, by its kernel, or by its body."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gdlab.base.errors import GdlabError
from gdlab.base.types import TensorType
from gdlab.graph import Graph, Node, Value, scratch
from gdlab.op.extent import Build, Call, Cut, Tag, Tags, Verdict, along, axes_of, elementwise
from gdlab.op.kernel import Alias, Contraction, Elementwise, Reduction
from gdlab.op.record import REGISTRY, Op

__all__ = ["Setting", "ValueFacts", "body_of", "follow"]

Drawn = Literal["no", "in order", "moved"]
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """The known facts of a value: its bucket axes, and whether it holds random numbers, in the order in which they were
    drawn or moved."""

    tags: Tags = ()
    drawn: Drawn = "no"


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of all ops of a graph. `random`: random numbers may differ from those that a graph of the
    active extent draws."""

    upper: int
    gradients: bool = False
    random: bool = False


def follow(
    op: Op, types: Sequence[TensorType], states: Sequence[ValueFacts], node: Node, setting: Setting
) -> tuple[Verdict, ValueFacts]:
    """Return the verdict for a call with operands of these types and states, and the state of its result. Raises `Cut`
    where the call cannot be bounded."""
    tags = tuple(s.tags for s in states)
    if not any(tags):
        return Verdict(tags, ()), ValueFacts((), _drawn(op, states))
    call = Call(tuple(types), tags, node.type, dict(node.attrs), setting.upper, setting.gradients)
    verdict = _by_record(op, call)
    if verdict is None:
        if op.body is None:
            raise Cut("a bucket axis, of which its record says nothing")
        return _by_body(op, op.body, call, states, setting)
    _check_draws(verdict, call, states, setting)
    if verdict.body is not None:
        given = [replace(state, tags=tags) for state, tags in zip(states, verdict.operands, strict=True)]
        return _by_body(op, verdict.body, call, given, setting)
    return verdict, ValueFacts(verdict.result, "moved" if any(s.drawn != "no" for s in states) else "no")


def _by_record(op: Op, call: Call) -> Verdict | None:
    """By the rule that the op states, else by its kernel."""
    verdict = op.follows(call) if op.follows is not None else None
    if verdict is not None:
        return verdict
    match op.kernel:
        case Elementwise():
            return elementwise(call)
        case Contraction(a, b):
            return along(call, (a, b), "mn", mixes={"k": 0.0})
        case Reduction():
            return _reduced(op.kernel, call)
        case Alias():
            return _reshaped(call)
        case _:
            return None


# kernels --------------------------------------------------------------------------------------------------------------
def _reduced(kernel: Reduction, call: Call) -> Verdict:
    """A fold: inactive entries become its neutral element; a mean divides by what is counted when it runs."""
    x = call.types[0]
    axes = kernel.axes(x, call.attrs)
    left = [axis for axis in range(x.rank) if axis not in axes]
    keeps = call.result.rank == x.rank
    result = axes_of(x, *axes) if keeps else left
    mixes = dict.fromkeys(axes, NEUTRAL[kernel.combine])
    verdict = along(call, [axes_of(x)], result if keeps or left else [None], mixes=mixes)
    folded = [mask.tag for mask in verdict.masks]
    if not folded or kernel.finish == "acc":
        return verdict
    if kernel.finish != "acc / n":
        raise Cut(f"a bucket axis that it folds to {kernel.finish}")
    return replace(verdict, build=_mean(call, axes, folded, keeps))


def _mean(call: Call, axes: tuple[int, ...], folded: Sequence[Tag], keeps: bool) -> Build:
    """The sum over its count: n for each bucket axis, times the extents that do not change."""
    x = call.types[0]
    fixed = math.prod(x.shape[axis] for axis in axes) // call.upper ** len(folded)

    def build(n: Value, operands: Sequence[Value]) -> Value:
        total = REGISTRY["sum"](operands[0], axes, keepdims=keeps)
        count = n.scale(float(fixed)) if fixed > 1 else n
        for _ in folded[1:]:
            count = count * n
        return (total if total.shape == call.result.shape else total.reshape(call.result.shape)) / count

    return build


def _reshaped(call: Call) -> Verdict:
    """A reshape: every bucket axis lies whole in one axis of the result, and no two in the same."""
    tags = tuple(sorted(_regrouped(call, tag) for tag in call.tags[0]))
    apart = {tag.axis: tag for tag in tags}
    if len(apart) < len(tags) and call.upper > 1:
        raise Cut(f"two bucket axes that {call.result} has in one")
    return Verdict(call.tags, tuple(apart.values()))


def _regrouped(call: Call, tag: Tag) -> Tag:
    """The bucket axis on the axis of the result in which its digit lies whole."""
    x, shape = call.types[0], call.result.shape
    if x.shape == shape:
        return tag
    step = tag.inner * math.prod(x.shape[tag.axis + 1 :])
    end = step * call.upper
    found = []
    for axis, extent in enumerate(shape):
        inner = math.prod(shape[axis + 1 :])
        if step % inner == 0 and (inner * extent) % end == 0:
            found.append(Tag(axis, inner * extent // end, step // inner))
    if not found:
        raise Cut(f"a bucket axis of {x} that {call.result} does not keep whole")
    return next((t for t in found if shape[t.axis] == call.upper), found[0])


# bodies ---------------------------------------------------------------------------------------------------------------
def _by_body(
    op: Op, body: Callable[..., Value], call: Call, states: Sequence[ValueFacts], setting: Setting
) -> tuple[Verdict, ValueFacts]:  # fmt: skip
    """The op as it is where its body is its own and no op of it needs a change, else the body."""
    graph = body_of(op, body, call.types, call.attrs)
    given = list(states)
    while True:  # an operand on which the body imposes a bucket axis has it wherever the body reads it
        known, operands, keeps = _walked(graph, given, setting)
        if all(state.tags == tags for state, tags in zip(given, operands, strict=True)):
            break
        given = [replace(state, tags=tags) for state, tags in zip(given, operands, strict=True)]
    _check_growth(op, body, replace(call, tags=operands), graph, [state.tags for state in known])
    end = known[graph.output_ids[0]]
    keeps = keeps and body is op.body
    return Verdict(operands, end.tags, body=None if keeps else body), end


def _walked(
    graph: Graph, given: Sequence[ValueFacts], setting: Setting
) -> tuple[list[ValueFacts], tuple[Tags, ...], bool]:  # fmt: skip
    """The state of every node of a body, the bucket axes of its operands, and whether no op of it needs a change."""
    known, keeps = list(given), True
    imposed = [set(state.tags) for state in given]
    for node in graph.nodes[len(given) :]:
        types = [graph.node(i).type for i in node.inputs]
        verdict, state = follow(REGISTRY[node.op], types, [known[i] for i in node.inputs], node, setting)
        keeps = keeps and verdict.keeps
        for i, tags in zip(node.inputs, verdict.operands, strict=True):
            if i < len(given):
                imposed[i].update(tags)
        known.append(state)
    return known, tuple(tuple(sorted(tags)) for tags in imposed), keeps


def _check_growth(op: Op, body: Callable[..., Value], call: Call, graph: Graph, tags: Sequence[Tags]) -> None:
    """Refuse a body that reads more of a bucket axis than its entries: at twice the extent it must be the same ops,
    with the same numbers, on bucket axes of twice the extent. 1 / √d of a bucket axis d is not, nor are groups. (At an
    extent of 1 there is nothing to see: bodies leave out what repeats once.)"""
    if call.upper == 1:
        return
    try:
        grown = body_of(op, body, tuple(map(_grown, call.types, call.tags)), call.attrs)
    except GdlabError:
        raise Cut("a bucket axis on whose extent its attributes depend") from None
    alike = len(grown) == len(graph) and all(
        node.op == other.op
        and node.inputs == other.inputs
        and [a for a in node.attrs if isinstance(a[1], (float, str))]
        == [a for a in other.attrs if isinstance(a[1], (float, str))]
        and (not along or other.type == _grown(node.type, along))
        for node, other, along in zip(graph, grown, tags, strict=False)
    )
    if not alike:
        raise Cut("a bucket axis from whose extent it makes numbers or groups")


def _grown(type: TensorType, tags: Tags) -> TensorType:
    """The type with bucket axes of twice the extent."""
    twice = {tag.axis for tag in tags}
    return TensorType(tuple(n * (2 if axis in twice else 1) for axis, n in enumerate(type.shape)), type.dtype)


def body_of(op: Op, body: Callable[..., Value], types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> Graph:
    """Return the ops that the body of an op, or another function in its place, makes on operands of these types; the
    first nodes are the operands, as `var`s."""
    if body is op.body:
        return op.trace(types, tuple(sorted(attrs.items())))
    with scratch() as g, g.silent():
        operands = [g.append("var", (), (("name", f"x{i}"),), t) for i, t in enumerate(types)]
        g.set_outputs(body(*operands, **attrs))
    return g


# random numbers -------------------------------------------------------------------------------------------------------
def _drawn(op: Op, states: Sequence[ValueFacts]) -> Drawn:
    """Whether an untagged result holds random numbers."""
    if op.family == "random" and not op.operands:
        return "in order"
    if all(s.drawn == "no" for s in states):
        return "no"
    in_order = isinstance(op.kernel, (Elementwise, Alias)) and all(s.drawn != "moved" for s in states)
    return "in order" if in_order else "moved"


def _check_draws(verdict: Verdict, call: Call, states: Sequence[ValueFacts], setting: Setting) -> None:
    """Random numbers are drawn for `upper` entries: those that a graph of the active extent draws come first only
    along the leading axis."""
    for state, own, tags in zip(states, call.tags, verdict.operands, strict=True):
        new = [tag for tag in tags if tag not in own]
        if state.drawn == "no" or not new or setting.random:
            continue
        if state.drawn == "moved" or any((tag.axis, tag.outer) != (0, 1) for tag in new):
            raise Cut("random numbers along a bucket axis that is not the leading one (bucket_random=True lets it)")
