"""The networks of the peers: one in NumPy by hand with its derivative, all for libraries that have derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab import models
from gdlab.graph import Graph
from gdlab.session import initial_values

Arrays = dict[str, Any]
BATCH = 32


@dataclass(frozen=True, slots=True)
class PeerCase:
    """A network with its data: `notes` of the project call them mlp, xf, xfL and xfM."""

    name: str
    config: models.MlpConfig | models.TransformerLmConfig
    length: int

    def graph(self, training: bool) -> Graph:
        """Ours: to the loss, or to the logits."""
        if isinstance(self.config, models.MlpConfig):
            return models.mlp(self.config, self.length, "training" if training else "inference")
        graph = models.transformer_lm(self.config, self.length, "training" if training else "prefill")
        if not training:
            graph.set_outputs({"logits": graph.outputs[0]})
        return graph

    def weights(self) -> Arrays:
        """The values that `initialize(0)` gives."""
        nodes = self.graph(True).parameters
        return {n.name: initial_values(n.name, n.type.shape, 0, dict(n.attrs)["init"]) for n in nodes}

    def data(self) -> Arrays:
        """One batch by the names of the inputs; labels are one-hot."""
        rng = np.random.default_rng(0)
        if isinstance(self.config, models.MlpConfig):
            x, count = rng.normal(size=(self.length, self.config.inputs)).astype(np.float32), self.config.classes
            return {"x": x, "labels": one_hot(rng.integers(0, count, self.length), count)}
        ids = rng.integers(0, self.config.vocab_size, self.length + 1)
        return {"token_ids": ids[:-1].astype(np.uint32), "labels": one_hot(ids[1:], self.config.vocab_size)}


def one_hot(classes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """f32[n, count]."""
    return np.eye(count, dtype=np.float32)[classes]


CASES = {
    case.name: case
    for case in (
        PeerCase("mlp", models.MlpConfig(), BATCH),
        PeerCase("xf", models.TransformerLmConfig(256, 256, 4, 4, 4, 1024), 64),
        PeerCase("xfL", models.TransformerLmConfig(256, 256, 24, 4, 4, 1024), 64),
        PeerCase("xfM", models.TransformerLmConfig(1024, 1024, 8, 16, 16, 4096), 512),
    )
}


# for libraries with derivatives: `F` gives relu, silu, rms_norm, rope and attention ----------------------------------
def logits_of(F: Any, case: PeerCase, p: Arrays, data: Arrays) -> Any:
    """The logits of the network, [rows, classes]."""
    if isinstance(case.config, models.MlpConfig):
        return _mlp(F, len(case.config.hidden) + 1, p, data["x"])
    return _lm(F, case.config, p, data["token_ids"])


def _mlp(F: Any, layers: int, p: Arrays, h: Any) -> Any:
    for i in range(1, layers + 1):
        h = h @ p[f"fc{i}.weight"] + p[f"fc{i}.bias"]
        h = F.relu(h) if i < layers else h
    return h


def _lm(F: Any, c: models.TransformerLmConfig, p: Arrays, ids: Any) -> Any:
    x, rows = p["model.embed_tokens.weight"][ids], len(ids)
    for i in range(c.num_hidden_layers):
        w = {name.split(f"layers.{i}.", 1)[1]: a for name, a in p.items() if f"model.layers.{i}." in name}
        h = F.rms_norm(x, w["input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = ((h @ w[f"self_attn.{n}_proj.weight"]).reshape(rows, -1, c.head_dim) for n in "qkv")
        mixed = F.attention(F.rope(q, c.rope_theta), F.rope(k, c.rope_theta), v)
        x = x + mixed.reshape(rows, -1) @ w["self_attn.o_proj.weight"]
        h = F.rms_norm(x, w["post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = h @ w["mlp.gate_proj.weight"], h @ w["mlp.up_proj.weight"]
        x = x + (F.silu(gate) * up) @ w["mlp.down_proj.weight"]
    return F.rms_norm(x, p["model.norm.weight"], c.rms_norm_eps) @ p["lm_head.weight"]


# by hand --------------------------------------------------------------------------------------------------------------
class ByHand:
    """The multi-layer perceptron as people write it in NumPy, float32."""

    def __init__(self, case: PeerCase, rule: str) -> None:
        assert isinstance(case.config, models.MlpConfig)
        self.layers, self.rule = len(case.config.hidden) + 1, rule
        self.p, self.data, self.steps, self.loss = case.weights(), case.data(), 0, 0.0
        self.m = {name: np.zeros_like(a) for name, a in self.p.items()}
        self.v = {name: np.zeros_like(a) for name, a in self.p.items()}

    def step(self) -> None:
        """Forward, backward and update; without a rule forward only."""
        hidden = [self.data["x"]]
        for i in range(1, self.layers + 1):
            h = hidden[-1] @ self.p[f"fc{i}.weight"]
            h += self.p[f"fc{i}.bias"]
            hidden.append(np.maximum(h, 0, out=h) if i < self.layers else h)
        if self.rule != "inference":
            self._update(self._gradients(hidden))

    def _gradients(self, hidden: list[Any]) -> Arrays:
        z, y = hidden[-1], self.data["labels"]
        z -= z.max(axis=1, keepdims=True)
        back = np.exp(z)
        total = back.sum(axis=1, keepdims=True)
        self.loss = float((y * (np.log(total) - z)).sum() / len(y))
        back /= total
        back -= y
        back /= len(y)
        found: Arrays = {}
        for i in range(self.layers, 0, -1):
            found[f"fc{i}.weight"], found[f"fc{i}.bias"] = hidden[i - 1].T @ back, back.sum(axis=0)
            if i > 1:
                back = back @ self.p[f"fc{i}.weight"].T
                back *= hidden[i - 1] > 0
        return found

    def _update(self, gradients: Arrays) -> None:
        self.steps += 1
        short, long = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for name, g in gradients.items():
            if self.rule == "SGD":
                g *= RATES["SGD"]
                self.p[name] -= g
                continue
            m, v = self.m[name], self.v[name]
            m *= 0.9
            m += 0.1 * g
            v *= 0.999
            v += 0.001 * g * g
            self.p[name] -= RATES["Adam"] * (m / short) / (np.sqrt(v / long) + 1e-8)

    def wait(self) -> None:
        """Nothing is in flight."""

    def read_loss(self) -> float:
        """Of the last step."""
        return self.loss


RATES = {"SGD": 1e-2, "Adam": 1e-3}
Maker = Callable[[PeerCase, str], Any]
