"""Make the picture of a tuning landscape: for each product all schedules that were tried, as bars of their times."""

from __future__ import annotations

from gdlab.base.words import cell as figure
from gdlab.base.words import sig
from gdlab.devices.tune import TuningProgress
from gdlab.devices.tuning_file import TunedKernel
from gdlab.study.execution import PlanTuning
from gdlab.study.study import Study
from gdlab.view.answer.answer_record import (
    Answer,
    Bar,
    BarAxis,
    Cell,
    Column,
    Level,
    Position,
    Section,
    Text,
    VerdictMark,
)
from gdlab.view.text.tuning_text import (
    TrialRow,
    kernel_words,
    places_words,
    plan_tuning_text,
    plan_tuning_words,
    time_words,
    trial_rows,
)

_TIMES = BarAxis("µs")


def tuning_answer(tuning: PlanTuning, study: Study) -> Answer:
    """Return the landscape of a plan's products, in the order of the operations that they make."""
    verdict, notes = plan_tuning_words(tuning)
    sections = [_product(kernel, places) for kernel, places in tuning.kernels]
    if notes:
        sections.append(Section("", (), (), notes=notes))
    level: Level = "ok" if tuning.kernels else "note"
    return Answer("", level, f"{verdict} ({tuning.device})", plan_tuning_text(tuning), tuple(sections), study.key)


def tuning_progress_answer(progress: TuningProgress, study: Study) -> Answer:
    """Return the picture of a search under way: the product at work. It has no text: a terminal shows the result alone.
    """
    bar = Section("", (Column(""),), ((Position(progress.done, progress.of, progress.done),),))
    return Answer("", "note", f"{study.name}: timing the schedules of {progress.kernel}", None, (bar,), study.key)


def _product(kernel: TunedKernel, places: tuple[int, ...]) -> Section:
    columns = (
        Column(""), Column("schedule"), Column("time, µs", right=True), Column("of the rule's", right=True),
        Column("", wide=True),
    )  # fmt: skip
    rows = tuple(_tried(row, kernel) for row in trial_rows(kernel))
    fact = "logarithmic; the upright line is the rule's time"
    return Section(kernel.kernel, columns, rows, fact, _TIMES, (f"{places_words(places)}: {kernel_words(kernel)}",))


def _tried(row: TrialRow, kernel: TunedKernel) -> tuple[Cell, ...]:
    trial, name = row.trial, Text(row.trial.name, code=True)
    if trial.refused:
        return VerdictMark("bad", "refused"), name, Text(""), Text(""), Text(row.words, "error")
    rule, spent = kernel.rule, trial.nanoseconds / 1e3
    bar = Bar(
        spent, figure(spent), rule.nanoseconds / 1e3, tone="ok" if row.chosen else "",
        told=f"{time_words(trial)}, by rule {time_words(rule)}",
    )  # fmt: skip
    mark: Cell = VerdictMark("ok", "chosen") if row.chosen else Text("")
    return mark, name, bar, Text(sig(row.share)), Text(row.words, "" if row.chosen else "muted")
