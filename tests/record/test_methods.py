"""Op methods of a session against float64; their checks; ranges, views and aliasing (S-01 to S-04, S-09, S-10)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, DTypeError, SessionError, ShapeError
from gdlab.record import Buffer, FlashAttnVecParams, SdpaParams

SIZES = (1, 7, 64, 65, 333)


def run(ex: gd.GraphExecutor, encode: Callable[[gd.GraphSession], Any]) -> None:
    with rec.recorded(ex) as s:
        encode(s)


# values ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_rows_and_elements_against_float64(device: str, rows: int) -> None:
    ex = rec.executor(device)
    for n in SIZES:
        a, b, w = rec.data(rows, n), rec.data(rows, n, seed=1), rec.data(n, seed=2)
        x, y, weight = rec.buffer(ex, a), rec.buffer(ex, b), rec.buffer(ex, w)
        outs = {k: rec.zeros(ex, rows, n) for k in ("norm", "plain", "add", "mul", "gelu", "soft", "cap")}
        s = rec.direct(ex)
        s.rms_norm(x, weight, outs["norm"], rows, n)
        s.rms_norm_no_scale_f32(x, outs["plain"], rows, n, eps=1e-3)
        s.elementwise_add(x, y, outs["add"], rows * n, "f32")
        s.elementwise_mul(x, y, outs["mul"], rows * n, gd.f32)
        s.gelu(x, outs["gelu"])
        s.softmax(x, outs["soft"], rows, n)
        s.softcap(x, outs["cap"], 0.5)
        assert s.finish() is None
        wanted = {
            "norm": rec.rms(a, w), "plain": rec.rms(a, eps=1e-3), "gelu": rec.gelu(a), "soft": rec.softmax(a),
            "cap": 0.5 * np.tanh(a.astype(np.float64) / 0.5),
        }  # fmt: skip
        for name, value in wanted.items():
            rec.close(outs[name].read(), value)
        assert np.array_equal(outs["add"].read(), a + b) and np.array_equal(outs["mul"].read(), a * b)
        np.testing.assert_allclose(outs["soft"].read().astype(np.float64).sum(-1), 1, atol=1e-5)


def test_a_count_of_elements_may_be_less_than_the_buffers_hold(device: str) -> None:
    ex = rec.executor(device)
    x, out = rec.buffer(ex, rec.data(9)), rec.buffer(ex, rec.data(9, seed=5))
    before = out.read()
    run(ex, lambda s: s.elementwise_add(x, x, out, 5, gd.f32))
    assert np.array_equal(out.read()[:5], 2 * x.read()[:5]) and np.array_equal(out.read()[5:], before[5:])


def test_extreme_rows_and_numbers(device: str) -> None:
    ex = rec.executor(device)
    special = np.zeros((5, 50_257), np.float32)
    special[0], special[1, 7], special[2, 9] = -np.inf, np.inf, np.nan
    special[3] = rec.data(50_257)
    out, many = rec.zeros(ex, 5, 50_257), rec.zeros(ex, 70_000, 3)
    tall = rec.data(70_000, 3)
    points = np.array([1e30, -1e30, 1e4, -1e4], np.float32)
    cap, g = rec.zeros(ex, 4), rec.zeros(ex, 4)

    def encode(s: gd.GraphSession) -> None:
        s.softmax(rec.buffer(ex, special), out, 5, 50_257)
        s.softmax(rec.buffer(ex, tall), many, 70_000, 3)
        s.softcap(rec.buffer(ex, points), cap, 30.0)
        s.gelu(rec.buffer(ex, points), g)

    run(ex, encode)
    got = out.read()
    assert np.isnan(got[:3]).all() and np.isfinite(got[3:]).all()
    rec.close(got[3:], rec.softmax(special[3:]))
    rec.close(many.read(), rec.softmax(tall))
    assert cap.read().tolist()[:2] == [30, -30] and g.read().tolist()[2:] == [1e4, 0]


@pytest.mark.parametrize("batch", [1, 2, 37])
def test_attention_and_rotation_of_all_sizes_against_float64(device: str, batch: int) -> None:
    """Heads of 1, 7, 64, 65, 333 elements (rotation: of the even number below), batches and rows of 1, 2, 37."""
    ex = rec.executor(device)
    few = {1: (1, 333), 2: (7,), 37: (64, 65)}  # a kernel for each takes lavapipe a second
    for d in SIZES if ex.is_cpu else few[batch]:
        even, length = max(2, d // 2 * 2), 3
        q, k, v = (rec.data(batch, 2, length, d, seed=i) for i in range(3))
        x, where = rec.data(batch, even), np.arange(batch, dtype=np.uint32)[::-1] * 41
        out, one, turned, halves = (
            rec.zeros(ex, *q.shape),
            rec.zeros(ex, 2, d),
            rec.zeros(ex, *x.shape),
            rec.zeros(ex, *x.shape),
        )
        tmp, at = rec.zeros(ex, 32 * 2 * (d + 2)), rec.buffer(ex, where)
        with rec.direct(ex) as s:
            held = [rec.buffer(ex, a) for a in (q, k, v)]
            s.sdpa(*held, out, SdpaParams(2, 2, d, length, length, 0.2), batch)
            s.flash_attn_vec(*held, one, tmp, FlashAttnVecParams(2, 2, d, length, length, 0.2))
            s.rope(rec.buffer(ex, x), turned, at, batch, even)
            s.rope_neox_f32(rec.buffer(ex, x), halves, at, None, batch, 1, even, even)
        rec.close(out.read(), rec.attention(q, k, v, np.tri(length, dtype=bool), 0.2))
        first = q.reshape(-1)[: 2 * d].reshape(1, 2, 1, d)
        rec.close(one.read(), rec.attention(first, k[:1], v[:1], np.ones((1, length), bool), 0.2))
        i, rates = np.arange(even // 2), 10000.0 ** (-2 * np.arange(even // 2) / even)
        rec.close(turned.read(), rec.turned(x, 2 * i, 2 * i + 1, where, rates))
        rec.close(halves.read(), rec.turned(x, i, i + even // 2, where, rates))


@pytest.mark.parametrize("positions", [[0, 1, 2], [4095, 0, 4095], [7, 3, 12, 99]], ids=str)
def test_rope_turns_neighbouring_pairs(device: str, positions: list[int]) -> None:
    ex, where = rec.executor(device), np.array(positions, np.uint32)
    for d in (2, 8, 64):
        x = rec.data(3, d)
        out, i = rec.zeros(ex, 3, d), np.arange(d // 2)
        run(ex, lambda s, x=x, out=out, d=d: s.rope(rec.buffer(ex, x), out, rec.buffer(ex, where), 3, d, theta=500.0))  # type: ignore[misc]
        rec.close(out.read(), rec.turned(x, 2 * i, 2 * i + 1, where[:3], 500.0 ** (-2 * i / d)))


def test_factors_of_any_size_keep_the_digits_of_far_positions(device: str) -> None:
    """Angles of position 4095 (and of a million) with factors from 2⁻⁶ to 2¹⁰⁰, below 0 too, to 1e-5."""
    ex, d, where = rec.executor(device), 64, np.array([4095, 1, 2049, 1_000_003], np.uint32)
    factors = np.exp2(np.linspace(-6, 40, 32)).astype(np.float32) * np.float32(1.2345)
    factors[3], factors[4], factors[5] = 2.0**100, 8.0, -1.75
    x, i, out = rec.data(4, d), np.arange(32), rec.zeros(ex, 4, d)
    run(
        ex,
        lambda s: s.rope_neox_f32(rec.buffer(ex, x), out, rec.buffer(ex, where), rec.buffer(ex, factors), 4, 1, d, d),
    )
    wanted = rec.turned(x, i, i + 32, where, 10000.0 ** (-2 * i / d) / factors.astype(np.float64))
    rec.close(out.read(), wanted)


@pytest.mark.parametrize("rope_dim", [0, 8, 4, 16])
def test_rope_neox_turns_halves_of_heads(device: str, rope_dim: int) -> None:
    ex, d, heads, where = rec.executor(device), 16, 3, np.array([4095, 0, 17, 5], np.uint32)
    x, i = rec.data(12, d), np.arange(rope_dim // 2)
    rates = 10000.0 ** (-2 * i / d)
    factors = np.array([1.0, 2.0, 1e30, 0.5, 3.0, 1.0, 1.0, 9.0], np.float32)
    ones = np.ones(8, np.float32)
    outs = [rec.zeros(ex, 12, d) for _ in range(3)]
    given = [None, rec.buffer(ex, factors), rec.buffer(ex, ones)]

    def encode(s: gd.GraphSession) -> None:
        for out, ff in zip(outs, given, strict=True):
            s.rope_neox_f32(rec.buffer(ex, x), out, rec.buffer(ex, where), ff, 4, heads, d, rope_dim)

    run(ex, encode)
    rows = np.repeat(where, heads)
    rec.close(outs[0].read(), rec.turned(x, i, i + 8, rows, rates))
    rec.close(outs[1].read(), rec.turned(x, i, i + 8, rows, rates / factors[: rope_dim // 2]))
    rec.close(outs[2].read(), outs[0].read(), 1e-6)
    rest = [c for c in range(d) if c % 8 >= rope_dim // 2]
    assert np.array_equal(outs[0].read()[:, rest], x[:, rest])
    if rope_dim > 4:
        assert np.array_equal(outs[1].read()[:, 2], x[:, 2])  # a factor of 1e30 turns nothing


# checks ---------------------------------------------------------------------------------------------------------------
def wrong_calls(ex: gd.GraphExecutor) -> list[tuple[Callable[[gd.GraphSession], Any], type[Exception], str]]:
    x, y, w, small = rec.zeros(ex, 2, 8), rec.zeros(ex, 2, 8), rec.zeros(ex, 8), rec.zeros(ex, 4)
    whole = ex.alloc_buffer(12, gd.u32, (3,))
    k = rec.zeros(ex, 1, 1, 9, 4)
    q = rec.zeros(ex, 1, 2, 2, 4)
    other = rec.zeros(gd.GraphExecutor("cpu"), 16)
    wide = SdpaParams(2, 1, 4, 2, 7, 0.5, 9)
    tmp = rec.zeros(ex, 32 * 2 * 6)
    flash = FlashAttnVecParams(2, 1, 4, 7, 9, 0.5)

    def sdpa(**more: Any) -> Callable[[gd.GraphSession], Any]:
        fields = {f: getattr(wide, f) for f in SdpaParams.__dataclass_fields__}
        return lambda s: s.sdpa(q, k, k, rec.zeros(ex, 16), SdpaParams(**{**fields, **more}), 1)

    def vec(**more: Any) -> Callable[[gd.GraphSession], Any]:
        fields = {f: getattr(flash, f) for f in FlashAttnVecParams.__dataclass_fields__}
        return lambda s: s.flash_attn_vec(w, k, k, rec.zeros(ex, 8), tmp, FlashAttnVecParams(**{**fields, **more}))

    return [
        (lambda s: s.rms_norm(x, small, y, 2, 8), ShapeError, "rms_norm: weight: given 4 elements, wanted 8"),
        (lambda s: s.rms_norm(x, w, y, 0, 8), ArgumentError, "rms_norm: rows: given 0, wanted an int ≥ 1"),
        (lambda s: s.rms_norm(x, w, y, 2, 8, eps=0.0), ArgumentError, "eps: given 0.0, wanted a finite number > 0"),
        (lambda s: s.rms_norm(x, w, y, 2, 8, eps=float("nan")), ArgumentError, "rms_norm: eps: given nan"),
        (lambda s: s.rms_norm(x, w, y, 2.0, 8), ArgumentError, "rms_norm: rows: given 2.0"),
        (lambda s: s.rms_norm("x", w, y, 2, 8), ArgumentError, "rms_norm: input: given str, wanted a Buffer"),
        (lambda s: s.rms_norm(other, w, y, 2, 8), ArgumentError, "a buffer of another executor"),
        (lambda s: s.rms_norm_no_scale_f32(x, y, 2, 9), ShapeError, "input: given 16 elements, wanted 18"),
        (lambda s: s.rms_norm_no_scale_f32(x, y, 2, 8, eps=-1), ArgumentError, "eps: given -1"),
        (lambda s: s.rms_norm_no_scale_f32(x, y, 2, 8, eps=1e-50), ArgumentError, "eps: given 1e-50, wanted a finite"),
        (lambda s: s.rms_norm_no_scale_f32(x, y, 2, 8, eps=1e-40), ArgumentError, "> 0: 1.18e−38 … 3.4e38 in float32"),
        (lambda s: s.rms_norm(x, w, y, 2, 8, eps=1e39), ArgumentError, "rms_norm: eps: given 1e+39"),
        (lambda s: s.elementwise_add(x, y, small, 16, gd.f32), ShapeError, "output: given 4 elements, wanted at least"),
        (lambda s: s.elementwise_mul(x, y, y, 0, gd.f32), ArgumentError, "n_elements: given 0"),
        (lambda s: s.elementwise_mul(x, y, y, 16, "u32"), DTypeError, "mul: dtype: given u32, wanted f32, f16 or bf16"),
        (lambda s: s.elementwise_mul(x, y, y, 16, "f64"), DTypeError, "elementwise_mul: dtype: given 'f64'"),
        (lambda s: s.elementwise_add(x, whole, y, 3, gd.f32), DTypeError, "b: given u32 elements, wanted f32"),
        (lambda s: s.gelu(x, small), ShapeError, "gelu: output: given 4 elements, wanted 16"),
        (lambda s: s.softmax(x, y, 2, 7), ShapeError, "softmax: input: given 16 elements, wanted 14"),
        (lambda s: s.softcap(x, y, 0), ArgumentError, "softcap: cap: given 0, wanted a finite number > 0"),
        (lambda s: s.softcap(x, y, float("inf")), ArgumentError, "softcap: cap: given inf"),
        (lambda s: s.softcap(x, y, 1e-39), ArgumentError, "softcap: cap: given 1e-39, wanted a finite number > 0"),
        (lambda s: s.softcap(x, y, 1e38), ArgumentError, "softcap: cap: given 1e+38, wanted a finite number > 0"),
        (lambda s: s.softcap(x, y, 10**400), ArgumentError, "softcap: cap: given 1000"),
        (lambda s: s.rope(x, y, whole, 2, 7), ArgumentError, "rope: head_dim: given 7, wanted an even number"),
        (lambda s: s.rope(x, y, whole, 4, 4), ShapeError, "rope: positions: given 3 elements, wanted at least 4"),
        (lambda s: s.rope(x, y, w, 2, 8), DTypeError, "rope: positions: given f32 elements, wanted u32"),
        (lambda s: s.rope(x, y, whole, 2, 8, theta=0), ArgumentError, "rope: theta: given 0"),
        (lambda s: s.rope(x, y, whole, 2, 8, theta=1e-46), ArgumentError, "rope: theta: given 1e-46"),
        (lambda s: s.rope_neox_f32(x, y, whole, None, 2, 1, 8, 10), ArgumentError, "rope_dim: given 10, wanted 0 … 8"),
        (lambda s: s.rope_neox_f32(x, y, whole, None, 2, 1, 8, 3), ArgumentError, "rope_dim: given 3, wanted an even"),
        (lambda s: s.rope_neox_f32(x, y, whole, rec.zeros(ex, 1), 2, 1, 8, 8), ShapeError, "freq_factors: given 1"),
        (sdpa(seq_len=0), ArgumentError, "sdpa: seq_len: given 0"),
        (sdpa(n_kv_heads=3), ArgumentError, "sdpa: n_kv_heads: given 3, wanted a divisor of 2"),
        (sdpa(kv_capacity=3), ArgumentError, "sdpa: kv_capacity: given 3, wanted at least kv_seq_len, 7"),
        (sdpa(kv_seq_len=1), ArgumentError, "sdpa: seq_len: given 2, wanted at most kv_seq_len, 1, where causal"),
        (sdpa(scale=float("nan")), ArgumentError, "sdpa: scale: given nan"),
        (sdpa(kv_capacity=10), ShapeError, "sdpa: k: given 36 elements, wanted at least 40"),
        (lambda s: s.sdpa(q, k, k, small, None, 1), ArgumentError, "sdpa: params: given NoneType, wanted SdpaParams"),
        (lambda s: s.sdpa(q, k, k, q, wide, 1), ArgumentError, "sdpa: output: given bytes 0 … 64"),
        (vec(mask_type=3), ArgumentError, "flash_attn_vec: mask_type: given 3"),
        (vec(mask_type=2), ArgumentError, "flash_attn_vec: sliding_window: given 0"),
        (vec(softcap=-1.0), ArgumentError, "flash_attn_vec: softcap: given -1.0"),
        (vec(softcap=1e-50), ArgumentError, "flash_attn_vec: softcap: given 1e-50"),
        (vec(scale=1e39), ArgumentError, "flash_attn_vec: scale: given 1e+39"),
        (lambda s: s.flash_attn_vec(w, k, k, rec.zeros(ex, 8), small, flash), ShapeError, "tmp: given 4 elements"),
        (lambda s: s.barrier_between([x, "y"], []), ArgumentError, "barrier_between: reads: given 'y'"),
        (lambda s: s.barrier_between(x, []), ArgumentError, "barrier_between: reads: given Buffer, wanted a list"),
        (lambda s: s.barrier_between([(x, 0, 65)], []), ShapeError, "given bytes 0 … 65, wanted a range of 0 … 64"),
        (lambda s: s.encoder_mut().dispatch("sqart", [x], y), ArgumentError, "dispatch: op: given 'sqart'"),
        (lambda s: s.encoder_mut().dispatch("sqrt", [], y), ArgumentError, "dispatch: inputs: given list"),
        (lambda s: s.encoder_mut().dispatch("sqrt", [x], w), ShapeError, "sqrt: output: given 8 elements, wanted 16"),
        (lambda s: s.encoder_mut().dispatch(7, [x], w), ArgumentError, "dispatch: op: given int"),
        (lambda s: s.encoder_mut().dispatch(lambda v: v.nothing(), [x], y), ArgumentError, "op: given AttributeError"),
        (lambda s: s.encoder_mut().dispatch("sqrt", [whole], y), DTypeError, "sqrt: operands"),
        (lambda s: s.encoder_mut().copy_buffer(x, w), ShapeError, "copy_buffer: dst: given 8 elements, wanted 16"),
        (lambda s: s.encoder_mut().copy_buffer(small, whole), DTypeError, "copy_buffer: dst: given u32, wanted f32"),
        (lambda s: s.encoder_mut().set_op_kind("norm"), ArgumentError, "set_op_kind: kind: given 'norm'"),
    ]  # fmt: skip


def test_a_refused_call_adds_no_node_and_the_session_still_finishes_right(device: str) -> None:
    ex = rec.executor(device)
    x, out = rec.buffer(ex, rec.data(64)), rec.zeros(ex, 64)
    s = rec.direct(ex)
    s.gelu(x, out)
    for call, error, words in wrong_calls(ex):
        barriers = s.barrier_count()
        with pytest.raises(error) as refused:
            call(s)
        assert words in str(refused.value), str(refused.value)
        assert s.graph.node_count() == 1 and s.barrier_count() == barriers
    s.finish()
    rec.close(out.read(), rec.gelu(x.read()))


def test_a_wrong_number_is_refused_behind_an_equal_right_one(ex_cpu: gd.GraphExecutor) -> None:
    """1, 1.0 and True are equal: a call that was taken does not let the others in."""
    x, y, w = rec.zeros(ex_cpu, 1, 4), rec.zeros(ex_cpu, 1, 4), rec.zeros(ex_cpu, 4)
    q = rec.zeros(ex_cpu, 1, 1, 1, 4)
    s = rec.direct(ex_cpu)
    s.rms_norm(x, w, y, 1, 4)
    s.softmax(x, y, 1, 4)
    s.elementwise_add(x, x, y, 4, "f32")
    s.sdpa(q, q, q, y, SdpaParams(1, 1, 4, 1, 1, 0.5), 1)
    for call in (
        lambda: s.rms_norm(x, w, y, 1.0, 4),  # type: ignore[arg-type]
        lambda: s.rms_norm(x, w, y, True, 4),
        lambda: s.rms_norm(x, w, y, 1, 4, eps=True),
        lambda: s.softmax(x, y, 1, 4.0),  # type: ignore[arg-type]
        lambda: s.elementwise_add(x, x, y, 4.0, "f32"),  # type: ignore[arg-type]
        lambda: s.sdpa(q, q, q, y, SdpaParams(1, 1, 4, True, 1, 0.5), 1),
        lambda: s.sdpa(q, q, q, y, SdpaParams(1, 1, 4.0, 1, 1, 0.5), 1),  # type: ignore[arg-type]
        lambda: s.sdpa(q, q, q, y, SdpaParams(1, 1, 4, 1, 1, 0.5), True),
    ):
        with pytest.raises(ArgumentError):
            call()
    assert s.graph.node_count() == 4
    s.drop()


@pytest.fixture
def ex_cpu() -> gd.GraphExecutor:
    return rec.executor("cpu")


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_buffer_is_not_copied(ex_cpu: gd.GraphExecutor, again: Callable[[Any], Any]) -> None:
    with pytest.raises(SessionError, match=r"copy: buffer: given one that owns device buffers, wanted read\(\)"):
        again(rec.zeros(ex_cpu, 2))


def test_strided_views_of_bytes_are_written(device: str) -> None:
    u, pairs = rec.executor(device).alloc_buffer(12, gd.u32, (3,)), np.arange(6, dtype=np.uint32)
    u.write(memoryview(pairs)[::2])
    assert u.read().tolist() == [0, 2, 4]
    u.write(memoryview(bytes(range(24)))[::-2])
    assert u.read().tobytes() == bytes(range(24))[::-2]


def test_buffers_refuse_what_they_cannot_hold(device: str) -> None:
    ex = rec.executor(device)
    b, u = rec.zeros(ex, 2, 3), ex.alloc_buffer(12, gd.u32, (3,))
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: ex.alloc_buffer(8, gd.f32, (3,)), ShapeError, "alloc_buffer: nbytes: given 8, wanted 12"),
        (lambda: ex.alloc_buffer(0, gd.f32, (3,)), ArgumentError, "alloc_buffer: nbytes: given 0"),
        (lambda: ex.alloc_buffer(12, "q4_0", (3,)), DTypeError, "alloc_buffer: dtype: given 'q4_0'"),
        (lambda: b.write(np.zeros(5)), ShapeError, "given 5 elements, wanted 6"),
        (lambda: b.write(np.full(6, 1e39)), DTypeError, "1e+39 at index 0"),
        (lambda: b.write(b"123456"), DTypeError, "given bytes, wanted f32"),
        (lambda: b.write(["a"] * 6), DTypeError, "wanted real numbers"),
        (lambda: u.write(np.zeros(3)), DTypeError, "wanted integers"),
        (lambda: u.write(b"1" * 13), ShapeError, "given 13 bytes, wanted 12"),
        (lambda: u.write(memoryview(b"1" * 26)[::2]), ShapeError, "given 13 bytes, wanted 12"),
        (lambda: b.slice_view(2, 1), ArgumentError, "slice_view: byte_offset: given 2, wanted a multiple of 4"),
        (lambda: b.slice_view(4, 6), ShapeError, "slice_view: range: given bytes 4 … 28, wanted a range of 0 … 24"),
        (lambda: b.slice_view(-4, 1), ArgumentError, "slice_view: byte_offset: given -4"),
        (lambda: gd.GraphExecutor("gpu"), ArgumentError, "device: kind"),
    ]  # fmt: skip
    for call, error, words in cases:
        with pytest.raises(error) as refused:
            call()
        assert words in str(refused.value), str(refused.value)
    assert not b.read().any()


# ranges ---------------------------------------------------------------------------------------------------------------
OPS: dict[str, tuple[int, Callable[[gd.GraphSession, list[Buffer], int], Any], Callable[..., Any]]] = {
    "add": (2, lambda s, b, n: s.elementwise_add(*b, n, gd.f32), lambda x, y: x + y),
    "norm": (2, lambda s, b, n: s.rms_norm(*b, 1, n), rec.rms),
    "softmax": (1, lambda s, b, n: s.softmax(*b, 1, n), rec.softmax),
    "gelu": (1, lambda s, b, n: s.gelu(*b), rec.gelu),
    "function": (2, lambda s, b, n: s.encoder_mut().dispatch(lambda x, y: (x * y).relu().cumsum(), b[:2], b[2]),
                 lambda x, y: np.maximum(x * y, 0).cumsum()),
}  # fmt: skip


def test_attention_products_and_rotations_in_views_leave_the_bytes_around_them_alone(device: str) -> None:
    ex = rec.executor(device)
    for offset in (4, 12, 256, 260, 1024):
        for n in (2, 6, 70):
            home, arrays = rec.buffer(ex, rec.data(2000, seed=9)), [rec.data(600, seed=i) for i in range(3)]
            before, first = home.read(), offset // 4
            q, k, v = (rec.buffer(ex, a).slice_view(offset, n) for a in arrays)
            at = rec.buffer(ex, np.arange(400, dtype=np.uint32)).slice_view(offset, 1)
            outs = [home.slice_view(offset + 4 * (n + 3) * i, n) for i in range(3)]
            with rec.recorded(ex) as s:
                s.sdpa(q, k, v, outs[0], SdpaParams(1, 1, n, 1, 1, 0.5), 1)
                s.rope(q, outs[1], at, 1, n)
                s.rope_neox_f32(q, outs[2], at, None, 1, 1, n, n)
            x, _, held = (a[first : first + n] for a in arrays)
            rates, i = 10000.0 ** (-2 * np.arange(n // 2) / n), np.arange(n // 2)
            where = np.array([first])
            wanted = (
                held,
                rec.turned(x[None], 2 * i, 2 * i + 1, where, rates)[0],
                rec.turned(x[None], i, i + n // 2, where, rates)[0],
            )
            got = home.read()
            for number, value in enumerate(wanted):
                place = slice(first + (n + 3) * number, first + (n + 3) * number + n)
                rec.close(got[place], value)
                got[place] = before[place]
            assert np.array_equal(got, before), (offset, n)


@pytest.mark.parametrize("name", OPS)
def test_views_as_operands_and_results_leave_the_bytes_around_them_alone(device: str, name: str) -> None:
    ex, (operands, encode, meaning) = rec.executor(device), OPS[name]
    for offset in (4, 12, 256, 260, 1024):
        for n in (1, 2, 3, 5, 70, 256):
            arrays = [rec.data(600, seed=i) for i in range(operands)]
            homes = [rec.buffer(ex, a) for a in arrays]
            home = rec.buffer(ex, rec.data(600, seed=9))
            before = home.read()
            views = [h.slice_view(offset, n) for h in (*homes, home)]
            run(ex, lambda s, views=views, n=n: encode(s, views, n))  # type: ignore[misc]
            first = offset // 4
            got, wanted = home.read(), meaning(*(a[first : first + n] for a in arrays))
            rec.close(got[first : first + n], wanted)
            got[first : first + n] = before[first : first + n]
            assert np.array_equal(got, before), (offset, n)


def test_a_view_has_its_own_size_and_the_allocation_of_its_buffer(device: str) -> None:
    ex = rec.executor(device)
    x = rec.buffer(ex, rec.data(4, 16), label="x")
    v = x.slice_view(8, 5)
    w = v.slice_view(4, 2)
    assert (v.nbytes, v.element_count, v.shape, v.byte_offset, v.dtype) == (20, 5, (5,), 8, gd.f32)
    assert v.allocation_id == x.allocation_id == w.allocation_id and w.byte_offset == 12 and v.label == "x"
    assert np.array_equal(v.read(), x.read().reshape(-1)[2:7])
    w.write([7, 8])
    assert x.read().reshape(-1)[3:5].tolist() == [7, 8]
    fresh = rec.zeros(ex, 4)
    assert fresh.allocation_id > x.allocation_id and "allocation" in repr(fresh) and not fresh.transient
    fresh.release()
    fresh.release()
    for call in (fresh.read, lambda: fresh.write([1, 2, 3, 4]), lambda: rec.direct(ex).gelu(fresh, x)):
        with pytest.raises(SessionError, match="which was released"):
            call()
    assert not rec.zeros(ex, 4).read().any()  # the same memory, zeroed again


def test_in_place_is_as_out_of_place_to_the_bit(device: str) -> None:
    ex = rec.executor(device)
    w, positions = rec.buffer(ex, rec.data(8)), rec.buffer(ex, np.arange(9, dtype=np.uint32))
    calls: dict[str, Callable[[gd.GraphSession, Buffer, Buffer], Any]] = {
        "add": lambda s, x, y: s.elementwise_add(x, x, y, 72, gd.f32),
        "gelu": lambda s, x, y: s.gelu(x, y),
        "softcap": lambda s, x, y: s.softcap(x, y, 2.0),
        "rope": lambda s, x, y: s.rope(x, y, positions, 9, 8),
        "neox": lambda s, x, y: s.rope_neox_f32(x, y, positions, None, 9, 1, 8, 4),
        "norm": lambda s, x, y: s.rms_norm(x, w, y, 9, 8),
        "softmax": lambda s, x, y: s.softmax(x, y, 9, 8),
    }
    for name, call in calls.items():
        x, y, z = rec.buffer(ex, rec.data(72)), rec.zeros(ex, 72), rec.buffer(ex, rec.data(72))
        s = rec.direct(ex)
        call(s, x, y)
        call(s, z, z)
        s.finish()
        assert y.read().tobytes() == z.read().tobytes(), name
    home = rec.buffer(ex, rec.data(128))
    before = home.read()
    a, b = home.slice_view(0, 64), home.slice_view(256, 64)
    run(ex, lambda s: s.gelu(a, b))
    rec.close(home.read()[64:], rec.gelu(before[:64]))
    assert np.array_equal(home.read()[:64], before[:64])
    part = home.slice_view(4, 64)
    with pytest.raises(
        ArgumentError, match="given bytes 4 … 260 of allocation .*, an input's 0 … 256, wanted the same"
    ):
        rec.direct(ex).elementwise_add(a, a, part, 64, gd.f32)


def test_copies_are_counted_and_one_allocation_per_tensor_needs_none(device: str) -> None:
    ex = rec.executor(device)
    x, out, odd = rec.buffer(ex, rec.data(70)), rec.zeros(ex, 70), rec.zeros(ex, 600).slice_view(12, 70)
    before = ex.counters()["copies"]
    run(ex, lambda s: s.gelu(x, out))
    assert ex.counters()["copies"] == before
    with rec.recorded(ex) as s:
        s.gelu(x, odd)
        s.gelu(out, out)
        s.finish()
        copies = 1 if device == "cpu" else 2
        assert s.report.copies == copies and ex.counters()["copies"] == before + copies


@pytest.mark.parametrize("rope_dim", [2, 4, 8, 16])
def test_rope_neox_turns_the_leading_elements_as_ggml_does(device: str, rope_dim: int) -> None:
    """`pairing="rope"`: pairs (i, i + rope_dim/2), angle pos · θ^(−2i/rope_dim); elements behind rope_dim stay."""
    ex, d, heads, where = rec.executor(device), 16, 3, np.array([4095, 0, 17, 5], np.uint32)
    x, i = rec.data(12, d), np.arange(rope_dim // 2)
    rates = 10000.0 ** (-2 * i / rope_dim)
    factors = np.array([1.0, 2.0, 1e30, 0.5, 3.0, 1.0, 1.0, 9.0], np.float32)
    plain, scaled = rec.zeros(ex, 12, d), rec.zeros(ex, 12, d)

    def encode(s: gd.GraphSession) -> None:
        for out, ff in ((plain, None), (scaled, rec.buffer(ex, factors))):
            s.rope_neox_f32(rec.buffer(ex, x), out, rec.buffer(ex, where), ff, 4, heads, d, rope_dim, pairing="rope")

    run(ex, encode)
    rows, half = np.repeat(where, heads), rope_dim // 2
    rec.close(plain.read(), rec.turned(x, i, i + half, rows, rates))
    rec.close(scaled.read(), rec.turned(x, i, i + half, rows, rates / factors[:half]))
    np.testing.assert_array_equal(plain.read()[:, rope_dim:], x[:, rope_dim:])


def test_an_unknown_pairing_is_refused() -> None:
    ex = rec.executor("cpu")
    x, positions = rec.zeros(ex, 2, 8), rec.buffer(ex, np.zeros(2, np.uint32))
    s = ex.begin()
    with pytest.raises(ArgumentError, match="rope_neox_f32: pairing: given 'ggml', wanted 'head' or 'rope'"):
        s.rope_neox_f32(x, x, positions, None, 2, 1, 8, 4, pairing="ggml")
    assert len(s.graph) == 0
    s.drop()
