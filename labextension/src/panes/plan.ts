// The plan: one line per dispatch in barrier groups, a strip of them in order, and the details of the one that is lit.

import type { DispatchRecord, GroupRecord, Plan, Times } from "../doc/doc.ts";
import { div, h, replace, s, span, td, type Child } from "../draw/dom.ts";
import { bytes, cell, plural, seconds, whole } from "../doc/format.ts";
import { familyClass } from "../draw/graph.ts";
import { Merged } from "../draw/merged.ts";
import {
  body,
  chip,
  choice,
  empty,
  entity,
  facts,
  fold,
  frame,
  refill,
  retitle,
  row,
  select,
  swatch,
  type Context,
  type MakePane,
} from "./pane.ts";
import { Rows } from "../draw/virtual.ts";
import { asking, enliven } from "./ask.ts";

const DENSE = 400;

const moved = (dispatch: DispatchRecord): number => dispatch.bytes_read + dispatch.bytes_written;
const WORDS: Record<string, string> = {
  raw: "reads what was written",
  war: "writes what was read",
  waw: "writes again",
};

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

interface Strip {
  el: HTMLElement;
  light(lit: ReadonlySet<string>): void;
}

/** Bars in order, each as wide as its time (`byTime`) or as all others; of many dispatches they are a few shapes in one drawing. */
function strip(plan: Plan, byTime: boolean): Strip {
  const most = plan.dispatches.reduce((max, each) => Math.max(max, moved(each)), 1);
  const label = `dispatches in order, ${byTime ? "width by time, " : ""}one band per barrier group, height by bytes moved`;
  const wide = (k: number) => (byTime ? plan.times!.median[k]! * 1e6 : 1);
  if (plan.dispatches.length > DENSE) return denseStrip(plan, most, label, wide);
  const bar = (dispatch: DispatchRecord, k: number) =>
    h(
      "span",
      {
        class: `gd-tick ${familyClass(dispatch.family)}`,
        ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}`),
        style: `flex-grow:${wide(k)}`,
        title: `${k} ${dispatch.label}\n${bytes(moved(dispatch))} moved${plan.times ? `\n${timed(plan.times, k)}` : ""}`,
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
        {
          class: "gd-band",
          style: `flex-grow:${plan.dispatches.slice(group.start, group.stop).reduce((sum, _, i) => sum + wide(group.start + i), 0)}`,
          title: `group ${g}${group.because?.length ? `\n${because(plan, group)}` : ""}`,
        },
        ...plan.dispatches.slice(group.start, group.stop).map((dispatch, i) => bar(dispatch, group.start + i)),
      ),
    ),
  );
  return { el, light: () => {} };
}

function denseStrip(plan: Plan, most: number, label: string, wide: (k: number) => number): Strip {
  const merged = new Merged(),
    ends = plan.dispatches.map((_, k) => wide(k));
  ends.forEach((each, k) => (ends[k] = each + (ends[k - 1] ?? 0)));
  merged.show(
    plan.dispatches.map((dispatch, k) => ({
      left: ends[k - 1] ?? 0,
      right: ends[k]!,
      top: 22 - height(dispatch, most),
      bottom: 22,
      entity: `dispatch:${k}`,
      family: familyClass(dispatch.family),
    })),
    new Set(),
  );
  const svg = s(
    "svg",
    {
      class: "gd-densestrip",
      viewBox: `0 0 ${ends.at(-1)} 22`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    merged.el,
  );
  // The bar under the pointer is the entity of the drawing while the pointer is there.
  const at = (event: MouseEvent) => {
    const { left, width } = svg.getBoundingClientRect(),
      x = ((event.clientX - left) / width) * ends.at(-1)!;
    svg.dataset.entity = `dispatch:${Math.max(
      0,
      ends.findIndex(end => x < end),
    )}`;
  };
  svg.addEventListener("pointerdown", at);
  svg.addEventListener("click", event => (at(event), setTimeout(() => delete svg.dataset.entity)));
  return { el: div("gd-strip", svg), light: lit => merged.light(lit) };
}

/** What a dispatch took and should have taken, in words. */
const timed = ({ median, p25, p75, predicted, verdict, machine }: Times, k: number): string =>
  `${seconds(median[k]!)} (${seconds(p25[k]!)} \u2026 ${seconds(p75[k]!)}), predicted ${seconds(predicted[k]!)}: ${verdict[k]}${machine.startsWith("a nominal") ? " of a nominal machine" : ""}`;

/** The share of the roof that a verdict tells: "31", ">100". */
const roof = (verdict: string): string =>
  verdict
    .replace(/^.*, (.*) % .*$/, "$1")
    .replace("over ", ">")
    .replace("under ", "<");

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
    td(
      "gd-label",
      swatch(familyClass(dispatch.family)),
      h("span", { class: "gd-ellipsis", title: dispatch.label }, dispatch.label),
    ),
    td("gd-muted gd-phase", dispatch.phase),
    td("gd-num", dispatch.group),
    td("gd-num", cell(dispatch.flops / 1e6)),
    td("gd-num", cell(moved(dispatch) / 1e3)),
    ...(plan.times
      ? [
          h("td", { class: "gd-num", title: timed(plan.times, k) }, cell(plan.times.median[k]! * 1e6)),
          h("td", { class: "gd-num gd-muted", title: timed(plan.times, k) }, roof(plan.times.verdict[k]!)),
        ]
      : []),
  );
}

/** What the table may be cut down to; its last row has the sums. */
const parts = (plan: Plan): (readonly [value: string, text: string])[] =>
  [
    "",
    ...new Set(
      plan.dispatches.flatMap(each => [`family ${each.family}`, `kernel ${each.kernel}`, `phase ${each.phase}`]).sort(),
    ),
  ].map(each => [each, each || "all dispatches"]);

/** The table: one row per dispatch, then the switch of the update's dispatches, then theirs. Sorted or cut down it has them all. */
function dispatchTable(
  plan: Plan,
  scroller: HTMLElement,
  changed: () => void,
): { el: HTMLElement; bring(k: number): boolean; only(part: string): void; destroy(): void } {
  const first = plan.dispatches.length - plan.updates,
    { times } = plan,
    list = h("tbody"),
    foot = h("tfoot"),
    rows = new Rows(scroller, list, 28, changed);
  const columns: [name: string, text: string, of?: (k: number) => number, unit?: number][] = [
    ["gd-num", "#", k => -k],
    ["", "dispatch"],
    ["gd-phase", "phase"],
    ["gd-num", "group"],
    ["gd-num", "MFLOP", k => plan.dispatches[k]!.flops, 1e6],
    ["gd-num", "KB moved", k => moved(plan.dispatches[k]!), 1e3],
  ];
  if (times) columns.push(["gd-num", "µs", k => times.median[k]!, 1e-6], ["gd-num gd-verdict", "roof %"]);
  let by = columns[0]!,
    part = "",
    order: number[] = [];
  const more = fold(
    `+ ${plural(plan.updates, "update dispatch")}${plan.optimizer ? ` (${plan.optimizer})` : ""}`,
    () => (fill(), changed()),
  );
  const foldRow = h("tr", { class: "gd-foldrow" }, h("td", { colspan: columns.length }, more.el));
  const head = h("thead"),
    el = h("table", { class: "gd-table gd-dispatches", "data-timed": times !== null }, head, list, foot);
  const plain = () => by === columns[0] && !part && plan.updates > 0;
  const fill = () => {
    const [kind, name] = part.split(" ") as ["phase", string];
    order = plan.dispatches.flatMap((each, k) => (!part || String(each[kind]) === name ? [k] : []));
    const groups = new Set(order.map(k => plan.dispatches[k]!.group));
    const sum = ([cls, , of, unit]: (typeof columns)[number], i: number): [string, Child] =>
      i === 1
        ? ["gd-label", `${plural(order.length, "dispatch")} in ${plural(groups.size, "group")}`]
        : [cls, unit ? cell(order.reduce((total, k) => total + of!(k), 0) / unit) : null];
    replace(foot, row("td", columns.map(sum)));
    order.sort((a, b) => by[2]!(b) - by[2]!(a) || a - b);
    if (plain()) order.splice(first, more.open ? 0 : Infinity, -1);
    el.toggleAttribute("data-sorted", by !== columns[0]);
    const sorts = (each: (typeof columns)[number]) =>
      h(
        "button",
        { class: "gd-sort", on: { click: () => ((by = each), fill(), changed()) } },
        each[1],
        by === each && each[3] && " \u2193",
      );
    replace(
      head,
      h(
        "tr",
        null,
        ...columns.map(each =>
          h(
            "th",
            { class: each[0] || null, "aria-sort": by !== each ? null : each[3] ? "descending" : "ascending" },
            each[2] ? sorts(each) : each[1],
          ),
        ),
      ),
    );
    rows.set(order.length, i => (order[i]! < 0 ? foldRow : dispatchRow(plan, plan.dispatches[order[i]!]!, order[i]!)));
  };
  fill();
  return {
    el,
    bring(k) {
      const hidden = k >= first && plain() && !more.open;
      if (hidden) more.to(true);
      const at = order.indexOf(k);
      return (at >= 0 && rows.bring(at)) || hidden;
    },
    only(wanted) {
      part = wanted;
      fill();
      changed();
    },
    destroy: () => rows.destroy(),
  };
}

/** Why two dispatches and not one: the fusions that were not made at nodes of this one. */
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

function detailOf(context: Context, plan: Plan, k: number): Child[] {
  const [a, b, ...others] = context
      .ui()
      .selected.flatMap(each => (each.startsWith("dispatch:") ? [Number(each.slice(9))] : []))
      .sort((x, y) => x - y),
    missed = b !== undefined && others.length === 0 ? whyTwo(context, plan, a!, b) : apart(context, plan, k),
    dispatch = plan.dispatches[k]!,
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
        span(
          "gd-mono",
          `${dispatch.workgroups.join(" × ")}${kernel ? ` of ${kernel.workgroup_size.join(" × ")} · ${kernel.entry}` : ""}`,
        ),
      ],
      ...(group && because(plan, group) ? [["group", because(plan, group)] as [string, Child]] : []),
      ...(plan.times
        ? [
            ["time", h("span", { "data-value": "verdict", title: plan.times.machine }, timed(plan.times, k))] as [
              string,
              Child,
            ],
          ]
        : []),
      ...(missed.length > 0
        ? [
            [
              "not one",
              h(
                "span",
                { title: "why this dispatch and the next are not one", "data-value": "apart" },
                missed.join("; "),
              ),
            ] as [string, Child],
          ]
        : []),
    ]),
  ];
}

export const planPane: MakePane = context => {
  const { plan } = context.doc;
  if (!plan) {
    const el = frame("plan", "Plan", "", [
      body(
        null,
        empty("Not compiled yet. ", h("code", null, `%graph_plan ${context.doc.title || "NAME"}`), " makes the plan."),
      ),
    ]);
    return { el };
  }
  const detail = h("div", { class: "gd-detail gd-dispatch", "aria-live": "off" }),
    scroller = body(null),
    table = dispatchTable(plan, scroller, () => context.redrawn("plan"));
  scroller.append(table.el);
  const count = `${planFact(plan)} ${plan.dispatches.length === 1 ? "dispatch" : "dispatches"}`;
  const el = frame("plan", "Plan", "", []);
  const ask = asking(
    context,
    "trace",
    "time every dispatch",
    plan.times ? "time again" : "time",
    "makes 3 real steps and times every dispatch",
    () => ({ steps: 3 }),
    () => {},
  );
  let brought: ReadonlySet<string> | null = null,
    byTime = plan.times !== null,
    bars: Strip;
  const draw = () => {
    bars = strip(plan, byTime);
    const widths = [
      { value: false, text: "order" },
      { value: true, text: "time" },
    ];
    const along =
      plan.times &&
      choice("what the strip shows along", widths, byTime, value => {
        byTime = value;
        draw();
        context.redrawn("plan");
      });
    retitle(
      el,
      "Plan",
      `${count}, ${plural(plan.groups.length, "group")}, one submission`,
      select("dispatches", parts(plan), "", table.only),
      along,
      ask,
    );
    refill(el, bars.el, scroller, detail);
  };
  draw();
  return {
    el,
    live: (_, host) => enliven(el, host),
    choose(lit) {
      const k = plan.dispatches.findIndex((_, i) => lit.has(`dispatch:${i}`));
      replace(detail, ...(k < 0 ? [] : detailOf(context, plan, k)));
      if (k >= 0 && lit !== brought) table.bring(k);
      brought = lit;
      return true;
    },
    lit: lit => bars.light(lit),
    destroy: () => table.destroy(),
  };
};
