"""Life of a session: handles, leaves, reads, numbers, random draws; a refused call changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.base.errors import (
    ArgumentError,
    AutodiffError,
    DTypeError,
    EagerError,
    GdlabError,
    GraphError,
    OutputIndexError,
    ShapeError,
)
from gdlab.eager import EagerSession, Options, RngState, TensorRef, axis_map_array, dims_array, split_rng


@pytest.fixture
def s(device: str) -> Iterator[EagerSession]:
    session = EagerSession(device=device)
    yield session
    session.close()


@pytest.fixture
def c() -> Iterator[EagerSession]:
    session = EagerSession(device="cpu")
    yield session
    session.close()


# values exist ---------------------------------------------------------------------------------------------------------
def test_values_are_there_when_they_are_written(s: EagerSession) -> None:
    x = s.input([[1.0, -2.0], [3.0, 4.0]], "x")
    y = (x @ x.T).relu() - 1
    np.testing.assert_array_equal(y.numpy(), np.maximum([[5, -5], [-5, 25]], 0) - 1.0)
    assert np.asarray(y).dtype == np.float32 and float(y.sum_all()) == 26 and int(s.input(3)) == 3
    assert [row.numpy().tolist() for row in x] == [[1, -2], [3, 4]] and len(x) == 2
    assert repr(y) == f"TensorRef %{y.id} f32[2, 2]" and "24." in str(y) and repr(x) == 'TensorRef %0 "x" f32[2, 2]'
    with pytest.raises(ShapeError, match=r"eager.item: %0: given \[2, 2\], wanted one element"):
        float(x)
    with pytest.raises(ShapeError, match=r"eager.get_value: shape of %0: given \[2, 3\], wanted \[2, 2\]"):
        s.get_value(x, (2, 3))
    with pytest.raises(ShapeError, match=r"eager.get_value: shape of %0: given \[4\], wanted \[2, 2\]"):
        s.get_value(x, 4)
    with pytest.raises(GraphError, match=r"full: value: given 10+, wanted a number or an infinity"):
        x > 10**400  # noqa: B015


def test_control_flow_on_values_runs_and_is_exported(c: EagerSession) -> None:
    x, turns = c.input(8.0), 0
    while x > 1:
        x, turns = x / 2, turns + 1
    assert float(x) == 1 and turns == 3
    assert sum(n.op in ("div", "scale") for n in c.to_graph(x).graph) == 3


def test_layers_and_builders_run_on_the_tape(s: EagerSession) -> None:
    s.feed(x=np.ones((2, 4)), self=np.ones(3))
    with s:
        y = gd.nn.Linear("layer", 4, 3)(gd.input("x", (2, 4))).relu()
        assert isinstance(y, TensorRef) and y.numpy().shape == (2, 3)
        first = y.numpy()
        s.reset_tape()
        again = gd.nn.Linear("layer", 4, 3)(gd.input("x", (2, 4))).relu()
        np.testing.assert_array_equal(again.numpy(), first)
        assert gd.input("self", (3,)).numpy().tolist() == [1, 1, 1]
        assert len(s.params) == 2 and set(s.params_by_leaf.values()) == set(s.params)
        with pytest.raises(EagerError, match=r"eager.input: 'z': given no value, wanted s.feed\(z=array\)"):
            gd.input("z", (2,))
        with pytest.raises(GraphError, match="again, as"):
            gd.parameter(s.params[0].name, (9, 9))


# handles --------------------------------------------------------------------------------------------------------------
def test_stale_foreign_forged_and_closed_handles_are_refused(s: EagerSession) -> None:
    x = s.input([1.0, 2.0])
    s.reset_tape()
    fresh = s.input([3.0, 4.0])
    stale = r"stale handle: given TensorRef %0 of generation 1, wanted generation 2 \(reset_tape was called"
    for where, refused in (("relu", lambda: x.relu()), ("add", lambda: fresh + x), ("get_value", x.numpy),
                           ("add", lambda: x + fresh), ("backward", lambda: s.backward(x))):  # fmt: skip
        with pytest.raises(EagerError, match=rf"eager.{where}: {stale}") as error:
            refused()
        assert error.value.source is not None and error.value.source.file == __file__
    other = EagerSession(device="cpu")
    foreign = rf"eager.add: foreign handle: given TensorRef %0 of session {other.number}, wanted session {s.number}"
    with pytest.raises(EagerError, match=foreign):
        fresh + other.input([1.0, 2.0])
    with pytest.raises(OutputIndexError, match=r"eager.get_value: tensor id: given 12, wanted 0 … 0"):
        s.get_value(TensorRef(s.tape, 12))
    with gd.Graph(), pytest.raises(GraphError, match="of another graph"):
        fresh + gd.input("x", (2,))
    p = other.param([1.0])
    other.close()
    other.close()
    with pytest.raises(EagerError, match=rf"eager.use: session {other.number}: given a closed session, wanted an open"):
        other.use(p)
    with pytest.raises(EagerError, match="foreign handle"):
        s.use(p)
    assert p.sync().tolist() == [1] and len(s.tape) == 1


def test_a_refused_call_changes_nothing_and_tells_the_line(s: EagerSession) -> None:
    w = s.param(np.ones((4, 3)), "w")
    x, i = s.input(np.ones((2, 4))), s.input([0, 9])
    u = s.use(w)
    loss = (x @ u).sum_all()

    def state() -> tuple[Any, ...]:
        return len(s.tape), s.tape.text(), s.engine.live_bytes, w.state, loss.numpy().tobytes(), s.nats

    before = state()
    refusals: list[tuple[Any, type[Exception]]] = [
        (lambda: x @ x, ShapeError), (lambda: x + s.input("a"), DTypeError), (lambda: u.gather(i, 0), ShapeError),
        (lambda: s.backward(x @ u), ShapeError), (lambda: s.backward(x.sum_all()), AutodiffError),
        (lambda: s.backward(loss, seed=[1.0, 2.0]), ShapeError), (lambda: s.param(np.array(1j)), DTypeError),
        (lambda: s.input([-1]), DTypeError), (lambda: s.input([1e39]), DTypeError),
        (lambda: s.param([1.0], ""), ArgumentError), (lambda: s.set_param_host_value(w, [1.0]), ShapeError),
        (lambda: s.input_nat(-1), DTypeError), (lambda: s.buffer(99), OutputIndexError),
        (lambda: s.rand_uniform((0,)), ShapeError), (lambda: s.backward_scalar_param_grads(loss, "x"), ArgumentError),
    ]  # fmt: skip
    for call, kind in refusals * 4:
        with pytest.raises(kind) as refused:
            call()
        assert isinstance(refused.value, GdlabError) and refused.value.source is not None
        assert refused.value.source.file == __file__
        s.tape.cut(before[0])  # operands of the call that were computed
        assert state() == before


# leaves ---------------------------------------------------------------------------------------------------------------
def test_use_shows_the_value_of_now_and_sums_gradients(s: EagerSession) -> None:
    p = s.param([2.0, 3.0], "p")
    a, b = s.use(p), s.use(p)
    assert a == b
    s.set_param_host_value(p, [5.0, 7.0])
    c = s.use(p)
    assert c != a and a.numpy().tolist() == [2, 3] and c.numpy().tolist() == [5, 7]
    grads = s.backward_scalar_param_grads((a * c).sum_all())
    assert sorted(grads) == [a.id, c.id] and grads.numpy(p).tolist() == [7, 10]
    assert grads.numpy(a).tolist() == [5, 7] and len(s.params_by_leaf) == 2


def test_frozen_parameters_detached_values_and_no_grad(s: EagerSession) -> None:
    p, q = s.param([1.0], "p"), s.param([2.0], "q", requires_grad=False)
    x = s.input([3.0], requires_grad=True)
    loss = (s.use(p) * s.detach(x) * s.use(q) + x).sum_all()
    grads = s.backward(loss)
    assert grads.numpy(x).tolist() == [1] == x.grad.tolist() and q not in grads and p in grads
    with s.no_grad():
        y = s.input([1.0], requires_grad=True)
        assert not s.tape.needs_grad[y.id] and not s.tape.needs_grad[s.input([1.0]).id]
    d = s.detach(x)
    assert s.release_device_buffer(s.buffer(x.id)) and not s.release_device_buffer(s.buffer(x.id))
    assert d.numpy().tolist() == [3]
    with pytest.raises(EagerError, match=rf"value of %{x.id}: given a released buffer, wanted a live one"):
        x.numpy()


def test_mirrors_follow_the_table(device: str) -> None:
    s = EagerSession(device=device)
    p, rng, value = s.param(np.zeros(5), "p"), np.random.default_rng(0), np.zeros(5, np.float32)
    assert p.state == "H"
    for turn in range(200):
        event = int(rng.integers(5))
        before = p.state
        if event == 0:
            assert s.use(p).numpy().tolist() == value.tolist()
            assert p.state == ("B" if before == "H" else before)
        elif event == 1:
            assert p.value.tolist() == value.tolist() and p.state == {"H": "H", "B": "B", "D": "B"}[before]
        elif event == 2:
            value = rng.normal(size=5).astype(np.float32)
            s.set_param_host_value(p, value)
            assert p.state == "H"
        elif event == 3:
            value = rng.normal(size=5).astype(np.float32)
            buffer = s.to_any_buffer(value)
            s.set_param_device_value(p, buffer)
            buffer.release()
            assert p.state == "D" and not p.host_current
        else:
            s.sync_param_device_to_host(p)
            assert p.state in ("H", "B")
        if turn % 20 == 0:
            s.reset_tape()
    s.reset_tape()
    s.assert_no_leaks()
    with pytest.raises(ShapeError, match=r"parameter 'p': device value: given f32\[2\], wanted f32\[5\]"):
        s.set_param_device_value(p, s.to_any_buffer([1.0, 2.0]))
    last = value.tolist()
    s.close()
    assert p.sync().tolist() == last


# numbers --------------------------------------------------------------------------------------------------------------
def test_numbers_stand_wherever_indices_do(s: EagerSession) -> None:
    table = s.input(np.arange(12.0).reshape(4, 3), requires_grad=True)
    n, v = s.input_nat(2), s.input_nat_vec([3, 0, 3])
    rows = table.gather(v, 0)
    assert rows.numpy()[:, 0].tolist() == [9, 0, 9]
    s.set_nat_vec(v, [1, 1, 1])
    assert table.gather(v, 0).numpy()[:, 0].tolist() == [3, 3, 3] and rows.numpy()[0, 0] == 9
    assert table.gather(n, 0).numpy().tolist() == [[6, 7, 8]] and s.get_nat(n) == 2 and s.get_nat_vec(v) == [1, 1, 1]
    grads = s.backward(rows.sum_all())
    assert grads.numpy(table)[:, 0].tolist() == [1, 0, 0, 2]
    s.set_nat(n, 9)
    for given, text in ((n, "index 0: given 9"), (s.input([0, 4]), "index 1: given 4")):
        with pytest.raises(ShapeError, match=rf"eager.gather: {text}, wanted 0 … 3"):
            table.gather(given, 0)
    with pytest.raises(EagerError, match="eager.set_nat_vec: length: given 2, wanted 3"):
        s.set_nat_vec(v, [1, 2])
    with pytest.raises(DTypeError, match="-1 at position 1"):
        s.nat_vec_to_array([3, -1])
    assert s.nat_vec_to_array(s.input([4, 5])) == [4, 5]
    s.reset_tape(keep_nats=True)
    assert s.get_nat(n) == 9
    s.reset_tape()
    with pytest.raises(EagerError, match="stale handle"):
        s.get_nat(n)


def test_checks_off_and_strict(device: str) -> None:
    s = EagerSession(device=device, checks="off")
    assert s.input(np.ones((2, 3))).gather(s.input([5]), 0).numpy().tolist() == [[0, 0, 0]]
    s.close()
    s = EagerSession(device=device, checks="strict")
    with pytest.raises(EagerError, match=r"eager.log: result, element 1: given -inf, wanted finite numbers"):
        s.input([1.0, 0.0]).log()
    assert len(s.tape) == 1
    s.close()


# random numbers -------------------------------------------------------------------------------------------------------
GOLDEN = {
    (2**64 - 1, 0, 0): (0.44782203435897827, 0.08311885595321655),
    (0, 0, 0): (0.3990464210510254, 0.8805201649665833), (42, 0, 0): (0.6129598617553711, 0.4685865044593811),
    (42, 1, 0): (0.010058820247650146, 0.12624984979629517), (42, 0, 1): (0.12603157758712769, 0.5938701629638672),
}  # fmt: skip


def test_recordings_are_steps(s: EagerSession) -> None:
    for (seed, call, step), wanted in GOLDEN.items():
        s.reset_tape()
        s.begin_draws(step)
        found = s.rand_uniform((2,), seed=seed, call=call).numpy().tolist()
        assert found == pytest.approx(wanted, abs=1e-9)
    mask = s.bernoulli_mask((16,), 0.5, seed=7)
    by_tensor = s.bernoulli_mask((16,), s.input([0.5]), seed=7, call=0)
    np.testing.assert_array_equal(mask.numpy(), by_tensor.numpy())
    with pytest.raises(EagerError, match="given 7 after 3 draws, wanted a call before the first draw"):
        s.begin_step(7)
    masks = []
    for _ in range(3):
        s.reset_tape()
        masks.append(s.bernoulli_mask((64,), 0.5).numpy().tobytes())
        assert s.bernoulli_mask((64,), 0.5).numpy().tobytes() != masks[-1]
    assert len(set(masks)) == 3 and s.step_number == 4
    s.reset_tape()
    s.begin_draws(2)
    s.input([1.0]).relu()
    assert s.bernoulli_mask((64,), 0.5).numpy().tobytes() == masks[0]


def test_streams_and_their_children(s: EagerSession) -> None:
    r = RngState(42)
    children = [s.split_rng(r), split_rng(r)]
    assert [r.key, *(c.key for c in children)] == [
        9061064227428546739, 12006458323904227710, 11187169412625457629,
    ]  # fmt: skip
    bits = s.bernoulli_mask((16,), 0.5, r).numpy().astype(int).tolist()
    assert "".join(map(str, bits)) == "0101110001000111" and r.call == 1
    x = s.input(np.ones(64))
    assert s.dropout(r, x, 0.5, train=False) == x and r.call == 1
    first, second = s.dropout(r, x, 0.5).numpy(), s.dropout(r, x, 0.5).numpy()
    assert r.call == 3 and set(first) == {0.0, 2.0} and first.tobytes() != second.tobytes()
    with pytest.raises(ShapeError):
        s.rand_uniform((0,), r)
    assert r.call == 3
    with pytest.raises(ArgumentError, match="RngState: seed"):
        RngState(-1)


def test_shapes_as_lists() -> None:
    assert dims_array((2, 3)) == [2, 3]
    assert axis_map_array((3, 1), (2, 3, 4)) == [0, 1, 2] and axis_map_array((1,), (2, 3)) == [0, 1]
    with pytest.raises(ShapeError, match=r"given \[2\] and \[3\]"):
        axis_map_array((2,), (3,))
    bad: Any = "ab"
    calls = lambda: dims_array(bad), lambda: axis_map_array((2,), bad), lambda: axis_map_array(bad, (2,))
    for call in calls:
        with pytest.raises(ShapeError, match="_array: shape: given .* wanted a tuple of ints"):
            call()


# options and threads --------------------------------------------------------------------------------------------------
def test_options() -> None:
    with pytest.raises(TypeError, match="given 'devise', wanted one of device, scalar"):
        EagerSession(devise="cpu")
    with pytest.raises(DTypeError):
        EagerSession(device="wgpu", scalar=np.float64)
    with pytest.raises(ArgumentError, match="use_gpu"):
        EagerSession(device="cpu", use_gpu=True)
    for wrong in ({"seed": -1}, {"checks": "no"}, {"flush_at": 0}):
        with pytest.raises(ArgumentError):
            EagerSession(**wrong)  # type: ignore[arg-type]
    assert EagerSession(Options(seed=3), use_gpu=False).opts.device == "cpu"
    assert EagerSession(scalar=np.float64).device.kind == "cpu"


@pytest.mark.parametrize("scalar", [np.float64, np.longdouble])
def test_wider_scalars_keep_their_dtype(scalar: Any) -> None:
    s = EagerSession(scalar=scalar)
    x = s.input(np.array([0.1, 0.7]), requires_grad=True)
    y = (x.tanh() * x.exp()).sum_all()
    grads = s.backward(y)
    assert y.numpy().dtype == scalar == grads.numpy(x).dtype
    h = 1e-6
    f = lambda v: float((np.tanh(v) * np.exp(v)).sum())  # noqa: E731
    for i in range(2):
        up, down = (np.array([0.1, 0.7]) + sign * h * np.eye(2)[i] for sign in (1, -1))
        assert grads.numpy(x)[i] == pytest.approx((f(up) - f(down)) / (2 * h), rel=1e-7)
    s.close()


def test_two_sessions_in_two_threads(device: str) -> None:
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        s = EagerSession(device=device)
        w = s.param(np.full((3, 3), seed))
        for _ in range(10):
            loss = (s.use(w) @ s.input(np.eye(3))).sum_all()
            s.sgd_step_all(1.0, s.backward_scalar_param_grads(loss))
            s.reset_tape()
        found[seed] = w.value
        s.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (20, 30)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert found[20].tolist() == np.full((3, 3), 10).tolist() and found[30][0, 0] == 20


def test_a_parameter_may_stand_where_an_op_reads_its_value(device: str) -> None:
    with closing(EagerSession(device=device)) as s, closing(EagerSession(device=device)) as other:
        w = s.param(np.arange(6.0).reshape(2, 3), name="w")
        x = s.input(np.ones((4, 2)))
        y, z = x @ w, x @ s.use(w)
        assert s.tape.node(y.id).inputs == s.tape.node(z.id).inputs
        assert np.array_equal(y.numpy(), np.ones((4, 2)) @ np.arange(6.0).reshape(2, 3))
        assert np.array_equal(s.backward((y * y).sum_all()).numpy(w), s.backward((z * z).sum_all()).numpy(w))
        with pytest.raises(EagerError, match=f"foreign handle: given 'w' of session {s.number}"):
            other.input(np.ones((4, 2))) @ w


@pytest.mark.parametrize("name", [np.ones(3), 7, ""])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with closing(EagerSession(device="cpu")) as s:
        for make in (s.param, s.input):
            with pytest.raises(ArgumentError, match="name: given .*, wanted a non-empty str: data comes first"):
                make(np.ones(3), name)
        assert not s.params and not len(s.tape)
