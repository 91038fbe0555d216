"""Things that a test may need of this machine, and an environment in which it leaves no trace.

`GDLAB_EXPECT` (comma list, such as `lavapipe,chromium`) says what this machine must have. A test that needs a thing
calls `needs("chromium")`: missing and expected, the test fails; missing and not expected, it is skipped.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

# A kernel of lavapipe costs 51 ms of processor time instead of 94: little optimization, vectors of 4 instead of 8
# (344 kernels of ops, Mesa 22.3, 2026-11-23). A variable that is set but empty: the driver's own (tests/run.py).
DRIVER = {"GALLIVM_PERF": "nopt", "LP_NATIVE_VECTOR_WIDTH": "128"}


def set_environment() -> None:
    """Set the variables of the software driver, before anything asks for an adapter.

    One thread: a small dispatch costs a tenth. The disk cache of kernels: a kernel that any process compiled before
    costs a sixth. DRIVER: kernels that are run a few times are compiled with little optimization. Without a runtime
    folder every request prints a line. Runs by the clock (`%graph_run NAME --for SECONDS`) make 400 steps instead.
    Figures of this machine are kept for this process alone: measured with this driver, they are of no use to people.
    Bytecode is written, whatever the machine says: a child that compiles gdlab anew imports it in 3.2 s of processor
    time instead of 1.3, and pytest rewrites the assertions of every test file anew (2026-11-28). One thread of
    OpenBLAS: beside other lanes two of them wait for one another, and 3,000 steps of a small network took 32 s of
    processor time instead of 2. The variable is one that gdlab does not read: its own lanes stay.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ.setdefault("OPENBLAS_DEFAULT_NUM_THREADS", "1")
    os.environ.setdefault("GDLAB_STEPS", "400")
    for name, value in DRIVER.items():
        os.environ.setdefault(name, value)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdlab" / "mesa"
    os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(cache))
    os.makedirs(os.environ["MESA_SHADER_CACHE_DIR"], exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = _folder("gdlab-cache-")
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = _folder("gdlab-run-")


def _folder(prefix: str) -> str:
    """A folder that is removed when this process ends."""
    made = tempfile.TemporaryDirectory(prefix=prefix)
    atexit.register(made.cleanup)
    return made.name


LIST_ADAPTERS = """
import wgpu
for adapter in wgpu.gpu.enumerate_adapters_sync():
    if adapter.info["backend_type"] not in ("OpenGL", "OpenGLES"):
        print(adapter.info["adapter_type"], adapter.info["device"])
"""


@cache
def adapters() -> tuple[str, ...]:
    """One line per adapter, `CPU llvmpipe …` or `DiscreteGPU …`; asked in another process, so that wgpu stays out."""
    answer = subprocess.run([sys.executable, "-c", LIST_ADAPTERS], capture_output=True, text=True, timeout=120)
    return tuple(answer.stdout.splitlines())


@cache
def chromium() -> str | None:
    names = ("chromium", "google-chrome", "chromium-browser")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def node() -> str | None:
    """Node: beside this Python first, as the build of the front end takes it, then on PATH."""
    return shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")


def typescript() -> bool:
    tools = Path(__file__).resolve().parents[2] / "labextension" / "node_modules"
    return (tools / "typescript" / "bin" / "tsc").exists() and node() is not None


def mpi() -> bool:
    """Whether all that `gdlab[distributed]` installs is there: ipyparallel, mpi4py and an `mpiexec`."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    return beside is not None and all(importlib.util.find_spec(name) for name in ("ipyparallel", "mpi4py"))


THINGS: dict[str, tuple[Callable[[], object], str]] = {
    "wgpu": (adapters, "a Vulkan, Metal or DX12 adapter"),
    "lavapipe": (lambda: any(line.startswith("CPU") for line in adapters()), "lavapipe (mesa-vulkan-drivers)"),
    "gpu": (lambda: any("GPU" in line.split()[0] for line in adapters()), "a hardware adapter"),
    "chromium": (chromium, "Chromium on PATH or in CHROMIUM"),
    "mpi": (mpi, 'pip install "gdlab[distributed]"'),
    "typescript": (typescript, "Node, and what `make front` installs"),
    "compiler": (lambda: sys.platform == "linux" and shutil.which("cc"), "Linux with a C compiler, cc on PATH"),
    "posix": (lambda: os.name == "posix", "Linux or macOS: fork, named pipes, links, signals"),
}
IMPLIED = {"lavapipe": "wgpu", "gpu": "wgpu"}


def expected() -> frozenset[str]:
    """The things that `GDLAB_EXPECT` names, and what they imply."""
    named = [word.strip() for word in os.environ.get("GDLAB_EXPECT", "").split(",") if word.strip()]
    unknown = sorted(set(named) - THINGS.keys())
    if unknown:
        raise pytest.UsageError(f"GDLAB_EXPECT: given {', '.join(unknown)}, wanted words of {', '.join(THINGS)}")
    return frozenset(named) | {IMPLIED[name] for name in named if name in IMPLIED}


def needs(thing: str) -> None:
    """Call it first in a test or a fixture that cannot do without `thing` (a key of THINGS)."""
    probe, wanted = THINGS[thing]
    if probe():
        return
    if thing in expected():
        pytest.fail(f"GDLAB_EXPECT: {thing}: given none, wanted {wanted}", pytrace=False)
    pytest.skip(f"{thing}: given none, wanted {wanted}")
