"""Waits for an adapter: a list of known pace is slept through but for its end, and what is known follows the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdlab.devices.wgpu import readback as room
from gdlab.devices.wgpu.readback import Fence, Pace

MS = 1e-3


class Adapter:
    """An adapter and a clock: a poll takes 20 µs, one that blocks ends 150 µs late, a sleep 60."""

    adapter_class = "hardware"

    def __init__(self) -> None:
        self.now = self.end = 0.0
        self.submitted, self.ended, self.polls, self.blocked, self.slept = 0, -1, 0, 0, 0.0

    def alive(self, where: str) -> None:
        """Say nothing."""

    def poll(self, submission: int | None = None) -> None:
        self.now = self.now + 20e-6 if submission is None else max(self.now, self.end) + 150e-6
        self.polls, self.blocked = self.polls + 1, self.blocked + (submission is not None)
        if self.now >= self.end:
            self.ended = self.submitted

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + 60e-6
        self.slept += seconds


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    made = Adapter()
    monkeypatch.setattr(room, "time", made)
    return made


Step = Callable[..., float]


@pytest.fixture
def step(adapter: Adapter) -> Step:
    """Wait for a list that takes so long, `behind` seconds after it was submitted; return how late the wait ended."""
    pace = Pace()

    def made(seconds: float, behind: float = 0.0, pace: Pace | None = pace) -> float:
        gpu: Any = adapter
        fence = Fence(gpu)
        adapter.submitted, adapter.end, adapter.polls, adapter.blocked = (
            adapter.submitted + 1,
            adapter.now + seconds,
            0,
            0,
        )
        adapter.slept = 0.0
        fence.request("test", adapter.submitted)
        fence.pace = pace
        if pace is not None:
            pace.begun = adapter.now
        adapter.now += behind
        fence.wait()
        return adapter.now - adapter.end

    return made


def test_a_long_list_is_slept_through_but_for_its_end(adapter: Adapter, step: Step) -> None:
    assert step(10 * MS) > 100e-6 and adapter.blocked == 1, "nothing is known of the first"
    for _ in range(5):
        assert step(10 * MS) <= 25e-6 and adapter.blocked == 0
        assert adapter.slept > 8 * MS and adapter.polls < 80


def test_without_a_pace_a_wait_spins_and_then_sleeps(adapter: Adapter, step: Step) -> None:
    for _ in range(3):
        assert step(10 * MS, pace=None) > 100e-6
        assert adapter.blocked == 1 and adapter.slept == 0 and adapter.polls == pytest.approx(51, abs=2)


def test_a_short_list_is_not_slept_through(adapter: Adapter, step: Step) -> None:
    for _ in range(5):
        assert step(0.9 * MS) <= 25e-6 and adapter.slept == 0 and adapter.blocked == 0


def test_what_is_known_follows_steps_that_become_shorter_or_longer(adapter: Adapter, step: Step) -> None:
    for _ in range(3):
        step(10 * MS)
    late = [step(4 * MS) for _ in range(8)]
    assert late[0] < 6 * MS and max(late[5:]) <= 25e-6, late
    late = [step(12 * MS) for _ in range(12)]
    assert max(late) < 250e-6 and max(late[8:]) <= 25e-6 and adapter.slept > 9 * MS, late


def test_one_slow_step_changes_little(adapter: Adapter, step: Step) -> None:
    for _ in range(3):
        step(10 * MS)
    step(80 * MS)
    assert step(10 * MS) < 2 * MS
    step(10 * MS)
    assert step(10 * MS) <= 25e-6


def test_a_wait_that_comes_late_tells_nothing(adapter: Adapter, step: Step) -> None:
    for _ in range(3):
        step(4 * MS)
    for _ in range(10):
        step(4 * MS, behind=30 * MS)
        assert adapter.slept == 0 and adapter.polls <= 1
    assert step(4 * MS) <= 25e-6
    assert step(4 * MS, behind=1 * MS) <= 25e-6 and 2 * MS < adapter.slept < 3 * MS
