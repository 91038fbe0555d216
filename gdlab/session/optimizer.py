"""The configured update rule with its numbers, checked; and what the update kernels read per step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gdlab.base.errors import SessionError
from gdlab.base.types import Array
from gdlab.plan.dispatch import SCALARS
from gdlab.plan.update import Clip, Rule
from gdlab.session.arrays import is_real, positive

_NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "laprop": "LaProp"}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The configured update rule; `none` leaves parameters as they are."""

    rule: Rule = "none"
    lr: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @staticmethod
    def sgd(lr: float = 0.01) -> Optimizer:
        """SGD with this rate."""
        return sgd("Optimizer.sgd", lr)

    @staticmethod
    def adam(lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
        """Adam with these numbers."""
        return adam("Optimizer.adam", lr, beta1, beta2, epsilon)

    @property
    def counts(self) -> bool:
        """Whether its updates move the Adam counter."""
        return self.rule in ("adam", "adamw", "laprop")

    def __str__(self) -> str:
        return "no update rule" if self.rule == "none" else f"{_NAMES[self.rule]}, lr {self.lr:g}"


def sgd(where: str, lr: float) -> Optimizer:
    """SGD with this rate, or the error that says what is wrong with it."""
    return Optimizer("sgd", *positive(where, lr=lr))


def adam(
    where: str, lr: float, beta1: float, beta2: float, epsilon: float, rule: Rule = "adam", weight_decay: float = 0.0
) -> Optimizer:
    """Adam or one of its kin with these numbers, or the error that says which is wrong."""
    positive(where, lr=lr, weight_decay=weight_decay)
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not is_real(beta) or not 0 <= beta < 1:
            raise SessionError(where, name, repr(beta), "a number in [0, 1)")
        if np.float32(beta) == 1:  # in the kernels, and then there is no 1/(1 − βᵗ)
            raise SessionError(where, name, repr(beta), "a number in [0, 1) that float32 does not round to 1")
    above_zero(where, epsilon=epsilon)
    return Optimizer(rule, float(lr), float(beta1), float(beta2), float(epsilon), float(weight_decay))


def norm_clip(where: str, limit: float | None) -> Clip | None:
    """All gradients together, or None."""
    return None if limit is None else Clip("norm", *above_zero(where, max=limit))


def adaptive_clip(where: str, clip: float | None, pmin: float) -> Clip | None:
    """Each parameter's gradient, or None."""
    return None if clip is None else Clip("adaptive", *above_zero(where, clip=clip, pmin=pmin))


def above_zero(where: str, **values: float) -> list[float]:
    """The values as floats, when all are finite and > 0 (as float32 too)."""
    for name, value in values.items():
        if not is_real(value) or not value > 0 or not np.float32(value) > 0:
            raise SessionError(where, name, repr(value), "a number > 0")
    return [float(value) for value in values.values()]


def scalars(optimizer: Optimizer, adam_steps: int, step: int = 0) -> Array:
    """Return the numbers that kernels read per step, as `SCALARS`: steps count from 0; 1/(1 − βᵗ) in float64 of the
    kernels' βs."""
    o, t = optimizer, max(adam_steps, 1)
    beta1, beta2 = _rounded(o.beta1), _rounded(o.beta2)
    values = (
        o.lr, beta1, beta2, o.epsilon, 1 / (1 - beta1**t), 1 / (1 - beta2**t), o.weight_decay,
        step & 0xFFFF, step >> 16 & 0xFFFF,
    )  # fmt: skip
    return np.array(values, np.float32)


assert SCALARS == ("lr", "beta1", "beta2", "epsilon", "correction1", "correction2", "decay", "step_low", "step_high")


@lru_cache(maxsize=16)
def _rounded(beta: float) -> float:
    """As in the kernels: the correction is 40 times closer than with β itself."""
    return float(np.float32(beta))
