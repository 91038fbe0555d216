// The places of buffers in the arena: permanent ones in a column to scale, slots in rows beside it. Pure.

import type { IntervalRecord, Plan } from "../doc/doc.ts";
import { bytes, put } from "../doc/format.ts";

/** Heights in pixels. */
export const THINNEST = 14, // of a slot, so that a name has room
  LABEL = 14,
  ABOVE = 92; // of the slots: memory over time
const TALLEST = 72,
  LEAST = 44, // of the largest slot
  ROOM = 402, // of column and rows: what a pane of 560 px shows
  GAP = 4,
  FEW = 2; // buffers of a kind that are named from the beginning
export const KINDS: Record<string, string> = {
  state: "optimizer state",
  parameter: "parameters",
  input: "inputs",
  gradient: "gradients",
  constant: "constants",
  derived: "derived",
  output: "outputs",
};

/** A permanent buffer: its part of the column, and the place of its name (NaN: folded away). */
export interface Segment {
  index: number;
  top: number;
  height: number;
  /** The part of the height that is padding. */
  padding: number;
  label: number;
}
/** The buffers of a kind in the column; a single one has no label for the kind. */
export interface Stratum {
  kind: string;
  nbytes: number;
  top: number;
  height: number;
  open: boolean;
  label: number;
  segments: Segment[];
}
/** A slot of reusable memory. */
export interface Row {
  label: string;
  top: number;
  height: number;
  /** The least height of a tenant: with room for a name, unless tenants stand side by side. */
  least: number;
  intervals: number[];
}
export interface Arrangement {
  /** Pixels per byte, of the column and of the slots. */
  unit: number;
  strata: Stratum[];
  /** The bytes of the column. */
  always: number;
  rows: Row[];
  height: number;
}

export const isPinned = (interval: IntervalRecord): boolean => interval.pinned !== null || interval.first < 0;

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

/** Return the kinds of permanent buffers, largest first, each with its buffers, largest first. */
function kindsOf(plan: Plan): [kind: string, indexes: number[], nbytes: number][] {
  const kinds = new Map<string, number[]>();
  plan.intervals.forEach((interval, index) => isPinned(interval) && put(kinds, interval.kind, index));
  const size = (index: number) => plan.intervals[index]!.padded;
  return [...kinds]
    .map(([kind, indexes]): [string, number[], number] => [
      kind,
      indexes.sort((a, b) => size(b) - size(a) || a - b),
      sum(indexes.map(size)),
    ])
    .sort((a, b) => b[2] - a[2]);
}

/** Whether a kind shows the names of its buffers; `toggled` are the kinds that a person opened or closed. */
const shown = (kind: string, count: number, toggled: ReadonlySet<string>): boolean =>
  count <= FEW !== toggled.has(kind);

/** Place labels of 14 px beside their parts without overlaps, each as near to its part as the labels above allow. */
function strataOf(plan: Plan, unit: number, toggled: ReadonlySet<string>): Stratum[] {
  let top = 0,
    free = LABEL / 2; // the middle of the next label at the earliest
  const place = (middle: number): number => {
    const at = Math.max(free, middle);
    free = at + LABEL;
    return at;
  };
  return kindsOf(plan).map(([kind, indexes, nbytes]) => {
    const open = shown(kind, indexes.length, toggled),
      height = nbytes * unit,
      first = top,
      label = indexes.length === 1 ? NaN : place(open ? top + LABEL / 2 : top + height / 2);
    const segments = indexes.map((index): Segment => {
      const { padded, nbytes: own } = plan.intervals[index]!;
      const segment = { index, top, height: padded * unit, padding: (padded - own) * unit };
      top += segment.height;
      return { ...segment, label: open || indexes.length === 1 ? place(segment.top + segment.height / 2) : NaN };
    });
    return { kind, nbytes, top: first, height, open, label, segments };
  });
}

/** Slots from top to bottom, largest first. */
function rowsOf(plan: Plan, unit: number): Row[] {
  let top = ABOVE;
  return plan.slots
    .map((slot, index) => ({ slot, index, tenants: slot.tenants.filter(i => !isPinned(plan.intervals[i]!)) }))
    .filter(each => each.tenants.length > 0)
    .sort((a, b) => b.slot.nbytes - a.slot.nbytes)
    .map(({ slot, index, tenants }) => {
      const height = Math.max(THINNEST, Math.round(slot.nbytes * unit)),
        least = tenants.some(i => plan.intervals[i]!.offset) ? 1 : THINNEST - 2;
      const row = { label: `slot ${index} · ${bytes(slot.nbytes)}`, top, height, least, intervals: tenants };
      top += height + GAP;
      return row;
    });
}

const endOf = (rows: readonly Row[]): number => Math.max(0, ...rows.map(({ top, height }) => top + height));

/** Place column and slots at the largest scale at which the column and the highest slot have room, or a smaller one
 * that makes room for all slots. */
export function arrange(plan: Plan, toggled: ReadonlySet<string>): Arrangement {
  const always = sum(kindsOf(plan).map(([, , nbytes]) => nbytes)),
    slots = plan.slots.filter(slot => slot.tenants.some(i => !isPinned(plan.intervals[i]!))),
    largest = Math.max(0, ...slots.map(({ nbytes }) => nbytes));
  const most = Math.min(ROOM / Math.max(1, always), TALLEST / Math.max(1, largest));
  const over = endOf(rowsOf(plan, most)) - ROOM,
    tall = slots.filter(slot => slot.nbytes * most > LEAST).length,
    room = tall * (largest * most - LEAST);
  const unit = over > 0 && over <= room ? Math.max(LEAST, largest * most - Math.ceil(over / tall)) / largest : most;
  const strata = strataOf(plan, unit, toggled),
    rows = rowsOf(plan, unit);
  const labels = strata.flatMap(({ label, segments }) => [label, ...segments.map(each => each.label)]);
  const height = Math.max(always * unit, endOf(rows), ...labels.map(label => (label || 0) + LABEL / 2));
  return { unit, strata, always, rows, height: Math.ceil(height) };
}
