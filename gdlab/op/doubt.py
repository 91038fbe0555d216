"""Bound the error of a device beyond rounding, where an operand lies within its rounding of a jump or a kink.

`x > 0` of a sum that cancels to 1e-9 is 0 or 1, and both are right in float32. The judge moves every operand within its
uncertainty; where the op answers more than rounding explains, that rise is the element's doubt, and what follows
inherits it, as it inherits error scales.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Attrs, Graph
from gdlab.op import REGISTRY, Alias, Contraction, Elementwise, Fill, Leaf, Movement, Op, Reduction, Shader
from gdlab.op.reference import Values, error_scale, finite_or_zero, node_value, reduced_scale, tolerance

__all__ = ["Doubts", "doubts"]

DRAWS = 16
MOST_PLACES = 256  # of an index that is in doubt, tried one by one
EXPLAINED = 2.0  # a rise of so many tolerances is no jump: a slope is known to first order


@dataclass(frozen=True, slots=True)
class Doubts:
    """By node id: `amount`, how far jumps may move every element beyond rounding (0: not at all), and `jumps`, how many
    elements of a node lie within rounding of a jump or a kink of its own (nodes without one are left out)."""

    amount: Values
    jumps: Mapping[int, int]


@dataclass(slots=True)
class _Known:
    """Hold what is known of the nodes so far. `span`: how far an element may be off in all, rounding included; 0 where
    it is exact, as inputs, comparisons and whole numbers are."""

    rtol: float
    value: Values
    scale: Values
    amount: Values = field(default_factory=dict)
    span: Values = field(default_factory=dict)
    jumps: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Call:
    """One op on its operands, with the uncertainty of each."""

    op: Op
    attrs: dict[str, Any]
    arrays: Sequence[Array]
    amounts: Sequence[Array]
    spans: Sequence[Array]
    out: Array

    def at(self, arrays: Sequence[Array]) -> Array:
        """Return the op's value on other operands."""
        return self.op.reference(arrays, self.attrs)

    def rise(self, points: Iterator[list[Array]]) -> Array:
        """Return the largest |f(point) − f(x)|; where one of them is not finite it counts as 0."""
        most = np.zeros(self.out.shape)
        with np.errstate(all="ignore"):
            plain = np.asarray(self.at(self.arrays), np.float64)
            for point in points:
                most = np.maximum(most, finite_or_zero(np.abs(np.asarray(self.at(point), np.float64) - plain)))
        return most

    @property
    def inherits(self) -> bool:
        """Say whether an operand is in doubt."""
        return any(a.any() for a in self.amounts)


def doubts(graph: Graph, values: Values, scales: Values, rtol: float) -> Doubts:
    """Return the doubt of every element of a graph, whose operands may each be off by `rtol` times their error scale.

    Points that are tried: both ends of every operand's interval, 0 where it lies inside, and ties of two operands.
    """
    known = _Known(rtol, values, scales)
    with np.errstate(over="ignore", invalid="ignore"):  # a doubt may be as large as numbers are
        _walk(graph, 0, known)
    return Doubts(known.amount, known.jumps)


def _walk(graph: Graph, first: int, known: _Known) -> None:
    """Add what is known of the nodes from number `first` on; values and scales that are not given are computed."""
    for node in graph.nodes[first:]:
        op, ids, attrs = REGISTRY.get(node.op), node.inputs, node.attrs
        arrays = [known.value[i] for i in ids]
        if node.id not in known.value:
            known.value[node.id] = node_value(node, known.value, {})
            ms = [known.scale[i] for i in ids]
            known.scale[node.id] = finite_or_zero(error_scale(op, arrays, ms, attrs, known.value[node.id]))
        out, m = known.value[node.id], known.scale[node.id]
        if op is None or not arrays or isinstance(op.kernel, Leaf | Fill):
            found = np.zeros(out.shape), np.where(_whole_f32(out), 0.0, known.rtol * m), 0
        else:
            amounts, spans = ([by[i] for i in ids] for by in (known.amount, known.span))
            call = _Call(op, dict(attrs), arrays, amounts, spans, out)
            found = _uncertain(call, m, known, ids, attrs)
        known.amount[node.id], known.span[node.id], jumps = found
        if jumps:
            known.jumps[node.id] = jumps


def _whole_f32(out: Array) -> Array:
    """Say where a value is one that float32 holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.asarray(out, np.float32).astype(np.float64) == out)


# one op ---------------------------------------------------------------------------------------------------------------
_Found = tuple[Array, Array, int]  # amount, span, jumps of its own


def _uncertain(call: _Call, m: Array, known: _Known, ids: Sequence[int], attrs: Attrs) -> _Found:
    """Return what is uncertain of a result, by what kind of kernel makes it."""
    op, out = call.op, call.out
    match op.kernel:
        case Movement() | Alias():
            moved = partial(_moved, call)
            return moved(call.amounts), moved(call.spans), 0
        case Reduction() as kernel if kernel.combine != "sum":
            folded = partial(reduced_scale, op, kernel, call.arrays[0], attrs=attrs, out=out)
            return folded(m=call.amounts[0]), folded(m=call.spans[0]), 0
        case Elementwise():
            return _pointwise(call, m, known.rtol)
        case Shader() if out.dtype == u32.numpy or op.stores:
            return _decided(call, m, known.rtol)
        case Shader(linear=True) | Contraction() | Reduction():
            amount = _summed(call) if call.inherits else np.zeros(out.shape)
        case Shader(bound=rule) if rule is not None:
            amount = np.abs(rule(*call.amounts, **call.attrs)) if call.inherits else np.zeros(out.shape)
        case Shader() if op.body is None:
            amount = call.rise(_steps(call, call.amounts, (1, 2, 4))) if call.inherits else np.zeros(out.shape)
        case _:
            return _of_body(call, known, ids, attrs)
    amount = finite_or_zero(amount)
    exact = not any(s.any() for s in call.spans) and bool(np.all((np.abs(out) == m) & _whole_f32(out)))
    return amount, amount if exact else amount + known.rtol * m, 0


def _moved(call: _Call, parts: Sequence[Array]) -> Array:
    """Return numbers that lie beside the operands where the op puts its elements."""
    if not any(p.any() for p in parts):
        return np.zeros(call.out.shape)
    return finite_or_zero(np.abs(call.at(parts) - call.at([np.zeros(p.shape) for p in parts])))


def _pointwise(call: _Call, m: Array, rtol: float) -> _Found:
    """Return what is uncertain of an elementwise result: jumps that no operand brought are its own."""
    if not any(s.any() for s in call.spans):
        return np.zeros(call.out.shape), np.where(_whole_f32(call.out), 0.0, rtol * m), 0
    rise = call.rise(_points(call.arrays, _apart(call.arrays, call.spans)))
    brought = np.zeros(call.out.shape, bool)
    for amount in call.amounts:
        brought = brought | (amount > 0)
    own = (rise > EXPLAINED * tolerance(m, rtol)) & ~brought
    # rounding explains a part of it; the value beyond the jump has a rounding of its own
    amount = np.where(brought | own, np.maximum(rise - rtol * m, 0.0) + EXPLAINED * rtol * rise, 0.0)
    exact = (rise == 0) & _whole_f32(call.out)
    return amount, np.where(exact, 0.0, amount + rtol * m), int(np.count_nonzero(own))


def _apart(arrays: Sequence[Array], spans: Sequence[Array]) -> list[Array]:
    """Return the spans, but 0 where two operands are one value, as an extremum and the element that it is: they move
    together, unless another element comes as near to the same value."""
    spans = list(spans)
    for i, j in itertools.combinations(range(len(arrays)), 2):
        a, b, ua, ub = np.broadcast_arrays(arrays[i], arrays[j], spans[i], spans[j])
        near = (np.abs(a - b) <= ua + ub) & (ua > 0) & (ub > 0)
        one = near & (a == b)
        if not one.any():
            continue
        values, counts = np.unique(b[near], return_counts=True)
        alone = one & ~np.isin(b, values[counts > 1])
        spans[i], spans[j] = np.where(alone, 0.0, ua), np.where(alone, 0.0, ub)
    return spans


def _points(arrays: Sequence[Array], spans: Sequence[Array]) -> Iterator[list[Array]]:
    """Give the corners of the box of all operands; each at 0 where it may be 0; and each at another where it may be."""
    loose = [i for i, s in enumerate(spans) if s.any()]
    for signs in itertools.product((1.0, -1.0), repeat=len(loose)):
        moved = list(arrays)
        for i, sign in zip(loose, signs, strict=True):
            moved[i] = arrays[i] + sign * spans[i]
        yield moved
    for i in loose:
        yield [*arrays[:i], np.where(np.abs(arrays[i]) <= spans[i], 0.0, arrays[i]), *arrays[i + 1 :]]
        for j in range(len(arrays)):
            if j != i:
                near = np.abs(arrays[i] - arrays[j]) <= spans[i] + spans[j]
                yield [*arrays[:i], np.where(near, arrays[j], arrays[i]), *arrays[i + 1 :]]


def _decided(call: _Call, m: Array, rtol: float) -> _Found:
    """Return what is uncertain of a result that decides: whole numbers, and roundings to 16 bits. Operands move in
    patterns in which any two elements move apart, and at random."""
    if not any(s.any() for s in call.spans):
        return np.zeros(call.out.shape), np.zeros(call.out.shape), 0
    largest = max(a.size for a in call.arrays)
    apart = _steps(call, call.spans, [1 << bit for bit in range(max(1, (largest - 1).bit_length()))])
    rise = call.rise(itertools.chain(apart, _drawn(call)))
    amount = np.where(rise > EXPLAINED * tolerance(m, rtol), rise, 0.0)
    span = amount if call.out.dtype == u32.numpy else amount + rtol * m
    return amount, span, 0 if call.inherits else int(np.count_nonzero(amount))


def _steps(call: _Call, by: Sequence[Array], periods: Sequence[int]) -> Iterator[list[Array]]:
    """Give the operands moved by ± `by`, the sign changing every `period` elements; indices stay inside their bound."""
    for period, sign in itertools.product(periods, (1.0, -1.0)):
        moved = []
        for k, (x, step) in enumerate(zip(call.arrays, by, strict=True)):
            signs = np.where(np.arange(x.size) // period % 2 == 0, sign, -sign).reshape(x.shape)
            moved.append(_index(call, k, signs * step) if x.dtype == u32.numpy else x + signs * step)
        yield moved


def _drawn(call: _Call) -> Iterator[list[Array]]:
    """Give the operands moved within their spans at random: among many that are nearly equal any may come first."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        yield [
            x if x.dtype == u32.numpy else x + s * rng.uniform(-1, 1, x.shape)
            for x, s in zip(call.arrays, call.spans, strict=True)
        ]


def _index(call: _Call, k: int, step: Array) -> Array:
    """Return indices moved by whole steps, inside what they may be."""
    indices, x = call.op.indices, call.arrays[k]
    bound = int(x.max(initial=0)) + 1
    if indices is not None and indices.operand == k:
        types = [TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in call.arrays]
        bound = indices.bound(types, call.attrs)
    moved: Array = np.clip(np.rint(x.astype(np.float64) + step), 0, bound - 1).astype(np.uint32)
    return moved


def _summed(call: _Call) -> Array:
    """Return the doubt of sums of products and of selections: every operand as large as it may be, and every index
    that is in doubt at its other places."""
    plain = [x if x.dtype == u32.numpy else np.abs(x) for x in call.arrays]
    large = [x if x.dtype == u32.numpy else x + a for x, a in zip(plain, call.amounts, strict=True)]
    amount: Array = np.abs(call.at(large) - call.at(plain))
    places = [np.where(x.dtype == u32.numpy, a, 0.0) for x, a in zip(call.arrays, call.amounts, strict=True)]
    farthest = max(float(p.max(initial=0.0)) for p in places)
    if farthest > 0:
        limits = range(1, int(farthest) + 1) if farthest <= MOST_PLACES else np.unique(np.concatenate(places, None))
        together = [max(x.size for x in call.arrays)]
        points = (_steps(call, [np.minimum(p, limit) for p in places], together) for limit in limits)
        amount = amount + call.rise(itertools.chain.from_iterable(points))
    return amount


def _of_body(call: _Call, known: _Known, ids: Sequence[int], attrs: Attrs) -> _Found:
    """Return what is uncertain of a fused op, from its body."""
    arrays = call.arrays
    graph = call.op.trace(tuple(TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in arrays), attrs)
    taken: Callable[[Sequence[Array]], Values] = lambda parts: dict(enumerate(parts))  # noqa: E731
    inner = _Known(
        known.rtol, taken(arrays), taken([known.scale[i] for i in ids]), taken(call.amounts), taken(call.spans)
    )
    _walk(graph, len(arrays), inner)
    result = graph.output_ids[0]
    return inner.amount[result], inner.span[result], sum(inner.jumps.values())
