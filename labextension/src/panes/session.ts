// The live session: buttons, state, four big numbers, the loss, and the facts. It draws `Live` and sends commands.

import { indexesOf } from "../doc/select.ts";
import { selecting } from "./state.ts";
import { number } from "../doc/doc.ts";
import { drawChart } from "./chart.ts";
import { div, h, replace, setFlag, span, write, listen } from "../draw/dom.ts";
import { bytes, sig, whole } from "../doc/format.ts";
import type { Host } from "../live/host.ts";
import { noSession, primary, refusal, type Live } from "../live/live.ts";
import type { CommandName } from "../live/messages.ts";
import { body, either, empty, frame, select, sourceLine, type Child, type Context, type MakePane } from "./pane.ts";
import { Watches } from "./watches.ts";

const LABELS: Record<string, string> = {
  run: "Run",
  step: "Step",
  pause: "Pause",
  resume: "Resume",
  stop: "Stop",
  reset: "Reset",
};
const TELLS: Record<string, string> = {
  run: "makes exactly so many steps",
  step: "makes one step (n)",
  pause: "pauses before the next step (p)",
  resume: "makes the rest of the run (p)",
  stop: "pauses and drops the rest",
  reset: "back to the opening state: parameters, moments, counters",
};
const ICONS: Record<string, string> = { run: "▶", pause: "❚❚", resume: "▶", stop: "■", step: "" };
const WATCHED: Record<string, string> = {
  off: "nothing",
  loss: "loss, every step",
  parameters: "parameters and gradients, every step",
  everything: "every buffer, before every step",
};
const QUEUED = "queued: kernel is busy";

const pointsOf = (loss: readonly unknown[]) =>
  loss.map((each, i) =>
    Array.isArray(each) ? ([number(each[0]), number(each[1])] as const) : ([i + 1, number(each)] as const),
  );

/** The runs of before a reset. */
const earlier = ({ doc }: Context) =>
  doc.runs.filter(run => run.label).map(run => ({ label: run.label!, points: pointsOf(run.loss) }));

/** The last run that the document holds, for a study whose session is gone. */
function recorded(context: Context): Live {
  const run = context.doc.runs.at(-1);
  if (!run) return noSession;
  const { counters } = run;
  return {
    ...noSession,
    state: "closed",
    reason: "recorded",
    step: counters.steps ?? run.loss.length,
    wanted: counters.steps ?? run.loss.length,
    points: pointsOf(run.loss),
    counters: {
      ...noSession.counters,
      ...counters,
      dispatches_per_step: counters.steps ? Math.round((counters.dispatches ?? 0) / counters.steps) : 0,
    },
    device: [run.device, run.adapter].filter(Boolean).join(", "),
    memory: run.memory?.text ?? "",
    events: run.events ?? [],
    optimizer: context.doc.plan?.optimizer ?? "",
  };
}

class SessionPanel {
  readonly #context: Context;
  readonly #steps = h("input", {
    class: "gd-steps-field",
    type: "number",
    min: 1,
    step: 1,
    value: 100,
    "aria-label": "number of steps to run",
    "data-command": "steps",
  });
  readonly #buttons = new Map<CommandName, HTMLButtonElement>();
  readonly #settings: HTMLSelectElement[] = [];
  #sure: ReturnType<typeof setTimeout> | undefined;
  readonly #words = new Map<CommandName, HTMLElement>();
  readonly #state = h("span", { class: "gd-state", "data-value": "state" });
  readonly #values = new Map<string, HTMLElement>();
  readonly #units = new Map<string, HTMLElement>();
  readonly #chart = div("gd-chartbox");
  readonly #facts = h("dl", { class: "gd-facts" });
  readonly #message = h("p", { class: "gd-note", "data-level": "error", role: "alert", hidden: true });
  readonly #hint = empty("No session yet. ", h("code"), ", or press Run.");
  readonly #events = h("ol", { class: "gd-events", "aria-label": "events" });
  readonly #observer: ResizeObserver;
  readonly #shown: HTMLElement;
  readonly #watches: Watches;
  /** What the memory holds, in units that fit. */
  readonly #parts: string;
  #width = 0;
  #log = false;
  #frame = 0;
  #seen = false;
  #written = 0;
  #drawn: Live | null = null;
  readonly el: HTMLElement;

  constructor(context: Context) {
    this.#context = context;
    const {
      parameter_bytes: weights = 0,
      state_bytes: state = 0,
      physical_bytes: all = 0,
    } = context.doc.plan?.memory ?? {};
    this.#parts = [
      `parameters ${bytes(weights)}`,
      state > 0 && `optimizer state ${bytes(state)}`,
      `the rest ${bytes(Math.max(0, all - weights - state))}`,
    ]
      .filter(Boolean)
      .join(", ");
    const runGroup = span("gd-rungroup", this.#button("run"), this.#steps);
    const top = div(
      "gd-buttons",
      runGroup,
      this.#button("step"),
      this.#button("pause"),
      this.#button("resume"),
      this.#button("stop"),
      this.#button("reset"),
      this.#setting(
        "speed",
        [
          ["", "full speed"],
          ["10", "10 steps/s"],
          ["1", "1 step/s"],
        ],
        value => ({ steps_per_second: value ? Number(value) : null }),
      ),
      this.#setting(
        "watch",
        [
          ["loss", "watch the loss"],
          ["parameters", "watch parameters"],
          ["everything", "watch everything"],
          ["off", "watch nothing"],
        ],
        mode => ({ mode }),
      ),
      this.#state,
    );
    const numbers = div(
      "gd-bigs gd-four",
      this.#big("step", "step"),
      this.#big("loss", "loss"),
      this.#big("rate", "steps per second"),
      this.#big("dispatches_per_step", "dispatches per step"),
    );
    this.#hint.querySelector("code")!.textContent = `%graph_run ${context.doc.title || "NAME"} 100`;
    this.#watches = new Watches(context);
    this.#shown = div(
      "gd-shown",
      div("gd-figures", numbers, this.#scale(), this.#chart),
      div("gd-side", this.#events, this.#facts),
      this.#watches.el,
    );
    this.el = frame("session", "Session", "", [
      body({ class: "gd-session" }, top, this.#message, this.#hint, this.#shown),
    ]);
    this.#observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry!.contentRect.width);
      if (Math.abs(width - this.#width) > 1) {
        this.#width = width;
        this.#curve();
      }
    });
    this.#observer.observe(this.#chart);
    listen(this.#steps, "keydown", event => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.#press("run");
      }
    });
  }

  destroy(): void {
    this.#observer.disconnect();
    clearTimeout(this.#sure);
    cancelAnimationFrame(this.#frame);
  }

  #button(name: CommandName): HTMLButtonElement {
    const icon = ICONS[name],
      word = h("span", null, LABELS[name]!);
    const made = h(
      "button",
      { class: "gd-button", "data-command": name, on: { click: () => this.#press(name) } },
      icon && h("span", { class: "gd-icon", "aria-hidden": "true" }, icon),
      word,
    );
    this.#buttons.set(name, made);
    this.#words.set(name, word);
    return made;
  }

  #setting(
    name: CommandName,
    options: [string, string][],
    args: (value: string) => Record<string, unknown>,
  ): HTMLElement {
    const made = select(name, options, options[0]![0], value => this.#context.send(name, args(value)));
    made.dataset.command = name;
    this.#settings.push(made);
    return made;
  }

  #scale(): HTMLElement {
    const holder = div("gd-scale");
    const draw = () => {
      replace(
        holder,
        either("scale of the loss", "linear", "log", this.#log, value => {
          this.#log = value;
          draw();
          this.#curve();
        }),
      );
    };
    draw();
    return holder;
  }

  #big(name: string, unit: string): HTMLElement {
    const value = h("span", { "data-value": name }, "–"),
      more = span("gd-of");
    this.#values.set(name, value);
    this.#values.set(`${name}+`, more);
    const below = div("gd-unit", unit);
    this.#units.set(name, below);
    return div("gd-big", div("gd-number", value, more), below);
  }

  #press(name: CommandName): void {
    const context = this.#context;
    if (refusal(context.live().state, Boolean(context.host()), name)) return;
    if (name === "reset" && !this.#sure) {
      // It throws steps away: the second press within four seconds does it.
      write(this.#words.get("reset")!, "Reset?");
      this.#sure = setTimeout(() => {
        this.#sure = undefined;
        write(this.#words.get("reset")!, "Reset");
      }, 4000);
      return;
    }
    clearTimeout(this.#sure);
    this.#sure = undefined;
    const wanted = Math.max(1, Math.floor(Number(this.#steps.value)) || 1);
    context.send(name, name === "run" ? { steps: wanted } : {});
  }

  show(live: Live, host: Host | null): void {
    const shown =
      live.state === "none" && !host
        ? recorded(this.#context)
        : live.state === "none" && this.#context.doc.runs.length > 0
          ? { ...recorded(this.#context), state: "none" as const }
          : live;
    this.#controls(live, host);
    this.#watches.show(live, host);
    this.#numbers(shown);
    const started = shown.state !== "none" || shown.points.length > 0;
    this.#hint.hidden = started;
    this.#shown.hidden = !started;
    this.#message.hidden = !live.error && live.state !== "failed";
    write(this.#message, live.error || (live.state === "failed" ? live.reason : ""));
    write(this.el.querySelector(".gd-fact")!, shown.optimizer || (started ? "no update rule" : ""));
    if (this.#drawn?.points !== shown.points || this.#drawn?.wanted !== shown.wanted) {
      this.#drawn = shown;
      this.#frame ||= requestAnimationFrame(() => this.#curve()); // once for all messages of a frame
    }
    this.#drawn = shown;
    this.#writeFacts(shown);
    this.#writeEvents(shown);
  }

  #controls(live: Live, host: Host | null): void {
    const connected = Boolean(host) && !host!.dead,
      queued = new Set(host?.pending.filter(each => each.queued).map(each => each.name));
    const main = primary(live.state);
    for (const [name, element] of this.#buttons) {
      const why = refusal(live.state, connected, name),
        waits = queued.has(name);
      element.disabled = why !== null;
      element.title = why ?? (waits ? QUEUED : TELLS[name]!);
      element.setAttribute(
        "aria-label",
        waits ? `${LABELS[name]}, ${QUEUED}` : name === "run" ? "Run that many steps" : LABELS[name]!,
      );
      setFlag(element, "data-primary", name === main);
      setFlag(element, "data-queued", waits);
      if (name !== "reset" || !this.#sure) write(this.#words.get(name)!, waits ? QUEUED : LABELS[name]!);
    }
    // One place for both: Pause while running, Resume while paused.
    const resumes = live.state === "paused";
    this.#buttons.get("resume")!.hidden = !resumes;
    this.#buttons.get("pause")!.hidden = resumes;
    for (const each of this.#settings) each.disabled = !connected || live.state === "none";
    const watch = this.#settings.at(-1)!;
    if (live.watch && document.activeElement !== watch) watch.value = live.watch;
    this.#steps.disabled = refusal(live.state, connected, "run") !== null;
    const word = host?.dead
      ? `closed: ${live.reason}`
      : !host
        ? "no live session"
        : live.state === "none"
          ? "no session yet"
          : live.state;
    this.#state.dataset.state = connected ? live.state : "none";
    write(this.#state, live.state === "paused" && live.reason ? `paused: ${live.reason}` : word);
  }

  #set(name: string, value: number, text: string): void {
    const element = this.#values.get(name)!;
    write(element, text);
    element.dataset.number = String(value);
    setFlag(element, "data-broken", name === "loss" && text !== "–" && !Number.isFinite(value));
  }

  #numbers({ step, wanted, points, counters }: Live): void {
    this.#set("step", step, whole(step));
    write(this.#values.get("step+")!, wanted > 0 ? ` / ${whole(wanted)}` : "");
    const loss = points.at(-1)?.[1] ?? NaN;
    this.#set("loss", loss, points.length > 0 ? sig(loss) : "–");
    const rate = counters.steps_per_second;
    this.#set("rate", rate, rate > 0 ? sig(rate) : "–");
    this.#set(
      "dispatches_per_step",
      counters.dispatches_per_step,
      counters.dispatches_per_step > 0 ? whole(counters.dispatches_per_step) : "–",
    );
    const all = h(
      "span",
      { "data-value": "dispatches", "data-number": counters.dispatches },
      whole(counters.dispatches),
    );
    const unit = this.#units.get("dispatches_per_step")!;
    if (unit.querySelector("span")?.textContent !== all.textContent)
      replace(unit, "dispatches per step, ", all, " in all");
  }

  #curve(): void {
    this.#frame = 0;
    if (this.#width < 50 || !this.#drawn) return;
    const { points, wanted } = this.#drawn;
    this.#chart.replaceChildren(drawChart(points, wanted, this.#width, 200, this.#log, earlier(this.#context)));
  }

  #writeFacts({ device, memory, optimizer, watch, counters, state }: Live): void {
    const rows: [string, string][] = [
      ["device", device],
      ["memory", memory],
      ["of it", this.#parts],
      ["update", optimizer || "no update rule: parameters do not change"],
      ["watched", WATCHED[watch] ?? watch],
      [
        "sent",
        counters.submissions > 0
          ? `${whole(counters.submissions)} submissions, ${bytes(counters.bytes_up)} up, ${bytes(counters.bytes_down)} down`
          : "",
      ],
      ["groups", counters.groups > 0 ? `${whole(counters.groups)} barrier groups per step` : ""],
    ];
    const wanted = rows.filter(([name, value]) => value && (name !== "update" || state !== "none"));
    if (wanted.map(row => row.join()).join() === this.#facts.dataset.shown) return;
    this.#facts.dataset.shown = wanted.map(row => row.join()).join();
    replace(
      this.#facts,
      ...wanted.flatMap(([name, value]) => [
        h("dt", null, name),
        h("dd", { "data-value": name, "data-warn": name === "update" && !optimizer }, value),
      ]),
    );
  }

  /** The written lines that the dispatch of an event came from: the one that its text names, if it does. */
  #linesOf(about: string | null, text: string): Child[] {
    if (!about?.startsWith("dispatch:")) return [];
    const { doc, reached } = this.#context,
      rows = new Map<number, number>();
    for (const each of indexesOf("line", reached(about))) rows.set(doc.lines[each]!.line, each);
    const named = rows.get(Number(/line (\d+)/.exec(text)?.[1]));
    return (named === undefined ? [...rows.values()].slice(0, 3) : [named]).map(row => sourceLine(doc, row));
  }

  #writeEvents({ events }: Live): void {
    const known = this.#written;
    if (known === events.length) return void (this.#seen = true);
    this.#written = events.length;
    const told = events.filter(
      ({ kind, step }) => kind !== "pause" || !events.some(each => each.kind === "nonfinite" && each.step === step),
    );
    replace(
      this.#events,
      ...told.map(({ step, kind, text, about }) =>
        h(
          "li",
          { "data-kind": kind, "data-entity": about, tabindex: about ? -1 : null },
          !/^step \d/.test(text) && span("gd-muted", `step ${whole(step)} `),
          text,
          ...this.#linesOf(about, text),
        ),
      ),
    );
    this.#context.redrawn("session");
    // The first bad dispatch lights its node and line, as if it had been clicked.
    const cause = events.slice(known).find(({ kind, about }) => kind === "nonfinite" && about?.startsWith("dispatch:"));
    if (cause && this.#seen) this.#context.act(selecting([cause.about!]));
    this.#seen = true;
  }
}

export const sessionPane: MakePane = context => {
  const panel = new SessionPanel(context);
  panel.show(context.live(), context.host());
  return { el: panel.el, live: (live, host) => panel.show(live, host), destroy: () => panel.destroy() };
};
