// Mark entities: the elements that stand for each in the panes, and the attributes data-lit, data-selected,
// data-preview, data-hit, data-writes and data-reads.

import { put } from "../doc/format.ts";
import type { Uses } from "../doc/select.ts";
import { all, reveal } from "../draw/dom.ts";
import type { Pane } from "./pane.ts";

const NAMES = ["lit", "selected", "preview", "hit", "writes", "reads"] as const;
type Name = (typeof NAMES)[number];

/** The entities of a view that get each mark; the preview of the one under the pointer has its own time. */
export interface Marked extends Uses {
  lit: ReadonlySet<string>;
  selected: ReadonlySet<string>;
  hit: ReadonlySet<string>;
}

/** The elements of one pane by entity. One of them is the pane's tab stop. */
export class Marks {
  #elements = new Map<string, Element[]>();
  /** The elements that carry each mark. */
  readonly #marked = new Map<Name, Element[]>();
  #stop: Element | null = null;

  constructor(readonly pane: Pane) {
    this.index();
  }

  /** Collect the elements again, after the pane drew others. */
  index(): void {
    this.#elements = new Map();
    for (const element of all(this.pane.el, "[data-entity]")) {
      const entity = element.getAttribute("data-entity")!;
      put(this.#elements, entity, element);
    }
    // Elements that stayed keep their marks until the next `mark` takes them away.
    for (const name of NAMES) this.#marked.set(name, all(this.pane.el, `[data-${name}]`));
    if (!this.#stop?.isConnected || !this.pane.el.contains(this.#stop)) this.tabStop(this.walkable()[0] ?? null);
  }

  mark(marked: Marked): void {
    for (const name of NAMES) if (name !== "preview") this.#swap(name, marked[name]);
    this.pane.lit?.(marked.lit);
  }

  hover(preview: ReadonlySet<string>): void {
    this.#swap("preview", preview);
  }

  /** Scroll a lit element into sight in the pane's own scroller, unless one is in sight. */
  reveal(): void {
    const byScroller = new Map<HTMLElement, Element[]>();
    // The selected entities come before those linked to them.
    for (const element of [...this.#marked.get("selected")!, ...this.#marked.get("lit")!]) {
      const scroller = element.closest<HTMLElement>(".gd-scroll");
      if (!scroller || element.classList.contains("gd-edge")) continue;
      put(byScroller, scroller, element);
    }
    byScroller.forEach((elements, scroller) => reveal(scroller, elements.slice(0, 200)));
  }

  tabStop(element: Element | null): void {
    this.#stop?.setAttribute("tabindex", "-1");
    this.#stop = element;
    element?.setAttribute("tabindex", "0");
  }

  of(entity: string): Element[] {
    return this.#elements.get(entity) ?? [];
  }

  /** Return the elements that arrows walk in a list: all that are shown and can take the focus, in order. */
  walkable(): Element[] {
    return all(this.pane.el, "[data-entity][tabindex]").filter(element => !element.closest("[hidden]"));
  }

  #swap(mark: Name, entities: ReadonlySet<string>): void {
    const old = this.#marked.get(mark)!,
      name = `data-${mark}`,
      fresh: Element[] = [];
    // Walk the smaller side: a selection may light thousands, a pane may hold thousands.
    if (entities.size < this.#elements.size)
      entities.forEach(entity => fresh.push(...(this.#elements.get(entity) ?? [])));
    else
      this.#elements.forEach((elements, entity) => {
        if (entities.has(entity)) fresh.push(...elements);
      });
    const keep = new Set(fresh);
    for (const element of old) if (!keep.has(element)) element.removeAttribute(name);
    for (const element of fresh) if (!element.hasAttribute(name)) element.setAttribute(name, "");
    this.#marked.set(mark, fresh);
  }
}
