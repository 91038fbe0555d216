"""Plans for the tests: a small training graph made by hand, and how a plan is run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.devices.base import Device, Program
from gdlab.graph import Graph, Value
from gdlab.plan import compile
from gdlab.plan.dispatch import SCALARS
from gdlab.plan.records import ExecutionPlan, PlanMode
from gdlab.plan.target import CompileOptions

Array = np.ndarray[Any, Any]
DEFAULT = CompileOptions()


def regression(batch: int = 6, width: int = 5) -> Graph:
    """loss = mean((relu(x·w + b) − y)²), with its gradients written out by hand."""
    with Graph() as g:
        x, y = ops.input("x", (batch, width)), ops.input("y", (batch, 3))
        w, b = ops.parameter("w", (width, 3)), ops.parameter("b", (3,))
        h = ops.relu(ops.bias_add(x @ w, b)).named("h")
        loss = ops.mse_loss(h, y).named("loss")
        d = ops.where(ops.greater(h, 0.0), ops.scale(h - y, 2.0 / (3 * batch)), 0.0)
        g.set_outputs([loss, ops.matmul_at(x, d), ops.sum_rows(d)])
        g.set_output_ids(zip(g.output_ids, g.output_names, strict=True), gradients=2)
    return g


def labels(graph: Graph, **options: Any) -> list[str]:
    """The labels of the dispatches of an inference plan."""
    return [d.label for d in compile(graph, mode="inference", **options).dispatches]


def graph_of(build: Callable[[], Value | list[Value]]) -> Graph:
    """The graph whose outputs `build` makes."""
    with Graph() as g:
        g.set_outputs(build())
    return g


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random float32 data for every input and parameter."""
    rng = np.random.default_rng(seed)
    leaves = (*graph.inputs, *graph.parameters)
    return {n.name: rng.normal(size=n.type.shape).astype(n.type.dtype.numpy) for n in leaves}


def load(device: Device, plan: ExecutionPlan, feeds: Mapping[str, Any]) -> Program:
    """A program with its data, every intermediate slot poisoned."""
    program = device.load(plan)
    for name, buffer in (*plan.input_buffers, *plan.param_buffers):
        to = plan.buffers[buffer]
        program.upload(buffer, np.asarray(feeds[name], to.dtype.numpy).reshape(to.shape))
    program.poison()
    return program


def outputs(program: Program) -> list[Array]:
    """All outputs, then all gradients, in the shapes of the graph's outputs."""
    plan = program.plan
    buffers = (*plan.output_buffers, *(g for _, g in plan.param_grad_pairs))
    types = [v.type for v in plan.graph.outputs]
    return [program.download(b).reshape(t.shape) for b, t in zip(buffers, types, strict=True)]


def run(
    device: Device,
    graph: Graph,
    feeds: Mapping[str, Any],
    mode: PlanMode = "inference",
    options: CompileOptions = DEFAULT,
) -> list[Array]:
    """Compile, load, step twice (the second time over used slots), read. Random ops draw the numbers of step 0."""
    plan = compile(graph, mode=mode, options=options, target=device.target)
    program, numbers = load(device, plan, feeds), np.zeros(len(SCALARS), np.float32) if plan.reads_scalars else None
    program.step(numbers)
    program.poison()
    program.step(numbers)
    return outputs(program)
