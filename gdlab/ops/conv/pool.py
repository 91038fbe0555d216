"""Pooling of images [n, channels, h, w]: maxima, means, and repeating pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape, TensorType, u32
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Grads,
    Sample,
    Shader,
    Verdict,
    Work,
    along,
    fused,
    op,
    want,
)
from gdlab.op.numpy_form import NumpyForm
from gdlab.ops.conv.pool_numpy import (
    avg_pool_form,
    avg_pool_grad_form,
    max_index_form,
    max_pool_form,
    put_form,
    take_form,
)
from gdlab.ops.conv.windows import Pair, Windows, is_image, pair

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]


def _windows(size: Shape, k: Pair, stride: Pair, padding: Pair) -> Windows:
    """Return the windows of a pool; each holds at least one pixel."""
    want(min(k) >= 1, "ints ≥ 1", list(k), "k")
    outside = any(p >= n for p, n in zip(padding, k, strict=True))
    want(not outside, f"less than the window's {k[0]} x {k[1]}", list(padding), "padding")
    windows = Windows((size[-2], size[-1]), k, stride, padding)
    windows.check()
    return windows


def _pairs(*operands: Value, k: Shape, stride: Shape, padding: Shape, **others: Any) -> dict[str, Any]:
    sizes = {"size": pair(others.pop("size"), "size")} if "size" in others else {}
    steps = {"k": pair(k, "k"), "stride": pair(stride, "stride"), "padding": pair(padding, "padding")}
    return {**steps, **sizes, **others}


def _pooled(x: Value, k: Shape, stride: Shape, padding: Shape) -> Shape:
    want(is_image(x), "x[n, c, h, w]")
    return (*x.shape[:2], *_windows(x.shape, k, stride, padding).count)  # type: ignore[arg-type]


def _spread(g: Value, size: Shape, k: Shape, stride: Shape, padding: Shape) -> Shape:
    want(is_image(g), "g[n, c, oh, ow]")
    want(min(size) >= 1, "ints ≥ 1", list(size), "size")
    count = _windows(size, k, stride, padding).count  # type: ignore[arg-type]
    want(g.shape[2:] == count, f"g[n, c, {count[0]}, {count[1]}], a cotangent of the result")
    return (*g.shape[:2], *size)


def _kernel(
    file: str, form: NumpyForm, image: Callable[[Types, TensorType], Shape], in_bounds: bool = True
) -> Shader:
    """Return a kernel with one invocation per element of the result; `image` is the shape that the windows lie on."""

    def work(types: Types, result: TensorType, attrs: Attributes) -> Work:
        windows = _windows(image(types, result), attrs["k"], attrs["stride"], attrs["padding"])
        taps = windows.kernel[0] * windows.kernel[1]
        constants = {**windows.constants, "COUNT_PAD": int(attrs.get("count_include_pad", False))}
        return Work(result.num_elements, 0, constants, result.num_elements * taps, trips=taps + windows.kernel[0])

    return Shader(file, work, linear=True, in_bounds=in_bounds, numpy_form=form)


# x and attributes: overlap, gaps, padding, a window as large as the image, extents 1
CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 3, 6, 4), {"k": (2, 2), "stride": (2, 2), "padding": (0, 0)}),
    ((1, 2, 7, 5), {"k": (3, 2), "stride": (2, 1), "padding": (1, 1)}),
    ((2, 1, 5, 9), {"k": (3, 3), "stride": (1, 4), "padding": (2, 0)}),
    ((1, 2, 3, 4), {"k": (3, 4), "stride": (1, 1), "padding": (0, 0)}),
    ((2, 2, 1, 1), {"k": (1, 1), "stride": (3, 3), "padding": (0, 0)}),
)
SAMPLES = tuple(Sample(shape, attrs=attrs) for shape, attrs in CASES)
SPREAD = tuple(
    Sample((*shape[:2], *_windows(shape, **attrs).count), attrs={**attrs, "size": shape[2:]}) for shape, attrs in CASES
)
WINDOW = {"k": (3, 3), "stride": (1, 1), "padding": (0, 0)}
BAD_WINDOWS = (
    Bad(("f32[2, 5, 5]",), "wanted x[n, c, h, w]", WINDOW),
    Bad(("f32[1, 1, 5, 5]",), "padding: given [3, 3], wanted less than the window's 3 x 3", WINDOW | {"padding": 3}),
    Bad(("f32[1, 1, 5, 5]",), "padding: given [-1, -1], wanted ints ≥ 0", WINDOW | {"padding": -1}),
    Bad(("f32[1, 1, 5, 5]",), "stride: given [0, 1], wanted ints ≥ 1", WINDOW | {"stride": (0, 1)}),
    Bad(("f32[1, 1, 5, 5]",), "k: given [0, 0], wanted ints ≥ 1", WINDOW | {"k": 0}),
    Bad(("f32[1, 1, 5, 5]",), "given a window of 6 x 6 in an image of 5 x 5", WINDOW | {"k": 6}),
    Bad(("u32[1, 1, 5, 5]",), "wanted f32 operands", WINDOW),
)
BAD_SPREAD = (
    Bad(("f32[1, 1, 4, 4]",), "wanted g[n, c, 3, 3], a cotangent of the result", WINDOW | {"size": 5}),
    Bad(("f32[1, 3, 3]",), "wanted g[n, c, oh, ow]", WINDOW | {"size": 5}),
    Bad(("f32[1, 1, 3, 3]",), "size: given [0, 0], wanted ints ≥ 1", WINDOW | {"size": 0}),
)


# maxima ---------------------------------------------------------------------------------------------------------------
def _highest(x: Array, k: Pair, stride: Pair, padding: Pair) -> Array:
    windows = _windows(x.shape, k, stride, padding)
    padded = windows.pad(x, -np.inf)
    best: Array = np.max([padded[..., *at] for _, _, at in windows.taps()], axis=0)
    return best


TIES = (
    np.array([[1.0, 3.0, 3.0, 0.0], [3.0, 3.0, -1.0, 3.0], [2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]])[None, None],
)
KINKS = (
    Sample((1, 1, 4, 4), attrs={"k": (2, 2), "stride": (2, 2), "padding": (0, 0)}, values=TIES,
           grads=([[[[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]]],)),
    Sample((1, 1, 4, 4), attrs={"k": (3, 3), "stride": (1, 1), "padding": (0, 0)}, values=TIES,
           grads=([[[[0, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]],)),
)  # fmt: skip


def _by_image(call: Call) -> Verdict:
    """Keep bucket axes of images and channels; the axes of pixels are windows."""
    labels = ("n", "c", None, None)
    return along(call, [labels] * len(call.types), labels)


@op(
    numpy=_highest,
    kernel=_kernel("max_pool_2d.wgsl", max_pool_form, lambda types, result: types[0].shape),
    samples=(*SAMPLES, *KINKS),
    bad=BAD_WINDOWS,
    canonical=_pairs,
    follows=_by_image,
)
def max_pool_2d(x: Value, k: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...] = (0, 0)) -> TensorType:
    """The maximum of every window of k (one int or kh, kw), with a border of −inf:
    f32[n, c, h, w] -> f32[n, c, oh, ow]. The gradient goes to the first maximum in row-major order; a NaN is one."""
    return TensorType(_pooled(x, k, stride, padding))


@max_pool_2d.vjp
def _(g: Value, out: Value, x: Value, **attrs: Any) -> Grads:
    """∂x[n] = Σ g[i] over argmax(x[i · stride + j − padding]) = n"""
    return (max_pool_2d_grad(g, x, **attrs),)


def _first(x: Array, k: Pair, stride: Pair, padding: Pair) -> Array:
    windows = _windows(x.shape, k, stride, padding)
    values = windows.pad(x, -np.inf)
    place = windows.pad(np.arange(1.0, windows.size[0] * windows.size[1] + 1).reshape(1, 1, *windows.size))
    best = np.full((*x.shape[:2], *windows.count), -np.inf)
    found = np.full(best.shape, -1.0)
    for _, _, at in windows.taps():
        value, here = values[..., *at], np.broadcast_to(place[..., *at] - 1, best.shape)
        better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | (found < 0)
        best, found = np.where(better & (here >= 0), value, best), np.where(better & (here >= 0), here, found)
    return found.astype(np.uint32)


@op(
    numpy=_first,
    kernel=_kernel("max_pool_2d_index.wgsl", max_index_form, lambda types, result: types[0].shape),
    samples=(*SAMPLES, *(Sample((1, 1, 4, 4), attrs=s.attrs, values=TIES, kink=True) for s in KINKS)),
    bad=BAD_WINDOWS[:2],
    kind="private",
    no_grad="ends",
    canonical=_pairs,
    follows=_by_image,
)
def max_pool_2d_index(
    x: Value, k: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...] = (0, 0)
) -> TensorType:
    """The index in its image (row · w + column) of the first maximum of every window:
    f32[n, c, h, w] -> u32[n, c, oh, ow]."""
    return TensorType(_pooled(x, k, stride, padding), u32)


def _put(g: Array, index: Array, size: Pair, k: Pair, stride: Pair, padding: Pair) -> Array:
    windows = _windows(size, k, stride, padding)
    place = windows.pad(np.arange(1.0, size[0] * size[1] + 1).reshape(1, 1, *size)) - 1
    out = windows.pad(np.zeros((*g.shape[:2], *size), g.dtype))
    for _, _, at in windows.taps():
        out[..., *at] += np.where(place[..., *at] == index, g, 0.0)
    return out[..., *windows.inside()]


def _indexed(x: Value, index: Value, wanted: str) -> None:
    want(x.shape == index.shape if "g[" in wanted else x.shape[:2] == index.shape[:2], wanted)
    want(index.type.dtype is u32 and x.type.dtype is not u32, wanted)


@op(
    numpy=_put,
    kernel=_kernel("pool_put.wgsl", put_form, lambda types, result: result.shape),
    samples=tuple(
        Sample(s.shapes[0], s.shapes[0], attrs=s.attrs, integers={1: s.attrs["size"][0] * s.attrs["size"][1]})
        for s in SPREAD
    ),
    bad=(Bad(("f32[1, 1, 3, 3]", "u32[1, 1, 3, 4]"), "wanted g[n, c, oh, ow] and u32 index of its shape",
             WINDOW | {"size": 5}),
         Bad(("f32[1, 1, 4, 4]", "u32[1, 1, 4, 4]"), "wanted g[n, c, 3, 3], a cotangent", WINDOW | {"size": 5})),
    kind="private",
    any_dtype=True,
    canonical=_pairs,
    follows=_by_image,
)  # fmt: skip
def pool_put(
    g: Value,
    index: Value,
    size: tuple[int, ...],
    k: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] = (0, 0),
) -> TensorType:
    """Every window's g added to the pixel of the window that `index` names (row · w + column), others dropped:
    f32[n, c, oh, ow], u32[n, c, oh, ow] -> f32[n, c, h, w]."""
    _indexed(g, index, "g[n, c, oh, ow] and u32 index of its shape")
    return TensorType(_spread(g, size, k, stride, padding))


@pool_put.vjp
def _(g: Value, out: Value, own: Value, index: Value, size: Pair, **attrs: Any) -> Grads:
    """∂own[i] = g[index[i]]"""
    return pool_take(g, index, **attrs), None


def _take(x: Array, index: Array, k: Pair, stride: Pair, padding: Pair) -> Array:
    windows = _windows(x.shape, k, stride, padding)
    place = windows.pad(np.arange(1.0, windows.size[0] * windows.size[1] + 1).reshape(1, 1, *windows.size)) - 1
    padded, out = windows.pad(x), np.zeros(index.shape, x.dtype)
    for _, _, at in windows.taps():
        out = np.where(place[..., *at] == index, padded[..., *at], out)
    return out


@op(
    numpy=_take,
    kernel=_kernel("pool_take.wgsl", take_form, lambda types, result: types[0].shape, in_bounds=False),
    samples=tuple(
        Sample((*s.shapes[0][:2], *s.attrs["size"]), s.shapes[0],
               attrs={n: v for n, v in s.attrs.items() if n != "size"},
               integers={1: s.attrs["size"][0] * s.attrs["size"][1]})
        for s in SPREAD
    ),
    bad=(Bad(("f32[1, 1, 5, 5]", "u32[1, 2, 3, 3]"), "wanted x[n, c, h, w] and u32 index[n, c, oh, ow]", WINDOW),
         Bad(("f32[1, 1, 5, 5]", "u32[1, 1, 4, 4]"), "index: given [4, 4], wanted [3, 3]", WINDOW)),
    kind="private",
    any_dtype=True,
    canonical=_pairs,
    follows=_by_image,
)  # fmt: skip
def pool_take(
    x: Value, index: Value, k: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...] = (0, 0)
) -> TensorType:
    """The pixel of every window that `index` names (row · w + column), 0 where it is no pixel of the window:
    f32[n, c, h, w], u32[n, c, oh, ow] -> f32[n, c, oh, ow]."""
    _indexed(x, index, "x[n, c, h, w] and u32 index[n, c, oh, ow]")
    shape = _pooled(x, k, stride, padding)
    want(index.shape == shape, f"{list(shape[2:])}", list(index.shape[2:]), "index")
    return TensorType(shape)


@pool_take.vjp
def _(g: Value, out: Value, x: Value, index: Value, **attrs: Any) -> Grads:
    """∂x[n] = Σ g[i] over index[i] = n"""
    return pool_put(g, index, size=x.shape[2:], **attrs), None


def _check_max_grad(g: Value, x: Value, k: Shape, stride: Shape, padding: Shape) -> None:
    k, stride, padding = pair(k, "k"), pair(stride, "stride"), pair(padding, "padding")
    shape = _pooled(x, k, stride, padding)
    want(g.shape == shape, f"g{list(shape)}, a cotangent of the result, and x[n, c, h, w]")


@fused(
    label="",
    family="reduction",
    samples=tuple(Sample(s.shapes[0], x, attrs=attrs) for s, (x, attrs) in zip(SPREAD, CASES, strict=True)),
    bad=(
        Bad(("f32[1, 1, 4, 4]", "f32[1, 1, 5, 5]"), "wanted g[1, 1, 3, 3], a cotangent of the result", WINDOW),
        Bad(("f32[1, 1, 4, 4]", "f32[1, 1, 5, 5]"), "padding: given [3, 3], wanted less than", WINDOW | {"padding": 3}),
    ),
    private=True,
    check=_check_max_grad,
)
def max_pool_2d_grad(
    g: Value, x: Value, k: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...] = (0, 0)
) -> Value:
    """The gradient of `max_pool_2d`: every window's g to its first maximum, overlapping windows add:
    f32[n, c, oh, ow], f32[n, c, h, w] -> f32[n, c, h, w]."""
    return pool_put(g, max_pool_2d_index(x, k, stride, padding), x.shape[2:], k, stride, padding)


# means ----------------------------------------------------------------------------------------------------------------
def _divisors(windows: Windows, count_include_pad: bool) -> Array:
    """Count the pixels of each window."""
    ones = windows.pad(np.ones((1, 1, *windows.size)), float(count_include_pad))
    total: Array = np.sum([ones[..., *at] for _, _, at in windows.taps()], axis=0)
    return total


def _averaged(x: Array, k: Pair, stride: Pair, padding: Pair, count_include_pad: bool) -> Array:
    windows = _windows(x.shape, k, stride, padding)
    padded = windows.pad(x)
    total: Array = np.sum([padded[..., *at] for _, _, at in windows.taps()], axis=0)
    return total / _divisors(windows, count_include_pad)


def _both(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Return the samples with and without the padding counted."""
    return tuple(
        Sample(*s.shapes, attrs={**s.attrs, "count_include_pad": count})
        for s in samples
        for count in ((False, True) if max(s.attrs["padding"]) else (False,))
    )


@op(
    numpy=_averaged,
    kernel=_kernel("avg_pool_2d.wgsl", avg_pool_form, lambda types, result: types[0].shape),
    samples=_both(SAMPLES),
    bad=BAD_WINDOWS,
    canonical=_pairs,
    follows=_by_image,
)
def avg_pool_2d(
    x: Value,
    k: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] = (0, 0),
    count_include_pad: bool = False,
) -> TensorType:
    """The mean of every window of k (one int or kh, kw), of its pixels inside the image or, with `count_include_pad`,
    of the zeros of the border too: f32[n, c, h, w] -> f32[n, c, oh, ow]."""
    return TensorType(_pooled(x, k, stride, padding))


@avg_pool_2d.vjp
def _(g: Value, out: Value, x: Value, **attrs: Any) -> Grads:
    """∂x[n] = Σ g[i] / count(i) over n = i · stride + j − padding"""
    return (avg_pool_2d_grad(g, size=x.shape[2:], **attrs),)


def _averaged_back(g: Array, size: Pair, k: Pair, stride: Pair, padding: Pair, count_include_pad: bool) -> Array:
    windows = _windows(size, k, stride, padding)
    out = windows.pad(np.zeros((*g.shape[:2], *size), g.dtype))
    for _, _, at in windows.taps():
        out[..., *at] += g / _divisors(windows, count_include_pad)
    return out[..., *windows.inside()]


@op(
    numpy=_averaged_back,
    kernel=_kernel("avg_pool_2d_grad.wgsl", avg_pool_grad_form, lambda types, result: result.shape),
    samples=_both(SPREAD),
    bad=BAD_SPREAD,
    kind="private",
    canonical=_pairs,
    follows=_by_image,
)
def avg_pool_2d_grad(
    g: Value,
    size: tuple[int, ...],
    k: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] = (0, 0),
    count_include_pad: bool = False,
) -> TensorType:
    """The gradient of `avg_pool_2d` to images of `size`: f32[n, c, oh, ow] -> f32[n, c, h, w]."""
    return TensorType(_spread(g, size, k, stride, padding))


@avg_pool_2d_grad.vjp
def _(g: Value, out: Value, own: Value, size: Pair, **attrs: Any) -> Grads:
    """∂own[i] = Σ g[n] / count(i) over n = i · stride + j − padding"""
    return (avg_pool_2d(g, **attrs),)


def _check_image(x: Value) -> None:
    want(is_image(x), "x[n, c, h, w]")


IMAGES = (Sample((2, 3, 4, 5)), Sample((1, 2, 1, 1)), Sample((3, 1, 9, 8)))
NOT_AN_IMAGE = (Bad(("f32[3, 4, 5]",), "given f32[3, 4, 5], wanted x[n, c, h, w]"),)


@fused(label="", family="reduction", samples=IMAGES, bad=NOT_AN_IMAGE, check=_check_image)
def global_avg_pool(x: Value) -> Value:
    """The mean of every channel: f32[n, c, h, w] -> f32[n, c]."""
    return x.mean((2, 3))


# repeating ------------------------------------------------------------------------------------------------------------
def _check_repeats(x: Value, sh: int, sw: int) -> None:
    _check_image(x)
    want(sh >= 1, "an int ≥ 1", sh, "sh")
    want(sw >= 1, "an int ≥ 1", sw, "sw")


@fused(
    label="",
    family="movement",
    samples=(
        Sample((2, 3, 4, 5), attrs={"sh": 2, "sw": 3}),
        Sample((1, 1, 1, 1), attrs={"sh": 4, "sw": 1}),
        Sample((1, 2, 3, 3), attrs={"sh": 1, "sw": 1}),
    ),
    bad=(
        Bad(("f32[3, 4, 5]",), "wanted x[n, c, h, w]", {"sh": 1, "sw": 1}),
        Bad(("f32[1, 3, 4, 5]",), "sh: given 0, wanted an int ≥ 1", {"sh": 0, "sw": 1}),
        Bad(("f32[1, 3, 4, 5]",), "sw: given -2, wanted an int ≥ 1", {"sh": 1, "sw": -2}),
    ),
    check=_check_repeats,
)
def upsample_nearest(x: Value, sh: int, sw: int) -> Value:
    """Every pixel as a block of sh x sw: f32[n, c, h, w] -> f32[n, c, h·sh, w·sw]."""
    n, c, h, w = x.shape
    return x.reshape((n, c, h, 1, w, 1)).broadcast_to((n, c, h, sh, w, sw)).reshape((n, c, h * sh, w * sw))


@fused(label="", family="movement", samples=IMAGES, bad=NOT_AN_IMAGE, check=_check_image)
def upsample_2x(x: Value) -> Value:
    """Every pixel as a block of 2 x 2: f32[n, c, h, w] -> f32[n, c, 2h, 2w]."""
    return upsample_nearest(x, 2, 2)
