// Every message between the page and the kernel: generated from gdlab/jupyter/messages.py by messages_ts.py.

export const PROTOCOL = 1;

export type State = "none" | "ready" | "running" | "paused" | "failed" | "closed";
export type CommandName =
  | "open"
  | "step"
  | "run"
  | "pause"
  | "resume"
  | "stop"
  | "reset"
  | "speed"
  | "watch"
  | "break"
  | "clear"
  | "back"
  | "value"
  | "why"
  | "optimize"
  | "check"
  | "measure"
  | "trace"
  | "cell"
  | "sweep";
export type EventKind = "nonfinite" | "break" | "pause" | "error" | "note";

export interface Hello {
  type: "hello";
  version: number;
  host: string;
  views: number;
  have: string | null;
}

export interface Command {
  type: "command";
  name: CommandName;
  args: Record<string, unknown>;
  req: number;
}

export interface Ack {
  type: "ack";
  rev: number;
  frame: number;
}

export interface Visible {
  type: "visible";
  views: number;
  shown: boolean;
}

export interface Core {
  type: "core";
  req: number;
}

export interface Doc {
  type: "doc";
  rev: number;
  doc: Record<string, unknown>;
}

export interface ReplyError {
  kind: string;
  message: string;
  about: string | null;
}

export interface Reply {
  type: "reply";
  req: number;
  ok: boolean;
  result: Record<string, unknown> | null;
  error: ReplyError | null;
}

export interface Counters {
  steps: number;
  dispatches: number;
  dispatches_per_step: number;
  submissions: number;
  groups: number;
  bytes_up: number;
  bytes_down: number;
  steps_per_second: number;
}

export interface WatchRow {
  id: number;
  name: string;
  value: string;
  step: number;
  min: number | string;
  max: number | string;
  nonfinite: number;
  course: (number | string)[];
}

export interface NormRow {
  name: string;
  about: string;
  value: number | string;
  step: number;
  first: number;
  course: (number | string)[];
}

export interface BreakRow {
  id: number;
  text: string;
  hits: number;
}

export interface Histogram {
  low: number | string;
  high: number | string;
  counts: number[];
}

export interface Thumbnail {
  rows: number;
  cols: number;
  low: number;
  high: number;
  data: string;
}

export interface TensorValue {
  name: string;
  about: string;
  type: string;
  shape: number[];
  step: number;
  dispatch: number;
  place: string;
  slice: number[];
  n: number;
  min: number | string;
  max: number | string;
  mean: number | string;
  std: number | string;
  l2: number | string;
  nan: number;
  inf: number;
  zero: number;
  histogram: Histogram;
  thumbnail: Thumbnail;
}

export interface TensorWindow {
  row: number;
  col: number;
  rows: string[][];
}

export interface TensorDifference {
  to: string;
  error: number | string;
  ulp: number | string;
  at: number[];
  got: number | string;
  want: number | string;
  unlike: number;
  text: string;
}

export interface Looked {
  name: string;
  about: string;
  type: string;
  shape: number[];
  step: number;
  dispatch: number;
  place: string;
  slice: number[];
  n: number;
  min: number | string;
  max: number | string;
  mean: number | string;
  std: number | string;
  l2: number | string;
  nan: number;
  inf: number;
  zero: number;
  histogram: Histogram;
  thumbnail: Thumbnail;
  window: TensorWindow;
  difference: TensorDifference | null;
  why: string;
  read: number;
  text: string;
}

export interface Metrics {
  type: "metrics";
  frame: number;
  state: State;
  reason: string;
  step: number;
  wanted: number;
  loss: ((number | string)[])[];
  counters: Counters;
  memory: string;
  device: string;
  optimizer: string;
  watch: string;
  dispatch: number;
  place: string;
  under_way: number;
  timed: boolean;
  norms: NormRow[] | null;
  norms_left_out: number;
  watches: WatchRow[];
  breaks: BreakRow[];
  engines: Record<string, unknown> | null;
  full: boolean;
}

export interface Sweep {
  type: "sweep";
  section: Record<string, unknown>;
}

export interface Event {
  type: "event";
  step: number;
  kind: EventKind;
  about: string | null;
  text: string;
}

export type ToKernel = Hello | Command | Ack | Visible | Core;
export type ToPage = Doc | Reply | Metrics | Sweep | Event;
