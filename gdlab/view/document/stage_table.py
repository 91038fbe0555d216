"""One stage of a document: a graph as the table of its nodes, with lanes, fates, costs and a layout."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdlab.base.types import TensorType
from gdlab.graph import AttrVar, ConstantData, Graph, shown_names
from gdlab.op import REGISTRY, cost, ops_that
from gdlab.op.storage import trained_parameters
from gdlab.session.stages import Role
from gdlab.view.document.columns import Json, ragged, ragged_words, sparse, words
from gdlab.view.document.groups import Groups
from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.layered import auto

LAID_OUT = 300  # nodes: a larger stage is laid out where it is first shown, in the page or by `picture`
Fates = dict[int, Json]


@dataclass(slots=True)
class Stage:
    """A graph on its way through the passes. `lane` and `twin` run over its nodes; `loss`: output 0 is the loss."""

    key: str
    role: Role
    title: str
    parent: int
    graph: Graph
    keys: list[str]
    lane: list[str]
    twin: list[int]
    loss: bool
    fates: Fates = field(default_factory=dict)
    groups: Groups | None = None
    names: list[str] = field(default_factory=list)  # each of one node; a tensor has one name in all stages

    def __post_init__(self) -> None:
        self.names = self.names or shown_names(self.graph)

    @staticmethod
    def forward(key: str, role: Role, title: str, parent: int, graph: Graph, keys: list[str], loss: bool) -> Stage:
        """Return a stage that holds no derivative."""
        return Stage(key, role, title, parent, graph, keys, ["forward"] * len(graph), [-1] * len(graph), loss)


@dataclass(frozen=True, slots=True)
class AttributeTexts:
    """The attributes of a node in the two ways that a document needs: as JSON, and as text that is equal only where
    they are equal bit by bit (of a constant its digest)."""

    json: Json
    text: str


@dataclass(slots=True)
class SharedTables:
    """The tables that all stages of a document share: the rows of `types`, attributes, and the costs of each kind of
    node.

    Types and attributes are known by `id()`: passes hand the objects on, and the graphs of the stages keep them alive.
    """

    types: dict[TensorType, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    attrs: dict[int, AttributeTexts] = field(default_factory=dict)
    work: dict[Hashable, tuple[int, int, float]] = field(default_factory=dict)
    hashes: dict[Hashable, str] = field(default_factory=dict)

    def types_of(self, graph: Graph) -> list[int]:
        """Return the row of every node's type."""
        for key, type in {id(node.type): node.type for node in graph}.items():
            if key not in self.rows:
                self.rows[key] = self.types.setdefault(type, len(self.types))
        return [self.rows[id(node.type)] for node in graph]

    def attrs_of(self, graph: Graph) -> list[AttributeTexts]:
        """Return the attributes of every node."""
        for key, attrs in {id(node.attrs): node.attrs for node in graph}.items():
            if key not in self.attrs:
                text = repr([(k, v.digest if isinstance(v, ConstantData) else v) for k, v in attrs])
                self.attrs[key] = AttributeTexts({k: attr_json(v) for k, v in attrs}, text)
        return [self.attrs[id(node.attrs)] for node in graph]

    def costs(
        self, graph: Graph, types: Sequence[int], attrs: Sequence[AttributeTexts]
    ) -> list[tuple[int, int, float]]:
        """Return (flops, bytes moved, seconds) of every node, whose type is a row of `types`: nodes of one op,
        attributes and types cost the same."""
        kinds = [
            (node.op, own.text, type, *[types[i] for i in node.inputs])
            for node, own, type in zip(graph, attrs, types, strict=True)
        ]
        for kind, node in dict(zip(kinds, graph, strict=True)).items():
            if kind not in self.work:
                self.work[kind] = cost.flops(node, graph), cost.bytes_moved(node, graph), cost.seconds(node, graph)
        return [self.work[kind] for kind in kinds]

    def table(self) -> Json:
        """Return the table of types."""
        listed = list(self.types)
        return {
            "count": len(listed),
            "text": [str(t) for t in listed],
            "shape": ragged([t.shape for t in listed]),
            "dtype": words([str(t.dtype) for t in listed]),
            "nbytes": [t.size_bytes for t in listed],
        }


def stage_json(stage: Stage, shared: SharedTables, layouts: dict[str, Json]) -> Json:
    """Return the stage as a document holds it; `layouts` keeps the layout by stage key, for the next document of the
    study."""
    graph = stage.graph
    if stage.key not in layouts and len(graph) <= LAID_OUT:
        layouts[stage.key] = auto(drawn(stage)).to_json()
    return {
        "key": stage.key,
        "role": stage.role,
        "title": stage.title,
        "parent": stage.parent,
        "nodes": _nodes(stage, shared),
        "outputs": _outputs(graph),
        "groups": stage.groups.table() if stage.groups else {"count": 0},
        "layouts": {"auto": layouts[stage.key]} if stage.key in layouts else {},
    }


def drawn(stage: Stage) -> list[Drawn]:
    """Return the nodes as a layout takes them."""
    names = labels(stage)
    return [
        Drawn(node.op, names[i], str(node.type), node.inputs, not node.inputs, stage.lane[i], stage.twin[i])
        for i, node in enumerate(stage.graph)
    ]


def carried_names(before: Stage, images: Sequence[tuple[int, int]], graph: Graph) -> list[str]:
    """Return the names after a pass: a node that kept the name of one of its origins is named as that origin is now."""
    names, old = [node.name for node in graph], before.graph
    told: dict[int, str] = {}
    for source, new in images:
        if names[new] and names[new] == old.node(source).name:
            told.setdefault(new, before.names[source])
    return [told.get(i, name) for i, name in enumerate(names)]


def labels(stage: Stage) -> list[str]:
    """Return the names on boxes and pills: without the path of the module around them."""
    return stage.groups.short(stage.names) if stage.groups else stage.names


def _nodes(stage: Stage, shared: SharedTables) -> Json:
    graph = stage.graph
    names, drawn_as = stage.names, labels(stage)
    families = {op: family(op) for op in {node.op for node in graph}}
    types, attrs = shared.types_of(graph), shared.attrs_of(graph)
    work = shared.costs(graph, types, attrs)
    return {
        "count": len(graph),
        "key": list(stage.keys),
        "hash": hashes(graph, types, attrs, shared.hashes),
        "op": words([node.op for node in graph]),
        "family": words([families[node.op] for node in graph]),
        "name": sparse(names, ""),
        "label": sparse([label if label != name else "" for name, label in zip(names, drawn_as, strict=True)], ""),
        "type": types,
        "inputs": ragged([node.inputs for node in graph]),
        "after": {},
        "attrs": {str(i): own.json for i, own in enumerate(attrs) if own.json},
        "lane": words(stage.lane),
        "twin": sparse(stage.twin, -1),
        "group": sparse(stage.groups.of_node, -1) if stage.groups and stage.groups.rows else {},
        "flags": ragged_words(flags(stage)),
        "fate": {str(i): fate for i, fate in sorted(stage.fates.items())},
        "flops": [f for f, _, _ in work],
        "bytes_moved": [b for _, b, _ in work],
        "cost_seconds": [s for _, _, s in work],
    }


def family(op: str) -> str:
    """Return the family of an op; of one that is not registered (any more), the plainest."""
    record = REGISTRY.get(op)
    return record.family if record is not None else "elementwise"


def flags(stage: Stage) -> list[list[str]]:
    """Return the flags of each node, in words."""
    graph = stage.graph
    found: list[list[str]] = [[] for _ in graph]
    saved = bytearray(len(graph))
    for node in graph:
        if stage.lane[node.id].startswith("adjoint"):
            for i in node.inputs:
                saved[i] = stage.lane[i].startswith("forward")
    outputs = set(graph.output_ids[: graph.num_user_outputs])
    gradients = set(graph.output_ids[graph.num_user_outputs :])
    loss = graph.output_ids[0] if stage.loss and graph.output_ids else -1
    of_op: dict[str, list[str]] = {}
    not_saved = ops_that(lambda op: not op.saved, graph)
    for node, mine in zip(graph, found, strict=True):
        i = node.id
        if i in outputs:
            mine.append("output")
        if i == loss:
            mine.append("loss")
        if i in gradients:
            mine.append("gradient")
        if saved[i] and node.op not in not_saved:
            mine.append("saved")
        if not node.inputs:
            mine.append("leaf")
        if node.op not in of_op:
            of_op[node.op] = _flags_of(node.op)
        mine += of_op[node.op]
    return found


def _flags_of(op: str) -> list[str]:
    """Return the flags that every node of an op has."""
    record = REGISTRY.get(op)
    return ["fused"] * (record is not None and bool(record.label)) + ["parameter"] * (op == "parameter")


def _outputs(graph: Graph) -> Json:
    ids, users, stored = graph.output_ids, graph.num_user_outputs, trained_parameters(graph)
    gradients = len(ids) - users
    of = [name for _, name in stored] if gradients == len(stored) else [""] * gradients
    return {
        "count": len(ids),
        "node": list(ids),
        "name": list(graph.output_names),
        "kind": words(["user"] * users + ["gradient"] * gradients),
        "of": [""] * users + of,
    }


# attributes and hashes -----------------------------------------------------------------------------------------------
def attr_json(value: Any) -> Any:
    """Return one attribute as canonical JSON; a float in the fewest digits that give the same f32."""
    match value:
        case ConstantData():
            return {"constant": value.digest, "text": repr(value)}
        case AttrVar():
            return f"${value.name}"
        case bool() | int() | str() | None:
            return value
        case float():
            return float(str(np.float32(value)))
        case _:
            return [attr_json(v) for v in value]


def hashes(
    graph: Graph, types: Sequence[int], attrs: Sequence[AttributeTexts], known: dict[Hashable, str]
) -> list[str]:
    """Return hashes that are equal for nodes of two documents that compute the same: op, attributes, type, hashes of
    the inputs, leaf name.

    `types` are rows of the types of the document; `known` holds what was worked out before: most nodes of a stage are
    in the one before, too.
    """
    found: list[str] = []
    for node, type, own in zip(graph, types, attrs, strict=True):
        inputs = [found[i] for i in node.inputs]
        name = "" if inputs else node.name
        kind = node.op, own.text, type, name, *inputs
        made = known.get(kind)
        if made is None:
            text = f"({node.op!r}, {kind[1]}, {node.type!r}, {inputs!r}, {name!r})"
            made = known[kind] = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest()
        found.append(made)
    return found


# lanes of what passes made -------------------------------------------------------------------------------------------
def derivative_lanes(nodes: int, forward: int, adjoint_of: Mapping[int, int]) -> tuple[list[str], list[int]]:
    """Return lane and twin of every node of a differentiated graph whose first `forward` nodes are the forward pass."""
    lane = ["forward"] * forward + ["adjoint"] * (nodes - forward)
    return lane, [-1] * forward + [adjoint_of.get(i, -1) for i in range(forward, nodes)]


def carried_lanes(before: Stage, origin: Mapping[int, Sequence[int]], nodes: int) -> tuple[list[str], list[int]]:
    """Return lane and twin after a rewrite: those of the replaced node (the first origin), with the twins' new numbers.
    """
    image: dict[int, int] = {}
    for new in range(nodes):
        for old in origin.get(new, ()):
            image.setdefault(old, new)
    lane, twin = [], []
    for new in range(nodes):
        came = origin.get(new, ())
        lane.append(before.lane[came[0]] if came else "forward")
        twins = [image.get(before.twin[o], -1) for o in came if before.twin[o] >= 0 and lane[new] != "forward"]
        twin.append(next((t for t in twins if t >= 0), -1))
    return lane, twin
