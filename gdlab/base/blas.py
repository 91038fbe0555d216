"""Say how many threads BLAS takes, and load NumPy so that these leave the cores to others between two products."""

from __future__ import annotations

import importlib
import os
import sys
import time

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_briefly = False  # threads of OpenBLAS ask for `TICKS`
SPIN, TICKS = "OPENBLAS_THREAD_TIMEOUT", "22"  # variable and value: 2^22 ticks of the processor's clock, 2 ms


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads that BLAS takes: what the first of its variables says, else one per core."""
    told = (os.environ.get(name, "") for name in THREADS)
    return next((int(words) for words in told if words.isdecimal() and int(words)), cores())


def load_numpy() -> None:
    """Import NumPy. A thread of its OpenBLAS waits for the next product by asking again and again, for 2^26 ticks
    (27 ms) where nobody says another number: on a core that the next calls could use. It reads the number once, when
    it is loaded, so the environment is left as it was; NumPy that is loaded already stays as it is."""
    global _briefly
    told = SPIN in os.environ or "numpy" in sys.modules
    if not told:
        os.environ[SPIN] = TICKS
        _briefly = True
    try:
        importlib.import_module("numpy")
    finally:
        if not told:
            del os.environ[SPIN]


def keeps_cores() -> bool:
    """Return whether threads of OpenBLAS keep their cores for long: NumPy has it, and was loaded before gdlab."""
    return not _briefly and SPIN not in os.environ and has_openblas()


def has_openblas() -> bool:
    """Return whether the products of NumPy are those of OpenBLAS."""
    config = importlib.import_module("numpy").show_config(mode="dicts")
    return "openblas" in str(config.get("Build Dependencies", {}).get("blas", {}).get("name"))


def mean_by_least(seconds: float = 0.15) -> float:
    """Return how many times as long as the fastest a product takes on average, among those of this many seconds: 1.1 to
    1.3 where its threads have their cores, 2 and more where another program uses one of these (2 cores, 2026-11-29)."""
    np = importlib.import_module("numpy")
    a, b, out = (np.zeros(shape, np.float32) for shape in ((64, 256), (256, 1024), (64, 1024)))
    times = [time.perf_counter()]
    while times[-1] < times[0] + seconds:
        np.matmul(a, b, out=out)
        times.append(time.perf_counter())
    took = np.diff(times)
    return float(took.mean() / took.min())
