"""`study.look`: a tensor in numbers, exact values, and the difference to the reference or the cpu device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_breaks import written

from gdlab import ops
from gdlab.errors import ArgumentError, SessionError
from gdlab.graph import Graph
from gdlab.reference import evaluate
from gdlab.session.tensors import find_tensor, leaves
from gdlab.study import Study
from gdlab.summary import difference, summarize


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    study = Study(written(), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    study.run(2)
    yield study
    study.close()


def of(study: Study, name: str) -> int:
    return next(n.id for n in study.graph if n.name == name)


@pytest.mark.parametrize("name", ["h", "z"])
def test_a_node_against_the_reference(study: Study, name: str) -> None:
    study.run_to(name)
    found = study.look(name, against="reference", row=3, col=1)
    dispatch, data = study.runner.output()
    feeds = {n: study.session.read_param(n) for n in study.session.param_names()}
    feeds |= {n: study.session.read_input(n) for n in study.session.input_names()}
    want = evaluate(study.graph, feeds)[of(study, name)]
    assert found.summary == summarize(data) and found.place == study.runner.place and dispatch.index in (0, 1)
    assert found.difference == difference(data, want, "the reference")
    assert found.difference.error < 1e-5 and np.array_equal(found.window.values, data[3:19, 1:17])


def test_a_gradient_and_parameters_when_the_update_has_run(study: Study) -> None:
    """What the step began with is known though Adam has changed it: the differences stay small."""
    count = len(study.session.step_dispatches())
    opening = study.session.read_param("w1")
    study.step_dispatch(count)
    assert study.session.step_count == 3 and not study.session.under_way
    kept = leaves(study.session)
    assert kept is not None and np.array_equal(kept["w1"], opening)
    assert not np.array_equal(study.session.read_param("w1"), opening)
    for name in ("w1.grad", "b2.grad", "h"):
        told = study.look(name, against="reference").difference
        assert told is not None and told.error < 1e-5 and told.unlike == 0, name
        told = study.look(name, against="cpu").difference
        assert told is not None and (told.ulp == 0 or study.device.info.kind != "cpu"), name
    moved = study.look("w1", against="reference").difference
    way = float(np.abs(study.session.read_param("w1") - opening).max())
    assert moved is not None and moved.error == pytest.approx(way)


def test_between_steps_the_value_is_told_and_the_difference_is_not(study: Study) -> None:
    found = study.look("w1.grad")
    assert found.place == "after step 2" and found.difference is None
    assert found.summary == summarize(study.session.read_param_grad("w1"))
    with pytest.raises(SessionError, match=r"look: difference of w1.grad: given a step that is over, wanted a step by"):
        study.look("w1.grad", against="reference")
    with pytest.raises(ArgumentError, match="look: against: given 'gpu', wanted one of reference, cpu"):
        study.look("w1", against="gpu")  # type: ignore[arg-type]


def test_without_a_step_there_is_no_value() -> None:
    study = Study(written(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", sgd=0.1, init=0)
    with pytest.raises(SessionError, match="look: h: given no value yet, wanted a step by dispatches up to it"):
        study.look("h")
    assert study.look("w1").summary.n == 192, "a parameter has one"
    study.close()


def test_inference_is_compared_at_any_time(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (2, 3, 4, 8))
        g.output(ops.softmax(x * ops.parameter("s", (2, 3, 4, 8))).named("p"))
    study = Study(g, device=device, name="p")
    study.run(1, feed="random:0", init=0)
    found = study.look("p", against="reference", slice=(1, 2))
    assert found.difference is not None and found.difference.error < 1e-5 and found.window.slice == (1, 2)
    assert np.array_equal(found.window.values, study.session.read_output()[1, 2])
    study.close()


def test_weights_that_lie_packed_are_told_apart(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 8))
        parts = [x @ ops.parameter(name, (8, 6)) for name in ("q", "k", "v")]
        g.output(ops.sum_all(ops.square(parts[0]) * parts[1] + parts[2]))
    study = Study(g, train=True, device=device, name="qkv")
    study.prepare(feed="random:0", sgd=0.1, init=0)
    study.run(1)
    opening = {name: study.session.read_param(name) for name in "qkv"}
    study.step_dispatch(len(study.session.step_dispatches()))
    kept = leaves(study.session)
    assert kept is not None and all(np.array_equal(kept[name], opening[name]) for name in "qkv")
    for name in "qkv":
        tensor = find_tensor(study.session, "test", f"{name}.grad")
        assert tensor.shape == (8, 6) and tensor.writers(study.session.step_dispatches())
        found = study.look(f"{name}.grad", against="reference")
        assert found.difference is not None and found.difference.error < 1e-4
        assert found.summary == summarize(study.session.read_param_grad(name))
    study.runner.back(1)
    assert all(np.array_equal(study.session.read_param(name), opening[name]) for name in "qkv") or (
        len(study.session.update_dispatches()) > 1
    )
    study.close()
