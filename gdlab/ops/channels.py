"""Ops per channel of images [n, channels, h, w]: scales, biases, group norm; crops, dilation, pixel shuffle; pairs."""

from __future__ import annotations

from functools import cache

import numpy as np

from gdlab.graph import Value
from gdlab.op import Bad, Grads, Sample, fused, want
from gdlab.ops.conv.windows import is_image
from gdlab.ops.leaves import zeros
from gdlab.ops.movement import unslice

IMAGE = "x[n, c, h, w]"


# scales and biases ----------------------------------------------------------------------------------------------------
def _check_gate(x: Value, gate: Value) -> None:
    want(is_image(x) and gate.shape == x.shape[:2], f"{IMAGE} and gate[n, c]")


@fused(
    label="",
    samples=(Sample((2, 3, 4, 5), (2, 3)), Sample((1, 1, 1, 1), (1, 1)), Sample((3, 2, 1, 7), (3, 2))),
    bad=(
        Bad(("f32[2, 3, 4, 5]", "f32[3]"), "given f32[2, 3, 4, 5] and f32[3], wanted x[n, c, h, w] and gate[n, c]"),
        Bad(("f32[2, 3, 4, 5]", "f32[3, 2]"), "wanted x[n, c, h, w] and gate[n, c]"),
        Bad(("f32[2, 3]", "f32[2, 3]"), "wanted x[n, c, h, w] and gate[n, c]"),
    ),
    check=_check_gate,
)
def mul_per_channel(x: Value, gate: Value) -> Value:
    """Every channel of every image times a factor of its own: f32[n, c, h, w], f32[n, c] -> f32[n, c, h, w].
    Factors are read as they lie: none is copied."""
    return x * gate.reshape((*gate.shape, 1, 1))


def _check_channel(x: Value, b: Value) -> None:
    want(is_image(x) and b.shape == x.shape[1:2], f"{IMAGE} and b[c]")


def _over_images(b: Value, n: int) -> Value:
    """Return b[c] once per image: the table is so small that kernels read it as [n, c, h, w] in place."""
    return b.reshape((1, *b.shape)) if n == 1 else zeros((n, *b.shape), graph=b.graph).bias_add(b)


@fused(
    label="",
    samples=tuple(Sample(x, (x[1],)) for x in ((2, 3, 4, 5), (1, 4, 3, 1), (1, 1, 1, 1), (3, 1, 2, 2))),
    bad=(
        Bad(("f32[2, 3, 4, 5]", "f32[2]"), "given f32[2, 3, 4, 5] and f32[2], wanted x[n, c, h, w] and b[c]"),
        Bad(("f32[2, 3, 4, 5]", "f32[1, 3]"), "wanted x[n, c, h, w] and b[c]"),
        Bad(("f32[3, 4, 5]", "f32[3]"), "wanted x[n, c, h, w] and b[c]"),
    ),
    check=_check_channel,
)
def add_per_channel(x: Value, b: Value) -> Value:
    """A bias per channel: f32[n, c, h, w], f32[c] -> f32[n, c, h, w]."""
    return x + _over_images(b, x.shape[0]).reshape((*x.shape[:2], 1, 1))


# group norm -----------------------------------------------------------------------------------------------------------
def _check_groups(x: Value, w: Value, b: Value, groups: int, eps: float) -> None:
    wanted = "x[b, c, …], w[c] and b[c]"
    want(x.type.rank >= 2 and w.shape == b.shape == x.shape[1:2], wanted)
    want(groups >= 1, "an int ≥ 1", groups, "groups")
    want(x.shape[1] % groups == 0, "channels that are a multiple of groups", f"{x.shape[1]} with groups={groups}")
    want(eps > 0, "a number above 0", eps, "eps")


def _per_channel(w: Value, x: Value) -> Value:
    """Return w[c] as [b, c, 1, …], to be repeated over x."""
    return _over_images(w, x.shape[0]).reshape((*x.shape[:2], *(1,) * (x.type.rank - 2)))


def _unit(x: Value, groups: int, eps: float) -> tuple[Value, Value]:
    """Return (x − mean) / √(variance + eps) of every group, a row each, and the factor."""
    rows = x.reshape((x.shape[0] * groups, -1))
    centred = rows - rows.mean_inner()  # never E[x²] − μ²: that cancels
    size = (centred.square().mean_inner() + eps).rsqrt()
    return centred * size, size


_FAR = np.stack([np.linspace(1000.0, 1001.0, 8), np.linspace(-3.0, 3.0, 8)]).reshape(1, 4, 2, 2)


@fused(
    label="",
    family="reduction",
    samples=(
        Sample((2, 4, 3, 2), (4,), (4,), attrs={"groups": 2, "eps": 1e-5}),
        Sample((1, 6, 5), (6,), (6,), attrs={"groups": 3, "eps": 0.1}),
        Sample((3, 3, 2, 2), (3,), (3,), attrs={"groups": 3, "eps": 1e-5}),
        Sample((2, 5, 70), (5,), (5,), attrs={"groups": 1, "eps": 1e-5}),
        Sample((2, 4), (4,), (4,), attrs={"groups": 2, "eps": 0.5}),
        Sample((1, 2, 1, 1), (2,), (2,), attrs={"groups": 2, "eps": 0.25}),
        Sample((1, 4, 2, 2), (4,), (4,), attrs={"groups": 2, "eps": 0.25}, values=(_FAR, None, None)),
    ),
    bad=(
        Bad(("f32[2, 4, 3]", "f32[4]", "f32[3]"), "wanted x[b, c, …], w[c] and b[c]", {"groups": 2, "eps": 1e-5}),
        Bad(("f32[2, 4, 3]", "f32[4]", "f32[4]"), "group_norm: operands: given 4 with groups=3, wanted channels that "
            "are a multiple of groups", {"groups": 3, "eps": 1e-5}),
        Bad(("f32[2, 4, 3]", "f32[4]", "f32[4]"), "groups: given 0, wanted an int ≥ 1", {"groups": 0, "eps": 1e-5}),
        Bad(("f32[2, 4, 3]", "f32[4]", "f32[4]"), "eps: given 0.0, wanted a number above 0", {"groups": 2, "eps": 0.0}),
        Bad(("f32[4]", "f32[4]", "f32[4]"), "wanted x[b, c, …], w[c] and b[c]", {"groups": 2, "eps": 1e-5}),
    ),
    check=_check_groups,
)  # fmt: skip
def group_norm(x: Value, w: Value, b: Value, groups: int, eps: float) -> Value:
    """(x − mean) / √(variance + eps) over each of `groups` blocks of channels, · w + b per channel:
    f32[b, c, ...], f32[c], f32[c] -> f32[b, c, ...]; eps > 0.

    The variance is biased and taken of x − mean. Y. Wu, K. He, Group Normalization, 2018.
    """
    unit = _unit(x, groups, eps)[0].reshape(x.shape)
    return unit * _per_channel(w, x) + _per_channel(b, x)


@group_norm.vjp
def _(g: Value, out: Value, x: Value, w: Value, b: Value, groups: int, eps: float) -> Grads:
    """∂x = s·(h − mean(h) − u·mean(h·u)),  ∂w = Σ g·u,  ∂b = Σ g with h = g·w, u = s·(x − mean(x)), s = 1/std(x)"""
    others = (0, *range(2, x.type.rank))

    @cache
    def parts() -> tuple[Value, Value]:
        return _unit(x, groups, eps)

    def to_x() -> Value:
        unit, size = parts()
        h = (g * _per_channel(w, x)).reshape(unit.shape)
        centred = h - h.mean_inner()
        return (size * (centred - unit * (centred * unit).mean_inner())).reshape(x.shape)

    return to_x, lambda: (g * parts()[0].reshape(x.shape)).sum(others), lambda: g.sum(others)


# moving pixels --------------------------------------------------------------------------------------------------------
def _check_dilation(x: Value, factor: int) -> None:
    want(is_image(x), IMAGE)
    want(factor >= 1, "an int ≥ 1", factor, "factor")


DILATED = (
    Sample((2, 3, 4, 5), attrs={"factor": 2}), Sample((1, 1, 1, 1), attrs={"factor": 3}),
    Sample((1, 2, 3, 2), attrs={"factor": 1}),
)  # fmt: skip
BAD_FACTOR = (
    Bad(("f32[3, 4, 5]",), "given f32[3, 4, 5], wanted x[n, c, h, w]", {"factor": 2}),
    Bad(("f32[1, 3, 4, 5]",), "factor: given 0, wanted an int ≥ 1", {"factor": 0}),
)


def _dilated(x: Value, fh: int, fw: int) -> Value:
    n, c, h, w = x.shape
    return unslice(x, (n, c, (h - 1) * fh + 1, (w - 1) * fw + 1), (0, 0, 0, 0), (1, 1, fh, fw))


@fused(label="", family="movement", samples=DILATED, bad=BAD_FACTOR, check=_check_dilation)
def dilate_h(x: Value, factor: int) -> Value:
    """factor − 1 rows of zeros between rows: f32[n, c, h, w] -> f32[n, c, (h − 1)·factor + 1, w]."""
    return _dilated(x, factor, 1)


@fused(label="", family="movement", samples=DILATED, bad=BAD_FACTOR, check=_check_dilation)
def dilate_w(x: Value, factor: int) -> Value:
    """factor − 1 columns of zeros between columns: f32[n, c, h, w] -> f32[n, c, h, (w − 1)·factor + 1]."""
    return _dilated(x, 1, factor)


def _check_crop(x: Value, top: int, bottom: int, left: int, right: int) -> None:
    want(is_image(x), IMAGE)
    given = f"{top}, {bottom}, {left}, {right}"
    want(min(top, bottom, left, right) >= 0, "ints ≥ 0", given, "amounts")
    left_over = x.shape[2] - top - bottom, x.shape[3] - left - right
    want(min(left_over) >= 1, "at least one pixel that is left", f"{given} of {x.type}", "operands")


@fused(
    label="",
    family="movement",
    samples=(
        Sample((2, 3, 4, 5), attrs={"top": 1, "bottom": 0, "left": 2, "right": 1}),
        Sample((1, 1, 3, 3), attrs={"top": 1, "bottom": 1, "left": 1, "right": 1}),
        Sample((1, 2, 2, 2), attrs={"top": 0, "bottom": 0, "left": 0, "right": 0}),
    ),
    bad=(
        Bad(("f32[3, 4, 5]",), "wanted x[n, c, h, w]", {"top": 0, "bottom": 0, "left": 0, "right": 0}),
        Bad(("f32[1, 3, 4, 5]",), "amounts: given -1, 0, 0, 0, wanted ints ≥ 0",
            {"top": -1, "bottom": 0, "left": 0, "right": 0}),
        Bad(("f32[1, 3, 4, 5]",), "given 0, 0, 2, 3 of f32[1, 3, 4, 5], wanted at least one pixel that is left",
            {"top": 0, "bottom": 0, "left": 2, "right": 3}),
    ),
    check=_check_crop,
)  # fmt: skip
def crop_2d(x: Value, top: int, bottom: int, left: int, right: int) -> Value:
    """The image without so many rows and columns of its border: f32[n, c, h, w] -> f32[n, c, h', w']."""
    n, c, h, w = x.shape
    return x.slice((0, 0, top, left), (n, c, h - bottom, w - right))


def _check_shuffle(x: Value, factor: int) -> None:
    _check_dilation(x, factor)
    want(x.shape[1] % factor == 0, "channels that are a multiple of factor", f"{x.type} with factor={factor}")


@fused(
    label="",
    family="movement",
    samples=(
        Sample((2, 6, 4, 5), attrs={"factor": 2}),
        Sample((1, 3, 1, 1), attrs={"factor": 3}),
        Sample((1, 2, 3, 2), attrs={"factor": 1}),
    ),
    bad=(
        *BAD_FACTOR,
        Bad(("f32[1, 3, 4, 5]",), "given f32[1, 3, 4, 5] with factor=2, wanted channels that are a multiple of factor",
            {"factor": 2}),
    ),
    check=_check_shuffle,
)  # fmt: skip
def pixel_shuffle_w(x: Value, factor: int) -> Value:
    """`factor` channels become neighbours along w, out[c, h, factor·w + k] = x[k·C/factor + c, h, w]:
    f32[n, c, h, w] -> f32[n, c/factor, h, w·factor]."""
    n, c, h, w = x.shape
    split = x.reshape((n, factor, c // factor, h, w)).permute((0, 2, 3, 4, 1))
    return split.reshape((n, c // factor, h, w * factor))


# pairs ----------------------------------------------------------------------------------------------------------------
def _check_pairs(few: Value, many: Value, p: int, wanted: str) -> None:
    want(p >= 1, "an int ≥ 1", p, "P")
    fits = few.type.rank == many.type.rank == 2 and many.shape == (few.shape[0] * p, few.shape[1])
    want(fits, wanted, f"{few.type} and {many.type} with P={p}")


@fused(
    label="",
    family="reduction",
    samples=(
        Sample((3, 4), (6, 4), attrs={"P": 2}), Sample((1, 1), (5, 1), attrs={"P": 5}),
        Sample((4, 70), (4, 70), attrs={"P": 1}),
    ),
    bad=(
        Bad(("f32[3, 4]", "f32[5, 4]"), "given f32[3, 4] and f32[5, 4] with P=2, wanted l[M, D] and r[M·P, D]",
            {"P": 2}),
        Bad(("f32[3, 4]", "f32[6, 4]"), "P: given 0, wanted an int ≥ 1", {"P": 0}),
    ),
    check=lambda l, r, P: _check_pairs(l, r, P, "l[M, D] and r[M·P, D]"),  # noqa: E741
)  # fmt: skip
def pairwise_squared_distance(l: Value, r: Value, P: int) -> Value:  # noqa: E741 (names of the spec)
    """Σ (l − r)² of every row of l and each of its P rows of r: f32[m, d], f32[m·P, d] -> f32[m, P]."""
    m, d = l.shape
    return (l.reshape((m, 1, d)) - r.reshape((m, P, d))).square().sum(2)


@fused(
    label="",
    family="reduction",
    samples=(
        Sample((6, 4), (3, 4), attrs={"P": 2}), Sample((5, 1), (1, 1), attrs={"P": 5}),
        Sample((4, 70), (4, 70), attrs={"P": 1}),
    ),
    bad=(
        Bad(("f32[5, 4]", "f32[3, 4]"), "given f32[3, 4] and f32[5, 4] with P=2, wanted v[M·P, D] and u[M, D]",
            {"P": 2}),
        Bad(("f32[6, 4]", "f32[3, 4]"), "P: given -1, wanted an int ≥ 1", {"P": -1}),
    ),
    check=lambda v, u, P: _check_pairs(u, v, P, "v[M·P, D] and u[M, D]"),
)  # fmt: skip
def pairwise_vector_rejection(v: Value, u: Value, P: int) -> Value:
    """v − (v·u) u of every row of u and each of its P rows of v; u is not normalized: f32[m·P, d], f32[m, d] ->
    f32[m·P, d]."""
    m, d = u.shape
    vectors, axes = v.reshape((m, P, d)), u.reshape((m, 1, d)).broadcast_to((m, P, d))
    return (vectors - (vectors * axes).sum_inner() * axes).reshape(v.shape)
