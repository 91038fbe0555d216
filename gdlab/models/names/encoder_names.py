"""The common parts of the tables of encoders: the sources of their parameters, and the checks of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.models.family import WHERE, GraphRequest, Source, Sources

BATCH_NORM = 1e-5  # eps of torch.nn.BatchNorm2d, which no model of these families changes


def sources_of(
    graph: Graph, prefix: str = "", heads: Sequence[str] = (), renamed: Mapping[str, str] | None = None
) -> Sources:
    """Return the tensor of every parameter, which has its name behind the prefix (heads have no prefix). Matrices that
    are multiplied by from the right are [out, in] in the file. `renamed`: ends of names, ours and the file's."""
    turned = {node.inputs[1] for node in graph if node.op == "matmul"}
    found: dict[str, Source] = {}
    for node in graph.parameters:
        ends = [(ours, theirs) for ours, theirs in (renamed or {}).items() if node.name.endswith(ours)]
        name = node.name.removesuffix(ends[0][0]) + ends[0][1] if ends else node.name
        before = "" if node.name.startswith(tuple(heads)) else prefix
        found[node.name] = Source(before + name, transposed=node.id in turned)
    return found


def check_request(request: GraphRequest, length: int, why: str, trainable: bool = True) -> None:
    """Raise for another length than the model's own, and for training without a loss."""
    if request.length != length:
        raise ArgumentError(WHERE, "length", request.length, f"{length}, {why}")
    check_training(request, trainable)


def check_training(request: GraphRequest, trainable: bool) -> None:
    """Raise for training without a loss."""
    if request.mode == "training" and not trainable:
        wanted = "'inference': the model has no head whose loss is the cross entropy of at least two classes"
        raise ArgumentError(WHERE, "mode", "'training'", wanted)
