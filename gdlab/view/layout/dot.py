"""Lay a graph out with `dot` of Graphviz, in a child process with a time limit: a few hundred nodes keep it busy for
minutes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from gdlab.base.words import duration, plural
from gdlab.view.layout.drawn import Drawn, Edge, Layout, node_width
from gdlab.view.layout.layered import auto
from gdlab.view.layout.metrics import NODE, ROW

_MARGIN = 8


class DotFailure(Exception):
    """A failure of dot, with its reason in words for a note."""


def dot_seconds() -> float:
    """Return the limit of one call of dot: `GDLAB_DOT_SECONDS`, 0.1 … 60, else 2."""
    try:
        return min(60.0, max(0.1, float(os.environ.get("GDLAB_DOT_SECONDS", "2"))))
    except ValueError:
        return 2.0


def dot_layout(nodes: Sequence[Drawn]) -> Layout:
    """Return the layout of Graphviz: every node a box, edges as polylines through the control points; raise
    `DotFailure` where dot fails."""
    began = time.perf_counter()
    if not nodes:
        return auto(nodes)
    found = _run(_source(nodes), len(nodes))
    high = float(found["bb"].split(",")[3])
    x, y, w = [-1] * len(nodes), [-1] * len(nodes), [node_width(n) for n in nodes]
    for each in found.get("objects", ()):
        i, (cx, cy) = int(each["name"]), _point(each["pos"])
        x[i], y[i] = round(cx) - w[i] // 2 + _MARGIN, round(high - cy) - NODE // 2 + _MARGIN
    edges = []
    for each in found.get("edges", ()):
        a, b = (int(found["objects"][each[end]]["name"]) for end in ("tail", "head"))
        points = [_point(p) for p in each["pos"].removeprefix("e,").split(" ")]
        ordered = [*points[1::3], points[0]] if each["pos"].startswith("e,") else points[::3]
        line = tuple((round(px) + _MARGIN, round(high - py) + _MARGIN) for px, py in ordered)
        edges.append(Edge(a, b, "param" if nodes[a].leaf else "data", line))
    wide = max(left + width for left, width in zip(x, w, strict=True)) + _MARGIN
    ranks = {top: row for row, top in enumerate(sorted(set(y)))}
    tall = max(y) + ROW + _MARGIN
    return Layout(
        "dot", time.perf_counter() - began, tuple(x), tuple(y), tuple(w), tuple(ranks[top] for top in y),
        (), tuple(edges), (), (), (), wide, tall,
    )  # fmt: skip


def _source(nodes: Sequence[Drawn]) -> str:
    """Return the graph as DOT, with the sizes of our boxes and without labels, so that no label needs quoting."""
    lines = ["digraph {", 'node [shape=box, fixedsize=true, label=""];']
    lines += [f"{i} [width={node_width(n) / 72}, height={NODE / 72}];" for i, n in enumerate(nodes)]
    lines += [f"{a} -> {b};" for b, n in enumerate(nodes) for a in dict.fromkeys(n.inputs)]
    return "\n".join([*lines, "}"])


def _run(source: str, count: int) -> dict[str, Any]:
    limit = dot_seconds()
    try:
        done = subprocess.run(["dot", "-Tjson"], input=source, capture_output=True, text=True, timeout=limit)
    except FileNotFoundError:
        raise DotFailure("not found") from None
    except subprocess.TimeoutExpired:
        raise DotFailure(f"gave up after {duration(limit)} ({plural(count, 'node')})") from None
    except OSError as error:
        raise DotFailure(f"failed: {error.strerror}") from None
    if done.returncode:
        raise DotFailure(f"failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _point(text: str) -> tuple[float, float]:
    x, y = text.split(",")
    return float(x), float(y)
