"""Steps of an adapter that are recorded ahead, and steps that are held to be submitted together: the values, counts and
order of work are those of steps submitted one by one."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machine import needs
from networks import dropping
from wgpu_plans import Load, counting, dispatch, doubling, loading, make_plan, on_owner, tensor

from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.devices.base import EXPECTED, Copy, SharedBuffers
from gdlab.devices.wgpu import held_steps, wgpu_queue
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.wgpu.held_steps import IN_A_ROW
from gdlab.devices.wgpu.plan_replay import AT_ONCE, NO_UPDATE, WgpuProgram
from gdlab.devices.wgpu.wgpu_queue import FIRST_PART, CommandsAhead, WgpuQueue, WgpuRecorded
from gdlab.graph import Graph
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.rules import RULES
from gdlab.session import Session, SessionConfig, build
from gdlab.session.update_settings import Optimizer, ScalarRows, scalars

LONG = 60.0  # seconds without a step, after which nothing is submitted in a test
MANY = 4 * FIRST_PART  # dispatches: parts of 32, 64 and 32


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    needs("wgpu")
    monkeypatch.setattr(held_steps, "HELD_SECONDS", LONG)  # of a watch that no test has begun yet
    with loading() as load:
        monkeypatch.setattr(room.open().gpu, "holding", held_steps.HoldingPrograms(room.open().gpu))
        yield load


def steps(program: WgpuProgram, count: int) -> None:
    for _ in range(count):
        on_owner(program.step, None)


def counting_long() -> ExecutionPlan:
    """Loss k (MANY − 1) at step k, through a chain of MANY dispatches, of which the last one writes the loss."""
    buffers = [tensor(0, "count", 1, "state"), tensor(1, "loss", 1, "loss")]
    counts = [dispatch(k, "count", "", 0, "0") for k in range(MANY - 1)]
    return make_plan(buffers, [*counts, dispatch(MANY - 1, "copy", "0", 1)], loss=1)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record of a step but its first part ahead."""
    monkeypatch.setattr(WgpuRecorded, "_is_cheap", lambda self, bounds: len(bounds) <= FIRST_PART)


def noted_calls(program: WgpuProgram, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recordings and submissions of a program from now on."""
    calls, record, send = list[str](), program.gpu.record, WgpuQueue.send
    monkeypatch.setattr(program.gpu, "record", lambda *given: (calls.append("record"), record(*given))[1])
    monkeypatch.setattr(WgpuQueue, "send", lambda *given: (calls.append("send"), send(*given))[1])
    return calls


# ahead ----------------------------------------------------------------------------------------------------------------
def test_a_step_like_the_last_one_is_submitted_before_anything_is_recorded(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load(counting())
    calls = noted_calls(program, monkeypatch)
    wanted = ["record", "send"], ["record", "send", "record"], ["send", "record"], ["send", "record"]
    for wanted_calls in wanted:
        calls.clear()
        steps(program, 1)
        assert calls == wanted_calls
        on_owner(program.wait)
    assert on_owner(program.losses, True) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert program.counters.submissions == 4 and program.counters.dispatches == 8


def test_of_a_long_step_the_first_part_is_submitted_before_anything_is_recorded(
    load: Load, monkeypatch: pytest.MonkeyPatch, in_parts: None
) -> None:
    program = load(counting_long())
    calls, part = noted_calls(program, monkeypatch), ["record", "send"]
    for wanted in (part, [*part * 3, "record"], ["send", *part * 2, "record"], ["send", *part * 2, "record"]):
        calls.clear()
        steps(program, 1)
        assert calls == wanted
        on_owner(program.wait)
    parts = program.ahead[True].parts
    assert [len(item) for part in parts for item in part if not isinstance(item, Copy)] == [32, 64, 32]
    assert on_owner(program.losses, True) == [(k, k * (MANY - 1.0)) for k in range(1, 5)]
    counters = program.counters
    assert (counters.submissions, counters.dispatches, counters.workgroups) == (1 + 3 * 3, 4 * MANY, 4 * MANY)


@pytest.mark.parametrize("most", [256, 255])
def test_a_third_of_a_long_step_is_recorded_ahead_where_it_is_cheap(
    most: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole writes two memories of 256 bytes, all before its end only one: then the rest takes one part."""
    monkeypatch.setattr(wgpu_queue, "AHEAD_BYTES", most)
    program = load(counting_long())
    calls = noted_calls(program, monkeypatch)
    for _ in range(2):
        steps(program, 1)
        on_owner(program.wait)
    calls.clear()
    steps(program, 1)
    assert calls == (["send", "record", "send", "record"] if most == 256 else ["record", "send"] * 3)
    parts = program.ahead[True].parts if most == 256 else []
    assert [len(item) for part in parts for item in part if not isinstance(item, Copy)] == [MANY // 3, 86][: len(parts)]
    assert on_owner(program.losses, True) == [(k, k * (MANY - 1.0)) for k in range(1, 4)]


def test_the_rest_of_a_long_step_goes_at_once_while_the_adapter_has_something_else_to_do(
    load: Load, monkeypatch: pytest.MonkeyPatch, in_parts: None
) -> None:
    program = load(counting_long())
    for _ in range(2):
        steps(program, 1)
        on_owner(program.wait)
    monkeypatch.setattr(program.gpu, "poll", lambda *given: None)  # nothing is known to have ended from now on
    calls = noted_calls(program, monkeypatch)
    for wanted in (["send", *["record", "send"] * 2, "record"], *[["send", "record", "send", "record"]] * 2):
        calls.clear()
        steps(program, 1)
        assert calls == wanted
    rest = wgpu_queue._joined(program.ahead[True].parts[1:])
    assert [len(item) for item in rest if not isinstance(item, Copy)] == [MANY - 32]
    monkeypatch.undo()
    on_owner(program.wait)
    assert on_owner(program.losses, True) == [(k, k * (MANY - 1.0)) for k in range(1, 6)]
    counters = program.counters
    assert (counters.submissions, counters.dispatches) == (1 + 2 * 3 + 2 * 2, 5 * MANY)


def test_the_pace_of_a_long_step_begins_with_its_first_part(
    load: Load, monkeypatch: pytest.MonkeyPatch, in_parts: None
) -> None:
    program, sent = load(counting_long()), list[float]()
    monkeypatch.setattr(program.gpu, "adapter_class", "hardware")
    steps(program, 2)
    on_owner(program.wait)
    send = WgpuQueue.send
    monkeypatch.setattr(WgpuQueue, "send", lambda *given: (sent.append(time.perf_counter()), send(*given))[1])
    on_owner(program.gpu.poll)
    before = time.perf_counter()
    steps(program, 1)
    pace = program._whole(True).pace
    assert before < pace.begun < sent[0] and len(sent) == 3
    assert program.queue.flying[-1].pace is pace


@pytest.mark.parametrize("ahead", [True, False])
def test_an_error_behind_the_first_part_of_a_long_step(
    load: Load, monkeypatch: pytest.MonkeyPatch, in_parts: None, ahead: bool
) -> None:
    """It leaves what one leaves where nothing was recorded ahead: the parts before it have run, and no step is
    counted."""
    if not ahead:
        monkeypatch.setattr(WgpuRecorded, "_is_cheap", lambda self, bounds: False)
    program = load(counting_long())
    numbers = np.full(8, 3, np.float32)
    on_owner(program.step, np.full(8, 1, np.float32))
    on_owner(program.step, np.full(8, 2, np.float32))
    on_owner(program.wait)
    losses = on_owner(program.losses, True)
    record, recorded = program.gpu.record, list[int]()

    def refused(*given: Any) -> Any:
        recorded.append(1)
        if len(recorded) == 3 - ahead:
            raise SessionError("record", "what", "given", "wanted")
        return record(*given)

    before, free = program.counters.as_dict(), program.gpu.readbacks.free_bytes
    monkeypatch.setattr(program.gpu, "record", refused)
    with pytest.raises(SessionError, match="record: what"):
        on_owner(program.step, numbers)
    monkeypatch.undo()
    found = program.counters.as_dict()
    before["buffers_created"] = found["buffers_created"]
    assert found == before and program.ahead == {} and not program.queue.flying
    assert program.gpu.readbacks.free_bytes == free + 256 * ahead, "its readback is free again"
    done = 2.0 * (MANY - 1) + 32 + 64
    assert on_owner(program.download, 0).tolist() == [done]
    assert numbers_behind(program, numbers) == [3.0] * 8
    losses += on_owner(program.losses, True)
    assert losses == [(1, MANY - 1.0), (2, 2.0 * (MANY - 1)), (3, done + MANY - 1)]


def expected(program: WgpuProgram, *values: float) -> list[Array]:
    """Numbers of steps, which the program is told to expect."""
    rows = [np.full(8, value, np.float32) for value in values]
    on_owner(program.expect_scalars, rows)
    return rows


def numbers_behind(program: WgpuProgram, numbers: Any) -> list[float]:
    """The first eight numbers that kernels read, once a step with these has ended."""
    on_owner(program.step, numbers)
    on_owner(program.wait)
    into = memoryview(bytearray(32))
    on_owner(program.queue.read, "test", program.queue.scalars, into)
    return into.cast("f").tolist()


def recorded_ahead(program: WgpuProgram) -> CommandsAhead:
    """Return the step that the program recorded ahead after two others."""
    steps(program, 2)
    (ahead,) = program.ahead.values()
    assert not ahead.is_submitted
    return ahead


def kept_by_wgpu() -> dict[str, int]:
    """The objects that wgpu-native keeps, by kind."""
    from wgpu.backends.wgpu_native import ffi, lib
    from wgpu.backends.wgpu_native._helpers import get_wgpu_instance

    gc.collect()
    on_owner(lambda: room.open().gpu.poll(room.open().gpu.submitted))
    report = ffi.new("WGPUGlobalReport *")
    on_owner(lambda: lib.wgpuGenerateReport(get_wgpu_instance(), report))
    kinds = ("buffers", "bindGroups", "commandBuffers", "computePipelines")
    return {kind: int(getattr(report.hub, kind).numAllocated) for kind in kinds}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("plan", [counting, counting_long])
@pytest.mark.parametrize("way", ["rebind", "configure", "lend", "close"])
def test_what_was_recorded_ahead_is_dropped_without_effect(
    load: Load, way: str, plan: Callable[[], ExecutionPlan], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plan is counting_long:
        monkeypatch.setattr(wgpu_queue, "AHEAD_BYTES", 256)
    each = len(plan().dispatches) - 1.0
    program = load(plan())
    other = on_owner(WgpuProgram, program.gpu, counting(), True, SharedBuffers(program, ((0, 0),)))
    for numbers in expected(program, 3, 4, 5)[:2] if known else (np.full(8, k, np.float32) for k in (3, 4)):
        on_owner(program.step, numbers)  # numbers that change
    (ahead,) = program.ahead.values()
    assert (ahead.numbers is not None) == known == (ahead.upload is None) and not ahead.is_submitted
    scalars, (count, loss) = program.queue.scalars, (program._memory_of(b) for b in (0, 1))
    assert ahead.written == ([scalars, count, loss] if plan is counting else [scalars, count])
    if way == "rebind":
        on_owner(program.rebind, 0, on_owner(lambda: program.gpu.buffer(64)))
    elif way == "configure":
        on_owner(program.configure, NO_UPDATE)
    elif way == "lend":
        on_owner(other.memory_at, 0)
    else:
        on_owner(program.close)
    assert program.ahead == {} and ahead.is_submitted
    assert on_owner(other.download, 0).tolist() == [2.0 * each], "a step more where it had an effect"
    into = memoryview(bytearray(32))
    on_owner(ahead.queue.read, "test", ahead.queue.scalars, into)
    assert into.cast("f").tolist() == [4.0] * 8
    if way != "close":
        on_owner(program.step, np.full(8, 5, np.float32))
        wanted = [(1, each), (2, 2.0 * each), (3, each if way == "rebind" else 3.0 * each)]
        assert on_owner(program.losses, True) == wanted
    on_owner(other.close)


def test_memory_that_others_have_is_named_by_nothing_that_waits(load: Load) -> None:
    """They may destroy it, and its submission would end the process."""
    program = load(counting())
    on_owner(program.memory_at, 0)
    steps(program, 4)
    assert program.ahead == {}


@pytest.mark.parametrize(("bound", "least"), [("AHEAD_BYTES", -1), ("AHEAD_FLOPS", {"software": -1, "hardware": -1})])
def test_a_long_step_is_not_recorded_ahead(
    load: Load, monkeypatch: pytest.MonkeyPatch, bound: str, least: object
) -> None:
    program = load(counting())
    monkeypatch.setattr(wgpu_queue, bound, least)
    steps(program, 4)
    assert program.ahead == {}


def test_wgpu_keeps_nothing_of_what_was_recorded_ahead(load: Load) -> None:
    before = dict[str, int]()
    for turn in range(8):
        program: Any = on_owner(lambda: WgpuProgram(room.open().gpu, counting()))
        recorded_ahead(program)
        if turn % 2:
            on_owner(program.close)
        else:
            program.cycle = program
        del program
        gc.collect()
        on_owner(room.open().gpu.holding.settle)  # as the watch does, which sleeps for LONG here
        if turn == 3:  # the pools have what they keep
            before = kept_by_wgpu()
    found = kept_by_wgpu()
    assert found["commandBuffers"] <= before["commandBuffers"] and found["bindGroups"] <= before["bindGroups"]
    assert found["buffers"] < before["buffers"] + 4, "of pools; four recordings keep eight and more"


def test_what_a_program_leaves_that_nobody_closed_is_dropped_without_another_call(load: Load) -> None:
    program = load(counting())
    other: Any = on_owner(WgpuProgram, program.gpu, counting(), True, SharedBuffers(program, ((0, 0),)))
    ahead, gone = recorded_ahead(other), weakref.ref(other)
    other.cycle = other
    del other
    gc.collect()
    assert gone() is None
    end = time.monotonic() + 10
    while not ahead.is_submitted and time.monotonic() < end:
        time.sleep(0.001)
    assert ahead.is_submitted
    assert on_owner(program.download, 0).tolist() == [2.0]


def test_a_program_may_be_collected_while_another_holds_a_step(load: Load) -> None:
    """A collection begins between any two instructions, also of the call that wakes the watch."""
    program, holding, spent = load(counting()), room.open().gpu.holding, list[int]()
    ahead: Any = SimpleNamespace(queue=SimpleNamespace(spend=lambda where, ahead: spent.append(1)))

    def collected(frame: Any, event: str, given: Any) -> Any:
        sys.settrace(None)
        holding.abandon({True: ahead})
        sys.settrace(collected)
        return collected

    def hold() -> None:
        sys.settrace(collected)
        holding._rouse()
        sys.settrace(None)

    for awake in (False, True):
        holding._awake = awake
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    on_owner(program.wait)
    on_owner(holding.settle)
    assert spent and not holding.abandoned


def test_of_a_lost_device_what_was_recorded_ahead_is_not_submitted(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission would end the process."""
    monkeypatch.setattr(room, "_opened", {})
    lost, sent = room.open(), list[int]()
    program = on_owner(lost.load, counting())
    ahead = recorded_ahead(program)
    on_owner(program.wait)
    on_owner(lost.gpu.device.destroy)
    monkeypatch.setattr(WgpuQueue, "send", lambda *given: sent.append(1))
    on_owner(program.close)
    assert ahead.is_submitted and not sent


@pytest.mark.parametrize("numbers", [None, np.full(8, 3, np.float32)], ids=["no numbers", "numbers"])
@pytest.mark.parametrize("told", ["constant", "changing", "expected"])
def test_a_step_that_was_recorded_ahead_raises_once_the_device_is_lost(
    load: Load, monkeypatch: pytest.MonkeyPatch, told: str, numbers: Any
) -> None:
    """Nothing is submitted, which would end the process."""
    monkeypatch.setattr(room, "_opened", {})
    lost, sent = room.open(), list[int]()
    program = on_owner(lost.load, counting())
    for row in expected(program, 0, 1, 2)[:2]:
        on_owner(program.step, {"constant": None, "changing": row.copy(), "expected": row}[told])
    on_owner(program.wait)
    (ahead,) = program.ahead.values()
    assert (ahead.numbers is not None, ahead.upload is not None) == (told == "expected", told == "changing")
    on_owner(lost.gpu.device.destroy)
    monkeypatch.setattr(WgpuQueue, "send", lambda *given: sent.append(1))
    with pytest.raises(SessionError, match="step 3: recording.*is lost"):
        on_owner(program.step, numbers)
    assert not sent and not ahead.is_submitted and lost.gpu.lost and program.counters.forwards == 2
    with pytest.raises(SessionError, match="step 3: device: given one that was lost"):
        on_owner(program.step, numbers)
    on_owner(program.close)
    assert not sent


def test_an_error_in_the_midst_of_a_block_of_calls_is_raised_there_and_once(load: Load) -> None:
    gpu, reached = load(counting()).gpu, list[str]()

    def block() -> None:
        with gpu.checked("outer"), gpu.checked("step 3") as calls:
            calls.raise_error()
            reached.append("before")
            gpu.errors.handle_error("Validation", "what")
            calls.raise_error()
            reached.append("behind")

    def body() -> None:
        with pytest.raises(SessionError, match="step 3: recording: given what"):
            block()
        assert reached == ["before"] and not gpu.errors._get_proxy_stack()
        with gpu.checked("next"):
            reached.append("next")
        assert not gpu.errors._get_proxy_stack()
        with pytest.raises(ZeroDivisionError), gpu.checked("another"):  # the first is the one to raise
            gpu.errors.handle_error("Validation", "what")
            raise ZeroDivisionError

    on_owner(body)
    assert reached == ["before", "next"]


def test_an_error_of_a_recording_ahead_is_told_by_the_step_that_it_is_for(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load(counting())
    steps(program, 2)

    def refused(*given: Any) -> Any:
        raise SessionError("record", "what", "given", "wanted")

    monkeypatch.setattr(program.gpu, "record", refused)
    steps(program, 1)  # it was recorded before
    with pytest.raises(SessionError, match="record: what"):
        steps(program, 1)
    monkeypatch.undo()
    steps(program, 1)
    assert on_owner(program.losses, True) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


@pytest.mark.parametrize("known", [True, False])
def test_a_step_without_numbers_leaves_those_of_the_last_one(load: Load, known: bool) -> None:
    """Also where one with other numbers was expected: a mapped buffer that it would have copied them from is filled all
    the same, for a submission that reads mapped memory ends the process."""
    program = load(counting())
    rows = expected(program, 0, 1, 2, 3) if known else [np.full(8, k, np.float32) for k in range(3)]
    for k, row in enumerate(rows[:3]):
        assert numbers_behind(program, row) == [float(k)] * 8
    assert (program.ahead[True].numbers is not None) == known == (program.ahead[True].upload is None)
    assert [numbers_behind(program, None) for _ in range(3)] == [[2.0] * 8] * 3
    assert numbers_behind(program, np.full(8, 5, np.float32)) == [5.0] * 8
    assert len(on_owner(program.losses, True)) == 7


def test_a_session_steps_on_once_its_rule_is_cleared() -> None:
    needs("wgpu")
    with Graph() as g:
        g.set_outputs([(ops.input("x", (4, 3)) @ ops.parameter("w", (3, 2))).square().mean_all()])
    with build(g, SessionConfig("training", "wgpu"))[0] as session:
        session.initialize(seed=1)
        session.set_input("x", np.ones((4, 3), np.float32))
        for rule in (lambda: session.set_adam(0.1), session.clear_optimizer, lambda: session.set_learning_rate(0.1)):
            rule()
            for _ in range(4):
                session.step()
                session.wait()
        losses = [loss for _, loss in session.take_losses(True)]
    assert len(losses) == 12 and len(set(losses[4:9])) == 1 and losses[8] > losses[9] > losses[11]


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each write to the adapter from now on."""
    written, put = list[int](), WgpuQueue.put

    def noted(self: WgpuQueue, where: str, memory: Any, data: Any, start: int = 0) -> None:
        written.append(memoryview(data).nbytes)
        put(self, where, memory, data, start)

    monkeypatch.setattr(WgpuQueue, "put", noted)
    return written


def test_expected_numbers_are_written_together(load: Load, puts: list[int]) -> None:
    """The first step writes its own, for nothing is recorded then; the second records the third, which copies them."""
    program = load(counting())
    rows, stride = expected(program, *range(6)), int(program.queue.scalars.size)
    puts.clear()
    assert [numbers_behind(program, row)[0] for row in rows] == [*map(float, range(6))]
    assert puts == [32, 32, 6 * stride], "the third and those behind it copy what is there"
    assert program.ahead[True].numbers is None, "nobody knows what comes now"
    assert program.ahead[True].upload is not None
    assert numbers_behind(program, np.full(8, 7, np.float32)) == [7.0] * 8
    following = expected(program, 8, 9, 10)
    assert [numbers_behind(program, row)[0] for row in following] == [8.0, 9.0, 10.0] and puts[3:] == [3 * stride]
    assert on_owner(program.losses, True)[-1] == (10, 10.0)


def test_numbers_that_nobody_expects_are_written_where_a_step_copies_them_from(load: Load, puts: list[int]) -> None:
    """Constant ones are in place; either way the next program that reads them finds them there."""
    program = load(counting())
    puts.clear()
    fixed = np.full(8, 7, np.float32)
    assert [numbers_behind(program, fixed)[0] for _ in range(4)] == [7.0] * 4 and len(puts) == 1
    assert [numbers_behind(program, np.full(8, k, np.float32)) for k in range(6)] == [[float(k)] * 8 for k in range(6)]
    assert len(puts) == 2, "the first that changed; then each is written ahead of its copy"
    assert 1 <= len(program.queue.uploads) <= 3
    assert [numbers_behind(program, fixed)[0] for _ in range(3)] == [7.0] * 3
    before = len(puts)
    assert [numbers_behind(program, fixed)[0] for _ in range(3)] == [7.0] * 3 and len(puts) == before
    assert on_owner(program.losses, True)[-1][0] == 16


def test_numbers_other_than_expected(load: Load) -> None:
    """A step gets its own, whatever was expected, and those behind it get theirs."""
    program, rng = load(counting()), np.random.default_rng(7)
    for _ in range(40):
        rows = expected(program, *rng.normal(size=int(rng.integers(1, EXPECTED + 1))))
        for row in rows[: int(rng.integers(0, 6))]:
            match int(rng.integers(0, 5)):
                case 0:  # another one
                    row = np.full(8, rng.normal(), np.float32)
                case 1:  # one of these, out of order
                    row = rows[int(rng.integers(0, len(rows)))]
                case 2:
                    expected(program, 1, 2, 3)
            assert numbers_behind(program, row) == row.tolist()
            if rng.integers(0, 3) == 0:
                assert numbers_behind(program, row) == row.tolist(), "again the same"


def test_what_is_recorded_for_two_kinds_of_steps_copies_from_one_memory(load: Load) -> None:
    """A step that is not whole leaves what was recorded for the next whole one; then other numbers are expected."""
    program = load(counting())
    rows = expected(program, 1, 2, 3, 4, 5)
    for row in rows[:3]:
        assert numbers_behind(program, row) == row.tolist()
    assert program.ahead[True].numbers is not None and program.ahead[True].numbers.row == 3
    others = expected(program, 6, 7, 8, 9)
    for row in others[:2]:
        on_owner(program.step, row, False)
    assert program.ahead[False].numbers is not None and program.ahead[False].numbers.row == 2
    assert numbers_behind(program, rows[3]) == [4.0] * 8, "where 9 is written now"
    for row in others[2:]:
        on_owner(program.step, row, False)
        into = memoryview(bytearray(32))
        on_owner(program.queue.read, "test", program.queue.scalars, into)
        assert into.cast("f").tolist() == row.tolist()
        assert (program.ahead[False].numbers is None) == (row is others[3])


def test_a_session_tells_the_numbers_of_steps_ahead(puts: list[int]) -> None:
    """More each time, up to EXPECTED; a rate that changes in each step tells no more than that step's."""
    needs("wgpu")
    with training("adam") as session, training("adam") as other:
        puts.clear()
        for _ in range(80):
            session.step()
            session.wait()
        assert len(session.steps._scalars.rows) == EXPECTED
        tables = [size for size in puts if size > 256]
        assert tables == [256 * rows for rows in (2, 4, 8, 16, 32, 32)] and len(puts) <= 2 * len(tables) + 1
        for k in range(20):
            other.set_adam(1e-2 / (k + 1))
            other.step()
            other.wait()
            assert len(other.steps._scalars.rows) <= 2


@pytest.mark.parametrize("rule", ["adam", "accumulated"])
def test_expected_numbers_change_no_bit(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")

    def found() -> list[object]:
        with training(rule) as session:
            for k in range(100):
                if k in (20, 37, 70):
                    session.set_adam(1e-2 / k)
                session.step(3 if k % 9 == 8 else None)
                session.wait()
            return [session.take_losses(True), session.read_param("a").tobytes(), session.adam_step_count()]

    ahead = found()
    monkeypatch.setattr(WgpuProgram, "expect_scalars", lambda self, rows: None)
    assert ahead == found()


def test_rows_are_found_by_both_numbers_of_a_step() -> None:
    """With dropout and gradients that are summed, one goes on in each step and the other in some."""
    adam = Optimizer("adam", 0.1)
    rows = ScalarRows(adam, 3, 10, True, 4)
    for k in range(4):
        found = rows.find(Optimizer("adam", 0.1), 3 + k, 10 + k)
        assert found is rows.rows[k] and found.tolist() == scalars(adam, 3 + k, 10 + k).tolist()
    others = ((3, 11), (4, 10), (2, 9), (7, 14), (4, 12), (5, 11))
    assert [rows.find(adam, *other) for other in others] == [None] * len(others)
    assert rows.find(Optimizer("adam", 0.2), 3, 10) is None and rows.find(Optimizer("adamw", 0.1), 3, 10) is None
    assert rows.ends_before(adam, 7, 14) and not rows.ends_before(adam, 6, 14) and not rows.ends_before(adam, 8, 15)


def test_a_rule_may_end_before_the_steps_that_are_told_ahead() -> None:
    """Its error is that of the step that it has no numbers for."""
    rows = ScalarRows(Optimizer("adam", 0.1), 1, 0, False, 8).rows
    assert len(rows) == 8

    def until_third(numbers: Mapping[str, float], updates: int) -> Mapping[str, float]:
        if updates > 3:
            raise LookupError("no rate")
        return ADAM.per_step(numbers, updates)

    ADAM = RULES["adam"]
    ending = dataclasses.replace(ADAM, per_step=until_third)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "adam", ending)
        found = ScalarRows(Optimizer("adam", 0.1), 1, 0, False, 8).rows
        assert [row.tolist() for row in found] == [row.tolist() for row in rows[:3]]
        with pytest.raises(LookupError, match="no rate"):
            ScalarRows(Optimizer("adam", 0.1), 4, 0, False, 8)


# held -----------------------------------------------------------------------------------------------------------------
def test_steps_in_a_row_share_submissions_that_grow(load: Load) -> None:
    program, found = load(counting()), list[int]()
    for _ in range(IN_A_ROW + 2 + 4 + 8 + 3):
        steps(program, 1)
        found.append(program.counters.submissions)
    alone = [*range(1, IN_A_ROW + 1)]
    last = alone[-1]
    assert found == [*alone, last, last + 1, *[last + 1] * 3, last + 2, *[last + 2] * 7, *[last + 3] * 4]
    assert program.counters.dispatches == 2 * len(found) == program.counters.workgroups
    assert len(program.held.calls) == 3 and program.counters.forwards == len(found)
    on_owner(program.wait)
    assert program.held.calls == [] and program.counters.submissions == last + 4
    assert on_owner(program.losses, True) == [(k, float(k)) for k in range(1, len(found) + 1)]
    steps(program, 3)  # now that they are bound, from the second on
    assert program.counters.submissions == last + 6
    assert on_owner(program.losses, True)[-1] == (len(found) + 3, len(found) + 3.0)


def test_a_submission_has_no_more_steps_than_one_may_have(load: Load) -> None:
    program = load(counting())
    steps(program, IN_A_ROW + 600)
    on_owner(program.wait)
    assert max(series.most for series in program.series.values()) <= AT_ONCE
    assert on_owner(program.losses, True)[-1] == (IN_A_ROW + 600, IN_A_ROW + 600.0)


CALLS: dict[str, Callable[[WgpuProgram], object]] = {
    "wait": lambda program: program.wait(),
    "download": lambda program: program.download(0),
    "upload": lambda program: program.upload(0, np.zeros(1, np.float32)),
    "losses": lambda program: program.losses(False),
    "memory_at": lambda program: program.memory_at(0),
    "store_copy": lambda program: program.store_copy([0]),
    "profile": lambda program: program.profile((0, 1)),
    "run": lambda program: program.run(0, 1),
    "step with a landing": lambda program: program.step(None, landing=program.queue.readback(4)),
    "poison": lambda program: program.poison(),
    "close": lambda program: program.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_held_steps_go_before_anything_else(name: str, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program, sent = load(counting()), list[str]()
    steps(program, IN_A_ROW + 1)
    assert len(program.held.calls) == 1
    send = WgpuQueue.send
    monkeypatch.setattr(WgpuQueue, "send", lambda *given: (sent.append("sent"), send(*given))[1])
    single, write = program._single, WgpuQueue.put
    monkeypatch.setattr(program, "_single", lambda *given, **more: (sent.append("held"), single(*given, **more)))
    monkeypatch.setattr(WgpuQueue, "put", lambda *given: (sent.append("written"), write(*given))[1])
    on_owner(CALLS[name], program)
    assert program.held.calls == [] and sent[:2] == ["held", "sent"]
    assert program.held.row == 0 or not program.open


def test_work_of_other_programs_keeps_its_order(load: Load) -> None:
    counts = load(counting())
    reads = load(
        make_plan([tensor(0, "count", 1, "input"), tensor(1, "y", 1, "output")], [dispatch(0, "double", "0", 1)]),
        shared=SharedBuffers(counts, ((0, 0),)),
    )
    for k in range(1, IN_A_ROW + 8):
        steps(counts, 1)
        steps(reads, 1)  # each is held behind others of its own
        if k % 5 == 0:
            assert on_owner(reads.download, 1)[0] == 2.0 * k
    assert on_owner(reads.download, 1)[0] == 2.0 * (IN_A_ROW + 7)
    assert on_owner(counts.losses, True)[-1] == (IN_A_ROW + 7, IN_A_ROW + 7.0)


def test_memory_that_others_have_is_written_at_once(load: Load) -> None:
    program = load(counting())
    memory, _ = on_owner(program.memory_at, 0)
    steps(program, IN_A_ROW + 3)
    assert program.held.calls == []
    into = memoryview(bytearray(4))
    on_owner(program.queue.read, "test", memory, into)
    assert into.cast("f")[0] == IN_A_ROW + 3


def test_memory_lent_by_a_program_is_lent_by_those_that_share_it(load: Load) -> None:
    one = load(counting())
    other = load(counting(), shared=SharedBuffers(one, ((0, 0),)))
    apart = load(counting())
    steps(apart, IN_A_ROW + 1)
    steps(other, IN_A_ROW + 1)
    assert len(other.held.calls) == 1
    memory, _ = on_owner(one.memory_at, 0)
    assert other.held.calls == [], "whoever has it now may read it without us"
    into = memoryview(bytearray(4))
    on_owner(one.queue.read, "test", memory, into)
    assert into.cast("f")[0] == IN_A_ROW + 1 and other.lent and not apart.lent
    steps(other, IN_A_ROW + 3)
    on_owner(one.queue.read, "test", memory, into)
    assert other.held.calls == [] and into.cast("f")[0] == 2 * IN_A_ROW + 4
    steps(apart, IN_A_ROW)
    assert apart.held.calls, "nobody else has its memory"


def test_steps_are_submitted_once_no_other_comes(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_steps, "HELD_SECONDS", 1e-3)
    program = load(counting())
    for _ in range(3):  # the watch begins anew
        steps(program, IN_A_ROW + 1)
        deadline = time.monotonic() + 20
        while program.held.calls and time.monotonic() < deadline:
            time.sleep(1e-3)
        assert program.held.calls == [] and program.gpu.holding.program is None
        memory = program._memory_of(0)
        into = memoryview(bytearray(4))
        on_owner(program.queue.read, "test", memory, into)
        assert into.cast("f")[0] == program.counters.forwards


def test_an_error_of_held_steps_comes_with_the_next_call_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program, other = load(counting()), load(doubling())
    steps(program, IN_A_ROW + 1)

    def refused(*given: Any, **more: Any) -> None:
        raise SessionError("step 9", "what", "given", "wanted")

    monkeypatch.setattr(program, "_single", refused)
    on_owner(other.upload, 0, np.ones(64, np.float32))  # not an error of this program
    with pytest.raises(SessionError, match="step 9: what"):
        on_owner(program.wait)
    monkeypatch.undo()
    on_owner(program.wait)
    assert program.counters.forwards == IN_A_ROW
    steps(program, 1)
    assert on_owner(program.losses, True)[-1] == (IN_A_ROW + 1, IN_A_ROW + 1.0)


@pytest.mark.parametrize("held", [1, 3])
def test_after_the_loss_of_the_device_held_steps_raise(held: int, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_opened", {})
    lost = room.open()
    program = lost.load(counting())
    steps(program, IN_A_ROW + 2 + held)
    assert len(program.held.calls) == held
    on_owner(lost.gpu.device.destroy)
    with pytest.raises(SessionError, match="lost"):
        on_owner(program.wait)
    with pytest.raises(SessionError, match="lost"):
        steps(program, 1)
    on_owner(program.close)


# sessions -------------------------------------------------------------------------------------------------------------
def training(rule: str) -> Session:
    session, _ = build(dropping(), SessionConfig("training", "wgpu"))
    session.initialize(seed=1)
    if rule == "sgd":
        session.set_learning_rate(0.1)
    else:
        session.set_adam(1e-2)
    session.set_grad_accumulate(3 if rule == "accumulated" else 1)
    rng = np.random.default_rng(3)
    session.set_input("x", rng.normal(size=(8, 12)).astype(np.float32))
    session.set_input("y", rng.normal(size=(8, 3)).astype(np.float32))
    return session


def between(session: Session, choice: int, rng: np.random.Generator) -> object:
    """Ask for something else than a step, with a result to compare."""
    match choice:
        case 0:
            return session.set_input("x", rng.normal(size=(8, 12)).astype(np.float32))
        case 1:
            return session.read_param("a").tobytes()
        case 2:
            return session.set_adam(float(rng.uniform(1e-3, 1e-1)))
        case 3:
            return session.step(int(rng.integers(1, 5)))
        case 4:
            return session.read_loss()
        case 5:
            return session.set_parameter("b", rng.normal(size=(20, 3)).astype(np.float32))
        case 6:
            return session.read_param_grad("a").tobytes()
        case _:
            return session.wait()


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("rule", ["sgd", "adam", "accumulated"])
def test_any_mixture_of_calls_has_the_bits_of_steps_one_by_one(
    rule: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where steps are long: nothing is held, and the first two dispatches are recorded ahead."""
    needs("wgpu")
    if long:
        monkeypatch.setattr(wgpu_queue, "FIRST_PART", 2)
        monkeypatch.setattr(WgpuRecorded, "_is_cheap", lambda self, bounds: len(bounds) == 2)
        monkeypatch.setattr(WgpuProgram, "_holds", lambda self, whole: False)

    def found(seed: int) -> list[object]:
        choices, data, said = np.random.default_rng(seed), np.random.default_rng(seed + 1), list[object]()
        with training(rule) as session:
            for _ in range(12):
                for _ in range(int(choices.integers(0, 20))):
                    session.step()
                said.append(between(session, int(choices.integers(0, 8)), data))
            said += [session.take_losses(True), session.read_param("a").tobytes(), session.step_count]
            traffic = session.traffic
            return [*said, traffic.forwards, traffic.dispatches, traffic.workgroups, traffic.uploads]

    held = [found(seed) for seed in range(3)]
    monkeypatch.setattr(WgpuProgram, "_holds", lambda self, whole: False)
    monkeypatch.setattr(WgpuProgram, "_recorded_ahead", lambda *given: (_ for _ in ()).throw(SessionError(*"abcd")))
    assert held == [found(seed) for seed in range(3)]
