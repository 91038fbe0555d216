// Move the nodes of a picture that is drawn anew: one stays in place on the screen, the others glide to their new
// places.

import type { Camera } from "./camera.ts";
import { all, boxOf } from "./dom.ts";

export type Places = Map<string, DOMRect>;

const nodesIn = (el: Element): HTMLElement[] => [...all<HTMLElement>(el, ".gd-node:not([data-echo],[data-gone])")];

/** The place of a node, without the second sheet behind a closed group. */
const placeOf = (node: Element): DOMRect => boxOf(node.querySelector(".gd-shape") ?? node);

/** Whether the reader wants motion. */
export const moves = (): boolean => !matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Return the rectangles of all drawn nodes on the screen, by entity; none for a hidden pane. */
export const placesIn = (el: Element): Places =>
  new Map(el.clientWidth > 0 ? nodesIn(el).map(node => [node.dataset.entity!, placeOf(node)]) : []);

/** Choose the node that stays in place: the first of `wanted` that is there before and after, else a middle one. */
function anchor(before: Places, after: Places, wanted: readonly (string | null)[], frame: DOMRect): string | undefined {
  const both = [...before.keys()].filter(each => after.has(each)),
    off = (each: string) => Math.abs(before.get(each)!.y - frame.y - frame.height / 2);
  return (
    wanted.find(each => both.includes(each!)) ??
    both.reduce<string | undefined>((a, b) => (a !== undefined && off(a) <= off(b) ? a : b), undefined)
  );
}

/** The topmost place of these entities. */
function topmost(places: Places, of: ReadonlySet<string>): DOMRect | undefined {
  const found = [...places].flatMap(([entity, place]) => (of.has(entity) ? [place] : []));
  return found.sort((a, b) => a.y - b.y)[0];
}

/** Move nodes from their old places to their new ones in 150 ms; at once where motion is not wanted. Of `toggled`, the
 * boxes of a group that opens or closes, the topmost stays if in sight; the other pane of a comparison follows. */
export function glide(
  camera: Camera,
  before: Places,
  wanted: readonly (string | null)[],
  toggled: ReadonlySet<string> | null = null,
): void {
  if (before.size === 0) return;
  const { el, group } = camera,
    leader = toggled ? undefined : group.leader(camera);
  const after = placesIn(el),
    stays = anchor(before, after, wanted, boxOf(el));
  const frame = boxOf(el),
    top = toggled && topmost(before, toggled),
    seen = top && top.y >= frame.top - top.height && top.y < frame.bottom;
  const now = seen ? topmost(after, toggled!) : after.get(stays!),
    then = seen ? top : before.get(stays!);
  if (leader) camera.follow(leader);
  else if (now && then) el.scrollBy(now.x + now.width / 2 - then.x - then.width / 2, now.y - then.y);
  if (!moves()) return;
  const move = (node: Element, from: Keyframe) => node.animate([from, {}], { duration: 150, easing: "ease-out" });
  for (const node of nodesIn(el)) {
    const { x, y } = placeOf(node),
      then = before.get(node.dataset.entity!);
    if (!then) move(node, { opacity: 0 });
    else if (Math.abs(then.x - x) + Math.abs(then.y - y) > 1)
      move(node, { translate: `${(then.x - x) / group.zoom}px ${(then.y - y) / group.zoom}px` });
  }
  all(el, ".gd-edge").forEach(edge => move(edge, { opacity: 0 }));
}
