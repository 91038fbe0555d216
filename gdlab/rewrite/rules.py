"""Every rewrite, stated once in op notation; `@rule` adds one, and those of fused ops are made from their bodies.

A rule's id is its function's name. It must hold for every operand that fits its left side and its conditions.
"""

# mypy: disable-error-code="no-any-return"
# (`>>` of a Value is Any to the checker: only inside a rule does it make a Rewrite)

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_args, overload

from gdlab.errors import OptimizeError
from gdlab.graph import AttrVar, Graph, Value, scratch
from gdlab.op import ALL_PHASES, REGISTRY, Op, Phase, Safety, Sample
from gdlab.ops import (
    bias_add,
    bias_mul,
    broadcast_to,
    full,
    matmul,
    matmul_at,
    matmul_bt,
    neg,
    permute,
    relu,
    reshape,
    stop_gradient,
    transpose,
)
from gdlab.rewrite.pattern import (
    Condition,
    Matrix,
    Rewrite,
    Rule,
    attr_compose,
    check_shape_of,
    rank,
    shape_eq,
)
from gdlab.rewrite.prepare import fold_constant, hash_cons
from gdlab.types import Shape

__all__ = ["RULES", "RuleTable", "fused_rules", "rule"]

CSE, FOLD = "cse", "fold_constant"


class RuleTable:
    """All rules, in order: `for rule in rules`, `rules["neg_neg"]` by id or label, `rules.remove("neg_neg")`.

    The rules of fused ops are made anew when the registry changes; a removed one stays away.
    """

    def __init__(self) -> None:
        self._stated: dict[str, Rule] = {}
        self._removed: set[str] = set()
        self._of_op: dict[Op, tuple[Rule, ...]] = {}

    def __iter__(self) -> Iterator[Rule]:
        made = {r.name: r for op in list(REGISTRY.values()) for r in self._rules_of(op)}
        table = {n: r for n, r in self._stated.items() if _is_ours(r)} | made
        table |= {n: r for n, r in self._stated.items() if not _is_ours(r)}
        return iter([r for n, r in table.items() if n not in self._removed])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name in (r.name, r.label) for r in self)

    def __getitem__(self, name: str) -> Rule:
        return self.named([name], "rules", "rule")[0]

    def __repr__(self) -> str:
        return f"<{len(self)} rules>"

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def named(self, names: Iterable[str], where: str, what: str) -> list[Rule]:
        """The rules of these ids or labels (a label may stand for several); `OptimizeError` names the nearest."""
        table, found = list(self), []
        for name in names:
            hits = [r for r in table if name in (r.name, r.label)]
            if not hits:
                known = [text for r in table for text in (r.name, r.label)]
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; nearest: {near[0]}" if near else ""
                raise OptimizeError(where, what, repr(name), f"the id or label of a rule{hint}")
            found += hits
        return found

    def add(self, rule: Rule) -> None:
        """Add or replace a rule of this id."""
        self._stated[rule.name] = rule
        self._removed.discard(rule.name)

    def remove(self, name: str) -> None:
        """Take the rule of this id or label away until it is stated again."""
        for rule in self.named([name], "rules.remove", "rule"):
            self._removed.add(rule.name)

    def _rules_of(self, op: Op) -> tuple[Rule, ...]:
        if op not in self._of_op:
            self._of_op[op] = tuple(fused_rules(op))
        return self._of_op[op]


def _is_ours(rule: Rule) -> bool:
    return str(getattr(rule.function, "__module__", "")).startswith("gdlab.")


RULES = RuleTable()
Stated = Callable[..., Rewrite]


@overload
def rule(function: Stated, /) -> Rule: ...
@overload
def rule(
    *,
    safety: Safety = ...,
    label: str = ...,
    near: bool = ...,
    where: Sequence[Condition] = ...,
    phases: Sequence[Phase] = ...,
    on: bool = ...,
    samples: Sequence[Sample] = ...,
) -> Callable[[Stated], Rule]: ...
def rule(
    function: Stated | None = None,
    /,
    *,
    safety: Safety = "rounding",
    label: str = "",
    near: bool = False,
    where: Sequence[Condition] = (),
    phases: Sequence[Phase] = ALL_PHASES,
    on: bool = True,
    samples: Sequence[Sample] = (),
) -> Rule | Callable[[Stated], Rule]:
    """Decorator: a function that returns `left >> right` in op notation becomes a rule of the table.

    Parameters are operands (`Value`, or `Matrix` for rank 2) or attributes. A rule stated outside gdlab is tried at
    once on random operands (shapes from the samples of its ops, or from `samples`); where the sides differ it is
    refused. With `on=False` it takes part only when `enable` names it.
    """

    def state(stated: Stated) -> Rule:
        made = trace(stated, safety, label, tuple(where), tuple(phases), near, on, tuple(samples))
        if not _is_ours(made):
            from gdlab.rewrite.sound import check_rule

            check_rule(made)
        RULES.add(made)
        return made

    return state if function is None else state(function)


def trace(
    stated: Stated, safety: Safety, label: str, where: tuple[Condition, ...], phases: tuple[Phase, ...], near: bool,
    on: bool, samples: tuple[Sample, ...],
) -> Rule:  # fmt: skip
    """The record of a stated rule: its function run once on the variables of a pattern graph."""
    name = stated.__name__
    _check_words(name, safety, phases, where)
    kinds = inspect.get_annotations(stated, eval_str=True)
    with scratch(pattern=True) as g:
        arguments = [_variable(g, p, kinds.get(p, Value)) for p in inspect.signature(stated).parameters]
        result = stated(*arguments)
    if not isinstance(result, Rewrite):
        raise OptimizeError(f"rule {name}", "result", type(result).__name__, "left >> right, both in op notation")
    matrices = [rank(p, 2) for p, kind in kinds.items() if kind == Matrix]
    conditions = (*matrices, *where)
    made = Rule(name, label or name, safety, stated, g, result.left.id, g.own(result.right).id, conditions, phases,
                near, on, samples)  # fmt: skip
    check_shape_of(made)
    return made


def _variable(g: Graph, name: str, kind: Any) -> Value | AttrVar:
    operand = Value in (kind, *get_args(kind))
    return g.append("var", (), (("name", name),), g.value_type) if operand else AttrVar(name)


def _check_words(name: str, safety: Safety, phases: tuple[Phase, ...], where: tuple[Condition, ...]) -> None:
    if safety not in get_args(Safety):
        raise OptimizeError(f"rule {name}", "safety", repr(safety), f"one of {', '.join(get_args(Safety))}")
    lost = [p for p in phases if p not in ALL_PHASES]
    if lost:
        raise OptimizeError(f"rule {name}", "phases", repr(lost[0]), f"some of {', '.join(ALL_PHASES)}")
    for condition in where:
        if not isinstance(condition, Condition):
            raise OptimizeError(f"rule {name}", "where", repr(condition), 'conditions such as single_use("x")')


# the rules of fused ops -----------------------------------------------------------------------------------------------
def fused_rules(op: Op) -> Iterator[Rule]:
    """body → op, one rule for each value of a Literal attribute; none for an op without a label."""
    for i, (fixed, label) in enumerate(op.variants()):
        name = f"fuse_{op.name.removeprefix('fused_')}" + "".join(f"_{v}" for v in fixed.values() if i)
        pattern = op.pattern(**fixed)
        with pattern:
            operands = [Value(pattern, n.id) for n in pattern.nodes[: len(op.operands)]]
            attrs = {p.name: AttrVar(p.name) for p in op.attributes} | fixed
            left, right = pattern.output_ids[0], op(*operands, **attrs).id
        yield Rule(name, label, op.safety, op.rule, pattern, left, right, (), op.phases, near=True)


# the rules ------------------------------------------------------------------------------------------------------------
RULES.add(Rule(CSE, "CSE", "exact", hash_cons))
RULES.add(Rule(FOLD, "Fold Constant", "rounding", fold_constant))


@rule(safety="exact", label="Neg∘Neg→x")
def neg_neg(x: Value) -> Rewrite:
    """−(−x) is x."""
    return neg(neg(x)) >> x


@rule(safety="exact", label="Transpose∘Transpose→x")
def transpose_transpose(x: Value) -> Rewrite:
    """(xᵀ)ᵀ is x."""
    return transpose(transpose(x)) >> x


@rule(safety="exact", label="Relu∘Relu→Relu")
def relu_relu(x: Value) -> Rewrite:
    """A second relu changes nothing."""
    return relu(relu(x)) >> relu(x)


@rule(safety="exact", label="Add+Neg→Sub")
def add_neg(a: Value, b: Value) -> Rewrite:
    """a + (−b) is a − b."""
    return a + -b >> a - b


@rule(safety="exact", label="Sub→Add+Neg")
def sub_to_add_neg(a: Value, b: Value) -> Rewrite:
    """a − b is a + (−b): lets a − (−b) become a + b."""
    return a - b >> a + -b


@rule(safety="exact", label="Reshape∘Reshape→Reshape")
def reshape_reshape(x: Value, s: Shape, t: Shape) -> Rewrite:
    """Only the last of two reshapes counts."""
    return reshape(reshape(x, s), t) >> reshape(x, t)


@rule(safety="exact", label="Reshape→x", where=(shape_eq("x", "s"),))
def reshape_to_own_shape(x: Value, s: Shape) -> Rewrite:
    """A reshape to the own shape is nothing."""
    return reshape(x, s) >> x


@rule(safety="exact", label="BroadcastTo→x", where=(shape_eq("x", "s"),))
def broadcast_to_own_shape(x: Value, s: Shape) -> Rewrite:
    """A broadcast to the own shape is nothing."""
    return broadcast_to(x, s) >> x


@rule(safety="exact", label="Permute∘Permute→Permute", where=(attr_compose("p", "q", "r"),))
def permute_permute(x: Value, p: Shape, q: Shape, r: Shape) -> Rewrite:
    """Two reorderings of the axes are one."""
    return permute(permute(x, p), q) >> permute(x, r)


# p after p is p for the identity alone: permutations are a group
@rule(safety="exact", label="Permute→x", where=(attr_compose("p", "p", "p"),))
def permute_identity(x: Value, p: Shape) -> Rewrite:
    """Axes in their own order stay where they are."""
    return permute(x, p) >> x


@rule(safety="exact", label="Mul∘One→x")
def mul_by_one(x: Value, s: Shape) -> Rewrite:
    """x · 1 is x: what the seed of a gradient leaves behind."""
    return x * full(s, 1.0) >> x


@rule(safety="exact", label="Add+BroadcastTo→BiasAdd", near=True, where=(rank("b", 1), shape_eq("b", "x", last=True)))
def broadcast_to_bias_add(x: Value, b: Value, s: Shape) -> Rewrite:
    """A vector added to every row is a bias."""
    return x + broadcast_to(b, s) >> bias_add(x, b)


@rule(safety="exact", label="Mul+BroadcastTo→BiasMul", near=True, where=(rank("b", 1), shape_eq("b", "x", last=True)))
def broadcast_to_bias_mul(x: Value, b: Value, s: Shape) -> Rewrite:
    """A vector multiplied into every row is a scale per column."""
    return x * broadcast_to(b, s) >> bias_mul(x, b)


@rule(safety="exact", label="BiasAdd→Add+BroadcastTo", where=(shape_eq("x", "s"),))
def bias_add_opened(x: Value, b: Value, s: Shape) -> Rewrite:
    """A bias is a broadcast and a sum, where the broadcast is there already."""
    return bias_add(x, b) >> x + broadcast_to(b, s)


@rule(safety="exact", label="BiasMul→Mul+BroadcastTo", where=(shape_eq("x", "s"),))
def bias_mul_opened(x: Value, b: Value, s: Shape) -> Rewrite:
    """A scale per column is a broadcast and a product, where the broadcast is there already."""
    return bias_mul(x, b) >> x * broadcast_to(b, s)


@rule(safety="rounding", label="MatMul+Transpose→MatMulBT")
def matmul_of_transposed_b(a: Value, b: Value) -> Rewrite:
    """A product reads its second operand transposed without a copy."""
    return matmul(a, transpose(b)) >> matmul_bt(a, b)


@rule(safety="rounding", label="Transpose+MatMul→MatMulAT")
def matmul_of_transposed_a(a: Value, b: Value) -> Rewrite:
    """A product reads its first operand transposed without a copy."""
    return matmul(transpose(a), b) >> matmul_at(a, b)


@rule(safety="exact", label="StopGradient→x", phases=("full",))
def drop_stop_gradient(x: Value) -> Rewrite:
    """Once the gradients are there, `stop_gradient` has done its work."""
    return stop_gradient(x) >> x

