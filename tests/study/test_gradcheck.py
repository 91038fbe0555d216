"""`Study.check_gradient`: a right rule is the slope, a wrong one is named, and what arrives at an op is told."""

from __future__ import annotations

import networks
import numpy as np
import pytest

from gdlab import ops
from gdlab.base.errors import AutodiffError, GraphError
from gdlab.base.words import sig
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.study.gradcheck import GradientCheck
from gdlab.study.study import Study


def study_of(graph: Graph, train: bool = True) -> Study:
    return Study(graph, train=train, device="cpu", name="small")


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("network", [networks.mlp, lambda: networks.transformer(length=4, width=8, inner=8)])
def test_every_rule_of_a_network_is_its_slope(network, optimized):  # type: ignore[no-untyped-def]
    study = study_of(network())
    graph = study.optimized if optimized else study.graph
    checks = [study.check_gradient(n.id, optimized=optimized) for n in graph if n.inputs]
    assert len(checks) > 3 and all(c.ok and c.samples >= 4 and 0 < c.error < 1e-7 for c in checks), checks
    loss = study.check_gradient(graph.output_ids[0], optimized=optimized)
    assert loss.norm == 1 and loss.flag == ""


def test_a_mask_that_swallows_digits_is_no_wrong_gradient():
    """x + −1e9 forgets a step of x: there a difference says nothing."""
    with Graph() as g:
        mask = ops.constant(np.array([[0, -1e9, 0, -1e9]], np.float32))
        g.output(ops.softmax(ops.parameter("w", (1, 4)) + mask).named("p").square().sum_all())
    check = study_of(g).check_gradient(next(n.id for n in g if n.op == "add"))
    assert check.ok and [o.samples for o in check.operands] == [2, 4]


def test_a_wrong_rule_is_named_with_both_values(monkeypatch):
    right = REGISTRY["tanh"].gradient

    def bent(g: Value, out: Value, x: Value) -> tuple[Value, ...]:
        return tuple(entry.scale(1.01) for entry in right(g, out, x))

    monkeypatch.setattr(REGISTRY["tanh"], "gradient", bent)
    with Graph() as g:
        g.output(ops.tanh(ops.parameter("w", (3, 3))).named("h").mean_all())
    check = study_of(g).check_gradient("h")
    assert not check.ok and check.what.startswith("node %1 (tanh h), line ")
    assert " by the rule, " in check.verdict and " by differences, at element " in check.verdict
    rule, slope = (float(part.split(" by ")[0].replace("−", "-")) for part in check.operands[0].problem.split(", ")[:2])
    assert rule / slope == pytest.approx(1.01, rel=1e-5) and check.error == pytest.approx(abs(rule - slope), rel=1e-3)


def test_kinks_and_ops_that_pass_nothing_say_so():
    with Graph() as g:
        w = ops.parameter("w", (4,))
        kink = ops.relu(w - w).named("kink")
        stopped = ops.stop_gradient(w).named("stopped")
        g.output((kink + stopped + w).sum_all())
    study = study_of(g)
    assert "at a kink" in study.check_gradient("kink").verdict
    stop = study.check_gradient("stopped")
    assert stop.ok and stop.samples == 0 and "stops the gradient" in stop.verdict


@pytest.mark.parametrize(
    ("factor", "flag"), [(1, ""), (0, "dead"), (1e-9, "vanishing"), (1e6, "exploding"), (float("nan"), "not finite")]
)
def test_what_arrives_is_flagged(factor: float, flag: str) -> None:
    with Graph() as g:
        h = ops.tanh(ops.parameter("w", (3,))).named("h")
        g.output((h * ops.input("f", (3,))).sum_all())
    study = study_of(g)
    study.session.set_input("f", np.full(3, factor))
    study.prepare(init=0)
    check = study.check_gradient("h")
    assert check.flag == flag and check.ok, "the rule of tanh is right, whatever arrives"
    norm = check.norm
    assert norm == pytest.approx(abs(np.float32(factor)) * np.sqrt(3), nan_ok=True)
    told = check.to_json()
    assert told["norm"] == (None if flag == "not finite" else norm) and told["text"] == check.verdict
    assert str(check).endswith(f"{flag}: l2 norm {sig(norm)}" if flag else f"l2 norm {sig(norm)}")
    study.close()


def test_a_study_for_inference_checks_rules_too():
    with Graph() as g:
        g.output(ops.relu(ops.input("x", (8,))).named("y"))
    check = study_of(g, train=False).check_gradient("y")
    assert isinstance(check, GradientCheck) and check.ok and check.norm is None


def test_what_cannot_be_checked_is_refused():
    study = study_of(networks.mlp())
    with pytest.raises(GraphError, match="small: check_gradient: given 'nope', wanted a name, or an id 0 … 13"):
        study.check_gradient("nope")
    with pytest.raises(GraphError, match="given 99"):
        study.check_gradient(99)
    with pytest.raises(AutodiffError, match="given %0 input, a leaf, wanted an op with operands"):
        study.check_gradient("%0")
    assert study.check_gradient("3" if study.graph.nodes[3].inputs else "2").ok and not study.has_session
