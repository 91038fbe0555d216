"""Hold parameters and numbers that outlive a recording: `Param`, `NatRef`, `NatVecRef`; and check data that enters.

The device memory of a parameter is its mirror: H, only the host is current; B, both; D, only the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import DTypeError, EagerError, OutputIndexError
from gdlab.base.formats import entered, narrowed
from gdlab.base.formats.packed_bytes import Packed, as_stored
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.eager.references import AnyBuffer
from gdlab.eager.tape import LeafFacts, Tape, TapeOperand, TensorRef
from gdlab.graph import Value

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession


class Param(TapeOperand):
    """A parameter of a session. Make it with `EagerSession.param`."""

    def __init__(
        self, session: EagerSession, uid: int, name: str, type: TensorType, requires_grad: bool, host: Array | Packed
    ) -> None:
        self.session, self.uid, self.name, self.type, self.requires_grad = session, uid, name, type, requires_grad
        self.init = ""  # as a graph declared it
        self.mirror: AnyBuffer | None = None
        self._host: Array | Packed | None = as_stored(host, type)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return self.type.shape

    @property
    def host_current(self) -> bool:
        """Whether the host has the current value."""
        return self._host is not None

    @property
    def state(self) -> str:
        """The current copies: H the host's alone, D the device's alone, B both."""
        return "H" if self.mirror is None else "B" if self.host_current else "D"

    @property
    def value(self) -> Array:
        """Return a copy of the current value, downloaded if only the device has it."""
        return self.session.param_value(self)

    @property
    def held(self) -> Array | Packed:
        """Return the current value as another session takes it bit by bit: blocks in their bytes."""
        return self.session.param_held(self)

    def on(self, tape: Tape) -> Value:
        """Return the leaf of the current value, as `use` does."""
        return tape.session.use(self)

    def on_device(self) -> AnyBuffer:
        """Return the mirror; upload the value if only the host has it."""
        if self.mirror is None:
            assert self._host is not None  # one of both is current
            engine = self.session.engine
            self.mirror = self.session.buffer_of(engine.upload(self.type, self._host), self.type)
        return self.mirror

    def sync(self) -> Array | Packed:
        """Download if the host's copy is stale; return the host's copy itself: of blocks their bytes."""
        if self._host is None:
            assert self.mirror is not None  # one of both is current
            self._host = self.mirror.block.packed or self.session.engine.download(self.mirror.block, self.type)
        return self._host

    def set_device(self, buffer: AnyBuffer) -> None:
        """Use new memory as the value, by a reference of its own; the host's copy becomes stale."""
        old, self.mirror, self._host = self.mirror, buffer, None
        if old is not None:
            old.release()

    def set_host(self, value: Array | Packed) -> None:
        """Use an array as the value; the mirror is dropped."""
        old, self.mirror, self._host = self.mirror, None, as_stored(value, self.type)
        if old is not None:
            old.release()

    def __repr__(self) -> str:
        return f"<Param {self.name}: {self.type}, {self.state}{'' if self.requires_grad else ', frozen'}>"


# numbers --------------------------------------------------------------------------------------------------------------
class NatVecRef(TapeOperand):
    """Numbers start … start + k − 1 of a session, as an operand: wherever an op takes indices."""

    def __init__(self, session: EagerSession, nat_generation: int, start: int, k: int) -> None:
        self.session, self.nat_generation, self.start, self.k = session, nat_generation, start, k

    @property
    def session_id(self) -> int:
        """The number of the session."""
        return self.session.number

    def on(self, tape: Tape) -> Value:
        """Return a u32 leaf of the current numbers."""
        if tape.session is not self.session:
            raise EagerError("eager.nat", "foreign handle", self, f"one of session {tape.session.number}")
        return self.session.nat_leaf(self)

    def __repr__(self) -> str:
        return f"NatVecRef {self.start} … {self.start + self.k - 1}"


class NatRef(NatVecRef):
    """One number of a session."""

    def __init__(self, session: EagerSession, nat_generation: int, id: int) -> None:
        super().__init__(session, nat_generation, id, 1)

    @property
    def id(self) -> int:
        """Index of the number in the session."""
        return self.start

    def __repr__(self) -> str:
        return f"NatRef {self.start}"


class Nats:
    """The numbers of a session."""

    def __init__(self, session: EagerSession) -> None:
        self.session, self.generation, self.values = session, 1, list[int]()

    def add(self, where: str, given: Sequence[Any]) -> int:
        """Append numbers; return the index of the first."""
        numbers = [checked_nat(where, v) for v in given]
        start = len(self.values)
        self.values += numbers
        return start

    def get(self, where: str, ref: Any) -> list[int]:
        """Return current numbers."""
        self._check(where, ref)
        return self.values[ref.start : ref.start + ref.k]

    def set(self, where: str, ref: Any, given: Sequence[Any]) -> None:
        """Replace numbers; nodes recorded before keep theirs."""
        self._check(where, ref)
        if len(given) != ref.k:
            raise EagerError(where, "length", len(given), str(ref.k))
        self.values[ref.start : ref.start + ref.k] = [checked_nat(where, v) for v in given]

    def clear(self) -> None:
        """Forget all numbers; their handles become stale."""
        self.values.clear()
        self.generation += 1

    def _check(self, where: str, ref: Any) -> None:
        if not isinstance(ref, NatVecRef):
            raise EagerError(where, "handle", type(ref).__name__, "a NatRef or NatVecRef")
        if ref.session is not self.session:
            raise EagerError(
                where, "foreign handle", f"{ref} of session {ref.session.number}", f"session {self.session.number}"
            )
        if ref.nat_generation != self.generation:
            given = f"{ref} of generation {ref.nat_generation}"
            raise EagerError(where, "stale handle", given, f"generation {self.generation} (reset_tape cleared them)")
        if not 0 <= ref.start <= ref.start + ref.k - 1 < len(self.values):
            raise OutputIndexError(where, "nat id", ref.start + ref.k - 1, f"0 … {len(self.values) - 1}")


def checked_nat(where: str, value: Any, at: int | None = None) -> int:
    """Return an int in 0 … 2^32 − 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**32:
        place = "" if at is None else f" at position {at}"
        raise DTypeError(where, "value", f"{value!r}{place}", "an int in 0 … 2^32 − 1")
    return int(value)


# data -----------------------------------------------------------------------------------------------------------------
def taken(where: str, what: str, data: Any, scalar: np.dtype[Any], floats: bool = False) -> Array:
    """Return a copy of data in the dtype of a tensor: integers as u32 (unless `floats`), other real numbers in
    `scalar`. A number without axes has one element."""
    try:
        array = np.asarray(data)
    except (TypeError, ValueError, OverflowError):
        raise DTypeError(where, what, type(data).__name__, "real numbers in a regular array") from None
    if array.dtype.kind not in "fiub":
        raise DTypeError(where, what, array.dtype, "real numbers")
    if array.ndim == 0:
        array = array.reshape(1)
    if array.dtype.kind in "iu" and not floats:
        made = entered(where, what, array, "u32", u32)
    elif scalar == np.float32:
        made = narrowed(where, what, array, f32)
    else:
        made = array.astype(scalar)
    return np.array(made, order="C")


def type_of(array: Array) -> TensorType:
    """Return the type of an array that `taken` returned."""
    return _type(array.shape, array.dtype == np.uint32)


@lru_cache(maxsize=4096)
def _type(shape: tuple[int, ...], indices: bool) -> TensorType:
    """Return one object per type: keys that hold it are compared by identity first."""
    return TensorType(shape, u32 if indices else f32)


def input_leaf(tape: Tape, array: Array, name: str, requires_grad: bool) -> TensorRef:
    """Append an input; indices keep their host copy."""
    session, type = tape.session, type_of(array)
    held = LeafFacts(None, array if type.dtype is u32 else None, bool(name))
    name = name or f"x{len(tape)}"
    buffer = session.buffer_of(session.engine.upload(type, array), type)
    source = tape.source_of_call()
    return tape.put("input", (), (("name", name),), type, name, source, buffer, requires_grad, held)


def parameter_leaf(tape: Tape, param: Param) -> TensorRef:
    """Append the current value of a parameter, or return its leaf if there is one."""
    buffer = param.on_device()
    for id, facts in tape.facts.items():
        shown = tape.buffers[id]
        if facts.param is param and not shown.released and shown.block is buffer.block:
            return TensorRef(tape, id)
    attrs = (("name", param.name),) if not param.init else (("init", param.init), ("name", param.name))
    needs = param.requires_grad and tape.session.tracks
    facts = LeafFacts(param, None, True)
    source = tape.source_of_call()
    return tape.put("parameter", (), attrs, param.type, param.name, source, buffer.share(), needs, facts)
