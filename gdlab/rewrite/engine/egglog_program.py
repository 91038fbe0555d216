"""Write schema, rules and graphs as egglog text and rows, and conditions of rules as facts for both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from gdlab.graph import AttrVar, Node
from gdlab.op import REGISTRY, Leaf
from gdlab.rewrite.rules.conditions import SHAPE, WRITTEN, Condition
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule
from gdlab.rewrite.rules.relations import EQUAL, TYPE, AttrValue, Fact, Interner, Local, Relation, Term

__all__ = [
    "Column", "Premises", "RuleProgram", "GraphRows", "OpSignature", "Slots", "attr_names", "by_arity",
    "node_variables", "premises", "program_of", "program_text",
]  # fmt: skip

# most nodes have these together: one row says them all, so that less is read, matched and looked up
TOGETHER = (("f_type", "f_inner", "f_single"), ("f_type", "f_inner"))
SUBJECTS = ("node", "attribute", "type")


Column = str | int  # of a fact: a variable, or a number
OpArity = tuple[str, int]  # an op and the number of its operands
Table = tuple[int, int]  # number and columns: its rows go into the relation of this width, the number before them
# of each op: its name, places of the operands, attributes (is a variable, its place or number), is it commutative
Slots = tuple[tuple[str, tuple[int, ...], tuple[tuple[bool, int], ...], bool], ...]


# schema and rules -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OpSignature:
    """Columns of an op: operands, then attributes by name. An op that takes any number of operands has one per number.
    """

    op: str
    inputs: int
    attrs: tuple[str, ...]
    variadic: bool = False

    @cached_property
    def egg(self) -> str:
        """Name of its egglog constructor, prefixed: plain op names would collide with egglog's own."""
        name = "o_" + self.op.encode("ascii", "backslashreplace").decode().replace("\\", "_")
        return f"{name}__{self.inputs}" if self.variadic else name


@dataclass(frozen=True, eq=False)
class RuleProgram:
    """Schema and rules for the engines; `rules[j]` leaves its firings in relation `F_j`.

    `signatures` are by op (one of an op that has several), `constructors` all of them by op and operand count.
    """

    text: str
    signatures: Mapping[str, OpSignature]
    constructors: Mapping[OpArity, OpSignature]
    rules: tuple[Rule, ...]
    literals: Interner
    relations: tuple[Relation, ...]  # that the rules ask for
    inputs: Mapping[str, Table]

    @cached_property
    def slots(self) -> tuple[Slots, ...]:
        """The ops of both sides of every rule, by the numbers of `literals`; operands index variables, then ops."""
        return tuple(_slots(rule, self.literals) for rule in self.rules)

    @cached_property
    def opened(self) -> frozenset[str]:
        """The ops of the inner nodes that rules open where they are written."""
        asked = [(rule, f) for rule in self.rules for c in rule.where for f in c.facts if f.relation is WRITTEN]
        return frozenset(rule.pattern.node(rule.names[str(fact.terms[0])]).op for rule, fact in asked)


def _slots(rule: Rule, literals: Interner) -> Slots:
    place = {rule.names[name]: i for i, name in enumerate(rule.variables)}
    slots = []
    for node in (*rule.left_nodes, *rule.right_nodes):
        given = tuple(
            (True, rule.attr_variables.index(v.name)) if isinstance(v, AttrVar) else (False, literals(v))
            for _, v in node.attrs
        )
        slots.append((node.op, tuple([place[i] for i in node.inputs]), given, node.op in COMMUTATIVE))
        place[node.id] = len(rule.variables) + len(slots) - 1
    return tuple(slots)


@lru_cache(maxsize=64)
def _program(rules: tuple[Rule, ...], signatures: tuple[OpSignature, ...]) -> RuleProgram:
    table, literals = {(s.op, s.inputs): s for s in signatures}, Interner()
    texts = [_rule(j, rule, table, literals) for j, rule in enumerate(rules)]
    used = _relations(rules, literals)
    lines = ["(sort T)", "(ruleset ingest)", "(ruleset opt)", "(constructor N (i64) T :unextractable)"]
    inputs: dict[str, Table] = {}
    several = [names for names in TOGETHER if {*names} <= {relation.name for relation in used}]
    stated = (_leaf(), *map(_constructor, signatures), *map(_relation, used), *map(_facts_together, several))
    for declared, ingest, name, columns in stated:
        inputs[name] = len(inputs), columns
        lines += [declared] if declared else []
        lines.append(ingest.format(row=f"row_{columns} {len(inputs) - 1}"))
    widths = sorted({columns for _, columns in inputs.values()})
    lines[1:1] = [f"(relation row_{n} ({' '.join(['i64'] * (n + 1))}))" for n in widths]
    for s in signatures:
        if s.op in COMMUTATIVE:
            lines.append(f'(rewrite ({s.egg} a b) ({s.egg} b a) :ruleset opt :name "comm_{s.op}")')
        if REGISTRY[s.op].typed_as_first and any(relation.spreads for relation in used):
            row = f"(= e ({s.egg} {' '.join(f'x{i}' for i in range(s.inputs + len(s.attrs)))}))"
            for name, a, b in (("up", "x0", "e"), ("down", "e", "x0")):
                rule = f"({row} (f_type {a} t)) ((f_type {b} t))"
                lines.append(f'(rule {rule} :ruleset opt :name "type_{name}_{s.op}")')
    text = "\n".join([*lines, *texts]) + "\n"
    return RuleProgram(text, {s.op: s for s in signatures}, table, rules, literals, used, inputs)


def program_of(rules: Sequence[Rule], ops: Iterable[OpArity] | None = None) -> RuleProgram:
    """Return the program for a graph with these ops (op, operand count): rules that could match it, and all ops that
    they lead to. Without `ops`: every rule, over every op of the registry."""
    stated = tuple(r for r in rules if r.left >= 0)
    return _program(*_reached(stated, ops))


def _reached(
    rules: Sequence[Rule], ops: Iterable[OpArity] | None
) -> tuple[tuple[Rule, ...], tuple[OpSignature, ...]]:
    """Return the rules whose left side can arise from these ops, and the signatures of all ops that can arise."""
    if ops is None:
        records = [op for op in REGISTRY.values() if not isinstance(op.kernel, Leaf) and not op.variadic]
        known = {(op.name, len(op.operands)) for op in records} | {n for r in rules for n in _sides(r)[0]}
    else:
        known = set(ops)
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
    ordered = sorted(known, key=lambda op: (place[op[0]], op[1]))
    return tuple(r for r in rules if r in taken), tuple(_signature(*op) for op in ordered)


@lru_cache(maxsize=1024)
def _sides(rule: Rule) -> tuple[frozenset[OpArity], frozenset[OpArity]]:
    """Return the ops of the left and of the right side of a rule."""
    left, right = (frozenset((n.op, len(n.inputs)) for n in nodes) for nodes in (rule.left_nodes, rule.right_nodes))
    return left, right


def _signature(name: str, inputs: int) -> OpSignature:
    return OpSignature(name, inputs, attr_names(name), REGISTRY[name].variadic)


def attr_names(name: str) -> tuple[str, ...]:
    """Return the names of an op's attributes, in the order in which e-nodes hold them."""
    return ("data",) if name == "constant" else tuple(sorted(p.name for p in REGISTRY[name].attributes))


Stated = tuple[str, str, str, int]  # declaration, rule that reads its rows, name, columns of a row


def _leaf() -> Stated:
    return "(constructor Leaf (i64) T)", _ingest("(union (N x0) (Leaf x1))", 2), "Leaf", 2


def _constructor(s: OpSignature) -> Stated:
    sorts = ["T"] * s.inputs + ["i64"] * len(s.attrs)
    values = [f"(N x{i})" if sort == "T" else f"x{i}" for i, sort in enumerate(sorts, 1)]
    action = f"(union (N x0) ({' '.join([s.egg, *values])}))"
    return f"(constructor {s.egg} ({' '.join(sorts)}) T)", _ingest(action, 1 + len(sorts)), s.egg, 1 + len(sorts)


def _relations(rules: Iterable[Rule], literals: Interner) -> tuple[Relation, ...]:
    """Return the relations that the rules require: types first, then by subject and name."""
    used = {relation for rule in rules for relation, _ in premises(rule, literals).facts} - {EQUAL}
    return tuple(sorted(used, key=lambda r: (r is not TYPE, SUBJECTS.index(r.subject), r.name)))


def _relation(relation: Relation) -> Stated:
    name, columns, of_node = relation.name, relation.columns, relation.subject == "node"
    sorts = ["T" if of_node else "i64", *["i64"] * (columns - 1)]
    values = ["(N x0)" if of_node else "x0", *(f"x{i}" for i in range(1, columns))]
    return f"(relation {name} ({' '.join(sorts)}))", _ingest(f"({' '.join([name, *values])})", columns), name, columns


def _facts_together(names: tuple[str, ...]) -> Stated:
    typed, *others = names
    actions = f"(let n (N x0)) ({typed} n x1) {' '.join(f'({name} n)' for name in others)}"
    return "", f"(rule (({{row}} x0 x1)) ({actions}) :ruleset ingest)", "+".join(names), 2


def _ingest(action: str, columns: int) -> str:
    return f"(rule (({{row}} {' '.join(f'x{i}' for i in range(columns))})) ({action}) :ruleset ingest)"


class Premises(NamedTuple):
    """The facts of a rule's conditions over its variables, and the pairs of values to compare afterwards."""

    facts: tuple[tuple[Relation, tuple[Column, ...]], ...]
    compared: tuple[tuple[str, Column], ...]


def variables_of(rule: Rule) -> Callable[[str], str]:
    """Return the function from names of a rule to variables: v_x of an operand, t5 of an op, a_s of an attribute."""
    of_node = node_variables(rule)
    return lambda name: of_node[rule.names[name]] if name in rule.names else f"a_{name}"


def node_variables(rule: Rule) -> dict[int, str]:
    """Return the variables of operands and of the ops on the left, by pattern node."""
    variables = {n.id: f"v_{n.attr('name')}" for n in rule.pattern if n.op == "var"}
    return variables | {n.id: f"t{n.id}" for n in rule.left_nodes}


def premises(rule: Rule, literals: Interner) -> Premises:
    """Return the facts that both engines require besides the left side; facts about a type are about the `TYPE`.

    A value that is known already is compared once all are found, and not by a join: egglog 13.2 loses such joins in
    rules of eight premises and more, and then finds what is not there.
    """
    variable = variables_of(rule)

    def column(term: Term) -> Column:
        match term:
            case Local(name):
                return name
            case AttrValue(value):
                return literals(value)
            case str():
                return variable(term)
            case _:
                return term

    known: set[Column] = {f"a_{v.name}" for node in rule.left_nodes for _, v in node.attrs if isinstance(v, AttrVar)}
    facts: dict[tuple[Relation, tuple[Column, ...]], None] = {}
    compared: list[tuple[str, Column]] = []
    stated = [fact for condition in rule.where for fact in _about_shapes(rule, condition)]
    for relation, (subject, *rest) in dict.fromkeys((f.relation, tuple(map(column, f.terms))) for f in stated):
        if relation.subject == "type":
            facts[TYPE, (subject, f"ty_{subject}")] = None
            subject = f"ty_{subject}"
        if relation.subject != "attribute":
            for i, value in enumerate(rest):
                if value in known:
                    rest[i] = f"c{len(compared)}_{value}"
                    compared.append((str(rest[i]), value))
        known.update(rest)
        facts[relation, (subject, *rest)] = None
    return Premises(tuple(facts), tuple(compared))


def _about_shapes(rule: Rule, condition: Condition) -> tuple[Fact, ...]:
    """Return the facts of a condition. `SHAPE` of an attribute says that it is that shape, and goes into the others."""
    facts = condition.facts
    for fact in facts:
        if fact.relation is SHAPE and fact.terms[0] not in rule.names:
            facts = tuple(other.with_term(fact.terms[1], fact.terms[0]) for other in facts if other is not fact)
    return facts


def _premise_text(name: str, columns: Iterable[Column]) -> str:
    return f"({' '.join(map(str, (name, *columns)))})"


def _rule(j: int, rule: Rule, table: Mapping[OpArity, OpSignature], literals: Interner) -> str:
    names = node_variables(rule)

    def term(node: Node) -> str:
        attrs = [f"a_{v.name}" if isinstance(v, AttrVar) else str(literals(v)) for _, v in node.attrs]
        return f"({' '.join([table[node.op, len(node.inputs)].egg, *(names[i] for i in node.inputs), *attrs])})"

    queries = [f"(= {names[n.id]} {term(n)})" for n in rule.left_nodes]
    facts, compared = premises(rule, literals)
    queries += [_premise_text(relation.name, columns) for relation, columns in facts]
    queries += [f"(= 0 (- {a} {b}))" for a, b in compared]
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
        f'(rule ({" ".join(queries)}) ({" ".join(actions)}) :ruleset opt :name "r_{j}")'
    )


# a graph --------------------------------------------------------------------------------------------------------------
@dataclass
class GraphRows:
    """A graph as rows: per op (id, operand ids, attribute numbers), leaves, and facts about ids."""

    ops: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    leaves: list[int] = field(default_factory=list)
    facts: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    count: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # the last result of `tables`

    def tables(self, program: RuleProgram) -> dict[str, str]:
        """Write the rows as lines by relation, in egglog's format: a tab between columns, a line break after each."""
        texts: dict[str, list[str]] = {}
        for name, rows in self._named(program):
            number, columns = program.inputs[name]
            line = "\t".join([str(number), *["%d"] * columns]) + "\n"
            texts.setdefault(f"row_{columns}", []).extend([line % row for row in rows])
        self.texts = {name: "".join(lines) for name, lines in texts.items()}
        return self.texts

    def _named(self, program: RuleProgram) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
        yield "Leaf", [(i, i) for i in self.leaves]
        for op, rows in self.ops.items():
            for s, part in by_arity(program, op, rows):
                yield s.egg, part
        yield from _joined(program, self.facts).items()


def _joined(program: RuleProgram, facts: Mapping[str, list[tuple[int, ...]]]) -> dict[str, list[tuple[int, ...]]]:
    """Return the facts, with those of one node joined in one row where `TOGETHER` says so."""
    rest = dict(facts)
    for names in TOGETHER:
        if "+".join(names) in program.inputs:
            ids = set(chain.from_iterable(rest[names[1]])).intersection(*(map(itemgetter(0), rest[n]) for n in names))
            whole = [row for row in rest[names[0]] if row[0] in ids]
            rest |= {name: [row for row in rest[name] if row[0] not in ids] for name in names}
            rest["+".join(names)] = whole
    return rest


def by_arity(
    program: RuleProgram, op: str, rows: list[tuple[int, ...]]
) -> Iterator[tuple[OpSignature, list[tuple[int, ...]]]]:
    """Yield the rows of an op with their signature: one for each number of operands."""
    s = program.signatures[op]
    if not s.variadic:
        yield s, rows
        return
    beside = 1 + len(s.attrs)
    for n in sorted({len(row) for row in rows}):
        yield program.constructors[op, n - beside], [row for row in rows if len(row) == n]


def program_text(program: RuleProgram, given: GraphRows | Mapping[str, str], iterations: int | None) -> str:
    """Write schema, rules, graph (rows, or the result of `GraphRows.tables`) and schedule as one text that egglog runs
    alone. `iterations` None: as many as it takes until nothing is new, since engines do not need equally many."""
    tables = given.tables(program) if isinstance(given, GraphRows) else given
    facts = [f"({name} {line.replace(chr(9), ' ')})" for name, text in tables.items() for line in text.splitlines()]
    search = "(run-schedule (saturate opt))" if iterations is None else f"(run opt {iterations})"
    return "\n".join([program.text, *facts, "(run ingest 1)", search]) + "\n"
