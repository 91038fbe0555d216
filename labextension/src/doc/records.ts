// The records of a GraphDoc (docs/graphdoc.md), as the accessor in doc.ts gives them.

import type { Kept } from "../live/kept.ts";
import type { Event, TensorValue } from "../live/messages.ts";

export type Json = Record<string, unknown>;
export type RawTable = { count?: number } & Json;

/** The content of an output: the document, or its gzip (base64) with the study's key beside it. */
export type Payload = Json;

export interface TypeRecord {
  text: string;
  shape: number[];
  dtype: string;
  nbytes: number;
}
export interface LineRecord {
  source: number;
  line: number;
  col: number;
  end_line: number;
  end_col: number;
  stack: number[];
}
export interface Fate {
  kind: string;
  into: string | null;
  reason: string;
}
export interface NodeRecord {
  key: string;
  hash: string;
  op: string;
  family: string;
  name: string;
  /** The name as written; `name` is what can be drawn of it. */
  raw: string;
  /** The text for it in a picture, as written, without the path of its module; "": the name. */
  label: string;
  type: number;
  inputs: number[];
  after: number[];
  attrs: Json | null;
  lane: string;
  twin: number;
  group: number;
  /** What stands in the place of the type: of a closed group what is in it, else the node's value (`--values`). */
  told?: string;
  /** The lines of the value, and of the gradient below it; and both in full. */
  lines?: readonly string[];
  /** How many of the lines are of the value. */
  own?: number;
  figures?: string;
  flags: string[];
  fate: Fate | null;
  flops: number;
  bytes_moved: number;
  cost_seconds: number;
}
export interface OutputRecord {
  node: number;
  name: string;
  kind: string;
  of: string;
}
export interface PillRecord {
  leaf: number;
  reader: number;
  x: number;
  y: number;
  w: number;
  echo: number;
  /** The shape ops between the leaf and its reader; the pill stands for the last of them. */
  via: number[];
}
export interface EdgeRecord {
  a: number;
  b: number;
  kind: string;
  bends: number[];
}
export interface RailRecord {
  a: number;
  b: number;
  track: number;
  x: number;
  y0: number;
  y1: number;
}
export interface WireRecord {
  a: number;
  b: number;
  points: number[];
}
export interface LaneRecord {
  index: number;
  title: string;
  x: number;
  width: number;
}
export interface BoxRecord {
  x: number;
  y: number;
  w: number;
  /** Its height, where that is not the one of a box with two lines. */
  h?: number;
  row: number;
}
/** Rows that a rewrite closed: the bracket stands at x, its words from `left` on. */
export interface Hole {
  entity: string;
  left: number;
  x: number;
  top: number;
  bottom: number;
  fact: string;
  rule: string;
  told: string;
}
export interface Layout {
  engine: string;
  density: number;
  boxes: BoxRecord[];
  pills: PillRecord[];
  edges: EdgeRecord[];
  rails: RailRecord[];
  wires: WireRecord[];
  lanes: LaneRecord[];
  width: number;
  height: number;
  /** Of a layout whose rows stand beside those of another. */
  holes?: readonly Hole[];
}
export interface GroupRow {
  key: string;
  parent: number;
  label: string;
  kind: string;
  repeat: number;
}
export interface Stage {
  groups: GroupRow[];
  index: number;
  key: string;
  role: string;
  title: string;
  parent: number;
  nodes: NodeRecord[];
  outputs: OutputRecord[];
  gradients: ReadonlyMap<number, string>;
  users: number[][];
  layout: Layout | null;
  /** Of a picture that is no stage of the document: what each node stands for. */
  entities?: string[];
}
export interface SourceRecord {
  id: string;
  kind: string;
  name: string;
  language: string;
  text: string;
  first_line: number;
}
export interface RuleSource {
  name: string;
  line: number;
  text: string;
  /** Of a gradient rule: its line of mathematics. */
  math?: string;
}
export interface RuleStat {
  id: string;
  label: string;
  tag: string;
  phases: string[];
  doc: string;
  matched: number;
  fired: number;
  created: number;
  used: number;
  seconds: number;
  enabled: boolean;
}
export interface Missed {
  label: string;
  node: string | number;
  reason: string;
  detail: string;
  text: string;
  about: string | null;
  /** The Python of the condition that refused: file, line, text. */
  guard?: [string, number, string] | null;
}
export interface OptimizeReport {
  phase: string;
  engine: string;
  cost_model: string;
  stop_reason: string;
  stop_detail: string;
  outcome: string;
  nodes_before: number;
  nodes_after: number;
  cost_before: number;
  cost_after: number;
  egglog_time: number;
  extract_time: number;
  rules: RuleStat[];
  missed: Missed[];
  iterations: unknown[];
}
export interface DiffReport {
  wrt: string[];
  residual_bytes: number;
  zero_gradients: unknown;
}
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
export interface DiffStep {
  node: number;
  line: number;
  rule: string;
  cotangents: number[];
  added: number[];
  accumulated: number[];
  residuals: { node: number; nbytes: number }[] | null;
  reason: string;
}
export interface Pass {
  index: number;
  key: string;
  role: string;
  from: number;
  to: number;
  report: Json;
  options: Json;
  seconds: number;
  sources: Record<string, RuleSource>;
  rewrites: RewriteStep[];
  /** The growth of the e-graph, iteration by iteration, and its classes at the end; null if not recorded. */
  deltas: Json[] | null;
  classes: RawTable | null;
  diffs: DiffStep[];
}
export interface KernelRecord {
  key: string;
  entry: string;
  family: string;
  wgsl: string;
  workgroup_size: number[];
  constants: Json | null;
  bindings: { index: number; access: string; role: string }[] | null;
  variant: string;
  variant_reason: string;
  covers: Covers | null;
  parts: Record<string, number[]> | null;
  why: string;
}
/** Which part of the result each workgroup of a kernel has (docs/graphdoc.md). */
export interface Covers {
  over: "result" | "input" | "product" | "parameters" | "pieces";
  shape: [batch: number, rows: number, columns: number];
  cell: [rows: number, columns: number];
  per?: number;
  share?: number;
  each?: [rows: number, columns: number];
  flip?: number;
  loop?: [over: "k" | "cell" | "keys" | "window", length: number, step: number, split: number, side: number];
  reads?: [operand: number, place: string, rows: number, columns: number][];
  map?: number[];
  window?: number[];
  sizes?: number[];
}
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
export interface Hazard {
  from: number;
  to: number;
  interval: number;
  hazard: string;
}
export interface GroupRecord {
  start: number;
  stop: number;
  because: Hazard[] | null;
}
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
export interface SlotRecord {
  nbytes: number;
  tenants: number[];
}
/** Bytes of a whole step; `parts`: what they hold, by name. */
export type PlanMemory = Partial<Record<Sizes, number>> & { parts?: Record<string, number> };
type Sizes =
  | "logical_bytes"
  | "physical_bytes"
  | "peak_bytes"
  | "peak_group"
  | "padding_bytes"
  | "parameter_bytes"
  | "state_bytes";

export interface Plan {
  kernels: KernelRecord[];
  dispatches: DispatchRecord[];
  groups: GroupRecord[];
  intervals: IntervalRecord[];
  slots: SlotRecord[];
  memory: PlanMemory;
  updates: number;
  stage: number;
  optimizer: string | null;
  /** The figures of the roofline that predicts them. */
  machine: Machine | null;
  /** The times of the dispatches when they were measured last. */
  times: Times | null;
  /** The fusions that the plan did not make. */
  missed: Missed[];
  /** The reduction of gradients over engines, where a run made it or a prediction has it. */
  allreduce: Allreduce | null;
}
export interface Machine {
  launch_seconds: number;
  bytes_per_second: number;
  flops_per_second: number;
}
/** Seconds per dispatch; what the roofline of `machine` predicts, and the verdict in words. */
export interface Times {
  samples: number;
  machine: string;
  median: number[];
  p25: number[];
  p75: number[];
  predicted: number[];
  verdict: string[];
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
  step_seconds: { samples: number; median: number; mad: number } | null;
}
/** A point of a sweep; `cells`: engine, steps, steps/s, loss now, lowest, time. A loss that is not finite is a word. */
export interface SweepPoint {
  state: string;
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
  curve: [step: number, loss: number | string][];
}
export interface SweepSection {
  key: string;
  state: string;
  title: string;
  fact: string;
  left: string;
  seconds: number;
  progress: number;
  keys: string[];
  range: [low: number, high: number];
  log: boolean;
  best: number;
  points: SweepPoint[];
  events: { seconds: number; text: string }[];
}
/** The mean of all gradients over engines, as a dispatch in words; `before`: the dispatch that it stands before. */
export interface Allreduce {
  before: number;
  nbytes: number;
  seconds: number;
  label: string;
  told: string;
}
/** An engine of a run, as texts; `share`: its time in steps, reduction and waiting, in percent of the longest. */
export interface EngineRow {
  cells: string[];
  late: boolean;
  share: number[];
}
export interface EnginesSection {
  fact: string;
  head: string[];
  rows: EngineRow[];
  lost: string[];
}
export interface RunRecord {
  key: string;
  device: string;
  adapter: string;
  seed: unknown;
  label?: string;
  loss: unknown[];
  counters: Record<string, number>;
  memory: { text?: string };
  events?: Event[];
  values?: TensorValue[];
  engines?: EnginesSection;
  gradient_norms?: { name: string; about: string | null; steps: number[]; norms: unknown[] }[];
}
export interface RawLink {
  a: string;
  b: string;
  out: { start: number[]; ids: number[] };
  back: { start: number[]; ids: number[] };
}
export interface NoteRecord {
  level: string;
  text: string;
  about: string | null;
}
export interface OverlayRecord {
  id: string;
  label: string;
  unit?: string;
  aggregate?: "sum" | "max" | "mean" | "none";
  stage: number;
  values: Record<string, unknown>;
}
export interface ViewState extends Kept {
  engine?: string | null;
  show?: string[];
  overlay?: string | null;
  around?: string | null;
  depth?: number | null;
  diff?: [number, number] | null;
  /** The variant that was made last here: the diff shows it. */
  variant?: string | undefined;
  select?: string | null;
  height?: number | null;
  /** Whether a person chose the height: the panes have it, whatever is in them. */
  tall?: boolean;
}

/** An input of a compiled graph: its buffer, its handle, and the output that replaces its value after every forward. */
export interface EdgeInput {
  name: string;
  type: string;
  /** Where its value comes from in the next forward, in words. */
  value: string;
  interval: number;
  handle: "gpu" | "host" | "";
  /** -1: none. */
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
/** Where inputs of a compiled graph come from and outputs go, between two forwards. */
export interface Edge {
  inputs: EdgeInput[];
  outputs: EdgeOutput[];
  extent: string;
  arena: string;
  arena_bytes: number;
  /** The active entries of the bucket axes, and all. */
  active: [number, number] | null;
  epoch: number;
  counters: Record<string, number>;
  memory: Record<string, number>;
}
export interface GraphDoc {
  id: string;
  study: string | null;
  rev: number;
  title: string;
  summary: string;
  producer: Json;
  types: TypeRecord[];
  sources: SourceRecord[];
  lines: LineRecord[];
  stages: Stage[];
  passes: Pass[];
  plan: Plan | null;
  edge: Edge | null;
  links: RawLink[];
  wgslBase: number[];
  runs: RunRecord[];
  variants: VariantRow[];
  sweep: SweepSection | null;
  notes: NoteRecord[];
  overlays: OverlayRecord[];
  /** Everything that a page needs to compute the steps itself; null in most documents. */
  run: RunSection | null;
  view: ViewState | null;
}

// the `run` section: what a page computes with
export interface RunBuffer {
  name: string;
  kind: string;
  shape: number[];
  dtype: string;
  nbytes: number;
  bound: number;
  slot: number;
}
export interface RunDispatch {
  label: string;
  kernel: number;
  workgroups: [number, number, number];
  scalars: boolean;
  bind: [buffer: number, access: "r" | "w"][];
  writes: number[];
}
export type Initial =
  | { fill: number }
  | { data: string }
  | { uniform: { seed: number; stream: number; bound: number } };

export interface RunSection {
  plan: {
    wgsl: string[];
    dispatches: RunDispatch[];
    buffers: RunBuffer[];
    slots: number[];
    groups: number;
    updates: number;
  };
  constants: Record<string, string>;
  initial: Record<string, Initial>;
  batches: Record<string, string>[];
  inputs: Record<string, number>;
  update: { rule: string; text: string; counts: boolean; numbers: Record<string, number>; first: number[] };
  loss: number | null;
  outputs: number[];
  /** Whether dispatches and buffers have the numbers that they have in the document's own plan. */
  same: boolean;
  note: string;
  bytes: number;
}
