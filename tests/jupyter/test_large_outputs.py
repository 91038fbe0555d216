"""An output of a notebook is at most 1 MB and never lacks its picture; what is left out is said, with the command."""

from __future__ import annotations

from typing import Any

import networks
import pytest

from gdlab.base.errors import LoadError
from gdlab.jupyter import display
from gdlab.study.study import Study
from gdlab.view.document.document import Document, read_doc
from gdlab.view.document.reduced import (
    NO_STAGES,
    PICTURE_ALONE,
    without_growth,
    without_other_stages,
    without_values,
)
from gdlab.view.picture.picture import picture, shown_stages


@pytest.fixture(scope="module")
def document() -> Document:
    study = Study(networks.mlp(), train=True, device="cpu", name="deep")
    study.variant("plain", disable=["fuse_silu"])
    return study.doc


def bundle_of(document: Document, show: str, most: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(display, "_MAX_PACKED_BYTES", most)
    return display.bundle(document, [show])[0]


@pytest.mark.parametrize(
    ("show", "kept"),
    [
        ("opt", ["written", "optimized"]),
        ("graph", ["written"]),
        ("grad", ["written", "derivative:written"]),
        ("plan", ["written", "final"]),
        ("session", ["written", "final"]),
    ],
)
def test_third_all_stages_but_those_shown_are_left_out(
    document: Document, show: str, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = without_values(without_growth(document))
    few = without_other_stages(bare, shown_stages(bare, show))
    sizes = [len(display.pack(d.with_view({"show": [show], "height": None}))) for d in (bare, few)]
    assert sizes[1] < sizes[0]
    data = bundle_of(document, show, sum(sizes) // 2, monkeypatch)
    left = read_doc(data[display.MIME])
    names = [stage["key"] for stage in document.data["stages"]]
    assert [stage["key"] for stage in left.data["stages"]] == kept
    assert left.data["notes"][-1]["text"] == NO_STAGES and "NAME.save(" in NO_STAGES
    assert left.check() == () and left.id != document.id
    assert data["image/svg+xml"] == display.bundle(document, [show])[0]["image/svg+xml"]
    assert bool(left.data["plan"]) == (show in ("plan", "session"))
    for s, stage in enumerate(left.data["stages"]):  # what lights up is what lit up
        before = names.index(stage["key"])
        for i in range(stage["nodes"]["count"]):
            lines = {e for e in document.select(f"node:{before}.{i}") if e.startswith("line:")}
            assert {e for e in left.select(f"node:{s}.{i}") if e.startswith("line:")} == lines


def test_a_document_of_two_stages_stays_as_it_is() -> None:
    document = Study(networks.mlp(), train=False, device="cpu").doc
    assert without_other_stages(document, shown_stages(document, "opt")) is document


def test_entities_are_renamed_with_their_stages(document: Document) -> None:
    last = len(document.data["stages"]) - 1
    view = {"show": ["opt"], "select": f"node:{last}.0", "diff": [0, last]}
    run = {"about": f"node:{last}.1", "events": [{"about": f"node:{last}.0"}, {"about": "node:1.0"}, {"about": None}]}
    asked = document.changed(runs=[run], view=view)
    left = without_other_stages(asked, [0, last]).data
    assert left["view"] == {"show": ["opt"], "select": "node:1.0", "diff": [0, 1]}
    assert left["runs"] == [{"about": "node:1.1", "events": [{"about": "node:1.0"}, {"about": None}, {"about": None}]}]


@pytest.mark.parametrize("show", ["opt", "plan", "session"])
def test_at_last_all_but_the_picture_is_left_out_and_said(
    document: Document, show: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bundle_of(document, show, 100, monkeypatch)
    assert data["image/svg+xml"].startswith("<svg") and data["image/svg+xml"] == picture(document, show)
    assert data[display.MIME] == {"format": "gdlab.graph.v1", "study": document.data["study"], "picture": PICTURE_ALONE}
    assert data["text/plain"].splitlines()[-1] == f"note: {PICTURE_ALONE}" and "NAME.save(" in PICTURE_ALONE
    with pytest.raises(LoadError, match="an output of which the picture alone was kept"):
        read_doc(data[display.MIME])
