"""Measure everything before the first step: import, the passes, the layouts, and a cell on its way to a picture."""

from __future__ import annotations

import gzip
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROUNDS, Row, seconds_of, spread
from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.graph import Graph, Value
from gdlab.plan import compile
from gdlab.rewrite import RULES, Rewrite, optimize, rule
from gdlab.study.study import Study
from gdlab.view.document.stage_table import derivative_lanes
from gdlab.view.layout.drawn import Drawn
from gdlab.view.layout.lanes import lanes
from gdlab.view.layout.layered import layered
from tests.helpers import networks

TOUR = Path(__file__).parents[1] / "notebooks" / "tour.ipynb"
SMALL, LARGE = 298, 2300
DRAWN = {1236: 60, 6236: 350}  # nodes: ms
EXPLODING = 780
BARS = {SMALL: 20, 500: None, LARGE: 150, 5720: 350, 19_020: 1300}  # nodes: ms of the whole call


@cache
def differentiated(nodes: int) -> tuple[Graph, AutodiffReport]:
    """A transformer in primitives with its derivative, `nodes` nodes or a few less."""
    return differentiate(networks.written_with(nodes, lambda graph: len(differentiate(graph)[0])))


def drawn(nodes: int) -> list[Drawn]:
    """The same as the layouts see it."""
    graph, report = differentiated(nodes)
    lane, twin = derivative_lanes(len(graph), report.forward_nodes, report.adjoint_of)
    return [Drawn(n.op, n.name, str(n.type), n.inputs, not n.inputs, lane[n.id], twin[n.id]) for n in graph]


def pass_rows() -> Iterator[Row]:
    """optimize on training graphs of five sizes, compile on two of them."""
    yield from optimize_rows()
    for nodes in (SMALL, LARGE):
        graph, _ = differentiated(nodes)
        taken = seconds_of(partial(compile, graph, mode="training"))
        plan = compile(graph, mode="training")
        bar = "; bar 150 ms at 2,000 nodes" if nodes == LARGE else ""
        what = f"to {len(plan.dispatches):,} dispatches in {len(plan.groups)} groups{bar}"
        yield Row(f"compile, {len(graph):,} nodes", spread(taken, "ms", 1e3), what)


def optimize_rows() -> Iterator[Row]:
    """The whole call by both engines, how it grows, and a rule that lets every e-graph explode."""
    per_node: dict[int, float] = {}
    for nodes, bar in BARS.items():
        graph, _ = differentiated(nodes)
        taken = seconds_of(partial(optimize, graph, phase="full"))
        per_node[nodes] = statistics.median(taken) / len(graph)
        final, report = optimize(graph, phase="full")
        what = f"to {len(final):,}, {sum(n for _, n in report.rules_fired)} rewrites"
        what += f"; bar {bar:,} ms" if bar else ""
        yield Row(f"optimize, {len(graph):,} nodes", spread(taken, "ms", 1e3), what)
    growth = per_node[19_020] / per_node[500]
    yield Row("optimize, time per node, 19,020 : 500", f"**{growth:.2f}**", "bar 2")
    graph, _ = differentiated(LARGE)
    taken = seconds_of(partial(optimize, graph, phase="full", engine="fallback"))
    yield Row(f"optimize without egglog, {len(graph):,} nodes", spread(taken, "ms", 1e3), "the same graph")
    graph, _ = differentiated(EXPLODING)
    with exploding():
        taken = seconds_of(partial(optimize, graph, phase="full", allow="reassoc"))
        reason = optimize(graph, phase="full", allow="reassoc")[1].stop_detail
    what = f"{reason}; bar 1,000 ms"
    yield Row(f"optimize, associativity of add, {len(graph):,} nodes", spread(taken, "ms", 1e3), what)


@contextmanager
def exploding() -> Iterator[None]:
    """The associativity of addition, which no table should hold."""

    @rule(safety="reassoc")
    def assoc_add(x: Value, y: Value, z: Value) -> Rewrite:
        """x + (y + z) is (x + y) + z."""
        return x + (y + z) >> x + y + z  # type: ignore[no-any-return]

    try:
        yield
    finally:
        RULES.remove("assoc_add")


def layout_rows() -> Iterator[Row]:
    """Both layouts at the sizes of two language models, and how they grow."""
    for name, engine in (("lanes", lanes), ("layered", layered)):
        middle = []
        for size, bar in DRAWN.items():
            nodes = drawn(size)
            taken = seconds_of(partial(engine, nodes))
            middle.append(statistics.median(taken))
            growth = f", {middle[-1] / middle[0]:.1f} times that of {min(DRAWN):,} (bar 8)" if len(middle) > 1 else ""
            yield Row(f"layout ({name}), {len(nodes):,} nodes", spread(taken, "ms", 1e3), f"bar {bar} ms{growth}")


def document_rows() -> Iterator[Row]:
    """The document of a large training graph from its finished stages and plan; then its bytes, also in gzip."""
    study = Study(networks.experts(), train=True, device="cpu")
    _ = study.plan, study.written_derivative
    nodes = len(study.derivative)
    yield Row(f"document, {nodes:,} nodes", spread(seconds_of(lambda: study.doc), "ms", 1e3), "bar 400 ms")
    document = study.doc
    taken, size = seconds_of(document.json), len(document.json())
    packed = len(gzip.compress(document.json(), 5))
    what = f"{size / 1e6:.1f} MB (bar 4), {packed / 1e6:.2f} MB in gzip (bar 1)"
    yield Row(f"its JSON, {nodes:,} nodes", spread(taken, "ms", 1e3), what)


def import_row() -> Row:
    """`import gdlab` in a fresh process, and NumPy's share; without bytecode where the environment forbids it."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    found: dict[str, list[float]] = {"gdlab": [], "numpy": []}
    for _ in range(ROUNDS):
        for name, taken in found.items():
            taken.append(float(_child(code.format(name))))
    numpy_alone = statistics.median(found["numpy"]) * 1e3
    return Row("import gdlab", spread(found["gdlab"], "ms", 1e3), f"NumPy alone {numpy_alone:.0f} ms")


def picture_rows() -> Iterator[Row]:
    """The kernel's side of a `%%graph` cell of the tour: run, study, plan, document, bundle of text, SVG and data."""
    code = "from benchmarks.passes import tour_cells, picture_seconds; import gdlab.jupyter.magics  # as %load_ext does"
    code += "\nprint(picture_seconds(*tour_cells()[0]))"
    first = [float(_child(code)) for _ in range(ROUNDS)]
    yield Row("cell to picture, first, `mlp`", spread(first, "ms", 1e3), "bar 500 ms to the page")
    for name, header, body in tour_cells():
        taken = seconds_of(partial(picture_seconds, name, header, body))
        yield Row(f"cell to picture, warm, `{name}`", spread(taken, "ms", 1e3), "bar 150 ms to the page")


def tour_cells() -> list[tuple[str, str, str]]:
    """Name, magic line and body of the tour's `%%graph … --train` cells."""
    cells = ["".join(cell["source"]) for cell in json.loads(TOUR.read_text("utf-8"))["cells"]]
    found = [cell.partition("\n") for cell in cells if cell.startswith("%%graph")]
    return [(head.split()[1], head, body) for head, _, body in found if "--train" in head]


def picture_seconds(name: str, header: str, body: str) -> float:
    """Seconds from the text of a cell to its MIME bundle."""
    from gdlab.jupyter.cell import run_cell
    from gdlab.jupyter.display import bundle

    start = time.perf_counter()
    program = run_cell(name, header, body, {"np": np}, 1)
    study = Study(program.graph, train=True, device="cpu", name=name, source={program.file: program.text})
    data: dict[str, Any] = bundle(study.doc, ["opt"])[0]
    taken = time.perf_counter() - start
    if "image/svg+xml" not in data:
        raise RuntimeError(f"{name}: no picture came of it")
    return taken


def _child(code: str) -> str:
    """The last line that a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOUR.parents[1])
    return done.stdout.splitlines()[-1]
