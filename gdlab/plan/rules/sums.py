"""Sums of gradients over several steps: add a share of a gradient, and set the sums to zero."""

from __future__ import annotations

import numpy as np

from gdlab.plan.rules.rule_record import UpdateBuilder, UpdateRule, register


def _accumulate(builder: UpdateBuilder) -> None:
    for total, g, t in builder.blocks():
        builder.calls += [(np.multiply, (g, builder.factor, t)), (np.add, (total, t, total))]


def _clear(builder: UpdateBuilder) -> None:
    for total, *_ in builder.blocks():
        builder.calls.append((np.copyto, (total, np.float32(0))))


register(UpdateRule(
    "accumulate", "Accumulate", flops=2, shader="accumulate.wgsl", numpy_form=_accumulate, configurable=False,
))  # fmt: skip
register(UpdateRule(
    "clear", "Clear", shader="clear.wgsl", numpy_form=_clear, reads_gradient=False, configurable=False,
))  # fmt: skip
