// The panes by key. The front end comes in two parts: the pictures of graphs at once, the other panes (later.ts) when
// one of them is first needed, from wherever the page has the second part.

import { VERSION } from "../doc/version.ts";
import { page } from "../live/page.ts";
import { afterPane, beforePane, lanesPane } from "./graphs.ts";
import type { PaneRecord } from "./pane.ts";
import type { PaneKey } from "./state.ts";

const records = new Map<PaneKey, PaneRecord>();
let coming: Promise<unknown> | null = null;

export function addPanes(...added: PaneRecord[]): void {
  for (const each of added) records.set(each.key, each);
}

addPanes(beforePane, afterPane, lanesPane);

/** The record of a pane; undefined while its part of the front end is not loaded. */
export const recordOf = (key: PaneKey): PaneRecord | undefined => records.get(key);

/** Load the second part: once, and again after a failure. */
export function laterPart(): Promise<unknown> {
  const load = page().later?.[VERSION];
  coming ??= (load?.() ?? Promise.reject(new Error("this page holds no second part"))).catch((error: unknown) => {
    coming = null;
    throw error;
  });
  return coming;
}
