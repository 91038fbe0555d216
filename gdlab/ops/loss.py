"""Losses: one number, f32[1], of a prediction and a target."""

from __future__ import annotations

import numpy as np

from gdlab.graph import Value
from gdlab.op import Bad, Grads, Sample, Shader, fused, want
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.norm import SOFTMAX_ROW, column_each, log_softmax, logarithms_of_rows, row_kernel, shifted_powers

PAIRS = (Sample((3, 5), (3, 5)), Sample((2, 300), (2, 300), low=0), Sample((2, 3, 4), (2, 3, 4)), Sample((1,), (1,)))
ROWS_OF_TWO = (
    *(Sample(shape, shape, low=low) for shape, low in (((3, 5), 0), ((2, 300), -3), ((2, 257), -3), ((4, 1), 0))),
    Sample((2, 3), (2, 3), values=([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], None)),
)
UNEQUAL = (
    Bad(("f32[3, 5]", "f32[5]"), "given f32[3, 5] and f32[5], wanted equal shapes"),
    Bad(("f32[3]", "u32[3]"), "wanted f32 operands"),
)


def equal_shapes(*operands: Value) -> None:
    """Refuse operands that would broadcast."""
    want(len({v.shape for v in operands}) == 1, "equal shapes")


def _two_matrices(logits: Value, labels: Value) -> None:
    want(logits.shape == labels.shape and logits.type.rank == 2, "logits[b, n] and labels[b, n]")


@fused(
    label="",
    family="loss",
    samples=(Sample((3, 5), (3, 5), low=0), Sample((2, 300), (2, 300), low=-3), Sample((4, 1), (4, 1)),
             Sample((2, 3), (2, 3), values=([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]))),
    bad=(Bad(("f32[3, 5]", "f32[5]"), "given f32[3, 5] and f32[5], wanted logits[b, n] and labels[b, n]"),
         Bad(("f32[5]", "f32[5]"), "wanted logits[b, n] and labels[b, n]")),
    check=_two_matrices,
    one_hot=1,
)  # fmt: skip
def cross_entropy_loss(logits: Value, labels: Value) -> Value:
    """−(1/b) Σ labels · log_softmax(logits): f32[b, n], f32[b, n] -> f32[1]. Labels are weights of any sum."""
    return -label_log_likelihood(logits, labels).mean_all()


@cross_entropy_loss.vjp
def _(g: Value, out: Value, logits: Value, labels: Value) -> Grads:
    """∂logits = c·(softmax(logits)·Σ labels − labels),  ∂labels = −c · log_softmax(logits) with c = g / rows(logits)"""

    def share() -> Value:
        return g.scale(1 / logits.shape[0])

    return (
        lambda: cross_entropy_logits_grad(logits, labels, share()),
        lambda: -(log_softmax(logits) * share()),
    )


def _likelihood_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    logarithms = builder.temporary(shape)
    logarithms_of_rows(builder, builder.operand(0, shape), logarithms)
    builder.call(np.multiply, logarithms, builder.operand(1, shape), logarithms)
    builder.row_sums(logarithms, builder.out((shape[0], 1)))


@fused(
    label="",
    family="loss",
    private=True,
    kernel=Shader(
        f"label_log_likelihood.wgsl + {SOFTMAX_ROW}", column_each(8), in_bounds=True, numpy_form=_likelihood_form
    ),
    samples=ROWS_OF_TWO,
    check=_two_matrices,
)
def label_log_likelihood(x: Value, labels: Value) -> Value:
    """Σ labels · log_softmax(x) of each row: f32[b, n], f32[b, n] -> f32[b]."""
    return (labels * log_softmax(x)).sum_inner()


def _one_share(logits: Value, labels: Value, share: Value) -> None:
    want(logits.shape == labels.shape and share.shape == (1,), "logits[b, n], labels[b, n] and share[1]")


@fused(
    label="",
    family="loss",
    private=True,
    samples=(Sample((3, 5), (3, 5), (1,), low=0), Sample((2, 300), (2, 300), (1,)), Sample((4, 1), (4, 1), (1,))),
    check=_one_share,
)
def cross_entropy_logits_grad(logits: Value, labels: Value, share: Value) -> Value:
    """share · (softmax(logits) · Σ labels − labels): f32[b, n], f32[b, n], f32[1] -> f32[b, n]."""
    return softmax_residual(logits, labels) * share


def _residual_form(builder: KernelBuilder, c: KernelConstants) -> None:
    shape = c["ROWS"], c["WIDTH"]
    out, column, labels = builder.out(shape), builder.temporary((shape[0], 1)), builder.operand(1, shape)
    powers, total = shifted_powers(builder, builder.operand(0, shape), out)
    builder.row_sums(labels, column)
    builder.call(np.divide, column, total, column)
    builder.call(np.multiply, powers, column, powers)
    builder.call(np.subtract, powers, labels, out)


@fused(
    label="",
    family="loss",
    private=True,
    kernel=row_kernel("softmax_residual", 8, _residual_form, calls=SOFTMAX_ROW),
    samples=ROWS_OF_TWO,
    check=_two_matrices,
)
def softmax_residual(x: Value, labels: Value) -> Value:
    """softmax(x) · Σ labels − labels, each row for itself: f32[b, n], f32[b, n] -> f32[b, n]."""
    return log_softmax(x).exp() * labels.sum_inner() - labels


_LO, _HI = 1e-7, 1 - 1e-7
# the gradient of t where p is 0 and 1
_AT_ENDS = [float(np.log1p(-c) - np.log(c)) for c in np.array([_LO, _HI], np.float32).astype(float)]


@fused(
    label="",
    family="loss",
    samples=(*(Sample(*s.shapes, low=0.05, high=0.95) for s in PAIRS),
             Sample((2,), (2,), values=([0.0, 1.0], [1.0, 0.5]), grads=([0.0, 0.0], [t / 2 for t in _AT_ENDS]))),
    bad=UNEQUAL,
    check=equal_shapes,
)  # fmt: skip
def bce_loss(p: Value, t: Value) -> Value:
    """−mean(t ln c + (1 − t) ln(1 − c)), c = clamp(p, 1e-7, 1 − 1e-7): f32[...], f32[...] -> f32[1].

    Finite for p = 0 and 1, where the gradient of p is 0.
    """
    c = p.clamp(_LO, _HI)
    return -(t * c.log() + (1 - t) * (1 - c).log()).mean_all()


@fused(label="", family="loss", samples=PAIRS, bad=UNEQUAL, check=equal_shapes)
def mse_loss(p: Value, t: Value) -> Value:
    """Mean of (p − t)²: f32[...], f32[...] -> f32[1]."""
    return (p - t).square().mean_all()


@fused(
    label="",
    family="loss",
    samples=(*PAIRS, Sample((2,), (2,), values=([1.0, 2.0], [1.0, 0.0]), grads=([0.0, 0.5], [0.0, -0.5]))),
    bad=UNEQUAL,
    check=equal_shapes,
)
def l1_loss(p: Value, t: Value) -> Value:
    """Mean of |p − t|: f32[...], f32[...] -> f32[1]; gradient 0 where both are equal."""
    return (p - t).abs().mean_all()
