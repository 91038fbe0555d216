"""Names in a Markdown export are shown as they stand: no markup, no link, no formula, no second line."""

from __future__ import annotations

import re
from pathlib import Path

import mistune
import pytest

import gdlab as gd
from gdlab.view.text.twin import markdown

NAMES = [
    "a|b", "*bold* _it_", "<b onclick='x'>", "[text](http://a.b)", "![img](x.png)", "`code`", "$x^2$", "# head",
    "~~gone~~", "https://example.org/path", "www.example.org", "me@example.org", "&lt;", "\\(x\\)", "\\begin{a}",
    "line\nbreak", "\x1b[31mred", "@@0@@", "1. one", "half \ud800 pair",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_markup(name: str, tmp_path: Path) -> None:
    with gd.Graph() as graph:
        x = gd.input("x", (2,))
        graph.output((x + 1.0).named(name), "y")
    study = gd.Study(graph, name="g", device="cpu")
    text = markdown(study.doc)
    page = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "url"])(text)
    row = re.search(r"<td>node:0\.2</td>(.*?)</tr>|<td>node:0\.1</td>(.*?)</tr>", str(page), re.DOTALL)
    assert row is not None, text
    body = row.group(0)
    assert re.findall(r"<(?!/?t[dr]\b)[^>]*>", body) == [], body
    assert not re.search(r"\\\\[\[\](){}]", text) and "\x1b" not in text and "$" not in text.replace("\\$", "")
    study.save(tmp_path / "g.md")
    study.close()


def test_a_title_and_a_summary_are_escaped_too() -> None:
    with gd.Graph() as graph:
        graph.output(gd.input("x", (2,)) + 1.0, "y")
    study = gd.Study(graph, name="<b>*g*</b>", device="cpu")
    text = markdown(study.doc)
    assert "<b>" not in text and text.startswith("# \\<b\\>\\*g\\*\\</b\\>")
    study.close()
