"""Calls of a compiled graph beside a session's own calls, onnxruntime on cpu and a CUDA graph with pinned copies, where
they are installed: ratios of one run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_models import Case
from gdlab import models
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.session import build_inference_session

CASES: Mapping[str, Case] = {
    "tiny": Case("tiny", models.MlpConfig(8, (16,), 10), 4),
    "layers": Case("layers", models.MlpConfig(256, (512, 512), 10), 64),
    "transformer": Case("transformer", models.TransformerLmConfig(128, 128, 4, 4, 4, 512), 128),
}
ROUNDS = 60
SETS = 8
Calls = Mapping[str, Callable[[], object]]


def quartiles(calls: Calls, rounds: int = ROUNDS) -> dict[str, float]:
    """The lower quartile of the seconds of each call; the calls alternate."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(5):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(seconds, n=4)[0] for name, seconds in found.items()}


def calls_of(graph: CompiledGraph, device: str, case: Case) -> dict[str, Callable[[], object]]:
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

    def commits() -> None:
        for _ in range(SETS):
            graph.commit_no_wait({name: x})
        graph.sync_pending()

    made: dict[str, Callable[[], object]] = {
        "session": step, "run": lambda: graph.run({name: x}), "run_slots": lambda: graph.run_slots([x]),
        f"run_pipelined of {SETS}": lambda: graph.run_pipelined(sets), f"{SETS} × commit_no_wait": commits,
    }  # fmt: skip
    hidden = getattr(case.config, "hidden", None)
    if device == "cpu" and hidden is not None and find_spec("onnxruntime") and find_spec("onnx"):
        made["onnxruntime"] = by_onnxruntime(graph, case.length, (case.config.inputs, *hidden, case.config.classes), x)  # type: ignore[union-attr]
    if device == "wgpu" and has_cuda():
        made["CUDA graph"] = by_cuda_graph(case, name, x)
    return made


def has_cuda() -> bool:
    """Return whether PyTorch is here with a GPU."""
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def by_cuda_graph(case: Case, name: str, x: Any) -> Callable[[], object]:
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


def by_onnxruntime(graph: CompiledGraph, rows: int, widths: tuple[int, ...], x: Any) -> Callable[[], object]:
    """The same network, run by onnxruntime on one thread."""
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper, nodes, value = onnx.helper, [], "x"
    for k in range(len(widths) - 1):
        nodes.append(helper.make_node("Gemm", [value, f"fc{k + 1}.weight", f"fc{k + 1}.bias"], [f"z{k}"]))
        value = f"z{k}"
        if k < len(widths) - 2:
            nodes.append(helper.make_node("Relu", [value], [f"y{k}"]))
            value = f"y{k}"
    kind = onnx.TensorProto.FLOAT
    ends = ([helper.make_tensor_value_info("x", kind, [rows, widths[0]])],
            [helper.make_tensor_value_info(value, kind, [rows, widths[-1]])])  # fmt: skip
    weights = [onnx.numpy_helper.from_array(graph.read_param(name), name) for name in graph.param_names]
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, weights), opset_imports=opset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


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


def print_table() -> None:
    """Print the rows as Markdown."""
    print("| device | network | call | µs per forward | ÷ session |\n|---|---|---|---|---|")
    for device, size, name, micros, ratio in rows():
        print(f"| {device} | {size} | {name} | {micros:.1f} | {ratio:.2f} |")
