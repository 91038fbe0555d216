// The engines of a run as a table: where the time of each went, who is late, bytes, loss.

import type { EngineRow, EnginesSection } from "../doc/doc.ts";
import { seconds } from "../doc/format.ts";
import { div, h, replace, setFlag, span, td } from "../draw/dom.ts";
import type { Live } from "../live/live.ts";

const COLUMNS = ["engine", "host", "device", "steps", "in steps", "in reduction", "waiting", "reduced", "loss", "time"];
const FIRST_NUMBER = 3;
const PARTS = [
  ["step", "in steps"],
  ["reduce", "in reduction"],
  ["wait", "waiting"],
] as const;

/** The time of an engine as a bar, in the parts that it went to; `most` is that of the engine with the most. */
function bar(row: EngineRow, most: number): HTMLElement {
  const each = PARTS.map(([key, name]) => ({ key, name, value: row[`${key}_seconds`] }));
  const title = each.map(({ name, value }) => `${name} ${seconds(value)}`).join(", ");
  const drawn = each.map(({ key, value }) => {
    const part = h("span", { "data-part": key });
    part.style.width = `${most > 0 ? (100 * value) / most : 0}%`;
    return part;
  });
  return h("td", { title }, div("gd-enginebar", ...drawn));
}

const total = (row: EngineRow): number => row.step_seconds + row.reduce_seconds + row.wait_seconds;

function rowOf(row: EngineRow, most: number): HTMLElement {
  const { engine, host, device, cells, late } = row;
  const made = h(
    "tr",
    { "data-engine": engine },
    h("th", { scope: "row", class: "gd-num" }, engine, late && span("gd-late", " late")),
    td("gd-ellipsis", host),
    td("gd-ellipsis", device),
    cells.map(each => td("gd-num", each)),
    bar(row, most),
  );
  setFlag(made, "data-late", late);
  return made;
}

export class Engines {
  readonly #fact = span("gd-muted");
  readonly #rows = h("tbody");
  readonly #lost = div("gd-muted");
  readonly el: HTMLElement;
  #shown: EnginesSection | null = null;

  constructor() {
    const head = COLUMNS.map((name, i) =>
      h("th", { class: i === 0 || (i >= FIRST_NUMBER && name !== "time") ? "gd-num" : null, scope: "col" }, name),
    );
    const legend = PARTS.map(([key, name]) => h("span", { class: "gd-enginekey", "data-part": key }, name));
    this.el = h(
      "section",
      { class: "gd-engines", hidden: true, "aria-label": "engines" },
      h("h4", null, "Engines ", this.#fact, div("gd-enginekeys", ...legend)),
      h("table", { class: "gd-table" }, h("thead", null, h("tr", null, head)), this.#rows),
      this.#lost,
    );
  }

  /** Show the engines of the newest run; whether they are drawn anew. */
  show({ engines }: Live): boolean {
    if (engines === this.#shown) return false;
    this.#shown = engines;
    this.el.hidden = engines === null;
    if (!engines) return true;
    const { rows, fact, late, lost } = engines;
    const most = Math.max(...rows.map(total));
    replace(this.#fact, [fact, late].filter(Boolean).join("; "));
    replace(
      this.#rows,
      rows.map(row => rowOf(row, most)),
    );
    replace(
      this.#lost,
      lost.map(text => div("", text)),
    );
    return true;
  }
}
