// Copy what is selected (or a whole stage) as text, Markdown, JSON, DOT, or its picture as SVG.

import { typeText, type GraphDoc, type Stage } from "./doc.ts";
import { nodeText } from "./nodetext.ts";
import { parseEntity } from "./select.ts";

export const FORMATS = ["text", "Markdown", "JSON", "DOT", "SVG"] as const;
type Picked = { stage: Stage; nodes: number[] }[];

/** Selected nodes by stage; nothing selected: all of the first stage. */
function picked(doc: GraphDoc, selected: readonly string[]): Picked {
  const nodes = selected.map(parseEntity).flatMap(each => (each?.kind === "node" ? [each.at as [number, number]] : []));
  if (nodes.length === 0) return doc.stages.slice(0, 1).map(stage => ({ stage, nodes: stage.nodes.map((_, i) => i) }));
  return doc.stages.map(stage => ({ stage, nodes: nodes.flatMap(([at, i]) => (at === stage.index ? [i] : [])) })).filter(each => each.nodes.length > 0);
}

const quoted = (text: string): string => `"${text.replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n")}"`;

function dot(doc: GraphDoc, { stage, nodes }: Picked[number]): string {
  const kept = new Set(nodes),
    name = (i: number) => quoted(stage.nodes[i]!.key);
  const boxes = nodes.map(i => `  ${name(i)} [label=${quoted([stage.nodes[i]!.op, stage.nodes[i]!.raw, typeText(doc, stage.nodes[i]!)].filter(Boolean).join(" "))}];`);
  const edges = nodes.flatMap(b => stage.nodes[b]!.inputs.filter(a => kept.has(a)).map(a => `  ${name(a)} -> ${name(b)};`));
  return [`digraph ${quoted(stage.key)} {`, ...boxes, ...edges, "}"].join("\n");
}

function table(doc: GraphDoc, { stage, nodes }: Picked[number]): string {
  const cell = (text: string) => text.replace(/\|/g, "\\|").replace(/\n/g, " ");
  const rows = nodes.map(i => {
    const node = stage.nodes[i]!;
    return `| ${[`%${i}`, node.op, node.raw, typeText(doc, node), node.inputs.map(a => `%${a}`).join(", ")].map(cell).join(" | ")} |`;
  });
  return ["| node | op | name | type | inputs |", "|---|---|---|---|---|", ...rows].join("\n");
}

const PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "font-style", "text-anchor", "opacity", "display"];

/** The picture on show with its colours written into it. */
function svgText(root: HTMLElement): string {
  const shown = [...root.querySelectorAll<SVGSVGElement>("svg.gd-picture")].find(each => each.getClientRects().length > 0);
  if (!shown) throw new Error("given no picture in this tab, wanted the Graph, Rewrites, Derivative or Diff tab");
  const clone = shown.cloneNode(true) as SVGSVGElement,
    from = [shown, ...shown.querySelectorAll("*")];
  [clone, ...clone.querySelectorAll("*")].forEach((each, i) => {
    const style = getComputedStyle(from[i]!);
    for (const name of PROPERTIES) each.setAttribute(name, style.getPropertyValue(name));
    for (const { name } of [...each.attributes]) if (/^(data-|aria-|class|tabindex|role|style)/.test(name)) each.removeAttribute(name);
  });
  clone.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(clone);
}

const WRITERS: Record<string, (doc: GraphDoc, all: Picked) => string> = {
  text: (doc, all) => all.flatMap(({ stage, nodes }) => nodes.map(i => nodeText(doc, stage, i))).join("\n"),
  Markdown: (doc, all) => all.map(each => table(doc, each)).join("\n\n"),
  JSON: (doc, all) => JSON.stringify(all.flatMap(({ stage, nodes }) => nodes.map(i => ({ stage: stage.key, index: i, ...stage.nodes[i]!, name: stage.nodes[i]!.raw, type: typeText(doc, stage.nodes[i]!) }))), null, 1),
  DOT: (doc, all) => all.map(each => dot(doc, each)).join("\n"),
};

/** The text of a copy. */
export const written = (doc: GraphDoc, format: string, selected: readonly string[], root: HTMLElement): string =>
  format === "SVG" ? svgText(root) : WRITERS[format]!(doc, picked(doc, selected));

/** Copies, and says what. Without a clipboard (a page from disk) the text is selected in a field and copied from there. */
export async function copyAs(doc: GraphDoc, format: string, selected: readonly string[], root: HTMLElement): Promise<string> {
  const text = written(doc, format, selected, root);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    root.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  return `copied ${text.length} characters of ${format}`;
}
