"""Update rules that divide the gradient by a root of its squares: AdaGrad, RMSProp, Adadelta."""

from __future__ import annotations

from gdlab.graph import Value
from gdlab.ops import sqrt
from gdlab.plan.rules.rule_record import Number, update_rule


@update_rule("AdaGrad", Number("lr", "rate", 0.01), Number("epsilon", "positive", 1e-10))
def adagrad(p: Value, g: Value, squares: Value, *, lr: Value, epsilon: Value) -> tuple[Value, ...]:
    """G ← G + g²,  p ← p − lr·g/(√G + ε)  (Duchi, Hazan and Singer, 2011)"""
    squares = squares + g * g
    return p - lr * g / (sqrt(squares) + epsilon), squares


@update_rule(
    "RMSProp", Number("lr", "rate", 0.01), Number("decay", "fraction", 0.9), Number("epsilon", "positive", 1e-8)
)
def rmsprop(p: Value, g: Value, v: Value, *, lr: Value, decay: Value, epsilon: Value) -> tuple[Value, ...]:
    """v ← d·v + (1−d)·g²,  p ← p − lr·g/(√v + ε)  (Hinton, lecture notes, 2012)"""
    v = decay * v + (1 - decay) * g * g
    return p - lr * g / (sqrt(v) + epsilon), v


@update_rule("Adadelta", Number("lr", "rate", 1.0), Number("rho", "fraction", 0.9), Number("epsilon", "positive", 1e-6))
def adadelta(p: Value, g: Value, v: Value, u: Value, *, lr: Value, rho: Value, epsilon: Value) -> tuple[Value, ...]:
    """v ← ρ·v + (1−ρ)·g²,  d = lr·√(u + ε)/√(v + ε)·g,  p ← p − d,  u ← ρ·u + (1−ρ)·d²  (Zeiler, 2012; there lr = 1)"""
    v = rho * v + (1 - rho) * g * g
    d = lr * sqrt(u + epsilon) / sqrt(v + epsilon) * g
    return p - d, v, rho * u + (1 - rho) * d * d
