// The cell that a document was written in, for its editor: the lit lines, and the function that selects one
// (editor.ts).

import type { GraphDoc } from "../doc/doc.ts";
import type { Action } from "../panes/state.ts";
import { page, type Written } from "./page.ts";

export class Cell {
  readonly #doc: GraphDoc;
  readonly #act: (action: Action) => void;
  readonly #key: string;
  readonly #source: number;
  #told: Written | null = null;

  constructor(doc: GraphDoc, act: (action: Action) => void) {
    this.#doc = doc;
    this.#act = act;
    this.#key = doc.study ?? doc.id;
    this.#source = doc.sources.findIndex(({ kind, text }) => kind === "cell" && text.startsWith("%%graph"));
  }

  /** The lines that are lit now. */
  tell(lit: ReadonlySet<string>): void {
    const cells = page().written,
      { text } = this.#doc.sources[this.#source] ?? {};
    if (!cells || text === undefined) return;
    const lines = this.#doc.lines.flatMap(({ source, line }, i) =>
      source === this.#source && lit.has(`line:${i}`) ? [line] : [],
    );
    this.#told = { text: text.trimEnd(), lit: new Set(lines), select: (line, add) => this.#select(line, add) };
    cells.value.set(this.#key, this.#told);
    for (const listener of cells.listeners) listener(cells.value);
  }

  leave(): void {
    const cells = page().written;
    if (!cells || !this.#told || cells.value.get(this.#key) !== this.#told) return;
    cells.value.delete(this.#key);
    for (const listener of cells.listeners) listener(cells.value);
  }

  #select(wanted: number, add: boolean): void {
    const entities = this.#doc.lines.flatMap(({ source, line }, i) =>
      source === this.#source && line === wanted ? [`line:${i}`] : [],
    );
    if (entities.length > 0) this.#act({ do: "select", entities, add });
  }
}
