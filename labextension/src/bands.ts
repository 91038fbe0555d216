// Large pictures: only what lies near the part that is in sight exists as elements. Rows go by bands of a fixed height.

/** Something to draw: how high it reaches, the layer it goes to, and how to make its elements. */
export interface Item {
  top: number;
  bottom: number;
  layer: number;
  make(): SVGElement[];
}

const BAND = 640;

export class Bands {
  private readonly waiting = new Map<number, Item[]>();
  private readonly drawn = new Map<number, SVGElement[]>();

  /** `cull` false: everything is drawn at once. Items higher than a band (rails, long wires) are always there. */
  constructor(
    items: readonly Item[],
    private readonly layers: readonly SVGGElement[],
    cull: boolean,
    private readonly forget: (element: SVGElement) => void,
  ) {
    for (const item of items) {
      if (!cull || item.bottom - item.top > BAND) {
        this.draw(item);
        continue;
      }
      const band = Math.floor(item.top / BAND),
        known = this.waiting.get(band);
      if (known) known.push(item);
      else this.waiting.set(band, [item]);
    }
  }

  /** Draws the bands around [top, bottom] and drops the others; true when something changed. */
  show(top: number, bottom: number): boolean {
    // An item stands in the band of its top and may reach one further; one more each way for scrolling.
    const first = Math.floor(top / BAND) - 2,
      last = Math.floor(bottom / BAND) + 1;
    let changed = false;
    for (const [band, elements] of this.drawn) {
      if (band >= first && band <= last) continue;
      for (const element of elements) {
        this.forget(element);
        element.remove();
      }
      this.drawn.delete(band);
      changed = true;
    }
    for (let band = first; band <= last; band++) {
      if (this.drawn.has(band) || !this.waiting.has(band)) continue;
      this.drawn.set(
        band,
        this.waiting.get(band)!.flatMap(item => this.draw(item)),
      );
      changed = true;
    }
    return changed;
  }

  private draw(item: Item): SVGElement[] {
    const elements = item.make();
    this.layers[item.layer]!.append(...elements);
    return elements;
  }
}
