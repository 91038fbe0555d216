"""Calls that an op remembers: attributes and type by signature, never the operands or the graph."""

from __future__ import annotations

import pytest

import gdlab as gd
from gdlab.base.errors import GraphError
from gdlab.graph import Graph
from gdlab.ops.random import dropout


def test_a_known_call_reads_its_own_operands() -> None:
    with Graph() as g:
        x, y = gd.input("x", (2, 3)), gd.input("y", (2, 3))
        made = [gd.mul(x, x), gd.mul(x, y), gd.mul(y, x), gd.mul(y, y)]
    assert [v.node.inputs for v in made] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(g.source(v.id)[0].file == __file__ for v in made)


def test_equal_numbers_of_other_kinds_are_other_signatures() -> None:
    with Graph():
        x = gd.input("x", (2, 3))
        factors = [gd.scale(x, f).node.attr("factor") for f in (0.0, -0.0, 1.0, 2.0, 0.0)]
        assert [str(f) for f in factors] == ["0.0", "-0.0", "1.0", "2.0", "0.0"]
        for _ in range(2):
            assert gd.sum(x, axes=(1,)).shape == (2,)
            assert gd.sum(x, axes=(0,)).shape == (3,)
            with pytest.raises(gd.GdlabError):
                gd.sum(x, axes=(True,))
        assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == (3, 2)


def test_draws_are_numbered_by_their_graph() -> None:
    with Graph() as g:
        x = gd.input("x", (4,))
        assert [dropout(x, 0.5).node.attr("call") for _ in range(3)] == [0, 1, 2]
        assert dropout(x, 0.5, seed=7).node.attr("call") == 0
        g.cut(2)  # the second and later draws
        assert dropout(x, 0.5).node.attr("call") == 1
        other = g.copy()
    assert dropout(other.value(0), 0.5).node.attr("call") == 2 == dropout(x, 0.5).node.attr("call")


def test_a_refused_call_is_refused_again_and_appends_nothing() -> None:
    with Graph() as g:
        x = gd.input("x", (2, 3))
        for _ in range(2):
            with pytest.raises(gd.ShapeError, match="matmul"):
                gd.matmul(x, x)
        gd.relu(x)
        g.sealed = "a graph that is done"
        with pytest.raises(GraphError, match="a graph that is done") as refused:
            gd.relu(x)
        assert refused.value.source is not None and len(g) == 2


def test_values_are_made_by_their_graph() -> None:
    class Own(gd.Value):
        __slots__ = ()

    class Home(Graph):
        value_class = Own

    with Home() as g:
        w = gd.parameter("w", (2,))
        again = gd.parameter("w", (2,))
        g.set_outputs((w * again).sum_all())
    assert isinstance(again, Own) and all(isinstance(v, Own) for v in g.outputs)
