// What a person keeps in the `view` of a study's document: bookmarks, and what is shown beside pictures.

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
}

export const keptNamed = (key: string, first: Kept = {}): Shared<Kept> =>
  shared((page().kept ??= new Map<string, Shared<Kept>>()), key, first);

/** One for a study and all its views in a page; a document alone has its own. */
export function keptOf({ study, id, view }: GraphDoc): Shared<Kept> {
  const { bookmarks, map, labels } = view ?? {};
  return keptNamed(study ?? id, JSON.parse(JSON.stringify({ bookmarks, map, labels })) as Kept);
}

/** Keeps this, too, and tells everybody. */
export function keep(kept: Shared<Kept>, change: Kept): void {
  kept.value = { ...kept.value, ...change };
  for (const listener of [...kept.listeners]) listener(kept.value);
}
