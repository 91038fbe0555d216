"""Transitions: wgpu's barriers fall between the groups of a list, not in their midst."""

from __future__ import annotations

import random
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs
from wgpu_plans import on_owner

import gdlab
from benchmarks.memory import NETWORKS
from gdlab.devices.base import Region
from gdlab.devices.wgpu.transitions import MemoryUse, Uses, group_starts, naming, read_ahead
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target
from gdlab.session.builders import SessionConfig, build, compiled


def waits(uses: list[Uses], ahead: dict[int, list[Region]]) -> list[int]:
    """The dispatches before which wgpu waits for earlier ones: it keeps one usage per buffer and pass, and puts a
    barrier before a dispatch for each of its buffers whose usage changes or writes (wgpu-core 29, track/buffer.rs)."""
    usage: dict[int, bool] = {}
    found, under_way = [], False

    def bind(bound: dict[int, bool]) -> bool:
        barrier = any(m in usage and (usage[m] or written) for m, written in bound.items())
        usage.update(bound)
        return barrier

    for i, each in enumerate(uses):
        for bound in ({id(r.memory): False for r in ahead.get(i, ())}, {m: use.written for m, use in each.items()}):
            if bind(bound) and under_way:
                found.append(i)
                under_way = False
        under_way = True
    return found


def random_uses(seed: int, fresh: bool) -> list[Uses]:
    """Dispatches that read some of what earlier ones wrote; each writes a memory, of its own where `fresh`."""
    rng = random.Random(seed)
    memories = [object() for _ in range(80)]
    KEEP.append(memories)
    found: list[Uses] = []
    for i in range(rng.randrange(2, 60)):
        read = rng.sample(memories[: i + 6], min(i + 6, rng.randrange(1, 5)))
        target = memories[i + 10] if fresh else rng.choice(memories[: i + 10])
        uses = {id(m): MemoryUse(False, Region(m, 0, 256)) for m in read}
        found.append(uses | {id(target): MemoryUse(True, Region(target, 0, 256))})
    return found


KEEP: list[Any] = []  # identities are keys


def test_writes_to_new_memory_leave_one_barrier_a_group() -> None:
    saved = 0
    for seed in range(300):
        uses = random_uses(seed, fresh=True)
        starts = group_starts(uses)
        ahead = read_ahead(uses, starts)
        assert waits(uses, ahead) == starts[1:]
        saved += len(waits(uses, {})) - len(starts[1:])
        assert set(ahead) <= set(starts)
    assert saved > 300, "without the names wgpu waits in the midst of groups"


def test_named_reads_never_add_a_barrier() -> None:
    for seed in range(300):
        uses = random_uses(seed, fresh=False)
        ahead = read_ahead(uses, group_starts(uses))
        assert len(waits(uses, ahead)) <= len(waits(uses, {}))
        for start, regions in ahead.items():
            written = {m for use in uses[:start] for m, each in use.items() if each.written}
            assert {id(r.memory) for r in regions} <= written, "what no dispatch has written needs no barrier"


def test_groups_hold_dispatches_without_conflict() -> None:
    a, b, c = object(), object(), object()

    def uses(read: object, write: object) -> Uses:
        return {id(read): MemoryUse(False, Region(read, 0, 4)), id(write): MemoryUse(True, Region(write, 0, 4))}

    assert group_starts([uses(a, b), uses(a, c)]) == [0], "two readers"
    assert group_starts([uses(a, b), uses(b, c)]) == [0, 1], "it reads what was written"
    assert group_starts([uses(a, b), uses(c, a)]) == [0, 1], "it writes what was read"
    assert group_starts([uses(a, b), uses(c, b)]) == [0, 1], "both write it"
    assert group_starts([]) == []


@pytest.mark.parametrize("name", ["xf", "xf, to read", "xf, to write"])
def test_the_barriers_of_a_plan_are_those_between_its_groups(name: str) -> None:
    make, mode = NETWORKS[name]
    plan = compiled(make(), SessionConfig(mode=mode), Target.portable()).plan
    uses = plan_uses(plan)
    ahead = read_ahead(uses, group_starts(uses))
    named = waits(uses, ahead)
    assert len(named) < len(plan.groups), "phases may meet in one group of the device"
    assert len(waits(uses, {})) > len(named) and ahead


def plan_uses(plan: ExecutionPlan) -> list[Uses]:
    """The bindings of every dispatch of a plan, with an object for each slot."""
    slots = [object() for _ in plan.memory.slots]
    KEEP.append(slots)
    found: list[Uses] = []
    for d in plan.dispatches:
        each: dict[int, MemoryUse] = {}
        for buffer, access in d.bindings:
            memory = slots[plan.memory.slot_of[buffer]]
            written = access == "w" or (id(memory) in each and each[id(memory)].written)
            each[id(memory)] = MemoryUse(written, Region(memory, 0, 256))
        found.append(each)
    return found


# on an adapter --------------------------------------------------------------------------------------------------------
@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    needs("wgpu")
    found = gdlab.device("wgpu")
    monkeypatch.setattr(found.gpu, "names_reads", True)  # as on hardware
    return found


def test_steps_give_the_same_bits_with_named_reads(device: Any) -> None:
    graph, losses = networks.transformer(2, 16, 32, 48), []
    for names in (False, True):
        device.gpu.names_reads = names
        session, _ = build(graph, SessionConfig(mode="training", device=device))
        session.initialize(seed=0)
        rng = np.random.default_rng(0)
        for node in graph.inputs:
            session.set_input(node.name, rng.normal(size=node.type.shape).astype(np.float32))
        session.set_adam(1e-3)
        for _ in range(3):
            session.step()
        recorded = session.loaded.program._whole(True)
        assert bool(recorded.keep) == names and len(recorded.rows) == len(recorded.bounds) + len(recorded.keep)
        assert recorded.cuts() and session.loaded.program.counters.dispatches == 3 * len(recorded.bounds)
        losses.append([session.read_loss(), *(session.read_param(n).tobytes() for n in session.param_names())])
        session.close()
    assert losses[0] == losses[1]


def test_many_reads_are_named_in_parts(device: Any) -> None:
    def body() -> list[int]:
        gpu = device.gpu
        regions = [Region(gpu.buffer(256), 0, 256) for _ in range(75)]
        return [len(keep[2]) for _, keep in naming(gpu, regions)]

    sizes = on_owner(body)
    assert sum(sizes) >= 75 and max(sizes) <= min(32, device.gpu.bounds.limits.storage_buffers)
