// Which buffers stand in which row of the arena, and how high it is. Pure.

import type { IntervalRecord, Plan } from "../doc/doc.ts";
import { bytes, put } from "../doc/format.ts";

/** Heights in pixels. */
export const STRIP = 18,
  THINNEST = 14;
const TALLEST = 72,
  LEAST = 44, // of the largest slot
  ROOM = 440, // of all rows: what a pane of 560 px shows
  FOLD_ABOVE = 2;
export const KINDS: Record<string, string> = {
  state: "optimizer state",
  parameter: "parameters",
  input: "inputs",
  gradient: "gradients",
  constant: "constants",
  derived: "derived",
};

/** One line of the drawing: a slot to scale, one pinned buffer, or pinned buffers of a kind folded into one strip. */
export interface Row {
  label: string;
  height: number;
  intervals: number[];
  unit: number;
  folded: boolean;
  kind: string;
}

/** Buffers of a kind share a strip when there are more than a few. */
export const shares = (plan: Plan, kind: string): boolean =>
  plan.intervals.filter(each => isPinned(each) && each.kind === kind).length > FOLD_ABOVE;

export interface Arrangement {
  rows: Row[];
  unit: number;
}

export const isPinned = (interval: IntervalRecord): boolean => interval.pinned !== null || interval.first < 0;

/** Rows from top to bottom: pinned strips by kind, then slots, largest first, lower where that makes room for all.
 * `toScale`: pinned ones in true height. */
export function arrange(plan: Plan, toScale: boolean, open: ReadonlySet<string>): Arrangement {
  const whole = rowsOf(plan, toScale, open, TALLEST),
    over = whole.rows.reduce((sum, row) => sum + row.height + (row.kind ? 2 : 4), 0) - ROOM;
  const slots = whole.rows.filter(row => row.height > LEAST).length;
  if (over <= 0 || over > slots * (TALLEST - LEAST)) return whole;
  return rowsOf(plan, toScale, open, Math.max(LEAST, TALLEST - Math.ceil(over / slots)));
}

function rowsOf(plan: Plan, toScale: boolean, open: ReadonlySet<string>, tallest: number): Arrangement {
  const pinned = plan.intervals
    .map((interval, index) => ({ interval, index }))
    .filter(({ interval }) => isPinned(interval));
  const reused = plan.slots
    .map((slot, index) => ({ slot, index, tenants: slot.tenants.filter(i => !isPinned(plan.intervals[i]!)) }))
    .filter(each => each.tenants.length > 0);
  const sizes = [
    ...reused.map(({ slot }) => slot.nbytes),
    ...(toScale ? pinned.map(({ interval }) => interval.nbytes) : []),
  ];
  const unit = tallest / sizes.reduce((a, b) => Math.max(a, b), 1);
  const tall = (nbytes: number) => Math.max(THINNEST, Math.round(nbytes * unit));
  const byKind = new Map<string, number[]>();
  for (const { interval, index } of pinned) put(byKind, interval.kind, index);
  const strips = [...byKind].flatMap(([kind, indexes]): Row[] => {
    if (!toScale && indexes.length > FOLD_ABOVE && !open.has(kind))
      return [{ label: KINDS[kind] ?? kind, height: STRIP, intervals: indexes, unit: 0, folded: true, kind }];
    return indexes.map(index => ({
      label: kind,
      height: toScale ? Math.max(STRIP, tall(plan.intervals[index]!.nbytes)) : STRIP,
      intervals: [index],
      unit: 0,
      folded: false,
      kind,
    }));
  });
  const slots = [...reused]
    .sort((a, b) => b.slot.nbytes - a.slot.nbytes)
    .map(({ slot, index, tenants }): Row => ({
      label: `slot ${index} · ${bytes(slot.nbytes)}`,
      height: tall(slot.nbytes),
      intervals: tenants,
      unit,
      folded: false,
      kind: "",
    }));
  return { rows: [...strips, ...slots], unit };
}
