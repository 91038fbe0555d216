// The wheel zooms a picture after a click into it, until the pointer leaves it or Escape is pressed.

import type { Camera, CameraGroup } from "../draw/camera.ts";
import { boxOf, handled, listen } from "../draw/dom.ts";

const LINE = 16; // pixels, where a wheel counts in lines

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
