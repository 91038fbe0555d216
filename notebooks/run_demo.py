"""Execute the tour from top to bottom and sum it up: `python notebooks/run_demo.py`, the script behind `make demo`.

The figures are the tour's own: its last code cell prints one line `gdlab-summary {json}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
TOUR = HERE / "tour.ipynb"
OUT = HERE.parent / "build" / "demo"
MARK = "gdlab-summary "
CELL_SECONDS = 600

# The page as JupyterLab shows it, less the scripts that it would load from elsewhere: none of its pictures needs one.
PAGE = "{% extends 'lab/index.html.j2' %}" + "".join(
    f"{{% block {name} %}}{{% endblock %}}"
    for name in ("html_head_js", "html_head_js_mathjax", "html_head_js_mermaidjs", "jupyter_widgets")
)


class CellProgress:
    """Prints one line per code cell: which of how many, its first line, its seconds."""

    def __init__(self, notebook: NotebookNode) -> None:
        self.code = [index for index, cell in enumerate(notebook.cells) if runs(cell)]
        self.started = 0.0

    def start(self, cell: NotebookNode, cell_index: int) -> None:
        if not runs(cell):
            return
        self.started = time.perf_counter()
        first = cell.source.strip().splitlines()[0]
        print(f"cell {self.code.index(cell_index) + 1:2} of {len(self.code)}  {first[:72]:72}", end="", flush=True)

    def done(self, cell: NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        print(f" {time.perf_counter() - self.started:6.1f} s", flush=True)


def runs(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def execute(notebook: NotebookNode) -> str:
    """Run every cell in place; the error's text, or "" when all went well."""
    progress = CellProgress(notebook)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        # Widget state would be stored once per picture, and asks a page for a widget manager.
        store_widget_state=False,
        resources={"metadata": {"path": str(HERE)}},
        extra_arguments=["--log-level=ERROR"],  # no advice on sockets between the cells' lines
        on_cell_start=progress.start,
        on_cell_executed=progress.done,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        return str(error)
    return ""


def summary(notebook: NotebookNode) -> dict[str, Any] | None:
    """Return the tour's own report: the last line of its outputs that carries the mark, None without one."""
    found = None
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for line in output.get("text", "").splitlines():
                if line.startswith(MARK):
                    found = json.loads(line.removeprefix(MARK))
    return found


def shown(value: object) -> str:
    """A figure as people read it: 3 significant digits, thousands apart, a list or a table on one line."""
    match value:
        case float():
            return f"{value:.3g}"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
        case list():
            return ", ".join(shown(item) for item in value)
        case _:
            return str(value)


def report(figures: dict[str, Any], seconds: float, files: list[Path]) -> str:
    text = {key: shown(value) for key, value in figures.items()}
    rows = [
        ("devices", f"{text['devices']} ({text['device_reason']})"),
        ("nodes", f"{text['nodes_before']} → {text['nodes_after']}"),
        ("rewrites", text["rewrites"]),
        ("dispatches", f"{text['dispatches']} in {text['groups']} groups"),
        ("memory", f"{text['bytes']} bytes"),
        ("loss", f"{text['loss_first']} → {text['loss_last']}"),
        ("test accuracy", text["accuracy"]),
        ("seconds", f"{seconds:.1f}"),
        *((("notebook", "page")[index], os.path.relpath(path)) for index, path in enumerate(files)),
    ]
    return "\n".join(f"{name:>14}  {value}" for name, value in rows)


def main() -> int:
    started = time.perf_counter()
    notebook = nbformat.read(TOUR, as_version=4)
    error = execute(notebook)
    OUT.mkdir(parents=True, exist_ok=True)
    executed, page = OUT / "tour.ipynb", OUT / "tour.html"
    nbformat.write(notebook, executed)
    if error:
        print(f"\n{error}\nthe notebook as far as it ran: {os.path.relpath(executed)}", file=sys.stderr)
        return 1
    html, _ = HTMLExporter(raw_template=PAGE).from_notebook_node(notebook, {"metadata": {"name": "gdlab: the tour"}})
    page.write_text(html, encoding="utf-8")
    figures = summary(notebook)
    if figures is None:
        print(f"\ndemo: summary: given none, wanted a line '{MARK}{{json}}' from {TOUR.name}", file=sys.stderr)
        return 1
    print(f"\n{report(figures, time.perf_counter() - started, [executed, page])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
