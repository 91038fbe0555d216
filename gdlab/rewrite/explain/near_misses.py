"""Why not more: rules matched on the result without their conditions, each with the first reason against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gdlab.graph import Graph, users
from gdlab.ops.packed import PACKED
from gdlab.rewrite.rules.conditions import Condition
from gdlab.rewrite.rules.packing import PACKED_PRODUCT, PreparedView, families
from gdlab.rewrite.rules.pattern import Match, Reason, Refusal, Rule, matches, refused
from gdlab.rewrite.rules.prepare import hash_cons, own_gradients

__all__ = ["WHEN_ENABLED", "Missed", "near_misses"]

ORDERS = 8  # operand orders of commutative ops that are looked at
WHEN_ENABLED = "it takes part only when enabled"


@dataclass(frozen=True, slots=True)
class Missed:
    """A rewrite that almost applied: its root in the result, and why it was not used (`text`: a whole sentence).

    `guard` is the Python of the condition that refused: file, line, text; None where no condition did.
    """

    label: str
    node: int
    reason: Reason
    detail: str
    text: str
    about: int | None = None
    guard: tuple[str, int, str] | None = None


def near_misses(
    graph: Graph, rules: Sequence[Rule], off: Mapping[str, Refusal], budget: Refusal | None
) -> tuple[Missed, ...]:
    """Every match of a rule in `rules` on the result; `off` says by id why a rule took no part, `budget` why the search
    ended early. One entry per label and root: of the rule that came furthest."""
    readers = users(graph)
    outputs = frozenset(graph.output_ids)
    uses = [len(r) for r in readers]
    for id in (*graph.output_ids, *own_gradients(graph)):
        uses[id] += 1
    by_op: dict[str, list[tuple[set[str], Rule]]] = {}
    stated = [rule for rule in rules if rule.left >= 0]
    for rule in stated:
        root = rule.pattern.node(rule.left)
        by_op.setdefault(root.op, []).append(({rule.pattern.node(i).op for i in root.inputs} - {"var"}, rule))
    found = []
    for node in graph:
        below = {graph._nodes[i].op for i in node.inputs} if node.op in by_op else set()
        furthest: dict[str, tuple[tuple[bool, int], Rule, Match]] = {}
        for wanted, rule in by_op.get(node.op, ()):
            if wanted <= below:
                came = _nearest(rule, islice(matches(rule, graph, node.id, uses, outputs), ORDERS))
                rank = rule.name not in off, came[0] if came else 0  # first of all the rules that took part
                if came is not None and (rule.label not in furthest or rank > furthest[rule.label][0]):
                    furthest[rule.label] = (rank, rule, came[1])
        found += [_missed(rule, m, off.get(rule.name), budget, readers) for _, rule, m in furthest.values()]
    given = [m for rule in rules if rule.left < 0 for m in near_siblings(graph, rule, off.get(rule.name), budget)]
    return tuple(sorted([*found, *given], key=lambda m: m.node) if given else found)


ALL_HOLD = 1_000_000


def _nearest(rule: Rule, found: Iterable[Match]) -> tuple[int, Match] | None:
    """The match that gets past most conditions, and how many: operands may fit in one order alone."""
    tried = [((refused(rule, m) or (ALL_HOLD,))[0], m) for m in found]
    return max(tried, key=lambda t: t[0], default=None)


def _missed(
    rule: Rule, match: Match, off: Refusal | None, budget: Refusal | None, readers: list[list[tuple[int, int]]]
) -> Missed:
    root = match.inner[0]
    at, refusal = refused(rule, match) or (None, None)
    guard = None if at is None else rule.where[at]
    reason, detail = refusal or off or _shared(match, readers) or budget or ("cost", "the graph costs no less with it")
    about = next((id for id in match.inner[1:] if f"%{id} " in detail), None)
    text = f"{rule.label} was not used at %{root}: {detail}."
    return Missed(rule.label, root, reason, detail, text, about, None if guard is None else guard.source)


def _shared(match: Match, readers: list[list[tuple[int, int]]]) -> Refusal | None:
    """An inner node of the left side that something else needs too: fusing it would compute it twice."""
    inner = set(match.inner)
    for id in match.inner[1:]:
        other = next((reader for reader, _ in readers[id] if reader not in inner), None)
        if other is not None:
            return "multi_use", f"%{id} is read by %{other} too"
        if id in match.outputs:
            return "is_output", f"%{id} is an output of the graph"
    return None


# products that stayed apart -------------------------------------------------------------------------------------------
def near_siblings(graph: Graph, rule: Rule, off: Refusal | None, budget: Refusal | None) -> list[Missed]:
    """Products of one operand that stayed apart: each whose weight is refused, or the last of those that would do.
    Nothing where somebody switched the rule off, or bolder ones, or it is for another phase: it is off anyway."""
    if off is not None and off[1] != WHEN_ENABLED:
        return []
    op = PACKED_PRODUCT[rule.name][0]
    left = [n.inputs[0] for n in graph if n.op == op]
    if len(set(left)) == len(left):  # the usual case, told at once
        return []
    prepared, found = hash_cons(graph), list[Missed]()
    view = PreparedView(prepared)
    for products in families(prepared, op).values():
        refused = {id: against for id in products if (against := view.refusal(rule, id)) is not None}
        fit = [id for id in products if id not in refused]
        if len(fit) > 1:
            found.append(_missed_product(rule, fit[-1], off or budget or ("cost", "the graph costs no less with it")))
        for id, (condition, refusal) in refused.items() if off is None else ():
            if graph._nodes[prepared.inputs[id][1]].op == PACKED:
                continue  # it is what others became
            found.append(_missed_product(rule, id, refusal, prepared.inputs[id][1], condition))
    return found


def _missed_product(
    rule: Rule, root: int, refusal: Refusal, about: int | None = None, guard: Condition | None = None
) -> Missed:
    reason, detail = refusal
    text = f"{rule.label} was not used at %{root}: {detail}."
    return Missed(rule.label, root, reason, detail, text, about, None if guard is None else guard.source)
