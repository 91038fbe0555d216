// The picture of a graph that is no stage of the document (a replay, a diff), in a pane of its own.

import { Camera, type CameraGroup } from "../camera.ts";
import type { Layout, Stage } from "../doc.ts";
import { h } from "../dom.ts";
import { drawStage, MANY, type Dress, type Picture } from "../graph.ts";
import { layoutOf, type Laying } from "../layouts.ts";
import type { Context } from "../pane.ts";
import type { PaneKey } from "../state.ts";

export class Canvas {
  readonly el = h("div", { class: "gd-canvas" });
  private camera: Camera | null = null;
  private picture: Picture | null = null;
  #laying: Laying | null = null;

  constructor(
    private readonly context: Context,
    private readonly key: PaneKey,
    private readonly group: CameraGroup,
    private readonly label: string,
  ) {}

  draw(stage: Stage, dress: Dress): void {
    this.destroy();
    const layout = layoutOf(stage, this.context.doc.types);
    if (!("done" in layout)) return this.#put(stage, layout, dress);
    this.#laying = layout;
    this.el.replaceChildren(h("p", { class: "gd-laying" }, `Laying out ${stage.nodes.length} nodes …`));
    layout.done.then(
      done => {
        if (this.#laying !== layout) return;
        this.#put(stage, done, dress);
        this.context.redrawn(this.key);
      },
      () => {},
    );
  }

  /** The graph that is drawn now. */
  stage: Stage | null = null;

  #put(stage: Stage, layout: Layout, dress: Dress): void {
    this.stage = stage;
    const picture = drawStage(this.context.doc, stage, layout, dress);
    const camera = new Camera(this.group, picture.svg, picture.width, picture.height, picture.boxes > MANY, picture.axis, (seen, zoom) => {
      if (picture.look(seen, zoom)) this.context.redrawn(this.key);
    });
    this.picture = picture;
    this.camera = camera;
    const roles = { role: "application", "aria-roledescription": "computation graph", "aria-label": this.label };
    Object.entries(roles).forEach(([name, value]) => camera.el.setAttribute(name, value));
    this.el.replaceChildren(camera.el);
  }

  /** The dress has changed: the same nodes in the same places. */
  again(): void {
    this.picture?.again();
    this.camera?.seen();
  }

  /** Scrolls to these, to the first of them where not all fit. */
  look(entities: readonly string[]): void {
    const { camera, picture } = this;
    if (!camera || !picture) return;
    const places = entities.map(each => picture.placeOf(each)).filter(place => place !== null);
    camera.gather(places);
  }

  join(lit: ReadonlySet<string>): void {
    this.picture?.join(lit);
  }

  destroy(): void {
    this.#laying?.cancel();
    this.camera?.destroy();
    this.#laying = this.camera = this.picture = null;
  }
}
