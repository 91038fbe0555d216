// Figures and sentences about dispatches: bytes moved, times, and why a barrier group begins.

import type { DispatchRecord, GroupRecord, Plan, Times } from "../doc/doc.ts";
import { seconds, whole } from "../doc/format.ts";

export const bytesMoved = (dispatch: DispatchRecord): number => dispatch.bytes_read + dispatch.bytes_written;

const WORDS: Record<string, string> = {
  raw: "reads what was written",
  war: "writes what was read",
  waw: "writes again",
};

/** Say in a sentence why a group could not be part of the one before. */
export function groupReason(plan: Plan, group: GroupRecord): string {
  const [first] = group.because ?? [];
  if (!first) return "";
  const name = plan.intervals[first.interval]?.name || `buffer ${first.interval}`;
  const more = group.because!.length - 1;
  const touches = WORDS[first.hazard] ?? "touches what was touched";
  const others = more > 0 ? `, and ${more} more` : "";
  return `dispatch ${first.to} ${touches} by dispatch ${first.from}: ${name} (${first.hazard})${others}`;
}

/** Count the dispatches of a plan, those of the update apart: "12 + 3". */
export const planFact = (plan: Plan): string => {
  const own = plan.dispatches.length - plan.updates;
  return plan.updates > 0 ? `${whole(own)} + ${plan.updates}` : whole(own);
};

/** Say how long a dispatch took, and how long was predicted. */
export function timeText({ median, p25, p75, predicted, verdict, machine }: Times, k: number): string {
  const measured = `${seconds(median[k]!)} (${seconds(p25[k]!)} \u2026 ${seconds(p75[k]!)})`;
  const nominal = machine.startsWith("a nominal") ? " of a nominal machine" : "";
  return `${measured}, predicted ${seconds(predicted[k]!)}: ${verdict[k]}${nominal}`;
}

/** Return the share of the roof that a verdict names: "31", ">100". */
export const roofShare = (verdict: string): string =>
  verdict
    .replace(/^.*, (.*) % .*$/, "$1")
    .replace("over ", ">")
    .replace("under ", "<");
