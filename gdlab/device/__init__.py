"""Devices: `device("auto")` is a hardware adapter, else NumPy on this machine."""

import gdlab.kernels  # noqa: F401 (puts its joiner where `plan.wgsl(i)` looks for it: no device imports it otherwise)
from gdlab.device.choose import device

__all__ = ["device"]
