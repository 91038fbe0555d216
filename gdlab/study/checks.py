"""Check the graph of a study: values and gradients by hand, the optimizer and devices, one gradient rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gdlab.study.execution import Execution
from gdlab.study.gradcheck import GradientCheck, check_node
from gdlab.study.node_values import NodeValues, node_values
from gdlab.study.parity import Check, CheckProgress, check_execution


class Checks:
    """The checks of the pipeline that an execution runs; `numbers` are the newest values that were asked for."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.numbers: NodeValues | None = None

    def values(self, feed: Any = None) -> NodeValues:
        """Evaluate every node of the graph as written in float64, with its gradient when training."""
        execution, pipeline = self.execution, self.execution.pipeline
        train = pipeline.mode == "training"
        self.numbers = node_values(execution.name, pipeline, execution.feeds(feed), train)
        execution.rev += 1
        return self.numbers

    def parity(
        self, feed: Any = None, devices: Iterable[str] = ("cpu", "wgpu"),
        tell: Callable[[CheckProgress], None] = lambda progress: None,
    ) -> Check:  # fmt: skip
        """Compare the reference of the graph as written with the compiled graph and with each device; `tell` is called
        before each of them."""
        names = (devices,) if isinstance(devices, str) else tuple(devices)  # a text is one name
        return check_execution(self.execution, self.execution.feeds(feed), names, tell)

    def gradient(self, node: Any, optimized: bool = False) -> GradientCheck:
        """Compare the gradient rule of one op with central differences."""
        return check_node(self.execution, node, optimized)
