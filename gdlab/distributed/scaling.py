"""Predict how one run scales over many engines, without starting them.

print(study.scaling(engines=(1, 2, 4, 8), link="100Gb/s", latency="5us", accumulate=4))
print(study.scaling(link=calibrate(cluster)))
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.base.words import duration, grid, nbytes, plural, sig, whole
from gdlab.distributed.calibration import Calibration
from gdlab.distributed.gradient_buckets import in_host_memory
from gdlab.session import Session
from gdlab.study.study import Study

ENGINES = tuple(2**k for k in range(11))  # 1 … 1024
GOOD = 0.8  # the efficiency that advice aims at

_MOST_ENGINES, _MOST_SIZES = 1_000_000, 1000
_LINKS = {"kb/s": 125.0, "Mb/s": 125e3, "Gb/s": 125e6, "Tb/s": 125e9,
          "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}  # fmt: skip
_LATENCIES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?) ?(\S+)")
_STEPS, _WARM_UP, _READS = 7, 2, 3


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """The prediction for one number of engines: seconds of one update, its parts, and the speed-up."""

    engines: int
    seconds: float
    compute: float
    host: float
    ring: float
    speedup: float

    @property
    def efficiency(self) -> float:
        """Return the speed-up divided by the number of engines, 0 … 1."""
        return self.speedup / self.engines

    @property
    def reduction(self) -> float:
        """Return the seconds outside the computation: gradients through the host, and between engines."""
        return self.host + self.ring


@dataclass(frozen=True, slots=True)
class Scaling:
    """A prediction by its inputs; `rows` computes it, and `measured` has the same from reductions that a calibration
    has measured. `step`: seconds of a step here, its update included; `nbytes`: of all gradients; `read`, `write`:
    seconds to bring them to the host and back; `link`: bytes per second; `latency`: seconds; `accumulate`: batches for
    each reduction."""

    name: str
    device: str
    engines: tuple[int, ...]
    step: float
    nbytes: int
    read: float
    write: float
    link: float
    latency: float
    accumulate: int
    link_words: str
    latency_words: str
    calibration: Calibration | None = None

    def row(self, engines: int, accumulate: int | None = None) -> ScalingRow:
        """Return the prediction for so many engines, by the ring reduction of Patarasuk and Yuan (2009)."""
        ring = ring_seconds(engines, self.nbytes, self.link, self.latency)
        return self._row(engines, ring, self.accumulate if accumulate is None else accumulate)

    @property
    def measured(self) -> tuple[ScalingRow, ...]:
        """Return the rows of the numbers of engines between which reductions were measured."""
        known = self.calibration
        pairs = [(n, known.seconds(n, self.nbytes)) for n in known.engines] if known is not None else []
        return tuple(self._row(n, ring, self.accumulate) for n, ring in pairs if ring is not None)

    def _row(self, engines: int, ring: float, batches: int) -> ScalingRow:
        n, compute = engines, batches * self.step
        host = self.read + self.write if n > 1 else 0.0
        seconds = compute + host + ring
        return ScalingRow(n, seconds, compute, host, ring, n * compute / seconds)

    @property
    def rows(self) -> tuple[ScalingRow, ...]:
        """Return the prediction for each number of engines."""
        return tuple(self.row(n) for n in self.engines)

    def table(self) -> list[dict[str, Any]]:
        """Return a dict of each number of engines."""
        return [
            {"engines": r.engines, "seconds": r.seconds, "compute": r.compute, "host": r.host, "ring": r.ring,
             "speedup": r.speedup, "efficiency": r.efficiency} for r in self.rows
        ]  # fmt: skip

    @property
    def sentence(self) -> str:
        """Return the conclusion in a sentence: from how many engines on the reduction takes longer than the step, and a
        remedy."""
        last = self.rows[-1]
        step = "the step" if self.accumulate == 1 else f"the {self.accumulate} steps"
        over = next((r for r in self.rows if r.reduction > r.compute), None)
        if over is None:
            told = f"up to {plural(last.engines, 'engine')} {step} takes longer than the reduction: "
            told += f"efficiency {_percent(last.efficiency)} on {plural(last.engines, 'engine')}"
            return told if last.efficiency >= GOOD or last.engines == 1 else f"{told}; {self._advice(last)}"
        before = [r.engines for r in self.rows if r.engines < over.engines and r.engines > 1]
        where = f"beyond {plural(before[-1], 'engine')}" if before else f"already on {plural(over.engines, 'engine')}"
        return f"{where} the reduction takes longer than {step}: {self._advice(last)}"

    def _advice(self, row: ScalingRow) -> str:
        """Say how many batches give a good efficiency, and the other remedy with the largest effect."""
        wanted = math.ceil(GOOD / (1 - GOOD) * row.reduction / self.step)
        wire, waits = (
            2 * (row.engines - 1) / row.engines * self.nbytes / self.link,
            2 * (row.engines - 1) * self.latency,
        )
        most = max((row.host, "the way through the host"), (wire, "the link"), (waits, "the latency"))
        others = {"the way through the host": "gradients that stay on the device", "the link": "a faster link",
                  "the latency": "fewer engines with larger batches"}  # fmt: skip
        batches = f"accumulate {whole(wanted)} batches for {_percent(GOOD)} on {plural(row.engines, 'engine')}"
        return f"{batches}, or {others[most[1]]} ({most[1]} is {_percent(most[0] / row.reduction)} of the reduction)"

    @property
    def assumed(self) -> str:
        """Return the assumptions of the prediction in words."""
        copied = f"to the host in {duration(self.read)} and back in {duration(self.write)}"
        return (
            f"step {duration(self.step)} on {self.device}, {plural(self.accumulate, 'batch')} an update; gradients "
            f"{nbytes(self.nbytes)}, {copied if self.read + self.write else 'in memory of the host'}; "
            f"link {self.link_words}, latency {self.latency_words}; a ring reduction, one part after the other"
        )

    def __repr__(self) -> str:
        last = self.rows[-1]
        return f"<Scaling of {self.name}: {sig(last.speedup)} × on {plural(last.engines, 'engine')}>"

    def __str__(self) -> str:
        head = ("engines", "update", "compute", "host", "ring", "speed-up", "efficiency")
        rows = [
            (whole(r.engines), duration(r.seconds), duration(r.compute), duration(r.host), duration(r.ring),
             f"{sig(r.speedup)} ×", _percent(r.efficiency)) for r in self.rows
        ]  # fmt: skip
        lines = grid(head, rows, right=range(len(head)), indent="")
        lines += [
            f"measured between {plural(r.engines, 'engine')}: a reduction of {nbytes(self.nbytes)} takes "
            f"{duration(r.ring)}, with which an update takes {duration(r.seconds)}: {sig(r.speedup)} ×"
            for r in self.measured
        ]
        return "\n".join([f"scaling of {self.name}, predicted: {self.assumed}", *lines, self.sentence])


def ring_seconds(engines: int, size: int, link: float, latency: float) -> float:
    """Return the seconds of a ring reduction of `size` bytes."""
    n = engines
    return 2 * (n - 1) / n * size / link + 2 * (n - 1) * latency


def scaling(
    study: Study, engines: Iterable[int] = ENGINES, link: str | Calibration = "25Gb/s", latency: str = "20us",
    accumulate: int = 1,
) -> Scaling:  # fmt: skip
    """Predict the time of an update and the speed-up of a run on so many engines, each with its own batches.

    Time = steps here + ring reduction 2 (n − 1) / n · bytes / bandwidth + 2 (n − 1) · latency + reading and writing of
    the gradients by the host. Step, reading and writing are measured now, in a session of its own; a step that
    `measure` measured before is used. `link`: `25Gb/s` (bits) or `3GB/s` (bytes); `latency`: `20us`. Where `link` is
    what `calibrate(cluster)` measured, bandwidth and latency are its own, and its points stand beside the prediction.
    """
    if not study.train:
        raise ArgumentError("scaling", "study", f"{study.name}, for inference", "a study with train=True")
    sizes = _sizes(engines)
    per_second, wait, words, measured = _link(link, latency)
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ArgumentError("scaling", "accumulate", repr(accumulate), "an int ≥ 1")
    step, read, write, size = _measured(study)
    device = str(study.device.info)
    return Scaling(
        study.name, device, sizes, step, size, read, write, per_second, wait, accumulate, *words, measured
    )  # fmt: skip


def _link(
    link: str | Calibration, latency: str
) -> tuple[float, float, tuple[str, str], Calibration | None]:  # fmt: skip
    """Return bandwidth, latency, both in words, and the calibration that they come from."""
    if isinstance(link, Calibration):
        return link.link, link.latency, (link.link_words, link.latency_words), link
    per_second = _with_unit("link", link, _LINKS, "25Gb/s or 3GB/s")
    if per_second <= 0:
        raise ArgumentError("scaling", "link", repr(link), "a bandwidth > 0")
    wait = _with_unit("latency", latency, _LATENCIES, "20us or 0.1ms")
    return per_second, wait, (link.strip(), latency.strip()), None


def sizes_up_to(engines: int) -> tuple[int, ...]:
    """Return 1, 2, 4 … and `engines`."""
    powers = [2**k for k in range(20) if 2**k < engines]
    return (*powers, engines)


def _sizes(engines: Any) -> tuple[int, ...]:
    given = [engines] if isinstance(engines, int) else list(engines) if isinstance(engines, Iterable) else []
    good = all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= _MOST_ENGINES for n in given)
    if isinstance(engines, str) or not given or not good or len(given) > _MOST_SIZES:
        raise ArgumentError("scaling", "engines", f"{engines!r:.60}", "several ints ≥ 1: (1, 2, 4, 8)")
    return tuple(sorted(set(given)))


def _with_unit(what: str, text: Any, units: dict[str, float], wanted: str) -> float:
    """Parse a number with its unit; bits and bytes are told apart by the case of the letter."""
    found = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2] not in units:
        raise ArgumentError("scaling", what, f"{text!r:.60}", f"a number and one of {', '.join(units)}: {wanted}")
    return float(found[1]) * units[found[2]]


def _measured(study: Study) -> tuple[float, float, float, int]:
    """Return the seconds of a step, of reading and of writing all gradients, and their bytes."""
    execution = study.execution
    with execution.open_on(execution.device, execution.feeds()) as session:
        opening = execution.opening
        if opening.optimizer.rule != "none":
            session.updates.adopt("scaling", opening.optimizer, opening.settings)
        times = [_seconds(lambda: _one_step(session)) for _ in range(_WARM_UP + _STEPS)][_WARM_UP:]
        names = [node.name for node in study.graph.parameters if session.has_param_grad(node.name)]
        gradients = {name: session.read_param_grad(name) for name in names}
        read, written = 0.0, 0.0

        def write() -> None:
            for name, values in gradients.items():
                session.set_parameter(name, values)  # as many bytes as its gradient, the same way
            session.wait()

        if not in_host_memory(session):
            read = min(_seconds(lambda: [session.read_param_grad(name) for name in names]) for _ in range(_READS))
            written = min(_seconds(write) for _ in range(_READS))
    known = study.step_time
    step = sorted(times)[len(times) // 2] if known is None else known.median
    return step, read, written, sum(values.nbytes for values in gradients.values())


def _one_step(session: Session) -> None:
    session.step()
    session.wait()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _percent(share: float) -> str:
    return f"{sig(100 * share, 2)} %"
