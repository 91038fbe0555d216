"""Choose a device, and say which and why."""

from __future__ import annotations

from typing import Literal

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.devices.base import Device

Kind = Literal["auto", "wgpu", "cpu"]


def device(kind: Kind | Device = "auto") -> Device:
    """A hardware adapter or cpu (`"auto"`), any adapter (`"wgpu"`), or NumPy (`"cpu"`); a Device is returned as it is.

    `.info.reason` tells why in one sentence. `"wgpu"` raises `DeviceUnavailableError` where no adapter answers.
    """
    if isinstance(kind, Device):
        return kind
    if kind == "cpu":
        return _cpu("asked for by name")
    if kind == "wgpu":
        return _wgpu("asked for by name")
    if kind == "auto":
        return _best()
    raise ArgumentError("device", "kind", repr(kind), "'auto', 'wgpu', 'cpu' or a Device")


def _best() -> Device:
    """Hardware if there is any: a software adapter takes about 40 times as long for a step as NumPy does."""
    from gdlab.devices.wgpu.wgpu_device import adapters

    try:
        found = adapters()
    except SessionError as error:  # after a fork
        return _cpu(f"wgpu: {error.given}")
    if any(a.adapter_class == "hardware" for a in found):
        return _wgpu("a hardware adapter answers")
    if not found:
        return _cpu("no adapter answers")
    return _cpu(f"the only adapter, {found[0].name}, is a software one, and NumPy is faster than that")


def _cpu(reason: str) -> Device:
    from gdlab.devices.cpu.cpu_device import CpuDevice

    return CpuDevice(reason)


def _wgpu(reason: str) -> Device:
    from gdlab.devices.wgpu.wgpu_device import open

    return open(reason)
