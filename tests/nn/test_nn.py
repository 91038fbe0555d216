"""Layers: names and layouts that state dicts rely on, declared initializers, training, second derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import op_checks
import pytest

import gdlab as gd
from gdlab import nn, ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, GraphError
from gdlab.graph import Graph, Value
from gdlab.op.reference import evaluate

BLOCK = nn.TransformerBlockConfig(
    hidden=12, intermediate=20, kv_dim=8, num_heads=4, num_kv_heads=2, head_dim=4, rms_eps=1e-5
)


def parameters(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {n.name: n.type.shape for n in graph.parameters}


# names and layouts ----------------------------------------------------------------------------------------------------
LAYERS: dict[str, tuple[Callable[[], Value], dict[str, tuple[int, ...]]]] = {
    "Linear": (lambda: nn.Linear("fc", 3, 5)(ops.input("x", (2, 3))), {"fc.weight": (3, 5), "fc.bias": (5,)}),
    "Linear without bias": (lambda: nn.Linear("fc", 3, 5, bias=False)(ops.input("x", (2, 3))), {"fc.weight": (3, 5)}),
    "Embedding": (lambda: nn.Embedding("wte", 7, 4)(ops.input_u32("x", (3,))), {"wte": (7, 4)}),
    "RmsNorm": (lambda: nn.RmsNorm("norm", 4, 1e-6)(ops.input("x", (3, 4))), {"norm": (4,)}),
    "LayerNorm": (
        lambda: nn.LayerNorm("ln", 4, 1e-6)(ops.input("x", (3, 4))), {"ln.weight": (4,), "ln.bias": (4,)},
    ),
    "Mlp": (
        lambda: nn.Mlp("mlp", 3, 6, 2, "gelu")(ops.input("x", (2, 3))),
        {"mlp.fc1.weight": (3, 6), "mlp.fc1.bias": (6,), "mlp.fc2.weight": (6, 2), "mlp.fc2.bias": (2,)},
    ),
    "SwiGluFfn": (
        lambda: nn.SwiGluFfn("ffn", 3, 5)(ops.input("x", (2, 3))),
        {"ffn.gate_proj.weight": (3, 5), "ffn.up_proj.weight": (3, 5), "ffn.down_proj.weight": (5, 3)},
    ),
    "Conv2d": (
        lambda: nn.Conv2d("conv", 2, 3, 3, 1, 1)(ops.input("x", (1, 2, 4, 4))),
        {"conv.weight": (3, 2, 3, 3), "conv.bias": (3,)},
    ),
    "CausalSelfAttention": (  # heads · head_dim = 16, hidden = 12
        lambda: nn.CausalSelfAttention("attn", BLOCK.attention)(ops.input("x", (5, 12))),
        {
            "attn.q_proj.weight": (12, 16), "attn.k_proj.weight": (12, 8), "attn.v_proj.weight": (12, 8),
            "attn.o_proj.weight": (16, 12),
        },
    ),
    "TransformerBlock": (
        lambda: nn.TransformerBlock("h.0", BLOCK)(ops.input("x", (5, 12))),
        {
            "h.0.input_layernorm.weight": (12,),
            "h.0.self_attn.q_proj.weight": (12, 16), "h.0.self_attn.k_proj.weight": (12, 8),
            "h.0.self_attn.v_proj.weight": (12, 8), "h.0.self_attn.o_proj.weight": (16, 12),
            "h.0.post_attention_layernorm.weight": (12,),
            "h.0.mlp.gate_proj.weight": (12, 20), "h.0.mlp.up_proj.weight": (12, 20),
            "h.0.mlp.down_proj.weight": (20, 12),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_parameters_have_the_names_and_layouts_of_checkpoints(layer: str) -> None:
    build, wanted = LAYERS[layer]
    with Graph() as g:
        out = build()
    assert parameters(g) == wanted
    assert out.name == next(iter(wanted)).split(".")[0] or out.name == "h.0"
    assert gd.parse(g.text()).fingerprint() == g.fingerprint()


def test_a_layer_needs_a_graph_or_gets_one() -> None:
    with pytest.raises(GraphError, match="graph"):
        nn.Linear("fc", 3, 5)
    g = Graph()
    layer = nn.Linear("fc", 3, 5, graph=g)
    assert parameters(g) == {"fc.weight": (3, 5), "fc.bias": (5,)}
    assert layer(ops.input("x", (2, 3), graph=g)).shape == (2, 5)
    assert repr(layer) == "<Linear 'fc'>"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.CausalSelfAttention("a", nn.AttentionConfig(12, 9, 4, 2, 4)),
         "CausalSelfAttention: kv_dim: given 9, wanted num_kv_heads · head_dim = 2 · 4 = 8"),
        (lambda: nn.CausalSelfAttention("a", nn.AttentionConfig(12, 12, 4, 3, 4)), "num_kv_heads: given 3, wanted"),
        (lambda: nn.CausalSelfAttention("a", nn.AttentionConfig(12, 6, 4, 2, 3)), "head_dim: given 3, wanted an even"),
        (lambda: nn.Mlp("m", 3, 4, 5, "sine"), "Mlp: activation: given 'sine', wanted one of relu, gelu, silu"),
        (lambda: nn.Linear("fc", 0, 5), "Linear: in_features: given 0, wanted an int ≥ 1"),
        (lambda: nn.Linear(7, 3, 5), "Linear: name: given 7, wanted a str"),  # type: ignore[arg-type]
        (lambda: nn.Mlp("m", 3, 4, 0), "Mlp: out_features: given 0, wanted an int ≥ 1"),
        (lambda: nn.Mlp("m", 3, 4, 5, ["relu"]), "Mlp: activation: given .'relu'., wanted one of"),  # type: ignore[arg-type]
        (lambda: nn.SwiGluFfn("m", 3, 0), "SwiGluFfn: intermediate: given 0, wanted an int ≥ 1"),
        (lambda: nn.CausalSelfAttention("a", 12), "config: given int 12, wanted an? AttentionConfig"),  # type: ignore[arg-type]
        (lambda: nn.TransformerBlock("b", None), "config: given NoneType None, wanted a T"),  # type: ignore[arg-type]
        (lambda: nn.TransformerBlock("b", nn.TransformerBlockConfig(6, 0, 4, 4, 2, 2)), "intermediate: given 0"),
        (lambda: nn.Linear("", 3, 5)(ops.input("x", (2, 4))), "3 and 4 differ|4 and 3 differ"),
    ],
)  # fmt: skip
def test_a_wrong_layer_says_why(make: Callable[[], object], message: str) -> None:
    with Graph() as g, pytest.raises((GraphError, gd.ShapeError), match=message):
        make()
    assert not any(n.op == "matmul" for n in g)


def test_a_layer_that_fails_leaves_nothing() -> None:
    with Graph() as g:
        ops.input("m.bias", (3,))
        with pytest.raises(GraphError, match="'m.bias' again"):
            nn.Linear("m", np.int64(4), 3)  # type: ignore[arg-type]  # its weight was there already
        assert [n.name for n in g] == ["m.bias"]
        x, attention = ops.input("x", (5, 6)), nn.CausalSelfAttention("a", nn.AttentionConfig(6, 4, 4, 2, 2, -1.0))
        before = g.fingerprint()
        with pytest.raises(GraphError, match="rope: theta: given -1.0"):
            attention(x)  # three products were there already
        assert g.fingerprint() == before


def test_an_initializer_takes_numbers_alone() -> None:
    for call in (lambda: gd.init.normal(-1.0), lambda: gd.init.constant("a"), lambda: gd.init.constant(math.inf)):  # type: ignore[arg-type]
        with pytest.raises(gd.ArgumentError, match=r"^init\.\w+: [a-z ]+: given .*, wanted a finite number"):
            call()


# what they compute ----------------------------------------------------------------------------------------------------
def test_the_bias_of_a_convolution_is_used() -> None:
    with Graph() as g:
        out = nn.Conv2d("conv", 1, 2, 1)(ops.input("x", (1, 1, 2, 2)))
        bare = nn.Conv2d("bare", 1, 2, 1, bias=False)(ops.input("y", (1, 1, 2, 2)))
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    weight = np.array([[[[2.0]]], [[[3.0]]]])
    feeds = {"x": x, "y": x, "conv.weight": weight, "bare.weight": weight, "conv.bias": [10.0, 20.0]}
    values = evaluate(g, feeds)
    bias = np.broadcast_to([[[[10.0]], [[20.0]]]], (1, 2, 2, 2))
    np.testing.assert_array_equal(values[out.id] - values[bare.id], bias)


def network(build: Callable[[Value], Value], rows: int, width: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Σ (layer(x) ⊙ c), and random feeds."""
    with Graph() as g:
        out = build(ops.input("x", (rows, width)))
        g.set_outputs([(out * ops.input("c", out.shape)).sum_all()])
    rng = np.random.default_rng(5)
    slots = {n.name: n.type.shape for n in g if n.op in ("input", "parameter")}
    return g, {name: op_checks.exact(rng.uniform(-0.7, 0.7, shape)) for name, shape in slots.items()}


NETWORKS: dict[str, Callable[[], tuple[Graph, dict[str, np.ndarray]]]] = {
    "Mlp": lambda: network(lambda x: nn.Mlp("mlp", 3, 5, 2, "silu")(x), 4, 3),
    "TransformerBlock": lambda: network(lambda x: nn.TransformerBlock("h", BLOCK)(x), 5, 12),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_hessian_vector_products_agree_with_differences(name: str) -> None:
    g, feeds = NETWORKS[name]()
    weights = [g.value(n.id) for n in g.parameters]
    op_checks.check_slope(g, weights, feeds)
    full, _ = differentiate(g)
    rng = np.random.default_rng(6)
    with full:
        terms = [(x * ops.input(f"along{i}", x.shape)).sum_all() for i, x in enumerate(full.outputs[1:])]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        full.set_outputs([total])
    feeds |= {f"along{i}": op_checks.exact(rng.uniform(-1, 1, w.shape)) for i, w in enumerate(weights)}
    op_checks.check_slope(full, [full.value(w.id) for w in weights], feeds)


def test_a_block_trains(device: str) -> None:
    """The loss of fitting a random target falls to a tenth, from where the reference says it starts."""
    with Graph() as g:
        out = nn.TransformerBlock("h", BLOCK)(ops.input("x", (5, 12)))
        g.set_outputs([ops.mse_loss(out, ops.input("y", (5, 12)))])
    rng = np.random.default_rng(1)
    losses, feeds = [], {name: rng.standard_normal((5, 12)).astype(np.float32) for name in ("x", "y")}
    with gd.build_session(g, device=device) as session:
        session.initialize(seed=3)
        for name, data in feeds.items():
            session.set_input(name, data)
        start = evaluate(g, feeds | {name: session.read_param(name) for name in session.param_names()})
        session.set_adam(2e-2, 0.9, 0.999, 1e-8)
        for _ in range(40):
            session.step()
            losses.append(session.read_loss())
    assert losses[-1] < 0.1 * losses[0]
    assert losses[0] == pytest.approx(start[g.output_ids[0]][0], rel=1e-4)


# initializers ---------------------------------------------------------------------------------------------------------
def test_a_declared_initializer_is_part_of_the_graph() -> None:
    graphs = []
    for init in (None, "zeros", gd.init.normal(0.5)):
        with Graph() as g:
            w = ops.parameter("w", (2, 3), init=init)
            g.set_outputs([w.sum_all()])
        graphs.append(g)
    assert str(graphs[0]).startswith('%0 = parameter("w") : f32[2, 3]\n')
    assert str(graphs[2]).startswith('%0 = parameter("w", init="normal(0.5)") : f32[2, 3]\n')
    assert len({g.fingerprint() for g in graphs}) == 3
    for g in graphs:
        assert gd.parse(g.text()).text() == g.text()
    with graphs[1]:
        assert ops.parameter("w", (2, 3)) == ops.parameter("w", (2, 3), init="zeros")
        with pytest.raises(GraphError, match="init: given 'ones' for 'w' again, wanted 'zeros'"):
            ops.parameter("w", (2, 3), init="ones")
        with pytest.raises(GraphError, match="init: given 3"):
            ops.parameter("v", (2, 3), init=3)  # type: ignore[arg-type]


def test_a_leaf_with_other_attributes_is_no_text() -> None:
    for line in ('input("x", init="zeros")', 'parameter("x", size=3)', 'parameter("x", "y")', "parameter(init=1)"):
        with pytest.raises(gd.LoadError):
            gd.parse(f"%0 = {line} : f32[2]\noutputs: none\n")


def test_a_session_starts_parameters_as_declared(device: str) -> None:
    shape = 40, 50
    names = ("zeros", "ones", "uniform", "kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal")
    with Graph() as g:
        ws = [ops.parameter(name, shape, init=name) for name in names]
        ws += [ops.parameter("half", shape, init=gd.init.constant(0.5)), ops.parameter("n", shape, init="normal(0.02)")]
        g.set_outputs([sum(ws[1:], ws[0]).mean_all()])
    with gd.build_session(g, device=device) as session:
        session.initialize(seed=11)
        found = {name: session.read_param(name) for name in session.param_names()}
    for name in names:
        np.testing.assert_array_equal(found[name], getattr(gd.init, name)(shape, seed=11, name=name))
    assert found["zeros"].max() == 0 and found["ones"].min() == 1 and found["half"].min() == 0.5
    bounds = {"uniform": 40**-0.5, "kaiming_uniform": (6 / 40) ** 0.5, "xavier_uniform": (6 / 90) ** 0.5}
    for name, bound in bounds.items():
        assert 0.95 * bound < np.abs(found[name]).max() <= bound
    for name, sigma in {"kaiming_normal": (2 / 40) ** 0.5, "xavier_normal": (2 / 90) ** 0.5, "n": 0.02}.items():
        assert found[name].std() == pytest.approx(sigma, rel=0.05)


def test_initial_values_are_those_of_every_machine() -> None:
    values = gd.init.kaiming_uniform((2, 3), seed=1)
    assert values.dtype == np.float32 and values.shape == (2, 3)
    np.testing.assert_array_equal(values, gd.init.kaiming_uniform((2, 3), seed=1))
    assert not np.array_equal(values, gd.init.kaiming_uniform((2, 3), seed=2))
    assert not np.array_equal(values, gd.init.kaiming_uniform((2, 3), seed=1, name="w"))
    np.testing.assert_allclose(values.ravel()[:3], KAIMING, rtol=1e-6)
    assert gd.init.normal(0.02) == "normal(0.02)" and gd.init.constant(2) == "constant(2.0)"
    for wrong in (lambda: gd.init.zeros((2,), seed=-1), lambda: gd.init.normal(float("nan"))):
        with pytest.raises(ArgumentError):
            wrong()


KAIMING = (-0.014169040136039257, 1.3066548109054565, 0.4557674527168274)  # of the stream of the empty name, seed 1
