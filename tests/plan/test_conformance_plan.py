"""The plan by its documented names alone: fields, dispatches, switches, order, memory, cache."""

from __future__ import annotations

import copy
import json
import struct
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.plan.records import Slot
from gdlab.plan.target import Limits, Target

KINDS = "input parameter derived constant intermediate gradient output loss scratch state".split()


def trained() -> gd.Graph:
    """mean((gelu(x·w + b)·w2 − y)²) with a constant, a named node and a shared weight."""
    with gd.Graph() as g:
        x, y = gd.input("x", (4, 6)), gd.input("y", (4, 3))
        h = gd.gelu(x @ gd.parameter("w", (6, 5)) + gd.parameter("b", (5,))).named("h")
        z = h @ gd.parameter("w2", (5, 3)) + gd.constant(np.arange(3.0), (3,))
        g.set_outputs({"loss": gd.mse_loss(z, y), "z": z})
    return g


def plan_of(graph: gd.Graph | None = None, **options: Any) -> gd.ExecutionPlan:
    return gd.compile(graph or trained(), mode="inference", **options)


# 5.1 ------------------------------------------------------------------------------------------------------------------
def test_fields_of_buffers_and_names() -> None:
    plan = gd.compile_training_graph(trained())
    assert plan.buffer_sizes == tuple(b.bytes for b in plan.buffers)
    assert [b.id for b in plan.buffers] == list(range(len(plan.buffers)))
    assert {b.kind for b in plan.buffers} <= {*KINDS}
    assert [n for n, _ in plan.param_buffers] == ["w", "b", "w2"] and [n for n, _ in plan.input_buffers] == ["x", "y"]
    assert {n: str(t) for n, t in plan.param_types.items()} == {"w": "f32[6, 5]", "b": "f32[5]", "w2": "f32[5, 3]"}
    assert str(plan.input_types["x"]) == "f32[4, 6]"
    loss = plan.buffers[plan.loss_buffer or 0]
    assert (loss.kind, loss.bytes, loss.shape, loss.name) == ("loss", 4, (1,), "loss")
    assert [plan.buffers[r].name for r in plan.output_buffers] == ["loss", "z"]
    pairs = [(plan.buffers[p], plan.buffers[g]) for p, g in plan.param_grad_pairs]
    assert [(p.name, g.kind, g.bytes == p.bytes) for p, g in pairs] == [(n, "gradient", True) for n in ("w", "b", "w2")]
    assert plan.passes == 1 and plan.phase == plan.mode == "training"
    assert plan.version >= 1 and len(plan.fingerprint) == 64


def test_constants_are_bytes_and_fills_are_numbers() -> None:
    plan = plan_of()
    ((ref, data),) = plan.constant_buffers
    assert struct.unpack("<3f", data) == (0.0, 1.0, 2.0) and plan.buffers[ref].kind == "constant"
    assert plan.fills == ()
    with gd.Graph() as g:
        x = gd.input("x", (4,))
        g.set_outputs([gd.full((2, 3), 2.5), x + gd.full((4,), 1.0)])
    filled = plan_of(g)
    assert filled.fills == ((filled.output_buffers[0], 2.5),) and filled.constant_buffers == ()


def test_every_node_has_a_buffer_a_fate_or_both() -> None:
    for plan in (plan_of(), gd.compile_training_graph(trained())):
        assert {*plan.node_buffers} | {*plan.fused_nodes} == {*range(len(plan.graph))}
        assert all(n in plan.buffers[b].nodes for n, b in plan.node_buffers.items())
        for dispatch, reason in plan.fused_nodes.values():
            assert -1 <= dispatch < len(plan.dispatches) and reason
        assert plan.node_names == {n.id: n.name for n in plan.graph.nodes if n.name}
        assert "h" in plan.node_names.values()


def test_mappings_cannot_be_changed() -> None:
    plan: Any = plan_of()
    views = (plan.node_buffers, plan.fused_nodes, plan.node_names, plan.weight_buffers, plan.memory.pinned)
    for view in views:
        with pytest.raises(TypeError):
            view[0] = 1
    with pytest.raises(FrozenInstanceError):
        plan.passes = 2


def test_reduced_storage_is_named_with_rows_and_columns() -> None:
    with gd.Graph() as g:
        h = gd.input("x", (2, 64)) @ gd.parameter_q8("a", (64, 32)) @ gd.parameter_q4("b", (32, 8))
        e = gd.embedding(gd.input_u32("i", (2,)), gd.parameter_f16("t", (5, 8)))
        g.set_outputs([h + e])
    plan = plan_of(g)
    places = dict(plan.param_buffers)
    stored = {"a": (gd.q8, 64, 32), "b": (gd.q4, 32, 8), "t": (gd.f16, 5, 8)}
    assert plan.weight_buffers == {places[name]: format for name, format in stored.items()}
    assert [d.weight_format for d in plan.dispatches if d.kernel == "matmul"] == [gd.q8, gd.q4]
    assert plan.index_bounds == {"i": 5}
    assert plan.buffers[places["b"]].bytes == 8 * 20 and str(plan.param_types["b"]) == "q4[32, 8]"


def test_attention_statistics_by_forward_node() -> None:
    with gd.Graph() as g:
        q, k, v = (gd.parameter(n, (7, 16)) for n in "qkv")
        g.set_outputs([gd.causal_attention(q, k, v, 2, 2, 8).square().mean_all()])
    plan = gd.compile_training_graph(g)
    ((node, ref),) = plan.lse_buffers
    assert plan.graph.node(node).op == "causal_attention" and plan.buffers[ref].shape == (7, 2)
    assert plan_of(g).lse_buffers == ()


def test_sources_of_a_derived_weight_carry_their_range() -> None:
    with gd.Graph() as g:
        x = gd.input("x", (3, 4))
        gate, up = gd.parameter("gate", (4, 5)), gd.parameter("up", (4, 5))
        g.set_outputs([((x @ gate).silu() * (x @ up)).square().mean_all()])
    plan = gd.compile_training_graph(g)
    (derived,) = plan.derived_params
    assert (derived.name, derived.axis, derived.shape) == ("gate+up", 1, (4, 10))
    assert derived.sources == (("gate", 5), ("up", 5))
    places: dict[str, Any] = dict(plan.param_buffers)
    assert tuple(places["gate"])[1:] == (1, 0, 5) and tuple(places["up"])[1:] == (1, 5, 10)
    assert places["gate"][0] == places["up"][0] and plan.buffers[places["up"][0]].kind == "derived"
    assert len(plan.param_grad_pairs) == 1


def test_json_round_trip_by_methods_of_the_plan() -> None:
    for plan in (gd.compile_training_graph(trained()), plan_of(options=gd.CompileOptions(tile=(32, 32), pin=("h",)))):
        text = plan.to_json()
        again = gd.ExecutionPlan.from_json(text)
        assert again == plan and hash(again) == hash(plan) and again.to_json() == text
        assert again.memory.pinned == plan.memory.pinned and again.fills == plan.fills
        assert again.node_buffers == plan.node_buffers and again.options == plan.options
        for copied in (copy.deepcopy(plan), replace(plan)):
            assert copied == plan and copied.memory.pinned == plan.memory.pinned
    assert plan_of() != plan_of(options=gd.CompileOptions(serial=True))
    for text in ("", "{}", "[1]", "null", plan.to_json()[:-2], plan.to_json().replace('"tile":[32,32]', '"tile":[32]')):
        with pytest.raises(gd.LoadError) as error:
            gd.ExecutionPlan.from_json(text)
        assert error.value.where == "plan"


# 5.2 ------------------------------------------------------------------------------------------------------------------
def test_fields_of_dispatches() -> None:
    with gd.Graph() as g:
        x = gd.input("x", (4, 6))
        g.set_outputs([(x * x).tanh(), (x + 1.0).sum_rows(), gd.relu(x @ gd.parameter("w", (6, 2)))])
    plan = plan_of(g)
    by_kernel = {d.kernel: d for d in plan.dispatches}
    point, fold, product = (by_kernel[k] for k in ("pointwise", "reduce", "matmul"))
    inputs = dict(plan.input_buffers)
    assert point.inputs == fold.inputs == (inputs["x"],) and len(product.inputs) == 2
    assert point.pointwise is not None and [line.op for line in point.pointwise] == ["mul", "tanh"]
    assert fold.pointwise is None and product.pointwise is None and point.reduction is None
    assert fold.reduction is not None and (fold.reduction.combine, fold.reduction.length) == ("sum", 4)
    assert [line.op for line in product.epilogue] == ["relu"]
    for i, d in enumerate(plan.dispatches):
        assert d.index == i and d.phase == "forward" and len(d.workgroups) == 3 and d.extra_outputs == ()
        assert d.variant and d.variant_reason and d.source_hash and d.origin and d.weight_format is None
        assert d.bytes_read > 0 and d.bytes_written == plan.buffers[d.output].bytes and d.flops > 0
        assert all(isinstance(p, int) for p in d.params) and d.group < len(plan.groups)


def test_source_of_a_dispatch_with_its_lines() -> None:
    plan = gd.compile_training_graph(trained())
    for d in plan.dispatches:
        text, lines = plan.wgsl(d.index)
        assert "@compute" in text and all(1 <= line <= text.count("\n") + 1 and nodes for line, nodes in lines)
        assert {n for _, nodes in lines for n in nodes} <= {*d.origin}
    with pytest.raises(IndexError):
        plan.wgsl(len(plan.dispatches))


# 5.3 ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"fuse_dispatches": False}, {"alias": False}, {"serial": True},
                                     {"tile": (64, 64)}, {"pin": ("h",)}])  # fmt: skip
def test_no_switch_changes_a_value(options: dict[str, Any], cpu_values: list[Any]) -> None:
    config = gd.SessionConfig(device="cpu", compile=gd.CompileOptions(**options))
    got = values_of(gd.build(trained(), config)[0])
    for mine, usual in zip(got, cpu_values, strict=True):
        np.testing.assert_allclose(mine, usual, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def cpu_values() -> list[Any]:
    return values_of(gd.build_session(trained(), "cpu"))


def values_of(session: gd.Session) -> list[Any]:
    rng = np.random.default_rng(0)
    with session:
        for name, type in session.plan().input_types.items():
            session.set_input(name, rng.normal(size=type.shape))
        session.initialize(seed=1)
        session.step()
        outputs = [session.read_output_by_index(i) for i in range(session.num_outputs())]
        return outputs + [session.read_param_grad(n) for n in session.param_names()]


@pytest.mark.parametrize("kind, tile", [("hardware", (64, 64)), ("software", (4, 8)), ("software", (1, 16))])
def test_a_tile_that_is_asked_for(kind: Any, tile: tuple[int, int]) -> None:
    plan = plan_of(options=gd.CompileOptions(tile=tile), target=Target("wgpu", kind, Limits()))
    assert {d.params[:2] for d in plan.dispatches if d.kernel == "matmul"} == {tile}


@pytest.mark.parametrize("tile", [(3, 3), (64, 32), [64, 64], 64, (64, 64, 1), "64x64"])
def test_a_tile_that_there_is_not(tile: Any) -> None:
    with pytest.raises(gd.CompileError) as error:
        plan_of(options=gd.CompileOptions(tile=tile))
    assert (error.value.where, error.value.what, error.value.given) == ("compile", "tile", repr(tile))
    assert "(64, 64)" in error.value.wanted


def test_a_tensor_beyond_a_binding_is_told_with_its_bytes() -> None:
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (40_000_000,)).tanh()])
    with pytest.raises(gd.CompileError, match=r"x f32\[40000000\]: given 160000000 bytes, wanted at most 134217728"):
        plan_of(g)


def test_an_output_that_is_a_leaf_is_copied() -> None:
    with gd.Graph() as g:
        w = gd.parameter("w", (3,))
        g.set_outputs([w.square().mean_all(), w])
    with gd.build_session(g, "cpu") as s:
        s.set_parameter("w", [1, 2, 3])
        s.set_learning_rate(0.5)
        s.step()
        np.testing.assert_array_equal(s.read_output_by_index(1), [1, 2, 3])
        np.testing.assert_allclose(s.read_param("w"), [2 / 3, 4 / 3, 2], rtol=1e-6)


# 5.4, 5.5 -------------------------------------------------------------------------------------------------------------
def test_groups_are_ranges_and_phases_are_in_order() -> None:
    plan = gd.compile_training_graph(trained())
    ends = [(start, stop) for start, stop in plan.groups]
    assert ends == [(g.start, g.stop) for g in plan.groups]
    assert ends[0][0] == 0 and ends[-1][1] == len(plan.dispatches)
    assert all(a[1] == b[0] for a, b in zip(ends, ends[1:], strict=False))
    phases = [d.phase for d in plan.dispatches]
    assert phases == sorted(phases, key=["forward", "backward", "copy"].index)
    serial = plan_of(options=gd.CompileOptions(serial=True))
    assert len(serial.groups) == len(serial.dispatches)


def test_memory_plan_by_reference() -> None:
    plan = gd.compile_training_graph(trained())
    memory = plan.memory
    kept = "parameter derived input constant output loss gradient".split()
    for b in plan.buffers:
        slot = memory.slots[memory.slot_of[b.id]]
        assert b.id in slot.tenants and slot.bytes >= b.bytes and slot.bytes % 256 == 0
        if b.kind in kept:
            assert memory.pinned[b.id] and slot.tenants == (b.id,)
    assert memory.logical_bytes == sum(plan.buffer_sizes)
    assert memory.physical_bytes == sum(s.bytes for s in memory.slots)
    assert memory.peak_bytes <= memory.physical_bytes <= sum(-(-n // 256) * 256 for n in plan.buffer_sizes)
    loose = plan_of(options=gd.CompileOptions(fuse_dispatches=False))
    assert "h" not in {loose.buffers[r].name for r in loose.memory.pinned}
    apart = plan_of(options=gd.CompileOptions(alias=False)).memory
    assert all(len(s.tenants) == 1 for s in apart.slots)
    assert isinstance(apart.slots[0], Slot) and [f.name for f in fields(Slot)] == ["nbytes", "tenants"]


def test_a_pin_by_name() -> None:
    loose = gd.CompileOptions(fuse_dispatches=False)
    plan = plan_of(options=replace(loose, pin=("h",)))
    (h,) = (b.id for b in plan.buffers if b.name == "h")
    assert plan.memory.pinned[h] == "pinned by option" and plan.memory.slots[plan.memory.slot_of[h]].tenants == (h,)
    with pytest.raises(gd.UnknownNameError, match="nearest: h"):
        plan_of(options=replace(loose, pin=("hh",)))


# arguments of compile -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments, what", [
    ({"mode": "train"}, "mode"), ({"mode": "inference", "options": {}}, "options"),
    ({"mode": "inference", "target": "cpu"}, "target"), ({"mode": "inference", "lanes": []}, "lanes"),
    ({"mode": "inference", "options": gd.CompileOptions(pin="h")}, "pin"),  # type: ignore[arg-type]
])  # fmt: skip
def test_bad_arguments(arguments: dict[str, Any], what: str) -> None:
    graph = trained()
    before = graph.fingerprint()
    with pytest.raises(gd.CompileError) as error:
        gd.compile(graph, **arguments)
    assert (error.value.where, error.value.what) == ("compile", what) and graph.fingerprint() == before


def test_an_empty_graph_and_a_missing_mode() -> None:
    with pytest.raises(gd.GraphError, match="set_outputs"):
        gd.compile(gd.Graph(), mode="inference")
    with pytest.raises(TypeError):
        gd.compile(trained())  # type: ignore[call-arg]
    assert plan_of() == gd.compile(trained(), mode="inference", target=Target.portable())


# 5.6 ------------------------------------------------------------------------------------------------------------------
def cached(graph: gd.Graph, path: Path, **config: Any) -> tuple[gd.ExecutionPlan, gd.OptimizeReport]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session, report = gd.build(graph, gd.SessionConfig(device="cpu", cache=path, **config))
    with session:
        return session.plan(), report


def norm(eps: float = 1e-5, at: float = 1.0, stored: Any = gd.parameter, name: str = "h") -> gd.Graph:
    with gd.Graph() as g:
        x = gd.input("x", (2, 4))
        h = gd.rms_norm(x, gd.parameter("w", (4,)), eps=eps).named(name) * gd.constant([at, 2, 3, 4], (4,))
        g.set_outputs([(h @ stored("p", (4, 2))).mean_all()])
    return g


def test_a_hit_runs_no_optimizer_and_a_change_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "model.plan.ron"
    first, made = cached(norm(), path)
    again, report = cached(norm(), path)
    assert made.stop_reason != "cache-hit" and report.stop_reason == "cache-hit" and report.nodes_before == 0
    assert again == first and json.loads(path.read_text())
    assert again.graph.source(again.dispatches[0].origin[0]), "sources come from the live graph"
    changes: list[dict[str, Any]] = [{"eps": 1e-6}, {"at": 1.5}, {"stored": gd.parameter_f16}, {"name": "hh"}]
    for change in changes:
        _, report = cached(norm(**change), path)
        assert report.stop_reason != "cache-hit", change
    for config in ({"compile": gd.CompileOptions(alias=False)}, {"mode": "inference"}, {"optimize": {"allow": "exact"}},
                   {"optimize": {"disable": ("pack_swiglu",)}}, {"debug": True}, {"skip_full_optimize": True},
                   {"compile": gd.CompileOptions(tile=(32, 32))}):  # fmt: skip
        cached(norm(), path)
        _, report = cached(norm(), path, **config)
        assert report.stop_reason != "cache-hit", config


@pytest.mark.parametrize("harm", ["truncate", "empty", "junk", "byte", "binary", "list"])
def test_a_damaged_file_is_a_miss_with_a_warning(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "plan.json"
    fresh, _ = cached(norm(), path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes({
        "truncate": whole[:middle], "empty": b"", "junk": b"{}", "binary": bytes(range(256)), "list": b"[1, 2]",
        "byte": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
    }[harm])  # fmt: skip
    with pytest.warns(RuntimeWarning, match="plan cache: .*: compiling instead"):
        session = gd.build_session_cached(norm(), path, "cpu")
    with session:
        assert session.plan() == fresh
    assert cached(norm(), path)[1].stop_reason == "cache-hit", "it was written anew"


def test_a_path_that_no_file_can_be_at(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "plan.json"):
        with pytest.warns(RuntimeWarning, match="plan cache"):
            session = gd.build_session_cached(norm(), path, device="cpu")
        with session:
            assert session.plan().dispatches
