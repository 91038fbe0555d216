"""Breakpoints and watches: each fires exactly when it should and not before, and what means nothing changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import networks
import numpy as np
import pytest
from networks import small_mlp

from gdlab import ops
from gdlab.__main__ import main
from gdlab.base.errors import ArgumentError, UnknownNameError
from gdlab.graph import Graph
from gdlab.session import Session
from gdlab.session.run.breakpoints import parse_break
from gdlab.session.run.stop_conditions import ConditionError, parse_condition
from gdlab.session.tensors import find_tensor, tensor_names
from gdlab.study.study import Study


def fragile() -> Graph:
    """log of something that the fourth batch makes NaN; h grows with the step. `gone` has no memory of its own."""
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("w", (3, 2))
        h = (x @ w).named("h")
        safe = (ops.square(h).named("gone") + ops.input("shift", (4, 2))).named("safe")
        g.output(ops.log(safe).mean_all())
    return g


def feed(step: int) -> dict[str, np.ndarray]:
    return {"x": np.full((4, 3), 1.0 + step), "shift": np.full((4, 2), np.nan if step == 3 else 1.0)}


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    study = Study(fragile(), train=True, device=device, name="fragile")
    study.prepare(feed=feed, sgd=1e-6)
    study.session.set_parameter("w", np.full((3, 2), 0.5))
    yield study
    study.close()


def node(study: Study, op: str) -> int:
    """The dispatch that computes the compiled node of this op."""
    return next(d.index for d in study.plan.dispatches if any(study.final.nodes[i].op == op for i in d.origin))


def stop(study: Study, text: str, steps: int = 6) -> tuple[int, int]:
    """Return the place where a run stops: (step under way or made, dispatch or −1)."""
    found = study.runner.break_at(text)
    study.run(steps)
    runner = study.runner
    if found.hits == 0:
        assert runner.state == "ready" and runner.reason == ""
        return -1, -1
    assert runner.reason == f"breakpoint {found.id}: {found.text}" and found.hits == 1
    event = next(e for e in reversed(runner.events) if e.kind == "break")
    assert event.text == runner.reason and event.dispatch == runner.dispatch
    assert runner.state == ("ready" if study.session.step_count == steps else "paused")
    assert event.about == (f"dispatch:{event.dispatch}" if event.dispatch >= 0 else None)
    return event.step, event.dispatch


# events ---------------------------------------------------------------------------------------------------------------
def test_a_step(study: Study) -> None:
    assert stop(study, "step 2") == (2, -1) and study.session.step_count == 2
    study.runner.set_watch("off")
    study.resume()
    assert study.session.step_count == 6, "it comes once"


def test_a_dispatch_comes_when_it_has_run_in_every_step(study: Study) -> None:
    study.runner.set_watch("off")
    assert stop(study, "dispatch 1") == (1, 1) and study.session.position == 2
    study.resume()
    assert (study.session.step_count, study.runner.dispatch) == (1, 1)
    study.runner.clear(1)
    study.resume()
    assert study.session.step_count == 6 and study.runner.state == "ready"


def test_a_node_comes_in_the_step_in_which_its_test_holds(study: Study) -> None:
    study.runner.set_watch("off")
    step, dispatch = stop(study, "node safe if max(safe) > 20 and step != 4")  # step 3: 1 + 4.5² = 21.25
    assert step == 3 and study.session.step_count == 2
    assert dispatch == next(
        d.index for d in study.plan.dispatches if study.session.nodes.place[find(study, "safe")] in d.origin
    )
    assert study.runner.watch("safe")[0].tensor.name == "safe"


def find(study: Study, name: str) -> int:
    return next(n.id for n in study.graph if n.name == name)


def test_a_kernel_by_label_by_its_head_and_by_family(study: Study) -> None:
    labels = [d.label for d in study.session.step_dispatches()]
    last = labels[-1]
    assert stop(study, f"kernel {last}") == (1, labels.index(last))
    study.runner.clear(1)
    study.runner.stop()
    study.reset()
    families = [d.entry for d in study.session.step_dispatches()]
    assert stop(study, f"kernel {families[-1]}") == (1, families.index(families[-1]))
    study.runner.clear(2)
    study.reset()
    head = labels[0].split("[")[0]
    assert stop(study, f'kernel "{head}" if step == 2') == (2, 0)


def test_a_write_of_a_parameter_is_its_update(study: Study) -> None:
    opening = study.session.read_param("w")
    step, dispatch = stop(study, "write w")
    assert (step, study.session.step_dispatches()[dispatch].phase) == (1, "update")
    assert not np.array_equal(study.session.read_param("w"), opening)


def test_a_write_of_a_gradient(study: Study) -> None:
    step, dispatch = stop(study, "write w.grad if absmax(w.grad) > 0 and step == 2")
    made = study.session.step_dispatches()
    assert step == 2 and made[dispatch].phase == "backward"
    assert find_tensor(study.session, "t", "w.grad").writers(made) == [dispatch]


def test_what_is_not_finite_is_found_at_its_dispatch(study: Study) -> None:
    assert stop(study, "nonfinite") == (4, node(study, "add"))
    culprit = study.runner.culprit
    assert culprit is not None and (study.session.step_count, culprit.dispatch) == (3, node(study, "add"))
    event = next(e for e in study.runner.events if e.kind == "nonfinite")
    assert event.text.startswith(f"first NaN: {study.plan.dispatches[culprit.dispatch].label}".replace(
        "first NaN: ", f"first NaN: dispatch {culprit.dispatch}, ")) and ": add, line " in event.text  # fmt: skip
    assert np.isfinite(study.session.read_param("w")).all(), "the update has not run"
    study.resume()  # once in a step; the update then spoils w, and step 5 begins with it
    assert (study.session.step_count, study.runner.reason) == (4, "loss is NaN at step 4")


def test_a_named_tensor_that_is_not_finite(study: Study) -> None:
    study.runner.set_watch("off")
    step, dispatch = stop(study, "nonfinite w")
    assert (step, study.session.step_dispatches()[dispatch].phase) == (4, "update")
    study.resume()
    assert study.session.step_count == 4
    assert study.runner.dispatch == 0, "an input or a parameter that is bad already: behind the first dispatch"


def test_a_finite_tensor_never_stops(study: Study) -> None:
    study.runner.set_watch("off")
    assert stop(study, "nonfinite h", steps=4) == (-1, -1) and study.session.step_count == 4


def test_a_loss_that_rises(study: Study) -> None:
    # log(1 + (1.5 (1 + step))²) rises at every step: the second rise is that of step 3
    assert stop(study, "loss rises 2") == (3, -1)
    losses = [loss for _, loss in study.runner.losses]
    assert losses[0] < losses[1] < losses[2] and len(losses) == 3


def test_rises_are_counted_anew_behind_a_fall() -> None:
    with Graph() as g:
        g.output((ops.input("x", (1,)) * ops.parameter("w", (1,))).sum_all())
    course = [1.0, 2.0, 1.5, 1.6, 1.6, 1.7, 1.8, 1.9, 2.0]
    study = Study(g, train=True, device="cpu", name="course")
    study.prepare(feed=lambda step: {"x": np.full(1, course[step])})
    study.session.set_parameter("w", np.ones(1))
    study.runner.break_at("loss rises 2")
    stops = []
    study.run(9)
    while study.runner.state == "paused":
        stops.append(study.session.step_count)
        study.resume()
    assert stops == [7] and study.session.step_count == 9  # an equal loss is no rise
    assert [e.step for e in study.runner.events if e.kind == "break"] == [7, 9], "two and two more"
    assert study.runner.reason == "breakpoint 1: loss rises 2", "told at the end of the run too"
    study.close()


def test_a_loss_in_a_test(study: Study) -> None:
    losses = []
    other = Study(fragile(), train=True, device="cpu", name="other")
    other.prepare(feed=feed, sgd=1e-6)
    other.session.set_parameter("w", np.full((3, 2), 0.5))
    other.run(3)
    losses = [loss for _, loss in other.runner.losses]
    other.close()
    border = (losses[1] + losses[2]) / 2
    assert stop(study, f"step 2 if loss > {border}", steps=3) == (-1, -1)
    study.runner.clear(1)
    study.reset()
    study.session.set_parameter("w", np.full((3, 2), 0.5))
    last = len(study.session.step_dispatches()) - 1
    assert stop(study, f"dispatch {last} if loss > {border}", steps=3) == (3, last)


def test_a_value_that_is_not_there_yet_holds_nothing_up(study: Study) -> None:
    last = len(study.plan.dispatches) - 1
    first = study.runner.break_at("dispatch 0 if not max(w.grad) > 1e9 or loss > -1e9")
    second = study.runner.break_at(f"dispatch {last} if not max(w.grad) > 1e9")
    study.run(1)
    assert (first.hits, second.hits) == (0, 1), "neither gradient nor loss had a value after dispatch 0"


def test_two_breakpoints_at_one_place_are_told_together(study: Study) -> None:
    study.runner.break_at("step 2")
    study.runner.break_at("step 2 if step < 3")
    study.run(5)
    assert study.runner.reason == "breakpoint 1: step 2; breakpoint 2: step 2 if step < 3"


def test_values_behind_breakpoints_are_those_of_a_run(device: str) -> None:
    plain, broken = (Study(small_mlp(), train=True, device=device, name="mlp") for _ in range(2))
    for study in (plain, broken):
        study.prepare(feed="random:0", adam=1e-2, init=0)
    broken.runner.watch("h", "w1", "w1.grad")
    broken.runner.break_at("write w2 if step == 2")
    broken.runner.break_at("loss rises 3")
    broken.runner.break_at("kernel adam if absmax(h) < 0")
    plain.runner.watch("h")
    plain.run(6)
    broken.run(6)
    while broken.runner.state == "paused":
        broken.resume()
    assert broken.session.step_count == 6 and broken.runner.losses == plain.runner.losses
    for name in plain.session.param_names():
        assert np.array_equal(plain.session.read_param(name), broken.session.read_param(name))
    (a, *_), (b,) = broken.runner.lookout.watches.values(), plain.runner.lookout.watches.values()
    assert (a.step, a.value, a.mean, a.max) == (b.step, b.value, b.mean, b.max) and a.step == 6
    plain.close()
    broken.close()


# watches --------------------------------------------------------------------------------------------------------------
def test_watches_follow_a_run(study: Study) -> None:
    made = study.runner.watch("h", "w", "shift")
    assert [w.id for w in made] == [1, 2, 3] and study.runner.watch("w")[0] is made[1]
    study.run(2)
    h, w, shift = made
    assert (h.step, w.step, shift.step) == (2, 2, 2), "the last step of a run is looked at"
    assert h.value.startswith("[[3, 3], [3, 3]"), h.value  # 3 · 0.5 · 2
    assert w.min == pytest.approx(float(study.session.read_param("w").min())) and w.nonfinite == 0
    assert shift.mean == 1.0 and len(h.history) >= 1 and h.history[-1] == (2, pytest.approx(3.0, rel=1e-3))
    study.runner.set_watch("off")
    study.run(4)
    assert w.nonfinite == 6 and w.value == "[[NaN, NaN], [NaN, NaN], [NaN, NaN]]" and np.isnan(w.mean)
    study.runner.clear(2)
    assert [w.id for w in study.runner.lookout.watches.values()] == [1, 3]


def test_watches_follow_dispatches_there_and_back(study: Study) -> None:
    study.run(1)
    h, w = study.runner.watch("safe", "w")
    writes = h.tensor.writers(study.session.step_dispatches())[0]
    study.runner.wait(study.runner.run_to(writes))
    assert (h.step, h.max) == (2, pytest.approx(10.0, rel=1e-3))
    before = w.value
    study.runner.wait(study.runner.run_to(len(study.session.step_dispatches()) - 1))
    assert w.step == 2 and study.session.step_count == 2
    study.runner.back(study.session.dispatches_made - writes)
    assert study.runner.dispatch == writes - 1 and h.step in (-1, 2) and h.max != pytest.approx(10.0, rel=1e-3)
    assert w.value == before
    study.runner.wait(study.runner.step_dispatch())
    assert (h.step, h.max) == (2, pytest.approx(10.0, rel=1e-3))


def test_a_watched_tensor_whose_memory_others_take_over(device: str) -> None:
    study = Study(small_mlp(), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", sgd=0.1, init=0)
    names = [n for n in tensor_names(study.session) if reads(study.session, n)]
    passing = [n for n in names if not find_tensor(study.session, "t", n).stays]
    assert passing, "some memory is used twice in a step"
    watched = study.runner.watch(*names)
    study.run(3)
    assert all(w.step == 3 for w in watched), [(w.name, w.step) for w in watched]
    want = {d.output: data for d, data in study.session.dispatch_outputs()}
    study.run(1)
    for w in watched:
        if w.name in passing:
            assert w.mean == float(want[w.tensor.place].mean(dtype=np.float64)), w.name
    study.close()


def reads(session: Session, name: str) -> bool:
    try:
        find_tensor(session, "t", name)
    except ArgumentError:
        return False
    return True


# what is refused ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "message", "under"),
    [
        ("step 5 if absmx(h) > 1", "break: test: given absmx(h), wanted one of min, max, mean, absmax, ", "absmx(h)"),
        ("nod h", "break: event: given nod, wanted one of node NAME, kernel LABEL, dispatch K, write NAME, step N, "
                  "nonfinite [NAME], loss rises N; nearest: node", "nod"),
        ("", "break: event: given nothing, wanted one of node NAME", "^"),
        ("node", "break: event: given node, wanted node NAME", "^"),
        ("node hh", "break: node: given hh, wanted one of x, w, h, gone, shift, safe; nearest: h", "hh"),
        ("node w", "break: node: given w, a parameter, wanted one that is computed (write NAME for a parameter)", "w"),
        ("node x", "break: node: given x, an input, wanted one that is computed", "x"),
        ("kernel MatMull", "break: kernel: given MatMull, wanted one of ", "MatMull"),
        ("dispatch 99", "break: dispatch: given 99, wanted 0 … ", "99"),
        ("dispatch -1", "break: dispatch: given -1, wanted 0 … ", "-1"),
        ("write x", "break: write: given x, which no dispatch writes, wanted a tensor that a step writes", "x"),
        ("write ww", "break: tensor: given ww, wanted one of x, w, h, gone, shift, safe, w.grad; nearest: w", "ww"),
        ("step 0", "break: step: given 0, wanted the number of a step, an int ≥ 1", "0"),
        ("step two", "break: step: given two, wanted the number of a step", "two"),
        ("nonfinite q", "break: tensor: given q, wanted one of x, w, h", "q"),
        ("loss falls 3", "break: loss: given falls 3, wanted loss rises N", "falls 3"),
        ("loss rises", "break: loss: given rises, wanted loss rises N", "rises"),
        ("loss rises 0", "break: loss: given rises 0, wanted loss rises N", "rises 0"),
        ("step 5 if", "break: test: given the end, wanted one of min", "^"),
        ("step 5 if loss", "break: test: given the end, wanted one of < <= > >= == !=", "^"),
        ("step 5 if shape(h) > 3", "break: test: given >, wanted [AXIS], or one of == !=", ">"),
        ("step 5 if shape(h)[x] > 3", "break: test: given x, wanted the number of an axis", "x"),
        ("step 5 if max(h) > __import__('os')", "break: test: given __import__", "__import__"),
        ("step 5 if step.__class__ == 1", "break: test: given step.__class__, wanted one of min", "step.__class__"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_and_changes_nothing(text: str, message: str, under: str) -> None:
    study = Study(fragile(), train=True, device="cpu", name="fragile")
    study.prepare(feed=feed, sgd=1e-6, init=0)
    kept = study.runner.break_at("step 1")
    with pytest.raises(ConditionError) as caught:
        study.runner.break_at(text)
    first, shown, marks = str(caught.value).split("\n")
    assert first.startswith(message), first
    assert shown == f"  {text}" and (under == "^" or shown[marks.index("^") :].startswith(under)), f"{shown}\n{marks}"
    assert list(study.runner.lookout.breaks.values()) == [kept]
    assert study.runner.break_at("step 9").id == 2, "a refused one takes no number"
    with pytest.raises(UnknownNameError, match="watch: tensor: given saef, wanted one of x, w, h.*; nearest: safe"):
        study.runner.watch("h", "saef")
    assert study.runner.lookout.watches == {}, "all or none"
    with pytest.raises(ArgumentError, match="clear: id: given 7, wanted one of 1, 2"):
        study.runner.clear(7)
    study.close()


def test_a_node_without_a_value_says_where_it_went() -> None:
    study = Study(fragile(), train=True, device="cpu", name="fragile")
    with pytest.raises(ArgumentError, match=r"watch: tensor: given gone, which went into dispatch 1 \(Pointwise"):
        study.runner.watch("gone")
    with pytest.raises(ConditionError, match="break: test: given gone, which went into dispatch 1 "):
        study.runner.break_at("step 1 if max(gone) > 1")
    assert study.runner.break_at("node gone").when.number == 1, "but when it is computed is known"
    study.close()


def test_an_update_that_is_not_set_writes_nothing() -> None:
    study = Study(fragile(), train=True, device="cpu", name="fragile")
    with pytest.raises(ConditionError, match=r"given w, which no dispatch writes \(no update rule is set\), wanted"):
        study.runner.break_at("write w")
    study.close()


# the grammar ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("shape(h) == [2, 3]", True),
        ("shape(h) == [2, *]", True),
        ("shape(h) == [*, 2]", False),
        ("shape(h) != [2, 3, 1]", True),
        ("shape(h) == []", False),
        ("shape(h)[0] == 2 and shape(h)[-1] >= 3", True),
        ("shape(h)[1] < shape(h)[0]", False),
        ("2 == shape(h)[0]", True),
        ("shape(h)[7] > 0 or shape(h)[7] <= 0", False),
        ("not (max(h) <= 4 or step > 1) and absmax(h) > 4", True),
    ],
)
def test_what_a_test_means(text: str, holds: bool) -> None:
    data = np.arange(6.0).reshape(2, 3)
    numbers = {"loss": lambda s: 0.5, "step": lambda s: 1.0}
    test = parse_condition(text, "break", numbers, {"h": lambda s: data})
    assert test.holds(None) is holds and set(test.tensors) <= {"h"}


def test_a_condition_and_a_breakpoint_have_one_grammar() -> None:
    """Random conditions: what a breakpoint's test says is what `--until` says, and what Python says."""
    study = Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp")
    study.run(2, feed="random:0", sgd=0.1, init=0)
    session, draw = study.session, random.Random(0)
    env: dict[str, Any] = {"step": 2.0, "loss": session.read_loss()}
    figures = {"min": np.min, "max": np.max, "absmax": lambda a: np.max(np.abs(a)),
               "mean": lambda a: np.mean(a, dtype=np.float64), "nonfinite": lambda a: np.sum(~np.isfinite(a)),
               "l2": lambda a: np.sqrt(np.sum(np.square(a, dtype=np.float64)))}  # fmt: skip
    values = {n: session.read_param(n) for n in session.param_names()}

    def term() -> tuple[str, str]:
        kind = draw.randrange(3)
        if kind == 0:
            number = f"{draw.uniform(-2, 2):.3f}"
            return number, number
        if kind == 1:
            name = draw.choice(["loss", "step"])
            return name, name
        figure, name = draw.choice(list(figures)), draw.choice(list(values))
        return f"{figure}({name})", f"figures['{figure}'](values['{name}'])"

    def test(depth: int) -> tuple[str, str]:
        if depth == 0 or draw.random() < 0.3:
            (a, pa), (b, pb), sign = term(), term(), draw.choice(["<", "<=", ">", ">=", "==", "!="])
            return f"{a} {sign} {b}", f"{pa} {sign} {pb}"
        if draw.random() < 0.3:
            a, pa = test(depth - 1)
            return f"not ({a})", f"not ({pa})"
        (a, pa), (b, pb), word = test(depth - 1), test(depth - 1), draw.choice(["and", "or"])
        return f"({a}) {word} {b}", f"({pa}) {word} {pb}"

    outcomes = set()
    for _ in range(200):
        text, python = test(3)
        want = bool(eval(python, {"figures": figures, "values": values, **env}))
        found = parse_break(1, f"step 2 if {text}", session)
        study.runner.set_until(text)
        assert found.test is not None and found.test.holds(session) is want is study.runner.lookout.ends(), text
        outcomes.add(want)
    assert outcomes == {True, False}
    study.close()


def test_quotes_hold_names_with_an_if_together() -> None:
    with Graph() as g:
        h = (ops.input("x", (3,)) * ops.parameter("w", (3,))).named("what if so")
        g.output(ops.relu(h).sum_all(), "loss")
        g.output(h)
    study = Study(g, train=True, device="cpu", name="odd")
    study.prepare(feed="random:0", init=0)
    assert study.runner.break_at('node "what if so" if step == 2').when.name == "what if so"
    study.run(3)
    assert (study.session.step_count, study.runner.state) == (1, "paused")
    study.close()


def test_a_breakpoint_on_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from gdlab import *\nwith Graph() as g:\n    w = parameter('w', (3,))\n"
        "    g.output(sum_all(square(input('x', (3,)) * w)))\n"
    )
    command = ["run", str(file), "--train", "--device", "cpu", "--steps", "9", "--feed", "random:0", "--init", "0"]
    assert main([*command, "--sgd", "0.01", "--break", "step 4 if loss >= 0"]) == 0
    out = capsys.readouterr().out
    assert "4 steps" in out and "paused: breakpoint 1: step 4 if loss >= 0" in out
    assert main([*command, "--break", "step 4 if los >= 0"]) == 2
    assert "break: test: given los, wanted one of min, max" in capsys.readouterr().err
