// The session as data: the table of buttons, and curves of many points.

import assert from "node:assert/strict";
import { test } from "node:test";
import { merged, noSession, primary, refusal, thinned, withMetrics, type Point } from "../src/live/live.ts";
import type { CommandName, Metrics, State } from "../src/live/messages.ts";

test("buttons act as the table says", () => {
  const acts = (state: State) =>
    (["step", "run", "pause", "resume", "stop"] as CommandName[])
      .filter(name => refusal(state, true, name) === null)
      .join(" ");
  const table: Record<State, string> = {
    none: "step run",
    ready: "step run",
    running: "pause stop",
    paused: "step run resume stop",
    failed: "",
    closed: "",
  };
  for (const [state, wanted] of Object.entries(table)) assert.equal(acts(state as State), wanted, state);
  assert.match(refusal("ready", false, "step")!, /no live session/);
  assert.deepEqual((["none", "ready", "running", "paused"] as State[]).map(primary), ["run", "run", "pause", "resume"]);
});

test("thinning keeps the spike, the order and the last point", () => {
  const points = Array.from({ length: 9000 }, (_, i): Point => [i, i === 4567 ? 100 : Math.sin(i)]);
  const kept = thinned(points);
  assert(kept.length <= 8000 && kept.length > 2000);
  assert(kept.some(point => point[1] === 100));
  assert.deepEqual(kept.at(-1), points.at(-1));
  assert(kept.every((point, i) => i === 0 || point[0] > kept[i - 1]![0]));
});

test("merging the same points twice changes nothing", () => {
  const points: Point[] = [
    [1, 3],
    [2, 2],
    [5, 1],
  ];
  assert.deepEqual(merged(points, points), points);
  assert.deepEqual(merged(points, [[3, 9]]), [
    [1, 3],
    [2, 2],
    [3, 9],
    [5, 1],
  ]);
});

test("a frame replaces what it tells; what it leaves out is not there", () => {
  const row = { id: 1, text: "loss > 1", hits: 0 },
    before = { ...noSession, frame: 3, timed: true, norms_left_out: 2, breaks: [row], under_way: 5, error: "kept" };
  const frame = { type: "metrics", frame: 4, step: 9, loss: [[8, 2], [9, "nan"]], full: false, counters: { steps: 9 } },
    after = withMetrics(before, frame as unknown as Metrics);
  const { type, loss, full, counters, ...told } = frame;
  assert.deepEqual(after, {
    ...noSession,
    ...told,
    error: "kept",
    counters: { ...noSession.counters, ...counters },
    points: [[8, 2], [9, NaN]],
  });
});
