"""The tensors of a public checkpoint as a graph's parameters want them.

    weights = gd.models.checkpoint_weights(graph, gd.load_safetensors("resnet18.safetensors"))
    for name, values in weights.items():
        session.set_parameter(name, values)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdlab.base.errors import ShapeError, unknown_name
from gdlab.base.types import Array
from gdlab.graph import Graph

WHERE = "checkpoint_weights"
BATCH_NORM_EPS = 1e-5  # torchvision's


def checkpoint_weights(graph: Graph, tensors: Mapping[str, Any]) -> dict[str, Array]:
    """A value for every parameter of the graph, by name; tensors that it does not have are left out.

    Matrices that the graph multiplies by from the right are [out, in] in checkpoints and are transposed. Where
    `name.running_mean` and `name.running_var` exist, they are folded into `name.weight` and `name.bias`. A missing
    tensor raises `UnknownNameError`, one of another shape `ShapeError`.
    """
    turned = {graph.node(n.inputs[1]).name for n in graph if n.op == "matmul" and not graph.node(n.inputs[1]).inputs}
    found: dict[str, Array] = {}
    for node in graph.parameters:
        name, shape = node.name, node.type.shape
        if name not in tensors:
            raise unknown_name(WHERE, "tensor", name, tensors)
        data = _folded(name, tensors)
        data = data.T if name in turned and data.ndim == 2 else data
        if data.shape != shape:
            given = f"{list(np.shape(tensors[name]))}{' to transpose' if name in turned else ''}"
            raise ShapeError(WHERE, f"tensor {name!r}", given, f"what gives {list(shape)}")
        found[name] = np.ascontiguousarray(data, np.float32)
    return found


def _folded(name: str, tensors: Mapping[str, Any]) -> Array:
    """A tensor; of a batch norm with the running statistics in it."""
    layer, _, part = name.rpartition(".")
    data = np.asarray(tensors[name])
    if f"{layer}.running_var" not in tensors or part not in ("weight", "bias"):
        return data
    spread = np.asarray(tensors[f"{layer}.running_var"], np.float64)
    factor = np.asarray(tensors[f"{layer}.weight"], np.float64) / np.sqrt(spread + BATCH_NORM_EPS)
    if part == "weight":
        return np.asarray(factor)
    return np.asarray(data - np.asarray(tensors[f"{layer}.running_mean"], np.float64) * factor)
