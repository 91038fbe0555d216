// The norm of each parameter's gradient over a run, as sparklines.

import { number } from "../doc/doc.ts";
import { plural, sig, whole } from "../doc/format.ts";
import { h, replace, setFlag, span } from "../draw/dom.ts";
import type { Live } from "../live/live.ts";
import type { NormRow } from "../live/messages.ts";
import { entity } from "./pane.ts";
import { course } from "./watches.ts";

const TITLE = "norm of each parameter's gradient",
  WIDE = 30;

/** Whether a course spans so many powers of ten that a linear scale would show only its beginning. */
export function wide(values: readonly unknown[]): boolean {
  const known = values.map(number).filter(Number.isFinite);
  return known.length > 0 && Math.min(...known) > 0 && Math.max(...known) > WIDE * Math.min(...known);
}

const logarithm = (value: unknown): number => Math.log(number(value));

function rowOf({ name, about, value, step, first, course: values }: NormRow): HTMLElement {
  const now = sig(number(value)),
    before = values.length > 1 ? `${sig(number(values[0]))} → ` : "",
    from = values.length > 1 ? `${whole(first)} … ` : "",
    log = wide(values),
    told = `‖∂${name}‖: ${before}${now}, step ${from}${whole(step)}${log ? ", logarithmic" : ""}`;
  const made = h(
    "li",
    { ...entity(about || null, told), title: told },
    span("gd-mono", `∂${name}`),
    span("gd-spark", course(values, log ? logarithm : number)),
    span("gd-now", before, span("gd-newest", now)),
  );
  setFlag(made, "data-broken", !Number.isFinite(number(value)));
  return made;
}

export class Norms {
  readonly #list = h("ul", { "aria-label": TITLE });
  readonly #left = span("gd-muted");
  readonly el = h("section", { class: "gd-norms", hidden: true }, h("h4", null, TITLE), this.#list, this.#left);
  #shown: readonly NormRow[] | null = null;

  /** Show the norms; return whether they are drawn anew. */
  show({ norms, norms_left_out: left }: Live): boolean {
    if (norms === this.#shown) return false;
    this.#shown = norms;
    this.el.hidden = norms.length === 0;
    replace(this.#list, norms.map(rowOf));
    replace(this.#left, left > 0 && `and ${plural(left, "parameter")} more, which are not sampled`);
    return true;
  }
}
