"""Runs over engines, beside one engine and beside no engine: `python -m benchmarks distributed`.

Weak scaling: each engine steps batches of its own, with one BLAS thread. One engine beside none: each with all cores.
The bars stand in the table.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import gdlab as gd
from benchmarks.measure import machine
from benchmarks.peer_models import CASES
from gdlab.base.blas import THREADS
from gdlab.distributed import Cluster, cluster

ROUNDS = 5
STEPS = {"xf": 20, "mlp": 400}


def print_table() -> None:
    """Measure, and print the table as Markdown."""
    with cluster(1) as one:
        here = _overhead("mlp", one)
    for name in THREADS:  # for engines; NumPy of this process has begun already
        os.environ[name] = "1"
    with cluster(1) as one:
        alone = _rates("xf", one)
    with cluster(2) as two:
        both = _rates("xf", two)
    scaling = 2 * statistics.median(both) / statistics.median(alone)
    print(machine(), "", "| what | median (least – most) | bar |", "|---|---|---|", sep="\n")
    print(f"| xf, SGD, 1 engine, cpu, one thread | {_words(alone)} steps/s | |")
    print(f"| xf, SGD, 2 engines, each | {_words(both)} steps/s | |")
    print(f"| samples per second, 2 engines : 1 | **{scaling:.2f}** × | ≥ 1.7 × |")
    print(f"| mlp, SGD, step on a cluster of 1 : step of `study.run` | **{here:.2f}** × | ≤ 1.5 × |")


def _study(name: str) -> tuple[gd.Study, Any]:
    case = CASES[name]
    study = gd.Study(case.graph(True), train=True, name=name, device="cpu")
    study.prepare(init=0, sgd=1e-3)
    return study, case.data()


def _rates(name: str, engines: Cluster) -> list[float]:
    """Return steps per second of each engine, round by round; the first round is not counted."""
    study, batch = _study(name)
    found = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        run = study.run(STEPS[name], feed=batch, on=engines)
        found.append(STEPS[name] / (time.perf_counter() - begin))
    print(f"\n{run}\n")
    study.close()
    return found[1:]


def _overhead(name: str, engines: Cluster) -> float:
    """Return the seconds of a run on one engine by those of the same run here, of rounds in turn."""
    study, batch = _study(name)
    other, _ = _study(name)
    ratios = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        study.run(STEPS[name], feed=batch, on=engines)
        middle = time.perf_counter()
        other.run(STEPS[name], feed=batch)
        ratios.append((middle - begin) / (time.perf_counter() - middle))
    study.close()
    other.close()
    return statistics.median(ratios[1:])


def _words(rates: list[float]) -> str:
    return f"**{statistics.median(rates):.1f}** ({min(rates):.1f} – {max(rates):.1f})"
