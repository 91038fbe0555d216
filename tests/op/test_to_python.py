"""A graph as a `%%graph` cell: the cell builds the same graph, to the letter of its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import random_graphs
from places import HELPERS

import gdlab
from gdlab import ops
from gdlab.__main__ import main
from gdlab.base.errors import GraphError
from gdlab.devices.base import owner
from gdlab.graph import Graph
from gdlab.jupyter.cell import run_cell
from gdlab.jupyter.widget import close_panel, panel_of
from gdlab.op.text import to_cell, to_python
from gdlab.study.study import Study


def again(graph: Graph) -> Graph:
    """Return the graph that the cell builds in a notebook without other names."""
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


# a whole cell --------------------------------------------------------------------------------------------------------
def test_a_cell_says_its_name_and_what_it_is_for() -> None:
    graph = networks.mlp(batch=4)
    for name, train, head in (
        ("mlp", True, "%%graph mlp --train"), ("mlp", False, "%%graph mlp"), ("my graph", False, "%%graph"),
        ("class", True, "%%graph --train"), ("", False, "%%graph"),
    ):  # fmt: skip
        assert to_cell(graph, name, train).split("\n", 1) == [head, to_python(graph)]


def asked(study: Study, stage: Any) -> dict[str, Any]:
    """Return the kernel's answer to a page that wants this stage as a cell."""
    panel, replies = panel_of(study), list[dict[str, Any]]()
    panel.widget.send = lambda content, buffers=None: replies.append(content)
    panel.receive({"type": "command", "name": "cell", "args": {"stage": stage}, "req": 1})
    owner().call(lambda: None)
    (reply,) = [each for each in replies if each["type"] == "reply"]
    return reply


def test_the_kernel_writes_the_cell_of_a_stage() -> None:
    study = Study(networks.mlp(batch=4), train=True, name="mlp", device="cpu")
    study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    graphs = {"written": study.graph, "optimized": study.optimized, "variant:plain": study.variants["plain"].optimized}
    for stage, graph in graphs.items():
        head, _, body = asked(study, stage)["result"]["text"].partition("\n")
        assert head == "%%graph mlp --train"
        assert run_cell("mlp", head, body, {}, 1).graph.text() == graph.text()
    for stage, said in (
        ("final", "to_python: graph: given one with gradients, wanted a graph as it is written"),
        ("derivative:written", "to_python: graph: given one with gradients, wanted a graph as it is written"),
        ("nope", "cell: stage: given nope, wanted one of written, optimized, derivative, final"),
        (3, "cell: stage: given 3, wanted a text"),
    ):
        reply = asked(study, stage)
        assert not reply["ok"] and reply["error"]["message"].startswith(said)
    close_panel(study)


def test_the_command_line_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "net.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(HELPERS)!r}); import networks\nnet = networks.mlp(batch=4)\n"
    )
    wanted = Study(networks.mlp(batch=4), train=True, name="net", device="cpu")
    for words, graph in (([], wanted.graph), (["--optimized"], wanted.optimized)):
        assert main(["cell", str(program), "--train", *words]) == 0
        assert capsys.readouterr().out == to_cell(graph, "net", True)
