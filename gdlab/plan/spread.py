"""Spread a kernel over workgroups: one schedule for hardware adapters, one for software adapters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

from gdlab.base.errors import CompileError
from gdlab.base.types import DType, TensorType
from gdlab.base.words import plural
from gdlab.op import REGISTRY, Shader, Work
from gdlab.plan.dispatch import Custom, Dispatch, Matmul, Operand, ParameterUpdate, Reduce
from gdlab.plan.target import Limits, Target

GROUP = 64  # invocations of a group that works element by element
ROW_GROUP = 256  # of a group that works on one long row, on hardware
SIMD = 8  # lanes of a software adapter's vector: one group is one vector
MAX_TRIPS = 60000  # a software adapter stops silently after 65535 loop trips of one invocation (Mesa 22.3.6)
_BUSY = 128  # groups that keep hardware busy
_INVOCATIONS = 1 << 18  # invocations that keep its memory busy
_STREAM = 1 << 20  # elements from which memory traffic is all that counts
_MERGED = 1 << 14  # elements of the parameters that one update dispatch moves on a software adapter
SCRATCH = 16 << 20  # bytes of partial sums that one product may need beside its result
_GROUPS = 128  # groups of a product of few rows before columns stand side by side in one
_VECTORS = 1 << 17  # invocations that keep the memory of hardware busy in a product of few rows
FEW_ROWS = 8  # of a product that reads its other operand once
BLOCK, BLOCKS = 32, (DType.q4_0, DType.q8_0)  # steps of a block, formats that a product of few rows decodes by blocks
BLOCK_ROWS = 3  # of such a product: of 1 a token takes 0.8 of the time that it took four steps at a time, of 4 1.1
DUAL_ROWS = 4  # of two products in one dispatch: of 1 it saves 4 to 8 % of a token, of 8 it costs 2 (H200, 2026-11-24)
NORMALIZED_ROWS = 3  # of a product that normalizes them itself: of 3 it saves 5 % of a token, of 4 it costs 6 (H200)
# multiply-adds of a K-parallel product that normalizes its rows, and that computes a second one: of 2²⁴ a step of 4
# layers takes 161 µs instead of 175, and 141 with both (NVIDIA H100, 2026-11-27); larger ones were not measured
NORMALIZED_WORK, DUAL_WORK = 1 << 26, 1 << 26
_LARGE = 1 << 26  # multiply-adds from which a product is worth a longer compilation

Tile = tuple[int, int]  # rows and columns of a result
# rows, columns, steps; rows and columns per invocation; parts of K in a group, and beside one another
TileNumbers = tuple[int, int, int, int, int, int, int]
ProductKernel = Literal["registers", "vector", "k-parallel", "tile"]  # the first word of a product's variant


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a kernel: a variant by name, the reason for it, its grid, and its numbers (`Dispatch.params`)."""

    variant: str
    reason: str
    workgroup_size: tuple[int, int, int]
    workgroups: tuple[int, int, int]
    params: tuple[int, ...] = ()


_SCHEDULES = 256  # kept of each kind, about 1 KB each
_COUNTED = frozenset(("pointwise", "matmul", "reduce", "update"))


def in_bounds(d: Dispatch) -> bool:
    """Return whether a kernel stays inside its bindings for any data, once `verify` has passed the plan."""
    return d.kernel in _COUNTED or (d.custom is not None and d.custom.file in _files_in_bounds())


@cache
def _files_in_bounds() -> frozenset[str]:
    """Return the files of the kernels whose record says that they stay inside their operands."""
    kernels = [op.kernel for op in REGISTRY.values() if isinstance(op.kernel, Shader)]
    return frozenset(form.file for kernel in kernels for form in kernel.forms if form.in_bounds)


def is_software(target: Target) -> bool:
    """Return whether kernels run lane by lane on a CPU."""
    return target.adapter_class == "software"


def grid(groups: int, limits: Limits) -> tuple[int, int, int]:
    """Return a grid of workgroups, folded into y and z where one axis is too short; kernels rebuild the flat number."""
    most = limits.workgroups_per_axis
    if groups <= most:
        return groups, 1, 1
    y = min(-(-groups // most), most)
    x = min(-(-groups // y), most)
    return x, y, -(-groups // (x * y))


@lru_cache(maxsize=_SCHEDULES)
def pointwise(size: int, operands: tuple[Operand, ...], target: Target) -> Schedule:
    """Schedule one element per invocation, or four where every operand allows it."""
    blocked = [o for o in operands if o.access in ("row", "column") and o.extent % 4]
    if blocked:
        reason = f"an operand repeats every {blocked[0].extent} elements, no multiple of 4"
        return Schedule("scalar", reason, (GROUP, 1, 1), grid(-(-size // GROUP), target.limits))
    lanes = _stream(size, target)
    reason = "four neighbours per invocation"
    return Schedule("vec4", reason, (lanes, 1, 1), grid(-(-size // (lanes * 4)), target.limits))


def _stream(size: int, target: Target) -> int:
    """Return the invocations of a group: more where only memory traffic counts."""
    return GROUP if size < _STREAM or is_software(target) else min(256, target.limits.invocations)


def update(parameters: Sequence[ParameterUpdate], target: Target) -> Schedule:
    """Schedule four neighbours per invocation, workgroups of one parameter after those of another."""
    lanes = _stream(sum(p.type.num_elements for p in parameters), target)
    groups = grid(sum(update_groups(p, lanes) for p in parameters), target.limits)
    return Schedule("vec4", "four neighbours per invocation", (lanes, 1, 1), groups)


def merges(parameters: Sequence[ParameterUpdate], target: Target) -> bool:
    """Return whether one dispatch may move all of these parameters. The workgroups of a software adapter walk through
    the loads and stores of every parameter: seven parameters of 1024 elements take 0.6 of the time of seven dispatches,
    of 4096 elements 1.1–1.5 (lavapipe, 2026-11-22)."""
    return not is_software(target) or sum(p.type.num_elements for p in parameters) <= _MERGED


def update_groups(p: ParameterUpdate, lanes: int) -> int:
    """Return the number of workgroups that move a parameter."""
    return -(-p.type.num_elements // (4 * lanes))


def gather(size: int, target: Target) -> Schedule:
    """Schedule one element per invocation."""
    return Schedule("scalar", "one element per invocation", (GROUP, 1, 1), grid(-(-size // GROUP), target.limits))


@lru_cache(maxsize=_SCHEDULES)
def reduce(r: Reduce, target: Target) -> Schedule:
    """Schedule a fold; `params` = results (or vec4s of them) per group, lanes that share one, loads per lane."""
    if target.adapter_class == "hardware" and r.inner == 1 and r.length % 4 == 0 and r.length >= 16:
        return _fold_along(r, target)
    if target.adapter_class == "hardware" and r.inner % 4 == 0:
        return _fold_across(r, target)
    results = r.outer * r.inner
    across, lanes = _reduce_lanes(results, r.length, r.inner, target)
    trips = r.length // (4 * lanes) + 3  # the loop takes four elements a turn, then the rest
    _check_trips(f"fold of {r.length} elements", trips, r.node, target)
    reason = "one invocation per result" if lanes == 1 else f"{lanes} invocations share a fold of {r.length}"
    groups = grid(-(-results // across), target.limits)
    return Schedule(f"{across}x{lanes}", reason, (across * lanes, 1, 1), groups, (across, lanes))


def _fold_along(r: Reduce, target: Target) -> Schedule:
    quads, most = r.length // 4, min(256, target.limits.invocations)
    lanes = _power(-(-quads // 4), most)
    return fold_of(r, max(1, 128 // lanes), lanes, min(8, quads // lanes), target.limits)


def _fold_across(r: Reduce, target: Target) -> Schedule:
    """Schedule a fold across rows. If an invocation takes one alone, 128 are a group: 58 times SumRows[4x524288] in a
    step of `xfM`, 13,044 µs queued, in groups of 32 13,117, of 64 13,074, of 256 13,060 (NVIDIA H200, 2026-11-28)."""
    quads, most = r.inner // 4, min(256, target.limits.invocations)
    across = _power(quads, 32)
    lanes = _power(-(-r.length // 8), most // across)
    if lanes == 1:
        across = _power(quads, min(128, most))
    return fold_of(r, across, lanes, max(1, min(8, r.length // lanes)), target.limits)


def fold_of(r: Reduce, across: int, lanes: int, each: int, limits: Limits) -> Schedule:
    """Schedule a fold of four elements at a time: along it where they lie in a row, else across it."""
    along = r.inner == 1
    results = r.outer * r.inner // (1 if along else 4)
    what = "a fold" if along else "four folds"
    who = "1 invocation has" if lanes == 1 else f"{lanes} invocations share"
    reason = f"{who} {what} of {r.length}, four elements at a time"
    variant = f"{across}x{lanes} {'along' if along else 'across'}"
    return Schedule(variant, reason, (across * lanes, 1, 1), grid(-(-results // across), limits), (across, lanes, each))


def split_fold(outer: int, length: int, inner: int, target: Target) -> list[tuple[int, int, int]]:
    """Split a long fold to few results into two folds, (outer, length, inner) each, where its length has a divisor."""
    whole = [(outer, length, inner)]
    if target.kind == "cpu":
        return whole
    if target.adapter_class == "hardware":
        part = _fold_parts(outer, length, inner)
    else:
        few = outer * inner * ROW_GROUP < 1 << 16 and length >= 1 << 14
        part = next((d for d in range(math.isqrt(length), 15, -1) if length % d == 0), 1) if few else 1
    return [(outer * part, length // part, inner), (outer, part, inner)] if part > 1 else whole


def _fold_parts(outer: int, length: int, inner: int) -> int:
    """Return enough parts to occupy every invocation of the adapter, of at least 64 elements across or 4096 along."""
    least = 4096 if inner == 1 else 64
    busy = outer * inner * (ROW_GROUP // 4 if inner == 1 else 4)  # invocations without parts
    if length < 4 * least or busy >= _INVOCATIONS:
        return 1
    wanted = min(-(-_INVOCATIONS // busy), length // least)
    divisors = [d for d in range(2, length // least + 1) if length % d == 0]
    return next((d for d in divisors if d >= wanted), divisors[-1] if divisors else 1)


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
    """Return the largest power of two ≤ min(n, most), or the next one above n where n is no power."""
    p = 1
    while p < n and p * 2 <= most:
        p *= 2
    return p


def form_of(
    kernel: Shader, types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any], target: Target
) -> tuple[Shader, Work]:
    """Return the form of a kernel with a shader file that fits the target, and its work."""
    form = kernel.hardware if target.adapter_class == "hardware" else kernel.fours
    form = form if target.kind == "wgpu" else None
    while form is not None:
        work = form.work(types, result, attrs)
        if work is not None and _fits(work, target.limits):
            return form, work
        form = form.hardware
    work = kernel.work(types, result, attrs)
    assert work is not None  # the first form fits everything
    return kernel, work


def _fits(work: Work, limits: Limits) -> bool:
    """Return whether workgroups of a target have the memory and the invocations that a form asks for."""
    within = work.workgroup_bytes <= limits.workgroup_bytes and work.group <= limits.invocations
    return not work.workgroup_bytes or within


@lru_cache(maxsize=_SCHEDULES)
def custom(c: Custom, target: Target) -> Schedule:
    """Schedule a kernel with a shader file; `params` = units of work per group, lanes per unit."""
    _check_trips(f"a unit of work of {c.form}", c.trips, c.node, target)
    if c.group:
        share = "shares what it reads" if c.units == 1 else "share what they read"
        size = _power(c.group, target.limits.invocations)
        reason = f"{plural(c.units, 'group')} of {size} invocations {share}"
        return Schedule("groups", reason, (size, 1, 1), grid(c.units, target.limits), (1, size))
    if "EACH" in dict(c.integers):
        return _registers(c, target)
    if not c.length:
        across = SIMD if is_software(target) else GROUP
        reason, groups = "one invocation per unit of work", grid(-(-c.units // across), target.limits)
        return Schedule("alone", reason, (across, 1, 1), groups, (across, 1))
    quads = dict(c.integers).get("QUADS")
    if quads:  # many rows: one per lane, and nothing to exchange (lavapipe, softmax of 4096 x 64: 1.5 CPU ms, with 8
        lanes = 1 if c.units >= 8 * SIMD and 3 * quads <= MAX_TRIPS else SIMD  # lanes per row 3.2, 2026-11-21)
        across = SIMD // lanes
    elif is_software(target):
        lanes = _power(max(-(-3 * c.length // MAX_TRIPS), 1 if c.length < 64 else SIMD), 64)
        across = max(1, SIMD // lanes)
    else:
        lanes = _power(min(-(-c.length // 4), ROW_GROUP), target.limits.invocations)
        across = max(1, GROUP // lanes)
    _check_trips(f"row of {c.length} elements", -(-(quads or c.length) // lanes) * 3, c.node, target)
    reason = f"{plural(lanes, 'invocation')} per row of {c.length}, {plural(across, 'row')} per group"
    reason = "one invocation per unit of work" if c.length == 1 else reason
    groups = grid(-(-c.units // across), target.limits)
    return Schedule(f"{across}x{lanes}", reason, (across * lanes, 1, 1), groups, (across, lanes))


def _registers(c: Custom, target: Target) -> Schedule:
    """Schedule rows of `c.length` in registers, EACH vec4s per invocation: 64 invocations or more in a group. Long rows
    get twice as many (NVIDIA H200, layer norm of rows of 16,384: 0.95 of the copy's bandwidth, with 256 invocations
    0.89, with 1024 0.77, 2026-11-21)."""
    long = c["EACH"] > 8 and target.limits.invocations >= 2 * ROW_GROUP
    lanes = 2 * ROW_GROUP if long else _power(-(-c.length // (4 * c["EACH"])), ROW_GROUP)
    across = max(1, GROUP // lanes)
    many = "1 invocation keeps" if lanes == 1 else f"{lanes} invocations keep"
    reason = f"{many} a row of {c.length} in registers, {plural(across, 'row')} per group"
    groups = grid(-(-c.units // across), target.limits)
    return Schedule(f"{across}x{lanes} registers", reason, (across * lanes, 1, 1), groups, (across, lanes))


# products -------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=_SCHEDULES)
def matmul(p: Matmul, target: Target, tile: Tile | None = None, dtype: DType = DType.f32) -> Schedule:
    """Schedule a product: register tiles on software adapters, shared-memory tiles or K-parallel groups on hardware.
    `tile`: as asked for, one of `TILES`."""
    if is_software(target):
        _check_trips(f"product over {p.k} steps", -(-p.k // 4), p.node, target)
        return _register_tiles(p, target.limits) if tile is None else registers_of(p, tile, target.limits)
    if tile is not None:
        wanted = next(t for t in (WIDE, MIDDLE, SMALL) if t[:2] == tile)
        return shared_tiles(p, (*wanted, 1, 1), target.limits)
    kernel = product_kernel(p, target)
    if kernel == "vector":
        return _vectors(p, dtype, target.limits)
    if kernel == "k-parallel":
        return k_groups(p, k_rows(p), target.limits)
    tiling = _tiling(_side_by_side(p)) or (32, 32, 16, 4, 4, 1, 1)
    return shared_tiles(p, _beside_others(p, tiling, target.limits), target.limits)


def product_kernel(p: Matmul, target: Target) -> ProductKernel:
    """Return the kernel of a product by rule, whether or not it has a norm or a second product."""
    if is_software(target):
        return "registers"
    if of_few_rows(p):
        return "vector"
    return "k-parallel" if _tiling(p) is None and target.limits.workgroup_bytes >= 16384 else "tile"


def of_few_rows(p: Matmul) -> bool:
    """Return whether hardware reads every weight of a product once, for all rows."""
    return p.m <= FEW_ROWS and p.a == "mk" and p.k >= 32


def doubles(p: Matmul, kernel: str) -> bool:
    """Return whether a product may compute a second one in this kernel: in parts of K, or of the same rows, few enough
    for the registers, or in tiles whose columns halve."""
    if kernel == "k-parallel":
        return p.m * p.n * p.k <= DUAL_WORK
    if kernel == "tile":
        tiling = _tiling(_side_by_side(replace(p, dual=p.node)))
        return not p.dual_rows and p.norm is None and tiling is not None and halves(tiling)
    return kernel == "vector" and of_few_rows(p) and p.m <= DUAL_ROWS and not p.dual_rows


def normalizes(p: Matmul, kernel: str) -> bool:
    """Return whether a product normalizes its rows as it reads them in this kernel, four elements at a time: so few
    rows, or so little work, that one dispatch less is worth more than what every workgroup then reads and squares
    again."""
    if p.a == "km" or p.k % 4 or p.dual_rows:
        return False
    if kernel == "k-parallel":
        return p.m * p.n * p.k <= NORMALIZED_WORK
    return kernel == "vector" and of_few_rows(p) and p.m <= NORMALIZED_ROWS


def computes(p: Matmul, kernel: str) -> bool:
    """Return whether a kernel can compute a product with the norm and the second product that it has."""
    return (p.norm is None or normalizes(p, kernel)) and (p.dual is None or doubles(p, kernel))


WIDE, MIDDLE, SMALL = (128, 128, 16, 8, 8), (64, 64, 16, 8, 8), (32, 32, 16, 4, 4)
# the values of `CompileOptions.tile`: on software adapters, and on others
TILES: dict[bool, tuple[Tile, ...]] = {
    True: tuple(itertools.product((8, 4, 2, 1), (16, 8, 4))), False: ((128, 128), (64, 64), (32, 32)),
}  # fmt: skip


def _tiling(p: Matmul) -> TileNumbers | None:
    """Return the tiling that was fastest on an H200 (sweep of 2026-11-21): the largest tiles that make enough groups,
    with K in parts where they do not; None for results too small for tiles."""
    wide, middle, small = (2 * min(p.m, p.n) >= tile[0] for tile in (WIDE, MIDDLE, SMALL))
    if wide and tiles_of(p, WIDE) >= _BUSY:
        return (*WIDE, 1, 1)
    if middle and tiles_of(p, MIDDLE) >= 2 * _BUSY:
        return (*MIDDLE, 1, 1)
    for fits, tile, groups, steps in ((wide, WIDE, _BUSY, 256), (middle, MIDDLE, 2 * _BUSY, 128)):
        parts = _power(-(-groups // tiles_of(p, tile)), 1 << 16)
        if fits and p.k // parts >= steps and 4 * parts * p.m * p.n <= SCRATCH:
            return (*tile, 1, parts)
    if p.k < 32 or (small and tiles_of(p, SMALL) >= _BUSY):
        return (*SMALL, 2 if p.k >= 128 else 1, 1)
    parts = p.k // 256
    if small and parts >= 16:
        return (*SMALL, 2, _power(parts, 16))
    return None


def _side_by_side(p: Matmul) -> Matmul:
    """Return the product whose result is as large as what one in tiles computes: with the columns of a second one."""
    return p if p.dual is None else replace(p, n=2 * p.n, dual=None)


def halves(tiling: Sequence[int]) -> bool:
    """Return whether half of a tile's columns may be those of a second product: an invocation then has the same four of
    both, and all of K."""
    _, _, _, _, right, *_, inner, outer = tiling
    return right == 8 and inner == outer == 1


def _beside_others(p: Matmul, tiling: TileNumbers, limits: Limits) -> TileNumbers:
    """Return the tiling with K in two parts inside of a group for gradients of weights in middle tiles, where workgroup
    memory holds two buffers of both. They run beside other products, whose larger groups leave room for few of one
    warp or two: an Adam step of `xfM` takes 13.63 ms instead of 13.95, a product alone the same (1,024 x 1,024, 512 to
    4,096 steps; where rows lie along K 1.06 to 1.10 of the time; H200, 2026-11-28)."""
    room = 4 * 16 * (MIDDLE[0] + MIDDLE[1]) * 4 + 4 * MIDDLE[0] * MIDDLE[1]
    pays = p.a == "km" and p.dual is None and p.k >= 256 and limits.workgroup_bytes >= room
    return (*MIDDLE, 2, 1) if pays and tiling == (*MIDDLE, 1, 1) else tiling


def tiles_of(p: Matmul, tile: Sequence[int]) -> int:
    """Return the number of tiles of this size that cover the result."""
    return -(-p.m // tile[0]) * -(-p.n // tile[1])


def shared_tiles(p: Matmul, tiling: TileNumbers, limits: Limits) -> Schedule:
    """Schedule shared tiles; `params` = rows, columns, steps; rows and columns per invocation; buffers; parts of K in a
    group, and beside one another (their sums are added by a second dispatch)."""
    rows, columns, depth, down, right, inner, outer = tiling
    own = columns if p.dual is None else columns // 2
    tiles = tiles_of(p, (rows, own))
    gaps = 128 * ((p.a == "mk") + (p.b == "nk"))
    step = (4 * depth * (rows + columns) + gaps) * inner  # bytes of one buffer of a and of b
    sums = 4 * rows * columns * (inner - 1)
    buffers = 2 if 2 * step + sums <= limits.workgroup_bytes else 1
    if buffers * step + sums > limits.workgroup_bytes and (depth > 8 or inner > 1):
        depth, inner = (depth // 2, inner) if depth > 8 else (depth, inner // 2)
        return shared_tiles(p, (rows, columns, depth, down, right, inner, outer), limits)
    reason = f"{plural(tiles, 'tile')} of {rows}x{own}" + (" of both products" if p.dual is not None else "")
    reason += f" in {outer} parts of K = {p.k}" if outer > 1 else ""
    reason += " keeps the adapter busy" if tiles == 1 else " keep the adapter busy"
    variant = f"tile {rows}x{columns}x{depth}" + (f" inside {inner}" if inner > 1 else "")
    variant += f" split {outer}" if outer > 1 else ""
    size = rows // down * (columns // right) * inner
    params = (rows, columns, depth, down, right, buffers, inner, outer)
    return Schedule(variant, reason, (size, 1, 1), grid(tiles * outer, limits), params)


def split_of(schedule: Schedule) -> int:
    """Return the number of parts of K in which a product is written, to be added by a second dispatch."""
    return schedule.params[-1] if schedule.variant.startswith("tile") else 1


def k_rows(p: Matmul) -> int:
    """Return the rows of a tile of a small result: fewer make more groups, each with more parts of K. With 16, 8, 4
    rows 32 x 256 x 784 takes 7.3, 5.1, 4.3 µs, 64 x 256 x 1024 8.7, 6.2, 6.3, 64 x 256 x 256 4.3, 3.6, 4.2, and
    64 x 1024 x 256 6.5, 7.4, 9.4 (H200, 2026-11-24)."""
    tiles = tiles_of(p, (16, 16))
    if tiles > _BUSY or p.k < 128:
        return 16
    return 4 if tiles <= _BUSY // 4 or (tiles <= _BUSY // 2 and p.k >= 1024) else 8


def k_groups(p: Matmul, rows: int, limits: Limits) -> Schedule:
    """Schedule a small result; `params` = rows and columns of a tile, parts of K side by side."""
    groups, parts = tiles_of(p, (rows, 16)), 256 // rows
    reason = f"{plural(groups, 'tile')} of {rows}x16 alone would idle: {parts} parts of K = {p.k} side by side"
    return Schedule(f"k-parallel {rows}x16", reason, (256, 1, 1), grid(groups, limits), (rows, 16, parts))


def _vectors(p: Matmul, dtype: DType, limits: Limits) -> Schedule:
    """Schedule few rows; `params` = rows, vec4s side by side, parts of K (enough to keep memory busy), steps of K that
    an invocation takes at a time: four, or what it decodes together. Where the steps
    of a column lie in a row, neighbours read neighbouring steps, else neighbouring columns (5632 x 2048 in f32: 8 side
    by side 2.8 TB/s, 4 2.4, 2 1.8; 16x16 tiles 1.7; in f16, steps in a row, 1.4-2.1, tiles 0.7; a token of LLaMA 1.1 B
    in f16, q8, q4 with half as many invocations 1.82, 2.17, 2.44 ms, so 1.76, 1.98, 2.16; H200, 2026-11-23)."""
    quads = -(-p.n // 4)
    wide = 1 if p.b == "nk" else _power(max(1, quads // _GROUPS), 8)
    lanes = vector_lanes(p, limits)
    most = min(_power(p.k // 4, ROW_GROUP), lanes // wide)
    steps = _steps(p, dtype)
    if steps == BLOCK:
        # of 2 neighbours with the same elements of a a token takes 1.44 ms, of 1, 4, 8 1.55, 1.48, 1.82 (q4_0)
        wide = max(wide, 2)
        parts = min(_power(p.k // BLOCK, ROW_GROUP), lanes // wide)
        return vectors_of(p, max(wide, _power(quads, GROUP // parts)), parts, BLOCK, limits)
    parts = max(min(GROUP // wide, most), _power(min(-(-_VECTORS // (quads * min(p.m, 2))), p.k // 8), most))
    return vectors_of(p, wide, min(parts, _power(p.k // steps, parts)), steps, limits)


def vector_lanes(p: Matmul, limits: Limits) -> int:
    """Return the most invocations of a group whose sums, of four columns and of squares, fit into workgroup memory."""
    each = (16 if p.dual is None else 32) + (4 if p.norm is not None else 0)
    room = limits.workgroup_bytes // (each * p.m)
    return 1 << (min(limits.invocations, ROW_GROUP, room).bit_length() - 1)


def _steps(p: Matmul, dtype: DType) -> int:
    """Return the steps of K that an invocation of a product of few rows takes at a time: what it decodes together."""
    if dtype in (DType.f16, DType.bf16):
        return 8 if p.m > 1 and p.b == "nk" and p.k % 8 == 0 else 4  # of one row as fast, of more 0.92 to 0.96
    return BLOCK if dtype in BLOCKS and p.b == "nk" and p.m <= BLOCK_ROWS and p.k % BLOCK == 0 else 4


def vectors_of(p: Matmul, wide: int, parts: int, steps: int, limits: Limits) -> Schedule:
    """Schedule a product of few rows, with each column's steps in this many parts."""
    reason = f"{plural(p.m, 'row')}: {parts} parts of K = {p.k} side by side read every weight once"
    groups = grid(-(-p.n // (4 * wide)), limits)
    return Schedule(f"vector {wide}x{parts}", reason, (wide * parts, 1, 1), groups, (p.m, wide, parts, steps))


def _register_tiles(p: Matmul, limits: Limits) -> Schedule:
    # 8x16 is a tenth faster than 8x8 and takes twice as long to compile: 0.4 s (lavapipe, 2 shared cores, 2026-11-21)
    columns = (16, 8, 4) if p.m * p.n * p.k >= _LARGE else (8, 4)
    best = min(itertools.product((8, 4, 2, 1), columns), key=lambda t: tile_cost(p, *t))
    return registers_of(p, best, limits)


def registers_of(p: Matmul, best: Tile, limits: Limits) -> Schedule:
    tiles = tiles_of(p, best)
    reason = f"software adapter: one {best[0]}x{best[1]} tile in registers per invocation, {plural(tiles, 'tile')}"
    return Schedule(f"registers {best[0]}x{best[1]}", reason, (SIMD, 1, 1), grid(-(-tiles // SIMD), limits), best)


def tile_cost(p: Matmul, rows: int, columns: int) -> float:
    """Estimate the instructions per step over all vectors: an element loaded weighs as much as 8 multiply-adds
    (measured ratios of 8x8, 4x8, 4x4, 2x8 and 1x8 agree within 6 %); 4 vectors side by side cost as much as one."""
    vectors = -(-(-(-p.m // rows) * -(-p.n // columns)) // SIMD)
    return -(-vectors // 4) * (rows * columns + 8 * rows + 8 * columns)


def flat(workgroups: Sequence[int]) -> int:
    """Return the number of workgroups of a grid."""
    return workgroups[0] * workgroups[1] * workgroups[2]
