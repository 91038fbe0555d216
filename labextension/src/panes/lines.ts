// The lines of a document as text: one per node or dispatch.

import type { DispatchRecord, GraphDoc } from "../doc/doc.ts";
import { bytes, cell } from "../doc/format.ts";
import { nodeText } from "../doc/nodetext.ts";
import { bytesMoved } from "./tabcounts.ts";

export interface Line {
  entity: string | null;
  text: string;
}

export const stageLines = (doc: GraphDoc, at: number): (() => Line)[] => {
  const stage = doc.stages[at]!;
  const outputs = () =>
    stage.outputs.map(({ node, name, of }) => `%${node}${name || of ? ` "${name || `∂${of}`}"` : ""}`).join(", ");
  return [
    ...stage.nodes.map((_, i) => () => ({ entity: `node:${at}.${i}`, text: nodeText(doc, stage, i) })),
    () => ({ entity: null, text: `outputs: ${outputs()}` }),
  ];
};

export const planLines = (doc: GraphDoc): (() => Line)[] => {
  const plan = doc.plan!,
    names = (indexes: number[]) => indexes.map(index => plan.intervals[index]?.name || `#${index}`).join(", ");
  const line = (dispatch: DispatchRecord, k: number): string => {
    const { phase, label, reads, writes, flops } = dispatch;
    const head = `${String(k).padStart(3)}  ${phase.padEnd(9)} ${label}`;
    const figures = `${cell(flops / 1e6)} MFLOP, ${bytes(bytesMoved(dispatch))}`;
    return `${head}  (${names(reads)}) → ${names(writes)}  ${figures}`;
  };
  return plan.dispatches.map((dispatch, k) => () => ({ entity: `dispatch:${k}`, text: line(dispatch, k) }));
};

const PLANNED = ["plan", "arena", "kernels", "session"];
const ROLES: Record<string, string> = { opt: "optimized", grad: "derivative" };

/** The text that stands for a view: of its plan, or of its stage. */
export function linesOf(doc: GraphDoc, twin: string): (() => Line)[] {
  if (PLANNED.includes(twin) && doc.plan) return planLines(doc);
  const at = doc.stages.findIndex(({ role }) => role === ROLES[twin]);
  return doc.stages.length > 0 ? stageLines(doc, Math.max(0, at)) : [];
}
