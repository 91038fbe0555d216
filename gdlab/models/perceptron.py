"""A classifier of fully connected layers, for training or inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gdlab import ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph
from gdlab.nn import layers


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """The extents of `mlp`; the defaults are those of MNIST."""

    inputs: int = 784
    hidden: tuple[int, ...] = (256, 128)
    classes: int = 10
    activation: layers.Activation = "relu"


def mlp(config: MlpConfig | None = None, batch: int = 32, mode: Literal["training", "inference"] = "training") -> Graph:
    """Return the graph of layers `fc1`, `fc2` … with an activation between them: x f32[batch, inputs] -> logits
    f32[batch, classes].

    Training: input `labels` f32[batch, classes], output the cross entropy. Inference: output the logits.
    """
    config = MlpConfig() if config is None else config
    if mode not in ("training", "inference"):
        raise GraphError("mlp", "mode", repr(mode), "'training' or 'inference'")
    if config.activation not in layers.ACTIVATIONS:
        raise GraphError("mlp", "activation", repr(config.activation), f"one of {', '.join(layers.ACTIVATIONS)}")
    sizes = (config.inputs, *config.hidden, config.classes)
    with Graph() as g:
        h = ops.input("x", (batch, config.inputs))
        for i, (wide, narrow) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
            h = layers.ACTIVATIONS[config.activation](h) if i > 1 else h
            h = layers.Linear(f"fc{i}", wide, narrow)(h)
        if mode == "inference":
            g.output(h, "logits")
        else:
            g.output(ops.cross_entropy_loss(h, ops.input("labels", (batch, config.classes))), "loss")
    return g
