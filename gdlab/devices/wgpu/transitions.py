"""Make the transitions of a group of independent dispatches at its begin: wgpu makes those of each right before it.

wgpu puts a barrier before every dispatch that reads what an earlier one of the pass has written, and the barrier waits
for all dispatches so far, also for independent ones. A dispatch of no workgroups that binds what a whole group reads
takes these barriers together, so that the group runs side by side. What a group writes cannot be named so: wgpu waits
before each write to memory that the pass has used before, which is why the memory plan gives most of such writes memory
of their own (`plan/memory.py`). NVIDIA H200, a step of 157 dispatches in 95 groups: 132 barriers become 95.
Knows wgpu only through the `Gpu` it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdlab.devices.base import Bound, Region
from gdlab.devices.wgpu.pass_recording import Row
from gdlab.kernels.pieces import shader

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

MOST = 32  # regions of one dispatch that only names them


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The use of a memory by a dispatch: wgpu counts all regions of one memory as one."""

    written: bool
    region: Region


Uses = Mapping[int, MemoryUse]  # by the identity of the memory


def uses_of(bound: Bound) -> Uses:
    """Return what a dispatch binds, by memory."""
    _, _, regions = bound.keep
    access = [a for _, a in bound.dispatch.bindings] + ["r"] * bool(bound.dispatch.scalars)
    found: dict[int, MemoryUse] = {}
    for region, a in zip(regions, access, strict=True):
        key = id(region.memory)
        found[key] = MemoryUse(a == "w" or (key in found and found[key].written), region)
    return found


def group_starts(uses: Sequence[Uses]) -> list[int]:
    """Return the first dispatch of each group: none of a group touches memory that another of it writes."""
    starts, touched, written = list[int](), set[int](), set[int]()
    for i, each in enumerate(uses):
        writes = {memory for memory, use in each.items() if use.written}
        if i == 0 or not written.isdisjoint(each) or not touched.isdisjoint(writes):
            starts.append(i)
            touched, written = set(), set()
        touched.update(each)
        written |= writes
    return starts


def read_ahead(uses: Sequence[Uses], starts: Sequence[int]) -> dict[int, list[Region]]:
    """Return, by the first dispatch of a group, the regions to name before it: what the group reads and the pass has
    written, where a dispatch behind the first is among the readers."""
    found: dict[int, list[Region]] = {}
    written: dict[int, bool] = {}  # whether the last use of a memory wrote it
    for start, stop in zip(starts, [*starts[1:], len(uses)], strict=False):
        reads = [
            {memory: use.region for memory, use in each.items() if written.get(memory) and not use.written}
            for each in uses[start:stop]
        ]
        together = {memory: region for each in reads for memory, region in each.items()}
        if len(together) > len(reads[0]):
            found[start] = list(together.values())
        for each in uses[start:stop]:
            written.update((memory, use.written) for memory, use in each.items())
    return found


def naming(gpu: Gpu, regions: Sequence[Region]) -> list[tuple[Row, Any]]:
    """Return dispatches that name the regions, and what keeps their handles alive."""
    most = min(MOST, gpu.bounds.limits.storage_buffers)
    return [_naming(gpu, regions[at : at + most], most) for at in range(0, len(regions), most)]


def _naming(gpu: Gpu, regions: Sequence[Region], most: int) -> tuple[Row, Any]:
    count = 1 << (len(regions) - 1).bit_length()  # few pipelines serve all
    named = (*regions, *[regions[0]] * (min(count, most) - len(regions)))
    _, pipeline = gpu.pipeline("transitions", shader("nothing.wgsl"), "r" * len(named))
    group = gpu.group("transitions", pipeline, named)
    return (pipeline.raw, group._internal, 0, 1, 1), (pipeline, group, named)
