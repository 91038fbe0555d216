// Search as Python does it; parts of a graph; culling against brute force; the replay and the diff as Python's stages.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { cwd } from "node:process";
import { test } from "node:test";
import { Cells, type Item, type Rect } from "../src/draw/cells.ts";
import { readDoc, type GraphDoc, type Json, type Stage } from "../src/doc/doc.ts";
import { restored } from "../src/doc/shortened.ts";
import { around, partLayout, toldWays, ways } from "../src/layout/explore.ts";
import { brackets, folded, opened } from "../src/doc/groups.ts";
import { layoutOf } from "../src/layout/layouts.ts";
import { Merged } from "../src/draw/merged.ts";
import { overlaysOf, sayings } from "../src/draw/overlays.ts";
import { hits, parseQuery } from "../src/doc/query.ts";
import { differing, replayed } from "../src/doc/union.ts";
import { random } from "./fixture.ts";

interface Route {
  inputs: number[][];
  ends: [number, number];
  paths: number[][];
  whole: boolean;
  told: string;
}
const corpus = JSON.parse(readFileSync(`${cwd()}/../build/query_corpus.json`, "utf8")) as {
  doc: Json;
  answers: Record<string, string[]>;
  routes: Route[];
  short: Json;
};
const doc = readDoc(corpus.doc);

/** A document with the rows of its links, both ways, in the place of the functions that find them. */
const written = ({ links, ...rest }: GraphDoc) => ({
  ...rest,
  links: links.map(({ a, b, ...ways }) => [
    a,
    b,
    ...[ways.out, ways.back].map(way => Array.from({ length: 99 }, (_, i) => way(i))),
  ]),
});

test("a document with every list shortened by Python reads the same", () => {
  assert(JSON.stringify(corpus.short).includes('"~":"runs"'));
  assert.deepEqual(restored(corpus.short), corpus.doc);
  assert.deepEqual(written(readDoc(corpus.short)), written(doc));
});

test("every query finds what Python finds", () => {
  const stages = doc.stages.map(stage => stage.index);
  for (const [query, answer] of Object.entries(corpus.answers))
    assert.deepEqual(hits(doc, stages, parseQuery(query)), answer, query);
  assert.equal(Object.values(corpus.answers).filter(answer => answer.length > 0).length > 20, true);
});

test("a bad pattern is told, not thrown", () => {
  const { test: none, error } = parseQuery("/(/");
  assert.equal(none, null);
  assert.match(String(error), /regular expression/i);
});

test("what is around a node, in edges; what may be a pill comes with every op that is kept", () => {
  const [stage] = doc.stages,
    relu = stage!.nodes.findIndex(node => node.op === "relu"),
    names = (reach: string) => [...around(stage!, [relu], reach)].map(i => stage!.nodes[i]!.op).sort();
  assert.deepEqual(names("1"), ["add", "broadcast_to", "matmul", "parameter", "parameter", "relu"]);
  assert.deepEqual(
    names("users").filter(op => !["parameter", "input", "broadcast_to"].includes(op)),
    ["add", "cross_entropy_loss", "matmul", "relu"],
  );
  assert.equal(around(stage!, [relu], "inputs").size < stage!.nodes.length, true);
  const kept = around(stage!, [relu], "1"),
    layout = partLayout(stage!, doc.types, kept);
  const boxes = layout.boxes.flatMap((box, i) => (box.row >= 0 ? [i] : []));
  assert.equal(boxes.every(i => kept.has(i)) && boxes.includes(relu), true);
  assert.equal(
    layout.edges.every(({ a, b }) => stage!.nodes[b]!.inputs.includes(a)),
    true,
  );
});

test("the ways between two nodes are Python's", () => {
  for (const { inputs, ends, paths, whole, told } of corpus.routes) {
    const found = ways(inputs, ...ends);
    assert.deepEqual(found, { paths, whole });
    assert.equal(toldWays(found), told);
  }
  assert.deepEqual([...new Set(corpus.routes.map(each => Math.min(each.paths.length, 3)))].sort(), [0, 1, 2, 3]);
  assert.equal(
    corpus.routes.some(each => !each.whole),
    true,
  );
});

test("what is drawn is what a search through everything finds, in the order of all", () => {
  const next = random(7),
    drawn: number[] = [];
  const element = (id: number) =>
    ({
      id,
      remove: () => drawn.splice(drawn.indexOf(id), 1),
      before: (...all: { id: number }[]) => drawn.splice(drawn.indexOf(id), 0, ...all.map(each => each.id)),
    }) as unknown as SVGElement;
  const layer = {
    append: (...all: { id: number }[]) => drawn.push(...all.map(each => each.id)),
  } as unknown as SVGGElement;
  const items = Array.from({ length: 600 }, (_, id): Item => {
    const left = next(9000) - 2000,
      top = next(9000) - 2000,
      tall = id % 30 === 0;
    return {
      left,
      top,
      right: left + next(tall ? 20 : 300),
      bottom: top + next(tall ? 6000 : 60),
      layer: 0,
      nodes: [id],
      make: () => [element(id)],
    };
  });
  const cells = new Cells(items, [layer], () => {});
  for (let i = 0; i < 60; i++) {
    const left = next(9000) - 2500,
      top = next(9000) - 2500,
      seen: Rect = { left, top, right: left + next(2000), bottom: top + next(2000) };
    const wanted = items.flatMap((item, id) =>
      item.right >= seen.left && item.left <= seen.right && item.bottom >= seen.top && item.top <= seen.bottom
        ? [id]
        : [],
    );
    assert.deepEqual(cells.within(seen), wanted);
    cells.show(wanted, "full", id => (i + id) % 7 === 0);
    assert.deepEqual(drawn, wanted);
  }
});

test("the nearest block is found, within reach only", () => {
  const blocks = [0, 1, 2].map(i => ({
    left: 20 * i,
    right: 20 * i + 10,
    top: 0,
    bottom: 10,
    entity: `n${i}`,
    family: "",
  }));
  const merged = Object.create(Merged.prototype) as Merged;
  Object.assign(merged, { blocks });
  assert.deepEqual(
    [merged.at(5, 5), merged.at(22, 3), merged.at(14, 5), merged.at(17, 5, 4), merged.at(500, 5, 4)],
    ["n0", "n1", null, "n1", null],
  );
});

test("a replay begins and ends with the stages of its pass, and never moves a node", () => {
  for (const pass of doc.passes.filter(each => each.role === "optimize")) {
    const union = replayed(doc, pass);
    for (const [k, stage] of [
      [0, doc.stages[pass.from]!],
      [union.steps, doc.stages[pass.to]!],
    ] as const) {
      const lives = (each: { born: number; died: number }) => each.born <= k && k < each.died;
      const there = union.tenants.map(all => all.filter(({ life }) => lives(life)).map(({ node }) => node.key));
      assert.ok(
        there.every(keys => keys.length <= 1),
        "a place holds one node at a time",
      );
      assert.deepEqual(there.flat().sort(), stage.nodes.map(node => node.key).sort());
      const wires = union.wires.filter(lives).map(({ a, b }) => `${there[a]} ${there[b]}`);
      assert.deepEqual(
        wires.sort(),
        stage.nodes.flatMap(node => node.inputs.map(a => `${stage.nodes[a]!.key} ${node.key}`)).sort(),
      );
    }
    for (let k = 0; k <= union.steps; k++) {
      const tenants = union.tenants.flat().filter(({ life }) => life.born <= k && k < life.died);
      assert.equal(union.alive[k], tenants.length);
      const moved = [
        ...union.wires,
        ...union.tenants.flatMap((all, a) => all.map(({ life }) => ({ ...life, a, b: a }))),
      ];
      const ends = moved.filter(({ born, died }) => k > 0 && (born === k || died === k)).flatMap(({ a, b }) => [a, b]);
      assert.deepEqual(
        union.touched[k],
        [...new Set(ends)].sort((a, b) => a - b),
      );
    }
    for (const all of union.tenants)
      for (const [i, { life }] of all.entries())
        assert.ok(i === 0 || life.born === all[i - 1]!.life.died, "what comes instead of a node stands in its place");
    const layout = layoutOf(union.stage, doc.types);
    assert.equal("boxes" in layout && layout.boxes.length, union.stage.nodes.length);
  }
});

test("the classes of a diff part the nodes; a graph and itself are all the same", () => {
  const [written, optimized] = doc.stages,
    found = differing(doc, written!, optimized!);
  assert.equal(found.summary, "6 same, 2 rewired, 0 changed, 6 moved into 2, 0 removed, 0 added");
  const right = found.changes.filter(each => each !== "moved" && each !== "removed").length;
  assert.equal(right, optimized!.nodes.length);
  assert.deepEqual([...new Set(differing(doc, written!, written!).changes)], ["same"]);
});

/** Twelve calls of a block of two halves; its groups as gdlab/view/document/groups.py writes them. */
const grouped = readDoc(
  (JSON.parse(readFileSync(`${cwd()}/../build/query_corpus.json`, "utf8")) as { groups: Json }).groups,
);

test("closed groups are one node each, hold every node once, and leave a graph without circles", () => {
  for (const stage of grouped.stages)
    for (const open of [
      new Set<number>(),
      new Set([0]),
      new Set([0, 1, 2]),
      new Set(stage.groups.map((_, g) => g).filter(g => g % 3 > 0)),
    ]) {
      const found = folded(grouped, stage, open);
      if (!found) continue;
      assert.deepEqual(
        found.members.flat().sort((a, b) => a - b),
        stage.nodes.map((_, i) => i),
      );
      const place = new Map(found.members.flatMap((all, v) => all.map(i => [i, v] as const)));
      const wanted = new Set(
        stage.nodes
          .flatMap((node, b) => node.inputs.map(a => `${place.get(a)} ${place.get(b)}`))
          .filter(key => key.split(" ")[0] !== key.split(" ")[1]),
      );
      const drawn = new Set(found.stage.nodes.flatMap((node, b) => node.inputs.map(a => `${a} ${b}`)));
      assert.deepEqual(drawn, wanted, "no edge was dropped to break a circle");
      assert.equal("boxes" in layoutOf(found.stage, grouped.types), true);
    }
  const closed = folded(grouped, grouped.stages[0]!, new Set())!;
  assert.deepEqual(
    closed.stage.nodes.filter((_, i) => closed.group[i]! >= 0).map(node => [node.op, node.name]),
    [
      ["block", "×12"],
      ["wide", ""],
    ],
  );
});

test("all groups are closed in a large graph, but to the depth asked for; brackets span their rows", () => {
  const [written] = grouped.stages,
    open = opened(written!, 2);
  assert.equal(opened(written!).size, 0);
  const small = { ...written!, nodes: written!.nodes.slice(0, 20) };
  assert.ok(opened(small).size > 0 && opened(small, null, written!).size === 0, "what a large graph became opens as it");
  assert.deepEqual(
    [...open].map(g => written!.groups[g]!.label).filter(label => label === "half"),
    [],
  );
  const found = folded(grouped, written!, open)!,
    layout = layoutOf(found.stage, grouped.types);
  assert.equal("boxes" in layout, true);
  if (!("boxes" in layout)) return;
  const spans = brackets(written!, open, layout, found.members);
  const [series, ...others] = [
    spans.filter(each => each.label === "block ×12"),
    spans.filter(each => each.label === "block"),
  ].flat();
  assert.equal(others.length, 12);
  assert.equal(
    others.every(each => series!.top <= each.top && series!.bottom >= each.bottom && series!.track > each.track),
    true,
  );
});

/** A stage by hand: the inputs and the group of each node. */
const byHand = (rows: [inputs: number[], group: number][], groups: number): Stage => {
  const nodes = rows.map(([inputs, group], i) => ({
    ...doc.stages[0]!.nodes[2]!,
    key: `n${i}`,
    inputs,
    group,
    twin: -1,
    lane: "forward",
  }));
  const users = nodes.map((_, a) => nodes.flatMap((node, b) => (node.inputs.includes(a) ? [b] : [])));
  const rowsOf = Array.from({ length: groups }, (_, g) => ({
    key: `g${g}`,
    parent: -1,
    label: `g${g}`,
    kind: "call",
    repeat: 1,
  }));
  return { ...doc.stages[0]!, nodes, users, groups: rowsOf, layout: null };
};

test("of two closed groups that make a circle the smaller opens, and that is told", () => {
  // 1 and 4 are one group, 2, 3 and 5 the other; each reads the other: 1 → 2 and 3 → 4.
  const stage = byHand(
    [
      [[], -1],
      [[0], 0],
      [[1], 1],
      [[0], 1],
      [[3], 0],
      [[2, 4], 1],
    ],
    2,
  );
  const found = folded(doc, stage, new Set())!;
  assert.deepEqual([found.forced, [...found.open]], ["g0", [0]]);
  assert.deepEqual(found.group.filter(g => g >= 0).length >= 1 && found.group.includes(0), false);
  assert.equal(folded(doc, stage, new Set([0, 1])), null);
});

test("a closed group says the sum, the greatest or the mean of its nodes, or nothing", () => {
  const stage = byHand(
      [
        [[], -1],
        [[0], 0],
        [[1], 0],
        [[2], -1],
      ],
      1,
    ),
    values = { "0": 1, "1": 10, "2": 30, "3": 2 };
  const of = (aggregate: "sum" | "max" | "mean" | "none") => {
    const own = { ...doc, overlays: [{ id: "mine", label: "mine", unit: "J", stage: stage.index, values, aggregate }] };
    return sayings(own, stage, overlaysOf(own).mine!, [[0], [1, 2], [3]]);
  };
  assert.deepEqual(of("sum"), [1, 40, 2]);
  assert.deepEqual(of("max"), [1, 30, 2]);
  assert.deepEqual(of("mean"), [1, 20, 2]);
  assert.deepEqual(of("none"), [1, null, 2]);
});
