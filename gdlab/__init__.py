"""A graph IDE in the notebook: write a small network, see it optimized, differentiated, planned, and train it.

    import gdlab as gd
    with gd.Graph() as g:
        x = gd.input("x", (32, 784)); w = gd.parameter("w", (784, 10))
        g.output((x @ w).relu().mean_all())
    study = gd.Study(g, train=True)
    print(study.summary())

In Jupyter: `%load_ext gdlab`, then a `%%graph` cell.

Ops, graphs and types are here at once. Every other name is loaded when somebody first reads it: rooms that a script
never enters cost it nothing, and all of them together take twice as long to load as NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdlab import ops
from gdlab.device import device  # by now: a package that is loaded later would take the name of its function
from gdlab.errors import *  # noqa: F403
from gdlab.errors import __all__ as _errors
from gdlab.graph import UPWARD, Graph, Node, Value
from gdlab.op import Bad, Elementwise, Op, Reduction, Sample, fused, op
from gdlab.ops import *  # noqa: F403
from gdlab.ops import __all__ as _ops
from gdlab.types import DType, TensorType, f16, f32, q4, q8, u32

if TYPE_CHECKING:
    from pathlib import Path

    from gdlab import data, init, load, models, nn, train
    from gdlab.autodiff import AutodiffReport, differentiate
    from gdlab.data import Batch, DataLoader, InputStream, MnistDataset
    from gdlab.load import NnefModel, OnnxModel, SafeTensorsModel, load_nnef, load_onnx, load_safetensors
    from gdlab.plan import compile
    from gdlab.plan.plan import ExecutionPlan
    from gdlab.plan.target import CompileOptions, Limits, Target
    from gdlab.rewrite import RULES as rules
    from gdlab.rewrite import Budget, OptimizeReport, optimize, rule
    from gdlab.runner import Runner
    from gdlab.session import (
        MemorySummary,
        Session,
        SessionConfig,
        build_inference_session,
        build_session,
        build_session_cached,
        build_session_unoptimized,
        build_session_with_report,
        compile_training_graph,
    )
    from gdlab.session.build import build
    from gdlab.study import Study
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

__version__ = "0.1.0"
__all__ = [
    *_errors, *_ops, "AutodiffReport", "Bad", "Batch", "Budget", "CompileOptions", "DType", "DataLoader", "Elementwise",
    "EpochStats", "ExecutionPlan", "Graph", "InputStream", "Limits", "LossHistory", "MemorySummary", "MetricCallback",
    "MnistDataset", "NnefModel", "Node", "OnnxModel", "Op", "OptimizeReport", "Optimizer", "Reduction", "Runner",
    "SafeTensorsModel", "Sample", "Session", "SessionConfig", "StepMetrics", "Study", "Target", "TensorType",
    "TrainConfig", "TrainHistory", "Trainer", "Value", "build", "build_inference_session", "build_session",
    "build_session_cached", "build_session_unoptimized", "build_session_with_report", "compile",
    "compile_training_graph", "data", "device", "differentiate", "f16", "f32", "fused", "init", "load", "load_doc",
    "load_nnef", "load_onnx", "load_safetensors",
    "models", "nn", "op", "ops", "optimize", "parse", "q4", "q8", "rule", "rules", "show", "train", "u32", "widget",
]  # fmt: skip

# Names that are loaded at first use, by the room that has them (the imports above are for type checkers alone).
_LATER: dict[str, str] = {
    "autodiff": "AutodiffReport differentiate",
    "data": "Batch DataLoader InputStream MnistDataset",
    "load": "NnefModel OnnxModel SafeTensorsModel load_nnef load_onnx load_safetensors",
    "plan": "compile",
    "plan.plan": "ExecutionPlan",
    "plan.target": "CompileOptions Limits Target",
    "rewrite": "Budget OptimizeReport optimize rule rules",
    "runner": "Runner",
    "session": "MemorySummary Session SessionConfig build build_inference_session build_session build_session_cached "
    "build_session_unoptimized build_session_with_report compile_training_graph",
    "study": "Study",
    "text": "parse",
    "train": "EpochStats LossHistory MetricCallback Optimizer StepMetrics TrainConfig TrainHistory Trainer",
}
_ROOM_OF = {name: room for room, names in _LATER.items() for name in names.split()}
_ROOMS = frozenset(
    """autodiff cost data decompose feeds init kernels load models nn nodevalues nonfinite parity philox plan quant
    reference rewrite runner session steps study text train until view""".split()
)


if not TYPE_CHECKING:  # a checker knows the names from above, and should refuse all others

    def __getattr__(name: str) -> Any:
        if name in _ROOM_OF:
            found = globals()[name] = getattr(import_module(f"gdlab.{_ROOM_OF[name]}"), name)
            return found
        if name in _ROOMS:
            return import_module(f"gdlab.{name}")
        raise AttributeError(f"module 'gdlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


def _at_first_use(room: str, name: str) -> Callable[..., Any]:
    """What hangs in `UPWARD` until somebody needs it: it loads the room, which hangs the real one there."""

    def first(*args: Any) -> Any:
        import_module(f"gdlab.{room}")
        return UPWARD[name](*args)

    return first


for _room, _name in (
    ("text", "str"), ("text", "text"), ("decompose", "decompose"), ("view.doc", "doc"), ("view.doc", "save"),
    ("jupyter.controls", "controls"),
):  # fmt: skip
    UPWARD.setdefault(_name, _at_first_use(_room, _name))  # setdefault: `%reload_ext` comes here again


def load_doc(path: str | Path) -> Any:
    """The document in a `.gdlab.json` or `.gdlab.json.gz` file; `LoadError` for anything else."""
    from gdlab.view.document import load_doc

    return load_doc(path)


def show(thing: Any, *, show: str | Sequence[str] | None = None, **options: Any) -> None:
    """Display a study, graph, report, plan, session, document or file in the notebook: `%graph` as a function, with the
    same options by the same names (`train=True, run=20, feed="random:0", height=300, around="h:1"` …). `no`, `only`
    and `show` take one or several; `feed` and `diff` the thing itself."""
    from gdlab.jupyter.opening import show_with

    show_with(thing, [show] if isinstance(show, str) else show and list(show), **options)


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
