"""Conditions in words, for runs and breakpoints: `parse_test("loss < 0.1 or absmax(h) > 1e3", session)`.

    test := test or test | test and test | not test | ( test ) | term compared with term | shape(NAME) == list
    term := number | loss | step | FIGURE(NAME) | shape(NAME)[AXIS]         compared: < <= > >= == !=
    FIGURE := min max mean absmax l2 nonfinite                              list := [ 32, 128 ], * for any extent
    NAME: a parameter, a named node of the graph as written, or the gradient of a parameter, w.grad

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

from gdlab.base.errors import ArgumentError, GdlabError
from gdlab.base.types import Array
from gdlab.base.words import natural, one_of
from gdlab.session import Session
from gdlab.session.tensors import find_tensor, read_tensor, tensor_names

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
WORDS = re.compile(rf"\s*(?:({_NUMBER})|([^\W\d][\w.]*(?:\#\d+)?|%\d+)|(<=|>=|==|!=|[<>()\-\[\],*])|(\S))")
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
SHAPE = "shape"
_DEEPEST = 50

Number = Callable[[Any], float]
Condition = Callable[[Any], bool]
Reader = Callable[[Any], Array]
NUMBERS: Mapping[str, Number] = {
    "loss": lambda session: float(session.read_loss()),
    "step": lambda session: float(session.step_count),
}
_NO_LOSS = "step or a tensor's figure: an inference session has no loss (train=True, --train)"


class NoValue(Exception):
    """Raised where a condition reads something that has no value yet: then it does not hold."""


_SHOWN = 300  # characters of a condition on each side of what is wrong in it


class ConditionError(ArgumentError):
    """A condition that cannot be read: its message ends with the text and a caret under the place."""

    def __init__(self, where: str, given: str, wanted: str, text: str, start: int, what: str = "test") -> None:
        self.shown, self.start, self.width = text, start, max(1, len(given) if given in text else 1)
        super().__init__(where, what, given, wanted)

    def text(self) -> str:
        """Return the message, the condition (of a long one the part around the place), and a caret line."""
        first, last, count = 0, len(self.shown), len(self.shown)
        if count > 2 * _SHOWN:
            first, last = max(0, self.start - _SHOWN), min(count, self.start + _SHOWN)
        shown, width = self.shown[first:last], min(self.width, 2 * _SHOWN)
        before, after = "…" if first else "", "…" if last < count else ""
        caret = " " * (len(before) + self.start - first) + "^" * width
        return f"{super().text()}\n  {before}{shown}{after}\n  {caret}"


@dataclass(frozen=True, slots=True)
class StopTest:
    """A parsed condition: `holds(session)` after a step (or another object with its numbers). `tensors` and `numbers`
    are what it speaks of, by name."""

    text: str
    condition: Condition
    tensors: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def holds(self, subject: Any) -> bool:
        """Return whether the condition holds; False while something that it reads has no value."""
        try:
            return self.condition(subject)
        except NoValue:
            return False

    def __str__(self) -> str:
        return self.text


def parse_test(text: str, session: Session, where: str = "until", start: int = 0) -> StopTest:
    """Parse a condition of a session in `text`, from its column `start` on; names are looked up now.
    `ConditionError` with a caret for what cannot be read."""
    if not isinstance(text, str):
        raise ArgumentError(where, "text", type(text).__name__, "a condition, such as 'loss < 1'")
    has_loss = session.plan().loss_buffer is not None
    numbers = {name: number for name, number in NUMBERS.items() if name != "loss" or has_loss}
    try:
        return parse_condition(text, where, numbers, Tensors(session, where), start)
    except ConditionError as error:
        if error.given == "loss" and not has_loss:
            raise ConditionError(where, "loss", _NO_LOSS, text, error.start) from None
        raise


def parse_condition(
    text: str, where: str, numbers: Mapping[str, Number], tensors: Mapping[str, Reader] | None = None, start: int = 0
) -> StopTest:
    """Parse a condition over these numbers and tensors by name."""
    parser = _ConditionParser(text, where, numbers, tensors or {}, start)
    condition = parser.either()
    parser.end()
    used = tuple(dict.fromkeys(parser.tensors_used)), tuple(dict.fromkeys(parser.numbers_used))
    return StopTest(" ".join(text[start:].split()), condition, *used)


class Tensors(Mapping[str, Reader]):
    """The tensors of a session by name, each as a function that reads it from the session, or from anything with
    `read_tensor(name)`."""

    def __init__(self, session: Session, where: str) -> None:
        self.session, self.where, self.names = session, where, tensor_names(session)

    def __getitem__(self, name: str) -> Reader:
        if name not in self.names and name[:1] != "%":
            raise KeyError(name)
        find_tensor(self.session, self.where, name)  # says why where it has no value of its own
        return partial(_read, name=name)

    def __iter__(self) -> Any:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _read(subject: Any, name: str) -> Array:
    if isinstance(subject, Session):
        return read_tensor(subject, find_tensor(subject, "read", name))
    data: Array = subject.read_tensor(name)
    return data


class _ConditionParser:
    """A parser of one condition, from left to right."""

    def __init__(
        self, text: str, where: str, numbers: Mapping[str, Number], tensors: Mapping[str, Reader], start: int = 0
    ) -> None:
        self.text, self.where, self.numbers, self.tensors = text, where, numbers, tensors
        self.words = [(m[0].strip(), m.start(m.lastindex or 0)) for m in WORDS.finditer(text, start)]
        self.at = self.depth = 0
        self.tensors_used: list[str] = []
        self.numbers_used: list[str] = []

    # words
    def peek(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

    def take(self, *wanted: str) -> bool:
        if self.peek() in wanted and self.peek():
            self.at += 1
            return True
        return False

    def need(self, word: str, what: str) -> None:
        if not self.take(word):
            raise self.fail(what)

    def fail(self, wanted: str, at: int | None = None, given: str | None = None) -> ConditionError:
        at = self.at if at is None else at
        word, start = self.words[at] if at < len(self.words) else ("the end", len(self.text))
        return ConditionError(self.where, given or word, wanted, self.text, start)

    def end(self) -> None:
        if self.at < len(self.words):
            raise self.fail("and, or, or the end")

    # grammar
    def either(self) -> Condition:
        condition = self.both()
        while self.take("or"):
            condition = _or(condition, self.both())
        return condition

    def both(self) -> Condition:
        condition = self.one()
        while self.take("and"):
            condition = _and(condition, self.one())
        return condition

    def one(self) -> Condition:
        negations = 0
        while self.take("not"):
            negations += 1
        if self.take("("):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.fail(f"at most {_DEEPEST} brackets inside each other")
            condition = self.either()
            self.depth -= 1
            self.need(")", "a closing bracket")
        else:
            condition = self.comparison()
        return _not(condition) if negations % 2 else condition

    def comparison(self) -> Condition:
        if self.peek() == SHAPE and self.tensors:
            extents = self.extents()
            if self.peek() != "[":
                return self.whole_shape(extents)
            left = self.axis(extents)
        else:
            left = self.term()
        sign = self.peek()
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
        if word[:1].isascii() and word[:1].isdigit() or word[:1] == ".":
            self.at += 1
            value = float(word)
            return lambda subject: value
        if word in self.numbers:
            self.at += 1
            self.numbers_used.append(word)
            return self.numbers[word]
        if self.tensors and word in FIGURES:
            return self.figure(word)
        if self.tensors and word == SHAPE:
            return self.axis(self.extents())
        given = word
        if at + 3 < len(self.words) and self.words[at + 1][0] == "(":  # say the call as it stands
            given = self.text[self.words[at][1] : self.words[at + 3][1] + 1]
        figures = (*FIGURES, SHAPE) if self.tensors else ()
        raise self.fail(f"one of {', '.join((*figures, *self.numbers))}, or a number", at, given or None)

    def figure(self, word: str) -> Number:
        self.at += 1
        read, figure = self.tensor(word), FIGURES[word]

        def measured(subject: Any) -> float:
            with np.errstate(all="ignore"):
                return figure(read(subject))

        return measured

    def tensor(self, word: str) -> Reader:
        """Parse `(NAME)`, and return the reader of that tensor."""
        self.need("(", f"{word}(NAME)")
        name, at = self.peek(), self.at
        try:
            read = self.tensors[name]
        except KeyError:
            raise self.fail(one_of(name, list(self.tensors)), at) from None
        except GdlabError as error:
            raise ConditionError(self.where, str(error.given), error.wanted, self.text, self.words[at][1]) from None
        self.at += 1
        self.need(")", "a closing bracket")
        self.tensors_used.append(name)
        return read

    # shapes
    def extents(self) -> Callable[[Any], tuple[int, ...]]:
        self.at += 1
        read = self.tensor(SHAPE)
        return lambda subject: tuple(np.shape(read(subject)))

    def axis(self, extents: Callable[[Any], tuple[int, ...]]) -> Number:
        self.need("[", "[AXIS] behind the shape")
        sign = -1 if self.take("-") else 1
        word = self.peek()
        if (place := natural(word)) is None:
            raise self.fail("the number of an axis")
        self.at += 1
        self.need("]", "a closing bracket ]")
        number = sign * place

        def extent(subject: Any) -> float:
            shape = extents(subject)
            return float(shape[number]) if -len(shape) <= number < len(shape) else float("nan")

        return extent

    def whole_shape(self, extents: Callable[[Any], tuple[int, ...]]) -> Condition:
        sign = self.peek()
        if not self.take("==", "!="):
            raise self.fail("[AXIS], or one of == !=")
        self.need("[", "a shape such as [32, 128]")
        wanted: list[int | None] = []
        while not self.take("]"):
            if wanted:
                self.need(",", "a comma or ]")
            word = self.peek()
            if (size := natural(word)) is None and word != "*":
                raise self.fail("an extent, or * for any")
            wanted.append(size)
            self.at += 1

        def same(subject: Any) -> bool:
            shape = extents(subject)
            fits = len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))
            return fits is (sign == "==")

        return same


def _or(a: Condition, b: Condition) -> Condition:
    return lambda subject: a(subject) or b(subject)


def _and(a: Condition, b: Condition) -> Condition:
    return lambda subject: a(subject) and b(subject)


def _not(a: Condition) -> Condition:
    return lambda subject: not a(subject)
