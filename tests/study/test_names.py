"""One name, one tensor: `h` is the last node of that name, earlier ones are `h#1`, `h#2`, wherever it is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gdlab import ops
from gdlab.base.errors import UnknownNameError
from gdlab.graph import Graph, shown_names
from gdlab.session import SessionConfig, build
from gdlab.study.study import Study


def network() -> Graph:
    """Three tensors called h; the first is fused with its bias, the last goes into the loss."""
    with Graph() as g:
        h = (ops.input("x", (8, 6)) @ ops.parameter("w1", (6, 5)) + ops.parameter("b1", (5,))).named("h")
        h = ops.tanh(h).named("h")
        h = (h @ ops.parameter("w2", (5, 3)) + ops.parameter("b2", (3,))).named("h")
        g.output(ops.mse_loss(h, ops.input("y", (8, 3))))
    return g


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    made = Study(network(), train=True, device=device, name="net")
    made.run(1, feed="random:0", init=0)
    yield made
    made.close()


def test_names_of_a_graph() -> None:
    assert [name for name in shown_names(network()) if name] == ["x", "w1", "b1", "h#1", "h#2", "w2", "b2", "h", "y"]
    with Graph() as g:
        w = ops.relu(ops.input("x", (3,))).named("w")
        x = ops.tanh(w * ops.parameter("w", (3,))).named("x")
        g.set_outputs(ops.relu(x).named("h#1") + ops.tanh(x).named("h") + ops.exp(x).named("h"))
    assert [n for n in shown_names(g) if n][:3] == ["x#1", "w#1", "w"], "the parameter has its name; x is the last one"
    assert len({n for n in shown_names(g) if n}) == sum(bool(n) for n in shown_names(g))


def test_a_tensor_has_one_name_in_all_stages(study: Study) -> None:
    document = study.doc
    written = document.nodes("written")
    shapes = {n["name"]: document.types.column("text")[n["type"]] for n in written if n["name"]}
    for stage in ("optimized", "derivative", "final", "derivative:written"):
        named = [(n["name"], document.types.column("text")[n["type"]]) for n in document.nodes(stage) if n["name"]]
        assert {(n, shape) for n, shape in named if n.startswith("h")} >= {("h#1", shapes["h#1"]), ("h", shapes["h"])}
        assert len(named) == len(dict(named))
    named = [row["name"] for row in document.plan("intervals") if row["node"] >= 0]
    kept = [name for name in named if name.startswith("h")]
    assert kept == ["h#2"], "a buffer is called as its node is; the others went into a dispatch"
    final = {n["name"]: n["op"] for n in document.nodes("final")}
    assert (final["h#1"], final["h#2"], final["h"]) == ("fused_matmul_add", "tanh", "fused_matmul_add")


def test_watches_breakpoints_and_looks_mean_the_same_tensor(study: Study) -> None:
    values = study.values()
    for name, shape in (("h#1", (8, 5)), ("h#2", (8, 5)), ("h", (8, 3))):
        if name == "h#2":  # the others went into its dispatch and the next
            assert study.watch(name)[0].name == name
        node = shown_names(study.graph).index(name)
        assert study.graph.node(node).type.shape == shape
        looked = study.look(name, against="reference" if name == "h#2" else None)
        assert looked.name == name and looked.value.about == f"node:0.{node}" and tuple(looked.value.shape) == shape
        again = study.look(f"node:0.{node}")
        assert (again.name, again.value.about) == (name, looked.value.about)
        assert values.value[node].shape == shape
    study.break_at("node h#2 if absmax(h#2) > 0")
    study.run(2)
    assert study.runner.state == "paused" and study.runner.place.startswith("after dispatch 0 ")


def test_names_of_the_session_are_those_of_the_views(device: str) -> None:
    with build(network(), SessionConfig.debug(device=device))[0] as session:
        session.initialize(0)
        for name, node in (("x", (8, 6)), ("y", (8, 3))):
            session.set_input(name, np.ones(node, np.float32))
        session.step()
        assert session.node_names() == ["x", "w1", "b1", "h#1", "h#2", "w2", "b2", "h", "y"]
        first, second, last = (session.read_node_by_name(name) for name in ("h#1", "h#2", "h"))
        assert np.allclose(np.tanh(first), second, atol=1e-6) and last.shape == (8, 3)


def test_gradients_are_asked_for_by_the_same_names(study: Study) -> None:
    assert study.check_gradient("h#2").node == shown_names(study.graph).index("h#2")
    assert study.differentiate_wrt(("h#1",))[1].wrt == (shown_names(study.graph).index("h#1"),)
    with pytest.raises(UnknownNameError, match="h#3"):
        study.watch("h#3")
