"""Every op of the registry with a bucket axis computes what it computes of the active entries alone, or is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bucketing import (
    BucketCase,
    cases_of,
    cut,
    dead,
    expected,
    gradient_failure,
    of_nothing,
    run_bounded,
    try_bounded,
    working_ops,
)

from gdlab.graph import Value
from gdlab.op import REGISTRY, Elementwise, Op, Reduction
from gdlab.op.extent import Tag, Verdict

# ops that keep no bucket axis of any sample: none but those whose samples have only axes that they cut
ALWAYS_REFUSED = {"slice", "affine_weights", "pack16"}  # codes and pairs are words, not entries
AT_LEAST = {"top_k_indices": "k"}  # the attribute below which there is no op of so few entries


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in working_ops()])
def test_an_op_of_the_active_entries_or_a_refusal(op: Op) -> None:
    cases = list(cases_of(op))
    wrong, kept = [], 0
    for case in cases:
        found = failure(case)
        kept += found is not None
        wrong += [found] if found else []
    assert cases and wrong == []
    assert (kept == 0) == (op.name in ALWAYS_REFUSED)


def failure(case: BucketCase) -> str | None:
    """Return the fault of a case: `""` where there is none, None where the case is refused."""
    bounded = try_bounded(case)
    if bounded is None:
        return None
    built, made, report = bounded
    tags, shape = report.tags.get(report.image[built.node], ()), built.graph.node(built.node).type.shape
    least = case.sample.attrs.get(AT_LEAST.get(case.op.name, ""), 0)
    for actual in sorted({n for n in (0, 1, 3, case.upper) if n == 0 or least <= n <= case.upper}):
        got = run_bounded(case, built, made, actual)
        behind = dead(shape, tags, case.upper, actual)
        if got[behind].any() or np.isnan(got[behind].astype(float)).any():
            return f"{case} at {actual}: no zeros behind the active entries"
        if actual == 0 and not tags:
            want, live = of_nothing(case, case.tags), got
        elif actual == 0:
            continue
        else:
            want, live = expected(case, actual, tags, shape), cut(got, tags, case.upper, actual)
        wide = np.max(np.abs(np.where(np.isfinite(want), want, 0.0)), initial=1.0)
        if not np.allclose(live.astype(float), want, rtol=1e-7, atol=2e-7 * wide, equal_nan=True):
            return f"{case} at {actual}: got {live.ravel()[:4]}, wanted {np.ravel(want)[:4]}"
    return ""


GRADIENTS = """matmul batch_matmul_bt block_matmul_at softmax log_softmax layer_norm rms_norm cumsum shift_inner max
    mean sum_rows bias_add where broadcast_to permute concat gather embedding scatter_add causal_attention
    full_attention cross_attention biased_attention conv2d max_pool_2d avg_pool_2d group_norm rope_positions
    cross_entropy_loss pairwise_squared_distance swiglu_concat"""


@pytest.mark.parametrize("name", GRADIENTS.split())
def test_gradients_are_those_of_the_active_entries(name: str) -> None:
    whole = [c for c in cases_of(REGISTRY[name]) if all(t.outer == 1 for tags in c.tags for t in tags)]
    floats = [c for c in whole if c.upper > 2 and len(c.sample.integers) < len(c.sample.shapes)]
    kept = (found for case in floats if (found := gradient_failure(case, 3)) is not None)
    some = list(itertools.islice(kept, 6))
    assert some and set(some) == {""}


def test_an_elementwise_op_and_a_fold_need_no_rule() -> None:
    stated = [op.name for op in working_ops() if op.follows and isinstance(op.kernel, (Elementwise, Reduction))]
    assert stated == []


@pytest.mark.parametrize("name", ["softmax", "matmul", "scatter_add", "cache_write", "sum", "argmax", "full_attention"])
def test_a_rule_without_its_mask_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails for an op whose mask, or whose replacement, is left out."""
    from gdlab.op import follow as module

    true = module._by_record

    def careless(op: Op, call: object) -> Verdict | None:
        verdict = true(op, call)
        return verdict and Verdict(verdict.operands, verdict.result)

    monkeypatch.setattr(module, "_by_record", careless)
    assert any(failure(case) for case in cases_of(REGISTRY[name]))


def test_a_body_that_reads_an_extent_is_refused() -> None:
    """1 / extent in a body is the extent at which it is compiled: with a bucket axis there it is refused."""
    from gdlab.op import Sample, fused, unregister

    def shares(x: Value) -> Value:
        """x over the number of its rows: f32[n, m] -> f32[n, m]."""
        return x.scale(1 / x.shape[0])

    op = fused(label="", samples=(Sample((4, 3)),))(shares)
    try:
        rows, columns = (BucketCase(op, op.samples[0], ((Tag(axis),),), extent) for axis, extent in ((0, 4), (1, 3)))
        assert failure(rows) is None
        assert failure(columns) == ""
    finally:
        unregister("shares")
