"""From a graph to an execution plan: `compile(graph, mode="training")`."""

from gdlab.plan.compiler import compile
from gdlab.plan.plan import CompileOptions, ExecutionPlan, Limits, Target

__all__ = ["CompileOptions", "ExecutionPlan", "Limits", "Target", "compile"]
