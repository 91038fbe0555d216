// Draw the arena: permanent buffers as a column to scale, x = dispatch, memory over time, and reusable slots to the
// scale of the column below each other.

import type { Plan } from "../doc/doc.ts";
import { bytes, plural } from "../doc/format.ts";
import type { Uses } from "../doc/select.ts";
import { s, svgPath, type Child } from "../draw/dom.ts";
import { cut, cutLeft, familyClass } from "../draw/labels.ts";
import { moves } from "../draw/motion.ts";
import { Merged, type Block } from "../draw/merged.ts";
import { bandAt, bandPath, mountain, type Band, type Mountain } from "../layout/mountain.ts";
import { ABOVE, KINDS, LABEL, THINNEST } from "../layout/slots.ts";
import type { Arrangement, Row, Segment, Stratum } from "../layout/slots.ts";
import { entity } from "./pane.ts";

const WIDE = 900, // pixels, from which on the labels of the column have more room
  BAR = 36, // of the column
  SLOTS = 112, // for the labels of the slots
  RIGHT = 16,
  TOP = 20,
  MOUNTAIN = 66,
  FOOT = TOP + ABOVE - 10, // of the mountain
  AXIS = 38, // numbers, and phases below them
  LETTER = 6.6,
  AXIS_LETTER = 5.8,
  DENSE = 400, // intervals
  GHOSTS = 24;

/** The bytes that sharing saves, and what would be needed without. */
export function reuse({ memory }: Plan): { saved: number; without: number } {
  const without = (memory.logical_bytes ?? 0) + (memory.padding_bytes ?? 0);
  return { saved: without - (memory.physical_bytes ?? 0), without };
}

/** Slanted lines in a rectangle, the sign for padding. */
export function hatch(x: number, y: number, width: number, height: number): string {
  const lines = Array.from({ length: Math.max(0, Math.floor((width - height) / 5) + 1) }, (_, i) => x + 5 * i);
  return lines.map(from => `M${from} ${y + height}l${height} ${-height}`).join("");
}

interface Place {
  x: number;
  y: number;
  width: number;
  height: number;
}

const label = (name: string, x: number, y: number, anchor = "end", text: Child = null): SVGElement =>
  s("text", { class: name, x, y, "text-anchor": anchor }, text);

export class ArenaPicture {
  readonly #plan: Plan;
  readonly #width: number;
  readonly #toggle: (kind: string) => void;
  readonly #ghosts: boolean;
  readonly #count: number;
  readonly #dense: boolean;
  readonly #arrangement: Arrangement;
  readonly #mountain: Mountain;
  readonly #merged = new Merged();
  readonly #over = s("g");
  /** The x of the column and of dispatch 0. */
  readonly #bar: number;
  readonly #left: number;
  readonly svg: SVGSVGElement;
  /** The y at which the slots end and the axis begins. */
  #end = 0;
  constructor(plan: Plan, width: number, toggle: (kind: string) => void, arrangement: Arrangement, ghosts: boolean) {
    this.#plan = plan;
    this.#width = width;
    this.#toggle = toggle;
    this.#ghosts = ghosts;
    this.#count = Math.max(1, plan.dispatches.length);
    this.#dense = plan.intervals.length > DENSE;
    this.#arrangement = arrangement;
    this.#mountain = mountain(plan);
    this.#bar = arrangement.strata.length === 0 ? 0 : width > WIDE ? 216 : 162;
    this.#left = (this.#bar && this.#bar + BAR) + SLOTS;
    this.svg = this.#draw();
  }

  /** The kinds that can be opened, from top to bottom. */
  get kinds(): string[] {
    return this.#arrangement.strata.flatMap(({ kind, segments }) => (segments.length > 1 ? [kind] : []));
  }

  x(dispatch: number): number {
    return this.#left + ((this.#width - this.#left - RIGHT) * dispatch) / this.#count;
  }

  /** The extent of a buffer's life on the axis: from the dispatch that writes it to the last that reads it. */
  #life(index: number): { x: number; width: number } {
    const { first, last } = this.#plan.intervals[index]!,
      x = this.x(first);
    return { x, width: Math.max(3, this.x(Math.min(this.#count, last + 1)) - x - 1) };
  }

  /** The rectangle of a buffer in its slot. */
  #place(index: number, row: Row): Place {
    const { offset, nbytes } = this.#plan.intervals[index]!,
      { unit } = this.#arrangement;
    return {
      ...this.#life(index),
      y: TOP + row.top + Math.round(offset * unit),
      height: Math.min(Math.max(row.least, Math.round(nbytes * unit) - 2), row.height - 2),
    };
  }

  /** The part of the column of a permanent buffer. */
  #part({ top, height }: Segment): Place {
    return { x: this.#bar, y: TOP + top, width: BAR, height: Math.max(0.5, height) };
  }

  /** All rectangles, where they are too many to be elements: only the lit ones are. */
  #blocks(): Block[] {
    const block = (index: number, { x, y, width, height }: Place): Block => ({
      left: x,
      right: x + width,
      top: y,
      bottom: y + height,
      entity: `interval:${index}`,
      family: familyClass(this.#plan.intervals[index]!.family),
    });
    const { rows, strata } = this.#arrangement;
    return [
      ...strata.flatMap(({ segments }) => segments.map(each => block(each.index, this.#part(each)))),
      ...rows.flatMap(row => row.intervals.map(index => block(index, this.#place(index, row)))),
    ];
  }

  /** Mark the lit buffers and dispatches. */
  light(lit: ReadonlySet<string>, selected: readonly string[], uses: Uses): void {
    this.#movePlayhead(lit, uses);
    if (!this.#dense) return;
    this.#merged.light(lit);
    const { rows, strata } = this.#arrangement,
      isLit = (index: number) => lit.has(`interval:${index}`);
    const drawn: [number, SVGElement][] = [
      ...strata
        .flatMap(({ segments }) => segments.filter(({ index }) => isLit(index)))
        .map((each): [number, SVGElement] => [each.index, this.#segment(each)]),
      ...rows.flatMap(row =>
        row.intervals.filter(isLit).map((index): [number, SVGElement] => [index, this.#tenant(index, row)]),
      ),
    ];
    this.#over.replaceChildren(
      ...drawn.slice(0, 200).map(([index, made]) => {
        made.setAttribute("data-lit", "");
        if (selected.includes(`interval:${index}`)) made.setAttribute("data-selected", "");
        return made;
      }),
    );
  }

  /** The buffer under a point, where buffers are no elements. */
  at(x: number, y: number): string | null {
    if (!this.#dense) return null;
    const dispatch = Math.floor(((x - this.#left) * this.#count) / (this.x(this.#count) - this.#left)),
      band = y < FOOT && bandAt(this.#mountain, dispatch, this.#nbytes(y));
    return band ? this.#tensor(band.index) : this.#merged.at(x, y, 2);
  }

  #named(index: number): string {
    return this.#plan.intervals[index]!.name || `buffer ${index}`;
  }

  /** A buffer with its shapes and its words. */
  #block(key: string, index: number, told: string, inside: Child[]): SVGGElement {
    const { family, nbytes, padded, kind, alias_of: alias, pinned } = this.#plan.intervals[index]!,
      padding = padded > nbytes ? `, padded to ${bytes(padded)}` : "",
      place = alias >= 0 ? `\nin the place of ${this.#named(alias)}` : "",
      why = pinned ? `\npinned: ${pinned}` : "";
    return s(
      "g",
      {
        class: `gd-interval ${familyClass(family)}`,
        ...entity(key, `buffer ${this.#named(index)}, ${bytes(nbytes)}, ${told}`),
        "data-alias": alias >= 0,
      },
      s("title", null, `${this.#named(index)}: ${bytes(nbytes)}${padding} (${kind})\n${told}${place}${why}`),
      ...inside,
    );
  }

  /** A permanent buffer; its name beside the column where its kind is open. */
  #segment(segment: Segment, alone = ""): SVGGElement {
    const { index, padding, label: middle } = segment,
      place = this.#part(segment),
      size = ` ${bytes(this.#plan.intervals[index]!.nbytes)}`,
      room = Math.floor((this.#bar - 16) / AXIS_LETTER) - size.length,
      end = place.y + place.height,
      y = TOP + middle;
    return this.#block(`interval:${index}`, index, "always there", [
      s("rect", { class: "gd-shape", ...place }),
      padding > 2 && svgPath("gd-padding", hatch(place.x, end - padding, BAR, padding)),
      !Number.isNaN(middle) && [
        s("rect", { class: "gd-hit", x: 0, y: y - LABEL / 2, width: this.#bar, height: LABEL }),
        svgPath("gd-leader", `M${this.#bar - 9} ${y}L${this.#bar} ${place.y + place.height / 2}`),
        label("gd-axis", this.#bar - 12, y + 4, "end", cutLeft(alone + this.#named(index), room) + size),
      ],
    ]);
  }

  /** The buffers of a kind, and their sum beside the column; it opens to their names. */
  #stratum(stratum: Stratum): Child[] {
    const { kind, nbytes, top, height, open, segments } = stratum,
      name = KINDS[kind] ?? kind,
      y = TOP + stratum.label,
      count = plural(segments.length, "buffer");
    // One alone is named with its kind.
    const [one, ...more] = segments;
    if (more.length === 0) return [this.#segment(one!, kind === this.#named(one!.index) ? "" : `${kind} `)];
    const opener = s(
      "g",
      {
        class: "gd-opener",
        tabindex: 0,
        role: "button",
        "aria-expanded": String(open),
        "aria-label": `${open ? "fold" : "name"} ${name}: ${count}, ${bytes(nbytes)}`,
        on: {
          click: (event: Event) => {
            event.stopPropagation();
            this.#toggle(kind);
          },
        },
      },
      s("title", null, `${name}: ${count}, ${bytes(nbytes)}, always there`),
      s("rect", { class: "gd-hit", x: 0, y: y - LABEL / 2, width: this.#bar - 4, height: LABEL }),
      !open && svgPath("gd-leader", `M${this.#bar - 9} ${y}L${this.#bar} ${TOP + top + height / 2}`),
      label("gd-axis gd-sum", this.#bar - 12, y + 4, "end", `${open ? "▾" : "▸"} ${name} ${bytes(nbytes)}`),
    );
    return [opener, !this.#dense && segments.map(each => this.#segment(each))];
  }

  /** A buffer in its slot, from the dispatch that writes it to the last one that reads it. */
  #tenant(index: number, row: Row): SVGGElement {
    const { padded, nbytes, first, last } = this.#plan.intervals[index]!,
      place = this.#place(index, row),
      { x, y, width, height } = place,
      padding = Math.min((padded - nbytes) * this.#arrangement.unit, row.height - 2 - height),
      letters = Math.floor((width - 14) / LETTER),
      name = letters > 3 && height > 9 && cutLeft(this.#named(index), letters);
    return this.#block(`interval:${index}`, index, `written by dispatch ${first}, last read by ${last}`, [
      s("rect", { class: "gd-shape", ...place, rx: 3 }),
      padding > 2 && svgPath("gd-padding", hatch(x, y + height, width, padding)),
      name && s("text", { x: this.#labelAt(x, width, name), y: y + height / 2 + 4 }, name),
    ]);
  }

  /** Place the label beside the line of the peak where there is room, never under it. */
  #labelAt(from: number, width: number, text: string): number {
    const peak = this.#peakAt() + 6,
      long = LETTER * text.length + 8;
    return from + 8 < peak && peak < from + 20 + long && peak + long < from + width ? peak : from + 8;
  }

  #peakAt(): number {
    const at = this.#plan.groups[this.#plan.memory.peak_group ?? -1];
    return at && this.#plan.memory.peak_bytes ? (this.x(at.start) + this.x(at.stop)) / 2 : -1000;
  }

  #draw(): SVGSVGElement {
    const { rows, strata, height, always } = this.#arrangement,
      { outlines, bottom } = this.#outlines(TOP + height);
    this.#end = this.#ghosts ? bottom : TOP + height;
    this.#merged.show(this.#dense ? this.#blocks() : [], new Set());
    const whole = this.#end + AXIS;
    return s(
      "svg",
      { class: "gd-arena", width: this.#width, height: whole, viewBox: `0 0 ${this.#width} ${whole}` },
      this.#bar > 0 && label("gd-axis", this.#bar + BAR, TOP - 6, "end", `always there ${bytes(always)}`),
      rows.map(row => this.#ground(row)),
      this.#phases(),
      this.#dense && [this.#merged.el, this.#over],
      strata.map(each => this.#stratum(each)),
      !this.#dense && rows.map(row => row.intervals.map(index => this.#tenant(index, row))),
      this.#ghosts && outlines,
      rows.length > 0 && this.#overTime(),
      this.#axis(),
      this.#peak(),
      s(
        "g",
        { class: "gd-runhead", "aria-hidden": "true" },
        s("rect", { x: -7, y: 8, width: 14, height: this.#end - 8 }),
        s("line", { y1: 8, y2: this.#end }),
        s("path", { d: "M-5 2H5L0 9Z" }),
      ),
      s("g", { class: "gd-playhead" }),
    );
  }

  #ground({ top, height, label: text }: Row): Child[] {
    const room = this.x(this.#count) - this.#left,
      y = TOP + top;
    return [
      s("rect", { class: "gd-slotrow", x: this.#left, y, width: room, height: height - 2, rx: 3 }),
      label("gd-axis", this.#left - 8, y + height / 2 + 3, "end", text),
    ];
  }

  /** Outline the largest buffers that would need memory of their own if no two shared a slot. */
  #outlines(top: number): { outlines: SVGElement; bottom: number } {
    const { intervals, slots } = this.#plan,
      larger = (a: number, b: number) => intervals[b]!.padded - intervals[a]!.padded;
    let y = top + 2;
    const drawn = slots
      .flatMap(({ tenants }) => [...tenants].sort(larger).slice(1))
      .sort(larger)
      .slice(0, GHOSTS)
      .flatMap((index): Child[] => {
        const { padded } = intervals[index]!,
          { x, width } = this.#life(index),
          height = Math.max(THINNEST, Math.round(padded * this.#arrangement.unit)) - 2,
          at = y,
          name = cut(this.#named(index), 28);
        y += height + 2;
        return [
          s("rect", { x, y: at, width, height, rx: 3 }),
          name.length * LETTER + 14 <= width && s("text", { x: x + 8, y: at + height / 2 + 4 }, name),
        ];
      });
    const saved = label("gd-axis", this.#left - 8, top + 13, "end", `+ ${bytes(reuse(this.#plan).saved)}`);
    return { outlines: s("g", { class: "gd-ghosts" }, saved, ...drawn), bottom: y };
  }

  /** The entity that a band of the mountain selects: the node whose tensor it is. */
  #tensor(index: number): string {
    const { node } = this.#plan.intervals[index]!;
    return node >= 0 ? `node:${this.#plan.stage}.${node}` : `interval:${index}`;
  }

  get #most(): number {
    return Math.max(1, ...this.#mountain.live);
  }

  #nbytes(y: number): number {
    return ((FOOT - y) / MOUNTAIN) * this.#most;
  }

  /** Memory over time: tensor upon tensor, on top of the permanent buffers. */
  #overTime(): Child {
    const { live, always, bands } = this.#mountain,
      most = this.#most,
      y = (nbytes: number) => FOOT - (MOUNTAIN * nbytes) / most,
      x = (dispatch: number) => this.x(dispatch);
    const band = (each: Band): SVGElement => {
      const { first, last } = this.#plan.intervals[each.index]!;
      return this.#block(this.#tensor(each.index), each.index, `lives from dispatch ${first} to ${last}`, [
        svgPath("gd-shape", bandPath(each, x, y)),
      ]);
    };
    const whole: Band = { index: -1, nbytes: 0, from: 0, below: live };
    const outline = bandPath({ ...whole, nbytes: most }, x, nbytes => y(Math.max(0, nbytes - most)));
    const at = (nbytes: number, word: string) => label("gd-axis", this.#left - 8, y(nbytes) + 4, "end", word);
    return s(
      "g",
      { class: "gd-mountain" },
      this.#dense ? svgPath("gd-total", outline) : bands.map(band),
      svgPath("gd-phaseline", `M${this.#left} ${FOOT}H${this.x(this.#count)}`),
      at(most, bytes(always + most)),
      at(most / 2, "in use"),
      at(0, bytes(always)),
    );
  }

  /** Mark the beginnings of forward, backward and update. */
  #phases(): Child[] {
    const phase = (k: number) => this.#plan.dispatches[k]?.phase;
    return this.#plan.dispatches.map(
      (each, k) =>
        each.phase !== phase(k - 1) && [
          svgPath("gd-phaseline", `M${this.x(k)} ${TOP - 6}V${this.#end + AXIS}`),
          label("gd-axis", this.x(k) + 6, this.#end + 31, "start", each.phase),
        ],
    );
  }

  #axis(): Child[] {
    const every = Math.max(1, Math.ceil((this.#count * 26) / (this.#width - this.#left - RIGHT))),
      y = this.#end;
    return [
      label("gd-axis", this.#left - 8, y + 15, "end", "dispatch"),
      this.#plan.dispatches.map(
        (dispatch, k) =>
          k % every === 0 &&
          s(
            "g",
            { class: "gd-axisdispatch", ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}`) },
            s("title", null, `${k} ${dispatch.label}`),
            s("rect", { class: "gd-hit", x: this.x(k), y, width: this.x(k + 1) - this.x(k), height: AXIS }),
            label("gd-axis", (this.x(k) + this.x(k + 1)) / 2, y + 15, "middle", k),
          ),
      ),
    ];
  }

  #peak(): Child {
    const x = this.#peakAt(),
      left = x > this.#width - 110;
    return (
      x > 0 &&
      s(
        "g",
        { class: "gd-peak" },
        s("line", { x1: x, x2: x, y1: 4, y2: this.#end }),
        label("", x + (left ? -5 : 5), 12, left ? "end" : "start", `peak ${bytes(this.#plan.memory.peak_bytes!)}`),
      )
    );
  }

  /** Move the play-head to the dispatch that is under way; −1: none runs. */
  sweep(k: number): void {
    const head = this.svg.querySelector<SVGGElement>(".gd-runhead")!,
      here = k >= 0 && k < this.#count && moves();
    if (!here) return head.toggleAttribute("data-at", false) as unknown as void;
    const x = (this.x(k) + this.x(k + 1)) / 2,
      back = x < Number(head.dataset.at ?? Infinity);
    head.style.transition = back ? "none" : ""; // from the end to the beginning it jumps
    head.style.transform = `translateX(${x}px)`;
    head.dataset.at = String(x);
  }

  /** Mark the dispatches that are lit; those that only read the selected buffer with an open head. */
  #movePlayhead(lit: ReadonlySet<string>, { writes, reads }: Uses): void {
    const ks = this.#plan.dispatches.flatMap((_, k) => (lit.has(`dispatch:${k}`) ? [k] : []));
    this.svg.querySelector(".gd-playhead")!.replaceChildren(
      ...ks.slice(0, 40).flatMap(k => {
        const x = (this.x(k) + this.x(k + 1)) / 2;
        const entity = `dispatch:${k}`;
        return s(
          "g",
          { "data-only-reads": reads.has(entity) && !writes.has(entity) },
          s("line", { x1: x, x2: x, y1: TOP, y2: this.#end }),
          s("path", { d: `M${x - 5} 15H${x + 5}L${x} 22Z` }),
        );
      }),
    );
  }
}
