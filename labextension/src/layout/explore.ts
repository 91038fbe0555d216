// Parts of a graph: the nodes within some edges of the selection, all inputs or all users, and their layout; paths.

import { engine } from "layout-engine";
import { readLayout, type Layout, type Stage } from "../doc/doc.ts";
import { plural, whole as figure } from "../doc/format.ts";
import { drawnOf } from "./layouts.ts";

export const REACHES: Record<string, string> = {
  all: "show everything",
  "1": "1 edge around it",
  "2": "2 edges around it",
  "4": "4 edges around it",
  inputs: "all it needs",
  users: "all that needs it",
};

/** The nodes within reach of the seeds; possible pills come along with each op that is kept. */
export function around(stage: Stage, seeds: readonly number[], reach: string): Set<number> {
  const found = new Set(seeds),
    inputs = reach !== "users",
    users = reach !== "inputs";
  let edge = [...seeds];
  for (let depth = Number(reach) || Infinity; depth > 0 && edge.length > 0; depth--) {
    const next: number[] = [];
    for (const node of edge)
      for (const other of [...(inputs ? stage.nodes[node]!.inputs : []), ...(users ? stage.users[node]! : [])]) {
        if (found.has(other)) continue;
        found.add(other);
        next.push(other);
      }
    edge = next;
  }
  const chains = engine().chainsOf(stage.nodes.map(({ op, inputs }) => ({ op, inputs, leaf: inputs.length === 0 })));
  for (const node of [...found])
    for (const a of stage.nodes[node]!.inputs)
      for (const part of stage.nodes[a]!.inputs.length === 0 ? [a] : (chains.get(a) ?? [])) found.add(part);
  return found;
}

/** The layout of some nodes of a stage, in the rows of all of them; nodes that are left out have no box. */
export function partLayout(stage: Stage, types: readonly { text: string }[], kept: ReadonlySet<number>): Layout {
  const order = [...kept].sort((a, b) => a - b),
    place = new Map(order.map((index, i) => [index, i])),
    all = drawnOf(stage, types);
  const nodes = order.map(index => {
    const inputs = all[index]!.inputs.flatMap(a => place.get(a) ?? []);
    return { ...all[index]!, inputs, twin: place.get(all[index]!.twin) ?? -1 };
  });
  const part = readLayout(engine().layout(nodes), nodes.length)!;
  const rename = <T extends { a: number; b: number }>(rows: T[]): T[] =>
    rows.map(row => ({ ...row, a: order[row.a]!, b: order[row.b]! }));
  const nowhere = { x: -1, y: -1, w: -1, row: -1 };
  return {
    ...part,
    boxes: stage.nodes.map((_, i) => part.boxes[place.get(i) ?? -1] ?? nowhere),
    pills: part.pills.map(pill => ({
      ...pill,
      leaf: order[pill.leaf]!,
      reader: order[pill.reader]!,
      via: pill.via.map(each => order[each]!),
    })),
    edges: rename(part.edges),
    rails: rename(part.rails),
    wires: rename(part.wires),
  };
}

const MOST = 20, // paths
  VISITS = 2_000_000;

/** Find paths between two nodes, shortest first, one per length (gdlab/view/ask/paths.py); `whole`: no more exist. */
export function ways(
  inputs: readonly (readonly number[])[],
  one: number,
  other: number,
): { paths: number[][]; whole: boolean } {
  const a = Math.min(one, other),
    b = Math.max(one, other),
    far = new Map([[a, 0]]), // edges from `a`
    detours = [new Map([[b, b]])],
    paths: number[][] = [];
  for (let node = a + 1; node <= b; node++) {
    const least = Math.min(...inputs[node]!.map(i => far.get(i) ?? Infinity));
    if (least < Infinity) far.set(node, least + 1);
  }
  const order = [...far.keys()].reverse(),
    dearer = (from: number, to: number) => 1 + far.get(to)! - far.get(from)!;
  for (let detour = 0, visits = 0; detour < detours.length; detour++) {
    const reached = detours[detour];
    if (!reached) continue;
    if (paths.length === MOST || visits > VISITS) return { paths, whole: false };
    visits += order.length;
    for (const node of order)
      if (reached.has(node))
        for (const i of inputs[node]!) {
          if (!far.has(i)) continue;
          const into = (detours[detour + dearer(node, i)] ??= new Map());
          if (!into.has(i)) into.set(i, node);
        }
    if (!reached.has(a)) continue;
    const path = [a];
    for (let at = a, left = detour; at !== b; path.push(at)) {
      const next = detours[left]!.get(at)!;
      left -= dearer(next, at);
      at = next;
    }
    paths.push(path);
  }
  return { paths, whole: true };
}

/** Count paths and their edges in words: `3 paths, 4 to 9 edges`. */
export function toldWays({ paths, whole }: ReturnType<typeof ways>): string {
  const [low = 0, high = 0] = [paths[0], paths.at(-1)].map(path => (path?.length ?? 1) - 1);
  if (paths.length === 0) return whole ? "no path along the edges" : "no path was found in time";
  const lengths = `${low === high ? "" : `${figure(low)} to `}${plural(high, "edge")}`;
  return `${plural(paths.length, "path")}, ${lengths}${whole ? "" : "; there are longer ones"}`;
}
