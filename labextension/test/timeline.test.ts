// The plan over time: widths from the best that is known, the same figures as Python's text; refusals in sentences.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Missed, Plan, Stage } from "../src/doc/doc.ts";
import { timeline } from "../src/layout/timeline.ts";
import { apartText } from "../src/panes/dispatch_words.ts";

const plan = (more: object): Plan =>
  ({
    dispatches: [
      { flops: 8e6, bytes_read: 3000, bytes_written: 1000 },
      { flops: 10, bytes_read: 6e6, bytes_written: 0 },
    ],
    groups: [
      { start: 0, stop: 1, because: [] },
      { start: 1, stop: 2, because: [{ from: 0, to: 1, interval: 3, hazard: "raw" }] },
    ],
    times: null,
    machine: null,
    ...more,
  }) as unknown as Plan;

test("widths are measured, else predicted, else bytes", () => {
  const machine = { launch_seconds: 3e-6, bytes_per_second: 1e12, flops_per_second: 2e12 };
  assert.deepEqual([timeline(plan({})).basis, timeline(plan({})).starts], ["bytes", [0, 4000, 6004000]]);
  const predicted = timeline(plan({ machine }));
  assert.equal(predicted.basis, "predicted");
  // Compute-bound 4 µs, then memory-bound 6 µs, a launch of 3 µs each.
  predicted.starts.forEach((each, k) => assert(Math.abs(each - [0, 7e-6, 16e-6][k]!) < 1e-12, `${k}: ${each}`));
  const times = { median: [2, 3] };
  assert.deepEqual(timeline(plan({ machine, times })).starts, [0, 2, 5]);
  assert.deepEqual([timeline(plan({ times }), true).starts, timeline(plan({ times }), true).unit], [[0, 1, 2], ""]);
  assert.deepEqual(predicted.arrows, [{ from: 0, to: 1, interval: 3, hazard: "raw" }]);
});

test("a fusion that was not made is a sentence", () => {
  const nodes = [{ name: "h", op: "relu" }, { name: "", op: "matmul" }, { name: "", op: "relu_grad" }];
  const stage = { nodes, users: [[1, 2], [], []] } as unknown as Stage;
  const missed = (more: object): Missed => ({ label: "Relu+ReluGrad", node: 0, reason: "multi_use", text: "", about: null, detail: "", ...more });
  const at = (node: number) => (node === 1 ? 9 : null);
  const also = missed({ detail: "%1 reads it in another dispatch" });
  assert.equal(apartText(also, stage, at), "not fused with relu_grad: h is also read by dispatch 9");
  const kernel = missed({ label: "Relu+SumRows", reason: "kernel", detail: "matmul_at reads it from memory, %2 too" });
  assert.equal(apartText(kernel, stage, at), "not fused with SumRows: matmul_at reads h from memory, %2 too");
});
