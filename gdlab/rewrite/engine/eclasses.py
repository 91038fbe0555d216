"""Read an engine's e-graph back: classes numbered the same way in every process, types, and the firings of rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gdlab.base.errors import GdlabError, OptimizeError
from gdlab.base.types import TensorType
from gdlab.graph import Attrs, Graph, Node, Value
from gdlab.op import REGISTRY, Op
from gdlab.ops.packed import COLUMNS, PACKED
from gdlab.rewrite.engine.egglog_program import OpSignature, RuleProgram, Slots
from gdlab.rewrite.engine.encoded_rows import Encoded, Key, fold_key
from gdlab.rewrite.engine.saturate import Saturation
from gdlab.rewrite.rules.packing import Siblings
from gdlab.rewrite.rules.pattern import COMMUTATIVE
from gdlab.rewrite.rules.prepare import Folded, Prepared, TypeNumbers
from gdlab.rewrite.rules.relations import Interner

__all__ = [
    "LEAF", "EClasses", "ENodeTypes", "Firing", "distinct", "fold_firings", "name_classes", "ordered",
    "packed_firings",
]  # fmt: skip

LEAF = "Leaf"


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
    of its type in `type_list`.
    """

    class_of: dict[int, int]
    nodes: list[list[int]]
    enodes: list[list[Key]]
    types: list[int]
    key_of: dict[int, Key]
    home: dict[Key, int]  # e-node -> class
    type_list: list[TensorType]
    firings: list[Firing] = field(default_factory=list)
    shape_conflicts: int = 0


def ordered(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Return operands in the order in which e-nodes are compared: those of commutative ops sorted."""
    return tuple(sorted(operands)) if op in COMMUTATIVE else operands


class ENodeTypes:
    """The type of an e-node, inferred once per op, attributes and operand types.

    Types are numbers here: hashing a number is cheap. The first are those of the prepared graph.
    """

    def __init__(
        self, numbers: Interner, signatures: Mapping[str, OpSignature], types: Sequence[TensorType]
    ) -> None:
        self.numbers, self.signatures = numbers, signatures
        self._numbers = TypeNumbers()
        self.types = self._numbers.types
        for type in types:
            self.number(type)
        self._values: dict[int, Value] = {}
        self._results: dict[Key, int] = {}
        self._scratch = Graph()

    def number(self, type: TensorType) -> int:
        """Return the number of a type."""
        return self._numbers[type]

    def _value(self, type: int) -> Value:
        """Return a scratch operand of a type."""
        if type not in self._values:
            self._values[type] = self._scratch.append("var", (), (), self.types[type])
        return self._values[type]

    def attrs(self, op: str, numbers: Iterable[int]) -> Attrs:
        """Return the attributes of these numbers as a node holds them."""
        return tuple(zip(self.signatures[op].attrs, [self.numbers.values[i] for i in numbers], strict=True))

    def result(self, case: Key) -> int:
        """Return the type number of (op, operand types, attributes) by the op's shape rule; −1 where it refuses."""
        number = self._results.get(case)
        if number is None:
            op, operands, numbers = case
            number = self._results[case] = self._infer(REGISTRY[op], operands, dict(self.attrs(op, numbers)))
        return number

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


def name_classes(
    prepared: Prepared, encoded: Encoded, found: Saturation, program: RuleProgram, inference: ENodeTypes
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
    for key in _number_the_rest(found, number, types, inference):
        home[key] = len(enodes)
        enodes.append([key])
    nodes += [[] for _ in range(len(types) - len(nodes))]
    conflicts = 0
    for key, c in sorted(_others(found, number, home).items()):
        if inference.result((key[0], tuple([types[k] for k in key[1]]), key[2])) == types[c]:
            enodes[c].append(key)
            home[key] = c
        else:
            conflicts += 1
    classes = EClasses(class_of, nodes, enodes, types, key_of, home, inference.types, [], conflicts)
    classes.firings = _firings(classes, found, number, program)
    return classes


def _keys(prepared: Prepared, encoded: Encoded, class_of: Mapping[int, int]) -> dict[int, Key]:
    """Return the e-node of every kept node."""
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
    """Return the e-nodes that no class lists yet, with the classes they belong to."""
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
    """Return the first of a class's nodes; raise if they differ in type or hold two leaves: then a rule is wrong."""
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
    found: Saturation, number: dict[int, int], types: list[int], inference: ENodeTypes
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
                type = inference.result((op, tuple([types[k] for k in args]), attrs))
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


def _firings(
    classes: EClasses, found: Saturation, number: Mapping[int, int], program: RuleProgram
) -> list[Firing]:
    firings = []
    for j, (slots, rule, rows) in enumerate(zip(program.slots, program.rules, found.fired, strict=True)):
        if not rows:
            continue
        n = len(rule.left_nodes)
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
    """Return the e-nodes of both sides of a firing; None where one of them was dropped."""
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


# rules without a pattern ----------------------------------------------------------------------------------------------
def fold_firings(
    prepared: Prepared, classes: EClasses, folded: Mapping[int, Folded], encoded: Encoded, rule: int
) -> list[Firing]:
    """Return the foldings as firings of the rule of this number: a node is equal to a fill or a constant."""
    firings = []
    for id, value in folded.items():
        key = fold_key(prepared, id, value, encoded.numbers)
        firings.append(Firing(rule, classes.class_of[id], (), (), (classes.key_of[id],), (key,)))
    return firings


def packed_firings(
    siblings: Iterable[Siblings], classes: EClasses, encoded: Encoded, number: Mapping[str, int]
) -> list[Firing]:
    """Return one firing for each packed product; `number` is that of the rule. The left side are all products, the
    firing's own last."""
    numbers, class_of, home, firings = encoded.numbers, classes.class_of, classes.home, list[Firing]()
    for s in siblings:
        weights, left = tuple([class_of[w] for w in s.weights]), class_of[s.left]
        pack: Key = PACKED, weights, (numbers(s.axis),)
        if pack not in home or (product := (s.op, (left, home[pack]), ())) not in home:
            continue
        keys = [classes.key_of[id] for id in s.products]
        for (id, start, stop), own in zip(s.ranges, keys, strict=True):
            key: Key = COLUMNS, (home[product],), (numbers(start), numbers(stop))
            left_side, right_side = (*(k for k in keys if k != own), own), (pack, product, key)
            firings.append(Firing(number[s.rule], class_of[id], (left, *weights), (), left_side, right_side))
    return firings


def distinct(firings: Iterable[Firing]) -> list[Firing]:
    """Return the firings, with only the first of each pack: its firings together are one rewrite."""
    seen, first = set[tuple[int, tuple[int, ...]]](), list[Firing]()
    for f in firings:
        if f.rule >= 0 or not f.env or (f.rule, f.env) not in seen:
            first.append(f)
        if f.rule < 0:
            seen.add((f.rule, f.env))
    return first
