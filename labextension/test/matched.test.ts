// Rows of two panes at one height: which rows go where, and a layout whose rows are moved apart.

import assert from "node:assert/strict";
import { test } from "node:test";
import { engine } from "layout-engine";
import { readLayout } from "../src/doc/doc.ts";
import type { Drawn } from "../src/layout/boxes.ts";
import { placesOfRows, spread } from "../src/layout/matched.ts";

test("a row stands on that of its partner, one without on the next free one; what crosses has no partner", () => {
  assert.deepEqual(placesOfRows([0, 2, 3, 5]), [0, 2, 3, 5]);
  assert.deepEqual(placesOfRows([0, -1, 3, -1]), [0, 1, 3, 4]);
  assert.deepEqual(placesOfRows([0, 4, 1, 2]), [0, 1, 2, 3], "the longest part that grows, and no row stands above");
  assert.deepEqual(placesOfRows([1, 1]), [1, 2]);
  assert.deepEqual(placesOfRows([]), []);
});

test("a layout is spread: boxes, pills and rails by their rows, edges bend in the gaps, hops stay above their row", () => {
  const op = (name: string, ...inputs: number[]): Drawn => {
    const leaf = inputs.length === 0;
    return { op: name, name: leaf ? name : "", type: "f32[2]", inputs, leaf, lane: "forward", twin: -1 };
  };
  const nodes = [op("input"), op("relu", 0), op("parameter"), op("mul", 1, 2), op("add", 3, 0)],
    layout = readLayout(engine().layout(nodes), nodes.length)!;
  const rows = layout.boxes.map(({ row }) => row);
  assert.deepEqual(rows, [0, 1, -1, 2, 3]);
  const made = spread(layout, [0, 2, 3, 6]);
  assert.deepEqual(
    made.boxes.map(({ row, y }) => [row, y]),
    [
      [0, 0],
      [2, 144],
      [-1, -1],
      [3, 216],
      [6, 432],
    ],
  );
  assert.equal(made.pills[0]!.y - layout.pills[0]!.y, 72);
  assert.equal(made.height - layout.height, 3 * 72);
  for (const { a, b, bends } of made.edges) {
    assert.equal(bends[1], made.boxes[a]!.y + 40);
    assert.equal(bends.at(-1), made.boxes[b]!.y);
  }
  const [long] = made.edges.filter(({ a, b }) => a === 0 && b === 4);
  const gaps = long!.bends.flatMap((x, i, all) =>
    i % 2 === 0 && i > 1 && all[i - 2] !== x ? [all[i + 1]! - all[i - 1]!] : [],
  );
  assert.ok(gaps.length > 0 && gaps.every(gap => gap <= 32), "what closed rows leave is crossed straight down");
  assert.deepEqual(spread(layout, [0, 1, 2, 3]), layout);
});
