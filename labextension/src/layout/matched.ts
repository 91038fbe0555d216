// Put rows of two layouts at one height: match rows of the right one to rows of the left one, and move rows of a layout
// apart. Pure.

import type { Layout } from "../doc/doc.ts";
import { NODE, ROW } from "../doc/metrics.ts";

/** The longest part of these pairs in which both rows grow. */
function growing(pairs: readonly (readonly [row: number, at: number])[]): [number, number][] {
  const best: { row: number; at: number; length: number; before: number }[] = [];
  for (const [row, at] of pairs) {
    let before = -1;
    best.forEach((each, i) => {
      if (each.at < at && (before < 0 || each.length > best[before]!.length)) before = i;
    });
    best.push({ row, at, length: 1 + (best[before]?.length ?? 0), before });
  }
  const found: [number, number][] = [];
  let i = best.reduce((most, each, k) => (each.length > (best[most]?.length ?? 0) ? k : most), -1);
  for (; i >= 0; i = best[i]!.before) found.push([best[i]!.row, best[i]!.at]);
  return found.reverse();
}

/** Return the place of each row: a row with a partner on its partner's row, one without on the next free one.
 * `partner`: the row of the left pane, −1 for none. */
export function placesOfRows(partner: readonly number[]): number[] {
  const pairs = growing(partner.flatMap((at, row) => (at >= 0 ? [[row, at] as const] : []))),
    wanted = new Map(pairs);
  const found: number[] = [];
  partner.forEach((_, row) => found.push(Math.max((found[row - 1] ?? -1) + 1, wanted.get(row) ?? 0)));
  return found;
}

/** Straighten an edge through closed rows: it bends in the first gap, and is straight through the others. */
function straightened(flat: readonly number[]): number[] {
  const found = flat.slice(0, 2);
  for (let i = 2; i < flat.length; i += 2) {
    const [x0, y0, x1, y1] = flat.slice(i - 2, i + 2) as [number, number, number, number];
    if (x0 !== x1 && y1 - y0 > ROW - NODE) found.push(x1, y0 + ROW - NODE);
    found.push(x1, y1);
  }
  return found;
}

/** Return the layout with row r at place[r]. */
export function spread(layout: Layout, place: readonly number[]): Layout {
  const shift = (row: number) => ROW * ((place[row] ?? row) - row),
    band = (y: number) => Math.min(place.length - 1, Math.max(0, Math.floor(y / ROW)));
  const shiftOf = (u: number) => shift(layout.boxes[u]!.row),
    moved = (y: number) => y + shift(band(y));
  const bent = (flat: readonly number[]) => flat.map((value, i) => (i % 2 ? moved(value) : value));
  return {
    ...layout,
    height: layout.height + (place.length > 0 ? shift(place.length - 1) : 0),
    boxes: layout.boxes.map(box => (box.row < 0 ? box : { ...box, y: box.y + shift(box.row), row: place[box.row]! })),
    pills: layout.pills.map(pill => ({ ...pill, y: pill.y + shiftOf(pill.reader) })),
    edges: layout.edges.map(edge => ({
      ...edge,
      // A hop stands above its row.
      bends: layout.boxes[edge.a]!.row === layout.boxes[edge.b]!.row
        ? edge.bends.map((value, i) => (i % 2 ? value + shiftOf(edge.a) : value))
        : straightened(bent(edge.bends)),
    })),
    rails: layout.rails.map(rail => ({ ...rail, y0: rail.y0 + shiftOf(rail.a), y1: rail.y1 + shiftOf(rail.b) })),
  };
}
