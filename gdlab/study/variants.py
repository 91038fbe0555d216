"""What if: a study's graph under other rules or compile options, or for another device, beside it and compared.

plain = study.variant("plain", disable=["Silu+Mul→SwiGLU"]); study.variant(compile=CompileOptions(alias=False))
study.measure(steps=20); print(study.compare())
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.words import grid, nbytes, sig, whole
from gdlab.op import Safety
from gdlab.plan.target import CompileOptions
from gdlab.rewrite import RULES
from gdlab.session import DeviceLike, PipelineStage, Session

if TYPE_CHECKING:
    from gdlab.study.study import Study

MOST_VARIANTS = 6
_WARM_UP = 2  # steps that are not timed
_DEFAULT = CompileOptions()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: the median of `samples` steps and their median absolute deviation from it."""

    samples: int
    median: float
    mad: float

    def __str__(self) -> str:
        return f"{sig(self.median * 1e6)} ± {sig(self.mad * 1e6)}"


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the comparison: counts of the compiled graph and its plan, bytes that a step moves, the planned peak
    (alive at once) and memory (allocated); `step` where it was measured."""

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
        """The cells of `compare`."""
        counts = (self.nodes, self.rewrites, self.dispatches, self.groups)
        sizes = (self.bytes_moved, self.peak_bytes, self.physical_bytes)
        return self.name, *map(whole, counts), *map(nbytes, sizes), str(self.step or "–")


HEAD = ("", "nodes", "rewrites", "dispatches", "groups", "bytes moved", "peak", "memory", "µs/step")


class Variants:
    """What a `Study` knows of its variants."""

    def variant(
        self: Any,
        name: str = "",
        *,
        disable: Iterable[str] = (),
        only: Iterable[str] = (),
        enable: Iterable[str] = (),
        allow: Safety = "rounding",
        compile: CompileOptions = _DEFAULT,
        device: DeviceLike = None,
    ) -> Study:
        """The same graph under other rules or compile options, or for another device, as a study of its own; this one
        shows it beside its own result. At most 6 are kept in `.variants`: the oldest goes. What was made for the same
        options before is not made again."""
        options = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in
                   {"disable": disable, "only": only, "enable": enable}.items()}  # fmt: skip
        name = name or _name({**options, "allow": allow}, compile, device)
        where = self._device if device is None else device
        made = type(self)(
            self.graph, train=self.train, device=where, name=name, source=self.source, allow=allow, compile=compile,
            egraph=self.egraph, **options,
        )  # fmt: skip
        made.weights, made.made_of = self.weights, tuple(RULES)
        known = next((v for v in self.variants.values() if _same(v, made)), None)
        if known is not None and known.name == name:
            self.variants[name] = self.variants.pop(name)  # the newest again
            return known  # type: ignore[no-any-return]
        if known is not None:
            made.pipeline = known.pipeline
        _ = made.plan  # what is wrong with the options is said before anything is kept
        self.variants.pop(name, None)
        self.variants[name] = made
        while len(self.variants) > MOST_VARIANTS:
            del self.variants[next(iter(self.variants))]
        self.rev += 1
        return made  # type: ignore[no-any-return]

    def figures(self: Any) -> Figures:
        """The figures of this study alone: its row of `compare`."""
        plan, memory = self.plan, self.plan.memory
        rewrites = sum(n for report in self.reports for _, n in report.rules_fired)
        moved = sum(d.bytes_read + d.bytes_written for d in plan.dispatches)
        counts = len(self.final), rewrites, len(plan.dispatches), len(plan.groups)
        return Figures(self.name, *counts, moved, memory.peak_bytes, memory.physical_bytes, self.step_time)

    def compare(self: Any) -> str:
        """This study and its variants, one row each: nodes, rewrites, dispatches, groups, bytes moved, planned peak
        and memory, µs per step where `measure` was asked for."""
        rows = [s.figures().row() for s in (self, *self.variants.values())]
        return "\n".join(grid(HEAD, rows, right=range(1, len(HEAD)), indent=""))

    def measure(self: Any, steps: int = 20) -> dict[str, StepTime]:
        """Time a step of this study and of each variant: one after the other, `steps` times, in sessions of their own
        on one random batch, without an update. The study's session is not touched; it must not run meanwhile."""
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ArgumentError("measure", "steps", repr(steps), "an int ≥ 1")
        if self.has_session:
            self.runner.refuse_while_running("a measurement")
        studies = (self, *self.variants.values())
        with ExitStack() as open_ones:
            sessions = [open_ones.enter_context(_ready(study)) for study in studies]
            times = [[_step_seconds(session) for session in sessions] for _ in range(_WARM_UP + steps)]
        for study, own in zip(studies, zip(*times[_WARM_UP:], strict=True), strict=True):
            middle = float(np.median(own))
            study.step_time = StepTime(steps, middle, float(np.median(np.abs(np.subtract(own, middle)))))
        self.rev += 1
        return {study.name: study.step_time for study in studies}


def variant_stages(study: Study) -> list[PipelineStage]:
    """Return the optimized stage of each variant, as `variant:NAME` behind the stages of the study's pipeline."""
    return [
        replace(variant.pipeline.stage("optimized"), key=f"variant:{name}", title=f"Variant: {name}")
        for name, variant in study.variants.items()
    ]


def _ready(study: Study) -> Session:
    session = study.open_on(study.device)
    feeds = study.feeds()
    for node in (*study.graph.inputs, *study.graph.parameters):
        put = session.set_input if node.op == "input" else session.set_parameter
        put(node.name, feeds[node.name])
    return session


def _step_seconds(session: Session) -> float:
    began = time.perf_counter()
    session.step()
    session.wait()
    return time.perf_counter() - began


def _same(a: Any, b: Any) -> bool:
    """Whether two variants of one graph are made the same way: options, device class and the table of rules."""
    if (a.options, a.compile, a.weights is b.weights) != (b.options, b.compile, True):
        return False
    targets = (a.device.target, str(a.device.info)) == (b.device.target, str(b.device.info))
    return targets and list(map(id, a.made_of)) == list(map(id, b.made_of))


def _name(options: Mapping[str, Any], compile: CompileOptions, device: DeviceLike) -> str:
    """What is different, in words: `no Silu+Mul→SwiGLU`, `only F`, `allow approx`, `no fusion; serial`, `cpu`."""
    words = {"disable": "no", "only": "only", "enable": "enable"}
    parts = [f"{word} {', '.join(options[key])}" for key, word in words.items() if options[key]]
    parts += [f"allow {options['allow']}"] if options["allow"] != "rounding" else []
    switched = {"no fusion": not compile.fuse_dispatches, "no aliasing": not compile.alias, "serial": compile.serial,
                "reordered": compile.reorder}  # fmt: skip
    parts += [word for word, on in switched.items() if on]
    parts += [f"tiles {'×'.join(map(str, compile.tile))}"] if compile.tile else []
    parts += [f"pinned {', '.join(compile.pin)}"] if compile.pin else []
    parts += [str(device)] if isinstance(device, str) else []
    return "; ".join(parts) or "as it is"
