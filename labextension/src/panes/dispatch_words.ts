// Figures and sentences about dispatches: bytes moved, times, and why a barrier group begins.

import type { DispatchRecord, GroupRecord, Hazard, Missed, Plan, Stage, Times } from "../doc/doc.ts";
import { seconds, whole } from "../doc/format.ts";

export const bytesMoved = (dispatch: DispatchRecord): number => dispatch.bytes_read + dispatch.bytes_written;

const WORDS: Record<string, string> = {
  raw: "reads what was written",
  war: "writes what was read",
  waw: "writes again",
};

/** Say in a sentence why one dispatch waits for another. */
export function hazardText(plan: Plan, { from, to, interval, hazard }: Hazard): string {
  const name = plan.intervals[interval]?.name || `buffer ${interval}`;
  const touches = WORDS[hazard] ?? "touches what was touched";
  return `dispatch ${to} ${touches} by dispatch ${from}: ${name} (${hazard})`;
}

/** Say in a sentence why a group could not be part of the one before. */
export function groupReason(plan: Plan, { because }: GroupRecord): string {
  const [first, ...others] = because ?? [];
  return first ? `${hazardText(plan, first)}${others.length > 0 ? `, and ${others.length} more` : ""}` : "";
}

/** The ids of nodes in a refusal as the dispatches that compute them. */
const withDispatches = (detail: string, dispatchOf: (node: number) => number | null): string =>
  detail.replace(/%(\d+)/g, (id, node: string) => {
    const k = dispatchOf(Number(node));
    return k === null ? id : `dispatch ${k}`;
  });

/** Say why a fusion was not made: "not fused with relu_grad: h is also read by dispatch 9". */
export function apartText(missed: Missed, stage: Stage, dispatchOf: (node: number) => number | null): string {
  const { label, node, reason, detail } = missed,
    at = Number(node),
    second = label.split("+").pop()!,
    isSecond = (op: string) => op.replaceAll("_", "") === second.toLowerCase(),
    op = stage.users[at]?.map(each => stage.nodes[each]!.op).find(isSecond) ?? second,
    { name = "", op: own = "" } = stage.nodes[at] ?? {};
  const also = /^(%\d+) reads it in another dispatch$/.exec(detail),
    it = name || own,
    why = also && reason === "multi_use" ? `${it} is also read by ${also[1]}` : detail.replace(/\bit\b/, it);
  return `not fused with ${op}: ${withDispatches(why, dispatchOf)}`;
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
