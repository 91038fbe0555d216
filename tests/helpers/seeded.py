"""Values that follow from a name and a shape: the weights of fixtures, here and where the fixtures are made."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

Array = np.ndarray[Any, Any]


def seeded_weights(name: str, shape: tuple[int, ...]) -> Array:
    """Float32 values of a size that a layer of this shape has: factors about 1, variances above 0."""
    values = 2 * np.random.default_rng(crc32(name.encode())).random(shape) - 1
    if name.endswith("running_var"):
        values = 0.02 + 0.01 * values  # so small that its eps is seen
    elif len(shape) > 1:
        values = values * (0.3 if len(shape) == 4 else 2) / np.sqrt(np.prod(shape[1:]))
    else:
        values = 0.3 * values + name.endswith("weight")
    return values.astype(np.float32)


def seeded_input(name: str, shape: tuple[int, ...], below: int = 0) -> Array:
    """An input: integers from 0, or floats in -1 … 1 where `below` is 0."""
    values = np.random.default_rng(crc32(name.encode())).random(shape)
    return (values * below).astype(np.uint32) if below else (2 * values - 1).astype(np.float32)
