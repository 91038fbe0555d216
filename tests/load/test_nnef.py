"""NNEF models: every operation that is taken, binary tensors, refusals, damaged files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.load.nnef.operations import OPERATIONS
from gdlab.op.reference import evaluate

RNG = np.random.default_rng(6)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 2, shape).astype(np.float32)


def tensor(array: np.ndarray, kind: int = 0, **header: Any) -> bytes:
    """A binary tensor file: 4E EF 01 00, length, rank, 8 extents, bits, kind, 76 bytes of nothing, the elements."""
    shape = header.get("shape", array.shape)
    extents = [*shape, *[0] * (8 - len(shape))]
    head = header.get("magic", b"\x4e\xef\x01\x00")
    head += struct.pack("<12I", header.get("length", array.nbytes), len(shape), *extents, array.itemsize * 8, kind)
    return bytes(head.ljust(128, b"\0") + array.tobytes() + header.get("tail", b""))


def written(folder: Path, body: str, outputs: str = "y", inputs: str = "x", **tensors: np.ndarray) -> Path:
    text = f"version 1.0;\n\ngraph net( {inputs} ) -> ( {outputs} )\n{{\n{body}\n}}\n"
    (folder / "graph.nnef").write_text(text, "utf-8")
    for name, array in tensors.items():
        file = folder / f"{name.replace('__', '/')}.dat"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tensor(array))
    return folder


def values_of(model: gd.NnefModel, **fed: np.ndarray) -> list[np.ndarray]:
    values = evaluate(model.graph, {**fed, **model.weights})
    return [np.asarray(values[i]) for i in model.graph.output_ids]


# operations -----------------------------------------------------------------------------------------------------------
def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    powers = np.exp(x - x.max(axes, keepdims=True))
    return np.asarray(powers / powers.sum(axes, keepdims=True))


def windows(x: np.ndarray, size: int, stride: int, lo: int, hi: int, fill: float) -> np.ndarray:
    """[n, c, oh, ow, size, size] of squares."""
    x = np.pad(x.astype(float), ((0, 0), (0, 0), (lo, hi), (lo, hi)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return view[:, :, ::stride, ::stride]


def conv(x: np.ndarray, k: np.ndarray, stride: int, lo: int, hi: int) -> np.ndarray:
    return np.einsum("nchwij,ocij->nohw", windows(x, k.shape[2], stride, lo, hi, 0.0), k)


A, B, C, D = f(2, 3), f(2, 3), f(2), pos(2, 3)
IMAGE, KERNEL, DEPTH, BIAS = f(1, 2, 6, 6), f(3, 2, 3, 3), f(2, 1, 3, 3), f(1, 3)
CUBE, STACK, NEGATIVE = f(2, 3, 4), f(2, 4, 5), -pos(1, 2, 5, 5)
PADDED = windows(IMAGE, 3, 2, 1, 1, np.nan)
SIZE = "size=[1,1,3,3], stride=[1,1,2,2], padding=[(0,0),(0,0),(1,1),(1,1)]"
CASES: list[tuple[str, dict[str, np.ndarray], np.ndarray]] = [
    ("add(x, z)", {"x": A, "z": B}, A + B),
    ("add(x, z)", {"x": A, "z": C}, A + C[:, None]),  # aligned at the first axis
    ("sub(x, 1.5)", {"x": A}, A - 1.5), ("sub(1.5, x)", {"x": A}, 1.5 - A),
    ("mul(x = x, y = z)", {"x": A, "z": B}, A * B),
    ("div(x, z)", {"x": A, "z": D}, A / D), ("div(x, 4)", {"x": A}, A / 4), ("div(1.0, x)", {"x": D}, 1 / D),
    ("pow(x, 2.0)", {"x": A}, A**2), ("min(x, z)", {"x": A, "z": B}, np.minimum(A, B)),
    ("max(x, 0.5)", {"x": A}, np.maximum(A, 0.5)), ("clamp(x, -1.0, 0.5)", {"x": A}, A.clip(-1, 0.5)),
    ("relu(x)", {"x": A}, A.clip(0)), ("sigmoid(x)", {"x": A}, 1 / (1 + np.exp(-A))), ("tanh(x)", {"x": A}, np.tanh(A)),
    ("neg(x)", {"x": A}, -A), ("abs(x)", {"x": A}, abs(A)), ("exp(x)", {"x": A}, np.exp(A)),
    ("log(x)", {"x": D}, np.log(D)), ("rcp(x)", {"x": D}, 1 / D), ("sqrt(x)", {"x": D}, np.sqrt(D)),
    ("rsqrt(x)", {"x": D}, D**-0.5), ("sqr(x)", {"x": A}, A**2), ("silu(x)", {"x": A}, A / (1 + np.exp(-A))),
    ("gelu(x)", {"x": A}, 0.5 * A * (1 + np.tanh(0.7978845608 * (A + 0.044715 * A**3)))),
    ("softplus(x)", {"x": A}, np.log1p(np.exp(A))), ("elu(x)", {"x": A}, np.where(A > 0, A, np.exp(A) - 1)),
    ("leaky_relu(x, alpha=0.1)", {"x": A}, np.where(A > 0, A, 0.1 * A)), ("copy(x)", {"x": A}, A),
    ("softmax(x)", {"x": CUBE}, softmax(CUBE, (1,))), ("softmax(x, axes=[2])", {"x": CUBE}, softmax(CUBE, (2,))),
    ("softmax(x, axes=[0, 2])", {"x": CUBE}, softmax(CUBE, (0, 2))), ("softmax(x)", {"x": A}, softmax(A, (1,))),
    ("matmul(x, z)", {"x": A, "z": f(3, 4)}, np.array([])),
    ("matmul(x, z, transposeB=true)", {"x": A, "z": B}, A @ B.T),
    ("matmul(x, z, transposeA=true)", {"x": A, "z": B}, A.T @ B),
    ("matmul(x, z, transposeA=true)", {"x": STACK, "z": STACK}, STACK.swapaxes(1, 2) @ STACK),
    ("linear(x, z)", {"x": A, "z": f(4, 3)}, np.array([])),
    ("linear(x, z, b)", {"x": A, "z": B, "b": f(1, 2)}, np.array([])),
    ("conv(x, z)", {"x": IMAGE, "z": KERNEL}, conv(IMAGE, KERNEL, 1, 1, 1)),  # no padding: as many windows as pixels
    ("conv(x, z, stride=[2,2])", {"x": IMAGE, "z": KERNEL}, conv(IMAGE, KERNEL, 2, 0, 1)),
    ("conv(x, z, b, padding=[(0,0),(0,0)])", {"x": IMAGE, "z": KERNEL, "b": BIAS},
     conv(IMAGE, KERNEL, 1, 0, 0) + BIAS.reshape(1, 3, 1, 1)),
    ("conv(x, z, 0.5, padding=[(1,0),(1,0)], border='ignore')", {"x": IMAGE, "z": KERNEL},
     conv(IMAGE, KERNEL, 1, 1, 0) + 0.5),
    ("conv(x, z, groups=0, padding=[(0,0),(0,0)])", {"x": IMAGE, "z": DEPTH},
     np.concatenate([conv(IMAGE[:, i : i + 1], DEPTH[i : i + 1], 1, 0, 0) for i in range(2)], 1)),
    (f"max_pool(x, {SIZE}, border='ignore')", {"x": IMAGE}, np.nanmax(PADDED, (-1, -2))),
    ("max_pool(x, size=[1,1,3,3], padding=[(0,0),(0,0),(1,1),(1,1)])", {"x": NEGATIVE},
     windows(NEGATIVE, 3, 1, 1, 1, 0.0).max((-1, -2))),  # a border of zeros wins
    ("max_pool(x, size=[1,1,2,2], stride=[1,1,2,2], border='ignore')", {"x": IMAGE},
     windows(IMAGE, 2, 2, 0, 0, 0.0).max((-1, -2))),
    (f"avg_pool(x, {SIZE}, border='ignore')", {"x": IMAGE}, np.nanmean(PADDED, (-1, -2))),
    (f"avg_pool(x, {SIZE})", {"x": IMAGE}, windows(IMAGE, 3, 2, 1, 1, 0.0).mean((-1, -2))),
    ("sum_reduce(x, axes=[0,2])", {"x": CUBE}, CUBE.sum((0, 2), keepdims=True)),
    ("sum_reduce(x, axes=[1], normalize=true)", {"x": CUBE}, CUBE.mean(1, keepdims=True)),
    ("mean_reduce(x, axes=[1])", {"x": CUBE}, CUBE.mean(1, keepdims=True)),
    ("max_reduce(x, axes=[2])", {"x": CUBE}, CUBE.max(2, keepdims=True)),
    ("min_reduce(x, axes=[0])", {"x": CUBE}, CUBE.min(0, keepdims=True)),
    ("reshape(x, shape=[0, -1])", {"x": CUBE}, CUBE.reshape(2, 12)),
    ("reshape(x, shape=[2, 2], axis_start=2, axis_count=1)", {"x": CUBE}, CUBE.reshape(2, 3, 2, 2)),
    ("reshape(x, shape=[-1], axis_start=1)", {"x": CUBE}, CUBE.reshape(2, 12)),
    ("transpose(x, axes=[1,0])", {"x": CUBE}, CUBE.transpose(1, 0, 2)),
    ("transpose(x, axes=[0,2,1])", {"x": CUBE}, CUBE.transpose(0, 2, 1)),
    ("concat([x, z], axis=1)", {"x": A, "z": f(2, 2)}, np.array([])),
    ("squeeze(x, axes=[0])", {"x": A[None]}, A), ("unsqueeze(x, axes=[1])", {"x": A}, A[:, None]),
    ("constant(shape=[2,2], value=[1.0, 2.5, -3, 4e1])", {}, np.array([[1, 2.5], [-3, 40]])),
    ("constant(shape=[2,2], value=[7.0])", {}, np.full((2, 2), 7.0)),
]  # fmt: skip
WANTED: dict[str, Callable[..., np.ndarray]] = {
    "matmul": lambda x, z: x @ z, "linear": lambda x, z, b=0: x @ z.T + b,
    "concat": lambda x, z: np.concatenate([x, z], 1),
}  # fmt: skip


@pytest.mark.parametrize(("call", "fed", "want"), CASES, ids=[row[0] for row in CASES])
def test_an_operation_means_what_the_format_says(
    tmp_path: Path, call: str, fed: dict[str, np.ndarray], want: np.ndarray
) -> None:
    lines = [f"{name} = external(shape = {list(array.shape)});" for name, array in fed.items()]
    model = gd.load_nnef(written(tmp_path, "\n".join([*lines, f"y = {call};"]), inputs=", ".join(fed)))
    want = want if want.size else WANTED[call.partition("(")[0]](*fed.values())
    got = values_of(model, **fed)[0]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_every_operation_that_is_taken_is_tested() -> None:
    row = """constant add sub mul div relu sigmoid neg abs log rcp silu gelu softmax matmul linear conv reshape
    transpose concat copy max_pool avg_pool"""
    assert set(row.split()) <= set(OPERATIONS) == {call.partition("(")[0] for call, _, _ in CASES}


# a model --------------------------------------------------------------------------------------------------------------
BODY = """
    # a network of images, with a comment
    x = external<scalar>(shape = [2, 2, 6, 6]);
    w = variable<scalar>(shape = [3, 2, 3, 3], label = 'conv1/weight');
    b = variable(shape = [1, 3], label = "conv1/bias");
    fc = variable(shape = [4, 27], label = 'fc');
    c = conv(x, w, b, border = 'constant', padding = [], stride = [2, 2]);
    r = relu(c);
    flat = reshape(r, shape = [0, -1]);
    z = linear(flat, fc);
    y = softmax(z, axes = [1]);
"""
HELD = {"conv1__weight": f(3, 2, 3, 3), "conv1__bias": f(1, 3), "fc": f(4, 27)}


def test_a_model_keeps_its_names_and_runs(tmp_path: Path, device: str) -> None:
    model = gd.load_nnef(written(tmp_path, BODY, outputs="y, r", **HELD))
    assert isinstance(model, gd.NnefModel) and repr(model) == f"<NnefModel: {len(model.graph)} nodes, 3 parameters>"
    assert list(model.weights) == [n.name for n in model.graph.parameters] == ["conv1/weight", "conv1/bias", "fc"]
    np.testing.assert_array_equal(model.weights["fc"], HELD["fc"])
    assert model.graph.output_names == ("y", "r") and model.graph.outputs[1].name == "r"
    x = f(2, 2, 6, 6)
    rows = (conv(x, HELD["conv1__weight"], 2, 0, 1) + HELD["conv1__bias"].reshape(1, 3, 1, 1)).clip(0)
    want = softmax(rows.reshape(2, 27) @ HELD["fc"].T, (1,))
    with gd.build_inference_session(model.graph, device) as session:
        for name, values in model.weights.items():
            session.set_parameter(name, values)
        session.set_input("x", x)
        session.step()
        np.testing.assert_allclose(session.read_output(), want, rtol=2e-4, atol=1e-5)


def test_tensors_of_other_widths_are_read(tmp_path: Path) -> None:
    for dtype in (np.float16, np.float64):
        body = "w = variable(shape=[2,3], label='w'); y = copy(w);"
        model = gd.load_nnef(written(tmp_path, body, inputs="", w=A.astype(dtype)))
        np.testing.assert_array_equal(model.weights["w"], A.astype(dtype).astype(np.float32))


# refusals -------------------------------------------------------------------------------------------------------------
def test_all_that_is_not_taken_is_listed_at_once(tmp_path: Path) -> None:
    body = """x = external(shape = [1, 2, 4, 4]); a = lrn(x); b = relu(a); c = max_pool(x, size=[1, 2, 1, 1]);
    d = conv(x, x, border = 'reflect'); e = foo(b); y = external<text>(shape = [1]);"""
    with pytest.raises(gd.LoadError) as caught:
        gd.load_nnef(written(tmp_path, body, inputs="x, y"))
    assert str(caught.value.given).split("; ") == [
        "lrn (a)", "max_pool (c): pooling along batch or channels",
        "conv (d): border 'reflect', where 'constant' or 'ignore' is taken", "foo (e)", "external (y): external<text>",
    ]  # fmt: skip


TEXTS: dict[str, tuple[str, str]] = {
    "}{": ("}{", "line 1: given '}', wanted 'version'"),
    "nothing": ("", "given 'the end', wanted 'version'"),
    "version 2": ("version 2.0;", "given '2.0', wanted version 1"),
    "no brace": ("version 1.0;\ngraph g(x) -> (y)\n}{", "line 3: given '}', wanted '{'"),
    "half": ("version 1.0; graph g(x) -> (y) { x = external(shape=[1]", "given 'the end'"),
    "a strange letter": ("version 1.0; graph g(x) -> (y) { x = ü; }", "a word of NNEF"),
    "a fragment": ("version 1.0; extension KHR_enable_fragment_definitions; fragment a() -> ()", "fragments"),
    "deep": ("version 1.0; graph g(x) -> (y) { x = external(shape=" + "[" * 5000, "8 deep at most"),
    "more": ("version 1.0; graph g() -> (y) { y = constant(shape=[1], value=[1]); } x", "wanted the end"),
    "positional behind named": ("version 1.0; graph g() -> (y) { y = constant(shape=[1], [1]); }", "a named arg"),
    "an argument twice": ("version 1.0; graph g() -> (y) { y = constant(shape=[1], shape=[2]);", "each argument once"),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_that_is_none_is_refused(tmp_path: Path, what: str) -> None:
    text, message = TEXTS[what]
    (tmp_path / "graph.nnef").write_text(text, "utf-8")
    with pytest.raises(gd.LoadError) as caught:
        gd.load_nnef(tmp_path)
    assert message in str(caught.value)


BODIES: dict[str, str] = {
    "y = relu(z);": "given z, wanted an identifier that is assigned before",
    "y = relu(x); y = relu(x);": "relu (y): given a name that is taken",
    "z = relu(x);": "output 'y': given nothing",
    "y = relu(x, x);": "TypeError",
    "y = add(x, v); v = relu(x);": "given v, wanted an identifier",
    "v = constant(shape=[5], value=[1.0,2,3,4,5]); y = add(x, v);": "shapes that broadcast to one",
    "y = reshape(x, shape=[7]);": "6 elements",
    "y = transpose(x, axes=[0, 0]);": "each of the 2 axes once",
    "y = softmax(x, axes=[4]);": "some of 0 … 1",
    "y = constant(shape=[2], value=[1.0, 2.0, 3.0]);": "given 3 numbers, wanted 2, or one",
    "y = external(shape=[2]);": "one of the graph's inputs: x",
    "y = variable(shape=[2], label='../w');": "a file inside the folder",
    "y = variable(shape=[2], label='none');": "the file of a variable",
    "y = variable(shape=[3, 2], label='w');": "rank 2, [2, 3], wanted [3, 2]",
    "y = linear(x, x, x);": "bias",
    "y = constant(shape=[1, 1, 1, 1, 1, 1, 1], value=[0.0]);": "rank 1 to 6",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_model_that_makes_no_sense_is_refused(tmp_path: Path, body: str) -> None:
    written(tmp_path, "x = external(shape=[2, 3]); " + body, w=A)
    with pytest.raises(gd.LoadError) as caught:
        gd.load_nnef(tmp_path)
    assert BODIES[body] in str(caught.value)


def test_a_tensor_file_that_lies_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "w = variable(shape=[2, 3], label='w'); y = relu(w);", inputs="")
    bad = [
        b"", tensor(A)[:100], tensor(A)[:-1], tensor(A, tail=b"x"), tensor(A, magic=b"\x4e\xee\x01\x00"),
        tensor(A, magic=b"\x4e\xef\x02\x00"), tensor(A, length=2**31), tensor(A, shape=(3, 2)),
        tensor(A, shape=(2**16, 2**16)), tensor(A.astype(np.int32), kind=1), tensor(A[None]),
    ]  # fmt: skip
    for data in bad:
        (tmp_path / "w.dat").write_bytes(data)
        with pytest.raises(gd.LoadError, match=r"w\.dat"):
            gd.load_nnef(tmp_path)
    for path in (tmp_path / "none", tmp_path / "w.dat"):
        with pytest.raises(gd.LoadError, match="a folder with an NNEF model"):
            gd.load_nnef(path)


def test_damaged_files_give_a_load_error_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path, BODY, **HELD)
    file, rng, refused = tmp_path / "graph.nnef", np.random.default_rng(2), 0
    good = file.read_bytes()
    weight = (tmp_path / "fc.dat").read_bytes()
    for trial in range(300):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, len(data))] = rng.choice(list(b"[](){};,=-<>'\"0123456789abcxyz_#\n\xff"))
        if trial % 5 == 4:
            data = data[: rng.integers(0, len(data))]
        file.write_bytes(data)
        if trial % 3 == 0:
            damaged = bytearray(weight)
            damaged[rng.integers(0, 128)] = rng.integers(0, 256)
            (tmp_path / "fc.dat").write_bytes(damaged)
        try:
            gd.load_nnef(tmp_path)
        except gd.LoadError:
            refused += 1
    assert refused > 150
