// A document as the page holds it: made by doc.ts from the records of records.ts.

import type { Kept } from "../live/kept.ts";
import type {
  Allreduce,
  BoxRow,
  DiffStep,
  DispatchRecord,
  Edge,
  EdgeRecord,
  GroupRecord,
  GroupRow,
  IntervalRecord,
  Json,
  KernelRecord,
  LaneRecord,
  LineRecord,
  Machine,
  Missed,
  NodeRow,
  NoteRecord,
  OutputRecord,
  PillRecord,
  PlanMemory,
  RailRecord,
  RewriteStep,
  RuleSource,
  RunRecord,
  RunSection,
  SlotRecord,
  SourceRecord,
  SweepSection,
  Times,
  TypeRecord,
  VariantRow,
  WireRecord,
} from "./records.ts";

export type RawTable = { count?: number } & Json;

/** The content of an output: the document, or its gzip (base64) with the study's key beside it. */
export type Payload = Json;

export interface NodeRecord extends NodeRow {
  /** The name as written; `name` is its drawable form. */
  raw: string;
  /** The text in place of the type: the content of a closed group, or the node's value (`--values`). */
  told?: string;
  /** The lines of the value, and of the gradient below it; and both in full. */
  lines?: readonly string[];
  /** The number of lines that belong to the value. */
  own?: number;
  figures?: string;
}
export interface BoxRecord extends BoxRow {
  /** The height of the box, if it has not two lines. */
  h?: number;
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
  /** The closed rows of a layout that stands beside another one. */
  holes?: readonly Hole[];
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
  /** The entity of each node, if the picture is no stage of the document. */
  entities?: string[];
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
/** The rows of level `b` that came from each row of level `a`, and the rows of `a` that each row of `b` came from. */
export interface Link {
  a: string;
  b: string;
  out: (row: number) => readonly number[];
  back: (row: number) => readonly number[];
}

export interface RawLink {
  a: string;
  b: string;
  out: { start: number[]; ids: number[]; index?: number[] };
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
  /** The variant that was made last in this view, which the diff shows. */
  variant?: string | undefined;
  select?: string | null;
  height?: number | null;
  /** Whether a person chose the height, which the panes then have in any case. */
  tall?: boolean;
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
  links: Link[];
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
