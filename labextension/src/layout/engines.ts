// `layout(nodes)`: the record of gdlab/view/layout/lanes.py and layered.py, to the byte, in the page or in a worker.

import {
  BESIDE,
  ENGINE_VERSION,
  GUTTER,
  NODE,
  PITCH,
  PLACES,
  ROW,
  TINT,
  WIRE_PITCH,
  WIRE_TRACKS,
} from "../doc/metrics.ts";
import { cast, chainsOf, column, Rowed, Sheet, sink, unique, words } from "./boxes.ts";
import type { Cast, Column, Drawn } from "./boxes.ts";
import { most, tracks, type Pair } from "./rows.ts";

export { cut, cutLeft, pillLabel, pillTail } from "../doc/pilltext.ts";
export { chainsOf } from "./boxes.ts";
export { place } from "./rows.ts";
export type Engine = "layered" | "lanes";
type Json = Record<string, unknown>;

const LAST = 1 << 30;

interface Tint {
  index: number;
  title: string;
  x: number;
  width: number;
}

function finished(
  sheet: Sheet,
  engine: Engine,
  width: number,
  height: number,
  wires = new Rowed("a b", "points"),
  tints: Tint[] = [],
): Json {
  const lanes = new Rowed("index x width");
  for (const { index, x, width } of tints) lanes.add([index, x, width]);
  return {
    engine,
    engine_version: ENGINE_VERSION,
    seconds: 0,
    density: sheet.who.density,
    x: sheet.x,
    y: sheet.y,
    w: sheet.who.width,
    row: sheet.row,
    pills: { ...sheet.pills.table, via: sheet.via },
    edges: { ...sheet.edges.table, kind: words(sheet.kinds) },
    rails: sheet.rails.table,
    wires: wires.table,
    lanes: { ...lanes.table, title: words(tints.map(tint => tint.title)) },
    width,
    height,
  };
}

/** Rows by longest path, every edge downwards; a box that is not needed so early stands next to its first user. */
export function layered(nodes: readonly Drawn[], density: number): Json {
  const who = cast(
    nodes,
    nodes.map(() => true),
    density,
  );
  const row = new Map<number, number>();
  who.inputs.forEach((inputs, u) => {
    if (who.box[u])
      row.set(
        u,
        most(
          inputs.map(a => row.get(a)! + 1),
          0,
        ),
      );
  });
  sink(who, row, () => true);
  const least = -most(
    [...row.values()].map(r => -r),
    row.size > 0 ? -Infinity : 0,
  );
  for (const [u, r] of row) row.set(u, r - least);
  const members = [...row.keys()],
    stack = column(who, members, row, () => false),
    sheet = new Sheet(who),
    right = stack.placed.width;
  sheet.write(stack, row, 0, false, [right + PITCH, PITCH]);
  return finished(
    sheet,
    "layered",
    right + (stack.railTracks ? PITCH * (stack.railTracks + 1) : 0),
    ROW * (most(sheet.row, -1) + 1),
  );
}

/** The smallest row of these boxes, in a list of one or none. */
function smallest(boxes: readonly number[], row: ReadonlyMap<number, number>): number[] {
  let least = Infinity;
  for (const u of boxes) least = Math.min(least, row.get(u) ?? Infinity);
  return least === Infinity ? [] : [least];
}

/** The number of a lane: forward 1, adjoint 2, forward2 3, adjoint2 4, … */
function laneNumber(lane: string): number {
  if (lane === "optimizer") return LAST;
  const match = /^(forward|adjoint)(\d*)$/.exec(lane);
  if (!match)
    throw new Error(`layout: lane: given ${JSON.stringify(lane)}, wanted forward, adjoint, forward2 … or optimizer`);
  return 2 * Number(match[2]!.slice(0, 6) || 1) - Number(match[1] === "forward");
}

/** The lane of every op: the one that the op names, or the next of its kind such that no edge goes left; 0 for possible
 * pills. */
function numbers(nodes: readonly Drawn[]): number[] {
  const found: number[] = [],
    pills = chainsOf(nodes);
  nodes.forEach((node, u) => {
    const named = node.leaf || pills.has(u) ? 0 : laneNumber(node.lane);
    const least = most(
      node.inputs.map(a => found[a]!),
      0,
    );
    // Of LAST nothing is counted: whatever reads the optimizer's lane stands in it.
    found[u] = named === 0 ? 0 : least === LAST ? LAST : Math.max(named, least + Math.abs((least - named) % 2));
  });
  let last = most(
    found.filter(n => n !== LAST),
    0,
  );
  last += 1 + (last % 2);
  return found.map(n => (n === LAST ? last : n));
}

function laneRows(who: Cast, number: readonly number[]): Map<number, number> {
  const row = new Map<number, number>(),
    boxes = who.box.flatMap((is, u) => (is ? [u] : []));
  const first = boxes.filter(u => number[u] === 1);
  for (const u of first)
    row.set(
      u,
      most(
        who.inputs[u]!.flatMap(a => (number[a] === 1 ? [row.get(a)! + 1] : [])),
        0,
      ),
    );
  sink(who, row, b => number[b] === 1);
  const lanes = unique(boxes.map(u => number[u]!)).sort((a, b) => a - b);
  for (const lane of lanes)
    if (lane !== 1) for (const u of boxes) if (number[u] === lane) row.set(u, laterRow(who, number, row, u));
  return new Map([...row].sort(([a], [b]) => a - b));
}

function laterRow(who: Cast, number: readonly number[], row: ReadonlyMap<number, number>, u: number): number {
  const { twin } = who.nodes[u]!,
    own = number[u]!;
  if (twin >= 0 && twin < who.nodes.length) {
    const beside = !who.box[twin] || who.nodes[twin]!.leaf
      ? who.readers[twin]!.filter(b => number[b]! % 2 === 1 && number[b]! < own)
      : number[twin]! < own
        ? [twin]
        : [];
    const [least] = smallest(beside, row);
    if (least !== undefined) return least;
  }
  const inside = who.inputs[u]!.filter(a => number[a] === own);
  if (inside.length > 0) {
    const rows = inside.map(a => row.get(a)!);
    return own % 2 === 1 ? Math.max(...rows) + 1 : Math.max(0, Math.min(...rows) - 1);
  }
  const head = who.inputs[u]!.find(a => row.has(a));
  return head === undefined ? 0 : row.get(head)!;
}

/** Fold long chains of adjoints inside a row into several rows, from the row of their op upwards. */
function foldedRows(who: Cast, number: readonly number[], row: ReadonlyMap<number, number>): Map<number, number> {
  const depth = new Map<number, number>(),
    rows: number[] = []; // that each row takes
  const taken = (u: number) => Math.floor(depth.get(u)! / BESIDE);
  for (const [u, own] of row) {
    const before = who.inputs[u]!.filter(a => number[a] === number[u] && row.get(a) === own);
    depth.set(
      u,
      number[u]! % 2 === 1
        ? 0
        : most(
            before.map(a => depth.get(a)! + 1),
            0,
          ),
    );
    rows[own] = Math.max(rows[own] ?? 0, taken(u) + 1);
  }
  let last = -1;
  const ends = Array.from(rows, each => (last += each ?? 0));
  return new Map([...row].map(([u, own]) => [u, ends[own]! - taken(u)]));
}

interface Wiring {
  edges: Pair[];
  place: Map<number, number>;
  track: Map<string, number>;
  used: Map<number, number>;
}

function wire(
  who: Cast,
  number: readonly number[],
  row: ReadonlyMap<number, number>,
  columns: ReadonlyMap<number, Column>,
): Wiring {
  const edges = [...row.keys()].flatMap(b =>
    who.inputs[b]!.filter(a => number[a] !== number[b]).map((a): Pair => [a, b]),
  );
  const sources = new Map<number, number[]>(),
    place = new Map<number, number>(),
    track = new Map<string, number>(),
    used = new Map<number, number>();
  for (const a of unique(edges.map(([a]) => a))) {
    const r = row.get(a)!;
    sources.set(r, sources.get(r) ?? []);
    sources.get(r)!.push(a);
  }
  const reach = (a: number) => columns.get(number[a]!)!.left.get(a)! + who.width[a]!;
  for (const found of sources.values()) {
    found.sort((a, b) => number[b]! - number[a]! || reach(b) - reach(a) || a - b);
    found.forEach((a, i) => place.set(a, Math.min(i, PLACES)));
  }
  const byLane = new Map<number, Map<string, Pair>>();
  for (const [a, b] of edges) {
    if (row.get(a) === row.get(b)) continue;
    const lane = number[a]!;
    if (!byLane.has(lane)) byLane.set(lane, new Map());
    byLane.get(lane)!.set(`${a} ${row.get(b)}`, [row.get(a)!, row.get(b)!]);
  }
  for (const lane of columns.keys()) {
    const ways = [...(byLane.get(lane) ?? [])];
    const taken = tracks(
      ways.map(([, [from, to]]): Pair => [Math.min(from, to), Math.max(from, to)]),
      WIRE_TRACKS,
    );
    ways.forEach(([key], i) => track.set(key, taken[i]!));
    used.set(lane, most(taken, -1) + 1);
  }
  return { edges, place, track, used };
}

function laneTitle(number: number, last: boolean): string {
  if (last) return "optimizer ↓";
  const again = number > 2 ? String(Math.floor((number + 1) / 2)) : "";
  return number % 2 === 1 ? `forward${again} ↓` : `adjoint${again} ↑`;
}

/** Lanes side by side on common rows: an adjoint stands on the row of its op, and reads forward values by wires. */
export function lanes(nodes: readonly Drawn[], density: number): Json {
  const named = numbers(nodes),
    who = cast(
      nodes,
      named.map(n => n === 1),
      density,
    );
  const number = named.map(n => n || 1),
    row = density > 0 ? foldedRows(who, number, laneRows(who, number)) : laneRows(who, number),
    count = most(row.values(), -1) + 1;
  const columns = new Map<number, Column>();
  for (const lane of unique([...row.keys()].map(u => number[u]!)).sort((a, b) => a - b)) {
    const members = [...row.keys()].filter(u => number[u] === lane);
    const on = lane % 2 === 1 ? row : new Map(members.map((u): Pair => [u, count - 1 - row.get(u)!]));
    columns.set(
      lane,
      column(who, members, on, u => lane > 1 && who.readers[u]!.length === 0),
    );
  }
  const wiring = wire(who, number, row, columns),
    sheet = new Sheet(who),
    tints: Tint[] = [];
  let right = 0;
  for (const [lane, stack] of columns) {
    const rails = PITCH * stack.railTracks,
      before = tints.at(-1);
    const at = before
      ? right - TINT + GUTTER + WIRE_PITCH * wiring.used.get(before.index)! + rails
      : TINT + (rails ? rails + PITCH : 0);
    sheet.write(stack, row, at, lane % 2 === 0, [at - TINT - PITCH, -PITCH]);
    const last = stack.members.some(u => nodes[u]!.lane === "optimizer");
    tints.push({ index: lane, title: laneTitle(lane, last), x: at - TINT, width: stack.placed.width + 2 * TINT });
    right = at + stack.placed.width + TINT;
  }
  const edge = new Map(tints.map(tint => [tint.index, tint.x + tint.width])),
    wires = new Rowed("a b", "points");
  for (const [a, b] of wiring.edges) {
    const offset = WIRE_PITCH * wiring.place.get(a)!,
      x0 = sheet.x[a]! + who.width[a]! - 10,
      y0 = sheet.y[a]! + NODE,
      x1 = sheet.x[b]! + 10 + offset,
      y1 = sheet.y[b]! + NODE,
      below0 = y0 + 7 + offset,
      below1 = y1 + 7 + offset;
    const x = y0 === y1 ? 0 : edge.get(number[a]!)! + 8 + WIRE_PITCH * wiring.track.get(`${a} ${row.get(b)}`)!;
    wires.add([a, b], [x0, y0, x0, below0, ...(y0 === y1 ? [] : [x, below0, x, below1]), x1, below1, x1, y1]);
  }
  return finished(sheet, "lanes", right, ROW * count, wires, tints);
}

/** Lay a differentiated graph out in lanes, any other in layers. */
export const layout = (nodes: readonly Drawn[], engine?: Engine, density = 0): Json =>
  engine === "lanes" || (!engine && nodes.some(node => node.lane.startsWith("adjoint")))
    ? lanes(nodes, density)
    : layered(nodes, density);
