"""Measure how fast the engines of a cluster reduce: `study.scaling(link=calibrate(four))`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from gdlab.base.errors import SessionError
from gdlab.base.words import duration, grid, nbytes, plural, whole
from gdlab.distributed.clusters import Cluster, call

SIZES = (64, 1 << 16, 1 << 20, 1 << 22, 1 << 24)  # bytes that are reduced
REPEATS, LEAST_SECONDS = 5, 1e-9


@dataclass(frozen=True, slots=True)
class ReductionTime:
    """A measured reduction: seconds (the median) of so many bytes over so many engines."""

    engines: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured reductions, with the bandwidth (`link`, bytes per second) and `latency` (seconds) that fit the formula
    of a ring reduction over all engines."""

    times: tuple[ReductionTime, ...]
    link: float
    latency: float

    @property
    def engines(self) -> tuple[int, ...]:
        """Return the numbers of engines that were measured."""
        return tuple(sorted({each.engines for each in self.times}))

    def seconds(self, engines: int, size: int) -> float | None:
        """Return the time of a reduction of `size` bytes, interpolated between measured ones; None for other numbers of
        engines. Above the largest size the time grows as it did last."""
        rows = sorted((each.nbytes, each.seconds) for each in self.times if each.engines == engines)
        if not rows:
            return None
        (a, least), (b, most) = rows[-2:]
        if size > b:
            return most + (size - b) * max(0.0, most - least) / (b - a)
        return float(np.interp(size, [n for n, _ in rows], [t for _, t in rows]))

    @property
    def link_words(self) -> str:
        """Return the bandwidth in words."""
        return f"{nbytes(self.link)}/s, measured"

    @property
    def latency_words(self) -> str:
        """Return the latency in words."""
        return f"{duration(self.latency)}, measured"

    def __repr__(self) -> str:
        return f"<Calibration: {plural(self.engines[-1], 'engine')}, {nbytes(self.link)}/s, {duration(self.latency)}>"

    def __str__(self) -> str:
        head = ("engines", "reduced", "time", "bytes by time")
        rows = [
            (whole(t.engines), nbytes(t.nbytes), duration(t.seconds), f"{nbytes(t.nbytes / t.seconds)}/s")
            for t in self.times
        ]
        first = f"reductions between {plural(self.engines[-1], 'engine')}: {self.link_words}; {self.latency_words}"
        return "\n".join([first, *grid(head, rows, right=range(len(head)))])


def calibrate(cluster: Cluster) -> Calibration:
    """Measure reductions of several sizes over 2, 4 … and all engines; takes a second or so. The cluster remembers it,
    and its runs are predicted by it."""
    cluster.check_alive("calibrate")
    if cluster.kind != "mpi" or len(cluster) < 2:
        given = f"{plural(len(cluster), 'engine')}{'' if cluster.kind == 'mpi' else ' without MPI'}"
        raise SessionError("calibrate", "cluster", given, 'cluster(n=2, engines="mpi"): two engines or more')
    counts = [n for n in (2**k for k in range(1, 20)) if n < len(cluster)] + [len(cluster)]
    told = call(cluster.view, reduction_times, SIZES, counts, REPEATS)[0]
    cluster.calibration = fitted(tuple(ReductionTime(*each) for each in told))
    return cluster.calibration


def calibration_of(cluster: Cluster) -> Calibration:
    """Return the calibration of a cluster, measured now unless `calibrate` has been called."""
    return cluster.calibration or calibrate(cluster)


def fitted(times: tuple[ReductionTime, ...]) -> Calibration:
    """Return the bandwidth and the latency with which a ring reduction over all engines takes these times: the latency
    from the smallest size, the bandwidth from the largest."""
    n = max(each.engines for each in times)
    rows = sorted((each.nbytes, each.seconds) for each in times if each.engines == n)
    (small, least), (large, most) = rows[0], rows[-1]
    per_second = 2 * (n - 1) / n * (large - small) / max(LEAST_SECONDS, most - least)
    latency = max(LEAST_SECONDS, least - 2 * (n - 1) / n * small / per_second) / (2 * (n - 1))
    return Calibration(times, per_second, latency)


# on the engine --------------------------------------------------------------------------------------------------------
def reduction_times(sizes: Sequence[int], counts: Sequence[int], repeats: int) -> list[tuple[int, int, float]]:
    """Reduce arrays of these sizes over the first 2, 4 … engines; return (engines, bytes, seconds). Called on all."""
    from mpi4py import MPI

    found = []
    for count in counts:
        rank = MPI.COMM_WORLD.Get_rank()
        comm = MPI.COMM_WORLD.Split(0 if rank < count else MPI.UNDEFINED, rank)
        if comm != MPI.COMM_NULL:
            found += [(count, size, _seconds(comm, size, repeats)) for size in sizes]
            comm.Free()
        MPI.COMM_WORLD.Barrier()
    return found


def _seconds(comm: Any, size: int, repeats: int) -> float:
    from gdlab.distributed.meeting import sum_f32

    data, found = np.zeros(max(1, size // 4), np.float32), []
    for _ in range(repeats + 1):
        comm.Barrier()
        begin = time.perf_counter()
        sum_f32(comm, data)
        found.append(time.perf_counter() - begin)
    return float(median(found[1:]))
