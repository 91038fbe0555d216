// The tools above the panes: search with its hits, how far the pictures reach, what colours them, and copying.

import { copyAs, FORMATS } from "./copy.ts";
import type { GraphDoc } from "./doc.ts";
import { h, span, write } from "./dom.ts";
import { REACHES } from "./explore.ts";
import { overlaysOf } from "./overlays.ts";
import { button, select } from "./pane.ts";
import type { Action, Ui } from "./state.ts";

export class Tools {
  readonly el: HTMLElement;
  readonly field: HTMLInputElement;
  readonly #count = h("span", { class: "gd-muted gd-hits" });
  private found: readonly string[] = [];
  #told = "";
  #typing: ReturnType<typeof setTimeout> | undefined;

  constructor(
    doc: GraphDoc,
    private readonly act: (action: Action) => void,
    private readonly ui: () => Ui,
    before: Ui,
    private readonly say: (text: string) => void,
  ) {
    this.field = h("input", {
      type: "search",
      class: "gd-search",
      placeholder: "search: relu, op:matmul, shape:[32,*] …",
      "aria-label": "search nodes by name, op:, shape:, dtype:, attr:, flag:, lane:, kernel: or /pattern/",
      title: "name or op, op:matmul, shape:[32,*], dtype:f16, attr:eps<1e-5, flag:output, lane:adjoint, kernel:3, /regex/",
      "data-command": "search",
    });
    const set = (value: string) => this.act({ do: "tool", tool: "query", value });
    this.field.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => set(this.field.value), 80);
    });
    this.field.addEventListener("keydown", event => {
      if (event.key === "Escape") {
        this.field.value = "";
        set("");
        this.field.closest<HTMLElement>(".gdlab")?.focus();
      } else if (event.key === "Enter") {
        if (this.field.value !== this.ui().query) set(this.field.value);
        this.#go(event.shiftKey ? -1 : 1);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const tool = (name: "reach" | "overlay", label: string, options: [string, string][]) => {
      const made = select(label, options, before[name], value => this.act({ do: "tool", tool: name, value }));
      made.dataset.tool = name;
      return made;
    };
    const copy = select("copy the selection, or all, as", [["", "copy as …"], ...FORMATS.map((name): [string, string] => [name, name])], "", name => {
      copy.value = "";
      copyAs(doc, name, this.ui().selected, this.el.closest<HTMLElement>(".gdlab")!).then(this.say, (error: Error) => this.say(`copy: ${error.message}`));
    });
    copy.dataset.command = "copy";
    this.el = h(
      "div",
      { class: "gd-tools", role: "toolbar", "aria-label": "search and show" },
      this.field,
      this.#count,
      button("previous hit", { class: "gd-mini", "data-command": "search-previous", on: { click: () => this.#go(-1) } }, "\u2039"),
      button("next hit", { class: "gd-mini", "data-command": "search-next", on: { click: () => this.#go(1) } }, "\u203a"),
      span("gd-space"),
      tool("reach", "show around the selection", Object.entries(REACHES)),
      tool("overlay", "colour by", [["", "colour: family"], ...Object.entries(overlaysOf(doc)).map(([id, { label }]): [string, string] => [id, label])]),
      copy,
    );
  }

  /** The count says which hit is selected. */
  show(ui: Ui, found: readonly string[], error: string | null): void {
    this.found = found;
    for (const each of this.el.querySelectorAll<HTMLElement>("[data-tool]")) each.hidden = ui.tab !== "opt" && ui.tab !== "grad";
    const at = found.findIndex(each => ui.selected.includes(each));
    write(this.#count, error ?? (ui.query ? `${at < 0 ? "" : `${at + 1} / `}${found.length} found` : ""));
    if (ui.query !== this.#told && ui.query) this.say(error ?? `${found.length} found`);
    this.#told = ui.query;
    this.#count.toggleAttribute("data-error", error !== null);
    for (const each of this.el.querySelectorAll<HTMLElement>("[data-command^=search-]")) each.hidden = found.length === 0;
    if (document.activeElement !== this.field && this.field.value !== ui.query) this.field.value = ui.query;
  }

  #go(by: number): void {
    const { found } = this,
      at = found.findIndex(each => this.ui().selected.includes(each));
    const next = found[(at < 0 ? (by > 0 ? 0 : -1) : at + by + found.length) % found.length] ?? found.at(-1);
    if (next) this.act({ do: "select", entities: [next] });
  }

  destroy(): void {
    clearTimeout(this.#typing);
  }
}
