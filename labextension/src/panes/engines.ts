// The engines of a run as a table: the time of each by its use, late ones, bytes, loss.

import type { EngineRow, EnginesSection } from "../doc/doc.ts";
import { h, replace, setFlag, span, type Child } from "../draw/dom.ts";
import { row, table } from "./pane.ts";

const COLOURS = ["accent", "warn", "muted"];
const plain = (texts: readonly string[]): [string, Child][] => texts.map(each => ["", each]);

function rowOf({ cells, late, share }: EngineRow): HTMLElement {
  const made = row("td", plain([...cells, ""]));
  let at = 0;
  const stops = share.map((each, i) => `var(--gd-${COLOURS[i]}) ${at}% ${(at += each)}%`);
  (made.lastChild as HTMLElement).style.backgroundImage = `linear-gradient(90deg,${stops.join()},transparent 0)`;
  setFlag(made, "data-late", late);
  return made;
}

export const enginesBox = (): HTMLElement => h("section", { class: "gd-norms gd-engines" });

/** Show the engines of the newest run over several. */
export function showEngines(el: HTMLElement, engines: EnginesSection | null): void {
  el.hidden = !engines;
  if (!engines) return;
  const { fact, head, rows, lost } = engines;
  replace(
    el,
    h("h4", null, "Engines ", span("gd-muted", fact)),
    table("", plain(head), h("tbody", null, rows.map(rowOf))),
    lost.map(each => h("p", null, each)),
  );
}
