"""Schema, rules and graphs as egglog text and rows: what the engine is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gdlab.graph import AttrVar, Node
from gdlab.op import REGISTRY, Leaf
from gdlab.rewrite.pattern import COMMUTATIVE, Rule, interned

__all__ = ["FACTS", "Interner", "Program", "Rows", "Signature", "program_of", "program_text"]

FACTS = {"f_shape": 1, "f_row": 1, "f_rank": 1, "f_dtype": 1, "f_fill": 1, "f_param": 0, "f_single": 0, "f_inner": 0}


# schema and rules -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Signature:
    """Columns of an op: operands, then attributes by name."""

    op: str
    inputs: int
    attrs: tuple[str, ...]

    @property
    def egg(self) -> str:
        """Its constructor; plain names would collide with egglog's own."""
        return "o_" + self.op.encode("ascii", "backslashreplace").decode().replace("\\", "_")


class Interner:
    """Attribute values as numbers: equal numbers exactly where values are equal bit by bit."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = []
        self._ids: dict[Any, int] = {}
        for value in values:
            self(value)

    def __call__(self, value: Any) -> int:
        id = self._ids.setdefault(interned(value), len(self.values))
        if id == len(self.values):
            self.values.append(value)
        return id

    def copy(self) -> Interner:
        """One that knows the same values and grows apart."""
        other = Interner()
        other.values, other._ids = list(self.values), dict(self._ids)
        return other


@dataclass(frozen=True, eq=False)
class Program:
    """Schema and rules for egglog; `rules[j]` leaves its firings in relation `F_j`."""

    text: str
    signatures: Mapping[str, Signature]
    rules: tuple[Rule, ...]
    literals: Interner
    relations: frozenset[str]  # the facts that the rules ask for


@lru_cache(maxsize=16)
def _program(rules: tuple[Rule, ...], signatures: tuple[Signature, ...]) -> Program:
    table, literals = {s.op: s for s in signatures}, Interner()
    lines = ["(sort T)", "(ruleset ingest)", "(ruleset opt)", "(constructor N (i64) T :unextractable)"]
    lines += ["(constructor Leaf (i64) T)", "(relation in_Leaf (i64 i64))"]
    lines += ["(rule ((in_Leaf o x)) ((union (N o) (Leaf x))) :ruleset ingest)"]
    for s in signatures:
        lines += _constructor(s)
    lines += ["(relation f_compose (i64 i64 i64))"]
    for name, columns in FACTS.items():
        lines += _fact(name, columns)
    texts = [_rule(j, rule, table, literals) for j, rule in enumerate(rules)]
    for op in sorted(COMMUTATIVE & table.keys()):
        egg = table[op].egg
        lines.append(f'(rewrite ({egg} a b) ({egg} b a) :ruleset opt :name "comm_{op}")')
    text = "\n".join([*lines, *texts]) + "\n"
    used = {name for name in (*FACTS, "f_compose") if any(f"({name} " in t for t in texts)}
    return Program(text, table, rules, literals, frozenset(used))


def program_of(rules: Sequence[Rule]) -> Program:
    """The program for these rules over every op of the registry."""
    signatures = tuple(
        Signature(op.name, len(op.operands), tuple(sorted(p.name for p in op.attributes)))
        for op in REGISTRY.values()
        if not isinstance(op.kernel, Leaf)
    )
    return _program(tuple(r for r in rules if r.left >= 0), signatures)


def _constructor(s: Signature) -> list[str]:
    columns = ["T"] * s.inputs + ["i64"] * len(s.attrs)
    names = [f"x{i}" for i in range(len(columns))]
    values = [f"(N {x})" if sort == "T" else x for x, sort in zip(names, columns, strict=True)]
    row, term = " ".join(["o", *names]), " ".join([s.egg, *values])
    return [
        f"(constructor {s.egg} ({' '.join(columns)}) T)",
        f"(relation in_{s.egg} ({' '.join(['i64'] * (len(columns) + 1))}))",
        f"(rule ((in_{s.egg} {row})) ((union (N o) ({term}))) :ruleset ingest)",
    ]


def _fact(name: str, columns: int) -> list[str]:
    extra = ["i64"] * columns
    x = " x" * columns
    return [
        f"(relation {name} ({' '.join(['T', *extra])}))",
        f"(relation in_{name} ({' '.join(['i64', *extra])}))",
        f"(rule ((in_{name} o{x})) (({name} (N o){x})) :ruleset ingest)",
    ]


def _rule(j: int, rule: Rule, table: Mapping[str, Signature], literals: Interner) -> str:
    names = {n.id: f"v_{n.attr('name')}" for n in rule.pattern if n.op == "var"}
    names |= {n.id: f"t{n.id}" for n in rule.left_nodes}

    def egg(name: str) -> str:
        return names[rule.names[name]] if name in rule.names else f"a_{name}"

    def term(node: Node) -> str:
        attrs = [f"a_{v.name}" if isinstance(v, AttrVar) else str(literals(v)) for _, v in node.attrs]
        return f"({' '.join([table[node.op].egg, *(names[i] for i in node.inputs), *attrs])})"

    premises = [f"(= {names[n.id]} {term(n)})" for n in rule.left_nodes]
    premises += [fact for c in rule.where for fact in c.facts(egg, literals)]
    actions = []
    for node in rule.right_nodes:
        if node.id not in names:
            names[node.id] = f"t{node.id}"
            actions.append(f"(let {names[node.id]} {term(node)})")
    row = [f"v_{v}" for v in rule.variables] + [f"a_{v}" for v in rule.attr_variables] + [names[rule.left]]
    columns = ["T"] * len(rule.variables) + ["i64"] * len(rule.attr_variables) + ["T"]
    actions += [f"(union {names[rule.left]} {names[rule.right]})", f"(F_{j} {' '.join(row)})"]
    return (
        f"(relation F_{j} ({' '.join(columns)}))\n"
        f'(rule ({" ".join(premises)}) ({" ".join(actions)}) :ruleset opt :name "r_{j}")'
    )


# a graph --------------------------------------------------------------------------------------------------------------
@dataclass
class Rows:
    """A graph as rows: per op (id, operand ids, attribute numbers), leaves, and facts about ids."""

    ops: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    leaves: list[int] = field(default_factory=list)
    facts: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    count: int = 0

    def tables(self, program: Program) -> dict[str, list[str]]:
        """Lines by relation."""
        found = {f"in_{program.signatures[op].egg}": _lines(rows) for op, rows in self.ops.items()}
        found |= {f"in_{name}" if name in FACTS else name: _lines(rows) for name, rows in self.facts.items() if rows}
        if self.leaves:
            found["in_Leaf"] = [f"{i}\t{i}" for i in self.leaves]
        return found


def _lines(rows: Iterable[tuple[int, ...]]) -> list[str]:
    return ["\t".join(map(str, row)) for row in rows]


def program_text(program: Program, rows: Rows, iterations: int) -> str:
    """Schema, rules, graph and schedule as one text that egglog runs alone."""
    facts = [f"({name} {' '.join(line.split())})" for name, lines in rows.tables(program).items() for line in lines]
    return "\n".join([program.text, *facts, "(run ingest 1)", f"(run opt {iterations})"]) + "\n"
