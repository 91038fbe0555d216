"""Calls of a compiled graph beside a session's own calls, onnxruntime on cpu and a CUDA graph with pinned copies, where
they are installed: ratios of one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import peer_onnx
from benchmarks.peer_models import PeerCase
from gdlab import models, ops
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph
from gdlab.session import build_inference_session

CASES: Mapping[str, PeerCase] = {
    "tiny": PeerCase("tiny", models.MlpConfig(8, (16,), 10), 4),
    "layers": PeerCase("layers", models.MlpConfig(256, (512, 512), 10), 64),
    "transformer": PeerCase("transformer", models.TransformerLmConfig(128, 128, 4, 4, 4, 512), 128),
}
ROUNDS = 60
SETS = 64
WARM, FEWEST, MOST_SECONDS = 3, 4, 12.0  # rounds that are not counted, and the least that are, whatever they take
Calls = Mapping[str, Callable[[], object]]


def quartiles(calls: Calls, rounds: int = ROUNDS) -> dict[str, float]:
    """The lower quartile of the seconds of each call; the calls alternate, for `MOST_SECONDS` at most."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + MOST_SECONDS
    for k in range(-WARM, rounds):
        if k >= FEWEST and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if k >= 0:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(seconds, n=4)[0] for name, seconds in found.items()}


def calls_of(graph: CompiledGraph, device: str, case: PeerCase) -> dict[str, Callable[[], object]]:
    """The calls that are timed, by name; `session` is the one that others are compared with."""
    session = build_inference_session(case.graph(False), device)
    for name in graph.param_names:
        session.set_parameter(name, graph.read_param(name))
    name, x = next((name, a) for name, a in case.data().items() if session.has_input(name))
    sets, put = [{name: x}] * SETS, session.set_input_u32 if x.dtype == np.uint32 else session.set_input

    def step() -> object:
        put(name, x)
        session.step()
        return session.read_output()

    resident = graph.context()
    resident.bind_gpu_handle(name, x)
    targets = resident.run()

    def commits() -> None:
        for _ in range(SETS):
            graph.commit_no_wait({name: x})
        graph.sync_pending()

    made: dict[str, Callable[[], object]] = {
        "session": step, "run": lambda: graph.run({name: x}), "run_slots": lambda: graph.run_slots([x]),
        "run, out= and gpu handles": lambda: resident.run(out=targets),
        f"run_pipelined of {SETS}": lambda: graph.run_pipelined(sets), f"{SETS} × commit_no_wait": commits,
    }  # fmt: skip
    if device == "cpu" and find_spec("onnxruntime") and find_spec("onnx"):
        peer = peer_onnx.session_of(case.graph(False), {name: graph.read_param(name) for name in graph.param_names})
        made["onnxruntime"] = peer_onnx.runner(peer, name, x)
        made["onnxruntime, IOBinding"] = peer_onnx.bound_runner(peer, name, x)
    if device == "wgpu" and has_cuda():
        made["CUDA graph"] = by_cuda_graph(case, name, x)
    return made


def has_cuda() -> bool:
    """Return whether PyTorch is here with a GPU."""
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def by_cuda_graph(case: PeerCase, name: str, x: Any) -> Callable[[], object]:
    """The same network in PyTorch: a pinned copy in, one replay, a pinned copy out, and the wait for it."""
    torch = import_module("torch")
    peer = import_module("benchmarks.peer_torch").Torch(case, "inference", graphed=True)
    given = torch.from_numpy(x.astype("int64") if x.dtype.kind == "u" else x).pin_memory()
    taken = torch.empty(peer.out.shape, pin_memory=True)

    def call() -> object:
        peer.data[name].copy_(given, non_blocking=True)
        peer.step()
        taken.copy_(peer.out, non_blocking=True)
        peer.wait()
        return taken

    return call


def rows(
    devices: tuple[str, ...] = ("cpu", "wgpu"), rounds: int = ROUNDS
) -> Iterator[tuple[str, str, str, float, float]]:
    """(device, network, call, microseconds of one forward, its ratio to that of the session)."""
    for device in devices:
        for name, case in CASES.items():
            with build_compiled_graph(case.graph(False), device) as graph:
                graph.initialize(0)
                found = quartiles(calls_of(graph, device, case), rounds)
            for call, seconds in found.items():
                each = seconds / (SETS if str(SETS) in call else 1)
                yield device, name, call, 1e6 * each, each / found["session"]


@dataclass(frozen=True, slots=True)
class RatioLimit:
    """A ratio of two calls of one run, and the most that it may be (compiled_graph.md, section 16)."""

    device: str
    network: str
    call: str
    against: str
    most: float


BARS = (
    RatioLimit("cpu", "tiny", "run", "onnxruntime", 2.5),
    RatioLimit("cpu", "tiny", "run, out= and gpu handles", "onnxruntime, IOBinding", 2.5),
    RatioLimit("cpu", "layers", "run", "onnxruntime", 1.1),
    RatioLimit("cpu", "transformer", "run", "onnxruntime", 1.3),
    RatioLimit("cpu", "tiny", "run_slots", "run", 0.95),
    RatioLimit("wgpu", "tiny", f"run_pipelined of {SETS}", "run", 0.6),
    RatioLimit("wgpu", "tiny", "run", "CUDA graph", 3.0),
    RatioLimit("wgpu", "transformer", "run", "CUDA graph", 1.5),
    RatioLimit("wgpu", "three outputs", "run", "session", 0.7),
    RatioLimit("cpu", "layers at all of its rows", "run", "without bucket_axes", 1.2),
    RatioLimit("cpu", "two contexts", "in two threads", "one after the other", 1 / 1.6),
)


def three_outputs(device: str) -> dict[str, Callable[[], object]]:
    """One submission of a graph with three outputs, beside a session's step and three reads."""
    with Graph() as g:
        y = ops.input("x", (8, 16)) @ ops.parameter("w", (16, 16))
        g.set_outputs([y.relu(), y.tanh(), y.sum(1)])
    graph, session = build_compiled_graph(g, device), build_inference_session(g, device)
    graph.initialize(0)
    session.initialize(0)
    x = np.ones((8, 16), np.float32)

    def step() -> object:
        session.set_input("x", x)
        session.step()
        return [session.read_output_by_index(i) for i in range(3)]

    return {"run": lambda: graph.run({"x": x}), "session": step}


def at_all_rows(device: str, case: PeerCase = CASES["layers"]) -> dict[str, Callable[[], object]]:
    """A graph with `bucket_axes` at its upper extent, beside the same graph without; a multiple of the rows, so that a
    forward takes a millisecond."""
    graph = PeerCase(case.name, case.config, 8 * case.length).graph(False)
    x = np.ones(graph.inputs[0].type.shape, np.float32)
    name, made = graph.inputs[0].name, {}
    for call, options in {"run": {"bucket_axes": {name: 0}}, "without bucket_axes": {}}.items():
        each = build_compiled_graph(graph, device, **options)
        each.initialize(0)
        made[call] = partial(each.run, {name: x})
    return made


def two_contexts(device: str, case: PeerCase = CASES["layers"]) -> dict[str, Callable[[], object]]:
    """A forward of each of two contexts, in two threads and one after the other. One BLAS thread, two idle cores."""
    graph = build_compiled_graph(PeerCase(case.name, case.config, 32 * case.length).graph(False), device)
    graph.initialize(0)
    contexts, pool = (graph, graph.context()), ThreadPoolExecutor(2)
    x = {graph.input_names[0]: np.ones(graph.inputs[0].shape, np.float32)}
    return {
        "in two threads": lambda: list(pool.map(lambda each: each.run(x), contexts)),
        "one after the other": lambda: [each.run(x) for each in contexts],
    }


ALONE: Mapping[str, Callable[[str], dict[str, Callable[[], object]]]] = {
    "three outputs": three_outputs, "layers at all of its rows": at_all_rows, "two contexts": two_contexts,
}  # fmt: skip


def bar_rows(rounds: int = ROUNDS) -> Iterator[tuple[RatioLimit, float]]:
    """Return the bars whose peers are here, each with the ratio of its two calls, which alternate alone."""
    for device, network in dict.fromkeys((bar.device, bar.network) for bar in BARS):
        with ExitStack() as held:
            calls = _calls(device, network, held)
            for bar in BARS:
                if (bar.device, bar.network) == (device, network) and {bar.call, bar.against} <= calls.keys():
                    found = quartiles({name: calls[name] for name in (bar.call, bar.against)}, rounds)
                    share = SETS if str(SETS) in bar.call else 1
                    yield bar, found[bar.call] / found[bar.against] / share


def _calls(device: str, network: str, held: ExitStack) -> Calls:
    if network in ALONE:
        return ALONE[network](device)
    graph = held.enter_context(build_compiled_graph(CASES[network].graph(False), device))
    graph.initialize(0)
    return calls_of(graph, device, CASES[network])


def print_table() -> None:
    """Print the rows as Markdown, and the ratios that compiled_graph.md bounds."""
    print("| device | network | call | µs per forward | ÷ session |\n|---|---|---|---|---|")
    for device, size, name, micros, ratio in rows():
        print(f"| {device} | {size} | {name} | {micros:.1f} | {ratio:.2f} |")
    print("\n| device | network | call | against | ratio | at most |\n|---|---|---|---|---|---|")
    for bar, ratio in bar_rows():
        print(f"| {bar.device} | {bar.network} | {bar.call} | {bar.against} | {ratio:.2f} | {bar.most:.2f} |")
