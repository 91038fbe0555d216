// Memory over time: the bytes that live at each dispatch, tensor upon tensor, above the permanent buffers. Pure.

import type { Plan } from "../doc/doc.ts";
import { isPinned } from "./slots.ts";

/** A tensor in the mountain: from dispatch `from` on, `below[i]` bytes lie under it at dispatch `from + i`. */
export interface Band {
  index: number;
  nbytes: number;
  from: number;
  below: number[];
}
export interface Mountain {
  /** The bytes of permanent buffers. */
  always: number;
  /** Bytes of reusable memory that live at each dispatch. */
  live: number[];
  bands: Band[];
}

/** The first dispatch of a group, and that after its last one. */
function groupOf(plan: Plan, dispatch: number): { start: number; stop: number } {
  return plan.groups[plan.dispatches[dispatch]?.group ?? -1] ?? { start: dispatch, stop: dispatch + 1 };
}

/** Return memory over time, tensors in the order of their first dispatch. A barrier group counts as one dispatch, as in
 * the plan's peak: a tensor alive at one of its dispatches is alive at all. */
export function mountain(plan: Plan): Mountain {
  const live = plan.dispatches.map(() => 0);
  const always = plan.intervals.reduce((sum, each) => sum + (isPinned(each) ? each.padded : 0), 0);
  const bands = plan.intervals
    .map((interval, index) => ({ ...interval, index }))
    .filter(interval => !isPinned(interval))
    .sort((a, b) => a.first - b.first || a.index - b.index)
    .map(({ index, padded: nbytes, first, last }): Band => {
      const from = groupOf(plan, first).start,
        below = live.slice(from, groupOf(plan, last).stop);
      below.forEach((under, i) => (live[from + i] = under + nbytes));
      return { index, nbytes, from, below };
    });
  return { always, live, bands };
}

/** The tensor at a place of the mountain. */
export const bandAt = ({ bands }: Mountain, dispatch: number, nbytes: number): Band | null =>
  bands.find(({ from, below, nbytes: own }) => {
    const under = below[dispatch - from];
    return under !== undefined && under <= nbytes && nbytes < under + own;
  }) ?? null;

type Scale = (value: number) => number;

/** The outline of a band, a step at each dispatch. */
export function bandPath({ from, below, nbytes }: Band, x: Scale, y: Scale): string {
  const at = (value: number) => value.toFixed(1),
    left = (i: number) => at(x(from + i)),
    right = (i: number) => left(i + 1);
  const over = below.map((under, i) => `${i ? "L" : "M"}${left(i)} ${at(y(under + nbytes))}H${right(i)}`);
  const back = below.map((under, i) => `L${right(i)} ${at(y(under))}H${left(i)}`).reverse();
  return `${over.join("")}${back.join("")}Z`;
}
