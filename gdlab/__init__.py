"""A graph IDE in the notebook: write a small network, see it optimized, differentiated, planned, and train it.

    import gdlab as gd
    with gd.Graph() as g:
        x = gd.input("x", (32, 784)); w = gd.parameter("w", (784, 10))
        g.output((x @ w).relu().mean_all())
    study = gd.Study(g, train=True)
    print(study.summary())

In Jupyter: `%load_ext gdlab`, then a `%%graph` cell.

This page states the public names. Ops, graphs and types are loaded at once, every other room when a name of it is
first read. `docs/architecture.md` tells what the rooms hold.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from gdlab.base.binding import BINDINGS as _BINDINGS
from gdlab.base.blas import load_numpy as _load_numpy

# Methods, and names of modules, whose work lies in a later room: class or module -> attribute -> "[property|static]
# module:function". Stated before any class is made; `gdlab.base.binding` imports it when the attribute is first used.
_BINDINGS |= {
    "Value": {
        "__getattr__": "op.record:method_of",
        "__dir__": "op.record:value_dir",
        "T": "property ops.operators:value_transpose",
        "split": "ops.join:split",
        "__add__": "ops.operators:value_add",
        "__radd__": "ops.operators:value_radd",
        "__sub__": "ops.operators:value_sub",
        "__rsub__": "ops.operators:value_rsub",
        "__mul__": "ops.operators:value_mul",
        "__rmul__": "ops.operators:value_rmul",
        "__truediv__": "ops.operators:value_div",
        "__rtruediv__": "ops.operators:value_rdiv",
        "__pow__": "ops.operators:value_pow",
        "__rpow__": "ops.operators:value_rpow",
        "__matmul__": "ops.operators:value_matmul",
        "__rmatmul__": "ops.operators:value_rmatmul",
        "__neg__": "ops.operators:value_neg",
        "__abs__": "ops.operators:value_abs",
        "__getitem__": "ops.operators:value_getitem",
        "__gt__": "ops.operators:value_greater",
        "__ge__": "ops.operators:value_greater_equal",
        "__lt__": "ops.operators:value_less",
        "__le__": "ops.operators:value_less_equal",
    },
    "Graph": {
        "__str__": "op.text:printed",
        "text": "op.text:text_of",
        "decompose": "op.decompose:decompose",
    },
    "ExecutionPlan": {
        "wgsl": "kernels.dispatch_wgsl:plan_wgsl",
        "to_json": "plan.codec:to_json",
        "from_json": "static plan.codec:from_json",
    },
    "EagerSession": {"to_study": "study.from_tape:to_study"},
    "models": {
        "PretrainedModel": "load.pretrained:PretrainedModel",
        "from_pretrained": "load.pretrained:from_pretrained",
    },
    "Document": {"save": "view.saved_views:save"},
    "CompiledGraph": {"doc": "view.document.compiled:compiled_document"},
    "Report": {"doc": "property view.document.listed:report_document"},
    "GgufModel": {"generate": "generate.tokens:generate", "unload": "generate.tokens:unload"},
    "PretrainedModel": {"generate": "generate.tokens:generate", "unload": "generate.tokens:unload"},
    "Tokens": {"progress_line": "jupyter.generating:progress_line"},
    "GraphSession": {"to_study": "study.recorded:to_study"},
    "Session": {"compile": "compiled.build_compiled:compile_session", "controls": "jupyter.controls:controls"},
    "Study": {
        "doc": "property view.document.make:study_doc",
        "save": "view.saved_views:save_study",
        "sweep": "distributed.sweep:sweep",
        "scaling": "distributed.scaling:scaling",
    },
}

_load_numpy()

from gdlab import ops  # noqa: E402
from gdlab.base.errors import *  # noqa: E402, F403
from gdlab.base.errors import __all__ as _errors  # noqa: E402
from gdlab.base.types import DType, TensorType, f16, f32, q4, q8, u32  # noqa: E402
from gdlab.graph import Graph, Node, Value  # noqa: E402
from gdlab.op import Bad, Elementwise, Op, Reduction, Sample, fused, op  # noqa: E402
from gdlab.ops import *  # noqa: E402, F403
from gdlab.ops import __all__ as _ops  # noqa: E402

if TYPE_CHECKING:
    from gdlab import eager, models, nn
    from gdlab.autodiff import AutodiffReport, differentiate
    from gdlab.compiled import BucketedCompileCache, CompiledGraph, build_compiled_graph, load_compiled_graph
    from gdlab.devices.choose import device
    from gdlab.eager.eager_session import EagerSession
    from gdlab.eager.tape_as_graph import grad, value_and_grad
    from gdlab.jupyter.display import widget_of as widget
    from gdlab.jupyter.opening import show
    from gdlab.load.gguf.gguf_model import GgufModel, load_gguf
    from gdlab.load.jaxpr.jax_model import JaxModel, load_jax
    from gdlab.load.nnef.nnef_model import NnefModel, load_nnef
    from gdlab.load.onnx.onnx_model import OnnxModel, load_onnx
    from gdlab.load.pt2.pt2_model import TorchModel, load_pt2, load_torch
    from gdlab.load.safetensors_file import SafeTensorsModel, load_safetensors
    from gdlab.nn import init
    from gdlab.op.text import parse
    from gdlab.plan.compiler import compile
    from gdlab.plan.records import ExecutionPlan
    from gdlab.plan.target import CompileOptions, Limits, Target
    from gdlab.record.executor import GraphExecutor
    from gdlab.record.graph_session import GraphSession
    from gdlab.rewrite import RULES as rules
    from gdlab.rewrite import Budget, OptimizeReport, optimize, rule
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
    from gdlab.session.run.runner import Runner
    from gdlab.study.study import Study
    from gdlab.train import data
    from gdlab.train.data import Batch, DataLoader, InputStream, MnistDataset
    from gdlab.train.trainer import (
        EpochStats,
        LossHistory,
        MetricCallback,
        Optimizer,
        StepMetrics,
        TrainConfig,
        Trainer,
        TrainHistory,
    )
    from gdlab.view.document.document import load_doc

__version__ = "0.1.0"

# Names that are loaded when they are first read: module -> names, `name=other` where the module calls it otherwise.
_LATER: dict[str, str] = {
    "autodiff": "AutodiffReport differentiate",
    "compiled": "BucketedCompileCache CompiledGraph build_compiled_graph load_compiled_graph",
    "devices.choose": "device",
    "eager.tape_as_graph": "grad value_and_grad",
    "eager.eager_session": "EagerSession",
    "jupyter.display": "widget=widget_of",
    "jupyter.magics": "load_ipython_extension=load unload_ipython_extension=unload",
    "jupyter.opening": "show",
    "load.gguf.gguf_model": "GgufModel load_gguf",
    "load.nnef.nnef_model": "NnefModel load_nnef",
    "load.onnx.onnx_model": "OnnxModel load_onnx",
    "load.jaxpr.jax_model": "JaxModel load_jax",
    "load.pt2.pt2_model": "TorchModel load_pt2 load_torch",
    "load.safetensors_file": "SafeTensorsModel load_safetensors",
    "op.text": "parse",
    "plan.compiler": "compile",
    "plan.records": "ExecutionPlan",
    "plan.target": "CompileOptions Limits Target",
    "record.executor": "GraphExecutor",
    "record.graph_session": "GraphSession",
    "rewrite": "Budget OptimizeReport optimize rule rules=RULES",
    "session": "MemorySummary Session SessionConfig build build_inference_session build_session build_session_cached "
    "build_session_unoptimized build_session_with_report compile_training_graph",
    "session.run.runner": "Runner",
    "study.study": "Study",
    "train.data": "Batch DataLoader InputStream MnistDataset",
    "train.trainer": "EpochStats LossHistory MetricCallback Optimizer StepMetrics TrainConfig TrainHistory Trainer",
    "view.document.document": "load_doc",
}
_HOME = {
    name: (module, other or name)
    for module, names in _LATER.items()
    for name, _, other in (word.partition("=") for word in names.split())
}
_MODULES = {
    "data": "train.data",
    "eager": "eager",
    "init": "nn.init",
    "models": "models",
    "nn": "nn",
}  # public names that are modules

__all__ = [
    *_errors, *_ops, "AutodiffReport", "Bad", "Batch", "BucketedCompileCache", "Budget", "CompileOptions",
    "CompiledGraph", "DType", "DataLoader", "EagerSession", "Elementwise", "EpochStats", "ExecutionPlan", "GgufModel",
    "Graph", "GraphExecutor", "GraphSession", "InputStream", "JaxModel", "Limits", "LossHistory", "MemorySummary",
    "MetricCallback", "MnistDataset", "NnefModel", "Node", "OnnxModel", "Op", "OptimizeReport", "Optimizer",
    "Reduction", "Runner", "SafeTensorsModel", "Sample", "Session", "SessionConfig", "StepMetrics", "Study", "Target",
    "TensorType", "TorchModel", "TrainConfig", "TrainHistory", "Trainer", "Value", "build", "build_compiled_graph",
    "build_inference_session", "build_session", "build_session_cached", "build_session_unoptimized",
    "build_session_with_report", "compile", "compile_training_graph", "data", "device", "differentiate", "eager", "f16",
    "f32", "fused", "grad", "init", "load_compiled_graph", "load_doc", "load_gguf", "load_jax", "load_nnef",
    "load_onnx", "load_pt2", "load_safetensors", "load_torch", "models", "nn", "op", "ops", "optimize", "parse", "q4",
    "q8", "rule", "rules", "show", "u32", "value_and_grad", "widget",
]  # fmt: skip


if not TYPE_CHECKING:  # a checker knows the names from above, and should refuse all others

    def __getattr__(name: str) -> object:
        if name in _HOME:
            module, other = _HOME[name]
            found = getattr(_import_module(f"gdlab.{module}"), other)
        elif name in _MODULES:
            found = _import_module(f"gdlab.{_MODULES[name]}")
        else:
            raise AttributeError(f"module 'gdlab' has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
