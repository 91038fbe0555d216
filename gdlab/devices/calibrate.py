"""Measure the figures of a roofline on a device (launch, bandwidth, peak), and keep them for `op.cost.roofline`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gdlab import ops
from gdlab.devices.base import Device, Program
from gdlab.graph import Graph, Value
from gdlab.op.cost import Machine, keep_machine
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan

__all__ = ["calibrate", "measure"]

ROUNDS = 5
ROUND_SECONDS = 0.02  # of steps in one round, so that the clock and one late step do not matter
LAUNCHES = 64
ELEMENTS = {"hardware": 1 << 24, "software": 1 << 20, "cpu": 1 << 22}  # beyond every cache, and soon read
EXTENT = {"hardware": 2048, "software": 256, "cpu": 1024}


def measure(device: Device) -> Machine:
    """Measure launch time, bandwidth and peak of a device, each as the best of five rounds of steps.

    Launch: what each of 64 tiny products adds to a step. Bandwidth: a negation of 4 to 64 MiB, bytes read and written.
    Peak: a square product, 2·n³ flops. Takes a second or two.
    """
    kind = device.info.adapter_class
    one, many = _seconds(device, lambda: _products(4, 1)), _seconds(device, lambda: _products(4, 1 + LAUNCHES))
    launch = max(many - one, 0.0) / LAUNCHES
    n, m = ELEMENTS[kind], EXTENT[kind]
    moved = _seconds(device, lambda: ops.neg(ops.input("x", (n,)))) - launch
    multiplied = _seconds(device, lambda: _products(m, 1)) - launch
    return Machine(launch, 8 * n / max(moved, 1e-9), 2 * m**3 / max(multiplied, 1e-9), _name(device))


def calibrate(device: Device) -> Machine:
    """Measure a device, and keep the figures in the user's cache folder, where `roofline(device)` finds them."""
    machine = measure(device)
    keep_machine(machine)
    return machine


def _name(device: Device) -> str:
    return f"{device.info.kind}, {device.info.name}"


def _products(extent: int, count: int) -> Value:
    x = ops.input("x", (extent, extent))
    for _ in range(count):
        x = x @ x
    return x


def _seconds(device: Device, build: Callable[[], Value]) -> float:
    """Return the seconds per step of a graph of one input `x`, zeros."""
    with Graph() as graph:
        graph.set_outputs([build()])
    plan = compile(graph, mode="inference", target=device.target)
    program = device.load(plan)
    return program.turn.call(lambda: _timed(program, plan))


def _timed(program: Program, plan: ExecutionPlan) -> float:
    try:
        for _, buffer in plan.input_buffers:
            to = plan.buffers[buffer]
            program.upload(buffer, np.zeros(to.shape, to.dtype.numpy))
        best, steps = float("inf"), 1
        for _ in range(ROUNDS):
            spent = 0.0
            while spent < ROUND_SECONDS:
                start = time.perf_counter()
                for _ in range(steps):
                    program.step(None)
                program.wait()
                spent = time.perf_counter() - start
                best = min(best, spent / steps)
                if spent < ROUND_SECONDS:
                    steps *= 2
        return best
    finally:
        program.close()
