// Draw a stage from its layout record as SVG. The record has all places; nothing is measured here.

import { nodeName, typeText } from "../doc/doc.ts";
import type { BoxRecord, EdgeRecord, GraphDoc, Layout, PillRecord, RailRecord, Stage, WireRecord } from "../doc/doc.ts";
import { bytes } from "../doc/format.ts";
import { EVERY_WIRE, LINE, LINE_CUT, NODE, PILL, PILL_CUT, ROW } from "../doc/metrics.ts";
import { Cells, type Detail, type Item, type Rect } from "./cells.ts";
import { s, setFlag, svgPath, type Child } from "./dom.ts";
import { cut, familyClass, LETTERS, pillLabel, pillTail, shortened, spokenName, titleOf, tooltip } from "./labels.ts";
import { Merged, type Block } from "./merged.ts";
import { orthogonal, smooth } from "./paths.ts";
import type { Dress, Picture } from "./picture.ts";
import { pillNode } from "./reach.ts";
import { edgePath, railPoints, railsPath, wirePath } from "./bundle.ts";
import { arrow, bracket, TRACK } from "./strokes.ts";

export { cut, familyClass, neighbour, spokenName } from "./labels.ts";
export type { Dress, Picture } from "./picture.ts";

// The same measures as gdlab/view/picture/draw.py.
const [MARGIN, LANE_ABOVE, LANE_BELOW] = [16, 16, 8] as const;
const NOTE = 8; // the width of a letter on an edge
const CHAR = 7.25; // of the code font at 12 px, as the layout counts it
export const MANY = EVERY_WIRE;
const CULLED = 500; // boxes
const MOST = 2500; // elements
const SLICE = 12; // ms that drawing the rest of a picture may hold up the page
const LINES = 150; // edges, rails and wires in sight: above it they are one path
// Elements of a line, a pill with its line, and a box.
const COST: Record<Detail, readonly [number, number, number]> = { full: [5, 11, 10], op: [5, 11, 4], shape: [0, 0, 0] };
const SHAPES: { detail: Detail; found: number[]; bundled: boolean } = { detail: "shape", found: [], bundled: false };
const NOWHERE: Rect = { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity };

/** The middle of the box that a graph begins with. */
function spine({ boxes }: Layout): number {
  const first = boxes.find(({ row }) => row === 0);
  return first ? first.x + first.w / 2 : 0;
}

class StagePicture {
  readonly #doc: GraphDoc;
  readonly #stage: Stage;
  readonly #layout: Layout;
  readonly #dress: Dress;
  readonly #merged = new Merged();
  readonly #strokes = s("path", { class: "gd-strokes" });
  readonly #rails = s("path", { class: "gd-strokes gd-farrails" });
  readonly #made = new Map<number, SVGElement>(); // of what stands for several nodes
  #items: Item[] = [];
  #cells: Cells | null = null;
  #whole = 0; // items from the first on that are drawn, where all are to be
  #svg = s("svg");
  #detail: Detail | null = null;
  #width = "";
  #shaped: Rect = NOWHERE;
  #near = false; // whether the lines of the paths are drawn as from near
  #bundled = false; // whether lines are one path
  #seen: [Rect, number] | null = null;
  readonly #joints = new Map<SVGElement, [string, string]>();
  #joined: ReadonlySet<string> = new Set();
  constructor(doc: GraphDoc, stage: Stage, layout: Layout, dress: Dress) {
    this.#doc = doc;
    this.#stage = stage;
    this.#layout = layout;
    this.#dress = dress;
  }

  #entity(index: number): string {
    return this.#stage.entities?.[index] ?? `node:${this.#stage.index}.${index}`;
  }

  /** Name an edge of the layout by its reader's port; a pair that is only ordered has no port and is no entity. */
  #edgeEntity(a: number, b: number): string | null {
    const port = this.#stage.entities ? -1 : (this.#stage.nodes[b]?.inputs.indexOf(a) ?? -1);
    return port < 0 ? null : `edge:${this.#stage.index}.${b}.${port}`;
  }

  #edgeGroup(a: number, b: number, kind: string, path: string, note: string, extra: SVGElement[] = []): SVGGElement {
    const source = this.#stage.nodes[a]!;
    const ends = `${nodeName(source)} → ${nodeName(this.#stage.nodes[b]!)}`;
    const nbytes = bytes(this.#doc.types[source.type]?.nbytes ?? 0);
    const title = `${ends}: ${typeText(this.#doc, source)}, ${nbytes}${note}`;
    const group = s(
      "g",
      { class: `gd-edge gd-edge-${kind} ${this.#dress.edge?.(a, b) ?? ""}`, "data-entity": this.#edgeEntity(a, b) },
      s("title", null, title),
      svgPath("gd-hit", path),
      svgPath("gd-stroke", path),
      ...extra,
    );
    const joints: [string, string] = [this.#entity(a), this.#entity(b)];
    this.#joints.set(group, joints);
    setFlag(group, "data-joined", this.#joined.has(joints[0]) && this.#joined.has(joints[1]));
    return group;
  }

  /** Adjoint lanes are read upwards, all others downwards, rows to the right. */
  #againstReading(b: number, flat: number[]): boolean {
    const [x0, y0] = flat as [number, number],
      x1 = flat.at(-2)!,
      y1 = flat.at(-1)!;
    if (y0 === y1) return x1 < x0;
    return this.#laneOf(b).startsWith("adjoint") ? y1 > y0 : y1 < y0;
  }

  #edge(edge: EdgeRecord): SVGGElement {
    const { a, b, kind, bends } = edge;
    const path = edgePath(edge);
    // An input begins the spine of the picture.
    const dotted = kind === "param" && this.#stage.nodes[a]!.op === "input" ? "data" : kind;
    const headed = this.#againstReading(b, bends) || this.#laneOf(b).startsWith("adjoint");
    return this.#edgeGroup(a, b, dotted, path, "", [...(headed ? [arrow(bends)] : []), ...this.#note(a, b, bends)]);
  }

  /** Long edges bend smoothly into their gutter; backward ones turn round with square corners. */
  #rail(rail: RailRecord): SVGGElement {
    const { flat, forward } = railPoints(this.#layout, rail);
    const path = forward ? smooth(flat) : orthogonal(flat);
    const headed = !forward || this.#laneOf(rail.b).startsWith("adjoint");
    const extra = [...(headed ? [arrow(flat)] : []), ...this.#note(rail.a, rail.b, flat)];
    return this.#edgeGroup(rail.a, rail.b, "data", path, "", extra);
  }

  /** The words at the middle of an edge, or near one of its ends, where no box lies: right or left of it. */
  #note(a: number, b: number, flat: readonly number[]): SVGElement[] {
    const text = this.#dress.note?.(a, b);
    if (!text) return [];
    const [x0, y0, x1, y1] = [flat[0]!, flat[1]!, flat.at(-2)!, flat.at(-1)!],
      level = y0 === y1,
      down = Math.sign(y1 - y0);
    // Along a row there is room above the boxes alone.
    const over = Math.min(y0 - NODE / 2, ...flat.filter((_, i) => i % 2 > 0)) - 6;
    // At its ends an edge is upright; in its middle piece it may go aside behind the words.
    const middle = 2 * Math.floor(flat.length / 4) - 2,
      [xa, ya, xb, yb] = flat.slice(middle, middle + 4) as [number, number, number, number],
      aside = Math.abs(xb - xa) * Math.min(0.5, 15 / Math.abs(yb - ya));
    const beside = [
      [(xa + xb) / 2, (ya + yb) / 2 + 4, 9 + aside],
      [x1, y1 - 14 * down + 4, 9],
      [x0, y0 + 14 * down + 4, 9],
    ].flatMap(([x, y, far]) => [{ x: x! + far!, y: y! }, { x: x! - far! - NOTE * text.length, y: y! }]);
    const place = level
      ? { x: (x0 + x1) / 2, y: over }
      : (beside.find(({ x, y }) => this.#isFree(x, y, NOTE * text.length)) ?? beside[0]!);
    return [s("text", { class: "gd-note-on-edge", "data-level": level, ...place }, text)];
  }

  /** Whether words of this width above a base line lie inside of the picture and on no box. */
  #isFree(left: number, base: number, width: number): boolean {
    const inside = left >= 0 && left + width <= this.#layout.width;
    return inside && this.#layout.boxes.every(
      ({ x, y, w, h = NODE }) => left >= x + w || left + width <= x || base - 12 >= y + h || base + 2 <= y,
    );
  }

  #laneOf(index: number): string {
    const { x } = this.#layout.boxes[index]!;
    return this.#layout.lanes.find(lane => x >= lane.x && x < lane.x + lane.width)?.title ?? "";
  }

  /** Draw a wire; from a forward lane into an adjoint one it is saved, unless it begins at a parameter. */
  #wire(wire: WireRecord): SVGGElement {
    const { a, b, points } = wire;
    const source = this.#stage.nodes[a]!,
      leaf = source.inputs.length === 0;
    const saved =
      this.#laneOf(a).startsWith("forward") && this.#laneOf(b).startsWith("adjoint") && source.op !== "parameter";
    if (!saved) return this.#edgeGroup(a, b, leaf ? "param" : "data", wirePath(wire), "");
    const marks = [points.slice(0, 2), points.slice(-2)].map(([x, y]) =>
      s("circle", { class: "gd-mark", cx: x, cy: y, r: 2.5 }),
    );
    return this.#edgeGroup(a, b, "saved", wirePath(wire), ", saved for the way back", marks);
  }

  #pill(pill: PillRecord): SVGGElement[] {
    const { leaf, reader, x, y, w, echo, via } = pill;
    const node = pillNode(pill),
      box = this.#layout.boxes[reader]!,
      middle = y + PILL / 2;
    const right = x + w,
      gap = box.y + NODE / 2;
    // From an outer column the line goes through the gap between the pills of the inner one.
    const straight = box.x - right <= 12 || middle === gap;
    const around = `C${right + 6} ${middle} ${right + 6} ${gap} ${right + 12} ${gap}`;
    const line = this.#edgeGroup(node, reader, "param", `M${right} ${middle}${straight ? "" : around}H${box.x}`, "");
    const whole = this.#stage.nodes[leaf]!,
      spoken = [leaf, ...via].map(each => spokenName(this.#doc, this.#stage, each)).join("; ");
    const drawn = s(
      "g",
      {
        class: `gd-node gd-pill ${familyClass(whole.family)}${line.matches(".gd-edge-gone") ? " gd-edge-gone" : ""}`,
        "data-entity": this.#entity(node),
        "data-echo": echo > 0,
        tabindex: -1,
        role: "button",
        "aria-label": spoken,
        transform: `translate(${x} ${y})`,
        ...this.#dress.node?.(node),
      },
      tooltip(this.#doc, this.#stage, whole, whole.name, this.#pillTold(pill)),
      s("rect", { class: "gd-hit", y: -2, width: w, height: PILL + 4 }),
      s("rect", { class: "gd-shape", width: w, height: PILL, rx: PILL / 2 }),
      this.#pillText(pill),
    );
    return [line, drawn];
  }

  #pillTold({ leaf, via }: PillRecord): string {
    const steps = via.map(each => this.#stage.nodes[each]!).map(each => `${each.op} to ${typeText(this.#doc, each)}`);
    return [...steps, this.#dress.told?.(leaf)].filter(Boolean).join("\n");
  }

  /** Write the name, which stands for the leaf, while the pill stands for the shape op that brings it to its reader. */
  #pillText(pill: PillRecord): SVGTextElement {
    const { leaf, via, echo } = pill,
      { density } = this.#layout,
      stage = this.#stage;
    const whole = titleOf(stage, leaf) || stage.nodes[leaf]!.op,
      name = density < 3 ? shortened(stage, whole, PILL_CUT) : pillLabel(whole, density),
      type = typeText(this.#doc, stage.nodes[pillNode(pill)]!),
      tail = cut(pillTail(type, via.length > 0, echo > 0, density), PILL_CUT);
    return s(
      "text",
      { class: "gd-name", x: 10, y: 13 },
      via.length > 0 ? s("tspan", { "data-entity": this.#entity(leaf) }, name) : name,
      tail && s("tspan", { class: "gd-type", dx: 6 }, tail),
    );
  }

  #box(index: number, detail: Detail): SVGGElement {
    const { x, y, w, h: height = NODE } = this.#layout.boxes[index]!;
    const node = this.#stage.nodes[index]!,
      leaf = node.flags.includes("leaf") || node.family === "leaf",
      title = titleOf(this.#stage, index);
    const has = (flag: string) => node.flags.includes(flag);
    const op = shortened(this.#stage, leaf && title ? title : node.op, LINE_CUT);
    return s(
      "g",
      {
        class: `gd-node gd-box ${familyClass(node.family)}`,
        "data-entity": this.#entity(index),
        tabindex: -1,
        role: "button",
        "data-output": has("output") || has("loss"),
        "data-leaf": leaf,
        "aria-label": spokenName(this.#doc, this.#stage, index),
        transform: `translate(${x} ${y})`,
        ...this.#dress.node?.(index),
      },
      has("group") && s("rect", { class: "gd-sheet", x: 4, y: -4, width: w, height, rx: 6 }),
      s("rect", { class: "gd-shape", width: w, height, rx: leaf ? NODE / 2 : 6 }),
      ...(detail === "op"
        ? [s("text", { class: "gd-op", x: leaf ? 16 : 12, y: 25 }, op)]
        : this.#inside(index, op, title, leaf)),
    );
  }

  #kept(index: number, element: SVGGElement): SVGElement[] {
    if (this.#dress.members) this.#made.set(index, element);
    return [element];
  }

  #inside(index: number, op: string, title: string, leaf: boolean): Child[] {
    const { w, h: height = NODE } = this.#layout.boxes[index]!,
      node = this.#stage.nodes[index]!,
      given = shortened(this.#stage, title, Math.max(4, LINE_CUT - op.length - 2)), // as the layout counts it
      typed = this.#layout.density < 2,
      fits = typed ? (op.length + 2 + given.length) * CHAR + 24 <= w + 10 : op.length + 4 <= LINE_CUT,
      named = !leaf && Boolean(title) && fits,
      left = leaf ? 16 : 12,
      top = typed || named ? 17 : 24,
      // Beside the shorter line: a type is drawn smaller than the layout counts it.
      foot = typed || (named && given.length < op.length);
    return [
      tooltip(this.#doc, this.#stage, node, title, this.#dress.told?.(index)),
      node.flags.includes("fused") &&
        s("rect", { class: "gd-inner", x: 3, y: 3, width: w - 6, height: height - 6, rx: 4 }),
      !leaf && svgPath("gd-side", `M6 0A6 6 0 0 0 0 6V${height - 6}A6 6 0 0 0 6 ${height}`),
      s("text", { class: "gd-op", x: leaf && !typed ? w / 2 : left, y: top, "data-alone": leaf && !typed }, op),
      named &&
        s("text", { class: "gd-given", "data-below": !typed, x: typed ? w - 9 : left, y: typed ? 17 : 32 }, given),
      typed && !node.lines && s("text", { class: "gd-type", x: left, y: 31 }, cut(typeText(this.#doc, node), LINE_CUT)),
      node.lines?.map((line, i) => {
        const name = i < node.own! ? "gd-type gd-figures-line" : "gd-type gd-slope";
        return s("text", { class: name, x: left, y: 31 + LINE * i }, line);
      }),
      s(
        "text",
        { class: "gd-letter", x: w - 5, y: foot ? 32 : 13 },
        this.#dress.letter?.(index) || (leaf || node.told ? "" : LETTERS[node.family]),
      ),
    ]; // a family is never its colour alone
  }

  #lanes(height: number): SVGGElement[] {
    return this.#layout.lanes.map(({ index, title, x, width }) =>
      s(
        "g",
        { class: `gd-lane gd-f-${/optimizer/.test(title) ? "update" : index % 2 ? "elementwise" : "reduction"}` },
        s("title", null, title),
        s("rect", { x, y: -LANE_ABOVE, width, height: height + LANE_ABOVE + LANE_BELOW, rx: 8 }),
      ),
    );
  }

  /** Everything to draw, in layers: edges, pills, boxes. */
  #parts(): Item[] {
    const layout = this.#layout;
    const flat = (points: readonly number[]) => {
      const reach = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity, layer: 0 };
      for (let i = 0; i + 1 < points.length; i += 2) {
        reach.left = Math.min(reach.left, points[i]!);
        reach.right = Math.max(reach.right, points[i]!);
        reach.top = Math.min(reach.top, points[i + 1]!);
        reach.bottom = Math.max(reach.bottom, points[i + 1]!);
      }
      return reach;
    };
    const box = ({ x, y, w }: { x: number; y: number; w: number }, height: number, layer: number) => ({
      left: x,
      top: y,
      right: x + w,
      bottom: y + height,
      layer,
    });
    const ends = ({ a, b }: { a: number; b: number }) => [a, b];
    const items: Item[] = [
      ...layout.edges.map(each => ({ ...flat(each.bends), nodes: ends(each), make: () => [this.#edge(each)] })),
      ...layout.rails.map(each => ({
        ...flat(railPoints(layout, each).flat),
        nodes: ends(each),
        make: () => [this.#rail(each)],
      })),
      ...layout.wires.map(each => ({ ...flat(each.points), nodes: ends(each), make: () => [this.#wire(each)] })),
      ...layout.pills.map(each => ({
        ...box(each, PILL, 1),
        nodes: [pillNode(each), each.reader],
        make: () => this.#pill(each),
      })),
    ];
    layout.boxes.forEach((place, index) => {
      if (place.row >= 0)
        items.push({
          ...box(place, place.h ?? NODE, 2),
          nodes: [index],
          make: detail => this.#kept(index, this.#box(index, detail)),
        });
    });
    return items;
  }

  /** A box or a pill as a mere shape. */
  #block(item: Item): Block | null {
    const [index] = item.nodes;
    return item.layer > 0
      ? { ...item, entity: this.#entity(index!), family: familyClass(this.#stage.nodes[index!]!.family) }
      : null;
  }

  draw(): Picture {
    const layout = this.#layout,
      [first] = layout.lanes,
      layers = [s("g"), s("g"), s("g")];
    const shown = layout.boxes.filter(box => box.row >= 0).length;
    // Lanes reach past the boxes on every side.
    const open = this.#dress.brackets ?? [],
      margin = open.reduce((most, { track }) => Math.max(most, TRACK * (track + 1)), 0);
    const side = first ? MARGIN / 4 : MARGIN,
      left = Math.min(0, first?.x ?? 0) - side - margin,
      right = layout.lanes.reduce((most, lane) => Math.max(most, lane.x + lane.width), layout.width) + side;
    const top = first ? LANE_ABOVE : MARGIN,
      bottom = first ? LANE_BELOW + MARGIN / 2 : MARGIN - (ROW - NODE);
    const width = right - left,
      height = layout.height + top + bottom;
    const svg = (this.#svg = s(
      "svg",
      { class: "gd-picture", width, height, viewBox: `${left} ${-top} ${width} ${height}`, "data-many": shown > MANY },
      ...this.#lanes(layout.height),
      ...open.map(each => bracket(each, left + margin)),
      this.#rails,
      this.#strokes,
      this.#merged.el,
      ...layers,
    ));
    const items = (this.#items = this.#parts()),
      culled = shown > CULLED || items.length > 6 * CULLED;
    const cells = (this.#cells = new Cells(items, layers, element => this.#joints.delete(element)));
    if (shown <= MANY && !culled) this.#fill(items.length);
    return {
      svg,
      width,
      height,
      left,
      top: -top,
      boxes: shown,
      bracketed: margin > 0,
      culled,
      join: lit => this.#join(lit),
      hover: entity => {
        for (const [element, ends] of this.#joints) setFlag(element, "data-near", ends.includes(entity ?? ""));
      },
      lanes: layout.lanes.map(({ title, x, width }) => ({ title, x: x - left, width })),
      axis: spine(layout) - left,
      look: (seen, zoom) =>
        (culled || this.#whole < items.length) &&
        this.#look(
          { left: seen.left + left, right: seen.right + left, top: seen.top - top, bottom: seen.bottom - top },
          zoom,
          culled,
        ),
      more: () => {
        const end = performance.now() + SLICE;
        while (!culled && this.#whole < items.length && performance.now() < end) this.#fill(this.#whole + MANY);
        return !culled && this.#whole < items.length;
      },
      again: changed => {
        this.#shaped = NOWHERE;
        if (this.#detail === "shape") this.#detail = null;
        const stale = (i: number) => !changed || items[i]!.nodes.some(each => changed.has(each));
        cells.show(cells.shown, this.#detail ?? "full", stale);
        return !culled || this.#detail !== null;
      },
      placeOf: entity => {
        const place = this.#placeOf(entity);
        if (!place) return null;
        const x = place.x - left;
        return { x: x + place.w / 2, y: place.y + top, left: x, right: x + place.w };
      },
      at: (x, y) => (this.#detail === "shape" ? this.#merged.at(x + left, y - top, 12) : null),
    };
  }

  /** Draw the items up to this one, besides those that are drawn already. */
  #fill(end: number): void {
    const drawn = this.#cells!.shown;
    this.#whole = end;
    this.#cells!.show([...this.#items.keys()].slice(0, end).concat(drawn.filter(i => i >= end)), "full");
  }

  /** Draw what is in sight of a large picture, and a quarter of a screen around, in the detail that the page bears. */
  #look(seen: Rect, zoom: number, culled: boolean): boolean {
    this.#seen = [seen, zoom];
    const cells = this.#cells!,
      dx = (seen.right - seen.left) / 4,
      dy = (seen.bottom - seen.top) / 4,
      sight = { left: seen.left - dx, right: seen.right + dx, top: seen.top - dy, bottom: seen.bottom + dy };
    // A picture that will be drawn whole begins with the part in sight, too.
    if (!culled)
      return cells.show(
        [...new Set([...cells.shown, ...cells.within(sight)])].sort((a, b) => a - b),
        "full",
      );
    const { detail, found, bundled } = zoom < 0.25 ? SHAPES : this.#borne(sight, seen, zoom);
    const again = detail !== this.#detail || bundled !== this.#bundled;
    this.#detail = detail;
    this.#bundled = bundled;
    const merged = detail === "shape";
    if (merged || bundled) this.#far(seen, zoom, !merged);
    if (again) {
      this.#svg.toggleAttribute("data-bundled", bundled);
      this.#merged.el.style.display = merged ? "" : "none";
      for (const each of [this.#strokes, this.#rails]) each.style.display = merged || bundled ? "" : "none";
    }
    return cells.show(found, detail, () => again) || again;
  }

  /** Choose the items in sight that are drawn one by one, in the fullest detail that the page bears: with all lines,
   * else with lines as one path; with the surroundings of the sight, else without. */
  #borne(sight: Rect, seen: Rect, zoom: number): { detail: Detail; found: number[]; bundled: boolean } {
    const cells = this.#cells!;
    for (const rect of [sight, seen]) {
      const all = cells.within(rect),
        lines = all.reduce((sum, i) => sum + Number(this.#items[i]!.layer === 0), 0),
        bundled = lines > LINES,
        found = bundled ? all.filter(i => this.#items[i]!.layer > 0 || this.#lit(i)) : all;
      for (const detail of zoom < 0.6 ? (["op"] as const) : (["full", "op"] as const))
        if (found.reduce((sum, i) => sum + COST[detail][this.#items[i]!.layer]!, 0) <= MOST)
          return { detail, found, bundled };
    }
    return SHAPES;
  }

  /** Whether both ends of a line are lit. */
  #lit(item: number): boolean {
    return this.#joined.size > 0 && this.#items[item]!.nodes.every(each => this.#joined.has(this.#entity(each)));
  }

  /** Draw a small-scale picture as a few paths, with a screen around the part in sight, so that few gestures draw it
   * anew. `near`: only lines, in the detail of a large scale. */
  #far(seen: Rect, zoom: number, near: boolean): void {
    const width = near ? "1" : String(1.5 ** Math.round(-Math.log(zoom) / Math.log(1.5)));
    // Lines keep about their width on the screen.
    if (this.#width !== width) this.#svg.style.setProperty("--gd-px", (this.#width = width));
    const { left, right, top, bottom } = this.#shaped;
    const known = this.#near === near;
    if (known && seen.left >= left && seen.right <= right && seen.top >= top && seen.bottom <= bottom) return;
    const dx = seen.right - seen.left,
      dy = seen.bottom - seen.top;
    this.#near = near;
    this.#shaped = { left: seen.left - dx, right: seen.right + dx, top: seen.top - dy, bottom: seen.bottom + dy };
    const found = this.#cells!.within(this.#shaped);
    if (!near)
      this.#merged.show(
        found.flatMap(i => this.#block(this.#items[i]!) ?? []),
        this.#joined,
      );
    const { edges, rails, wires } = this.#layout,
      rail = edges.length,
      wire = rail + rails.length,
      here = (from: number, to: number) => found.filter(i => i >= from && i < to).map(i => i - from);
    const lines = here(0, rail).map(i => (near ? edgePath(edges[i]!) : `M${edges[i]!.bends.join(" ")}`));
    if (near) lines.push(...here(wire, wire + wires.length).map(i => wirePath(wires[i]!)));
    this.#strokes.setAttribute("d", lines.join(""));
    const long = here(rail, wire).map(i => rails[i]!);
    this.#rails.setAttribute("d", railsPath(this.#layout, long, this.#shaped));
  }

  #placeOf(entity: string): BoxRecord | PillRecord | null {
    const [, stage, at] = /^node:(\d+)\.(\d+)$/.exec(entity) ?? [],
      own = Number(stage) === this.#stage.index ? Number(at) : -1,
      index = this.#dress.members?.findIndex(all => all.includes(own)) ?? this.#stage.entities?.indexOf(entity) ?? own;
    const box = this.#layout.boxes[index];
    return (box && box.row < 0 ? this.#pillOf(index) : box) ?? null;
  }

  /** The pill of a leaf, or of a shape op between a leaf and its reader. */
  #pillOf(index: number): PillRecord | undefined {
    const { pills } = this.#layout;
    return (
      pills.find(each => pillNode(each) === index) ??
      pills.find(({ leaf, via }) => leaf === index || via.includes(index))
    );
  }

  #join(lit: ReadonlySet<string>): void {
    this.#joined = lit;
    this.#merged.light(lit);
    if (this.#bundled && this.#seen) this.#look(...this.#seen, true);
    for (const [v, element] of this.#made) {
      const all = this.#dress.members![v]!;
      if (all.length > 1)
        setFlag(
          element,
          "data-some",
          all.some(i => lit.has(`node:${this.#stage.index}.${i}`)),
        );
    }
    for (const [element, ends] of this.#joints) setFlag(element, "data-joined", lit.has(ends[0]) && lit.has(ends[1]));
  }
}

/** The picture of a stage, or of a part of it, as it was laid out. */
export const drawStage = (doc: GraphDoc, stage: Stage, layout: Layout, dress: Dress = {}): Picture =>
  new StagePicture(doc, stage, layout, dress).draw();
