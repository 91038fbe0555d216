"""List the schedules that may compute a product, and choose: by rule, or as was measured (`Target.tuning`).

A table of measured schedules may come from a file that anybody wrote. It only chooses among the schedules listed here,
all of which are valid on the target; what it says of others is ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from gdlab.base.types import DType
from gdlab.base.words import duration
from gdlab.plan import spread
from gdlab.plan.dispatch import Matmul, Operand, RowNorm
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.spread import MIDDLE, SCRATCH, SMALL, WIDE, Schedule, Tile
from gdlab.plan.target import Target

EPS = 1e-6  # of the norm of a product that is a key alone
MOST = 36  # candidates of one product
_KEPT = 256  # lists of candidates in memory, about 16 KB each
_LEAST_STEPS = 64  # of K in one part, where groups share K
_ENOUGH = 1024  # groups that keep any adapter busy
# rows, columns, steps; rows and columns per invocation: tests run every one at sizes with and without tails
_TILES = (
    WIDE, (128, 64, 16, 8, 8), (64, 128, 16, 8, 8), MIDDLE, (64, 64, 16, 4, 4), (32, 64, 16, 4, 4), SMALL,
)  # fmt: skip
K_ROWS = (16, 8, 4)  # of tiles whose groups share K
_PARTS = ((1, 1), (1, 2), (1, 4), (2, 1), (1, 8), (4, 1), (2, 4), (1, 16), (2, 8))  # of K: in a group, beside others


@dataclass(frozen=True, slots=True)
class ProductKey:
    """All that the schedule of a product depends on: its extents, the layouts of its operands, the dtype in which the
    second one is stored, and whether it normalizes its rows and computes a second product, of them or of other rows.
    `str` is the name under which its schedules are kept: `matmul 64x10x128 mk·kn f32`."""

    m: int
    n: int
    k: int
    a: Literal["mk", "km"] = "mk"
    b: Literal["kn", "nk"] = "kn"
    dtype: DType = DType.f32
    norm: bool = False
    dual: bool = False
    dual_rows: bool = False

    def __str__(self) -> str:
        more = " norm" * self.norm + " dual" * self.dual + " rows" * self.dual_rows
        return f"matmul {self.m}x{self.n}x{self.k} {self.a}·{self.b} {self.dtype.name}{more}"

    @property
    def product(self) -> Matmul:
        """A product of this key, of no node."""
        norm = RowNorm(EPS, -1) if self.norm else None
        dual = -1 if self.dual else None
        return Matmul(self.m, self.n, self.k, self.a, self.b, -1, norm=norm, dual=dual, dual_rows=self.dual_rows)


def key_of_product(p: Matmul, dtype: DType) -> ProductKey:
    """Return the key of a product whose second operand is stored in `dtype`."""
    return ProductKey(p.m, p.n, p.k, p.a, p.b, dtype, p.norm is not None, p.dual is not None, p.dual_rows)


def stored_dtype(operands: Sequence[Operand]) -> DType:
    """Return the dtype in which a product reads its second operand: where it is its rows too, f32, one by one."""
    rows, factor = operands[:2]
    return factor.dtype if rows.buffer != factor.buffer else DType.f32


def products_of(plan: ExecutionPlan) -> dict[ProductKey, tuple[int, ...]]:
    """Return the dispatches of each distinct product of a plan, the products with the most operations first."""
    found: dict[ProductKey, tuple[int, ...]] = {}
    for d in plan.dispatches:
        if d.matmul is not None:
            key = key_of_product(d.matmul, stored_dtype(d.operands))
            found[key] = (*found.get(key, ()), d.index)
    work = {key: sum(plan.dispatches[i].flops for i in places) for key, places in found.items()}
    return {key: found[key] for key in sorted(found, key=lambda key: (-work[key], str(key)))}


def schedule_of(p: Matmul, target: Target, tile: Tile | None, dtype: DType) -> Schedule:
    """Return the schedule of a product: with the tile that is asked for, else as measured on the target, else by rule.
    """
    rule = spread.matmul(p, target, tile, dtype)
    key = key_of_product(p, dtype)
    tuned = target.tuning.by_kernel.get(str(key)) if tile is None and target.tuning.schedules else None
    found = next((c for c in candidates(key, target) if c.params == tuned.params), None) if tuned else None
    if tuned is None or found is None or found.params == rule.params:
        return rule
    times = f"measured: {duration(tuned.nanoseconds / 1e9)}, {rule.variant} by rule"
    return replace(found, reason=f"{found.reason}; {times} {duration(tuned.rule_nanoseconds / 1e9)}")


def name_of(schedule: Schedule) -> str:
    """Return the variant of a candidate, of shared tiles with the part of one invocation: no two have one name."""
    shared = schedule.variant.startswith("tile")
    return f"{schedule.variant}, {schedule.params[3]}x{schedule.params[4]} each" if shared else schedule.variant


@lru_cache(maxsize=_KEPT)
def candidates(key: ProductKey, target: Target) -> tuple[Schedule, ...]:
    """Return the schedules that may compute a product on a target, at most `MOST`, each once; first that of the rules.
    """
    p = key.product
    rule = spread.matmul(p, target, None, key.dtype)
    listed = _on_software(p, target) if spread.is_software(target) else _on_hardware(p, target, rule)
    found = {schedule.params: schedule for schedule in (rule, *listed)}
    return tuple(found.values())[:MOST]


def _on_software(p: Matmul, target: Target) -> Iterator[Schedule]:
    """Yield register tiles, those first that should be fast."""
    for tile in sorted(spread.TILES[True], key=lambda tile: spread.tile_cost(p, *tile)):
        yield spread.registers_of(p, tile, target.limits)


def _on_hardware(p: Matmul, target: Target, rule: Schedule) -> Iterator[Schedule]:
    limits = target.limits
    if spread.of_few_rows(p):
        yield from _few_rows(p, target, rule.params[3])
    small = spread.tiles_of(p, (16, 16)) <= _ENOUGH and spread.computes(p, "k-parallel")
    if limits.workgroup_bytes >= 16384 and limits.invocations >= 256 and small:
        for rows in K_ROWS:
            yield spread.k_groups(p, rows, limits)
    if not spread.computes(p, "tile"):
        return
    for (inner, outer), tile in itertools.product(_PARTS, _TILES):
        parts, rows, columns = inner * outer, *tile[:2]
        if p.dual is not None and not spread.halves((*tile, inner, outer)):
            continue
        if rows > 4 * p.m or columns > 4 * p.n or rows // tile[3] * (columns // tile[4]) * inner > limits.invocations:
            continue
        shared = p.k // parts >= _LEAST_STEPS and spread.tiles_of(p, tile) * parts <= _ENOUGH // 2
        fits = 4 * outer * p.m * p.n <= min(SCRATCH, limits.binding_bytes)
        if parts == 1 or (shared and (outer == 1 or fits)):
            yield spread.shared_tiles(p, (*tile, inner, outer), limits)


def _few_rows(p: Matmul, target: Target, steps: int) -> Iterator[Schedule]:
    """Yield groups of 64 invocations and more with 1 to 32 vec4s side by side; `steps` of K at a time as by rule, which
    depends on the format alone."""
    lanes = spread.vector_lanes(p, target.limits)
    for group, wide in itertools.product((64, 128, 256), (1, 2, 4, 8, 16, 32)):
        if group <= lanes and group // wide * steps <= 2 * p.k:
            yield spread.vectors_of(p, wide, group // wide, steps, target.limits)
