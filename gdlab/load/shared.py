"""What the importers of models share: two ways to refuse, NumPy's broadcasting, matrix products of any rank."""

from __future__ import annotations

import math

import numpy as np

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value


class Unsupported(Exception):
    """What a node asks for and gdlab cannot give; an importer collects these."""


class Malformed(Exception):
    """What no valid file says: (what, given, wanted)."""


def common(*shapes: Shape) -> Shape:
    """The shape that these broadcast to."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        given = " and ".join(str(list(shape)) for shape in shapes)
        raise Malformed("operands", given, "shapes that broadcast to one") from None


def product(a: Value, b: Value) -> Value:
    """NumPy's `matmul` of operands of rank ≥ 2: leading axes are broadcast."""
    lead = common(a.shape[:-2], b.shape[:-2])
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    if k != rows:
        raise Malformed("operands", f"{a.type} and {b.type}", f"equal inner extents: {k} and {rows} differ")
    if a.type.rank == b.type.rank == 2:
        return ops.matmul(a, b)
    if b.type.rank == 2 or math.prod(b.shape[:-2]) == 1:
        return ops.matmul(a.reshape((-1, k)), b.reshape((k, n))).reshape((*lead, m, n))
    if math.prod(lead) == 1:
        return ops.matmul(a.reshape((m, k)), b.reshape((k, n))).reshape((*lead, m, n))
    stacks = [ops.broadcast_to(v, (*lead, *v.shape[-2:])) if v.shape[:-2] != lead else v for v in (a, b)]
    stacks = [v if v.type.rank == 3 else v.reshape((-1, *v.shape[-2:])) for v in stacks]
    return ops.batch_matmul(*stacks).reshape((*lead, m, n))
