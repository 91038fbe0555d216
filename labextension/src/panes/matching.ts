// The two graphs of a comparison: rows of the optimized one stand at the height of their origins, and a bracket names
// the rule that closed the rows between them.

import { optimizeReport, type GraphDoc, type Layout, type Pass, type Stage } from "../doc/doc.ts";
import type { Hole } from "../doc/graphdoc.ts";
import { priced, sig } from "../doc/format.ts";
import { s, svgPath } from "../draw/dom.ts";
import { cut } from "../draw/labels.ts";
import { NODE, ROW } from "../doc/metrics.ts";
import { placesOfRows } from "../layout/matched.ts";
import type { Context } from "./pane.ts";

const MOST = 400; // boxes: above it panes are not matched
const LETTER = 6.4; // width of one, in pixels
const EDGE = 12, // of the picture left of everything; of a bracket from the middle of its box
  ASIDE = 8, // from the words to their bracket
  LEAST = 6, // letters of them
  MOST_LETTERS = 30;
type Members = readonly (readonly number[])[] | null;

interface Left {
  stage: Stage;
  /** The row of each node, by key. */
  rows: ReadonlyMap<string, number>;
}
interface Beside {
  left: Left | null;
  /** Draws the right pane anew. */
  redraw: (() => void) | null;
}

const panes = new WeakMap<GraphDoc, Beside>();
export const besideIn = (doc: GraphDoc): Beside => {
  const found = panes.get(doc) ?? { left: null, redraw: null };
  panes.set(doc, found);
  return found;
};

const membersOf = (members: Members, v: number): readonly number[] => members?.[v] ?? [v];

/** Note the rows that the left pane shows, which the right one follows. */
export function showRows(doc: GraphDoc, stage: Stage, members: Members, layout: Layout): void {
  const rows = new Map(
    layout.boxes.flatMap(({ row }, v) =>
      row < 0 ? [] : membersOf(members, v).map(i => [stage.nodes[i]!.key, row] as const),
    ),
  );
  const beside = besideIn(doc),
    old = beside.left;
  const known = (key: string, row: number) => old?.rows.get(key) === row;
  if (old?.stage === stage && old.rows.size === rows.size && [...rows].every(([key, row]) => known(key, row))) return;
  beside.left = { stage, rows };
  beside.redraw?.();
}

/** The pass that made a stage from that of the left pane. */
function passBetween({ doc }: Context, stage: Stage): Pass | undefined {
  const { left } = besideIn(doc);
  return doc.passes.find(
    ({ role, from, to }) => role === "optimize" && from === left?.stage.index && to === stage.index,
  );
}

/** The place of each row of the right pane; null: its own. */
export function matchedRows(context: Context, stage: Stage, members: Members, layout: Layout): number[] | null {
  const { left } = besideIn(context.doc),
    shown = layout.boxes.filter(({ row }) => row >= 0);
  if (!left || !passBetween(context, stage) || layout.lanes.length > 0 || shown.length > MOST) return null;
  const partner = new Array<number>(shown.reduce((most, { row }) => Math.max(most, row + 1), 0)).fill(-1);
  const rowOf = (i: number): number => {
    const own = left.rows.get(stage.nodes[i]!.key);
    return own ?? Math.max(-1, ...originsOf(context, stage, i).map(a => left.rows.get(left.stage.nodes[a]!.key) ?? -1));
  };
  layout.boxes.forEach(({ row }, v) => {
    if (row >= 0) partner[row] = Math.max(partner[row]!, ...membersOf(members, v).map(rowOf));
  });
  return placesOfRows(partner);
}

/** The rows of a level that a node came from. */
const rowsAt = ({ origins }: Context, { index }: Stage, i: number, level: string): number[] => [
  ...(origins(`node:${index}.${i}`).get(level) ?? []),
];

/** The ops of the left pane that a node came from. */
function originsOf(context: Context, stage: Stage, i: number): number[] {
  const { index, nodes } = besideIn(context.doc).left!.stage;
  return rowsAt(context, stage, i, `node:${index}`).filter(a => nodes[a]!.inputs.length > 0);
}

/** A bracket over each run of rows that a rewrite closed, with its rule and its saving. */
export function closedRows(context: Context, stage: Stage, members: Members, layout: Layout): Hole[] {
  const pass = passBetween(context, stage),
    { left } = besideIn(context.doc);
  if (!pass || !left) return [];
  const made = new Map<number, number>(); // of a row: a box that a rewrite made
  layout.boxes.forEach(({ row }, v) => {
    const all = membersOf(members, v);
    if (row >= 0 && all.length === 1 && !left.rows.has(stage.nodes[all[0]!]!.key)) made.set(row, v);
  });
  const rows = [...new Set(layout.boxes.map(({ row }) => row))].filter(row => row >= 0).sort((a, b) => a - b);
  return rows.flatMap((row, k) => {
    const first = (rows[k - 1] ?? -1) + 1,
      v = made.get(row);
    if (first === row || v === undefined) return [];
    const node = membersOf(members, v)[0]!;
    const steps = rowsAt(context, stage, node, `step:${pass.index}`);
    const last = Math.max(-1, ...steps);
    if (last < 0) return [];
    const saved = steps.reduce((sum, i) => sum + pass.rewrites[i]!.cost_before - pass.rewrites[i]!.cost_after, 0),
      cost = Number.isFinite(saved) && saved !== 0 ? `\u2002${sig(-saved)} µs` : "",
      { x, w } = layout.boxes[v]!;
    const fact = `${originsOf(context, stage, node).length} \u2192 1${cost}`,
      rule = pass.rewrites[last]!.label;
    return [
      words({
        entity: `step:${pass.index}.${last}`,
        left: -EDGE,
        x: x + Math.floor(w / 2) - EDGE,
        top: ROW * first,
        bottom: ROW * row - (ROW - NODE) / 2,
        fact,
        rule,
        told: `${fact}${cost && `, ${priced(optimizeReport(pass).cost_model)}`}: ${rule}`,
      }),
    ];
  });
}

/** The words cut to the room left of the bracket, which begins at `left`. */
function words(hole: Hole): Hole {
  const room = Math.max(LEAST, Math.floor((hole.x - ASIDE - hole.left) / LETTER)),
    [fact, rule] = [cut(hole.fact, room), cut(hole.rule, Math.min(room, MOST_LETTERS))];
  const wide = LETTER * Math.max([...fact].length, [...rule].length);
  return { ...hole, fact, rule, left: Math.floor(hole.x - ASIDE - wide) };
}

/** The words of a long bracket stand at its top, where reading begins. */
export function drawnHole({ entity, left, x, top, bottom, fact, rule, told }: Hole): SVGGElement {
  const middle = Math.min((top + bottom) / 2, top + ROW);
  const line = (text: string, y: number, name: string) => s("text", { class: name, x: x - ASIDE, y }, text);
  return s(
    "g",
    { class: "gd-hole", "data-entity": entity, tabindex: -1, role: "button", "aria-label": told },
    s("title", null, told),
    svgPath("gd-hit", `M${left} ${top}H${x}V${bottom}H${left}Z`),
    svgPath("gd-stroke", `M${x + 5} ${top}H${x}V${bottom}H${x + 5}`),
    line(fact, middle - 3, "gd-fact-line"),
    line(rule, middle + 11, "gd-type"),
  );
}
