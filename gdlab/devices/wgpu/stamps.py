"""Time the dispatches of a step on the GPU: stamps between the dispatches of its pass, or around a pass for each.

On a software adapter a stamp takes 12-70 microseconds itself (measured on lavapipe): believe what is longer than 100.
Knows wgpu only through the `Gpu` it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.devices.base import Bound, Copy, Item, Readback, Stamp
from gdlab.devices.wgpu.pass_recording import record_pass

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

SET = 4096  # stamps that a query set holds
MOST = SET // 2 - 1  # dispatches that are timed in one step
Transfer = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Resolve:
    """An item that makes the first `count` stamps readable in `Stamps.resolved`."""

    count: int


class Stamps:
    """A set of stamps and the buffer that they are resolved into. `window`: the dispatches that are timed."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.window, self.count = gpu, (0, MOST), 0
        self.owner = gpu.query_set(SET)
        self.handle = self.owner._internal
        self.resolved = gpu.buffer(8 * SET, resolve=True)

    @property
    def number(self) -> int:
        """The number of stamps of the last step."""
        return self.count + 1 if self.gpu.stamps_inside else 2 * self.count

    def items(self, bounds: Sequence[Bound], into: Readback) -> list[Any]:
        """Return the dispatches with stamps around those of the window, and items that copy these to a readback."""
        start, stop = self.window[0], min(self.window[1], len(bounds))
        self.count = max(0, stop - start)
        if not self.count:
            return list(bounds)
        inside, found = self.gpu.stamps_inside, list[Any](bounds[:start])
        found += [Stamp(0)] if inside else []
        for k, bound in enumerate(bounds[start:stop]):
            found += [bound, Stamp(k + 1)] if inside else [Stamp(2 * k), bound, Stamp(2 * k + 1)]
        return [*found, *bounds[stop:], Resolve(self.number), Copy(self.resolved, 0, into, 0, 8 * self.number)]

    def pairs(self, count: int, data: memoryview) -> list[tuple[float, float]]:
        """Return begin and end of each of `count` dispatches in seconds, from the bytes of stamps 2k and 2k + 1."""
        ticks = np.frombuffer(data, np.uint64, 2 * count)
        seconds = (ticks - ticks.min(initial=ticks[0] if count else 0)).astype(np.float64) * self.gpu.stamp_seconds()
        return [(float(a), float(b)) for a, b in zip(seconds[::2], seconds[1::2], strict=True)]

    def encode(self, items: Sequence[Item | Resolve], encoder: Any, transfer: Transfer) -> None:
        """Record items that include stamps; `transfer` records those that are neither stamp nor dispatch."""
        runs = list[list[Any]]([[]])
        for item in items:
            if isinstance(item, (Bound, Stamp)):
                runs[-1].append(item)
                continue
            self._pass(runs[-1], encoder)
            runs.append([])
            if isinstance(item, Resolve):
                raw = self.gpu.raw
                raw.CommandEncoderResolveQuerySet(encoder, self.handle, 0, item.count, self.resolved._internal, 0)
            else:
                transfer(item, encoder)
        self._pass(runs[-1], encoder)

    def _pass(self, items: Sequence[Any], encoder: Any) -> None:
        if items:
            (self._inside if self.gpu.stamps_inside else self._passes)(items, encoder)

    def _inside(self, items: Sequence[Any], encoder: Any) -> None:
        """Record one pass, with stamps between its dispatches."""
        raw, gpu = self.gpu.raw, self.gpu
        one_pass = raw.CommandEncoderBeginComputePass(encoder, gpu.null)
        for item in items:
            if isinstance(item, Stamp):
                raw.ComputePassEncoderWriteTimestamp(one_pass, self.handle, item.index)
                continue
            pipeline, group, x, y, z = item.run
            raw.ComputePassEncoderSetPipeline(one_pass, pipeline)
            raw.ComputePassEncoderSetBindGroup(one_pass, 0, group, 0, gpu.null)
            raw.ComputePassEncoderDispatchWorkgroups(one_pass, x, y, z)
        raw.ComputePassEncoderEnd(one_pass)
        raw.ComputePassEncoderRelease(one_pass)

    def _passes(self, items: Sequence[Any], encoder: Any) -> None:
        """Record a pass for each dispatch between two stamps, stamped at begin and end: any adapter with stamps can."""
        described = None
        for item in items:
            if isinstance(item, Stamp):
                described = self.gpu.stamped_pass(self.handle, item.index) if item.index % 2 == 0 else None
            else:
                record_pass(self.gpu, [item.run], encoder, described=described)

    def seconds(self, data: memoryview) -> list[tuple[int, float]]:
        """Return (dispatch, seconds), from the bytes of the stamps of a step that has ended."""
        ticks = np.frombuffer(data, np.uint64)[: self.number]
        begin, end = (ticks[:-1], ticks[1:]) if self.gpu.stamps_inside else (ticks[::2], ticks[1::2])
        spent = (end.astype(np.int64) - begin.astype(np.int64)) * self.gpu.stamp_seconds()
        return [(self.window[0] + i, float(each)) for i, each in enumerate(spent)]
