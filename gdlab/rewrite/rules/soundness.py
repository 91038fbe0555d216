"""Try a rule on random operands: both sides must have one type and one value, by the ops' own references."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, get_origin

import numpy as np

from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError, GdlabError, OptimizeError, ShapeError
from gdlab.base.kinds import instance, kinds
from gdlab.base.types import Array, Shape, TensorType
from gdlab.base.words import sig
from gdlab.graph import AttrVar, Graph, Node, Value
from gdlab.op import REGISTRY, Safety
from gdlab.rewrite.rules.conditions import Match
from gdlab.rewrite.rules.pattern import F32_CONSTANTS, Rule
from gdlab.rewrite.rules.relations import interned

__all__ = [
    "RuleCase", "build", "cases", "check_rule", "constants_of", "disagreement", "left_sides", "matched", "shapes_of",
    "slope_disagreement", "stands", "telling", "values_of",
]  # fmt: skip

SHAPES: tuple[Shape, ...] = ((3, 4), (4,), (4, 3), (3, 4, 5), (4, 5), (1,), (3, 3), (2, 3), (5, 4))
PLENTY, TRIES = 3, 20_000
DRAWS, FEW = 24, 400  # cases drawn at random beside the first ones, and tries for each
SLOPE = F32_CONSTANTS  # two ways to one gradient: a mean's has 1 / n in float32
SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.0, 900.0, -900.0)  # e^900 overflows


@dataclass(frozen=True)
class RuleCase:
    """Types of a rule's variables and values of its attributes for which the left side exists."""

    types: Mapping[str, TensorType]
    attrs: Mapping[str, Any]


@kinds(rule=instance(Rule, "a rule, such as gd.rules.relu_abs"))
def check_rule(rule: Rule) -> None:
    """Raise `OptimizeError` unless both sides agree on random operands: in type, in value (exact and rounding rules on
    inf and NaN too), and, where the rule takes part in phase forward, in their gradients, kinks included."""
    where = f"rule {rule.name}"
    found = telling(rule)
    if not found:
        raise OptimizeError(where, "left side", "no operands that fit it", "samples=(Sample(shapes…, attrs=…),) to try")
    for case in found:
        types = ", ".join(f"{name} {type}" for name, type in case.types.items())
        given = f" and {', '.join(f'{k}={v!r}' for k, v in case.attrs.items())}" if case.attrs else ""
        problem = disagreement(rule, case)
        if problem is not None:
            raise OptimizeError(where, "sides", f"{problem} for {types}{given}", "two sides that are equal")
        problem = slope_disagreement(rule, case) if "forward" in rule.phases else None
        if problem is not None:
            wanted = 'two sides with one gradient, or phases=("full", "inference")'
            raise OptimizeError(where, "gradients", f"{problem} for {types}{given}", wanted)


def disagreement(rule: Rule, case: RuleCase, seed: int = 0) -> str | None:
    """Return how the sides differ for operands of these types, in words; None where they agree."""
    graph, left = build(rule, case, rule.left)
    try:
        other, right = build(rule, case, rule.right)
    except GdlabError as e:
        return f"a right side that does not exist ({e})"
    types = graph.node(left).type, other.node(right).type
    if types[0] != types[1]:
        return f"{types[0]} and {types[1]}"
    rng = np.random.default_rng(seed)
    for draw in DRAWN[rule.safety]:
        operands = {name: draw(rng, type.shape) for name, type in case.types.items()} | constants_of(rule, case)
        values = value_of(graph, left, operands), value_of(other, right, operands)
        at = _differ(*values, rule.rtol)
        if at is not None:
            return f"{values[0][at]!s} and {values[1][at]!s} at {list(at)}{_there(operands, values[0], at)}"
    return None


def constants_of(rule: Rule, case: RuleCase) -> dict[str, Array]:
    """Return operands that conditions want to be constants, with elements that those conditions accept."""
    examples = (c.example for c in rule.where if c.example is not None)
    return {name: make(case.types[name].shape) for name, make in examples if name in case.types}


def _regular(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(-2, 2, shape) * rng.uniform(0.5, 1, shape)  # with all their digits: sums of these are rounded


def _large(rng: np.random.Generator, shape: Shape) -> Array:
    return np.asarray(_regular(rng, shape) * 10.0 ** rng.integers(0, 7, shape))


def _special(rng: np.random.Generator, shape: Shape) -> Array:
    return np.asarray(rng.choice(SPECIALS, shape))


def _whole(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.integers(-2, 3, shape).astype(np.float64)


DRAWN: Mapping[Safety, Sequence[Callable[[np.random.Generator, Shape], Array]]] = {
    "exact": (_regular, _special), "rounding": (_regular, _special), "reassoc": (_regular, _large),
    "approx": (_regular,),
}  # fmt: skip


def _there(operands: Mapping[str, Array], result: Array, at: tuple[int, ...]) -> str:
    """Return in words the elements at this place of operands of the result's shape: the counterexample."""
    found = [f"{name} = {sig(x[at], 6)}" for name, x in operands.items() if x.shape == result.shape]
    return f", where {', '.join(found)}," if found else ""


def slope_disagreement(rule: Rule, case: RuleCase, seed: int = 0) -> str | None:
    """Return how the gradients of the sides differ, at random operands and at whole numbers, where relu and similar ops
    have their kinks, in words. None where they agree, or where one side has none."""
    sides = []
    for root in (rule.left, rule.right):
        graph, out = build(rule, case, root, _input)
        graph.set_outputs(Value(graph, out))
        held = constants_of(rule, case)
        wrt = [Value(graph, n.id) for n in graph.inputs if n.name in case.types and n.name not in held]
        seeded = REGISTRY["input"]("cotangent", graph.outputs[0].shape, graph=graph)
        try:
            full, _ = differentiate(graph, wrt=wrt, seed=seeded)
        except AutodiffError:
            return None
        sides.append((full, [v.name for v in wrt]))
    rng = np.random.default_rng(seed)
    shapes = {n.name: n.type.shape for n in sides[0][0].inputs}
    tolerance = max(rule.rtol, SLOPE)
    for draw in (_regular, _whole):
        operands = {name: draw(rng, shape) for name, shape in shapes.items()} | constants_of(rule, case)
        found: list[dict[str, Array]] = []
        for full, names in sides:
            values = _values_of(full, operands)
            found.append(dict(zip(names, (values[i] for i in full.output_ids[1:]), strict=True)))
        for name in found[0]:
            a, b = found[0][name], found[1].get(name, np.zeros_like(found[0][name]))
            pole = ~np.isfinite(a) & ~np.isfinite(b)  # no slope there on either side
            at = _differ(np.where(pole, 0.0, a), np.where(pole, 0.0, b), tolerance)
            if at is not None:
                there = sig(operands[name][at], 6)
                return f"{a[at]!s} and {b[at]!s} for {name} at {list(at)}, where {name} = {there},"
    return None


def _differ(a: Array, b: Array, tolerance: float) -> tuple[int, ...] | None:
    """Return the first place where the arrays are too far apart."""
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        scale = 1.0 + np.max(np.abs(a[finite]), initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        close = finite & (np.abs(a - b) <= tolerance * scale)
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a) if tolerance == 0 else True
    wrong = ~((same | close) & signs)
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


# building sides -------------------------------------------------------------------------------------------------------
Leaf = Callable[[Graph, str, TensorType], Value]


def _var(graph: Graph, name: str, type: TensorType) -> Value:
    return graph.append("var", (), (("name", name),), type, name)


def _input(graph: Graph, name: str, type: TensorType) -> Value:
    return REGISTRY["input"](name, type.shape, graph=graph)


def build(
    rule: Rule, case: RuleCase, root: int, leaf: Leaf = _var, swapped: frozenset[int] = frozenset()
) -> tuple[Graph, int]:
    """Build one side of the rule as a graph, a leaf for each variable, then the ops; return it and its root's id.

    The ops in `swapped` (ids of the pattern) get their operands in reverse order.
    """
    graph = Graph()
    values = {rule.names[name]: leaf(graph, name, type) for name, type in case.types.items()}
    reached = rule._reached(root)
    for node in rule.pattern:
        if node.op != "var" and node.id in reached:
            operands = [values[i] for i in node.inputs]
            values[node.id] = _append(graph, node, operands[::-1] if node.id in swapped else operands, case.attrs)
    return graph, values[root].id if root >= 0 else -1


def _append(graph: Graph, node: Node, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    given = {k: attrs[v.name] if isinstance(v, AttrVar) else v for k, v in node.attrs}
    op = REGISTRY[node.op]
    if op.broadcasts and len({v.shape for v in operands}) > 1:  # the builder would insert a broadcast
        raise ShapeError(op.name, "operands", " and ".join(str(v.type) for v in operands), "equal shapes")
    if op.canonical is not None:
        given = op._asking(partial(op._stored, graph), operands, given)
    type = op.infer(operands, given)
    return graph.append(op.name, tuple(v.id for v in operands), tuple(sorted(given.items())), type, node.name)


def value_of(graph: Graph, root: int, operands: Mapping[str, Array]) -> Array:
    """Compute the value of node `root` by the references, for these operands."""
    return np.asarray(_values_of(graph, operands, root + 1)[root], np.float64)


def _values_of(graph: Graph, operands: Mapping[str, Array], count: int | None = None) -> list[Array]:
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for node in graph.nodes[:count]:
            if node.op in ("var", "input"):
                values.append(operands[node.attr("name")])
            else:
                values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs)))
    return values


# operands that fit ----------------------------------------------------------------------------------------------------
def telling(rule: Rule) -> list[RuleCase]:
    """Return the cases to try a rule on: all of its samples, or the first cases and others drawn at random, so that
    every attribute and shape varies."""
    if rule.samples:
        return list(cases(rule))
    found = list(itertools.islice(cases(rule), PLENTY))
    rng = random.Random(0)
    for _ in range(DRAWS if found else 0):
        drawn = (case for types, attrs in left_sides(rule, rng, FEW) for case in _complete(rule, types, attrs))
        found += itertools.islice(drawn, 1)
    return list({_key(case): case for case in found}.values())


def _key(case: RuleCase) -> tuple[Any, ...]:
    types, attrs = sorted(case.types.items()), sorted(case.attrs.items())
    return tuple((name, str(type)) for name, type in types), tuple((name, interned(value)) for name, value in attrs)


def cases(rule: Rule) -> Iterator[RuleCase]:
    """Yield operand types and attribute values where the left side exists and conditions hold, most telling first."""
    if rule.samples:
        for sample in rule.samples:
            types = dict(zip(rule.variables, (TensorType(s) for s in sample.shapes), strict=True))
            yield from _complete(rule, types, dict(sample.attrs))
        return
    for types, attrs in left_sides(rule):
        yield from _complete(rule, types, attrs)


def left_sides(
    rule: Rule, rng: random.Random | None = None, most: int = TRIES
) -> Iterator[tuple[dict[str, TensorType], dict[str, Any]]]:
    """Yield operand types and attribute values for which the left side exists; with `rng` in any order."""
    order = _in_order_of_need(rule)
    tries = 0
    stack: list[tuple[int, dict[str, TensorType], dict[str, Any]]] = [(0, {}, {})]
    while stack and tries < most:
        tries += 1
        at, types, attrs = stack.pop()
        if not stands(rule, types, attrs):
            continue
        if at == len(order):
            yield types, attrs
            continue
        name = order[at]
        if name in rule.variables:
            more = [(at + 1, types | {name: TensorType(s)}, attrs) for s in shapes_of(rule)]
        else:
            more = [(at + 1, types, attrs | {name: value}) for value in values_of(rule, name)]
        if rng is not None:
            rng.shuffle(more)
        stack += reversed(more)


def _in_order_of_need(rule: Rule) -> list[str]:
    """Return variables and attributes in the order in which the ops of the left side need them."""
    names: list[str] = []
    for node in rule.left_nodes:
        leaves = (rule.pattern.node(i) for i in node.inputs)
        names += [leaf.attr("name") for leaf in leaves if leaf.op == "var"]
        names += [v.name for _, v in node.attrs if isinstance(v, AttrVar)]
    return list(dict.fromkeys(names))


def stands(rule: Rule, types: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> bool:
    """Return whether every op whose operands are all chosen accepts them."""
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


def _complete(rule: Rule, types: dict[str, TensorType], attrs: dict[str, Any]) -> Iterator[RuleCase]:
    """Yield the case if the conditions hold; those that determine an attribute give its value."""
    for condition in rule.where:
        if condition.binds in rule.attr_variables and condition.binds not in attrs:
            attrs = attrs | {condition.binds: condition.value(matched(rule, types, attrs))}
    case = RuleCase(types, attrs)
    match = matched(rule, types, attrs)
    # whether an operand is a parameter or a fill is for the graph to say
    if all(c.check(match) is None for c in rule.where if not c.of_graph):
        yield case


def matched(rule: Rule, types: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Match:
    """Match the left side as a graph of its own; attributes that conditions determine may be missing."""
    held = {name for node in rule.left_nodes for _, v in node.attrs if isinstance(v, AttrVar) for name in [v.name]}
    if held <= attrs.keys():
        graph, root = build(rule, RuleCase(types, attrs), rule.left)
    else:
        graph, root = build(rule, RuleCase(types, attrs), -1)
    ids = {n.name: n.id for n in graph if n.name}
    uses = [0] * len(graph)
    for node in graph:
        for i in node.inputs:
            uses[i] += 1
    inner = tuple(n.id for n in reversed(graph.nodes) if n.op != "var")
    return Match(graph, ids, attrs, inner, uses, frozenset({root}))


def shapes_of(rule: Rule) -> list[Shape]:
    """Return the shapes to try: the usual ones, then those of the samples of the rule's ops."""
    ops = dict.fromkeys(n.op for n in rule.left_nodes)
    sampled = [s for op in ops for sample in REGISTRY[op].samples for s in sample.shapes if np.prod(s) <= 256]
    return list(dict.fromkeys([*SHAPES, *sampled]))


def values_of(rule: Rule, name: str) -> list[Any]:
    """Return the values of an attribute to try: those of the samples of its op, then some of its kind."""
    found: list[Any] = []
    for node in rule.left_nodes:
        for attr, value in node.attrs:
            if isinstance(value, AttrVar) and value.name == name:
                op = REGISTRY[node.op]
                kind = next(p.annotation for p in op.attributes if p.name == attr)
                sampled = [sample.attrs[attr] for sample in op.samples if attr in sample.attrs]
                found += [(v,) if kind == Shape and isinstance(v, int) else v for v in sampled] + _of_kind(kind)
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
