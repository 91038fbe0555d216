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

import numpy as np

from gdlab.errors import ArgumentError
from gdlab.op import Array
from gdlab.session import Session

_WORDS = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|([^\W\d][\w.]*)|(<=|>=|==|!=|[<>()\-])|(\S))")
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

Number = Callable[[Session], float]
Condition = Callable[[Session], bool]


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
    """A parsed condition: `holds(session)` after a step."""

    text: str
    condition: Condition

    def holds(self, session: Session) -> bool:
        """Whether the session is in the state that the text describes."""
        return self.condition(session)

    def __str__(self) -> str:
        return self.text


def parse_test(text: str, session: Session, where: str = "until") -> StopTest:
    """The condition that `text` says; names are looked up now. `ArgumentError` with a caret for what cannot be read."""
    parser = _Parser(text, session, where)
    condition = parser.either()
    parser.end()
    return StopTest(" ".join(text.split()), condition)


class _Parser:
    """One text, read from left to right."""

    def __init__(self, text: str, session: Session, where: str) -> None:
        self.text, self.session, self.where = text, session, where
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
        return lambda session: compared(left(session), right(session))

    def term(self) -> Number:
        at, word = self.at, self.peek()
        if self.take("-"):
            inner = self.term()
            return lambda session: -inner(session)
        if word[:1].isdigit() or word[:1] == ".":
            self.at += 1
            value = float(word)
            return lambda session: value
        if self.take("loss"):
            return lambda session: session.read_loss()
        if self.take("step"):
            return lambda session: float(session.step_count)
        if word in FIGURES:
            return self.figure(word)
        given = word
        if at + 3 < len(self.words) and self.words[at + 1][0] == "(":  # say the call as it stands
            given = self.text[self.words[at][1] : self.words[at + 3][1] + 1]
        raise self.fail(f"one of {', '.join((*FIGURES, 'loss', 'step'))}, or a number", at, given or None)

    def figure(self, word: str) -> Number:
        self.at += 1
        if not self.take("("):
            raise self.fail(f"{word}(NAME)")
        name, at = self.peek(), self.at
        read = self.reader(name)
        if read is None:
            known = dict.fromkeys([*self.session.param_names(), *self.session.node_names()])
            raise self.fail(f"one of {', '.join(known) or 'no names: there are none'}", at)
        self.at += 1
        if not self.take(")"):
            raise self.fail("a closing bracket")
        figure = FIGURES[word]

        def measured(session: Session) -> float:
            with np.errstate(all="ignore"):
                return figure(read(session))

        return measured

    def reader(self, name: str) -> Callable[[Session], Array] | None:
        if self.session.has_parameter(name):
            return lambda session: session.read_param(name)
        if name in self.session.node_names():
            return lambda session: session.read_node_by_name(name)
        return None


def _or(a: Condition, b: Condition) -> Condition:
    return lambda session: a(session) or b(session)


def _and(a: Condition, b: Condition) -> Condition:
    return lambda session: a(session) and b(session)


def _not(a: Condition) -> Condition:
    return lambda session: not a(session)
