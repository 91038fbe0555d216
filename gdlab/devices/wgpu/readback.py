"""Read results of an adapter: buffers that are mapped once the work that fills them has run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.devices.base import Readback

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

# A blocking poll doubles a short step (H200: 26 µs spun, 70 blocked; spun for 300 µs, a step of 280 took 500).
# The threads of a software adapter need the core.
SPIN_SECONDS = {"hardware": 1e-3, "software": 300e-6}
# A blocking poll ends 150 µs late and the sleep of a thread 60 (NVIDIA H200, steps of 4 ms: 4.36 ms waited for with the
# poll, 4.21 spun throughout, 2026-11-28): what takes longer is slept through, but for a tenth and a quarter of a ms.
SLEPT_SECONDS, AWAKE_SHARE, AWAKE_SECONDS = 2e-3, 0.1, 250e-6
RELEASED = -2  # in the place of a submission
SUCCESS = 1  # WGPUMapAsyncStatus_Success
PATIENCE_SECONDS = 5.0  # between the end of a submission and the news of it


@dataclass(slots=True)
class Pace:
    """The time that a list of dispatches takes where the adapter has nothing else to do, as far as is known, and the
    time of its last submission in this state."""

    seconds: float = 0.0
    begun: float = 0.0

    def sleep(self) -> bool:
        """Sleep through what is left of a long list but its end; return whether there was anything to sleep through."""
        rest = self.begun + (1 - AWAKE_SHARE) * self.seconds - AWAKE_SECONDS - time.perf_counter()
        if self.seconds < SLEPT_SECONDS or rest <= 0:
            return False
        time.sleep(rest)
        return True

    def ended(self, late: bool) -> None:
        """Note that the list has ended just now; `late`: it had when the sleep was over, nobody knows since when. One
        slow step changes little."""
        took = (time.perf_counter() - self.begun) * (0.8 if late else 1.0)
        self.seconds = min(took, 1.2 * self.seconds) if self.seconds else took


def _await(gpu: Gpu, submission: int, ended: Callable[[], bool], pace: Pace | None) -> None:
    """Wait for a submission: spin as long as it is likely to end soon, then sleep. Of known pace, sleep first."""
    slept, polls = pace is not None and not ended() and pace.sleep(), 0
    more = 2 * AWAKE_SHARE * pace.seconds + AWAKE_SECONDS if pace is not None else 0.0
    deadline = time.perf_counter() + SPIN_SECONDS[gpu.adapter_class] + more
    while not ended() and time.perf_counter() < deadline:
        gpu.poll()
        polls += 1
    if not ended():
        gpu.poll(submission)
    if pace is not None and (slept or polls > 1):  # else it had ended before anybody waited
        pace.ended(late=polls == 1)


class Fence:
    """The end of a submission that brings nothing back: no copy, no map; `pace`: that of its dispatches, where nothing
    else was under way."""

    __slots__ = ("gpu", "pace", "submission", "where")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.where, self.submission = gpu, "", -1
        self.pace: Pace | None = None

    def request(self, where: str, submission: int) -> None:
        """Stand for this submission, in a block of checked calls."""
        self.where, self.submission = where, submission

    @property
    def ready(self) -> bool:
        """Whether the submission has run, as far as is known without asking."""
        return self.submission <= self.gpu.ended

    def wait(self) -> None:
        """Wait for the submission: spin while it is the last one (wgpu says when all have run), then sleep."""
        gpu = self.gpu
        gpu.alive(self.where)
        if self.submission <= gpu.ended:
            return
        if self.submission == gpu.submitted:
            _await(gpu, self.submission, lambda: self.ready, self.pace)
        else:
            gpu.poll(self.submission)

    def release(self) -> None:
        """Release nothing: there is no memory."""


class Mapped:
    """A buffer to read results through, or (`upload`, mapped from the beginning) to write a few numbers through;
    `status` is 0 until the last requested map has ended. `maps` counts those that were asked for: the end of an earlier
    one says nothing of a later one."""

    numbers = itertools.count(1)

    def __init__(self, gpu: Gpu, nbytes: int, upload: bool = False) -> None:
        self.gpu, self.nbytes, self.status, self.maps = gpu, nbytes, SUCCESS * upload, 0
        self.mode = gpu.lib.WGPUMapMode_Write if upload else gpu.lib.WGPUMapMode_Read
        self.owner = gpu.buffer(nbytes, mapped=not upload, upload=upload)
        self.handle = self.owner._internal
        self.number = next(self.numbers)
        gpu.mapped[self.number] = self
        fields = {"mode": gpu.lib.WGPUCallbackMode_AllowProcessEvents, "callback": gpu.callback}
        self.info = gpu.ffi.new("WGPUBufferMapCallbackInfo *", fields)
        self.info.userdata1 = gpu.ffi.cast("void *", self.number)
        # made once: each cast of a map takes half a microsecond, and a step has two maps
        self._asked = gpu.ffi.cast("uintptr_t *", gpu.ffi.addressof(self.info, "userdata2"))
        self._given = self.info[0]

    def map(self, nbytes: int) -> None:
        """Request a map of the first `nbytes` bytes, in a block of checked calls."""
        self.status, self.maps = 0, self.maps + 1
        self._asked[0] = self.maps
        self.gpu.raw.BufferMapAsync(self.handle, self.mode, 0, nbytes, self._given)

    def fill(self, data: Array) -> None:
        """Write an array and unmap: a submission may copy it now. Only while the buffer is mapped."""
        gpu = self.gpu
        into = gpu.raw.BufferGetMappedRange(self.handle, 0, self.nbytes)
        gpu.ffi.memmove(into, gpu.ffi.from_buffer(data), data.nbytes)
        self.status = 0
        gpu.raw.BufferUnmap(self.handle)

    def ended(self, map: int, status: int) -> None:
        """Record the end of the map of this number."""
        if map == self.maps:
            self.status = status


class WgpuReadback(Readback):
    """The first `nbytes` bytes of a mapped buffer of the pool, filled by one submission; `pace`: that of its
    dispatches, where nothing else was under way."""

    __slots__ = ("_data", "_number", "mapped", "nbytes", "pace", "submission", "where")

    def __init__(self, number: int, mapped: Mapped, nbytes: int) -> None:
        self._number, self.mapped, self.nbytes = number, mapped, nbytes
        self.where, self.submission, self._data = "", -1, None
        self.pace: Pace | None = None

    def request(self, where: str, submission: int) -> None:
        """Request the bytes, in a block of checked calls, after the submission that fills them."""
        self.where, self.submission = where, submission
        self.mapped.map(-(-self.nbytes // 4) * 4)

    @property
    def ready(self) -> bool:
        """Whether the bytes have arrived, as far as is known without asking; also after `release`."""
        return self.submission == RELEASED or self.mapped.status != 0

    def wait(self) -> None:
        """Wait for the submission: spin first, then sleep. Of a released one the memory may wait for another step by
        now: this returns at once."""
        gpu = self.mapped.gpu
        if self.submission == RELEASED:
            return
        if self.mapped.status == SUCCESS:
            gpu.ended = max(gpu.ended, self.submission)
            return
        gpu.alive(self.where)  # the mapped range of a lost device ends the process
        _await(gpu, self.submission, lambda: self.mapped.status != 0, self.pace)
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while not self.mapped.status and time.perf_counter() < deadline:
            gpu.poll()
        if self.mapped.status != SUCCESS:
            given = f"map status {self.mapped.status}"
            raise SessionError(self.where, "reading back", given, "a device that is alive")
        gpu.ended = max(gpu.ended, self.submission)

    def view(self) -> memoryview:
        """Return the mapped bytes."""
        gpu = self.mapped.gpu
        return memoryview(gpu.ffi.buffer(self._mapped_range(), self.nbytes)).cast("B")

    @property
    def floats(self) -> Any:
        """The mapped bytes as numbers to be indexed: four calls less than by way of `view`."""
        gpu = self.mapped.gpu
        return gpu.ffi.cast(gpu.floats, self._mapped_range())

    @property
    def address(self) -> int:
        """The address of the mapped bytes."""
        return int(self.mapped.gpu.ffi.cast(self.mapped.gpu.address, self._mapped_range()))

    def _mapped_range(self) -> Any:
        if self._data is None:
            gpu = self.mapped.gpu
            gpu.alive(self.where)
            nbytes = -(-self.nbytes // 4) * 4
            self._data = gpu.raw.BufferGetConstMappedRange(self.mapped.handle, 0, nbytes)
        return self._data

    def take(self, into: memoryview) -> None:
        """Wait, copy the bytes and release the memory."""
        self.wait()
        into[:] = self.view()[: len(into)]
        self.release()

    def release(self) -> None:
        """Unmap, and release the memory, unless its map is under way: then nobody else may use it; idempotent."""
        if self.submission == RELEASED:
            return
        asked, self.submission, self._data = self.submission >= 0, RELEASED, None
        if asked and not self.mapped.status:
            return
        if asked:
            self.mapped.gpu.raw.BufferUnmap(self.mapped.handle)
        self.mapped.gpu.readbacks.give(self.mapped.nbytes, self._number, self.mapped)
