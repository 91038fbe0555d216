"""A finite number that would become infinite in the tensor's own dtype is refused wherever data enters; parameters in
every storage format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from conforming import refused
from session_state import W, X, Y, fitted, line, state_of

import gdlab as gd
from gdlab.base.formats import decode, encode, round_bf16
from gdlab.base.types import FORMATS, DType
from gdlab.models import checkpoint_weights
from gdlab.op.reference import evaluate
from gdlab.op.text import to_python
from gdlab.session import Session

BIG = X.astype(float) * 1e30
BIG[2, 1] = BIG[3, 0] = 1e300
TOLD = "given 1e+300 at index 7, wanted numbers of at most 3.4028235e+38, the largest of f32"
LARGE = np.array([[0.5, -1], [1e39, 2], [0, -1e39]])


# sessions -------------------------------------------------------------------------------------------------------------
DOORS: dict[str, tuple[Callable[[Session], object], str]] = {
    "set_input": (lambda s: s.set_input("x", BIG), f"set_input: 'x': {TOLD}"),
    "flat": (lambda s: s.set_input("x", BIG.ravel()), f"set_input: 'x': {TOLD}"),
    "list": (lambda s: s.set_input("x", BIG.tolist()), f"set_input: 'x': {TOLD}"),
    "turned": (lambda s: s.set_input("x", np.asfortranarray(BIG)), f"set_input: 'x': {TOLD}"),
    "swapped": (lambda s: s.set_input("x", BIG.astype(">f8")), f"set_input: 'x': {TOLD}"),
    "set_parameter": (lambda s: s.set_parameter("w", LARGE), "set_parameter: 'w': given 1e+39 at index 2, wanted"),
    "upload_param": (lambda s: s.upload_param("b", [1.0, -1e39]), "upload_param: 'b': given -1e+39 at index 1, wanted"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_session_refuses_what_float32_lacks(door: str, device: str) -> None:
    call, text = DOORS[door]
    with fitted(gd.build_session(line(), device)) as s:
        s.step()
        assert str(refused(s, lambda: call(s), gd.DTypeError)).startswith(text)
        assert np.array_equal(s.read_input("x"), X) and np.array_equal(s.read_param("w"), W)


def test_moments_are_checked_too() -> None:
    with fitted(gd.build_session(line(), "cpu")) as s:
        s.set_adam(0.1)
        s.step()
        error = refused(s, lambda: s.write_adam_m("w", LARGE), gd.DTypeError)
        assert "given 1e+39 at index 2" in str(error)


def test_infinities_and_nan_are_data(device: str) -> None:
    data = np.array([[np.inf, -np.inf, np.nan], [3.4028235e38, -3.4028235e38, 1e-320]])
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (2, 3)) * gd.parameter_f16("w", (2, 3))])
    with gd.build_inference_session(g, device) as s:
        s.set_input("x", data)
        np.testing.assert_array_equal(s.read_input("x"), data.astype(np.float32))
        s.set_parameter("w", [np.inf, -np.inf, np.nan, 65504, -65519.996, 1e-30])
        np.testing.assert_array_equal(s.read_param("w"), [[np.inf, -np.inf, np.nan], [65504, -65504, 0]])
        before = state_of(s)
        for large in (65520.0, np.float32(7e4), 70000, -1e300):
            with pytest.raises(gd.DTypeError, match=r"'w': given .* at index 5, wanted numbers of at most 65504"):
                s.set_parameter("w", np.array([1, 2, 3, 4, 5, large]))
        assert state_of(s) == before


@pytest.mark.parametrize("init", ["constant(1e39)", "normal(1e300)"])
def test_initialize_refuses_what_the_parameter_lacks(init: str) -> None:
    with gd.Graph() as g:
        first, w = gd.parameter("first", (3, 4)), gd.parameter("w", (4, 2), init=init)
        g.output(gd.input("x", (2, 3)) @ first @ w)
    with gd.build_inference_session(g, "cpu") as s:
        error = refused(s, lambda: s.initialize(0), gd.DTypeError)
        assert str(error).startswith("initialize: init of 'w': given ") and s.unset_parameters == ["first", "w"]
        s.initialize(0, zeros=True)


def test_initialize_checks_the_storage_dtype() -> None:
    with gd.Graph() as g:
        first = gd.parameter("first", (3, 4))
        w = gd.parameter("w", (4, 2), dtype="f16", init="constant(7e4)")
        g.output(gd.input("x", (2, 3)) @ first @ w)
    with gd.build_inference_session(g, "cpu") as s:
        error = refused(s, lambda: s.initialize(0), gd.DTypeError)
        assert str(error) == (
            "initialize: 'w': given 70000.0 at index 0, wanted numbers of at most 65504, the largest of f16"
        )


# feeds, weights, loaders ----------------------------------------------------------------------------------------------
def test_feeds_and_weights_are_checked() -> None:
    study = gd.Study(line(), train=True, device="cpu")
    study.weights = {"w": W, "b": np.array([1e39, 0])}
    with pytest.raises(gd.DTypeError, match=r"set_parameter: 'b': given 1e\+39 at index 0"):
        _ = study.session
    study = gd.Study(line(), train=True, device="cpu")

    def feed() -> Iterator[dict[str, Any]]:
        yield {"x": X, "y": Y}
        yield {"x": BIG, "y": Y}

    study.run(1, feed=feed(), init=0)
    with pytest.raises(gd.DTypeError, match=r"set_input: 'x': given 1e\+300 at index 7"):
        study.run(2, feed=feed())
    assert study.session.step_count == 2


def test_the_reference_refuses_what_a_session_refuses() -> None:
    with pytest.raises(gd.DTypeError) as told:
        evaluate(line(), {"x": BIG, "y": Y, "w": W, "b": np.zeros(2)})
    assert str(told.value) == f"evaluate: 'x': {TOLD}"


def test_a_data_loader_refuses_what_float32_lacks() -> None:
    with pytest.raises(gd.DTypeError) as told:
        gd.DataLoader(BIG, Y, 3, 2, batch_size=2)
    assert str(told.value) == f"DataLoader: stream 'x': {TOLD}"
    whole = X.astype(np.float32)
    assert np.shares_memory(gd.InputStream("x", whole, 3).rows(), whole)  # float32 is neither searched nor copied


def test_loaders_refuse_weights_that_float32_lacks(tmp_path: Path) -> None:
    (tmp_path / "graph.nnef").write_text(
        "version 1.0;\ngraph net( ) -> ( y )\n{\nw = variable(shape=[3,2], label='w'); y = copy(w);\n}\n"
    )
    head = np.array([48, 2, 3, 2, 0, 0, 0, 0, 0, 0, 64, 0], "<u4").tobytes()
    (tmp_path / "w.dat").write_bytes((b"\x4e\xef\x01\x00" + head).ljust(128, b"\0") + LARGE.tobytes())
    with pytest.raises(gd.LoadError, match=r"given 1e\+39 at index 2, wanted numbers of at most 3.4028235e\+38"):
        gd.load_nnef(tmp_path)
    with gd.Graph() as g:
        g.output(gd.input("x", (1, 3)) @ gd.parameter("w", (3, 2)))
    with pytest.raises(gd.DTypeError, match=r"tensor 'w': given .*1e\+39 at index"):
        checkpoint_weights(g, {"w": LARGE.T})


def test_an_onnx_weight_of_float64_is_checked() -> None:
    for data, good in ((LARGE, False), (LARGE.clip(-1e38, 1e38), True)):
        raw = onnx_models.model(
            [onnx_models.helper.make_node("Add", ["x", "w"], ["y"])], {"x": np.zeros((3, 2))}, {"w": data}, ["y"]
        )
        if good:
            np.testing.assert_array_equal(gd.load_onnx(raw).weights["w"], data.astype(np.float32))
            continue
        with pytest.raises(gd.LoadError, match=r"initializer 'w': given 1e\+39 at index 2"):
            gd.load_onnx(raw)


def test_a_constant_is_refused_and_none_is_appended() -> None:
    with gd.Graph() as g:
        for make in (lambda: gd.constant([1.0, 1e39]), lambda: gd.scalar(-1e300)):
            with pytest.raises(gd.DTypeError, match="constant: data: given .* at index .*, wanted numbers of at most"):
                make()
        assert gd.constant([np.inf, np.nan]).shape == (2,)
    assert len(g) == 1


# parameters in every storage format -----------------------------------------------------------------------------------
def stored(dtype: DType) -> gd.Graph:
    """A graph beside whose output a parameter of 3 x 512 stands that no kernel reads."""
    with gd.Graph() as g:
        g.output(gd.input("x", (2, 3)).tanh())
        gd.parameter("w", (3, 512), dtype=dtype)
    return g


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_the_text_of_a_parameter_comes_back(dtype: DType) -> None:
    g = stored(dtype)
    assert f"{dtype}[3, 512]" in g.text() and gd.parse(g.text()).fingerprint() == g.fingerprint()
    spelled = {"f16": "parameter_f16('w', (3, 512))"}.get(str(dtype), f"parameter('w', (3, 512), dtype='{dtype}')")
    assert (f"parameter_{dtype}('w', (3, 512))" if dtype in (DType.q4, DType.q8) else spelled) in to_python(g)
    with gd.Graph() as again:
        same = gd.parameter("w", (3, 512), dtype=str(dtype))
        assert gd.parameter("w", (3, 512), dtype=dtype).id == same.id and len(again) == 1


def test_a_parameter_has_f32_or_a_storage_dtype() -> None:
    with gd.Graph() as g:
        for wrong in ("u32", DType.u32, "q4_K", "f64", 4, None):
            with pytest.raises(gd.DTypeError, match="parameter: dtype: given .*, wanted f32 or one of f16, bf16, q4, "):
                gd.parameter("w", (32, 32), dtype=wrong)  # type: ignore[arg-type]
        with pytest.raises(
            gd.ShapeError, match=r"given q4_k\[32, 100\], wanted a last extent that is a multiple of 256"
        ):
            gd.parameter("w", (32, 100), dtype="q4_k")
    assert len(g) == 0


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda x, w, i: x @ w, "matmul_bt": lambda x, w, i: x.matmul_bt(w), "a of matmul": lambda x, w, i: w @ x,
    "add": lambda x, w, i: w + x, "relu": lambda x, w, i: w.relu(), "to_f32": lambda x, w, i: w.to_f32(),
    "table": lambda x, w, i: gd.embedding(i, w), "gather": lambda x, w, i: w.gather(i, 0), "cut": lambda x, w, i: w[0],
    "turned": lambda x, w, i: w.T, "reshaped": lambda x, w, i: w.reshape(-1), "sum": lambda x, w, i: w.sum(),
    "concat": lambda x, w, i: gd.concat([w, w], 0), "fused": lambda x, w, i: gd.silu(w),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", [d for d in FORMATS if d.in_blocks and d not in (DType.q4, DType.q8)], ids=str)
def test_an_op_that_cannot_read_a_format_says_so(dtype: DType, use: str) -> None:
    with gd.Graph() as g:
        x, i = gd.input("x", (256, 256)), gd.input_u32("i", (3,))
        w = gd.parameter("w", (256, 256), dtype=dtype)
        if use in ("matmul_bt", "table"):  # what reads blocks of rows
            assert USES[use](x, w, i).type == gd.TensorType((256 if use == "matmul_bt" else 3, 256))
            return
        words = f"{dtype} may only be operand b of matmul_bt"
        with pytest.raises(gd.DTypeError, match=words):
            USES[use](x, w, i)
    assert len(g) == 3


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_op_reads_parameters_of_16_bits(dtype: str, device: str) -> None:
    """With the result of the same op on the numbers that the format holds."""
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(16, 16)).astype(np.float32), rng.normal(size=(16, 16)).astype(np.float32)
    w = decode(encode(w, DType(dtype)), DType(dtype), w.shape)
    found = []
    for kind in (dtype, "f32"):
        with gd.Graph() as g:
            of = gd.input("x", x.shape), gd.parameter("w", w.shape, dtype=kind), gd.input_u32("i", (3,))
            g.set_outputs([use(*of) * 2.0 for use in USES.values()])
        with gd.build_inference_session(g, device=device) as s:
            s.set_parameter("w", w)
            s.set_input("x", x)
            s.set_input("i", np.array([0, 5, 15], np.uint32))
            s.step()
            found.append([s.read_output_by_index(n).copy() for n in range(len(USES))])
    for use, got, want in zip(USES, *found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=use)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_session_keeps_every_format(dtype: DType, device: str, tmp_path: Path) -> None:
    data = np.random.default_rng(2).normal(size=(3, 512)).astype(np.float32)
    want = decode(encode(data, dtype), dtype, data.shape)
    with gd.build_inference_session(stored(dtype), device) as s:
        assert s.param_names() == ["w"]
        s.set_parameter("w", data)
        np.testing.assert_array_equal(s.read_param("w"), want)
        s.save_checkpoint(tmp_path / "a")
        s.set_parameter("w", np.zeros((3, 512)))
        s.load_checkpoint(tmp_path / "a")
        np.testing.assert_array_equal(s.read_param("w"), want)
        s.set_parameter("w", np.ones((3, 512)))
        s.set_parameter_packed("w", encode(data, dtype).tobytes())
        np.testing.assert_array_equal(s.read_param("w"), want)
    assert dtype is not DType.bf16 or np.array_equal(want, round_bf16(data))


def test_packed_bytes_may_leave_out_the_padding(device: str) -> None:
    with gd.Graph() as g:
        g.output(gd.input("x", (2, 3)).tanh())
        gd.parameter("w", (1, 32), dtype="q8_0")
    raw = encode(np.arange(32.0), DType.q8_0).tobytes()
    assert len(raw) == 36
    with gd.build_inference_session(g, device) as s:
        for given in (raw, raw[:34]):
            s.set_parameter("w", np.zeros((1, 32)))
            s.set_parameter_packed("w", given)
            np.testing.assert_array_equal(s.read_param("w"), decode(np.frombuffer(raw, "u4"), DType.q8_0, (1, 32)))
        for wrong in (raw[:33], raw[:35]):
            refused(s, lambda wrong=wrong: s.set_parameter_packed("w", wrong), gd.ShapeError)  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [DType.bf16, DType.q4_0, DType.q6_k], ids=str)
def test_a_table_of_embeddings_is_read_in_its_format(dtype: DType, device: str) -> None:
    """Rows in any order, one of them twice; what is read is what the format holds."""
    with gd.Graph() as g:
        g.output(gd.embedding(gd.input_u32("i", (5,)), gd.parameter("t", (7, 256), dtype=dtype)))
    words = encode(np.random.default_rng(3).normal(size=(7, 256)).astype(np.float32), dtype)
    session = gd.build_inference_session(g, device=device)
    session.set_parameter_packed("t", words.tobytes()[: gd.TensorType((7, 256), dtype).data_bytes])
    session.set_input("i", np.array([6, 0, 3, 3, 1], np.uint32))
    session.step()
    wanted = decode(words, dtype, (7, 256))[[6, 0, 3, 3, 1]]
    np.testing.assert_array_equal(session.read_output_by_index(0), wanted)
