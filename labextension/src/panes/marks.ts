// Light entities: which elements of the panes stand for what, and the attributes data-lit, data-selected, data-preview.

import { put } from "../doc/format.ts";
import { all, reveal } from "../draw/dom.ts";
import type { Pane } from "./pane.ts";

/** The elements of one pane by entity. One of them is the pane's tab stop. */
export class Marks {
  #elements = new Map<string, Element[]>();
  #lit: Element[] = [];
  #selected: Element[] = [];
  #preview: Element[] = [];
  #hits: Element[] = [];
  #stop: Element | null = null;

  constructor(readonly pane: Pane) {
    this.index();
  }

  /** Look again: the pane drew other elements. */
  index(): void {
    this.#elements = new Map();
    for (const element of all(this.pane.el, "[data-entity]")) {
      const entity = element.getAttribute("data-entity")!;
      put(this.#elements, entity, element);
    }
    // Elements that stayed keep their marks until the next `mark` takes them away.
    const marked = (name: string) => all(this.pane.el, `[${name}]`);
    this.#lit = marked("data-lit");
    this.#selected = marked("data-selected");
    this.#preview = marked("data-preview");
    this.#hits = marked("data-hit");
    if (!this.#stop?.isConnected || !this.pane.el.contains(this.#stop)) this.tabStop(this.walkable()[0] ?? null);
  }

  mark(lit: ReadonlySet<string>, selected: ReadonlySet<string>, found: ReadonlySet<string>): void {
    this.#hits = this.#swap(this.#hits, "data-hit", found);
    this.#lit = this.#swap(this.#lit, "data-lit", lit);
    this.#selected = this.#swap(this.#selected, "data-selected", selected);
    this.pane.lit?.(lit);
  }

  hover(preview: ReadonlySet<string>): void {
    this.#preview = this.#swap(this.#preview, "data-preview", preview);
  }

  /** Scroll something lit into the pane's own scroller, unless something lit is in sight. */
  reveal(): void {
    const byScroller = new Map<HTMLElement, Element[]>();
    // What is selected itself comes before what it lights.
    for (const element of [...this.#selected, ...this.#lit]) {
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

  /** What arrows walk in a list: everything that can take the focus and is shown, in order. */
  walkable(): Element[] {
    return all(this.pane.el, "[data-entity][tabindex]").filter(element => !element.closest("[hidden]"));
  }

  #swap(old: Element[], name: string, entities: ReadonlySet<string>): Element[] {
    const fresh: Element[] = [];
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
    return fresh;
  }
}
