"""Define `x + 1`, `2 / x`, `x @ w`, `x.T`, `x[:, 1:3]`, `x > 0`: operators of a Value, in terms of ops."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gdlab.base.errors import GraphError, ShapeError
from gdlab.graph import Value, whole
from gdlab.op import Op, is_number
from gdlab.ops import contract, elementwise, functions, movement, select

POWERS: dict[float, Callable[[Value], Value]] = {
    2.0: elementwise.square,
    0.5: elementwise.sqrt,
    -0.5: elementwise.rsqrt,
    -1.0: elementwise.recip,
}


def _plain(number: Any) -> Any:
    """Return a NumPy number as Python's, whose minus does not wrap around and whose quotient does not round early."""
    return number.item() if isinstance(number, np.generic) else number


def add(a: Any, b: Any) -> Value:
    """a + b; a number on either side makes `add_scalar`."""
    if is_number(b):
        return elementwise.add_scalar(a, b)
    return elementwise.add_scalar(b, a) if is_number(a) else elementwise.add(a, b)


def sub(a: Any, b: Any) -> Value:
    """a − b; a number on either side makes `add_scalar`."""
    if is_number(b):
        return elementwise.add_scalar(a, -_plain(b))
    return elementwise.add_scalar(-b, a) if is_number(a) else elementwise.sub(a, b)


def mul(a: Any, b: Any) -> Value:
    """a · b; a number on either side makes `scale`."""
    if is_number(b):
        return elementwise.scale(a, b)
    return elementwise.scale(b, a) if is_number(a) else elementwise.mul(a, b)


def div(a: Any, b: Any) -> Value:
    """a / b; x / 2 makes `scale`, 1 / x `recip`."""
    if is_number(b):
        if b == 0:
            raise GraphError("div", "divisor", b, "a number other than 0")
        return elementwise.scale(a, 1 / _plain(b))
    if not is_number(a):
        return elementwise.div(a, b)
    inverse = elementwise.recip(b)
    return inverse if a == 1 else elementwise.scale(inverse, a)


def power(a: Any, exponent: Any) -> Value:
    """x ** 2 makes `square`, 0.5 `sqrt`, −0.5 `rsqrt`, −1 `recip`, another number `pow_scalar`; x ** y and 2 ** y
    `pow`."""
    if not is_number(exponent):
        return functions.pow(a, exponent)
    named = POWERS.get(_plain(exponent))
    return named(a) if named is not None else elementwise.pow_scalar(a, exponent)


def getitem(x: Value, index: Any) -> Value:
    """x[1], x[:, 1:3], x[..., ::2]: an int drops its axis (of the last one [1] stays)."""
    given = [_entry(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    at = next((i for i, entry in enumerate(given) if entry is Ellipsis), None)
    if at is not None:
        given[at : at + 1] = [builtins.slice(None)] * (x.type.rank - len(given) + 1)
    given += [builtins.slice(None)] * (x.type.rank - len(given))
    if len(given) > x.type.rank:
        raise ShapeError("getitem", "index", f"{len(given)} entries", f"at most {x.type.rank} for {x.type}")
    cuts = [_cut(entry, axis, n) for axis, (entry, n) in enumerate(zip(given, x.shape, strict=True))]
    starts, stops, steps = zip(*cuts, strict=True)
    whole = all(cut == (0, n, 1) for cut, n in zip(cuts, x.shape, strict=True))
    taken = x if whole else movement.slice(x, starts, stops, steps)
    if not any(isinstance(entry, int) for entry in given):
        return taken
    left = tuple(n for n, entry in zip(taken.shape, given, strict=True) if not isinstance(entry, int))
    return movement.reshape(taken, left or (1,))


def _entry(entry: Any) -> Any:
    """Return a NumPy integer as a plain int; anything else as it is."""
    return operator.index(entry) if isinstance(entry, np.integer) else entry


def _cut(entry: Any, axis: int, extent: int) -> tuple[int, int, int]:
    """Return (start, stop, step) of an int or a slice along one axis."""
    if isinstance(entry, int) and not isinstance(entry, bool):
        if not -extent <= entry < extent:
            raise ShapeError("getitem", f"axis {axis}", entry, f"an index in {-extent} … {extent - 1}")
        return entry % extent, entry % extent + 1, 1
    if not isinstance(entry, builtins.slice):
        raise ShapeError("getitem", f"axis {axis}", f"{entry!r:.60}", "an int, a slice or ...")
    try:
        start, stop, step = entry.indices(extent)
    except (TypeError, ValueError) as error:
        raise ShapeError("getitem", f"axis {axis}", _spelled(entry), f"ints, and a step ≥ 1 ({error})") from None
    if step < 1 or start >= stop:
        wanted = f"a step ≥ 1 and at least one of {extent} elements"
        raise ShapeError("getitem", f"axis {axis}", _spelled(entry), wanted)
    return start, stop, step


def _spelled(entry: builtins.slice) -> str:
    parts = [entry.start, entry.stop] + [entry.step] * (entry.step is not None)
    return ":".join("" if part is None else str(part) for part in parts)


# operators that `gdlab/__init__.py` binds to a Value -----------------------------------------------------------------
def _operator(meant: Callable[..., Value]) -> Callable[..., Value]:
    """Return the operator whose left operand is the value; if it fails, no node is left."""
    made = meant if isinstance(meant, Op) else whole(meant)
    return lambda value, *others: made(value, *others)


def _binary(meant: Callable[..., Value], op: Op) -> Callable[..., Value]:
    """Return the operator whose left operand is the value; for two values, `op` without further checks of the other."""
    made = whole(meant)
    return lambda value, other: op(value, other) if isinstance(other, Value) else made(value, other)


def _reflected(meant: Callable[..., Value]) -> Callable[..., Value]:
    """Return the operator whose right operand is the value."""
    made = whole(meant)
    return lambda value, other: made(other, value)


value_add, value_radd = _binary(add, elementwise.add), _reflected(add)
value_sub, value_rsub = _binary(sub, elementwise.sub), _reflected(sub)
value_mul, value_rmul = _binary(mul, elementwise.mul), _reflected(mul)
value_div, value_rdiv = _binary(div, elementwise.div), _reflected(div)
value_pow, value_rpow = _operator(power), _reflected(power)
value_matmul, value_rmatmul = _operator(contract.matmul), _reflected(contract.matmul)
value_neg, value_abs, value_getitem = _operator(elementwise.neg), _operator(elementwise.abs), _operator(getitem)
value_greater, value_greater_equal = _operator(select.greater), _operator(select.greater_equal)
value_less, value_less_equal = _operator(select.less), _operator(select.less_equal)
value_transpose = _operator(movement.transpose)
