"""Steps of an adapter that are held to be submitted together: the values, counts and order of work are those of steps
submitted one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from machine import needs
from wgpu_plans import Load, counting, dispatch, doubling, loading, make_plan, on_owner, tensor

from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.devices.base import SharedBuffers
from gdlab.devices.wgpu import held_steps
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.wgpu.held_steps import IN_A_ROW
from gdlab.devices.wgpu.plan_replay import AT_ONCE, WgpuProgram
from gdlab.devices.wgpu.wgpu_queue import WgpuQueue
from gdlab.graph import Graph
from gdlab.session import Session, SessionConfig, build

LONG = 60.0  # seconds without a step, after which nothing is submitted in a test


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
    with pytest.raises(SessionError, match="is lost"):
        on_owner(program.wait)
    with pytest.raises(SessionError, match="lost"):
        steps(program, 1)
    on_owner(program.close)


# sessions -------------------------------------------------------------------------------------------------------------
def network() -> Graph:
    """Two layers with dropout, of which each step draws anew."""
    with Graph() as g:
        x, y = ops.input("x", (8, 12)), ops.input("y", (8, 3))
        h = ops.dropout((x @ ops.parameter("a", (12, 20))).relu(), 0.3)
        g.set_outputs([ops.mse_loss(h @ ops.parameter("b", (20, 3)), y)])
    return g


def training(rule: str) -> Session:
    session, _ = build(network(), SessionConfig("training", "wgpu"))
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


@pytest.mark.parametrize("rule", ["sgd", "adam", "accumulated"])
def test_any_mixture_of_calls_has_the_bits_of_steps_one_by_one(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")

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
    assert held == [found(seed) for seed in range(3)]
