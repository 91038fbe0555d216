// Look inside a run: steps by dispatches, watched tensors with their history, breakpoints, the microscope.

import { number as plain } from "../doc/doc.ts";
import { sig, whole } from "../doc/format.ts";
import { indexesOf } from "../doc/select.ts";
import { all, div, h, listen, replace, s, setFlag, span, svgPath, write } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import { refusal, type Live } from "../live/live.ts";
import type { CommandName } from "../live/messages.ts";
import { Glass } from "./microscope.ts";
import { button, type Context } from "./pane.ts";
import { selecting } from "./state.ts";

const WIDTH = 72,
  HEIGHT = 18;

/** The course as a line; it breaks where a value is not finite. */
export function course(values: readonly unknown[], number = plain): SVGElement | null {
  const finite = values.map(number).filter(Number.isFinite);
  if (finite.length < 2) return null;
  const low = Math.min(...finite),
    height = Math.max(...finite) - low || 1;
  let pen = "M";
  const at = (value: unknown, i: number): string => {
    const y = number(value);
    if (!Number.isFinite(y)) return ((pen = "M"), "");
    const across = (i / (values.length - 1)) * (WIDTH - 2) + 1;
    const down = HEIGHT - 2 - ((y - low) / height) * (HEIGHT - 4);
    const point = `${pen}${across.toFixed(1)} ${down.toFixed(1)}`;
    pen = "L";
    return point;
  };
  return s("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, svgPath("gd-raw", values.map(at).join("")));
}

interface Row {
  el: HTMLElement;
  said: HTMLElement;
  line: HTMLElement;
}

export class Watches {
  readonly #context: Context;
  readonly #rows = new Map<string, Row>();
  readonly #list = h("ul", { class: "gd-watchlist", "aria-label": "watches and breakpoints" });
  readonly #place = span("gd-muted");
  readonly #glass: Glass;
  readonly #text = h("input", {
    class: "gd-search",
    placeholder: "h   or   node h if absmax(h) > 1e3",
    "aria-label": "a tensor to watch, or a breakpoint: event, if test",
    "data-command": "watchtext",
  });
  readonly #buttons: [CommandName, HTMLButtonElement][] = [];
  #dispatch: number | null = null;
  readonly el: HTMLElement;

  constructor(context: Context) {
    this.#context = context;
    this.#glass = new Glass(context);
    listen(this.#text, "keydown", event => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#add(/\s/.test(this.#text.value.trim()) || this.#text.value.trim() === "nonfinite" ? "break" : "watch");
    });
    this.el = div(
      "gd-watches",
      div(
        "gd-buttons",
        this.#button("step", "Step dispatch", "step-dispatch", () => context.send("step", { dispatches: 1 })),
        this.#button("step", "Back", "back", () => context.send("back", { dispatches: 1 })),
        this.#button("step", "Run to selected", "run-to", () => this.#runTo()),
        this.#button("value", "Look", "look", () => this.#lookAt()),
        this.#place,
      ),
      div(
        "gd-buttons",
        this.#text,
        button("Watch", { "data-command": "watch-add", on: { click: () => this.#add("watch") } }),
        button("Break", { "data-command": "break-add", on: { click: () => this.#add("break") } }),
      ),
      this.#list,
      this.#glass.el,
    );
  }

  #button(needs: CommandName, label: string, command: string, click: () => void): HTMLButtonElement {
    const made = button(label, { "data-command": command, on: { click } });
    this.#buttons.push([needs, made]);
    return made;
  }

  /** The first dispatch of the selection. */
  #selected(): number {
    return Math.min(...indexesOf("dispatch", this.#context.lit()));
  }

  #runTo(): void {
    const dispatch = this.#selected();
    if (Number.isFinite(dispatch)) this.#context.send("run", { to: String(dispatch) });
    else write(this.#place, "select a node, line, kernel or dispatch first");
  }

  #add(name: "watch" | "break"): void {
    const text = this.#text.value.trim();
    if (!text) return this.#text.focus();
    void this.#context
      .host()
      ?.command(name, name === "watch" ? { name: text } : { text })
      .then(({ ok }) => {
        if (ok && this.#text.value.trim() === text) this.#text.value = "";
      });
  }

  /** Look at the tensor of the selected entity, which the kernel finds. */
  #lookAt(): void {
    const [entity] = this.#context.ui().selected;
    if (entity) this.#glass.look(entity);
    else write(this.#place, "select a node, edge or buffer first");
  }

  #row(key: string, id: number, name: string, look: (() => void) | null): Row {
    const known = this.#rows.get(key);
    if (known) return known;
    const title = look
        ? button(name, { class: "gd-button gd-quiet", "aria-label": `look at ${name}`, on: { click: look } })
        : span("", name),
      clear =
        id >= 0 &&
        button("×", {
          class: "gd-button gd-quiet",
          "aria-label": `clear ${name}`,
          title: "clear",
          on: { click: () => this.#context.send("clear", { id }) },
        });
    const said = span("gd-now"),
      line = span(""),
      made = { el: h("li", { "data-watch": id }, title, said, line, clear), said, line };
    this.#rows.set(key, made);
    return made;
  }

  show(live: Live, host: Host | null): void {
    const connected = Boolean(host) && !host!.dead;
    for (const [needs, element] of this.#buttons) {
      const why = refusal(live.state, connected, needs);
      element.disabled = why !== null;
      element.title = why ?? element.ariaLabel!;
    }
    for (const add of all<HTMLButtonElement>(this.el, "[data-command$='-add']")) {
      add.disabled = !connected;
      add.title = connected ? add.ariaLabel! : "no live session";
    }
    write(this.#place, live.reason === live.place ? "" : live.place); // the state says it already
    const rows: HTMLElement[] = [],
      keep = new Set<string>();
    const put = (key: string, row: Row, said: string): void => {
      write(row.said, said);
      keep.add(key);
      rows.push(row.el);
    };
    for (const each of live.watches) {
      const key = `w${each.id}`,
        row = this.#row(key, each.id, each.name, () => this.#glass.look(each.name));
      put(key, row, each.step < 0 ? "no value yet" : `${each.value} · step ${whole(each.step)}`);
      setFlag(row.el, "data-broken", each.nonfinite > 0);
      if (row.line.dataset.at !== String(each.course)) replace(row.line, course(each.course));
      row.line.dataset.at = String(each.course);
    }
    for (const { id, text, hits } of live.breaks)
      put(`b${id}`, this.#row(`b${id}`, id, text, null), `${whole(hits)} hit${hits === 1 ? "" : "s"}`);
    // Without a session: what the document says of its last run.
    if (live.state === "none") {
      for (const [i, each] of (this.#context.doc.runs.at(-1)?.values ?? []).entries())
        put(
          `v${i}`,
          this.#row(`v${i}`, -1, each.name, () => this.#glass.record(each)),
          `${sig(plain(each.min))} … ${sig(plain(each.max))} · ${each.place}`,
        );
    }
    this.#glass.show(live);
    for (const key of this.#rows.keys()) if (!keep.has(key)) this.#rows.delete(key);
    if (rows.length !== this.#list.children.length || rows.some((el, i) => this.#list.children[i] !== el))
      this.#list.replaceChildren(...rows);
    // The current dispatch lights like anything selected: its node, line, bar, intervals and the play-head.
    if (this.#dispatch !== null && live.dispatch !== this.#dispatch && live.dispatch >= 0 && live.state !== "running")
      this.#context.act(selecting([`dispatch:${live.dispatch}`]));
    if (live.state !== "running") this.#dispatch = live.dispatch;
  }
}
