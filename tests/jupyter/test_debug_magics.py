"""Watches, breakpoints and dispatch steps as magics and as the page's commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from panels import ask, of, until
from shells import complete, run, told

from gdlab.session.tensors import dispatch_of, find_tensor, read_tensor
from gdlab.study.study import Study


@pytest.fixture
def ready(shell: Any, mlp: Study) -> Iterator[Any]:
    _, error = run(shell, "%graph_run mlp 2 --feed random:0 --sgd 0.1 --init 0 --quiet")
    assert error is None
    yield shell


def said(shell: Any, line: str) -> str:
    out, error = run(shell, line)
    assert error is None, error
    return told(out)


def refused(shell: Any, line: str) -> str:
    _, error = run(shell, line)
    assert error is not None, line
    return str(error)


def test_watch_and_break_list_and_clear(ready: Any, mlp: Study) -> None:
    assert said(ready, "%graph_watch mlp --list") == "no watches and no breakpoints\n"
    text = said(ready, "%graph_watch mlp h w1.grad")
    assert re.match(r"1  h        f32\[8, 5\]  0 … [\d.]+, mean [\d.]+ +step 2\n2  w1\.grad  f32\[6, 5\]  ", text), text
    text = said(ready, "%graph_break mlp node h if absmax(h) >= 0 and step == 4")
    assert text.endswith("\n3  node h if absmax(h) >= 0 and step == 4  0 hits\n")
    text = said(ready, "%graph_run mlp 5 --quiet")
    assert "paused (breakpoint 3: node h if absmax(h) >= 0 and step == 4)" in text and mlp.session.step_count == 3
    assert "3  node h if absmax(h) >= 0 and step == 4  1 hit, last in step 4" in said(ready, "%graph_break mlp --list")
    assert "w1.grad" not in said(ready, "%graph_watch mlp --clear 2")
    said(ready, "%graph_break mlp --clear 3")
    assert mlp.runner.lookout.breaks == {} and "ready" in said(ready, "%graph_resume mlp")
    assert mlp.session.step_count == 7


def test_quotes_and_numbers_below_zero(ready: Any, mlp: Study) -> None:
    said(ready, '%graph_break mlp "step 3 if loss > -1"')
    said(ready, "%graph_break mlp step 4 if min(h) > -0.5 and loss > -1")
    label = mlp.plan.dispatches[0].label
    said(ready, f'%graph_break mlp kernel "{label}" if step == 9')
    assert [b.text for b in mlp.runner.lookout.breaks.values()] == [
        "step 3 if loss > -1",
        "step 4 if min(h) > -0.5 and loss > -1",
        f'kernel "{label}" if step == 9' if " " in label else f"kernel {label} if step == 9",
    ]
    said(ready, "%graph_run mlp 10 --quiet")
    assert mlp.session.step_count == 3 and mlp.runner.reason == "breakpoint 1: step 3 if loss > -1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%graph_watch mlp hh", "watch: tensor: given hh, wanted one of x, y, "),
        ("%graph_break mlp step 5 if absmx(h) > 1", "break: test: given absmx(h), wanted one of min, max, mean"),
        ("%graph_break mlp stop 5", "break: event: given stop, wanted one of node NAME, kernel LABEL"),
        ("%graph_break mlp --clear 4", "clear: id: given 4, wanted one of none: there are none"),
        ("%graph_break mlp step 3 --list", "--list: given step as well, wanted it alone"),
        ("%graph_step mlp --to hh", "run_to: node: given hh, wanted one of x, y"),
        ("%graph_step mlp --to line:99", "line:99"),
        ("%graph_step mlp --dispatch --back 2", "--back: given with another of --dispatch, --to, --back, wanted one"),
        ("%graph_step mlp --back 1", "back: dispatch: given no step that was made dispatch by dispatch, wanted one of"),
        ("%graph_look mlp hh", "look: tensor: given hh, wanted one of"),
        ("%graph_look mlp h --at 3", "--at: given 3, wanted 2 ints with commas between"),
        ("%graph_look mlp h --at 99,0", "look: row: given 99, wanted 0 … 7"),
        ("%graph_look mlp h --slice 1", "look: slice: given [1], wanted none: the tensor has at most two axes"),
        ("%graph_look mlp h --against cpu", "look: difference of h: given a step that is over, wanted a step by"),
        ("%graph_watch mpl h", "graph mpl: given no such variable, wanted one of mlp"),
    ],
)  # fmt: skip
def test_wrong_lines_change_nothing(ready: Any, mlp: Study, line: str, message: str) -> None:
    assert message in refused(ready, line)
    assert mlp.session.step_count == 2 and not mlp.session.under_way and not mlp.runner.lookout


def test_steps_by_dispatches_there_and_back(ready: Any, mlp: Study) -> None:
    said(ready, "%graph_watch mlp h")
    count = len(mlp.session.step_dispatches())
    text = said(ready, "%graph_step mlp 2 --dispatch")
    assert f"paused (after dispatch 1 ({mlp.plan.dispatches[1].label}), 2 of {count} in step 3)" in text
    assert f"dispatch 1, {mlp.plan.dispatches[1].label}, wrote f32[8, 5]: " in text and "\n1  h  f32[8, 5]" in text
    assert "replayed from the start of the step" in said(ready, "%graph_step mlp --back 1")
    said(ready, "%graph_step mlp --to z")
    assert mlp.runner.dispatch == dispatch_of(mlp.session, "test", "z")
    text = said(ready, "%graph_look mlp h --against reference --at 2,1")
    assert f"after dispatch {mlp.runner.dispatch} (" in text
    assert re.search(r"against the reference: (equal|at most \S+; [\d.]+ ulp at)", text)
    value = read_tensor(mlp.session, find_tensor(mlp.session, "test", "h"))[2, 1]
    assert text.split("\n")[6].split()[:2] == ["2", str(value)] and text.split("\n")[5].split()[0] == "1"
    assert "against cpu: equal" in said(ready, "%graph_look mlp z --against cpu")
    said(ready, "%graph_step mlp --to line:4")
    assert mlp.runner.dispatch == min(int(e[9:]) for e in mlp.doc.select("line:4") if e.startswith("dispatch:"))
    said(ready, "%graph_step mlp")
    assert mlp.session.step_count in (3, 4) and not mlp.session.under_way


def test_completion_inside(ready: Any, mlp: Study) -> None:
    names = {"mlp": mlp}
    assert complete("%graph_watch mlp w1", names) == ["w1", "w1.grad"]
    assert complete("%graph_watch ml", names) == ["mlp"] and complete("%graph_break m", names) == ["mlp"]
    assert complete("%graph_break mlp n", names) == ["node", "nonfinite"]
    assert "h" in complete("%graph_break mlp node ", names)


# the page -------------------------------------------------------------------------------------------------------------
def newest(panel: Any) -> dict[str, Any]:
    panel.want_full = True
    panel.report(1e12)
    return dict(of(panel, "metrics")[-1])


def test_the_page_watches_breaks_steps_and_looks(panel: Any) -> None:
    study = panel.study
    study.prepare(feed="random:0", sgd=0.1, init=0)
    assert ask(panel, 1, "watch", name="w1")["ok"] and ask(panel, 2, "break", text="dispatch 3 if step == 2")["ok"]
    reply = ask(panel, 3, "break", text="dispatch 3 if absmx(w1) > 1")
    assert not reply["ok"] and reply["error"]["kind"] == "ConditionError"
    assert reply["error"]["message"].startswith("break: test: given absmx(w1), wanted one of min, max")
    ask(panel, 4, "run", steps=5)
    until(lambda: study.runner.state == "paused")
    told = newest(panel)
    json.dumps(told, allow_nan=False)
    (row,), (at,) = told["watches"], told["breaks"]
    assert (row["id"], row["name"], row["step"], row["nonfinite"]) == (1, "w1", 1, 0)
    assert row["value"] == study.runner.lookout.watches[1].value and len(row["course"]) == 2
    assert at == {"id": 2, "text": "dispatch 3 if step == 2", "hits": 1}
    assert (told["dispatch"], told["place"]) == (3, study.runner.place)
    event = next(e for e in of(panel, "event") if e["kind"] == "break")
    assert event["about"] == "dispatch:3" and event["text"] == told["reason"] == "breakpoint 2: dispatch 3 if step == 2"
    assert ask(panel, 5, "step", dispatches=2)["ok"]
    until(lambda: study.runner.dispatch == 5 and study.runner.state == "paused")
    text = ask(panel, 6, "back", dispatches=1)["result"]["text"]
    assert text == f"back: {study.runner.place}; replayed from the start of the step"
    assert ask(panel, 7, "run", to="7")["ok"]
    until(lambda: study.runner.dispatch == 7 and study.runner.state == "paused")
    assert ask(panel, 8, "run", to="node:0.2")["ok"]
    until(lambda: study.runner.state == "paused")
    looked = ask(panel, 9, "value", name="w1")["result"]
    data = study.session.read_param("w1")
    assert looked["n"] == data.size and looked["max"] == float(data.max())
    assert "against the reference: equal" in looked["text"]
    assert sum(looked["histogram"]["counts"]) == data.size
    assert ask(panel, 10, "clear", id=2)["ok"] and study.runner.lookout.breaks == {}
    for req, (name, args) in enumerate(
        [("clear", {"id": "x"}), ("clear", {"id": 99}), ("break", {"text": 3}), ("watch", {"name": 3}), ("value", {}),
         ("back", {"dispatches": 0}), ("step", {"dispatches": -1}), ("run", {"to": "zz"}), ("run", {"to": 3})], 20
    ):  # fmt: skip
        assert not ask(panel, req, name, **args)["ok"], (name, args)
    assert list(study.runner.lookout.watches) == [1]


def test_what_is_not_finite_goes_to_the_page_as_words(panel: Any) -> None:
    study = panel.study
    study.prepare(feed="random:0", init=0)
    study.session.set_parameter("b1", np.full(study.session.param_size("b1"), np.inf))
    ask(panel, 1, "watch", name="b1")
    (row,) = newest(panel)["watches"]
    json.dumps(row, allow_nan=False)
    assert row["min"] == "nan" and row["nonfinite"] == study.session.param_size("b1") and row["course"] == ["nan"]
