// The e-graph of a document: replayed by hand and on the corpus, and a layout in which nothing overlaps or runs backwards.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { cwd } from "node:process";
import { test } from "node:test";
import { readDoc, type Json, type Pass, type Stage } from "../src/doc/doc.ts";
import { everIn, growthOf, held, HEAD, nameAt, planned, shown, tall, TAIL, type Growth } from "../src/doc/growth.ts";

const corpus = JSON.parse(readFileSync(`${cwd()}/../build/query_corpus.json`, "utf8")) as { doc: Json };
const doc = readDoc(corpus.doc);

/** −(−x)·w: in iteration 1 the double negation %3 becomes x's class %0 … of a leaf, and a second product appears that is one with the first. */
const stages = [{ index: 0, nodes: ["x", "w", "", "", "y"].map(name => ({ name })) }] as unknown as Stage[];
const pass = {
  from: 0,
  to: 1,
  deltas: [
    {
      added: {
        count: 3,
        class: ["%2", "%3", "%4"],
        op: ["neg", "neg", "mul"],
        children: { start: [0, 1, 2, 4], ids: [0, 1, 2, 3], words: ["%0", "%2", "%3", "%1"] },
        label: ["", "", ""],
        chosen: [0, 0, 0],
      },
      merged: [],
      gone: [],
      fired: [],
    },
    {
      added: {
        count: 1,
        class: ["%4"],
        op: ["mul"],
        children: { start: [0, 2], ids: [0, 1], words: ["%0", "%1"] },
        label: ["Neg∘Neg→x"],
        cost: { 0: 3.5 },
        more: { 0: 0 },
        chosen: [1],
      },
      merged: [["%0", "%3"]],
      gone: [2],
      fired: [["Neg∘Neg→x", 1]],
    },
  ],
  classes: {
    count: 4,
    name: ["%0", "%1", "%2", "%4"],
    type: [0, 0, 0, 0],
    nodes: { start: [0, 2, 3, 4, 5], ids: [0, 3, 1, 2, 4] },
    made: [0, 1, -1, 2],
  },
} as unknown as Pass;

const told = (growth: Growth, k: number) =>
  [...held(growth, k)].map(([name, own]) => [
    name,
    ...own.map(({ node, children }) => `${node.op}(${children.join()})`),
  ]);

test("classes that become one take their e-nodes along, and what became another e-node is gone", () => {
  const growth = growthOf(pass, stages)!;
  assert.deepEqual(told(growth, 0), [
    ["%2", "neg(%0)"],
    ["%3", "neg(%2)"],
    ["%4", "mul(%3,%1)"],
  ]);
  assert.deepEqual(told(growth, 1), [
    ["%2", "neg(%0)"],
    ["%0", "neg(%2)"],
    ["%4", "mul(%0,%1)"],
  ]);
  assert.equal(nameAt(growth, "%3", 0), "%3");
  assert.equal(nameAt(growth, "%3", 1), "%0");
  assert.deepEqual(
    everIn(growth, "%4").map(({ since, gone, chosen, cost, label }) => [since, gone, chosen, cost, label]),
    [
      [0, 1, 0, NaN, ""],
      [1, Infinity, 1, 3.5, "Neg∘Neg→x"],
    ],
  );
});

test("a class has the name that a person gave, and stands for a node of its own", () => {
  const { classes } = growthOf(pass, stages)!;
  assert.deepEqual(
    [...classes.values()].map(({ name, title, entity, leaf }) => [name, title, entity, leaf]),
    [
      ["%0", "x", "node:0.0", true],
      ["%1", "w", "node:0.1", true],
      ["%2", "%2", "node:0.2", false],
      ["%4", "y", "node:0.4", false],
      ["%3", "%3", "node:0.3", false],
    ],
  );
  assert.equal(growthOf({ ...pass, deltas: null }, stages), null);
});

test("classes that read each other in a circle are laid out as well", () => {
  const deltas = [
    {
      added: {
        count: 3,
        class: ["+0", "+1", "+2"],
        op: ["scale", "neg", "neg"],
        children: { start: [0, 1, 2, 3], ids: [0, 2, 1], words: ["+0", "+1", "+2"] },
        chosen: [],
      },
      merged: [],
      gone: [],
      fired: [],
    },
  ];
  const growth = growthOf(
    {
      ...pass,
      deltas,
      classes: { count: 3, name: ["+0", "+1", "+2"], type: [], nodes: {}, made: {} },
    } as unknown as Pass,
    stages,
  )!;
  const { boxes, wires } = planned(growth, ["+0", "+1", "+2"], [90, 90, 90]);
  assert.equal(boxes.size, 3);
  assert.equal(wires.size, 1, "the other edge goes against the reading direction");
  assert.deepEqual(
    [...growth.classes.values()].map(({ entity }) => entity),
    [null, null, null],
  );
});

const grown = doc.passes.flatMap(each => growthOf(each, doc.stages) ?? []);

test("the layout has room for all that a class will hold, rows go down along every wire, nothing overlaps", () => {
  assert.equal(grown.length > 0, true);
  for (const growth of grown) {
    const names = shown(growth, []),
      widths = names.map((_, i) => 100 + 13 * (i % 7)),
      { boxes, wires, tops, bottoms, width, height } = planned(growth, names, widths);
    assert.deepEqual(planned(growth, names, widths), planned(growth, names, widths));
    names.forEach((name, i) => {
      const { x, y, w, row } = boxes.get(name)!;
      assert.deepEqual([w, y], [widths[i], tops[row]]);
      const room = everIn(growth, name).reduce((sum, node) => sum + tall(node), HEAD + TAIL);
      assert.equal(y + room <= bottoms[row]! && bottoms[row]! <= height && x >= 0 && x + w <= width, true, name);
      for (const other of names.slice(0, i)) {
        const b = boxes.get(other)!;
        assert.equal(b.row !== row || b.x + b.w + 16 <= x || x + w + 16 <= b.x, true, `${name} beside ${other}`);
      }
    });
    assert.equal(wires.size > 0, true);
    for (const [key, { way, beside }] of wires) {
      const [reader, operand] = key.split(" ").map(name => boxes.get(name)!);
      assert.equal(way.length, reader!.row - operand!.row - 1, key);
      assert.equal(beside < reader!.x || beside > reader!.x + reader!.w, true, key);
    }
  }
});

test("of a large e-graph the classes with several ways are drawn and what is beside them; what is wanted brings its own", () => {
  const many = Array.from({ length: 100 }, (_, i) => i);
  const chain = {
    from: 0,
    to: 0,
    deltas: [
      {
        added: {
          count: 102,
          class: [...many, 50, 51].map(i => `%${i + 1}`),
          op: [...many.map(() => "tanh"), "relu", "relu"],
          children: { start: [...many, 100, 101, 102], ids: [...many, 50, 51], words: many.map(i => `%${i}`) },
          chosen: [],
        },
        merged: [],
        gone: [],
        fired: [],
      },
    ],
    classes: {
      count: 101,
      name: [...many, 100].map(i => `%${i}`),
      type: [],
      nodes: { start: [...many, 100, 101], ids: [...many, 100] },
      made: [],
    },
  } as unknown as Pass;
  const growth = growthOf(chain, [
    { index: 0, nodes: [...many, 100].map(() => ({ name: "" })) },
  ] as unknown as Stage[])!;
  assert.deepEqual(shown(growth, []), ["%50", "%51", "%52", "%53"]);
  assert.deepEqual(shown(growth, ["%9", "%80"]), ["%8", "%9", "%10", "%79", "%80", "%81"]);
  assert.equal(
    shown(
      growth,
      many.map(i => `%${i}`),
    ).length,
    48,
  );
  assert.equal([...classes(growth)].length, 100);
});

const classes = (growth: Growth): string[] =>
  [...growth.classes.values()].filter(({ leaf }) => !leaf).map(({ name }) => name);
