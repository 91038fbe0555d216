"""Tell what this machine has and lacks, as one table: versions, adapters, the device chosen and why, compiler, front
end, threads."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Literal

from gdlab.base.blas import THREADS, has_openblas, keeps_cores, mean_by_least, threads
from gdlab.base.errors import GdlabError
from gdlab.base.words import grid, nbytes, plural
from gdlab.devices.choose import device
from gdlab.devices.cpu.product_calls import compiled
from gdlab.devices.native import compiler
from gdlab.devices.wgpu.wgpu_device import adapters

Level = Literal["ok", "note", "bad"]

# Distribution, whether gdlab works without it, and what it is for.
_PACKAGES: tuple[tuple[str, bool, str], ...] = (
    ("gdlab", False, ""),
    ("numpy", False, ""),
    ("egglog", True, "graphs are only cleaned of doubles, not rewritten"),
    ("wgpu", True, "only device cpu"),
    ("jupyterlab", True, "no notebook on this Python"),
    ("notebook", True, "JupyterLab alone"),
    ("ipykernel", True, "no kernel for notebooks"),
    ("ipywidgets", True, "pictures are not live"),
    ("anywidget", True, "pictures are not live"),
    ("graphviz", True, ".dot files are written without it"),
)
_FIRST = (
    "import gdlab before numpy: a thread of OpenBLAS then leaves its core 2 ms after a product instead of 27, and "
    "large updates on cpu take 0.6 of the time"
)
_BUSY = 2.0  # times the least that a product takes on average, from which on its threads wait for others
_ALONE = (
    f"{THREADS[0]}=1 before Python starts: a thread of OpenBLAS without a core keeps all others waiting, and a step on "
    "cpu takes 2 to 10 times as long as with one thread"
)


@dataclass(frozen=True, slots=True)
class DoctorRow:
    """A row of the table: what is checked, what was found, and, unless all is well, what to do."""

    name: str
    found: str
    level: Level = "ok"
    advice: str = ""


def doctor_rows() -> list[DoctorRow]:
    """Return all rows of the table."""
    parts = (_python, _packages, _products, _adapters, _device, _compiler, _dot, _front_end, _threads)
    return [row for part in parts for row in part()]


def doctor_text(rows: Sequence[DoctorRow] | None = None) -> str:
    """Return the table (of this machine as it is now, or of given rows); each bad row says what to do."""
    marks = {"ok": "ok", "note": "–", "bad": "BAD"}
    rows = doctor_rows() if rows is None else rows
    table = grid(("", "", ""), [(marks[row.level], row.name, row.found) for row in rows], indent="")
    return "\n".join(
        line
        for row, shown in zip(rows, table, strict=True)
        for line in (shown, f"       → {row.advice}")[: 1 + bool(row.advice)]
    )


def _python() -> Iterator[DoctorRow]:
    cores = plural(os.cpu_count() or 1, "core")
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {cores}"
    old = sys.version_info < (3, 11)
    yield DoctorRow("Python", found, "bad" if old else "ok", "use Python 3.11 or newer" if old else "")


def _packages() -> Iterator[DoctorRow]:
    for name, optional, without in _PACKAGES:
        try:
            found = version(name)
        except PackageNotFoundError:
            advice = f"pip install {name}" + (f" (without it: {without})" if without else "")
            yield DoctorRow(name, "not installed", "note" if optional else "bad", advice)
            continue
        if name == "ipykernel" and int(found.split(".")[0]) < 7:
            yield DoctorRow(name, found, "note", "pip install 'ipykernel>=7': buttons then work while a cell runs")
        elif name == "numpy" and keeps_cores():
            yield DoctorRow(name, found, "note", _FIRST)
        else:
            yield DoctorRow(name, found)


def _products() -> Iterator[DoctorRow]:
    count = threads()
    found = f"by {plural(count, 'thread')}"
    if compiled() is not None:
        yield DoctorRow("products", f"in C, {found}")
    elif count > 1 and has_openblas() and mean_by_least() > _BUSY:
        yield DoctorRow("products", f"{found}, and other programs use their cores now", "note", _ALONE)
    else:
        yield DoctorRow("products", found)


def _adapters() -> Iterator[DoctorRow]:
    found = adapters()
    if not found:
        advice = "a Vulkan driver (Debian: mesa-vulkan-drivers) would give device wgpu; cpu works without"
        yield DoctorRow("adapters", "none", "note", advice)
    for i, info in enumerate(found):
        yield DoctorRow(f"adapter {i}", str(info))


def _device() -> Iterator[DoctorRow]:
    try:
        info = device("auto").info
    except GdlabError as error:
        yield DoctorRow("device", "none", "bad", str(error))
        return
    yield DoctorRow("device", f"{info}: {info.reason}")


def _compiler() -> Iterator[DoctorRow]:
    if (found := compiler()) is not None:
        yield DoctorRow("C compiler", f"{found}: compiles loops of steps, and products on cpu")
    elif sys.platform == "linux":
        advice = "one (Debian: gcc) makes steps on cpu faster: they take 0.5 to 0.8 of the time"
        yield DoctorRow("C compiler", "none", "note", advice)


def _dot() -> Iterator[DoctorRow]:
    found = shutil.which("dot")
    yield DoctorRow("dot", "found" if found else "not found (nothing needs it: .dot files are written without it)")


def _front_end() -> Iterator[DoctorRow]:
    parts = [files("gdlab") / "static" / f"{name}.js" for name in ("gdlab", "later")]
    if all(part.is_file() for part in parts):
        yield DoctorRow("front end", f"built, {nbytes(sum(len(part.read_bytes()) for part in parts))}")
    else:
        yield DoctorRow("front end", "not built", "bad", "python labextension/frontend.py builds it")
    folder = Path(sys.prefix, "share", "jupyter", "labextensions", "gdlab")
    if folder.exists():
        yield DoctorRow("JupyterLab extension", "installed")
    else:
        advice = (
            "pip install gdlab again, then reload the page: without it a notebook without a kernel shows still pictures"
        )
        yield DoctorRow("JupyterLab extension", "not installed", "note", advice)


def _threads() -> Iterator[DoctorRow]:
    ours = sorted(t.name for t in threading.enumerate() if t.name.startswith("gdlab"))
    yield DoctorRow("threads", ", ".join(ours) or "none yet: they start with the first device or e-graph")
