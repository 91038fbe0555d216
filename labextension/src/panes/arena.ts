// The arena: the places of buffers in device memory, dispatch by dispatch, and the buffers at its peak.

import { nodeName, type Plan } from "../doc/doc.ts";
import { bytes, plural } from "../doc/format.ts";
import { indexesOf, users } from "../doc/select.ts";
import { all, boxOf, div, h, listen, onWidth, replace, reveal, SMALL_BUTTON, span, type Child } from "../draw/dom.ts";
import { arrange } from "../layout/slots.ts";
import { edgePicture } from "./edge.ts";
import { ArenaPicture, reuse } from "./arena_picture.ts";
import type { Live } from "../live/live.ts";
import { body, button, chip, frame, notCompiled, pane, retitle, row, table } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";
import { selecting } from "./state.ts";

const NARROWEST = 460;

/** List the buffers in memory at the peak, largest first, the optimizer's state among it. */
function peakList({ doc, reached }: Context, plan: Plan): HTMLElement {
  const at = plan.memory.peak_group!;
  const alive = plan.intervals
    .map((interval, index) => ({ ...interval, index }))
    .filter(({ pinned, first_group, last_group }) => pinned !== null || (first_group <= at && at <= last_group))
    .sort((a, b) => b.nbytes - a.nbytes);
  const lines = (node: string): Child[] => {
    const lit = indexesOf("line", reached(node)),
      callers = lit.flatMap(each => doc.lines[each]!.stack);
    // Of several calls on one line, the first.
    const own = lit
      .filter(each => !callers.includes(each))
      .sort((a, b) => b - a)
      .map(each => [doc.lines[each]!.line, each] as const);
    return [...new Map(own)].reverse().map(([line, each]) => chip(`line:${each}`, `line ${line}`, `line ${line}`));
  };
  const rows = alive.map(({ index, node, name, nbytes }) => {
    const record = doc.stages[plan.stage]?.nodes[node],
      key = `node:${plan.stage}.${node}`;
    return row("td", [
      ["gd-num", bytes(nbytes)],
      ["", chip(`interval:${index}`, `buffer ${name}`, name)],
      ["", record && chip(key, `node ${nodeName(record)}`, `${record.op} ${record.name}`)],
      ["", record && lines(key)],
    ]);
  });
  const head: [string, Child][] = [
    ["gd-num", "bytes"],
    ["", "buffer"],
    ["", "node"],
    ["", `${plural(rows.length, "buffer")}, ${bytes(plan.memory.peak_bytes!)} padded, in group ${at}`],
  ];
  return div("gd-atpeak", table("", head, h("tbody", null, ...rows)));
}

const NAMED = 8; // dispatches that are named one by one

/** Write a word and its dispatches as links; many of them as one link. */
function usedBy({ act }: Context, plan: Plan, word: string, ks: readonly number[], none: string): Child {
  const name = (k: number) => `${k} ${plan.dispatches[k]!.label}`;
  const all = () => act(selecting(ks.map(k => `dispatch:${k}`)));
  return span(
    "gd-used",
    span("gd-muted", word),
    ...ks.slice(0, NAMED).map(k => chip(`dispatch:${k}`, `dispatch ${name(k)}`, name(k))),
    ks.length > NAMED && h("button", { class: "gd-link", on: { click: all } }, `and ${ks.length - NAMED} more`),
    ks.length === 0 && none,
  );
}

/** One line about a buffer: its size, and the dispatches that write and read it. */
function bufferLine(context: Context, plan: Plan, index: number): Child[] {
  const { name, nbytes, kind, first } = plan.intervals[index]!;
  const told = first < 0 ? "no dispatch: it is set before the step" : "no dispatch";
  return [
    span("gd-used", span("gd-mono", name || `buffer ${index}`), span("gd-muted", `${bytes(nbytes)}, ${kind}`)),
    usedBy(context, plan, "written by", users(context.doc, index, "writes"), told),
    usedBy(context, plan, "read by", users(context.doc, index, "reads"), "no dispatch"),
  ];
}

type Switch = "at-peak" | "without-reuse";

class ArenaPane implements Pane {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #plan: Plan;
  readonly #holder = body({ class: "gd-arenabody" });
  readonly #buffer = h("div", { class: "gd-detail gd-buffer", "aria-live": "off" });
  readonly #observer: ResizeObserver;
  /** The kinds of permanent buffers that a person opened or closed. */
  readonly #open = new Set<string>();
  readonly #on = new Set<Switch>();
  #width = 0;
  #picture: ArenaPicture | null = null;

  constructor(context: Context, plan: Plan) {
    this.#context = context;
    this.#plan = plan;
    this.el = frame(arenaPane, "", [this.#holder, this.#buffer]);
    this.#observer = onWidth(this.#holder, width => {
      this.#width = Math.max(NARROWEST, width);
      this.#draw();
    });
    this.#draw();
  }

  /** Tell of the buffer that is selected, or the only one that is lit. */
  choose(lit: ReadonlySet<string>): boolean {
    const lights = indexesOf("interval", lit);
    const [index = lights.length === 1 ? lights[0] : undefined] = indexesOf("interval", this.#context.ui().selected);
    replace(this.#buffer, ...(index === undefined ? [] : bufferLine(this.#context, this.#plan, index)));
    return true;
  }

  live({ under_way: at }: Live): void {
    this.#picture?.sweep(at);
  }

  lit(lit: ReadonlySet<string>): void {
    this.#picture?.light(lit, this.#context.ui().selected, this.#context.uses());
  }

  destroy(): void {
    this.#observer.disconnect();
  }

  #fact(): string {
    const { physical_bytes: physical = 0, logical_bytes: logical = 0 } = this.#plan.memory;
    const { saved, without } = reuse(this.#plan);
    if (this.#on.has("without-reuse")) return `reuse saves ${bytes(saved)}: without it ${bytes(without)}, dashed`;
    const sizes = `${bytes(physical)} in device memory for ${bytes(logical)} of values`;
    return `${sizes}; left what is always there, right what has a lifetime, in one scale`;
  }

  #switch(key: Switch, text: string): HTMLButtonElement {
    const turn = () => {
      if (!this.#on.delete(key)) this.#on.add(key);
      this.#draw();
      this.el.querySelector<HTMLElement>(`[data-command=${key}]`)!.focus();
    };
    return button(text, {
      class: SMALL_BUTTON,
      "data-command": key,
      "aria-pressed": String(this.#on.has(key)),
      on: { click: turn },
    });
  }

  /** Show or hide the names of a kind of permanent buffers. */
  #toggle(kind: string): void {
    if (!this.#open.delete(kind)) this.#open.add(kind);
    this.#draw();
    const at = this.#picture!.kinds.indexOf(kind);
    all<SVGGElement>(this.el, ".gd-opener")[at]?.focus();
  }

  #draw(): void {
    const plan = this.#plan;
    const switches = [this.#switch("at-peak", "at the peak"), this.#switch("without-reuse", "without reuse")];
    retitle(this.el, arenaPane.title, this.#fact(), ...switches);
    if (this.#width === 0) return;
    const arrangement = arrange(plan, this.#open);
    const ghosts = this.#on.has("without-reuse");
    this.#picture = new ArenaPicture(plan, this.#width, kind => this.#toggle(kind), arrangement, ghosts);
    const { svg } = this.#picture;
    listen(svg, "click", event => this.#click(event));
    const { edge } = this.#context.doc;
    const peak = this.#on.has("at-peak") && peakList(this.#context, plan);
    replace(this.#holder, peak, svg, edge && edgePicture(plan, edge, this.#width));
    this.#context.redrawn("arena");
    reveal(this.#holder, all(this.#holder, "[data-lit]"));
  }

  /** Select the buffer under the pointer, if buffers are drawn as mere shapes. */
  #click(event: MouseEvent): void {
    const { svg } = this.#picture!;
    const { left, top } = boxOf(svg);
    if ((event.target as Element).closest("[data-entity], .gd-opener")) return;
    const entity = this.#picture!.at(event.clientX - left, event.clientY - top);
    if (!entity) return;
    event.stopPropagation();
    this.#context.act(selecting([entity], event.shiftKey));
  }
}

function make(context: Context): Pane {
  const { plan } = context.doc;
  if (plan && plan.intervals.length > 0) return new ArenaPane(context, plan);
  return { el: frame(arenaPane, "", [body(null, notCompiled(context, ", so no buffers"))]) };
}

export const arenaPane: PaneRecord = pane("arena", make);
