"""Lists of NumPy calls that run at the same time: the same bits as in turn, errors, interrupts, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from child import run_child
from machine import needs
from matrix import also

import gdlab as gd
from gdlab.base import blas
from gdlab.devices.cpu import call_lanes as lanes
from gdlab.devices.cpu.call_lanes import WORTH, Beside, CallList, Part, lane_count
from gdlab.devices.cpu.cpu_queue import CpuRecorded
from gdlab.session import build_inference_session, build_session
from gdlab.session.update_settings import Optimizer

ENOUGH = WORTH  # work that is handed over


def with_lanes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(lanes, "cores", lambda: count)
    monkeypatch.setattr(lanes, "threads", lambda: count)


def together(*functions: Any) -> Beside:
    return Beside([CallList([(f, ())], ENOUGH) for f in functions])


# how many -------------------------------------------------------------------------------------------------------------
def test_there_are_no_more_lanes_than_cores_or_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in blas.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lanes, "cores", lambda: 3)
    monkeypatch.setattr(blas, "cores", lambda: 3)
    assert lane_count() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert lane_count() == blas.threads() == 2
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # what OpenBLAS reads first
    assert lane_count() == blas.threads() == 1
    for odd in ("0", "many", ""):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", odd)
        assert lane_count() == 2
    monkeypatch.setattr(lanes, "cores", lambda: 64)
    monkeypatch.setattr(lanes, "threads", lambda: 64)
    assert lane_count() == lanes.MOST_LANES


def test_cores_are_those_that_the_process_may_use() -> None:
    assert 1 <= blas.cores() <= (os.cpu_count() or 1)


# one call of many lists -----------------------------------------------------------------------------------------------
def test_lists_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)  # nobody passes alone
    names = list[str]()

    def meet() -> None:
        meeting.wait(10)
        names.append(threading.current_thread().name)

    together(meet, meet, meet)()
    assert sorted(names) == sorted([threading.current_thread().name, "gdlab-lane-1", "gdlab-lane-2"])


def test_short_lists_run_in_turn_in_the_thread_of_the_caller() -> None:
    ran = list[tuple[int, int]]()
    lists = [CallList([(lambda k=k: ran.append((k, threading.get_ident())), ())], ENOUGH // 4) for k in range(3)]
    Beside(lists)()
    assert ran == [(k, threading.get_ident()) for k in range(3)]


def test_what_a_lane_raises_is_raised_when_all_lists_have_ended() -> None:
    ended = list[str]()

    def fail() -> None:
        raise ValueError("of a lane")

    def last() -> None:
        time.sleep(0.05)
        ended.append("last")

    for lists in ((last, fail), (fail, last), (lambda: None, fail, last)):
        ended.clear()
        with pytest.raises(ValueError, match="of a lane"):
            together(*lists)()
        assert ended == ["last"]
    call = together(lambda: None, fail)
    with pytest.raises(ValueError):
        call()
    call.lists[1].calls[0] = (lambda: None, ())
    call()  # the error of the run before is forgotten


def test_an_interrupt_waits_for_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Interrupted:
        """A lock that an interrupt leaves once."""

        def __init__(self, lock: Any) -> None:
            self.lock, self.times = lock, 1

        def acquire(self) -> None:
            if self.times:
                self.times = 0
                raise KeyboardInterrupt
            self.lock.acquire()

        def release(self) -> None:
            self.lock.release()

    made = Part.__init__

    def interrupted(self: Part, list: CallList) -> None:
        made(self, list)
        self._ended = Interrupted(self._ended)  # type: ignore[assignment]

    monkeypatch.setattr(Part, "__init__", interrupted)

    def last() -> None:
        time.sleep(0.1)
        ended.set()

    call = together(lambda: None, last)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert ended.is_set()


def test_an_interrupt_behind_the_handing_over_loses_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is waited for or never begins, and the next call waits for its own."""
    ended, lane = list[int](), lanes._lane(os.getpid(), 0)
    interrupts = [KeyboardInterrupt()]

    def put(part: Part) -> None:
        lane.put(part)
        if interrupts:
            raise interrupts.pop()

    def last() -> None:
        time.sleep(0.1)
        ended.append(1)

    monkeypatch.setattr(lanes, "_lane", lambda pid, number: SimpleNamespace(put=put))
    call = together(lambda: None, last)
    with pytest.raises(KeyboardInterrupt):
        call()
    before = len(ended)
    time.sleep(0.3)
    assert len(ended) == before, "nothing runs on"
    call()
    assert len(ended) == before + 1


def test_lists_inside_a_lane_run_in_turn() -> None:
    ran = list[str]()
    inner = together(lambda: ran.append("a"), lambda: ran.append("b"))
    done = threading.Event()

    def outer() -> None:
        together(lambda: None, inner)()
        done.set()

    threading.Thread(target=outer, daemon=True).start()
    assert done.wait(10) and ran == ["a", "b"]


def test_two_threads_share_the_lanes() -> None:
    total = [0, 0]

    def add(k: int) -> None:
        for _ in range(200):
            together(lambda: None, lambda: total.__setitem__(k, total[k] + 1))()

    threads = [threading.Thread(target=add, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [200, 200]


def test_a_lane_says_nothing_of_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = np.full(8, 3e38, np.float32)
    with np.errstate(all="raise"):
        together(lambda: None, lambda: np.multiply(huge, huge, huge))()
    assert np.isinf(huge).all()


FORKED = """
import os, threading
from gdlab.devices.cpu.call_lanes import WORTH, Beside, CallList

def together(*functions):
    Beside([CallList([(f, ())], WORTH) for f in functions])()

together(lambda: None, lambda: None)
pid = os.fork()
ran = []
together(lambda: None, lambda: ran.append(threading.current_thread().name))
assert ran == ["gdlab-lane-1"]
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_process_has_lanes_of_its_own() -> None:
    needs("posix")
    run_child(FORKED)  # in this process other tests may have left threads that no fork may meet


# the same bits --------------------------------------------------------------------------------------------------------
SIZES = {"large": (700, 1024), "odd": (333, 777), "small": (5,), "middle": (256, 300)}


def trained(rule: str, clip: float | None, groups: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Parameters and states of all sizes after four steps."""
    rng = np.random.default_rng(3)
    with gd.Graph() as g:
        parts = [gd.parameter(name, shape) for name, shape in SIZES.items()]
        loss = parts[0].square().mean_all()
        for p in parts[1:]:
            loss = loss + (p * p * p).mean_all()
        g.output(loss)
    session = build_session(g, "cpu")
    for name, shape in SIZES.items():
        session.set_parameter(name, rng.normal(size=shape).astype(np.float32))
    session.set_optimizer(Optimizer.of(rule, lr=0.05))
    if groups:
        session.set_lr_multiplier("odd", 0.5)
    session.set_grad_clip_norm(clip)
    for _ in range(4):
        session.step()
    return session.read_params(SIZES)


@pytest.mark.parametrize(
    ("clip", "groups"),
    also([(None, False), (0.01, True)], (None, True), (0.01, False)),
    ids=lambda value: {None: "plain", 0.01: "clipped", False: "one rate", True: "two rates"}[value],
)
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "adamw", "laprop", "rmsprop"])
def test_updates_in_lanes_have_the_bits_of_one(
    rule: str, clip: float | None, groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_lanes(monkeypatch, 1)
    want = trained(rule, clip, groups)
    monkeypatch.setattr(lanes, "WORTH", 1)
    for count in (2, 3):
        with_lanes(monkeypatch, count)
        found = trained(rule, clip, groups)
        assert found.keys() == want.keys()
        for name, values in want.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name}, {count} lanes")


@pytest.mark.parametrize("shape", [(1024, 2048), (700, 3001), (3, 1 << 20)], ids=str)
def test_chains_in_lanes_have_the_bits_of_one(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x, y, row = (rng.normal(size=s).astype(np.float32) for s in (shape, shape, shape[1:]))

    def computed() -> tuple[np.ndarray[Any, Any], bool]:
        with gd.Graph() as g:
            a, b, r = (gd.input(name, v.shape) for name, v in (("x", x), ("y", y), ("row", row)))
            g.output(((a * b + r).relu() * b - a).abs() * r)
        session = build_inference_session(g, "cpu")
        for name, values in (("x", x), ("y", y), ("row", row)):
            session.set_input(name, values)
        session.step()
        program: Any = session.loaded.program
        return session.read_output(), any(lanes.is_worth_it(call) for call, _ in program.launches.calls)

    with_lanes(monkeypatch, 1)
    want, shared = computed()
    assert not shared
    for count in (2, 4):
        with_lanes(monkeypatch, count)
        found, shared = computed()
        assert shared
        np.testing.assert_array_equal(found, want)


def test_updates_of_one_rule_are_one_call_and_each_dispatch_can_still_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_lanes(monkeypatch, 2)
    monkeypatch.setattr(lanes, "WORTH", 1)
    with gd.Graph() as g:
        parts = [gd.parameter(name, shape) for name, shape in SIZES.items()]
        g.output(sum((p.square().mean_all() for p in parts[1:]), parts[0].square().mean_all()))
    session = build_session(g, "cpu")
    session.initialize(0)
    session.set_adam(1e-3)
    program: Any = session.loaded.program
    launches: CpuRecorded = program.update_launches
    assert len(launches) == len(SIZES) and [lanes.is_worth_it(call) for call, _ in launches.calls] == [True]
    assert launches.dispatch_at(0) == 0 and launches.dispatch_at(1) == 0 and launches.dispatch_at(2) == len(SIZES)
    session.step()
    total = len(program.launches) + len(SIZES)
    program.profile((0, total))
    session.step()
    assert [index for index, _ in program.timings()] == [*range(total)]


# how NumPy is loaded --------------------------------------------------------------------------------------------------
LOADED = """
import importlib, os, sys
{before}
seen, load = [], importlib.import_module
def noted(name, *rest):
    seen.append(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
    return load(name, *rest)
importlib.import_module = noted
import gdlab
from gdlab.base.blas import keeps_cores
print(seen[0], os.environ.get("OPENBLAS_THREAD_TIMEOUT"), keeps_cores())
"""


@pytest.mark.parametrize(
    ("before", "told", "want"),
    [("", None, "22 None False"), ("", "18", "18 18 False"), ("import numpy", None, "None None True")],
    ids=["first", "told", "loaded"],
)
def test_numpy_is_loaded_with_threads_that_leave_the_cores(before: str, told: str | None, want: str) -> None:
    if "openblas" not in str(np.show_config(mode="dicts")):  # Accelerate, MKL
        want = want.replace("True", "False")
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    environment |= {} if told is None else {"OPENBLAS_THREAD_TIMEOUT": told}
    command = [sys.executable, "-c", LOADED.format(before=before)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == want, done.stderr
