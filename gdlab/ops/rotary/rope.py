"""Rotary positions: pairs of every head turn by an angle that grows with the row's position.

J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Grads,
    Refused,
    Sample,
    Shader,
    Work,
    WorkRule,
    keeps_rows,
    op,
    want,
)
from gdlab.ops.rotary.rope_numpy import ROPE_FORMS


def rates(theta: float, head_dim: int) -> dict[str, tuple[int, ...]]:
    """Return θ^(−2j/d) radians for each pair j, as fractions of a turn: units of 2⁻³², the rest in units of 2⁻⁴⁸."""
    turns = [round(theta ** (-2 * j / head_dim) / (2 * np.pi) * 2.0**48) % 2**48 for j in range(head_dim // 2)]
    return {"rates": tuple(t >> 16 for t in turns), "rests": tuple(t & 0xFFFF for t in turns)}


def turned(
    x: Array, positions: Array, theta: float, head_dim: int, back: bool = False, factors: Array | float = 1.0
) -> Array:  # fmt: skip
    """Turn the pairs (j, j + d/2) of every head of x f64[rows, heads·d] by positions · θ^(−2j/d) / factors."""
    angles = np.outer(positions, theta ** (-2 * np.arange(head_dim // 2) / head_dim) / factors)[:, None, :]
    cosine, sine = np.cos(angles), np.sin(-angles if back else angles)
    low, high = np.split(x.reshape(len(x), -1, head_dim), 2, axis=2)
    both: Array = np.concatenate([low * cosine - high * sine, low * sine + high * cosine], axis=2)
    return both.reshape(x.shape)


def rotation(m: Array, *where: Array, theta: float, head_dim: int, offset: int = 0) -> Array:
    """Return the error scale: both halves of a pair count in full, whatever the angle."""
    low, high = np.split(m.reshape(len(m), -1, head_dim), 2, axis=2)
    both: Array = np.concatenate([low + high, low + high], axis=2)
    return both.reshape(m.shape)


def _work(back: bool) -> WorkRule:
    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        d, half = attrs["head_dim"], attrs["head_dim"] // 2
        constants = {
            "HEADS": result.shape[1] // d, "HALF": half, "ROWS": result.shape[0], "BACK": int(back),
            "OFFSET": attrs.get("offset", 0) % 2**32,
        }  # fmt: skip
        return Work(result.num_elements // 2, 0, constants, 3 * result.num_elements, tables=rates(attrs["theta"], d))

    return work


def _kernel(where: str, back: bool = False) -> Shader:
    """Return the kernel with positions from `where`: rope_offset, rope_dynamic, rope_positions."""
    files, form = f"{where}.wgsl + rope_turn.wgsl", ROPE_FORMS[where]
    return Shader(files, _work(back), bound=rotation, in_bounds=True, numpy_form=form, each_once=True)


# checks of every form -------------------------------------------------------------------------------------------------
def check(x: Value, theta: float, head_dim: int) -> TensorType:
    if x.type.dtype is not f32:
        raise Refused("f32 operands", error=DTypeError)
    want(x.type.rank == 2, "x[rows, heads·head_dim]: reshape other ranks first")
    want(head_dim >= 2 and head_dim % 2 == 0, "an even number ≥ 2", head_dim, "head_dim")
    want(x.shape[1] % head_dim == 0, f"a divisor of {x.shape[1]}", head_dim, "head_dim")
    want(theta > 0, "a number above 0", theta, "theta")
    return x.type


def check_u32(index: Value, shape: tuple[int, ...], wanted: str) -> None:
    if index.type.dtype is not u32:
        raise Refused(wanted, error=DTypeError)
    want(index.shape == shape, wanted)


T = 10000.0
SIZES = ((3, 1, 8), (1, 2, 2), (7, 3, 6), (33, 2, 64))  # rows, heads, head_dim
BAD = (
    ("wanted an even number ≥ 2", "f32[3, 9]", {"theta": T, "head_dim": 3}),
    ("head_dim: given 4, wanted a divisor of 6", "f32[3, 6]", {"theta": T, "head_dim": 4}),
    ("theta: given 0.0, wanted a number above 0", "f32[3, 8]", {"theta": 0.0, "head_dim": 4}),
    ("wanted x[rows, heads·head_dim]", "f32[2, 3, 8]", {"theta": T, "head_dim": 4}),
)


def _samples(**attrs: Any) -> tuple[Sample, ...]:
    return tuple(Sample((s, h * d), attrs={"theta": T, "head_dim": d, **attrs}) for s, h, d in SIZES)


def _bad(types: tuple[str, ...] = (), **attrs: Any) -> tuple[Bad, ...]:
    return tuple(Bad((x, *types), message, {**given, **attrs}) for message, x, given in BAD)


# the row's number plus an offset --------------------------------------------------------------------------------------
@op(
    numpy=lambda x, theta, head_dim: turned(x, np.arange(len(x)), theta, head_dim),
    kernel=_kernel("rope_offset"),
    samples=_samples(),
    bad=_bad(),
    typed_as_first=True,
    follows=keeps_rows(0),
)
def rope(x: Value, theta: float, head_dim: int) -> TensorType:
    """Pairs (j, j + d/2) of every head turned by i · θ^(−2j/d) in row i: f32[rows, heads·d] -> the same; d even.

    J. Su et al., RoFormer, 2021; the halves of a head are its pairs. `freq_factors` f32[d/2] divide the angles.
    """
    return check(x, theta, head_dim)


@rope.vjp
def _(g: Value, out: Value, x: Value, theta: float, head_dim: int) -> Grads:
    """∂x = rotation(theta)ᵀ · g"""
    return (rope_grad(g, theta, 0, head_dim),)


@op(
    numpy=lambda x, theta, offset, head_dim: turned(x, np.arange(len(x)) + offset, theta, head_dim),
    kernel=_kernel("rope_offset"),
    samples=(*_samples(offset=5), Sample((3, 8), attrs={"theta": T, "offset": 100000, "head_dim": 8})),
    bad=(*_bad(offset=1), Bad(("f32[3, 8]",), "offset: given -1, wanted an int in 0 … 2^32 − 1",
                              {"theta": T, "offset": -1, "head_dim": 8})),
    follows=keeps_rows(0),
)  # fmt: skip
def rope_with_offset(x: Value, theta: float, offset: int, head_dim: int) -> TensorType:
    """`rope` whose row i stands at position i + offset: f32[rows, heads·d] -> the same; offset ≥ 0."""
    want(0 <= offset < 2**32, "an int in 0 … 2^32 − 1", offset, "offset")
    return check(x, theta, head_dim)


@rope_with_offset.vjp
def _(g: Value, out: Value, x: Value, theta: float, offset: int, head_dim: int) -> Grads:
    """∂x = rotation(theta, offset)ᵀ · g"""
    return (rope_grad(g, theta, offset, head_dim),)


@op(
    numpy=lambda x, theta, offset, head_dim: turned(x, np.arange(len(x)) + offset, theta, head_dim, back=True),
    kernel=_kernel("rope_offset", back=True),
    samples=_samples(offset=5),
    bad=_bad(offset=1),
    kind="private",
    follows=keeps_rows(0),
)
def rope_grad(x: Value, theta: float, offset: int, head_dim: int) -> TensorType:
    """The rotation of `rope_with_offset` backwards: f32[rows, heads·d] -> the same."""
    return check(x, theta, head_dim)


@rope_grad.vjp
def _(g: Value, out: Value, x: Value, theta: float, offset: int, head_dim: int) -> Grads:
    """∂x = rotation(theta, offset) · g"""
    return (rope_with_offset(g, theta, offset, head_dim),)


# an offset from a tensor ----------------------------------------------------------------------------------------------
def _dynamic(x: Value, offset: Value, theta: float, head_dim: int) -> TensorType:
    check_u32(offset, (1,), "offset u32[1]")
    return check(x, theta, head_dim)


def _dynamic_numpy(back: bool) -> Any:
    def numpy(x: Array, offset: Array, theta: float, head_dim: int) -> Array:
        return turned(x, np.arange(len(x)) + int(offset[0]), theta, head_dim, back)

    return numpy


DYNAMIC = tuple(Sample((s, h * d), (1,), attrs={"theta": T, "head_dim": d}, integers={1: 50}) for s, h, d in SIZES)
DYNAMIC_BAD = (
    *_bad(("u32[1]",)),
    Bad(("f32[3, 8]", "f32[1]"), "wanted offset u32[1]", {"theta": T, "head_dim": 8}),
    Bad(("f32[3, 8]", "u32[3]"), "wanted offset u32[1]", {"theta": T, "head_dim": 8}),
)


@op(
    numpy=_dynamic_numpy(False), kernel=_kernel("rope_dynamic"), samples=DYNAMIC, bad=DYNAMIC_BAD, any_dtype=True,
    follows=keeps_rows(0), by_position="rope_positions",
)  # fmt: skip
def rope_dynamic_offset(x: Value, offset: Value, theta: float, head_dim: int) -> TensorType:
    """`rope` whose row i stands at position i + offset, an element of a tensor: f32[rows, heads·d], u32[1] -> the same.

    Also called as `rope_dynamic_offset(x, theta, offset, head_dim)`.
    """
    return _dynamic(x, offset, theta, head_dim)


@rope_dynamic_offset.vjp
def _(g: Value, out: Value, x: Value, offset: Value, theta: float, head_dim: int) -> Grads:
    """∂x = rotation(theta, offset)ᵀ · g"""
    return rope_dynamic_grad(g, offset, theta, head_dim), None


@op(
    numpy=_dynamic_numpy(True), kernel=_kernel("rope_dynamic", back=True), samples=DYNAMIC, bad=DYNAMIC_BAD,
    any_dtype=True, kind="private",
    follows=keeps_rows(0),
)  # fmt: skip
def rope_dynamic_grad(x: Value, offset: Value, theta: float, head_dim: int) -> TensorType:
    """The rotation of `rope_dynamic_offset` backwards: f32[rows, heads·d], u32[1] -> f32[rows, heads·d]."""
    return _dynamic(x, offset, theta, head_dim)


@rope_dynamic_grad.vjp
def _(g: Value, out: Value, x: Value, offset: Value, theta: float, head_dim: int) -> Grads:
    """∂x = rotation(theta, offset) · g"""
    return rope_dynamic_offset(g, offset, theta, head_dim), None


# a position for each row ----------------------------------------------------------------------------------------------
def _positions(x: Value, positions: Value, theta: float, head_dim: int) -> TensorType:
    checked = check(x, theta, head_dim)
    check_u32(positions, x.shape[:1], "positions u32[rows]")
    return checked


def _positions_numpy(back: bool) -> Any:
    def numpy(x: Array, positions: Array, theta: float, head_dim: int) -> Array:
        return turned(x, positions.astype(np.float64), theta, head_dim, back)

    return numpy


EACH = tuple(Sample((s, h * d), (s,), attrs={"theta": T, "head_dim": d}, integers={1: 4000}) for s, h, d in SIZES)
EACH_BAD = (
    *_bad(("u32[3]",)),
    Bad(("f32[3, 8]", "f32[3]"), "wanted positions u32[rows]", {"theta": T, "head_dim": 8}),
    Bad(("f32[3, 8]", "u32[4]"), "wanted positions u32[rows]", {"theta": T, "head_dim": 8}),
)


@op(
    numpy=_positions_numpy(False), kernel=_kernel("rope_positions"), samples=EACH, bad=EACH_BAD, any_dtype=True,
    follows=keeps_rows(0, 1, ordered=False),
)  # fmt: skip
def rope_positions(x: Value, positions: Value, theta: float, head_dim: int) -> TensorType:
    """`rope` with a position for each row: f32[rows, heads·d], u32[rows] -> f32[rows, heads·d].

    Also called as `rope_positions(x, theta, positions, head_dim)`.
    """
    return _positions(x, positions, theta, head_dim)


@rope_positions.vjp
def _(g: Value, out: Value, x: Value, positions: Value, theta: float, head_dim: int) -> Grads:
    """∂x = rotation(theta, positions)ᵀ · g"""
    return rope_positions_grad(g, positions, theta, head_dim), None


@op(
    numpy=_positions_numpy(True), kernel=_kernel("rope_positions", back=True), samples=EACH, bad=EACH_BAD,
    any_dtype=True, kind="private",
    follows=keeps_rows(0, 1, ordered=False),
)  # fmt: skip
def rope_positions_grad(x: Value, positions: Value, theta: float, head_dim: int) -> TensorType:
    """The rotation of `rope_positions` backwards: f32[rows, heads·d], u32[rows] -> f32[rows, heads·d]."""
    return _positions(x, positions, theta, head_dim)


@rope_positions_grad.vjp
def _(g: Value, out: Value, x: Value, positions: Value, theta: float, head_dim: int) -> Grads:
    """∂x = rotation(theta, positions) · g"""
    return rope_positions(g, positions, theta, head_dim), None
