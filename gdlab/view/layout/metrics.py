"""The metrics of layouts: the integers that Python and the page share (`labextension/src/doc/metrics.ts`)."""

from __future__ import annotations

ENGINE_VERSION = 2

# boxes and pills
NODE = 40  # height of a node
GX = 16  # gap across
GY = 32  # gap down
ROW = NODE + GY
PILL = 18  # height of a pill
LINE = 13  # of a box
PITCH = 8  # of rails
HOPS = 3  # levels of edges that hop over a box of their row

# rows
LONG = 6  # rows: a longer edge is a rail
TRACKS = 32  # rail tracks per gutter; the last one is shared
QUIET = 1 << 16  # added to the depth of a quiet box: right of all others
NEAR = 24  # an anchor this close to its only neighbour above is moved exactly below it
DUMMY = 8

# lanes
TINT = 16  # from a lane's boxes to the edge of its tint
GUTTER = 48  # between the boxes of two lanes, before wires and rails
WIRE_TRACKS = 12
WIRE_PITCH = 5
PLACES = 4  # of sources in a row; further ones share the last
BESIDE = 2  # adjoints of one op that stand one behind the other in a row, where long chains are folded
EVERY_WIRE = 60  # drawn nodes: above it wires end in marks

# texts
LINE_CUT = 28  # code points of a line
PILL_CUT = 24  # and of a pill
FIRST_LETTERS = 4  # code points of a pill's name at the last density
ELEMENTS_CUT = 44  # characters of a line of elements
WORDS_CUT = 28  # and of words
ARROW = "⤳"  # what stands between the name of a leaf and the shape that it is brought into

# Ops of one input that change its shape alone: a parameter that goes through these only is one pill at its reader.
SHAPE_OPS = ("broadcast_to", "permute", "reshape", "transpose")
