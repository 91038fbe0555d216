// Describe an iteration of an e-graph in tables: the rules that fired, the classes that merged, and the e-nodes of one
// class.

import { optimizeReport } from "../doc/doc.ts";
import { plural, priced, sig } from "../doc/format.ts";
import { div, h, paragraph, span, type Child } from "../draw/dom.ts";
import { callText, isChosen, ruleOf, titleOf, typeOf, type Iteration } from "./egraph_picture.ts";
import { chip, row, table } from "./pane.ts";

const line = (...cells: Child[]): Child =>
  row(
    "td",
    cells.map((cell, i) => [i > 0 ? "gd-num gd-nowrap" : "", cell]),
  );
const muted = (text: string): Child => paragraph("gd-muted", text);
const heads = (first: string, ...numbers: string[]): [string, string][] => [
  ["", first],
  ...numbers.map((text): [string, string] => ["gd-num", text]),
];

/** The rules that fired in this iteration, each with its count and the e-nodes that it added. */
function firedRules(of: Iteration): Child {
  const { growth, at } = of;
  const added = growth.enodes.filter(({ since, label }) => since === at && label);
  const fired = new Map([...added.map(({ label }) => [label, 1] as const), ...growth.fired[at]!]);
  if (fired.size === 0) return muted(at > 0 ? "Nothing new." : "One way to compute each value.");
  const rows = [...fired].map(([label, times]) =>
    line(
      chip(ruleOf(of, label), `rule ${label}`, label, label),
      times,
      added.filter(each => each.label === label).length || "–",
    ),
  );
  return table("gd-came", heads("rule", "fired", "new"), rows);
}

/** Say why saturation ended, and the cost before and after. */
function outcome({ pass }: Iteration): Child {
  const { stop_reason: why, stop_detail: detail, cost_before, cost_after, cost_model } = optimizeReport(pass);
  const reason =
    why === "saturated" ? "Saturated: no rule has anything left to say. " : `It ended by a limit: ${detail || why}. `;
  const costs = `${sig(cost_before)} → ${sig(cost_after)} µs, ${priced(cost_model)}`;
  return h("p", null, reason, `The choice, in bold, is what makes the whole cost least: ${costs}.`);
}

/** Describe the changes of an iteration. */
export const iterationNews = (of: Iteration): Child[] => [
  h("h4", null, of.at > 0 ? `Iteration ${of.at}` : "The graph as it came in"),
  firedRules(of),
  of.growth.merged[of.at]!.map(([stays, goes]) =>
    h("p", null, `${titleOf(of, goes)} and ${titleOf(of, stays)} are one class now.`),
  ),
  of.end && outcome(of),
];

/** The e-nodes of one class, the chosen ones first, each with its cost. */
export function classDetail(of: Iteration, name: string): Child[] {
  const { held, end } = of;
  const chosen = ({ node }: { node: Parameters<typeof isChosen>[1] }) => isChosen(of, node);
  const own = [...(held.get(name) ?? [])].sort((a, b) => Number(chosen(b)) - Number(chosen(a)));
  if (own.length === 0) return [muted("Select a class to read its ways and what each would cost.")];
  const rows = own.map(each => {
    const { node, children } = each;
    const strong = chosen(each);
    return line(
      [
        div(`gd-mono gd-wrap${strong ? " gd-strong" : ""}`, callText(of, node, children)),
        div("gd-muted", [strong && "chosen", node.label].filter(Boolean).join(" · ")),
      ],
      end && node.cost >= 0 ? sig(node.cost) : "",
      end && (node.more >= 0 ? (node.more > 0 ? "+" : "") + sig(node.more) : "–"),
    );
  });
  return [
    h("h4", null, `Class ${titleOf(of, name)} `, span("gd-muted gd-mono", typeOf(of, name))),
    table("gd-ways", heads(plural(own.length, "way"), "µs", "whole"), rows),
    end && muted(`Costs are ${priced(optimizeReport(of.pass).cost_model)}.`),
  ];
}

/** The sizes of the e-graph, and the part that is drawn, in one line. */
export function sizeText({ growth, held }: Iteration, drawn: number): string {
  const inner = [...growth.classes.values()].filter(({ leaf }) => !leaf).length;
  const leaves = growth.classes.size - inner;
  const enodes = [...held.values()].reduce((sum, own) => sum + own.length, 0);
  const part = drawn < inner ? `; showing ${drawn} of ${inner} classes, select a node to see others` : "";
  const all = `${plural(held.size, "class")}, ${plural(enodes, "e-node")}`;
  return `${all} and ${leaves === 1 ? "a leaf" : `${leaves} leaves`}${part}`;
}
