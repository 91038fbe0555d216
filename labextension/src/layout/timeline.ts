// The plan over time: a column per barrier group, as wide as its dispatches take; arrows are the hazards. Pure.

import type { Hazard, Plan } from "../doc/doc.ts";

/** The measure of the widths: the best known one. */
export type Basis = "measured" | "predicted" | "bytes";

export interface Timeline {
  basis: Basis;
  /** Seconds, bytes, or dispatches where all are drawn alike. */
  unit: "s" | "B" | "";
  /** The start of each dispatch; at the end the sum. */
  starts: number[];
  /** The columns, as dispatches. */
  groups: { start: number; stop: number }[];
  arrows: Hazard[];
}

export const basisOf = ({ times, machine }: Plan): Basis => (times ? "measured" : machine ? "predicted" : "bytes");

/** The size of a dispatch: its median, or launch + max(bytes / bandwidth, flops / peak), or the bytes that it moves. */
function sizeOf({ times, machine, dispatches }: Plan, k: number): number {
  if (times) return times.median[k]!;
  const { flops, bytes_read, bytes_written } = dispatches[k]!,
    moved = bytes_read + bytes_written;
  if (!machine) return moved;
  return machine.launch_seconds + Math.max(moved / machine.bytes_per_second, flops / machine.flops_per_second);
}

/** Return the columns of a plan; `alike`: all dispatches equally wide, in their order. */
export function timeline(plan: Plan, alike = false): Timeline {
  const starts = [0];
  plan.dispatches.forEach((_, k) => starts.push(starts[k]! + (alike ? 1 : sizeOf(plan, k))));
  const basis = basisOf(plan);
  return {
    basis,
    unit: alike ? "" : basis === "bytes" ? "B" : "s",
    starts,
    groups: plan.groups.length > 0 ? plan.groups : [{ start: 0, stop: plan.dispatches.length }],
    arrows: plan.groups.flatMap(({ because }) => because ?? []),
  };
}
