"""Make the pictures of `docs/pictures/`: run the tour and four more cells in real JupyterLab, look at eight views.

make pictures                                  all of them, light and dark
python docs/pictures.py plan kernels           only these
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests" / "helpers"))

import nbformat  # noqa: E402
from browser import CHROMIUM_FLAGS, Server, cell, open_notebook, run_all, serving, theme, wait_idle  # noqa: E402
from machine import chromium, set_environment  # noqa: E402
from playwright.sync_api import Locator, Page, sync_playwright  # noqa: E402

TOUR = REPO / "notebooks" / "tour.ipynb"
FOLDER = REPO / "docs" / "pictures"

# It learns well, until for one example the argument of the logarithm is negative.
BROKEN = """%%graph bad --train
x, y = input("x", (32, 16)), input("y", (32, 16))
h = tanh(x @ parameter("w1", (16, 64)))
guess = h @ parameter("w2", (64, 16))
fit = square(guess - y)
barrier = log(guess + 2.5) * 0.1
(fit - barrier).mean_all()"""
RUN_BROKEN = "%graph_run bad 100 --feed random:0 --sgd 2 --init 0 --watch everything"
# Experts beside each other, layer below layer: 6,236 nodes with the derivative.
LARGE = """%%graph experts --train
h = x = input("x", (16, 32))
for layer in range(12):
    total = h
    for e in range(21):
        up, down, gate = (parameter(f"{layer}_{e}_{n}", (32, 32)) for n in ("up", "down", "gate"))
        total = total + tanh(h @ gate) * (relu(h @ up) @ down)
    h = total
mse_loss(tanh(tanh(h)) + 1.0, input("y", (16, 32)))"""

# Small enough that its e-graph can be read.
GATED = """%%graph gated
x = input("x", (32, 64))
g = x @ parameter("wg", (64, 128)) + parameter("bg", (128,)).broadcast_to((32, 128))
u = x @ parameter("wu", (64, 128))
(g * sigmoid(g) * u) @ parameter("wd", (128, 64)) + x"""


def open_tab(view: Locator, name: str) -> None:
    view.locator(f'[role="tab"][data-tab="{name}"]').click()


def graph(view: Locator) -> None:
    view.locator('[data-pane="after"] .gd-box', has_text="fused_matmul_add").first.click()


def stepper(view: Locator) -> None:
    back, on = (view.locator(f'[data-command="autodiff-{way}"]') for way in ("previous", "next"))
    while back.is_enabled():
        back.click()
    for _ in range(2):
        on.click()


def replay(view: Locator) -> None:
    """Into the rewrites, where another picture may have left the e-graph behind them."""
    open_tab(view, "rewrites")
    view.get_by_role("button", name="rewrites", exact=True).click()
    view.locator('[data-pane="rewrites"] tr', has_text="Mul+Sigmoid→Silu").first.click()


def growth(view: Locator) -> None:
    """The e-graph when no rule has anything left to say, and one class of it."""
    open_tab(view, "rewrites")
    view.get_by_role("button", name="e-graph").click()
    on = view.locator('[data-command="egraph-next"]')
    while on.is_enabled():
        on.click()
    view.locator('[data-pane="egraph"] .gd-classname', has_text=re.compile("^g$")).click()


def plan(view: Locator) -> None:
    open_tab(view, "plan")
    view.locator('tr[data-entity="dispatch:1"]').click()


def kernels(view: Locator) -> None:
    open_tab(view, "kernels")
    view.locator('[data-pane="kernels"] [data-entity^="wgsl:"][title^=from]').nth(1).click()


def as_it_is(view: Locator) -> None:
    pass


def far_away(view: Locator) -> None:
    open_tab(view, "grad")
    lanes = view.locator('[data-pane="lanes"]')
    camera = lanes.locator(".gd-camera[data-zoom]")
    camera.wait_for()
    while camera.get_attribute("data-zoom") != "all":
        lanes.locator('[data-command="zoom-fit"]').click()


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: the cell it is of, by the start of its source, and what to do before."""

    name: str
    start: str
    prepare: Callable[[Locator], None]


SHOTS = (
    Shot("graph", "%%graph mlp", graph),
    Shot("derivative", "%graph_grad mlp", stepper),
    Shot("replay", "%%graph gated", replay),
    Shot("egraph", "%%graph gated", growth),
    Shot("plan", "%graph_plan mlp", plan),
    Shot("kernels", "%graph_plan mlp", kernels),
    Shot("nan", "%graph_run bad", as_it_is),
    Shot("large", "%%graph experts", far_away),
)


def take(page: Page, sources: list[str], mode: str, wanted: list[str]) -> None:
    for shot in SHOTS:
        if wanted and shot.name not in wanted:
            continue
        index = next(i for i, source in enumerate(sources) if source.startswith(shot.start))
        view = cell(page, index).locator(".gdlab").first
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(500)  # a view that comes into sight is drawn then
        shot.prepare(view)
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        cell(page, index).evaluate("e => e.scrollIntoView({block: 'start'})")
        page.wait_for_timeout(200)
        cell(page, index).screenshot(path=FOLDER / f"{shot.name}-{mode}.png")
        print(f"docs/pictures/{shot.name}-{mode}.png", flush=True)


def notebook(lab: Server) -> Path:
    """The tour with what the other pictures need behind it, in front of its summary."""
    made = nbformat.read(TOUR, as_version=4)
    more = [nbformat.v4.new_code_cell(source) for source in (BROKEN, RUN_BROKEN, GATED, LARGE)]
    made.cells[-1:-1] = more
    path = lab.root.parent / "pictures.ipynb"
    nbformat.write(made, path)
    return path


def main(wanted: list[str]) -> None:
    set_environment()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, serving("jupyterlab", Path(home)) as lab, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_context(viewport={"width": 1500, "height": 1500}).new_page()
        page.set_default_timeout(30_000)
        path = open_notebook(page, lab, notebook(lab), "tour.ipynb")
        sources = [c.source for c in nbformat.read(path, as_version=4).cells]
        run_all(page)
        page.locator(".jp-OutputArea-output pre", has_text="gdlab-summary {").wait_for(
            state="attached", timeout=240_000
        )
        wait_idle(page)
        for mode in ("light", "dark"):
            theme(page, "light" if mode == "light" else "dark")
            take(page, sources, mode, wanted)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
