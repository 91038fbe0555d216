// The texts of a pill at each density: 0 all texts; 1 no types on pills; 2 none on boxes either; 3 shortened names of
// pills.

import { ARROW, FIRST_LETTERS, PILL_CUT } from "./metrics.ts";

export const cut = (text: string, most: number): string =>
  Array.from(text).length <= most
    ? text
    : `${Array.from(text)
        .slice(0, most - 1)
        .join("")}…${text.includes("\u2068") ? "\u2069" : ""}`;

/** Cut a text at its left, behind "…", because paths differ at their end. */
export function cutLeft(text: string, most: number): string {
  const points = Array.from(text);
  return points.length <= most ? text : `${text.includes("\u2068") ? "\u2068" : ""}…${points.slice(1 - most).join("")}`;
}

/** The name on a pill. */
export const pillLabel = (name: string, density: number): string =>
  density < 3 ? cut(name, PILL_CUT) : initials(name);

/** Abbreviate a name to a few letters: `u_p` for `up_proj`, `e.w` for `model.embed_tokens.weight`, `e.f1` for
 * `encoder.fc1`, `tar…` for `target`. */
function initials(name: string): string {
  if (Array.from(name).length <= FIRST_LETTERS || name.includes("\u2068")) return cut(name, FIRST_LETTERS);
  for (const mark of [".", "_"]) {
    const parts = name.split(mark).filter(part => part !== "");
    if (parts.length > 1)
      return parts
        .slice(-2)
        .map(part => Array.from(part))
        .map(([first, ...rest]) => first + /[0-9]{0,2}$/.exec(rest.join(""))![0])
        .join(mark);
  }
  return cut(name, FIRST_LETTERS);
}

/** Return the text behind the name on a pill: its type, or an arrow and the shape that the leaf is brought into. */
export function pillTail(type: string, via: boolean, echo: boolean, density: number): string {
  const bare = echo || density > 0;
  if (via) return bare ? ARROW : `${ARROW} ${type.slice(Math.max(0, type.indexOf("[")))}`;
  return bare ? "" : type;
}
