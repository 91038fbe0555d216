"""Softmax, its logarithm and normalization over the last axis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gdlab.base.types import Array, TensorType
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Grads,
    Sample,
    Shader,
    Statistic,
    Verdict,
    Work,
    WorkRule,
    along,
    by_rows,
    fused,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants, NumpyForm
from gdlab.ops.elementwise import to_row

WIDTHS = tuple(Sample((3, n), low=-4, high=4) for n in (1, 2, 3, 5, 64, 257, 50257))
ROWS = (*WIDTHS, Sample((2, 2, 5)), Sample((7,)), Sample((2, 3), values=([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]],)))
LOST = Sample((2, 3), values=([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 1.0]],), kink=True)
NOT_F32 = (Bad(("u32[3, 5]",), "given u32[3, 5], wanted f32 operands"),)


# kernels over rows ----------------------------------------------------------------------------------------------------
REGISTERS = 32  # fours of a row that one invocation keeps
MOST_FOURS = 1 << 16  # of a row that eight invocations walk: a software adapter counts their loop trips


def _row_work(passes: int, in_registers: bool) -> WorkRule:
    """Return the work of a kernel over rows, with the op's `eps` as a constant. `in_registers`: for rows that the
    registers of 256 invocations hold, in EACH fours per invocation."""
    plain = by_rows(passes)

    def rule(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work | None:
        work, width = plain(types, result, attrs), result.shape[-1]
        assert work is not None  # rows fit everything
        constants = dict(work.constants)
        if in_registers:
            quads = width // 4
            if width % 4 or quads > REGISTERS * 256:
                return None
            constants |= {"QUADS": quads, "EACH": min(4, quads) if quads <= 1024 else -(-quads // 256)}
        if "eps" in attrs:
            constants["EPS"] = attrs["eps"]
        return Work(work.units, work.length, constants, work.flops)

    return rule


def row_kernel(
    name: str,
    passes: int,
    form: NumpyForm,
    fours: bool = False,
    statistics: tuple[Statistic, ...] = (),
    calls: str = "",
    fours_call: str = "",
    as_read: bool = False,
) -> Shader:
    """Return the kernel `{name}.wgsl`, with the file that it `calls`; on hardware `{name}_rows.wgsl`, which keeps rows
    in registers; with `fours`, `{name}_fours.wgsl` on software adapters, with the file that those call. What they store
    besides: `statistics`."""
    rows = Shader(f"{name}_rows.wgsl", _row_work(passes, True), in_bounds=True, each_once=True)
    by_four = Shader(_files(f"{name}_fours", fours_call), _fours_work(passes), in_bounds=True) if fours else None
    work = _row_work(passes, False)
    return Shader(
        _files(name, calls), work, rows, fours=by_four, in_bounds=True, numpy_form=form, statistics=statistics,
        as_read=as_read,
    )  # fmt: skip


def _files(name: str, calls: str) -> str:
    return f"{name}.wgsl + {calls}" if calls else f"{name}.wgsl"


def _fours_work(passes: int) -> WorkRule:
    """Return the work of a kernel over rows of QUADS vec4s; None where a row does not end with one."""
    plain = _row_work(passes, False)

    def rule(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work | None:
        work, width = plain(types, result, attrs), result.shape[-1]
        assert work is not None  # rows fit everything
        if width % 4 or width > MOST_FOURS * 4:
            return None
        return Work(work.units, work.length, {**work.constants, "QUADS": width // 4}, work.flops)

    return rule


# softmax --------------------------------------------------------------------------------------------------------------
SOFTMAX_ROW = "softmax_row.wgsl"  # the maximum of a row, and the sum of its powers


def _softmax(x: Array) -> Array:
    powers: Array = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = np.sum(powers, axis=-1, keepdims=True)
    return powers / total


def shifted_powers(builder: KernelBuilder, x: Array, out: Array) -> tuple[Array, Array]:
    """Write x − max to `out`; then e to that, and its sum per row."""
    powers, column = builder.temporary(x.shape), builder.temporary((x.shape[0], 1))
    builder.row_maxima(x, column)
    builder.call(np.subtract, x, column, out)
    builder.calls.append((np.exp, (out, powers)))
    builder.row_sums(powers, column)
    return powers, column


def _softmax_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out = builder.out(shape)
    powers, total = shifted_powers(builder, builder.operand(0, shape), out)
    builder.call(np.divide, powers, total, out)


def _softmax_kernel(name: str, form: NumpyForm) -> Shader:
    return row_kernel(name, 5, form, fours=True, calls=SOFTMAX_ROW, fours_call="softmax_row_fours.wgsl")


def _shares(call: Call) -> Verdict:
    """Keep bucket axes: each row is divided among the active entries of its last axis."""
    labels = range(-call.result.rank, 0)
    return along(call, [labels], labels, mixes={-1: -np.inf})


@op(
    numpy=_softmax,
    kernel=_softmax_kernel("softmax", _softmax_form),
    samples=(*ROWS, LOST),
    bad=NOT_F32,
    follows=_shares,
)
def softmax(x: Value) -> TensorType:
    """e^(x − max) over its sum along the last axis: f32[..., n] -> f32[..., n]; a row of −inf gives NaN."""
    return x.type


@softmax.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = out · (g − Σ g · out)"""
    return (out * (g - (g * out).sum_inner()),)


def _log_softmax(x: Array) -> Array:
    shifted: Array = x - np.max(x, axis=-1, keepdims=True)
    total: Array = np.sum(np.exp(shifted), axis=-1, keepdims=True)
    return shifted - np.log(total)


def logarithms_of_rows(builder: KernelBuilder, x: Array, out: Array) -> None:
    """Write x − max − ln Σ e^(x − max) of each row to `out`."""
    _, total = shifted_powers(builder, x, out)
    builder.calls.append((np.log, (total, total)))
    builder.call(np.subtract, out, total, out)


def _log_softmax_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    logarithms_of_rows(builder, builder.operand(0, shape), builder.out(shape))


@op(
    numpy=_log_softmax,
    kernel=_softmax_kernel("log_softmax", _log_softmax_form),
    samples=(*ROWS, LOST),
    bad=NOT_F32,
    follows=_shares,
)
def log_softmax(x: Value) -> TensorType:
    """x − max − ln Σ e^(x − max) along the last axis, never the logarithm of a softmax: f32[..., n] -> f32[..., n]."""
    return x.type


@log_softmax.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g − exp(out) · Σ g"""
    return (g - out.exp() * g.sum_inner(),)


# normalization --------------------------------------------------------------------------------------------------------
EPS = 1e-5
RMS_ROW, LAYER_ROW = "rms_row.wgsl", "layer_row.wgsl"  # the statistics of a row
SIZES = ((1, 5), (2, 3), (3, 64), (4, 257), (5, 2), (2, 50257), (2, 2, 5), (7,))


def _norm_samples(weights: int) -> tuple[Sample, ...]:
    """Return samples: x with this many rows of weights; a column alone, a row of equal elements, a row of zeros."""
    sizes = tuple(Sample(shape, *[shape[-1:]] * weights, attrs={"eps": EPS}) for shape in SIZES)
    column = Sample((3, 1), *[(1,)] * weights, attrs={"eps": 0.5})
    rows = ([[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [100.0, 101.0, 102.0]], *[None] * weights)
    return (*sizes, column, Sample((3, 3), *[(3,)] * weights, attrs={"eps": 0.25}, values=rows))


def _norm_bad(weights: int, wanted: str) -> tuple[Bad, ...]:
    row, wrong, eps = ("f32[5]",) * (weights - 1), "given f32[3, 5] and ", {"eps": EPS}
    return (
        Bad(("f32[3, 5]", *row, "f32[3]"), wanted, eps),
        Bad(("f32[3, 5]", *row, "f32[1, 5]"), wrong, eps),
        Bad(("f32[3, 5]", *row, "f32[5]"), "eps: given 0.0, wanted a number above 0", {"eps": 0.0}),
        Bad(("f32[3, 5]", *row, "f32[5]"), "eps: given nan, wanted a finite number", {"eps": float("nan")}),
    )


def _row_each(wanted: str, eps: float, x: Value, *weights: Value) -> None:
    want(all(w.shape == x.shape[-1:] for w in weights), wanted)
    want(eps > 0, "a number above 0", eps, "eps")


def _over_rows(h: Value, unit: Value, size: Value) -> Value:
    """Return the gradient of a row from the cotangent h of its unit form: size · (h − unit · mean(h · unit))."""
    return size * (h - unit * (h * unit).mean_inner())


def _grad_samples(weights: int) -> tuple[Sample, ...]:
    """Return samples of g and x of equal shape, with this many rows of weights."""
    return tuple(Sample(s, s, *[s[-1:]] * weights, attrs={"eps": EPS}) for s in ((1, 5), (3, 64), (2, 257), (2, 2, 5)))


def _like(wanted: str, eps: float, g: Value, x: Value, *weights: Value) -> None:
    want(g.shape == x.shape, wanted)
    _row_each(wanted, eps, x, *weights)


def _centred_rows(builder: KernelBuilder, x: Array, out: Array, mean: Array | None = None) -> None:
    """Write x − mean to `out`, and the mean of each row to `mean`, if given."""
    mean = builder.temporary((x.shape[0], 1)) if mean is None else mean
    builder.row_sums(x, mean)
    builder.calls += [(np.divide, (mean, _width(x), mean)), (np.subtract, (x, mean, out))]


def _width(x: Array) -> np.float32:
    return np.float32(x.shape[1])


def sizes_of_rows(builder: KernelBuilder, eps: float, x: Array, size: Array | None = None) -> Array:
    """Return 1 / √(mean x² + eps) per row, in `size`, if given."""
    size = builder.temporary((x.shape[0], 1)) if size is None else size
    builder.calls += [
        (_dots, (x, x, size)),
        (np.divide, (size, _width(x), size)),
        (np.add, (size, np.float32(eps), size)),
        (np.sqrt, (size, size)),
        (np.reciprocal, (size, size)),
    ]
    return size


def _dots(a: Array, b: Array, out: Array) -> None:
    """Write Σ a · b per row."""
    np.matmul(a[:, None, :], b[:, :, None], out=out[:, :, None])


def _norm_form(centre: bool, builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    x, out, column = builder.operand(0, shape), builder.out(shape), (shape[0], 1)
    if centre:
        _centred_rows(builder, x, out, builder.result("mean", column))
        x = out
    size = sizes_of_rows(builder, dict(c.numbers)["EPS"], x, builder.result("size", column))
    builder.calls += [(np.multiply, (x, size, out)), (np.multiply, (out, builder.operand(1, shape[1:]), out))]
    if centre:
        builder.calls.append((np.add, (out, builder.operand(2, shape[1:]), out)))


def _norm_grad_form(centre: bool, builder: KernelBuilder, c: KernelConstants) -> None:
    """Compute size · (h − mean h − unit · mean(h · unit)); `operand`s are g, x and w."""
    shape = c["ROWS"], c["WIDTH"]
    out, unit, mean = builder.out(shape), builder.temporary(shape), builder.temporary((shape[0], 1))
    x = builder.operand(1, shape)
    if centre:
        _centred_rows(builder, x, unit)
        x = unit
    size = sizes_of_rows(builder, dict(c.numbers)["EPS"], x)
    g, w = builder.operand(0, shape), builder.operand(2, shape[1:])
    builder.calls += [(np.multiply, (x, size, unit)), (np.multiply, (g, w, out))]
    if centre:
        _centred_rows(builder, out, out)
    builder.calls += [
        (_dots, (out, unit, mean)),
        (np.divide, (mean, _width(unit), mean)),
        (np.multiply, (unit, mean, unit)),
        (np.subtract, (out, unit, out)),
        (np.multiply, (out, size, out)),
    ]


def column_each(passes: int) -> WorkRule:
    """Return the work of a kernel that makes one number of each row."""

    def rule(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        rows, width = result.num_elements, types[0].shape[-1]
        eps = {"EPS": attrs["eps"]} if "eps" in attrs else {}
        return Work(rows, width, {"ROWS": rows, "WIDTH": width, **eps}, passes * rows * width)

    return rule


def _size_form(centre: bool, builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    x = builder.operand(0, shape)
    if centre:
        _centred_rows(builder, x, centred := builder.temporary(shape))
        x = centred
    sizes_of_rows(builder, dict(c.numbers)["EPS"], x, builder.out((shape[0], 1)))


def _size_kernel(name: str, centre: bool) -> Shader:
    passes = 5 if centre else 2
    work, form = column_each(passes), partial(_size_form, centre)
    return Shader(_files(name, LAYER_ROW if centre else RMS_ROW), work, in_bounds=True, numpy_form=form)


def _positive(x: Value, eps: float) -> None:
    want(x.type.rank >= 1, "x[…, n]")
    want(eps > 0, "a number above 0", eps, "eps")


SIZE_SAMPLES = tuple(Sample(shape, attrs={"eps": EPS}) for shape in SIZES)


@fused(
    label="",
    private=True,
    family="reduction",
    kernel=_size_kernel("rms_size", False),
    samples=SIZE_SAMPLES,
    check=_positive,
)
def rms_size(x: Value, eps: float) -> Value:
    """1 / √(mean x² + eps) along the last axis, which is kept: f32[..., n] -> f32[..., 1]."""
    return _rms_size(x, eps)


@fused(
    label="",
    family="reduction",
    kernel=row_kernel(
        "rms_norm",
        4,
        partial(_norm_form, False),
        fours=True,
        statistics=(Statistic("rms_size", "size"),),
        calls=RMS_ROW,
        as_read=True,
    ),
    samples=_norm_samples(1),
    bad=_norm_bad(1, "wanted x[…, n] and w[n]"),
    check=lambda x, w, eps: _row_each("x[…, n] and w[n]", eps, x, w),
    by_rows=True,
)
def rms_norm(x: Value, w: Value, eps: float) -> Value:
    """x / √(mean x² + eps) · w along the last axis: f32[..., n], f32[n] -> f32[..., n]; eps > 0.

    B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    return (x * _rms_size(x, eps)).bias_mul(w)


def _rms_size(x: Value, eps: float) -> Value:
    return (x.square().mean_inner() + eps).rsqrt()


@rms_norm.vjp
def _(g: Value, out: Value, x: Value, w: Value, eps: float) -> Grads:
    """∂x = s · (h − u · mean(h · u)),  ∂w = Σ g · u with s = rsqrt(mean(x²) + eps), u = s · x, h = g · w"""
    return lambda: rms_norm_grad_x(g, x, w, eps), lambda: rms_norm_grad_w(g, x, eps)


@fused(
    label="",
    private=True,
    family="reduction",
    kernel=row_kernel("rms_norm_grad_x", 8, partial(_norm_grad_form, False), calls=RMS_ROW),
    samples=_grad_samples(1),
    check=lambda g, x, w, eps: _like("g and x[…, n], w[n]", eps, g, x, w),
)
def rms_norm_grad_x(g: Value, x: Value, w: Value, eps: float) -> Value:
    """s (h − x̂ · mean(h · x̂)) with h = g · w, x̂ = x · s as in `rms_norm`: two f32[..., n], f32[n] -> f32[..., n]."""
    size = _rms_size(x, eps)
    return _over_rows(g.bias_mul(w), x * size, size)


@fused(
    label="",
    private=True,
    family="reduction",
    samples=_grad_samples(0),
    check=lambda g, x, eps: _like("g and x of equal shapes", eps, g, x),
)
def rms_norm_grad_w(g: Value, x: Value, eps: float) -> Value:
    """Σ over rows of g · x̂ as in `rms_norm`: two f32[..., n] -> f32[n]."""
    return _sum_to_row(g * (x * rms_size(x, eps)))


def _sum_to_row(x: Value) -> Value:
    return x.sum_rows() if x.type.rank > 1 else x


@fused(
    label="",
    private=True,
    family="reduction",
    kernel=_size_kernel("layer_size", True),
    samples=SIZE_SAMPLES,
    check=_positive,
)
def layer_size(x: Value, eps: float) -> Value:
    """1 / √(variance + eps) along the last axis, which is kept: f32[..., n] -> f32[..., 1]."""
    return _centred(x, eps)[1]


@fused(
    label="",
    family="reduction",
    kernel=row_kernel(
        "layer_norm",
        7,
        partial(_norm_form, True),
        fours=True,
        statistics=(Statistic("mean_inner", "mean"), Statistic("layer_size", "size")),
        calls=LAYER_ROW,
    ),  # fmt: skip
    samples=_norm_samples(2),
    bad=_norm_bad(2, "wanted x[…, n], w[n] and b[n]"),
    check=lambda x, w, b, eps: _row_each("x[…, n], w[n] and b[n]", eps, x, w, b),
    by_rows=True,
)
def layer_norm(x: Value, w: Value, b: Value, eps: float) -> Value:
    """(x − mean) / √(variance + eps) · w + b along the last axis: f32[..., n], f32[n], f32[n] -> f32[..., n]; eps > 0.

    The variance is biased and taken of x − mean. J. L. Ba, J. R. Kiros, G. E. Hinton, Layer Normalization, 2016.
    """
    centred, size = _centred(x, eps)
    return (centred * size).bias_mul(w).bias_add(b)


def _centred(x: Value, eps: float) -> tuple[Value, Value]:
    centred = x - x.mean_inner()
    return centred, _rms_size(centred, eps)


@layer_norm.vjp
def _(g: Value, out: Value, x: Value, w: Value, b: Value, eps: float) -> Grads:
    """∂x = s·(h − mean(h) − u·mean(h·u)),  ∂w = Σ g·u,  ∂b = Σ g with h = g·w, u = s·(x − mean(x)), s = 1/std(x)"""
    return (
        lambda: layer_norm_grad_x(g, x, w, eps),
        lambda: layer_norm_grad_w(g, x, eps),
        lambda: to_row(g, b),
    )


@fused(
    label="",
    private=True,
    family="reduction",
    kernel=row_kernel("layer_norm_grad_x", 12, partial(_norm_grad_form, True), calls=LAYER_ROW),
    samples=_grad_samples(1),
    check=lambda g, x, w, eps: _like("g and x[…, n], w[n]", eps, g, x, w),
)
def layer_norm_grad_x(g: Value, x: Value, w: Value, eps: float) -> Value:
    """r (h − mean h − x̂ · mean(h · x̂)) with h = g · w, x̂ and r as in `layer_norm`: f32[..., n] (two), f32[n] ->
    f32[..., n]."""
    centred, size = _centred(x, eps)
    h = g.bias_mul(w)
    return _over_rows(h - h.mean_inner(), centred * size, size)


@fused(
    label="",
    private=True,
    family="reduction",
    samples=_grad_samples(0),
    check=lambda g, x, eps: _like("g and x of equal shapes", eps, g, x),
)
def layer_norm_grad_w(g: Value, x: Value, eps: float) -> Value:
    """Σ over rows of g · x̂ as in `layer_norm`: two f32[..., n] -> f32[n]."""
    return _sum_to_row(g * ((x - x.mean_inner()) * layer_size(x, eps)))
