// Dividers between panes that stand side by side: dragged, moved by keys, double-clicked; their places are kept.

import type { GraphDoc } from "../doc/doc.ts";
import { boxOf, h, handled, listen } from "../draw/dom.ts";
import { keep, keptOf } from "../live/kept.ts";

const RAIL = 36, // pixels of a pane that is closed
  LEAST = 120, // of one that is open
  OPENED = 320, // of a rail that is opened again, where there is room
  STEP = 24;

/** Shares of the width; 0 is a rail. */
type Shares = readonly number[];

/** The tabs in which a pane is a drawer: closed at first. */
const DRAWERS: Record<string, Shares> = { "plan 2": [1, 0] };

/** Move the border behind pane `i` by some pixels; a pane that gets too narrow becomes a rail. */
export function moved(widths: readonly number[], i: number, by: number): Shares {
  const both = widths[i]! + widths[i + 1]!,
    wanted = widths[i]! + by;
  const open = Math.min(both - LEAST, Math.max(LEAST, wanted)),
    left = wanted < LEAST / 2 ? 0 : both - wanted < LEAST / 2 ? both : open;
  return widths.map((width, at) => (at === i ? left : at === i + 1 ? both - left : width <= RAIL ? 0 : width));
}

/** The shares that give all width to pane `i`. */
export const alone = (count: number, i: number): Shares => Array.from({ length: count }, (_, at) => (at === i ? 1 : 0));

const template = (shares: Shares): string =>
  shares.map(each => (each > 0 ? `minmax(${RAIL}px, ${each}fr)` : `${RAIL}px`)).join(" ");

export class Dividers {
  readonly #panes: HTMLElement;
  readonly #kept;
  readonly #observer: ResizeObserver;
  readonly #again = () => this.place();
  #key = "";
  #bars: HTMLElement[] = [];
  #dragging = false;

  constructor(doc: GraphDoc, panes: HTMLElement) {
    this.#panes = panes;
    this.#kept = keptOf(doc);
    this.#kept.listeners.add(this.#again);
    this.#observer = new ResizeObserver(this.#again);
    this.#observer.observe(panes);
    listen(panes, "click", event => {
      const rail = (event.target as Element).closest<HTMLElement>("[data-rail]");
      if (rail) this.#open(this.#row().indexOf(rail));
    });
  }

  destroy(): void {
    this.#observer.disconnect();
    this.#kept.listeners.delete(this.#again);
  }

  /** The panes of the first row, from left to right. */
  #row(): HTMLElement[] {
    const shown = [...this.#panes.children].filter(
      (each): each is HTMLElement => each.matches(".gd-pane") && each.getClientRects().length > 0,
    );
    const top = Math.min(...shown.map(each => each.offsetTop));
    return shown.filter(each => each.offsetTop === top);
  }

  #shares(count: number): Shares | undefined {
    const known = this.#kept.value.columns?.[this.#key];
    return known?.length === count ? known : undefined;
  }

  #set(shares: Shares | null): void {
    const { [this.#key]: _, ...others } = this.#kept.value.columns ?? {};
    const rounded = shares?.map(each => Math.round(each * 1000) / 1000);
    keep(this.#kept, { columns: rounded ? { ...others, [this.#key]: rounded } : others });
  }

  /** Apply the shares chosen for this tab and number of panes, and put the dividers at the borders. */
  place(tab?: string): void {
    if (this.#dragging) return;
    this.#panes.style.gridTemplateColumns = ""; // as the style sheet has it at this width
    const row = this.#row(),
      columns = getComputedStyle(this.#panes).gridTemplateColumns.split(" ").length;
    const name = tab ?? this.#key.split(" ")[0] ?? "";
    this.#key = `${name} ${row.length}`;
    const many = row.length > 1 && columns === row.length;
    const shares = many ? (this.#shares(row.length) ?? DRAWERS[this.#key]) : undefined;
    this.#panes.style.gridTemplateColumns = shares ? template(shares) : "";
    for (const each of this.#panes.children) each.toggleAttribute("data-rail", false);
    shares?.forEach((each, i) => row[i]!.toggleAttribute("data-rail", each === 0));
    this.#show(many ? row : []);
  }

  #show(row: readonly HTMLElement[]): void {
    while (this.#bars.length > Math.max(0, row.length - 1)) this.#bars.pop()!.remove();
    while (this.#bars.length < row.length - 1) this.#bars.push(this.#bar(this.#bars.length));
    const height = Math.max(0, ...row.map(each => each.offsetHeight)),
      all = this.#panes.clientWidth || 1;
    this.#bars.forEach((bar, i) => {
      const [left, right] = [row[i]!, row[i + 1]!],
        at = right.offsetLeft;
      this.#panes.append(bar);
      bar.style.cssText = `left:${at - 5}px;top:${row[0]!.offsetTop}px;height:${height}px`;
      bar.ariaValueNow = String(Math.round((100 * at) / all));
      bar.ariaLabel = `divider between ${left.ariaLabel} and ${right.ariaLabel}`;
      bar.title = "drag, or arrow keys; double click: all width to the pane at the left";
    });
  }

  #bar(i: number): HTMLElement {
    const bar = h("div", {
      class: "gd-divider",
      role: "separator",
      tabindex: 0,
      "aria-orientation": "vertical",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "data-divider": i,
    });
    listen(bar, "pointerdown", event => this.#drag(event, bar, i));
    listen(bar, "dblclick", event => (handled(event), this.#toggle(i)));
    listen(bar, "click", handled);
    listen(bar, "keydown", event => this.#onKey(event, i));
    return bar;
  }

  /** Open a rail: the widest pane gives it room. */
  #open(i: number): void {
    const widths = this.#widths(),
      most = Math.max(...widths),
      room = Math.min(this.#key in DRAWERS ? Infinity : OPENED, most / 2),
      giver = widths.indexOf(most);
    this.#set(widths.map((width, at) => (at === i ? room : at === giver ? width - room : width <= RAIL ? 0 : width)));
  }

  #widths = (): number[] => this.#row().map(each => each.offsetWidth);

  #toggle(i: number): void {
    const widths = this.#widths(),
      wide = widths.every((width, at) => at === i || width <= RAIL);
    this.#set(wide ? null : alone(widths.length, i));
  }

  #onKey(event: KeyboardEvent, i: number): void {
    const far = this.#panes.clientWidth;
    const by = { ArrowLeft: -STEP, ArrowRight: STEP, Home: -far, End: far }[event.key];
    if (by === undefined && event.key !== "Enter") return;
    handled(event);
    if (by === undefined) this.#toggle(i);
    else this.#set(moved(this.#widths(), i, by));
    this.#bars[i]?.focus({ preventScroll: true });
  }

  #drag(event: PointerEvent, bar: HTMLElement, i: number): void {
    if (event.button !== 0) return;
    const widths = this.#widths();
    let shares: Shares | null = null;
    this.#dragging = true;
    bar.setPointerCapture(event.pointerId);
    const move = (to: PointerEvent) => {
      if (!shares && Math.abs(to.clientX - event.clientX) < 3) return;
      shares = moved(widths, i, to.clientX - event.clientX);
      this.#panes.style.gridTemplateColumns = template(shares);
      bar.style.left = `${to.clientX - boxOf(this.#panes).left - 5}px`;
    };
    const up = () => {
      this.#dragging = false;
      bar.removeEventListener("pointermove", move);
      bar.removeEventListener("pointerup", up);
      bar.removeEventListener("pointercancel", up);
      if (shares) this.#set(shares);
    };
    bar.addEventListener("pointermove", move);
    bar.addEventListener("pointerup", up);
    bar.addEventListener("pointercancel", up);
  }
}
