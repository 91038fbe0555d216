// The parts around the panes: top bar with tabs, the switch of panes where it is narrow, status line, help.

import { optimizerPasses, type GraphDoc } from "../doc/doc.ts";
import { bytes } from "../doc/format.ts";
import type { ChainPart } from "../doc/select.ts";
import { all, div, h, handled, replace, s, span, type Child } from "../draw/dom.ts";
import { familyClass, LETTERS } from "../draw/labels.ts";
import type { State } from "../live/messages.ts";
import { page } from "../live/page.ts";
import { bookmarks, type Bookmarks } from "./bookmarks.ts";
import { button, select } from "./pane.ts";
import {
  opening,
  ARRANGEMENT,
  faceOf,
  PANES,
  selecting,
  tabsOf,
  type Action,
  type PaneKey,
  type Tab,
  type Ui,
} from "./state.ts";
import { planFact, rewriteCount } from "./tabcounts.ts";
import type { Tools } from "./tools.ts";

const SHADE = 26, // pixels at the end of the bar of tabs
  GAP = 2; // between two

/** Return the name of a pane on the switch of panes. */
function nameOf(key: PaneKey): string {
  const { name, title } = PANES[key];
  return name ?? title;
}

/** The count beside a tab's name; empty if there is nothing to count. */
function counts(doc: GraphDoc): Partial<Record<Tab, string>> {
  const sizes = (role: string) => doc.stages.filter(stage => stage.role === role).map(stage => stage.nodes.length);
  const written = sizes("written")[0],
    optimized = sizes("optimized")[0];
  const { plan } = doc,
    physical = plan?.memory.physical_bytes;
  return {
    opt: written === undefined ? "" : optimized === undefined ? `${written}` : `${written}→${optimized}`,
    rewrites: optimizerPasses(doc).length > 0 ? `${rewriteCount(doc)}` : "",
    plan: plan ? planFact(plan) : "",
    arena: physical ? bytes(physical) : "",
    kernels: plan ? `${plan.kernels.length}` : "",
  };
}

const KEYS: [string, string][] = [
  ["← →", "to an input, to a user"],
  ["↑ ↓", "previous, next"],
  ["/", "search; Enter: next hit"],
  ["Enter", "open the kernel of what is selected"],
  ["Space", "open or close the group"],
  ["Esc", "clear the selection"],
  ["Shift + click", "add to the selection"],
  ["Alt + ← →, [ ]", "selection before, after"],
  ["b", "bookmarks"],
  [", .", "previous, next rewrite"],
  ["+ \u2212 0", "zoom in, out, fit"],
  ["Ctrl + wheel", "zoom; the wheel alone after a click into the picture"],
  ["m", "overview, on or off"],
  ["e", "bytes on edges, on or off"],
  ["n", "step the session"],
  ["p", "pause or resume"],
  ["l", "look at the selected tensor"],
  ["o, t", "outline, text"],
  ["1 … 9", "the tabs"],
  ["?", "this help"],
];

const SIGNS: [string, string][] = [
  ["·····", "an edge from a parameter"],
  ["- - -", "kept for the way back"],
  ["\u25cf \u25a0 \u25c6 \u25cb", "a rule: the same bits, other roundings, sums in another order, an approximation"],
];
const pairs = (all: readonly [Child, Child][]): HTMLElement =>
  h("dl", null, ...all.flatMap(([sign, does]) => [h("dt", null, sign), h("dd", null, does)]));

const helpDialog = (): HTMLElement =>
  h(
    "div",
    { class: "gd-help", role: "dialog", "aria-label": "keys", hidden: true },
    h("h3", null, "Keys"),
    pairs(KEYS),
    h("h4", null, "Signs"),
    pairs([
      ...Object.entries(LETTERS).map(([family, letter]): [Child, Child] => [
        h("b", { class: familyClass(family) }, letter),
        family,
      ]),
      ...SIGNS,
    ]),
  );

/** A drawing of two panes side by side. */
const sideBySide = (): SVGElement =>
  s(
    "svg",
    { width: 14, height: 12, "aria-hidden": "true" },
    s("path", { d: "M1 1h12v10H1zM7 1v10", fill: "none", stroke: "currentColor", "stroke-width": 1.3 }),
  );

/** A button at the end of the bar. */
const cornerButton = (name: string, label: string, title: string, click: () => void, sign: Child): HTMLButtonElement =>
  button(label, { class: "gd-button gd-helpbutton", "data-command": name, title, on: { click } }, sign);

export class Chrome {
  readonly #act: (action: Action) => void;
  readonly root: HTMLDivElement;
  readonly panes = div("gd-panes");
  readonly #tabs = new Map<Tab, HTMLButtonElement>();
  readonly #bar: HTMLElement;
  /** The tabs for which the bar has no room. */
  readonly #menu = select("more views", [], "", key => key && this.#act(opening(key as Tab)));
  readonly #observer: ResizeObserver;
  readonly #faces = h("div", { class: "gd-faces", role: "group", "aria-label": "pane" });
  readonly #source: HTMLButtonElement;
  readonly #helpButton: HTMLButtonElement;
  readonly #help = helpDialog();
  readonly #chain = h("span", {
    class: "gd-chain",
    role: "group",
    "aria-label": "where the selection comes from and goes to",
  });
  readonly #summary = span("gd-summaryline");
  readonly #voice = h("div", { class: "gd-voice", role: "status", "aria-live": "polite" });
  readonly #newer = h(
    "button",
    {
      class: "gd-link gd-newer",
      "data-command": "newer",
      hidden: true,
      on: { click: (event: MouseEvent) => this.#showNewer(event) },
    },
    "replaced by a newer run: show it",
  );
  readonly bookmarks: Bookmarks;
  #spoken = 0;
  #saying: ReturnType<typeof setTimeout> | undefined;

  constructor(
    doc: GraphDoc,
    act: (action: Action) => void,
    readonly tools: Tools,
    ui: () => Ui,
  ) {
    this.#act = act;
    this.bookmarks = bookmarks(doc, act, ui, text => tools.tell(text));
    this.#bar = h("div", { class: "gd-tabs", role: "tablist", "aria-label": "views" }, this.#makeTabs(doc));
    this.#menu.classList.add("gd-tabmenu");
    this.#menu.hidden = true;
    this.#observer = new ResizeObserver(() => this.#fitTabs());
    this.#observer.observe(this.#bar);
    this.#source = h(
      "button",
      { class: "gd-button gd-sourceswitch", "data-command": "source", on: { click: () => act({ do: "source" }) } },
      "Source",
    );
    const help = () => act({ do: "help", on: this.#help.hidden === true });
    this.#helpButton = cornerButton("help", "keys and signs", "keys and signs (?)", help, "?");
    this.#summary.title = this.#summary.textContent = doc.summary;
    tools.el.prepend(this.#source);
    const beside = "open beside the notebook";
    const besideButton = cornerButton("beside", beside, beside, () => page().beside?.(this.root), sideBySide());
    besideButton.classList.add("gd-besidebutton");
    besideButton.hidden = !page().beside;
    this.root = h(
      "div",
      {
        class: "gdlab",
        "data-lm-suppress-shortcuts": "true",
        tabindex: -1,
        role: "region",
        "aria-label": `gdlab ${doc.title}`,
        "data-doc": doc.id,
        "data-study": doc.study,
      },
      div(
        "gd-frame",
        div(
          "gd-bar",
          h("strong", { class: "gd-title", title: doc.title }, doc.title || "graph"),
          this.#bar,
          this.#menu,
          besideButton,
          this.#helpButton,
        ),
        tools.el,
        this.#faces,
        this.panes,
        div("gd-status", this.#newer, this.#summary, this.#chain, this.bookmarks.el),
        this.#help,
        this.#voice,
      ),
    );
  }

  /** Show the open tab and the first others that have room; the rest goes into the menu. */
  #fitTabs(): void {
    const tabs = [...this.#tabs];
    tabs.forEach(([, tab]) => (tab.hidden = false));
    this.#menu.hidden = true;
    if (this.#bar.scrollWidth <= this.#bar.clientWidth + 1) return;
    this.#menu.hidden = false;
    const open = this.root.dataset.tab as Tab;
    let room = this.#bar.clientWidth - SHADE - this.#tabs.get(open)!.offsetWidth;
    const fits = tabs.map(([key, tab]) => key === open || (room -= tab.offsetWidth + GAP) >= 0);
    tabs.forEach(([, tab], i) => (tab.hidden = !fits[i]));
    const rest = tabs.flatMap(([key], i) => (fits[i] ? [] : [h("option", { value: key }, ARRANGEMENT[key].name)]));
    this.#menu.replaceChildren(h("option", { value: "" }, "more"), ...rest);
    this.#menu.value = "";
  }

  #makeTabs(doc: GraphDoc): HTMLElement[] {
    const count = counts(doc);
    return tabsOf(doc).map(key => {
      const on = {
        click: () => this.#act(opening(key)),
        keydown: (event: KeyboardEvent) => this.#walk(event, key),
      };
      const number = count[key] && span("gd-count", count[key]);
      const made = h("button", { role: "tab", class: "gd-tab", "data-tab": key, on }, ARRANGEMENT[key].name, number);
      this.#tabs.set(key, made);
      return made;
    });
  }

  show(doc: GraphDoc, ui: Ui, chain: ChainPart[]): void {
    const moved = this.root.dataset.tab !== ui.tab;
    this.root.dataset.tab = ui.tab;
    this.root.toggleAttribute("data-source", ui.source);
    for (const [key, element] of this.#tabs) {
      element.setAttribute("aria-selected", String(key === ui.tab));
      if (moved) element.tabIndex = key === ui.tab ? 0 : -1; // it lays the page out
    }
    if (moved) requestAnimationFrame(() => this.#fitTabs());
    this.#source.setAttribute("aria-pressed", String(ui.source));
    this.#source.hidden = ui.tab !== "opt";
    this.#help.hidden = !ui.help;
    this.tools.el.hidden = !ARRANGEMENT[ui.tab].tools;
    this.#helpButton.setAttribute("aria-expanded", String(ui.help));
    this.#showFaces(ui);
    this.#showChain(ui, chain);
  }

  /** Announce something to screen readers, at most once a second; the newest wins. */
  say(text: string): void {
    clearTimeout(this.#saying);
    const wait = Math.max(0, this.#spoken + 1000 - Date.now());
    this.#saying = setTimeout(() => {
      this.#spoken = Date.now();
      this.#voice.textContent = text;
    }, wait);
  }

  destroy(): void {
    clearTimeout(this.#saying);
    this.#observer.disconnect();
    this.tools.destroy();
    this.bookmarks.destroy();
    this.root.remove();
  }

  #showFaces(ui: Ui): void {
    const { faces } = ARRANGEMENT[ui.tab],
      current = faceOf(ui);
    this.#faces.hidden = faces.length < 2;
    replace(
      this.#faces,
      ...faces.map((face): Child =>
        h(
          "button",
          {
            "aria-pressed": String(face === current),
            "data-face": face,
            on: { click: () => this.#act({ do: "face", face }) },
          },
          nameOf(face),
        ),
      ),
    );
  }

  /** Show the state of the session as a dot at its tab, visible from every other tab. */
  live(state: State, replaced = ""): void {
    this.#newer.dataset.newer = replaced;
    this.#newer.hidden = !replaced;
    const tab = this.#tabs.get("session")!;
    tab.dataset.state = state;
    tab.title = state === "none" ? "" : `the session is ${state}`;
  }

  /** Show the views of the study that has the name now, if the page has one. */
  #showNewer(event: MouseEvent): void {
    event.stopPropagation(); // this view would take the focus back
    const view = all<HTMLElement>(document, ".gdlab").find(each => each.dataset.study === this.#newer.dataset.newer);
    view?.scrollIntoView({ block: "nearest" });
    view?.focus({ preventScroll: true });
    if (!view) this.#newer.textContent = "replaced by a newer run: run this cell again";
  }

  #showChain(ui: Ui, chain: ChainPart[]): void {
    const parts = ui.selected.length > 0 ? chain : [];
    const link = (part: ChainPart) =>
      h(
        "button",
        {
          class: "gd-link",
          title: part.title,
          on: {
            click: (event: MouseEvent) => {
              event.stopPropagation();
              this.#act(selecting(part.entities));
            },
          },
        },
        part.text,
      );
    replace(
      this.#chain,
      ...parts.flatMap((part, i): Child[] => [
        i > 0 && h("span", { class: "gd-sep", "aria-hidden": "true" }, " → "),
        link(part),
      ]),
    );
  }

  #walk(event: KeyboardEvent, from: Tab): void {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.altKey) return;
    handled(event);
    const tabs = [...this.#tabs.keys()],
      to = tabs[(tabs.indexOf(from) + by + tabs.length) % tabs.length]!;
    this.#act(opening(to));
    this.#tabs.get(to)!.focus();
  }
}
