"""State which stages a graph passes on its way to a plan, in which order, and make each at first use.

    pipeline = Pipeline(graph, "training", optimize={"allow": "exact"})
    pipeline.stage("final").graph; pipeline.position("final"); pipeline.plan(target)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gdlab.autodiff import AutodiffReport, differentiate, gradients_as_outputs
from gdlab.base.errors import unknown_name
from gdlab.graph import Graph
from gdlab.op import Phase
from gdlab.plan import compile as compile_graph
from gdlab.plan.records import ExecutionPlan, NodeLane, PlanMode
from gdlab.plan.target import CompileOptions, Target
from gdlab.rewrite import OptimizeReport, optimize
from gdlab.rewrite.engine.history import RECORDED
from gdlab.session.node_places import Nodes, nodes_of

Role = Literal["written", "optimized", "derivative", "final"]
PassReport = OptimizeReport | AutodiffReport


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The way a stage is made: from stage `parent`, by `optimize` in a `phase`, or (None) by `differentiate`."""

    key: str
    role: Role
    title: str
    parent: str = ""
    phase: Phase | None = None

    def made(
        self, graph: Graph, report: PassReport | None = None, options: Mapping[str, Any] | None = None
    ) -> PipelineStage:
        """Return the stage, with the results of the pass."""
        return PipelineStage(self.key, self.role, self.title, self.parent, graph, report, options)


WRITTEN = StageSpec("written", "written", "As written")
WRITTEN_DERIVATIVE = StageSpec("derivative:written", "derivative", "Derivative, as written", "written")  # for teaching
STAGES: Mapping[PlanMode, tuple[StageSpec, ...]] = {
    "training": (
        WRITTEN,
        StageSpec("optimized", "optimized", "Optimized", "written", "forward"),
        StageSpec("derivative", "derivative", "Derivative", "optimized"),
        StageSpec("final", "final", "As it is trained", "derivative", "full"),
        WRITTEN_DERIVATIVE,
    ),
    "inference": (WRITTEN, StageSpec("optimized", "optimized", "Optimized", "written", "inference")),
}
COMPILED: Mapping[PlanMode, str] = {"training": "final", "inference": "optimized"}  # the stage that is compiled


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A graph on its way to a plan, and the report of the pass that made it from stage `parent`. `options`: the
    arguments of `optimize`, None where nothing was optimized."""

    key: str
    role: Role
    title: str
    parent: str
    graph: Graph
    report: PassReport | None = None
    options: Mapping[str, Any] | None = None

    @property
    def optimize_report(self) -> OptimizeReport:
        """The report of a stage that `optimize` made."""
        assert isinstance(self.report, OptimizeReport), self.key
        return self.report

    @property
    def autodiff_report(self) -> AutodiffReport:
        """The report of a stage that `differentiate` made."""
        assert isinstance(self.report, AutodiffReport), self.key
        return self.report


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The stages of a written graph in order, and the plans compiled from the last of them; each is made once, at first
    use.

    `optimize`: arguments of `gdlab.optimize`, None: nothing is rewritten. `skip_full_optimize`: nothing is rewritten
    after differentiation. `history`: whether reports tell how the e-graph grew (None: of graphs of up to 300 nodes).
    `compile`: options of the plans. `gradients_to_read`: an inference plan has gradients with respect to other nodes
    than all parameters as outputs.
    """

    graph: Graph
    mode: PlanMode
    optimize: Mapping[str, Any] | None = field(default_factory=dict)
    skip_full_optimize: bool = False
    history: bool | None = False
    compile: CompileOptions = CompileOptions()
    gradients_to_read: bool = False
    name: str = "a session's graph"
    _made: dict[str, PipelineStage] = field(init=False, repr=False, default_factory=dict)
    _plans: dict[Target, ExecutionPlan] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._seal(self.graph)

    def _seal(self, graph: Graph) -> None:
        """Refuse later changes of a graph, because results made from it would no longer belong to it."""
        graph.sealed = f"{self.name}, which is complete"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all stages, in order."""
        return tuple(spec.key for spec in STAGES[self.mode])

    def position(self, key: str) -> int:
        """Return the place of a stage in the order."""
        if key not in self.keys:
            raise unknown_name("pipeline", "stage", key, self.keys)
        return self.keys.index(key)

    def entity(self, key: str, id: int) -> str:
        """Return the name that documents have for node `id` of a stage: `node:S.N`."""
        return f"node:{self.position(key)}.{id}"

    def stage(self, key: str) -> PipelineStage:
        """Return a stage by its key, made at first use, after those that it is made from."""
        if key not in self._made:
            made = self._made[key] = self._make(STAGES[self.mode][self.position(key)])
            self._seal(made.graph)
        return self._made[key]

    def __iter__(self) -> Iterator[PipelineStage]:
        return map(self.stage, self.keys)

    def _make(self, spec: StageSpec) -> PipelineStage:
        if not spec.parent:
            return spec.made(self.graph)
        before = self.stage(spec.parent).graph
        if spec.phase is None:
            return spec.made(*differentiate(before))
        options = None if self.skip_full_optimize and spec.phase == "full" else self.optimize
        if options is None:
            return spec.made(before, OptimizeReport.empty())
        history = len(before) <= RECORDED if self.history is None else self.history
        return spec.made(*optimize(before, phase=spec.phase, history=history, **options), options)

    @property
    def compiled(self) -> PipelineStage:
        """The stage that is compiled."""
        return self.stage(COMPILED[self.mode])

    @property
    def path(self) -> list[PipelineStage]:
        """The stages from the written graph to the one that is compiled."""
        found = [self.compiled]
        while found[0].parent:
            found.insert(0, self.stage(found[0].parent))
        return found

    @property
    def reports(self) -> list[OptimizeReport]:
        """The reports of the optimizer on the way to the compiled stage, in order."""
        return [stage.report for stage in self.path if isinstance(stage.report, OptimizeReport)]

    @property
    def rewrites(self) -> int:
        """The number of rewrites on the way to the compiled stage: the steps of its replays, without the sweeps."""
        return sum(count for report in self.reports for _, count in report.rules_fired)

    @property
    def report(self) -> OptimizeReport:
        """Return one report of the optimizer's work on the way to the compiled stage."""
        first, *others = self.reports
        return OptimizeReport.merge(first, others[0]) if others and self.compiled.options is not None else first

    def nodes(self, home: Graph) -> Nodes:
        """Return the places of the written graph's nodes; `home` is the graph whose Values the user holds."""
        return nodes_of(self.graph, home, self.reports)

    def image(self, key: str, id: int) -> int | None:
        """Return the node of the compiled stage that has the value of node `id` of a stage on the way to it; None where
        rewrites left none."""
        path = self.path
        after = path[[stage.key for stage in path].index(key) + 1 :]
        image: int | None = id
        for report in (stage.report for stage in after):
            if isinstance(report, OptimizeReport) and report.node_map and image is not None:
                image = report.node_map.get(image)
        return image

    def plan(self, target: Target) -> ExecutionPlan:
        """Return the plan of the compiled stage for a device's target."""
        if target not in self._plans:
            self._plans[target] = self._compile(self.compiled, target)
        return self._plans[target]

    def _compile(self, stage: PipelineStage, target: Target) -> ExecutionPlan:
        if self.mode == "inference":
            graph = gradients_as_outputs(stage.graph) if self.gradients_to_read else stage.graph
            return compile_graph(graph, mode="inference", options=self.compile, target=target)
        lanes = lanes_of(stage.graph, self.stage(stage.parent).autodiff_report, stage.optimize_report)
        return compile_graph(stage.graph, mode="training", lanes=lanes, options=self.compile, target=target)


def lanes_of(final: Graph, autodiff: AutodiffReport, report: OptimizeReport) -> list[NodeLane]:
    """Return phase and forward node of every node of the final graph, through the origins of both passes.

    A rewritten node belongs where the node it replaced did, its first origin: what it swallowed beside that (say, a
    transposed weight of the forward pass) does not move it.
    """
    lanes = []
    for node in final:
        root = report.origin.get(node.id, (node.id,))[0]
        forward = root < autodiff.forward_nodes
        lanes.append(NodeLane("forward", root) if forward else NodeLane("backward", autodiff.adjoint_of.get(root, -1)))
    for node in reversed(final.nodes):  # what both passes compute may have been made one by its backward spelling
        for i in node.inputs if lanes[node.id].phase == "forward" else ():
            if lanes[i].phase == "backward":
                olds = (old for old in report.origin.get(i, ()) if old < autodiff.forward_nodes)
                lanes[i] = NodeLane("forward", next(olds, lanes[node.id].forward))
    return lanes
