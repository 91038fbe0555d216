"""Whether two graphs are the same: `same_structure(a, b)`."""

from __future__ import annotations

from gdlab.graph import Graph


def same_structure(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same nodes (names included) and outputs, wherever they were written."""
    return a._nodes == b._nodes and a._outputs == b._outputs and a.num_param_grad_outputs == b.num_param_grad_outputs
