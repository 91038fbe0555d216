// Replay the growth of an e-graph from the deltas of a pass: its content after each iteration, and a layout. Pure.

import { engine } from "layout-engine";
import { records, type EClassRow, type ENodeRow, type Pass, type RawTable, type Stage } from "./doc.ts";
import { put } from "./format.ts";
import { ECLASSES, ENODES } from "./records.ts";

/** An e-node, alive from iteration `since` until `gone`; `class` and `children` are the names of iteration `since`. */
export interface ENode extends ENodeRow {
  since: number;
  gone: number;
}

export interface EClass extends EClassRow {
  /** The name that people gave it, and the node that the class stands for. */
  title: string;
  entity: string | null;
  leaf: boolean;
}

export interface Growth {
  classes: Map<string, EClass>;
  enodes: ENode[];
  /** Iterations: 0 is the graph as it came in. */
  last: number;
  merged: [stays: string, goes: string][][];
  fired: [label: string, times: number][][];
}

export function growthOf({ deltas, classes, from, to }: Pass, stages: readonly Stage[]): Growth | null {
  if (!deltas) return null;
  const enodes = deltas.flatMap(({ added }, since) =>
    records(added as RawTable, ENODES).map(each => ({ ...each, since, gone: Infinity })),
  );
  deltas.forEach(({ gone }, k) => (gone as number[]).forEach(i => (enodes[i]!.gone = k)));
  const { nodes } = stages[from]!,
    inner = new Set(enodes.map(each => each.class)),
    known = new Map<string, EClass>();
  for (const each of records(classes!, ECLASSES)) {
    const named = each.nodes.find(i => nodes[i]!.name),
      first = named ?? each.nodes[0];
    known.set(each.name, {
      ...each,
      title: named === undefined ? each.name : nodes[named]!.name,
      entity: first !== undefined ? `node:${from}.${first}` : each.made < 0 ? null : `node:${to}.${each.made}`,
      leaf: !inner.has(each.name),
    });
  }
  const merged = deltas.map(each => each.merged as [string, string][]);
  // A class that went is what it became, under its own name and for its own node until then.
  for (const [stays, name] of merged.flat().reverse()) {
    const now = known.get(stays)!;
    known.set(name, {
      ...now,
      name,
      title: name,
      leaf: false,
      entity: nodes[Number(name.slice(1))] && name[0] === "%" ? `node:${from}.${name.slice(1)}` : now.entity,
    });
  }
  return {
    classes: known,
    enodes,
    merged,
    last: deltas.length - 1,
    fired: deltas.map(each => each.fired as [string, number][]),
  };
}

/** Return the name of a class after iteration k. */
export function nameAt({ merged }: Growth, name: string, k: number): string {
  for (const [stays, goes] of merged.slice(0, k + 1).flat()) if (name === goes) name = stays;
  return name;
}

export type Held = Map<string, { node: ENode; children: string[] }[]>;

/** The e-nodes after iteration k by class, in the order in which they came. */
export function held(growth: Growth, k: number): Held {
  const found: Held = new Map();
  for (const node of growth.enodes)
    if (node.since <= k && k < node.gone)
      put(found, nameAt(growth, node.class, k), { node, children: node.children.map(each => nameAt(growth, each, k)) });
  return found;
}

/** All e-nodes that are ever in a class. */
export const everIn = (growth: Growth, name: string): ENode[] =>
  growth.enodes.filter(node => growth.merged.some((_, k) => node.since <= k && nameAt(growth, node.class, k) === name));

const MOST = 48; // classes that are drawn

/** Return the classes to draw: all those of a small e-graph, else those with several e-nodes or `wanted`, and
 * neighbours. */
export function shown(growth: Growth, wanted: readonly string[]): string[] {
  const all = [...growth.classes.values()].filter(({ leaf }) => !leaf).map(({ name }) => name);
  if (all.length <= MOST) return all;
  const at = held(growth, growth.last),
    reads = (name: string) => at.get(name)?.flatMap(({ children }) => children) ?? [],
    found = new Set<string>();
  for (const name of wanted.length > 0 ? wanted : all.filter(each => (at.get(each)?.length ?? 0) > 1))
    for (const near of [name, ...reads(name), ...all.filter(each => reads(each).includes(name))])
      if (found.size < MOST && !growth.classes.get(near)!.leaf) found.add(near);
  return all.filter(name => found.has(name));
}

export const HEAD = 20, // the title of a class
  TAIL = 6;
const GAP = 34,
  TRACK = 7;
/** The lines of an e-node: one for the op, one for the rule that made it. */
export const tall = ({ label }: ENode): number => (label ? 34 : 23);

export interface Wire {
  /** The x in each row between the ends, from above. */
  way: number[];
  /** Beside the box of the reader: the x of its upright piece. */
  beside: number;
}
export interface Plan {
  boxes: Map<string, { x: number; y: number; w: number; row: number }>;
  tops: number[];
  bottoms: number[];
  /** By reader and operand; without one an edge goes against the reading direction. */
  wires: Map<string, Wire>;
  width: number;
  height: number;
}

/** Lay out all classes of all iterations once, each with room for all its e-nodes. */
export function planned(growth: Growth, names: readonly string[], widths: readonly number[]): Plan {
  const place = new Map(names.map((name, i) => [name, i])),
    inside = names.map(name => everIn(growth, name)),
    reads = (node: ENode) =>
      node.children
        .flatMap(child => [child, nameAt(growth, child, growth.last)])
        .flatMap(child => place.get(child) ?? []);
  // The first e-node of a class gives its row: that alone has no circles, unless rules begin with one.
  const rows = names.map(() => 0);
  for (let again = true; again;) {
    again = false;
    inside.forEach((own, b) => {
      for (const child of own.find(node => node.class === names[b] && !node.children.includes(names[b]!))?.children ??
        []) {
        const a = place.get(child);
        if (a === undefined || rows[b]! > rows[a]! || rows[a]! > names.length) continue;
        rows[b] = rows[a]! + 1;
        again = true;
      }
    });
  }
  const all = inside.map(own => [...new Set(own.flatMap(reads))]);
  all.forEach((operands, a) => {
    const readers = rows.filter((_, b) => all[b]!.includes(a) && b !== a);
    // Next to its first reader.
    if (operands.length === 0 && readers.length > 0) rows[a] = Math.max(0, Math.min(...readers) - 1);
  });
  const edges = all.flatMap((operands, b) =>
      operands.flatMap((a): [number, number][] => (rows[a]! < rows[b]! ? [[a, b]] : [])),
    ),
    margin = all.map(operands => 12 + TRACK * operands.length);
  const { x, ways, rails, width } = engine().place(
    widths.map((w, i) => w + 2 * margin[i]!),
    widths.map((w, i) => (w >> 1) + margin[i]!),
    rows,
    edges,
    names.map(() => false),
  );
  const tops: number[] = [],
    bottoms: number[] = [],
    tallest: number[] = [];
  inside.forEach(
    (own, i) =>
      (tallest[rows[i]!] = Math.max(
        tallest[rows[i]!] ?? 0,
        own.reduce((sum, node) => sum + tall(node), HEAD + TAIL),
      )),
  );
  for (let r = 0, y = 0; r < tallest.length; r++, y += GAP) bottoms.push((y = (tops[r] = y) + (tallest[r] ?? 0)));
  const boxes = names.map((_, i) => ({ x: x[i]! + margin[i]!, y: tops[rows[i]!]!, w: widths[i]!, row: rows[i]! })),
    around = new Map(rails.map(([e, track]) => [e, width + 8 + TRACK * track])),
    wires = new Map<string, Wire>();
  names.forEach((name, b) => {
    const { x: left, w } = boxes[b]!;
    const own = edges.flatMap(([a, to], e) => {
      const way = ways[e] ?? Array<number>(rows[to]! - rows[a]! - 1).fill(around.get(e)!);
      return to === b ? [{ a, way, from: way.at(-1) ?? boxes[a]!.x + widths[a]! / 2 }] : [];
    });
    // Each operand comes down beside the box, those from the right on its right; outer ones come from farther out.
    const sides = [
      own.filter(({ from }) => from <= left + w).sort((p, q) => q.from - p.from),
      own.filter(({ from }) => from > left + w).sort((p, q) => p.from - q.from),
    ];
    sides.forEach((side, right) =>
      side.forEach(({ a, way }, i) =>
        wires.set(`${name} ${names[a]}`, { way, beside: right ? left + w + 8 + TRACK * i : left - 8 - TRACK * i }),
      ),
    );
  });
  return {
    boxes: new Map(names.map((name, i) => [name, boxes[i]!])),
    tops,
    bottoms,
    wires,
    width: Math.max(width, ...[...around.values()].map(at => at + 8)),
    height: bottoms.at(-1) ?? 0,
  };
}
