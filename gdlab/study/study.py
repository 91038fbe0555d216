"""Make everything from a written graph, each at first use: a `%%graph` cell binds a `Study`.

study = Study(graph, train=True, name="mlp")
print(study.summary()); print(study.report); print(study.check())
study.run(100, feed=batches, adam=1e-3, init=0)
print(study.check_gradient("h"))
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.base.binding import bound
from gdlab.base.errors import ArgumentError, AutodiffError, GraphError
from gdlab.base.kinds import FLAG, NAMED, SEVERAL, TEXT, Kind, check_kind, instance, kinds
from gdlab.base.words import nbytes, plural, whole
from gdlab.compiled import CompiledGraph
from gdlab.devices.base import Device
from gdlab.devices.tune import TuningProgress
from gdlab.graph import Graph, Value, shown_names
from gdlab.op import Safety
from gdlab.op.cost import Cost
from gdlab.plan.records import ExecutionPlan, MissedFusion
from gdlab.plan.target import CompileOptions
from gdlab.rewrite import OptimizeReport
from gdlab.rewrite.explain.report import LIMITS
from gdlab.session import DeviceLike, Pipeline, PipelineStage, Session, SessionProfile
from gdlab.session.builders import cost_on
from gdlab.session.run.breakpoints import Break
from gdlab.session.run.lookout import Watched
from gdlab.session.run.runner import Runner
from gdlab.study.checks import Checks
from gdlab.study.debug import Debugger
from gdlab.study.execution import Execution, Opening, PlanTuning
from gdlab.study.gradcheck import GradientCheck
from gdlab.study.microscope import Against, Microscope
from gdlab.study.node_values import NodeValues
from gdlab.study.parity import Check
from gdlab.study.targets import Targets
from gdlab.study.variants import StepTime, VariantFigures, Variants, figures_of

_DEFAULT = CompileOptions()
OPTIONS = instance(CompileOptions, "CompileOptions")
CLUSTER = Kind("a cluster of gdlab.distributed", lambda given: callable(getattr(given, "run", None)))
RULE = instance(str, "the names of rules")


class StudyRunner(Protocol):
    """A place outside this process that can run a study, such as a cluster."""

    def run(self, study: Study, steps: int, **settings: Any) -> Any:
        """Run the study, and leave its state as after the run."""


@bound
class Study:
    """A written graph and everything made from it: `.graph .optimized .report .derivative .final .plan .session .runner
    .doc`, each made once; its `.pipeline` has all stages, `.execution` runs the plan, `.variants`, `.checks` and
    `.debug` do the rest.

    `train=True`: output 0 is the loss and the training pipeline is used; else the study is for inference. `disable`,
    `only`, `enable`, `allow` and `cost` are those of `optimize` (`cost="device"`: as measured on this study's device,
    now if no figures are kept), `compile` those of its plan. `egraph`:
    whether the reports tell how the e-graph grew (None: of graphs of up to 300 nodes). `source`: the text of each cell
    by its file name. `weights`: parameters that its sessions begin with. `pipeline`: one that was made from this graph
    with these options. `notes`: what was assumed when a file was opened; documents say it. The study owns its
    session and closes it in `close`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        train: bool = False,
        device: DeviceLike = "auto",
        name: str = "graph",
        disable: Iterable[str] = (),
        only: Iterable[str] = (),
        enable: Iterable[str] = (),
        allow: Safety = "rounding",
        cost: str | Cost = "roofline",
        compile: CompileOptions = _DEFAULT,
        egraph: bool | None = None,
        source: Mapping[str, str] | None = None,
        weights: Mapping[str, Any] | None = None,
        pipeline: Pipeline | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        if not isinstance(graph, Graph):
            raise GraphError(f"graph {name}", "graph", type(graph).__name__, "a Graph")
        check_kind("Study", "name", name, TEXT)
        check_kind("Study", "train", train, FLAG)
        check_kind("Study", "weights", {} if weights is None else weights, NAMED)
        if not graph.outputs:
            raise GraphError(f"graph {name}", "output", "none", "a last expression or output(...)")
        if train and (graph.outputs[0].shape != (1,)):
            loss = graph.outputs[0]
            frames = graph.source(loss.id)
            raise GraphError(f"graph {name}", "loss", loss.type, "shape [1]", source=frames[0] if frames else None)
        self.name, self.train, self.compile, self.egraph = name, train, compile, egraph
        self.options = _options(disable, only, enable, allow, cost_on(cost, device))
        self.source = dict(source or {})
        self.key = secrets.token_hex(8)
        self.step_time: StepTime | None = None  # of `measure`
        self.pipeline = pipeline or Pipeline(
            graph.copy(), "training" if train else "inference", self.options, history=egraph, compile=compile,
            gradients_to_read=True, name=f"graph {name}",
        )  # fmt: skip
        self.notes = tuple(notes)
        self.execution = Execution(name, self.pipeline, graph, device, weights or {})
        self.checks = Checks(self.execution)
        make = partial(type(self), self.graph, train=train, egraph=egraph, source=self.source)
        self.variants: Variants[Study] = Variants(make, self.execution)

    @property
    def debug(self) -> Debugger:
        """Return the debugger: watches, breakpoints, steps by dispatches, the microscope."""
        # made anew each time: it has no state, and one that is kept would be in a reference cycle with the study
        targets = Targets(self.execution, self.stages, lambda entity: self.doc.select(entity))
        return Debugger(self.execution, targets)

    # -- stages --------------------------------------------------------------------------------------------------------
    @property
    def graph(self) -> Graph:
        """Return the graph as written."""
        return self.pipeline.graph

    @property
    def optimized(self) -> Graph:
        """Return the graph after equality saturation, before differentiation."""
        return self.pipeline.stage("optimized").graph

    @property
    def report(self) -> OptimizeReport:
        """Return the report of the optimizer on the written graph."""
        return self.pipeline.stage("optimized").optimize_report

    @property
    def derivative(self) -> Graph:
        """Return the optimized graph with its gradients appended (training only)."""
        return self.stage("derivative").graph

    @property
    def autodiff(self) -> AutodiffReport:
        """Return the report of the differentiation."""
        return self.stage("derivative").autodiff_report

    @cached_property
    def written_derivative(self) -> tuple[Graph, AutodiffReport]:
        """Return the graph *as written* with its gradients appended: for teaching."""
        stage = self.stage("derivative:written")
        return stage.graph, stage.autodiff_report

    @kinds(key=TEXT)
    def stage(self, key: str) -> PipelineStage:
        """Return a stage of `pipeline` by its key."""
        if not self.train and key in ("derivative", "derivative:written"):
            wanted = "train=True (%%graph NAME --train)"
            raise AutodiffError(f"graph {self.name}", "derivative", "a study for inference", wanted)
        return self.pipeline.stage(key)

    def differentiate_wrt(self, names: tuple[str, ...]) -> tuple[Graph, AutodiffReport]:
        """Return the graph as written, differentiated with respect to the named nodes."""
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise ArgumentError(f"graph {self.name}", "wrt", type(names).__name__, "a list of names of nodes")
        values, known = [], {name: id for id, name in enumerate(shown_names(self.graph)) if name}
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise GraphError(f"graph {self.name}", "wrt", repr(name), f"one of {', '.join(known)}")
            values.append(Value(self.graph, known[name]))
        return differentiate(self.graph, wrt=values)

    @property
    def final(self) -> Graph:
        """Return the graph that is compiled."""
        return self.pipeline.compiled.graph

    @property
    def final_report(self) -> OptimizeReport:
        """Return the report of the optimizer on the graph that is compiled (for inference: `report`)."""
        return self.pipeline.compiled.optimize_report

    @property
    def reports(self) -> list[OptimizeReport]:
        """Return the reports of the optimizer on the way to the compiled graph, in order."""
        return self.pipeline.reports

    def stages(self) -> list[PipelineStage]:
        """Return all stages in the order of documents: those of the pipeline, then one of each variant."""
        return [*self.pipeline, *self.variants.stages()]

    @property
    def plan(self) -> ExecutionPlan:
        """Return the execution plan on this study's device."""
        return self.execution.plan

    @property
    def missed(self) -> tuple[MissedFusion, ...]:
        """Return the plan-level fusions that were not made, with reasons."""
        return self.plan.missed

    # -- running -------------------------------------------------------------------------------------------------------
    @property
    def device(self) -> Device:
        """Return the device of plan and session."""
        return self.execution.device

    @property
    def session(self) -> Session:
        """Return the session, opened at first use. Raises `SessionError` once it is closed: see `reopen`."""
        return self.execution.session

    @property
    def runner(self) -> Runner:
        """Return the runner of the session."""
        return self.execution.runner

    @property
    def has_session(self) -> bool:
        """Return whether a session is open."""
        return self.execution.has_session

    @property
    def weights(self) -> Mapping[str, Any]:
        """Return the parameters that sessions begin with, where a file brought values along."""
        return self.execution.weights

    @weights.setter
    def weights(self, weights: Mapping[str, Any]) -> None:
        self.execution.weights = weights

    @property
    def rev(self) -> int:
        """Return the number of changes that documents show."""
        return self.execution.rev

    def open_on(self, device: Device) -> Session:
        """Return a session of its own on a device; the caller closes it."""
        return self.execution.open_on(device)

    def compiled(self, **options: Any) -> CompiledGraph:
        """Return the graph as a compiled graph on this study's device (`options`: those of `build_compiled_graph`). Its
        parameters are those of the session where one is open, else the weights that the study began with."""
        return self.execution.compiled(**options)

    def prepare(self, **settings: Any) -> None:
        """Set `feed`, update rule (`sgd`, `adam`: the learning rate), initial parameters (`init`: the seed) and the
        condition that ends runs (`until`), those that are given, on the session; not while it runs."""
        self.execution.prepare(**settings)

    @kinds(on=CLUSTER)
    def run(
        self, steps: int | None = None, *, seconds: float | None = None, on: StudyRunner | None = None, **settings: Any
    ) -> Any:
        """Make exactly `steps` steps (1), or run for some seconds: to the first step's end after that time. Settings as
        in `prepare`. Returns when done or paused. Ctrl-C pauses, raises.

        `on`: a cluster (`gdlab.distributed`), whose engines each make these steps, with one update for all; settings
        besides are `accumulate`, `bucket_bytes`, `check`, `resume`, `save_every`, `store`, `wire`. The result is then
        its record.
        """
        if on is None:
            return self.execution.run(steps, seconds=seconds, **settings)
        if seconds is not None:
            raise ArgumentError("run", "seconds", f"{seconds!r:.40}", "steps: engines count them, together")
        return on.run(self, 1 if steps is None else steps, **settings)

    def step(self, steps: int = 1) -> None:
        """Make a few steps now."""
        self.execution.step(steps)

    def pause(self) -> None:
        """Stop the run before its next step."""
        self.execution.pause()

    def resume(self) -> None:
        """Finish a paused run; returns when done or paused again."""
        self.execution.resume()

    def reset(self) -> None:
        """Restore parameters, moments and counters of before the first step; feed and update rule stay."""
        self.execution.reset()

    def replay(self) -> None:
        """Reset and make as many steps again; with the same feed and update rule the losses are the same."""
        self.execution.replay()

    def trace(self, samples: int = 3, train: bool = False) -> SessionProfile:
        """Time every dispatch over a few steps, against what the roofline predicts; the document has the times. The
        session is then put back as it was; with `train` the steps are real ones, and count."""
        return self.execution.trace(samples, train)

    def tune(
        self, seconds: float = 10.0, tell: Callable[[TuningProgress], None] = lambda progress: None
    ) -> PlanTuning:
        """Search the fastest schedules of the plan's products on this device, for at most so many seconds (0: only tell
        what is known); `tell` is called before each product. They are kept for this adapter, and the plan takes them
        unless a session was opened. On cpu there is nothing to search."""
        return self.execution.tune(seconds, tell)

    def close(self, replaced_by: str = "") -> None:
        """Close the session; the study's graphs, reports and plan stay readable. What needs the session is refused from
        now on, naming `replaced_by`, what takes the study's place, if given."""
        self.execution.close(replaced_by)

    def reopen(self) -> Session:
        """Open a new session in the place of a closed one, without its values; return the one that is open."""
        return self.execution.reopen()

    def check_ready(self, feed: bool = False, init: bool = False) -> None:
        """Raise `SessionError` unless a run could start. `feed`, `init`: one will be set before it starts."""
        self.execution.check_ready(feed, init)

    # -- variants ------------------------------------------------------------------------------------------------------
    @kinds(name=TEXT, allow=TEXT, compile=OPTIONS)
    def variant(
        self,
        name: str = "",
        *,
        disable: Iterable[str] = (),
        only: Iterable[str] = (),
        enable: Iterable[str] = (),
        allow: Safety = "rounding",
        cost: str | Cost = "roofline",
        compile: CompileOptions = _DEFAULT,
        device: DeviceLike = None,
    ) -> Study:
        """Return the same graph under other rules or compile options, or for another device, as a study of its own;
        this one shows it beside its own result. At most 6 are kept in `.variants`: the oldest goes. What was made for
        the same options before is not made again."""
        priced = cost_on(cost, self.execution.wanted_device if device is None else device)
        return self.variants.add(name, _options(disable, only, enable, allow, priced), compile, device)

    def figures(self) -> VariantFigures:
        """Return the figures of this study alone: its row of `compare`."""
        return figures_of(self)

    def compare(self) -> str:
        """Return a table of this study and its variants: nodes, rewrites, dispatches, groups, bytes moved, planned peak
        and memory, µs per step where `measure` was asked for."""
        return self.variants.compare(self)

    def measure(self, steps: int = 20) -> dict[str, StepTime]:
        """Time a step of this study and of each variant: one after the other, `steps` times, in sessions of their own
        on one random batch, without an update. The study's session is not touched; it must not run meanwhile."""
        return self.variants.measure(self, steps)

    def record_step_time(self, seconds: Sequence[float]) -> StepTime:
        """Keep the median of measured steps, for figures and documents."""
        self.step_time = StepTime.of(seconds)
        return self.step_time

    # -- debugging -----------------------------------------------------------------------------------------------------
    def watch(self, *names: str) -> list[Watched]:
        """Watch tensors: named nodes, parameters, gradients `w.grad`, `%7`; all or none."""
        return self.debug.watch(*names)

    def break_at(self, text: str) -> Break:
        """Pause runs at `EVENT [if TEST]`: `node h if absmax(h) > 1e3`, `nonfinite`, `loss rises 3`, `write w1`."""
        return self.debug.break_at(text)

    def clear(self, id: int) -> None:
        """Remove a watch or a breakpoint by its number."""
        self.debug.clear(id)

    def watching(self) -> str:
        """Return the watches and breakpoints, a row each."""
        return self.debug.watching()

    def step_dispatch(self, dispatches: int = 1) -> None:
        """Make so many dispatches of the step under way, or of the next one; the values are those of a whole step."""
        self.debug.step_dispatch(dispatches)

    def run_to(self, what: int | str) -> None:
        """Run until a dispatch has run: its number, the name of a node that it computes, or any entity of the document
        (`line:3`, `node:0.5`, `kernel:2`, `interval:4`), of which the first dispatch counts."""
        self.debug.run_to(what)

    def back(self, dispatches: int = 1) -> str:
        """Go back in the step that is made by dispatches; return in words where the replay began."""
        return self.debug.back(dispatches)

    @kinds(against=TEXT)
    def look(
        self, name: str, *, row: int = 0, col: int = 0, slice: Sequence[int] = (), against: Against | None = None
    ) -> Microscope:
        """Return a tensor as it is now: figures, histogram, exact values of a window of at most 16 × 16 from (row, col)
        on, and the difference to the float64 reference or the cpu device, from what this step began with.

        `name`: as in `watch`, or any entity of the document (`node:0.5`, `edge:0.6.0`, `interval:4`, `dispatch:2`); of
        more than two axes `slice` picks the leading ones. A node that has no memory of its own is told by the
        reference. The document of the study tells what was looked at.
        """
        return self.debug.look(name, row=row, col=col, slice=slice, against=against)

    # -- checks --------------------------------------------------------------------------------------------------------
    @property
    def numbers(self) -> NodeValues | None:
        """Return the result of the last call of `values`."""
        return self.checks.numbers

    def feeds(self, feed: Any = None) -> dict[str, Any]:
        """Return a value for every input and parameter, by name: of `feed` (its step 0), else as set on the session,
        else a fixed random batch and initial parameters. For the reference; nothing is set or run."""
        return self.execution.feeds(feed)

    def values(self, feed: Any = None) -> NodeValues:
        """Return the value of every node of the graph as written, with its gradient when training, from one float64
        evaluation of `feeds(feed)`; at most 60 nodes. The study's pictures show them from then on."""
        return self.checks.values(feed)

    @kinds(devices=SEVERAL)
    def check(self, feed: Any = None, devices: Iterable[str] = ("cpu", "wgpu")) -> Check:
        """Check whether the optimizer or a device broke the model: the reference of the graph as written against the
        optimized graph, each device and, for gradients, differences. The study's own session is not touched."""
        return self.checks.parity(feed, devices)

    @kinds(optimized=FLAG)
    def check_gradient(self, node: Any, *, optimized: bool = False) -> GradientCheck:
        """Check whether the gradient rule of one op (a node by name, id or Value, of the graph as written, or
        `optimized`) is its slope: against central differences in float64 on values that its operands have in `feeds()`;
        and how large the gradient of the loss is that arrives at it."""
        return self.checks.gradient(node, optimized)

    # -- telling -------------------------------------------------------------------------------------------------------
    def summary(self) -> str:
        """Return one line: nodes, parameters, outputs; additions of training; the plan."""
        parameters = self.graph.parameters
        values = sum(p.type.num_elements for p in parameters)
        text = f"graph {self.name}: {plural(len(self.graph), 'node')}, {plural(len(parameters), 'parameter')} "
        text += f"({plural(values, 'value')}), {plural(len(self.graph.outputs), 'output')}"
        before, step = len(self.derivative if self.train else self.graph), self.execution.totals()
        text += f"; {'train' if self.train else 'inference'}: {plural(before, 'node')} -> {whole(len(self.final))}, "
        text += f"{plural(self.pipeline.rewrites, 'rewrite')}; plan: {step.dispatch_words}, "
        text += f"{plural(step.groups, 'group')}, {nbytes(step.physical_bytes)}"
        limits = dict.fromkeys(report.stop_reason for report in self.reports if report.hit_limit)
        return text + "".join(f"; the optimizer stopped by its limit on {LIMITS[limit][0]}" for limit in limits)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts that this study is made from: graph, options, names, the feed as it was given, the update's
        rule, and the parameters, as they are now. Moments, counters, losses and variants stay here, and so does a feed
        that cannot be pickled: the copy's notes say so."""
        opening, notes = self.execution.opening, self.notes
        if not _pickles(opening.feed):
            lost = f"the feed did not come along: a {type(opening.feed).__name__} that cannot be pickled"
            opening, notes = replace(opening, feed=None), (*notes, lost)
        device = self.execution.wanted_device
        given = {
            "train": self.train, "device": device.info.kind if isinstance(device, Device) else device,
            "name": self.name, **self.options, "compile": self.compile, "egraph": self.egraph, "source": self.source,
            "weights": self.execution.parameters(), "notes": notes,
        }  # fmt: skip
        return _made_again, (type(self), self.graph, given, opening)

    if TYPE_CHECKING:  # bound in gdlab/__init__.py
        doc: Any

        def save(
            self, path: str | Path, timeless: bool = False, *, runnable: bool = False, batches: int = 1,
            weights: bool = False, large: bool = False,
        ) -> Path: ...  # fmt: skip

        def sweep(
            self, grid: Any = None, *, points: Any = None, steps: int, feed: Any = None, on: Any = None,
            retries: int = 2, store: Any = None,
        ) -> Any: ...  # fmt: skip

        def scaling(
            self, engines: Any = ..., link: str = ..., latency: str = ..., accumulate: int = ...
        ) -> Any: ...  # fmt: skip

    def __repr__(self) -> str:
        opened = self.execution.opened
        state = "no session" if opened is None else f"session {opened[1].state}"
        mode = "training" if self.train else "inference"
        return f"<Study {self.name}: {plural(len(self.graph), 'node')}, {mode}, {state}>"

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.graph}"


def _made_again(kind: type[Study], graph: Graph, given: dict[str, Any], opening: Opening) -> Study:
    """Return the study that a pickle describes."""
    study = kind(graph, **given)
    study.execution.opening = opening
    return study


def _pickles(feed: Any) -> bool:
    try:
        pickle.dumps(feed)
    except Exception:  # whatever the objects of a person raise
        return False
    return True


def _options(
    disable: Iterable[str], only: Iterable[str], enable: Iterable[str], allow: Safety, cost: str | Cost
) -> dict[str, Any]:
    """Return these as arguments of `optimize`; a text is one name."""
    named = {"disable": disable, "only": only, "enable": enable}
    for option, given in named.items():
        check_kind("optimize", option, given, SEVERAL)
    options: dict[str, Any] = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in named.items()}
    for option, names in options.items():
        for rule in names:
            check_kind("optimize", option, rule, RULE)
    usual = isinstance(cost, str) and cost == "roofline"
    return {**options, "allow": allow} | ({} if usual else {"cost": cost})

