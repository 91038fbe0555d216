"""Small studies for runs on engines, and the processes that must be gone after a test."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import gdlab as gd
from gdlab.train.data import DataLoader, InputStream

ROWS, WIDTH, HIDDEN, OUT = 8, 16, 32, 4


def regression(name: str = "net", device: str = "cpu", dropout: bool = False) -> gd.Study:
    """Return a study of a network of two layers with a squared loss."""
    with gd.Graph() as graph:
        x, y = gd.input("x", (ROWS, WIDTH)), gd.input("y", (ROWS, OUT))
        w, b, v = gd.parameter("w", (WIDTH, HIDDEN)), gd.parameter("b", (HIDDEN,)), gd.parameter("v", (HIDDEN, OUT))
        h = (x @ w + b).relu()
        error = (gd.dropout(h, 0.5) if dropout else h) @ v - y
        graph.output((error * error).mean_all())
    return gd.Study(graph, train=True, name=name, device=device)


def batches(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return different batches for `regression`."""
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
         "y": rng.standard_normal((ROWS, OUT)).astype(np.float32)}
        for _ in range(count)
    ]  # fmt: skip


def loader(count: int, seed: int = 0) -> DataLoader:
    """Return a loader of `count` batches for `regression`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count * ROWS, WIDTH)).astype(np.float32)
    y = rng.standard_normal((count * ROWS, OUT)).astype(np.float32)
    return DataLoader.with_streams([InputStream("x", x, WIDTH), InputStream("y", y, OUT)], ROWS)


def one_session(study: gd.Study, steps: int, feed: Any, accumulate: int, **settings: Any) -> np.ndarray[Any, Any]:
    """Run in one session that accumulates; return the mean loss of each update."""
    study.prepare(**settings)
    study.session.set_grad_accumulate(accumulate)
    study.run(steps * accumulate, feed=feed)
    return np.array([loss for _, loss in study.runner.losses]).reshape(-1, accumulate).mean(1)


def in_notebook(function: Any) -> Any:
    """Decorator: the function counts as one of a notebook, so that it is sent with the globals that it reads."""
    function.__module__ = "__main__"
    return function


def gone(pids: Sequence[int], seconds: float) -> float | None:
    """Return the seconds until these processes have ended; None: they have not in that time."""
    import psutil

    def alive(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    begin = time.monotonic()
    while any(alive(pid) for pid in pids):
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - begin


def as_if_run(study: gd.Study, state: str = "done", buckets: int = 1) -> Any:
    """Give a study the record of a run of 40 updates on two engines, of which the second is late and the first was
    lost once, and the reduction that it made, in buckets before the last dispatches of the backward pass; return the
    record. No engine is needed."""
    from gdlab.distributed.allreduce import keep_measured
    from gdlab.distributed.clusters import Engine
    from gdlab.distributed.meeting import BucketTimes
    from gdlab.distributed.part import EngineReport
    from gdlab.distributed.run_record import DistributedRun, EngineProgress, LostEngine, keep_run

    rows = []
    for rank, (own, waiting, loss) in enumerate([(1.0, 1.5, 0.25), (2.5, 0.0, float("nan"))]):
        report = EngineReport(40, own, 0.5, waiting, 40 * 1_000_000, loss, own / 40, 40, "", 40, 0.002, 0.003)
        end = report.dispatches = len(study.plan.dispatches) + study.session.update.early
        report.hidden, each = 0.1 * (buckets - 1), (1_000_000 // buckets, 0.5 / buckets)
        report.buckets = tuple(BucketTimes(end - k, *each, 0.1 if k else 0.0) for k in reversed(range(buckets)))
        rows.append(EngineProgress(Engine(rank, rank, f"node{rank}", 7, "cpu", "", 1, (), 0), report, rank == 1))
    lost = [LostEngine(0, "node0", 30, 20)]
    run = DistributedRun(study.name, 40, rows, "folder", state, [1.0], lost, seconds=3.0, points=[(1, 1.0), (40, 0.5)])
    keep_run(study, run)
    keep_measured(study, run, 1e9, 1e-5, ("1 GB/s", "10 µs"))
    return run
