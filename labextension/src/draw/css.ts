// The style sheet, inserted once per document (or shadow root), from the module itself.

import { gunzip } from "../doc/gunzip.ts";
import packed from "packed-styles";
import { VERSION } from "../doc/version.ts";

let sheet: Promise<string> | null = null;

/** Resolves when what stands in `el` can be drawn. */
export async function insertStyle(el: HTMLElement): Promise<void> {
  const text = await (sheet ??= gunzip(packed)),
    root = el.getRootNode(),
    into = root instanceof ShadowRoot ? root : document.head;
  if (into.querySelector(`style[data-gdlab="${VERSION}"]`)) return;
  const style = document.createElement("style");
  style.dataset.gdlab = VERSION;
  style.textContent = text;
  into.append(style);
}
