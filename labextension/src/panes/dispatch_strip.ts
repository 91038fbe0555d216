// A strip of bars: all dispatches in order, one band per barrier group, height by bytes moved.

import type { DispatchRecord, Plan } from "../doc/doc.ts";
import { bytes } from "../doc/format.ts";
import { boxOf, div, h, listen, s } from "../draw/dom.ts";
import { familyClass } from "../draw/labels.ts";
import { Merged } from "../draw/merged.ts";
import { bytesMoved, groupReason, timeText } from "./dispatch_words.ts";
import { entity } from "./pane.ts";

const DENSE = 400; // bars that are elements of their own

const height = (dispatch: DispatchRecord, most: number): number => 4 + 17 * Math.sqrt(bytesMoved(dispatch) / most);

export interface Strip {
  el: HTMLElement;
  light(lit: ReadonlySet<string>): void;
}

/** Draw bars in order, as wide as their time (`byTime`) or all alike; many bars become a few shapes in one drawing. */
export function dispatchStrip(plan: Plan, byTime: boolean): Strip {
  const most = plan.dispatches.reduce((max, each) => Math.max(max, bytesMoved(each)), 1);
  const width = byTime ? "width by time, " : "";
  const label = `dispatches in order, ${width}one band per barrier group, height by bytes moved`;
  const wide = (k: number) => (byTime ? plan.times!.median[k]! * 1e6 : 1);
  if (plan.dispatches.length > DENSE) return denseStrip(plan, most, label, wide);
  const bar = (dispatch: DispatchRecord, k: number) =>
    h(
      "span",
      {
        class: `gd-tick ${familyClass(dispatch.family)}`,
        ...entity(`dispatch:${k}`, `dispatch ${k}, ${dispatch.label}`),
        style: `flex-grow:${wide(k)}`,
        title:
          `${k} ${dispatch.label}\n${bytes(bytesMoved(dispatch))} moved` +
          (plan.times ? `\n${timeText(plan.times, k)}` : ""),
      },
      h("span", { style: `height:${height(dispatch, most).toFixed(1)}px` }),
    );
  const groups = plan.groups.length > 0 ? plan.groups : [{ start: 0, stop: plan.dispatches.length, because: null }];
  const el = h(
    "div",
    { class: "gd-strip", "data-dense": plan.dispatches.length > 100, "aria-label": label },
    ...groups.map((group, g) => {
      const inside = plan.dispatches.slice(group.start, group.stop);
      const width = inside.reduce((sum, _, i) => sum + wide(group.start + i), 0);
      return h(
        "span",
        {
          class: "gd-band",
          style: `flex-grow:${width}`,
          title: `group ${g}${group.because?.length ? `\n${groupReason(plan, group)}` : ""}`,
        },
        ...inside.map((dispatch, i) => bar(dispatch, group.start + i)),
      );
    }),
  );
  return { el, light: () => {} };
}

function denseStrip(plan: Plan, most: number, label: string, wide: (k: number) => number): Strip {
  const merged = new Merged(),
    ends = plan.dispatches.map((_, k) => wide(k));
  ends.forEach((each, k) => (ends[k] = each + (ends[k - 1] ?? 0)));
  merged.show(
    plan.dispatches.map((dispatch, k) => ({
      left: ends[k - 1] ?? 0,
      right: ends[k]!,
      top: 22 - height(dispatch, most),
      bottom: 22,
      entity: `dispatch:${k}`,
      family: familyClass(dispatch.family),
    })),
    new Set(),
  );
  const svg = s(
    "svg",
    {
      class: "gd-densestrip",
      viewBox: `0 0 ${ends.at(-1)} 22`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    merged.el,
  );
  // The bar under the pointer is the entity of the drawing while the pointer is there.
  const at = (event: MouseEvent) => {
    const { left, width } = boxOf(svg),
      x = ((event.clientX - left) / width) * ends.at(-1)!;
    svg.dataset.entity = `dispatch:${Math.max(
      0,
      ends.findIndex(end => x < end),
    )}`;
  };
  listen(svg, "pointerdown", at);
  listen(svg, "click", event => (at(event), setTimeout(() => delete svg.dataset.entity)));
  return { el: div("gd-strip", svg), light: lit => merged.light(lit) };
}
