"""Search the fastest schedules of products on an adapter, and keep them: `tune(device, products, seconds=10)`.

A product is run alone, without what a plan computes in its chain. Its schedules take turns, so that a slow moment of
the machine does not decide; each was compared with that of the rules first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.errors import ArgumentError, GdlabError, SessionError
from gdlab.base.formats import encode
from gdlab.base.kinds import NUMBER
from gdlab.base.types import FORMATS, Array, DType, TensorType
from gdlab.base.words import nbytes, sig
from gdlab.devices.base import Bound, Clear, Device, Recorded, Region
from gdlab.devices.fit import free_bytes, round_up
from gdlab.devices.tuning_file import Trial, TunedKernel, keep_kernels, kept_kernels, short_reason, tuning_of
from gdlab.devices.wgpu.compile_progress import logged_progress
from gdlab.graph import Value
from gdlab.op import REGISTRY
from gdlab.plan.candidates import EPS, ProductKey, candidates, name_of
from gdlab.plan.piece import Piece, piece
from gdlab.plan.spread import Schedule
from gdlab.plan.target import Target, TunedSchedule, Tuning

ROUNDS = 5
ROUND_SECONDS = 0.005  # of one submission of the rule's schedule
_AT_ONCE = 256  # runs of one submission
_HOPELESS = 3.0  # times the rule's time: such a schedule is timed once
_CLOSE = 1.5  # times the best one's time: only such schedules are timed in later rounds
RTOL = 2e-4  # all terms are positive: a sum is its own scale of errors
_LONGEST = 10**9  # seconds of a search
WHERE = "tune"

# m, n, k of products to begin with: a small network of 64 rows, a transformer of width 256 and 1024, one row of it
USUAL = {
    "hardware": ((64, 256, 784), (64, 10, 256), (64, 256, 256), (64, 1024, 256), (64, 256, 1024), (512, 1024, 1024),
                 (512, 4096, 1024), (512, 1024, 4096), (2048, 2048, 2048)),
    "software": ((64, 128, 784), (64, 10, 128), (64, 256, 256), (256, 256, 256)),
}  # fmt: skip
_LAYOUTS = (("mk", "kn"), ("km", "kn"), ("mk", "nk"))  # of forward products, and of gradients of both operands


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """The state of a search: how many of `of` products are `done`, and the one at work."""

    done: int
    of: int
    kernel: str


def check_seconds(where: str, seconds: object) -> None:
    """Raise `ArgumentError` unless this is a time that a search may take: 0 … 10⁹ seconds."""
    if not (NUMBER.holds(seconds) and 0 <= seconds <= _LONGEST):  # type: ignore[operator]
        raise ArgumentError(where, "tune", f"{seconds!r:.40}", "a number of seconds in 0 … 10⁹")


def usual_products(device: Device) -> list[ProductKey]:
    """Return products that many networks have, in all layouts, the largest first."""
    if device.target.kind == "cpu":
        return []
    sizes = USUAL[device.target.adapter_class]
    keys = [ProductKey(m, n, k, a, b) for m, n, k in sizes for a, b in _LAYOUTS]  # type: ignore[arg-type]
    rows = [ProductKey(1, 4096, 1024, "mk", "nk", dtype) for dtype in (DType.f32, DType.f16, DType.q4_0)]
    return sorted(keys, key=lambda key: -key.m * key.n * key.k) + rows


def tuned_target(device: Device, found: Mapping[str, TunedKernel] = MappingProxyType({})) -> Target:
    """Return the target of a device with the schedules that are kept for its adapter, and those that `tune` found just
    now, whether or not they could be kept."""
    if device.target.kind == "cpu":
        return device.target
    return replace(device.target, tuning=tuning_of({**kept_kernels(device.info), **found}))


def tune(
    device: Device,
    products: Iterable[ProductKey],
    seconds: float,
    tell: Callable[[TuningProgress], None] = lambda progress: None,
) -> dict[str, TunedKernel]:
    """Search the schedules of these products that were not tried on the device yet, for at most so many seconds (but
    the schedule of the rules is always timed), and keep all of them; return what is known of these products.

    The cpu device has one form of each kernel: nothing is searched there. What was found is kept if the search is
    interrupted. A schedule that the device does not take, or that computes something else, is recorded as refused; a
    product of which it cannot even run the rule's schedule alone is left out, with a line in the log.
    """
    wanted = {str(key): key for key in products} if device.target.kind == "wgpu" else {}
    known = kept_kernels(device.info) if wanted else {}
    deadline = time.monotonic() + float(seconds)  # of float32 the sum would be rounded to it
    missing = [key for name, key in wanted.items() if _untried(key, device.target, known.get(name))]
    for done, key in enumerate(logged_progress(WHERE, missing)):
        if done and time.monotonic() >= deadline:
            break
        tell(TuningProgress(done, len(missing), str(key)))
        with _bench(device, key) as bench:
            search = _Search(bench, key, device.target, known.get(str(key)))
            try:
                search.run(deadline)
            finally:
                if search.timed:  # also where it was interrupted
                    known[str(key)] = search.found()
                    keep_kernels(device.info, [known[str(key)]])
    return {name: known[name] for name in wanted if name in known}


def _untried(key: ProductKey, target: Target, known: TunedKernel | None) -> list[Schedule]:
    """Return the candidates that are not in the record of a product."""
    tried = {trial.params for trial in known.trials} if known else set()
    return [schedule for schedule in candidates(key, target) if schedule.params not in tried]


class _Search:
    """The search of one product. `old`: what was tried before: only the best of it is timed again."""

    def __init__(self, bench: _Bench, key: ProductKey, target: Target, old: TunedKernel | None) -> None:
        self.bench, self.old = bench, old
        untried = _untried(key, target, old)
        best = None if old is None else old.chosen.params
        self.all = candidates(key, target)
        self.rule, *others = self.all
        self.others = [s for s in others if s in untried or s.params == best]
        self.timed: dict[Schedule, float] = {}  # seconds of one run, the best so far
        self.refused: dict[Schedule, str] = {}

    def run(self, deadline: float) -> None:
        """Check and time every schedule once, then those that are close to the best in turns, until the deadline; at
        last the best one and the rule's again, so that no slow moment of a short search decides."""
        bench, rule = self.bench, self.rule
        if (reason := bench.check(rule)) is not None:
            logging.getLogger("gdlab.devices").warning("tune: %s is left out: %s", bench.kernel, reason)
            return
        self.timed[rule] = bench.seconds(rule)
        bench.repeat(self.timed[rule])
        self._time(rule)
        for schedule in self.others:
            if time.monotonic() >= deadline:
                break
            self._try(schedule)
        for _ in range(ROUNDS - 1):
            best = min(self.timed.values())
            for schedule in [s for s, spent in self.timed.items() if s is rule or spent <= _CLOSE * best]:
                if time.monotonic() < deadline:
                    self._time(schedule)
        best_one = min(self.timed, key=lambda schedule: self.timed[schedule])
        for schedule in (rule, best_one) * 2 if best_one is not rule else ():
            self._time(schedule)

    def _try(self, schedule: Schedule) -> None:
        """Check a schedule and time it, or record why it is refused."""
        reason = self.bench.check(schedule)
        now = self.bench.seconds(self.rule, once=True)  # raises where the device is lost: then nothing is refused
        if reason is not None:
            self.refused[schedule] = reason
            return
        self.timed[schedule] = self.bench.seconds(schedule, once=True)
        if self.timed[schedule] <= _HOPELESS * now:
            self.timed[schedule] = self.bench.seconds(schedule)

    def _time(self, schedule: Schedule) -> None:
        """Time a schedule once more, and keep the best of its times."""
        self.timed[schedule] = min(self.timed[schedule], self.bench.seconds(schedule))

    def found(self) -> TunedKernel:
        """Return all trials of the product, those of earlier searches included."""
        new = [Trial(name_of(s), s.params, max(1, round(spent * 1e9))) for s, spent in self.timed.items()]
        new += [Trial(name_of(s), s.params, 0, reason) for s, reason in self.refused.items()]
        valid = {s.params for s in self.all} - {trial.params for trial in new}
        return TunedKernel(self.bench.kernel, (*new, *(t for t in self._old_trials(new[0]) if t.params in valid)))

    def _old_trials(self, rule: Trial) -> list[Trial]:
        """Return the trials of earlier searches, with times as the machine would take now: as multiples of the rule's.
        """
        old = () if self.old is None else self.old.trials
        before = next((t.nanoseconds for t in old if t.params == rule.params), 0)
        now = rule.nanoseconds / before if before else 1.0
        return [replace(t, nanoseconds=max(1, round(t.nanoseconds * now)) if not t.refused else 0) for t in old]


# one product on the device -------------------------------------------------------------------------------------------
@contextmanager
def _bench(device: Device, key: ProductKey) -> Iterator[_Bench]:
    made = _Bench(device, key)
    try:
        yield made
    finally:
        made.close()


class _Bench:
    """One product on a device with operands of its own. Each call takes the device's turn once, for one schedule."""

    def __init__(self, device: Device, key: ProductKey) -> None:
        self.kernel, self.key, self.target = str(key), key, device.target
        self.queue, self.turn = device.open_queue()
        self.times = 1  # runs of one submission
        self.memory: dict[tuple[str, int, int], Any] = {}  # by role, number and bytes: schedules share it
        self.bounds: dict[Schedule, tuple[Bound, ...]] = {}
        self.lists: dict[tuple[Schedule, int], Recorded] = {}
        self.want: Array | None = None  # the result of the rule's schedule, checked first

    def close(self) -> None:
        """Release all memory."""
        self.turn.call(self._close)

    def _close(self) -> None:
        self.lists.clear()
        self.bounds.clear()
        while self.memory:
            self.queue.release(self.memory.popitem()[1])

    def repeat(self, seconds: float) -> None:
        """Submit so many runs at once from now on that they take `ROUND_SECONDS`, if one takes so many seconds."""
        self.times = max(1, min(_AT_ONCE, round(ROUND_SECONDS / max(seconds, 1e-9))))

    def check(self, schedule: Schedule) -> str | None:
        """Run a schedule once and compare its result with that of the first one; return why it is refused, or None."""
        try:
            return self.turn.call(lambda: self._check(schedule))
        except GdlabError as error:
            return short_reason(error)

    def seconds(self, schedule: Schedule, once: bool = False) -> float:
        """Return the seconds of one run: of several that are submitted at once the mean."""
        return self.turn.call(lambda: self._seconds(schedule, 1 if once else self.times))

    # in the turn
    def _check(self, schedule: Schedule) -> str | None:
        made = product_piece(self.key, self.target, schedule)
        if made.dispatches[0].params != schedule.params:
            return f"alone it is lowered to {made.dispatches[0].variant or made.dispatches[0].kernel}"
        memory = self._memory_of(made)
        regions = {b: Region(each, 0, round_up(made.buffers[b].nbytes)) for b, each in memory.items()}
        bounds = tuple(self.queue.bind(WHERE, d, self.target, regions) for d in made.dispatches)
        out, got = memory[made.results[0]], np.empty(self.key.m * self.key.n, np.float32)
        self.queue.finish(WHERE, [Clear(out), *bounds])  # what a schedule does not write stays 0, and is refused
        self.queue.read(WHERE, out, got.data.cast("B"))
        if self.want is not None and (reason := difference(got, self.want)):
            return reason
        self.bounds[schedule] = bounds
        self.want = got if self.want is None else self.want
        return None

    def _seconds(self, schedule: Schedule, times: int) -> float:
        items = self.lists.get((schedule, times))
        if items is None:
            items = self.lists[schedule, times] = self.queue.recorded(self.bounds[schedule] * times)
            self.queue.submit(WHERE, [items])  # once whole: then it goes in parts, recorded while others run
            self.queue.finish(WHERE, [])
        begin = time.perf_counter()
        self.queue.submit(WHERE, [items])
        self.queue.finish(WHERE, [])
        return (time.perf_counter() - begin) / times

    def _memory_of(self, made: Piece) -> dict[int, Any]:
        """Return the memory of each buffer of a piece; operands hold numbers from the first time on."""
        roles = (("operand", made.operands), ("result", made.results), ("scratch", made.scratch))
        places = {b: (role, i, made.buffers[b].nbytes) for role, buffers in roles for i, b in enumerate(buffers)}
        self._check_room(sum(place[2] for place in places.values() if place not in self.memory))
        for b, place in places.items():
            if place not in self.memory:
                memory = self.memory[place] = self.queue.make(round_up(place[2]), self.kernel)
                if place[0] == "operand":
                    type = TensorType(made.buffers[b].shape, made.buffers[b].dtype)
                    self.queue.write(WHERE, memory, operand_words(type, place[1]))
        return {b: self.memory[place] for b, place in places.items()}

    def _check_room(self, need: int) -> None:
        """Refuse what the machine has no memory for: systems promise more than they hold."""
        free = free_bytes() if self.target.adapter_class == "software" else None
        if free is not None and need > free:
            wanted = f"at most {nbytes(free)}, the free memory of this machine"
            raise SessionError(WHERE, f"{self.kernel}: memory", nbytes(need), wanted)


def product_piece(key: ProductKey, target: Target, schedule: Schedule | None = None) -> Piece:
    """Return a product alone, with this schedule: rows, second operand, and as the key says the weight of the norm,
    factor and rows of the second product."""
    rows = TensorType((key.m, key.k) if key.a == "mk" else (key.k, key.m))
    factor = TensorType((key.k, key.n) if key.b == "kn" else (key.n, key.k), key.dtype)
    types = (rows, factor, *[TensorType((key.k,))] * key.norm, *[factor] * key.dual, *[rows] * key.dual_rows)
    chosen = () if schedule is None else (TunedSchedule(str(key), schedule.params, 0, 0),)
    build = _BUILDS[_op_of(key), key.norm, key.dual, key.dual_rows]
    return piece(build, types, replace(target, tuning=Tuning(chosen)), fuse=True)


def _op_of(key: ProductKey) -> str:
    if not key.dtype.in_blocks:
        return "matmul_bt" if key.b == "nk" else "matmul" if key.a == "mk" else "matmul_at"
    along_rows = FORMATS[key.dtype].axis != 0
    if key.b == "nk":
        return "matmul_bt" if along_rows else "matmul_grad_a"
    return "matmul_bt_grad_a" if along_rows else "matmul"


def _build(name: str, norm: bool, dual: bool, dual_rows: bool) -> Callable[..., Value]:
    """Return the function in op notation of a product."""

    def build(rows: Value, factor: Value, *others: Value) -> Value:
        op, more = REGISTRY[name], list(others)
        rows = ops.rms_norm(rows, more.pop(0), eps=EPS) if norm else rows
        made: Value = op(rows, factor)
        return ops.swiglu(made, op(more[-1] if dual_rows else rows, more[0])) if dual else made

    return build


# made once: pieces are kept by function
_BUILDS: Mapping[tuple[str, bool, bool, bool], Callable[..., Value]] = {
    (name, norm, *dual): _build(name, norm, *dual)
    for name in ("matmul", "matmul_at", "matmul_bt", "matmul_grad_a", "matmul_bt_grad_a")
    for norm in (False, True)
    for dual in ((False, False), (True, False), (True, True))
}


def operand_words(type: TensorType, number: int) -> Array:
    """Return numbers in 0.5 … 1.5 as an operand is stored; another `number`, other numbers."""
    data = np.random.default_rng(number).random(type.shape, np.float32) + np.float32(0.5)
    return encode(data, type.dtype) if type.dtype.is_storage else data


def difference(got: Array, want: Array) -> str:
    """Return in words where a result differs by more than the tolerance; empty where it does not."""
    wrong = np.flatnonzero(~(np.abs(got - want) <= RTOL * np.abs(want)))  # ~: NaN differs
    if not wrong.size:
        return ""
    i = int(wrong[0])
    return f"element {i} is {sig(float(got[i]), 6)}, by the rule's schedule {sig(float(want[i]), 6)}"
