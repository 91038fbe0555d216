// The densities that a picture may take.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Stage } from "../src/doc/doc.ts";
import { densitiesOf } from "../src/layout/layouts.ts";

const stage = (more: object = {}) =>
  ({ nodes: [{ op: "relu" }, { op: "add", ...more }], layout: null }) as unknown as Stage;

test("a picture with numbers on its nodes leaves none of them out", () => {
  assert.deepEqual(densitiesOf(stage()), [0, 1, 2, 3]);
  assert.deepEqual(densitiesOf(stage({ told: "[1, 2]", lines: ["[1, 2]"] })), [0]);
});

test("a picture with closed groups is denser where it does not fit", () => {
  assert.deepEqual(densitiesOf(stage({ told: "96 nodes, f32[2]" })), [0, 1, 2, 3]);
});
