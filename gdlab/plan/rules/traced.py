"""Trace a rule's `form` in ops: the lines of a chain, from which its WGSL and its NumPy calls follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gdlab.base.errors import ArgumentError
from gdlab.base.types import TensorType
from gdlab.graph import Value, scratch
from gdlab.op import REGISTRY, Elementwise
from gdlab.plan.dispatch import Arg, PointOp
from gdlab.plan.rules.rule_record import UpdateRule
from gdlab.plan.terms import Terms, View, terms_of


@dataclass(frozen=True, slots=True)
class TracedForm:
    """The traced form of a rule: lines over its operands (parameter, gradient, states, then scalars in order), and the
    places of the new parameter and states."""

    lines: tuple[PointOp, ...]
    results: tuple[Arg, ...]


@lru_cache(maxsize=64)
def traced(rule: UpdateRule) -> TracedForm:
    """Trace the form of a rule as a chain; raise where a result element depends on other elements of the operands."""
    assert rule.form is not None  # the caller looked
    where, count = f"update rule {rule.name}", 1 + len(rule.state)
    names = ("p", "g", *rule.state)
    with scratch() as graph:
        leaves = [REGISTRY["input"](name, (4,)) for name in (*names, *rule.scalars)]
        given = dict(zip(rule.scalars, leaves[len(names) :], strict=True))
        results = rule.form(*leaves[: len(names)], **given)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != count or not all(isinstance(r, Value) and r.type == TensorType((4,)) for r in results):
            shown = ", ".join(str(r.type) if isinstance(r, Value) else type(r).__name__ for r in results)
            raise ArgumentError(where, "form", f"({shown})", f"{count} values of the parameter's shape: it, its states")
        graph.set_outputs(list(results))
        terms = terms_of(graph, [False] * len(graph))
        wanted = [terms.term_of[r.id] for r in results]
    place: dict[int, Arg] = {terms.term_of[leaf.id]: Arg("operand", k) for k, leaf in enumerate(leaves)}
    lines: list[PointOp] = []
    needed = _needed(terms, wanted)
    for term in terms.terms:
        if term.id in place or term.id not in needed:
            continue
        kernel = term.op.kernel
        if not isinstance(kernel, Elementwise):
            raise ArgumentError(where, "form", f"{term.op.name}", "elementwise ops of the registry alone")
        args = tuple(_arg(view, place) for view in terms.reads[term.id])
        place[term.id] = Arg("op", len(lines))
        lines.append(PointOp(term.op.name, kernel.expr, term.op.operands, args, term.attrs, term.node))
    return TracedForm(tuple(lines), tuple(_arg(terms.views[t], place) for t in wanted))


def _needed(terms: Terms, wanted: list[int]) -> set[int]:
    """Return the stored terms that the wanted ones are computed from."""
    found, stack = set[int](), [terms.views[t].term for t in wanted]
    while stack:
        term = stack.pop()
        if term >= 0 and term not in found:
            found.add(term)
            reads = terms.reads[term]
            stack += [v.term for v in reads] if reads else [terms.base[i] for i in terms.terms[term].inputs]
    return found


def _arg(view: View, place: dict[int, Arg]) -> Arg:
    return Arg("literal", value=view.value) if view.is_literal else place[view.term]
