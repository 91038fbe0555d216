"""The page shows a run over engines: its table in the Session tab, the reduction among the dispatches of the Plan."""

from __future__ import annotations

from typing import Any

import networks
import pytest
from bare_page import AUDIT, CUT, live, mount, open_tab
from engines import as_if_run
from playwright.sync_api import Page, expect

from gdlab.study.study import Study


@pytest.fixture(scope="module")
def document() -> Any:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(init=0, adam=1e-3)
    as_if_run(study)
    made = study.doc
    study.close()
    return made


def test_a_saved_run_has_its_engines_and_its_reduction(page: Page, document: Any) -> None:
    mount(page, document)
    open_tab(page, "session")
    table = page.locator(".gd-engines")
    expect(table).to_contain_text("2 engines, done, 40 of 40 steps, 3 s; late: engine 1")
    rows = table.locator("tr", has=page.locator("td"))
    expect(rows).to_have_count(2)
    expect(table.locator("tr[data-late] td").first).to_have_text("1 late")
    expect(rows.first).to_contain_text("node0cpu401 s500 ms0 µs1.5 s40 MB0.25")
    expect(table).to_contain_text("engine 0 on node0 ended in step 31: started again from step 20")
    drawn = rows.first.locator("td").last.evaluate("e => e.style.backgroundImage")
    assert "0%, 33.3%" in drawn.replace(" 33.3%", ", 33.3%").replace(",,", ",") and "50% 100%" in drawn, drawn
    assert page.evaluate(AUDIT) == [] and page.evaluate(CUT) == []

    open_tab(page, "plan")
    row = page.locator("tr[data-allreduce]")
    expect(row).to_contain_text("allreduce over 2 engines, predicted 6.02 ms, measured 12.5 ms")
    expect(page.locator("tr[data-allreduce] + tr.gd-foldrow")).to_have_count(1)  # before the update, which is folded
    assert "10 µs" in (row.get_attribute("title") or "")
    page.locator(".gd-foldrow button").click()
    before = document.data["allreduce"]["buckets"][0]["before"]
    expect(page.locator(f'tr[data-allreduce] + .gd-foldrow + tr[data-entity="dispatch:{before}"]')).to_have_count(1)
    page.locator("thead .gd-sort", has_text="KB moved").click()
    expect(page.locator("tbody tr[data-entity] ~ tr[data-allreduce]")).to_have_count(1)
    page.get_by_label("dispatches", exact=True).select_option("phase update")
    expect(row).to_have_count(0)
    assert page.evaluate(AUDIT) == [] and page.evaluate(CUT) == []


def test_buckets_stand_behind_what_writes_their_gradients(page: Page) -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(init=0, adam=1e-3, feed="random:1")
    as_if_run(study, buckets=3)
    document = study.doc
    study.close()
    mount(page, document)
    open_tab(page, "plan")
    rows = page.locator("tr[data-allreduce]")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("allreduce 1 of 3 over 2 engines, predicted")
    expect(rows.first).to_contain_text("2.5 ms of it beside the step")
    for k, bucket in enumerate(document.data["allreduce"]["buckets"][:2]):
        after = page.locator(f'tr[data-allreduce] + tr[data-entity="dispatch:{bucket["before"]}"]')
        expect(after).to_have_count(1)
        assert rows.nth(k).evaluate("e => e.nextElementSibling.dataset.entity") == f"dispatch:{bucket['before']}"
    expect(page.locator("tr[data-allreduce] + tr.gd-foldrow")).to_have_count(1)
    assert page.evaluate(AUDIT) == [] and page.evaluate(CUT) == []


def test_a_live_run_tells_its_engines(page: Page, document: Any) -> None:
    section = document.data["runs"][-1]["engines"]
    live(page, document)
    open_tab(page, "session")
    table = page.locator(".gd-engines")
    tell = "([n, engines]) => tell(metrics(n, n, [[n, 1 / n]], {engines}))"
    page.evaluate(tell, [1, None])
    expect(table).to_be_hidden()
    now = {**section, "fact": "2 engines, running, 7 of 40 steps, 1 s"}
    page.evaluate(tell, [2, now])
    expect(table.locator("h4")).to_contain_text("2 engines, running, 7 of 40 steps, 1 s")
