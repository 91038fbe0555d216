"""Tell the schedules that were tried for products, with their times: the text twin of the tuning landscape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gdlab.base.words import duration, grid, plural, sig
from gdlab.devices.base import DeviceInfo
from gdlab.devices.tuning_file import Trial, TunedKernel
from gdlab.study.execution import PlanTuning

SEARCH = "python -m gdlab bench --tune, %graph_tune NAME or SessionConfig(tune=seconds) searches"

NOT_IN_USE = (
    "The plan does not run all chosen schedules: it has a session, which keeps its own, or a tile was asked for. "
    "SessionConfig(tune=seconds) builds with them."
)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A schedule as the landscape shows it: its time as a multiple of the rule's, and in words which one it is, or why
    it was refused."""

    trial: Trial
    share: float
    chosen: bool
    words: str


def trial_rows(kernel: TunedKernel) -> list[TrialRow]:
    """Return the schedules of a kernel, the fastest first, refused ones last."""
    chosen, rule = kernel.chosen, kernel.rule
    ranked = sorted(kernel.trials, key=lambda t: (bool(t.refused), t.nanoseconds))
    return [TrialRow(t, t.nanoseconds / rule.nanoseconds, t is chosen, _words(t, kernel)) for t in ranked]


def _words(trial: Trial, kernel: TunedKernel) -> str:
    if trial.refused:
        return f"refused: {trial.refused}"
    if trial is kernel.rule:
        return "chosen: by rule, and no other is faster by more than 4 %" if trial is kernel.chosen else "by rule"
    return "chosen" if trial is kernel.chosen else ""


def kernel_words(kernel: TunedKernel) -> str:
    """Return in one line how a kernel's search ended."""
    chosen, rule = kernel.chosen, kernel.rule
    tried = f"{plural(len(kernel.trials), 'schedule')} tried"
    if chosen is rule:
        return f"{rule.name} as by rule, {time_words(rule)}; {tried}"
    return f"{chosen.name}, {time_words(chosen)} instead of {time_words(rule)}; {tried}"


def time_words(trial: Trial) -> str:
    """Return the time of a schedule with its unit."""
    return "–" if trial.refused else duration(trial.nanoseconds / 1e9)


def places_words(places: Sequence[int]) -> str:
    """Return the dispatches that compute a product."""
    return f"{'dispatch' if len(places) == 1 else 'dispatches'} {', '.join(map(str, places))}"


def verdict_words(kernels: Sequence[TunedKernel], untried: int = 0) -> str:
    """Return in one sentence how many products have another schedule than by rule, and how many were not tried yet."""
    other = sum(kernel.chosen is not kernel.rule for kernel in kernels)
    told = f"{plural(len(kernels), 'product')}, {other} with a faster schedule than by rule"
    return told + (f"; {untried} not tried yet" if untried else "")


def plan_tuning_words(tuning: PlanTuning) -> tuple[str, tuple[str, ...]]:
    """Return the verdict on a plan's products, and what to know or do besides."""
    if not tuning.kernels:
        if tuning.device.startswith("cpu"):
            return f"{tuning.name}: nothing to choose on cpu, which has one form of each kernel", ()
        if not tuning.untried:
            return f"{tuning.name}: no products", ()
        return f"{tuning.name}: nothing was tried yet", (f"{SEARCH} schedules",)
    notes = () if tuning.in_use else (NOT_IN_USE,)
    return f"{tuning.name}: {verdict_words([k for k, _ in tuning.kernels], tuning.untried)}", notes


def plan_tuning_text(tuning: PlanTuning) -> str:
    """Return the landscape of a plan's products."""
    verdict, notes = plan_tuning_words(tuning)
    tables = (line for kernel, places in tuning.kernels for line in _table(kernel, f" ({places_words(places)})"))
    return "\n".join([f"{verdict} ({tuning.device})", *tables, *notes])


def landscape_text(info: DeviceInfo, kernels: Iterable[TunedKernel]) -> str:
    """Return the landscape of all products that were tried on an adapter."""
    listed = list(kernels)
    if info.kind == "cpu":
        return f"{info}: nothing to choose on cpu, which has one form of each kernel"
    if not listed:
        return f"{info}: nothing was tried yet; {SEARCH} schedules"
    return "\n".join([f"{info}: {verdict_words(listed)}", *(line for kernel in listed for line in _table(kernel, ""))])


def _table(kernel: TunedKernel, where: str) -> Iterator[str]:
    rows = trial_rows(kernel)
    cells = [
        ("→" if row.chosen else "", row.trial.name, time_words(row.trial), "" if row.trial.refused else sig(row.share),
         row.words)
        for row in rows
    ]  # fmt: skip
    yield ""
    yield f"{kernel.kernel}{where}: {kernel_words(kernel)}"
    yield from grid(("", "schedule", "time", "of the rule's", ""), cells, right=(2, 3))
