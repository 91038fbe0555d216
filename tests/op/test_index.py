"""Indices: their bounds follow from the graph, dtypes are kept, and what is computed out of range reads zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import op_checks
import plans
import pytest
from machine import needs

import gdlab as gd
from gdlab.base.errors import DTypeError, GdlabError, ShapeError
from gdlab.devices.choose import device as open_device
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.plan import compile
from gdlab.plan.target import CompileOptions, Limits, Target

HARDWARE = Target("wgpu", "hardware", Limits())


# dtypes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.reshape((6, 4)), lambda x: x.T, lambda x: x.permute((1, 0)), lambda x: x[1:, ::2], lambda x: x[0],
        lambda x: x.pad((1, 0), (0, 2), 3), lambda x: x.broadcast_to((2, 4, 6)), lambda x: gd.concat([x, x], 1),
        lambda x: x.split([1, 3], 0)[1], lambda x: x.materialize(), lambda x: x.stop_gradient(),
    ],
)  # fmt: skip
def test_what_moves_indices_keeps_them_integers(move: Callable[[Value], Value], device: str) -> None:
    data = np.arange(24, dtype=np.uint32).reshape(4, 6) + np.uint32(2**31)  # as f32 they would be rounded
    with Graph() as g:
        moved = move(gd.input_u32("x", (4, 6)))
        g.output(moved)
    assert moved.type.dtype is gd.u32
    with gd.build_inference_session(g, device=device) as session:
        session.set_input_u32("x", data)
        session.step()
        got = session.read_output()
    assert got.dtype == np.uint32
    assert np.array_equal(got, evaluate(g, {"x": data})[moved.id])


def test_arithmetic_with_indices_is_refused() -> None:
    with Graph() as g:
        i = gd.input_u32("i", (3,))
        x = gd.input("x", (3,))
        calls = (lambda: i + x, lambda: i.relu(), lambda: gd.concat([i, x], 0), lambda: x.gather(x, 0), lambda: i.sum())
        for call in calls:
            with pytest.raises(DTypeError):
                call()
    assert len(g) == 2


# bounds ---------------------------------------------------------------------------------------------------------------
def test_the_bound_of_an_index_input_is_the_smallest_extent_that_it_numbers() -> None:
    with Graph() as g:
        i, j, k = (gd.input_u32(n, (2, 3)) for n in "ijk")
        table = gd.parameter("table", (7, 4))
        gd.embedding(i[:, 1:].reshape(4), table)
        moved = gd.concat([i, j], 1).T.reshape(12)
        g.output(gd.gather(table, moved, 1))
        g.output(gd.gather(table, k.to_f32().scale(0.5).to_u32().reshape(6), 0))
        g.output(gd.scatter_add(j.reshape(6), gd.input("src", (6, 2)), 50))
    assert compile(g, mode="inference").index_bounds == {"i": 4, "j": 4}


def test_an_index_out_of_range_is_refused_with_its_position_and_nothing_is_written(device: str) -> None:
    with Graph() as g:
        g.output(gd.embedding(gd.input_u32("i", (2, 2)).reshape(4), gd.parameter("t", (3, 2))).sum_all())
    with gd.build_inference_session(g, device=device) as session:
        session.set_parameter("t", np.arange(6))
        session.set_input_u32("i", [[0, 1], [2, 2]])
        for call in (session.set_input_u32, session.set_input):
            with pytest.raises(ShapeError, match=r"'i': given index 3 at position 2, wanted 0 … 2"):
                call("i", [[0, 1], [3, 9]])
        session.step()
        assert session.read_loss() == 24.0


def test_a_computed_index_out_of_range_reads_zeros_and_receives_no_gradient(device: str) -> None:
    with Graph() as g:
        t = gd.parameter("t", (3, 2))
        i = gd.input("i", (4,)).to_u32()
        g.output(gd.embedding(i, t).sum_all() + gd.gather(t.T, i, 1).sum_all())
    with gd.build_session(g, device=device) as session:
        session.set_parameter("t", [[1, 2], [3, 4], [5, 6]])
        session.set_input("i", [2.0, 3.0, 1e9, 0.0])
        session.step()
        assert session.read_loss() == 28.0
        assert session.read_param_grad("t").tolist() == [[2, 2], [0, 0], [2, 2]]


# sums in order --------------------------------------------------------------------------------------------------------
def test_rows_are_added_in_order_of_the_indices(device: str) -> None:
    data = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32)  # 1 in order; sorted or in pairs 2, 0
    with Graph() as g:
        g.output(gd.scatter_add(gd.input_u32("i", (4,)), gd.input("x", (4, 1)), 2))
    if device == "cpu":
        with gd.build_inference_session(g, device=device) as session:
            session.set_input_u32("i", np.ones(4, int))
            session.set_input("x", data)
            session.step()
            assert session.read_output().tolist() == [[0.0], [1.0]]
        return
    plan = compile(g, mode="inference", target=HARDWARE)
    program = plans.load(open_device("wgpu"), plan, {"i": np.ones(4), "x": data})
    program.step(None)
    assert plans.outputs(program)[0].tolist() == [[0.0], [1.0]]
    program.close()


@pytest.mark.parametrize(
    ("count", "vocab", "width"), [(5, 300, 3), (400, 7, 130), (1, 1, 1), (33, 65, 17), (90, 3, 1200)]
)
def test_the_form_for_hardware_adds_the_same_rows(count: int, vocab: int, width: int) -> None:
    needs("wgpu")
    rng = np.random.default_rng(count)
    feeds = {"i": rng.integers(0, vocab, count), "x": rng.normal(size=(count, width)).astype(np.float32)}
    with Graph() as g:
        g.output(gd.scatter_add(gd.input_u32("i", (count,)), gd.input("x", (count, width)), vocab))
    plan = compile(g, mode="inference", target=HARDWARE)
    assert plan.dispatches[0].custom is not None and plan.dispatches[0].custom.file == "scatter_add_rows.wgsl"
    program = plans.load(open_device("wgpu"), plan, feeds)
    program.step(None)
    values = evaluate(g, feeds)
    out = g.output_ids[0]
    assert compare(plans.outputs(program)[0], values[out], magnitudes(g, values)[out], 2e-4) is None
    program.close()


def test_the_form_for_hardware_adds_each_row_once() -> None:
    """Of one to nine indices, which it reads in fours, the last ones all bear the number."""
    needs("wgpu")
    with Graph() as g:
        for count in range(1, 10):
            g.output(gd.scatter_add(gd.input_u32(f"i{count}", (count,)), gd.input(f"x{count}", (count, 1)), 2))
    feeds = {f"i{count}": np.ones(count) for count in range(1, 10)}
    feeds |= {f"x{count}": np.ones((count, 1), np.float32) for count in range(1, 10)}
    program = plans.load(open_device("wgpu"), compile(g, mode="inference", target=HARDWARE), feeds)
    program.step(None)
    assert [out.tolist() for out in plans.outputs(program)] == [[[0.0], [count]] for count in range(1, 10)]
    program.close()


@pytest.mark.parametrize("name", ["exclusive_cumsum", "argmax"])
def test_a_row_is_shared_by_up_to_256_lanes_on_hardware(name: str) -> None:
    needs("wgpu")
    op_checks.check_hardware_form(REGISTRY[name])


# many operands --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [7, 8, 50])
def test_any_number_of_operands_is_joined_in_kernels_that_bind_at_most_eight(count: int, device: str) -> None:
    with Graph() as g:
        parts = [gd.input(f"x{i}", (2, 1 + i % 3)) for i in range(count)]
        g.output(gd.concat(parts, 1))
    feeds = plans.feeds_of(g)
    home = open_device(device)  # type: ignore[arg-type]
    for fuse in (True, False):
        plan = compile(g, mode="inference", target=home.target, options=CompileOptions(fuse_dispatches=fuse))
        program = plans.load(home, plan, feeds)
        program.step(None)
        assert np.array_equal(plans.outputs(program)[0], np.concatenate(list(feeds.values()), 1))
        program.close()
        assert max(len(d.bindings) for d in plan.dispatches) <= 8
    assert len(plan.dispatches) == {7: 1, 8: 2, 50: 9}[count]


def test_a_copy_stays_a_copy(device: str) -> None:
    with Graph() as g:
        x = gd.input("x", (3, 4))
        copied = (x * 2).materialize()
        g.output(copied.relu() + 1)
    better, _ = gd.optimize(g, phase="inference")
    assert [n.op for n in better].count("materialize") == 1
    plan = compile(better, mode="inference", target=open_device(device).target)  # type: ignore[arg-type]
    node = next(n.id for n in better if n.op == "materialize")
    buffer = dict(plan.node_buffers)[node]
    assert [d.output for d in plan.dispatches].count(buffer) == 1
    assert len(plan.dispatches) == 3


# split ----------------------------------------------------------------------------------------------------------------
def test_split_and_concat_are_inverse() -> None:
    with Graph() as g:
        x = gd.input("x", (3, 9))
        parts = x.split((2, 3, 4), axis=-1)
        assert [p.shape for p in parts] == [(3, 2), (3, 3), (3, 4)]
        g.output(gd.concat(parts, -1))
        assert x.split([9], 1) == (x,)
    feeds = plans.feeds_of(g)
    assert np.array_equal(evaluate(g, feeds)[g.output_ids[0]], feeds["x"].astype(float))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.split([2, 3], 1), "sizes: given [2, 3], wanted ints ≥ 1 that add up to 9, axis 1 of f32[3, 9]"),
        (lambda x: x.split([0, 9], 1), "split: sizes: given [0, 9]"),
        (lambda x: x.split(3, 1), "split: sizes: given 3"),
        (lambda x: x.split([9], 2), "split: axis: given 2, wanted an axis in -2 … 1"),
        (lambda x: gd.split([1.0], [1], 0), "split: operand: given list [1.0], wanted a value of a graph"),
        (lambda x: gd.concat([], 0), "concat: values: given list [], wanted a list of at least one value"),
        (lambda x: gd.concat(x, 0), "wanted a list of at least one value"),
    ],
)  # fmt: skip
def test_a_wrong_cut_says_why(call: Callable[[Value], object], message: str) -> None:
    with Graph() as g:
        x = gd.input("x", (3, 9))
        with pytest.raises(GdlabError) as refused:
            call(x)
    assert message in str(refused.value)
    assert len(g) == 1
