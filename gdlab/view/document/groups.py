"""Groups of a graph: the calls of a person's own functions that made its nodes, else the modules that own its
parameters; and runs of groups that are alike.

A group is one call (`block(h)`) or module (`layers.0`); three or more in a row of the same structure lie in a `series`.
In a large graph, so do long runs of equal ops.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gdlab.graph import Graph, Location
from gdlab.view.document.columns import Json, words
from gdlab.view.document.modules import Path, module_of, places
from gdlab.view.document.repeats import repeats

_LEAST_NODES, _LEAST_CALLS = 2, 3
_LEAST_STEM = 3  # ops before the first module, and modules: with fewer, a stem says nothing


@dataclass(frozen=True, slots=True)
class Group:
    """One group: its parent comes before it, −1 at the top; `repeat` groups lie in a series, or in a list of modules
    that differ (`layer1`). Of a module, its path."""

    parent: int
    label: str
    kind: Literal["call", "module", "series"]
    repeat: int = 1
    path: str = ""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a stage, and the innermost group of each node (−1: none)."""

    rows: tuple[Group, ...]
    of_node: tuple[int, ...]

    def carried(self, origin: Sequence[int]) -> Groups:
        """Return the groups of a stage that was made from this one; `origin`: the node each came from, −1 for none."""
        return replace(self, of_node=tuple(self.of_node[i] if i >= 0 else -1 for i in origin))

    def short(self, names: Sequence[str]) -> list[str]:
        """Return the names of the nodes, and of their gradients, without the path of the module that they lie in."""
        return [
            _without_path(name, self.rows[g]) if g >= 0 and self.rows[g].path else name
            for name, g in zip(names, self.of_node, strict=True)
        ]

    def paths(self) -> list[str]:
        """Return the path of the module that each node lies in, "" for none."""
        return [self.rows[g].path if g >= 0 else "" for g in self.of_node]

    def table(self) -> Json:
        """Return the table of a document."""
        rows = self.rows
        return {
            "count": len(rows),
            "key": [f"g{i}" for i in range(len(rows))],
            "parent": [g.parent for g in rows],
            "label": words([g.label for g in rows]),
            "kind": words([g.kind for g in rows]),
            "repeat": [g.repeat for g in rows],
        }


def _without_path(name: str, row: Group) -> str:
    of = "∂" * (name[:1] == "∂")
    bare = name.removeprefix(of)
    return of + (row.label if bare == row.path else bare.removeprefix(f"{row.path}."))


@dataclass(slots=True)
class _Candidate:
    """A candidate for a group: a call, by its place, or a module, by its path."""

    parent: int
    label: str
    caller: Location | None = None
    path: Path = ()
    nodes: list[int] = field(default_factory=list)  # of this part and of those inside it


@dataclass(slots=True)
class _CallGroup(_Candidate):
    """A call while its nodes are collected; `first` and `last` are the places inside it that made a node."""

    first: Location | None = None
    last: Location | None = None


def groups_of(graph: Graph) -> Groups:
    """Return the groups of a written graph: calls, and where there are none, modules; in them, runs of equal ops."""
    return _with_repeats(graph, _calls_or_modules(graph))


def _calls_or_modules(graph: Graph) -> Groups:
    ops = {node.id for node in graph if node.inputs}
    for found in (_calls, _modules):
        parts, inner = found(graph)
        kept = [k for k, part in enumerate(parts) if _counts(part, ops)]
        if kept:
            return _with_stem(_numbered(graph, parts, kept, inner), ops)
    return Groups((), (-1,) * len(graph))


def _counts(part: _Candidate, ops: set[int]) -> bool:
    """Return whether a part groups anything: it has several ops, and is not the whole graph."""
    return _LEAST_NODES <= len(ops.intersection(part.nodes)) < len(ops)


def _modules(graph: Graph) -> tuple[Sequence[_Candidate], list[int]]:
    """Return every module in the order of its first node, outer ones first, and the innermost one of each node."""
    paths = module_of(graph)
    wanted = set(places(paths, [bool(node.inputs) for node in graph]))
    parts: list[_Candidate] = []
    number: dict[Path, int] = {}
    around: dict[Path, tuple[int, ...]] = {}  # the parts that a path lies in, outer ones first
    for node, path in zip(graph, paths, strict=True):
        if path not in around:
            within = [path[:k] for k in range(1, len(path) + 1) if path[:k] in wanted]
            for outer, place in zip([(), *within], within, strict=False):
                if place not in number:
                    number[place] = len(parts)
                    parts.append(_Candidate(number.get(outer, -1), _called(place, len(outer)), path=place))
            around[path] = tuple(number[place] for place in within)
        for k in around[path]:
            parts[k].nodes.append(node.id)
    return parts, [around[path][-1] if around[path] else -1 for path in paths]


def _called(path: Path, skip: int) -> str:
    """Return the last word of a module's path; of a numbered one with the list that it stands in."""
    words = path[skip:]
    return ".".join(words[-2:] if words[-1].isdecimal() else words[-1:])


def _calls(graph: Graph) -> tuple[Sequence[_Candidate], list[int]]:
    """Return every call in the order of its first node, and the innermost call of each node."""
    calls: list[_CallGroup] = []
    inner: list[int] = []
    path: list[int] = []  # the calls that the last node lay in, outermost first
    for node, chain in zip(graph, _chains(graph), strict=True):
        now: list[int] = []
        parent = -1
        for caller, at in zip(chain, chain[1:], strict=False):
            depth = len(now)
            known = path[depth] if depth < len(path) else -1
            if known < 0 or not _goes_on(calls[known], parent, caller, at):
                known = len(calls)
                calls.append(_CallGroup(parent, at.function, caller, first=at, last=at))
                path = path[:depth]
            calls[known].last = at
            calls[known].nodes.append(node.id)
            now.append(known)
            parent = known
        path = now
        inner.append(parent)
    return calls, inner


def _chains(graph: Graph) -> list[list[Location]]:
    """Return the places that lead to each node, outermost first, from the innermost function that all of them lie in;
    callers around it (a cell's module, a test runner) say nothing about the graph."""
    found = [[at for at in chain if at.function == "<module>" or at.function[0] != "<"] for chain in graph.sources()]
    # id(): the nodes of one call share its places
    named = {id(at): (at.file, at.function) for chain in found for at in chain}
    common = set.intersection(*({named[id(at)] for at in chain} for chain in found if chain)) if named else set()
    cut = []
    for chain in found:
        base = next((k for k, at in enumerate(chain) if named[id(at)] in common), len(chain) - 1)
        cut.append(chain[base::-1] if chain else [])
    return cut


def _goes_on(call: _CallGroup, parent: int, caller: Location, at: Location) -> bool:
    """Return whether a node at this place belongs to the call: one that is back at its first place is the next call."""
    if call.parent != parent or (call.caller is not caller and call.caller != caller):
        return False
    return (at is not call.first and at != call.first) or call.last == call.first


def _numbered(graph: Graph, calls: Sequence[_Candidate], kept: Sequence[int], inner: Sequence[int]) -> Groups:
    """Number the calls that are kept, parents first, with a series before each run of parts that are alike."""
    number: dict[int, int] = {}
    series: dict[int, int] = {}
    rows: list[Group] = []
    keep = set(kept)
    alike = _runs(graph, calls, kept, keep)
    runs = {**_lists(calls, kept, keep), **alike}
    for k in kept:
        parent = number.get(_above(calls, calls[k].parent, keep), -1)
        if k in runs:
            if runs[k][0] == k:
                kind: Literal["series", "module"] = "series" if k in alike else "module"
                rows.append(Group(parent, _list_of(calls[k]), kind, len(runs[k])))
                series.update(dict.fromkeys(runs[k], len(rows) - 1))
            parent = series[k]
        number[k] = len(rows)
        path = ".".join(calls[k].path)
        rows.append(Group(parent, calls[k].label, "module" if path else "call", path=path))
    return Groups(tuple(rows), tuple(number.get(_above(calls, k, keep), -1) for k in inner))


def _lists(calls: Sequence[_Candidate], kept: Sequence[int], keep: set[int]) -> dict[int, list[int]]:
    """Return for each numbered module of a list (`layer1.0`, `layer1.1`): the modules of the list."""
    found: dict[tuple[int, Path], list[int]] = {}
    for k in kept:
        if len(calls[k].path) > 1 and calls[k].path[-1].isdecimal():
            found.setdefault((_above(calls, calls[k].parent, keep), calls[k].path[:-1]), []).append(k)
    return {k: members for members in found.values() if len(members) > 1 for k in members}


def _with_stem(groups: Groups, ops: set[int]) -> Groups:
    """Add a group of the ops before the first module, where there are several of both."""
    modules = [row for row in groups.rows if row.parent < 0 and row.kind != "call"]
    first = min((i for i in ops if groups.of_node[i] >= 0), default=0)
    stem = {i for i in ops if i < first}
    if len(stem) < _LEAST_STEM or len(modules) < _LEAST_STEM:
        return groups
    rows = (*groups.rows, Group(-1, "stem", "module"))
    return Groups(rows, tuple(len(rows) - 1 if i in stem else g for i, g in enumerate(groups.of_node)))


def _with_repeats(graph: Graph, groups: Groups) -> Groups:
    """Add a series for each long run of equal ops: `tanh ×1500`."""
    rows, of_node = list(groups.rows), list(groups.of_node)
    for parent, run in repeats(graph, groups.of_node):
        for i in run.nodes:
            of_node[i] = len(rows)
        rows.append(Group(parent, run.label, "series", run.count))
    return Groups(tuple(rows), tuple(of_node))


def _list_of(part: _Candidate) -> str:
    """Return the name of a run: of numbered modules, the list that they stand in; of `expert0` …, `expert`."""
    if not part.path:
        return part.label
    number = part.path[-1]
    return part.path[-2] if number.isdecimal() and len(part.path) > 1 else number.rstrip("0123456789") or number


def _above(calls: Sequence[_Candidate], k: int, keep: set[int]) -> int:
    """Return the nearest call from k outwards that is kept, or −1."""
    while k >= 0 and k not in keep:
        k = calls[k].parent
    return k


def _runs(graph: Graph, calls: Sequence[_Candidate], kept: Sequence[int], keep: set[int]) -> dict[int, list[int]]:
    """Return for each call that lies in a run of at least three that are alike: the run."""
    found: dict[int, list[int]] = {}
    run: list[int] = []
    before: Hashable = None
    for k in [*kept, -1]:
        if k >= 0 and run and _inside(calls, k, run[-1]):
            continue
        like = (_above(calls, calls[k].parent, keep), calls[k].caller, _structure(graph, calls[k])) if k >= 0 else None
        if like != before:
            if len(run) >= _LEAST_CALLS:
                found.update(dict.fromkeys(run, run))
            run, before = [], like
        run.append(k)
    return found


def _inside(calls: Sequence[_Candidate], k: int, outer: int) -> bool:
    while k >= 0 and k != outer:
        k = calls[k].parent
    return k == outer


def _structure(graph: Graph, call: _Candidate) -> Hashable:
    """Return a key of the ops, types, attributes and edges inside a call; operands from outside count only by their
    port."""
    place = {id: i for i, id in enumerate(call.nodes)}
    return tuple(
        (node.op, node.type, node.inputs and node.attrs, tuple(place.get(i, -1) for i in node.inputs))
        for node in (graph.node(id) for id in call.nodes)
    )
