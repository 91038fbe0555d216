"""A prepared graph as rows for the engine, and what comes back as classes with names, types and prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gdlab.base.errors import GdlabError, OptimizeError
from gdlab.base.types import TensorType
from gdlab.graph import Attrs, AttrVar, ConstantData, Graph, Node, Value
from gdlab.op import REGISTRY, Op
from gdlab.op.cost import CostModel, contraction_flops
from gdlab.rewrite.engine.facts import facts_of
from gdlab.rewrite.engine.prepare import Folded, Prepared, TypeNumbers
from gdlab.rewrite.engine.program import Interner, Program, Rows, Signature
from gdlab.rewrite.engine.saturate import Saturation
from gdlab.rewrite.extract.choose import Problem
from gdlab.rewrite.extract.cycles import components
from gdlab.rewrite.rules.pattern import COMMUTATIVE, Rule

__all__ = ["UNITS", "EClasses", "Firing", "Key", "Prices", "encode", "fold_key", "name_classes"]

UNITS = 20_000_000  # cost units per µs: one flop and a 20th of a byte of the roofline are whole numbers
TIE = 20  # bits below a unit that count nodes, so that of two equal costs the smaller graph wins
LEAF = "Leaf"

Key = tuple[str, tuple[int, ...], tuple[int, ...]]  # op, operand classes, attribute numbers


# in -------------------------------------------------------------------------------------------------------------------
@dataclass
class Encoded:
    """Rows, and how to read attribute numbers back."""

    rows: Rows
    numbers: Interner
    attrs: dict[int, tuple[int, ...]]  # node -> attribute numbers


def encode(prepared: Prepared, program: Program, folded: Mapping[int, Folded]) -> Encoded:
    """One row per kept node, one more per folded one, and the facts that the rules ask for."""
    numbers, attrs = program.literals.copy(), {}
    rows = Rows(count=len(prepared.kept))
    for id in prepared.kept:
        node = prepared.graph._nodes[id]
        if node.op not in program.signatures:
            if node.inputs:
                raise OptimizeError("optimize", f"%{id}", f"op {node.op}", "an op of the registry")
            rows.leaves.append(id)
            continue
        attrs[id] = tuple([numbers(v) for _, v in node.attrs])
        rows.ops.setdefault(node.op, []).append((id, *prepared.inputs[id], *attrs[id]))
    for id, value in folded.items():
        op, _, given = fold_key(prepared, id, value, numbers)
        rows.ops.setdefault(op, []).append((id, *given))
    rows.facts = facts_of(prepared, program, numbers, folded)
    return Encoded(rows, numbers, attrs)


def fold_key(prepared: Prepared, id: int, value: Folded, numbers: Interner) -> Key:
    """The e-node that a folded node is equal to: a fill, or a constant."""
    if isinstance(value, ConstantData):
        return "constant", (), (numbers(value),)
    return "full", (), (numbers(prepared.graph._nodes[id].type.shape), numbers(value))


# out ------------------------------------------------------------------------------------------------------------------
class Firing(NamedTuple):
    """One firing of a rule: classes of its variables, and the e-nodes of both sides, inputs first, the root last.

    `right` is empty where the right side is a variable: then the root is equal to what is there already.
    """

    rule: int
    root: int
    env: tuple[int, ...]
    attrs: tuple[int, ...]
    left: tuple[Key, ...]
    right: tuple[Key, ...]


@dataclass
class EClasses:
    """The e-graph with classes numbered: first those that hold nodes of the graph, by lowest id, then the others.

    `nodes[c]` are the graph's nodes in class c, `enodes[c]` its e-nodes (the graph's own first), `types[c]` the number
    of its type in `held`.
    """

    class_of: dict[int, int]
    nodes: list[list[int]]
    enodes: list[list[Key]]
    types: list[int]
    key_of: dict[int, Key]
    home: dict[Key, int]  # e-node -> class
    held: list[TensorType]
    firings: list[Firing] = field(default_factory=list)
    shape_conflicts: int = 0


def ordered(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Operands as e-nodes are compared: commutative ops in one order."""
    return tuple(sorted(operands)) if op in COMMUTATIVE else operands


class Prices:
    """Types, costs and heavy flops of e-nodes, each worked out once per op, attributes and operand types.

    Types are numbers here: hashing a number is cheap. The first are those of the prepared graph.
    """

    def __init__(
        self, model: CostModel, numbers: Interner, signatures: Mapping[str, Signature], types: Sequence[TensorType]
    ) -> None:
        self.model, self.numbers, self.signatures = model, numbers, signatures
        self._numbers = TypeNumbers()
        self.types = self._numbers.held
        for type in types:
            self.number(type)
        self._values: dict[int, Value] = {}
        self._results: dict[Key, int] = {}
        self._prices: dict[Any, tuple[int, int]] = {}
        self.of_node: dict[int, tuple[int, int]] = {}  # what `node` was asked for
        self._scratch = Graph()

    def number(self, type: TensorType) -> int:
        """The number of a type."""
        return self._numbers[type]

    def _value(self, type: int) -> Value:
        """An operand of a type."""
        if type not in self._values:
            self._values[type] = self._scratch.append("var", (), (), self.types[type])
        return self._values[type]

    def attrs(self, op: str, numbers: Iterable[int]) -> Attrs:
        """Attributes as a node holds them."""
        return tuple(zip(self.signatures[op].attrs, [self.numbers.values[i] for i in numbers], strict=True))

    def result(self, case: Key) -> int:
        """The type of (op, operand types, attributes) by the op's shape rule; −1 where it refuses."""
        found = self._results.get(case)
        if found is None:
            op, operands, numbers = case
            found = self._results[case] = self._infer(REGISTRY[op], operands, dict(self.attrs(op, numbers)))
        return found

    def _infer(self, op: Op, operands: tuple[int, ...], attrs: dict[str, Any]) -> int:
        if op.name == "constant":
            return self.number(TensorType(attrs["data"].shape, attrs["data"].dtype))
        values = [self._value(t) for t in operands]
        if op.broadcasts and len({v.shape for v in values}) > 1:  # the builder would insert a broadcast
            return -1
        try:
            if op.canonical is not None and op._asking(partial(op._stored, self._scratch), values, attrs) != attrs:
                return -1
            return self.number(op.infer(values, attrs))
        except GdlabError:
            return -1

    def price(self, op: str, numbers: tuple[int, ...], type: int, operands: tuple[int, ...]) -> tuple[int, int]:
        """(cost in units, flops of products) of an e-node."""
        key = op, numbers, type, operands
        found = self._prices.get(key)
        if found is None:
            case = op, self.attrs(op, numbers), self.types[type], tuple([self.types[t] for t in operands])
            found = self._prices[key] = round(self.model.price(*case) * UNITS), contraction_flops(*case)
        return found

    def node(self, prepared: Prepared, attrs: Mapping[int, tuple[int, ...]], id: int) -> int:
        """The cost of a live node of the graph in units. `attrs` are the attribute numbers of kept nodes but leaves."""
        node, kept, type_of = prepared.graph._nodes[id], prepared.same[id], prepared.type_of
        if kept in attrs:
            found = self.price(node.op, attrs[kept], type_of[id], tuple([type_of[i] for i in node.inputs]))
        else:
            found = round(self.model.price(node.op, node.attrs, node.type, ()) * UNITS), 0
        self.of_node[id] = found
        return found[0]


def name_classes(
    prepared: Prepared, encoded: Encoded, found: Saturation, rules: Sequence[Rule], prices: Prices
) -> EClasses:
    """Number the classes of `found` the same way in every process, drop what cannot be typed, and read the firings."""
    number: dict[int, int] = {}
    nodes: list[list[int]] = []
    class_of: dict[int, int] = {}
    for id in prepared.kept:
        c = class_of[id] = number.setdefault(found.class_of[id], len(nodes))
        if c == len(nodes):
            nodes.append([id])
        else:
            nodes[c].append(id)
    types = [prepared.type_of[ids[0] if len(ids) == 1 else _alike(prepared, ids)] for ids in nodes]
    key_of = _keys(prepared, encoded, class_of)
    home = {key: class_of[id] for id, key in key_of.items()}
    enodes = [[key_of[ids[0]]] if len(ids) == 1 else list(dict.fromkeys([key_of[i] for i in ids])) for ids in nodes]
    for key in _number_the_rest(found, number, types, prices):
        home[key] = len(enodes)
        enodes.append([key])
    nodes += [[] for _ in range(len(types) - len(nodes))]
    conflicts = 0
    for key, c in sorted(_others(found, number, home).items()):
        if prices.result((key[0], tuple([types[k] for k in key[1]]), key[2])) == types[c]:
            enodes[c].append(key)
            home[key] = c
        else:
            conflicts += 1
    classes = EClasses(class_of, nodes, enodes, types, key_of, home, prices.types, [], conflicts)
    classes.firings = _firings(classes, found, number, rules, prices.numbers)
    return classes


def _keys(prepared: Prepared, encoded: Encoded, class_of: Mapping[int, int]) -> dict[int, Key]:
    """The e-node of every kept node."""
    nodes, attrs, found = prepared.graph._nodes, encoded.attrs, dict[int, Key]()
    for id, inputs in prepared.inputs.items():
        if id in attrs:
            op, operands = nodes[id].op, [class_of[i] for i in inputs]
            if op in COMMUTATIVE:
                operands.sort()
            found[id] = op, tuple(operands), attrs[id]
        else:
            found[id] = LEAF, (), (id,)
    return found


def _others(found: Saturation, number: Mapping[int, int], home: Mapping[Key, int]) -> dict[Key, int]:
    """The e-nodes that are in no class yet, with the classes they belong to."""
    made: dict[Key, int] = {}
    for op, operands, attrs, raw in found.enodes:
        try:
            named = [number[k] for k in operands]
            if op in COMMUTATIVE:
                named.sort()
            key = op, tuple(named), attrs
            if key not in home:
                made[key] = number[raw]
        except KeyError:  # of a class that has no type
            continue
    return made


def _alike(prepared: Prepared, ids: list[int]) -> int:
    """A node of the class; rules that merged nodes of different types, or different leaves, are wrong."""
    nodes, type_of = prepared.graph._nodes, prepared.type_of
    first, type = nodes[ids[0]], type_of[ids[0]]
    leaf = next((id for id in ids if _is_leaf(nodes[id])), None)
    for id in ids:
        node = nodes[id]
        if type_of[id] != type or (leaf not in (None, id) and _is_leaf(node)):
            other = first if type_of[id] != type or leaf is None else nodes[leaf]
            given = " and ".join(f"%{n.id} {n.op} {n.name!r} {n.type}" for n in (other, node))
            raise OptimizeError("optimize", "rules", f"{given} made equal", "rules whose two sides are equal")
    return ids[0]


def _is_leaf(node: Node) -> bool:
    return not node.inputs and node.op != "full"


def _number_the_rest(
    found: Saturation, number: dict[int, int], types: list[int], prices: Prices
) -> list[Key]:
    """Number classes without nodes, level by level: first those whose operands have numbers. Fills `number`, `types`.

    The answer is one e-node for each, all together acyclic.
    """
    waiting = [e for e in found.enodes if e[3] not in number]
    made: list[Key] = []
    while waiting:
        ready: dict[int, list[tuple[Key, int]]] = {}
        for op, operands, attrs, raw in waiting:
            if raw not in number and all(k in number for k in operands):
                args = ordered(op, tuple([number[k] for k in operands]))
                type = prices.result((op, tuple([types[k] for k in args]), attrs))
                if type >= 0:
                    ready.setdefault(raw, []).append(((op, args, attrs), type))
        if not ready:
            break
        for raw, keys in sorted(ready.items(), key=lambda item: min(k for k, _ in item[1])):
            key, type = min(keys, key=lambda pair: pair[0])
            number[raw] = len(types)
            types.append(type)
            made.append(key)
        waiting = [e for e in waiting if e[3] not in number]
    return made


# op, places of the operands, attributes (is a variable, its place or number), whether it is commutative
Slots = tuple[tuple[str, tuple[int, ...], tuple[tuple[bool, int], ...], bool], ...]


def _slots(rule: Rule, numbers: Interner) -> tuple[Slots, int]:
    """The ops of both sides, and how many are on the left; a place counts variables, then the nodes made so far."""
    place = {rule.names[name]: i for i, name in enumerate(rule.variables)}
    slots = []
    for node in (*rule.left_nodes, *rule.right_nodes):
        given = tuple(
            (True, rule.attr_variables.index(v.name)) if isinstance(v, AttrVar) else (False, numbers(v))
            for _, v in node.attrs
        )
        slots.append((node.op, tuple([place[i] for i in node.inputs]), given, node.op in COMMUTATIVE))
        place[node.id] = len(rule.variables) + len(slots) - 1
    return tuple(slots), len(rule.left_nodes)


def _firings(
    classes: EClasses, found: Saturation, number: Mapping[int, int], rules: Sequence[Rule], numbers: Interner
) -> list[Firing]:
    firings = []
    for j, (rule, rows) in enumerate(zip(rules, found.fired, strict=True)):
        if not rows:
            continue
        slots, n = _slots(rule, numbers)
        named = [(number[r], tuple([number[k] for k in env]), attrs) for env, attrs, r in rows
                 if r in number and all(k in number for k in env)]  # fmt: skip
        named.sort()
        for root, operands, attrs in named:
            keys = _instantiate(slots, operands, attrs, classes.home)
            if keys is not None:
                firings.append(Firing(j, root, operands, attrs, tuple(keys[:n]), tuple(keys[n:])))
    return firings


def _instantiate(
    slots: Slots, env: tuple[int, ...], attrs: tuple[int, ...], home: Mapping[Key, int]
) -> list[Key] | None:
    """The e-nodes of both sides; None where one was dropped."""
    classes, keys = list(env), []
    for op, places, given, commutative in slots:
        operands = [classes[i] for i in places]
        if commutative:
            operands.sort()
        key = op, tuple(operands), tuple([attrs[v] if is_variable else v for is_variable, v in given]) if given else ()
        c = home.get(key)
        if c is None:
            return None
        classes.append(c)
        keys.append(key)
    return keys


# the problem of extraction --------------------------------------------------------------------------------------------
def problem_of(classes: EClasses, outputs: Iterable[int], prices: Prices) -> tuple[Problem, list[Key], list[int]]:
    """The priced problem, the key of each of its e-nodes, and the cycle that each class is in (−1: none).

    In every class the start comes first, then the graph's own e-nodes, then the others by cost. E-nodes that read their
    own class are no choice, but they make a cycle.
    """
    of_class: list[Sequence[int]] = []
    keys: list[Key] = []
    costs: list[int] = []
    heavy: list[int] = []
    loops = []
    for c, found in enumerate(classes.enodes):
        key = found[0]
        if len(found) == 1 and c not in key[1]:  # nothing to choose from
            of_class.append((len(keys),))
            known = prices.of_node.get(classes.nodes[c][0]) if classes.nodes[c] and key[0] != LEAF else None
            cost, flops = _price(classes, c, key, prices) if known is None else ((known[0] << TIE) + 1, known[1])
            keys.append(key)
            costs.append(cost)
            heavy.append(flops)
            continue
        own = {classes.key_of[id]: id for id in reversed(classes.nodes[c])} or {found[0]: 0}
        priced = [(own.get(key, -1), *_price(classes, c, key, prices), key) for key in found if c not in key[1]]
        if len(priced) > 1:
            priced.sort(key=lambda p: (p[0] < 0, p[0], p[1], p[3]))
        of_class.append(list(range(len(keys), len(keys) + len(priced))))
        for _, cost, flops, key in priced:
            keys.append(key)
            costs.append(cost)
            heavy.append(flops)
        if len(priced) < len(found):
            loops.append(c)
    children = [args if len(args) < 2 else tuple(dict.fromkeys(args)) for _, args, _ in keys]
    roots = tuple(dict.fromkeys(classes.class_of[id] for id in outputs))
    problem = Problem(of_class, children, costs, heavy, roots)
    component = components(problem.below)
    for c in loops:
        if component[c] < 0:
            component[c] = len(component) + c
    return problem, keys, component


def _price(classes: EClasses, c: int, key: Key, prices: Prices) -> tuple[int, int]:
    """(cost with the node counted in the low bits, flops of products)."""
    op, operands, attrs = key
    if op == LEAF:
        return 0, 0
    types = classes.types
    cost, flops = prices.price(op, attrs, types[c], tuple([types[k] for k in operands]))
    return (cost << TIE) + 1, flops
