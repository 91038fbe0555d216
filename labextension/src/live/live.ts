// The live session as data: messages of the kernel in, one record out that the session panel draws. Pure.

import { number, type EnginesSection, type SweepSection } from "../doc/doc.ts";
import type { BreakRow, CommandName, Counters, Event, Metrics, NormRow, State, WatchRow } from "./messages.ts";

export type Point = readonly [step: number, loss: number];

export interface Live {
  state: State;
  reason: string;
  step: number;
  wanted: number;
  frame: number;
  points: readonly Point[];
  counters: Counters;
  memory: string;
  device: string;
  optimizer: string;
  watch: string;
  dispatch: number;
  place: string;
  /** A sample of the dispatches that a run goes through, −1 where none runs. */
  under_way: number;
  /** Whether the run ends by the clock; then `wanted` is the number of steps so far. */
  timed: boolean;
  norms: readonly NormRow[];
  norms_left_out: number;
  watches: readonly WatchRow[];
  breaks: readonly BreakRow[];
  /** The engines of the newest run over several. */
  engines: EnginesSection | null;
  events: readonly Event[];
  error: string;
  /** The newest state of the study's sweep; null until the kernel sends one. */
  sweep: SweepSection | null;
}

const NO_COUNTERS: Counters = {
  steps: 0,
  dispatches: 0,
  dispatches_per_step: 0,
  submissions: 0,
  groups: 0,
  bytes_up: 0,
  bytes_down: 0,
  steps_per_second: 0,
};

/** What frames leave out where there is nothing of it. */
const SOME = {
  under_way: -1,
  timed: false,
  norms_left_out: 0,
  watches: [],
  breaks: [],
};

export const noSession: Live = {
  ...SOME,
  state: "none",
  reason: "",
  step: 0,
  wanted: 0,
  frame: -1,
  points: [],
  counters: NO_COUNTERS,
  memory: "",
  device: "",
  optimizer: "",
  watch: "",
  dispatch: -1,
  place: "",
  norms: [],
  engines: null,
  events: [],
  error: "",
  sweep: null,
};

const MOST_POINTS = 8000,
  MOST_EVENTS = 50;

/** The lowest and the highest point, in order of steps. */
export function extremes(points: readonly Point[]): Point[] {
  const low = points.reduce((a, b) => (b[1] < a[1] ? b : a)),
    high = points.reduce((a, b) => (b[1] >= a[1] ? b : a));
  return low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low];
}

/** Thin out points: each bucket of four keeps its lowest and highest, and the last point stays, so the curve looks the
 * same. */
export function thinned(points: readonly Point[]): readonly Point[] {
  if (points.length <= MOST_POINTS) return points;
  const kept: Point[] = [];
  for (let i = 0; i < points.length - 1; i += 4) {
    kept.push(...extremes(points.slice(i, Math.min(i + 4, points.length - 1))));
  }
  return [...kept, points.at(-1)!];
}

/** Old and new points in order of steps; a step that comes twice (a frame sent again) is kept once. */
export function merged(old: readonly Point[], fresh: readonly Point[]): readonly Point[] {
  if (fresh.length === 0) return old;
  const last = old.at(-1)?.[0] ?? -Infinity;
  if (fresh.every(([step], i) => step > (fresh[i - 1]?.[0] ?? last))) return thinned([...old, ...fresh]);
  const bySteps = new Map([...old, ...fresh].map(point => [point[0], point]));
  return thinned([...bySteps.values()].sort((a, b) => a[0] - b[0]));
}

const readPoints = (loss: unknown[]): Point[] =>
  loss.map(each => {
    const [step, value] = each as [unknown, unknown];
    return [number(step), number(value)] as const;
  });

/** Take in a metrics frame; a frame that was overtaken only adds points, because its other figures are older than those
 * shown. */
export function withMetrics(live: Live, metrics: Metrics): Live {
  const { type: _, loss, full, norms, counters, engines, ...told } = metrics;
  const fresh = readPoints(loss);
  if (!full && told.frame <= live.frame) return { ...live, points: merged(live.points, fresh) };
  return {
    ...live,
    ...SOME,
    ...told,
    norms: norms ?? (full ? [] : live.norms),
    engines: (engines ?? null) as EnginesSection | null,
    points: merged(full ? [] : live.points, fresh),
    counters: { ...NO_COUNTERS, ...counters },
  };
}

export const withEvent = (live: Live, event: Event): Live => ({
  ...live,
  events: [...live.events, event].slice(-MOST_EVENTS),
});

/** The commands that act in each state (view.md 10.1). Without a session Step and Run open one. */
const ENABLED: Record<State, readonly CommandName[]> = {
  none: ["step", "run"],
  ready: ["step", "run", "reset", "value"],
  running: ["pause", "stop"],
  paused: ["step", "run", "resume", "stop", "reset", "value"],
  failed: ["reset"],
  closed: [],
};

const WHY: Record<State, string> = {
  none: "no session yet",
  ready: "nothing is running",
  running: "the session is running",
  paused: "the session is paused",
  failed: "the session has failed",
  closed: "the session is closed",
};

/** Return null if the command acts now, else the reason in words. */
export function refusal(state: State, connected: boolean, command: CommandName): string | null {
  if (!connected)
    return state === "closed"
      ? `${WHY.closed}: run the cell again`
      : "no live session: run the cell, or wait until a running one ends";
  return ENABLED[state].includes(command) ? null : WHY[state];
}

export const primary = (state: State): CommandName =>
  state === "running" ? "pause" : state === "paused" ? "resume" : "run";
