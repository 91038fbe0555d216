"""Every op keeps what its record promises. No op is named here: the registry says which there are."""

from __future__ import annotations

import op_checks
import pytest
from machine import needs
from op_checks import bad_cases, op_cases, sample_cases

from gdlab.op import Bad, Op, Sample, Shader

SAMPLES = sample_cases()
SMOOTH = [
    case for case in SAMPLES
    if not case.values[1].kink and len(case.values[1].integers) < len(case.values[1].shapes)
    and case.values[0].no_grad != "refuses"
]  # fmt: skip
STATED = [case for case in SAMPLES if case.values[1].grads is not None]
FUSED = [case for case in SMOOTH if case.values[0].body is not None]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_shape_rule_says_what_numpy_computes(op: Op, sample: Sample) -> None:
    op_checks.check_shape_rule(op, sample)


@pytest.mark.parametrize("op", [case for case in op_cases() if case.values[0].samples[0].shapes])
def test_references_keep_their_dtype(op: Op) -> None:
    for sample in op.samples:
        if len(sample.integers) < len(sample.shapes):
            op_checks.check_reference_dtype(op, sample)


@pytest.mark.parametrize(("op", "sample"), SMOOTH)
def test_gradients_agree_with_differences(op: Op, sample: Sample) -> None:
    op_checks.check_gradient(op, sample)


@pytest.mark.parametrize(("op", "sample"), STATED)
def test_gradients_at_kinks_are_the_stated_ones(op: Op, sample: Sample) -> None:
    op_checks.check_kink(op, sample)


@pytest.mark.parametrize(("op", "sample"), FUSED)
def test_a_fused_op_is_its_decomposition(op: Op, sample: Sample) -> None:
    op_checks.check_decomposition(op, sample)


@pytest.mark.parametrize(("op", "bad"), bad_cases())
def test_bad_calls_say_why_and_change_nothing(op: Op, bad: Bad) -> None:
    op_checks.check_bad(op, bad)


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_text_round_trip(op: Op, sample: Sample) -> None:
    op_checks.check_text(op, sample)


@pytest.mark.parametrize("op", op_cases())
def test_devices_compute_what_the_reference_says(op: Op, device: str) -> None:
    op_checks.check_device(op, device)


# products, convolutions, attention, norms: their forms for hardware have tests of their own and take seconds
LIGHT = ("index", "movement", "random", "elementwise")


@pytest.mark.parametrize(
    "op", [case for case in op_cases() if isinstance(case.values[0].kernel, Shader) and case.values[0].family in LIGHT]
)
def test_forms_for_hardware_compute_what_the_reference_says(op: Op) -> None:
    needs("wgpu")
    op_checks.check_hardware_form(op)
