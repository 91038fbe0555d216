// Arrow keys over the graph: `neighbour` against brute force on 60 random graphs, and whole walks of it.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Stage } from "../src/doc/doc.ts";
import { neighbour } from "../src/draw/graph.ts";
import { random } from "./fixture.ts";

interface Box {
  x: number;
  y: number;
  w: number;
  row: number;
}

/** A random graph in topological order: repeated inputs, unread leaves, and pills, which stand in no row. */
function randomStage(seed: number): { stage: Stage; inputs: number[][]; boxes: Box[] } {
  const next = random(seed),
    count = 1 + next(40);
  const inputs = Array.from({ length: count }, (_, i) =>
    i === 0 || next(4) === 0 ? [] : Array.from({ length: 1 + next(3) }, () => next(i)),
  );
  const boxes = inputs.map((from): Box => ({
    x: 16 * next(30),
    y: 0,
    w: 64,
    row: from.length === 0 && next(2) === 0 ? -1 : next(8),
  }));
  const users = inputs.map((_, i) => inputs.flatMap((from, reader) => (from.includes(i) ? [reader] : [])));
  return {
    stage: { nodes: inputs.map(from => ({ inputs: from })), users, layout: { boxes } } as unknown as Stage,
    inputs,
    boxes,
  };
}

const SEEDS = Array.from({ length: 60 }, (_, i) => i + 1);

test("keyboard walk: left goes through the inputs and right through the users, each once, in order, and round again", () => {
  let steps = 0;
  for (const seed of SEEDS) {
    const { stage, inputs } = randomStage(seed);
    inputs.forEach((from, i) => {
      const left: number[] = [],
        right: number[] = [];
      for (const input of from) if (!left.includes(input)) left.push(input);
      for (let reader = 0; reader < inputs.length; reader++)
        if (inputs[reader]!.some(each => each === i)) right.push(reader);
      for (const [key, all] of [["ArrowLeft", left] as const, ["ArrowRight", right] as const])
        for (let turn = 0; turn < 2 * all.length + 1; turn++) {
          assert.equal(
            neighbour(stage, i, key, turn),
            all.length > 0 ? all[turn % all.length] : null,
            `seed ${seed}, ${i}, ${key}, ${turn}`,
          );
          steps++;
        }
    });
  }
  assert.equal(steps > 3000, true);
});

test("keyboard walk: up and down read all boxes row by row, and a pill leads beside its first reader", () => {
  for (const seed of SEEDS) {
    const { stage, inputs, boxes } = randomStage(seed);
    // Brute force: of all boxes that come later in reading order, the first one.
    const before = (a: number, b: number) =>
      boxes[a]!.row !== boxes[b]!.row
        ? boxes[a]!.row < boxes[b]!.row
        : boxes[a]!.x !== boxes[b]!.x
          ? boxes[a]!.x < boxes[b]!.x
          : a < b;
    const drawn = inputs.flatMap((_, i) => (boxes[i]!.row >= 0 ? [i] : []));
    const nearest = (i: number, down: boolean) => {
      const side = drawn.filter(j => j !== i && before(i, j) === down);
      return side.find(j => side.every(k => k === j || before(j, k) === down)) ?? null;
    };
    for (const i of drawn) {
      assert.equal(neighbour(stage, i, "ArrowDown", 0), nearest(i, true), `seed ${seed}, down from ${i}`);
      assert.equal(neighbour(stage, i, "ArrowUp", 0), nearest(i, false), `seed ${seed}, up from ${i}`);
    }
    const walked: number[] = [];
    for (
      let at: number | null = drawn.find(i => nearest(i, false) === null) ?? null;
      at !== null;
      at = neighbour(stage, at, "ArrowDown", 0)
    )
      walked.push(at);
    assert.deepEqual(
      [...walked].sort((a, b) => a - b),
      drawn,
      "nothing is left out",
    );
  }
});

test("keyboard walk: every node is reached from every other one of its component by left and right alone", () => {
  for (const seed of SEEDS) {
    const { stage, inputs } = randomStage(seed);
    const reach = (step: (i: number) => number[]) => {
      const seen = new Set([inputs.length - 1]),
        stack = [...seen];
      for (let i = stack.pop(); i !== undefined; i = stack.pop())
        for (const j of step(i)) if (!seen.has(j)) (seen.add(j), stack.push(j));
      return [...seen].sort((a, b) => a - b);
    };
    const byKeys = reach(i =>
      ["ArrowLeft", "ArrowRight"].flatMap(key =>
        Array.from({ length: inputs.length }, (_, turn) => neighbour(stage, i, key, turn) ?? i),
      ),
    );
    assert.deepEqual(
      byKeys,
      reach(i => [...inputs[i]!, ...inputs.flatMap((from, reader) => (from.includes(i) ? [reader] : []))]),
    );
  }
});

test("keyboard walk: where there is nothing, no step", () => {
  const { stage } = randomStage(3);
  assert.equal(neighbour(stage, 10_000, "ArrowLeft", 0), null);
  assert.equal(neighbour({ ...stage, layout: null } as unknown as Stage, 0, "ArrowUp", 0), null);
});
