"""Call a graph as a function, at any extent of its bucket axes up to that at which it is compiled."""

from gdlab.compiled.buckets import bucket_of, checked_buckets, pad_rows, power_of_two_buckets, slice_rows
from gdlab.compiled.extent import (
    EXTENT,
    ExtentReport,
    ExtentStep,
    TrainingReport,
    bounded,
    bounded_with_gradients,
    resolve_bucket_axes,
)

__all__ = [
    "EXTENT",
    "ExtentReport",
    "ExtentStep",
    "TrainingReport",
    "bounded",
    "bounded_with_gradients",
    "bucket_of",
    "checked_buckets",
    "pad_rows",
    "power_of_two_buckets",
    "resolve_bucket_axes",
    "slice_rows",
]
