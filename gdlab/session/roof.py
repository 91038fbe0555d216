"""Predict the time of a dispatch on a machine, and judge a measured one: `memory-bound, 62 % of the roof`.

launch + max(bytes / bandwidth, flops / peak): the roofline of `gdlab.op.cost`, for whole dispatches.
"""

from __future__ import annotations

from typing import Literal

from gdlab.base.errors import GdlabError
from gdlab.base.words import whole
from gdlab.devices.base import Device
from gdlab.devices.calibrate import measured
from gdlab.op.machines import MEASURE, Machine, find_machine
from gdlab.plan.dispatch import Dispatch

Bound = Literal["launch", "memory", "compute"]


def machine_of(device: Device) -> Machine:
    """Return the figures of a device, measured now if none are kept; the nominal ones where it cannot be measured."""
    try:
        return measured(device)
    except GdlabError:  # a verdict is no reason to fail
        return Machine()


def known_machine(device: Device) -> Machine:
    """Return the kept figures of a device, else the nominal ones: for pictures, which must not wait for a measurement.
    """
    return find_machine(device) or Machine()


def machine_words(machine: Machine) -> str:
    """Name the machine in words; for nominal figures, say how to measure this machine."""
    if machine.name:
        return f"{machine.name} ({machine.figures})"
    return f"a nominal machine ({machine.figures}): {MEASURE} measures this one"


def predicted(machine: Machine, dispatch: Dispatch) -> float:
    """Return the least time that a dispatch takes, in seconds."""
    return machine.launch_seconds + max(_parts(machine, dispatch))


def bound(machine: Machine, dispatch: Dispatch) -> Bound:
    """Return the part of the roofline (memory, arithmetic or launch) that takes a dispatch the longest."""
    memory, compute = _parts(machine, dispatch)
    if max(memory, compute) < machine.launch_seconds:
        return "launch"
    return "memory" if memory >= compute else "compute"


def verdict(machine: Machine, dispatch: Dispatch, seconds: float) -> str:
    """Return the bound of a dispatch that took `seconds`, and the share of the roof that it reaches, in words."""
    share = 100 * predicted(machine, dispatch) / seconds if seconds > 0 else 100.0
    percent = "over 100" if share > 100.5 else whole(share) if share >= 0.95 else "under 1"
    return f"{bound(machine, dispatch)}-bound, {percent} % of the roof"


def _parts(machine: Machine, dispatch: Dispatch) -> tuple[float, float]:
    moved = dispatch.bytes_read + dispatch.bytes_written
    return moved / machine.bytes_per_second, dispatch.flops / machine.flops_per_second
