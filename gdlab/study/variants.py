"""Compare a study's graph with the same under other rules or compile options, or for another device.

plain = study.variant("plain", disable=["Silu+Mul→SwiGLU"]); study.variant(compile=CompileOptions(alias=False))
study.measure(steps=20); print(study.compare())
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from gdlab.base.errors import ArgumentError, unknown_name
from gdlab.base.words import grid, nbytes, sig, whole
from gdlab.op.cost import cost_model, priced
from gdlab.plan.target import CompileOptions
from gdlab.plan.update import Recipe
from gdlab.rewrite import RULES
from gdlab.session import DeviceLike, PipelineStage, Session, resolve_device
from gdlab.study.execution import Execution

MOST_VARIANTS = 6
_WARM_UP = 2  # steps that are not timed


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a step: the median of `samples` steps and their median absolute deviation from it."""

    samples: int
    median: float
    mad: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> StepTime:
        """Return the median and the deviation of measured steps."""
        median = float(np.median(seconds))
        return cls(len(seconds), median, float(np.median(np.abs(np.subtract(seconds, median)))))

    def __str__(self) -> str:
        return f"{sig(self.median * 1e6)} ± {sig(self.mad * 1e6)}"


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """One row of the comparison: counts of the compiled graph and of a step, the bytes that it moves, its peak (alive
    at once) and memory (allocated); `step` where it was measured."""

    name: str
    nodes: int
    rewrites: int
    dispatches: int
    groups: int
    bytes_moved: int
    peak_bytes: int
    physical_bytes: int
    step: StepTime | None = None

    def row(self) -> tuple[str, ...]:
        """Return the cells of `compare`."""
        counts = (self.nodes, self.rewrites, self.dispatches, self.groups)
        sizes = (self.bytes_moved, self.peak_bytes, self.physical_bytes)
        return self.name, *map(whole, counts), *map(nbytes, sizes), str(self.step or "–")


HEAD = ("", "nodes", "rewrites", "dispatches", "groups", "bytes moved", "peak", "memory", "µs/step")


class ComparedStudy(Protocol):
    """The part of a study that a comparison needs."""

    @property
    def execution(self) -> Execution: ...
    @property
    def step_time(self) -> StepTime | None: ...
    def record_step_time(self, seconds: Sequence[float]) -> StepTime: ...


S = TypeVar("S", bound=ComparedStudy)


def figures_of(study: ComparedStudy, recipe: Recipe | None = None) -> VariantFigures:
    """Return the figures of one study: its row of the comparison. `recipe`: the update behind its plan, if it is not
    that of its own session."""
    step, pipeline = study.execution.totals(recipe), study.execution.pipeline
    counts = len(pipeline.compiled.graph), pipeline.rewrites, step.dispatches, step.groups
    sizes = step.bytes_moved, step.peak_bytes, step.physical_bytes
    return VariantFigures(study.execution.name, *counts, *sizes, study.step_time)


class Variants(Mapping[str, S]):
    """The variants of one study by name, the newest last, at most 6.

    `make`: a function that makes one from a name, device, compile options, weights, pipeline and options of `optimize`.
    """

    def __init__(self, make: Callable[..., S], execution: Execution) -> None:
        self._make, self._execution = make, execution
        self._variants: dict[str, S] = {}
        self._settings: dict[str, tuple[object, ...]] = {}  # equal where two variants are made the same way

    def __getitem__(self, name: str) -> S:
        if name not in self._variants:
            raise unknown_name("variants", "name", name, self)
        return self._variants[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variants)

    def __len__(self) -> int:
        return len(self._variants)

    def __repr__(self) -> str:
        return f"<Variants: {', '.join(self) or 'none'}>"

    def stages(self) -> list[PipelineStage]:
        """Return the optimized stage of each, as `variant:NAME`, behind the stages of the study's own pipeline."""
        return [
            replace(variant.execution.pipeline.stage("optimized"), key=f"variant:{name}", title=f"Variant: {name}")
            for name, variant in self.items()
        ]

    def add(self, name: str, options: Mapping[str, Any], compile: CompileOptions, device: DeviceLike) -> S:
        """Return the variant under these options of `optimize` and of the plan, for a device; made unless it is kept
        already. Another that is made the same way gives its pipeline."""
        name = name or _name(options, compile, device)
        wanted = self._execution.wanted_device if device is None else device
        weights = self._execution.weights
        chosen = resolve_device(wanted)
        settings = options, compile, id(weights), chosen.target, str(chosen.info), tuple(RULES)
        alike = next((each for each in self if self._settings[each] == settings), None)
        if alike == name:
            self._variants[name] = self._variants.pop(name)  # the newest again
            return self._variants[name]
        pipeline = None if alike is None else self._variants[alike].execution.pipeline
        made = self._make(name=name, device=wanted, compile=compile, weights=weights, pipeline=pipeline, **options)
        _ = made.execution.plan  # errors of the options are raised before anything is kept
        self._variants.pop(name, None)
        self._variants[name], self._settings[name] = made, settings
        while len(self) > MOST_VARIANTS:
            oldest = next(iter(self))
            del self._variants[oldest], self._settings[oldest]
        self._execution.rev += 1
        return made

    def figures(self, base: S) -> list[VariantFigures]:
        """Return the figures of the base study and of each variant, all with the update of the base study."""
        return [figures_of(base), *(figures_of(each, self._execution.recipe) for each in self.values())]

    def compare(self, base: S) -> str:
        """Return a row of the base study and one of each variant, µs per step where `measure` was asked for."""
        rows = [each.row() for each in self.figures(base)]
        return "\n".join(grid(HEAD, rows, right=range(1, len(HEAD)), indent=""))

    def measure(self, base: S, steps: int) -> dict[str, StepTime]:
        """Time a step of the base study and of each variant, in turns, in sessions of their own on one random batch."""
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ArgumentError("measure", "steps", repr(steps), "an int ≥ 1")
        if self._execution.has_session:
            self._execution.runner.refuse_while_running("a measurement")
        studies = (base, *self.values())
        with ExitStack() as open_ones:
            executions = [study.execution for study in studies]
            sessions = [open_ones.enter_context(e.open_on(e.device, e.feeds())) for e in executions]
            times = [[_step_seconds(session) for session in sessions] for _ in range(_WARM_UP + steps)]
        found = {
            study.execution.name: study.record_step_time(own)
            for study, own in zip(studies, zip(*times[_WARM_UP:], strict=True), strict=True)
        }
        self._execution.rev += 1
        return found


def _step_seconds(session: Session) -> float:
    began = time.perf_counter()
    session.step()
    session.wait()
    return time.perf_counter() - began


def _name(options: Mapping[str, Any], compile: CompileOptions, device: DeviceLike) -> str:
    """Describe the difference: `no Silu+Mul→SwiGLU`, `only F`, `allow approx`, `no fusion; serial`, `cpu`,
    `costs as ast_size counts`."""
    words = {"disable": "no", "only": "only", "enable": "enable"}
    parts = [f"{word} {', '.join(options[key])}" for key, word in words.items() if options[key]]
    parts += [f"allow {options['allow']}"] if options["allow"] != "rounding" else []
    parts += [f"costs {priced(cost_model(options['cost']).name)}"] if "cost" in options else []
    switched = {"no fusion": not compile.fuse_dispatches, "no aliasing": not compile.alias, "serial": compile.serial,
                "reordered": compile.reorder}  # fmt: skip
    parts += [word for word, on in switched.items() if on]
    parts += [f"tiles {'×'.join(map(str, compile.tile))}"] if compile.tile else []
    parts += [f"pinned {', '.join(compile.pin)}"] if compile.pin else []
    parts += [str(device)] if isinstance(device, str) else []
    return "; ".join(parts) or "as it is"
