"""Draw views in real JupyterLab: thirty of the eight test networks, ten again in dark, five docked (view2 §1), and
what teaches (view2 §3) on the tour and three networks: twenty-seven light, twelve dark.

make shots TO=/tmp/shots                       all of them
python docs/shots.py /tmp/shots mlp3 dark      only of these networks; only light, dark, docked or teach
python docs/shots.py /tmp/shots teach stepper  of those that teach only these, light and dark
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests" / "helpers"))

from browser import CHROMIUM_FLAGS, Server, bring, cell, open_notebook, run_all, serving, start_cell, theme  # noqa: E402
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


TINY = """%%graph tiny --train --values
x = input("x", (3,))
w = parameter("w", (3,))
h = tanh(x * w)
(h * h).sum_all()"""


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


# What teaches: the cells, and for each picture its cell, what to do before, and whether it is drawn in dark, too.
TEACHING_CELLS = {
    "setup": "%load_ext gdlab",
    "tour": TOUR,
    "mlp3": MLP3,
    "attention": ATTENTION,
    "gated": GATED,
    "tiny": TINY,
    "run-tour": "%graph_run tour 400 --feed random:0 --adam 2e-3 --init 0",
    "run-gated": "%graph_run gated 60 --feed random:0 --sgd 0.1 --init 0",
    "check": "%graph_check tour",
    "trace": "%graph_trace tour --samples 10",
    "watch": "%graph_watch tour h\n%graph_run tour 40",
    "told": "%graph_watch tour --list",
    "step": "%graph_step tour 4 --dispatch",
    "doctor": "%graph_doctor",
    "live": "%graph_run mlp3 --for 60 --feed random:0 --adam 2e-3 --init 0",
}


@dataclass(frozen=True, slots=True)
class Lesson:
    """A picture that teaches: its name, its cell, and what to do before it is taken."""

    name: str
    cell: str
    prepare: Callable[[Locator], None]
    dark: bool = False


def tab(name: str, then: Callable[[Locator], None] = lambda view: None) -> Callable[[Locator], None]:
    def prepare(view: Locator) -> None:
        press(view, name)
        then(view)

    return prepare


def steps(pane: str, count: int) -> Callable[[Locator], None]:
    def forward(view: Locator) -> None:
        back, on = (view.locator(f'[data-command="{pane}-{way}"]') for way in ("previous", "next"))
        while back.is_enabled():
            back.click()
        for _ in range(count):
            on.click()

    return forward


def first(what: str) -> Callable[[Locator], None]:
    return lambda view: view.locator(what).first.click()


def as_it_is(view: Locator) -> None:
    pass


def asked(command: str) -> Callable[[Locator], None]:
    """Press a button that asks the kernel, and wait for the drawn answer; the last one is closed."""

    def ask(view: Locator) -> None:
        view.locator(f'[data-command="{command}"]').first.click()
        view.locator(".gd-asked").wait_for()

    return ask


def dispatch(index: int) -> Callable[[Locator], None]:
    return first(f'tr[data-entity="dispatch:{index}"]')


LESSONS = (
    Lesson("stepper", "tour", tab("grad", steps("autodiff", 3)), dark=True),
    Lesson("rewrite", "tour", tab("rewrites", steps("scrub", 1)), dark=True),
    Lesson("timeline", "tour", tab("plan"), dark=True),
    Lesson("timeline-selected", "tour", tab("plan", dispatch(9))),
    Lesson("arena", "tour", tab("arena"), dark=True),
    Lesson("kernel", "tour", tab("kernels"), dark=True),
    Lesson("numbers", "tiny", tab("opt"), dark=True),
    Lesson("numbers-lanes", "tiny", tab("grad", steps("autodiff", 2)), dark=True),
    Lesson("session", "run-tour", tab("session"), dark=True),
    Lesson("memory", "run-tour", tab("arena")),
    Lesson("check", "check", as_it_is, dark=True),
    Lesson("trace", "trace", as_it_is, dark=True),
    Lesson("watch", "told", as_it_is),
    Lesson("step", "step", as_it_is),
    Lesson("doctor", "doctor", as_it_is, dark=True),
    Lesson("attention-stepper", "attention", tab("grad", steps("autodiff", 4))),
    Lesson("attention-rewrite", "attention", tab("rewrites", steps("scrub", 1))),
    Lesson("attention-arena", "attention", tab("arena")),
    Lesson("gated-rewrite", "gated", tab("rewrites", steps("scrub", 5))),
    Lesson("gated-kernel", "gated", tab("kernels")),
    Lesson("gated-session", "run-gated", tab("session")),
    Lesson("mlp3-timeline", "mlp3", tab("plan")),
    Lesson("asked-check", "gated", tab("grad", asked("check")), dark=True),
    Lesson("asked-time", "run-gated", tab("plan", asked("trace")), dark=True),
)


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


def teach(page: Page, folder: Path, wanted: set[str], mode: str) -> None:
    indexes = {name: i for i, name in enumerate(TEACHING_CELLS)}
    for lesson in LESSONS:
        if (wanted and lesson.name not in wanted) or (mode == "dark" and not lesson.dark):
            continue
        bring(page, indexes[lesson.cell])
        place = cell(page, indexes[lesson.cell])
        place.locator(".gd-frame, .gd-answer").first.wait_for()
        for close in place.locator('[data-command="close-answer"]').all():
            close.click()
        lesson.prepare(place.locator(".gdlab").first)
        place.evaluate("e => e.scrollIntoView({block: 'start'})")
        settle(page)
        save(page, folder / f"teach-{lesson.name}{'-dark' if mode == 'dark' else ''}.png")


def teach_live(page: Page, folder: Path) -> None:
    """The panel while a cell runs, in three tabs."""
    index = len(TEACHING_CELLS) - 1
    start_cell(page, index)
    view = cell(page, index).locator(".gdlab").first
    view.locator(".gd-frame").wait_for()
    for name in ("session", "plan", "arena"):
        press(view, name)
        cell(page, index).evaluate("e => e.scrollIntoView({block: 'start'})")
        page.mouse.move(0, 0)
        page.wait_for_timeout(2500)
        save(page, folder / f"teach-live-{name}.png")
    press(view, "session")
    view.locator('[data-command="stop"]').first.click()


def ran(page: Page, cells: int) -> None:
    """Wait until so many cells have run."""
    page.wait_for_function(
        "cells => window.jupyterapp.shell.currentWidget.content.widgets.slice(0, cells)"
        ".every(c => c.model.executionCount !== null)",
        arg=cells,
        timeout=LARGE_WAIT,
    )
    page.wait_for_timeout(3000)


def teaching(page: Page, lab: Server, folder: Path, wanted: set[str]) -> None:
    os.environ.pop("GDLAB_STEPS", None)
    cells = list(TEACHING_CELLS.values())
    open_notebook(page, lab, [*cells[:-1], ""], "teach.ipynb")
    run_all(page)
    ran(page, len(cells) - 1)
    teach(page, folder, wanted, "light")
    theme(page, "dark")
    teach(page, folder, wanted, "dark")
    theme(page, "light")
    if not wanted or "live" in wanted:
        page.evaluate(
            "text => window.jupyterapp.shell.currentWidget.content.widgets.at(-1).model.sharedModel.setSource(text)",
            cells[-1],
        )
        bring(page, len(cells) - 1)
        teach_live(page, folder)


def save(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    print(path.name, flush=True)


def main(folder: Path, wanted: set[str]) -> None:
    modes = wanted & {"light", "dark", "docked", "teach"} or {"light", "dark", "docked", "teach"}
    wanted -= modes
    set_environment()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, serving("jupyterlab", Path(home)) as lab, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        if "teach" in modes:
            teaching(page, lab, folder, wanted)
        if modes == {"teach"}:
            return
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
