"""Print the face of the room of ops, which names every public one: `gdlab/ops/__init__.py`.

Public are the ops whose record is not private, and the functions that a module lists in its `__all__`.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import gdlab.ops
from gdlab.op import REGISTRY

COLUMNS = 120
HEAD = '''"""All ops, as functions and as methods of a Value: `from gdlab.ops import matmul`, `x.relu()`, `x @ w + 1`.

Written by `python labextension/generate.py`.
"""

import gdlab.ops.operators
import gdlab.ops.packed
import gdlab.ops.rotary.rope_scaled  # noqa: F401 (private ops: the rope ops with `freq_factors`)'''
DIR = """
def __dir__() -> list[str]:
    return sorted(__all__)
"""


def names_by_module() -> dict[str, list[str]]:
    """Return the public names of every module of the room."""
    modules = [each.name for each in pkgutil.walk_packages(gdlab.ops.__path__, "gdlab.ops.") if not each.ispkg]
    found = {name: list(getattr(import_module(name), "__all__", ())) for name in modules}
    for op in REGISTRY.values():
        if op.kind != "private" and op.rule.__module__ in found:
            found[op.rule.__module__].append(op.name)
    return {name: sorted(set(names)) for name, names in sorted(found.items()) if names}


def import_line(module: str, names: list[str]) -> str:
    """Return the import of a module's names, as the formatter writes it."""
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= COLUMNS else "\n".join([f"from {module} import (", *(f"    {n}," for n in names), ")"])


def python() -> str:
    """Return the whole file."""
    modules = names_by_module()
    listed = sorted(name for names in modules.values() for name in names)
    imports = [import_line(module, names) for module, names in modules.items()]
    return "\n".join([HEAD, *imports, "", "__all__ = [", *(f'    "{name}",' for name in listed), "]", "", DIR])


if __name__ == "__main__":
    sys.stdout.write(python())
