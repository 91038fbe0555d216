// Breakpoints of a page, in the grammar of gdlab/session/run/breakpoints.py.

import type { RunSection } from "../doc/records.ts";
import { natural, parseTest, type Condition } from "./conditions.ts";

export interface Stop {
  id: number;
  text: string;
  /** The dispatches behind which the event may happen, if it is one inside a step. */
  dispatches: readonly number[];
  kind: string;
  number: number;
  name: string;
  test: Condition | null;
  hits: number;
  /** The steps that were over at the last hit, and its dispatch. */
  last: [step: number, dispatch: number];
}

const FORMS = "node NAME, kernel LABEL, dispatch K, write NAME, step N, nonfinite [NAME], loss rises N (K ≥ 0, N ≥ 1)";

/** `bufferOf`: the buffer that a name means; it raises if there is none. */
export function parseStop(id: number, text: string, run: RunSection, bufferOf: (name: string) => number): Stop {
  const [event = "", asked] = text.split(/\sif\s(.*)/s),
    [kind = "", ...rest] = event.trim().split(/\s+/),
    name = rest.join(" ").replace(/^(["'])(.*)\1$/, "$2"),
    { dispatches } = run.plan;
  const refuse = (wanted: string): never => {
    throw new Error(`break: given ${text.trim() || "nothing"}, wanted ${wanted}`);
  };
  const writers = (buffer: number) => dispatches.flatMap(({ writes }, k) => (writes.includes(buffer) ? [k] : []));
  // A leaf is there before the first dispatch.
  const seen = (buffer: number) => [
    ...(["parameter", "input"].includes(run.plan.buffers[buffer]!.kind) ? [0] : []),
    ...writers(buffer),
  ];
  const found = ((): { at: number[]; number: number } => {
    const number = natural(rest.at(-1) ?? "");
    switch (kind) {
      case "dispatch":
        return number < dispatches.length ? { at: [number], number } : refuse(`dispatch 0 … ${dispatches.length - 1}`);
      case "kernel": {
        const at = dispatches.flatMap(({ label }, k) => (label === name || label.split("[")[0] === name ? [k] : []));
        return at.length > 0 ? { at, number: 0 } : refuse("a kernel of the plan");
      }
      case "node":
        return { at: writers(bufferOf(name)).slice(0, 1), number: 0 };
      case "write": {
        const at = writers(bufferOf(name));
        return at.length > 0 ? { at, number: 0 } : refuse("a tensor that a step writes");
      }
      case "nonfinite":
        return { at: name ? seen(bufferOf(name)) : dispatches.map((_, k) => k), number: 0 };
      case "step":
        return number >= 1 ? { at: [], number } : refuse(FORMS);
      case "loss":
        return rest[0] === "rises" && number >= 1 ? { at: [], number } : refuse(FORMS);
      default:
        return refuse(FORMS);
    }
  })();
  const test = asked === undefined ? null : parseTest(asked, run.loss !== null);
  test?.tensors.forEach(bufferOf);
  const shown = text.trim().replace(/\s+/g, " ");
  return { id, text: shown, dispatches: found.at, kind, number: found.number, name, test, hits: 0, last: [-1, -1] };
}
