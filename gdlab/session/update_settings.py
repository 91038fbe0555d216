"""The configured update rule with its numbers, checked; and the numbers that update kernels read per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from gdlab.base.errors import SessionError, unknown_name
from gdlab.base.types import Array
from gdlab.plan.dispatch import SCALARS, scalar_places
from gdlab.plan.rules import RULES, NumberKind, UpdateRule, rule_of
from gdlab.plan.update import Clip
from gdlab.session.arrays import is_real, positive


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The configured update rule (a name in `gdlab.plan.rules`) and its numbers; `none` leaves parameters as they are.
    `more` are the numbers that have no field here. `Optimizer.of("adam", lr=1e-3)` checks them."""

    rule: str = "none"
    lr: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    more: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def sgd(lr: float = 0.01) -> Optimizer:
        """Return SGD with this rate."""
        return optimizer("Optimizer.sgd", "sgd", lr=lr)

    @staticmethod
    def adam(lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
        """Return Adam with these numbers."""
        return optimizer("Optimizer.adam", "adam", lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon)

    @staticmethod
    def of(rule: str, **numbers: float) -> Optimizer:
        """Return any update rule by its name; numbers that are not given have the rule's defaults."""
        return optimizer("Optimizer.of", rule, **numbers)

    @property
    def counts(self) -> bool:
        """Whether updates by this rule move the Adam counter."""
        return self.rule != "none" and RULES[self.rule].counts

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the rule by name."""
        more = dict(self.more)
        wanted = () if self.rule == "none" else rule_of("Optimizer", self.rule).numbers
        return {n.name: more[n.name] if n.name in more else getattr(self, n.name) for n in wanted}

    def __str__(self) -> str:
        return "no update rule" if self.rule == "none" else f"{RULES[self.rule].label}, lr {self.lr:g}"


_FIELDS = {field.name for field in fields(Optimizer)} - {"rule", "more"}


def optimizer(where: str, rule: str, **numbers: float) -> Optimizer:
    """Return the rule with these numbers, or raise the error that says which number is wrong."""
    record = rule_of(where, rule)
    known = {n.name: n for n in record.numbers}
    if not record.configurable:
        raise unknown_name(where, "rule", rule, [name for name, r in RULES.items() if r.configurable])
    for name in numbers:
        if name not in known:
            raise unknown_name(where, f"number of {rule}", name, known)
    missing = [n.name for n in record.numbers if n.default is None and n.name not in numbers]
    if missing:
        raise SessionError(where, missing[0], "nothing", f"a number: {rule} has no default for it")
    given = {n.name: n.default for n in record.numbers if n.default is not None} | numbers
    checked = {name: _CHECKS[n.kind](where, name, given[name]) for name, n in known.items()}
    own = {name: value for name, value in checked.items() if name in _FIELDS}
    return Optimizer(rule, **own, more=tuple((n, v) for n, v in checked.items() if n not in _FIELDS))


def checked(where: str, given: Optimizer) -> Optimizer:
    """Return the same rule with its numbers checked, or raise the error that says which is wrong."""
    if not isinstance(given, Optimizer):
        raise SessionError(where, "rule", type(given).__name__, "an Optimizer, such as Optimizer.adam(lr)")
    return given if given == Optimizer() else optimizer(where, given.rule, **given.numbers)


def _rate(where: str, name: str, value: float) -> float:
    return next(iter(positive(where, **{name: value})))


def _fraction(where: str, name: str, value: float) -> float:
    if not is_real(value) or not 0 <= value < 1:
        raise SessionError(where, name, repr(value), "a number in [0, 1)")
    if np.float32(value) == 1:  # in the kernels, and then there is no 1/(1 − βᵗ)
        raise SessionError(where, name, repr(value), "a number in [0, 1) that float32 does not round to 1")
    return float(value)


def _above_zero(where: str, name: str, value: float) -> float:
    return above_zero(where, **{name: value})[0]


_CHECKS: Mapping[NumberKind, Callable[[str, str, float], float]] = {
    "rate": _rate, "fraction": _fraction, "positive": _above_zero,
}  # fmt: skip


def norm_clip(where: str, limit: float | None) -> Clip | None:
    """Return a clip of the norm of all gradients together, None without a limit."""
    return None if limit is None else Clip("norm", *above_zero(where, max=limit))


def adaptive_clip(where: str, clip: float | None, pmin: float) -> Clip | None:
    """Return a clip of each parameter's gradient against the parameter, None without one."""
    return None if clip is None else Clip("adaptive", *above_zero(where, clip=clip, pmin=pmin))


def above_zero(where: str, **values: float) -> list[float]:
    """Return the values as floats; `SessionError` unless all are finite and > 0 (as float32 too)."""
    for name, value in values.items():
        if not is_real(value) or not value > 0 or not np.float32(value) > 0:
            raise SessionError(where, name, repr(value), "a number > 0")
    return [float(value) for value in values.values()]


def scalars(optimizer: Optimizer, adam_steps: int, step: int = 0) -> Array:
    """Return the numbers that kernels read per step, as `SCALARS` and behind them the rule's own; steps count from 0,
    `adam_steps` are the updates of a rule that counts them, this one included."""
    return ScalarRows(optimizer, adam_steps, step, False, 1).rows[0]


class ScalarRows:
    """The numbers that kernels read in up to `count` steps in a row, an array each. `updates`: those that the rule
    counts, the one of the first step included, 0 if it counts none; `step`: the number of the first step where kernels
    read that (`reads_step`), else 0."""

    def __init__(self, optimizer: Optimizer, updates: int, step: int, reads_step: bool, count: int) -> None:
        self.optimizer, self.first = optimizer, (updates, step)
        self.advance = optimizer.counts, reads_step
        rule = None if optimizer.rule == "none" else RULES[optimizer.rule]
        names, numbers = _NO_RULE if rule is None else _recipe(rule, optimizer)
        rows = list[list[float]]()
        for k in range(count):
            try:
                given = numbers if rule is None else rule.per_step(numbers, max(updates + k * self.advance[0], 1))
            except Exception:  # of a rule that ends before: its step may never come
                if not rows:
                    raise
                break
            rows.append(row := [given[name] if name else 0.0 for name in names])
            number = step + k * reads_step
            row[_LOW], row[_HIGH] = number & 0xFFFF, number >> 16 & 0xFFFF
        self.rows: Sequence[Array] = list(np.array(rows, np.float32))

    def find(self, optimizer: Optimizer, updates: int, step: int) -> Array | None:
        """Return the numbers of a step, told as for the first one, if they are among these."""
        k = self._place(optimizer, updates, step)
        return self.rows[k] if 0 <= k < len(self.rows) else None

    def ends_before(self, optimizer: Optimizer, updates: int, step: int) -> bool:
        """Return whether the step is the one behind the last of these."""
        return self._place(optimizer, updates, step) == len(self.rows)

    def _place(self, optimizer: Optimizer, updates: int, step: int) -> int:
        """Return the number of steps from the first of these to this one; −1 where it is none that comes behind."""
        behind = updates - self.first[0], step - self.first[1]
        k = max(behind)
        same = optimizer is self.optimizer or optimizer == self.optimizer
        return k if same and behind == (k * self.advance[0], k * self.advance[1]) else -1


_LOW, _HIGH = SCALARS.index("step_low"), SCALARS.index("step_high")
_Recipe = tuple[tuple[str, ...], Mapping[str, float]]
_NO_RULE: _Recipe = (("",) * len(SCALARS), {})


@lru_cache(256)
def _recipe(rule: UpdateRule, optimizer: Optimizer) -> _Recipe:
    """Return the name of each scalar, empty for those that are not the rule's, and the inputs of their formulas, all
    the same in every step."""
    places = scalar_places(rule.scalars)
    names = {place: name for name, place in places.items()}
    count = len(scalar_places(SCALARS) | places)
    return tuple(names.get(place, "") for place in range(count)), rule.rounded(optimizer.numbers)
