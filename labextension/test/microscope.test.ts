// The microscope's arithmetic: tints, cells, and where a window begins.

import assert from "node:assert/strict";
import { test } from "node:test";

import { begin, paths, tint } from "../src/panes/microscope.ts";

test("a tint is against zero where there are both signs, else over the range", () => {
  assert.deepEqual(
    [-1, 0, 2, 4].map(value => tint(value, -1, 4)),
    [-0.25, 0, 0.5, 1],
  );
  assert.deepEqual(
    [3, 4, 5].map(value => tint(value, 3, 5)),
    [0, 0.5, 1],
  );
  assert.deepEqual(
    [-5, -4, -3].map(value => tint(value, -5, -3)),
    [-1, -0.5, 0].map(each => each + 0),
  );
  assert.deepEqual(
    [2, -2, 0].map(value => tint(value, value, value)),
    [0.5, -0.5, 0],
  );
});

test("cells of one tint are one path; what is not finite is a cross and has no tint", () => {
  const found = paths([0, 127, 254, 255, 0, 254], 3, -1, 1);
  assert.deepEqual(
    [...found],
    [
      [-1, "M0 0h1v1h-1zM1 1h1v1h-1z"],
      [1, "M2 0h1v1h-1zM2 1h1v1h-1z"],
      [NaN, "M0 1m.2 .2l.6 .6m0-.6l-.6 .6"],
    ],
  );
  assert.equal(
    paths(
      Array(4096)
        .fill(0)
        .map((_, i) => i % 255),
      64,
      -3,
      2,
    ).size <= 32,
    true,
    "few elements for 4,096 cells",
  );
  assert.equal(paths([], 0, 0, 0).size, 0);
});

test("a window has its element in the middle and stays inside", () => {
  assert.deepEqual(
    [0, 7, 8, 9, 50, 92, 99].map(at => begin(at, 100)),
    [0, 0, 0, 1, 42, 84, 84],
  );
  assert.deepEqual(
    [0, 9].map(at => begin(at, 10)),
    [0, 0],
    "all of a small one",
  );
});
