"""Gates whose two halves lie side by side in one tensor: `swiglu_concat`, `geglu_concat`."""

from __future__ import annotations

from typing import Any

from gdlab.base.types import TensorType
from gdlab.graph import Value
from gdlab.op import Bad, Grads, Sample, Shader, Work, fused, want
from gdlab.op.numpy_form import KernelBuilder, KernelConstants, NumpyForm
from gdlab.ops.fused import geglu, gelu, gelu_grad, silu, silu_grad, swiglu
from gdlab.ops.join import concat, split


def _halves(types: tuple[TensorType, ...], result: TensorType, attrs: Any) -> Work:
    width = types[0].shape[-1] // 2
    return Work(types[0].num_elements // 2, constants={"WIDTH": width}, flops=10 * types[0].num_elements)


def _even(x: Value) -> None:
    want(x.shape[-1] % 2 == 0, "an even number of columns")


def _half_of(x: Value, g: Value) -> None:
    _even(x)
    want((*g.shape[:-1], 2 * g.shape[-1]) == x.shape, "x[…, 2n] and g[…, n]")


def _cut(x: Value) -> tuple[Value, ...]:
    return split(x, [x.shape[-1] // 2] * 2, -1)


WHOLE = (Sample((3, 10)), Sample((2, 2, 140), low=-20, high=20), Sample((1, 2)), Sample((6,)))
WITH_G = tuple(Sample(s.shapes[0], (*s.shapes[0][:-1], s.shapes[0][-1] // 2), low=s.low, high=s.high) for s in WHOLE)


def _odd(name: str) -> tuple[Bad, ...]:
    return (
        Bad(("f32[3, 5]",), f"{name}: operands: given f32[3, 5], wanted an even number of columns"),
        Bad(("u32[3, 4]",), "wanted f32 operands"),
    )


# in NumPy -------------------------------------------------------------------------------------------------------------
_SWISH, _INNER = "sigmoid_stable(x)", "1.5957691216057308 * (x + 0.044715 * x * x * x)"
_GELU = f"sigmoid_stable({_INNER})"
_SILU_SLOPE = "share * (1.0 + x * (1.0 - share))"
_GELU_SLOPE = "share + x * (share * (1.0 - share)) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)"


def _gate_form(share: str) -> NumpyForm:
    def form(builder: KernelBuilder, c: KernelConstants) -> None:
        rows, n = c.units // c["WIDTH"], c["WIDTH"]
        x = builder.operand(0, (rows, 2 * n))
        builder.evaluate(f"x * {share} * up", {"x": x[:, :n], "up": x[:, n:]}, builder.out((rows, n)))

    return form


def _gate_grad_form(share: str, slope: str) -> NumpyForm:
    def form(builder: KernelBuilder, c: KernelConstants) -> None:
        rows, n = c.units // c["WIDTH"], c["WIDTH"]
        x, out = builder.operand(0, (rows, 2 * n)), builder.out((rows, 2 * n))
        passed = builder.temporary((rows, n))
        builder.evaluate(share, {"x": x[:, :n]}, passed)
        operands = {"x": x[:, :n], "up": x[:, n:], "g": builder.operand(1, (rows, n)), "share": passed}
        builder.evaluate(f"g * up * ({slope})", operands, out[:, :n])
        builder.evaluate("g * x * share", operands, out[:, n:])

    return form


# ops ------------------------------------------------------------------------------------------------------------------
@fused(
    label="",
    kernel=Shader("swiglu_concat.wgsl", _halves, in_bounds=True, numpy_form=_gate_form(_SWISH)),
    family="elementwise",
    samples=WHOLE,
    bad=_odd("swiglu_concat"),
    check=_even,
)
def swiglu_concat(x: Value) -> Value:
    """silu(first half) · second half of the last axis: f32[..., 2n] -> f32[..., n]."""
    return swiglu(*_cut(x))


@swiglu_concat.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = concat([g · b · (s + a · s · (1 − s)), g · silu(a)]) with [a, b] = x, s = sigmoid(a)"""
    return (swiglu_concat_grad(x, g),)


@fused(
    label="",
    private=True,
    kernel=Shader("swiglu_concat_grad.wgsl", _halves, in_bounds=True, numpy_form=_gate_grad_form(_SWISH, _SILU_SLOPE)),
    family="elementwise",
    samples=WITH_G,
    check=_half_of,
)
def swiglu_concat_grad(x: Value, g: Value) -> Value:
    """Both halves of the gradient of `swiglu_concat` side by side: f32[..., 2n], f32[..., n] -> f32[..., 2n]."""
    gate, up = _cut(x)
    return concat([silu_grad(gate, g * up), silu(gate) * g], g.type.rank - 1)


@fused(
    label="",
    kernel=Shader("geglu_concat.wgsl", _halves, in_bounds=True, numpy_form=_gate_form(_GELU)),
    family="elementwise",
    samples=WHOLE,
    bad=_odd("geglu_concat"),
    check=_even,
)
def geglu_concat(x: Value) -> Value:
    """gelu(first half) · second half of the last axis: f32[..., 2n] -> f32[..., n]."""
    return geglu(*_cut(x))


@geglu_concat.vjp
def _(g: Value, out: Value, x: Value) -> Grads:
    """∂x = concat([gelu_grad(a, g · b), g · gelu(a)]) with [a, b] = x"""
    return (geglu_concat_grad(x, g),)


@fused(
    label="",
    private=True,
    kernel=Shader("geglu_concat_grad.wgsl", _halves, in_bounds=True, numpy_form=_gate_grad_form(_GELU, _GELU_SLOPE)),
    family="elementwise",
    samples=WITH_G,
    check=_half_of,
)
def geglu_concat_grad(x: Value, g: Value) -> Value:
    """Both halves of the gradient of `geglu_concat` side by side: f32[..., 2n], f32[..., n] -> f32[..., 2n]."""
    gate, up = _cut(x)
    return concat([gelu_grad(gate, g * up), gelu(gate) * g], g.type.rank - 1)
