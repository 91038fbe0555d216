"""Every op of the registry on a tape: values and gradients against the reference, and bits against plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eager_tapes import check_gradients, check_values
from machine import needs
from op_checks import RTOL, op_cases, sample_cases

from gdlab.op import Op, Sample, Shader

LIGHT = ("movement", "elementwise", "random")


@pytest.mark.parametrize("op", op_cases())
def test_values_on_cpu(op: Op) -> None:
    check_values(op, "cpu", RTOL["cpu"])


def differentiable(case: Any) -> bool:
    op, sample = case.values
    return op.no_grad is None and not sample.kink


@pytest.mark.parametrize(("op", "sample"), [case for case in sample_cases() if differentiable(case)])
def test_gradients_on_cpu(op: Op, sample: Sample) -> None:
    with np.errstate(all="ignore"):
        check_gradients(op, sample, "cpu", RTOL["cpu"])


@pytest.mark.parametrize("op", [c for c in op_cases() if c.values[0].family in LIGHT and not isinstance(
    c.values[0].kernel, Shader)][::4])  # fmt: skip
def test_values_on_an_adapter(op: Op) -> None:
    needs("wgpu")
    check_values(op, "wgpu", RTOL["wgpu"])
