// Marks for boxes beyond the sides of a pane: a fade, and a chip that counts them and goes there.

import type { Camera } from "./camera.ts";
import { div, h } from "./dom.ts";
import { leaving } from "./reach.ts";

const SLACK = 0.6; // of a pixel
const JUMP = 0.8; // of a pane

export class More {
  /** The element behind the camera, which takes no room. */
  readonly el = div("gd-leaving");
  readonly #camera: Camera;
  readonly #chips: HTMLButtonElement[];

  constructor(camera: Camera) {
    this.#camera = camera;
    const chip = (side: string, way: number) =>
      h("button", {
        class: `gd-more gd-more-${side}`,
        type: "button",
        hidden: true,
        on: { click: () => camera.el.scrollBy({ left: way * JUMP * camera.el.clientWidth, behavior: "auto" }) },
      });
    this.#chips = [chip("left", -1), chip("right", 1)];
    this.el.append(...this.#chips);
  }

  /** Count the boxes beyond the sides of the pane now. */
  place(): void {
    const { sight, places, across, down, group } = this.#camera,
      slack = SLACK / group.zoom;
    const gone = leaving(places, { ...sight, left: sight.left - slack, right: sight.right + slack });
    this.el.style.setProperty("--gd-down", `${down}px`);
    this.#chips.forEach((chip, i) => {
      const count = across > 0 ? gone[i]! : 0;
      chip.hidden = count === 0;
      chip.textContent = `${"←→"[i]} ${count} more`;
      chip.ariaLabel = `${count} more at the ${i === 0 ? "left" : "right"}: show`;
    });
  }
}
