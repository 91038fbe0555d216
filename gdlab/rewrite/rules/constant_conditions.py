"""Conditions about the elements of constants: masks of attention, and tables of rotary angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gdlab.base.memo import LruCache
from gdlab.base.types import Array, Shape, f32
from gdlab.graph import ConstantData, Graph, Node
from gdlab.rewrite.rules.conditions import HIDDEN, Condition, Match, Refusal, condition
from gdlab.rewrite.rules.relations import Fact, Folded, GraphFacts, Relation, Row, node_relation

__all__ = [
    "LAYOUTS", "AngleLayout", "causal_mask", "cosines", "hidden", "hidden_keys", "mask_kinds", "may_be_known",
    "seen_keys", "sines", "turn_of",
]  # fmt: skip

NONE: Folded = {}


# known values ---------------------------------------------------------------------------------------------------------
def may_be_known(node: Node) -> bool:
    """Return whether `known_value` looks at or through a node."""
    return node.op in ("full", "constant", "broadcast_to")


def known_value(graph: Graph, id: int, folded: Folded = NONE) -> float | ConstantData | None:
    """Return the number that fills a node, or the elements of a constant, also through broadcasts; None for others."""
    while id not in folded:
        node = graph._nodes[id]
        if node.op in ("full", "constant"):
            value: float | ConstantData = node.attr("value" if node.op == "full" else "data")
            return value
        if node.op != "broadcast_to":
            return None
        id = node.inputs[0]
    return folded[id]


def _constant(
    name: str, text: str, fact: Fact, check: Callable[[Match], Refusal | None], example: Callable[[Shape], Array]
) -> Condition:
    made = condition(f"const_eq({name}, {text})", (name,), (fact,), check)
    return replace(made, example=(name, example), of_graph=True)


# masks ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CausalMaskForm:
    """One form of a causal mask as a constant: which elements stand for keys that query i sees (0 … i), and which for
    the later ones."""

    text: str
    is_seen: Callable[[Array], Array]
    is_later: Callable[[Array], Array]


# as an addend, as a condition, as the opposite condition
MASKS: Mapping[str, CausalMaskForm] = {
    "f_causal": CausalMaskForm("causal mask", lambda seen: seen == 0, lambda later: later <= HIDDEN),
    "f_seen": CausalMaskForm("0 for later keys alone", lambda seen: seen != 0, lambda later: later == 0),
    "f_hides": CausalMaskForm("0 for all but later keys", lambda seen: seen == 0, lambda later: later != 0),
}


def mask_kinds(value: float | ConstantData | None, shape: Shape) -> frozenset[str]:
    """Return the names of the causal masks that a known value is for a node of this shape, […, queries, keys]."""
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    fits = square and isinstance(value, ConstantData) and value.shape[-2:] == shape[-2:]
    return _known_kinds(value) if fits and isinstance(value, ConstantData) else frozenset()


_ENTRY_BYTES = 512
_kinds_known: LruCache[str, frozenset[str]] = LruCache(256 * _ENTRY_BYTES)  # by digest: elements may be many megabytes


def _known_kinds(data: ConstantData) -> frozenset[str]:
    kinds = _kinds_known.get(data.digest)
    if kinds is None:
        kinds = _kinds(data)
        _kinds_known.put(data.digest, kinds, _ENTRY_BYTES)
    return kinds


def _kinds(data: ConstantData) -> frozenset[str]:
    elements = data.array.reshape(-1, *data.shape[-2:])
    later = np.triu(np.ones(data.shape[-2:], bool), 1)
    return frozenset(
        name for name, mask in MASKS.items()
        if np.all(mask.is_seen(elements[:, ~later])) and np.all(mask.is_later(elements[:, later]))
    )  # fmt: skip


def _masked(name: str) -> Relation:
    def holds(facts: GraphFacts) -> list[int]:
        values = ((n, known_value(facts.graph, n.id, facts.folded)) for n in facts.known)
        return [n.id for n, value in values if name in mask_kinds(value, n.type.shape)]

    return node_relation(name, holds)


MASKED = {name: _masked(name) for name in MASKS}


def _mask(name: str, relation: str, example: Callable[[Array], Array]) -> Condition:
    text = MASKS[relation].text

    def check(m: Match) -> Refusal | None:
        node = m.node(name)
        if relation in mask_kinds(known_value(m.graph, node.id), node.type.shape):
            return None
        return "attributes", f"{name}, a {node.op}, is {'no' if relation == 'f_causal' else 'not'} {text}"

    fact = Fact(MASKED[relation], (name,))
    return _constant(name, text, fact, check, lambda shape: example(np.triu(np.ones(shape), 1)))


def causal_mask(a: str) -> Condition:
    """Operand `a` is a constant that hides the later keys of every query: 0 up to the diagonal, −1e8 or less above."""
    return _mask(a, "f_causal", lambda later: later * 10 * HIDDEN)


def seen_keys(a: str) -> Condition:
    """Operand `a` is a constant that says which keys a query sees: not 0 up to the diagonal, 0 above."""
    return _mask(a, "f_seen", lambda later: 1 - later)


def hidden_keys(a: str) -> Condition:
    """Operand `a` is a constant that says which keys a query does not see: 0 up to the diagonal, not 0 above."""
    return _mask(a, "f_hides", lambda later: later)


def _is_low(value: float | ConstantData | None) -> bool:
    """Return whether a score of this value hides its key."""
    if isinstance(value, ConstantData):
        return bool(np.all(value.array <= HIDDEN))
    return value is not None and value <= HIDDEN


LOW = node_relation(
    "f_low", lambda facts: [n.id for n in facts.known if _is_low(known_value(facts.graph, n.id, facts.folded))]
)


def hidden(a: str) -> Condition:
    """Operand `a` is filled with −1e8 or less: e to that is 0."""

    def check(m: Match) -> Refusal | None:
        value = known_value(m.graph, m.nodes[a])
        given = f"a {m.node(a).op}" if value is None else "a constant" if isinstance(value, ConstantData) else value
        return None if _is_low(value) else ("attributes", f"{a} is {given}, not {HIDDEN:g} or less")

    return _constant(a, f"{HIDDEN:g} or less", Fact(LOW, (a,)), check, lambda shape: np.full(shape, 10 * HIDDEN))


# tables of angles -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AngleLayout:
    """The layout of a table of angles: its rows are the axis `rows` counted from the end; `twice`: the angle of pair j
    stands in columns j and j + d/2 of d, else once in d/2 columns."""

    rows: int
    twice: bool

    @property
    def number(self) -> int:
        """The layout as a number in the e-graph."""
        return 2 * self.rows + self.twice


LAYOUTS = tuple(AngleLayout(rows, twice) for rows in (2, 3) for twice in (False, True))
EXACT = 1e-7  # the largest distance of a table from the angles it stands for: the rounding of float32
DIGITS = (1, 2, 3, 4, 5, 6, 9)  # people write θ with few


def turn_of(
    held: float | ConstantData | None, shape: Shape, layout: AngleLayout, sine: bool, computed: bool = False
) -> float | None:
    """Return the θ of a table of cosines (or sines) of i · θ^(−2j/d), broadcast to `shape`; None for other tables.

    `computed`: its angles were rounded to float32 before, and lie that much further off.
    """
    if not isinstance(held, ConstantData) or held.dtype is not f32 or len(shape) < layout.rows:
        return None
    given = (*(1,) * len(shape), *held.shape)
    if any(given[-axis] != shape[-axis] for axis in (1, layout.rows)):
        return None
    key = held.digest, layout, sine, computed
    known = _turns_known.get(key)
    if known is None:
        known = (_turn(held, layout, sine, computed),)
        _turns_known.put(key, known, _ENTRY_BYTES)
    return known[0]


_turns_known: LruCache[tuple[str, AngleLayout, bool, bool], tuple[float | None]] = LruCache(256 * _ENTRY_BYTES)


def _turn(data: ConstantData, layout: AngleLayout, sine: bool, computed: bool) -> float | None:
    table = _rows(data.array.astype(np.float64), layout)
    if table is None or len(table) < 2 or np.any(np.abs(table[0] - (not sine)) > EXACT):
        return None
    return next((theta for theta in _likely(table, sine) if _off(table, theta, sine, computed) <= EXACT), None)


def _rows(table: Array, layout: AngleLayout) -> Array | None:
    """Return the table as [rows, d/2]; None where it varies along other axes too."""
    table = table.reshape((1,) * (layout.rows - table.ndim) + table.shape)
    axis = table.ndim - layout.rows
    for other in range(table.ndim - 1):
        if other != axis:
            first = table.take([0], other)
            if not np.array_equal(np.broadcast_to(first, table.shape), table):
                return None
            table = first
    flat = table.reshape(table.shape[axis], table.shape[-1])
    if not layout.twice:
        return flat
    low, high = flat[:, : flat.shape[1] // 2], flat[:, flat.shape[1] // 2 :]
    return low if np.array_equal(low, high) else None


def _likely(table: Array, sine: bool) -> list[float]:
    """Return likely values of θ by the second pair, those with few digits first; any θ where there is one pair."""
    pairs = table.shape[1]
    if pairs == 1:
        return [10000.0]
    column = table[:, 1] if sine else 1 - table[:, 1]
    below = np.flatnonzero((column > 0.9) | (np.diff(column, prepend=0) < 0))  # beyond, an angle is not determined well
    row = max(1, int(below[0]) - 1 if below.size else len(column) - 1)
    value = float(np.clip(table[row, 1], -1, 1))
    angle = (math.asin(value) if sine else math.acos(value)) / row
    if not 0 < angle <= 1:
        return []
    theta = angle**-pairs
    near = dict.fromkeys(float(np.float32(float(f"{theta:.{n - 1}e}"))) for n in DIGITS)
    return [t for t in near if math.isfinite(t)]


def _off(table: Array, theta: float, sine: bool, computed: bool) -> float:
    """Return the largest distance of the table from that of θ; `computed`: relative to the error of rounded angles."""
    pairs = table.shape[1]
    angles = np.outer(np.arange(len(table)), theta ** (-np.arange(pairs) / pairs))
    far = np.abs(table - (np.sin(angles) if sine else np.cos(angles)))
    return float(np.max(far / (1 + 2 * angles) if computed else far))


def _turns(name: str, sine: bool) -> Relation:
    """Return the relation (node, layout, θ) of constant tables of sines, or of cosines."""

    def rows(facts: GraphFacts) -> list[Row]:
        values = ((n, known_value(facts.graph, n.id, facts.folded)) for n in facts.known)
        turns = ((n.id, k, turn_of(value, n.type.shape, k, sine, n.id in facts.folded))
                 for n, value in values if value is not None for k in LAYOUTS)  # fmt: skip
        return [(id, k.number, facts.numbers(theta)) for id, k, theta in turns if theta is not None]

    return Relation(name, "node", 3, rows)


TURNS = {False: _turns("f_cosines", sine=False), True: _turns("f_sines", sine=True)}


def _table(name: str, theta: str, layout: AngleLayout, sine: bool) -> Condition:
    function = "sines" if sine else "cosines"

    def value(m: Match) -> float | None:
        node = m.node(name)
        return turn_of(known_value(m.graph, node.id), node.type.shape, layout, sine)

    def check(m: Match) -> Refusal | None:
        found = value(m)
        if found is None:
            node = m.node(name)
            return "attributes", f"{name}, a {node.op}, does not hold {function} of i · θ^(−2j/d), d wide, for row i"
        known = m.attrs.get(theta, found)
        return None if known == found else ("attributes", f"{name} has θ = {found:g}, not {known:g}")

    def example(shape: Shape) -> Array:
        pairs, rows = shape[-1] // (1 + layout.twice), shape[-layout.rows]
        angles = np.outer(np.arange(rows), 10000.0 ** (-np.arange(pairs) / pairs))
        table = np.tile(np.sin(angles) if sine else np.cos(angles), 1 + layout.twice)
        return np.broadcast_to(table.reshape(rows, *(1,) * (layout.rows - 2), -1), shape).astype(np.float32)

    text, facts = f"const_eq({name}, {function} of {theta})", (Fact(TURNS[sine], (name, layout.number, theta)),)
    made = condition(text, (name, theta), facts, check, theta, value)
    return replace(made, example=(name, example), of_graph=True)


def cosines(a: str, theta: str, layout: AngleLayout) -> Condition:
    """Operand `a` is a constant that holds cos(i · θ^(−2j/d)) for row i and pair j. It determines θ."""
    return _table(a, theta, layout, sine=False)


def sines(a: str, theta: str, layout: AngleLayout) -> Condition:
    """Operand `a` is a constant that holds sin(i · θ^(−2j/d)) for row i and pair j. It determines θ."""
    return _table(a, theta, layout, sine=True)
