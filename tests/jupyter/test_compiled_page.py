"""Compiled graphs in the page: slots, handles, feeds, arena and extent in the Plan and Arena panes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bare_page import mount, open_tab, trained
from compiled_graphs import ready, recurrence, small
from overlaps import unreadable

from gdlab.compiled import CompiledGraph
from gdlab.view.text.twin import twin

pytestmark = pytest.mark.browser


def fed() -> CompiledGraph:
    graph = ready(recurrence(), "cpu")
    graph.bind_gpu_handle("h", np.zeros((5, 4)))
    graph.set_gpu_handle_feed("h", 0)
    graph.bind_handle("x", np.ones((5, 4)))
    graph.run_raw()
    return graph


def rows(page: Any) -> list[str]:
    return [" ".join(text.split()) for text in page.locator('[data-pane="plan"] .gd-io tr').all_inner_texts()]


def fact(page: Any) -> str:
    return str(page.locator('[data-pane="plan"] .gd-iofact').inner_text())


def test_the_plan_shows_handles_feeds_slots_and_the_extent(page: Any) -> None:
    mount(page, fed().doc("cell"))
    open_tab(page, "plan")
    assert rows(page) == [
        "edge name type value",
        "input h f32[5, 4] ● gpu handle, fed by out0",
        "input x f32[5, 4] ○ host handle",
        "output out0 f32[5, 4] bytes 0 … 79 of the arena",
        "output out1 f32[5] bytes 256 … 275 of the arena",
    ]
    assert unreadable(page) == []
    assert fact(page) == "extent: no bucket axes; arena: 512 bytes, of run 1"
    graph = ready(small(), "cpu", bucket_axes={"x": 0})
    graph.set_active_extent((1, 2))
    mount(page, graph.doc())
    open_tab(page, "plan")
    assert fact(page).startswith("extent: 1 of 2 entries along x [0]")


def test_the_arena_shows_outputs_to_scale_and_feeds_as_arrows(page: Any) -> None:
    graph = fed()
    document = graph.doc("cell")
    mount(page, document)
    open_tab(page, "arena")
    picture = page.locator(".gd-iopicture")
    boxes = picture.locator(".gd-interval")
    assert boxes.count() == 4 and picture.locator(".gd-active").count() == 0
    (first, second) = (
        boxes.nth(k).locator("rect").evaluate("e => [e.x, e.width].map(v => v.baseVal.value)") for k in (0, 1)
    )
    room = picture.locator(".gd-slotrow").evaluate("e => e.width.baseVal.value")
    assert second[0] - first[0] == pytest.approx(room / 2, abs=1) and first[1] == pytest.approx(room * 80 / 512, abs=2)
    assert [boxes.nth(k).get_attribute("data-handle") for k in (2, 3)] == ["gpu", "host"]
    assert picture.locator(".gd-feed title").all_text_contents() == ["output 0 out0 becomes input h after every run"]
    assert unreadable(page) == []
    boxes.nth(0).click()
    buffer = f"interval:{graph.signature.outputs[0].buffer}"
    assert boxes.nth(0).get_attribute("data-entity") == buffer
    assert picture.locator(f'[data-entity="{buffer}"]').get_attribute("data-selected") is not None
    assert "input h : f32[5, 4]; gpu handle, fed by output 0" in twin(document, "arena")


def test_the_arena_shows_the_active_part_of_an_extent(page: Any) -> None:
    graph = ready(small(), "cpu", bucket_axes={"x": 0})
    for actual, share in ((1, 0.5), (2, 1.0), (0, 0.0)):
        graph.set_active_extent((actual, 2))
        mount(page, graph.doc())
        open_tab(page, "arena")
        widths = page.locator(".gd-extent rect").evaluate_all("all => all.map(e => e.width.baseVal.value)")
        assert widths[1] == pytest.approx(share * widths[0], abs=0.5)


def test_the_session_pane_shows_the_counters(page: Any) -> None:
    graph = fed()
    mount(page, graph.doc("cell"))
    open_tab(page, "session")
    pane = page.locator('[data-pane="session"]')
    shown = {name: pane.locator(f'[data-value="{name}"]').inner_text() for name in graph.counters()}
    assert shown == {name: f"{count:,}" for name, count in graph.counters().items()} and shown["copies"] == "1"
    assert pane.locator('[data-value="handle_bytes"]').inner_text() == "80 B"
    assert pane.locator(".gd-fact").inner_text() == "1 run"


def test_what_is_no_compiled_graph_has_no_edge(page: Any) -> None:
    mount(page, trained())
    for tab in ("plan", "arena", "session"):
        open_tab(page, tab)
        assert page.locator('[data-value="throttle_waits"]').count() == 0
        assert page.locator(".gd-io, .gd-iopicture").count() == 0
