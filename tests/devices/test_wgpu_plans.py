"""The wgpu device: updates and their state; bad plans, refused without harm to the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine import needs
from wgpu_plans import (
    KERNELS,
    Load,
    changed,
    counting,
    dispatch,
    doubling,
    kernel,
    loading,
    make_plan,
    on_owner,
    tensor,
)

from gdlab.base.errors import CompileError, SessionError
from gdlab.base.types import TensorType
from gdlab.devices.base import Bound
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.wgpu.wgpu_device import WgpuProgram
from gdlab.plan.dispatch import Result
from gdlab.plan.records import ExecutionPlan, PlanBuffer, Slot, Update
from gdlab.plan.target import Limits, Target


@pytest.fixture
def load() -> Iterator[Load]:
    needs("wgpu")
    with loading() as load:
        yield load


# updates --------------------------------------------------------------------------------------------------------------
def momentum(m: PlanBuffer | None = None) -> Update:
    m = m or tensor(2, "m", 64, "state")
    one = dispatch(0, "momentum", "0", 1, "1 2", scalars=("lr",))
    return Update("adam", (one,), (m,), ((1, 2, 2),))


def training(load: Load) -> WgpuProgram:
    """Gradient 1 … 64 in buffer 0 (nothing writes it), parameters of 100 in buffer 1."""
    program = load(make_plan([tensor(0, "g", 64, "gradient"), tensor(1, "p", 64, "parameter")], []))
    on_owner(program.upload, 0, GRADIENT)
    on_owner(program.upload, 1, np.full(64, 100, np.float32))
    return program


GRADIENT = np.arange(1, 65, dtype=np.float32)
RATE = np.array([0.5, 0, 0, 0, 0, 0], np.float32)
SGD = Update("sgd", (dispatch(0, "sgd", "0", 1, "1", scalars=("lr",)),), (), ())
OFF = Update("none", (), (), ())


def test_an_update_runs_in_the_step_or_alone(load: Load) -> None:
    program = training(load)
    on_owner(program.configure, SGD)
    on_owner(program.step, RATE)
    np.testing.assert_array_equal(on_owner(program.download, 1), 100 - 0.5 * GRADIENT)
    on_owner(program.update_only, 2 * RATE)
    np.testing.assert_array_equal(on_owner(program.download, 1), 100 - 1.5 * GRADIENT)
    on_owner(program.configure, OFF)
    on_owner(program.step, None)
    np.testing.assert_array_equal(on_owner(program.download, 1), 100 - 1.5 * GRADIENT)
    traffic = program.counters
    assert (traffic.forwards, traffic.submissions, traffic.dispatches) == (2, 3, 2)


def test_state_starts_at_zero_and_outlives_other_updates(load: Load) -> None:
    program = training(load)
    on_owner(program.configure, momentum())
    assert on_owner(program.download, 2).tolist() == [0.0] * 64
    on_owner(program.step, RATE)
    on_owner(program.configure, SGD)
    np.testing.assert_array_equal(on_owner(program.download, 2), GRADIENT)
    on_owner(program.configure, momentum())
    on_owner(program.step, RATE)
    np.testing.assert_array_equal(on_owner(program.download, 2), 2 * GRADIENT)
    np.testing.assert_array_equal(on_owner(program.download, 1), 100 - 1.5 * GRADIENT)


def test_configuring_runs_nothing_on_the_parameters(load: Load) -> None:
    program = training(load)
    KERNELS["fresh"] = kernel(">p", f"if (i < 64) {{ p[i] = p[i] + {time.time() % 1000:.6f}; }}")
    on_owner(program.configure, Update("sgd", (dispatch(0, "fresh", "", 1, "1"),), (), ()))
    assert on_owner(program.download, 1).tolist() == [100.0] * 64
    on_owner(program.update_only, RATE)
    assert min(on_owner(program.download, 1)) > 100


def test_an_update_without_its_scalars_is_refused(load: Load) -> None:
    program = training(load)
    on_owner(program.configure, SGD)
    with pytest.raises(SessionError, match="step 1: scalars: given none, wanted 9 numbers: lr, beta1"):
        on_owner(program.step, None)
    assert program.counters.forwards == 0


def test_a_refused_update_leaves_the_old_one(load: Load) -> None:
    program = training(load)
    on_owner(program.configure, momentum())
    with pytest.raises(CompileError, match="update: state buffer m: given 40 bytes, wanted 256 bytes, as before"):
        on_owner(program.configure, momentum(tensor(2, "m", 10, "state")))
    with pytest.raises(CompileError, match=r"update 0 \(broken\): WGSL"):
        on_owner(program.configure, Update("sgd", (dispatch(0, "broken", "0", 1),), (), ()))
    assert program.update == momentum()
    on_owner(program.step, RATE)
    np.testing.assert_array_equal(on_owner(program.download, 2), GRADIENT)


def test_a_changed_rate_compiles_nothing_and_equal_signatures_share_a_layout(load: Load) -> None:
    program = training(load)
    on_owner(program.configure, SGD)
    before = dict(program.gpu.pipelines)
    on_owner(program.step, RATE)
    on_owner(program.step, 2 * RATE)
    load(doubling())
    load(make_plan([tensor(0, "x", 64, "input"), tensor(1, "y", 64, "output")], [dispatch(0, "copy", "0", 1)]))
    layouts = [pipeline.layout for (_, access), pipeline in program.gpu.pipelines.items() if access == "rw"]
    assert {k: v for k, v in program.gpu.pipelines.items() if k in before} == before
    assert len(layouts) >= 2 and len(set(map(id, layouts))) == 1


# what it refuses ------------------------------------------------------------------------------------------------------
def bad(**fields: Any) -> ExecutionPlan:
    return changed(doubling(), **fields)


def constant(nbytes: int) -> ExecutionPlan:
    return replace(doubling(), constant_buffers=((0, bytes(nbytes)),))


def in_slot(nbytes: int) -> ExecutionPlan:
    """x in a slot of so many bytes."""
    plan = doubling()
    return replace(plan, memory=replace(plan.memory, slots=(Slot(nbytes, (0,)), plan.memory.slots[1])))


def sized(nbytes: int) -> ExecutionPlan:
    """x of so many bytes."""
    plan = in_slot(-(-nbytes // 256) * 256)
    return replace(plan, buffers=(replace(plan.buffers[0], nbytes=nbytes), plan.buffers[1]))


def slotted(*slot_of: int) -> ExecutionPlan:
    plan = doubling()
    return replace(plan, memory=replace(plan.memory, slot_of=slot_of))


def beyond(limit: str) -> int:
    """A size that this adapter refuses."""
    bounds = room.open().gpu.bounds
    return {"binding": bounds.limits.binding_bytes + 4, "buffer": bounds.buffer_bytes + 256}[limit]


BAD: dict[str, tuple[Callable[[], ExecutionPlan], str]] = {
    "read and written": (lambda: slotted(0, 0), r"dispatch 0: binding \d: given a written buffer bound 2 times"),
    "unknown buffer": (
        lambda: bad(results=(Result(7, TensorType((64,))),)),
        "dispatch 0: buffer: given 7, wanted 0 … 1",
    ),
    "wide grid": (lambda: bad(workgroups=(65536, 1, 1)), r"workgroups: given \[65536, 1, 1\], wanted 1 … 65535"),
    "empty grid": (lambda: bad(workgroups=(1, 0, 1)), r"workgroups: given \[1, 0, 1\], wanted 1 … 65535"),
    "wide group": (lambda: bad(workgroup_size=(64, 64, 1)), r"workgroup size: given \[64, 64, 1\], wanted 1 … 1024"),
    "odd bytes": (lambda: sized(254), r"size 254 \(x, r\), wanted 4, 8, … \d+"),
    "large tensor": (
        lambda: sized(beyond("binding")),
        r"dispatch 0: binding 0: given size \d+ \(x, r\), wanted 4, 8",
    ),
    "huge slot": (
        lambda: in_slot(beyond("buffer")),
        r"max-buffer-size \(tensor x\): given \d+ bytes, wanted at most",
    ),
    "no slot": (lambda: slotted(0, 5), "slot of buffer 1: given 5, wanted 0 … 1"),
    "short constant": (lambda: constant(8), "constant 0: given 8 bytes, wanted 256"),
    "loss nowhere": (lambda: replace(doubling(), loss_buffer=3), "loss buffer: given 3, wanted 0 … 1"),
    "broken kernel": (lambda: bad(label="broken"), r"dispatch 0 \(broken\): WGSL: given .*no definition in scope"),
    "kernel of more bindings": (lambda: bad(label="add"), r"dispatch 0 \(add\): WGSL: given .*wanted a kernel"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_plan_is_refused_and_the_next_step_runs(fault: str, load: Load) -> None:
    program, (make, message) = load(counting()), BAD[fault]
    on_owner(program.step, None)
    with pytest.raises(CompileError, match=message):
        load(make())
    on_owner(program.step, None)
    assert on_owner(program.losses, True) == [(1, 1.0), (2, 2.0)]


def test_a_plan_for_a_bigger_adapter_is_held_against_this_one(load: Load) -> None:
    roomy = Target("wgpu", "hardware", Limits(workgroups_per_axis=1 << 30))
    with pytest.raises(CompileError, match=r"dispatch 0: workgroups: given \[65536, 1, 1\], wanted 1 … 65535 per axis"):
        load(replace(bad(workgroups=(65536, 1, 1)), target=roomy))


FORCED = {"at load": lambda: slotted(0, 0), "at the step": lambda: bad(workgroups=(65536, 1, 1))}


@pytest.mark.parametrize("when", FORCED)
def test_an_invalid_plan_forced_through_raises_and_the_process_lives(when: str, load: Load) -> None:
    good = load(counting())
    with pytest.raises(SessionError, match=r"recording: given (.|\n)*wanted a valid one \(nothing was submitted\)"):
        bad = load(FORCED[when](), checked=False)
        on_owner(bad.step, None)
    on_owner(good.step, None)
    assert on_owner(good.losses, True) == [(1, 1.0)]


def test_a_step_that_failed_did_not_happen(load: Load) -> None:
    program = load(counting())
    launches = program.launches
    on_owner(program.step, None)
    broken = Bound(launches[0].dispatch, (*launches[0].run[:2], 1 << 20, 1, 1), launches[0].keep)
    program.launches = [broken]
    with pytest.raises(SessionError, match="step 2: recording"):
        on_owner(program.step, None)
    program.launches = launches
    on_owner(program.step, None)
    assert on_owner(program.losses, True) == [(1, 1.0), (2, 2.0)]
    assert program.counters.submissions == 2


def test_after_the_loss_of_the_device_calls_are_refused_and_a_new_one_opens(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_opened", {})
    lost = room.open()
    program = lost.load(counting())
    on_owner(program.step, None)
    on_owner(program.wait)
    on_owner(lost.gpu.device.destroy)
    with pytest.raises(SessionError, match="step 2: recording: given .*is lost"):
        on_owner(program.step, None)
    for call in (lambda: program.step(None), lambda: program.download(0), lambda: lost.load(counting())):
        with pytest.raises(SessionError, match="device: given one that was lost, wanted a session on a new device"):
            on_owner(call)
    on_owner(program.close)
    again = room.open().load(counting())
    on_owner(again.step, None)
    assert on_owner(again.losses, True) == [(1, 1.0)]
    on_owner(again.close)


def test_a_closed_program_says_so(load: Load) -> None:
    program = load(counting())
    on_owner(program.step, None)
    on_owner(program.close)
    on_owner(program.close)
    for call in (lambda: program.step(None), program.wait, lambda: program.download(0), lambda: program.losses(True)):
        with pytest.raises(SessionError, match="program: given closed, wanted an open one"):
            on_owner(call)
