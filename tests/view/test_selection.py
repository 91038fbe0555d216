"""`doc.selection`: one selection for all documents and views of a study, in Python and in the page."""

from __future__ import annotations

from pathlib import Path

import networks
import pytest
from bare_page import FAKE, mount
from playwright.sync_api import Page

import gdlab as gd
from gdlab.base.errors import ArgumentError
from gdlab.jupyter.widget import close_panel, panel_of
from gdlab.study.study import Study
from gdlab.view.document.selection import local, portable

EVERY_KIND = "node:3.2 edge:0.5.0 step:0.1 rule:0.2 dispatch:1 kernel:0 interval:2 wgsl:0.1 line:0".split()


@pytest.fixture
def study() -> Study:
    return Study(networks.mlp(), train=True, device="cpu", name="mlp")


def test_every_document_of_a_study_has_its_selection(study: Study) -> None:
    first = study.doc
    assert first.selection == []
    first.selection = "node:0.3"
    assert first.selection == study.doc.selection == study.doc.with_view({"show": ["plan"]}).selection == ["node:0.3"]
    study.doc.selection = EVERY_KIND
    assert first.selection == EVERY_KIND
    first.selection = None
    assert study.doc.selection == []


def test_it_stays_where_stages_move(study: Study) -> None:
    study.doc.selection = ["node:3.2"]
    study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    _ = study.session
    assert study.doc.selection == ["node:3.2"]
    plain = Study(networks.mlp(), device="cpu").doc  # has no stage `final`
    assert local(plain.data, portable(study.doc.data, "node:3.2")) is None


def test_what_is_not_there_is_refused_and_changes_nothing(study: Study) -> None:
    document = study.doc
    document.selection = ["node:0.1"]
    for wrong in ("node:0.99", "bogus", ["node:0.2", "dispatch:999"]):
        with pytest.raises(ArgumentError, match="^select: entity: given "):
            document.selection = wrong  # type: ignore[assignment]
    assert document.selection == ["node:0.1"]


def test_a_document_alone_has_its_own(study: Study, tmp_path: Path) -> None:
    study.doc.selection = ["node:0.1"]
    path = study.save(tmp_path / "m.gdlab.json")
    one, other = gd.load_doc(path), gd.load_doc(path)
    one.selection = ["node:0.2"]
    assert (one.selection, other.selection, study.doc.selection) == (["node:0.2"], [], ["node:0.1"])
    assert one.with_view({"select": "node:0.7"}).selection == ["node:0.2"]


def test_the_page_is_told_and_tells(study: Study) -> None:
    study.doc.selection = ["node:0.3"]
    panel = panel_of(study)
    assert panel.widget.selected == ["node@written#3"]
    study.doc.selection = ["step:0.1", "dispatch:2"]
    assert panel.widget.selected == ["step@optimize:forward#1", "dispatch:2"]
    panel.widget.selected = ["node@final#1"]  # a click
    assert study.doc.selection == ["node:3.1"]
    close_panel(study)
    study.doc.selection = None  # nobody listens any more


SELECTED = "() => [...new Set([...document.querySelectorAll('[data-selected]')].map(e => e.dataset.entity))]"


def test_a_view_selects_what_python_says_and_python_hears_of_clicks(study: Study, page: Page) -> None:
    mount(page, study.doc)
    page.evaluate(FAKE.replace("KEY", repr(study.key)))
    assert page.evaluate(SELECTED) == ["node:0.6"]  # what was selected before the page came
    page.evaluate("() => model.tell('selected', ['node@written#3'])")
    assert page.evaluate(SELECTED) == ["node:0.3"] and page.evaluate("() => model.saved") == 0
    page.locator('[data-pane="before"] [data-entity="node:0.5"]').click()
    assert page.evaluate("() => model.traits.selected") == ["node@written#5"]
    assert page.evaluate("() => model.saved") == 1
    page.evaluate("() => { host.close(); }")
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').click()
    assert page.evaluate("() => model.traits.selected") == ["node@written#5"]  # a model that is gone is left alone
