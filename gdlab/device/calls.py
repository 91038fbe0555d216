"""The NumPy calls of a dispatch, from its own fields: bound once to arrays, then only called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gdlab.device.chain import Array, Number, Scratch, Step, Value, array, build, chain, domain, emit, viewed
from gdlab.errors import CompileError
from gdlab.op import Axis
from gdlab.plan.plan import Dispatch, Gather, Operand, PointOp
from gdlab.types import Shape

LONG = 4096  # longer folds accumulate in float64
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


# dispatches -----------------------------------------------------------------------------------------------------------
class Bench:
    """What the calls of one dispatch are made with: its arrays, and temporaries that live as long as the dispatch."""

    def __init__(
        self, d: Dispatch, arrays: Mapping[int, Array], scratch: Scratch, scalars: Mapping[str, Array]
    ) -> None:
        self.d, self.arrays, self.scratch, self.scalars = d, arrays, scratch, scalars
        self.taken: set[int] = set()
        self.steps: list[Step] = []

    def out(self, shape: Shape) -> Array:
        """The output, as an array of `shape`."""
        return self.arrays[self.d.output].reshape(shape)

    def operand(self, index: int, shape: Shape) -> Array:
        """All elements that operand `index` reads, as an array of `shape`."""
        operand, size = self.d.operands[index], math.prod(shape)
        data = self.arrays[operand.buffer]
        if operand.access == "full":
            return data.reshape(-1)[:size].reshape(shape)
        whole = self.temporary(shape)
        axes = domain(size, (operand,))
        self.steps.append((np.copyto, (whole.reshape(axes), self.view(operand, size, axes))))
        return whole

    def view(self, operand: Operand, size: int, shape: Shape) -> Array:
        """The operand, broadcastable over `shape`."""
        seen, steps = viewed(self.arrays[operand.buffer], operand, size, shape)
        self.steps += steps
        return seen

    def temporary(self, shape: Shape, dtype: np.dtype[Any] = _F32) -> Array:
        """An array that nothing else of this dispatch uses."""
        return self.scratch.claim(shape, dtype, self.taken)

    def chain(self, lines: Iterable[PointOp], size: int, acc: Value | None, out: Array) -> None:
        """Evaluate a chain over `size` elements into `out`; `acc` must be broadcastable over its domain."""
        lines = tuple(lines)
        used = {a.index: self.d.operands[a.index] for line in lines for a in line.args if a.kind == "operand"}
        shape = domain(size, tuple(used.values()))
        operands = {index: self.view(operand, size, shape) for index, operand in used.items()}
        self.steps += emit(chain(lines, operands, acc), out.reshape(shape), self.scratch, self.taken)

    def shape_of(self, lines: Iterable[PointOp], size: int) -> Shape:
        """The domain of a chain over `size` elements."""
        used = (self.d.operands[a.index] for line in lines for a in line.args if a.kind == "operand")
        return domain(size, tuple(used))

    def finish(self, size: int) -> None:
        """The epilogue, on the core's result that lies in the output."""
        if self.d.epilogue:
            shape = self.shape_of(self.d.epilogue, size)
            self.chain(self.d.epilogue, size, array(self.out(shape)), self.out(shape))


def steps_of(
    d: Dispatch, arrays: Mapping[int, Array], scratch: Scratch, scalars: Mapping[str, Array]
) -> list[Step]:
    """The NumPy calls of one dispatch."""
    bench = Bench(d, arrays, scratch, scalars)
    _KERNELS[d.kernel](bench)
    return bench.steps


def _pointwise(bench: Bench) -> None:
    size = bench.d.output_type.num_elements
    bench.chain(bench.d.epilogue, size, None, bench.out((size,)))


def _matmul(bench: Bench) -> None:
    p = bench.d.matmul
    assert p is not None  # the table asks by kernel
    a = bench.operand(0, (p.m, p.k)) if p.a == "mk" else bench.operand(0, (p.k, p.m)).T
    b = bench.operand(1, (p.k, p.n)) if p.b == "kn" else bench.operand(1, (p.n, p.k)).T
    bench.steps.append((np.matmul, (a, b, bench.out((p.m, p.n)))))
    bench.finish(p.m * p.n)


def _reduce(bench: Bench) -> None:
    r = bench.d.reduce
    assert r is not None  # the table asks by kernel
    cube = (r.outer, r.length, r.inner)
    if bench.d.prologue:
        x = bench.temporary((math.prod(cube),))
        bench.chain(bench.d.prologue, x.size, None, x)
        x = x.reshape(cube)
    else:
        x = bench.operand(0, cube)
    size = r.outer * r.inner
    shape = bench.shape_of(bench.d.epilogue, size)
    bench.steps += _fold(bench, r.combine, x, bench.out((r.outer, r.inner)))
    if r.finish == "acc" and not bench.d.epilogue:
        return
    acc = build(r.finish, {"acc": array(bench.out(shape)), "n": Number(np.float32(r.count))})
    bench.chain(bench.d.epilogue, size, acc, bench.out(shape))


def _fold(bench: Bench, combine: str, x: Array, out: Array) -> list[Step]:
    """The calls that fold the middle axis."""
    outer, length, inner = x.shape
    if combine != "sum":
        ufunc = np.maximum if combine == "max" else np.minimum
        return [(ufunc.reduce, (x, 1, None, out))]
    if outer == inner == 1 or length > LONG:  # with a float32 result NumPy would round after every 8192 elements
        total = bench.temporary(out.shape, _F64)
        return [(np.add.reduce, (x, 1, _F64, total)), (np.copyto, (out, total))]
    if inner == 1:  # along memory NumPy sums in pairs
        return [(np.add.reduce, (x.reshape(outer, length), 1, None, out.reshape(outer)))]
    if outer == 1:
        return [(np.matmul, (np.ones(length, _F32), x.reshape(length, inner), out.reshape(inner)))]
    return [(np.add.reduce, (x, 1, None, out))]


# rows: the NumPy form of each file in shaders/ ------------------------------------------------------------------------
def _shifted(bench: Bench, x: Array, out: Array) -> tuple[Array, Array]:
    """x − max in `out`; e to that, and its sum per row."""
    powers, column = bench.temporary(x.shape), bench.temporary((x.shape[0], 1))
    bench.steps += [
        (np.maximum.reduce, (x, 1, None, column, True)),
        (np.subtract, (x, column, out)),
        (np.exp, (out, powers)),
        (np.add.reduce, (powers, 1, None, column, True)),
    ]
    return powers, column


def _softmax(bench: Bench, x: Array, out: Array) -> None:
    powers, total = _shifted(bench, x, out)
    bench.steps.append((np.divide, (powers, total, out)))


def _log_softmax(bench: Bench, x: Array, out: Array) -> None:
    _, total = _shifted(bench, x, out)
    bench.steps += [(np.log, (total, total)), (np.subtract, (out, total, out))]


ROWS: dict[str, Callable[[Bench, Array, Array], None]] = {
    "softmax.wgsl": _softmax,
    "log_softmax.wgsl": _log_softmax,
}


def _rows(bench: Bench) -> None:
    r = bench.d.rows
    assert r is not None  # the table asks by kernel
    if r.file not in ROWS:
        raise CompileError(f"dispatch {bench.d.index}", "kernel on cpu", r.file, f"one of {', '.join(ROWS)}")
    ROWS[r.file](bench, bench.operand(0, (r.rows, r.width)), bench.out((r.rows, r.width)))
    bench.finish(r.rows * r.width)


# gathers --------------------------------------------------------------------------------------------------------------
def _movement(bench: Bench) -> None:
    g = bench.d.gather
    assert g is not None  # the table asks by kernel
    operand = bench.arrays[bench.d.operands[0].buffer].reshape(-1)
    out = bench.out(g.shape)
    into, source = taken_part(g, operand)
    if source.size < out.size:
        bench.steps.append((np.copyto, (out, out.dtype.type(g.fill))))
    if source.size:
        bench.steps.append((np.copyto, (out[into], source)))
    bench.finish(out.size)


def taken_part(g: Gather, operand: Array) -> tuple[tuple[slice, ...], Array]:
    """Where the result is not fill, and a view of the elements that go there."""
    places, offset = [], g.offset
    sizes, strides = [], []
    for n, axis in zip(g.shape, g.axes, strict=True):
        first, count = _span(n, axis)
        offset += first * axis.stride
        start = axis.lo + first * axis.step
        places.append(slice(start, start + (count - 1) * axis.step + 1, axis.step) if count else slice(0, 0))
        sizes.append(count)
        strides.append(axis.stride * operand.itemsize)
    if 0 in sizes:
        return tuple(places), operand[:0]
    view = np.lib.stride_tricks.as_strided(operand[offset:], sizes, strides, writeable=False)
    return tuple(places), view


def _span(n: int, axis: Axis) -> tuple[int, int]:
    """First coordinate, and how many, that land in 0 … n − 1."""
    first = max(0, -(axis.lo // axis.step)) if axis.lo < 0 else 0
    last = (n - 1 - axis.lo) // axis.step
    if axis.extent is not None:
        last = min(last, axis.extent - 1)
    return first, max(0, last - first + 1)


# updates --------------------------------------------------------------------------------------------------------------
def _multiplier(d: Dispatch) -> np.float32:
    return np.array(d.params[:1] or (0x3F800000,), np.uint32).view(np.float32)[0]  # type: ignore[no-any-return]


def _sgd(bench: Bench) -> None:
    p = bench.arrays[bench.d.output]
    g, t = bench.operand(0, p.shape), bench.temporary(p.shape)
    rate = bench.temporary((1,) * p.ndim)
    bench.steps += [
        (np.multiply, (bench.scalars["lr"], _multiplier(bench.d), rate)),
        (np.multiply, (g, rate, t)),
        (np.subtract, (p, t, p)),
    ]


def _adam(bench: Bench) -> None:
    p, m, v = (bench.arrays[b] for b in bench.d.in_place)
    g, t, one = bench.operand(0, p.shape), bench.temporary(p.shape), np.float32(1)
    rest1, rest2, rate = (bench.temporary((1,) * p.ndim, np.dtype(np.float32)) for _ in range(3))
    s = bench.scalars
    bench.steps += [
        (np.subtract, (one, s["beta1"], rest1)),
        (np.subtract, (one, s["beta2"], rest2)),
        (np.multiply, (s["lr"], _multiplier(bench.d), rate)),
        (np.multiply, (rate, s["correction1"], rate)),
        (np.multiply, (m, s["beta1"], m)),
        (np.multiply, (g, rest1, t)),
        (np.add, (m, t, m)),
        (np.multiply, (g, g, t)),
        (np.multiply, (t, rest2, t)),
        (np.multiply, (v, s["beta2"], v)),
        (np.add, (v, t, v)),
        (np.multiply, (v, s["correction2"], t)),
        (np.sqrt, (t, t)),
        (np.add, (t, s["epsilon"], t)),
        (np.divide, (m, t, t)),
        (np.multiply, (t, rate, t)),
        (np.subtract, (p, t, p)),
    ]


_KERNELS: dict[str, Callable[[Bench], None]] = {
    "pointwise": _pointwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "rows": _rows,
    "movement": _movement,
    "sgd": _sgd,
    "adam": _adam,
}
