"""The sweep of a study as text: a row of each point, errors and events."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import duration, grid
from gdlab.view.document.document import Document
from gdlab.view.document.sweeps import sweep_lines

HEAD = ("state", "engine", "steps", "steps/s", "loss now", "lowest", "time")


def sweep(document: Document) -> Iterator[str]:
    """Yield the lines of the view `sweep`."""
    data = document.data.get("sweep")
    if data is None:
        yield "no sweep yet: study.sweep({...}, steps=1000, feed=...), or %graph_sweep NAME STEPS --adam 1e-3,3e-3"
        return
    yield from sweep_lines(data)
    head = ("point", *data["keys"], *HEAD)
    rows = [
        (f"{i}{' *' if i == data['best'] else ''}", *point["settings"], point["state"], *point["cells"])
        for i, point in enumerate(data["points"])
    ]
    yield from grid(head, rows, right=set(range(len(data["keys"]) + 3, len(head))))
    if data["best"] >= 0:
        yield "  * the least loss of those that are done"
    for i, point in enumerate(data["points"]):
        if point["error"]:
            yield f"  point {i}: {point['error']}"
    for event in data["events"]:
        yield f"  {duration(event['seconds'])}: {event['text']}"
