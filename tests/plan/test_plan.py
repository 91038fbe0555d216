"""Compilation: labels, fusion, provenance, barrier groups, memory, the codec, and what the checker refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import networks
import numpy as np
import plans
import pytest
from places import HELPERS, REPO
from plans import graph_of, labels
from random_graphs import random_feeds, random_graph

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError, LoadError
from gdlab.devices.cpu.cpu_device import CpuDevice
from gdlab.graph import Value
from gdlab.op import Axis
from gdlab.plan import compile
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.lower import fold_stages
from gdlab.plan.records import ExecutionPlan, NodeLane
from gdlab.plan.target import CompileOptions
from gdlab.plan.terms import flat_access

CPU = CpuDevice()
UNFUSED = CompileOptions(fuse_dispatches=False)


# labels and fusion ----------------------------------------------------------------------------------------------------
def mm(m: int, k: int, n: int) -> Value:
    return ops.input("a", (m, k)) @ ops.input("b", (k, n))


LABELS: list[tuple[Callable[[], Value | list[Value]], list[str]]] = [
    (lambda: mm(3, 4, 5), ["MatMul[3x5x4]"]),
    (lambda: ops.relu(mm(3, 4, 5)), ["MatMul[3x5x4] + relu"]),
    (lambda: ops.matmul_at(ops.input("a", (4, 3)), ops.input("b", (4, 5))), ["MatMulAT[3x5x4]"]),
    (lambda: ops.matmul_bt(ops.input("a", (3, 4)), ops.input("b", (5, 4))), ["MatMulBT[3x5x4]"]),
    (
        lambda: ops.relu(
            ops.fused_matmul_add(ops.input("a", (32, 784)), ops.input("b", (784, 128)), ops.input("c", (128,)), "row")
        ),
        ["FusedMatMulAdd[32x128x784] + relu"],
    ),
    (
        lambda: ops.fused_matmul_bt_add(ops.input("a", (3, 4)), ops.input("b", (5, 4)), ops.input("c", (3, 5))),
        ["FusedMatMulBTAdd[3x5x4]"],
    ),
    (lambda: ops.bias_add(mm(3, 4, 5), ops.input("c", (5,))), ["MatMul[3x5x4] + bias_add"]),
    (
        lambda: ops.sigmoid(ops.input("a", (64, 64)) * ops.input("b", (64, 64))),
        ["Pointwise(mul,sigmoid)[4096]"],
    ),
    (lambda: ops.sum_rows(ops.input("a", (64, 128))), ["SumRows[64x128]"]),
    (lambda: ops.sum_inner(ops.input("a", (64, 10))), ["SumInner[64x10]"]),
    (lambda: ops.mean_all(ops.input("a", (64, 10))), ["MeanAll[640]"]),
    (lambda: ops.max(ops.input("a", (2, 3, 4)), (1,)), ["Max[2x3x4]"]),
    (lambda: ops.sum(ops.input("a", (2, 3, 4)), (0, 2)), ["SumInner[6x4]", "SumRows[2x3]"]),
    (lambda: -ops.sum_all(ops.square(ops.input("a", (7,)))), ["SumAll(square)[7] + neg"]),
    (lambda: ops.log_softmax(ops.input("a", (64, 10))), ["LogSoftmax[64x10]"]),
    (lambda: ops.softmax(ops.input("a", (2, 3, 4))).scale(2.0), ["Softmax[6x4] + scale"]),
    (lambda: ops.transpose(ops.input("a", (3, 4))), ["Transpose[12]"]),
    (lambda: ops.full((3, 4), 2.0), ["Pointwise(full)[12]"]),
    (lambda: ops.input("a", (3, 4)), ["Copy[12]"]),
    (lambda: ops.input_u32("a", (3,)), ["Copy[3]"]),
    (lambda: ops.reshape(ops.parameter("w", (3, 4)), (12,)), ["Copy[12]"]),
    (
        lambda: ops.cross_entropy_loss(ops.input("z", (32, 10)), ops.input("y", (32, 10))),
        ["LabelLogLikelihood[32x10]", "MeanAll[32] + neg"],
    ),
]


@pytest.mark.parametrize("build, wanted", LABELS, ids=[wanted[0] for _, wanted in LABELS])
def test_labels(build: Callable[[], Value | list[Value]], wanted: list[str]) -> None:
    assert labels(graph_of(build)) == wanted


def test_the_training_plan_of_the_tour() -> None:
    g, _ = differentiate(networks.mlp())
    plan = compile(g, mode="training", target=CPU.target)
    assert [(d.phase, d.group, d.label) for d in plan.dispatches] == [
        ("forward", 0, "MatMul[64x128x64] + add + relu"),
        ("forward", 1, "MatMul[64x10x128] + add"),
        ("forward", 2, "LabelLogLikelihood[64x10]"),
        ("forward", 3, "MeanAll[64] + neg"),
        ("backward", 4, "SoftmaxResidual[64x10] + mul"),
        ("backward", 5, "SumRows[64x10]"),
        ("backward", 5, "MatMulAT[128x10x64]"),
        ("backward", 5, "MatMulBT[64x128x10] + relu_grad"),
        ("backward", 6, "SumRows[64x128]"),
        ("backward", 6, "MatMulAT[64x128x64]"),
    ]
    assert plan.passes == 1
    assert [plan.buffers[b].name for b, _ in plan.param_grad_pairs] == ["w1", "b1", "w2", "b2"]
    assert [plan.buffers[b].name for _, b in plan.param_grad_pairs] == ["∂w1", "∂b1", "∂w2", "∂b2"]
    assert plan.loss_buffer == plan.output_buffers[0]
    assert plan.buffers[plan.loss_buffer].kind == "loss"


def test_a_chain_is_one_dispatch_and_a_second_reader_outside_ends_it() -> None:
    def chain() -> list[Value]:
        x = ops.input("x", (8, 4))
        h = ops.tanh(x)
        return [ops.exp(h).named("e"), ops.sum_all(h)]

    g = graph_of(chain)
    plan = compile(g, mode="inference")
    assert [d.label for d in plan.dispatches] == ["Pointwise(tanh)[32]", "Pointwise(exp)[32]", "SumAll[32]"]
    assert [(m.label, m.reason) for m in plan.missed] == [("Tanh+Exp", "multi_use")]
    assert "another dispatch" in plan.missed[0].detail


def test_an_operand_that_occurs_twice_is_one_binding() -> None:
    (d,) = compile(graph_of(lambda: (x := ops.input("x", (8,))) * x), mode="inference").dispatches
    assert len(d.operands) == 1 and d.bindings == ((0, "r"), (1, "w"))


def test_products_of_a_tensor_with_itself_have_two_operands_and_one_binding() -> None:
    g = graph_of(lambda: ops.matmul_bt(x := ops.input("x", (5, 4)), x))
    (d,) = compile(g, mode="inference").dispatches
    assert [o.buffer for o in d.operands] == [0, 0] and d.bindings == ((0, "r"), (1, "w"))
    x = plans.feeds_of(g)["x"]
    np.testing.assert_allclose(plans.run(CPU, g, {"x": x})[0], x @ x.T, rtol=1e-5)


def test_fills_and_broadcasts_cost_neither_buffer_nor_dispatch() -> None:
    def build() -> Value:
        x, row, column = ops.input("x", (6, 4)), ops.input("r", (4,)), ops.input("c", (6, 1))
        return x * row + column + ops.constant([3.0], (1,)).broadcast_to((6, 4))

    g = graph_of(build)
    plan = compile(g, mode="inference")
    (d,) = plan.dispatches
    assert [(o.access, o.extent) for o in d.operands] == [("full", 1), ("row", 4), ("column", 4)]
    assert [b.kind for b in plan.buffers] == ["input"] * 3 + ["output"]
    f = plans.feeds_of(g)
    np.testing.assert_allclose(plans.run(CPU, g, f)[0], f["x"] * f["r"] + f["c"] + 3, rtol=1e-6)


def test_ops_on_literals_alone_are_literals_unless_they_are_not_finite() -> None:
    g = graph_of(lambda: [ops.input("x", (3,)) * ops.exp(ops.full((3,), 1.0).scale(0.5)), ops.log(ops.full((2,), 0.0))])
    assert labels(g) == ["Pointwise(mul)[3]", "Pointwise(log)[2]"]
    got = plans.run(CPU, g, {"x": np.ones(3)})
    np.testing.assert_allclose(got[0], np.exp(0.5), rtol=1e-6)
    assert np.all(got[1] == -np.inf)


def test_a_constant_with_a_nan_stays_a_buffer() -> None:
    g = graph_of(lambda: ops.input("x", (3,)) * ops.constant([np.nan], (1,)))
    assert len(compile(g, mode="inference").constant_buffers) == 1
    assert np.isnan(plans.run(CPU, g, {"x": np.ones(3)})[0]).all()


def test_protected_values_stay_readable() -> None:
    def build() -> list[Value]:
        h = ops.relu(ops.input("x", (4, 4))).named("h")
        return [ops.exp(h), h, ops.reshape(h, (16,))]

    plan = compile(graph_of(build), mode="inference")
    assert [d.label for d in plan.dispatches] == ["Pointwise(relu)[16]", "Pointwise(exp)[16]"]
    assert plan.output_buffers[1] == plan.output_buffers[2] != plan.output_buffers[0]
    assert plan.missed[0].reason == "is_output"


def test_a_body_shares_its_work_with_another() -> None:
    def build() -> list[Value]:
        z = ops.input("z", (4, 3))
        return [ops.normalize_inner_sum(z, 1e-5), ops.sum_inner(z)]

    plan = compile(graph_of(build), mode="inference")
    assert [d.label for d in plan.dispatches][:1] == ["SumInner[4x3]"]
    assert sum("SumInner" in d.label for d in plan.dispatches) == 1
    assert plan.dispatches[0].origin == (1, 2)


def test_the_binding_limit_ends_a_chain() -> None:
    def build() -> Value:
        xs = [ops.input(f"x{i}", (4,)) for i in range(12)]
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    g = graph_of(build)
    plan = compile(g, mode="inference")
    assert max(len(d.bindings) for d in plan.dispatches) <= 8 and len(plan.dispatches) == 2
    assert "bindings" in {m.reason for m in plan.missed}
    f = plans.feeds_of(g)
    np.testing.assert_allclose(plans.run(CPU, g, f)[0], sum(f.values()), rtol=1e-5)


def test_long_chains_are_cut() -> None:
    def build() -> Value:
        x = ops.input("x", (4,))
        for _ in range(200):
            x = ops.tanh(x)
        return x

    plan = compile(graph_of(build), mode="inference")
    assert [len(d.epilogue) for d in plan.dispatches] == [8, 64, 64, 64]


def test_phases_come_from_lanes_or_from_the_gradients() -> None:
    g = plans.regression()
    default = compile(g, mode="training")
    assert [d.phase for d in default.dispatches] == ["forward"] * 3 + ["backward"] * 3
    lanes = [NodeLane("forward", n.id) for n in g]
    assert {d.phase for d in compile(g, mode="training", lanes=lanes).dispatches} == {"forward"}
    with pytest.raises(CompileError, match=f"compile: lanes: given 1 lanes, wanted {len(g)}, one per node"):
        compile(g, mode="training", lanes=lanes[:1])


@pytest.mark.parametrize(
    "offset, axes, shape, count, wanted",
    [
        (0, (Axis(4), Axis(1)), (3, 4), 12, ("full", 1)),
        (0, (Axis(0), Axis(1)), (3, 4), 4, ("row", 4)),
        (0, (Axis(1), Axis(0)), (3, 4), 3, ("column", 4)),
        (0, (Axis(0), Axis(0)), (3, 4), 1, ("scalar", 1)),
        (0, (Axis(2), Axis(1), Axis(0)), (3, 2, 5), 6, ("column", 5)),
        (0, (Axis(0), Axis(2), Axis(1)), (5, 3, 2), 6, ("row", 6)),
        (0, (Axis(1), Axis(3)), (3, 4), 12, None),  # a transpose
        (0, (Axis(1), Axis(0), Axis(2)), (2, 3, 2), 4, None),  # repeated in the middle
        (4, (Axis(4), Axis(1)), (2, 4), 12, None),  # a slice
        (0, (Axis(4, lo=1, extent=3), Axis(1)), (5, 4), 12, None),  # padded
        (0, (Axis(1), Axis(1)), (1, 4), 4, ("full", 1)),
    ],
)
def test_gathers_that_are_a_flat_access(
    offset: int, axes: tuple[Axis, ...], shape: tuple[int, ...], count: int, wanted: object
) -> None:
    assert flat_access(offset, axes, shape, count) == wanted


def test_folds_over_separated_axes_go_in_stages() -> None:
    assert fold_stages((2, 3, 4), (0, 2)) == [(6, 4, 1), (1, 2, 3)]
    assert fold_stages((2, 1, 4), (0, 1, 2)) == [(1, 8, 1)]
    assert fold_stages((1, 5), (0,)) == [(5, 1, 1)]
    assert fold_stages((2, 3, 4), (-1,)) == [(6, 4, 1)]


# provenance -----------------------------------------------------------------------------------------------------------
def test_every_node_reaches_a_dispatch_a_buffer_or_a_reason() -> None:
    for seed in range(60):
        g = random_graph(seed, scalar_loss=True)
        plan = compile(differentiate(g)[0], mode="training")
        computed = {n for d in plan.dispatches for n in d.origin}
        held = {n for n, b in plan.node_buffers.items() if plan.buffers[b].kind in ("input", "parameter", "constant")}
        told = {n for n, (_, reason) in plan.fused_nodes.items() if reason.startswith(("dead", "folded", "aliased"))}
        assert computed | held | told == set(range(len(plan.graph)))
        without = set(range(len(plan.graph))) - plan.node_buffers.keys()
        assert without <= plan.fused_nodes.keys()
        assert all(d.origin for d in plan.dispatches)


def test_reasons_in_words() -> None:
    def build() -> Value:
        x = ops.input("x", (6, 4))
        ops.exp(x)
        half = ops.full((6, 4), 0.5)
        row = ops.input("r", (4,)).broadcast_to((6, 4))
        return ops.reshape(ops.tanh(x * half) + row, (24,)).relu()

    plan = compile(graph_of(build), mode="inference")
    told = {plan.graph.nodes[n].op: reason for n, (_, reason) in plan.fused_nodes.items()}
    assert told == {
        "exp": "dead: no output needs it",
        "full": "folded: the literal 0.5, in dispatch 0",
        "broadcast_to": "operand view: by row, reads %3, in dispatch 0",
        "mul": "fused, in dispatch 0",
        "tanh": "fused, in dispatch 0",
        "add": "fused, in dispatch 0",
        "reshape": "aliased: whole, reads %7, in dispatch 0",
    }
    assert plan.dispatches[0].origin == (2, 4, 5, 6, 7, 8, 9)  # neither the leaves nor what is dead


# barrier groups -------------------------------------------------------------------------------------------------------
def test_groups_name_the_hazard_that_began_them() -> None:
    plan = compile(plans.regression(), mode="training")
    assert plan.groups[0].because == ()
    first = plan.groups[1].because[0]
    assert (first.before, first.after, first.kind) == (0, 1, "raw")
    assert plan.buffers[first.buffer].name == "h"


def test_serial_gives_every_dispatch_its_own_group() -> None:
    plan = compile(plans.regression(), mode="training", options=CompileOptions(serial=True))
    assert [(g.start, g.stop) for g in plan.groups] == [(i, i + 1) for i in range(len(plan.dispatches))]


def permuted(plan: ExecutionPlan, seed: int) -> ExecutionPlan:
    """The dispatches of every group in another order."""
    rng = np.random.default_rng(seed)
    order = [int(i) for g in plan.groups for i in g.start + rng.permutation(g.stop - g.start)]
    return replace(plan, dispatches=tuple(replace(plan.dispatches[i], index=k) for k, i in enumerate(order)))


def test_any_order_inside_a_group_gives_identical_bits() -> None:
    moved = 0
    for seed in range(25):
        g = differentiate(random_graph(seed, scalar_loss=True))[0]
        feeds = random_feeds(g, seed)
        plan = compile(g, mode="training", target=CPU.target)
        other = permuted(plan, seed)
        moved += other.dispatches != plan.dispatches
        results = []
        for p in (plan, other):
            program = plans.load(CPU, p, feeds)
            program.step(None)
            results.append([a.tobytes() for a in plans.outputs(program)])
        assert results[0] == results[1]
    assert moved > 10


# memory ---------------------------------------------------------------------------------------------------------------
def test_lives_of_tenants_lie_apart_and_slots_are_never_larger_than_the_sum() -> None:
    shared = 0
    for seed in range(40):
        plan = compile(differentiate(random_graph(seed, scalar_loss=True))[0], mode="training")
        memory = plan.memory
        for slot in memory.slots:
            lives = sorted((memory.intervals[b].first_group, memory.intervals[b].last_group) for b in slot.tenants)
            assert all(a[1] < b[0] for a, b in zip(lives, lives[1:], strict=False))
            shared += len(slot.tenants) > 1
            assert slot.nbytes % 256 == 0
        assert memory.physical_bytes <= sum(-(-b.nbytes // 256) * 256 for b in plan.buffers)
        assert memory.peak_bytes <= memory.physical_bytes
        assert memory.logical_bytes == sum(plan.buffer_sizes)
    assert shared > 10


def test_pins_and_their_reasons() -> None:
    plan = compile(plans.regression(), mode="training", options=CompileOptions(pin=("h",)))
    reasons = {plan.buffers[b].name: why for b, why in plan.memory.pinned.items()}
    assert reasons["w"] == "kept from step to step"
    assert reasons["x"] == "written by the host before a step"
    assert reasons["∂w"] == "read by the update and by the host"
    assert reasons["loss"] == "read by the host after a step"
    assert reasons["h"] == "pinned by option"


def test_without_aliasing_every_buffer_has_its_own_slot_and_bits_stay_equal() -> None:
    for seed in range(20):
        g = differentiate(random_graph(seed, scalar_loss=True))[0]
        feeds = random_feeds(g, seed)
        plan = compile(g, mode="training", options=CompileOptions(alias=False))
        assert len(plan.memory.slots) == len(plan.buffers)
        shared = plans.run(CPU, g, feeds, "training")
        alone = plans.run(CPU, g, feeds, "training", CompileOptions(alias=False))
        assert [a.tobytes() for a in shared] == [a.tobytes() for a in alone]


def test_without_fusion_every_op_is_a_dispatch_and_values_stay() -> None:
    g = plans.regression()
    feeds = plans.feeds_of(g)
    fused, plain = compile(g, mode="training"), compile(g, mode="training", options=UNFUSED)
    assert len(plain.dispatches) > len(fused.dispatches)
    assert all(len(d.prologue) == 0 and len(d.epilogue) <= 1 for d in plain.dispatches)
    for a, b in zip(
        plans.run(CPU, g, feeds, "training"), plans.run(CPU, g, feeds, "training", UNFUSED), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# same input, same plan ------------------------------------------------------------------------------------------------
def test_json_comes_back_equal() -> None:
    for graph in (plans.regression(), differentiate(networks.mlp())[0], differentiate(networks.transformer())[0]):
        plan = compile(graph, mode="training")
        text = to_json(plan)
        again = from_json(text)
        assert again == plan and to_json(again) == text
        assert again != compile(graph, mode="training", options=UNFUSED)


PROGRAM = """
import networks, hashlib
from gdlab.autodiff import differentiate
from gdlab.plan import compile
from gdlab.plan.codec import to_json
plan = compile(differentiate(networks.transformer())[0], mode="training")
print(hashlib.sha256(to_json(plan).encode()).hexdigest())
"""


def test_two_processes_make_the_same_json() -> None:
    path = os.pathsep.join([str(HELPERS), str(REPO)])
    seen = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM]
        seen.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(seen) == 1 and len(seen.pop()) == 65


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"mode": "training"}', "null"])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match="plan: JSON: given"):
        from_json(text)


def test_equal_digests_mean_equal_kernels() -> None:
    import gdlab.kernels  # noqa: F401 (puts the joiner behind plan.wgsl)

    texts: dict[str, str] = {}
    for seed in range(30):
        plan = compile(differentiate(random_graph(seed, scalar_loss=True))[0], mode="training")
        for d in plan.dispatches:
            assert texts.setdefault(d.source_hash, plan.wgsl(d.index)[0]) == plan.wgsl(d.index)[0]
    assert len(set(texts.values())) == len(texts)
