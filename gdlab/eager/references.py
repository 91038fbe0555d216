"""Count the references to device memory: `AnyBuffer` is one reference, `AllocatorStats` the memory of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdlab.base.copies import refuse_copies
from gdlab.base.errors import EagerError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import TensorType
from gdlab.graph.source import Frame, Location, Source, locate


@dataclass(frozen=True, slots=True)
class Origin:
    """The op that made a tensor, and the user's frames."""

    what: str
    frames: tuple[Frame, ...] | Source = ()

    def __str__(self) -> str:
        first = self.frames[0] if self.frames else None
        place = first if first is None or isinstance(first, Location) else locate(first)
        return self.what if place is None else f"{self.what} ({place})"


class MemoryBlock:
    """The memory of a tensor, released with its last reference; `references` counts the buffers that show it, and is 0
    after the release. `origin` is told of what may outlive its recording; `packed`: blocks as they were uploaded, which
    no op writes."""

    __slots__ = ("memory", "nbytes", "origin", "packed", "references")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory, self.nbytes, self.references = memory, nbytes, 0
        self.origin: Origin | None = None
        self.packed: Packed | None = None


class AnyBuffer:
    """A reference to device memory that holds a tensor of `type`."""

    __slots__ = ("_block", "_free", "session", "type")
    __reduce__ = refuse_copies("eager buffer", "share(), or of_any_buffer(buffer) for its numbers")

    def __init__(self, session: int, type: TensorType, block: MemoryBlock, free: Callable[[MemoryBlock], None]) -> None:
        self.session, self.type = session, type
        self._block: MemoryBlock | None = block
        self._free = free
        block.references += 1

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.type.size_bytes

    @property
    def released(self) -> bool:
        """Whether this reference was released, or its session closed."""
        return self._block is None or not self._block.references

    @property
    def block(self) -> MemoryBlock:
        """The memory; `EagerError` after a release."""
        block = self._block
        if block is None or not block.references:
            raise EagerError("eager.buffer", str(self.type), "a released buffer", "a live one")
        return block

    def share(self, type: TensorType | None = None) -> AnyBuffer:
        """Return another reference to the same memory."""
        return AnyBuffer(self.session, type or self.type, self.block, self._free)

    def release(self) -> bool:
        """Release the reference; the last one releases the memory. False where it was given up before."""
        block, self._block = self._block, None
        if block is None or not block.references:
            return False
        block.references -= 1
        if not block.references:
            self._free(block)
        return True

    def __repr__(self) -> str:
        return f"<AnyBuffer: {self.type}{', released' if self.released else ''}>"


def _mebibytes(nbytes: int | None) -> str:
    return "n/a" if nbytes is None else f"{nbytes / (1 << 20):.2f} MiB"


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Memory of a session: `live_bytes` in use, their peak, `pool_bytes` free for later tensors, and the numbers of
    allocations and releases. What the device has is None where it does not tell."""

    live_bytes: int
    peak_bytes: int
    pool_bytes: int
    alloc_count: int
    free_count: int
    device_free_bytes: int | None = None
    device_total_bytes: int | None = None

    def format(self) -> str:
        """Return all in one line."""
        return (
            f"live={_mebibytes(self.live_bytes)} peak={_mebibytes(self.peak_bytes)} "
            f"pool={_mebibytes(self.pool_bytes)} allocs={self.alloc_count} frees={self.free_count} "
            f"device_free={_mebibytes(self.device_free_bytes)} device_total={_mebibytes(self.device_total_bytes)}"
        )
