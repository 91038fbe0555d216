"""The layouts: nothing overlaps, every edge is drawn once and the right way, the integers are those of the drawings."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import layout_corpus as corpus
import pytest
from clock import seconds_there
from places import HELPERS, REPO

from gdlab.base.errors import GraphError
from gdlab.view.layout.boxes import kind_of
from gdlab.view.layout.drawn import (
    Density,
    Drawn,
    Layout,
    cut,
    headline,
    node_width,
    pill_label,
    pill_tail,
    pill_width,
)
from gdlab.view.layout.lanes import lanes
from gdlab.view.layout.layered import auto, layered
from gdlab.view.layout.rows import LONG, TRACKS, tracks

BIG = ("chain_5000", "wide_2000")
EVERY = [(name, engine) for name in corpus.GRAPHS for engine in corpus.ENGINES]
Rect = tuple[int, int, int, int]  # left, top, right, bottom


@cache
def laid(name: str, engine: str) -> tuple[list[Drawn], Layout]:
    nodes = corpus.GRAPHS[name]().nodes
    return nodes, corpus.ENGINES[engine](nodes)


def rects(layout: Layout) -> list[Rect]:
    """Every box and every pill, left to right and row by row."""
    boxes = [
        (x, y, x + w, y + 40) for x, y, w, r in zip(layout.x, layout.y, layout.w, layout.row, strict=True) if r >= 0
    ]
    return sorted(boxes + [(p.x, p.y, p.x + p.w, p.y + 18) for p in layout.pills], key=lambda r: (r[1] // 72, r))


def lane_of(layout: Layout, i: int) -> int:
    """The drawn lane of a box; 1 in a layout without lanes."""
    return next((lane.index for lane in layout.lanes if lane.x <= layout.x[i] < lane.x + lane.width), 1)


def segments(points: Sequence[tuple[int, int]]) -> Iterator[Rect]:
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        yield min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


@pytest.mark.parametrize(("name", "engine"), EVERY)
def test_nothing_overlaps(name: str, engine: str) -> None:
    _, layout = laid(name, engine)
    by_row: dict[int, list[Rect]] = {}
    for rect in rects(layout):
        assert rect[1] // 72 == (rect[3] - 1) // 72, "a pill stands in the row of its reader"
        by_row.setdefault(rect[1] // 72, []).append(rect)
    for row in by_row.values():
        for i, (left, top, right, bottom) in enumerate(row):
            for other in row[i + 1 : i + 6]:
                apart = other[0] >= right or other[2] <= left
                assert apart or other[1] >= bottom or other[3] <= top, f"{name}: {row[i]} and {other}"
    boxes = sorted((r, layout.x[i], layout.w[i]) for i, r in enumerate(layout.row) if r >= 0)
    assert all(b[1] >= a[1] + a[2] + 16 for a, b in zip(boxes, boxes[1:], strict=False) if a[0] == b[0])


@pytest.mark.parametrize(("name", "engine"), EVERY)
def test_every_edge_is_drawn_once(name: str, engine: str) -> None:
    nodes, layout = laid(name, engine)
    drawn = [(p.node, p.reader) for p in layout.pills]
    drawn += {pair for p in layout.pills for pair in pairwise((p.leaf, *p.via))}
    for group in (layout.edges, layout.rails, layout.wires):
        drawn += [(edge.a, edge.b) for edge in group]
    assert sorted(drawn) == sorted({(a, b) for b, node in enumerate(nodes) for a in node.inputs})
    # a node is a box, or nothing but pills, of which one and only one is no echo
    whole = [p.node for p in layout.pills if not p.echo]
    inside = {i for p in layout.pills for i in (p.leaf, *p.via)}
    assert len(set(whole)) == len(whole) and inside == {i for i, row in enumerate(layout.row) if row < 0}
    assert all(nodes[p.leaf].leaf and not any(nodes[i].leaf for i in p.via) for p in layout.pills)


@pytest.mark.parametrize(("name", "engine"), EVERY)
def test_integers_inside_the_picture(name: str, engine: str) -> None:
    nodes, layout = laid(name, engine)
    record = layout.to_json()
    assert list(record)[:3] == ["engine", "engine_version", "seconds"]
    assert record["engine_version"] == 2
    assert all(isinstance(value, int) for value in _numbers({**record, "seconds": 0}))
    assert json.loads(json.dumps(record)) == record
    assert len(layout.x) == len(layout.y) == len(layout.w) == len(layout.row) == len(nodes)
    for x, y, w, row in zip(layout.x, layout.y, layout.w, layout.row, strict=True):
        assert (x, y, w) == (-1, -1, -1) if row < 0 else y == 72 * row and 0 <= x and x + w <= layout.width
    assert layout.height == 72 * (max(layout.row, default=-1) + 1)
    assert all(0 <= pill.x for pill in layout.pills)
    assert all(0 <= rail.x <= layout.width for rail in layout.rails)
    lines = [edge.points for edge in layout.edges] + [wire.points for wire in layout.wires]
    assert all(0 <= x <= layout.width and -16 <= y <= layout.height for line in lines for x, y in line)


def _numbers(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)
    elif not isinstance(value, str):
        yield value


@pytest.mark.parametrize(("name", "engine"), EVERY)
def test_edges_run_their_way(name: str, engine: str) -> None:
    """Down in odd lanes, up in even ones, to the right inside a row; bends never lie inside a row's boxes."""
    nodes, layout = laid(name, engine)
    by_row: dict[int, list[Rect]] = {}
    for rect in rects(layout):
        by_row.setdefault(rect[1] // 72, []).append(rect)
    lane = [lane_of(layout, i) if row >= 0 else 0 for i, row in enumerate(layout.row)]
    for edge in layout.edges:
        assert lane[edge.a] == lane[edge.b]
        ys = [y for _, y in edge.points]
        if layout.row[edge.a] == layout.row[edge.b]:
            assert edge.points[0][0] < edge.points[-1][0]
            assert len(edge.points) in (2, 4)
            continue
        assert ys == sorted(ys, reverse=lane[edge.a] % 2 == 0)
        assert len(edge.points) == 2 * abs(layout.row[edge.a] - layout.row[edge.b]) <= 2 * LONG
        assert edge.points[0][0] == layout.x[edge.a] + layout.w[edge.a] // 2
        assert edge.points[-1][0] == layout.x[edge.b] + layout.w[edge.b] // 2
        if name not in BIG:
            for x0, y0, x1, y1 in segments(edge.points[1:-1]):
                inside = by_row.get(y0 // 72, []) if y1 - y0 == 40 else []
                assert x0 == x1 or y1 - y0 == 32
                assert not [r for r in inside if r[0] - 8 < x0 < r[2] + 8], f"{name}: edge {edge.a}-{edge.b} on a box"
    for rail in layout.rails:
        span = layout.row[rail.b] - layout.row[rail.a]
        assert lane[rail.a] == lane[rail.b]
        assert span > LONG or span < 0 if lane[rail.a] % 2 else span < -LONG or span > 0
        assert lane[rail.a] % 2 == 0 or engine == "lanes" or span > LONG, "a layered graph has no backward edge"
    assert all(lane[wire.a] < lane[wire.b] for wire in layout.wires)
    assert all(edge.kind == kind_of(nodes, edge.a, edge.b) for edge in layout.edges)


@pytest.mark.parametrize("name", [name for name in corpus.GRAPHS if name not in BIG])
def test_no_line_runs_across_a_node(name: str) -> None:
    """Wires, rails and the edges inside a row keep to the gaps and gutters."""
    _, layout = laid(name, "lanes")
    boxes = [(i, r) for i, r in enumerate(zip(layout.x, layout.y, layout.w, strict=True)) if layout.row[i] >= 0]
    solid = [(i, (x, y, x + w, y + 40)) for i, (x, y, w) in boxes]
    solid += [(-1, (p.x, p.y, p.x + p.w, p.y + 18)) for p in layout.pills]
    flat = [edge.points for edge in layout.edges if edge.points[0][1] == edge.points[-1][1]]
    lines = [*flat, *(wire.points for wire in layout.wires)]
    lines += [((rail.x, rail.y0), (rail.x, rail.y1)) for rail in layout.rails]
    for line in lines:
        for x0, y0, x1, y1 in segments(line):
            hit = [r for _, r in solid if x0 < r[2] and x1 > r[0] and y0 < r[3] and y1 > r[1]]
            assert not hit, f"{name}: {line} across {hit}"


@pytest.mark.parametrize("name", ["mlp_training", "gradient_penalty", "crowded_gutter", "random_7"])
@pytest.mark.parametrize("engine", corpus.ENGINES)
def test_same_graph_same_layout(name: str, engine: str) -> None:
    nodes, layout = laid(name, engine)
    first, second = layout.to_json(), corpus.ENGINES[engine](nodes).to_json()
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_layouts_do_not_depend_on_hashes(tmp_path: Path) -> None:
    digests = set()
    for seed in ("1", "77"):
        path = tmp_path / seed
        code = f"import layout_corpus as c; [c.GRAPHS.pop(n) for n in {BIG!r}]; c.dump({str(path)!r})"
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join((str(REPO), str(HELPERS)))}
        subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


# Integers that were taken from the drawings and from the text of the layout.


def test_widths_follow_the_number_of_code_points() -> None:
    assert node_width(Drawn("matmul", "", "f32[32, 128]", (0, 0), False)) == 112
    assert node_width(Drawn("cross_entropy_loss", "", "f32[1]", (0, 0), False)) == 160
    assert node_width(Drawn("fused_matmul_add", "z", "f32[32, 10]", (0, 0), False)) == 168
    assert node_width(Drawn("x", "", "", (0,), False)) == 64
    assert node_width(Drawn("x", "n" * 10_000, "", (0,), False)) == 232
    assert node_width(Drawn("o" * 28, "", "", (0,), False)) == 232
    assert node_width(Drawn("parameter", "w", "f32[1]", (), True)) == 72, "a leaf shows its name, not its op"
    assert (pill_width("w1", "f32[784, 128]"), pill_width("w1", "")) == (128, 40)
    long = Drawn("parameter", "é" * 10_000, "t" * 10_000, (), True)
    assert pill_width(pill_label(long), pill_tail(long.type, False, False)) == 352


@pytest.mark.parametrize(
    ("op", "name", "shown"),
    [
        ("relu", "h", ("relu", "h")),
        ("relu", "", ("relu", "")),
        ("relu", "n" * 30, ("relu", "n" * 21 + "…")),
        ("o" * 24, "name", ("o" * 24, "n…")),
        ("o" * 25, "name", ("o" * 25 + "  …", "")),
        ("o" * 40, "name", ("o" * 27 + "…", "")),
        ("o" * 27, "", ("o" * 27, "")),
    ],
)
def test_one_line_holds_op_and_name(op: str, name: str, shown: tuple[str, str]) -> None:
    assert headline(Drawn(op, name, "f32[1]", (0,), False)) == shown


def test_cut_counts_code_points() -> None:
    assert cut("x" * 28, 28) == "x" * 28
    assert cut("\U0001f600" * 29, 28) == "\U0001f600" * 27 + "…"


def test_the_tour_stands_as_it_was_drawn() -> None:
    """The written graph of the drawing: a straight spine, pills 12 left of their op."""
    draft = corpus.GraphWriter()
    x, y = draft.input("x", "f32[32, 784]"), draft.input("y", "f32[32, 10]")
    h = draft.op("relu", draft.linear(x, "1", 128), name="h")
    z = draft.linear(h, "2", 10)
    draft.op("cross_entropy_loss", z, y, type="f32[1]")
    layout = layered(draft.nodes)
    boxes = [(layout.x[i], layout.y[i], layout.w[i]) for i, row in enumerate(layout.row) if row >= 0]
    assert boxes == [
        (140, 0, 112),
        (140, 72, 112),
        (140, 144, 112),
        (140, 216, 112),
        (144, 288, 104),
        (144, 360, 104),
        (116, 432, 160),
    ]
    names = [draft.nodes[p.leaf].name for p in layout.pills]
    assert names == ["w1", "b1", "w2", "b2", "y"]
    assert [(p.x, p.y, p.w) for p in layout.pills] == [
        (0, 83, 128),
        (32, 155, 96),
        (12, 299, 120),
        (44, 371, 88),
        (0, 443, 104),
    ]
    assert (layout.width, layout.height) == (276, 504)


@pytest.mark.parametrize("density", corpus.DENSITIES)
def test_a_bias_that_is_broadcast_is_one_pill_beside_a_straight_spine(density: Density) -> None:
    """F3: `x @ w + b` is a chain of boxes with one x; the pill stands for the last shape op."""
    draft, loss = corpus.broadcast_biases()
    layout = layered(draft.nodes, density)
    boxes = [i for i, row in enumerate(layout.row) if row >= 0]
    assert [draft.nodes[i].op for i in boxes] == ["input", *["matmul", "add", "relu"] * 3, "mul", "mse_loss"]
    assert len({layout.x[i] + layout.w[i] // 2 for i in boxes}) == 1
    through = [(draft.nodes[p.leaf].name, [draft.nodes[i].op for i in p.via]) for p in layout.pills if p.via]
    assert through == [*[(f"b{i}", ["broadcast_to"]) for i in range(3)], ("scale", ["reshape", "broadcast_to"])]
    assert layered(draft.nodes, density).to_json()["pills"]["via"].values()


def test_each_density_leaves_texts_out() -> None:
    node = Drawn("relu", "h", "f32[32, 256]", (0,), False)
    bias = Drawn("parameter", "gate_bias", "f32[256]", (), True)
    assert [node_width(node, d) for d in corpus.DENSITIES] == [112, 112, 64, 64]
    pill = [(pill_label(bias, d), pill_tail("f32[32, 256]", True, False, d)) for d in corpus.DENSITIES]
    assert pill == [("gate_bias", "⤳ [32, 256]"), ("gate_bias", "⤳"), ("gate_bias", "⤳"), ("g_b", "⤳")]
    assert [pill_tail("f32[256]", False, False, d) for d in corpus.DENSITIES] == ["f32[256]", "", "", ""]
    assert [pill_width(*texts) for texts in pill] == sorted((pill_width(*texts) for texts in pill), reverse=True)
    wide = [layered(corpus.GRAPHS["block_forward"]().nodes, d).width for d in corpus.DENSITIES]
    assert wide == sorted(wide, reverse=True) and len(set(wide)) > 2, "none is wider than the one before"


@pytest.mark.parametrize(
    ("name", "short"),
    [("w", "w"), ("mask", "mask"), ("target", "tar…"), ("up_proj", "u_p"), ("a_b_c_d", "c_d"), ("_hidden", "_hi…"),
     ("model.embed_tokens.weight", "e.w"), ("layers.0.q_proj", "0.q"), ("....x", "...…"),
     ("encoder.fc1", "e.f1"), ("encoder.fc2", "e.f2"), ("blocks.12.up", "12.u"), ("conv_12", "c_12")],
)  # fmt: skip
def test_a_pill_without_room_keeps_what_tells_it_from_others(name: str, short: str) -> None:
    """F1: `up_proj` and `up_bias` beside one op are told apart."""
    assert pill_label(Drawn("parameter", name, "f32[1]", (), True), 3) == short


@pytest.mark.parametrize("name", ["block_training", "second_derivative", "mlp_update"])
def test_a_long_chain_of_adjoints_is_folded_upwards_from_the_row_of_its_op(name: str) -> None:
    """F4: where texts are left out, at most two adjoints of one op stand one behind the other in a row."""
    nodes, flat = laid(name, "lanes")
    folded = lanes(nodes, 1)
    assert lanes(nodes, 0).row == flat.row
    heads: dict[int, int] = {}  # the last row that became of each
    for own, now in zip(flat.row, folded.row, strict=True):
        heads[own] = max(heads.get(own, -1), now)
    depth: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if flat.row[i] < 0:
            continue
        beside = [depth[a] + 1 for a in node.inputs if flat.row[a] == flat.row[i] and same_lane(nodes, a, i)]
        depth[i] = max(beside, default=0) if node.lane.startswith("adjoint") else 0
        assert folded.row[i] == heads[flat.row[i]] - depth[i] // 2, f"{name}: node {i}"
    assert max(depth.values()) < 2 or max(folded.row) > max(flat.row)


def same_lane(nodes: Sequence[Drawn], a: int, b: int) -> bool:
    return nodes[a].lane == nodes[b].lane


def test_the_adjoint_of_a_shape_op_stands_on_the_row_of_its_reader() -> None:
    nodes, layout = laid("broadcast_training", "lanes")
    sums = [i for i, node in enumerate(nodes) if node.op == "sum_rows"]
    readers = [next(b for b, node in enumerate(nodes) if nodes[i].twin in node.inputs) for i in sums]
    assert len(sums) == 4 and [layout.row[i] for i in sums] == [layout.row[b] for b in readers]
    forward = [i for i, node in enumerate(nodes) if node.lane == "forward" and layout.row[i] >= 0]
    assert len({layout.x[i] + layout.w[i] // 2 for i in forward}) == 1


def test_an_adjoint_stands_on_the_row_of_its_op() -> None:
    nodes, layout = laid("block_training", "lanes")
    twins = [(i, node.twin) for i, node in enumerate(nodes) if node.twin >= 0 and not nodes[node.twin].leaf]
    assert len(twins) > 20
    assert all(layout.row[i] == layout.row[twin] for i, twin in twins)
    assert [lane.title for lane in layout.lanes] == ["forward ↓", "adjoint ↑"]
    # of the drawing: both tints to the last unit, with one gutter of 12 tracks at most between them
    forward, adjoint = layout.lanes
    assert 48 - 32 <= adjoint.x - forward.x - forward.width <= 48 - 32 + 5 * 12


def test_the_way_back_is_as_straight_as_the_way_there() -> None:
    """Gradients of parameters and the edges to them, which stand beside the adjoints, do not push them aside."""
    draft = corpus.GraphWriter()
    h = draft.input("x", "f32[32, 64]")
    for i in range(8):
        h = draft.op("relu", draft.linear(h, str(i), 64))
    corpus.differentiate(draft, draft.op("mse_loss", h, draft.input("y", "f32[32, 64]"), type="f32[1]"))
    nodes, layout = draft.nodes, lanes(draft.nodes)
    middle = {i: layout.x[i] + layout.w[i] // 2 for i, row in enumerate(layout.row) if row >= 0}
    read = {a for node in nodes for a in node.inputs}
    inside = [(a, i) for i in read & set(middle) for a in nodes[i].inputs if a in middle]
    steps = [abs(middle[a] - middle[i]) for a, i in inside if nodes[a].lane == nodes[i].lane]
    assert len(steps) > 30 and max(steps) <= 32


def test_no_lane_is_wider_for_more_blocks() -> None:
    assert lanes(corpus.transformer_training(100).nodes).width <= laid("transformer_12", "lanes")[1].width + 16


def test_gradients_of_parameters_stand_right_of_the_spine() -> None:
    """A box that nobody reads stands at the right end of its row."""
    nodes, layout = laid("block_training", "lanes")
    read = {a for node in nodes for a in node.inputs}
    for quiet in (i for i, node in enumerate(nodes) if node.lane == "adjoint" and i not in read):
        row = [i for i, node in enumerate(nodes) if layout.row[i] == layout.row[quiet] and node.lane == "adjoint"]
        assert all(layout.x[i] < layout.x[quiet] for i in row if i in read)


def test_lanes_of_higher_derivatives() -> None:
    nodes, layout = laid("second_derivative", "lanes")
    assert [lane.title for lane in layout.lanes] == ["forward ↓", "adjoint ↑", "forward2 ↓", "adjoint2 ↑"]
    assert [lane.index for lane in layout.lanes] == [1, 2, 3, 4]
    nodes, layout = laid("mlp_update", "lanes")
    assert [lane.title for lane in layout.lanes] == ["forward ↓", "adjoint ↑", "optimizer ↓"]
    adam = next(i for i, node in enumerate(nodes) if node.op == "adam" and node.name == "w1")
    assert layout.row[adam] == 1, "an update stands where its parameter is read"


def test_a_forward_op_that_reads_an_adjoint_opens_forward2() -> None:
    nodes, layout = laid("gradient_penalty", "lanes")
    square = next(i for i, node in enumerate(nodes) if node.op == "square")
    assert nodes[square].lane == "forward"
    assert lane_of(layout, square) == 3


def test_who_is_a_box() -> None:
    x, w = Drawn("input", "x", "f32[2]", (), True), Drawn("parameter", "w", "f32[2]", (), True)
    only_leaves = [w, x, Drawn("mul", "", "f32[2]", (0, 1), False), Drawn("add", "", "f32[2]", (2, 0), False)]
    assert layered(only_leaves).row == (-1, 0, 1, 2), "the first input becomes the box"
    assert [(p.leaf, p.reader, p.echo) for p in layered(only_leaves).pills] == [(0, 2, False), (0, 3, True)]
    parameters = [w, w, Drawn("mul", "", "f32[2]", (1, 0), False)]
    assert layered(parameters).row == (-1, -1, 0), "an op of parameters alone starts a branch by itself"


@pytest.mark.parametrize("engine", corpus.ENGINES)
def test_a_branch_of_parameters_alone_stands_above_its_first_reader(engine: str) -> None:
    nodes = corpus.branches_of_parameters().nodes
    row = corpus.ENGINES[engine](nodes).row
    at = {node.op: row[i] for i, node in enumerate(nodes)}
    assert at["bias_mul"] == 9 and (at["mul"], at["rsqrt"], at["add_scalar"]) == (8, 7, 6)
    assert at["neg"] == 10 and row[0] == 0, "what hangs from an input stays on its own longest path"


@pytest.mark.parametrize("engine", corpus.ENGINES)
def test_what_is_read_far_below_only_stands_above_its_first_reader(engine: str) -> None:
    nodes = corpus.early_branches().nodes
    row = corpus.ENGINES[engine](nodes).row
    at = [(node.op, row[i]) for i, node in enumerate(nodes)]
    adds = [r for op, r in at if op == "add"]
    assert adds == [19, 38, 57]
    assert [r for op, r in at if op == "silu"] == [add - 3 for add in adds], "silu, matmul, bias_add, then the sum"
    assert [r for op, r in at if op == "sin"] == [15], "above the first of three readers, though two are far below it"


def test_a_branch_of_parameters_stands_beside_its_reader():
    x, w = Drawn("input", "x", "f32[2]", (), True), Drawn("parameter", "w", "f32[2]", (), True)
    chain = [x, w, *(Drawn("relu", "", "f32[2]", (i and i + 1,), False) for i in range(4))]
    chain += [Drawn("exp", "", "f32[2]", (1,), False), Drawn("add", "", "f32[2]", (5, 6), False)]
    for layout in (layered(chain), lanes(chain)):
        assert layout.row == (0, -1, 1, 2, 3, 4, 4, 5)
    late = [x, Drawn("relu", "", "f32[2]", (0,), False), Drawn("adam", "", "f32[2]", (0,), False, "adjoint")]
    assert lanes(late).row == (0, 1, 0), "a leaf that is a box is read by wire"
    assert [(wire.a, wire.b) for wire in lanes(late).wires] == [(0, 2)]


def test_a_box_without_inputs_stands_next_to_its_user() -> None:
    seed = Drawn("random_normal", "", "f32[2]", (), False)
    x = Drawn("input", "x", "f32[2]", (), True)
    chain = [x, seed, *(Drawn("relu", "", "f32[2]", (0 if i == 0 else i + 1,), False) for i in range(3))]
    layout = layered([*chain, Drawn("add", "", "f32[2]", (4, 1), False)])
    assert layout.row == (0, 3, 1, 2, 3, 4)


def test_rows_without_a_twin() -> None:
    x = Drawn("input", "x", "f32[2]", (), True)
    forward = [x, *(Drawn("relu", "", "f32[2]", (i,), False) for i in range(3))]
    seed = Drawn("ones", "", "f32[2]", (3,), False, "adjoint", 3)
    up = Drawn("mul", "", "f32[2]", (4, 2), False, "adjoint")
    far = Drawn("neg", "", "f32[2]", (2,), False, "adjoint")
    down = Drawn("sum", "", "f32[2]", (5,), False, "forward2")
    more = Drawn("exp", "", "f32[2]", (7,), False, "forward2")
    of_leaf = Drawn("add", "", "f32[2]", (6,), False, "adjoint", 0)
    assert lanes([*forward, seed, up, far, down, more, of_leaf]).row == (0, 1, 2, 3, 3, 2, 2, 2, 3, 1)


def test_pills_make_room_for_an_edge_from_the_left() -> None:
    nodes = [
        Drawn("input", "x", "f32[2]", (), True),
        Drawn("parameter", "w", "f32[2]", (), True),
        Drawn("relu", "", "f32[2]", (0,), False),
        Drawn("where", "", "f32[2]", (2,), False, "adjoint", 2),
        Drawn("mul", "", "f32[2]", (3, 1), False, "adjoint", 2),
        Drawn("sub", "", "f32[2]", (4, 3), False, "adjoint", 2),
    ]
    layout = lanes(nodes)
    (pill,) = layout.pills
    assert pill.y == layout.y[4]
    straight, onward, hop = layout.edges[-3:]
    assert [len(edge.points) for edge in (straight, onward, hop)] == [2, 2, 4]
    assert straight.points[0] == (layout.x[3] + layout.w[3], layout.y[3] + 20)
    assert {y for _, y in hop.points} == {layout.y[3], layout.y[3] - 6}, "a hop over mul, not a line through it"


def test_tracks() -> None:
    assert tracks([(0, 3), (1, 2), (3, 5), (4, 6)], 32) == [0, 1, 1, 0]
    assert tracks([(0, 9)] * 40, 4) == [0, 1, 2] + [3] * 37
    assert tracks([], 4) == []


def test_a_crowded_gutter_shares_its_last_track() -> None:
    _, layout = laid("crowded_gutter", "layered")
    used = [rail.track for rail in layout.rails]
    assert max(used) == TRACKS - 1
    assert used.count(TRACKS - 1) == len(used) - (TRACKS - 1) > 1
    edge = max(layout.x[i] + layout.w[i] for i, row in enumerate(layout.row) if row >= 0)
    assert min(rail.x for rail in layout.rails) == edge + 8
    assert layout.width == edge + 8 * (TRACKS + 1)


def test_auto_takes_lanes_when_there_is_an_adjoint() -> None:
    assert auto(corpus.mlp_forward().nodes).engine == "layered"
    assert auto(corpus.mlp_training().nodes).engine == "lanes"


def test_empty() -> None:
    for engine in corpus.ENGINES.values():
        layout = engine([])
        assert (layout.width, layout.height, layout.x, layout.edges) == (0, 0, (), ())


def test_bad_graphs() -> None:
    loop = [Drawn("relu", "", "f32[1]", (0,), False)]
    with pytest.raises(GraphError, match=r"node 0 \(relu\): inputs: given \[0\], wanted indexes from 0 to -1"):
        layered(loop)
    with pytest.raises(GraphError, match="inputs: given 1 of a leaf, wanted none"):
        lanes([Drawn("input", "x", "", (), True), Drawn("input", "y", "", (0,), True)])
    with pytest.raises(GraphError, match="lane of node 0: given 'sideways', wanted forward, adjoint"):
        lanes([Drawn("iota", "", "", (), False, "sideways")])
    with pytest.raises(GraphError, match="given 'adjoint0'"):
        lanes([Drawn("iota", "", "", (), False, "adjoint0")])


# Bars


@pytest.mark.clock
@pytest.mark.parametrize("engine", corpus.ENGINES)
def test_layout_is_fast_and_grows_linearly(engine: str) -> None:
    """1,298 and 6,266 nodes; the bars with their allowance of 2 for a shared machine."""
    seconds = []
    for blocks in (24, 116):
        nodes = corpus.transformer_training(blocks).nodes
        seconds.append(seconds_there(partial(corpus.ENGINES[engine], nodes), 4))
    assert len(nodes) == 6266
    assert seconds[0] <= 2 * 0.06
    assert seconds[1] <= 2 * 0.35
    assert seconds[1] <= 8 * seconds[0]


def test_width_does_not_depend_on_depth() -> None:
    wide = [lanes(corpus.transformer_training(blocks).nodes).width for blocks in (1, 40)]
    assert wide[1] <= 1.2 * wide[0]
    deep, _ = corpus.transformer(60)
    layout = layered(deep.nodes)
    taken: dict[int, int] = {}
    for i, row in enumerate(layout.row):
        if row >= 0:
            beside = [layout.x[i] - p.x for p in layout.pills if p.reader == i]
            taken[row] = taken.get(row, 0) + layout.w[i] + 16 + max(beside, default=0)
    gutter = 8 * (1 + max((rail.track for rail in layout.rails), default=-1) + 1)
    assert layout.width <= 1.3 * max(taken.values()) + gutter
