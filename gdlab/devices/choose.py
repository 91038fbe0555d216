"""Choose a device, and give the reason."""

from __future__ import annotations

from dataclasses import replace

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.devices.base import Device

DEVICES = ("auto", "wgpu", "cpu")
KINDS = '"auto", "wgpu", "wgpu:1", "wgpu:NVIDIA", "cpu" or a Device'


def device(kind: str | Device = "auto") -> Device:
    """Return a device: a hardware adapter or cpu (`"auto"`), the best adapter (`"wgpu"`), one adapter by its number in
    the list of `gdlab doctor` (`"wgpu:1"`) or by a part of its name (`"wgpu:NVIDIA"`), or NumPy (`"cpu"`); a Device is
    returned as it is.

    `.info.reason` tells why in one sentence. Where no adapter answers, `DeviceUnavailableError`; where the number or
    the name does not fit exactly one, `ArgumentError` with the list. Several adapters can be open in one process.
    """
    if isinstance(kind, Device):
        return kind
    name = checked_kind(kind)
    if name == "cpu":
        return _cpu("asked for by name")
    if name == "auto":
        return _best()
    return _wgpu("asked for by name", name.partition(":")[2])


def checked_kind(kind: object) -> str:
    """Check the form of a device name, and return it; whether there is such an adapter is not checked."""
    if isinstance(kind, str) and (kind in DEVICES or (kind.startswith("wgpu:") and kind[5:].strip())):
        return kind
    raise ArgumentError("device", "kind", repr(kind), KINDS)


def _best() -> Device:
    """Return a hardware adapter if there is one, else cpu: a software adapter's step takes about 40 times as long."""
    from gdlab.devices.wgpu.wgpu_device import adapters

    try:
        found = adapters()
    except SessionError as error:  # after a fork: not what "auto" stands for elsewhere
        return _cpu(f"wgpu: {error.given}")
    if any(a.adapter_class == "hardware" for a in found):
        best = _wgpu("a hardware adapter answers")
    elif not found:
        best = _cpu("no adapter answers")
    else:
        best = _cpu(f"the only adapter, {found[0].name}, is a software one, and NumPy is faster than that")
    best.info = replace(best.info, automatic=True)
    return best


def _cpu(reason: str) -> Device:
    from gdlab.devices.cpu.cpu_device import CpuDevice

    return CpuDevice(reason)


def _wgpu(reason: str, adapter: str = "") -> Device:
    from gdlab.devices.wgpu.wgpu_device import open

    return open(reason, adapter)
