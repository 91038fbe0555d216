"""Ops with a bucket axis, beside the same ops of the active extent alone: each op × sample × axis of an operand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ActiveExtentUnsupported, GdlabError, ShapeError
from gdlab.base.types import Array, u32
from gdlab.compiled import EXTENT, ExtentReport, bounded, bounded_with_gradients
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Cut, Leaf, Op, Sample, Tag
from gdlab.op.follow import Setting, ValueFacts, follow
from gdlab.op.reference import evaluate

MOST = 1000  # elements of an operand: wider rows say nothing new here
GARBAGE = 4_000_000_000  # an index that nothing has


def active(tag: Tag, upper: int, actual: int) -> Array:
    """The places of the active entries of a bucket axis."""
    count = tag.outer * upper * tag.inner
    return np.flatnonzero(np.arange(count) // tag.inner % upper < actual)


def cut(array: Array, tags: Sequence[Tag], upper: int, actual: int) -> Array:
    """The active entries alone."""
    for tag in tags:
        array = np.take(array, active(tag, upper, actual), tag.axis)
    return array


def poisoned(array: Array, tags: Sequence[Tag], upper: int, actual: int) -> Array:
    """The array with NaN (or a bad index) behind the active entries."""
    out = array.copy()
    for tag in tags:
        dead = np.setdiff1d(np.arange(array.shape[tag.axis]), active(tag, upper, actual))
        out[(slice(None),) * tag.axis + (dead,)] = GARBAGE if array.dtype == np.uint32 else np.nan
    return out


@dataclass(frozen=True, eq=False)
class BucketCase:
    """An op on operands, one or two of which have a bucket axis; compared by identity, so that answers are kept."""

    op: Op
    sample: Sample
    tags: tuple[tuple[Tag, ...], ...]  # by operand
    upper: int

    def __str__(self) -> str:
        return f"{self.op.name} {self.sample.shapes} {dict(self.sample.attrs)} {self.tags} upper {self.upper}"


def samples_of(op: Op) -> list[Sample]:
    fitting = [s for s in op.samples if all(np.prod(shape) <= MOST for shape in s.shapes)]
    return fitting or list(op.samples[:1])


def cases_of(op: Op) -> Iterator[BucketCase]:
    """Every axis alone; as several neighbours per entry, and inside another axis; and every two of equal extent."""
    for sample in samples_of(op):
        places = [(i, axis) for i, shape in enumerate(sample.shapes) for axis in range(len(shape))]
        places = [(i, axis) for i, axis in places if sample.shapes[i][axis] > 2] or places
        for i, axis in places:
            extent = sample.shapes[i][axis]
            for tag in tags_of(axis, extent):
                yield BucketCase(op, sample, _by_operand(sample, {i: (tag,)}), extent // (tag.outer * tag.inner))
        for (i, a), (j, b) in itertools.combinations(places, 2):
            extent = sample.shapes[i][a]
            if extent == sample.shapes[j][b] > 1:
                found = {i: (Tag(a), Tag(b))} if i == j else {i: (Tag(a),), j: (Tag(b),)}
                yield BucketCase(op, sample, _by_operand(sample, found), extent)


def tags_of(axis: int, extent: int) -> list[Tag]:
    found = [Tag(axis)]
    if extent % 2 == 0 and extent > 4:
        found += [Tag(axis, 1, 2), Tag(axis, 2, 1)]
    return found


def _by_operand(sample: Sample, found: Mapping[int, tuple[Tag, ...]]) -> tuple[tuple[Tag, ...], ...]:
    return tuple(found.get(i, ()) for i in range(len(sample.shapes)))


# with a bucket axis ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Built:
    """The graph of a case: inputs x0, x1, … and the op, whose node is `node`."""

    graph: Graph
    axes: dict[str, tuple[int, ...]]
    node: int


def build(case: BucketCase, tags: Sequence[Tag] = ()) -> Built:
    """A bucket axis inside another one is made by a reshape of an input; where `tags`, those of the result, have one,
    a reshape takes it apart again."""
    axes: dict[str, tuple[int, ...]] = {}
    with Graph() as g:
        operands = []
        for i, shape in enumerate(case.sample.shapes):
            outer = next((tag for tag in case.tags[i] if tag.outer > 1), None)
            slot = ops.input_u32 if i in case.sample.integers else ops.input
            x = slot(f"x{i}", shape if outer is None else apart(shape, outer))
            axes |= {f"x{i}": tuple(tag.axis + (tag is outer) for tag in case.tags[i])} if case.tags[i] else {}
            operands.append(x if outer is None else x.reshape(shape))
        out = result = case.op(*case.op.spread(operands), **case.sample.attrs)
        for tag in reversed(tags):
            result = result.reshape(apart(result.shape, tag)) if tag.outer > 1 else result
        g.set_outputs({"out": result})
    return Built(g, axes, out.id)


def apart(shape: Sequence[int], tag: Tag) -> tuple[int, ...]:
    """The axis of a tag as two axes, the outer one and that of the bucket."""
    return (*shape[: tag.axis], tag.outer, shape[tag.axis] // tag.outer, *shape[tag.axis + 1 :])


@lru_cache(4)
def arrays_of(case: BucketCase) -> list[Array]:
    return case.sample.arrays(seed=1)


def run_bounded(case: BucketCase, built: Built, made: Graph, actual: int) -> Array:
    """The output of the bounded graph, with NaN in the padding."""
    feeds = {f"x{i}": poisoned(a, case.tags[i], case.upper, actual) for i, a in enumerate(arrays_of(case))}
    values = evaluate(made, {EXTENT: [actual], **feeds})
    return values[made.output_ids[0]].reshape(built.graph.node(built.node).type.shape)


# of the active extent -------------------------------------------------------------------------------------------------
def expected(case: BucketCase, actual: int, tags: Sequence[Tag], shape: Sequence[int]) -> Array:
    """The op's result of the active entries; of operands without a bucket axis as few axes are cut as make it fit."""
    small = [cut(a, case.tags[i], case.upper, actual) for i, a in enumerate(arrays_of(case))]
    wanted = np.empty(shape, bool)
    wanted = cut(wanted, tags, case.upper, actual)
    imposed = [[tag for tag in all_tags if tag not in case.tags[i]] for i, all_tags in enumerate(verdict_of(case)[0])]
    for chosen in (imposed, [[] for _ in small]):
        arrays = [cut(a, tags, case.upper, actual) for a, tags in zip(small, chosen, strict=True)]
        found = _value(case, arrays, wanted.shape)
        if found is not None:
            return found
    raise AssertionError(f"{case}: no op of the active extent {actual} has the shape {list(wanted.shape)}")


@lru_cache(4)
def verdict_of(case: BucketCase) -> tuple[tuple[tuple[Tag, ...], ...], tuple[Tag, ...]]:
    """The bucket axes of the operands, those that others impose on them among them, and those of the result."""
    node = (graph := build(case).graph).nodes[-1]
    types, shapes = [graph.node(i).type for i in node.inputs], case.sample.shapes
    if not case.op.broadcasts:
        verdict, state = follow(case.op, types, [ValueFacts(tags) for tags in case.tags], node, Setting(case.upper))
        return verdict.operands, state.tags
    pairs = zip(shapes, case.tags, strict=True)
    found = {tag.on(tag.axis - len(shape)) for shape, tags in pairs for tag in tags}

    def on(shape: Sequence[int]) -> tuple[Tag, ...]:
        return tuple(t.on(t.axis + len(shape)) for t in found if -t.axis <= len(shape) and shape[t.axis] > 1)

    return tuple(map(on, shapes)), on(node.type.shape)


def _value(case: BucketCase, arrays: list[Array], shape: tuple[int, ...]) -> Array | None:
    try:
        with np.errstate(all="ignore"):
            found = case.op.reference(arrays, _attrs(case, arrays, shape))
    except (GdlabError, ValueError, IndexError):
        return None
    return found if found.shape == shape else None


def _attrs(case: BucketCase, arrays: Sequence[Array], shape: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of the smaller op: extents that they name follow the operands and the result."""
    attrs = dict(stored(case))
    before = case.sample.shapes[0] if case.sample.shapes else ()
    match case.op.name:
        case "reshape" | "broadcast_to" | "unslice":
            attrs["shape"] = shape
        case "slice":
            whole = zip(attrs["stops"], before, arrays[0].shape, strict=True)
            attrs["stops"] = tuple(small if stop == n else stop for stop, n, small in whole)
        case "columns" if attrs["stop"] - attrs["start"] == before[1]:
            attrs["stop"] = arrays[0].shape[1]
        case "among_columns" if attrs["width"] == before[1]:
            attrs["width"] = arrays[0].shape[1]
    return attrs


@lru_cache(4)
def stored(case: BucketCase) -> dict[str, Any]:
    """The attributes as the node has them."""
    node = build(BucketCase(case.op, case.sample, tuple(() for _ in case.sample.shapes), case.upper)).graph.nodes[-1]
    return dict(node.attrs)


def try_bounded(case: BucketCase) -> tuple[Built, Graph, ExtentReport] | None:
    """The bounded graph, or None where it is refused."""
    try:
        built = build(case, verdict_of(case)[1])
        made, report = bounded(built.graph, built.axes, case.upper)
    except (Cut, ActiveExtentUnsupported):
        return None
    return built, made, report


def working_ops() -> list[Op]:
    """Every op with operands."""
    return [op for op in REGISTRY.values() if not isinstance(op.kernel, Leaf) and op.operands]


def dead(shape: Sequence[int], tags: Sequence[Tag], upper: int, actual: int) -> Array:
    """The mask of a result's elements behind the active entries."""
    live = np.ones(shape, bool)
    for tag in tags:
        behind = np.setdiff1d(np.arange(shape[tag.axis]), active(tag, upper, actual))
        live[(slice(None),) * tag.axis + (behind,)] = False
    return ~live


# of no entry at all: what a fold of nothing gives, and what is made of it
OF_NOTHING = {
    "max": -np.inf, "max_inner": -np.inf, "min": np.inf, "mean": np.nan, "mean_all": np.nan, "mean_inner": np.nan,
    "global_avg_pool": np.nan, "bce_loss": np.nan, "mse_loss": np.nan, "l1_loss": np.nan, "full_attention": np.nan,
    "cross_attention": np.nan, "multi_head_attn": np.nan, "attention_lse": -np.inf, "rms_size": np.nan,
    "layer_size": np.nan,
}  # fmt: skip


def of_nothing(case: BucketCase, tags_of_operands: Sequence[Sequence[Tag]]) -> Array | float:
    """An untagged result where no entry is active."""
    if case.op.name == "cross_entropy_loss":  # no rows, or rows of no class
        return np.nan if any(tag.axis == 0 for tags in tags_of_operands for tag in tags) else 0.0
    if case.op.name.startswith("fused_matmul"):
        return arrays_of(case)[2]
    if case.op.name.startswith("cache_write"):
        return arrays_of(case)[1]
    if case.op.name == "top_k_indices":  # all are −inf: the first ones
        return np.arange(case.sample.attrs["k"])
    return OF_NOTHING.get(case.op.name, 0.0)


# gradients ------------------------------------------------------------------------------------------------------------
def wired(
    case: BucketCase, shapes: Sequence[Sequence[int]], attrs: Mapping[str, Any]
) -> tuple[Graph, dict[str, tuple[int, ...]], list[Value], tuple[int, ...]]:
    """Σ cotangent · op(x0, x1, …): the graph, its bucket axes, the f32 operands and the shape of the cotangent `c`."""
    with Graph() as g:
        slots = [ops.input_u32 if i in case.sample.integers else ops.input for i in range(len(shapes))]
        operands = [slot(f"x{i}", tuple(shape)) for i, (slot, shape) in enumerate(zip(slots, shapes, strict=True))]
        y = case.op(*case.op.spread(operands), **attrs)
        g.set_outputs([(y * ops.input("c", y.shape)).sum_all()])
    axes = {f"x{i}": tuple(tag.axis for tag in tags) for i, tags in enumerate(case.tags) if tags}
    return g, axes, [x for x in operands if x.type.dtype is not u32], y.shape


def gradient_failure(case: BucketCase, actual: int) -> str | None:
    """The defect of the loss or a gradient, `""` where nothing is, None where the case is refused."""
    arrays = arrays_of(case)
    try:
        imposed, tags = verdict_of(case)
        graph, axes, wrt, shape = wired(case, case.sample.shapes, case.sample.attrs)
        axes |= {"c": tuple(tag.axis for tag in tags)} if tags else {}
        made, _ = bounded_with_gradients(graph, axes, case.upper, wrt=wrt)
    except (Cut, ActiveExtentUnsupported):
        return None
    weights = np.random.default_rng(5).uniform(0.5, 2.0, shape).astype(np.float32)
    small = [cut(a, t, case.upper, actual) for a, t in zip(arrays, imposed, strict=True)]
    less = cut(weights, tags, case.upper, actual)
    try:
        part, _, of, _ = wired(case, [a.shape for a in small], _attrs(case, small, less.shape))
    except ShapeError:  # some queries of all keys: attention of a sequence to itself has no such graph
        return None
    full, _ = differentiate(part, wrt=of)
    want = _outputs(full, {"c": less, **_named(small)})
    padded = [poisoned(a, case.tags[i], case.upper, actual) for i, a in enumerate(arrays)]
    got = _outputs(made, {EXTENT: [actual], "c": poisoned(weights, tags, case.upper, actual), **_named(padded)})
    floats = [i for i in range(len(arrays)) if i not in case.sample.integers]
    for i, mine, found in zip([-1, *floats], got, want, strict=True):
        whole = np.zeros(mine.shape)
        whole[~dead(mine.shape, imposed[i] if i >= 0 else (), case.upper, actual)] = found.ravel()
        if not np.allclose(mine, whole, rtol=1e-6, atol=1e-6 * max(1.0, np.max(np.abs(whole))), equal_nan=True):
            return f"{case} at {actual}: operand {i}: got {mine.ravel()[:4]}, wanted {whole.ravel()[:4]}"
    return ""


def _named(arrays: Sequence[Array]) -> dict[str, Array]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


def _outputs(graph: Graph, feeds: Mapping[str, Any]) -> list[Array]:
    values = evaluate(graph, feeds)
    return [values[id] for id in graph.output_ids]


__all__ = [
    "BucketCase",
    "cases_of",
    "cut",
    "dead",
    "expected",
    "gradient_failure",
    "of_nothing",
    "run_bounded",
    "try_bounded",
    "working_ops",
]
