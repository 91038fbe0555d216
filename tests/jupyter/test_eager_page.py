"""The backward pass of a tape in the page: the stepper moves through it, numbers stand on nodes and beside steps."""

from __future__ import annotations

import pytest
from bare_page import mount
from playwright.sync_api import Page

from gdlab.eager import EagerSession
from gdlab.view.document.tape import tape_doc

pytestmark = pytest.mark.browser


def test_the_stepper_moves_through_the_backward_pass_with_its_numbers(page: Page) -> None:
    s = EagerSession(device="cpu")
    w = s.param([[1.0, 2.0], [3.0, -4.0]], "w")
    h = s.input([[1.0, 2.0]], "x") @ w
    s.backward((h * h + h).sum_all())
    document = tape_doc(s, "net")
    document.data["view"] = {"overlay": "value"}
    s.close()
    mount(page, document)
    page.locator('[role="tab"][data-tab="grad"]').click()
    lanes, stepper = page.locator('[data-pane="lanes"]'), page.locator(".gd-stepper")
    assert "[[15, −11]]" in lanes.inner_text()  # the cotangent of h stands on its node
    steps = document.steps(0)
    seen = []
    for k, step in enumerate(steps):
        if k:
            page.locator('[data-command="autodiff-next"]').click()
        told = stepper.inner_text()
        assert f"op {k + 1} of {len(steps)}, backwards from the loss" in told
        seen.append(page.locator('.gd-stepper [data-value="op"]').inner_text().split()[0])
        if k:  # the op of the step is lit in the picture, also where its rule adds nothing
            lit = lanes.locator(f'[data-entity="node:1.{step["node"]}"][data-lit]')
            lit.wait_for(state="attached", timeout=10_000)
    assert seen == ["sum_all", "add", "mul", "matmul"]
    assert "[[1, 1]]" in told and "[[7, −6]]" in told and "[[15, −11], [30, −22]]" in told
    page.locator('[data-command="autodiff"]').fill("0")
    assert "op 1 of 4" in stepper.inner_text()
