// Read a GraphDoc (docs/graphdoc.md): `await openDoc(payload)` gives typed records out of the columnar tables.

import { withAdjoints } from "./groups.ts";
import { gradientLines, valueLines } from "./valuelines.ts";
import { gunzip } from "./gunzip.ts";
import type {
  BoxRecord,
  GraphDoc,
  Layout,
  NodeRecord,
  OverlayRecord,
  Pass,
  Payload,
  Plan,
  Link,
  RawLink,
  RawTable,
  Stage,
  ViewState,
} from "./graphdoc.ts";
import {
  BARRIERS,
  BOXES,
  DISPATCHES,
  EDGES,
  GRADIENTS,
  INTERVALS,
  KERNELS,
  LANES,
  LINES,
  NODE_GROUPS,
  NODES,
  OUTPUTS,
  PILLS,
  RAILS,
  REWRITES,
  SLOTS,
  TYPES,
  WIRES,
} from "./records.ts";
import { put } from "./format.ts";
import { restored } from "./shortened.ts";
import type {
  Allreduce,
  Edge,
  Json,
  Machine,
  Missed,
  NoteRecord,
  OptimizeReport,
  RuleSource,
  RunRecord,
  RunSection,
  SourceRecord,
  SweepSection,
  Times,
  VariantRow,
} from "./records.ts";

export type * from "./graphdoc.ts";
export type * from "./records.ts";

export const FORMAT = "gdlab.graph.v1";

const NUMBERS: Record<string, number> = { nan: NaN, inf: Infinity, "-inf": -Infinity };

/** A JSON number, or one of the three words that stand for a non-finite one. */
export const number = (value: unknown): number => (typeof value === "number" ? value : (NUMBERS[String(value)] ?? NaN));

/** A row of ragged lists; a missing row is empty. */
export const rowIn = <T>({ start, ids }: { start: readonly number[]; ids: readonly T[] }, row: number): T[] =>
  ids.slice(start[row] ?? 0, start[row + 1] ?? 0);

/** Row -> value for any of the five forms that a column takes. */
export function column(table: RawTable | undefined, name: string, missing: unknown): (row: number) => unknown {
  const raw = table?.[name] as Json | unknown[] | null | undefined;
  if (raw === undefined || raw === null) return () => missing;
  if (Array.isArray(raw)) return row => raw[row] ?? missing;
  const { start, ids, words, index } = raw as { start?: number[]; ids?: number[]; words?: unknown[]; index?: number[] };
  if (start && ids) {
    const pick = words ? (id: number) => words[id] : (id: number) => id;
    return row => rowIn({ start, ids }, row).map(pick);
  }
  if (words && index) return row => words[index[row] ?? -1] ?? missing;
  return row => raw[String(row)] ?? missing;
}

const coerce = (value: unknown, missing: unknown): unknown => (typeof missing === "number" ? number(value) : value);

/** A name that changes nothing beside it: no control characters, and right-to-left runs are isolated. */
export const drawable = (name: string): string =>
  name.replace(/[\p{Cc}\p{Cf}]/gu, "\ufffd").replace(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+/g, "\u2068$&\u2069");

/** The rows of a table as records; `missing` names the columns to read, and the meaning of an absent value. */
export function records<T extends object>(value: unknown, missing: T, rows?: number): T[] {
  const raw = table(value),
    count = rows ?? Number(raw.count ?? 0);
  const names = Object.keys(missing) as (keyof T & string)[];
  const readers = names.map(name => column(raw, name, missing[name]));
  return Array.from({ length: count }, (_, row) => {
    const record = {} as Record<string, unknown>;
    names.forEach((name, i) => {
      const value = coerce(readers[i]!(row), missing[name]);
      record[name] = typeof value === "string" && (name === "name" || name === "of") ? drawable(value) : value;
    });
    return record as T;
  });
}

const NODE: NodeRecord = { ...NODES, raw: "" };

const table = (value: unknown): RawTable => (value ?? {}) as RawTable;
const list = (value: unknown): Json[] => (Array.isArray(value) ? (value as Json[]) : []);
const text = (value: unknown): string => (value === undefined || value === null ? "" : String(value));

export function readLayout(raw: Json | undefined, count: number): Layout | null {
  if (!raw) return null;
  return {
    engine: text(raw.engine),
    density: number(raw.density ?? 0),
    width: number(raw.width),
    height: number(raw.height),
    boxes: records<BoxRecord>(raw as RawTable, BOXES, count),
    pills: records(raw.pills, PILLS),
    edges: records(raw.edges, EDGES),
    rails: records(raw.rails, RAILS),
    wires: records(raw.wires, WIRES),
    lanes: records(raw.lanes, LANES),
  };
}

function usersOf(nodes: NodeRecord[]): number[][] {
  const users: number[][] = nodes.map(() => []);
  nodes.forEach((node, b) =>
    node.inputs.forEach(a => {
      if (users[a]?.at(-1) !== b) users[a]?.push(b);
    }),
  );
  return users;
}

function readStage(raw: Json, index: number): Stage {
  const nodes = records(raw.nodes, NODE),
    names = column(table(raw.nodes), "name", "");
  nodes.forEach((node, i) => (node.raw = text(names(i)))); // as the layout counts it
  const outputs = records(raw.outputs, OUTPUTS),
    gradients = new Map(outputs.filter(each => each.kind === "gradient").map(each => [each.node, each.of]));
  return {
    outputs,
    gradients,
    index,
    key: text(raw.key),
    role: text(raw.role),
    title: text(raw.title),
    parent: Number(raw.parent ?? -1),
    nodes,
    groups: withAdjoints(nodes, records(raw.groups, NODE_GROUPS), gradients),
    users: usersOf(nodes),
    layout: readLayout((raw.layouts as Record<string, Json> | undefined)?.auto, nodes.length),
  };
}

function readPass(raw: Json, index: number): Pass {
  const role = text(raw.role);
  return {
    index,
    key: text(raw.key),
    role,
    from: Number(raw.from ?? -1),
    to: Number(raw.to ?? -1),
    report: (raw.report ?? {}) as Json,
    options: (raw.options ?? {}) as Json,
    seconds: number(raw.seconds),
    sources: (raw.sources ?? {}) as Record<string, RuleSource>,
    rewrites: role === "optimize" ? records(raw.steps, REWRITES) : [],
    deltas: raw.deltas ? list(raw.deltas) : null,
    classes: (raw.classes as RawTable | null) ?? null,
    diffs: role === "differentiate" ? records(raw.steps, GRADIENTS) : [],
  };
}

function readPlan(raw: Json | null | undefined): Plan | null {
  if (!raw) return null;
  return {
    kernels: records(raw.kernels, KERNELS),
    dispatches: records(raw.dispatches, DISPATCHES),
    groups: records(raw.groups, BARRIERS),
    intervals: records(raw.intervals, INTERVALS),
    slots: records(raw.slots, SLOTS),
    memory: (raw.memory ?? {}) as Plan["memory"],
    updates: Number(raw.updates ?? 0),
    stage: Number(raw.stage ?? -1),
    optimizer: (raw.optimizer ?? null) as string | null,
    machine: (raw.machine ?? null) as Machine | null,
    times: null,
    missed: [],
    allreduce: null,
  };
}

/** The edge of a compiled graph, with drawable names. */
function readEdge(raw: Edge | undefined): Edge | null {
  if (!raw) return null;
  const named = <T extends { name: string }>(rows: T[]): T[] =>
    rows.map(each => ({ ...each, name: drawable(each.name) }));
  return { ...raw, inputs: named(raw.inputs), outputs: named(raw.outputs) };
}

/** The newest measured times, of all dispatches of the plan as it is now. */
function withTimes(plan: Plan | null, doc: Json): Plan | null {
  const compiled = list(doc.passes).find(({ role }) => role === "compile")?.report as Json | undefined;
  for (const { dispatch_seconds } of plan ? list(doc.runs) : []) {
    const times = dispatch_seconds as Times | undefined,
      count = plan!.dispatches.length;
    if (times?.median.length !== count) continue;
    const verdict = column(dispatch_seconds as RawTable, "verdict", "");
    plan!.times = { ...times, verdict: times.median.map((_, k) => text(verdict(k))) };
  }
  const allreduce = (doc.allreduce ?? null) as Allreduce | null;
  return plan && { ...plan, allreduce, missed: list(compiled?.missed) as unknown as Missed[] };
}

/** Read a link, of which a large one may state each row once; its way back is computed at first use. */
function readLink({ a, b, out }: RawLink): Link {
  const { index = [...out.start.keys()] } = out;
  const forth = (row: number) => rowIn(out, index[row]!);
  let back: Map<number, number[]> | null = null;
  const turned = () => {
    const found = new Map<number, number[]>();
    index.forEach((_, row) => forth(row).forEach(each => put(found, each, row)));
    return found;
  };
  return { a, b, out: forth, back: row => (back ??= turned()).get(row) ?? [] };
}

/** Typed records of a plain document; refuses another format. */
export function readDoc(raw: Json): GraphDoc {
  if (raw.format !== FORMAT)
    throw new Error(`document: format: given ${JSON.stringify(raw.format)}, wanted "${FORMAT}"`);
  raw = restored(raw) as Json;
  return written({
    id: text(raw.id),
    study: raw.study ? text(raw.study) : null,
    rev: Number(raw.rev ?? -1),
    title: text(raw.title),
    summary: text(raw.summary).replaceAll("->", "→"),
    producer: (raw.producer ?? {}) as Json,
    types: records(raw.types, TYPES),
    sources: list(raw.sources).map(
      each => ({ language: "python", first_line: 1, text: "", ...each }) as unknown as SourceRecord,
    ),
    lines: records(raw.lines, LINES),
    stages: list(raw.stages).map(readStage),
    passes: list(raw.passes).map(readPass),
    plan: withTimes(readPlan(raw.plan as Json | null), raw),
    edge: readEdge(raw.compiled as Edge | undefined),
    links: list(raw.links).map(each => readLink(each as unknown as RawLink)),
    wgslBase: list(raw.wgsl_base).map(Number),
    runs: list(raw.runs) as unknown as RunRecord[],
    variants: list(raw.variants) as unknown as VariantRow[],
    sweep: (raw.sweep as SweepSection | undefined) ?? null,
    notes: list(raw.notes) as unknown as NoteRecord[],
    overlays: list(raw.overlays) as unknown as OverlayRecord[],
    run: (raw.run ?? null) as RunSection | null,
    view: (raw.view ?? null) as ViewState | null,
  });
}

/** Write an overlay in words (`--values`) on the nodes, in place of their types, if the document opens with one. */
function written(doc: GraphDoc): GraphDoc {
  for (const { id, stage: at, values } of doc.overlays) {
    const stage = doc.stages[at];
    if (!stage || id !== doc.view?.overlay || id === "nonfinite") continue;
    // In lanes a gradient has a box of its own.
    const lanes = stage.nodes.some(node => node.lane.startsWith("adjoint")),
      slopes = id === "value" && doc.overlays.find(each => each.id === "gradient" && each.stage === at)?.values;
    stage.nodes.forEach((node, i) => {
      const said = values[i],
        slope = slopes && slopes[i];
      if (typeof said !== "string") return;
      const below = typeof slope === "string" ? slope : "";
      node.told = said;
      node.lines = valueLines(said);
      node.own = node.lines.length;
      if (below && !lanes) node.lines = [...node.lines, ...gradientLines(below)];
      node.figures = below && `gradient of the loss: ${below}`;
    });
    stage.layout = null;
  }
  return doc;
}

/** Copy the options that an output was opened with (`--engine`, `--values`, `--depth`) to a newer document in it. */
export function inherit(doc: GraphDoc, before: GraphDoc): void {
  const own = before.view ?? {};
  doc.run ??= before.run; // the kernel's documents bring no data
  doc.view = { ...doc.view, ...own };
  // Stages may have moved: the two that are compared are found by their keys.
  const sides = own.diff?.map(at => doc.stages.findIndex(({ key }) => key === before.stages[at]?.key));
  if (sides) doc.view.diff = sides.some(at => at < 0) ? undefined : (sides as [number, number]);
  const same = (a: NodeRecord, b?: NodeRecord) => a.key === b?.key && a.op === b.op && a.raw === b.raw;
  const pairs = doc.stages.flatMap(stage => {
    const old = before.stages.find(({ key }) => key === stage.key);
    return old?.nodes.length === stage.nodes.length && stage.nodes.every((node, i) => same(node, old.nodes[i]))
      ? [{ stage, old }]
      : [];
  });
  for (const each of before.overlays) {
    const pair = pairs.find(({ old }) => old.index === each.stage);
    const stage = pair?.stage.index;
    if (pair && !doc.overlays.some(own => own.id === each.id && own.stage === stage))
      doc.overlays.push({ ...each, stage: pair.stage.index });
  }
  written(doc);
  if ((own.engine ?? "auto") !== "auto") for (const { stage, old } of pairs) stage.layout = old.layout;
}

/** The document of a payload: plain, or in an envelope `{format, study, gz, kept}`, whose fields win. */
export async function openDoc(payload: Payload): Promise<GraphDoc> {
  if (typeof payload.gz !== "string") return readDoc(payload);
  if (payload.format !== FORMAT) return readDoc(payload);
  const doc = readDoc(JSON.parse(await gunzip(payload.gz)) as Json);
  if (payload.kept) doc.view = { ...doc.view, ...(payload.kept as ViewState) };
  return { ...doc, study: payload.study ? text(payload.study) : doc.study };
}

/** Return a report with every field; a near miss that lacks its sentence and node gets them from the rest. */
export const optimizeReport = (pass: Pass): OptimizeReport => {
  const report = {
    rules: [],
    missed: [],
    iterations: [],
    stop_reason: "",
    outcome: "No rewrites here.",
    engine: "",
    cost_model: "",
    ...pass.report,
  } as unknown as OptimizeReport;
  const follows = ({ label, node, detail }: Missed) => ({
    text: `${label} was not used at %${node}: ${detail}.`,
    about: `node:${pass.to}.${node}`,
  });
  return { ...report, missed: report.missed.map((each): Missed => ({ ...follows(each), ...each })) };
};

export const typeText = (doc: GraphDoc, node: NodeRecord): string => node.told ?? doc.types[node.type]?.text ?? "";

export const optimizerPasses = ({ passes }: GraphDoc): Pass[] => passes.filter(({ role }) => role === "optimize");

/** Return the name of an optimizer's pass: its phase, or its variant. */
export const passName = ({ key }: Pass): string => key.slice("optimize:".length);

/** Return the name of a node, or its op if it has none. */
export const nodeName = (node: NodeRecord): string => node.name || node.op;
