"""B2: the keyboard alone finds a node, follows an edge, opens its kernel and reads its WGSL line; and what is said."""

from __future__ import annotations

from typing import Any

from bare_page import mount, trained
from playwright.sync_api import Page

LISTEN = """() => {
  window.said = [];
  const voice = document.querySelector('[aria-live="polite"]');
  new MutationObserver(() => window.said.push(voice.textContent))
    .observe(voice, {childList: true, characterData: true, subtree: true});
}"""
FOCUSED = """() => {
  const at = document.activeElement, pane = at.closest('[data-pane]');
  const seen = at.getBoundingClientRect(), frame = pane?.getBoundingClientRect();
  return {entity: at.dataset.entity ?? null, pane: pane?.dataset.pane ?? null, lit: at.hasAttribute('data-lit'),
          inView: !!frame && seen.top >= frame.top && seen.bottom <= frame.bottom, text: at.textContent};
}"""


def press(page: Page, *keys: str) -> None:
    """Press keys, and wait for what is said: at most one message a second."""
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_timeout(1100)


def focused(page: Page) -> Any:
    return page.evaluate(FOCUSED)


def test_b2_find_follow_open_and_read_without_a_pointer(page: Page) -> None:
    mount(page, trained())
    page.evaluate(LISTEN)
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    page.keyboard.insert_text("op:matmul")  # at once: typed slowly, what is found so far is said
    press(page)
    press(page, "Enter", "Escape")
    press(page, "ArrowRight")  # to its user
    assert focused(page)["entity"] == "node:0.5" and focused(page)["pane"] == "before"
    press(page, "ArrowRight")
    assert focused(page)["entity"] == "node:0.6"
    press(page, "ArrowLeft")  # and back along the same edge
    assert focused(page)["entity"] == "node:0.5"
    press(page, "Enter")
    line = focused(page)
    assert line["pane"] == "kernels" and line["lit"] and line["inView"]
    assert line["entity"] in trained().select("node:0.5")
    kernel, number = map(int, line["entity"].removeprefix("wgsl:").split("."))
    source = trained().plan("kernels")[kernel]["wgsl"].splitlines()[number - 1].strip()
    assert source and source in line["text"]
    assert page.evaluate("() => window.said") == GOLDEN


GOLDEN = [
    "2 found",
    "8 lines, matmul, fused_matmul_add, 3 nodes, 3 dispatches, 3 buffers",
    "8 lines, add, fused_matmul_add, 3 nodes, 3 dispatches, 3 buffers",
    "8 lines, relu, relu + relu_grad, dispatches 0 + 7, buffers relu + relu_grad",
    "8 lines, add, fused_matmul_add, 3 nodes, 3 dispatches, 3 buffers",
]


def test_there_is_one_live_region_and_a_failed_pattern_is_said(page: Page) -> None:
    mount(page, trained())
    page.evaluate(LISTEN)
    assert page.locator("[aria-live='polite'], [role='status']").count() == 1
    page.locator(".gdlab").focus()
    press(page, "/", *"/(/")
    said = page.evaluate("() => window.said")
    assert "regular expression" in said[-1].lower()


def test_keys_stay_in_the_view_and_dead_ends_do_nothing(page: Page) -> None:
    mount(page, trained())
    page.evaluate("""() => { window.leaked = []; document.addEventListener('keydown', e => {
      if (e.key.length === 1 || e.key.startsWith('Arrow')) window.leaked.push(e.key); }); }""")
    page.locator(".gdlab").focus()
    page.keyboard.press("ArrowRight")  # nothing is selected: not ours
    assert page.evaluate("() => window.leaked") == ["ArrowRight"]
    page.locator('[data-pane="before"] [data-entity="node:0.5"]').first.focus()
    for key in ("ArrowRight",) * 8:
        page.keyboard.press(key)
    assert focused(page)["entity"] == "node:0.13"  # the loss has no users
    for key in (".", ",", "+", "0", "?", "?", "[", "]"):
        page.keyboard.press(key)
    assert page.evaluate("() => window.leaked") == ["ArrowRight"]
