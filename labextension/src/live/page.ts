// State that all of gdlab in one page shares, `globalThis.gdlab`; the first module that is loaded makes it.

import type { GraphDoc, Payload, RunSection } from "../doc/doc.ts";
import type { Host, Model } from "./host.ts";
import type { Kept } from "./kept.ts";

export interface Mounted {
  goLive(host: Host): void;
  update(doc: Payload): void;
  destroy(): void;
}
export interface CoreModule {
  mount(el: HTMLElement, doc: Payload | null, host: Host | null): Mounted;
  connect(model: Model): Host;
}
type Callback = (host: Host) => void;

/** A value that all views of one study share, and the listeners to its changes. */
export interface Shared<T> {
  value: T;
  listeners: Set<(value: T) => void>;
}
/** The cell that a study was written in: its text, the lines of it that are lit, and the function that selects a line.
 */
export interface Written {
  text: string;
  lit: ReadonlySet<number>;
  select(line: number, add: boolean): void;
}
/** The selection of one study, by names that hold in every document of it. */
export type Selection = Shared<readonly string[]>;

/** All that an entity of a document came from, and all that came from it. */
export type Lit = (entity: string) => ReadonlySet<string>;

export interface Page {
  /** The front-end module by version: the extension's, or asked from a kernel once. */
  core: Record<string, Promise<CoreModule>>;
  /** The loader of the second part of the front-end module (panes/later.ts), by version; absent where all is in one. */
  later?: Record<string, () => Promise<unknown>>;
  /** The newest living host of each study. */
  hosts: Map<string, Host>;
  /** Calls back with the study's host, now and whenever it changes; returns the function that ends it. */
  when(study: string, callback: Callback): () => void;
  add(study: string, host: Host): void;
  remove(study: string, host: Host): void;
  selections: Map<string, Selection>;
  /** The saved settings of each study; absent where an older module made the page. */
  kept?: Map<string, Shared<Kept>>;
  /** The cells that the studies of this page were written in; absent where an older module made the page. */
  written?: Shared<Map<string, Written>>;
  /** Writes saved settings into the outputs of a study, so that a saved notebook holds them; where the host can. */
  save?(key: string, kept: Kept): void;
  /** Makes the model of a page that computes a document's steps itself; absent where the page has no engine. */
  engine?(): Promise<(doc: GraphDoc, run: RunSection, lit: Lit) => Model>;
  /** Opens the view that holds an element a second time, beside the notebook; where the host can. */
  beside?(el: Element): void;
}

function make(): Page {
  const waiting = new Map<string, Set<Callback>>(),
    all = new Map<string, Host[]>();
  const set = (study: string, hosts: Host[]) => {
    const newest = hosts.at(-1);
    all.set(study, hosts);
    if (newest === made.hosts.get(study)) return;
    if (!newest) return void made.hosts.delete(study);
    made.hosts.set(study, newest);
    [...(waiting.get(study) ?? [])].forEach(callback => callback(newest));
  };
  const made: Page = {
    core: {},
    hosts: new Map(),
    selections: new Map(),
    written: { value: new Map(), listeners: new Set() },
    when(study, callback) {
      const callbacks = waiting.get(study) ?? new Set();
      waiting.set(study, callbacks.add(callback));
      const host = made.hosts.get(study);
      if (host) callback(host);
      return () => callbacks.delete(callback);
    },
    add: (study, host) => set(study, [...(all.get(study) ?? []), host]),
    remove: (study, host) =>
      set(
        study,
        (all.get(study) ?? []).filter(each => each !== host),
      ),
  };
  return made;
}

/** Return the shared value under a key; at first use it is made with the value `first`. */
export function shared<T>(all: Map<string, Shared<T>>, key: string, first: T): Shared<T> {
  const made = all.get(key) ?? { value: first, listeners: new Set() };
  all.set(key, made);
  return made;
}

/** The selection of a study, or of a document alone, by its key. */
export const selectionNamed = (key: string, first: readonly string[] = []): Selection =>
  shared(page().selections, key, first);

export const page = (): Page => ((globalThis as { gdlab?: Page }).gdlab ??= make());
