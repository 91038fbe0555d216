// The tools above the panes: search with its hits, the reach of pictures, their colours, paths and copying.

import type { GraphDoc } from "../doc/doc.ts";
import { parseEntity } from "../doc/select.ts";
import { all, h, handled, listen, span, write } from "../draw/dom.ts";
import { overlaysOf } from "../draw/overlays.ts";
import { REACHES, toldWays, ways } from "../layout/explore.ts";
import type { Host } from "../live/host.ts";
import { HitList, type Found } from "./hits.ts";
import { keep, keptOf } from "../live/kept.ts";
import { copyAs, FORMATS } from "./copy.ts";
import { mini, select } from "./pane.ts";
import { selecting, type Action, type Ui } from "./state.ts";

/** The additions to pictures, by their keys in the list. */
const BESIDE = { paths: "paths between two", map: "overview (m)", labels: "bytes on edges (e)" };

export class Tools {
  readonly #doc: GraphDoc;
  readonly #act: (action: Action) => void;
  readonly #ui: () => Ui;
  readonly #say: (text: string) => void;
  readonly el: HTMLElement;
  readonly field: HTMLInputElement;
  readonly #count = h("span", { class: "gd-muted gd-hits" });
  readonly #list: HitList;
  readonly #kept;
  readonly #share = () => this.#set("beside", JSON.stringify([this.#kept.value.map, this.#kept.value.labels]));
  #news: { text: string; selected: readonly string[] } | null = null;
  #found: readonly string[] = [];
  #told = "";
  #wrong: string | null = null;
  #typing: ReturnType<typeof setTimeout> | undefined;

  constructor(
    doc: GraphDoc,
    act: (action: Action) => void,
    ui: () => Ui,
    before: Ui,
    say: (text: string) => void,
    host: () => Host | null,
  ) {
    this.#doc = doc;
    this.#act = act;
    this.#ui = ui;
    this.#say = say;
    this.#kept = keptOf(doc);
    this.#kept.listeners.add(this.#share);
    this.field = this.#searchField();
    this.#list = new HitList(act);
    const overlays = Object.entries(overlaysOf(doc)).map(([id, { label }]): [string, string] => [id, label]);
    this.el = h(
      "div",
      { class: "gd-tools", role: "toolbar", "aria-label": "search and show" },
      this.field,
      this.#count,
      mini("previous hit", "search-previous", "\u2039", () => this.#go(-1)),
      mini("next hit", "search-next", "\u203a", () => this.#go(1)),
      this.#list.opener,
      this.#list.elsewhere,
      this.#list.list,
      span("gd-space"),
      this.#tool("reach", "show around the selection", Object.entries({ ...REACHES, ...BESIDE }), before),
      this.#tool("overlay", "colour by", [["", "colour: family"], ...overlays], before),
      this.#copyList(host),
    );
  }

  #set(tool: "query" | "reach" | "overlay" | "beside", value: string): void {
    this.#act({ do: "tool", tool, value });
  }

  #searchField(): HTMLInputElement {
    const field = h("input", {
      type: "search",
      class: "gd-search",
      placeholder: "search: relu, op:matmul, shape:[32,*] …",
      "aria-label": "search nodes by name, op:, shape:, dtype:, attr:, flag:, lane:, kernel: or /pattern/",
      title:
        "name or op, op:matmul, shape:[32,*], dtype:f16, attr:eps<1e-5, flag:output, lane:adjoint, kernel:3, /regex/",
      "data-command": "search",
    });
    listen(field, "input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#set("query", field.value), 80);
    });
    listen(field, "keydown", event => {
      if (event.key === "Escape") {
        field.value = "";
        this.#set("query", "");
        field.closest<HTMLElement>(".gdlab")?.focus();
      } else if (event.key === "Enter") {
        if (field.value !== this.#ui().query) this.#set("query", field.value);
        this.#go(event.shiftKey ? -1 : 1);
      } else return;
      handled(event);
    });
    return field;
  }

  #tool(name: "reach" | "overlay", label: string, options: [string, string][], before: Ui): HTMLSelectElement {
    const list = select(label, options, before[name], value => {
      if (value in BESIDE) list.value = this.#ui()[name];
      if (!this.press(value)) this.#set(name, value);
    });
    list.dataset.tool = name;
    return list;
  }

  #copyList(host: () => Host | null): HTMLSelectElement {
    const formats = FORMATS.map((name): [string, string] => [name, name]);
    const list = select("copy the selection, or all, as", [["", "copy as …"], ...formats], "", name => {
      list.value = "";
      const root = this.el.closest<HTMLElement>(".gdlab")!;
      copyAs({ doc: this.#doc, selected: this.#ui().selected, root, host: host() }, name).then(
        text => this.tell(text),
        (error: Error) => this.tell(`copy: ${error.message}`),
      );
    });
    list.dataset.command = "copy";
    return list;
  }

  /** Show the result of an action until the selection moves. */
  tell(text: string): void {
    this.#news = { text, selected: this.#ui().selected };
    this.#write();
    this.#say(text);
  }

  /** Find paths, or turn an addition on or off; false for any other tool. */
  press(tool: string): boolean {
    if (tool === "paths") this.tell(this.#paths());
    else if (tool === "map" || tool === "labels") this.#turn(tool);
    else return false;
    return true;
  }

  /** Select all nodes on the paths between the two selected ones; they light up with the edges between them. */
  #paths(): string {
    const [one, other, more] = this.#ui().selected.map(parseEntity),
      [[stage, a] = [], [same, b] = []] = [one, other].map(each =>
        each?.kind === "node" ? (each.at as [number, number]) : [],
      );
    if (stage === undefined || stage !== same || more !== undefined)
      return "paths: wanted two selected nodes of one graph (Shift + click)";
    const found = ways(
        this.#doc.stages[stage]!.nodes.map(({ inputs }) => inputs),
        a!,
        b!,
      ),
      nodes = new Set(found.paths.flat());
    if (nodes.size > 0) this.#act(selecting([...nodes].map(each => `node:${stage}.${each}`)));
    return toldWays(found);
  }

  #turn(tool: "map" | "labels"): void {
    const shown = () =>
        all(this.el.parentElement!, tool === "map" ? ".gd-map" : ".gd-edgelabel").filter(
          each => each.getClientRects().length > 0,
        ).length,
      on = tool === "map" ? shown() === 0 : !this.#kept.value.labels;
    keep(this.#kept, { [tool]: on });
    this.tell(
      `${tool === "map" ? "overview" : "bytes on edges"}: ${on ? shown() || "no room here, or no need" : "off"}`,
    );
  }

  /** Show the hits; the count has the number of the selected one. */
  show(ui: Ui, found: readonly string[], everywhere: Found): void {
    const { error } = everywhere,
      elsewhere = this.#list.show(this.#doc, ui.tab, everywhere);
    this.#found = found;
    for (const each of all<HTMLElement>(this.el, "[data-tool]")) each.hidden = ui.tab !== "opt" && ui.tab !== "grad";
    this.#wrong = error;
    this.#write();
    const told = found.length === 0 && elsewhere ? `0 here, ${elsewhere}` : `${found.length} found`;
    if (ui.query !== this.#told && ui.query) this.#say(error ?? told);
    this.#told = ui.query;
    this.#count.toggleAttribute("data-error", error !== null);
    for (const each of all<HTMLElement>(this.el, "[data-command^=search-]")) each.hidden = found.length === 0;
    if (document.activeElement !== this.field && this.field.value !== ui.query) this.field.value = ui.query;
  }

  #write(): void {
    const { query, selected } = this.#ui(),
      at = this.#found.findIndex(each => selected.includes(each)),
      news = this.#news?.selected === selected ? this.#news.text : "";
    write(
      this.#count,
      news || (this.#wrong ?? (query ? this.#counted(at) : "")),
    );
    this.#count.title = this.#count.textContent;
  }

  #counted(at: number): string {
    const { length } = this.#found;
    if (length === 0 && this.#list.elsewhere.firstChild) return "0 here,";
    return `${at < 0 ? "" : `${at + 1} / `}${length} found`;
  }

  #go(by: number): void {
    const found = this.#found,
      at = found.findIndex(each => this.#ui().selected.includes(each));
    const next = found[(at < 0 ? (by > 0 ? 0 : -1) : at + by + found.length) % found.length] ?? found.at(-1);
    if (next) this.#act(selecting([next]));
  }

  destroy(): void {
    clearTimeout(this.#typing);
    this.#kept.listeners.delete(this.#share);
  }
}
