"""Reduce arrays over the engines of a run: one host buffer, in parts that are under way while others are read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gdlab.base.types import Array
from gdlab.session import Session

Wire = Literal["f32", "f16"]
PART_BYTES = 16 << 20  # of one reduction; large tensors are cut
REHEARSED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Vote:
    """One engine's word before a reduction: its loss, whether it wants to stop, whether it failed."""

    loss: float
    stop: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class MeetingResult:
    """The words of all engines: losses in their order, whether one wants to stop, those that failed."""

    losses: tuple[float, ...]
    stop: bool
    failed: tuple[int, ...]


@dataclass(slots=True)
class Meeting:
    """Let the engines of a run meet: `comm` is a communicator of mpi4py. Times are seconds so far. `wire`: the format
    in which gradients travel; `rounded` and `squares`: sums of squares of what they lost by it, and of themselves."""

    comm: Any
    wire: Wire = "f32"
    waiting: float = 0.0
    reducing: float = 0.0
    nbytes: int = 0
    reductions: int = 0
    rounded: float = 0.0
    squares: float = 0.0
    _buffer: Array = field(default_factory=lambda: np.empty(0, np.float32))

    @property
    def rank(self) -> int:
        """Return the number of this engine."""
        return int(self.comm.Get_rank())

    @property
    def size(self) -> int:
        """Return the number of engines."""
        return int(self.comm.Get_size())

    def vote(self, mine: Vote) -> MeetingResult:
        """Exchange votes; returns when every engine has given its own: here the early wait for the late."""
        begin = time.perf_counter()
        words = np.zeros((3, self.size))
        words[:, self.rank] = mine.loss, mine.stop, mine.failed
        self.comm.Allreduce(_in_place(), words)
        self.waiting += time.perf_counter() - begin
        failed = tuple(int(k) for k in np.flatnonzero(words[2]))
        return MeetingResult(tuple(words[0].tolist()), bool(words[1].any()), failed)

    def reduce(self, session: Session) -> None:
        """Put the mean over the engines in the place of every gradient that the update reads."""
        begin = time.perf_counter()
        if self.size > 1:
            session.loaded.exclusively(lambda: self._reduce(session))
        self.reducing += time.perf_counter() - begin

    def _reduce(self, session: Session) -> None:
        program, buffers = session.loaded.program, [b for _, b in session.updates.gradient_buffers()]
        share, under_way = np.float32(1 / self.size), []
        groups = list(_groups(session, buffers))
        whole = sum(size for group in groups for _, size in group)
        if self._buffer.size != whole:
            self._buffer = np.empty(whole, np.float32)
        start = 0
        for group in groups:
            part = self._buffer[start : start + sum(size for _, size in group)]
            at = 0
            for buffer, size in group:
                part[at : at + size] = program.download(buffer).reshape(-1)
                at += size
            under_way.append((group, part, self._begin(part)))
            start += part.size
        for group, part, requests in under_way:
            for request in requests:
                request.Wait()
            part *= share
            at = 0
            for buffer, size in group:
                program.upload(buffer, part[at : at + size].reshape(_shape(session, buffer)))
                at += size
        self.nbytes += (2 if self.wire == "f16" else 4) * whole
        self.reductions += 1

    @property
    def error(self) -> float:
        """Return the relative error of this engine's gradients on the wire, in the norm of all."""
        return float(np.sqrt(self.rounded / self.squares)) if self.squares > 0 else 0.0

    def _begin(self, part: Array) -> list[Any]:
        if self.wire == "f32":
            return begin_sum(self.comm, part)
        sent = to_f16(part)
        known = np.isfinite(part)
        own = part[known].astype(np.float64)
        self.rounded += float(((sent[known] - own) ** 2).sum())
        self.squares += float((own**2).sum())
        sum_f16(self.comm, sent, part)
        return []

    def rehearse(self, session: Session) -> tuple[float, float]:
        """Return the seconds in which all gradients are read and written: measured on the first `REHEARSED_BYTES`."""
        return session.loaded.exclusively(lambda: self._rehearse(session)) if self.size > 1 else (0.0, 0.0)

    def _rehearse(self, session: Session) -> tuple[float, float]:
        program, buffers = session.loaded.program, [b for _, b in session.updates.gradient_buffers()]
        sizes = [4 * int(np.prod(_shape(session, b))) for b in buffers]
        measured, at = [0.0, 0.0], 0
        for at, buffer in enumerate(buffers, 1):
            begin = time.perf_counter()
            data = program.download(buffer)
            middle = time.perf_counter()
            program.upload(buffer, data)
            measured[0] += middle - begin
            measured[1] += time.perf_counter() - middle
            if sum(sizes[:at]) >= REHEARSED_BYTES:
                break
        begin = time.perf_counter()
        if buffers:
            program.download(buffers[0])  # behind what was written
        measured[1] += time.perf_counter() - begin
        share = sum(sizes) / max(1, sum(sizes[:at]))
        return measured[0] * share, measured[1] * share

    def differing(self, session: Session) -> str | None:
        """Return the first parameter whose bits are not the same on all engines."""
        import hashlib

        names = session.param_names()
        digests = np.array(
            [int.from_bytes(hashlib.blake2b(session.read_param(n).tobytes(), digest_size=7).digest(), "big")
             for n in names], np.int64,
        )  # fmt: skip
        both = np.concatenate([digests, -digests])
        self.comm.Allreduce(_in_place(), both, op=_maximum())
        differ = np.flatnonzero(both[: len(names)] != -both[len(names) :])
        return names[int(differ[0])] if differ.size else None


def begin_sum(comm: Any, part: Array) -> list[Any]:
    """Begin the sum of an array over all engines, in pieces of a bounded size; return what is to be waited for."""
    if part.nbytes < PART_BYTES // 64:  # too small to be worth a request
        comm.Allreduce(_in_place(), part)
        return []
    step = PART_BYTES // 4
    return [comm.Iallreduce(_in_place(), part[k : k + step]) for k in range(0, part.size, step)]


def to_f16(values: Array) -> Array:
    """Return values as float16; what is finite stays finite."""
    most = np.float32(np.finfo(np.float16).max)
    kept = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    return kept.astype(np.float16)


def sum_f16(comm: Any, sent: Array, result: Array) -> None:
    """Put the sum of all engines' float16 into `result`: each engine adds one part in float32, and the means of the
    parts travel in float16 again, so that all engines have the same bits."""
    n = int(comm.Get_size())
    each = -(-sent.size // n)
    mine = np.zeros(n * each, np.float16)
    mine[: sent.size] = sent
    parts = np.empty((n, each), np.float16)
    comm.Alltoall(mine.view(np.uint16), parts.view(np.uint16))
    mean = to_f16(parts.astype(np.float32).mean(0, dtype=np.float32))
    comm.Allgather(mean.view(np.uint16), mine.view(np.uint16))
    np.multiply(mine[: sent.size], np.float32(n), out=result, dtype=np.float32)


def _groups(session: Session, buffers: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Cut the buffers into groups of about `PART_BYTES`: (buffer, elements) of each."""
    group: list[tuple[int, int]] = []
    nbytes = 0
    for buffer in buffers:
        size = int(np.prod(_shape(session, buffer)))
        if group and nbytes + 4 * size > PART_BYTES:
            yield group
            group, nbytes = [], 0
        group.append((buffer, size))
        nbytes += 4 * size
    if group:
        yield group


def _shape(session: Session, buffer: int) -> tuple[int, ...]:
    known = len(session.loaded.plan.buffers)
    if buffer < known:
        return session.loaded.plan.buffers[buffer].shape
    return session.updates.state_buffers[buffer - known].shape


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE


def _maximum() -> Any:
    from mpi4py import MPI

    return MPI.MAX
