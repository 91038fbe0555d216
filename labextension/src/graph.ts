// Draw a stage from its layout record as SVG. The record says where everything stands; nothing is measured here.

import { Bands, type Item } from "./bands.ts";
import {
  nodeName,
  typeText,
  type EdgeRecord,
  type GraphDoc,
  type Layout,
  type NodeRecord,
  type PillRecord,
  type RailRecord,
  type Stage,
  type WireRecord,
} from "./doc.ts";
import { s, setFlag } from "./dom.ts";
import { bytes, plural, spokenType } from "./format.ts";
import { orthogonal, smooth } from "./paths.ts";

export interface Picture {
  svg: SVGSVGElement;
  width: number;
  height: number;
  boxes: number;
  /** Only what is in sight is drawn. */
  culled: boolean;
  /** x that stands in the middle of a pane that is too narrow; 0 for lanes, which are read from the left. */
  axis: number;
  /** Marks the edges between two lit nodes; the nodes themselves are marked by the view. */
  join(lit: ReadonlySet<string>): void;
  /** Draws what lies between two heights of the frame; true when that changed what is drawn. */
  look(top: number, bottom: number): boolean;
  /** The height in the frame at which an entity stands, drawn or not. */
  heightOf(entity: string): number | null;
}

// The same measures as gdlab/view/draw.py.
const MARGIN = 16,
  LANE_ABOVE = 48,
  LANE_BELOW = 8,
  TITLE_ABOVE = 28,
  ROW = 72,
  BOX = 40,
  PILL = 18;
const CHAR = 7.25; // of the code font at 12 px, as the layout counts it
export const MANY = 60;
const CULLED = 500; // boxes

const LETTERS: Record<string, string> = {
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

export const cut = (text: string, most: number): string =>
  Array.from(text).length <= most
    ? text
    : `${Array.from(text)
        .slice(0, most - 1)
        .join("")}…${text.includes("\u2068") ? "\u2069" : ""}`;

/** The name at the right of a box: a person's, or ∂w for the gradient of w. */
function titleOf({ nodes, gradients }: Stage, index: number): string {
  const { name } = nodes[index]!,
    of = gradients.get(index);
  return of && !name.startsWith("∂") ? `∂${of}` : name;
}

export function spokenName(doc: GraphDoc, stage: Stage, index: number): string {
  const node = stage.nodes[index]!,
    users = stage.users[index]!.length;
  const parts = [
    [node.op, titleOf(stage, index)].filter(Boolean).join(" "),
    spokenType(typeText(doc, node)),
    plural(node.inputs.length, "input"),
    plural(users, "user"),
    `lane ${node.lane}`,
    ...node.flags.filter(flag => flag !== "leaf"),
  ];
  return parts.join(", ");
}

function tooltip(doc: GraphDoc, stage: Stage, node: NodeRecord, title: string): SVGTitleElement {
  const attrs = Object.entries(node.attrs ?? {}).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
  const fate = node.fate ? [`${node.fate.kind}: ${node.fate.reason}`] : [];
  const head = [node.op, title].filter(Boolean).join(" ");
  return s("title", null, [`${head}: ${typeText(doc, node)}`, `${stage.title || stage.key}, ${node.key}`, ...attrs, ...fate].join("\n"));
}

class StagePicture {
  private readonly joints = new Map<SVGElement, [string, string]>();
  private joined: ReadonlySet<string> = new Set();
  private readonly layout: Layout;
  constructor(
    private readonly doc: GraphDoc,
    private readonly stage: Stage,
  ) {
    this.layout = stage.layout!;
  }

  private entity(index: number): string {
    return `node:${this.stage.index}.${index}`;
  }

  /** An edge of the layout by its reader's port; a pair that is ordered only has no port and is no entity. */
  private edgeEntity(a: number, b: number): string | null {
    const port = this.stage.nodes[b]?.inputs.indexOf(a) ?? -1;
    return port < 0 ? null : `edge:${this.stage.index}.${b}.${port}`;
  }

  private edgeGroup(a: number, b: number, kind: string, path: string, note: string, extra: SVGElement[] = []): SVGGElement {
    const source = this.stage.nodes[a]!;
    const title = `${nodeName(source)} → ${nodeName(this.stage.nodes[b]!)}: ${typeText(this.doc, source)}, ${bytes(this.doc.types[source.type]?.nbytes ?? 0)}${note}`;
    const group = s(
      "g",
      { class: `gd-edge gd-edge-${kind}`, "data-entity": this.edgeEntity(a, b) },
      s("title", null, title),
      s("path", { class: "gd-hit", d: path }),
      s("path", { class: "gd-stroke", d: path }),
      ...extra,
    );
    const ends: [string, string] = [this.entity(a), this.entity(b)];
    this.joints.set(group, ends);
    setFlag(group, "data-joined", this.joined.has(ends[0]) && this.joined.has(ends[1]));
    return group;
  }

  /** Adjoint lanes are read upwards, all others downwards, rows to the right. */
  private againstReading(b: number, flat: number[]): boolean {
    const [x0, y0] = flat as [number, number],
      x1 = flat.at(-2)!,
      y1 = flat.at(-1)!;
    if (y0 === y1) return x1 < x0;
    return this.laneOf(b).startsWith("adjoint") ? y1 > y0 : y1 < y0;
  }

  private arrow(flat: number[]): SVGElement {
    const x = flat.at(-2)!,
      y = flat.at(-1)!,
      dx = x - flat.at(-4)!,
      dy = y - flat.at(-3)!;
    const angle = dy === 0 ? (dx < 0 ? 180 : 0) : dy < 0 ? -90 : 90;
    return s("path", { class: "gd-arrow", d: "M0 0L-7 -3.5L-7 3.5Z", transform: `translate(${x} ${y}) rotate(${angle})` });
  }

  private edge({ a, b, kind, bends }: EdgeRecord): SVGGElement {
    const path = bends[1] === bends.at(-1) ? orthogonal(bends) : smooth(bends);
    const dotted = kind === "param" && this.stage.nodes[a]!.op === "input" ? "data" : kind; // an input is the spine's head
    return this.edgeGroup(a, b, dotted, path, "", this.againstReading(b, bends) ? [this.arrow(bends)] : []);
  }

  /** Long edges bend smoothly into their gutter; backward ones turn round with square corners. */
  private rail({ a, b, x, y0, y1 }: RailRecord): SVGGElement {
    const from = this.layout.boxes[a]!,
      to = this.layout.boxes[b]!;
    const xa = from.x + Math.floor(from.w / 2),
      xb = to.x + Math.floor(to.w / 2);
    const ya = from.y + (y0 > from.y ? BOX : 0),
      yb = to.y + (y1 < to.y + BOX ? 0 : BOX);
    const forward = y1 > y0 === y0 > ya;
    const flat = forward ? [xa, ya, x, y0, x, y1, xb, yb] : [xa, ya, xa, y0, x, y0, x, y1, xb, y1, xb, yb];
    return this.edgeGroup(a, b, "data", forward ? smooth(flat) : orthogonal(flat), "", forward ? [] : [this.arrow(flat)]);
  }

  private laneOf(index: number): string {
    const { x } = this.layout.boxes[index]!;
    return this.layout.lanes.find(lane => x >= lane.x && x < lane.x + lane.width)?.title ?? "";
  }

  /** What goes from a forward lane into an adjoint one is saved, unless it is a parameter. */
  private wire({ a, b, points }: WireRecord): SVGGElement {
    const source = this.stage.nodes[a]!,
      leaf = source.inputs.length === 0;
    const saved = this.laneOf(a).startsWith("forward") && this.laneOf(b).startsWith("adjoint") && source.op !== "parameter";
    if (!saved) return this.edgeGroup(a, b, leaf ? "param" : "data", orthogonal(points), "");
    const marks = [points.slice(0, 2), points.slice(-2)].map(([x, y]) => s("circle", { class: "gd-mark", cx: x, cy: y, r: 2.5 }));
    return this.edgeGroup(a, b, "saved", orthogonal(points), ", saved for the way back", marks);
  }

  private pill({ leaf, reader, x, y, w, echo }: PillRecord): SVGGElement[] {
    const node = this.stage.nodes[leaf]!,
      box = this.layout.boxes[reader]!;
    const name = cut(nodeName(node), 24),
      middle = y + PILL / 2;
    const right = x + w,
      gap = box.y + BOX / 2;
    // From an outer column the line goes through the gap between the pills of the inner one.
    const straight = box.x - right <= 12 || middle === gap;
    const around = `C${right + 6} ${middle} ${right + 6} ${gap} ${right + 12} ${gap}`;
    const line = this.edgeGroup(leaf, reader, "param", `M${right} ${middle}${straight ? "" : around}H${box.x}`, "");
    const type = echo || !typeText(this.doc, node) ? null : s("tspan", { class: "gd-type", dx: 6 }, cut(typeText(this.doc, node), 24));
    const pill = s(
      "g",
      {
        class: `gd-node gd-pill ${familyClass(node.family)}`,
        "data-entity": this.entity(leaf),
        "data-echo": echo > 0,
        tabindex: -1,
        role: "button",
        "aria-label": spokenName(this.doc, this.stage, leaf),
        transform: `translate(${x} ${y})`,
      },
      tooltip(this.doc, this.stage, node, node.name),
      s("rect", { class: "gd-hit", y: -2, width: w, height: PILL + 4 }),
      s("rect", { class: "gd-shape", width: w, height: PILL, rx: PILL / 2 }),
      s("text", { class: "gd-name", x: 10, y: 13 }, name, type),
    );
    return [line, pill];
  }

  private box(index: number): SVGGElement {
    const { x, y, w } = this.layout.boxes[index]!;
    const node = this.stage.nodes[index]!,
      leaf = node.flags.includes("leaf") || node.family === "leaf",
      title = titleOf(this.stage, index);
    const has = (flag: string) => node.flags.includes(flag);
    const op = cut(leaf && title ? title : node.op, 28),
      fits = (op.length + 2 + title.length) * CHAR + 24 <= w + 10;
    return s(
      "g",
      {
        class: `gd-node gd-box ${familyClass(node.family)}`,
        "data-entity": this.entity(index),
        tabindex: -1,
        role: "button",
        "data-output": has("output") || has("loss"),
        "data-leaf": leaf,
        "aria-label": spokenName(this.doc, this.stage, index),
        transform: `translate(${x} ${y})`,
      },
      tooltip(this.doc, this.stage, node, title),
      s("rect", { class: "gd-shape", width: w, height: BOX, rx: leaf ? BOX / 2 : 6 }),
      has("fused") && s("rect", { class: "gd-inner", x: 3, y: 3, width: w - 6, height: BOX - 6, rx: 4 }),
      !leaf && s("path", { class: "gd-side", d: `M6 0A6 6 0 0 0 0 6V${BOX - 6}A6 6 0 0 0 6 ${BOX}` }),
      s("text", { class: "gd-op", x: leaf ? 16 : 12, y: 17 }, op),
      !leaf && title && fits && s("text", { class: "gd-given", x: w - 9, y: 17 }, title),
      s("text", { class: "gd-type", x: leaf ? 16 : 12, y: 31 }, cut(typeText(this.doc, node), 28)),
      s("text", { class: "gd-letter", x: w - 9, y: 31 }, leaf ? "" : (LETTERS[node.family] ?? "")),
    ); // a family is never its colour alone
  }

  private lanes(height: number): SVGGElement[] {
    return this.layout.lanes.map(({ index, title, x, width }) =>
      s(
        "g",
        { class: `gd-lane gd-lane-${/optimizer/.test(title) ? "u" : index % 2}` },
        s("rect", { x, y: -LANE_ABOVE, width, height: height + LANE_ABOVE + LANE_BELOW, rx: 8 }),
        s("text", { x: x + 14, y: -TITLE_ABOVE }, title),
      ),
    );
  }

  /** Everything to draw, in layers: edges, pills, boxes. */
  private items(): Item[] {
    const { layout } = this;
    const flat = (points: readonly number[]) => {
      const ys = points.filter((_, i) => i % 2 === 1);
      return { top: ys.reduce((a, b) => Math.min(a, b), Infinity), bottom: ys.reduce((a, b) => Math.max(a, b), -Infinity), layer: 0 };
    };
    return [
      ...layout.edges.map(each => ({ ...flat(each.bends), make: () => [this.edge(each)] })),
      ...layout.rails.map(each => ({ ...flat([0, each.y0, 0, each.y1]), make: () => [this.rail(each)] })),
      ...layout.wires.map(each => ({ ...flat(each.points), make: () => [this.wire(each)] })),
      ...layout.pills.map(each => ({ top: each.y, bottom: each.y + PILL, layer: 1, make: () => this.pill(each) })),
      ...layout.boxes.flatMap(({ y, row }, index) =>
        row < 0 ? [] : [{ top: y, bottom: y + BOX, layer: 2, make: () => [this.box(index)] }],
      ),
    ];
  }

  draw(): Picture {
    const { layout } = this,
      [first] = layout.lanes,
      layers = [s("g"), s("g"), s("g")];
    const shown = layout.boxes.filter(box => box.row >= 0);
    // Lanes reach past the boxes on every side.
    const left = Math.min(0, first?.x ?? 0) - MARGIN,
      right = Math.max(layout.width, ...layout.lanes.map(lane => lane.x + lane.width)) + MARGIN;
    const top = first ? LANE_ABOVE + MARGIN / 2 : MARGIN,
      bottom = first ? LANE_BELOW + MARGIN / 2 : MARGIN - (ROW - BOX);
    const width = right - left,
      height = layout.height + top + bottom;
    const svg = s(
      "svg",
      { class: "gd-picture", width, height, viewBox: `${left} ${-top} ${width} ${height}`, "data-many": shown.length > MANY },
      ...this.lanes(layout.height),
      ...layers,
    );
    const bands = new Bands(this.items(), layers, shown.length > CULLED, element => this.joints.delete(element));
    bands.show(0, ROW);
    return {
      svg,
      width,
      height,
      boxes: shown.length,
      culled: shown.length > CULLED,
      join: lit => this.join(lit),
      axis: first ? 0 : width / 2,
      look: (from, to) => bands.show(from - top, to - top),
      heightOf: entity => this.heightOf(entity, top),
    };
  }

  private heightOf(entity: string, top: number): number | null {
    const [, stage, index] = /^node:(\d+)\.(\d+)$/.exec(entity) ?? [];
    if (Number(stage) !== this.stage.index) return null;
    const box = this.layout.boxes[Number(index)],
      pill = box && box.row < 0 ? this.layout.pills.find(each => each.leaf === Number(index)) : null;
    return !box || (box.row < 0 && !pill) ? null : (pill ?? box).y + top;
  }

  private join(lit: ReadonlySet<string>): void {
    this.joined = lit;
    for (const [element, ends] of this.joints) setFlag(element, "data-joined", lit.has(ends[0]) && lit.has(ends[1]));
  }
}

/** The picture of a stage; the stage must have a layout. */
export const drawStage = (doc: GraphDoc, stage: Stage): Picture => new StagePicture(doc, stage).draw();

/** The next node for an arrow key: inputs left, users right, neighbours in the row or column above and below. */
export function neighbour(stage: Stage, index: number, key: string, turn: number): number | null {
  const node = stage.nodes[index];
  if (!node) return null;
  const around = key === "ArrowLeft" ? [...new Set(node.inputs)] : key === "ArrowRight" ? stage.users[index]! : null;
  if (around) return around.length > 0 ? around[turn % around.length]! : null;
  const boxes = stage.layout!.boxes,
    own = boxes[index]!;
  const order = boxes
    .map((_, i) => i)
    .filter(i => boxes[i]!.row >= 0)
    .sort((a, b) => boxes[a]!.row - boxes[b]!.row || boxes[a]!.x - boxes[b]!.x || a - b);
  const at = own.row < 0 ? order.findIndex(i => stage.users[index]!.includes(i)) : order.indexOf(index);
  return order[at + (key === "ArrowUp" ? -1 : 1)] ?? null;
}
