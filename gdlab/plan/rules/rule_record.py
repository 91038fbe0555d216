"""Record an update rule: its state, its numbers, its kernel in WGSL and in NumPy; and the table of all rules.

A rule moves one element of a parameter, and of its state, by one element of the gradient; plan, devices, session and
views read everything that they know of it here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from gdlab.base.errors import ArgumentError, unknown_name
from gdlab.base.types import Array
from gdlab.graph import Value
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.dispatch import OWN_SCALARS, SCALARS

BLOCK = 1 << 17  # elements of a part of a large parameter: what one NumPy call writes is in the cache of the next
NumberKind = Literal["rate", "fraction", "positive"]
Numbers = Mapping[str, float]
Shared = tuple[Callable[..., Any], str | float, str | float]
Form = Callable[..., tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Number:
    """A number that a rule is configured with. `rate`: finite and ≥ 0; `fraction`: in [0, 1), in float32 too;
    `positive`: finite and > 0, in float32 too. Without `default` it has to be given."""

    name: str
    kind: NumberKind
    default: float | None = None


class UpdateBuilder(Protocol):
    """The NumPy calls of one parameter, or of a range of it, as a `numpy_form` appends them."""

    calls: list[NumpyCall]
    scalars: Mapping[str, Array]  # the rule's scalars and shared numbers, as arrays without axes
    factor: np.float32  # of the rate (of a sum of gradients: of the gradient)

    @property
    def is_clipped(self) -> bool:
        """Whether a factor clips the gradient."""

    def number(self) -> Array:
        """Return an array without axes that nothing else uses."""

    def second(self, block: Array) -> Array:
        """Return another temporary in the shape of a block that `blocks` has just yielded."""

    def blocks(self) -> Iterator[tuple[Array, ...]]:
        """Yield parameter, states, gradient (where the rule reads it) and a temporary, part by part: each part stays in
        the cache while its calls run."""

    def clipped(self, gradient: Array, into: Array) -> Array:
        """Return the gradient as the rule reads it: itself, or clipped, in `into`."""

    def rate(self) -> Array:
        """Return the learning rate of this parameter, a number: that of the step where its factor is 1."""


def _as_given(numbers: Numbers, step: int) -> Numbers:
    return numbers


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """An update rule.

    * `numbers`: what it is configured with; the first is the rate, `lr`.
    * `state`: names of its states: a state buffer of parameter p is called `state.p`. Rules that name the same state
      share it.
    * `scalars`: the numbers that its kernel reads, `lr` first; `per_step(numbers, t)` returns them for update t ≥ 1 (of
      a rule that `counts` updates), as a mapping that may hold more; numbers come rounded to the kernels' dtype.
      Kernels get lr times the parameter's factor.
    * `shared`: numbers that NumPy computes once a step for all parameters: name -> (function, names or numbers).
    * `shader`: a file of `shaders/` with `fn moved(weight, …states, gradient, rate) -> Moved`; `numpy_form` appends the
      same as NumPy calls. Or `form(p, g, *state, **scalars) -> (p, *state)` in ops: both follow from it.
    * `configurable`: whether a session offers it (else it is a part of the accumulation of gradients).
    """

    name: str
    label: str
    numbers: tuple[Number, ...] = ()
    state: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    flops: int = 0
    counts: bool = False
    per_step: Callable[[Numbers, int], Numbers] = _as_given
    shared: Mapping[str, Shared] = field(default_factory=dict)
    shader: str = ""
    numpy_form: Callable[[UpdateBuilder], None] | None = None
    form: Form | None = None
    reads_gradient: bool = True
    configurable: bool = True

    @property
    def buffers(self) -> int:
        """The number of buffers that it binds for each parameter."""
        return 1 + len(self.state) + self.reads_gradient

    def values(self, numbers: Numbers, t: int, dtype: type[np.floating[Any]] = np.float32) -> tuple[float, ...]:
        """Return the values of `scalars` for update t, from the numbers rounded to `dtype` as in kernels: corrections
        from a β that was rounded first are 40 times closer."""
        given = self.per_step(self.rounded(numbers, dtype), t)
        return tuple(given[name] for name in self.scalars)

    def rounded(self, numbers: Numbers, dtype: type[np.floating[Any]] = np.float32) -> dict[str, float]:
        """Return the numbers rounded to `dtype` as in kernels: the argument of `per_step`."""
        return {name: float(dtype(value)) for name, value in numbers.items()}


RULES: dict[str, UpdateRule] = {}


def register(rule: UpdateRule) -> UpdateRule:
    """Add a rule to the table; kernels are cached by its name, so a name is never given to another rule."""
    where = f"update rule {rule.name}"
    if rule.name in RULES or not rule.name.isidentifier():
        raise ArgumentError("update rule", "name", repr(rule.name), "a new identifier")
    if rule.configurable and (not rule.numbers or rule.numbers[0].name != "lr" or rule.scalars[:1] != ("lr",)):
        given = f"numbers {[n.name for n in rule.numbers]}, scalars {list(rule.scalars)}"
        raise ArgumentError(where, "numbers", given, "lr as the first of numbers and scalars")
    own = [name for name in rule.scalars if name not in SCALARS]
    if len(own) > OWN_SCALARS or len(set(rule.scalars)) < len(rule.scalars):
        raise ArgumentError(where, "scalars", list(rule.scalars), f"each once, at most {OWN_SCALARS} of its own")
    if (rule.form is None) == (not rule.shader or rule.numpy_form is None):
        raise ArgumentError(where, "kernel", "both or neither", "a form, or a shader with a numpy_form")
    RULES[rule.name] = rule
    return rule


def update_rule(
    label: str, *numbers: Number, counts: bool = False, per_step: Callable[[Numbers, int], Numbers] = _as_given
) -> Callable[[Form], UpdateRule]:
    """Register `def rule(p, g, *state, *, lr, **scalars)`, which returns p and the states after the update, as the rule
    of this name (decorator). Its states are called after the parameters behind g: `rule_m` for m."""

    def decorated(form: Form) -> UpdateRule:
        name = form.__name__
        given = inspect.signature(form).parameters.values()
        scalars = tuple(p.name for p in given if p.kind is p.KEYWORD_ONLY)
        state = tuple(f"{name}_{p.name}" for p in list(given)[2:] if p.kind is not p.KEYWORD_ONLY)
        return register(UpdateRule(
            name, label, numbers, state, scalars, flops=4 + 4 * len(state), counts=counts, per_step=per_step, form=form,
        ))  # fmt: skip

    return decorated


def rule_of(where: str, name: str) -> UpdateRule:
    """Return the rule of this name, or raise an error that names the nearest."""
    rule = RULES.get(name)
    if rule is None:
        raise unknown_name(where, "rule", str(name), [n for n, r in RULES.items() if r.configurable])
    return rule
