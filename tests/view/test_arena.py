"""The arena in numbers: a column to scale, slots beside it, and memory over time."""

from __future__ import annotations

import copy
import itertools
import re

import networks
import pytest
import view_networks
from documents import checked

import gdlab as gd
from benchmarks.memory import NETWORKS
from gdlab.base.words import nbytes
from gdlab.study.study import Study
from gdlab.view.document.closure import problems
from gdlab.view.document.document import Document
from gdlab.view.layout.arena import LABEL, arrange, is_pinned, mountain
from gdlab.view.picture.arena_picture import MOST_INTERVALS
from gdlab.view.picture.plan_picture import plan_picture
from gdlab.view.text.plan_text import live_bytes
from gdlab.view.text.twin import twin

MADE = {
    "tour": networks.mlp, "attention": view_networks.attention, "gated": view_networks.gated,
    "lm": gd.models.transformer_lm,
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_is_always_there_is_a_column_and_the_axis_holds_what_has_a_lifetime(name: str) -> None:
    """T7, of the static picture: one scale, no pinned buffer in a row, no label over another."""
    document = Study(MADE[name](), train=True, device="cpu", name=name).doc
    intervals, slots = list(document.plan("intervals")), list(document.plan("slots"))
    made = arrange(intervals, slots)
    segments = [each for stratum in made.strata for each in stratum.segments]
    assert sorted(each.index for each in segments) == [i for i, each in enumerate(intervals) if is_pinned(each)]
    top = 0.0
    for each in segments:
        assert each.top == pytest.approx(top) and each.height == intervals[each.index]["padded"] * made.unit
        top += each.height
    assert top == pytest.approx(made.always * made.unit)
    assert sorted(i for row in made.rows for i in row.tenants) == [
        i for i, each in enumerate(intervals) if not is_pinned(each)
    ]
    assert all(above.top + above.height < below.top for above, below in zip(made.rows, made.rows[1:], strict=False))
    labels = [x for s in made.strata for x in (s.label, *(each.label for each in s.segments)) if x is not None]
    assert all(b - a >= LABEL for a, b in zip(sorted(labels), sorted(labels)[1:], strict=False))

    always, live = live_bytes(document)
    groups, tops = list(document.plan("groups")), [0] * len(document.plan("dispatches"))
    for band in mountain(intervals, groups, len(tops)):
        for k, below in enumerate(band.below, band.start):
            assert below == tops[k], "tensor upon tensor"
            tops[k] += band.nbytes
    assert always == made.always and [tops[group["start"]] for group in groups] == live


def test_a_plan_of_many_buffers_is_drawn_in_few_elements() -> None:
    document = Study(gd.models.resnet18(), train=True, device="cpu", name="resnet").doc
    assert document.plan("intervals").count > MOST_INTERVALS / 2
    drawn = plan_picture(document)
    assert drawn.count('data-entity="interval:') <= MOST_INTERVALS and len(drawn) < 200_000


# side by side ---------------------------------------------------------------------------------------------------------
RECT = re.compile(r'data-entity="interval:(\d+)"><title>[^<]*</title><rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" '
                  r'height="([\d.]+)"')  # fmt: skip


@pytest.fixture(scope="module")
def beside() -> Document:
    """The document of a network whose buffers stand side by side in slots."""
    build, _ = NETWORKS["convolutions"]
    return Study(build(), train=True, device="cpu", name="convolutions").doc


def test_tenants_side_by_side_lie_beside_each_other_in_the_picture(beside: Document) -> None:
    checked(beside)
    intervals, slots = list(beside.plan("intervals")), list(beside.plan("slots"))
    made = arrange(intervals, slots)
    drawn = {int(i): tuple(map(float, box)) for i, *box in RECT.findall(plan_picture(beside))}
    pairs = 0
    for row in made.rows:
        boxes = [(intervals[i]["offset"], *drawn[i]) for i in row.tenants]
        several = any(offset for offset, *_ in boxes)
        assert row.least == (1 if several else 12)
        ground = min(y for _, _, y, _, _ in boxes)
        assert all(y + height <= ground + row.height for _, _, y, _, height in boxes)
        for (at, x, y, width, height), (other, left, top, wide, high) in itertools.combinations(boxes, 2):
            if at != other and x < left + wide and left < x + width:
                assert y + height <= top + 1 or top + high <= y + 1, "they meet in time, so not in height"
                pairs += 1
    assert pairs > 3


def test_the_text_of_the_arena_says_at_which_byte_a_buffer_begins(beside: Document) -> None:
    text = twin(beside, "arena").splitlines()
    rows = {line.split()[0]: line for line in reversed(text) if line.lstrip().startswith("interval:")}
    for i, row in enumerate(beside.plan("intervals")):
        place = f"{row['slot']} + {nbytes(row['offset'])}"
        assert (place in rows[f"interval:{i}"]) == (row["offset"] > 0)


def test_a_document_whose_neighbours_share_a_byte_breaks_a_rule(beside: Document) -> None:
    data = copy.deepcopy(beside.data)
    assert problems(data) == () and any(data["plan"]["intervals"]["offset"])
    data["plan"]["intervals"]["offset"] = [0] * len(data["plan"]["intervals"]["offset"])
    assert "while both live" in problems(data)[0]
