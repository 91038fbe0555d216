"""The document of a tape: values, and the backward pass as it ran, step by step with its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.eager import EagerSession
from gdlab.view.document.closure import problems
from gdlab.view.document.tape_document import tape_doc
from gdlab.view.text.twin import twin


def recorded(s: EagerSession) -> tuple[Any, Any, Any]:
    """h has two readers, one parameter no reader; all numbers are exact."""
    w, unused = s.param([[1.0, 2.0], [3.0, -4.0]], "w"), s.param([5.0], "unused")
    h = s.input([[1.0, 2.0]], "x") @ w
    s.use(unused)
    return h, (h * h + h).sum_all(), w


def test_the_backward_pass_is_told_step_by_step_with_its_numbers(device: str) -> None:
    s = EagerSession(device=device)
    assert s.grads_text() == "no backward in this recording, or values that it read were released"
    h, loss, w = recorded(s)
    grads = s.backward(loss)
    before = len(s.tape), s.tape.text(), s.engine.live_bytes, s.allocator_stats().live_bytes
    lines = s.grads_text().splitlines()
    assert (len(s.tape), s.tape.text(), s.engine.live_bytes, s.allocator_stats().live_bytes) == before
    assert lines[0] == f"%{loss.id} sum_all  ∂ f32[1] 1"
    assert f"%{h.id} matmul of 3 terms  ∂ f32[1, 2] [[15, −11]]" in lines  # 2 h + 1 at h = [7, −6]
    assert lines[-2:] == ["∂w  f32[2, 2] [[15, −11], [30, −22]]", "∂unused  f32[1] 0"]
    np.testing.assert_array_equal(grads.numpy(w), [[15, -11], [30, -22]])
    s.release_tape_non_param_values()
    assert s.grads_text().startswith("no backward")
    s.close()


def test_a_tape_after_a_backward_has_a_derivative_with_values(device: str) -> None:
    s = EagerSession(device=device)
    h, loss, w = recorded(s)
    assert [stage["key"] for stage in tape_doc(s).data["stages"]] == ["written"]
    with s.grad_map(loss):
        pass
    document = tape_doc(s, "net")
    assert problems(document.data, own_links=True) == ()
    stages = document.data["stages"]
    assert [(stage["key"], stage["role"]) for stage in stages] == [
        ("written", "written"), ("derivative:written", "derivative"),
    ]  # fmt: skip
    values = {o["stage"]: o["values"] for o in document.data["overlays"] if o["id"] == "value"}
    steps = document.steps(0)
    at_h = next(step for step in steps if step["node"] == h.id)
    arrived = [values[1][str(i)] for i in at_h["cotangents"]]
    assert sorted(arrived) == sorted(["[[1, 1]]", "[[7, −6]]", "[[7, −6]]"])
    assert values[1][str(at_h["accumulated"][-1])] == "[[15, −11]]" and values[0] == {
        k: v for k, v in values[1].items() if int(k) < len(s.tape)
    }
    assert len(values[1]) == len(document.nodes(1))
    told = twin(document, "grad")
    assert "The backward pass, as it ran" in told and "∂w" in told and "[[15, −11], [30, −22]]" in told
    s.reset_tape()
    s.input([1.0]).relu()
    assert len(tape_doc(s).data["stages"]) == 1
    s.close()


def test_hooks_are_not_called_again_to_show_a_backward() -> None:
    s = EagerSession(device="cpu")
    x, calls = s.input([1.0, 2.0], "x", requires_grad=True), []

    def doubled(ref: Any, g: Any) -> Any:
        calls.append(ref.id)
        return g * 2

    y = x * 3
    s.hook(y, doubled)
    assert s.backward(y.sum_all()).numpy(x).tolist() == [6, 6] and len(calls) == 1
    assert "∂x  f32[2] [6, 6]" in s.grads_text() and "[6, 6]" in twin(tape_doc(s), "grad") and len(calls) == 1
    s.close()


def test_of_a_long_tape_the_values_of_each_pass_are_read_in_part() -> None:
    s = EagerSession(device="cpu")
    x = y = s.input([1.0], "x", requires_grad=True)
    for _ in range(300):
        y = y * 1.0
    s.backward(y)
    read = s.counters()["readbacks"]
    document = tape_doc(s)
    assert s.counters()["readbacks"] - read <= 601 and problems(document.data, own_links=True) == ()
    assert "the values of the first 200 nodes" in str(document.data["notes"]) and x.grad.tolist() == [1]
    s.close()
