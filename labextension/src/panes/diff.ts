// The diff of two stages in one picture: nodes that are the same, rewired, changed, moved into another node, removed,
// added.

import { differing, LETTERS, type Change } from "../doc/union.ts";
import { div, h, SMALL_BUTTON } from "../draw/dom.ts";
import { around, partLayout } from "../layout/explore.ts";
import { enliven } from "./ask.ts";
import { Canvas } from "./canvas.ts";
import {
  button,
  empty,
  frame,
  pane,
  refill,
  retitle,
  select,
  type Context,
  type Pane,
  type PaneRecord,
} from "./pane.ts";
import { compared, whatIf } from "./whatif.ts";
import { zoomButtons } from "./zoom.ts";

const NAMES: [Change, string][] = [
  ["same", "same"],
  ["rewired", "rewired"],
  ["changed", "changed"],
  ["moved", "moved into another"],
  ["made", "made of others"],
  ["removed", "removed"],
  ["added", "added"],
];

function make(context: Context): Pane {
  const { doc } = context,
    { stages } = doc;
  if (stages.length < 2)
    return {
      el: frame(diffPane, "", [empty("One graph alone: ", h("code", null, "%graph A --diff B"), " compares two.")]),
    };
  let [left, right] = compared(doc),
    only = false;
  /** Draw these two stages, in later documents too. */
  const shown = (a: number, b: number) => {
    [left, right] = [a, b];
    doc.view = { ...doc.view, diff: [a, b], variant: undefined };
    draw();
    context.redrawn("diff");
  };
  const what = whatIf(context, shown);
  const canvas = new Canvas(context, "diff", context.cameras.union, "Diff of two graphs");
  const el = frame(diffPane, "", []);
  const draw = () => {
    const found = differing(doc, stages[left]!, stages[right]!);
    const options = stages.map((stage, i): [string, string] => [String(i), stage.title || stage.key]);
    const pick = (label: string, chosen: number, set: (at: number) => void) =>
      select(label, options, String(chosen), value => set(Number(value)));
    const turn = () => ((only = !only), draw(), context.redrawn("diff"));
    const pressed = { "aria-pressed": String(only), "data-command": "only-changes", class: SMALL_BUTTON };
    const toggle = button(
      "only changes and what is next to them",
      { ...pressed, on: { click: turn } },
      "only changes",
    );
    const sides = [pick("left", left, at => shown(at, right)), "→", pick("right", right, at => shown(left, at))];
    const legend = div(
      "gd-legend",
      ...NAMES.filter(([change]) => found.changes.includes(change)).map(([change, name]) =>
        h(
          "span",
          { class: "gd-change", "data-diff": change },
          h("b", null, LETTERS[change] || "no sign"),
          ` ${name}`,
        ),
      ),
    );
    retitle(el, diffPane.title, found.summary, [...sides, toggle, zoomButtons(context.cameras.union)]);
    refill(el, canvas.el, legend, what);
    const { stage, changes, fields, lives, wires } = found;
    const born = new Map(wires.map(wire => [`${wire.a} ${wire.b}`, wire]));
    if (only) {
      const seeds = changes.flatMap((change, i) => (change === "same" ? [] : [i]));
      stage.layout = partLayout(stage, doc.types, around(stage, seeds, "1"));
    }
    canvas.draw(stage, {
      node: i => ({ "data-diff": changes[i] }),
      letter: i => LETTERS[changes[i]!],
      told: i => [NAMES.find(([change]) => change === changes[i])![1], fields[i]].filter(Boolean).join(": "),
      edge: (a, b) => {
        const wire = born.get(`${a} ${b}`);
        const stays = lives[a]!.died === 2 && lives[b]!.died === 2 && lives[a]!.born === 0 && lives[b]!.born === 0;
        return wire?.born === 1
          ? stays
            ? "gd-edge-rewired"
            : "gd-edge-added"
          : wire?.died === 1
            ? "gd-edge-removed"
            : "";
      },
    });
  };
  draw();
  return {
    el,
    live: (_, host) => enliven(el, host),
    lit: lit => canvas.join(lit),
    seek: hits => canvas.seek(hits),
    walked: () => canvas.stage,
    destroy: () => canvas.destroy(),
  };
}

export const diffPane: PaneRecord = pane("diff", make);
