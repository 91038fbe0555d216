"""What tensors held: the `values` of a run in a document, the rule that they keep, and their text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gdlab.base.statistics import BINS, SIDE, Summary
from gdlab.view.document.links import Levels, parse_entity

if TYPE_CHECKING:  # which holds documents to this rule
    from gdlab.view.document.document import Document

TOO_LARGE = (
    "the values of tensors are left out of this output, which would be larger than 1 MB with them: "
    'NAME.save("FILE.gdlab.json.gz") writes them, and the live view has them'
)


def value_faults(data: Mapping[str, Any]) -> Iterator[str]:
    """Runs: a value is about a node or an interval of the document, its parts add up to its elements, its thumbnail has
    its size."""
    counts = Levels.of(data).counts
    for run in data["runs"]:
        for value in run.get("values") or ():
            kind, at = parse_entity(value["about"])
            level = f"node:{at[0]}" if kind == "node" else kind
            if at[-1] >= counts.get(level, 0):
                yield f"{value['about']}: a value of {run['key']} is about what is not there"
            if sum(value["histogram"]["counts"]) + value["nan"] + value["inf"] != value["n"]:
                yield f"{value['about']}: the histogram of a value does not add up to its {value['n']} elements"
            if not _sound(value["thumbnail"], len(value["histogram"]["counts"])):
                yield f"{value['about']}: the thumbnail or histogram of a value has another size than it says"


def _sound(small: Mapping[str, Any], bins: int) -> bool:
    try:
        size = len(base64.b64decode(small["data"], validate=True))
    except (binascii.Error, ValueError):
        return False
    return bins == BINS and size == small["rows"] * small["cols"] and max(small["rows"], small["cols"]) <= SIDE


def value_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """The values of a run in numbers, bars and characters; each line begins with what it is about."""
    for value in run.get("values") or ():
        summary, about = Summary.from_json(value), value["about"]
        plane = f", slice {value['slice']}" if value["slice"] else ""
        yield f"{about} {value['name']} : {value['type']}, {value['place']}{plane}"
        yield from (f"{about}   {line}" for line in (*summary.lines(), *summary.picture()))


def without_values(document: Document) -> Document:
    """The document without the values of its runs, and a note that says so; the same document where it has none."""
    if not any(run.get("values") for run in document.data["runs"]):
        return document
    bare = [{**run, "values": []} for run in document.data["runs"]]
    return document.changed(runs=bare).with_notes(TOO_LARGE)
