"""Check the arguments of a session's op methods and state each as an `Operation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gdlab.base.errors import ArgumentError, DTypeError
from gdlab.base.types import HALVES, DType, f32, u32
from gdlab.record import op_methods
from gdlab.record.buffers import INVERTIBLE, SHARED_WORD, Buffer, checked_dtype, integer, positive
from gdlab.record.operation import Operation, OpKind, checked_buffer, operation, part, tensor

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

Buffers = Sequence[Buffer]


def _dtype(ex: GraphExecutor, where: str, buffer: Any) -> DType:
    """Return the dtype of all float tensors of an op: that of its input."""
    given = checked_buffer(ex, where, "input", buffer).dtype
    return given if given in HALVES else f32


def rms_norm(ex: GraphExecutor, where: str, buffers: Buffers, rows: Any, dim: Any, eps: Any) -> Operation:
    """Check and lower `rms_norm`."""
    rows, dim, eps = integer(where, "rows", rows), integer(where, "dim", dim), positive(where, "eps", eps)
    dtype = _dtype(ex, where, buffers[0])
    x, w, y = (
        part(ex, where, name, buffers, i, tensor(shape, dtype))
        for i, (name, shape) in enumerate((("input", (rows, dim)), ("weight", (dim,)), ("output", (rows, dim))))
    )
    return operation(
        ex, where, op_methods.rms_norm, (x, w), y, (("eps", eps),), kind="rms_norm", in_place=x.range != w.range
    )


def rms_norm_no_scale_f32(ex: GraphExecutor, where: str, buffers: Buffers, rows: Any, dim: Any, eps: Any) -> Operation:
    """Check and lower `rms_norm_no_scale_f32`."""
    rows, dim, eps = integer(where, "rows", rows), integer(where, "dim", dim), positive(where, "eps", eps)
    x, y = (part(ex, where, name, buffers, i, tensor((rows, dim))) for i, name in enumerate(("input", "output")))
    return operation(
        ex, where, op_methods.rms_norm_no_scale, (x,), y, (("eps", eps),), kind="rms_norm", in_place=True, fuse=True
    )


def _elementwise(
    ex: GraphExecutor, where: str, buffers: Buffers, n: Any, dtype: Any, function: Any, kind: OpKind
) -> Operation:
    n = integer(where, "n_elements", n)
    element = checked_dtype(where, dtype)
    if element is u32:
        raise DTypeError(where, "dtype", str(dtype), "f32, f16 or bf16")
    type = tensor((n,), element)
    a, b, out = (part(ex, where, name, buffers, i, type, least=True) for i, name in enumerate(("a", "b", "output")))
    if element in HALVES and n % 2 and n < buffers[2].element_count:
        raise ArgumentError(where, "n_elements", n, f"{SHARED_WORD} all {buffers[2].element_count} of output")
    return operation(ex, where, function, (a, b), out, kind=kind, in_place=True)


def elementwise_add(ex: GraphExecutor, where: str, buffers: Buffers, n: Any, dtype: Any) -> Operation:
    """Check and lower `elementwise_add`."""
    return _elementwise(ex, where, buffers, n, dtype, op_methods.add, "elementwise_add")


def elementwise_mul(ex: GraphExecutor, where: str, buffers: Buffers, n: Any, dtype: Any) -> Operation:
    """Check and lower `elementwise_mul`."""
    return _elementwise(ex, where, buffers, n, dtype, op_methods.mul, "elementwise_mul")


def _flat(ex: GraphExecutor, where: str, buffers: Buffers, function: Any, *attrs: tuple[str, Any]) -> Operation:
    """Check and lower an op on each element."""
    dtype, n = _dtype(ex, where, buffers[0]), buffers[0].element_count
    x, y = (part(ex, where, name, buffers, i, tensor((n,), dtype)) for i, name in enumerate(("input", "output")))
    return operation(ex, where, function, (x,), y, attrs, in_place=True, fuse=True)


def gelu(ex: GraphExecutor, where: str, buffers: Buffers) -> Operation:
    """Check and lower `gelu`."""
    return _flat(ex, where, buffers, op_methods.gelu)


def softcap(ex: GraphExecutor, where: str, buffers: Buffers, cap: Any) -> Operation:
    """Check and lower `softcap`."""
    cap = positive(where, "cap", cap, INVERTIBLE)
    return _flat(ex, where, buffers, op_methods.softcap, ("cap", cap))


def softmax(ex: GraphExecutor, where: str, buffers: Buffers, rows: Any, cols: Any) -> Operation:
    """Check and lower `softmax`."""
    shape, dtype = (integer(where, "rows", rows), integer(where, "cols", cols)), _dtype(ex, where, buffers[0])
    x, y = (part(ex, where, name, buffers, i, tensor(shape, dtype)) for i, name in enumerate(("input", "output")))
    return operation(ex, where, op_methods.softmax, (x,), y, kind="softmax", in_place=True)


def _even(where: str, what: str, given: Any, least: int) -> int:
    found = integer(where, what, given, least)
    if found % 2:
        raise ArgumentError(where, what, found, "an even number")
    return found


def rope(ex: GraphExecutor, where: str, buffers: Buffers, seq_len: Any, head_dim: Any, theta: Any) -> Operation:
    """Check and lower `rope`; buffers: input, output, positions."""
    length, d = integer(where, "seq_len", seq_len), _even(where, "head_dim", head_dim, 2)
    theta = positive(where, "theta", theta)
    dtype = _dtype(ex, where, buffers[0])
    x, y = (part(ex, where, name, buffers, i, tensor((length, d), dtype)) for i, name in enumerate(("input", "output")))
    positions = part(ex, where, "positions", buffers, 2, tensor((length,), u32), least=True)
    return operation(ex, where, op_methods.rope, (x, positions), y, (("theta", theta),), in_place=True, fuse=True)


def rope_neox_f32(
    ex: GraphExecutor, where: str, buffers: Buffers, seq_len: Any, n_heads: Any, head_dim: Any, rope_dim: Any,
    theta: Any, pairing: Any,
) -> Operation:  # fmt: skip
    """Check and lower `rope_neox_f32`; buffers: input, output, positions, and perhaps factors."""
    length, heads = integer(where, "seq_len", seq_len), integer(where, "n_heads", n_heads)
    d, turned, theta = (
        _even(where, "head_dim", head_dim, 2),
        _even(where, "rope_dim", rope_dim, 0),
        positive(where, "theta", theta),
    )
    if not isinstance(pairing, str) or pairing not in ("head", "rope"):
        raise ArgumentError(where, "pairing", f"{pairing!r:.60}", "'head' or 'rope'")
    if turned > d:
        raise ArgumentError(where, "rope_dim", turned, f"0 … {d}, that of a head")
    shape = length * heads, d
    x, y = (part(ex, where, name, buffers, i, tensor(shape)) for i, name in enumerate(("input", "output")))
    positions = part(ex, where, "positions", buffers, 2, tensor((length,), u32), least=True)
    if not turned:
        return operation(ex, where, op_methods.copied, (x,), y, in_place=True)
    factors = [
        part(ex, where, "freq_factors", buffers, i, tensor((turned // 2,)), least=True) for i in range(3, len(buffers))
    ]
    attrs = (("n_heads", heads), ("head_dim", d), ("rope_dim", turned), ("theta", theta))
    build = op_methods.rope_leading if pairing == "rope" and turned < d else op_methods.rope_neox
    return operation(ex, where, build, (x, positions, *factors), y, attrs, in_place=True, fuse=True)
