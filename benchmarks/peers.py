"""Our steps beside those of others: the cases mlp, xf, xfL and xfM, inference, SGD and Adam, in one run.

Contestants take turns, round by round. Each figure is the median over the rounds of milliseconds per step: waited for
step by step, queued (many calls, one wait), and of ours in one call of `step(n)`. Before anything is timed the losses
of the first steps are compared, and all run for a second: an idle GPU has a low clock. A turn begins with a tenth of
its steps that are not timed, whoever's it is: the first steps behind another contestant pay for the change (caches;
from CUDA's context to Vulkan's, 0.3 ms for the first one of ours).
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.peer_models import CASES, RATES, ByHand, Maker, PeerCase
from gdlab.devices.wgpu.wgpu_device import adapters
from gdlab.session import build_inference_session, build_session

ROUNDS, SECONDS = 5, 0.4  # per contestant and round, at most about so long
WARM_SECONDS = 1.0  # before a race
RULES = ("inference", "SGD", "Adam")
SLOW = {"wgpu (software)": ("mlp", "xf")}  # the other cases take minutes a step there


class Ours:
    """One case with one rule in a session."""

    def __init__(self, case: PeerCase, rule: str, device: str) -> None:
        build = build_inference_session if rule == "inference" else build_session
        self.session = build(case.graph(rule != "inference"), device)
        for name, values in case.weights().items():
            self.session.set_parameter(name, values)
        for name, values in case.data().items():
            if self.session.has_input(name):
                self.session.set_input(name, values)
        if rule == "SGD":
            self.session.set_learning_rate(RATES["SGD"])
        elif rule == "Adam":
            self.session.set_adam(RATES["Adam"])
        self.step, self.wait, self.read_loss = self.session.step, self.session.wait, self.session.read_loss
        self.step_many = self.session.step

    def close(self) -> None:
        """Give the memory back."""
        self.session.close()


def contestants() -> dict[str, Maker]:
    """The contestants that are here: JAX on the best that it finds, ours on the first adapter, PyTorch where it has
    a GPU; without a hardware adapter NumPy (mlp only) and ours on the processor, too."""
    listed = adapters()
    found: dict[str, Maker] = {}
    if not listed or listed[0].adapter_class == "software":
        found |= {"NumPy by hand": _by_hand, "gdlab cpu": partial(Ours, device="cpu")}
    if importlib.util.find_spec("jax"):
        found["JAX, jit"] = _jax
    if listed:
        found[f"wgpu ({listed[0].adapter_class})"] = partial(Ours, device="wgpu")
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found |= {
                "torch eager": _torch(), "torch, CUDA graph": _torch(graphed=True),
                "torch.compile, CUDA graph": _torch(compiled=True, graphed=True),
            }  # fmt: skip
    return found


def _by_hand(case: PeerCase, rule: str) -> Any:
    return ByHand(case, rule) if case.name == "mlp" else None


def _jax(case: PeerCase, rule: str) -> Any:
    from benchmarks.peer_jax import Jax

    return Jax(case, rule)


def _torch(compiled: bool = False, graphed: bool = False) -> Maker:
    def make(case: PeerCase, rule: str) -> Any:
        from benchmarks.peer_torch import Torch

        return Torch(case, rule, compiled, graphed)

    return make


# measuring ------------------------------------------------------------------------------------------------------------
def entered(case: PeerCase, rule: str, makers: dict[str, Maker]) -> dict[str, Any]:
    """The contestants of one race, warm, whose losses agree."""
    runners: dict[str, Any] = {}
    for name, make in makers.items():
        runner = None if case.name not in SLOW.get(name, CASES) else make(case, rule)
        if runner is None:
            continue
        for _ in range(3):
            runner.step()
        runner.wait()
        runners[name] = runner
    if rule != "inference":
        check({name: runner.read_loss() for name, runner in runners.items()})
    return runners


def check(losses: dict[str, float]) -> None:
    """Raise unless all train the same network."""
    middle = statistics.median(losses.values())
    for name, loss in losses.items():
        if abs(loss - middle) > 1e-3 * abs(middle):
            raise RuntimeError(f"{name}: the loss of step 3 is {loss}, that of the others about {middle}")


def waited(runner: Any, count: int) -> float:
    """Seconds per step, each waited for."""
    start = time.perf_counter()
    for _ in range(count):
        runner.step()
        runner.wait()
    return (time.perf_counter() - start) / count


def queued(runner: Any, count: int) -> float:
    """Seconds per step, the last one waited for."""
    start = time.perf_counter()
    for _ in range(count):
        runner.step()
    runner.wait()
    return (time.perf_counter() - start) / count


def at_once(runner: Any, count: int) -> float:
    """Seconds per step, all asked for in one call where that can be done, else queued."""
    if not hasattr(runner, "step_many"):
        return queued(runner, count)
    start = time.perf_counter()
    runner.step_many(count)
    runner.wait()
    return (time.perf_counter() - start) / count


Figures = dict[str, tuple[float, ...]]  # seconds per step: waited for, queued, and by `step_many` if it has that


def race(runners: dict[str, Any], rounds: int = ROUNDS, seconds: float = SECONDS) -> Figures:
    """Everybody in turn, round by round."""
    ways: dict[str, tuple[Callable[[Any, int], float], ...]] = {
        name: (waited, queued, at_once) if hasattr(runner, "step_many") else (waited, queued)
        for name, runner in runners.items()
    }
    count = {name: max(1, min(200, int(seconds / waited(runner, 1)))) for name, runner in runners.items()}
    until = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < until:
        for name, runner in runners.items():
            ways[name][-1](runner, max(1, count[name] // 10))
    found: dict[str, list[list[float]]] = {name: [[] for _ in ways[name]] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            waited(runner, max(1, count[name] // 10))
            for way, times in zip(ways[name], found[name], strict=True):
                times.append(way(runner, count[name]))
    return {name: tuple(map(statistics.median, times)) for name, times in found.items()}


# the table ------------------------------------------------------------------------------------------------------------
def rows(only: str = "", rounds: int = ROUNDS, seconds: float = SECONDS) -> Iterator[tuple[str, str, Figures]]:
    """(case, rule, figures) of every race whose case is `only`, or of all."""
    makers = contestants()
    for case in CASES.values():
        for rule in RULES if only in ("", case.name) else ():
            runners = entered(case, rule, makers)
            yield case.name, rule, race(runners, rounds, seconds)
            for runner in runners.values():
                getattr(runner, "close", lambda: None)()


def names() -> list[str]:
    """The cases that `--only` chooses among."""
    return list(CASES)


def print_table(only: str = "", rounds: int = ROUNDS, seconds: float = SECONDS) -> None:
    """The table as Markdown; in the last column the best of ours by the best of the others."""
    names = list(contestants())
    print(f"| ms per step, waited for / queued / step(n) | {' | '.join(names)} | best of ours / best of others |")
    print("|---" * (len(names) + 2) + "|")
    for case, rule, found in rows(only, rounds, seconds):
        cells = [" / ".join(f"{t * 1e3:.3g}" for t in found[n]) if n in found else "–" for n in names]
        print(f"| {case} {rule} | {' | '.join(cells)} | {ratio(found)} |")
        sys.stdout.flush()


def ratio(found: Figures) -> str:
    """Ours by the others', step by step and queued, and who the best of the others are; below 1 we are faster."""
    ours = [figures for name, figures in found.items() if name.startswith(("gdlab", "wgpu"))]
    others = {name: figures for name, figures in found.items() if not name.startswith(("gdlab", "wgpu"))}
    if not ours or not others:
        return "–"
    first = [min(others, key=lambda name: others[name][way]) for way in (0, 1)]
    times = [min(f[0] for f in ours), min(min(f[1:]) for f in ours)]
    best = [times[way] / others[first[way]][way] for way in (0, 1)]
    return f"{best[0]:.2f} / {best[1]:.2f} ({' / '.join(dict.fromkeys(first))})"
