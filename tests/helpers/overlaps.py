"""Find words that nobody can read: cut off without a sign, or standing on top of others.

    assert unreadable(page) == []

A text is *cut* where a box around it hides a part of it, unless the box ends in an ellipsis or scrolls. Two texts
*meet* where their boxes share more than a hair's breadth of what is in sight. A *squeezed* text has an ellipsis and
hardly a letter before it.
"""

from __future__ import annotations

from typing import cast

from playwright.sync_api import Page

FIND = r"""() => {
  const root = document.querySelector('.gdlab'), found = [], HAIR = 2;
  const box = (left, top, right, bottom) => ({left, top, right, bottom});
  const cross = (a, b) =>
    box(Math.max(a.left, b.left), Math.max(a.top, b.top), Math.min(a.right, b.right), Math.min(a.bottom, b.bottom));
  const wide = r => r.right - r.left, high = r => r.bottom - r.top;
  const place = e => e.closest('[data-pane]')?.dataset.pane ?? 'frame';
  const says = e => `${place(e)}: ${(e.textContent ?? '').trim().slice(0, 40)}`;
  const opaque = e => !/^transparent$|(^rgba.*,|\/) ?0(\.\d+)?\)$/.test(getComputedStyle(e).backgroundColor);
  const above = e => ['sticky', 'absolute', 'fixed'].includes(getComputedStyle(e).position) && opaque(e);
  // The nearest box that stands above what scrolls below it.
  const plate = e => (e && e !== root ? (above(e) ? e : plate(e.parentElement)) : null);
  const texts = [];
  const note = (what, e, more = '') => found.push(`${what}: ${says(e)}${more}`);
  const take = (e, rect) => {
    if (wide(rect) < 1 || high(rect) < 1) return;
    let seen = box(rect.left, rect.top, rect.right, rect.bottom), cut = '';
    for (let at = e; at; at = at.parentElement) {
      if (at instanceof SVGElement && !(at instanceof SVGSVGElement)) continue;
      const style = getComputedStyle(at);
      if (at instanceof HTMLElement && at.classList.contains('gd-voice')) return;
      const hides = {x: style.overflowX, y: style.overflowY}, frame = at.getBoundingClientRect();
      const left = frame.left + at.clientLeft, top = frame.top + at.clientTop;
      const inner = at instanceof HTMLElement ? box(left, top, left + at.clientWidth, top + at.clientHeight) : frame;
      if (style.display === 'inline' || hides.x === 'visible' && hides.y === 'visible') continue;
      const scrolls = ['auto', 'scroll'], line = high(rect);
      if (hides.x !== 'visible') {
        const over = Math.max(seen.right - inner.right, inner.left - seen.left);
        const dots = style.textOverflow === 'ellipsis' && style.whiteSpace !== 'normal';
        const words = 2.2 * parseFloat(getComputedStyle(e).fontSize);
        if (over > HAIR && !scrolls.includes(hides.x) && !dots)
          cut = `right by ${Math.round(over)} px in .${at.className}`;
        if (over > HAIR && dots && inner.right - seen.left < words) note('squeezed', e);
      }
      if (hides.y !== 'visible' && !scrolls.includes(hides.y)) {
        const over = Math.max(seen.bottom - inner.bottom, inner.top - seen.top);
        if (over > Math.max(HAIR, .2 * line)) cut = `below by ${Math.round(over)} px in .${at.className}`;
      }
      seen = cross(seen, inner);
      if (wide(seen) < 1 || high(seen) < 1) { if (cut) note('cut', e, ` (${cut})`); return; }
    }
    if (cut) note('cut', e, ` (${cut})`);
    texts.push({e, seen, plate: plate(e)});
  };
  for (const e of root.querySelectorAll('*')) {
    if (e.closest('[hidden], title, desc, option, noscript') || e.matches('tspan')) continue;
    const style = getComputedStyle(e);
    if (style.visibility === 'hidden' || style.display === 'none' || e.getClientRects().length === 0) continue;
    if (e.matches('text')) { if (e.textContent.trim()) take(e, e.getBoundingClientRect()); continue; }
    if (e instanceof SVGElement) continue;
    if (e.matches('input, select')) {
      // A form's own words: what it shows must fit into it.
      if (e.matches('select')) {
        const probe = document.createElement('span');
        const pad = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
        for (const name of ['fontSize', 'fontFamily', 'fontWeight']) probe.style[name] = style[name];
        Object.assign(probe.style, {whiteSpace: 'pre', position: 'absolute'});
        probe.textContent = e.selectedOptions[0]?.textContent ?? '';
        document.body.append(probe);
        if (probe.offsetWidth > e.clientWidth - pad + 1) note('cut', e, ` (${probe.textContent})`);
        probe.remove();
      } else if (e.type !== 'range' && e.value && e.scrollWidth > e.clientWidth + 1)
        note('cut', e, ` (value ${e.value})`);
      continue;
    }
    for (const node of e.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
      const range = document.createRange(); range.selectNodeContents(node);
      for (const rect of range.getClientRects()) take(e, rect);
    }
  }
  texts.sort((a, b) => a.seen.top - b.seen.top);
  texts.forEach((a, i) => {
    for (let j = i + 1; j < texts.length && texts[j].seen.top < a.seen.bottom; j++) {
      const b = texts[j];
      if (a.e === b.e || a.e.contains(b.e) || b.e.contains(a.e)) continue;
      if (a.plate !== b.plate) continue;
      const both = cross(a.seen, b.seen);
      // Lines of text stand closer than their boxes are high.
      const close = .3 * Math.min(high(a.seen), high(b.seen));
      if (wide(both) > HAIR && high(both) > close) note('meet', a.e, ` | ${says(b.e)}`);
    }
  });
  const page = document.scrollingElement;
  if (page.scrollWidth > innerWidth) found.push(`the page scrolls sideways: ${page.scrollWidth} > ${innerWidth}`);
  return [...new Set(found)];
}"""


def unreadable(page: Page) -> list[str]:
    """The texts that cannot be read in the first view of a page; empty where all can."""
    return cast("list[str]", page.evaluate(FIND))
