"""What a report tells of the way from a graph to its result, worked out when somebody asks: a third of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.graph.replay import SWEEP
from gdlab.rewrite.engine.rows import Firing, Key
from gdlab.rewrite.explain.basis import Explained
from gdlab.rewrite.explain.maps import derivations, node_map, origin, rule_table, rules_fired, stays
from gdlab.rewrite.explain.mutable_graph import Minutes, finish
from gdlab.rewrite.rules.pattern import Rule

__all__ = ["Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """All that the answer is found in, and no more: the collector walks through what a report holds.

    `same` is that of `Prepared`, `class_of`, `key_of` and `firings` are those of `EClasses`; `order` are the stable ids
    of the result's nodes; `counts` are matches, firings and seconds by rule; `given` the rules without a pattern by the
    number of their firings.
    """

    held: Minutes
    same: Sequence[int]
    class_of: Mapping[int, int]
    key_of: Mapping[int, Key]
    firings: Sequence[Firing]
    done: Explained
    order: Sequence[int]
    table: Sequence[Rule]
    off: Mapping[str, object]
    program: Sequence[Rule]
    given: Mapping[int, Rule]
    counts: tuple[Mapping[str, int], Mapping[str, int], Mapping[str, float]]

    def __call__(self) -> dict[str, Any]:
        """The fields of the report by name."""
        done, order, held = self.done, self.order, self.held
        steps = finish(held, order, stays, (SWEEP, SWEEP))
        moved = node_map(self.same, self.class_of, done.rep, order)
        return {
            "steps": steps,
            "rules_fired": rules_fired(steps),
            "fusions_applied": tuple((s.label, done.root_of.get(s.at[0], s.at[0])) for s in steps[:-1] if s.at),
            "node_map": moved,
            "origin": origin(held.nodes[: held.size], self.same, done, order, moved),
            "derivations": derivations(done, order),
            "rules": rule_table(self.table, self.off, self.program, self.firings, set(self.key_of.values()),
                                *self.counts, steps, done, self.given),
        }  # fmt: skip
