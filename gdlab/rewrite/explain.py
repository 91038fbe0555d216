"""From a choice of e-nodes to steps: the choice is walked children first, and every change names the rule behind it.

A class keeps one node. A node that was made by rules comes about by the shortest derivation of its e-node, one step for
each firing; the other nodes of its class hand their readers over to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gdlab.derived import PACKED
from gdlab.graph import Node
from gdlab.rewrite.bench import Bench
from gdlab.rewrite.load import EClasses, Firing, Key, Prices
from gdlab.rewrite.pattern import Rule

__all__ = ["Explained", "explain"]

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


@dataclass
class Explained:
    """What the walk found out: the node of every live class, the firings behind the steps, the root of added nodes."""

    rep: dict[int, int] = field(default_factory=dict)
    used: list[Use] = field(default_factory=list)
    root_of: dict[int, int] = field(default_factory=dict)  # added node -> node that gave it name and source
    consumed: dict[int, set[int]] = field(default_factory=dict)  # node -> nodes of the graph it stands for


def shortest(classes: EClasses) -> dict[Key, Firing]:
    """For every e-node that rules made the firing that ends its shortest derivation (D. Knuth, 1977: a generalization
    of Dijkstra's algorithm)."""
    size: dict[Key, int] = dict.fromkeys(classes.key_of.values(), 0)
    known = {c for c, nodes in enumerate(classes.nodes) if nodes}
    best: dict[Key, Firing] = {}
    waiting: dict[Key | int, list[int]] = {}
    missing = []
    heap: list[tuple[int, int]] = []

    def ready(i: int) -> None:
        left = classes.firings[i].left
        heappush(heap, (1 + sum(size[k] for k in dict.fromkeys(left)), i))

    for i, f in enumerate(classes.firings):
        needs: list[Key | int] = [k for k in f.left if k not in size]
        needs += [c for c in f.env if c not in known]
        if needs:
            needs = list(dict.fromkeys(needs))
            for need in needs:
                waiting.setdefault(need, []).append(i)
        else:
            heap.append((1, i))  # all that it stands on is the graph's own; in order, so this is a heap
        missing.append(len(needs))
    while heap:
        cost, i = heappop(heap)
        f = classes.firings[i]
        fresh: list[Key | int] = []
        for key in f.right:
            if key not in size:
                size[key], best[key] = cost, f
                fresh.append(key)
        homes = {f.root, *(c for key in f.right for c in key[1])}
        fresh += sorted(homes - known)
        known |= homes
        for found in fresh:
            for j in waiting.pop(found, ()):
                missing[j] -= 1
                if not missing[j]:
                    ready(j)
    return best


def explain(
    bench: Bench, classes: EClasses, rules: Sequence[Rule], chosen: Mapping[int, Key], live: Sequence[int],
    component: Sequence[int], prices: Prices, seen: Sequence[int | None], fold: Rule,
) -> Explained:  # fmt: skip
    """Carry the choice out on the bench. `chosen` is the e-node of every live class, `live` their order."""
    walk = _Walk(bench, classes, rules, chosen, component, prices, seen, fold)
    for c in live:
        walk.settle(c)
    return walk.done


class _Walk:
    def __init__(
        self, bench: Bench, classes: EClasses, rules: Sequence[Rule], chosen: Mapping[int, Key],
        component: Sequence[int], prices: Prices, seen: Sequence[int | None], fold: Rule,
    ) -> None:  # fmt: skip
        self.bench, self.classes, self.rules, self.chosen = bench, classes, rules, chosen
        self.component, self.prices, self.seen, self.fold = component, prices, seen, fold
        self.best = shortest(classes)
        self.nodes = [list(ids) for ids in classes.nodes]  # per class, those of the graph first
        self.key_of = dict(classes.key_of)
        self.node_of: dict[Key, int] = {}
        self.written: dict[Key, list[int]] = {}  # nodes of the graph by their e-node
        for id in sorted(self.key_of):
            self.written.setdefault(self.key_of[id], []).append(id)
            self.node_of.setdefault(self.key_of[id], id)
        self.home = dict(classes.class_of)  # node -> class
        self.of_class: dict[int, list[Firing]] = {}
        for f in classes.firings:
            self.of_class.setdefault(f.root, []).append(f)
        self.done = Explained()
        self.size = self.fresh = len(bench.graph)
        self.current = -1

    def settle(self, c: int) -> None:
        """Give class c the node of its chosen e-node, and hand it the readers of the others."""
        key, self.current = self.chosen[c], c
        if key not in self.node_of:
            self.derive(key)
        keep = self.done.rep[c] = self.node_of[key]
        for id in self.nodes[c]:  # it grows: derivations add to it
            if id != keep and self.bench.readers[id]:
                self.hand_over(id, keep)

    # deriving a node ------------------------------------------------------------------------------------------------
    def derive(self, key: Key) -> None:
        """Make a node for an e-node that rules made, and the steps that lead there."""
        stack, opened = [key], set()
        while stack:
            k = stack[-1]
            if k in self.node_of or k not in self.best:
                stack.pop()
            elif k not in opened:
                opened.add(k)
                stack += reversed([n for n in self._before(self.best[k]) if n not in opened])
            else:
                stack.pop()
                self.apply(self.best[k])

    def _before(self, f: Firing) -> list[Key]:
        """E-nodes that need a node before the firing can be shown."""
        lost = None if self.nodes[f.root] else f.left[-1]  # a class without a node: the step has to stand somewhere
        inner = [k for k in f.left if k not in self.node_of and (self._may_replace(k) or k == lost)]
        empty = [c for c in f.env if not self.nodes[c]]
        return inner + [min(k for k in self.classes.enodes[c] if k in self.best) for c in empty]

    def _may_replace(self, key: Key) -> bool:
        """Whether readers may move to this e-node on the way: not away from what its class will keep."""
        f = self.best.get(key)
        return f is not None and (f.root == self.current or self.chosen.get(f.root, key) == key)

    def apply(self, f: Firing) -> int:
        """One step: add the right side's nodes, and let the root replace the nodes that the left side matched."""
        at = [id for id in self.nodes[f.root] if self.key_of[id] == f.left[-1]] or list(self.nodes[f.root])
        added = self._right_side(f, at)
        to = self.node_of[f.right[-1]]
        movable = [id for id in at if id != to and not self._would_close(id, to)]
        if not self._may_replace(f.right[-1]):
            movable = []
        self._record(f, at, movable, to, added)
        return to

    def _right_side(self, f: Firing, at: Sequence[int]) -> list[Node]:
        """The nodes of the right side that are not there yet, on the bench."""
        root = self._root(at)
        added: list[Node] = []
        made: dict[int, int] = {}
        for key, operands in zip(f.right, self._operands(f), strict=True):
            inputs = tuple([made[i] if i in made else self._node(c) for i, c in operands])
            made[len(made) - len(f.right)] = self._place(key, inputs, f, root, added)
        return added

    def _place(self, key: Key, inputs: tuple[int, ...], f: Firing, root: int, added: list[Node]) -> int:
        if key in self.node_of:
            return self.node_of[key]
        op, operands, numbers = key
        c = self.classes.home[key]
        attrs = self.prices.attrs(op, numbers)
        name = self.bench.nodes[root].name if key == f.right[-1] and root >= 0 else ""
        if op == PACKED:  # the storage of its operands bears their names
            name = "+".join(self.bench.nodes[i].name for i in inputs)
        node = Node(self.fresh, op, inputs, attrs, self.classes.types[c], name)
        self.fresh += 1
        self.bench.add(node)
        self.node_of[key], self.key_of[node.id], self.home[node.id] = node.id, key, c
        self.nodes[c].append(node.id)
        if root >= 0:
            self.done.root_of[node.id] = self.done.root_of.get(root, root)
        added.append(node)
        return node.id

    def _operands(self, f: Firing) -> list[list[tuple[int, int]]]:
        """For every op of the right side its operands as written: (index of an earlier op − count, class)."""
        if f.rule < 0:
            return [[] for _ in f.right]
        rule = self.rules[f.rule]
        classes = dict(zip(rule.variables, f.env, strict=True))
        index = {n.id: i - len(f.right) for i, n in enumerate(rule.right_nodes)}
        left = {n.id: key for n, key in zip(rule.left_nodes, f.left, strict=True)}
        rows = []
        for node in rule.right_nodes:
            row = []
            for i in node.inputs:
                inner = rule.pattern.node(i)
                if inner.op == "var":
                    row.append((0, classes[inner.attr("name")]))
                elif i in index and self.done.rep.get(self.classes.home[f.right[index[i]]]) is None:
                    row.append((index[i], -1))
                else:
                    key = f.right[index[i]] if i in index else left[i]
                    row.append((0, self.classes.home[key]))
            rows.append(row)
        return rows

    def _node(self, c: int) -> int:
        """The node that stands for a class now."""
        return self.done.rep.get(c, self.nodes[c][0] if self.nodes[c] else -1)

    def _root(self, at: Sequence[int]) -> int:
        """The replaced node that gives name and source: the first with a name, else the first."""
        return next((id for id in at if self.bench.nodes[id].name), at[0] if at else -1)

    # handing readers over -------------------------------------------------------------------------------------------
    def hand_over(self, id: int, keep: int) -> None:
        """Let the readers of `id` read `keep`, by the rules that make them equal, or because they became the same."""
        start, goal = self.key_of[id], self.key_of[keep]
        path = [] if start == goal else self._path(start, goal, False)
        for f in path[:-1]:
            if f.right[-1] not in self.node_of:
                self.apply(f)
        if not self.bench.readers[id]:
            return
        path = path or ([] if start == goal else self._path(start, goal, True))
        if path:
            self._record(path[-1], [id], [id], keep, [])
        else:
            self.bench.redirect([id], keep, "cse", "CSE", {"kept": keep}, at=[id])
            self._stands_for(keep, [id])

    def _path(self, start: Key, goal: Key, both_ways: bool) -> list[Firing]:
        """The firings that lead from one e-node of the current class to another; empty where there are none."""
        came: dict[Key, tuple[Key, Firing] | None] = {start: None}
        front = [start]
        while front:
            key = front.pop(0)
            for f in self.of_class.get(self.current, ()):
                if f.left[-1] == key:
                    to = f.right[-1] if f.right else goal
                elif both_ways and f.right and f.right[-1] == key:
                    to = f.left[-1]
                else:
                    continue
                if to == goal:
                    return _back(came, key, f)
                if to not in came:
                    came[to] = key, f
                    front.append(to)
        return []

    # writing down ---------------------------------------------------------------------------------------------------
    def _record(self, f: Firing, at: Sequence[int], movable: Sequence[int], to: int, added: list[Node]) -> None:
        rule = self.fold if f.rule < 0 else self.rules[f.rule]
        root = self._root(at)
        bound = zip(rule.variables, f.env, strict=True) if f.rule >= 0 else ()
        bindings = {name: self._node(c) for name, c in bound if self._node(c) >= 0}
        iteration = self.seen[f.rule] if f.rule >= 0 else None
        places = [root, *(id for id in at if id != root)] if at else []
        consumed, chain = self._basis(f)
        if self.bench.redirect(movable, to, rule.name, rule.label, bindings, added, iteration, at=places):
            self.done.used.append(Use(f, to, self.done.root_of.get(root, root), tuple(consumed), tuple(chain)))
        self._stands_for(to, [*at, *consumed])

    def _stands_for(self, keep: int, ids: Iterable[int]) -> None:
        own = self.done.consumed.setdefault(keep, set())
        for id in ids:
            if id != keep:
                own |= self.done.consumed.get(id, NOTHING)
                if id < self.size:
                    own.add(id)

    def _basis(self, f: Firing) -> tuple[list[int], list[str]]:
        """The nodes of the graph that the left side of a firing stands on, and the labels of all rules on the way."""
        found: list[int] = []
        labels: list[str] = []
        stack, seen = [f], {f}
        while stack:
            f = stack.pop()
            labels.append((self.fold if f.rule < 0 else self.rules[f.rule]).label)
            for key in f.left:
                if key in self.written:
                    found += self.written[key][:CONGRUENT]
                elif key in self.best and self.best[key] not in seen:
                    seen.add(self.best[key])
                    stack.append(self.best[key])
        return found, labels[::-1]

    def _would_close(self, old: int, new: int) -> bool:
        """Whether a reader of `old` lies below `new`: only where their class is in a cycle of classes."""
        home = self.component[self.home[old]]
        if home < 0:
            return False
        readers = {reader for reader, port in self.bench.readers[old] if port >= 0}
        stack, seen = [new], {new}
        while stack:
            id = stack.pop()
            if id in readers:
                return True
            for i in self.bench.inputs[id]:
                if i not in seen and i in self.home and self.component[self.home[i]] == home:
                    seen.add(i)
                    stack.append(i)
        return False


def _back(came: Mapping[Key, tuple[Key, Firing] | None], key: Key, last: Firing) -> list[Firing]:
    path = [last]
    while (step := came[key]) is not None:
        key = step[0]
        path.append(step[1])
    return path[::-1]

