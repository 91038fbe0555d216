"""Gradient descent: p ← p − lr · factor · g."""

from __future__ import annotations

import numpy as np

from gdlab.plan.rules.rule_record import Number, UpdateBuilder, UpdateRule, register


def _numpy(builder: UpdateBuilder) -> None:
    rate = builder.rate()
    for p, g, t in builder.blocks():
        g = builder.clipped(g, t)
        builder.calls += [(np.multiply, (g, rate, t)), (np.subtract, (p, t, p))]


register(UpdateRule(
    "sgd", "SGD", (Number("lr", "rate", 0.01),), scalars=("lr",), flops=2, shader="sgd.wgsl", numpy_form=_numpy,
))  # fmt: skip
