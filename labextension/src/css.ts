// The style sheet, inserted once per document (or shadow root), from the module itself.

import base from "./base.css";
import panes from "./panes.css";
import parts from "./parts.css";
import { VERSION } from "./version.ts";

export function insertStyle(el: HTMLElement): void {
  const root = el.getRootNode(),
    into = root instanceof ShadowRoot ? root : document.head;
  if (into.querySelector(`style[data-gdlab="${VERSION}"]`)) return;
  const style = document.createElement("style");
  style.dataset.gdlab = VERSION;
  style.textContent = base + parts + panes;
  into.append(style);
}
