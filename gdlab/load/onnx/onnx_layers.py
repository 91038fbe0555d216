"""ONNX ops that layers are made of: products, convolutions, pooling, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.load.convolutions import Border, SpatialWindow, averaged, convolved, highest, same_border, transposed
from gdlab.load.onnx.onnx_layout import broadcast, reshaped
from gdlab.load.onnx.tensor import OnnxCall, Table, Tensor, axis_of, fitted
from gdlab.load.shared import Malformed, Unsupported, common, product


# products -------------------------------------------------------------------------------------------------------------
def _matmul(call: OnnxCall) -> Tensor:
    a, b = call.tensor(0), call.tensor(1)
    x, y = call.number(0), call.number(1)
    if not a.shape or not b.shape:
        raise Malformed("operands", f"{list(a.shape)} and {list(b.shape)}", "rank 1 or more")
    x = x.reshape((1, *a.shape)) if len(a.shape) == 1 else x
    y = y.reshape((*b.shape, 1)) if len(b.shape) == 1 else y
    out = product(x, y)
    shape = [*out.shape[:-2]]
    shape += [] if len(a.shape) == 1 else [out.shape[-2]]
    shape += [] if len(b.shape) == 1 else [out.shape[-1]]
    return fitted(out, tuple(shape), a.kind)


_GEMM: dict[tuple[bool, bool], Callable[[Value, Value], Value]] = {
    (False, False): ops.matmul, (False, True): ops.matmul_bt, (True, False): ops.matmul_at,
    (True, True): lambda a, b: ops.transpose(ops.matmul(b, a)),
}  # fmt: skip


def _gemm(call: OnnxCall) -> Tensor:
    a, b, c = call.number(0), call.number(1), call.optional(2)
    alpha, beta = call.real("alpha", 1.0), call.real("beta", 1.0)
    out = _GEMM[bool(call.integer("transA")), bool(call.integer("transB"))](a, b)
    out = out if alpha == 1 else out * alpha
    if c is None or beta == 0:
        return fitted(out, out.shape)
    addend = call.number(2) if beta == 1 else call.number(2) * beta
    if addend.shape in (out.shape[1:], (1, *out.shape[1:])) and out.shape[1] > 1:
        bias = addend if addend.shape == out.shape[1:] else addend.reshape(out.shape[1:])
        return fitted(ops.bias_add(out, bias), out.shape)
    if common(addend.shape, out.shape) != out.shape:
        raise Malformed("C", addend.type, f"a shape that broadcasts to {list(out.shape)}")
    return fitted(out + addend, out.shape)


# windows --------------------------------------------------------------------------------------------------------------
def _spatial(call: OnnxCall, name: str, rank: int, default: int) -> Shape:
    """Return an attribute with one int ≥ 1 per spatial axis."""
    given = call.integers(name)
    if given is not None and (len(given) != rank or min(given) < 1):
        raise Malformed(name, list(given), f"{rank} ints ≥ 1")
    return (default,) * rank if given is None else given


def image_rank(call: OnnxCall) -> int:
    """Return the number of spatial axes of operand 0: 1 or 2."""
    rank = len(call.tensor(0).shape) - 2
    if rank not in (1, 2):
        raise Unsupported(f"{max(rank, 0)} spatial axes, where 1 or 2 are taken")
    return rank


def window_of(call: OnnxCall, size: Shape) -> SpatialWindow:
    rank, extents = len(size), call.tensor(0).shape[2:]
    stride, dilation = _spatial(call, "strides", rank, 1), _spatial(call, "dilations", rank, 1)
    pads = call.integers("pads") or (0,) * (2 * rank)
    if len(pads) != 2 * rank or min(pads) < 0:
        raise Malformed("pads", list(pads), f"{2 * rank} ints ≥ 0")
    given: Border = tuple(zip(pads[:rank], pads[rank:], strict=True))
    border = {
        "NOTSET": given, "VALID": ((0, 0),) * rank,
        "SAME_UPPER": same_border(extents, size, stride, dilation, True),
        "SAME_LOWER": same_border(extents, size, stride, dilation, False),
    }.get(call.text("auto_pad", "NOTSET"))  # fmt: skip
    if border is None:
        raise Malformed("auto_pad", repr(call.text("auto_pad")), "NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    window = SpatialWindow(size, stride, dilation, border, bool(call.integer("ceil_mode")))
    for axis, n in enumerate(extents):
        if n + sum(border[axis]) < window.reach(axis):
            raise Malformed("kernel_shape", list(size), f"a window that {list(extents)} with its border holds")
    return window


def kernel_size(call: OnnxCall, kernel: int = 1) -> Shape:
    """Return the extents of a convolution's kernel, an operand, which an attribute may repeat."""
    shape, given = call.tensor(kernel).shape, call.integers("kernel_shape")
    if len(shape) != len(call.tensor(0).shape) or given not in (None, shape[2:]):
        raise Malformed("kernel_shape", given, f"that of W, {list(shape)}")
    return shape[2:]


def _bias(call: OnnxCall) -> Value | None:
    return None if call.optional(2) is None else call.number(2)


def _conv(call: OnnxCall) -> Tensor:
    image_rank(call)
    window = window_of(call, kernel_size(call))
    out = convolved(call.number(0), call.number(1), _bias(call), window, call.integer("group", 1))
    return fitted(out, out.shape)


def _conv_transpose(call: OnnxCall) -> Tensor:
    rank, size = image_rank(call), kernel_size(call)
    more = call.integers("output_padding") or (0,) * rank
    if len(more) != rank or min(more) < 0:
        raise Malformed("output_padding", list(more), f"{rank} ints ≥ 0")
    window = SpatialWindow(
        size, _spatial(call, "strides", rank, 1), _spatial(call, "dilations", rank, 1), ((0, 0),) * rank
    )
    window = replace(window, border=_cut_border(call, window, more))
    out = transposed(call.number(0), call.number(1), _bias(call), window, call.integer("group", 1), more)
    return fitted(out, out.shape)


def _cut_border(call: OnnxCall, window: SpatialWindow, more: Shape) -> Border:
    """Return the elements that a transposed convolution leaves out at both ends: as given, or to get the given shape.
    """
    rank, auto = len(window.size), call.text("auto_pad", "NOTSET")
    extents, wanted = call.tensor(0).shape[2:], call.integers("output_shape")
    if wanted is None and auto.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(extents, window.stride, strict=True))
    if wanted is None:
        pads = (0,) * (2 * rank) if auto == "VALID" else call.integers("pads") or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise Malformed("pads", list(pads), f"{2 * rank} ints")
        return tuple(zip(pads[:rank], pads[rank:], strict=True))
    if len(wanted) != rank:
        raise Malformed("output_shape", list(wanted), f"{rank} extents")
    border = []
    for axis, n in enumerate(extents):
        spare = (n - 1) * window.stride[axis] + window.reach(axis) + more[axis] - wanted[axis]
        half = spare // 2
        border.append((half, spare - half) if auto == "SAME_UPPER" else (spare - half, half))
    return tuple(border)


def pool_window(call: OnnxCall) -> SpatialWindow:
    size = call.integers("kernel_shape")
    if size is None or len(size) != image_rank(call) or min(size) < 1:
        raise Malformed("kernel_shape", size, f"{image_rank(call)} ints ≥ 1")
    return window_of(call, size)


def _max_pool(call: OnnxCall) -> Tensor:
    call.only_output("Y")
    out = highest(call.number(0), pool_window(call))
    return fitted(out, out.shape)


def _average_pool(call: OnnxCall) -> Tensor:
    window = pool_window(call)
    out = averaged(call.number(0), window, bool(call.integer("count_include_pad")))
    return fitted(out, out.shape)


def _global(make: Callable[[Value, Shape, bool], Value]) -> Callable[[OnnxCall], Tensor]:
    def translate(call: OnnxCall) -> Tensor:
        x, rank = call.number(0), len(call.tensor(0).shape)
        if rank < 3:
            raise Malformed("X", list(call.tensor(0).shape), "[n, c, …]")
        out = make(x, tuple(range(2, rank)), True)
        return fitted(out, out.shape)

    return translate


# norms ----------------------------------------------------------------------------------------------------------------
def _row(call: OnnxCall, i: int, shape: Shape) -> Value | None:
    """Return the weights over the normalized axes as one row; None if they are left out."""
    t = call.optional(i)
    if t is None:
        return None
    whole = t if t.shape == shape else broadcast(call.home, t, shape)
    return call.home.number(reshaped(call.home, whole, (math.prod(shape),)))


def _rows(call: OnnxCall) -> tuple[Value, Shape]:
    """Return operand 0 with all axes from `axis` on as one, and their extents."""
    x, shape = call.number(0), call.tensor(0).shape
    axis = axis_of(call.integer("axis", -1), len(shape))
    inner = shape[axis:]
    return (x if len(inner) == 1 else x.reshape((*shape[:axis], math.prod(inner)))), inner


def _layer_norm(call: OnnxCall) -> Sequence[Tensor]:
    """Return a layer norm, with the outputs Mean and InvStdDev if they are asked for."""
    x, inner = _rows(call)
    w, b = _row(call, 1, inner), _row(call, 2, inner)
    width = math.prod(inner)
    w, b = ops.full((width,), 1.0) if w is None else w, ops.zeros((width,)) if b is None else b
    eps, shape = call.real("epsilon", 1e-5), call.tensor(0).shape
    found = [fitted(ops.layer_norm(x, w, b, eps), shape)]
    if any(call.node.outputs[1:]):
        mean, lined = ops.mean(x, (-1,), True), (*shape[: len(shape) - len(inner)], *(1,) * len(inner))
        spread = ops.mean(ops.square(x - mean), (-1,), True)
        found += [fitted(mean, lined), fitted(ops.rsqrt(spread + eps), lined)]
    return found


def _rms_norm(call: OnnxCall) -> Tensor:
    x, inner = _rows(call)
    w = _row(call, 1, inner)
    w = ops.full((math.prod(inner),), 1.0) if w is None else w
    return fitted(ops.rms_norm(x, w, call.real("epsilon", 1e-5)), call.tensor(0).shape)


def _group_norm(call: OnnxCall) -> Tensor:
    x, groups = call.tensor(0), call.integer("num_groups")
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise Malformed("num_groups", groups, f"a divisor of the channels of {list(x.shape)}")
    rows = []
    for i in (1, 2):
        t = call.tensor(i)
        if call.opset < 21 and t.shape == (groups,):  # one number per group
            t = broadcast(call.home, reshaped(call.home, t, (groups, 1)), (groups, x.shape[1] // groups))
            t = reshaped(call.home, t, (x.shape[1],))
        rows.append(call.home.number(t))
    return fitted(ops.group_norm(call.number(0), *rows, groups, call.real("epsilon", 1e-5)), x.shape)


def _instance_norm(call: OnnxCall) -> Tensor:
    x = call.tensor(0)
    out = ops.group_norm(*(call.number(i) for i in range(3)), x.shape[1], call.real("epsilon", 1e-5))
    return fitted(out, x.shape)


def _batch_norm(call: OnnxCall) -> Tensor:
    """Return γ (x − mean) / √(variance + ε) + β as x · factor + offset. Both are computed here where all four are
    known, and are parameters that carry the names of γ and β with `.folded` behind them."""
    call.only_output("Y")
    if call.integer("training_mode") or (call.opset < 7 and not call.integer("is_test")):
        raise Unsupported("training_mode=1" if call.opset >= 7 else "is_test=0")
    x, eps = call.tensor(0), call.real("epsilon", 1e-5)
    given = [call.tensor(i) for i in range(1, 5)]
    if len(x.shape) < 2 or any(t.shape != x.shape[1:2] for t in given):
        raise Malformed("operands", [list(t.shape) for t in given], f"one number per channel of {list(x.shape)}")
    factor, offset = _folded_norm(call, given, eps)
    image = call.number(0)
    lined = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    scaled = image * factor.reshape(lined)
    if len(x.shape) == 4:
        return fitted(ops.add_per_channel(scaled, offset), x.shape)
    return fitted(scaled + offset.reshape(lined), x.shape)


def _folded_norm(call: OnnxCall, given: Sequence[Tensor], eps: float) -> tuple[Value, Value]:
    if any(t.array is None for t in given):
        gamma, beta, mean, variance = (call.home.number(t) for t in given)
        factor = gamma * ops.rsqrt(variance + eps)
        return factor, beta - mean * factor
    with np.errstate(all="ignore"):  # a damaged variance
        scale, shift, centre, spread = (np.asarray(t.array, np.float64) for t in given)
        scale = scale / np.sqrt(spread + eps)
        shift = shift - centre * scale
    named = zip(given, ("scale", "shift"), (scale, shift), strict=False)
    made = [call.home.fresh(f"{t.parameter or f'{call.node.outputs[0]}.{kind}'}.folded", a) for t, kind, a in named]
    return made[0], made[1]


LAYERS: Table = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "AveragePool": _average_pool, "GlobalAveragePool": _global(ops.mean), "GlobalMaxPool": _global(ops.max),
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm, "SimplifiedLayerNormalization": _rms_norm,
    "GroupNormalization": _group_norm, "InstanceNormalization": _instance_norm, "BatchNormalization": _batch_norm,
}  # fmt: skip
