"""Leave the largest parts of a document out, for an output of a notebook, which is at most 1 MB."""

from __future__ import annotations

from gdlab.view.document.document import Document

NO_GROWTH = (
    "how the e-graph grew is left out of this output, which would be larger than 1 MB with it: "
    'NAME.save("FILE.gdlab.json.gz") writes all of it, and the live view has it'
)
NO_VALUES = (
    "the values of tensors are left out of this output, which would be larger than 1 MB with them: "
    'NAME.save("FILE.gdlab.json.gz") writes them, and the live view has them'
)


def without_growth(document: Document) -> Document:
    """The document without its deltas, and a note that says so; the same document where it has none."""
    if all(one.get("deltas") is None for one in document.data["passes"]):
        return document
    bare = [{**one, "deltas": None, "classes": None} if one.get("deltas") else one for one in document.data["passes"]]
    return document.changed(passes=bare).with_notes(NO_GROWTH)


def without_values(document: Document) -> Document:
    """The document without the values of its runs, and a note that says so; the same document where it has none."""
    if not any(run.get("values") for run in document.data["runs"]):
        return document
    bare = [{**run, "values": []} for run in document.data["runs"]]
    return document.changed(runs=bare).with_notes(NO_VALUES)
