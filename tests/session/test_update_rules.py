"""Update rules as records: a rule in one place trains on every device, is checked, saved and shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs

from gdlab import ops
from gdlab.base.errors import ArgumentError, CheckpointError, SessionError, UnknownNameError
from gdlab.base.types import Array
from gdlab.graph import Graph, Value
from gdlab.op.machines import Machine
from gdlab.plan.rules import RULES, Number, UpdateRule, update_rule
from gdlab.plan.rules.rule_record import register
from gdlab.session import Optimizer, Session, build_session
from gdlab.view.document.dispatches import Labels, plan_section


def add_lion() -> UpdateRule:
    """All that a new rule needs: in the package this function is a file of `gdlab/plan/rules/`."""

    @update_rule(
        "Lion", Number("lr", "rate", 1e-4), Number("beta1", "fraction", 0.9), Number("beta2", "fraction", 0.99),
        Number("shrink", "rate", 0.0),
    )  # fmt: skip
    def lion(
        p: Value, g: Value, m: Value, *, lr: Value, beta1: Value, beta2: Value, shrink: Value
    ) -> tuple[Value, ...]:
        """Chen and others, Symbolic discovery of optimization algorithms, 2023."""
        direction = ops.sign(beta1 * m + (1 - beta1) * g)
        return p - lr * (direction + shrink * p), beta2 * m + (1 - beta2) * g

    return lion


@pytest.fixture
def lion() -> Iterator[UpdateRule]:
    yield add_lion()
    del RULES["lion"]


@pytest.fixture(params=["cpu", "wgpu"])
def device(request: Any) -> str:
    if request.param == "wgpu":
        needs("wgpu")
    return str(request.param)


SIZES = {"w": (5, 3), "v": (4,), "u": (300, 7)}


def graph() -> Graph:
    """Σ p·x over three parameters: the gradient of p is x."""
    with Graph() as g:
        terms = [ops.sum_all(ops.parameter(n, s) * ops.input(f"x.{n}", s)) for n, s in SIZES.items()]
        g.set_outputs(terms[0] + terms[1] + terms[2])
    return g


def prepared(device: str, rule: Optimizer) -> tuple[Session, dict[str, Array], dict[str, Array]]:
    session, rng = build_session(graph(), device=device), np.random.default_rng(3)
    start = {n: rng.standard_normal(s, np.float32) for n, s in SIZES.items()}
    gradients = {n: rng.standard_normal(s, np.float32) for n, s in SIZES.items()}
    for n in SIZES:
        session.set_parameter(n, start[n])
        session.set_input(f"x.{n}", gradients[n])
    session.set_optimizer(rule)
    return session, start, gradients


def lion_loop(p: Array, g: Array, steps: int, lr: float, shrink: float = 0.0) -> tuple[Array, Array]:
    p, g = p.astype(float), g.astype(float)
    m = np.zeros_like(p)
    for _ in range(steps):
        p, m = p - lr * (np.sign(0.9 * m + 0.1 * g) + shrink * p), 0.99 * m + 0.01 * g
    return p, m


def test_a_rule_in_one_place_trains(lion: UpdateRule, device: str) -> None:
    assert (lion.state, lion.scalars) == (("lion_m",), ("lr", "beta1", "beta2", "shrink"))
    session, start, gradients = prepared(device, Optimizer.of("lion", lr=0.01, shrink=0.1))
    with session:
        assert str(session.optimizer) == "Lion, lr 0.01" and session.optimizer.numbers["shrink"] == 0.1
        assert session.update_dispatches()[0].label.startswith("Lion[")
        assert session.memory_summary().aux_bytes > 0 and session.memory_summary().adam_state_bytes == 0
        for _ in range(5):
            session.step()
        for n in SIZES:
            p, m = lion_loop(start[n], gradients[n], 5, 0.01, 0.1)
            np.testing.assert_allclose(session.read_param(n), p, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(session.updates.read_moment("test", "lion_m.", n), m, rtol=1e-5, atol=1e-7)
        assert session.adam_step_count() == 0
        empty = [""] * len(session.plan().graph)
        labels, rule = Labels(empty, empty), str(session.optimizer)
        section = plan_section(session.plan(), session.update, 0, rule, labels, Machine()).plan
        assert "lion" in str(section["kernels"]["entry"]) and "update" in str(section["kernels"]["family"])


def test_clipping_accumulation_and_factors_reach_every_rule(lion: UpdateRule, device: str) -> None:
    session, start, gradients = prepared(device, Optimizer.of("momentum", lr=0.1))
    with session:
        session.set_lr_multiplier("v", 0.5)
        session.set_grad_clip_norm(1.0)
        session.set_grad_accumulate(2)
        for _ in range(4):
            session.step()
        norm = np.sqrt(sum(float((g.astype(float) ** 2).sum()) for g in gradients.values()))
        for n in SIZES:
            k, g = 0.5 if n == "v" else 1.0, gradients[n] / norm
            np.testing.assert_allclose(session.read_param(n), start[n] - 0.1 * k * (g + 1.9 * g), rtol=1e-4, atol=1e-5)


# `spec/eager_session.md` §11: p = 1, lr = 0.1, g = 0.5 then −0.25
TABLE = {
    "sgd": (0.95, 0.975), "adam": (0.900000002, 0.873366299), "adamw": (0.899000002, 0.871467299),
    "momentum": (0.95, 0.93), "nesterov": (0.905, 0.912), "adagrad": (0.9, 0.944721360),
    "rmsprop": (0.683772254, 0.831214201), "adadelta": (0.996837786, 0.998922873),
}  # fmt: skip


@pytest.mark.parametrize("rule", TABLE)
def test_rules_of_the_table(rule: str, device: str) -> None:
    with Graph() as g:
        g.set_outputs(ops.sum_all(ops.parameter("p", (3,)) * ops.input("g", (3,))))
    with build_session(g, device=device) as session:
        session.set_parameter("p", np.ones(3))
        session.set_optimizer(Optimizer.of(rule, lr=1.0 if rule == "adadelta" else 0.1))
        for gradient, want in zip((0.5, -0.25), TABLE[rule], strict=True):
            session.set_input("g", np.full(3, gradient))
            session.step()
            np.testing.assert_allclose(session.read_param("p"), want, rtol=2e-6)


def test_states_of_a_rule_are_saved(lion: UpdateRule, device: str, tmp_path: Path) -> None:
    session, _, _ = prepared(device, Optimizer.of("lion", lr=0.01))
    other, _, _ = prepared(device, Optimizer())
    with session, other:
        session.step()
        session.save_checkpoint(tmp_path / "a")
        memory = session.snapshot()
        session.step()
        want = {n: session.read_param(n) for n in SIZES}
        session.restore(memory, 1)
        other.load_checkpoint(tmp_path / "a")
        other.set_optimizer(Optimizer.of("lion", lr=0.01))
        for s in (session, other):
            s.step()
            assert all(np.array_equal(s.read_param(n), want[n]) for n in SIZES)
        del RULES["lion"]
        with pytest.raises(CheckpointError, match="state lion_m: given that of an update rule, wanted one of ad"):
            build_session(graph(), device="cpu").load_checkpoint(tmp_path / "a")
        RULES["lion"] = lion


# refusals -------------------------------------------------------------------------------------------------------------
def test_numbers_are_checked_by_the_record() -> None:
    with pytest.raises(UnknownNameError, match=r"Optimizer.of: rule: given adm, wanted one of .*sgd; nearest: adam"):
        Optimizer.of("adm")
    with pytest.raises(UnknownNameError, match="rule: given clear"):
        Optimizer.of("clear")
    with pytest.raises(UnknownNameError, match="number of momentum: given beta1"):
        Optimizer.of("momentum", beta1=0.9)
    with pytest.raises(SessionError, match=r"Optimizer.of: momentum: given 1.5, wanted a number in \[0, 1\)"):
        Optimizer.of("momentum", momentum=1.5)
    with pytest.raises(SessionError, match="Optimizer.of: epsilon: given 0, wanted a number > 0"):
        Optimizer.of("adagrad", epsilon=0)
    with build_session(graph(), device="cpu") as session:
        session.set_adam(0.1)
        with pytest.raises(SessionError, match="set_optimizer: lr: given -1, wanted a finite number ≥ 0"):
            session.set_optimizer(Optimizer("sgd", -1))
        with pytest.raises(SessionError, match="set_optimizer: rule: given str, wanted an Optimizer"):
            session.set_optimizer("adam")  # type: ignore[arg-type]
        assert session.optimizer == Optimizer.adam(0.1)
        session.set_optimizer(Optimizer())
        assert session.update_dispatches() == ()


def test_records_are_checked() -> None:
    def form(p: Value, g: Value, *, lr: Value) -> tuple[Value, ...]:
        return (p - lr * ops.softmax(g),)

    with pytest.raises(ArgumentError, match="update rule: name: given 'adam', wanted a new identifier"):
        register(UpdateRule("adam", "Adam", (Number("lr", "rate"),), scalars=("lr",), form=form))
    with pytest.raises(ArgumentError, match="update rule a: numbers: given numbers \\[\\], scalars \\[\\], wanted lr"):
        register(UpdateRule("a", "A", form=form))
    with pytest.raises(ArgumentError, match="update rule a: kernel: given both or neither"):
        register(UpdateRule("a", "A", (Number("lr", "rate"),), scalars=("lr",)))
    with pytest.raises(ArgumentError, match="update rule a: scalars: .* at most 7 of its own"):
        names = tuple(f"n{i}" for i in range(8))
        register(UpdateRule("a", "A", (Number("lr", "rate"),), scalars=("lr", *names), form=form))
    assert "a" not in RULES
    rule = register(UpdateRule("soft", "Soft", (Number("lr", "rate", 0.1),), scalars=("lr",), form=form))
    try:
        with build_session(graph(), device="cpu") as session:
            with pytest.raises(ArgumentError, match="update rule soft: form: given softmax, wanted elementwise ops"):
                session.set_optimizer(Optimizer.of("soft"))
            assert session.optimizer == Optimizer() and rule.buffers == 2
    finally:
        del RULES["soft"]


def test_what_no_step_changes_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a small step on cpu went into names and places of the rule's numbers."""
    calls: list[object] = []
    rounded = UpdateRule.rounded
    monkeypatch.setattr(UpdateRule, "rounded", lambda self, *rest: calls.append(self) or rounded(self, *rest))
    with Graph() as g:
        g.output((ops.input("x", (3,)) * ops.parameter("w", (3,))).sum_all())
    with build_session(g, device="cpu") as session:
        session.initialize()
        session.set_input("x", np.ones(3))
        session.set_adam(0.0123)
        session.step(20)
        session.set_adam(0.0123, beta1=0.8)
        session.step(20)
    assert len(calls) == 2
