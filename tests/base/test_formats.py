"""Rounding to 16 bits, the numbers that a dtype does not hold, and the conversions of boundary dtypes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes  # a dependency of jax, which the tests have
import numpy as np
import pytest

from gdlab.base import formats
from gdlab.base.errors import DTypeError, ShapeError
from gdlab.base.formats import (
    BOUNDARY,
    bf16_bits,
    bf16_values,
    check_boundary,
    decode,
    encode,
    entered,
    from_bytes,
    landed,
    narrowed,
    round_bf16,
    round_f16,
    to_bytes,
)
from gdlab.base.types import DType

Array = np.ndarray
F32, U32 = DType.f32, DType.u32
RNG = np.random.default_rng(3)
BITS = np.concatenate([
    RNG.integers(0, 2**32, 20_000), np.arange(2**16) << 16, (np.arange(2**16) << 16) + 0x8000,
    (np.arange(2**16) << 16) + 0x7FFF, (np.arange(2**16) << 16) + 0x8001,
]).astype(np.uint32)  # fmt: skip


def of_bits(*bits: int) -> Array:
    return np.array(bits, np.uint32).view(np.float32)


# rounding -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("bits", "want"),
    [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x7F7FFFFF, 0x7F80), (0xFF7FFFFF, 0xFF80), (0x7F800000, 0x7F80),
     (0x80000000, 0x8000), (0x00008000, 0x0000), (0x00018000, 0x0002), (0x3F808001, 0x3F81), (0x7F7F7FFF, 0x7F7F)],
)  # fmt: skip
def test_bf16_vectors(bits: int, want: int) -> None:
    assert bf16_bits(of_bits(bits)).tolist() == [want]
    assert round_bf16(of_bits(bits)).view(np.uint32).tolist() == [want << 16]


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFFF8000])
def test_nan_stays_a_quiet_nan(bits: int) -> None:
    got = int(bf16_bits(of_bits(bits))[0])
    assert got & 0x7FC0 == 0x7FC0 and got >> 15 == bits >> 31
    assert np.isnan(round_bf16(of_bits(bits))).all() and np.isnan(round_f16(of_bits(bits))).all()


@pytest.mark.parametrize(
    ("x", "want"),
    [(65519.996, 65504.0), (65520.0, np.inf), (-65520.0, -np.inf), (2.0**-24, 2.0**-24), (2.0**-26, 0.0),
     (2049.0, 2048.0), (2051.0, 2052.0), (2.0**-25, 0.0), (2.0**-25 * 1.0001, 2.0**-24), (-0.0, -0.0)],
)  # fmt: skip
def test_f16_vectors(x: float, want: float) -> None:
    for data in (np.array([x], np.float32), np.array(x, np.float32)):
        got = round_f16(data)
        assert got.dtype == np.float32 and got.shape == data.shape
        assert float(got.reshape(())) == want and np.signbit(got).all() == np.signbit(want)


def test_bf16_is_nearest_even_for_all_bits() -> None:
    """Against the two neighbours of each number, in exact arithmetic."""
    x = BITS.view(np.float32)
    x = x[np.isfinite(x)][::7]
    near = bf16_bits(x)
    low = (x.view(np.uint32) >> 16).astype(np.uint16)
    assert np.all((near == low) | (near == low + 1))
    for number, bits, below in list(zip(x, near, low, strict=True))[::97]:
        two = [
            Fraction(float(np.uint32(int(b) << 16).view(np.float32))) for b in (below, below + 1) if b & 0x7FFF < 0x7F80
        ]
        if len(two) == 2:
            gaps = [abs(Fraction(float(number)) - t) for t in two]
            even = int(below) & 1
            assert int(bits) - int(below) == (even if gaps[0] == gaps[1] else int(gaps[1] < gaps[0]))
    again = bf16_values(near)
    assert np.array_equal(bf16_bits(again), near) and np.array_equal(round_bf16(again), again)


def test_float64_is_rounded_once() -> None:
    """A little above a tie of bfloat16: float32 would hold the tie, and even would be below."""
    tie = 1 + 2.0**-8
    x = np.array([tie + 2.0**-40, tie, tie - 2.0**-40, -tie - 2.0**-40, 3.5e38, -1e300, np.inf, np.nan, 1e-310])
    want = [1 + 2.0**-7, 1.0, 1.0, -1 - 2.0**-7, np.inf, -np.inf, np.inf, np.nan, 0.0]
    got = round_bf16(x)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, want)
    halves = np.array([2049 + 2.0**-40, 2049, 2049 - 2.0**-40])
    np.testing.assert_array_equal(round_f16(halves), [2050, 2048, 2048])


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16], ids=str)
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (2, 3, 4)])
def test_halves_are_words(dtype: DType, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    words = encode(x, dtype)
    assert words.dtype == np.uint32 and words.size == -(-x.size // 2)
    rounded = (round_f16 if dtype is DType.f16 else round_bf16)(x)
    assert np.array_equal(decode(words, dtype, shape), rounded)
    assert np.array_equal(encode(rounded, dtype), words)
    assert np.all(np.abs(rounded - x) <= np.abs(x) * (2.0**-11 if dtype is DType.f16 else 2.0**-8))
    if x.size % 2:
        assert words.view(np.uint16)[-1] == 0


# range ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "value", "largest"),
    [("f32", 1e300, "3.4028235e+38"), ("f32", -3.5e38, "3.4028235e+38"), ("f16", 65520.0, "65504"),
     ("f16", 70000, "65504"), ("bf16", 3.4e38, "3.3895314e+38"), ("bf16", -1e300, "3.3895314e+38"),
     ("q8_0", 1e300, "3.4028235e+38"), ("q4", 1e300, "3.4028235e+38")],
)  # fmt: skip
def test_a_finite_number_never_becomes_infinite(dtype: str, value: float, largest: str) -> None:
    kind = DType[dtype]
    data = np.zeros((2, 3), np.float64 if isinstance(value, float) else np.int64)
    data[1, 1:] = value, value
    with pytest.raises(DTypeError) as told:
        narrowed("set_input", "'x'", data, kind)
    named = kind if dtype in ("f16", "bf16") else F32
    assert str(told.value) == (
        f"set_input: 'x': given {data[1, 1]} at index 4, wanted numbers of at most {largest}, the largest of {named}"
    )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_largest_numbers_infinities_and_nan_pass(dtype: str) -> None:
    kind = DType[dtype]
    most = {"f32": 3.4028235e38, "f16": 65519.996, "bf16": 3.3895314e38}[dtype]
    data = np.array([np.inf, -np.inf, np.nan, most, -most])
    got = narrowed("w", "x", data, kind)
    assert got.dtype == kind.numpy and np.isfinite(got[3:]).all()
    np.testing.assert_array_equal(np.isfinite(got[:3]), [False] * 3)
    assert narrowed("w", "x", got, kind) is got or dtype == "bf16"


def test_a_bf16_parameter_refuses_what_float32_holds() -> None:
    with pytest.raises(DTypeError, match=r"given 3\.39.*e\+38 at index 0"):
        narrowed("w", "x", np.array([3.4e38], np.float32), DType.bf16)


def test_integers_are_rounded_to_the_nearest() -> None:
    assert narrowed("w", "x", np.array([16777217, 16777219, 2**63 - 1]), F32).tolist() == [16777216, 16777220, 2.0**63]


# boundary dtypes ------------------------------------------------------------------------------------------------------
def test_the_names_of_boundary_dtypes() -> None:
    assert list(BOUNDARY) == "f32 f16 bf16 f64 i8 u8 i16 i32 u32 i64 bool".split()
    assert check_boundary("build", "x", "bf16") == "bf16" and check_boundary("build", "x", DType.f16) == "f16"
    for wrong in ("f8", None, DType.q4, 3, ["f32"]):
        with pytest.raises(DTypeError, match="wanted one of f32, f16, bf16, f64, i8, u8, i16, i32, u32, i64, bool"):
            check_boundary("build", "x", wrong)


@pytest.mark.parametrize(
    ("boundary", "data", "want"),
    [("f32", [1e-50, 0.1], [0, np.float32(0.1)]), ("f64", [0.1], [np.float32(0.1)]), ("f16", [0.1], [0.0999755859375]),
     ("bf16", [1, 2, 3, 4], [1, 2, 3, 4]), ("bf16", [257, 259], [256, 260]), ("bf16", [0.1], [0.10009765625]),
     ("f16", [2049, 2051], [2048, 2052]), ("bf16", [np.inf, np.nan], [np.inf, np.nan]),
     ("i64", [16777217, -5], [16777216, -5]), ("i8", [-128, 127], [-128, 127]), ("u8", [0, 255], [0, 255]),
     ("u8", [True, False], [1, 0]), ("bool", [0.0, -0.0, 0.5, np.nan], [0, 0, 1, 1]), ("bool", [2, 0], [1, 0]),
     ("u32", [2**32 - 1], [2.0**32]), ("f32", np.array([16777217], np.uint64), [16777216]),
     ("bf16", np.array([1 + 2.0**-8 + 2.0**-40]), [1 + 2.0**-7])],
)  # fmt: skip
def test_numbers_enter(boundary: str, data: Any, want: list[float]) -> None:
    got = entered("run", "'x'", data, boundary, F32)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array(want, np.float32))
    back = np.asarray(landed(got, boundary))
    again = entered("run", "'x'", back if boundary != "bf16" else bf16_values(back.view(np.uint16)), boundary, F32)
    if boundary not in ("i64", "u32", "f64"):  # which f32 does not hold whole
        np.testing.assert_array_equal(again, got)  # a tensor shows values of its boundary through every call


@pytest.mark.parametrize(
    ("boundary", "data", "dtype", "text"),
    [("f32", [0.0, 1e300], F32, "given 1e+300 at index 1, wanted numbers of at most 3.4028235e+38"),
     ("f64", [[0.0], [1e39]], F32, "given 1e+39 at index 1"), ("f16", [65520.0], F32, "65520.0 at index 0"),
     ("f16", [1, 65520], F32, "65520 at index 1"), ("bf16", [3.4e38], F32, "3.4e+38 at index 0"),
     ("i8", [0, 128, 200], F32, "given 128 at index 1, wanted integers in -128 … 127"),
     ("u8", [-1], F32, "given -1 at index 0, wanted integers in 0 … 255"),
     ("i16", [[0, 0], [0, 40000]], F32, "index 3"),
     ("i32", [2**31], F32, "2147483648 at index 0"), ("i64", np.array([2**63], np.uint64), F32, "9223372036854775808"),
     ("i32", [1.0], F32, "given float64 data, wanted integers in -2147483648 … 2147483647"),
     ("i64", [0.5], U32, "given float64 data"), ("i64", [np.nan], F32, "given float64 data"),
     ("i64", [0, -1], U32, "given -1 at index 1, wanted integers in 0 … 2^32 − 1"),
     ("i64", [2**32], U32, "given 4294967296 at index 0"), ("f32", [1.0], U32, "given float32 data, wanted integers"),
     ("f32", [1j], F32, "given complex128, wanted real numbers"), ("f32", ["a"], F32, "wanted real numbers"),
     ("f32", [None], F32, "given object, wanted real numbers")],
)  # fmt: skip
def test_what_does_not_enter(boundary: str, data: Any, dtype: DType, text: str) -> None:
    with pytest.raises(DTypeError) as told:
        entered("run", "'x'", data, boundary, dtype)
    assert str(told.value).startswith("run: 'x': given ") and text in str(told.value)


def test_a_ragged_sequence_is_no_array() -> None:
    with pytest.raises(ShapeError, match="run: 'x': given a ragged sequence, wanted an array"):
        entered("run", "'x'", [[1, 2], [3]], "f32", F32)


def test_indices_enter_as_u32() -> None:
    for boundary in ("u32", "i64", "u8", "bool"):
        got = entered("run", "'i'", np.array([0, 1], np.int16), boundary, U32)
        assert got.dtype == np.uint32 and got.tolist() == [0, 1]
    assert entered("run", "'i'", [2**32 - 1], "i64", U32).tolist() == [2**32 - 1]


OUT = np.array([3e9, -3e9, -1.5, 1.5, 300, -5, np.nan, np.inf, -np.inf, 0.0, 127.9, 9.3e18, -9.3e18], np.float32)


@pytest.mark.parametrize("boundary", [b for b in BOUNDARY if b[0] in "iu"])
def test_integers_leave_cut_and_saturated(boundary: str) -> None:
    limits = np.iinfo(BOUNDARY[boundary])
    want = [0 if np.isnan(x) else int(min(max(x, limits.min), limits.max)) if np.isinf(x) else
            min(max(int(x), int(limits.min)), int(limits.max)) for x in OUT.tolist()]  # fmt: skip
    want[7], want[8] = int(limits.max), int(limits.min)
    got = landed(OUT, boundary)
    assert got.dtype == BOUNDARY[boundary] and got.tolist() == want


@pytest.mark.parametrize(
    ("boundary", "x", "want"),
    [("i32", 3e9, 2147483647), ("i32", -1.5, -1), ("u8", 300.0, 255), ("u8", -5.0, 0), ("i64", np.nan, 0),
     ("f16", 65520.0, np.inf), ("f16", 65519.996, 65504.0), ("f16", 2.0**-24, 2.0**-24), ("f16", 2.0**-26, 0.0),
     ("bool", np.nan, True), ("bool", -0.0, False), ("bool", 1e-30, True), ("f64", 0.5, 0.5)],
)  # fmt: skip
def test_output_vectors(boundary: str, x: float, want: float) -> None:
    assert landed(np.array([x], np.float32), boundary).tolist() == [want]


def test_indices_leave() -> None:
    x = np.array([0, 5, 300, 2**31, 2**32 - 1], np.uint32)
    for boundary, want in (
        ("i8", [0, 5, 127, 127, 127]), ("u8", [0, 5, 255, 255, 255]), ("i32", [0, 5, 300, 2**31 - 1, 2**31 - 1]),
        ("i64", x.tolist()), ("u32", x.tolist()), ("bool", [False, True, True, True, True]),
        ("f32", [0, 5, 300, 2.0**31, 2.0**32]),
    ):  # fmt: skip
        assert landed(x, boundary).tolist() == want and landed(x, boundary).dtype == BOUNDARY[boundary]


@pytest.mark.parametrize("installed", [True, False])
def test_bf16_leaves_in_ml_dtypes_or_as_bits(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    want = np.dtype(ml_dtypes.bfloat16) if installed else np.dtype(np.uint16)
    if not installed:
        monkeypatch.setattr(formats.boundary, "find_spec", lambda name: None)
    formats.bf16_numpy.cache_clear()
    try:
        got = landed(np.array([[1.0, 257.0]], np.float32), "bf16")
        assert got.dtype == want and got.view(np.uint16).tolist() == [[0x3F80, 0x4380]]
        assert to_bytes(np.array([1.0], np.float32), "bf16") == b"\x80\x3f"
        if installed:
            assert entered("run", "x", got, "bf16", F32).tolist() == [[1.0, 256.0]]
    finally:
        formats.bf16_numpy.cache_clear()


@pytest.mark.parametrize("boundary", BOUNDARY)
def test_bytes_come_back(boundary: str) -> None:
    x = np.array([0, 1, 2, 100], np.float32) if boundary != "bool" else np.array([0, 1, 1, 0], np.float32)
    raw = to_bytes(x, boundary)
    assert isinstance(raw, bytes) and len(raw) == 4 * BOUNDARY[boundary].itemsize
    for data in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint8)):
        read = from_bytes("run_typed", "'x'", data, boundary, 4)
        np.testing.assert_array_equal(entered("run_typed", "'x'", read, boundary, F32), x)
    with pytest.raises(ShapeError, match=r"run_typed: 'x': given \d+ bytes, wanted \d+ \(5 elements of " + boundary):
        from_bytes("run_typed", "'x'", raw, boundary, 5)
    with pytest.raises(DTypeError, match="given list, wanted contiguous bytes"):
        from_bytes("run_typed", "'x'", [1], boundary, 1)


def test_any_byte_but_0_is_true() -> None:
    read = from_bytes("run_typed", "'x'", b"\x00\x02\xff", "bool", 3)
    assert entered("run_typed", "'x'", read, "bool", F32).tolist() == [0, 1, 1]
    assert to_bytes(np.array([0, 2, np.nan], np.float32), "bool") == b"\x00\x01\x01"
