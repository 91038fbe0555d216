"""Rules that find losses in a graph of simpler ops: cross entropy, squared and absolute errors."""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import abs, log_softmax, mean, mean_all, neg, scale, sum_all, sum_inner
from gdlab.rewrite.rules.conditions import attr_eq, rank
from gdlab.rewrite.rules.measures import all_axes, last_axis, one_over, one_over_rows
from gdlab.rewrite.rules.pattern import Rewrite
from gdlab.rewrite.rules.rule_table import recognizes, rule

__all__: list[str] = []


# spellings of parts ---------------------------------------------------------------------------------------------------
ALL = tuple(Sample(shape, attrs={"axes": tuple(range(len(shape)))}) for shape in ((3, 4), (2, 3, 4), (4,)))


@rule(safety="rounding", label="Sum→SumAll", where=(attr_eq("axes", all_axes("x")),), samples=ALL)
def sum_over_all_axes(x: Value, axes: Shape) -> Rewrite:
    """sum(x, axes) → sum_all(x)

    A sum over all axes.
    """
    return ops.sum(x, axes, False) >> sum_all(x)


@rule(safety="rounding", label="Mean→MeanAll", where=(attr_eq("axes", all_axes("x")),), samples=ALL)
def mean_over_all_axes(x: Value, axes: Shape) -> Rewrite:
    """mean(x, axes) → mean_all(x)

    A mean over all axes.
    """
    return mean(x, axes, False) >> mean_all(x)


LAST = tuple(Sample(shape, attrs={"axes": (len(shape) - 1,)}) for shape in ((3, 4), (2, 3, 4)))


@rule(safety="rounding", label="MeanAll∘Sum→MeanAll∘SumInner", where=(attr_eq("axes", last_axis("x")),), samples=LAST)
def mean_of_sums(x: Value, axes: Shape) -> Rewrite:
    """mean_all(sum(x, axes)) → mean_all(sum_inner(x))

    The mean of sums along the last axis, whether they keep it or not.
    """
    return mean_all(ops.sum(x, axes, False)) >> mean_all(sum_inner(x))


@rule(safety="rounding", label="MeanAll∘Neg→Neg∘MeanAll")
def neg_of_mean_all(x: Value) -> Rewrite:
    """mean_all(−x) → −mean_all(x)"""
    return mean_all(neg(x)) >> neg(mean_all(x))


@rule(safety="rounding", label="SumAll∘Neg→Neg∘SumAll")
def neg_of_sum_all(x: Value) -> Rewrite:
    """sum_all(−x) → −sum_all(x)"""
    return sum_all(neg(x)) >> neg(sum_all(x))


@rule(safety="rounding", label="SumInner∘Neg→Neg∘SumInner")
def neg_of_sum_inner(x: Value) -> Rewrite:
    """sum_inner(−x) → −sum_inner(x)"""
    return sum_inner(neg(x)) >> neg(sum_inner(x))


# cross entropy --------------------------------------------------------------------------------------------------------
@rule(safety="rounding", label="Neg·LogSoftmax→Neg∘Mul")
def neg_of_labels(labels: Value, logits: Value) -> Rewrite:
    """(−labels) · log_softmax(logits) → −(labels · log_softmax(logits))"""
    return neg(labels) * log_softmax(logits) >> neg(labels * log_softmax(logits))


@rule(safety="rounding", label="Neg∘LogSoftmax→Neg∘Mul")
def neg_of_log_softmax(labels: Value, logits: Value) -> Rewrite:
    """labels · (−log_softmax(logits)) → −(labels · log_softmax(logits))"""
    return labels * neg(log_softmax(logits)) >> neg(labels * log_softmax(logits))


ROWS = (Sample((3, 4), (3, 4), attrs={"c": one_over(3)}), Sample((2, 5), (2, 5), attrs={"c": 0.5}))


@recognizes("CrossEntropyLoss", where=(rank("labels", 2), attr_eq("c", one_over_rows("labels"))), samples=ROWS)
def mean_over_rows(labels: Value, logits: Value, c: float) -> Rewrite:
    """c · sum_all(labels · log_softmax(logits)) → mean_all(sum_inner(labels · log_softmax(logits)))

    The sum of labels · log_softmax divided by the number of rows is the mean of the rows' sums.
    """
    product = labels * log_softmax(logits)
    return scale(sum_all(product), c) >> mean_all(sum_inner(product))


@rule(safety="rounding", label="Scale∘Neg∘SumAll→Neg∘Scale∘SumAll")
def neg_of_scaled_sum(x: Value, c: float) -> Rewrite:
    """c · (−sum_all(x)) → −(c · sum_all(x))"""
    return scale(neg(sum_all(x)), c) >> neg(scale(sum_all(x), c))


@recognizes("CrossEntropyLoss", where=(rank("labels", 2),))
def recognize_cross_entropy_loss(labels: Value, logits: Value) -> Rewrite:
    """−mean_all(sum_inner(labels · log_softmax(logits))) → cross_entropy_loss(logits, labels)"""
    return neg(mean_all(sum_inner(labels * log_softmax(logits)))) >> ops.cross_entropy_loss(logits, labels)


# errors ---------------------------------------------------------------------------------------------------------------
@recognizes("MseLoss")
def recognize_mse_loss(p: Value, t: Value) -> Rewrite:
    """mean_all((p − t) · (p − t)) → mse_loss(p, t)"""
    return mean_all((p - t) * (p - t)) >> ops.mse_loss(p, t)


@recognizes("L1Loss")
def recognize_l1_loss(p: Value, t: Value) -> Rewrite:
    """mean_all(|p − t|) → l1_loss(p, t)"""
    return mean_all(abs(p - t)) >> ops.l1_loss(p, t)
