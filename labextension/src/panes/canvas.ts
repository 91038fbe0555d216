// The picture of a graph that is no stage of the document (a replay, a diff), in a pane of its own.

import type { Layout, Stage } from "../doc/doc.ts";
import { Camera, type CameraGroup, type Sheets } from "../draw/camera.ts";
import { div, paragraph } from "../draw/dom.ts";
import { drawStage, type Dress, type Picture } from "../draw/graph.ts";
import { Minimap } from "../draw/minimap.ts";
import { glide, placesIn, type Places } from "../draw/motion.ts";
import { layoutOf, type Laying } from "../layout/layouts.ts";
import { keptOf } from "../live/kept.ts";
import type { Context } from "./pane.ts";
import type { PaneKey } from "./state.ts";
import { zoomAfterClick } from "./zoom.ts";

export class Canvas {
  readonly #context: Context;
  readonly #key: PaneKey;
  readonly #group: CameraGroup;
  readonly #label: string;
  readonly el = div("gd-canvas");
  #camera: Camera | null = null;
  #picture: Picture | null = null;
  #map: Minimap | null = null;
  /** What was scrolled to last. */
  #looked: readonly string[] = [];
  #laying: Laying | null = null;

  constructor(context: Context, key: PaneKey, group: CameraGroup, label: string) {
    this.#context = context;
    this.#key = key;
    this.#group = group;
    this.#label = label;
  }

  draw(stage: Stage, dress: Dress): void {
    const before = placesIn(this.el);
    this.destroy();
    const layout = layoutOf(stage, this.#context.doc.types);
    if (!("done" in layout)) return this.#put(stage, layout, dress, before);
    this.#laying = layout;
    this.el.replaceChildren(paragraph("gd-laying", `Laying out ${stage.nodes.length} nodes …`));
    layout.done.then(
      done => {
        if (this.#laying !== layout) return;
        this.#put(stage, done, dress, before);
        this.#context.redrawn(this.#key);
      },
      () => {},
    );
  }

  /** The graph that is drawn now. */
  stage: Stage | null = null;

  #put(stage: Stage, layout: Layout, dress: Dress, before: Places): void {
    this.stage = stage;
    const picture = drawStage(this.#context.doc, stage, layout, dress);
    const sheets: Sheets = {
      densities: [0],
      layout: () => layout,
      draw: () => picture,
      gone: index => Boolean(dress.node?.(index)["data-gone"]),
    };
    const camera = new Camera(this.#group, picture, this.#label, () => this.#context.redrawn(this.#key), sheets);
    this.#picture = picture;
    this.#camera = camera;
    this.#map = new Minimap(camera, layout, () => keptOf(this.#context.doc).value.map);
    this.#looked = [];
    camera.refound = () => this.look(this.#looked);
    zoomAfterClick(camera, this.#group);
    this.el.replaceChildren(camera.el, camera.more.el, this.#map.el);
    camera.placed();
    glide(camera, before, this.#context.ui().selected);
  }

  /** Draw these nodes, else all, again in the same places, after a change of their dress. */
  again(changed?: ReadonlySet<number>): void {
    if (this.#picture?.again(changed) === false) this.#camera!.seen();
    this.#camera?.more.place();
  }

  /** Scroll to these, or to the first of them if not all fit. */
  look(entities: readonly string[]): void {
    this.#looked = entities;
    const camera = this.#camera;
    const picture = this.#picture;
    if (!camera || !picture) return;
    camera.gather(entities.flatMap(each => picture.placeOf(each) ?? []));
  }

  seek(entities: readonly string[]): void {
    this.#camera?.seek(entities);
  }

  join(lit: ReadonlySet<string>): void {
    this.#picture?.join(lit);
    this.#map?.place();
    this.#map?.light(lit);
  }

  destroy(): void {
    this.#laying?.cancel();
    this.#camera?.destroy();
    this.#map?.destroy();
    this.#laying = this.#camera = this.#picture = this.#map = null;
  }
}
