"""Functions of JAX as graphs: values and gradients are JAX's, and what is not understood is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from places import REPO

import gdlab as gd
from gdlab.autodiff import differentiate
from gdlab.load.jaxpr.jax_model import markdown
from gdlab.op.reference import evaluate

RNG = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def fed(model: gd.JaxModel, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    return {n.name: np.asarray(inputs[n.name]).reshape(n.type.shape) for n in model.graph.inputs} | dict(model.weights)


def on_cpu(model: gd.JaxModel, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of the model's plan for the processor."""
    fed_inputs = fed(model, inputs)
    with gd.build_inference_session(model.graph, device="cpu") as session:
        model.set_parameters(session)
        for node in model.graph.inputs:
            session.set_input(node.name, fed_inputs[node.name])
        session.step()
        session.wait()
        return [np.array(session.read_output_by_index(i)) for i in range(len(model.graph.output_ids))]


def agree(
    function: Callable[..., Any], *examples: Any, compiled: bool = True, planned: bool = False, **inputs: np.ndarray
) -> gd.JaxModel:  # fmt: skip
    """The model of a function; its outputs are JAX's within 1e-5, those of its plan too where that is asked for. XLA,
    which compiles all primitives as one, leaves out roundings of bfloat16."""
    with jax.enable_x64(False):
        model = gd.load_jax(function, *examples)
        wanted = jax.tree_util.tree_leaves((jax.jit(function) if compiled else function)(*examples))
    values = evaluate(model.graph, fed(model, inputs))
    assert len(wanted) == len(model.graph.output_ids)
    for made in ([values[id] for id in model.graph.output_ids], *([on_cpu(model, inputs)] if planned else ())):
        for value, want in zip(made, wanted, strict=True):
            got, numbers = np.asarray(value).reshape(want.shape), np.asarray(want)
            largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=1)
            np.testing.assert_allclose(got, numbers, rtol=1e-5, atol=1e-5 * float(largest))
    return model


def learns(loss: Callable[..., Any], parameters: Any, **inputs: np.ndarray) -> gd.JaxModel:
    """The model of a loss; its gradients are JAX's within 1e-4."""
    model = agree(loss, parameters, *inputs.values(), **inputs)
    with jax.enable_x64(False):
        wanted = jax.tree_util.tree_leaves(jax.jit(jax.grad(loss))(parameters, *inputs.values()))
    (names, *_) = model.paths
    full, _ = differentiate(model.graph)
    values = evaluate(full, fed(model, inputs))
    found = dict(zip([n.name for n in model.graph.parameters], full.output_ids[1:], strict=True))
    assert found.keys() == model.weights.keys()
    for name, want in zip(names, wanted, strict=True):
        if name in found:
            got = np.asarray(values[found[name]]).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()), err_msg=name)
    return model


# networks -------------------------------------------------------------------------------------------------------------
def layer_norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def mlp(p: Any, x: Any, y: Any) -> Any:
    h = jax.nn.gelu(x @ p["up"]["w"] + p["up"]["b"])
    return ((layer_norm(p["norm"], h) @ p["down"] - y) ** 2).mean()


def test_a_perceptron_with_a_norm_and_gelu() -> None:
    p = {"up": {"w": f(6, 8), "b": f(8)}, "norm": {"scale": f(8), "bias": f(8)}, "down": f(8, 3)}
    model = learns(mlp, p, x=f(4, 6), y=f(4, 3))
    assert sorted(model.weights) == ["down", "norm.bias", "norm.scale", "up.b", "up.w"]
    assert [n.name for n in model.graph.inputs] == ["x", "y"] and repr(model).endswith(" nodes, 5 parameters>")
    (place,) = {model.graph.source(n.id)[0] for n in model.graph if n.op == "tanh"}
    assert place.file == __file__ and place.line == mlp.__code__.co_firstlineno + 1 and place.function == "mlp"


def cnn(p: Any, image: Any, labels: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(image, p["stem"], (1, 1), "SAME", dimension_numbers=dims)
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = lax.conv_general_dilated(x, p["deep"], (2, 1), ((1, 0), (0, 1)), dimension_numbers=dims, feature_group_count=2)
    x = lax.reduce_window(jax.nn.silu(x), 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME") / 4
    logits = x.mean((1, 2)) @ p["head"][0] + p["head"][1]
    return -(jax.nn.log_softmax(logits) * labels).sum(-1).mean()


def test_a_network_of_images() -> None:
    p = {"stem": f(3, 3, 2, 4), "deep": f(3, 3, 2, 6), "head": [f(6, 5), f(5)]}
    model = learns(cnn, p, image=f(2, 9, 8, 2), labels=np.eye(5, dtype=np.float32)[[1, 3]])
    assert {"conv2d", "max_pool_2d"} <= {n.op for n in model.graph} and "head.0" in model.weights


def block(p: Any, x: Any) -> Any:
    n, heads = x.shape[0], 2
    a = layer_norm(p["norm"], x)
    q, k, v = (jnp.transpose((a @ p[w]).reshape(n, heads, -1), (1, 0, 2)) for w in ("q", "k", "v"))
    scores = jnp.einsum("hid,hjd->hij", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -1e9)
    mixed = jnp.einsum("hij,hjd->ihd", jax.nn.softmax(scores), v).reshape(x.shape)
    return x + mixed @ p["o"]


def language(p: Any, ids: Any, labels: Any) -> Any:
    x = p["table"][ids] + p["places"]
    for layer in p["layers"]:
        x = block(layer, x)
    logits = jax.nn.log_softmax(x @ p["table"].T)
    return -jnp.take_along_axis(logits, labels[:, None], axis=-1).mean()


def parameters_of_language() -> Any:
    layer = {"norm": {"scale": f(8), "bias": f(8)}, **{n: f(8, 8) for n in "qkvo"}}
    return {"table": f(11, 8), "places": f(5, 8), "layers": [layer, jax.tree_util.tree_map(lambda a: a + 0.1, layer)]}


def test_embeddings_and_blocks_of_attention() -> None:
    ids, labels = np.array([1, 4, 0, 10, 2], np.int32), np.array([4, 0, 10, 2, 3], np.int32)
    model = learns(language, parameters_of_language(), ids=ids, labels=labels)
    assert "layers.1.norm.scale" in model.weights and "where" not in {n.op for n in model.graph if n.id < 6}
    assert [str(n.type) for n in model.graph.inputs] == ["u32[5]", "u32[5]"]


def test_it_trains_here_and_goes_back_to_jax() -> None:
    p = {"up": {"w": f(6, 8), "b": f(8)}, "norm": {"scale": f(8), "bias": f(8)}, "down": jnp.asarray(f(8, 3))}
    x, y = f(4, 6), f(4, 3)
    model = gd.load_jax(mlp, p, x, y)
    with gd.build_session(model.graph, device="cpu") as session:
        model.set_parameters(session)
        session.set_learning_rate(0.1)
        session.set_input("x", x)
        session.set_input("y", y)
        session.step()
        first = session.read_loss()
        trained, same, _ = model.arguments(session)
        session.step()
        second = session.read_loss()
    with jax.enable_x64(False):
        assert first == pytest.approx(float(jax.jit(mlp)(p, x, y)), rel=1e-5)
        assert second == pytest.approx(float(jax.jit(mlp)(trained, x, y)), rel=1e-5) and second < first
    assert jax.tree_util.tree_structure(trained) == jax.tree_util.tree_structure(p) and same is x
    with pytest.raises(gd.ArgumentError, match="parameter: given 'other', wanted one of the model's"):
        model.arguments({"other": x})


# primitives -----------------------------------------------------------------------------------------------------------
X, POSITIVE = f(3, 4), np.abs(f(3, 4)) + 0.1
ODD = np.float32([[0.3, np.nan, -0.2, np.inf], [0, -np.inf, 0.5, 0.3], [1, 1, -0.5, np.nan]])
AT = np.array([2, 0, 1], np.int32)
MASK = np.array([True, False, True])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "powers": (lambda x: (x**3, x**2, x**-2, x**1.5, 2.0**x, jnp.exp2(x)), (POSITIVE,)),
    "logarithms": (lambda x: (jnp.log(x), jnp.log1p(x), jnp.expm1(x), lax.rsqrt(x), jnp.sqrt(x)), (POSITIVE,)),
    "functions": (lambda x: (jnp.sin(x), jnp.arctan(x), jnp.tanh(x), lax.erf(x), lax.erfc(x), lax.logistic(x)), (X,)),
    "rounding": (lambda x: (jnp.floor(x * 9), jnp.ceil(x * 9), jnp.round(x * 9), jnp.sign(x), jnp.abs(x)), (X,)),
    "comparisons": (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), (X, X.T.reshape(3, 4))),
    "masks": (lambda x, y: ((x < y) & ~(x > 0.1) | (x == 0), (x < y) ^ (x < 0)), (X, X.T.reshape(3, 4))),
    "remainders": (lambda x: (lax.rem(x * 9, jnp.float32(2)), jnp.clip(x, -0.1, 0.2), jnp.isfinite(x)), (X,)),
    "folds": (lambda x: (x.sum(), x.sum(0), x.max(1), x.min(), x.prod(1), x.mean()), (X,)),
    "folds of masks": (lambda x: ((x > 0).any(0), (x > 0).all()), (X,)),
    "places": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)), (X,)),
    "largest": (lambda x: lax.top_k(x, 2)[0], (X,)),
    "slices": (lambda x: (x[1], x[:, 1:3], x[::2, ::-1], x[-1, 2], lax.dynamic_slice(x, (1, 1), (2, 2))), (X,)),
    "parts": (lambda x: (*jnp.split(x, 2, 1), jnp.concatenate([x, x[:1]]), jnp.stack([x, x], 1)), (X,)),
    "repeats": (lambda x: (jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 1), jnp.roll(x, 1, 0), *jnp.unstack(x, axis=1)), (X,)),
    "layers": (lambda x: (jax.nn.standardize(x), jax.nn.logsumexp(x), jax.nn.glu(x), jax.nn.elu(x), jnp.triu(x)), (X,)),
    "borders": (lambda x: jnp.pad(x, ((1, 0), (0, 2)), constant_values=2.0), (X,)),
    "shapes": (lambda x: (x.reshape(2, 6), x.T, x[:, None], x[None].squeeze(0), jnp.broadcast_to(x, (2, 3, 4))), (X,)),
    "indices": (lambda x, i: (x[i], x[:, i], jnp.take(x, i, axis=1), x[i[:, None]], jax.nn.one_hot(i, 4)), (X, AT)),
    "choices": (lambda x, m: (jnp.where(m[:, None], x, 0.0), jnp.where(m, 1.0, 2.0)), (X, MASK)),
    "products": (lambda x, y: (jnp.dot(x, y), jnp.einsum("ij,kj->ik", x, x), jnp.vdot(x, x)), (X, f(4, 2))),
    "products of three": (lambda x, y: jnp.einsum("ij,jk,il->kl", x, y, x), (X, f(4, 2))),
    "batches": (lambda x, y: (x @ y, jnp.einsum("bij,bkj->bik", x, x), jax.vmap(jnp.dot)(x, y)),
                (f(2, 3, 4), f(2, 4, 5))),
    "integers": (lambda i: (i + 3, jnp.maximum(i, 1), i * 2 - 1, i == 2, i.astype(float)), (AT,)),
    "calls": (lambda x: jax.checkpoint(jax.jit(lambda y: jax.nn.softplus(y) + jax.nn.relu(y)))(x), (X,)),
    "loops": (lambda x: lax.scan(lambda c, a: (c * 0.5 + a, c.sum()), x[0], x), (X,)),
    "loops back": (lambda x: lax.scan(lambda c, a: (c * 0.5 + a, (a, c)), x[0], x, reverse=True), (X,)),
    "vectors": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), (X,)),
    "statistics": (lambda x: (jnp.var(x, 0), jnp.std(x), jnp.linalg.norm(x)), (X,)),
    "halves": (lambda x: (x.astype(jnp.bfloat16) + 1).astype(jnp.float32), (X,)),
    "a scalar": (lambda x, s: x * s + 1, (X, np.float32(2.5))),
    "sorting": (lambda x: (jnp.sort(x), jnp.sort(x, 0), jnp.sort(x, descending=True), jnp.median(x)), (X,)),
    "order": (lambda x: (jnp.argsort(x), jnp.argsort(x.round()), jnp.argsort(-x.round(), 0), jnp.sort(x)), (ODD,)),
    "keys": (lambda x, y: lax.sort((jnp.round(x), y, x), num_keys=2), (X, X[:, ::-1].copy())),
    "quantiles": (lambda x: jnp.quantile(x, 0.3, axis=1), (X,)),
    "running": (lambda x: (jnp.cumprod(x, 1), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True), lax.cumlogsumexp(x, 1),
                           lax.associative_scan(jnp.add, x)), (X,)),
    "running of the ends": (lambda x: lax.cumlogsumexp(x, 0), (np.float32([-np.inf, -np.inf, 0, 0, np.inf]),)),
    "roots": (lambda x: (jnp.cbrt(x), jnp.cbrt(x * 0), jnp.hypot(x, 2.0), jnp.logaddexp(x, 0.1)), (X,)),
    "inverse of erf": (lambda x: lax.erf_inv(x), (np.float32([-1, -0.9999, -0.7, 0, 1e-6, 0.99, 1]),)),
    "angles": (lambda y, x: (jnp.arctan2(y, x), jnp.arctan2(abs(y) * 0, x), jnp.arctan2(y, x * 0)),
               (X, X.T.reshape(3, 4))),
    "precision": (lambda x: (lax.reduce_precision(x, 8, 7), lax.reduce_precision(x, 5, 10),
                             lax.reduce_precision(x, 8, 23)), (X,)),
    "halves up": (lambda x: (lax.round(x * 2), x // 0.25, lax.round(x)), (np.float32([-2.5, -0.5, 0.25, 0.5, 1.5]),)),
    "halves below": (lambda x: lax.round(x), (np.float32([0.49999997, -0.49999997]),)),
    "order with NaN": (lambda x: (jnp.searchsorted(jnp.float32([-0.5, 0, 0.5]), x),
                                  jnp.digitize(x, jnp.float32([-0.5, 0, 0.5]))), (ODD,)),
    "interpolation": (lambda x: jnp.interp(x, jnp.float32([-1, 0, 1]), jnp.float32([0, 2, 1])), (X,)),
    "integers in parts": (lambda i: (i << 1, i >> 1, jnp.minimum(i, 9) ** 3, i // 2, i % 2), (AT,)),
    "cases": (lambda x, i: (lax.select_n(jnp.stack([i] * 4, 1), x, 2 * x, 3 * x), jnp.piecewise(x, [x < 0], [jnp.sin]),
                            jnp.select([x > 0.5, x > 0], [x, 2 * x], 0.0)), (X, AT)),
    "gaps": (lambda x: (lax.pad(x, 1.5, ((-1, 2, 1), (1, -2, 0))), lax.pad(x, 0.0, ((0, 0, 0), (2, 1, 2))),
                        jnp.pad(x, 1, mode="wrap"), jnp.pad(x, ((1, 2), (0, 1)), mode="edge")), (X,)),
    "deconvolution": (
        lambda x, w: (lax.conv_transpose(x, w, (2, 2), "SAME"), lax.conv_transpose(x, w, (1, 3), "VALID"),
                      jax.grad(lambda y: lax.conv(y, w.T, (2, 2), "SAME").max())(x.transpose(0, 3, 1, 2))),
        (f(1, 4, 4, 3), f(3, 3, 3, 2))),
    "diagonals": (lambda x: (jnp.trace(x), jnp.diagonal(x, 1), jnp.diag(x), jnp.einsum("ii->i", x), jnp.cov(x)),
                  (f(4, 4),)),
    "puts": (lambda x: (x.at[1].set(3.0), x.at[:, 1:3].set(0.0), x.at[-1].set(x[0]), x.at[1, 2].set(5.0),
                        x.at[0].multiply(2.0), x.at[2].max(0.1), x.at[:, 1].min(x[:, 0])), (X,)),
    "puts of many": (lambda x: (x.at[jnp.array([0, 0, 2])].add(x), x.at[jnp.array([0, 2])].set(x[:2] * 2),
                                x.at[:, jnp.array([1, 3])].set(0.0), x.at[np.array([True, False, True])].set(0.0),
                                x.at[jnp.arange(3), jnp.array([0, 2, 1])].add(9.0), x.at[::2, 1::2].set(1.0)), (X,)),
    "puts that are computed": (lambda x, i: (x.at[i].set(2 * x), x.at[i[0]].set(7.0), x.at[i, i].add(x[0, :3]),
                                             x.at[jnp.arange(3), i].add(1.0), x.at[:, i].set(x[:, :3])), (X, AT)),
    "slices that are computed": (lambda x, i: (x[i[0]], lax.dynamic_slice(x, (i[0], i[1]), (2, 3)),
                                               lax.dynamic_index_in_dim(x, i[2], 1), jnp.roll(x, i[0], 0)), (X, AT)),
    "slices put": (lambda x, i: (lax.dynamic_update_slice(x, x[:2, :2] * 9, (5, 1)),
                                 lax.dynamic_update_slice(x, x[:1] + 1, (i[0], 0)),
                                 lax.dynamic_update_slice(x, x[:2, :3] + 1, (i[0], i[2]))), (X, AT)),
    "indices of two axes": (lambda x, i: (x[i, i], x[jnp.arange(3), i], x[np.arange(3), np.array([0, 2, 1])]), (X, AT)),
    "indices outside": (lambda x: (x.at[jnp.array([0, 5])].get(mode="fill", fill_value=2.5), x[jnp.array([1, -9])],
                                   x.at[jnp.array([1, 7])].set(0.0), x.at[jnp.array([8, 9])].add(1.0),
                                   jnp.take(x, jnp.array([0, 5]), axis=0), x.at[7].get(mode="clip")), (X,)),
    "indices outside, computed": (
        lambda x, i: (x.at[i].set(1.0), x.at[i].add(x), x.at[i, i].add(1.0), x.at[i[1]].set(0.0), x.at[i, i].set(2.0),
                      jnp.take(x, i, axis=0, mode="clip"), x.at[i, i].get(mode="fill", fill_value=0.5)), (X, AT + 1)),
    "counts": (lambda i, x: (jnp.bincount(i, length=2), jax.ops.segment_sum(x, i, 2), jax.ops.segment_sum(x, i, 4)),
               (AT, X)),
    "batches of indices": (
        lambda x, i, j: (jax.vmap(lambda r, k: r[k])(x, i), jax.vmap(lambda r, k: r.at[k].set(0.0))(x, i),
                         jax.vmap(lambda t, k: t[k])(jnp.stack([x] * 3), i),
                         jax.vmap(lambda t, k: t[k])(jnp.stack([x, 2 * x]), j),
                         jax.vmap(lambda r, k: lax.dynamic_update_slice(r, r[:2], (k,)))(x, i)),
        (X, AT, np.array([[2, 0], [1, 1]], np.int32))),
    "nested calls": (
        lambda x: jax.checkpoint(jax.jit(jax.vmap(jax.checkpoint(lambda r: jnp.sort(r).at[0].set(r.max())))))(x), (X,)),
    "branches": (
        lambda x, i: (lax.cond(x.sum() > 0, lambda y: (y, y[0] > 0), lambda y: (jnp.sin(y), y[0] < 0), x),
                      lax.cond(x.sum() < 0, lambda: x.max(), lambda: x.min()), lax.cond(True, jnp.sin, jnp.cos, x),
                      lax.switch(i[0], [jnp.sin, jnp.cos, lambda y: y[::-1]], x)), (X, AT)),
    "no elements": (lambda x: jnp.concatenate([x[:0] * 2, x, jnp.sin(x[3:])]), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_primitives_compute_what_jax_computes(name: str) -> None:
    function, examples = CASES[name]
    inputs = dict(zip(function.__code__.co_varnames, examples, strict=False))
    agree(function, *examples, compiled=name != "halves", planned=True, **inputs)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "load_jax: primitives: given while (test_load_jax.py:": (
        lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), (X,)),
    "fft (test_load_jax.py:": (lambda x: jnp.abs(jnp.fft.rfft(x)), (X,)),
    "or a scan, is written out": (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), (X,)),
    "draw the numbers outside": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (X,)),
    "write `x.at[i].set(f(x[i]))`": (lambda x: x.at[1].apply(jnp.sin), (X,)),
    "a float of 4 and 3 bits": (lambda x: lax.reduce_precision(x, 4, 3), (X,)),
    "a shift by a number of bits": (lambda i: i << i, (AT,)),
    "reduction=mul with indices": (lambda x, i: x.at[i].multiply(2.0), (X, AT)),
    "groups of the batch": (lambda x: lax.conv_general_dilated(
        x, x, (1, 1), "SAME", batch_group_count=2), (f(2, 2, 3, 3),)),
    "): which is not understood": (lambda x: lax.cond(x.sum() > 0, lax.digamma, lambda y: y, x), (X,)),
    "a loop of 513 steps: at most 512": (lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=513)[0], (X,)),
    "function: given": (lambda x: x.no_such_method(), (X,)),
    "x: given str, wanted an array or a number": (lambda x: x, ("text",)),
    "argument 'x': given float32[0, 2], wanted floats": (lambda x: x, (np.zeros((0, 2), np.float32),)),
    "random_": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_understood_is_refused_by_name(message: str) -> None:
    function, examples = REFUSED[message]
    with pytest.raises(gd.GdlabError) as refused:
        gd.load_jax(function, *examples)
    assert message.replace("function:", "<lambda>:") in str(refused.value) and len(str(refused.value)) < 900


def test_all_unknown_primitives_stand_in_one_error() -> None:
    with pytest.raises(gd.LoadError) as refused:
        gd.load_jax(lambda x: lax.digamma(lax.digamma(x) + lax.lgamma(x)), X)
    assert "digamma × 2, lgamma: " in str(refused.value)
    assert len(refused.value.details) == 3


def test_gradients_pass_what_is_sorted_put_and_taken() -> None:
    def loss(p: Any, x: Any, i: Any) -> Any:
        w = p["w"]
        put = w.at[i].set(x * w[:3]).at[1].add(w[0]).at[jnp.arange(3), i].add(x[0, 0])
        runs = lax.cumlogsumexp(w, 1) + jnp.cumprod(w, 0) + lax.cummax(w, 1)
        angles = jnp.arctan2(w, x[:1]) + jnp.cbrt(w) + lax.erf_inv(w / 4)
        parts = lax.dynamic_slice(w, (i[0], 0), (1, 4)) + w[i[1]] + jnp.sort(w, 0)
        return (put * parts + runs * angles).sum()

    learns(loss, {"w": f(4, 4)}, x=f(3, 4), i=np.array([2, 0, 3], np.int32))


# arguments ------------------------------------------------------------------------------------------------------------
@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


def test_a_derivative_of_ones_own_is_refused() -> None:
    """Its body has another gradient: of a rounding that passes it on, 0."""

    @jax.custom_vjp
    def passed_on(x: Any) -> Any:
        return jnp.round(x)

    @jax.custom_jvp
    def twice(x: Any) -> Any:
        return jnp.sin(x)

    passed_on.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    twice.defjvp(lambda at, by: (twice(at[0]), 2 * by[0]))
    for own, named in ((passed_on, "custom_vjp of passed_on"), (twice, "custom_jvp of twice")):
        with pytest.raises(gd.LoadError, match=rf"{named} \(test_load_jax\.py:\d+\)"):
            gd.load_jax(lambda p, x, own=own: own(x @ p["w"]).sum(), {"w": f(3, 2)}, f(4, 3))


def test_names_and_kinds_of_arguments() -> None:
    layer = Layer(f(4, 2), f(2))
    model = gd.load_jax(lambda layer, batch: batch["x"] @ layer.weight + layer.bias, layer, {"x": X}, parameters=[0])
    assert sorted(model.weights) == ["bias", "weight"] and [n.name for n in model.graph.inputs] == ["batch.x"]
    both = gd.load_jax(lambda a, b: a["w"] * b["w"] * a["n"], {"w": X, "n": np.int32(3)}, {"w": X})
    assert sorted(both.weights) == ["a.w", "b.w"] and not both.graph.inputs
    closed = gd.load_jax(lambda x: {"y": x @ layer.weight, "z": x}, X)
    assert not closed.weights and list(closed.graph.output_names) == ["y", "z"]
    scalar = gd.load_jax(lambda p, x: p["s"] * x, {"s": np.float32(2)}, X)
    assert scalar.weights["s"].shape == (1,) and np.shape(scalar.arguments({"s": np.float32([3])})[0]["s"]) == ()
    with pytest.raises(gd.ArgumentError, match="parameters: given \\[2\\], wanted numbers of arguments: 0 … 0"):
        gd.load_jax(lambda x: x, X, parameters=[2])


def test_the_page_lists_the_primitives() -> None:
    assert f"\nPrimitives:\n{markdown()}\n" in (REPO / "docs" / "loading.md").read_text("utf-8")
