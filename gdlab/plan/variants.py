"""How a kernel is spread over workgroups: one schedule for hardware adapters, one for software adapters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gdlab.errors import CompileError
from gdlab.plan.plan import Custom, Limits, Matmul, Operand, Reduce, Target

GROUP = 64  # invocations of a group that works element by element
ROW_GROUP = 256  # of a group that works on one long row, on hardware
SIMD = 8  # lanes of a software adapter's vector: one group is one vector
MAX_TRIPS = 60000  # a software adapter stops silently after 65535 loop trips of one invocation (Mesa 22.3.6)
_BUSY = 128  # groups that keep hardware busy
_INVOCATIONS = 1 << 18  # invocations that keep its memory busy
_STREAM = 1 << 20  # elements from which memory traffic is all that counts
_LARGE = 1 << 26  # multiply-adds from which a product is worth a longer compilation


@dataclass(frozen=True, slots=True)
class Schedule:
    """A variant by name, why it was chosen, its grid, and its numbers (`Dispatch.params`)."""

    variant: str
    reason: str
    workgroup_size: tuple[int, int, int]
    workgroups: tuple[int, int, int]
    params: tuple[int, ...] = ()


def is_software(target: Target) -> bool:
    """Whether kernels run lane by lane on a CPU."""
    return target.adapter_class == "software"


def grid(groups: int, limits: Limits) -> tuple[int, int, int]:
    """So many workgroups, folded into y and z where one axis cannot hold them; kernels rebuild the flat number."""
    most = limits.workgroups_per_axis
    if groups <= most:
        return groups, 1, 1
    y = min(-(-groups // most), most)
    x = min(-(-groups // y), most)
    return x, y, -(-groups // (x * y))


@lru_cache(maxsize=4096)
def pointwise(size: int, operands: tuple[Operand, ...], target: Target) -> Schedule:
    """One element per invocation, or four where every operand allows it; `params` = how often."""
    blocked = [o for o in operands if o.access in ("row", "column") and o.extent % 4]
    if blocked:
        reason = f"an operand repeats every {blocked[0].extent} elements, no multiple of 4"
        return Schedule("scalar", reason, (GROUP, 1, 1), grid(-(-size // GROUP), target.limits))
    each = 4 if size >= _STREAM and not is_software(target) else 1  # so that loads of the next four are under way
    lanes = min(256, target.limits.invocations) if each > 1 else GROUP
    groups = grid(-(-size // (lanes * 4 * each)), target.limits)
    reason = "four neighbours per invocation" + (f", {each} times: a stream of {size} elements" if each > 1 else "")
    return Schedule("vec4", reason, (lanes, 1, 1), groups, (each,))


def update(size: int, target: Target) -> Schedule:
    """Four neighbours per invocation."""
    groups = grid(-(-size // (GROUP * 4)), target.limits)
    return Schedule("vec4", "four neighbours per invocation", (GROUP, 1, 1), groups)


def gather(size: int, target: Target) -> Schedule:
    """One element per invocation."""
    return Schedule("scalar", "one element per invocation", (GROUP, 1, 1), grid(-(-size // GROUP), target.limits))


@lru_cache(maxsize=4096)
def reduce(r: Reduce, target: Target) -> Schedule:
    """`params` = results per group, lanes that share one result."""
    results = r.outer * r.inner
    across, lanes = _reduce_lanes(results, r.length, r.inner, target)
    trips = r.length // (4 * lanes) + 3  # the loop takes four elements a turn, then the rest
    _check_trips(f"fold of {r.length} elements", trips, r.node, target)
    reason = "one invocation per result" if lanes == 1 else f"{lanes} invocations share a fold of {r.length}"
    groups = grid(-(-results // across), target.limits)
    return Schedule(f"{across}x{lanes}", reason, (across * lanes, 1, 1), groups, (across, lanes))


def split_fold(outer: int, length: int, inner: int, target: Target) -> list[tuple[int, int, int]]:
    """A long fold to few results as two folds, (outer, length, inner) each, where its length has a divisor."""
    few = outer * inner * ROW_GROUP < 1 << 16
    if target.kind == "cpu" or length < 1 << 14 or not few:
        return [(outer, length, inner)]
    root = math.isqrt(length)
    part = next((d for d in range(root, 15, -1) if length % d == 0), 1)
    return [(outer * part, length // part, inner), (outer, part, inner)] if part > 1 else [(outer, length, inner)]


def _check_trips(what: str, trips: int, node: int, target: Target) -> None:
    if is_software(target) and trips > MAX_TRIPS:
        wanted = f"at most {MAX_TRIPS} on a software adapter: fold in two steps"
        raise CompileError("compile", what, f"{trips} loop trips", wanted, node=node)


def _reduce_lanes(results: int, length: int, inner: int, target: Target) -> tuple[int, int]:
    software = is_software(target)
    most = min(target.limits.invocations, 64 if software else 256)
    if software:
        needed = -(-length // (4 * MAX_TRIPS))
        wanted = 1 if results >= 16 or length < 64 else SIMD
        lanes = _power(max(needed, wanted), most)
        return max(1, min(SIMD, most) // lanes), lanes
    lanes = _power(min(length, max(1, _INVOCATIONS // results)), most)
    if inner > 1:  # neighbouring results lie side by side in memory: keep 16 of them in a group
        lanes = min(lanes, max(1, most // 16))
    return max(1, min(most, GROUP if lanes == 1 else most) // lanes), lanes


def _power(n: int, most: int) -> int:
    """The largest power of two ≤ min(n, most), the next one above n where n is no power."""
    p = 1
    while p < n and p * 2 <= most:
        p *= 2
    return p


@lru_cache(maxsize=4096)
def custom(c: Custom, target: Target) -> Schedule:
    """`params` = pieces of work per group, lanes per piece."""
    if c.group:
        reason = f"{c.units} groups of {c.group} invocations share what they read"
        return Schedule("groups", reason, (c.group, 1, 1), grid(c.units, target.limits), (1, c.group))
    if not c.length:
        across = SIMD if is_software(target) else GROUP
        reason, groups = "one invocation per piece of work", grid(-(-c.units // across), target.limits)
        return Schedule("alone", reason, (across, 1, 1), groups, (across, 1))
    if is_software(target):
        lanes = _power(max(-(-3 * c.length // MAX_TRIPS), 1 if c.length < 64 else SIMD), 64)
        across = max(1, SIMD // lanes)
    else:
        lanes = _power(min(-(-c.length // 4), ROW_GROUP), target.limits.invocations)
        across = max(1, GROUP // lanes)
    _check_trips(f"row of {c.length} elements", -(-c.length // lanes) * 3, c.node, target)
    reason = f"{lanes} invocations per row of {c.length}, {across} rows per group"
    groups = grid(-(-c.units // across), target.limits)
    return Schedule(f"{across}x{lanes}", reason, (across * lanes, 1, 1), groups, (across, lanes))


# products -------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def matmul(p: Matmul, target: Target) -> Schedule:
    """Register tiles on software adapters, shared-memory tiles or K-parallel groups on hardware."""
    if is_software(target):
        _check_trips(f"product over {p.k} steps", -(-p.k // 4), p.node, target)
        return _register_tiles(p, target.limits)
    for tile, block in ((128, 8), (64, 4)):
        groups = -(-p.m // tile) * -(-p.n // tile)
        if groups >= _BUSY or (tile == 64 and groups * 4 >= _BUSY and p.k < 256):
            return _shared_tiles(p, tile, block, groups, target.limits)
    if p.k >= 32 and target.limits.workgroup_bytes >= 16384:
        return _k_groups(p, target.limits)
    return _shared_tiles(p, 32, 4, -(-p.m // 32) * -(-p.n // 32), target.limits)


def _shared_tiles(p: Matmul, tile: int, block: int, groups: int, limits: Limits) -> Schedule:
    reason = f"{groups} tiles of {tile}x{tile} keep the adapter busy" if tile > 32 else f"K = {p.k} is short"
    buffers = 2 if 2 * 2 * tile * 16 * 4 <= limits.workgroup_bytes else 1  # of a and of b, 16 steps of 4 bytes
    invocations = (tile // block) ** 2
    params = (tile, 16, block, buffers)
    return Schedule(f"tile {tile}x{tile}x16", reason, (invocations, 1, 1), grid(groups, limits), params)


def _k_groups(p: Matmul, limits: Limits) -> Schedule:
    groups = -(-p.m // 16) * -(-p.n // 16)
    reason = f"{groups} tiles of 16x16 alone would idle: 16 parts of K = {p.k} side by side"
    return Schedule("k-parallel 16x16", reason, (256, 1, 1), grid(groups, limits), (16, 16, 16))


def _register_tiles(p: Matmul, limits: Limits) -> Schedule:
    # 8x16 is a tenth faster than 8x8 and takes twice as long to compile: 0.4 s (lavapipe, 2 shared cores, 2026-11-21)
    columns = (16, 8, 4) if p.m * p.n * p.k >= _LARGE else (8, 4)
    best = min(itertools.product((8, 4, 2, 1), columns), key=lambda t: _tile_cost(p, *t))
    tiles = -(-p.m // best[0]) * -(-p.n // best[1])
    reason = f"software adapter: one {best[0]}x{best[1]} tile in registers per invocation, {tiles} tiles"
    return Schedule(f"registers {best[0]}x{best[1]}", reason, (SIMD, 1, 1), grid(-(-tiles // SIMD), limits), best)


def _tile_cost(p: Matmul, rows: int, columns: int) -> float:
    """Instructions per step over all vectors: an element loaded weighs as much as 8 multiply-adds (measured ratios of
    8x8, 4x8, 4x4, 2x8 and 1x8 agree within 6 %); 4 vectors side by side cost as much as one."""
    vectors = -(-(-(-p.m // rows) * -(-p.n // columns)) // SIMD)
    return -(-vectors // 4) * (rows * columns + 8 * rows + 8 * columns)


def flat(workgroups: Sequence[int]) -> int:
    """How many workgroups a grid has."""
    return workgroups[0] * workgroups[1] * workgroups[2]
