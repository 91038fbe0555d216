"""The graph built so far and the op that was refused, in red: a `%%graph` cell shows it beside its error line."""

from __future__ import annotations

import hashlib

from gdlab.base.errors import GdlabError
from gdlab.base.words import plural
from gdlab.graph import Graph, Value
from gdlab.view.document.stage_table import family
from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.layered import auto
from gdlab.view.picture.draw import NodeStyle
from gdlab.view.picture.palette import INK, Theme, family_ink, mix
from gdlab.view.picture.svg import svg_panes

_FAMILY = "elementwise"
_ENTITY = "refused"
_FILL = 0.12


def refused_operands(error: BaseException) -> tuple[Value, ...]:
    """Return the operands of the refused op, if the error knows it and all of them are of one graph."""
    operands = getattr(error, "operands", ())
    return operands if operands and all(v.graph is operands[0].graph for v in operands) else ()


def refused_picture(error: GdlabError, theme: Theme = "light") -> str:
    """Return the SVG of the graph of the refused operands, with the op that refused them; types stand on every node."""
    operands = refused_operands(error)
    graph: Graph = operands[0].graph
    nodes = [Drawn(n.op, n.name, str(n.type), n.inputs, not n.inputs) for n in graph]
    types = " and ".join(str(v.type) for v in operands)
    nodes.append(Drawn(error.where, "refused", types, tuple(v.id for v in operands), False))
    looks = [NodeStyle(family(n.op), False, False, False, f"node:0.{n.id}") for n in graph]
    looks.append(NodeStyle(_FAMILY, False, True, False, _ENTITY))
    text = error.text().split("\n")[0]
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    prefix = f"gd-refused-{digest[:8]}"
    count = f"{plural(len(graph), 'node')} so far"
    svg = svg_panes([("as written", count, nodes, auto(nodes), looks)], title="refused", desc=text, prefix=prefix)
    return _reddened(svg, theme)


def refused_text(error: GdlabError) -> str:
    """Return the refused picture as text: the nodes so far, then the refused call."""
    operands = refused_operands(error)
    lines = [line for line in str(operands[0].graph).split("\n") if line.startswith("%")]
    given = ", ".join(f"%{v.id}: {v.type}" for v in operands)
    return "\n".join([*lines, f"\N{BALLOT X} {error.where}({given}): wanted {error.wanted}"])


def _reddened(svg: str, theme: Theme) -> str:
    """Return the group of the refused op in the colour of errors."""
    begin = svg.index(f'data-entity="{_ENTITY}"')
    end = svg.index("</g>", begin)
    usual, ink = family_ink(_FAMILY, theme), INK[theme]
    part = svg[begin:end].replace(usual.full, ink.error).replace(usual.border, ink.error)
    return svg[:begin] + part.replace(usual.fill, mix(ink.error, ink.bg, _FILL)) + svg[end:]
