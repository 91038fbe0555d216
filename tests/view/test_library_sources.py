"""The source of gdlab's own example networks is in a document, behind the line that called them (view2 F8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bare_page import mount
from documents import checked
from playwright.sync_api import Page

from gdlab import models
from gdlab.base.errors import GdlabError
from gdlab.graph import Graph
from gdlab.study.study import Study

MODELS: list[tuple[Callable[[], Graph], str, str, str]] = [
    (models.resnet18, "resnet.py", "global_avg_pool", "global_avg_pool"),
    (models.transformer_lm, "lm.py", "embedding", "self.embed("),
]


@pytest.mark.parametrize(("make", "file", "op", "text"), MODELS)
def test_nodes_of_a_model_lead_to_its_own_source(make: Callable[[], Graph], file: str, op: str, text: str) -> None:
    document = checked(Study(make(), train=True, device="cpu", name="net").doc)
    sources = document.data["sources"]
    assert sources[0]["name"] == Path(__file__).name, "the line that called the model comes first"
    assert file in [source["name"] for source in sources[1:]]
    node = document.nodes(0).column("op").index(op)
    lit = [document.lines[int(e[5:])] for e in document.select(f"node:0.{node}") if e.startswith("line:")]
    texts = [sources[at["source"]]["text"].split("\n")[at["line"] - sources[at["source"]]["first_line"]] for at in lit]
    assert any(text in each for each in texts) and any("make()" in each for each in texts), texts


def test_a_person_s_frames_are_the_person_s_alone() -> None:
    graph = models.resnet18()
    assert {Path(chain[0].file).name for chain in graph.sources()} == {Path(__file__).name}
    assert all(graph.source(i) == chain for i, chain in enumerate(graph.sources()))
    inner = {Path(chain[0].file).name for chain in graph.sources(models=True)}
    assert inner == {"resnet.py", "blocks.py"}
    with pytest.raises(GdlabError) as error:
        models.resnet18(batch=-1)
    assert error.value.source is None or Path(error.value.source.file).name == Path(__file__).name


def test_the_pane_shows_the_model_and_lights_its_line(page: Page) -> None:
    mount(page, Study(models.resnet18(), train=True, device="cpu", name="resnet").doc)
    page.locator('[data-command="source"]').click()
    pane = page.locator('[data-pane="source"]')
    assert "resnet.py" in pane.locator(".gd-place").all_text_contents()
    page.locator('[data-pane="before"] .gd-box', has_text="global_avg_pool").click()
    lit = pane.locator("[data-lit], [data-some]")
    assert any("global_avg_pool" in text for text in lit.all_text_contents())
