// Draw many lines of a picture as two paths: edges and wires, and rails, whose vertical parts are drawn once per track.

import type { EdgeRecord, Layout, RailRecord, WireRecord } from "../doc/doc.ts";
import { NODE } from "../doc/metrics.ts";
import type { Rect } from "./cells.ts";
import { orthogonal, smooth } from "./paths.ts";

/** The points of a rail with its joins, and whether it runs on in the reading direction. */
export function railPoints({ boxes }: Layout, { a, b, x, y0, y1 }: RailRecord): { flat: number[]; forward: boolean } {
  const from = boxes[a]!,
    to = boxes[b]!;
  const xa = from.x + Math.floor(from.w / 2),
    xb = to.x + Math.floor(to.w / 2);
  const ya = from.y + (y0 > from.y ? (from.h ?? NODE) : 0),
    yb = to.y + (y1 < to.y + (to.h ?? NODE) ? 0 : (to.h ?? NODE));
  const forward = y1 > y0 === y0 > ya;
  return {
    forward,
    flat: forward ? [xa, ya, x, y0, x, y1, xb, yb] : [xa, ya, xa, y0, x, y0, x, y1, xb, y1, xb, yb],
  };
}

export const edgePath = ({ bends }: EdgeRecord): string =>
  bends[1] === bends.at(-1) ? orthogonal(bends) : smooth(bends);

export const wirePath = ({ points }: WireRecord): string => orthogonal(points);

/** Spans [from, to] in order, those that touch as one. */
function united(spans: [number, number][]): [number, number][] {
  const found: [number, number][] = [];
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

/** The rails that reach into a part of the picture, as one path: each track once, and the joins that lie in it. */
export function railsPath(layout: Layout, rails: readonly RailRecord[], { left, top, right, bottom }: Rect): string {
  const tracks = new Map<number, [number, number][]>(),
    joins = new Set<string>(); // rails of one box that share a track leave it on one line
  for (const rail of rails) {
    const { flat, forward } = railPoints(layout, rail),
      path = forward ? smooth : orthogonal,
      low = Math.max(Math.min(rail.y0, rail.y1), top - NODE),
      high = Math.min(Math.max(rail.y0, rail.y1), bottom + NODE),
      half = flat.length / 2;
    if (rail.x >= left && rail.x <= right && low < high)
      tracks.set(rail.x, [...(tracks.get(rail.x) ?? []), [low, high]]);
    for (const [end, y] of [
      [flat.slice(0, half), rail.y0],
      [flat.slice(half), rail.y1],
    ] as const)
      if (y >= top - 2 * NODE && y <= bottom + 2 * NODE) joins.add(path(end));
  }
  const lines = [...tracks].flatMap(([x, spans]) => united(spans).map(([from, to]) => `M${x} ${from}V${to}`));
  return [...lines, ...joins].join("");
}
