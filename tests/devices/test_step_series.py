"""Steps that need nothing of one another run side by side in one submission, with the bits of steps one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from machine import needs
from networks import dropping
from wgpu_plans import counting, loading, on_owner

from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.devices.wgpu import step_series
from gdlab.devices.wgpu.step_series import StepSeries
from gdlab.devices.wgpu.transitions import group_starts, uses_of
from gdlab.graph import Graph
from gdlab.session import Session, SessionConfig, build

COUNT = 5


@pytest.fixture(autouse=True)
def adapter() -> None:
    needs("wgpu")


def untrained() -> Session:
    """Losses and gradients of a network with random numbers, and no update."""
    session, _ = build(dropping(), SessionConfig("training", "wgpu"))
    session.initialize(seed=1)
    return session


def feeds(count: int = COUNT) -> list[Mapping[str, Any]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.normal(size=(8, 12)).astype(np.float32), "y": rng.normal(size=(8, 3)).astype(np.float32)}
            for _ in range(count)]  # fmt: skip


def found(session: Session) -> tuple[Any, ...]:
    gradients = [session.read_param_grad(name).tobytes() for name in session.param_names()]
    values = [value.tobytes() for _, value in session.dispatch_outputs()]
    traffic = session.traffic
    return session.take_losses(True), gradients, values, traffic.dispatches, traffic.workgroups, session.step_count


def series_of(session: Session) -> list[StepSeries]:
    program: Any = session.loaded.program
    return [*program.series.values()]


@pytest.mark.parametrize("room", [step_series.SIDE_BYTES, 0])
@pytest.mark.parametrize("fed", [COUNT, COUNT - 1, 0])
def test_steps_without_an_update_have_the_bits_of_steps_one_by_one(
    fed: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own inputs, the first perhaps with those that were set; or all with these."""
    monkeypatch.setattr(step_series, "SIDE_BYTES", room)
    with untrained() as one, untrained() as many:
        for session in (one, many):
            for name, data in feeds(1)[0].items():
                session.set_input(name, data)
        for count in (COUNT, 2, 3):  # more of them, fewer, and as many as never before
            given = [*[{}] * (count - min(fed, count)), *feeds(count)[: fed or 0]][-count:] if fed else None
            for feed in given or [{}] * count:
                for name, data in feed.items():
                    one.set_input(name, data)
                one.step()
            many.step(count, None if given is None or any(not feed for feed in given[1:]) else given)
            assert found(many)[:3] == found(one)[:3]
        assert found(many) == found(one)
        assert [each.side_by_side for each in series_of(many)] == [room > 0] * len(series_of(many))
        assert many.traffic.submissions < one.traffic.submissions


def test_where_the_adapter_has_no_memory_for_it_steps_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with untrained() as one, untrained() as many:
        program: Any = many.loaded.program
        make, made = program._buffer, list[int]()

        def refusing(nbytes: int, name: str) -> Any:
            made.append(nbytes)
            if len(made) == 12:  # in the midst of those of a step; inputs, loss and numbers come before
                raise SessionError("device", f"tensor {name}", "no memory", "memory for it")
            return make(nbytes, name)

        monkeypatch.setattr(program, "_buffer", refusing)
        for feed in feeds():
            for name, data in feed.items():
                one.set_input(name, data)
            one.step()
        many.step(COUNT, feeds())
        assert [each.side_by_side for each in series_of(many)] == [False] and len(made) == 12
        assert found(many) == found(one)


def inferring() -> Session:
    """Two products of one input, side by side, then a third."""
    with Graph() as g:
        x = ops.input("x", (4, 8))
        both = (x @ ops.parameter("w", (8, 8))).relu() @ (x @ ops.parameter("u", (8, 4))).reshape((8, 2))
        g.output(both @ ops.parameter("v", (2, 3)))
    session, _ = build(g, SessionConfig("inference", "wgpu"))
    session.initialize(seed=2)
    session.set_input("x", np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32))
    return session


def test_a_group_of_all_steps_stands_between_two_barriers() -> None:
    with inferring() as session:
        session.step(3)
        (series,) = series_of(session)
        (part,) = series.recorded([True] * 3)
        groups = [bound.dispatch.group for bound in part.bounds]
        assert len(part) == 3 * len(series.launches) and groups == sorted(groups)
        alone = group_starts([uses_of(bound) for bound in series.launches])
        assert len(group_starts([uses_of(bound) for bound in part.bounds])) == len(alone) == 3
        assert [*part.bounds[:2]] == series.launches[:2], "the last step comes first, in the memory of single steps"
        written = [id(r.memory) for b in part.bounds for r in b.keep[2][-1:]]
        assert len({*written}) == len(part), "no memory is written twice"


def test_what_reads_what_a_step_before_wrote_runs_in_turn() -> None:
    with loading() as load:
        program = load(counting())
        on_owner(program.step, None)
        assert not StepSeries(program, (), 4).side_by_side  # it counts in place
    with untrained() as session:
        session.set_learning_rate(0.1)
        for name, data in feeds(1)[0].items():
            session.set_input(name, data)
        session.step(2)
        assert [series.side_by_side for series in series_of(session)] == [False]


def test_where_memory_is_short_steps_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with untrained() as session:
        for name, data in feeds(1)[0].items():
            session.set_input(name, data)
        session.step(2)
        (series,) = series_of(session)
        program: Any = session.loaded.program
        needed = (series.most - 1) * sum(series._written.values())
        for free, fits in ((4 * needed, True), (4 * needed - 4, False), (None, True)):
            monkeypatch.setattr(program.gpu, "free_bytes", lambda free=free: free)
            assert StepSeries(program, (), series.most).side_by_side == fits


def test_held_steps_of_inference_leave_what_the_last_of_them_made() -> None:
    with inferring() as session:
        x, outputs = np.random.default_rng(1).normal(size=(2, 4, 8)).astype(np.float32), list[bytes]()
        for data in x:
            session.set_input("x", data)
            for _ in range(40):  # those behind the first eight are held
                session.step()
            outputs.append(session.read_output().tobytes())
        assert [each.side_by_side for each in series_of(session)] == [True]
        for data, output in zip(x, outputs, strict=True):
            session.set_input("x", data)
            session.step()
            assert session.read_output().tobytes() == output
        assert outputs[0] != outputs[1] and session.step_count == 82
