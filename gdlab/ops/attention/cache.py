"""Decode token by token: write rows into a cache of keys or values, and attend to its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Value
from gdlab.op import (
    Bad,
    Call,
    Follows,
    Refused,
    Sample,
    Shader,
    Verdict,
    Work,
    along,
    op,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.attention.attention_grad import CAPPED_ROWS, ROWS, alone, attend, constants, extents, flops, together
from gdlab.ops.attention.attention_numpy import cap, of_seen


def _check_types(wanted: str, floats: tuple[Value, ...], counts: tuple[Value, ...]) -> None:
    if any(v.type.dtype is not f32 for v in floats) or any(c.type.dtype is not u32 for c in counts):
        raise Refused(wanted, error=DTypeError)
    want(counts[0].type.rank == 1 and all(c.shape == (1,) for c in counts[1:]), wanted)


def _check_caches(wanted: str, rows: int, capacity: int, caches: int) -> None:
    """Refuse rows and caches that do not share out among the positions."""
    given = f"{wanted}: {rows} rows and {capacity} of caches for {caches} positions"
    want(rows % caches == 0 and capacity % caches == 0, given)


# writing --------------------------------------------------------------------------------------------------------------
def _write_work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    rows, width = result.shape
    return Work(rows * width, 0, _write_numbers(types[0], types[2], result))


def _in_place(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    """Return the work of a write in place: only the new rows."""
    new, width = types[0].shape
    return Work(new * width, 0, _write_numbers(types[0], types[2], result))


def _write_numbers(new: TensorType, pos: TensorType, result: TensorType) -> dict[str, int | float]:
    rows, width = result.shape
    return {"ROWS": rows, "WIDTH": width, "NEW": new.shape[0], "CACHES": pos.shape[0]}


def _write_form(builder: KernelBuilder, c: KernelConstants) -> None:
    builder.calls.append((_put_copy, (_new_rows(builder, c), _caches(builder, c, 1), *_places(builder, c, 2))))


def _in_place_form(builder: KernelBuilder, c: KernelConstants) -> None:
    builder.calls.append((_put, (_new_rows(builder, c), *_places(builder, c, 1))))


def _new_rows(builder: KernelBuilder, c: KernelConstants) -> Any:
    return builder.operand(0, (c["CACHES"], c["NEW"] // c["CACHES"], c["WIDTH"]))


def _caches(builder: KernelBuilder, c: KernelConstants, place: int) -> Any:
    return builder.operand(place, (c["CACHES"], c["ROWS"] // c["CACHES"], c["WIDTH"]))


def _places(builder: KernelBuilder, c: KernelConstants, first: int) -> tuple[Any, ...]:
    """Return the result, the positions and, where there is one, the count: operands from `first` on."""
    out = builder.out((c["CACHES"], c["ROWS"] // c["CACHES"], c["WIDTH"]))
    counts = [builder.operand(i, (1,)) for i in range(first + 1, len(c.names))]
    return out, builder.operand(first, (c["CACHES"],)), *counts


def _put_copy(new: Array, cache: Array, out: Array, pos: Array, count: Array | None = None) -> None:
    np.copyto(out, cache)
    _put(new, out, pos, count)


def _put(new: Array, out: Array, pos: Array, count: Array | None = None) -> None:
    """Write [caches, rows, width] into [caches, capacity, width]."""
    rows = new.shape[1] if count is None else min(int(count[0]), new.shape[1])
    for own, start in enumerate(map(int, pos)):
        if start + rows <= out.shape[1]:
            out[own, start : start + rows] = new[own, :rows]


def _write_kernel(how: str) -> Shader:
    """Return the kernel that writes all new rows (cache_all), or the first `count` (cache_prefix)."""
    in_place = Shader(f"cache_in_place.wgsl + {how}.wgsl", _in_place, numpy_form=_in_place_form)
    file = f"{how}.wgsl + cache_write.wgsl"
    return Shader(file, _write_work, linear=True, in_place=in_place, numpy_form=_write_form)


def _written(new: Array, cache: Array, pos: Array, count: int | None = None) -> Array:
    out, caches = cache.copy(), len(pos)
    counts = None if count is None else np.array([count])
    _put(new.reshape(caches, -1, new.shape[1]), out.reshape(caches, -1, new.shape[1]), pos, counts)
    return out


def _check_write(new: Value, cache: Value, *counts: Value) -> TensorType:
    wanted = "new[rows, width], cache[capacity, width] and u32[caches] of positions"
    _check_types(wanted, (new, cache), counts)
    want(new.type.rank == cache.type.rank == 2 and new.shape[1] == cache.shape[1], wanted)
    want(new.shape[0] <= cache.shape[0], f"{wanted}: {new.shape[0]} rows do not fit in {cache.shape[0]}")
    _check_caches(wanted, new.shape[0], cache.shape[0], counts[0].shape[0])
    return cache.type


WRITES = ((1, 5, 4), (2, 7, 3), (3, 3, 1))  # rows, capacity, width
NOT_CACHED = (
    Bad(("f32[2, 3]", "f32[5, 4]", "u32[1]"), "wanted new[rows, width], cache[capacity, width]"),
    Bad(("f32[2, 4]", "f32[5, 4]", "u32[1, 1]"), "and u32[caches] of positions"),
    Bad(("f32[2, 4]", "f32[5, 4]", "f32[1]"), "and u32[caches] of positions"),
    Bad(("f32[2, 4]", "f32[5, 4]", "u32[2]"), "2 rows and 5 of caches for 2 positions"),
    Bad(("f32[3, 4]", "f32[6, 4]", "u32[2]"), "3 rows and 6 of caches for 2 positions"),
    Bad(("f32[6, 4]", "f32[5, 4]", "u32[1]"), "6 rows do not fit in 5"),
)


def _first_rows(call: Call) -> Verdict:
    """Write only the active new rows of a bucket axis, where they go to one cache."""
    one = call.types[2].shape == (1,)
    labels = [("row" if one else None, "w"), (None, "w"), *[(None,)] * (len(call.types) - 2)]
    verdict = along(call, labels, (None, "w"), ordered=["row"], dropped=["row"])
    tag = next((tag for tag in verdict.operands[0] if tag.axis == 0), None)
    if tag is None:
        return verdict

    def build(n: Value, operands: Sequence[Value]) -> Value:
        new, cache, pos, *count = operands
        active = n.scale(float(tag.inner)) if tag.inner > 1 else n
        least = active.minimum(count[0].to_f32()) if count else active
        return cache_write_prefix(new, cache, pos, least.to_u32())

    return replace(verdict, build=build)


@op(
    numpy=lambda new, cache, pos: _written(new, cache, pos),
    kernel=_write_kernel("cache_all"),
    family="index",
    any_dtype=True,
    no_grad="refuses",
    samples=(
        *(Sample((r, w), (c, w), (1,), integers={2: c - r + 1}) for r, c, w in WRITES),
        Sample((2, 3), (4, 3), (1,), integers={2: 9}, values=(None, None, [3]), kink=True),  # one row too far: dropped
        Sample((3, 5), (12, 5), (3,), integers={2: 4}),
        Sample((4, 3), (8, 3), (2,), integers={2: 9}, values=(None, None, [3, 1]), kink=True),
    ),
    bad=NOT_CACHED,
    opaque=True,
    follows=_first_rows,
    by_position="cache_write",
)
def cache_write(new: Value, cache: Value, pos: Value) -> TensorType:
    """The cache with rows pos … replaced by the new ones: f32[r, w], f32[c, w], u32[1] -> f32[c, w]. With u32[n] of
    positions both are n parts of equal size, and the rows of part i go to pos[i] … of cache i.

    Where the cache is a parameter, the plan writes into it, and the rows stay there from step to step; nothing else may
    read that parameter: pass the result on. It is written when an output needs the result. Rows that would not fit are
    not written at all, which `step_debug` tells. It has no gradient.
    """
    return _check_write(new, cache, pos)


@op(
    numpy=lambda new, cache, pos, count: _written(new, cache, pos, int(count[0])),
    kernel=_write_kernel("cache_prefix"),
    family="index",
    any_dtype=True,
    no_grad="refuses",
    samples=(
        *(Sample((r, w), (c, w), (1,), (1,), integers={2: c - r + 1, 3: r + 1}) for r, c, w in WRITES),
        Sample((2, 3), (4, 3), (1,), (1,), integers={2: 9, 3: 9}, values=(None, None, [3], [2]), kink=True),
        Sample((6, 3), (10, 3), (2,), (1,), integers={2: 9, 3: 9}, values=(None, None, [3, 0], [2]), kink=True),
    ),
    bad=tuple(Bad((*b.types, "u32[1]"), b.message) for b in NOT_CACHED),
    opaque=True,
    follows=_first_rows,
)
def cache_write_prefix(new: Value, cache: Value, pos: Value, count: Value) -> TensorType:
    """The cache with rows pos … pos + count − 1 replaced by the first `count` new ones: f32[r, w], f32[c, w], u32[1],
    u32[1] -> f32[c, w]. A parameter is written in place, and u32[n] of positions mean n caches, as in `cache_write`,
    with `count` rows for each. Rows that would not fit are not written. It has no gradient."""
    return _check_write(new, cache, pos, count)


# reading --------------------------------------------------------------------------------------------------------------
READS = "attention_scores attention_values"
KEY_GROUP = 512  # invocations that share the keys of a query
CHUNK, MOST_CHUNKS = 256, 32  # keys of a chunk at least, and chunks of a query's keys
FEW_UNITS = 512  # queries times heads that leave hardware idle unless their keys are worked on in chunks


def _read_form(builder: KernelBuilder, c: KernelConstants) -> None:
    caches, heads, kv, d = (c[name] for name in ("CACHES", "HEADS", "KV_HEADS", "D"))
    keys, own = c["KEYS"] // caches, (caches, c["BLOCK"], kv, heads // kv, d)
    q = builder.operand(0, own).transpose(0, 2, 3, 1, 4)
    k, v = (builder.operand(i, (caches, keys, kv, 1, d)).transpose(0, 2, 3, 1, 4) for i in (1, 2))
    out = builder.out(own).transpose(0, 2, 3, 1, 4)
    counts = [builder.operand(3, (caches,)), *(builder.operand(i, (1,)) for i in range(4, len(c.names)))]
    bounds = c["WINDOW"], dict(c.numbers).get("SOFTCAP", 0.0)
    builder.calls.append((_attend_all, (q, k, v, out, bounds, *counts)))


def _attend_all(
    q: Array, k: Array, v: Array, out: Array, bounds: tuple[int, float], pos: Array, valid: Array | None = None
) -> None:
    """Attend to every cache: [caches, kv, group, rows, d]."""
    for own in range(len(q)):
        _attend(q[own], k[own], v[own], out[own], bounds, pos[own : own + 1], valid)


def _attend(
    q: Array, k: Array, v: Array, out: Array, bounds: tuple[int, float], pos: Array, valid: Array | None = None
) -> None:
    """Attend to one cache, [kv, group, rows, d], within `bounds` (window, soft cap); `valid`: queries are consecutive.
    """
    window, softcap = bounds
    keys, block = k.shape[2], valid is not None
    last = np.minimum(min(int(pos[0]), keys - 1) + np.arange(q.shape[2]) * block, keys - 1)[:, None]
    end = int(last[-1, 0]) + 1
    k, v, place = k[:, :, :end], v[:, :, :end], np.arange(end)
    hidden = (place > last) | (place <= last - window if window else False)
    scores = q @ k.transpose(0, 1, 3, 2) * np.float32(q.shape[3] ** -0.5)
    if softcap:
        cap(scores, softcap)
    scores[..., hidden] = -np.inf
    powers = np.exp(scores - scores.max(axis=3, keepdims=True))
    of_seen(powers, v, np.broadcast_to(hidden, scores.shape[2:]), out)
    np.divide(out, powers.sum(axis=3, keepdims=True), out=out)
    if valid is not None:
        out[:, :, int(valid[0]) :] = 0


def _read_kernel(mask: str, rows: str = ROWS) -> Shader:
    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        numbers = _numbers(types, attrs)
        fours = types[3].shape[0] * -(-int(numbers["BLOCK"]) // 4)
        units, quads = fours * attrs["num_heads"], int(numbers["QUADS"])
        trips = (2 * quads + 1) * -(-_capacity(types) // 4) + 9 * quads
        return alone(units, trips, numbers, _flops(types, attrs), extents(types, attrs))

    chunks = Shader("attention_chunks.wgsl", _chunks_work, in_bounds=True)
    keys = Shader(together(f"attention_keys {READS} {mask}"), _key_work, in_bounds=True, fold=chunks)
    return Shader(together(f"attention_cached {rows} {READS} {mask}"), work, hardware=keys, numpy_form=_read_form)


def _capacity(types: tuple[TensorType, ...]) -> int:
    """Return the rows of each cache."""
    return types[1].shape[0] // types[3].shape[0]


def _numbers(types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> dict[str, int | float]:
    caches = types[3].shape[0]
    return constants(types[0], types[1], attrs) | {"CACHES": caches, "BLOCK": types[0].shape[0] // caches}


def _flops(types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> int:
    return 4 * flops(types[0], TensorType((_capacity(types), types[1].shape[1])), attrs)


def _key_work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work | None:
    """Return the work with a group per query, head and chunk of its cache; None where a head is too wide for one."""
    numbers = _numbers(types, attrs)
    keys, units, quads = _capacity(types), types[0].shape[0] * attrs["num_heads"], int(numbers["QUADS"])
    wide = max(4, 1 << (quads - 1).bit_length())
    if wide > CHUNK:
        return None
    chunks, size = _chunks(types, attrs)
    group = CHUNK if chunks > 1 else max(wide, min(KEY_GROUP, 1 << (keys - 1).bit_length()))
    return Work(
        units * chunks, 0, numbers | {"WIDE": wide, "CHUNKS": chunks, "CHUNK": size},
        _flops(types, attrs), group, extents=extents(types, attrs),
        partial=(units, chunks, 4 * quads + 2) if chunks > 1 else (),
    )  # fmt: skip


def _chunks(types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of chunks of the keys, and the keys of each chunk. On an H200 a layer of 32 heads of 128 at
    4,000 keys takes 200 µs without."""
    keys, units = _capacity(types), types[0].shape[0] * attrs["num_heads"]
    if keys <= 2 * KEY_GROUP or units >= FEW_UNITS:
        return 1, keys
    size = CHUNK * -(-keys // (CHUNK * MOST_CHUNKS))
    return -(-keys // size), size


def _chunks_work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
    """Return the work of adding up the chunks."""
    numbers = constants(types[0], types[1], attrs)
    quads, chunks = int(numbers["QUADS"]), _chunks(types, attrs)[0]
    pieces = types[0].shape[0] * attrs["num_heads"] * quads
    used = {name: numbers[name] for name in ("D", "QUADS")}
    return Work(pieces, 0, used | {"CHUNKS": chunks}, 8 * pieces * chunks, extents=f"{chunks} chunks")


def _check_read(q: Value, k: Value, v: Value, counts: tuple[Value, ...], heads: int, kv: int, d: int) -> TensorType:
    wanted = "q[queries, heads·d], k and v[capacity, kv_heads·d] and u32[caches] of positions"
    _check_types(wanted, (q, k, v), counts)
    want(heads >= 1, "an int ≥ 1", heads, "num_heads")
    want(kv >= 1 and heads % kv == 0, f"a divisor of {heads}", kv, "num_kv_heads")
    want(q.type.rank == k.type.rank == 2 and k.shape == v.shape, wanted)
    want(q.shape[1] == heads * d and k.shape[1] == kv * d, f"{wanted}: {heads} and {kv} heads of {d}")
    _check_caches(wanted, q.shape[0], k.shape[0], counts[0].shape[0])
    return q.type


def _cached_numpy(q: Array, k: Array, v: Array, pos: Array, h: int, kv: int, d: int) -> Array:
    def one(q: Array, k: Array, v: Array, start: int) -> Array:
        seen = np.arange(len(k)) <= min(start, len(k) - 1)
        return attend(q, k, v, h, kv, d, np.broadcast_to(seen, (len(q), len(k))))

    return _by_cache(one, q, k, v, pos)


def _block_numpy(
    q: Array, k: Array, v: Array, pos: Array, valid: Array, h: int, kv: int, d: int, window: int, softcap: float = 0.0
) -> Array:
    def one(q: Array, k: Array, v: Array, start: int) -> Array:
        last = np.minimum(min(start, len(k) - 1) + np.arange(len(q)), len(k) - 1)[:, None]
        seen = np.arange(len(k)) <= last
        if window:
            seen &= np.arange(len(k)) > last - window
        return np.where(np.arange(len(q))[:, None] < int(valid[0]), attend(q, k, v, h, kv, d, seen, softcap), 0.0)

    return _by_cache(one, q, k, v, pos)


def _by_cache(one: Callable[..., Array], q: Array, k: Array, v: Array, pos: Array) -> Array:
    parts = zip(*(np.split(each, len(pos)) for each in (q, k, v)), map(int, pos), strict=True)
    return np.concatenate([one(*part) for part in parts])


CACHES = (  # queries, capacity, heads, kv heads, head_dim, caches
    (1, 9, 2, 1, 8, 1), (3, 7, 2, 2, 6, 1), (5, 33, 4, 2, 16, 1), (3, 27, 2, 1, 8, 3), (10, 60, 4, 2, 16, 5),
)  # fmt: skip


def _reads(counts: dict[int, int], **more: Any) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            (s, h * d), (c, kv * d), (c, kv * d), (n,), *[(1,)] * (len(counts) - 1), integers=counts,
            attrs={"num_heads": h, "num_kv_heads": kv, "head_dim": d, **more},
        )
        for s, c, h, kv, d, n in CACHES
    )  # fmt: skip


def _not_read(more: int, **attrs: Any) -> tuple[Bad, ...]:
    heads, counts = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, **attrs}, ("u32[1]",) * more
    return (
        Bad(("f32[1, 32]", "f32[9, 24]", "f32[9, 24]", *counts), "4 and 2 heads of 8", heads),
        Bad(("f32[1, 32]", "f32[9, 16]", "f32[8, 16]", *counts), "wanted q[queries, heads·d]", heads),
        Bad(("f32[1, 32]", "f32[9, 16]", "f32[9, 16]", *counts[1:], "f32[1]"), "u32[caches] of positions", heads),
        Bad(("f32[3, 32]", "f32[9, 16]", "f32[9, 16]", "u32[2]", *counts[1:]), "for 2 positions", heads),
        Bad(("f32[1, 32]", "f32[9, 16]", "f32[9, 16]", *counts), "wanted a divisor of 4", heads | {"num_kv_heads": 3}),
        Bad(("f32[1, 32]", "f32[9, 16]", "f32[9, 16]", *counts), "num_heads: given 0", heads | {"num_heads": 0}),
    )


def _by_queries(ordered: bool) -> Follows:
    """Return the extent rule of attention to caches, whose capacity is no bucket axis."""

    def follows(call: Call) -> Verdict:
        labels = [(None,) * t.rank for t in call.types[1:]]
        query = "query" if call.types[3].shape == (1,) else None
        return along(call, [(query, None), *labels], (query, None), ordered=["query"] if ordered and query else ())

    return follows


@op(
    numpy=lambda q, k, v, pos, num_heads, num_kv_heads, head_dim: _cached_numpy(
        q, k, v, pos, num_heads, num_kv_heads, head_dim
    ),
    kernel=_read_kernel("attention_cached_mask"),
    family="contraction",
    any_dtype=True,
    no_grad="refuses",
    samples=_reads({3: 7}),
    bad=_not_read(1),
    attention="result",
    follows=_by_queries(ordered=False),
    by_position="cached_attention",
)
def cached_attention(
    q: Value, k: Value, v: Value, pos: Value, num_heads: int, num_kv_heads: int, head_dim: int
) -> TensorType:
    """Attention of every query to rows 0 … pos of the caches k and v: f32[s, h·d], f32[c, kv·d] twice, u32[1] ->
    f32[s, h·d]. With u32[n] of positions all are n parts of equal size, and the queries of part i see cache i, up to
    pos[i]. It has no gradient."""
    return _check_read(q, k, v, (pos,), num_heads, num_kv_heads, head_dim)


@op(
    numpy=lambda q, k, v, pos, valid, num_heads, num_kv_heads, head_dim, window: _block_numpy(
        q, k, v, pos, valid, num_heads, num_kv_heads, head_dim, window
    ),
    kernel=_read_kernel("attention_block_mask"),
    family="contraction",
    any_dtype=True,
    no_grad="refuses",
    samples=(*_reads({3: 4, 4: 5}), *_reads({3: 4, 4: 5}, window=2)),
    bad=(*_not_read(2), Bad(("f32[1, 32]", "f32[9, 16]", "f32[9, 16]", "u32[1]", "u32[1]"), "window: given -1",
                            {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "window": -1})),
    attention="result",
    follows=_by_queries(ordered=True),
    by_position="cached_block_attention",
)  # fmt: skip
def cached_block_attention(
    q: Value, k: Value, v: Value, pos: Value, valid: Value, num_heads: int, num_kv_heads: int, head_dim: int,
    window: int = 0,
) -> TensorType:  # fmt: skip
    """Attention of query i to rows 0 … pos + i of the caches (with a window: the last of these); 0 in rows ≥ valid:
    f32[s, h·d], f32[c, kv·d] twice, u32[1] twice -> f32[s, h·d]. With u32[n] of positions there are n caches, as in
    `cached_attention`, and rows are counted in each part. It has no gradient."""
    want(window >= 0, "an int ≥ 0", window, "window")
    return _check_read(q, k, v, (pos, valid), num_heads, num_kv_heads, head_dim)


@op(
    numpy=lambda q, k, v, pos, valid, num_heads, num_kv_heads, head_dim, softcap, window: _block_numpy(
        q, k, v, pos, valid, num_heads, num_kv_heads, head_dim, window, softcap
    ),
    kernel=_read_kernel("attention_block_mask", CAPPED_ROWS),
    family="contraction",
    any_dtype=True,
    no_grad="refuses",
    samples=(*_reads({3: 4, 4: 5}, softcap=0.5), *_reads({3: 4, 4: 5}, softcap=30.0, window=2)),
    bad=(*_not_read(2, softcap=1.0), Bad(("f32[1, 32]", "f32[9, 16]", "f32[9, 16]", "u32[1]", "u32[1]"),
         "softcap: given 0.0, wanted a number above 0",
         {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "softcap": 0.0})),
    attention="result",
    follows=_by_queries(ordered=True),
    by_position="cached_softcap_attention",
)  # fmt: skip
def cached_softcap_attention(
    q: Value, k: Value, v: Value, pos: Value, valid: Value, num_heads: int, num_kv_heads: int, head_dim: int,
    softcap: float, window: int = 0,
) -> TensorType:  # fmt: skip
    """`cached_block_attention` whose scores s are softcap · tanh(s / softcap): f32[s, h·d], f32[c, kv·d] twice, u32[1]
    twice -> f32[s, h·d]. It has no gradient."""
    want(softcap > 0, "a number above 0", softcap, "softcap")
    want(window >= 0, "an int ≥ 0", window, "window")
    return _check_read(q, k, v, (pos, valid), num_heads, num_kv_heads, head_dim)
