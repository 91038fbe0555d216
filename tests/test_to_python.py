"""A graph as a `%%graph` cell: the cell builds the same graph, to the letter of its text."""

from __future__ import annotations

import networks
import numpy as np
import pytest
import random_graphs

import gdlab
from gdlab import ops
from gdlab.errors import GraphError
from gdlab.graph import Graph
from gdlab.jupyter.cell import run_cell
from gdlab.study import Study
from gdlab.text import to_python


def again(graph: Graph) -> Graph:
    """What the cell builds in a notebook that knows nothing else."""
    return run_cell("g", "%%graph g", to_python(graph), {}, 1).graph


def test_the_cell_of_a_small_network_reads_like_one() -> None:
    with Graph() as g:
        x, y = ops.input("x", (8, 6)), ops.input("y", (8, 3))
        h = ops.relu(ops.bias_add(x @ ops.parameter("w1", (6, 5)), ops.parameter("b1", (5,), init="zeros"))).named("h")
        g.output(ops.cross_entropy_loss(h @ ops.parameter("w2", (5, 3)), y), "loss")
    assert to_python(g).split("\n") == [
        "n = {}",
        "x = input('x', (8, 6))",
        "y = input('y', (8, 3))",
        "h = relu(bias_add(matmul(x, parameter('w1', (6, 5))), parameter('b1', (5,), init='zeros')))",
        "n[9] = cross_entropy_loss(matmul(h, parameter('w2', (5, 3))), y)",
        "output(n[9], 'loss')",
        "",
    ]  # fmt: skip
    assert again(g).text() == g.text()


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_come_back(seed: int) -> None:
    graph = random_graphs.random_graph(seed, every_op=seed % 2 == 1)
    assert again(graph).text() == graph.text()


def test_networks_come_back() -> None:
    for graph in (networks.mlp(batch=4), Study(networks.mlp(batch=4), name="m").optimized):
        assert again(graph).text() == graph.text()


def test_hard_names_constants_and_dead_nodes_come_back() -> None:
    with Graph() as g:
        x = ops.input("relu", (2, 3))
        one = ops.exp(x).named("h")
        two = ops.exp(one).named("h")
        ops.tanh(two)  # read by nobody
        odd = (two * gdlab.constant(np.array([[0.1, -0.0, 1e-38]] * 2))).named('</script> "x"\n')
        wide = odd + gdlab.constant(np.array([[np.nan, np.inf, 3]] * 2)).named("class")
        many = gdlab.constant(np.arange(90).reshape(30, 3))
        rows = ops.concat([wide, many], axis=0).named("lambda")
        picked = ops.embedding(gdlab.constant_u32([0, 2, 4]), rows)
        g.output(picked, "first")
        g.output(x)
        g.output(two, "h")
    assert again(g).text() == g.text()


def test_stored_weights_come_back_and_a_derivative_is_refused() -> None:
    with Graph() as g:
        x = ops.input("x", (4, 64))
        h = x @ gdlab.parameter_q4("w", (64, 32))
        g.output(ops.sum_all(h @ gdlab.parameter_f16("u", (32, 3))))
    assert again(g).text() == g.text()
    study = Study(networks.mlp(batch=4), train=True, name="m")
    with pytest.raises(GraphError, match="to_python: graph: given one with gradients, wanted a graph as it is written"):
        to_python(study.derivative)
