// A layout whose boxes hold several lines: rows grow downwards, and what lies below them makes room. Pure.

import type { Layout } from "../doc/doc.ts";
import { LINE, NODE, ROW } from "../doc/metrics.ts";

/** The room that each row needs for the lines of its boxes, beyond the one that every box has. */
export function extraRoom({ boxes }: Layout, lines: (index: number) => number): number[] {
  const found: number[] = [];
  boxes.forEach(({ row }, i) => {
    if (row >= 0) found[row] = Math.max(found[row] ?? 0, LINE * Math.max(0, lines(i) - 1));
  });
  return Array.from(found, each => each ?? 0);
}

/** The layout with row r taller by extra[r]; points in a row keep their distance from its top, points in the gap below
 * it from its foot. */
export function stretched(layout: Layout, extra: readonly number[]): Layout {
  if (!extra.some(each => each > 0)) return layout;
  const before = [0];
  for (const each of extra) before.push(before.at(-1)! + each);
  const moved = (y: number): number => {
    const row = Math.floor(y / ROW);
    if (row < 0) return y;
    if (row >= extra.length) return y + before.at(-1)!;
    return y + before[row]! + (y - ROW * row >= NODE ? extra[row]! : 0);
  };
  const bent = (flat: readonly number[]) => flat.map((value, i) => (i % 2 ? moved(value) : value));
  return {
    ...layout,
    height: moved(layout.height),
    boxes: layout.boxes.map(box => (box.row < 0 ? box : { ...box, y: moved(box.y), h: NODE + extra[box.row]! })),
    pills: layout.pills.map(pill => ({ ...pill, y: moved(pill.y) })),
    edges: layout.edges.map(edge => ({ ...edge, bends: bent(edge.bends) })),
    rails: layout.rails.map(rail => ({ ...rail, y0: moved(rail.y0), y1: moved(rail.y1) })),
    wires: layout.wires.map(wire => ({ ...wire, points: bent(wire.points) })),
    ...(layout.holes
      ? { holes: layout.holes.map(hole => ({ ...hole, top: moved(hole.top), bottom: moved(hole.bottom) })) }
      : {}),
  };
}
