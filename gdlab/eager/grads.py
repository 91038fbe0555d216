"""Run the sweep of `differentiate` on a tape: the adjoints are computed after the recording and cut off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.autodiff import AutodiffReport, ReverseSweep, report_of
from gdlab.base.errors import ArgumentError, AutodiffError, EagerError, ShapeError
from gdlab.base.statistics import array_words
from gdlab.base.types import Array, TensorType, f32
from gdlab.base.words import plural
from gdlab.eager.params import Param, input_leaf
from gdlab.eager.references import AnyBuffer, Origin
from gdlab.eager.tape import Tape, TensorRef
from gdlab.graph import Graph, Value, capture
from gdlab.op import REGISTRY

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession

MISSING = ("zero", "none", "error")
Found = AnyBuffer | TensorRef


class Grads(Mapping[int, Any]):
    """Gradients by leaf id. `grads[x]` of a tensor, a parameter (summed over its leaves) or an id is the memory of its
    gradient (with `create_graph` a TensorRef), `grads.numpy(x)` a copy; `missing` are the leaves that none reached."""

    def __init__(self, session: EagerSession, found: dict[int, Found], missing: Sequence[int] = ()) -> None:
        self.session, self.generation, self._found = session, session.generation, found
        self.missing = tuple(missing)
        self.params = {id: p for id, p in session.params_by_leaf.items() if id in found}
        self.released = False
        self._sums: dict[int, AnyBuffer] = {}  # of several leaves, by parameter

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __contains__(self, key: object) -> bool:
        return any(p is key for p in self.params.values()) if isinstance(key, Param) else _id(key) in self._found

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Param):
            return self.by_param()[key]
        if isinstance(key, TensorRef):
            self.session.check_tape(key.graph, "grads", key.id)
        return self._found[key.id if isinstance(key, TensorRef) else key]

    def numpy(self, key: Any) -> Array:
        """Return a copy of a gradient."""
        found = self[key]
        return found.numpy() if isinstance(found, TensorRef) else self.session.read_buffer(found)

    def by_param(self) -> dict[Param, Any]:
        """Return the gradient of each parameter, summed over its leaves."""
        leaves: dict[Param, list[int]] = {}
        for id, param in self.params.items():
            leaves.setdefault(param, []).append(id)
        return {p: self._found[ids[0]] if len(ids) == 1 else self._sum(p, ids) for p, ids in leaves.items()}

    def _sum(self, param: Param, ids: Sequence[int]) -> Any:
        found = [self._found[id] for id in ids]
        if any(isinstance(f, TensorRef) for f in found):
            total: Any = found[0]
            for other in found[1:]:
                total = total + other
            return total
        if param.uid not in self._sums:
            self._sums[param.uid] = self.session.locked(added, self.session, found)
        return self._sums[param.uid]

    def release(self) -> None:
        """Release the memory; idempotent."""
        self.released = True
        for found in (*self._found.values(), *self._sums.values()):
            if isinstance(found, AnyBuffer):
                found.release()

    def __del__(self) -> None:
        if not getattr(self, "released", True):  # any thread may end it: the session gives the memory back
            self.session.dropped.append([*self._found.values(), *self._sums.values()])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {plural(len(self), 'gradient')}>"


class DeviceGradMap(Grads):
    """Gradients of trainable parameters by leaf id, on the device."""


def _id(key: object) -> object:
    return key.id if isinstance(key, TensorRef) else key


def added(session: EagerSession, buffers: Sequence[AnyBuffer]) -> AnyBuffer:
    """Return the sum of gradients of one type, in order."""
    type, total = buffers[0].type, buffers[0].share()
    for other in buffers[1:]:
        try:
            made = session.engine.compute("add", (), [total, other], type)
        finally:
            total.release()
        total = session.buffer_of(made, type)
    return total


# the sweep ------------------------------------------------------------------------------------------------------------
class _Recorded:
    """The set of nodes of a recording that need a gradient."""

    def __init__(self, tape: Tape) -> None:
        self.needs, self.length = tape.needs_grad, len(tape)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, int) and id < self.length and self.needs[id]


class _Held:
    """The adjoints of a sweep, whose memory is released as soon as they are passed on."""

    def __init__(self, tape: Tape, wanted: Callable[[int], bool]) -> None:
        self.tape, self.length, self.wanted = tape, len(tape), wanted
        self.terms: Counter[int] = Counter()  # not yet added up, or wanted
        self.sweep: ReverseSweep | None = None

    def after(self, id: int, arrived: Sequence[Value], first: int, passed: Sequence[Value]) -> None:
        """Release, after a node, the memory appended for it and its arrived terms, unless they were passed on."""
        assert self.sweep is not None  # set before it runs
        self.terms.update(v.id for v in passed)
        if self.wanted(id):
            self.terms[self.sweep.total[id].id] += 1
        self.terms.subtract(v.id for v in arrived)
        for k in {*(v.id for v in arrived), *range(first, len(self.tape))}:
            if k >= self.length and self.terms[k] <= 0:
                self.tape.buffers[k].release()


def swept(
    session: EagerSession, seeds: Mapping[TensorRef, Any], needed: Container[int], wanted: Callable[[int], bool],
    create_graph: bool = False, where: str = "backward",
) -> dict[int, Found]:  # fmt: skip
    """Return the gradients of the wanted nodes. The tape is as before, but with `create_graph`."""
    tape, length, draws = session.tape, len(session.tape), session.tape.draws
    held = _Held(tape, wanted)
    answers: dict[int, Array] = {}
    hooked = _hooked(tape, answers) if tape.hooks and isinstance(needed, _Recorded) else None
    sweep = held.sweep = ReverseSweep(tape, needed, None if create_graph else held.after, hooked)
    done = False
    try:
        with tape.silent(), tape:
            for out, seed in seeds.items():
                term = _seed(session, where, out, seed)
                held.terms[term.id] += 1
                sweep.terms[out.id].append(term)
            sweep.run(range(max(out.id for out in seeds), -1, -1))
        if isinstance(needed, _Recorded):
            tape.swept = dict(seeds), answers
        totals = {id: v.id for id, v in sorted(sweep.total.items()) if id < length and wanted(id)}
        if create_graph:
            done = True
            return {id: TensorRef(tape, total) for id, total in totals.items()}
        frames = capture()
        for id, total in totals.items():
            tape.buffers[total].block.origin = Origin(f"gradient of {tape.node(id).name or f'%{id}'}", frames)
        return {id: tape.buffers[total].share() for id, total in totals.items()}
    finally:
        held.sweep = None  # the sweep refers to `held`: without this cycle a reset frees the tape
        tape.draws = draws
        if not done:
            tape.cut(length)


def _hooked(tape: Tape, answers: dict[int, Array]) -> Callable[[int, Value], Value]:
    """Return a function that calls a node's hooks with its complete gradient; `answers` gets their replacements."""

    def arrived(id: int, total: Value) -> Value:
        for function in tuple(tape.hooks.get(id, {}).values()):
            made = function(TensorRef(tape, id), total)
            if made is not None:
                total = _hook_result(tape, id, made)
                answers[id] = tape.session.get_value(total)  # type: ignore[arg-type]
        return total

    return arrived


def _hook_result(tape: Tape, id: int, given: Any) -> Value:
    where, type = f"hook of %{id}", tape.node(id).type
    if isinstance(given, TensorRef):
        made = tape.own(given, "backward")
    else:
        data = tape.session.taken("eager.backward", where, given, floats=True)
        made = input_leaf(tape, data, "", False)
    if made.type != type:
        raise ShapeError("eager.backward", where, made.type, f"{type} or None")
    return made


def _seed(session: EagerSession, where: str, out: TensorRef, seed: Any) -> Value:
    if out.type.dtype is not f32:
        raise AutodiffError(f"eager.{where}", f"%{out.id}", out.type, "an f32 value", node=out.id)
    if seed is None:
        if out.shape != (1,):
            raise ShapeError(f"eager.{where}", f"loss %{out.id}", f"shape {list(out.shape)}", "[1], or seed=")
        return REGISTRY["full"]((1,), 1.0)
    if isinstance(seed, TensorRef):
        _check_seed(where, out, session.own(where, seed).shape)
        return seed
    data = session.taken(f"eager.{where}", "seed", seed, floats=True)
    _check_seed(where, out, data.shape)
    return input_leaf(session.tape, data, "", False)


def _check_seed(where: str, out: TensorRef, shape: Sequence[int]) -> None:
    if tuple(shape) != out.shape:
        raise ShapeError(f"eager.{where}", f"seed of %{out.id}", list(shape), str(list(out.shape)))


def _check_trainable(where: str, out: TensorRef) -> None:
    if not out.graph.needs_grad[out.id]:
        given = "a value without trainable ancestors"
        raise AutodiffError(f"eager.{where}", f"loss %{out.id}", given, "one", node=out.id)


def _leaves(tape: Tape, length: int | None = None) -> list[int]:
    """Return the leaves that need a gradient, among the first nodes."""
    return [n.id for n in tape.nodes[:length] if not n.inputs and tape.needs_grad[n.id]]


# its forms ------------------------------------------------------------------------------------------------------------
def backward(session: EagerSession, out: TensorRef, seed: Any, create_graph: bool) -> Grads:
    """Compute the gradients of all leaves that need one, which become their `grad`."""
    tape = session.tape
    _check_trainable("backward", out)
    leaves = _leaves(tape)
    found = swept(session, {out: seed}, _Recorded(tape), set(leaves).__contains__, create_graph)
    for id, gradient in found.items():
        old = tape.grads.get(id)
        if isinstance(old, AnyBuffer):
            old.release()
        tape.grads[id] = gradient.share() if isinstance(gradient, AnyBuffer) else gradient
    return Grads(session, found, [id for id in leaves if id not in found])


def param_grads(session: EagerSession, loss: TensorRef, missing: str) -> DeviceGradMap:
    """Compute the gradients of trainable parameter leaves alone."""
    where = "backward_scalar_param_grads"
    if missing not in MISSING:
        raise ArgumentError(f"eager.{where}", "missing", repr(missing), " or ".join(map(repr, MISSING)))
    tape, params = session.tape, session.params_by_leaf
    leaves = [id for id in _leaves(tape) if id in params]
    _check_trainable(where, loss)
    found = swept(session, {loss: None}, _Recorded(tape), set(leaves).__contains__, where=where)
    absent = [id for id in leaves if id not in found]
    with _releasing(found):
        if absent and missing == "error":
            given, wanted = ", ".join(repr(params[id].name) for id in absent), 'none, or missing="zero" or "none"'
            raise EagerError(f"eager.{where}", "parameters without a gradient", given, wanted)
        for id in absent if missing == "zero" else ():
            found[id] = zeros(session, tape.node(id).type)
    return DeviceGradMap(session, found, absent)


@contextmanager
def _releasing(found: dict[int, Found]) -> Iterator[None]:
    """Release gradients if the block fails."""
    try:
        yield
    except BaseException:
        _release(found)
        raise


def _release(found: Mapping[int, Found]) -> None:
    for gradient in found.values():
        if isinstance(gradient, AnyBuffer):
            gradient.release()


def dense(session: EagerSession, seeds: Mapping[TensorRef, Any]) -> list[AnyBuffer]:
    """Compute one gradient per node, zeros where none arrives."""
    tape = session.tape
    if not seeds:
        raise ArgumentError("eager.backward_dense_from", "seeds", "none", "at least one output")
    found = swept(session, seeds, _Recorded(tape), lambda id: id < len(nodes)) if (nodes := tape.nodes) else {}
    with _releasing(found):
        for n in nodes:
            if n.id not in found:
                found[n.id] = zeros(session, TensorType(n.type.shape))
    return [g for _, g in sorted(found.items()) if isinstance(g, AnyBuffer)]


def cotangents(session: EagerSession, out: TensorRef, seed: Any, wrt: Sequence[TensorRef]) -> list[Array]:
    """Compute the cotangents of nodes of the recording as arrays."""
    wanted = {x.id for x in wrt}
    found = swept(session, {out: seed}, _above(session.tape, wanted), wanted.__contains__, where="vjp")
    arrays = []
    try:
        for x in wrt:
            gradient = found.get(x.id)
            given = isinstance(gradient, AnyBuffer)
            arrays.append(session.read_buffer(gradient) if given else np.zeros(x.shape, session.opts.scalar))  # type: ignore[arg-type]
    finally:
        _release(found)
    return arrays


def _above(tape: Tape, ids: Iterable[int]) -> set[int]:
    """Return these nodes and those that depend on one of them."""
    above = set(ids)
    for node in tape.nodes:
        if any(i in above for i in node.inputs):
            above.add(node.id)
    return above


def jvp(session: EagerSession, out: TensorRef, tangents: Mapping[TensorRef, Any]) -> Array:
    """Compute the derivative of `out` along tangents, as the transpose of its vjp: both agree at kinks and ties."""
    tape, length = session.tape, len(session.tape)
    try:
        u = input_leaf(tape, np.zeros(out.shape, session.opts.scalar), "", False)
        return _along(session, "jvp", {out: u}, tangents, [u])[0]
    finally:
        tape.cut(length)


def hvp(session: EagerSession, loss: TensorRef, tangents: Mapping[TensorRef, Any]) -> list[Array]:
    """Compute the second derivative of a loss along tangents, one array for each: reverse over reverse."""
    tape, length = session.tape, len(session.tape)
    try:
        return _along(session, "hvp", {loss: None}, tangents, list(tangents))
    finally:
        tape.cut(length)


def _along(
    session: EagerSession, where: str, seeds: Mapping[TensorRef, Any], tangents: Mapping[TensorRef, Any],
    wrt: Sequence[TensorRef],
) -> list[Array]:  # fmt: skip
    """Differentiate ⟨gradient, tangents⟩. Appends to the tape."""
    tape, draws = session.tape, session.tape.draws
    if not tangents:
        raise ArgumentError(f"eager.{where}", "tangents", "none", "at least one {tensor: array}")
    ids = {session.own(where, x).id for x in tangents}
    found = swept(session, seeds, _above(tape, ids), ids.__contains__, True, where)
    total: Value | None = None
    with tape.silent(), tape:
        for x, tangent in tangents.items():
            data = session.taken(f"eager.{where}", "tangent", tangent, floats=True)
            _check_seed(where, x, data.shape)
            gradient = found.get(x.id)
            if isinstance(gradient, TensorRef):
                part = (gradient * input_leaf(tape, data, "", False)).sum_all()
                total = part if total is None else total + part
    tape.draws = draws
    if not isinstance(total, TensorRef):
        return [np.zeros(x.shape, session.opts.scalar) for x in wrt]
    return cotangents(session, total, None, wrt)


# as it ran ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BackwardTrace:
    """The last backward of a recording, node by node: the tape and the adjoints behind it as a plain `graph`, the
    `report` of the sweep, and the value of each node (None: released)."""

    graph: Graph
    report: AutodiffReport
    values: tuple[Array | None, ...]


def backward_trace(session: EagerSession, most: int) -> BackwardTrace | None:
    """Run the last backward again (equal bits) and record every step; None where there was none, or where values that
    it reads were released. At most so many values of each pass are read back. Hooks are not called again: what they
    answered flows on."""
    tape, length, draws = session.tape, len(session.tape), session.tape.draws
    if tape.swept is None:
        return None
    seeds, answers = tape.swept

    def arrived(id: int, total: Value) -> Value:
        return input_leaf(tape, answers[id], "", False) if id in answers else total

    sweep = ReverseSweep(tape, _Recorded(tape), None, arrived if answers else None)
    try:
        with tape.silent(), tape:
            for out, seed in seeds.items():
                term = _seed(session, "backward", out, seed)
                sweep.terms[out.id].append(term)
                sweep.adjoint_of[term.id] = out.id
            sweep.run(range(max(out.id for out in seeds), -1, -1))
        values = [
            None if b.released or most <= i < length or i >= length + most else session.engine.download(b.block, b.type)
            for i, b in enumerate(tape.buffers)
        ]
        graph = tape.copy()
        if not graph.outputs:
            graph.set_outputs(graph.value(next(iter(seeds)).id))
        report = report_of(graph, sweep, length, _leaves(tape, length))
        zeros = [np.zeros(n.type.shape, np.float32) for n in graph.nodes[len(values) :]]
        return BackwardTrace(graph, report, (*values, *zeros))
    except EagerError:  # a value that the rules read was released
        return None
    finally:
        tape.draws = draws
        tape.cut(length)


def grads_text(session: EagerSession, most: int = 200) -> str:
    """Return the last backward as text, one line for each step: the node, its cotangent, and the result of its rule."""
    trace = backward_trace(session, most)
    if trace is None:
        return "no backward in this recording, or values that it read were released"
    graph, values = trace.graph, trace.values

    def shown(id: int) -> str:
        value = values[id]
        return f"{graph.node(id).type} {'not read back' if value is None else array_words(value)}"

    lines = []
    for step in trace.report.steps:
        node = graph.node(step.node)
        name = f' "{node.name}"' if node.name else ""
        total = (step.accumulated or step.cotangents)[-1:]
        terms = f" of {plural(len(step.cotangents), 'term')}" if len(step.cotangents) > 1 else ""
        lines.append(f"%{node.id} {node.op}{name}{terms}  ∂ {shown(total[0]) if total else 'none'}")
        lines += [f"    {graph.node(i).op}  {shown(i)}" for i in step.added]
        lines += [f"    {step.reason}"] if step.reason else []
    found = zip(trace.report.wrt, trace.report.gradients, strict=True)
    lines += [f"∂{graph.node(leaf).name or f'%{leaf}'}  {shown(gradient)}" for leaf, gradient in found]
    return "\n".join(lines)


# matrices of derivatives ----------------------------------------------------------------------------------------------
def jacrev(session: EagerSession, out: TensorRef, x: TensorRef) -> Array:
    """Compute ∂out/∂x of shape out.shape + x.shape, a vjp per element of `out`."""
    rows = [cotangents(session, out, seed, [x])[0] for seed in _basis(session, out.shape)]
    return np.stack(rows).reshape(*out.shape, *x.shape)


def jacfwd(session: EagerSession, out: TensorRef, x: TensorRef) -> Array:
    """Compute ∂out/∂x of shape out.shape + x.shape, a jvp per element of `x`."""
    columns = [jvp(session, out, {x: tangent}) for tangent in _basis(session, x.shape)]
    return np.stack(columns, axis=-1).reshape(*out.shape, *x.shape)


def hessian(session: EagerSession, loss: TensorRef, x: TensorRef) -> Array:
    """Compute ∂²loss/∂x∂x of shape x.shape + x.shape, an hvp per element of `x`."""
    rows = [hvp(session, loss, {x: tangent})[0] for tangent in _basis(session, x.shape)]
    return np.stack(rows).reshape(*x.shape, *x.shape)


def _basis(session: EagerSession, shape: Sequence[int]) -> Iterator[Array]:
    """Yield arrays that are 1 at one place each."""
    for place in np.ndindex(*shape):
        one = np.zeros(shape, session.opts.scalar)
        one[place] = 1
        yield one


def zeros(session: EagerSession, type: TensorType) -> AnyBuffer:
    """Return memory of zeros."""
    attrs = (("shape", type.shape), ("value", 0.0))
    return session.buffer_of(session.engine.compute("full", attrs, (), type), type)
