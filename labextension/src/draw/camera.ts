// Pan and zoom of a picture: a scroller, and a wrapper under a CSS transform. Cameras of one group share their scale.

import type { Layout } from "../doc/doc.ts";
import type { Rect } from "./cells.ts";
import { boxOf, div, h, handled, listen } from "./dom.ts";
import { MANY, type Picture } from "./graph.ts";
import { More } from "./more.ts";
import type { Spot } from "./picture.ts";
import { between, ends, fits, holesOf, linesOf, lowest, opening, placesOf, READABLE, ZOOMS } from "./reach.ts";

const CLOSEST = 3,
  FARTHEST = 0.02,
  TALLEST = 524,
  SIDE = 16, // of a picture
  WHOLE_TEXT = 0.85, // a scale at which texts that are larger than the smallest can be read
  EDGE = 3, // pixels that stay free beside what is in sight
  NAMES = 24, // the line with the names of the lanes
  FOOT = 40, // a box, below its top
  NO_PLACES: ReturnType<typeof placesOf> = [];
const STEP = 1.25;

/** The meaning of a scale: the whole picture is shown, as much as can be read, or a person chose it. */
type Zoom = "all" | "readable" | "free";

/** One graph laid out at each density, from all texts to the fewest; the camera shows the first that fits. */
export interface Sheets {
  densities: readonly number[];
  layout(density: number): Layout;
  draw(layout: Layout): Picture;
  /** Called when another density is shown. */
  taken?(layout: Layout): void;
  /** The foot of the row that the picture opens at; null: its top. */
  foot?(layout: Layout): number | null;
  /** Whether a node of the layout is not drawn now. */
  gone?(node: number): boolean;
  /** Called when no density fits; true if another picture will follow. */
  fold?(): boolean;
}

export class CameraGroup {
  zoom = 1;
  state: Zoom = "readable";
  /** Rows of one height stay at one height: the cameras scroll up and down together. */
  level = false;
  #wish: Zoom | null = null;
  #held = false;
  readonly #cameras = new Set<Camera>();

  add(camera: Camera): void {
    this.#cameras.add(camera);
  }
  remove(camera: Camera): void {
    this.#cameras.delete(camera);
  }

  /** Switch between the whole picture and a readable scale of 0.75 to 1, at which the panes scroll. */
  fit(): void {
    this.#wish = this.#wish === "readable" ? "all" : "readable";
    this.#held = false;
    this.refit();
  }

  refit(): void {
    this.#cameras.forEach(camera => camera.measure());
    const shown = [...this.#cameras].filter(camera => camera.across > 0);
    if (shown.length === 0) return;
    if (this.#wish === "free") return this.#set(this.zoom);
    this.#wish ??= "readable";
    if (this.#held) return this.#stay(shown);
    const readable = this.#readable(shown);
    if (readable === null) return;
    const whole = shown.reduce((least, camera) => Math.min(least, camera.whole), 1);
    this.state = whole < READABLE ? this.#wish : "all";
    this.#set(this.state === "readable" ? readable : Math.max(FARTHEST, whole));
    shown.forEach(camera => {
      camera.center();
      camera.refound();
    });
  }

  /** Choose the density of each pane and the scale of all, at which the rows in sight fit; null: a pane folds. */
  #readable(shown: readonly Camera[]): number | null {
    const zooms = shown.map(camera => camera.largest(ZOOMS)),
      zoom = Math.min(...zooms.map(each => each || READABLE));
    // At a smaller scale more rows are in sight: what is shared may ask for fewer texts in a pane.
    const dense = shown.map(camera => camera.densest(zoom));
    shown.forEach((camera, i) => camera.show(dense[i]!));
    const tight = shown.filter(camera => !camera.fitsAt(zoom));
    // The two of a comparison are open alike.
    const folded = (tight.length > 0 && this.level ? shown : tight).filter(camera => camera.fold());
    return folded.length > 0 ? null : zoom;
  }

  /** Bring the others of a comparison to the height of this one. */
  scrolled(moved: Camera): void {
    if (this.level) this.#cameras.forEach(camera => camera !== moved && camera.follow(moved));
  }

  /** Another camera of a comparison, at whose height this one stands. */
  leader(of: Camera): Camera | undefined {
    return this.level ? [...this.#cameras].find(camera => camera !== of && camera.across > 0) : undefined;
  }

  /** Show more at a smaller scale, at which texts can still be read. */
  narrow(zoom: number): void {
    this.#set(zoom);
  }

  /** Keep the scale from now on, so that the rest stays in place when a part of a picture opens or closes. */
  hold(): void {
    this.#held = true;
  }

  #stay(shown: readonly Camera[]): void {
    shown.forEach(camera => camera.show(camera.densest(this.zoom)));
    this.#set(this.zoom);
    shown.forEach(camera => camera.more.place());
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
  readonly #sheets: Sheets | null;
  readonly #world: HTMLDivElement;
  readonly #names = div("gd-lanenames");
  readonly #sizer: HTMLDivElement;
  readonly #observer: ResizeObserver;
  readonly more: More;
  picture: Picture;
  /** Called after a fit, which begins in the middle, to bring into sight again what was asked for. */
  refound = () => {};
  /** The width of the frame that shows the picture, in pixels; 0 while it is hidden. */
  across = 0;
  down = 0;
  density = 0;
  /** The height that the pane leaves to the picture at most; 0 where it sets no limit. */
  #room = 0;
  #layout: Layout | null = null;
  #places = NO_PLACES;
  #folded = false;
  #scale = 1;
  #gesture: ReturnType<typeof setTimeout> | undefined;
  #later = 0;
  #followed = NaN; // where another camera has scrolled this one, until its event comes

  constructor(
    readonly group: CameraGroup,
    picture: Picture,
    label: string,
    redrawn: () => void,
    sheets: Sheets | null = null,
  ) {
    this.#redrawn = redrawn;
    this.#sheets = sheets;
    this.picture = picture;
    this.density = sheets?.densities[0] ?? 0;
    this.#world = div("gd-world"); // the picture comes with its scale: texts are measured once
    this.#sizer = div("gd-sizer", this.head > 0 && this.#names, this.#world);
    this.more = new More(this);
    this.#take(picture, sheets?.layout(this.density) ?? null);
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
    listen(
      this.el,
      "scroll",
      () => {
        this.seen();
        if (this.el.scrollTop !== this.#followed) group.scrolled(this);
        this.#followed = NaN;
      },
      { passive: true },
    );
    this.#observer = new ResizeObserver(() => {
      if (this.el.clientWidth !== this.across || this.el.clientHeight !== this.down) group.refit();
      this.seen();
    });
    this.#observer.observe(this.el);
    group.add(this);
  }

  /** The names of lanes stay at the top, readable at every scale. */
  #take(picture: Picture, layout: Layout | null): void {
    this.picture = picture;
    this.#layout = layout;
    this.#places = layout ? placesOf(layout) : NO_PLACES;
    this.#names.replaceChildren(
      ...picture.lanes.map(({ title, x, width }) => {
        const at = (end: number) => `calc(${end}px*var(--gd-z))`;
        return h("span", { style: `--gd-from:${at(x)};--gd-to:${at(x + width)}` }, title);
      }),
    );
  }

  get width(): number {
    return this.picture.width;
  }
  get height(): number {
    return this.picture.height;
  }
  get head(): number {
    return this.picture.lanes.length > 0 ? NAMES : 0;
  }

  /** The boxes and pills of the picture, in its frame. */
  get places(): ReturnType<typeof placesOf> {
    const gone = this.#sheets?.gone;
    return this.#inFrame(gone ? this.#places.filter(({ node }) => !gone(node!)) : this.#places);
  }

  /** Boxes, pills and the words of brackets, for the parts left of them. */
  get taken(): ReturnType<typeof placesOf> {
    const { bracketed, left, height } = this.picture,
      beside = bracketed ? [{ left: 0, right: -left, top: 0, bottom: height }] : [];
    return this.places.concat(this.#layout ? this.#inFrame(holesOf(this.#layout)) : [], beside);
  }

  #inFrame(places: ReturnType<typeof placesOf>): ReturnType<typeof placesOf> {
    const { left, top } = this.picture;
    return places.map(each => ({
      ...each,
      left: each.left - left,
      right: each.right - left,
      top: each.top - top,
      bottom: each.bottom - top,
    }));
  }

  /** The scale at which all of the picture is in sight. */
  get whole(): number {
    return Math.min(this.across / this.width, (this.#high - this.head) / this.height, 1);
  }

  /** The height that the picture may take, because its frame has none before it is drawn. */
  get #high(): number {
    return Math.max(this.down, this.#room) || TALLEST;
  }

  /** The width of the brackets left of everything, in the picture's units. */
  get #margin(): number {
    const first = this.picture.lanes[0] || this.picture.bracketed ? 0 : -SIDE;
    return Math.max(0, first - this.picture.left);
  }

  #fits(density: number, zoom: number, lines = false): boolean {
    const layout = this.#sheets!.layout(density),
      { bracketed = false } = this.picture,
      places = placesOf(layout).concat(holesOf(layout), lines ? linesOf(layout) : []),
      pane = { across: this.across, down: this.#high - this.head, margin: this.#margin, bracketed };
    return fits(places, this.#sheets!.foot?.(layout) ?? null, pane, zoom);
  }

  /** The largest of these scales at which the fullest density fits that fits at any; 0: none does. */
  largest(zooms: readonly number[]): number {
    if (!this.#sheets) return zooms.find(zoom => this.width * zoom <= this.across) ?? WHOLE_TEXT;
    for (const density of this.#sheets.densities)
      for (const lines of [true, false]) {
        const zoom = zooms.find(each => this.#fits(density, each, lines));
        if (zoom) return zoom;
      }
    return 0;
  }

  /** The fullest density that fits at this scale, else the least. */
  densest(zoom: number): number {
    const densities = this.#sheets?.densities ?? [0];
    return densities.find(density => this.#sheets && this.#fits(density, zoom)) ?? densities.at(-1)!;
  }

  fitsAt(zoom: number): boolean {
    return !this.#sheets || this.#fits(this.density, zoom);
  }

  /** Ask once for a smaller graph. */
  fold(): boolean {
    if (this.#folded) return false;
    this.#folded = true;
    return this.#sheets?.fold?.() ?? false;
  }

  /** Show the graph at another density. */
  show(density: number): void {
    if (!this.#sheets || density === this.density) return;
    const layout = this.#sheets.layout(density),
      fresh = !this.#world.firstChild;
    cancelAnimationFrame(this.#later);
    this.density = density;
    this.#take(this.#sheets.draw(layout), layout);
    if (!fresh) this.#world.replaceChildren();
    this.#sheets.taken?.(layout);
  }

  destroy(): void {
    this.#observer.disconnect();
    this.group.remove(this);
    clearTimeout(this.#gesture);
    cancelAnimationFrame(this.#later);
  }

  /** Draw the picture, which now stands in the page. */
  placed(): void {
    if (this.el.isConnected) this.group.refit();
  }

  measure(): void {
    this.across = this.el.clientWidth;
    this.down = this.el.clientHeight;
    const pane = this.el.closest(".gd-pane"),
      most = pane ? parseFloat(getComputedStyle(pane).maxHeight) : 0;
    this.#room = pane && most > 0 ? most - (boxOf(this.el).top - boxOf(pane).top) : 0;
  }

  /** Draw at another scale; the point `at` of the frame, else its middle or the picture's top, stays where it is. */
  apply(zoom: number, at = { x: this.across / 2, y: this.el.scrollTop > 0 ? this.down / 2 : this.head }): void {
    const fresh = !this.#world.firstChild,
      { scrollLeft, scrollTop } = fresh ? { scrollLeft: 0, scrollTop: 0 } : this.el,
      factor = zoom / this.#scale;
    this.#scale = zoom;
    this.#world.style.transform = zoom === 1 ? "" : `scale(${zoom})`;
    this.#sizer.style.setProperty("--gd-z", String(zoom));
    this.#sizer.style.setProperty("--gd-small", `${9 / Math.max(READABLE, Math.min(1, zoom))}px`);
    this.#sizer.style.width = `${this.width * zoom}px`;
    this.#sizer.style.height = `${this.head + this.height * zoom}px`;
    if (fresh) this.#begin();
    else if (factor !== 1)
      this.el.scrollTo((scrollLeft + at.x) * factor - at.x, (scrollTop + at.y - this.head) * factor - at.y + this.head);
    if (!fresh) this.seen();
    this.el.dataset.density = String(this.density);
    // Above 60 boxes small scales drop text; below, everything is always drawn.
    this.el.dataset.zoom = this.group.state;
    this.el.dataset.detail = this.picture.boxes <= MANY || zoom >= 0.6 ? "full" : zoom >= 0.25 ? "op" : "shape";
  }

  /** Return the part of the picture that is in sight, in the picture's units. */
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
      bottom: top + ((this.down || TALLEST) - this.head) / zoom,
    };
  }

  /** Draw what is in sight at once, the rest in slices after the first paint. */
  #begin(): void {
    this.picture.look(this.#part(0, this.#start), this.group.zoom);
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
    this.more.place();
    if (this.head > 0) this.#names.style.setProperty("--gd-scrolled", `${this.el.scrollLeft}px`);
    if (this.picture.look(this.sight, this.group.zoom)) this.#redrawn();
  }

  /** Scroll to the height of another camera; the scroll event goes no further, and at its end the picture stays. */
  follow({ el, head }: Camera): void {
    if (!this.across || Math.abs(el.scrollTop - head - this.el.scrollTop + this.head) < 1) return;
    const before = this.el.scrollTop;
    this.el.scrollTop = el.scrollTop - head + this.head;
    if (this.el.scrollTop !== before) this.#followed = this.el.scrollTop;
  }

  inSight({ x, y }: { x: number; y: number }): boolean {
    const { left, top, right, bottom } = this.sight;
    return x >= left && x <= right && y >= top && y <= bottom - FOOT;
  }

  /** Bring all of these into sight, at a smaller scale where they are far apart; else the first. */
  gather(places: readonly Spot[]): void {
    const [first] = places;
    if (!first) return;
    const [west, east] = ends(places)!;
    this.#widen(east - west);
    const { zoom } = this.group,
      { left, right, top, bottom } = this.sight,
      side = EDGE / zoom;
    const across = east - west + 2 * side <= right - left ? [west, east] : [first.left, first.right];
    const ys = places.map(({ y }) => y),
      deep = Math.max(...ys) - Math.min(...ys) + FOOT < bottom - top - NAMES,
      down = deep ? [Math.min(...ys), Math.max(...ys)] : [first.y, first.y];
    const [from, to, high, low] = [...across, ...down] as [number, number, number, number];
    if (high < top || low + FOOT > bottom)
      this.el.scrollTop = ((high + low + (deep ? FOOT : 0)) / 2) * zoom - this.down / 2;
    if (from - side < left || to + side > right) this.el.scrollLeft = ((from + to) / 2) * zoom - this.across / 2;
    this.seen();
  }

  /** Choose a smaller scale, at which so much of the picture's width is in sight; none where texts would be lost. */
  #widen(width: number): void {
    const most = (this.across - 2 * EDGE) / width,
      zoom = ZOOMS.find(each => each <= most) ?? most;
    if (most < this.group.zoom && most >= READABLE) this.group.narrow(zoom);
  }

  /** Go to the first of these that is drawn, unless one of them is in sight. */
  seek(entities: readonly string[]): void {
    const places = entities.flatMap(each => this.picture.placeOf(each) ?? []);
    if (places[0] && !places.some(place => this.inSight(place))) this.bring(places[0]);
  }

  bring({ x, y }: { x: number; y: number }): void {
    const { zoom } = this.group,
      { left, right } = this.sight;
    this.el.scrollTop = y * zoom - this.down / 3;
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

  /** The top of what is in sight at the beginning, in the picture's units. */
  get #start(): number {
    const foot = this.#layout && (this.#sheets!.foot?.(this.#layout) ?? null);
    if (foot === null) return 0;
    const [top] = opening(foot - this.picture.top, this.#high - this.head, this.group.zoom);
    return Math.max(0, top);
  }

  /** Begin with the middle of the rows in sight, or the axis, if the picture is wider than its pane; lanes begin as far
   * left as their lowest rows allow. */
  center(): void {
    const { zoom } = this.group,
      start = this.#start,
      axis = this.picture.axis * zoom;
    if (start > 0) this.el.scrollTop = start * zoom;
    if (this.width * zoom > this.across) {
      const places = this.taken,
        seen = (all: typeof places) => between(all, start, start + (this.#high - this.head) / zoom),
        reach = ends(seen(places)),
        low = this.head > 0 ? lowest(seen(places), this.across / zoom) : null;
      if (reach) reach[0] = this.picture.bracketed ? 0 : reach[0] - this.#margin;
      if (reach && (reach[1] - reach[0]) * zoom <= this.across) {
        // Lines are good to see where boxes leave room.
        const all = ends(seen(places.concat(this.#inFrame(linesOf(this.#layout!)))))!,
          middle = ((Math.min(reach[0], all[0]) + all[1]) / 2) * zoom - this.across / 2,
          [least, most] = [reach[1] * zoom + EDGE - this.across, reach[0] * zoom - EDGE];
        this.el.scrollLeft = Math.max(least, Math.min(most, middle));
      }
      // Lanes are read from the loss upwards.
      else this.el.scrollLeft = low ? low[1] * zoom + EDGE - this.across : axis - this.across / 2;
    }
    this.more.place();
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
