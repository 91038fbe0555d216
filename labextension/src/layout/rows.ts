// Place boxes that have a row: the core of both layouts, integer by integer the same as gdlab/view/layout/rows.py.

import { DUMMY, GX, LONG, NEAR, QUIET, TRACKS } from "../doc/metrics.ts";

export type Pair = readonly [number, number];
export const half = (value: number): number => Math.floor(value / 2);
export const most = (values: Iterable<number>, least: number): number => {
  let found = least;
  for (const value of values) if (value > found) found = value;
  return found;
};

/** The places of one column's boxes; per edge the middles of its dummies from the top, null for a rail. */
export interface Placed {
  x: number[];
  order: number[][];
  ways: (number[] | null)[];
  rails: Pair[];
  width: number;
}

/** Boxes first, then a dummy for each row that a long edge crosses. */
interface Units {
  width: number[];
  anchor: number[];
  row: number[];
  depth: number[];
  above: number[][];
  below: number[][];
  rows: number[][];
  x: number[];
}

/** The track of each (top row, bottom row): the first that is free there; when all but one are busy, the last. */
export function tracks(spans: readonly Pair[], limit: number): number[] {
  const order = spans
    .map((_, i) => i)
    .sort((i, j) => spans[i]![0] - spans[j]![0] || spans[i]![1] - spans[j]![1] || i - j);
  const ends: number[] = [],
    result = spans.map(() => 0);
  for (const i of order) {
    const [top, bottom] = spans[i]!;
    let track = 0;
    while (track < Math.min(ends.length, limit - 1) && ends[track]! >= top) track++;
    ends[track] = Math.max(ends[track] ?? bottom, bottom);
    result[i] = track;
  }
  return result;
}

function join(units: Units, a: number, b: number): number[] {
  const made: number[] = [];
  let last = a;
  for (let row = units.row[a]! + 1; row < units.row[b]!; row++) {
    const dummy = units.width.length;
    units.width.push(DUMMY);
    units.anchor.push(DUMMY / 2);
    units.row.push(row);
    units.depth.push(units.depth[b]! < QUIET ? 0 : QUIET);
    units.above.push([last]);
    units.below.push([]);
    units.rows[row]!.push(dummy);
    units.below[last]!.push(dummy);
    made.push(dummy);
    last = dummy;
  }
  units.below[last]!.push(b);
  units.above[b]!.push(last);
  return made;
}

/** The sum of the two middle values; of an odd number, twice the middle one. */
function middle(values: number[]): number {
  const count = values.length;
  if (count === 1) return 2 * values[0]!;
  values.sort((a, b) => a - b);
  return values[half(count - 1)]! + values[half(count)]!;
}

/** Make four sweeps, down, up, down, up, with the neighbours in the row before. */
function sweep(units: Units, visit: (row: number[], near: number[][]) => void): void {
  for (let pass = 0; pass < 4; pass++) {
    const up = pass % 2 === 1;
    for (let r = 0; r < units.rows.length; r++)
      visit(units.rows[up ? units.rows.length - 1 - r : r]!, up ? units.below : units.above);
  }
}

function order(units: Units): void {
  const at = units.width.map(() => 0),
    key = at.slice();
  for (const row of units.rows) row.forEach((u, i) => (at[u] = i));
  sweep(units, (row, near) => {
    for (const u of row) key[u] = near[u]!.length > 0 ? middle(near[u]!.map(v => at[v]!)) : 2 * at[u]!;
    row.sort((u, v) => units.depth[u]! - units.depth[v]! || key[u]! - key[v]!);
    row.forEach((u, i) => (at[u] = i));
  });
}

function wants({ x, anchor, width, depth }: Units, row: number[], near: number[][]): number[] | null {
  const first = row.findIndex(u => near[u]!.length > 0);
  if (first < 0) return null;
  const found: number[] = [];
  row.slice(first).forEach((u, i) => {
    // A quiet box stands beside the others: between them it would push them off the spine.
    if (near[u]!.length > 0 && (i === 0 || depth[u]! < QUIET)) {
      const sum = middle(near[u]!.map(v => 2 * (x[v]! + anchor[v]!)));
      // 15/16 pulls to the axis: without it deep graphs drift sideways.
      found.push(Math.floor((Math.floor((15 * sum) / 16) - 4 * anchor[u]!) / 4));
    } else found.push(found[i - 1]! + width[row[first + i - 1]!]! + GX);
  });
  let right = found[0]!;
  for (let i = first - 1; i >= 0; i--) found.unshift((right -= width[row[i]!]! + GX));
  return found;
}

function spread(units: Units): void {
  const { x, width } = units;
  for (const row of units.rows) {
    let left = -half(row.reduce((sum, u) => sum + width[u]! + GX, 0));
    for (const u of row) {
      x[u] = left;
      left += width[u]! + GX;
    }
  }
  sweep(units, (row, near) => {
    const want = wants(units, row, near);
    if (!want) return;
    const low: number[] = [];
    let free = want[0]!;
    row.forEach((u, i) => {
      low.push((free = Math.max(want[i]!, free)));
      free += width[u]! + GX;
    });
    let limit = want.at(-1)! + width[row.at(-1)!]! + GX;
    for (let i = row.length - 1; i >= 0; i--) {
      limit = Math.min(want[i]!, limit - GX - width[row[i]!]!);
      x[row[i]!] = half(low[i]! + limit);
    }
  });
}

/** Move each box that is nearly below its only upper neighbour exactly below it, where there is room. */
function straighten({ x, anchor, width, rows, above }: Units): void {
  for (const row of rows)
    row.forEach((u, i) => {
      const [over, ...others] = above[u]!;
      if (over === undefined || others.length > 0) return;
      const left = x[over]! + anchor[over]! - anchor[u]!,
        before = row[i - 1],
        after = row[i + 1];
      if (Math.abs(left - x[u]!) > NEAR || (before !== undefined && x[before]! + width[before]! + GX > left)) return;
      if (after === undefined || left + width[u]! + GX <= x[after]!) x[u] = left;
    });
}

/** Return x for boxes of these widths on these rows; `anchors` are the offsets at which edges meet them. */
export function place(
  widths: number[],
  anchors: number[],
  rows: number[],
  edges: readonly Pair[],
  quiet: boolean[],
): Placed {
  const count = widths.length,
    depth = rows.map(() => 0),
    lists = () => rows.map((): number[] => []);
  for (const [a, b] of edges) if (rows[a] === rows[b]) depth[b] = Math.max(depth[b]!, depth[a]! + 1);
  const units: Units = {
    width: widths.slice(),
    anchor: anchors.slice(),
    row: rows.slice(),
    depth: depth.map((d, i) => (quiet[i] ? d + QUIET : d)),
    above: lists(),
    below: lists(),
    rows: Array.from({ length: most(rows, -1) + 1 }, () => []),
    x: widths.map(() => 0),
  };
  rows.forEach((row, box) => units.rows[row]!.push(box));
  const long: number[] = [];
  const ways = edges.map(([a, b], e) => {
    const span = rows[b]! - rows[a]!;
    if (span >= 0 && span <= LONG) return span === 0 ? [] : join(units, a, b);
    long.push(e);
    return null;
  });
  for (let u = 0; u < count; u++) {
    const loud = units.below[u]!.filter(v => units.depth[v]! < QUIET);
    if (loud.length > 0) units.below[u] = loud;
  }
  // Another row stands amid the head of a chain inside a row: what is entered at the left and left at the right would
  // push the next row aside, and all together would walk across the page.
  const head = units.width.map((_, u) => u);
  for (const [a, b] of edges) if (rows[a] === rows[b] && head[b] === b) head[b] = head[a]!;
  for (const near of [units.above, units.below]) near.forEach((all, u) => (near[u] = all.map(v => head[v]!)));
  for (const boxes of units.rows) boxes.sort((u, v) => units.depth[u]! - units.depth[v]!);
  order(units);
  spread(units);
  straighten(units);
  const shift = units.x.reduce((a, b) => Math.min(a, b), units.x[0] ?? 0);
  const x = units.x.map(left => left - shift),
    middles = x.map((left, u) => left + units.anchor[u]!);
  const spans = long.map((e): Pair => {
    const [a, b] = edges[e]!;
    return [Math.min(rows[a]!, rows[b]!), Math.max(rows[a]!, rows[b]!)];
  });
  const taken = tracks(spans, TRACKS);
  return {
    x: x.slice(0, count),
    order: units.rows.map(row => row.filter(u => u < count)),
    ways: ways.map(way => way && way.map(u => middles[u]!)),
    rails: long.map((e, i): Pair => [e, taken[i]!]),
    width: most(
      x.map((left, u) => left + units.width[u]!),
      0,
    ),
  };
}
