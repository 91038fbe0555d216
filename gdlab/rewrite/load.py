"""A prepared graph as rows for the engine, and what comes back as classes with names, types and prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdlab.cost import CostModel, contraction_flops
from gdlab.errors import GdlabError, OptimizeError
from gdlab.graph import Attrs, AttrVar, ConstantData, Graph, Node, Value
from gdlab.op import REGISTRY, Op
from gdlab.rewrite.egraph import Saturation
from gdlab.rewrite.extract import Problem, cyclic_classes
from gdlab.rewrite.facts import facts_of
from gdlab.rewrite.pattern import COMMUTATIVE, Rule
from gdlab.rewrite.prepare import Folded, Prepared
from gdlab.rewrite.program import Interner, Program, Rows, Signature
from gdlab.types import TensorType

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
@dataclass(frozen=True, slots=True)
class Firing:
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

    `nodes[c]` are the graph's nodes in class c, `enodes[c]` its e-nodes (the graph's own first), `types[c]` its type.
    """

    class_of: dict[int, int]
    nodes: list[list[int]]
    enodes: list[list[Key]]
    types: list[TensorType]
    key_of: dict[int, Key]
    home: dict[Key, int]  # e-node -> class
    firings: list[Firing] = field(default_factory=list)
    shape_conflicts: int = 0


def ordered(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Operands as e-nodes are compared: commutative ops in one order."""
    return tuple(sorted(operands)) if op in COMMUTATIVE else operands


class Prices:
    """Types, costs and heavy flops of e-nodes, each worked out once per op, attributes and operand types.

    Types are numbers here: hashing a number is cheap.
    """

    def __init__(self, model: CostModel, numbers: Interner, signatures: Mapping[str, Signature]) -> None:
        self.model, self.numbers, self.signatures = model, numbers, signatures
        self.types: list[TensorType] = []
        self._values: list[Value] = []
        self._ids: dict[str, int] = {}
        self._known: dict[int, tuple[int, TensorType]] = {}
        self._results: dict[Any, int] = {}
        self._prices: dict[Any, tuple[int, int]] = {}
        self._scratch = Graph()

    def number(self, type: TensorType) -> int:
        """The number of a type."""
        known = self._known.get(id(type))
        if known is None:
            number = self._ids.setdefault(str(type), len(self.types))
            if number == len(self.types):
                self.types.append(type)
                self._values.append(self._scratch.append("var", (), (), type))
            self._known[id(type)] = known = number, type  # held, so that nothing else gets its identity
        return known[0]

    def attrs(self, op: str, numbers: Iterable[int]) -> Attrs:
        """Attributes as a node holds them."""
        return tuple(zip(self.signatures[op].attrs, [self.numbers.values[i] for i in numbers], strict=True))

    def result(self, op: str, operands: tuple[int, ...], numbers: tuple[int, ...]) -> int:
        """The type by the op's shape rule; −1 where it refuses."""
        key = op, operands, numbers
        if key not in self._results:
            self._results[key] = self._infer(REGISTRY[op], operands, dict(self.attrs(op, numbers)))
        return self._results[key]

    def _infer(self, op: Op, operands: tuple[int, ...], attrs: dict[str, Any]) -> int:
        if op.name == "constant":
            return self.number(TensorType(attrs["data"].shape, attrs["data"].dtype))
        values = [self._values[t] for t in operands]
        if op.broadcasts and len({v.shape for v in values}) > 1:  # the builder would insert a broadcast
            return -1
        try:
            if op.canonical is not None and op._asking(op.canonical, values, attrs) != attrs:
                return -1
            return self.number(op.infer(values, attrs))
        except GdlabError:
            return -1

    def price(self, op: str, numbers: tuple[int, ...], type: int, operands: tuple[int, ...]) -> tuple[int, int]:
        """(cost in units, flops of products) of an e-node."""
        key = op, numbers, type, operands
        if key not in self._prices:
            case = op, self.attrs(op, numbers), self.types[type], tuple([self.types[t] for t in operands])
            self._prices[key] = round(self.model.price(*case) * UNITS), contraction_flops(*case)
        return self._prices[key]


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
            nodes.append([])
        nodes[c].append(id)
    types = [prices.number(_one_type(prepared.graph, ids)) for ids in nodes]
    key_of = {id: _key_of(prepared, encoded, class_of, id) for id in prepared.kept}
    home = {key_of[id]: c for c, ids in enumerate(nodes) for id in ids}
    enodes = [[key_of[ids[0]]] if len(ids) == 1 else list(dict.fromkeys([key_of[i] for i in ids])) for ids in nodes]
    for key in _number_the_rest(found, number, types, prices):
        home[key] = len(enodes)
        enodes.append([key])
    nodes += [[] for _ in range(len(types) - len(nodes))]
    made: dict[Key, int] = {}
    for op, operands, attrs, raw in found.enodes:
        try:
            key, c = (op, ordered(op, tuple([number[k] for k in operands])), attrs), number[raw]
        except KeyError:  # of a class that has no type
            continue
        if key not in home:
            made[key] = c
    conflicts = 0
    for key, c in sorted(made.items()):
        if prices.result(key[0], tuple([types[k] for k in key[1]]), key[2]) == types[c]:
            enodes[c].append(key)
            home[key] = c
        else:
            conflicts += 1
    classes = EClasses(class_of, nodes, enodes, [prices.types[t] for t in types], key_of, home, [], conflicts)
    classes.firings = _firings(classes, found, number, rules, prices.numbers)
    return classes


def _one_type(graph: Graph, ids: list[int]) -> TensorType:
    """The type of a class; rules that merged nodes of different types, or different leaves, are wrong."""
    first = graph._nodes[ids[0]]
    if len(ids) == 1:
        return first.type
    leaf = next((id for id in ids if _is_leaf(graph._nodes[id])), None)
    for id in ids:
        node = graph._nodes[id]
        if node.type != first.type or (leaf not in (None, id) and _is_leaf(node)):
            other = first if node.type != first.type or leaf is None else graph._nodes[leaf]
            given = " and ".join(f"%{n.id} {n.op} {n.name!r} {n.type}" for n in (other, node))
            raise OptimizeError("optimize", "rules", f"{given} made equal", "rules whose two sides are equal")
    return first.type


def _is_leaf(node: Node) -> bool:
    return not node.inputs and node.op != "full"


def _key_of(prepared: Prepared, encoded: Encoded, class_of: Mapping[int, int], id: int) -> Key:
    op = prepared.graph._nodes[id].op
    if id not in encoded.attrs:
        return LEAF, (), (id,)
    return op, ordered(op, tuple([class_of[i] for i in prepared.inputs[id]])), encoded.attrs[id]


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
                type = prices.result(op, tuple([types[k] for k in args]), attrs)
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


Slots = tuple[tuple[str, tuple[int, ...], tuple[tuple[bool, int], ...]], ...]


def _slots(rule: Rule, numbers: Interner) -> tuple[Slots, Slots]:
    """Both sides as (op, places of the operands, attributes); a place counts variables, then the nodes made so far; an
    attribute is (is a variable, its place or number)."""
    place = {rule.names[name]: i for i, name in enumerate(rule.variables)}
    sides: list[Slots] = []
    made = len(place)
    for nodes in (rule.left_nodes, rule.right_nodes):
        slots = []
        for node in nodes:
            given = tuple(
                (True, rule.attr_variables.index(v.name)) if isinstance(v, AttrVar) else (False, numbers(v))
                for _, v in node.attrs
            )
            slots.append((node.op, tuple([place[i] for i in node.inputs]), given))
            place[node.id], made = made, made + 1
        sides.append(tuple(slots))
    return sides[0], sides[1]


def _firings(
    classes: EClasses, found: Saturation, number: Mapping[int, int], rules: Sequence[Rule], numbers: Interner
) -> list[Firing]:
    firings = []
    for j, (rule, rows) in enumerate(zip(rules, found.fired, strict=True)):
        sides = _slots(rule, numbers) if rows else ((), ())
        named = [(number[r], tuple([number[k] for k in env]), attrs) for env, attrs, r in rows
                 if r in number and number.keys() >= set(env)]  # fmt: skip
        for root, operands, attrs in sorted(named):
            keys = _instantiate(sides, operands, attrs, classes.home)
            if keys is not None:
                firings.append(Firing(j, root, operands, attrs, *keys))
    return firings


def _instantiate(
    sides: tuple[Slots, Slots], env: tuple[int, ...], attrs: tuple[int, ...], home: Mapping[Key, int]
) -> tuple[tuple[Key, ...], tuple[Key, ...]] | None:
    """The e-nodes of both sides; None where one was dropped."""
    classes, keys = list(env), []
    for slots in sides:
        for op, operands, given in slots:
            numbers = tuple([attrs[v] if is_variable else v for is_variable, v in given])
            key = op, ordered(op, tuple([classes[i] for i in operands])), numbers
            c = home.get(key)
            if c is None:
                return None
            classes.append(c)
            keys.append(key)
    n = len(sides[0])
    return tuple(keys[:n]), tuple(keys[n:])


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
    types = [prices.number(t) for t in classes.types]
    for c, found in enumerate(classes.enodes):
        if len(found) == 1 and c not in found[0][1]:  # nothing to choose from
            cost, flops = _price(types, c, found[0], prices)
            of_class.append((len(keys),))
            keys.append(found[0])
            costs.append((cost << TIE) + (found[0][0] != LEAF))
            heavy.append(flops)
            continue
        own = {classes.key_of[id]: id for id in reversed(classes.nodes[c])} or {found[0]: 0}
        priced = [(own.get(key, -1), *_price(types, c, key, prices), key) for key in found if c not in key[1]]
        if len(priced) > 1:
            priced.sort(key=lambda p: (p[0] < 0, p[0], p[1], p[3]))
        of_class.append(list(range(len(keys), len(keys) + len(priced))))
        for _, cost, flops, key in priced:
            keys.append(key)
            costs.append((cost << TIE) + (key[0] != LEAF))
            heavy.append(flops)
        if len(priced) < len(found):
            loops.append(c)
    children = [args if len(args) < 2 else tuple(dict.fromkeys(args)) for _, args, _ in keys]
    component = cyclic_classes(of_class, children)
    for c in loops:
        if component[c] < 0:
            component[c] = len(component) + c
    roots = tuple(dict.fromkeys(classes.class_of[id] for id in outputs))
    return Problem(of_class, children, costs, heavy, roots), keys, component


def _price(types: Sequence[int], c: int, key: Key, prices: Prices) -> tuple[int, int]:
    op, operands, attrs = key
    return (0, 0) if op == LEAF else prices.price(op, attrs, types[c], tuple([types[k] for k in operands]))
