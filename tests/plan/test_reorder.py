"""Order of dispatches: any order inside a group, and the wider groups of `reorder`, give the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import networks
import numpy as np
import plans
import pytest
import slot_checker
from random_graphs import random_feeds, random_graph
from slot_checker import SlotHazard, judge

import gdlab as gd
from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError
from gdlab.devices.cpu.cpu_device import CpuDevice
from gdlab.graph import Graph
from gdlab.plan import compile
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.dispatch import SCALARS
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions
from gdlab.session import SessionConfig, build, build_session

CPU = CpuDevice()
REORDER = CompileOptions(reorder=True)
GRAPHS = 300


@cache
def training(seed: int) -> Graph:
    """Differentiated where it can be: a write into a cache, say, has no gradient."""
    graph = random_graph(seed, scalar_loss=True)
    try:
        return differentiate(graph)[0]
    except AutodiffError:
        return graph


def planned(graph: Graph, options: CompileOptions = plans.DEFAULT) -> ExecutionPlan:
    return compile(graph, mode="training", options=options, target=CPU.target)


def permuted(plan: ExecutionPlan, seed: int) -> ExecutionPlan:
    """The dispatches of every group in another order."""
    rng = np.random.default_rng(seed)
    order = [int(i) for g in plan.groups for i in g.start + rng.permutation(g.stop - g.start)]
    return replace(plan, dispatches=tuple(slot_checker.in_order(plan, order)))


def bits(plan: ExecutionPlan, seed: int) -> list[bytes]:
    """Outputs and gradients after two steps, the second one over slots that hold NaN."""
    program = plans.load(CPU, plan, random_feeds(plan.graph, seed))
    for _ in range(2):
        program.poison()
        program.step(np.zeros(len(SCALARS), np.float32) if plan.reads_scalars else None)
    found = [a.tobytes() for a in plans.outputs(program)]
    program.close()
    return found


@pytest.mark.parametrize("part", range(6))
def test_random_plans_give_the_same_bits_in_every_order(part: int) -> None:
    moved = fewer = 0
    for seed in range(part, GRAPHS, 6):
        plan = planned(training(seed))
        wide = planned(training(seed), REORDER)
        want = bits(plan, seed)
        for other in (permuted(plan, seed), wide, permuted(wide, seed + 1)):
            judge(other)
            assert bits(other, seed) == want, f"seed {seed}"
        moved += [d.label for d in permuted(plan, seed).dispatches] != [d.label for d in plan.dispatches]
        fewer += len(wide.groups) < len(plan.groups)
    assert moved > 20 and fewer > 20, (moved, fewer)


def longest_chain(plan: ExecutionPlan) -> int:
    """Dispatches on the longest path through values: no order has fewer groups."""
    length: dict[int, int] = {}
    for d in plan.dispatches:
        length[d.output] = 1 + max((length.get(o.buffer, 0) for o in d.operands), default=0)
    return max(length.values())


NETWORKS = {"tour": networks.mlp, "transformer": networks.transformer, "lm": gd.models.transformer_lm}


@pytest.mark.parametrize("name", NETWORKS)
def test_groups_are_as_few_as_the_longest_chain_is_long(name: str) -> None:
    graph = differentiate(NETWORKS[name]())[0]
    plan, wide = planned(graph), planned(graph, REORDER)
    assert len(wide.groups) == longest_chain(wide) < len(plan.groups) == wide.groups_before
    assert plan.order_before == () and sorted(wide.order_before) == list(range(len(plan.dispatches)))
    there = [plan.dispatches[k] for k in wide.order_before]
    assert [(d.label, d.origin, d.phase) for d in there] == [(d.label, d.origin, d.phase) for d in wide.dispatches]
    assert from_json(to_json(wide)) == wide != plan


def test_a_session_trains_alike_with_reordered_dispatches(device: str) -> None:
    images, labels, _ = networks.digits()
    found = []
    for options in (CompileOptions(), REORDER):
        with build(networks.mlp(), SessionConfig(device=device, compile=options))[0] as session:  # type: ignore[arg-type]
            session.initialize(0)
            session.set_adam(2e-3)
            session.set_input("x", images[:64])
            session.set_input("y", labels[:64])
            for _ in range(5):
                session.step()
            found.append((session.read_loss(), session.read_param("w1").tobytes(), session.num_groups()))
    assert found[0][:2] == found[1][:2] and found[1][2] < found[0][2]


def test_serial_wins_over_reorder() -> None:
    plan = planned(training(1), CompileOptions(serial=True, reorder=True))
    assert len(plan.groups) == len(plan.dispatches)


# the judge ------------------------------------------------------------------------------------------------------------
PLAN = planned(differentiate(networks.mlp())[0])


def test_every_plan_of_every_test_is_judged() -> None:
    before = slot_checker.JUDGED[0]
    build_session(networks.mlp(), "cpu").close()
    compile(plans.regression(), mode="training")
    assert slot_checker.JUDGED[0] == before + 2


def merged(plan: ExecutionPlan, number: int) -> ExecutionPlan:
    """Group `number` and the one behind it as one."""
    one, two = plan.groups[number : number + 2]
    groups = (*plan.groups[:number], replace(one, stop=two.stop), *plan.groups[number + 2 :])
    moved = tuple(replace(d, group=d.group - (d.group > number)) for d in plan.dispatches)
    return replace(plan, groups=groups, dispatches=moved)


def sharing(plan: ExecutionPlan, a: int, b: int) -> ExecutionPlan:
    """Buffer b in the slot of buffer a."""
    slot_of = list(plan.memory.slot_of)
    slot_of[b] = slot_of[a]
    return replace(plan, memory=replace(plan.memory, slot_of=tuple(slot_of)))


def test_the_judge_sees_groups_that_are_too_wide() -> None:
    for number in range(len(PLAN.groups) - 1):
        with pytest.raises(SlotHazard):
            judge(merged(PLAN, number))


def test_the_judge_sees_slots_that_are_shared_too_early() -> None:
    lives = PLAN.memory.intervals
    inner = [b.id for b in PLAN.buffers if b.kind == "intermediate"]
    caught = 0
    for a in inner:
        for b in inner:
            meet = lives[a].first_group <= lives[b].first_group <= lives[a].last_group
            if a != b and meet and PLAN.memory.slot_of[a] != PLAN.memory.slot_of[b]:
                with pytest.raises(SlotHazard):
                    judge(sharing(PLAN, a, b))
                caught += 1
    assert caught > 5


def test_the_judge_sees_kept_buffers_in_one_slot_and_two_writers() -> None:
    (_, x), (_, y) = PLAN.input_buffers
    with pytest.raises(SlotHazard, match="are both kept in slot"):
        judge(sharing(PLAN, x, y))
    twice = replace(PLAN.dispatches[1], results=PLAN.dispatches[0].results)
    with pytest.raises(SlotHazard):
        judge(replace(PLAN, dispatches=(PLAN.dispatches[0], twice, *PLAN.dispatches[2:])))
