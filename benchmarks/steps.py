"""Steps per second of the tour's network, beside a plain NumPy loop in the same run; and what encoding a step costs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROUNDS, Row, rates_of, seconds_of, spread
from benchmarks.passes import LARGE
from benchmarks.peer_models import CASES
from gdlab.autodiff import differentiate
from gdlab.devices.base import owner
from gdlab.devices.wgpu.pass_recording import loop
from gdlab.devices.wgpu.wgpu_device import WgpuProgram, adapters
from gdlab.session import Session, build_session, build_session_cached, initial_values
from gdlab.session.run.runner import Runner
from gdlab.session.update_settings import scalars
from tests.helpers import networks, numpy_training
from tests.helpers.wgpu_plans import encode_cost

SHAPES = {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
ROOT = Path(__file__).parents[1]
STEPS = {"NumPy": 400, "cpu": 400, "wgpu": 60}
Contestant = Callable[[int], object]


def batches() -> list[dict[str, np.ndarray[Any, Any]]]:
    """One epoch of the tour's batches."""
    images, labels, _ = networks.digits()
    return [{"x": images[rows], "y": labels[rows]} for rows in islice(networks.batch_rows(), 22)]


def by_hand(rule: str) -> Callable[[int], list[float]]:
    """The loop that people write: NumPy in float32, the loss of every step kept."""
    epoch = batches()

    def run(steps: int) -> list[float]:
        weights = {name: initial_values(name, shape, 0) for name, shape in SHAPES.items()}
        adam, losses = numpy_training.Adam(2e-3), []
        for step in range(steps):
            batch = epoch[step % 22]
            loss, gradients = numpy_training.loss_and_gradients(weights, batch["x"], batch["y"])
            losses.append(loss)
            adam.update(weights, gradients) if rule == "Adam" else numpy_training.sgd(weights, gradients, 0.1)
        return losses

    return run


def by_session(session: Session, rule: str) -> tuple[Contestant, Runner]:
    """The same through a runner: fed, stepped, the loss of every step kept in the runner."""
    epoch, runner = batches(), Runner(session)

    def run(steps: int) -> None:
        for name, shape in SHAPES.items():
            session.set_parameter(name, initial_values(name, shape, 0))
        session.set_adam(2e-3) if rule == "Adam" else session.set_learning_rate(0.1)
        runner.run(steps, lambda step: epoch[step % 22])

    return run, runner


def step_rows() -> Iterator[Row]:
    """Steps per second, each device's ratio to NumPy taken round by round."""
    sessions: dict[str, Session] = {device: build_session(networks.mlp(), device) for device in devices()}
    for rule in ("SGD", "Adam"):
        contestants: dict[str, tuple[Contestant, int]] = {"NumPy": (by_hand(rule), STEPS["NumPy"])}
        contestants |= {device: (by_session(s, rule)[0], STEPS[device]) for device, s in sessions.items()}
        rates = rates_of(contestants)
        for name, found in rates.items():
            ratio = statistics.median(a / b for a, b in zip(found, rates["NumPy"], strict=True))
            beside = f"{ratio:.2f} × NumPy" if name in sessions else "a plain loop, float32"
            yield Row(f"steps per second, {rule}, {name}", spread(found, "/s"), beside)
    for session in sessions.values():
        session.close()


def open_and_close(device: str) -> None:
    """A whole session of the tour's network."""
    build_session(networks.mlp(), device).close()


def devices() -> list[str]:
    """The devices of this machine."""
    return ["cpu", "wgpu"] if adapters() else ["cpu"]


def build_rows() -> Iterator[Row]:
    """From a graph to a session that can step, warm; and how long the first step of a fresh process takes."""
    for device in devices():
        taken = seconds_of(partial(open_and_close, device))
        yield Row(f"build_session, tour's network, {device}", spread(taken, "ms", 1e3))
    yield from large_rows()
    for device in devices():
        for case in ("tour", "mlp"):
            found = [first_by_median(device, case) for _ in range(ROUNDS)]
            yield Row(f"first step by the median one, {case} Adam, {device}", spread(found, "×"), "bar 3 ×")


def large_rows() -> Iterator[Row]:
    """`build_session` of a network whose derivative has 2,300 nodes, as it is and from a plan cache."""
    graph = networks.written_with(LARGE, lambda graph: len(differentiate(graph)[0]))
    for device in devices():
        taken = seconds_of(lambda device=device: build_session(graph, device).close())  # type: ignore[misc]
        yield Row(f"build_session, {LARGE:,} nodes, {device}", spread(taken, "ms", 1e3), "bar 1,500 ms")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan"
            taken = seconds_of(lambda path=path, device=device: build_session_cached(graph, path, device).close())  # type: ignore[misc]
        yield Row(f"build_session_cached, {LARGE:,} nodes, {device}", spread(taken, "ms", 1e3), "bar 400 ms")


def first_by_median(device: str, case: str) -> float:
    """The time of the first step by that of the median one, in a fresh process; the session is built and configured. By
    the clock on the wall: processor time counts a thread of BLAS that waits, 4 ms of it in some steps of 1 ms."""
    code = f"from benchmarks.steps import first_steps; print(first_steps({device!r}, {case!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout.split()[-1])


def first_steps(device: str, case: str, steps: int = 41) -> float:
    """The same, here."""
    graph = networks.mlp() if case == "tour" else CASES[case].graph(True)
    with build_session(graph, device) as session:
        session.initialize(0)
        session.set_adam(1e-3)
        rng = np.random.default_rng(0)
        for node in session.plan().graph.inputs:
            session.set_input(node.name, rng.random(node.type.shape, np.float32))
        taken = []
        for _ in range(steps):
            start = time.perf_counter()
            session.step()
            session.wait()
            taken.append(time.perf_counter() - start)
    return taken[0] / statistics.median(taken)


def encode_rows() -> Iterator[Row]:
    """CPU time of recording a training step on wgpu, on the thread that does it, beside that of the bare calls."""
    if not adapters():
        return
    with build_session(networks.transformer(8), "wgpu") as session:
        session.initialize(0)
        session.set_adam(1e-3)
        for name, size in (("x", 32 * 64), ("target", 32 * 64)):
            session.set_input(name, np.random.default_rng(0).standard_normal(size))
        program = session.loaded.program
        assert isinstance(program, WgpuProgram)
        numbers = scalars(session.optimizer, 1)
        costs = lambda: (encode_cost(program, 20, numbers), floor_cost(program, 20))  # noqa: E731
        pairs = [owner().call(costs) for _ in range(ROUNDS)]
        count = len(program.launches) + len(program.update_launches)
        ours, floor = ([pair[k] for pair in pairs] for k in (0, 1))
        over = statistics.median(a / b for a, b in pairs)
        how = "in one pass" if loop() is None else "in one pass, by the C loop"
        beside = f"{count} dispatches {how}; {over:.2f} × the bare calls; bar 2 µs"
        yield Row("encoding, thread CPU time per dispatch", spread(ours, "µs", 1e6), beside)
        yield Row("the same by bare calls from Python", spread(floor, "µs", 1e6), "wgpu's calls and nothing else")


def floor_cost(program: WgpuProgram, steps: int) -> float:
    """CPU seconds per dispatch of nothing but the C calls that record a step: the median of `steps`."""
    raw, null, costs = program.gpu.raw, program.gpu.null, list[float]()
    set_pipeline, set_group = raw.ComputePassEncoderSetPipeline, raw.ComputePassEncoderSetBindGroup
    dispatch = raw.ComputePassEncoderDispatchWorkgroups
    rows = [bound.run for bound in (*program.launches, *program.update_launches)]
    for _ in range(steps):
        start = time.thread_time()
        encoder = raw.DeviceCreateCommandEncoder(program.gpu.d, null)
        one_pass = raw.CommandEncoderBeginComputePass(encoder, null)
        for pipeline, group, x, y, z in rows:
            set_pipeline(one_pass, pipeline)
            set_group(one_pass, 0, group, 0, null)
            dispatch(one_pass, x, y, z)
        raw.ComputePassEncoderEnd(one_pass)
        raw.ComputePassEncoderRelease(one_pass)
        commands = raw.CommandEncoderFinish(encoder, null)
        raw.CommandEncoderRelease(encoder)
        costs.append((time.thread_time() - start) / len(rows))
        program.gpu.poll(program.queue.send(commands))
    return statistics.median(costs)
