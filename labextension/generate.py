"""Write every file that is generated from Python again: `python labextension/generate.py`, or `… check`.

Each follows from records that a person writes once: ops, messages, panes, the tables of a document, the measures of a
layout.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OPS = "gdlab/ops/__init__.py"


def _script(name: str) -> Callable[[], str]:
    """Return the maker of a file that a script of this folder prints."""
    return lambda: str(importlib.import_module(name).typescript())


def _package() -> str:
    return str(importlib.import_module("ops_package").python())


def _ops() -> str:
    return str(importlib.import_module("gdlab.ops.table").markdown())


def _schema() -> str:
    return str(importlib.import_module("gdlab.view.document.schema").schema_text())


def _graphdoc() -> str:
    page = (ROOT / "docs/graphdoc.md").read_text(encoding="utf-8")
    return str(importlib.import_module("gdlab.view.document.schema").with_tables(page))


MADE: dict[str, Callable[[], str]] = {
    OPS: _package,  # first: the others read it
    "docs/ops.md": _ops,
    "docs/graphdoc.md": _graphdoc,
    "gdlab/view/document/schema.json": _schema,
    "labextension/src/doc/metrics.ts": _script("metrics_ts"),
    "labextension/src/doc/records.ts": _script("records_ts"),
    "labextension/src/host/ops.ts": _script("ops_ts"),
    "labextension/src/live/messages.ts": _script("messages_ts"),
    "labextension/src/panes/later.ts": _script("panes_ts"),
}


def changed() -> Iterator[tuple[Path, str]]:
    """Yield each file that is out of date, with its new text."""
    for name, make in MADE.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield path, text


def write() -> None:
    """Write the files that changed; after the ops' names go on in a new process, which imports them."""
    for path, text in changed():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path.relative_to(ROOT), flush=True)
        if path == ROOT / OPS:
            subprocess.run([sys.executable, __file__], check=True)
            return


def check() -> None:
    stale = [path.relative_to(ROOT).as_posix() for path, _ in changed()]
    if stale:
        raise SystemExit(f"generate: {', '.join(stale)}: given older text, wanted: python labextension/generate.py")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["check"]:
            check()
        case _:
            raise SystemExit("usage: generate.py [check]")
