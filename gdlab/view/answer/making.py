"""Make the answers of the debugging magics: checks, times of dispatches, watches, one dispatch, and the doctor."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.base.statistics import array_words, summarize
from gdlab.base.words import cell as figure
from gdlab.base.words import plural, sig
from gdlab.session.profile import DispatchProfile, SessionProfile
from gdlab.session.run.lookout import Lookout, Watched
from gdlab.study.gradcheck import GradientCheck, OperandCheck
from gdlab.study.parity import Check, CheckProgress, CheckRow
from gdlab.study.parity import ParityCell as Compared
from gdlab.study.study import Study
from gdlab.view.answer.answer_record import (
    Answer,
    Bar,
    BarAxis,
    Cell,
    Column,
    Counts,
    Course,
    Level,
    Link,
    Position,
    Section,
    Text,
    Tone,
    VerdictMark,
)
from gdlab.view.text.doctor import DoctorRow

_ERRORS = BarAxis("error as a multiple of the tolerance", 1.0, "tolerance")
_TIMES = BarAxis("µs")
_BLIND = "nothing to compare: the reference has no finite number here"


# check ----------------------------------------------------------------------------------------------------------------
def check_answer(check: Check, study: Study) -> Answer:
    """Return the picture of a check: the first difference of each executor, and all errors against the tolerance."""
    sections = [*_first_differences(check, study), _errors(check)]
    verdict = check.verdict
    if len(sections) > 1:  # the places stand below, as links
        differ = "differs" if len(check.first) == 1 else "differ"
        verdict = f"{check.name}: {' and '.join(check.first)} {differ} from the reference."
    level: Level = "bad" if not check.ok else "note" if check.blind else "ok"
    return Answer("", level, verdict, str(check), tuple(sections), study.key)


def progress_answer(progress: CheckProgress, study: Study) -> Answer:
    """Return the picture of a check under way: the executor that is at work, and the rows so far. It has no text: a
    terminal shows the result alone."""
    check = progress.so_far
    bar = Section("", (Column(""),), ((Position(progress.done, progress.of, progress.done),),))
    verdict = f"{check.name}: {_executor_at_work(progress.executor)}"
    return Answer("", "note" if check.ok else "bad", verdict, None, (bar, _errors(check)), study.key)


def stopped_answer(progress: CheckProgress, study: Study) -> Answer:
    """Return the picture of a check that was interrupted or failed."""
    verdict = f"{progress.so_far.name}: stopped while {_executor_at_work(progress.executor)}"
    return Answer("", "bad", verdict, None, (_errors(progress.so_far),), study.key)


def _executor_at_work(executor: str) -> str:
    at_work = {"reference": "computing the reference", "differences": "comparing gradients with differences"}
    return at_work.get(executor, f"comparing {executor}")


def _first_differences(check: Check, study: Study) -> list[Section]:
    rows = [
        (Text(executor), _link(study, check.places.get(executor, "")), Text(words, "error"))
        for executor, words in check.first.items()
        if words
    ]
    columns = Column("executor"), Column("place"), Column("difference", wide=True)
    return [Section("First difference", columns, tuple(rows))] if rows else []


def _errors(check: Check) -> Section:
    """Return the table of errors; rows with a difference first."""
    executors = [c for c in check.columns if any(c in row.cells for row in check.rows)]
    failed_first = sorted(check.rows, key=lambda row: not any(cell.problem for cell in row.cells.values()))
    columns = (
        Column(""),
        Column("output or gradient"),
        Column("type"),
        *(Column(c, right=True) for c in executors),
    )
    rows = tuple(_check_row(row, executors) for row in failed_first) if executors else ()
    fact = f"{_ERRORS.name}, logarithmic; the dashed line is the tolerance" if executors else ""
    return Section("Errors" if rows else "", columns, rows, fact, _ERRORS, check.notes)


def _check_row(row: CheckRow, executors: Sequence[str]) -> tuple[Cell, ...]:
    wrong = [f"{executor}: {cell.problem}" for executor, cell in row.cells.items() if cell.problem]
    agrees = VerdictMark("note", _BLIND) if row.blind else VerdictMark("ok", "within the tolerance")
    verdict = VerdictMark("bad", "; ".join(wrong)) if wrong else agrees
    cells = (_error(row.cells[e]) if e in row.cells else Text("") for e in executors)
    return verdict, Text(row.what, code=True), Text(row.type, "muted", code=True), *cells


def _error(cell: Compared) -> Cell:
    if cell.note:
        return Text(cell.note, "muted")
    told = cell.problem or f"{sig(cell.share)} of the tolerance"
    return Bar(cell.share, str(cell).removesuffix("  ✗"), tone="error" if cell.problem else "ok", told=told)


def gradient_answer(check: GradientCheck, study: Study) -> Answer:
    """Return the picture of `check_gradient`: one row per operand, its error against what is allowed."""
    columns = (
        Column(""),
        Column("operand"),
        Column("type"),
        Column("samples", right=True),
        Column("error", right=True),
    )
    rows = tuple(_operand(o) for o in check.operands)
    arrives = check.to_json()["told"].split("\n")[-1]
    table = Section("Operands", columns, rows, f"{_ERRORS.name}, logarithmic", _ERRORS, (arrives,))
    return Answer("", "ok" if check.ok else "bad", check.verdict, str(check), (table,), study.key)


def _operand(o: OperandCheck) -> tuple[Cell, ...]:
    name, type = Text(o.name, code=True), Text(o.type, "muted", code=True)
    if o.note:
        return VerdictMark("note", o.note), name, type, Text(""), Text(o.note, "muted")
    told = o.problem or f"{sig(o.allowed)} allowed"
    bar = Bar(o.error / o.allowed, sig(o.error), tone="error" if o.problem else "ok", told=told)
    verdict = VerdictMark("bad", o.problem) if o.problem else VerdictMark("ok", "the gradient is the slope")
    return verdict, name, type, Text(str(o.samples)), bar


# times ----------------------------------------------------------------------------------------------------------------
def profile_answer(profile: SessionProfile, study: Study, text: str) -> Answer:
    """Return the picture of measured times: one row per dispatch, the longest first, with its prediction."""
    total = sum(d.median for d in profile.dispatches)
    on = f"{plural(profile.samples, 'sample')} on {profile.device}"
    if not profile.dispatches:
        return Answer("", "note", on, text, (Section("", (), (), notes=(profile.reason,)),), study.key)
    longest_first = sorted(profile.dispatches, key=lambda d: -d.median)
    columns = (
        Column("dispatch"), Column("kernel"), Column("phase"), Column("measured, µs", right=True),
        Column("%", right=True), Column("predicted", right=True), Column("bound"),
    )  # fmt: skip
    notes = [f"predicted by the roofline of {profile.machine}", *([profile.reason] if profile.reason else [])]
    fact = "median time, logarithmic; the upright line is the prediction"
    rows = tuple(_timed(d, study) for d in longest_first)
    table = Section("Dispatches, longest first", columns, rows, fact, _TIMES, tuple(notes))
    told = f"{plural(len(profile.dispatches), 'dispatch')}, {sig(total * 1e6)} µs in all, {on}"
    return Answer("", "ok", told, text, (table,), study.key)


def _timed(d: DispatchProfile, study: Study) -> tuple[Cell, ...]:
    measured, predicted = d.median * 1e6, d.predicted * 1e6
    told = f"{sig(measured)} µs measured, {sig(predicted)} µs predicted"
    return (
        _link(study, f"dispatch:{d.index}", str(d.index)), Text(d.label, code=True), Text(d.phase, "muted"),
        Bar(measured, figure(measured), predicted, told=told), Text(figure(100 * d.share)), Text(figure(predicted)),
        Text(d.verdict, "muted"),
    )  # fmt: skip


# watches and steps ----------------------------------------------------------------------------------------------------
def watch_answer(study: Study) -> Answer:
    """Return the picture of watches and breakpoints."""
    lookout = study.runner.lookout
    sections = _watches(lookout, study) + _breaks(lookout)
    bad = [w.name for w in list(lookout.watches.values()) if w.nonfinite]
    counts = [(len(lookout.watches), "watch"), (len(lookout.breaks), "breakpoint")]
    told = " and ".join(plural(count, word) for count, word in counts if count) or "no watches and no breakpoints"
    verdict = f"{study.name}: {told}" + (f"; not finite: {', '.join(bad)}" if bad else "")
    return Answer("", "bad" if bad else "note", verdict, study.watching(), tuple(sections), study.key)


def _watches(lookout: Lookout, study: Study) -> list[Section]:
    columns = (
        Column("#", right=True), Column("tensor"), Column("type"), Column("value"), Column("not finite", right=True),
        Column("at"), Column("mean, step by step"),
    )  # fmt: skip
    rows = tuple(_watched(w, study) for w in list(lookout.watches.values()))
    return [Section("Watches", columns, rows)] if rows else []


def _watched(w: Watched, study: Study) -> tuple[Cell, ...]:
    history = list(w.history)
    means = tuple(mean for _, mean in history)
    told = f"mean of {w.name} from step {history[0][0]} to step {history[-1][0]}" if history else ""
    entity = study.debug.targets.find(w.name).about
    return (
        Text(str(w.id), "muted"), _link(study, entity, w.name), Text(str(w.tensor.type), "muted", code=True),
        Text(w.value, code=True), Text(str(w.nonfinite), "error") if w.nonfinite else Text(""),
        Text(f"step {w.step}" if w.step >= 0 else "no value yet", "muted"),
        Course(means, told) if len(means) > 1 else Text(""),
    )  # fmt: skip


def _breaks(lookout: Lookout) -> list[Section]:
    columns = (
        Column("#", right=True),
        Column("pause at", wide=True),
        Column("hits", right=True),
        Column("last"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (Text(str(b.id), "muted"), Text(b.text, code=True), Text(str(b.hits)),
         Text(f"step {b.last_step}", "muted") if b.hits else Text(""))
        for b in list(lookout.breaks.values())
    )  # fmt: skip
    return [Section("Breakpoints", columns, rows)] if rows else []


def step_answer(study: Study, verdict: str, text: str) -> Answer:
    """Return the picture of a position within a step: dispatches, the result of the current one, and the watches."""
    runner = study.runner
    sections = _watches(runner.lookout, study)
    if runner.dispatch >= 0:
        sections = [*_inside(study), *sections]
    sections += _breaks(runner.lookout)
    return Answer("", "bad" if runner.culprit else "note", verdict, text, tuple(sections), study.key)


def _inside(study: Study) -> list[Section]:
    runner, made = study.runner, study.session.step_dispatches()
    at, (dispatch, data) = runner.dispatch, runner.output()
    names = tuple(f"dispatch {k}: {d.label}" for k, d in enumerate(made))
    strip = Section("Step", (Column(""),), ((Position(at + 1, len(made), at, names),),), runner.place)
    summary = summarize(data)
    spread: Cell = Text("")
    if data.size > 1:
        spread = Counts(summary.histogram.counts, sig(summary.histogram.low), sig(summary.histogram.high))
    bad = Text(str(summary.nonfinite), "error") if summary.nonfinite else Text("")
    columns = (
        Column("dispatch"), Column("kernel"), Column("wrote"), Column("value"), Column("not finite", right=True),
        Column("histogram"),
    )  # fmt: skip
    row: tuple[Cell, ...] = (
        _link(study, f"dispatch:{at}", str(at)), Text(dispatch.label, code=True),
        Text(str(dispatch.type), "muted", code=True), Text(array_words(data), code=True), bad, spread,
    )  # fmt: skip
    return [strip, Section("Result", columns, (row,))]


# doctor ---------------------------------------------------------------------------------------------------------------
def doctor_answer(rows: Sequence[DoctorRow], text: str) -> Answer:
    """Return the picture of `doctor`: what this machine has and lacks."""
    counts = {level: sum(row.level == level for row in rows) for level in ("bad", "note", "ok")}
    words = {"bad": "to mend", "note": "with advice", "ok": "in order"}
    told = ", ".join(f"{counts[level]} {words[level]}" for level in counts if counts[level])
    columns = Column(""), Column("part"), Column("found", wide=True), Column("advice", wide=True)
    tones: dict[str, Tone] = {"ok": "", "note": "", "bad": "error"}
    table = tuple(
        (VerdictMark(r.level, r.level), Text(r.name), Text(r.found), Text(r.advice, tones[r.level] if r.advice else ""))
        for r in rows
    )
    level: Level = "bad" if counts["bad"] else "note" if counts["note"] else "ok"
    return Answer("", level, told, text, (Section("", columns, table),))


# links ----------------------------------------------------------------------------------------------------------------
def _link(study: Study, entity: str, text: str = "") -> Cell:
    """Return a link; the nodes that answers name are of the first stage."""
    if not entity:
        return Text(text)
    kind, _, place = entity.partition(":")
    return Link(text or f"{kind} {place.rpartition('.')[2]}", entity)
