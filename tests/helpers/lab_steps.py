"""A network, a slow feed, and the step that a session pane in JupyterLab shows."""

from __future__ import annotations

from browser import cell
from playwright.sync_api import Page

NET = """%%graph mlp --train --device cpu
x = input("x", (64, 64))
y = input("y", (64, 10))
h = relu(x @ parameter("w1", (64, 128)) + parameter("b1", (128,)))
z = h @ parameter("w2", (128, 10)) + parameter("b2", (10,))
cross_entropy_loss(z, y)"""
SLOW_FEED = """import time, numpy as np
def slow(step):
    time.sleep(0.02)
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=(64, 64)), "y": np.eye(10)[rng.integers(0, 10, 64)]}"""


def value(page: Page, index: int, name: str) -> str:
    return cell(page, index).locator(f'[data-value="{name}"]').first.inner_text()


def number(text: str) -> int:
    return int("".join(c for c in text.split("/")[0] if c.isdigit()) or "0")


def steps(page: Page, index: int) -> int:
    return number(value(page, index, "step"))


def press(page: Page, index: int, name: str) -> None:
    cell(page, index).locator(f'[data-command="{name}"]').first.click()


def wait_steps(page: Page, index: int, at_least: int) -> None:
    page.wait_for_function(
        """([index, wanted]) => {
          const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
          const shown = cell && cell.querySelector('[data-value="step"]');
          const digits = shown ? shown.innerText.split('/')[0].replace(/[^0-9]/g, '') : '';
          return digits !== '' && Number(digits) >= wanted; }""",
        arg=[index, at_least],
    )
