"""The parameter update of a training plan, as dispatches in the same record: SGD, Adam, AdamW or LaProp, clipped and
accumulated as a `Recipe` says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from gdlab.base.types import Shape, TensorType, f32
from gdlab.op import REGISTRY, Axis, Elementwise
from gdlab.op.storage import Part
from gdlab.plan import labels, variants
from gdlab.plan.dispatch import Arg, Dispatch, Gather, KernelName, Operand, PointOp, Reduce, Result
from gdlab.plan.records import Buffer, ExecutionPlan, Update
from gdlab.plan.schedule import numbered, scheduled

Rule = Literal["none", "sgd", "adam", "adamw", "laprop"]
_NONE: Mapping[str, float] = MappingProxyType({})
_ADAM = ("lr", "beta1", "beta2", "epsilon", "correction1", "correction2")


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an update kernel reads per step, its state buffers by prefix of their names, and flops per element."""

    scalars: tuple[str, ...]
    state: tuple[str, ...]
    flops: int


KERNELS: Mapping[Rule, Kernel] = {
    "sgd": Kernel(("lr",), (), 2),
    "adam": Kernel(_ADAM, ("adam_m.", "adam_v."), 13),
    "adamw": Kernel((*_ADAM, "decay"), ("adam_m.", "adam_v."), 15),
    "laprop": Kernel(_ADAM, ("adam_m.", "adam_v."), 14),
}


@dataclass(frozen=True, slots=True)
class Clip:
    """A bound of gradients: `norm`: all together have an L2 norm of at most `limit`; `adaptive`: that of each parameter
    is at most `limit` times the norm of the parameter, which counts as at least `floor`."""

    kind: Literal["norm", "adaptive"]
    limit: float
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """An update: the rule, a factor of the rate by parameter name (default 1; of a derived one by source), clipping,
    and how many steps one update adds up."""

    rule: Rule = "none"
    multipliers: Mapping[str, float] = field(default_factory=dict)
    clip: Clip | None = None
    accumulate: int = 1


def update_of(plan: ExecutionPlan, recipe: Recipe, state: Sequence[Buffer] = ()) -> Update:
    """The dispatches of a recipe. `state` are the state buffers that exist already, in order of their ids: they are
    found again by name, and new ones are added after them, so that moments outlive a switch of the rule."""
    if recipe.rule == "none":
        return Update("none", (), tuple(state), ())
    return _Writer(plan, recipe, state).write()


def sgd_update(plan: ExecutionPlan, multipliers: Mapping[str, float] = _NONE) -> Update:
    """p ← p − lr · factor · g, one dispatch per parameter."""
    return update_of(plan, Recipe("sgd", multipliers))


def adam_update(plan: ExecutionPlan, multipliers: Mapping[str, float] = _NONE) -> Update:
    """m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p − lr · factor · m·c₁ / (√(v·c₂) + ε): one dispatch each."""
    return update_of(plan, Recipe("adam", multipliers))


class _Writer:
    """The dispatches of one update while they are written."""

    def __init__(self, plan: ExecutionPlan, recipe: Recipe, state: Sequence[Buffer]) -> None:
        self.plan, self.recipe = plan, recipe
        self.state = {b.name: b for b in state}
        names = {b: name for name, b in plan.stored_params}
        self.derived = {d.name: d for d in plan.derived_params}
        self.pairs = [(names[p], p, g) for p, g in plan.param_grad_pairs]
        self.node = min((plan.buffers[p].nodes[0] for p, _ in plan.param_grad_pairs), default=0)  # of sums over all
        self.dispatches: list[Dispatch] = []

    def write(self) -> Update:
        """Accumulate, clip, update, clear: whatever of it is wanted."""
        kernel, gradient = KERNELS[self.recipe.rule], {p: g for _, p, g in self.pairs}
        if self.recipe.accumulate > 1:
            gradient = {p: self._accumulate(name, p, g) for name, p, g in self.pairs}
        early = len(self.dispatches)
        factor = self._factors(gradient)
        moments = []
        for name, p, _ in self.pairs:
            held = tuple(self._state(prefix + name, self.plan.buffers[p].shape, p) for prefix in kernel.state)
            self._rule(name, p, gradient[p], held, factor)
            moments += [(p, held[0], held[1])] if len(held) == 2 else []
        if self.recipe.accumulate > 1:
            for _, p, _ in self.pairs:
                self._in_place("clear", p, (), (gradient[p],))
        order, groups = scheduled(self.dispatches, False)
        first, behind = len(self.plan.dispatches), len(self.plan.groups)
        made = (replace(d, index=first + d.index, group=behind + d.group) for d in
                numbered(self.dispatches, order, groups))  # fmt: skip
        return Update(self.recipe.rule, tuple(made), tuple(self.state.values()), tuple(moments), early)

    # the parts --------------------------------------------------------------------------------------------------------
    def _accumulate(self, name: str, p: int, gradient: int) -> int:
        """acc += g / n; the buffer."""
        total = self._state(f"grad_sum.{name}", self.plan.buffers[p].shape, p)
        self._in_place("accumulate", p, (self._operand(gradient),), (total,), 1 / self.recipe.accumulate, flops=2)
        return total

    def _rule(self, name: str, p: int, gradient: int, held: tuple[int, ...], factors: Mapping[str, int]) -> None:
        """The rule itself, on gradients times what `factors` hold; of a derived parameter the whole at once, or where
        its sources differ in multiplier or factor, each range by itself."""
        kernel, parts = KERNELS[self.recipe.rule], self._parts(name, p)
        how = {source: (float(self.recipe.multipliers.get(source, 1.0)), factors.get(source)) for source in parts}
        if len(set(how.values())) == 1:
            parts = dict.fromkeys([*parts][:1])
        for source, part in parts.items():
            multiplier, factor = how[source]
            operands = (self._operand(gradient), *(() if factor is None else (Operand(factor, (1,), "scalar"),)))
            self._in_place(self.recipe.rule, p, operands, (p, *held), multiplier, kernel.scalars, kernel.flops, part)

    def _parts(self, name: str, p: int) -> dict[str, Part | None]:
        """The ranges of a derived parameter by source; of another one itself."""
        derived = self.derived.get(name)
        return {name: None} if derived is None else {source: derived.part(source, p) for source, _ in derived.sources}

    def _in_place(
        self, kernel: Any, p: int, operands: tuple[Operand, ...], touched: tuple[int, ...], number: float = 1.0,
        scalars: tuple[str, ...] = (), flops: int = 0, part: Part | None = None,
    ) -> None:  # fmt: skip
        """A kernel over the elements of parameter `p`, or those of a range of it, that writes `touched`, the first of
        which is its output."""
        b = self.plan.buffers[p]
        size = math.prod(b.shape)
        schedule, runs = variants.update(size, self.plan.target), () if part is None else _runs(part, b.shape)
        size = size if part is None else math.prod(_extents(part, b.shape))
        self.dispatches.append(Dispatch(
            0, kernel, f"{labels.display(kernel)}[{size}]", "update", operands,
            (Result(touched[0], TensorType(b.shape, b.dtype)),),
            in_place=touched, scalars=scalars,
            workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size,
            params=(int(np.float32(number).view(np.uint32)), *runs),
            variant=schedule.variant, variant_reason=schedule.reason, origin=b.nodes[:1],
            flops=flops * size, bytes_read=4 * size * (len(touched) + 1), bytes_written=4 * size * len(touched),
        ))  # fmt: skip

    # clipping ---------------------------------------------------------------------------------------------------------
    def _factors(self, gradient: Mapping[int, int]) -> dict[str, int]:
        """For each parameter the buffer of the factor that clips its gradient; empty without clipping."""
        clip = self.recipe.clip
        if clip is None or not self.pairs:
            return {}
        parts = [(source, p, part) for name, p, _ in self.pairs for source, part in self._parts(name, p).items()]
        if clip.kind == "norm":
            squares = [self._squares(f"clip_g2.{name}", p, gradient[p]) for name, p, _ in self.pairs]
            factor = self._point("clip_factor", _global_factor(self.node, clip), (self._sum(squares),))
            return {source: factor for source, _, _ in parts}
        of = {s: self._squares(f"clip_g2.{s}", p, self._cut(f"clip_g.{s}", gradient[p], p, r)) for s, p, r in parts}
        weights = {s: self._squares(f"clip_p2.{s}", p, self._cut(f"clip_p.{s}", p, p, r)) for s, p, r in parts}
        lines = _adaptive_factor(self.node, clip)
        return {s: self._point(f"clip_factor.{s}", lines, (weights[s], of[s])) for s, _, _ in parts}

    def _cut(self, name: str, source: int, p: int, part: Part | None) -> int:
        """A buffer of the shape of `p`, or a copy of a range of it."""
        if part is None:
            return source
        b = self.plan.buffers[p]
        extents, (_, start, _) = _extents(part, b.shape), _runs(part, b.shape)
        out, size = self._state(name, extents, p), math.prod(extents)
        gather = Gather(extents, start, (Axis(b.shape[1]), Axis(1)), 0.0, b.nodes[0])
        self._append("movement", f"{labels.display('slice')}[{size}]", (self._operand(source),), out,
                     variants.gather(size, self.plan.target), gather=gather, origin=b.nodes[:1])  # fmt: skip
        return out

    def _squares(self, name: str, p: int, source: int) -> int:
        """The sum of the squares of a buffer, in as many folds as the target wants."""
        b, operand = self.plan.buffers[p], self._operand(source)
        size = math.prod(operand.shape)
        stages = variants.split_fold(1, size, 1, self.plan.target)
        chain = _lines(b.nodes[0], ("square", ("x", 0)))
        for i, (outer, length, inner) in enumerate(stages):
            partial = self._state(name if i == len(stages) - 1 else f"{name}.{i}", (outer * inner,), p)
            fold = Reduce("sum", "acc", outer, length, inner, size, b.nodes[0])
            schedule = variants.reduce(fold, self.plan.target)
            self._append("reduce", labels.reduce(fold, chain), (operand,), partial, schedule, prologue=chain,
                         reduce=fold, flops=outer * length * inner * (1 + len(chain)), origin=b.nodes[:1])  # fmt: skip
            operand, chain = Operand(partial, (outer * inner,)), ()
        return partial

    def _sum(self, parts: list[int]) -> int:
        """The sum of [1] buffers, as many at a time as a dispatch may bind."""
        most, round = min(7, self.plan.target.limits.storage_buffers - 1), 0
        while len(parts) > 1:
            groups = [tuple(parts[i : i + most]) for i in range(0, len(parts), most)]
            parts = [self._add(f"clip_sum.{round}.{i}", group) for i, group in enumerate(groups)]
            round += 1
        return parts[0]

    def _add(self, name: str, sources: tuple[int, ...]) -> int:
        return sources[0] if len(sources) == 1 else self._point(name, _sum_lines(self.node, len(sources)), sources)

    def _point(self, name: str, lines: tuple[PointOp, ...], sources: tuple[int, ...]) -> int:
        out, operands = self._state(name, (1,), None), tuple(Operand(b, (1,)) for b in sources)
        schedule = variants.pointwise(1, operands, self.plan.target)
        self._append("pointwise", labels.pointwise(lines, 1), operands, out, schedule, epilogue=lines, flops=len(lines),
                     origin=(self.node,))  # fmt: skip
        return out

    def _append(
        self, kernel: KernelName, label: str, operands: tuple[Operand, ...], output: int, schedule: variants.Schedule,
        **fields: Any,
    ) -> None:  # fmt: skip
        known = {b.id: b for b in (*self.plan.buffers, *self.state.values())}
        out = known[output]
        self.dispatches.append(Dispatch(
            0, kernel, label, "update", operands, (Result(output, TensorType(out.shape, out.dtype)),),
            workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size, params=schedule.params,
            variant=schedule.variant, variant_reason=schedule.reason,
            bytes_read=sum(known[o.buffer].nbytes for o in operands), bytes_written=out.nbytes, **fields,
        ))  # fmt: skip

    # buffers ----------------------------------------------------------------------------------------------------------
    def _state(self, name: str, shape: Shape, parameter: int | None) -> int:
        """The state buffer of this name, made where it does not exist."""
        if name not in self.state:
            nodes = () if parameter is None else self.plan.buffers[parameter].nodes
            id = len(self.plan.buffers) + len(self.state)
            self.state[name] = Buffer(id, 4 * math.prod(shape), f32, shape, "state", name, nodes)
        return self.state[name].id

    def _operand(self, buffer: int) -> Operand:
        known = self.plan.buffers
        shape = known[buffer].shape if buffer < len(known) else list(self.state.values())[buffer - len(known)].shape
        return Operand(buffer, shape)


# ranges of a derived parameter ----------------------------------------------------------------------------------------
def _extents(part: Part, shape: Shape) -> Shape:
    """Rows and columns of a range."""
    return (*shape[: part.axis], part.stop - part.start, *shape[part.axis + 1 :])


def _runs(part: Part, shape: Shape) -> tuple[int, int, int]:
    """(period, start, stop): element i of the whole is in the range where start ≤ i mod period < stop."""
    inner = math.prod(shape[part.axis + 1 :])
    return shape[part.axis] * inner, part.start * inner, part.stop * inner


# chains of [1] numbers ------------------------------------------------------------------------------------------------
Source = int | float | tuple[str, int]  # the result of an earlier line, a literal, ("x", operand)


def _lines(node: int, *ops: tuple[str, *tuple[Source, ...]]) -> tuple[PointOp, ...]:
    """A chain of registry ops that stands for `node`."""
    found = []
    for name, *sources in ops:
        op = REGISTRY[name]
        assert isinstance(op.kernel, Elementwise)  # the callers name such
        found.append(PointOp(name, op.kernel.expr, op.operands, tuple(map(_arg, sources)), (), node))
    return tuple(found)


def _arg(source: Any) -> Arg:
    if isinstance(source, tuple):
        return Arg("operand", source[1])
    return Arg("op", source) if isinstance(source, int) else Arg("literal", value=source)


def _sum_lines(node: int, count: int) -> tuple[PointOp, ...]:
    first: tuple[str, *tuple[Source, ...]] = ("add", ("x", 0), ("x", 1))
    return _lines(node, first, *(("add", k - 2, ("x", k)) for k in range(2, count)))


def _global_factor(node: int, clip: Clip) -> tuple[PointOp, ...]:
    """min(1, limit / √x)."""
    return _lines(node, ("sqrt", ("x", 0)), ("div", clip.limit, 0), ("minimum", 1.0, 1))


def _adaptive_factor(node: int, clip: Clip) -> tuple[PointOp, ...]:
    """min(1, limit · max(floor, √x₀) / √x₁)."""
    return _lines(
        node, ("sqrt", ("x", 0)), ("maximum", clip.floor, 0), ("mul", clip.limit, 1),
        ("sqrt", ("x", 1)), ("div", 2, 3), ("minimum", 1.0, 4),
    )  # fmt: skip
