"""The common parts of the tables of language models: their graph, and the parameters that it has."""

from __future__ import annotations

from typing import cast

from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.models.family import WHERE, Request
from gdlab.models.lm import Mode, TransformerLmConfig, cache_names, transformer_lm

LM_MODES = ("prefill", "decode", "training")


def build_lm(config: TransformerLmConfig, request: Request) -> Graph:
    """Make the graph of a language model: of one sequence."""
    if request.batch != 1:
        raise ArgumentError(WHERE, "batch", request.batch, "1: a language model reads one sequence")
    return transformer_lm(config, request.length, cast(Mode, request.mode))


def parameters(config: TransformerLmConfig) -> list[tuple[str, bool]]:
    """Return the names of the parameters but the caches, and whether it is a matrix that is multiplied by from the
    right: [in, out] here, [out, in] in most files."""
    graph, caches = transformer_lm(config, 1, "decode"), set(cache_names(config))
    turned = {node.inputs[1] for node in graph if node.op == "matmul"}
    return [(node.name, node.id in turned) for node in graph.parameters if node.name not in caches]
