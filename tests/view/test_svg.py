"""The static picture: well-formed XML of a few harmless elements, every label literal, sizes within their caps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace

import layout_corpus as corpus
import pytest

from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.layered import auto, layered
from gdlab.view.layout.short_names import short_names
from gdlab.view.picture.draw import NodeStyle, smooth, square
from gdlab.view.picture.palette import INK, Theme
from gdlab.view.picture.svg import svg, svg_panes

NS = "{http://www.w3.org/2000/svg}"
ALLOWED = {
    "svg": {"width", "height", "viewBox", "role", "aria-labelledby"},
    "title": {"id"},
    "desc": {"id"},
    "g": {"transform", "data-entity", "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap",
          "font-family", "font-size", "font-weight"},
    "rect": {"x", "y", "width", "height", "rx", "fill", "stroke", "stroke-width"},
    "path": {"d", "fill", "stroke", "stroke-width", "stroke-dasharray", "data-entity"},
    "text": {"x", "y", "fill", "font-family", "font-size", "font-weight", "font-style", "text-anchor", "textLength",
             "lengthAdjust", "direction", "unicode-bidi", "data-entity"},
    "tspan": {"dx", "fill", "font-size", "font-weight"},
}  # fmt: skip


def picture(nodes: Sequence[Drawn], theme: Theme = "light", prefix: str = "g1", **texts: str) -> str:
    title, desc = texts.get("title", "graph"), texts.get("desc", "graph: some nodes")
    return svg(nodes, auto(nodes), corpus.styles(nodes), title=title, desc=desc, prefix=prefix, theme=theme)


def entities(root: ET.Element, kind: str) -> list[str]:
    return [e.get("data-entity", "") for e in root.iter() if e.get("data-entity", "").startswith(kind)]


def texts(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{NS}text")]


@pytest.mark.parametrize("name", corpus.GRAPHS)
def test_well_formed_and_harmless(name: str) -> None:
    written = picture(corpus.GRAPHS[name]().nodes)
    root = ET.fromstring(written)
    for element in root.iter():
        tag = element.tag.removeprefix(NS)
        assert set(element.attrib) <= ALLOWED[tag], f"{tag}: {element.attrib}"
    assert not re.search(r"<\?xml|<!|<style|class=|foreignObject|<script|href|url\(|javascript:|\bon\w+=", written)
    assert len(written.encode()) <= 300_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_frame(theme: Theme) -> None:
    root = ET.fromstring(picture(corpus.mlp_training().nodes, theme, "out-7", title="mlp", desc="19 nodes"))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "out-7-title out-7-desc"
    title, desc, ground = root[0], root[1], root[2]
    assert (title.get("id"), title.text) == ("out-7-title", "mlp")
    assert (desc.get("id"), desc.text) == ("out-7-desc", "19 nodes")
    assert ground.attrib == {"width": root.get("width"), "height": root.get("height"), "fill": INK[theme].bg}
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


def test_ids_carry_the_prefix() -> None:
    written = picture(corpus.mlp_training().nodes, prefix='a b"><x')
    ids = [e.get("id") for e in ET.fromstring(written).iter() if e.get("id")]
    assert ids == ["a-b---x-title", "a-b---x-desc"]


def test_every_entity_is_drawn() -> None:
    nodes = corpus.mlp_training().nodes
    root = ET.fromstring(picture(nodes))
    assert set(entities(root, "node:")) == {f"node:0.{i}" for i in range(len(nodes))}
    layout = auto(nodes)
    inside = [(edge.a, edge.b) for edge in layout.edges] + [(rail.a, rail.b) for rail in layout.rails]
    wanted = sorted(f"edge:0.{b}.{nodes[b].inputs.index(a)}" for a, b in inside)
    assert sorted(entities(root, "edge:")) == wanted
    saved = [g for g in root.iter(f"{NS}g") if g.get("stroke") == INK["light"].warn]
    assert [g.get("stroke-dasharray") for g in saved] == ["4 3"]
    assert len(saved[0]) == len({wire.a for wire in layout.wires}), "one path for each activation that is kept"


def test_names_for_people_who_do_not_see_it() -> None:
    root = ET.fromstring(picture(corpus.mlp_training().nodes))
    said = {}
    for group in root.iter(f"{NS}g"):
        title = group.find(f"{NS}title")
        if title is not None:
            said[group.get("data-entity")] = title.text
    assert [said[f"node:0.{i}"] for i in range(12)] == [
        "input x, f32 64 by 64, 2 users, lane forward",
        "input y, f32 64 by 10, 2 users, lane forward",
        "parameter w1, f32 64 by 128, 1 user, lane forward",
        "parameter b1, f32 128, 1 user, lane forward",
        "matmul, f32 64 by 128, 2 inputs, 1 user, lane forward",
        "bias_add, f32 64 by 128, 2 inputs, 2 users, lane forward",
        "relu h, f32 64 by 128, 1 input, 2 users, lane forward",
        "parameter w2, f32 128 by 10, 2 users, lane forward",
        "parameter b2, f32 10, 1 user, lane forward",
        "matmul, f32 64 by 10, 2 inputs, 1 user, lane forward",
        "bias_add z, f32 64 by 10, 2 inputs, 2 users, lane forward",
        "cross_entropy_loss, f32 1, 2 inputs, 0 users, lane forward, output, loss",
    ]
    assert said["node:0.15"] == "matmul_at ∂w2, f32 128 by 10, 2 inputs, 0 users, lane adjoint"


def test_what_a_node_shows() -> None:
    root = ET.fromstring(picture(corpus.mlp_fused()[0].nodes))
    shown = texts(root)
    for label in ("x", "fused_matmul_add", "z", "f32[64, 10]", "cross_entropy_loss", "w1", "h", "C", "E", "X"):
        assert label in shown
    assert "L" not in shown, "a leaf is told by its shape"
    by_entity = {g.get("data-entity"): g for g in root.iter(f"{NS}g")}
    fused, plain, loss = by_entity["node:0.6"], by_entity["node:0.7"], by_entity["node:0.9"]
    assert [len(g.findall(f"{NS}rect")) for g in (fused, plain, loss)] == [2, 1, 1]
    assert [g[1].get("stroke-width") for g in (plain, loss)] == [None, "2.5"]


HOSTILE = (
    "</script><img onerror=alert(1) src=x>",
    "]]>&lt;&amp;\"'",
    "\u202eevil\u202c",
    "zero\u200bwidth\u200d",
    "\u05d0\u05d1\u05d2",
    "a\nb\tc\x00\x1b[31m",
    "\ud800\uffff",
    "漢字の名前",
    "\U0001f600" * 40,
)


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_literal(label: str) -> None:
    nodes = [
        Drawn("input", label, label, (), True),
        Drawn("parameter", label, label, (), True),
        Drawn(label, label, label, (0, 1), False),
        Drawn("relu", label, label, (2,), False),
    ]
    style = [NodeStyle("loss", True, True, False, f'node:{label}"{i}') for i in range(4)]
    written = svg(nodes, layered(nodes), style, title=label, desc=label, prefix="p")
    root = ET.fromstring(written.encode("utf-8"))
    assert {e.tag.removeprefix(NS) for e in root.iter()} <= set(ALLOWED)
    visible = label.translate(
        {0: 0x2400, 0x1B: 0x241B, 0x0A: 0x240A, 0x09: 0x2409, 0xD800: 0xFFFD, 0xFFFF: 0xFFFD},
    )
    short = [visible if len(visible) <= n else visible[: n - 1] + "…" for n in (28, 24)]
    assert set(short) <= set(texts(root))
    assert root[0].text == visible
    assert root[1].text == visible


def test_right_to_left_and_wide_letters_keep_to_their_place() -> None:
    nodes = [Drawn("input", "\u202e\u05d0", "漢字", (), True), Drawn("relu", "h", "f32[1]", (0,), False)]
    name, kind, *rest = ET.fromstring(picture(nodes)).iter(f"{NS}text")
    assert (name.get("direction"), name.get("unicode-bidi")) == ("ltr", "isolate")
    assert kind.get("textLength") == "12.7"
    assert all(e.get("direction") is None and e.get("textLength") is None for e in rest)


def test_long_names_are_cut() -> None:
    nodes = [
        Drawn("input", "x", "f32[1]", (), True),
        Drawn("parameter", "w" * 10_000, "t" * 10_000, (), True),
        Drawn("o" * 10_000, "n" * 10_000, "t" * 10_000, (0, 1), False),
        Drawn("relu", "n" * 10_000, "f32[1]", (2,), False),
    ]
    written = picture(nodes, title="t" * 10_000, desc="d" * 100_000)
    shown = texts(ET.fromstring(written))
    assert {"t" * 23 + "…", "o" * 27 + "…", "t" * 27 + "…"} <= set(shown)
    assert {"w" * 12 + "…" + "w" * 11, "n" * 11 + "…" + "n" * 10} <= set(shown)
    assert len(written) < 12_000


def test_at_most_300_nodes_and_the_last_line_says_so() -> None:
    nodes = corpus.transformer_training(10).nodes
    root = ET.fromstring(picture(nodes))
    drawn = set(entities(root, "node:"))
    assert 250 < len(drawn) <= 300
    rows = auto(nodes).height // 72
    last = texts(root)[-2:]
    assert re.fullmatch(rf"showing {len(drawn)} of {len(nodes)} nodes: to row \d+ of {rows}", last[0])
    assert re.fullmatch(r"\d+ edges between lanes end in marks below their nodes", last[1])
    wide = ET.fromstring(picture(corpus.wide(2000).nodes))
    assert texts(wide)[-1] == "showing 300 of 2,001 nodes: to row 2 of 2"


def test_sizes() -> None:
    for blocks, cap in ((1, 100_000), (5, 300_000), (40, 300_000)):
        nodes = corpus.transformer_training(blocks).nodes
        assert len(picture(nodes).encode()) <= cap
    heavy = [replace(n, op="\U0001f600" * 90, name="<" * 99, type="&" * 99) for n in corpus.chain(400).nodes]
    written = picture(heavy)
    assert 150_000 < len(written.encode()) <= 300_000
    assert re.search(r"showing \d+ of 400 nodes", written)
    parameters = [Drawn("parameter", f"w{i}" * 9, "f32[1]", (), True) for i in range(1500)]
    written = picture([*parameters, Drawn("concat", "", "f32[1500]", tuple(range(1500)), False)])
    assert len(written.encode()) <= 300_000
    assert "showing 300 of 1,501 nodes" in written


def test_panes_share_a_scale_and_have_headers() -> None:
    before, after = corpus.mlp_forward().nodes, corpus.mlp_fused()[0].nodes
    written = svg_panes(
        [
            ("As written", "12 nodes", before, layered(before), corpus.styles(before)),
            ("Optimized", "10 nodes", after, layered(after), corpus.styles(after, 1)),
        ],
        title="mlp",
        desc="before and after",
        prefix="p",
    )
    root = ET.fromstring(written)
    assert [t.text for t in root.iter(f"{NS}tspan")] == ["As written", "12 nodes", "Optimized", "10 nodes"]
    assert {entity[:7] for entity in entities(root, "node:")} == {"node:0.", "node:1."}
    assert "scale" not in written
    first, second = (float(t.get("x", "")) for t in root.iter(f"{NS}text") if t.find(f"{NS}tspan") is not None)
    assert second - first == float(root.get("width", "")) / 2


def test_no_panes_is_an_empty_picture() -> None:
    root = ET.fromstring(svg_panes([], title="none", desc="none", prefix="p"))
    assert (root.get("width"), root.get("height")) == ("48", "48")


def test_paths() -> None:
    assert smooth(((0, 0), (0, 40), (20, 72))) == "M0 0V40C0 56 20 56 20 72"
    assert square(((0, 0), (0, 20), (30, 20))) == "M0 0L0 16Q0 20 4 20L30 20"
    assert square(((0, 0), (0, 4), (2, 4), (2, 0))) == "M0 0L0 2Q0 4 1 4L1 4Q2 4 2 2L2 0"
    assert square(((0, 0), (40, 0))) == "M0 0L40 0"


def test_backward_edges_and_those_of_adjoints_have_an_arrow() -> None:
    written, layout = picture(corpus.second_derivative().nodes), auto(corpus.second_derivative().nodes)
    lanes = [lane for lane in layout.lanes if lane.title.startswith("adjoint")]

    def adjoint(i: int) -> bool:
        return any(lane.x <= layout.x[i] < lane.x + lane.width for lane in lanes)

    ends = [edge.points[-2:] for edge in layout.edges if adjoint(edge.b)]
    level = sum(before[1] == end[1] for before, end in ends)
    rails = sum(adjoint(rail.b) or rail.y1 > rail.y0 for rail in layout.rails)
    assert len(ends) > level > 0
    assert (written.count("h7Z"), written.count("v7Z")) == (len(ends) - level + rails, level)
    assert "h7Z" not in picture(corpus.transformer(3)[0].nodes)


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("model.embed_tokens.weight", "…embed_tokens.weight"),
     ("model.layers.0.self_attn.q_proj.weight", "…0…attn.q_proj.weight"),
     ("model.layers.11.mlp.gate_proj.weight", "…11…gate_proj.weight"),
     ("∂model.embed_tokens.weight", "∂…embed_tokens.weight"),
     ("blocks.first_attention_layernorm.weight", "first_attention….weight"),
     ("a name that is much too long for a pill", "…is…too long for a pill"),
     ("encoder.block.0.attention.self.query.weight", "encoder…query.weight")],
)  # fmt: skip
def test_a_long_name_is_shortened_where_it_says_least(name: str, drawn: str) -> None:
    """Of each pair of names that differ, the texts differ; at most as long as there is room."""
    names = [node.name for node in corpus.long_names().nodes] + ["blocks.first_attention_layernorm.weight"]
    for most in (24, 17, 11, 5):
        short = short_names(names, most)
        texts = [short.get(each, each) for each in dict.fromkeys(names)]
        assert len(set(texts)) == len(texts) and max(map(len, texts)) <= most
    assert (short_names(names, 24) | {"": ""}).get(name, name) == drawn


def test_a_picture_has_the_whole_of_a_shortened_name_beside_it() -> None:
    """On pills and boxes in the static picture: the accessible name is whole."""
    nodes = [
        Drawn("parameter", "model.embed_tokens.weight", "f32[8, 8]", (), True),
        Drawn("rms_norm_grad_w", "∂model.layers.0.input_layernorm.weight", "f32[8]", (0,), False),
    ]
    drawn = picture(nodes)
    assert ">…embed_tokens.weight<" in drawn and "parameter model.embed_tokens.weight" in drawn
    assert ">∂…weight<" in drawn and "rms_norm_grad_w ∂model.layers.0.input_layernorm.weight" in drawn
