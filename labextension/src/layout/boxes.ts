// Choose boxes and pills, and lay out one column of boxes: the same as gdlab/view/layout/boxes.py and drawn.py.

import { GX, GY, HOPS, LINE_CUT, LONG, NODE, PILL, PILL_CUT, ROW, SHAPE_OPS } from "../doc/metrics.ts";
import { pillLabel, pillTail } from "../doc/pilltext.ts";
import { half, most, place, type Pair, type Placed } from "./rows.ts";

/** The input of a layout: texts as they stand in the document, inputs by index, all smaller than its own. */
export interface Drawn {
  op: string;
  name: string;
  type: string;
  inputs: readonly number[];
  leaf: boolean;
  lane: string;
  twin: number;
  /** Whether the box stands for a closed group, whose op is a label. */
  closed?: boolean;
  /** The numbers in place of the type. */
  lines?: readonly string[];
}

export const unique = (values: readonly number[]): number[] => (values.length < 2 ? [...values] : [...new Set(values)]);

/** Code points, at most `limit`. */
function count(text: string, limit: number): number {
  let found = 0;
  for (const _ of text) if (++found >= limit) break;
  return found;
}

const up8 = (value: number): number => 8 * Math.ceil(value / 8);

function nodeWidth({ op, name, type, leaf, lines }: Drawn, density: number): number {
  const ops = count(op, 99),
    names = count(name, 99);
  const line = Math.min(leaf || !names ? (leaf && names) || ops : ops + 2 + names, LINE_CUT),
    alone = leaf || !names || (ops + 4 > LINE_CUT && ops + 2 + names > LINE_CUT),
    below = alone ? line : Math.max(ops, line - ops - 2),
    longest = density < 2 ? Math.max(line, count(type, LINE_CUT)) : below;
  const told = lines?.reduce((most, each) => Math.max(most, count(each, 999)), line);
  return Math.max(64, up8(Math.floor((29 * (told ?? longest)) / 4) + 24));
}

function pillWidth({ op, name }: Drawn, tail: string, density: number): number {
  const letters = count(tail, PILL_CUT);
  return up8(7 * count(pillLabel(name || op, density), 99) + (letters ? Math.floor((64 * letters) / 10) + 26 : 20));
}

interface PillOf {
  node: number;
  w: number;
  echo: boolean;
}

export interface Cast {
  nodes: readonly Drawn[];
  density: number;
  box: boolean[];
  width: number[];
  inputs: number[][];
  pills: PillOf[][];
  readers: number[][];
  chains: ReadonlyMap<number, number[]>;
}

/** Shape ops between a parameter or constant and its reader, each with the chain from the leaf to itself. */
export function chainsOf(nodes: readonly Pick<Drawn, "op" | "inputs" | "leaf" | "closed">[]): Map<number, number[]> {
  const found = new Map<number, number[]>(),
    read = new Set<number>();
  nodes.forEach(({ op, inputs, closed }, i) => {
    for (const a of inputs) read.add(a);
    const [a] = inputs;
    if (a === undefined || a >= i || inputs.length > 1 || closed || !SHAPE_OPS.includes(op)) return;
    const chain = found.get(a) ?? (nodes[a]!.leaf && nodes[a]!.op !== "input" ? [a] : null);
    if (chain) found.set(i, [...chain, i]);
  });
  for (const i of [...found.keys()]) if (!read.has(i)) found.delete(i);
  return found;
}

/** Split the nodes into boxes and pills: leaves become pills, but an `input` that an op of the first lane has nothing
 * else to stand below becomes a box. */
export function cast(nodes: readonly Drawn[], firstLane: readonly boolean[], density: number): Cast {
  const chains = chainsOf(nodes),
    box = nodes.map((node, i) => !node.leaf && !chains.has(i)),
    readers = nodes.map((): number[] => []),
    ports = nodes.map(node => unique(node.inputs));
  nodes.forEach((node, b) => {
    if (chains.has(b)) return;
    for (const a of unique(ports[b]!.flatMap(i => chains.get(i) ?? [i]))) readers[a]!.push(b);
    if (node.leaf || !firstLane[b] || !node.inputs.every(a => nodes[a]!.leaf || chains.has(a))) return;
    const head = node.inputs.find(a => nodes[a]!.op === "input");
    if (head !== undefined) box[head] = true;
  });
  box.forEach((known, i) => (box[i] = known || readers[i]!.length === 0));
  const seen = new Set<number>();
  const size = (a: number): PillOf => {
    const echo = seen.has(a),
      tail = pillTail(nodes[a]!.type, chains.has(a), echo, density);
    return { node: a, w: pillWidth(nodes[chains.get(a)?.[0] ?? a]!, tail, density), echo };
  };
  const pills = ports.map((inputs, b) => {
    const beside = chains.has(b) ? [] : inputs.filter(a => !box[a]);
    const made = beside.map(size);
    beside.forEach(leaf => seen.add(leaf));
    return made;
  });
  const width = nodes.map((node, i) => (box[i] ? nodeWidth(node, density) : -1));
  const inputs = ports.map(all => all.filter(a => box[a]));
  return { nodes, density, box, width, inputs, pills, readers, chains };
}

/** Move boxes down to stand above the first of their readers within the lane: branches that depend on no input, inputs
 * themselves, and boxes that are read only far below. `row`: in index order. */
export function sink(who: Cast, row: Map<number, number>, within: (u: number) => boolean): void {
  const loose = new Map<number, boolean>(); // whether what reads it may be loose, too
  for (const u of row.keys()) if (who.inputs[u]!.every(a => loose.get(a))) loose.set(u, !who.nodes[u]!.leaf);
  for (const u of [...row.keys()].reverse()) {
    const own = row.get(u)!;
    let first = Infinity;
    for (const b of who.readers[u]!) if (within(b)) first = Math.min(first, row.get(b)!);
    if (first < Infinity && (loose.has(u) || first - own > LONG)) row.set(u, first - 1);
  }
}

/** The boxes of one lane, placed; `left` is the x of each box without its pills, from the column's edge. */
export interface Column {
  members: number[];
  edges: Pair[];
  placed: Placed;
  left: Map<number, number>;
  railTracks: number;
}

/** The room that pills take left of their op: two to a column, columns 12 apart. */
function margin(pills: PillOf[]): number {
  let sum = 0;
  for (let i = 0; i < pills.length; i += 2) sum += 12 + Math.max(pills[i]!.w, pills[i + 1]?.w ?? 0);
  return sum;
}

export type Rows = ReadonlyMap<number, number>;

export function column(who: Cast, members: number[], row: Rows, quiet: (u: number) => boolean): Column {
  const local = new Map(members.map((u, i) => [u, i]));
  const edges = members.flatMap(b => who.inputs[b]!.filter(a => local.has(a)).map((a): Pair => [a, b]));
  const room = members.map(u => margin(who.pills[u]!));
  const placed = place(
    members.map((u, i) => room[i]! + who.width[u]!),
    members.map((u, i) => room[i]! + half(who.width[u]!)),
    members.map(u => row.get(u)!),
    edges.map(([a, b]): Pair => [local.get(a)!, local.get(b)!]),
    members.map(quiet),
  );
  const left = new Map(members.map((u, i) => [u, placed.x[i]! + room[i]!]));
  return {
    members,
    edges,
    placed,
    left,
    railTracks: most(
      placed.rails.map(([, track]) => track + 1),
      0,
    ),
  };
}

/** A table of integer rows, written column by column. */
export class Rowed {
  readonly table: Record<string, unknown> & { count: number };
  readonly #columns: number[][];
  readonly #lists: { start: number[]; ids: number[] } = { start: [0], ids: [] };
  constructor(names: string, ragged = "") {
    const fields = names.split(" ");
    this.#columns = fields.map(() => []);
    this.table = { count: 0, ...Object.fromEntries(fields.map((field, i) => [field, this.#columns[i]])) };
    if (ragged) this.table[ragged] = this.#lists;
  }
  add(values: readonly number[], list: readonly number[] = []): void {
    values.forEach((value, i) => this.#columns[i]!.push(value));
    for (const value of list) this.#lists.ids.push(value);
    this.#lists.start.push(this.#lists.ids.length);
    this.table.count++;
  }
}

export const words = (texts: readonly string[]): { words: string[]; index: number[] } => {
  const known = [...new Set(texts)];
  return { words: known, index: texts.map(text => known.indexOf(text)) };
};

/** A layout while it is being written. */
export class Sheet {
  readonly x: number[];
  readonly y: number[];
  readonly row: number[];
  readonly pills = new Rowed("leaf reader x y w echo");
  readonly via: Record<string, number[]> = {};
  readonly edges = new Rowed("a b", "bends");
  readonly kinds: string[] = [];
  readonly rails = new Rowed("a b track x y0 y1");

  constructor(readonly who: Cast) {
    this.x = who.nodes.map(() => -1);
    this.y = this.x.slice();
    this.row = this.x.slice();
  }

  /** Put a placed column on the sheet, its edge at `at`; `up`: its rows were counted from the bottom. */
  write(lane: Column, row: Rows, at: number, up: boolean, rails: Pair): void {
    for (const u of lane.members) {
      this.x[u] = at + lane.left.get(u)!;
      this.row[u] = row.get(u)!;
      this.y[u] = ROW * this.row[u]!;
    }
    const inside = new Set(lane.edges.flatMap(([a, b]) => (this.row[a] === this.row[b] ? [b] : [])));
    for (const u of lane.members) this.#writePills(u, inside.has(u));
    const hops = this.#hops(lane);
    lane.edges.forEach(([a, b], e) => {
      const way = lane.placed.ways[e]!;
      if (!way) return;
      const flat =
        this.row[a] === this.row[b]
          ? this.#beside(a, b, hops.get(e))
          : this.#through(
              a,
              b,
              way.map(x => at + x),
              up,
            );
      this.edges.add([a, b], flat);
      this.kinds.push(this.who.nodes[a]!.leaf ? "param" : "data");
    });
    for (const [e, track] of lane.placed.rails) this.#rail(lane.edges[e]!, track, rails[0] + rails[1] * track, up);
  }

  #writePills(u: number, besideEdge: boolean): void {
    const pills = this.who.pills[u]!;
    let right = this.x[u]! - 12;
    for (let i = 0; i < pills.length; i += 2) {
      const pair = pills.slice(i, i + 2);
      const first = pair.length === 2 || besideEdge ? 0 : (NODE - PILL) / 2;
      pair.forEach(({ node, w, echo }, k) => {
        const [leaf, ...via] = this.who.chains.get(node) ?? [node];
        if (via.length > 0) this.via[this.pills.table.count] = via;
        this.pills.add([leaf!, u, right - w, this.y[u]! + first + k * (NODE - PILL), w, Number(echo)]);
      });
      right -=
        12 +
        most(
          pair.map(each => each.w),
          0,
        );
    }
  }

  #middle(u: number): number {
    return this.x[u]! + half(this.who.width[u]!);
  }

  /** Draw an edge between rows: each row that is crossed gives two points, so that the curve bends in the gaps only. */
  #through(a: number, b: number, way: number[], up: boolean): number[] {
    const step = up ? -1 : 1,
      [near, far] = up ? [0, NODE] : [NODE, 0];
    const flat = [this.#middle(a), this.y[a]! + near!];
    way.forEach((x, i) => {
      const top = ROW * (this.row[a]! + step * (i + 1));
      flat.push(x, top + far!, x, top + near!);
    });
    return [...flat, this.#middle(b), this.y[b]! + far!];
  }

  /** Draw an edge inside a row: straight from side to side, or in a hop over the boxes between. */
  #beside(a: number, b: number, level: number | undefined): number[] {
    const right = this.x[a]! + this.who.width[a]!,
      left = this.x[b]!,
      top = this.y[a]!;
    if (level === undefined) return [right, top + NODE / 2, left, top + NODE / 2];
    const over = top - 6 - 4 * level;
    return [right - 8, top, right - 8, over, left + 8, over, left + 8, top];
  }

  /** The edges inside a row with a box between their ends, each with its level. */
  #hops(lane: Column): Map<number, number> {
    const place = new Map(lane.placed.order.flatMap(boxes => boxes.map((i, k): Pair => [lane.members[i]!, k])));
    const { x, row } = this;
    const far = lane.edges
      .map((_, e) => e)
      .filter(e => {
        const [a, b] = lane.edges[e]!;
        return row[a] === row[b] && place.get(b)! - place.get(a)! > 1;
      });
    far.sort((e, f) => {
      const [a, b] = lane.edges[e]!,
        [c, d] = lane.edges[f]!;
      return row[a]! - row[c]! || x[a]! - x[c]! || x[b]! - x[d]!;
    });
    const level = new Map<number, number>(),
      ends: Pair[] = [];
    for (const e of far) {
      const [a, b] = lane.edges[e]!;
      let free = ends.findIndex(([r, end]) => r !== row[a] || end <= x[a]!);
      if (free < 0) free = Math.min(ends.length, HOPS - 1);
      ends[free] = [row[a]!, x[b]! + this.who.width[b]!];
      level.set(e, free);
    }
    return level;
  }

  #rail([a, b]: Pair, track: number, x: number, up: boolean): void {
    const reach = this.row[b]! < this.row[a]! === up ? GY : GX;
    const [y0, y1] = up
      ? [this.y[a]! - reach, this.y[b]! + NODE + reach]
      : [this.y[a]! + NODE + reach, this.y[b]! - reach];
    this.rails.add([a, b, track, x, y0!, y1!]);
  }
}
