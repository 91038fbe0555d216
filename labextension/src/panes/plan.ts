// The plan: one line per dispatch in barrier groups, a strip of them in order, and the details of the one that is lit.

import type { Plan } from "../doc/doc.ts";
import { plural } from "../doc/format.ts";
import { indexesOf } from "../doc/select.ts";
import { h, replace, span, type Child } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { Live } from "../live/live.ts";
import { asking, enliven } from "./ask.ts";
import { dispatchStrip, type Strip } from "./dispatch_strip.ts";
import { DispatchTable, planParts } from "./dispatch_table.ts";
import { edgeTable } from "./edge.ts";
import { groupReason, planFact, timeText } from "./dispatch_words.ts";
import { body, chip, either, facts, frame, notCompiled, refill, retitle, select } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";

/** Return the fusions that were refused at nodes of this dispatch: the reasons why it is one of its own. */
const apart = (context: Context, plan: Plan, k: number): string[] =>
  plan.missed.flatMap(({ about, label, detail }) =>
    about && context.reached(about).has(`dispatch:${k}`) ? [`${label}: ${detail}`] : [],
  );

/** The same of two selected ones, the first before the other. */
function whyTwo({ doc, reached }: Context, plan: Plan, a: number, b: number): string[] {
  const computes = (node: number, k: number) => reached(`node:${plan.stage}.${node}`).has(`dispatch:${k}`);
  const found = plan.missed.filter(
    ({ node }) =>
      computes(Number(node), a) && doc.stages[plan.stage]!.users[Number(node)]!.some(each => computes(each, b)),
  );
  if (found.length > 0) return found.map(({ label, detail }) => `${label}: ${detail}`);
  const reads = plan.dispatches[b]!.reads.some(each => plan.dispatches[a]!.writes.includes(each));
  return [
    reads ? `no fusion joins dispatch ${a} and dispatch ${b}` : `dispatch ${b} reads nothing that dispatch ${a} writes`,
  ];
}

/** The dispatches that are selected, in order. */
const selectedDispatches = (context: Context): number[] =>
  indexesOf("dispatch", context.ui().selected).sort((a, b) => a - b);

/** The facts about a dispatch; of two selected ones, why they are two. */
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
  /** Of a compiled graph: where inputs come from and outputs go. */
  readonly #edge: HTMLElement | null;
  #byTime: boolean;
  #strip!: Strip;
  /** The selection that was scrolled to. */
  #brought: ReadonlySet<string> | null = null;

  constructor(context: Context, plan: Plan) {
    this.#context = context;
    this.#plan = plan;
    this.#byTime = plan.times !== null;
    this.#edge = context.doc.edge && edgeTable(context.doc.edge);
    this.#table = new DispatchTable(plan, this.#scroller, () => context.redrawn("plan"));
    this.#scroller.append(this.#table.el);
    this.#trace = asking(
      context,
      "trace",
      "time every dispatch",
      plan.times ? "time again" : "time",
      "times every dispatch over 3 steps",
      () => ({ steps: 3 }),
      () => {},
    );
    this.#draw();
  }

  live(_: Live, host: Host | null): void {
    enliven(this.el, host);
  }

  choose(lit: ReadonlySet<string>): boolean {
    const k = this.#plan.dispatches.findIndex((_, i) => lit.has(`dispatch:${i}`));
    replace(this.#detail, k >= 0 && detailOf(this.#context, this.#plan, k));
    if (k >= 0 && lit !== this.#brought) this.#table.bring(k);
    this.#brought = lit;
    return true;
  }

  lit(lit: ReadonlySet<string>): void {
    this.#strip.light(lit);
  }

  destroy(): void {
    this.#table.destroy();
  }

  #along(): HTMLElement | null {
    return either("what the strip shows along", "order", "time", this.#byTime, value => {
      this.#byTime = value;
      this.#draw();
      this.#context.redrawn("plan");
    });
  }

  #draw(): void {
    const plan = this.#plan;
    this.#strip = dispatchStrip(plan, this.#byTime);
    const dispatches = `${planFact(plan)} ${plan.dispatches.length === 1 ? "dispatch" : "dispatches"}`;
    const fact = `${dispatches}, ${plural(plan.groups.length, "group")}, one submission`;
    const pick = select("dispatches", planParts(plan), "", part => this.#table.only(part));
    retitle(this.el, planPane.title, fact, pick, plan.times && this.#along(), this.#trace);
    refill(this.el, this.#strip.el, this.#edge, this.#scroller, this.#detail);
  }
}

function make(context: Context): Pane {
  const { plan } = context.doc;
  return plan ? new PlanPane(context, plan) : { el: frame(planPane, "", [body(null, notCompiled(context))]) };
}

export const planPane: PaneRecord = { key: "plan", title: "Plan", name: "Dispatches", twin: "plan", make };
