// What lights up: against a brute force on random documents, and the rules of edges, rules, kernels and WGSL lines one by one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readDoc, type OptimizeReport } from "../src/doc/doc.ts";
import { chain, local, parseEntity, portable, provenance, usesOf } from "../src/doc/select.ts";
import { randomDoc, smallDoc } from "./fixture.ts";

const sorted = (set: Iterable<string>): string[] => [...set].sort();

/** The lit set by repeated passes over all pairs, from the text of the contract alone. */
function bruteForce(pairs: [string, string][], steps: string[][], entity: string): Set<string> {
  const grow = (from: string, way: 0 | 1, skip: (a: string, b: string) => boolean): Set<string> => {
    const reached = new Set([from]);
    for (let before = -1; before !== reached.size;) {
      before = reached.size;
      for (const pair of pairs) if (!skip(pair[0], pair[1]) && reached.has(pair[way])) reached.add(pair[1 - way]!);
    }
    return reached;
  };
  const own = (each: string): Set<string> =>
    new Set([
      ...grow(each, 0, (a, b) => !each.startsWith("dispatch") && a.startsWith("kernel") && b.startsWith("wgsl")),
      ...grow(each, 1, () => false),
    ]);
  const kind = entity.split(":")[0];
  const of = (wanted: string) => pairs.filter(([a, b]) => b === entity && a.startsWith(wanted)).map(([a]) => a);
  const rule = entity.match(/^rule:(\d)\.(\d)$/);
  const stands =
    kind === "kernel"
      ? of("dispatch")
      : kind === "wgsl"
        ? of("node")
        : rule
          ? steps[Number(rule[1])]!.flatMap((id, i) => (id === `r${rule[2]}` ? [`step:${rule[1]}.${i}`] : []))
          : null;
  return stands ? new Set([entity, ...stands.flatMap(each => [...own(each)])]) : own(entity);
}

test("the closure equals a brute force, for every entity of 60 random documents", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const { doc: raw, sizes, pairs } = randomDoc(seed),
      doc = readDoc(raw),
      { closure } = provenance(doc);
    const steps = doc.passes.map(pass => pass.rewrites.map(step => step.rule));
    const plain = [...sizes]
      .filter(([level]) => level !== "wgsl")
      .flatMap(([level, size]) =>
        Array.from({ length: size }, (_, i) => (level.includes(":") ? `${level}.${i}` : `${level}:${i}`)),
      );
    const wgsl = doc.wgslBase.flatMap((base, k) =>
      Array.from({ length: (doc.wgslBase[k + 1] ?? sizes.get("wgsl")!) - base }, (_, i) => `wgsl:${k}.${i + 1}`),
    );
    const rules = doc.passes.flatMap((pass, p) =>
      (pass.report as unknown as OptimizeReport).rules.map((_, r) => `rule:${p}.${r}`),
    );
    for (const entity of [...plain, ...wgsl, ...rules])
      assert.deepEqual(sorted(closure(entity)), sorted(bruteForce(pairs, steps, entity)), `seed ${seed}, ${entity}`);
  }
});

test("origins are the upper half of the closure, level by level", () => {
  for (let seed = 1; seed <= 20; seed++) {
    const { doc: raw, sizes, pairs } = randomDoc(seed),
      { origins } = provenance(readDoc(raw));
    for (let i = 0; i < sizes.get("node:1")!; i++) {
      const above = new Set([`node:1.${i}`]);
      for (let before = 0; before !== above.size;) {
        before = above.size;
        for (const [a, b] of pairs) if (above.has(b)) above.add(a);
      }
      above.delete(`node:1.${i}`);
      const found = [...origins(`node:1.${i}`)].flatMap(([level, rows]) =>
        [...rows].map(row => (level.includes(":") ? `${level}.${row}` : `${level}:${row}`)),
      );
      assert.deepEqual(sorted(found), sorted(above), `seed ${seed}, node 1.${i}`);
    }
  }
});

test("a link whose rows are said once is followed both ways; a row that there is not leads nowhere", () => {
  const out = { start: [0, 2, 3], ids: [4, 7, 4], index: [0, 1, 0] };
  const [link] = readDoc({ ...smallDoc(), links: [{ a: "node:0", b: "dispatch", out }] }).links;
  assert.deepEqual([0, 1, 2, 3].map(link!.out), [[4, 7], [4], [4, 7], []]);
  assert.deepEqual([4, 5, 7, 99].map(link!.back), [[0, 1, 2], [], [0, 2], []]);
});

test("two calls of one line do not light each other; a node lights its own WGSL line only", () => {
  const { closure } = provenance(readDoc(smallDoc()));
  assert.deepEqual(
    sorted(closure("node:0.2")),
    sorted(["node:0.2", "line:0", "step:0.0", "node:1.2", "dispatch:0", "interval:1", "kernel:0", "wgsl:0.2"]),
  );
  assert(!closure("node:0.2").has("node:0.3") && !closure("node:0.2").has("line:1"));
});

test("a dispatch lights its whole kernel, and both calls that it came from", () => {
  const { closure } = provenance(readDoc(smallDoc()));
  assert.deepEqual(
    sorted(closure("dispatch:0")),
    sorted([
      "dispatch:0",
      "kernel:0",
      "wgsl:0.1",
      "wgsl:0.2",
      "wgsl:0.3",
      "interval:1",
      "node:1.2",
      "step:0.0",
      "node:0.2",
      "node:0.3",
      "line:0",
      "line:1",
    ]),
  );
  assert.deepEqual(sorted(closure("kernel:0")), sorted(closure("dispatch:0")));
});

test("an edge stands for its two nodes, a rule for its steps, a WGSL line for its nodes", () => {
  const { closure, lit } = provenance(readDoc(smallDoc()));
  assert.deepEqual(sorted(closure("edge:0.3.0")), sorted(["edge:0.3.0", ...lit(["node:0.3", "node:0.2"])]));
  assert.deepEqual(sorted(closure("rule:0.1")), sorted(["rule:0.1", ...closure("step:0.0")]));
  assert.deepEqual(sorted(closure("rule:0.0")), ["rule:0.0"]);
  assert.deepEqual(sorted(closure("wgsl:0.2")), sorted(new Set(["wgsl:0.2", ...closure("node:1.2")])));
  assert.deepEqual(sorted(closure("wgsl:0.1")), ["wgsl:0.1"]);
});

test("nonsense lights itself alone", () => {
  const { closure } = provenance(readDoc(smallDoc()));
  for (const text of ["node:9.9", "edge:0.0.7", "rule:5.5", "wgsl:7.1", "<img>", ""])
    assert.deepEqual(sorted(closure(text)), [text]);
  assert.equal(parseEntity("node:1.x"), null);
});

test("a selection is found again where stages moved, and dropped where they are gone", () => {
  const doc = readDoc(smallDoc()),
    moved = readDoc({ ...smallDoc(), stages: [...(smallDoc().stages as object[])].reverse() });
  assert.equal(local(moved, portable(doc, "node:1.2")), "node:0.2");
  assert.equal(local(moved, portable(doc, "edge:0.3.0")), "edge:1.3.0");
  assert.equal(local(moved, portable(doc, "dispatch:4")), "dispatch:4");
  assert.equal(local(doc, portable(doc, "wgsl:0.2")), "wgsl:0.2");
  assert.equal(local(doc, "node@gone#3"), null);
});

test("the chain names one or two of a kind and counts more; what says the same is said once", () => {
  const doc = readDoc(smallDoc()),
    { closure } = provenance(doc);
  assert.deepEqual(
    chain(doc, closure("dispatch:0")).map(part => part.text),
    ["line 2", "matmul + relu h", "matmul_relu", "dispatch 0", "buffer h"],
  );
  assert.deepEqual(
    chain(doc, closure("node:0.3")).map(part => part.text),
    ["line 2", "relu h", "matmul_relu", "dispatch 0", "buffer h"],
  );
  const alone = new Set(["kernel:0"]);
  assert.deepEqual(
    chain(doc, alone).map(part => part.text),
    ["kernel 0"],
  );
  const nodes = new Set(["node:0.0", "node:0.1", "node:0.3"]);
  assert.deepEqual(
    chain(doc, nodes).map(part => part.text),
    ["3 nodes"],
  );
  const twice = { ...doc, stages: [doc.stages[0]!, { ...doc.stages[0]!, index: 1 }] };
  assert.deepEqual(
    chain(twice, new Set(["node:0.3", "node:1.3"])).map(({ text, entities }) => [text, entities]),
    [["relu h", ["node:0.3", "node:1.3"]]],
  );
});

test("a buffer lights who writes it and who reads it, and the chain tells them apart", () => {
  const doc = readDoc(smallDoc()),
    { closure } = provenance(doc);
  assert(closure("interval:0").has("dispatch:0") && !closure("interval:0").has("kernel:0"));
  const told = (entity: string) => chain(doc, closure(entity), usesOf(doc, [entity])).map(part => part.text);
  assert.deepEqual(told("interval:0").slice(-2), ["buffer x", "read by dispatch 0"]);
  assert.deepEqual(told("interval:1").slice(-2), ["dispatch 0", "buffer h"]);
});
