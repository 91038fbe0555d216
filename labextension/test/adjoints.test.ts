// The derivative as it is built step by step: y = mean(relu(x @ w)) by hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import { builtAt, keptBytes } from "../src/doc/adjoints.ts";
import type { GraphDoc, Pass } from "../src/doc/doc.ts";
import { buildingDress, changedBetween } from "../src/panes/building.ts";

const node = (op: string, inputs: number[], name = "", flags: string[] = []) => ({ op, inputs, name, flags });
const FORWARD = [
  node("input", [], "x"),
  node("parameter", [], "w"),
  node("matmul", [0, 1], "z"),
  node("relu", [2], "h"),
  node("mean", [3], "", ["loss"]),
];
/** 5 the seed, 6 of the mean, 7 of relu (reads h), 8 ∂w (reads x), 9 ∂x; nothing is summed. */
const ADJOINTS = [
  node("full", []),
  node("broadcast_to", [5]),
  node("relu_grad", [3, 6]),
  node("matmul_at", [0, 7]),
  node("matmul_bt", [7, 1]),
];
const doc = { stages: [{ nodes: FORWARD }, { nodes: [...FORWARD, ...ADJOINTS] }] } as unknown as GraphDoc;
const step = (of: number, cotangents: number[], added: number[], kept: [number, number][], accumulated: number[] = []) => ({
  node: of,
  cotangents,
  added,
  accumulated,
  residuals: kept.map(([each, nbytes]) => ({ node: each, nbytes })),
});
const pass = {
  index: 1,
  from: 0,
  to: 1,
  diffs: [step(4, [5], [6], []), step(3, [6], [7], [[3, 40]]), step(2, [7], [8, 9], [[0, 100], [3, 40]])],
} as unknown as Pass;

test("a step: what comes later, the gradient that arrives, what is kept, and its bytes", () => {
  const first = builtAt(doc, pass, 0),
    middle = builtAt(doc, pass, 1),
    end = builtAt(doc, pass, 2);
  assert.deepEqual([...first.later], [7, 8, 9]);
  assert.deepEqual([...middle.later], [8, 9]);
  assert.equal(end.later.size, 0);
  assert.deepEqual([...first.flow], ["5 6"]);
  assert.deepEqual([...middle.flow], ["6 7"]);
  assert.deepEqual([...end.flow], ["7 8", "7 9"]);
  assert.deepEqual([first, middle, end].map(({ symbol }) => symbol), ["∂L/∂L", "∂L/∂h", "∂L/∂z"]);
  assert.deepEqual([...middle.kept], ["3 7"]);
  assert.deepEqual([...end.kept], ["3 7", "0 8"]);
  assert.deepEqual([first, middle, end].map(({ bytes, all }) => [bytes, all]), [[0, 140], [40, 140], [140, 140]]);
});

test("a value that two steps keep is counted once", () => {
  assert.deepEqual([0, 1, 2, 3].map(k => keptBytes(pass, k)), [0, 0, 40, 140]);
});

test("a rule that adds nothing passes the gradient on; parts that are summed flow into the sum", () => {
  const quiet = { ...pass, diffs: [step(3, [7], [], [])] } as unknown as Pass;
  assert.deepEqual([...builtAt(doc, quiet, 0).flow], ["6 7"]);
  const nodes = [...FORWARD, ...ADJOINTS, node("add", [8, 9]), node("neg", [10])];
  const summed = { stages: [doc.stages[0], { nodes }] } as unknown as GraphDoc;
  const sum = { ...pass, diffs: [step(2, [8, 9], [11], [], [10])] } as unknown as Pass;
  assert.deepEqual([...builtAt(summed, sum, 0).flow].sort(), ["10 11", "8 10", "9 10"]);
});

test("the other factor of a product is no gradient: the sign of |z| does not flow", () => {
  const nodes = [...FORWARD, ...ADJOINTS.slice(0, 2), node("sign", [2]), node("mul", [7, 6])];
  const signed = { stages: [doc.stages[0], { nodes }] } as unknown as GraphDoc;
  const quiet = { ...pass, diffs: [step(4, [5], [6], []), step(3, [6], [7, 8], []), step(2, [8], [], [])] };
  assert.deepEqual([...builtAt(signed, quiet as unknown as Pass, 2).flow], ["6 8"]);
});

test("the picture: outlines, thick and solid edges, one symbol; a closed group stands for its nodes", () => {
  const built = builtAt(doc, pass, 2),
    before = builtAt(doc, pass, 1);
  const dress = buildingDress(() => before, undefined);
  assert.deepEqual([7, 8].map(dress.node), [{}, { "data-later": true }]);
  assert.deepEqual([dress.edge(6, 7), dress.edge(3, 7), dress.edge(7, 8), dress.edge(5, 6)], [
    "gd-edge-flow", "gd-edge-kept", "gd-edge-later", "",
  ]);
  const now = buildingDress(() => built, undefined);
  assert.deepEqual([now.note(7, 8), now.note(7, 9), now.note(7, 8)], ["∂L/∂z", "", "∂L/∂z"]);
  const folded = buildingDress(() => built, [[6, 7], [8, 9]]);
  assert.equal(folded.edge(0, 1), "gd-edge-flow");
  assert.deepEqual(buildingDress(() => null, undefined).node(8), {});
  assert.deepEqual([...changedBetween(null, before)].sort(), [3, 6, 7, 8, 9]);
});
