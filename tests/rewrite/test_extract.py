"""Extraction: never worse than the start, acyclic, no heavy work twice, as good as brute force nearly always."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matrix import count
from optimizing import mlp_with_gate, transformer
from random_graphs import random_graph
from scipy.optimize import Bounds, LinearConstraint, milp

from gdlab.rewrite import optimize
from gdlab.rewrite import optimizer as pipeline
from gdlab.rewrite.extract.choice import Choice, Problem, Search, extract, live_order
from gdlab.rewrite.extract.cycles import classes_below, components


def components_of(of_class: Sequence[Sequence[int]], children: Sequence[tuple[int, ...]]) -> list[int]:
    return components(classes_below(of_class, children))


def solve(problem: Problem) -> Choice:
    return extract(problem, components_of(problem.of_class, problem.children))


def cost_of(problem: Problem, choice: list[int]) -> int | None:
    """Live cost, each class once; None when the choice has a cycle anywhere (dormant classes too)."""
    whole = replace(problem, roots=range(len(choice)))
    if live_order(whole, choice) is None:
        return None
    order = live_order(problem, choice)
    assert order is not None
    return sum(problem.cost[choice[c]] for c in order)


def heavy_of(problem: Problem, choice: list[int]) -> int:
    return sum(problem.heavy[choice[c]] for c in live_order(problem, choice) or ())


def optimum(problem: Problem) -> int:
    start = [enodes[0] for enodes in problem.of_class]
    limit = heavy_of(problem, start)
    costs = []
    for picked in itertools.product(*problem.of_class):
        order = live_order(problem, picked)
        if order is not None and sum(problem.heavy[picked[c]] for c in order) <= limit:
            costs.append(sum(problem.cost[picked[c]] for c in order))
    return min(costs)


def ilp_optimum(problem: Problem) -> float:
    """The least cost by integer programming (HiGHS): an e-node per live class, children live, levels that only fall."""
    e_nodes, classes = len(problem.cost), len(problem.of_class)
    wide = e_nodes + 2 * classes  # e-node chosen, class live, level of a class
    rows, low, high = [], [], []

    def bound(entries: dict[int, float], least: float, most: float) -> None:
        rows.append([entries.get(i, 0.0) for i in range(wide)])
        low.append(least)
        high.append(most)

    for c, found in enumerate(problem.of_class):
        bound({**dict.fromkeys(found, 1.0), e_nodes + c: -1.0}, 0, 0)
        for e in found:
            for k in problem.children[e]:
                bound({e: 1.0, e_nodes + k: -1.0}, -np.inf, 0)
                level, below = e_nodes + classes + c, e_nodes + classes + k
                bound({level: 1.0, below: -1.0, e: -float(classes)}, 1 - classes, np.inf)
    start = [found[0] for found in problem.of_class]
    bound({e: float(h) for e, h in enumerate(problem.heavy)}, -np.inf, heavy_of(problem, start))
    least = np.zeros(wide)
    for root in problem.roots:
        least[e_nodes + root] = 1
    most = np.concatenate([np.ones(e_nodes + classes), np.full(classes, classes)])
    cost = np.concatenate([np.array(problem.cost, float), np.zeros(2 * classes)])
    integral = np.concatenate([np.ones(e_nodes + classes), np.zeros(classes)])
    found = milp(cost, integrality=integral, bounds=Bounds(least, most),
                 constraints=LinearConstraint(np.array(rows), low, high))  # fmt: skip
    assert found.success, found.message
    return float(found.fun)


def random_problem(seed: int) -> Problem:
    """4 to 9 classes, up to 3 e-nodes each; the first of a class reads earlier classes only, the others any."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 10))
    of_class: list[list[int]] = []
    children: list[tuple[int, ...]] = []
    for c in range(n):
        of_class.append([])
        for k in range(int(rng.integers(1, 4))):
            pool = [i for i in range(c if k == 0 else n) if i != c]
            size = min(len(pool), int(rng.integers(0, 3)))
            of_class[c].append(len(children))
            children.append(tuple(int(i) for i in rng.choice(pool, size, replace=False)) if pool else ())
    cost = [int(i) for i in rng.integers(0, 20, len(children))]
    heavy = [int(i) for i in rng.integers(0, 2, len(children))]
    roots = tuple(dict.fromkeys(int(i) for i in rng.integers(n // 2, n, 2)))
    return Problem(of_class, children, cost, heavy, roots)


def test_two_ways_to_the_optimum_agree() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        assert round(ilp_optimum(problem)) == optimum(problem), seed


def test_random_problems_are_never_worse_and_nearly_always_optimal() -> None:
    optimal, problems = 0, count(60, 500)
    for seed in range(problems):
        problem = random_problem(seed)
        start = [enodes[0] for enodes in problem.of_class]
        found = solve(problem)
        assert found.failures == 0
        assert cost_of(problem, list(found.enode)) == found.cost_after <= found.cost_before == cost_of(problem, start)
        assert heavy_of(problem, list(found.enode)) <= heavy_of(problem, start)
        assert found == solve(problem)
        best = round(ilp_optimum(problem))
        assert best <= found.cost_after
        optimal += best == found.cost_after
    assert optimal >= 0.95 * problems


REAL = {"mlp": mlp_with_gate, "transformer": lambda: transformer(1), "training": lambda: transformer(1, train=True)}


@pytest.mark.parametrize("what", [*REAL, *range(20)])
def test_real_e_graphs_are_extracted_at_the_optimum(what: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(what) if isinstance(what, int) else REAL[what]()
    seen: list[tuple[Problem, Choice]] = []

    def spy(problem: Problem, *arguments: object) -> Choice:
        seen.append((problem, extract(problem, *arguments)))  # type: ignore[arg-type]
        return seen[-1][1]

    monkeypatch.setattr(pipeline, "extract", spy)
    optimize(graph, phase="full")
    problem, found = seen[0]
    priced = replace(problem, cost=[c / 2**40 for c in problem.cost])  # where HiGHS is at ease
    assert found.cost_after / 2**40 == pytest.approx(ilp_optimum(priced), rel=1e-6, abs=1e-9)


def test_a_shared_value_is_paid_once() -> None:
    # 24 squarings of one value: as a tree 2^24 products, as a graph 24; the alternative of the first costs one more
    n = 24
    of_class = [[0], *([k] for k in range(1, n + 1))]
    children: list[tuple[int, ...]] = [(), *((k - 1,) for k in range(1, n + 1))]
    problem = Problem(of_class, children, [1] * (n + 1), [0] * (n + 1), (n,))
    found = solve(problem)
    assert found.cost_after == n + 1 and found.live == tuple(range(n + 1))


def test_a_product_is_not_computed_twice_to_save_a_launch() -> None:
    # class 0: product; 1 and 2 read it, or compute it themselves, cheaper but with its flops
    of_class = [[0], [1, 2], [3, 4], [5]]
    children: list[tuple[int, ...]] = [(), (0,), (), (0,), (), (1, 2)]
    problem = Problem(of_class, children, [3, 3, 2, 3, 2, 0], [8, 0, 8, 0, 8, 0], (3,))
    assert solve(problem).cost_after == 9
    assert solve(replace(problem, heavy=[0] * 6)).cost_after == 4


def test_eliminate_frees_a_class_of_all_readers_at_once() -> None:
    # 0 costs 10 and is read by 1 and 2; each alone gains nothing by leaving it
    of_class = [[0], [1, 2], [3, 4], [5]]
    children: list[tuple[int, ...]] = [(), (0,), (), (0,), (), (1, 2)]
    problem = Problem(of_class, children, [10, 1, 4, 1, 4, 0], [0] * 6, (3,))
    assert solve(problem).cost_after == 8


def test_eliminate_climbs_to_what_can_leave_and_opens_what_leads_back() -> None:
    # 0 costs 9 with the flops of a product, and is read by 1 and 2, which have no other e-node, but their readers have:
    # 3, by way of 5, which reads it, and 4. Each alone would raise the flops, and neither could let 0 go.
    of_class = [[0], [1], [2], [3, 4], [5, 6], [7, 8], [9]]
    children: list[tuple[int, ...]] = [(), (0,), (0,), (1,), (5,), (2,), (), (3,), (), (3, 4)]
    problem = Problem(of_class, children, [9, 1, 1, 6, 0, 1, 5, 0, 5, 0], [8, 0, 0, 0, 0, 0, 4, 0, 4, 0], (6,))
    search = Search(problem, components_of(of_class, children), None)
    search.eliminate()
    assert search.total == optimum(problem) == 10
    assert [search.choice[c] for c in (3, 4, 5)] == [4, 6, 8]
    # a root that has to read it keeps it
    kept = replace(problem, roots=(6, 1))
    search = Search(kept, components_of(of_class, children), None)
    search.eliminate()
    assert search.total == cost_of(kept, [0, 1, 2, 3, 5, 7, 9])


def test_adopt_wakes_a_class_that_no_single_reader_can_pay_for() -> None:
    # dormant 0 costs 9; 1 and 2 cost 8 each, or nothing when they read 0
    of_class = [[0], [1, 2], [3, 4], [5]]
    children: list[tuple[int, ...]] = [(), (), (0,), (), (0,), (1, 2)]
    problem = Problem(of_class, children, [9, 8, 0, 8, 0, 0], [0] * 6, (3,))
    assert solve(problem).cost_after == 9


def test_a_cheap_choice_that_closes_a_cycle_is_not_taken() -> None:
    # 1 = f(0) or free of 2; 2 = g(1): choosing 1 from 2 would read itself
    of_class = [[0], [1, 2], [3]]
    children: list[tuple[int, ...]] = [(), (0,), (2,), (1,)]
    problem = Problem(of_class, children, [5, 5, 0, 0], [0] * 4, (2,))
    found = solve(problem)
    assert found.cost_after == 10 and found.enode[1] == 1


def test_components_are_numbered_where_there_are_cycles() -> None:
    of_class = [[0], [1, 2], [3], [4]]
    children: list[tuple[int, ...]] = [(), (0,), (2,), (1,), (2, 0)]
    first, a, b, last = components_of(of_class, children)
    assert (first, last) == (-1, -1) and a == b >= 0
    # deep chains do not recurse
    n = 20_000
    assert set(components_of([[k] for k in range(n)], [(k - 1,) if k else () for k in range(n)])) == {-1}


def test_a_deadline_keeps_what_was_found() -> None:
    problem = random_problem(7)
    found = extract(problem, components_of(problem.of_class, problem.children), seconds=-1.0)
    assert found.cost_after <= found.cost_before


def test_six_passes_are_made() -> None:
    """Twenty readers of 21 leaves: a reader leaves its own value (12) for two leaves (10 each) once the reader behind
    it has paid for one. Classes are visited from the first on, so each pass gains 6 of the 38 between 248 and 210."""
    n = 20
    last, root = n - 1, 2 * n + 1
    of_class = [*([2 * c, 2 * c + 1] for c in range(n)), *([2 * n + c] for c in range(n + 1)), [3 * n + 1]]
    children: list[tuple[int, ...]] = [below for c in range(n) for below in ((), (n + c, n + c + 1))]
    children += [*[()] * (n + 1), tuple(range(n))]
    cost = [price for c in range(n) for price in (25 if c == last else 12, 0)] + [10] * (n + 1) + [0]
    assert solve(Problem(of_class, children, cost, [0] * len(cost), (root,))).cost_after == 214
