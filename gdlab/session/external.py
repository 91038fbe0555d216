"""Share memory with others on the device: where inputs and outputs lie, and memory of somebody else in their place.

    other.bind_external_buffer("x", session.output_buffer(0))     # what one computes, the other reads: no copy
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, OutputIndexError, TooSmall, UnknownSlot, unknown_name
from gdlab.base.words import plural
from gdlab.devices.base import owner
from gdlab.session.state import State

Slot = str | int  # the name of an input, or the number of an output
_BINDABLE = {
    "cpu": "a writable C-contiguous array of 4-byte elements",
    "wgpu": "a wgpu.GPUBuffer of this device with the usages STORAGE, COPY_SRC and COPY_DST",
}


class External(State):
    """`input_buffer`, `output_buffer`, `bind_external_buffer` and their kin. Memory on cpu is a NumPy array, on wgpu a
    `wgpu.GPUBuffer`; whoever writes it calls `wait` before."""

    def input_buffer(self, name: str) -> Any:
        """The memory that input `name` lies in; on cpu in its shape."""
        buffer = self._lookup("input_buffer", name, self._inputs)
        assert isinstance(buffer, int)  # inputs have buffers of their own
        return self._do(lambda: self._program.memory_at(buffer))[0]

    def output_buffer(self, index: int = 0) -> Any:
        """The memory that user output `index` lies in after a step; on cpu in its shape. Not to be written."""
        buffer = self._output("output_buffer", index)
        shape = self._plan.graph.outputs[index].shape
        memory, _ = self._do(lambda: self._program.memory_at(buffer))
        return memory.reshape(shape) if isinstance(memory, np.ndarray) else memory

    def slot_size(self, slot: Slot) -> int:
        """Bytes that memory bound in the place of an input (by name) or an output (by index) must have."""
        buffer = self._slot("slot_size", slot)
        return self._do(lambda: self._program.memory_at(buffer))[1]

    def input_host_ptr(self, name: str) -> tuple[int, int] | None:
        """(address, bytes) of input `name` where the host sees its memory, which is on cpu; else None."""
        memory = self.input_buffer(name)
        return (memory.ctypes.data, memory.nbytes) if isinstance(memory, np.ndarray) else None

    def bind_external_buffer(self, slot: Slot, memory: Any) -> None:
        """From the next step on an input (by name) or an output (by index) lies in `memory`: a writable C-contiguous
        array of 4-byte elements on cpu, a buffer of the same `GPUDevice` for storage and copies on wgpu. Elements lie
        there from its beginning; indices in it are not checked. Raises `ExternalBindError.UnknownSlot` and
        `ExternalBindError.TooSmall(required, got)`."""
        where = "bind_external_buffer"
        buffer = self._slot(where, slot)
        self._between_steps(where)
        owner().call(lambda: self._bind_now(where, slot, buffer, memory))
        if isinstance(slot, str):
            self._unset_inputs.discard(slot)

    def _bind_now(self, where: str, slot: Slot, buffer: int, memory: Any) -> None:
        got, (_, required) = self._program.bytes_in(memory), self._program.memory_at(buffer)
        if got is None:
            wanted = _BINDABLE[self._device.info.kind]
            raise ArgumentError(where, f"memory for {slot!r}", type(memory).__name__, wanted)
        if got < required:
            given, wanted = f"{got} bytes", f"{required} bytes or more"
            raise TooSmall(where, f"memory for {slot!r}", given, wanted, required=required, got=got)
        self._program.rebind(buffer, memory)

    def _slot(self, where: str, slot: Slot) -> int:
        self._alive(where)
        if isinstance(slot, str) and slot in self._inputs:
            return self._inputs[slot]
        outputs = self._plan.output_buffers
        if isinstance(slot, (int, np.integer)) and not isinstance(slot, bool) and 0 <= slot < len(outputs):
            return outputs[slot]
        known = [*self._inputs, *map(str, range(len(outputs)))]
        told = unknown_name(where, "slot", str(slot), known)
        raise UnknownSlot(told.where, told.what, told.given, told.wanted, slot=slot, known=tuple(known))

    def _output(self, where: str, index: int) -> int:
        self._alive(where)
        count = len(self._plan.output_buffers)
        if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not 0 <= index < count:
            raise OutputIndexError(where, "index", index, f"0 … {count - 1}: {plural(count, 'output')}")
        return self._plan.output_buffers[index]
