"""Sample the norm of each parameter's gradient while a run goes on: now and then, within a share of its time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.session import Session
from gdlab.session.tensors import GRADIENT, SessionTensor, find_tensor, read_tensor

MOST_PARAMETERS = 100
_MOST_SAMPLES = 128  # of a parameter: then every second one goes, and half as many come
_MOST_BYTES = 1 << 22  # of gradients that are read between two steps
_SECONDS = 0.04  # between two samples at least
_SHARE = 60  # a sample costs at most one part in so many of the time


@dataclass(slots=True)
class NormCourse:
    """The norm of one parameter's gradient, ‖∂L/∂w‖, as (step, norm) in order of steps; beyond a size evenly thinned.
    """

    name: str
    tensor: SessionTensor
    samples: list[tuple[int, float]] = field(default_factory=list)
    stride: int = 1
    _skipped: int = 0

    def add(self, step: int, norm: float, last: bool) -> None:
        """Add a sample, or skip it where the course has become sparse; the `last` one of a run stays."""
        while self.samples and self.samples[-1][0] >= step:
            self.samples.pop()
        self._skipped += 1
        if self._skipped < self.stride and not last:
            return
        self._skipped = 0
        self.samples.append((step, norm))
        if len(self.samples) >= _MOST_SAMPLES and not last:  # this one goes, so it counts as skipped
            self._skipped = self.stride
            self.samples, self.stride = self.samples[::2], 2 * self.stride


class GradientNorms:
    """The norms of the gradients of one session. Nobody who looks: nothing is read. `ask`, from any thread, lets the
    next step's end read gradients once; so they are sampled as often as a panel asks, and never in more than a 60th of
    the time. The last step of a run in which somebody asked is always read.

    At most 100 parameters, the first; of large ones some at a time, 4 MiB between two steps.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked = False
        self.left_out = 0  # parameters with a gradient that are not sampled
        self._anyone = False  # asked in this run
        self._due = 0.0
        self._next = 0  # of the parameters, to be read first
        self._courses: tuple[NormCourse, ...] | None = None

    @property
    def courses(self) -> tuple[NormCourse, ...]:
        """The courses of the parameters that have a gradient, in order; empty before the first sample."""
        return self._courses or ()

    def ask(self) -> None:
        """Ask for a sample at the end of the next step."""
        self.asked = True

    def sample(self, step: int) -> None:
        """Read gradients behind a step, if enough time has gone by since the last reading. On the owner's thread."""
        if (began := time.monotonic()) < self._due:
            return
        self.asked, self._anyone = False, True
        self._read(step, _MOST_BYTES, last=False)
        now = time.monotonic()
        self._due = now + max(_SECONDS, _SHARE * (now - began))

    def end(self, step: int) -> None:
        """Read all gradients behind the last step of a run for which a sample was asked for."""
        if (self._anyone or self.asked) and step > 0:
            self._read(step, sum(t.tensor.type.size_bytes for t in self._made()), last=True)
        self.asked = self._anyone = False

    def reset(self) -> None:
        """Forget every sample."""
        self._courses, self._next, self._due = None, 0, 0.0

    def go_back(self, step: int) -> None:
        """Drop samples of this step and later ones: they do not count any more."""
        for course in self.courses:
            course.samples[:] = [row for row in course.samples if row[0] < step]

    def _names(self) -> list[str]:
        session = self.session
        if session.mode != "training":
            return []
        return [name for name in session.param_names() if session.has_param_grad(name)]

    def _made(self) -> Sequence[NormCourse]:
        if self._courses is None:
            names = self._names()
            tensors = [find_tensor(self.session, "read", name + GRADIENT) for name in names[:MOST_PARAMETERS]]
            self._courses = tuple(map(NormCourse, names, tensors))
            self.left_out = len(names) - len(tensors)
        return self._courses

    def _read(self, step: int, nbytes: int, last: bool) -> None:
        courses, traffic = self._made(), self.session.traffic
        before = traffic.readbacks, traffic.readback_bytes
        for _ in courses:
            course = courses[self._next % len(courses)]
            self._next += 1
            try:
                course.add(step, norm_of(read_tensor(self.session, course.tensor)), last)
            except SessionError:  # a lost device: the run says so
                break
            nbytes -= course.tensor.type.size_bytes
            if nbytes <= 0 and not last:
                break
        traffic.readbacks, traffic.readback_bytes = before  # what is read to tell of a run is no part of it


def norm_of(data: Array) -> float:
    """Return the Euclidean norm, in float64; not finite where an element is not."""
    flat = data.reshape(-1).astype(np.float64)
    return math.sqrt(float(np.dot(flat, flat)))
