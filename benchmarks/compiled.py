"""Calls of a compiled graph beside a session's own calls, and onnxruntime where it is installed: ratios of one run."""

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

from gdlab import ops
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.graph import Graph
from gdlab.session import build_inference_session

SIZES: Mapping[str, tuple[int, tuple[int, ...]]] = {"tiny": (4, (8, 16, 10)), "layers": (64, (256, 512, 512, 10))}
ROUNDS = 60
SETS = 8
Calls = Mapping[str, Callable[[], object]]


def network(rows: int, widths: tuple[int, ...]) -> Graph:
    """Layers of matmul, bias and relu; the last without relu."""
    with Graph() as g:
        y = ops.input("x", (rows, widths[0]))
        for k, (inner, outer) in enumerate(zip(widths, widths[1:], strict=False)):
            y = y @ ops.parameter(f"w{k}", (inner, outer)) + ops.parameter(f"b{k}", (outer,))
            y = y if k == len(widths) - 2 else y.relu()
        g.set_outputs([y])
    return g


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


def calls_of(graph: CompiledGraph, device: str, rows: int, widths: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The calls that are timed, by name; `session` is the one that others are compared with."""
    session = build_inference_session(network(rows, widths), device)
    for name in graph.param_names:
        session.set_parameter(name, graph.read_param(name))
    x = np.random.default_rng(0).standard_normal((rows, widths[0])).astype(np.float32)
    sets = [{"x": x}] * SETS

    def step() -> object:
        session.set_input("x", x)
        session.step()
        return session.read_output()

    def commits() -> None:
        for _ in range(SETS):
            graph.commit_no_wait({"x": x})
        graph.sync_pending()

    made: dict[str, Callable[[], object]] = {
        "session": step, "run": lambda: graph.run({"x": x}), "run_slots": lambda: graph.run_slots([x]),
        f"run_pipelined of {SETS}": lambda: graph.run_pipelined(sets), f"{SETS} × commit_no_wait": commits,
    }  # fmt: skip
    if device == "cpu" and find_spec("onnxruntime") is not None and find_spec("onnx") is not None:
        made["onnxruntime"] = by_onnxruntime(graph, rows, widths, x)
    return made


def by_onnxruntime(graph: CompiledGraph, rows: int, widths: tuple[int, ...], x: Any) -> Callable[[], object]:
    """The same network, run by onnxruntime on one thread."""
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper, nodes, value = onnx.helper, [], "x"
    for k in range(len(widths) - 1):
        nodes.append(helper.make_node("Gemm", [value, f"w{k}", f"b{k}"], [f"z{k}"]))
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
        for size, (batch, widths) in SIZES.items():
            with build_compiled_graph(network(batch, widths), device) as graph:
                graph.initialize(0)
                found = quartiles(calls_of(graph, device, batch, widths), rounds)
            for name, seconds in found.items():
                each = seconds / (SETS if str(SETS) in name else 1)
                yield device, size, name, 1e6 * each, each / found["session"]


def print_table() -> None:
    """Print the rows as Markdown."""
    print("| device | network | call | µs per forward | ÷ session |\n|---|---|---|---|---|")
    for device, size, name, micros, ratio in rows():
        print(f"| {device} | {size} | {name} | {micros:.1f} | {ratio:.2f} |")
