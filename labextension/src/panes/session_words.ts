// The content of the session panel, from the live session or from the last run of the document. Pure.

import { number, type GraphDoc, type Plan } from "../doc/doc.ts";
import { bytes, plural, whole } from "../doc/format.ts";
import type { Host } from "../live/host.ts";
import { noSession, type Live, type Point } from "../live/live.ts";
import type { Earlier } from "./chart.ts";

const WATCHED: Record<string, string> = {
  off: "nothing",
  loss: "loss, every step",
  parameters: "parameters and gradients, every step",
  everything: "every buffer, before every step",
};

/** Losses as points; a plain number is that of the next step. */
const pointsOf = (loss: readonly unknown[]): Point[] =>
  loss.map((each, i) => (Array.isArray(each) ? [number(each[0]), number(each[1])] : [i + 1, number(each)]));

/** The runs that a reset ended. */
export const earlierRuns = ({ runs }: GraphDoc): Earlier[] =>
  runs.filter(run => run.label).map(run => ({ label: run.label!, points: pointsOf(run.loss) }));

/** The last run of a document, for a study whose session is gone. */
function recorded({ runs, plan }: GraphDoc): Live {
  const run = runs.at(-1);
  if (!run) return noSession;
  const { counters } = run;
  const steps = counters.steps ?? run.loss.length;
  return {
    ...noSession,
    state: "closed",
    reason: "recorded",
    step: steps,
    wanted: run.wanted ?? steps,
    points: pointsOf(run.loss),
    counters: {
      ...noSession.counters,
      ...counters,
      dispatches_per_step: plan?.dispatches.length ?? 0,
      groups: plan?.groups.length ?? 0,
    },
    device: [run.device, run.adapter].filter(Boolean).join(", "),
    memory: run.memory?.text ?? "",
    events: run.events ?? [],
    optimizer: plan?.optimizer ?? "",
    engines: run.engines ?? null,
    norms: (run.gradient_norms ?? []).map(({ name, about, steps, norms }) => ({
      name,
      about: about ?? "",
      value: norms.at(-1) as number,
      step: steps.at(-1)!,
      first: steps[0]!,
      course: norms as number[],
    })),
  };
}

/** The live session; if there is none, the last run of the document. */
export function shownSession(live: Live, host: Host | null, doc: GraphDoc): Live {
  if (live.state !== "none") return live;
  if (!host) return recorded(doc);
  return doc.runs.length > 0 ? { ...recorded(doc), state: "none" } : live;
}

/** The state of a session in words. */
export function stateText({ state, reason }: Live, host: Host | null): string {
  if (state === "paused" && reason) return `paused: ${reason}`;
  if (host?.dead) return `closed: ${reason}`;
  if (!host) return "no live session";
  if (state === "running" && reason) return `running: ${reason}`;
  return state === "none" ? "no session yet" : state;
}

/** The parts of memory in the order of gdlab/session/totals.py. */
const PARTS = "inputs,parameters,gradients,optimizer state,outputs,caches,reusable slots,scratch".split(",");

/** Say how much memory of a plan each part takes; the parts add up. */
export function memoryParts(plan: Plan | null): string {
  const found = plan?.memory.parts ?? {};
  return PARTS.flatMap(name => (found[name] ? [`${name} ${bytes(found[name])}`] : [])).join(", ");
}

/** The facts about a session, by name. */
export function sessionFacts(live: Live, parts: string): [name: string, text: string][] {
  const { device, memory, optimizer, watch, counters, state } = live;
  const { submissions, bytes_up: up, bytes_down: down, groups } = counters;
  const rows: [string, string][] = [
    ["device", device],
    ["memory", memory],
    ["of it", parts],
    ["update", state === "none" ? "" : optimizer || "no update rule: parameters do not change"],
    ["watched", WATCHED[watch] ?? watch],
    ["sent", submissions > 0 ? `${plural(submissions, "submission")}, ${bytes(up)} up, ${bytes(down)} down` : ""],
    ["groups", groups > 0 ? `${whole(groups)} barrier groups per step` : ""],
  ];
  return rows.filter(([, text]) => text);
}

/** The events that are listed: a pause at a step that has a cause of its own is left out. */
export const listedEvents = ({ events }: Live): Live["events"] =>
  events.filter(
    ({ kind, step }) => kind !== "pause" || !events.some(each => each.kind === "nonfinite" && each.step === step),
  );
