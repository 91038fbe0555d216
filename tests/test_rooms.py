"""The walls of the house: imports only go up the list of rooms, a library has one room, importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gdlab"

# The rooms in reading order (the design's section 2); rooms on one line may import each other. `__init__` is the public
# face: what stands below it may use it, and it may name what it loads later.
ROOMS = """
errors
types
derived
philox
quant
graph
op
ops
text
decompose
steps
check
reference
autodiff
cost
rewrite
plan
kernels
device
session compiled record eager
summary
feeds until nonfinite
stepping
runner
init nn train data load models
nodevalues
parity study debugging microscope targets variants gradcheck
view
__init__
jupyter
__main__
"""
LEVEL = {room: level for level, line in enumerate(ROOMS.split("\n")) for room in line.split()}

# Libraries that one room alone may import.
LIBRARIES = {
    "wgpu": "device/wgpu.py",
    "egglog": "rewrite/egraph.py",
    "graphviz": "view/dot.py",
    "IPython": "jupyter/",
    "ipywidgets": "jupyter/",
    "anywidget": "jupyter/",
}

# Folders of built or copied files.
NOT_ROOMS = {"static", "labextension", "shaders", "__pycache__"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in NOT_ROOMS)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, wherever in the file it stands; `from a import b` gives a.b."""
    here = ("gdlab", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = ".".join((*here[: len(here) - level], *([module] if module else []))) if level else str(module)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)


def label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_module_is_in_a_room() -> None:
    strays = [label(path) for path in MODULES if room_of(path) not in LEVEL]
    assert MODULES and strays == []


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_imports_go_up_the_list(path: Path) -> None:
    room = room_of(path)
    for line, name in imported(path):
        head, *rest = name.split(".")
        if head != "gdlab" or room == "__init__":
            continue
        used = rest[0] if rest and rest[0] in LEVEL else "__init__"
        assert LEVEL[used] <= LEVEL[room], f"{label(path)}:{line} imports {name}, and {used} is further down the list"


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_a_library_has_one_room(path: Path) -> None:
    for line, name in imported(path):
        home = LIBRARIES.get(name.split(".")[0])
        assert home is None or label(path).startswith(home), f"{label(path)}:{line} imports {name}: only {home} may"


def test_importing_gdlab_imports_no_heavy_library() -> None:
    code = f"import sys, gdlab; print(*sorted({set(LIBRARIES)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")
