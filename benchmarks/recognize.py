"""Count the dispatches of a transformer in primitives before and after the optimizer, and say why not fewer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from benchmarks.measure import Row
from gdlab.autodiff import differentiate
from gdlab.graph import Graph
from gdlab.plan import compile
from gdlab.rewrite import Missed, optimize
from tests.helpers import networks

LAYERS = (4, 12, 30)


def optimized(layers: int, train: bool) -> tuple[Graph, Graph, tuple[Missed, ...], float]:
    """The graph as written (differentiated for training), what `optimize` makes of it as a build does, the near misses
    of the last pass, and the seconds that `optimize` took."""
    written = networks.decomposed(layers)
    start = time.perf_counter()
    result, report = optimize(written, phase="forward" if train else "inference")
    taken = time.perf_counter() - start
    if not train:
        return written, result, report.missed, taken
    full, _ = differentiate(result)
    start = time.perf_counter()
    result, report = optimize(full, phase="full")
    return differentiate(written)[0], result, report.missed, taken + time.perf_counter() - start


def recognize_rows() -> Iterator[Row]:
    """Dispatches of 4, 12 and 30 layers, forward and training, and the reasons of the pairs that were not fused."""
    for train in (False, True):
        mode = "training" if train else "inference"
        for layers in LAYERS:
            before, after, missed, taken = optimized(layers, train)
            counts = [len(compile(g, mode=mode).dispatches) for g in (before, after)]
            what = f"recognized transformer, {layers} layers, {'training' if train else 'forward'}"
            nodes = f"{len(before):,} -> {len(after):,} nodes in {taken * 1e3:.0f} ms"
            yield Row(what, f"**{counts[0]:,} -> {counts[1]:,}** dispatches", f"{nodes}; {reasons(missed)}")


def reasons(missed: tuple[Missed, ...]) -> str:
    """`not fused: MatMul+Add→… 12 × multi_use, …`, most frequent first."""
    found = Counter((m.label, m.reason) for m in missed)
    parts = [f"{label} {n} × {reason}" for (label, reason), n in sorted(found.items(), key=lambda i: (-i[1], i[0]))]
    return f"not fused: {', '.join(parts)}" if parts else "every near match was used"


if __name__ == "__main__":
    for row in recognize_rows():
        print(f"{row.what}: {row.figure.replace('**', '')}; {row.beside}")
