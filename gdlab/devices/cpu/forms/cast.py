"""NumPy forms of kernels between dtypes."""

from __future__ import annotations

import numpy as np

from gdlab.base.types import Array
from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom


def _assign(x: Array, out: Array) -> None:
    out[...] = x


def _to_f32(bench: Bench, c: Custom) -> None:
    shape = (c.units,)
    bench.steps.append((_assign, (bench.operand(0, shape), bench.out(shape))))


def _truncate(x: Array, out: Array) -> None:
    whole = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=2.0**32, neginf=0.0)
    out[...] = np.clip(whole, 0.0, 2.0**32 - 1).astype(np.uint32)


def _to_u32(bench: Bench, c: Custom) -> None:
    shape = (c.units,)
    bench.steps.append((_truncate, (bench.operand(0, shape), bench.out(shape))))


FORMS = {"to_f32": _to_f32, "to_u32": _to_u32}
