"""Comparison and selection: masks of 1.0 and 0.0, `where`, and the larger or smaller of two."""

from __future__ import annotations

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Value
from gdlab.op import Bad, Elementwise, Grads, Refused, Sample, Shader, Work, elementwise, op, want
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.elementwise import BINARY, MISFITS, NAN


def flags(condition: Array, like: Array) -> Array:
    """Return 1 where the condition holds, else 0, in the dtype of `like`."""
    return np.asarray(condition, like.dtype)


_TIES = Sample((6,), (6,), values=([1.0, 2.0, NAN, 1.0, NAN, -0.0], [1.0, 3.0, 1.0, NAN, NAN, 0.0]), kink=True)
COMPARED = (*BINARY[:3], _TIES)


@op(
    numpy=lambda a, b: flags(a > b, a),
    kernel=Elementwise("select(0.0, 1.0, a > b)"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
)
def greater(a: Value, b: Value) -> TensorType:
    """1 where a > b, else 0 (also where one is NaN): f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


@op(
    numpy=lambda a, b: flags(a < b, a),
    kernel=Elementwise("select(0.0, 1.0, a < b)"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
)
def less(a: Value, b: Value) -> TensorType:
    """1 where a < b, else 0 (also where one is NaN): f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


# a driver that assumes numbers folds x >= x to true: NaN is tested by its bits
@op(
    numpy=lambda a, b: flags(a >= b, a),
    kernel=Elementwise("select(select(0.0, 1.0, a >= b), 0.0, is_nan(a) | is_nan(b))"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
)
def greater_equal(a: Value, b: Value) -> TensorType:
    """1 where a ≥ b, else 0 (also where one is NaN): f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


@op(
    numpy=lambda a, b: flags(a <= b, a),
    kernel=Elementwise("select(select(0.0, 1.0, a <= b), 0.0, is_nan(a) | is_nan(b))"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
)
def less_equal(a: Value, b: Value) -> TensorType:
    """1 where a ≤ b, else 0 (also where one is NaN): f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


@op(
    numpy=lambda a, b: flags(a == b, a),
    kernel=Elementwise("select(select(0.0, 1.0, a == b), 0.0, is_nan(a) | is_nan(b))"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
    commutative=True,
)
def equal(a: Value, b: Value) -> TensorType:
    """1 where a = b, else 0 (also where one is NaN): f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


@op(
    numpy=lambda a, b: flags(a != b, a),
    kernel=Elementwise("select(0.0, 1.0, (a != b) | is_nan(a) | is_nan(b))"),
    samples=COMPARED,
    bad=MISFITS,
    broadcasts=True,
    no_grad="ends",
)
def not_equal(a: Value, b: Value) -> TensorType:
    """1 where a ≠ b or one is NaN, else 0: f32[...], f32[...] -> f32[...]. The gradient path ends."""
    return a.type


@op(
    numpy=lambda condition, a, b: np.where(condition != 0.0, a, b),
    kernel=Elementwise("select(b, a, (condition != 0.0) | is_nan(condition))"),
    samples=(
        Sample((3, 5), (3, 5), (3, 5)), Sample((4, 3), (3,), (1,)), Sample((70,), (70,), (70,)),
        Sample((4,), (4,), (4,), values=([0.0, 1.0, NAN, -0.0], [NAN, 2.0, 3.0, float("inf")], [1.0, NAN, NAN, 4.0]),
               grads=(None, [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0])),
    ),
    bad=(Bad(("f32[3, 5]", "f32[4]", "f32[5]"), "and f32[4] and f32[5], wanted shapes that broadcast to one"),
         Bad(("u32[3]", "f32[3]", "f32[3]"), "given u32[3] and f32[3] and f32[3], wanted f32 operands")),
    broadcasts=True,
    selects=True,
)  # fmt: skip
def where(condition: Value, a: Value, b: Value) -> TensorType:
    """a where the condition is not 0 (NaN counts as true), else b: f32[...], f32[...], f32[...] -> f32[...].

    The gradient selects too, so what was not taken gets 0, never 0 · inf; the condition gets none.
    """
    return a.type


@where.vjp
def _(g: Value, out: Value, condition: Value, a: Value, b: Value) -> Grads:
    """∂a = where(condition, g, 0),  ∂b = where(condition, 0, g)"""
    return None, lambda: where(condition, g, 0.0), lambda: where(condition, 0.0, g)


def _each(types: tuple[TensorType, ...], result: TensorType, attrs: object) -> Work:
    return Work(result.num_elements)


def _keep(condition: Array, x: Array, out: Array) -> None:
    np.copyto(out, x)
    out[condition == 0.0] = 0


def _keep_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = (c.units,)
    builder.calls.append((_keep, (builder.operand(0, shape), builder.operand(1, shape), builder.out(shape))))


@op(
    numpy=lambda condition, x: np.where(condition != 0.0, x, np.uint32(0)),
    kernel=Shader("keep_u32.wgsl", _each, numpy_form=_keep_form),
    samples=(Sample((3, 5), (3, 5), integers={1: 9}),
             Sample((70,), (70,), integers={1: 9}),
             Sample((4,), (4,), integers={1: 9}, values=([0.0, 1.0, NAN, -0.0], [1, 2**32 - 1, 16_777_217, 4]),
                    kink=True)),
    bad=(Bad(("f32[3]", "f32[3]"), "wanted condition f32 and x u32 of equal shapes"),
         Bad(("f32[3]", "u32[4]"), "wanted condition f32 and x u32 of equal shapes")),
    family="elementwise",
    kind="private",
    any_dtype=True,
    no_grad="ends",
    follows=elementwise,
    selects=True,
)  # fmt: skip
def keep_u32(condition: Value, x: Value) -> TensorType:
    """x where the condition is not 0 (NaN counts as true), else 0: f32[...], u32[...] -> u32[...]."""
    wanted = "condition f32 and x u32 of equal shapes"
    if (condition.type.dtype, x.type.dtype) != (f32, u32):
        raise Refused(wanted, error=DTypeError)
    want(condition.shape == x.shape, wanted)
    return x.type


_TIED = ([1.0, 2.0, 5.0, -1.0], [1.0, 3.0, 4.0, -1.0])


@op(
    numpy=np.maximum,
    kernel=Elementwise("max_nan(a, b)"),
    samples=(*BINARY, Sample((4,), (4,), values=_TIED, grads=([0.5, 0, 1, 0.5], [0.5, 1, 0, 0.5])), _TIES),
    bad=MISFITS,
    broadcasts=True,
    commutative=True,
)
def maximum(a: Value, b: Value) -> TensorType:
    """The larger of both, elementwise: f32[...], f32[...] -> f32[...]; NaN wins. On a tie each gets half of g."""
    return a.type


@maximum.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = where(a > b, g, 0),  ∂b = where(b > a, g, 0)

    On a tie each gets half of g; where only one is NaN, that one gets all of it.
    """
    return lambda: larger_grad(a, b, g), lambda: larger_grad(b, a, g)


@op(
    numpy=np.minimum,
    kernel=Elementwise("min_nan(a, b)"),
    samples=(*BINARY, Sample((4,), (4,), values=_TIED, grads=([0.5, 1, 0, 0.5], [0.5, 0, 1, 0.5])), _TIES),
    bad=MISFITS,
    broadcasts=True,
    commutative=True,
)
def minimum(a: Value, b: Value) -> TensorType:
    """The smaller of both, elementwise: f32[...], f32[...] -> f32[...]; NaN wins. On a tie each gets half of g."""
    return a.type


@minimum.vjp
def _(g: Value, out: Value, a: Value, b: Value) -> Grads:
    """∂a = where(a < b, g, 0),  ∂b = where(b < a, g, 0)

    On a tie each gets half of g; where only one is NaN, that one gets all of it.
    """
    return lambda: larger_grad(-a, -b, g), lambda: larger_grad(-b, -a, g)


def _larger_grad(a: Array, b: Array, g: Array) -> Array:
    lone = np.where((a > b) | np.isnan(a), g, 0.0)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.5 * g, lone)


@op(
    numpy=_larger_grad,
    kernel=Elementwise(
        "select(select(0.0, g, (a > b) | is_nan(a)), 0.5 * g, (a == b) | (is_nan(a) & is_nan(b)))"
    ),
    samples=(
        Sample((3, 5), (3, 5), (3, 5)), Sample((70,), (70,), (70,)), Sample((1, 1), (1, 1), (1, 1)),
        Sample((6,), (6,), (6,), values=(_TIES.values or ())[:2] + (2.0,),
               grads=(None, None, [0.5, 0.0, 1.0, 0.0, 0.5, 0.5])),
    ),
    kind="private",
)  # fmt: skip
def larger_grad(a: Value, b: Value, g: Value) -> TensorType:
    """The cotangent g where a > b or only a is NaN, half of it on a tie, else 0: three f32[...] -> f32[...]."""
    want(a.shape == b.shape == g.shape, "equal shapes")
    return g.type


@larger_grad.vjp
def _(h: Value, out: Value, a: Value, b: Value, g: Value) -> Grads:
    """∂g = where(a > b, h, 0)

    On a tie each gets half of g; where only one is NaN, that one gets all of it.
    """
    return None, None, lambda: larger_grad(a, b, h)
