// A stand-in for a pane whose part of the front end is not loaded: it says so, and shows the text of the pane.

import { h, replace } from "../draw/dom.ts";
import { linesOf } from "./lines.ts";
import { body, button, frame, type Context, type Pane } from "./pane.ts";
import { PANES, type PaneKey } from "./state.ts";

const MOST = 200; // lines

export interface StandIn extends Pane {
  /** Say in a sentence why the pane is not drawn. */
  failed(reason: string): void;
}

/** The stand-in of a pane; `retry` loads its part again. */
export function standIn({ doc }: Context, key: PaneKey, retry: () => void): StandIn {
  const { title, twin } = PANES[key],
    all = linesOf(doc, twin),
    lines = all.slice(0, MOST).map(line => line().text);
  if (all.length > MOST) lines.push(`… ${all.length - MOST} more`);
  const said = h("p", { class: "gd-empty", role: "status" }),
    loading = () => replace(said, `Loading ${title}; until it is here, as text:`);
  loading();
  const again = () => (loading(), retry());
  return {
    el: frame(
      { key, title },
      "as text",
      [body({ class: "gd-standin" }, said, h("pre", { class: "gd-code" }, lines.join("\n")))],
    ),
    failed: reason =>
      replace(
        said,
        `${title} could not be loaded (${reason}); here it is as text. `,
        button("load it again", { "data-command": "retry", on: { click: again } }, "Retry"),
      ),
  };
}
