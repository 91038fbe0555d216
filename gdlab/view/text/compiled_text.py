"""Compiled graphs as text: inputs, outputs, extent and arena, and its counters."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import nbytes, plural, whole
from gdlab.view.document.document import Document

Lines = Iterator[str]


def edge(document: Document) -> Lines:
    """Tell where inputs come from and outputs go; nothing for the document of another thing."""
    compiled = document.data.get("compiled")
    if compiled:
        yield f"compiled graph {document.data['title']}: {plural(compiled['epoch'], 'run')}"
        yield from (f"  {line}" for line in compiled["lines"])


def counted(document: Document) -> Lines:
    """Tell the counters and the memory of a compiled graph."""
    compiled = document.data.get("compiled")
    if compiled:
        yield f"  {', '.join(f'{name} {whole(count)}' for name, count in compiled['counters'].items())}"
        sizes = {name: size for name, size in compiled["memory"].items() if name.endswith("_bytes") and size}
        yield f"  memory: {', '.join(f'{name} {nbytes(size)}' for name, size in sizes.items())}"
