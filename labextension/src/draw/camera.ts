// Pan and zoom of a picture: a scroller, and a wrapper under a CSS transform. Cameras of one group share their scale.

import type { Rect } from "./cells.ts";
import { boxOf, div, h, handled, listen } from "./dom.ts";
import { MANY, type Picture } from "./graph.ts";

const CLOSEST = 3,
  FARTHEST = 0.02,
  FIT_AT_LEAST = 0.8,
  TALLEST = 524,
  NAMES = 24, // the line with the names of the lanes
  TOO_WIDE = 4; // panes: of such a picture a part says nothing
const STEP = 1.25;

/** What the scale stands for: all of the picture, what can be read of it, or what a person chose. */
type Zoom = "all" | "readable" | "free";

export class CameraGroup {
  zoom = 1;
  state: Zoom = "readable";
  #wish: Zoom | null = null;
  readonly #cameras = new Set<Camera>();

  add(camera: Camera): void {
    this.#cameras.add(camera);
  }
  remove(camera: Camera): void {
    this.#cameras.delete(camera);
  }

  /** Switch between all of the picture and what can be read of it: a scale of 0.8 to 1, and the panes scroll. */
  fit(): void {
    this.#wish = this.#wish === "readable" ? "all" : "readable";
    this.refit();
    this.#cameras.forEach(camera => camera.refound());
  }

  refit(): void {
    this.#cameras.forEach(camera => camera.measure());
    const shown = [...this.#cameras].filter(camera => camera.across > 0);
    if (shown.length === 0) return;
    if (this.#wish === "free") return this.#set(this.zoom);
    const whole = shown.reduce(
      (least, { across, width, height, head }) => Math.min(least, across / width, (TALLEST - head) / height),
      1,
    );
    this.#wish ??= shown.some(({ across, width, picture }) => picture.culled && width > TOO_WIDE * across)
      ? "all"
      : "readable";
    this.state = whole < FIT_AT_LEAST ? this.#wish : "all";
    this.#set(Math.max(this.state === "all" ? FARTHEST : FIT_AT_LEAST, whole));
    shown.forEach(camera => camera.center());
  }

  zoomBy(factor: number, at?: { camera: Camera; x: number; y: number }): void {
    this.state = this.#wish = "free";
    this.#set(Math.min(CLOSEST, Math.max(FARTHEST, this.zoom * factor)), at);
  }

  #set(zoom: number, at?: { camera: Camera; x: number; y: number }): void {
    this.zoom = zoom;
    this.#cameras.forEach(camera => camera.apply(zoom, at?.camera === camera ? at : undefined));
  }
}

export class Camera {
  readonly #redrawn: () => void;
  readonly el: HTMLDivElement;
  readonly width: number;
  readonly height: number;
  readonly head: number;
  readonly #world: HTMLDivElement;
  readonly #sizer: HTMLDivElement;
  readonly #observer: ResizeObserver;
  /** Called when everything was fitted: what is lit is to be found again. */
  refound = () => {};
  /** What of the frame shows the picture, in pixels; 0 where it is hidden. */
  across = 0;
  #down = 0;
  #scale = 1;
  #gesture: ReturnType<typeof setTimeout> | undefined;
  #later = 0;

  constructor(
    readonly group: CameraGroup,
    readonly picture: Picture,
    label: string,
    redrawn: () => void,
  ) {
    this.#redrawn = redrawn;
    this.width = picture.width;
    this.height = picture.height;
    this.head = picture.lanes.length > 0 ? NAMES : 0;
    // The names of lanes stay at the top, readable at every scale.
    const names = picture.lanes.map(({ title, x }) => h("span", { style: `left:calc(${x}px*var(--gd-z))` }, title));
    this.#world = div("gd-world"); // the picture comes with its scale: texts are measured once
    this.#sizer = div("gd-sizer", this.head > 0 && div("gd-lanenames", names), this.#world);
    this.el = h(
      "div",
      {
        class: "gd-camera gd-scroll",
        role: "application",
        "aria-roledescription": "computation graph",
        "aria-label": label,
      },
      this.#sizer,
    );
    listen(this.el, "wheel", event => this.#onWheel(event), { passive: false });
    listen(this.el, "pointerdown", event => this.#onDown(event));
    listen(this.el, "scroll", () => this.seen(), { passive: true });
    this.#observer = new ResizeObserver(() => {
      group.refit();
      this.seen();
    });
    this.#observer.observe(this.el);
    group.add(this);
  }

  destroy(): void {
    this.#observer.disconnect();
    this.group.remove(this);
    clearTimeout(this.#gesture);
    cancelAnimationFrame(this.#later);
  }

  /** It may stand in the page now, and be drawn. */
  placed(): void {
    if (this.el.isConnected) this.group.refit();
  }

  measure(): void {
    this.across = this.el.clientWidth;
    this.#down = this.el.clientHeight;
  }

  /** Draws at another scale; the point `at` of the frame, else its middle, stays where it is. */
  apply(zoom: number, at = { x: this.across / 2, y: this.#down / 2 }): void {
    const fresh = !this.#world.firstChild,
      { scrollLeft, scrollTop } = fresh ? { scrollLeft: 0, scrollTop: 0 } : this.el,
      factor = zoom / this.#scale;
    this.#scale = zoom;
    this.#world.style.transform = zoom === 1 ? "" : `scale(${zoom})`;
    this.#sizer.style.setProperty("--gd-z", String(zoom));
    this.#sizer.style.width = `${this.width * zoom}px`;
    this.#sizer.style.height = `${this.head + this.height * zoom}px`;
    if (fresh) this.#begin();
    else if (factor !== 1)
      this.el.scrollTo((scrollLeft + at.x) * factor - at.x, (scrollTop + at.y - this.head) * factor - at.y + this.head);
    if (!fresh) this.seen();
    // Above 60 boxes small scales drop text; below, everything is always drawn.
    this.el.dataset.zoom = this.group.state;
    this.el.dataset.detail = this.picture.boxes <= MANY || zoom >= 0.6 ? "full" : zoom >= 0.25 ? "op" : "shape";
  }

  /** What part of the picture is in sight, in its own units. */
  get sight(): Rect {
    const { zoom } = this.group,
      { scrollLeft, scrollTop } = this.el;
    return this.#part(scrollLeft / zoom, scrollTop / zoom);
  }

  #part(left: number, top: number): Rect {
    const { zoom } = this.group;
    return {
      left,
      top,
      right: left + (this.across || 1000) / zoom,
      bottom: top + ((this.#down || TALLEST) - this.head) / zoom,
    };
  }

  /** What is in sight comes at once, the rest of a picture in slices after it was painted. */
  #begin(): void {
    this.picture.look(this.#part(0, 0), this.group.zoom);
    this.#world.append(this.picture.svg);
    this.#redrawn();
    let painted = false;
    const more = () => {
      this.#later = requestAnimationFrame(() => {
        if (painted && !this.picture.more()) return this.#redrawn();
        painted = true;
        more();
      });
    };
    if (this.picture.boxes > MANY && !this.picture.culled) more();
  }

  seen(): void {
    if (this.picture.look(this.sight, this.group.zoom)) this.#redrawn();
  }

  inSight({ x, y }: { x: number; y: number }): boolean {
    const { left, top, right, bottom } = this.sight;
    return x >= left && x <= right && y >= top && y <= bottom - 40;
  }

  /** Brings all of these into sight where they fit, else the first. */
  gather(places: readonly { x: number; y: number }[]): void {
    const [first] = places,
      { left, right, top, bottom } = this.sight,
      ys = places.map(({ y }) => y),
      low = Math.min(...ys),
      high = Math.max(...ys) + 40;
    if (!first) return;
    const fits = high - low < bottom - top - 24,
      y = fits ? (low + high) / 2 : first.y;
    if (fits ? low < top || high > bottom : !this.inSight(first))
      this.el.scrollTop = y * this.group.zoom - this.#down / 2;
    if (first.x < left || first.x > right) this.el.scrollLeft = first.x * this.group.zoom - this.across / 2;
    this.seen();
  }

  bring({ x, y }: { x: number; y: number }): void {
    const { zoom } = this.group,
      { left, right } = this.sight;
    this.el.scrollTop = y * zoom - this.#down / 3;
    if (x < left || x > right) this.el.scrollLeft = x * zoom - this.across / 2;
    this.seen();
  }

  /** The point of the picture under a pointer. */
  pointAt(event: MouseEvent): { x: number; y: number } {
    const frame = boxOf(this.el),
      { left, top } = this.sight;
    const inset = Math.max(0, (this.across - this.width * this.group.zoom) / 2);
    return {
      x: left + (event.clientX - frame.left - inset) / this.group.zoom,
      y: top + (event.clientY - frame.top - this.head) / this.group.zoom,
    };
  }

  /** Begin a picture that is wider than its pane at the middle of its axis, lanes at the first lane if it fits. */
  center(): void {
    const axis = this.picture.axis * this.group.zoom;
    if (this.width * this.group.zoom > this.across)
      this.el.scrollLeft = this.head > 0 && axis < 0.9 * this.across ? 0 : axis - this.across / 2;
  }

  #onWheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) return;
    handled(event);
    const frame = boxOf(this.el);
    // A layer of its own during the gesture only: text is drawn sharp again at rest.
    this.#world.style.willChange = "transform";
    clearTimeout(this.#gesture);
    this.#gesture = setTimeout(() => {
      this.#world.style.willChange = "";
    }, 200);
    this.group.zoomBy(Math.exp(-event.deltaY / 300), {
      camera: this,
      x: event.clientX - frame.left,
      y: event.clientY - frame.top,
    });
  }

  #onDown(event: PointerEvent): void {
    if (event.button !== 0) return;
    const { scrollLeft, scrollTop } = this.el,
      { clientX, clientY } = event;
    let dragging = false;
    const move = (to: PointerEvent) => {
      const dx = to.clientX - clientX,
        dy = to.clientY - clientY;
      if (!dragging && Math.hypot(dx, dy) < 4) return;
      dragging = true;
      this.el.dataset.dragging = "";
      this.el.scrollTo(scrollLeft - dx, scrollTop - dy);
    };
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      removeEventListener("pointercancel", up);
      delete this.el.dataset.dragging;
      // The click that ends a drag selects nothing.
      if (dragging) addEventListener("click", stop, { capture: true, once: true });
      setTimeout(() => removeEventListener("click", stop, { capture: true }));
    };
    const stop = (click: MouseEvent) => {
      click.stopPropagation();
      click.preventDefault();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    addEventListener("pointercancel", up);
  }

  static step(group: CameraGroup, way: 1 | -1): void {
    group.zoomBy(way > 0 ? STEP : 1 / STEP);
  }
}
