// The still picture of an output: shown until the front end is loaded, or where it cannot be.

import type { Payload } from "../doc/doc.ts";

/** The source of an output, to draw it a second time. */
export interface Output {
  doc: Payload;
  study: string;
  /** Its picture and its text; empty where it has none. */
  svg: string;
  text: string;
}

function paragraph(...parts: (string | Node)[]): HTMLElement {
  const made = document.createElement("p");
  made.append(...parts);
  return made;
}

/** The picture and the line below it. */
export function stillPicture(svg: string, note: string): HTMLElement[] {
  const picture = document.createElement("img"); // runs nothing of what it shows
  picture.className = "gd-picture";
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  picture.alt = new DOMParser().parseFromString(svg, "image/svg+xml").querySelector("title")?.textContent ?? "graph";
  picture.style.maxWidth = "100%";
  return [picture, paragraph(`gdlab: ${note}`)];
}

/** Show the picture of an output, else its text, while the front end is loading; return a function that shows why it
 * failed. */
export function meanwhile(el: HTMLElement, { svg, text, doc }: Output, retry: () => void): (error: unknown) => void {
  const shown = document.createElement("div"),
    words = document.createElement("pre");
  shown.className = "gd-still";
  words.textContent = text || String(doc.summary ?? "");
  shown.append(...(svg ? stillPicture(svg, "loading the interactive view …") : [words, paragraph("gdlab: loading …")]));
  el.replaceChildren(shown);
  const said = shown.lastElementChild!;
  said.setAttribute("role", "status");
  return error => {
    const again = document.createElement("button");
    again.textContent = "Retry";
    again.addEventListener("click", retry);
    const reason = error instanceof Error ? error.message : String(error);
    said.replaceChildren(`gdlab: the interactive view could not be loaded (${reason}). `, again);
  };
}
