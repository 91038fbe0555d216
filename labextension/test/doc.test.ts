// The accessor: every form of a column, defaults, other formats refused, the compressed output form.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { column, inherit, number, openDoc, readDoc, records } from "../src/doc/doc.ts";
import { restored } from "../src/doc/shortened.ts";
import { smallDoc } from "./fixture.ts";

test("a column reads the same in each of its five forms", () => {
  const read = (raw: unknown) => [0, 1, 2].map(column({ count: 3, c: raw }, "c", "none"));
  assert.deepEqual(read(["a", "b", "a"]), ["a", "b", "a"]);
  assert.deepEqual(read({ words: ["a", "b"], index: [0, 1, 0] }), ["a", "b", "a"]);
  assert.deepEqual(read({ start: [0, 2, 2, 3], ids: [7, 8, 9] }), [[7, 8], [], [9]]);
  assert.deepEqual(read({ start: [0, 1, 3, 3], ids: [1, 0, 1], words: ["a", "b"] }), [["b"], ["a", "b"], []]);
  assert.deepEqual(read({ 1: "b" }), ["none", "b", "none"]);
  assert.deepEqual(read(undefined), ["none", "none", "none"]);
});

test("a shortened list reads as what it says, in each of its forms", () => {
  const runs = { "~": "runs", of: [7, -2], lengths: [2, 1] };
  assert.deepEqual(restored(runs), [7, 7, -2]);
  assert.deepEqual(restored({ a: { "~": "differences", of: runs } }), { a: [7, 14, 12] });
  assert.deepEqual(restored([{ "~": "lists", of: [1, 2, 3], lengths: [2, 0, 1] }]), [[[1, 2], [], [3]]]);
  assert.deepEqual(restored({ "~": "words", words: ["a", "b"], index: [1, 0, 1] }), ["b", "a", "b"]);
  assert.deepEqual(restored({ "~": "records", of: { a: runs, b: ["x", "y", "z"] } }), [
    { a: 7, b: "x" },
    { a: 7, b: "y" },
    { a: -2, b: "z" },
  ]);
  assert.throws(() => restored({ "~": "runs", of: [0], lengths: [1e15] }), /runs of more than/);
});

test("numbers come as numbers or as one of three words", () => {
  assert.deepEqual([number(2), number("inf"), number("-inf")], [2, Infinity, -Infinity]);
  assert(Number.isNaN(number("nan")) && Number.isNaN(number(null)));
  assert.deepEqual(records({ count: 2, n: ["inf", 3] }, { n: 0, absent: -1 }), [
    { n: Infinity, absent: -1 },
    { n: 3, absent: -1 },
  ]);
});

test("a name cannot disturb what is drawn beside it", () => {
  const read = (name: string) => records({ count: 1, name: [name] }, { name: "" })[0]!.name;
  assert.equal(read("w\u202e1\n"), "w\ufffd1\ufffd");
  assert.equal(read("∂שלום 2"), "∂\u2068שלום\u2069 2");
  assert.equal(read("größe ξ 名"), "größe ξ 名");
});

test("a document becomes records with defaults; unknown fields are passed over", () => {
  const doc = readDoc(smallDoc());
  const [written, optimized] = doc.stages;
  assert.deepEqual(
    written!.nodes.map(node => [node.key, node.op, node.name, node.family, node.flags.join()]),
    [
      ["n0", "input", "x", "leaf", "leaf"],
      ["n1", "parameter", "w", "leaf", "leaf"],
      ["n2", "matmul", "", "contraction", ""],
      ["n3", "relu", "h", "elementwise", "output"],
    ],
  );
  assert.deepEqual(written!.users, [[2], [2], [3], []]);
  assert.equal(written!.nodes[2]!.twin, -1);
  assert.equal(written!.nodes[2]!.cost_seconds, Infinity);
  assert.equal(written!.layout, null);
  assert.deepEqual(optimized!.layout!.boxes[2], { x: 0, y: 0, w: 96, row: 0 });
  assert.deepEqual(
    doc.passes[0]!.rewrites.map(step => [step.label, step.at.join(), step.iteration]),
    [
      ["Fuse", "n3", 1],
      ["sweep", "", null],
    ],
  );
  assert.deepEqual(
    doc.plan!.intervals.map(each => [each.name, each.first, each.pinned, each.alias_of]),
    [
      ["x", -1, "input", -1],
      ["h", 0, null, -1],
    ],
  );
  assert.deepEqual(doc.types[0]!.shape, [2, 3]);
});

test("another format is refused with what was wanted", async () => {
  assert.throws(
    () => readDoc({ ...smallDoc(), format: "gdlab.graph.v2" }),
    /given "gdlab.graph.v2", wanted "gdlab.graph.v1"/,
  );
  await assert.rejects(openDoc({ format: "other", gz: "" }), /wanted "gdlab.graph.v1"/);
});

test("the output form is unpacked, and the study of the envelope wins", async () => {
  const gz = gzipSync(JSON.stringify({ ...smallDoc(), title: "µ→λ" })).toString("base64");
  const doc = await openDoc({ format: "gdlab.graph.v1", study: "other", gz });
  assert.deepEqual([doc.title, doc.study, doc.stages.length], ["µ→λ", "other", 2]);
  assert.equal((await openDoc(smallDoc())).study, "s1");
});

test("what an output was opened with holds for a newer document: layouts, overlays, the view", () => {
  const asked = readDoc(smallDoc()),
    newer = readDoc(smallDoc());
  asked.view = { engine: "layered", overlay: "values", height: 300 };
  asked.overlays.push({ id: "values", label: "values", stage: 0, values: { "0": "[1, 2]" } });
  const own = { ...asked.stages[1]!.layout!, width: 1 };
  asked.stages[1]!.layout = own;
  newer.stages[0]!.nodes[1]!.op = "another"; // not the same graph: nothing of the old one fits it
  inherit(newer, asked);
  assert.deepEqual(newer.view, { engine: "layered", overlay: "values", height: 300 });
  assert.equal(newer.stages[1]!.layout, own);
  assert.equal(newer.overlays.length, 0);
  const same = readDoc(smallDoc());
  inherit(same, asked);
  assert.deepEqual([same.overlays.length, same.stages[0]!.nodes[0]!.told], [1, "[1, 2]"]);
});
