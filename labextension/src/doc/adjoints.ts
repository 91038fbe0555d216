// The derivative as it is built: the values that one step of reverse mode reads, adds and keeps. Pure; knows no DOM.

import type { GraphDoc, Pass } from "./doc.ts";

/** The derivative after step `k`, in nodes of the stage that the pass leads to. Edges are `from reader`. */
export interface Built {
  pass: Pass;
  step: number;
  /** The nodes that later steps add. */
  later: ReadonlySet<number>;
  /** The edges along which the gradient arrives at this step. */
  flow: ReadonlySet<string>;
  /** The gradient that arrives, in mathematics: ∂L/∂z. */
  symbol: string;
  /** The wires of values that this step and those before it keep. */
  kept: ReadonlySet<string>;
  /** Bytes that are kept up to this step, and in all. */
  bytes: number;
  all: number;
}

/** The bytes of the values that the first steps of a pass keep; a value that two steps keep counts once. */
export function keptBytes(pass: Pass, steps: number): number {
  const seen = new Map(
    pass.diffs.slice(0, steps).flatMap(({ residuals }) => (residuals ?? []).map(({ node, nbytes }) => [node, nbytes])),
  );
  return [...seen.values()].reduce((sum, nbytes) => sum + nbytes, 0);
}

export function builtAt({ stages }: GraphDoc, pass: Pass, k: number): Built {
  const from = stages[pass.from]!,
    to = stages[pass.to]!,
    step = pass.diffs[k]!;
  const { cotangents, accumulated, added } = step,
    gradient = accumulated.at(-1) ?? cotangents.at(-1) ?? -1,
    isAdjoint = (node: number) => node >= from.nodes.length;
  const made = new Set(added);
  // A rule that adds nothing passes the gradient on: it is seen where it arrives.
  const ends = added.some(node => to.nodes[node]?.inputs.includes(gradient)) ? added : [gradient];
  const found = ends.flatMap(node =>
    (to.nodes[node]?.inputs ?? []).flatMap(input =>
      isAdjoint(input) && !made.has(input) && (node === gradient || input === gradient) ? [[input, node]] : [],
    ),
  );
  // A product's other factor, as the sign of an absolute value, is no gradient.
  const gradients = new Set(pass.diffs.flatMap(each => [...each.cotangents, ...each.accumulated])),
    carried = found.filter(each => gradients.has(each[0]!));
  const arriving = [
    ...(carried.length > 0 ? carried : found),
    ...accumulated.flatMap(node => (to.nodes[node]?.inputs ?? []).map(input => [input, node])),
  ];
  const kept = pass.diffs.slice(0, k + 1).flatMap(each =>
    (each.residuals ?? []).flatMap(({ node }) =>
      each.added.flatMap(reader => (to.nodes[reader]?.inputs.includes(node) ? [`${node} ${reader}`] : [])),
    ),
  );
  const of = from.nodes[step.node];
  return {
    pass,
    step: k,
    later: new Set(pass.diffs.slice(k + 1).flatMap(each => [...each.accumulated, ...each.added])),
    flow: new Set(arriving.map(pair => pair.join(" "))),
    symbol: `∂L/∂${of?.flags.includes("loss") ? "L" : of?.name || of?.op || step.node}`,
    kept: new Set(kept),
    bytes: keptBytes(pass, k + 1),
    all: keptBytes(pass, pass.diffs.length),
  };
}
