"""Resize and Upsample: by the nearest element, linear or cubic, as constant places and weights per axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from gdlab import ops
from gdlab.base.types import Array
from gdlab.graph import Value
from gdlab.load.onnx.onnx_layout import repeated, taken
from gdlab.load.onnx.tensor import OnnxCall, Table, Tensor, axis_of, fitted, known
from gdlab.load.shared import Malformed, Unsupported

MOST_TAPS = 4  # elements that are gathered one by one for each new one; more are a product with a matrix


# places and weights ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """The resizing of one axis: its old and new extent, their ratio, and the part that a crop asks for."""

    old: int
    new: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def length(self) -> float:
        """The new extent before it is rounded down."""
        return self.scale * self.old


def _cropped(i: Array, line: ResizedAxis) -> Array:
    if line.new == 1:
        return i * 0.0 + 0.5 * (line.start + line.end) * (line.old - 1)
    return line.start * (line.old - 1) + i * ((line.end - line.start) * (line.old - 1) / (line.new - 1))


def _half_symmetric(i: Array, line: ResizedAxis) -> Array:
    centre = line.old / 2
    return centre * (1 - line.new / line.length) + (i + 0.5) / line.scale - 0.5


Place = Callable[[Array, ResizedAxis], Array]  # places in the new -> places in the old
PLACES: dict[str, Place] = {
    "half_pixel": lambda i, line: (i + 0.5) / line.scale - 0.5,
    "pytorch_half_pixel": lambda i, line: (i + 0.5) / line.scale - 0.5 if line.new > 1 else i * 0.0,
    "asymmetric": lambda i, line: i / line.scale,
    "align_corners": lambda i, line: i * ((line.old - 1) / (line.length - 1)) if line.new > 1 else i * 0.0,
    "half_pixel_symmetric": _half_symmetric,
    "tf_half_pixel_for_nn": lambda i, line: (i + 0.5) / line.scale,
    "tf_crop_and_resize": _cropped,
}  # fmt: skip
NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5), "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip


def _tent(x: Array) -> Array:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _keys(a: float) -> Callable[[Array], Array]:
    """Return the cubic kernel of R. Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981."""

    def kernel(x: Array) -> Array:
        x = np.abs(x)
        near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _taps(
    at: Array, line: ResizedAxis, kernel: Callable[[Array], Array], reach: int, wide: float, outside: bool
) -> _Taps:
    """Return the elements around each place and their weights: i64[new, taps] and f64[new, taps]. `reach`: how far the
    kernel goes, `wide`: times as far; `outside`: elements that are not there count nothing."""
    far = math.ceil(reach * wide)
    places = np.floor(at)[:, None] + np.arange(1 - far, far + 1)
    weights = kernel((places - at[:, None]) / wide)
    if outside:
        weights = np.where((places < 0) | (places >= line.old), 0.0, weights)
    if outside or wide > 1:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(places, 0, line.old - 1).astype(np.int64), weights


_Taps = tuple[Array, Array]


# ops ------------------------------------------------------------------------------------------------------------------
def _resize(call: OnnxCall) -> Tensor:
    mode, where, how = call.text("mode", "nearest"), "asymmetric", "floor"
    if call.opset >= 11:
        where = call.text("coordinate_transformation_mode", "half_pixel")
        how = call.text("nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"mode={mode}, where nearest, linear and cubic are taken")
    if where not in PLACES or how not in NEAREST:
        raise Unsupported(f"{where} with {how}")
    scales, sizes = (_lasting(call, 1), None) if call.opset < 11 else (_lasting(call, 2), _lasting(call, 3))
    lines = _kept_aspect(call, _lines(call, scales, sizes), sizes)
    return _resized(call, lines, mode, where, how)


def _upsample(call: OnnxCall) -> Tensor:
    given, mode = call.node.attrs.get("scales"), call.text("mode", "nearest")
    scales = _lasting(call, 1) if given is None else tuple(given)
    if mode not in ("nearest", "linear"):
        raise Unsupported(f"mode={mode}")
    return _resized(call, _lines(call, scales, None), mode, "asymmetric", "floor")


def _lasting(call: OnnxCall, i: int) -> tuple[float, ...] | None:
    """Return the constant numbers of an operand, None if there are none."""
    array = call.static(i)
    return None if array is None or not array.size else tuple(array.reshape(-1).tolist())


Numbers = tuple[float, ...] | None


def _lines(call: OnnxCall, scales: Numbers, sizes: Numbers) -> dict[int, ResizedAxis]:
    """Return the resizing of each axis."""
    x, given = call.tensor(0), sizes if scales is None else scales
    rank = len(x.shape)
    axes = [axis_of(a, rank) for a in call.integers("axes") or range(rank)]
    if given is None or len(given) != len(axes) or not all(math.isfinite(n) and n > 0 for n in given):
        raise Malformed("scales or sizes", given, f"{len(axes)} numbers above 0")
    crop = _crop(call, len(axes))
    lines = {}
    for axis, number, (start, end) in zip(axes, given, crop, strict=True):
        old = x.shape[axis]
        if scales is None:
            new, scale = int(number), number / old
        else:
            new, scale = math.floor(old * (end - start) * number), float(number)
        call.home.check_size((new,))
        lines[axis] = ResizedAxis(old, new, scale, start, end)
    return lines


def _crop(call: OnnxCall, count: int) -> list[tuple[float, float]]:
    """Return the part of each axis that a crop asks for."""
    if call.opset < 11 or call.text("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    roi = _lasting(call, 1)
    if roi is None or len(roi) != 2 * count:
        raise Malformed("roi", roi, f"{2 * count} numbers")
    return list(zip(roi[:count], roi[count:], strict=True))


def _kept_aspect(call: OnnxCall, lines: dict[int, ResizedAxis], sizes: Numbers) -> dict[int, ResizedAxis]:
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if sizes is None or policy == "stretch":
        return lines
    choose = {"not_larger": min, "not_smaller": max}.get(policy)
    if choose is None:
        raise Malformed("keep_aspect_ratio_policy", repr(policy), "stretch, not_larger or not_smaller")
    scale = choose(line.scale for line in lines.values())
    return {axis: ResizedAxis(line.old, math.floor(scale * line.old + 0.5), scale) for axis, line in lines.items()}


def _resized(call: OnnxCall, lines: dict[int, ResizedAxis], mode: str, where: str, how: str) -> Tensor:
    x = call.tensor(0)
    at = {axis: PLACES[where](np.arange(line.new, dtype=np.float64), line) for axis, line in lines.items()}
    if mode == "nearest" and where != "tf_crop_and_resize":
        found = {axis: NEAREST[how](places) for axis, places in at.items()}
        return _at_places(call, x, {a: np.clip(p, 0, lines[a].old - 1).astype(np.int64) for a, p in found.items()})
    if mode == "nearest":
        taps = {a: (np.clip(NEAREST[how](p), 0, lines[a].old - 1).astype(np.int64)[:, None], np.ones((len(p), 1)))
                for a, p in at.items()}  # fmt: skip
    else:
        taps = {a: _weighted(call, p, lines[a], mode) for a, p in at.items() if not _same(p, lines[a])}
    if not taps:
        return x
    if x.kind != "float" and mode != "nearest":
        raise Unsupported(f"mode={mode} of integers")
    value = call.home.number(x).reshape(x.held)
    for axis, (places, weights) in taps.items():
        value = _along(call, value, axis, places, weights)
    value = _filled(call, value, lines, at) if where == "tf_crop_and_resize" else value
    return fitted(value, tuple(lines[i].new if i in lines else n for i, n in enumerate(x.shape)), x.kind)


def _same(places: Array, line: ResizedAxis) -> bool:
    return line.new == line.old and bool((places == np.arange(line.old)).all())


def _weighted(call: OnnxCall, at: Array, line: ResizedAxis, mode: str) -> _Taps:
    kernel, reach = (_tent, 1) if mode == "linear" else (_keys(call.real("cubic_coeff_a", -0.75)), 2)
    wide = max(1.0, 1 / line.scale) if call.integer("antialias") else 1.0
    outside = bool(call.integer("exclude_outside"))
    if mode == "linear" and not outside and wide == 1:
        at = np.clip(at, 0, line.old - 1)
    call.home.check_size((len(at), 2 * math.ceil(reach * wide)))
    return _taps(at, line, kernel, reach, wide, outside)


def _along(call: OnnxCall, value: Value, axis: int, places: Array, weights: Array) -> Value:
    """Make every new element as a weighted sum of old ones along an axis."""
    new, count = places.shape
    if count <= MOST_TAPS:
        lined = tuple(new if i == axis else 1 for i in range(value.type.rank))
        parts = []
        for tap in range(count):
            if weights[:, tap].any():
                old = taken(call.home, Tensor(value.shape, value=value), axis, places[:, tap].tolist())
                found, share = call.home.value(old), weights[:, tap].astype(np.float32)
                parts.append(found if (share == 1).all() else found * ops.constant(share.reshape(lined)))
        return reduce(ops.add, parts)
    extent = value.shape[axis]
    call.home.check_size((extent, new))
    matrix = np.zeros((extent, new))
    np.add.at(matrix, (places, np.arange(new)[:, None]), weights)
    order = (*(i for i in range(value.type.rank) if i != axis), axis)
    rows = ops.permute(value, order)
    made = ops.matmul(rows.reshape((-1, extent)), ops.constant(matrix.astype(np.float32)))
    made = made.reshape((*rows.shape[:-1], new))
    return ops.permute(made, tuple(order.index(i) for i in range(len(order))))


def _filled(call: OnnxCall, value: Value, lines: dict[int, ResizedAxis], at: dict[int, Array]) -> Value:
    """Put the extrapolation value where a crop goes beyond the image."""
    inside = np.ones((1,) * value.type.rank, np.bool_)
    for axis, places in at.items():
        lined = tuple(len(places) if i == axis else 1 for i in range(value.type.rank))
        inside = inside & ((places >= 0) & (places <= lines[axis].old - 1)).reshape(lined)
    if inside.all():
        return value
    call.home.check_size(inside.shape)
    mask = call.home.number(known(np.broadcast_to(inside, value.shape)))
    return ops.where(mask, value, call.real("extrapolation_value"))


def _at_places(call: OnnxCall, x: Tensor, places: dict[int, Array]) -> Tensor:
    """Return the elements at these places, axis by axis: repeated where each comes equally often in order, else
    gathered."""
    factors = [1] * len(x.shape)
    for axis, at in places.items():
        r, left = divmod(len(at), x.shape[axis])
        if r >= 1 and not left and (at == np.arange(len(at)) // r).all():
            factors[axis] = r
        else:
            x = taken(call.home, x, axis, at.tolist())
    value = call.home.number(x)
    if len(factors) == 4 and factors[:2] == [1, 1]:
        out = value if factors == [1] * 4 else ops.upsample_nearest(value, factors[2], factors[3])
    else:
        out = repeated(value, tuple(factors))
    return fitted(out, out.shape if x.shape else (), x.kind)


RESIZING: Table = {"Resize": _resize, "Upsample": _upsample}
