"""Steps per second of the tour's network, beside a plain NumPy loop in the same run; and what encoding a step costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.measure import ROUNDS, Row, rates_of, seconds_of, spread
from gdlab.device.base import owner
from gdlab.device.choose import Kind
from gdlab.device.wgpu import WgpuProgram, adapters
from gdlab.runner import Runner
from gdlab.session import Session, build_session, initial_values
from gdlab.session.optimizer import scalars
from tests import networks, numpy_training
from tests.wgpu_plans import encode_cost

SHAPES = {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
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


def open_and_close(device: Kind) -> None:
    """A whole session of the tour's network."""
    build_session(networks.mlp(), device).close()


def devices() -> list[Kind]:
    """The devices of this machine."""
    return ["cpu", "wgpu"] if adapters() else ["cpu"]


def build_rows() -> Iterator[Row]:
    """From a graph to a session that can step, warm."""
    for device in devices():
        taken = seconds_of(partial(open_and_close, device))
        yield Row(f"build_session, tour's network, {device}", spread(taken, "ms", 1e3))


def encode_rows() -> Iterator[Row]:
    """CPU time of recording a training step on wgpu, on the thread that does it, beside that of the bare calls."""
    if not adapters():
        return
    with build_session(networks.transformer(8), "wgpu") as session:
        session.initialize(0)
        session.set_adam(1e-3)
        for name, size in (("x", 32 * 64), ("target", 32 * 64)):
            session.set_input(name, np.random.default_rng(0).standard_normal(size))
        program = session._program
        assert isinstance(program, WgpuProgram)
        numbers = scalars(session.optimizer, 1)
        costs = lambda: (encode_cost(program, 20, numbers), floor_cost(program, 20))  # noqa: E731
        pairs = [owner().call(costs) for _ in range(ROUNDS)]
        count = len(program.rows) + len(program.update_rows)
        ours, floor = ([pair[k] for pair in pairs] for k in (0, 1))
        over = statistics.median(a / b for a, b in pairs)
        beside = f"{count} dispatches in one pass; {over:.2f} × the bare calls"
        yield Row("encoding, thread CPU time per dispatch", spread(ours, "µs", 1e6), beside)
        yield Row("the same by bare C calls", spread(floor, "µs", 1e6), "what recording cannot do without")


def floor_cost(program: WgpuProgram, steps: int) -> float:
    """CPU seconds per dispatch of nothing but the C calls that record a step: the median of `steps`."""
    raw, null, costs = program.gpu.raw, program.gpu.null, list[float]()
    set_pipeline, set_group = raw.ComputePassEncoderSetPipeline, raw.ComputePassEncoderSetBindGroup
    dispatch, rows = raw.ComputePassEncoderDispatchWorkgroups, program.rows + program.update_rows
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
        program.gpu.poll(program.gpu.submit(commands))
    return statistics.median(costs)
