// The text of everything: one line per node, the same entities, for reading, searching and voices.

import { typeText, type GraphDoc, type Stage } from "../doc.ts";
import { h, type Child } from "../dom.ts";
import { bytes, cell, plural } from "../format.ts";
import { body, choice, frame, type MakePane } from "../pane.ts";

const attribute = ([name, value]: [string, unknown]): string => `${name}=${JSON.stringify(value)}`;

export function nodeText(doc: GraphDoc, stage: Stage, index: number): string {
  const node = stage.nodes[index]!;
  const attrs = Object.entries(node.attrs ?? {}),
    isLeaf = node.inputs.length === 0 && attrs.some(([key]) => key === "name");
  const words = [
    ...node.inputs.map(a => `%${a}`),
    ...attrs.map(([key, value]) => (isLeaf && key === "name" ? JSON.stringify(value) : attribute([key, value]))),
  ];
  return `%${index}${node.name && !isLeaf ? ` "${node.name}"` : ""} = ${node.op}(${words.join(", ")}) : ${typeText(doc, node)}`;
}

function stageLines(doc: GraphDoc, stage: Stage): Child[] {
  const outputs = stage.outputs.map(({ node, name, of }) => `%${node}${name || of ? ` "${name || `∂${of}`}"` : ""}`).join(", ");
  return [
    ...stage.nodes.map((_, i) => {
      const text = nodeText(doc, stage, i);
      return h(
        "div",
        { class: "gd-line", "data-entity": `node:${stage.index}.${i}`, tabindex: -1, role: "button", "aria-label": text },
        h("span", { class: "gd-linetext" }, text),
      );
    }),
    h("div", { class: "gd-line" }, h("span", { class: "gd-linetext" }, `outputs: ${outputs}`)),
  ];
}

function planLines(doc: GraphDoc): Child[] {
  const plan = doc.plan!;
  return plan.dispatches.map((dispatch, k) => {
    const names = (indexes: number[]) => indexes.map(index => plan.intervals[index]?.name || `#${index}`).join(", ");
    const text = `${String(k).padStart(3)}  ${dispatch.phase.padEnd(9)} ${dispatch.label}  (${names(dispatch.reads)}) → ${names(dispatch.writes)}  ${cell(dispatch.flops / 1e6)} MFLOP, ${bytes(dispatch.bytes_read + dispatch.bytes_written)}`;
    return h(
      "div",
      { class: "gd-line", "data-entity": `dispatch:${k}`, tabindex: -1, role: "button", "aria-label": text },
      h("span", { class: "gd-linetext" }, text),
    );
  });
}

export const textPane: MakePane = context => {
  const { doc } = context;
  const holder = body({ class: "gd-code gd-text" });
  const el = frame("text", "Text", "", [holder]);
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
    const fact = stage ? plural(stage.nodes.length, "node") : `${plural(doc.plan?.dispatches.length ?? 0, "dispatch")}`;
    el.replaceChildren(frame("text", stage ? stage.title || stage.key : "Plan", fact, [], [controls]).firstElementChild!, holder);
    holder.replaceChildren(h("p", { class: "gd-summary" }, doc.summary));
    holder.append(...((stage ? stageLines(doc, stage) : planLines(doc)) as Node[]));
  };
  draw();
  return { el };
};
