"""Everything can be read: at 200 %, with doubled letters, in narrow and wide outputs, in colours a system forces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bare_page import TABS, live, trained
from browser import Watch, settled
from matrix import also
from overlaps import unreadable
from playwright.sync_api import Browser, Page

METRICS = "tell(metrics(1, 123456, [[5, .9], [6, .6], [123456, .5]]))"

# Doubles every font of the style sheet but those of drawings, as a browser does that zooms text only.
DOUBLE = r"""() => {
  const drawn =
    /gd-(op|name|type|given|letter|arena|timeline|axis|peak|picture|classname|args|madeby|leafname)|(^|[ ,&])text/;
  const around = [];
  const twice = text => text.replace(/([\d.]+)px/g, (_, size) => `${2 * size}px`);
  const sheet = document.querySelector('style[data-gdlab]');
  sheet.textContent = sheet.textContent.replace(/([^{};]*)([{};])/g, (all, text, end) => {
    if (end === '{') around.push(text);
    const font = /^\s*(font|font-size|line-height):/.test(text) && !around.some(each => drawn.test(each));
    if (end === '}') around.pop();
    return (font ? twice(text) : text) + end;
  });
}"""


def opened(browser: Browser, width: int, scale: int = 1, **options: object) -> Page:
    """A page of `width` device pixels with a study whose session runs and one op selected, zoomed by `scale`."""
    size = {"width": width // scale, "height": 1000 // scale}
    context = browser.new_context(viewport=size, device_scale_factor=scale, **options)  # type: ignore[arg-type]
    watch = Watch()
    watch.on(context)
    page = context.new_page()
    page.watch = watch  # type: ignore[attr-defined]
    live(page, trained())
    page.set_viewport_size(size)  # type: ignore[arg-type]
    page.evaluate(METRICS)
    page.locator('[data-pane="before"] [data-entity="node:0.6"]').first.dispatch_event("click")
    return page


def screens(page: Page) -> Iterator[str]:
    """Open each tab, and each of its panes that take turns; what is open now."""
    for tab in TABS:
        page.locator(f'[role="tab"][data-tab="{tab}"]').dispatch_event("click")
        settled(page)
        faces = page.locator(".gd-faces button:visible")
        for index in range(max(1, faces.count())):
            if faces.count():
                faces.nth(index).click()
            settled(page)
            yield f"{tab} {index}"


def check(page: Page) -> None:
    found = {name: faults for name in screens(page) if (faults := unreadable(page))}
    assert found == {}
    page.keyboard.press("?")
    page.locator(".gd-help").first.wait_for()
    page.context.close()
    assert page.watch.faults == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", also([700, 1600], 1070))
def test_at_200_percent_every_word_of_every_tab_can_be_read(browser: Browser, width: int) -> None:
    check(opened(browser, width, 2))


@pytest.mark.parametrize("width", also([1070], 1600))
def test_every_word_can_be_read_at_any_width(browser: Browser, width: int) -> None:
    check(opened(browser, width))


def test_letters_of_twice_the_size_have_room(browser: Browser) -> None:
    """Widths that hold words are in letters, not in pixels: an output of 1,070 px is a narrow one then."""
    page = opened(browser, 1070)
    page.evaluate(DOUBLE)
    assert page.locator(".gd-tab").first.evaluate("e => getComputedStyle(e).fontSize") == "26px"
    assert page.locator(".gd-faces").is_visible()
    check(page)


def test_what_cannot_be_read_is_found(browser: Browser) -> None:
    """The look itself: words that a box cuts, that meet, that have no room, and an ellipsis that is in order."""
    page = opened(browser, 1070)
    assert unreadable(page) == []
    head = page.locator('[data-pane="before"] .gd-head')
    head.evaluate("e => e.style.cssText = 'flex: none; width: 60px; max-width: 60px; flex-wrap: nowrap'")
    assert any(fault.startswith("squeezed: before: 14 nodes") for fault in unreadable(page))
    head.evaluate("e => e.style.cssText = 'height: 8px; min-height: 0'")
    assert any(fault.startswith("cut: before: As written (below") for fault in unreadable(page))
    head.evaluate("e => e.style.cssText = ''")
    page.locator(".gd-title").evaluate("e => e.style.marginRight = '-60px'")
    assert "meet: frame: Graph14→10 | frame: mlp" in unreadable(page)
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_have_no_colour_of_ours_behind_words(browser: Browser, scheme: str) -> None:
    """Words, what is chosen, what is disabled and the lines between panes are in the system's colours."""
    page = opened(browser, 1070, forced_colors="active", color_scheme=scheme)
    system = page.evaluate(
        """names => { const probe = document.body.appendChild(document.createElement('i'));
        const found = names.map(name => { probe.style.color = name; return getComputedStyle(probe).color; });
        probe.remove(); return found; }""",
        ["CanvasText", "Highlight", "HighlightText", "GrayText"],
    )
    text, highlight, on_highlight, grey = system
    words = """root => [...root.querySelectorAll(
      '.gd-picture :is(text, tspan), :is(.gd-arena, .gd-timeline, .gd-chart) text')]
      .map(e => getComputedStyle(e).fill)"""
    behind = """root => { const sheet = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
      const bytes = colour => { sheet.fillStyle = colour; sheet.fillRect(0, 0, 1, 1);
        return [...sheet.getImageData(0, 0, 1, 1).data]; };
      const canvas = bytes(getComputedStyle(document.body.appendChild(Object.assign(document.createElement('i'),
        {style: 'color: Canvas'}))).color);
      const far = fill => fill !== 'none' && bytes(fill).some((byte, i) => Math.abs(byte - canvas[i]) > 20);
      return [...root.querySelectorAll('.gd-lane rect, .gd-slotrow, .gd-box .gd-shape')]
        .map(e => getComputedStyle(e).fill).filter(far); }"""
    look = "e => { const s = getComputedStyle(e); return [s.color, s.backgroundColor]; }"
    root = page.locator(".gdlab")
    for _ in screens(page):
        assert set(root.evaluate(words)) <= {text, highlight}
        assert root.evaluate(behind) == []
        assert page.locator('[role="tab"][aria-selected="true"]').evaluate(look) == [on_highlight, highlight]
        for chosen in page.locator('button[aria-pressed="true"]:visible').all():
            assert chosen.evaluate(look) == [on_highlight, highlight]
        for disabled in page.locator("button:disabled:visible").all():
            assert disabled.evaluate("e => getComputedStyle(e).color") == grey
    assert page.locator(".gd-panes").evaluate("e => getComputedStyle(e).backgroundColor") == text
    check(page)
