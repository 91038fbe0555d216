// The plan: one line per dispatch in barrier groups, a strip of them in order, and the details of the one that is lit.

import type { DispatchRecord, GroupRecord, Plan } from "../doc.ts";
import { h, replace, type Child } from "../dom.ts";
import { bytes, cell, plural, whole } from "../format.ts";
import { familyClass } from "../graph.ts";
import { body, empty, facts, frame, swatch, type MakePane } from "../pane.ts";

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

function strip(plan: Plan): HTMLElement {
  const most = plan.dispatches.reduce((max, each) => Math.max(max, moved(each)), 1);
  const bar = (dispatch: DispatchRecord, k: number) => {
    const height = 4 + 17 * Math.sqrt(moved(dispatch) / most);
    return h(
      "span",
      {
        class: `gd-tick ${familyClass(dispatch.family)}`,
        "data-entity": `dispatch:${k}`,
        tabindex: -1,
        role: "button",
        "aria-label": `dispatch ${k}, ${dispatch.label}`,
        title: `${k} ${dispatch.label}\n${bytes(moved(dispatch))} moved`,
      },
      h("span", { style: `height:${height.toFixed(1)}px` }),
    );
  };
  const groups = plan.groups.length > 0 ? plan.groups : [{ start: 0, stop: plan.dispatches.length, because: null }];
  return h(
    "div",
    { class: "gd-strip", "data-dense": plan.dispatches.length > 100, "aria-label": "dispatches in order, one band per barrier group, height by bytes moved" },
    ...groups.map((group, g) =>
      h(
        "span",
        {
          class: "gd-band",
          style: `flex-grow:${group.stop - group.start}`,
          title: `group ${g}${group.because?.length ? `\n${because(plan, group)}` : ""}`,
        },
        ...plan.dispatches.slice(group.start, group.stop).map((dispatch, i) => bar(dispatch, group.start + i)),
      ),
    ),
  );
}

function dispatchRow(plan: Plan, dispatch: DispatchRecord, k: number): HTMLElement {
  const group = plan.groups[dispatch.group],
    opens = group?.start === k && k > 0;
  return h(
    "tr",
    {
      "data-entity": `dispatch:${k}`,
      "data-opens": opens,
      tabindex: -1,
      title: opens && group ? because(plan, group) || null : null,
      "aria-label": `dispatch ${k}, ${dispatch.label}, ${dispatch.phase}, group ${dispatch.group}`,
    },
    h("td", { class: "gd-num gd-muted" }, k),
    h(
      "td",
      { class: "gd-label" },
      swatch(familyClass(dispatch.family)),
      h("span", { class: "gd-ellipsis", title: dispatch.label }, dispatch.label),
    ),
    h("td", { class: "gd-muted gd-phase" }, dispatch.phase),
    h("td", { class: "gd-num" }, dispatch.group),
    h("td", { class: "gd-num" }, cell(dispatch.flops / 1e6)),
    h("td", { class: "gd-num" }, cell(moved(dispatch) / 1e3)),
  );
}

function dispatchTable(plan: Plan): HTMLElement {
  const rows = plan.dispatches.map((dispatch, k) => dispatchRow(plan, dispatch, k));
  const first = plan.dispatches.length - plan.updates;
  const updates = h("tbody", { hidden: true }, ...rows.slice(first));
  const fold = h(
    "button",
    {
      type: "button",
      class: "gd-fold",
      "aria-expanded": "false",
      on: {
        click: () => {
          updates.hidden = !updates.hidden;
          fold.setAttribute("aria-expanded", String(!updates.hidden));
        },
      },
    },
    `+ ${plural(plan.updates, "update dispatch")}${plan.optimizer ? ` (${plan.optimizer})` : ""}`,
  );
  const sum = (what: (dispatch: DispatchRecord) => number) => plan.dispatches.reduce((total, each) => total + what(each), 0);
  return h(
    "table",
    { class: "gd-table gd-dispatches" },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        h("th", { class: "gd-num" }, "#"),
        h("th", null, "dispatch"),
        h("th", { class: "gd-phase" }, "phase"),
        h("th", { class: "gd-num" }, "group"),
        h("th", { class: "gd-num" }, "MFLOP"),
        h("th", { class: "gd-num" }, "KB moved"),
      ),
    ),
    h("tbody", null, ...rows.slice(0, first)),
    h("tbody", null, h("tr", { class: "gd-foldrow", hidden: plan.updates === 0 }, h("td", { colspan: 6 }, fold))),
    updates,
    h(
      "tfoot",
      null,
      h(
        "tr",
        null,
        h("td", null),
        h("td", { class: "gd-label" }, `${plural(plan.dispatches.length, "dispatch")} in ${plural(plan.groups.length, "group")}`),
        h("td", { class: "gd-phase" }),
        h("td", null),
        h("td", { class: "gd-num" }, cell(sum(each => each.flops) / 1e6)),
        h("td", { class: "gd-num" }, cell(sum(moved) / 1e3)),
      ),
    ),
  );
}

function detailOf(plan: Plan, k: number): Child[] {
  const dispatch = plan.dispatches[k]!,
    group = plan.groups[dispatch.group];
  const buffers = (indexes: readonly number[]): Child =>
    indexes.map(index => {
      const name = plan.intervals[index]?.name || `buffer ${index}`;
      return h(
        "button",
        { type: "button", class: "gd-chip", "data-entity": `interval:${index}`, tabindex: -1, "aria-label": `buffer ${name}` },
        name,
      );
    });
  const kernel = plan.kernels[dispatch.kernel];
  return [
    facts([
      ["reads", buffers(dispatch.reads)],
      ["writes", buffers(dispatch.writes)],
      [
        "workgroups",
        h(
          "span",
          { class: "gd-mono" },
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
  const detail = h("div", { class: "gd-detail gd-dispatch", "aria-live": "off" });
  const table = dispatchTable(plan);
  const scroller = body(null, table);
  const el = frame(
    "plan",
    "Plan",
    `${planFact(plan)} ${plan.dispatches.length === 1 ? "dispatch" : "dispatches"}, ${plural(plan.groups.length, "group")}, one submission`,
    [strip(plan), scroller, detail],
  );
  return {
    el,
    choose(lit) {
      const k = plan.dispatches.findIndex((_, i) => lit.has(`dispatch:${i}`));
      replace(detail, ...(k < 0 ? [] : detailOf(plan, k)));
      return true;
    },
    lit() {
      const hidden = table.querySelector<HTMLElement>("tbody[hidden]");
      const outside = table.querySelector("tbody:not([hidden]) [data-lit]");
      if (!outside && hidden?.querySelector("[data-lit]")) table.querySelector<HTMLButtonElement>(".gd-fold")?.click();
    },
  };
};
