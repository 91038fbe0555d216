// The plan: one line per dispatch in barrier groups, a strip of them in order, and the details of the one that is lit.

import type { DispatchRecord, GroupRecord, Plan } from "../doc.ts";
import { div, h, replace, s, span, td, type Child } from "../dom.ts";
import { bytes, cell, plural, whole } from "../format.ts";
import { familyClass } from "../graph.ts";
import { Merged } from "../merged.ts";
import { body, chip, empty, entity, facts, fold, frame, row, swatch, table, type MakePane } from "../pane.ts";
import { Rows } from "../virtual.ts";

const DENSE = 400;

const moved = (dispatch: DispatchRecord): number => dispatch.bytes_read + dispatch.bytes_written;
const WORDS: Record<string, string> = { raw: "reads what was written", war: "writes what was read", waw: "writes again" };

/** Why a group could not be part of the one before, in a sentence. */
function because(plan: Plan, group: GroupRecord): string {
  const [first] = group.because ?? [];
  if (!first) return "";
  const name = plan.intervals[first.interval]?.name || `buffer ${first.interval}`;
  const more = group.because!.length - 1;
  return `dispatch ${first.to} ${WORDS[first.hazard] ?? "touches what was touched"} by dispatch ${first.from}: ${name} (${first.hazard})${more > 0 ? `, and ${more} more` : ""}`;
}

export const planFact = (plan: Plan): string => {
  const own = plan.dispatches.length - plan.updates;
  return plan.updates > 0 ? `${whole(own)} + ${plan.updates}` : whole(own);
};

const height = (dispatch: DispatchRecord, most: number): number => 4 + 17 * Math.sqrt(moved(dispatch) / most);

/** Bars in order; of many dispatches they are a few shapes in one drawing. */
function strip(plan: Plan): { el: HTMLElement; light(lit: ReadonlySet<string>): void } {
  const most = plan.dispatches.reduce((max, each) => Math.max(max, moved(each)), 1);
  const label = "dispatches in order, one band per barrier group, height by bytes moved";
  if (plan.dispatches.length > DENSE) return denseStrip(plan, most, label);
  const bar = (dispatch: DispatchRecord, k: number) =>
    h(
      "span",
      {
        class: `gd-tick ${familyClass(dispatch.family)}`,
        ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}`),
        title: `${k} ${dispatch.label}\n${bytes(moved(dispatch))} moved`,
      },
      h("span", { style: `height:${height(dispatch, most).toFixed(1)}px` }),
    );
  const groups = plan.groups.length > 0 ? plan.groups : [{ start: 0, stop: plan.dispatches.length, because: null }];
  const el = h(
    "div",
    { class: "gd-strip", "data-dense": plan.dispatches.length > 100, "aria-label": label },
    ...groups.map((group, g) =>
      h(
        "span",
        { class: "gd-band", style: `flex-grow:${group.stop - group.start}`, title: `group ${g}${group.because?.length ? `\n${because(plan, group)}` : ""}` },
        ...plan.dispatches.slice(group.start, group.stop).map((dispatch, i) => bar(dispatch, group.start + i)),
      ),
    ),
  );
  return { el, light: () => {} };
}

function denseStrip(plan: Plan, most: number, label: string): { el: HTMLElement; light(lit: ReadonlySet<string>): void } {
  const merged = new Merged(),
    count = plan.dispatches.length;
  merged.show(
    plan.dispatches.map((dispatch, k) => ({ left: k, right: k + 1, top: 22 - height(dispatch, most), bottom: 22, entity: `dispatch:${k}`, family: familyClass(dispatch.family) })),
    new Set(),
  );
  const svg = s("svg", { class: "gd-densestrip", viewBox: `0 0 ${count} 22`, preserveAspectRatio: "none", role: "img", "aria-label": label }, merged.el);
  // The bar under the pointer is the entity of the drawing while the pointer is there.
  const at = (event: MouseEvent) => {
    const { left, width } = svg.getBoundingClientRect();
    svg.dataset.entity = `dispatch:${Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - left) / width) * count)))}`;
  };
  svg.addEventListener("pointerdown", at);
  svg.addEventListener("click", event => (at(event), setTimeout(() => delete svg.dataset.entity)));
  return { el: div("gd-strip", svg), light: lit => merged.light(lit) };
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
      title: opens && group ? because(plan, group) || null : null,
    },
    td("gd-num gd-muted", k),
    td("gd-label",
      swatch(familyClass(dispatch.family)),
      h("span", { class: "gd-ellipsis", title: dispatch.label }, dispatch.label),
    ),
    td("gd-muted gd-phase", dispatch.phase),
    td("gd-num", dispatch.group),
    td("gd-num", cell(dispatch.flops / 1e6)),
    td("gd-num", cell(moved(dispatch) / 1e3)),
  );
}

/** The table: one row per dispatch, then the switch of the update's dispatches, then theirs. */
function dispatchTable(plan: Plan, scroller: HTMLElement, changed: () => void): { el: HTMLElement; bring(k: number): boolean; destroy(): void } {
  const first = plan.dispatches.length - plan.updates,
    list = h("tbody"),
    rows = new Rows(scroller, list, 28, changed);
  const more = fold(`+ ${plural(plan.updates, "update dispatch")}${plan.optimizer ? ` (${plan.optimizer})` : ""}`, () => (fill(), changed()));
  const foldRow = h("tr", { class: "gd-foldrow" }, h("td", { colspan: 6 }, more.el));
  const fill = () => {
    const extra = plan.updates === 0 ? 0 : more.open ? 1 + plan.updates : 1;
    rows.set(first + extra, i => (i === first ? foldRow : dispatchRow(plan, plan.dispatches[i > first ? i - 1 : i]!, i > first ? i - 1 : i)));
  };
  const sum = (what: (dispatch: DispatchRecord) => number) => plan.dispatches.reduce((total, each) => total + what(each), 0);
  const el = table(
    "gd-dispatches",
    [["gd-num", "#"], ["", "dispatch"], ["gd-phase", "phase"], ["gd-num", "group"], ["gd-num", "MFLOP"], ["gd-num", "KB moved"]],
    list,
    h(
      "tfoot",
      null,
      row("td", [
        ["", null],
        ["gd-label", `${plural(plan.dispatches.length, "dispatch")} in ${plural(plan.groups.length, "group")}`],
        ["gd-phase", null],
        ["", null],
        ["gd-num", cell(sum(each => each.flops) / 1e6)],
        ["gd-num", cell(sum(moved) / 1e3)],
      ]),
    ),
  );
  fill();
  return {
    el,
    bring(k) {
      const hidden = k >= first && !more.open;
      if (hidden) more.to(true);
      return rows.bring(k >= first ? k + 1 : k) || hidden;
    },
    destroy: () => rows.destroy(),
  };
}

function detailOf(plan: Plan, k: number): Child[] {
  const dispatch = plan.dispatches[k]!,
    group = plan.groups[dispatch.group];
  const buffers = (indexes: readonly number[]): Child =>
    indexes.map(index => {
      const name = plan.intervals[index]?.name || `buffer ${index}`;
      return chip(`interval:${index}`, `buffer ${name}`, name);
    });
  const kernel = plan.kernels[dispatch.kernel];
  return [
    facts([
      ["reads", buffers(dispatch.reads)],
      ["writes", buffers(dispatch.writes)],
      [
        "workgroups",
        span("gd-mono",
          `${dispatch.workgroups.join(" × ")}${kernel ? ` of ${kernel.workgroup_size.join(" × ")} · ${kernel.entry}` : ""}`,
        ),
      ],
      ...(group && because(plan, group) ? [["group", because(plan, group)] as [string, Child]] : []),
    ]),
  ];
}

export const planPane: MakePane = context => {
  const { plan } = context.doc;
  if (!plan) {
    const el = frame("plan", "Plan", "", [
      body(null, empty("Not compiled yet. ", h("code", null, `%graph_plan ${context.doc.title || "NAME"}`), " makes the plan.")),
    ]);
    return { el };
  }
  const detail = h("div", { class: "gd-detail gd-dispatch", "aria-live": "off" }),
    scroller = body(null),
    table = dispatchTable(plan, scroller, () => context.redrawn("plan")),
    bars = strip(plan);
  scroller.append(table.el);
  const count = `${planFact(plan)} ${plan.dispatches.length === 1 ? "dispatch" : "dispatches"}`;
  const el = frame("plan", "Plan", `${count}, ${plural(plan.groups.length, "group")}, one submission`, [bars.el, scroller, detail]);
  let brought: ReadonlySet<string> | null = null;
  return {
    el,
    choose(lit) {
      const k = plan.dispatches.findIndex((_, i) => lit.has(`dispatch:${i}`));
      replace(detail, ...(k < 0 ? [] : detailOf(plan, k)));
      if (k >= 0 && lit !== brought) table.bring(k);
      brought = lit;
      return true;
    },
    lit: lit => bars.light(lit),
    destroy: () => table.destroy(),
  };
};
