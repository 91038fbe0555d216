// The metrics of layouts: generated from gdlab/view/layout/metrics.py by metrics_ts.py.
export const ENGINE_VERSION = 2;

// boxes and pills
export const NODE = 40; // height of a node
export const GX = 16; // gap across
export const GY = 32; // gap down
export const ROW = 72;
export const PILL = 18; // height of a pill
export const LINE = 13; // of a box
export const PITCH = 8; // of rails
export const HOPS = 3; // levels of edges that hop over a box of their row

// rows
export const LONG = 6; // rows: a longer edge is a rail
export const TRACKS = 32; // rail tracks per gutter; the last one is shared
export const QUIET = 65536; // added to the depth of a quiet box: right of all others
export const NEAR = 24; // an anchor this close to its only neighbour above is moved exactly below it
export const DUMMY = 8;

// lanes
export const TINT = 16; // from a lane's boxes to the edge of its tint
export const GUTTER = 48; // between the boxes of two lanes, before wires and rails
export const WIRE_TRACKS = 12;
export const WIRE_PITCH = 5;
export const PLACES = 4; // of sources in a row; further ones share the last
export const BESIDE = 2; // adjoints of one op that stand one behind the other in a row, where long chains are folded
export const EVERY_WIRE = 60; // drawn nodes: above it wires end in marks

// texts
export const LINE_CUT = 28; // code points of a line
export const PILL_CUT = 24; // and of a pill
export const FIRST_LETTERS = 4; // code points of a pill's name at the last density
export const ELEMENTS_CUT = 44; // characters of a line of elements
export const WORDS_CUT = 28; // and of words
export const ARROW = "⤳"; // what stands between the name of a leaf and the shape that it is brought into

// Ops of one input that change its shape alone: a parameter that goes through these only is one pill at its reader.
export const SHAPE_OPS = ["broadcast_to", "permute", "reshape", "transpose"];
