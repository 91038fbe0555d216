"""Modules as groups: read off the dotted names of parameters where no call of a person's own groups the graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

import networks
import pytest
import view_networks
from bare_page import mount
from browser import box_of
from playwright.sync_api import Page

from gdlab import models, nn, ops
from gdlab.base.words import nbytes
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.document.groups import Groups, groups_of
from gdlab.view.document.layouts import drawn
from gdlab.view.document.modules import module_of
from gdlab.view.text.plan_text import live_bytes
from gdlab.view.text.twin import twin


def tree(groups: Groups) -> list[tuple[str, str, int]]:
    """Label, kind and depth of every group."""
    depth: list[int] = []
    for row in groups.rows:
        depth.append(depth[row.parent] + 1 if row.parent >= 0 else 0)
    return [(row.label, row.kind, d) for row, d in zip(groups.rows, depth, strict=True)]


def residual() -> Graph:
    """Two blocks of two layers around a residual sum, then a head."""
    with Graph() as graph:
        h = ops.relu(ops.input("x", (4, 8)) @ ops.parameter("stem.weight", (8, 8)))
        for i in range(2):
            a = ops.relu(h @ ops.parameter(f"body.{i}.up.weight", (8, 8)))
            h = ops.relu((a @ ops.parameter(f"body.{i}.down.weight", (8, 8))) + h)
        graph.output((h.mean(-1, keepdims=True) @ ops.parameter("head.weight", (1, 1))).sum())
    return graph


def test_what_ends_a_block_belongs_to_it_and_what_comes_after_does_not() -> None:
    graph = residual()
    at = [".".join(path) for path in module_of(graph)]
    found = [(node.op, at[node.id]) for node in graph if node.inputs]
    up, down = ("matmul", "body.{}.up"), ("matmul", "body.{}.down")
    block = [up, ("relu", "body.{}"), down, ("add", "body.{}"), ("relu", "body.{}")]
    assert found == [
        ("matmul", "stem"), ("relu", ""), *[(op, path.format(i)) for i in range(2) for op, path in block],
        ("mean", ""), ("matmul", "head"), ("sum", ""),
    ]  # fmt: skip


def test_a_language_model_is_a_series_of_blocks_with_their_halves() -> None:
    groups = groups_of(models.transformer_lm())
    halves = [("self_attn", "module", 2), ("mlp", "module", 2)]
    blocks = [each for i in range(4) for each in [(f"layers.{i}", "module", 1), *halves]]
    assert tree(groups) == [("layers", "series", 0), *blocks]
    assert groups.rows[0].repeat == 4 and groups.rows[2].path == "model.layers.0.self_attn"


def test_blocks_that_differ_are_no_series() -> None:
    groups = groups_of(models.resnet18(mode="inference"))
    blocks = [[(f"layer{i}", "module", 0), *((f"layer{i}.{k}", "module", 1) for k in range(2))] for i in range(1, 5)]
    assert tree(groups) == [*sum(blocks, []), ("stem", "module", 0)]
    assert [row.repeat for row in groups.rows if row.parent < 0] == [2, 2, 2, 2, 1]


def test_experts_beside_each_other_are_networks_with_all_that_lies_in_them() -> None:
    """A module of several products holds what lies between them; a run of `expert0` … is named `expert`."""
    groups = groups_of(view_networks.experts())
    assert tree(groups) == [("expert", "series", 0), *[(f"expert{i}", "module", 1) for i in range(4)]]
    inside = Counter(node.op for node, g in zip(view_networks.experts(), groups.of_node, strict=True) if g == 2)
    assert inside == Counter(["matmul", "matmul", "broadcast_to", "add", "relu", *3 * ["parameter"]])


def test_the_residual_sum_of_a_numbered_block_belongs_to_it_whatever_its_name() -> None:
    """`b0.g` … are blocks as `b.0.g` are: one series, which is closed in one piece."""
    graph = networks.deep(3)
    assert [row[:2] for row in tree(groups_of(graph))] == [("b", "series"), *[(f"b{i}", "module") for i in range(3)]]
    at = [".".join(path) for path in module_of(graph)]
    assert [at[node.id] for node in graph if node.op == "add"] == ["b0", "b1", "b2"]


def test_a_persons_calls_come_first() -> None:
    def block(i: int, h: Any) -> Any:
        return ops.relu(nn.Linear(f"body.{i}", 8, 8)(ops.relu(h)))

    with Graph() as graph:
        h = ops.input("x", (4, 8))
        for i in range(3):
            h = block(i, h)
        graph.output(h.square().mean_all())
    assert {(label, kind) for label, kind, _ in tree(groups_of(graph))} == {("block", "series"), ("block", "call")}


@pytest.mark.parametrize("name", ["w", "", ".", "..", "a..b", "1.2.3", "∂.x", "__proto__.__proto__", "x" * 9000 + ".w"])
def test_any_name_will_do(name: str) -> None:
    with Graph() as graph:
        h = ops.input("x", (4, 4))
        for i in range(4):
            h = ops.relu(h @ ops.parameter(f"{name}{i}.{name}", (4, 4)) if name else h @ ops.parameter(f"w{i}", (4, 4)))
        graph.output(h.mean_all())
    Study(graph, name="any").doc.check()


def test_names_inside_a_module_are_short_in_pictures_and_whole_in_the_table() -> None:
    document = Study(models.transformer_lm(), train=True, name="lm").doc
    document.check()
    for stage in range(len(document.data["stages"])):
        nodes, boxes = document.nodes(stage), drawn(document, stage)
        names = {node["name"]: box.name for node, box in zip(nodes, boxes, strict=True) if node["op"] == "parameter"}
        assert names["model.layers.1.self_attn.q_proj.weight"] == "q_proj.weight"
        assert names["model.layers.1.input_layernorm.weight"] == "input_layernorm.weight"
        assert names["lm_head.weight"] == "lm_head.weight"


def test_a_model_opens_so_that_it_can_be_read(page: Page) -> None:
    """Its blocks are one closed series, its spine is in the middle, its scale is at least .75."""
    mount(page, Study(models.transformer_lm(), train=True, name="lm").doc)
    pane = page.locator('[data-pane="before"]')
    assert pane.locator(".gd-fact").first.inner_text() == "10 nodes for 105 nodes"
    frame, first = box_of(pane), box_of(pane.locator(".gd-box").first)
    assert abs(first["x"] + first["width"] / 2 - frame["x"] - frame["width"] / 2) < 90
    assert 0.75 <= float(page.locator(".gd-sizer").first.evaluate("e => e.style.getPropertyValue('--gd-z')")) <= 1


def test_a_buffer_without_a_name_has_the_path_of_its_module() -> None:
    """T7: and memory over time adds up to the peak, whatever the groups are."""
    document = Study(residual(), train=True, device="cpu", name="residual").doc
    names = [row["name"] for row in document.plan("intervals")]
    assert {"body.0.relu", "body.1.relu", "stem.weight", "∂body.0.up.weight"} < set(names), names
    always, live = live_bytes(document)
    memory, text = document.data["plan"]["memory"], twin(document, "arena")
    assert always + max(live) == memory["peak_bytes"]
    assert f"always there {nbytes(always)}; in use" in text
    (peak,) = (line for line in text.splitlines() if line.endswith("  peak"))
    assert f"group {memory['peak_group']:>3}," in peak and nbytes(memory["peak_bytes"]) in peak
