"""A sweep on two engines: the same results, an engine that dies loses nothing, Stop ends points and no engine."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs

from gdlab.base.errors import ArgumentError
from gdlab.distributed import Cluster, cluster
from gdlab.distributed.engine import interrupts
from gdlab.distributed.sweep import made_sweep
from gdlab.distributed.sweep_engines import EngineSweep
from gdlab.study.study import Study

GRID = {"adam": [1e-3, 3e-3, 1e-2], "init": range(4)}
SCALE = np.float32(0.5)


def feed(step: int) -> Any:
    """Return a batch; it names a number and a library of this module, which the engines do not have."""
    rng = np.random.default_rng(step)
    labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 64)]
    return {"x": SCALE * rng.normal(size=(64, 64)).astype(np.float32), "y": labels}


feed.__module__ = "__main__"  # as in a notebook: it is sent by value


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two engines with as many BLAS threads as this process: on some processors (an EPYC without AVX-512) the threads
    of OpenBLAS change the bits of a product."""
    needs("mpi")
    told = (
        os.environ.get(f"OPENBLAS_{name}NUM_THREADS") for name in ("", "DEFAULT_")
    )  # as many as here: the same bits
    threads = next(filter(None, told), str(os.cpu_count()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", threads)
        with cluster(2, engines="local") as made:
            yield made


def wait(done: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    from gdlab.distributed.engine import alive

    return alive(pid)


def test_engines_compute_what_is_computed_here(pair: Cluster) -> None:
    """Point for point the same losses and parameters; a feed of the notebook travels with what it names."""
    with_engines = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    here = with_engines.sweep(GRID, steps=30, feed=feed)
    far = with_engines.sweep(GRID, steps=30, feed=feed, on=pair)
    for a, b in zip(here, far, strict=True):
        assert a.losses == b.losses
        assert all(np.array_equal(a.parameters()[name], b.parameters()[name]) for name in a.parameters())
    assert {point.engine for point in far} == {"engine 0", "engine 1"}
    failing = with_engines.sweep({"sgd": [0.1, 1e18], "init": [0]}, steps=30, feed=feed, on=pair.client)
    assert [point.state for point in failing] == ["done", "failed"] and "not finite" in failing[1].error
    with_engines.close()


@functools.cache
def cached(step: int) -> Any:
    return feed(step)


cached.__module__ = "__main__"


def test_a_cached_function_is_a_feed_and_what_cannot_be_sent_is_named(pair: Cluster) -> None:
    study, lock = Study(networks.mlp(), train=True, device="cpu", name="mlp"), threading.Lock()
    plain, far = (study.sweep({"sgd": [0.1], "init": [0]}, steps=3, feed=one, on=pair) for one in (feed, cached))
    assert plain[0].losses == far[0].losses and len(far[0].losses) == 3
    cannot = r"that cannot be sent \(cannot pickle .*\), wanted one that opens on the engine what it reads"
    with pytest.raises(ArgumentError, match=f"^sweep: feed or options: given one {cannot}"):
        study.sweep({"sgd": [0.1], "init": [0]}, steps=1, feed=lambda step: {"x": lock}, on=pair)
    points = [{"sgd": 0.1, "init": 0, "feed": lambda step: {"x": lock}}]
    with pytest.raises(ArgumentError, match=f"^sweep: point 0: given a setting {cannot}"):
        study.sweep(points=points, steps=1, on=pair)
    study.close()


def test_points_whose_news_come_late_name_their_engines(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: the answer of a short point overtook what its engine had said at its beginning."""
    monkeypatch.setattr(EngineSweep, "_listen", lambda *_: None)
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    found = study.sweep(GRID, steps=2, feed=feed, on=pair)
    assert {point.engine for point in found} == {"engine 0", "engine 1"} and found.count("done") == 12
    study.close()


def test_an_interrupt_behind_a_call_is_no_ones() -> None:
    """Trap: an engine that was interrupted while it sent its answer sent none, and the notebook waited for ever."""
    before, heard = signal.getsignal(signal.SIGINT), list[int]()
    try:
        with interrupts(lambda number, _: heard.append(number)):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts(signal.default_int_handler):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_stop_ends_points_and_no_engine(pair: Cluster) -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    found = made_sweep(study, GRID, steps=10**6, feed=feed, on=pair)
    thread = threading.Thread(target=found.run)
    thread.start()
    wait(lambda: found[0].steps > 5 and found[1].steps > 5)
    found.pause()
    found.stop_point(0)
    wait(lambda: found[0].state == "stopped")
    time.sleep(0.3)
    assert found.count("running") == 1 and found[2].state == "waiting"  # Pause holds the next one
    found.resume()
    wait(lambda: found[2].state == "running")
    found.stop()
    thread.join(60)
    assert found.state == "stopped" and found.count("running") == 0 and found.count("stopped") == 3
    assert [alive(engine.pid) for engine in pair.engines] == [True, True] and len(pair.client.ids) == 2
    study.close()


def test_a_killed_engine_loses_no_point(pair: Cluster) -> None:
    """kill -9 of an engine in a sweep of 12 points: all 12 are there, and the right ones; no process is left. Last in
    this module: the other engine goes on alone."""
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    here = study.sweep(GRID, steps=500, feed=feed)
    found = made_sweep(study, GRID, steps=500, feed=feed, on=pair)
    victim = pair.engines[0]

    def kill() -> None:
        wait(lambda: any(point.engine == "engine 0" and point.state == "running" and point.steps for point in found))
        os.kill(victim.pid, 9)

    thread = threading.Thread(target=kill)
    thread.start()
    found.run()
    thread.join(60)
    assert [point.losses for point in found] == [point.losses for point in here] and found.count("done") == 12
    assert sum(point.retries for point in found) == 1
    assert any(f"engine 0 (process {victim.pid}" in event.text and "(1 of 2)" in event.text for event in found.events)
    pids = [engine.pid for engine in pair.engines]
    pair.close()
    wait(lambda: not any(map(alive, pids)), 10)
    study.close()
