// Keep elements only for the part of a large picture that is in sight: space is cut into cells with the items in them.

import { put } from "../doc/format.ts";

export interface Rect {
  left: number;
  top: number;
  right: number;
  bottom: number;
}
/** The detail in which a thing is drawn; "shape" is a block among others (merged.ts). */
export type Detail = "full" | "op" | "shape";

/** A thing to draw: its extent, its layer, the nodes it stands for, and the function that makes its elements. */
export interface Item extends Rect {
  layer: number;
  nodes: readonly number[];
  make(detail: Detail): SVGElement[];
}

const CELL = 640;
const REACH = 6; // cells: what reaches over more is looked through one by one

export class Cells {
  readonly #layers: readonly SVGGElement[];
  readonly #forget: (element: SVGElement) => void;
  readonly #cells = new Map<string, number[]>();
  readonly #drawn = new Map<number, SVGElement[]>();
  readonly #far: number[] = [];

  constructor(
    readonly items: readonly Item[],
    layers: readonly SVGGElement[],
    forget: (element: SVGElement) => void,
  ) {
    this.#layers = layers;
    this.#forget = forget;
    items.forEach((item, index) => {
      if (item.right - item.left + item.bottom - item.top > REACH * CELL) this.#far.push(index);
      else
        this.#around(item, key => {
          put(this.#cells, key, index);
        });
    });
  }

  #around({ left, top, right, bottom }: Rect, visit: (key: string) => void): void {
    const last = Math.floor(right / CELL),
      lowest = Math.floor(bottom / CELL);
    for (let x = Math.floor(left / CELL); x <= last; x++)
      for (let y = Math.floor(top / CELL); y <= lowest; y++) visit(`${x} ${y}`);
  }

  /** The items that reach into a rectangle, in their order. */
  within(rect: Rect): number[] {
    const found = new Set(this.#far);
    this.#around(rect, key => this.#cells.get(key)?.forEach(index => found.add(index)));
    const inside = ({ left, top, right, bottom }: Rect) =>
      right >= rect.left && left <= rect.right && bottom >= rect.top && top <= rect.bottom;
    return [...found].filter(index => inside(this.items[index]!)).sort((a, b) => a - b);
  }

  /** The items that are drawn, in their order. */
  get shown(): number[] {
    return [...this.#drawn.keys()].sort((a, b) => a - b);
  }

  /** Draw exactly these items, in their order; `stale` ones are drawn anew. Returns whether anything changed. */
  show(indexes: readonly number[], detail: Detail, stale: (index: number) => boolean = () => false): boolean {
    const wanted = new Set(indexes),
      next: (SVGElement | null)[] = this.#layers.map(() => null);
    let changed = false;
    for (const [index, elements] of this.#drawn) {
      if (wanted.has(index) && !stale(index)) continue;
      for (const element of elements) {
        this.#forget(element);
        element.remove();
      }
      this.#drawn.delete(index);
      changed = true;
    }
    // From the last to the first: each stands before the one that follows it, whenever it was drawn.
    for (const index of [...indexes].reverse()) {
      const { layer, make } = this.items[index]!,
        known = this.#drawn.get(index),
        elements = known ?? make(detail);
      if (!known) {
        if (next[layer]) next[layer].before(...elements);
        else this.#layers[layer]!.append(...elements);
        this.#drawn.set(index, elements);
        changed = true;
      }
      next[layer] = elements[0] ?? next[layer]!;
    }
    return changed;
  }
}
