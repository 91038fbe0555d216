// The handle below a view in a cell: dragged or moved by keys, it gives the panes another height.

import type { GraphDoc } from "../doc/doc.ts";
import { h, handled, listen } from "../draw/dom.ts";

const LEAST = 200,
  MOST = 4000,
  STEP = 40;

/** Give the panes of a view this height, and those of a later document in it. */
function setHeight(doc: GraphDoc, root: HTMLElement, handle: HTMLElement, wanted: number): void {
  const height = Math.round(Math.min(MOST, Math.max(LEAST, wanted)));
  doc.view = { ...doc.view, height, tall: true };
  root.style.setProperty("--gd-height", `${height}px`);
  root.dataset.tall = "";
  handle.ariaValueNow = String(height);
}

export function heightHandle(doc: GraphDoc, root: HTMLElement, panes: HTMLElement): HTMLElement {
  const handle = h("div", {
    class: "gd-heighthandle",
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": "height of the view",
    "aria-valuemin": LEAST,
    "aria-valuemax": MOST,
    title: "drag, or arrow keys: the height of the view",
  });
  const set = (wanted: number) => setHeight(doc, root, handle, wanted);
  if (doc.view?.tall && doc.view.height) set(doc.view.height);
  listen(handle, "keydown", event => {
    const by = { ArrowUp: -STEP, ArrowDown: STEP }[event.key];
    if (by === undefined) return;
    handled(event);
    set(panes.offsetHeight + by);
  });
  listen(handle, "click", handled);
  listen(handle, "pointerdown", event => {
    if (event.button !== 0) return;
    const before = panes.offsetHeight;
    handle.setPointerCapture(event.pointerId);
    const move = (to: PointerEvent) => set(before + to.clientY - event.clientY);
    const up = () => {
      handle.removeEventListener("pointermove", move);
      handle.removeEventListener("pointerup", up);
      handle.removeEventListener("pointercancel", up);
    };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("pointerup", up);
    handle.addEventListener("pointercancel", up);
  });
  return handle;
}
