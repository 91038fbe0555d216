"""Adam, AdamW and LaProp, which share their moments: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², p ← p − lr · m̂/(√v̂ + ε)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from gdlab.base.types import Array
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.rules.rule_record import Number, Shared, UpdateBuilder, UpdateRule, register

_NUMBERS = (
    Number("lr", "rate", 1e-3), Number("beta1", "fraction", 0.9), Number("beta2", "fraction", 0.999),
    Number("epsilon", "positive", 1e-8),
)  # fmt: skip
_SCALARS = ("lr", "beta1", "beta2", "epsilon", "correction1", "correction2")
_MOMENTS = ("adam_m", "adam_v")


def _per_step(numbers: Mapping[str, float], t: int) -> dict[str, float]:
    """Return the numbers of a step, with corrections 1/(1 − βᵗ) in float64."""
    first, second = 1 / (1 - numbers["beta1"] ** t), 1 / (1 - numbers["beta2"] ** t)
    return {**numbers, "correction1": first, "correction2": second, "decay": numbers.get("weight_decay", 0.0)}


# NumPy ----------------------------------------------------------------------------------------------------------------
# Computed once a step. With r = √(1 − β₂ᵗ), m̂/(√v̂ + ε) is r/(1 − β₁ᵗ) · m/(√v + r·ε), one call less.
_SHARED: Mapping[str, Shared] = {
    "rest1": (np.subtract, 1.0, "beta1"),
    "rest2": (np.subtract, 1.0, "beta2"),
    "root": (np.power, "correction2", -0.5),
    "small": (np.multiply, "root", "epsilon"),
    "factor": (np.multiply, "root", "correction1"),
    "first_rate": (np.multiply, "lr", "factor"),
    "plain_rate": (np.multiply, "lr", "correction1"),
    "rest_root": (np.multiply, "rest1", "root"),
}


def _numpy(builder: UpdateBuilder, normalized: bool = False, decayed: bool = False) -> None:
    """Append the NumPy calls; `normalized`: the gradient is divided by √v̂ + ε before it enters the first moment."""
    rate = _rate(builder, *(("plain_rate", "correction1") if normalized else ("first_rate", "factor")))
    decay = _decay(builder) if decayed else None
    for p, m, v, g, t in builder.blocks():
        u = builder.second(p) if builder.is_clipped or normalized else None
        g = builder.clipped(g, t if u is None else u)
        if decay is not None:  # p − lr·k·(decay·p + …)
            builder.calls += [(np.multiply, (p, decay, t)), (np.subtract, (p, t, p))]
        builder.calls += _moved(builder.scalars, p, m, v, g, t, u if normalized else None, rate)


def _rate(builder: UpdateBuilder, whole: str, factor: str) -> Array:
    """Return the scalar `whole`, which is the learning rate times the scalar `factor`; times the parameter's own."""
    if builder.factor == 1:
        return builder.scalars[whole]
    rate = builder.rate()
    builder.calls.append((np.multiply, (rate, builder.scalars[factor], rate)))
    return rate


def _decay(builder: UpdateBuilder) -> Array:
    """Return the fraction of a parameter that decay removes."""
    fall = builder.number()
    builder.calls.append((np.multiply, (builder.rate(), builder.scalars["decay"], fall)))
    return fall


def _moved(
    s: Mapping[str, Array], p: Array, m: Array, v: Array, g: Array, t: Array, u: Array | None, rate: Array
) -> list[NumpyCall]:
    """Return the calls that move moments and parameter."""
    first = [(np.multiply, (m, s["beta1"], m)), (np.multiply, (g, s["rest1"], t)), (np.add, (m, t, m))]
    second = [
        (np.multiply, (g, g, t)),
        (np.multiply, (t, s["rest2"], t)),
        (np.multiply, (v, s["beta2"], v)),
        (np.add, (v, t, v)),
        (np.sqrt, (v, t)),
        (np.add, (t, s["small"], t)),
    ]
    last = [(np.multiply, (t, rate, t)), (np.subtract, (p, t, p))]
    if u is None:
        return [*first, *second, (np.divide, (m, t, t)), *last]
    third = [(np.divide, (g, t, u)), (np.multiply, (u, s["rest_root"], u)), (np.multiply, (m, s["beta1"], m))]
    return [*second, *third, (np.add, (m, u, m)), (np.multiply, (m, rate, t)), last[1]]


# the rules ------------------------------------------------------------------------------------------------------------
register(UpdateRule(
    "adam", "Adam", _NUMBERS, _MOMENTS, _SCALARS, 13, True, _per_step, _SHARED, "adam.wgsl", _numpy,
))  # fmt: skip
register(UpdateRule(
    "adamw", "AdamW", (*_NUMBERS, Number("weight_decay", "rate", 0.01)), _MOMENTS, (*_SCALARS, "decay"), 15, True,
    _per_step, _SHARED, "adamw.wgsl", partial(_numpy, decayed=True),
))  # fmt: skip
register(UpdateRule(
    "laprop", "LaProp", _NUMBERS, _MOMENTS, _SCALARS, 14, True, _per_step, _SHARED, "laprop.wgsl",
    partial(_numpy, normalized=True),
))  # fmt: skip
