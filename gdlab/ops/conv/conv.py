"""Convolution of images [n, channels, h, w]: forward, its two gradients, transposed, depthwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape, TensorType
from gdlab.graph import Value
from gdlab.op import Bad, Call, Grads, Sample, Verdict, along, fused, op, want
from gdlab.ops.conv.conv_work import (
    OPERANDS,
    Conv,
    canonical_pairs,
    checked,
    conv_of,
    forward_kernel,
    input_kernel,
    weight_kernel,
)
from gdlab.ops.conv.windows import Pair, is_image


# forward and gradients ------------------------------------------------------------------------------------------------
def _convolved(x: Array, k: Array, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    conv = checked(x.shape, k.shape, stride, padding, dilation, groups)
    padded, out = conv.windows.pad(x), np.zeros(conv.shapes[2], x.dtype)
    for i, j, at in conv.windows.taps():
        for own, other in _blocks(conv):
            out[:, own] += np.einsum("nchw,oc->nohw", padded[:, other][..., *at], k[own, :, i, j])
    return out


def _blocks(conv: Conv) -> list[tuple[slice, slice]]:
    """Return the output and input channels of each group."""
    out, inside = conv.co // conv.groups, conv.ci // conv.groups
    return [(slice(g * out, (g + 1) * out), slice(g * inside, (g + 1) * inside)) for g in range(conv.groups)]


def _attrs(stride: Pair = (1, 1), padding: Pair = (0, 0), dilation: Pair = (1, 1), groups: int = 1) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


# x, k and attributes; n > 1 with one by one kernels, odd sizes, extents 1, windows as large as the image
CASES: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 5, 4), (4, 3, 1, 1), _attrs()),
    ((2, 3, 7, 5), (5, 3, 3, 2), _attrs((2, 1), (1, 2))),
    ((1, 4, 6, 7), (6, 2, 2, 3), _attrs((1, 2), (2, 0), (2, 3), 2)),
    ((2, 2, 9, 8), (4, 1, 3, 3), _attrs((3, 2), (2, 3), (2, 2), 2)),
    ((1, 1, 1, 1), (1, 1, 1, 1), _attrs()),
    ((2, 2, 3, 4), (3, 2, 3, 4), _attrs()),
    ((1, 5, 1, 9), (9, 5, 1, 4), _attrs((1, 1), (0, 1))),
    ((3, 17, 4, 4), (33, 17, 3, 3), _attrs((1, 1), (1, 1))),
    ((2, 5, 6, 6), (5, 1, 3, 3), _attrs((1, 1), (1, 1), (1, 1), 5)),
    ((1, 70, 2, 2), (3, 70, 2, 2), _attrs()),
)
BAD_CONV = (
    Bad(("f32[2, 3, 5]", "f32[4, 3, 1, 1]"), "given f32[2, 3, 5] and f32[4, 3, 1, 1], wanted " + OPERANDS),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 2, 3, 3]"), "given x[2, 3, 5, 5] and k[4, 2, 3, 3] with groups=1, wanted"),
    Bad(("f32[2, 4, 5, 5]", "f32[3, 2, 3, 3]"), "ci and co multiples of groups", {"groups": 2}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 1, 3, 3]"), "ci and co multiples of groups", {"groups": 2}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "groups: given 0, wanted an int ≥ 1", {"groups": 0}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "stride: given [0, 0], wanted ints ≥ 1", {"stride": 0}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "padding: given [-1, -1], wanted ints ≥ 0", {"padding": -1}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "dilation: given [0, 0], wanted ints ≥ 1", {"dilation": 0}),
    Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "given a window of 9 x 9 in an image of 7 x 7, padding included, "
        "wanted an image that holds the window", {"dilation": 4, "padding": 1}),
    Bad(("u32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "wanted f32 operands"),
)  # fmt: skip


# extent rules: the axes of pixels and taps are windows; channels in groups are cut
def _channels(call: Call, label: str) -> str | None:
    return label if call.attrs["groups"] == 1 else None


def _forward(call: Call) -> Verdict:
    ci, co = _channels(call, "ci"), _channels(call, "co")
    labels = [("n", ci, None, None), (co, ci, None, None)]
    return along(call, labels, ("n", co, None, None), mixes={"ci": 0.0})


def _to_images(call: Call) -> Verdict:
    ci, co = _channels(call, "ci"), _channels(call, "co")
    labels = [("n", co, None, None), (co, ci, None, None)]
    return along(call, labels, ("n", ci, None, None), mixes={"co": 0.0})


def _to_weights(call: Call) -> Verdict:
    ci, co = _channels(call, "ci"), _channels(call, "co")
    labels = [("n", co, None, None), ("n", ci, None, None)]
    return along(call, labels, (co, ci, None, None), mixes={"n": 0.0})


@op(
    numpy=_convolved,
    kernel=forward_kernel(),
    family="contraction",
    samples=tuple(Sample(x, k, attrs=attrs) for x, k, attrs in CASES),
    bad=(*BAD_CONV, Bad(("f32[1, 1, 5, 5]", "f32[1, 1, 3, 3]"), "stride: given [1, 1, 1], wanted one int, or one along "
                        "h and one along w", {"stride": (1, 1, 1)})),
    canonical=canonical_pairs,
    follows=_forward,
)  # fmt: skip
def conv2d_hw(
    x: Value,
    k: Value,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> TensorType:
    """`conv2d` with stride, padding and dilation as pairs (along h, along w):
    f32[n, ci, h, w], f32[co, ci/groups, kh, kw] -> f32[n, co, oh, ow]."""
    want(is_image(x, k), OPERANDS)
    return TensorType(checked(x.shape, k.shape, stride, padding, dilation, groups).shapes[2])  # type: ignore[arg-type]


@conv2d_hw.vjp
def _(g: Value, out: Value, x: Value, k: Value, **attrs: Any) -> Grads:
    """∂x[n] = Σ g[i] · k[j],  ∂k[j] = Σ g[i] · x[n] with n = i · stride + j · dilation − padding"""
    return (
        lambda: conv2d_grad_input(g, k, size=x.shape[2:], **attrs),
        lambda: conv2d_grad_weight(g, x, size=k.shape[2:], **attrs),
    )


def _input_gradient(g: Array, k: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    shape = (g.shape[0], k.shape[1] * groups, *size)
    conv = checked(shape, k.shape, stride, padding, dilation, groups)
    padded = conv.windows.pad(np.zeros(shape, g.dtype))
    for i, j, at in conv.windows.taps():
        for own, other in _blocks(conv):
            padded[:, other][..., *at] += np.einsum("nohw,oc->nchw", g[:, own], k[own, :, i, j])
    return padded[..., *conv.windows.inside()]


BAD_INPUT = (
    Bad(("f32[2, 4, 5, 5]", "f32[3, 2, 3, 3]"), "wanted g[2, 3, 5, 5], a cotangent of the result",
        {"size": 7}),
    Bad(("f32[2, 4, 5]", "f32[3, 2, 3, 3]"), "wanted g[n, co, oh, ow] and k[co, ci/groups, kh, kw]", {"size": 7}),
    Bad(("f32[2, 3, 5, 5]", "f32[3, 2, 3, 3]"), "wanted g[2, 3, 4, 4], a cotangent", {"size": 6}),
    Bad(("f32[2, 3, 5, 5]", "f32[3, 2, 3, 3]"), "ci and co multiples of groups", {"size": 7, "groups": 2}),
    Bad(("f32[2, 3, 5, 5]", "f32[3, 2, 3, 3]"), "size: given [0, 7], wanted ints ≥ 1", {"size": (0, 7)}),
)  # fmt: skip


@op(
    numpy=_input_gradient,
    kernel=input_kernel(),
    family="contraction",
    samples=tuple(Sample(conv_of(x, k, attrs).shapes[2], k, attrs={**attrs, "size": x[2:]}) for x, k, attrs in CASES),
    bad=BAD_INPUT,
    canonical=canonical_pairs,
    follows=_to_images,
)
def conv2d_grad_input(
    g: Value,
    k: Value,
    size: tuple[int, ...],
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> TensorType:
    """The gradient of `conv2d_hw` to images of `size` (h, w), where g is the cotangent of its result:
    f32[n, co, oh, ow], f32[co, ci/groups, kh, kw] -> f32[n, ci, h, w]."""
    want(is_image(g, k), "g[n, co, oh, ow] and k[co, ci/groups, kh, kw]")
    want(min(size) >= 1, "ints ≥ 1", list(size), "size")
    want(groups >= 1, "an int ≥ 1", groups, "groups")
    shape = (g.shape[0], k.shape[1] * groups, *size)
    conv = checked(shape, k.shape, stride, padding, dilation, groups)  # type: ignore[arg-type]
    _fits(g, conv)
    return TensorType(shape)


def _fits(g: Value, conv: Conv) -> None:
    want(g.shape == conv.shapes[2], f"g{list(conv.shapes[2])}, a cotangent of the result")


@conv2d_grad_input.vjp
def _(g: Value, out: Value, own: Value, k: Value, size: Pair, **attrs: Any) -> Grads:
    """∂own[i] = Σ g[n] · k[j],  ∂k[j] = Σ own[i] · g[n] with n = i · stride + j · dilation − padding"""
    return (
        lambda: conv2d_hw(g, k, **attrs),
        lambda: conv2d_grad_weight(own, g, size=k.shape[2:], **attrs),
    )


def _weight_gradient(g: Array, x: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    shape = (g.shape[1], x.shape[1] // groups, *size)
    conv = checked(x.shape, shape, stride, padding, dilation, groups)
    padded, out = conv.windows.pad(x), np.zeros(shape, x.dtype)
    for i, j, at in conv.windows.taps():
        for own, other in _blocks(conv):
            out[own, :, i, j] = np.einsum("nohw,nchw->oc", g[:, own], padded[:, other][..., *at])
    return out


BAD_WEIGHT = (
    Bad(("f32[2, 4, 5, 5]", "f32[2, 3, 7]"), "wanted g[n, co, oh, ow] and x[n, ci, h, w]", {"size": 3}),
    Bad(("f32[2, 4, 5, 5]", "f32[2, 3, 6, 6]"), "wanted g[2, 4, 4, 4], a cotangent of the result", {"size": 3}),
    Bad(("f32[2, 4, 5, 5]", "f32[2, 3, 7, 7]"), "ci and co multiples of groups", {"size": 3, "groups": 2}),
    Bad(("f32[2, 4, 5, 5]", "f32[2, 3, 7, 7]"), "size: given [3, 0], wanted ints ≥ 1", {"size": (3, 0)}),
)


@op(
    numpy=_weight_gradient,
    kernel=weight_kernel(),
    family="contraction",
    samples=(
        *(Sample(conv_of(x, k, attrs).shapes[2], x, attrs={**attrs, "size": k[2:]}) for x, k, attrs in CASES),
        Sample((2, 1, 180, 181), (2, 2, 180, 182), attrs=_attrs() | {"size": (1, 2)}),  # steps beyond a loop's limit
    ),
    bad=BAD_WEIGHT,
    canonical=canonical_pairs,
    follows=_to_weights,
)
def conv2d_grad_weight(
    g: Value,
    x: Value,
    size: tuple[int, ...],
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> TensorType:
    """The gradient of `conv2d_hw` to kernels of `size` (kh, kw), where g is the cotangent of its result:
    f32[n, co, oh, ow], f32[n, ci, h, w] -> f32[co, ci/groups, kh, kw]."""
    want(is_image(g, x), "g[n, co, oh, ow] and x[n, ci, h, w]")
    want(min(size) >= 1, "ints ≥ 1", list(size), "size")
    want(groups >= 1, "an int ≥ 1", groups, "groups")
    shape = (g.shape[1], x.shape[1] // groups, *size)
    conv = checked(x.shape, shape, stride, padding, dilation, groups)  # type: ignore[arg-type]
    _fits(g, conv)
    return TensorType(shape)


@conv2d_grad_weight.vjp
def _(g: Value, out: Value, own: Value, x: Value, size: Pair, **attrs: Any) -> Grads:
    """∂own[i] = Σ x[n] · g[j],  ∂x[n] = Σ own[i] · g[j] with n = i · stride + j · dilation − padding"""
    return (
        lambda: conv2d_hw(x, g, **attrs),
        lambda: conv2d_grad_input(own, g, size=x.shape[2:], **attrs),
    )


# other spellings ------------------------------------------------------------------------------------------------------
def _check_square(x: Value, k: Value, stride: int, padding: int, dilation: int, groups: int) -> None:
    want(is_image(x, k), OPERANDS)
    checked(x.shape, k.shape, (stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)


@fused(
    label="",
    family="contraction",
    samples=(
        Sample((2, 3, 5, 5), (4, 3, 3, 3), attrs={"stride": 2, "padding": 1}),
        Sample((1, 4, 6, 5), (6, 2, 2, 2), attrs={"dilation": 2, "groups": 2, "padding": 3}),
        Sample((3, 2, 2, 3), (5, 2, 1, 1)),
        Sample((1, 1, 3, 3), (1, 1, 3, 3), values=(np.arange(9.0).reshape(1, 1, 3, 3), None)),
    ),
    bad=BAD_CONV,
    check=_check_square,
)
def conv2d(x: Value, k: Value, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Value:
    """Cross-correlation with zero padding: f32[n, ci, h, w], f32[co, ci/groups, kh, kw] -> f32[n, co, oh, ow], where
    oh = (h + 2·padding − dilation·(kh − 1) − 1) // stride + 1. Kernels hold no patches: they gather them as they go."""
    return conv2d_hw(x, k, (stride,), (padding,), (dilation,), groups)


def _check_depthwise(x: Value, k: Value, stride: int, padding: int, dilation: int) -> None:
    wanted = "x[n, c, h, w] and k[c, 1, kh, kw]"
    want(is_image(x, k) and k.shape[:2] == (x.shape[1], 1), wanted)
    checked(x.shape, k.shape, (stride,) * 2, (padding,) * 2, (dilation,) * 2, x.shape[1])


@fused(
    label="",
    family="contraction",
    samples=(
        Sample((2, 3, 5, 4), (3, 1, 3, 3), attrs={"padding": 1}),
        Sample((1, 5, 6, 7), (5, 1, 2, 3), attrs={"stride": 2, "dilation": 2}),
        Sample((2, 1, 1, 1), (1, 1, 1, 1)),
    ),
    bad=(
        Bad(("f32[2, 3, 5, 5]", "f32[4, 1, 3, 3]"), "conv2d_dw: operands: given f32[2, 3, 5, 5] and f32[4, 1, 3, 3], "
            "wanted x[n, c, h, w] and k[c, 1, kh, kw]"),
        Bad(("f32[2, 3, 5, 5]", "f32[3, 1, 6, 3]"), "wanted an image that holds the window"),
    ),
    check=_check_depthwise,
)  # fmt: skip
def conv2d_dw(x: Value, k: Value, stride: int = 1, padding: int = 0, dilation: int = 1) -> Value:
    """Every channel with a kernel of its own: f32[n, c, h, w], f32[c, 1, kh, kw] -> f32[n, c, oh, ow]."""
    return conv2d(x, k, stride, padding, dilation, x.shape[1])


def _check_transposed(x: Value, k: Value, stride: int, padding: int) -> None:
    want(is_image(x, k) and x.shape[1] == k.shape[0], "x[n, ci, h, w] and k[ci, co, kh, kw]")
    want(stride >= 1, "an int ≥ 1", stride, "stride")
    want(padding >= 0, "an int ≥ 0", padding, "padding")
    size = _grown(x, k, stride, padding)
    want(min(size) >= 1, "a result of at least 1 x 1", f"{size[0]} x {size[1]}", "shape")


def _grown(x: Value, k: Value, stride: int, padding: int) -> Pair:
    h, w = ((n - 1) * stride - 2 * padding + m for n, m in zip(x.shape[2:], k.shape[2:], strict=True))
    return h, w


@fused(
    label="",
    family="contraction",
    samples=(
        Sample((2, 3, 4, 5), (3, 4, 3, 3), attrs={"stride": 2, "padding": 1}),
        Sample((1, 2, 1, 3), (2, 1, 2, 4)),
        Sample((1, 1, 1, 1), (1, 1, 1, 1), attrs={"stride": 3}),
    ),
    bad=(
        Bad(("f32[2, 3, 5, 5]", "f32[4, 3, 3, 3]"), "wanted x[n, ci, h, w] and k[ci, co, kh, kw]"),
        Bad(("f32[2, 3, 1, 5]", "f32[3, 3, 2, 3]"), "shape: given 0 x 5, wanted a result of at least 1 x 1",
            {"padding": 1}),
        Bad(("f32[2, 3, 1, 5]", "f32[3, 3, 2, 3]"), "stride: given 0, wanted an int ≥ 1", {"stride": 0}),
        Bad(("f32[2, 3, 1, 5]", "f32[3, 3, 2, 3]"), "padding: given -1, wanted an int ≥ 0", {"padding": -1}),
    ),
    check=_check_transposed,
)  # fmt: skip
def conv_transpose_2d(x: Value, k: Value, stride: int = 1, padding: int = 0) -> Value:
    """The gradient of `conv2d` applied to a cotangent x: f32[n, ci, h, w], f32[ci, co, kh, kw] -> f32[n, co, oh, ow],
    where oh = (h − 1)·stride − 2·padding + kh."""
    return conv2d_grad_input(x, k, _grown(x, k, stride, padding), (stride,), (padding,))
