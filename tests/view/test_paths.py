"""Paths between two nodes: one of each length, shortest first, without enumerating them all; the same in the page."""

from __future__ import annotations

import json
import random
from pathlib import Path

import networks
import pytest
from bare_page import mount, trained
from playwright.sync_api import Page

from gdlab.__main__ import main
from gdlab.base.errors import ArgumentError
from gdlab.base.words import plural
from gdlab.study.study import Study
from gdlab.view.ask.paths import MOST, path_counts, paths, paths_between


def lengths(inputs: list[list[int]], a: int, b: int) -> list[int]:
    """All lengths of paths, by the sets of them at every node."""
    known: list[set[int]] = [set() for _ in inputs]
    known[a] = {0}
    for node in range(a + 1, b + 1):
        known[node] = {n + 1 for i in inputs[node] for n in known[i]}
    return sorted(known[b])


@pytest.mark.parametrize("seed", range(200))
def test_one_path_of_each_length(seed: int) -> None:
    some = random.Random(seed)
    inputs = [some.sample(range(i), min(i, some.randrange(4))) for i in range(some.randrange(2, 40))]
    a, b = sorted(some.sample(range(len(inputs)), 2))
    found, wanted = paths_between(inputs, b, a), lengths(inputs, a, b)
    assert [len(path) - 1 for path in found.paths] == wanted[:MOST]
    assert found.whole == (len(wanted) <= MOST)
    for path in found.paths:
        assert (path[0], path[-1]) == (a, b)
        assert all(one in inputs[other] for one, other in zip(path, path[1:], strict=False))


def test_large_graphs_answer_at_once() -> None:
    """Their paths cannot be counted on fingers: a ladder of 5,000 steps has 2^5000."""
    chain = [[], *([i] for i in range(5000))]
    assert [len(path) for path in paths_between(chain, 0, 5000).paths] == [5001]
    ladder = [[], [0], *([i - 1, i - 2] for i in range(2, 5000))]
    found = paths_between(ladder, 0, 4999)
    assert path_counts(found) == "20 paths, 2,500 to 2,519 edges; there are longer ones"
    assert path_counts(paths_between([[], []], 0, 1)) == "no path along the edges"


def test_what_is_no_pair_of_nodes_is_refused() -> None:
    document = Study(networks.mlp(), device="cpu", name="mlp").doc
    for a, b in (("node:0.1", "node:1.2"), ("node:0.1", "node:0.1"), ("node:0.1", "line:0")):
        with pytest.raises(ArgumentError, match="^paths: nodes: given .*, wanted two nodes of one stage"):
            paths(document, a, b)
    with pytest.raises(ArgumentError, match="^select: entity: "):
        paths(document, "node:0.1", "node:0.99")


def test_the_command_line_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(trained().save(tmp_path / "mlp.gdlab.json"))
    ends = ["--at", "node:4.22", "--to", "node:4.0"]
    assert main(["explain", file, *ends]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    found = paths(trained(), "node:4.0", "node:4.22")
    assert head == f"node:4.22 – node:4.0: {path_counts(found)}" and len(rows) == len(found.paths) > 1
    for row, path in zip(rows, found.paths, strict=True):
        assert row.startswith(f"  {plural(len(path) - 1, 'edge')}: node:4.0 input x → ")
        assert all(f"node:4.{i} " in row for i in path)
    assert main(["explain", file, *ends, "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["whole"] and given["paths"] == [[f"node:4.{i}" for i in path] for path in found.paths]
    assert main(["explain", file, "--to", "node:4.0"]) == 2
    assert capsys.readouterr().err == "explain: to: given --to node:4.0 alone, wanted --at ENTITY, the other end\n"


def test_the_page_lights_them_and_says_how_many(page: Page) -> None:
    mount(page, trained())
    page.locator('[role="tab"][data-tab="grad"]').click()
    hits, tool = page.locator(".gd-hits"), page.locator('[data-tool="reach"]')
    pane = page.locator('[data-pane="lanes"]')
    pane.locator('[data-entity="node:4.0"]').first.click()
    tool.select_option("paths")
    assert hits.inner_text() == "paths: wanted two selected nodes of one graph (Shift + click)"
    pane.locator('[data-entity="node:4.22"]').first.click(modifiers=["Shift"])
    assert hits.inner_text() == ""
    tool.select_option("paths")
    found = paths(trained(), "node:4.0", "node:4.22")
    assert hits.inner_text() == path_counts(found) and tool.input_value() == "all"
    selected = pane.locator("[data-selected]").evaluate_all("all => [...new Set(all.map(e => e.dataset.entity))]")
    assert sorted(selected) == sorted({f"node:4.{i}" for path in found.paths for i in path})
    page.locator(".gdlab").focus()
    page.keyboard.press("[")
    assert hits.inner_text() == "" and set(
        pane.locator("[data-selected]").evaluate_all("all => all.map(e => e.dataset.entity)")
    ) == {"node:4.0", "node:4.22"}
