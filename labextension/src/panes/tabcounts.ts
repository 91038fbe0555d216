// The counts that stand at the tabs: dispatches of a plan, rewrites.

import { passName, type DispatchRecord, type GraphDoc, type Pass, type Plan, type RewriteStep } from "../doc/doc.ts";
import { whole } from "../doc/format.ts";

export const bytesMoved = (dispatch: DispatchRecord): number => dispatch.bytes_read + dispatch.bytes_written;

/** Count the dispatches of a planand of its update: "12 + 3". */
export const planFact = (plan: Plan): string => {
  const own = plan.dispatches.length - plan.updates;
  return plan.updates > 0 ? `${whole(own)} + ${plan.updates}` : whole(own);
};

/** The steps that rewrite something; the sweep at the end only removes unread nodes. */
export const rewritesOf = (pass: Pass): { step: RewriteStep; index: number }[] =>
  pass.rewrites.map((step, index) => ({ step, index })).filter(({ step }) => step.label !== "sweep");

/** Count the rewrites on the way to the plan, without those of variants. */
export const rewriteCount = ({ passes }: GraphDoc): number =>
  passes.reduce((sum, pass) => sum + (passName(pass).startsWith("variant:") ? 0 : rewritesOf(pass).length), 0);
