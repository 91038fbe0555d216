"""Random ops draw the Philox streams of their attributes: the same bits on every device, other ones in every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gdlab as gd
from gdlab.base import philox
from gdlab.base.errors import ArgumentError, SessionError
from gdlab.devices.base import owner
from gdlab.op.reference import compare, evaluate
from gdlab.ops.random import at_step
from gdlab.plan.codec import from_json, to_json
from gdlab.session.update_settings import Optimizer, scalars

N = 1027  # the last block is cut
MASK = "0111010100000001"  # of seed 42, call 0, step 0, keep 0.5


def drawn(call: Callable[[], gd.Value]) -> gd.Graph:
    with gd.Graph() as g:
        g.output(call())
    return g


def calls(g: gd.Graph) -> list[int]:
    return [n.attr("call") for n in g if "call" in dict(n.attrs)]


def test_draws_of_a_graph_have_numbers_of_their_own() -> None:
    with gd.Graph() as g:
        x = gd.input("x", (3,))
        gd.rand_uniform((3,))
        gd.rand_uniform((3,))
        gd.rand_normal((3,), seed=7)
        x.dropout(0.5, seed=7)
        gd.bernoulli_mask((3,), 0.5, call=9)
        gd.rand_uniform((3,))
    assert calls(g) == [0, 1, 0, 1, 9, 10]


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
def test_uniform_and_mask_have_the_same_bits_everywhere(seed: int, device: str) -> None:
    with gd.Graph() as g:
        g.output(gd.rand_uniform((N,), seed=seed, call=3))
        g.output(gd.bernoulli_mask((N,), 0.3, seed=seed, call=3))
    with gd.build_inference_session(g, device=device) as session:
        for step in range(3):
            session.step()
            want = philox.uniform(N, seed, call=3, step=step)
            with at_step(step):
                judged = evaluate(g, {})
            assert np.array_equal(session.read_output_by_index(0), want)
            assert np.array_equal(judged[0], want.astype(np.float64))
            assert np.array_equal(session.read_output_by_index(1), want < np.float32(0.3))
            assert np.array_equal(judged[1], want < np.float32(0.3))


def test_known_numbers(device: str) -> None:
    with gd.Graph() as g:
        g.output(gd.rand_uniform((4,), seed=42))
        g.output(gd.bernoulli_mask((16,), 0.5, seed=42, call=0))
        g.output(gd.rand_normal((4,), seed=42, call=0))
    with gd.build_inference_session(g, device=device) as session:
        session.step()
        uniform, mask, normal = (session.read_output_by_index(i) for i in range(3))
        session.step()
        second = session.read_output_by_index(0)
    assert uniform.tolist() == [0.6129598617553711, 0.4685865044593811, 0.07323169708251953, 0.3408614993095398]
    assert second.tolist() == [0.12603157758712769, 0.5938701629638672, 0.32852137088775635, 0.7850700616836548]
    assert "".join(str(int(m)) for m in mask) == MASK
    want = [-0.970189708191932, -1.2356200747928239, -0.07318130573074808, -1.1066648560793124]
    np.testing.assert_allclose(normal, want, rtol=0, atol=1e-6)


def test_normal_numbers_agree_within_a_few_roundings(device: str) -> None:
    g = drawn(lambda: gd.rand_normal((1 << 16,), seed=5))
    with gd.build_inference_session(g, device=device) as session:
        session.step()
        got = session.read_output()
    np.testing.assert_allclose(got, philox.normal(1 << 16, 5), rtol=1e-5, atol=1e-6)


def test_a_step_beyond_16_bits_is_a_stream_of_its_own(device: str) -> None:
    g = drawn(lambda: gd.rand_uniform((N,), seed=1))
    with gd.build_inference_session(g, device=device) as session:
        for step in (65_535, 65_536, 2**32 - 1):
            owner().call(lambda step=step: session.loaded.program.step(scalars(Optimizer(), 0, step)))
            session.progress.steps = 1
            assert np.array_equal(session.read_output(), philox.uniform(N, 1, step=step))


def test_dropout_passes_its_gradient_through_the_same_mask(device: str) -> None:
    with gd.Graph() as g:
        w = gd.parameter("w", (4, 4))
        kept = w.dropout(0.5, seed=42)
        g.output((kept * gd.constant(np.arange(1.0, 17.0), (4, 4))).sum_all())
    mask = np.array([int(c) for c in MASK], float).reshape(4, 4)
    with gd.build_session(g, device=device) as session:
        session.set_parameter("w", np.ones((4, 4)))
        session.step()
        np.testing.assert_allclose(session.read_param_grad("w"), 2 * mask * np.arange(1, 17).reshape(4, 4), rtol=1e-6)
        session.step()
        second = philox.uniform(16, 42, step=1).reshape(4, 4) < 0.5
        assert np.array_equal(session.read_param_grad("w") != 0, second)


def test_each_part_of_a_debugged_step_draws_the_numbers_of_that_step(device: str) -> None:
    g = drawn(lambda: gd.rand_uniform((N,), seed=3))
    with gd.build_inference_session(g, device=device) as session:
        session.step()
        session.step_debug()
        assert np.array_equal(session.read_output(), philox.uniform(N, 3, step=1))


def test_equal_draws_are_one_and_different_draws_stay_apart() -> None:
    with gd.Graph() as g:
        g.output(gd.rand_uniform((8,)) - gd.rand_uniform((8,)))
    better, _ = gd.optimize(g, phase="inference")
    assert sum(n.op == "rand_uniform" for n in better) == 2
    assert compare(evaluate(better, {})[better.output_ids[0]], evaluate(g, {})[2], 1.0, 1e-12) is None


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at_step: step: given -1, wanted an int in 0"), at_step(-1):
        pass


def test_a_draw_takes_what_follows_into_its_kernel_and_comes_back_from_json(device: str) -> None:
    with gd.Graph() as g:
        g.output(gd.input("x", (N,)).dropout(0.25, seed=2**63 + 5) * 4)
    plan = gd.compile(g, mode="inference", target=gd.device(device).target)
    assert [d.label for d in plan.dispatches] == [f"BernoulliMask[{N}] + mul + scale + scale"]
    again = from_json(to_json(plan))
    assert again == plan and again.reads_scalars
    with gd.build_inference_session(g, device=device) as session:
        session.set_input("x", np.ones(N))
        session.step()
        kept = philox.uniform(N, 2**63 + 5) < np.float32(0.75)
        np.testing.assert_allclose(session.read_output(), np.where(kept, 4 / 0.75, 0), rtol=1e-6)


def test_a_step_needs_its_number() -> None:
    home = gd.device("cpu")
    program = home.load(gd.compile(drawn(lambda: gd.rand_uniform((4,))), mode="inference", target=home.target))
    with pytest.raises(SessionError, match="step: scalars: given none"):
        program.step(None)
    program.close()
