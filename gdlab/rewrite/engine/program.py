"""Schema, rules and graphs as egglog text and rows: what the engine is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

from gdlab.graph import AttrVar, Node
from gdlab.op import REGISTRY, Leaf
from gdlab.rewrite.rules.conditions import Egg
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule, interned

__all__ = [
    "FACTS", "OF_TYPE", "SPREAD", "TABLES", "Interner", "Program", "Rows", "Signature", "program_of",
    "program_text",
]  # fmt: skip

# facts about a node: columns after it. Most are facts about its type, of which there are few: the node has a `f_type`,
# and what a rule asks of a node's shape is asked of that. Beside them tables of attribute numbers.
FACTS = {
    "f_type": 1, "f_fill": 1, "f_param": 0, "f_single": 0, "f_inner": 0, "f_written": 0, "f_causal": 0, "f_seen": 0,
    "f_hides": 0, "f_low": 0, "f_cosines": 2, "f_sines": 2,
}  # fmt: skip
OF_TYPE = {
    "f_shape": 1, "f_row": 1, "f_rank": 1, "f_dtype": 1, "f_last": 1, "f_lead": 1, "f_size": 1, "f_width": 1,
    "f_root": 1, "f_kept": 1, "f_last_extent": 1, "f_axes": 1, "f_heads": 1, "f_rows_first": 1, "f_flat_heads": 1,
    "f_apart": 1, "f_flat_rows": 1, "f_halves": 6, "f_over_rows": 1,
}  # fmt: skip
# most nodes have these together: one row says them all, so that less is read, matched and looked up
TOGETHER = (("f_type", "f_inner", "f_single"), ("f_type", "f_inner"))
TABLES = {"f_compose": 3, "f_mean": 3, "f_finite": 1, "f_positive": 1, "f_repeats": 2}
TABLES |= {name: 1 + n for name, n in OF_TYPE.items()}

# facts for which the type of an op that is `typed_as_first` matters: what is known of it is known of its first operand
SPREAD = frozenset({"f_flat_heads", "f_flat_rows"})

Held = tuple[str, int]  # an op and the number of its operands
Table = tuple[int, int]  # number and columns: its rows go into the relation of this width, the number before them


# schema and rules -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Signature:
    """Columns of an op: operands, then attributes by name. An op that takes any number of operands has one per
    number."""

    op: str
    inputs: int
    attrs: tuple[str, ...]
    variadic: bool = False

    @property
    def egg(self) -> str:
        """Its constructor; plain names would collide with egglog's own."""
        name = "o_" + self.op.encode("ascii", "backslashreplace").decode().replace("\\", "_")
        return f"{name}__{self.inputs}" if self.variadic else name


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
    """Schema and rules for the engines; `rules[j]` leaves its firings in relation `F_j`.

    `signatures` are by op (one of an op that has several), `constructors` all of them by op and operand count.
    """

    text: str
    signatures: Mapping[str, Signature]
    constructors: Mapping[Held, Signature]
    rules: tuple[Rule, ...]
    literals: Interner
    relations: frozenset[str]  # the facts that the rules ask for
    inputs: Mapping[str, Table]


@lru_cache(maxsize=64)
def _program(rules: tuple[Rule, ...], signatures: tuple[Signature, ...]) -> Program:
    table, literals = {(s.op, s.inputs): s for s in signatures}, Interner()
    texts = [_rule(j, rule, table, literals) for j, rule in enumerate(rules)]
    used = [name for name in (*FACTS, *TABLES) if any(f"({name} " in t for t in texts)]
    lines = ["(sort T)", "(ruleset ingest)", "(ruleset opt)", "(constructor N (i64) T :unextractable)"]
    inputs: dict[str, Table] = {}
    several = [names for names in TOGETHER if set(names) <= set(used)]
    stated = (_leaf(), *map(_constructor, signatures), *map(_fact, used), *map(_facts_together, several))
    for declared, ingest, name, columns in stated:
        inputs[name] = len(inputs), columns
        lines += [declared] if declared else []
        lines.append(ingest.format(row=f"row_{columns} {len(inputs) - 1}"))
    widths = sorted({columns for _, columns in inputs.values()})
    lines[1:1] = [f"(relation row_{n} ({' '.join(['i64'] * (n + 1))}))" for n in widths]
    for s in signatures:
        if s.op in COMMUTATIVE:
            lines.append(f'(rewrite ({s.egg} a b) ({s.egg} b a) :ruleset opt :name "comm_{s.op}")')
        if REGISTRY[s.op].typed_as_first and SPREAD & set(used):
            row = f"(= e ({s.egg} {' '.join(f'x{i}' for i in range(s.inputs + len(s.attrs)))}))"
            for name, a, b in (("up", "x0", "e"), ("down", "e", "x0")):
                rule = f"({row} (f_type {a} t)) ((f_type {b} t))"
                lines.append(f'(rule {rule} :ruleset opt :name "type_{name}_{s.op}")')
    text = "\n".join([*lines, *texts]) + "\n"
    return Program(text, {s.op: s for s in signatures}, table, rules, literals, frozenset(used), inputs)


def program_of(rules: Sequence[Rule], held: Iterable[Held] | None = None) -> Program:
    """The program for a graph that holds these ops (op, operand count): rules that could match it, and all ops that
    they lead to. Without `held`: every rule, over every op of the registry."""
    stated = tuple(r for r in rules if r.left >= 0)
    return _program(*_reached(stated, held))


def _reached(
    rules: Sequence[Rule], held: Iterable[Held] | None
) -> tuple[tuple[Rule, ...], tuple[Signature, ...]]:
    """The rules whose left side can come about from these ops, and the signatures of all ops that can."""
    if held is None:
        ops = [op for op in REGISTRY.values() if not isinstance(op.kernel, Leaf) and not op.variadic]
        known = {(op.name, len(op.operands)) for op in ops} | {n for r in rules for n in _sides(r)[0]}
    else:
        known = set(held)
    taken: set[Rule] = set()
    before = -1
    while len(taken) != before:
        before = len(taken)
        for rule in rules:
            left, right = _sides(rule)
            if rule not in taken and left <= known:
                taken.add(rule)
                known |= right
    place = {name: i for i, name in enumerate(REGISTRY)}
    ordered = sorted(known, key=lambda held: (place[held[0]], held[1]))
    return tuple(r for r in rules if r in taken), tuple(_signature(*held) for held in ordered)


@lru_cache(maxsize=1024)
def _sides(rule: Rule) -> tuple[frozenset[Held], frozenset[Held]]:
    """The ops of both sides."""
    left, right = (frozenset((n.op, len(n.inputs)) for n in nodes) for nodes in (rule.left_nodes, rule.right_nodes))
    return left, right


def _signature(name: str, inputs: int) -> Signature:
    return Signature(name, inputs, attr_names(name), REGISTRY[name].variadic)


def attr_names(name: str) -> tuple[str, ...]:
    """The names of an op's attributes, in the order in which e-nodes hold them."""
    return ("data",) if name == "constant" else tuple(sorted(p.name for p in REGISTRY[name].attributes))


Stated = tuple[str, str, str, int]  # declaration, rule that reads its rows, name, columns of a row


def _leaf() -> Stated:
    return "(constructor Leaf (i64) T)", _ingest("(union (N x0) (Leaf x1))", 2), "Leaf", 2


def _constructor(s: Signature) -> Stated:
    sorts = ["T"] * s.inputs + ["i64"] * len(s.attrs)
    values = [f"(N x{i})" if sort == "T" else f"x{i}" for i, sort in enumerate(sorts, 1)]
    action = f"(union (N x0) ({' '.join([s.egg, *values])}))"
    return f"(constructor {s.egg} ({' '.join(sorts)}) T)", _ingest(action, 1 + len(sorts)), s.egg, 1 + len(sorts)


def _fact(name: str) -> Stated:
    of_node = name in FACTS
    columns = FACTS[name] + 1 if of_node else TABLES[name]
    sorts = ["T" if of_node else "i64", *["i64"] * (columns - 1)]
    values = ["(N x0)" if of_node else "x0", *(f"x{i}" for i in range(1, columns))]
    return f"(relation {name} ({' '.join(sorts)}))", _ingest(f"({' '.join([name, *values])})", columns), name, columns


def _facts_together(names: tuple[str, ...]) -> Stated:
    typed, *others = names
    actions = f"(let n (N x0)) ({typed} n x1) {' '.join(f'({name} n)' for name in others)}"
    return "", f"(rule (({{row}} x0 x1)) ({actions}) :ruleset ingest)", "+".join(names), 2


def _ingest(action: str, columns: int) -> str:
    return f"(rule (({{row}} {' '.join(f'x{i}' for i in range(columns))})) ({action}) :ruleset ingest)"


def asked(rule: Rule, egg: Egg, literals: Interner) -> list[str]:
    """The facts that a rule's conditions ask for, those about a type asked of the node's `f_type`.

    A value that is known already is compared once all are found, and not by a join: egglog 13.2 loses such joins in
    rules of eight premises and more, and then finds what is not there.
    """
    known = {f"a_{v.name}" for node in rule.left_nodes for _, v in node.attrs if isinstance(v, AttrVar)}
    premises: dict[str, None] = {}
    compared: list[str] = []
    for fact in dict.fromkeys(text for condition in rule.where for text in condition.facts(egg, literals)):
        name, subject, *rest = fact.strip("()").split()
        if name in OF_TYPE:
            premises[f"(f_type {subject} ty_{subject})"] = None
            subject = f"ty_{subject}"
        if name in OF_TYPE or name in FACTS:
            for i, value in enumerate(rest):
                if value in known:
                    rest[i] = f"c{len(compared)}_{value}"
                    compared.append(f"(= 0 (- {rest[i]} {value}))")
        known.update(rest)
        premises[f"({' '.join([name, subject, *rest])})"] = None
    return [*premises, *compared]


def _rule(j: int, rule: Rule, table: Mapping[Held, Signature], literals: Interner) -> str:
    names = {n.id: f"v_{n.attr('name')}" for n in rule.pattern if n.op == "var"}
    names |= {n.id: f"t{n.id}" for n in rule.left_nodes}

    def egg(name: str) -> str:
        return names[rule.names[name]] if name in rule.names else f"a_{name}"

    def term(node: Node) -> str:
        attrs = [f"a_{v.name}" if isinstance(v, AttrVar) else str(literals(v)) for _, v in node.attrs]
        return f"({' '.join([table[node.op, len(node.inputs)].egg, *(names[i] for i in node.inputs), *attrs])})"

    premises = [f"(= {names[n.id]} {term(n)})" for n in rule.left_nodes]
    premises += asked(rule, egg, literals)
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
    texts: dict[str, str] = field(default_factory=dict)  # what `tables` made of it last

    def tables(self, program: Program) -> dict[str, str]:
        """Lines of columns by relation, in egglog's own format: a tab between two, a line break behind each row."""
        texts: dict[str, list[str]] = {}
        for name, rows in self._named(program):
            number, columns = program.inputs[name]
            line = "\t".join([str(number), *["%d"] * columns]) + "\n"
            texts.setdefault(f"row_{columns}", []).extend([line % row for row in rows])
        self.texts = {name: "".join(lines) for name, lines in texts.items()}
        return self.texts

    def _named(self, program: Program) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
        yield "Leaf", [(i, i) for i in self.leaves]
        for op, rows in self.ops.items():
            for s, part in by_arity(program, op, rows):
                yield s.egg, part
        yield from _joined(program, self.facts).items()


def _joined(program: Program, facts: Mapping[str, list[tuple[int, ...]]]) -> dict[str, list[tuple[int, ...]]]:
    """The facts, with those of one node in one row where `TOGETHER` says so."""
    rest = dict(facts)
    for names in TOGETHER:
        if "+".join(names) in program.inputs:
            ids = set(chain.from_iterable(rest[names[1]])).intersection(*(map(itemgetter(0), rest[n]) for n in names))
            whole = [row for row in rest[names[0]] if row[0] in ids]
            rest |= {name: [row for row in rest[name] if row[0] not in ids] for name in names}
            rest["+".join(names)] = whole
    return rest


def by_arity(
    program: Program, op: str, rows: list[tuple[int, ...]]
) -> Iterator[tuple[Signature, list[tuple[int, ...]]]]:
    """The rows of an op by signature: one for each number of operands."""
    s = program.signatures[op]
    if not s.variadic:
        yield s, rows
        return
    beside = 1 + len(s.attrs)
    for n in sorted({len(row) for row in rows}):
        yield program.constructors[op, n - beside], [row for row in rows if len(row) == n]


def program_text(program: Program, given: Rows | Mapping[str, str], iterations: int | None) -> str:
    """Schema, rules, graph (rows, or what `Rows.tables` made of them) and schedule as one text that egglog runs
    alone. `iterations` None: as many as it takes until nothing is new, since engines do not need equally many."""
    tables = given.tables(program) if isinstance(given, Rows) else given
    facts = [f"({name} {line.replace(chr(9), ' ')})" for name, text in tables.items() for line in text.splitlines()]
    search = "(run-schedule (saturate opt))" if iterations is None else f"(run opt {iterations})"
    return "\n".join([program.text, *facts, "(run ingest 1)", search]) + "\n"
