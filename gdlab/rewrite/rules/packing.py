"""Rules that put the weights of neighbouring products side by side, so that one product reads them all.

The weights must be parameters that nothing else reads: then the packed one is their storage (`op.storage`). Gate and up
are found by patterns. How many products of one operand there are differs, so no pattern states it: `siblings_of` finds
them in the graph.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gdlab.base.types import f32
from gdlab.graph import Value
from gdlab.op import Sample
from gdlab.ops import geglu, geglu_concat, matmul, matmul_bt, swiglu, swiglu_concat
from gdlab.ops.packed import packed
from gdlab.rewrite.rules.conditions import Condition, Match, dtype, is_param, not_output, rank, shape_eq, single_use
from gdlab.rewrite.rules.pattern import Refusal, Rewrite, Rule
from gdlab.rewrite.rules.prepare import Prepared, uses_of
from gdlab.rewrite.rules.rule_table import RULES, rule

__all__ = ["PACKED_PRODUCT", "PACKING", "PRODUCTS", "PreparedView", "Siblings", "families", "siblings_of"]

PACKING = ("pack_swiglu", "pack_swiglu_bt", "pack_geglu", "pack_geglu_bt")
PACKED_PRODUCT = {"pack_products": ("matmul", 1), "pack_products_bt": ("matmul_bt", 0)}  # rule: op, axis of the pack
PRODUCTS = tuple(PACKED_PRODUCT)  # of any number and width; only where they are enabled
MOST = 6  # products that one dispatch makes: its operands and results are all the buffers that WebGPU promises

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
    """swiglu(h · gate, h · up) → swiglu_concat(h · packed([gate, up], 1))

    Gate and up of a SwiGLU in one product: their weights lie column by column in one.
    """
    return swiglu(matmul(h, gate), matmul(h, up)) >> swiglu_concat(matmul(h, packed([gate, up], 1)))


@rule(
    safety="rounding", label="SwiGLU(MatMulBT,MatMulBT)→SwiGLUConcat(MatMulBT)", near=True, where=WEIGHTS, samples=ROWS
)
def pack_swiglu_bt(h: Value, gate: Value, up: Value) -> Rewrite:
    """swiglu(h · gateᵀ, h · upᵀ) → swiglu_concat(h · packed([gate, up], 0)ᵀ)

    The same of weights [out, in]: they lie one behind the other.
    """
    return swiglu(matmul_bt(h, gate), matmul_bt(h, up)) >> swiglu_concat(matmul_bt(h, packed([gate, up], 0)))


@rule(safety="rounding", label="GeGLU(MatMul,MatMul)→GeGLUConcat(MatMul)", near=True, where=WEIGHTS, samples=COLUMNS)
def pack_geglu(h: Value, gate: Value, up: Value) -> Rewrite:
    """geglu(h · gate, h · up) → geglu_concat(h · packed([gate, up], 1))

    Gate and up of a GeGLU in one product.
    """
    return geglu(matmul(h, gate), matmul(h, up)) >> geglu_concat(matmul(h, packed([gate, up], 1)))


@rule(
    safety="rounding", label="GeGLU(MatMulBT,MatMulBT)→GeGLUConcat(MatMulBT)", near=True, where=WEIGHTS, samples=ROWS
)
def pack_geglu_bt(h: Value, gate: Value, up: Value) -> Rewrite:
    """geglu(h · gateᵀ, h · upᵀ) → geglu_concat(h · packed([gate, up], 0)ᵀ)

    The same of weights [out, in].
    """
    return geglu(matmul_bt(h, gate), matmul_bt(h, up)) >> geglu_concat(matmul_bt(h, packed([gate, up], 0)))


# products of one operand (query, key and value) -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Siblings:
    """Products `op` of `left` with different weights, in the order of the graph; `stops`: where their columns end in
    the wider product. `ids` are two that the graph does not have: of the pack, and of the wider product."""

    rule: str
    op: str
    axis: int
    left: int
    weights: tuple[int, ...]
    products: tuple[int, ...]
    stops: tuple[int, ...]
    ids: tuple[int, int]

    @property
    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(product, start, stop) of each product's columns."""
        return zip(self.products, (0, *self.stops), self.stops, strict=False)


def siblings_of(prepared: Prepared, rules: Iterable[Rule]) -> tuple[Siblings, ...]:
    """[h · a, h · b] → columns(h · packed([a, b], 1))

    Compute products of one operand as column ranges of one product, with their weights side by side.

    Return all that the rules of `PACKED_PRODUCT` among `rules` find in a graph, at most `MOST` products in each.
    """
    nodes, siblings = prepared.graph._nodes, list[Siblings]()
    for packing in rules:
        if packing.name not in PACKED_PRODUCT:
            continue
        op, axis = PACKED_PRODUCT[packing.name]
        view = PreparedView(prepared)
        for left, products in families(prepared, op).items():
            fit = [id for id in products if view.refusal(packing, id) is None]
            for part in _parts(fit) if len(fit) > 1 else ():
                weights = tuple([prepared.inputs[id][1] for id in part])
                stops = tuple(accumulate(nodes[w].type.shape[axis] for w in weights))
                first = len(nodes) + 2 * len(siblings)
                siblings.append(Siblings(packing.name, op, axis, left, weights, tuple(part), stops, (first, first + 1)))
    return tuple(siblings)


def families(prepared: Prepared, op: str) -> dict[int, list[int]]:
    """Return the products of each left operand that has several, one of which reads a parameter."""
    nodes, products = prepared.graph._nodes, dict[int, list[int]]()
    for id in prepared.kept:
        if nodes[id].op == op:
            products.setdefault(prepared.inputs[id][0], []).append(id)
    return {
        left: ids
        for left, ids in products.items()
        if len(ids) > 1 and any(nodes[prepared.inputs[id][1]].op == "parameter" for id in ids)
    }


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut a sequence into parts of nearly equal length, none longer than `MOST`."""
    count = -(-len(ids) // MOST)
    bounds = [len(ids) * k // count for k in range(count + 1)]
    return (ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False))


class PreparedView:
    """A prepared graph with the uses and outputs that conditions ask for."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.uses = [0] * len(prepared.graph)
        for id, count in uses_of(prepared).items():
            self.uses[id] = count
        self.outputs = frozenset(prepared.same[id] for id in prepared.graph.output_ids)

    def refusal(self, rule: Rule, product: int) -> tuple[Condition, Refusal] | None:
        """Return the first condition that the weight of a product does not meet, and the reason."""
        match = Match(self.prepared.graph, {"w": self.prepared.inputs[product][1]}, {}, (product,), self.uses,
                      self.outputs)  # fmt: skip
        return next(((c, r) for c in rule.where if (r := c.check(match)) is not None), None)


WEIGHT = is_param("w"), dtype("w", f32), rank("w", 2), not_output("w"), single_use("w")
for name, label in zip(PRODUCTS, ("MatMul×n→PackedMatMul", "MatMulBT×n→PackedMatMulBT"), strict=True):
    RULES.add(Rule(name, label, "rounding", siblings_of, where=WEIGHT, near=True, on=False))
