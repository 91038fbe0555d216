// The source: one row per line of text, calls inside it as nested spans; both are linked to the nodes that came from
// them.

import type { GraphDoc, LineRecord, SourceRecord } from "../doc/doc.ts";
import { plural, put } from "../doc/format.ts";
import { all, h, span, type Child } from "../draw/dom.ts";
import { body, frame, highlighted, pane, type Context, type Pane, type PaneRecord } from "./pane.ts";

interface Call {
  entity: string;
  from: number;
  to: number;
}

/** The calls of one text line as ranges of columns; those without columns stand for the whole line. */
function callsOf(rows: [number, LineRecord][], length: number): Call[] {
  return rows
    .map(([index, { line, col, end_line, end_col }]) => ({
      entity: `line:${index}`,
      from: Math.max(0, col),
      to: col < 0 ? length : end_line > line || end_col < 0 ? length : Math.min(end_col, length),
    }))
    .sort((a, b) => a.from - b.from || b.to - a.to);
}

/** Nested spans of the calls that lie in [from, to); a call that reaches over its parent's end is cut there. */
function spans(text: string, calls: Call[], from: number, to: number): Child[] {
  const parts: Child[] = [];
  let at = from;
  while (calls.length > 0 && calls[0]!.from < to) {
    const call = calls.shift()!;
    const start = Math.max(at, call.from),
      stop = Math.max(start, Math.min(call.to, to));
    parts.push(...highlighted(text.slice(at, start), "python"));
    parts.push(
      h(
        "span",
        {
          class: "gd-call",
          "data-entity": call.entity,
          tabindex: -1,
          role: "button",
          "aria-label": `call ${text.slice(start, stop)}`,
        },
        ...spans(text, calls, start, stop),
      ),
    );
    at = stop;
  }
  return [...parts, ...highlighted(text.slice(at, to), "python")];
}

function row(text: string, number: number, calls: Call[], context: Context): HTMLElement {
  const entities = calls.map(call => call.entity),
    single = entities.length === 1;
  const pickAll = (event: MouseEvent) => {
    if ((event.target as Element).closest("[data-entity]") || entities.length === 0) return;
    event.stopPropagation();
    context.act({ do: "select", entities, add: event.shiftKey });
  };
  return h(
    "div",
    {
      class: "gd-line",
      "data-entity": single ? entities[0] : null,
      "data-entities": entities.length > 1 ? entities.join(" ") : null,
      title: text.trim(),
      tabindex: single ? -1 : null,
      role: single ? "button" : null,
      "aria-label": single ? `line ${number}: ${text.trim()}` : null,
      on: { click: pickAll },
    },
    span("gd-lineno", number),
    span("gd-linetext", ...(single ? highlighted(text, "python") : spans(text, [...calls], 0, text.length))),
  );
}

function listing(doc: GraphDoc, source: SourceRecord, index: number, context: Context): HTMLElement[] {
  const byLine = new Map<number, [number, LineRecord][]>();
  doc.lines.forEach((line, i) => {
    if (line.source === index) put(byLine, line.line, [i, line]);
  });
  return source.text
    .replace(/\n$/, "")
    .split("\n")
    .map((text, i) => {
      const number = source.first_line + i;
      return row(text, number, callsOf(byLine.get(number) ?? [], text.length), context);
    });
}

function make(context: Context): Pane {
  const { doc } = context;
  const shown = doc.sources
    .map((source, index) => ({ source, index }))
    .filter(({ index }) => doc.lines.some(line => line.source === index));
  const main = shown.filter(({ source }) => source.kind !== "generated"),
    lines = shown[0]?.source.text.trimEnd().split("\n").length ?? 0;
  const part = ({ source, index }: (typeof shown)[number]): Child[] => [
    (main.length > 1 || source.kind === "generated") && h("h4", { class: "gd-place", title: source.name }, source.name),
    ...listing(doc, source, index, context),
  ];
  const generated = shown.filter(({ source }) => source.kind === "generated");
  const folded =
    generated.length > 0 &&
    h(
      "details",
      { class: "gd-generated" },
      h("summary", null, `${plural(generated.length, "generated source")}`),
      ...generated.flatMap(part),
    );
  const listed = body({ class: "gd-source" }, ...main.flatMap(part), folded);
  const title = main[0]?.source.name || "Source";
  const el = frame({ ...sourcePane, title }, plural(lines, "line"), [listed]);
  const rows = all<HTMLElement>(el, "[data-entities]");
  return {
    el,
    lit(lit) {
      for (const each of rows)
        each.toggleAttribute(
          "data-some",
          each.dataset.entities!.split(" ").some(entity => lit.has(entity)),
        );
      const details = el.querySelector("details");
      if (details && details.querySelector("[data-lit]")) details.open = true;
    },
  };
}

export const sourcePane: PaneRecord = pane("source", make);
