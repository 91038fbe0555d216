"""Call a graph as a function, at any extent of its bucket axes up to that at which it is compiled."""

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
    "resolve_bucket_axes",
]
