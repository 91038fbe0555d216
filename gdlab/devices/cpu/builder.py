"""Build the NumPy calls of one dispatch: its arrays, temporaries, chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.devices.cpu.chain_calls import (
    Scratch,
    Value,
    array,
    build,
    chain,
    emit,
    lay_out,
)
from gdlab.devices.cpu.operands import domain, viewed
from gdlab.devices.cpu.product_calls import product
from gdlab.op.numpy_form import F32, NumpyCall
from gdlab.plan.dispatch import Dispatch, Operand, PointOp

SHORT = 128  # up to here NumPy adds a row without pairing as well
NARROW, MANY = 16, 4096


class NumpyKernelBuilder:
    """The builder of one dispatch's calls (a `KernelBuilder`): its arrays, and temporaries that live as long as it."""

    def __init__(
        self, d: Dispatch, arrays: Mapping[int, Array], scratch: Scratch, scalars: Mapping[str, Array]
    ) -> None:
        self.d, self.arrays, self.scratch, self.scalars = d, arrays, scratch, scalars
        self.taken: set[int] = set()
        self.calls: list[NumpyCall] = []
        self.whole: Array | None = None

    @property
    def size(self) -> int:
        """The number of elements of the result."""
        return self.d.type.num_elements

    @property
    def result_shape(self) -> Shape:
        """The shape of the result."""
        return self.d.type.shape

    def operand_shape(self, index: int) -> Shape:
        """Return the shape of an operand."""
        return self.d.operands[index].shape

    def out(self, shape: Shape) -> Array:
        """Return the output as an array of `shape`; for results in ranges a temporary, which `cut` takes apart."""
        columns = self.d.results[0].columns
        if columns is None:
            return self.arrays[self.d.output].reshape(shape)
        if self.whole is None:
            self.whole = self.temporary((self.d.type.shape[0], columns.width))
        return self.whole.reshape(shape)

    def cut(self) -> None:
        """Copy every range of columns to its buffer."""
        for r in self.d.results:
            if r.columns is not None and self.whole is not None:
                part = self.whole[:, r.columns.start : r.columns.stop]
                self.calls.append((np.copyto, (self.arrays[r.buffer], part)))

    def result(self, name: str, shape: Shape) -> Array | None:
        """Return the result of this name as an array of `shape`; None in a dispatch that does not write it."""
        names = self.d.custom.results if self.d.custom is not None else ()
        return self.arrays[self.d.outputs[1 + names.index(name)]].reshape(shape) if name in names else None

    def operand(self, index: int, shape: Shape) -> Array:
        """Return all elements that operand `index` reads, as an array of `shape`."""
        operand, size = self.d.operands[index], math.prod(shape)
        data = self.arrays[operand.buffer]
        if index == 0 and self.d.custom is not None and (self.d.prologue or self.d.read_result is not None):
            return self._read(shape)  # of a plan for hardware
        if operand.parts > 1:
            return self.view(operand, size, shape)
        if operand.access == "full":
            return data.reshape(-1)[:size].reshape(shape)
        whole = self.temporary(shape)
        axes = domain(size, (operand,))
        self.calls.append((np.copyto, (whole.reshape(axes), self.view(operand, size, axes))))
        return whole

    def _read(self, shape: Shape) -> Array:
        """Return what a kernel reads as its first operand: the value of a chain, which a result may hold."""
        result = self.d.read_result
        whole = self.temporary(shape) if result is None else self.arrays[result.buffer].reshape(shape)
        if self.d.prologue:
            self.prologue(whole)
        else:
            self.calls.append((np.copyto, (whole, self.view(self.d.operands[0], whole.size, shape))))
        return whole

    def view(self, operand: Operand, size: int, shape: Shape) -> Array:
        """Return a view of the operand that broadcasts over `shape`; of one in parts their sum."""
        if operand.parts > 1:
            whole, flat = self.temporary(shape), self.arrays[operand.buffer].reshape(-1)[: operand.parts * size]
            self.calls.append((np.sum, (flat.reshape(operand.parts, *shape), 0, None, whole)))
            return whole
        seen, steps = viewed(self.arrays[operand.buffer], operand, size, shape)
        self.calls += steps
        return seen

    def temporary(self, shape: Shape, dtype: np.dtype[Any] = F32) -> Array:
        """Return an array that nothing else of this dispatch uses."""
        return self.scratch.claim(shape, dtype, self.taken)

    def row_sums(self, x: Array, out: Array) -> None:
        """Append the sum of every row of x[rows, n] into `out`, one element each. Of short rows as a product with ones:
        half the time of a reduction, whose loop begins anew in each row, and as exact (both add in a few lanes)."""
        if x.shape[1] <= SHORT and x.flags.c_contiguous:
            self.calls.append((x.dot, (np.ones(x.shape[1], F32), out.reshape(-1))))
        else:
            self.calls.append((np.add.reduce, (x, 1, None, out.reshape(-1))))

    def row_maxima(self, x: Array, out: Array) -> None:
        """Append the maximum of every row of x[rows, n] into `out`; short rows are laid side by side first."""
        rows, n = x.shape
        if 1 < n <= NARROW <= rows <= MANY:
            beside = self.temporary((n, rows))
            self.calls += [(np.copyto, (beside, x.T)), (np.maximum.reduce, (beside, 0, None, out.reshape(-1)))]
            self.taken.discard(id(beside))
        else:
            self.calls.append((np.maximum.reduce, (x, 1, None, out.reshape(-1))))

    def call(self, ufunc: Callable[..., Any], a: Array, b: Array, out: Array) -> None:
        """Append ufunc(a, b) into `out`, where b may be a row or a column."""
        steps, args = lay_out((a, b), out, self.scratch, self.taken)
        self.calls += [*steps, (ufunc, (*args, out))]

    def product(self, a: Array, b: Array, out: Array) -> None:
        """Append the product of two factors into `out`."""
        self.calls.append(product(a, b, out))

    def evaluate(self, expr: str, operands: Mapping[str, Array], out: Array) -> None:
        """Append the value of an expression over named arrays into `out`."""
        value = build(expr, {name: array(data) for name, data in operands.items()})
        self.calls += emit(value, out, self.scratch, self.taken)

    def prologue(self, out: Array) -> None:
        """Append the chain before a fold into `out`."""
        shape, operands = self._seen(self.d.prologue, out.size)
        self.calls += emit(chain(self.d.prologue, operands, None), out.reshape(shape), self.scratch, self.taken)

    def epilogue(self, size: int, acc: Value | None, dual: Value | None = None) -> None:
        """Append the epilogue over `size` elements, into the first result at last: `acc`, which must be broadcastable
        over its domain, may lie there."""
        lines = self.d.epilogue
        shape, operands = self._seen(lines, size)
        for r in self.d.results:
            if r.value is not None and r.value.kind != "read":  # of a plan for hardware
                some = lines[: r.value.index + 1] if r.value.kind == "op" else ()
                value = chain(some, operands, dual if r.value.kind == "dual" else acc, dual)
                self.calls += emit(value, self.arrays[r.buffer].reshape(shape), self.scratch, self.taken)
        self.calls += emit(chain(lines, operands, acc, dual), self.out(shape), self.scratch, self.taken)

    def _seen(self, lines: Sequence[PointOp], size: int) -> tuple[Shape, dict[int, Array]]:
        """Return the domain of a chain over `size` elements, and a view of each operand that broadcasts over it."""
        used = {a.index: self.d.operands[a.index] for line in lines for a in line.args if a.kind == "operand"}
        shape = domain(size, tuple(used.values()))
        return shape, {index: self.view(operand, size, shape) for index, operand in used.items()}

    def shape_of(self, lines: Iterable[PointOp], size: int) -> Shape:
        """Return the domain of a chain over `size` elements."""
        used = (self.d.operands[a.index] for line in lines for a in line.args if a.kind == "operand")
        return domain(size, tuple(used))

    def finish(self, size: int, dual: Array | None = None) -> None:
        """Append the epilogue on the core's result, which lies in the output, and on that of a second product."""
        if self.d.epilogue:
            shape = self.shape_of(self.d.epilogue, size)
            self.epilogue(size, array(self.out(shape)), None if dual is None else array(dual.reshape(shape)))
