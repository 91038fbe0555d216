"""Conditions in words, for runs: `parse_test("loss < 0.1 or absmax(h) > 1e3")` gives a test of a session.

    test := test or test | test and test | not test | ( test ) | term compared with term
    term := number | loss | step | FIGURE(NAME)      compared: < <= > >= == !=
    FIGURE := min max mean absmax l2 nonfinite       NAME: a parameter, or a named node of the graph as written

The text is parsed here and never evaluated as Python.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gdlab.errors import ArgumentError
from gdlab.op import Array
from gdlab.session import Session

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WORDS = re.compile(rf"\s*(?:({_NUMBER})|([^\W\d][\w.]*)|(<=|>=|==|!=|[<>()\-])|(\S))")
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
FIGURES: Mapping[str, Callable[[Array], float]] = {
    "min": lambda a: float(np.min(a)),
    "max": lambda a: float(np.max(a)),
    "mean": lambda a: float(np.mean(a, dtype=np.float64)),
    "absmax": lambda a: float(np.max(np.abs(a))),
    "l2": lambda a: float(np.sqrt(np.sum(np.square(a, dtype=np.float64)))),
    "nonfinite": lambda a: float(np.count_nonzero(~np.isfinite(a))),
}
_DEEPEST = 50

Number = Callable[[Any], float]
Condition = Callable[[Any], bool]
Reader = Callable[[Any], Array]
_OF_SESSION: Mapping[str, Number] = {
    "loss": lambda session: float(session.read_loss()),
    "step": lambda session: float(session.step_count),
}


class ConditionError(ArgumentError):
    """A condition that cannot be read: its message ends with the text and a caret under the place."""

    def __init__(self, where: str, given: str, wanted: str, text: str, start: int) -> None:
        self.shown, self.start, self.width = text, start, max(1, len(given) if given in text else 1)
        super().__init__(where, "test", given, wanted)

    def text(self) -> str:
        """The message, the condition, and a caret line."""
        return f"{super().text()}\n  {self.shown}\n  {' ' * self.start}{'^' * self.width}"


@dataclass(frozen=True, slots=True)
class StopTest:
    """A parsed condition: `holds(session)` after a step (or of whatever its numbers are read from)."""

    text: str
    condition: Condition

    def holds(self, subject: Any) -> bool:
        """Whether it is as the text says."""
        return self.condition(subject)

    def __str__(self) -> str:
        return self.text


def parse_test(text: str, session: Session, where: str = "until") -> StopTest:
    """The condition that `text` says of a session; names are looked up now. `ArgumentError` with a caret for what
    cannot be read."""
    tensors: dict[str, Reader] = {}
    for name in session.node_names():
        tensors[name] = partial(_node, name=name)
    for name in session.param_names():
        tensors[name] = partial(_parameter, name=name)
    return parse_condition(text, where, _OF_SESSION, tensors)


def parse_condition(
    text: str, where: str, numbers: Mapping[str, Number], tensors: Mapping[str, Reader] | None = None
) -> StopTest:
    """The condition that `text` says, over these numbers and tensors by name."""
    parser = _Parser(text, where, numbers, tensors or {})
    condition = parser.either()
    parser.end()
    return StopTest(" ".join(text.split()), condition)


def _node(session: Session, name: str) -> Array:
    return session.read_node_by_name(name)


def _parameter(session: Session, name: str) -> Array:
    return session.read_param(name)


class _Parser:
    """One text, read from left to right."""

    def __init__(self, text: str, where: str, numbers: Mapping[str, Number], tensors: Mapping[str, Reader]) -> None:
        self.text, self.where, self.numbers, self.tensors = text, where, numbers, tensors
        self.words = [(m[0].strip(), m.start(m.lastindex or 0)) for m in _WORDS.finditer(text)]
        self.at = self.depth = 0

    # words
    def peek(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

    def take(self, *wanted: str) -> bool:
        if self.peek() in wanted and self.peek():
            self.at += 1
            return True
        return False

    def fail(self, wanted: str, at: int | None = None, given: str | None = None) -> ConditionError:
        at = self.at if at is None else at
        word, start = self.words[at] if at < len(self.words) else ("the end", len(self.text))
        return ConditionError(self.where, given or word, wanted, self.text, start)

    def end(self) -> None:
        if self.at < len(self.words):
            raise self.fail("and, or, or the end")

    # grammar
    def either(self) -> Condition:
        found = self.both()
        while self.take("or"):
            found = _or(found, self.both())
        return found

    def both(self) -> Condition:
        found = self.one()
        while self.take("and"):
            found = _and(found, self.one())
        return found

    def one(self) -> Condition:
        negations = 0
        while self.take("not"):
            negations += 1
        if self.take("("):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.fail(f"at most {_DEEPEST} brackets inside each other")
            found = self.either()
            self.depth -= 1
            if not self.take(")"):
                raise self.fail("a closing bracket")
        else:
            found = self.comparison()
        return _not(found) if negations % 2 else found

    def comparison(self) -> Condition:
        left, sign = self.term(), self.peek()
        if sign not in _COMPARED:
            raise self.fail(f"one of {' '.join(_COMPARED)}")
        self.at += 1
        right, compared = self.term(), _COMPARED[sign]
        return lambda subject: compared(left(subject), right(subject))

    def term(self) -> Number:
        at, word = self.at, self.peek()
        if self.take("-"):
            inner = self.term()
            return lambda subject: -inner(subject)
        if word[:1].isdigit() or word[:1] == ".":
            self.at += 1
            value = float(word)
            return lambda subject: value
        if word in self.numbers:
            self.at += 1
            return self.numbers[word]
        figures = FIGURES if self.tensors else ()
        if word in figures:
            return self.figure(word)
        given = word
        if at + 3 < len(self.words) and self.words[at + 1][0] == "(":  # say the call as it stands
            given = self.text[self.words[at][1] : self.words[at + 3][1] + 1]
        raise self.fail(f"one of {', '.join((*figures, *self.numbers))}, or a number", at, given or None)

    def figure(self, word: str) -> Number:
        self.at += 1
        if not self.take("("):
            raise self.fail(f"{word}(NAME)")
        name, at = self.peek(), self.at
        if name not in self.tensors:
            raise self.fail(f"one of {', '.join(self.tensors)}", at)
        read = self.tensors[name]
        self.at += 1
        if not self.take(")"):
            raise self.fail("a closing bracket")
        figure = FIGURES[word]

        def measured(subject: Any) -> float:
            with np.errstate(all="ignore"):
                return figure(read(subject))

        return measured


def _or(a: Condition, b: Condition) -> Condition:
    return lambda subject: a(subject) or b(subject)


def _and(a: Condition, b: Condition) -> Condition:
    return lambda subject: a(subject) and b(subject)


def _not(a: Condition) -> Condition:
    return lambda subject: not a(subject)
