// Two graphs in one picture: every node that exists at some time, so that nothing moves while a rewrite is played. Pure.

import { nodeName, type GraphDoc, type NodeRecord, type Pass, type Stage, type TypeRecord } from "./doc.ts";
import { put } from "./format.ts";
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

export function joined(
  index: number,
  nodes: NodeRecord[],
  entities: string[],
  lives: Life[],
  wires: Wire[],
  steps: number,
): Union {
  const { order, inputs } = ordered(nodes, wires),
    place = order.map(() => 0);
  order.forEach((old, now) => (place[old] = now));
  const before = (b: number) => inputs[b]!.map(a => place[a]!).filter(a => a < place[b]!);
  const sorted = order.map(old => ({ ...nodes[old]!, inputs: before(old), twin: -1 }));
  const users = sorted.map((): number[] => []);
  sorted.forEach((node, b) => node.inputs.forEach(a => users[a]!.push(b)));
  return {
    stage: {
      index,
      groups: [],
      key: "",
      role: "",
      title: "",
      parent: -1,
      nodes: sorted,
      outputs: [],
      gradients: new Map(),
      users,
      layout: null,
      entities: order.map(old => entities[old]!),
    },
    lives: order.map(old => lives[old]!),
    wires: wires.map(wire => ({ ...wire, a: place[wire.a]!, b: place[wire.b]! })),
    steps,
  };
}

const FOREVER = Infinity;

/** A pass as a picture of places: what a step puts where another node was stands in the place of that node. */
export interface Replay extends Union {
  /** The nodes that stand in each place at some time. */
  tenants: { node: NodeRecord; entity: string; reads: string[]; life: Life }[][];
  /** The places at which each step changes something, wires included; those of step 0 are none. */
  touched: number[][];
  /** How many nodes live after each number of steps. */
  alive: number[];
}

/** What each step touches, and what it leaves. */
function events(tenants: Replay["tenants"], wires: readonly Wire[], steps: number): Pick<Replay, "touched" | "alive"> {
  const touched = Array.from({ length: steps + 1 }, () => new Set<number>()),
    alive = touched.map(() => 0);
  const mark = ({ born, died }: Life, ...places: number[]) => {
    for (const when of [born, died]) if (when > 0) for (const place of places) touched[when]?.add(place);
  };
  wires.forEach(wire => mark(wire, wire.a, wire.b));
  tenants.forEach((all, place) =>
    all.forEach(({ life }) => {
      mark(life, place);
      alive[life.born]!++;
      if (life.died <= steps) alive[life.died]!--;
    }),
  );
  for (let k = 1; k <= steps; k++) alive[k]! += alive[k - 1]!;
  return { touched: touched.map(all => [...all].sort((a, b) => a - b)), alive };
}

/** How much room the text of a node takes. */
const room = ({ op, raw, type }: NodeRecord, doc: GraphDoc): number =>
  Math.max(op.length + raw.length, 0.9 * (doc.types[type]?.text.length ?? 0));

/** The replay of a pass: what lives after each number of steps. */
export function replayed(doc: GraphDoc, pass: Pass): Replay {
  const from = doc.stages[pass.from]!,
    to = doc.stages[pass.to]!;
  const tenants: Replay["tenants"] = from.nodes.map((node, i) => [
      {
        node,
        entity: `node:${from.index}.${i}`,
        reads: node.inputs.map(a => nodeName(from.nodes[a]!)),
        life: { born: 0, died: FOREVER },
      },
    ]),
    names = new Map(from.nodes.map(node => [node.key, nodeName(node)])),
    place = new Map(from.nodes.map((node, i) => [node.key, i])),
    after = new Map(to.nodes.map((node, i) => [node.key, i])),
    types = new Map(doc.types.map((type, i) => [type.text, i])),
    families = new Map([...from.nodes, ...to.nodes].map(node => [node.op, node.family]));
  const wires: Wire[] = [],
    inputs = new Map(from.nodes.map(node => [node.key, node.inputs.map(a => from.nodes[a]!.key)])),
    ends = new Map<string, { wire: Wire; from: string; to: string }[]>();
  const connect = (a: string, b: string, born: number) => {
    const wire = { a: place.get(a)!, b: place.get(b)!, born, died: FOREVER };
    wires.push(wire);
    for (const end of [a, b]) put(ends, end, { wire, from: a, to: b });
  };
  const die = (key: string, when: number, other?: string) => {
    for (const { wire, from: a } of ends.get(key) ?? [])
      if (wire.died === FOREVER && (other === undefined || a === other)) wire.died = when;
  };
  inputs.forEach((keys, b) => keys.forEach(a => connect(a, b, 0)));
  pass.rewrites.forEach((step, s) => {
    const now = s + 1,
      rewired = (step.rewired ?? []) as [string, number, string][],
      removed = new Set(step.removed),
      instead = new Map(
        rewired.flatMap(([reader, port, fresh]) => (port < 0 ? [] : [[fresh, inputs.get(reader)![port]!]])),
      );
    for (const each of step.added ?? []) {
      const made = each as {
          key: string;
          op: string;
          name: string;
          type: string;
          inputs: string[];
          attrs: NodeRecord["attrs"];
        },
        known = to.nodes[after.get(made.key) ?? -1],
        like = tenants[place.get(made.inputs[0] ?? "") ?? 0]![0]!.node;
      const node = known ?? {
        ...like,
        key: made.key,
        op: made.op,
        name: made.name,
        raw: made.name,
        label: "",
        type: types.get(made.type) ?? -1,
        attrs: made.attrs,
        family: families.get(made.op) ?? "elementwise",
        flags: made.inputs.length > 0 ? [] : ["leaf"],
      };
      const entity = known ? `node:${to.index}.${after.get(made.key)}` : `step:${pass.index}.${s}`,
        before = instead.get(made.key),
        taken = before !== undefined && removed.has(before) ? place.get(before)! : tenants.length;
      place.set(made.key, taken);
      (tenants[taken] ??= []).push({
        node,
        entity,
        reads: made.inputs.map(key => names.get(key)!),
        life: { born: now, died: FOREVER },
      });
      names.set(made.key, nodeName(node));
      inputs.set(made.key, [...made.inputs]);
      made.inputs.forEach(a => connect(a, made.key, now));
    }
    for (const [reader, port, fresh] of rewired) {
      if (port < 0) continue;
      die(reader, now, inputs.get(reader)![port]!);
      inputs.get(reader)![port] = fresh;
      connect(fresh, reader, now);
    }
    for (const key of step.removed) {
      tenants[place.get(key)!]!.find(({ node }) => node.key === key)!.life.died = now;
      die(key, now);
    }
  });
  // The layout makes room for the widest of each place.
  const widest = tenants.map(all =>
    all.map(({ node }) => node).reduce((a, b) => (room(b, doc) > room(a, doc) ? b : a)),
  );
  const made = joined(
    from.index,
    widest,
    tenants.map(([first]) => first!.entity),
    tenants.map((_, i) => ({ born: i, died: 0 })),
    wires.filter(({ a, b }) => a !== b),
    pass.rewrites.length,
  );
  const settled = made.lives.map(({ born }) => tenants[born]!);
  return { ...made, tenants: settled, ...events(settled, made.wires, made.steps) };
}

export type Change = "same" | "rewired" | "changed" | "moved" | "removed" | "made" | "added";
export const LETTERS: Record<Change, string> = {
  same: "",
  rewired: "·",
  changed: "~",
  moved: ">",
  removed: "−",
  made: "<",
  added: "+",
};

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

/** The nodes of a stage that no node of the other has the key of, by hash; -1: several. */
function alone(stage: Stage, other: Stage): Map<string, number> {
  const keys = new Set(other.nodes.map(({ key }) => key)),
    found = new Map<string, number>();
  stage.nodes.forEach(({ key, hash }, i) => keys.has(key) || found.set(hash, found.has(hash) ? -1 : i));
  return found;
}

/** Two stages of a document: nodes are the same where their keys are; what two results for one graph (a variant) made alike is, too. */
export function differing(doc: GraphDoc, left: Stage, right: Stage): Diff {
  const nodes = left.nodes.map(node => node),
    entities = nodes.map((_, i) => `node:${left.index}.${i}`),
    lives: Life[] = nodes.map(() => ({ born: 0, died: 1 })),
    at = new Map(nodes.map((node, i) => [node.key, i]));
  const [mine, theirs] =
    left.parent === right.parent && left.parent >= 0 ? [alone(left, right), alone(right, left)] : [];
  const place = right.nodes.map((node, i) => {
    const known = at.get(node.key) ?? (theirs?.get(node.hash) === i ? mine!.get(node.hash) : undefined);
    if (known !== undefined && known >= 0) {
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
  const came = (entity: string, other: Stage) =>
    [...lit([entity])].some(each => each.startsWith(`node:${other.index}.`));
  const changes = lives.map(({ born, died }, i): Change => {
    if (died === 1) return came(entities[i]!, right) ? "moved" : "removed";
    if (born === 1) return came(entities[i]!, left) ? "made" : "added";
    const now = right.nodes[place.indexOf(i)]!,
      before = own(nodes[i]!, doc.types);
    fields[i] = own(now, doc.types)
      .flatMap(([name, value], k) => (value === before[k]![1] ? [] : [`${name}: ${before[k]![1]} → ${value}`]))
      .join("; ");
    if (fields[i]) return "changed";
    const inputs = now.inputs.map(a => place[a]);
    return inputs.length === nodes[i]!.inputs.length && inputs.every((a, k) => a === nodes[i]!.inputs[k])
      ? "same"
      : "rewired";
  });
  const union = joined(left.index, nodes, entities, lives, [...wires.values()], 1);
  const moved = new Map(entities.map((entity, i) => [entity, i])),
    count = (change: Change) => changes.filter(each => each === change).length;
  const summary = `${count("same")} same, ${count("rewired")} rewired, ${count("changed")} changed, ${count("moved")} moved into ${count("made")}, ${count("removed")} removed, ${count("added")} added`;
  const order = union.stage.entities!.map(entity => moved.get(entity)!);
  return { ...union, changes: order.map(i => changes[i]!), fields: order.map(i => fields[i]!), summary };
}
