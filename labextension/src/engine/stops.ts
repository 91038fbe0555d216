// Breakpoints of a page, in the grammar of gdlab/session/run/breakpoints.py; tests are one comparison.

import type { RunSection } from "../doc/records.ts";
import type { Numbers } from "./numbers.ts";

export type Figure = "min" | "max" | "mean" | "absmax" | "l2" | "nonfinite";
export interface Test {
  /** A tensor's figure, or `loss` or `step` without one. */
  figure: Figure | "loss" | "step";
  name: string;
  compared: string;
  number: number;
}
export interface Stop {
  id: number;
  text: string;
  /** Inside a step: the dispatches behind which it may happen. */
  dispatches: readonly number[];
  kind: string;
  number: number;
  name: string;
  test: Test | null;
  hits: number;
}

const FORMS = "node NAME, kernel LABEL, dispatch K, write NAME, step N, nonfinite [NAME], loss rises N";
const TEST = new RegExp(
  String.raw`^(?:(min|max|mean|absmax|l2|nonfinite)\(\s*([^()\s]+)\s*\)|(loss|step))\s*` +
    String.raw`(<=|>=|==|!=|<|>)\s*(-?[\d.]+(?:[eE][-+]?\d+)?)$`,
);

const natural = (text: string): number => (/^\d+$/.test(text) ? Number(text) : NaN);

/** `bufferOf`: the buffer that a name means; raises where it means none. */
export function parseStop(id: number, text: string, run: RunSection, bufferOf: (name: string) => number): Stop {
  const [event = "", asked] = text.split(/\sif\s(.*)/s),
    [kind = "", ...rest] = event.trim().split(/\s+/),
    name = rest.join(" ").replace(/^(["'])(.*)\1$/, "$2"),
    { dispatches } = run.plan;
  const refuse = (wanted: string): never => {
    throw new Error(`break: given ${text.trim() || "nothing"}, wanted ${wanted}`);
  };
  const writers = (buffer: number) => dispatches.flatMap(({ writes }, k) => (writes.includes(buffer) ? [k] : []));
  const found = ((): { at: number[]; number: number } => {
    const number = natural(rest.at(-1) ?? "");
    switch (kind) {
      case "dispatch":
        return number < dispatches.length ? { at: [number], number } : refuse(`dispatch 0 … ${dispatches.length - 1}`);
      case "kernel": {
        const at = dispatches.flatMap(({ label }, k) => (label === name || label.split("[")[0] === name ? [k] : []));
        return at.length > 0 ? { at, number: 0 } : refuse("kernel LABEL, one of the plan");
      }
      case "node":
        return { at: writers(bufferOf(name)).slice(0, 1), number: 0 };
      case "write":
        return { at: writers(bufferOf(name)), number: 0 };
      case "nonfinite":
        return { at: name ? writers(bufferOf(name)) : dispatches.map((_, k) => k), number: 0 };
      case "step":
        return number >= 1 ? { at: [], number } : refuse("step N, an int ≥ 1");
      case "loss":
        return rest[0] === "rises" && number >= 1 ? { at: [], number } : refuse("loss rises N, an int ≥ 1");
      default:
        return refuse(FORMS);
    }
  })();
  const parts = asked === undefined ? null : TEST.exec(asked.trim());
  if (asked !== undefined && !parts) refuse("one comparison behind if in a page, such as absmax(h) > 1e3");
  const test = parts && {
    figure: (parts[1] ?? parts[3]) as Test["figure"],
    name: parts[2] ?? "",
    compared: parts[4]!,
    number: Number(parts[5]),
  };
  if (test?.name) bufferOf(test.name);
  const shown = text.trim().replace(/\s+/g, " ");
  return { id, text: shown, dispatches: found.at, kind, number: found.number, name, test, hits: 0 };
}

const COMPARED: Record<string, (a: number, b: number) => boolean> = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "==": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

export const holds = (value: number, compared: string, number: number): boolean => COMPARED[compared]!(value, number);

/** One number of a tensor: where to begin, and each further element. A NaN stays one. */
const FIGURES: Record<Figure, [start: number, next: (sum: number, value: number) => number]> = {
  min: [Infinity, Math.min],
  max: [-Infinity, Math.max],
  absmax: [0, (a, b) => Math.max(a, Math.abs(b))],
  mean: [0, (a, b) => a + b],
  l2: [0, (a, b) => a + b * b],
  nonfinite: [0, (a, b) => a + (Number.isFinite(b) ? 0 : 1)],
};

export function figureOf(figure: Figure, data: Numbers): number {
  const [start, next] = FIGURES[figure];
  let sum = start;
  for (const value of data) sum = next(sum, value);
  return figure === "mean" ? sum / data.length : figure === "l2" ? Math.sqrt(sum) : sum;
}
