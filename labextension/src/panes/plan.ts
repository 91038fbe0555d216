// The plan: its dispatches over time, one line per dispatch below, and the details of the one that is lit.

import type { Missed, Plan } from "../doc/doc.ts";
import { plural } from "../doc/format.ts";
import { indexesOf } from "../doc/select.ts";
import { basisOf } from "../layout/timeline.ts";
import { h, onWidth, replace, span, type Child } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { Live } from "../live/live.ts";
import { asking, enliven } from "./ask.ts";
import { PlanTimeline } from "./plan_timeline.ts";
import { DispatchTable, planParts } from "./dispatch_table.ts";
import { edgeTable } from "./edge.ts";
import { apartText, groupReason, timeText } from "./dispatch_words.ts";
import { planFact } from "./tabcounts.ts";
import { body, chip, either, facts, frame, notCompiled, pane, refill, retitle, select } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";

/** Say why a fusion was not made, with the dispatches that it is about. */
function refused({ doc, reached }: Context, plan: Plan, missed: Missed): string {
  const computing = (node: number) => indexesOf("dispatch", reached(`node:${plan.stage}.${node}`));
  const dispatchOf = (node: number) => computing(node).sort((a, b) => a - b)[0] ?? null;
  return apartText(missed, doc.stages[plan.stage]!, dispatchOf);
}

/** Return the fusions that were refused at nodes of this dispatch: the reasons why it is one of its own. */
const apart = (context: Context, plan: Plan, k: number): string[] =>
  plan.missed.flatMap(each =>
    each.about && context.reached(each.about).has(`dispatch:${k}`) ? [refused(context, plan, each)] : [],
  );

/** Say why two selected dispatches, the first before the other, are two. */
function whyTwo(context: Context, plan: Plan, a: number, b: number): string[] {
  const { doc, reached } = context;
  const computes = (node: number, k: number) => reached(`node:${plan.stage}.${node}`).has(`dispatch:${k}`);
  const found = plan.missed.filter(
    ({ node }) =>
      computes(Number(node), a) && doc.stages[plan.stage]!.users[Number(node)]!.some(each => computes(each, b)),
  );
  if (found.length > 0) return found.map(each => refused(context, plan, each));
  const reads = plan.dispatches[b]!.reads.some(each => plan.dispatches[a]!.writes.includes(each));
  return [
    reads ? `no fusion joins dispatch ${a} and dispatch ${b}` : `dispatch ${b} reads nothing that dispatch ${a} writes`,
  ];
}

/** The dispatches that are selected, in order. */
const selectedDispatches = (context: Context): number[] =>
  indexesOf("dispatch", context.ui().selected).sort((a, b) => a - b);

/** The facts about a dispatch; for two selected ones, why they are two. */
function detailOf(context: Context, plan: Plan, k: number): Child {
  const [a, b, ...others] = selectedDispatches(context);
  const missed = b !== undefined && others.length === 0 ? whyTwo(context, plan, a!, b) : apart(context, plan, k);
  const dispatch = plan.dispatches[k]!;
  const { times } = plan;
  const group = plan.groups[dispatch.group];
  const reason = group && groupReason(plan, group);
  const kernel = plan.kernels[dispatch.kernel];
  const buffers = (indexes: readonly number[]): Child =>
    indexes.map(index => {
      const name = plan.intervals[index]?.name || `buffer ${index}`;
      return chip(`interval:${index}`, `buffer ${name}`, name);
    });
  const invocations = kernel ? ` of ${kernel.workgroup_size.join(" × ")} · ${kernel.entry}` : "";
  const value = (key: string, title: string, text: string) => h("span", { "data-value": key, title }, text);
  const rows: [string, Child][] = [
    ["reads", buffers(dispatch.reads)],
    ["writes", buffers(dispatch.writes)],
    ["workgroups", span("gd-mono", dispatch.workgroups.join(" × ") + invocations)],
    ["group", reason],
    ["time", times && value("verdict", times.machine, timeText(times, k))],
    ["not one", missed.length > 0 && value("apart", "why this dispatch and the next are not one", missed.join("; "))],
  ];
  return facts(rows.filter(([, text]) => text));
}

class PlanPane implements Pane {
  readonly el = frame(planPane, "", []);
  readonly #context: Context;
  readonly #plan: Plan;
  readonly #detail = h("div", { class: "gd-detail gd-dispatch", "aria-live": "off" });
  readonly #scroller = body(null);
  readonly #table: DispatchTable;
  readonly #trace: HTMLButtonElement;
  /** The sources of inputs and targets of outputs of a compiled graph. */
  readonly #edge: HTMLElement | null;
  readonly #box = h("div", { class: "gd-timebox" });
  readonly #observer: ResizeObserver;
  /** Whether all dispatches are drawn equally wide. */
  #alike = false;
  #width = 0;
  #timeline: PlanTimeline | null = null;
  /** The selection that was scrolled to. */
  #brought: ReadonlySet<string> | null = null;

  constructor(context: Context, plan: Plan) {
    this.#context = context;
    this.#plan = plan;
    this.#edge = context.doc.edge && edgeTable(context.doc.edge);
    this.#table = new DispatchTable(plan, this.#scroller, () => context.redrawn("plan"));
    this.#scroller.append(this.#table.el);
    this.#trace = asking(
      context,
      "trace",
      "time every dispatch",
      plan.times ? "measure again" : "measure",
      "times every dispatch over 3 steps",
      () => ({ steps: 3 }),
      () => {},
    );
    this.#observer = onWidth(this.#box, width => {
      if (width < 80) return;
      this.#width = width;
      this.#drawTime();
    });
    this.#draw();
  }

  live({ under_way: at }: Live, host: Host | null): void {
    enliven(this.el, host);
    this.#timeline?.pulse(at);
  }

  choose(lit: ReadonlySet<string>): boolean {
    const k = this.#plan.dispatches.findIndex((_, i) => lit.has(`dispatch:${i}`));
    replace(this.#detail, k >= 0 && detailOf(this.#context, this.#plan, k));
    if (k >= 0 && lit !== this.#brought) this.#table.bring(k);
    this.#brought = lit;
    return true;
  }

  lit(lit: ReadonlySet<string>): void {
    this.#timeline?.light(lit);
  }

  destroy(): void {
    this.#table.destroy();
    this.#observer.disconnect();
  }

  #along(): HTMLElement | null {
    const size = basisOf(this.#plan) === "bytes" ? "bytes" : "time";
    return either("width of a dispatch", "order", size, !this.#alike, value => {
      this.#alike = !value;
      this.#draw();
    });
  }

  #drawTime(): void {
    if (this.#width === 0) return;
    this.#timeline = new PlanTimeline(this.#plan, this.#width, this.#alike);
    replace(this.#box, this.#timeline.svg);
    this.#context.redrawn("plan");
  }

  #draw(): void {
    const plan = this.#plan;
    const dispatches = `${planFact(plan)} ${plan.dispatches.length === 1 ? "dispatch" : "dispatches"}`;
    const fact = `${dispatches}, ${plural(plan.groups.length, "group")}, one submission`;
    const pick = select("dispatches", planParts(plan), "", part => this.#table.only(part));
    retitle(this.el, planPane.title, fact, pick, this.#along(), this.#trace);
    refill(this.el, this.#box, this.#edge, this.#scroller, this.#detail);
    this.#drawTime();
  }
}

function make(context: Context): Pane {
  const { plan } = context.doc;
  return plan ? new PlanPane(context, plan) : { el: frame(planPane, "", [body(null, notCompiled(context))]) };
}

export const planPane: PaneRecord = pane("plan", make);
