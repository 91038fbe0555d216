"""Devices: `device("auto")` is a hardware adapter, else NumPy on this machine."""

from gdlab.device.choose import device

__all__ = ["device"]
