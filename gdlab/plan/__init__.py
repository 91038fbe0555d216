"""Compile a graph to an execution plan: `compile(graph, mode="training")`."""

from gdlab.plan.compiler import compile
from gdlab.plan.order import ConflictTracker
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Limits, Target

__all__ = ["CompileOptions", "ConflictTracker", "ExecutionPlan", "Limits", "Target", "compile"]
