"""Train the tour's network with NumPy alone: forward, backward, SGD and Adam by hand. Nothing here knows gdlab."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def loss_and_gradients(weights: Arrays, x: Array, y: Array) -> tuple[float, Arrays]:
    """Mean cross entropy of the rows of `y` against softmax(relu(x·w1 + b1)·w2 + b2), and its derivative."""
    h = x @ weights["w1"]
    h += weights["b1"]
    np.maximum(h, 0, out=h)
    z = h @ weights["w2"]
    z += weights["b2"]
    z -= z.max(axis=1, keepdims=True)
    p = np.exp(z)
    total = p.sum(axis=1, keepdims=True)
    loss = float((y * (np.log(total) - z)).sum() / len(x))
    p *= y.sum(axis=1, keepdims=True) / total
    p -= y
    p /= len(x)  # the derivative by z
    back = p @ weights["w2"].T
    back *= h > 0
    return loss, {"w1": x.T @ back, "b1": back.sum(axis=0), "w2": h.T @ p, "b2": p.sum(axis=0)}


def sgd(weights: Arrays, gradients: Arrays, lr: float) -> None:
    """p -= lr·g, in place."""
    for name, gradient in gradients.items():
        gradient *= lr
        weights[name] -= gradient


@dataclass
class Adam:
    """Kingma and Ba (2015), with ε outside the root."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    steps: int = 0
    m: Arrays = field(default_factory=dict)
    v: Arrays = field(default_factory=dict)

    def update(self, weights: Arrays, gradients: Arrays) -> None:
        """One update in place."""
        self.steps += 1
        short, long = 1 - self.beta1**self.steps, 1 - self.beta2**self.steps
        for name, g in gradients.items():
            m, v = self.m.setdefault(name, np.zeros_like(g)), self.v.setdefault(name, np.zeros_like(g))
            m *= self.beta1
            m += (1 - self.beta1) * g
            v *= self.beta2
            v += (1 - self.beta2) * g * g
            weights[name] -= self.lr * (m / short) / (np.sqrt(v / long) + self.epsilon)
