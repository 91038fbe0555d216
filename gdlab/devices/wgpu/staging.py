"""Read what an adapter computed: buffers that are mapped once the work that fills them has run."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from gdlab.base.errors import SessionError

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

SPIN_SECONDS = 300e-6  # a blocking poll doubles a short step (H200: 26 µs spun, 70 µs blocked)
PATIENCE_SECONDS = 5.0  # between the end of a submission and the news of it


class Staging:
    """A buffer to read results through; `status` is 0 until the map that was asked for has ended."""

    numbers = itertools.count(1)

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.gpu, self.nbytes, self.status = gpu, nbytes, 0
        self.owner = gpu.buffer(nbytes, mapped=True)
        self.handle = self.owner._internal
        self.number = next(self.numbers)
        gpu.staging[self.number] = self
        fields = {"mode": gpu.lib.WGPUCallbackMode_AllowProcessEvents, "callback": gpu.callback}
        self.info = gpu.ffi.new("WGPUBufferMapCallbackInfo *", fields)
        self.info.userdata1 = gpu.ffi.cast("void *", self.number)

    def request(self, where: str, nbytes: int) -> None:
        """Ask for the first bytes; call it after the submission that fills them."""
        self.status = 0
        with self.gpu.checked(where):
            self.gpu.raw.BufferMapAsync(self.handle, self.gpu.lib.WGPUMapMode_Read, 0, nbytes, self.info[0])

    def take(self, where: str, submission: int, into: memoryview) -> None:
        """Wait for the submission and copy what it wrote: spin first, then sleep."""
        gpu, deadline = self.gpu, time.perf_counter() + SPIN_SECONDS
        gpu.alive(where)  # the mapped range of a lost device ends the process
        while not self.status and time.perf_counter() < deadline:
            gpu.poll()
        if not self.status:
            gpu.poll(submission)
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while not self.status and time.perf_counter() < deadline:
            gpu.poll()
        if self.status != gpu.lib.WGPUMapAsyncStatus_Success:
            raise SessionError(where, "reading back", f"map status {self.status}", "a device that is alive")
        mapped = gpu.raw.BufferGetConstMappedRange(self.handle, 0, len(into))
        into[:] = gpu.ffi.buffer(mapped, len(into))
        gpu.raw.BufferUnmap(self.handle)
