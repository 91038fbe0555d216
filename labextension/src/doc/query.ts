// The search language: words of a name or op, `op:matmul`, `shape:[32,*]`, `dtype:f16`, `attr:eps<1e-5`, `flag:output`,
// `kernel:3`, `/regex/`; all terms must hold. gdlab/view/ask/query.py is the same, held by a common corpus. Pure.

import type { GraphDoc, NodeRecord } from "./doc.ts";

/** Return whether a node meets a term; `kernels`: entry points of the kernels that run it. */
export interface Asked {
  node: NodeRecord;
  type: string;
  shape: readonly number[];
  dtype: string;
  kernels: readonly string[];
}
type Test = (asked: Asked) => boolean;
export type Query = { test: Test; error: null } | { test: null; error: string };

const TERMS = /\/(?:[^/\\]|\\.)+\/|\S+/g;
const has = (text: string, part: string): boolean => text.toLowerCase().includes(part.toLowerCase());

function shape(wanted: string): Test {
  const dims = wanted
    .replace(/^\[|\]$/g, "")
    .split(",")
    .map(each => each.trim());
  return ({ shape: given }) =>
    given.length === dims.length && dims.every((dim, i) => dim === "*" || dim === String(given[i]));
}

const COMPARE: Record<string, (a: number, b: number) => boolean> = {
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
};

function attribute(wanted: string): Test {
  const [, name = wanted, sign = "", value = ""] = /^(\w+)(<=|>=|<|>|=)(.+)$/.exec(wanted) ?? [];
  return ({ node }) => {
    const given = node.attrs?.[name];
    if (given === undefined) return false;
    if (!sign) return true;
    if (sign !== "=") return typeof given === "number" && COMPARE[sign]!(given, Number(value));
    return typeof given === "number"
      ? given === Number(value)
      : (typeof given === "string" ? given : JSON.stringify(given)) === value;
  };
}

const FIELDS: Record<string, (wanted: string) => Test> = {
  op: wanted => asked => asked.node.op === wanted,
  name: wanted => asked => has(asked.node.raw, wanted),
  shape,
  dtype: wanted => asked => asked.dtype === wanted,
  attr: attribute,
  flag: wanted => asked => asked.node.flags.includes(wanted),
  lane: wanted => asked => asked.node.lane === wanted,
  kernel: wanted => asked => asked.kernels.some(each => each === wanted || has(each, wanted)),
};

function term(text: string): Test {
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    const pattern = new RegExp(text.slice(1, -1));
    return ({ node }) => pattern.test(node.op) || pattern.test(node.raw);
  }
  const [, field = "", wanted = ""] = /^(\w+):(.+)$/.exec(text) ?? [];
  if (Object.hasOwn(FIELDS, field)) return FIELDS[field]!(wanted);
  return ({ node, type }) => has(node.op, text) || has(node.raw, text) || has(type, text);
}

export function parseQuery(text: string): Query {
  try {
    const tests = (text.match(TERMS) ?? []).map(term);
    return { test: asked => tests.every(each => each(asked)), error: null };
  } catch (error) {
    return { test: null, error: (error as Error).message };
  }
}

/** The kernels of every node of the compiled stage, by number and label. */
export function kernelsOf(doc: GraphDoc): (stage: number, node: number) => readonly string[] {
  const link = doc.links.find(({ a, b }) => a.startsWith("node:") && b === "dispatch"),
    known = doc.plan?.dispatches;
  if (!link || !known) return () => [];
  const at = Number(link.a.slice(5));
  return (stage, node) =>
    stage === at ? link.out(node).flatMap(k => [String(known[k]!.kernel), known[k]!.label]) : [];
}

/** The nodes of some stages that a query finds. */
export function hits(doc: GraphDoc, stages: readonly number[], query: Query): string[] {
  if (!query.test) return [];
  const kernels = kernelsOf(doc);
  return stages.flatMap(at =>
    doc.stages[at]!.nodes.flatMap((node, i) => {
      const { text = "", shape: dims = [], dtype = "" } = doc.types[node.type] ?? {};
      return query.test({ node, type: text, shape: dims, dtype, kernels: kernels(at, i) }) ? [`node:${at}.${i}`] : [];
    }),
  );
}
