"""Rows of the eager door that no other test holds: options, leaves, life, threads, memory, gradients, steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab import ops
from gdlab.base import philox
from gdlab.base.errors import (
    AutodiffError,
    DeviceUnavailableError,
    DTypeError,
    EagerError,
    GraphError,
    OutputIndexError,
    ShapeError,
)
from gdlab.devices.wgpu import wgpu_device
from gdlab.eager import Adam, EagerSession, NatRef, Sgd


@pytest.fixture
def s(device: str) -> Iterator[EagerSession]:
    session = EagerSession(device=device)
    yield session
    session.close()


# options --------------------------------------------------------------------------------------------------------------
def test_what_is_trained_and_what_is_differentiated(device: str) -> None:
    with closing(EagerSession(device=device, requires_grad_by_default=False)) as s:
        assert not s.param([1.0]).requires_grad and s.param([1.0], requires_grad=True).requires_grad
    with closing(EagerSession(device=device, track_gradients=False)) as s:
        y = (s.use(s.param([2.0])) * 3).sum_all()
        assert float(y) == 6
        with pytest.raises(AutodiffError, match="without trainable ancestors"):
            s.backward(y)


def test_a_session_without_an_adapter_is_no_cpu_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any, **more: Any) -> Any:
        raise DeviceUnavailableError("device", "wgpu", "no adapter", 'a driver or device="cpu"')

    monkeypatch.setattr(wgpu_device, "open", none)
    with pytest.raises(DeviceUnavailableError, match="no adapter"):
        EagerSession(device="wgpu")


def test_strict_sessions_refuse_the_logarithm_of_what_has_none(device: str) -> None:
    with closing(EagerSession(device=device, checks="strict")) as s:
        for wrong in (0.0, -1.0, np.nan):
            x = s.input([1.0, wrong])
            with pytest.raises(EagerError, match=r"eager.log: result, element 1: given (-inf|nan), wanted finite"):
                x.log()
        assert len(s.tape) == 3


# leaves ---------------------------------------------------------------------------------------------------------------
def test_what_a_parameter_may_hold(s: EagerSession) -> None:
    assert np.isnan(s.param([np.nan, True]).value[0]) and s.params[0].name == "p0"
    assert s.param(np.array([True, False])).value.tolist() == [1, 0]
    for wrong in ([1j], ["a"], [None], object()):
        with pytest.raises(DTypeError, match="eager.param: 'init'"):
            s.param(wrong)
    assert len(s.params) == 2


def test_integers_are_indices(s: EagerSession) -> None:
    for wrong, first in (([3, -1, -2], "-1 at index 1"), ([1, 2**32], "4294967296 at index 1")):
        with pytest.raises(DTypeError, match=f"eager.input: 'value': given {first}"):
            s.input(wrong)
    with pytest.raises(DTypeError, match="requires_grad: given indices"):
        s.input([1], requires_grad=True)
    reads = s.counters()["readbacks"]
    s.input(np.ones((2, 3))).gather(s.input([1, 0]), 0)
    assert s.counters()["readbacks"] == reads  # an index that the host knows never waits for the device


def test_a_parameter_is_uploaded_once_per_change(s: EagerSession) -> None:
    p, before = s.param(np.ones(4)), s.counters()["uploads"]
    for _ in range(3):
        s.use(p)
        s.reset_tape()
    assert s.counters()["uploads"] == before + 1
    s.set_param_host_value(p, np.zeros(4))
    assert s.use(p).numpy().tolist() == [0] * 4 and s.counters()["uploads"] == before + 2


def test_arrays_that_are_read_are_the_callers(s: EagerSession) -> None:
    x = s.input(np.arange(6.0).reshape(2, 3))
    made = x.T.numpy()
    assert made.flags.c_contiguous and made.flags.writeable and made[2, 1] == 5
    x.numpy()[:] = 9
    assert x.numpy()[0, 1] == 1 and len(str(s.input(np.arange(5000.0)))) < 2000


def test_numbers_are_checked(s: EagerSession) -> None:
    n = s.input_nat(2)
    for wrong in (True, 1.0, -1, 2**32, "a"):
        for refused in (s.input_nat, lambda v: s.set_nat(n, v), lambda v: s.input_nat_vec([0, v])):
            with pytest.raises(DTypeError, match="wanted an int in 0"):
                refused(wrong)
    with pytest.raises(OutputIndexError, match="eager.get_nat: nat id: given 5, wanted 0 … 0"):
        s.get_nat(NatRef(s, n.nat_generation, 5))
    with pytest.raises(ShapeError, match="length"):
        s.input_nat_vec([])
    assert s.nats == (2,)


def test_numbers_are_indices_of_every_op(s: EagerSession) -> None:
    v, table = s.input_nat_vec([0, 2, 0]), s.input(np.arange(8.0).reshape(4, 2), requires_grad=True)
    assert ops.embedding(v, table).numpy()[:, 1].tolist() == [1, 5, 1]
    added = ops.scatter_add(v, s.input(np.ones((3, 2))), 4)
    assert added.numpy()[:, 0].tolist() == [2, 0, 1, 0]
    far = s.input(np.eye(5)[[1, 4]]).argmax(1)  # computed: the op's own rule, a row of zeros and no gradient
    rows = table.gather(far, 0)
    assert rows.numpy().tolist() == [[2, 3], [0, 0]]
    assert s.backward(rows.sum_all()).numpy(table)[:, 0].tolist() == [0, 1, 0, 0]


# life -----------------------------------------------------------------------------------------------------------------
def test_blocks_follow_the_recording(s: EagerSession) -> None:
    with s:
        ops.full((2,), 1.0)
        s.reset_tape()
        assert ops.full((2,), 1.0).graph is s.tape and len(s.tape) == 1  # type: ignore[comparison-overlap]
    generation = s.generation
    with pytest.raises(KeyError), s.recording():
        s.input([1.0])
        raise KeyError
    assert s.generation == generation + 2 and len(s.tape) == 0


def test_gradients_of_another_recording_are_stale(s: EagerSession) -> None:
    x = s.input([1.0], requires_grad=True)
    grads = s.backward(x * 2)
    s.reset_tape()
    with pytest.raises(EagerError, match="eager.grads: stale handle"):
        grads[x]
    with gd.Graph(), pytest.raises(GraphError):
        s.get_value(gd.input("v", (1,)))  # type: ignore[arg-type]


def test_calls_from_several_threads_come_one_by_one(s: EagerSession) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                x = s.input(np.full(8, float(number)))
                if ((x + x).numpy() != 2 * number).any():
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert wrong == [] and [n.id for n in s.tape.nodes] == list(range(320)) and len(s.tape.buffers) == 320


# random numbers -------------------------------------------------------------------------------------------------------
def test_draws_follow_the_recording_alone(s: EagerSession) -> None:
    mask = s.bernoulli_mask((16,), 0.5, seed=42).numpy().astype(int)
    assert "".join(map(str, mask)) == "0111010100000001"
    assert int(philox.words(1024, 42).astype(np.uint64).sum()) == 2170443867741
    assert philox.words(4, 42).tolist() == [0x9CEAF053, 0x77F5493B, 0x12BF50AD, 0x5742B3D7]
    s.reset_tape()
    s.begin_draws(0)
    x = s.input(np.ones(64))
    x.relu() + x
    np.testing.assert_array_equal(s.bernoulli_mask((16,), 0.5, seed=42).numpy(), mask)
    dropped = s.dropout(None, x, 0.5).numpy()
    s.reset_tape()
    s.begin_draws(0)
    np.testing.assert_array_equal(gd.dropout(s.input(np.ones(64)), 0.5, seed=s.opts.seed).numpy(), dropped)
    s.reset_tape()
    s.begin_step(7)
    s.reset_tape()
    assert s.step_number == 8
    for wrong in (-1, 2**32, 1.5, True):
        with pytest.raises(gd.GdlabError, match="eager.begin_draws: step"):
            s.begin_draws(wrong)  # type: ignore[arg-type]


# memory ---------------------------------------------------------------------------------------------------------------
def test_views_share_memory_and_cost_no_dispatch(s: EagerSession) -> None:
    x = s.input(np.ones(6))
    before = s.counters()["dispatches"]
    y = x.reshape(2, 3)
    blocks = {s.buffer(v.id).block for v in (x, y, s.detach(y))}
    assert len(blocks) == 1 and s.counters()["dispatches"] == before


def test_a_value_that_was_given_back_is_named(s: EagerSession) -> None:
    x = s.input([1.0], requires_grad=True)
    y = x * 2
    z = (y * y).sum_all()
    s.release_device_buffer(s.buffer(y.id))
    length = len(s.tape)
    reads: list[tuple[str, Callable[[], Any]]] = [
        ("add_scalar", lambda: y + 1), ("add", lambda: x + y), ("reshape", lambda: y.reshape(1, 1)),
        ("stop_gradient", lambda: s.detach(y)), ("get_value", y.numpy), ("mul", lambda: s.backward(z)),
    ]  # fmt: skip
    for where, read in reads:
        with pytest.raises(EagerError, match=f"eager.{where}: value of %1: given a released buffer, wanted a live one"):
            read()
        assert len(s.tape) == length
    length = len(s.tape)
    held = z + 1
    s.tape.cut(length)
    assert repr(held) == f"TensorRef %{length}, cut off" == str(held)
    s.release_tape_non_param_values()
    with pytest.raises(EagerError, match="eager.to_graph: value of %0: given a released buffer"):
        s.to_graph(z)


def test_what_is_kept_after_a_step(s: EagerSession) -> None:
    p, q = s.param([1.0]), s.param([1.0], requires_grad=False)
    x, u, v = s.input([2.0]), s.use(p), s.use(q)
    grads = s.backward_scalar_param_grads((x * u * v).sum_all())
    s.step(Sgd(0.1), grads)
    released = [s.buffer(r.id).released for r in (x, u, v)]
    assert grads.released and released == [False, False, False] and u.numpy().tolist() == [1]
    s.release_tape_after_optimizer_step()
    assert [s.buffer(r.id).released for r in (x, u, v)] == [True, True, False]
    with pytest.raises(KeyError), s.grad_map(s.use(p).sum_all()) as held:
        raise KeyError
    assert held.released


def test_a_mirror_of_another_type_is_refused(s: EagerSession) -> None:
    p, words = s.param([1.0], "w"), s.to_any_buffer([2])
    with pytest.raises(ShapeError, match=r"parameter 'w': device value: given u32\[1\], wanted f32\[1\]"):
        s.set_param_device_value(p, words)
    words.release()
    half = s.to_any_buffer(np.float16([1.5]))
    s.set_param_device_value(p, half)
    assert p.state == "D" and s.state_dict()["param.0.w"].tolist() == [1.5] and p.state == "B"
    s.set_param_device_value(p, half)
    s.set_param_host_value(p, [3.0])  # what only the device had is lost, on purpose
    assert p.state == "H" and p.value.tolist() == [3]
    assert s.of_any_buffer(half, np.float16).dtype == np.float16
    half.release()


# gradients and steps --------------------------------------------------------------------------------------------------
def test_a_loss_has_one_element_or_a_seed(s: EagerSession) -> None:
    y = s.input(np.ones(4), requires_grad=True) * 2
    with pytest.raises(ShapeError, match=r"eager.backward: loss %1: given shape \[4\], wanted \[1\], or seed="):
        s.backward(y)
    with pytest.raises(ShapeError, match=r"eager.backward: seed of %1: given \[3\], wanted \[4\]"):
        s.backward(y, [1.0, 1.0, 1.0])


def test_frozen_parts_are_not_visited(s: EagerSession) -> None:
    q, p = s.param(np.ones((3, 3)), requires_grad=False), s.param(np.ones((3, 3)))
    frozen = (s.use(q) @ s.use(q)).tanh().tanh().tanh()
    loss = (frozen @ p).sum_all()
    grads = s.backward(loss)
    visited = {line.split()[1] for line in s.grads_text().splitlines() if line.startswith("%")}
    assert visited == {"matmul", "sum_all"} and q not in grads and p in grads
    x, z = (s.input([1.0], requires_grad=True) for _ in range(2))
    grads = s.backward((x * 2).sum_all())
    assert z.id in grads.missing and z.id not in grads and z.grad is None


def test_moments_begin_anew_where_that_is_asked_for(s: EagerSession) -> None:
    p = s.param([1.0])

    def grads(factor: float = 1.0) -> Any:
        return s.backward_scalar_param_grads((s.use(p) * s.input([factor])).sum_all())

    s.step(Adam(0.1), grads())
    s.step(Adam(0.1, beta1=0.5), grads(), reset_state=True)
    assert s.rules.t == 1 and p.value[0] == pytest.approx(0.8)
    s.step(Sgd(0.5), s.backward(s.use(p).sum_all()))
    assert p.value[0] == pytest.approx(0.3)
    s.step(Sgd(0.1), grads(np.inf), check_finite=False)
    assert np.isinf(p.value[0])


def test_a_parameter_with_two_values_moves_by_the_sum(s: EagerSession) -> None:
    p = s.param([2.0])
    first = s.use(p)
    s.set_param_host_value(p, [3.0])
    s.step(Sgd(1.0), s.backward_scalar_param_grads((first * s.use(p)).sum_all()))
    assert p.value.tolist() == [3 - (3 + 2)]
