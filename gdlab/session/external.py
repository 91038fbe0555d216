"""Share device memory: return the memory of inputs and outputs, or bind external memory in its place.

    other.bind_external_buffer("x", session.output_buffer(0))     # what one computes, the other reads: no copy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, ExternalBindError, TooSmall, UnknownSlot, unknown_name
from gdlab.base.words import listed
from gdlab.session.loaded import LoadedPlan
from gdlab.session.progress import Progress
from gdlab.session.values import Values

Slot = str | int  # the name of an input, or the number of an output
_BINDABLE = {
    "cpu": "a writable C-contiguous array of 4-byte elements",
    "wgpu": "a wgpu.GPUBuffer of this device with the usages STORAGE, COPY_SRC and COPY_DST",
}


class ExternalMemory:
    """The memory of inputs and outputs: on cpu a NumPy array, on wgpu a `wgpu.GPUBuffer`; call `wait` before you write
    it. Methods without a docstring are those of `Session`."""

    def __init__(self, loaded: LoadedPlan, values: Values, progress: Progress) -> None:
        self.loaded, self.values, self.progress = loaded, values, progress
        self._own: dict[int, Any] = {}  # by buffer that lies elsewhere: the memory that it had

    def input_buffer(self, name: str) -> Any:
        return self._memory_at(self.values.input("input_buffer", name))[0]

    def output_buffer(self, index: int) -> Any:
        memory, _ = self._memory_at(self.values.output("output_buffer", index))
        shape = self.loaded.plan.graph.outputs[index].shape
        return memory.reshape(shape) if isinstance(memory, np.ndarray) else memory

    def slot_size(self, slot: Slot) -> int:
        return self._memory_at(self._slot("slot_size", slot))[1]

    def input_host_ptr(self, name: str) -> tuple[int, int] | None:
        memory = self.input_buffer(name)
        return (memory.ctypes.data, memory.nbytes) if isinstance(memory, np.ndarray) else None

    def bind(self, slot: Slot, memory: Any, where: str = "bind_external_buffer") -> None:
        """Use this memory for an input or output in place of the session's own."""
        buffer = self._slot(where, slot)
        self.progress.check_between_steps(where)
        self.loaded.turn.call(lambda: self._bind(where, slot, buffer, memory))
        if isinstance(slot, str):
            self.values.unset_inputs.discard(slot)

    def unbind(self, buffer: int) -> bool:
        """Move a buffer back to the session's own memory, whose contents are old. False where it lies there."""
        own = self._own.pop(buffer, None)
        if own is not None:
            self.loaded.turn.call(lambda: self.loaded.program.rebind(buffer, own))
        return own is not None

    def _memory_at(self, buffer: int) -> tuple[Any, int]:
        return self.loaded.exclusively(lambda: self.loaded.program.memory_at(buffer))

    def _bind(self, where: str, slot: Slot, buffer: int, memory: Any) -> None:
        program = self.loaded.program
        got, (own, required) = program.bytes_in(memory), program.memory_at(buffer)
        if got is None:
            wanted = _BINDABLE[self.loaded.device.info.kind]
            raise ArgumentError(where, f"memory for {slot!r}", type(memory).__name__, wanted)
        if got < required:
            given, wanted = f"{got} bytes", f"{required} bytes or more"
            raise TooSmall(where, f"memory for {slot!r}", given, wanted, required=required, got=got)
        self._check_alone(where, slot, buffer, memory, required)
        program.rebind(buffer, memory)
        self._own.setdefault(buffer, own)

    def _check_alone(self, where: str, slot: Slot, buffer: int, memory: Any, nbytes: int) -> None:
        """Raise where one of `buffer` and another buffer over this memory is written: the step would overwrite what it
        reads. The own memory of a buffer that lies elsewhere counts as its memory: `unbind` moves it back."""
        plan, program = self.loaded.plan, self.loaded.program
        written = {b for d in (*plan.dispatches, *program.update.dispatches) for b in d.writes}
        others = program.users_of(memory, nbytes, self._own) - {buffer}
        refused = others if buffer in written else others & written
        if refused:
            names = listed(sorted({self._name_of(b) for b in refused}))
            wanted = "memory that no other buffer of this plan has, or that the step only reads"
            raise ExternalBindError(where, f"memory for {slot!r}", f"that of {names}", wanted)

    def _name_of(self, buffer: int) -> str:
        """Return the words for a buffer in an error."""
        plan = self.loaded.plan
        inputs = {b: f"input {name!r}" for name, b in plan.input_buffers}
        outputs = {b: f"output {index}" for index, b in enumerate(plan.output_buffers)}
        return {**inputs, **outputs}.get(buffer, f"buffer {buffer}")

    def _slot(self, where: str, slot: Slot) -> int:
        self.loaded.check_open(where)
        inputs, outputs = self.values.places.inputs, self.loaded.plan.output_buffers
        if isinstance(slot, str) and slot in inputs:
            return inputs[slot]
        if isinstance(slot, (int, np.integer)) and not isinstance(slot, bool) and 0 <= slot < len(outputs):
            return outputs[slot]
        raise unknown_slot(where, slot, [*inputs, *map(str, range(len(outputs)))])


def unknown_slot(where: str, slot: object, known: Sequence[str]) -> UnknownSlot:
    """Return the error for an unknown slot, which lists the known ones."""
    error = unknown_name(where, "slot", str(slot), known)
    return UnknownSlot(error.where, error.what, error.given, error.wanted, slot=slot, known=tuple(known))
