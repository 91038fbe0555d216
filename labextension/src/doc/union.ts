// Draw two graphs as one: every node that exists at some time has a place, so that a replay moves nothing. Pure.

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

/** Sort nodes with inputs first; an edge that closes a circle between the two graphs is left out of the layout. */
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

/** The replay of a pass over places: a node that a step puts in place of another one stands where that stood. */
export interface Replay extends Union {
  /** The nodes that stand in each place at some time. */
  tenants: { node: NodeRecord; entity: string; reads: string[]; life: Life }[][];
  /** The places at which each step changes something, wires included; those of step 0 are none. */
  touched: number[][];
  /** The number of nodes that live after each number of steps. */
  alive: number[];
}

/** Return the places that each step touches, and the number of nodes alive after it. */
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

/** Return the room that the text of a node takes, in letters. */
const room = ({ op, raw, type }: NodeRecord, doc: GraphDoc): number =>
  Math.max(op.length + raw.length, 0.9 * (doc.types[type]?.text.length ?? 0));

/** A node that a step of a pass adds. */
interface Added {
  key: string;
  op: string;
  name: string;
  type: string;
  inputs: string[];
  attrs: NodeRecord["attrs"];
  /** The family of the first node of its op that a later step removes. */
  family?: string;
}

/** The places, nodes and wires of a pass, gathered step by step. Nodes go by their keys. */
class Places {
  readonly tenants: Replay["tenants"] = [];
  readonly wires: Wire[] = [];
  readonly #doc: GraphDoc;
  readonly #pass: Pass;
  readonly #families = new Map<string, string>();
  readonly #to: Stage;
  readonly #names = new Map<string, string>();
  readonly #place = new Map<string, number>();
  readonly #inputs = new Map<string, string[]>();
  readonly #ends = new Map<string, { wire: Wire; from: string }[]>();
  readonly #after: Map<string, number>;
  readonly #types: Map<string, number>;

  constructor(doc: GraphDoc, pass: Pass) {
    const from = doc.stages[pass.from]!;
    this.#doc = doc;
    this.#pass = pass;
    this.#to = doc.stages[pass.to]!;
    this.#after = new Map(this.#to.nodes.map((node, i) => [node.key, i]));
    this.#types = new Map(doc.types.map((type, i) => [type.text, i]));
    from.nodes.forEach((node, i) => {
      this.#put(
        i,
        node,
        `node:${from.index}.${i}`,
        node.inputs.map(a => from.nodes[a]!.key),
        0,
      );
    });
    this.#inputs.forEach((keys, b) => keys.forEach(a => this.#connect(a, b, 0)));
  }

  /** Take in step `s` of the pass. */
  step({ added, rewired, removed }: Pass["rewrites"][number], s: number): void {
    const now = s + 1;
    const gone = new Set(removed);
    const ports = ((rewired ?? []) as [reader: string, port: number, fresh: string][]).filter(([, port]) => port >= 0);
    const instead = new Map(ports.map(([reader, port, fresh]) => [fresh, this.#inputs.get(reader)![port]!]));
    for (const each of (added ?? []) as unknown as Added[]) {
      const before = instead.get(each.key);
      const place = before !== undefined && gone.has(before) ? this.#place.get(before)! : this.tenants.length;
      this.#add(each, place, s);
    }
    for (const [reader, port, fresh] of ports) {
      const inputs = this.#inputs.get(reader)!;
      this.#cut(reader, now, inputs[port]!);
      inputs[port] = fresh;
      this.#connect(fresh, reader, now);
    }
    for (const key of removed) {
      this.tenants[this.#place.get(key)!]!.find(({ node }) => node.key === key)!.life.died = now;
      this.#cut(key, now);
    }
  }

  /** Put a node that a step adds into a place. */
  #add(added: Added, place: number, s: number): void {
    const index = this.#after.get(added.key);
    const known = this.#to.nodes[index ?? -1];
    const like = this.tenants[this.#place.get(added.inputs[0] ?? "") ?? 0]![0]!.node;
    const { key, op, name, type, inputs, attrs, family } = added;
    if (family) this.#families.set(op, family);
    const node = known ?? {
      ...like,
      key,
      op,
      name,
      raw: name,
      label: "",
      type: this.#types.get(type) ?? -1,
      attrs,
      family: this.#families.get(op) ?? "elementwise",
      flags: inputs.length > 0 ? [] : ["leaf"],
    };
    const entity = known ? `node:${this.#to.index}.${index}` : `step:${this.#pass.index}.${s}`;
    this.#put(place, node, entity, inputs, s + 1);
    inputs.forEach(a => this.#connect(a, key, s + 1));
  }

  #put(place: number, node: NodeRecord, entity: string, inputs: readonly string[], born: number): void {
    this.#names.set(node.key, nodeName(node));
    const reads = inputs.map(key => this.#names.get(key)!);
    (this.tenants[place] ??= []).push({ node, entity, reads, life: { born, died: FOREVER } });
    this.#place.set(node.key, place);
    this.#inputs.set(node.key, [...inputs]);
  }

  #connect(a: string, b: string, born: number): void {
    const wire = { a: this.#place.get(a)!, b: this.#place.get(b)!, born, died: FOREVER };
    this.wires.push(wire);
    for (const end of [a, b]) put(this.#ends, end, { wire, from: a });
  }

  /** End the wires of a node, or those of them that begin at `other`. */
  #cut(key: string, when: number, other?: string): void {
    for (const { wire, from } of this.#ends.get(key) ?? [])
      if (wire.died === FOREVER && (other === undefined || from === other)) wire.died = when;
  }

  /** The widest node of each place: the layout makes room for it. */
  widest(): NodeRecord[] {
    const wider = (a: NodeRecord, b: NodeRecord) => (room(b, this.#doc) > room(a, this.#doc) ? b : a);
    return this.tenants.map(all => all.map(({ node }) => node).reduce(wider));
  }
}

/** Return the replay of a pass: the nodes alive after each number of steps. */
export function replayed(doc: GraphDoc, pass: Pass): Replay {
  const places = new Places(doc, pass);
  const { tenants, wires } = places;
  pass.rewrites.forEach((step, s) => places.step(step, s));
  const union = joined(
    pass.from,
    places.widest(),
    tenants.map(([first]) => first!.entity),
    tenants.map((_, i) => ({ born: i, died: 0 })),
    wires.filter(({ a, b }) => a !== b),
    pass.rewrites.length,
  );
  const settled = union.lives.map(({ born }) => tenants[born]!);
  return { ...union, tenants: settled, ...events(settled, union.wires, union.steps) };
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
  /** The fields of a changed node that differ. */
  fields: string[];
  summary: string;
}

const own = (node: NodeRecord, types: readonly TypeRecord[]): [string, string][] => [
  ["op", node.op],
  ["type", types[node.type]?.text ?? ""],
  ["attributes", JSON.stringify(node.attrs ?? {}, Object.keys(node.attrs ?? {}).sort())],
];

/** Nodes by name; -1: several have it. */
function alone(nodes: readonly number[], name: (i: number) => string): Map<string, number> {
  const found = new Map<string, number>();
  for (const i of nodes) found.set(name(i), found.has(name(i)) ? -1 : i);
  return found;
}

/** Return the nodes of the stage before that each node of a stage came from. */
function originsOf({ links }: GraphDoc, { index, parent }: Stage): (i: number) => readonly number[] {
  const back = links.find(({ a, b }) => a === `node:${parent}` && b === `node:${index}`)?.back;
  return back ?? (() => []);
}

/** Pair the nodes that two results for one graph have each added: by hash, else by their origins. */
function pairs(doc: GraphDoc, left: Stage, right: Stage): Map<number, number> {
  const work = (stage: Stage) => {
    const origins = originsOf(doc, stage);
    const said = (i: number) => `${origins(i)} ${JSON.stringify(own(stage.nodes[i]!, doc.types))}`;
    return (i: number) => (origins(i).length > 0 ? said(i) : "");
  };
  const rules = [
    [(i: number) => left.nodes[i]!.hash, (i: number) => right.nodes[i]!.hash],
    [work(left), work(right)],
  ] as const;
  const rest = (stage: Stage, other: Stage) => {
    const keys = new Set(other.nodes.map(({ key }) => key));
    return stage.nodes.flatMap(({ key }, i) => (keys.has(key) ? [] : [i]));
  };
  const found = new Map<number, number>();
  for (const [mine, theirs] of rules) {
    const taken = new Set(found.values());
    const known = alone(rest(left, right).filter(i => !taken.has(i)), mine);
    alone(rest(right, left).filter(i => !found.has(i)), theirs).forEach((i, name) => {
      const at = known.get(name) ?? -1;
      if (name && i >= 0 && at >= 0) found.set(i, at);
    });
  }
  return found;
}

/** Compare two stages: nodes are the same if their keys are, or, between two results for one graph, their work is. */
export function differing(doc: GraphDoc, left: Stage, right: Stage): Diff {
  const nodes = left.nodes.map(node => node),
    entities = nodes.map((_, i) => `node:${left.index}.${i}`),
    lives: Life[] = nodes.map(() => ({ born: 0, died: 1 })),
    at = new Map(nodes.map((node, i) => [node.key, i]));
  const siblings = left.parent === right.parent && left.parent >= 0,
    paired = siblings ? pairs(doc, left, right) : new Map<number, number>();
  const place = right.nodes.map((node, i) => {
    const known = at.get(node.key) ?? paired.get(i);
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
  const origins = [left, right].map(stage => originsOf(doc, stage)),
    rowOf = (i: number) => Number(entities[i]!.split(".")[1]);
  // Two results for one graph have their origins in common, and no links.
  const from = (i: number) => origins[lives[i]!.born]!(rowOf(i));
  const only = (side: number) => ({ born, died }: Life) => (side > 0 ? born === 1 : died === 1);
  const [ofLeft, ofRight] = [0, 1].map(
    side => new Set(lives.flatMap((life, i) => (siblings && only(side)(life) ? from(i) : []))),
  );
  const came = (i: number, other: Stage) =>
    siblings
      ? from(i).some(each => (other === right ? ofRight : ofLeft)!.has(each))
      : [...lit([entities[i]!])].some(each => each.startsWith(`node:${other.index}.`));
  const changes = lives.map(({ born, died }, i): Change => {
    if (died === 1) return came(i, right) ? "moved" : "removed";
    if (born === 1) return came(i, left) ? "made" : "added";
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
  const stays = `${count("same")} same, ${count("rewired")} rewired, ${count("changed")} changed`;
  const moves = `${count("moved")} moved into ${count("made")}`;
  const summary = `${stays}, ${moves}, ${count("removed")} removed, ${count("added")} added`;
  const order = union.stage.entities!.map(entity => moved.get(entity)!);
  return { ...union, changes: order.map(i => changes[i]!), fields: order.map(i => fields[i]!), summary };
}
