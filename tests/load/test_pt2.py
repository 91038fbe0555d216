"""Programs that PyTorch exported: outputs, gradients, modules and lines, against what PyTorch makes of them."""

from __future__ import annotations

import json
import linecache
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_standin
from places import REPO
from pt2_files import FIXTURES, Name, Raw, agree, archive, given, node

import gdlab as gd
from gdlab.load.pt2.build import TABLE, markdown
from gdlab.study.model_files import is_module, open_model
from gdlab.view.document.groups import groups_of

NETWORKS = ("mlp", "cnn", "block", "embedding", "mlp_old", "cnn_old")
TIED = {"head.weight": "words.weight"}
RNG = np.random.default_rng(2)


def expected(name: str, kind: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / f"{name}.npz") as held:
        return {key.partition(".")[2]: held[key] for key in held.files if key.startswith(f"{kind}.")}


# networks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_what_pytorch_gives(name: str) -> None:
    loaded = gd.load_pt2(FIXTURES / f"{name}.pt2")
    results = given(loaded, expected(name, "in"))
    for got, want in zip(results, expected(name, "out").values(), strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


def check_gradients(name: str, device: str) -> None:
    loaded = gd.load_pt2(FIXTURES / f"{name}.pt2", train=True)
    gradients = expected(name, "grad")
    assert set(loaded.weights) == set(gradients)
    with gd.build_session(loaded.graph, device=device) as session:
        loaded.set_parameters(session)
        for key, value in expected(name, "in").items():
            (session.set_input_u32 if value.dtype.kind == "i" else session.set_input)(key, value)
        session.step()
        for i, want in enumerate(expected(name, "out").values()):
            np.testing.assert_allclose(session.read_output_by_index(i).reshape(want.shape), want, rtol=1e-3, atol=1e-5)
        for key, want in gradients.items():
            got = session.read_param_grad(key).reshape(want.shape)
            np.testing.assert_allclose(got, want, atol=1e-4 * max(1e-3, np.abs(want).max()), rtol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    check_gradients(name, "cpu")


@pytest.mark.parametrize("name", ["cnn", "block"])
def test_gradients_are_those_of_autograd_on_a_gpu(name: str) -> None:
    check_gradients(name, "wgpu")


def test_parameters_keep_their_names_and_the_picture_opens_by_modules() -> None:
    loaded = gd.load_pt2(FIXTURES / "block.pt2")
    assert "layers.1.attention.qkv.weight" in loaded.weights and len(loaded.weights) == 24
    assert repr(loaded).endswith("24 parameters>")
    paths = {row.path for row in groups_of(loaded.graph).rows}
    assert {"layers.0", "layers.1", "layers.0.attention"} <= paths
    cnn = gd.load_pt2(FIXTURES / "cnn.pt2").graph
    assert {n.name for n in cnn if n.op == "parameter"} >= {"stem.0.weight", "deep.1.bias"}  # statistics are constants
    assert not any("running" in n.name for n in cnn)


@pytest.mark.parametrize("name", ["mlp", "mlp_old"])
def test_a_node_has_the_users_line(name: str) -> None:
    study = open_model(FIXTURES / f"{name}.pt2")
    graph = study.graph
    relu = next(n for n in graph if n.op == "relu")
    (place,) = graph.source(relu.id)
    text = linecache.getline(place.file, place.line)
    assert "self.head(self.body(x))" in text and place.file.endswith("/write_pt2.py")
    row = study.doc.data["sources"]
    assert any("self.head(self.body(x))" in source["text"] for source in row)
    study.close()


def test_no_file_that_an_archive_names_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1\n" * 9)
    call = node("aten.relu.default", {"self": Name("x")}, ["y"], 3)
    call["metadata"]["stack_trace"] = f'File "{secret}", line 3, in forward\n    quoted here'
    x = np.ones((2, 3), np.float32)
    (tmp_path / "m.pt2").write_bytes(archive([call], {"x": x}, ["y"], {"y": x}))
    text = json.dumps(open_model(tmp_path / "m.pt2").doc.data["sources"])
    assert "quoted here" in text and "password" not in text


# operators ------------------------------------------------------------------------------------------------------------
X = RNG.normal(0, 1, (2, 3, 4)).astype(np.float32)
Y = RNG.uniform(0.5, 2, (2, 3, 4)).astype(np.float32)
AT = np.array([[0, 2], [1, 1]])
IMAGE = RNG.normal(0, 1, (1, 4, 6, 6)).astype(np.float32)
M = X > 0
x, y, i, m, image = (Name(n) for n in ("x", "y", "i", "m", "image"))
FED = {"x": X, "y": Y, "i": AT, "m": M, "image": IMAGE}


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def means(a: np.ndarray, size: int) -> np.ndarray:
    """Adaptive average pooling along the last axis."""
    n = a.shape[-1]
    return np.stack([a[..., k * n // size : -(-(k + 1) * n // size)].mean(-1) for k in range(size)], -1)


SCORES = np.where([[1, 1, 0], [0, 1, 0], [1, 1, 1]], X @ Y.swapaxes(1, 2) / 2, -1e30)
SEEN = softmax(SCORES) @ Y * np.array([1, 1, 0])[:, None]  # the last query sees nothing

Case = tuple[str, Mapping[str, Any], list[Any]]
f32 = np.float32
CASES: list[Case] = [
    ("add.Tensor", {"self": x, "other": y, "alpha": 2}, [X + 2 * Y]),
    ("sub.Tensor", {"self": x, "other": 1.5}, [X - f32(1.5)]),
    ("rsub.Scalar", {"self": x, "other": 3, "alpha": 2}, [3 - 2 * X]),
    ("sub.Tensor", {"self": 1.0, "other": x}, [1 - X]), ("div.Tensor", {"self": 1.0, "other": y}, [1 / Y]),
    ("div.Tensor", {"self": x, "other": y}, [X / Y]),
    ("div.Tensor_mode", {"self": x, "other": y, "rounding_mode": "floor"}, [np.floor(X / Y)]),
    ("div.Tensor_mode", {"self": x, "other": y, "rounding_mode": "trunc"}, [np.trunc(X / Y)]),
    ("div.Tensor_mode", {"self": x, "other": 0.3, "rounding_mode": "floor"}, [np.floor_divide(X, f32(0.3))]),
    ("remainder.Scalar", {"self": x, "other": 0.7}, [np.mod(X, f32(0.7))]),
    ("fmod.Scalar", {"self": x, "other": 0.7}, [np.fmod(X, f32(0.7))]),
    ("pow.Tensor_Scalar", {"self": x, "exponent": 2}, [X**2]),
    ("pow.Scalar", {"self": 2, "exponent": x}, [f32(2) ** X]),
    ("add.Tensor", {"self": i, "other": 1}, [AT + 1]),
    ("div.Tensor", {"self": i, "other": 2}, [(AT / 2).astype(f32)]),
    ("floor_divide.default", {"self": i, "other": 2}, [AT // 2]),
    ("gt.Scalar", {"self": x, "other": 0.0}, [X > 0]), ("ne.Scalar", {"self": i, "other": 1}, [AT != 1]),
    ("le.Tensor", {"self": x, "other": y}, [X <= Y]),
    ("logical_and.default", {"self": m, "other": x}, [M & (X != 0)]), ("bitwise_not.default", {"self": m}, [~M]),
    ("where.self", {"condition": m, "self": x, "other": y}, [np.where(M, X, Y)]),
    ("where.ScalarOther", {"condition": m, "self": x, "other": -1.0}, [np.where(M, X, f32(-1))]),
    ("masked_fill.Scalar", {"self": x, "mask": m, "value": 7.0}, [np.where(M, f32(7), X)]),
    ("clamp.default", {"self": x, "min": -0.5, "max": 0.5}, [np.clip(X, -0.5, 0.5)]),
    ("clamp.default", {"self": x, "min": -0.5}, [np.maximum(X, -0.5)]),
    ("clamp_max.default", {"self": x, "max": 0.25}, [np.minimum(X, 0.25)]),
    ("hardtanh.default", {"self": x}, [np.clip(X, -1, 1)]),
    ("addcmul.default", {"self": x, "tensor1": x, "tensor2": y, "value": 0.5}, [X + f32(0.5) * X * Y]),
    ("lerp.Scalar", {"self": x, "end": y, "weight": 0.25}, [X + f32(0.25) * (Y - X)]),
    ("rsqrt.default", {"self": y}, [1 / np.sqrt(Y)]), ("log1p.default", {"self": y}, [np.log1p(Y)]),
    ("log2.default", {"self": y}, [np.log2(Y)]), ("exp2.default", {"self": x}, [np.exp2(X)]),
    ("expm1.default", {"self": x}, [np.expm1(X)]), ("square.default", {"self": x}, [X * X]),
    ("log_sigmoid.default", {"self": x}, [-np.log1p(np.exp(-X))]), ("trunc.default", {"self": x}, [np.trunc(X)]),
    ("round.default", {"self": x}, [np.round(X)]), ("sign.default", {"self": x}, [np.sign(X)]),
    ("leaky_relu.default", {"self": x, "negative_slope": 0.1}, [np.where(X > 0, X, f32(0.1) * X)]),
    ("elu.default", {"self": x, "alpha": 0.5}, [np.where(X > 0, X, f32(0.5) * np.expm1(X))]),
    ("hardsigmoid.default", {"self": x}, [np.clip(X / 6 + f32(0.5), 0, 1)]),
    ("softplus.default", {"self": x, "beta": 2.0}, [np.log1p(np.exp(2 * X)) / 2]),
    ("threshold.default", {"self": x, "threshold": 0.1, "value": 20.0}, [np.where(X > 0.1, X, f32(20))]),
    ("glu.default", {"self": x, "dim": -1}, [X[..., :2] / (1 + np.exp(-X[..., 2:]))]),
    ("sum.dim_IntList", {"self": x, "dim": [1], "keepdim": True}, [X.sum(1, keepdims=True)]),
    ("sum.default", {"self": m}, [np.asarray(M.sum())]), ("mean.default", {"self": x}, [np.asarray(X.mean())]),
    ("amax.default", {"self": x, "dim": [0, 2]}, [X.max((0, 2))]),
    ("max.dim", {"self": x, "dim": -1}, [X.max(-1), X.argmax(-1)]), ("min.default", {"self": x}, [np.asarray(X.min())]),
    ("argmin.default", {"self": x}, [np.asarray(X.argmin())]), ("any.dim", {"self": m, "dim": 1}, [M.any(1)]),
    ("all.default", {"self": m}, [np.asarray(M.all())]), ("prod.dim_int", {"self": y, "dim": 1}, [Y.prod(1)]),
    ("var.correction", {"self": x, "dim": [1, 2]}, [X.var((1, 2), ddof=1)]),
    ("var.correction", {"self": x, "dim": [2], "correction": 0}, [X.var(2)]),
    ("std.dim", {"self": x, "dim": [2], "unbiased": False}, [X.std(2)]),
    ("var_mean.correction", {"self": x, "dim": [2], "keepdim": True},
     [X.var(2, ddof=1, keepdims=True), X.mean(2, keepdims=True)]),
    ("linalg_vector_norm.default", {"self": x, "ord": np.inf, "dim": [1]}, [np.abs(X).max(1)]),
    ("norm.ScalarOpt_dim", {"self": x, "p": 1, "dim": [1], "keepdim": True}, [np.abs(X).sum(1, keepdims=True)]),
    ("logsumexp.default", {"self": x, "dim": [-1]}, [np.log(np.exp(X).sum(-1))]),
    ("softmax.int", {"self": x, "dim": 1}, [softmax(X.swapaxes(1, 2)).swapaxes(1, 2)]),
    ("_log_softmax.default", {"self": x, "dim": -1, "half_to_float": False}, [np.log(softmax(X))]),
    ("cumsum.default", {"self": x, "dim": 1}, [X.cumsum(1)]),
    ("topk.default", {"self": x, "k": 2, "largest": False},
     [np.sort(X, -1)[..., :2], np.argsort(X, -1)[..., :2]]),
    ("mse_loss.default", {"self": x, "target": y, "reduction": 2}, [np.asarray(((X - Y) ** 2).sum())]),
    ("l1_loss.default", {"self": x, "target": y}, [np.asarray(np.abs(X - Y).mean())]),
    ("binary_cross_entropy_with_logits.default", {"self": x, "target": y, "reduction": 0},
     [np.log1p(np.exp(X)) - X * Y]),
    ("view.default", {"self": x, "size": [2, -1]}, [X.reshape(2, 12)]),
    ("flatten.using_ints", {"self": x, "start_dim": 1}, [X.reshape(2, 12)]),
    ("unflatten.int", {"self": x, "dim": 2, "sizes": [2, -1]}, [X.reshape(2, 3, 2, 2)]),
    ("unsqueeze.default", {"self": x, "dim": -1}, [X[..., None]]),
    ("transpose.int", {"self": x, "dim0": 0, "dim1": -1}, [X.swapaxes(0, 2)]),
    ("mT.default", {"self": x}, [X.swapaxes(1, 2)]),
    ("movedim.int", {"self": x, "source": 0, "destination": 2}, [np.moveaxis(X, 0, 2)]),
    ("expand.default", {"self": x, "size": [2, 2, -1, 4]}, [np.broadcast_to(X, (2, 2, 3, 4)).copy()]),
    ("slice.Tensor", {"self": x, "dim": 2, "start": -3, "end": 9223372036854775807, "step": 2}, [X[..., -3::2]]),
    ("select.int", {"self": x, "dim": 1, "index": -1}, [X[:, -1]]),
    ("narrow.default", {"self": x, "dim": 1, "start": 1, "length": 2}, [X[:, 1:]]),
    ("cat.default", {"tensors": [x, y], "dim": -1}, [np.concatenate([X, Y], -1)]),
    ("stack.default", {"tensors": [x, y], "dim": 1}, [np.stack([X, Y], 1)]),
    ("split.Tensor", {"self": x, "split_size": 3, "dim": 2}, [X[..., :3], X[..., 3:]]),
    ("split_with_sizes.default", {"self": x, "split_sizes": [1, 3], "dim": 2}, [X[..., :1], X[..., 1:]]),
    ("chunk.default", {"self": x, "chunks": 2, "dim": 1}, [X[:, :2], X[:, 2:]]),
    ("unbind.int", {"self": x}, [X[0], X[1]]),
    ("repeat.default", {"self": x, "repeats": [2, 1, 1, 2]}, [np.tile(X, (2, 1, 1, 2))]),
    ("repeat_interleave.self_int", {"self": x, "repeats": 3, "dim": 1}, [X.repeat(3, 1)]),
    ("flip.default", {"self": x, "dims": [0, 2]}, [X[::-1, :, ::-1]]),
    ("roll.default", {"self": x, "shifts": [1, -3], "dims": [1, 2]}, [np.roll(X, (1, -3), (1, 2))]),
    ("roll.default", {"self": x, "shifts": [5]}, [np.roll(X, 5)]),
    ("unfold.default", {"self": x, "dimension": 2, "size": 2, "step": 2}, [X.reshape(2, 3, 2, 2)]),
    ("pixel_shuffle.default", {"self": image, "upscale_factor": 2},
     [IMAGE.reshape(1, 1, 2, 2, 6, 6).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 12, 12)]),
    ("pixel_unshuffle.default", {"self": image, "downscale_factor": 2},
     [IMAGE.reshape(1, 4, 3, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 16, 3, 3)]),
    ("channel_shuffle.default", {"self": image, "groups": 2}, [IMAGE[:, [0, 2, 1, 3]]]),
    ("constant_pad_nd.default", {"self": x, "pad": [1, 0, 0, 2], "value": 5.0},
     [np.pad(X, ((0, 0), (0, 2), (1, 0)), constant_values=5)]),
    ("reflection_pad2d.default", {"self": image, "padding": [1, 2, 0, 1]},
     [np.pad(IMAGE, ((0, 0), (0, 0), (0, 1), (1, 2)), mode="reflect")]),
    ("pad.default", {"self": x, "pad": [1, 1], "mode": "replicate"},
     [np.pad(X, ((0, 0), (0, 0), (1, 1)), mode="edge")]),
    ("tril.default", {"self": x, "diagonal": 1}, [np.tril(X, 1)]), ("triu.default", {"self": x}, [np.triu(X)]),
    ("gather.default", {"self": i, "dim": 1, "index": Name("z")}, [np.take_along_axis(AT, np.zeros((2, 1), int), 1)]),
    ("index_select.default", {"self": x, "dim": 1, "index": Name("z1")}, [X[:, [2, 0]]]),
    ("embedding.default", {"weight": Name("w"), "indices": i}, [Y[0][AT]]),
    ("one_hot.default", {"self": i, "num_classes": 4}, [np.eye(4, dtype=np.int64)[AT]]),
    ("index.Tensor", {"self": x, "indices": Raw(as_optional_tensors=[{"as_none": True}, {"as_tensor": {"name": "i"}}])},
     [X[:, AT]]),
    ("slice_scatter.default", {"self": x, "src": Name("w2"), "dim": 2, "start": 1, "end": 3},
     [np.concatenate([X[..., :1], Y[..., :2], X[..., 3:]], -1)]),
    ("select_scatter.default", {"self": x, "src": Name("w"), "dim": 0, "index": -1}, [np.stack([X[0], Y[0]])]),
    ("as_strided.default", {"self": x, "size": [2, 1, 3, 4], "stride": [12, 7, 4, 1]}, [X[:, None]]),
    ("einsum.default", {"equation": "bij,bkj->bik", "tensors": [x, y]}, [np.einsum("bij,bkj->bik", X, Y)]),
    ("einsum.default", {"equation": "bij,bij->ji", "tensors": [x, y]}, [np.einsum("bij,bij->ji", X, Y)]),
    ("einsum.default", {"equation": "abc->ca", "tensors": [x]}, [np.einsum("abc->ca", X)]),
    ("matmul.default", {"self": x, "other": Name("v")}, [X @ X[0, 0]]),
    ("bmm.default", {"self": x, "mat2": Name("t")}, [X @ Y.swapaxes(1, 2)]),
    ("addmm.default", {"self": Name("b"), "mat1": Name("w"), "mat2": Name("wt"), "beta": 2, "alpha": 0.5},
     [2 * X[0, 0, :3] + f32(0.5) * Y[0] @ Y[0].T]),
    ("baddbmm.default", {"self": Name("b"), "batch1": x, "batch2": Name("t"), "alpha": 2},
     [X[0, 0, :3] + 2 * X @ Y.swapaxes(1, 2)]),
    ("adaptive_avg_pool2d.default", {"self": image, "output_size": [4, 2]},
     [means(means(IMAGE, 2).swapaxes(2, 3), 4).swapaxes(2, 3)]),
    ("avg_pool2d.default", {"self": image, "kernel_size": [2, 3]}, [IMAGE.reshape(1, 4, 3, 2, 2, 3).mean((3, 5))]),
    ("max_pool2d_with_indices.default", {"self": image, "kernel_size": [3, 3]},
     [IMAGE.reshape(1, 4, 2, 3, 2, 3).max((3, 5))]),
    ("upsample_nearest2d.vec", {"input": image, "output_size": None, "scale_factors": [2.0, 2.0]},
     [IMAGE.repeat(2, 2).repeat(2, 3)]),
    ("rms_norm.default", {"input": x, "normalized_shape": [4], "eps": 1e-3},
     [X / np.sqrt((X**2).mean(-1, keepdims=True) + f32(1e-3))]),

       ("scaled_dot_product_attention.default",
     {"query": x, "key": y, "value": y, "scale": 0.5, "attn_mask": Name("mask")}, [SEEN]),
    ("full.default", {"size": [2, 2], "fill_value": 1.5}, [np.full((2, 2), 1.5, f32)]),
    ("arange.start_step", {"start": 1, "end": 8, "step": 3}, [np.arange(1, 8, 3)]),
    ("linspace.default", {"start": 0.0, "end": 1.0, "steps": 5}, [np.linspace(0, 1, 5).astype(f32)]),
    ("eye.default", {"n": 3}, [np.eye(3, dtype=f32)]),
    ("new_zeros.default", {"self": x, "size": [2]}, [np.zeros(2, f32)]),
    ("ones_like.default", {"self": x}, [np.ones_like(X)]),
    ("scalar_tensor.default", {"s": 2.5}, [np.asarray(f32(2.5))]),
    ("to.dtype", {"self": i, "dtype": Raw(as_scalar_type=7), "non_blocking": False}, [AT.astype(f32)]),
]  # fmt: skip
FED |= {"z": np.zeros((2, 1), np.int64), "z1": np.array([2, 0]), "w": Y[0], "w2": Y[..., :2], "v": X[0, 0],
        "t": Y.swapaxes(1, 2).copy(), "b": X[0, 0, :3], "wt": Y[0].T.copy(),
        "mask": np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]]) != 0}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_operator_gives_what_numpy_gives(case: Case) -> None:
    target, inputs, wanted = case
    used = set(re.findall(r"'(\w+)'", repr(list(inputs.values()))))
    fed = {n: a for n, a in FED.items() if n in used}
    arrays = [np.asarray(a, f32) if a.dtype == np.float64 else np.asarray(a) for a in wanted]
    agree(target, inputs, fed, arrays)


def test_changes_in_place_reach_every_view_of_the_elements() -> None:
    """y = x.view(-1) of a computed tensor; its slice is filled, then doubled as a whole."""
    nodes = [
        node("aten.add.Tensor", {"self": Name("x"), "other": 0.5}, ["a"]),
        node("aten.view.default", {"self": Name("a"), "size": [24]}, ["flat"]),
        node("aten.slice.Tensor", {"self": Name("flat"), "start": 2, "end": 5}, ["part"]),
        node("aten.fill_.Scalar", {"self": Name("part"), "value": 9.0}, ["filled"]),
        node("aten.mul_.Tensor", {"self": Name("flat"), "other": 2.0}, ["doubled"]),
        node("aten.add.Tensor", {"self": Name("a"), "other": 0.0}, ["y"]),
        node("aten.neg.default", {"self": Name("part")}, ["z"]),
    ]
    a = X + f32(0.5)
    a.reshape(-1)[2:5] = 9
    types = {"a": X, "flat": X.reshape(24), "part": X.reshape(24)[:3], "filled": X.reshape(24)[:3],
             "doubled": X.reshape(24), "y": X, "z": X.reshape(24)[:3]}  # fmt: skip
    loaded = gd.load_pt2(archive(nodes, {"x": X}, ["y", "z"], types))
    y, z = given(loaded, {"x": X})
    np.testing.assert_allclose(y, 2 * a, rtol=1e-6)
    np.testing.assert_allclose(z, [-18, -18, -18])


# refusals -------------------------------------------------------------------------------------------------------------
def refusal(nodes: list[Any], types: Mapping[str, np.ndarray] | None = None, held: Any = None) -> gd.LoadError:
    made = {name: X for call in nodes for out in call["outputs"] for name in [out["as_tensor"]["name"]]}
    with pytest.raises(gd.LoadError) as caught:
        gd.load_pt2(archive(nodes, {"x": X}, ["y"], made | dict(types or {}), held))
    assert len(str(caught.value)) < 4000
    return caught.value


def test_operators_and_arguments_that_are_not_understood_are_listed_with_module_and_line() -> None:
    error = refusal([
        node("aten.frobnicate.default", {"self": Name("x")}, ["a"], 3),
        node("aten.relu.default", {"self": Name("a"), "speed": 3}, ["b"], 7),
        node("mine.op.default", {"self": Name("b")}, ["c"], 8),
        node("aten.sub.Tensor", {"self": Name("c"), "other": Raw(as_complex=1)}, ["y"], 9),
    ])  # fmt: skip
    assert error.details == (
        "aten.frobnicate.default (body.0; net.py:3)",
        "aten.relu.default (body.0; net.py:7): the argument speed=3, which is not understood",
        "mine.op.default (body.0; net.py:8)",
        "aten.sub.Tensor (body.0; net.py:9): the argument other, as_complex",
    )
    assert "wanted operators and arguments that load_pt2 takes" in str(error)


CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a dropout that draws": ("dropout.default", {"input": x, "p": 0.5, "train": True}, "dropout while training"),
    "attention with dropout": ("scaled_dot_product_attention.default",
                               {"query": x, "key": x, "value": x, "dropout_p": 0.1}, "dropout while training"),
    "a buffer that is changed": ("add_.Tensor", {"self": x, "other": 1},
        "a change of a parameter, a buffer or an input"),
    "an equation of three": ("einsum.default", {"equation": "a,a,a->a", "tensors": [x, x, x]}, "one or two operands"),
    "a norm of order 3": ("linalg_vector_norm.default", {"self": x, "ord": 3}, "ord=3"),
    "a divisor of a pool": ("avg_pool2d.default", {"self": x, "kernel_size": [1], "divisor_override": 3},
        "divisor_override=3"),
    "other strides": ("as_strided.default", {"self": x, "size": [2, 3, 4], "stride": [1, 2, 6]}, "other strides"),
    "a softplus that bends": ("softplus.default", {"self": x, "threshold": 1}, "threshold=1"),
    "an axis that is not there": ("softmax.int", {"self": x, "dim": 7}, "axis: given 7"),
    "a text for an axis": ("softmax.int", {"self": x, "dim": "one"}, "dim: given 'one', wanted int"),
    "no operand": ("softmax.int", {"dim": 1}, "self: given nothing, wanted Tensor"),
    "an operand from nowhere": ("relu.default", {"self": Name("later")}, "operand 'later': given nothing"),
    "another shape than its own": ("transpose.int", {"self": x, "dim0": 0, "dim1": 1},
                                   "result: given [2, 3, 4] in the file, wanted [3, 2, 4]"),
    "another type than its own": ("gt.Scalar", {"self": x, "other": 0},
        "result: given float32 in the file, wanted bool"),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_cannot_be_met_is_refused_with_its_place(what: str) -> None:
    target, inputs, text = CALLS[what]
    error = refusal([node(f"aten.{target}", inputs, ["y"], 5)])
    assert text in str(error) and "(body.0; net.py:5)" in str(error)


def test_the_page_lists_the_operators() -> None:
    page = (REPO / "docs" / "loading.md").read_text("utf-8")
    assert f"ATen operators:\n{markdown()}\n" in page, "python -c 'from gdlab.load.pt2.build import markdown; …'"
    assert len(TABLE) > 250


# live modules ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    return torch_standin.install(monkeypatch)


def test_a_live_module_is_exported_trained_here_and_written_back(torch: Any) -> None:
    net, fed = torch.nn.Module(), expected("mlp", "in")
    model = gd.load_torch(net, *fed.values(), train=True)
    assert torch.seen["training"] is False and net.training is True and torch.seen["strict"] is False
    assert "after eval()" in model.notes[0] and is_module(net) and not is_module(fed)
    with gd.build_session(model.graph, device="cpu") as session:
        model.set_parameters(session)
        for name, values in fed.items():
            session.set_input(name, values)
        session.step()
        before = session.read_loss()
        for _ in range(20):
            session.sgd_step(0.1)
            session.step()
        assert session.read_loss() < before
        model.into_module(session)
        for name in model.weights:
            np.testing.assert_array_equal(net.parameters[name].held, session.read_param(name))
    with pytest.raises(gd.ArgumentError, match=r"parameter 'head.bias': given \[5\], wanted \[3\]"):
        model.into_module({**model.weights, "head.bias": np.zeros(5)})
    model.into_module()
    np.testing.assert_array_equal(net.parameters["head.bias"].held, model.weights["head.bias"])
    torch.seen["recurrent"] = True  # what is refused as it is is read in core operators
    assert set(gd.load_torch(net, *fed.values()).weights) == set(model.weights)
    with pytest.raises(gd.ArgumentError, match="example_inputs: given none"):
        gd.load_torch(net)
    with pytest.raises(gd.ArgumentError, match="wanted a torch.nn.Module with inputs"):
        gd.load_torch(3)


def test_without_pytorch_live_modules_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gd.LoadError, match="package torch: given none, wanted pip install torch; load_pt2 needs none"):
        gd.load_torch(object())
    with pytest.raises(gd.ArgumentError, match="into_module: module: given none"):
        gd.load_pt2(FIXTURES / "mlp.pt2").into_module()
