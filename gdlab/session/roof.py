"""Predict the time of a dispatch on a machine, and judge a measured one: `memory-bound, 62 % of the roof`.

launch + max(bytes / bandwidth, flops / peak): the roofline of `gdlab.op.cost`, for whole dispatches.
"""

from __future__ import annotations

from typing import Any, Literal

from gdlab.base.errors import OptimizeError
from gdlab.base.words import whole
from gdlab.op.cost import Machine, kept_machine
from gdlab.plan.dispatch import Dispatch

Bound = Literal["launch", "memory", "compute"]


def machine_of(device: Any) -> Machine:
    """Return the figures that were measured on a device, else the nominal ones."""
    try:
        return kept_machine(device)
    except OptimizeError:
        return Machine()


def machine_words(machine: Machine) -> str:
    """Name the machine in words; for nominal figures, say how to measure this machine."""
    if machine.name:
        return f"{machine.name} ({machine.figures})"
    return f"a nominal machine ({machine.figures}): python -m gdlab bench --calibrate measures this one"


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
