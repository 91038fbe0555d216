"""Dispatches that merge (`Target.merges`): they store what others read of a product, and add products of other rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from machine import needs
from plans import feeds_of, graph_of, load, outputs
from random_graphs import random_graph

from benchmarks.peer_models import CASES
from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError
from gdlab.base.types import DType, TensorType
from gdlab.devices.choose import device as device_of
from gdlab.graph import Graph, Value
from gdlab.kernels.coverage import coverage
from gdlab.kernels.dispatch_wgsl import wgsl_with_parts
from gdlab.kernels.reasons import reason
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.dispatch import Arg, Dispatch
from gdlab.plan.kernel_digest import source_hash
from gdlab.plan.records import ExecutionPlan, PlanMode
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.verify import verify
from gdlab.rewrite.rules.packing import PACKING
from gdlab.session.builders import SessionConfig, compiled

LIMITS = Limits(storage_buffers=10, workgroup_bytes=32768)
MERGED = Target("wgpu", "hardware", LIMITS, merges=True)
APART = replace(MERGED, merges=False)
M, N, K = 24, 48, 40


def leaf(name: str, *shape: int) -> Value:
    return ops.input(name, shape)


def product(a: str = "x", b: str = "w", m: int = M, n: int = N, k: int = K) -> Value:
    return leaf(a, m, k) @ leaf(b, k, n)


def plan_of(graph: Graph, target: Target = MERGED, mode: PlanMode = "inference", **options: Any) -> ExecutionPlan:
    return compile(graph, mode=mode, target=target, options=CompileOptions(**options))


def labels_of(build: Callable[[], list[Value]], target: Target = MERGED, **options: Any) -> list[str]:
    return [d.label for d in plan_of(graph_of(build), target, **options).dispatches]


def agrees(graph: Graph, plan: ExecutionPlan, device: str) -> None:
    """Check all that a plan stores against the float64 judge."""
    feeds = feeds_of(graph)
    values = evaluate(graph, feeds)
    program = load(device_of(device), plan, feeds)
    try:
        program.step(None)
        for d in plan.dispatches:
            for r in (r for r in d.results if r.node >= 0):  # else the parts of a sum
                got, want = program.download(r.buffer), values[r.node]
                np.testing.assert_allclose(got, want.reshape(got.shape), rtol=2e-4, atol=2e-4, err_msg=d.label)
    finally:
        program.close()


# what others read -----------------------------------------------------------------------------------------------------
def stored_sum() -> list[Value]:
    """A bias and an activation behind a product; the mean reads the sum with the bias, too."""
    h = ops.bias_add(product(), leaf("b", N))
    return [(ops.gelu(h) @ leaf("v", N, 8)), h.mean_all()]


def stored_product() -> list[Value]:
    p = product()
    return [ops.tanh(p) @ leaf("v", N, 8), p.mean_all()]


def gated() -> list[Value]:
    """Both products of a gate, and what gates, have other readers."""
    x = leaf("x", M, K)
    gate, up = x @ leaf("w", K, N), x @ leaf("u", K, N)
    turned = ops.silu(gate)
    return [(turned * up) @ leaf("v", N, 8), gate.mean_all(), up.sum_all(), turned.sum_all()]


def siblings() -> list[Value]:
    """Two chains on one product, and another reader of it."""
    p, x = product(), leaf("y", M, N)
    return [ops.matmul_at(p * x, ops.tanh(p + x)), p.mean_all()]


def folded() -> list[Value]:
    """The product is added up in parts of K: the dispatch that adds them stores what others read."""
    h = ops.relu(product(m=128, n=128, k=4096) + leaf("y", 128, 128))
    return [ops.sigmoid(h) @ leaf("v", 128, 8), h.mean_all()]


FORMS: dict[str, tuple[Callable[[], list[Value]], list[tuple[str | None, int]]]] = {  # kind and line of each result
    "sum": (stored_sum, [(None, 0), ("op", 0)]),
    "product": (stored_product, [(None, 0), ("acc", 0)]),
    "gated": (gated, [(None, 0), ("acc", 0), ("dual", 0), ("op", 0)]),
    "siblings": (siblings, [(None, 0), ("acc", 0), ("op", 0)]),
    "folded": (folded, [(None, 0), ("op", 1)]),
}


def merged(plan: ExecutionPlan) -> Dispatch:
    (d,) = (d for d in plan.dispatches if len(d.results) > 1)
    return d


@pytest.mark.parametrize("form", FORMS)
def test_a_product_stores_what_others_read_of_it(form: str) -> None:
    build, wanted = FORMS[form]
    g = graph_of(build)
    plan, apart = plan_of(g), plan_of(g, APART)
    d = merged(plan)
    assert sorted((r.value and r.value.kind, r.value.index if r.value else 0) for r in d.results if r.value) == sorted(
        wanted[1:]
    )
    assert [r.value for r in d.results[:1]] == [None]
    assert len(plan.groups) <= len(apart.groups) and len(plan.dispatches) < len(apart.dispatches)
    assert not any(r.value for e in apart.dispatches for r in e.results)
    assert {r.node for r in d.results} <= set(d.origin)
    assert all(plan.node_buffers[r.node] == r.buffer for r in d.results)
    assert from_json(to_json(plan)) == plan
    needs("wgpu")
    for device in ("cpu", "wgpu"):
        agrees(g, plan, device)


@pytest.mark.parametrize("n", [48, 45])
def test_results_are_stored_one_by_one_where_rows_are_no_fours(n: int) -> None:
    def build() -> list[Value]:
        h = ops.bias_add(product(n=n), leaf("b", n))
        return [ops.tanh(h) @ leaf("v", n, 8), h.mean_all(), (h * 2.0).sum_all()]

    g = graph_of(build)
    plan = plan_of(g)
    assert len(merged(plan).results) == 2
    needs("wgpu")
    agrees(g, plan, "wgpu")


@pytest.mark.parametrize(("n", "variant"), [(48, "vec4"), (45, "scalar")])
def test_a_pointwise_chain_stores_several_results_where_the_product_stays_apart(n: int, variant: str) -> None:
    """The product is an output, so that its value stays readable."""
    def build() -> list[Value]:
        p = product(n=n)
        h = ops.bias_add(p, leaf("b", n))
        return [ops.tanh(h) @ leaf("v", n, 8), h.reshape((n, M)).mean_all(), p]

    g = graph_of(build)
    plan = plan_of(g)
    d = merged(plan)
    assert d.kernel == "pointwise" and d.label == f"Pointwise(bias_add,tanh)[{M * n}]" and d.variant == variant
    (alias,) = (node.id for node in g.nodes if node.op == "reshape")
    assert alias in d.origin and plan.node_buffers[alias] == d.results[1].buffer
    needs("wgpu")
    for device in ("cpu", "wgpu"):
        agrees(g, plan, device)


def early() -> list[Value]:
    """The residual: the norm reads the sum before the chain that adds to it."""
    h = product() + leaf("y", M, N)
    return [(h + ops.rms_norm(h, leaf("n", N), 1e-5) @ leaf("v", N, N)) @ leaf("u", N, 8)]


def late() -> list[Value]:
    """The chain waits for another product, which what is stored need not."""
    h = ops.tanh(product())
    other = ops.softmax(leaf("z", M, K) @ leaf("v", K, N))
    return [(h * other) @ leaf("u", N, 8), h.mean_all()]


def an_output() -> list[Value]:
    h = product() + leaf("y", M, N)
    return [ops.tanh(h) @ leaf("u", N, 8), h]


def without_product() -> list[Value]:
    h = ops.tanh(leaf("x", M, N))
    return [ops.exp(h) @ leaf("u", N, 8), h.mean_all()]


def another_size() -> list[Value]:
    h = ops.tanh(product())
    return [(h * ops.broadcast_to(h.sum(1, keepdims=True), (M, N))) @ leaf("u", N, 8), h.mean_all()]


@pytest.mark.parametrize("build", [early, late, an_output, without_product, another_size])
def test_what_would_wait_or_must_stay_readable_is_stored_alone(build: Callable[[], list[Value]]) -> None:
    assert not any(r.value for d in plan_of(graph_of(build)).dispatches for r in d.results)
    assert sorted(labels_of(build)) == sorted(labels_of(build, APART))


def test_a_binding_too_many_and_switches_keep_results_apart() -> None:
    def count(target: Target = MERGED, **options: Any) -> int:
        plan = plan_of(graph_of(gated), target, **options)
        return sum(r.value is not None for d in plan.dispatches for r in d.results)

    assert count() == 3
    few = [count(replace(MERGED, limits=replace(LIMITS, storage_buffers=n))) for n in range(4, 8)]
    assert few == sorted(few) and few[0] < 3 and few[-1] == 3  # x, w, u and four results are seven
    assert count(fuse_dispatches=False) == count(tile=(32, 32)) == count(Target.portable()) == 0
    for kind, adapter in (("cpu", "cpu"), ("wgpu", "software")):
        assert count(Target(kind, adapter, LIMITS, merges=True)) == 0  # type: ignore[arg-type]


def test_forward_and_backward_stay_apart() -> None:
    """A dispatch of the backward pass stores nothing that the loss reads."""
    for seed in range(40):
        plan = plan_of(differentiate(random_graph(seed, scalar_loss=True))[0], mode="training")
        backward = [not n for n in plan_phases(plan)]
        for d in plan.dispatches:
            if any(r.value for r in d.results):
                assert {backward[r.node] for r in d.results} == {d.phase == "backward"}


def plan_phases(plan: ExecutionPlan) -> list[bool]:
    """Whether a user's output needs each node."""
    forward = [False] * len(plan.graph)
    for id in plan.graph.output_ids[: plan.graph.num_user_outputs]:
        forward[id] = True
    for node in reversed(plan.graph.nodes):
        for i in node.inputs if forward[node.id] else ():
            forward[i] = True
    return forward


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_random_networks_train_alike_merged_or_apart(device: str) -> None:
    if device == "wgpu":
        needs("wgpu")
    found, several = device_of(device), 0
    for seed in range(60 if device == "cpu" else 14):
        g = differentiate(random_graph(seed, scalar_loss=True))[0]
        feeds, got = feeds_of(g), []
        for target in (APART, MERGED):
            plan = plan_of(g, target, mode="training")
            program = load(found, plan, feeds)
            program.step(np.zeros(16, np.float32))
            got.append(outputs(program))
            program.close()
        several += any(r.value for d in plan.dispatches for r in d.results)
        for one, other in zip(*got, strict=True):
            atol = 1e-4 * max(1.0, np.abs(one).max())
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=atol, err_msg=str(seed))
    assert several > 0


# products of other rows -----------------------------------------------------------------------------------------------
def summed(op: Any = ops.matmul, m: int = M, n: int = N, k: int = K) -> list[Value]:
    """x·w + y·v, in the layouts of `op`."""
    rows, factor = (k, m) if op is ops.matmul_at else (m, k), (n, k) if op is ops.matmul_bt else (k, n)
    x, y = leaf("x", *rows), leaf("y", *rows)
    return [op(x, leaf("w", *factor)) + op(y, leaf("v", *factor))]


@pytest.mark.parametrize("op", [ops.matmul, ops.matmul_bt, ops.matmul_at])
@pytest.mark.parametrize(("m", "n", "k"), [(24, 48, 40), (17, 15, 70), (64, 256, 1024), (20, 30, 33)])
def test_two_products_of_different_rows_are_added_in_one_dispatch(op: Any, m: int, n: int, k: int) -> None:
    g = graph_of(lambda: summed(op, m, n, k))
    (d,) = plan_of(g).dispatches
    p = d.matmul
    assert p is not None and p.dual_rows and p.dual is not None and d.variant.startswith("k-parallel")
    assert len(d.operands) == 4 and (p.dual_operand, p.rows_operand) == (2, 3) and d.flops >= 4 * m * n * k
    assert "Dual" in d.label and from_json(to_json(plan_of(g))) == plan_of(g)
    assert len(plan_of(g, APART).dispatches) == 2
    needs("wgpu")
    for device in ("cpu", "wgpu"):
        agrees(g, plan_of(g), device)


def test_a_product_whose_rows_are_there_earlier_stays_apart() -> None:
    """It runs beside what the others wait for: of q, k, v, turned, turned and plain, those of q and k are one."""
    def build() -> list[Value]:
        q, k, v = (leaf(name, M, K) for name in "qkv")
        plain, turned = v @ leaf("c", K, N), (ops.softmax(q) @ leaf("a", K, N), ops.softmax(k) @ leaf("b", K, N))
        return [(plain + turned[1] + turned[0]) @ leaf("d", N, 8)]

    plan = plan_of(graph_of(build))
    (dual,) = (d for d in plan.dispatches if d.matmul and d.matmul.dual_rows)
    (alone,) = (d for d in plan.dispatches if d.matmul and d.matmul.dual is None and d.group == 0)
    assert alone.outputs[0] in dual.reads and dual.group == 1 and len(plan.groups) == 3


def few_rows() -> list[Value]:
    return summed(m=4)


def large() -> list[Value]:
    return summed(m=512, n=512, k=512)


def other_extents() -> list[Value]:
    return [product() + product("y", "v", k=K + 8)]


def other_formats() -> list[Value]:
    return [product() + leaf("y", M, K) @ ops.parameter_f16("v", (K, N))]


@pytest.mark.parametrize("build", [few_rows, large, other_extents, other_formats])
def test_other_products_stay_apart(build: Callable[[], list[Value]]) -> None:
    plan = plan_of(graph_of(build))
    assert not any(d.matmul is not None and d.matmul.dual is not None for d in plan.dispatches)


def test_rows_of_a_second_product_are_not_normalized() -> None:
    def build() -> list[Value]:
        normed = ops.rms_norm(leaf("x", M, K), leaf("n", K), 1e-5)
        return [normed @ leaf("w", K, N) + ops.softmax(leaf("y", M, K)) @ leaf("v", K, N)]

    g = graph_of(build)
    plan = plan_of(g)
    (p,) = (d.matmul for d in plan.dispatches if d.matmul is not None)
    assert p.dual_rows and p.norm is None
    agrees(g, plan, "cpu")


# plans that do not fit ------------------------------------------------------------------------------------------------
def with_dispatch(plan: ExecutionPlan, d: Dispatch) -> ExecutionPlan:
    return replace(plan, dispatches=tuple(d if e.index == d.index else e for e in plan.dispatches))


# order inside of a group ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reorder", [False, True])
def test_dispatches_with_long_workgroups_begin_a_group(reorder: bool) -> None:
    """In a step of training; in program order where dispatches do not merge, and one by one in `serial`."""
    graph = differentiate(CASES["xf"].graph(True))[0]

    def works(target: Target, **options: bool) -> list[list[float]]:
        plan = plan_of(graph, target, "training", **options)
        each = [d.flops / math.prod(d.workgroups) for d in plan.dispatches]
        phases = [list(g) for group in plan.groups for _, g in groupby(
            range(group.start, group.stop), lambda i: plan.dispatches[i].phase)]  # fmt: skip
        return [[each[i] for i in found] for found in phases if len(found) > 1]

    merged_works = works(MERGED, reorder=reorder)
    assert len(merged_works) > 10 and all(found == sorted(found, reverse=True) for found in merged_works)
    assert any(found != sorted(found, reverse=True) for found in works(APART, reorder=reorder))
    assert works(MERGED, serial=True) == []


# parts that a reader adds ---------------------------------------------------------------------------------------------
def turned(n: int = 128) -> list[Value]:
    """Rotary positions on a product in parts of K, as on queries and keys."""
    return [(ops.rope(product(m=96, n=n, k=4096), theta=1e4, head_dim=16) * 0.1).exp().mean_all()]


@pytest.mark.parametrize("n", [128, 144])
def test_a_kernel_adds_the_parts_of_a_product_as_it_reads_them(n: int) -> None:
    g = graph_of(lambda: turned(n))
    plan, apart = plan_of(g), plan_of(g, APART)
    made, rope = plan.dispatches[:2]
    (split,) = (d.matmul.parts for d in plan.dispatches if d.matmul is not None)
    assert split > 1 and made.type.shape == (split, 96, n) and made.label.startswith(f"MatMul[96x{n}x4096]")
    assert rope.label.startswith("Rope[") and [o.parts for o in rope.operands] == [split]
    assert rope.operands[0].buffer == made.output and rope.operands[0].shape == (96, n)
    assert len(plan.groups) == len(apart.groups) - 1 and apart.dispatches[1].kernel == "reduce"
    (matmul,) = (node.id for node in g.nodes if node.op == "matmul")
    assert matmul in made.origin and matmul not in plan.node_buffers and from_json(to_json(plan)) == plan
    assert f"Operand 0 is a product in {split} parts of K" in reason(rope, wgsl_with_parts(rope)[0])
    assert "parts of K" not in reason(apart.dispatches[2], wgsl_with_parts(apart.dispatches[2])[0])
    needs("wgpu")
    for device in ("cpu", "wgpu"):
        agrees(g, plan, device)


NORMS: dict[str, Callable[[Value], Value]] = {
    "RmsNorm": lambda h: ops.rms_norm(h, leaf("g", 128), eps=1e-5),
    "LayerNorm": lambda h: ops.layer_norm(h, leaf("g", 128), leaf("c", 128), eps=1e-5),
    "Softmax": lambda h: ops.softmax(h),
    "Rope": lambda h: ops.rope(h, theta=1e4, head_dim=16),
}


def added(make: Callable[[Value], Value], chain: bool, behind: bool) -> list[Value]:
    """A kernel behind a product in parts of K, perhaps with a residual and a bias, that something else reads later."""
    p = product(m=96, n=128, k=4096)
    h = ops.bias_add(leaf("r", 96, 128) + p * 0.25, leaf("b", 128)) if chain else p
    made = ops.tanh(make(h))
    return [made @ leaf("v", 128, 8), *([(made @ leaf("u", 128, 128) + h).mean_all()] if behind else [])]


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_a_kernel_runs_the_chain_of_a_product_in_parts_and_stores_what_others_read(
    name: str, behind: bool, chain: bool
) -> None:
    g = graph_of(lambda: added(NORMS[name], chain, behind))
    plan, apart = plan_of(g), plan_of(g, APART)
    made, kernel = plan.dispatches[:2]
    assert made.matmul is not None and (split := made.matmul.parts) > 1 and kernel.operands[0].parts == split
    assert kernel.operands[0].buffer == made.output and len(plan.groups) < len(apart.groups)
    assert kernel.label.startswith(f"{name}(scale,add,bias_add)[" if chain else f"{name}[")
    op = "bias_add" if chain else "matmul"
    sums = [n.id for n in g.nodes if n.op == op and n.type.shape == (96, 128)][:1]
    assert [r.node for r in kernel.results if r.value == Arg("read")] == sums * behind
    assert (sums[0] in plan.node_buffers) == behind and set(sums) <= {*made.origin, *kernel.origin}
    assert not behind or sums[0] in kernel.origin
    scaled = [n.id for n in g.nodes if n.op == "scale"]
    assert [plan.fused_nodes[node][0] for node in scaled] == [kernel.index] * chain
    text, _, parts = wgsl_with_parts(kernel)
    read = {"read 0", *(f"read {k}" for k in range(len(kernel.operands) - 2 * chain, len(kernel.operands)))}
    assert read <= {part for part, _ in parts} and read <= {f"read {r.operand}" for r in coverage(kernel).reads}
    said = reason(kernel, text)
    assert ("made of it on the way, by scale, add, bias_add." in said) == chain
    assert ("Beside its result it stores a value that it has on the way" in said) == behind
    assert f"is a product in {split} parts of K" in said and from_json(to_json(plan)) == plan
    needs("wgpu")
    for device in ("cpu", "wgpu"):
        agrees(g, plan, device)


def test_a_norm_stores_its_statistic_and_the_sum_that_gradients_read_later() -> None:
    with Graph() as g:
        h = leaf("r", 96, 128) + leaf("x", 96, 4096) @ ops.parameter("w", (4096, 128))
        made = ops.tanh(ops.rms_norm(h, ops.parameter("g", (128,)), eps=1e-5)) @ ops.parameter("v", (128, 64))
        g.set_outputs({"loss": ops.mse_loss(made + h[:, :64], leaf("y", 96, 64))})
    graph, _ = differentiate(g)
    plan, apart = plan_of(graph, mode="training"), plan_of(graph, APART, mode="training")
    norm = next(d for d in plan.dispatches if d.label.startswith("RmsNorm(add)["))
    assert norm.custom is not None and norm.custom.results == ("size",) and norm.operands[0].parts > 1
    assert [r.value for r in norm.results] == [None, None, Arg("read")] and len(plan.groups) < len(apart.groups)
    assert norm.results[2].node == next(n.id for n in graph.nodes if n.op == "add")
    readers = [d for d in plan.dispatches if norm.results[2].buffer in d.reads]
    assert len(readers) > 1 and all(d.index > norm.index for d in readers)
    assert any(d.label.startswith("RmsNormGradX") for d in readers)
    needs("wgpu")
    feeds = feeds_of(graph)
    wanted = [evaluate(graph, feeds)[id] for id in graph.output_ids]
    for device in ("cpu", "wgpu"):
        program = load(device_of(device), plan, feeds)
        program.step(None)
        for got, want in zip(outputs(program), wanted, strict=True):
            np.testing.assert_allclose(got, want.reshape(got.shape), rtol=2e-3, atol=2e-3 * np.abs(want).max())
        program.close()


def test_a_product_is_added_first_where_others_read_it_before_or_a_kernel_reads_more() -> None:
    def several(case: str) -> list[Value]:
        p = product(m=96, n=128, k=64 if case == "whole" else 4096)
        first = [p.mean_all()] if case == "read before" else []
        if case == "once more":
            return [ops.softmax(p) + p]
        made = ops.argmax(p, 1) if case == "kernel" else ops.rope(p, theta=1e4, head_dim=16)
        return [made, *first, *([p] if case == "output" else [])]

    for case in ("whole", "kernel", "read before", "once more", "output"):
        plan = plan_of(graph_of(lambda case=case: several(case)))  # type: ignore[misc]
        assert not any(o.parts > 1 for d in plan.dispatches for o in d.operands), case
        assert ("reduce" in {d.kernel for d in plan.dispatches[:2]}) is (case != "whole"), case
    assert not any(o.parts > 1 for d in plan_of(graph_of(turned), APART).dispatches for o in d.operands)


def test_parts_that_an_operand_does_not_have_are_refused() -> None:
    plan = plan_of(graph_of(turned))
    rope = plan.dispatches[1]
    (x,), split = rope.operands, rope.operands[0].parts
    for wrong, message in (
        (replace(x, parts=split + 1), "elements"),
        (replace(x, parts=0), "several in f32"),
        (replace(x, parts=-1), "several in f32"),
        (replace(x, access="scalar"), "several in f32"),
        (replace(x, dtype=DType.f16), "several in f32"),
    ):
        with pytest.raises(CompileError, match=message):
            verify(with_dispatch(plan, replace(rope, operands=(wrong,))))
    made = plan.dispatches[0]
    half = replace(made.operands[0], parts=2, shape=(48, 4096))
    with pytest.raises(CompileError, match="at most operand 0 of a kernel of its own"):
        verify(with_dispatch(plan, replace(made, operands=(half, made.operands[1]))))
    assert source_hash(replace(rope, operands=(replace(x, parts=1),))) != rope.source_hash


def test_results_that_a_dispatch_cannot_store_are_refused() -> None:
    plan = plan_of(graph_of(stored_sum))
    d = merged(plan)
    first, second = d.results
    wrong = TensorType((M, N), DType.u32)
    for results, message in (
        ((first, replace(second, value=Arg("op", len(d.epilogue)))), "a value of its epilogue"),
        ((first, replace(second, value=Arg("op", -1))), "a value of its epilogue"),
        ((first, replace(second, value=Arg("dual"))), "a value of its epilogue"),
        ((first, replace(second, value=Arg("operand"))), "a value of its epilogue"),
        ((first, replace(second, value=Arg("read"))), "a value of its epilogue"),
        ((first, replace(second, value=None)), "outputs: given 2, wanted 1"),
        ((replace(first, value=Arg("op", 0)), replace(second, value=None)), "outputs: given 1, wanted 1"),
        ((first, replace(second, type=wrong)), "f32 elements"),
    ):
        with pytest.raises(CompileError, match=message):
            verify(with_dispatch(plan, replace(d, results=results)))


def test_a_chain_has_no_line_of_what_a_kernel_reads() -> None:
    plan = plan_of(graph_of(stored_sum))
    d = merged(plan)
    line = replace(d.epilogue[0], args=(Arg("read"), *d.epilogue[0].args[1:]))
    with pytest.raises(CompileError, match="given read 0, wanted an earlier line or an operand"):
        verify(with_dispatch(plan, replace(d, epilogue=(line, *d.epilogue[1:]))))


def test_second_products_that_do_not_fit_are_refused() -> None:
    plan = plan_of(graph_of(summed))
    (d,) = plan.dispatches
    assert d.matmul is not None
    half = replace(d.operands[3], dtype=DType.f16)
    few = plan_of(graph_of(lambda: summed(m=4))).dispatches[0]
    assert few.variant.startswith("vector")
    for wrong in (
        replace(d, operands=d.operands[:3]),
        replace(d, operands=(*d.operands[:3], half)),
        replace(d, matmul=replace(d.matmul, m=4), variant=few.variant, params=few.params),
    ):
        with pytest.raises(CompileError, match="dual product"):
            verify(with_dispatch(plan, wrong))


def test_equal_digests_mean_equal_results() -> None:
    d = merged(plan_of(graph_of(stored_sum)))
    first, second = d.results
    others = [replace(d, results=(first, replace(second, value=v))) for v in (Arg("acc"), Arg("op", 1), Arg("op", 0))]
    found = [source_hash(each) for each in others]
    assert len(set(found)) == 3 and found[2] == d.source_hash
    (both,) = plan_of(graph_of(summed)).dispatches
    assert both.matmul is not None
    assert source_hash(replace(both, matmul=replace(both.matmul, dual_rows=False))) != both.source_hash


def test_the_picture_of_a_kernel_shows_the_rows_of_a_second_product() -> None:
    (d,) = plan_of(graph_of(summed)).dispatches
    assert [(r.operand, r.place) for r in coverage(d).reads] == [(0, "a"), (1, "b"), (2, "b"), (3, "a")]
    text, _, parts = wgsl_with_parts(d)
    said = reason(d, text)
    assert "Two products in one kernel (a dual GEMM)" in said and "the same place of both operands" in said
    (alone,) = plan_of(graph_of(lambda: [product()])).dispatches
    one, both = (int(re.findall(r"Per result (\d+) bytes are loaded", s)[0]) for s in (reason(alone, ""), said))
    assert abs(both - 2 * one) <= 1  # rounded
    assert {"read 2", "read 3"} <= {part for part, _ in parts}
    stored = merged(plan_of(graph_of(gated)))
    text, lines, _ = wgsl_with_parts(stored)
    assert "Beside its result it stores 3 values that it has on the way" in reason(stored, text)
    assert "stores a value that" in reason(merged(plan_of(graph_of(stored_sum))), "") and "Beside" not in said
    assert {r.node for r in stored.results} <= {n for _, nodes in lines for n in nodes}


# networks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "groups"), [("xf", 68), ("mlp", 9)])
def test_training_has_few_barrier_groups_on_hardware(name: str, groups: int) -> None:
    """Of 4 layers 68 with gates apart, that were 86: both products beside the gate, and one dispatch for the gradients
    of two products in two places."""
    apart = SessionConfig(optimize={"disable": PACKING})
    plan = compiled(CASES[name].graph(True), apart, replace(MERGED, limits=replace(LIMITS, storage_buffers=64))).plan
    assert len(plan.groups) == groups
