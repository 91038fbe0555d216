// Long lists: all rows of one height, of which only those in sight (and some around) exist.

import { boxOf, h, listen } from "./dom.ts";

const WHOLE = 300,
  AROUND = 20;

/** Rows `0 … count` of a scroller; `make` draws one, `changed` is called when others were drawn. */
export class Rows {
  readonly #scroller: HTMLElement;
  readonly #height: number;
  readonly #changed: () => void;
  #first = -1;
  #last = -1;
  #count = 0;
  #make: (index: number) => HTMLElement = () => h("div");
  readonly #above: HTMLElement;
  readonly #below: HTMLElement;
  readonly #listen = () => {
    if (this.#draw()) this.#changed();
  };
  readonly #observer = new ResizeObserver(this.#listen);

  constructor(
    scroller: HTMLElement,
    readonly el: HTMLElement,
    height: number,
    changed: () => void,
  ) {
    this.#scroller = scroller;
    this.#height = height;
    this.#changed = changed;
    const spacer = () =>
      el instanceof HTMLTableSectionElement ? h("tr", { class: "gd-spacer" }, h("td")) : h("div");
    this.#above = spacer();
    this.#below = spacer();
    listen(scroller, "scroll", this.#listen, { passive: true });
    this.#observer.observe(scroller);
  }

  /** Show another list in the same place. */
  set(count: number, make: (index: number) => HTMLElement): void {
    this.#count = count;
    this.#make = make;
    this.#first = this.#last = -1;
    this.#draw();
  }

  /** Scroll to a row, unless it is in sight; true when other rows were drawn. */
  bring(index: number): boolean {
    const scroller = this.#scroller,
      height = this.#height,
      top = this.#top() + index * height - scroller.scrollTop;
    if (this.#count <= WHOLE || (top >= 0 && top + height <= scroller.clientHeight)) return false;
    scroller.scrollTop += top - scroller.clientHeight / 3;
    return this.#draw();
  }

  destroy(): void {
    this.#observer.disconnect();
    this.#scroller.removeEventListener("scroll", this.#listen);
  }

  /** Return the top of the list within the scrolled content. */
  #top(): number {
    const { el } = this,
      scroller = this.#scroller;
    return el.isConnected ? boxOf(el).top - boxOf(scroller).top + scroller.scrollTop : 0;
  }

  #draw(): boolean {
    const count = this.#count,
      height = this.#height,
      scroller = this.#scroller,
      whole = count <= WHOLE,
      at = whole ? 0 : (scroller.scrollTop - this.#top()) / height;
    const shown = (scroller.clientHeight || 600) / height;
    const first = whole ? 0 : Math.min(Math.max(0, Math.floor(at) - AROUND), count),
      last = whole ? count : Math.min(count, Math.ceil(Math.max(0, at + shown)) + AROUND);
    // Half of what is around may be used up before anything is drawn again.
    const inside = first >= this.#first && last <= this.#last && last - first >= this.#last - this.#first - 4;
    if (
      inside ||
      (this.#first >= 0 && Math.abs(first - this.#first) < AROUND / 2 && Math.abs(last - this.#last) < AROUND / 2)
    )
      return false;
    this.#first = first;
    this.#last = last;
    const space = (element: HTMLElement, rows: number) => {
      element.style.height = `${rows * height}px`;
      element.hidden = rows === 0;
    };
    space(this.#above, first);
    space(this.#below, count - last);
    this.el.replaceChildren(
      this.#above,
      ...Array.from({ length: last - first }, (_, i) => this.#make(first + i)),
      this.#below,
    );
    return true;
  }
}
