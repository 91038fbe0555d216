// Large pictures: only what stands in sight exists as elements. Space is cut into cells, each knows what reaches into it.

import { put } from "./format.ts";

export interface Rect {
  left: number;
  top: number;
  right: number;
  bottom: number;
}
/** How much of a thing is drawn; "shape" is a block among others (merged.ts). */
export type Detail = "full" | "op" | "shape";

/** Something to draw: where it reaches, the layer it goes to, and how to make its elements. */
export interface Item extends Rect {
  layer: number;
  make(detail: Detail): SVGElement[];
}

const CELL = 640;

export class Cells {
  private readonly cells = new Map<string, number[]>();
  private readonly drawn = new Map<number, SVGElement[]>();

  constructor(
    readonly items: readonly Item[],
    private readonly layers: readonly SVGGElement[],
    private readonly forget: (element: SVGElement) => void,
  ) {
    items.forEach((item, index) =>
      this.around(item, key => {
        put(this.cells, key, index);
      }),
    );
  }

  private around({ left, top, right, bottom }: Rect, visit: (key: string) => void): void {
    const last = Math.floor(right / CELL),
      lowest = Math.floor(bottom / CELL);
    for (let x = Math.floor(left / CELL); x <= last; x++) for (let y = Math.floor(top / CELL); y <= lowest; y++) visit(`${x} ${y}`);
  }

  /** The items that reach into a rectangle, in their order. */
  within(rect: Rect): number[] {
    const found = new Set<number>();
    this.around(rect, key => this.cells.get(key)?.forEach(index => found.add(index)));
    const inside = ({ left, top, right, bottom }: Rect) =>
      right >= rect.left && left <= rect.right && bottom >= rect.top && top <= rect.bottom;
    return [...found].filter(index => inside(this.items[index]!)).sort((a, b) => a - b);
  }

  /** Draws exactly these items; true when something changed. `again`: those that stand are drawn anew. */
  show(indexes: readonly number[], detail: Detail, again: boolean): boolean {
    const wanted = new Set(indexes);
    let changed = false;
    for (const [index, elements] of this.drawn) {
      if (!again && wanted.has(index)) continue;
      for (const element of elements) {
        this.forget(element);
        element.remove();
      }
      this.drawn.delete(index);
      changed = true;
    }
    for (const index of wanted) {
      if (this.drawn.has(index)) continue;
      const item = this.items[index]!,
        elements = item.make(detail);
      this.layers[item.layer]!.append(...elements);
      this.drawn.set(index, elements);
      changed = true;
    }
    return changed;
  }
}
