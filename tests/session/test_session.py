"""Sessions: data in and out, steps, update rules, memory, threads; on both devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import networks
import numpy as np
import numpy_training
import pytest
from session_state import W, X, Y, download, fitted, line, state_of

from gdlab import ops
from gdlab.base.errors import (
    DTypeError,
)
from gdlab.devices.base import owner
from gdlab.graph import Graph
from gdlab.session import (
    MemorySummary,
    Optimizer,
    Session,
    build_inference_session,
    build_session,
    build_session_with_report,
    initial_values,
)
from gdlab.session.run.runner import Runner


def line_gradients(w: Any, b: Any) -> tuple[Any, Any]:
    """The derivative of the mean squared error, by hand."""
    error = (X.astype(float) @ w + b - Y) * 2 / Y.size
    return X.T.astype(float) @ error, error.sum(0)


@pytest.fixture
def session(device: str) -> Iterator[Session]:
    with build_session(line(), device) as session:
        yield fitted(session)


# data -----------------------------------------------------------------------------------------------------------------
def test_values_come_back_as_they_went_in(session: Session) -> None:
    assert (session.param_names(), session.input_names()) == (["w", "b"], ["x", "y"])
    assert (session.param_size("w"), session.param_size("b"), session.num_outputs()) == (6, 2, 2)
    assert session.has_parameter("w") and not session.has_parameter("x")
    assert session.has_input("x") and not session.has_input("w")
    read = session.read_param("w")
    assert read.dtype == np.float32 and np.array_equal(read, W) and np.array_equal(session.get_parameter("w"), W)


@pytest.mark.parametrize(
    "data",
    [W.ravel(), W.tolist(), W.astype(np.float64), np.asfortranarray(W), np.ma.masked_array(W), W.ravel().tolist()],
    ids=["flat", "list", "float64", "fortran", "masked", "flat list"],
)
def test_data_may_be_anything_of_the_declared_shape_or_flat(session: Session, data: Any) -> None:
    session.set_parameter("w", np.zeros((3, 2)))
    session.set_parameter("w", data)
    assert np.array_equal(session.read_param("w"), W)


def test_integers_and_booleans_become_floats(session: Session) -> None:
    session.set_parameter("w", [[1, 2], [3, 4], [5, 6]])
    assert session.read_param("w").tolist() == [[1, 2], [3, 4], [5, 6]]
    session.set_parameter("w", np.eye(3, 2, dtype=bool))
    assert session.read_param("w").tolist() == [[1, 0], [0, 1], [0, 0]]


def test_data_is_copied_at_the_call(session: Session) -> None:
    mine = W.copy()
    session.set_parameter("w", mine)
    mine[:] = 7
    read = session.read_param("w")
    assert np.array_equal(read, W)
    read[:] = 7
    assert np.array_equal(session.read_param("w"), W)


def test_a_submitted_step_keeps_its_data(session: Session) -> None:
    session.step()
    want = session.read_loss()
    for scale in (2, 3, 4):
        session.set_input("x", scale * X)
    session.set_parameter("w", 5 * W)
    assert session.read_loss() == want
    session.step()
    assert session.read_loss() == pytest.approx(np.mean((4 * X @ (5 * W) - Y) ** 2), rel=1e-5)


def test_out_is_filled_from_its_beginning_and_returned(session: Session) -> None:
    out = np.full(8, 9, np.float32)
    assert session.read_param("w", out) is out
    assert out.tolist() == [*W.ravel().tolist(), 9, 9]
    session.step()
    square = np.empty((4, 2), np.float32)
    assert session.read_output_by_index(1, square) is square
    np.testing.assert_allclose(square, X @ W, rtol=1e-5, atol=1e-6)
    assert np.array_equal(session.wait_read_output(1), square)


def test_gradients_are_those_of_the_last_step(session: Session) -> None:
    session.step()
    for name, want in zip("wb", line_gradients(W, 0), strict=True):
        np.testing.assert_allclose(session.read_param_grad(name), want, rtol=1e-5, atol=1e-7)
        assert session.has_param_grad(name) and not session.has_param_grad("x")
    session.set_input("y", X @ W)
    session.step()
    np.testing.assert_allclose(session.read_param_grad("w"), 0, atol=1e-6)


def test_a_gradient_has_the_shape_of_its_parameter(device: str) -> None:
    with Graph() as g:
        z = ops.input("x", (4, 3)) @ ops.parameter("w", (6,)).reshape((3, 2))
        g.output(ops.sum_all(z))
    with build_session(g, device) as session:
        session.set_parameter("w", W.ravel())
        session.set_input("x", X)
        session.step()
        assert session.read_param("w").shape == (6,)
        np.testing.assert_allclose(session.read_param_grad("w"), X.sum(0).repeat(2), rtol=1e-5, atol=1e-6)


def test_integer_inputs_stay_integers(device: str) -> None:
    with Graph() as g:
        i = ops.input_u32("i", (2, 3))
        g.set_outputs([i.reshape((3, 2)), i])
    rows = np.array([[0, 1, 2], [3, 4, 2**32 - 1]], np.int64)
    with build_inference_session(g, device) as session:
        session.set_input("i", rows)
        session.step()
        for index, shape in enumerate(((3, 2), (2, 3))):
            read = session.read_output_by_index(index)
            assert read.dtype == np.uint32 and np.array_equal(read, rows.reshape(shape))
        before = state_of(session)
        refused = ((rows + 0.5, "float64 data"), (rows - 1, "values -1 …"), (rows + 1, "values 1 … 4294967296"))
        for data, given in refused:
            with pytest.raises(DTypeError, match=f"set_input: 'i': given {given}.* wanted integers in 0"):
                session.set_input("i", data)
        assert state_of(session) == before


def test_outputs_may_be_leaves_and_views_of_leaves(device: str) -> None:
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("w", (3, 2))
        g.set_outputs([x, w.reshape((6,)), ops.constant([1.0, 2.0]), x, x.T, ops.full((2,), 3.0)])
    with build_inference_session(g, device) as session:
        session.set_parameter("w", W)
        for data in (X, 2 * X):
            session.set_input("x", data)
            session.step()
            wanted = [data, W.ravel(), [1, 2], data, data.T, [3, 3]]
            for index, want in enumerate(wanted):
                np.testing.assert_array_equal(session.read_output_by_index(index), want)
        session.set_input("x", 3 * X)
        assert np.array_equal(session.read_output(), 2 * X), "an output is of the last step, not of the next input"


def test_initial_values_have_the_bounds_of_their_fan_in() -> None:
    values = initial_values("w1", (64, 128), seed=0)
    assert values.dtype == np.float32 and abs(values).max() <= 1 / 8 and abs(values).max() > 0.124
    assert abs(values.mean()) < 0.01 and values.std() == pytest.approx(1 / 8 / np.sqrt(3), rel=0.02)
    assert not initial_values("b1", (128,), 0).any()
    assert not np.array_equal(values, initial_values("w2", (64, 128), 0)), "each name has a stream of its own"
    assert not np.array_equal(values, initial_values("w1", (64, 128), 1))
    # the same on every machine
    golden = [[0.4165453, -0.61034417, -0.48307791], [0.70664132, -0.56855559, -0.28631669]]
    np.testing.assert_allclose(initial_values("w", (2, 3), 0), golden, rtol=1e-6)


def test_initialize_fills_what_has_no_value(device: str) -> None:
    with build_session(line(), device) as session:
        session.set_parameter("b", [3, 4])
        session.initialize(seed=7)
        np.testing.assert_array_equal(session.read_param("w"), initial_values("w", (3, 2), 7))
        session.initialize(seed=8, zeros=True)
        assert session.read_param("b").tolist() == [3, 4] and session.read_param("w").any()
    with build_session(line(), device) as session:
        session.initialize(zeros=True)
        assert not session.read_param("w").any() and session.unset_parameters == []


# steps ----------------------------------------------------------------------------------------------------------------
def test_a_step_is_one_submission_of_forward_backward_and_update(session: Session) -> None:
    plain = len(session.plan().dispatches)
    session.step()
    first = session.traffic
    counted = (first.forwards, first.submissions, first.dispatches, session.step_count, session.update_dispatches())
    assert counted == (1, 1, plain, 1, ())
    groups = session.num_groups()
    session.set_adam(0.01)
    updates = len(session.update_dispatches())
    for _ in range(3):
        session.step()
    session.wait()
    traffic = session.traffic
    assert updates > 0 and session.num_groups() == groups + 1
    assert (traffic.forwards, traffic.submissions, traffic.dispatches) == (4, 4, plain + 3 * (plain + updates))
    assert (session.step_count, session.adam_step_count()) == (4, 3)


def test_the_loss_is_of_the_last_step_and_never_stale(session: Session) -> None:
    for k in range(1, 6):
        session.set_input("y", X @ W + k)
        session.step()
        assert session.read_loss() == pytest.approx(k * k, rel=1e-5)


def test_without_a_loss_output_the_loss_is_zero(device: str) -> None:
    with Graph() as g:
        g.output(ops.relu(ops.input("x", (4, 3))))
    with build_inference_session(g, device) as session:
        session.set_input("x", X)
        session.step()
        session.wait()
        assert session.read_loss() == 0.0
        assert np.array_equal(session.read_output(), np.maximum(X, 0))


def test_what_is_not_a_number_comes_through_and_can_be_mended(session: Session) -> None:
    session.set_learning_rate(0.1)
    session.set_input("x", np.full_like(X, np.nan))
    session.step()
    assert np.isnan(session.read_loss()) and np.isnan(session.read_param("w")).all()
    fitted(session).step()
    assert session.read_loss() == pytest.approx(np.mean((X @ W - Y) ** 2), rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_relu_lets_what_is_not_a_number_through(device: str, bad: float) -> None:
    with Graph() as g:
        g.output(ops.relu(ops.input("x", (2,))))
    with build_inference_session(g, device) as session:
        session.set_input("x", [bad, 1])
        session.step()
        np.testing.assert_array_equal(session.read_output(), np.maximum([bad, 1], 0))


def test_the_same_start_gives_the_same_bits(device: str) -> None:
    states = []
    for _ in range(2):
        with build_session(line(), device) as session:
            fitted(session).set_adam(0.1)
            for _ in range(5):
                session.step()
            states.append(state_of(session)[-1])
    assert states[0] == states[1]


def test_intermediates_carry_nothing_from_step_to_step(session: Session) -> None:
    session.step()
    want = state_of(session)[-1]
    owner().call(session.loaded.program.poison)
    session.step()
    assert state_of(session)[-1] == want


def test_later_edits_of_the_graph_do_not_reach_the_session(device: str) -> None:
    graph = line()
    with build_session(graph, device) as session:
        with graph:
            graph.set_outputs([graph.outputs[1]])
            ops.input("late", (1,))
        fitted(session).step()
        assert session.num_outputs() == 2 and session.input_names() == ["x", "y"]
        assert session.read_loss() == pytest.approx(np.mean((X @ W - Y) ** 2), rel=1e-5)


# update rules ---------------------------------------------------------------------------------------------------------
def test_an_update_rule_holds_until_it_is_changed(session: Session) -> None:
    w, b = W.astype(float), np.zeros(2)
    assert session.optimizer == Optimizer() and str(session.optimizer) == "no update rule"
    session.step()
    assert np.array_equal(session.read_param("w"), W), "without a rule a step leaves the parameters alone"
    session.set_adam(0.5)  # the last call wins
    for rate in (0.1, 0.02):
        session.set_learning_rate(rate)
        for _ in range(4):
            session.step()
            gw, gb = line_gradients(w, b)
            w, b = w - rate * gw, b - rate * gb
        np.testing.assert_allclose(session.read_param("w"), w, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(session.read_param("b"), b, rtol=1e-5, atol=1e-6)
    assert str(session.optimizer) == "SGD, lr 0.02" and session.adam_step_count() == 0
    session.clear_optimizer()
    before = session.read_param("w")
    session.step()
    assert np.array_equal(session.read_param("w"), before)


Step = Callable[[numpy_training.Arrays, numpy_training.Arrays], None]


def against_float64(device: str, rules: list[str]) -> float:
    """The largest relative distance of a parameter from float64 NumPy after a step by each of the rules."""
    images, labels, _ = networks.digits()
    rows = networks.batch_rows()
    adam = numpy_training.Adam(1e-3)
    steps: dict[str, Step] = {"adam": adam.update, "sgd": lambda w, g: numpy_training.sgd(w, g, 0.1)}
    with build_session(networks.mlp(), device) as session:
        session.initialize(0)
        weights = {name: session.read_param(name).astype(float) for name in session.param_names()}
        for rule, batch in zip(rules, rows, strict=False):
            session.set_adam(1e-3) if rule == "adam" else session.set_learning_rate(0.1)
            session.set_input("x", images[batch])
            session.set_input("y", labels[batch])
            session.step()
            x, y = images[batch].astype(float), labels[batch].astype(float)
            steps[rule](weights, numpy_training.loss_and_gradients(weights, x, y)[1])
        assert session.adam_step_count() == rules.count("adam")
        return max(
            float(np.linalg.norm(session.read_param(name) - want) / np.linalg.norm(want))
            for name, want in weights.items()
        )


def test_ten_steps_of_sgd_are_those_of_float64(device: str) -> None:
    assert against_float64(device, ["sgd"] * 10) < 1e-6


def test_ten_steps_of_adam_are_those_of_float64(device: str) -> None:
    assert against_float64(device, ["adam"] * 10) < 1e-6, "with corrections of β before it was rounded: 7e-6"


def test_moments_are_kept_while_another_rule_is_at_work(device: str) -> None:
    assert against_float64(device, ["adam"] * 3 + ["sgd"] * 3 + ["adam"] * 3 + ["sgd"]) < 1e-6


def test_writing_a_parameter_leaves_its_moments(session: Session) -> None:
    session.set_adam(0.1)
    session.step()
    _, *moments = next(found for found in session.update.moments if found[0] == dict(session.plan().param_buffers)["w"])
    before = [download(session, buffer) for buffer in moments]
    assert before[0].any() and (before[1] > 0).any()
    session.set_parameter("w", np.ones((3, 2)))
    for old, buffer in zip(before, moments, strict=True):
        assert np.array_equal(old, download(session, buffer))


# memory ---------------------------------------------------------------------------------------------------------------
def test_the_text_of_a_memory_summary() -> None:
    summary = MemorySummary(12300000, 8200000, 4, 4100000)
    assert str(summary) == "4 buffers, 12.3 MB total (8.2 MB adam state), largest 4.1 MB"


def test_memory_counts_the_moments_from_adam_on(device: str) -> None:
    with build_session(networks.mlp(), device) as session:
        slots = [slot.nbytes for slot in session.plan().memory.slots]
        logical = sum(b.nbytes for b in session.plan().buffers)
        bare = MemorySummary(sum(slots), 0, len(slots), max(slots), logical)
        assert session.memory_summary() == bare
        session.set_learning_rate(0.1)
        assert session.memory_summary() == bare, "SGD has no state"
        session.set_adam(1e-3)
        # w1 64 x 128, b1 128, w2 128 x 10, b2 10 floats (rounded up to 256 bytes), and all of it twice
        state, exact = 2 * (32768 + 512 + 5120 + 256), 2 * (32768 + 512 + 5120 + 40)
        with_adam = MemorySummary(sum(slots) + state, state, len(slots) + 8, max(*slots, 32768), logical + exact)
        assert session.memory_summary() == with_adam
        session.clear_optimizer()
        assert session.memory_summary() == with_adam, "moments are kept"


def test_the_report_of_a_build_covers_both_phases(device: str) -> None:
    session, report = build_session_with_report(networks.transformer(length=4, width=8, inner=8), device)
    with session:
        fired = dict(report.rules_fired)
        assert fired and all(count > 0 for count in fired.values())
        assert session.device.kind == device and device in session.device_information()
        assert session.mode == "training" and "training" in repr(session)


# threads --------------------------------------------------------------------------------------------------------------
def test_threads_may_step_read_and_write_beside_a_run(session: Session) -> None:
    """Each of two threads makes 300 steps; the run ends 200 steps after its start, whoever made them."""
    session.set_learning_rate(1e-3)
    errors: list[BaseException] = []

    def meddle(seed: int) -> None:
        try:
            for k in range(300):
                session.step()
                session.set_input("x", X * (1 + (k + seed) % 3))
                assert np.isfinite(session.read_param("w")).all() and np.isfinite(session.read_loss())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=meddle, args=(seed,)) for seed in range(2)]
    runner = Runner(session)
    for thread in threads:
        thread.start()
    runner.run(200)
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
    runner.run(0)
    total = session.step_count
    assert 600 <= total <= 800 and session.traffic.forwards == total >= session.traffic.submissions
    assert [step for step, _ in runner.losses] == list(range(1, total + 1))
