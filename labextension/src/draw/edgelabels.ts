// How much flows along the edges of a picture: bytes where they leave a box. Its type stands in the box already.

import type { GraphDoc, Layout, Stage } from "../doc/doc.ts";
import { bytes } from "../doc/format.ts";
import { s } from "./dom.ts";

const LETTER = 6.1;

/** Labels in the gaps between rows, where no box is; one for all edges of a box, none where another label stands. */
export function edgeLabels(doc: GraphDoc, stage: Stage, layout: Layout): SVGGElement {
  const done = new Set<number>(),
    taken: [y: number, left: number, right: number][] = [];
  const label = ({ a, bends }: Layout["edges"][number]) => {
    const [x0, y0, x1, y1] = bends as [number, number, number, number],
      size = doc.types[stage.nodes[a]!.type]?.nbytes;
    if (!size || y0 === y1 || done.has(a)) return [];
    const text = bytes(size),
      wide = LETTER * text.length + 5,
      // Left of the edge: wires leave at the right. Where it bends to the left, right of it.
      left = x1 < x0 ? x0 + 5 : x0 - wide,
      y = y1 > y0 ? y0 + 12 : y0 - 5;
    if (taken.some(each => each[0] === y && each[1] < left + wide && left < each[2])) return [];
    taken.push([y, left, left + wide]);
    done.add(a);
    return [s("text", { class: "gd-edgelabel", x: left, y }, text)];
  };
  return s("g", { "aria-hidden": "true" }, ...layout.edges.flatMap(label));
}
