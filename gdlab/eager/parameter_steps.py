"""Move parameters by their gradients, with the update rules of plans: everything is checked, then all move at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.base.errors import ArgumentError, CheckpointError, DTypeError, EagerError, ShapeError
from gdlab.base.formats import narrowed
from gdlab.base.formats.packed_bytes import Packed, from_words, in_words
from gdlab.base.types import Array, TensorType, f32
from gdlab.base.words import plural
from gdlab.devices.cpu.cpu_device import FLUSH_EVERY, flush
from gdlab.eager.computing import QueueEngine, ReferenceEngine, array_of
from gdlab.eager.grads import Grads, zeros
from gdlab.eager.params import Param
from gdlab.eager.references import AnyBuffer, MemoryBlock
from gdlab.eager.rules import rule as rule_of_function
from gdlab.eager.wide import moved
from gdlab.plan.dispatch import Dispatch, ParameterUpdate, Stretch
from gdlab.plan.records import PlanBuffer
from gdlab.plan.rules import RULES, UpdateRule, rule_of
from gdlab.plan.target import Target
from gdlab.plan.update import update_dispatches
from gdlab.session.arrays import is_real
from gdlab.session.update_settings import Optimizer, checked, optimizer, scalars

if TYPE_CHECKING:
    from gdlab.eager.eager_session import EagerSession


FREE = ("lr", "weight_decay")  # numbers that may differ from step to step
UserRule = Callable[..., Any]  # in op notation: (p, g, *state) -> (p, *state)


# rules by name --------------------------------------------------------------------------------------------------------
def Sgd(lr: float) -> Optimizer:
    """p ← p − lr·g"""
    return optimizer("eager.Sgd", "sgd", lr=lr)


def Adam(lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Adam (Kingma and Ba, 2015)."""
    return optimizer("eager.Adam", "adam", lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon)


def AdamW(
    lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
    return optimizer("eager.AdamW", "adamw", **numbers)


def LaProp(lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """LaProp (Ziyin, Wang and Ueda, 2020)."""
    return optimizer("eager.LaProp", "laprop", lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon)


def Momentum(lr: float, momentum: float = 0.9, nesterov: bool = False) -> Optimizer:
    """b ← μ·b + g,  p ← p − lr·b;  Nesterov: p ← p − lr·(g + μ·b)"""
    return optimizer("eager.Momentum", "nesterov" if nesterov else "momentum", lr=lr, momentum=momentum)


def AdaGrad(lr: float, epsilon: float = 1e-10) -> Optimizer:
    """G ← G + g²,  p ← p − lr·g/(√G + ε)"""
    return optimizer("eager.AdaGrad", "adagrad", lr=lr, epsilon=epsilon)


def RmsProp(lr: float, decay: float = 0.9, epsilon: float = 1e-8) -> Optimizer:
    """v ← d·v + (1−d)·g²,  p ← p − lr·g/(√v + ε)"""
    return optimizer("eager.RmsProp", "rmsprop", lr=lr, decay=decay, epsilon=epsilon)


def Adadelta(lr: float = 1.0, rho: float = 0.9, epsilon: float = 1e-6) -> Optimizer:
    """Adadelta (Zeiler, 2012)."""
    return optimizer("eager.Adadelta", "adadelta", lr=lr, rho=rho, epsilon=epsilon)


# state ----------------------------------------------------------------------------------------------------------------
@dataclass
class OptimizerState:
    """Moments by parameter and name, update counts of rules, the numbers that moments depend on, and the last rule."""

    moments: dict[tuple[int, str], AnyBuffer] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    t: int = 0
    updates: int = 0
    rule: Optimizer = Optimizer()

    def buffers(self) -> list[AnyBuffer]:
        """Return all moments."""
        return list(self.moments.values())

    def release(self) -> None:
        """Drop moments and counts."""
        for buffer in self.buffers():
            buffer.release()
        self.moments, self.numbers, self.t, self.updates = {}, {}, 0, 0


# checks ---------------------------------------------------------------------------------------------------------------
def _check_grads(session: EagerSession, grads: Any) -> dict[Param, AnyBuffer]:
    """Return the gradients of trainable parameters, in the order in which these were made."""
    where = "eager.step"
    if not isinstance(grads, Grads):
        raise ArgumentError(where, "gradients", type(grads).__name__, "Grads or a DeviceGradMap")
    if grads.session is not session:
        raise EagerError(where, "foreign gradients", f"of session {grads.session.number}", f"session {session.number}")
    if grads.released:
        raise EagerError(where, "gradients", "released ones: a step consumes them", "those of another backward")
    if grads.generation != session.generation:
        given = f"of generation {grads.generation}"
        raise EagerError(where, "stale gradients", given, f"generation {session.generation}")
    found = {p: g for p, g in grads.by_param().items() if p.requires_grad}
    for param, gradient in found.items():
        if not isinstance(gradient, AnyBuffer):
            found[param] = session.tape.buffers[gradient.id]
        if found[param].type != param.type:
            raise ShapeError(where, f"gradient of {param.name!r}", found[param].type, str(param.type))
        if found[param].released:
            raise EagerError(where, f"gradient of {param.name!r}", "a released buffer", "a live one")
    return dict(sorted(found.items(), key=lambda pair: pair[0].uid))


def _check_numbers(session: EagerSession, rule: Optimizer, reset_state: bool) -> dict[str, float]:
    """Return the numbers that moments depend on; they may not change while there are moments."""
    lasting = {name: value for name, value in rule.numbers.items() if name not in FREE}
    states = set(RULES[rule.rule].state)
    if reset_state or not any(name in states for _, name in session.rules.moments):
        return lasting
    for name, value in lasting.items():
        old = session.rules.numbers.get(name, value)
        if old != value:
            raise EagerError("eager.step", name, value, f"{old}, that of the moments, or reset_state=True")
    return lasting


def _check_finite(session: EagerSession, found: Mapping[Param, AnyBuffer]) -> None:
    """Refuse a gradient that is not finite."""
    largest: list[tuple[Param, AnyBuffer]] = []
    try:
        for param, gradient in found.items():
            near = session.engine.on_host(gradient.block)
            largest.append((param, gradient.share() if near else _largest(session, gradient)))
        for param, numbers in largest:
            if not np.isfinite(session.engine.download(numbers.block, numbers.type)).all():
                raise EagerError("eager.step", f"gradient of {param.name!r}", "numbers that are not finite",
                                 "finite ones, or check_finite=False")  # fmt: skip
    finally:
        for _, numbers in largest:
            numbers.release()


def _largest(session: EagerSession, gradient: AnyBuffer) -> AnyBuffer:
    """Return the largest |g|: not finite where any number of g is not. (0 · g would be folded by compilers.)"""
    engine, type, one = session.engine, gradient.type, TensorType((1,))
    sizes = session.buffer_of(engine.compute("abs", (), [gradient], type), type)
    attrs = (("axes", tuple(range(type.rank))), ("keepdims", False))
    try:
        return session.buffer_of(engine.compute("max", attrs, [sizes], one), one)
    finally:
        sizes.release()


# steps ----------------------------------------------------------------------------------------------------------------
def step(
    session: EagerSession, rule: Optimizer | UserRule, grads: Grads, check_finite: bool, reset_state: bool
) -> None:
    """Check everything, make all memory, then move all parameters at once and consume the gradients."""
    rule = checked("eager.step", rule if isinstance(rule, Optimizer) or not callable(rule) else rule_of_function(rule))
    if rule.rule == "none":
        raise EagerError("eager.step", "rule", "none", "an update rule, such as gdlab.eager.Adam(1e-3)")
    state, record = session.rules, rule_of("eager.step", rule.rule)
    lasting = _check_numbers(session, rule, reset_state)
    found = _check_grads(session, grads)
    if check_finite and found:
        _check_finite(session, found)
    fresh: list[AnyBuffer] = []
    made: dict[tuple[int, str], AnyBuffer] = {}  # moments of parameters that move for the first time
    old = {} if reset_state else state.moments
    try:
        for param in found:
            mirror = param.on_device()
            fresh.append(session.buffer_of(session.engine.copied(mirror.block, param.type), param.type))
            for key in ((param.uid, name) for name in record.state):
                if key not in old:
                    made[key] = zeros(session, param.type)
        t = (0 if reset_state else state.t) + record.counts
        moments = {**old, **made}
        rows = [(p, new, [moments[p.uid, n] for n in record.state], g)
                for (p, g), new in zip(found.items(), fresh, strict=True)]  # fmt: skip
        if rows:
            _move(session, rule, t, rows)
    except BaseException:
        for buffer in (*fresh, *made.values()):
            buffer.release()
        raise
    if reset_state:
        state.release()
    for (param, *_), new in zip(rows, fresh, strict=True):
        param.set_device(new)
    state.moments |= made
    state.t, state.updates, state.numbers, state.rule = t, state.updates + 1, state.numbers | lasting, rule
    _flush_moments(session)
    grads.release()


Row = tuple[Param, AnyBuffer, list[AnyBuffer], AnyBuffer]


def _move(session: EagerSession, rule: Optimizer, t: int, rows: Sequence[Row]) -> None:
    """Run the dispatches of an update: on new memory of parameters, and in place on their moments, which is safe
    because every check comes before."""
    engine = session.engine
    if isinstance(engine, ReferenceEngine):
        _move_wide(rule, t, rows)
        return
    assert isinstance(engine, QueueEngine)  # the only other one
    types = tuple(p.type for p, *_ in rows)
    assert engine.target is not None  # of its device
    dispatches, buffers = _dispatches(rule.rule, types, engine.target)
    held = [b.block for _, new, states, g in rows for b in (new, *states, g)]
    at: dict[int, MemoryBlock] = dict(enumerate(held))
    place = ((rule.rule, types), tuple(id(b.memory) for b in held))
    items = engine.bound(place, dispatches, buffers, at)
    engine.set_numbers(scalars(rule, t, session.step_number))
    session.set_drawn_step(written=True)
    engine.submit(items)


def _move_wide(rule: Optimizer, t: int, rows: Sequence[Row]) -> None:
    """Compute all results, then replace parameters and moments."""
    held = [(new, *states) for _, new, states, _ in rows]
    made = [moved(rule, t, [array_of(b) for b in (*moving, g)])
            for moving, (*_, g) in zip(held, rows, strict=True)]  # fmt: skip
    for moving, arrays in zip(held, made, strict=True):
        for buffer, array in zip(moving, arrays, strict=True):
            buffer.block.memory = array


@lru_cache(maxsize=256)
def _dispatches(
    rule: str, types: tuple[TensorType, ...], target: Target
) -> tuple[tuple[Dispatch, ...], dict[int, PlanBuffer]]:
    """Return the dispatches that move parameters of these types, and their buffers: for each parameter itself, its
    states and its gradient, in order."""
    record, buffers, moving = RULES[rule], dict[int, PlanBuffer](), list[ParameterUpdate]()
    for node, type in enumerate(types):
        first = len(buffers)
        ids = tuple(range(first, first + 2 + len(record.state)))
        buffers |= {i: PlanBuffer(i, type.size_bytes, f32, type.shape, "state", "", (node,)) for i in ids}
        whole = (Stretch(type.num_elements),)
        moving.append(ParameterUpdate(type, ids[:-1], ids[-1], whole, node))
    return update_dispatches(record, moving, target), buffers


def _flush_moments(session: EagerSession) -> None:
    """Zero tiny moments as plans on cpu do, at the same updates."""
    engine, state = session.engine, session.rules
    if isinstance(engine, QueueEngine) and engine.immediate and state.moments and state.updates % FLUSH_EVERY == 0:
        for buffer in state.buffers():
            flush(buffer.block.memory[: buffer.type.num_elements].view(np.float32))


# files ----------------------------------------------------------------------------------------------------------------
def state_dict(session: EagerSession) -> dict[str, Array]:
    """Return parameters, moments and counters by name; what lies in blocks as its words."""
    state, found = session.rules, dict[str, Array]()
    for p in session.params:
        found[f"param.{p.uid}.{p.name}"] = in_words(p.sync()).copy()
    for (uid, name), buffer in state.moments.items():
        found[f"moment.{uid}.{name}"] = session.engine.download(buffer.block, buffer.type)
    for name, number in state.numbers.items():
        found[f"number.{name}"] = np.array(number)
    found["counters"] = np.array([state.t, state.updates, session.step_number, len(state.moments)], np.int64)
    return found


def load_state_dict(session: EagerSession, given: Mapping[str, Any]) -> None:
    """Check the whole state, then restore it."""
    state, saved = session.rules, _SavedState(session, given)
    made = dict[tuple[int, str], AnyBuffer]()
    try:
        for (uid, name), value in saved.moments.items():
            made[uid, name] = session.uploaded(session.params[uid].type, value)
    except BaseException:
        for buffer in made.values():
            buffer.release()
        raise
    state.release()
    for param, held in saved.values.items():
        param.set_host(held)
    state.moments, state.numbers = made, saved.numbers
    state.t, state.updates, session.step_number = saved.counters


class _SavedState:
    """A `state_dict`, checked: values of parameters, moments, numbers and counters. The first key that is wrong raises
    `CheckpointError`."""

    def __init__(self, session: EagerSession, given: Mapping[str, Any]) -> None:
        rules = [rule for rule in RULES.values() if rule.configurable]
        params = {f"param.{p.uid}.{p.name}": p for p in session.params}
        moments = {f"moment.{p.uid}.{s}": (p, s) for p in session.params for rule in rules for s in rule.state}
        numbers = {f"number.{n}": n for rule in rules for n in _lasting(rule)}
        for key in given:
            if key not in params and key not in moments and key not in numbers and key != "counters":
                wanted = "parameters of this session, counters, moments and numbers of rules that exist"
                raise _wrong(key, "an unknown key", wanted)
        for key in (*params, "counters"):
            if key not in given:
                raise _wrong(key, "nothing", "values of all parameters, and counters")
        scalar = session.opts.scalar
        self.values = {p: _stored(key, given, p.type, scalar) for key, p in params.items()}
        self.moments = {(p.uid, s): _floats(key, given, p.type, scalar)
                        for key, (p, s) in moments.items() if key in given}  # fmt: skip
        self.numbers = {name: _number(key, given) for key, name in numbers.items() if key in given}
        for uid, name in self.moments:
            self._check_whole(uid, [rule for rule in rules if name in rule.state])
        self.counters = _counters(given, len(self.moments))

    def _check_whole(self, uid: int, rules: Sequence[UpdateRule]) -> None:
        """Refuse moments of which none of these rules has all states and numbers."""
        lacking = [
            [f"moment.{uid}.{s}" for s in rule.state if (uid, s) not in self.moments]
            + [f"number.{n}" for n in _lasting(rule) if n not in self.numbers]
            for rule in rules
        ]
        if all(lacking):
            raise _wrong(min(lacking, key=len)[0], "nothing", f"one beside the other moments of parameter {uid}")


def _lasting(rule: UpdateRule) -> list[str]:
    """Return the names of the numbers that the moments of a rule depend on."""
    return [number.name for number in rule.numbers if number.name not in FREE]


def _wrong(key: str, given: object, wanted: str) -> CheckpointError:
    return CheckpointError("eager.load_state_dict", key, given, wanted)


def _array(key: str, given: Mapping[str, Any]) -> Array:
    """Return a value as an array; a file may be damaged where it is read."""
    try:
        return np.asarray(given[key])
    except Exception as error:
        raise _wrong(key, f"{type(error).__name__}: {error!s:.80}", "an array of real numbers") from None


def _stored(key: str, given: Mapping[str, Any], type: TensorType, scalar: np.dtype[Any]) -> Array | Packed:
    held = from_words(_array(key, given), type)
    return held if isinstance(held, Packed) else _floats(key, given, type, scalar)


def _floats(key: str, given: Mapping[str, Any], type: TensorType, scalar: np.dtype[Any]) -> Array:
    array = _array(key, given)
    if array.shape != type.shape or array.dtype.kind != "f":
        raise _wrong(key, f"{array.dtype}{list(array.shape)}", f"floats of shape {list(type.shape)}")
    try:
        held = narrowed("eager.load_state_dict", key, array, type.dtype) if scalar == np.float32 else array
    except DTypeError as error:
        raise _wrong(key, error.given, error.wanted) from None
    return np.array(held, scalar)


def _number(key: str, given: Mapping[str, Any]) -> float:
    array = _array(key, given)
    if array.size != 1:
        raise _wrong(key, plural(array.size, "value"), "one number")
    number = array.item()
    if not is_real(number) or number < 0:
        raise _wrong(key, f"{number!r:.80}", "a finite number ≥ 0")
    return float(number)


def _counters(given: Mapping[str, Any], moments: int) -> tuple[int, int, int]:
    """Return the updates of rules that count, all updates, and the number of the recording. Moments are counted behind
    them (states of before 2026-11-29 have no such number), so that none can be lost."""
    array = _array("counters", given)
    if array.shape not in ((3,), (4,)) or array.dtype.kind not in "iu":
        raise _wrong("counters", f"{array.dtype}{list(array.shape)}", "four integers")
    t, updates, step, *counted = (int(n) for n in array)
    if not 0 <= t <= updates < 2**63 or not 0 <= step < 2**32:
        raise _wrong("counters", [t, updates, step], "0 ≤ updates that count ≤ updates, a step below 2^32")
    if counted not in ([], [moments]):
        raise _wrong("moments", plural(moments, "array"), f"{counted[0]}, as counters tells")
    return t, updates, step
