"""Everything that the README tells people to type works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from places import REPO

TEXT = (REPO / "README.md").read_text(encoding="utf-8")


def test_the_scripts(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
    assert names["study"].session.step_count == 100
    assert capsys.readouterr().out.startswith("graph linear: 7 nodes")
    assert names["session"].param_names() == ["body.weight", "body.bias", "head.weight", "head.bias"]
    assert (tmp_path / "mlp.safetensors").stat().st_size > 4 * 784 * 128
    names["study"].close()
    names["session"].close()


def test_the_pictures_are_there() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(set(named)) == 2 * 5 and all((REPO / path).is_file() for path in named)


def test_its_figures_are_those_of_the_page_of_figures() -> None:
    page = (REPO / "docs" / "figures.md").read_text(encoding="utf-8")
    table = TEXT.partition("## Six figures")[2].partition("[docs/figures.md]")[0]
    figures = re.findall(r"\*\*([\d.,]+)\*\*", table)
    assert len(figures) == 6
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", page), figure


def test_it_is_short_and_what_it_links_to_is_there() -> None:
    assert len(TEXT.splitlines()) <= 190
    linked = set(re.findall(r"\]\(([^)#]+)\)", TEXT))
    assert len(linked) >= 12 and all((REPO / path).exists() for path in linked)
