// The picture of a graph, as a pane sees it, and the attributes that a pane gives to its nodes and edges.

import type { Bracket } from "../doc/groups.ts";
import type { Rect } from "./cells.ts";

/** The middle of a box, its top, and its sides. */
export interface Spot {
  x: number;
  y: number;
  left: number;
  right: number;
}

export interface Picture {
  svg: SVGSVGElement;
  width: number;
  height: number;
  /** The left edge of the picture's frame, in the layout's units. */
  left: number;
  top: number;
  boxes: number;
  /** Brackets of open groups stand left of everything. */
  bracketed?: boolean;
  /** Whether only the part in sight is drawn. */
  culled: boolean;
  /** The names of the lanesand their places. */
  lanes: { title: string; x: number; width: number }[];
  /** x that stands in the middle of a pane that is too narrow; 0 for lanes, which are read from the left. */
  axis: number;
  /** Marks the edges between two lit nodes; the nodes themselves are marked by the view. */
  join(lit: ReadonlySet<string>): void;
  /** Marks the edges of the node under the pointer. */
  hover(entity: string | null): void;
  /** Draws the items in a rectangle of the frame at this scale; true when that changed what is drawn. */
  look(seen: Rect, zoom: number): boolean;
  /** Draws some more of a picture that is to be drawn whole; true while there is more to draw. */
  more(): boolean;
  /** Returns the place of an entity in the frame, drawn or not. */
  placeOf(entity: string): Spot | null;
  /** Draws these nodes again, else everything, after a change of dress. False: call `look` as well. */
  again(changed?: ReadonlySet<number>): boolean;
  /** The entity at a point of the frame, where boxes are drawn as mere shapes. */
  at(x: number, y: number): string | null;
}

/** Additions to a picture: attributes of a node (overlay, class of a diff), a class of an edge, brackets. */
export interface Dress {
  node?(index: number): Record<string, unknown>;
  edge?(a: number, b: number): string;
  /** Words beside an edge. */
  note?(a: number, b: number): string;
  told?(index: number): string;
  letter?(index: number): string;
  /** Open groups, drawn as brackets left of everything. */
  brackets?: readonly Bracket[];
  /** The nodes behind each node that is drawn, for a picture with closed groups. */
  members?: readonly (readonly number[])[];
}
