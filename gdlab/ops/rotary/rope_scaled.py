"""Rotary positions whose rates are divided by factors from a tensor: the rope ops with `freq_factors`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, TensorType, f32
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Grads,
    Op,
    Refused,
    Sample,
    Shader,
    Spelled,
    Work,
    keeps_rows,
    op,
    want,
)
from gdlab.ops.leaves import constant
from gdlab.ops.rotary.rope import (
    T,
    rates,
    rope,
    rope_dynamic_offset,
    rope_positions,
    rope_with_offset,
    rotation,
    turned,
)
from gdlab.ops.rotary.rope import check as check_rope
from gdlab.ops.rotary.rope import check_u32 as check_index
from gdlab.ops.rotary.rope_numpy import ROPE_FORMS


def _work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    d = attrs["head_dim"]
    sizes = {
        "HEADS": result.shape[1] // d, "HALF": d // 2, "ROWS": result.shape[0], "BACK": int(attrs["back"]),
        "OFFSET": attrs.get("offset", 0) % 2**32,
    }  # fmt: skip
    speeds = _speeds(attrs["theta"], d).astype(np.float32).view(np.uint32)
    tables = rates(attrs["theta"], d) | {"speeds": tuple(map(int, speeds))}
    return Work(result.num_elements // 2, 0, sizes, 4 * result.num_elements, tables=tables)


def _speeds(theta: float, head_dim: int) -> Array:
    """Return θ^(−2j/d) radians for each pair j."""
    return np.asarray(theta ** (-2 * np.arange(head_dim // 2) / head_dim))


def _bound(m: Array, *where: Array, back: bool, **attrs: Any) -> Array:
    return rotation(m, **attrs)


def _kernel(where: str) -> Shader:
    files, form = f"{where}.wgsl + rope_turn_scaled.wgsl", ROPE_FORMS[where]
    return Shader(files, _work, bound=_bound, in_bounds=True, numpy_form=form)


def _check(x: Value, theta: float, head_dim: int, factors: Value) -> TensorType:
    result = check_rope(x, theta, head_dim)
    if factors.type.dtype is not f32:
        raise Refused("freq_factors f32", error=DTypeError)
    want(factors.shape == (head_dim // 2,), f"freq_factors[{head_dim // 2}], half of head_dim")
    return result


def _to_factors(
    g: Value, out: Value, factors: Value, positions: Value, theta: float, head_dim: int, back: bool
) -> Value:  # fmt: skip
    """Return ∂factors: a pair (a, b) turns along (−b, a); its angle falls by position · rate / factor² per factor."""
    rows, half = out.shape[0], head_dim // 2
    (a, b), (to_a, to_b) = (v.reshape((rows, -1, 2, half)).split((1, 1), 2) for v in (out, g))
    along = (to_b * a - to_a * b).reshape((rows, -1, half)).sum(1)
    slope = constant(_speeds(theta, head_dim) * (1.0 if back else -1.0), graph=g.graph)
    return (along * positions).sum(0) * slope / (factors * factors)


def _counted(x: Value, offset: int) -> Value:
    return constant(np.arange(x.shape[0])[:, None] + float(offset), graph=x.graph)


# samples --------------------------------------------------------------------------------------------------------------
SIZES = ((3, 1, 8), (1, 2, 2), (7, 3, 6), (33, 2, 64))  # rows, heads, head_dim


def _samples(*index: Callable[[int], tuple[int, ...]], high: int = 0, **more: Any) -> tuple[Sample, ...]:
    found = []
    for number, (s, h, d) in enumerate(SIZES):
        shapes = (s, h * d), *(i(s) for i in index), (d // 2,)
        attrs = {"theta": T, "head_dim": d, "back": number == 1, **more}
        found.append(Sample(*shapes, attrs=attrs, low=0.5, integers=dict.fromkeys(range(1, 1 + len(index)), high)))
    ones = (None, *(None for _ in index), 1.0)  # then nothing is divided, and no digit is lost
    shapes = (4, 8), *(i(4) for i in index), (4,)
    attrs = {"theta": T, "head_dim": 8, "back": False, **more}
    return (*found, Sample(*shapes, attrs=attrs, values=ones, integers=dict.fromkeys(range(1, 1 + len(index)), high)))


def _bad(*index: str, **more: Any) -> tuple[Bad, ...]:
    attrs = {"theta": T, "head_dim": 8, "back": False, **more}
    return (
        Bad(("f32[3, 8]", *index, "f32[8]"), "wanted freq_factors[4], half of head_dim", attrs),
        Bad(("f32[3, 6]", *index, "f32[4]"), "head_dim: given 8, wanted a divisor of 6", attrs),
    )


# the row's number plus an offset --------------------------------------------------------------------------------------
@op(
    numpy=lambda x, freq_factors, theta, offset, head_dim, back: turned(
        x, np.arange(len(x)) + offset, theta, head_dim, back, freq_factors
    ),
    kernel=_kernel("rope_offset"),
    samples=_samples(offset=5),
    bad=_bad(offset=1),
    kind="private",
    follows=keeps_rows(0),
)
def rope_scaled(
    x: Value, freq_factors: Value, theta: float, offset: int, head_dim: int, back: bool
) -> TensorType:  # fmt: skip
    """`rope_with_offset` whose angles are divided by a factor for each pair, or that rotation `back`:
    f32[rows, heads·d], f32[d/2] -> f32[rows, heads·d]."""
    want(0 <= offset < 2**32, "an int in 0 … 2^32 − 1", offset, "offset")
    return _check(x, theta, head_dim, freq_factors)


@rope_scaled.vjp
def _(
    g: Value, out: Value, x: Value, freq_factors: Value, theta: float, offset: int, head_dim: int, back: bool
) -> Grads:  # fmt: skip
    """∂x = rotation(t)ᵀ · g,  ∂freq_factors = −Σ cross(out, g) · t / freq_factors with t = angles(offset + i)"""
    return (
        lambda: rope_scaled(g, freq_factors, theta, offset, head_dim, not back),
        lambda: _to_factors(g, out, freq_factors, _counted(x, offset), theta, head_dim, back),
    )


# an offset from a tensor ----------------------------------------------------------------------------------------------
@op(
    numpy=lambda x, offset, freq_factors, theta, head_dim, back: turned(
        x, np.arange(len(x)) + int(offset[0]), theta, head_dim, back, freq_factors
    ),
    kernel=_kernel("rope_dynamic"),
    samples=_samples(lambda s: (1,), high=50),
    bad=(*_bad("u32[1]"), Bad(("f32[3, 8]", "u32[3]", "f32[4]"), "wanted offset u32[1]",
                              {"theta": T, "head_dim": 8, "back": False})),
    any_dtype=True,
    kind="private",
    follows=keeps_rows(0),
    by_position="rope_scaled_positions",
)  # fmt: skip
def rope_scaled_dynamic(
    x: Value, offset: Value, freq_factors: Value, theta: float, head_dim: int, back: bool
) -> TensorType:  # fmt: skip
    """`rope_dynamic_offset` whose angles are divided by a factor for each pair, or that rotation `back`:
    f32[rows, heads·d], u32[1], f32[d/2] -> f32[rows, heads·d]."""
    check_index(offset, (1,), "offset u32[1]")
    return _check(x, theta, head_dim, freq_factors)


@rope_scaled_dynamic.vjp
def _(
    g: Value, out: Value, x: Value, offset: Value, freq_factors: Value, theta: float, head_dim: int, back: bool
) -> Grads:  # fmt: skip
    """∂x = rotation(t)ᵀ · g,  ∂freq_factors = −Σ cross(out, g) · t / freq_factors with t = angles(offset + i)"""
    return (
        lambda: rope_scaled_dynamic(g, offset, freq_factors, theta, head_dim, not back),
        None,
        lambda: _to_factors(g, out, freq_factors, _counted(x, 0) + offset.to_f32(), theta, head_dim, back),
    )


# a position for each row ----------------------------------------------------------------------------------------------
@op(
    numpy=lambda x, positions, freq_factors, theta, head_dim, back: turned(
        x, positions.astype(np.float64), theta, head_dim, back, freq_factors
    ),
    kernel=_kernel("rope_positions"),
    samples=_samples(lambda s: (s,), high=90),
    bad=(*_bad("u32[3]"), Bad(("f32[3, 8]", "u32[4]", "f32[4]"), "wanted positions u32[rows]",
                              {"theta": T, "head_dim": 8, "back": False})),
    any_dtype=True,
    kind="private",
    follows=keeps_rows(0, 1, ordered=False),
)  # fmt: skip
def rope_scaled_positions(
    x: Value, positions: Value, freq_factors: Value, theta: float, head_dim: int, back: bool
) -> TensorType:  # fmt: skip
    """`rope_positions` whose angles are divided by a factor for each pair, or that rotation `back`: f32[rows, heads·d],
    u32[rows], f32[d/2] -> f32[rows, heads·d]."""
    result = _check(x, theta, head_dim, freq_factors)
    check_index(positions, x.shape[:1], "positions u32[rows]")
    return result


@rope_scaled_positions.vjp
def _(
    g: Value, out: Value, x: Value, positions: Value, freq_factors: Value, theta: float, head_dim: int, back: bool
) -> Grads:  # fmt: skip
    """∂x = rotation(t)ᵀ · g,  ∂freq_factors = −Σ cross(out, g) · t / freq_factors with t = angles(positions)"""
    where = positions.to_f32().reshape((-1, 1))
    return (
        lambda: rope_scaled_positions(g, positions, freq_factors, theta, head_dim, not back),
        None,
        lambda: _to_factors(g, out, freq_factors, where, theta, head_dim, back),
    )


# the way in -----------------------------------------------------------------------------------------------------------
def _with_factors(plain: Op, build: Callable[..., Value]) -> None:
    """Let calls of `plain` with `freq_factors` build `build` instead."""
    plain.optional = "freq_factors", build
    last = inspect.Parameter("freq_factors", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None,
                             annotation=Spelled("Value | None"))  # fmt: skip
    found = inspect.signature(plain)
    plain.__signature__ = found.replace(parameters=[*found.parameters.values(), last])


_with_factors(rope, lambda f, x, theta, head_dim: rope_scaled(x, f, theta, 0, head_dim, False))
_with_factors(
    rope_with_offset, lambda f, x, theta, offset, head_dim: rope_scaled(x, f, theta, offset, head_dim, False)
)
_with_factors(
    rope_dynamic_offset,
    lambda f, x, offset, theta, head_dim: rope_scaled_dynamic(x, offset, f, theta, head_dim, False),
)
_with_factors(
    rope_positions,
    lambda f, x, positions, theta, head_dim: rope_scaled_positions(x, positions, f, theta, head_dim, False),
)
