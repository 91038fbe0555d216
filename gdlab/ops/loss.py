"""Losses: one number, f32[1], of a prediction and a target."""

from __future__ import annotations

import numpy as np

from gdlab.graph import Value
from gdlab.op import Bad, Grads, Sample, fused, want
from gdlab.ops.norm import log_softmax

PAIRS = (Sample((3, 5), (3, 5)), Sample((2, 300), (2, 300), low=0), Sample((2, 3, 4), (2, 3, 4)), Sample((1,), (1,)))
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
    return -(labels * log_softmax(logits)).sum_inner().mean_all()


@cross_entropy_loss.vjp
def _(g: Value, out: Value, logits: Value, labels: Value) -> Grads:
    """∂logits = c·(softmax(logits)·Σ labels − labels),  ∂labels = −c · log_softmax(logits) with c = g / rows(logits)"""

    def share() -> Value:
        return g.scale(1 / logits.shape[0])

    return (
        lambda: cross_entropy_logits_grad(logits, labels, share()),
        lambda: -(log_softmax(logits) * share()),
    )


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
    return (log_softmax(logits).exp() * labels.sum_inner() - labels) * share


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
