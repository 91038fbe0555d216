"""Make an update rule of a function in op notation: `gd.eager.rule(lambda p, g, m: (p - 0.1 * (m + g), m + g))`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gdlab.base.errors import ArgumentError
from gdlab.graph import Value
from gdlab.plan.rules import RULES, Number, UpdateRule
from gdlab.plan.rules.rule_record import register
from gdlab.plan.rules.traced import traced
from gdlab.session.update_settings import Optimizer, optimizer

WHERE = "eager.rule"


def rule(function: Callable[..., Any], **numbers: float) -> Optimizer:
    """Return the update rule of `function(p, g, *state, *, lr, **numbers) -> (p, *state)`, for eager and other
    sessions: elementwise ops alone; states have the parameter's shape and begin at 0.

    Numbers behind `*` are read anew in each step (finite, ≥ 0); their defaults are the function's. Everything else that
    the function reads is part of the rule. Two functions that compute the same are one rule, whose states go on.
    """
    if not callable(function):
        raise ArgumentError(WHERE, "function", type(function).__name__, "a function (p, g, *state) -> (p, *state)")
    record = _record(function)
    if record.name not in RULES:
        register(record)
    return optimizer(WHERE, record.name, **numbers)


def _record(function: Callable[..., Any]) -> UpdateRule:
    """Trace the function to a rule, whose name is a digest of its computation."""
    given = list(inspect.signature(function).parameters.values())
    places = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    own = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
    if len(places) < 2 or len(places) + len(own) < len(given):
        shown = f"({', '.join(map(str, given))})"
        raise ArgumentError(WHERE, "function", shown, "(p, g, *state, *, lr, **numbers), each by name")
    names = ["lr", *(name for name in own if name != "lr")]
    defaults = {name: 0.0 if name not in own else _default(own[name]) for name in names}

    def form(*operands: Value, **scalars: Value) -> tuple[Value, ...]:
        made = function(*operands, **{name: scalars[name] for name in own})
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    label = function.__name__ if function.__name__.isidentifier() else "rule"
    draft = UpdateRule(label, label, tuple(Number(n, "rate", d) for n, d in defaults.items()), tuple(places[2:]),
                       tuple(names), flops=2 + 4 * len(places), form=form)  # fmt: skip
    found = traced(draft)
    lines = [(line.op, line.args, line.attrs) for line in found.lines]
    text = repr((lines, found.results, places, names))
    name = f"{label}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return replace(draft, name=name, state=tuple(f"{name}_{state}" for state in places[2:]))


def _default(parameter: inspect.Parameter) -> float | None:
    return None if parameter.default is parameter.empty else float(parameter.default)
