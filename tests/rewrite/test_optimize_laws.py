"""`optimize` on random graphs, models, notebooks and long chains: an equal graph, no dearer, that every prefix of its
steps leads to, and in which there is nothing more to gain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import corpus
import numpy as np
import optimizing
import pytest
from matrix import also, count
from optimizing import (
    MANY,
    PHASES,
    check_laws,
    tolerance,
)
from random_graphs import random_feeds, random_graph

from gdlab import models
from gdlab.autodiff import differentiate
from gdlab.graph import Graph
from gdlab.op import Phase
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.rewrite import Budget, optimize

odd_rules = pytest.fixture(optimizing.odd_rules)


# the laws on random graphs --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", range(6))
def test_random_graphs_keep_every_law(batch: int) -> None:
    for seed in range(batch, MANY, 6):
        graph = random_graph(seed)
        before = graph.fingerprint()
        result, report = optimize(graph, phase=PHASES[seed % 3])
        assert graph.fingerprint() == before
        check_laws(graph, result, report, random_feeds(graph, seed))
        again, second = optimize(result, phase=PHASES[seed % 3])
        assert second.cost_after == second.cost_before == report.cost_after


def test_random_graphs_use_most_rules() -> None:
    # the test above would pass on graphs where nothing happens
    used: Counter[str] = Counter()
    for seed in range(36):
        used.update(dict(optimize(random_graph(seed), phase="forward")[1].rules_fired))
    assert len(used) >= 15 and used["CSE"] >= 10


@pytest.mark.parametrize("seed", range(200, 200 + MANY // 5))
def test_differentiated_random_graphs_keep_their_gradients(seed: int) -> None:
    graph = random_graph(seed, nodes=25, scalar_loss=True)
    feeds = random_feeds(graph, seed)
    forward, first = optimize(graph, phase="forward")
    plain, _ = differentiate(graph)
    full, _ = differentiate(forward)
    result, report = optimize(full, phase="full")
    check_laws(full, result, report, feeds)
    want, got = evaluate(plain, feeds), evaluate(result, feeds)
    m = magnitudes(plain, want)
    for a, b in zip(plain.output_ids, result.output_ids, strict=True):
        assert compare(got[b], want[a], m[a] + 1, max(tolerance(first), tolerance(report))) is None


@pytest.mark.parametrize("seed", range(600, 600 + count(6, 12)))
def test_odd_rules_and_odd_costs_keep_every_law(seed: int, odd_rules: None) -> None:
    graph, rng, prices = random_graph(seed, nodes=25), np.random.default_rng(seed), dict[str, float]()

    def price(op: str, attrs: Any, type: Any, operands: Any) -> float:
        leaf = op in ("input", "parameter", "constant")
        return 0.0 if leaf else prices.setdefault(op, float(rng.choice([0, 0, 1, 2, 3, 5, 8])))

    budget = Budget(iterations=2 + seed % 4, enodes=3000)
    result, report = optimize(graph, phase="forward", cost=price, budget=budget)
    check_laws(graph, result, report, random_feeds(graph, seed), price)


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_any_iteration_limit_gives_a_valid_result(iterations: int) -> None:
    for seed in range(300, 300 + count(3, 6)):
        graph = random_graph(seed)
        result, report = optimize(graph, phase="forward", budget=Budget(iterations=iterations))
        check_laws(graph, result, report, random_feeds(graph, seed))
        assert len(report.iterations) <= iterations


def test_exact_rules_keep_every_bit() -> None:
    for seed in range(400, 400 + count(4, 6)):
        graph, feeds = random_graph(seed), random_feeds(random_graph(seed), seed)
        result, report = optimize(graph, phase="forward", allow="exact")
        want, got = evaluate(graph, feeds), evaluate(result, feeds)
        for a, b in zip(graph.output_ids, result.output_ids, strict=True):
            # −0 + … : the sign of a zero may come from either order of an addition
            assert np.array_equal(want[a], got[b], equal_nan=True)
        assert {r.tag for r in report.rules if r.used} <= {"exact"}


# the laws on what people build ----------------------------------------------------------------------------------------
def keep_every_law(graph: Graph, phase: Phase, **options: Any) -> Graph:
    """The optimized graph, once it has kept them."""
    before = graph.fingerprint()
    result, report = optimize(graph, phase=phase, **options)
    assert graph.fingerprint() == before and report.stop_reason == "saturated"
    check_laws(graph, result, report, corpus.feeds_of(graph), at_most=SAMPLED)
    again, second = optimize(result, phase=phase, **options)
    assert second.cost_after == second.cost_before == report.cost_after
    return result


def keep_the_laws_of_training(graph: Graph) -> None:
    """Forward, derivative, and both together; the gradients are those of the graph as it was written."""
    plain, _ = differentiate(graph)
    forward = keep_every_law(graph, "forward")
    full, _ = differentiate(forward, wrt=map(forward.value, (n.id for n in forward.parameters)))
    result = keep_every_law(full, "full")
    feeds = corpus.feeds_of(graph)
    want, got = evaluate(plain, feeds), evaluate(result, feeds)
    m = magnitudes(plain, want)
    assert len(plain.output_ids) == len(result.output_ids) > 1
    for a, b in zip(plain.output_ids, result.output_ids, strict=True):
        assert compare(got[b], want[a], m[a], 1e-6) is None


SAMPLED = 5  # prefixes of the steps that are evaluated


@pytest.mark.parametrize("name", also([name for name in corpus.TRAINED if name != "unet_small"], "unet_small"))
def test_models_that_are_trained_keep_every_law(name: str) -> None:
    keep_the_laws_of_training(corpus.TRAINED[name]())


@pytest.mark.parametrize("name", corpus.READ)
def test_models_that_are_read_keep_every_law(name: str) -> None:
    keep_every_law(corpus.READ[name](), "inference")


OF_FILES = ("checkpoint_weights", "from_pretrained")


def test_every_model_is_held_to_the_laws() -> None:
    builders = {name for name in models.__all__ if name.islower() and name not in OF_FILES}
    assert {name.partition(",")[0] for name in (*corpus.TRAINED, *corpus.READ)} == builders | {"decomposed"}


@pytest.mark.parametrize("name", corpus.cells())
def test_cells_of_notebooks_keep_every_law(name: str) -> None:
    graph, trained = corpus.of_cell(name)
    if trained:
        keep_the_laws_of_training(graph)
    else:
        keep_every_law(graph, "inference")


@pytest.mark.parametrize("engine", ["egglog", "fallback"])
@pytest.mark.parametrize("name", corpus.CHAINS)
def test_long_chains_leave_nothing_for_a_second_call(name: str, engine: str) -> None:
    graph = corpus.CHAINS[name]()
    result = keep_every_law(graph, "forward", engine=engine)
    assert len(result) <= (20 if name == "factors and steps" else 4)
