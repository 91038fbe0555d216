"""Checks of a notebook that was run: every picture in the page is live, and in HTML and Markdown it is an image."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbformat
from browser import cell
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode
from playwright.sync_api import Page

PICTURE = "application/vnd.gdlab.graph.v1+json"
ENTITIES = "all => new Set(all.map(e => e.dataset.entity)).size"
# A pill speaks of a leaf and the shape ops behind it, of which the last one is the pill.
BETWEEN = "all => all.reduce((n, e) => n + Math.max(0, e.getAttribute('aria-label').split('; ').length - 2), 0)"


def pictures(book: NotebookNode) -> list[int]:
    """The cells whose outputs hold a document."""
    return [i for i, c in enumerate(book.cells) if any(PICTURE in o.get("data", {}) for o in c.get("outputs", []))]


def check_live(page: Page, path: Path) -> None:
    """B5: no error, a live picture with the right number of nodes. B16: its SVG in HTML and Markdown."""
    book = nbformat.read(path, as_version=4)
    assert [o for c in book.cells for o in c.get("outputs", []) if o.output_type == "error"] == []
    assert all(c.execution_count for c in book.cells if c.cell_type == "code")
    shown = pictures(book)
    assert shown
    for index in shown:
        view = cell(page, index).locator(".gdlab").first
        view.scroll_into_view_if_needed()
        view.locator('[role="tab"][data-tab="opt"]').click()
        written = view.locator('[data-pane="before"]')
        written.locator("[data-entity^='node:']").first.wait_for()
        fact = written.locator(".gd-fact").inner_text()  # 36 nodes, or 22 nodes for 54 nodes
        boxes, *folded = map(int, re.findall(r"\d+", fact))
        drawn = written.locator("[data-entity^='node:']").evaluate_all(ENTITIES)
        drawn += written.locator(".gd-pill:not([data-echo])").evaluate_all(BETWEEN)
        assert drawn == boxes, book.cells[index].source
        assert (folded or [boxes])[0] == nodes_of(book.cells[index]), book.cells[index].source
    check_exports(book, shown)


def nodes_of(found: NotebookNode) -> int:
    """The number of nodes that the output says in plain text."""
    for output in found.outputs:
        if PICTURE in output.get("data", {}):
            return int(re.search(r"(\d[\d,]*) nodes", output.data["text/plain"]).group(1).replace(",", ""))
    raise AssertionError("no picture")


def check_exports(book: NotebookNode, shown: list[int]) -> None:
    html, _ = HTMLExporter().from_notebook_node(book)
    coded = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]+)"', html)
    drawn = [base64.b64decode(code).decode() for code in coded]
    assert sum(text.startswith("<svg") and 'role="img"' in text for text in drawn) >= len(shown)
    text, resources = MarkdownExporter().from_notebook_node(book)
    files = [file for file in resources["outputs"] if file.endswith(".svg")]
    assert len(files) >= len(shown) and all(f"]({file})" in text for file in files)
