"""From a graph to an execution plan: `compile(graph, mode="training")`."""

from gdlab.plan.compiler import compile

__all__ = ["compile"]
