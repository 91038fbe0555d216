// The style sheet, inserted once per document (or shadow root), from the module itself.

import text from "all-styles";
import { VERSION } from "../doc/version.ts";

/** Insert the style sheet that the content of `el` needs. */
export function insertStyle(el: HTMLElement): void {
  const root = el.getRootNode(),
    into = root instanceof ShadowRoot ? root : document.head;
  if (into.querySelector(`style[data-gdlab="${VERSION}"]`)) return;
  const style = document.createElement("style");
  style.dataset.gdlab = VERSION;
  style.textContent = text;
  into.append(style);
}
