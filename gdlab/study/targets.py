"""Find the tensor or the dispatch of a study that a name or an entity means: `targets.find("node:0.5")`.

Also "h", "w1.grad", "%7", "edge:0.6.0", "interval:4", "dispatch:2", and every other entity that ends in a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gdlab.base.errors import ArgumentError
from gdlab.base.types import TensorType
from gdlab.base.words import natural
from gdlab.graph import Graph, Node, shown_names
from gdlab.op.storage import trained_parameters
from gdlab.session import PipelineStage
from gdlab.session.tensors import (
    GRADIENT,
    SessionTensor,
    dispatch_of,
    find_tensor,
    node_of,
    nodes_by_name,
    tensor_at,
    tensor_names,
)
from gdlab.study.execution import Execution

_ENTITY = re.compile(r"(line|node|edge|step|rule|kernel|dispatch|interval|wgsl):(\d+(?:\.\d+)*)")
_PARTS = {"node": 2, "edge": 3, "interval": 1, "dispatch": 1}
_SHOWN = "nothing that runs: its graph is shown alone"


@dataclass(frozen=True, slots=True)
class TensorTarget:
    """A tensor to look at: `tensor` is where it lies, None where it has no memory of its own (`went`: into what). Node
    `node` of `graph` is its value by the reference (None: it has none), `at` the node of the compiled graph (−1: as
    the tensor's name says)."""

    name: str
    about: str
    type: TensorType
    tensor: SessionTensor | None
    graph: Graph | None = None
    node: int = -1
    at: int = -1
    went: str = ""


@dataclass(frozen=True, slots=True)
class Targets:
    """The tensors and dispatches of an execution, found by name or entity. `stages`: those of the study's document, in
    its order; `select`: the entities of the document that belong to one."""

    execution: Execution
    stages: Callable[[], Sequence[PipelineStage]]
    select: Callable[[str], Iterable[str]]

    def find(self, name: str) -> TensorTarget:
        """Return the tensor that a name, `%7`, or an entity of the document means; a name goes before an entity."""
        session = self.execution.session
        if not isinstance(name, str):
            raise ArgumentError("look", "name", type(name).__name__, "a name, or an entity of the document")
        entity = None if name in tensor_names(session) else _ENTITY.fullmatch(name)
        if entity is None:
            return self._named(name)
        kind, numbers = entity[1], tuple(map(int, entity[2].split(".")))
        if _PARTS.get(kind, len(numbers)) != len(numbers):
            raise ArgumentError("look", "entity", name, "node:S.N, edge:S.N.P, interval:I or dispatch:D")
        match kind:
            case "node" | "edge":
                return self._of_stage(name, *numbers)
            case "interval":
                return self._of_buffer(numbers[0])
            case "dispatch":
                return self._of_dispatch(numbers[0])
        return self._of_selected(name)

    def dispatch(self, what: int | str) -> int:
        """Return the dispatch that a number, a node's name or an entity means: of several the first."""
        if not isinstance(what, str):
            return what
        if (number := natural(what)) is not None:
            return number
        if ":" not in what:
            return dispatch_of(self.execution.session, "run_to", what)
        dispatches = self._selected(what, "dispatch:")
        if not dispatches:
            raise ArgumentError("run_to", "entity", what, "one that a dispatch belongs to")
        return min(dispatches)

    def _named(self, name: str) -> TensorTarget:
        session = self.execution.session
        base = name.removesuffix(GRADIENT)
        if name != base and base in session.param_names():
            return self._of_gradient(base)
        parameters = {n.name: n.id for n in self.execution.pipeline.graph.parameters}
        if name not in parameters and not name.startswith("%") and name not in nodes_by_name(session):
            find_tensor(session, "look", name)  # says which name is nearest
        id = parameters[name] if name in parameters else node_of(session, "look", name)
        return self._of_written(id)

    def _of_gradient(self, parameter: str) -> TensorTarget:
        pipeline = self.execution.pipeline
        tensor = find_tensor(self.execution.session, "look", parameter + GRADIENT)
        derivative = pipeline.stage("derivative:written")
        trained = [name for _, name in trained_parameters(pipeline.graph)]
        node = derivative.autodiff_report.gradients[trained.index(parameter)]
        return TensorTarget(tensor.name, f"interval:{_buffer(tensor)}", tensor.type, tensor, derivative.graph, node)

    def _of_written(self, id: int) -> TensorTarget:
        graph, session = self.execution.pipeline.graph, self.execution.session
        node, went, tensor = graph.nodes[id], "", None
        about = self.execution.pipeline.entity("written", id)
        name = shown_names(graph)[id] or f"%{id}"
        try:  # by its name: watches and breakpoints keep tensors by name
            tensor = find_tensor(session, "look", name)
        except ArgumentError as error:
            went = str(error.given).partition(", which went into ")[2]
        return TensorTarget(name, about, node.type, tensor, graph, id, went=went)

    def _of_stage(self, entity: str, number: int, id: int, port: int = -1) -> TensorTarget:
        """Return the target of a node of any stage, or of the source of an edge into it: the tensor that it has become.
        """
        stages, pipeline = self.stages(), self.execution.pipeline
        graph = stages[number].graph if number < len(stages) else Graph()
        if id >= len(graph) or port >= len(graph.nodes[id].inputs):
            raise ArgumentError("look", "entity", entity, "an entity of the study's document")
        id = graph.nodes[id].inputs[port] if port >= 0 else id
        stage = stages[number]
        if stage.key == "written":
            return self._of_written(id)
        if stage.key not in [each.key for each in pipeline.path]:
            return self._of_shown(stage, number, id)
        return self._of_compiled(number, graph, id, pipeline.image(stage.key, id))

    def _of_compiled(self, number: int, graph: Graph, id: int, at: int | None) -> TensorTarget:
        """Return the target of a node of a stage whose value is that of node `at` of the compiled graph."""
        session, node = self.execution.session, graph.nodes[id]
        plan, went, tensor = session.plan(), "", None
        buffer = None if at is None else plan.node_buffers.get(at)
        if at is None:
            went = "the optimizer"
        elif plan.graph.nodes[at].op == "parameter":
            tensor = find_tensor(session, "look", plan.graph.nodes[at].name)
        elif buffer is not None:
            tensor = tensor_at(session, "look", buffer)
        else:
            dispatch, went = plan.fused_nodes.get(at, (-1, "the planner"))
            went = f"dispatch {dispatch} ({plan.dispatches[dispatch].label})" if dispatch >= 0 else went
        place = -1 if at is None else at
        name = self._name_of(node, at) or f"%{id}"
        return TensorTarget(name, f"node:{number}.{id}", node.type, tensor, graph, id, place, went)

    def _name_of(self, node: Node, at: int | None) -> str:
        """Return the name that views show for a node of a later stage: that of the written node with the value of node
        `at` of the compiled graph."""
        nodes = self.execution.session.nodes
        alike = [n.id for n in nodes.written if n.name == node.name and nodes.place.get(n.id, -1) == at]
        return shown_names(nodes.written)[alike[-1]] if alike and at is not None else node.name

    def _of_shown(self, stage: PipelineStage, number: int, id: int) -> TensorTarget:
        """Return the target of a node of a graph that is shown and not run: only the reference can compute its value.
        """
        if stage.key == "derivative:written":
            gradients, written = stage.autodiff_report.gradients, self.execution.pipeline.graph
            if id < len(written):
                return self._of_written(id)
            if id in gradients:
                return self._of_gradient(trained_parameters(written)[gradients.index(id)][1])
        node = stage.graph.nodes[id]
        about = f"node:{number}.{id}"
        return TensorTarget(node.name or f"%{id}", about, node.type, None, stage.graph, id, went=_SHOWN)

    def _of_buffer(self, buffer: int) -> TensorTarget:
        session = self.execution.session
        tensor, plan = tensor_at(session, "look", buffer), session.plan()
        nodes = plan.buffers[buffer].nodes if buffer < len(plan.buffers) else ()
        size = tensor.type.num_elements
        at = next((i for i in reversed(nodes) if plan.graph.nodes[i].type.num_elements == size), -1)
        graph = plan.graph if at >= 0 else None
        return TensorTarget(tensor.name, f"interval:{buffer}", tensor.type, tensor, graph, at, at)

    def _of_dispatch(self, number: int) -> TensorTarget:
        dispatches = self.execution.session.step_dispatches()
        if number >= len(dispatches):
            wanted = f"0 … {len(dispatches) - 1}: a step has {len(dispatches)}"
            raise ArgumentError("look", "dispatch", str(number), wanted)
        return self._of_buffer(dispatches[number].output)

    def _of_selected(self, entity: str) -> TensorTarget:
        """Return the target that another entity leads to: the value of a line, the node of a rewrite, the result of a
        kernel."""
        pipeline = self.execution.pipeline
        stage = pipeline.position("written" if entity.startswith("line:") else pipeline.compiled.key)
        nodes, dispatches = self._selected(entity, f"node:{stage}."), self._selected(entity, "dispatch:")
        if nodes and not entity.startswith("kernel:"):
            return self._of_stage(entity, stage, max(nodes))
        if not dispatches:
            raise ArgumentError("look", "entity", entity, "one that a tensor belongs to")
        return self._of_dispatch(min(dispatches))

    def _selected(self, entity: str, prefix: str) -> list[int]:
        """Return the numbers of the entities with this prefix that are linked to `entity`."""
        return [int(each.removeprefix(prefix)) for each in self.select(entity) if each.startswith(prefix)]


def _buffer(tensor: SessionTensor) -> int:
    return tensor.place if isinstance(tensor.place, int) else tensor.place.buffer
