// Ticks are round and inside, ranges survive spikes, smoothing sees no later step, figures read well, paths are right.

import assert from "node:assert/strict";
import { cwd } from "node:process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { axisEnd, decimated, robustRange, smoothed, ticks } from "../src/panes/chart.ts";
import { bytes, cell, change, flops, plural, seconds, sig, spokenType, tight, whole } from "../src/doc/format.ts";
import { orthogonal, smooth } from "../src/draw/paths.ts";
import { pieces } from "../src/panes/sweep.ts";
import type { Point } from "../src/live/live.ts";
import { VERSION } from "../src/doc/version.ts";

test("a curve is broken where it is out of the range, and marked where it leaves it", () => {
  const scales = { low: 0, high: 2, xs: [], ys: [], left: 0, x: (a: number) => a, y: (b: number) => b };
  const curve: Point[] = [[0, 1], [1, 5], [2, 9], [3, 7], [4, 1.5], [5, -1]];
  const { parts, leaves } = pieces(curve, scales);
  assert.deepEqual(parts, [[[0, 1], [1, 5]], [[3, 7], [4, 1.5], [5, -1]]]);
  assert.deepEqual(leaves, [[1, 5], [5, -1]]);
  assert.deepEqual(pieces([[0, 9], [1, 8]], scales), { parts: [], leaves: [[0, 9]] });
});

test("ticks are round numbers inside the range", () => {
  assert.deepEqual(ticks(0, 400, 4), [0, 100, 200, 300, 400]);
  assert.deepEqual(ticks(0, 2.41, 5), [0, 0.5, 1, 1.5, 2]);
  assert.deepEqual(ticks(0.1, 0.52, 5), [0.1, 0.2, 0.3, 0.4, 0.5]);
  assert.deepEqual(ticks(-0.3, 0.3, 6), [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3]);
  assert.deepEqual(ticks(1e-7, 1.1e-7, 4), [1e-7, 1.025e-7, 1.05e-7, 1.075e-7, 1.1e-7]);
  assert.deepEqual([ticks(3, 3), ticks(0, Infinity)], [[3], [0]]);
  for (let i = 1; i < 200; i++) {
    const low = Math.sin(i) * 10 ** ((i % 7) - 3),
      high = low + ((i % 13) + 1) * 10 ** ((i % 5) - 2),
      found = ticks(low, high, 5);
    assert(
      found.length >= 1 &&
        found.length <= 7 &&
        found.every(tick => tick >= low - 1e-9 * Math.abs(low) && tick <= high + 1e-9 * Math.abs(high)),
      `${low} ${high} ${found}`,
    );
  }
});

test("a spike among a hundred does not flatten the curve, and the last value is always seen", () => {
  const values = Array.from({ length: 200 }, (_, i) => 1 + 0.001 * i);
  const [, high] = robustRange([...values.slice(0, 100), 1e6, ...values.slice(100)]);
  assert(high < 1.3, String(high));
  const [low, top] = robustRange([...values, 50]);
  assert(top >= 50 && low <= 1);
  const falling = Array.from({ length: 300 }, (_, i) => 2.5 * 0.95 ** i);
  assert(robustRange(falling)[1] >= 2.5, "the first losses of a run are no outliers");
  assert.deepEqual(robustRange([]), [0, 1]);
  assert.deepEqual(robustRange([NaN, Infinity]), [0, 1]);
  assert.equal(robustRange([2, 2, 2])[0] < 2, true);
  assert.equal(robustRange([0.1, 2.3])[0], 0);
});

test("smoothing keeps a straight line straight in its middle and passes over what is not finite", () => {
  const line = Array.from({ length: 200 }, (_, i): Point => [i, 5 - 0.01 * i]);
  const [, middle] = smoothed(line, 10)[100]!;
  assert(Math.abs(middle - 4.09) < 1e-4, String(middle)); // nine steps late
  assert.equal(smoothed(line, 10)[0]![1], 5, "it starts at the first point");
  assert.equal(
    smoothed([
      [0, 1],
      [1, NaN],
      [2, 1],
    ]).length,
    2,
  );
});

test("smoothing sees no later step", () => {
  const flat = Array.from({ length: 100 }, (_, i): Point => [i, 1]),
    risen = flat.map(([i, loss]): Point => [i, i < 60 ? loss : 9]);
  assert.deepEqual(smoothed(risen).slice(0, 60), smoothed(flat).slice(0, 60));
  assert(smoothed(risen)[60]![1] > 1);
});

test("the axis of steps grows with the data and ends where the run is to end", () => {
  const ends = [[0, 20000], [7, 20000], [56, 20000], [1200, 20000], [15000, 20000], [20000, 20000], [30, 20], [3, 4]];
  assert.deepEqual(ends.map(([last, wanted]) => axisEnd(last!, wanted!)), [10, 10, 100, 2000, 20000, 20000, 30, 4]);
});

test("decimation keeps extremes and the end", () => {
  const points = Array.from({ length: 5000 }, (_, i): Point => [i, i === 1234 ? -9 : 1]);
  const kept = decimated(points, 100);
  assert(kept.length <= 201 && kept.some(point => point[1] === -9));
  assert.equal(kept.at(-1), points.at(-1));
  assert.equal(decimated(points.slice(0, 10), 100).length, 10);
});

test("figures: three digits, units in words, a true minus; as Python says them", () => {
  const say = { sig, cell, whole, nbytes: bytes, flops, duration: seconds };
  const corpus = JSON.parse(readFileSync(`${cwd()}/test/words.json`, "utf8")) as Record<keyof typeof say, [number, string][]>;
  for (const [name, rows] of Object.entries(corpus) as [keyof typeof say, [number, string][]][])
    assert.deepEqual(rows.map(([value]) => say[name](value)), rows.map(([, text]) => text), name);
  assert.deepEqual(
    [sig(0.14812), sig(12.345), sig(1914.2), sig(0), sig(-0.5), sig(NaN), sig(-Infinity), sig(3.1e-7)],
    ["0.148", "12.3", "1,914", "0", "−0.5", "NaN", "−∞", "3.1e−7"],
  );
  assert.deepEqual(
    [tight(0.08), tight(-0.5), cell(0.0006), cell(0.0846), cell(1.049), cell(0)],
    [".08", "−.5", "<.01", ".08", "1.05", "0"],
  );
  assert.deepEqual(
    [bytes(512), bytes(401408), bytes(2.1e6), bytes(999_900), bytes(0)],
    ["512 B", "401 KB", "2.1 MB", "1 MB", "0 B"],
  );
  assert.deepEqual([seconds(0.0031), seconds(2), seconds(25e-6), seconds(NaN)], ["3.1 ms", "2 s", "25 µs", "–"]);
  assert.deepEqual([change(25.1, 17.4), change(1, 1), change(1, 2), change(0, 1)], ["−31 %", "0 %", "+100 %", "–"]);
  assert.deepEqual(
    [plural(1, "node"), plural(2, "dispatch"), plural(1200, "line"), whole(1e6), spokenType("f32[32, 128]")],
    ["1 node", "2 dispatches", "1,200 lines", "1,000,000", "f32 32 by 128"],
  );
});

test("edges leave and arrive vertically; wires have round corners that never overshoot", () => {
  assert.equal(smooth([10, 40, 30, 72]), "M10 40C10 56 30 56 30 72");
  assert.equal(smooth([10, 40, 10, 72]), "M10 40L10 72");
  assert.equal(orthogonal([0, 0, 0, 10, 20, 10]), "M0 0L0 6Q0 10 4 10L20 10");
  assert.equal(orthogonal([0, 0, 0, 4, 20, 4]), "M0 0L0 2Q0 4 2 4L20 4");
});

test("the page code has the version of its package", () => {
  assert.equal((JSON.parse(readFileSync(`${cwd()}/package.json`, "utf8")) as { version: string }).version, VERSION);
});
