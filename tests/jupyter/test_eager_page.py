"""The backward pass of a tape in the page: the stepper moves through it, numbers stand on nodes and beside steps."""

from __future__ import annotations

import pytest
from bare_page import mount
from playwright.sync_api import Page

from gdlab.eager import EagerSession
from gdlab.view.document.document import Document
from gdlab.view.document.tape_document import tape_doc

pytestmark = pytest.mark.browser


def show_tape(page: Page) -> Document:
    """Open the Derivative tab of a tape with its numbers: h = x · w, Σ (h² + h)."""
    s = EagerSession(device="cpu")
    w = s.param([[1.0, 2.0], [3.0, -4.0]], "w")
    h = s.input([[1.0, 2.0]], "x") @ w
    s.backward((h * h + h).sum_all())
    document = tape_doc(s, "net")
    document.data["view"] = {"overlay": "value"}
    s.close()
    mount(page, document)
    page.locator('[role="tab"][data-tab="grad"]').click()
    return document


def test_the_stepper_moves_through_the_backward_pass_with_its_numbers(page: Page) -> None:
    document = show_tape(page)
    lanes, stepper = page.locator('[data-pane="lanes"]'), page.locator(".gd-stepper")
    assert "[15, −11]" in lanes.inner_text()  # the cotangent of h stands on its node
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
            lit.wait_for(state="attached")
    assert seen == ["sum_all", "add", "mul", "matmul"]
    assert "[[1, 1]]" in told and "[[7, −6]]" in told and "[[15, −11], [30, −22]]" in told
    page.locator('[data-command="autodiff"]').fill("0")
    assert "op 1 of 4" in stepper.inner_text()


def test_long_values_are_cut_and_names_stay(page: Page) -> None:
    s = EagerSession(device="cpu")
    rows = [[1.25 * 3 ** (i + j) for j in range(3)] for i in range(2)]
    y = s.input(rows, "inputs") @ s.param([list(column) for column in zip(*rows, strict=True)], "weights")
    s.backward((y * y).sum_all())
    document = tape_doc(s, "net")
    document.data["view"] = {"overlay": "value"}
    s.close()
    mount(page, document)
    page.locator('[role="tab"][data-tab="grad"]').click()
    page.locator('[data-command="autodiff"]').fill("-3")
    found = page.locator(".gd-stepper .gd-row").evaluate_all(
        "all => all.map(row => { const [, name, value] = row.children, r = row.getBoundingClientRect();"
        " return [name.getBoundingClientRect().width, r.right - value.getBoundingClientRect().right,"
        " value.scrollWidth > value.clientWidth, value.title === value.textContent]; })"
    )
    assert any(cut for _, _, cut, _ in found), found
    assert all(name >= 35 and inside >= 0 and whole for name, inside, _, whole in found), found


def test_the_stepper_goes_on_into_the_forward_pass_with_the_numbers_of_each_op(page: Page) -> None:
    show_tape(page)
    lanes, stepper = page.locator('[data-pane="lanes"]'), page.locator(".gd-stepper")
    seen = []
    for k in range(5, -1, -1):
        page.locator('[data-command="autodiff-previous"]').click()
        told = stepper.inner_text()
        assert f"op {k + 1} of 6, forward as it ran" in told
        seen.append(page.locator('.gd-stepper [data-value="op"]').inner_text().split()[0])
        lanes.locator(f'[data-entity="node:1.{k}"][data-lit]').wait_for(state="attached")
        if seen[-1] == "matmul":
            assert "[[1, 2]]" in told and told.endswith("gives\nmatmul\n[[7, −6]]")  # x, and x w
    assert seen == ["sum_all", "add", "mul", "matmul", "parameter", "input"]
    assert page.locator('[data-command="autodiff-previous"]').is_disabled()
    lanes.locator('[data-entity="node:1.3"]').first.click()  # a node in the picture is its step
    page.locator('.gd-stepper [data-value="op"]', has_text="mul").wait_for()
    assert "op 4 of 6, forward as it ran" in stepper.inner_text()
    page.locator('[data-command="autodiff-end"]').click()
    assert "op 4 of 4, backwards from the loss" in stepper.inner_text()


def test_a_tape_without_a_backward_pass_has_a_forward_one(page: Page) -> None:
    s = EagerSession(device="cpu")
    s.input([1.0, 4.0], "x").sqrt()
    document = tape_doc(s, "net")
    s.close()
    mount(page, document)
    page.locator('[role="tab"][data-tab="grad"]').click()
    stepper = page.locator(".gd-stepper")
    assert "op 1 of 2, forward as it ran" in stepper.inner_text()
    page.locator('[data-command="autodiff-next"]').click()
    told = stepper.inner_text()
    assert "op 2 of 2, forward as it ran" in told and "f32[2] [1, 2]" in told
    assert page.locator('[data-command="autodiff-next"]').is_disabled()
