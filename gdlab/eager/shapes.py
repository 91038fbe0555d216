"""Shapes and broadcasting as plain lists of ints."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.base.errors import ShapeError
from gdlab.base.types import check_shape


def dims_array(shape: Sequence[int]) -> list[int]:
    """Return the extents as a list."""
    return list(check_shape(shape, "dims_array"))


def axis_map_array(src: Sequence[int], dst: Sequence[int]) -> list[int]:
    """Return, for each axis of `dst`, 0 where `src` has none, else 1 + the axis of `src` that is broadcast to it."""
    src, dst = check_shape(src, "axis_map_array"), check_shape(dst, "axis_map_array")
    lead = len(dst) - len(src)
    if lead < 0 or any(n not in (1, dst[lead + k]) for k, n in enumerate(src)):
        raise ShapeError("axis_map_array", "shapes", f"{list(src)} and {list(dst)}", "one that broadcasts to the other")
    return [max(0, axis - lead + 1) for axis in range(len(dst))]
