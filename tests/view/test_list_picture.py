"""The picture of a recorded list and its text twin: the same groups, moves and conflicts; sizes are bounded."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import recording as rec

import gdlab as gd
from gdlab.record.list_report import Report
from gdlab.view.picture.list_picture import MOST_NODES, list_html, list_picture

SVG = "{http://www.w3.org/2000/svg}"


def example(finisher: str = "finish_with_fusion_and_reorder") -> Report:
    """A norm and its product, two chains, and behind a fence a softmax with a node that is free."""
    ex = rec.executor("cpu")
    x, y, scale, out, soft, *a = (
        rec.zeros(ex, 4, 64, label=n, transient=n == "y") for n in ("x", "y", "scale", "out", "soft", *"abcd")
    )
    s = ex.begin_recorded(auto_barrier=True)
    s.rms_norm(x, rec.zeros(ex, 64, label="w<&>"), y, 4, 64)
    s.elementwise_mul(y, scale, out, 256, gd.f32)
    for source, target in ((out, a[0]), (a[0], a[1]), (x, a[2]), (a[2], a[3])):
        s.gelu(source, target)
    s.barrier()
    s.elementwise_add(a[1], a[3], out, 256, gd.f32)
    s.softmax(out, soft, 4, 64)
    s.gelu(x, a[0])
    getattr(s, finisher)()
    return s.report


def drawn(picture: str) -> list[dict[str, Any]]:
    """Groups, moves and conflicts of each stage, as the picture has them."""
    stages: list[dict[str, Any]] = []
    for part in ET.fromstring(picture).iter():
        if part.get("class") == "gd-list-title":
            stages.append({"title": part.text, "groups": [], "moved": {}, "hazards": []})
        elif part.get("data-group") is not None:
            stages[-1]["groups"].append([int(k) for k in part.get("data-nodes", "").split()])
        elif part.get("data-was") is not None:
            stages[-1]["moved"][int(part.get("data-node", ""))] = int(part.get("data-was", ""))
        elif part.get("data-hazard") is not None:
            stages[-1]["hazards"].append(part.get("data-hazard"))
    return stages


def told(text: str) -> list[dict[str, Any]]:
    """The same of the text twin, whose last stage comes first."""
    stages = [{"title": "", "groups": [], "moved": {}, "hazards": []}]
    for line in text.splitlines():
        if re.match(r"As recorded|After \w+:", line):
            stages.append({"title": line.partition(":")[0], "groups": [], "moved": {}, "hazards": []})
        elif named := re.match(r" *group \d+: (.*)", line):
            nodes = re.findall(r"(\d+) [^,(]+(?:\(was (\d+)\))?", named[1])
            stages[-1]["groups"].append([int(k) for k, _ in nodes])
            stages[-1]["moved"] |= {int(k): int(was) for k, was in nodes if was}
        elif conflict := re.match(r" +(\w+): node (\d+) → node (\d+), bytes", line):
            stages[-1]["hazards"].append(" ".join(conflict.groups()))
    return [*stages[1:], stages[0]]


def test_picture_and_text_name_the_same_groups_moves_and_hazards() -> None:
    report = example()
    picture, text = drawn(list_picture(report)), told(str(report))
    assert [stage["title"] for stage in picture] == ["As recorded", "After fusion", "After reordering"]
    for shown, said in zip(picture, text, strict=True):
        assert {k: shown[k] for k in ("groups", "moved", "hazards")} == {
            k: said[k] for k in ("groups", "moved", "hazards")
        }
    assert picture[0]["groups"] == [[0], [1], [2], [3, 4], [5], [6], [7, 8]]
    assert picture[2]["groups"] == [[0, 1], [2, 3], [4], [5, 6], [7]]
    assert picture[2]["moved"] == {1: 3, 2: 1, 3: 4, 4: 2, 6: 7, 7: 6}
    assert picture[2]["hazards"] == ["raw 0 2", "raw 1 3", "raw 2 4", "raw 4 5", "war 4 6", "raw 5 7"]


def test_every_node_behind_the_first_group_says_why_it_stays() -> None:
    report = example()
    stays = report.stages[-1].stays
    assert stays[:2] == ("", "")
    assert re.fullmatch(r"raw with node 0, bytes 0 … 1024 of \d+", stays[2])
    assert stays[5:7] == ("a fence stands before it", "a fence stands before node 5")
    text, picture = str(report), list_picture(report)
    for k, why in enumerate(stays):
        if why:
            line = f"node {k} {report.names[k]}: {why}"
            assert line in text and line in picture


def test_an_opaque_node_and_the_end_of_the_look_ahead_are_reasons() -> None:
    ex = rec.executor("cpu")
    memory = [rec.zeros(ex, 8) for _ in range(8)]
    s = ex.begin_recorded(auto_barrier=True)
    s.gelu(memory[0], memory[1])
    s.encoder_mut().dispatch(lambda x: x.relu(), [memory[2]], memory[3], opaque=True)
    s.gelu(memory[4], memory[5])
    s.finish_with_fusion_and_reorder()
    stage = s.report.stages[-1]
    opaque = "node 1 is opaque: it conflicts with everything"
    assert stage.stays == ("", opaque, opaque)
    s = ex.begin_recorded(auto_barrier=True)  # 0→1, 1→2, S 5→6, 2→3, 10→11 of the table of §9
    for k, (a, b) in enumerate(((0, 1), (1, 2), (4, 5), (2, 3), (6, 7))):
        (s.gelu if k != 2 else lambda x, y: s.softmax(x, y, 1, 8))(memory[a], memory[b])
    s.finish_with_fusion_and_reorder()
    stage = s.report.stages[-1]
    assert [list(g) for g in stage.groups] == [[0], [1, 2, 3], [4]]
    assert stage.stays[2] == stage.stays[3] == "the look-ahead did not reach it: softmax, sdpa or 63 nodes end it"
    s = rec.direct(ex)
    for a, b in ((0, 1), (1, 2), (4, 5)):
        s.gelu(memory[a], memory[b])
    s.finish()
    assert s.report.stages[-1].stays[2] == "nothing moves nodes here, and a node before it begins the group"


def test_a_range_is_drawn_to_scale_where_it_lies() -> None:
    """Two halves of one allocation lie below one another, and what is written is told from what is read."""
    ex = rec.executor("cpu")
    whole = rec.zeros(ex, 128, label="both")
    s = ex.begin_recorded(auto_barrier=True)
    s.gelu(whole.slice_view(0, 64), whole.slice_view(256, 64))
    s.finish()
    boxes = [r for r in ET.fromstring(list_picture(s.report)).iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    read, written = (box for box in boxes if "read" in (box.get("class") or "") or "write" in (box.get("class") or ""))
    assert read.get("class") == "gd-list-read" and written.get("class") == "gd-list-write"
    assert float(written.get("y", 0)) == float(read.get("y", 0)) + float(read.get("height", 0))
    assert "both, bytes 256 … 512: written" in "".join(written.itertext())


@pytest.mark.parametrize("count", [0, 1, 65, 700])
def test_lists_of_any_length_fit_the_width(count: int) -> None:
    ex = rec.executor("cpu")
    memory = [rec.zeros(ex, 8) for _ in range(max(2, min(count, 40)))]
    s = ex.begin_recorded(auto_barrier=True)
    for k in range(count):
        s.gelu(memory[k % len(memory)], memory[(k + 1) % len(memory)])
    s.finish_optimized()
    picture = list_picture(s.report)
    root = ET.fromstring(picture)
    places = [float(r.get("x", 0)) + float(r.get("width", 0)) for r in root.iter(f"{SVG}rect")]
    assert max(places) <= 1070 and len(picture) < 200_000
    assert ("the first 48 nodes are drawn" in picture) == (count > MOST_NODES)
    assert root.get("role") == "img" and "List of finish_optimized" in "".join(root.itertext())


def test_the_page_follows_the_theme_and_nothing_of_a_label_is_markup() -> None:
    report = example()
    html = list_html(report)
    assert "body[data-jp-theme-light=false] .gd-list" in html and "w&lt;&amp;&gt;" in html
    light, dark = list_picture(report), list_picture(report, "dark")
    assert "#ffffff" in light and "#14171b" in dark and "#14171b" not in light
