"""Run rotary positions with NumPy."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

_TO_RADIANS = 2 * np.pi / 2.0**48
_MASK = np.uint64(2**48 - 1)


def _turn(builder: KernelBuilder, c: KernelConstants, cosine: Array, sine: Array) -> None:
    """Turn the pairs of x by angles given as `_both` makes them: whole rows at once, the sines times the other halves
    (64 x 4 heads of 64: 22 µs, half by half 72; EPYC, 2026-11-24)."""
    shape = c["ROWS"], c["HEADS"], 2, c["HALF"]
    x, out, product = builder.operand(0, shape), builder.out(shape), builder.temporary(shape)
    builder.calls += [
        (np.multiply, (x, cosine, out)),
        (np.multiply, (x[:, :, ::-1], sine, product)),
        (np.add, (out, product, out)),
    ]


def _both(angles: Array, sign: float, cosine: Array, sine: Array) -> None:
    """Write the numbers f32[rows, 1, 2, half] for both halves of a head: cos, cos and −sin, sin of the angles
    f64[rows, 1, half], whose sign this is."""
    np.copyto(cosine, np.cos(angles)[:, :, None])
    np.copyto(sine, np.array([[-sign], [sign]]) * np.sin(angles)[:, :, None])


def _angles(positions: Array, rates: Array) -> Array:
    """Return angles f64[rows, 1, half]: a product of integers drops whole turns; the rest, of 48 bits, is below 2π."""
    turns: Array = (positions[:, None].astype(np.uint64) * rates) & _MASK
    return (turns * _TO_RADIANS)[:, None, :]


def _set(positions: Array, first: Array, rates: Array, sign: float, cosine: Array, sine: Array) -> None:
    _both(_angles(positions + first.astype(np.uint64), rates), sign, cosine, sine)


def _set_scaled(
    positions: Array, first: Array, factors: Array, rates: Array, sign: float, cosine: Array, sine: Array
) -> None:  # fmt: skip
    angles = np.outer(positions + first.astype(np.uint64), rates / factors.astype(np.float64))[:, None, :]
    _both(angles, sign, cosine, sine)


def rope_offset_form(builder: KernelBuilder, c: KernelConstants) -> None:
    if "freq_factors" in c.names:
        return rope_dynamic_form(builder, c)
    cosine, sine = np.empty((2, c["ROWS"], 1, 2, c["HALF"]), np.float32)
    _both(_angles(np.arange(c["ROWS"]) + c["OFFSET"], _rates(c)), _sign(c), cosine, sine)
    _turn(builder, c, cosine, sine)


def rope_dynamic_form(builder: KernelBuilder, c: KernelConstants) -> None:
    """Count positions from operand 1, or where there is none from the offset."""
    _from_operands(builder, c, np.arange(c["ROWS"], dtype=np.uint64) + c["OFFSET"])


def rope_positions_form(builder: KernelBuilder, c: KernelConstants) -> None:
    """Take the position of every row from operand 1."""
    _from_operands(builder, c, np.zeros(c["ROWS"], np.uint64))


def _from_operands(builder: KernelBuilder, c: KernelConstants, start: Array) -> None:
    """Turn by `start` plus the positions in the operands, computed anew in every run."""
    shape = c["ROWS"], 1, 2, c["HALF"]
    cosine, sine = builder.temporary(shape), builder.temporary(shape)
    operands = {name: builder.operand(i, builder.operand_shape(i)) for i, name in enumerate(c.names)}
    given = operands.get("offset", operands.get("positions", np.zeros(1, np.uint32)))
    factors = operands.get("freq_factors")
    if factors is None:
        builder.calls.append((_set, (start, given, _rates(c), _sign(c), cosine, sine)))
    else:
        builder.calls.append((_set_scaled, (start, given, factors, _speeds(c), _sign(c), cosine, sine)))
    _turn(builder, c, cosine, sine)


def _rates(c: KernelConstants) -> Array:
    tables = dict(c.tables)
    return (np.array(tables["rates"], np.uint64) << np.uint64(16)) | np.array(tables["rests"], np.uint64)


def _speeds(c: KernelConstants) -> Array:
    """Return radians per position in float64; for more than a turn (θ < 1) in float32."""
    exact, rough = _rates(c) * _TO_RADIANS, np.array(dict(c.tables)["speeds"], np.uint32).view(np.float32)
    return np.where(np.isclose(exact, rough, rtol=1e-6, atol=0), exact, rough)


def _sign(c: KernelConstants) -> float:
    return -1.0 if c["BACK"] else 1.0


ROPE_FORMS = {
    "rope_offset": rope_offset_form, "rope_dynamic": rope_dynamic_form, "rope_positions": rope_positions_form,
}  # fmt: skip
