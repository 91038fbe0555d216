// The OptimizeReport: the optimizer's work in three numbers, the rules it used, and why not more.

import { opening } from "./state.ts";
import { nodeName, optimizeReport, optimizerPasses, passName } from "../doc/doc.ts";
import type { OptimizeReport, Pass, RuleStat } from "../doc/doc.ts";
import { change, plural, priced, put, seconds, sig, whole } from "../doc/format.ts";
import { parseEntity } from "../doc/select.ts";
import { all, div, h, paragraph, replace, setFlag, span, td, SMALL_BUTTON, type Child } from "../draw/dom.ts";
import { asking, enliven } from "./ask.ts";
import {
  big,
  body,
  button,
  choice,
  dot,
  empty,
  entity,
  fold,
  frame,
  highlighted,
  pane,
  retitle,
  table,
} from "./pane.ts";
import { UNOPTIMIZED, type Context, type Pane, type PaneRecord } from "./pane.ts";
import { making } from "./whatif.ts";

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
  div(
    "gd-bigs",
    big(`${whole(report.nodes_before)} → ${whole(report.nodes_after)}`, "nodes"),
    big(change(report.cost_before, report.cost_after), `cost ${sig(report.cost_before)}→${sig(report.cost_after)} µs`),
    big(
      seconds(report.egglog_time + report.extract_time),
      h("span", { title: report.stop_detail || null }, stopReason(report)),
    ),
    div("gd-muted gd-priced", `Cost: ${priced(report.cost_model)}.`),
  );

function ruleRow(pass: Pass, rule: RuleStat, index: number, slowest: number): HTMLTableRowElement {
  const share = slowest > 0 ? Math.max(2, Math.round((24 * rule.seconds) / slowest)) : 0;
  const note = [rule.label, SAFETY[rule.tag] ?? rule.tag, rule.doc, rule.enabled ? "" : "switched off"]
    .filter(Boolean)
    .join("\n");
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
    h(
      "td",
      { class: "gd-time", title: seconds(rule.seconds) },
      h("span", { class: "gd-bar", style: `width:${share}px` }),
    ),
  );
}

function rulesTable(pass: Pass, report: OptimizeReport): HTMLElement {
  const slowest = report.rules.reduce((most, rule) => Math.max(most, rule.seconds), 0);
  const rows = report.rules.map((rule, i) => ({ rule, row: ruleRow(pass, rule, i, slowest) }));
  const order = (a: { rule: RuleStat }, b: { rule: RuleStat }) =>
    b.rule.used - a.rule.used || b.rule.matched - a.rule.matched;
  const met = rows.filter(({ rule }) => rule.matched + rule.used > 0).sort(order),
    idle = rows.filter(({ rule }) => rule.matched + rule.used === 0);
  const folded = h("tbody", { hidden: true }, ...idle.map(({ row }) => row));
  const { el } = fold(`${plural(idle.length, "rule")} without a match`, open => (folded.hidden = !open));
  const made = table(
    "gd-rules",
    [
      ["", "rule"],
      ["gd-num", "matched"],
      ["gd-num", "used"],
      ["gd-time", "time"],
    ],
    h("tbody", null, ...met.map(each => each.row)),
    h("tbody", { hidden: idle.length === 0 }, h("tr", null, h("td", { colspan: 3 }, el), td("gd-time"))),
    folded,
  );
  made.toggleAttribute("data-timed", slowest > 0);
  return made;
}

const PLACES = 12; // of one refusal, one by one

/** A row of one refusal, with all places where it was the same. */
function missedRow(rows: OptimizeReport["missed"]): HTMLElement {
  const { label, text, about, reason, detail, guard } = rows[0]!,
    place = about && /^(node|edge|rule|step|dispatch|interval):/.test(about) ? about : null;
  const links = rows.slice(0, PLACES).flatMap(({ about }, i): Child[] => {
    const at = `%${about!.split(".")[1]}`;
    return [i > 0 && " ", h("button", { class: "gd-link", ...entity(about!, `${label} at ${at}`), role: null }, at)];
  });
  const said =
    rows.length === 1
      ? [text || [reason, detail].filter(Boolean).join(": ")]
      : [
          `${rows.length} places, `,
          ...links,
          rows.length > PLACES && ` and ${rows.length - PLACES} more`,
          `: ${detail || reason}`,
        ];
  const alone = rows.length === 1 && place ? { ...entity(place, `${label}: ${text}`) } : {};
  return h(
    "div",
    { class: "gd-missed", ...alone },
    dot("missed"),
    h("div", null, h("strong", null, ...breakable(label)), div("gd-muted", ...said), guard && guardLine(guard)),
  );
}

/** Allow line breaks in a rule's label behind its arrow and its signs, not inside a word. */
const breakable = (label: string): Child[] =>
  label.split(/(?<=[→+(,])/).flatMap((part, i): Child[] => [i > 0 && h("wbr", null), part]);

function missedList(report: OptimizeReport): Child[] {
  if (report.missed.length === 0)
    return [h("h4", null, "Not fused"), paragraph("gd-muted", "No near match was left unused.")];
  const alike = new Map<string, OptimizeReport["missed"]>();
  for (const each of report.missed)
    put(alike, /^node:/.test(each.about ?? "") ? `${each.label}\n${each.reason}\n${each.detail}` : each.text, each);
  return [h("h4", null, "Not fused"), ...[...alike.values()].map(missedRow)];
}

/** Return the question for the kernel: a selected rule, or two selected nodes of the result, with their names. */
function question(
  context: Context,
  pass: Pass,
  report: OptimizeReport,
): { a: number | string; b?: number; text: string } | null {
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
function whyNot(context: Context): {
  el: HTMLElement;
  show(pass: Pass | undefined, report: OptimizeReport | undefined): void;
} {
  const el = h("div", { class: "gd-why", "data-value": "why" });
  return {
    el,
    show(pass, report) {
      const asked = pass && report && question(context, pass, report);
      if (!asked)
        return replace(
          el,
          paragraph("gd-muted", "Why not? Select a rule, or two neighbours in the optimized graph (Shift + click)."),
        );
      const { text, ...nodes } = asked;
      const ask = asking(
        context,
        "why",
        `why not: ${text}`,
        `Why not ${text}?`,
        "asks the optimizer",
        () => ({ ...nodes, phase: report.phase }),
        result => {
          const said = h(
            "div",
            { class: "gd-note", "data-level": "info" },
            linked(context, pass, String(result.text ?? "")),
          );
          replace(el, ask, make, said, ...((result.guards ?? []) as [string, number, string][]).map(guardLine));
          context.redrawn("report");
        },
      );
      const rule = report.rules.find(({ id }) => id === asked.a),
        make = rule ? without(context, pass, rule) : null;
      replace(el, ask, make);
    },
  };
}

/** Offer a variant without this rule, or with it if it took no part. */
function without(context: Context, pass: Pass, rule: RuleStat): Child {
  const { disable = [], allow = "rounding" } = pass.options as { disable?: string[]; allow?: string },
    rest = disable.filter(each => each !== rule.id && each !== rule.label),
    order = Object.keys(SAFETY);
  const make = (word: string, args: Record<string, unknown>) =>
    making(context, `${word} ${rule.label}`, `${word} ${rule.label}`, () => args);
  if (rest.length < disable.length) return make("With", { disable: rest });
  if (rule.enabled) return make("Without", { disable: [...disable, rule.id] });
  if (!rule.phases.includes(optimizeReport(pass).phase)) return null;
  return order.indexOf(rule.tag) > order.indexOf(allow)
    ? make(`Force it (allow ${rule.tag}):`, { disable, allow: rule.tag })
    : make("Force it:", { disable, enable: [rule.id] });
}

/** Make each `%3` in lines of text a link to its node: of the result, or of the graph before where a rule was used. */
const linked = (context: Context, pass: Pass, text: string): Child[] =>
  text.split("\n").map(line => {
    const stage = context.doc.stages[line.includes(" was used at %") ? pass.from : pass.to]!;
    return h(
      "div",
      null,
      ...line.split(/%(\d+)/).map((part, i): Child => {
        const node = i % 2 > 0 ? stage.nodes[Number(part)] : undefined;
        return node
          ? h(
              "button",
              {
                class: "gd-link",
                ...entity(`node:${stage.index}.${part}`, `node ${nodeName(node)}`),
                role: null,
                title: nodeName(node),
              },
              `%${part}`,
            )
          : i % 2 > 0
            ? `%${part}`
            : part;
      }),
    );
  });

const guardLine = ([file, line, text]: [string, number, string]): Child => [
  h("pre", { class: "gd-code gd-guard" }, ...highlighted(text.trim(), "python")),
  div("gd-muted gd-place", `${file}:${line}`),
];

/** Open the form of other rules and options, and go to it. */
function openForm(el: HTMLElement): void {
  const form = el.closest(".gdlab")?.querySelector<HTMLElement>(".gd-whatif .gd-fold");
  if (form?.ariaExpanded === "false") form.click();
  form?.focus();
}

function make(context: Context): Pane {
  const passes = optimizerPasses(context.doc);
  const holder = body({ class: "gd-report" });
  const el = frame(reportPane, "", [holder]);
  const why = whyNot(context);
  const told =
    context.doc.variants.length > 0
      ? `${plural(context.doc.variants.length - 1, "variant")} compared`
      : "Other rules and options \u2026";
  const what = button(
    "what if",
    {
      class: SMALL_BUTTON,
      "data-command": "compare",
      on: { click: () => (context.act(opening("diff")), openForm(el)) },
    },
    told,
  );
  let at = 0;
  const draw = () => {
    const pass = passes[at];
    const report = pass && optimizeReport(pass);
    const options = passes.map((each, value) => ({ value, text: passName(each), title: each.key }));
    const controls = choice("pass", options, at, value => {
      at = value;
      draw();
      context.redrawn("report");
    });
    const fact = report ? [report.engine, report.cost_model].filter(Boolean).join(", ") : "";
    retitle(el, reportPane.title, fact, controls);
    holder.replaceChildren();
    if (!pass || !report)
      return holder.append(
        empty(
          UNOPTIMIZED,
          " ",
          h("code", null, `%graph ${context.doc.title || "NAME"}`),
          " does it.",
        ),
      );
    holder.append(
      numbers(report),
      rulesTable(pass, report),
      div("gd-notfused", ...missedList(report)),
      why.el,
      h("h4", null, "What if"),
      what,
    );
    why.show(pass, report);
    for (const note of context.doc.notes)
      holder.append(h("p", { class: "gd-note", "data-level": note.level }, note.text));
  };
  draw();
  return {
    el,
    live: (_, host) => enliven(el, host),
    choose(lit) {
      // A lit entity may be of the other pass: show that one.
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
      all(el, "[data-entity^=rule]").forEach(row =>
        setFlag(row, "data-some", used.has(rules[Number(row.getAttribute("data-entity")!.split(".")[1])]?.id ?? "")),
      );
      const hidden = el.querySelector<HTMLElement>("tbody[hidden]");
      if (hidden?.querySelector("[data-lit]")) el.querySelector<HTMLButtonElement>(".gd-fold")?.click();
    },
  };
}

export const reportPane: PaneRecord = pane("report", make);
