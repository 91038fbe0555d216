"""Compile a graph once at `upper` entries of its bucket axes, and run it on the first `actual` of them.

`bounded` is a graph pass. It follows the bucket axes through every op and puts `where(live, x, neutral)` before
whatever mixes entries along one; `live` is `digit < n`, and n is the hidden input `·extent`. Outputs with a bucket axis
are exact zeros behind the active entries; those without one are what a graph of the active extent computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.base.errors import ActiveExtentUnsupported, ArgumentError, unknown_name
from gdlab.base.types import TensorType, u32
from gdlab.base.words import plural
from gdlab.graph import Graph, Node, Source, Value
from gdlab.op import REGISTRY, Cut, Fill, Tag
from gdlab.op.extent import Tags, Verdict
from gdlab.op.follow import Setting, ValueFacts, body_of, follow
from gdlab.ops import constant, input_u32, where
from gdlab.ops.select import keep_u32

__all__ = [
    "EXTENT", "ExtentReport", "ExtentStep", "TrainingReport", "bounded", "bounded_with_gradients",
    "resolve_bucket_axes",
]  # fmt: skip

EXTENT = "·extent"  # the hidden input: how many entries are active
HIDDEN = "·"  # names of inputs that people do not set begin with it
LARGEST = 1 << 24  # digits are compared as f32
WHERE = "bucket_axes"
WANTED = "ops that keep, or add up, the entries of a bucket axis: another op here, or no bucket axis there"
INSIDE = "{type} as an output, whose bucket axis lies inside another axis (reshape it to an axis of its own)"
Axes = Mapping[str, tuple[int, ...]]  # by input
Action = Literal["masked", "replaced", "expanded", "ended"]


# the axes -------------------------------------------------------------------------------------------------------------
def resolve_bucket_axes(
    graph: Graph, bucket_axes: bool | Mapping[str, int | Sequence[int]]
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return the bucket axes by input, counted from the front, and `upper`, the smallest of their extents; the others
    are multiples of it.

    `{"x": 0, "mask": (2, 3)}`, or True: axis 0 of every input whose extent there is that of the first input. Raises
    `UnknownNameError` for an unknown input, and `ArgumentError` for no axis at all, one that the input does not have or
    that is given twice, extents that differ, and inputs of the graph whose names begin with `·`.
    """
    inputs = {node.name: node.type for node in graph.inputs}
    hidden = [name for name in inputs if name.startswith(HIDDEN)]
    if hidden:
        raise ArgumentError(WHERE, "input", repr(hidden[0]), f"names that do not begin with {HIDDEN}")
    return bucket_extent(inputs, bucket_axes)


def bucket_extent(
    inputs: Mapping[str, TensorType], bucket_axes: bool | Mapping[str, int | Sequence[int]]
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return the bucket axes of inputs of these types, and their extent, as `resolve_bucket_axes` does."""
    axes = {name: _axes_of(name, given, inputs) for name, given in _by_input(bucket_axes, inputs).items()}
    extents = {inputs[name].shape[axis] for name, chosen in axes.items() for axis in chosen}
    if not extents:
        raise ArgumentError(WHERE, "axes", f"{bucket_axes!r:.80}", "at least one axis of an input")
    upper = min(extents)
    if any(extent % upper for extent in extents):
        given = ", ".join(f"{inputs[name]} of {name!r} along {axis}" for name in axes for axis in axes[name])
        raise ArgumentError(WHERE, "extents", given, f"equal ones, or multiples of the smallest, {upper}")
    if upper > LARGEST:
        raise ArgumentError(WHERE, "extent", upper, f"at most {LARGEST}")
    return axes, upper


def _by_input(
    bucket_axes: object, inputs: Mapping[str, TensorType]
) -> Mapping[str, int | Sequence[int]]:  # fmt: skip
    if isinstance(bucket_axes, Mapping):
        return bucket_axes
    if bucket_axes is not True:
        raise ArgumentError(WHERE, "axes", f"{bucket_axes!r:.80}", "{input: axis or axes}, or True")
    shared = [t.shape[0] for t in inputs.values()][:1]
    return {name: 0 for name, t in inputs.items() if t.shape[0] in shared}


def _axes_of(name: object, given: int | Sequence[int], inputs: Mapping[str, TensorType]) -> tuple[int, ...]:
    """Return the bucket axes of one input, from the front, in order."""
    if not isinstance(name, str) or name not in inputs:
        raise unknown_name(WHERE, "input", str(name), inputs)
    rank = inputs[name].rank
    several: list[object] = list(given) if isinstance(given, (tuple, list)) else [given]
    chosen = set[int]()
    for axis in several:
        if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
            raise ArgumentError(WHERE, f"axis of {name!r}", repr(axis), f"{-rank} … {rank - 1} ({inputs[name]})")
        chosen.add(int(axis) % rank)
    if len(chosen) < len(several):
        raise ArgumentError(WHERE, f"axes of {name!r}", repr(given), "each axis once")
    return tuple(sorted(chosen))


# reports --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ExtentStep:
    """The change at one node of the given graph: operands `masked`, the op `replaced` by others or `expanded` to its
    body, or an output `ended` with zeros. `added`: the new ids, the node's own among them."""

    node: int
    action: Action
    added: tuple[int, ...]


@dataclass(frozen=True)
class ExtentReport:
    """The report of `bounded`: the bucket axes of every new node that has some, the new nodes that are 1 where entries
    are active (`live`), new ids by given id (`image`) and back (`origin`), and the steps."""

    upper: int
    tags: Mapping[int, Tags]
    live: Mapping[int, Tag]
    image: Mapping[int, int]
    origin: Mapping[int, tuple[int, ...]]
    steps: tuple[ExtentStep, ...]

    def __repr__(self) -> str:
        changed = plural(len({step.node for step in self.steps}), "node")
        return f"<ExtentReport: upper {self.upper}, {changed} changed>"


@dataclass(frozen=True)
class TrainingReport:
    """The reports of `bounded_with_gradients`, in order."""

    forward: ExtentReport
    derivative: AutodiffReport
    whole: ExtentReport


# the pass -------------------------------------------------------------------------------------------------------------
def bounded(
    graph: Graph, axes: Axes, upper: int, *, gradients: bool = False, bucket_random: bool = False
) -> tuple[Graph, ExtentReport]:
    """Return the graph with the hidden input `·extent` u32[1]: it computes the result for bucket axes with that number
    of entries, and zeros after them.

    `axes` and `upper` are those of `resolve_bucket_axes`. `gradients`: attention is written such that it can be
    differentiated. `bucket_random`: random numbers along a bucket axis that is not the leading one may differ. Raises
    `ActiveExtentUnsupported` for an op that cuts a bucket axis or does not say what it does with it, naming its source
    line, and for a graph that is differentiated already.
    """
    if graph.num_param_grad_outputs:
        wanted = "the graph without gradients (gradients=True adds them): these divide by the extents that are compiled"
        raise ActiveExtentUnsupported(WHERE, "graph", plural(graph.num_param_grad_outputs, "gradient"), wanted)
    return _Pass(graph, axes, Setting(upper, gradients, bucket_random), {}).run()


def bounded_with_gradients(
    graph: Graph, axes: Axes, upper: int, *, wrt: Iterable[Value] | None = None, bucket_random: bool = False
) -> tuple[Graph, TrainingReport]:
    """Return the bounded graph with its gradients: bounded, so that means divide by data, then differentiated, then
    bounded again, so that products of the backward pass leave out inactive entries. `wrt` as in `differentiate`."""
    forward, first = bounded(graph, axes, upper, gradients=True, bucket_random=bucket_random)
    targets = None if wrt is None else [forward.value(first.image[graph.own(v).id]) for v in wrt]
    full, derivative = differentiate(forward, wrt=targets)
    try:
        whole, second = _Pass(full, axes, Setting(upper, True, bucket_random), first.live).run()
    except ActiveExtentUnsupported as error:
        raise _at_forward_node(error, graph, first, derivative) from None
    return whole, TrainingReport(first, derivative, second)


def _at_forward_node(
    error: ActiveExtentUnsupported, graph: Graph, first: ExtentReport, derivative: AutodiffReport
) -> ActiveExtentUnsupported:
    """Return the error of a backward node, at the node of the user's graph whose gradient it belongs to."""
    node = derivative.adjoint_of.get(error.node or 0, error.node or 0)
    own = first.origin.get(node, (None,))[0]
    source = graph.source(own) if own is not None else ()
    what = f"gradient of %{own} {graph.node(own).op}: {error.what}" if own is not None else error.what
    return ActiveExtentUnsupported(
        error.where, what, error.given, error.wanted, node=own, source=source[0] if source else None
    )


class _Pass:
    """The state of one pass: the new graph, and the facts of its nodes by new id. `tails`: the value behind the active
    entries, by axis, where it is known."""

    def __init__(self, graph: Graph, axes: Axes, setting: Setting, live: Mapping[int, Tag]) -> None:
        self.graph, self.axes, self.setting, self.live_before = graph, axes, setting, live
        self.made = Graph()
        self.states: dict[int, ValueFacts] = {}
        self.tails: dict[int, dict[int, float]] = {}
        self.live: dict[int, Tag] = {}
        self.masks: dict[tuple[int, int, float], int] = {}
        self.spread: dict[tuple[Tag, tuple[int, ...]], Value] = {}
        self.image: dict[int, int] = {}
        self.steps: list[ExtentStep] = []
        self.node: Node | None = None  # at which the pass is
        self.source: Source = ()

    def run(self) -> tuple[Graph, ExtentReport]:
        """Copy all nodes in order, then end the outputs with zeros."""
        origin: dict[int, tuple[int, ...]] = {}
        with self.made, self.made.silent():
            self.extent = input_u32(EXTENT, (1,))
            self.n = self.extent.to_f32()
            for node in self.graph:
                start = len(self.made)
                self.image[node.id] = self._copied(node)
                origin |= dict.fromkeys(range(start, len(self.made)), (node.id,))
            self._end_outputs()
        tags = {id: state.tags for id, state in self.states.items() if state.tags}
        report = ExtentReport(self.setting.upper, tags, self.live, self.image, origin, tuple(self.steps))
        return self.made, report

    def _copied(self, node: Node) -> int:
        """Return the node in the new graph, or the node that stands for it."""
        if node.op == "input" and node.name == EXTENT:
            return self.extent.id
        self.node, self.source, start = node, self.graph.source(node.id), len(self.made)
        id = self._placed(node, tuple(self.image[i] for i in node.inputs), self.source)
        if node.op == "input" and node.name in self.axes:
            tags = tuple(self._tag(node, axis) for axis in self.axes[node.name])
            self.states[id] = ValueFacts(tags)
        if node.id in self.live_before:
            self._lives(Value(self.made, id), self.live_before[node.id])
        if node.name and node.inputs and id >= start:
            self.made.named(self.made.value(id), node.name)
        return id

    def _tag(self, node: Node, axis: int) -> Tag:
        return Tag(axis, 1, node.type.shape[axis] // self.setting.upper)

    # one op
    def _placed(self, node: Node, inputs: tuple[int, ...], source: Source) -> int:
        """Append the op with its masks, or its replacement; recurses as deep as composites are nested."""
        start = len(self.made)
        types = [self.made.node(i).type for i in inputs]
        try:
            verdict, state = follow(
                REGISTRY[node.op], types, [self.states.get(i, ValueFacts()) for i in inputs], node, self.setting
            )
        except Cut as cut:
            raise self._refused(cut) from None
        if verdict.body is not None:
            id = self._expanded(node, verdict, inputs, types, source)  # each of its ops knows its state
            self._step("expanded", start)
            return id
        operands = list(inputs)
        for mask in verdict.masks:
            operands[mask.operand] = self._masked(operands[mask.operand], mask.tag, mask.value)
        if verdict.build is None:
            id = self.made.copy_node(node, tuple(operands), source).id
            self._know_tail(id)
        else:
            id = verdict.build(self.n, [Value(self.made, i) for i in operands]).id
        self.states[id] = state
        if not verdict.keeps:
            self._step("masked" if verdict.build is None else "replaced", start)
        return id

    def _refused(self, cut: Cut) -> ActiveExtentUnsupported:
        assert self.node is not None  # a graph without nodes has no op
        where = self.source[0] if self.source else None
        what = f"%{self.node.id} {self.node.op}"
        return ActiveExtentUnsupported(WHERE, what, cut.given, WANTED, node=self.node.id, source=where)

    def _expanded(
        self, node: Node, verdict: Verdict, inputs: tuple[int, ...], types: Sequence[TensorType], source: Source
    ) -> int:
        assert verdict.body is not None  # the caller looked
        body = body_of(REGISTRY[node.op], verdict.body, tuple(types), dict(node.attrs))
        places = [self._imposed(i, tags) for i, tags in zip(inputs, verdict.operands, strict=True)]
        for inner in body.nodes[len(inputs) :]:
            places.append(self._placed(inner, tuple(places[i] for i in inner.inputs), source))
        return places[body.output_ids[0]]

    def _imposed(self, id: int, tags: Tags) -> int:
        """Return an operand with the bucket axes that the other operands of a composite impose on it."""
        for tag in tags:
            if tag not in self.states.get(id, ValueFacts()).tags:
                id = self._masked(id, tag, 0.0)
        return id

    def _step(self, action: Action, start: int) -> None:
        assert self.node is not None
        self.steps.append(ExtentStep(self.node.id, action, tuple(range(start, len(self.made)))))

    # masks
    def _masked(self, id: int, tag: Tag, value: float) -> int:
        """Return the node with `value` after the active entries of a bucket axis."""
        key = id, tag.axis, value
        if self.tails.get(id, {}).get(tag.axis) == value:
            return id
        if key not in self.masks:
            x = Value(self.made, id)
            live = self._live(tag, x.shape)
            found = keep_u32(live, x) if x.type.dtype is u32 else where(live, x, value)
            self.masks[key] = found.id
            before = self.states.get(id, ValueFacts())
            self.states[found.id] = replace(before, tags=tuple(sorted({*before.tags, tag})))
            self._know_tail(found.id)
        return self.masks[key]

    def _live(self, tag: Tag, shape: tuple[int, ...]) -> Value:
        """Return f32[shape] that is 1 where the digit of a bucket axis is active, else 0."""
        key = tag, shape
        if key not in self.spread:
            extent, behind = shape[tag.axis], len(shape) - tag.axis - 1
            if len(shape) == 1:
                digits = np.arange(extent) // tag.inner % self.setting.upper
                live = constant(digits.astype(np.float32)).less(self.n)
            else:
                live = self._live(tag.on(0), (extent,))
                if behind:
                    live = self._lives(live.reshape((extent, *(1,) * behind)), tag.on(0))
                live = live.broadcast_to(shape)
            self.spread[key] = self._lives(live, tag)
        return self.spread[key]

    def _lives(self, live: Value, tag: Tag) -> Value:
        self.live[live.id], self.states[live.id] = tag, ValueFacts((tag,))
        return live

    def _know_tail(self, id: int) -> None:
        """Record the number after a bucket axis where a node selects by the axis and takes that number."""
        node = self.made.node(id)
        if not REGISTRY[node.op].selects or node.inputs[0] not in self.live:
            return
        other = self.made.node(node.inputs[2]) if len(node.inputs) > 2 else None
        if other is not None and not isinstance(REGISTRY[other.op].kernel, Fill):
            return
        value = 0.0 if other is None else float(other.attr("value"))
        kept = {axis: v for axis, v in self.tails.get(node.inputs[1], {}).items() if v == value}
        self.tails[id] = {**kept, self.live[node.inputs[0]].axis: value}

    def _end_outputs(self) -> None:
        """Write zeros after the active entries of every output."""
        ends = []
        for old, name in zip(self.graph.output_ids, self.graph.output_names, strict=True):
            self.node, self.source, start = self.graph.node(old), self.graph.source(old), len(self.made)
            id = self.image[old]
            for tag in self.states.get(id, ValueFacts()).tags:
                if tag.outer > 1:  # its active entries are not the first
                    raise self._refused(Cut(INSIDE.format(type=self.node.type)))
                id = self._masked(id, tag, 0.0)
            if len(self.made) > start:
                self._step("ended", start)
            ends.append((id, name))
        self.made.set_output_ids(ends, self.graph.num_param_grad_outputs)
        self.made.zero_gradients = tuple(self.image[id] for id in self.graph.zero_gradients)
