"""Update rules with momentum: plain, and Nesterov's."""

from __future__ import annotations

from gdlab.graph import Value
from gdlab.plan.rules.rule_record import Number, update_rule

_NUMBERS = Number("lr", "rate", 0.01), Number("momentum", "fraction", 0.9)


@update_rule("Momentum", *_NUMBERS)
def momentum(p: Value, g: Value, b: Value, *, lr: Value, momentum: Value) -> tuple[Value, ...]:
    """b ← μ·b + g,  p ← p − lr·b  (Polyak, 1964)"""
    b = momentum * b + g
    return p - lr * b, b


@update_rule("Nesterov", *_NUMBERS)
def nesterov(p: Value, g: Value, b: Value, *, lr: Value, momentum: Value) -> tuple[Value, ...]:
    """b ← μ·b + g,  p ← p − lr·(g + μ·b)  (Nesterov, 1983; Sutskever and others, 2013)"""
    b = momentum * b + g
    return p - lr * (g + momentum * b), b
