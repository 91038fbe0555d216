// Draw an e-graph after one iteration: classes as dotted boxes, their e-nodes as lines, edges from operand to reader.

import { optimizeReport, type GraphDoc, type Pass } from "../doc/doc.ts";
import { plural, sig } from "../doc/format.ts";
import { everIn, HEAD, TAIL, tall, type EClass, type ENode, type Growth, type Held, type Plan } from "../doc/growth.ts";
import { s, svgPath, type Child } from "../draw/dom.ts";
import { cut, familyClass } from "../draw/labels.ts";
import type { Picture } from "../draw/picture.ts";
import { entity } from "./pane.ts";

const OPERANDS = 34; // letters of operands that are drawn
const RULE = 48; // letters of a rule's label
export const MARGIN = 18;

/** An e-graph of a pass, after the iteration `at`. */
export interface Iteration {
  readonly doc: GraphDoc;
  readonly pass: Pass;
  readonly growth: Growth;
  readonly at: number;
  /** Whether this is the last iteration, with costs and choices. */
  readonly end: boolean;
  /** The e-nodes of each class now. */
  readonly held: Held;
}
/** The classes that are drawn, and their places. */
export interface Places {
  readonly names: readonly string[];
  readonly plan: Plan;
}

export const classOf = ({ growth }: Pick<Iteration, "growth">, name: string): EClass => growth.classes.get(name)!;
export const titleOf = (of: Pick<Iteration, "growth">, name: string): string => cut(classOf(of, name).title, 24);
export const typeOf = (of: Pick<Iteration, "growth" | "doc">, name: string): string =>
  of.doc.types[classOf(of, name).type]?.text ?? "";
export const isNew = ({ at }: Iteration, node: ENode): boolean => node.since === at && node.label !== "";
export const isChosen = ({ end }: Iteration, node: ENode): boolean => end && node.chosen > 0;

/** An e-node as a call: `matmul(x, w)`. */
export function callText(of: Iteration, node: ENode, children: readonly string[]): string {
  const attributes = Object.entries(node.attrs ?? {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  return `${node.op}(${[...children.map(child => classOf(of, child).title), ...attributes].join(", ")})`;
}

/** The rule with this label that fired in the pass, as an entity; several rules may share a label. */
export function ruleOf({ pass }: Iteration, label: string): string | null {
  const index = optimizeReport(pass).rules.findIndex(each => each.label === label && each.fired > 0);
  return index < 0 ? null : `rule:${pass.index}.${index}`;
}

/** Return the width that the box of a class needs for all e-nodes that are ever in it. */
export function classWidth(of: Pick<Iteration, "growth" | "doc">, name: string): number {
  const title = (each: string) => titleOf(of, each);
  const lines = everIn(of.growth, name).map(({ op, children, label }) =>
    Math.max(
      7.25 * op.length + 6.7 * Math.min(OPERANDS, children.map(title).join(", ").length) + 90,
      6.6 * Math.min(RULE, label.length) + 58,
    ),
  );
  return Math.ceil(Math.max(7.25 * title(name).length + 6.4 * typeOf(of, name).length + 34, ...lines));
}

/** An empty drawing of this size as a picture for a camera; `join` lights its edges. */
export function emptyPicture({ names, plan }: Places, join: Picture["join"]): Picture {
  const size = { width: plan.width + 2 * MARGIN, height: plan.height + 2 * MARGIN };
  const svg = s("svg", {
    class: "gd-picture gd-egraph",
    ...size,
    viewBox: `${-MARGIN} ${-MARGIN} ${size.width} ${size.height}`,
  });
  const no = () => false;
  const nowhere = () => null;
  const drawing = { look: no, more: no, again: no, at: nowhere, placeOf: nowhere, hover: nowhere };
  const frame = { ...size, left: -MARGIN, top: -MARGIN, lanes: [], axis: size.width / 2 };
  return { svg, ...frame, boxes: names.length, culled: false, join, ...drawing };
}

/** The operands of an e-node, cut to fit its line; leaves can be selected. */
function operands(of: Iteration, children: readonly string[]): Child[] {
  let left = OPERANDS;
  return children.flatMap((child, i): Child[] => {
    const text = cut(titleOf(of, child), Math.max(3, left));
    const { leaf, entity } = classOf(of, child);
    left -= text.length + 2;
    return [i > 0 && ", ", leaf ? s("tspan", { class: "gd-leafname gd-f-leaf", "data-entity": entity }, text) : text];
  });
}

interface HeldNode {
  node: ENode;
  children: string[];
}

function drawENode(of: Iteration, { node, children }: HeldNode, made: number, y: number, width: number): SVGElement {
  const fresh = isNew(of, node);
  const chosen = isChosen(of, node);
  const { label } = node;
  return s(
    "g",
    {
      class: `gd-enode ${familyClass(node.family)}`,
      "data-new": fresh,
      "data-chosen": chosen,
      transform: `translate(6 ${y})`,
      "data-entity": chosen && made >= 0 ? `node:${of.pass.to}.${made}` : null,
    },
    s("title", null, callText(of, node, children)),
    s("rect", { class: "gd-wayshape", width: width - 12, height: tall(node) - 3, rx: 5 }),
    s(
      "text",
      { class: "gd-op", x: 8, y: 14 },
      node.op,
      s("tspan", { class: "gd-args" }, "(", operands(of, children), ")"),
    ),
    label &&
      s(
        "text",
        { class: "gd-madeby", x: 8, y: 26, "data-entity": ruleOf(of, label) },
        fresh && "new · ",
        cut(label, RULE),
      ),
    of.end && node.cost >= 0 && s("text", { class: "gd-price", x: width - 20, y: 14 }, `${sig(node.cost)} µs`),
  );
}

/** Return the tops of the e-nodes of a class, and the bottom of the last. */
const lineTops = ({ held }: Iteration, name: string): number[] =>
  (held.get(name) ?? []).reduce((ys, { node }) => [...ys, ys.at(-1)! + tall(node)], [HEAD]);

function drawClass(of: Iteration, plan: Plan, name: string, pick: (name: string) => void): SVGElement | null {
  const { x, y, w } = plan.boxes.get(name)!;
  const own = of.held.get(name) ?? [];
  const tops = lineTops(of, name);
  const merged = of.growth.merged[of.at]!;
  const into = merged.find(([, goes]) => goes === name)?.[0];
  if (own.length === 0 && !into) return null;
  const title = titleOf(of, name);
  const type = typeOf(of, name);
  const ops = own.map(({ node }) => (isChosen(of, node) ? "chosen " : "") + node.op).join(", ");
  return s(
    "g",
    {
      class: "gd-node gd-class",
      "data-class": name,
      "data-merged": merged.some(([stays]) => stays === name),
      "data-idle": Boolean(into) || (of.end && !own.some(({ node }) => node.chosen)),
      ...entity(classOf(of, name).entity, ""),
      tabindex: -1,
      role: "button",
      "aria-label": `class ${title}, ${type}, ${plural(own.length, "way")}: ${ops}`,
      transform: `translate(${x} ${y})`,
      on: { click: () => pick(name) },
    },
    s("rect", { class: "gd-shape", width: w, height: tops.at(-1)! + TAIL, rx: 9 }),
    s("text", { class: "gd-classname", x: 10, y: 14 }, title),
    s("text", { class: "gd-type", x: w - 10, y: 14, "text-anchor": "end" }, into ? `now ${titleOf(of, into)}` : type),
    own.map((each, i) => drawENode(of, each, classOf(of, name).made, tops[i]!, w)),
  );
}

/** The path from the class that is read down to the e-node, at height y, that reads it. */
function edgePath(of: Iteration, plan: Plan, from: string, name: string, y: number): string {
  const a = plan.boxes.get(from)!;
  const b = plan.boxes.get(name)!;
  const wire = plan.wires.get(`${name} ${from}`);
  const x = a.x + a.w / 2;
  if (!wire)
    return `M${a.x + a.w} ${a.y + 12}C${a.x + a.w + 46} ${a.y + 12} ${b.x + b.w + 46} ${y} ${b.x + b.w - 6} ${y}`;
  let path = `M${x} ${a.y + lineTops(of, from).at(-1)! + TAIL}`;
  let last = x;
  let low = plan.bottoms[a.row]!;
  [...wire.way, wire.beside].forEach((to, i) => {
    const row = a.row + i + 1;
    const middle = (low + plan.tops[row]!) / 2;
    path += `V${low}C${last} ${middle} ${to} ${middle} ${to} ${plan.tops[row]}`;
    last = to;
    low = plan.bottoms[row]!;
  });
  const turn = wire.beside < b.x ? 1 : -1;
  return `${path}V${y - 5}q0 5 ${5 * turn} 5H${turn > 0 ? b.x + 6 : b.x + b.w - 6}`;
}

function drawEdge(of: Iteration, plan: Plan, name: string, child: string, node: ENode, top: number): SVGElement {
  const wired = plan.wires.has(`${name} ${child}`) ? "data" : "control";
  const kind = isNew(of, node) ? "added" : isChosen(of, node) ? "chosen" : of.end ? "idle" : wired;
  return s(
    "g",
    { class: `gd-edge gd-edge-${kind}`, "data-ends": `${child} ${name}` },
    svgPath("gd-stroke", edgePath(of, plan, child, name, plan.boxes.get(name)!.y + top + 10)),
  );
}

/** All edges, those of the choice above the others. */
function drawEdges(of: Iteration, { names, plan }: Places): SVGElement[] {
  const edges = names.flatMap(name => {
    const tops = lineTops(of, name);
    return (of.held.get(name) ?? []).flatMap(({ node, children }, i) =>
      [...new Set(children)]
        .filter(child => plan.boxes.has(child) && child !== name)
        .map(child => drawEdge(of, plan, name, child, node, tops[i]!)),
    );
  });
  const above = (edge: SVGElement) => Number(edge.matches(".gd-edge-chosen"));
  return edges.sort((a, b) => above(a) - above(b));
}

/** Everything of the e-graph that is drawn; `pick` is called with the class that is clicked. */
export const drawEGraph = (of: Iteration, places: Places, pick: (name: string) => void): Child[] => [
  drawEdges(of, places),
  places.names.map(name => drawClass(of, places.plan, name, pick)),
];
