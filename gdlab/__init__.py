"""A graph IDE in the notebook: write a small network, see it optimized, differentiated, planned, and train it.

    import gdlab as gd
    with gd.Graph() as g:
        x = gd.input("x", (32, 784)); w = gd.parameter("w", (784, 10))
        g.output((x @ w).relu().mean_all())
    study = gd.Study(g, train=True)
    print(study.summary())

In Jupyter: `%load_ext gdlab`, then a `%%graph` cell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdlab import ops
from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.device import device
from gdlab.errors import *  # noqa: F403
from gdlab.errors import __all__ as _errors
from gdlab.graph import Graph, Node, Value
from gdlab.op import Bad, Elementwise, Op, Reduction, Sample, fused, op
from gdlab.ops import *  # noqa: F403
from gdlab.ops import __all__ as _ops
from gdlab.plan import compile
from gdlab.plan.plan import CompileOptions, ExecutionPlan
from gdlab.rewrite import Budget, OptimizeReport, optimize, rule, rules
from gdlab.runner import Runner
from gdlab.session import Session, build_inference_session, build_session, build_session_with_report
from gdlab.study import VIEWS, Study
from gdlab.text import parse
from gdlab.types import DType, TensorType, f32, u32

__version__ = "0.1.0"
__all__ = [
    *_errors, *_ops, "AutodiffReport", "Bad", "Budget", "CompileOptions", "DType", "Elementwise", "ExecutionPlan",
    "Graph", "Node", "Op", "OptimizeReport", "Reduction", "Runner", "Sample", "Session", "Study", "TensorType",
    "Value", "build_inference_session", "build_session", "build_session_with_report", "compile", "device",
    "differentiate", "f32", "fused", "load_doc", "op", "ops", "optimize", "parse", "rule", "rules", "show", "u32",
]  # fmt: skip


def _view(name: str) -> Callable[..., Any]:
    """A view at its first use: a script that only trains never loads the views (a quarter of the import time)."""

    def first_use(*args: Any) -> Any:
        import gdlab.view.doc  # noqa: F401  # puts the real ones into VIEWS

        return VIEWS[name](*args)

    return first_use


for _name in ("doc", "save"):
    VIEWS.setdefault(_name, _view(_name))  # setdefault: `%reload_ext` comes here again


def load_doc(path: str | Path) -> Any:
    """The document in a `.gdlab.json` or `.gdlab.json.gz` file; `LoadError` for anything else."""
    from gdlab.view.document import load_doc

    return load_doc(path)


def show(thing: Any, *, show: str = "opt", static: bool = False, height: int | None = None) -> None:
    """Display a study, graph or document in the notebook, as `%graph` does."""
    from gdlab.jupyter.display import show_thing

    show_thing(thing, [show], static=static, height=height)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gdlab`."""
    from gdlab.jupyter.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext gdlab`."""
    from gdlab.jupyter.magics import unload

    unload(shell)
