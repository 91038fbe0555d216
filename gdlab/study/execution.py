"""Run the plan of a pipeline: a device, a session and its runner, each opened at first use, and their feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from gdlab.base.errors import ArgumentError, SessionError, unknown_name
from gdlab.base.formats.packed_bytes import as_stored
from gdlab.base.types import Array
from gdlab.base.words import listed
from gdlab.compiled import CompiledGraph, build_compiled_graph
from gdlab.devices.base import Device
from gdlab.devices.tune import TuningProgress, check_seconds, tune, tuned_target
from gdlab.devices.tuning_file import TunedKernel, kept_kernels
from gdlab.graph import Graph
from gdlab.plan.candidates import products_of
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target, Tuning
from gdlab.plan.update import Recipe, update_of
from gdlab.session import (
    DeviceLike,
    Optimizer,
    Pipeline,
    Session,
    SessionProfile,
    initial_values,
    open_session,
    resolve_device,
)
from gdlab.session.run.feeds import Feed, FixedFeed, make_feed, random_batch
from gdlab.session.run.runner import Runner
from gdlab.session.run.stop_conditions import parse_test
from gdlab.session.totals import StepTotals, totals
from gdlab.session.update_settings import optimizer
from gdlab.session.updates import UpdateSettings

SETTINGS = ("feed", "sgd", "adam", "init", "until")  # of a run


@dataclass(frozen=True, slots=True)
class PlanTuning:
    """The schedules that were tried for the products of a plan, each with its dispatches: of study `name` on `device`.
    `untried`: the number of products without any; `in_use`: whether the plan runs the chosen ones."""

    name: str
    device: str
    kernels: tuple[tuple[TunedKernel, tuple[int, ...]], ...]
    untried: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The state that a new session begins with: a feed as a person gave it, the rule of the update and its settings."""

    feed: Any = None
    optimizer: Optimizer = Optimizer()
    settings: UpdateSettings = UpdateSettings()


class Execution:
    """The device, the session and the runner of a study called `name`.

    `home`: the graph whose Values people hold. `weights`: parameters that every session begins with. `opened`: the
    session that was opened last, closed or not, and its runner; only `reopen` puts another in the place of a closed
    one, whose parameters are gone. `rev` counts the changes that documents show; `tuning` are measured schedules of
    this plan's products.
    """

    def __init__(
        self, name: str, pipeline: Pipeline, home: Graph, device: DeviceLike, weights: Mapping[str, Any]
    ) -> None:
        self.name, self.pipeline, self.weights = name, pipeline, weights
        self.wanted_device = device
        self.opened: tuple[Session, Runner] | None = None
        self.rev = 0
        self.tuning = Tuning()
        self._home = home
        self._opening = Opening()
        self._given: tuple[Any, Feed | None] = None, None  # the feed as it was given, and what was made of it
        self._closed, self._replaced_by = False, ""

    @cached_property
    def device(self) -> Device:
        """Return the device of plan and session."""
        return resolve_device(self.wanted_device)

    @property
    def plan(self) -> ExecutionPlan:
        """Return the execution plan on this device."""
        return self.pipeline.plan(self.target_of(self.device))

    def target_of(self, device: Device) -> Target:
        """Return the target to compile for a device: with the schedules that `tune` found, if it is like our own."""
        alike = self.tuning.schedules and device.target == self.device.target
        return replace(device.target, tuning=self.tuning) if alike else device.target

    def totals(self, recipe: Recipe | None = None) -> StepTotals:
        """Return the dispatches, groups and bytes of a step, with the update of the open session; with `recipe`, that
        update in its place."""
        if recipe is None and self.has_session:
            return self.session.totals()
        return totals(self.plan, update_of(self.plan, recipe or Recipe()))

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the session's update; without a session, a recipe that updates nothing."""
        return self.session.updates.recipe if self.has_session else Recipe()

    @property
    def session(self) -> Session:
        """Return the session, opened at first use. Raises `SessionError` once it is closed."""
        return self._open()[0]

    @property
    def runner(self) -> Runner:
        """Return the runner of the session."""
        return self._open()[1]

    @property
    def has_session(self) -> bool:
        """Return whether a session is open."""
        return self.opened is not None and not self.opened[0].closed

    def _open(self) -> tuple[Session, Runner]:
        if self._closed or (self.opened is not None and self.opened[0].closed):
            given = f"closed: it was replaced by {self._replaced_by}" if self._replaced_by else "closed"
            newer = f"{self._replaced_by}, or " if self._replaced_by else ""
            wanted = f"{newer}reopen() first: the new session has none of the old one's values"
            raise SessionError(f"graph {self.name}", "session", given, wanted)
        if self.opened is None:
            session = self.open_on(self.device)
            self.opened = session, Runner(session)
            self._begin(*self.opened)
            self.rev += 1
        return self.opened

    def _begin(self, session: Session, runner: Runner) -> None:
        """Give a session the feed, update and weights that the first one begins with."""
        first, self._opening = self._opening, Opening()
        if first.feed is not None:
            runner.feed = make_feed(first.feed, self.pipeline.graph)
            self._given = first.feed, runner.feed
        if (first.optimizer, first.settings) != (Optimizer(), UpdateSettings()):  # an inference has neither
            session.updates.adopt("open", first.optimizer, first.settings)

    @property
    def opening(self) -> Opening:
        """Return the feed and the update of the session, with which a copy of this execution begins (besides the
        weights)."""
        if not self.has_session:
            return self._opening
        feed = self.runner.feed
        given = self._given[0] if feed is self._given[1] else feed
        return Opening(given, self.session.optimizer, self.session.updates.settings)

    @opening.setter
    def opening(self, opening: Opening) -> None:
        self._opening = opening

    def parameters(self) -> dict[str, Any]:
        """Return the values of all parameters that have one, by name: those of the session, else of `weights`."""
        found = dict(self.weights)
        if self.has_session:
            unset = set(self.session.unset_parameters)
            own = [n.name for n in self.pipeline.graph.parameters if n.name not in unset]
            found |= {name: self.session.values.held(name) for name in own}
        return found

    def inputs(self) -> dict[str, Array]:
        """Return the values of all inputs that have one in the open session, by name."""
        session = self.session if self.has_session else None
        names = [] if session is None else [n for n in session.input_names() if n not in session.unset_inputs]
        return {} if session is None else {name: session.read_input(name) for name in names}

    def reopen(self) -> Session:
        """Open a new session in the place of a closed one, without its values; return the one that is open."""
        if not self.has_session:
            self.opened, self._closed, self._replaced_by = None, False, ""
        return self.session

    def open_on(self, device: Device, feeds: Mapping[str, Any] = MappingProxyType({})) -> Session:
        """Return a new session on a device, with these inputs and parameters set; the caller closes it."""
        session = open_session(self.pipeline.plan(self.target_of(device)), device, self.pipeline.nodes(self._home))
        for name, values in {**self.weights, **feeds}.items():
            (session.set_input if session.has_input(name) else session.set_parameter)(name, values)
        return session

    def compiled(self, **options: Any) -> CompiledGraph:
        """Return the written graph compiled, over the parameters of the open session, or with the weights."""
        if self.has_session:
            return self.session.compile(**options)  # type: ignore[no-any-return]
        made = build_compiled_graph(self.pipeline.graph, **{"device": self.device, **options})
        known = made.plan.param_types
        made.load_params({name: data for name, data in self.weights.items() if name in known})
        return made

    def prepare(self, **settings: Any) -> None:
        """Set feed, update rule, initial parameters and the condition that ends runs (`--until`), those that are
        given, on the session; not while it runs. All or none."""
        self._set(False, **settings)

    def _set(
        self, begins: bool, *, feed: Any = None, sgd: float | None = None, adam: float | None = None,
        init: int | None = None, until: str | None = None, **unknown: object,
    ) -> None:  # fmt: skip
        """Set what is given, after checking all of it; `begins`: and that a run could begin with it."""
        for name in unknown:
            raise unknown_name("run", "setting", name, SETTINGS)
        if sgd is not None and adam is not None:
            raise ArgumentError("run", "adam", f"{adam!r:.40}, and sgd as well", "one update rule")
        if all(setting is None for setting in (feed, sgd, adam, init, until)):
            return self.check_ready() if begins else None
        batches = self.runner.feed if feed is None else make_feed(feed, self.pipeline.graph)
        self.runner.refuse_while_running("new settings")
        rates = (("set_learning_rate", "sgd", sgd), ("set_adam", "adam", adam))
        rules = {where: optimizer(where, rule, lr=rate) for where, rule, rate in rates if rate is not None}
        if init is not None:
            self.session.values.check_seed(init)
        if until is not None:
            parse_test(until, self.session)
        if feed is not None and isinstance(batches, FixedFeed):
            self.session.values.batch("feed", batches.batch)
            missing = [name for name in self.session.unset_inputs if name not in batches.batch]
            if begins and missing:
                wanted = "each in the feed, or set_input before"
                raise SessionError(f"graph {self.name}", "run", f"no value for {listed(missing)}", wanted)
        if begins:
            self.check_ready(feed is not None, init is not None)
        for where, rule in rules.items():
            self.session.updates.configure(where, rule)
        if until is not None:
            self.runner.set_until(until)
        if init is not None:
            self.session.initialize(init)
        self.runner.feed = batches
        if feed is not None:
            self._given = feed, batches
        self.rev += 1

    def run(self, steps: int | None = None, *, seconds: float | None = None, **settings: Any) -> None:
        """Make exactly `steps` steps (1), or those that begin within `seconds` (settings as in `prepare`); returns when
        done or paused. Ctrl-C pauses, raises. A call that is refused before its first step sets nothing."""
        steps = 1 if steps is None and seconds is None else steps
        self.runner.check_span(steps, seconds)
        self._set(steps != 0, **settings)
        self.runner.run(steps, seconds=seconds)

    def step(self, steps: int = 1) -> None:
        """Make a few steps now."""
        self.check_ready()
        self.runner.to_end(lambda: self.runner.step(steps))

    def pause(self) -> None:
        """Stop the run before its next step."""
        self.runner.pause()

    def resume(self) -> None:
        """Finish a paused run; returns when done or paused again."""
        self.runner.to_end(self.runner.resume)

    def reset(self) -> None:
        """Restore parameters, moments and counters of before the first step; feed and update rule stay."""
        self.runner.reset()
        self.rev += 1

    def replay(self) -> None:
        """Reset and make as many steps again; with the same feed and update rule the losses are the same."""
        self.runner.to_end(self.runner.replay)

    def trace(self, samples: int = 3, train: bool = False) -> SessionProfile:
        """Time every dispatch over a few steps, against what the roofline predicts; the document has the times. The
        session is then put back as it was; with `train` the steps are real ones, and count."""
        self.check_ready()
        self.runner.refuse_while_running("a trace")
        self.runner.read_losses()
        profile = self.session.capture_profile(samples, train)
        self.runner.read_losses()
        self.rev += 1
        return profile

    def tune(self, seconds: float, tell: Callable[[TuningProgress], None]) -> PlanTuning:
        """Search the schedules of the plan's products, for at most so many seconds (0: no search). The plan takes them
        unless a session was opened, which keeps its own. What was found is kept, also if the search is interrupted."""
        check_seconds("tune", seconds)
        if self.has_session:
            self.runner.refuse_while_running("a search of schedules")
        products = products_of(self.plan) if self.pipeline.compile.tile is None else {}
        known: dict[str, TunedKernel] = {}
        try:
            if seconds:
                known = tune(self.device, products, seconds, tell)
        finally:
            if self.opened is None and products:
                self.tuning = tuned_target(self.device, known).tuning
                self.rev += 1
        return self.tuned(known)

    def tuned(self, found: Mapping[str, TunedKernel] = MappingProxyType({})) -> PlanTuning:
        """Return what is known of the schedules of the plan's products on this device: kept, or `found` just now."""
        known = {**kept_kernels(self.device.info), **found}
        products = {str(key): places for key, places in products_of(self.plan).items()}
        rows = tuple((known[name], places) for name, places in products.items() if name in known)
        chosen = all(self.plan.dispatches[places[0]].params == kernel.chosen.params for kernel, places in rows)
        return PlanTuning(self.name, str(self.device.info), rows, len(products) - len(rows), chosen)

    def close(self, replaced_by: str = "") -> None:
        """Close the session; the study's graphs, reports and plan stay readable. `replaced_by`: what takes its place,
        in words."""
        self._closed, self._replaced_by = True, replaced_by or self._replaced_by
        if self.opened is not None:
            self.opened[1].close()

    def check_ready(self, feed: bool = False, init: bool = False) -> None:
        """Raise `SessionError` unless a run could start: a feed, or a value of every input; one of every parameter.
        `feed`, `init`: one will be set before it starts."""
        missing = [] if feed or self.runner.feed is not None else self.session.unset_inputs
        if missing:
            raise SessionError(f"graph {self.name}", "run", f"no value for {listed(missing)}", "--feed or set_input")
        if not init:
            self.session.check_ready("run", inputs=False)

    def feeds(self, feed: Any = None) -> dict[str, Any]:
        """Return a value for every input and parameter, by name: of `feed` (its step 0), else as set on the session,
        else a fixed random batch and initial parameters (seed 0; a vector that declares nothing is normal(0.5), not
        zeros). What lies in blocks is given in their bytes, as devices hold it. For the reference; nothing is set or
        run."""
        graph = self.pipeline.graph
        session = self.session if self.has_session else None
        unset = set() if session is None else {*session.unset_inputs, *session.unset_parameters}
        batch = random_batch(graph, 0) if feed is None else dict(make_feed(feed, graph)(0))
        values: dict[str, Any] = {}
        for node in graph.inputs:
            if feed is None and session is not None and node.name not in unset:
                batch[node.name] = session.read_input(node.name)
            if node.name not in batch:
                raise unknown_name("feed", "input", node.name, batch)
            values[node.name] = batch[node.name]
        for node in graph.parameters:
            if session is not None and node.name not in unset:
                given = session.values.held(node.name)
            elif node.name in self.weights:
                given = self.weights[node.name]
            else:
                init = str(dict(node.attrs).get("init") or "default")
                if init == "default" and len(node.type.shape) == 1:
                    init = "normal(0.5)"  # zeros would hide what a bias or a scale does
                given = initial_values(node.name, node.type.shape, 0, init)
            values[node.name] = as_stored(given, node.type)
        return values
