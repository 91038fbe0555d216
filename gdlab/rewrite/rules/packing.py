"""The rules that put the weights of neighbouring products side by side, so that one product reads them all.

The weights must be parameters that nothing else reads: then the packed one is their storage (`op.storage`).
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from gdlab.base.types import f32
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import geglu, geglu_concat, matmul, matmul_bt, swiglu, swiglu_concat
from gdlab.ops.packed import packed
from gdlab.rewrite.engine.siblings import siblings_of
from gdlab.rewrite.rules.conditions import dtype, is_param, not_output, rank, shape_eq, single_use
from gdlab.rewrite.rules.pattern import Rewrite, Rule
from gdlab.rewrite.rules.table import RULES, rule

__all__ = ["PACKING", "PRODUCTS"]

PACKING = ("pack_swiglu", "pack_swiglu_bt", "pack_geglu", "pack_geglu_bt")
PRODUCTS = ("pack_products", "pack_products_bt")  # of any number and width; only where they are enabled

WEIGHTS = (
    is_param("gate"), is_param("up"), dtype("gate", f32), dtype("up", f32), shape_eq("up", "gate"),
    not_output("gate"), not_output("up"), single_use("gate"), single_use("up"),
)  # fmt: skip
COLUMNS = (Sample((3, 4), (4, 5), (4, 5)), Sample((1, 2), (2, 1), (2, 1)))
ROWS = (Sample((3, 4), (5, 4), (5, 4)), Sample((1, 2), (1, 2), (1, 2)))


@rule(
    safety="rounding", label="SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)", near=True, where=WEIGHTS, samples=COLUMNS
)
def pack_swiglu(h: Value, gate: Value, up: Value) -> Rewrite:
    """Gate and up of a SwiGLU in one product: their weights lie column by column in one."""
    return swiglu(matmul(h, gate), matmul(h, up)) >> swiglu_concat(matmul(h, packed([gate, up], 1)))


@rule(
    safety="rounding", label="SwiGLU(MatMulBT,MatMulBT)→SwiGLUConcat(MatMulBT)", near=True, where=WEIGHTS, samples=ROWS
)
def pack_swiglu_bt(h: Value, gate: Value, up: Value) -> Rewrite:
    """The same of weights [out, in]: they lie one behind the other."""
    return swiglu(matmul_bt(h, gate), matmul_bt(h, up)) >> swiglu_concat(matmul_bt(h, packed([gate, up], 0)))


@rule(safety="rounding", label="GeGLU(MatMul,MatMul)→GeGLUConcat(MatMul)", near=True, where=WEIGHTS, samples=COLUMNS)
def pack_geglu(h: Value, gate: Value, up: Value) -> Rewrite:
    """Gate and up of a GeGLU in one product."""
    return geglu(matmul(h, gate), matmul(h, up)) >> geglu_concat(matmul(h, packed([gate, up], 1)))


@rule(
    safety="rounding", label="GeGLU(MatMulBT,MatMulBT)→GeGLUConcat(MatMulBT)", near=True, where=WEIGHTS, samples=ROWS
)
def pack_geglu_bt(h: Value, gate: Value, up: Value) -> Rewrite:
    """The same of weights [out, in]."""
    return geglu(matmul_bt(h, gate), matmul_bt(h, up)) >> geglu_concat(matmul_bt(h, packed([gate, up], 0)))


# query, key and value -------------------------------------------------------------------------------------------------
WEIGHT = is_param("w"), dtype("w", f32), rank("w", 2), not_output("w"), single_use("w")
for name, label in zip(PRODUCTS, ("MatMul×n→PackedMatMul", "MatMulBT×n→PackedMatMulBT"), strict=True):
    RULES.add(Rule(name, label, "rounding", siblings_of, where=WEIGHT, near=True, on=False))
