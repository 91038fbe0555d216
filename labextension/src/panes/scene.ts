// The drawing of one document: its panes, their open parts, the selection, and the lit entities.

import type { GraphDoc } from "../doc/doc.ts";
import { chain, local, portable, provenance, usesOf, type Provenance, type Uses } from "../doc/select.ts";
import { laterPart, recordOf } from "./table.ts";
import { CameraGroup } from "../draw/camera.ts";
import { Tools } from "./tools.ts";
import { handled, listen } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { CommandName } from "../live/messages.ts";
import { selectionNamed, type Selection } from "../live/page.ts";
import { Cell } from "../live/written.ts";
import { Chrome } from "./chrome.ts";
import { heightHandle } from "./height.ts";
import { allHits, isHere, type Found } from "./hits.ts";
import { Keys } from "./keys.ts";
import { Marks, type Marked } from "./marks.ts";
import { Dividers } from "./dividers.ts";
import { noSession, refusal, type Live } from "../live/live.ts";
import type { Context } from "./pane.ts";
import { standIn, type StandIn } from "./standin.ts";
import { opening, ARRANGEMENT, faceOf, initialUi, PANES, reduce, selecting, tabsOf } from "./state.ts";
import type { Action, PaneKey, Tab, Ui } from "./state.ts";

const NOTHING: ReadonlySet<string> = new Set();
/** The fields that panes are drawn from, besides the selection. */
const SHOWN = ["tab", "faces", "source", "query", "reach", "overlay", "beside", "help"] as const;

function openedTab(doc: GraphDoc): Tab {
  const asked = (doc.view?.show ?? []).map(name => (name === "graph" ? "opt" : name === "egraph" ? "rewrites" : name));
  return tabsOf(doc).find(tab => tab === asked[0]) ?? "opt";
}

/** The drawing of one document; a new document gets a new one. */
export class Scene implements Context {
  readonly #current: () => Host | null;
  readonly cameras = { graph: new CameraGroup(), lanes: new CameraGroup(), union: new CameraGroup() };
  readonly chrome: Chrome;
  readonly #provenance: Provenance;
  readonly origins: Provenance["origins"];
  readonly #marks = new Map<PaneKey, Marks>();
  readonly #standIns = new Map<PaneKey, StandIn>();
  readonly #keys: Keys;
  readonly #dividers: Dividers;
  readonly #selection: Selection;
  readonly #cell: Cell;
  readonly #mirror = (value: readonly string[]) => this.#mirrored(value);
  #state: Ui;
  #litNow: ReadonlySet<string> = NOTHING;
  #uses: Uses = { writes: NOTHING, reads: NOTHING };
  #frame = 0;
  #searched = "";
  #query = "";
  #told = "";
  #hits: readonly string[] = [];
  #found: ReadonlySet<string> = NOTHING;
  #everywhere: Found = { hits: [], error: null };
  /** Whether the first hit is to be brought into sight: after each search. */
  #seek = false;

  constructor(
    readonly doc: GraphDoc,
    current: () => Host | null,
    before: Ui | null,
  ) {
    this.#current = current;
    this.#provenance = provenance(doc);
    this.origins = this.#provenance.origins;
    this.#cell = new Cell(doc, action => this.act(action));
    this.#selection = selectionOf(doc);
    const shared = this.#selection.value.flatMap(each => local(doc, each) ?? []);
    const first = shared.length > 0 ? shared : doc.view?.select ? [doc.view.select] : [];
    const opened = {
      faces: doc.view?.show?.includes("egraph") ? { rewrites: "egraph" as const } : {},
      overlay: doc.view?.overlay ?? "",
      reach: doc.view?.around ?? "all",
    };
    this.#state = before
      ? { ...before, selected: shared, hover: null }
      : { ...initialUi(openedTab(doc), first), ...opened };
    const act = (action: Action) => this.act(action);
    const tools = new Tools(
      doc,
      act,
      () => this.#state,
      this.#state,
      text => this.chrome.say(text),
      () => this.host(),
    );
    this.chrome = new Chrome(doc, act, tools, () => this.#state);
    this.#keys = new Keys({
      doc,
      ui: () => this.#state,
      lit: () => this.#litNow,
      act: action => this.act(action),
      // To the notebook's cell where there is one, so that its keys act again.
      blur: () => {
        (document.activeElement as HTMLElement | null)?.blur();
        this.chrome.root.closest<HTMLElement>(".jp-Cell")?.focus();
      },
      cameras: () => this.cameras[this.#state.tab === "grad" ? "lanes" : this.#state.tab === "opt" ? "graph" : "union"],
      search: () => {
        if (tools.el.hidden) this.act(opening("opt"));
        tools.field.focus();
        tools.field.select();
      },
      press: name => this.#press(name),
      front: () => this.#marks.get(faceOf(this.#state))?.pane,
      tools,
      bookmarks: () => this.chrome.bookmarks.open(),
      chosen: () => this.#chosen(),
      marksAt: element => this.#marks.get(element.closest<HTMLElement>("[data-pane]")?.dataset.pane as PaneKey) ?? null,
    });
    this.#dividers = new Dividers(doc, this.chrome.panes);
    this.#selection.listeners.add(this.#mirror);
    this.#listen(this.chrome.root);
    this.#litNow = this.#provenance.lit(this.#state.selected);
    if (doc.view?.height) this.chrome.root.style.setProperty("--gd-height", `${doc.view.height}px`);
    this.chrome.panes.after(heightHandle(doc, this.chrome.root, this.chrome.panes));
  }

  ui(): Ui {
    return this.#state;
  }
  live(): Live {
    return this.host()?.live ?? noSession;
  }
  host(): Host | null {
    return this.#current();
  }
  lit(): ReadonlySet<string> {
    return this.#litNow;
  }
  /** The dispatches that write and read the selected buffers. */
  uses(): Uses {
    return this.#uses;
  }
  readonly reached = (entity: string): ReadonlySet<string> => this.#provenance.closure(entity);
  get snapshot(): Ui {
    return this.#state;
  }

  say(text: string): void {
    this.chrome.say(text);
  }

  send(name: CommandName, args: Record<string, unknown> = {}): void {
    void this.host()
      ?.command(name, args)
      .then(answer => {
        if (!answer.ok) this.chrome.say(`${name}: ${answer.error?.message ?? "refused"}`);
      });
  }

  act(action: Action): void {
    const before = this.#state;
    this.#state = reduce(before, action);
    if (this.#state === before) return;
    if (this.#state.hover !== before.hover) this.#showHover();
    const moved = this.#state.selected !== before.selected;
    if (moved) this.#publish();
    if (moved || SHOWN.some(key => this.#state[key] !== before[key])) this.show(moved);
  }

  redrawn(key: PaneKey): void {
    const marks = this.#marks.get(key);
    if (!marks) return;
    marks.index();
    marks.mark(this.#marked());
  }

  #marked(): Marked {
    return { lit: this.#litNow, selected: new Set(this.#state.selected), hit: this.#found, ...this.#uses };
  }

  /** Find the hits of the search, and those that this tab shows. */
  #search(): void {
    const { query, tab } = this.#state,
      key = `${query}\n${tab}`;
    if (key === this.#searched) return;
    this.#searched = key;
    if (query !== this.#query) this.#everywhere = allHits(this.doc, query);
    this.#query = query;
    const here = this.#everywhere.hits.filter(each => isHere(this.doc, tab, each));
    this.#hits = here.map(({ entity }) => entity);
    this.#found = new Set(this.#hits);
    this.#seek = this.#hits.length > 0;
  }

  /** Show the panes of the open tab, hide the others, and mark the lit entities. */
  show(moved: boolean): void {
    const focused = document.activeElement;
    this.#litNow = this.#provenance.lit(this.#state.selected);
    this.#uses = usesOf(this.doc, this.#state.selected);
    this.#cell.tell(this.#litNow);
    this.#search();
    this.chrome.show(this.doc, this.#state, chain(this.doc, this.#litNow, this.#uses));
    this.chrome.tools.show(this.#state, this.#hits, this.#everywhere);
    this.chrome.root.toggleAttribute("data-searching", this.#found.size > 0);
    const { faces, below } = ARRANGEMENT[this.#state.tab],
      wanted = [...faces, ...below],
      current = faceOf(this.#state);
    const fresh = wanted.filter(key => !this.#marks.has(key));
    this.chrome.root.dataset.front = current;
    for (const key of fresh) this.#make(key);
    for (const [key, { pane }] of this.#marks) {
      pane.el.hidden = !wanted.includes(key);
      pane.el.dataset.place = faces.includes(key) ? "face" : "below";
      pane.el.toggleAttribute("data-current", key === current);
    }
    if (fresh.length > 0) Object.values(this.cameras).forEach(group => group.refit());
    const marked = this.#marked(),
      open = wanted.map(key => this.#marks.get(key)!);
    // First everything that writes, then everything that measures: the page is laid out once.
    for (const marks of open) if (marks.pane.choose?.(this.#litNow)) marks.index();
    for (const marks of open) marks.mark(marked);
    this.showLive();
    for (const marks of open) marks.reveal();
    if (this.#seek && !moved) for (const { pane } of open) pane.seek?.(this.#hits);
    this.#seek = false;
    if (!moved || fresh.length > 0) this.#dividers.place(this.#state.tab);
    if (focused) this.#keepFocus(focused, current);
    if (moved)
      this.chrome.say(
        this.#state.selected.length === 0
          ? "nothing selected"
          : chain(this.doc, this.#litNow, this.#uses)
              .map(part => part.text)
              .join(", ") || this.#state.selected.join(", "),
      );
  }

  /** Announce the end of a run, once; the first state of a session is no news. */
  #tell({ state, step, reason, points }: Live): void {
    const loss = points.at(-1)?.[1],
      key = `${state} ${step}`;
    if (state === "running" || key === this.#told) return;
    if (this.#told)
      this.chrome.say(
        [
          `step ${step}`,
          ...(loss === undefined ? [] : [`loss ${Number(loss.toPrecision(4))}`]),
          `${state} ${reason}`.trim(),
        ].join(", "),
      );
    this.#told = key;
  }

  showLive(): void {
    this.#tell(this.live());
    this.chrome.live(this.host() ? this.live().state : "none", this.host()?.replaced);
    for (const { pane } of this.#marks.values()) if (!pane.el.hidden) pane.live?.(this.live(), this.host());
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    this.#standIns.clear();
    this.#selection.listeners.delete(this.#mirror);
    this.#cell.leave();
    this.#dividers.destroy();
    for (const { pane } of this.#marks.values()) pane.destroy?.();
    this.chrome.destroy();
  }

  /** Give the focus to a lit element, else to the view, if its holder was drawn anew or hidden with its tab. */
  #keepFocus(focused: Element, current: PaneKey): void {
    const inPane = focused.isConnected ? focused.closest<HTMLElement>(".gd-pane") : null;
    if (focused.isConnected && !inPane?.hidden) return;
    if (focused.isConnected && !this.chrome.root.contains(focused)) return;
    const pane = this.#marks.get(current)?.pane.el;
    const face = focused.hasAttribute("data-face") && `[data-face="${current}"]`;
    const next =
      (face && this.chrome.root.querySelector<HTMLElement>(face)) ||
      pane?.querySelector<HTMLElement>(".gd-line[data-lit]") ||
      pane?.querySelector<HTMLElement>("[data-lit]") ||
      this.chrome.root;
    next.focus({ preventScroll: true });
  }

  #make(key: PaneKey): void {
    const order = Object.keys(PANES),
      pane = recordOf(key)?.make(this) ?? this.#standIn(key);
    this.#marks.set(key, new Marks(pane));
    const next = [...this.chrome.panes.children].find(
      each => order.indexOf((each as HTMLElement).dataset.pane!) > order.indexOf(key),
    );
    this.chrome.panes.insertBefore(pane.el, next ?? null);
  }

  /** Show the text of a pane until its part of the front end is here. */
  #standIn(key: PaneKey): StandIn {
    const made = standIn(this, key, () => this.#fetch());
    if (this.#standIns.size === 0) queueMicrotask(() => this.#fetch());
    this.#standIns.set(key, made);
    return made;
  }

  /** Load the second part and draw the panes that wait for it. */
  #fetch(): void {
    laterPart().then(
      () => {
        if (this.#standIns.size === 0) return; // destroyed
        for (const [key, { el }] of this.#standIns) {
          this.#marks.delete(key);
          el.remove();
        }
        this.#standIns.clear();
        this.show(false);
      },
      (error: unknown) => {
        const reason = error instanceof Error ? error.message : String(error);
        for (const each of this.#standIns.values()) each.failed(reason);
      },
    );
  }

  #showHover(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      const preview = this.#state.hover ? this.#provenance.closure(this.#state.hover) : NOTHING;
      for (const marks of this.#marks.values())
        if (!marks.pane.el.hidden) {
          marks.hover(preview);
          marks.pane.hover?.(this.#state.hover);
        }
    });
  }

  #publish(): void {
    const { selected } = this.#state;
    this.#selection.value = selected.map(each => portable(this.doc, each));
    for (const listener of this.#selection.listeners) if (listener !== this.#mirror) listener(this.#selection.value);
  }

  #mirrored(value: readonly string[]): void {
    const before = this.#state;
    this.#state = reduce(before, selecting(value.flatMap(each => local(this.doc, each) ?? [])));
    if (this.#state !== before) this.show(true);
  }

  #chosen(): Element | null {
    const drawn = [...this.#marks.values()]
      .filter(({ pane }) => !pane.el.hidden)
      .flatMap(marks => this.#state.selected.flatMap(each => marks.of(each)));
    return (
      drawn.find(
        each => each.hasAttribute("tabindex") && !each.hasAttribute("data-echo") && !each.closest("[hidden]"),
      ) ?? null
    );
  }

  #press(name: "step" | "pause" | "look"): void {
    if (name === "look") {
      this.act(opening("session"));
      return this.chrome.panes.querySelector<HTMLElement>('[data-command="look"]')?.click();
    }
    const live = this.live(),
      command: CommandName = name === "pause" && live.state === "paused" ? "resume" : name;
    const why = refusal(live.state, Boolean(this.host()), command);
    if (why) this.chrome.say(why);
    else this.send(command);
  }

  #listen(root: HTMLElement): void {
    const entityAt = (event: Event) =>
      (event.target as Element).closest?.("[data-entity]")?.getAttribute("data-entity") ?? null;
    // Shift adds to the selection: it marks no text on the way, which would not count as a click.
    // Nor does a double click, which would mark words of the next pane.
    const inPicture = (event: Event) => (event.target as Element).closest?.(".gd-camera, [data-entity]") ?? null;
    listen(root, "mousedown", event => {
      if ((event.shiftKey && entityAt(event)) || (event.detail > 1 && inPicture(event))) event.preventDefault();
    });
    listen(root, "click", event => {
      const entity = entityAt(event);
      // A notebook takes the focus when its output is pressed: without it no key would come here.
      const target = (event.target as Element).closest<HTMLElement>("[tabindex]") ?? root;
      if (!root.contains(document.activeElement)) target.focus({ preventScroll: true });
      if (entity === null || !(getSelection()?.isCollapsed ?? true)) return;
      this.act(selecting([entity], event.shiftKey));
    });
    listen(root, "pointerover", event => {
      if (event.pointerType !== "touch" && event.buttons === 0) this.act({ do: "hover", entity: entityAt(event) });
    });
    listen(root, "pointerleave", () => this.act({ do: "hover", entity: null }));
    listen(root, "keydown", event => {
      if (!this.#keys.handle(event)) return;
      handled(event);
    });
    listen(root, "focusin", event => {
      // JupyterLab sees keys before anybody and its selectors match the focused element: the mark must be on that one.
      (event.target as Element).setAttribute("data-lm-suppress-shortcuts", "true");
      const element = (event.target as Element).closest("[data-entity]");
      const key = element?.closest<HTMLElement>("[data-pane]")?.dataset.pane as PaneKey | undefined;
      if (element && key) this.#marks.get(key)?.tabStop(element);
    });
  }
}

/** One selection per study in a page; a document alone has its own. */
const selectionOf = (doc: GraphDoc): Selection =>
  selectionNamed(doc.study ?? doc.id, doc.view?.select ? [portable(doc, doc.view.select)] : []);
