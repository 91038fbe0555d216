// The lanes while the stepper walks: later adjoints as outlines, the gradient that arrives, what is kept, its meter.

import { builtAt, type Built } from "../doc/adjoints.ts";
import type { GraphDoc, Layout, Stage } from "../doc/doc.ts";
import { bytes } from "../doc/format.ts";
import { s } from "../draw/dom.ts";
import type { Dress } from "../draw/picture.ts";

const METER = 5; // pixels wide, at the inner side of the adjoint lane

/** The state of the derivative of a stage at the step that is selected; null where none is. */
export function builtFor(doc: GraphDoc, stage: Stage | undefined, selected: readonly string[]): Built | null {
  const pass = doc.passes.find(({ role, to }) => role === "differentiate" && to === stage?.index);
  const k = pass ? pass.diffs.findIndex((_, i) => selected.includes(`step:${pass.index}.${i}`)) : -1;
  return k < 0 ? null : builtAt(doc, pass!, k);
}

/** The attributes of nodes and edges of a picture; `members` are the nodes behind each that is drawn. */
export function buildingDress(
  built: () => Built | null,
  members: readonly (readonly number[])[] | undefined,
): Required<Pick<Dress, "node" | "edge" | "note">> {
  const behind = (index: number) => members?.[index] ?? [index];
  const among = (edges: ReadonlySet<string>, a: number, b: number) =>
    edges.size > 0 && behind(a).some(from => behind(b).some(to => edges.has(`${from} ${to}`)));
  const isLater = (index: number) => behind(index).every(node => built()!.later.has(node));
  const flows = (a: number, b: number) => among(built()!.flow, a, b);
  let named: string | null = null,
    namedIn: Built | null = null;
  return {
    node: (index): Record<string, unknown> => (built() && isLater(index) ? { "data-later": true } : {}),
    edge: (a, b) => {
      if (!built()) return "";
      if (flows(a, b)) return "gd-edge-flow";
      if (among(built()!.kept, a, b)) return "gd-edge-kept";
      return isLater(b) ? "gd-edge-later" : "";
    },
    note: (a, b) => {
      const now = built();
      if (namedIn !== now) [named, namedIn] = [null, now];
      if (!now || !flows(a, b)) return "";
      named ??= `${a} ${b}`; // one of several edges
      return named === `${a} ${b}` ? now.symbol : "";
    },
  };
}

/** The nodes that differ between two states. */
export function changedBetween(a: Built | null, b: Built | null): Set<number> {
  const ends = [a, b].flatMap(each =>
    each ? [...each.flow, ...each.kept].flatMap(edge => edge.split(" ").map(Number)) : [],
  );
  return new Set([...ends, ...(a?.later ?? []), ...(b?.later ?? [])]);
}

export const keptWords = ({ bytes: now, all }: Built): string => `${bytes(now)} of ${bytes(all)} kept`;

/** A column beside the wires that fills upwards, as the backward pass climbs. */
export function meterOf({ lanes, height }: Layout, built: Built | null): SVGElement[] {
  const lane = lanes.find(({ title }) => title.startsWith("adjoint"));
  if (!lane || !built || built.all === 0) return [];
  const full = (height * built.bytes) / built.all,
    column = { x: lane.x + 3, width: METER, rx: METER / 2 };
  return [
    s("title", null, keptWords(built)),
    s("rect", { ...column, class: "gd-keptall", y: 0, height }),
    s("rect", { ...column, class: "gd-keptnow", y: height - full, height: full }),
  ];
}
