"""Measure the figures of a roofline on a device (launch, bandwidth, peak), and keep them: `measured(device)`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from gdlab import ops
from gdlab.base.errors import ArgumentError
from gdlab.devices.base import Device, Program
from gdlab.graph import Graph, Value
from gdlab.op.cost import Roofline
from gdlab.op.machines import Machine, automatic_machine, find_machine, keep_machine
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan

__all__ = ["calibrate", "device_roofline", "measure", "measured"]


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of rounds that a time is the best of, at the least, and the seconds of steps in each: enough that the
    clock and one late step do not matter."""

    rounds: int
    seconds: float


MOST, AGREE = 5, 1.1  # times the effort, and the ratio of two rounds that agree
CAREFUL, QUICK = Effort(5, 0.02), Effort(3, 0.005)
LAUNCHES = 64
ELEMENTS = {"hardware": 1 << 25, "software": 1 << 20, "cpu": 1 << 22}  # beyond every cache, and soon read
EXTENT = {"hardware": 2048, "software": 256, "cpu": 1024}
_measured_here: dict[str, Machine] = {}  # by name: known to this process, also where no file can be written


def measured(device: Device) -> Machine:
    """Return the figures of a device: those that are kept, else measured now, quickly, and kept.

    Measuring takes 0.2 s on cpu (2 cores), on an NVIDIA H100 and on lavapipe; where a process has compiled no kernel
    yet, 0.5 s more on the H100 (2026-11-24) and 0.4 s more on lavapipe, 0.2 of it for the product (2026-11-28).
    """
    name, automatic = _name(device), device.info.automatic
    kept = find_machine(device)
    machine = kept or _measured_here.get(name) or measure(device, QUICK)
    _measured_here[name] = machine
    if kept is None or (automatic and automatic_machine() != kept):
        with suppress(ArgumentError):  # no folder that can be written: this process goes on with them
            keep_machine(machine, automatic)
    return machine


def device_roofline(device: Device) -> Roofline:
    """Return the cost model that `cost="device"` stands for where this device is in use: its figures, rounded to powers
    of √2."""
    return Roofline(measured(device).rounded)


def calibrate(device: Device) -> Machine:
    """Measure a device carefully, and keep the figures in the user's cache folder, where `roofline(device)` finds
    them."""
    machine = measure(device)
    keep_machine(machine, device.info.automatic)
    return machine


def measure(device: Device, effort: Effort = CAREFUL) -> Machine:
    """Measure launch time, bandwidth and peak of a device, each as the best of some rounds of steps.

    Launch: what each of 64 tiny products adds to a step. Bandwidth: a negation of 4 to 128 MiB, bytes read and written.
    Peak: a square product, 2·n³ flops. Takes about 0.8 s carefully, 0.2 s quickly, whose figures are mostly within 30 %
    of the careful ones (2 cores and lavapipe on them, NVIDIA H100, 2026-11-24).
    """
    kind = device.info.adapter_class
    one = _seconds(device, lambda: _products(4, 1), effort)
    many = _seconds(device, lambda: _products(4, 1 + LAUNCHES), effort)
    launch = max((many - one) / LAUNCHES, 1e-9)
    n, m = min(ELEMENTS[kind], device.target.limits.binding_bytes // 4), EXTENT[kind]
    moved = _seconds(device, lambda: ops.neg(ops.input("x", (n,))), effort) - launch
    multiplied = _seconds(device, lambda: _products(m, 1), effort) - launch
    return Machine(launch, 8 * n / max(moved, 1e-9), 2 * m**3 / max(multiplied, 1e-9), _name(device))


def _name(device: Device) -> str:
    return f"{device.info.kind}, {device.info.name}"


def _products(extent: int, count: int) -> Value:
    x = ops.input("x", (extent, extent))
    for _ in range(count):
        x = x @ x
    return x


def _seconds(device: Device, build: Callable[[], Value], effort: Effort) -> float:
    """Return the seconds per step of a graph of one input `x`, zeros."""
    with Graph() as graph:
        graph.set_outputs([build()])
    plan = compile(graph, mode="inference", target=device.target)
    program = device.load(plan)
    return program.turn.call(lambda: _timed(program, plan, effort))


def _timed(program: Program, plan: ExecutionPlan, effort: Effort) -> float:
    """Return the seconds of the fastest round; where others use the machine and no two rounds agree, of more rounds."""
    try:
        for _, buffer in plan.input_buffers:
            to = plan.buffers[buffer]
            program.upload(buffer, np.zeros(to.shape, to.dtype.numpy))
        rounds, steps, end = list[float](), 1, time.perf_counter() + MOST * effort.rounds * effort.seconds
        while True:
            start = time.perf_counter()
            for _ in range(steps):
                program.step(None)
            program.wait()
            spent = time.perf_counter() - start
            if spent < effort.seconds:
                steps *= 2
                continue
            rounds.append(spent / steps)
            agree = len(rounds) > 1 and sorted(rounds)[1] <= AGREE * min(rounds)
            if len(rounds) >= effort.rounds and (agree or start > end):
                return min(rounds)
    finally:
        program.close()
