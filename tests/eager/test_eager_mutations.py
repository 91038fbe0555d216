"""Every name of the seed's list does what its row says: a body that is `return None`, `True` or `self` is noticed."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.base.errors import DTypeError, EagerError, GdlabError, GraphError, OutputIndexError, ShapeError
from gdlab.eager import (
    AllocatorStats,
    AnyBuffer,
    DeviceGradMap,
    EagerSession,
    FloatConv,
    Grads,
    HostOnlyConv,
    NatRef,
    NatVecRef,
    Options,
    Param,
    RngState,
    Tape,
    TapeExport,
    TensorRef,
)
from gdlab.eager.jit import Jitted
from gdlab.study.study import Study

CLASSES = (AllocatorStats, AnyBuffer, EagerSession, FloatConv, Grads, HostOnlyConv, Jitted, NatRef, NatVecRef, Param,
           RngState, Tape, TapeExport, TensorRef)  # fmt: skip
FUNCTIONS = ("Adadelta", "AdaGrad", "Adam", "AdamW", "LaProp", "Momentum", "RmsProp", "Sgd", "axis_map_array",
             "dims_array", "register_conv", "rule", "split_rng")  # fmt: skip
# What a caller cannot tell from its absence, and why.
INERT = {
    "EagerSession.__enter__:self": "it returns self",
    "EagerSession.flush": "of cpu, where nothing is ever pending",
    "Tape.source_of_call": "of the user's lines, see test_a_refused_call_changes_nothing_and_tells_the_line",
    "HostOnlyConv.check": "of adapters, see test_a_dtype_of_the_host_alone_goes_to_no_adapter",
}


def known(value: Any, *types: type) -> Any:
    """A value of exactly one of these types (True is no int here)."""
    assert type(value) in types, value
    return value


@contextlib.contextmanager
def raising(error: type[Exception], text: str = "") -> Iterator[None]:
    try:
        yield
    except error as caught:
        assert text in str(caught), caught
        return
    raise AssertionError(f"no {error.__name__}")


def same(given: Any, wanted: Any) -> None:
    assert isinstance(given, np.ndarray)
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def exercise(part: Callable[[EagerSession], None]) -> None:
    """Use a part of everything once, and look at what came of it."""
    s = EagerSession(Options(device="cpu", seed=3))
    try:
        part(s)
        s.reset_tape()
    finally:
        EAGER_CLOSE(s)


EAGER_CLOSE = EagerSession.close  # what ends an exercise whose session does not close


def _life(s: EagerSession) -> None:
    assert s.generation == 1 and s.device.kind == "cpu" and "cpu" in repr(s) and known(s.generation, int)
    assert s.cpu_tape is s.tape and s.device_tape is not s.tape and len(known(s.device_tape, Tape)) == 0
    x = s.input([1.0, 2.0], "x")
    before = known(s.counters(), dict)["dispatches"]
    y = x + x
    assert s.counters()["dispatches"] == before + 1 and "%1" in str(s) and "add" in str(s)
    assert repr(s.tape).endswith("2 nodes>") and s.tape.source(1)
    s.reset_tape()
    assert s.generation == 2 and len(s.tape) == 0 and s.engine.live_bytes == 0
    for refused in (lambda: y + 1, lambda: s.own("mine", y), lambda: s.check_tape(y.graph, "mine", 0)):
        with raising(EagerError, "stale handle"):
            refused()
    z = s.input([3.0])
    assert s.own("mine", z) is z
    with s.generation_block() as tape:
        assert tape is s.tape and s.generation == 3
    assert s.generation == 4 and s.with_fresh_tape(lambda: 7) == 7 and s.generation == 5
    with s.recording() as tape:
        assert len(known(tape, Tape)) == 0
    with s:
        made = gd.full((2,), 4.0)
        assert made.graph is s.tape
    with raising(GraphError, "no current graph"):
        gd.full((2,), 4.0)
    with gd.Graph() as other, s.no_grad():
        assert not s.tape.needs_grad[s.input([1.0], requires_grad=True).id] and len(other) == 0
    assert s.tape.needs_grad[s.input([1.0], requires_grad=True).id]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        s.trace()
        s.input([5.0])
        s.trace(False)
        s.input([6.0])
    assert said.getvalue().count("\n") == 1 and "input f32[1]: 5" in said.getvalue()
    assert s.locked(lambda a: a + 1, 2) == 3


def _leaves(s: EagerSession) -> None:
    p = known(s.param([[1.0, 2.0]], "p"), Param)
    q = s.param([5.0], requires_grad=False)
    assert p.shape == (1, 2) and "f32[1, 2]" in repr(p) and "frozen" in repr(q) and p.host_current is True
    x = s.input([[3.0], [4.0]], "x")
    y = s.use(p) @ x
    same((x @ p).numpy(), [[3, 6], [4, 8]])
    assert s.params_by_leaf == {s.use(p).id: p} and y.item() == 11 and float(y) == 11 and int(y) == 11 and bool(y)
    assert not bool(y - 11) and known(y.item(), float) and y.session is s and known(y.generation, int) == 1
    assert len(x) == 2 and [float(row) for row in x] == [3, 4] and "[[11.]]" in str(y) and repr(x).endswith("f32[2, 1]")
    same(np.asarray(y), [[11]])
    same(s.get_value(y), [[11]])
    same(s.read_buffer(s.buffer(y.id)), [[11]])
    with raising(OutputIndexError):
        s.buffer(99)
    assert s.const([1.0]).node.op == "constant" and s.detach(y).node.op == "stop_gradient"
    same(gd.ops.constant([0.5], graph=s.tape).numpy(), [0.5])
    s.feed(u=np.ones((2, 2)))
    with s:
        same(known(gd.input("u", (2, 2)), TensorRef).numpy(), np.ones((2, 2)))
        w = gd.parameter("w", (3, 2), init="ones")
        same(w.numpy(), np.ones((3, 2)))
    length = len(s.tape)
    s.input([1.0]) + 1
    s.tape.cut(length)
    assert len(s.tape) == length == len(s.tape.buffers)
    with raising(EagerError, "foreign handle"):
        other = EagerSession(device="cpu")
        try:
            other.input([1.0]) + other.use(p)
        finally:
            EAGER_CLOSE(other)
    with raising(EagerError, "foreign handle"):
        s.tape.own(EagerSession(device="cpu").input([1.0]), "mine")
    assert s.tape.own(y) is y and len(s.tape.copy()) == length and type(s.tape.copy()) is gd.Graph
    numbers = s.input([4, 5])
    assert known(s.tape.host_of(numbers.reshape(2, 1).id), np.ndarray).tolist() == [4, 5]


def _mirrors(s: EagerSession) -> None:
    p = s.param([1.0, 2.0], "m")
    assert p.state == "H" and known(p.on_device(), AnyBuffer) and p.state == "B"
    new = known(s.to_any_buffer([3.0, 4.0]), AnyBuffer)
    s.set_param_device_value(p, new)
    assert p.state == "D" and p.host_current is False
    s.sync_param_device_to_host(p)
    assert p.state == "B"
    same(p.value, [3, 4])
    same(s.param_value(p), [3, 4])
    s.set_param_host_value(p, [5.0, 6.0])
    assert p.state == "H"
    same(s.use(p).numpy(), [5, 6])
    p.set_device(new.share())
    same(p.sync(), [3, 4])
    p.set_host(np.float32([7, 8]))
    same(p.value, [7, 8])
    same(s.of_any_buffer(new), [3, 4])
    assert s.of_any_buffer(new, np.float64).dtype == np.float64 and s.to_float(np.float32(0.5)) == 0.5
    same(FloatConv(np.float64).of_any_buffer(s, new), [3, 4])
    given = FloatConv().to_any_buffer(s, [1.5])
    same(s.read_buffer(given), [1.5])
    host = HostOnlyConv("longdouble")
    with raising(DTypeError):
        host.to_float(np.longdouble(1))
    wide = host.to_any_buffer(s, np.longdouble([2]))
    same(host.of_any_buffer(s, wide), [2])
    old = gd.eager.register_conv(np.longdouble, FloatConv())
    assert type(old) is HostOnlyConv and s.to_float(np.longdouble(3)) == 3
    gd.eager.register_conv(np.longdouble, old)
    for buffer in (new, given, wide):
        assert buffer.release() is True


def _numbers(s: EagerSession) -> None:
    n, v = known(s.input_nat(2), NatRef), known(s.input_nat_vec([3, 0]), NatVecRef)
    assert s.get_nat(n) == 2 and s.get_nat_vec(v) == [3, 0] and s.nats == (2, 3, 0) and known(s.get_nat(n), int)
    table = s.input(np.arange(8.0).reshape(4, 2))
    same(table.gather(v, 0).numpy(), [[6, 7], [0, 1]])
    s.set_nat(n, 1)
    s.set_nat_vec(v, [1, 1])
    same(table.gather(n, 0).numpy(), [[2, 3]])
    assert s.nats == (1, 1, 1) and n.id == 0 and type(n.id) is int and (v.start, v.k) == (1, 2)
    assert n.session_id == v.session_id == s.number and known(n.session_id, int)
    assert repr(n) == "NatRef 0" and repr(v) == "NatVecRef 1 … 2"
    assert s.nat_vec_to_array(np.array([4, 5])) == [4, 5] and v.on(s.tape).numpy().tolist() == [1, 1]


def _draws(s: EagerSession) -> None:
    s.reset_tape()
    s.begin_draws(0)
    same(s.rand_uniform((2,), seed=42, call=0).numpy(), [0.6129598617553711, 0.4685865044593811])
    same(s.rand_normal((4,), seed=1, call=0).numpy(), gd.ops.rand_normal((4,), seed=1, call=0, graph=s.tape).numpy())
    bits = s.bernoulli_mask((16,), 0.5, seed=42, call=0).numpy().astype(int)
    assert "".join(map(str, bits)) == "0111010100000001"
    by_tensor = s.bernoulli_mask((16,), s.input([0.5]), seed=42, call=0)
    assert by_tensor.numpy().astype(int).tolist() == bits.tolist()
    s.reset_tape()
    s.begin_step(0)
    same(s.rand_uniform((1,), seed=42, call=0).numpy(), [0.6129598617553711])
    s.reset_tape()
    same(s.rand_uniform((2,), seed=42, call=0).numpy(), [0.12603157758712769, 0.5938701629638672])
    r = RngState(42)
    assert r.key == 9061064227428546739 and "9061064227428546739" in repr(r)
    keys = [known(child, RngState).key for child in (s.split_rng(r), gd.eager.split_rng(r), r.split())]
    assert keys[:2] == [12006458323904227710, 11187169412625457629] and r.splits == 3
    x = s.input(np.ones(64))
    assert s.dropout(r, x, 0.5, train=False) is x and set(s.dropout(r, x, 0.5).numpy()) == {0.0, 2.0} and r.call == 1


def _buffers(s: EagerSession) -> None:
    live, x = s.engine.live_bytes, s.input(np.ones((4, 4)))
    b = s.buffer(x.id)
    assert b.nbytes == 64 and known(b.nbytes, int) and b.released is False and "f32[4, 4]" in repr(b)
    other = known(b.share(), AnyBuffer)
    assert other.block is b.block and other is not b
    assert s.release_device_buffer(other) is True and s.release_any_buffer(other) is False and other.released is True
    with raising(EagerError, "released"):
        _ = other.block
    owned = known(s.owned_any_buffer("mine", b), AnyBuffer)
    assert owned.block is not b.block and s.check_any_buffer_size("mine", owned) is None
    owned.type = gd.TensorType((5, 4))
    with raising(ShapeError, "mine: buffer size: given 64 bytes, wanted 80 (f32[5, 4])"):
        s.check_any_buffer_size("mine", owned)
    owned.release()
    third = s.buffer_of(s.engine.upload(b.type, np.zeros((4, 4))), b.type)
    assert third.released is False and s.uploaded(b.type, np.zeros((4, 4))).release() is True and third.release()
    stats = known(s.allocator_stats(), AllocatorStats)
    assert stats.live_bytes == live + 64 and stats.format().startswith("live=0.00 MiB") and stats.alloc_count > 0
    p, frozen = s.param([1.0], "t"), s.param([1.0], requires_grad=False)
    used, kept = s.use(p), s.use(frozen)
    s.release_tape_non_param_values()
    assert b.released and not s.buffer(used.id).released
    s.release_tape_after_optimizer_step()
    assert s.buffer(used.id).released and not s.buffer(kept.id).released
    with raising(EagerError, f"eager.mine: value of %{x.id}: given a released buffer"):
        s.tape.check_live("mine", kept.id, x.id)
    with raising(EagerError, "mine"):
        s.tape.tell_origins()
        raise EagerError("mine", "origin", str(s.buffer(kept.id).block.origin), "a parameter")
    assert "parameter" in str(s.buffer(kept.id).block.origin)
    with raising(EagerError, "live bytes"):
        loose = s.to_any_buffer([1.0])
        try:
            s.assert_no_leaks()
        finally:
            loose.release()
    s.reset_tape()
    assert s.assert_no_leaks() is None and known(s.collect_allocator(), int) > 0


def _gradients(s: EagerSession) -> None:
    p = s.param([2.0, 3.0], "g")
    x = s.input([4.0, 5.0], "x", requires_grad=True)
    y = s.use(p) * x
    loss, length = y.sum_all(), len(s.tape) + 1
    grads = known(s.backward(loss), Grads)
    same(x.grad, [2, 3])
    same(grads.numpy(x), [2, 3])
    assert len(grads) == 2 and sorted(grads) == sorted([x.id, s.use(p).id]) and x in grads and p in grads
    assert y not in grads and list(grads.by_param()) == [p] and "2 gradients" in repr(grads)
    assert known(grads[p], AnyBuffer).released is False
    grads.release()
    assert grads.released is True
    ones = [1.0, 1.0]
    lists = s.backward_dense_all(y, ones), s.backward_scalar_dense_all(loss), s.backward_dense_from({y: ones})
    for dense in lists:
        same(s.read_buffer(dense[x.id]), [2, 3])
        s.release_grad_array(dense)
        assert dense[x.id].released
    found = known(s.backward_scalar_param_grads(loss), DeviceGradMap)
    same(found.numpy(p), [4, 5])
    s.release_grad_map(found)
    assert found.released is True
    with s.grad_map(loss) as held:
        same(held.numpy(p), [4, 5])
    assert held.released is True and len(s.tape) <= length
    remove = s.hook(x, lambda _, g: g * 10)
    same(s.backward(loss).numpy(x), [20, 30])
    remove()
    same(s.backward(loss).numpy(x), [2, 3])


def _derivatives(s: EagerSession) -> None:
    x = s.input([1.0, 2.0], "x", requires_grad=True)
    y = x * x
    loss = (y * x).sum_all()
    same(s.vjp(y, [1.0, 1.0], [x])[0], [2, 4])
    same(s.jvp(y, {x: [1.0, 0.5]}), [2, 2])
    same(s.hvp(loss, {x: [1.0, -1.0]})[0], [6, -12])
    for jacobian in (s.jacrev, s.jacfwd):
        same(jacobian(y, x), [[2, 0], [0, 4]])
    same(s.hessian(loss, x), [[6, 0], [0, 12]])
    s.backward(loss)
    text = known(s.grads_text(), str)
    assert "∂x  f32[2] [3, 12]" in text
    trace = s.backward_trace()
    assert trace is not None and len(trace.values) == len(trace.graph) > len(s.tape)


def _steps(s: EagerSession) -> None:
    p = s.param([1.0], "s")
    s.rules.release()

    def grads() -> Any:
        return s.backward_scalar_param_grads(s.use(p).sum_all())

    s.step(gd.eager.Sgd(0.5), grads())
    same(p.value, [0.5])
    s.sgd_step_all(0.5, grads())
    same(p.value, [0.0])
    state = known(s.state_dict(), dict)
    s.adam_step_all(grads(), 0.1)
    same(p.value, [-0.1])
    s.load_state_dict(state)
    assert p.value.tolist() == [0] and s.rules.t == 0
    assert s.sgd_step_scalar_graph(0.25, lambda: s.use(p).sum_all() + 2) == 2 and p.value.tolist() == [-0.25]


def _views(s: EagerSession) -> None:
    p = s.param([[1.0], [2.0]], "v")
    loss = (s.input([[3.0, 4.0]], "x") @ s.use(p)).sum_all()
    export = known(s.to_graph(loss), TapeExport)
    same(export.weights["v"], [[1], [2]])
    assert [n.op for n in export.graph] == ["input", "parameter", "matmul", "sum_all"]
    study = known(s.to_study(loss, "mine"), Study)
    study.run(1, sgd=0.5)
    assert float(study.session.read_loss()) == 11
    planned = s.jit(lambda x: (x @ s.use(p)).sum_all())
    for x, wanted in (([[3.0, 4.0]], 11), ([[1.0, 1.0]], 3)):
        assert float(known(planned(s.input(x)), TensorRef)) == wanted
    inside = next(iter(planned.planned.values())).session
    planned.close()
    assert inside.closed is True
    study.close()


def _closed(s: EagerSession) -> None:
    s = EagerSession(device="cpu")
    p = s.param([1.0])
    s.use(p)
    s.close()
    assert s.open is False and s.engine.live_bytes == 0 and p.sync().tolist() == [1]
    with raising(EagerError, "closed session"):
        s.use(p)


def _rules(s: EagerSession) -> None:
    e = gd.eager
    made = (e.Sgd(0.1), e.Adam(0.1), e.AdamW(0.1), e.LaProp(0.1), e.Momentum(0.1), e.AdaGrad(0.1), e.RmsProp(0.1),
            e.Adadelta(0.1))  # fmt: skip
    names = ["sgd", "adam", "adamw", "laprop", "momentum", "adagrad", "rmsprop", "adadelta"]
    assert [rule.rule for rule in made] == names and all(rule.lr == 0.1 for rule in made)
    own = e.rule(RULE)
    assert own.lr == 0.25 and own.rule in gd.plan.rules.RULES
    del gd.plan.rules.RULES[own.rule]
    assert e.dims_array((2, 3)) == [2, 3] and e.axis_map_array((3, 1), (2, 3, 4)) == [0, 1, 2]


def RULE(p: Any, g: Any, *, lr: float = 0.25) -> Any:
    return p - lr * g * g


def bodies() -> list[tuple[Any, str]]:
    """(class or module, name) of every body that a caller reaches."""
    special = {"__array__", "__bool__", "__call__", "__contains__", "__enter__", "__exit__", "__float__", "__getitem__",
               "__int__", "__iter__", "__len__", "__repr__", "__str__"}  # fmt: skip
    found: list[tuple[Any, str]] = []
    for cls in CLASSES:
        for name, value in vars(cls).items():
            public = not name.startswith("_") or name in special
            generated = cls in (AllocatorStats, FloatConv, HostOnlyConv, TapeExport) and name == "__repr__"
            body = isinstance(value, property) or callable(value) and not isinstance(value, type)
            if public and body and not generated:
                found.append((cls, name))
    return found + [(gd.eager, name) for name in FUNCTIONS]


PARTS = (_life, _leaves, _mirrors, _numbers, _draws, _buffers, _gradients, _derivatives, _steps, _views, _closed,
         _rules)  # fmt: skip
MUTANTS: dict[str, Callable[..., Any]] = {
    "None": lambda *args, **more: None,
    "True": lambda *args, **more: True,
    "self": lambda self=None, *args, **more: self,
}


def counted(body: Callable[..., Any], label: str, into: set[str]) -> Callable[..., Any]:
    """The body, which notes that it was called."""

    def called(*args: Any, **more: Any) -> Any:
        into.add(label)
        return body(*args, **more)

    return called


@pytest.fixture(scope="module")
def readers() -> dict[str, list[Any]]:
    """The parts that call each body: all pass as things are, and only these can notice that it is another."""
    found: dict[str, list[Any]] = {}
    for part in PARTS:
        seen: set[str] = set()
        with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for home, name in bodies():
                old, label = vars(home)[name], f"{home.__name__}.{name}"
                made = counted(old.fget if isinstance(old, property) else old, label, seen)
                patched.setattr(home, name, property(made) if isinstance(old, property) else made)
            copy_context().run(exercise, part)
        for label in seen:
            found.setdefault(label, []).append(part)
    return found


def test_the_exercise_passes_as_things_are(readers: dict[str, list[Any]]) -> None:
    assert len(bodies()) > 130 and len(readers) > 120


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_body_that_does_nothing_is_noticed(
    mutant: str, readers: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unnoticed = []
    for home, name in bodies():
        label = f"{home.__name__}.{name}"
        if label in INERT or f"{label}:{mutant}" in INERT:
            continue
        if not any(notices(part, home, name, MUTANTS[mutant], monkeypatch) for part in readers.get(label, ())):
            unnoticed.append(label)
    assert unnoticed == []


def notices(part: Any, home: Any, name: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a part fails with this body."""
    rules = dict(gd.plan.rules.RULES)
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = vars(home)[name]
        patched.setattr(home, name, property(body) if isinstance(old, property) else body)
        try:
            copy_context().run(exercise, part)  # a block that does not end leaves no current graph behind
        except (Exception, GdlabError):
            return True
        finally:
            for added in gd.plan.rules.RULES.keys() - rules.keys():
                del gd.plan.rules.RULES[added]
    return False
