// Name nodes: letters and classes of families, shortened texts, names for screen readers, tooltips; walk along edges.

import { engine } from "layout-engine";
import { drawable, typeText, type GraphDoc, type NodeRecord, type Stage } from "../doc/doc.ts";
import { plural, spokenType } from "../doc/format.ts";
import { shortNames } from "../doc/shortnames.ts";
import { s } from "./dom.ts";

export const { cut, cutLeft, pillLabel, pillTail } = engine(); // the layouts measure these texts

export const LETTERS: Record<string, string> = {
  leaf: "L",
  elementwise: "E",
  contraction: "C",
  reduction: "R",
  loss: "X",
  movement: "M",
  index: "I",
  random: "N",
  update: "U",
};
export const familyClass = (family: string): string => `gd-f-${family in LETTERS ? family : "movement"}`;

/** The name at the right of a box: a person's, or ∂w for the gradient of w. */
export function titleOf({ nodes, gradients }: Stage, index: number): string {
  const { name, label } = nodes[index]!,
    of = gradients.get(index);
  return of && !name.startsWith("∂") ? `∂${of}` : drawable(label) || name;
}

const shorter = new WeakMap<Stage, Map<number, Map<string, string>>>();

/** A name or label of a stage with at most `limit` code points; different ones stay different. */
export function shortened(stage: Stage, text: string, limit: number): string {
  const bare = (each: string) => each.replace(/[\u2068\u2069]/g, "");
  if (Array.from(bare(text)).length <= limit) return text;
  const known = shorter.get(stage) ?? new Map<number, Map<string, string>>();
  shorter.set(stage, known);
  if (!known.has(limit)) {
    const drawn = stage.nodes.flatMap(({ op }, i) => [bare(titleOf(stage, i)), op]);
    known.set(limit, shortNames(drawn, limit));
  }
  return drawable(known.get(limit)!.get(bare(text)) ?? shortNames([bare(text)], limit).get(bare(text))!);
}

export function spokenName(doc: GraphDoc, stage: Stage, index: number): string {
  const node = stage.nodes[index]!,
    users = stage.users[index]!.length;
  const parts = [
    [node.op, node.label ? node.name : titleOf(stage, index)].filter(Boolean).join(" "),
    spokenType(typeText(doc, node)),
    plural(node.inputs.length, "input"),
    plural(users, "user"),
    `lane ${node.lane}`,
    ...node.flags.filter(flag => flag !== "leaf"),
  ];
  return parts.join(", ");
}

export function tooltip(doc: GraphDoc, stage: Stage, node: NodeRecord, title: string, told = ""): SVGTitleElement {
  const attrs = Object.entries(node.attrs ?? {}).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
  const fate = node.fate ? [`${node.fate.kind}: ${node.fate.reason}`] : [];
  const head = [node.op, title].filter(Boolean).join(" ");
  return s(
    "title",
    null,
    [
      `${head}: ${typeText(doc, node)}`,
      node.lines && doc.types[node.type]?.text,
      node.figures,
      `${stage.title || stage.key}, ${node.key}`,
      ...attrs,
      ...fate,
      told === node.told ? "" : told,
    ]
      .filter(Boolean)
      .join("\n"),
  );
}

/** The next node for an arrow key: inputs left, users right, neighbours in the row or column above and below. */
export function neighbour(stage: Stage, index: number, key: string, turn: number): number | null {
  const node = stage.nodes[index];
  if (!node) return null;
  const around = key === "ArrowLeft" ? [...new Set(node.inputs)] : key === "ArrowRight" ? stage.users[index]! : null;
  if (around) return around.length > 0 ? around[turn % around.length]! : null;
  const boxes = stage.layout?.boxes ?? [],
    own = boxes[index];
  if (!own) return null;
  const order = boxes
    .map((_, i) => i)
    .filter(i => boxes[i]!.row >= 0)
    .sort((a, b) => boxes[a]!.row - boxes[b]!.row || boxes[a]!.x - boxes[b]!.x || a - b);
  let near = index; // a pill stands beside its reader
  while (boxes[near]!.row < 0 && stage.users[near]!.length > 0) near = stage.users[near]![0]!;
  const at = order.indexOf(near);
  return order[at + (key === "ArrowUp" ? -1 : 1)] ?? null;
}
