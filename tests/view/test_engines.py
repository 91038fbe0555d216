"""Layouts by another engine, dot among them: what it draws, and what is said when it does not."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import networks
import pytest

from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.document.layouts import drawn, laid_out
from gdlab.view.layout.dot import dot_layout, dot_seconds
from gdlab.view.picture.picture import picture

Fake = Callable[[str], None]


@pytest.fixture(scope="module")
def document() -> Document:
    return Study(networks.mlp(batch=8), train=True, device="cpu", name="mlp").doc  # type: ignore[no-any-return]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A `dot` of our own, first on PATH."""

    def make(script: str) -> None:
        path = tmp_path / "dot"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return make


def engines(document: Document) -> list[str]:
    return [stage["layouts"]["auto"]["engine"] for stage in document.data["stages"]]


def test_auto_is_what_the_document_has(document: Document) -> None:
    assert laid_out(document, "auto") is document
    assert engines(document) == ["layered", "layered", "lanes", "lanes", "lanes"]


@pytest.mark.parametrize("engine", ["layered", "lanes"])
def test_an_engine_is_used_for_every_stage(document: Document, engine: str) -> None:
    made = laid_out(document, engine)
    assert engines(made) == [engine] * 5 and made.id == document.id and made.data["notes"] == document.data["notes"]
    assert picture(made, "opt").startswith("<svg") and engines(document)[0] == "layered", "the first is not changed"


ANSWER = """cat > /dev/null
cat <<'EOF'
{"bb": "0,0,100,200",
 "objects": [{"name": "0", "pos": "50,180"}, {"name": "1", "pos": "50,20"}],
 "edges": [{"tail": 0, "head": 1, "pos": "e,50,40 50,160 50,140 50,100 50,50"}]}
EOF"""


def test_dot_is_read_into_our_own_form(document: Document, fake: Fake) -> None:
    fake(ANSWER)
    nodes = drawn(document, 0)[:2]
    layout = dot_layout(nodes)
    assert layout.engine == "dot" and layout.y == (8, 168) and layout.row == (0, 1)
    assert [layout.x[i] + layout.w[i] // 2 for i in (0, 1)] == [58, 58]
    (edge,) = layout.edges
    assert (
        (edge.a, edge.b, edge.kind) == (0, 1, "param") and edge.points[0] == (58, 48) and edge.points[-1] == (58, 168)
    )


def test_the_real_dot_overlaps_nothing(document: Document) -> None:
    made = laid_out(document, "dot")
    if any("not found" in note["text"] for note in made.data["notes"]):
        assert engines(made) == engines(document)
        return
    layout = dot_layout(drawn(document, 0))
    boxes = list(zip(layout.x, layout.y, layout.w, strict=True))
    for i, (x, y, w) in enumerate(boxes):
        for other, below, wide in boxes[:i]:
            assert x + w <= other or other + wide <= x or abs(y - below) >= 40
    assert all(layout.y[e.a] < layout.y[e.b] for e in layout.edges) and engines(made) == ["dot"] * 5


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo 'syntax error in line 1' >&2; exit 1", "dot: failed: syntax error in line 1; drawn with layered"),
        ("exec sleep 20", "dot: gave up after 200 ms (14 nodes); drawn with layered"),
    ],
)
def test_a_dot_that_fails_or_is_late_is_a_note(
    document: Document, fake: Fake, monkeypatch: pytest.MonkeyPatch, script: str, note: str
) -> None:
    monkeypatch.setenv("GDLAB_DOT_SECONDS", "0.2")
    fake(script)
    first = Document({**document.data, "stages": document.data["stages"][:1]})
    made = laid_out(first, "dot")
    assert [n["text"] for n in made.data["notes"]] == [note] and engines(made) == ["layered"]


def test_a_missing_dot_is_one_note(document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = laid_out(document, "dot")
    assert [n["text"] for n in made.data["notes"]] == [
        "dot: not found; drawn with layered", "dot: not found; drawn with lanes",
    ]  # fmt: skip


def test_the_limit_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("0.01", 0.1), ("5", 5.0), ("1000", 60.0), ("soon", 2.0)):
        monkeypatch.setenv("GDLAB_DOT_SECONDS", given)
        assert dot_seconds() == wanted
