// The reach of a layout's rows, the zoom at which those in sight fit a pane, and the boxes beyond it. Pure.

import type { BoxRecord, Layout, PillRecord } from "../doc/doc.ts";
import { NODE, PILL, ROW } from "../doc/metrics.ts";

const PAD = 6; // pixels that stay free at both sides of a pane
export const READABLE = 0.75; // the least scale at which texts are drawn at 9 px or more
/** The scales of a picture that opens, from the largest. */
export const ZOOMS = [1, 0.95, 0.9, 0.85, 0.8, READABLE] as const;

/** A box or a pill. */
interface Place {
  left: number;
  right: number;
  top: number;
  bottom: number;
  node?: number;
}

/** The node that a pill stands for. */
export const pillNode = ({ leaf, via }: PillRecord): number => via.at(-1) ?? leaf;

/** The boxes and pills of a layout from top to bottom. */
export function placesOf({ boxes, pills }: Layout): Place[] {
  const place = ({ x, y, w }: Pick<BoxRecord, "x" | "y" | "w">, height: number, node: number): Place => ({
    left: x,
    right: x + w,
    top: y,
    bottom: y + height,
    node,
  });
  return [
    ...boxes.flatMap((box, i) => (box.row >= 0 ? [place(box, box.h ?? NODE, i)] : [])),
    ...pills.map(pill => place(pill, PILL, pillNode(pill))),
  ].sort((a, b) => a.top - b.top);
}

/** The edges and rails of a layout, which are good to see but not needed. */
export function linesOf({ edges, rails }: Layout): Place[] {
  const place = (flat: readonly number[]): Place => {
    const [xs, ys] = [0, 1].map(odd => flat.filter((_, i) => i % 2 === odd)) as [number[], number[]];
    return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
  };
  return [...edges.map(({ bends }) => place(bends)), ...rails.map(({ x, y0, y1 }) => place([x, y0, x, y1]))];
}

/** The brackets over closed rows, with their words: they are to be in sight, too. */
export const holesOf = ({ holes = [] }: Layout): Place[] =>
  holes.map(({ left, x, top, bottom }) => ({ left, right: x, top, bottom }));

/** The parts of a layout between two heights. */
export const between = (places: readonly Place[], top: number, bottom: number): Place[] =>
  places.filter(place => place.bottom > top && place.top < bottom);

/** The left and the right end of these places. */
export function ends(places: readonly Pick<Place, "left" | "right">[]): [left: number, right: number] | null {
  if (places.length === 0) return null;
  let [left, right] = [Infinity, -Infinity];
  for (const place of places) {
    left = Math.min(left, place.left);
    right = Math.max(right, place.right);
  }
  return [left, right];
}

/** The left and the right end of as many of the lowest rows as fit this width together. */
export function lowest(places: readonly Place[], width: number): [left: number, right: number] | null {
  const rows = new Map<number, Place[]>();
  for (const place of places) {
    const row = Math.floor(place.top / ROW);
    if (!rows.get(row)?.push(place)) rows.set(row, [place]);
  }
  let found: Place[] = [];
  for (const [, row] of [...rows].sort(([a], [b]) => b - a)) {
    const [left, right] = ends([...found, ...row])!;
    if (right - left > width) break;
    found = [...found, ...row];
  }
  return ends(found);
}

/** A pane, in pixels: its width, its height, and the room left of the boxes, for brackets. */
export interface Frame {
  across: number;
  down: number;
  margin: number;
  bracketed: boolean;
}

/** The part of a layout that is in sight at a scale: from its top, or up to the foot of the row at `foot`. */
export function opening(foot: number | null, down: number, zoom: number): [top: number, bottom: number] {
  const high = down / zoom;
  return foot === null || foot < high ? [-Infinity, high] : [foot - high, foot];
}

/** Whether every box and pill of the rows in sight lies inside the pane at this scale. */
export function fits(places: readonly Place[], foot: number | null, pane: Frame, zoom: number): boolean {
  const reach = ends(between(places, ...opening(foot, pane.down, zoom)));
  if (reach === null) return true;
  const left = (pane.bracketed ? Math.min(reach[0], 0) : reach[0]) - pane.margin;
  return (reach[1] - left) * zoom + 2 * PAD <= pane.across;
}

/** Count the boxes and pills of the rows in sight that leave the sight at its left and at its right. */
export function leaving(places: readonly Place[], { left, right, top, bottom }: Place): [left: number, right: number] {
  const seen = between(places, top, bottom);
  return [seen.filter(place => place.left < left).length, seen.filter(place => place.right > right).length];
}
