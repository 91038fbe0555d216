// Provenance: the entities that are linked to a selected one (docs/graphdoc.md, "Links"). Pure; knows no DOM.

import type { GraphDoc, Link, OptimizeReport } from "./doc.ts";
import { plural, put } from "./format.ts";

export interface Entity {
  kind: string;
  at: number[];
}

/** The indexes of the entities of a kind that has one index: `indexesOf("line", ["line:3", "node:0.1"])` is `[3]`. */
export const indexesOf = (kind: string, entities: Iterable<string>): number[] =>
  [...entities].flatMap(each => (each.startsWith(`${kind}:`) ? [Number(each.slice(kind.length + 1))] : []));

/** "node:2.31" -> {kind: "node", at: [2, 31]}; null for anything else. */
export function parseEntity(text: string): Entity | null {
  const match = /^(line|node|edge|step|rule|kernel|dispatch|interval|wgsl):(\d+(?:\.\d+)*)$/.exec(text);
  return match ? { kind: match[1]!, at: match[2]!.split(".").map(Number) } : null;
}

/** A link from a level to another, one way or the other. */
interface Way {
  level: string;
  rows: Link["out"];
}
type Ways = Map<string, Way[]>;
type Reached = ReadonlyMap<string, ReadonlySet<number>>;

/** The dispatches that write and read buffers. */
export interface Uses {
  writes: ReadonlySet<string>;
  reads: ReadonlySet<string>;
}

/** Return the dispatches of the plan that use an interval, in order. */
export const users = (doc: GraphDoc, interval: number, how: keyof Uses): number[] =>
  (doc.plan?.dispatches ?? []).flatMap((dispatch, k) => (dispatch[how].includes(interval) ? [k] : []));

/** Return the dispatches that use the buffers among these entities. */
export function usesOf(doc: GraphDoc, entities: readonly string[]): Uses {
  const of = (how: keyof Uses) =>
    new Set(indexesOf("interval", entities).flatMap(each => users(doc, each, how).map(k => `dispatch:${k}`)));
  return { writes: of("writes"), reads: of("reads") };
}

export interface Provenance {
  /** All entities linked to this one: itself, its origins, its results; with a buffer its readers. */
  closure(entity: string): ReadonlySet<string>;
  /** The origins of an entity, by rows of each level. */
  origins(entity: string): Reached;
  /** The union of the closures of several entities. */
  lit(entities: readonly string[]): ReadonlySet<string>;
}

function waysOf(doc: GraphDoc): { down: Ways; up: Ways } {
  const down: Ways = new Map(),
    up: Ways = new Map();
  for (const { a, b, out, back } of doc.links) {
    put(down, a, { level: b, rows: out });
    put(up, b, { level: a, rows: back });
  }
  return { down, up };
}

/** Everything that `ways` reaches from the seeds, without going from a level in `closed` to WGSL. */
function reach(ways: Ways, seeds: [string, number][], closed: string | null): Reached {
  const reached = new Map<string, Set<number>>();
  const stack = [...seeds];
  while (stack.length > 0) {
    const [level, row] = stack.pop()!;
    for (const way of ways.get(level) ?? []) {
      if (level === closed && way.level === "wgsl") continue;
      const rows = reached.get(way.level) ?? new Set<number>(),
        next = way.rows(row);
      reached.set(way.level, rows);
      for (const id of next) {
        if (rows.has(id)) continue;
        rows.add(id);
        stack.push([way.level, id]);
      }
    }
  }
  return reached;
}

/** Names of entities for rows of a level; WGSL rows count through all kernels. */
function namesOf(doc: GraphDoc): (level: string, rows: Iterable<number>) => string[] {
  const base = doc.wgslBase;
  const wgsl = (row: number) => {
    let kernel = 0;
    while (kernel + 1 < base.length && base[kernel + 1]! <= row) kernel++;
    return `wgsl:${kernel}.${row - base[kernel]! + 1}`;
  };
  return (level, rows) => {
    if (level === "wgsl") return Array.from(rows, wgsl);
    const [kind, part] = level.split(":");
    const prefix = part === undefined ? `${kind}:` : `${kind}:${part}.`;
    return Array.from(rows, row => prefix + row);
  };
}

/** Level and row of an entity that links know. */
function placeOf(doc: GraphDoc, { kind, at }: Entity): [string, number] {
  if (kind === "wgsl") return ["wgsl", (doc.wgslBase[at[0]!] ?? 0) + at[1]! - 1];
  return at.length === 2 ? [`${kind}:${at[0]}`, at[1]!] : [kind, at[0]!];
}

const rowsBack = (ways: Ways, level: string, from: string, row: number): number[] =>
  (ways.get(from) ?? [])
    .filter(way => way.level === level)
    .flatMap(way => way.rows(row));

export function provenance(doc: GraphDoc): Provenance {
  const { down, up } = waysOf(doc);
  const names = namesOf(doc);
  const cache = new Map<string, ReadonlySet<string>>();

  /** The entities that an edge, rule, kernel or WGSL line stands for. */
  function standsFor({ kind, at }: Entity): string[] {
    const [first = 0, second = 0, third = 0] = at;
    if (kind === "edge") {
      const source = doc.stages[first]?.nodes[second]?.inputs[third];
      return source === undefined ? [] : [`node:${first}.${second}`, `node:${first}.${source}`];
    }
    if (kind === "rule") {
      const pass = doc.passes[first];
      const rule = (pass?.report as unknown as OptimizeReport | undefined)?.rules?.[second]?.id;
      return (pass?.rewrites ?? []).flatMap((step, i) => (step.rule === rule ? [`step:${first}.${i}`] : []));
    }
    if (kind === "kernel") return names("dispatch", rowsBack(up, "dispatch", "kernel", first));
    const row = placeOf(doc, { kind, at })[1];
    const levels = (up.get("wgsl") ?? []).map(way => way.level).filter(level => level.startsWith("node:"));
    return levels.flatMap(level => names(level, rowsBack(up, level, "wgsl", row)));
  }

  function compute(text: string): ReadonlySet<string> {
    const lit = new Set<string>([text]);
    const entity = parseEntity(text);
    if (!entity) return lit;
    if (["edge", "rule", "kernel", "wgsl"].includes(entity.kind)) {
      for (const other of standsFor(entity)) closure(other).forEach(each => lit.add(each));
      return lit;
    }
    const place = placeOf(doc, entity);
    // Only a dispatch lights its whole kernel; anything above it lights its own WGSL lines through node-wgsl.
    const closed = entity.kind === "dispatch" ? null : "kernel";
    for (const reached of [reach(down, [place], closed), reach(up, [place], null)]) {
      reached.forEach((rows, level) => names(level, rows).forEach(each => lit.add(each)));
    }
    if (entity.kind === "interval") users(doc, entity.at[0]!, "reads").forEach(k => lit.add(`dispatch:${k}`));
    return lit;
  }

  function closure(text: string): ReadonlySet<string> {
    const known = cache.get(text);
    if (known) return known;
    const made = compute(text);
    if (cache.size > 200) cache.clear();
    cache.set(text, made);
    return made;
  }

  return {
    closure,
    origins: entity => reach(up, [placeOf(doc, parseEntity(entity)!)], null),
    lit: entities =>
      entities.length === 1 ? closure(entities[0]!) : new Set(entities.flatMap(each => [...closure(each)])),
  };
}

/** An entity by the keys of its stage or pass, so that it can be found again in a later document of the same study. */
export function portable(doc: GraphDoc, text: string): string {
  const entity = parseEntity(text);
  if (!entity || entity.at.length < 2) return text;
  const table =
    entity.kind === "step" || entity.kind === "rule" ? doc.passes : entity.kind === "wgsl" ? null : doc.stages;
  const key = table?.[entity.at[0]!]?.key;
  return key === undefined ? text : `${entity.kind}@${key}#${entity.at.slice(1).join(".")}`;
}

/** The reverse of `portable`; null where this document has no such stage or pass. */
export function local(doc: GraphDoc, text: string): string | null {
  const match = /^(\w+)@(.*)#([\d.]+)$/.exec(text);
  if (!match) return text;
  const [, kind, key, rest] = match;
  const table: { key: string }[] = kind === "step" || kind === "rule" ? doc.passes : doc.stages;
  const index = table.findIndex(each => each.key === key);
  return index < 0 ? null : `${kind}:${index}.${rest}`;
}

export interface ChainPart {
  text: string;
  title: string;
  entities: string[];
}

const kindOf = (n: number, word: string) => plural(n, word).replace(/^\S+ /, "");

const rowsOf = (entities: readonly string[]): number[] =>
  entities.map(each => parseEntity(each)!.at.at(-1)!).sort((a, b) => a - b);

/** Write one or two entities by name, more as a number. */
const worded = (names: readonly string[], word: string, named = word): string =>
  names.length > 2 ? plural(names.length, word) : `${named && `${kindOf(names.length, named)} `}${names.join(" + ")}`;

const NO_USES: Uses = { writes: new Set(), reads: new Set() };

/** The end of the chain of a buffer: the dispatches that read it. */
const readBy = (entities: string[]): ChainPart[] =>
  entities.length === 0
    ? []
    : [
        {
          text: `read by ${worded(rowsOf(entities).map(String), "dispatch")}`,
          title: `${plural(entities.length, "dispatch")} that read it`,
          entities,
        },
      ];

/** Join equal parts, so that a node that a pass left as it was appears once. */
const joinedAlike = (parts: readonly ChainPart[]): ChainPart[] =>
  parts.reduce<ChainPart[]>((all, part) => {
    const last = all.at(-1);
    if (last?.text !== part.text) return [...all, part];
    const title = `${last.title}; ${part.title}`;
    return [...all.slice(0, -1), { ...last, title, entities: [...last.entities, ...part.entities] }];
  }, []);

/** The lit set as a sentence from source line to buffer and its readers, for the status line: one or two of a kind by
 * name, more as a number. gdlab/view/ask/chain.py says the same. */
export function chain(doc: GraphDoc, lit: ReadonlySet<string>, uses: Uses = NO_USES): ChainPart[] {
  const groups = new Map<string, string[]>();
  const later = [...uses.reads].filter(each => !uses.writes.has(each));
  for (const text of lit) {
    const entity = parseEntity(text);
    if (!entity || later.includes(text)) continue;
    const level = entity.at.length === 2 && entity.kind !== "wgsl" ? `${entity.kind}:${entity.at[0]}` : entity.kind;
    put(groups, level, text);
  }
  const part = (level: string, word: string, one: (row: number) => string, named = word): ChainPart[] => {
    const entities = groups.get(level) ?? [];
    if (entities.length === 0) return [];
    const told = rowsOf(entities).map(one),
      names = word === "line" ? [...new Set(told)] : told; // several calls may stand on one line
    return [{ text: worded(names, word, named), title: word, entities }];
  };
  // The way from the source to the device; a derivative is on it only while nothing was made of it.
  const nodes = doc.stages.filter(
    stage => stage.role !== "derivative" || !doc.stages.some(each => each.role === "final"),
  );
  const nodeParts = nodes.flatMap(stage => {
    const told = (row: number) => [stage.nodes[row]!.op, stage.nodes[row]!.name].filter(Boolean).join(" ");
    const title = (entities: readonly string[]) => `${stage.title || stage.key}: ${entities.length} lit`;
    return part(`node:${stage.index}`, "node", told, "").map(each => ({ ...each, title: title(each.entities) }));
  });
  const dispatches = part("dispatch", "dispatch", String);
  return [
    ...part("line", "line", row => `${doc.lines[row]?.line ?? row}`),
    ...joinedAlike(nodeParts),
    ...dispatches,
    // The kernel of a dispatch goes without saying.
    ...(dispatches.length > 0 ? [] : part("kernel", "kernel", String)),
    ...part("interval", "buffer", row => doc.plan?.intervals[row]?.name || `${row}`),
    ...readBy(later),
  ];
}
