// The OptimizeReport: what the optimizer did in three numbers, which rules, and why not more.

import { nodeName, optimizeReport, type OptimizeReport, type Pass, type RuleStat } from "../doc.ts";
import { div, h, replace, setFlag, span, td, type Child } from "../dom.ts";
import { change, plural, seconds, sig, whole } from "../format.ts";
import { big, body, button, choice, dot, empty, fold, frame, highlighted, retitle, row, table, type Context, type MakePane } from "../pane.ts";
import { parseEntity } from "../select.ts";

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
  div("gd-bigs",
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
    td("gd-rule", div("gd-inline", dot(rule.tag), span("gd-ellipsis", rule.label))),
    td("gd-num", whole(rule.matched)),
    td("gd-num gd-strong", whole(rule.used)),
    h("td", { class: "gd-time", title: seconds(rule.seconds) }, h("span", { class: "gd-bar", style: `width:${share}px` })),
  );
}

function rulesTable(pass: Pass, report: OptimizeReport): HTMLElement {
  const slowest = report.rules.reduce((most, rule) => Math.max(most, rule.seconds), 0);
  const rows = report.rules.map((rule, i) => ({ rule, row: ruleRow(pass, rule, i, slowest) }));
  const order = (a: { rule: RuleStat }, b: { rule: RuleStat }) => b.rule.used - a.rule.used || b.rule.matched - a.rule.matched;
  const met = rows.filter(({ rule }) => rule.matched + rule.used > 0).sort(order),
    idle = rows.filter(({ rule }) => rule.matched + rule.used === 0);
  const folded = h("tbody", { hidden: true }, ...idle.map(({ row }) => row));
  const { el } = fold(`${plural(idle.length, "rule")} without a match`, open => (folded.hidden = !open));
  const made = table(
    "gd-rules",
    [["", "rule"], ["gd-num", "matched"], ["gd-num", "used"], ["gd-time", "time"]],
    h("tbody", null, ...met.map(each => each.row)),
    h("tbody", { hidden: idle.length === 0 }, h("tr", null, h("td", { colspan: 3 }, el), td("gd-time"))),
    folded,
  );
  made.toggleAttribute("data-timed", slowest > 0);
  return made;
}

function missedList(report: OptimizeReport): Child[] {
  if (report.missed.length === 0) return [h("h4", null, "Not fused"), h("p", { class: "gd-muted" }, "No near match was left unused.")];
  return [
    h("h4", null, "Not fused"),
    ...report.missed.map(({ label, text, about, reason, detail, guard }) => {
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
        h("div", null, h("strong", null, label), div("gd-muted", text || [reason, detail].filter(Boolean).join(": ")), guard && guardLine(guard)),
      );
    }),
  ];
}

/** What is asked of the kernel: a selected rule, or two selected nodes of the result, with what they are called. */
function question(context: Context, pass: Pass, report: OptimizeReport): { a: number | string; b?: number; text: string } | null {
  const selected = context.ui().selected.flatMap(each => parseEntity(each) ?? []);
  const rule = selected.find(({ kind, at }) => kind === "rule" && at[0] === pass.index);
  if (rule) return { a: report.rules[rule.at[1]!]!.id, text: report.rules[rule.at[1]!]!.label };
  const nodes = selected.filter(({ kind, at }) => kind === "node" && at[0] === pass.to).map(({ at }) => at[1]!);
  if (nodes.length !== 2 || selected.length !== 2) return null;
  const [a, b] = nodes.sort((x, y) => x - y) as [number, number],
    stage = context.doc.stages[pass.to]!;
  return { a, b, text: `${nodeName(stage.nodes[a]!)} and ${nodeName(stage.nodes[b]!)}` };
}

/** "Why not?": the answer of the optimizer, with the Python line of each condition that refused. */
function whyNot(context: Context): { el: HTMLElement; show(pass: Pass | undefined, report: OptimizeReport | undefined): void } {
  const el = h("div", { class: "gd-why", "data-value": "why" });
  return {
    el,
    show(pass, report) {
      const asked = pass && report && question(context, pass, report);
      if (!asked) return replace(el, h("p", { class: "gd-muted" }, "Why not? Select a rule, or two neighbours in the optimized graph (Shift + click)."));
      const { text, ...nodes } = asked,
        host = context.host();
      const ask = button(`why not: ${text}`, { class: "gd-button gd-small", "data-command": "why", disabled: !host || host.dead }, `Why not ${text}?`);
      ask.title = host ? "" : "no live kernel to ask: run the cell again";
      ask.addEventListener("click", () => {
        void host!.command("why", { ...nodes, phase: report.phase }).then(({ ok, result, error }) => {
          const guards = (ok ? (result?.guards as [string, number, string][]) : null) ?? [];
          const said = ok ? String(result?.text ?? "") : (error?.message ?? "refused");
          replace(el, ask, h("p", { class: "gd-note", "data-level": ok ? "info" : "error" }, said), ...guards.map(guardLine));
        });
      });
      replace(el, ask, typeof asked.a === "string" && without(context, pass, asked.a, text));
    },
  };
}

/** What if this rule were off (or, in a variant without it, on again)? A variant beside the graph answers. */
function without(context: Context, pass: Pass, rule: string, label: string): HTMLElement {
  const off = (pass.options.disable as string[] | undefined) ?? [],
    on = off.filter(each => each !== rule && each !== label),
    host = context.host(),
    told = `${on.length < off.length ? "With" : "Without"} ${label}`;
  const made = button(told, { class: "gd-button gd-small", "data-command": "what-if", disabled: !host || host.dead || (on.length < off.length && on.length === 0) });
  made.title = host ? "optimizes again, as a variant beside this one" : "no live kernel to ask: run the cell again";
  made.addEventListener("click", () => {
    made.disabled = true;
    void host!.command("optimize", { disable: on.length < off.length ? on : [...off, rule] }).then(({ ok, error }) => {
      if (!ok) made.after(h("p", { class: "gd-note", "data-level": "error" }, error?.message ?? "refused"));
    });
  });
  return made;
}

/** The graph as optimized and its variants, side by side in figures. */
function variants(passes: readonly Pass[]): Child {
  const rows = passes.filter(({ key }, i) => i === 0 || !key.endsWith(":full"));
  if (rows.length < 2) return null;
  const line = (pass: Pass) => {
    const report = optimizeReport(pass);
    return row("td", [["gd-rule gd-ellipsis", pass.key.replace(/^optimize:/, "")], ["gd-num", whole(report.nodes_after)], ["gd-num", sig(report.cost_after)]]);
  };
  return [h("h4", null, "What if"), table("gd-rules", [["", "variant"], ["gd-num", "nodes"], ["gd-num", "µs"]], h("tbody", null, ...rows.map(line)))];
}

const guardLine = ([file, line, text]: [string, number, string]): Child => [
  h("pre", { class: "gd-code gd-guard" }, ...highlighted(text.trim(), "python")),
  div("gd-muted gd-place", `${file}:${line}`),
];

export const reportPane: MakePane = context => {
  const passes = context.doc.passes.filter(pass => pass.role === "optimize");
  const holder = body({ class: "gd-report" });
  const el = frame("report", "OptimizeReport", "", [holder]);
  const why = whyNot(context);
  let at = 0;
  const draw = () => {
    const pass = passes[at];
    const report = pass && optimizeReport(pass);
    const options = passes.map((each, value) => ({ value, text: each.key.replace(/^optimize:/, ""), title: each.key }));
    const controls = choice("pass", options, at, value => {
      at = value;
      draw();
      context.redrawn("report");
    });
    const fact = report ? [report.engine, report.cost_model].filter(Boolean).join(", ") : "";
    retitle(el, "OptimizeReport", fact, controls);
    holder.replaceChildren();
    if (!pass || !report) return holder.append(empty("This graph has not been optimized. ", h("code", null, `%graph ${context.doc.title || "NAME"}`), " does it."));
    holder.append(numbers(report), rulesTable(pass, report), div("gd-notfused", ...missedList(report)), why.el, h("div", null, variants(passes)));
    why.show(pass, report);
    for (const note of context.doc.notes) holder.append(h("p", { class: "gd-note", "data-level": note.level }, note.text));
  };
  draw();
  return {
    el,
    choose(lit) {
      // What is lit may be of the other pass: show that one.
      const wanted = passes.findIndex(pass => [...lit].some(each => each.startsWith(`rule:${pass.index}.`)));
      if (wanted < 0 || wanted === at) {
        why.show(passes[at], passes[at] && optimizeReport(passes[at]));
        return false;
      }
      at = wanted;
      draw();
      return true;
    },
    lit(lit) {
      const pass = passes[at],
        used = new Set(pass?.rewrites.flatMap((step, i) => (lit.has(`step:${pass.index}.${i}`) ? [step.rule] : [])));
      const rules = pass ? optimizeReport(pass).rules : [];
      el.querySelectorAll("[data-entity^=rule]").forEach(row => setFlag(row, "data-some", used.has(rules[Number(row.getAttribute("data-entity")!.split(".")[1])]?.id ?? "")));
      const hidden = el.querySelector<HTMLElement>("tbody[hidden]");
      if (hidden?.querySelector("[data-lit]")) el.querySelector<HTMLButtonElement>(".gd-fold")?.click();
    },
  };
};
