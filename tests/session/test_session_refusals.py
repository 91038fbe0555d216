"""Refusals of a session: each row says what it got and what it wants, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from machine import needs
from session_state import W, X, Y, fitted, line, state_of

from gdlab.base.errors import (
    ArgumentError,
    AutodiffError,
    DTypeError,
    GdlabError,
    GraphError,
    OutputIndexError,
    SessionError,
    ShapeError,
    UnknownNameError,
)
from gdlab.graph import Graph
from gdlab.ops import full
from gdlab.session import Session, build_inference_session, build_session


@pytest.fixture(scope="module", params=["cpu", "wgpu"])
def trained(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session that has made two steps of Adam; the tests that share it may change nothing."""
    if request.param == "wgpu":
        needs("wgpu")
    with build_session(line(), request.param) as session:
        fitted(session).set_adam(0.1)
        for _ in range(2):
            session.step()
        yield session


# refusals: (call, error, text) ----------------------------------------------------------------------------------------
Call = Callable[[Session], object]
REFUSED: dict[str, tuple[Call, type[GdlabError], str]] = {
    "input name": (lambda s: s.set_input("xx", X), UnknownNameError,
        "set_input: name: given xx, wanted one of x, y; nearest: x"),
    "input name, unhashable": (lambda s: s.set_input(["x"], X), UnknownNameError,  # type: ignore[arg-type]
        "set_input: name: given ['x'], wanted one of x, y"),
    "parameter name": (lambda s: s.set_parameter("ww", W), UnknownNameError,
        "set_parameter: name: given ww, wanted one of w, b; nearest: w"),
    "an input is no parameter": (lambda s: s.set_parameter("x", X), UnknownNameError,
        "set_parameter: name: given x, wanted one of w, b"),
    "read name": (lambda s: s.read_param("c"), UnknownNameError, "read_param: name: given c, wanted one of w, b"),
    "gradient name": (lambda s: s.read_param_grad("x"), UnknownNameError,
        "read_param_grad: name: given x, wanted one of w, b"),
    "size name": (lambda s: s.param_size("x"), UnknownNameError, "param_size: name: given x, wanted one of w, b"),
    "too few": (lambda s: s.set_input("x", X.ravel()[:11]), ShapeError,
        "set_input: 'x': given 11 values, wanted 4 x 3 = 12 (f32[4, 3])"),
    "too many": (lambda s: s.set_parameter("b", [1, 2, 3]), ShapeError,
        "set_parameter: 'b': given 3 values, wanted 2 (f32[2])"),
    "transposed": (lambda s: s.set_input("x", X.T), ShapeError,
        "set_input: 'x': given shape [3, 4], wanted 4 x 3 = 12 (f32[4, 3])"),
    "one axis more": (lambda s: s.set_parameter("b", [[1, 2]]), ShapeError,
        "set_parameter: 'b': given shape [1, 2], wanted 2 (f32[2])"),
    "ragged": (lambda s: s.set_parameter("b", [[1], [2, 3]]), ShapeError,
        "set_parameter: 'b': given a ragged sequence, wanted shape [2]"),
    "complex": (lambda s: s.set_input("x", X * 1j), DTypeError,
        "set_input: 'x': given complex64, wanted real numbers"),
    "text": (lambda s: s.set_parameter("b", ["1", "2"]), DTypeError,
        "set_parameter: 'b': given <U1, wanted real numbers"),
    "objects": (lambda s: s.set_parameter("b", [None, 2]), DTypeError,
        "set_parameter: 'b': given object, wanted real numbers"),
    "out too small": (lambda s: s.read_param("w", np.zeros(5, np.float32)), SessionError,
        "read_param: w: out: given ndarray float32[5], wanted a writable C-contiguous float32 array of ≥ 6"),
    "out of another dtype": (lambda s: s.read_param("w", np.zeros(6)), SessionError,
        "read_param: w: out: given ndarray float64[6], wanted a writable C-contiguous float32 array of ≥ 6"),
    "out read-only": (lambda s: s.read_param("w", np.broadcast_to(np.float32(0), (3, 2))), SessionError,
        "read_param: w: out: given ndarray float32[6], wanted a writable C-contiguous float32 array of ≥ 6"),
    "out no array": (lambda s: s.read_output_by_index(1, [0.0] * 8), SessionError,  # type: ignore[arg-type]
        "read_output: output 1: out: given list [?], wanted a writable C-contiguous float32 array of ≥ 8"),
    "output index": (lambda s: s.read_output_by_index(2), OutputIndexError,
        "read_output: index: given 2, wanted 0 … 1: 2 outputs"),
    "output index as a text": (lambda s: s.read_output_by_index("0"), OutputIndexError,  # type: ignore[arg-type]
        "read_output: index: given '0', wanted 0 … 1: 2 outputs"),
    "negative output index": (lambda s: s.read_output_by_index(-1), OutputIndexError,
        "read_output: index: given -1, wanted 0 … 1: 2 outputs"),
    "seed": (lambda s: s.initialize(-1), ArgumentError, "initialize: seed: given -1, wanted an int in 0 … 2^64 − 1"),
    "rate below zero": (lambda s: s.set_learning_rate(-0.1), SessionError,
        "set_learning_rate: lr: given -0.1, wanted a finite number ≥ 0"),
    "rate not finite": (lambda s: s.set_learning_rate(float("inf")), SessionError,
        "set_learning_rate: lr: given inf, wanted a finite number ≥ 0"),
    "rate no number": (lambda s: s.set_learning_rate("fast"), SessionError,  # type: ignore[arg-type]
        "set_learning_rate: lr: given 'fast', wanted a finite number ≥ 0"),
    "rate that is a flag": (lambda s: s.set_learning_rate(True), SessionError,
        "set_learning_rate: lr: given True, wanted a finite number ≥ 0"),
    "adam's rate": (lambda s: s.set_adam(float("nan")), SessionError,
        "set_adam: lr: given nan, wanted a finite number ≥ 0"),
    "beta1": (lambda s: s.set_adam(0.1, 1.0), SessionError, "set_adam: beta1: given 1.0, wanted a number in [0, 1)"),
    "rate beyond float32": (lambda s: s.set_learning_rate(1e39), SessionError,
        "set_learning_rate: lr: given 1e+39, wanted a finite number ≥ 0"),
    "beta1 that float32 rounds": (lambda s: s.set_adam(0.1, 1 - 1e-9), SessionError,
        "set_adam: beta1: given 0.999999999, wanted a number in [0, 1) that float32 does not round to 1"),
    "beta2": (lambda s: s.set_adam(0.1, beta2=-0.1), SessionError,
        "set_adam: beta2: given -0.1, wanted a number in [0, 1)"),
    "epsilon": (lambda s: s.set_adam(0.1, epsilon=0), SessionError, "set_adam: epsilon: given 0, wanted a number > 0"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_a_refused_call_says_why_and_changes_nothing(
    trained: Session, call: Call, error: type[GdlabError], text: str
) -> None:
    before = state_of(trained)
    with pytest.raises(error) as caught:
        call(trained)
    assert str(caught.value) == text
    assert state_of(trained) == before


FRESH: dict[str, tuple[Call, str]] = {
    "inputs": (lambda s: s.step(), "step: inputs: given no value for y, wanted set_input for each"),
    "parameters": (lambda s: (s.set_input("y", Y), s.step()),
        "step: parameters: given no value for b, wanted initialize(seed), initialize(zeros=True), set_parameter or "
        "load_checkpoint"),
    "loss": (lambda s: s.read_loss(), "read_loss: loss: given no step yet, wanted a step before it"),
    "output": (lambda s: s.read_output(), "read_output: output 0: given no step yet, wanted a step before it"),
    "gradient": (lambda s: s.read_param_grad("w"), "read_param_grad: 'w': given no step yet, wanted a step before it"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), FRESH.values(), ids=FRESH)
def test_what_needs_a_step_or_a_value_says_so(device: str, call: Call, text: str) -> None:
    with build_session(line(), device) as session:
        session.set_input("x", X)
        session.set_parameter("w", W)
        with pytest.raises(SessionError) as caught:
            call(session)
        assert str(caught.value) == text
        assert (session.step_count, session.traffic.submissions, session.traffic.forwards) == (0, 0, 0)


def test_an_inference_session_has_no_gradients_and_no_update(device: str) -> None:
    with build_inference_session(line(), device) as session:
        fitted(session).step()
        assert session.mode == "inference" and not session.has_param_grad("w")
        assert session.read_loss() == pytest.approx(np.mean((X @ W - Y) ** 2), rel=1e-5)
        before = state_of(session)
        refused: list[Call] = [
            lambda s: s.set_learning_rate(0.1),
            lambda s: s.set_adam(0.1),
            lambda s: s.clear_optimizer(),
            lambda s: s.read_param_grad("w"),
        ]
        for call in refused:
            with pytest.raises(SessionError, match="an inference session, wanted a training session: build_s"):
                call(session)
        assert state_of(session) == before


CALLS: tuple[Call, ...] = (
    lambda s: s.set_input("x", X), lambda s: s.set_parameter("w", W), lambda s: s.read_param("w"),
    lambda s: s.get_parameter("w"), lambda s: s.read_param_grad("w"), lambda s: s.param_names(),
    lambda s: s.input_names(), lambda s: s.param_size("w"), lambda s: s.has_parameter("w"),
    lambda s: s.has_input("x"), lambda s: s.has_param_grad("w"), lambda s: s.initialize(), lambda s: s.step(),
    lambda s: s.wait(), lambda s: s.read_loss(), lambda s: s.read_output(), lambda s: s.read_output_by_index(9),
    lambda s: s.wait_read_output(0), lambda s: s.num_outputs(), lambda s: s.set_learning_rate(0.1),
    lambda s: s.set_adam(0.1), lambda s: s.clear_optimizer(), lambda s: s.adam_step_count(), lambda s: s.plan(),
    lambda s: s.update_dispatches(), lambda s: s.num_groups(), lambda s: s.memory_summary(),
    lambda s: s.device_information(), lambda s: s.check_ready("step"),
)  # fmt: skip


def test_a_closed_session_refuses_every_call(device: str) -> None:
    with build_session(line(), device) as session:
        fitted(session).step()
    session.close()  # again
    assert session.closed and "closed" in repr(session)
    for call in CALLS:
        with pytest.raises(SessionError, match=r"^\w+: session: given closed, wanted an open session$"):
            call(session)


def test_sessions_come_from_builders_alone() -> None:
    with pytest.raises(TypeError, match=r"build_session\(graph\), build_inference_session\(graph\) or Study"):
        Session()
    with pytest.raises(TypeError, match=r"build_session\(graph\)"):
        Session(line(), device="cpu")


def test_an_int_that_no_float_holds_is_refused(trained: Session) -> None:
    with pytest.raises(SessionError, match="lr: given 1000"):
        trained.set_learning_rate(10**400)


def test_a_fill_that_the_machine_cannot_hold_is_refused() -> None:
    with Graph() as g:
        g.set_outputs(full((2**50,), 1.0).sum_all())
    with pytest.raises(GdlabError, match="given"):
        build_inference_session(g, "cpu")


def test_run_does_not_exist_and_says_what_does(trained: Session) -> None:
    with pytest.raises(AttributeError, match=r"^Session has no attribute 'run'; use step\(\) and wait\(\)$"):
        trained.run  # noqa: B018
    with pytest.raises(AttributeError, match=r"^Session has no attribute 'stepp'$"):
        trained.stepp  # noqa: B018


def test_builders_refuse_what_cannot_be_a_session() -> None:
    empty, vector = Graph(), line()
    vector.set_outputs([vector.outputs[1]])
    with pytest.raises(GraphError, match=r"session: outputs: given none, wanted graph.set_outputs"):
        build_session(empty, "cpu")
    with pytest.raises(GraphError, match=r"session: outputs: given none, wanted graph.set_outputs"):
        build_inference_session(empty, "cpu")
    with pytest.raises(GraphError, match="session: graph: given str, wanted a Graph"):
        build_session("mlp", "cpu")  # type: ignore[arg-type]
    with pytest.raises(AutodiffError, match=r"f32\[4, 2\]"):
        build_session(vector, "cpu")
    with pytest.raises(GdlabError, match="cuda"):
        build_session(line(), "cuda")


def test_a_session_is_not_copied() -> None:
    import copy
    import pickle

    with build_session(line(), "cpu") as session:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(SessionError, match=r"copy: session: given one that owns device buffers, wanted snap"):
                make(session)
