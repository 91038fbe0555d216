"""From a graph to an execution plan: `compile(graph, mode="training")`."""

from gdlab.plan.compiler import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Limits, Target

__all__ = ["CompileOptions", "ExecutionPlan", "Limits", "Target", "compile"]
