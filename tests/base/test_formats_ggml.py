"""The formats of ggml: known answers, a decoder written from its loops, and what encoding costs in precision."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from gdlab.base.errors import ShapeError
from gdlab.base.formats import decode, encode
from gdlab.base.types import FORMATS, DType, TensorType

Array = np.ndarray
GGML = [d for d, f in FORMATS.items() if f.axis == -1 and f.block > 1]
RNG = np.random.default_rng(5)
SIZES = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q2_k": (256, 84),
    "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
}  # fmt: skip
# Where d lies in a block, and dmin or m (graph_session.md, section 5).
STEPS = {
    "q4_0": (0, None), "q4_1": (0, 2), "q5_0": (0, None), "q5_1": (0, 2), "q8_0": (0, None), "q2_k": (80, 82),
    "q3_k": (108, None), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208, None),
}  # fmt: skip
# y[0], y[1], y[16], y[31], Σ y, Σ (e + 1) y of bytes (37 i + 11) mod 256 with d = 0.25, dmin or m = 0.125.
ANSWERS = {
    "q4_0": (-0.75, 0.5, -0.75, 0, -5.25, -129.5), "q8_0": (21.25, 30.5, -22.75, -12, -44, -2020),
    "q4_k": (78.875, -6.375, 78.875, 40.125, 13610, 1893210),
    "q5_k": (202.875, -6.375, 202.875, 40.125, 29054, 4006862), "q6_k": (-357.75, 424, -108, -24, 1153, 196105),
    "q2_k": (8.25, 0, -0.375, -0.375, 514.75, 60782.5), "q3_k": (20.25, -27, -24, 16, 239.5, 44286.25),
    "q4_1": (3.875, 1.125, 2.375, 3.125, 65.25, 1061.75), "q5_0": (2.25, -0.5, 3.5, 0.25, 3.75, 28),
    "q5_1": (4.875, 6.125, 4.875, 1.375, 130.25, 2041.25),
}  # fmt: skip


def words_of(raw: Array) -> Array:
    flat = raw.reshape(-1)
    return np.pad(flat, (0, -flat.size % 4)).view(np.uint32)


def with_steps(raw: Array, name: str, d: Array, low: Array) -> Array:
    """Blocks[n, bytes] with these f16 steps."""
    at, lower = STEPS[name]
    raw[:, at : at + 2] = np.asarray(d, "<f2").reshape(-1, 1).view(np.uint8)
    if lower is not None:
        raw[:, lower : lower + 2] = np.asarray(low, "<f2").reshape(-1, 1).view(np.uint8)
    return raw


# layout ---------------------------------------------------------------------------------------------------------------
def test_the_table_has_every_format() -> None:
    assert {d.value: (FORMATS[d].block, FORMATS[d].nbytes) for d in GGML} == SIZES
    assert all(f.name == d.value and d.format is f for d, f in FORMATS.items())
    others = {(d.value, f.block, f.nbytes, f.axis) for d, f in FORMATS.items() if d not in GGML}
    assert others == {("f16", 1, 2, -1), ("bf16", 1, 2, -1), ("q4", 32, 20, 0), ("q8", 32, 36, 0)}
    assert {d for d in DType if d.is_storage} == set(FORMATS) and DType.f32.format is None


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_known_answers(dtype: DType) -> None:
    block, nbytes = SIZES[dtype.value]
    raw = ((37 * np.arange(nbytes) + 11) % 256).astype(np.uint8)[None]
    raw = with_steps(raw, dtype.value, np.array([0.25]), np.array([0.125]))
    y = decode(words_of(raw), dtype, (block,))
    assert y.dtype == np.float32 and y.shape == (block,)
    sums = float(y.sum(dtype=float)), float(np.arange(1, block + 1) @ y.astype(float))
    assert (y[0], y[1], y[16], y[31], *sums) == ANSWERS[dtype.value]


@pytest.mark.parametrize(
    ("text", "data", "size"),
    [("q4_0[1, 32]", 18, 20), ("q8_0[3, 64]", 204, 204), ("q6_k[1, 256]", 210, 212), ("q3_k[2, 3, 512]", 1320, 1320),
     ("q8_0[32]", 34, 36), ("bf16[3, 5]", 30, 32), ("f16[3]", 6, 8), ("q4[65, 3]", 180, 180)],
)  # fmt: skip
def test_bytes_are_rounded_up_to_4(text: str, data: int, size: int) -> None:
    type = TensorType.parse(text)
    assert (str(type), type.data_bytes, type.size_bytes) == (text, data, size)
    assert encode(np.zeros(type.shape, np.float32), type.dtype).nbytes == size


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_a_row_is_whole_blocks(dtype: DType) -> None:
    block = SIZES[dtype.value][0]
    with pytest.raises(ShapeError) as told:
        TensorType((block, 100), dtype)
    assert str(told.value) == (
        f"type: shape: given {dtype}[{block}, 100], wanted a last extent that is a multiple of {block}"
    )


# decoding against loops after ggml's ----------------------------------------------------------------------------------
def half(raw: Array, at: int) -> np.float32:
    return np.float32(raw[at : at + 2].copy().view("<f2")[0])


def loop_q4_0(x: Array) -> list[np.float32]:
    d, qs = half(x, 0), x[2:].astype(int)
    return [d * np.float32((q & 15) - 8) for q in qs] + [d * np.float32((q >> 4) - 8) for q in qs]


def loop_q4_1(x: Array) -> list[np.float32]:
    d, m, qs = half(x, 0), half(x, 2), x[4:].astype(int)
    return [d * np.float32(q & 15) + m for q in qs] + [d * np.float32(q >> 4) + m for q in qs]


def fives(qh: int, qs: Array) -> list[int]:
    low = [(int(q) & 15) | (qh >> j << 4 & 16) for j, q in enumerate(qs)]
    return low + [(int(q) >> 4) | (qh >> (j + 12) & 16) for j, q in enumerate(qs)]


def loop_q5_0(x: Array) -> list[np.float32]:
    d = half(x, 0)
    return [d * np.float32(q - 16) for q in fives(int.from_bytes(x[2:6].tobytes(), "little"), x[6:])]


def loop_q5_1(x: Array) -> list[np.float32]:
    d, m = half(x, 0), half(x, 2)
    return [d * np.float32(q) + m for q in fives(int.from_bytes(x[4:8].tobytes(), "little"), x[8:])]


def loop_q8_0(x: Array) -> list[np.float32]:
    return [half(x, 0) * np.float32(q) for q in x[2:].view(np.int8)]


def scale_min(j: int, q: list[int]) -> tuple[np.float32, np.float32]:
    if j < 4:
        return np.float32(q[j] & 63), np.float32(q[j + 4] & 63)
    low, high = (q[j + 4] & 15) | (q[j - 4] >> 6 << 4), (q[j + 4] >> 4) | (q[j] >> 6 << 4)
    return np.float32(low), np.float32(high)


def loop_q4_k(x: Array) -> list[np.float32]:
    d, dmin, s, qs, y = half(x, 0), half(x, 2), x[4:16].tolist(), x[16:].tolist(), []
    for j in range(8):
        sc, m = scale_min(j, s)
        part = qs[32 * (j // 2) : 32 * (j // 2) + 32]
        y += [d * sc * np.float32(q >> 4 if j % 2 else q & 15) - dmin * m for q in part]
    return y


def loop_q5_k(x: Array) -> list[np.float32]:
    d, dmin, s, qh, qs, y = half(x, 0), half(x, 2), x[4:16].tolist(), x[16:48].tolist(), x[48:].tolist(), []
    for j in range(8):
        sc, m = scale_min(j, s)
        for low, high in zip(qs[32 * (j // 2) : 32 * (j // 2) + 32], qh, strict=True):
            code = (low >> 4 if j % 2 else low & 15) + (16 if high & (1 << j) else 0)
            y.append(d * sc * np.float32(code) - dmin * m)
    return y


def loop_q6_k(x: Array) -> list[np.float32]:
    ql, qh, sc, d = x[:128].tolist(), x[128:192].tolist(), x[192:208].view(np.int8).tolist(), half(x, 208)
    y = [np.float32(0)] * 256
    for n in (0, 1):
        for i in range(32):
            low, up, high = ql[64 * n + i], ql[64 * n + 32 + i], qh[32 * n + i]
            codes = (
                (low & 15) | (high & 3) << 4, (up & 15) | (high >> 2 & 3) << 4,
                low >> 4 | (high >> 4 & 3) << 4, up >> 4 | (high >> 6 & 3) << 4,
            )  # fmt: skip
            for k, code in enumerate(codes):
                scale = sc[8 * n + i // 16 + 2 * k]
                y[128 * n + 32 * k + i] = d * np.float32(scale) * np.float32(code - 32)
    return y


def loop_q2_k(x: Array) -> list[np.float32]:
    s, qs, d, dmin, y = x[:16].tolist(), x[16:80].tolist(), half(x, 80), half(x, 82), []
    for n in (0, 32):
        for shift in (0, 2, 4, 6):
            for first in (0, 16):
                sc = s[len(y) // 16]
                part = qs[n + first : n + first + 16]
                y += [d * np.float32(sc & 15) * np.float32(q >> shift & 3) - dmin * np.float32(sc >> 4) for q in part]
    return y


def loop_q3_k(x: Array) -> list[np.float32]:
    hmask, qs, d, y = x[:32].tolist(), x[32:96].tolist(), half(x, 108), []
    aux = x[96:108].copy().view("<u4").tolist()
    low, pairs, last = 0x0F0F0F0F, 0x03030303, aux[2]
    aux = [
        aux[0] & low | (last & pairs) << 4, aux[1] & low | (last >> 2 & pairs) << 4,
        aux[0] >> 4 & low | (last >> 4 & pairs) << 4, aux[1] >> 4 & low | (last >> 6 & pairs) << 4,
    ]  # fmt: skip
    scales = np.array(aux, "<u4").view(np.int8).tolist()
    mask = 1
    for n in (0, 32):
        for shift in (0, 2, 4, 6):
            for first in (0, 16):
                step = d * np.float32(scales[len(y) // 16] - 32)
                for i in range(first, first + 16):
                    y.append(step * np.float32((qs[n + i] >> shift & 3) - (0 if hmask[i] & mask else 4)))
            mask <<= 1
    return y


LOOPS: dict[str, Callable[[Array], list[np.float32]]] = {
    name[5:]: loop for name, loop in list(globals().items()) if name.startswith("loop_")
}


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_random_blocks_decode_as_ggml_does(dtype: DType) -> None:
    """Three rows of two blocks: a step at the wrong end, or a scale without its sign, differs in some."""
    block, nbytes = SIZES[dtype.value]
    raw = RNG.integers(0, 256, (6, nbytes)).astype(np.uint8)
    raw = with_steps(raw, dtype.value, RNG.normal(0, 0.1, 6), RNG.normal(0, 3.0, 6))
    want = np.array([LOOPS[dtype.value](x) for x in raw], np.float32).reshape(3, 2 * block)
    np.testing.assert_array_equal(decode(words_of(raw), dtype, (3, 2 * block)), want)
    batched = decode(words_of(raw), dtype, (3, 1, 2, block))
    assert np.array_equal(batched.reshape(3, -1), want)


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_bytes_of_anybody_decode_without_a_warning(dtype: DType) -> None:
    raw = np.full((2, SIZES[dtype.value][1]), 255, np.uint8)
    assert not np.isfinite(decode(words_of(raw), dtype, (2, SIZES[dtype.value][0]))).all()
    infinite = with_steps(raw, dtype.value, np.full(2, np.inf), np.full(2, np.inf))
    decode(words_of(infinite), dtype, (2, SIZES[dtype.value][0]))


# encoding -------------------------------------------------------------------------------------------------------------
DATA = {
    "normal": RNG.normal(size=(5, 512)), "wide": RNG.normal(size=(3, 512)) * 10.0 ** RNG.integers(-3, 4, (3, 512)),
    "positive": RNG.uniform(0.5, 1, (2, 256)), "negative": -RNG.uniform(0.5, 1, (2, 256)),
    "far from 0": 100 + RNG.normal(size=(2, 256)), "one peak": np.eye(1, 256, 77), "zeros": np.zeros((1, 256)),
    "equal": np.full((2, 256), -3.25), "small": RNG.normal(0, 1e-3, (2, 256)),
}  # fmt: skip


# The largest multiple of d: what half of the smallest f16 (2⁻²⁵) in d makes of an element.
MULTIPLES = {"q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31, "q8_0": 127, "q2_k": 60, "q3_k": 128, "q4_k": 1008,
             "q5_k": 2016, "q6_k": 4096}  # fmt: skip


def bound(dtype: DType, x: Array) -> Array:
    """Largest error of an element: steps are rounded to f16 (2⁻¹¹), those of 256 elements to 4, 6 or 8 bits too."""
    name = dtype.value
    block = SIZES[name][0]
    b = x.reshape(-1, block)
    low, high, size = b.min(1, keepdims=True), b.max(1, keepdims=True), np.abs(b).max(1, keepdims=True)
    if name.endswith("_1"):
        step = (high - low) / (15 if name == "q4_1" else 31)
        most = step * 0.5 + 2.0**-10 * (16 * step + np.abs(low))
    elif name in ("q4_0", "q5_0"):
        most = size / (8 if name == "q4_0" else 16) * (1 + 2.0**-6)  # the end without a code: a whole step
    elif name == "q8_0":
        most = size / 127 * (0.5 + 127 * 2.0**-11 + 0.01)
    elif name in ("q3_k", "q6_k"):
        codes, scales = (4, 32) if name == "q3_k" else (32, 128)
        most = size / codes * (1 + (codes + 1) / scales + 0.02)
    else:
        codes, scales = {"q2_k": (3, 15), "q4_k": (15, 63), "q5_k": (31, 63)}[name]
        step = (np.maximum(high, 0) - np.minimum(low, 0)) / codes
        most = step * (0.5 + (0.5 + codes) / scales + codes * 2.0**-10) - np.minimum(low, 0) / scales * 1.01
    return np.broadcast_to(most + MULTIPLES[name] * 2.0**-25, b.shape).reshape(x.shape)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_encoding_keeps_its_bound(dtype: DType, name: str) -> None:
    x = DATA[name].astype(np.float32)
    got = decode(encode(x, dtype), dtype, x.shape)
    assert got.shape == x.shape and got.dtype == np.float32
    assert np.all(np.abs(got.astype(float) - x) <= bound(dtype, x.astype(float)))


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_what_is_stored_is_kept(dtype: DType) -> None:
    """The blocks of 32 exactly where their range is used up; of the others nothing drifts away."""
    x = DATA["normal"].astype(np.float32)
    once = decode(encode(x, dtype), dtype, x.shape)
    twice = decode(encode(once, dtype), dtype, x.shape)
    if dtype in (DType.q8_0, DType.q4_0, DType.q5_0):
        np.testing.assert_array_equal(twice, once)
    assert np.abs(twice - once).max() <= np.abs(once - x).max()


@pytest.mark.parametrize("dtype", GGML, ids=str)
@pytest.mark.parametrize(("value", "most"), [(1e-30, 1e-7), (1e30, np.inf), (np.inf, np.inf), (np.nan, 0.0)])
def test_extremes_make_no_nan_and_no_warning(dtype: DType, value: float, most: float) -> None:
    x = np.zeros((2, 256), np.float32)
    x[1, ::2], x[1, 1::4] = value, -value
    got = decode(encode(x, dtype), dtype, x.shape)
    assert np.isfinite(got).all() and np.abs(got).max() <= most and not got[0].any()


@pytest.mark.parametrize("dtype", GGML, ids=str)
def test_parts_of_a_large_array_are_encoded_alike(dtype: DType) -> None:
    """300,000 elements are encoded and decoded in parts."""
    x = RNG.normal(size=(300, 1024)).astype(np.float32)
    words = encode(x, dtype)
    part = words.nbytes // 300
    assert np.array_equal(words.view(np.uint8)[250 * part : 251 * part], encode(x[250], dtype).view(np.uint8)[:part])
    assert np.array_equal(decode(words, dtype, x.shape)[250], decode(encode(x[250], dtype), dtype, (1024,)))
    for same in (np.asfortranarray(x), x.astype(float)):
        assert np.array_equal(encode(same, dtype), words)


def test_q8_0_rounds_half_away_from_zero() -> None:
    x = np.zeros(32, np.float32)
    x[:6] = [127, 0.5, 1.5, -0.5, -2.5, 0.49999997]
    raw = encode(x, DType.q8_0).view(np.int8)[2:8]
    assert raw.tolist() == [127, 1, 2, -1, -3, 0]


@pytest.mark.clock
@pytest.mark.parametrize("dtype", [DType.q4_0, DType.q8_0], ids=str)
def test_decoding_is_fast(dtype: DType) -> None:
    """Measured on two shared cores, 2026-11-22: 850 and 720 MB/s of float32 elements."""
    words, shape = encode(RNG.normal(size=(1024, 4096)), dtype), (1024, 4096)

    def seconds() -> float:
        start = time.perf_counter()
        decode(words, dtype, shape)
        return time.perf_counter() - start

    assert 4 * 1024 * 4096 / min(seconds() for _ in range(5)) >= 200e6
