"""Run plans with NumPy, dispatch by dispatch from the dispatch's own fields, in float32."""

from __future__ import annotations

import os
import platform

import numpy as np

from gdlab.device.base import Array, Device, DeviceInfo, Program, Traffic
from gdlab.device.calls import steps_of
from gdlab.device.chain import Scratch, Step
from gdlab.errors import ArgumentError, SessionError
from gdlab.plan.plan import SCALARS, Buffer, ExecutionPlan, Limits, Target, Update
from gdlab.plan.verify import verify, verify_update

NO_UPDATE = Update("none", (), (), ())
TINY = np.float32(1.2e-38)  # smaller moments are flushed to zero: arithmetic on denormals is a hundred times slower
FLUSH_EVERY = 16  # updates between two flushes


class CpuDevice(Device):
    """NumPy on this machine: needs no driver. `step` is synchronous."""

    def __init__(self, reason: str = "asked for") -> None:
        self.info = DeviceInfo("cpu", f"NumPy {np.__version__}, {platform.machine()}", "cpu", reason)
        self.target = Target("cpu", "cpu", Limits(binding_bytes=memory_bytes()))

    def load(self, plan: ExecutionPlan) -> CpuProgram:
        """Verify the plan and compile it to NumPy calls."""
        return CpuProgram(verify(plan))


def memory_bytes() -> int:
    """Physical memory of this machine; 16 GiB where it does not tell."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 256 * 256
    return 16 << 30


class CpuProgram(Program):
    """A plan as a list of NumPy calls over its slots. `step_of[k]` are the calls of dispatch k."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan, self.update, self.traffic, self.open = plan, NO_UPDATE, Traffic(), True
        self.slots = [np.zeros(slot.nbytes // 4, np.uint32) for slot in plan.memory.slots]
        self.arrays = {b.id: _tensor(self.slots[plan.memory.slot_of[b.id]], b) for b in plan.buffers}
        for buffer, data in plan.constant_buffers:
            self.arrays[buffer][...] = np.frombuffer(data, self.arrays[buffer].dtype).reshape(self.arrays[buffer].shape)
        self.scratch = Scratch()
        self.scalars = {name: np.zeros((), np.float32) for name in SCALARS}
        self.step_of = [steps_of(d, self.arrays, self.scratch, self.scalars) for d in plan.dispatches]
        self.calls: list[Step] = [call for steps in self.step_of for call in steps]
        self.update_calls: list[Step] = []
        self.moments: list[Array] = []
        self.updates = 0
        self.loss = None if plan.loss_buffer is None else self.arrays[plan.loss_buffer].reshape(-1)
        self.readable: list[tuple[int, float]] = []

    def upload(self, buffer: int, data: Array) -> None:
        """Copy `data` into the buffer."""
        home, given = self._home("upload", buffer), np.asarray(data)
        if given.dtype != home.dtype or given.size != home.size:
            wanted = f"{home.dtype}, {home.nbytes} bytes"
            raise ArgumentError("upload", f"data of buffer {buffer}", f"{given.dtype}, {given.nbytes} bytes", wanted)
        np.copyto(home, given.reshape(home.shape))
        self.traffic.bytes_up += home.nbytes

    def download(self, buffer: int) -> Array:
        """A copy of the buffer."""
        home = self._home("download", buffer)
        self.traffic.bytes_down += home.nbytes
        return home.copy()

    def configure(self, update: Update) -> None:
        """Make the update's calls; new state starts at zero."""
        self._alive("configure")
        verify_update(self.plan, update)
        for b in update.buffers:
            if b.id not in self.arrays:
                self.arrays[b.id] = np.zeros(b.shape, b.dtype.numpy)
        steps = [steps_of(d, self.arrays, self.scratch, self.scalars) for d in update.dispatches]
        self.update, self.update_calls = update, [call for some in steps for call in some]
        self.moments = [self.arrays[b] for _, *pair in update.moments for b in pair]

    def step(self, scalars: Array | None) -> None:
        """Forward, backward and update, now."""
        self._alive("step")
        with np.errstate(all="ignore"):
            for function, args in self.calls:
                function(*args)
            if self.update_calls:
                self._update("step", scalars)
        self.traffic.steps += 1
        self.traffic.submissions += 1
        self.traffic.dispatches += len(self.step_of) + len(self.update.dispatches)
        if self.loss is not None:
            self.readable.append((self.traffic.steps, float(self.loss[0])))

    def update_only(self, scalars: Array) -> None:
        """The update with the gradients of the last step."""
        self._alive("update")
        with np.errstate(all="ignore"):
            self._update("update", scalars)
        self.traffic.submissions += 1
        self.traffic.dispatches += len(self.update.dispatches)

    def _update(self, where: str, scalars: Array | None) -> None:
        if scalars is None:
            raise SessionError(where, "scalars", "none", f"{len(SCALARS)} numbers: {', '.join(SCALARS)}")
        for name, value in zip(SCALARS, scalars, strict=True):
            self.scalars[name][...] = value
        for function, args in self.update_calls:
            function(*args)
        self.updates += 1
        if self.moments and self.updates % FLUSH_EVERY == 0:
            for moment in self.moments:
                moment[np.abs(moment) < TINY] = 0

    def losses(self, wait: bool) -> list[tuple[int, float]]:
        """All losses since the last call."""
        self._alive("losses")
        found, self.readable = self.readable, []
        return found

    def wait(self) -> None:
        """Nothing is ever in flight."""
        self._alive("wait")

    def poison(self) -> None:
        """NaN in every slot of intermediates."""
        self._alive("poison")
        pinned = {self.plan.memory.slot_of[b] for b, _ in self.plan.memory.pinned}
        for slot, data in enumerate(self.slots):
            if slot not in pinned:
                data.view(np.float32)[...] = np.nan

    def close(self) -> None:
        """Forget everything."""
        self.open = False
        self.slots, self.arrays, self.calls, self.update_calls, self.step_of = [], {}, [], [], []

    def _alive(self, where: str) -> None:
        if not self.open:
            raise SessionError(where, "program", "closed", "an open one")

    def _home(self, where: str, buffer: int) -> Array:
        self._alive(where)
        if buffer not in self.arrays:
            raise ArgumentError(where, "buffer", buffer, f"one of the {len(self.arrays)} buffers of this program")
        return self.arrays[buffer]


def _tensor(slot: Array, buffer: Buffer) -> Array:
    return slot[: buffer.nbytes // 4].view(buffer.dtype.numpy).reshape(buffer.shape)
