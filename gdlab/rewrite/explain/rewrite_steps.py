"""Turn a choice of e-nodes into steps: walk it children first, and name the rule behind every change.

A class keeps one node. A node that was made by rules comes about by the shortest derivation of its e-node, one step for
each firing; the other nodes of its class hand their readers over to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from gdlab.graph import Node
from gdlab.ops.packed import PACKED
from gdlab.rewrite.engine.eclasses import EClasses, Firing
from gdlab.rewrite.engine.encoded_rows import Key
from gdlab.rewrite.explain.basis import Basis, Explained, Note, shortest
from gdlab.rewrite.explain.mutable_graph import MutableGraph
from gdlab.rewrite.extract.problem import Prices
from gdlab.rewrite.rules.pattern import Rule

__all__ = ["Explained", "explain"]


class Move(NamedTuple):
    """A firing about to become a step: the nodes that stand for its root, the replaceable ones, and their successor."""

    firing: Firing
    at: Sequence[int]
    movable: Sequence[int]
    to: int


def explain(
    graph: MutableGraph, classes: EClasses, rules: Sequence[Rule], chosen: Mapping[int, Key], live: Sequence[int],
    component: Sequence[int], prices: Prices, seen: Sequence[int | None], given: Mapping[int, Rule],
) -> Explained:  # fmt: skip
    """Carry out the choice in the graph, and return the notes of it. `chosen` is the e-node of every live class, `live`
    their order; `given` are the rules without a pattern, by the numbers below 0 that their firings have."""
    walk = _Walk(graph, classes, rules, chosen, component, prices, seen, given)
    node_of, nodes, rep = walk.node_of, walk.nodes, walk.done.rep
    for c in live:
        keep = node_of.get(chosen[c])
        if keep is not None and nodes[c] == [keep]:  # as most are
            rep[c] = keep
        else:
            walk.settle(c)
    return walk.done


class _Walk:
    def __init__(
        self, graph: MutableGraph, classes: EClasses, rules: Sequence[Rule], chosen: Mapping[int, Key],
        component: Sequence[int], prices: Prices, seen: Sequence[int | None], given: Mapping[int, Rule],
    ) -> None:  # fmt: skip
        self.graph, self.classes, self.rules, self.chosen = graph, classes, rules, chosen
        self.component, self.prices, self.seen, self.given = component, prices, seen, given
        self.best = shortest(classes)
        self.nodes = list(classes.nodes)  # per class, those of the graph first
        self.node_of = {key: id for id, key in reversed(classes.key_of.items())}  # the first of every e-node
        self.added: dict[int, tuple[Key, int]] = {}  # added node -> e-node, class
        self.places: dict[int, Places] = {}  # by rule
        self.of_class: dict[int, list[Firing]] | None = None
        self.size = self.fresh = len(graph.graph)
        self.basis = Basis(classes.key_of, self.best, rules, given)
        self.done = Explained(basis=self.basis, size=self.size)
        self.current = -1

    def settle(self, c: int) -> None:
        """Give class c the node of its chosen e-node, and let the readers of its other nodes read that one."""
        key, self.current = self.chosen[c], c
        if key not in self.node_of:
            self.derive(key)
        keep = self.done.rep[c] = self.node_of[key]
        k = 0
        while k < len(self.nodes[c]):  # it grows: derivations add to it
            id = self.nodes[c][k]
            if id != keep and self.graph.readers[id]:
                self.hand_over(id, keep)
            k += 1

    def _key(self, id: int) -> Key:
        return self.classes.key_of[id] if id < self.size else self.added[id][0]

    def _home(self, id: int) -> int:
        """Return the class of a node; −1 where it has none."""
        return self.classes.class_of.get(id, -1) if id < self.size else self.added[id][1]

    # deriving a node ------------------------------------------------------------------------------------------------
    def derive(self, key: Key) -> None:
        """Make a node for an e-node that rules made, by the steps that lead to it."""
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
        """Return the e-nodes that need a node before the firing can become a step."""
        lost = None if self.nodes[f.root] else f.left[-1]  # a class without a node: the step has to stand somewhere
        inner = [k for k in f.left if k not in self.node_of and (self._may_replace(k) or k == lost)]
        empty = [c for c in (*f.env, *self._read_again(f)) if not self.nodes[c]]
        # of such a class the e-node that came first: a later one may stand on this very firing
        made = [[k for k in self.classes.enodes[c] if k in self.best] for c in empty]
        return inner + [min(keys, key=self.rank.__getitem__) for keys in made]

    @cached_property
    def rank(self) -> dict[Key, int]:
        """The place of every e-node that rules made in the order of derivations: each needs only earlier ones."""
        return {key: i for i, key in enumerate(self.best)}

    def _read_again(self, f: Firing) -> list[int]:
        """Return the classes of the left side's ops that the right side reads."""
        return [c for row in self._operands(f) for i, c in row if i < 0 and c not in f.env]

    def _may_replace(self, key: Key) -> bool:
        """Return whether readers may move to this e-node before the end: not when its class will keep another one."""
        f = self.best.get(key)
        return f is not None and (f.root == self.current or self.chosen.get(f.root, key) == key)

    def apply(self, f: Firing) -> int:
        """Carry out one step: add the right side's nodes, and let the root replace the nodes that the left side
        matched; products that are packed together do so together."""
        moves, added = list[Move](), list[Node]()
        for g in (f, *self._beside(f)):
            at = [id for id in self.nodes[g.root] if self._key(id) == g.left[-1]] or list(self.nodes[g.root])
            added += self._right_side(g, at)
            to = self.node_of[g.right[-1]]
            movable = [id for id in at if id != to and not self._would_close(id, to)]
            moves.append(Move(g, at, movable if self._may_replace(g.right[-1]) else [], to))
        self._record(added, *moves)
        return moves[0].to

    def _beside(self, f: Firing) -> list[Firing]:
        """Return the firings for the other products of a pack whose columns are chosen and have no node yet."""
        if f.rule >= 0 or not f.env:
            return []
        pack = (g for g in self.classes.firings if (g.rule, g.env) == (f.rule, f.env) and g != f)
        return [g for g in pack if self.chosen.get(g.root) == g.right[-1] and g.right[-1] not in self.node_of]

    def _right_side(self, f: Firing, at: Sequence[int]) -> list[Node]:
        """Append the missing nodes of the right side to the graph, and return them."""
        root = self._root(at)
        added: list[Node] = []
        made: list[int] = []
        for key, operands in zip(f.right, self._operands(f), strict=True):
            inputs = tuple([made[i] if i >= 0 else self._node(c) for i, c in operands])
            made.append(self._place(key, inputs, f, root, added))
        return added

    def _place(self, key: Key, inputs: tuple[int, ...], f: Firing, root: int, added: list[Node]) -> int:
        if key in self.node_of:
            return self.node_of[key]
        op, _, numbers = key
        classes, types = self.classes, self.classes.types
        c = classes.home[key]
        attrs = self.prices.inference.attrs(op, numbers)
        name = self.graph.nodes[root].name if key == f.right[-1] and root >= 0 else ""
        if op == PACKED:  # the storage of its operands bears their names
            name = "+".join(self.graph.nodes[i].name for i in inputs)
        node = Node(self.fresh, op, inputs, attrs, classes.type_list[types[c]], name)
        self.fresh += 1
        cost, _ = self.prices.price(op, numbers, types[c], tuple([types[self._home(i)] for i in inputs]))
        self.graph.add(node, cost)
        self.node_of[key], self.added[node.id] = node.id, (key, c)
        self.nodes[c] = [*self.nodes[c], node.id]
        if root >= 0:
            self.done.root_of[node.id] = self.done.root_of.get(root, root)
        added.append(node)
        return node.id

    def _operands(self, f: Firing) -> list[list[tuple[int, int]]]:
        """Return for every op of the right side its operands as written: (index of an earlier op, or −1; class)."""
        if f.rule < 0:
            return self._wider(f) if len(f.right) > 1 else [[] for _ in f.right]
        if f.rule not in self.places:
            self.places[f.rule] = _places(self.rules[f.rule])
        home, rep = self.classes.home, self.done.rep
        rows = []
        for places in self.places[f.rule]:
            row = []
            for side, i in places:
                if side == "env":
                    row.append((-1, f.env[i]))
                elif side == "left":
                    row.append((-1, home[f.left[i]]))
                else:  # the op just made, where the class has no node of its own yet
                    c = home[f.right[i]]
                    row.append((-1, c) if c in rep else (i, -1))
            rows.append(row)
        return rows

    def _wider(self, f: Firing) -> list[list[tuple[int, int]]]:
        """Return the operands of a packed product's right side (`rules/packing.py`): pack, wider product, columns."""
        left, *weights = f.env
        pack, product = (self.classes.home[key] for key in f.right[:2])
        inner = [(-1, c) if c in self.done.rep else (i, -1) for i, c in enumerate((pack, product))]
        return [[(-1, c) for c in weights], [(-1, left), inner[0]], [inner[1]]]

    def _node(self, c: int) -> int:
        """Return the node that stands for a class at present."""
        return self.done.rep.get(c, self.nodes[c][0] if self.nodes[c] else -1)

    def _root(self, at: Sequence[int]) -> int:
        """Return the replaced node whose name and source are kept: the first with a name, else the first."""
        return next((id for id in at if self.graph.nodes[id].name), at[0] if at else -1)

    # handing readers over -------------------------------------------------------------------------------------------
    def hand_over(self, id: int, keep: int) -> None:
        """Let the readers of `id` read `keep`, by the rules that make both equal, or because they became the same."""
        start, goal = self._key(id), self._key(keep)
        path = [] if start == goal else self._path(start, goal, False)
        for f in path[:-1]:
            if f.right[-1] not in self.node_of:
                self.apply(f)
        if not self.graph.readers[id]:
            return
        path = path or ([] if start == goal else self._path(start, goal, True))
        if path:
            self._record([], Move(path[-1], [id], [id], keep))
        else:
            self.graph.redirect([id], keep, "cse", "CSE", {"kept": keep}, at=[id])
            self.done.notes.append(Note(keep, (id,)))

    def _path(self, start: Key, goal: Key, both_ways: bool) -> list[Firing]:
        """Return the firings that lead from one e-node of the current class to another; empty where there are none."""
        if self.of_class is None:  # few classes are asked for, but those more than once
            self.of_class = {}
            for f in self.classes.firings:
                self.of_class.setdefault(f.root, []).append(f)
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
    def _record(self, added: list[Node], move: Move, *beside: Move) -> None:
        f, at, movable, to = move
        rule, root = self.basis.rule(f), self._root(at)
        bound = zip(rule.variables if f.rule >= 0 else _names(f), f.env, strict=True)
        bindings = {name: id for name, c in bound if (id := self._node(c)) >= 0}
        iteration = self.seen[f.rule] if f.rule >= 0 else None
        places = [root, *(id for id in at if id != root)] if at else []
        places += [id for other in beside for id in other.at]
        pairs = [(id, other.to) for other in beside for id in other.movable]
        pairs += self._inner_pairs(f, added)
        shown = self.graph.redirect(
            movable, to, rule.name, rule.label, bindings, added, iteration, at=places, beside=pairs
        )
        self.done.notes.append(Note(to, tuple(at), f, self.done.root_of.get(root, root), shown))
        self.done.notes += [Note(other.to, tuple(other.at), other.firing) for other in beside]

    def _inner_pairs(self, f: Firing, added: Sequence[Node]) -> list[tuple[int, int]]:
        """Return (old, new) for the operands of a root that is the same e-node on both sides: x · (σ(x) · x) becomes
        x · silu(x) when silu(x) takes the place of σ(x) · x."""
        if not f.right or f.left[-1] != f.right[-1]:
            return []
        made = [(node.id, *self.added[node.id]) for node in added]
        return [(id, new) for new, key, c in made if self.chosen.get(c, key) == key for id in self.nodes[c]
                if id != new and self.graph.readers[id] and not self._would_close(id, new)]  # fmt: skip

    def _would_close(self, old: int, new: int) -> bool:
        """Return whether a reader of `old` lies below `new`; only possible if their class is in a cycle of classes."""
        home = self.component[self._home(old)]
        if home < 0:
            return False
        readers = {reader for reader, port in self.graph.readers[old] if port >= 0}
        stack, seen = [new], {new}
        while stack:
            id = stack.pop()
            if id in readers:
                return True
            for i in self.graph.inputs[id]:
                c = self._home(i)
                if i not in seen and c >= 0 and self.component[c] == home:
                    seen.add(i)
                    stack.append(i)
        return False


Places = tuple[tuple[tuple[Literal["env", "left", "right"], int], ...], ...]


def _places(rule: Rule) -> Places:
    """Return the places of the right side's operands in a firing: a variable, or an op of either side."""
    where: dict[int, tuple[Literal["env", "left", "right"], int]] = {}
    where |= {n.id: ("left", i) for i, n in enumerate(rule.left_nodes)}
    where |= {n.id: ("right", i) for i, n in enumerate(rule.right_nodes)}
    where |= {rule.names[name]: ("env", i) for i, name in enumerate(rule.variables)}
    return tuple(tuple(where[i] for i in node.inputs) for node in rule.right_nodes)


def _names(f: Firing) -> list[str]:
    """Return names for the operands of a rule without a pattern."""
    return [*(["h"] if f.env else []), *(f"w{i}" for i in range(1, len(f.env)))]


def _back(came: Mapping[Key, tuple[Key, Firing] | None], key: Key, last: Firing) -> list[Firing]:
    path = [last]
    while (step := came[key]) is not None:
        key = step[0]
        path.append(step[1])
    return path[::-1]

