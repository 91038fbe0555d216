"""Find near misses: rules matched on the result without their conditions, each with the first reason against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gdlab.graph import Graph
from gdlab.ops.packed import PACKED
from gdlab.rewrite.rules.conditions import Condition, Match, Reason, Refusal
from gdlab.rewrite.rules.matching import GraphUses, matches, refused
from gdlab.rewrite.rules.packing import PACKED_PRODUCT, PreparedView, families
from gdlab.rewrite.rules.pattern import Rule
from gdlab.rewrite.rules.prepare import hash_cons

__all__ = ["WHEN_ENABLED", "Missed", "near_misses", "why_not_used"]

ORDERS = 8  # matches at one root that are tried: operand orders of commutative ops
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
    """Return every match of a rule in `rules` on the result, without conditions. `off` says by id why a rule took no
    part, `budget` why the search ended early. One entry per label and root: of the rule that got past most
    conditions."""
    around = GraphUses(graph)
    by_op: dict[str, list[tuple[set[str], Rule]]] = {}
    for rule in (rule for rule in rules if rule.left >= 0):
        root = rule.pattern.node(rule.left)
        by_op.setdefault(root.op, []).append(({rule.pattern.node(i).op for i in root.inputs} - {"var"}, rule))
    missed = []
    for node in graph:
        below = {graph._nodes[i].op for i in node.inputs} if node.op in by_op else set()
        furthest: dict[str, tuple[tuple[bool, int], Rule, Match]] = {}
        for wanted, rule in by_op.get(node.op, ()):
            if wanted <= below:
                nearest = _nearest(rule, islice(matches(rule, around, node.id), ORDERS))
                rank = rule.name not in off, nearest[0] if nearest else 0  # first of all the rules that took part
                if nearest is not None and (rule.label not in furthest or rank > furthest[rule.label][0]):
                    furthest[rule.label] = (rank, rule, nearest[1])
        missed += [_missed(rule, m, off.get(rule.name), budget, around) for _, rule, m in furthest.values()]
    packed = [m for rule in rules if rule.left < 0 for m in _near_siblings(graph, rule, off.get(rule.name), budget)]
    return tuple(sorted([*missed, *packed], key=lambda m: m.node) if packed else missed)


ALL_HOLD = 1_000_000


def _nearest(rule: Rule, tried: Iterable[Match]) -> tuple[int, Match] | None:
    """Return the match that passes most conditions, and how many it passes: operands may fit in one order alone."""
    counted = [((refused(rule, m) or (ALL_HOLD,))[0], m) for m in tried]
    return max(counted, key=lambda pair: pair[0], default=None)


def why_not_used(
    rule: Rule, match: Match, off: Refusal | None, budget: Refusal | None, around: GraphUses
) -> tuple[Refusal, Condition | None]:
    """Return why a rule was not used where its left side stands, and the condition that refused, if one did."""
    at, refusal = refused(rule, match) or (None, None)
    reason = refusal or off or _shared(match, around) or budget or ("cost", "the graph costs no less with it")
    return reason, None if at is None else rule.where[at]


def _missed(rule: Rule, match: Match, off: Refusal | None, budget: Refusal | None, around: GraphUses) -> Missed:
    (reason, detail), guard = why_not_used(rule, match, off, budget, around)
    about = next((id for id in match.inner[1:] if f"%{id} " in detail), None)
    return _record(rule, match.inner[0], (reason, detail), about, guard)


def _record(
    rule: Rule, root: int, refusal: Refusal, about: int | None = None, guard: Condition | None = None
) -> Missed:
    reason, detail = refusal
    text = f"{rule.label} was not used at %{root}: {detail}."
    return Missed(rule.label, root, reason, detail, text, about, None if guard is None else guard.source)


def _shared(match: Match, around: GraphUses) -> Refusal | None:
    """Return why fusing would compute an inner node of the left side twice: another reads it, or it is an output."""
    inner = set(match.inner)
    for id in match.inner[1:]:
        other = next((reader for reader, _ in around.readers[id] if reader not in inner), None)
        if other is not None:
            return "multi_use", f"%{id} is read by %{other} too"
        if id in match.outputs:
            return "is_output", f"%{id} is an output of the graph"
    return None


# products that stayed apart -------------------------------------------------------------------------------------------
def _near_siblings(graph: Graph, rule: Rule, off: Refusal | None, budget: Refusal | None) -> list[Missed]:
    """Return products of one operand that were not packed: each whose weight is refused, or the last of those that fit.
    None where somebody switched the rule off, or bolder ones, or it is for another phase."""
    if off is not None and off[1] != WHEN_ENABLED:
        return []
    op = PACKED_PRODUCT[rule.name][0]
    left = [n.inputs[0] for n in graph if n.op == op]
    if len(set(left)) == len(left):  # the usual case: no need to look closer
        return []
    prepared, missed = hash_cons(graph), list[Missed]()
    view = PreparedView(prepared)
    for products in families(prepared, op).values():
        refusals = {id: against for id in products if (against := view.refusal(rule, id)) is not None}
        fit = [id for id in products if id not in refusals]
        if len(fit) > 1:
            missed.append(_record(rule, fit[-1], off or budget or ("cost", "the graph costs no less with it")))
        for id, (condition, refusal) in refusals.items() if off is None else ():
            if graph._nodes[prepared.inputs[id][1]].op == PACKED:
                continue  # a pack that the rule made
            missed.append(_record(rule, id, refusal, prepared.inputs[id][1], condition))
    return missed
