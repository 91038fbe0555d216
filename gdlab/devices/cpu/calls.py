"""Make the NumPy calls of a dispatch from its own fields: bound once to arrays, then only called."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.types import Array
from gdlab.devices.cpu.builder import NumpyKernelBuilder
from gdlab.devices.cpu.chain_calls import ScalarLiteral, Scratch, array, build
from gdlab.devices.cpu.product_calls import BoundProduct, product
from gdlab.devices.cpu.update_calls import update
from gdlab.op import REGISTRY, Axis, Shader
from gdlab.op.numpy_form import NumpyCall, NumpyForm
from gdlab.ops.norm import sizes_of_rows
from gdlab.plan.dispatch import Dispatch, Gather, Matmul

LONG = 4096  # longer folds accumulate in float64
# a·bᵀ of so few rows, wider than twice b's: BLAS takes 0.7–0.9 of the time where the result lies transposed, with the
# same bits, and turning it round costs little (EPYC, OpenBLAS 0.3.31 with 1 and 2 threads, 64 x 256 x 2048 and
# 32 x 256 x 784, 2026-11-21).
FEW = 64
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def steps_of(
    d: Dispatch, arrays: Mapping[int, Array], scratch: Scratch, scalars: Mapping[str, Array]
) -> list[NumpyCall]:
    """Return the NumPy calls of one dispatch."""
    builder = NumpyKernelBuilder(d, arrays, scratch, scalars)
    _KERNELS[d.kernel](builder)
    builder.cut()
    return builder.calls


def _pointwise(builder: NumpyKernelBuilder) -> None:
    builder.epilogue(builder.size, None)


def _matmul(builder: NumpyKernelBuilder) -> None:
    p = builder.d.matmul
    assert p is not None  # the table asks by kernel
    a = _rows(builder, p, 0)
    if p.norm is not None:  # of a plan for hardware
        rows = builder.temporary((p.m, p.k))
        size = sizes_of_rows(builder, p.norm.eps, a)
        builder.calls += [(np.multiply, (a, size, rows)), (np.multiply, (rows, builder.operand(2, (p.k,)), rows))]
        a = rows
    b, dual = _factor(builder, p, 1), None
    if p.dual is not None:  # of a plan for hardware
        dual, rows = builder.temporary((p.m, p.n)), _rows(builder, p, p.rows_operand) if p.dual_rows else a
        builder.product(rows, _factor(builder, p, p.dual_operand), dual)
    if p.parts > 1:  # of a plan for hardware
        out, steps = builder.out((p.parts, p.m, p.n)), -(-p.k // p.parts)
        for part, ks in enumerate(slice(i * steps, (i + 1) * steps) for i in range(p.parts)):
            builder.product(a[:, ks], b[ks], out[part])
        return
    out = builder.out((p.m, p.n))
    call = product(a, b, out)
    is_slow = p.a == "mk" and p.b == "nk" and p.m <= FEW and p.k >= 2 * p.n >= 4 * FEW
    if is_slow and not isinstance(call[0], BoundProduct):
        lying = builder.temporary((p.n, p.m))
        builder.calls += [(b.T.dot, (a.T, lying)), (np.copyto, (out, lying.T))]
    else:
        builder.calls.append(call)
    builder.finish(p.m * p.n, dual)


def _rows(builder: NumpyKernelBuilder, p: Matmul, operand: int) -> Array:
    """Return the first factor of a product, [m, k]."""
    return builder.operand(operand, (p.m, p.k)) if p.a == "mk" else builder.operand(operand, (p.k, p.m)).T


def _factor(builder: NumpyKernelBuilder, p: Matmul, operand: int) -> Array:
    """Return the second factor of a product, [k, n]."""
    return builder.operand(operand, (p.k, p.n)) if p.b == "kn" else builder.operand(operand, (p.n, p.k)).T


def _reduce(builder: NumpyKernelBuilder) -> None:
    r = builder.d.reduce
    assert r is not None  # the table asks by kernel
    cube = (r.outer, r.length, r.inner)
    if builder.d.prologue:
        x = builder.temporary((math.prod(cube),))
        builder.prologue(x)
        x = x.reshape(cube)
    else:
        x = builder.operand(0, cube)
    size = r.outer * r.inner
    shape = builder.shape_of(builder.d.epilogue, size)
    _fold(builder, r.combine, x, builder.out((r.outer, r.inner)))
    if r.finish == "acc" and not builder.d.epilogue:
        return
    acc = build(r.finish, {"acc": array(builder.out(shape)), "n": ScalarLiteral(np.float32(r.count))})
    builder.epilogue(size, acc)


def _fold(builder: NumpyKernelBuilder, combine: str, x: Array, out: Array) -> None:
    """Append the fold of the middle axis."""
    outer, length, inner = x.shape
    if combine == "max" and inner == 1:
        builder.row_maxima(x.reshape(outer, length), out)
    elif combine != "sum":
        ufunc = np.maximum if combine == "max" else np.minimum
        builder.calls.append((ufunc.reduce, (x, 1, None, out)))
    elif outer == inner == 1 and length <= LONG:
        builder.calls.append((np.add.reduce, (x.reshape(length), 0, _F64, out.reshape(()))))
    elif length > LONG:  # with a float32 result NumPy would round after every 8192 elements
        total = builder.temporary(out.shape, _F64)
        builder.calls += [(np.add.reduce, (x, 1, _F64, total)), (np.copyto, (out, total))]
    elif inner == 1:  # along memory NumPy sums in pairs
        builder.row_sums(x.reshape(outer, length), out)
    elif outer == 1:
        builder.calls.append((np.ones(length, _F32).dot, (x.reshape(length, inner), out.reshape(inner))))
    else:
        builder.calls.append((np.add.reduce, (x, 1, None, out)))


def _custom(builder: NumpyKernelBuilder) -> None:
    c = builder.d.custom
    assert c is not None  # the table asks by kernel
    form = numpy_form(c.form)
    if form is None:
        wanted = "a kernel with a NumPy form in the record of an op"
        raise CompileError(f"dispatch {builder.d.index}", "kernel on cpu", c.form, wanted)
    form(builder, c)
    builder.finish(builder.size)


def numpy_form(name: str) -> NumpyForm | None:
    """Return the NumPy form of the kernel of this name (`Shader.name`) that the record of an op gives, or None."""
    for op in REGISTRY.values():
        kernel = op.kernel
        while isinstance(kernel, Shader):
            if kernel.numpy_form is not None and kernel.name == name:
                return kernel.numpy_form
            kernel = kernel.in_place
    return None


# gathers --------------------------------------------------------------------------------------------------------------
def _movement(builder: NumpyKernelBuilder) -> None:
    g = builder.d.gather
    assert g is not None  # the table asks by kernel
    operand = builder.arrays[builder.d.operands[0].buffer].reshape(-1)
    out = builder.out(g.shape)
    into, source = taken_part(g, operand)
    if source.size < out.size:
        builder.calls.append((np.copyto, (out, out.dtype.type(g.fill))))
    if source.size:
        builder.calls.append((np.copyto, (out[into], source)))
    builder.finish(out.size)


def taken_part(g: Gather, operand: Array) -> tuple[tuple[slice, ...], Array]:
    """Return the part of the result that is not fill, and a view of the operand's elements that go there."""
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
    """Return the first coordinate that lands in 0 … n − 1, and the number of those that do."""
    first = max(0, -(axis.lo // axis.step)) if axis.lo < 0 else 0
    last = (n - 1 - axis.lo) // axis.step
    if axis.extent is not None:
        last = min(last, axis.extent - 1)
    return first, max(0, last - first + 1)


_KERNELS: dict[str, Callable[[NumpyKernelBuilder], None]] = {
    "pointwise": _pointwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "custom": _custom,
    "movement": _movement,
    "update": update,
}
