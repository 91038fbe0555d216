"""Devices: `device("auto")` is a hardware adapter, else NumPy on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdlab.device.base import Device
    from gdlab.device.choose import Kind

__all__ = ["device"]


def device(kind: Kind | Device = "auto") -> Device:
    """A hardware adapter or cpu (`"auto"`), any adapter (`"wgpu"`), or NumPy (`"cpu"`); a Device is returned as it is.

    `.info.reason` tells why in one sentence. `"wgpu"` raises `DeviceUnavailableError` where no adapter answers.
    """
    from gdlab.device.choose import device  # here: `import gdlab` has this function, and loads no device for it

    return device(kind)
