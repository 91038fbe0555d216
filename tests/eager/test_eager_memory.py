"""Memory that enters and leaves: conversions by dtype, cache writes into parameters, leaks with their lines."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab import ops
from gdlab.base.errors import ArgumentError, DTypeError, EagerError, ExpertIndexError, SessionError, ShapeError
from gdlab.eager import AnyBuffer, EagerSession, FloatConv, HostOnlyConv, TensorConv, register_conv
from gdlab.eager.convert import conv_of


@pytest.fixture
def s(device: str) -> Iterator[EagerSession]:
    session = EagerSession(device=device)
    yield session
    session.close()


# conversions ----------------------------------------------------------------------------------------------------------
def test_floats_and_integers_go_to_the_device_and_back(s: EagerSession) -> None:
    strided = np.arange(12.0).reshape(3, 4).T[::2]
    for given in (strided, strided.astype(np.float32), strided.astype(np.float16), strided.tolist()):
        buffer = s.to_any_buffer(given)
        assert str(buffer.type) == "f32[2, 3]" and s.of_any_buffer(buffer).dtype == np.float32
        np.testing.assert_array_equal(s.of_any_buffer(buffer), strided)
        assert s.of_any_buffer(buffer, np.float64).dtype == np.float64
        s.release_any_buffer(buffer)
    third = s.to_any_buffer(np.float64([1 / 3]))
    assert s.of_any_buffer(third).tolist() == [np.float32(1 / 3)]
    numbers = s.to_any_buffer(np.int64([7, 2**32 - 1]))
    assert str(numbers.type) == "u32[2]" and s.of_any_buffer(numbers).tolist() == [7, 2**32 - 1]
    for wrong in ([-1], [2**32], ["a"], [1j]):
        with pytest.raises(DTypeError):
            s.to_any_buffer(wrong)
    assert [s.to_float(x) for x in (2, 0.5, np.float16(0.25), np.float64([3]))] == [2, 0.5, 0.25, 3]
    with pytest.raises(DTypeError, match="eager.to_float: scalar: given .*, wanted one real number"):
        s.to_float([1.0, 2.0])
    with pytest.raises(DTypeError, match="eager.to_float: scalar: given list, wanted real numbers in a regular array"):
        s.to_float([[1], [2, 3]])
    third.release()
    numbers.release()
    s.assert_no_leaks()


def test_a_dtype_of_the_host_alone_goes_to_no_adapter(s: EagerSession) -> None:
    wide, calls = np.longdouble([1, 2]), []
    assert isinstance(conv_of(np.longdouble), HostOnlyConv)
    calls = [("to_any_buffer", lambda: s.to_any_buffer(wide)), ("input", lambda: s.input(wide)),
             ("param", lambda: s.param(wide)), ("const", lambda: s.const(wide))]  # fmt: skip
    if s.device.kind == "cpu":
        for _, call in calls:
            call()
    else:
        nodes, bytes = len(s.tape), s.engine.live_bytes
        wanted = r"dtype: given longdouble, wanted float32 or float64 \(or a cpu session\)"
        held = s.to_any_buffer([1.0])
        for where, call in [*calls, ("of_any_buffer", lambda: s.of_any_buffer(held, np.longdouble))]:
            with pytest.raises(DTypeError, match=f"eager.{where}: {wanted}"):
                call()
        held.release()
        assert (len(s.tape), s.engine.live_bytes, s.params) == (nodes, bytes, [])
    with pytest.raises(DTypeError, match="eager.to_float: dtype: given longdouble, wanted float32 or float64"):
        s.to_float(wide[0])


def test_a_registered_conversion_replaces_the_old_one(s: EagerSession) -> None:
    class Halves(TensorConv):
        def to_any_buffer(self, session: EagerSession, array: Any) -> AnyBuffer:
            return session.to_any_buffer(np.asarray(array, np.float64) / 2)

        def of_any_buffer(self, session: EagerSession, buffer: AnyBuffer) -> Any:
            return session.read_buffer(buffer).astype(np.longdouble) * 2

        def to_float(self, scalar: Any) -> float:
            return float(scalar) / 2

    halves = Halves()
    first = register_conv(np.longdouble, halves)
    try:
        assert isinstance(first, HostOnlyConv)
        buffer = s.to_any_buffer(np.longdouble([3, 5]))
        assert s.read_buffer(buffer).tolist() == [1.5, 2.5] and s.to_float(np.longdouble(3)) == 1.5
        back = s.of_any_buffer(buffer, np.longdouble)
        assert back.dtype == np.longdouble and back.tolist() == [3, 5]
        buffer.release()
    finally:
        assert register_conv(np.longdouble, first) is halves
    with pytest.raises(ArgumentError, match="eager.register_conv: conv: given int"):
        register_conv(np.float32, 3)  # type: ignore[arg-type]
    assert conv_of(np.float32) == FloatConv(np.float32)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
def test_the_order_of_bytes_does_not_matter(device: str, dtype: str) -> None:
    with EagerSession(device=device) as session:
        np.testing.assert_array_equal(session.input(np.array([1, 2.5], dtype)).numpy(), [1, 2.5])


def test_of_the_two_tapes_that_of_the_other_device_is_empty(s: EagerSession) -> None:
    s.input([1.0]).relu()
    tapes = s.cpu_tape, s.device_tape
    own, other = tapes if s.device.kind == "cpu" else tapes[::-1]
    assert own is s.tape and len(own) == 2 and len(other) == 0


# caches ---------------------------------------------------------------------------------------------------------------
def test_a_cache_write_becomes_the_value_of_the_parameter(s: EagerSession) -> None:
    cache = s.param(np.zeros((4, 2)), "cache", requires_grad=False)
    whole = np.zeros((4, 2), np.float32)
    for turn in range(2):
        old = s.use(cache)
        before = old.numpy()
        written = ops.cache_write(s.input(np.full((1, 2), turn + 1.0)), old, s.input([turn]))
        twice = ops.cache_write(s.input(np.full((1, 2), 9.0)), written, s.input([3]))
        whole[turn] = turn + 1.0
        np.testing.assert_array_equal(written.numpy()[: turn + 1], whole[: turn + 1])
        np.testing.assert_array_equal(old.numpy(), before)  # stays with the tape
        whole[3] = 9
        np.testing.assert_array_equal(twice.numpy(), whole)
        assert cache.state == "D" and s.use(cache) != old
        np.testing.assert_array_equal(s.use(cache).numpy(), whole)
        s.reset_tape()
    np.testing.assert_array_equal(cache.value, whole)
    s.assert_no_leaks()
    plain = s.input(np.zeros((4, 2)))
    ops.cache_write(s.input(np.ones((1, 2))), plain, s.input([0]))
    np.testing.assert_array_equal(cache.value, whole)


def test_a_refused_builder_takes_its_cache_writes_back(s: EagerSession) -> None:
    cache = s.param(np.zeros((4, 2)), "cache", requires_grad=False)
    before = s.use(cache)
    length, bytes = len(s.tape), s.engine.live_bytes
    first = ops.cache_write(s.input(np.ones((1, 2))), cache, s.input([0]))
    ops.cache_write(s.input(np.ones((1, 2))), first, s.input([1]))
    s.tape.cut(length)
    assert s.engine.live_bytes == bytes and cache.value.tolist() == np.zeros((4, 2)).tolist()
    assert s.use(cache) == before


# experts --------------------------------------------------------------------------------------------------------------
def test_a_computed_number_of_an_expert_is_checked_when_strict(device: str) -> None:
    for checks in ("raise", "strict"):
        s = EagerSession(device=device, checks=checks)
        x, w = s.input(np.ones((2, 3))), s.input(np.ones((2, 3, 4)))
        chosen = s.input([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).argmax(1)
        length = len(s.tape)
        if checks == "raise":
            assert ops.grouped_matmul(x, w, chosen).numpy().tolist() == [[3] * 4, [0] * 4]
        else:
            with pytest.raises(ExpertIndexError, match=r"eager.grouped_matmul: index 1: given 2, wanted 0 … 1") as told:
                ops.grouped_matmul(x, w, chosen)
            assert (told.value.row, told.value.index, told.value.experts) == (1, 2, 2) and len(s.tape) == length
        with pytest.raises(ShapeError, match="index 0: given 5"):
            ops.grouped_matmul(x, w, s.input([5, 0]))
        s.close()


# leaks ----------------------------------------------------------------------------------------------------------------
def test_a_leak_is_told_with_its_node_and_line(s: EagerSession) -> None:
    p = s.param([1.0, 2.0], "p")
    loss = (s.use(p) * 2).sum_all()
    here = __file__
    with pytest.raises(EagerError, match=r"alive: %1 \w+ \(") as told:
        s.assert_no_leaks()
    assert f"{here}:" in str(told.value) and "%2 sum" in str(told.value)
    grads, kept = s.backward(loss), s.buffer(1).share()
    loose, copy = s.to_any_buffer([1.0]), s.owned_any_buffer("mine", s.buffer(1))
    s.reset_tape()
    with pytest.raises(EagerError) as told:
        s.assert_no_leaks()
    text = str(told.value)
    for what in ("gradient of p (", "%1 ", "to_any_buffer (", "owned_any_buffer ("):
        assert what in text, text
    assert text.count(f"{here}:") >= 4 and "live bytes: given" in text
    for held in (grads, kept, loose, copy):
        held.release()
    s.assert_no_leaks()


def test_gradients_that_nobody_holds_are_given_back_at_the_reset(s: EagerSession) -> None:
    p, seen = s.param([1.0, 2.0], "p"), set()
    for _ in range(5):
        x = s.input([3.0, 4.0], requires_grad=True)
        s.backward((x * p).sum_all())
        s.backward_scalar_param_grads((x * p).sum_all())
        assert x.grad.tolist() == [1, 2]
        s.reset_tape()
        seen.add(s.engine.live_bytes)
    assert seen == {8}
    s.assert_no_leaks()


def test_a_tape_ends_at_its_reset_without_the_collector() -> None:
    s = EagerSession(device="cpu")
    p = s.param(np.ones((3, 3)), "p")
    gc.disable()
    try:
        for _ in range(2):
            s.backward((s.input(np.ones((2, 3))) @ p).sum_all())
            s.sgd_step_all(0.1, s.backward_scalar_param_grads((s.input(np.ones((2, 3))) @ p).sum_all()))
            tape = weakref.ref(s.tape)
            s.reset_tape()
            assert tape() is None
    finally:
        gc.enable()
    s.close()


def test_a_tape_of_many_tensors_names_the_first() -> None:
    s = gd.EagerSession(device="cpu")
    for _ in range(20):
        s.input([1.0])
    with pytest.raises(EagerError, match="and 12 more"):
        s.assert_no_leaks()
    s.close()


class Injected(Exception):
    """The error that a call of the queue raises in these tests."""


QUEUE = ("make", "write", "read", "bind", "set_scalars", "submit", "recorded")


def injecting(monkeypatch: pytest.MonkeyPatch, s: EagerSession, name: str, at: int) -> None:
    """Let call `at` of a method of the session's queue fail, once."""
    queue: Any = s.engine.queue  # type: ignore[attr-defined]
    method, calls = getattr(queue, name), iter(range(10**6))

    def called(*args: Any, **more: Any) -> Any:
        if next(calls) == at:
            raise Injected(name)
        return method(*args, **more)

    monkeypatch.setattr(queue, name, called)


def training_step(s: EagerSession, params: Any, seed: int) -> float:
    rng = np.random.default_rng(seed)
    h = (s.input(rng.normal(size=(4, 3))) @ s.use(params[0]) + s.use(params[1])).tanh()
    rows = h.gather(s.input_nat_vec([1, 3]), 0)
    loss = gd.dropout(rows, 0.5).square().mean_all()
    with s.grad_map(loss) as grads:
        s.step(gd.eager.Adam(1e-2), grads)
    return float(loss)


def weights(s: EagerSession) -> Any:
    rng = np.random.default_rng(0)
    return [s.param(rng.normal(size=(3, 5)), "w"), s.param(np.zeros(5), "b")]


def test_a_call_of_the_queue_that_fails_leaks_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method of the queue fails at its first, second … call of a step: memory, parameters and moments are those
    of before or, where the step was made already, those after it."""
    failed = 0
    for name in QUEUE:
        for at in (*range(6), 9, 14, 20):
            s = EagerSession(device=device)
            if not hasattr(s.engine.queue, name):  # type: ignore[attr-defined]
                s.close()
                continue
            params = weights(s)
            for warm in range(2 if at % 2 else 0):  # cold and warm: with and without bindings
                training_step(s, params, warm)
                s.reset_tape()
            before = [p.value.tobytes() for p in params], s.rules.t
            with monkeypatch.context() as patched:
                injecting(patched, s, name, at)
                try:
                    training_step(s, params, 7)
                    s.engine.flush()
                except Injected:
                    failed += 1
            s.reset_tape()
            s.assert_no_leaks()
            after = [p.value.tobytes() for p in params], s.rules.t
            assert (after[0] == before[0]) == (after[1] == before[1]), (name, at)
            training_step(s, params, 8)
            s.reset_tape()
            s.assert_no_leaks()
            s.close()
            assert s.engine.live_bytes == 0, (name, at)
    assert failed >= 20


def test_a_thousand_steps_with_errors_and_releases_in_any_order_leak_nothing(device: str) -> None:
    rng = np.random.default_rng(1)
    s = EagerSession(device=device)
    params, seen = weights(s), set()
    for step in range(1000 if device == "cpu" else 60):
        x = s.input(rng.normal(size=(4, 3)))
        y = (x @ s.use(params[0])).relu()
        views = [y, s.detach(y), y.reshape(20), y.reshape(5, 4)]
        loose = [s.to_any_buffer([float(step)]), s.owned_any_buffer("test", s.buffer(y.id)), s.backward(y.sum_all())]
        if step % 3 == 0:
            with pytest.raises(ShapeError):
                y @ y
        if step % 5 == 0:
            loose[2].release()
            s.step(gd.eager.Adam(1e-3), s.backward_scalar_param_grads(y.square().mean_all(), missing="zero"))
        for k in rng.permutation(len(views)):
            assert s.release_device_buffer(s.buffer(views[k].id))
            assert not s.release_device_buffer(s.buffer(views[k].id))
        for k in rng.permutation(3):
            loose[k].release()
        if rng.random() < 0.5:
            s.release_tape_non_param_values()
        s.reset_tape()
        s.assert_no_leaks()
        seen.add(s.engine.live_bytes)
    assert len(seen) <= 2 and s.allocator_stats().alloc_count - s.allocator_stats().free_count == len(s.engine.alive)
    s.close()
    assert s.engine.live_bytes == 0 and not s.engine.alive


class Days(TensorConv):
    """Dates as days since 2026-01-01."""

    def to_any_buffer(self, session: EagerSession, array: Any) -> AnyBuffer:
        days = np.asarray(array) - np.datetime64("2026-01-01")
        return FloatConv().to_any_buffer(session, days.astype(np.int64).astype(np.float64))

    def of_any_buffer(self, session: EagerSession, buffer: AnyBuffer) -> Any:
        return session.read_buffer(buffer).astype("timedelta64[D]") + np.datetime64("2026-01-01")

    def to_float(self, scalar: Any) -> float:
        return float((scalar - np.datetime64("2026-01-01")).astype(np.int64))


def test_data_enters_by_the_conversion_of_its_dtype_wherever_it_enters(s: EagerSession) -> None:
    dates = np.array(["2026-01-03", "2026-02-01"], "datetime64[D]")
    with pytest.raises(DTypeError, match=r"eager.input: 'value': given datetime64\[D\], wanted real numbers"):
        s.input(dates)
    before = register_conv(dates.dtype, Days())
    try:
        p = s.param(dates, "p")
        assert s.input(dates).numpy().tolist() == [2, 31] == p.value.tolist() == s.const(dates).numpy().tolist()
        s.set_param_host_value(p, dates[::-1])
        assert s.use(p).numpy().tolist() == [31, 2] and s.to_float(dates[1]) == 31
        s.feed(x=dates)
        with s:
            assert gd.input("x", (2,)).numpy().tolist() == [2, 31]
        loss = s.use(p).square()
        assert s.backward(loss, dates).numpy(p).tolist() == [124, 124] == s.vjp(loss, dates, [s.use(p)])[0].tolist()
        assert s.jvp(loss, {s.use(p): dates}).tolist() == [124, 124]
        held = s.to_any_buffer(dates)
        assert s.of_any_buffer(held, dates.dtype).tolist() == dates.tolist()
        held.release()
        s.reset_tape()
        s.assert_no_leaks()
    finally:
        register_conv(dates.dtype, before)


def test_a_dtype_that_is_made_one_of_the_host_is_refused_by_adapters(s: EagerSession) -> None:
    before = register_conv(np.float16, HostOnlyConv("float16"))
    try:
        half = np.ones(3, np.float16)
        if s.device.kind == "cpu":
            assert s.input(half).numpy().tolist() == [1, 1, 1]
            return
        for refused in (s.input, s.param, s.const, s.to_any_buffer):
            with pytest.raises(DTypeError, match="given float16, wanted float32 or float64"):
                refused(half)
    finally:
        register_conv(np.float16, before)


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_buffer_is_not_copied_without_a_reference_of_its_own(s: EagerSession, again: Any) -> None:
    buffer = s.to_any_buffer([1.0])
    with pytest.raises(SessionError, match=r"copy: eager buffer: .* wanted share\(\), or of_any_buffer\(buffer\)"):
        again(buffer)
    buffer.release()
    s.assert_no_leaks()


@pytest.mark.parametrize("wide", [False, True])
def test_close_releases_gradients_and_buffers_that_are_still_held(device: str, wide: bool) -> None:
    s = EagerSession(device="cpu", scalar=np.float64) if wide else EagerSession(device=device)
    w = s.param(np.ones(4), "w")
    x = s.use(w)
    loss = (x * x).sum_all()
    grads, several = s.backward(loss), s.backward_scalar_dense_all(loss)
    s.set_param_host_value(w, np.zeros(4))
    twice = s.backward((x + s.use(w)).sum_all())  # two leaves of one parameter: added when they are asked for
    buffer = s.to_any_buffer(np.ones(3, np.float32))
    other, memory = s.owned_any_buffer("test", buffer), buffer.block
    s.close()
    assert s.engine.live_bytes == 0 and not s.engine.alive and memory.memory is None
    assert all(b.released for b in (*grads.values(), *several, buffer, other))
    for use in (lambda: grads.numpy(x), lambda: x.grad, lambda: s.read_buffer(buffer), lambda: s.of_any_buffer(other)):
        with pytest.raises(EagerError, match=rf"session {s.number}: given a closed session, wanted an open one"):
            use()
    for held in (buffer.share, twice.by_param):
        with pytest.raises(EagerError, match="given a released buffer, wanted a live one"):
            held()
    assert not buffer.release()
    grads.release()
    del twice, several
    gc.collect()
    assert s.engine.live_bytes == 0 and s.engine.frees == s.engine.allocs
