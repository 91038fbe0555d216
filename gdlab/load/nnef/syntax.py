"""The text of an NNEF graph as records: flat syntax, with one operation of plain arguments per assignment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gdlab.base.errors import LoadError
from gdlab.load.shared import MOST_NODES

WHERE = "load_nnef"
DEEPEST = 8  # lists in lists
MOST_ARGUMENTS = 64  # of an operation
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|\#[^\n]*)|(?P<name>[A-Za-z_]\w*)|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<text>'[^'\n]*'|\"[^\"\n]*\")|(?P<mark>->|[()\[\]{}<>,;=:])",
    re.ASCII,
)
_WORDS: dict[str, bool] = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Identifier:
    """An identifier as an argument."""

    text: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment, `target = op<dtype>(args, key = value …)`, and its line."""

    target: str
    op: str
    dtype: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: int

    def __str__(self) -> str:
        return f"{self.op} ({self.target})"


@dataclass(frozen=True, slots=True)
class GraphText:
    """A graph as it is written."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text; `kind` is name, number, text, mark or end."""

    kind: str
    text: str
    line: int


def parse(text: str) -> GraphText:
    """Return the graph of a text; raise `LoadError` with the line of a syntax error."""
    return _NnefParser(text).document()


def _tokens(text: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise LoadError(WHERE, f"graph.nnef, line {line}", repr(text[at : at + 10]), "a word of NNEF")
        kind = str(match.lastgroup)
        if kind != "space":
            yield Token(kind, match.group(), line)
        line += match.group().count("\n")
        at = match.end()
    yield Token("end", "the end", line)


class _NnefParser:
    """A parser that goes through the words; every method takes the construct that it is named after. `word` is the next
    one, `then` the one behind."""

    def __init__(self, text: str) -> None:
        self.rest = _tokens(text)
        self.word = next(self.rest)
        self.then = next(self.rest, self.word)

    def step(self) -> None:
        """Go to the next word."""
        self.word, self.then = self.then, next(self.rest, self.then)

    def wrong(self, wanted: str) -> LoadError:
        """Return the error that the next word is unexpected."""
        return LoadError(WHERE, f"graph.nnef, line {self.word.line}", repr(self.word.text), wanted)

    def take(self, wanted: str) -> str:
        """Return a mark, a keyword, or (`name`, `number`) a word of that kind."""
        found = self.word
        if wanted not in (found.text if found.kind in ("mark", "name") else found.kind, found.kind):
            raise self.wrong(f"a {wanted}" if wanted in ("name", "number") else repr(wanted))
        self.step()
        return found.text

    def sees(self, text: str) -> bool:
        """Return whether the next word is this mark or keyword, and take it."""
        if self.word.kind in ("mark", "name") and self.word.text == text:
            self.step()
            return True
        return False

    def document(self) -> GraphText:
        """Parse `version 1.0; extension …; graph …"""
        self.take("version")
        if self.word.text.partition(".")[0] != "1":
            raise self.wrong("version 1")
        self.take("number")
        self.take(";")
        while self.sees("extension"):
            while not self.sees(";"):
                self.take("name")
        if self.word.text == "fragment":
            raise self.wrong("'graph': fragments of a model's own are not taken")
        self.take("graph")
        name, inputs = self.take("name"), self.names()
        self.take("->")
        outputs = self.names()
        self.take("{")
        body: list[Assignment] = []
        while not self.sees("}"):
            if len(body) == MOST_NODES:
                raise self.wrong(f"at most {MOST_NODES:,} operations")
            body.append(self.assignment())
        if self.word.kind != "end":
            raise self.wrong("the end")
        return GraphText(name, inputs, outputs, tuple(body))

    def names(self) -> tuple[str, ...]:
        """Parse `( a, b )`."""
        self.take("(")
        found: list[str] = []
        while not self.sees(")"):
            if found:
                self.take(",")
            found.append(self.take("name"))
        return tuple(found)

    def assignment(self) -> Assignment:
        """Parse `target = op<dtype>( … );`."""
        line, target = self.word.line, self.take("name")
        self.take("=")
        op, dtype = self.take("name"), "scalar"
        if self.sees("<"):
            dtype = self.take("name")
            self.take(">")
        self.take("(")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        while not self.sees(")"):
            if args or kwargs:
                self.take(",")
            if len(args) + len(kwargs) == MOST_ARGUMENTS:
                raise self.wrong(f"at most {MOST_ARGUMENTS} arguments")
            self.argument(args, kwargs)
        self.take(";")
        return Assignment(target, op, dtype, tuple(args), kwargs, line)

    def argument(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Parse `value` or `key = value`."""
        named = self.word.kind == "name" and self.then.text == "="
        if not named:
            if kwargs:
                raise self.wrong("a named argument, as those before it are")
            args.append(self.value(0))
            return
        if self.word.text in kwargs:
            raise self.wrong("each argument once")
        key = self.take("name")
        self.take("=")
        kwargs[key] = self.value(0)

    def value(self, depth: int) -> Any:
        """Parse a number, a text, true or false, an identifier, [ … ] or ( … )."""
        if depth > DEEPEST:
            raise self.wrong(f"lists in lists, {DEEPEST} deep at most")
        for opening, closing in (("[", "]"), ("(", ")")):
            if self.sees(opening):
                found: list[Any] = []
                while not self.sees(closing):
                    if found:
                        self.take(",")
                    found.append(self.value(depth + 1))
                return tuple(found)
        match self.word.kind:
            case "number":
                text = self.take("number")
                return int(text) if text.lstrip("+-").isdigit() else float(text)
            case "name":
                text = self.take("name")
                return _WORDS.get(text, Identifier(text))
            case "text":
                return self.take("text")[1:-1]
        raise self.wrong("a value")
