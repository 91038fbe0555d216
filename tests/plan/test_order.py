"""Order on ranges: equal to a reference that compares all pairs element by element, and quick for long lists."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import networks
import pytest
from clock import seconds_there

from gdlab.autodiff import differentiate
from gdlab.plan import CompileOptions, ConflictTracker, compile
from gdlab.plan.order import (
    Conflict,
    Footprint,
    Range,
    critical_path,
    hazards,
    levels,
)
from gdlab.plan.schedule import buffer_hazards, footprint_of

LISTS = 400
ROUND = ("raw", "waw", "war")  # the order in which a tracker tells


# the reference --------------------------------------------------------------------------------------------------------
def elements(r: Range) -> set[tuple[int, int]]:
    return {(r.memory, i) for i in range(r.start, min(r.stop, 64))}


def pairs(before: int, one: Footprint, after: int, two: Footprint) -> list[Conflict]:
    """Every conflict of two launches: raw, war, waw, each by the later range."""
    kinds = ("raw", one.writes, two.reads), ("war", one.reads, two.writes), ("waw", one.writes, two.writes)
    return [
        Conflict(kind, before, after, earlier, later)  # type: ignore[arg-type]
        for kind, there, here in kinds
        for later in here
        for earlier in there
        if elements(earlier) & elements(later)
    ]


def conflict(one: Footprint, two: Footprint) -> bool:
    return bool(pairs(0, one, 1, two))


def reference_levels(launches: Sequence[Footprint]) -> list[int]:
    found: list[int] = []
    for i, f in enumerate(launches):
        found.append(1 + max((found[k] for k in range(i) if conflict(launches[k], f)), default=0))
    return found


def reference_cost(launches: Sequence[Footprint], costs: Sequence[float]) -> float:
    found: list[float] = []
    for i, f in enumerate(launches):
        found.append(costs[i] + max((found[k] for k in range(i) if conflict(launches[k], f)), default=0))
    return max(found, default=0)


def reference_groups(launches: Sequence[Footprint]) -> list[int]:
    groups, start = list[int](), 0
    for i, f in enumerate(launches):
        if any(conflict(launches[k], f) for k in range(start, i)):
            start = i
        groups.append(groups[-1] + (start == i) if groups else 0)
    return groups


# lists ----------------------------------------------------------------------------------------------------------------
def parts(rng: random.Random) -> Range:
    start = rng.randrange(12)
    return Range(rng.randrange(3), start, start + rng.choice((0, 1, 1, 2, 4, 9, -3)))


def slices(rng: random.Random) -> Range:
    start = 4 * rng.randrange(8)
    return Range(rng.randrange(2), start, start + 4)


def mixed(rng: random.Random) -> Range:
    return rng.choice((parts, slices, buffers))(rng)


def buffers(rng: random.Random) -> Range:
    return Range(rng.randrange(8))


def a_launch(rng: random.Random, part: Callable[[random.Random], Range]) -> Footprint:
    """Up to three reads and two writes; now and then in place, or with one range twice."""
    reads = [part(rng) for _ in range(rng.randrange(4))]
    writes = [part(rng) for _ in range(rng.randrange(3))]
    if reads and rng.random() < 0.3:
        writes.append(rng.choice(reads))
    return Footprint(tuple(reads), tuple(writes))


def a_list(seed: int) -> list[Footprint]:
    rng = random.Random(seed)
    part = (parts, slices, mixed, buffers)[seed % 4]
    return [a_launch(rng, part) for _ in range(rng.randrange(14))]


def barrier_groups(footprints: Iterable[Footprint]) -> list[int]:
    """Return the group of each launch, in this order: a launch that conflicts with the current group begins another."""
    tracker, group, found = ConflictTracker(), 0, list[int]()
    for launch, footprint in enumerate(footprints):
        if tracker.conflicts(footprint):
            group += 1
            tracker.reset()
        tracker.add(launch, footprint)
        found.append(group)
    return found


@pytest.mark.parametrize("seed", range(0, LISTS, 100))
def test_random_lists_have_the_levels_groups_and_hazards_of_the_reference(seed: int) -> None:
    deep = wide = several = 0
    for launches in map(a_list, range(seed, seed + 100)):
        assert levels(launches) == reference_levels(launches)
        assert barrier_groups(launches) == reference_groups(launches)
        half = len(launches) // 2
        before, after = launches[:half], launches[half:]
        everything = [c for k, two in enumerate(after) for i, one in enumerate(before) for c in pairs(i, one, k, two)]
        found = hazards(before, after)
        assert sorted(found, key=repr) == sorted(everything, key=repr)
        kinds = {"raw": 0, "war": 1, "waw": 2}
        places = [(c.after, kinds[c.kind]) for c in found]
        assert places == sorted(places)
        deep += max(levels(launches), default=0) > 3
        wide += len({*barrier_groups(launches)}) < len(launches)
        several += len(found) > 2
    assert min(deep, wide, several) > 20


@pytest.mark.parametrize("seed", range(0, LISTS, 100))
def test_the_critical_path_is_a_chain_of_conflicts_and_none_costs_more(seed: int) -> None:
    for number in range(seed, seed + 100):
        launches, rng = a_list(number), random.Random(number)
        costs = [rng.choice((0, 1, 1, 2, 5, 0.5)) for _ in launches]
        path = critical_path(launches, costs)
        assert path.cost == reference_cost(launches, costs) == sum(costs[i] for i in path.launches)
        assert list(path.launches) == sorted(path.launches)
        assert all(conflict(launches[i], launches[k]) for i, k in zip(path.launches, path.launches[1:], strict=False))
        longest = critical_path(launches)
        assert longest.cost == len(longest.launches) == max(levels(launches), default=0)


def test_costs_choose_the_path() -> None:
    launches = [Footprint((), (Range(b),)) for b in range(3)] + [Footprint((Range(0), Range(1), Range(2)), (Range(3),))]
    assert critical_path(launches).launches == (0, 3)
    assert critical_path(launches, [1, 5, 4, 1]).launches == (1, 3)
    assert critical_path(launches, [1, 1, 1, 0]) == critical_path(launches[:1])
    assert critical_path([]).launches == ()
    with pytest.raises(ValueError, match="argument 2"):
        critical_path(launches, [1])


def test_a_tracker_tells_the_first_conflict_raw_before_waw_before_war() -> None:
    told = set[str]()
    for seed in range(LISTS):
        *group, last = a_list(seed) or [Footprint((), ())]
        tracker = ConflictTracker()
        for i, f in enumerate(group):
            tracker.add(10 + i, f)
        every = [c for i, one in enumerate(group) for c in pairs(10 + i, one, 99, last)]
        ranges = {"raw": last.reads, "waw": last.writes, "war": last.writes}
        first = min(every, key=lambda c: (ROUND.index(c.kind), ranges[c.kind].index(c.later), c.before), default=None)
        assert tracker.first(99, last) == first and tracker.conflicts(last) == bool(every)
        told.add(first.kind if first else "")
        tracker.reset()
        assert tracker.first(99, last) is None and not tracker.conflicts(last) and tracker.launches == []
    assert told == {*ROUND, ""}


# the rows of the specification ----------------------------------------------------------------------------------------
def listed(*launches: tuple[tuple[int, ...], int]) -> list[Footprint]:
    return [Footprint(tuple(map(Range, reads)), (Range(write),)) for reads, write in launches]


@pytest.mark.parametrize("length", [2, 5, 64])
def test_a_chain_has_a_barrier_before_each_but_the_first(length: int) -> None:
    launches = listed(*(((i,), i + 1) for i in range(length)))
    assert barrier_groups(launches) == list(range(length))
    assert levels(launches) == list(range(1, length + 1))
    assert set(barrier_groups(listed(*(((2 * i,), 2 * i + 1) for i in range(length))))) == {0}


def test_neighbours_do_not_overlap() -> None:
    def groups(stop: int) -> list[int]:
        return barrier_groups([Footprint((), (Range(0, 0, stop),)), Footprint((), (Range(0, 64, 128),))])

    assert groups(64) == [0, 0] and groups(65) == [0, 1]


@pytest.mark.parametrize(
    ("launches", "of_each"),
    [
        (listed(((0,), 1), ((1,), 2), ((2,), 3), ((10,), 11), ((11,), 12), ((12,), 13)), [1, 2, 3, 1, 2, 3]),
        (
            listed(((0,), 1), ((1,), 2), ((0,), 3), ((3,), 4), ((0,), 5), ((5,), 6), ((2, 4, 6), 7)),
            [1, 2, 1, 2, 1, 2, 3],
        ),
        (listed(((0,), 1), ((1,), 2), ((3,), 0)), [1, 2, 2]),  # write after read
    ],
)
def test_levels_of_the_lists_that_are_reordered(launches: list[Footprint], of_each: list[int]) -> None:
    assert levels(launches) == of_each


def test_in_place_is_no_conflict_with_itself() -> None:
    both = Footprint((Range(0, 0, 8),), (Range(0, 0, 8),))
    assert levels([both, both]) == [1, 2] and levels([both]) == [1]
    assert [c.kind for c in hazards([both], [both])] == ["raw", "war", "waw"]


# plans ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [CompileOptions(), CompileOptions(reorder=True), CompileOptions(serial=True)])
def test_groups_of_a_plan_begin_for_the_hazards_of_its_buffers(options: CompileOptions) -> None:
    plan = compile(differentiate(networks.transformer())[0], mode="training", options=options)
    touched = [footprint_of(d) for d in plan.dispatches]
    for one, two in zip(plan.groups, plan.groups[1:], strict=False):
        before, after = ([*range(g.start, g.stop)] for g in (one, two))
        wanted = [
            (c.before, c.after, c.later.memory, c.kind)
            for k in after
            for c in sorted(
                (c for i in before for c in pairs(i, touched[i], k, touched[k])),
                key=lambda c: (("raw", "war", "waw").index(c.kind), _place(plan.dispatches[c.after], c), c.before),
            )
        ]
        assert [(h.before, h.after, h.buffer, h.kind) for h in two.because] == wanted
    assert plan.groups[0].because == () == tuple(buffer_hazards((), plan.dispatches))
    if options.reorder:
        assert len(plan.groups) == len(critical_path(touched).launches)


def _place(d: object, c: Conflict) -> int:
    touched = footprint_of(d)  # type: ignore[arg-type]
    return (touched.reads if c.kind == "raw" else touched.writes).index(c.later)


# speed ----------------------------------------------------------------------------------------------------------------
LONG = 10_000


def long_list(kind: str) -> list[Footprint]:
    rng = random.Random(0)
    if kind == "plan":
        return listed(*(((rng.randrange(i + 1), rng.randrange(i + 1), i), i + 1) for i in range(LONG)))
    if kind == "arena":  # one allocation, a slice per tensor
        cut = [Range(0, 4 * i, 4 * i + 4) for i in range(LONG + 1)]
        return [Footprint((cut[rng.randrange(LONG)], cut[i]), (cut[i + 1],)) for i in range(LONG)]
    rows = [Footprint((), (Range(0, 4 * i, 4 * i + 4),)) for i in range(LONG // 2)]  # a cache: a row, then all of it
    return [f for row in rows for f in (row, Footprint((Range(0),), (Range(1),)))]


@pytest.mark.clock
@pytest.mark.parametrize("kind", ["plan", "arena", "cache"])
def test_ten_thousand_launches_are_ordered_in_a_tenth_of_a_second(kind: str) -> None:
    launches = long_list(kind)
    bar = 0.25 if kind == "cache" else 0.1  # ranges of all sizes in one memory: times a logarithm
    assert seconds_there(lambda: levels(launches), enough=bar) <= bar
    assert seconds_there(lambda: critical_path(launches), enough=bar) <= bar
    assert seconds_there(lambda: barrier_groups(launches), enough=0.1) <= 0.1
    if kind != "cache":  # where every read of all conflicts with every row
        assert seconds_there(lambda: hazards(launches[: LONG // 2], launches[LONG // 2 :]), enough=0.15) <= 0.15
