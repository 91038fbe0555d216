"""A written graph and everything made from it, each at first use: what a `%%graph` cell binds.

study = Study(graph, train=True, name="mlp")
print(study.summary()); print(study.report); print(study.check())
study.run(100, feed=batches, adam=1e-3, init=0)
print(study.check_gradient("h"))
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.base.binding import bound
from gdlab.base.errors import AutodiffError, GraphError, SessionError, unknown_name
from gdlab.base.words import nbytes, plural, whole
from gdlab.devices.base import Device
from gdlab.graph import Graph, Value
from gdlab.op import Safety
from gdlab.plan.records import ExecutionPlan, Missed
from gdlab.plan.target import CompileOptions
from gdlab.rewrite import OptimizeReport
from gdlab.session import (
    DeviceLike,
    Pipeline,
    PipelineStage,
    Session,
    SessionProfile,
    initial_values,
    open_session,
    resolve_device,
)
from gdlab.session.run.feeds import make_feed, random_batch
from gdlab.session.run.runner import Runner
from gdlab.study.debug import Debugging
from gdlab.study.gradcheck import GradientCheck, check_node
from gdlab.study.node_values import NodeValues, node_values
from gdlab.study.parity import Check, check_study
from gdlab.study.variants import StepTime, Variants

_DEFAULT = CompileOptions()


@bound
class Study(Variants, Debugging):
    """One written graph: `.graph .optimized .report .derivative .final .plan .session .runner .doc`, each made once.

    `train=True`: output 0 is the loss and the training pipeline is used; else the study is for inference. `disable`,
    `only`, `enable` and `allow` are those of `optimize`, `compile` those of its plan. `egraph`:
    whether the reports tell how the e-graph grew (None: of graphs of up to 300 nodes). The study owns its session and
    closes it in `close`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        train: bool = False,
        device: DeviceLike = "auto",
        name: str = "graph",
        disable: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        enable: tuple[str, ...] = (),
        allow: Safety = "rounding",
        compile: CompileOptions = _DEFAULT,
        egraph: bool | None = None,
        source: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise GraphError(f"graph {name}", "graph", type(graph).__name__, "a Graph")
        if not graph.outputs:
            raise GraphError(f"graph {name}", "output", "none", "a last expression or output(...)")
        if train and (graph.outputs[0].shape != (1,)):
            loss = graph.outputs[0]
            frames = graph.source(loss.id)
            raise GraphError(f"graph {name}", "loss", loss.type, "shape [1]", source=frames[0] if frames else None)
        self.train, self.name = train, name
        self._home = graph  # whose Values people hold
        named = {"disable": disable, "only": only, "enable": enable}
        self.options: dict[str, Any] = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in named.items()}
        self.options["allow"] = allow
        self.pipeline = Pipeline(
            graph.copy(), "training" if train else "inference", self.options, history=egraph, compile=compile,
            gradients_to_read=True, name=f"graph {name}",
        )  # fmt: skip
        self.compile = compile
        self.egraph = egraph
        self.variants: dict[str, Study] = {}
        self.step_time: StepTime | None = None  # of `measure`
        self.made_of: tuple[Any, ...] = ()  # a variant's rules
        self.weights: Mapping[str, Any] = {}  # what its sessions begin with, where a file brought values along
        self.numbers: NodeValues | None = None
        self.source = dict(source or {})  # file name of the cell -> its text
        self.key = secrets.token_hex(8)
        self.rev = 0
        self._device = device
        self._session: Session | None = None
        self._runner: Runner | None = None

    # -- stages --------------------------------------------------------------------------------------------------------
    @property
    def graph(self) -> Graph:
        """The graph as written."""
        return self.pipeline.graph

    @property
    def optimized(self) -> Graph:
        """The graph after equality saturation, before differentiation."""
        return self.pipeline.stage("optimized").graph

    @property
    def report(self) -> OptimizeReport:
        """What the optimizer did to the written graph."""
        return self.pipeline.stage("optimized").optimize_report

    @property
    def derivative(self) -> Graph:
        """The optimized graph with its gradients appended (training only)."""
        return self.stage("derivative").graph

    @property
    def autodiff(self) -> AutodiffReport:
        """How `derivative` came about."""
        return self.stage("derivative").autodiff_report

    @cached_property
    def written_derivative(self) -> tuple[Graph, AutodiffReport]:
        """The graph *as written* with its gradients appended: for teaching."""
        stage = self.stage("derivative:written")
        return stage.graph, stage.autodiff_report

    def stage(self, key: str) -> PipelineStage:
        """A stage of `pipeline` by its key."""
        if not self.train and key in ("derivative", "derivative:written"):
            wanted = "train=True (%%graph NAME --train)"
            raise AutodiffError(f"graph {self.name}", "derivative", "a study for inference", wanted)
        return self.pipeline.stage(key)

    def differentiate_wrt(self, names: tuple[str, ...]) -> tuple[Graph, AutodiffReport]:
        """The graph as written, differentiated with respect to the named nodes."""
        values = []
        for name in names:
            found = [n.id for n in self.graph if n.name == name]
            if not found:
                known = ", ".join(dict.fromkeys(n.name for n in self.graph if n.name))
                raise GraphError(f"graph {self.name}", "wrt", repr(name), f"one of {known}")
            values.append(Value(self.graph, found[-1]))
        return differentiate(self.graph, wrt=values)

    @property
    def final(self) -> Graph:
        """The graph that is compiled."""
        return self.pipeline.compiled.graph

    @property
    def final_report(self) -> OptimizeReport:
        """What the optimizer did to the graph that is compiled (for inference: `report`)."""
        return self.pipeline.compiled.optimize_report

    @property
    def reports(self) -> list[OptimizeReport]:
        """The reports of the optimizer on the way to the compiled graph, in order."""
        return self.pipeline.reports

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan on this study's device."""
        return self.pipeline.plan(self.device.target)

    @property
    def missed(self) -> tuple[Missed, ...]:
        """Plan-level fusions that were not made, with reasons."""
        return self.plan.missed

    @cached_property
    def device(self) -> Any:
        """The device of plan and session."""
        return resolve_device(self._device)

    # -- running -------------------------------------------------------------------------------------------------------
    @property
    def session(self) -> Session:
        """The session, opened at first use."""
        if self._session is None or self._session.closed:
            self._session = self.open_on(self.device)
            self._runner = Runner(self._session)
            self.rev += 1
        return self._session

    def open_on(self, device: Device) -> Session:
        """A session of its own on a device; the caller closes it."""
        session = open_session(self.pipeline.plan(device.target), device, self.pipeline.nodes(self._home))
        for name, values in self.weights.items():
            session.set_parameter(name, values)
        return session

    @property
    def runner(self) -> Runner:
        """What steps the session."""
        _ = self.session
        assert self._runner is not None  # made together
        return self._runner

    @property
    def has_session(self) -> bool:
        """Whether a session is open."""
        return self._session is not None and not self._session.closed

    def prepare(
        self,
        *,
        feed: Any = None,
        sgd: float | None = None,
        adam: float | None = None,
        init: int | None = None,
        until: str | None = None,
    ) -> None:
        """Set feed, update rule, initial parameters and the condition that ends runs (`--until`), those that are
        given, on the session; not while it runs."""
        if feed is None and sgd is None and adam is None and init is None and until is None:
            return
        batches = self.runner.feed if feed is None else make_feed(feed, self.graph)
        self.runner.refuse_while_running("new settings")
        if until is not None:
            self.runner.set_until(until)
        if sgd is not None:
            self.session.set_learning_rate(sgd)
        if adam is not None:
            self.session.set_adam(adam)
        if init is not None:
            self.session.initialize(init)
        self.runner.feed = batches  # last: the rest may refuse
        self.rev += 1

    def run(self, steps: int = 1, **settings: Any) -> None:
        """Make exactly `steps` steps (settings as in `prepare`); returns when done or paused. Ctrl-C pauses, raises."""
        self.runner.check_start(steps)
        self.prepare(**settings)
        if steps:
            self.check_ready()
        self.runner.run(steps)

    def step(self, steps: int = 1) -> None:
        """Make a few steps now."""
        self.check_ready()
        self.runner.wait(self.runner.step(steps))

    def pause(self) -> None:
        """Stop the run before its next step."""
        self.runner.pause()

    def resume(self) -> None:
        """Finish a paused run; returns when done or paused again."""
        self.runner.wait(self.runner.resume())

    def reset(self) -> None:
        """Parameters, moments and counters as they were before the first step; feed and update rule stay."""
        self.runner.reset()
        self.rev += 1

    def replay(self) -> None:
        """`reset`, then the same number of steps again; with the same feed and update rule the losses are the same."""
        self.runner.wait(self.runner.replay())

    def trace(self, samples: int = 3) -> SessionProfile:
        """Time every dispatch over a few real steps, against what the roofline predicts; the document has the times."""
        self.check_ready()
        self.runner.refuse_while_running("a trace")
        profile = self.session.capture_profile(samples)
        self.rev += 1
        return profile

    def close(self) -> None:
        """Close the session; the study's graphs, reports and plan stay readable."""
        if self._runner is not None:
            self._runner.close()

    # -- asking --------------------------------------------------------------------------------------------------------
    def feeds(self, feed: Any = None) -> dict[str, Any]:
        """A value for every input and parameter, by name: of `feed` (its step 0), else as set on the session, else a
        fixed random batch and initial parameters (seed 0; a vector that declares nothing is normal(0.5), not zeros).
        For the reference; nothing is set or run."""
        session = self._session if self.has_session else None
        unset = set() if session is None else {*session.unset_inputs, *session.unset_parameters}
        given = random_batch(self.graph, 0) if feed is None else dict(make_feed(feed, self.graph)(0))
        found: dict[str, Any] = {}
        for node in self.graph.inputs:
            if feed is None and session is not None and node.name not in unset:
                given[node.name] = session.read_input(node.name)
            if node.name not in given:
                raise unknown_name("feed", "input", node.name, given)
            found[node.name] = given[node.name]
        for node in self.graph.parameters:
            if session is not None and node.name not in unset:
                found[node.name] = session.read_param(node.name)
            elif node.name in self.weights:
                found[node.name] = self.weights[node.name]
            else:
                init = str(dict(node.attrs).get("init") or "default")
                if init == "default" and len(node.type.shape) == 1:
                    init = "normal(0.5)"  # zeros would hide what a bias or a scale does
                found[node.name] = initial_values(node.name, node.type.shape, 0, init)
        return found

    def values(self, feed: Any = None) -> NodeValues:
        """The value of every node of the graph as written, with its gradient when training, from one float64
        evaluation of `feeds(feed)`; at most 60 nodes. The study's pictures show them from then on."""
        derivative = self.written_derivative[0] if self.train else None
        self.numbers = node_values(self.name, self.graph, self.feeds(feed), derivative)
        self.rev += 1
        return self.numbers

    def check(self, feed: Any = None, devices: Iterable[str] = ("cpu", "wgpu")) -> Check:
        """Did the optimizer or a device break the model? The reference of the graph as written against the optimized
        graph, each device and, for gradients, differences. The study's own session is not touched."""
        return check_study(self, self.feeds(feed), tuple(devices))

    def check_gradient(self, node: Any, *, optimized: bool = False) -> GradientCheck:
        """Whether the gradient rule of one op (a node by name, id or Value, of the graph as written, or `optimized`) is
        its slope: against central differences in float64 on values that its operands have in `feeds()`; and how large
        the gradient of the loss is that arrives at it."""
        return check_node(self, node, optimized)

    # -- telling -------------------------------------------------------------------------------------------------------
    def summary(self) -> str:
        """One line: nodes, parameters, outputs; what training adds; the plan."""
        parameters = self.graph.parameters
        values = sum(p.type.num_elements for p in parameters)
        text = f"graph {self.name}: {plural(len(self.graph), 'node')}, {plural(len(parameters), 'parameter')} "
        text += f"({plural(values, 'value')}), {plural(len(self.graph.outputs), 'output')}"
        before, rewrites = len(self.graph), sum(n for _, n in self.report.rules_fired)
        if self.train:
            before, rewrites = len(self.derivative), rewrites + sum(n for _, n in self.final_report.rules_fired)
        text += f"; {'train' if self.train else 'inference'}: {plural(before, 'node')} -> {whole(len(self.final))}, "
        text += f"{plural(rewrites, 'rewrite')}; plan: {plural(len(self.plan.dispatches), 'dispatch')}, "
        return text + f"{plural(len(self.plan.groups), 'group')}, {nbytes(self.plan.memory.physical_bytes)}"

    if TYPE_CHECKING:  # bound in gdlab/__init__.py
        doc: Any

        def save(self, path: str | Path, timeless: bool = False) -> Path: ...

    def __repr__(self) -> str:
        state = f"session {self._runner.state}" if self._runner is not None else "no session"
        mode = "training" if self.train else "inference"
        return f"<Study {self.name}: {plural(len(self.graph), 'node')}, {mode}, {state}>"

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.graph}"

    def check_ready(self, feed: bool = False, init: bool = False) -> None:
        """Raise `SessionError` unless a run could start: a feed, or a value of every input; one of every parameter.
        `feed`, `init`: one will be set before it starts."""
        missing = [] if feed or self.runner.feed is not None else self.session.unset_inputs
        if missing:
            raise SessionError(f"graph {self.name}", "run", f"no value for {', '.join(missing)}", "--feed or set_input")
        if not init:
            self.session.check_ready("run", inputs=False)
