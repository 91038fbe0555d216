"""Runs over engines as text: the reduction among the dispatches of a plan, and a row per engine of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import cell, grid, nbytes, plural
from gdlab.distributed.run_record import NUMBERS
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.engine_runs import predicted_seconds


def allreduce_row(made: Json, timed: bool) -> tuple[str, ...]:
    """Return the reduction as a row of the table of dispatches; with its times where the others have theirs."""
    label = f"allreduce over {plural(made['engines'], 'engine')}"
    row = "allreduce", "–", "reduce", label, "–", "–", "gradients", "gradients", "–", nbytes(made["nbytes"])
    if not timed:
        return row
    predicted, measured = predicted_seconds(made), made["measured_seconds"]
    seconds = "–" if measured is None else cell(measured * 1e6)
    return *row, seconds, cell(predicted * 1e6), "between engines"


def allreduce_lines(document: Document) -> Iterator[str]:
    """Yield what is known of the reduction: bytes, predicted and measured time, and what the prediction is made of."""
    made = document.data.get("allreduce")
    if not made:
        return
    over, predicted = made["told"].split("\n") if made["told"] else (made["label"], "")
    yield f"  allreduce: {over}"
    if predicted:
        yield f"  {predicted}"


def engine_lines(run: Json) -> Iterator[str]:
    """Yield the table of a run's engines, who is late, and the engines that were lost."""
    data = run.get("engines")
    if not data:
        return
    yield f"  on {data['fact']}"
    rows = [(*row["cells"],) for row in data["rows"]]
    yield from grid(data["head"][:-1], rows, right=NUMBERS)
    yield from (f"  {text}" for text in data["lost"])
