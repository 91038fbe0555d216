// A rewrite step as two small graphs, before and after it, with a place for each node. Pure; knows no DOM.

import type { GraphDoc, NodeRecord, Pass } from "./doc.ts";

/** A node of a side; an operand is what the rule reads and leaves alone. */
export interface SideNode {
  key: string;
  text: string;
  family: string;
  operand: boolean;
  x: number;
  y: number;
  w: number;
}

export interface Side {
  nodes: SideNode[];
  /** Pairs of positions in `nodes`: from an input to its reader. */
  edges: [from: number, to: number][];
  /** The side as a term: `relu(matmul(x, w))`. */
  text: string;
  width: number;
  height: number;
}

interface Known {
  op: string;
  name: string;
  family: string;
  inputs: readonly string[];
}
type Graph = ReadonlyMap<string, Known>;
interface Fresh {
  key: string;
  op: string;
  name: string;
  inputs: string[];
  /** The family of the first node of its op that a later step removes. */
  family?: string;
}

export const [SIDE_ROW, SIDE_BOX] = [46, 22] as const;
const GAP = 10,
  CHAR = 6.7, // of the code font at 11 px
  MOST = 12; // nodes of a side

/** The graph by keys before step `k` of a pass, and after it. */
function around(doc: GraphDoc, pass: Pass, k: number): [before: Graph, after: Graph] {
  const from = doc.stages[pass.from]!.nodes,
    to = doc.stages[pass.to]?.nodes ?? [],
    said = pass.rewrites.flatMap(({ added }) => (added ?? []) as unknown as Fresh[]).filter(({ family }) => family),
    families = new Map([...said, ...from, ...to].map(({ op, family }) => [op, family!]));
  const known = ({ op, name }: Fresh | NodeRecord, keys: readonly string[]): Known => ({
    op,
    name,
    family: families.get(op) ?? "",
    inputs: keys,
  });
  const keysOf = (node: NodeRecord) => node.inputs.map(i => from[i]!.key),
    graph = new Map(from.map(node => [node.key, known(node, keysOf(node))]));
  let before = new Map(graph);
  for (const { added, rewired } of pass.rewrites.slice(0, k + 1)) {
    before = new Map(graph);
    for (const each of (added ?? []) as unknown as Fresh[]) graph.set(each.key, known(each, each.inputs));
    for (const [reader, port, fresh] of (rewired ?? []) as [string, number, string][]) {
      const old = graph.get(reader);
      if (old && port >= 0)
        graph.set(reader, { ...old, inputs: old.inputs.map((input, i) => (i === port ? fresh : input)) });
    }
  }
  return [before, graph];
}

/** The nodes from `roots` down that `inside` lets through, readers last. */
function cone(graph: Graph, roots: readonly string[], inside: (key: string) => boolean): string[] {
  const found: string[] = [],
    seen = new Set<string>(),
    stack = roots.map(key => ({ key, done: false })).reverse();
  while (stack.length > 0) {
    const { key, done } = stack.pop()!;
    if (done) found.push(key);
    if (done || seen.has(key) || !graph.has(key)) continue;
    seen.add(key);
    stack.push({ key, done: true });
    if (inside(key)) for (const each of [...graph.get(key)!.inputs].reverse()) stack.push({ key: each, done: false });
  }
  return found;
}

const called = (graph: Graph, key: string): string => graph.get(key)?.name || graph.get(key)?.op || key;

/** Write a side as a term, in which nodes of the side are written out and operands named. */
function term(graph: Graph, key: string, inside: (key: string) => boolean, depth = 0): string {
  if (!inside(key) || depth > MOST) return called(graph, key);
  const { op, inputs } = graph.get(key)!;
  return `${op}(${inputs.map(each => term(graph, each, inside, depth + 1)).join(", ")})`;
}

/** Give each node a row below its inputs, operands one row above their first reader, and each row its middle. */
function placed(graph: Graph, roots: readonly string[], inside: (key: string) => boolean): Side {
  const keys = cone(graph, roots, inside).slice(-MOST),
    at = new Map(keys.map((key, i) => [key, i])),
    own = (key: string) => inside(key) && graph.get(key)!.inputs.some(each => at.has(each));
  const inputs = (key: string) => (own(key) ? [...new Set(graph.get(key)!.inputs)].filter(each => at.has(each)) : []);
  const edges = keys.flatMap((key, to) => inputs(key).map((each): [number, number] => [at.get(each)!, to]));
  const row = keys.map(() => 0);
  for (const [a, b] of edges) row[b] = Math.max(row[b]!, row[a]! + 1); // in the order of readers
  keys.forEach((key, i) => {
    const readers = edges.flatMap(([a, b]) => (a === i ? [row[b]!] : []));
    if (!own(key) && readers.length > 0) row[i] = Math.min(...readers) - 1;
  });
  const text = (key: string) => (inside(key) ? graph.get(key)!.op : called(graph, key));
  const wide = keys.map(key => Math.max(26, Math.ceil(CHAR * text(key).length) + 14)),
    ends = row.map(() => 0);
  const lefts = keys.map((_, i) => {
    const left = ends[row[i]!]!;
    ends[row[i]!] = left + wide[i]! + GAP;
    return left;
  });
  const width = Math.max(GAP, ...ends) - GAP;
  const nodes = keys.map((key, i): SideNode => ({
    key,
    text: text(key),
    family: graph.get(key)!.family,
    operand: !inside(key),
    x: lefts[i]! + (width - ends[row[i]!]! + GAP) / 2,
    y: SIDE_ROW * row[i]!,
    w: wide[i]!,
  }));
  const height = SIDE_ROW * Math.max(0, ...row) + SIDE_BOX;
  return { nodes, edges, text: roots.map(key => term(graph, key, inside)).join(", "), width, height };
}

/** Both sides of a rewrite step; null for a step that only sweeps. */
export function sidesOf(doc: GraphDoc, pass: Pass, k: number): { before: Side; after: Side } | null {
  const step = pass.rewrites[k];
  if (!step || step.at.length === 0) return null;
  const [before, after] = around(doc, pass, k),
    bound = new Set(Object.values((step.bindings ?? {}) as Record<string, string>)),
    removed = new Set(step.removed),
    added = new Set(((step.added ?? []) as unknown as Fresh[]).map(({ key }) => key)),
    roots = new Set(step.at),
    results = [...new Set(((step.rewired ?? []) as [string, number, string][]).map(([, , fresh]) => fresh))];
  const has = (key: string) => (before.get(key)?.inputs.length ?? 0) > 0;
  // A node that is found and still read by others stays: it is inside, unless a variable of the rule stands for it.
  const read = new Set(cone(before, step.at, key => roots.has(key) || (removed.has(key) && !bound.has(key))));
  // A merge shows both of the alike: what stays is no operand of what goes.
  const alike = results.filter(key => before.has(key) && !read.has(key));
  const inLeft = (key: string) =>
    has(key) &&
    !(bound.has(key) && !alike.includes(key)) &&
    (roots.has(key) || removed.has(key) || alike.includes(key) || (bound.size > 0 && read.has(key) && !added.has(key)));
  const left = placed(before, [...alike, ...step.at], inLeft);
  const ends = results.length > 0 ? results : [...added].slice(-1);
  const inRight = (key: string) => (after.get(key)?.inputs.length ?? 0) > 0 && (added.has(key) || alike.includes(key));
  return { before: left, after: placed(after, ends, inRight) };
}
