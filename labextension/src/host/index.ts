// The front end as one ES module: `mount(el, doc, host)` draws a document, `connect(model)` makes a host.

// Before all else: the style stands at the front of the file, and the code in one piece, which gzip likes.
export { insertStyle } from "../draw/css.ts";

import type { Payload } from "../doc/doc.ts";
import { View } from "./view.ts";
import { followLinks } from "./links.ts";
import { Host, type Model } from "../live/host.ts";
import { page, type Mounted } from "../live/page.ts";

page(); // made now: the engine of a standalone page comes behind this module and finds it
if (typeof document !== "undefined") followLinks();

export { VERSION as version } from "../doc/version.ts";

/** Draw `doc` (plain or compressed; null: the host sends it) into `el`, live with `host` if there is one. */
export function mount(el: HTMLElement, doc: Payload | null, host: Host | null): Mounted {
  const view = new View(el);
  if (doc) view.update(doc);
  if (host) view.goLive(host);
  return view;
}

export const connect = (model: Model): Host => new Host(model);
