"""Try a rule on random operands: both sides must have one type and one value, by the ops' own references."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import numpy as np

from gdlab.errors import GdlabError, OptimizeError, ShapeError
from gdlab.graph import AttrVar, Graph, Node, Value
from gdlab.op import REGISTRY, Array
from gdlab.rewrite.pattern import Match, Rule, interned
from gdlab.types import Shape, TensorType

__all__ = ["Case", "cases", "check_rule", "disagreement"]

SHAPES: tuple[Shape, ...] = ((3, 4), (4,), (4, 3), (3, 4, 5), (4, 5), (1,), (3, 3), (2, 3), (5, 4))
PLENTY, ENOUGH, TRIES = 3, 1, 20_000
SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.0, 900.0, -900.0)  # e^900 overflows
TOLERANCE = {"exact": 0.0, "rounding": 1e-12, "reassoc": 1e-9, "approx": 1e-2}


@dataclass(frozen=True)
class Case:
    """Types of a rule's variables and values of its attributes for which the left side exists."""

    types: Mapping[str, TensorType]
    attrs: Mapping[str, Any]


def check_rule(rule: Rule) -> None:
    """Raise `OptimizeError` unless both sides agree on random operands; exact and rounding ones on inf and NaN too."""
    where = f"rule {rule.name}"
    found = list(itertools.islice(cases(rule), PLENTY))
    if len(found) < ENOUGH:
        raise OptimizeError(where, "left side", "no operands that fit it", "samples=(Sample(shapes…, attrs=…),) to try")
    for case in found:
        problem = disagreement(rule, case)
        if problem is not None:
            types = ", ".join(f"{name} {type}" for name, type in case.types.items())
            raise OptimizeError(where, "sides", f"{problem} for {types}", "two sides that are equal")


def disagreement(rule: Rule, case: Case, seed: int = 0) -> str | None:
    """How the sides differ for operands of these types, in words; None where they agree."""
    graph, left = build(rule, case, rule.left)
    try:
        other, right = build(rule, case, rule.right)
    except GdlabError as e:
        return f"a right side that does not exist ({e})"
    types = graph.node(left).type, other.node(right).type
    if types[0] != types[1]:
        return f"{types[0]} and {types[1]}"
    rng = np.random.default_rng(seed)
    operands = {name: rng.uniform(-2, 2, type.shape) for name, type in case.types.items()}
    problem = _differ(value_of(graph, left, operands), value_of(other, right, operands), TOLERANCE[rule.safety])
    if problem is None and rule.safety in ("exact", "rounding"):
        operands = {name: rng.choice(SPECIALS, type.shape) for name, type in case.types.items()}
        problem = _differ(value_of(graph, left, operands), value_of(other, right, operands), TOLERANCE[rule.safety])
    return problem


def _differ(a: Array, b: Array, tolerance: float) -> str | None:
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        scale = 1.0 + np.max(np.abs(a[finite]), initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        close = finite & (np.abs(a - b) <= tolerance * scale)
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a) if tolerance == 0 else True
    wrong = ~((same | close) & signs)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{a[at]!s} and {b[at]!s} at {list(at)}"


# building sides -------------------------------------------------------------------------------------------------------
Leaf = Callable[[Graph, str, TensorType], Value]


def _var(graph: Graph, name: str, type: TensorType) -> Value:
    return graph.append("var", (), (("name", name),), type, name)


def build(
    rule: Rule, case: Case, root: int, leaf: Leaf = _var, swapped: frozenset[int] = frozenset()
) -> tuple[Graph, int]:
    """One side of the rule as a graph, and the id of its root: a leaf for each variable, then the ops.

    The ops in `swapped` (ids of the pattern) get their operands in reverse order.
    """
    graph = Graph()
    values = {rule.names[name]: leaf(graph, name, type) for name, type in case.types.items()}
    reached = rule._reached(root)
    for node in rule.pattern:
        if node.op != "var" and node.id in reached:
            operands = [values[i] for i in node.inputs]
            values[node.id] = _append(graph, node, operands[::-1] if node.id in swapped else operands, case.attrs)
    return graph, values[root].id


def _append(graph: Graph, node: Node, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    given = {k: attrs[v.name] if isinstance(v, AttrVar) else v for k, v in node.attrs}
    op = REGISTRY[node.op]
    if op.broadcasts and len({v.shape for v in operands}) > 1:  # the builder would insert a broadcast
        raise ShapeError(op.name, "operands", " and ".join(str(v.type) for v in operands), "equal shapes")
    if op.canonical is not None:
        given = op._asking(op.canonical, operands, given)
    type = op.infer(operands, given)
    return graph.append(op.name, tuple(v.id for v in operands), tuple(sorted(given.items())), type, node.name)


def value_of(graph: Graph, root: int, operands: Mapping[str, Array]) -> Array:
    """The value of node `root`, by the references, for these operands."""
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for node in graph.nodes[: root + 1]:
            if node.op == "var":
                values.append(operands[node.attr("name")])
            else:
                values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs)))
    return np.asarray(values[root], np.float64)


# operands that fit ----------------------------------------------------------------------------------------------------
def cases(rule: Rule) -> Iterator[Case]:
    """Operand types and attribute values for which the left side exists and the conditions hold, most telling first."""
    if rule.samples:
        for sample in rule.samples:
            types = dict(zip(rule.variables, (TensorType(s) for s in sample.shapes), strict=True))
            yield from _complete(rule, types, dict(sample.attrs))
        return
    order = _in_order_of_need(rule)
    tries = 0
    stack: list[tuple[int, dict[str, TensorType], dict[str, Any]]] = [(0, {}, {})]
    while stack and tries < TRIES:
        tries += 1
        at, types, attrs = stack.pop()
        if not _stands(rule, types, attrs):
            continue
        if at == len(order):
            yield from _complete(rule, types, attrs)
            continue
        name = order[at]
        if name in rule.variables:
            more = [(at + 1, types | {name: TensorType(s)}, attrs) for s in _shapes(rule)]
        else:
            more = [(at + 1, types, attrs | {name: value}) for value in _values(rule, name)]
        stack += reversed(more)


def _in_order_of_need(rule: Rule) -> list[str]:
    """Variables and attributes in the order in which the ops of the left side ask for them."""
    names: list[str] = []
    for node in rule.left_nodes:
        leaves = (rule.pattern.node(i) for i in node.inputs)
        names += [leaf.attr("name") for leaf in leaves if leaf.op == "var"]
        names += [v.name for _, v in node.attrs if isinstance(v, AttrVar)]
    return list(dict.fromkeys(names))


def _stands(rule: Rule, types: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> bool:
    """Whether the ops whose operands are all chosen accept them."""
    graph, values = Graph(), dict[int, Value]()
    for name, type in types.items():
        values[rule.names[name]] = graph.append("var", (), (("name", name),), type)
    for node in rule.left_nodes:
        wanted = [v.name for _, v in node.attrs if isinstance(v, AttrVar)]
        if all(i in values for i in node.inputs) and all(name in attrs for name in wanted):
            try:
                values[node.id] = _append(graph, node, [values[i] for i in node.inputs], attrs)
            except GdlabError:
                return False
    return True


def _complete(rule: Rule, types: dict[str, TensorType], attrs: dict[str, Any]) -> Iterator[Case]:
    """The case, where the conditions hold; those that determine an attribute give its value."""
    for condition in rule.where:
        if condition.binds in rule.attr_variables and condition.binds not in attrs:
            attrs = attrs | {condition.binds: _bound(rule, condition.text, types, attrs)}
    case = Case(types, attrs)
    graph, root = build(rule, case, rule.left)
    ids = {n.name: n.id for n in graph if n.name}
    uses = [0] * len(graph)
    for node in graph:
        for i in node.inputs:
            uses[i] += 1
    inner = tuple(n.id for n in reversed(graph.nodes) if n.op != "var")
    match = Match(graph, ids, attrs, inner, uses, frozenset({root}))
    if all(c.check(match) is None for c in rule.where if not c.text.startswith(("is_param", "const_eq"))):
        yield case


def _bound(rule: Rule, text: str, types: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Any:
    kind, _, rest = text.partition("(")
    names = [name.strip() for name in rest.rstrip(")").split(",")]
    if kind == "shape_eq":
        return types[names[0]].shape
    return tuple(attrs[names[0]][i] for i in attrs[names[1]])


def _shapes(rule: Rule) -> list[Shape]:
    """Shapes to try: the usual ones, then those of the samples of the rule's ops."""
    ops = dict.fromkeys(n.op for n in rule.left_nodes)
    sampled = [s for op in ops for sample in REGISTRY[op].samples for s in sample.shapes if np.prod(s) <= 256]
    return list(dict.fromkeys([*SHAPES, *sampled]))


def _values(rule: Rule, name: str) -> list[Any]:
    """Values of an attribute to try: those that the samples of its op have, then some of its kind."""
    found: list[Any] = []
    for node in rule.left_nodes:
        for attr, value in node.attrs:
            if isinstance(value, AttrVar) and value.name == name:
                op = REGISTRY[node.op]
                found += [sample.attrs[attr] for sample in op.samples if attr in sample.attrs]
                found += _of_kind(next(p.annotation for p in op.attributes if p.name == attr))
    return list({interned(value): value for value in found if _plain(value)}.values())


def _plain(value: Any) -> bool:
    return not (isinstance(value, tuple) and -1 in value)


def _of_kind(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if kind == Shape:
        return [*SHAPES, (12,), (2, 6), (1, 0), (0, 1), (2, 0, 1), (3, 4, 4)]
    usual: dict[Any, list[Any]] = {float: [0.5, -2.0, 1.0], int: [0, 1, 2], bool: [False, True], str: ["a"]}
    return usual.get(kind, [])
