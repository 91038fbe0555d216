// Draw the arena: x = dispatch order, reusable slots to scale below each other, pinned buffers as strips, the peak.

import type { IntervalRecord, Plan } from "../doc/doc.ts";
import { bytes, plural } from "../doc/format.ts";
import type { Uses } from "../doc/select.ts";
import { s, svgPath, type Child } from "../draw/dom.ts";
import { cut, familyClass } from "../draw/labels.ts";
import { Merged, type Block } from "../draw/merged.ts";
import { isPinned, KINDS, shares, THINNEST, type Arrangement, type Row } from "../layout/slots.ts";
import { entity } from "./pane.ts";

const LEFT = 118,
  RIGHT = 16,
  TOP = 20,
  GAP = 4,
  AXIS = 38, // numbers, and phases below them
  DENSE = 400, // intervals
  GHOSTS = 24,
  KEPT = "kept from the first dispatch to the last";

/** The bytes that sharing saves, and what would be needed without. */
export function reuse({ memory }: Plan): { saved: number; without: number } {
  const without = (memory.logical_bytes ?? 0) + (memory.padding_bytes ?? 0);
  return { saved: without - (memory.physical_bytes ?? 0), without };
}

export class ArenaPicture {
  readonly #plan: Plan;
  readonly #width: number;
  readonly #toggle: (kind: string) => void;
  readonly #ghosts: boolean;
  readonly #count: number;
  readonly #dense: boolean;
  readonly #merged = new Merged();
  readonly #over = s("g");
  readonly svg: SVGSVGElement;
  #places: { index: number; top: number; row: Row }[] = [];
  constructor(plan: Plan, width: number, toggle: (kind: string) => void, arrangement: Arrangement, ghosts: boolean) {
    this.#plan = plan;
    this.#width = width;
    this.#toggle = toggle;
    this.#ghosts = ghosts;
    this.#count = Math.max(1, plan.dispatches.length);
    this.#dense = plan.intervals.length > DENSE;
    this.svg = this.#draw(arrangement);
  }

  x(dispatch: number): number {
    return LEFT + ((this.#width - LEFT - RIGHT) * dispatch) / this.#count;
  }

  /** Return the rectangle of an interval in its row. */
  #place(index: number, top: number, row: Row): { from: number; y: number; width: number; height: number } {
    const interval = this.#plan.intervals[index]!,
      pinned = isPinned(interval);
    const from = this.x(pinned ? 0 : interval.first),
      to = this.x(pinned && interval.first < 0 ? this.#count : Math.min(this.#count, interval.last + 1));
    const height = pinned ? row.height - 2 : Math.max(THINNEST - 2, Math.round(interval.nbytes * row.unit) - 2);
    return {
      from,
      y: pinned ? top : top + Math.round(interval.offset * row.unit),
      width: Math.max(3, to - from - 1),
      height,
    };
  }

  /** Of very many intervals only the lit ones are elements; the others are a few shapes (draw/merged.ts). */
  #shape(index: number, top: number, row: Row): Block {
    const { from, y, width, height } = this.#place(index, top, row),
      step = (this.x(this.#count) - LEFT) / row.intervals.length,
      left = row.folded ? LEFT + row.intervals.indexOf(index) * step : from;
    return {
      left,
      right: left + (row.folded ? Math.max(1, step) : width),
      top: row.folded ? top : y,
      bottom: row.folded ? top + row.height - 2 : y + Math.min(height, row.height - 2),
      entity: `interval:${index}`,
      family: familyClass(this.#plan.intervals[index]!.family),
    };
  }

  /** Light the buffers and dispatches that are lit. */
  light(lit: ReadonlySet<string>, selected: readonly string[], uses: Uses): void {
    this.#movePlayhead(lit, uses);
    if (!this.#dense) return;
    this.#merged.light(lit);
    const found = this.#places.filter(({ index }) => lit.has(`interval:${index}`)).slice(0, 200);
    this.#over.replaceChildren(
      ...found.map(({ index, top, row }) => {
        const made = this.#interval(index, top, row.folded ? { ...row, folded: false } : row);
        made.setAttribute("data-lit", "");
        if (selected.includes(`interval:${index}`)) made.setAttribute("data-selected", "");
        return made;
      }),
    );
  }

  at(x: number, y: number): string | null {
    return this.#dense ? this.#merged.at(x, y, 2) : null;
  }

  #interval(index: number, top: number, row: Row): SVGGElement {
    const interval = this.#plan.intervals[index]!,
      pinned = isPinned(interval);
    const { from, y, width, height } = this.#place(index, top, row);
    const name = interval.name || `buffer ${index}`,
      label = pinned ? `${cut(name, 28)} ${bytes(interval.nbytes)}` : cut(name, 28);
    const alias =
      interval.alias_of >= 0
        ? `\nin the place of ${this.#plan.intervals[interval.alias_of]?.name ?? interval.alias_of}`
        : "";
    const life = pinned ? KEPT : `written by dispatch ${interval.first}, last read by ${interval.last}`;
    const fits = (text: string) => text.length * 6.6 + 14 <= width;
    const padding =
      interval.padded > interval.nbytes && !pinned ? Math.round((interval.padded - interval.nbytes) * row.unit) : 0;
    return this.#block(index, life + alias, { x: from, y, width, height: Math.min(height, row.height - 2) }, [
      padding > 1 && s("rect", { class: "gd-padding", x: from, y: y + height, width, height: padding }),
      fits(label) &&
        s("text", { x: this.#labelAt(from, width, label), y: y + Math.min(height, row.height - 2) / 2 + 4 }, label),
      pinned &&
        (fits(`${label}   `) || !fits(label)) &&
        s("circle", { class: "gd-pin", cx: from + width - 9, cy: y + (row.height - 2) / 2, r: 3 }),
    ]);
  }

  /** Beside the line of the peak, never under it, where there is room. */
  #labelAt(from: number, width: number, label: string): number {
    const peak = this.#peakAt() + 6,
      long = 6.6 * label.length + 8;
    return from + 8 < peak && peak < from + 20 + long && peak + long < from + width ? peak : from + 8;
  }

  #peakAt(): number {
    const at = this.#plan.groups[this.#plan.memory.peak_group ?? -1];
    return at && this.#plan.memory.peak_bytes ? (this.x(at.start) + this.x(at.stop)) / 2 : -1000;
  }

  /** The rectangle of an interval, with what is told of it. */
  #block(
    index: number,
    told: string,
    place: { x: number; y: number; width: number; height: number },
    inside: Child[],
  ): SVGGElement {
    const interval = this.#plan.intervals[index]!,
      name = interval.name || `buffer ${index}`,
      pinned = interval.pinned ? `\npinned: ${interval.pinned}` : "";
    return s(
      "g",
      {
        class: `gd-interval ${familyClass(interval.family)}`,
        ...entity(`interval:${index}`, `buffer ${name}, ${bytes(interval.nbytes)}, ${told}`),
        "data-alias": interval.alias_of >= 0,
      },
      s("title", null, `${name}: ${bytes(interval.nbytes)} (${interval.kind})\n${told}${pinned}`),
      s("rect", { class: "gd-shape", ...place, rx: 3 }),
      ...inside,
    );
  }

  /** Several pinned buffers of one kind share a strip in equal parts, each with its name; where these have no room
   * the strip begins with their number and size. Its label gives each a strip of its own. */
  #folded(row: Row, top: number): SVGElement[] {
    const all = row.intervals.map(index => this.#plan.intervals[index]!),
      total = all.reduce((sum, each) => sum + each.padded, 0),
      label = (interval: IntervalRecord) => `${cut(interval.name, 28)} ${bytes(interval.nbytes)}`,
      room = this.x(this.#count) - LEFT,
      fit = all.every(each => (label(each).length * 6.6 + 14) * all.length <= room);
    const told = `${plural(all.length, "buffer")}, ${bytes(total)}`,
      from = LEFT + (fit ? 0 : Math.min(6.6 * told.length + 18, room / 2)),
      step = (this.x(this.#count) - from) / all.length,
      height = row.height - 2,
      y = top + height / 2 + 4;
    const parts = all.map((interval, i) => {
      const x = from + i * step,
        text = fit && s("text", { x: this.#labelAt(x, step, label(interval)), y }, label(interval));
      return this.#block(row.intervals[i]!, KEPT, { x, y: top, width: Math.max(2, step - 1), height }, [text]);
    });
    return fit ? parts : [...parts, s("text", { class: "gd-sum", x: LEFT + 8, y }, told)];
  }

  #label(row: Row, top: number, first: boolean): SVGElement {
    const y = top + Math.min(row.height, 60) / 2 + 3;
    if (!row.folded && !(row.kind && first && row.intervals.length === 1 && shares(this.#plan, row.kind)))
      return s("text", { class: "gd-axis", x: LEFT - 8, y, "text-anchor": "end" }, first || !row.kind ? row.label : "");
    return s(
      "g",
      {
        class: "gd-opener",
        tabindex: 0,
        role: "button",
        "aria-expanded": row.folded ? "false" : "true",
        "aria-label": `${row.folded ? "show" : "fold"} ${row.label}`,
        on: {
          click: (event: Event) => {
            event.stopPropagation();
            this.#toggle(row.kind);
          },
        },
      },
      s("rect", { class: "gd-hit", x: 0, y: top - 3, width: LEFT - 4, height: 24 }),
      s(
        "text",
        { class: "gd-axis", x: LEFT - 8, y, "text-anchor": "end" },
        `${row.folded ? "▸" : "▾"} ${KINDS[row.kind] ?? row.kind}`,
      ),
    );
  }

  #draw(arrangement: Arrangement): SVGSVGElement {
    const grounds: SVGElement[] = [],
      parts: SVGElement[] = [];
    let top = TOP,
      before = "";
    for (const row of arrangement.rows) {
      grounds.push(
        s("rect", {
          class: "gd-slotrow",
          x: LEFT,
          y: top,
          width: this.x(this.#count) - LEFT,
          height: row.height - 2,
          rx: 3,
        }),
      );
      parts.push(this.#label(row, top, row.kind !== before || !row.kind));
      if (this.#dense) for (const index of row.intervals) this.#places.push({ index, top, row });
      else
        parts.push(
          ...(row.folded ? this.#folded(row, top) : row.intervals.map(index => this.#interval(index, top, row))),
        );
      before = row.kind;
      top += row.height + (row.kind ? 2 : GAP);
    }
    const slots = top;
    if (this.#ghosts) {
      const { outlines, bottom } = this.#outlines(top, arrangement.unit);
      parts.push(outlines);
      top = bottom;
    }
    this.#merged.show(
      this.#places.map(({ index, top: at, row }) => this.#shape(index, at, row)),
      new Set(),
    );
    return s(
      "svg",
      { class: "gd-arena", width: this.#width, height: top + AXIS, viewBox: `0 0 ${this.#width} ${top + AXIS}` },
      ...grounds,
      ...this.#phases(top),
      ...(this.#dense ? [this.#merged.el, this.#over] : []),
      ...parts,
      ...this.#axis(top),
      ...this.#peak(slots),
      s("g", { class: "gd-playhead" }),
    );
  }

  /** Outline the largest buffers that would need memory of their own if no two shared a slot. */
  #outlines(top: number, unit: number): { outlines: SVGElement; bottom: number } {
    const { intervals, slots } = this.#plan,
      larger = (a: number, b: number) => intervals[b]!.padded - intervals[a]!.padded;
    let y = top + 2;
    const drawn = slots
      .flatMap(({ tenants }) => [...tenants].sort(larger).slice(1))
      .sort(larger)
      .slice(0, GHOSTS)
      .flatMap((index): Child[] => {
        const { first, last, padded, name } = intervals[index]!,
          x = this.x(first),
          width = this.x(Math.min(this.#count, last + 1)) - x - 1,
          height = Math.max(THINNEST, Math.round(padded * unit)) - 2,
          at = y;
        y += height + 2;
        return [
          s("rect", { x, y: at, width, height, rx: 3 }),
          name.length * 6.6 + 14 <= width && s("text", { x: x + 8, y: at + height / 2 + 4 }, cut(name, 28)),
        ];
      });
    const label = s(
      "text",
      { class: "gd-axis", x: LEFT - 8, y: top + 13, "text-anchor": "end" },
      `+ ${bytes(reuse(this.#plan).saved)}`,
    );
    return { outlines: s("g", { class: "gd-ghosts" }, label, ...drawn), bottom: y + GAP };
  }

  /** Mark the beginnings of forward, backward and update. */
  #phases(bottom: number): SVGElement[] {
    const phase = (k: number) => this.#plan.dispatches[k]?.phase;
    return this.#plan.dispatches.flatMap((each, k) =>
      each.phase === phase(k - 1)
        ? []
        : [
            svgPath("gd-phaseline", `M${this.x(k)} ${TOP - 6}V${bottom + AXIS}`),
            s("text", { class: "gd-axis", x: this.x(k) + 6, y: bottom + 31 }, each.phase),
          ],
    );
  }

  #axis(bottom: number): SVGElement[] {
    const every = Math.max(1, Math.ceil((this.#count * 26) / (this.#width - LEFT - RIGHT)));
    return this.#plan.dispatches.flatMap((dispatch, k) =>
      k % every > 0
        ? []
        : [
            s(
              "g",
              { class: "gd-axisdispatch", ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}`) },
              s("title", null, `${k} ${dispatch.label}`),
              s("rect", { class: "gd-hit", x: this.x(k), y: bottom, width: this.x(k + 1) - this.x(k), height: AXIS }),
              s(
                "text",
                { class: "gd-axis", x: (this.x(k) + this.x(k + 1)) / 2, y: bottom + 15, "text-anchor": "middle" },
                k,
              ),
            ),
          ],
    );
  }

  #peak(bottom: number): SVGElement[] {
    const x = this.#peakAt(),
      left = x > this.#width - 110;
    if (x < 0) return [];
    return [
      s(
        "g",
        { class: "gd-peak" },
        s("line", { x1: x, x2: x, y1: 4, y2: bottom }),
        s(
          "text",
          { x: x + (left ? -5 : 5), y: 12, "text-anchor": left ? "end" : "start" },
          `peak ${bytes(this.#plan.memory.peak_bytes!)}`,
        ),
      ),
    ];
  }

  /** Mark the dispatches that are lit; those that only read the selected buffer with an open head. */
  #movePlayhead(lit: ReadonlySet<string>, { writes, reads }: Uses): void {
    const ks = this.#plan.dispatches.flatMap((_, k) => (lit.has(`dispatch:${k}`) ? [k] : []));
    const height = Number(this.svg.getAttribute("height")) - AXIS;
    this.svg.querySelector(".gd-playhead")!.replaceChildren(
      ...ks.slice(0, 40).flatMap(k => {
        const x = (this.x(k) + this.x(k + 1)) / 2;
        const entity = `dispatch:${k}`;
        return s(
          "g",
          { "data-only-reads": reads.has(entity) && !writes.has(entity) },
          s("line", { x1: x, x2: x, y1: 8, y2: height }),
          s("path", { d: `M${x - 5} 2H${x + 5}L${x} 9Z` }),
        );
      }),
    );
  }
}
