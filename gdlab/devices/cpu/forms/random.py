"""NumPy forms of kernels that draw random numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdlab.base import philox
from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom

Numbers = Callable[[int, int, int, int], Array]  # (count, seed, call, step)


def _uniform(count: int, seed: int, call: int, step: int) -> Array:
    return philox.uniform(count, seed, call=call, step=step)


def _normal(count: int, seed: int, call: int, step: int) -> Array:
    return philox.normal(count, seed, call=call, step=step)


def _drawn(bench: Bench, c: Custom, numbers: Numbers) -> None:
    out, seed, call = bench.out((c["COUNT"],)), c["KEY_HIGH"] << 32 | c["KEY_LOW"], c["CALL"]
    low, high = bench.scalars["step_low"], bench.scalars["step_high"]

    def draw() -> None:
        out[...] = numbers(out.size, seed, call, int(high) << 16 | int(low))

    bench.steps.append((draw, ()))


def _mask(bench: Bench, c: Custom) -> None:
    keep = np.float32(dict(c.numbers)["KEEP"])
    _drawn(bench, c, lambda *stream: _uniform(*stream) < keep)


FORMS = {
    "rand_uniform": lambda bench, c: _drawn(bench, c, _uniform),
    "rand_normal": lambda bench, c: _drawn(bench, c, _normal),
    "bernoulli_mask": _mask,
}
