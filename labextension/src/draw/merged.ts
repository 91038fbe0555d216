// Draw thousands of blocks as a few paths, one per family and one for what is lit; find the block under the pointer.

import { put } from "../doc/format.ts";
import type { Rect } from "./cells.ts";
import { s, svgPath } from "./dom.ts";

export interface Block extends Rect {
  entity: string;
  family: string;
}

const outline = (blocks: readonly Block[]): string =>
  blocks.map(({ left, top, right, bottom }) => `M${left} ${top}H${right}V${bottom}H${left}Z`).join("");

export class Merged {
  readonly el = s("g", { class: "gd-merged" });
  private readonly lit = s("path", { class: "gd-shape", "data-lit": true });
  private blocks: readonly Block[] = [];

  /** Draw these blocks, those of a lit entity above the others. */
  show(blocks: readonly Block[], lit: ReadonlySet<string>): void {
    this.blocks = blocks;
    const families = new Map<string, Block[]>();
    for (const block of blocks) put(families, block.family, block);
    this.el.replaceChildren(
      ...[...families].map(([family, all]) => s("g", { class: family }, svgPath("gd-shape", outline(all)))),
      this.lit,
    );
    this.light(lit);
  }

  light(lit: ReadonlySet<string>): void {
    this.lit.setAttribute("d", outline(this.blocks.filter(({ entity }) => lit.has(entity))));
  }

  /** The entity of the block under a point of the drawing, else of the nearest one within `near`. */
  at(x: number, y: number, near = 0): string | null {
    const off = ({ left, top, right, bottom }: Block) =>
      Math.max(left - x, x - right, 0) + Math.max(top - y, y - bottom, 0);
    let best: Block | null = null;
    for (const block of this.blocks) if (off(block) <= (best ? off(best) - 1e-9 : near)) best = block;
    return best?.entity ?? null;
  }
}
