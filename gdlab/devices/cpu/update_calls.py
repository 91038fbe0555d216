"""The NumPy calls of update kernels: SGD, Adam, AdamW, LaProp, and the sums of gradients over several steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.devices.cpu.chain import Step

_ONE = np.float32(1)
BLOCK = 1 << 17  # numbers: what is written by one call is in the cache of the next
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


def _rate(bench: Bench, first: bool) -> Array:
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


def _blocks(bench: Bench) -> Iterator[tuple[Array, ...]]:
    """What the dispatch updates, its gradient, and a temporary: whole, or in parts that stay in the cache while
    all calls of one part run (Adam on 8 million numbers: 24 ms whole, 14 ms in parts; Xeon 2.5 GHz, 2026-11-21)."""
    written = bench.d.in_place or (bench.d.output,)
    kept = [_range(bench, bench.arrays[b]) for b in written]
    arrays = [*kept, _range(bench, bench.operand(0, bench.arrays[bench.d.output].shape))]
    size = arrays[0].size
    if size <= BLOCK or not all(a.flags.c_contiguous for a in arrays):
        yield *arrays, bench.temporary(arrays[0].shape)
        return
    temporary, flat = bench.temporary((BLOCK,)), [a.reshape(-1) for a in arrays]
    for start in range(0, size, BLOCK):
        part = [a[start : start + BLOCK] for a in flat]
        yield *part, temporary[: len(part[0])]


def _gradient(bench: Bench, g: Array, t: Array) -> Array:
    """The gradient; times the factor that clips it (in `t`) where the dispatch has one as its second operand."""
    if len(bench.d.operands) == 1:
        return g
    factor = bench.arrays[bench.d.operands[1].buffer].reshape(())
    bench.steps.append((np.multiply, (g, factor, t)))
    return t


def _sgd(bench: Bench) -> None:
    rate = _rate(bench, first=False)
    for p, g, t in _blocks(bench):
        g = _gradient(bench, g, t)
        bench.steps += [(np.multiply, (g, rate, t)), (np.subtract, (p, t, p))]


def _moments(bench: Bench, normalized: bool, decayed: bool) -> None:
    """Adam and its kin. `normalized`: the gradient is divided by √v̂ + ε before it enters the first moment."""
    rate, decay = _rate(bench, first=True), _decay(bench) if decayed else None
    second = bench.temporary((BLOCK,)) if len(bench.d.operands) > 1 or normalized else None
    for p, m, v, g, t in _blocks(bench):
        u = second if second is None else _like(bench, second, p)
        g = _gradient(bench, g, t if u is None else u)
        if decay is not None:  # p − lr·k·(decay·p + …)
            bench.steps += [(np.multiply, (p, decay, t)), (np.subtract, (p, t, p))]
        bench.steps += _moved(bench.scalars, p, m, v, g, t, u if normalized else None, rate)


def _like(bench: Bench, block: Array, p: Array) -> Array:
    """A second temporary of the shape of `p`: of the block where it is flat, else its own."""
    return block[: p.size].reshape(p.shape) if p.size <= BLOCK else bench.temporary(p.shape)


def _moved(
    s: Mapping[str, Array], p: Array, m: Array, v: Array, g: Array, t: Array, u: Array | None, rate: Array
) -> list[Step]:
    """The calls that move moments and parameter."""
    first = [(np.multiply, (m, s["beta1"], m)), (np.multiply, (g, s["rest1"], t)), (np.add, (m, t, m))]
    second = [
        (np.multiply, (g, g, t)),
        (np.multiply, (t, s["rest2"], t)),
        (np.multiply, (v, s["beta2"], v)),
        (np.add, (v, t, v)),
        (np.multiply, (v, s["correction2"], t)),
        (np.sqrt, (t, t)),
        (np.add, (t, s["epsilon"], t)),
    ]
    last = [(np.multiply, (t, rate, t)), (np.subtract, (p, t, p))]
    if u is None:
        return [*first, *second, (np.divide, (m, t, t)), *last]
    third = [(np.divide, (g, t, u)), (np.multiply, (u, s["rest1"], u)), (np.multiply, (m, s["beta1"], m))]
    return [*second, *third, (np.add, (m, u, m)), (np.multiply, (m, rate, t)), last[1]]


def _decay(bench: Bench) -> Array:
    """The part of a parameter that it loses."""
    fall = bench.temporary(())
    bench.steps.append((np.multiply, (_rate(bench, first=False), bench.scalars["decay"], fall)))
    return fall


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
