"""Reduce gradients over the engines of a run, bucket by bucket, while the device makes the next ones."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.base import Readback, StepPart
from gdlab.distributed.gradient_buckets import (
    LARGE_BYTES,
    BucketLayout,
    in_host_memory,
    layout_of,
    ready_order,
    usual_bytes,
)
from gdlab.session import Session

Wire = Literal["f32", "f16"]
REHEARSED_BYTES = 64 << 20
SPIN, SPIN_SHORT = 5e-3, 300e-6  # seconds in which a core waits for other engines; where cores are short
NAP = 50e-6  # seconds between two looks after that


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one engine before a reduction: its loss, whether it wants to stop, whether it failed."""

    loss: float
    stop: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class MeetingResult:
    """The votes of all engines: their losses in order, whether one wants to stop, the engines that failed."""

    losses: tuple[float, ...]
    stop: bool
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """A finished reduction: the times when it began to wait for the other engines, when all had arrived, and when it
    ended."""

    bucket: int
    begin: float
    together: float
    end: float


@dataclass(slots=True)
class BucketTimes:
    """The times of a bucket: its place in a step (`stop` dispatches before it), bytes on the wire in each reduction,
    and the seconds of all its reductions so far, of which `hidden` ran beside the step; the time to write the means to
    the device is shared out by size."""

    stop: int
    nbytes: int
    seconds: float = 0.0
    hidden: float = 0.0


@dataclass(slots=True)
class Meeting:
    """The reductions and votes of a run's engines: `comm` is a communicator of mpi4py. Times are seconds so far:
    `waiting` for other engines after the own step, `reducing`, of which `hidden` ran beside the step. `wire`: the
    format in which gradients travel; `rounded` and `squares`: sums of squares of what they lost by it, and of
    themselves. One thread reduces, in the same order on every engine, while this one sees to the device; the two never
    use `comm` at once."""

    comm: Any
    wire: Wire = "f32"
    waiting: float = 0.0
    reducing: float = 0.0
    hidden: float = 0.0
    nbytes: int = 0
    reductions: int = 0
    rounded: float = 0.0
    squares: float = 0.0
    layout: BucketLayout = BucketLayout((), ())
    buckets: list[BucketTimes] = field(default_factory=list)
    _gradients: Array = field(default_factory=lambda: np.empty(0, np.float32))
    _sent: list[Future[_Sum]] = field(default_factory=list)
    _reducer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "gdlab-reduce"))

    @property
    def rank(self) -> int:
        """Return the number of this engine."""
        return int(self.comm.Get_rank())

    @property
    def size(self) -> int:
        """Return the number of engines."""
        return int(self.comm.Get_size())

    def close(self) -> None:
        """End the thread that reduces."""
        self._reducer.shutdown()

    def vote(self, mine: Vote) -> MeetingResult:
        """Exchange votes; returns when every engine has given its own."""
        if self.size == 1:
            return MeetingResult((mine.loss,), mine.stop, (0,) if mine.failed else ())
        begin = time.perf_counter()
        words = np.zeros((3, self.size))
        words[:, self.rank] = mine.loss, mine.stop, mine.failed
        _wait(self.comm, self.comm.Iallreduce(_in_place(), words))
        self.waiting += time.perf_counter() - begin
        failed = tuple(int(k) for k in np.flatnonzero(words[2]))
        return MeetingResult(tuple(words[0].tolist()), bool(words[1].any()), failed)

    # gradients --------------------------------------------------------------------------------------------------------
    def agree(self, session: Session, bucket_bytes: int | None) -> None:
        """Lay out the gradients of a session as engine 0 does; None: the usual size of a bucket on its device."""
        if self.size == 1:
            return
        head = (ready_order(session), bucket_bytes or usual_bytes(session)) if self.rank == 0 else None
        self.layout = layout_of(session, *self.comm.bcast(head))
        each = 2 if self.wire == "f16" else 4
        self.buckets = [BucketTimes(bucket.stop, each * bucket.size) for bucket in self.layout.buckets]
        self._gradients = np.zeros(self.layout.size, np.float32)
        if in_host_memory(session):
            session.loaded.exclusively(lambda: self._lend(session))

    def _lend(self, session: Session) -> None:
        """Give the gradients of a session their places among those of the engine."""
        for each in self.layout.gradients:
            session.loaded.program.rebind(each.buffer, self._gradients[each.start : each.start + each.size])

    def parts(self, session: Session) -> list[StepPart]:
        """Return the parts of a step behind which the buckets are ready, each with a landing of its own."""
        queue, shared = session.loaded.program.queue, in_host_memory(session)
        landings = [queue.readback(0 if shared else 4 * bucket.size) for bucket in self.layout.buckets]
        made = zip(self.layout.buckets, landings, strict=True)
        return [StepPart(bucket.stop, () if shared else bucket.copies(landing), landing) for bucket, landing in made]

    def send(self, landing: Readback) -> None:
        """Begin the sum of the next bucket, whose landing is readable; an empty one: the bucket lies in its place."""
        if landing.nbytes:
            part = self._part(len(self._sent))
            part[:] = np.frombuffer(landing.view(), np.float32, part.size)
        landing.release()
        self._begin()

    def finish(self) -> None:
        """Wait until all sums have ended. An engine that has failed takes part with what lies there: the vote that
        follows tells the others."""
        begin = time.perf_counter()
        while len(self._sent) < len(self.layout.buckets):
            self._begin()
        for each in [future.result() for future in self._sent]:
            hidden = max(0.0, min(each.end, begin) - each.together)
            self.waiting += max(0.0, each.together - max(each.begin, begin))
            times, seconds = self.buckets[each.bucket], each.end - each.together
            self.reducing, self.hidden = self.reducing + seconds, self.hidden + hidden
            times.seconds, times.hidden = times.seconds + seconds, times.hidden + hidden
            self.nbytes += times.nbytes
        self.reductions += bool(self._sent)
        self._sent.clear()

    def write(self, session: Session) -> None:
        """Replace the gradients by the means over the engines."""
        begin = time.perf_counter()

        def run() -> None:
            for each in self.layout.gradients:
                mean = self._gradients[each.start : each.start + each.size]
                session.loaded.program.upload(each.buffer, mean.reshape(each.shape))

        if self.layout.gradients and not in_host_memory(session):
            session.loaded.exclusively(run)
            seconds = time.perf_counter() - begin
            self.reducing += seconds
            for times, bucket in zip(self.buckets, self.layout.buckets, strict=True):
                times.seconds += seconds * bucket.size / self.layout.size

    @property
    def error(self) -> float:
        """Return the relative error of this engine's gradients on the wire, in the norm of all."""
        return float(np.sqrt(self.rounded / self.squares)) if self.squares > 0 else 0.0

    def _part(self, bucket: int) -> Array:
        it = self.layout.buckets[bucket]
        return self._gradients[it.start : it.start + it.size]

    def _begin(self) -> None:
        self._sent.append(self._reducer.submit(self._sum, len(self._sent)))

    def _sum(self, bucket: int) -> _Sum:
        """Replace a bucket by the mean over the engines; call it on the thread that reduces."""
        part, begin = self._part(bucket), time.perf_counter()
        _wait(self.comm, self.comm.Ibarrier())
        together = time.perf_counter()
        if self.wire == "f16":
            self._sum_f16(part)
        else:
            sum_f32(self.comm, part)
        part *= np.float32(1 / self.size)
        return _Sum(bucket, begin, together, time.perf_counter())

    def _sum_f16(self, part: Array) -> None:
        sent = to_f16(part)
        known = np.isfinite(part)
        own = part[known].astype(np.float64)
        self.rounded += float(((sent[known] - own) ** 2).sum())
        self.squares += float((own**2).sum())
        sum_f16(self.comm, sent, part)

    def rehearse(self, session: Session) -> tuple[float, float]:
        """Return the seconds that reading and writing all gradients take: measured on the first `REHEARSED_BYTES`."""
        if self.size == 1 or in_host_memory(session):
            return 0.0, 0.0
        return session.loaded.exclusively(lambda: self._rehearse(session))

    def _rehearse(self, session: Session) -> tuple[float, float]:
        program, gradients = session.loaded.program, layout_of(session, ready_order(session), LARGE_BYTES).gradients
        sizes = [4 * each.size for each in gradients]
        measured, at = [0.0, 0.0], 0
        for at, each in enumerate(gradients, 1):
            begin = time.perf_counter()
            data = program.download(each.buffer)
            middle = time.perf_counter()
            program.upload(each.buffer, data)
            measured[0] += middle - begin
            measured[1] += time.perf_counter() - middle
            if sum(sizes[:at]) >= REHEARSED_BYTES:
                break
        begin = time.perf_counter()
        if gradients:
            program.download(gradients[0].buffer)  # behind what was written
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


def sum_f32(comm: Any, part: Array) -> None:
    """Replace an array by its sum over all engines."""
    comm.Allreduce(_in_place(), part)


def to_f16(values: Array) -> Array:
    """Return values as float16; finite ones stay finite."""
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


def _wait(comm: Any, request: Any) -> None:
    """Wait until a collective call has ended. A blocking call of MPI never leaves its core: with an engine on every
    core, other processes, the notebook's among them, were seen to stand still for up to 7 s."""
    until = time.perf_counter() + (SPIN_SHORT if comm.Get_size() >= _cores() else SPIN)
    while not request.Test():
        if time.perf_counter() > until:
            time.sleep(NAP)


@cache
def _cores() -> int:
    return os.cpu_count() or 1


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE


def _maximum() -> Any:
    from mpi4py import MPI

    return MPI.MAX
