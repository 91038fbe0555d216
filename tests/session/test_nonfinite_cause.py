"""The cause of a value that is not finite is searched in the state before its step, on every device and rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gdlab import ops
from gdlab.graph import Graph
from gdlab.session.run import earlier_state
from gdlab.session.run.nonfinite_watch import NanWatch
from gdlab.study.study import Study

RULES: list[dict[str, float]] = [{"sgd": 0.1}, {"adam": 0.1}]


def log_of_scores() -> Graph:
    """log of numbers of both signs: not finite in step 1."""
    with Graph() as g:
        x, y = ops.input("x", (8, 5)), ops.input("y", (8, 4))
        a = ops.bias_add(x @ ops.parameter("w", (5, 4)), ops.parameter("b", (4,)))
        g.output(ops.cross_entropy_loss(ops.log(a), y))
    return g


def root_of_weights() -> Graph:
    """√(w · x), whose slope is infinite where x is 0."""
    with Graph() as g:
        g.output(ops.sqrt(ops.parameter("w", (4,)) * ops.input("x", (4,))).sum_all())
    return g


def log_of_squares() -> Graph:
    """log((x · w)² + shift), which one batch makes NaN."""
    with Graph() as g:
        x, shift = ops.input("x", (6, 4)), ops.input("shift", (6, 2))
        g.output(ops.log(ops.square(x @ ops.parameter("w", (4, 2))) + shift).mean_all())
    return g


def study_of(graph: Graph, device: str, feed: Any, **options: Any) -> Study:
    study = Study(graph, train=True, device=device, name="net")
    study.prepare(feed=feed, init=0, **options)
    return study


def ops_of_culprit(study: Study) -> str:
    culprit = study.runner.culprit
    assert culprit is not None, [e.text for e in study.runner.events]
    assert culprit.spoiled == () and culprit.place.endswith("test_nonfinite_cause.py")
    return culprit.op


def state(study: Study) -> dict[str, np.ndarray]:
    session = study.session
    params = {n: session.read_param(n) for n in session.param_names()}
    return params | {f"m.{n}": session.read_adam_m(n) for n in session.param_names()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("watch", ["loss", "parameters", "everything"])
def test_the_line_is_named_that_made_the_first_nan(device: str, rule: dict[str, float], watch: NanWatch) -> None:
    study = study_of(log_of_scores(), device, "random:0", **rule)
    study.runner.set_watch(watch)
    study.run(5)
    assert ops_of_culprit(study) == "log"
    study.close()


def bad_in(step: int, x: tuple[int, ...], bad: Mapping[str, np.ndarray]) -> Callable[[int], dict[str, np.ndarray]]:
    def feed(k: int) -> dict[str, np.ndarray]:
        batch = {"x": np.random.default_rng(k).uniform(0.5, 1, x)} | {n: np.ones_like(a) for n, a in bad.items()}
        return batch | bad if k + 1 == step else batch

    return feed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", [2, 7, 40])
def test_a_late_step_is_repeated_from_an_earlier_state(device: str, rule: dict[str, float], step: int) -> None:
    """NaN by one batch: its line is named, and the state is afterwards what it was."""
    feed = bad_in(step, (6, 4), {"shift": np.full((6, 2), -90.0)})
    study = study_of(log_of_squares(), device, feed, **{k: v / 100 for k, v in rule.items()})
    plain = study_of(log_of_squares(), device, feed, **{k: v / 100 for k, v in rule.items()})
    plain.runner.set_watch("off")
    study.run(60)
    assert ops_of_culprit(study) == "log" and study.runner.reason == f"loss is NaN at step {step}"
    plain.run(study.session.step_count)
    for name, data in state(plain).items():
        np.testing.assert_array_equal(data, state(study)[name])
    study.close()
    plain.close()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", [1, 3, 30])
def test_a_slope_that_is_not_finite_is_named_and_not_the_loss_of_the_next_step(
    device: str, rule: dict[str, float], step: int
) -> None:
    """The loss is finite in its step; the parameters that the update spoiled show in the next."""
    study = study_of(root_of_weights(), device, bad_in(step, (4,), {"x": np.zeros(4)}), **dict.fromkeys(rule, 0.001))
    study.session.set_parameter("w", np.ones(4))
    study.run(40)
    culprit = study.runner.culprit
    assert culprit is not None and culprit.spoiled == (), [e.text for e in study.runner.events]
    assert study.plan.dispatches[culprit.dispatch].phase == "backward"
    assert study.runner.reason == f"loss is NaN at step {step + 1}"
    study.close()


@pytest.mark.parametrize("spoiled", [5, 9, 10, 17])
def test_a_state_that_was_stored_spoiled_is_not_what_is_searched(
    device: str, spoiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap: stored right behind the update that spoils a parameter, before the next loss can tell."""
    monkeypatch.setattr(earlier_state.EarlierState, "_interval", lambda *_: 3)
    monkeypatch.setattr(earlier_state, "MOST_STEPS", 3)
    study = study_of(root_of_weights(), device, bad_in(spoiled, (4,), {"x": np.zeros(4)}), sgd=0.001)
    study.session.set_parameter("w", np.ones(4))
    study.run(30)
    culprit = study.runner.culprit
    assert culprit is not None and culprit.spoiled == (), [e.text for e in study.runner.events]
    assert study.plan.dispatches[culprit.dispatch].phase == "backward"
    assert not np.isfinite(study.session.read_param("w")).all(), "the state is what it was"
    study.close()


def test_an_update_that_overflows_is_named_itself(device: str) -> None:
    with Graph() as g:
        g.output((ops.parameter("w", (4,)) * ops.input("x", (4,))).sum_all())
    study = study_of(g, device, {"x": np.full(4, 1e30)}, sgd=1e30)
    study.session.set_parameter("w", np.ones(4))
    study.run(3)
    culprit = study.runner.culprit
    assert culprit is not None and culprit.op == "sgd" and culprit.dispatch == len(study.plan.dispatches)
    study.close()


def test_a_parameter_set_between_two_runs_is_part_of_the_state(device: str) -> None:
    study = study_of(log_of_squares(), device, bad_in(9, (6, 4), {"shift": np.full((6, 2), -90.0)}), sgd=1e-3)
    study.run(5)
    study.session.set_parameter("w", np.full((4, 2), 0.25))
    study.session.step()
    study.run(5)
    assert ops_of_culprit(study) == "log"
    # on a device that answers late the run may be over when the loss becomes known
    assert any(event.text == "loss is NaN at step 9" for event in study.runner.events)
    study.close()


def test_a_state_that_is_too_large_to_keep_names_no_node(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_state, "MOST_BYTES", 0)
    study = study_of(log_of_scores(), device, "random:0", sgd=0.1)
    study.run(5)
    assert study.runner.culprit is None and not any(e.dispatch >= 0 for e in study.runner.events)
    note = next(e.text for e in study.runner.events if e.kind == "note")
    assert note.startswith("the cause is not known: no state before step 1 was kept") and "watch everything" in note
    assert not any(o["id"] == "nonfinite" for o in study.doc.data["overlays"])
    study.close()


def test_a_breakpoint_names_node_dispatch_and_line(device: str) -> None:
    study = study_of(log_of_scores(), device, "random:0", sgd=0.1)
    study.runner.break_at("nonfinite")
    study.run(5)
    assert ops_of_culprit(study) == "log" and study.session.step_count == 0
    event = next(e for e in study.runner.events if e.kind == "nonfinite")
    assert ": log, line " in event.text and event.about == f"dispatch:{event.dispatch}"
    study.close()


def root_of_a_convolution() -> Graph:
    with Graph() as g:
        g.output(ops.sqrt(ops.conv2d(ops.input("x", (2, 3, 6, 6)), ops.parameter("w", (4, 3, 3, 3)))).mean_all())
    return g


def zero_by_zero() -> Graph:
    with Graph() as g:
        a = (ops.input("x", (4, 3)) @ ops.parameter("w", (3, 5))).relu()
        g.output(ops.div(a, a).mean_all())
    return g


def inverse_root_of_squares() -> Graph:
    with Graph() as g:
        h = ops.rsqrt((ops.input("x", (4, 3)) @ ops.parameter("w", (3, 5))).square() - 1.0)
        g.output((h * h).sum_all())
    return g


NETWORKS = {"sqrt": root_of_a_convolution, "div": zero_by_zero, "rsqrt": inverse_root_of_squares}


@pytest.mark.parametrize("watch", ["loss", "everything"])
@pytest.mark.parametrize("rule", ["adamw", "laprop"])
@pytest.mark.parametrize("op", NETWORKS)
def test_other_networks_rules_and_settings_of_updates(device: str, op: str, rule: str, watch: NanWatch) -> None:
    study = Study(NETWORKS[op](), train=True, device=device, name="net")
    study.prepare(feed="random:0", init=0)
    if rule == "adamw":
        study.session.set_adamw(0.1)
        study.session.set_grad_clip_norm(1.0)
    else:
        study.session.set_laprop(0.1)
        study.session.set_grad_accumulate(2)
    study.runner.set_watch(watch)
    study.run(5)
    assert ops_of_culprit(study) == op
    study.close()
