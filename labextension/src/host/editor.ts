// `%%graph` cells in their editor: ops in the colours of their families, lit lines, and a click that selects.

import { Prec, StateEffect, type Range } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, WidgetType, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import { EditorExtensionRegistry, IEditorExtensionRegistry } from "@jupyterlab/codemirror";
import { familyClass } from "../draw/labels.ts";
import { FAMILIES } from "./ops.ts";
import { page, type Written } from "../live/page.ts";

export { IEditorExtensionRegistry };

const HEAD = "%%graph";
const INK = new Map(
  Object.entries(FAMILIES).flatMap(([family, names]) => {
    const mark = Decoration.mark({ class: `gd-cm ${familyClass(family)}` });
    return names.split(" ").map((name): [string, Decoration] => [name, mark]);
  }),
);
// Comments and strings come first, so that what is called in them is text; what NumPy calls alike is no op.
const TOKEN = /#.*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\b(?:np|numpy|math)\.\w+|\b([a-z_]\w*)(?=\()/g;
const LIT = Decoration.line({ class: "gd-cm-lit" });

class Note extends WidgetType {
  override toDOM(): HTMLElement {
    const note = document.createElement("span");
    note.className = "gd-cm-note";
    note.textContent = "the cell has changed since";
    return note;
  }
  override eq(): boolean {
    return true;
  }
}
const CHANGED = Decoration.widget({ widget: new Note(), side: 1 });

const told = StateEffect.define<null>();
const textOf = (view: EditorView): string => view.state.doc.toString().trimEnd();
const isGraph = (view: EditorView): boolean => view.state.sliceDoc(0, HEAD.length) === HEAD;
/** The study that is written in this very text; `undefined` where there is none. */
const writtenIn = (text: string): Written | undefined =>
  [...(page().written?.value.values() ?? [])].find(each => each.text === text);
/** `%%graph mlp --train` -> `%%graph mlp`: the beginning that a changed cell still has. */
const opening = (text: string): string => text.split("\n", 1)[0]!.split(/\s+/, 2).join(" ");

function decorations(view: EditorView): DecorationSet {
  if (!isGraph(view)) return Decoration.none;
  const { doc } = view.state,
    text = textOf(view),
    written = writtenIn(text),
    found: Range<Decoration>[] = [];
  for (const line of written?.lit ?? []) if (line <= doc.lines) found.push(LIT.range(doc.line(line).from));
  const start = opening(text);
  if (!written && [...(page().written?.value.values() ?? [])].some(each => opening(each.text) === start))
    found.push(CHANGED.range(doc.line(1).to));
  for (const { from, to } of view.visibleRanges)
    for (const match of view.state.sliceDoc(from, to).matchAll(TOKEN)) {
      const ink = INK.get(match[1] ?? "");
      if (ink) found.push(ink.range(from + match.index, from + match.index + match[0].length));
    }
  return Decoration.set(found, true);
}

class Lights {
  readonly #view: EditorView;
  decorations: DecorationSet;
  #frame = 0;
  readonly #again = () => {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => isGraph(this.#view) && this.#view.dispatch({ effects: told.of(null) }));
  };

  constructor(view: EditorView) {
    this.#view = view;
    this.decorations = decorations(view);
    page().written?.listeners.add(this.#again);
  }

  update(change: ViewUpdate): void {
    const again = change.transactions.some(each => each.effects.some(effect => effect.is(told)));
    if (change.docChanged || change.viewportChanged || again) this.decorations = decorations(change.view);
  }

  destroy(): void {
    cancelAnimationFrame(this.#frame);
    page().written?.listeners.delete(this.#again);
  }
}

/** A plain click on a line of the cell selects what the line made. */
function click(event: MouseEvent, view: EditorView): void {
  const at = view.posAtCoords({ x: event.clientX, y: event.clientY });
  if (
    at === null ||
    event.button !== 0 ||
    event.altKey ||
    event.ctrlKey ||
    event.metaKey ||
    !isGraph(view) ||
    !view.state.selection.main.empty
  )
    return;
  writtenIn(textOf(view))?.select(view.state.doc.lineAt(at).number, false);
}

export function register(registry: IEditorExtensionRegistry): void {
  const lights = ViewPlugin.fromClass(Lights, { decorations: each => each.decorations });
  const extension = [
    Prec.highest(lights),
    EditorView.domEventHandlers({ click: (event, view) => void click(event, view) }),
  ];
  registry.addExtension({
    name: "gdlab:graph-cells",
    factory: () => EditorExtensionRegistry.createImmutableExtension(extension),
  });
}
