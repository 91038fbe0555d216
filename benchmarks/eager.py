"""Ratios of the eager door in one run: an op over NumPy's own call, a step over `Session.step` of its export.

The unit is `np.add(a, b, out=c)` at f32[32, 64] in the same process; every figure is the best of `ROUNDS` rounds, in
which the contestants take turns, by the clock of the processor; the large product, which runs in many
threads, by that of the wall. PyTorch, where installed, stands beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import gdlab as gd
from gdlab.session import SessionConfig, build

ROUNDS, CALLS = 25, 60
SHAPE, WIDE = (32, 64), (64, 64)
BARS = {"median": 15.0, "worst": 25.0}  # units over NumPy (eager_session.md §14)

Work = Callable[[], object]
Clock = Callable[[], float]


def _turns(
    contestants: dict[str, Work], calls: int, before: Work = lambda: None, clock: Clock = time.process_time
) -> dict[str, float]:
    """Best seconds per call of each contestant."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(ROUNDS):
        for name, work in contestants.items():
            before()
            start = clock()
            for _ in range(calls):
                work()
            best[name] = min(best[name], (clock() - start) / calls)
    return best


def op_times() -> dict[str, tuple[float, float]]:
    """For each op: (eager, NumPy) seconds; the first is the unit."""
    session = gd.EagerSession(device="cpu")
    rng = np.random.default_rng(0)
    x, y, w = (rng.random(shape, np.float32) for shape in (SHAPE, SHAPE, WIDE))
    out = np.empty(SHAPE, np.float32)
    held: dict[str, Any] = {}

    def fresh() -> None:
        session.reset_tape()
        held.update(x=session.input(x), y=session.input(y), w=session.input(w))

    pairs: dict[str, tuple[Work, Work]] = {
        "add": (lambda: held["x"] + held["y"], lambda: np.add(x, y, out=out)),
        "matmul": (lambda: held["x"] @ held["w"], lambda: np.matmul(x, w, out=out)),
        "relu": (lambda: held["x"].relu(), lambda: np.maximum(x, 0, out=out)),
        "tanh": (lambda: held["x"].tanh(), lambda: np.tanh(x, out=out)),
        "sum": (lambda: held["x"].sum_all(), lambda: x.sum()),
    }
    works = {f"{name} {who}": work for name, pair in pairs.items() for who, work in zip("en", pair, strict=True)}
    best = _turns(works, CALLS, fresh)
    session.close()
    return {name: (best[f"{name} e"], best[f"{name} n"]) for name in pairs}


def large_product() -> float:
    """Return the time of an eager product of two [1024, 1024] over that of NumPy's into an array."""
    session = gd.EagerSession(device="cpu")
    a, b = np.random.default_rng(0).random((2, 1024, 1024), np.float32)
    out, held = np.empty_like(a), dict[str, Any]()

    def fresh() -> None:
        session.reset_tape()
        held.update(a=session.input(a), b=session.input(b))

    works: dict[str, Work] = {"eager": lambda: held["a"] @ held["b"], "numpy": lambda: np.matmul(a, b, out=out)}
    best = _turns(works, 2, fresh, time.perf_counter)
    session.close()
    return best["eager"] / best["numpy"]


def first_call() -> float:
    """The first call of a signature over its hundredth, in seconds each, and their ratio."""
    session = gd.EagerSession(device="cpu")
    ratios = []
    for width in range(17, 17 + ROUNDS):
        times = []
        for _ in range(100):
            session.reset_tape()  # so that later calls meet memory that is bound
            x = session.input(np.ones((3, width)))
            start = time.process_time()
            _ = x + x
            times.append(time.process_time() - start)
        ratios.append(times[0] / min(times[50:]))
    session.close()
    return float(np.median(ratios))


def step_times() -> dict[str, float]:
    """Seconds of a step of an MLP 20-16-5, batch 32, Adam: eager, and `Session.step` of the export."""
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((32, 20), np.float32), rng.standard_normal((32, 5), np.float32)
    s = gd.EagerSession(device="cpu")
    params = [s.param(rng.normal(size=shape) * 0.3, name) for name, shape in
              (("w1", (20, 16)), ("b1", (16,)), ("w2", (16, 5)), ("b2", (5,)))]  # fmt: skip
    rule = gd.eager.Adam(1e-3)

    def loss() -> Any:
        w1, b1, w2, b2 = map(s.use, params)
        return ((s.input(x, "x") @ w1 + b1).relu() @ w2 + b2 - s.input(t, "t")).square().mean_all()

    def eager() -> None:
        s.step(rule, s.backward_scalar_param_grads(loss()))
        s.reset_tape()

    export = s.to_graph(loss())
    session, _ = build(export.graph, SessionConfig(device="cpu"))
    for name, value in export.weights.items():
        session.set_parameter(name, value)
    session.set_adam(1e-3)
    session.set_input("x", x)
    session.set_input("t", t)
    works: dict[str, Work] = {"eager": eager, "session": session.step}
    if find_spec("torch") is not None:
        works["torch"] = _torch_step(x, t)
    best = _turns(works, 10)
    session.close()
    s.close()
    return best


def _torch_step(x: Any, t: Any) -> Work:
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    rule, xs, ts = torch.optim.Adam(net.parameters()), torch.from_numpy(x), torch.from_numpy(t)

    def step() -> None:
        rule.zero_grad()
        (net(xs) - ts).square().mean().backward()
        rule.step()

    return step


def print_table() -> None:
    """Print the ratios as Markdown."""
    ops = op_times()
    unit = ops["add"][1]
    over = {name: (eager - own) / unit for name, (eager, own) in ops.items()}
    print(f"unit: np.add into an array, {unit * 1e6:.2f} µs\n\n| what | ratio | bar |\n|---|---|---|")
    for name, ratio in over.items():
        print(f"| eager {name} over NumPy's own call | {ratio:.1f} units | ≤ {BARS['worst']:g} |")
    print(f"| median of these | {float(np.median(list(over.values()))):.1f} units | ≤ {BARS['median']:g} |")
    print(f"| a @ b at [1024, 1024] over NumPy's | {large_product():.2f} × | ≤ 1.1 |")
    print(f"| first call of a signature over its hundredth | {first_call():.0f} × | ≤ 150 |")
    steps = step_times()
    print(
        f"| eager Adam step of an MLP over Session.step of its export | {steps['eager'] / steps['session']:.1f} × | |"
    )
    if "torch" in steps:
        print(f"| an MLP's eager Adam step over PyTorch eager | {steps['eager'] / steps['torch']:.1f} × | ≤ 2 |")
