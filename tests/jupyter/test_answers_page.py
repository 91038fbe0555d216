"""Drawn answers in a page without a notebook: nothing is cut, contrast holds in both themes, links select."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bare_page import LOAD, MOUNT, parts
from networks import mlp as tour_network
from playwright.sync_api import Page, expect

from gdlab.devices.cpu import calls
from gdlab.devices.tuning_file import Trial, TunedKernel
from gdlab.study.execution import PlanTuning
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.answer_record import Answer
from gdlab.view.answer.making import (
    check_answer,
    doctor_answer,
    gradient_answer,
    profile_answer,
    step_answer,
    watch_answer,
)
from gdlab.view.answer.tuning_answer import tuning_answer
from gdlab.view.text.doctor import DoctorRow, doctor_rows

SHOW = """html => {
  const place = document.createElement('div');
  place.id = 'answers';
  place.innerHTML = html;
  document.body.append(place);
}"""
CUT = """() => [...document.querySelectorAll('.gd-answer div, .gd-answer')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 80))"""
OUTSIDE = """() => [...document.querySelectorAll('.gd-answer')].flatMap(answer => {
  const frame = answer.getBoundingClientRect();
  return [...answer.querySelectorAll('svg, th, td, p')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.left < frame.left || box.right > frame.right + 0.5;
  }).map(e => e.outerHTML.slice(0, 120));
})"""
FAINT = """() => {
  const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
    .getContext('2d', {willReadFrequently: true});
  const rgb = color => { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); return pen.getImageData(0, 0, 1, 1).data; };
  const light = color => [...rgb(color)].slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const faint = [];
  for (const answer of document.querySelectorAll('.gd-answer')) {
    const ground = light(getComputedStyle(answer).backgroundColor);
    for (const e of answer.querySelectorAll('bdi, .gd-answer-mark, .gd-answer-number, small, th')) {
      const found = contrast(light(getComputedStyle(e).color), ground);
      if (found < 4.5) faint.push([found, e.outerHTML.slice(0, 80)]);
    }
    for (const e of answer.querySelectorAll('[data-label]')) {
      const found = contrast(light(getComputedStyle(e, '::before').color), ground);
      if (found < 4.5) faint.push([found, e.outerHTML.slice(0, 80)]);
    }
  }
  return faint;
}"""
GROUND = "() => getComputedStyle(document.querySelector('.gd-answer')).backgroundColor"


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    made = Study(tour_network(), train=True, device="cpu", name="mlp")
    yield made
    made.close()


@pytest.fixture(scope="module")
def answers(study: Study) -> list[Answer]:
    """One of each kind, of the tour's network; the check finds a kernel that is 1 % off."""
    sound = check_answer(study.check(devices=("cpu",)), study)
    right = calls._KERNELS["matmul"]

    def wrong(builder: Any) -> None:
        right(builder)
        p = builder.d.matmul
        if p.b == "nk":
            out = builder.out((p.m, p.n))
            builder.calls.append((np.multiply, (out, 1.01, out)))

    with pytest.MonkeyPatch.context() as planted:
        planted.setitem(calls._KERNELS, "matmul", wrong)
        broken = check_answer(study.check(devices=("cpu",)), study)
    study.prepare(feed="random:0", init=0, sgd=0.1)
    study.watch("x", "w1.grad")
    study.break_at("step 900 if loss > 1")
    study.run(3)
    profile = study.trace(1)
    times = profile_answer(profile, study, str(profile))
    study.step_dispatch(2)
    relu = next(n.id for n in study.graph if n.op == "relu")
    rows = [*doctor_rows(), DoctorRow("front end", "not built", "bad", "python labextension/frontend.py builds it")]
    return [
        broken, sound, gradient_answer(study.check_gradient(relu), study), times, watch_answer(study),
        step_answer(study, "mlp: two dispatches", ""), doctor_answer(rows, ""), tuning_answer(tried(), study),
    ]  # fmt: skip


def tried() -> PlanTuning:
    """Schedules of long names, the rule's own, a chosen one and a refused one; the plan does not run them."""
    names = ["tile 128x128x16 inside 2 split 16, 8x8 each", "tile 64x128x16 split 4, 8x8 each", "k-parallel 16x16"]
    trials = [Trial(name, (i,), 90_000 - 30_000 * i) for i, name in enumerate(names)]
    refused = Trial("vector 32x8", (9,), 0, "tune: WGSL: given " + "Shader validation error; " * 8 + "wanted a kernel")
    kernel = TunedKernel("matmul 3x2048x5632 mk·nk f16 norm dual", (*trials, refused))
    return PlanTuning("mlp", "wgpu, an adapter (hardware adapter)", ((kernel, tuple(range(40))),), 2, False)


def test_answers_fit_and_can_be_read_in_both_themes(page: Page, answers: list[Answer]) -> None:
    page.set_viewport_size({"width": 1070, "height": 900})
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(SHOW, "".join(map(answer_html, answers)))
    grounds = []
    for theme in ("light", "dark"):
        page.evaluate("light => { document.body.dataset.jpThemeLight = light; }", str(theme == "light").lower())
        grounds.append(page.evaluate(GROUND))
        assert page.evaluate(CUT) == [] and page.evaluate(OUTSIDE) == [] and page.evaluate(FAINT) == []
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
    verdicts = page.locator(".gd-answer td", has_text=re.compile("of the roof$"))
    assert verdicts.count() > 3
    page.set_viewport_size({"width": 560, "height": 900})
    heights = verdicts.evaluate_all("all => all.map(e => e.offsetHeight)")
    assert max(heights) < 32, "a verdict stands on one line"
    link = page.locator(".gd-answer-link").first
    assert link.evaluate("e => getComputedStyle(e).textDecorationLine") == "none", "nothing hears it: it is no link"


def test_a_link_selects_its_dispatch_in_the_open_view(page: Page, study: Study, answers: list[Answer]) -> None:
    html, at = answer_html(answers[0]), answers[0].sections[0].rows[0][1]
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(LOAD, parts())
    page.evaluate(SHOW, html)
    link = page.locator(".gd-answer-link").first
    expect(link).to_have_css("text-decoration-line", "underline")
    link.click()
    expect(link).to_have_attribute("data-gdlab-none", "(no view of this graph is open)")

    page.evaluate(MOUNT, study.doc.json().decode())  # it takes the place of all that was there
    page.locator(".gdlab .gd-frame").wait_for()
    page.evaluate(SHOW, '<div style="height: 3000px"></div>' + html)
    link = page.locator(".gd-answer-link").first
    link.focus()
    link.press("Enter")
    chain = page.locator(".gdlab .gd-status")
    expect(chain).to_contain_text(at.text)  # type: ignore[union-attr]
    expect(page.locator(".gdlab .gd-frame")).to_be_in_viewport()
    assert link.get_attribute("data-gdlab-none") is None
    link.evaluate("e => { e.dataset.gdlabEntity = 'dispatch:999'; }")
    link.click()
    expect(chain).to_contain_text("dispatch 999")  # which names nothing: the page goes on
