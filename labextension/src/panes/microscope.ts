// One tensor under the microscope: numbers, histogram, heat map, exact values, difference; live or of a document.

import { number } from "../doc/doc.ts";
import { bytes, plural, sig, spokenType, whole } from "../doc/format.ts";
import {
  all, boxOf, div, h, handled, replace, s, setFlag, span, svgPath,
  write, SMALL_BUTTON, type Child,
} from "../draw/dom.ts";
import { refusal, type Live } from "../live/live.ts";
import type { Looked, TensorValue } from "../live/messages.ts";
import { ticks } from "./chart.ts";
import { big, button, select, type Context } from "./pane.ts";

const LEVELS = 16, // tints of one sign
  MASK = 255, // something in the cell is not finite
  SIDE = 16; // of the window of exact values

const within = (at: number, most: number): number => Math.max(0, Math.min(at, most));

/** Return the start of a window of 16 with `at` in its middle, within `size` elements. */
export const begin = (at: number, size: number): number => within(at - SIDE / 2, size - SIDE);

/** Return the tint of a value, −1 … 1: against zero where there are both signs, else over the range. */
export const tint = (value: number, low: number, high: number): number =>
  low === high
    ? Math.sign(value) / 2
    : low < 0 && high > 0
      ? value / Math.max(-low, high)
      : (value - (high > 0 ? low : high)) / (high - low);

/** The cells of each tint as one path; non-finite ones as a path of crosses, under NaN. */
export function paths(cells: ArrayLike<number>, cols: number, low: number, high: number): Map<number, string> {
  const found = new Map<number, string>();
  for (let at = 0; at < cells.length; at++) {
    const byte = cells[at]!,
      level = byte === MASK ? NaN : Math.round(LEVELS * tint(low + (byte / 254) * (high - low), low, high)) / LEVELS,
      place = `M${at % cols} ${Math.floor(at / cols)}`;
    if (level) found.set(level, `${found.get(level) ?? ""}${place}h1v1h-1z`);
    else if (byte === MASK) found.set(NaN, `${found.get(NaN) ?? ""}${place}m.2 .2l.6 .6m0-.6l-.6 .6`);
  }
  return found;
}

function picture(
  cells: ArrayLike<number>,
  rows: number,
  cols: number,
  low: number,
  high: number,
  width: number,
  height: number,
  ...more: Child[]
): SVGElement {
  const made = [...paths(cells, cols, low, high)].map(([level, d]) =>
    Number.isNaN(level)
      ? svgPath("gd-holes", d)
      : svgPath(`gd-cells gd-f-${level < 0 ? "elementwise" : "reduction"}`, d, {
          style: `--gd-tint:${Math.abs(level) * 100}%`,
        }),
  );
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${cols} ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    made,
    more,
  );
}

const SCALE = Array.from({ length: 33 }, (_, i) => Math.min(254, 8 * i));
const rect = (name: string, x: number, y: number, width: number, height: number): SVGElement =>
  s("rect", { class: name, x, y, width, height });
/** Return a text that changes whenever values become outdated. */
const momentOf = ({ state, step, dispatch }: Live): string => `${state} ${step} ${dispatch}`;
/** Rows and columns of the planes of a tensor. */
const plane = ({ shape }: TensorValue): [number, number] => [shape.at(-2) ?? 1, shape.at(-1) ?? 1];

/** Row and column of the largest difference, if it lies in the shown slice. */
function worstOf({ difference, slice }: Looked): number[] | null {
  const at = difference && (difference.unlike > 0 || number(difference.ulp) > 0) ? difference.at : [];
  return at.length > 0 && slice.every((index, i) => at[i] === index) ? [at.at(-2) ?? 0, at.at(-1)!] : null;
}

interface Asked {
  name: string;
  slice: number[];
  row: number;
  col: number;
}

export class Glass {
  readonly #context: Context;
  readonly #head = div("gd-glasshead");
  readonly #note = h("p", { class: "gd-note", "data-value": "glass-note" });
  readonly #left = div("gd-glassleft");
  readonly #slices = span("gd-slices");
  readonly #heat = h("button", {
    class: "gd-heat",
    "data-command": "heat",
    on: { click: (event: MouseEvent) => this.#click(event), keydown: (event: KeyboardEvent) => this.#key(event) },
  });
  readonly #legend = div("gd-muted");
  readonly #difference = h("p", { "data-value": "difference" });
  readonly #window = h("div", {
    class: "gd-scroll gd-window",
    tabindex: 0,
    role: "region",
    "aria-label": "exact values",
  });
  readonly #body = div(
    "gd-glassbody",
    this.#left,
    div("", this.#slices, this.#heat, this.#legend),
    this.#difference,
    this.#window,
  );
  readonly #against = select(
    "compare with",
    [
      ["", "compare with nothing"],
      ["reference", "with the reference"],
      ["cpu", "with cpu"],
    ],
    "",
    () => this.#again({}),
  );
  readonly #close = button("×", {
    class: "gd-button gd-quiet",
    "aria-label": "close the microscope",
    on: { click: () => this.#end() },
  });
  readonly el = h(
    "section",
    { class: "gd-glass", hidden: true, "aria-label": "microscope" },
    this.#head,
    this.#note,
    this.#body,
  );
  #asked: Asked | null = null;
  #value: TensorValue | null = null;
  #busy = false;
  #moment = "";

  constructor(context: Context) {
    this.#context = context;
  }

  /** Look at a tensor by its name, or at an entity. */
  look(name: string): void {
    this.#ask({ name, slice: [], row: 0, col: 0 });
  }

  /** Show the figures of a tensor in a document. */
  record(value: TensorValue): void {
    this.#asked = null;
    this.#draw(value);
    this.#say("as the document has it: other slices and exact values take a live session");
  }

  /** Look at the same tensor again after every visible step. */
  show(live: Live): void {
    const moment = momentOf(live);
    if (!this.#asked || moment === this.#moment) return;
    this.#moment = moment;
    this.#ask(this.#asked);
  }

  #say(text: string): void {
    this.el.hidden = false;
    this.#note.hidden = !text;
    write(this.#note, text);
  }

  #end(): void {
    this.el.hidden = true;
    this.#asked = null;
  }

  /** Ask one question at a time; of those that come meanwhile the last is asked next. */
  #ask(asked: Asked): void {
    const context = this.#context,
      { state } = context.live(),
      host = context.host(),
      why = refusal(state, Boolean(host) && !host!.dead, "value");
    if (why) {
      setFlag(this.el, "data-old", true);
      return this.#say(state === "running" ? `${why}: pause it to look` : why);
    }
    const other = asked.name !== this.#asked?.name;
    this.#asked = asked;
    if (this.#busy) return;
    this.#busy = true;
    void host!.command("value", { ...asked, against: this.#against.value }).then(({ ok, result, error }) => {
      this.#busy = false;
      if (this.#asked !== asked) return this.#asked && this.#ask(this.#asked);
      this.#moment = momentOf(context.live());
      if (ok) this.#draw(result as unknown as Looked);
      else if (other) this.#title(asked.name);
      this.#body.hidden = !ok && (other || this.#body.hidden);
      setFlag(this.el, "data-old", !ok);
      this.#say(ok ? "" : error!.message.replace("step --to it", "Run to selected"));
      if (!other) return;
      context.say(this.#note.textContent || this.#heat.ariaLabel!);
      this.el.scrollIntoView({ block: "nearest" });
    });
  }

  #again(change: Partial<Asked>): void {
    if (this.#asked) this.#ask({ ...this.#asked, ...change });
  }

  #title(name: string, ...rest: string[]): void {
    this.#against.disabled = !this.#asked;
    if (!this.#close.isConnected) this.#head.append(this.#against, this.#close);
    all(this.#head, "span").forEach(each => each.remove());
    this.#head.prepend(span("gd-glassname", name), ...rest.map(each => span("gd-muted", each)));
  }

  #draw(value: TensorValue | Looked): void {
    const looked = "window" in value ? value : null,
      bad = value.nan + value.inf;
    this.#value = value;
    this.#body.hidden = false;
    this.#title(value.name, value.type, value.place + (looked?.read ? `, ${bytes(looked.read)} read` : ""));
    const figure = (key: "min" | "max" | "mean" | "std" | "l2", told: string) =>
      big(h("span", { "data-value": `glass-${key}`, "data-number": value[key] }, sig(number(value[key]))), told);
    replace(
      this.#left,
      div(
        "gd-bigs",
        figure("min", "minimum"),
        figure("max", "maximum"),
        figure("mean", "mean"),
        figure("std", "deviation"),
        figure("l2", "L2 norm"),
      ),
      h(
        "p",
        { "data-value": "glass-counts", "data-broken": bad > 0 },
        `${plural(value.n, "element")}, ${whole(value.zero)} zero, ` +
          `${whole(value.nan)} NaN, ${whole(value.inf)} infinite`,
      ),
      value.n > bad && histogram(value),
    );
    this.#slice(value);
    this.#map(value, looked);
    const found = looked?.difference;
    this.#difference.hidden = !found && !looked?.why;
    replace(
      this.#difference,
      found ? `against ${found.text} ` : `no difference: ${looked?.why}`,
      found &&
        number(found.ulp) + found.unlike > 0 &&
        button("Show it", {
          class: SMALL_BUTTON,
          "data-command": "worst",
          on: { click: () => this.#to(found.at.slice(0, -2), found.at.at(-2) ?? 0, found.at.at(-1)!) },
        }),
    );
    this.#window.hidden = !looked;
    if (looked) replace(this.#window, exact(looked));
  }

  #slice({ shape, slice }: TensorValue): void {
    const fields = () => all<HTMLInputElement>(this.#slices, "input");
    // The same fields as long as they fit: who types in one stays there.
    if (fields().length !== slice.length)
      replace(
        this.#slices,
        "slice",
        ...slice.map(() =>
          h("input", {
            class: "gd-number-field",
            type: "number",
            min: 0,
            "data-command": "slice",
            on: { change: () => this.#again({ slice: fields().map(each => each.valueAsNumber || 0) }) },
          }),
        ),
      );
    fields().forEach((field, i) => {
      field.max = String(shape[i]! - 1);
      field.title = field.ariaLabel = `slice of axis ${i}: 0 to ${field.max}`;
      field.disabled = !this.#asked;
      field.value = String(slice[i]);
    });
    this.#slices.hidden = slice.length === 0;
  }

  #map(value: TensorValue, looked: Looked | null): void {
    const { rows, cols, low, high, data } = value.thumbnail,
      [tall, wide] = plane(value),
      cells = Uint8Array.from(atob(data), each => each.charCodeAt(0)),
      moves = looked && Math.max(tall, wide) > SIDE,
      worst = looked && worstOf(looked),
      x = cols / wide,
      y = rows / tall;
    replace(
      this.#heat,
      picture(
        cells,
        rows,
        cols,
        low,
        high,
        cols * within(Math.floor(416 / cols), 26),
        rows * Math.max(4, within(Math.floor(224 / rows), 26)),
        moves &&
          rect(
            "gd-sightline",
            looked.window.col * x,
            looked.window.row * y,
            Math.min(SIDE, wide) * x,
            Math.min(SIDE, tall) * y,
          ),
        worst && rect("gd-worst", Math.floor(worst[1]! * x), Math.floor(worst[0]! * y), 1, 1),
      ),
    );
    const bad = value.nan + value.inf;
    const range = value.n > bad ? `${sig(number(value.min))} to ${sig(number(value.max))}` : "nothing finite";
    const arrows = moves ? "; arrows move the window of exact values" : "";
    const name = `heat map of ${value.name}, ${spokenType(value.type)}`;
    this.#heat.ariaLabel = `${name}, ${range}, ${whole(bad)} not finite${arrows}`;
    this.#heat.disabled = !moves;
    replace(
      this.#legend,
      sig(low),
      picture(SCALE, 1, SCALE.length, low, high, 99, 10),
      sig(high),
      x * y < 1 && `; a cell is the mean of ${Math.ceil(1 / y)} × ${Math.ceil(1 / x)}`,
      cells.includes(MASK) && "; ×: something is not finite",
      worst && "; □: the largest difference",
    );
  }

  /** Show a slice, with the window at an element of it. */
  #to(slice: number[], row: number, col: number): void {
    const [tall, wide] = plane(this.#value!);
    this.#again({ slice, row: begin(row, tall), col: begin(col, wide) });
  }

  #click(event: MouseEvent): void {
    if (event.detail === 0 || !this.#asked) return; // by keyboard: the arrows do it
    const box = boxOf(this.#heat),
      [tall, wide] = plane(this.#value!);
    this.#to(
      this.#asked.slice,
      Math.floor(((event.clientY - box.top) / box.height) * tall),
      Math.floor(((event.clientX - box.left) / box.width) * wide),
    );
  }

  /** Move the window by an arrow key: by a cell of the heat map, with Shift by a window. */
  #key(event: KeyboardEvent): void {
    const way = ["ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight"].indexOf(event.key);
    if (way < 0 || !this.#asked || event.altKey) return;
    handled(event);
    const across = way % 2,
      size = plane(this.#value!)[across]!,
      key = across ? "col" : "row",
      step = event.shiftKey ? SIDE : Math.ceil(size / this.#value!.thumbnail[across ? "cols" : "rows"]);
    this.#again({ [key]: within(this.#asked[key] + (way < 2 ? -step : step), size - SIDE) });
  }
}

const W = 300,
  BASE = 66;

function histogram({ histogram: { low, high, counts } }: TensorValue): Child {
  const most = Math.max(...counts),
    bar = W / counts.length,
    [a, b] = [number(low), number(high)];
  const d = counts
    .map(
      (count, i) =>
        count && `M${i * bar + 0.5} ${BASE}v${-Math.max(1.5, (count / most) * 54).toFixed(1)}h${bar - 1}V${BASE}z`,
    )
    .filter(Boolean);
  return s(
    "svg",
    {
      class: "gd-chart gd-histogram",
      width: W + 28,
      height: 84,
      viewBox: `-14 0 ${W + 28} 84`,
      role: "img",
      "aria-label": `histogram from ${sig(a)} to ${sig(b)}, at most ${whole(most)} in one of ${counts.length} parts`,
    },
    svgPath("gd-bars", d.join("")),
    svgPath("gd-gridline", `M0 ${BASE}h${W}`),
    s("text", { class: "gd-axis", y: 9 }, `${whole(most)} at most`),
    ...ticks(a, b, 4).map(tick =>
      s(
        "text",
        { class: "gd-axis", x: b > a ? ((tick - a) / (b - a)) * W : 0, y: 80, "text-anchor": "middle" },
        sig(tick),
      ),
    ),
  );
}

function exact(looked: Looked): Child {
  const { row, col, rows } = looked.window,
    worst = worstOf(looked)?.join();
  return h(
    "table",
    null,
    h("caption", { class: "gd-muted" }, `exact values, from row ${whole(row)} and column ${whole(col)} on`),
    h("tr", null, h("th"), ...(rows[0] ?? []).map((_, j) => h("th", null, col + j))),
    ...rows.map((values, i) =>
      h(
        "tr",
        null,
        h("th", null, row + i),
        ...values.map((text, j) => h("td", { "data-worst": worst === `${row + i},${col + j}` }, text)),
      ),
    ),
  );
}
