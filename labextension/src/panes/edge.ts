// The edge of a compiled graph: inputs with their handles, outputs with their slots, feeds between them, the extent.

import type { Edge, EdgeInput, EdgeOutput, Plan } from "../doc/doc.ts";
import { bytes, plural, whole } from "../doc/format.ts";
import { div, h, s, span, svgPath, type Child } from "../draw/dom.ts";
import { cut, familyClass } from "../draw/labels.ts";
import { chip, entity, facts, row, table } from "./pane.ts";

const LEFT = 118,
  RIGHT = 16,
  BOX = 24,
  FEEDS = 34, // between outputs and inputs
  TOP = 8,
  LETTER = 6.6;

const SIGNS: Record<string, string> = { gpu: "●", host: "○" };

const bufferChip = (each: EdgeInput | EdgeOutput): Child =>
  chip(`interval:${each.interval}`, `buffer ${each.name}`, each.name);

/** A table of inputs with the sources of their values, and outputs with their places. */
export function edgeTable(edge: Edge): HTMLElement {
  const inputs = edge.inputs.map(each => {
    const from = edge.outputs[each.feed];
    const said = from ? [`${each.handle} handle, fed by `, bufferChip(from)] : each.value;
    return row("td", [
      ["", "input"],
      ["", bufferChip(each)],
      ["gd-mono", each.type],
      ["", [SIGNS[each.handle] && span("gd-handle", `${SIGNS[each.handle]} `), said]],
    ]);
  });
  const outputs = edge.outputs.map(each =>
    row("td", [
      ["", "output"],
      ["", bufferChip(each)],
      ["gd-mono", each.type],
      ["", each.place],
    ]),
  );
  const head: [string, Child][] = [
    ["", "edge"],
    ["", "name"],
    ["", "type"],
    ["", "value"],
  ];
  const told = div("gd-iofact gd-muted", `extent: ${edge.extent}; arena: ${edge.arena}`);
  return div("gd-io gd-scroll", told, table("", head, h("tbody", null, ...inputs, ...outputs)));
}

/** The counters since the graph was built, and the content of its memory. */
export function edgeCounters({ epoch, counters, memory }: Edge): { told: string; el: HTMLElement } {
  const value = (name: string, text: string) => h("span", { "data-value": name }, text);
  const sizes = Object.entries(memory).filter(([name, size]) => name.endsWith("_bytes") && size > 0);
  const rows = [
    ...Object.entries(counters).map(([name, count]): [string, Child] => [name, value(name, whole(count))]),
    ...sizes.map(([name, size]): [string, Child] => [name, value(name, bytes(size))]),
  ];
  return { told: plural(epoch, "run"), el: facts(rows) };
}

interface Place {
  x: number;
  width: number;
}

/** The places of the outputs in the arena, to scale, but at least 3 pixels wide. */
function slotPlaces(edge: Edge, room: number): Place[] {
  const scale = room / Math.max(1, edge.arena_bytes);
  return edge.outputs.map(({ byte_offset, nbytes }) => {
    const width = Math.max(3, nbytes * scale - 1);
    return { x: LEFT + Math.min(byte_offset * scale, room - width), width };
  });
}

/** The box of a buffer at the edge. */
function box(plan: Plan, each: EdgeInput | EdgeOutput, { x, width }: Place, y: number, told: string): SVGElement {
  const sign = "handle" in each && each.handle ? `${SIGNS[each.handle]} ` : "";
  const label = `${sign}${cut(each.name, 28)}`;
  return s(
    "g",
    {
      class: `gd-interval ${familyClass(plan.intervals[each.interval]?.family ?? "")}`,
      "data-handle": "handle" in each ? each.handle : null,
      ...entity(`interval:${each.interval}`, `${each.name} ${each.type}, ${told}`),
    },
    s("title", null, `${each.name} ${each.type}\n${told}`),
    s("rect", { class: "gd-shape", x, y, width, height: BOX, rx: 3 }),
    label.length * LETTER + 14 <= width && s("text", { x: x + 8, y: y + BOX / 2 + 4 }, label),
  );
}

/** An arrow from an output to the input that it replaces after every forward. */
function feed(from: Place, to: Place, y: number, told: string): SVGElement {
  const x1 = from.x + from.width / 2,
    x2 = to.x + to.width / 2,
    end = y + FEEDS - 2,
    half = FEEDS / 2;
  return s(
    "g",
    { class: "gd-feed" },
    s("title", null, told),
    svgPath("gd-feedline", `M${x1} ${y + 1}C${x1} ${y + half} ${x2} ${y + half} ${x2} ${end - 5}`),
    s("path", { class: "gd-feedhead", d: `M${x2 - 4} ${end - 6}H${x2 + 4}L${x2} ${end}Z` }),
  );
}

const axis = (y: number, text: string): SVGElement =>
  s("text", { class: "gd-axis", x: LEFT - 8, y: y + BOX / 2 + 4, "text-anchor": "end" }, text);

/** The active part of the bucket axes. */
function extentBar([actual, upper]: [number, number], y: number, room: number, told: string): SVGElement[] {
  const rect = (name: string, width: number) =>
    s("rect", { class: name, x: LEFT, y: y + 7, width, height: BOX - 14, rx: 3 });
  return [
    axis(y, `extent ${actual} of ${upper}`),
    s(
      "g",
      { class: "gd-extent" },
      s("title", null, told),
      rect("gd-slotrow", room),
      rect("gd-active", (room * actual) / Math.max(1, upper)),
    ),
  ];
}

/** Draw the arena of outputs to scale, the inputs below, a feed as an arrow between them, and the extent. */
export function edgePicture(plan: Plan, edge: Edge, width: number): SVGSVGElement {
  const room = width - LEFT - RIGHT,
    slots = slotPlaces(edge, room),
    step = room / Math.max(1, edge.inputs.length),
    inputs = edge.inputs.map((_, i): Place => ({ x: LEFT + i * step, width: Math.max(2, step - 1) }));
  const below = TOP + BOX + FEEDS,
    height = below + BOX + (edge.active ? BOX : 0) + TOP;
  const feeds = edge.inputs.flatMap((each, i) => {
    const from = slots[each.feed];
    const told = `output ${each.feed} ${edge.outputs[each.feed]?.name} becomes input ${each.name} after every run`;
    return from ? [feed(from, inputs[i]!, TOP + BOX, told)] : [];
  });
  return s(
    "svg",
    { class: "gd-arena gd-iopicture", width, height, viewBox: `0 0 ${width} ${height}` },
    axis(TOP, `outputs · ${bytes(edge.arena_bytes)}`),
    s("rect", { class: "gd-slotrow", x: LEFT, y: TOP, width: room, height: BOX, rx: 3 }),
    ...edge.outputs.map((each, i) => box(plan, each, slots[i]!, TOP, each.place)),
    ...feeds,
    edge.inputs.length > 0 && axis(below, "inputs"),
    ...edge.inputs.map((each, i) => box(plan, each, inputs[i]!, below, each.value)),
    ...(edge.active ? extentBar(edge.active, below + BOX, room, `extent: ${edge.extent}`) : []),
  );
}
