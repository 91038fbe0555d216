"""The target of a plan: the device and its limits, and the switches of `compile`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Switches of `compile`; none changes a value beyond rounding. `reorder`: dispatches move across the borders of
    phases wherever no conflict holds them, into fewer and wider barrier groups. `tile`: (rows, columns) that every
    product is cut into, one of `variants.TILES`; None: what suits each on the target."""

    fuse_dispatches: bool = True
    alias: bool = True
    serial: bool = False
    pin: tuple[str, ...] = ()
    reorder: bool = False
    tile: tuple[int, int] | None = None


AdapterClass = Literal["hardware", "software", "cpu"]
ALIGN = 256  # bytes, at whose multiples a range of device memory may begin; portable, whatever the adapter asks for


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of kernels and bindings; the defaults are WebGPU's portable ones."""

    workgroups_per_axis: int = 65535
    binding_bytes: int = 128 << 20
    storage_buffers: int = 8
    alignment: int = ALIGN
    workgroup_bytes: int = 16384
    invocations: int = 256


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """The fastest schedule of a kernel that was measured: the kernel with its sizes, the numbers of the schedule
    (`Dispatch.params`), and the times of both, that of the schedule which the rules choose besides."""

    kernel: str
    params: tuple[int, ...]
    nanoseconds: int
    rule_nanoseconds: int


@dataclass(frozen=True)
class Tuning:
    """Schedules that were measured on a device, where they are other than those of the rules; sorted by kernel, each
    once. Plans and pieces of one target choose by one table, so equal work runs with equal bits."""

    schedules: tuple[TunedSchedule, ...] = ()

    def __hash__(self) -> int:
        return hash(self.digest)  # schedules are looked up by target, a table may be long

    @cached_property
    def digest(self) -> str:
        """16 hex digits over kernels and schedules, not over their times; empty where the table is empty."""
        chosen = [(s.kernel, s.params) for s in self.schedules]
        return hashlib.sha256(repr(chosen).encode()).hexdigest()[:16] if chosen else ""

    @cached_property
    def by_kernel(self) -> Mapping[str, TunedSchedule]:
        """The schedules by their kernels."""
        return {s.kernel: s for s in self.schedules}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a plan: kind of device, class of adapter (decides schedules), limits, tuned schedules. With
    `merges` the dispatch of a product also stores what others read of it (XLA calls that multi-output fusion), and
    adds a product of other rows: fewer barrier groups, which hardware waits for."""

    kind: Literal["wgpu", "cpu"]
    adapter_class: AdapterClass
    limits: Limits
    tuning: Tuning = Tuning()
    merges: bool = False

    @staticmethod
    def portable() -> Target:
        """Return a target that any WebGPU adapter meets."""
        return Target("wgpu", "hardware", Limits())
