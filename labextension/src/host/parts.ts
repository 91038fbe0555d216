// The parts of the front end in the files of the extension: nothing of them is loaded before it is needed.

import { VERSION } from "../doc/version.ts";
import { page } from "../live/page.ts";

type Core = typeof import("./index.ts");

let loaded: Core | null = null;
let loading: Promise<Core> | null = null;

/** The part that draws, once it is loaded. */
export const core = (): Core | null => loaded;

/** Load the part that draws: once, and again after a failure. */
export function loadCore(): Promise<Core> {
  loading ??= import("./index.ts").then(
    made => {
      made.insertStyle(document.body);
      return (loaded = made);
    },
    (error: unknown) => {
      loading = null;
      throw error;
    },
  );
  return loading;
}

/** Tell the widgets of this page where the front end is: they ask no kernel for it then. */
export function offerParts(): void {
  const { core } = page();
  if (!(VERSION in core)) Object.defineProperty(core, VERSION, { get: loadCore, enumerable: true });
  (page().later ??= {})[VERSION] = () => import("../panes/later.ts");
}
