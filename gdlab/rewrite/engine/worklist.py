"""Saturate a graph under the same rules without egglog: an e-graph in Python, matched again where it changed.

Slower than egglog (tens of times on large graphs), and equal in its results: it takes the same program, reads the
same rows, asks the same facts, and returns the same record. Its matcher is its own: an operand is a class of many
e-nodes, and conditions are joins with rows (`rules/matching.py` matches over graphs).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gdlab.graph import AttrVar
from gdlab.op import REGISTRY
from gdlab.rewrite.engine.egglog_program import Column, GraphRows, RuleProgram, by_arity, node_variables, premises
from gdlab.rewrite.engine.saturate import Budget, BudgetCheck, EGraphSnapshot, ENode, Firing, Saturation
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule
from gdlab.rewrite.rules.relations import EQUAL, TYPE, Relation

__all__ = ["saturate"]

OVERRUN = 4  # an iteration ends early at so many times the e-nodes allowed: nothing else bounds it

Key = tuple[str, tuple[int, ...], tuple[int, ...]]  # op, operand classes, attribute numbers
Row = tuple[int, ...]
Env = dict[str, int]  # class or attribute number by variable of the rule


def saturate(program: RuleProgram, rows: GraphRows, budget: Budget, *, history: bool = False) -> Saturation:
    """Load `rows`, apply the rules in rounds until nothing changes or the budget is spent."""
    graph = _EGraph(program, rows)
    plans = [_Plan(rule, program) for rule in program.rules]
    fired: list[dict[Firing, None]] = [{} for _ in plans]
    found = Saturation(matched=[0 for _ in plans], rule_seconds=[0.0 for _ in plans])
    check, sizes = BudgetCheck(rows.count, budget), list[list[int]]()
    limit = OVERRUN * max(budget.cap(rows.count), rows.count)
    if history:
        found.history.append(graph.snapshot(fired))
    depth = max((plan.depth for plan in plans), default=0)
    for _ in range(budget.iterations):
        start, before, cut = time.perf_counter(), graph.changes, False
        matches = _match_all(graph, plans, graph.roots(depth), found)
        for j, env in matches:
            if cut := len(graph.home) > limit:
                break
            _apply(graph, plans[j], env, fired[j])
        graph.rebuild()
        fired = [graph.as_now(f) for f in fired]
        sizes.append([len(f) for f in fired])
        found.iterations.append((graph.size, graph.count, len(matches), time.perf_counter() - start))
        if history:
            found.history.append(graph.snapshot(fired))
        if check.closed(graph.size, cut or graph.changes != before):
            break
    found.stop, found.detail = check.stop, check.detail
    found.first_seen = [_one_iteration([row[j] for row in sizes]) for j in range(len(plans))]
    found.last = graph.snapshot(fired)
    return found


def _match_all(
    graph: _EGraph, plans: Sequence[_Plan], roots: dict[tuple[str, int], list[Key]], found: Saturation
) -> list[tuple[int, Env]]:
    matches: list[tuple[int, Env]] = []
    for j, plan in enumerate(plans):
        start, before = time.perf_counter(), len(matches)
        for key in roots.get(plan.steps[0].op, ()):
            matches += [(j, env) for env in plan.matches(graph, key)]
        found.matched[j] += len(matches) - before
        found.rule_seconds[j] += time.perf_counter() - start
    return matches


def _apply(graph: _EGraph, plan: _Plan, env: Env, fired: dict[Firing, None]) -> None:
    """Add the right side's e-nodes, merge the result with the root, and record the firing."""
    made = dict(env)
    for step in plan.right:
        if step.name not in made:
            attrs = tuple([made[a] if isinstance(a, str) else a for a in step.attrs])
            made[step.name] = graph.make(step.op[0], tuple([graph.find(made[x]) for x in step.operands]), attrs)
    root = env[plan.root]
    graph.union(root, made[plan.result])
    variables = tuple([env[v] for v in plan.variables])
    fired[variables, tuple([env[a] for a in plan.attr_variables]), root] = None


def _one_iteration(sizes: Sequence[int]) -> int | None:
    grown = [k for k, (a, b) in enumerate(zip([0, *sizes], sizes, strict=False), 1) if a != b]
    return grown[0] if len(grown) == 1 else None


# the e-graph ----------------------------------------------------------------------------------------------------------
class _EGraph:
    """E-nodes by key, classes with a union-find, and facts about classes. Commutative operands are kept sorted."""

    def __init__(self, program: RuleProgram, rows: GraphRows) -> None:
        self.program = program
        self.parent: list[int] = []
        self.home: dict[Key, int] = {}
        self.enodes: list[dict[tuple[str, int], dict[Key, None]]] = []  # per class its e-nodes by op
        self.readers: list[dict[Key, None]] = []  # per class the e-nodes that read it
        self.facts: dict[str, dict[int, dict[Row, None]]] = {
            r.name: {} for r in (TYPE, *program.relations) if r.subject == "node"
        }
        self.tables: dict[str, list[Row]] = {r.name: [] for r in program.relations if r.subject != "node"}
        self.places: dict[tuple[str, tuple[int, ...]], dict[Row, list[Row]]] = {}  # rows of tables by known columns
        self.changed: dict[int, None] = {}  # classes that came or grew since `roots` was asked
        self.merged: list[int] = []
        typed = {op for op in program.signatures if REGISTRY[op].typed_as_first}
        self.spread = typed if any(r.spreads for r in program.relations) else set[str]()
        self.of_first: dict[Key, None] = {}  # e-nodes whose type is that of their first operand
        self.changes = self.count = self.twice = 0
        self.class_of: dict[int, int] = {}
        self._load(rows)

    def _load(self, rows: GraphRows) -> None:
        given: list[tuple[str, int, list[Row]]] = [("Leaf", 0, [(i, i) for i in rows.leaves])]
        given += [(s.op, s.inputs, part) for op, rs in rows.ops.items() for s, part in by_arity(self.program, op, rs)]
        ids = sorted({row[0] for _, _, part in given for row in part})
        self.class_of = {id: self._new() for id in ids}
        for op, n, part in given:
            for row in part:
                made = self.make(op, tuple([self.find(self.class_of[i]) for i in row[1 : 1 + n]]), row[1 + n :])
                self.union(self.class_of[row[0]], made)
        self.rebuild()
        for name, part in rows.facts.items():
            if name in self.tables:
                self.tables[name] += part
            for row in part if name in self.facts else ():
                self.facts[name].setdefault(self.find(self.class_of[row[0]]), {})[row[1:]] = None

    def _new(self) -> int:
        c = len(self.parent)
        self.parent.append(c)
        self.enodes.append({})
        self.readers.append({})
        self.changed[c] = None
        self.count += 1
        return c

    @property
    def size(self) -> int:
        """The number of e-nodes as egglog counts them: both orders of commutative operands."""
        return len(self.home) + self.twice

    def find(self, c: int) -> int:
        """Return the present class of class number c."""
        parent = self.parent
        while parent[c] != c:
            parent[c] = parent[parent[c]]
            c = parent[c]
        return c

    def make(self, op: str, operands: tuple[int, ...], attrs: tuple[int, ...]) -> int:
        """Return the class of this e-node; a new one if there is none."""
        key = op, _ordered(op, operands), attrs
        c = self.home.get(key)
        if c is not None:
            return self.find(c)
        c = self._new()
        self.changes += 1
        self._put(key, c)
        return c

    def _put(self, key: Key, c: int) -> None:
        self.home[key] = c
        if key[0] in self.spread:
            self.of_first[key] = None
        self.twice += _two_orders(key)
        self.enodes[c].setdefault((key[0], len(key[1])), {})[key] = None
        for k in key[1]:
            self.readers[k][key] = None

    def union(self, a: int, b: int) -> None:
        """Merge two classes; `rebuild` has to follow."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        keep, lost = (a, b) if len(self.readers[a]) >= len(self.readers[b]) else (b, a)
        self.parent[lost] = keep
        self.count -= 1
        self.changes += 1
        for op, keys in self.enodes[lost].items():
            self.enodes[keep].setdefault(op, {}).update(keys)
        self.enodes[lost] = {}
        for of_class in self.facts.values():
            if lost in of_class:
                of_class.setdefault(keep, {}).update(of_class.pop(lost))
        self.changed[keep] = None
        self.merged.append(lost)

    def rebuild(self) -> None:
        """Rewrite every e-node that reads a merged-away class; where two become the same, merge their classes."""
        while self.merged:
            lost = self.merged.pop()
            for key in list(self.readers[lost]):
                home = self.home.pop(key, None)
                if home is None:
                    continue
                self.twice -= _two_orders(key)
                op, operands, attrs = key
                c = self.find(home)
                self.enodes[c][op, len(operands)].pop(key, None)
                for k in operands:
                    self.readers[k].pop(key, None)
                new = op, _ordered(op, tuple([self.find(k) for k in operands])), attrs
                twin = self.home.get(new)
                if twin is None:
                    self._put(new, c)
                else:
                    self.union(twin, c)
                self.changed[self.find(c)] = None
            self.readers[lost] = {}
        self._spread_types()

    def _spread_types(self) -> None:
        """Spread types between a result and its first operand, for ops where both have one type."""
        types = self.facts[TYPE.name]
        for key in [key for key in self.of_first if key in self.home]:
            pair = self.find(self.home[key]), self.find(key[1][0])
            known = types.get(pair[0], {}) | types.get(pair[1], {})
            for c in pair:
                if len(types.get(c, {})) < len(known):
                    types[c] = dict(known)
                    self.changed[c] = None
                    self.changes += 1

    def roots(self, depth: int) -> dict[tuple[str, int], list[Key]]:
        """Return e-nodes by op in or up to `depth` levels above a changed class: rules may match there anew."""
        front = list(dict.fromkeys(self.find(c) for c in self.changed))
        self.changed = {}
        found: dict[Key, None] = {}
        for c in front:
            for keys in self.enodes[c].values():
                found.update(keys)
        seen = set(front)
        for _ in range(depth):
            readers = dict.fromkeys(key for c in front for key in self.readers[c])
            found.update(readers)
            front = [c for c in dict.fromkeys(self.find(self.home[key]) for key in readers) if c not in seen]
            seen.update(front)
        by_op: dict[tuple[str, int], list[Key]] = {}
        for key in found:
            by_op.setdefault((key[0], len(key[1])), []).append(key)
        return by_op

    def rows_with(self, name: str, given: Sequence[int | None]) -> Sequence[Row]:
        """Return the rows of a table with these values in the columns where one is given."""
        at = tuple([i for i, value in enumerate(given) if value is not None])
        found = self.places.get((name, at))
        if found is None:
            found = self.places[name, at] = {}
            for row in self.tables[name]:
                found.setdefault(tuple([row[i] for i in at]), []).append(row)
        return found.get(tuple([value for value in given if value is not None]), ())

    def snapshot(self, fired: Iterable[Iterable[Firing]]) -> EGraphSnapshot:
        """Return the e-graph in the form that later passes read."""
        find = self.find
        enodes: list[ENode] = [(op, args, attrs, find(c)) for (op, args, attrs), c in self.home.items() if op != "Leaf"]
        rows = [list(self.as_now(of_rule)) for of_rule in fired]
        return EGraphSnapshot({id: find(c) for id, c in self.class_of.items()}, enodes, rows)

    def as_now(self, fired: Iterable[Firing]) -> dict[Firing, None]:
        """Return the firings with present class numbers; firings that became the same count once."""
        find = self.find
        return dict.fromkeys((tuple(map(find, env)), attrs, find(root)) for env, attrs, root in fired)


def _two_orders(key: Key) -> bool:
    return key[0] in COMMUTATIVE and key[1][0] != key[1][1]


def _ordered(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(operands)) if op in COMMUTATIVE else operands


# matching -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Step:
    """One op of a pattern: its name, the names of its operands, and attributes (a variable's name, or a number)."""

    name: str
    op: tuple[str, int]
    operands: tuple[str, ...]
    attrs: tuple[str | int, ...]


class _Plan:
    """A rule prepared for matching: left ops from the root down, facts to check, right ops from the leaves up."""

    def __init__(self, rule: Rule, program: RuleProgram) -> None:
        literals = program.literals
        names = node_variables(rule)
        names |= {n.id: f"t{n.id}" for n in rule.right_nodes if n.id not in names}

        def steps(side: Iterable[int]) -> Iterator[_Step]:
            for id in side:
                node = rule.pattern.node(id)
                attrs = tuple(f"a_{v.name}" if isinstance(v, AttrVar) else literals(v) for _, v in node.attrs)
                op = node.op, len(node.inputs)
                yield _Step(names[id], op, tuple([names[i] for i in node.inputs]), attrs)

        self.steps = tuple(steps(n.id for n in reversed(rule.left_nodes)))
        self.right = tuple(steps(n.id for n in rule.right_nodes))
        self.root, self.result = names[rule.left], names[rule.right]
        self.variables = [f"v_{v}" for v in rule.variables]
        self.attr_variables = [f"a_{v}" for v in rule.attr_variables]
        facts, compared = premises(rule, literals)
        self.facts = [*facts, *((EQUAL, pair) for pair in compared)]
        self.depth = len(self.steps)

    def matches(self, graph: _EGraph, root: Key) -> Iterator[Env]:
        """Yield every assignment of variables under which the left side matches at this e-node and the facts hold."""
        stack: list[tuple[int, Env]] = []
        start = {self.root: graph.find(graph.home[root])}
        stack += [(1, env) for env in _unify(self.steps[0], root, start)]
        while stack:
            at, env = stack.pop()
            if at < len(self.steps):
                step = self.steps[at]
                for key in graph.enodes[env[step.name]].get(step.op, ()):
                    stack += [(at + 1, found) for found in _unify(step, key, env)]
            else:
                yield from _join(graph, self.facts, env)


def _unify(step: _Step, key: Key, env: Env) -> Iterator[Env]:
    """Yield the environments in which this e-node is this op of the pattern, by any order of commutative operands."""
    _, operands, attrs = key
    orders = [operands]
    if step.op[0] in COMMUTATIVE and operands[0] != operands[1]:
        orders.append(operands[::-1])
    for order in orders:
        found: Env | None = dict(env)
        for name, value in (*zip(step.operands, order, strict=True), *zip(step.attrs, attrs, strict=True)):
            assert found is not None
            if name != value if isinstance(name, int) else found.setdefault(name, value) != value:
                found = None
                break
        if found is not None:
            yield found


Premise = tuple[Relation, tuple[Column, ...]]


def _join(graph: _EGraph, facts: Sequence[Premise], env: Env) -> Iterator[Env]:
    """Return the environments in which the facts hold, with the values that they determine."""
    found = [env]
    for relation, columns in facts:
        found = [one for env in found for one in _rows_that_fit(graph, relation, columns, env)]
    yield from found


def _rows_that_fit(graph: _EGraph, relation: Relation, columns: tuple[Column, ...], env: Env) -> Iterator[Env]:
    given = [env.get(a) if isinstance(a, str) else a for a in columns]
    rows: Iterable[Row]
    if relation is EQUAL:
        known = next(value for value in given if value is not None)
        rows = [(known, known)]
    elif relation.subject != "node":
        rows = graph.rows_with(relation.name, given)
    else:
        c = given[0]
        assert c is not None  # facts speak of what the left side matched
        rows = [(c, *row) for row in graph.facts[relation.name].get(c, ())]
    for row in rows:
        fits, pairs = dict(env), zip(columns, row, strict=True)
        if all(fits.setdefault(a, v) == v if isinstance(a, str) else a == v for a, v in pairs):
            yield fits
