"""Collect the parts of a dispatch while it is written: operands, chains, and the stages of a fold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gdlab.base.types import Shape
from gdlab.op import Elementwise, Fill
from gdlab.plan.chains import TermCluster
from gdlab.plan.dispatch import Arg, Operand, PointOp
from gdlab.plan.terms import Term, View, fill_value

if TYPE_CHECKING:
    from gdlab.plan.lower import Lowering


class Parts:
    """Operands and chains of one dispatch while it is written."""

    def __init__(self, lowering: Lowering, cluster: TermCluster, core: Term | None) -> None:
        self.lowering, self.cluster, self.core = lowering, cluster, core
        self.operands: list[Operand] = []
        self.index: dict[tuple[int, str, int], int] = {}
        self.line_of: dict[int, int] = {}  # term → line of the chain that was written last
        self.product = -1  # the term whose value operand 0 is, in the chain before a core

    def operand(self, term: int, access: str, extent: int, shape: Shape) -> int:
        """Return the number of this view among the operands; a new view is appended."""
        buffer = self.lowering.out.buffer_of[term]
        key = buffer, access, extent
        if key not in self.index:
            dtype = self.lowering.out.buffers[buffer].dtype
            self.index[key] = len(self.operands)
            self.operands.append(Operand(buffer, shape, access, extent, dtype))  # type: ignore[arg-type]
        return self.index[key]

    def read_whole(self, inputs: Iterable[int]) -> None:
        """Append the operands of a core that reads memory as it lies, one each even where they are equal."""
        terms = self.lowering.terms
        for i in inputs:
            buffer, parts = self.lowering.out.home_of(terms.base[i])
            dtype = self.lowering.out.buffers[buffer].dtype
            self.operands.append(Operand(buffer, terms.terms[i].type.shape, dtype=dtype, parts=parts))

    def prologue(self, core: Term) -> tuple[PointOp, ...]:
        """Return the chain whose last value a reduction folds; without one the reduction reads operand 0."""
        if self.cluster.prologue:
            return self._chain(self.cluster.prologue)
        (view,) = self.lowering.terms.reads[core.id]
        if view.is_literal:
            return (literal(view.value, core.node),)
        self.operand(view.term, view.access, view.extent, self.lowering.terms.terms[view.term].type.shape)
        return ()

    def before(self, members: list[int]) -> tuple[PointOp, ...]:
        """Return the chain on operand 0, a product in parts, whose last value the core reads instead of it."""
        sums = self.cluster.sums
        self.product = -1 if sums is None else sums.core
        found = self._chain(members)
        self.product = -1
        return found

    def epilogue(self) -> tuple[PointOp, ...]:
        """Return the chain on the core's result; for a fill, its one literal."""
        root = self.lowering.terms.terms[self.cluster.root]
        if isinstance(root.op.kernel, Fill):
            return (literal(fill_value(root), root.node),)
        return self._chain(self.cluster.epilogue)

    def _chain(self, members: list[int]) -> tuple[PointOp, ...]:
        terms, lines = self.lowering.terms, list[PointOp]()
        self.line_of = {}
        for member in members:
            term = terms.terms[member]
            kernel = term.op.kernel
            assert isinstance(kernel, Elementwise)  # chains hold nothing else
            args = tuple(map(self._arg, terms.reads[member]))
            self.line_of[member] = len(lines)
            lines.append(PointOp(term.op.name, kernel.text(term.attrs), term.op.operands, args, term.attrs, term.node))
        return tuple(lines)

    def _arg(self, view: View) -> Arg:
        if view.is_literal:
            return Arg("literal", value=view.value)
        if (made := self.made(view.term)) is not None:
            return made
        shape = self.lowering.terms.terms[view.term].type.shape
        return Arg("operand", self.operand(view.term, view.access, view.extent, shape))

    def made(self, term: int) -> Arg | None:
        """Return the value of a term that the dispatch computes after its prologue; None of one that it reads."""
        if term in self.line_of:
            return Arg("op", self.line_of[term])
        if term == self.product:
            return Arg("operand", 0)
        if self.core is not None and term == self.core.id:
            return Arg("acc")
        return Arg("dual") if term == self.cluster.dual else None


def literal(value: float, node: int) -> PointOp:
    """Return a chain of one number."""
    return PointOp("full", "x", ("x",), (Arg("literal", value=value),), (), node)


def fold_stages(shape: Shape, axes: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return (outer, length, inner) of every run of neighbouring folded axes, the last run first; at least one."""
    folded = {a % len(shape) for a in axes}
    wide = [(n, i in folded) for i, n in enumerate(shape) if n > 1]
    runs: list[tuple[int, bool]] = []
    for n, inside in wide:
        if runs and runs[-1][1] == inside:
            runs[-1] = (runs[-1][0] * n, inside)
        else:
            runs.append((n, inside))
    stages = []
    for i in reversed(range(len(runs))):
        if runs[i][1]:
            kept = [n for n, inside in runs[i + 1 :] if not inside]
            stages.append((math.prod(n for n, _ in runs[:i]), runs[i][0], math.prod(kept)))
    return stages or [(math.prod(shape), 1, 1)]
