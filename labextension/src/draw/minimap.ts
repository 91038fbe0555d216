// The overview: all of a large picture in a corner of its pane, with what is in sight as a frame to drag or to move by keys.

import type { Camera } from "./camera.ts";
import type { Layout } from "../doc/doc.ts";
import { div, h, s, boxOf, listen } from "./dom.ts";

const [WIDE, HIGH, THIN] = [132, 112, 28] as const; // of the map
const [ACROSS, DOWN] = [460, 260] as const; // of a pane that has room for it
const PART = 0.25; // of the picture in sight: with less of it the map comes by itself
const MOST = 400; // lit places
const KEYS: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  Home: [0, -1e6],
  End: [0, 1e6],
};

export interface Minimap {
  /** Stands behind the camera; takes no room. */
  el: HTMLElement;
  /** Puts the frame where what is in sight is; where all of it is, or the pane is small, there is no map. */
  place(): void;
  /** What is lit, as dots. */
  light(lit: ReadonlySet<string>): void;
  destroy(): void;
}

/** `wanted`: unless a person has said so, there is a map where most of the picture is out of sight. */
export function minimap(camera: Camera, layout: Layout, wanted: () => boolean | undefined): Minimap {
  const { el, group, picture } = camera,
    { width, height, svg } = picture,
    // Very long pictures are drawn less long: a map of places, not to scale.
    across = Math.max(THIN, Math.min(WIDE, (HIGH * width) / height)),
    down = Math.max(THIN, Math.min(HIGH, (WIDE * height) / width)),
    frame = div("gd-sight"),
    dots = s("path", { class: "gd-there" });
  const drag = ({ buttons, pointerId, clientX, clientY }: PointerEvent) => {
    if (buttons !== 1) return;
    const { left, top } = boxOf(map);
    map.setPointerCapture(pointerId);
    el.scrollTo(
      ((clientX - left) / across) * width * group.zoom - el.clientWidth / 2,
      ((clientY - top) / down) * height * group.zoom - el.clientHeight / 2,
    );
  };
  const key = (event: KeyboardEvent) => {
    const by = KEYS[event.key];
    if (!by || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    el.scrollBy((by[0] * el.clientWidth) / 3, (by[1] * el.clientHeight) / 3);
  };
  const label = "overview: drag, or press arrows, Home, End";
  const map = h("div", {
    class: "gd-map",
    tabindex: 0,
    role: "application",
    "aria-label": label,
    title: label,
    style: `width:${across}px;height:${down}px`,
    on: { pointerdown: drag, pointermove: drag, keydown: key },
  });
  const holder = div("gd-mapped");
  let drawn = false,
    later: ReturnType<typeof setTimeout> | undefined,
    now: ReadonlySet<string> = new Set();
  const place = (): void => {
    const { left, top, right, bottom } = camera.sight,
      deep = (bottom - top) * group.zoom, // asks the page for no more than the camera did
      x = Math.max(0, left / width),
      y = Math.max(0, top / height),
      w = Math.min(1, (right - left) / width),
      t = Math.min(1, (bottom - top) / height),
      on = wanted(),
      part = on ? 0.95 : on === false ? 0 : PART;
    holder.hidden = camera.across < ACROSS || deep < DOWN || w * t >= part;
    if (holder.hidden) return;
    if (!drawn) return on ? draw() : void (later ??= setTimeout(draw, 60)); // the picture itself is painted first
    frame.style.cssText = `translate:${x * across}px ${y * down}px;width:${Math.max(6, w * across)}px;height:${Math.max(6, t * down)}px`;
  };
  /** Two paths, as from far away: edges, boxes. */
  const draw = () => {
    drawn = true;
    const edges = layout.edges.map(({ bends }) => `M${bends.join(" ")}`).join(""),
      block = ({ x, y, w }: { x: number; y: number; w: number }, high: number) => `M${x} ${y}h${w}v${high}h${-w}z`,
      boxes =
        layout.boxes.map(each => (each.row < 0 ? "" : block(each, 40))).join("") +
        layout.pills.map(each => block(each, 18)).join("");
    holder.append(map);
    map.append(
      s(
        "svg",
        { viewBox: svg.getAttribute("viewBox"), preserveAspectRatio: "none", "aria-hidden": true },
        s("path", { class: "gd-strokes", d: edges }),
        s("path", { class: "gd-shape", d: boxes }),
        dots,
      ),
      frame,
    );
    place();
    light(now);
  };
  const light = (lit: ReadonlySet<string>) => {
    now = lit;
    if (!drawn) return;
    const { x, y } = svg.viewBox.baseVal,
      places = [...lit]
        .filter(each => each.startsWith("node:"))
        .slice(0, MOST)
        .flatMap(each => picture.placeOf(each) ?? []);
    dots.setAttribute("d", places.map(each => `M${each.x + x} ${each.y + y}h1`).join(""));
  };
  const observer = new ResizeObserver(place);
  listen(el, "scroll", place, { passive: true, capture: true }); // before the camera changes what is drawn
  observer.observe(el);
  observer.observe(el.firstElementChild!); // its scale
  return {
    el: holder,
    place,
    light,
    destroy: () => {
      observer.disconnect();
      clearTimeout(later);
    },
  };
}
