// Settings that a person saves with a study, in the `view` of its document: bookmarks, additions to pictures.

import type { GraphDoc } from "../doc/doc.ts";
import { page, shared, type Shared } from "./page.ts";

/** A place and a selection by name; entities by names that hold in every document of the study. */
export interface Bookmark {
  name: string;
  tab: string;
  entities: readonly string[];
}

export interface Kept {
  bookmarks?: readonly Bookmark[];
  map?: boolean;
  labels?: boolean;
  /** Shares of the width for the panes of a tab, by the tab and their number: `opt 3`; 0 is a rail. */
  columns?: Readonly<Record<string, readonly number[]>>;
}

export function keptNamed(key: string, first: Kept = {}): Shared<Kept> {
  const all = (page().kept ??= new Map<string, Shared<Kept>>());
  if (all.has(key)) return all.get(key)!;
  const made = shared(all, key, first);
  let before = JSON.stringify(first);
  made.listeners.add(value => {
    const now = JSON.stringify(value);
    if (now !== before) page().save?.(key, value);
    before = now;
  });
  return made;
}

/** One for a study and all its views in a page; a document alone has its own. */
export function keptOf({ study, id, view }: GraphDoc): Shared<Kept> {
  const { bookmarks, map, labels, columns } = view ?? {};
  return keptNamed(study ?? id, JSON.parse(JSON.stringify({ bookmarks, map, labels, columns })) as Kept);
}

/** Keep these settings besides the others, and tell all listeners. */
export function keep(kept: Shared<Kept>, change: Kept): void {
  kept.value = { ...kept.value, ...change };
  for (const listener of [...kept.listeners]) listener(kept.value);
}
