"""`packed`: weights side by side in one tensor. Of parameters that nothing else reads it is their storage."""

from __future__ import annotations

from gdlab.graph import Value
from gdlab.op import Grads, Sample, Shader, Values, op, want
from gdlab.ops.join import concat, places
from gdlab.types import TensorType, f32


@op(
    numpy=concat.numpy,
    kernel=Shader("concat.wgsl", places, linear=True),
    samples=(Sample((3, 2), (3, 2), attrs={"axis": 1}), Sample((3, 2), (70, 2), attrs={"axis": 0}),
             Sample((2, 3), (2, 1), (2, 5), attrs={"axis": 1})),
    kind="private",
    family="movement",
)  # fmt: skip
def packed(values: Values, axis: int) -> TensorType:
    """What `concat` makes of matrices along axis 0 or 1: f32[k, n], f32[k, m], … -> f32[k, n + m + …]."""
    want(axis in (0, 1), "0 or 1", axis, "axis")
    want(all(v.type.rank == 2 and v.type.dtype is f32 for v in values), "f32 matrices")
    return concat.rule(values, axis)  # type: ignore[no-any-return]


@packed.vjp
def _(g: Value, out: Value, values: Values, axis: int) -> Grads:
    assert concat.gradient is not None  # stated beside it
    return concat.gradient(g, out, values, axis)
