"""The cost of a warm op beside its kernel, and that of an op's first call beside a warm one."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from clock import seconds_here
from machine import needs

from gdlab.devices.cpu.cpu_queue import CpuQueue
from gdlab.eager import EagerSession

queues: Any = importlib.import_module("gdlab.devices.cpu.cpu_queue")
UNIT = 0.8e-6  # seconds of the least of NumPy's calls where the bars were set
SHARED = 1.6  # a shared machine may take so many times a bar


def least(works: dict[str, Callable[[], object]], before: Callable[[], object], rounds: int = 25) -> dict[str, float]:
    """The least processor time of 60 calls of each, in turn."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            before()
            start = time.process_time_ns()
            for _ in range(60):
                work()
            found[name] = min(found[name], time.process_time_ns() - start)
    return found


@pytest.mark.clock
def test_a_warm_op_takes_few_units_of_numpy() -> None:
    x, w = np.ones((32, 64), np.float32), np.ones((64, 64), np.float32)
    out, total, held = np.empty_like(x), np.empty((), np.float32), dict[str, Any]()
    with closing(EagerSession(device="cpu")) as s:

        def fresh() -> None:
            s.reset_tape()
            held.update(x=s.input(x), y=s.input(x), w=s.input(w))

        found = least({
            "add": lambda: held["x"] + held["y"], "NumPy's add": lambda: np.add(x, x, out=out),
            "matmul": lambda: held["x"] @ held["w"], "NumPy's matmul": lambda: np.matmul(x, w, out=out),
            "relu": lambda: held["x"].relu(), "NumPy's relu": lambda: np.maximum(x, 0, out=out),
            "tanh": lambda: held["x"].tanh(), "NumPy's tanh": lambda: np.tanh(x, out=out),
            "sum": lambda: held["x"].sum_all(), "NumPy's sum": lambda: np.sum(x, out=total),
        }, fresh)  # fmt: skip
    # an op is Python: where Python is slower than on the machine of the bars, and NumPy's loops are not, so is the unit
    unit = max(found["NumPy's add"], 60 * 1e9 * seconds_here(UNIT))
    names = ("add", "matmul", "relu", "tanh", "sum")
    ratios = {name: (found[name] - found[f"NumPy's {name}"]) / unit for name in names}
    assert float(np.median(list(ratios.values()))) <= 15 * SHARED, ratios
    assert max(ratios.values()) <= 25 * SHARED, ratios


@pytest.mark.parametrize("version", ["2.4.6", "1.26.4"])
def test_the_queue_says_nothing_of_overflow_and_leaves_the_caller_its_state(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "__version__", version)  # before 2 NumPy has no state in the context
    assert isinstance(CpuQueue()._quiet, queues._Errstate) == (version < "2")
    with closing(EagerSession(device="cpu")) as s, np.errstate(all="raise"):
        x = s.input([1e30, 0.0, -1.0])
        assert (x * x).numpy()[0] == np.inf and np.isnan(x.sqrt().numpy()[2])
        assert (1 / x).numpy()[1] == np.inf
        with pytest.raises(FloatingPointError):
            np.float32(1e30) * np.float32(1e30)


def test_an_adapter_gets_dispatches_many_at_a_time() -> None:
    needs("wgpu")
    for flush_at in (64, 10):
        with closing(EagerSession(device="wgpu", flush_at=flush_at)) as s:
            x = s.input(np.ones(8))
            s.flush()
            before = s.counters()
            for _ in range(150):
                x = x + x
            spent = {name: n - before[name] for name, n in s.counters().items()}
            assert spent["dispatches"] + flush_at > 150 and spent["submissions"] <= 150 / flush_at + 1
            assert x.numpy()[0] == np.inf
            assert s.counters()["dispatches"] - before["dispatches"] == 150
