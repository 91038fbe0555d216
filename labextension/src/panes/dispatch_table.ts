// A table with one row per dispatch; its columns sort, a part of the plan can be chosen, the last row has the sums.

import type { Bucket, DispatchRecord, Plan } from "../doc/doc.ts";
import { cell, plural } from "../doc/format.ts";
import { h, replace, span, td, type Child } from "../draw/dom.ts";
import { familyClass } from "../draw/labels.ts";
import { Rows } from "../draw/virtual.ts";
import { groupReason, roofShare, timeText } from "./dispatch_words.ts";
import { bytesMoved } from "./tabcounts.ts";
import { entity, fold, row, swatch } from "./pane.ts";

const ROW = 28; // px
const UPDATES = -1,
  BUCKETS = -2; // and below: the buckets of the reduction over engines

interface Column {
  name: string;
  text: string;
  /** The figure by which the column sorts. */
  of?: (k: number) => number;
  /** The unit in which the sum is written. */
  unit?: number;
}

function columnsOf({ dispatches, times }: Plan): Column[] {
  const columns: Column[] = [
    { name: "gd-num", text: "#", of: k => -k },
    { name: "", text: "dispatch" },
    { name: "gd-phase", text: "phase" },
    { name: "gd-num", text: "group" },
    { name: "gd-num", text: "MFLOP", of: k => dispatches[k]!.flops, unit: 1e6 },
    { name: "gd-num", text: "KB moved", of: k => bytesMoved(dispatches[k]!), unit: 1e3 },
  ];
  if (!times) return columns;
  const median: Column = { name: "gd-num", text: "µs", of: k => times.median[k]!, unit: 1e-6 };
  return [...columns, median, { name: "gd-num gd-verdict", text: "roof %" }];
}

function dispatchRow(plan: Plan, dispatch: DispatchRecord, k: number): HTMLElement {
  const group = plan.groups[dispatch.group],
    opens = group?.start === k && k > 0;
  return h(
    "tr",
    {
      ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}, ${dispatch.phase}, group ${dispatch.group}`),
      role: null,
      "data-opens": opens,
      title: opens && group ? groupReason(plan, group) || null : null,
    },
    td("gd-num gd-muted", k),
    td(
      "gd-label",
      swatch(familyClass(dispatch.family)),
      h("span", { class: "gd-ellipsis", title: dispatch.label }, dispatch.label),
    ),
    td("gd-muted gd-phase", dispatch.phase),
    td("gd-num", dispatch.group),
    td("gd-num", cell(dispatch.flops / 1e6)),
    td("gd-num", cell(bytesMoved(dispatch) / 1e3)),
    ...(plan.times
      ? [
          h("td", { class: "gd-num", title: timeText(plan.times, k) }, cell(plan.times.median[k]! * 1e6)),
          h("td", { class: "gd-num gd-muted", title: timeText(plan.times, k) }, roofShare(plan.times.verdict[k]!)),
        ]
      : []),
  );
}

/** A row of the reduction over engines: no dispatch of this engine, so it is not selected and not in the sums. */
const bucketRow = ({ label, told, nbytes, seconds }: Bucket, timed: boolean): HTMLElement =>
  h(
    "tr",
    { "data-opens": true, "data-allreduce": true, title: told },
    td("", ""),
    td("gd-label", span("gd-ellipsis", label)),
    td("gd-muted gd-phase", "reduce"),
    td("", ""),
    td("", ""),
    td("gd-num", cell(nbytes / 1e3)),
    timed && [td("gd-num", cell(seconds * 1e6)), td("", "")],
  );

/** The parts of a plan that the table can show alone. */
export const planParts = (plan: Plan): (readonly [value: string, text: string])[] =>
  [
    "",
    ...new Set(
      plan.dispatches.flatMap(each => [`family ${each.family}`, `kernel ${each.kernel}`, `phase ${each.phase}`]).sort(),
    ),
  ].map(each => [each, each || "all dispatches"]);

/** The update's dispatches are folded into one row while the table shows all dispatches in order. */
export class DispatchTable {
  readonly el: HTMLTableElement;
  readonly #plan: Plan;
  readonly #columns: readonly Column[];
  readonly #changed: () => void;
  readonly #rows: Rows;
  readonly #head = h("thead");
  readonly #foot = h("tfoot");
  readonly #updates: ReturnType<typeof fold>;
  readonly #updatesRow: HTMLElement;
  #sort: Column;
  #part = "";
  /** The dispatches in the order of the rows; -1 is the row of the update, -2 that of the reduction over engines. */
  #order: number[] = [];

  /** `changed` is called when other rows were drawn. */
  constructor(plan: Plan, scroller: HTMLElement, changed: () => void) {
    const list = h("tbody");
    const { updates, optimizer } = plan;
    this.#plan = plan;
    this.#changed = changed;
    this.#columns = columnsOf(plan);
    this.#sort = this.#columns[0]!;
    this.#rows = new Rows(scroller, list, ROW, changed);
    const label = `+ ${plural(updates, "update dispatch")}${optimizer ? ` (${optimizer})` : ""}`;
    this.#updates = fold(label, () => this.#fill());
    const held = h("td", { colspan: this.#columns.length }, this.#updates.el);
    this.#updatesRow = h("tr", { class: "gd-foldrow" }, held);
    const props = { class: "gd-table gd-dispatches", "data-timed": plan.times !== null };
    this.el = h("table", props, this.#head, list, this.#foot);
    this.#draw();
  }

  /** Bring the row of a dispatch into sight; true when other rows were drawn. */
  bring(k: number): boolean {
    const hidden = k >= this.#first && this.#plain && !this.#updates.open;
    if (hidden) this.#updates.to(true);
    const at = this.#order.indexOf(k);
    return (at >= 0 && this.#rows.bring(at)) || hidden;
  }

  /** Show one part of the plan. */
  only(part: string): void {
    this.#part = part;
    this.#fill();
  }

  destroy(): void {
    this.#rows.destroy();
  }

  /** The first dispatch of the update. */
  get #first(): number {
    return this.#plan.dispatches.length - this.#plan.updates;
  }

  get #plain(): boolean {
    return this.#sort === this.#columns[0] && !this.#part && this.#plan.updates > 0;
  }

  #fill(): void {
    this.#draw();
    this.#changed();
  }

  #draw(): void {
    const { dispatches } = this.#plan;
    const { of } = this.#sort;
    const [kind, name] = this.#part.split(" ") as ["phase", string];
    const order = dispatches.flatMap((each, k) => (!this.#part || String(each[kind]) === name ? [k] : []));
    this.#order = order;
    this.#drawFoot();
    order.sort((a, b) => of!(b) - of!(a) || a - b);
    if (this.#plain) order.splice(this.#first, this.#updates.open ? 0 : Infinity, UPDATES);
    const buckets = this.#part ? [] : (this.#plan.allreduce?.buckets ?? []);
    const sorted = this.#sort !== this.#columns[0];
    buckets.forEach((each, b) =>
      order.splice(sorted ? Infinity : Math.min(each.before, this.#first) + b, 0, BUCKETS - b),
    );
    this.el.toggleAttribute("data-sorted", sorted);
    replace(this.#head, h("tr", null, ...this.#columns.map(each => this.#headCell(each))));
    this.#rows.set(order.length, i => {
      const k = order[i]!;
      if (k <= BUCKETS) return bucketRow(buckets[BUCKETS - k]!, this.#plan.times !== null);
      return k < 0 ? this.#updatesRow : dispatchRow(this.#plan, dispatches[k]!, k);
    });
  }

  #drawFoot(): void {
    const order = this.#order;
    const groups = new Set(order.map(k => this.#plan.dispatches[k]!.group));
    const count = `${plural(order.length, "dispatch")} in ${plural(groups.size, "group")}`;
    const sum = ({ of, unit }: Column) => unit && cell(order.reduce((total, k) => total + of!(k), 0) / unit);
    const cells = this.#columns.map((each, i): [string, Child] =>
      i === 1 ? ["gd-label", count] : [each.name, sum(each)],
    );
    replace(this.#foot, row("td", cells));
  }

  #headCell(column: Column): HTMLElement {
    const { name, text, of, unit } = column;
    const sorted = this.#sort === column;
    const sort = () => {
      this.#sort = column;
      this.#fill();
    };
    const label = of ? h("button", { class: "gd-sort", on: { click: sort } }, text, sorted && unit && " \u2193") : text;
    const direction = unit ? "descending" : "ascending";
    return h("th", { class: name || null, "aria-sort": sorted && direction }, label);
  }
}
