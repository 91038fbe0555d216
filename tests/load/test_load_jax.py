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


def agree(function: Callable[..., Any], *examples: Any, compiled: bool = True, **inputs: np.ndarray) -> gd.JaxModel:
    """The model of a function; its outputs are JAX's within 1e-5. XLA, which compiles all primitives as one, leaves out
    roundings of bfloat16."""
    model = gd.load_jax(function, *examples)
    with jax.enable_x64(False):
        wanted = jax.tree_util.tree_leaves((jax.jit(function) if compiled else function)(*examples))
    values = evaluate(model.graph, fed(model, inputs))
    assert len(wanted) == len(model.graph.output_ids)
    for id, want in zip(model.graph.output_ids, wanted, strict=True):
        got = np.asarray(values[id]).reshape(want.shape)
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
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
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_primitives_compute_what_jax_computes(name: str) -> None:
    function, examples = CASES[name]
    inputs = dict(zip(function.__code__.co_varnames, examples, strict=False))
    agree(function, *examples, compiled=name != "halves", **inputs)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "load_jax: primitives: given while (test_load_jax.py:": (
        lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), (X,)),
    "sort (test_load_jax.py:": (lambda x: jnp.sort(x), (X,)),
    "cond (test_load_jax.py:": (lambda x: lax.cond(x.sum() > 0, lambda y: y, lambda y: -y, x), (X,)),
    "a branch that is chosen in the graph": (lambda x: lax.cond(x.sum() > 0, lambda y: y, lambda y: -y, x), (X,)),
    "a loop of 513 steps: at most 512": (lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=513)[0], (X,)),
    "a slice whose beginning is computed": (lambda x, i: lax.dynamic_slice(x, (i[0], 0), (1, 4)), (X, AT)),
    "indices of several axes at once": (lambda x, i: x[i, i], (X, AT)),
    "a padding below 0": (lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), (X,)),
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
        gd.load_jax(lambda x: jnp.sort(jnp.sort(x, 0) + lax.lgamma(x)), X)
    assert "sort × 2, lgamma: " in str(refused.value) or "lgamma, sort × 2" in str(refused.value)
    assert len(refused.value.details) == 3


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
