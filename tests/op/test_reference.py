"""The judge itself: values by hand, error scales, and a comparison that fails when it must."""

from __future__ import annotations

import numpy as np
import pytest
from op_checks import board

from gdlab import ops
from gdlab.base.errors import ArgumentError, ShapeError, UnknownNameError
from gdlab.graph import Graph
from gdlab.op import REGISTRY
from gdlab.op.reference import compare, evaluate, magnitudes


def small() -> Graph:
    with Graph() as g:
        x, w = ops.input("x", (2, 3)), ops.parameter("w", (3, 1))
        y = (x @ w).relu() + ops.constant([0.5])
        g.set_outputs([y])
    return g


X = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 0.1]])
W = np.array([[1.0], [-2.0], [3.0]])


def test_every_node_gets_its_value_in_order() -> None:
    g, seen = small(), []
    values = evaluate(g, {"x": X, "w": W.ravel()}, hook=lambda node, value: seen.append((node.op, value.shape)))
    rounded = np.float64(np.float32(0.1))
    np.testing.assert_array_equal(values[2], [[6.0], [-1 + 3 * rounded]])
    np.testing.assert_array_equal(values[g.output_ids[0]], [[6.5], [0.5]])
    assert seen == [(n.op, n.type.shape) for n in g]
    assert {v.dtype for v in values.values()} == {np.dtype(np.float64)}


def test_u32_tensors_stay_integers() -> None:
    with Graph() as g:
        ops.input_u32("i", (2,)).reshape((2, 1))
    values = evaluate(g, {"i": [3, 4_000_000_000]})
    assert values[1].dtype == np.uint32
    assert values[1].tolist() == [[3], [4_000_000_000]]


@pytest.mark.parametrize(
    ("feeds", "error", "message"),
    [
        ({"x": X}, ArgumentError, "evaluate: 'w': given no feed, wanted f32[3, 1]"),
        ({"x": X, "w": W[:2]}, ArgumentError, "evaluate: 'w': given 2 values, wanted 3 (f32[3, 1])"),
        ({"x": X, "w": W, "ww": W}, UnknownNameError, "evaluate: feed: given ww, wanted one of x, w; nearest: w"),
    ],
)
def test_a_wrong_feed_is_named(feeds: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        evaluate(small(), feeds)
    assert str(refused.value) == message


@pytest.mark.parametrize("fold", ["max", "min"])
def test_what_cannot_be_the_maximum_does_not_add_to_its_error_scale(fold: str) -> None:
    """A hidden score of -1e30; one of nearly the maximum may be it."""
    with Graph() as g:
        x, y = ops.input("x", (2, 4)), ops.input("y", (2, 4))
        total = x + y
        g.output(ops.max_inner(total) if fold == "max" else ops.min(ops.neg(total), -1))
    feeds = {"x": [[1, -1e30, 3, 2], [-1e30] * 4], "y": [[0, 0, 5, 5.9], [1] * 4]}
    values = evaluate(g, feeds)
    found = magnitudes(g, values)[g.output_ids[0]].reshape(2)
    np.testing.assert_allclose(found, [8, 1e30], rtol=1e-6)
    feeds["x"][0] = [-20, -1e30, 3, 2]
    feeds["y"][0] = [28 - 1e-3, 0, 5, 5.9]
    assert magnitudes(g, evaluate(g, feeds))[g.output_ids[0]].reshape(2)[0] == pytest.approx(48, rel=1e-3)


def test_gradients_behind_a_mask_are_held_to_their_own_size() -> None:
    found = board(REGISTRY["sliding_window_attention"])
    scales = magnitudes(found.graph, evaluate(found.graph, found.feeds))
    assert max(float(scales[i].max()) for i in found.graph.output_ids) < 1e6


def test_magnitudes_of_cancelling_sums_are_those_of_the_terms() -> None:
    with Graph() as g:
        x, w = ops.input("x", (1, 4)), ops.input("w", (4, 1))
        product = x @ w
        total, shifted, spread = product * 3, product - 1, product.broadcast_to((2, 1))
        kept = ops.where(x, x.exp(), x)
        rows = ops.softmax(x * 10)
        loss = ops.mse_loss(x, w.T)
    feeds = {"x": [1000.0, -1000.0, 2.0, 1.0], "w": np.ones(4)}
    values = evaluate(g, {**feeds, "x": np.array(feeds["x"]) / 100})
    m = magnitudes(g, values)
    assert m[product.id] == pytest.approx(20.03)
    assert m[total.id] == pytest.approx(60.09)
    assert m[shifted.id] == pytest.approx(20.03, rel=1e-5)
    np.testing.assert_allclose(m[spread.id], [[20.03], [20.03]])
    np.testing.assert_allclose(m[kept.id][0, :2], [10 * np.exp(10), 10 * np.exp(-10)], rtol=1e-5)
    assert m[rows.id].max() >= values[rows.id].max()
    assert m[loss.id] >= values[loss.id]


def test_magnitudes_do_not_take_a_jump_for_a_slope() -> None:
    with Graph() as g:
        x = ops.input("x", (3,))
        mask, sign, relu = x > 0, x.sign(), x.relu()
    m = magnitudes(g, evaluate(g, {"x": [0.0, -2.0, 2.0]}))
    assert m[mask.id].tolist() == [0, 0, 1]
    assert m[sign.id].tolist() == [0, 1, 1]
    assert m[relu.id].tolist() == pytest.approx([0, 0, 2])


@pytest.mark.parametrize(
    ("got", "want", "failure"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, 2.0001], [1.0, 2.0], None),
        ([1.0, 2.01, 3.5], [1.0, 2.0, 3.0], "2 of 3 differ, worst at [2]: got 3.5, wanted 3.0 ± 0.0003"),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], None),
        ([np.inf], [-np.inf], "1 of 1 differ, worst at [0]: got inf, wanted -inf ± 0"),
        ([1.0, 0.0], [1.0, np.nan], "1 of 2 differ, worst at [1]: got 0.0, wanted nan ± 1e−7"),
        ([np.nan, 1.0], [5.0, 1.0], "1 of 2 differ, worst at [0]: got nan, wanted 5.0 ± 0.000501"),
        ([1e-39, -1e-40], [0.0, 0.0], None),
        ([1.0], [1.0, 1.0], "shape: got [1], wanted [2]"),
    ],
)
def test_compare_tells_what_differs(got: list[float], want: list[float], failure: str | None) -> None:
    m = np.nan_to_num(np.abs(want), nan=0.0, posinf=0.0)
    assert compare(got, want, m, 1e-4) == failure


def test_the_floor_is_a_part_of_the_largest_scale() -> None:
    assert compare([1e-6, 10.0], [0.0, 10.0], [0.0, 10.0], 1e-4) is None
    assert compare([1e-5, 10.0], [0.0, 10.0], [0.0, 10.0], 1e-4) is not None


def test_a_reference_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.relu, "numpy", np.sum)
    with pytest.raises(ShapeError, match=r"numpy of relu: given shape \[\], wanted that of f32\[2, 1\]"):
        evaluate(small(), {"x": X, "w": W})
