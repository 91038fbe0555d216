"""NumPy forms of kernels that only copy."""

from __future__ import annotations

import numpy as np

from gdlab.devices.cpu.builder import Bench
from gdlab.plan.dispatch import Custom


def _concat(bench: Bench, c: Custom) -> None:
    out = bench.out((bench.d.output_type.num_elements // c["RUN"], c["RUN"]))
    for k in range(len(c.names)):
        size, end = c[f"PART{k}"], c[f"END{k}"]
        bench.steps.append((np.copyto, (out[:, end - size : end], bench.operand(k, (len(out), size)))))


def _materialize(bench: Bench, c: Custom) -> None:
    shape = (bench.d.output_type.num_elements,)
    bench.steps.append((np.copyto, (bench.out(shape), bench.operand(0, shape))))


FORMS = {"concat": _concat, "materialize": _materialize}
