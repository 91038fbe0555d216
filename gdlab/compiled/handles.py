"""Keep inputs between runs: host handles, gpu handles, and feeds, which copy an output into an input on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdlab.base.errors import DTypeError, SessionError, ShapeError
from gdlab.base.formats import entered, landed
from gdlab.base.types import Array
from gdlab.base.words import one_of
from gdlab.compiled.boundary_values import FEEDABLE, Port, check_index
from gdlab.devices.base import BufferCopy
from gdlab.session import Session


@dataclass(slots=True, eq=False)
class HostHandle:
    """A value that is kept for an input or of an output. `source`: the output that replaces it after every forward;
    `behind`: that output's buffer holds the value now, `numbers` an old one. `token` is another object for every new
    value."""

    numbers: Array
    source: int | None = None
    behind: bool = False
    token: object = field(default_factory=object)


@dataclass(frozen=True, slots=True, eq=False)
class HeldHandles:
    """The values of handles: of host handles with the output that feeds them, of gpu handles, and their feeds."""

    host: Mapping[str, tuple[Array, int | None]]
    gpu: Mapping[str, Array]
    feeds: Mapping[str, int]


class Handles:
    """The handles of a compiled graph. `lies[input]` is the token of the value in an input's buffer, where it is that
    of a host handle. All methods are called in the turn of the device."""

    def __init__(self, session: Session, inputs: Mapping[str, Port], outputs: Sequence[Port]) -> None:
        self.values, self.external, self.inputs, self.outputs = session.values, session.external, inputs, outputs
        self.host: dict[str, HostHandle] = {}
        self.gpu: set[str] = set()
        self.feeds: dict[str, int] = {}  # gpu handle -> output
        self.lies: dict[str, object] = {}

    # a forward --------------------------------------------------------------------------------------------------------
    def uploads(self, given: Mapping[str, Array]) -> list[tuple[int, Array]]:
        """Return the buffers that must be written before a forward, with their numbers."""
        found = []
        for name, port in self.inputs.items():
            if name in given:
                self.lies.pop(name, None)
                found.append((port.buffer, given[name]))
            elif name not in self.gpu and self.lies.get(name) is not self.host[name].token:
                handle = self.host[name]
                found.append((port.buffer, self.numbers_of(name)))
                self.lies[name] = handle.token
        return found

    def copies(self) -> list[BufferCopy]:
        """Return the copies, output to input, after a forward. They commute: no output lies in an input."""
        if not self.feeds and not self.host:
            return []
        pairs = [(self.outputs[index], self.inputs[name]) for name, index in self.feeds.items()]
        pairs += [(self.outputs[index], self.inputs[name]) for name, index in self._carried().items()]
        return [BufferCopy(output.buffer, 0, input.buffer, 0, output.nbytes) for output, input in pairs]

    def _carried(self) -> dict[str, int]:
        """Return the host handles whose next value is copied into the input on the device."""
        return {
            name: handle.source
            for name, handle in self.host.items()
            if handle.source is not None and name in self.inputs and name not in self.gpu
            and self.inputs[name].kind in FEEDABLE
        }  # fmt: skip

    @property
    def by_host(self) -> bool:
        """Whether an input is fed through the host: its next value is read when a forward has ended."""
        carried = self._carried() if self.host else {}
        return any(h.source is not None and n in self.inputs and n not in carried for n, h in self.host.items())

    def advance(self) -> None:
        """Record that a forward was launched: outputs replace the values of the handles that they feed."""
        carried = self._carried() if self.host else {}
        for name, handle in self.host.items():
            if handle.source is not None:
                handle.behind, handle.token = True, object()
                if name in carried:
                    self.lies[name] = handle.token

    # values -----------------------------------------------------------------------------------------------------------
    def numbers_of(self, name: str) -> Array:
        """Return the value of a host handle, read from the device if that holds it."""
        handle = self.host[name]
        if handle.behind and handle.source is not None:
            port = self.outputs[handle.source]
            numbers = self.values.download(port.buffer).reshape(port.spec.shape)
            if port.kind not in FEEDABLE:
                shown = landed(numbers, port.spec.dtype)
                numbers = entered("handle", repr(name), shown, port.spec.dtype, port.dtype)
            handle.numbers, handle.behind = numbers, False
        return handle.numbers

    def port_of(self, name: str) -> Port | None:
        """Return the input of this name, or the output `out{i}`."""
        index = self.output_named(name)
        if not isinstance(name, str):
            return None
        return self.inputs[name] if name in self.inputs else None if index is None else self.outputs[index]

    def output_named(self, name: str) -> int | None:
        """Return the i of `out{i}`, if there is such an output."""
        digits = name.removeprefix("out") if isinstance(name, str) and name.startswith("out") else ""
        index = int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 9 else -1
        return index if digits == str(index) and 0 <= index < len(self.outputs) else None

    # binding ----------------------------------------------------------------------------------------------------------
    def bind(self, name: str, numbers: Array) -> None:
        """Keep a value; an input named `out{i}` is replaced by that output after every forward."""
        before = self.host.get(name)
        source = self.output_named(name)
        if source is None and before is not None:
            source = before.source
        self.host[name] = HostHandle(numbers, source)

    def feed_host(self, name: str, index: int) -> None:
        """Replace the value of a host handle by an output after every forward, from the next one on."""
        self.host[name] = HostHandle(self.numbers_of(name), index)

    def unbind(self, name: str) -> bool:
        """Drop a host handle."""
        if not isinstance(name, str):
            return False
        self.lies.pop(name, None)
        return self.host.pop(name, None) is not None

    def bind_on_device(self, name: str, numbers: Array) -> None:
        """Write a value that stays in the input; its feed stays too."""
        self.values.upload(self.inputs[name].buffer, numbers)
        self.gpu.add(name)
        self.lies.pop(name, None)

    def bind_memory(self, where: str, name: str, memory: Any) -> None:
        """Use other memory on the device as the input, as a gpu handle."""
        self.external.bind(name, memory, where)
        self.gpu.add(name)
        self.lies.pop(name, None)

    def unbind_on_device(self, name: str) -> bool:
        """Drop a gpu handle and its feed; other memory is let go."""
        if not isinstance(name, str) or name not in self.gpu:
            return False
        self.external.unbind(self.inputs[name].buffer)
        self.gpu.discard(name)
        self.feeds.pop(name, None)
        return True

    def check_feed(self, where: str, name: str, index: int) -> int:
        """Return the output that may replace a gpu handle after every forward, or raise."""
        if not isinstance(name, str) or name not in self.gpu:
            bound = one_of(str(name), sorted(self.gpu)) if self.gpu else "bind_gpu_handle first: none is bound"
            raise SessionError(where, "gpu handle", repr(name), bound)
        return self.check_pair(where, name, index)

    def check_pair(self, where: str, name: str, index: int) -> int:
        """Return the output that may replace an input on the device, or raise."""
        index = check_index(where, index, len(self.outputs))
        self.check_shapes(where, name, index)
        input, output = self.inputs[name], self.outputs[index]
        if input.kind not in FEEDABLE or output.kind not in FEEDABLE:
            told, wanted = f"{output.spec.dtype} into {input.spec.dtype}", "f32, f16, bf16 or u32 on both sides"
            raise DTypeError(where, f"output {index} into {name!r}", told, wanted)
        return index

    def check_shapes(self, where: str, name: str, index: int) -> None:
        """Raise unless an output has the shape and the boundary dtype of an input."""
        input, output = self.inputs[name].spec, self.outputs[index].spec
        what = f"output {index} into {name!r}"
        if input.shape != output.shape:
            raise ShapeError(where, what, f"shape {list(output.shape)}", str(list(input.shape)))
        if self.inputs[name].kind != self.outputs[index].kind:
            raise DTypeError(where, what, output.dtype, input.dtype)

    # copies of all ----------------------------------------------------------------------------------------------------
    def held(self) -> HeldHandles:
        """Return the handles and feeds, by value."""
        for name in self.host:
            self.numbers_of(name)
        host = {name: (handle.numbers, handle.source) for name, handle in self.host.items()}
        gpu = {name: self.values.download(self.inputs[name].buffer) for name in self.gpu}
        return HeldHandles(host, gpu, dict(self.feeds))

    def hold(self, held: HeldHandles) -> None:
        """Replace all handles and feeds by those of another graph of the same plan."""
        self.host = {name: HostHandle(numbers, source) for name, (numbers, source) in held.host.items()}
        for name in self.gpu:
            self.external.unbind(self.inputs[name].buffer)
        self.gpu, self.feeds, self.lies = set(held.gpu), dict(held.feeds), {}
        for name, numbers in held.gpu.items():
            self.values.upload(self.inputs[name].buffer, numbers)

    def forget(self) -> None:
        """Forget the contents of the inputs: they are written anew."""
        self.lies.clear()
