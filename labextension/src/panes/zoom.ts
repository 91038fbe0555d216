// The zoom of a picture, by buttons and by the wheel.

import { Camera, type CameraGroup } from "../draw/camera.ts";
import { boxOf, h, handled, listen } from "../draw/dom.ts";
import { mini } from "./pane.ts";

const LINE = 16; // pixels, where a wheel counts in lines

export const zoomButtons = (group: CameraGroup): HTMLElement =>
  h(
    "span",
    { class: "gd-zoom", role: "group", "aria-label": "zoom" },
    mini("zoom out", "zoom-out", "\u2212", () => Camera.step(group, -1)),
    mini("fit: what can be read; again: all of it (0)", "zoom-fit", "fit", () => group.fit()),
    mini("zoom in", "zoom-in", "+", () => Camera.step(group, 1)),
  );

/** The wheel zooms after a click into the picture, until the pointer leaves it or Escape is pressed. */
export function zoomAfterClick(camera: Camera, group: CameraGroup): void {
  const { el } = camera;
  const rest = () => delete el.dataset.wheel;
  listen(el, "click", () => (el.dataset.wheel = "zooms"));
  listen(el, "pointerleave", rest);
  listen(el, "keydown", event => event.key === "Escape" && rest());
  listen(
    el,
    "wheel",
    event => {
      if (el.dataset.wheel === undefined || event.ctrlKey || event.metaKey || event.shiftKey) return;
      handled(event);
      const { left, top } = boxOf(el);
      const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : LINE);
      group.zoomBy(Math.exp(-pixels / 300), { camera, x: event.clientX - left, y: event.clientY - top });
    },
    { passive: false, capture: true },
  );
}
