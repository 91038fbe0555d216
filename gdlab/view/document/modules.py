"""The modules of a network, read off the dotted names of its parameters: `layers.0.up.weight` lies in `layers.0.up`.

What a library wrote (`gdlab.nn`, `gdlab.models`, a file of a model) has no calls of a person's own to group by, but its
parameters are named by the modules that own them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

from gdlab.graph import Graph
from gdlab.op import REGISTRY

Path = tuple[str, ...]  # "layers", "0", "mlp"

_MOST = 0.75  # of the ops around it: a module that holds more of them says nothing
_LEAST = 3  # ops: a layer with its bias needs no bracket


def module_of(graph: Graph) -> list[Path]:
    """Return the module of every node, () where it lies in none.

    An op lies where the parameters that it reads lie. Any other lies in the module around what it reads last and around
    the next op that reads parameters; what ends a numbered block, as a residual sum does, belongs to the block.
    """
    nodes = graph.nodes
    path: list[Path] = [tuple(node.name.split(".")[:-1]) if node.op == "parameter" else () for node in nodes]
    if not any(path):
        return path
    direct = [_common([path[i] for i in node.inputs if nodes[i].op == "parameter"]) for node in nodes]
    within = {p[:k] for p in {*path, *direct} for k in range(len(p))}  # those that hold another module
    products = Counter(direct[node.id] for node in nodes if REGISTRY[node.op].family == "contraction")
    within |= {p for p, count in products.items() if p and count > 1}  # and networks in themselves, as an expert
    following: list[Path] = [()] * len(path)
    after: Path = ()
    for i in reversed(range(len(path))):
        following[i] = after
        after = _around(direct[i], within) if direct[i] else after
    for node in nodes:
        if not node.inputs:
            continue
        ops = [i for i in node.inputs if nodes[i].inputs]
        before = _around(path[max(ops)], within) if ops else ()
        path[node.id] = direct[node.id] or _between(before, following[node.id], node.op)
    return path


def _around(path: Path, within: set[Path]) -> Path:
    """Return the module of a path that counts as a place: a module of one product alone (`q_proj`) gives its parent."""
    return path if path in within else path[:-1]


def _between(before: Path, after: Path, op: str) -> Path:
    shared = _common([before, after])
    if REGISTRY[op].family != "elementwise":
        return shared
    number = next((k for k in range(len(shared), len(before)) if before[k].isdecimal()), None)
    if number is None and len(shared) < len(before) and before[-1][-1:].isdecimal():
        number = len(before) - 1  # `block0`
    return shared if number is None else before[: number + 1]


def _common(paths: Sequence[Path]) -> Path:
    """Return the longest common prefix; () of none."""
    if len(paths) == 1:
        return paths[0]
    columns = zip(*paths, strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def places(paths: Iterable[Path], ops: Sequence[bool]) -> list[Path]:
    """Return the modules that are groups, outer ones first: a list (`layers`) stands in the names of its blocks
    (`layers.0`), and a module that holds nearly all of the one around it is left out."""
    count: dict[Path, int] = {(): sum(ops)}
    for path, is_op in zip(paths, ops, strict=True):
        for k in range(1, len(path) + 1):
            count[path[:k]] = count.get(path[:k], 0) + is_op
    lists = {p[:-1] for p in count if len(p) > 1 and p[-1].isdecimal() and not p[-2].isdecimal()}
    kept = [p for p, n in count.items() if p and p not in lists and _LEAST <= n <= _MOST * count[_outer(p, lists)]]
    return sorted(kept, key=len)


def _outer(path: Path, lists: set[Path]) -> Path:
    outer = path[:-1]
    while outer in lists:
        outer = outer[:-1]
    return outer
