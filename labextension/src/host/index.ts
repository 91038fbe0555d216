// The front end as one ES module: `mount(el, doc, host)` draws a document, `connect(model)` makes a host of a widget model.

import type { Payload } from "../doc/doc.ts";
import { Host, type Model } from "../live/host.ts";
import type { Mounted } from "../live/page.ts";
import { View } from "./view.ts";

export { VERSION as version } from "../doc/version.ts";

/** Draws `doc` (plain, or in its compressed output form; null: the host will send it) into `el`, live with `host` if there is one. */
export function mount(el: HTMLElement, doc: Payload | null, host: Host | null): Mounted {
  const view = new View(el);
  if (doc) view.update(doc);
  if (host) view.goLive(host);
  return view;
}

export const connect = (model: Model): Host => new Host(model);
