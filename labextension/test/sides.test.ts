// A rewrite as two small graphs, on steps written by hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { GraphDoc, Pass } from "../src/doc/doc.ts";
import { sidesOf } from "../src/doc/sides.ts";

const node = (key: string, op: string, inputs: number[], name = "", family = "elementwise") => ({
  key,
  op,
  name,
  inputs,
  family,
});
/** relu(x @ w + b), and the same product once more. */
const nodes = [
  node("n0", "input", [], "x", "leaf"),
  node("n1", "parameter", [], "w", "leaf"),
  node("n2", "parameter", [], "b", "leaf"),
  node("n3", "matmul", [0, 1], "", "contraction"),
  node("n4", "add", [3, 2]),
  node("n5", "relu", [4], "h"),
  node("n6", "matmul", [0, 1], "", "contraction"),
  node("n7", "neg", [6]),
  node("n8", "neg", [7]),
];
const step = (at: string, bindings: object, removed: string[], added: object[], rewired: unknown[]) => ({
  rule: "",
  label: "",
  at: [at],
  bindings,
  removed,
  added,
  rewired,
});
const FUSED = { key: "0.0.0", op: "fused_matmul_add", name: "", inputs: ["n0", "n1", "n2"] };
const doc = { stages: [{ nodes }, { nodes: [] }] } as unknown as GraphDoc;
const passOf = (...rewrites: object[]) => ({ from: 0, to: 1, rewrites }) as unknown as Pass;
const fuse = step("n4", { a: "n0", b: "n1", c: "n2" }, ["n3", "n4"], [FUSED], [["n5", 0, "0.0.0"]]);
const texts = (pass: Pass, k: number) => {
  const { before, after } = sidesOf(doc, pass, k)!;
  return `${before.text} ⇒ ${after.text}`;
};

test("a fusion: the pattern with its operands, then the fused op", () => {
  const { before, after } = sidesOf(doc, passOf(fuse), 0)!;
  assert.equal(`${before.text} ⇒ ${after.text}`, "add(matmul(x, w), b) ⇒ fused_matmul_add(x, w, b)");
  assert.deepEqual(
    before.nodes.map(({ text, operand, y }) => [text, operand, y]),
    [
      ["x", true, 0],
      ["w", true, 0],
      ["matmul", false, 46],
      ["b", true, 46],
      ["add", false, 92],
    ],
  );
  assert.equal(after.edges.length, 3);
});

test("a product that others read too stays in the pattern, and is not an operand", () => {
  const kept = step("n4", { a: "n0", b: "n1", c: "n2" }, ["n4"], [FUSED], [["n5", 0, "0.0.0"]]);
  assert.equal(texts(passOf(kept), 0), "add(matmul(x, w), b) ⇒ fused_matmul_add(x, w, b)");
});

test("what a variable stands for is an operand; a rule may leave nothing but that", () => {
  const none = step("n8", { x: "n6" }, ["n7", "n8"], [], [["n9", -1, "n6"]]);
  assert.equal(texts(passOf(none), 0), "neg(neg(matmul)) ⇒ matmul");
});

test("a merge shows both that are alike, and the one that stays", () => {
  const merge = step("n6", { kept: "n3" }, ["n6"], [], [["n7", 0, "n3"]]);
  assert.equal(texts(passOf(merge), 0), "matmul(x, w), matmul(x, w) ⇒ matmul(x, w)");
});

test("a later step is seen in the graph that earlier ones left", () => {
  const after = step("n5", { x: "0.0.0" }, ["n5"], [{ key: "0.1.0", op: "silu", name: "", inputs: ["0.0.0"] }], []);
  assert.equal(texts(passOf(fuse, after), 1), "relu(fused_matmul_add) ⇒ silu(fused_matmul_add)");
  assert.equal(sidesOf(doc, passOf({ at: [], removed: ["n0"], rewired: [] }), 0), null, "a sweep has no sides");
});

test("no two boxes of a row touch, and every edge leads down", () => {
  for (const side of Object.values(sidesOf(doc, passOf(fuse), 0)!)) {
    for (const a of side.nodes)
      for (const b of side.nodes) if (a !== b && a.y === b.y) assert.ok(a.x + a.w < b.x || b.x + b.w < a.x);
    for (const [a, b] of side.edges) assert.ok(side.nodes[a]!.y < side.nodes[b]!.y);
    assert.ok(side.nodes.every(({ x, w }) => x >= 0 && x + w <= side.width));
  }
});
