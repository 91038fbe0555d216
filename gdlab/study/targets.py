"""Which tensor of a study a name or an entity means: `target_of(study, "node:0.5")`.

Also "h", "w1.grad", "%7", "edge:0.6.0", "interval:4", "dispatch:2", and what else ends in a tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.op.storage import trained_parameters
from gdlab.session.stages import PipelineStage
from gdlab.session.tensors import GRADIENT, Tensor, find_tensor, node_of, tensor_at, tensor_names
from gdlab.study.variants import variant_stages

if TYPE_CHECKING:
    from gdlab.base.types import TensorType
    from gdlab.study.study import Study

_ENTITY = re.compile(r"(line|node|edge|step|rule|kernel|dispatch|interval|wgsl):(\d+(?:\.\d+)*)")
_PARTS = {"node": 2, "edge": 3, "interval": 1, "dispatch": 1}
_SHOWN = "nothing that runs: its graph is shown alone"


@dataclass(frozen=True, slots=True)
class Target:
    """What is looked at: `tensor` is where it lies, None where it has no memory of its own (`went`: into what). Node
    `node` of `graph` is its value by the reference (None: it has none), `at` the node of the compiled graph (−1: as
    the tensor's name says)."""

    name: str
    about: str
    type: TensorType
    tensor: Tensor | None
    graph: Graph | None = None
    node: int = -1
    at: int = -1
    went: str = ""


def target_of(study: Study, name: str) -> Target:
    """The tensor that a name, `%7`, or an entity of the study's document means; a name goes before an entity."""
    found = None if name in tensor_names(study.session) else _ENTITY.fullmatch(name)
    if found is None:
        return _named(study, name)
    kind, at = found[1], tuple(map(int, found[2].split(".")))
    if _PARTS.get(kind, len(at)) != len(at):
        raise ArgumentError("look", "entity", name, "node:S.N, edge:S.N.P, interval:I or dispatch:D")
    match kind:
        case "node" | "edge":
            return _of_stage(study, name, *at)
        case "interval":
            return _of_buffer(study, at[0])
        case "dispatch":
            return _of_dispatch(study, at[0])
    return _of_lit(study, name)


def _named(study: Study, name: str) -> Target:
    session = study.session
    base = name.removesuffix(GRADIENT)
    if name != base and base in session.param_names():
        return _of_gradient(study, base)
    parameters = {n.name: n.id for n in study.graph.parameters}
    if name not in parameters and not name.startswith("%") and name not in session.node_names():
        find_tensor(session, "look", name)  # says which name is nearest
    id = parameters[name] if name in parameters else node_of(session, "look", name)
    return _of_written(study, id)


def _of_gradient(study: Study, parameter: str) -> Target:
    tensor = find_tensor(study.session, "look", parameter + GRADIENT)
    graph, report = study.written_derivative
    trained = [name for _, name in trained_parameters(study.graph)]
    node = report.gradients[trained.index(parameter)]
    return Target(tensor.name, f"interval:{_buffer(tensor)}", tensor.type, tensor, graph, node)


def _of_written(study: Study, id: int) -> Target:
    node, session = study.graph.nodes[id], study.session
    told, went, tensor = node.name or f"%{id}", "", None
    last = max((n.id for n in study.graph if n.name and n.name == node.name), default=-1)
    try:  # by its name where that means it: what is kept for watches and breakpoints is kept by name
        tensor = find_tensor(session, "look", told if id == last and told not in session.param_names() else f"%{id}")
    except ArgumentError as error:
        went = str(error.given).partition(", which went into ")[2]
    return Target(told, f"node:0.{id}", node.type, tensor, study.graph, id, went=went)


def stages_of(study: Study) -> list[PipelineStage]:
    """Return the stages of the study's document, in its order."""
    return [*study.pipeline, *variant_stages(study)]


def _of_stage(study: Study, entity: str, number: int, id: int, port: int = -1) -> Target:
    """Return a node of any stage, or the source of an edge into it: where the pipeline carried it to."""
    stages, pipeline = stages_of(study), study.pipeline
    graph = stages[number].graph if number < len(stages) else Graph()
    if id >= len(graph) or port >= len(graph.nodes[id].inputs):
        raise ArgumentError("look", "entity", entity, "an entity of the study's document")
    id = graph.nodes[id].inputs[port] if port >= 0 else id
    stage = stages[number]
    if stage.key == "written":
        return _of_written(study, id)
    if stage.key not in [each.key for each in pipeline.path]:
        return _of_shown(study, stage, number, id)
    return _of_compiled(study, number, graph, id, pipeline.image(stage.key, id))


def _of_compiled(study: Study, stage: int, graph: Graph, id: int, at: int | None) -> Target:
    """Return a node of `graph` whose value node `at` of the compiled graph has."""
    plan, node = study.session.plan(), graph.nodes[id]
    told, about, went, tensor = node.name or f"%{id}", f"node:{stage}.{id}", "", None
    buffer = None if at is None else plan.node_buffers.get(at)
    if at is None:
        went = "the optimizer"
    elif plan.graph.nodes[at].op == "parameter":
        tensor = find_tensor(study.session, "look", plan.graph.nodes[at].name)
    elif buffer is not None:
        tensor = tensor_at(study.session, "look", buffer)
    else:
        dispatch, went = plan.fused_nodes.get(at, (-1, "the planner"))
        went = f"dispatch {dispatch} ({plan.dispatches[dispatch].label})" if dispatch >= 0 else went
    return Target(told, about, node.type, tensor, graph, id, -1 if at is None else at, went)


def _of_shown(study: Study, stage: PipelineStage, number: int, id: int) -> Target:
    """Return a node of a graph that is shown and not run: the reference has its value."""
    graph = stage.graph
    if stage.key == "derivative:written":
        gradients = stage.autodiff_report.gradients
        if id < len(study.graph):
            return _of_written(study, id)
        if id in gradients:
            return _of_gradient(study, trained_parameters(study.graph)[gradients.index(id)][1])
    node = graph.nodes[id]
    return Target(node.name or f"%{id}", f"node:{number}.{id}", node.type, None, graph, id, went=_SHOWN)


def _of_buffer(study: Study, buffer: int) -> Target:
    session = study.session
    tensor, plan = tensor_at(session, "look", buffer), session.plan()
    nodes = plan.buffers[buffer].nodes if buffer < len(plan.buffers) else ()
    size = tensor.type.num_elements
    at = next((i for i in reversed(nodes) if plan.graph.nodes[i].type.num_elements == size), -1)
    graph = plan.graph if at >= 0 else None
    return Target(tensor.name, f"interval:{buffer}", tensor.type, tensor, graph, at, at)


def _of_dispatch(study: Study, k: int) -> Target:
    made = study.session.step_dispatches()
    if k >= len(made):
        raise ArgumentError("look", "dispatch", str(k), f"0 … {len(made) - 1}: a step has {len(made)}")
    return _of_buffer(study, made[k].output)


def _of_lit(study: Study, entity: str) -> Target:
    """What another entity ends in: the value of a line, the node of a rewrite, the result of a kernel."""
    lit = study.doc.select(entity)
    pipeline = study.pipeline
    stage = pipeline.position("written" if entity.startswith("line:") else pipeline.compiled.key)
    nodes = [int(e.split(".")[1]) for e in lit if e.startswith(f"node:{stage}.")]
    dispatches = [int(e.split(":")[1]) for e in lit if e.startswith("dispatch:")]
    if nodes and not entity.startswith("kernel:"):
        return _of_stage(study, entity, stage, max(nodes))
    if not dispatches:
        raise ArgumentError("look", "entity", entity, "one that a tensor belongs to")
    return _of_dispatch(study, min(dispatches))


def _buffer(tensor: Tensor) -> int:
    return tensor.place if isinstance(tensor.place, int) else tensor.place.buffer
