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

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gdlab import data, init, load, models, nn, ops, train
from gdlab import decompose as _decompose  # noqa: F401  (`graph.decompose()`)
from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.data import Batch, DataLoader, InputStream, MnistDataset
from gdlab.device import device
from gdlab.errors import *  # noqa: F403
from gdlab.errors import __all__ as _errors
from gdlab.graph import Graph, Node, Value
from gdlab.load import SafeTensorsModel, load_safetensors
from gdlab.op import Bad, Elementwise, Op, Reduction, Sample, fused, op
from gdlab.ops import *  # noqa: F403
from gdlab.ops import __all__ as _ops
from gdlab.plan import compile
from gdlab.plan.plan import CompileOptions, ExecutionPlan
from gdlab.rewrite import Budget, OptimizeReport, optimize, rule, rules
from gdlab.runner import Runner
from gdlab.session import (
    MemorySummary,
    Session,
    SessionConfig,
    build,
    build_inference_session,
    build_session,
    build_session_cached,
    build_session_unoptimized,
    build_session_with_report,
    compile_training_graph,
)
from gdlab.study import VIEWS, Study
from gdlab.text import parse
from gdlab.train import (
    EpochStats,
    LossHistory,
    MetricCallback,
    Optimizer,
    StepMetrics,
    TrainConfig,
    Trainer,
    TrainHistory,
)
from gdlab.types import DType, TensorType, f16, f32, q4, q8, u32

__version__ = "0.1.0"
__all__ = [
    *_errors, *_ops, "AutodiffReport", "Bad", "Batch", "Budget", "CompileOptions", "DType", "DataLoader", "Elementwise",
    "EpochStats", "ExecutionPlan", "Graph", "InputStream", "LossHistory", "MemorySummary", "MetricCallback",
    "MnistDataset", "Node", "Op", "OptimizeReport", "Optimizer", "Reduction", "Runner", "SafeTensorsModel", "Sample",
    "Session", "SessionConfig", "StepMetrics", "Study", "TensorType", "TrainConfig", "TrainHistory", "Trainer", "Value",
    "build", "build_inference_session", "build_session", "build_session_cached", "build_session_unoptimized",
    "build_session_with_report", "compile", "compile_training_graph", "data", "device", "differentiate", "f16", "f32",
    "fused", "init", "load", "load_doc", "load_safetensors", "models", "nn", "op", "ops", "optimize", "parse", "q4",
    "q8", "rule", "rules", "show", "train", "u32", "widget",
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


def show(
    thing: Any, *, show: str | Sequence[str] = "opt", static: bool = False, height: int | None = None, **view: Any
) -> None:
    """Display a study, graph, report, plan, session, document or file in the notebook, as `%graph` does; `view` are its
    other options: overlay, engine, depth, around, diff."""
    from gdlab.jupyter.opening import show_with

    show_with(thing, [show] if isinstance(show, str) else list(show), static=static, height=height, **view)


def widget(thing: Any) -> Any:
    """The live view of a study or graph as one AnyWidget, for hosts without magics: marimo, VS Code, Colab."""
    from gdlab.jupyter.display import widget_of

    return widget_of(thing)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gdlab`."""
    from gdlab.jupyter.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext gdlab`."""
    from gdlab.jupyter.magics import unload

    unload(shell)
