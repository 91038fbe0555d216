// The records of a GraphDoc (docs/graphdoc.md): generated from gdlab/view/document by records_ts.py.

import type { Event, TensorValue } from "../live/messages.ts";

export type Json = Record<string, unknown>;

/** The part of an operand that an invocation reads. */
export type Place = "same" | "row" | "column" | "scalar" | "a" | "b" | "keys" | "moved" | "window" | "any";

/** The reason why a node has no image in the next stage. */
export interface Fate {
  kind: "folded" | "literal" | "operand" | "aliased" | "fused" | "dead" | "leaf";
  into: string | null;
  reason: string;
}

/** A conflict of two dispatches over a buffer. */
export interface Hazard {
  from: number;
  to: number;
  interval: number;
  hazard: "raw" | "war" | "waw";
}

/** A node that a gradient saves, and its bytes. */
export interface Residual {
  node: number;
  nbytes: number;
}

/** A buffer that a kernel binds. */
export interface Binding {
  index: number;
  access: "read" | "read_write";
  role: string;
}

/** The part of the result that each workgroup of a kernel has (docs/graphdoc.md). */
export interface Covers {
  over: "result" | "input" | "product" | "parameters" | "pieces";
  shape: [number, number, number];
  cell: [number, number];
  per?: number;
  share?: number;
  each?: [number, number];
  flip?: 1;
  loop?: ["k" | "cell" | "keys" | "window", number, number, number, number];
  reads?: [number, Place, number, number][];
  map?: number[];
  window?: number[];
  sizes?: number[];
}

/** The types of tensors. */
export interface TypeRecord {
  text: string;
  shape: number[];
  dtype: string;
  nbytes: number;
}

/** The source lines, a row for each call. */
export interface LineRecord {
  source: number;
  line: number;
  col: number;
  end_line: number;
  end_col: number;
  stack: number[];
}

/** The nodes of a stage. */
export interface NodeRow {
  key: string;
  hash: string;
  op: string;
  family: string;
  name: string;
  label: string;
  type: number;
  inputs: number[];
  after: number[];
  attrs: Json | null;
  lane: string;
  twin: number;
  group: number;
  flags: string[];
  fate: Fate | null;
  flops: number;
  bytes_moved: number;
  cost_seconds: number;
}

/** The outputs of a stage. */
export interface OutputRecord {
  node: number;
  name: string;
  kind: string;
  of: string;
}

/** The groups of a stage; may be empty. */
export interface GroupRow {
  key: string;
  parent: number;
  label: string;
  kind: string;
  repeat: number;
}

/** The boxes of a layout, a row for each node: columns of the layout itself. */
export interface BoxRow {
  x: number;
  y: number;
  w: number;
  row: number;
}

/** The pills of a layout. */
export interface PillRecord {
  leaf: number;
  reader: number;
  x: number;
  y: number;
  w: number;
  echo: number;
  via: number[];
}

/** The edges of a layout. */
export interface EdgeRecord {
  a: number;
  b: number;
  kind: string;
  bends: number[];
}

/** The rails of a layout. */
export interface RailRecord {
  a: number;
  b: number;
  track: number;
  x: number;
  y0: number;
  y1: number;
}

/** The wires of a layout: values saved for the backward pass. */
export interface WireRecord {
  a: number;
  b: number;
  points: number[];
}

/** The lanes of a layout. */
export interface LaneRecord {
  index: number;
  title: string;
  x: number;
  width: number;
}

/** The steps of an optimizer's pass. */
export interface RewriteStep {
  rule: string;
  label: string;
  at: string[];
  bindings: Json | null;
  removed: string[];
  added: Json[] | null;
  rewired: unknown[] | null;
  cost_before: number;
  cost_after: number;
  iteration: number | null;
}

/** The steps of a differentiation, in reverse order over forward ops. */
export interface DiffStep {
  node: number;
  line: number;
  rule: string;
  cotangents: number[];
  added: number[];
  accumulated: number[];
  residuals: Residual[] | null;
  reason: string;
}

/** The e-nodes that an iteration added. */
export interface ENodeRow {
  class: string;
  op: string;
  family: string;
  children: string[];
  attrs: Json | null;
  label: string;
  cost: number;
  more: number;
  chosen: number;
}

/** The e-classes of the end. */
export interface EClassRow {
  name: string;
  type: number;
  nodes: number[];
  made: number;
}

/** The different kernels of a plan. */
export interface KernelRecord {
  key: string;
  entry: string;
  family: string;
  wgsl: string;
  workgroup_size: number[];
  constants: Json | null;
  bindings: Binding[] | null;
  variant: string;
  variant_reason: string;
  covers: Covers | null;
  parts: Record<string, number[]> | null;
  why: string;
}

/** The dispatches of a plan, in order. */
export interface DispatchRecord {
  label: string;
  phase: string;
  kernel: number;
  workgroups: number[];
  reads: number[];
  writes: number[];
  group: number;
  flops: number;
  bytes_read: number;
  bytes_written: number;
  family: string;
}

/** The barrier groups of a plan. */
export interface GroupRecord {
  start: number;
  stop: number;
  because: Hazard[] | null;
}

/** The buffers of a plan over its dispatches. */
export interface IntervalRecord {
  name: string;
  node: number;
  kind: string;
  slot: number;
  offset: number;
  nbytes: number;
  padded: number;
  first: number;
  last: number;
  first_group: number;
  last_group: number;
  pinned: string | null;
  alias_of: number;
  family: string;
}

/** The ranges of memory of a plan. */
export interface SlotRecord {
  nbytes: number;
  tenants: number[];
}

/** A text that has lines of the document. */
export interface SourceRecord {
  id: string;
  kind: "cell" | "file" | "generated";
  name: string;
  language: string;
  text: string;
  first_line: number;
}

/** The Python source of a rule. */
export interface RuleSource {
  name: string;
  line: number;
  text: string;
  math?: string;
}

/** A rule in figures. */
export interface RuleStat {
  id: string;
  label: string;
  tag: "exact" | "rounding" | "reassoc" | "approx";
  phases: string[];
  doc: string;
  matched: number;
  fired: number;
  created: number;
  used: number;
  seconds: number;
  enabled: boolean;
}

/** A rule or fusion that was not applied. */
export interface Missed {
  label: string;
  node: number;
  reason: string;
  detail: string;
  text: string;
  about: string | null;
  guard?: [string, number, string] | null;
}

/** The report of an optimizer's pass. */
export interface OptimizeReport {
  phase: string;
  engine: string;
  cost_model: string;
  stop_reason: string;
  stop_detail: string;
  outcome?: string;
  nodes_before: number;
  nodes_after: number;
  dead_nodes_removed: number;
  cost_before: number;
  cost_after: number;
  num_eclasses: number;
  num_enodes: number;
  egglog_time: number;
  extract_time: number;
  rules: RuleStat[];
  rules_fired: [string, number][];
  fusions_applied: [string, number][];
  iterations: unknown[];
  missed: Missed[];
}

/** A parameter that no gradient reaches. */
export interface ZeroGradient {
  name: string;
  reason: string;
}

/** The report of a differentiation. */
export interface DiffReport {
  wrt: string[];
  residual_bytes: number;
  zero_gradients: ZeroGradient[];
  summary: string;
}

/** The figures of the roofline that predicts a dispatch. */
export interface Machine {
  name: string;
  launch_seconds: number;
  bytes_per_second: number;
  flops_per_second: number;
}

/** The memory of a whole step in bytes; `parts`: the bytes of each kind of content, by name. */
export interface PlanMemory {
  logical_bytes: number;
  physical_bytes: number;
  peak_bytes: number;
  peak_group: number;
  padding_bytes: number;
  parameter_bytes: number;
  state_bytes: number;
  parts?: Record<string, number>;
}

/** The measured seconds per dispatch, the prediction of the roofline of `machine`, and the verdict in words. */
export interface Times {
  samples: number;
  machine: string;
  median: number[];
  p25: number[];
  p75: number[];
  predicted: number[];
  verdict: string[];
}

/** The norm of a parameter's gradient over steps. */
export interface GradientNorms {
  name: string;
  about: string | null;
  steps: number[];
  norms: (number | string)[];
}

/** The memory of a run in words. */
export interface RunMemory {
  text: string;
}

/** An engine of a run; `cells`: the texts of its row, `share`: its times in percent of the longest,     without the
 * reduction that was hidden beside steps. */
export interface EngineRow {
  late: boolean;
  cells: string[];
  share: [number, number, number];
}

/** The engines that made the steps of a run. */
export interface EnginesSection {
  fact: string;
  head: string[];
  rows: EngineRow[];
  lost: string[];
}

/** A bucket of a reduction, a row of the plan; `before`: the dispatch that it stands before. `seconds`: measured,
 * else predicted; `hidden_seconds`: of those that were measured, beside the step. */
export interface Bucket {
  before: number;
  nbytes: number;
  seconds: number;
  label: string;
  told: string;
}

/** The reduction of gradients over engines, which no dispatch of the plan makes: a row of it for each of `buckets`.
 * Seconds are predicted but for `measured_seconds`. */
export interface Allreduce {
  buckets: Bucket[];
}

/** A run of the study. `wanted`: the step count at which it is complete, of a run that ended before. */
export interface RunRecord {
  key: string;
  device: string;
  adapter: string;
  label?: string;
  seed: number | null;
  wanted?: number;
  loss: [number, number | string][];
  seconds: (number | string)[];
  dispatch_seconds?: Times;
  gradient_norms?: GradientNorms[];
  engines?: EnginesSection;
  truncated: boolean;
  counters: Record<string, number>;
  memory: RunMemory;
  events: Event[];
  values: TensorValue[];
}

/** The measured time of a step. */
export interface StepSeconds {
  samples: number;
  median: number;
  mad: number;
}

/** A study or one of its variants, in figures; `stage` is its optimized graph. */
export interface VariantRow {
  name: string;
  stage: number;
  nodes: number;
  rewrites: number;
  dispatches: number;
  groups: number;
  bytes_moved: number;
  peak_bytes: number;
  physical_bytes: number;
  step_seconds: StepSeconds | null;
}

/** A point of a sweep; `cells`: engine, steps, steps/s, loss now, lowest, time. */
export interface SweepPoint {
  state: "waiting" | "running" | "done" | "failed" | "stopped";
  hue: number;
  settings: string[];
  label: string;
  cells: string[];
  steps: number;
  wanted: number;
  loss: number | string | null;
  error: string;
  note: string;
  retries: number;
  curve: [number, number | string][];
}

/** Something that happened while a sweep went on. */
export interface SweepEvent {
  seconds: number;
  text: string;
}

/** The newest sweep of a study. */
export interface SweepSection {
  key: string;
  state: "ready" | "running" | "paused" | "done" | "stopped";
  title: string;
  fact: string;
  left: string;
  seconds: number;
  progress: number;
  keys: string[];
  range: [number, number];
  log: boolean;
  best: number;
  points: SweepPoint[];
  events: SweepEvent[];
}

/** A note, one sentence above the picture. */
export interface NoteRecord {
  level: "info" | "warning";
  text: string;
  about: string | null;
}

/** An input of a compiled graph: its buffer, its handle, and the output that feeds it after every forward. */
export interface EdgeInput {
  name: string;
  type: string;
  value: string;
  interval: number;
  handle: "gpu" | "host" | "";
  feed: number;
}

/** An output of a compiled graph: its buffer, and its place in the arena. */
export interface EdgeOutput {
  name: string;
  type: string;
  place: string;
  interval: number;
  byte_offset: number;
  nbytes: number;
}

/** The sources of the inputs of a compiled graph, and the targets of its outputs, between two forwards. */
export interface Edge {
  inputs: EdgeInput[];
  outputs: EdgeOutput[];
  extent: string;
  arena: string;
  arena_bytes: number;
  active: [number, number] | null;
  epoch: number;
  counters: Record<string, number>;
  memory: Record<string, number>;
  lines: string[];
}

/** A dispatch that a page submits: bindings in order, and behind them the scalars where it has some. */
export interface RunDispatch {
  label: string;
  kernel: number;
  workgroups: [number, number, number];
  scalars: boolean;
  bind: [number, "r" | "w"][];
  writes: number[];
}

/** A buffer of a page, at the beginning of its slot; `bound`: bytes that kernels see. */
export interface RunBuffer {
  name: string;
  kind: string;
  shape: number[];
  dtype: string;
  nbytes: number;
  bound: number;
  slot: number;
}

/** The plan that a page runs. */
export interface RunPlan {
  wgsl: string[];
  dispatches: RunDispatch[];
  buffers: RunBuffer[];
  slots: number[];
  groups: number;
  updates: number;
}

/** Uniform numbers between ± bound, by Philox. */
export interface Uniform {
  seed: number;
  stream: number;
  bound: number;
}

/** The update rule of a page; `first`: the scalars of update 1. */
export interface RunUpdate {
  rule: string;
  text: string;
  counts: boolean;
  numbers: Record<string, number>;
  first: number[];
}

/** Everything that a page needs to compute the steps itself. */
export interface RunSection {
  plan: RunPlan;
  constants: Record<string, string>;
  initial: Record<string, Initial>;
  batches: Record<string, string>[];
  inputs: Record<string, number>;
  update: RunUpdate;
  loss: number | null;
  outputs: number[];
  same: boolean;
  note: string;
  bytes: number;
}

/** The value of a stored parameter before the first step. */
export type Initial = { fill: number } | { data: string } | { uniform: Uniform };

// The meaning of absent values in each table.
export const TYPES: TypeRecord = {
  text: "",
  shape: [],
  dtype: "",
  nbytes: 0,
};
export const LINES: LineRecord = {
  source: -1,
  line: 0,
  col: -1,
  end_line: -1,
  end_col: -1,
  stack: [],
};
export const NODES: NodeRow = {
  key: "",
  hash: "",
  op: "",
  family: "",
  name: "",
  label: "",
  type: -1,
  inputs: [],
  after: [],
  attrs: null,
  lane: "forward",
  twin: -1,
  group: -1,
  flags: [],
  fate: null,
  flops: 0,
  bytes_moved: 0,
  cost_seconds: 0,
};
export const OUTPUTS: OutputRecord = {
  node: -1,
  name: "",
  kind: "user",
  of: "",
};
export const NODE_GROUPS: GroupRow = {
  key: "",
  parent: -1,
  label: "",
  kind: "",
  repeat: 1,
};
export const BOXES: BoxRow = {
  x: -1,
  y: -1,
  w: -1,
  row: -1,
};
export const PILLS: PillRecord = {
  leaf: -1,
  reader: -1,
  x: 0,
  y: 0,
  w: 0,
  echo: 0,
  via: [],
};
export const EDGES: EdgeRecord = {
  a: -1,
  b: -1,
  kind: "data",
  bends: [],
};
export const RAILS: RailRecord = {
  a: -1,
  b: -1,
  track: 0,
  x: 0,
  y0: 0,
  y1: 0,
};
export const WIRES: WireRecord = {
  a: -1,
  b: -1,
  points: [],
};
export const LANES: LaneRecord = {
  index: 0,
  title: "",
  x: 0,
  width: 0,
};
export const REWRITES: RewriteStep = {
  rule: "",
  label: "",
  at: [],
  bindings: null,
  removed: [],
  added: null,
  rewired: null,
  cost_before: 0,
  cost_after: 0,
  iteration: null,
};
export const GRADIENTS: DiffStep = {
  node: -1,
  line: -1,
  rule: "",
  cotangents: [],
  added: [],
  accumulated: [],
  residuals: null,
  reason: "",
};
export const ENODES: ENodeRow = {
  class: "",
  op: "",
  family: "",
  children: [],
  attrs: null,
  label: "",
  cost: NaN,
  more: NaN,
  chosen: 0,
};
export const ECLASSES: EClassRow = {
  name: "",
  type: -1,
  nodes: [],
  made: -1,
};
export const KERNELS: KernelRecord = {
  key: "",
  entry: "",
  family: "",
  wgsl: "",
  workgroup_size: [],
  constants: null,
  bindings: null,
  variant: "",
  variant_reason: "",
  covers: null,
  parts: null,
  why: "",
};
export const DISPATCHES: DispatchRecord = {
  label: "",
  phase: "",
  kernel: -1,
  workgroups: [],
  reads: [],
  writes: [],
  group: -1,
  flops: 0,
  bytes_read: 0,
  bytes_written: 0,
  family: "",
};
export const BARRIERS: GroupRecord = {
  start: 0,
  stop: 0,
  because: null,
};
export const INTERVALS: IntervalRecord = {
  name: "",
  node: -1,
  kind: "",
  slot: -1,
  offset: 0,
  nbytes: 0,
  padded: 0,
  first: -1,
  last: -1,
  first_group: -1,
  last_group: -1,
  pinned: null,
  alias_of: -1,
  family: "",
};
export const SLOTS: SlotRecord = {
  nbytes: 0,
  tenants: [],
};
