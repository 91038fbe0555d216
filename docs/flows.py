"""Do ten things as a new user would, in real JupyterLab, by pointer and by keyboard; count the actions; write flows.md.

    python docs/flows.py

An action is a click, a key or chord, or a word typed in one go. Every flow ends with a look whether it got there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests" / "helpers"))

from browser import CHROMIUM_FLAGS, cell, open_notebook, run_cell, serving, wait_idle  # noqa: E402
from machine import chromium, set_environment  # noqa: E402
from playwright.sync_api import Locator, Page, sync_playwright  # noqa: E402

NETWORK = """%%graph mlp --train --device cpu
x = input("x", (8, 6))
y = input("y", (8, 3))
h = relu(x @ parameter("w1", (6, 5)) + parameter("b1", (5,)))
g = h * sigmoid(h)
z = g @ parameter("w2", (5, 3)) + parameter("b2", (3,))
cross_entropy_loss(z, y)"""
FRAGILE = """%%graph bad --train --device cpu
x = input("x", (8, 4))
h = x @ parameter("w", (4, 4))
log(h).mean_all()"""
CELLS = [
    "%load_ext gdlab",
    NETWORK,
    "%graph_grad mlp",
    "%graph_run mlp 5000 --feed random:0 --adam 1e-3 --init 0 --speed 50",
    FRAGILE,
    "%graph_run bad 20 --feed random:0 --sgd 0.1 --init 0",
    "",
]


@dataclass
class Hand:
    """Does what a person does, and counts."""

    page: Page
    did: list[str] = field(default_factory=list)

    def click(self, what: str, target: Locator) -> None:
        target.first.click()
        self.did.append(f"click {what}")

    def key(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.did.append(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text, delay=20)
        self.page.wait_for_timeout(300)  # nobody presses Enter sooner
        self.did.append(f"type `{text}`")

    def run(self, index: int) -> None:
        """Run a cell by pointer: into it, and the chord."""
        self.click("the cell", cell(self.page, index).locator(".cm-content"))
        self.key("Control+Enter")


@dataclass(frozen=True)
class Flow:
    """A user's goal, the steps to it by pointer and by keyboard, and the check that it was reached."""

    wanted: str
    pointer: Callable[[Hand], None]
    keyboard: Callable[[Hand], None]
    reached: Callable[[Page], None]
    prepare: Callable[[Page], None]


def view(page: Page, index: int = 1) -> Locator:
    return cell(page, index).locator(".gdlab").first


def tab(page: Page, name: str, index: int = 1) -> Locator:
    return view(page, index).locator(f'[role="tab"][data-tab="{name}"]')


def at(index: int) -> Callable[[Page], None]:
    """The caret stands in a cell that has not run yet."""

    def stand(page: Page) -> None:
        cell(page, index).locator(".cm-content").click()

    return stand


def ran(index: int) -> Callable[[Page], None]:
    """A cell has just run; the caret stands in it."""

    def stand(page: Page) -> None:
        run_cell(page, index)
        page.wait_for_timeout(700)  # the picture of the run before is gone, the new one stands
        view(page, index).wait_for()

    return stand


def shows(selector: str, index: int = 1) -> Callable[[Page], None]:
    def look(page: Page) -> None:
        view(page, index).locator(selector).first.wait_for(timeout=10_000)

    return look


def told(text: str, index: int) -> Callable[[Page], None]:
    def look(page: Page) -> None:
        cell(page, index).locator(".jp-OutputArea-output", has_text=text).first.wait_for(timeout=60_000)

    return look


def enter(hand: Hand) -> None:
    """From the caret in a cell into its picture: to its tabs."""
    hand.key("Escape", "Tab")
    for _ in range(3):
        if hand.page.evaluate("Boolean(document.activeElement.closest('.gdlab'))"):
            return
        hand.key("Tab")
    raise RuntimeError("the tabulator did not lead into the picture")


def line(hand: Hand, text: str) -> None:
    hand.type(text)
    hand.key("Control+Enter")


def empty(page: Page) -> None:
    cell(page, 6).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")


def node(page: Page, name: str, pane: str, index: int = 1) -> Locator:
    return view(page, index).locator(f'[data-pane="{pane}"] .gd-box', has_text=name)


def training_pointer(hand: Hand) -> None:
    hand.run(3)
    for name in ("pause", "step", "resume", "stop"):
        hand.click(name.title(), view(hand.page, 3).locator(f'[data-command="{name}"]:not([disabled])'))


def training_keyboard(hand: Hand) -> None:
    hand.key("Control+Enter")
    view(hand.page, 3).locator('[data-command="pause"]:not([disabled])').wait_for()
    enter(hand)
    hand.key("p")
    view(hand.page, 3).locator('[data-command="step"]:not([disabled])').wait_for()
    hand.key("n")
    view(hand.page, 3).locator('[data-command="resume"]:not([disabled])').wait_for()
    hand.page.wait_for_timeout(300)
    hand.key("p")
    view(hand.page, 3).locator('[data-command="pause"]:not([disabled])').wait_for()
    hand.key("p")


FLOWS = (
    Flow("See what the optimizer made of my graph",
         lambda hand: hand.run(1), lambda hand: hand.key("Control+Enter"),
         shows('[data-pane="after"] .gd-box:has-text("silu")'), at(1)),
    Flow("Which kernel computes `h`? Read its WGSL",
         lambda hand: (hand.click("h", node(hand.page, "h", "before")),
                       hand.click("Kernels", tab(hand.page, "kernels"))),
         lambda hand: (enter(hand), hand.key("/"), hand.type("h"), hand.key("Enter", "Escape", "Enter")),
         shows('[data-pane="kernels"] [data-lit], [data-pane="kernels"] [data-selected]'), ran(1)),
    Flow("Which line of mine became this fused node?",
         lambda hand: (hand.click("the node", node(hand.page, "silu", "after")),
                       hand.click("Source", view(hand.page).locator('[data-command="source"]'))),
         lambda hand: (enter(hand), hand.key("/"), hand.type("op:silu"), hand.key("Enter")),
         shows('[data-pane="before"] [data-lit]:visible'), ran(1)),
    Flow("Watch the rewrites, one by one",
         lambda hand: (hand.click("Rewrites", tab(hand.page, "rewrites")),
                       hand.click("a step", view(hand.page).locator('[data-entity^="step:"]'))),
         lambda hand: (enter(hand), hand.key(".")),
         shows('[data-lit]:visible'), ran(1)),
    Flow("The gradient rule of relu",
         lambda hand: (hand.run(2), hand.click("relu", node(hand.page, "relu", "lanes", 2))),
         lambda hand: (hand.key("Control+Enter"), view(hand.page, 2).wait_for(), enter(hand), hand.key("/"),
                       hand.type("op:relu"), hand.key("Enter")),
         shows(':text("Gradient rule"):visible', 2), at(2)),
    Flow("Which buffers are alive at the peak?",
         lambda hand: hand.click("Arena", tab(hand.page, "arena")),
         lambda hand: (enter(hand), hand.key("6")),
         shows('[data-pane="arena"] [data-entity^="interval:"]'), ran(1)),
    Flow("Train; pause, make one step, go on, stop",
         training_pointer, training_keyboard,
         shows('[data-command="run"]:not([disabled]), [data-command="resume"]:not([disabled])', 3), at(3)),
    Flow("Which line made the NaN?",
         lambda hand: hand.run(5), lambda hand: hand.key("Control+Enter"),
         told("line 4 of <graph bad", 5), ran(4)),
    Flow("What would it be without one rule?",
         lambda hand: (hand.click("an empty cell", cell(hand.page, 6).locator(".cm-content")),
                       line(hand, "%graph_opt mlp --no fuse_silu")),
         lambda hand: line(hand, "%graph_opt mlp --no fuse_silu"),
         told("no fuse_silu", 6), empty),
    Flow("Did the optimizer or the device break it?",
         lambda hand: (hand.click("an empty cell", cell(hand.page, 6).locator(".cm-content")),
                       line(hand, "%graph_check mlp")),
         lambda hand: line(hand, "%graph_check mlp"),
         told("nothing broke", 6), empty),
)  # fmt: skip


def tried(page: Page, flow: Flow, way: Callable[[Hand], None]) -> list[str]:
    """Do the steps of a flow until its goal is reached; return the steps done."""
    flow.prepare(page)
    hand = Hand(page)
    way(hand)
    try:
        flow.reached(page)
    except Exception as error:
        raise RuntimeError(f"{flow.wanted}: not reached by {', '.join(hand.did)}") from error
    wait_idle(page)
    return hand.did


def table(rows: list[tuple[str, list[str], list[str]]]) -> str:
    lines = [
        "# Ten flows, and what each takes",
        "",
        "Measured by doing them in JupyterLab in headless Chromium: `python docs/flows.py` does it again and writes",
        "this file. An action is a click, a key or chord, or a word typed in one go. The cells stand in the notebook.",
        "",
        "| I want to | pointer | keyboard |",
        "| --- | --- | --- |",
    ]
    for wanted, pointer, keyboard in rows:
        lines.append(f"| {wanted} | {len(pointer)} | {len(keyboard)} |")
    lines += [
        "",
        "What the counting changed: after a search, Esc leads to the picture and Enter opens the kernel of what was",
        "found; the digits 1 … 9 are the tabs. Before, both led through the tab bar, one arrow key for each tab.",
        "",
        "What the hands did:",
        "",
    ]
    for wanted, pointer, keyboard in rows:
        lines += [f"**{wanted}**", "", f"- pointer: {', '.join(pointer)}", f"- keyboard: {', '.join(keyboard)}", ""]
    return "\n".join(lines)


def main() -> int:
    set_environment()
    rows: list[tuple[str, list[str], list[str]]] = []
    with (
        tempfile.TemporaryDirectory() as home,
        serving("jupyterlab", Path(home)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_context(viewport={"width": 1500, "height": 950}).new_page()
        page.set_default_timeout(20_000)
        open_notebook(page, server, CELLS, "flows.ipynb")
        run_cell(page, 0)
        for flow in FLOWS:
            rows.append((flow.wanted, tried(page, flow, flow.pointer), tried(page, flow, flow.keyboard)))
            print(f"{len(rows[-1][1]):3} {len(rows[-1][2]):3}  {flow.wanted}", flush=True)
        browser.close()
    (REPO / "docs" / "flows.md").write_text(table(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
