"""The rooms of `docs/architecture.md`: imports go up its table, also in disguise; a library has one room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from places import HELPERS, REPO, TESTS

PACKAGE = REPO / "gdlab"
ROOM_ROW = re.compile(r"^\| `([\w/.]+)` \|", re.MULTILINE)
ROOMS = [
    row.rstrip("/").removesuffix(".py")
    for row in ROOM_ROW.findall((REPO / "docs" / "architecture.md").read_text(encoding="utf-8"))
]
FACE = "__init__"  # `gdlab/__init__.py` may name every room; the rooms from `jupyter/` on may use it
LEVEL = {room: float(level) for level, room in enumerate(ROOMS)}
LEVEL[FACE] = LEVEL["jupyter"] - 0.5
TOP = {room.partition("/")[0] for room in ROOMS}

# Libraries that one room alone may import.
LIBRARIES = {
    "wgpu": "devices/wgpu/",
    "egglog": "rewrite/engine/",
    "graphviz": "view/",
    "IPython": "jupyter/",
    "ipywidgets": "jupyter/",
    "anywidget": "jupyter/",
    "onnx": "load/onnx/",
    "gguf": "load/gguf/",
    "torch": "load/pt2/",
    "tokenizers": "generate/",
    "ipyparallel": "distributed/",
    "mpi4py": "distributed/",
}

# Folders of built or copied files.
NOT_ROOMS = {"static", "labextension", "shaders", "__pycache__"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in NOT_ROOMS)


def longest_room(parts: Sequence[str]) -> str:
    """The room whose path leads to this module (or name in it) the furthest; the first part where none does."""
    prefixes = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in LEVEL), parts[0])


def room_of(path: Path) -> str:
    return longest_room(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def statements(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, ...], tuple[str, ...], tuple[ast.stmt, ...]]:
    """Return the import statements and the names of the classes of a module, wherever in the text they stand, and what
    stands at its top. Statements hold no statements but in blocks: what lies in expressions is not walked through."""
    top = ast.parse(text).body
    nodes: list[ast.stmt | ast.ExceptHandler | ast.match_case] = list(top)
    for node in nodes:  # it grows
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, block, ())
    imports = tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return imports, tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)), tuple(top)


def imports_in(text: str, here: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, wherever in the text it stands; `from a import b` gives a.b."""
    for node in statements(text)[0]:
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = ".".join((*here[: len(here) - level], *([module] if module else []))) if level else str(module)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)


def label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_module_is_in_a_room_and_every_room_exists() -> None:
    strays = [label(path) for path in MODULES if room_of(path) not in LEVEL]
    assert MODULES and strays == []
    assert [room for room in ROOMS if room not in {room_of(path) for path in MODULES}] == []


def test_a_basename_is_one_module() -> None:
    helpers = sorted(path for path in HELPERS.glob("*.py"))
    names = Counter(path.stem for path in (*MODULES, *helpers) if path.stem not in (FACE, "__main__"))
    assert [name for name, times in names.items() if times > 1] == []


# Two names that a user meets: a node of a recorded list, and a message called by its type, "sweep".
PUBLIC_TWICE = {"Node", "Sweep"}


def test_a_class_name_is_one_class() -> None:
    paths = [*MODULES, *sorted((REPO / "benchmarks").glob("*.py")), *sorted(HELPERS.glob("*.py"))]
    names = Counter(name for path in paths for name in statements(path.read_text(encoding="utf-8"))[1])
    assert {name for name, times in names.items() if times > 1} == PUBLIC_TWICE


def later_imports(text: str, room: str, here: tuple[str, ...] = ()) -> list[str]:
    """Each import of a room that stands later than `room`, wherever in the text it stands."""
    found = []
    for line, name in imports_in(text, here):
        head, *rest = name.split(".")
        if head != "gdlab":
            continue
        used = longest_room(rest) if rest and rest[0] in TOP else FACE
        if LEVEL[used] > LEVEL[room]:
            found.append(f"{line}: {name}")
    return found


MUTATORS = {"append", "extend", "update", "setdefault", "insert", "add", "register"}


def disguised_imports(text: str, room: str = "") -> list[str]:
    """Each `import_module` or `__import__` call, and each table of another room that is filled on import."""
    top, found = statements(text)[2], []
    named = "import_module" in text or "__import__" in text
    for node in ast.walk(ast.Module(list(top), [])) if named else ():
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            outside = node.args and isinstance(node.args[0], ast.Constant) and "gdlab" not in str(node.args[0].value)
            if called in ("import_module", "__import__") and not outside:
                found.append(f"{node.lineno}: {called}")
    foreign = {
        alias.asname or alias.name
        for node in top
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("gdlab.")
        and longest_room(str(node.module).split(".")[1:]) != room
        for alias in node.names
    }
    for node in top:
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(targets=several):
                targets = [t.value for t in several if isinstance(t, (ast.Subscript, ast.Attribute))]
            case ast.AugAssign(target=target):
                targets = [target]
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=attr))) if attr in MUTATORS:
                targets = [value]
        found += [f"{node.lineno}: {t.id} is filled" for t in targets if isinstance(t, ast.Name) and t.id in foreign]
    return found


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_imports_go_up_the_table(path: Path) -> None:
    if room_of(path) == FACE:
        return
    here = ("gdlab", *path.relative_to(PACKAGE).with_suffix("").parts)
    assert later_imports(path.read_text(encoding="utf-8"), room_of(path), here) == []


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_nothing_is_imported_in_disguise(path: Path) -> None:
    if label(path) in ("__init__.py", "base/binding.py", "plan/rules/__init__.py"):  # the last imports its own folder
        return
    assert disguised_imports(path.read_text(encoding="utf-8"), room_of(path)) == []


def test_the_checks_see_what_they_are_for() -> None:
    assert later_imports("from gdlab.plan import x", "plan") == []
    assert later_imports("def f():\n    from gdlab.view import x", "plan") == ["2: gdlab.view.x"]
    assert later_imports("import gdlab", "plan") == ["1: gdlab"]
    assert later_imports("from gdlab.rewrite.rules import x", "rewrite/engine") == []
    assert later_imports("from gdlab.rewrite.engine import x", "rewrite/rules") == ["1: gdlab.rewrite.engine.x"]
    assert later_imports("from gdlab.rewrite import engine", "rewrite/rules") == ["1: gdlab.rewrite.engine"]
    assert later_imports("from gdlab.rewrite import optimize", "rewrite/explain") == ["1: gdlab.rewrite.optimize"]
    assert disguised_imports("from gdlab.rewrite.rules import T\nT.add(1)", "rewrite/engine") == ["2: T is filled"]
    deep = "try:\n    pass\nexcept E:\n    match x:\n        case 1:\n            import gdlab.view"
    assert later_imports(deep, "plan") == ["6: gdlab.view"]
    assert disguised_imports('import_module("json")') == []
    assert disguised_imports('import_module("gdlab.view")') == ["1: import_module"]
    assert disguised_imports('importlib.import_module(f"gdlab.{x}")') == ["1: import_module"]
    assert disguised_imports("from gdlab.op import T\nT['a'] = 1\nT |= {}\nT.update(a=1)") == [
        "2: T is filled", "3: T is filled", "4: T is filled",
    ]  # fmt: skip


def test_what_later_rooms_provide_is_bound_by_one_table() -> None:
    """Each binding names a function that exists, in a room that is later than that of its class."""
    code = """
import gdlab, inspect
from importlib import import_module
from gdlab.base.binding import BINDINGS
homes = {"Value": "graph.value", "Graph": "graph.graph", "ExecutionPlan": "plan.records",
         "Session": "session.session", "Study": "study.study", "CompiledGraph": "compiled.compiled_graph",
         "EagerSession": "eager.eager_session", "GraphSession": "record.graph_session",
         "GgufModel": "load.gguf.gguf_model", "PretrainedModel": "load.pretrained", "Tokens": "generate.tokens",
         "Report": "record.list_report", "Document": "view.document.document"}
for cls, names in BINDINGS.items():
    owner = getattr(import_module(f"gdlab.{homes[cls]}"), cls) if cls in homes else import_module(f"gdlab.{cls}")
    for name, target in names.items():
        module, _, function = target.rpartition(" ")[2].partition(":")
        assert callable(getattr(import_module(f"gdlab.{module}"), function)), target
        assert name in vars(owner) if cls in homes else getattr(owner, name), (cls, name)
        print(homes.get(cls, cls).split(".")[0], module.split(".")[0])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pairs = [line.split() for line in done.stdout.splitlines()]
    assert pairs and [(a, b) for a, b in pairs if LEVEL[a] > LEVEL[b]] == []


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_a_library_has_one_room(path: Path) -> None:
    for line, name in imports_in(path.read_text(encoding="utf-8")):
        home = LIBRARIES.get(name.split(".")[0])
        assert home is None or label(path).startswith(home), f"{label(path)}:{line} imports {name}: only {home} may"


def test_importing_gdlab_imports_no_heavy_library() -> None:
    code = f"import sys, gdlab; print(*sorted({set(LIBRARIES)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


# the tests -----------------------------------------------------------------------------------------------------------
BESIDE_ROOMS = {"helpers", "house"}  # what is no test, and tests of the repository itself
TEST_MODULE = re.compile(r"(tests\.(\w+\.)*)?(test_\w+|conftest)(\.|$)")
MAY_IMPORT_TEST = re.compile(r"\b(from|import)\b.*\b(tests|test_\w+|conftest)\b")  # one line of such a statement
TEST_FILES = sorted(TESTS.rglob("*.py"))


def imported_tests(text: str) -> list[str]:
    """Return the imports of test modules and of conftest. A text without such a line is not parsed."""
    if not MAY_IMPORT_TEST.search(text):
        return []
    return [f"line {line}: {name}" for line, name in imports_in(text) if TEST_MODULE.match(name)]


def test_every_folder_of_tests_is_a_room() -> None:
    rooms = {room.strip("_") for room in TOP}  # autodiff.py and __main__.py are rooms of one file
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= rooms | BESIDE_ROOMS and {"graph", "main"} <= folders
    assert {path.name for path in TESTS.glob("*.py")} == {"conftest.py", "run.py"}
    for path in TEST_FILES:
        is_test = path.name.startswith("test_")
        assert is_test == (path.parent not in (TESTS, HELPERS) and path.name != "conftest.py"), path
        assert path.parent in (TESTS, HELPERS) or path.parent.parent == TESTS, path
    names = [path.name for path in TEST_FILES if path.name != "conftest.py"]
    assert len(names) == len(set(names)), "a test or helper is found by its name alone"


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_test_is_imported(path: Path) -> None:
    assert imported_tests(path.read_text(encoding="utf-8")) == []


def test_an_imported_test_is_seen() -> None:
    for text in (
        "import test_a",
        "from test_a import f",
        "def f():\n    from tests.op.test_a import x",
        "import conftest",
        "import ast, test_a",
        "from tests.op import (\n    test_a,\n)",
    ):
        assert len(imported_tests(text)) == 1, text
    assert imported_tests("from gdlab.ops import test_like\nfrom plans import test_plan") == []


def test_the_glossary_is_short() -> None:
    glossary = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Words of our own")[2]
    assert 15 <= len(re.findall(r"^\| \w", glossary, re.MULTILINE)) - 1 <= 40
