"""Functions that run on an engine: describe it, give it a device."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gdlab.base.blas import threads


@dataclass(frozen=True, slots=True)
class Description:
    """An engine as it describes itself. `adapters`: (number, name) of the hardware ones; `memory`: bytes in use."""

    rank: int
    host: str
    pid: int
    versions: tuple[tuple[str, str], ...]
    adapters: tuple[tuple[int, str], ...]
    threads: int
    memory: int


def describe(mpi: bool) -> Description:
    """Describe this process."""
    import psutil

    memory = psutil.Process().memory_info().rss
    rank = mpi_rank()[0] if mpi else 0
    return Description(rank, host_name(), os.getpid(), versions(), hardware_adapters(), threads(), memory)


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def alive(pid: int) -> bool:
    """Return whether a process of this host runs."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of packages that must agree between engines."""
    found = list[tuple[str, str]]()
    for name in ("gdlab", "numpy", "egglog"):
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "none"))
    return tuple(found)


def hardware_adapters() -> tuple[tuple[int, str], ...]:
    """Return number and name of the hardware adapters, in the order of `gdlab doctor`."""
    from gdlab.devices.wgpu.wgpu_device import adapters

    return tuple((k, a.name) for k, a in enumerate(adapters()) if a.adapter_class == "hardware")


def mpi_rank() -> tuple[int, int]:
    """Return rank and size of the MPI set of this process; (0, 0) for an engine that no `mpiexec` started."""
    if not any(name.startswith(("OMPI_COMM_WORLD", "PMI_", "PMIX_", "SLURM_PROCID")) for name in os.environ):
        return 0, 0
    try:
        from mpi4py import MPI
    except ImportError:
        return 0, 0
    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


@contextlib.contextmanager
def interrupts(handler: Callable[..., Any]) -> Iterator[None]:
    """Send interrupts to `handler` inside the block, and ignore them from its end until the engine has answered: a late
    one would be raised while the answer is sent, and the caller would wait for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine sets its own when it has answered


_DEVICE = ["auto"]  # of this process, which is one engine


def take_device(name: str) -> None:
    """Use this device for every study from now on."""
    _DEVICE[:] = [name]


def device_name() -> str:
    """Return the device that this engine was given."""
    return _DEVICE[0]
