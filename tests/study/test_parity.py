"""`Study.check`: nothing broke, and when something did, who and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import networks
import numpy as np
import pytest

import gdlab.study.parity as parity
from gdlab import ops
from gdlab.base.errors import DeviceUnavailableError
from gdlab.graph import Graph, Value
from gdlab.rewrite import RULES, Rewrite, rule
from gdlab.study.study import Study
from gdlab.view.answer.making import check_answer


@pytest.fixture
def table() -> Iterator[None]:
    theirs, removed = dict(RULES._theirs), set(RULES._removed)
    yield
    RULES._theirs, RULES._removed = theirs, removed


def small(train: bool = True) -> Study:
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("w", (3, 3))
        h = ops.tanh(x @ w).named("h")
        g.output((h * ops.exp(h)).mean_all() if train else h)
    return Study(g, train=train, device="cpu", name="small")


def test_a_sound_model_agrees_everywhere() -> None:
    study = Study(networks.transformer(length=4, width=8, inner=8), train=True, device="cpu", name="block")
    check = study.check(devices=("cpu",))
    assert check and check.ok and check.columns == ("optimized", "cpu", "differences")
    parameters = [p.name for p in study.graph.parameters]
    assert [row.what for row in check.rows] == ["loss", *(f"∂{name}" for name in parameters)]
    for row in check.rows[1:]:
        cell = row.cells["differences"]
        assert cell.note == "" and cell.error < 1e-6, row
        assert row.cells["cpu"].error > 0, "random values of every parameter, so that no gradient is zero"
    wanted = "block: nothing broke: 1 output and 9 gradients agree with the reference."
    assert check.verdict == str(check).splitlines()[-1] == wanted
    assert not study.has_session, "the study's own session is not touched"


def test_inference_has_outputs_alone() -> None:
    check = small(train=False).check(devices=("cpu",))
    assert check.columns == ("optimized", "cpu") and [row.what for row in check.rows] == ["output 0"]
    assert check.verdict == "small: nothing broke: 1 output agrees with the reference."


def test_where_nothing_is_finite_agreement_tells_nothing() -> None:
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("w", (3,))
        g.output((ops.log(x) * w).mean_all())
        g.output(w * 2.0, name="twice")
    study, none = Study(g, train=True, device="cpu", name="net"), {"x": np.full((4, 3), -1.0)}
    check = study.check(none, devices=("cpu",))
    assert check.ok and check.blind == ("loss", "∂w") and repr(check) == "<Check net: nothing broke>"
    but = "the reference has no finite number in 1 output and 1 gradient, where agreement tells nothing."
    assert check.verdict == f"net: nothing broke: 1 output agrees with the reference; {but}"
    g.set_outputs([g.outputs[0]])
    blind = Study(g, train=True, device="cpu", name="net").check(none, devices=("cpu",))
    assert blind.verdict == f"net: nothing to compare: {but}"
    assert repr(blind) == "<Check net: nothing to compare>"
    assert [check_answer(c, study).level for c in (check, blind)] == ["note", "note"]


@pytest.mark.parametrize("dtype", ["q4", "q8", "bf16", "f16", "q4_k", "q6_k"])
def test_the_reference_has_a_weight_as_devices_hold_it(dtype: str) -> None:
    """Drawn, given as numbers, or in the session, whose blocks would be others if they were encoded again."""
    op, shape = ("matmul", (256, 32)) if dtype in ("q4", "q8") else ("matmul_bt", (32, 256))
    with Graph() as g:
        h = ops.input("x", (4, 256)) @ ops.parameter("first", (256, 256))
        g.output(getattr(ops, op)(h, ops.parameter("w", shape, dtype=dtype)).sum_all())
    values = np.random.default_rng(3).normal(size=shape)
    drawn, given = (Study(g, train=True, device="cpu", weights=weights) for weights in ({}, {"w": values}))
    assert drawn.check(devices=("cpu",)).ok and given.check(devices=("cpu",)).ok
    given.prepare(init=0)
    assert given.check(devices=("cpu",)).ok
    held = given.session.read_param("w")
    assert np.array_equal(np.asarray(given.feeds()["w"]), held) and not np.array_equal(held, values)
    with given.execution.open_on(given.device, given.feeds()) as other:
        assert np.array_equal(other.read_param("w"), held)
    assert len(repr(given.feeds()["w"])) < 2000


def test_blocks_of_a_session_are_not_encoded_again() -> None:
    """The step of this block is 1; of its numbers, encoded again, it would be 5 / 127."""
    with Graph() as g:
        h = ops.input("x", (4, 64)) @ ops.parameter("first", (64, 64))
        g.output((h @ ops.parameter("w", (64, 2), dtype="q8")).sum_all())
    study = Study(g, train=True, device="cpu")
    block = np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)
    study.session.set_parameter_packed("w", block * 4)
    study.prepare(init=0)
    held = study.session.read_param("w")
    assert set(held.ravel()) == set(range(6)) and study.check(devices=("cpu",)).ok
    for values in (study.feeds(), study.execution.parameters()):
        with study.execution.open_on(study.device, values) as other:
            assert np.array_equal(other.read_param("w"), held)


def test_the_check_uses_the_values_of_the_session() -> None:
    study = small()
    study.prepare(init=0)
    study.session.set_input("x", np.full((4, 3), np.nan))
    before = study.session.step_count
    check = study.check(devices=("cpu",))
    assert check.ok, "NaN everywhere is equal to NaN everywhere"
    assert {row.cells["differences"].note for row in check.rows[1:]} == {"not finite"}
    assert study.session.step_count == before
    study.close()


def test_an_unsound_rule_is_named_by_its_node(table: None) -> None:
    RULES.add(unsound_rule())
    check = small().check(devices=("cpu",))
    assert not check and not check.ok
    assert check.verdict.startswith("small: optimized differs from the reference, first at node %3 (tanh h), line ")
    assert check.about == "node:0.3" and "✗" in str(check)
    cells = check.rows[0].cells
    assert cells["optimized"].problem and cells["cpu"].problem and not check.rows[1].cells["differences"].problem


def unsound_rule() -> Any:
    """tanh(x) is x: what `@rule` would refuse; a sound rule with another right side."""

    @rule(label="Tanh→x")
    def tanh_away(x: Value) -> Rewrite:
        return ops.tanh(x) >> ops.tanh(ops.neg(ops.neg(x)))

    RULES.remove("tanh_away")
    return replace(tanh_away, right=tanh_away.pattern.node(tanh_away.left).inputs[0])


def test_a_broken_device_is_named_by_its_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    study = small()
    real = parity.evaluate

    def bent(graph: Graph, feeds: object, hook: object = None) -> dict[int, np.ndarray]:
        """The judge thinks that tanh is 1 % larger, everywhere: then the device is the one that differs."""
        values = real(graph, feeds)  # type: ignore[arg-type]
        for node in graph:
            if node.op == "tanh":
                values[node.id] = values[node.id] * 1.01
        return values

    monkeypatch.setattr(parity, "evaluate", bent)
    check = study.check(devices=("cpu",))
    # outputs are not recomputed from the bent node, so only a search dispatch by dispatch can see it
    assert check.ok
    with study.open_on(study.device) as session:
        feeds = study.feeds()
        session.set_input("x", feeds["x"])
        session.set_parameter("w", feeds["w"])
        words, about = parity.first_dispatch(session, bent(study.final, feeds), 1e-5)
    number = int(about.removeprefix("dispatch:"))
    at = [n.id for n in study.final if n.op == "tanh"][0]
    assert at in study.plan.dispatches[number].origin and words.startswith(f"in dispatch {number} (")
    assert "(tanh h)" in words


def test_a_wrong_gradient_is_seen_by_differences() -> None:
    study = small()
    feeds = study.feeds()
    good = parity.evaluate(study.written_derivative[0], feeds)
    gradient = good[study.written_derivative[0].output_ids[1]]
    sound, wrong = (parity.differences(study.graph, feeds, {"w": g})["w"] for g in (gradient, gradient * 1.001))
    assert sound.problem == "" and sound.error < 1e-8
    assert "by the gradient" in wrong.problem and "by differences" in wrong.problem


def test_a_kink_and_a_stopped_gradient_are_no_faults() -> None:
    with Graph() as g:
        g.output(ops.relu(ops.parameter("w", (3,))).sum_all())
    graph = Study(g, train=True, device="cpu").graph
    assert parity.differences(graph, {"w": np.zeros(3)}, {"w": np.zeros(3)})["w"].note == "kink"
    with Graph() as g:
        w = ops.parameter("w", (3,))
        g.output((ops.stop_gradient(w) * w).sum_all())
    check = Study(g, train=True, device="cpu").check(devices=("cpu",))
    assert check.ok and check.rows[1].cells["differences"].note == "stop_gradient"


def test_steps_of_float32_are_counted() -> None:
    want = np.array([1.0, 2.0])
    got = np.array([1.0 + 2**-23, 2.0], np.float32)
    cell = parity.cell_of(got, want, want, 1e-5)
    assert (cell.ulp, cell.problem) == (1.0, "") and cell.error == 2**-23
    assert parity.cell_of(got + 1, want, want, 1e-5).problem.startswith("2 of 2 differ")


def test_a_device_that_is_not_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(kind: str) -> None:
        raise DeviceUnavailableError("device", kind, "no adapter", "a driver")

    monkeypatch.setattr(parity, "choose_device", none)
    check = small().check(devices=("wgpu",))
    assert check.columns == ("optimized", "differences") and check.notes == ("wgpu: not compared: no adapter",)
