"""The cpu device: NumPy from the dispatch's own fields, right for every extent, in float32, without the references."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import networks
import numpy as np
import plans
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, CompileError, DeviceUnavailableError, SessionError
from gdlab.devices.choose import device
from gdlab.devices.cpu.chain_calls import Scratch, array, build, emit
from gdlab.devices.cpu.cpu_device import CpuDevice, memory_bytes
from gdlab.devices.cpu.operands import domain, viewed
from gdlab.devices.cpu.update_calls import BLOCK
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.plan import compile
from gdlab.plan.dispatch import SCALARS, Operand
from gdlab.plan.expr import evaluate
from gdlab.plan.target import CompileOptions
from gdlab.plan.update import Recipe, update_of
from gdlab.session import build_inference_session, build_session

CPU = CpuDevice()
EXTENTS = (1, 2, 3, 17, 33, 65, 129)
Array = np.ndarray[Any, Any]


def evaluated(build: Callable[[], Value], **feeds: Any) -> Array:
    with Graph() as g:
        g.set_outputs(build())
    return plans.run(CPU, g, feeds)[0]


def scalars(lr: float = 0.1, t: int = 1, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Array:
    corrections = {"correction1": 1 / (1 - beta1**t), "correction2": 1 / (1 - beta2**t)}
    values = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, **corrections}
    return np.array([values.get(name, 0.0) for name in SCALARS], np.float32)


# products, folds, moves -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["matmul", "matmul_at", "matmul_bt"])
def test_products_with_an_epilogue_for_every_extent(name: str) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in itertools.product(EXTENTS, repeat=3):
        a, b, c = (rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
        want = np.maximum(a.astype(float) @ b + c, 0)
        a, b = a.T if name == "matmul_at" else a, b.T if name == "matmul_bt" else b

        def product(a: Array = a, b: Array = b, c: Array = c) -> Value:
            x = getattr(ops, name)(ops.input("a", a.shape), ops.input("b", b.shape))
            return ops.relu(ops.bias_add(x, ops.input("c", c.shape)))

        got = evaluated(product, a=a, b=b, c=c)
        np.testing.assert_allclose(got, want, atol=1e-5 * np.sqrt(k) * 4, err_msg=f"{m} {n} {k}")


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("fold", ["sum", "mean", "max", "min"])
def test_folds_with_prologue_and_epilogue(fold: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for shape in ((2, 3, 4), (1, 65, 3), (17, 1, 33)):
        x = rng.normal(size=shape).astype(np.float32)
        got = evaluated(lambda s=shape: getattr(ops, fold)(ops.input("x", s) * 2.0, axes) + 1.0, x=x)  # type: ignore[misc]
        want = np.reshape(getattr(np, fold)(x.astype(float) * 2, axis=axes) + 1, got.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_long_sums_do_not_lose_their_tail() -> None:
    x = np.full((3, 300_000), 0.1, np.float32)
    want = x.astype(float).sum()
    assert abs(evaluated(lambda: ops.sum_all(ops.input("x", x.shape)), x=x)[0] / want - 1) < 1e-7
    rows = evaluated(lambda: ops.sum_rows(ops.input("x", x.T.shape)), x=np.ascontiguousarray(x.T))
    np.testing.assert_allclose(rows, want / 3, rtol=1e-7)


def test_folds_and_rows_propagate_nan() -> None:
    x = np.array([[1.0, np.nan, 2.0], [3.0, 4.0, 5.0]], np.float32)
    for name in ("sum_inner", "max_inner", "mean_inner", "softmax", "log_softmax"):
        got = evaluated(lambda name=name: getattr(ops, name)(ops.input("x", (2, 3))), x=x)  # type: ignore[misc]
        assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_moves_of_u32_keep_every_bit() -> None:
    x = np.array([[0, 1, 2], [7, 2**31, 2**32 - 1]], np.uint32)
    got = evaluated(lambda: ops.reshape(ops.input_u32("x", (2, 3)), (3, 2)), x=x)
    assert got.dtype == np.uint32 and got.tolist() == x.reshape(3, 2).tolist()


# chains ---------------------------------------------------------------------------------------------------------------
EXPRESSIONS = sorted(
    {op.kernel.expr for op in REGISTRY.values() if hasattr(op.kernel, "expr") and op.operands}  # type: ignore[union-attr]
)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_calls_of_an_expression_say_what_the_expression_says(text: str) -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(size=40), [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 90.0, -90.0]]).astype("f4")
    op = next(o for o in REGISTRY.values() if getattr(o.kernel, "expr", None) == text)
    data = {name: rng.permutation(values) for name in op.operands}
    numbers = {p.name: 0.5 for p in op.attributes}
    scope = {n: array(v) for n, v in data.items()} | {n: _number(v) for n, v in numbers.items()}
    out = np.zeros(values.shape, np.float32)
    with np.errstate(all="ignore"):
        for function, args in emit(build(text, scope), out, Scratch(), set()):
            function(*args)
    for i, got in enumerate(out):
        want = evaluate(text, {n: float(v[i]) for n, v in data.items()} | numbers)
        np.testing.assert_allclose(got, np.float32(want), rtol=3e-6, atol=1e-37)


def _number(value: float) -> Any:
    from gdlab.devices.cpu.chain_calls import ScalarLiteral

    return ScalarLiteral(np.float32(value))


@pytest.mark.parametrize("text", ["frob(x)", "x if x else y", "x ** 2", "x <", "x and y", "z + 1.0"])
def test_expressions_that_nobody_can_read_are_refused(text: str) -> None:
    with pytest.raises(CompileError, match="kernel: expression: given"):
        build(text, {"x": array(np.zeros(3, np.float32)), "y": array(np.zeros(3, np.float32))})


def test_selection_leaks_nothing_of_what_it_does_not_take() -> None:
    c, x = np.array([1, 0, 1, 0], np.float32), np.array([1.0, np.inf, np.nan, np.nan], np.float32)
    got = evaluated(lambda: ops.where(ops.input("c", (4,)), ops.input("x", (4,)), 0.0), c=c, x=x)
    assert got.tobytes() == np.array([1.0, 0.0, np.nan, 0.0], np.float32).tobytes()
    got = evaluated(lambda: ops.where(ops.input("c", (4,)), ops.input("y", (4,)), ops.input("x", (4,))), c=c, x=x, y=-x)
    assert got.tobytes() == np.array([-1.0, np.inf, -np.nan, np.nan], np.float32).tobytes()


@pytest.mark.parametrize("a, b", [(("row", 4), ("row", 12)), (("row", 4), ("column", 3)), (("column", 6), ("row", 4))])
def test_rows_and_columns_of_any_extents_meet(a: tuple[Any, int], b: tuple[Any, int]) -> None:
    """Extents that divide each other become axes; others are gathered."""
    size, data = 24, [np.arange(24, dtype=np.float32), np.arange(24, dtype=np.float32)]
    operands = [Operand(i, (24,), access, extent) for i, (access, extent) in enumerate((a, b))]
    shape = domain(size, operands)
    for operand, x in zip(operands, data, strict=True):
        seen, steps = viewed(x, operand, size, shape)
        for function, args in steps:
            function(*args)
        at = np.arange(size)
        at = at % operand.extent if operand.access == "row" else at // operand.extent
        np.testing.assert_array_equal(np.broadcast_to(seen, shape).ravel(), x[at])


# training -------------------------------------------------------------------------------------------------------------
def test_a_plan_trains_without_any_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    g = differentiate(networks.mlp())[0]
    plan = compile(g, mode="training", target=CPU.target)

    def raiser(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the cpu device asked a reference")

    for op in REGISTRY.values():
        monkeypatch.setattr(op, "numpy", raiser)
        monkeypatch.setattr(op, "rule", raiser)
    feeds = plans.feeds_of(g)
    feeds["y"] = np.eye(10, dtype=np.float32)[np.arange(64) % 10]
    feeds |= {name: feeds[name] * 0.1 for name, _ in plan.param_buffers}
    program = plans.load(CPU, plan, feeds)
    program.configure(update_of(plan, Recipe("adam")))
    for t in range(1, 61):
        program.step(scalars(0.01, t))
    losses = program.losses(wait=True)
    assert [step for step, _ in losses] == list(range(1, 61)) and losses[-1][1] < 0.1 * losses[0][1]
    assert program.losses(wait=True) == []


def test_everything_stays_float32() -> None:
    for graph in (differentiate(networks.mlp())[0], differentiate(networks.transformer())[0]):
        plan = compile(graph, mode="training", target=CPU.target)
        program = CPU.load(plan)
        program.configure(update_of(plan, Recipe("adam")))
        program.step(scalars())
        assert {a.dtype for a in program.arrays.values()} == {np.dtype(np.float32)}
        wide = [shape for shape, dtype in program.queue.scratch.pool if dtype == np.dtype(np.float64)]
    assert all(np.prod(shape) == 1 for shape in wide)  # the accumulators of losses


def trained(rule: Any, steps: int, factor: float = 1.0) -> tuple[Array, Array, list[Array]]:
    """(parameter before, after, gradients) of `steps` updates with a gradient that is an input."""
    with Graph() as g:
        x, w = ops.input("x", (5, 3)), ops.parameter("w", (5, 3))
        g.set_outputs([ops.sum_all(x * w), x])
        g.set_output_ids(zip(g.output_ids, g.output_names, strict=True), gradients=1)
    rng = np.random.default_rng(3)
    before = rng.normal(size=(5, 3)).astype(np.float32)
    plan = compile(g, mode="training")
    program = plans.load(CPU, plan, {"x": np.zeros((5, 3)), "w": before})
    program.configure(update_of(plan, Recipe(rule, {"w": factor})))
    gradients = [rng.normal(size=(5, 3)).astype(np.float32) for _ in range(steps)]
    for t, gradient in enumerate(gradients, 1):
        program.upload(dict(plan.input_buffers)["x"], gradient)
        program.step(scalars(0.1, t))
    return before, program.download(dict(plan.param_buffers)["w"]), gradients


def test_sgd_against_float64() -> None:
    w, after, gradients = trained("sgd", 10, factor=0.5)
    want = w.astype(float) - 0.05 * np.sum(np.array(gradients, float), 0)
    np.testing.assert_allclose(after, want, rtol=1e-6, atol=1e-6)


def test_adam_against_float64() -> None:
    w, after, gradients = trained("adam", 10)
    p, m, v = w.astype(float), np.zeros((5, 3)), np.zeros((5, 3))
    for t, g in enumerate(np.array(gradients, float), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(after, p, rtol=1e-5, atol=1e-5)


def test_moments_never_stay_denormal() -> None:
    plan = compile(plans.regression(), mode="training")
    program = plans.load(CPU, plan, plans.feeds_of(plan.graph))
    program.configure(update_of(plan, Recipe("adam")))
    program.step(scalars())
    for buffer in dict(plan.param_grad_pairs).values():
        program.arrays[buffer][...] = 0
    for t in range(2, 1100):
        program.update_only(scalars(0.0, t))
    first = program.download(program.update.moments[0][1])
    assert (first == 0).all()


def test_moments_outlive_a_switch_to_sgd() -> None:
    plan = compile(plans.regression(), mode="training")
    program = plans.load(CPU, plan, plans.feeds_of(plan.graph))
    program.configure(update_of(plan, Recipe("adam")))
    program.step(scalars())
    m = program.update.moments[0][1]
    kept = program.download(m)
    program.configure(update_of(plan, Recipe("sgd")))
    program.step(scalars())
    program.configure(update_of(plan, Recipe("adam")))
    assert kept.any() and program.download(m).tobytes() == kept.tobytes()


def test_an_output_that_is_a_parameter_shows_the_value_before_the_update() -> None:
    with Graph() as g:
        w = ops.parameter("w", (3,))
        g.set_outputs([ops.sum_all(w * ops.input("x", (3,))), w, ops.input("g", (3,))])
        g.set_output_ids(zip(g.output_ids, g.output_names, strict=True), gradients=1)
    plan = compile(g, mode="training")
    program = plans.load(CPU, plan, {"w": np.ones(3), "x": np.ones(3), "g": np.ones(3)})
    program.configure(update_of(plan, Recipe("sgd")))
    program.step(scalars(0.5))
    assert plans.outputs(program)[1].tolist() == [1.0] * 3
    assert program.download(dict(plan.param_buffers)["w"]).tolist() == [0.5] * 3


# the program ----------------------------------------------------------------------------------------------------------
def test_traffic_counts_what_happened() -> None:
    plan = compile(plans.regression(), mode="training")
    program = plans.load(CPU, plan, plans.feeds_of(plan.graph))
    program.configure(update_of(plan, Recipe("sgd")))
    program.step(scalars())
    program.update_only(scalars())
    t = program.counters
    assert (t.forwards, t.submissions, t.dispatches) == (1, 2, len(plan.dispatches) + 2)
    assert t.upload_bytes == sum(plan.buffers[b].nbytes for _, b in (*plan.input_buffers, *plan.param_buffers))


def test_uploads_copy_and_downloads_are_copies() -> None:
    plan = compile(plans.regression(), mode="training")
    program = CPU.load(plan)
    w = dict(plan.param_buffers)["w"]
    data = np.ones((5, 3), np.float32)
    program.upload(w, data)
    data[...] = 7
    got = program.download(w)
    got[...] = 8
    assert program.download(w).tolist() == np.ones((5, 3)).tolist()


def test_what_a_program_refuses() -> None:
    plan = compile(plans.regression(), mode="training")
    program = CPU.load(plan)
    w = dict(plan.param_buffers)["w"]
    with pytest.raises(ArgumentError, match="upload: data of buffer 2: given float64, 120 bytes, wanted float32, 60"):
        program.upload(w, np.ones((5, 3)))
    with pytest.raises(ArgumentError, match="download: buffer: given 99, wanted one of the 10 buffers"):
        program.download(99)
    program.configure(update_of(plan, Recipe("sgd")))
    with pytest.raises(SessionError, match="step: scalars: given none, wanted 9 numbers: lr, beta1"):
        program.step(None)
    program.close()
    program.close()
    with pytest.raises(SessionError, match="step: program: given closed, wanted an open one"):
        program.step(None)


def test_an_unfused_plan_and_a_fused_one_agree() -> None:
    g = differentiate(networks.transformer())[0]
    feeds = plans.feeds_of(g)
    fused = plans.run(CPU, g, feeds, "training")
    plain = plans.run(CPU, g, feeds, "training", CompileOptions(fuse_dispatches=False))
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


# choosing -------------------------------------------------------------------------------------------------------------
def test_devices_are_chosen_by_name_and_say_why() -> None:
    cpu = device("cpu")
    assert cpu.info.kind == "cpu" and cpu.info.reason == "asked for by name" and device(cpu) is cpu
    assert not cpu.info.automatic
    assert cpu.target.limits.binding_bytes == memory_bytes() > 1 << 28
    with pytest.raises(ArgumentError, match="device: kind: given 'tpu', wanted .* or a Device"):
        device("tpu")  # type: ignore[arg-type]


def test_auto_prefers_hardware_then_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from gdlab.devices.base import DeviceInfo
    from gdlab.devices.wgpu import wgpu_device as wgpu

    def answer(*classes: str) -> None:
        monkeypatch.setattr(wgpu, "adapters", lambda: [DeviceInfo("wgpu", f"a {c} one", c, "") for c in classes])

    def opened(reason: str, adapter: str = "") -> Any:
        raise DeviceUnavailableError("device", "wgpu", reason, "the test")

    monkeypatch.setattr(wgpu, "open", opened)
    answer()
    assert device().info.reason == "no adapter answers" and device().info.automatic
    answer("software")
    assert device().info.kind == "cpu"
    assert device().info.reason == "the only adapter, a software one, is a software one, and NumPy is faster than that"
    answer("software", "hardware")
    with pytest.raises(DeviceUnavailableError, match="a hardware adapter answers"):
        device()


# speed that must not change a bit -------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["set_learning_rate", "set_adam", "set_adamw", "set_laprop"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_large_parameter_is_updated_in_parts_like_a_small_one(rule: str, clip: float | None) -> None:
    size = BLOCK + 77
    with Graph() as g:
        large, small = ops.parameter("large", (size,)), ops.parameter("small", (177,))
        x = ops.input("x", (size,))
        parts = ops.sum_all(large * x) + ops.sum_all(small * ops.slice(x, (size - 177,), (size,)))
        g.output(ops.scale(parts, 1e-3))
    with build_session(g, "cpu") as session:
        values = np.random.default_rng(0).normal(size=size).astype(np.float32)
        session.set_input("x", np.random.default_rng(1).normal(size=size))
        session.set_parameter("large", values)
        session.set_parameter("small", values[-177:])
        session.set_lr_multiplier("", 0.5)
        session.set_grad_clip_norm(clip)
        getattr(session, rule)(0.01)
        for _ in range(3):
            session.step()
        found = session.read_param("large")
        assert found[-177:].tobytes() == session.read_param("small").tobytes()
        assert (found != values).mean() > 0.9


@pytest.mark.parametrize("rows", [1, 15, 16, 4096, 5000])
@pytest.mark.parametrize("n", [1, 2, 16, 17, 128, 129])
def test_rows_are_folded_alike_however_long(rows: int, n: int) -> None:
    with Graph() as g:
        x = ops.input("x", (rows, n))
        g.set_outputs([ops.sum_inner(x), ops.max_inner(x), ops.softmax(x)])
    with build_inference_session(g, "cpu") as session:
        data = np.random.default_rng(0).normal(size=(rows, n)).astype(np.float32)
        data[rows // 2, n // 2] = np.nan
        session.set_input("x", data)
        session.step()
        total, top, share = (session.read_output_by_index(i) for i in range(3))
        exact = data.astype(np.float64)
        np.testing.assert_allclose(total[:, 0], exact.sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(top[:, 0], data.max(1))
        powers = np.exp(exact - exact.max(1, keepdims=True))
        np.testing.assert_allclose(share, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
