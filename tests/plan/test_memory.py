"""Placement: what networks allocate beside what is alive, and the ways to place: one after another, side by side."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from slot_checker import SlotHazard, judge

from benchmarks.memory import BAR, NETWORKS, convolutional, footprint, live_bytes
from gdlab import nn, ops
from gdlab.base.errors import CompileError, LoadError
from gdlab.devices.fit import Place, plan_places
from gdlab.graph import Graph
from gdlab.plan import compile, memory
from gdlab.plan.memory import (
    Lives,
    _apart,
    _bytes,
    _in_time,
    _largest_first,
    _placed,
    _shared,
    _side_by_side,
    successors,
)
from gdlab.plan.records import ExecutionPlan, Slot
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.verify import Tenant, clashes, verify
from gdlab.session.builders import SessionConfig, compiled


@pytest.mark.parametrize("name", NETWORKS)
def test_plans_take_little_more_than_what_is_alive(name: str) -> None:
    found = footprint(name, Target.portable())
    assert found.live <= found.physical <= BAR * found.live
    assert (found.beside > 0) == (name == "convolutions"), "side by side costs barriers: only where it must be"


def test_what_is_alive_is_counted_by_dispatch() -> None:
    build, mode = NETWORKS["tour, to read"]
    plan = compiled(build(), SessionConfig(mode=mode), Target("cpu", "cpu", Target.portable().limits)).plan
    kept = 4 * (64 * 64 + 64 * 128 + 128 + 128 * 10 + 10 + 64 * 10)
    assert live_bytes(plan) == kept + 4 * (64 * 128 + 64 * 10), "the hidden layer and the logits meet"
    alone = compile(plan.graph, mode="inference", options=CompileOptions(alias=False), target=plan.target)
    assert live_bytes(alone) == live_bytes(plan) < alone.memory.physical_bytes + 1


def random_lives(seed: int) -> Lives:
    """Up to 40 buffers over 30 groups; one in eight is a giant."""
    rng = random.Random(seed)
    lives: Lives = {}
    for b in range(rng.randrange(1, 41)):
        first = rng.randrange(30)
        size = 256 * (rng.randrange(100, 400) if rng.random() < 0.12 else rng.randrange(1, 20))
        lives[b] = (size, first, min(29, first + rng.randrange(8)))
    return lives


def peak(lives: Lives) -> int:
    return max(sum(n for n, first, last in lives.values() if first <= g <= last) for g in range(30))


@pytest.mark.parametrize("place", [_in_time, _largest_first])
def test_tenants_of_a_slot_live_one_after_the_other(place: object) -> None:
    for seed in range(200):
        lives = random_lives(seed)
        new = set(random.Random(seed).sample(sorted(lives), len(lives) // 4))
        placed = place(lives, new)  # type: ignore[operator]
        assert sorted(b for tenants in placed for b in tenants) == sorted(lives)
        for tenants in placed:
            for one, other in zip(tenants, tenants[1:], strict=False):
                assert lives[one][2] < lives[other][1], (seed, tenants)
            assert new.isdisjoint(tenants[1:]), "these begin a slot"


def test_the_smaller_placement_wins_and_each_wins_somewhere() -> None:
    wins = {"time": 0, "size": 0}
    for seed in range(200):
        lives = random_lives(seed)
        ways = _in_time(lives, set()), _largest_first(lives, set()), _shared(lives, set(), peak(lives))
        a, b, taken = (_bytes(p, lives) for p in ways)
        assert peak(lives) <= taken and taken <= max(min(a, b), 1.02 * peak(lives))
        wins["time"] += a < b
        wins["size"] += b < a
    assert min(wins.values()) > 5, wins


def test_a_late_giant_makes_the_slot_of_those_before() -> None:
    lives: Lives = {0: (1024, 0, 1), 1: (512, 1, 9), 2: (256, 2, 9), 3: (2048, 8, 9)}
    none = set[int]()
    assert _in_time(lives, none) == [[0, 2], [1], [3]], "in time the small one takes the only free slot, for long"
    assert _largest_first(lives, none) == [[0, 3], [1], [2]] == _shared(lives, none, peak(lives))
    assert _in_time(lives, {2}) == [[0, 3], [1], [2]] == _largest_first(lives, {2})


def test_on_hardware_writes_in_the_midst_of_a_group_begin_a_slot() -> None:
    build, mode = NETWORKS["xf"]
    for target, wanted in ((Target.portable(), True), (Target("cpu", "cpu", Target.portable().limits), False)):
        plan = compiled(build(), SessionConfig(mode=mode), target).plan
        begins = {group.start for group in plan.groups}
        later = {b for slot in plan.memory.slots for b in slot.tenants[1:]}
        midst = [b for b in later if plan.memory.intervals[b].first not in begins]
        assert (not midst) == wanted and later, "slots are shared either way"


def test_slots_are_shared_where_memory_of_their_own_takes_too_much() -> None:
    lives: Lives = {b: (1024, b, b) for b in range(10)}
    assert _placed(lives, set(range(1, 10)), 0, 1024) == _shared(lives, set(), 1024) == [list(range(10))]
    assert len(_placed(lives, {3}, 64 << 10, 65 << 10)) == 2, "beside much else it is little"


# side by side ---------------------------------------------------------------------------------------------------------
def random_apart(lives: Lives, seed: int) -> dict[int, set[int]]:
    """Pairs of buffers that must not meet in a slot, some of which live at once."""
    rng = random.Random(seed)
    apart: dict[int, set[int]] = {b: set() for b in lives}
    for a, b in itertools.combinations(lives, 2):
        if rng.random() < 0.1:
            apart[a].add(b)
            apart[b].add(a)
    return apart


def test_tenants_side_by_side_share_no_byte_while_they_live_and_stand_apart_where_they_must() -> None:
    beside = smaller = 0
    for seed in range(200):
        lives = random_lives(seed)
        apart = random_apart(lives, seed)
        placed, start = _side_by_side(lives, apart)
        assert sorted(b for tenants in placed for b in tenants) == sorted(lives) == sorted(start)
        assert all(at % 256 == 0 for at in start.values())
        for tenants in placed:
            assert [lives[b][1] for b in tenants] == sorted(lives[b][1] for b in tenants)
            for a, b in itertools.combinations(tenants, 2):
                if lives[a][2] < lives[b][1] or lives[b][2] < lives[a][1]:
                    continue
                assert start[a] + lives[a][0] <= start[b] or start[b] + lives[b][0] <= start[a], (seed, a, b)
                assert b not in apart[a], (seed, a, b)
                beside += 1
        size = _bytes(placed, lives, start)
        assert peak(lives) <= size <= sum(nbytes for nbytes, _, _ in lives.values())
        smaller += size < _bytes(_shared(lives, set(), 0), lives)
    assert beside > 1000 and smaller > 100


def test_two_small_buffers_stand_where_a_large_one_was() -> None:
    lives: Lives = {0: (1024, 0, 1), 1: (512, 2, 4), 2: (256, 3, 4), 3: (256, 3, 5)}
    placed, start = _side_by_side(lives, {})
    assert (placed, start) == ([[0, 1, 2, 3]], {0: 0, 1: 0, 2: 512, 3: 768})
    assert _bytes(placed, lives, start) == 1024
    placed, start = _side_by_side(lives, {2: {1}, 1: {2}})
    assert (placed, start) == ([[0, 1, 3], [2]], {0: 0, 1: 0, 2: 0, 3: 512}), "a dispatch reads 1 and writes 2"


def test_the_smallest_gap_is_taken() -> None:
    lives: Lives = {0: (1024, 0, 1), 1: (768, 0, 1), 2: (256, 2, 3), 3: (512, 2, 3)}
    assert _side_by_side(lives, {}) == ([[0], [1, 3, 2]], {0: 0, 1: 0, 3: 0, 2: 512})


def trained(graph: Graph) -> ExecutionPlan:
    return compiled(graph, SessionConfig(mode="training"), Target.portable()).plan


@cache
def convolutions() -> ExecutionPlan:
    return trained(convolutional(16, 32, (16, 32, 64)))


def touched(plan: ExecutionPlan, group: int) -> tuple[set[int], set[int]]:
    """The slots that a barrier group touches, and those of several of its buffers of which one is written."""
    used: dict[int, set[int]] = {}
    written: set[int] = set()
    for d in plan.dispatches:
        if d.group == group:
            for b in (*d.reads, *d.writes):
                used.setdefault(plan.memory.slot_of[b], set()).add(b)
            written |= {plan.memory.slot_of[b] for b in d.writes}
    return set(used), {slot for slot in written if len(used[slot]) > 1}


def test_no_group_of_a_plan_waits_for_a_neighbour() -> None:
    """A write beside a buffer that the same group uses would order its dispatches on the device."""
    plan = convolutions()
    assert any(plan.memory.offset_of)
    for group in range(len(plan.groups)):
        used, shared = touched(plan, group)
        assert used and not shared
    a, b = next((a, b) for d in plan.dispatches for a in d.reads for b in d.writes if a != b)
    assert b in _apart(plan.dispatches)[a] and a in _apart(plan.dispatches)[b]


def test_offsets_go_through_json_and_give_the_places_of_devices() -> None:
    plan = convolutions()
    again = ExecutionPlan.from_json(plan.to_json())
    assert again == plan and any(again.memory.offset_of)
    with pytest.raises(LoadError, match="offset_of"):
        ExecutionPlan.from_json(plan.to_json().replace('"offset_of"', '"offsets"'))
    for buffer, place in plan_places(again).items():
        offset = plan.memory.offset_of[buffer]
        assert place.offset == offset and place.buffer.id == buffer
        assert place.buffer.nbytes <= place.bound <= place.nbytes - offset
    row = next(b for b in plan.buffers if b.nbytes == 640)
    assert [Place(row, ("slot", 0), 1020, at).bound for at in (0, 256)] == [768, 764], "a binding ends with its slot"


def test_later_tenants_of_the_same_bytes_are_the_successors_of_a_buffer() -> None:
    plan = convolutions()
    pairs = beside = 0
    for slot in plan.memory.slots:
        for at, b in enumerate(slot.tenants):
            start, stop = plan.memory.offset_of[b], plan.memory.offset_of[b] + plan.buffers[b].nbytes
            bytes_of = set(range(start, stop, 4))
            wanted = [
                t for t in slot.tenants[at + 1 :]
                if bytes_of & set(range(plan.memory.offset_of[t], plan.memory.offset_of[t] + plan.buffers[t].nbytes, 4))
            ]  # fmt: skip
            assert list(successors(plan, b)) == wanted
            pairs += len(wanted)
            beside += len(slot.tenants) - at - 1 - len(wanted)
    assert pairs > 5 and beside > 2


def classifier(stored: bool) -> Graph:
    """Three convolutions; with `stored` the means of the channels are kept in 16 bits."""
    with Graph() as g:
        h = ops.input("x", (16, 3, 32, 32))
        for i, (channels, width) in enumerate(((3, 16), (16, 32), (32, 64))):
            h = ops.relu(nn.Conv2d(f"conv{i}", channels, width, 3, padding=1)(h))
            h = ops.max_pool_2d(h, (2, 2), (2, 2))
        means = ops.global_avg_pool(h)
        logits = nn.Linear("head", 64, 10)(ops.to_f16(means) if stored else means)
        g.output(ops.cross_entropy_loss(logits, ops.input("labels", (16, 10))))
    return g


def test_little_memory_many_buffers_and_values_in_16_bits_stay_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = trained(convolutional(2, 24, (16, 32, 64))).memory
    assert small.physical_bytes > 1.12 * small.peak_bytes and not any(small.offset_of), "64 KB are not worth a barrier"
    for stored in (False, True):
        plan = trained(classifier(stored))
        assert any(b.dtype.is_storage for b in plan.buffers) == stored
        assert any(plan.memory.offset_of) != stored
    monkeypatch.setattr(memory, "MOST_BESIDE", 10)
    assert not any(trained(convolutional(16, 32, (16, 32, 64))).memory.offset_of)


# what is refused ------------------------------------------------------------------------------------------------------
def neighbours(plan: ExecutionPlan) -> tuple[int, int]:
    """Two buffers that live in one slot at once, the second one behind the first byte."""
    lives, home = plan.memory.intervals, plan.memory
    return next(
        (a, b)
        for slot in home.slots
        for a, b in itertools.permutations(slot.tenants, 2)
        if home.offset_of[b] > home.offset_of[a]
        and lives[a].first_group <= lives[b].last_group
        and lives[b].first_group <= lives[a].last_group
    )


def moved(plan: ExecutionPlan, buffer: int, offset: int, room: int = 0) -> ExecutionPlan:
    """The plan with a buffer at another byte of its slot, which has `room` more bytes."""
    offsets, slots, slot = list(plan.memory.offset_of), list(plan.memory.slots), plan.memory.slot_of[buffer]
    offsets[buffer], slots[slot] = offset, replace(slots[slot], nbytes=slots[slot].nbytes + room)
    return replace(plan, memory=replace(plan.memory, offset_of=tuple(offsets), slots=tuple(slots)))


def onto_its_neighbour() -> ExecutionPlan:
    plan = convolutions()
    a, b = neighbours(plan)
    return moved(plan, b, plan.memory.offset_of[a], plan.memory.slots[plan.memory.slot_of[b]].nbytes)


def beside_what_it_reads() -> ExecutionPlan:
    """The result of a dispatch behind its operand, in one slot."""
    plan = convolutions()
    inner = {b.id for b in plan.buffers} - {*plan.memory.pinned}
    a, b = next((a, b) for d in plan.dispatches for a in d.reads for b in d.writes if {a, b} <= inner and a != b)
    slot_of, offsets, slots = list(plan.memory.slot_of), list(plan.memory.offset_of), list(plan.memory.slots)
    old, new = slot_of[b], slot_of[a]
    slots[old] = Slot(slots[old].nbytes, tuple(t for t in slots[old].tenants if t != b))
    slot_of[b], offsets[b] = new, slots[new].nbytes
    slots[new] = Slot(slots[new].nbytes + -(-plan.buffers[b].nbytes // 256) * 256, (*slots[new].tenants, b))
    memory = replace(plan.memory, slot_of=tuple(slot_of), offset_of=tuple(offsets), slots=tuple(slots))
    return replace(plan, memory=memory)


def behind(kind: str) -> ExecutionPlan:
    """A buffer of a kind, or one in 16 bits, behind the first 256 bytes of a slot with room for it."""
    plan = trained(classifier(True)) if kind == "16 bits" else convolutions()
    b = next(b for b in plan.buffers if (b.dtype.is_storage if kind == "16 bits" else b.kind == kind))
    return moved(plan, b.id, 256, 256)


def side() -> tuple[ExecutionPlan, int]:
    return convolutions(), neighbours(convolutions())[1]


OFFSET = r"slot \d+: offset of buffer \d+: given "
BAD: dict[str, tuple[Callable[[], ExecutionPlan], str, bool]] = {  # the plan, its error, whether its values are wrong
    "a neighbour's bytes": (onto_its_neighbour, r"slot \d+: lives: given buffer \d+ until group", True),
    "in one dispatch": (beside_what_it_reads, r"dispatch \d+: binding \d: given a written buffer bound 2 times", True),
    "between multiples": (lambda: moved(*side(), 4, 256), OFFSET + "4, wanted 0, 256, …", True),
    "before the slot": (lambda: moved(*side(), -256), OFFSET + "-256, wanted 0, 256, …", True),
    "behind the slot": (lambda: moved(*side(), 1 << 24), r"slot \d+: size: given \d+, wanted ≥ \d+, a mult", True),
    "an input": (lambda: behind("input"), OFFSET + "256, wanted 0$", False),
    "a gradient": (lambda: behind("gradient"), OFFSET + "256, wanted 0$", False),
    "16 bits": (lambda: behind("16 bits"), OFFSET + "256, wanted 0$", False),
    "too few": (
        lambda: replace(convolutions(), memory=replace(convolutions().memory, offset_of=(0,))),
        r"memory: offsets: given 1 places, wanted \d+",
        False,
    ),
}


@pytest.mark.parametrize("which", BAD)
def test_wrong_offsets_are_refused_and_the_judge_sees_those_that_spoil_values(which: str) -> None:
    make, message, spoilt = BAD[which]
    verify(convolutions())
    judge(convolutions())
    plan = make()
    with pytest.raises(CompileError, match=message):
        verify(plan)
    if spoilt:
        with pytest.raises(SlotHazard):
            judge(plan)


def test_clashes_are_found_wherever_they_are() -> None:
    found = 0
    for seed in range(400):
        rng = random.Random(seed)
        tenants = []
        for b in range(rng.randrange(2, 7)):
            first, start = rng.randrange(8), 4 * rng.randrange(8)
            tenants.append(Tenant(b, first, first + rng.randrange(3), start, start + 4 * rng.randrange(1, 4)))
        wanted = {
            frozenset((a.buffer, b.buffer))
            for a, b in itertools.combinations(tenants, 2)
            if a.first <= b.last and b.first <= a.last and a.start < b.stop and b.start < a.stop
        }
        told = [*clashes(tenants)]
        assert bool(told) == bool(wanted) and {frozenset(pair) for pair in told} <= wanted, seed
        found += bool(told)
    assert 50 < found < 390
