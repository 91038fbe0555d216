"""Call a graph as a function, at any extent of its bucket axes up to that at which it is compiled."""

from gdlab.compiled.active_extent import (
    EXTENT,
    ExtentReport,
    ExtentStep,
    TrainingReport,
    bounded,
    bounded_with_gradients,
    resolve_bucket_axes,
)
from gdlab.compiled.boundary_values import OutputSlot, TensorSpec
from gdlab.compiled.bucket_cache import BucketedCompileCache, CacheRunInput
from gdlab.compiled.buckets import bucket_of, checked_buckets, pad_rows, power_of_two_buckets, slice_rows
from gdlab.compiled.build_compiled import build_compiled_graph, load_compiled_graph
from gdlab.compiled.capabilities import Capabilities
from gdlab.compiled.compiled_graph import CompiledGraph
from gdlab.compiled.views import RawOutput

__all__ = [
    "EXTENT",
    "BucketedCompileCache",
    "CacheRunInput",
    "Capabilities",
    "CompiledGraph",
    "ExtentReport",
    "ExtentStep",
    "OutputSlot",
    "RawOutput",
    "TensorSpec",
    "TrainingReport",
    "bounded",
    "bounded_with_gradients",
    "bucket_of",
    "build_compiled_graph",
    "checked_buckets",
    "load_compiled_graph",
    "pad_rows",
    "power_of_two_buckets",
    "resolve_bucket_axes",
    "slice_rows",
]
