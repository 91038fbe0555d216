// Keys: what each one does while the focus is inside the view. Handled keys go no further.

import { optimizerPasses, type GraphDoc } from "../doc/doc.ts";
import { parseEntity } from "../doc/select.ts";
import { Camera, type CameraGroup } from "../draw/camera.ts";
import { neighbour } from "../draw/graph.ts";
import type { Marks } from "./marks.ts";
import type { Pane } from "./pane.ts";
import { opening, selecting, tabsOf, type Action, type Ui } from "./state.ts";

/** The part of a view that keys act on. */
export interface Keyed {
  doc: GraphDoc;
  ui(): Ui;
  lit(): ReadonlySet<string>;
  act(action: Action): void;
  cameras(): CameraGroup;
  marksAt(element: Element): Marks | null;
  /** Returns the element of the selection, if it is drawn. */
  chosen(): Element | null;
  press(name: "step" | "pause" | "look"): void;
  tools: { press(tool: string): void };
  bookmarks(): void;
  blur(): void;
  search(): void;
  /** The pane in front. */
  front(): Pane | undefined;
}

const isTyping = (element: Element): boolean => element.matches("input, select, textarea, [contenteditable]");

/** The last step along an edge: at a dead end the walk goes on to the next input or user of where it came from. */
export class Keys {
  readonly #view: Keyed;
  #last: { from: number; to: number; key: string; turn: number } | null = null;

  constructor(view: Keyed) {
    this.#view = view;
  }

  /** Run the key; true when it was one of ours. */
  handle(event: KeyboardEvent): boolean {
    const target = event.target as Element;
    if (event.ctrlKey || event.metaKey) return false;
    if (isTyping(target)) return false;
    const view = this.#view;
    if (event.altKey) {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return false;
      view.act({ do: event.key === "ArrowLeft" ? "back" : "forward" });
      return true;
    }
    if (event.key.startsWith("Arrow")) return this.#arrow(target, event.key);
    const act = this.#table(target)[event.key];
    if (!act) return false;
    return act() !== false;
  }

  #table(target: Element): Record<string, (() => void | boolean) | undefined> {
    const view = this.#view,
      // From the search, Escape leads to the view itself: there Enter means what is selected.
      entity =
        target.getAttribute("data-entity") ?? (target.matches(".gdlab") ? (view.ui().selected[0] ?? null) : null);
    const onButton = target.matches("button, summary, a") && !entity;
    const drawn = target.matches("svg [role=button]:not([data-entity], [data-group])");
    const open = drawn
      ? () => void target.dispatchEvent(new MouseEvent("click", { bubbles: true }))
      : entity === null || onButton
        ? undefined
        : () => this.#open(entity);
    return {
      Escape: () => this.#escape(),
      Enter: open,
      " ": () => {
        const grouped = target.closest("[data-group]");
        if (!grouped) return open?.() ?? false;
        return void grouped.dispatchEvent(new CustomEvent("gd-toggle", { bubbles: true }));
      },
      ...Object.fromEntries(tabsOf(view.doc).map((tab, i) => [`${i + 1}`, () => view.act(opening(tab))])),
      "0": () => view.cameras().fit(),
      "+": () => Camera.step(view.cameras(), 1),
      "=": () => Camera.step(view.cameras(), 1),
      "-": () => Camera.step(view.cameras(), -1),
      n: () => view.press("step"),
      p: () => view.press("pause"),
      l: () => view.press("look"),
      "/": () => view.search(),
      b: () => view.bookmarks(),
      m: () => view.tools.press("map"),
      e: () => view.tools.press("labels"),
      t: () => this.#text("text"),
      o: () => this.#text("outline"),
      "[": () => view.act({ do: "back" }),
      "]": () => view.act({ do: "forward" }),
      ",": () => this.#rewrite(-1),
      ".": () => this.#rewrite(1),
      "?": () => view.act({ do: "help", on: !view.ui().help }),
    };
  }

  #escape(): void {
    const view = this.#view;
    if (view.ui().help) view.act({ do: "help", on: false });
    else if (view.ui().selected.length > 0) view.act({ do: "clear" });
    else view.blur();
  }

  #text(face: "text" | "outline"): void {
    this.#view.act(opening("text"));
    this.#view.act({ do: "face", face });
  }

  /** Select an entity; if it is selected already, open the kernel that runs it. */
  #open(entity: string): void {
    const view = this.#view;
    if (!view.ui().selected.includes(entity)) return view.act(selecting([entity]));
    if ([...view.lit()].some(each => each.startsWith("wgsl:") || each.startsWith("kernel:")))
      view.act(opening("kernels"));
  }

  #rewrite(by: 1 | -1): void {
    const view = this.#view,
      front = view.front();
    if (front?.turn) return front.turn(by);
    const steps = optimizerPasses(view.doc).flatMap(pass => pass.rewrites.map((_, i) => `step:${pass.index}.${i}`));
    const at = steps.findIndex(step => view.ui().selected.includes(step));
    const next = steps[at < 0 ? (by > 0 ? 0 : steps.length - 1) : at + by];
    if (next) view.act(selecting([next]));
  }

  #arrow(focused: Element, key: string): boolean {
    const view = this.#view,
      target = focused.matches(".gdlab") ? view.chosen() : focused, // from the search: on from what it found
      marks = target && view.marksAt(target);
    if (!target || !marks) return false;
    const camera = target.closest<HTMLElement>(".gd-camera");
    if (camera) return this.#walkGraph(marks, target, key);
    const entity = target.closest("[data-entity]");
    if (!entity) return false;
    const all = marks.walkable(),
      at = all.indexOf(entity);
    return this.#go(marks, all[at + (key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1)] ?? null);
  }

  #walkGraph(marks: Marks, target: Element, key: string): boolean {
    const view = this.#view,
      stage = marks.pane.walked?.();
    if (!stage) return false;
    const name = (index: number) => stage.entities?.[index] ?? `node:${stage.index}.${index}`,
      at = target.closest("[data-entity]")?.getAttribute("data-entity") ?? "",
      entity = parseEntity(at);
    const from = Math.max(0, stage.entities?.indexOf(at) ?? (entity?.kind === "node" ? entity.at[1]! : 0));
    let step = { from, key, turn: 0 },
      to = neighbour(stage, from, key, 0);
    if (to === null && this.#last?.to === from && this.#last.key === key) {
      step = { from: this.#last.from, key, turn: this.#last.turn + 1 };
      to = neighbour(stage, step.from, key, step.turn);
    }
    if (to === null || marks.of(name(to)).some(each => each.hasAttribute("data-gone"))) return true;
    this.#last = { ...step, to };
    // Selected first: in a large picture that is what draws it.
    view.act(selecting([name(to)]));
    return this.#go(marks, marks.of(name(to)).find(each => !each.hasAttribute("data-echo")) ?? null);
  }

  #go(marks: Marks, element: Element | null): boolean {
    if (!element) return true;
    marks.tabStop(element);
    (element as HTMLElement | SVGElement).focus({ preventScroll: true });
    this.#view.act(selecting([element.getAttribute("data-entity")!]));
    return true;
  }
}
