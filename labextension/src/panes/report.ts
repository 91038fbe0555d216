// The OptimizeReport: what the optimizer did in three numbers, which rules, and why not more.

import { optimizeReport, type OptimizeReport, type Pass, type RuleStat } from "../doc.ts";
import { h, type Child } from "../dom.ts";
import { change, plural, seconds, sig, whole } from "../format.ts";
import { big, body, choice, dot, empty, frame, type MakePane } from "../pane.ts";

const SAFETY: Record<string, string> = {
  exact: "exact: the same bits",
  rounding: "rounding: other roundings",
  reassoc: "reassoc: sums in another order",
  approx: "approx: an approximation",
};

function stopReason(report: OptimizeReport): string {
  const rounds = report.iterations.length;
  if (report.stop_reason === "saturated") return rounds > 0 ? `saturated in ${rounds}` : "saturated";
  return report.stop_reason.replaceAll("-", " ") || "done";
}

const numbers = (report: OptimizeReport): HTMLElement =>
  h(
    "div",
    { class: "gd-bigs" },
    big(`${whole(report.nodes_before)} → ${whole(report.nodes_after)}`, "nodes"),
    big(change(report.cost_before, report.cost_after), `cost ${sig(report.cost_before)}→${sig(report.cost_after)} µs`),
    big(seconds(report.egglog_time + report.extract_time), h("span", { title: report.stop_detail || null }, stopReason(report))),
  );

function ruleRow(pass: Pass, rule: RuleStat, index: number, slowest: number): HTMLTableRowElement {
  const share = slowest > 0 ? Math.max(2, Math.round((24 * rule.seconds) / slowest)) : 0;
  const note = [rule.label, SAFETY[rule.tag] ?? rule.tag, rule.doc, rule.enabled ? "" : "switched off"].filter(Boolean).join("\n");
  return h(
    "tr",
    {
      "data-entity": `rule:${pass.index}.${index}`,
      tabindex: -1,
      "aria-label": `rule ${rule.label}, ${rule.tag}, matched ${rule.matched}, used ${rule.used}`,
      title: note,
      "data-idle": rule.used === 0,
    },
    h("td", { class: "gd-rule" }, h("div", { class: "gd-inline" }, dot(rule.tag), h("span", { class: "gd-ellipsis" }, rule.label))),
    h("td", { class: "gd-num" }, whole(rule.matched)),
    h("td", { class: "gd-num gd-strong" }, whole(rule.used)),
    h("td", { class: "gd-time", title: seconds(rule.seconds) }, h("span", { class: "gd-bar", style: `width:${share}px` })),
  );
}

function rulesTable(pass: Pass, report: OptimizeReport): HTMLElement {
  const slowest = report.rules.reduce((most, rule) => Math.max(most, rule.seconds), 0);
  const rows = report.rules.map((rule, i) => ({ rule, row: ruleRow(pass, rule, i, slowest) }));
  const order = (a: { rule: RuleStat }, b: { rule: RuleStat }) => b.rule.used - a.rule.used || b.rule.matched - a.rule.matched;
  const met = rows.filter(({ rule }) => rule.matched + rule.used > 0).sort(order),
    idle = rows.filter(({ rule }) => rule.matched + rule.used === 0);
  const head = h(
    "thead",
    null,
    h(
      "tr",
      null,
      h("th", null, "rule"),
      h("th", { class: "gd-num" }, "matched"),
      h("th", { class: "gd-num" }, "used"),
      h("th", { class: "gd-time" }, "time"),
    ),
  );
  const folded = h("tbody", { hidden: true }, ...idle.map(({ row }) => row));
  const label = `${plural(idle.length, "rule")} without a match`;
  const fold = h(
    "button",
    {
      type: "button",
      class: "gd-fold",
      "aria-expanded": "false",
      on: {
        click: () => {
          folded.hidden = !folded.hidden;
          fold.setAttribute("aria-expanded", String(!folded.hidden));
        },
      },
    },
    label,
  );
  return h(
    "div",
    null,
    h(
      "table",
      { class: "gd-table gd-rules", "data-timed": slowest > 0 },
      head,
      h("tbody", null, ...met.map(({ row }) => row)),
      h(
        "tbody",
        null,
        h("tr", { class: "gd-foldrow", hidden: idle.length === 0 }, h("td", { colspan: 3 }, fold), h("td", { class: "gd-time" })),
      ),
      folded,
    ),
  );
}

function missedList(report: OptimizeReport): Child[] {
  if (report.missed.length === 0) return [h("h4", null, "Not fused"), h("p", { class: "gd-muted" }, "No near match was left unused.")];
  return [
    h("h4", null, "Not fused"),
    ...report.missed.map(({ label, text, about, reason, detail }) => {
      const entity = about && /^(node|edge|rule|step|dispatch|interval):/.test(about) ? about : null;
      return h(
        "div",
        {
          class: "gd-missed",
          "data-entity": entity,
          tabindex: entity ? -1 : null,
          role: entity ? "button" : null,
          "aria-label": entity ? `${label}: ${text}` : null,
        },
        dot("missed"),
        h("div", null, h("strong", null, label), h("div", { class: "gd-muted" }, text || [reason, detail].filter(Boolean).join(": "))),
      );
    }),
  ];
}

export const reportPane: MakePane = context => {
  const passes = context.doc.passes.filter(pass => pass.role === "optimize");
  const holder = body({ class: "gd-report" });
  const el = frame("report", "OptimizeReport", "", [holder]);
  let at = 0;
  const draw = () => {
    const pass = passes[at];
    const report = pass && optimizeReport(pass);
    const options = passes.map((each, value) => ({ value, text: optimizeReport(each).phase || each.key, title: each.key }));
    const controls = choice("pass", options, at, value => {
      at = value;
      draw();
      context.redrawn("report");
    });
    const fact = report ? [report.engine, report.cost_model].filter(Boolean).join(", ") : "";
    const header = frame("report", "OptimizeReport", fact, [], [controls]).firstElementChild!;
    el.replaceChildren(header, holder);
    holder.replaceChildren();
    if (!pass || !report) return holder.append(empty("This graph has not been optimized. ", h("code", null, `%graph ${context.doc.title || "NAME"}`), " does it."));
    holder.append(numbers(report), rulesTable(pass, report), h("div", { class: "gd-notfused" }, ...missedList(report)));
    for (const note of context.doc.notes) holder.append(h("p", { class: "gd-note", "data-level": note.level }, note.text));
  };
  draw();
  return {
    el,
    choose(lit) {
      // What is lit may be of the other pass: show that one.
      const wanted = passes.findIndex(pass => [...lit].some(each => each.startsWith(`rule:${pass.index}.`)));
      if (wanted < 0 || wanted === at) return false;
      at = wanted;
      draw();
      return true;
    },
    lit() {
      const hidden = el.querySelector<HTMLElement>("tbody[hidden]");
      if (hidden?.querySelector("[data-lit]")) el.querySelector<HTMLButtonElement>(".gd-fold")?.click();
    },
  };
};
