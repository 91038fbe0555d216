// Large pictures: what is in sight is drawn, what is far is dropped, long things stay.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Bands, type Item } from "../src/bands.ts";

/** 200 boxes, one every 72 px, and a rail along all of them; elements are plain objects that know whether they are drawn. */
function picture(cull: boolean) {
  const drawn = new Set<number>(), forgotten: number[] = [];
  const element = (id: number) => ({ id, remove: () => void drawn.delete(id) }) as unknown as SVGElement;
  const layer = { append: (...all: { id: number }[]) => all.forEach(each => drawn.add(each.id)) } as unknown as SVGGElement;
  const boxes = Array.from({ length: 200 }, (_, id): Item => ({ top: 72 * id, bottom: 72 * id + 40, layer: 0, make: () => [element(id)] }));
  const rail: Item = { top: 0, bottom: 14_000, layer: 0, make: () => [element(-1)] };
  const bands = new Bands([...boxes, rail], [layer], cull, each => forgotten.push((each as unknown as { id: number }).id));
  return { bands, drawn, forgotten };
}

test("everything in sight is drawn at every height, and never much more", () => {
  const { bands, drawn } = picture(true);
  for (let top = 0; top < 14_000; top += 311) {
    bands.show(top, top + 500);
    for (let id = 0; id < 200; id++) if (72 * id + 40 >= top && 72 * id <= top + 500) assert(drawn.has(id), `box ${id} at ${top}`);
    assert(drawn.size <= 1 + 5 * 9, `${drawn.size} at ${top}`);
    assert(drawn.has(-1));
  }
});

test("what is dropped is forgotten, and drawn again on the way back", () => {
  const { bands, drawn, forgotten } = picture(true);
  assert.equal(bands.show(0, 500), true);
  assert.equal(bands.show(0, 500), false);
  bands.show(9000, 9500);
  assert(!drawn.has(0) && forgotten.includes(0));
  bands.show(0, 500);
  assert(drawn.has(0));
});

test("a small picture is drawn whole", () => {
  const { bands, drawn } = picture(false);
  assert.equal(drawn.size, 201);
  assert.equal(bands.show(0, 100), false);
});
