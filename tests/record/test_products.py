"""Quantized products and attention with caches (S-05 to S-08), and what they keep and count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, DTypeError, ExpertIndexError, ShapeError
from gdlab.base.formats import bf16_bits, bf16_values, decode, encode
from gdlab.base.types import FORMATS, DType, TensorType
from gdlab.ops.quant import row_bytes
from gdlab.record import (
    FlashAttnVecParams,
    GgmlQuantizedMatmulIdParams,
    GgmlQuantizedMatmulParams,
    QuantizedMatmulParams,
    SdpaParams,
)
from gdlab.record.scaled_attention import tmp_buffer_bytes

Array = np.ndarray[Any, Any]
P0 = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
P1 = ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K")


@pytest.fixture
def ex(device: str) -> gd.GraphExecutor:
    return rec.executor(device)


# codes of a few bits --------------------------------------------------------------------------------------------------
def packed(codes: Array, bits: int) -> bytes:
    """Rows of codes as little-endian streams of whole packs."""
    n, k = codes.shape
    bytes_of_row = row_bytes(k, bits)
    each = codes.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    stream = np.zeros((n, bytes_of_row * 8), np.uint8)
    stream[:, : k * bits] = each.reshape(n, -1)
    return np.packbits(stream, axis=1, bitorder="little").tobytes()


def affine(ex: gd.GraphExecutor, m: int, k: int, n: int, group: int, bits: int, simd: bool = False) -> str:
    """Run one product, compare it with float64, and return its route."""
    choose = np.random.default_rng(bits * 1000 + k)
    codes, groups = choose.integers(0, 1 << bits, (n, k)), -(-k // group)
    scales, biases = (bf16_bits(choose.standard_normal((n, groups)).astype(np.float32)) for _ in range(2))
    x = rec.data(m, k)
    given = rec.buffer(ex, x), rec.raw(ex, packed(codes, bits)), rec.raw(ex, scales.tobytes()), rec.raw(
        ex, biases.tobytes())  # fmt: skip
    with ex.begin(auto_barrier=True) as s:
        call = s.quantized_matmul_simd if simd else s.quantized_matmul
        out = call(*given, QuantizedMatmulParams(m, k, n, group, bits))
        route = s.last_route
    step, least = (np.repeat(bf16_values(v).astype(np.float64), group, 1)[:, :k] for v in (scales, biases))
    w = step * codes + least
    wanted, most = x.astype(np.float64) @ w.T, np.abs(x).astype(np.float64) @ np.abs(w).T
    assert out.shape == (m, n) and np.all(np.abs(out.read() - wanted) <= 1e-5 * np.sqrt(k) * most + 1e-6)
    return route


@pytest.mark.parametrize("bits", [4, 6, 8, 2, 3, 5])
def test_products_with_codes_of_a_few_bits(ex: gd.GraphExecutor, device: str, bits: int) -> None:
    groups = (32, 64, 128) if device == "cpu" and bits in (4, 6, 8) else (32, 128)
    for group in groups:
        for k in (1, 31, 64, 100, 256) if device == "cpu" else (1, 31, 100, 256):
            for m in (1, 3):
                affine(ex, m, k, 5, group, bits)


def test_the_packing_of_codes(ex: gd.GraphExecutor) -> None:
    for bits, words, wanted in ((4, bytes.fromhex("10325476"), range(8)), (6, bytes.fromhex("813010"), (1, 2, 3, 4)),
                                (8, bytes.fromhex("01020304"), (1, 2, 3, 4))):  # fmt: skip
        k = len(wanted)
        one, none = rec.raw(ex, np.uint16(0x3F80).tobytes()), rec.raw(ex, bytes(2))
        with ex.begin(auto_barrier=True) as s:
            x = rec.buffer(ex, np.eye(k, dtype=np.float32))
            out = s.quantized_matmul(x, rec.raw(ex, words), one, none, QuantizedMatmulParams(k, k, 1, 32, bits))
        assert out.read().reshape(-1).tolist() == list(wanted)


def test_the_other_order_tells_whether_it_was_taken(ex: gd.GraphExecutor) -> None:
    assert affine(ex, 2, 256, 8, 64, 4, simd=True).startswith("simd, ")
    assert affine(ex, 2, 256, 8, 64, 8, simd=True).startswith("simd, ")
    for k, n, bits, why in ((256, 8, 6, "bits 6 are neither 4 nor 8"), (256, 9, 4, "n 9 is no multiple of 8"),
                            (128, 8, 4, "k 128 is no multiple of 256")):  # fmt: skip
        assert affine(ex, 1, k, n, 64, bits, simd=True).startswith(f"quantized_matmul, {why}: ")


def test_wrong_codes_are_refused_and_nothing_is_added(ex: gd.GraphExecutor) -> None:
    s = ex.begin()
    x, w, few = rec.zeros(ex, 64), rec.raw(ex, bytes(4096)), rec.raw(ex, bytes(4))
    for params, words in (
        ((1, 64, 8, 32, 7), "quantized_matmul: bits: given 7, wanted one of 2, 3, 4, 5, 6, 8"),
        ((1, 64, 8, 48, 4), "quantized_matmul: group_size: given 48, wanted one of 32, 64, 128"),
        ((0, 64, 8, 32, 4), "quantized_matmul: m: given 0"),
    ):
        with pytest.raises(ArgumentError, match=words):
            s.quantized_matmul(x, w, w, w, QuantizedMatmulParams(*params))
    with pytest.raises(ShapeError, match="weight: given 1 element, wanted at least 64"):
        s.quantized_matmul(x, few, w, w, QuantizedMatmulParams(1, 64, 8, 32, 4))
    with pytest.raises(DTypeError, match="scales: given f32 elements, wanted u32 words"):
        s.quantized_matmul(x, w, x, w, QuantizedMatmulParams(1, 64, 8, 32, 4))
    with pytest.raises(ArgumentError, match="params: given tuple, wanted QuantizedMatmulParams"):
        s.quantized_matmul_simd(x, w, w, w, (1, 64, 8, 32, 4))  # type: ignore[arg-type]
    assert len(s.graph) == 0 and s.last_route == ""


# blocks of ggml -------------------------------------------------------------------------------------------------------
# d and dmin (or m) at their byte offsets; y[0], y[1], y[16], y[31], the sum, and the sum of (e + 1) · y[e]
KNOWN: dict[str, tuple[int, int | None, tuple[float, ...]]] = {
    "Q4_0": (0, None, (-0.75, 0.5, -0.75, 0, -5.25, -129.5)),
    "Q8_0": (0, None, (21.25, 30.5, -22.75, -12, -44, -2020)),
    "Q4_K": (0, 2, (78.875, -6.375, 78.875, 40.125, 13610, 1893210)),
    "Q5_K": (0, 2, (202.875, -6.375, 202.875, 40.125, 29054, 4006862)),
    "Q6_K": (208, None, (-357.75, 424, -108, -24, 1153, 196105)),
    "Q2_K": (80, 82, (8.25, 0, -0.375, -0.375, 514.75, 60782.5)),
    "Q3_K": (108, None, (20.25, -27, -24, 16, 239.5, 44286.25)),
    "Q4_1": (0, 2, (3.875, 1.125, 2.375, 3.125, 65.25, 1061.75)),
    "Q5_0": (0, None, (2.25, -0.5, 3.5, 0.25, 3.75, 28)),
    "Q5_1": (0, 2, (4.875, 6.125, 4.875, 1.375, 130.25, 2041.25)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_blocks_through_unit_vectors(ex: gd.GraphExecutor, name: str) -> None:
    at, second, wanted = KNOWN[name]
    format = FORMATS[DType[name.lower()]]
    block = bytearray((37 * i + 11) % 256 for i in range(format.nbytes))
    block[at : at + 2] = np.float16(0.25).tobytes()
    if second is not None:
        block[second : second + 2] = np.float16(0.125).tobytes()
    k = format.block
    out = rec.zeros(ex, k, 1)
    with ex.begin(auto_barrier=True) as s:
        x = rec.buffer(ex, np.eye(k, dtype=np.float32))
        s.quantized_matmul_ggml(x, rec.raw(ex, bytes(block)), out, GgmlQuantizedMatmulParams(k, 1, k, name))
    y = out.read().reshape(-1)
    assert (y[0], y[1], y[16], y[31], y.sum(), (y * np.arange(1, k + 1)).sum()) == wanted


@pytest.mark.parametrize("name", P0 + P1)
def test_products_with_blocks(ex: gd.GraphExecutor, name: str) -> None:
    """Three rows of two blocks, so that rows begin inside a word; from a view, and a second time from new words."""
    dtype = DType[name.lower()]
    k = 2 * FORMATS[dtype].block
    for m in (1, 8, 9, 64) if name in P0 else (2,):
        words = encode(rec.data(3, k, seed=m), dtype)
        home = rec.raw(ex, bytes(260) + words.tobytes())
        weight = home.slice_view(260, words.size)
        x, out = rec.data(m, k), rec.zeros(ex, m, 3)
        for again in range(2):
            if again:
                words = encode(rec.data(3, k, seed=77), dtype)
                weight.write(words)
            with ex.begin(auto_barrier=True) as s:
                s.quantized_matmul_ggml(rec.buffer(ex, x), weight, out, GgmlQuantizedMatmulParams(m, 3, k, name))
                assert ":" in s.last_route
            w = decode(words, dtype, (3, k)).astype(np.float64)
            error = np.abs(out.read() - x.astype(np.float64) @ w.T)
            assert np.all(error <= 1e-5 * np.sqrt(k) * (np.abs(x).astype(np.float64) @ np.abs(w).T))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_four_elements_decoded_at_a_time_are_those_decoded_alone(name: str) -> None:
    """Blocks of random bits (with finite steps), rows that do not begin at a word: a product with unit vectors, which
    reads fours, and a look-up of rows, which reads single elements, to the bit."""
    ex, k, n = rec.executor("wgpu"), 256, 3
    dtype = DType[name.lower()]
    rng = np.random.default_rng(len(name))
    words = encode(rng.standard_normal((n, k)).astype(np.float32), dtype)
    noise = words.view(np.uint8)
    codes = rng.integers(0, 256, noise.size, np.uint8)
    steps = {"q2_k": (80, 84), "q3_k": (108, 110), "q6_k": (208, 210), "q4_1": (0, 4), "q5_1": (0, 4)}
    low, high = steps.get(str(dtype), (0, 2 if FORMATS[dtype].block == 32 else 4))
    at = np.arange(noise.size) % FORMATS[dtype].nbytes
    noise[:] = np.where((low <= at) & (at < high), noise, codes)
    w, x = rec.raw(ex, words.tobytes()), rec.buffer(ex, np.eye(k, dtype=np.float32))
    out = rec.zeros(ex, k, n)
    with rec.recorded(ex) as s:
        s.quantized_matmul_ggml(x, w, out, GgmlQuantizedMatmulParams(k, n, k, name))
        assert s.last_route.startswith("registers") and s.last_route.endswith("decoded once, four elements at a time")
    with gd.Graph() as g:
        g.output(gd.embedding(gd.input_u32("i", (n,)), gd.parameter("w", (n, k), dtype=dtype)))
    with gd.build_inference_session(g, "wgpu") as session:
        session.set_parameter_packed("w", words.tobytes())
        session.set_input("i", np.arange(n))
        session.step()
        alone = session.read_output_by_index(0)
    np.testing.assert_array_equal(alone, decode(words, dtype, (n, k)))
    np.testing.assert_array_equal(out.read().T, alone)


def test_words_that_a_node_writes_are_decoded_again(ex: gd.GraphExecutor) -> None:
    dtype, k = DType.q8_0, 32
    first, second = (encode(rec.data(4, k, seed=i), dtype) for i in (1, 2))
    w, other = rec.raw(ex, first.tobytes()), rec.raw(ex, second.tobytes())
    x, a, b = rec.buffer(ex, rec.data(2, k)), rec.zeros(ex, 2, 4), rec.zeros(ex, 2, 4)
    params = GgmlQuantizedMatmulParams(2, 4, k, dtype)
    with ex.begin(auto_barrier=True) as s:
        s.quantized_matmul_ggml(x, w, a, params)
        s.encoder_mut().copy_buffer(other, w)
        s.quantized_matmul_ggml(x, w, b, params)
    for out, words in ((a, first), (b, second)):
        rec.close(out.read(), rec.data(2, k) @ decode(words, dtype, (4, k)).T.astype(np.float64), 1e-4)


def test_blocks_that_do_not_fit_are_refused(ex: gd.GraphExecutor) -> None:
    s, x, w, out = ex.begin(), rec.zeros(ex, 512), rec.raw(ex, bytes(144)), rec.zeros(ex, 8)
    for params, error, words in (
        ((1, 2, 100, "Q4_0"), ArgumentError, "quantized_matmul_ggml: k: given 100, wanted a multiple of 32"),
        ((1, 2, 100, "Q4_K"), ArgumentError, "quantized_matmul_ggml: k: given 100, wanted a multiple of 256"),
        ((1, 2, 256, "Q4_K"), ShapeError, "weight: given 36 elements, wanted at least 72"),
        ((1, 2, 256, "Q7_K"), DTypeError, "ggml_type: given 'Q7_K', wanted one of Q4_0"),
        ((1, 2, 256, "f16"), DTypeError, "ggml_type: given 'f16'"),
        ((3, 1, 256, "Q4_K"), ShapeError, "input: given 512 elements, wanted at least 768"),
        ((2, 9, 32, "Q4_0"), ShapeError, "weight: given 36 elements, wanted at least 41"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            s.quantized_matmul_ggml(x, w, out, GgmlQuantizedMatmulParams(*params))
    with pytest.raises(ArgumentError, match="output: given bytes 0 … 4 .*wanted disjoint ranges"):
        s.quantized_matmul_ggml(x, w, x, GgmlQuantizedMatmulParams(1, 1, 256, "Q4_K"))
    assert len(s.graph) == 0


def test_a_session_reads_weights_in_blocks_of_ggml(device: str) -> None:
    """The same format as a parameter of a graph: `matmul_bt(x, w)`."""
    with gd.Graph() as g:
        w = gd.parameter("w", (3, 512), dtype="q4_k")
        g.output(gd.matmul_bt(gd.input("x", (2, 512)), w).relu())
    x, values = rec.data(2, 512), rec.data(3, 512, seed=1)
    with gd.build_inference_session(g, device) as session:
        session.set_parameter("w", values)
        session.set_input("x", x)
        session.step()
        held = decode(encode(values, DType.q4_k), DType.q4_k, (3, 512)).astype(np.float64)
        rec.close(session.read_output(), np.maximum(x @ held.T, 0), 1e-4)


# experts --------------------------------------------------------------------------------------------------------------
class Experts:
    """Five matrices of three rows in blocks, perhaps with a gap behind each."""

    E, N, K, TYPE = 5, 3, 64, DType.q8_0

    def __init__(self, ex: gd.GraphExecutor, gap: int = 0) -> None:
        self.ex, self.slab = ex, TensorType((self.N, self.K), self.TYPE).data_bytes
        self.stride, values = self.slab + gap, [rec.data(self.N, self.K, seed=i) for i in range(self.E)]
        parts = [encode(v, self.TYPE).tobytes()[: self.slab] for v in values]
        self.w = [decode(encode(v, self.TYPE), self.TYPE, v.shape).astype(np.float64) for v in values]
        self.weight = rec.raw(ex, b"".join(p + b"\xff" * gap for p in parts[:-1]) + parts[-1])

    def params(self, tokens: int, top_k: int, **more: int) -> GgmlQuantizedMatmulIdParams:
        fields = {"n_experts": self.E, "expert_stride": self.stride, **more}
        return GgmlQuantizedMatmulIdParams(tokens, top_k, self.N, self.K, ggml_type="q8_0", **fields)

    def wanted(self, x: Array, ids: Array, top_k: int) -> Array:
        none = np.zeros(self.N)
        return np.array([self.w[i] @ x[r // top_k] if i < self.E else none for r, i in enumerate(ids)])


@pytest.mark.parametrize("gap", [0, 2, 34, 1000])
def test_products_with_experts(ex: gd.GraphExecutor, gap: int) -> None:
    experts = Experts(ex, gap)
    for tokens, top_k in ((1, 1), (1, 8), (32, 2), (33, 8)) if gap in (0, 34) else ((3, 2),):
        ids = np.random.default_rng(top_k).integers(0, experts.E, tokens * top_k).astype(np.uint32)
        ids[:top_k] = 4  # duplicates in a token
        x, out = rec.data(tokens, experts.K), rec.zeros(ex, tokens * top_k, experts.N)
        with ex.begin_recorded(auto_barrier=True) as s:
            s.quantized_matmul_id_ggml(
                rec.buffer(ex, x), experts.weight, rec.buffer(ex, ids), out, experts.params(tokens, top_k)
            )
        rec.close(out.read(), experts.wanted(x, ids, top_k), 1e-4)


def test_an_expert_that_does_not_exist(ex: gd.GraphExecutor) -> None:
    experts = Experts(ex)
    x, out = rec.data(2, experts.K), rec.buffer(ex, rec.data(4, experts.N))
    ids = rec.buffer(ex, np.array([1, 2, 5, 0], np.uint32))
    s = ex.begin(auto_barrier=True)
    given = rec.buffer(ex, x)
    for _ in range(2):
        with pytest.raises(
            ExpertIndexError, match=r"quantized_matmul_id_ggml: ids\[2\]: given 5, wanted 0 … 4"
        ) as told:
            s.quantized_matmul_id_ggml(given, experts.weight, ids, out, experts.params(2, 2))
        assert (told.value.row, told.value.index, told.value.experts) == (2, 5, 5) and len(s.graph) == 0
    good = rec.buffer(ex, np.array([1, 2, 3, 0], np.uint32))
    s.encoder_mut().copy_buffer(ids, good)  # computed now
    s.quantized_matmul_id_ggml(given, experts.weight, good, out, experts.params(2, 2))
    work = s.commit()
    for _ in range(2):
        with pytest.raises(ExpertIndexError, match=r"node 1 .*ids\[2\]: given 5") as told:
            work.wait_until_completed()
        assert told.value.row == 2
    got = out.read()
    assert not got[2].any()
    rec.close(got, experts.wanted(x, np.array([1, 2, 5, 0]), 2), 1e-4)
    s = ex.begin_recorded(auto_barrier=True)
    s.quantized_matmul_id_ggml(given, experts.weight, rec.buffer(ex, np.array([1, 1], np.uint32)), out,
                               experts.params(2, 1))  # fmt: skip
    s.elementwise_add(out, out, out, 3, gd.f32)
    s.finish_optimized()
    s = ex.begin_recorded(auto_barrier=True)
    s.encoder_mut().copy_buffer(ids, good)
    s.quantized_matmul_id_ggml(given, experts.weight, good, out, experts.params(2, 2))
    with pytest.raises(ExpertIndexError):
        s.finish_with_fusion_and_reorder()


def test_wrong_experts_are_refused(ex: gd.GraphExecutor) -> None:
    experts = Experts(ex, 34)
    s, x, out = ex.begin(), rec.zeros(ex, 2, experts.K), rec.zeros(ex, 12)
    ids = rec.buffer(ex, np.zeros(4, np.uint32))
    for more, error, words in (
        ({"n_experts": 6}, ShapeError, "weight: given 1156 bytes, wanted at least 1394"),
        ({"expert_stride": 200}, ArgumentError, "expert_stride: given 200, wanted at least 204"),
        ({"n_experts": 0}, ArgumentError, "n_experts: given 0"),
    ):
        with pytest.raises(error, match=words):
            s.quantized_matmul_id_ggml(x, experts.weight, ids, out, experts.params(2, 2, **more))
    with pytest.raises(ShapeError, match="ids: given 4 elements, wanted at least 6"):
        s.quantized_matmul_id_ggml(x, experts.weight, ids, out, experts.params(2, 3))
    assert len(s.graph) == 0


# attention ------------------------------------------------------------------------------------------------------------
def caches(ex: gd.GraphExecutor, b: int, kv: int, cap: int, length: int, d: int) -> tuple[Array, Array, Any, Any]:
    """k and v with NaN behind what they hold, and their buffers."""
    k, v = rec.data(b, kv, cap, d), rec.data(b, kv, cap, d, seed=1)
    k[:, :, length:], v[:, :, length:] = np.nan, np.nan
    return k[:, :, :length], v[:, :, :length], rec.buffer(ex, k), rec.buffer(ex, v)


@pytest.mark.parametrize(("b", "h", "kv", "s", "length", "cap"), [
    (1, 4, 4, 1, 7, 9), (2, 4, 2, 3, 7, 9), (1, 4, 1, 7, 7, 0), (3, 2, 2, 1, 1, 5), (1, 8, 2, 5, 33, 64),
])  # fmt: skip
def test_attention_with_caches(ex: gd.GraphExecutor, b: int, h: int, kv: int, s: int, length: int, cap: int) -> None:
    d, scale = 8, 0.3
    q = rec.data(b, h, s, d, seed=5)
    k, v, kb, vb = caches(ex, b, kv, cap or length, length, d)
    for causal in (True, False):
        out = rec.zeros(ex, b, h, s, d)
        with ex.begin(auto_barrier=True) as session:
            session.sdpa(rec.buffer(ex, q), kb, vb, out, SdpaParams(h, kv, d, s, length, scale, cap, causal), b)
        rows, keys = np.arange(s)[:, None], np.arange(length)[None]
        allowed = (keys <= length - s + rows) if causal else np.ones((s, length), bool)
        rec.close(out.read(), rec.attention(q, k, v, allowed, scale))


@pytest.mark.parametrize("softcap", [0.0, 30.0, 0.5])
@pytest.mark.parametrize("window", [0, 1, 5, 40])
def test_attention_of_one_query(ex: gd.GraphExecutor, softcap: float, window: int) -> None:
    h, kv, d, length, cap = 4, 2, 8, 9, 12
    q = 3 * rec.data(1, h, 1, d, seed=5)
    k, v, kb, vb = caches(ex, 1, kv, cap, length, d)
    out, again = rec.zeros(ex, 1, h, 1, d), rec.zeros(ex, 1, h, 1, d)
    tmp = rec.zeros(ex, tmp_buffer_bytes(h, d) // 4)
    params = FlashAttnVecParams(h, kv, d, length, cap, 0.7, 2 if window else 1, window, softcap)
    with ex.begin_recorded(auto_barrier=True) as s:
        s.flash_attn_vec(rec.buffer(ex, q), kb, vb, out, tmp, params)
        s.sdpa(rec.buffer(ex, q), kb, vb, again, SdpaParams(h, kv, d, 1, length, 0.7, cap), 1)
        assert s.graph.nodes[0].writes == (out.range, tmp.range) and len(s.graph) == 2
    allowed = np.arange(length)[None] >= (length - window if window else 0)
    rec.close(out.read(), rec.attention(q, k, v, allowed, 0.7, softcap))
    if not softcap and not window:
        rec.close(out.read(), again.read(), 1e-6)
    assert tmp_buffer_bytes(4, 8) == 32 * 4 * 10 * 4


def test_a_growing_cache_makes_one_piece(device: str) -> None:
    with gd.GraphExecutor(device) as ex:
        h, d, cap = 2, 4, 110
        q, k = rec.buffer(ex, rec.data(1, h, 1, d)), rec.buffer(ex, rec.data(1, h, cap, d))
        outs = [rec.zeros(ex, 1, h, 1, d) for _ in range(2)]
        made = []
        for length in range(1, 101):
            with ex.begin(auto_barrier=True) as s:
                for out in outs:
                    s.sdpa(q, k, k, out, SdpaParams(h, h, d, 1, length, 0.5, cap), 1)
            counters = ex.counters()
            made.append((counters["pieces_created"], counters["bindings_created"]))
        assert len(set(made)) == 1 and made[0][0] <= 1
        allowed = np.ones((1, 100), bool)
        wanted = rec.attention(q.read(), k.read()[:, :, :100], k.read()[:, :, :100], allowed, 0.5)
        rec.close(outs[0].read(), wanted)
        rec.close(outs[1].read(), wanted)


@pytest.mark.parametrize("causal", [True, False])
def test_a_full_cache_is_read_as_it_is(ex: gd.GraphExecutor, causal: bool) -> None:
    """Without a mask of v; the values are those of the same keys in a larger cache."""
    h, s, length, d = 2, 3, 9, 8
    q = rec.buffer(ex, rec.data(1, h, s, d))
    k, v, kb, vb = caches(ex, 1, h, 12, length, d)
    outs = [rec.zeros(ex, 1, h, s, d) for _ in range(2)]
    with ex.begin(auto_barrier=True) as session:
        for out, keys, values, cap in ((outs[0], rec.buffer(ex, k), rec.buffer(ex, v), 0), (outs[1], kb, vb, 12)):
            session.sdpa(q, keys, values, out, SdpaParams(h, h, d, s, length, 0.3, cap, causal), 1)
        full, larger = (n.operation for n in session.graph.nodes)
        assert full.numbers == () and larger.numbers != () and full.work < larger.work
    rec.close(outs[0].read(), outs[1].read(), 1e-6)
    rows, columns = np.arange(s)[:, None], np.arange(length)[None]
    allowed = (columns <= length - s + rows) if causal else np.ones((s, length), bool)
    rec.close(outs[0].read(), rec.attention(q.read(), k, v, allowed, 0.3))


def test_prompts_over_full_caches_take_the_tiled_kernel(ex: gd.GraphExecutor) -> None:
    """One kernel for scores, softmax and product; heads that share keys, several batches, any scale."""
    for b, h, kv, s, length, causal in ((1, 4, 2, 33, 33, True), (2, 6, 3, 5, 17, False), (3, 2, 2, 7, 7, True)):
        d, scale = 12, 0.45
        q, k, v = rec.data(b, h, s, d, seed=2), rec.data(b, kv, length, d, seed=3), rec.data(b, kv, length, d, seed=4)
        out = rec.zeros(ex, b, h, s, d)
        with ex.begin(auto_barrier=True) as session:
            held = [rec.buffer(ex, a) for a in (q, k, v)]
            session.sdpa(*held, out, SdpaParams(h, kv, d, s, length, scale, 0, causal), b)
            names = [n.op for n in session.to_graph()]
        assert ("causal_attention" if causal else "cross_attention") in names and "softmax" not in names
        allowed = np.tri(s, length, dtype=bool) if causal else np.ones((s, length), bool)
        rec.close(out.read(), rec.attention(q, k, v, allowed, scale))
