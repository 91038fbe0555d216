"""The connection between a study and its live views in a page: one anywidget model per study, its panel, and the
reporter thread that feeds it.

Handlers run on the main thread or on a subshell's, two at a time: they validate, hand work to the owner and return.
Frames go out from the reporter, never through the main event loop, so that they arrive while a cell runs.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Protocol

import anywidget
import traitlets

from gdlab.base.errors import ArgumentError, GdlabError
from gdlab.base.threads import Job, snapshot
from gdlab.devices.base import owner
from gdlab.distributed.run_record import engines_run_of
from gdlab.distributed.sweep import sweep_of
from gdlab.jupyter.commands import COMMANDS
from gdlab.jupyter.messages import (
    PROTOCOL,
    BreakRow,
    Counters,
    Doc,
    Event,
    Metrics,
    NormRow,
    Reply,
    ReplyError,
    State,
    Sweep,
    WatchRow,
)
from gdlab.session.run.lookout import Lookout
from gdlab.session.run.runner import Runner
from gdlab.study.study import Study
from gdlab.view.document.engine_runs import engines_section
from gdlab.view.document.pack import packed
from gdlab.view.document.passes import number
from gdlab.view.document.runs import norm_courses, thinned
from gdlab.view.document.selection import selection_of
from gdlab.view.document.sweeps import section

PARTS = ("gdlab", "later")  # of the front end, in the order in which a page needs them
_FRAME_SECONDS = 0.05
_RESEND_SECONDS = 0.5
_SWEEP_SECONDS = 0.25
_MAX_UNACKED = 2
_MAX_POINTS = 400  # loss points of one frame; more are merged to minimum, maximum and last
_COURSE = 60  # samples of a watched tensor that are sent
_SLOW_SECONDS = 0.4  # between two readings of what a running session changes slowly, or takes long to tell


@functools.cache
def static_text(name: str) -> str:
    """Return a built file of the front end; the error says how to build it."""
    path = files("gdlab") / "static" / name
    if not path.is_file():
        raise ArgumentError("widget", "front end", f"no {name}", "a built front end: pip install -e . (or make demo)")
    return path.read_text(encoding="utf-8")


class GraphWidget(anywidget.AnyWidget):
    """The model of one study in the page; all but small scalars is sent as messages."""

    _esm = traitlets.Unicode().tag(sync=True)
    study = traitlets.Unicode().tag(sync=True)
    rev = traitlets.Int(0).tag(sync=True)
    state = traitlets.Unicode("none").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    selected: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    replaced = traitlets.Unicode("").tag(sync=True)  # the key of the study that has the name now
    kept: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)


class Panel:
    """The counterpart of the page for one study: it answers commands and sends news."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.widget = GraphWidget(_esm=static_text("loader.js"), study=study.key)
        self.lock = threading.Lock()
        self.shown, self.views = True, 0
        self.frame = self.acked = 0
        self.sent_at = self.slow_at = 0.0
        self.sent_step, self.sent_events, self.told = 0, 0, ""
        self.sent_heard = 0  # losses of a run over engines that is under way
        self.want_full = True
        self.closed = False
        self.sweep_told, self.sweep_sent_at = ("", -1), 0.0  # key and changes of the sweep that was sent
        self.document: Any = None
        self.picture = ""  # the SVG of the newest output
        self.runner: Any = None  # the one whose figures were sent
        self.fixed = (0, 0, "")  # dispatches per step, groups and memory of its session
        self.selection = selection_of(study)
        self.widget.selected = self.selection.names
        self.selection.listeners.append(self._select)
        self.widget.observe(lambda change: self.selection.set(change["new"]), "selected")
        self.widget.kept = self.selection.kept
        self.selection.keepers.append(self._keep)
        self.widget.observe(lambda change: self.selection.keep(change["new"]), "kept")
        _keep_subshell(self.widget)
        self.widget.on_msg(lambda _widget, content, _buffers: self.receive(content))
        _reporter.add(self)

    # -- page -> kernel ------------------------------------------------------------------------------------------------
    def receive(self, content: Any) -> None:
        """Receive one message from the page; ignore any that is no message of ours."""
        if not isinstance(content, dict):
            return
        match content.get("type"):
            case "hello":
                self._hello(content)
            case "command":
                self._command(content)
            case "ack":
                self._ack(content)
            case "visible":
                self._visible(content)
            case "core":
                self._core(content)

    def _hello(self, message: dict[str, Any]) -> None:
        with self.lock:
            # A page that reloads has said that it shows nothing any more; who says hello shows something.
            self.want_full, self.acked, self.shown = True, self.frame, True
        if self.document is not None and message.get("have") != self.document.data["id"]:
            self.send_doc()
        _reporter.wake()

    def _ack(self, message: dict[str, Any]) -> None:
        frame = message.get("frame")
        if isinstance(frame, int):
            with self.lock:
                self.acked = max(self.acked, min(frame, self.frame))

    def _visible(self, message: dict[str, Any]) -> None:
        with self.lock:
            shown = bool(message.get("shown"))
            self.want_full |= shown and not self.shown
            self.shown = shown
        _reporter.wake()

    def _core(self, message: dict[str, Any]) -> None:
        """Send the picture, which appears at once, then the parts of the front end."""
        texts = {"picture": self.picture, **{part: static_text(f"{part}.js") for part in PARTS}}
        for part, text in texts.items():
            self._reply(message.get("req"), {"version": PROTOCOL, "part": part}, buffers=[text.encode()])

    def _command(self, message: dict[str, Any]) -> None:
        req, name, args = message.get("req"), message.get("name"), message.get("args")
        command = COMMANDS.get(name) if isinstance(name, str) else None
        if command is None or not isinstance(req, int) or not isinstance(args, dict):
            self._refuse(req, ArgumentError("command", "name", repr(name), f"one of {', '.join(COMMANDS)}"))
            return

        def job() -> Job[None]:
            try:
                self._reply(req, command(self.study, args) or {})
            except Exception as error:  # whatever went wrong is the page's answer; the kernel goes on
                self._refuse(req, error)
            self.refresh()
            return
            yield

        execution = self.study.execution
        (execution.session.loaded.turn if execution.has_session else owner()).post(job())

    def _refuse(self, req: Any, error: Exception) -> None:
        told = ReplyError(type(error).__name__, str(error), None)
        self._send(Reply(req if isinstance(req, int) else -1, False, None, told))

    def _reply(self, req: Any, result: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self._send(Reply(req if isinstance(req, int) else -1, True, result, None), buffers)

    # -- kernel -> page ------------------------------------------------------------------------------------------------
    def _send(self, message: Any, buffers: list[bytes] | None = None) -> None:
        if not self.closed:
            self.widget.send({"type": type(message).__name__.lower(), **asdict(message)}, buffers)

    def show(self, document: Any, picture: str = "") -> None:
        """Make `document` the one that this study's views draw; send it to views that are on the page already.
        `picture`: the SVG of the output, for a page that has no front end yet."""
        self.picture = picture
        older, self.document = self.document, document
        if older is not None and any(older.data[key] != document.data[key] for key in ("id", "view")):
            self.send_doc()

    def refresh(self) -> None:
        """Build the document anew if the study has changed (a session was opened), and tell the page."""
        if self.document is not None and self.document.data.get("rev") != self.study.rev:
            self.document = self.study.doc.with_view(self.document.data["view"])
            self.send_doc()
        _reporter.wake()

    def send_doc(self) -> None:
        """Send the whole document."""
        self._send(Doc(self.study.rev, packed(self.document.with_view(self.document.data["view"]).data)))

    def _report_sweep(self, now: float) -> None:
        """Send the sweep of the study where it has changed, at most four times a second while it runs."""
        sweep = sweep_of(self.study)
        if sweep is None or self.document is None or not self.shown:
            return
        if (self.document.data.get("sweep") or {}).get("key") != sweep.key:
            self.refresh()
        told, ended = (sweep.key, sweep.changes), sweep.state not in ("running", "paused")
        if told != self.sweep_told and (ended or now - self.sweep_sent_at > _SWEEP_SECONDS):
            self.sweep_told, self.sweep_sent_at = told, now
            self._send(Sweep(section(sweep)))

    def report(self, now: float) -> None:
        """Send new figures and events, unless the page lags behind; called by the reporter every 50 ms."""
        if not self.closed:
            if self.want_full:
                self.sweep_told = ("", -1)
            self._report_sweep(now)
        with self.lock:
            late = now - self.sent_at > _RESEND_SECONDS
            if self.closed or not self.shown or (self.frame - self.acked >= _MAX_UNACKED and not late):
                return
            metrics = self._metrics()
            digest = f"{metrics.state}{metrics.step}{metrics.wanted}{metrics.optimizer}{len(metrics.loss)}"
            digest += f"{metrics.place}{metrics.watches}{metrics.breaks}{metrics.under_way}{metrics.engines}"
            if digest == self.told and not self.want_full:
                return
            self.told, self.want_full, self.sent_at = digest, False, now
        self._send(metrics)
        self._send_events()
        with self.widget.hold_sync():
            self.widget.state, self.widget.step = metrics.state, metrics.step

    def _metrics(self) -> Metrics:
        study = self.study
        self.frame += 1
        opened = study.execution.opened
        if opened is None:
            device = str(study.device.info)
            return Metrics(
                self.frame, "none", "", 0, 0, [], _NO_COUNTERS, "", device, "", "", -1, "", -1, False, None, 0, [], [],
                None, self.want_full,
            )  # fmt: skip
        session, runner = opened
        if runner is not self.runner:  # a new session after a closed one: nothing of it was sent yet
            self.runner, self.sent_events, self.want_full = runner, 0, True
        full = self.want_full
        if full:  # a page that was reloaded knows no event; one that stayed drops what it has
            self.sent_events = 0
        since = 0 if full else self.sent_step
        since = min(since, len(runner.losses))  # a step may have been taken back
        points = runner.losses[since:]
        self.sent_step = since + len(points)
        traffic = session.traffic
        state: State = "closed" if session.closed else runner.state
        settled = full or state != "running" or time.monotonic() - self.slow_at >= _SLOW_SECONDS
        if settled:
            self.slow_at = time.monotonic()
        if settled and not session.closed:  # a closed one keeps its last figures on show
            each = session.totals()
            self.fixed = (each.dispatches, each.groups, session.memory_summary().text)
        per_step, groups, memory = self.fixed
        counters = Counters(
            session.step_count, traffic.dispatches, per_step, traffic.submissions, groups,
            traffic.upload_bytes, traffic.readback_bytes, runner.steps_per_second,
        )  # fmt: skip
        run = engines_run_of(study)
        under_way = run is not None and run.state == "running"
        step = session.step_count
        if run is not None and under_way:
            step, heard = run.base + run.step, run.points[0 if full else self.sent_heard :]
            self.sent_heard = (0 if full else self.sent_heard) + len(heard)
            points = [*points, *((run.base + run.accumulate * k, loss) for k, loss in heard)]
        else:
            self.sent_heard = 0
        loss = [[s, number(v)] for s, v in merge_points(points)]
        watches, breaks = _rows(runner.lookout)
        if state == "running":
            runner.norms.ask()
        return Metrics(
            self.frame, state, runner.reason or _clock(runner), step, runner.wanted, loss, counters,
            memory, str(session.device), str(session.optimizer), runner.nan_watch, runner.dispatch,
            runner.place, runner.dispatch_under_way(), runner.timed, norm_rows(study, runner) if settled else None,
            runner.norms.left_out, watches, breaks, None if run is None else engines_section(run), full,
        )  # fmt: skip

    def _send_events(self) -> None:
        opened = self.study.execution.opened
        if opened is None:
            return
        events = opened[1].events
        for e in events[self.sent_events :]:
            loss = f"node:0.{self.study.graph.output_ids[0]}"  # stage 0 is the graph as written, its rows are node ids
            self._send(Event(e.step, e.kind, e.about or (loss if e.kind == "nonfinite" else None), e.text))
        self.sent_events = len(events)

    @property
    def idle(self) -> bool:
        """Whether nothing changes until the next command."""
        opened, sweep = self.study.execution.opened, sweep_of(self.study)
        if sweep is not None and sweep.state in ("running", "paused"):
            return self.closed
        return self.closed or opened is None or opened[1].state != "running"

    def _select(self, names: list[str]) -> None:
        self.widget.selected = names

    def _keep(self, kept: dict[str, Any]) -> None:
        self.widget.kept = kept

    def close(self, replaced: str = "") -> None:
        """Send the last state, and the key of a study that replaces this one, and close the model; idempotent."""
        if not self.closed:
            with self.lock:
                self.want_full, self.shown = True, True
            self.report(time.monotonic() + _RESEND_SECONDS)
            self.closed = True
            self.selection.listeners.remove(self._select)
            self.selection.keepers.remove(self._keep)
            self.widget.replaced = replaced
            self.widget.layout.close()  # a model of its own, which the widget does not close
            self.widget.close()


_NO_COUNTERS = Counters(0, 0, 0, 0, 0, 0, 0, 0.0)


def _rows(lookout: Lookout) -> tuple[list[WatchRow], list[BreakRow]]:
    watches = [
        WatchRow(
            w.id, w.name, w.value, w.step, number(w.min), number(w.max), w.nonfinite,
            [number(v) for _, v in list(w.history)[-_COURSE:]],
        ) for w in list(lookout.watches.values())
    ]  # fmt: skip
    return watches, [BreakRow(b.id, b.text, b.hits) for b in list(lookout.breaks.values())]


def _clock(runner: Runner) -> str:
    """Say how much time is left of a run by the clock."""
    left = runner.stepper.seconds_left
    return f"{math.ceil(left)} s left" if left > 0 and runner.state == "running" else ""


def norm_rows(study: Study, runner: Runner) -> list[NormRow]:
    """Return the norms of gradients that were sampled so far."""
    return [
        NormRow(
            name, about, number(rows[-1][1]), rows[-1][0], rows[0][0], [number(v) for _, v in thinned(rows, _COURSE)]
        ) for name, about, rows in norm_courses(study, runner)
    ]  # fmt: skip


def merge_points(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `_MAX_POINTS` points, in order of steps: of each bucket the minimum, the maximum, the first that
    is not finite, and the last."""
    if len(points) <= _MAX_POINTS:
        return points
    size = -(-len(points) // (_MAX_POINTS // 3))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        finite = [p for p in bucket if math.isfinite(p[1])] or bucket
        low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
        broken = next((p for p in bucket if not math.isfinite(p[1])), low)
        kept += sorted({low, high, broken, bucket[-1]}, key=lambda p: p[0])
    return kept


def _keep_subshell(widget: GraphWidget) -> None:
    """Keep the page's own choice of a subshell, so that Pause works while a cell runs: ipykernel 7.4 sends a message to
    the shell that last published on the comm, which is the busy one. A private name, so it is looked for first."""
    comm = widget.comm
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


class ReportedPanel(Protocol):
    """A panel that the reporter polls for news to send."""

    want_full: bool

    @property
    def idle(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    def report(self, now: float) -> None: ...


# the reporter ---------------------------------------------------------------------------------------------------------
class Reporter:
    """One thread that sends new figures of every open panel at most 20 times a second; it sleeps while all are idle."""

    def __init__(self) -> None:
        self.panels: weakref.WeakSet[ReportedPanel] = weakref.WeakSet()
        self.bell = threading.Event()
        self.thread: threading.Thread | None = None

    def add(self, panel: ReportedPanel) -> None:
        """Report `panel` from now on."""
        self.panels.add(panel)
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self._loop, name="gdlab-reporter", daemon=True)
            self.thread.start()

    def wake(self) -> None:
        """Wake the thread: something may have changed."""
        self.bell.set()

    def _loop(self) -> None:
        was_busy = False
        while True:
            live = [p for p in snapshot(self.panels) if not p.closed]
            for panel in live:
                try:
                    panel.report(time.monotonic())
                except (GdlabError, RuntimeError):  # a session closed under us: the next frame says so
                    panel.want_full = True
            del live
            busy = any(not p.idle for p in snapshot(self.panels))
            if busy or was_busy:  # one more round after the last step: its state is news
                time.sleep(_FRAME_SECONDS)
            else:
                self.bell.wait(1.0)
            self.bell.clear()
            was_busy = busy


_reporter = Reporter()
_panels: weakref.WeakKeyDictionary[Study, Panel] = weakref.WeakKeyDictionary()


def panel_of(study: Study) -> Panel:
    """Return the panel of a study, made at first use; all outputs of the study share it."""
    panel = _panels.get(study)
    if panel is None or panel.closed:
        panel = _panels[study] = Panel(study)
    return panel


def close_panel(study: Study, replaced: str = "") -> None:
    """Close the study's model in the page, where there is one; `replaced`: the key of the study that replaces it."""
    panel = _panels.pop(study, None)
    if panel is not None:
        panel.close(replaced)


def report_to(panel: ReportedPanel) -> None:
    """Let the reporter poll `panel` from now on, and at once."""
    _reporter.add(panel)
    _reporter.wake()


def refresh(study: Study) -> None:
    """Send the page a cell's additions to the study's document."""
    panel = _panels.get(study)
    if panel is not None:
        panel.refresh()


def wake() -> None:
    """Let the reporter poll all panels at once."""
    _reporter.wake()
