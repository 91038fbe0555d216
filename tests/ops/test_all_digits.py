"""Remainders are exact, and small and far numbers lose no digits, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from gdlab import build_compiled_graph, ops
from gdlab.graph import Graph


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bit patterns, beside divisors near a number or a whole part of it."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 2**32, (2, count), dtype=np.uint32).view(np.float32)
    near = rng.uniform(0.01, 100, count).astype(np.float32)
    whole = rng.integers(1, 300, count).astype(np.float32)
    tiny = rng.integers(0, 2**24, (2, count), dtype=np.uint32).view(np.float32)  # below the smallest normal number too
    numbers = [a, near * whole, near, tiny[0], a], [b, near, -whole / 7, tiny[1], tiny[1]]
    x, y = (np.concatenate(n) for n in numbers)
    return np.where(np.isnan(x), np.float32(np.nan), x), np.where(np.isnan(y), np.float32(np.nan), y)  # quiet ones


def computed(graph: Graph, device: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with build_compiled_graph(graph, device) as compiled:
        return compiled.run(feeds)[0]


@pytest.mark.parametrize("name", ["fmod", "mod"])
@pytest.mark.parametrize("known", [False, True], ids=["computed", "folded"])
def test_remainders_equal_numpys_by_their_bits(name: str, known: bool, device: str) -> None:
    a, b = pairs(40 if known else 4000)
    with Graph() as g:
        x, y = (ops.constant(v) if known else ops.input(n, v.shape) for n, v in (("a", a), ("b", b)))
        g.set_outputs([getattr(ops, name)(x, y)])
    got = computed(g, device, {} if known else {"a": a, "b": b})
    with np.errstate(all="ignore"):
        want = getattr(np, name)(a, b)
    right = (got == want) | (np.isnan(got) & np.isnan(want))
    assert right.all(), np.stack([a, b, got, want])[:, ~right][:, :5]


def test_a_quotient_that_rounds_to_a_whole_number_is_not_one(device: str) -> None:
    a, b = np.array([1.5, -1.5, 1.0], np.float32), np.array([0.3, 0.3, 0.1], np.float32)
    with Graph() as g:
        x, y = ops.input("a", (3,)), ops.input("b", (3,))
        g.set_outputs([(x - x.mod(y)) / y])
    got = computed(g, device, {"a": a, "b": b})
    assert got.tolist() == [4.0, -5.0, 9.0] == np.floor_divide(a, b).tolist()


SMALL = np.array([1e-30, -1e-20, 1e-10, -1e-7, 1e-5, -1e-3, 0.01, -0.1, 0.3, -0.36, 0.49, -0.51, 0.9, 1.5], np.float32)
FAR = np.array([0.1, -1.5, 3.0, 10.0, -100.5, 1e3, -12345.678, 1e5, -3e6, 1e7], np.float32)
OF_SMALL = {
    "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SMALL)
def test_small_numbers_keep_their_digits(name: str, device: str) -> None:
    x = np.linspace(-80, 5, 14, dtype=np.float32) if name == "softplus" else SMALL
    with Graph() as g:
        g.set_outputs([getattr(ops, name)(ops.input("x", x.shape))])
    got = computed(g, device, {"x": x})
    with np.errstate(all="ignore"):
        want = OF_SMALL[name](x.astype(np.float64))
    normal = np.abs(want) > 1.2e-38
    assert normal.sum() > 12
    np.testing.assert_allclose(got[normal], want[normal], rtol=2e-5 if name == "softplus" else 1e-6)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_many_turns(name: str, device: str) -> None:
    with Graph() as g:
        g.set_outputs([getattr(ops, name)(ops.input("x", FAR.shape))])
    got = computed(g, device, {"x": FAR})
    np.testing.assert_allclose(got, getattr(np, name)(FAR.astype(np.float64)), rtol=0, atol=5e-7)
