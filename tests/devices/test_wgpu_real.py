"""The wgpu device on compiled plans: what NumPy computes from the same plan, and the same bits each time."""

from __future__ import annotations

from collections.abc import Iterator

import networks
import numpy as np
import pytest
from machine import needs
from wgpu_plans import on_owner

from gdlab.autodiff import differentiate
from gdlab.devices.base import Program
from gdlab.devices.choose import device
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target
from gdlab.plan.update import Recipe, update_of
from gdlab.session.update_settings import Optimizer, scalars

NETWORKS = {"mlp": networks.mlp, "transformer": networks.transformer}


@pytest.fixture(params=["software", "hardware"])
def target(request: pytest.FixtureRequest) -> Target:
    """Both schedules, within what this adapter and every portable one allow."""
    needs("wgpu")
    return Target("wgpu", request.param, Target.portable().limits)


@pytest.fixture
def pair(network: str, target: Target) -> Iterator[tuple[Program, Program]]:
    """The same plan on wgpu and cpu, with the same parameters and inputs."""
    derivative, _ = differentiate(NETWORKS[network]())
    plan = compile(derivative, mode="training", target=target)
    both = room.open().load(plan), device("cpu").load(plan)
    for program in both:
        fill(program, plan)
    yield both
    for program in both:
        on_owner(program.close)


def fill(program: Program, plan: ExecutionPlan) -> None:
    """Parameters near a tenth, inputs of one hot class or noise."""
    rng = np.random.default_rng(3)
    for name, b in (*plan.param_buffers, *plan.input_buffers):
        shape = plan.buffers[b].shape
        hot = np.eye(shape[-1], dtype=np.float32)[rng.integers(shape[-1], size=shape[0])]
        noise = 0.1 * rng.standard_normal(shape, np.float32)
        on_owner(program.upload, b, hot if name == "y" else noise)


def train(program: Program, rule: str, steps: int, *, poison: bool = False) -> list[float]:
    on_owner(program.configure, update_of(program.plan, Recipe(rule), program.update.buffers))
    optimizer = Optimizer(rule, 0.05 if rule == "sgd" else 1e-3, 0.9, 0.999, 1e-8)
    for k in range(1, steps + 1):
        if poison:
            on_owner(program.poison)
        on_owner(program.step, scalars(optimizer, k))
    return [loss for _, loss in on_owner(program.losses, True)]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_compiled_plan_trains_as_on_cpu(pair: tuple[Program, Program]) -> None:
    wgpu, cpu = pair
    given = train(wgpu, "sgd", 20)
    np.testing.assert_allclose(given, train(cpu, "sgd", 20), rtol=2e-5)
    assert given[-1] < given[0]
    np.testing.assert_allclose(train(wgpu, "adam", 3), train(cpu, "adam", 3), rtol=1e-4)
    for b in wgpu.plan.memory.pinned:
        want = on_owner(cpu.download, b)
        scale = float(np.abs(want).max()) or 1.0
        np.testing.assert_allclose(on_owner(wgpu.download, b), want, rtol=0, atol=2e-4 * scale)
    assert wgpu.counters.forwards == 23 and wgpu.counters.dispatches == cpu.counters.dispatches


@pytest.mark.parametrize("network", NETWORKS)
def test_poisoned_slots_change_no_bit(pair: tuple[Program, Program]) -> None:
    wgpu, _ = pair
    before = [on_owner(wgpu.download, b) for _, b in wgpu.plan.param_buffers]
    clean = train(wgpu, "sgd", 5)
    for (_, b), data in zip(wgpu.plan.param_buffers, before, strict=True):
        on_owner(wgpu.upload, b, data)
    assert train(wgpu, "sgd", 5, poison=True) == clean


@pytest.mark.parametrize("network", ["transformer"])
def test_a_poisoned_input_reaches_the_loss(pair: tuple[Program, Program]) -> None:
    wgpu, _ = pair
    b = wgpu.plan.input_buffers[0][1]
    on_owner(wgpu.upload, b, np.full(wgpu.plan.buffers[b].shape, np.nan, np.float32))
    assert np.isnan(train(wgpu, "none", 2)).all()
