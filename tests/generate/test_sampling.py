"""Tokens are drawn as documented: temperature, top-k, top-p, softmax in float64, one random number each."""

from __future__ import annotations

from itertools import product

import numpy as np

from gdlab.generate.sampling import Sampling, weights_of

LOGITS = np.random.default_rng(3).normal(size=50).astype(np.float32) * 3


def plain(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> dict[int, float]:
    """The same in plain Python."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))[:top_k]
    top = float(logits[order[0]])
    weights = [float(np.exp((float(logits[i]) - top) / temperature)) for i in order]
    shares = [w / sum(weights) for w in weights]
    kept, total = [], 0.0
    for id, share in zip(order, shares, strict=True):
        kept.append((id, share))
        total += share
        if top_p not in (None, 1.0) and total >= top_p:
            break
    return {id: share / sum(s for _, s in kept) for id, share in kept}


def test_the_filters_stand_in_this_order() -> None:
    for temperature, top_k, top_p in product((0.3, 1.0, 5.0), (None, 1, 7, 50, 99), (None, 1e-9, 0.5, 0.9, 1.0)):
        ids, weights = weights_of(LOGITS, Sampling(temperature, top_k, top_p))
        want = plain(LOGITS, temperature, top_k, top_p)
        assert ids.tolist() == list(want) and weights.dtype == np.float64
        np.testing.assert_allclose(weights, list(want.values()), rtol=1e-12)


def test_top_p_counts_among_what_top_k_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert weights_of(logits, Sampling(1.0, None, 0.55))[0].tolist() == [0, 1]
    assert weights_of(logits, Sampling(1.0, 2, 0.55))[0].tolist() == [0]  # 0.4 of 0.7
    assert weights_of(np.zeros(4, np.float32), Sampling(1.0, 2))[0].tolist() == [0, 1]  # of equal ones the first


def test_draws_follow_the_probabilities_and_the_seed() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    drawer = Sampling(1.0, seed=7).drawer()
    drawn = [drawer.draw(logits) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.5, 0.3, 0.2], atol=0.03)
    again, other = Sampling(1.0, seed=7).drawer(), Sampling(1.0, seed=8).drawer()
    assert [again.draw(logits) for _ in range(50)] == drawn[:50] != [other.draw(logits) for _ in range(50)]
    assert len({Sampling(1.0).drawer().random.random() for _ in range(3)}) == 3  # without a seed
    hot = np.array([1e30, -np.inf, 0], np.float32)
    assert {Sampling(0.5, seed=1).drawer().draw(hot) for _ in range(20)} == {0}
