// The layouts of the page are those of Python, integer by integer, on every graph of the corpus (tests/helpers/layout_corpus.py).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { cwd } from "node:process";
import { test } from "node:test";
import { engine } from "layout-engine";
import { shortNames } from "../src/doc/shortnames.ts";
import type { Drawn } from "../src/layout/boxes.ts";

interface Fixture {
  name: string;
  engine: "layered" | "lanes";
  density: number;
  nodes: [string, string, string, number[], boolean, string, number][];
  layout: Record<string, unknown>;
  short: Record<string, Record<string, string>>;
}

/** JSON with sorted keys: what "byte-identical" is said of. */
const canonical = (value: unknown): string =>
  JSON.stringify(value, (_, each: unknown) =>
    each && typeof each === "object" && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1)))
      : each,
  );

const fixtures = JSON.parse(readFileSync(`${cwd()}/../build/layout_corpus.json`, "utf8")) as Fixture[];
const drawn = (nodes: Fixture["nodes"]): Drawn[] =>
  nodes.map(([op, name, type, inputs, leaf, lane, twin]) => ({ op, name, type, inputs, leaf, lane, twin }));

test("every layout of the corpus is Python's to the byte", () => {
  assert.equal(fixtures.length > 150, true);
  const { layout } = engine();
  const wrong = fixtures.filter(
    each => canonical(layout(drawn(each.nodes), each.engine, each.density)) !== canonical(each.layout),
  );
  assert.deepEqual(
    wrong.map(({ name, engine, density }) => `${name} ${engine} ${density}`),
    [],
  );
});

test("the text of the engine is a program of its own, as a worker runs it", () => {
  const { layout } = (0, eval)(`(${engine})()`) as ReturnType<typeof engine>;
  const found = fixtures.find(each => each.name === "mlp_training" && each.engine === "lanes")!;
  assert.equal(canonical(layout(drawn(found.nodes))), canonical(found.layout));
});

test("every long name of the corpus is shortened as Python does it", () => {
  const { nodes, short } = fixtures.find(each => each.name === "long_names")!;
  assert.equal(Object.keys(short["24"]!).length > 60, true);
  for (const [limit, wanted] of Object.entries(short))
    assert.deepEqual(
      Object.fromEntries(
        shortNames(
          nodes.map(([, name]) => name),
          Number(limit),
        ),
      ),
      wanted,
    );
});
