"""Make the pictures of `docs/pictures/`: run the tour in real JupyterLab and take a screenshot of each of its views.

    make pictures
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests"))

import nbformat  # noqa: E402
from browser import CHROMIUM_FLAGS, cell, open_notebook, run_all, serving, theme, wait_idle  # noqa: E402
from conftest import chromium  # noqa: E402
from playwright.sync_api import Locator, Page, sync_playwright  # noqa: E402

TOUR = REPO / "notebooks" / "tour.ipynb"
FOLDER = REPO / "docs" / "pictures"


def open_tab(view: Locator, name: str) -> None:
    view.locator(f'[role="tab"][data-tab="{name}"]').click()


def graph(view: Locator) -> None:
    view.locator('[data-pane="before"] [data-entity^="node:"]', has_text="relu").first.click()


def stepper(view: Locator) -> None:
    for _ in range(2):
        view.locator('[data-command="autodiff-next"]').first.click()


def plan(view: Locator) -> None:
    open_tab(view, "plan")
    view.locator('tr[data-entity="dispatch:1"]').click()


def kernels(view: Locator) -> None:
    open_tab(view, "kernels")


def rewrites(view: Locator) -> None:
    open_tab(view, "rewrites")
    view.locator('[data-entity^="step:"]').first.click()


def as_it_is(view: Locator) -> None:
    view.page.mouse.move(0, 0)


# name, start of the source of the cell, what to do before the picture
VIEWS: tuple[tuple[str, str, Callable[[Locator], None]], ...] = (
    ("graph", "%%graph mlp", graph),
    ("derivative", "%graph_grad mlp", stepper),
    ("plan", "%graph_plan mlp", plan),
    ("session", "%graph_run mlp", as_it_is),
    ("block", "%%graph block", rewrites),
    ("block-derivative", "%graph_grad block", as_it_is),
    ("kernels", "%graph_plan mlp", kernels),
)


def take(page: Page, sources: list[str], mode: str) -> None:
    for name, start, prepare in VIEWS:
        index = next(i for i, source in enumerate(sources) if source.startswith(start))
        view = cell(page, index).locator(".gdlab").first
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(500)  # a view that comes into sight is drawn then
        prepare(view)
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)
        cell(page, index).evaluate("e => e.scrollIntoView({block: 'start'})")
        page.wait_for_timeout(200)
        cell(page, index).screenshot(path=FOLDER / f"{name}-{mode}.png")
        print(f"docs/pictures/{name}-{mode}.png")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    sources = [c.source for c in nbformat.read(TOUR, as_version=4).cells]
    with tempfile.TemporaryDirectory() as home, serving("jupyterlab", Path(home)) as lab, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_context(viewport={"width": 1500, "height": 1500}).new_page()
        page.set_default_timeout(30_000)
        open_notebook(page, lab, TOUR, "tour.ipynb")
        run_all(page)
        page.locator(".jp-OutputArea-output pre", has_text="gdlab-summary {").wait_for(state="attached", timeout=90_000)
        wait_idle(page)
        for mode in ("light", "dark"):
            theme(page, "light" if mode == "light" else "dark")
            take(page, sources, mode)
        browser.close()


if __name__ == "__main__":
    main()
