// The arena: what is always there to scale in its column, labels apart, memory over time as the plan counts its peak.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { IntervalRecord, Plan } from "../src/doc/doc.ts";
import { cutLeft } from "../src/doc/pilltext.ts";
import { bandAt, bandPath, mountain } from "../src/layout/mountain.ts";
import { arrange } from "../src/layout/slots.ts";
import { hatch } from "../src/panes/arena_picture.ts";

const KB = 1024;
const interval = (name: string, kind: string, padded: number, life: number[], slot = -1): IntervalRecord => {
  const [first = -1, last = -1, first_group = -1, last_group = -1] = life;
  const pinned = slot < 0 ? "kept" : null;
  return { name, node: 0, kind, slot, offset: 0, nbytes: padded - 56, padded, first, last, first_group, last_group, pinned, alias_of: -1, family: "leaf" };
};
// Dispatches 0 | 1 2 | 3; h lives 0 … 1, z 1 … 3, g in 2 alone; group 1 runs dispatches 1 and 2 together.
const plan = (wide: number): Plan =>
  ({
    intervals: [
      interval("w", "parameter", 4 * wide * KB, []),
      interval("b", "parameter", wide * KB, []),
      interval("c", "parameter", wide * KB, []),
      interval("x", "input", 2 * wide * KB, []),
      interval("h", "intermediate", 8 * KB, [0, 1, 0, 1], 0),
      interval("z", "intermediate", 4 * KB, [1, 3, 1, 2], 1),
      interval("g", "intermediate", 2 * KB, [2, 2, 1, 1], 2),
    ],
    slots: [
      { nbytes: 8 * KB, tenants: [4] },
      { nbytes: 4 * KB, tenants: [5] },
      { nbytes: 2 * KB, tenants: [6] },
      { nbytes: 2 * wide * KB, tenants: [3] },
    ],
    groups: [
      { start: 0, stop: 1 },
      { start: 1, stop: 3 },
      { start: 3, stop: 4 },
    ],
    dispatches: [0, 1, 1, 2].map(group => ({ group })),
    memory: {},
  }) as unknown as Plan;

test("column and slots have one scale, largest kind first, and what is pinned is in no row", () => {
  for (const wide of [1, 40]) {
    const { unit, strata, always, rows } = arrange(plan(wide), new Set());
    assert.deepEqual(strata.map(({ kind, nbytes }) => [kind, nbytes]), [["parameter", 6 * wide * KB], ["input", 2 * wide * KB]]);
    assert.equal(always, 8 * wide * KB);
    for (const { nbytes, height, segments } of strata) {
      assert(Math.abs(height - nbytes * unit) < 1e-9);
      assert(Math.abs(segments.reduce((sum, each) => sum + each.height, 0) - height) < 1e-9);
      assert(segments.every(({ padding }) => Math.abs(padding - 56 * unit) < 1e-9));
    }
    assert.deepEqual(rows.map(row => row.intervals), [[4], [5], [6]]);
    assert(rows.every(({ height, intervals }) => height === Math.max(14, Math.round(plan(wide).intervals[intervals[0]!]!.padded * unit))));
  }
  assert(arrange(plan(1), new Set()).unit > arrange(plan(40), new Set()).unit, "a large column makes all smaller");
});

test("labels beside the column never lie over each other, whatever is open", () => {
  for (const wide of [0.01, 1, 40])
    for (const toggled of [[], ["parameter"], ["input"], ["parameter", "input"]]) {
      const { strata, height } = arrange(plan(wide), new Set(toggled));
      const labels = strata.flatMap(({ label, segments }) => [label, ...segments.map(each => each.label)]).filter(each => !Number.isNaN(each));
      labels.slice(1).forEach((each, i) => assert(each >= labels[i]! + 14, `${labels}`));
      assert(labels.at(-1)! <= height);
      assert.equal(strata[0]!.open, toggled.includes("parameter"), "three names are folded away, a click shows them");
    }
});

test("tenants side by side in a slot are as high as they are, others have room for a name", () => {
  const made = plan(1);
  Object.assign(made.slots[0]!, { tenants: [4, 6] });
  Object.assign(made.intervals[6]!, { slot: 0, offset: 6 * KB });
  assert.deepEqual(arrange(made, new Set()).rows.slice(0, 2).map(row => [row.intervals, row.least]), [[[4, 6], 1], [[5], 12]]);
});

test("memory over time: a group's tensors live together, its highest place is the peak", () => {
  const found = mountain(plan(1));
  assert.deepEqual(found.live, [8 * KB, 14 * KB, 14 * KB, 4 * KB]);
  assert.equal(found.always, 8 * KB);
  assert.deepEqual(found.bands.map(({ index, from, below }) => [index, from, below]), [
    [4, 0, [0, 0, 0]],
    [5, 1, [8 * KB, 8 * KB, 0]],
    [6, 1, [12 * KB, 12 * KB]],
  ]);
  assert.deepEqual([bandAt(found, 2, 9 * KB)?.index, bandAt(found, 2, 13 * KB)?.index, bandAt(found, 3, 5 * KB)], [5, 6, null]);
  const [, , last] = found.bands;
  assert.equal(bandPath(last!, k => 10 * k, bytes => 100 - bytes / KB), "M10.0 86.0H20.0L20.0 86.0H30.0L30.0 88.0H20.0L20.0 88.0H10.0Z");
});

test("a path is cut at its beginning, padding is hatched inside its border", () => {
  assert.deepEqual([cutLeft("layers.2.mlp.gate", 10), cutLeft("gate", 10)], ["….mlp.gate", "gate"]);
  assert.equal(hatch(10, 50, 20, 10), "M10 60l10 -10M15 60l10 -10M20 60l10 -10");
  assert.equal(hatch(0, 0, 3, 10), "");
});
