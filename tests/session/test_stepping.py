"""A step made dispatch by dispatch, and back, has the values of a whole one, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import networks
import numpy as np
import pytest
import random_graphs

from gdlab import ops
from gdlab.base.errors import ArgumentError, SessionError
from gdlab.devices.base import owner
from gdlab.graph import Graph
from gdlab.session import Session
from gdlab.session.progress import PartialStep
from gdlab.study.study import Study

STEPS = 5


def opened(device: str, **rule: Any) -> Study:
    study = Study(networks.mlp(batch=8), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", init=0, **(rule or {"adam": 1e-2}))
    return study


def state(session: Session) -> dict[str, bytes]:
    """Everything that a step leaves behind, as bytes."""
    names = session.param_names()
    found = {n: session.read_param(n).tobytes() for n in names}
    found |= {f"∂{n}": session.read_param_grad(n).tobytes() for n in names}
    found |= {f"m {n}": session.read_adam_m(n).tobytes() for n in names}
    found |= {f"v {n}": session.read_adam_v(n).tobytes() for n in names}
    return found | {"loss": np.float32(session.read_loss()).tobytes(), "t": bytes([session.adam_step_count()])}


def by_dispatches(study: Study, steps: int, stride: int) -> None:
    """`steps` steps, `stride` dispatches at a time."""
    runner, left = study.runner, steps * len(study.session.step_dispatches())
    while left:
        runner.wait(runner.step_dispatch(min(stride, left)))
        left -= min(stride, left)


@pytest.mark.parametrize("rule", [{"sgd": 0.1}, {"adam": 1e-2}])
@pytest.mark.parametrize("stride", [1, 5])
def test_steps_by_dispatches_are_steps(device: str, rule: dict[str, float], stride: int) -> None:
    whole, parts = opened(device, **rule), opened(device, **rule)
    whole.run(STEPS)
    by_dispatches(parts, STEPS, stride)
    assert parts.session.step_count == STEPS and not parts.session.under_way and parts.runner.state == "ready"
    assert state(parts.session) == state(whole.session)
    assert parts.runner.losses == whole.runner.losses
    assert parts.session.traffic.forwards == STEPS
    assert parts.session.traffic.dispatches == whole.session.traffic.dispatches
    whole.run(1)
    parts.run(1)  # and goes on as if nothing had happened
    assert state(parts.session) == state(whole.session)
    whole.close()
    parts.close()


def test_every_dispatch_has_the_value_of_a_whole_step(device: str) -> None:
    study = opened(device)
    study.run(2)
    want = {d.index: data.tobytes() for d, data in study.session.dispatch_outputs()}
    for k, d in enumerate(study.plan.dispatches):
        study.runner.wait(study.runner.step_dispatch())
        assert (study.session.position, study.runner.dispatch) == (k + 1, k)
        assert study.session.read_buffer(d.output).tobytes() == want[k], d.label
    study.close()


def test_gradients_that_are_added_up_and_clipped(device: str) -> None:
    whole, parts = opened(device), opened(device)
    for study in (whole, parts):
        study.session.set_grad_accumulate(2)
        study.session.set_grad_clip_norm(0.1)
    whole.run(4)
    short, long = len(parts.session.step_dispatches()), []
    for _ in range(4):
        long.append(len(parts.session.step_dispatches()))
        parts.runner.wait(parts.runner.step_dispatch(long[-1] // 2))
        parts.runner.back(3)
        parts.runner.wait(parts.runner.step_dispatch(long[-1] - long[-1] // 2 + 3))
    assert long[0] == long[2] == short < long[1] == long[3], "every second step updates"
    assert state(parts.session) == state(whole.session)
    whole.close()
    parts.close()


# back -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", [{"sgd": 0.1}, {"adam": 1e-2}])
def test_back_to_every_dispatch_and_on(device: str, rule: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdlab.session.steps.EVERY", 4)
    whole, parts = opened(device, **rule), opened(device, **rule)
    whole.run(3)
    parts.run(2)
    count = len(parts.session.step_dispatches())
    outputs = {}
    for k, d in enumerate(parts.session.step_dispatches()):
        parts.runner.wait(parts.runner.step_dispatch())
        outputs[k] = parts.session.values.read(d.output).tobytes()
    assert parts.session.step_count == 3 and count > 8
    dispatches = [*parts.plan.dispatches, *parts.session.update_dispatches()]
    for k in (count - 1, count - 3, 5, 4, 3, 1):  # the first takes back a step that was over
        made = parts.session.dispatches_made
        text = parts.runner.back(made - k)
        assert (parts.session.step_count, parts.session.position, parts.runner.state) == (2, k, "paused")
        where = f"the snapshot after dispatch {k // 4 * 4 - 1}" if k >= 4 else "the start of the step"
        assert text == f"back: {parts.runner.place}; replayed from {where}"
        assert parts.session.values.read(dispatches[k - 1].output).tobytes() == outputs[k - 1]
    assert parts.runner.losses == whole.runner.losses[:2]
    parts.resume()
    assert parts.session.step_count == 3 and parts.runner.losses == whole.runner.losses
    assert state(parts.session) == state(whole.session)
    parts.run(1)
    whole.run(1)
    assert state(parts.session) == state(whole.session) and parts.runner.losses == whole.runner.losses
    whole.close()
    parts.close()


def test_the_flush_of_moments_falls_on_the_same_update() -> None:
    """cpu flushes tiny moments at every 16th update: a step that is taken back and made again is still one."""
    whole, parts = opened("cpu"), opened("cpu")
    whole.run(20)
    parts.run(14)
    for _ in range(3):
        by_dispatches(parts, 1, 7)
        parts.runner.back(2)
        parts.resume()
    parts.run(3)
    assert state(parts.session) == state(whole.session)
    assert parts.session.loaded.program.updates == whole.session.loaded.program.updates == 20
    whole.close()
    parts.close()


def test_back_without_room_for_snapshots_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdlab.session.steps.EVERY", 4)
    monkeypatch.setattr("gdlab.session.steps.MOST_BYTES", 1000)
    study = opened("cpu")
    study.runner.wait(study.runner.step_dispatch(len(study.plan.dispatches)))
    assert study.runner.back(3).endswith("replayed from the start of the step"), "nothing is changed in place so far"
    study.runner.wait(study.runner.step_dispatch(4))
    with pytest.raises(SessionError, match="back: snapshot: given a step of which more than 0 MiB would"):
        study.runner.back()
    study.resume()
    assert study.session.step_count == 1
    study.close()


def test_back_where_there_is_nothing_to_go_back_to() -> None:
    study = opened("cpu")
    for _ in range(2):
        with pytest.raises(SessionError, match="back: dispatch: given no step that was made dispatch by dispatch"):
            study.runner.back()
        study.run(1)
    study.runner.wait(study.runner.step_dispatch(2))
    study.runner.back(99)  # no further than the start of the step
    assert study.session.under_way and study.session.position == 0
    assert study.runner.place == "at the start of step 3, before its 16 dispatches".replace(
        "16", str(len(study.session.step_dispatches()))
    )
    with pytest.raises(SessionError, match="back: dispatch: given 0 of 0 dispatches made"):
        study.runner.back()
    assert study.session.position == 0
    study.close()


# run to here ----------------------------------------------------------------------------------------------------------
def test_run_to_a_dispatch_of_this_step_or_of_the_next() -> None:
    study, seen = opened("cpu"), []
    batch = study.runner.feed
    assert batch is not None
    study.runner.feed = lambda step: (seen.append(step), batch(step))[1]
    runner, count = study.runner, len(study.session.step_dispatches())
    runner.wait(runner.run_to(5))
    assert (study.session.step_count, runner.dispatch, runner.state) == (0, 5, "paused")
    label = study.plan.dispatches[5].label
    assert runner.reason == f"after dispatch 5 ({label}), 6 of {count} in step 1"
    runner.wait(runner.run_to(3))  # behind us: of the next step
    assert (study.session.step_count, runner.dispatch) == (1, 3) and seen == [0, 1]
    runner.wait(runner.run_to(count - 1))
    assert (study.session.step_count, runner.dispatch, runner.state) == (2, count - 1, "ready")
    for bad in (-1, count, 1.5, None, True):
        with pytest.raises(ArgumentError, match=f"run_to: dispatch: given .*, wanted 0 … {count - 1}"):
            runner.run_to(bad)  # type: ignore[arg-type]
    study.close()


def test_step_and_run_finish_the_step_under_way() -> None:
    study, seen = opened("cpu"), []
    batch = study.runner.feed
    assert batch is not None
    study.runner.feed = lambda step: (seen.append(step), batch(step))[1]
    study.runner.wait(study.runner.step_dispatch(3))
    study.step()
    assert (study.session.step_count, study.session.under_way, seen) == (1, False, [0])
    study.runner.wait(study.runner.step_dispatch(3))
    study.run(4)
    assert (study.session.step_count, study.runner.wanted, seen) == (5, 5, [0, 1, 2, 3, 4])
    study.runner.wait(study.runner.step_dispatch(3))
    study.session.step()  # by hand
    assert (study.session.step_count, study.session.under_way) == (6, False)
    study.close()


def test_a_step_under_way_is_no_place_to_save_or_to_change_the_rule(tmp_path: Any) -> None:
    study = opened("cpu")
    study.run(1)
    study.runner.wait(study.runner.step_dispatch(3))
    session, count = study.session, len(study.session.step_dispatches())
    given = f"given a step of which 3 of {count} dispatches are made, wanted its end first: step\\(\\)"
    refused = {
        "save_checkpoint": lambda: session.save_checkpoint(tmp_path / "a"),
        "snapshot": session.snapshot,
        "step_debug": session.step_debug,
        "dispatch_outputs": session.dispatch_outputs,
        "trace_dispatches": session.trace_dispatches,
        "capture_profile": session.capture_profile,
        "set_learning_rate": lambda: session.set_learning_rate(0.1),
        "update": lambda: session.set_grad_accumulate(2),
        "sgd_step": lambda: session.sgd_step(0.1),
    }
    for where, call in refused.items():
        with pytest.raises(SessionError, match=f"{where}: session: {given}"):
            call()
    assert session.position == 3
    study.reset()
    assert (session.step_count, session.under_way, study.runner.state) == (0, False, "ready")
    study.run(2)
    other = opened("cpu")
    other.run(2)
    assert state(session) == state(other.session)
    other.close()
    study.close()


def test_a_step_debug_step_is_a_whole_step(device: str) -> None:
    whole, debug = opened(device), opened(device)
    whole.run(2)
    debug.run(1)
    report = debug.session.step_debug()
    assert report.step == 2 and report.scanned == len(debug.session.step_dispatches())
    assert state(debug.session) == state(whole.session)
    with pytest.raises(SessionError, match="back: snapshot"):
        debug.runner.back()
    whole.close()
    debug.close()


def test_an_inference_session_steps_by_dispatches_too(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 8))
        g.output(ops.softmax(ops.relu(x @ ops.parameter("w", (8, 8))) @ ops.parameter("u", (8, 3))))
    study = Study(g, device=device, name="net")
    study.prepare(feed="random:1", init=0)
    study.run(1)
    want = study.session.read_output().tobytes()
    by_dispatches(study, 1, 1)
    assert study.session.step_count == 2 and study.session.read_output().tobytes() == want
    study.close()


def test_a_partial_step_is_stored_until_the_next_step() -> None:
    study = opened("cpu")
    study.runner.wait(study.runner.step_dispatch(len(study.session.step_dispatches())))
    assert isinstance(study.session.progress.partial, PartialStep) and study.session.progress.partial.over
    study.run(1)
    assert study.session.progress.partial is None, "what was kept to go back is let go"
    study.close()


@pytest.fixture(autouse=True)
def free_owner() -> Iterator[None]:
    yield
    assert owner().call(lambda: 7) == 7


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_there_and_back(seed: int) -> None:
    graph = random_graphs.random_graph(seed, scalar_loss=True)
    whole, parts = (Study(graph, train=True, device="cpu", name="g") for _ in range(2))
    for study in (whole, parts):
        study.prepare(feed=f"random:{seed}", adam=1e-3, init=seed)
        study.runner.set_watch("off")
    whole.run(2)
    draw, session = random.Random(seed), parts.session
    for _ in range(2):
        backs, wanted = 4, session.step_count + 1
        while session.step_count < wanted:
            left = len(session.step_dispatches()) - session.position
            parts.runner.wait(parts.runner.step_dispatch(draw.randrange(1, left + 1)))
            if backs and draw.random() < 0.6:
                parts.runner.back(draw.randrange(1, 20))  # it may take back a step that was over
                backs -= 1
    names = session.param_names()
    assert [session.read_param(n).tobytes() for n in names] == [whole.session.read_param(n).tobytes() for n in names]
    assert repr(parts.runner.losses) == repr(whole.runner.losses)
    whole.close()
    parts.close()


def test_a_cache_that_is_written_in_place_goes_back(device: str) -> None:
    with Graph() as g:
        cache, pos = ops.parameter("cache", (6, 4)), ops.input_u32("pos", (1,))
        written = ops.cache_write(ops.input("row", (1, 4)), cache, pos)
        g.output(ops.sum_all(ops.square(written)))
    study = Study(g, device=device, name="cache")
    study.prepare(feed=lambda step: {"row": np.full((1, 4), step + 1.0), "pos": np.array([step])})
    study.session.upload_param("cache", np.zeros((6, 4)))
    study.run(2)
    before = study.session.read_param("cache")
    count = len(study.session.step_dispatches())
    study.runner.wait(study.runner.step_dispatch(count))
    after = study.session.read_param("cache")
    assert after[2].tolist() == [3.0] * 4 and before[2].tolist() == [0.0] * 4
    study.runner.back(count)
    assert np.array_equal(study.session.read_param("cache"), before) and study.session.step_count == 2
    study.resume()
    assert np.array_equal(study.session.read_param("cache"), after) and study.session.step_count == 3
    study.close()
