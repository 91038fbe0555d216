// The text of everything: one line per node or dispatch, the same entities, for reading and for voices.

import { type GraphDoc } from "../doc/doc.ts";
import { h, span } from "../draw/dom.ts";
import { bytes, cell, plural } from "../doc/format.ts";
import { nodeText } from "../doc/nodetext.ts";
import { body, choice, entity, frame, once, retitle, type MakePane } from "./pane.ts";
import { Rows } from "../draw/virtual.ts";

interface Line {
  entity: string | null;
  text: string;
}

const stageLines = (doc: GraphDoc, at: number): (() => Line)[] => {
  const stage = doc.stages[at]!;
  const outputs = () =>
    stage.outputs.map(({ node, name, of }) => `%${node}${name || of ? ` "${name || `∂${of}`}"` : ""}`).join(", ");
  return [
    ...stage.nodes.map((_, i) => () => ({ entity: `node:${at}.${i}`, text: nodeText(doc, stage, i) })),
    () => ({ entity: null, text: `outputs: ${outputs()}` }),
  ];
};

const planLines = (doc: GraphDoc): (() => Line)[] => {
  const plan = doc.plan!,
    names = (indexes: number[]) => indexes.map(index => plan.intervals[index]?.name || `#${index}`).join(", ");
  return plan.dispatches.map((dispatch, k) => () => ({
    entity: `dispatch:${k}`,
    text: `${String(k).padStart(3)}  ${dispatch.phase.padEnd(9)} ${dispatch.label}  (${names(dispatch.reads)}) → ${names(dispatch.writes)}  ${cell(dispatch.flops / 1e6)} MFLOP, ${bytes(dispatch.bytes_read + dispatch.bytes_written)}`,
  }));
};

export const textPane: MakePane = context => {
  const { doc } = context;
  const list = h("div"),
    holder = body({ class: "gd-code gd-text" }, h("p", { class: "gd-summary" }, doc.summary), list),
    el = frame("text", "Text", "", [holder]);
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
};
