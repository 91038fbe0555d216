// The interface of a pane, the part of the view that it may use, and the small elements that panes share.

import type { GraphDoc, RuleSource, Stage } from "../doc/doc.ts";
import type { Provenance, Uses } from "../doc/select.ts";
import type { CameraGroup } from "../draw/camera.ts";
import { append, div, h, listen, paragraph, replace, span, type Child, type Props } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { Live } from "../live/live.ts";
import type { CommandName } from "../live/messages.ts";
import { PANES, type Action, type PaneKey, type PaneNames, type Ui } from "./state.ts";

/** The part of a view that its panes know. */
export interface Context {
  readonly doc: GraphDoc;
  readonly cameras: Record<"graph" | "lanes" | "union", CameraGroup>;
  ui(): Ui;
  live(): Live;
  host(): Host | null;
  lit(): ReadonlySet<string>;
  /** Returns the dispatches that write and read the selected buffers. */
  uses(): Uses;
  /** Returns the entities that light up with one, selected or not. */
  reached(entity: string): ReadonlySet<string>;
  readonly origins: Provenance["origins"];
  act(action: Action): void;
  /** Announces a text to screen readers. */
  say(text: string): void;
  /** Sends a command to the kernel; what it answers appears in the session panel. */
  send(name: CommandName, args?: Record<string, unknown>): void;
  /** Marks the elements of a pane that were drawn anew. */
  redrawn(key: PaneKey): void;
}

export interface Pane {
  readonly el: HTMLElement;
  /** Shows the lit entities after the selection moved, before marks; true when other elements were drawn. */
  choose?(lit: ReadonlySet<string>): boolean;
  /** Brings the first of these hits of a search into sight. */
  seek?(hits: readonly string[]): void;
  /** Called after elements are marked. */
  lit?(lit: ReadonlySet<string>): void;
  /** The entity under the pointer, null for none. */
  hover?(entity: string | null): void;
  live?(live: Live, host: Host | null): void;
  /** The graph that the picture shows, for keys that walk along its edges. */
  walked?(): Stage | null;
  /** Handles comma and full stop, if they mean something else than the next rewrite. */
  turn?(by: 1 | -1): void;
  destroy?(): void;
}

export type MakePane = (context: Context) => Pane;

/** A pane before it is made: its names, and the function that makes it. */
export interface PaneRecord extends PaneNames {
  readonly key: PaneKey;
  readonly make: MakePane;
}

/** The record of a pane: its names stand in state.ts. */
export const pane = (key: PaneKey, make: MakePane): PaneRecord => ({ key, ...PANES[key], make });

/** A pane's frame: a header with its name and a muted fact, then the body. */
export function frame(
  { key, title }: Pick<PaneRecord, "key" | "title">,
  fact: string,
  body: Child[],
  controls: Child[] = [],
): HTMLElement {
  return h(
    "section",
    { class: `gd-pane gd-pane-${key}`, "data-pane": key, "aria-label": title },
    h(
      "header",
      { class: "gd-head" },
      h("h3", null, title),
      h("span", { class: "gd-fact", title: fact || null }, fact),
      span("gd-controls", ...controls),
    ),
    ...body,
  );
}

/** Put another name, fact and controls in a pane's header. */
export function retitle(el: HTMLElement, title: string, fact: string, ...controls: Child[]): void {
  const [name, said, tools] = el.firstElementChild!.children as unknown as [HTMLElement, HTMLElement, HTMLElement];
  el.ariaLabel = name.textContent = title;
  said.title = said.textContent = fact;
  replace(tools, controls);
}

/** Put other parts below a pane's header. */
export const refill = (el: HTMLElement, ...parts: Child[]): void => replace(el, el.firstElementChild, parts);

/** Bring lit entities into sight once for each selection, so that scrolling stays free. */
export function once(bring: (lit: ReadonlySet<string>) => boolean): (lit: ReadonlySet<string>) => boolean {
  let brought: ReadonlySet<string> | null = null;
  return lit => lit !== brought && ((brought = lit), bring(lit));
}

export const row = (tag: "th" | "td", cells: [name: string, text: Child][]): HTMLTableRowElement =>
  h("tr", null, ...cells.map(([name, text]) => h(tag, { class: name || null }, text)));

/** A table by the classes and names of its columns. */
export const table = (name: string, head: [name: string, text: Child][], ...parts: Child[]): HTMLTableElement =>
  h("table", { class: `gd-table ${name}` }, h("thead", null, row("th", head)), ...parts);

/** A quiet button that opens and closes something; `to` opens or closes it, as `turn` does when it is pressed. */
export function fold(
  label: string,
  turn: (open: boolean) => void,
): { el: HTMLButtonElement; to(open: boolean): void; open: boolean } {
  const el = h(
      "button",
      { class: "gd-fold", "aria-expanded": "false", on: { click: () => made.to(!made.open) } },
      label,
    ),
    made = {
      el,
      open: false,
      to(open: boolean) {
        made.open = open;
        el.ariaExpanded = String(open);
        turn(open);
      },
    };
  return made;
}

/** The scrolling body of a pane. Its entities are one tab stop: arrows walk, Enter selects. */
export const body = (props: Props | null, ...children: Child[]): HTMLDivElement =>
  h("div", { ...props, class: `gd-body gd-scroll ${(props?.class as string | undefined) ?? ""}` }, ...children);

/** The name of a button: it begins with the words on the button, unless it contains them. */
function nameOf(label: string, children: readonly Child[]): string {
  const text = children.every(each => typeof each === "string") ? children.join("") : "";
  const isWord = /\p{L}{2}/u.test(text);
  return !isWord || label.toLowerCase().includes(text.toLowerCase()) ? label : `${text}: ${label}`;
}

export const button = (label: string, props: Props, ...children: Child[]): HTMLButtonElement =>
  h(
    "button",
    { class: "gd-button", "aria-label": nameOf(label, children), title: label, ...props },
    ...(children.length > 0 ? children : [label]),
  );

/** A small button of a row; `command` is its `data-command`. */
export const mini = (label: string, command: string, sign: string, click: () => void): HTMLButtonElement =>
  button(label, { class: "gd-mini", "data-command": command, on: { click } }, sign);

/** A row of buttons of which one is pressed; a list where there are many, nothing for a single choice. */
export function choice<T>(
  label: string,
  options: { value: T; text: string; title?: string }[],
  chosen: T,
  pick: (value: T) => void,
): HTMLElement | null {
  if (options.length < 2) return null;
  if (options.length > 3 || options.map(({ text }) => text).join("").length > 36) {
    const texts = options.map(({ text }, i) => [String(i), text] as const);
    return select(label, texts, String(options.findIndex(({ value }) => value === chosen)), i =>
      pick(options[Number(i)]!.value),
    );
  }
  return h(
    "span",
    { class: "gd-choice", role: "group", "aria-label": label },
    ...options.map(({ value, text, title }) =>
      h(
        "button",
        { "aria-pressed": value === chosen ? "true" : "false", title: title ?? null, on: { click: () => pick(value) } },
        text,
      ),
    ),
  );
}

/** A choice between `off` and `on`. */
export const either = (label: string, off: string, on: string, chosen: boolean, pick: (on: boolean) => void) =>
  choice(
    label,
    [off, on].map((text, i) => ({ value: i > 0, text })),
    chosen,
    pick,
  );

/** A choice of one of many, as the host's own list. */
export function select(
  label: string,
  options: readonly (readonly [value: string, text: string])[],
  chosen: string,
  pick: (value: string) => void,
): HTMLSelectElement {
  const made = h(
    "select",
    { class: "gd-select", "aria-label": label, title: label },
    ...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  listen(made, "change", () => pick(made.value));
  return made;
}

/** Attributes that make an element an entity: it lights and can be selected, arrows reach it, it has a name. */
export const entity = (name: string | null, label: string): Props => ({
  "data-entity": name,
  tabindex: name ? -1 : null,
  role: name ? "button" : null,
  "aria-label": name ? label : null,
});

/** A small button for an entity that is named elsewhere, too. */
export const chip = (name: string | null, label: string, text: Child, title: string | null = null): HTMLButtonElement =>
  h("button", { class: "gd-chip", ...entity(name, label), role: null, title }, text);

export const big = (value: Child, unit: Child): HTMLElement =>
  div("gd-big", div("gd-number", value), div("gd-unit", unit));

export const swatch = (familyClass: string): HTMLElement =>
  h("span", { class: `gd-swatch ${familyClass}`, "aria-hidden": "true" });

export const dot = (kind: string): HTMLElement =>
  h("span", { class: "gd-dot", "data-kind": kind, "aria-hidden": "true" });

export const empty = (...children: Child[]): HTMLElement => paragraph("gd-empty", ...children);

export const UNOPTIMIZED = "This graph has not been optimized.";

/** The text of a pane that needs a plan, if there is none; `so` follows "Not compiled yet". */
export const notCompiled = ({ doc }: Context, so = ""): HTMLElement =>
  empty(`Not compiled yet${so}. `, h("code", null, `%graph_plan ${doc.title || "NAME"}`), " makes the plan.");

/** One expression with a group for each kind of token, in the order of KINDS. */
const tokens = (...kinds: RegExp[]): RegExp => new RegExp(kinds.map(({ source }) => `(${source})`).join("|"), "gm");
const PYTHON = tokens(
  /#.*$/,
  /"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/,
  /@[\w.]+|\b(?:def|return|lambda|if|else|elif|for|in|not|and|or|is|None|True|False|import|from|class|with|as)\b/,
  /\b\d[\w.]*/,
);
const WGSL = tokens(
  /\/\/.*$/,
  /"[^"\n]*"/,
  /@\w+|\b(?:fn|let|var|const|struct|for|if|else|while|loop|return|break|continue|override|enable)\b/,
  /\b(?:0x[\da-fA-F]+|\d[\d.]*(?:e[+-]?\d+)?[fuih]?)\b/,
  /\b(?:storage|read_write|read|uniform|workgroup|function|private)\b/,
);
const KINDS = ["", "comment", "string", "keyword", "digit", "keyword"];

/** Code with its comments, strings, keywords and numbers as spans: text nodes throughout. */
export function highlighted(text: string, language: "python" | "wgsl"): Child[] {
  const parts: Child[] = [];
  let at = 0;
  for (const match of text.matchAll(language === "python" ? PYTHON : WGSL)) {
    const kind = KINDS[match.slice(1).findIndex(each => each !== undefined) + 1];
    parts.push(text.slice(at, match.index), span(`gd-code-${kind}`, match[0]));
    at = match.index + match[0].length;
  }
  return [...parts, text.slice(at)];
}

/** The Python source of a rule as it stands in its file, with the place below. */
export function ruleSource(source: RuleSource | undefined): Child[] {
  if (!source) return [];
  return [
    h(
      "pre",
      { class: "gd-code", tabindex: 0, "aria-label": `source of the rule, ${source.name} line ${source.line}` },
      ...highlighted(source.text.trimEnd(), "python"),
    ),
    div("gd-muted gd-place", `${source.name}:${source.line}`),
  ];
}

/** A line of source as a row that can be selected. */
export function sourceLine(doc: GraphDoc, line: number): Child {
  const record = doc.lines[line];
  const source = record && doc.sources[record.source];
  if (!record || !source) return null;
  const text = source.text.split("\n")[record.line - source.first_line] ?? "";
  return h(
    "div",
    {
      class: "gd-line",
      "data-entity": `line:${line}`,
      tabindex: -1,
      role: "button",
      "aria-label": `line ${record.line}`,
      title: text.trim(),
    },
    span("gd-lineno", record.line),
    span("gd-linetext", ...highlighted(text, "python")),
  );
}

export const facts = (rows: [string, Child][]): HTMLElement =>
  h("dl", { class: "gd-facts" }, ...rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

export { append, h, replace, type Child };
