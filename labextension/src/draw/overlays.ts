// Colours by a figure or a kind: the value of each node in an overlay, and the overlay's legend.

import { number, type GraphDoc, type NodeRecord, type OverlayRecord, type Stage } from "../doc/doc.ts";
import { bytes, flops, seconds, sig } from "../doc/format.ts";
import { h, span } from "./dom.ts";

type Said = (doc: GraphDoc, stage: Stage, node: NodeRecord, index: number) => number | string | null;
type Aggregate = NonNullable<OverlayRecord["aggregate"]>;
/** The most kinds that are told apart by colours; more are words on nodes. */
const MOST_KINDS = 12;
interface Overlay {
  label: string;
  /** The value of a closed group, from its nodes. */
  aggregate: Aggregate;
  said: Said;
  tell: (value: number) => string;
}

/** The dispatch of a node, or the first dispatch of its images on the way to the plan. */
const dispatchOf: Said = (doc, stage, node, index) => {
  for (const { a, b, out } of doc.links) {
    const to = b.startsWith("node:") ? doc.stages[+b.slice(5)] : null;
    if (a !== `node:${stage.index}` || !(to || b === "dispatch")) continue;
    for (const id of out(index)) {
      const said = to ? dispatchOf(doc, to, node, id) : id;
      if (said !== null) return said;
    }
  }
  return null;
};
const positive = (value: number): number | null => (value > 0 && Number.isFinite(value) ? value : null);
const summed = (field: "bytes_moved" | "flops" | "cost_seconds", label: string, tell: Overlay["tell"]): Overlay => ({
  label,
  aggregate: "sum",
  said: (_doc, _stage, node) => positive(node[field]),
  tell,
});
const OVERLAYS: Record<string, Overlay> = {
  nbytes: {
    label: "size of the result",
    aggregate: "sum",
    said: (doc, _s, node) => doc.types[node.type]?.nbytes ?? null,
    tell: bytes,
  },
  bytes_moved: summed("bytes_moved", "bytes moved", bytes),
  flops: summed("flops", "operations", flops),
  seconds: summed("cost_seconds", "cost on a nominal GPU", seconds),
  dispatch: { label: "dispatch, in order", aggregate: "max", said: dispatchOf, tell: value => `#${value}` },
  dtype: {
    label: "dtype",
    aggregate: "none",
    said: (doc, _s, node) => doc.types[node.type]?.dtype ?? null,
    tell: String,
  },
  lane: { label: "lane", aggregate: "none", said: (_d, _s, node) => node.lane, tell: String },
};

/** Every overlay of a document by id: the ones that follow from its nodes, then its own. */
export function overlaysOf(doc: GraphDoc): Record<string, Overlay> {
  const own = doc.overlays.map(({ id, label, unit, aggregate = "none" }): [string, Overlay] => {
    const said: Said = (_d, at, _n, index) => {
      const value = doc.overlays.find(each => each.id === id && each.stage === at.index)?.values[index];
      return value === undefined
        ? null
        : typeof value === "string" && Number.isNaN(number(value))
          ? value
          : number(value);
    };
    return [id, { label: label || id, aggregate, said, tell: value => `${sig(value)} ${unit ?? ""}`.trim() }];
  });
  return { ...OVERLAYS, ...Object.fromEntries(own) };
}

export interface Painted {
  /** The style of a node, null where the overlay has no value for it; and the value in words. */
  style(index: number): string | null;
  told(index: number): string;
  legend: HTMLElement;
}

type Value = number | string | null;
/** Return the value of a closed group: figures by the overlay's rule, a kind only if all its nodes have it. */
function together(values: readonly Value[], aggregate: Aggregate): Value {
  const known = values.filter(value => value !== null),
    figures = known.filter(value => typeof value === "number"),
    alike = known.every(value => value === known[0]);
  if (figures.length < known.length || aggregate === "none") return alike ? (known[0] ?? null) : null;
  if (figures.length === 0) return null;
  if (aggregate === "max") return figures.reduce((a, b) => Math.max(a, b));
  return figures.reduce((a, b) => a + b) / (aggregate === "mean" ? figures.length : 1);
}

type Members = readonly (readonly number[])[] | null;
/** Return an overlay's value for every node; with `members` for each drawn node, from the nodes behind it. */
export function sayings(doc: GraphDoc, stage: Stage, { said, aggregate }: Overlay, members: Members = null): Value[] {
  const each = stage.nodes.map((node, i) => said(doc, stage, node, i));
  return members
    ? members.map(all =>
        together(
          all.map(i => each[i]!),
          aggregate,
        ),
      )
    : each;
}

/** An overlay on one stage: figures on a logarithmic scale from pale to full, kinds in hues of their own. */
export function paint(doc: GraphDoc, stage: Stage, id: string, members: Members = null): Painted | null {
  const overlay = overlaysOf(doc)[id];
  if (!overlay) return null;
  const values = sayings(doc, stage, overlay, members);
  const figures = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  const least = figures.reduce((a, b) => Math.min(a, b), Infinity),
    greatest = figures.reduce((a, b) => Math.max(a, b), -Infinity);
  const kinds = [...new Set(values.filter(value => typeof value === "string"))],
    hue = (kind: string | number | null) => (245 + 137 * kinds.indexOf(String(kind))) % 360;
  const share = (value: number) => {
    if (greatest <= least) return 50;
    const far = greatest > 100 * Math.max(least, 1e-300) && least > 0;
    return Math.round(
      100 * (far ? Math.log(value / least) / Math.log(greatest / least) : (value - least) / (greatest - least)),
    );
  };
  const told = (value: number | string | null) =>
    value === null ? "" : typeof value === "string" ? value : overlay.tell(value);
  const style = (value: number | string | null) =>
    value === null || (plain && typeof value === "string")
      ? null
      : typeof value === "string"
        ? `--gd-h:oklch(var(--gd-l) .13 ${hue(value)});--gd-heat:32%`
        : `--gd-heat:${10 + Math.round(0.5 * share(value))}%`;
  // Values that stand on the nodes already need no colour.
  const plain =
    kinds.length > MOST_KINDS || stage.nodes.some(({ told }, i) => told !== undefined && told === values[i]);
  const swatches = (plain ? [] : kinds).map(kind => h("span", { class: "gd-kind", style: style(kind) }, kind));
  const range =
    figures.length > 0 &&
    span("gd-nowrap", told(least), h("span", { class: "gd-ramp", "aria-hidden": "true" }), told(greatest));
  const legend = h(
    "div",
    { class: "gd-legend", role: "note" },
    h("strong", null, overlay.label),
    range,
    ...swatches,
    plain && "written on the nodes",
    values.every(value => value === null) && "nothing known of this stage",
  );
  return { style: index => style(values[index] ?? null), told: index => told(values[index] ?? null), legend };
}
