// The rewrites, one row per step in the order of the replay, and the source of the rule that is lit.

import { optimizeReport, optimizerPasses, type Pass, type RewriteStep } from "../doc/doc.ts";
import { plural, priced, sig } from "../doc/format.ts";
import { div, h, paragraph, replace, td, type Child } from "../draw/dom.ts";
import { Rows } from "../draw/virtual.ts";
import { body, empty, frame, pane, table, UNOPTIMIZED } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";
import { lineOf, rewritePicture, ruleShown } from "./rule.ts";
import { rewriteCount, rewritesOf } from "./tabcounts.ts";

/** The nodes of a step, by op and name. */
function aboutSteps(context: Context, pass: Pass): (step: RewriteStep) => string {
  const called = (op: unknown, name: unknown) => [op, name].filter(Boolean).join(" ");
  const names = new Map(
    (context.doc.stages[pass.from]?.nodes ?? []).map(node => [node.key, called(node.op, node.name)]),
  );
  for (const step of pass.rewrites) for (const node of step.added ?? []) names.set(String(node.key), String(node.op));
  return step => {
    const left = step.at.map(key => names.get(key) ?? key).join(", "),
      added = (step.added ?? []).map(node => called(node.op, node.name)).join(", ");
    return added ? `${left} → ${added}` : left || plural(step.removed.length, "node");
  };
}

function stepRow(pass: Pass, step: RewriteStep, nodes: string, index: number, place: number): HTMLElement {
  const cost = `${sig(step.cost_before)} → ${sig(step.cost_after)}`;
  return h(
    "tr",
    {
      "data-entity": `step:${pass.index}.${index}`,
      tabindex: -1,
      title: `${step.label}\n${nodes}`,
      "aria-label": `step ${place}, ${step.label}, ${nodes}, cost ${cost} microseconds`,
    },
    td("gd-num gd-muted", place),
    td("gd-rule", div("gd-ellipsis", step.label), div("gd-ellipsis gd-muted gd-mono", nodes)),
    td("gd-num gd-nowrap", cost),
  );
}

function make(context: Context): Pane {
  const passes = optimizerPasses(context.doc);
  const total = rewriteCount(context.doc);
  const detail = div("gd-detail gd-scroll"),
    listed = body(null),
    lists: { pass: Pass; rows: Rows; indexes: number[] }[] = [];
  const listOf = (pass: Pass): Child => {
    const rows = rewritesOf(pass),
      stages = context.doc.stages,
      about = aboutSteps(context, pass),
      list = h("tbody"),
      shown = new Rows(listed, list, 45, () => context.redrawn("rewrites"));
    shown.set(rows.length, i => stepRow(pass, rows[i]!.step, about(rows[i]!.step), rows[i]!.index, i + 1));
    lists.push({ pass, rows: shown, indexes: rows.map(each => each.index) });
    const [from, to] = [pass.from, pass.to].map(each => stages[each]?.title || stages[each]?.key);
    const title = `${from} → ${to}`;
    return [
      passes.length > 1 && h("h4", { class: "gd-indent" }, title),
      rows.length === 0
        ? paragraph("gd-muted gd-indent", optimizeReport(pass).outcome)
        : table(
            "gd-steps",
            [
              ["gd-num", "#"],
              ["", "rule and nodes"],
              ["gd-num", "cost, µs"],
            ],
            list,
          ),
      rows.length > 0 &&
        paragraph("gd-muted gd-indent", `Costs are ${priced(optimizeReport(pass).cost_model)}.`),
    ];
  };
  replace(listed, passes.length > 0 ? passes.map(listOf) : empty(UNOPTIMIZED));
  const el = frame(rewritesPane, plural(total, "rewrite"), [listed, detail]);
  const showRule = (lit: ReadonlySet<string>): boolean => {
    const found = passes
      .flatMap(pass => rewritesOf(pass).map(row => ({ pass, ...row })))
      .find(({ pass, index }) => lit.has(`step:${pass.index}.${index}`));
    if (found) {
      const { pass, step, index } = found,
        line = lineOf(pass, step.rule),
        [mathematics, ...python] = ruleShown(line, pass.sources[step.rule] ?? pass.sources[step.label]);
      const picture = rewritePicture(context.doc, pass, index);
      replace(detail, h("h4", null, `Rule ${step.label}`), mathematics, picture, ...python);
    } else replace(detail, total > 0 && paragraph("gd-muted", "Select a step to see its rule."));
    for (const { pass, rows, indexes } of lists) {
      const row = indexes.findIndex(index => lit.has(`step:${pass.index}.${index}`));
      if (row >= 0) return rows.bring(row);
    }
    return false;
  };
  showRule(new Set());
  return { el, choose: showRule, destroy: () => lists.forEach(({ rows }) => rows.destroy()) };
}

export const rewritesPane: PaneRecord = pane("rewrites", make);
