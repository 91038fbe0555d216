"""Buffers of f16 and bf16: what they hold, op methods on them, and the passes (graph_session.md, 2 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import ArgumentError, DTypeError, GdlabError, ShapeError
from gdlab.base.formats import bf16_bits, round_bf16, round_f16
from gdlab.base.types import DType
from gdlab.record import Buffer, QuantizedMatmulParams

Array = np.ndarray[Any, Any]
NEAREST = {"f16": round_f16, "bf16": round_bf16}
TOLERANCE = {"f16": 2e-3, "bf16": 1.6e-2}
MOST = {"f16": "65504", "bf16": "3.3895314e+38"}
KINDS = list(NEAREST)


def stored(ex: gd.GraphExecutor, array: Array, kind: str, **more: Any) -> Buffer:
    made = ex.alloc_buffer(2 * array.size, kind, array.shape, **more)
    made.write(array)
    return made


def empty(ex: gd.GraphExecutor, kind: str, *shape: int, **more: Any) -> Buffer:
    return ex.alloc_buffer(2 * int(np.prod(shape)), kind, shape, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_rounded_as_they_are_written_and_lie_two_in_a_word(device: str, kind: str) -> None:
    ex = rec.executor(device)
    for n in (1, 2, 3, 70, 333):
        x = rec.data(n) * 100
        b = stored(ex, x, kind)
        assert (b.nbytes, b.element_count, b.dtype) == (2 * n, n, DType(kind))
        assert b.read().dtype == DType(kind).numpy
        assert np.array_equal(b.read().astype(np.float32), NEAREST[kind](x))
    b = stored(ex, np.arange(9.0), kind)
    view = b.slice_view(4, 7)
    assert (view.nbytes, view.read().tolist()) == (14, [2, 3, 4, 5, 6, 7, 8])
    view.slice_view(4, 2).write([-1, -2])
    assert b.read().tolist() == [0, 1, 2, 3, -1, -2, 6, 7, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused(device: str, kind: str) -> None:
    ex = rec.executor(device)
    b, other = empty(ex, kind, 7), rec.zeros(ex, 7)
    mixed = empty(ex, "f16" if kind == "bf16" else "bf16", 7)
    s = rec.direct(ex)
    cases: list[tuple[Callable[[], Any], type[GdlabError], str]] = [
        (lambda: ex.alloc_buffer(28, kind, (7,)), ShapeError, f"nbytes: given 28, wanted 14, those of {kind}[7]"),
        (lambda: b.write([3.5e38] * 7), DTypeError, f"3.5e+38 at index 0, wanted numbers of at most {MOST[kind]}"),
        (lambda: b.write(b"1" * 14), DTypeError, f"given bytes, wanted {kind} elements"),
        (lambda: b.write(np.zeros(6)), ShapeError, "given 6 elements, wanted 7"),
        (lambda: b.slice_view(2, 1), ArgumentError, "byte_offset: given 2, wanted a multiple of 4"),
        (lambda: b.slice_view(4, 3), ArgumentError, "n_elements: given 3, wanted an even number"),
        (lambda: b.slice_view(4, 6), ShapeError, "range: given bytes 4 … 16, wanted a range of 0 … 14"),
        (lambda: s.elementwise_add(b, b, b, 5, kind), ArgumentError, "n_elements: given 5, wanted an even number"),
        (lambda: s.elementwise_add(b, b, b, 7, "f32"), DTypeError, f"a: given {kind} elements, wanted f32"),
        (lambda: s.elementwise_mul(b, mixed, b, 7, kind), DTypeError, f"given {mixed.dtype} elements, wanted {kind}"),
        (lambda: s.rms_norm(b, other, b, 1, 7), DTypeError, f"weight: given f32 elements, wanted {kind}"),
        (lambda: s.gelu(b, other), DTypeError, f"output: given f32 elements, wanted {kind}"),
        (lambda: s.rms_norm_no_scale_f32(b, b, 1, 7), DTypeError, f"input: given {kind} elements, wanted f32"),
    ]  # fmt: skip
    for call, error, words in cases:
        with pytest.raises(error) as refused:
            call()
        assert words in str(refused.value), str(refused.value)
    assert not b.read().any() and s.graph.node_count() == 0
    s.drop()


@pytest.mark.parametrize("kind", KINDS)
def test_op_methods_compute_in_f32_and_round_once(device: str, kind: str) -> None:
    """Against float64 on what the buffers hold; sums and products, whose f32 is exact enough, to the bit."""
    ex = rec.executor(device)
    for rows, n in ((1, 1), (2, 6), (3, 65), (37, 8)):
        data = [rec.data(rows, n), rec.data(rows, n, seed=1), rec.data(n, seed=2)]
        x, y, w = (stored(ex, d, kind) for d in data)
        a, b, c = (held.read().astype(np.float32) for held in (x, y, w))
        outs = {k: empty(ex, kind, rows, n) for k in ("norm", "add", "mul", "gelu", "soft", "cap", "rope")}
        where = np.arange(rows, dtype=np.uint32)[::-1] * 41
        with rec.recorded(ex) as s:
            s.rms_norm(x, w, outs["norm"], rows, n)
            s.elementwise_add(x, y, outs["add"], rows * n, kind)
            s.elementwise_mul(x, y, outs["mul"], rows * n, DType(kind))
            s.gelu(x, outs["gelu"])
            s.softmax(x, outs["soft"], rows, n)
            s.softcap(x, outs["cap"], 0.5)
            if n % 2 == 0:
                s.rope(x, outs["rope"], rec.buffer(ex, where.copy()), rows, n)
        wanted = {
            "norm": rec.rms(a, c), "gelu": rec.gelu(a), "soft": rec.softmax(a),
            "cap": 0.5 * np.tanh(a.astype(np.float64) / 0.5),
        }  # fmt: skip
        if n % 2 == 0:
            i = np.arange(n // 2)
            wanted["rope"] = rec.turned(a, 2 * i, 2 * i + 1, where, 10000.0 ** (-2 * i / n))
        for name, value in wanted.items():
            rec.close(outs[name].read(), value, TOLERANCE[kind])
        for name, exact in (("add", a + b), ("mul", a * b)):
            assert np.array_equal(outs[name].read().astype(np.float32), NEAREST[kind](exact)), name


@pytest.mark.parametrize("kind", KINDS)
def test_results_in_views_and_in_place_leave_the_bytes_around_them_alone(device: str, kind: str) -> None:
    ex = rec.executor(device)
    for offset in (4, 12, 256, 260):
        for n in (2, 6, 70):
            homes = [stored(ex, rec.data(400, seed=i), kind) for i in range(3)]
            before = [h.read() for h in homes]
            x, y, out = (h.slice_view(offset, n) for h in homes)
            first = offset // 2
            with rec.recorded(ex) as s:
                s.elementwise_mul(x, y, out, n, kind)
                s.elementwise_add(x, y, x, n, kind)
            a, b = (old.astype(np.float32)[first : first + n] for old in before[:2])
            for home, old, value in ((homes[2], before[2], a * b), (homes[0], before[0], a + b)):
                got = home.read()
                assert np.array_equal(got[first : first + n].astype(np.float32), NEAREST[kind](value)), (offset, n)
                got[first : first + n] = old[first : first + n]
                assert np.array_equal(got, old), (offset, n)


def layer(s: gd.GraphSession, ex: gd.GraphExecutor, x: Buffer, w: Buffer, kind: str) -> list[Buffer]:
    """A norm and a product, which fuse; a chain behind them; independent nodes; a copy and a function of the
    caller's."""
    y, z = empty(ex, kind, 6, 8, transient=True), empty(ex, kind, 6, 8)
    soft, half, copy = (empty(ex, kind, 6, 8) for _ in range(3))
    s.rms_norm(x, w, y, 6, 8)
    s.elementwise_mul(y, x, z, 48, kind)
    s.gelu(x, half)
    s.softmax(z, soft, 6, 8)
    s.encoder_mut().copy_buffer(half, copy)
    s.encoder_mut().dispatch(lambda a, b: (a * b).relu(), [soft, copy], half)
    return [z, half, soft, copy]


@pytest.mark.parametrize("kind", KINDS)
def test_passes_leave_the_same_bytes(device: str, kind: str) -> None:
    ex = rec.executor(device)
    x, w = stored(ex, rec.data(6, 8), kind), stored(ex, rec.data(8), kind)
    found, fusions = {}, 0
    for how in ("direct", "finish", "finish_with_fusion", "finish_with_fusion_and_reorder", "finish_optimized"):
        s = rec.direct(ex) if how == "direct" else ex.begin_recorded(auto_barrier=True)
        outs = layer(s, ex, x, w, kind)
        result = getattr(s, "finish" if how == "direct" else how)()
        fusions += bool(result)
        found[how] = [out.read().tobytes() for out in outs]
    assert fusions == 3, "the pair of norm and product is fused"
    assert all(bytes_ == found["direct"] for bytes_ in found.values())
    held = x.read().astype(np.float32)
    norm = NEAREST[kind](rec.rms(held, w.read().astype(np.float32)).astype(np.float32))
    rec.close(np.frombuffer(found["direct"][0], x.read().dtype).reshape(6, 8), norm * held, TOLERANCE[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_halves_is_a_graph_of_the_same_values(device: str, kind: str) -> None:
    ex = rec.executor(device)
    x, w = stored(ex, rec.data(6, 8), kind, label="x"), stored(ex, rec.data(8), kind, label="w")
    s = ex.begin_recorded(auto_barrier=True)
    outs = layer(s, ex, x, w, kind)
    graph, study = s.to_graph(), s.to_study()
    s.finish()
    assert {n.name: str(n.type) for n in graph.inputs} == {"x": "f32[6, 8]", "w": "f32[8]"}
    assert [str(v.type) for v in graph.outputs] == [f"{kind}[48]", *[f"{kind}[6, 8]"] * 3]
    study.run(1)
    for i, out in enumerate(outs):
        rec.close(study.session.read_output_by_index(i), out.read(), TOLERANCE[kind])
    study.close()


def test_scales_and_biases_may_lie_in_buffers_of_bf16(device: str) -> None:
    ex, rng = rec.executor(device), np.random.default_rng(4)
    x, scales, biases = rec.data(3, 64), rec.data(5, 2, seed=1), rec.data(5, 2, seed=2)
    codes = rec.buffer(ex, rng.integers(0, 2**32, 5 * 8, np.uint32))
    params = QuantizedMatmulParams(3, 64, 5, 32, 4)
    raw = [rec.raw(ex, bf16_bits(a).tobytes()) for a in (scales, biases)]
    held = [stored(ex, a, "bf16") for a in (scales, biases)]
    found = []
    for pair in (raw, held):
        s = rec.direct(ex)
        out = s.quantized_matmul(rec.buffer(ex, x), codes, *pair, params)
        s.finish()
        found.append(out.read())
    assert np.array_equal(*found) and found[0].any()


def test_steady_state_makes_nothing(device: str) -> None:
    ex = rec.executor(device)
    x, w = stored(ex, rec.data(6, 8), "f16"), stored(ex, rec.data(8), "f16")
    y, made = empty(ex, "f16", 6, 8), []
    for _ in range(4):
        with rec.recorded(ex) as s:
            s.rms_norm(x, w, y, 6, 8)
            s.gelu(y, y)
        c = ex.counters()
        made.append([c[k] for k in ("pieces_created", "pipelines_created", "bindings_created", "buffers_created")])
    assert made[1] == made[2] == made[3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_may_store_16_bits_on_its_way(device: str, kind: str) -> None:
    ex, stores = rec.executor(device), {"f16": gd.ops.to_f16, "bf16": gd.ops.to_bf16}[kind]
    x, y = rec.buffer(ex, rec.data(4, 4)), rec.zeros(ex, 4, 4)
    with rec.recorded(ex) as s:
        s.encoder_mut().dispatch(lambda a: stores(stores(a * 3.0) + 1.0) * 2.0, [x], y)
    near = NEAREST[kind]
    assert np.array_equal(y.read(), near(near(x.read() * 3) + 1) * 2)
