"""Draw thirty views of the eight test networks in real JupyterLab (view2 §1), ten again in dark, five docked.

make shots TO=/tmp/shots                       all of them
python docs/shots.py /tmp/shots mlp3 dark      only of these networks; only light, dark or docked
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests" / "helpers"))

from browser import CHROMIUM_FLAGS, bring, cell, open_notebook, run_all, serving, theme  # noqa: E402
from machine import chromium, set_environment  # noqa: E402
from playwright.sync_api import Locator, Page, sync_playwright  # noqa: E402

HELPERS = REPO / "tests" / "helpers"
LARGE_WAIT = 240_000

MLP3 = """%%graph mlp3 --train
sizes = 256, 256, 128, 10
h, labels = input("x", (32, 256)), input("labels", (32, 10))
for i in range(3):
    w, b = parameter(f"w{i}", sizes[i:i+2]), parameter(f"b{i}", sizes[i+1:i+2])
    z = h @ w + b
    h = relu(z) if i < 2 else z
cross_entropy_loss(h, labels)"""
ATTENTION = """%%graph attention --train
x, target = input("x", (32, 64)), input("target", (32, 64))
q, k, v = (x @ parameter(name, (64, 64)) for name in ("wq", "wk", "wv"))
weights = softmax(q @ k.T * 0.125)
mixed = weights @ v
mse_loss(mixed @ parameter("wo", (64, 64)) + x, target)"""
GATED = """%%graph gated --train
x, target = input("x", (64, 256)), input("target", (64, 256))
gate = x @ parameter("gate_proj", (256, 512)) + parameter("gate_bias", (512,))
up = x @ parameter("up_proj", (256, 512)) + parameter("up_bias", (512,))
h = gate * sigmoid(gate) * up
mse_loss(h @ parameter("down_proj", (512, 256)) + x, target)"""
TOUR = """%%graph tour --train
x = input("x", (64, 64))
y = input("y", (64, 10))
h = relu(bias_add(x @ parameter("w1", (64, 128)), parameter("b1", (128,))))
z = bias_add(h @ parameter("w2", (128, 10)), parameter("b2", (10,)))
cross_entropy_loss(z, y)"""


def study(name: str, model: str, train: bool) -> str:
    return f"{name} = gd.Study(gd.models.{model}(), train={train}, name={name!r})\n%graph {name}"


CELLS = {
    "setup": f"%load_ext gdlab\nimport sys\nsys.path.insert(0, {str(HELPERS)!r})\nimport gdlab as gd, onnx_models\n"
    "open('cnn.onnx', 'wb').write(onnx_models.cnn())",
    "tour": TOUR,
    "mlp3": MLP3,
    "attention": ATTENTION,
    "gated": GATED,
    "lm": study("lm", "transformer_lm", False),
    "lmtrain": study("lmtrain", "transformer_lm", True),
    "resnet": study("resnet", "resnet18", True),
    "cnn": "%graph cnn.onnx",
    "run-tour": "%graph_run tour 300 --feed random:0 --adam 2e-3 --init 0",
    "run-gated": "%graph_run gated 60 --feed random:0 --sgd 0.1 --init 0",
}
NETWORKS = ("tour", "mlp3", "attention", "gated", "lm", "lmtrain", "resnet", "cnn")
LIGHT = dict.fromkeys(NETWORKS, ("opt", "grad", "plan")) | {
    "run-tour": ("session", "arena"),
    "run-gated": ("session", "arena"),
    "tour ": ("egraph",),
    "gated ": ("egraph",),
}
DARK = {
    "tour": ("opt", "grad", "plan"),
    "mlp3": ("opt",),
    "lmtrain": ("grad",),
    "resnet": ("opt",),
    "run-tour": ("session", "arena"),
    "gated ": ("egraph",),
    "attention": ("plan",),
}
DOCKED = {"mlp3": ("opt", "plan"), "gated": ("grad",), "resnet": ("opt",), "run-tour": ("session",)}


def press(view: Locator, tab: str) -> None:
    found = view.locator(f'[role="tab"][data-tab="{tab}"]')
    if found.is_visible():
        found.click()
    else:
        view.locator(".gd-tabmenu").select_option(tab)


def open_tab(view: Locator, tab: str) -> None:
    if tab != "egraph":
        return press(view, tab)
    press(view, "rewrites")
    graph = view.get_by_role("button", name="e-graph")
    if graph.count():
        graph.first.click()
    on = view.locator('[data-command="egraph-next"]')
    while on.count() and on.is_enabled():
        on.click()


def settle(page: Page) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(600)


def draw(page: Page, shots: dict[str, tuple[str, ...]], folder: Path, wanted: set[str], suffix: str = "") -> None:
    indexes = {name: i for i, name in enumerate(CELLS)}
    for spaced, tabs in shots.items():
        name = spaced.strip()
        if wanted and name not in wanted:
            continue
        bring(page, indexes[name])
        view = cell(page, indexes[name]).locator(".gdlab").first
        view.locator(".gd-frame").wait_for()
        for tab in tabs:
            open_tab(view, tab)
            cell(page, indexes[name]).evaluate("e => e.scrollIntoView({block: 'start'})")
            settle(page)
            save(page, folder / f"{name}-{tab}{suffix}.png")


def draw_docked(page: Page, folder: Path, wanted: set[str]) -> None:
    indexes = {name: i for i, name in enumerate(CELLS)}
    for name, tabs in DOCKED.items():
        if wanted and name not in wanted:
            continue
        bring(page, indexes[name])
        cell(page, indexes[name]).locator(".gdlab .gd-besidebutton").first.click()
        page.wait_for_timeout(1500)
        for tab in tabs:
            view = page.locator(".gd-beside .gdlab").last
            open_tab(view, tab)
            settle(page)
            save(page, folder / f"{name}-{tab}-docked.png")
        page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab:not(:has-text('shots'))").locator(
            ".lm-TabBar-tabCloseIcon"
        ).click()
        page.locator(".gd-away").wait_for(state="detached")


def save(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    print(path.name, flush=True)


def main(folder: Path, wanted: set[str]) -> None:
    modes = wanted & {"light", "dark", "docked"} or {"light", "dark", "docked"}
    wanted -= modes
    set_environment()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, serving("jupyterlab", Path(home)) as lab, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        needed = wanted and {name for name in CELLS if name in wanted or f"run-{name}" in wanted} | {"setup"}
        for name in [name for name in CELLS if needed and name not in needed and f"run-{name}" not in wanted]:
            CELLS[name] = "0"
        open_notebook(page, lab, list(CELLS.values()), "shots.ipynb")
        run_all(page)
        page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.content.widgets.every(c => c.model.executionCount !== null)",
            timeout=LARGE_WAIT,
        )
        page.wait_for_timeout(3000)
        if "light" in modes:
            draw(page, LIGHT, folder, wanted)
        if "docked" in modes:
            draw_docked(page, folder, wanted)
        if "dark" in modes:
            theme(page, "dark")
            draw(page, DARK, folder, wanted, "-dark")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
