"""The NumPy calls of update kernels: SGD, Adam, AdamW, LaProp, and the sums of gradients over several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gdlab.device.bench import Bench
from gdlab.device.chain import Array, Step

_ONE = np.float32(1)
# Numbers of every step that are made of others, in this order: 1 − β₁, 1 − β₂, and lr/(1 − β₁ᵗ).
DERIVED = ("rest1", "rest2", "first_rate")


def derive(scalars: Mapping[str, Array]) -> list[Step]:
    """The calls that compute the derived numbers of a step, once for all parameters."""
    s = scalars
    return [
        (np.subtract, (_ONE, s["beta1"], s["rest1"])),
        (np.subtract, (_ONE, s["beta2"], s["rest2"])),
        (np.multiply, (s["lr"], s["correction1"], s["first_rate"])),
    ]


def _rates(bench: Bench, first: bool) -> Array:
    """The rate of this dispatch, times 1/(1 − β₁ᵗ) if `first`: a shared number unless the dispatch has a factor."""
    s, factor = bench.scalars, _number(bench)
    if factor == 1:
        return s["first_rate" if first else "lr"]
    rate = bench.temporary(())
    bench.steps.append((np.multiply, (s["lr"], factor, rate)))
    if first:
        bench.steps.append((np.multiply, (rate, s["correction1"], rate)))
    return rate


def _number(bench: Bench) -> np.float32:
    """The factor that belongs to the dispatch: of the rate, or of the gradients that are added up."""
    return np.array(bench.d.params[:1] or (0x3F800000,), np.uint32).view(np.float32)[0]  # type: ignore[no-any-return]


def _range(bench: Bench, whole: Array) -> Array:
    """What the dispatch works on: all, or a range of a derived parameter, as a view."""
    if len(bench.d.params) < 2:
        return whole
    period, start, stop = bench.d.params[1:]
    return whole.reshape(-1, period)[:, start:stop]


def _gradient(bench: Bench, t: Array) -> Array:
    """The gradient; times the factor that clips it (in `t`) where the dispatch has one as its second operand."""
    g = _range(bench, bench.operand(0, bench.arrays[bench.d.output].shape))
    if len(bench.d.operands) == 1:
        return g
    factor = bench.arrays[bench.d.operands[1].buffer].reshape(())
    bench.steps.append((np.multiply, (g, factor, t)))
    return t


def _sgd(bench: Bench) -> None:
    p = _range(bench, bench.arrays[bench.d.output])
    t = bench.temporary(p.shape)
    g = _gradient(bench, t)
    bench.steps += [(np.multiply, (g, _rates(bench, first=False), t)), (np.subtract, (p, t, p))]


def _moments(bench: Bench, normalized: bool, decayed: bool) -> None:
    """Adam and its kin. `normalized`: the gradient is divided by √v̂ + ε before it enters the first moment."""
    p, m, v = (_range(bench, bench.arrays[b]) for b in bench.d.in_place)
    t, u = bench.temporary(p.shape), bench.temporary(p.shape) if len(bench.d.operands) > 1 or normalized else None
    g = _gradient(bench, t if u is None else u)
    s = bench.scalars
    rest1, rest2 = s["rest1"], s["rest2"]
    if decayed:  # before the moments touch `t`: p − lr·k·(decay·p + …)
        _decay(bench, p, _rates(bench, first=False))
    rate = _rates(bench, first=True)
    first = [(np.multiply, (m, s["beta1"], m)), (np.multiply, (g, rest1, t)), (np.add, (m, t, m))]
    second = [
        (np.multiply, (g, g, t)),
        (np.multiply, (t, rest2, t)),
        (np.multiply, (v, s["beta2"], v)),
        (np.add, (v, t, v)),
        (np.multiply, (v, s["correction2"], t)),
        (np.sqrt, (t, t)),
        (np.add, (t, s["epsilon"], t)),
    ]
    if normalized:
        assert u is not None  # made above
        third = [(np.divide, (g, t, u)), (np.multiply, (u, rest1, u)), (np.multiply, (m, s["beta1"], m))]
        bench.steps += [*second, *third, (np.add, (m, u, m)), (np.multiply, (m, rate, t))]
    else:
        bench.steps += [*first, *second, (np.divide, (m, t, t)), (np.multiply, (t, rate, t))]
    bench.steps.append((np.subtract, (p, t, p)))


def _decay(bench: Bench, p: Array, rate: Array) -> None:
    """p ← p − rate·decay·p."""
    fall, t = bench.temporary(()), bench.temporary(p.shape)
    bench.steps += [
        (np.multiply, (rate, bench.scalars["decay"], fall)),
        (np.multiply, (p, fall, t)),
        (np.subtract, (p, t, p)),
    ]


def _accumulate(bench: Bench) -> None:
    total = bench.arrays[bench.d.output]
    g, t = bench.operand(0, total.shape), bench.temporary(total.shape)
    bench.steps += [(np.multiply, (g, _number(bench), t)), (np.add, (total, t, total))]


def _clear(bench: Bench) -> None:
    total = bench.arrays[bench.d.output]
    bench.steps.append((np.copyto, (total, np.float32(0))))


UPDATES: dict[str, Callable[[Bench], None]] = {
    "sgd": _sgd,
    "adam": lambda bench: _moments(bench, normalized=False, decayed=False),
    "adamw": lambda bench: _moments(bench, normalized=False, decayed=True),
    "laprop": lambda bench: _moments(bench, normalized=True, decayed=False),
    "accumulate": _accumulate,
    "clear": _clear,
}
