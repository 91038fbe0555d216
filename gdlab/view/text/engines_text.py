"""Runs over engines as text: the reduction among the dispatches of a plan, and a row per engine of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.base.words import cell, grid, nbytes
from gdlab.distributed.run_record import NUMBERS
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document


def allreduce_rows(made: Json, timed: bool) -> list[tuple[int, tuple[str, ...]]]:
    """Return each bucket of the reduction as a row of the table of dispatches, with the dispatch that it stands before;
    with its times if the others have theirs."""
    found = list[tuple[int, tuple[str, ...]]]()
    for each in made["buckets"]:
        label = each["label"].partition(",")[0]
        row = "allreduce", "–", "reduce", label, "–", "–", "gradients", "gradients", "–", nbytes(each["nbytes"])
        seconds = "–" if each["measured_seconds"] is None else cell(each["measured_seconds"] * 1e6)
        times = (seconds, cell(each["predicted_seconds"] * 1e6), "between engines") if timed else ()
        found.append((each["before"], (*row, *times)))
    return found


def allreduce_lines(document: Document) -> Iterator[str]:
    """Yield lines about the reduction: bytes, predicted and measured time, and the figures behind the prediction."""
    made = document.data.get("allreduce")
    if not made:
        return
    over, _, predicted = made["told"].partition("\n")
    yield f"  allreduce: {over}"
    if predicted:
        yield f"  {predicted}"


def engine_lines(run: Json) -> Iterator[str]:
    """Yield the table of a run's engines, the late ones, and the engines that were lost."""
    data = run.get("engines")
    if not data:
        return
    yield f"  on {data['fact']}"
    rows = [(*row["cells"],) for row in data["rows"]]
    yield from grid(data["head"][:-1], rows, right=NUMBERS)
    yield from (f"  {text}" for text in data["lost"])
