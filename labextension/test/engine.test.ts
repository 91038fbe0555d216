// The page as a kernel, without a GPU: numbers, checks of a document, breakpoints.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunSection } from "../src/doc/records.ts";
import { inWords, numbersOf, summarize, windowOf } from "../src/engine/numbers.ts";
import { uniform } from "../src/engine/philox.ts";
import { drawn, fault, unpacked } from "../src/engine/section.ts";
import { figureOf, parseTest } from "../src/engine/conditions.ts";
import { parseStop } from "../src/engine/stops.ts";

const zeros = (bytes: number): string => btoa("\0".repeat(bytes));

/** Two dispatches: h = x · w, loss of h. */
const section = (): RunSection => ({
  plan: {
    wgsl: ["", ""],
    dispatches: [
      { label: "MatMul[1x2x2]", kernel: 0, workgroups: [1, 1, 1], scalars: false, bind: [[0, "r"], [1, "r"], [2, "w"]], writes: [2] },
      { label: "MeanAll[2]", kernel: 1, workgroups: [1, 1, 1], scalars: false, bind: [[2, "r"], [3, "w"]], writes: [3] },
    ].map(each => ({ ...each, bind: each.bind as [number, "r" | "w"][], workgroups: [1, 1, 1] })),
    buffers: [
      { name: "x", kind: "input", shape: [1, 2], dtype: "f32", nbytes: 8, bound: 256, slot: 0 },
      { name: "w", kind: "parameter", shape: [2, 2], dtype: "f32", nbytes: 16, bound: 256, slot: 1 },
      { name: "h", kind: "intermediate", shape: [1, 2], dtype: "f32", nbytes: 8, bound: 256, slot: 2 },
      { name: "loss", kind: "loss", shape: [1], dtype: "f32", nbytes: 4, bound: 256, slot: 3 },
    ],
    slots: [256, 256, 256, 256],
    groups: 2,
    updates: 0,
  },
  constants: {},
  initial: { w: { fill: 0 } },
  batches: [{ x: zeros(8) }],
  inputs: { x: 0 },
  update: { rule: "none", text: "", counts: false, numbers: {}, first: new Array<number>(16).fill(0) },
  loss: 3,
  outputs: [],
  same: true,
  note: "",
  bytes: 8,
});

test("uniform numbers are those of the session, bit for bit", () => {
  const wanted = [0.025997042655944824, -0.15612244606018066, 0.15506690740585327, 0.29838865995407104, -0.1734149008989334];
  assert.deepEqual([...uniform(5, 7, 123456789, 0.3)], wanted);
  assert.equal(uniform(1, 0, 0, 0)[0], 0);
  assert.deepEqual([...uniform(1, 7, 123456789, 0.3, 4)], wanted.slice(4));
});

test("bytes that are made in parts are those that are made at once", async () => {
  const count = 2 ** 16 + 5,
    numbers = new Float32Array((await drawn(count, { seed: 7, stream: 3, bound: 2 })).buffer);
  assert.deepEqual(numbers, uniform(count, 7, 3, 2));
  for (const size of [0, 1, 2, 3, 49_152, 49_153, 60_000]) {
    const bytes = Uint8Array.from({ length: size }, (_, i) => (i * 7) % 251);
    assert.deepEqual(await unpacked(btoa(String.fromCharCode(...bytes))), bytes);
  }
});

test("a tensor in numbers is what Python says of it", () => {
  const data = Float32Array.from([1, 2, -3, 0, NaN, 5, Infinity, 2.5]),
    found = summarize(data, [2, 4], []);
  assert.deepEqual([found.n, found.min, found.max, found.mean, found.nan, found.inf, found.zero], [8, -3, 5, 1.25, 1, 1, 1]);
  assert.ok(Math.abs(Number(found.std) - 2.445233458520202) < 1e-12 && Math.abs(Number(found.l2) - 6.726812023536855) < 1e-12);
  assert.deepEqual(
    found.histogram.counts.flatMap((count, i) => (count ? [[i, count]] : [])),
    [[0, 1], [12, 1], [16, 1], [20, 1], [22, 1], [31, 1]],
  );
  assert.equal(found.thumbnail.data, "f58AX//+/68=");
  assert.deepEqual(windowOf(data, [2, 4], [], 1, 1).rows, [["5", "inf", "2.5"]]);
  assert.deepEqual(windowOf(Float32Array.from([0.1, 1e-30]), [2], [], 0, 0).rows, [["0.1", "1e-30"]]);
  assert.equal(inWords(Float32Array.from([NaN])), "1 values, none finite");
});

test("numbers of 16 bits are read exactly, and no dtype is guessed", () => {
  const bytes = Uint16Array.from([0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x7e00, 0x8000, 0xffff]).buffer;
  const halves = [...numbersOf("f16", bytes, 7)!];
  assert.deepEqual(halves, [1, -2, 2 ** -24, 65504, Infinity, NaN, -0]);
  const wide = Uint16Array.from([0x3f80, 0xc040, 0x7f80, 0]).buffer;
  assert.deepEqual([...numbersOf("bf16", wide, 3)!], [1, -3, Infinity]);
  assert.deepEqual([...numbersOf("u32", wide, 1)!], [0xc0403f80]);
  assert.equal(numbersOf("q4", wide, 2), null);
});

test("a document that was changed is refused, whatever was changed", () => {
  assert.equal(fault(section()), "");
  const spoiled: [string, (run: RunSection) => void][] = [
    ["dispatch 1 reads or writes", run => (run.plan.dispatches[1]!.bind[0]![0] = 9)],
    ["dispatch 0 reads or writes", run => (run.plan.dispatches[0]!.kernel = -1)],
    ["dispatch 0 reads or writes", run => (run.plan.dispatches[0]!.workgroups[2] = 65536)],
    ["buffer 1 lies outside", run => (run.plan.buffers[1]!.slot = 4)],
    ["buffer 2 lies outside", run => (run.plan.buffers[2]!.nbytes = 512)],
    ["buffer 0 lies outside", run => (run.plan.buffers[0]!.bound = 1024)],
    ["a slot has no size", run => (run.plan.slots[0] = 3)],
    ["a slot has no size", run => (run.plan.slots[0] = 2 ** 40)],
    ["more than 2 GB", run => (run.plan.slots = new Array<number>(20).fill(256 * 2 ** 20))],
    ["another size", run => (run.batches[0]!.x = zeros(4))],
    ["another size", run => delete run.batches[0]!.x],
    ["no batches", run => (run.batches = [])],
    ["lies nowhere", run => (run.initial.z = { fill: 1 })],
    ["does not fit", run => (run.initial.w = { data: zeros(300) })],
    ["constant 0 does not fit", run => (run.constants[0] = zeros(300))],
    ["the loss lies nowhere", run => (run.loss = 4)],
    ["no numbers", run => (run.update.first = [])],
    ["a part is missing", run => delete (run as Partial<RunSection>).inputs],
    ["the plan is missing", run => delete (run.plan as Partial<RunSection["plan"]>).wgsl],
  ];
  for (const [wanted, spoil] of spoiled) {
    const run = section();
    spoil(run);
    assert.ok(fault(run).includes(wanted), `${wanted}: ${fault(run)}`);
  }
});

test("breakpoints are read as a session reads them", () => {
  const run = section(),
    known = (name: string): number => {
      const found = run.plan.buffers.findIndex(each => each.name === name);
      if (found < 0) throw new Error(`look: given ${name}`);
      return found;
    };
  const at = (text: string) => parseStop(1, text, run, known);
  assert.deepEqual(at("node h").dispatches, [0]);
  assert.deepEqual(at('write "h" if absmax(h) > 1e3 or mean(w) < 0').test?.tensors, ["h", "w"]);
  assert.deepEqual([at("kernel MatMul").dispatches, at("dispatch 1").dispatches], [[0], [1]]);
  assert.deepEqual([at("step 3").number, at("loss rises 2").number, at("nonfinite").dispatches], [3, 2, [0, 1]]);
  for (const bad of ["", "nodes h", "dispatch 2", "kernel Conv", "step 0", "loss falls 2", "node h if h", "node q"])
    assert.throws(() => at(bad), /given/);
  assert.equal(at("nonfinite w").dispatches[0], 0, "a leaf is there before the first dispatch");
  assert.equal(figureOf("nonfinite", Float32Array.from([1, NaN, Infinity])), 2);
  assert.ok(Number.isNaN(figureOf("max", Float32Array.from([1, NaN]))));
});

test("conditions of breakpoints are those of a session", () => {
  const h = { data: Float32Array.from([1, -3, 2, 0, 5, 4]), shape: [2, 3] },
    subject = { step: 7, loss: 0.5, tensors: new Map([["h", h], ["b.grad", null]]) },
    holds = (text: string, of: Partial<typeof subject> | { loss: null } = {}) =>
      parseTest(text, true).holds({ ...subject, ...of });
  for (const text of [
    "loss < 1", "not loss > 1", "step == 7 and absmax(h) >= 5", "loss > 1 or min(h) == -3", "not not (step > 6)",
    "loss > 1 and loss > 2 or step > 1", "mean(h) == 1.5", "l2(h) > 7.41 and l2(h) < 7.42", "nonfinite(h) == 0", "-max(h) < -4.5e0",
    "shape(h) == [2, *]", "shape(h)[-1] == 3", "shape(h) != [3, 2]", "step > 1 or absmax(b.grad) > 1", ".5 == loss", "1 < shape(h)[0]",
  ])
    assert.ok(holds(text), text);
  for (const text of [
    "loss < 0.5", "not (loss < 1)", "loss > 1 and (loss > 2 or step > 1)", "shape(h) == [2]", "shape(h)[2] != shape(h)[2] and step > 9",
    "absmax(b.grad) > 1 or step > 1", "not absmax(b.grad) > 1", "shape(h)[5] == 1",
  ])
    assert.ok(!holds(text), text);
  assert.ok(!holds("loss != 0", { loss: null }) && !holds("not loss > 0", { loss: null }), "no value yet");
  for (const bad of [
    "", "loss", "loss <", "loss < 1 2", "loss < 1 and", "(loss < 1", "h > 1", "absmax h > 1", "absmax(h > 1", "shape(h) < [2]", "shape(h)[x] > 1",
    "shape(h) == [2 3]", "__proto__(h) > 1", "loss toString 1", "step = 1", `${"(".repeat(51)}loss < 1${")".repeat(51)}`,
  ])
    assert.throws(() => parseTest(bad, true), /break: given /);
  assert.throws(() => parseTest("loss < 1", false), /given loss/);
});
