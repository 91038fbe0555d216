// What all of gdlab in one page shares: `globalThis.gdlab`. The first module that is loaded makes it.

import type { Host, Model } from "./host.ts";
import type { Payload } from "./doc.ts";

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

/** The selection of one study, by names that hold in every document of it. */
export interface Selection {
  value: readonly string[];
  listeners: Set<(value: readonly string[]) => void>;
}

export interface Page {
  /** The front-end module by version: the extension's, or asked from a kernel once. */
  core: Record<string, Promise<CoreModule>>;
  /** The newest living host of each study. */
  hosts: Map<string, Host>;
  /** Calls back with the study's host, now and whenever it changes; returns the function that ends it. */
  when(study: string, callback: Callback): () => void;
  add(study: string, host: Host): void;
  remove(study: string, host: Host): void;
  selections: Map<string, Selection>;
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

/** The selection of a study, or of a document alone, by its key; made at first use, with these names. */
export function selectionNamed(key: string, first: readonly string[] = []): Selection {
  const { selections } = page(),
    made = selections.get(key) ?? { value: first, listeners: new Set() };
  selections.set(key, made);
  return made;
}

export const page = (): Page => ((globalThis as { gdlab?: Page }).gdlab ??= make());
