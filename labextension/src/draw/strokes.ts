// Small drawings of a picture: the arrow head of an edge, the bracket of an open group.

import type { Bracket } from "../doc/groups.ts";
import { shortNames } from "../doc/shortnames.ts";
import { s, svgPath } from "./dom.ts";

export const TRACK = 18; // of brackets

export function arrow(flat: number[]): SVGElement {
  const x = flat.at(-2)!,
    y = flat.at(-1)!,
    dx = x - flat.at(-4)!,
    dy = y - flat.at(-3)!;
  const angle = dy === 0 ? (dx < 0 ? 180 : 0) : dy < 0 ? -90 : 90;
  return svgPath("gd-arrow", "M0 0L-7 -3.5L-7 3.5Z", { transform: `translate(${x} ${y}) rotate(${angle})` });
}

export function bracket({ group, label, track, top, bottom }: Bracket, right: number): SVGGElement {
  const x = right - TRACK * track - 4,
    middle = (top + bottom) / 2,
    most = Math.floor((bottom - top) / 7),
    text = shortNames([label], most).get(label) ?? label;
  return s(
    "g",
    { class: "gd-bracket", "data-group": group, tabindex: -1, role: "button", "aria-label": `close group ${label}` },
    s("title", null, `${label}: click to close`),
    svgPath("gd-hit", `M${x - 12} ${top}H${x + 4}V${bottom}H${x - 12}Z`),
    svgPath("gd-stroke", `M${x + 5} ${top}H${x}V${bottom}H${x + 5}`),
    s(
      "text",
      { class: "gd-type", x: x - 3, y: middle, transform: `rotate(-90 ${x - 3} ${middle})`, "text-anchor": "middle" },
      text,
    ),
  );
}
