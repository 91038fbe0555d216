"""Provenance both ways: links between levels as compressed rows, and all entities linked to a selected one."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gdlab.base.errors import ArgumentError
from gdlab.view.document.columns import Json, Table, ragged

_PARTS = {"line": 1, "node": 2, "edge": 3, "step": 2, "rule": 2, "kernel": 1, "dispatch": 1, "interval": 1, "wgsl": 2}
_ENTITY = re.compile(r"(\w+):(\d+(?:\.\d+)*)")

Ints = npt.NDArray[np.int64]
Way = tuple[str, list[int], list[int]]  # to which level, start, ids


def link(a: str, b: str, pairs: Iterable[tuple[int, int]], count_a: int, count_b: int) -> Json:
    """Return the link between levels a and b with these (a-entity, b-entity) pairs."""
    flat = np.fromiter(chain.from_iterable(pairs), np.int64)
    both = np.sort(flat[::2] * max(1, count_b) + flat[1::2])  # by a, then b
    x, y = np.divmod(both[np.diff(both, prepend=-1) > 0], max(1, count_b))  # each once
    turned = np.argsort(y, kind="stable")
    return {"a": a, "b": b, "out": _rows(x, y, count_a), "back": _rows(y[turned], x[turned], count_b)}


Row = tuple[int, ...]


def link_of_rows(a: str, b: str, out: Sequence[Row], back: Sequence[Row]) -> tuple[Json, str]:
    """Return the link whose rows are known (ascending, each id once, `back` the transpose of `out`), and its canonical
    JSON: cheap to write here, where rows that repeat are one object."""
    made = {"a": a, "b": b, "out": ragged(out), "back": ragged(back)}
    return made, f'{{"a":{json.dumps(a)},"b":{json.dumps(b)},"back":{_text(back)},"out":{_text(out)}}}'


def _text(rows: Sequence[Row]) -> str:
    """Return the canonical JSON of `ragged(rows)`."""
    lengths = list(accumulate(map(len, rows), initial=0))
    texts = {key: ",".join(map(str, row)) for key, row in {id(row): row for row in rows if row}.items()}
    return f'{{"ids":[{",".join([texts[id(row)] for row in rows if row])}],"start":[{",".join(map(str, lengths))}]}}'


def _rows(of: Ints, ids: Ints, count: int) -> Json:
    """Compress the ids that belong to ascending rows."""
    return {"start": np.searchsorted(of, np.arange(count + 1)).tolist(), "ids": ids.tolist()}


# entities ------------------------------------------------------------------------------------------------------------
def parse_entity(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse an entity: `"node:2.31"` is ("node", (2, 31))."""
    match = _ENTITY.fullmatch(text)
    numbers = tuple(int(n) for n in match[2].split(".")) if match else ()
    if match is None or _PARTS.get(match[1]) != len(numbers):
        wanted = "line:L, node:S.N, edge:S.N.P, step:P.K, rule:P.R, kernel:K, dispatch:D, interval:I or wgsl:K.L"
        raise ArgumentError("select", "entity", repr(text), wanted)
    return match[1], numbers


@dataclass(frozen=True, slots=True)
class Levels:
    """The number of entities of each level of a document, and the place where each kernel's lines begin among all WGSL
    lines."""

    counts: dict[str, int]
    wgsl_base: list[int]

    @staticmethod
    def of(data: Mapping[str, Any]) -> Levels:
        """Return the levels of a document."""
        counts = {"line": int(data["lines"]["count"])}
        counts |= {f"node:{s}": int(stage["nodes"]["count"]) for s, stage in enumerate(data["stages"])}
        counts |= {f"step:{p}": int(each["steps"]["count"]) for p, each in enumerate(data["passes"])}
        plan = data.get("plan") or {}
        counts |= {level: int(plan.get(name, {}).get("count", 0)) for level, name in _PLAN_LEVELS}
        wgsl = Table(plan.get("kernels"), "kernels").column("wgsl")
        counts["wgsl"] = sum(text.count("\n") + 1 for text in wgsl)
        return Levels(counts, list(data.get("wgsl_base") or []))

    def name(self, level: str, row: int) -> str:
        """Return the entity that is row `row` of a level."""
        if level == "wgsl":
            kernel = bisect_right(self.wgsl_base, row) - 1
            return f"wgsl:{kernel}.{row - self.wgsl_base[kernel] + 1}"
        return f"{level}.{row}" if ":" in level else f"{level}:{row}"


_PLAN_LEVELS = (("kernel", "kernels"), ("dispatch", "dispatches"), ("interval", "intervals"))


# selecting -----------------------------------------------------------------------------------------------------------
class Provenance:
    """The links of one document, ready to be followed."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data, self.levels = data, Levels.of(data)
        self.down: dict[str, list[Way]] = {}
        self.up: dict[str, list[Way]] = {}
        for each in data["links"]:
            self.down.setdefault(each["a"], []).append((each["b"], each["out"]["start"], each["out"]["ids"]))
            self.up.setdefault(each["b"], []).append((each["a"], each["back"]["start"], each["back"]["ids"]))

    def select(self, entity: str) -> frozenset[str]:
        """Return all entities linked to this one: itself, its origins, its results; with a buffer its readers."""
        kind, at = parse_entity(entity)
        self._check(entity, kind, at)
        if kind in _STANDS:
            others = _STANDS[kind](self, at)
            return frozenset({entity}).union(*(self.select(other) for other in others))
        level, row = self._place(kind, at)
        # Only a dispatch lights its whole kernel; anything above it lights its own WGSL lines through node-wgsl.
        closed = "" if kind == "dispatch" else "kernel"
        lit = {entity}
        for ways, shut in ((self.down, closed), (self.up, "")):
            for reached, rows in reach(ways, [(level, row)], shut).items():
                lit.update(self.levels.name(reached, r) for r in rows)
        if kind == "interval":
            lit.update(f"dispatch:{k}" for k in self.readers(row))
        return frozenset(lit)

    def readers(self, interval: int) -> list[int]:
        """Return the dispatches that read a buffer, in order."""
        reads = Table((self.data.get("plan") or {}).get("dispatches"), "dispatches").column("reads")
        return [k for k, row in enumerate(reads) if interval in row]

    def writers(self, interval: int) -> list[int]:
        """Return the dispatches that write a buffer, in order."""
        return self.behind("interval", "dispatch", interval)

    def behind(self, level: str, to: str, row: int) -> list[int]:
        """Return the entities of level `to` that row `row` of `level` came from, one link up."""
        return [
            i for name, start, ids in self.up.get(level, ()) if name == to for i in ids[start[row] : start[row + 1]]
        ]

    def _place(self, kind: str, at: tuple[int, ...]) -> tuple[str, int]:
        if kind == "wgsl":
            return "wgsl", self.levels.wgsl_base[at[0]] + at[1] - 1
        return (f"{kind}:{at[0]}", at[1]) if len(at) == 2 else (kind, at[0])

    def _check(self, entity: str, kind: str, at: tuple[int, ...]) -> None:
        count, last = self._extent(kind, at)
        if not 0 <= last < count:
            raise ArgumentError("select", "entity", repr(entity), f"an entity of this document; {_range(count)}")

    def _extent(self, kind: str, at: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of entities at the level of this one, and its place among them."""
        counts = self.levels.counts
        if kind == "wgsl":
            texts = Table((self.data.get("plan") or {}).get("kernels"), "kernels").column("wgsl")
            return (texts[at[0]].count("\n") + 1 if at[0] < len(texts) else 0), at[1] - 1
        if kind == "rule":
            passes = self.data["passes"]
            return (len(passes[at[0]]["report"].get("rules", ())) if at[0] < len(passes) else 0), at[1]
        if kind == "edge":
            nodes = self._nodes(at[0])
            return (len(nodes[at[1]]["inputs"]) if at[1] < len(nodes) else 0), at[2]
        return counts.get(self._place(kind, at)[0], 0), at[-1]

    def _nodes(self, stage: int) -> Table:
        stages = self.data["stages"]
        return Table(stages[stage]["nodes"] if stage < len(stages) else None, "nodes")


def _range(count: int) -> str:
    return f"the last number may be 0 … {count - 1}" if count else "it has none of that kind"


def reach(ways: Mapping[str, list[Way]], seeds: Iterable[tuple[str, int]], closed: str = "") -> dict[str, set[int]]:
    """Return all rows, by level, that are reached by `ways` from the seeds, never from level `closed` to WGSL."""
    reached: dict[str, set[int]] = {}
    stack = list(seeds)
    while stack:
        level, row = stack.pop()
        for to, start, ids in ways.get(level, ()):
            if level == closed and to == "wgsl":
                continue
            rows = reached.setdefault(to, set())
            new = [i for i in ids[start[row] : start[row + 1]] if i not in rows]
            rows.update(new)
            stack.extend((to, i) for i in new)
    return reached


def _edge(p: Provenance, at: tuple[int, ...]) -> list[str]:
    stage, reader, port = at
    return [f"node:{stage}.{reader}", f"node:{stage}.{p._nodes(stage)[reader]['inputs'][port]}"]


def _rule(p: Provenance, at: tuple[int, ...]) -> list[str]:
    one = p.data["passes"][at[0]]
    steps = Table(one["steps"], "rewrites").column("rule")
    return [f"step:{at[0]}.{i}" for i, rule in enumerate(steps) if rule == one["report"]["rules"][at[1]]["id"]]


def _kernel(p: Provenance, at: tuple[int, ...]) -> list[str]:
    return [f"dispatch:{d}" for d in p.behind("kernel", "dispatch", at[0])]


def _wgsl(p: Provenance, at: tuple[int, ...]) -> list[str]:
    row = p._place("wgsl", at)[1]
    levels = dict.fromkeys(name for name, _, _ in p.up.get("wgsl", ()) if name.startswith("node:"))
    return [p.levels.name(level, i) for level in levels for i in p.behind("wgsl", level, row)]


# What selecting one of these means selecting, each plus itself.
_STANDS = {"edge": _edge, "rule": _rule, "kernel": _kernel, "wgsl": _wgsl}
