"""Refusals of a plan: limits, damaged records, bad arguments; and the updates that join it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import plans
import pytest
from plans import graph_of, labels

from gdlab import ops
from gdlab.base.errors import CompileError, GraphError, UnknownNameError
from gdlab.base.types import TensorType
from gdlab.devices.cpu.cpu_device import CpuDevice
from gdlab.graph import Graph
from gdlab.plan import compile
from gdlab.plan import verify as verification
from gdlab.plan.dispatch import Dispatch, Operand
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.spread import grid
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.update import Recipe, update_of
from gdlab.plan.verify import verify, verify_update

CPU = CpuDevice()


# limits ---------------------------------------------------------------------------------------------------------------
def test_oversize_tensors_are_refused_by_name() -> None:
    g = graph_of(lambda: ops.relu(ops.input("big", (1 << 13, 1 << 13))))
    wanted = (
        r"compile: tensor big f32\[8192, 8192\]: given 268435456 bytes, wanted at most 134217728, the largest binding"
    )
    with pytest.raises(CompileError, match=wanted):
        compile(g, mode="inference")


def test_oversize_grids_fold_into_y() -> None:
    assert grid(65535, Limits()) == (65535, 1, 1)
    for groups in (65536, 70001, 10_000_000, 65535 * 65535 + 1):
        x, y, z = grid(groups, Limits())
        assert max(x, y, z) <= 65535 and groups <= x * y * z < groups + x * y + 65536
    small = Target("wgpu", "hardware", Limits(workgroups_per_axis=3))
    (d,) = compile(graph_of(lambda: ops.relu(ops.input("x", (4096,)))), mode="inference", target=small).dispatches
    assert d.workgroups == (3, 3, 2)


def test_long_folds_stay_under_the_trip_limit_of_software_adapters() -> None:
    software = Target("wgpu", "software", Limits())
    for shape, axes in (((200_003,), (0,)), ((2, 200_000), (1,)), ((200_003, 2), (0,)), ((2000, 2000), (0, 1))):
        g = graph_of(lambda shape=shape, axes=axes: ops.sum(ops.input("x", shape), axes))  # type: ignore[misc]
        for d in compile(g, mode="inference", target=software).dispatches:
            assert d.reduce is not None and d.reduce.length // (4 * d.params[1]) + 3 < 60_000
    prime = 16000057
    g = graph_of(lambda: ops.sum_all(ops.input("x", (prime,))))
    with pytest.raises(CompileError, match=f"fold of {prime} elements: given 62503 loop trips, wanted at most"):
        compile(g, mode="inference", target=software)


def test_long_folds_to_few_results_go_in_two_steps_but_not_on_cpu() -> None:
    g = graph_of(lambda: ops.mean_all(ops.input("x", (2000, 2000))))
    assert labels(g) == ["SumInner[800x5000]", "MeanAll[800]"]
    assert [d.label for d in compile(g, mode="inference", target=CPU.target).dispatches] == ["MeanAll[4000000]"]
    last = compile(g, mode="inference").dispatches[1].reduce
    assert last is not None and (last.length, last.count, last.finish) == (800, 4_000_000, "acc / n")


def test_what_compile_refuses() -> None:
    with pytest.raises(GraphError, match="compile: outputs: given none"):
        compile(Graph(), mode="inference")
    with pytest.raises(CompileError, match="compile: mode: given 'eval', wanted training or inference"):
        compile(plans.regression(), mode="eval")  # type: ignore[arg-type]


# the checker ----------------------------------------------------------------------------------------------------------
PLAN = compile(plans.regression(), mode="training")


def edited(index: int, **changes: Any) -> ExecutionPlan:
    dispatches = list(PLAN.dispatches)
    dispatches[index] = replace(dispatches[index], **changes)
    return replace(PLAN, dispatches=tuple(dispatches))


def swapped_memory(**changes: Any) -> ExecutionPlan:
    return replace(PLAN, memory=replace(PLAN.memory, **changes))


def two_in_one_slot() -> ExecutionPlan:
    """The buffers that dispatch 1 reads and writes, in one slot."""
    d = PLAN.dispatches[2]
    slot_of, slots = list(PLAN.memory.slot_of), list(PLAN.memory.slots)
    a, b = d.operands[-1].buffer, d.output
    old = slot_of[b]
    slot_of[b] = slot_of[a]
    slots[slot_of[a]] = replace(slots[slot_of[a]], nbytes=512, tenants=(a, b))
    slots[old] = replace(slots[old], tenants=())
    return swapped_memory(slot_of=tuple(slot_of), slots=tuple(slots))


D0: Dispatch = PLAN.dispatches[0]
BAD: list[tuple[Callable[[], ExecutionPlan], str]] = [
    (lambda: replace(PLAN, dispatches=PLAN.dispatches[1:]), "plan: dispatch index: given 1, wanted 0"),
    (lambda: edited(0, results=(replace(D0.results[0], buffer=99),)), "dispatch 0: buffer: given 99, wanted 0 … 9"),
    (lambda: edited(0, workgroups=(65536, 1, 1)), "dispatch 0: workgroups: given [65536, 1, 1], wanted 1 … 65535 per"),
    (lambda: edited(0, workgroups=(0, 1, 1)), "dispatch 0: workgroups: given [0, 1, 1], wanted 1 … 65535 per axis"),
    (lambda: edited(0, workgroup_size=(512, 1, 1)), "dispatch 0: workgroup size: given [512, 1, 1], wanted 1 … 256"),
    (two_in_one_slot, "dispatch 2: binding 0: given a written buffer bound 2 times, wanted once"),
    (
        lambda: replace(PLAN, groups=(replace(PLAN.groups[0], stop=2), *PLAN.groups[2:])),
        "dispatch 1: group: given 1, wanted 0",
    ),
    (
        lambda: edited(0, operands=(Operand(0, (6, 5)), Operand(3, (3,)), *D0.operands[2:])),
        "dispatch 0: operand 1: given 3 elements, wanted 15 (full)",
    ),
    (
        lambda: edited(0, operands=(*D0.operands[:2], Operand(3, (3,), "row", 4))),
        "dispatch 0: operand 2: given extent 4, wanted a divisor of 18",
    ),
    (lambda: edited(0, operands=D0.operands[:2]), "dispatch 0: bias_add: given operand 2, wanted an earlier line or"),
    (
        lambda: edited(0, results=(replace(D0.results[0], type=TensorType((5, 3))),)),
        "dispatch 0: output: given f32[5, 3], wanted 72 bytes",
    ),
    (lambda: swapped_memory(slot_of=PLAN.memory.slot_of[1:]), "memory: slots: given 9 places, wanted 10"),
    (
        lambda: swapped_memory(slots=(replace(PLAN.memory.slots[0], nbytes=100), *PLAN.memory.slots[1:])),
        "slot 0: size: given 100, wanted ≥",
    ),
    (lambda: replace(PLAN, output_buffers=(77,)), "plan: output buffer: given 77, wanted 0 … 9"),
    (lambda: replace(PLAN, param_grad_pairs=((2, 9), (3, 9))), "plan: gradient of w: given 12 bytes, wanted 60"),
    (lambda: replace(PLAN, constant_buffers=((0, b"abc"),)), "plan: constant 0: given 3 bytes, wanted 120"),
]


@pytest.mark.parametrize("make, message", BAD, ids=[message[:40] for _, message in BAD])
def test_an_invalid_plan_is_refused(make: Callable[[], ExecutionPlan], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        verify(make())
    assert str(caught.value).startswith(message)


def test_a_read_of_nothing_is_refused() -> None:
    first, second, *rest = PLAN.dispatches
    turned = (replace(second, index=0, group=0), replace(first, index=1, group=1), *rest)
    with pytest.raises(CompileError, match=r"dispatch 0: binding 0: given h, unwritten, wanted a written buffer"):
        verify(replace(PLAN, dispatches=turned))


def test_a_conflict_inside_a_group_is_refused() -> None:
    first, second, *rest = PLAN.dispatches
    groups = (replace(PLAN.groups[0], stop=2), *(replace(g) for g in PLAN.groups[2:]))
    moved = [replace(d, group=d.group - 1) for d in (second, *rest)]
    wanted = "dispatches 0 and 1 in one group: one reads and one writes buffer 4, wanted no conflict inside a group"
    with pytest.raises(CompileError, match=wanted):
        verify(replace(PLAN, dispatches=(first, *moved), groups=groups))


def test_too_many_bindings_are_refused() -> None:
    few = replace(PLAN, target=Target("wgpu", "hardware", Limits(storage_buffers=3)))
    with pytest.raises(CompileError, match="dispatch 0: bindings: given 4, wanted at most 3 storage buffers"):
        verify(few)


def test_a_binding_beyond_the_limit_is_refused() -> None:
    few = replace(PLAN, target=Target("wgpu", "hardware", Limits(binding_bytes=64)))
    with pytest.raises(CompileError, match=r"dispatch 0: binding 0: given size 120 \(x, r\), wanted 4, 8, … 64"):
        verify(few)


# updates --------------------------------------------------------------------------------------------------------------
def test_updates_bind_every_written_buffer_once() -> None:
    update = update_of(PLAN, Recipe("adam", {"w": 0.5}))
    w, b = update.dispatches
    assert [d.label for d in update.dispatches] == ["Adam[15]", "Adam[3]"]
    assert [access for _, access in w.bindings] == ["r", "w", "w", "w"] and len(w.scalars) == 6
    assert [b.name for b in update.buffers] == ["adam_m.w", "adam_v.w", "adam_m.b", "adam_v.b"]
    assert [b.id for b in update.buffers] == [10, 11, 12, 13]
    assert update.moments == ((2, 10, 11), (3, 12, 13))
    assert w.update is not None and [s.factor for p in w.update.parameters for s in p.stretches] == [0.5]
    assert (w.index, w.phase, w.group, w.origin) == (len(PLAN.dispatches), "update", len(PLAN.groups), (2,))
    assert b.source_hash != w.source_hash
    plain = update_of(PLAN, Recipe("sgd"))
    assert plain.buffers == () and plain.dispatches[0].scalars == ("lr",)
    verify_update(PLAN, update)
    twice = replace(update, dispatches=(w, replace(w, index=w.index + 1)))
    with pytest.raises(CompileError, match="both write buffer 2"):
        verify_update(PLAN, twice)


# arguments ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"options": 3}, CompileError, "compile: options: given int, wanted a CompileOptions"),
        ({"target": "cpu"}, CompileError, "compile: target: given str, wanted a Target"),
        ({"options": CompileOptions(pin="h")}, CompileError, "compile: pin: given 'h', wanted a tuple of node names"),  # type: ignore[arg-type]
        ({"options": CompileOptions(pin=("wx",))}, UnknownNameError, "compile: pin: given wx, wanted one of "),
    ],
)
def test_compile_refuses_options_that_it_would_ignore(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        compile(PLAN.graph, mode="training", **options)
    assert str(caught.value).startswith(text)
    with pytest.raises(CompileError, match="graph: given int, wanted a Graph"):
        compile(3, mode="training")  # type: ignore[arg-type]


def test_a_plan_shows_its_wgsl_where_no_device_was_opened() -> None:
    code = (
        "import gdlab as gd\n"
        "with gd.Graph() as g: g.set_outputs(gd.relu(gd.input('x', (2,))))\n"
        "print('@compute' in gd.compile(g, mode='inference').wgsl(0)[0])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_plan_is_checked_once_and_forgotten_with_its_last_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened again it is not checked again; another plan in its place is."""
    checked: list[ExecutionPlan] = []
    monkeypatch.setattr(verification, "_check_groups", checked.append)
    plan = replace(PLAN, fingerprint="another")
    known = len(verification._VALID)
    assert verify(plan) is plan and verify(plan) is plan and checked == [plan]
    with pytest.raises(CompileError, match="wanted 1"):
        verify(replace(plan, buffers=plan.buffers[:1]))
    checked.clear()
    del plan
    assert len(verification._VALID) == known
