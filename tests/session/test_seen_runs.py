"""The picture of a run shows which dispatch is under way, and norms of gradients, sampled now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from networks import small_mlp

from gdlab.session.run import gradient_norms
from gdlab.session.run.gradient_norms import GradientNorms, norm_of
from gdlab.study.study import Study
from gdlab.view.text.twin import twin


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    made = Study(small_mlp(), train=True, device=device, name="mlp")
    made.prepare(feed="random:0", adam=1e-2, init=0)
    yield made
    made.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the norms; it stands."""
    at = [100.0]
    monkeypatch.setattr(gradient_norms, "time", SimpleNamespace(monotonic=lambda: at[0]))
    return at


def test_nobody_looks_and_nothing_is_read(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientNorms, "_read", lambda *_, **__: pytest.fail("gradients were read"))
    study.run(5)
    assert study.runner.norms.courses == () and "gradient_norms" not in study.doc.data["runs"][0]


def test_one_reading_for_each_time_that_somebody_asks(study: Study, now: list[float]) -> None:
    norms, traffic = study.runner.norms, study.session.traffic

    def feed(step: int) -> dict[str, np.ndarray]:
        now[0] += 1.0
        if step in (1, 4):
            norms.ask()
        return batch

    batch = dict(study.runner.feed(0))
    study.run(9, feed=feed)
    steps = [step for step, _ in norms.courses[0].samples]
    assert steps == [2, 5, 9], "behind the steps that were under way, and behind the last"
    assert [c.name for c in norms.courses] == study.session.param_names()
    for course in norms.courses:
        want = norm_of(study.session.read_param_grad(course.name))
        assert course.samples[-1] == (9, pytest.approx(want)) and want > 0
    study.run(3)
    assert [step for step, _ in norms.courses[0].samples] == steps, "of the next run nobody asked"
    read = traffic.readback_bytes
    norms.ask()
    now[0] += 1
    norms.sample(12)
    assert traffic.readback_bytes == read, "what is read to tell of a run is no part of it"
    study.reset()
    assert norms.courses == ()


def test_readings_keep_within_their_share_of_the_time(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    at, norms = [0.0], study.runner.norms
    monkeypatch.setattr(gradient_norms, "time", SimpleNamespace(monotonic=lambda: at[0]))
    study.run(1)
    read: list[float] = []
    monkeypatch.setattr(norms, "_read", lambda *_, **__: (read.append(at[0]), at.__setitem__(0, at[0] + 0.1)))
    for step in range(2, 400):
        norms.ask()
        norms.sample(step)
        at[0] += 0.05
    assert len(read) * 0.1 <= at[0] / 50, "a reading of 0.1 s comes every 6 s"


def test_the_memory_is_bounded_and_a_course_stays_even(study: Study) -> None:
    study.run(1)
    norms = study.runner.norms
    for step in range(2, 3000):
        norms._read(step, 1 << 30, last=False)
    norms._read(3000, 1 << 30, last=True)
    samples = norms.courses[0].samples
    assert 60 <= len(samples) <= 128 and samples[-1][0] == 3000
    gaps = np.diff([step for step, _ in samples[:-1]])
    assert len(set(gaps.tolist())) == 1, "every one as far from the next"
    norms._next = 0
    norms._read(3001, 1, last=False)
    assert [c.samples[-1][0] for c in norms.courses][1:] == [3000] * 3, "of large gradients some at a time"


def test_the_document_and_its_twin_tell_them(study: Study, now: list[float]) -> None:
    assert norm_of(np.array([3.0, 4.0], np.float32)) == 5.0 and np.isnan(norm_of(np.array([np.nan], np.float32)))
    study.runner.norms.ask()
    study.run(1)
    study.runner.norms.ask()
    now[0] += 10
    study.run(4)
    (run,) = study.doc.data["runs"]
    w1 = next(row for row in run["gradient_norms"] if row["name"] == "w1")
    node = next(n.id for n in study.graph.parameters if n.name == "w1")
    assert w1["about"] == f"node:0.{node}" and w1["steps"][0] == 1 and w1["steps"][-1] == 5
    assert len(w1["norms"]) == len(w1["steps"])
    lines = twin(study.doc, "session").splitlines()
    (line,) = [line for line in lines if "‖∂w1‖" in line]
    assert line.startswith(f"node:0.{node}   ‖∂w1‖  ") and " at step 1 → " in line and line.endswith("at step 5")
    assert set(line.split("  ")[2].strip()) <= set("▁▂▃▄▅▆▇█")
    assert "gradient_norms" not in study.doc.portable(timeless=True).data["runs"][0], "sampled by the clock"


def test_a_fast_run_is_shown_in_slow_motion_and_a_slow_step_where_it_is(study: Study) -> None:
    runner, count = study.runner, len(study.session.step_dispatches())
    assert runner.dispatch_under_way() == -1, "nothing runs"
    sweeps: list[int] = []
    batch = dict(runner.feed(0))
    study.run(2 * count, feed=lambda step: (sweeps.append(runner.dispatch_under_way()), batch)[1])
    first = sweeps[0]
    assert sweeps == [(first + k) % count for k in range(2 * count)], "one further each time"
    assert runner.dispatch_under_way() == -1


def test_cpu_tells_how_far_a_step_is() -> None:
    study = Study(small_mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    study.run(1)
    program, told = study.session.loaded.program, list[int]()
    for recorded in (program.launches, program.update_launches):
        for k, begin in enumerate([0, *recorded.ends[:-1]]):  # a call more at the begin of each dispatch
            recorded.calls.insert(begin + k, (lambda: told.append(program.dispatch_under_way()), ()))
        recorded.ends = [end + k + 1 for k, end in enumerate(recorded.ends)]
    study.run(1)
    assert told == list(range(len(study.session.step_dispatches())))
    study.close()


def test_a_gpu_that_tells_nothing_is_told_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(small_mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    study.run(3)
    clock = study.runner.under_way
    monkeypatch.setattr(type(study.session.loaded.program), "dispatch_under_way", lambda _: None)
    monkeypatch.setattr(type(study.runner.log), "steps_per_second", 10.0)
    clock.sample()
    seen = []
    last = (1 + clock._shares()[-2]) / 2  # in the midst of the last dispatch, however short a busy machine predicts it
    for share in (*(part / 20 for part in range(20) if part / 20 < last), last):
        clock._began = time.perf_counter() - share / 10
        seen.append(clock.sample())
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] == len(study.session.step_dispatches()) - 1
    study.close()
