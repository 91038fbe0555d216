"""View the operands of a dispatch as arrays that broadcast by NumPy's rule over its result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.types import Array, Shape
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.dispatch import Operand


def domain(size: int, operands: Sequence[Operand]) -> Shape:
    """Return axes over which every row and column operand broadcasts by NumPy's rule; (size,) where there are none."""
    extents = sorted({o.extent for o in operands if o.access in ("row", "column")} - {1, size})
    axes, inner = [], 1
    for extent in extents:
        if extent % inner:
            return (size,)
        axes.append(extent // inner)
        inner *= extent // inner
    return tuple(reversed([*axes, size // inner]))


def viewed(data: Array, operand: Operand, size: int, shape: Shape) -> tuple[Array, list[NumpyCall]]:
    """Return `data` as an array that broadcasts over `shape`, and the calls that prepare it (none for a view)."""
    flat = data.reshape(-1)
    match operand.access:
        case "full":
            return flat[:size].reshape(shape), []
        case "scalar":
            return flat[:1].reshape(()), []  # NumPy is faster with no axes than with axes of length 1
        case "row" | "column" as access:
            count = operand.extent if access == "row" else size // operand.extent
            lined = _lined_up(flat[:count], operand.extent, size, shape, access)
            if lined is not None:
                return lined, []
            at = np.arange(size, dtype=np.intp)
            at = at % operand.extent if access == "row" else at // operand.extent
            whole = np.zeros(shape, data.dtype)
            return whole, [(np.take, (flat, at.reshape(shape), 0, whole))]
    raise CompileError("kernel", "access", operand.access, "full, row, column or scalar")


def _lined_up(flat: Array, extent: int, size: int, shape: Shape, access: str) -> Array | None:
    """Reshape a row or column to axes of `shape`: extent 1 but for those with product `extent` (row), or the others."""
    inner, axis = 1, len(shape)
    while inner < extent and axis > 0:
        axis -= 1
        inner *= shape[axis]
    if inner != extent and extent != size:
        return None
    if access == "row":
        return flat.reshape((1,) * axis + shape[axis:])
    return flat.reshape(shape[:axis] + (1,) * (len(shape) - axis))
