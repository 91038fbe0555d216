// The picture of a kernel: tiles of workgroups over the result, what they read, and the parts of its lines.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Covers } from "../src/doc/records.ts";
import { areaOf, axis, elementsOf, fitted, movedTo, partsOfLines } from "../src/layout/kernel_tiles.ts";
import { runOf, shown, tilesOf, windowOf } from "../src/layout/kernel_tiles.ts";

const covers = (shape: Covers["shape"], cell: Covers["cell"], per = 1, share = 1): Covers => ({
  over: "result",
  shape,
  cell,
  per,
  share,
});

/** How often each element is covered by all workgroups. */
function counts(given: Covers): number[] {
  const tiles = tilesOf(given),
    [batch, rows, columns] = given.shape;
  const found = Array.from({ length: batch * rows * columns }, () => 0);
  for (let index = 0; index < tiles.groups; index++) {
    const sheet = tiles.run > 0 ? 0 : Math.floor(index / (tiles.down * tiles.across));
    for (const area of tiles.run > 0 ? runOf(tiles, index) : [areaOf(tiles, index)])
      for (let i = 0; i < area.rows; i++)
        for (let j = 0; j < area.columns; j++)
          found[(sheet * tiles.rows + area.row + i) * tiles.columns + area.column + j]! += 1;
  }
  return found;
}

test("every element belongs to one workgroup", () => {
  const cases = [
    covers([1, 70, 90], [32, 32]), // tiles that end at the edge
    covers([4, 33, 40], [16, 16]), // K in four parts: a stack
    covers([1, 64, 24], [8, 8], 3), // a row of cells
    covers([1, 9, 130], [1, 1], 256), // runs that begin inside of rows
    covers([1, 512, 64], [1, 1], 256), // four whole rows
    covers([6, 10, 8], [1, 1], 160), // rows of two matrices at once
    covers([1, 37, 24], [1, 24], 16), // rows of a softmax
    covers([3, 20, 9], [20, 1], 9), // columns of a fold
  ];
  for (const each of cases) assert.deepEqual(new Set(counts(each)), new Set([1]), JSON.stringify(each));
});

test("workgroups are rectangles where they end with a row, else runs", () => {
  assert.deepEqual(areaOf(tilesOf(covers([1, 70, 90], [32, 32])), 5), { row: 32, column: 64, rows: 32, columns: 26 });
  const rows = tilesOf(covers([1, 512, 64], [1, 1], 256));
  assert.deepEqual([rows.high, rows.wide, rows.run, rows.groups], [4, 64, 0, 128]);
  const runs = tilesOf(covers([1, 9, 130], [1, 1], 256));
  assert.deepEqual([runs.run, runs.groups], [256, 5]);
  assert.deepEqual(runOf(runs, 1), [
    { row: 1, column: 126, rows: 1, columns: 4 },
    { row: 2, column: 0, rows: 1, columns: 130 },
    { row: 3, column: 0, rows: 1, columns: 122 },
  ]);
  // Cells of 4 × 8 in runs: counted in cells, of all products one below another.
  const cells = tilesOf(covers([6, 40, 48], [4, 8], 64));
  assert.deepEqual([cells.run, cells.rows, cells.columns, cells.groups], [64, 60, 6, 6]);
  assert.equal(tilesOf(covers([1, 4, 8], [4, 8], 1, 3)).groups, 3);
  // Pairs of two halves of 12, the first 64 of 80: what they read counts in elements.
  const pairs = covers([7, 2, 12], [2, 1], 64);
  assert.deepEqual(elementsOf(tilesOf(pairs), pairs, 0), [
    { row: 0, column: 0, rows: 2, columns: 12 },
    { row: 2, column: 0, rows: 8, columns: 12 },
    { row: 10, column: 0, rows: 2, columns: 4 },
  ]);
});

test("many tiles are a few, an ellipsis and the last", () => {
  assert.deepEqual(shown(4, 6), [0, 1, 2, 3]);
  assert.deepEqual(shown(2048, 6), [0, 1, 2, 3, null, 2047]);
  const slots = axis(1000, 64, 200, 6);
  assert.deepEqual(slots.map(each => each.index), [0, 1, 2, 3, null, 15]);
  assert(Math.abs(slots.at(-1)!.at + slots.at(-1)!.size - 200) < 1e-9);
  const [whole, last] = [axis(80, 64, 100, 6)[0]!, axis(80, 64, 100, 6)[1]!];
  assert(Math.abs(last.size / whole.size - 0.25) < 1e-9);
  assert.deepEqual(fitted(400, 200, 100, 100), [100, 50]);
  assert.deepEqual(fitted(1, 1000, 100, 100), [40, 100]);
});

test("an affine map and a window say what is read", () => {
  // A transpose of [3, 2]: element 1 of the result [2, 3] is element 2 of the operand.
  assert.deepEqual(movedTo([0, 2, 0, 1, 1, -1, 3, 0, 1, 2, -1], 0, 5), [0, 2, 4, 1, 3, 5]);
  // Padding by one at both ends: outside there is nothing.
  assert.deepEqual(movedTo([0, 4, 1, 1, 1, 2], 0, 3), [0, 1]);
  const window = [8, 8, 3, 3, 2, 2, 1, 1, 1, 1, 4, 4];
  assert.deepEqual(windowOf(window, 0), { row: 0, column: 0, rows: 2, columns: 2 });
  assert.deepEqual(windowOf(window, 5), { row: 1, column: 1, rows: 3, columns: 3 });
});

test("a line may do several parts, and none", () => {
  const lines = partsOfLines({ "read 0": [2, 3], work: [3, 3, 5, 5] });
  assert.deepEqual([1, 2, 3, 5].map(line => lines.get(line)), [undefined, ["read 0"], ["read 0", "work"], ["work"]]);
  assert.equal(partsOfLines(null).size, 0);
});
