"""Cut the gradients of a step into buckets, each of which is sent when the last dispatch that writes to it has run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gdlab.devices.base import BufferCopy, Readback
from gdlab.session import Session

SMALL_BYTES, LARGE_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that the update reads; its first element is number `start` among the elements of all gradients."""

    name: str
    buffer: int
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Return the gradient's number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Elements start … start + size − 1 of all gradients, ready when `stop` dispatches of a step have run. `pieces`:
    (buffer, first element, elements) of each gradient that has a part in it."""

    stop: int
    start: int
    size: int
    pieces: tuple[tuple[int, int, int], ...]

    def copies(self, landing: Readback) -> list[BufferCopy]:
        """Return the copies that bring the bucket into a landing (mapped memory)."""
        found, at = list[BufferCopy](), 0
        for buffer, first, size in self.pieces:
            found.append(BufferCopy(buffer, 4 * first, landing, 4 * at, 4 * size))
            at += size
        return found


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """All gradients behind one another in the order in which they are ready, and the buckets that they are cut into."""

    gradients: tuple[Gradient, ...]
    buckets: tuple[Bucket, ...]

    @property
    def size(self) -> int:
        """Return the elements of all gradients."""
        return sum(each.size for each in self.gradients)


def in_host_memory(session: Session) -> bool:
    """Return whether gradients lie in memory of the host: they are reduced where they are, and never copied."""
    return session.loaded.plan.target.adapter_class == "cpu"


def ready_order(session: Session) -> tuple[str, ...]:
    """Return the names of the gradients that the update reads by the dispatch that writes each last."""
    last = _last_uses(session, reads=False)
    return tuple(name for name, _ in sorted(session.updates.gradient_buffers(), key=lambda each: last.get(each[1], 0)))


def usual_bytes(session: Session) -> int:
    """Return the usual bytes of a bucket: small ones are reduced beside the backward pass of a device of its own; large
    ones where both need the same processor cores."""
    return LARGE_BYTES if session.loaded.plan.target.adapter_class in ("cpu", "software") else SMALL_BYTES


def layout_of(session: Session, order: Sequence[str], bucket_bytes: int) -> BucketLayout:
    """Return the buckets of at most so many bytes over gradients in this order, which is the same on all engines: plans
    of other devices may write them in another one. Large gradients are cut."""
    buffers, last = dict(session.updates.gradient_buffers()), _last_uses(session, reads=in_host_memory(session))
    types = {b.id: b.shape for b in (*session.loaded.plan.buffers, *session.updates.state_buffers)}
    gradients, start = list[Gradient](), 0
    for name in order:
        gradients.append(Gradient(name, buffers[name], types[buffers[name]], start))
        start += gradients[-1].size
    buckets, stop, room = list[Bucket](), 0, max(1, bucket_bytes // 4)
    for first in range(0, start, room):
        end = min(start, first + room)
        inside = [g for g in gradients if g.start < end and g.start + g.size > first]
        stop = max(stop, *(last.get(g.buffer, 0) for g in inside))
        pieces = ((g.buffer, max(first, g.start), min(end, g.start + g.size), g.start) for g in inside)
        cut = tuple((buffer, a - at, b - a) for buffer, a, b, at in pieces)
        buckets.append(Bucket(stop, first, end - first, cut))
    return BucketLayout(tuple(gradients), tuple(buckets))


def _last_uses(session: Session, reads: bool) -> dict[int, int]:
    """Return by buffer the number of dispatches of a step up to its last write before an update, or with `reads` up to
    its last use."""
    update = session.updates.update
    dispatches = (*session.loaded.plan.dispatches, *update.dispatches[: update.early])
    return {b: stop for stop, d in enumerate(dispatches, 1) for b in ((*d.reads, *d.writes) if reads else d.writes)}
