"""Leave the largest parts of a document out, for an output of a notebook, which is at most 1 MB."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document, document_id
from gdlab.view.document.links import link

NO_GROWTH = (
    "how the e-graph grew is left out of this output, which would be larger than 1 MB with it: "
    'NAME.save("FILE.gdlab.json.gz") writes all of it, and the live view has it'
)
NO_VALUES = (
    "the values of tensors are left out of this output, which would be larger than 1 MB with them: "
    'NAME.save("FILE.gdlab.json.gz") writes them, and the live view has them'
)
NO_STAGES = (
    "all stages but those shown are left out of this output, which would be larger than 1 MB with them: "
    'NAME.save("FILE.gdlab.json.gz") writes all of them, and the live view has them'
)
PICTURE_ALONE = (
    "all but the picture is left out of this output, which would be larger than 1 MB with the graph: "
    'NAME.save("FILE.gdlab.json.gz") writes all of it, and the live view has it'
)


def without_growth(document: Document) -> Document:
    """Return the document without its deltas, and a note that says so; the same document where it has none."""
    if all(one.get("deltas") is None for one in document.data["passes"]):
        return document
    bare = [{**one, "deltas": None, "classes": None} if one.get("deltas") else one for one in document.data["passes"]]
    return document.changed(passes=bare).with_notes(NO_GROWTH)


def without_values(document: Document) -> Document:
    """Return the document without the values of its runs, and a note that says so; the same document where it has none.
    """
    if not any(run.get("values") for run in document.data["runs"]):
        return document
    bare = [{**run, "values": []} for run in document.data["runs"]]
    return document.changed(runs=bare).with_notes(NO_VALUES)


def without_other_stages(document: Document, shown: Sequence[int]) -> Document:
    """Return the document with these stages alone, the plan only if its stage is among them, and a note that says so;
    the same document where it has no other. Links go across what is left out; its id is another, so that a page with a
    kernel asks for the whole document."""
    data, kept = document.data, sorted(set(shown))
    if len(kept) == len(data["stages"]):
        return document
    parents = [int(stage["parent"]) for stage in data["stages"]]
    place = {old: new for new, old in enumerate(kept)}
    stages = [{**data["stages"][s], "parent": place.get(_kept_ancestor(parents, s, place), -1)} for s in kept]
    plan = data["plan"] if data["plan"] and data["plan"]["stage"] in place else None
    ends = {*place, *((-1,) if plan else ())}  # -1: the pass that compiles
    passes = [p for p, one in enumerate(data["passes"]) if one["from"] in place and one["to"] in ends]
    names = {f"node:{old}": f"node:{new}" for old, new in place.items()}
    names |= {f"step:{old}": f"step:{new}" for new, old in enumerate(passes)}
    names |= {level: level for level in ("line", *(("kernel", "dispatch", "interval", "wgsl") if plan else ()))}
    renamed = _Renaming(names)
    links = [*data["links"], *_links_across(data, parents, kept)]
    made: Json = {
        **{key: value for key, value in data.items() if key not in ("variants", "rev")},
        "stages": stages,
        "passes": [
            {**renamed.about(data["passes"][p]), "from": place[data["passes"][p]["from"]],
             "to": place.get(data["passes"][p]["to"], -1)}
            for p in passes
        ],
        "plan": plan and {**plan, "stage": place[plan["stage"]]},
        "links": [
            {**each, "a": names[each["a"]], "b": names[each["b"]]}
            for each in links if each["a"] in names and each["b"] in names
        ],
        "wgsl_base": data["wgsl_base"] if plan else [],
        "overlays": [{**o, "stage": place[o["stage"]]} for o in data["overlays"] if o["stage"] in place],
        "runs": [renamed.about(run) for run in data["runs"]],
        "notes": [renamed.about(note) for note in data["notes"]],
        "view": _open_view(data["view"], renamed),
    }  # fmt: skip
    made["id"] = document_id(made)
    return document.replaced(made).with_notes(NO_STAGES)


def _kept_ancestor(parents: Sequence[int], stage: int, kept: Collection[int]) -> int:
    """Return the nearest stage before this one that is kept; −1 if none is."""
    at = parents[stage]
    while at >= 0 and at not in kept:
        at = parents[at]
    return at


def _links_across(data: Json, parents: Sequence[int], kept: Sequence[int]) -> Iterator[Json]:
    """Return the links from the kept ancestor of each kept stage to it, across the stages between them."""
    known = {(each["a"], each["b"]): each for each in data["links"]}
    counts = [int(stage["nodes"]["count"]) for stage in data["stages"]]
    for stage in kept:
        ancestor = _kept_ancestor(parents, stage, kept)
        start = "line" if ancestor < 0 else f"node:{ancestor}"
        if (start, f"node:{stage}") in known:
            continue
        way = [stage]
        while parents[way[-1]] > max(ancestor, -1):
            way.append(parents[way[-1]])
        levels = [start, *(f"node:{s}" for s in reversed(way))]
        steps = [known.get(ends) for ends in pairwise(levels)]
        if None in steps:
            continue
        rows = _rows(steps[0]) if steps[0] else []
        for step in steps[1:]:
            onward = _rows(step) if step else []
            rows = [sorted({j for i in row for j in onward[i]}) for row in rows]
        pairs = ((i, j) for i, row in enumerate(rows) for j in row)
        yield link(start, f"node:{stage}", pairs, len(rows), counts[stage])


def _rows(each: Json) -> list[list[int]]:
    start, ids = each["out"]["start"], each["out"]["ids"]
    return [ids[a:b] for a, b in pairwise(start)]


@dataclass(frozen=True, slots=True)
class _Renaming:
    """The levels that stay, each with its new name."""

    levels: dict[str, str]

    def entity(self, name: str) -> str | None:
        """Return the new name of an entity; None if it was left out."""
        kind, _, numbers = name.partition(":")
        first, _, rest = numbers.partition(".")
        if kind in ("node", "edge", "step", "rule"):
            level = self.levels.get(f"{'node' if kind in ('node', 'edge') else 'step'}:{first}")
            return level and f"{kind}:{level.partition(':')[2]}.{rest}"
        return name if kind in self.levels else None

    def about(self, record: Any) -> Any:
        """Return a record with every `about` inside it renamed."""
        if isinstance(record, list):
            return [self.about(each) if isinstance(each, (dict, list)) else each for each in record]
        if not isinstance(record, dict):
            return record
        return {
            key: (value and self.entity(value)) if key == "about"
            else self.about(value) if isinstance(value, (dict, list)) else value
            for key, value in record.items()
        }  # fmt: skip


def _open_view(view: Json | None, renamed: _Renaming) -> Json | None:
    """Return the open panes and the selection, without what was left out; `diff` names stages by number."""
    if view is None:
        return None
    found = {key: value for key, value in view.items() if key not in ("select", "diff")}
    selected = renamed.entity(view["select"]) if view.get("select") else None
    diff = [renamed.levels.get(f"node:{s}") for s in view.get("diff") or ()]
    if selected:
        found["select"] = selected
    if diff and None not in diff:
        found["diff"] = [int(level.partition(":")[2]) for level in diff if level]
    return found
