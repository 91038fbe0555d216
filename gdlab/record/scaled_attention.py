"""State attention with caches of a capacity, as compositions of ops: `sdpa` and `flash_attn_vec`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdlab.base.errors import ArgumentError
from gdlab.base.types import u32
from gdlab.plan.order import Range
from gdlab.record import op_methods
from gdlab.record.buffers import INVERTIBLE, Buffer, integer, positive, real
from gdlab.record.operation import OperandRange, Operation, operation, part, tensor

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

Buffers = Sequence[Buffer]
LIMITS = tensor((3,), u32)  # first and last visible key of row 0, and the last key that is held
WINDOWED, MASKS = 2, (0, 1, 2)
SLABS = 64  # caches of one call whose rows are followed one by one


@dataclass(frozen=True, slots=True)
class SdpaParams:
    """Attention of `seq_len` queries to `kv_seq_len` keys, which lie in caches of `kv_capacity` rows (0: as many)."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    seq_len: int
    kv_seq_len: int
    scale: float
    kv_capacity: int = 0
    causal: bool = True


@dataclass(frozen=True, slots=True)
class FlashAttnVecParams:
    """Attention of one query. `mask_type` 2: only the last `sliding_window` keys; `softcap` > 0: scores are softcap ·
    tanh(score / softcap)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_seq_len: int
    kv_capacity: int
    scale: float
    mask_type: int = 0
    sliding_window: int = 0
    softcap: float = 0.0


def tmp_buffer_bytes(heads: int, head_dim: int) -> int:
    """Return the bytes of the scratch buffer of `flash_attn_vec`."""
    return 32 * heads * (head_dim + 2) * 4


def _heads(where: str, heads: Any, kv_heads: Any, head_dim: Any, names: tuple[str, str]) -> tuple[int, int, int]:
    h, kv, d = integer(where, names[0], heads), integer(where, names[1], kv_heads), integer(where, "head_dim", head_dim)
    if h % kv:
        raise ArgumentError(where, names[1], kv, f"a divisor of {h}")
    return h, kv, d


def _capacity(where: str, capacity: Any, length: int) -> int:
    found = integer(where, "kv_capacity", capacity, 0) or length
    if found < length:
        raise ArgumentError(where, "kv_capacity", found, f"at least kv_seq_len, {length}")
    return found


def sdpa(ex: GraphExecutor, where: str, buffers: Buffers, params: Any, batch_size: Any) -> Operation:
    """Check and lower `sdpa`; buffers: q, k, v, output."""
    if not isinstance(params, SdpaParams):
        raise ArgumentError(where, "params", type(params).__name__, "SdpaParams")
    h, kv, d = _heads(where, params.n_heads, params.n_kv_heads, params.head_dim, ("n_heads", "n_kv_heads"))
    batch, s = integer(where, "batch_size", batch_size), integer(where, "seq_len", params.seq_len)
    length = integer(where, "kv_seq_len", params.kv_seq_len)
    capacity, causal = _capacity(where, params.kv_capacity, length), bool(params.causal)
    if causal and s > length:
        raise ArgumentError(where, "seq_len", s, f"at most kv_seq_len, {length}, where causal")
    last = length - s if causal else length - 1
    return _attention(
        ex, where, buffers, batch, (h, kv, d), s, capacity, (0, last, length - 1), causal, params.scale, 0.0
    )


def flash_attn_vec(ex: GraphExecutor, where: str, buffers: Buffers, params: Any) -> Operation:
    """Check and lower `flash_attn_vec`; buffers: q, k, v, output, tmp."""
    if not isinstance(params, FlashAttnVecParams):
        raise ArgumentError(where, "params", type(params).__name__, "FlashAttnVecParams")
    h, kv, d = _heads(where, params.num_heads, params.num_kv_heads, params.head_dim, ("num_heads", "num_kv_heads"))
    length = integer(where, "kv_seq_len", params.kv_seq_len)
    capacity = _capacity(where, params.kv_capacity, length)
    if integer(where, "mask_type", params.mask_type, 0) not in MASKS:
        raise ArgumentError(where, "mask_type", params.mask_type, "0, 1 (all keys) or 2 (a sliding window)")
    first = 0
    if params.mask_type == WINDOWED:
        first = max(0, length - integer(where, "sliding_window", params.sliding_window))
    softcap = real(where, "softcap", params.softcap, "a finite number ≥ 0", lambda v: v >= 0)
    softcap = softcap and positive(where, "softcap", softcap, INVERTIBLE)
    limits = first, length - 1, length - 1
    return _attention(ex, where, buffers, 1, (h, kv, d), 1, capacity, limits, False, params.scale, softcap)


def _attention(
    ex: GraphExecutor, where: str, buffers: Buffers, batch: int, heads: tuple[int, int, int], s: int, capacity: int,
    limits: tuple[int, int, int], causal: bool, scale: Any, softcap: float,
) -> Operation:  # fmt: skip
    h, kv, d = heads
    scale = real(where, "scale", scale, "a finite number")
    rows, cache = (batch * kv, h // kv * s, d), (batch * kv, capacity, d)
    q, k, v, out = (
        part(ex, where, name, buffers, i, tensor(shape), least=True)
        for i, (name, shape) in enumerate((("q", rows), ("k", cache), ("v", cache), ("output", rows)))
    )
    written: tuple[Range, ...] = ()
    if len(buffers) > 4:
        size = tmp_buffer_bytes(h, d)
        written = (part(ex, where, "tmp", buffers, 4, tensor((size // 4,)), least=True).range,)
    held = limits[0], limits[2] + 1
    reads = (q.range, *_rows(k, batch * kv, capacity, held), *_rows(v, batch * kv, capacity, held))
    full = held == (0, capacity)
    attrs = ("seq", s), ("causal", causal), ("scale", scale), ("softcap", softcap)
    return operation(
        ex, where, op_methods.attention, (q, k, v), out, attrs, kind="sdpa", numbers=() if full else limits,
        numbered=() if full else (LIMITS,), fuse=True, also_written=written, reads=reads,
    )  # fmt: skip


def _rows(cache: OperandRange, slabs: int, capacity: int, held: tuple[int, int]) -> tuple[Range, ...]:
    """Return the rows first … stop − 1 of every slab of a cache; with many slabs, all rows."""
    memory, start, stop = cache.range
    if slabs > SLABS:
        return (cache.range,)
    slab = (stop - start) // slabs
    row = slab // capacity
    return tuple(
        Range(memory, start + i * slab + held[0] * row, start + i * slab + held[1] * row) for i in range(slabs)
    )
