// A rule as mathematics: its line, the two pictures of a rewrite, and its Python source folded below.

import type { GraphDoc, OptimizeReport, Pass, RuleSource } from "../doc/doc.ts";
import { SIDE_BOX, SIDE_ROW, sidesOf, type Side } from "../doc/sides.ts";
import { div, h, s, span, svgPath, type Child } from "../draw/dom.ts";
import { familyClass } from "../draw/labels.ts";
import { smooth } from "../draw/paths.ts";
import { fold, ruleSource } from "./pane.ts";

const NAMES = /(∂?[\p{L}_][\p{L}\d_]*)(?![\p{L}\d_(])/gu;

/** A line of mathematics, one row for each gradient; operands are italic, the gradient that arrives has a colour. */
export const mathLine = (line: string): HTMLElement =>
  h(
    "div",
    { class: "gd-math", role: "math", "aria-label": line, "data-value": "math" },
    ...line.split(/,\s+(?=∂)/).map(part => div("", ...marked(part))),
  );

function marked(part: string): Child[] {
  return part.split(NAMES).map((text, i): Child => {
    if (i % 2 === 0) return text.replace(/\s*(→|=)\s*/g, "\u2002$1\u2002");
    if (text === "g") return h("var", { class: "gd-flows", title: "the gradient that arrives" }, text);
    return ["with", "over"].includes(text) ? span("gd-muted", text) : h("var", null, text);
  });
}

/** A rule's line, then its source, folded if there is a line. */
export function ruleShown(line: string | undefined, source: RuleSource | undefined): Child[] {
  if (!line) return ruleSource(source);
  const code = h("div", { hidden: true }, ...ruleSource(source)),
    { el } = fold("its Python", open => (code.hidden = !open));
  return [mathLine(line), source && el, code];
}

const SIDE_PAD = 2;

function sidePicture(side: Side): SVGElement {
  const { nodes, edges, width, height, text } = side,
    out = width + 20;
  const box = `${-SIDE_PAD} ${-SIDE_PAD} ${width + 2 * SIDE_PAD} ${height + 2 * SIDE_PAD}`;
  const line = ([a, b]: [number, number]) => {
    const [from, to] = [nodes[a]!, nodes[b]!],
      [x, y, end] = [from.x + from.w / 2, from.y + SIDE_BOX, to.x + to.w / 2];
    // Past the boxes between.
    if (to.y > y + SIDE_ROW) return `M${x} ${y}C${out} ${y + 40} ${out} ${to.y - 40} ${end} ${to.y}`;
    return smooth([x, y, end, to.y]);
  };
  return s(
    "svg",
    { class: "gd-side-picture", viewBox: box, width: width + 2 * SIDE_PAD, role: "img", "aria-label": text },
    svgPath("gd-strokes", edges.map(line).join("")),
    ...nodes.map(({ x, y, w, text, family, operand }) =>
      s(
        "g",
        { class: `gd-node ${familyClass(operand ? "leaf" : family)}`, transform: `translate(${x} ${y})` },
        s("rect", { class: "gd-shape", width: w, height: SIDE_BOX, rx: operand ? SIDE_BOX / 2 : 5 }),
        s("text", { class: operand ? "gd-given" : "gd-op", x: w / 2, y: 15 }, text),
      ),
    ),
  );
}

/** The step as a picture: before ⇒ after. */
export function rewritePicture(doc: GraphDoc, pass: Pass, k: number): Child {
  const sides = sidesOf(doc, pass, k);
  if (!sides) return null;
  const told = `${sides.before.text} ⇒ ${sides.after.text}`;
  return h(
    "div",
    { class: "gd-sides", role: "group", "aria-label": told, title: told, "data-value": "sides" },
    sidePicture(sides.before),
    h("span", { class: "gd-turns", "aria-hidden": "true" }, "⇒"),
    sidePicture(sides.after),
  );
}

/** The line of a rewrite rule, from the report of its pass. */
export const lineOf = (pass: Pass, rule: string): string | undefined =>
  (pass.report as unknown as OptimizeReport).rules.find(({ id }) => id === rule)?.doc;
