// A sweep: its buttons and progress, all curves in one plot, a row per point. Live, or from the document.

import { number, type SweepPoint, type SweepSection } from "../doc/doc.ts";
import { plural, sig, whole } from "../doc/format.ts";
import { all, boxOf, div, h, listen, onWidth, replace, s, setFlag, SMALL_BUTTON } from "../draw/dom.ts";
import { span, svgPath, td, write } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { Live, Point } from "../live/live.ts";
import { asking, enliven } from "./ask.ts";
import { axisEnd, drawAxes, drawMarks, lineOf, moveDot, plot, scalesIn, ticks } from "./chart.ts";
import type { Scales, Size } from "./chart.ts";
import { body, button, empty, frame, pane, table, type Context, type Pane, type PaneRecord } from "./pane.ts";
import { showing } from "./whatif.ts";

const HEIGHT = 260,
  NEAR = 40; // pixels between the pointer and a curve
const CELLS = ["engine", "steps", "steps/s", "loss now", "lowest", "time"];
const ENDED = ["done", "failed", "stopped", "waiting"];

/** The points of a curve on the axis, without non-finite ones, or non-positive ones on a logarithmic axis. */
export function scaled({ curve }: SweepPoint, log: boolean): Point[] {
  return curve.flatMap(([step, value]) => {
    const loss = log ? Math.log10(number(value)) : number(value);
    return Number.isFinite(loss) ? [[step, loss] as const] : [];
  });
}

/** The parts of a curve between which it is out of the plot's range, each up to the point beyond the border, and the
 * points at which it leaves the range. */
export function pieces(points: readonly Point[], { low, high }: Scales): { parts: Point[][]; leaves: Point[] } {
  const outside = (point: Point | undefined) => point !== undefined && (point[1] < low || point[1] > high);
  const parts: Point[][] = [[]],
    leaves: Point[] = [];
  points.forEach((point, i) => {
    parts.at(-1)!.push(point);
    if (!outside(point)) return;
    parts.push([point]);
    if (!outside(points[i - 1])) leaves.push(point);
  });
  return { parts: parts.filter(part => part.some(point => !outside(point))), leaves };
}

/** The curve and the point on it that are nearest to a place: [curve, point], or null where none is near. */
export function nearest(curves: readonly (readonly Point[])[], at: number, height: number): [number, number] | null {
  let best: [number, number] | null = null,
    least = NEAR ** 2;
  curves.forEach((curve, i) =>
    curve.forEach(([x, y], k) => {
      const far = (x - at) ** 2 + (y - height) ** 2;
      if (far <= least) [best, least] = [[i, k], far];
    }),
  );
  return best;
}

/** The scales of the plot, whose range is in the document. */
function scalesOf({ range, log, points }: SweepSection, size: Size): Scales {
  const [low, high] = range.map(each => (log ? Math.log10(number(each)) : number(each))) as [number, number];
  const most = axisEnd(Math.max(0, ...points.map(each => each.steps)), Math.max(...points.map(each => each.wanted)));
  const powers = ticks(low, high).filter(each => !log || Number.isInteger(each));
  return scalesIn([low, high], most, size, 72, powers.length > 1 ? powers : ticks(low, high));
}

/** A button of the whole sweep; `told` says what it does. */
const wish = (label: string, command: string, told: string, click: () => void): HTMLButtonElement =>
  button(label, { "data-command": command, "data-asks": told, on: { click } });

interface Row {
  el: HTMLTableRowElement;
  state: HTMLElement;
  cells: HTMLElement[];
  stop: HTMLButtonElement;
  open: HTMLButtonElement;
}

class SweepPanel implements Pane {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #pause: HTMLButtonElement;
  readonly #stop: HTMLButtonElement;
  readonly #state = h("span", { class: "gd-state", "data-value": "state" });
  readonly #bar = h("progress", { max: 1, "aria-label": "progress of the sweep" });
  readonly #chart = div("gd-chartbox");
  readonly #told = div("gd-muted gd-sweeptold");
  readonly #rows = div("gd-sweeprows");
  readonly #events = h("ol", { class: "gd-events", "aria-label": "events" });
  readonly #shown: HTMLElement;
  readonly #none: HTMLElement;
  readonly #observer: ResizeObserver;
  #made = new Map<number, Row>();
  #data: SweepSection | null = null;
  #curves: Point[][] = [];
  #width = 0;
  #chosen = -1;
  #hover = -1;

  constructor(context: Context) {
    this.#context = context;
    const turn = () => this.#send(this.#data?.state === "paused" ? "resume" : "pause");
    this.#pause = wish("Pause", "pause", "begin no further point", turn);
    this.#stop = wish("Stop", "stop", "stop the points that run; those that are done stay", () => this.#send("stop"));
    const controls = div("gd-buttons", this.#pause, this.#stop, this.#bar, this.#state);
    this.#shown = div("", controls, this.#chart, this.#told, this.#rows, this.#events);
    const command = h("code", null, `%graph_sweep ${context.doc.title || "NAME"} 1000 --adam 1e-3,3e-3`);
    this.#none = empty("No sweep yet. ", command, " makes one.");
    this.el = frame(sweepPane, "", [body({ class: "gd-sweep" }, this.#none, this.#shown)]);
    this.#observer = onWidth(this.#chart, width => {
      this.#width = width;
      this.#draw();
    });
    listen(this.#chart, "pointermove", event => this.#point(event));
    listen(this.#chart, "pointerleave", () => this.#light(-1));
    listen(this.#chart, "click", event => this.#choose(this.#at(event)?.[0] ?? -1));
    this.live(context.live(), context.host());
  }

  live(live: Live, host: Host | null): void {
    const data = live.sweep ?? this.#context.doc.sweep;
    this.#none.hidden = data !== null;
    this.#shown.hidden = data === null;
    if (data && data !== this.#data) {
      if (data.key !== this.#data?.key) this.#begin(data);
      this.#data = data;
      this.#write(data);
      this.#draw();
    }
    enliven(this.el, host);
    this.#allow(Boolean(host) && !host!.dead && !host!.inPage);
  }

  destroy(): void {
    this.#observer.disconnect();
  }

  #send(wish: string, point?: number): void {
    this.#context.send("sweep", { do: wish, point });
  }

  /** Enable the buttons that act now. */
  #allow(alive: boolean): void {
    const { state } = this.#data ?? { state: "" },
      runs = state === "running" || state === "paused";
    this.#pause.disabled = this.#stop.disabled = !alive || !runs;
    for (const [i, row] of this.#made) {
      const point = this.#data!.points[i]!;
      row.stop.hidden = !alive || !runs || !["waiting", "running"].includes(point.state);
      row.open.hidden = !alive || point.state !== "done";
    }
  }

  #begin({ keys, points }: SweepSection): void {
    this.#made.clear();
    this.#chosen = this.#hover = -1;
    const head: [string, string][] = [...keys, "state"].map(each => ["", each]);
    for (const each of CELLS) head.push([each === "engine" ? "" : "gd-num", each]);
    const rows = points.map((point, i) => this.#row(point, i));
    replace(this.#rows, table("gd-sweeptable", [...head, ["", ""]], h("tbody", null, ...rows)));
  }

  #row(point: SweepPoint, i: number): HTMLTableRowElement {
    const state = td(""),
      cells = CELLS.map(each => td(each === "engine" ? "" : "gd-num"));
    const [first = "–", ...others] = point.settings;
    const on = { click: () => this.#send("stop_point", i) },
      halt = { class: SMALL_BUTTON, "data-command": "stop_point", on };
    const stop = button(`Stop point ${i}`, halt, "Stop this one"),
      open = this.#opener(i);
    const label = `point ${i}: ${point.label}`;
    const name = h("button", { class: "gd-link", "aria-label": label, "aria-pressed": "false" }, first);
    const mark = h("span", { class: "gd-swatch", style: `--gd-hue:${number(point.hue)}`, "aria-hidden": "true" });
    const el = h(
      "tr",
      { "data-point": i, title: point.label },
      h("td", null, mark, name),
      ...others.map(each => td("", each)),
      state,
      ...cells,
      h("td", { class: "gd-num" }, stop, open),
    );
    listen(el, "click", event => {
      if (!(event.target as Element).closest(".gd-small")) this.#choose(this.#chosen === i ? -1 : i);
    });
    listen(el, "pointerenter", () => this.#light(i));
    listen(el, "pointerleave", () => this.#light(-1));
    this.#made.set(i, { el, state, cells, stop, open });
    return el;
  }

  /** A button that opens a point as a variant. */
  #opener(i: number): HTMLButtonElement {
    const context = this.#context;
    const told = "opens this point as a variant, in the Diff tab";
    const args = () => ({ do: "open", point: i });
    return asking(context, "sweep", `point ${i} in the Diff tab`, "Diff", told, args, showing(context), "open_point");
  }

  #write(data: SweepSection): void {
    write(this.el.querySelector(".gd-fact")!, data.title);
    write(this.#state, [data.fact, data.left].filter(Boolean).join(", "));
    this.#state.dataset.state = data.state === "running" || data.state === "paused" ? data.state : "ready";
    this.#bar.value = data.progress;
    const resumes = data.state === "paused";
    this.#pause.ariaLabel = this.#pause.textContent = resumes ? "Resume" : "Pause";
    data.points.forEach((point, i) => {
      const row = this.#made.get(i)!;
      row.el.dataset.state = point.state;
      setFlag(row.el, "data-best", i === data.best);
      const again = point.retries > 0 ? `, again ${whole(point.retries)}` : "";
      write(row.state, `${point.state}${i === data.best ? ", best" : ""}${again}`);
      row.state.title = point.error || point.note;
      row.cells.forEach((cell, k) => write(cell, point.cells[k] ?? ""));
      if (point.error) row.el.title = `${point.label}: ${point.error}`;
    });
    if (data.events.length !== this.#events.children.length)
      replace(
        this.#events,
        data.events.map(({ seconds, text }) => h("li", null, span("gd-muted", `${sig(number(seconds))} s `), text)),
      );
    this.#tell();
  }

  #draw(): void {
    if (this.#width < 50 || !this.#data) return;
    const data = this.#data,
      { points, best, log } = data;
    const size = { width: this.#width, height: HEIGHT, log },
      scales = scalesOf(data, size);
    const curves = points.map(point => scaled(point, log));
    this.#curves = curves.map(curve => curve.map(([step, loss]) => [scales.x(step), scales.y(loss)]));
    const label = (value: number) => sig(log ? 10 ** value : value);
    const lines = curves.map((curve, i) => {
      const { parts, leaves } = pieces(curve, scales),
        style = `--gd-hue:${number(points[i]!.hue)}`;
      const of = { "data-point": i, "data-state": points[i]!.state, "data-best": i === best, style };
      const line = parts.map(part => lineOf(part, scales)).join("");
      return [svgPath("gd-curve", line, of), s("g", of, drawMarks(leaves, [], scales, size))];
    });
    const dot = s("circle", { class: "gd-readdot", r: 4, visibility: "hidden" });
    const told = best >= 0 ? `, the best is ${points[best]!.label}` : "",
      name = `losses of ${plural(points.length, "point")}${told}`;
    this.#chart.replaceChildren(plot(name, size, drawAxes(scales, size, label), lines, dot));
    this.#mark();
  }

  #at(event: MouseEvent): [number, number] | null {
    const box = boxOf(this.#chart);
    return nearest(this.#curves, event.clientX - box.left, event.clientY - box.top);
  }

  #point(event: PointerEvent): void {
    const near = this.#at(event),
      dot = this.#chart.querySelector(".gd-readdot");
    dot?.setAttribute("visibility", near ? "visible" : "hidden");
    if (near && dot) moveDot(dot, ...this.#curves[near[0]]![near[1]]!);
    this.#light(near?.[0] ?? -1, near?.[1]);
  }

  #light(point: number, at?: number): void {
    this.#hover = point;
    this.#mark();
    this.#tell(at);
  }

  #choose(point: number): void {
    this.#chosen = point;
    this.#mark();
    this.#tell(); // nothing scrolls: the words below the plot say what the row does
  }

  /** Highlight the point under the pointer, or the chosen one, in plot and table. */
  #mark(): void {
    const shown = this.#hover >= 0 ? this.#hover : this.#chosen;
    const svg = this.#chart.firstElementChild;
    svg?.toggleAttribute("data-some", shown >= 0);
    for (const path of all<SVGElement>(this.#chart, ".gd-curve"))
      setFlag(path, "data-lit", Number(path.dataset.point) === shown);
    for (const [i, { el }] of this.#made) {
      setFlag(el, "data-lit", i === shown);
      setFlag(el, "data-selected", i === this.#chosen);
      el.querySelector(".gd-link")!.setAttribute("aria-pressed", String(i === this.#chosen));
    }
  }

  /** Write about one point what the plot cannot show: the loss under the pointer, or why it failed. */
  #tell(at?: number): void {
    const shown = this.#hover >= 0 ? this.#hover : this.#chosen,
      point = this.#data?.points[shown];
    if (!point) return write(this.#told, "Hover or click a curve or a row to see one point.");
    const finite = point.curve.filter(([, loss]) => Number.isFinite(number(loss)));
    const [step, loss] = (at === undefined ? finite.at(-1) : finite[at]) ?? [0, NaN];
    const told = finite.length > 0 ? `, loss ${sig(number(loss))} at step ${whole(step)}` : "";
    const why = ENDED.includes(point.state) && (point.error || point.note);
    write(this.#told, `${point.label}: ${point.state}${told}${why ? `: ${why}` : ""}`);
  }
}

export const sweepPane: PaneRecord = pane("sweep", context => new SweepPanel(context));
