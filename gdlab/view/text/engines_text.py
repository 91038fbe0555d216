"""Runs over engines as text: the reduction among the dispatches of a plan, and a row per engine of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import cell, duration, grid, nbytes, plural
from gdlab.distributed.run_record import HEAD, NUMBERS
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.engine_runs import allreduce_words, predicted_seconds


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
    every = "every step" if made["accumulate"] == 1 else f"every {plural(made['accumulate'], 'step')}"
    yield (
        f"  allreduce: {nbytes(made['nbytes'])} of gradients over {plural(made['engines'], 'engine')}, after "
        f"{every}: {allreduce_words(made)}"
    )
    yield (
        f"  it is predicted by {duration(made['read_seconds'])} to read gradients, {duration(made['ring_seconds'])} in "
        f"a ring (link {made['link']}; latency {made['latency']}), {duration(made['write_seconds'])} to write them"
    )


def engine_lines(run: Json) -> Iterator[str]:
    """Yield the table of a run's engines, who is late, and the engines that were lost."""
    data = run.get("engines")
    if not data:
        return
    yield f"  on {data['fact']}{'; ' if data['late'] else ''}{data['late']}"
    rows = [
        (str(row["engine"]), row["host"], row["device"], *row["cells"], "late" if row["late"] else "")
        for row in data["rows"]
    ]
    yield from grid(HEAD, rows, right=NUMBERS)
    yield from (f"  {text}" for text in data["lost"])
