"""Every op keeps what its record promises. No op is named here: the registry says which there are."""

from __future__ import annotations

import math

import op_checks
import pytest
from machine import needs
from matrix import MATRIX
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


# Samples of sizes that `make matrix` tests on devices, too: of each a sample that stays has every kernel, with other
# numbers in it, and a tail and several workgroups. Samples with edges of values, and the first two, which are
# repeated with a NaN, stay.
ROWS = (2, 3, 5, 7)
LEFT: dict[str, tuple[int, ...]] = {
    "matmul": (2,), "matmul_at": (2,), "matmul_bt": (4, 7), "matmul_affine": (2,),
    "fused_matmul_add": (5, 6), "fused_matmul_at_add": (5, 6), "fused_matmul_bt_add": (5, 6),
    **{f"{kind}_matmul{form}": (3, 4, 5) for kind in ("batch", "block") for form in ("", "_at", "_bt")},
    "grouped_matmul": (2, 3, 5), "grouped_matmul_at": (2, 3, 5), "grouped_matmul_bt": (2, 3, 5),
    "causal_attention": (2, 3, 5, 6, 7, 10), "sliding_window_attention": (2, 4, 6, 7), "full_attention": (2, 4),
    "cross_attention": (3, 4), "multi_head_attn": (2, 3, 4), "softcap_attention": (2,),
    "attention_lse": (3,), "attention_grad_k": (3,), "attention_grad_v": (3,),
    "cached_attention": (2, 3), "cached_block_attention": (2, 3, 5, 6), "cached_softcap_attention": (2, 3, 5, 6),
    "softmax": ROWS, "log_softmax": ROWS, "rms_norm": (3, 4, 6), "layer_norm": (3, 4, 6),
    "rms_size": (2, 4, 6, 7), "layer_size": (2, 4, 6, 7), "rms_norm_grad_w": (3,), "layer_norm_grad_w": (3,),
    "layer_norm_grad_x": (3,), "cumsum": (2, 3, 4, 6), "exclusive_cumsum": (2, 3, 4, 6),
    "sum": (2, 4), "mean": (2, 4), "min": (2, 3, 4), "max_inner": (3, 4), "sum_inner": (3, 4), "mean_inner": (3, 4),
    "max_pool_2d": (3, 4), "avg_pool_2d": (2, 4, 5), "swiglu_concat_grad": (3,), "geglu_concat_grad": (3,),
}  # fmt: skip
# Most kernels of a gradient are those of other ops, which have samples of their own. On a GPU, where each costs 50 ms,
# it is compared for the first sample, the largest, those at a kink, and these, whose gradients have kernels that no
# other sample of any op has.
SLOPES: dict[str, tuple[int, ...]] = {
    "matmul": (3, 4, 6, 8), "matmul_at": (3, 4, 6, 8), "matmul_bt": (2, 3, 8), "matmul_affine": (1, 3, 4, 5),
    "div": (1,), "clamp": (4, 5), "pow": (1,), "slice": (2,), "where": (1,), "maximum": (1, 2), "minimum": (1,),
    "sum_all": (2,), "max": (2, 3, 5, 6), "prod": (4,), "fmod": (1,), "mod": (1,), "shift_inner": (5,),
    "rope_scaled": (1,), "rope_scaled_dynamic": (1,), "attention_lse": (1, 2), "attention_grad_q": (1, 2, 3),
    "cross_attention": (2,), "biased_attention": (1,), "softcap_attention": (4,), "softmax": (4, 8),
    "log_softmax": (4, 8), "group_norm": (4, 5, 6), "rms_size": (3,), "rms_norm": (2, 7, 8), "rms_norm_grad_x": (1, 3),
    "rms_norm_grad_w": (1,), "layer_norm": (2, 7, 8), "layer_norm_grad_w": (1,), "normalize_inner_sum": (3,),
    "pairwise_squared_distance": (1,), "pairwise_vector_rejection": (1,), "cross_entropy_logits_grad": (2,),
    "bce_loss": (3,), "mse_loss": (3,), "l1_loss": (3,), "swiglu_concat_grad": (2,), "geglu_concat_grad": (2,),
}  # fmt: skip


def with_gradients(op: Op) -> set[int]:
    """Return the samples whose gradients are compared on a GPU."""
    largest = max(range(len(op.samples)), key=lambda i: sum(map(math.prod, op.samples[i].shapes)))
    return {0, largest, *SLOPES.get(op.name, ()), *(i for i, sample in enumerate(op.samples) if sample.kink)}


@pytest.mark.parametrize("op", op_cases())
def test_devices_compute_what_the_reference_says(op: Op, device: str) -> None:
    left, gradients = LEFT.get(op.name, ()), with_gradients(op) if device == "wgpu" else None
    op_checks.check_device(op, device, *(() if MATRIX else (left, gradients)))


# products, convolutions, attention, norms: their forms for hardware have tests of their own and take seconds
LIGHT = ("index", "movement", "random", "elementwise", "loss")


@pytest.mark.parametrize(
    "op", [case for case in op_cases() if isinstance(case.values[0].kernel, Shader) and case.values[0].family in LIGHT]
)
def test_forms_for_hardware_compute_what_the_reference_says(op: Op) -> None:
    needs("wgpu")
    op_checks.check_hardware_form(op, *(() if MATRIX else (LEFT.get(op.name, ()), with_gradients(op))))
