"""Storage dtypes: what the blocks hold, how far off it is, and that every kernel decodes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plans
import pytest
from machine import needs
from matrix import also

import gdlab as gd
from gdlab.base import formats as quant
from gdlab.base.errors import AutodiffError, CompileError, DTypeError, SessionError, ShapeError
from gdlab.base.types import DType, TensorType
from gdlab.devices.choose import device as open_device
from gdlab.graph import Graph, Value
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.plan import compile
from gdlab.plan.target import Limits, Target

HARDWARE = Target("wgpu", "hardware", Limits())
LEAVES = {"f16": gd.parameter_f16, "q4": gd.parameter_q4, "q8": gd.parameter_q8}
RNG = np.random.default_rng(0)
DATA = {
    "normal": RNG.normal(size=(70, 5)),
    "wide": RNG.normal(size=(64, 3)) * 10.0 ** RNG.integers(-3, 4, (64, 3)),
    "far from 0": 1000 + RNG.normal(size=(33, 4)),
    "all equal": np.full((40, 2), -3.25),
    "zeros": np.zeros((32, 1)),
    "one": np.array([[0.7]]),
    "positive": RNG.uniform(0.5, 1, (31, 9)),
}


def per_element(of_block: np.ndarray, rows: int) -> np.ndarray:
    return np.repeat(of_block, 32, 0)[:rows]


def extremes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest of every block, one per element."""
    blocks = [x[i : i + 32] for i in range(0, len(x), 32)]
    low, high = (np.array([f(b, 0) for b in blocks]) for f in (np.min, np.max))
    return per_element(low, len(x)), per_element(high, len(x))


# types ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("f16[3, 5]", 32), ("q4[64, 3]", 120), ("q4[65, 3]", 180), ("q4[1, 1]", 20), ("q8[64, 3]", 216), ("q8[3, 2]", 72)],
)
def test_bytes_of_storage(text: str, nbytes: int) -> None:
    type = TensorType.parse(text)
    assert str(type) == text and type.size_bytes == nbytes
    words = quant.encode(np.zeros(type.shape, np.float32), type.dtype)
    assert words.nbytes == nbytes


def test_blocks_need_two_axes() -> None:
    for dtype in (gd.q4, gd.q8):
        with pytest.raises(ShapeError, match=r"wanted rank 2: blocks run along axis 0"):
            TensorType((64,), dtype)
    with Graph() as g, pytest.raises(ShapeError):
        gd.parameter_q4("w", (2, 32, 3))
    assert len(g) == 0


# encoding -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DATA)
def test_q4_keeps_its_bound(name: str) -> None:
    x = DATA[name].astype(np.float32).astype(float)
    low, high = extremes(x)
    d = (high - low) / 15
    got = quant.decode(quant.encode(x, gd.q4), gd.q4, x.shape)
    normal = d >= 2.0**-14
    allowed = np.where(normal, d / 2, high - low) + 2.0**-10 * (15 * d + np.abs(low))
    assert np.all(np.abs(got - x) <= allowed)
    assert got.dtype == np.float32


@pytest.mark.parametrize("name", DATA)
def test_q8_keeps_its_bound(name: str) -> None:
    x = DATA[name].astype(np.float32).astype(float)
    low, high = extremes(x)
    d = np.maximum(np.abs(low), np.abs(high)) / 127
    got = quant.decode(quant.encode(x, gd.q8), gd.q8, x.shape)
    assert np.all(np.abs(got - x) <= d / 2 * (1 + 2.0**-20))


def test_padding_is_not_used_for_the_scale() -> None:
    x = np.full((33, 1), 100.0)
    x[32] = 101.0  # a block of its own: zeros behind it would make its step 101 / 15
    for dtype in (gd.q4, gd.q8):
        assert abs(quant.decode(quant.encode(x, dtype), dtype, x.shape)[32, 0] - 101) < 0.1


def test_the_words_of_a_block() -> None:
    x = np.zeros((32, 2), np.float32)
    x[:, 0] = np.arange(32) % 16
    x[:, 1] = -127.0
    x[3, 1] = 5.0
    q4 = quant.encode(x, gd.q4)
    assert [f"{w:08x}" for w in q4[:5]] == ["00003c00", "76543210", "fedcba98", "76543210", "fedcba98"]
    q8 = quant.encode(x, gd.q8)
    assert [f"{w:08x}" for w in q8[9:12]] == ["3f800000", "05818181", "81818181"]


# kernels --------------------------------------------------------------------------------------------------------------
def loaded(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Feeds whose stored parameters hold what their dtype can."""
    feeds = plans.feeds_of(g, seed)
    for n in g.parameters:
        if n.type.dtype.is_storage:
            words = quant.encode(feeds[n.name].astype(np.float32), n.type.dtype)
            feeds[n.name] = quant.decode(words, n.type.dtype, n.type.shape).astype(n.type.dtype.numpy)
    return feeds


PRODUCTS = also([(1, 1, 1), (3, 33, 5), (17, 64, 66), (65, 31, 129)], (5, 100, 70), (130, 96, 132))


@pytest.mark.parametrize("dtype", LEAVES)
@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS)
@pytest.mark.parametrize("where", ["cpu", "wgpu", "hardware form"])
def test_products_with_stored_weights(dtype: str, m: int, k: int, n: int, where: str) -> None:
    with Graph() as g:
        x, w = gd.input("x", (m, k)), LEAVES[dtype]("w", (k, n))
        g.output((x @ w).bias_add(gd.parameter("b", (n,))).relu())
    feeds = loaded(g)
    if where != "cpu":
        needs("wgpu")
    home = open_device("cpu" if where == "cpu" else "wgpu")
    plan = compile(g, mode="inference", target=HARDWARE if where == "hardware form" else home.target)
    program = plans.load(home, plan, feeds)
    program.step(None)
    values = evaluate(g, feeds)
    out = g.output_ids[0]
    assert compare(plans.outputs(program)[0], values[out], magnitudes(g, values)[out], 2e-4) is None
    weight = dict(plan.param_buffers)["w"]
    assert np.array_equal(program.download(weight), feeds["w"])
    assert plan.buffers[weight].nbytes == TensorType((k, n), DType(dtype)).size_bytes
    program.close()


F16_USES: dict[str, Callable[[Value, Value], Value]] = {
    "full": lambda x, w: x * w,
    "row": lambda x, w: x + w[0],
    "column": lambda x, w: x * w[:, :1],
    "scalar": lambda x, w: x - w[0, :1],
    "transposed": lambda x, w: x.T + w.T,
    "product a": lambda x, w: w @ x.T,
    "product bt": lambda x, w: x.matmul_bt(w),
    "product at": lambda x, w: x.matmul_at(w),
    "sum": lambda x, w: x.sum((0,)) + w.sum((0,)),
    "row sums": lambda x, w: w.square().mean_inner() + x,
    "softmax": lambda x, w: w.softmax() * x,
    "cut": lambda x, w: x[1:, ::2] * w[1:, ::2],
    "whole cut": lambda x, w: w.slice((0, 0), w.shape) + x * 0,
    "reshaped": lambda x, w: x.reshape(-1) + w.reshape(-1),
    "decoded": lambda x, w: w.to_f32() + x * 0,
    "concat": lambda x, w: gd.concat([x, w], 0),
    "twice transposed": lambda x, w: w.T.T,
    "not moved": lambda x, w: w.permute((0, 1)),
    "not scaled": lambda x, w: w.scale(1.0),
    "negated twice": lambda x, w: w.neg().neg(),
    "spread over itself": lambda x, w: w.broadcast_to(w.shape),
    "batches": lambda x, w: x.reshape((1, *x.shape)).batch_matmul_bt(w.reshape((1, *w.shape))),
    "convolved": lambda x, w: x.reshape((1, 1, *x.shape)).conv2d(w.reshape((1, 1, *w.shape)), padding=4),
}


@pytest.mark.parametrize("use", F16_USES)
@pytest.mark.parametrize("shape", [(6, 8), (5, 7)])
def test_f16_is_read_by_every_kind_of_kernel(use: str, shape: tuple[int, int], device: str) -> None:
    with Graph() as g:
        g.output(F16_USES[use](gd.input("x", shape), gd.parameter_f16("w", shape)))
    feeds = loaded(g)
    values = evaluate(g, feeds)
    out = g.output_ids[0]
    with gd.build_inference_session(g, device=device) as session:
        session.set_parameter("w", feeds["w"])
        session.set_input("x", feeds["x"])
        session.step()
        got = session.read_output()
    assert got.dtype == np.float32
    assert compare(got, values[out], magnitudes(g, values)[out], 2e-4) is None


def test_f16_is_decoded_visibly_but_for_products_and_tables() -> None:
    with Graph() as g:
        x, w, i = gd.input("x", (3, 3)), gd.parameter_f16("w", (3, 3)), gd.input_u32("i", (2,))
        for use in (x @ w, x.matmul_bt(w), gd.embedding(i, w), w.gather(i, 1), w.reshape(9), w.stop_gradient()):
            assert w.id in use.node.inputs
        added = x + w
        assert [g.node(k).op for k in added.node.inputs] == ["input", "to_f32"]
        assert g.source(added.id)[0].line == g.source(added.node.inputs[1])[0].line
        assert w.reshape(9).type.dtype is gd.f16 and (x @ w).type.dtype is gd.f32


def test_an_f16_table_is_looked_up(device: str) -> None:
    with Graph() as g:
        table, i = gd.parameter_f16("t", (5, 3)), gd.input_u32("i", (4,))
        g.output(gd.embedding(i, table) + gd.gather(table, i, 0))
    table = plans.feeds_of(g)["t"]
    with gd.build_inference_session(g, device=device) as session:
        session.set_parameter("t", table)
        session.set_input_u32("i", [4, 0, 0, 2])
        session.step()
        assert np.array_equal(session.read_output(), 2 * table.astype(np.float32)[[4, 0, 0, 2]])


@pytest.mark.parametrize("dtype", LEAVES)
def test_a_session_converts_and_reads_back(dtype: str, device: str) -> None:
    data = DATA["normal"].astype(np.float32)
    with Graph() as g:
        g.output(gd.input("x", (2, 70)) @ LEAVES[dtype]("w", (70, 5)))
    with gd.build_inference_session(g, device=device) as session:
        session.set_parameter("w", data)
        want = quant.decode(quant.encode(data, DType(dtype)), DType(dtype), data.shape)
        got = session.read_param("w")
        assert got.dtype == np.float32 and np.array_equal(got, want)
        session.set_parameter("w", got)  # what is stored is kept
        assert np.allclose(session.read_param("w"), want, rtol=1e-6, atol=0.02 if dtype == "q4" else 1e-6)


def test_stored_weights_survive_the_optimizer(device: str) -> None:
    with Graph() as g:
        x = gd.input("x", (3, 32))
        u, v, w = gd.parameter_q4("u", (32, 8)), gd.parameter_q4("v", (32, 8)), gd.parameter_q8("w", (8, 4))
        h = (x @ u).silu() * (x @ v)
        g.output((h @ w + gd.parameter_f16("c", (3, 4))).T)
    feeds = loaded(g)
    with gd.build_inference_session(g, device=device) as session:
        for name in ("u", "v", "w", "c"):
            session.set_parameter(name, feeds[name])
        session.set_input("x", feeds["x"])
        session.step()
        got = session.read_output()
    values = evaluate(g, feeds)
    assert compare(got, values[g.output_ids[0]], magnitudes(g, values)[g.output_ids[0]], 1e-2) is None


# refusals -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["q4", "q8"])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, w, i: x.matmul_bt(w), lambda x, w, i: x.matmul_at(w), lambda x, w, i: w @ x, lambda x, w, i: w + x,
        lambda x, w, i: gd.embedding(i, w), lambda x, w, i: w.gather(i, 0), lambda x, w, i: w.T,
        lambda x, w, i: w.relu(), lambda x, w, i: w.reshape(-1), lambda x, w, i: w[0], lambda x, w, i: w.sum(),
        lambda x, w, i: gd.concat([w, w], 0),
    ],
)  # fmt: skip
def test_blocks_are_operand_b_of_matmul_alone(dtype: str, use: Callable[..., Value]) -> None:
    with Graph() as g:
        x, w, i = gd.input("x", (32, 32)), LEAVES[dtype]("w", (32, 32)), gd.input_u32("i", (3,))
        with pytest.raises(DTypeError, match=f"{dtype} may only be operand b of matmul"):
            use(x, w, i)
    assert len(g) == 3


@pytest.mark.parametrize("dtype", LEAVES)
def test_stored_weights_are_not_trained(dtype: str) -> None:
    with Graph() as g:
        w = LEAVES[dtype]("w", (4, 2))
        g.output((gd.input("x", (3, 4)) @ w).sum_all())
    before = g.fingerprint()
    with pytest.raises(AutodiffError, match="f32 values: a storage dtype is not trained"):
        gd.differentiate(g, wrt=[w])
    full, report = gd.differentiate(g)
    assert full.num_param_grad_outputs == 0 and report.gradients == () and len(full.outputs) == 1
    assert g.fingerprint() == before


@pytest.mark.parametrize("dtype", LEAVES)
def test_the_others_are_trained_around_a_stored_weight(dtype: str, device: str) -> None:
    """Its gradient would lie in node order between the two: names, pairs and values stay with the right ones."""
    with Graph() as g:
        x, first = gd.input("x", (6, 40)), gd.parameter("first", (40, 33))
        frozen, last = LEAVES[dtype]("frozen", (33, 5)), gd.parameter("last", (5, 3))
        g.set_outputs([((x @ first).tanh() @ frozen @ last - 1.0).square().mean_all()])
    full, report = gd.differentiate(g)
    assert [g.nodes[i].name for i in report.wrt] == ["first", "last"]
    feeds = {n.name: np.float32(RNG.normal(0, 0.3, n.type.shape)) for n in (*g.inputs, *g.parameters)}
    with gd.build_session(g, device) as session:
        for name in session.param_names():
            session.set_parameter(name, feeds[name])
        feeds["frozen"] = session.read_param("frozen")  # as it is stored
        session.set_input("x", feeds["x"])
        plan = session.plan()
        names = {plan.buffers[p].name: plan.buffers[grad].name for p, grad in plan.param_grad_pairs}
        assert names == {"first": "∂first", "last": "∂last"}
        session.set_learning_rate(0.05)
        losses = []
        for step in range(8):
            session.step()
            losses.append(session.read_loss())
            if step == 0:
                values = evaluate(full, feeds)
                for name, id in zip(("first", "last"), full.output_ids[1:], strict=True):
                    got = session.read_param_grad(name)
                    np.testing.assert_allclose(got, values[id], rtol=2e-3, atol=2e-4 * np.abs(values[id]).max())
        assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
        assert np.array_equal(session.read_param("frozen"), feeds["frozen"]) and not session.has_param_grad("frozen")
        with pytest.raises(SessionError, match="not trained"):
            session.read_param_grad("frozen")
        assert [name for name, _ in session.read_all_param_grad_norms()] == ["first", "last"]


def test_a_gradient_flows_past_f16(device: str) -> None:
    with Graph() as g:
        x, w = gd.input("x", (3, 4)), gd.parameter_f16("w", (4, 2))
        g.output((x @ w).square().sum_all())
    full, _ = gd.differentiate(g, wrt=[x])
    full.set_outputs(full.outputs)  # plain outputs: the gradient is that of an input
    feeds = loaded(full)
    values = evaluate(full, feeds)
    with gd.build_inference_session(full, device=device) as session:
        session.set_parameter("w", feeds["w"])
        session.set_input("x", feeds["x"])
        session.step()
        np.testing.assert_allclose(session.read_output_by_index(1), values[full.output_ids[1]], rtol=1e-4, atol=1e-4)


def test_a_stored_parameter_is_no_output() -> None:
    with Graph() as g:
        g.output(gd.parameter_f16("w", (4, 2)))
    with pytest.raises(CompileError, match=r"output %0: given f16\[4, 2\], wanted f32 or u32: to_f32"):
        compile(g, mode="inference")
