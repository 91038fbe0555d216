"""The parameter update of a training plan, as dispatches in the same record: any rule of `plan/rules/`, clipped and
accumulated as a `Recipe` says. One dispatch moves as many parameters as its bindings allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gdlab.base.types import Shape, TensorType, f32
from gdlab.op import REGISTRY, Axis, Elementwise
from gdlab.op.storage import SourceRange
from gdlab.plan import labels, spread
from gdlab.plan.dispatch import (
    Arg,
    Dispatch,
    Gather,
    KernelName,
    Operand,
    ParameterUpdate,
    PointOp,
    Reduce,
    Result,
    Stretch,
    UpdateCore,
)
from gdlab.plan.records import ExecutionPlan, PlanBuffer, Update
from gdlab.plan.rules import RULES, UpdateRule, rule_of
from gdlab.plan.rules.traced import traced
from gdlab.plan.schedule import numbered, scheduled
from gdlab.plan.target import Target

MERGED = 64  # parameters of one dispatch at most: its text grows with each


@dataclass(frozen=True, slots=True)
class Clip:
    """A bound of gradients: `norm`: all together have an L2 norm of at most `limit`; `adaptive`: each gradient's norm
    is at most `limit` times the norm of its parameter, which counts as at least `floor`."""

    kind: Literal["norm", "adaptive"]
    limit: float
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """An update: the rule, a factor of the rate by parameter name (default 1; for a derived parameter by source),
    clipping, and the number of steps that one update adds up."""

    rule: str = "none"
    multipliers: Mapping[str, float] = field(default_factory=dict)
    clip: Clip | None = None
    accumulate: int = 1


def update_of(plan: ExecutionPlan, recipe: Recipe, state: Sequence[PlanBuffer] = ()) -> Update:
    """Return the dispatches of a recipe. `state` are the state buffers that exist already, in order of their ids: they
    are found again by name, and new ones are added after them, so that moments outlive a switch of the rule."""
    if recipe.rule == "none":
        return Update("none", (), tuple(state), ())
    return _UpdateWriter(plan, recipe, state).write()


# dispatches -----------------------------------------------------------------------------------------------------------
def update_dispatches(
    rule: UpdateRule, parameters: Sequence[ParameterUpdate], target: Target, merge: bool = True
) -> tuple[Dispatch, ...]:
    """Return the dispatches that move these parameters by a rule, each as many as its bindings allow (`merge=False`:
    one each), in order; their indices and groups are still 0. No plan is needed."""
    return tuple(_dispatch(rule, some, target) for some in _together(rule, parameters, target, merge))


def _together(
    rule: UpdateRule, parameters: Sequence[ParameterUpdate], target: Target, merge: bool
) -> list[list[ParameterUpdate]]:
    """Distribute the parameters over dispatches: each goes into the first that has room for it."""
    found: list[list[ParameterUpdate]] = []
    bound: list[set[int]] = []
    most = target.limits.storage_buffers - bool(rule.scalars)
    for p in parameters:
        room = (
            i for i, others in enumerate(found)
            if len(others) < MERGED and len(bound[i] | {*p.buffers}) <= most and spread.merges([*others, p], target)
        )  # fmt: skip
        place = next(room, None) if merge else None
        if place is None:
            found.append([p])
            bound.append({*p.buffers})
        else:
            found[place].append(p)
            bound[place] |= {*p.buffers}
    return found


def _dispatch(rule: UpdateRule, parameters: Sequence[ParameterUpdate], target: Target) -> Dispatch:
    sizes, schedule = [p.type.num_elements for p in parameters], spread.update(parameters, target)
    touched = tuple(dict.fromkeys(b for p in parameters for b in p.touched))
    gradients = [Operand(p.gradient, p.type.shape) for p in parameters if p.gradient is not None]
    clips = dict.fromkeys(s.clip for p in parameters for s in p.stretches if s.clip is not None)
    size, states = sum(sizes), 1 + len(rule.state)
    return Dispatch(
        0, "update", labels.update(rule.label, sizes), "update",
        (*dict.fromkeys(gradients), *(Operand(clip, (1,), "scalar") for clip in clips)),
        tuple(Result(p.touched[0], p.type) for p in parameters), in_place=touched,
        update=UpdateCore(rule.name, tuple(parameters)), scalars=rule.scalars,
        workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size,
        variant=schedule.variant, variant_reason=schedule.reason,
        origin=tuple(dict.fromkeys(p.node for p in parameters)), flops=_flops(rule) * size,
        bytes_read=4 * size * (states + 1 if rule.reads_gradient else 0), bytes_written=4 * size * states,
    )  # fmt: skip


def parts_of(d: Dispatch) -> tuple[Dispatch, ...]:
    """Split a dispatch that moves several parameters into one for each, with its reads, writes and origin. They have
    the index and the label of the whole and are not run."""
    if d.update is None or len(d.update.parameters) == 1:
        return (d,)
    return tuple(
        replace(
            d, operands=tuple(o for o in d.operands if o.buffer in p.buffers), results=(result,), in_place=p.touched,
            update=UpdateCore(d.update.rule, (p,)), origin=(p.node,),
        )
        for p, result in zip(d.update.parameters, d.results, strict=True)
    )  # fmt: skip


def _flops(rule: UpdateRule) -> int:
    """Return floating point operations per element."""
    return rule.flops if rule.form is None else len(traced(rule).lines)


class _UpdateWriter:
    """The dispatches of one update while they are written."""

    def __init__(self, plan: ExecutionPlan, recipe: Recipe, state: Sequence[PlanBuffer]) -> None:
        self.plan, self.recipe = plan, recipe
        self.rule = rule_of("update", recipe.rule)
        self.state = {b.name: b for b in state}
        names = {b: name for name, b in plan.stored_params}
        self.derived = {d.name: d for d in plan.derived_params}
        self.pairs = [(names[p], p, g) for p, g in plan.param_grad_pairs]
        self.node = min((plan.buffers[p].nodes[0] for p, _ in plan.param_grad_pairs), default=0)  # of sums over all
        self.dispatches: list[Dispatch] = []

    def write(self) -> Update:
        """Write the dispatches that the recipe requires: accumulate, clip, update, clear."""
        sums = self.recipe.accumulate > 1
        gradient = self._accumulate() if sums else {p: g for _, p, g in self.pairs}
        early = len(self.dispatches)
        clips = self._factors(gradient)
        states = {p: tuple(self._state(f"{s}.{name}", self.plan.buffers[p].shape, p) for s in self.rule.state)
                  for name, p, _ in self.pairs}  # fmt: skip
        self._move(self.rule, [
            self._moving(p, (p, *states[p]), gradient[p], self._stretches(name, p, clips)) for name, p, _ in self.pairs
        ])  # fmt: skip
        if sums:
            self._move(RULES["clear"], [self._moving(p, (gradient[p],), None) for _, p, _ in self.pairs])
        order, groups = scheduled(self.dispatches, False)
        first, behind = len(self.plan.dispatches), len(self.plan.groups)
        made = (replace(d, index=first + d.index, group=behind + d.group) for d in
                numbered(self.dispatches, order, groups))  # fmt: skip
        moments = tuple((p, *held) for p, held in states.items() if held)
        return Update(self.recipe.rule, tuple(made), tuple(self.state.values()), moments, early)

    # the parts --------------------------------------------------------------------------------------------------------
    def _accumulate(self) -> dict[int, int]:
        """Accumulate acc += g / n, and return the buffers of the sums by parameter."""
        totals = {p: self._state(f"grad_sum.{name}", self.plan.buffers[p].shape, p) for name, p, _ in self.pairs}
        share = float(np.float32(1 / self.recipe.accumulate))
        moving = [self._moving(p, (totals[p],), g, (Stretch(self._size(p), share),)) for _, p, g in self.pairs]
        self._move(RULES["accumulate"], moving)
        return totals

    def _move(self, rule: UpdateRule, parameters: Sequence[ParameterUpdate]) -> None:
        self.dispatches += update_dispatches(rule, parameters, self.plan.target, self.plan.options.fuse_dispatches)

    def _moving(
        self, p: int, touched: tuple[int, ...], gradient: int | None, stretches: tuple[Stretch, ...] = ()
    ) -> ParameterUpdate:
        b = self.plan.buffers[p]
        whole = (Stretch(self._size(p)),)
        return ParameterUpdate(TensorType(b.shape, b.dtype), touched, gradient, stretches or whole, b.nodes[0])

    def _size(self, p: int) -> int:
        return math.prod(self.plan.buffers[p].shape)

    def _stretches(self, name: str, p: int, clips: Mapping[str, int]) -> tuple[Stretch, ...]:
        """Return one stretch for a whole parameter; for a derived one whose sources differ in multiplier or clip
        factor, one each. `clips`: the buffers of the clip factors by name."""
        shape, parts = self.plan.buffers[p].shape, self._parts(name, p)
        how = {s: (float(np.float32(self.recipe.multipliers.get(s, 1.0))), clips.get(s)) for s in parts}
        if len(set(how.values())) == 1:
            return (Stretch(self._size(p), *next(iter(how.values()))),)
        return tuple(Stretch(_stop(part, shape), *how[s]) for s, part in parts.items() if part is not None)

    def _parts(self, name: str, p: int) -> dict[str, SourceRange | None]:
        """Return the ranges of a derived parameter by source; for another parameter, itself."""
        derived = self.derived.get(name)
        return {name: None} if derived is None else {source: derived.part(source, p) for source, _ in derived.sources}

    # clipping ---------------------------------------------------------------------------------------------------------
    def _factors(self, gradient: Mapping[int, int]) -> dict[str, int]:
        """Return for each parameter the buffer of the factor that clips its gradient; empty without clipping."""
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

    def _cut(self, name: str, source: int, p: int, part: SourceRange | None) -> int:
        """Return a buffer of the shape of `p`, or copy a range of it."""
        if part is None:
            return source
        b = self.plan.buffers[p]
        extents, start = _extents(part, b.shape), part.start * math.prod(b.shape[part.axis + 1 :])
        out, size = self._state(name, extents, p), math.prod(extents)
        gather = Gather(extents, start, (Axis(b.shape[1]), Axis(1)), 0.0, b.nodes[0])
        self._append("movement", f"{labels.display('slice')}[{size}]", (self._operand(source),), out,
                     spread.gather(size, self.plan.target), gather=gather, origin=b.nodes[:1])  # fmt: skip
        return out

    def _squares(self, name: str, p: int, source: int) -> int:
        """Write the sum of the squares of a buffer, in as many folds as the target wants."""
        b, operand = self.plan.buffers[p], self._operand(source)
        size = math.prod(operand.shape)
        stages = spread.split_fold(1, size, 1, self.plan.target)
        chain = _lines(b.nodes[0], ("square", ("x", 0)))
        for i, (outer, length, inner) in enumerate(stages):
            partial = self._state(name if i == len(stages) - 1 else f"{name}.{i}", (outer * inner,), p)
            fold = Reduce("sum", "acc", outer, length, inner, size, b.nodes[0])
            schedule = spread.reduce(fold, self.plan.target)
            self._append("reduce", labels.reduce(fold, chain), (operand,), partial, schedule, prologue=chain,
                         reduce=fold, flops=outer * length * inner * (1 + len(chain)), origin=b.nodes[:1])  # fmt: skip
            operand, chain = Operand(partial, (outer * inner,)), ()
        return partial

    def _sum(self, parts: list[int]) -> int:
        """Write the sum of [1] buffers, as many at a time as a dispatch may bind."""
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
        schedule = spread.pointwise(1, operands, self.plan.target)
        self._append("pointwise", labels.pointwise(lines, 1), operands, out, schedule, epilogue=lines, flops=len(lines),
                     origin=(self.node,))  # fmt: skip
        return out

    def _append(
        self, kernel: KernelName, label: str, operands: tuple[Operand, ...], output: int, schedule: spread.Schedule,
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
        """Return the state buffer of this name, made where it does not exist."""
        if name not in self.state:
            nodes = () if parameter is None else self.plan.buffers[parameter].nodes
            id = len(self.plan.buffers) + len(self.state)
            self.state[name] = PlanBuffer(id, 4 * math.prod(shape), f32, shape, "state", name, nodes)
        return self.state[name].id

    def _operand(self, buffer: int) -> Operand:
        known = self.plan.buffers
        shape = known[buffer].shape if buffer < len(known) else list(self.state.values())[buffer - len(known)].shape
        return Operand(buffer, shape)


# ranges of a derived parameter ----------------------------------------------------------------------------------------
def _extents(part: SourceRange, shape: Shape) -> Shape:
    """Return rows and columns of a range."""
    return (*shape[: part.axis], part.stop - part.start, *shape[part.axis + 1 :])


def _stop(part: SourceRange, shape: Shape) -> int:
    """Return the end of a range in elements: element i lies before it where i mod (the period) does."""
    return part.stop * math.prod(shape[part.axis + 1 :])


# chains of [1] numbers ------------------------------------------------------------------------------------------------
Source = int | float | tuple[str, int]  # the result of an earlier line, a literal, ("x", operand)


def _lines(node: int, *ops: tuple[str, *tuple[Source, ...]]) -> tuple[PointOp, ...]:
    """Return a chain of registry ops that stands for `node`."""
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
    """Return the chain min(1, limit / √x)."""
    return _lines(node, ("sqrt", ("x", 0)), ("div", clip.limit, 0), ("minimum", 1.0, 1))


def _adaptive_factor(node: int, clip: Clip) -> tuple[PointOp, ...]:
    """Return the chain min(1, limit · max(floor, √x₀) / √x₁)."""
    return _lines(
        node, ("sqrt", ("x", 0)), ("maximum", clip.floor, 0), ("mul", clip.limit, 1),
        ("sqrt", ("x", 1)), ("div", 2, 3), ("minimum", 1.0, 4),
    )  # fmt: skip
