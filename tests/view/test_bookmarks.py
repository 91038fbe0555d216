"""Bookmarks: names for selections, one list for a study and its views; kept in `view`, in files, read by the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import networks
import pytest
from bare_page import FAKE, mount
from documents import checked
from playwright.sync_api import Page

import gdlab as gd
from gdlab.__main__ import main
from gdlab.base.errors import ArgumentError
from gdlab.jupyter.display import study_bundle
from gdlab.jupyter.widget import close_panel, panel_of
from gdlab.study.study import Study
from gdlab.view.ask.slices import view_slice
from gdlab.view.document.document import read_doc
from gdlab.view.text.twin import everything

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def study() -> Study:
    return Study(networks.mlp(), train=True, device="cpu", name="mlp")


def test_they_are_the_study_s_and_hold_where_stages_move(study: Study) -> None:
    assert study.doc.bookmarks == {} and study.doc.data["view"] is None
    study.doc.bookmarks = {"the loss": "node:0.13", "two": ["node:3.2", "dispatch:1"]}
    study.variant("plain", disable=["MatMul+BiasAdd→FusedMatMulAdd"])
    assert study.doc.bookmarks == {"the loss": ["node:0.13"], "two": ["node:3.2", "dispatch:1"]}
    with pytest.raises(ArgumentError, match="^select: entity: given "):
        study.doc.bookmarks = {"wrong": "node:0.99"}
    assert list(study.doc.bookmarks) == ["the loss", "two"]


def test_files_hold_them_and_say_them(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study.doc.bookmarks = {"the loss": "node:0.13", HOSTILE: ["node:1.0"]}
    path = study.save(tmp_path / "m.gdlab.json.gz")
    read = checked(gd.load_doc(path))
    assert read.bookmarks == study.doc.bookmarks and read.id == study.doc.id
    assert study.save(tmp_path / "a.gdlab.json").read_bytes() == read.save(tmp_path / "b.gdlab.json").read_bytes()
    assert view_slice(read, "plan")["bookmarks"] == read.bookmarks
    assert main(["explain", str(path), "--view", "opt"]) == 0
    assert "bookmark 'the loss': node:0.13 cross_entropy_loss : f32[1]\n" in capsys.readouterr().out
    assert everything(read).splitlines()[2] == f"bookmark '{HOSTILE}': node:1.0 input x : f32[64, 64]"
    page = study.save(tmp_path / "m.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    held = re.search(r'id="gdlab-document">(.*?)</script>', page, re.DOTALL)
    assert held and read_doc(json.loads(held[1])).bookmarks == study.doc.bookmarks
    read.bookmarks = {}
    assert gd.load_doc(read.save(tmp_path / "c.gdlab.json")).bookmarks == {}


def test_an_output_has_them_and_the_widget_tells_and_hears(study: Study) -> None:
    panel = panel_of(study)
    mark = {"name": "h", "tab": "plan", "entities": ["node@written#6"]}
    panel.widget.kept = {"bookmarks": [mark], "map": False}  # a page
    assert study.doc.bookmarks == {"h": ["node:0.6"]}
    data, _ = study_bundle(study, ["opt"])
    output = read_doc(data["application/vnd.gdlab.graph.v1+json"])
    assert output.data["view"]["map"] is False and output.bookmarks == {"h": ["node:0.6"]}
    study.doc.bookmarks = {**study.doc.bookmarks, "x": ["node:0.0"]}
    assert panel.widget.kept["bookmarks"] == [mark, {"name": "x", "tab": "opt", "entities": ["node@written#0"]}]
    assert panel.widget.kept["map"] is False
    close_panel(study)
    study.doc.bookmarks = {}


def test_what_a_page_kept_in_an_output_is_read_with_it(study: Study) -> None:
    """V11: the extension writes it beside the document, which stays as it was."""
    data, _ = study_bundle(study, ["opt"])
    output = data["application/vnd.gdlab.graph.v1+json"]
    mark = {"name": "h", "tab": "plan", "entities": ["node@written#6"]}
    found = checked(read_doc({**output, "kept": {"bookmarks": [mark], "map": True, "columns": {"opt 3": [2, 1, 0]}}}))
    assert found.bookmarks == {"h": ["node:0.6"]} and found.data["view"]["map"] is True
    assert found.data["view"]["columns"] == {"opt 3": [2, 1, 0]}
    assert found.data["view"]["show"] == ["opt"] and found.id == read_doc(output).id
    assert read_doc({**output, "kept": {"bookmarks": 3}}).bookmarks == {}
    close_panel(study)


@pytest.mark.parametrize(
    "given",
    [{"columns": {"opt 3": [1, "a"]}}, {"columns": {"opt": [-1, 2]}}, {"columns": [1]},
     {"bookmarks": 3}, {"bookmarks": [{"name": "a"}, 7]}, {"bookmarks": [{"name": 1, "tab": "", "entities": []}]},
     {"bookmarks": [{"name": "a", "tab": "", "entities": [2]}]}, {"map": "yes", "labels": None}, {"other": 1}],
)  # fmt: skip
def test_what_is_no_bookmark_is_passed_over(study: Study, given: dict[str, Any]) -> None:
    panel_of(study).widget.kept = given
    assert study.doc.bookmarks == {} and not any(study.doc.with_view({}).data["view"].values())
    close_panel(study)


# the page ------------------------------------------------------------------------------------------------------------
TOLD = "() => model.traits.selected"
NAMES = "() => [...document.querySelectorAll('datalist option')].map(e => e.value)"


def test_by_keyboard_a_name_keeps_goes_and_is_forgotten(study: Study, page: Page) -> None:
    mount(page, study.doc)
    page.evaluate(FAKE.replace("KEY", repr(study.key)))
    field, forget = page.locator('[data-command="bookmark"]'), page.locator('[data-command="bookmark-forget"]')
    assert field.get_attribute("placeholder") == "☆ bookmark" and not forget.is_visible()
    page.keyboard.press("Tab")
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').first.click()
    page.keyboard.press("b")
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    assert page.evaluate(NAMES) == [HOSTILE] and page.locator("img").count() == 0
    mark = {"name": HOSTILE, "tab": "opt", "entities": ["node@written#6"]}
    assert page.evaluate("() => model.traits.kept") == {"bookmarks": [mark]}
    page.keyboard.press("b")
    page.keyboard.press("Escape")
    page.keyboard.press("5")  # to the plan: keys are the view's again
    assert page.locator(".gdlab").get_attribute("data-tab") == "plan"
    page.locator('tr[data-entity="dispatch:2"]').click()
    page.keyboard.press("b")
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    assert page.locator(".gdlab").get_attribute("data-tab") == "opt" and page.evaluate(TOLD) == ["node@written#6"]
    page.keyboard.press("[")
    assert page.evaluate(TOLD) == ["dispatch:2"]  # a way back, as from any selection
    forget.click()
    assert page.evaluate(NAMES) == [] and page.evaluate("() => model.traits.kept") == {"bookmarks": []}


def test_a_page_has_those_of_its_document_and_of_python(study: Study, page: Page) -> None:
    study.doc.bookmarks = {"h": "node:0.6"}
    mount(page, study.doc.with_view({"show": ["plan"]}))
    assert page.evaluate(NAMES) == ["h"]
    field = page.locator('[data-command="bookmark"]')
    assert field.get_attribute("placeholder") == "★ 1"
    page.evaluate(FAKE.replace("KEY", repr(study.key)))
    page.evaluate("() => model.tell('kept', {bookmarks: [{name: 'far', tab: 'opt', entities: ['node@gone#1']}]})")
    assert page.evaluate(NAMES) == ["far"]
    field.fill("far")
    field.press("Enter")
    page.wait_for_function("() => document.querySelector('.gd-voice').textContent.includes('far: nothing of it')")
    page.locator(".gdlab").focus()
    page.keyboard.press("Escape")
    field.fill("new")
    field.press("Enter")
    page.wait_for_function("() => document.querySelector('.gd-voice').textContent.includes('new: nothing is selected')")
    assert page.evaluate(NAMES) == ["far"]
