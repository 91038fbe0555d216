"""Derive e-nodes: the shortest derivation of each, and the notes of the walk that turns them into steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush

from gdlab.rewrite.engine.eclasses import EClasses, Firing
from gdlab.rewrite.engine.encoded_rows import Key
from gdlab.rewrite.rules.pattern import Rule

__all__ = ["Basis", "Explained", "Note", "Use", "shortest"]

CONGRUENT = 32  # nodes of one e-node that a firing is said to stand on: a chain of relus is one, whatever its length
NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Use:
    """A firing behind a step: the node it led to, the root it replaced, the nodes it stands on, the labels so far."""

    firing: Firing
    to: int
    root: int
    consumed: tuple[int, ...]
    chain: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A note of the walk: the node added, the nodes it replaced, and the firing behind it (None: they became the same).
    `shown`: a step was made of it."""

    to: int
    at: tuple[int, ...]
    firing: Firing | None = None
    root: int = -1
    shown: bool = False


@dataclass(frozen=True)
class Basis:
    """The nodes and firings that derivations are made of. `key_of`: the e-nodes of the graph's nodes; `best`: the
    firings that make the others."""

    key_of: Mapping[int, Key]
    best: Mapping[Key, Firing]
    rules: Sequence[Rule]
    given: Mapping[int, Rule]

    @cached_property
    def written(self) -> dict[Key, list[int]]:
        """The nodes of the graph by their e-node."""
        written: dict[Key, list[int]] = {}
        for id, key in self.key_of.items():
            written.setdefault(key, []).append(id)
        return written

    def rule(self, f: Firing) -> Rule:
        """Return the rule of a firing."""
        return self.given[f.rule] if f.rule < 0 else self.rules[f.rule]

    def of(self, f: Firing) -> tuple[list[int], list[str]]:
        """Return the nodes of the graph below the left side of a firing, and the labels of all rules between."""
        nodes: list[int] = []
        labels: list[str] = []
        stack, seen = [f], {f}
        while stack:
            f = stack.pop()
            labels.append(self.rule(f).label)
            for key in f.left:
                if key in self.written:
                    nodes += self.written[key][:CONGRUENT]
                elif key in self.best and self.best[key] not in seen:
                    seen.add(self.best[key])
                    stack.append(self.best[key])
        return nodes, labels[::-1]


@dataclass
class Explained:
    """The result of the walk: the node of every live class, the root of added nodes; on request, the firings behind the
    steps and the nodes that each node stands for."""

    rep: dict[int, int] = field(default_factory=dict)
    root_of: dict[int, int] = field(default_factory=dict)  # added node -> node that gave it name and source
    notes: list[Note] = field(default_factory=list)
    basis: Basis | None = None
    size: int = 0  # nodes of the graph

    @cached_property
    def used(self) -> list[Use]:
        """The firings behind the steps."""
        return self._derived[0]

    @cached_property
    def consumed(self) -> dict[int, set[int]]:
        """The nodes of the graph that each node stands for."""
        return self._derived[1]

    @cached_property
    def _derived(self) -> tuple[list[Use], dict[int, set[int]]]:
        used: list[Use] = []
        stands: dict[int, set[int]] = {}
        for note in self.notes:
            ids: Sequence[int] = note.at
            if note.firing is not None and self.basis is not None:
                nodes, chain = self.basis.of(note.firing)
                ids = [*note.at, *nodes]
                if note.shown:
                    used.append(Use(note.firing, note.to, note.root, tuple(nodes), tuple(chain)))
            own = stands.setdefault(note.to, set())
            for id in ids:
                if id != note.to:
                    own |= stands.get(id, NOTHING)
                    if id < self.size:
                        own.add(id)
        return used, stands


def shortest(classes: EClasses) -> dict[Key, Firing]:
    """Map every e-node that rules made to the last firing of its shortest derivation (D. Knuth, 1977: a generalization
    of Dijkstra's algorithm)."""
    size: dict[Key, int] = dict.fromkeys(classes.key_of.values(), 0)
    first = next((c for c, nodes in enumerate(classes.nodes) if not nodes), len(classes.nodes))
    known: set[int] = set()  # of the classes from `first` on, which hold no nodes of the graph
    best: dict[Key, Firing] = {}
    waiting: dict[Key | int, list[int]] = {}
    missing: dict[int, int] = {}
    at_once: list[int] = []  # firings that stand on the graph's own e-nodes: they come first, at cost 1
    heap: list[tuple[int, int]] = []
    firings = classes.firings
    for i, f in enumerate(firings):
        needs: list[Key | int] = [k for k in f.left if k not in size]
        needs += [c for c in f.env if c >= first]
        if needs:
            needs = list(dict.fromkeys(needs))
            for need in needs:
                waiting.setdefault(need, []).append(i)
            missing[i] = len(needs)
        else:
            at_once.append(i)
    at_once.reverse()
    while at_once or heap:
        if at_once and (not heap or (1, at_once[-1]) < heap[0]):
            cost, i = 1, at_once.pop()
        else:
            cost, i = heappop(heap)
        f = firings[i]
        fresh: list[Key | int] = []
        for key in f.right:
            if key not in size:
                size[key], best[key] = cost, f
                fresh.append(key)
        homes = {c for key in f.right for c in key[1] if c >= first} - known
        if f.root >= first and f.root not in known:
            homes.add(f.root)
        known |= homes
        for reached in [*fresh, *sorted(homes)] if waiting else ():
            for j in waiting.pop(reached, ()):
                missing[j] -= 1
                if not missing[j]:
                    heappush(heap, (1 + sum([size[k] for k in dict.fromkeys(firings[j].left)]), j))
    return best
