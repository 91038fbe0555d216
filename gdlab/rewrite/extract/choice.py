"""Choose one e-node per class so that the graph costs least, each shared value paid once: local search from the input.

Costs are integers, so every move is exact. No move may raise the flops of products, and no choice may close a cycle.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gdlab.rewrite.extract.cycles import cheapest_trees, classes_below

__all__ = ["Choice", "Problem", "Search", "extract"]

PASSES = 6
SMALL = 16  # classes with a choice, up to which the optimum is looked for by branch and bound …
BRANCHES = 1000  # … of so many branches
WALK = 16  # classes that *adopt* and *eliminate* look at above one candidate
Plan = list[tuple[int, int]]  # (class, e-node) re-points, in order


@dataclass(frozen=True)
class Problem:
    """A problem of extraction: classes 0 … n − 1, where `of_class[c]` lists e-nodes, and the first of every class
    together are acyclic (the start). Per e-node: `children` (distinct classes), `cost`, `heavy` (flops of products)."""

    of_class: Sequence[Sequence[int]]
    children: Sequence[tuple[int, ...]]
    cost: Sequence[int]
    heavy: Sequence[int]
    roots: Sequence[int]
    below: Sequence[tuple[int, ...]] = ()  # per class the classes that its e-nodes read, each once; () to be worked out

    def __post_init__(self) -> None:
        if not self.below:
            object.__setattr__(self, "below", classes_below(self.of_class, self.children))


@dataclass(frozen=True)
class Choice:
    """The e-node of every class, the live classes (children first), and costs of start and result."""

    enode: Sequence[int]
    live: tuple[int, ...]
    cost_before: int
    cost_after: int
    failures: int
    late: bool


def extract(problem: Problem, component: Sequence[int], seconds: float | None = None) -> Choice:
    """Return the cheapest choice that local search finds; never worse than the start. `component`: see `components`."""
    search = Search(problem, component, seconds)
    before = search.total
    moves = (search.prepare, search.switch, search.unblock, search.eliminate, search.adopt)
    quiet = [-1] * len(moves)  # number of changes when a move last found nothing to do
    for _ in range(PASSES):
        at = search.total
        for k, move in enumerate(moves):
            changes = search.changes
            if quiet[k] != changes:
                move()
                quiet[k] = changes if search.changes == changes else -1
        if search.total == at or search.late:
            break
    start = [enodes[0] if enodes else -1 for enodes in problem.of_class]
    if len(search.open) <= SMALL and not search.late:
        search.choice = branch_and_bound(problem, search.choice, search.total)
    order = live_order(problem, search.choice)
    cost = sum(problem.cost[search.choice[c]] for c in order or ())
    if order is None or cost > before:
        order = live_order(problem, start) or ()
        return Choice(start, order, before, before, 1, search.late)
    return Choice(search.choice, order, before, cost, 0, search.late)


def branch_and_bound(problem: Problem, choice: Sequence[int], total: int) -> list[int]:
    """Improve the choice by branch and bound: local search misses optima where several classes must change at once.

    From the roots down, cheapest e-node first; a branch ends where what is decided and the least of what is pending
    costs as much as the best so far. It gives up after `BRANCHES`.
    """
    start = [enodes[0] if enodes else -1 for enodes in problem.of_class]
    order = live_order(problem, start) or ()
    limit = sum(problem.heavy[start[c]] for c in order)
    settled = bytearray(len(start))  # nothing below is to be chosen: decided at once, for all branches that follow
    for c in order:
        settled[c] = len(problem.of_class[c]) == 1 and all(settled[k] for k in problem.children[start[c]])
    least = [min((problem.cost[e] for e in enodes), default=0) for enodes in problem.of_class]
    roots = tuple(dict.fromkeys(problem.roots))
    best, branches = list(choice), 0
    of_class, children = problem.of_class, problem.children
    # among decided classes, -1 marks the pending ones
    stack = [(dict.fromkeys(roots, -1), [*roots], sum(least[c] for c in roots), 0)]
    while stack and branches < BRANCHES:
        decided, pending, bound, heavy = stack.pop()
        bare = [c for c in pending if settled[c]]
        pending = [c for c in pending if not settled[c]]
        while bare or (pending and len(of_class[pending[-1]]) == 1):  # no choice, no branch: decided in place
            c = bare.pop() if bare else pending.pop()
            (e,) = of_class[c]
            decided[c] = e
            heavy += problem.heavy[e]
            for k in children[e]:
                if k not in decided:
                    decided[k] = -1
                    bound += least[k]
                    (bare if settled[k] else pending).append(k)
        if bound >= total or heavy > limit:
            continue
        if not pending:
            found = [decided.get(c, e) for c, e in enumerate(start)]  # dormant classes lead to live ones, never back
            if live_order(problem, found) is not None:
                best, total = found, bound
            continue
        c, rest = pending[-1], pending[:-1]
        branches += len(of_class[c]) > 1
        for e in sorted(of_class[c], key=lambda e: -problem.cost[e]):
            fresh = [k for k in children[e] if k not in decided]
            more = problem.cost[e] - least[c] + sum([least[k] for k in fresh])
            taken = {**decided, c: e, **dict.fromkeys(fresh, -1)}
            stack.append((taken, rest + fresh, bound + more, heavy + problem.heavy[e]))
    return best


def live_order(problem: Problem, choice: Sequence[int]) -> tuple[int, ...] | None:
    """Return the classes that the roots reach, children first, in a fixed order; None when the choice has a cycle."""
    children, order = problem.children, list[int]()
    state = bytearray(len(choice))  # 1: open, 2: done
    stack = [*reversed(problem.roots)]  # a class to enter, or ~class to leave
    while stack:
        c = stack.pop()
        if c < 0:
            state[~c] = 2
            order.append(~c)
        elif state[c] == 1:
            return None
        elif state[c] == 0:
            below = children[choice[c]]
            state[c] = 1
            stack.append(~c)
            stack += below[::-1]
    return tuple(order)


class Search:
    """A choice under change: every class's e-node, its number of live readers (dormant: none), and the live cost."""

    def __init__(self, problem: Problem, component: Sequence[int], seconds: float | None) -> None:
        self.of_class, self.children = problem.of_class, problem.children
        self.cost, self.heavy, self.component = problem.cost, problem.heavy, component
        self.choice = [enodes[0] if enodes else -1 for enodes in self.of_class]
        self.roots = frozenset(problem.roots)
        self.ref = [0] * len(self.of_class)
        self.users: list[list[int]] = [[] for _ in self.of_class]  # classes with an e-node that reads it
        for c, below in enumerate(problem.below):
            for k in below:
                self.users[k].append(c)
        self.open = [c for c, enodes in enumerate(self.of_class) if len(enodes) > 1]
        self.deadline = None if seconds is None else time.perf_counter() + seconds
        self.late, self.attempts, self.changes, self.gained_heavy = False, 0, 0, 0
        self.total = self._count(list(dict.fromkeys(problem.roots)), 1)

    def _count(self, stack: list[int], sign: int) -> int:
        """Add (or drop) one reference to each class, and return the change of the live cost."""
        ref, choice, delta = self.ref, self.choice, 0
        edge = 1 if sign > 0 else 0
        while stack:
            c = stack.pop()
            ref[c] += sign
            if ref[c] == edge:
                e = choice[c]
                delta += sign * self.cost[e]
                self.gained_heavy += sign * self.heavy[e]
                stack += self.children[e]
        return delta

    def _point(self, c: int, e: int) -> int:
        old = self.choice[c]
        self.choice[c] = e
        if not self.ref[c]:
            return 0
        self.gained_heavy += self.heavy[e] - self.heavy[old]
        # first add, then drop: shared cones are not torn down and built again
        kept, lost = self.children[e], self.children[old]
        gain = self.cost[e] - self.cost[old]
        if kept != lost:
            gain += self._count([*kept], 1) + self._count([*lost], -1)
        return gain

    def _closes_cycle(self, c: int, e: int) -> bool:
        """Return whether class c is reached from e's children; only possible in one strongly connected component."""
        home = self.component[c]
        if home < 0:
            return False
        stack, seen = [k for k in self.children[e] if self.component[k] == home], set()
        while stack:
            k = stack.pop()
            if k == c:
                return True
            if k not in seen:
                seen.add(k)
                stack += [j for j in self.children[self.choice[k]] if self.component[j] == home]
        return False

    def _tick(self) -> None:
        self.attempts += 1
        if self.deadline is not None and self.attempts % 256 == 0:
            self.late = self.late or time.perf_counter() > self.deadline

    def attempt(self, plan: Plan, *, keep: bool) -> int | None:
        """Carry out a plan, and return the change of cost; None if not allowed. Undone unless `keep` and it pays."""
        self._tick()
        self.gained_heavy = 0
        undo: Plan = []
        gain = self._carry_out(plan, undo)
        if gain is None:
            return None
        allowed = self.gained_heavy <= 0
        if keep and allowed and gain < 0:
            self.total += gain
            self.changes += 1
            return gain
        self._undo(undo)
        return gain if allowed else None

    def _carry_out(self, plan: Plan, undo: Plan) -> int | None:
        """Carry out a plan, add its reversal to `undo`, return the change of cost; None, and no change, for a cycle."""
        gain, before = 0, len(undo)
        for c, e in plan:
            if self._closes_cycle(c, e):
                self._undo(undo, before)
                return None
            undo.append((c, self.choice[c]))
            gain += self._point(c, e)
        return gain

    def _undo(self, undo: Plan, keep: int = 0) -> None:
        """Take back re-points, the last one first, until `keep` are left."""
        while len(undo) > keep:
            self._point(*undo.pop())

    def _promising(self, c: int) -> list[int]:
        """Return the e-nodes that can make a live class cost less: cheaper ones, and those that free a child."""
        cost, children = self.cost, self.children
        old = self.choice[c]
        most = cost[old]
        dying = [k for k in children[old] if self.ref[k] == 1]
        if not dying:
            return [e for e in self.of_class[c] if cost[e] < most]
        return [e for e in self.of_class[c] if cost[e] < most or any(k not in children[e] for k in dying)]

    def _best(self, c: int, enodes: Iterable[int], part: bool = False) -> tuple[int, int] | None:
        """Return (gain, e-node) of the best single re-point of class c among `enodes`, the first of equals; no change.

        As a `part` of a plan it may raise the flops of products: the rest of the plan may lower them again.
        """
        ref, cost, heavy, children = self.ref, self.cost, self.heavy, self.children
        old, cyclic = self.choice[c], self.component[c] >= 0
        lost = children[old]
        best: tuple[int, int] | None = None
        for e in enodes:
            gain = flops = 0
            if e != old:
                self._tick()
                if cyclic and self._closes_cycle(c, e):
                    continue
                if ref[c]:
                    gain, flops, kept = cost[e] - cost[old], heavy[e] - heavy[old], children[e]
                    if kept != lost:
                        # classes that both read do not change; of the others mostly none becomes live or dead
                        fresh, gone = [k for k in kept if k not in lost], [k for k in lost if k not in kept]
                        if 0 in [ref[k] for k in fresh] or 1 in [ref[k] for k in gone]:
                            more, work = self._cones(fresh, gone)
                            gain, flops = gain + more, flops + work
            if (part or flops <= 0) and (best is None or gain < best[0]):
                best = gain, e
        return best

    def _cones(self, fresh: list[int], gone: list[int]) -> tuple[int, int]:
        """Return the change of cost and of flops of products if `fresh` got a reader more and then `gone` one less."""
        ref, choice, children = self.ref, self.choice, self.children
        change: dict[int, int] = {}
        cost = heavy = 0
        while fresh:
            c = fresh.pop()
            change[c] = now = change.get(c, 0) + 1
            if ref[c] + now == 1:
                e = choice[c]
                cost += self.cost[e]
                heavy += self.heavy[e]
                fresh += children[e]
        while gone:
            c = gone.pop()
            change[c] = now = change.get(c, 0) - 1
            if ref[c] + now == 0:
                e = choice[c]
                cost -= self.cost[e]
                heavy -= self.heavy[e]
                gone += children[e]
        return cost, heavy

    def prepare(self) -> None:
        """Give every dormant class the e-node that would be best if it were read."""
        for c in self.open:
            if self.late:
                return
            if not self.ref[c]:
                self._count([c], 1)
                best = self._best(c, self._promising(c))
                if best is not None and best[0] < 0:
                    self._point(c, best[1])
                    self.changes += 1
                self._count([c], -1)

    def switch(self) -> None:
        """Give every live class the e-node that gains most by itself."""
        for c in self.open:
            if self.late:
                return
            if self.ref[c]:
                best = self._best(c, self._promising(c))
                if best is not None and best[0] < 0:
                    self.attempt([(c, best[1])], keep=True)

    def unblock(self) -> None:
        """Give a live class an e-node that leads back to it, after the classes below (first the dormant ones, then all)
        took their cheapest trees."""
        for c in self.open:
            if self.late:
                return
            if not self.ref[c] or self.component[c] < 0:
                continue
            for e in self._promising(c):
                if e != self.choice[c] and self._closes_cycle(c, e):
                    for live in (False, True):
                        plan = self._anew(c, e, live)
                        if plan and (self.attempt(plan, keep=True) or 0) < 0:
                            break

    @cached_property
    def trees(self) -> dict[int, int]:
        """The e-nodes of the cheapest trees, computed when something is blocked."""
        return cheapest_trees(self.of_class, self.children, self.cost, self.component)

    def _anew(self, c: int, e: int, live: bool) -> Plan:
        """Plan the cheapest trees below e (of live classes too if `live`), then e; empty where they lead back to c."""
        trees, children = self.trees, self.children
        anew: dict[int, int] = {}
        stack = [e]
        while stack:
            for k in children[stack.pop()]:
                if k == c:
                    return []
                near = k in trees and self.component[k] == self.component[c]
                if near and k not in anew and (live or not self.ref[k]):
                    anew[k] = trees[k]
                    stack.append(trees[k])
        return [*reversed(anew.items()), (c, e)]

    def eliminate(self) -> None:
        """Free a class of all its readers at once: each, or the nearest class above that can, takes another e-node.

        A class without cost and without operands is left: nothing can be saved. So is one that is live whatever is
        chosen.
        """
        for d, e in enumerate(self.choice):
            if self.late:
                return
            if self.ref[d] >= 2 and d not in self.always_live and (self.cost[e] or self.children[e]):
                plan = self._without(self._cuts(d))
                if plan:
                    self.attempt(plan, keep=True)

    @cached_property
    def always_live(self) -> set[int]:
        """The roots, and what classes of one e-node among these read, and so on."""
        found, stack = {*self.roots}, [*self.roots]
        while stack:
            enodes = self.of_class[stack.pop()]
            new = [k for k in self.children[enodes[0]] if k not in found] if len(enodes) == 1 else []
            found.update(new)
            stack += new
        return found

    def _cuts(self, d: int) -> dict[int, list[int]]:
        """Return the classes to re-point so that no live class reads d, each with the e-nodes that it may take.

        A reader without another e-node has to go as well; there are none where a root would have to, or too many.
        """
        ref, choice, children = self.ref, self.choice, self.children
        cuts: dict[int, list[int]] = {}
        gone, front = {d}, [d]
        while front:
            k = front.pop()
            for c in self.users[k]:
                if c in gone or not ref[c] or k not in children[choice[c]]:
                    continue
                if len(self.of_class[c]) > 1:
                    cuts[c] = [e for e in self.of_class[c] if gone.isdisjoint(children[e])]
                    if cuts[c]:
                        continue
                if c in self.roots or len(gone) == WALK:
                    return {}
                gone.add(c)
                front.append(c)
        return {c: [e for e in enodes if gone.isdisjoint(children[e])] for c, enodes in cuts.items() if c not in gone}

    def _without(self, cuts: dict[int, list[int]]) -> Plan:
        """Plan for each class the cheapest e-node among those that it may take, given the ones before.

        Where each of them leads back to the class, the first that does not once its cheapest trees are chosen.
        """
        plan: Plan = []
        undo: Plan = []
        for c, enodes in cuts.items():
            best = self._best(c, enodes, part=True)
            ways = [[(c, best[1])]] if best else [self._anew(c, e, live) for e in enodes for live in (False, True)]
            way = next((w for w in ways if w and self._carry_out(w, undo) is not None), None)
            if way is None:
                plan = []
                break
            plan += way
        self._undo(undo)
        return plan

    def adopt(self) -> None:
        """Make a dormant class live for several readers at once, where it pays for no single one."""
        for d in range(len(self.of_class)):
            if self.late:
                return
            if self.ref[d] or len(self.users[d]) < 2:
                continue
            links, targets = self._above(d)
            if len(targets) >= 2:
                self.attempt(links + targets, keep=True)

    def _above(self, d: int) -> tuple[Plan, Plan]:
        """Return re-points of dormant classes that lead to d, and of the live classes that could read those."""
        links: Plan = []
        targets: Plan = []
        seen, front = {d}, [d]
        while front and len(seen) < WALK:
            k = front.pop(0)
            for c in self.users[k]:
                if c in seen:
                    continue
                seen.add(c)
                e = next(e for e in self.of_class[c] if k in self.children[e])
                if self.ref[c]:
                    if e != self.choice[c]:
                        targets.append((c, e))
                else:
                    links.append((c, e))
                    front.append(c)
        return links, targets
