"""Ops between dtypes: `to_f32` and `to_u32`; f32 with the precision of another dtype; and 16 bits, packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from gdlab.base.formats import bf16_bits
from gdlab.base.formats import round_bf16 as nearest_bf16
from gdlab.base.formats import round_f16 as nearest_f16
from gdlab.base.types import Array, DType, TensorType, f16, u32
from gdlab.graph import Value
from gdlab.op import Bad, Elementwise, Grads, Sample, Shader, Work, elementwise, op
from gdlab.op.numpy_form import KernelBuilder, KernelConstants


def _each(types: tuple[TensorType, ...], result: TensorType, attrs: object) -> Work:
    return Work(result.num_elements)


def _assign(x: Array, out: Array) -> None:
    out[...] = x


def _to_f32_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = (c.units,)
    builder.calls.append((_assign, (builder.operand(0, shape), builder.out(shape))))


@op(
    numpy=lambda x: x if x.dtype.kind == "f" else np.asarray(x, np.float64),
    kernel=Shader("to_f32.wgsl", _each, linear=True, numpy_form=_to_f32_form),
    samples=(Sample((3, 5), integers={0: 1 << 24}), Sample((70,), integers={0: 9}), Sample((2, 3)),
             Sample((3,), integers={0: 1}, values=([0, 16_777_215, 2**31],))),
    family="elementwise",
    any_dtype=True,
    reads_halves=True,
    follows=elementwise,
)  # fmt: skip
def to_f32(x: Value) -> TensorType:
    """x as f32, integers rounded to the nearest: any[...] -> f32[...]. u32 receives no gradient."""
    return TensorType(x.shape)


@to_f32.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g"""
    return (None if x.type.dtype is u32 else g,)


def _saturated(x: Array) -> Array:
    return np.where(np.isnan(x), 0.0, np.clip(np.trunc(x), 0.0, 2.0**32 - 1)).astype(np.uint32)


def _truncate(x: Array, out: Array) -> None:
    whole = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=2.0**32, neginf=0.0)
    out[...] = np.clip(whole, 0.0, 2.0**32 - 1).astype(np.uint32)


def _to_u32_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = (c.units,)
    builder.calls.append((_truncate, (builder.operand(0, shape), builder.out(shape))))


@op(
    numpy=_saturated,
    kernel=Shader("to_u32.wgsl", _each, numpy_form=_to_u32_form),
    samples=(Sample((3, 5), high=100.0), Sample((70,), values=(np.arange(70) * 1e4 + 0.5,)), Sample((1, 1)),
             Sample((8,), values=([np.nan, -1.5, 0.99, 7.0, 4294967040.0, 2.0**32, np.inf, -np.inf],), kink=True)),
    bad=(Bad(("u32[3]",), "to_u32: operands: given u32[3], wanted f32 operands"),),
    family="elementwise",
    no_grad="ends",
    follows=elementwise,
)  # fmt: skip
def to_u32(x: Value) -> TensorType:
    """x truncated toward 0, at most 2³² − 1 and at least 0 (NaN too): f32[...] -> u32[...]. The gradient path ends."""
    return TensorType(x.shape, u32)


# precision ------------------------------------------------------------------------------------------------------------
TIES = [2049.0, 2051.0, -2049.0, 65519.0, 65520.0, -1e6, 6.1e-5, 3e-6, 2.9802322e-08, 8.9e-08, 0.0, -0.0, 1e-30, np.nan,
        np.inf]  # fmt: skip
BRAIN_TIES = [
    257.0,
    259.0,
    -257.0,
    3.3895313892515355e38,
    3.4e38,
    1.00390625,
    1.01171875,
    0.1,
    0.0,
    -0.0,
    np.nan,
    np.inf,
]


def _nearest(x: Array, to: str) -> Array:
    return NEAREST[to](x)


NEAREST = {"f16": nearest_f16, "bf16": nearest_bf16}
HALF, BRAIN = {"to": "f16"}, {"to": "bf16"}


@op(
    numpy=_nearest,
    kernel=Elementwise("round_f16(x)", {"f16": "round_f16(x)", "bf16": "round_bf16(x)"}),
    samples=(*(Sample(shape, attrs=to, low=-size, high=size, kink=True)
               for to in (HALF, BRAIN) for shape, size in (((3, 5), 2.0), ((70,), 1e5), ((1, 1), 2.0))),
             Sample((15,), attrs=HALF, values=(TIES,), kink=True),
             Sample((12,), attrs=BRAIN, values=(BRAIN_TIES,), kink=True),
             Sample((2,), attrs=HALF, values=([1.0001, 1e6],), grads=([1.0, 1.0],)),
             Sample((2,), attrs=BRAIN, values=([1.0001, 1e6],), grads=([1.0, 1.0],))),
    bad=(Bad(("u32[3]",), "round_to: operands: given u32[3], wanted f32 operands", HALF),
         Bad(("f32[3]",), "round_to: to: given 'f32', wanted one of f16, bf16", {"to": "f32"})),
    family="elementwise",
)  # fmt: skip
def round_to(x: Value, to: Literal["f16", "bf16"]) -> TensorType:
    """The nearest number of 16 bits, ties to even: f32[...] -> f32[...]. Of f16 ±inf from 65520 on, of bf16 from
    3.396e38 on; NaN stays NaN. The gradient passes as it is."""
    return x.type


@round_to.vjp
def _(g: Value, out: Value, x: Value, to: str) -> Grads:
    """∂x = g"""
    return (g,)


# storage --------------------------------------------------------------------------------------------------------------
def _pairs(types: tuple[TensorType, ...], result: TensorType, attrs: object) -> Work:
    return Work(-(-result.num_elements // 2), constants={"COUNT": result.num_elements})


def _storing(nearest: Callable[[Array], Array]) -> Callable[[KernelBuilder, KernelConstants], None]:
    """Return the form that stores the nearest numbers of 16 bits."""

    def put(x: Array, out: Array) -> None:
        out[...] = nearest(x)

    def form(builder: KernelBuilder, c: KernelConstants) -> None:
        shape = (c["COUNT"],)
        builder.calls.append((put, (builder.operand(0, shape), builder.out(shape))))

    return form


@op(
    numpy=nearest_f16,
    kernel=Shader("to_f16.wgsl", _pairs, linear=True, numpy_form=_storing(nearest_f16)),
    samples=(Sample((3, 5), kink=True), Sample((70,), low=-1e5, high=1e5, kink=True), Sample((1, 1), kink=True),
             Sample((15,), values=(TIES,), kink=True), Sample((3,), values=([1.0001, -5.0, 1e6],), grads=([1.0] * 3,))),
    bad=(Bad(("u32[3]",), "to_f16: operands: given u32[3], wanted f32 operands"),),
    family="elementwise",
    stores=True,
    follows=elementwise,
)  # fmt: skip
def to_f16(x: Value) -> TensorType:
    """x stored in 16 bits, the nearest float16 of each, two in a word: f32[...] -> f16[...]. Ops read it as f32.
    The gradient passes as it is."""
    return TensorType(x.shape, f16)


@to_f16.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g"""
    return (g,)


@op(
    numpy=nearest_bf16,
    kernel=Shader("to_bf16.wgsl", _pairs, linear=True, numpy_form=_storing(nearest_bf16)),
    samples=(Sample((3, 5), kink=True), Sample((70,), low=-1e5, high=1e5, kink=True), Sample((1, 1), kink=True),
             Sample((12,), values=(BRAIN_TIES,), kink=True),
             Sample((3,), values=([1.0001, -5.0, 3.4e38],), grads=([1.0] * 3,))),
    bad=(Bad(("u32[3]",), "to_bf16: operands: given u32[3], wanted f32 operands"),),
    family="elementwise",
    stores=True,
    follows=elementwise,
)  # fmt: skip
def to_bf16(x: Value) -> TensorType:
    """x stored in 16 bits, the nearest bfloat16 of each, two in a word: f32[...] -> bf16[...]. Ops read it as f32.
    The gradient passes as it is."""
    return TensorType(x.shape, DType.bf16)


@to_bf16.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = g"""
    return (g,)


def _words(x: Array, to: str) -> Array:
    """Return the bits of 16-bit numbers, two in a word, the first in the lower half; after an odd last one 0."""
    flat = x.reshape(-1).astype(np.float32)
    bits = bf16_bits(flat) if to == "bf16" else nearest_f16(flat).astype(np.float16).view(np.uint16)
    pairs = np.zeros(-(-flat.size // 2) * 2, "<u2")
    pairs[: flat.size] = bits
    return pairs.view("<u4").astype(np.uint32, copy=False)


def _packed(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    return Work(result.num_elements, constants={"COUNT": types[0].num_elements, "BRAIN": int(attrs["to"] == "bf16")})


def _pack16_form(builder: KernelBuilder, c: KernelConstants) -> None:
    put = partial(_put_words, to="bf16" if c["BRAIN"] else "f16")
    builder.calls.append((put, (builder.operand(0, (c["COUNT"],)), builder.out((c.units,)))))


def _put_words(x: Array, out: Array, to: str) -> None:
    out[...] = _words(x, to)


@op(
    numpy=_words,
    kernel=Shader("pack16.wgsl", _packed, linear=True, numpy_form=_pack16_form),
    samples=(*(Sample(shape, attrs=to, low=-1e5, high=1e5, kink=True)
               for to in (HALF, BRAIN) for shape in ((3, 5), (70,), (1, 1))),
             Sample((15,), attrs=HALF, values=(TIES,), kink=True),
             Sample((12,), attrs=BRAIN, values=(BRAIN_TIES,), kink=True)),
    bad=(Bad(("u32[3]",), "pack16: operands: given u32[3], wanted f32 operands", HALF),
         Bad(("f32[3]",), "pack16: to: given 'f32', wanted one of f16, bf16", {"to": "f32"})),
    family="elementwise",
    no_grad="ends",
)  # fmt: skip
def pack16(x: Value, to: Literal["f16", "bf16"]) -> TensorType:
    """Bits of the nearest numbers of 16 bits, two in a word: f32[...] of n elements -> u32[⌈n / 2⌉], the first in the
    lower half, behind an odd last one 0. The gradient path ends."""
    return TensorType((-(-x.type.num_elements // 2),), u32)
