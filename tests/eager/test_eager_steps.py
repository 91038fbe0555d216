"""Steps: golden numbers, preflight, memory and bindings that do not grow, saved state."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gdlab.base.errors import ArgumentError, CheckpointError, EagerError, SessionError
from gdlab.eager import Adadelta, AdaGrad, Adam, AdamW, EagerSession, LaProp, Momentum, RmsProp, Sgd
from gdlab.session.update_settings import Optimizer

GOLDEN = {
    "sgd": (Sgd(0.1), 0.95, 0.975), "adam": (Adam(0.1), 0.900000002, 0.873366299),
    "adamw": (AdamW(0.1), 0.899000002, 0.871467299), "momentum": (Momentum(0.1), 0.95, 0.93),
    "nesterov": (Momentum(0.1, nesterov=True), 0.905, 0.912), "adagrad": (AdaGrad(0.1), 0.9, 0.944721360),
    "rmsprop": (RmsProp(0.1), 0.683772254, 0.831214201), "adadelta": (Adadelta(), 0.996837786, 0.998922873),
}  # fmt: skip


def moved(s: EagerSession, rule: Optimizer, params: Any, slope: float) -> None:
    loss = None
    for p in params:
        part = (s.use(p) * slope).sum_all()
        loss = part if loss is None else loss + part
    s.step(rule, s.backward_scalar_param_grads(loss))
    s.reset_tape()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_updates(name: str, device: str) -> None:
    rule, first, second = GOLDEN[name]
    s = EagerSession(device=device)
    p, frozen, q = s.param([1.0]), s.param([1.0], requires_grad=False), s.param(np.ones((3, 70)))
    for order, slope, wanted in (((p, frozen, q), 0.5, first), ((q, p, frozen), -0.25, second)):
        moved(s, rule, order, slope)
        np.testing.assert_allclose(p.value, wanted, rtol=1e-6)
        np.testing.assert_allclose(q.value, wanted, rtol=1e-6)
        assert frozen.value.tolist() == [1] and p.state == "B"
    s.assert_no_leaks()
    s.close()
    assert s.engine.live_bytes == 0


def network(s: EagerSession, params: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    x, t = s.input(rng.normal(size=(8, 5))), s.input(rng.integers(0, 3, 8))
    h = (x @ s.use(params[0]) + s.use(params[1])).tanh()
    return ((h @ s.use(params[2])) - t.to_f32().reshape(8, 1)).square().mean_all()


def three(s: EagerSession) -> Any:
    rng = np.random.default_rng(0)
    return [s.param(rng.normal(size=shape)) for shape in ((5, 6), (6,), (6, 3))]


def test_hundreds_of_steps_take_no_more_memory_and_bind_nothing_new(device: str) -> None:
    s = EagerSession(device=device)
    params, seen = three(s), []
    for step in range(600 if device == "cpu" else 40):
        loss = network(s, params, step)
        if step % 7 == 3:
            with pytest.raises(Exception, match="matmul"):
                loss @ s.input([[1.0], [2.0]])
        s.step(Adam(1e-2), s.backward_scalar_param_grads(loss))
        s.reset_tape()
        c = s.counters()
        seen.append((c["pieces_created"], c["bindings_created"], c["pipelines_created"], c["buffers_created"],
                     s.engine.live_bytes))  # fmt: skip
        if step == 20:
            with s.generation_block():
                s.input(np.ones((2, 2))).relu()
    assert len(set(seen[24:])) == 1
    s.assert_no_leaks()
    stats = s.allocator_stats()
    assert stats.live_bytes == 3 * 4 * (30 + 6 + 18) and stats.alloc_count - stats.free_count == 9
    assert "device_free=n/a" in stats.format()
    if device == "wgpu":
        assert s.counters()["submissions"] <= 4 * 40 + 4
    s.close()


def digest(s: EagerSession, params: Any) -> Any:
    moments = [s.engine.download(b.block, b.type).tobytes() for b in s.rules.buffers()]
    return [p.value.tobytes() for p in params], moments, s.rules.t, dict(s.rules.numbers), s.engine.live_bytes


def test_a_refused_step_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = EagerSession(device=device)
    params = three(s)
    for step in range(2):
        s.adam_step_all(s.backward_scalar_param_grads(network(s, params, step)), 1e-2)
        s.reset_tape()
    old = s.backward_scalar_param_grads(network(s, params, 5))
    s.reset_tape()
    loss = network(s, params, 6)
    spoilt = s.backward_scalar_param_grads(loss * s.input([np.inf]))
    good = s.backward_scalar_param_grads(loss)
    other = EagerSession(device="cpu")
    theirs = other.backward_scalar_param_grads(other.use(other.param([1.0])))
    for p in params:
        p.sync()
    before = digest(s, params)
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: s.step(Adam(1e-2), old), "stale gradients"), (lambda: s.step(Adam(1e-2), theirs), "foreign gradients"),
        (lambda: s.step(Adam(1e-2), spoilt), "numbers that are not finite"),
        (lambda: s.step(Adam(float("nan")), good), "lr"), (lambda: s.step(Adam(-1.0), good), "lr"),
        (lambda: s.step(Adam(1e-2, beta1=0.8), good), "0.9, that of the moments, or reset_state=True"),
        (lambda: s.step(Optimizer("adam", -1.0), good), "lr"), (lambda: s.step(Sgd(0.1), {}), "gradients"),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call, text in refusals:
        with pytest.raises(SessionError if "gradients" != text else ArgumentError, match=text):
            call()
        assert digest(s, params) == before
    make = s.engine._make
    for failing in range(3):
        count = iter(range(100))

        def no_memory(nbytes: int, failing: int = failing, count: Any = count) -> Any:
            if next(count) == failing:
                raise SessionError("device", "memory", nbytes, "more of it")
            return make(nbytes)

        monkeypatch.setattr(s.engine, "_make", no_memory)
        with pytest.raises(SessionError, match="more of it"):
            s.step(Adam(1e-2), good)
        monkeypatch.undo()
        assert digest(s, params) == before
    s.step(Adam(1e-2), good)
    with pytest.raises(EagerError, match="given released ones: a step consumes them"):
        s.step(Adam(1e-2), good)
    assert digest(s, params)[0] != before[0] and s.rules.t == 3
    other.close()
    s.close()


def test_saved_state_goes_on_with_the_same_bits(device: str) -> None:
    def run(s: EagerSession, params: Any, steps: range) -> list[float]:
        found = []
        for step in steps:
            loss = network(s, params, step)
            found.append(float(loss))
            s.step(LaProp(1e-2), s.backward_scalar_param_grads(loss))
            s.reset_tape()
        return found

    a, b = EagerSession(device=device), EagerSession(device=device)
    first, second = three(a), three(b)
    run(a, first, range(5))
    file = io.BytesIO()
    np.savez(file, **a.state_dict())
    file.seek(0)
    b.load_state_dict(np.load(file))
    assert run(a, first, range(5, 9)) == run(b, second, range(5, 9))
    assert [p.value.tobytes() for p in first] == [p.value.tobytes() for p in second] and a.step_number == b.step_number
    with pytest.raises(CheckpointError, match="parameters"):
        b.load_state_dict({})
    c = EagerSession(device="cpu")
    with pytest.raises(CheckpointError):
        c.load_state_dict(a.state_dict())
    for s in (a, b, c):
        s.close()


class Unreadable(dict[str, Any]):
    """A state whose file is damaged where one value lies."""

    def __getitem__(self, key: str) -> Any:
        if key == "moment.0.adam_v":
            raise zlib.error("invalid block type")
        return super().__getitem__(key)


BAD_STATES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a parameter less": ("param.1.b", lambda d: d.pop("param.1.b")),
    "no counters": ("counters", lambda d: d.pop("counters")),
    "a moment less": ("moment.0.adam_v", lambda d: d.pop("moment.0.adam_v")),
    "a moment lost": ("moments", lambda d: [d.pop("moment.0.adam_v"), d.pop("moment.0.adam_m")]),
    "a number less": ("number.beta2", lambda d: d.pop("number.beta2")),
    "beyond float32": ("param.0.w", lambda d: d.update({"param.0.w": np.array([1.0, 1e300])})),
    "a moment beyond float32": ("moment.1.adam_m", lambda d: d.update({"moment.1.adam_m": np.array([-1e39])})),
    "shape": ("param.0.w", lambda d: d.update({"param.0.w": np.zeros(3)})),
    "ragged": ("param.0.w", lambda d: d.update({"param.0.w": [[1.0], [2.0, 3.0]]})),
    "unknown": ("junk", lambda d: d.update(junk=np.zeros(1))),
    "unknown moment": ("moment.0.adam_w", lambda d: d.update({"moment.0.adam_w": np.zeros(2, np.float32)})),
    "another spelling": ("moment.00.adam_m", lambda d: d.update({"moment.00.adam_m": np.zeros(2, np.float32)})),
    "foreign moment": ("moment.2.adam_m", lambda d: d.update({"moment.2.adam_m": np.zeros(2, np.float32)})),
    "unknown number": ("number.lr", lambda d: d.update({"number.lr": 0.1})),
    "NaN": ("number.beta1", lambda d: d.update({"number.beta1": np.nan})),
    "two numbers": ("number.beta1", lambda d: d.update({"number.beta1": np.zeros(2)})),
    "text": ("number.epsilon", lambda d: d.update({"number.epsilon": "small"})),
    "few counters": ("counters", lambda d: d.update(counters=np.zeros(2, np.int64))),
    "counters of floats": ("counters", lambda d: d.update(counters=np.array([1.5, 2, 2, 4]))),
    "a counter below 0": ("counters", lambda d: d.update(counters=np.array([-1, 2, 2, 4]))),
    "more counted than made": ("counters", lambda d: d.update(counters=np.array([3, 2, 2, 4]))),
    "a step of 33 bits": ("counters", lambda d: d.update(counters=np.array([2, 2, 2**32, 4]))),
}  # fmt: skip


def trained(scale: float) -> EagerSession:
    s = EagerSession(device="cpu")
    params = s.param([1.0, 2.0], "w"), s.param([3.0], "b")
    for _ in range(2):
        moved(s, Adam(0.1), params, scale)
    return s


@pytest.mark.parametrize("name", [*BAD_STATES, "unreadable"])
def test_a_refused_state_changes_nothing_and_names_its_key(name: str) -> None:
    s, other = trained(0.5), trained(-0.25)
    before, live = s.state_dict(), s.engine.live_bytes
    given = other.state_dict()
    if name == "unreadable":
        key, given = "moment.0.adam_v", Unreadable(given)
    else:
        key, spoil = BAD_STATES[name]
        spoil(given)
    with pytest.raises(CheckpointError, match=f"eager.load_state_dict: {re.escape(key)}: given"):
        s.load_state_dict(given)
    assert {k: v.tobytes() for k, v in s.state_dict().items()} == {k: v.tobytes() for k, v in before.items()}
    assert s.engine.live_bytes == live
    s.load_state_dict(other.state_dict())
    assert [p.value.tobytes() for p in s.params] == [p.value.tobytes() for p in other.params]
    s.close()
    other.close()


def test_a_state_without_a_count_of_its_moments_is_loaded() -> None:
    """As sessions before 2026-11-29 wrote them."""
    s, other = trained(0.5), trained(-0.25)
    wanted = other.state_dict()
    s.load_state_dict({**wanted, "counters": wanted["counters"][:3]})
    assert {k: v.tobytes() for k, v in s.state_dict().items()} == {k: v.tobytes() for k, v in wanted.items()}
    s.close()
    other.close()


def test_gradients_that_are_missing(device: str) -> None:
    s = EagerSession(device=device)
    p, q = s.param([1.0, 2.0], "p"), s.param([3.0], "q")
    loss, unused = s.use(p).sum_all(), s.use(q)
    with s.grad_map(loss) as gs:
        assert gs.numpy(q).tolist() == [0] and gs.missing == (unused.id,)
    assert gs.released
    assert q not in s.backward_scalar_param_grads(loss, "none")
    with pytest.raises(EagerError, match="parameters without a gradient: given 'q'"):
        s.backward_scalar_param_grads(loss, "error")
    dense = s.backward_scalar_dense_all(loss)
    assert [s.read_buffer(b).tolist() for b in dense] == [[1, 1], [1], [0]]
    s.release_grad_array(dense)
    several = s.backward_dense_from({loss: [2.0], s.use(p): [1.0, 0.0]})
    assert s.read_buffer(several[0]).tolist() == [3, 2]
    assert [a.tolist() for a in s.vjp(loss, [3.0], [s.use(p)])] == [[3, 3]]
    assert s.sgd_step_scalar_graph(0.5, lambda: s.use(p).sum_all()) == 3 and p.value.tolist() == [0.5, 1.5]
    s.close()


def test_gradients_of_gradients(device: str) -> None:
    s = EagerSession(device=device)
    x = s.input([1.0, 2.0], requires_grad=True)
    grads = s.backward((x * x * x).sum_all(), create_graph=True)
    v = s.input([1.0, -1.0])
    second = s.backward((grads[x] * v).sum_all())
    assert second.numpy(x).tolist() == [6, -12] and x.grad.tolist() == [6, -12]
    s.reset_tape()
    x = s.input([1.0, 2.0])
    cube, length = (x * x * x).sum_all(), len(s.tape)
    assert [a.tolist() for a in s.hvp(cube, {x: [1.0, -1.0]})] == [[6, -12]]
    y = x * x.exp()
    np.testing.assert_allclose(s.jvp(y, {x: [1.0, 0.5]}), (1 + np.array([1, 2])) * np.exp([1, 2]) * [1, 0.5], 1e-5)
    kink = s.input([0.0, 0.0, -1.0])
    v, u = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    forward, (back,) = s.jvp(kink.relu(), {kink: v}), s.vjp(kink.relu(), u, [kink])
    assert np.dot(forward, u) == np.dot(v, back) and len(s.tape) == length + 5
    with pytest.raises(ArgumentError, match="tangents"):
        s.jvp(y, {})
    s.close()


def test_adjoints_are_released_as_soon_as_they_are_passed_on(device: str) -> None:
    s = EagerSession(device=device)
    x = s.input(np.ones(1000), requires_grad=True)
    y = x
    for _ in range(40):
        y = y.tanh()
    loss, live = y.sum_all(), s.engine.live_bytes
    s.engine.peak_bytes = live
    grads = s.backward(loss)
    assert s.engine.peak_bytes - live <= 8 * 4000 and s.engine.live_bytes - live == 4000
    grads.release()
    s.reset_tape()
    assert s.engine.live_bytes == 0
    s.close()
