// The outline: every node of a stage in a table that sorts, the view for keyboards and screen readers.

import { typeText, type NodeRecord } from "../doc/doc.ts";
import { bytes, cell, plural, whole } from "../doc/format.ts";
import { h, td } from "../draw/dom.ts";
import { familyClass, spokenName } from "../draw/graph.ts";
import { Rows } from "../draw/virtual.ts";
import { body, choice, entity, frame, once, pane, retitle, swatch } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";

interface Column {
  head: string;
  number?: boolean;
  key: (node: NodeRecord, index: number, nbytes: number) => number | string;
}
const COLUMNS: Column[] = [
  { head: "#", number: true, key: (_, index) => index },
  { head: "op", key: node => node.op },
  { head: "name", key: node => node.name },
  { head: "type", key: (_n, _i, nbytes) => nbytes },
  { head: "lane", key: node => node.lane },
  { head: "MFLOP", number: true, key: node => node.flops },
  { head: "moved", number: true, key: node => node.bytes_moved },
];

function make(context: Context): Pane {
  const { doc } = context;
  const list = h("tbody"),
    table = h("table", { class: "gd-table gd-outline", role: "grid" }),
    holder = body({ class: "gd-flush" }, table),
    el = frame(outlinePane, "", [holder]);
  const rows = new Rows(holder, list, 29, () => context.redrawn("outline"));
  let at = 0,
    by = 0,
    down = false,
    order: number[] = [];
  const head = () =>
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        ...COLUMNS.map(({ head: text, number }, i) => {
          const sort = () => {
            down = by === i && !down;
            by = i;
            draw();
            context.redrawn("outline");
          };
          const arrow = by === i ? (down ? " \u2193" : " \u2191") : "";
          return h(
            "th",
            { class: number ? "gd-num" : null, "aria-sort": by === i ? (down ? "descending" : "ascending") : null },
            h("button", { class: "gd-sort", on: { click: sort } }, text + arrow),
          );
        }),
      ),
    );
  const row = (i: number) => {
    const index = order[i]!,
      stage = doc.stages[at]!,
      node = stage.nodes[index]!;
    const type = typeText(doc, node);
    return h(
      "tr",
      { ...entity(`node:${at}.${index}`, spokenName(doc, stage, index)), role: "row", "aria-rowindex": i + 2 },
      td("gd-num gd-muted", index),
      td("gd-label", swatch(familyClass(node.family)), node.op),
      h("td", { class: "gd-label", title: node.name }, h("bdi", { dir: "ltr" }, node.name)),
      h("td", { class: "gd-label gd-mono", title: type }, type),
      td("gd-muted", node.lane),
      td("gd-num", node.flops > 0 ? cell(node.flops / 1e6) : ""),
      td("gd-num", node.bytes_moved > 0 ? bytes(node.bytes_moved) : ""),
    );
  };
  const draw = () => {
    const stage = doc.stages[at];
    if (!stage) return;
    const options = doc.stages.map(({ key }, value) => ({ value, text: key }));
    const controls = choice("stage", options, at, value => {
      at = value;
      draw();
      context.redrawn("outline");
    });
    retitle(el, outlinePane.title, `${stage.title || stage.key}, ${plural(stage.nodes.length, "node")}`, controls);
    const keys = stage.nodes.map((node, i) => COLUMNS[by]!.key(node, i, doc.types[node.type]?.nbytes ?? 0));
    const less = (a: number | string, b: number | string) => (a < b ? -1 : a > b ? 1 : 0);
    order = stage.nodes.map((_, i) => i).sort((a, b) => (down ? -1 : 1) * less(keys[a]!, keys[b]!) || a - b);
    table.toggleAttribute("data-lanes", new Set(stage.nodes.map(node => node.lane)).size > 1);
    table.setAttribute("aria-rowcount", whole(order.length + 1));
    table.replaceChildren(head(), list);
    rows.set(order.length, row);
  };
  draw();
  return {
    el,
    choose: once(lit => {
      const first = order.findIndex(index => lit.has(`node:${at}.${index}`));
      return first >= 0 && rows.bring(first);
    }),
    destroy: () => rows.destroy(),
  };
}

export const outlinePane: PaneRecord = pane("outline", make);
