// The text of everything: one line per node or dispatch, the same entities, for reading and for voices.

import { plural } from "../doc/format.ts";
import { h, paragraph, span } from "../draw/dom.ts";
import { Rows } from "../draw/virtual.ts";
import { planLines, stageLines } from "./lines.ts";
import { body, choice, entity, frame, once, pane, retitle, type Context, type Pane, type PaneRecord } from "./pane.ts";

function make(context: Context): Pane {
  const { doc } = context;
  const list = h("div"),
    holder = body({ class: "gd-code gd-text" }, paragraph("gd-summary", doc.summary), list),
    el = frame(textPane, "", [holder]);
  const rows = new Rows(holder, list, 20, () => context.redrawn("text"));
  let at = 0;
  const draw = () => {
    const options = [
      ...doc.stages.map((stage, value) => ({ value, text: stage.key })),
      ...(doc.plan ? [{ value: doc.stages.length, text: "plan" }] : []),
    ];
    const stage = doc.stages[at];
    const controls = choice("stage", options, at, value => {
      at = value;
      draw();
      context.redrawn("text");
    });
    const fact = stage ? plural(stage.nodes.length, "node") : plural(doc.plan?.dispatches.length ?? 0, "dispatch");
    retitle(el, stage ? stage.title || stage.key : "Plan", fact, controls);
    const lines = stage ? stageLines(doc, at) : planLines(doc);
    rows.set(lines.length, i => {
      const { entity: name, text } = lines[i]!();
      return h("div", { class: "gd-line", ...entity(name, text) }, span("gd-linetext", text));
    });
  };
  draw();
  return {
    el,
    choose: once(lit => {
      const prefix = doc.stages[at] ? `node:${at}.` : "dispatch:";
      const first = [...lit].reduce(
        (least, each) => (each.startsWith(prefix) ? Math.min(least, Number(each.slice(prefix.length))) : least),
        Infinity,
      );
      return first < Infinity && rows.bring(first);
    }),
    destroy: () => rows.destroy(),
  };
}

export const textPane: PaneRecord = pane("text", make);
