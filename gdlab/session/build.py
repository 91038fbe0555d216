"""From a graph to a session: optimize, differentiate, optimize, compile, load."""

from __future__ import annotations

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.device import device as choose_device
from gdlab.device.base import Device
from gdlab.device.choose import Kind
from gdlab.errors import GraphError
from gdlab.graph import Graph
from gdlab.plan import compile
from gdlab.plan.plan import Lane
from gdlab.rewrite import OptimizeReport, optimize
from gdlab.session.session import Session, open_session

DeviceLike = Kind | Device | None


def build_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """A training session: optimize, differentiate, optimize, compile, load. Output 0 must be the loss, f32[1]."""
    return build_session_with_report(graph, device)[0]


def build_session_with_report(graph: Graph, device: DeviceLike = "auto") -> tuple[Session, OptimizeReport]:
    """A training session and what the optimizer did in both of its phases."""
    chosen, written = resolve_device(device), _checked(graph)
    forward, first = optimize(written, phase="forward")
    derivative, autodiff = differentiate(forward)
    final, second = optimize(derivative, phase="full")
    plan = compile(final, mode="training", lanes=lanes_of(final, autodiff, second), target=chosen.target)
    return open_session(plan, chosen), OptimizeReport.merge(first, second)


def build_inference_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """A session that runs the graph forward only, with the fusions of inference."""
    chosen, written = resolve_device(device), _checked(graph)
    final, _ = optimize(written, phase="inference")
    return open_session(compile(final, mode="inference", target=chosen.target), chosen)


def lanes_of(final: Graph, autodiff: AutodiffReport, report: OptimizeReport) -> list[Lane]:
    """Phase and forward node of every node of the final graph, through the origins of both passes.

    A rewritten node belongs where the node it replaced did, its first origin: what it swallowed beside that (say, a
    transposed weight of the forward pass) does not move it.
    """
    lanes = []
    for node in final:
        root = report.origin.get(node.id, (0,))[0]
        forward = root < autodiff.forward_nodes
        lanes.append(Lane("forward", root) if forward else Lane("backward", autodiff.adjoint_of.get(root, -1)))
    return lanes


def resolve_device(device: DeviceLike) -> Device:
    """The device that `"auto"`, `"wgpu"`, `"cpu"` or a `Device` stands for."""
    return device if isinstance(device, Device) else choose_device("auto" if device is None else device)


def _checked(graph: Graph) -> Graph:
    if not isinstance(graph, Graph):
        raise GraphError("session", "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise GraphError("session", "outputs", "none", "graph.set_outputs(...) first")
    return graph.copy()
