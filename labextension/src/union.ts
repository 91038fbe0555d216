// Two graphs in one picture: every node that exists at some time, so that nothing moves while a rewrite is played. Pure.

import type { GraphDoc, NodeRecord, Pass, Stage, TypeRecord } from "./doc.ts";
import { provenance } from "./select.ts";

/** A node of a union, and when it lives: from step `born` on, until step `died`. */
interface Life {
  born: number;
  died: number;
}
interface Wire extends Life {
  a: number;
  b: number;
}

export interface Union {
  stage: Stage;
  lives: Life[];
  wires: Wire[];
  steps: number;
}

/** Inputs first; where two graphs together would make a circle, the edge that closes it does not count for the layout. */
function ordered(nodes: readonly NodeRecord[], wires: readonly Wire[]): { order: number[]; inputs: number[][] } {
  const into: number[][] = nodes.map(() => []),
    out: number[][] = nodes.map(() => []);
  for (const { a, b } of wires) {
    if (into[b]!.includes(a)) continue;
    into[b]!.push(a);
    out[a]!.push(b);
  }
  const open = into.map(inputs => inputs.length),
    order = open.flatMap((n, i) => (n === 0 ? [i] : [])),
    placed = nodes.map((_, i) => open[i] === 0);
  for (let at = 0, next = 0; order.length < nodes.length; at++) {
    if (at === order.length) {
      while (placed[next]) next++;
      placed[next] = true;
      order.push(next);
    }
    for (const b of out[order[at]!]!) {
      if (--open[b]! > 0 || placed[b]) continue;
      placed[b] = true;
      order.push(b);
    }
  }
  return { order, inputs: into };
}

export function joined(index: number, nodes: NodeRecord[], entities: string[], lives: Life[], wires: Wire[], steps: number): Union {
  const { order, inputs } = ordered(nodes, wires),
    place = order.map(() => 0);
  order.forEach((old, now) => (place[old] = now));
  const before = (b: number) => inputs[b]!.map(a => place[a]!).filter(a => a < place[b]!);
  const sorted = order.map(old => ({ ...nodes[old]!, inputs: before(old), twin: -1 }));
  const users = sorted.map((): number[] => []);
  sorted.forEach((node, b) => node.inputs.forEach(a => users[a]!.push(b)));
  return {
    stage: { index, groups: [], key: "", role: "", title: "", parent: -1, nodes: sorted, outputs: [], gradients: new Map(), users, layout: null, entities: order.map(old => entities[old]!) },
    lives: order.map(old => lives[old]!),
    wires: wires.map(wire => ({ ...wire, a: place[wire.a]!, b: place[wire.b]! })),
    steps,
  };
}

const FOREVER = Infinity;

/** The replay of a pass: what lives after each number of steps. */
export function replayed(doc: GraphDoc, pass: Pass): Union {
  const from = doc.stages[pass.from]!,
    to = doc.stages[pass.to]!;
  const nodes = from.nodes.map(node => node),
    entities = nodes.map((_, i) => `node:${from.index}.${i}`),
    lives: Life[] = nodes.map(() => ({ born: 0, died: FOREVER })),
    at = new Map(nodes.map((node, i) => [node.key, i])),
    after = new Map(to.nodes.map((node, i) => [node.key, i])),
    types = new Map(doc.types.map((type, i) => [type.text, i])),
    families = new Map([...from.nodes, ...to.nodes].map(node => [node.op, node.family]));
  const wires: Wire[] = [],
    current = nodes.map(node => node.inputs.map(a => a)),
    ends = new Map<number, Wire[]>();
  const connect = (a: number, b: number, born: number) => {
    const wire = { a, b, born, died: FOREVER };
    wires.push(wire);
    for (const end of [a, b]) ends.set(end, [...(ends.get(end) ?? []), wire]);
  };
  nodes.forEach((node, b) => node.inputs.forEach(a => connect(a, b, 0)));
  pass.rewrites.forEach((step, s) => {
    for (const each of step.added ?? []) {
      const made = each as { key: string; op: string; name: string; type: string; inputs: string[]; attrs: NodeRecord["attrs"] },
        known = to.nodes[after.get(made.key) ?? -1];
      const b = nodes.length,
        inputs = made.inputs.map(key => at.get(key)!);
      nodes.push(
        known ?? { ...from.nodes[0]!, key: made.key, op: made.op, name: made.name, raw: made.name, type: types.get(made.type) ?? -1, attrs: made.attrs, family: families.get(made.op) ?? "elementwise", lane: nodes[inputs[0] ?? 0]?.lane ?? "forward", flags: inputs.length > 0 ? [] : ["leaf"] },
      );
      at.set(made.key, b);
      entities.push(known ? `node:${to.index}.${after.get(made.key)}` : `step:${pass.index}.${s}`);
      lives.push({ born: s + 1, died: FOREVER });
      current.push(inputs);
      inputs.forEach(a => connect(a, b, s + 1));
    }
    for (const [reader, port, fresh] of (step.rewired ?? []) as [string, number, string][]) {
      const b = at.get(reader)!,
        a = at.get(fresh)!;
      if (port < 0) continue;
      const old = ends.get(b)?.find(wire => wire.b === b && wire.a === current[b]![port] && wire.died === FOREVER);
      if (old) old.died = s + 1;
      current[b]![port] = a;
      connect(a, b, s + 1);
    }
    for (const key of step.removed) {
      const gone = at.get(key)!;
      lives[gone]!.died = s + 1;
      for (const wire of ends.get(gone) ?? []) if (wire.died === FOREVER) wire.died = s + 1;
    }
  });
  return joined(from.index, nodes, entities, lives, wires, pass.rewrites.length);
}

export type Change = "same" | "rewired" | "changed" | "moved" | "removed" | "made" | "added";
export const LETTERS: Record<Change, string> = { same: "", rewired: "·", changed: "~", moved: ">", removed: "−", made: "<", added: "+" };

export interface Diff extends Union {
  changes: Change[];
  /** What differs in a changed node. */
  fields: string[];
  summary: string;
}

const own = (node: NodeRecord, types: readonly TypeRecord[]): [string, string][] => [
  ["op", node.op],
  ["type", types[node.type]?.text ?? ""],
  ["attributes", JSON.stringify(node.attrs ?? {}, Object.keys(node.attrs ?? {}).sort())],
];

/** Two stages of a document: nodes are the same where their keys are. */
export function differing(doc: GraphDoc, left: Stage, right: Stage): Diff {
  const nodes = left.nodes.map(node => node),
    entities = nodes.map((_, i) => `node:${left.index}.${i}`),
    lives: Life[] = nodes.map(() => ({ born: 0, died: 1 })),
    at = new Map(nodes.map((node, i) => [node.key, i]));
  const place = right.nodes.map((node, i) => {
    const known = at.get(node.key);
    if (known !== undefined) {
      lives[known] = { born: 0, died: 2 };
      return known;
    }
    entities.push(`node:${right.index}.${i}`);
    lives.push({ born: 1, died: 2 });
    return nodes.push(node) - 1;
  });
  const wires = new Map<string, Wire>();
  left.nodes.forEach((node, b) => node.inputs.forEach(a => wires.set(`${a} ${b}`, { a, b, born: 0, died: 1 })));
  right.nodes.forEach((node, i) =>
    node.inputs.forEach(input => {
      const a = place[input]!,
        b = place[i]!,
        known = wires.get(`${a} ${b}`);
      if (known) known.died = 2;
      else wires.set(`${a} ${b}`, { a, b, born: 1, died: 2 });
    }),
  );
  const { lit } = provenance(doc),
    fields = nodes.map(() => "");
  const came = (entity: string, other: Stage) => [...lit([entity])].some(each => each.startsWith(`node:${other.index}.`));
  const changes = lives.map(({ born, died }, i): Change => {
    if (died === 1) return came(entities[i]!, right) ? "moved" : "removed";
    if (born === 1) return came(entities[i]!, left) ? "made" : "added";
    const now = right.nodes[place.indexOf(i)]!,
      before = own(nodes[i]!, doc.types);
    fields[i] = own(now, doc.types).flatMap(([name, value], k) => (value === before[k]![1] ? [] : [`${name}: ${before[k]![1]} → ${value}`])).join("; ");
    if (fields[i]) return "changed";
    const inputs = now.inputs.map(a => place[a]);
    return inputs.length === nodes[i]!.inputs.length && inputs.every((a, k) => a === nodes[i]!.inputs[k]) ? "same" : "rewired";
  });
  const union = joined(left.index, nodes, entities, lives, [...wires.values()], 1);
  const moved = new Map(entities.map((entity, i) => [entity, i])),
    count = (change: Change) => changes.filter(each => each === change).length;
  const summary = `${count("same")} same, ${count("rewired")} rewired, ${count("changed")} changed, ${count("moved")} moved into ${count("made")}, ${count("removed")} removed, ${count("added")} added`;
  const order = union.stage.entities!.map(entity => moved.get(entity)!);
  return { ...union, changes: order.map(i => changes[i]!), fields: order.map(i => fields[i]!), summary };
}
