"""Relative attention biases: the buckets of distances, and the sums that their gradient makes."""

from __future__ import annotations

import math

import numpy as np
import plans
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ArgumentError, GraphError, ShapeError
from gdlab.devices.choose import device
from gdlab.graph import Graph


def bucket(query: int, key: int, count: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of one pair, in integers as far as they go."""
    first = 0
    if bidirectional:
        count //= 2
        first = count if key > query else 0
    elif key > query:
        return 0
    distance, exact = abs(query - key), count // 2
    if distance < exact:
        return first + distance
    steps = 0  # how many of the logarithmic borders exact · (max/exact)^(i/n) lie at or below the distance
    while steps < count - exact - 1:
        border = exact * math.exp((steps + 1) / (count - exact) * math.log(max_distance / exact))
        if distance < border - 1e-6:
            break
        steps += 1
    return first + exact + steps


@pytest.mark.parametrize(("count", "reach", "both"), [(32, 128, True), (32, 128, False), (8, 20, True), (5, 9, False)])
def test_buckets_of_distances(count: int, reach: int, both: bool) -> None:
    """A table that holds its own column numbers shows the bucket of every pair."""
    with Graph() as g:
        table = ops.input("table", (2, count))
        g.set_outputs([ops.t5_relative_bias(table, 7, 150, reach, both)])
    numbers = np.stack([np.arange(count), np.arange(count) * 2.0]).astype(np.float32)
    (got,) = plans.run(device("cpu"), g, {"table": numbers})
    want = [[bucket(i, j, count, reach, both) for j in range(150)] for i in range(7)]
    assert got[0].tolist() == want
    assert got[1].tolist() == (2 * np.array(want)).tolist()


def test_the_gradient_counts_the_pairs_of_a_bucket() -> None:
    with Graph() as g:
        table = ops.parameter("table", (1, 8))
        g.set_outputs([ops.t5_relative_bias(table, 3, 4, 20).sum_all()])
    full, _ = differentiate(g)
    gradient = plans.run(device("cpu"), full, {"table": np.zeros((1, 8))}, mode="training")[1]
    counts = np.bincount([bucket(i, j, 8, 20, True) for i in range(3) for j in range(4)], minlength=8)
    assert gradient.tolist() == [counts.tolist()]


def test_wrong_calls() -> None:
    with Graph() as g:
        table = ops.input("table", (2, 7))
        with pytest.raises(ShapeError, match=r"operands: given f32\[2, 7\], wanted .* an even number"):
            ops.t5_relative_bias(table, 3, 4)
        with pytest.raises(ShapeError, match="with 2 buckets or more"):
            ops.t5_relative_bias(table[:, :1], 3, 4, bidirectional=False)
        with pytest.raises(GraphError, match="q and k: given 0 and 4, wanted ints ≥ 1"):
            ops.t5_relative_bias(table[:, :4], 0, 4)
        with pytest.raises(GraphError, match="max_distance: given 2, wanted more than the 3 distances"):
            ops.t5_relative_bias(table, 3, 4, 2, bidirectional=False)
        with pytest.raises(ArgumentError, match="operand: given int 3"):
            ops.t5_relative_bias(3, 3, 4)  # type: ignore[arg-type]
        assert "constant" not in {node.op for node in g}
