// The live session: buttons, state, four figures, the loss, facts and events. It draws `Live` and sends commands.

import { sig, whole } from "../doc/format.ts";
import { indexesOf } from "../doc/select.ts";
import { boxOf, div, h, listen, onWidth, replace, setFlag, span, write } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { Live } from "../live/live.ts";
import { drawChart, type Began, type Chart } from "./chart.ts";
import { edgeCounters } from "./edge.ts";
import { Norms } from "./norms.ts";
import { enginesBox, showEngines } from "./engines.ts";
import { body, either, empty, frame, pane, sourceLine } from "./pane.ts";
import type { Child, Context, MakePane, Pane, PaneRecord } from "./pane.ts";
import { SessionControls } from "./session_controls.ts";
import { earlierRuns, listedEvents, memoryParts, sessionFacts, shownSession } from "./session_words.ts";
import { selecting } from "./state.ts";
import { Watches } from "./watches.ts";

const NO_DATA = " makes one; this output has no data to run on by itself: save it with --runnable.";
const CHART_HEIGHT = 200;
const LINES = 3; // of an event, where its text names none

/** A figure in large letters: `more` stands behind it, `unit` below it. */
interface Figure {
  el: HTMLElement;
  value: HTMLElement;
  more: HTMLElement;
  unit: HTMLElement;
}

function figure(name: string, text: string): Figure {
  const value = h("span", { "data-value": name }, "–");
  const more = span("gd-of");
  const unit = div("gd-unit", text);
  return { el: div("gd-big", div("gd-number", value, more), unit), value, more, unit };
}

function setFigure({ value }: Figure, number: number, text: string): void {
  write(value, text);
  value.dataset.number = String(number);
}

class SessionPanel implements Pane {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #controls: SessionControls;
  readonly #watches: Watches;
  readonly #engines = enginesBox();
  readonly #norms = new Norms();
  readonly #step = figure("step", "step");
  readonly #loss = figure("loss", "loss");
  readonly #rate = figure("rate", "steps per second");
  readonly #dispatches = figure("dispatches_per_step", "dispatches per step");
  readonly #scale = div("gd-scale");
  readonly #chart = div("gd-chartbox");
  readonly #facts = h("dl", { class: "gd-facts" });
  readonly #message = h("p", { class: "gd-note", "data-level": "error", role: "alert", hidden: true });
  readonly #hint: HTMLElement;
  readonly #events = h("ol", { class: "gd-events", "aria-label": "events" });
  readonly #shown: HTMLElement;
  readonly #observer: ResizeObserver;
  readonly #memoryParts: string;
  #width = 0;
  #log = false;
  #frame = 0;
  /** Whether events were drawn before, and their number. */
  #seen = false;
  #written = 0;
  #drawn: Live | null = null;
  #picture: Chart | null = null;
  /** The steps after which runs began in this view. */
  #began: Began[] = [];

  constructor(context: Context) {
    const { doc } = context;
    this.#context = context;
    this.#memoryParts = memoryParts(doc.plan);
    this.#controls = new SessionControls(context);
    this.#watches = new Watches(context);
    this.#hint = empty();
    const figures = [this.#step, this.#loss, this.#rate, this.#dispatches].map(({ el }) => el);
    this.#shown = div(
      "gd-shown",
      div("gd-figures", div("gd-bigs gd-four", ...figures), this.#scale, this.#chart),
      div("gd-side", this.#events, this.#facts),
      this.#engines,
      this.#norms.el,
      this.#watches.el,
    );
    const parts = [this.#controls.el, this.#message, this.#hint, this.#shown];
    this.el = frame(sessionPane, "", [body({ class: "gd-session" }, ...parts)]);
    this.#drawScale();
    this.#observer = onWidth(this.#chart, width => {
      this.#width = width;
      this.#drawChart();
    });
    listen(this.#chart, "pointermove", event => this.#picture?.read(event.clientX - boxOf(this.#chart).left));
    listen(this.#chart, "pointerleave", () => this.#picture?.read(-Infinity));
    this.live(context.live(), context.host());
  }

  live(live: Live, host: Host | null): void {
    const shown = shownSession(live, host, this.#context.doc);
    const started = shown.state !== "none" || shown.points.length > 0;
    const failed = live.state === "failed";
    this.#noteRun(shown);
    this.#controls.show(live, host);
    this.#watches.show(live, host);
    this.#writeFigures(shown);
    this.#hint.hidden = started;
    this.#writeHint(host);
    this.#shown.hidden = !started;
    this.#message.hidden = !live.error && !failed;
    write(this.#message, live.error || (failed ? live.reason : ""));
    write(this.el.querySelector(".gd-fact")!, shown.optimizer || (started ? "no update rule" : ""));
    // One drawing for all messages of a frame.
    if (this.#drawn?.points !== shown.points || this.#drawn?.wanted !== shown.wanted)
      this.#frame ||= requestAnimationFrame(() => this.#drawChart());
    this.#drawn = shown;
    this.#writeFacts(shown);
    showEngines(this.#engines, shown.engines);
    if (this.#norms.show(shown)) this.#context.redrawn("session");
    this.#writeEvents(shown);
  }

  destroy(): void {
    this.#observer.disconnect();
    this.#controls.destroy();
    cancelAnimationFrame(this.#frame);
  }

  #drawScale(): void {
    const pick = either("scale of the loss", "linear", "log", this.#log, log => {
      this.#log = log;
      this.#drawScale();
      this.#drawChart();
    });
    replace(this.#scale, pick);
  }

  #drawChart(): void {
    this.#frame = 0;
    if (this.#width < 50 || !this.#drawn) return;
    const { points, wanted } = this.#drawn;
    const earlier = earlierRuns(this.#context.doc);
    this.#picture = drawChart(points, wanted, this.#width, CHART_HEIGHT, this.#log, earlier, this.#began);
    this.#chart.replaceChildren(this.#picture.svg);
  }

  /** Mark in the chart the beginning of a run after others; single steps get no mark. */
  #noteRun(live: Live): void {
    const before = this.#drawn;
    const anew = before && live.step < before.step;
    if (anew) this.#began = [];
    const same = live.timed ? before?.state === "running" || before?.timed : live.wanted === before?.wanted;
    if (!before || anew || live.state !== "running" || same || before.step === 0) return;
    const length = live.wanted - before.step,
      label = live.timed ? "run by the clock" : `run of ${whole(length)}`;
    if (live.timed || length > 1) this.#began = [...this.#began, { step: before.step, label }];
  }

  /** Say how to begin: with a kernel, in the page, or not at all. */
  #writeHint(host: Host | null): void {
    const { doc } = this.#context,
      kind = host?.inPage ? "page" : host ? "kernel" : "none";
    if (this.#hint.dataset.kind === kind) return;
    this.#hint.dataset.kind = kind;
    const command = h("code", null, `%graph_run ${doc.title || "NAME"} 100`);
    const told: Record<string, Child[]> = {
      kernel: ["No session yet. ", command, ", or press Run."],
      page: ["Run computes in this page, on your own GPU: it runs the GPU code that the document brings along."],
      none: ["No session. ", command, NO_DATA],
    };
    replace(this.#hint, told[kind]!);
  }

  #writeFigures({ step, wanted, timed, points, counters }: Live): void {
    const { steps_per_second: rate, dispatches_per_step: dispatches } = counters;
    const loss = points.at(-1)?.[1] ?? NaN;
    setFigure(this.#step, step, whole(step));
    write(this.#step.more, wanted > 0 && !timed ? ` / ${whole(wanted)}` : "");
    setFigure(this.#loss, loss, points.length > 0 ? sig(loss) : "–");
    setFlag(this.#loss.value, "data-broken", points.length > 0 && sig(loss) !== "–" && !Number.isFinite(loss));
    setFigure(this.#rate, rate, rate > 0 ? sig(rate) : "–");
    setFigure(this.#dispatches, dispatches, dispatches > 0 ? whole(dispatches) : "–");
    const all = whole(counters.dispatches);
    const { unit } = this.#dispatches;
    if (unit.querySelector("span")?.textContent === all) return;
    const total = h("span", { "data-value": "dispatches", "data-number": counters.dispatches }, all);
    replace(unit, "dispatches per step, ", total, " in all");
  }

  #writeFacts(live: Live): void {
    const rows = sessionFacts(live, this.#memoryParts);
    const text = rows.join();
    if (text === this.#facts.dataset.shown) return;
    this.#facts.dataset.shown = text;
    replace(
      this.#facts,
      rows.map(([name, value]) => [
        h("dt", null, name),
        h("dd", { "data-value": name, "data-warn": name === "update" && !live.optimizer }, value),
      ]),
    );
  }

  /** The written lines that the dispatch of an event came from: the one that its text names, if it names one. */
  #linesOf(about: string | null, text: string): Child[] {
    if (!about?.startsWith("dispatch:")) return [];
    const { doc, reached } = this.#context;
    const rows = new Map(indexesOf("line", reached(about)).map(each => [doc.lines[each]!.line, each]));
    const named = rows.get(Number(/line (\d+)/.exec(text)?.[1]));
    return (named === undefined ? [...rows.values()].slice(0, LINES) : [named]).map(row => sourceLine(doc, row));
  }

  #writeEvents(live: Live): void {
    const { events } = live;
    const known = this.#written;
    const seen = this.#seen;
    this.#seen = true;
    if (known === events.length) return;
    this.#written = events.length;
    replace(
      this.#events,
      listedEvents(live).map(({ step, kind, text, about }) =>
        h(
          "li",
          { "data-kind": kind, "data-entity": about, tabindex: about ? -1 : null },
          !/^step \d/.test(text) && span("gd-muted", `step ${whole(step)} `),
          text,
          this.#linesOf(about, text),
        ),
      ),
    );
    this.#context.redrawn("session");
    // The first bad dispatch lights its node and line, as if it had been clicked.
    const cause = events.slice(known).find(({ kind, about }) => kind === "nonfinite" && about?.startsWith("dispatch:"));
    if (cause && seen) this.#context.act(selecting([cause.about!]));
  }
}

const make: MakePane = context => {
  const { edge } = context.doc;
  if (!edge) return new SessionPanel(context);
  const { told, el } = edgeCounters(edge);
  return { el: frame(sessionPane, told, [body(null, el)]) };
};

export const sessionPane: PaneRecord = pane("session", make);
