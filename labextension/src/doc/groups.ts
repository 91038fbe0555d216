// Groups: the open ones, the graph in which closed ones are single nodes, and the brackets of the open ones. Pure.

import type { GraphDoc, GroupRow, Layout, NodeRecord, Stage } from "./doc.ts";
import { plural, whole } from "./format.ts";
import { LINE_CUT, NODE } from "./metrics.ts";
import { joined } from "./union.ts";

const ADJOINT = "adjoint"; // kind of a group

const MANY = 60, // boxes
  LEAST = 3; // ops that one gradient rule added, as a group

/** The groups of a stage with one for each op whose gradient rule added several others: `∂softmax`. Gradients of
 * parameters stay out of it. Nodes are given their group. */
export function withAdjoints(
  nodes: readonly NodeRecord[],
  groups: GroupRow[],
  gradients: ReadonlyMap<number, string>,
): GroupRow[] {
  const added = new Map<number, NodeRecord[]>();
  nodes.forEach((node, i) => {
    const of = nodes[node.twin];
    if (node.lane !== "adjoint" || !node.inputs.length || !of?.inputs.length || gradients.has(i)) return;
    if (!added.get(node.twin)?.push(node)) added.set(node.twin, [node]);
  });
  for (const [twin, all] of added) {
    if (all.length < LEAST) continue;
    const { op, group: parent } = nodes[twin]!;
    for (const node of all) node.group = groups.length;
    groups.push({ key: `d${twin}`, parent, label: `∂${op}`, kind: ADJOINT, repeat: 1 });
  }
  return groups;
}

/** Return the groups that are open at first: to `depth`, else all of a small graph and none of a larger one; a stage
 * that was made from a larger graph opens as that does. */
export function opened(stage: Stage, asked?: number | null, origin?: Stage): Set<number> {
  const depth: number[] = [],
    boxes = Math.max(...[stage, origin ?? stage].map(each => each.nodes.filter(node => node.inputs.length > 0).length)),
    most = asked ?? (boxes <= MANY ? Infinity : 0);
  stage.groups.forEach(({ parent }, g) => (depth[g] = parent < 0 ? 0 : depth[parent]! + 1));
  return new Set(depth.flatMap((d, g) => (d < most ? [g] : [])));
}

/** The labels of these groups, each with as much of what is around it as makes it unique: never five `bn1`. */
function labelsOf(groups: readonly GroupRow[], drawn: ReadonlySet<number>): Map<number, string> {
  const path: string[] = [];
  groups.forEach(({ label, parent }, g) => {
    const around = parent < 0 ? "" : path[parent]!;
    // A numbered module says the list that it stands in: `layers.0` in `layers`.
    path[g] = !around || label.startsWith(`${around}.`) || label === around ? label : `${around}.${label}`;
    if (parent >= 0 && label.startsWith(`${groups[parent]!.label}.`))
      path[g] = around.slice(0, around.length - groups[parent]!.label.length) + label;
  });
  const count = new Map<string, number>();
  for (const g of drawn) count.set(groups[g]!.label, (count.get(groups[g]!.label) ?? 0) + 1);
  return new Map(
    [...drawn].map(g => {
      const { label, kind } = groups[g]!; // adjoints stand beside their ops, of which many have one name
      return [g, kind !== ADJOINT && count.get(label)! > 1 ? path[g]! : label];
    }),
  );
}

/** Return the open groups to close first: those of gradient rules, then the deepest ones. */
export function innermost({ groups }: Stage, open: ReadonlySet<number>): number[] {
  const depth: number[] = [];
  groups.forEach(
    ({ parent, kind }, g) => (depth[g] = kind === ADJOINT ? Infinity : parent < 0 ? 0 : depth[parent]! + 1),
  );
  const most = Math.max(...[...open].map(g => depth[g]!));
  return [...open].filter(g => depth[g] === most);
}

/** The outermost closed group around each group, itself included; −1 where all are open. */
function closedOf(groups: readonly GroupRow[], open: ReadonlySet<number>): number[] {
  const found: number[] = [];
  groups.forEach(
    ({ parent }, g) => (found[g] = parent >= 0 && found[parent]! >= 0 ? found[parent]! : open.has(g) ? -1 : g),
  );
  return found;
}

/**
 * Return the part of its group that each member belongs to: a path that comes back into a group leads to another part,
 * so that a closed group makes no circle.
 */
function parts(stage: Stage, member: (i: number) => boolean): number[] {
  const level: number[] = [];
  stage.nodes.forEach(({ inputs }, i) => {
    const own = member(i);
    level[i] = inputs.reduce((most, a) => Math.max(most, level[a]! + Number(!own && member(a))), 0);
  });
  return level;
}

export interface Folded {
  stage: Stage;
  /** The nodes of the whole stage behind each node that is drawn. */
  members: number[][];
  /** The closed group that a drawn node is, −1 for a node. */
  group: number[];
  /** The groups that stand open: those asked for, and those that had to open (`forced`, the last of them by name). */
  open: ReadonlySet<number>;
  forced: string;
}

/** Of several closed groups that make a circle, the drawn node to open: the one of fewest nodes, then the first. */
function onCircle(
  count: number,
  wires: Iterable<{ a: number; b: number }>,
  group: readonly number[],
  members: readonly number[][],
): number {
  const out = Array.from({ length: count }, (): number[] => []),
    open = out.map(() => 0);
  for (const { a, b } of wires) {
    out[a]!.push(b);
    open[b]!++;
  }
  const order = open.flatMap((n, v) => (n === 0 ? [v] : []));
  for (const v of order) for (const b of out[v]!) if (--open[b]! === 0) order.push(b);
  if (order.length === count) return -1;
  const back = (v: number) => {
    const seen = new Set<number>(),
      stack = [v];
    while (stack.length > 0)
      for (const b of out[stack.pop()!]!) {
        if (b === v) return true;
        if (!seen.has(b)) stack.push(b);
        seen.add(b);
      }
    return false;
  };
  const rest = group.flatMap((g, v) => (g >= 0 && open[v]! > 0 ? [v] : []));
  rest.sort((v, w) => members[v]!.length - members[w]!.length || group[v]! - group[w]!);
  return rest.find(back) ?? -1;
}

/** A run of which a single node is left (`tanh ×1500`, merged) is that node: it leaves its group. */
function aloneIn(stage: Stage, inside: number[], keys: string[]): void {
  const first = new Map<string, number>(),
    more = new Set<string>();
  inside.forEach((g, i) => {
    if (g < 0 || stage.groups[g]!.repeat === 1) return;
    if (first.has(keys[i]!)) more.add(keys[i]!);
    else first.set(keys[i]!, i);
  });
  for (const [key, i] of first)
    if (!more.has(key)) {
      keys[i] = String(i);
      inside[i] = -1;
    }
}

/** Return the stage with its closed groups as nodes, one per lane and part; null when none is closed. */
export function folded(doc: GraphDoc, stage: Stage, open: ReadonlySet<number>, forced = ""): Folded | null {
  const closed = closedOf(stage.groups, open),
    lane = (i: number) => stage.nodes[i]!.lane,
    inside = stage.nodes.map(({ group, inputs }) => (group < 0 || inputs.length === 0 ? -1 : closed[group]!));
  if (inside.every(g => g < 0)) return null;
  // A sum for the gradient of a leaf lies in the group that alone reads the leaf.
  stage.nodes.forEach(({ inputs, twin }, i) => {
    if (inside[i]! >= 0 || inputs.length === 0 || twin < 0 || stage.nodes[twin]!.inputs.length > 0) return;
    const [first = -1, ...others] = new Set(stage.users[twin]!.map(b => inside[b]!));
    if (others.length === 0) inside[i] = first;
  });
  const keys = stage.nodes.map((_, i) => String(i));
  for (const g of new Set(inside)) {
    if (g < 0) continue;
    for (const at of new Set(inside.flatMap((own, i) => (own === g ? [lane(i)] : [])))) {
      const member = (i: number) => inside[i] === g && lane(i) === at,
        part = parts(stage, member);
      inside.forEach((_, i) => {
        if (member(i)) keys[i] = `${g} ${at} ${part[i]}`;
      });
    }
  }
  aloneIn(stage, inside, keys);
  // A leaf that only one closed group reads, in whatever lanes, is inside it; an input is where the graph begins.
  const within = new Set<number>();
  stage.nodes.forEach(({ inputs, op }, i) => {
    const [first, ...others] = stage.users[i]!.map(b => inside[b]!);
    if (inputs.length > 0 || op === "input" || first === undefined || first < 0 || others.some(g => g !== first))
      return;
    keys[i] = keys[stage.users[i]![0]!]!;
    within.add(i);
  });
  const place = new Map([...new Set(keys)].map((key, i) => [key, i])),
    members = [...place].map((): number[] => []);
  keys.forEach((key, i) => members[place.get(key)!]!.push(i));
  const group = [...place.keys()].map(key => (key.includes(" ") ? Number(key.split(" ")[0]) : -1));
  const labels = labelsOf(stage.groups, new Set(group.filter(g => g >= 0)));
  const nodes = members.map((all, v): NodeRecord => {
    const last = stage.nodes[all.at(-1)!]!;
    return group[v]! < 0 ? last : groupNode(doc, stage, group[v]!, labels.get(group[v]!)!, all);
  });
  const wires = new Map<string, { a: number; b: number; born: number; died: number }>();
  stage.nodes.forEach(({ inputs }, i) =>
    inputs.forEach(input => {
      const [a, b] = [place.get(keys[input]!)!, place.get(keys[i]!)!];
      if (a !== b && !within.has(input)) wires.set(`${a} ${b}`, { a, b, born: 0, died: Infinity });
    }),
  );
  const circle = onCircle(members.length, wires.values(), group, members);
  if (circle >= 0) return folded(doc, stage, new Set([...open, group[circle]!]), stage.groups[group[circle]!]!.label);
  const made = joined(
    stage.index,
    nodes,
    members.map(all => `node:${stage.index}.${all.at(-1)}`),
    members.map((_, i) => ({ born: i, died: 0 })),
    // A group reads in the order of the graph: it begins below the same input in every stage.
    [...wires.values()].sort((v, w) => v.b - w.b || (group[v.b]! < 0 ? 0 : v.a - w.a)),
    0,
  );
  const order = made.lives.map(life => life.born),
    now = new Map(order.map((v, i) => [v, i]));
  // An adjoint stands on the row of what its twin lies in.
  made.stage.nodes.forEach((node, i) => {
    const twin = members[order[i]!]!.map(each => stage.nodes[each]!.twin).find(each => each >= 0) ?? -1,
      at = twin < 0 ? -1 : now.get(place.get(keys[twin]!)!)!;
    node.twin = at === i ? -1 : at;
  });
  return {
    stage: { ...made.stage, key: stage.key, title: stage.title },
    members: order.map(v => members[v]!),
    group: order.map(v => group[v]!),
    open,
    forced,
  };
}

/** The groups directly in a group that these nodes lie in. */
function childrenIn({ groups, nodes }: Stage, g: number, members: readonly number[]): number[] {
  const found = new Set<number>();
  for (const i of members)
    for (let at = nodes[i]!.group; at >= 0 && at !== g; at = groups[at]!.parent)
      if (groups[at]!.parent === g && groups[at]!.kind !== ADJOINT) found.add(at);
  return [...found];
}

function groupNode(doc: GraphDoc, stage: Stage, g: number, label: string, members: number[]): NodeRecord {
  const { kind, repeat: all } = stage.groups[g]!,
    last = stage.nodes[members.at(-1)!]!,
    inside = all > 1 ? childrenIn(stage, g, members) : [],
    repeat = inside.length || all,
    times = repeat > 1 ? `×${whole(repeat)}` : "",
    // The call of a function is told from others by the name of what it returned.
    own = kind === "call" && last.lane === "forward",
    names = own ? {} : { name: times, raw: times, label: "" },
    type = doc.types[last.type]?.text ?? "",
    told = (written: string) => `${plural(members.length, "node")}, ${written}`;
  const text = told(type).length > LINE_CUT ? told(type.replaceAll(", ", ",")) : told(type);
  // One block of a series whose blocks do not follow each other.
  const op = inside.length === 1 ? stage.groups[inside[0]!]!.label : label;
  const plain = { op, family: "movement", lines: undefined };
  return { ...last, ...names, ...plain, flags: ["group"], told: text };
}

export interface Bracket {
  group: number;
  label: string;
  track: number;
  top: number;
  bottom: number;
}

/** A bracket beside the rows of each open group, inner ones nearer to the picture. */
export function brackets(
  stage: Stage,
  open: ReadonlySet<number>,
  layout: Layout,
  members: readonly number[][] | null,
): Bracket[] {
  const span = new Map<number, [number, number]>(),
    depth: number[] = [];
  stage.groups.forEach(({ parent }, g) => (depth[g] = parent < 0 ? 0 : depth[parent]! + 1));
  layout.boxes.forEach(({ row, y, h = NODE }, v) => {
    const node = stage.nodes[members ? members[v]!.at(-1)! : v]!;
    if (row < 0 || node.lane !== "forward") return;
    for (let g = node.group; g >= 0; g = stage.groups[g]!.parent) {
      const [top, bottom] = span.get(g) ?? [y, y];
      span.set(g, [Math.min(top, y), Math.max(bottom, y + h - 40)]);
    }
  });
  const shown = [...span].filter(([g, [top, bottom]]) => open.has(g) && bottom > top),
    deepest = shown.reduce((most, [g]) => Math.max(most, depth[g]!), 0);
  return shown.map(([group, [top, bottom]]) => {
    const { label, repeat } = stage.groups[group]!;
    return {
      group,
      label: repeat > 1 ? `${label} ×${whole(repeat)}` : label,
      track: deepest - depth[group]!,
      top,
      bottom: bottom + 40,
    };
  });
}
