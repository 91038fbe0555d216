"""`import gdlab` is light: ops, graphs and types at once, every other room when somebody first reads a name of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gdlab

FACE = Path(gdlab.__file__)
# What `import gdlab` loads; every other room waits.
AT_ONCE = {"base", "graph", "op", "ops"}


def fresh(code: str) -> list[str]:
    """The lines that a new Python prints, without a word on stderr."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_only_ops_graphs_and_types_are_loaded_at_once() -> None:
    rooms = "print(*sorted({m.split('.')[1] for m in sys.modules if m.startswith('gdlab.')}))"
    later = "print(*sorted(m for m in ('pathlib', 'difflib', 'threading', 'json') if m in sys.modules.keys() - before))"
    before = "import sys, numpy; before = set(sys.modules); import gdlab; dir(gdlab); hasattr(gdlab, 'nothing')"
    loaded, others = fresh(f"{before}; {rooms}; {later}")
    assert set(loaded.split()) == AT_ONCE
    assert others == ""


def test_every_name_is_there_and_what_its_room_has() -> None:
    code = """
import gdlab
from importlib import import_module
for name, (module, other) in gdlab._HOME.items():
    assert getattr(gdlab, name) is getattr(import_module(f"gdlab.{module}"), other), name
    assert vars(gdlab)[name] is getattr(gdlab, name), name  # read once, then a plain name
for name, module in gdlab._MODULES.items():
    assert getattr(gdlab, name) is import_module(f"gdlab.{module}"), name
    assert dir(getattr(gdlab, name)) == sorted(getattr(gdlab, name).__all__), name  # what the key Tab offers
assert dir(gdlab.ops) == sorted(gdlab.ops.__all__)
from gdlab import *
missing = [name for name in gdlab.__all__ if name not in globals()]
print(missing, {*gdlab.__all__} ^ {*dir(gdlab)}, type(device).__name__, callable(op), rules is gdlab.rewrite.RULES)
"""
    assert fresh(code) == ["[] set() function True True"]


def test_no_public_name_hides_a_module_of_its_name() -> None:
    """Importing a room binds its name in the package; only the decorator `op` has the name of a room."""
    rooms = {path.stem for path in FACE.parent.iterdir()}
    assert rooms & set(gdlab.__all__) == {"eager", "models", "nn", "op", "ops"}
    code = """
import gdlab, pkgutil, types
from importlib import import_module
for found in pkgutil.walk_packages(gdlab.__path__, "gdlab."):
    package, _, name = found.name.rpartition(".")
    if found.name == "gdlab.__main__" or name == "static":
        continue
    module, held = import_module(found.name), vars(import_module(package)).get(name)
    if held is not module:
        print(found.name)
"""
    assert fresh(code) == ["gdlab.op"]


def test_type_checkers_see_the_same_names() -> None:
    (block,) = (
        node for node in ast.parse(FACE.read_text("utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )  # fmt: skip
    seen = {
        alias.asname or alias.name
        for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "pathlib"
        for alias in node.names
    }  # fmt: skip
    assert seen == {*gdlab._HOME, *gdlab._MODULES} - {"load_ipython_extension", "unload_ipython_extension"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'gdlab' has no attribute 'sesion'$"):
        gdlab.sesion  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(gdlab, "jupyter_") and not hasattr(gdlab, "__wrapped__")


def test_what_rooms_hang_on_graphs_and_studies_is_there_at_first_use() -> None:
    """`str(graph)`, `text`, `decompose`, `study.doc`, `plan.wgsl` need rooms that nobody has named."""
    graph = "from gdlab import Graph, input, gelu\nwith Graph() as g: g.output(gelu(input('x', (2, 3))).mean_all())\n"
    assert fresh(graph + "print(str(g).splitlines()[0])") == ['%0 = input("x") : f32[2, 3]']
    assert fresh(graph + "print(len(g.decompose()) > len(g), g.text().count('gelu'))") == ["True 1"]
    code = "from gdlab.study.study import Study\ns = Study(g, device='cpu')\nprint(s.doc.id == s.doc.id, len(s.doc.id))"
    assert fresh(graph + code) == ["True 16"]
    code = "from gdlab.plan import compile\nprint(compile(g, mode='inference').wgsl(0)[0][:2])"
    assert fresh(graph + code) == ["//"]


def test_threads_that_read_a_name_first_get_one_object() -> None:
    code = """
import threading, gdlab
found, start = [], threading.Barrier(8)
def read():
    start.wait()
    found.append((gdlab.Session, gdlab.Study, gdlab.rules))
threads = [threading.Thread(target=read) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(found), len({tuple(map(id, each)) for each in found}))
"""
    assert fresh(code) == ["8 1"]
