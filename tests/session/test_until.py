"""Conditions in words: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdlab import ops
from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.session.run.stop_conditions import parse_condition
from gdlab.study.study import Study

NUMBERS = {"loss": lambda s: s["loss"], "step": lambda s: s["step"]}
TENSORS = {"h": lambda s: s["h"], "a.w": lambda s: s["h"] * 2}
STATE: dict[str, Any] = {"loss": 0.25, "step": 7.0, "h": np.array([-3.0, 1.0, 2.0])}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("loss < 0.3", True),
        ("loss<.3 and step >= 8", False),
        ("loss < 0.3 or step >= 8 and step == 0", True),  # and binds tighter
        ("(loss < 0.3 or step >= 8) and step == 0", False),
        ("not loss < 0.3", False),
        ("not not loss < 0.3", True),
        ("absmax(h) == 3 and min(h) == -3 and max(h) == 2", True),
        ("mean(h) == 0", True),
        ("l2(a.w) > 7.48 and l2(a.w) < 7.49", True),
        ("nonfinite(h) > 0", False),
        ("1e-1 <= loss", True),
        ("loss != 2.5e-1", False),
        ("-1 < step", True),
    ],
)
def test_what_a_condition_means(text: str, holds: bool) -> None:
    test = parse_condition(text, "until", NUMBERS, TENSORS)
    assert test.holds(STATE) is holds and str(test) == " ".join(text.split())


def test_non_finite_elements_are_counted() -> None:
    test = parse_condition("nonfinite(h) == 2", "until", NUMBERS, TENSORS)
    assert test.holds({"h": np.array([np.nan, np.inf, 1.0])}) and not test.holds(STATE)
    assert not parse_condition("loss < 1", "until", NUMBERS).holds({"loss": float("nan")})


@pytest.mark.parametrize(
    ("text", "message", "caret"),
    [
        ("absmx(h) > 1", "until: test: given absmx(h), wanted one of min, max, mean, absmax, l2, nonfinite, shape,"
                         " loss, step, or a number", "absmx(h)"),
        ("loss", "until: test: given the end, wanted one of < <= > >= == !=", "^"),
        ("loss < 0.1 nor step > 3", "until: test: given nor, wanted and, or, or the end", "nor"),
        ("min(k) < 1", "until: test: given k, wanted one of h, a.w", "k"),
        ("min h < 1", "until: test: given h, wanted min(NAME)", "h"),
        ("(loss < 1", "until: test: given the end, wanted a closing bracket", "^"),
        ("loss < __import__", "until: test: given __import__, wanted one of min", "__import__"),
        ("", "until: test: given the end, wanted one of min", "^"),
        ("(" * 200 + "loss < 1" + ")" * 200, "wanted at most 50 brackets inside each other", "("),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_with_a_caret(text: str, message: str, caret: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_condition(text, "until", NUMBERS, TENSORS)
    first, shown, marks = str(caught.value).split("\n")
    assert message in first and shown == f"  {text}"
    at = marks.index("^")
    if caret != "^":
        assert shown[at : len(marks)].startswith(caret[: len(marks) - at]) and shown[at:].startswith(caret)


def inference() -> Study:
    with Graph() as g:
        g.output(ops.relu(ops.input("x", (2,))).named("loss"))
    return Study(g, device="cpu")


@pytest.mark.parametrize("text", ["loss < 1", "step > 2 and loss < 1", "mean(loss) > 0 or not loss < 1", "1 > loss"])
def test_a_loss_that_there_is_not_ends_no_run(text: str) -> None:
    """An inference session has no loss: it was 0.0, and `loss < 1` ended every run after one step."""
    study = inference()
    with pytest.raises(ArgumentError) as caught:
        study.run(5, feed="random", until=text)
    first, _, marks = str(caught.value).split("\n")
    wanted = "step or a tensor's figure: an inference session has no loss (train=True, --train)"
    assert first == f"until: test: given loss, wanted {wanted}"
    assert marks.index("^") - 2 == text.rindex("loss"), "the caret is under the number, not under the tensor"
    with pytest.raises(ArgumentError, match="break: test: given loss, wanted step or a tensor's figure"):
        study.break_at(f"step 3 if {text}")
    assert study.session.step_count == 0 and study.runner.lookout.until is None
    study.run(5, feed="random", until="mean(loss) > 100 or step == 3")
    assert study.session.step_count == 3
    study.close()
