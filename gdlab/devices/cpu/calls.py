"""The NumPy calls of a dispatch, from its own fields: bound once to arrays, then only called."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.devices.cpu.chain import Number, Scratch, Step, array, build
from gdlab.devices.cpu.forms import FORMS
from gdlab.devices.cpu.update_calls import UPDATES
from gdlab.op import Axis
from gdlab.plan.dispatch import Dispatch, Gather

LONG = 4096  # longer folds accumulate in float64
# a·bᵀ of so few rows, wider than twice b's: BLAS takes 0.7–0.9 of the time where the result lies transposed, with the
# same bits, and turning it round costs little (EPYC, OpenBLAS 0.3.31 with 1 and 2 threads, 64 x 256 x 2048 and
# 32 x 256 x 784, 2026-11-21).
FEW = 64
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def steps_of(
    d: Dispatch, arrays: Mapping[int, Array], scratch: Scratch, scalars: Mapping[str, Array]
) -> list[Step]:
    """The NumPy calls of one dispatch."""
    bench = Bench(d, arrays, scratch, scalars)
    _KERNELS[d.kernel](bench)
    bench.cut()
    return bench.steps


def _pointwise(bench: Bench) -> None:
    size = bench.d.output_type.num_elements
    bench.chain(bench.d.epilogue, size, None, bench.out((size,)))


def _matmul(bench: Bench) -> None:
    p = bench.d.matmul
    assert p is not None  # the table asks by kernel
    a = bench.operand(0, (p.m, p.k)) if p.a == "mk" else bench.operand(0, (p.k, p.m)).T
    b = bench.operand(1, (p.k, p.n)) if p.b == "kn" else bench.operand(1, (p.n, p.k)).T
    if p.parts > 1:  # of a plan for hardware
        out, size = bench.out((p.parts, p.m, p.n)), -(-p.k // p.parts)
        for part, ks in enumerate(slice(i * size, (i + 1) * size) for i in range(p.parts)):
            bench.steps.append((a[:, ks].dot, (b[ks], out[part])))
        return
    out = bench.out((p.m, p.n))
    if p.a == "mk" and p.b == "nk" and p.m <= FEW and p.k >= 2 * p.n >= 4 * FEW:
        lying = bench.temporary((p.n, p.m))
        bench.steps += [(b.T.dot, (a.T, lying)), (np.copyto, (out, lying.T))]
    else:
        bench.steps.append((a.dot, (b, out)))  # the product of `matmul`, 0.4 µs sooner
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
    _fold(bench, r.combine, x, bench.out((r.outer, r.inner)))
    if r.finish == "acc" and not bench.d.epilogue:
        return
    acc = build(r.finish, {"acc": array(bench.out(shape)), "n": Number(np.float32(r.count))})
    bench.chain(bench.d.epilogue, size, acc, bench.out(shape))


def _fold(bench: Bench, combine: str, x: Array, out: Array) -> None:
    """Fold the middle axis."""
    outer, length, inner = x.shape
    if combine == "max" and inner == 1:
        bench.row_maxima(x.reshape(outer, length), out)
    elif combine != "sum":
        ufunc = np.maximum if combine == "max" else np.minimum
        bench.steps.append((ufunc.reduce, (x, 1, None, out)))
    elif outer == inner == 1 and length <= LONG:
        bench.steps.append((np.add.reduce, (x.reshape(length), 0, _F64, out.reshape(()))))
    elif length > LONG:  # with a float32 result NumPy would round after every 8192 elements
        total = bench.temporary(out.shape, _F64)
        bench.steps += [(np.add.reduce, (x, 1, _F64, total)), (np.copyto, (out, total))]
    elif inner == 1:  # along memory NumPy sums in pairs
        bench.row_sums(x.reshape(outer, length), out)
    elif outer == 1:
        bench.steps.append((np.ones(length, _F32).dot, (x.reshape(length, inner), out.reshape(inner))))
    else:
        bench.steps.append((np.add.reduce, (x, 1, None, out)))


def _custom(bench: Bench) -> None:
    c = bench.d.custom
    assert c is not None  # the table asks by kernel
    if c.form not in FORMS:
        raise CompileError(f"dispatch {bench.d.index}", "kernel on cpu", c.form, f"one of {', '.join(FORMS)}")
    FORMS[c.form](bench, c)
    bench.finish(bench.d.output_type.num_elements)


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


_KERNELS: dict[str, Callable[[Bench], None]] = {
    "pointwise": _pointwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "custom": _custom,
    "movement": _movement,
    **UPDATES,
}
