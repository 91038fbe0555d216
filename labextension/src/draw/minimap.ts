// The overview: a large picture in a corner of its pane; a frame in it shows the part in sight and moves it.

import type { Layout } from "../doc/doc.ts";
import type { Camera } from "./camera.ts";
import { boxOf, div, h, handled, listen, s, svgPath } from "./dom.ts";

const [WIDE, HIGH, THIN] = [132, 112, 28] as const; // of the map
const [ACROSS, DOWN] = [460, 260] as const; // of a pane that has room for it
const NARROW = 240; // of a pane that has room where the map hides nothing, or is asked for
const PART = 0.25; // of the picture in sight: with less of it the map comes even if it stands on boxes
const NEARLY = 0.95; // of the picture in sight: nothing of it is missed
const INSET = 14; // from the edges of the pane
const CORNERS = [
  [1, 1],
  [0, 1],
  [1, 0],
  [0, 0],
] as const; // right and bottom first
const MOST = 400; // lit places
type Three = [number, number, number];
const KEYS: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  Home: [0, -1e6],
  End: [0, 1e6],
};

interface Block {
  x: number;
  y: number;
  w: number;
}
const block = ({ x, y, w }: Block, height: number): string => `M${x} ${y}h${w}v${height}h${-w}z`;

/** Edges and boxes of a layout, each as the text of one path. */
function outlines({ edges, boxes, pills }: Layout): { edges: string; boxes: string } {
  const shown = boxes.filter(({ row }) => row >= 0),
    shapes = [...shown.map(each => block(each, each.h ?? 40)), ...pills.map(each => block(each, 18))];
  return { edges: edges.map(({ bends }) => `M${bends.join(" ")}`).join(""), boxes: shapes.join("") };
}

export class Minimap {
  /** The element behind the camera, which takes no room. */
  readonly el = div("gd-mapped");
  readonly #camera: Camera;
  readonly #layout: Layout;
  readonly #wanted: () => boolean | undefined;
  // Very long pictures are drawn less long: a map of places, not to scale.
  readonly #across: number;
  readonly #down: number;
  readonly #map: HTMLElement;
  readonly #frame = div("gd-sight");
  readonly #dots = s("path", { class: "gd-there" });
  readonly #observer = new ResizeObserver(() => this.place());
  #drawn = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #lit: ReadonlySet<string> = new Set();

  /** `wanted`: unless a person has said so, there is a map where a part of the picture is out of sight: in a corner
   * without boxes, and where most is out of sight in any. */
  constructor(camera: Camera, layout: Layout, wanted: () => boolean | undefined) {
    const { el, picture } = camera;
    const { width, height } = picture;
    this.#camera = camera;
    this.#layout = layout;
    this.#wanted = wanted;
    this.#across = Math.max(THIN, Math.min(WIDE, (HIGH * width) / height));
    this.#down = Math.max(THIN, Math.min(HIGH, (WIDE * height) / width));
    const label = "overview: drag, or press arrows, Home, End";
    const drag = (event: PointerEvent) => this.#drag(event);
    this.#map = h("div", {
      class: "gd-map",
      tabindex: 0,
      role: "application",
      "aria-label": label,
      title: label,
      style: `width:${this.#across}px;height:${this.#down}px`,
      on: { pointerdown: drag, pointermove: drag, keydown: (event: KeyboardEvent) => this.#key(event) },
    });
    // Before the camera changes what is drawn: capture.
    listen(el, "scroll", () => this.place(), { passive: true, capture: true });
    this.#observer.observe(el);
    this.#observer.observe(el.firstElementChild!); // its scale
  }

  /** Put the frame around the part in sight; hide the map if that is all, or the pane is small. */
  place(): void {
    const { sight, group, picture, across } = this.#camera;
    const { left, top, right, bottom } = sight;
    const { width, height } = picture;
    const on = this.#wanted();
    const corner = across < NARROW || group.state === "all" ? null : this.#corner();
    const part = on || corner ? NEARLY : PART;
    const deep = (bottom - top) * group.zoom; // asks the page for no more than the camera did
    const wide = Math.min(1, (right - left) / width);
    const high = Math.min(1, (bottom - top) / height);
    const least = on || corner ? NARROW : ACROSS;
    this.el.hidden = on === false || across < least || deep < DOWN || wide * high >= part;
    if (this.el.hidden) return;
    const [toRight, toBottom] = corner ?? CORNERS[0];
    this.#map.style.right = `${toRight ? INSET : across - this.#across - INSET}px`;
    this.#map.style.bottom = `${toBottom ? INSET : deep - this.#down - INSET}px`;
    if (this.#drawn) return this.#placeFrame(Math.max(0, left / width), Math.max(0, top / height), wide, high);
    if (on) this.#draw();
    else this.#timer ??= setTimeout(() => this.#draw(), 60); // the picture itself is painted first
  }

  /** A corner of the pane in which the map hides no box and no words. */
  #corner(): (typeof CORNERS)[number] | null {
    const { sight, group, picture, taken } = this.#camera;
    // A picture that is narrower than its pane stands in the middle of it.
    const slack = Math.max(0, (sight.right - sight.left - picture.width) / 2);
    const [width, height, inset] = [this.#across, this.#down, INSET].map(each => each / group.zoom) as Three;
    const free = CORNERS.find(([right, bottom]) => {
      const x = (right ? sight.right - inset - width : sight.left + inset) - slack;
      const y = bottom ? sight.bottom - inset - height : sight.top + inset;
      return !taken.some(
        each => each.left < x + width && each.right > x && each.top < y + height && each.bottom > y,
      );
    });
    return free ?? null;
  }

  /** Draw lit nodes as dots. */
  light(lit: ReadonlySet<string>): void {
    this.#lit = lit;
    if (!this.#drawn) return;
    const { picture } = this.#camera;
    const { x, y } = picture.svg.viewBox.baseVal;
    const places = [...lit]
      .filter(each => each.startsWith("node:"))
      .slice(0, MOST)
      .flatMap(each => picture.placeOf(each) ?? []);
    this.#dots.setAttribute("d", places.map(each => `M${each.x + x} ${each.y + y}h1`).join(""));
  }

  destroy(): void {
    this.#observer.disconnect();
    clearTimeout(this.#timer);
  }

  /** The frame, in parts of the picture. */
  #placeFrame(x: number, y: number, width: number, height: number): void {
    const { style } = this.#frame;
    style.translate = `${x * this.#across}px ${y * this.#down}px`;
    style.width = `${Math.max(6, width * this.#across)}px`;
    style.height = `${Math.max(6, height * this.#down)}px`;
  }

  #draw(): void {
    const viewBox = this.#camera.picture.svg.getAttribute("viewBox");
    const { edges, boxes } = outlines(this.#layout);
    this.#drawn = true;
    this.el.append(this.#map);
    this.#map.append(
      s(
        "svg",
        { viewBox, preserveAspectRatio: "none", "aria-hidden": true },
        svgPath("gd-strokes", edges),
        svgPath("gd-shape", boxes),
        this.#dots,
      ),
      this.#frame,
    );
    this.place();
    this.light(this.#lit);
  }

  #drag({ buttons, pointerId, clientX, clientY }: PointerEvent): void {
    if (buttons !== 1) return;
    const { el, group, picture } = this.#camera;
    const { left, top } = boxOf(this.#map);
    this.#map.setPointerCapture(pointerId);
    el.scrollTo(
      ((clientX - left) / this.#across) * picture.width * group.zoom - el.clientWidth / 2,
      ((clientY - top) / this.#down) * picture.height * group.zoom - el.clientHeight / 2,
    );
  }

  #key(event: KeyboardEvent): void {
    const by = KEYS[event.key];
    if (!by || event.altKey) return;
    const { el } = this.#camera;
    handled(event);
    el.scrollBy((by[0] * el.clientWidth) / 3, (by[1] * el.clientHeight) / 3);
  }
}
