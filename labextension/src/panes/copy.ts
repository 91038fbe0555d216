// Copy the selection, or a stage, as text, Markdown, JSON, DOT or a `%%graph` cell, or its picture as SVG or PNG.

import { typeText, type GraphDoc, type NodeRecord, type Stage } from "../doc/doc.ts";
import { nodeText } from "../doc/nodetext.ts";
import { parseEntity } from "../doc/select.ts";
import { all, boxOf, h } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";

export const FORMATS = ["text", "Markdown", "JSON", "DOT", "SVG", "PNG", "%%graph cell"] as const;
const PIXELS = 10_000_000, // of a PNG; of a larger picture it shows what is in sight
  SIDE = 16_000;
type Picked = { stage: Stage; nodes: number[] }[];

/** Selected nodes by stage; nothing selected: all of the first stage. */
function picked(doc: GraphDoc, selected: readonly string[]): Picked {
  const nodes = selected.map(parseEntity).flatMap(each => (each?.kind === "node" ? [each.at as [number, number]] : []));
  if (nodes.length === 0) return doc.stages.slice(0, 1).map(stage => ({ stage, nodes: stage.nodes.map((_, i) => i) }));
  return doc.stages
    .map(stage => ({ stage, nodes: nodes.flatMap(([at, i]) => (at === stage.index ? [i] : [])) }))
    .filter(each => each.nodes.length > 0);
}

const quoted = (text: string): string => `"${text.replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n")}"`;

function dot(doc: GraphDoc, { stage, nodes }: Picked[number]): string {
  const kept = new Set(nodes),
    name = (i: number) => quoted(stage.nodes[i]!.key),
    label = (node: NodeRecord) => [node.op, node.raw, typeText(doc, node)].filter(Boolean).join(" ");
  const boxes = nodes.map(i => `  ${name(i)} [label=${quoted(label(stage.nodes[i]!))}];`);
  const edges = nodes.flatMap(b =>
    stage.nodes[b]!.inputs.filter(a => kept.has(a)).map(a => `  ${name(a)} -> ${name(b)};`),
  );
  return [`digraph ${quoted(stage.key)} {`, ...boxes, ...edges, "}"].join("\n");
}

function table(doc: GraphDoc, { stage, nodes }: Picked[number]): string {
  const cell = (text: string) => text.replace(/\|/g, "\\|").replace(/\n/g, " ");
  const rows = nodes.map(i => {
    const node = stage.nodes[i]!;
    const inputs = node.inputs.map(a => `%${a}`).join(", ");
    return `| ${[`%${i}`, node.op, node.raw, typeText(doc, node), inputs].map(cell).join(" | ")} |`;
  });
  return ["| node | op | name | type | inputs |", "|---|---|---|---|---|", ...rows].join("\n");
}

const PROPERTIES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "opacity",
  "display",
  "visibility",
];

function pictureIn(root: HTMLElement): SVGSVGElement {
  const shown = all<SVGSVGElement>(root, "svg.gd-picture").find(each => each.getClientRects().length > 0);
  if (!shown) throw new Error("given no picture in this tab, wanted the Graph, Rewrites, Derivative or Diff tab");
  return shown;
}

/** A picture with its colours written into it, so that it needs nothing else; `more`: other attributes of its root. */
function svgText(shown: SVGSVGElement, more: Record<string, number | string> = {}): string {
  const clone = shown.cloneNode(true) as SVGSVGElement,
    from = [shown, ...all(shown, "*")];
  [clone, ...all(clone, "*")].forEach((each, i) => {
    const style = getComputedStyle(from[i]!);
    for (const name of PROPERTIES) each.setAttribute(name, style.getPropertyValue(name));
    for (const { name } of [...each.attributes])
      if (/^(data-|aria-|class|tabindex|role|style)/.test(name)) each.removeAttribute(name);
  });
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", ...more }))
    clone.setAttribute(name, String(value));
  return new XMLSerializer().serializeToString(clone);
}

const WRITERS: Record<string, (doc: GraphDoc, all: Picked) => string> = {
  text: (doc, all) => all.flatMap(({ stage, nodes }) => nodes.map(i => nodeText(doc, stage, i))).join("\n"),
  Markdown: (doc, all) => all.map(each => table(doc, each)).join("\n\n"),
  JSON: (doc, all) =>
    JSON.stringify(
      all.flatMap(({ stage, nodes }) =>
        nodes.map(i => ({
          stage: stage.key,
          index: i,
          ...stage.nodes[i]!,
          name: stage.nodes[i]!.raw,
          type: typeText(doc, stage.nodes[i]!),
        })),
      ),
      null,
      1,
    ),
  DOT: (doc, all) => all.map(each => dot(doc, each)).join("\n"),
};

/** Return the picture on show as PNG at two pixels per screen pixel, on its background, and a text that names it. */
async function png(root: HTMLElement): Promise<[blob: Blob | null, told: string]> {
  const shown = pictureIn(root),
    { x, y, width, height } = shown.viewBox.baseVal,
    own = boxOf(shown),
    frame = boxOf(shown.closest(".gd-camera")!),
    // Of a large picture only what is in sight is drawn at all.
    all = 4 * width * height <= PIXELS && 2 * Math.max(width, height) <= SIDE,
    zoom = all ? 1 : own.width / width,
    part = (a: number, b: number, from: number, to: number, size: number) =>
      all ? [0, size] : [Math.max(0, a - from), Math.min(b, to) - Math.max(a, from)],
    [left, across] = part(frame.left, frame.right, own.left, own.right, width) as [number, number],
    [top, down] = part(frame.top, frame.bottom, own.top, own.bottom, height) as [number, number],
    size = { width: Math.round(2 * across), height: Math.round(2 * down) },
    canvas = Object.assign(document.createElement("canvas"), size),
    paint = canvas.getContext("2d")!,
    image = new Image();
  const viewBox = [x + left / zoom, y + top / zoom, across / zoom, down / zoom].join(" ");
  image.src = `data:image/svg+xml,${encodeURIComponent(svgText(shown, { ...size, viewBox }))}`;
  await image.decode();
  paint.fillStyle = getComputedStyle(root.querySelector(".gd-frame")!).backgroundColor;
  paint.fillRect(0, 0, size.width, size.height);
  paint.drawImage(image, 0, 0);
  return [
    await new Promise(resolve => canvas.toBlob(resolve)),
    `${size.width} × ${size.height} pixels${all ? "" : `, what is in sight of ${2 * width} × ${2 * height}`}`,
  ];
}

/** The selection to copy, and the view and session that it is copied from. */
export interface From {
  doc: GraphDoc;
  selected: readonly string[];
  root: HTMLElement;
  host: Host | null;
}

/** Write the stage of the selection as a cell. Python writes it: a document does not hold the numbers of its constants.
 */
async function cellText({ doc, selected, host }: From): Promise<string> {
  const stage = picked(doc, selected)[0]?.stage ?? doc.stages[0]!;
  if (!host || host.dead)
    throw new Error("wanted a live session: run the cell again, or use gdlab.op.text.to_cell in Python");
  const { ok, result, error } = await host.command("cell", { stage: stage.key });
  if (!ok) throw new Error(error?.message);
  return (result as { text: string }).text;
}

/** The text of a copy. */
export const written = ({ doc, selected, root }: From, format: string): string =>
  format === "SVG" ? svgText(pictureIn(root)) : WRITERS[format]!(doc, picked(doc, selected));

async function copyText(text: string, root: HTMLElement): Promise<void> {
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
}

/** Copy into the clipboard, or into a file if a page may not. */
async function copyImage(blob: Blob | null, name: string): Promise<string> {
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob! })]);
    return "copied";
  } catch {
    const link = h("a", { href: URL.createObjectURL(blob!), download: `${name}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return "saved";
  }
}

/** Copy, and return a text that says what was copied. Without a clipboard text comes from a field, PNG as a file. */
export async function copyAs(from: From, format: string): Promise<string> {
  if (format === "PNG") {
    const [blob, told] = await png(from.root);
    return `${await copyImage(blob, from.doc.title)} a PNG of ${told}`;
  }
  const text = format === "%%graph cell" ? await cellText(from) : written(from, format);
  await copyText(text, from.root);
  return `copied ${text.length} characters of ${format}`;
}
