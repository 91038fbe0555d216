"""Layers and initializers: parameters under the names of public checkpoints."""

from gdlab.nn import init
from gdlab.nn.layers import *  # noqa: F403
from gdlab.nn.layers import __all__ as _layers

__all__ = [*_layers, "init"]


def __dir__() -> list[str]:
    return sorted(__all__)
