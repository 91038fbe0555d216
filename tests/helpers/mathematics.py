"""Parse the line of mathematics that begins a gradient rule or a rewrite rule (grammar: docs/add_a_rule.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|[½∞π])|([A-Za-z_][A-Za-z0-9_]*)|(//|[-+−·⊙/^ᵀ²³⁻√Σ∂()\[\]|,=<>≤≥→¹]))")
INDICES = frozenset("eijn")  # names of positions, if no operand has them
WORDS = frozenset({"with", "over", "True", "False"})
POSTFIX, COMPARED = ("ᵀ", "²", "³", "⁻"), ("=", "<", ">", "≤", "≥")


@dataclass
class Line:
    """A parsed line: `kind` is "gradient" or "rewrite"; `names` that it uses, without functions; `gradients` are the
    operands whose ∂ it gives; `bound` are the names that it defines itself."""

    kind: str = "rewrite"
    names: set[str] = field(default_factory=set)
    gradients: list[str] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)

    @property
    def free(self) -> set[str]:
        """The names that the rule itself has to know."""
        return self.names - self.bound - INDICES


def parse(text: str) -> Line:
    """Return the parsed line; `SyntaxError` says where it leaves the grammar."""
    return _FormulaParser(text).line()


class _FormulaParser:
    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, [], 0
        while at < len(text.rstrip()):
            found = TOKEN.match(text, at)
            if found is None:
                raise SyntaxError(f"{text!r}: {text[at:]!r}")
            self.tokens.append(found.group().strip())
            at = found.end()
        self.at, self.parsed = 0, Line()

    def line(self) -> Line:
        if self.peek() == "∂":
            self.parsed.kind = "gradient"
            self.separated(self.gradient)
        else:
            self.sum()
            self.take("→")
            self.sum()
        if self.skip("with"):
            self.separated(self.definition)
        if self.at < len(self.tokens):
            raise SyntaxError(f"{self.text!r}: {self.peek()!r} after its end")
        return self.parsed

    def gradient(self) -> None:
        self.take("∂")
        self.parsed.gradients.append(self.name())
        self.index()
        self.take("=")
        self.sum()
        if self.skip("over"):
            self.condition()

    def definition(self) -> None:
        if self.skip("["):
            self.separated(lambda: self.parsed.bound.add(self.name()))
            self.take("]")
        else:
            self.parsed.bound.add(self.name())
        self.take("=")
        self.sum()

    def condition(self) -> None:
        self.sum()
        while self.peek() in COMPARED:
            self.at += 1
            self.sum()

    def sum(self) -> None:
        self.product()
        while self.peek() in ("+", "−"):
            self.at += 1
            self.product()

    def product(self) -> None:
        self.signed()
        while self.peek() in ("·", "⊙", "/", "//"):
            self.at += 1
            self.signed()

    def signed(self) -> None:
        while self.peek() in ("−", "Σ", "√"):
            self.at += 1
        self.atom()
        while self.peek() in POSTFIX or self.peek() == "^":
            if self.skip("^"):
                self.signed()
            elif self.skip("⁻"):
                self.take("¹")
            else:
                self.at += 1

    def atom(self) -> None:
        if self.skip("("):
            self.separated(self.condition)
            self.take(")")
        elif self.skip("["):
            self.separated(self.sum)
            self.take("]")
        elif self.skip("|"):
            self.sum()
            self.take("|")
        elif self.number():
            self.at += 1
        else:
            self.named()

    def named(self) -> None:
        name = self.name()
        if self.skip("("):
            self.separated(self.condition)
            self.take(")")
            return
        self.parsed.names |= {name} - WORDS
        self.index()

    def index(self) -> None:
        if self.skip("["):
            self.separated(self.sum)
            self.take("]")

    def number(self) -> bool:
        return self.peek()[:1].isdigit() or self.peek() in ("½", "∞", "π")

    def name(self) -> str:
        if not self.peek().isidentifier():
            raise SyntaxError(f"{self.text!r}: {self.peek()!r}, wanted a name")
        self.at += 1
        return self.tokens[self.at - 1]

    def separated(self, part: object) -> None:
        assert callable(part)
        part()
        while self.skip(","):
            part()

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def skip(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def take(self, token: str) -> None:
        if not self.skip(token):
            raise SyntaxError(f"{self.text!r}: {self.peek()!r}, wanted {token!r}")
