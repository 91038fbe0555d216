"""The arena in numbers: a column to scale, slots beside it, and memory over time."""

from __future__ import annotations

import networks
import pytest
import view_networks

import gdlab as gd
from gdlab.study.study import Study
from gdlab.view.layout.arena import LABEL, arrange, is_pinned, mountain
from gdlab.view.picture.arena_picture import MOST_INTERVALS
from gdlab.view.picture.plan_picture import plan_picture
from gdlab.view.text.plan_text import live_bytes

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
