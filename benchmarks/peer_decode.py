"""Greedy decoding in PyTorch as a user who cares writes it: packed projections, caches of fixed length, token and
position on the device; eager, in a CUDA graph, compiled, and compiled in a CUDA graph; float32 without TF32."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gdlab.models import TransformerLmConfig

F = torch.nn.functional
POSITIONS = 512  # of the caches
Step = Callable[[], None]


class Decoder:
    """A model whose `step` writes one token: buffers `token` and `position` hold what it reads and what it leaves."""

    def __init__(
        self, config: TransformerLmConfig, weights: Mapping[str, Any], dtype: str, prepare: Callable[[Decoder], Step]
    ) -> None:
        self.c, self.device = config, "cuda" if torch.cuda.is_available() else "cpu"
        self.kind = torch.float16 if dtype == "f16" else torch.float32
        torch.backends.cuda.matmul.allow_tf32 = False
        w = {name: torch.tensor(a).to(self.device, self.kind) for name, a in weights.items()}
        self.nbytes = sum(t.numel() * t.element_size() for t in w.values())
        self.embed, self.norm = w["model.embed_tokens.weight"], w["model.norm.weight"]
        self.head = w["lm_head.weight"]
        self.layers = [self._packed(w, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        del w
        kv, d = config.num_key_value_heads, config.head_dim
        shape = (config.num_hidden_layers, 2, 1, kv, POSITIONS, d)
        self.caches = torch.zeros(shape, device=self.device, dtype=self.kind)
        self.token = torch.zeros(1, dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.places = torch.arange(POSITIONS, device=self.device)
        pairs = torch.arange(d // 2, device=self.device, dtype=torch.float32)
        angles = self.places[:, None] * config.rope_theta ** (-2.0 * pairs / d)
        self.cos, self.sin = torch.cos(angles).to(self.kind), torch.sin(angles).to(self.kind)
        self.forward = self._forward
        with torch.inference_mode():
            self.step = prepare(self)

    def _packed(self, w: dict[str, Any], of: str) -> tuple[Any, ...]:
        parts = lambda *names: torch.cat([w.pop(f"{of}{n}.weight") for n in names])  # noqa: E731
        return (
            w[f"{of}input_layernorm.weight"], parts("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            w[f"{of}self_attn.o_proj.weight"], w[f"{of}post_attention_layernorm.weight"],
            parts("mlp.gate_proj", "mlp.up_proj"), w[f"{of}mlp.down_proj.weight"],
        )  # fmt: skip

    def _rope(self, x: Any, position: Any) -> Any:
        half = self.c.head_dim // 2
        cos, sin, a, b = self.cos[position], self.sin[position], x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _forward(self, token: Any, position: Any) -> Any:
        c, d = self.c, self.c.head_dim
        h, kv = c.num_attention_heads, c.num_key_value_heads
        x = F.embedding(token, self.embed)
        seen = (self.places <= position)[None, None, None]
        for i, (first, qkv, o, second, gate_up, down) in enumerate(self.layers):
            n = F.rms_norm(x, first.shape, first, c.rms_norm_eps)
            q, k, v = (n @ qkv.T).split([h * d, kv * d, kv * d], -1)
            q = self._rope(q.view(h, d), position).view(1, h, 1, d)
            k = self._rope(k.view(kv, d), position).view(1, kv, 1, d)
            self.caches[i, 0].index_copy_(2, position, k)
            self.caches[i, 1].index_copy_(2, position, v.reshape(1, kv, 1, d))
            a = F.scaled_dot_product_attention(q, self.caches[i, 0], self.caches[i, 1], seen, enable_gqa=True)
            x = x + a.reshape(1, h * d) @ o.T
            gate, up = (F.rms_norm(x, second.shape, second, c.rms_norm_eps) @ gate_up.T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ down.T
        logits = F.rms_norm(x, self.norm.shape, self.norm, c.rms_norm_eps) @ self.head.T
        return logits.argmax(-1)

    def advance(self) -> None:
        """Write one token, eager or compiled."""
        self.token.copy_(self.forward(self.token, self.position))
        self.position.add_(1)

    def start(self, prompt: Sequence[int], count: int) -> list[int]:
        """Read a prompt token by token, and return the first tokens behind it."""
        found = []
        with torch.inference_mode():
            self.position.zero_()
            for id in prompt:
                self.token.fill_(id)
                self.step()
            for _ in range(count):
                found.append(int(self.token))
                self.step()
        return found

    def taken(self, count: int) -> float:
        """Seconds per token, one wait at the end."""
        with torch.inference_mode():
            if int(self.position) + count > POSITIONS:
                self.position.fill_(64)
            self.wait()
            start = time.perf_counter()
            for _ in range(count):
                self.step()
            self.wait()
        return (time.perf_counter() - start) / count

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        """Release the memory."""
        self.layers, self.embed, self.head, self.caches, self.step = [], None, None, None, lambda: None
        if self.device == "cuda":
            torch.cuda.empty_cache()


def _eager(decoder: Decoder) -> Step:
    return decoder.advance


def _compiled(decoder: Decoder) -> Step:
    decoder.forward = torch.compile(decoder._forward)
    return decoder.advance


def _graphed(decoder: Decoder) -> Step:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decoder.advance()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.advance()
    return graph.replay


def _compiled_graphed(decoder: Decoder) -> Step:
    decoder.forward = torch.compile(decoder._forward)
    return _graphed(decoder)


WAYS: dict[str, Callable[[Decoder], Step]] = {
    "torch eager": _eager, "torch.compile": _compiled, "torch, CUDA graph": _graphed,
    "torch.compile, CUDA graph": _compiled_graphed,
}  # fmt: skip


def available(way: str, dtype: str) -> bool:
    """Whether it runs here; without a GPU eager float32 alone. The compiler takes its time: for f16 alone."""
    if not torch.cuda.is_available():
        return (way, dtype) == ("torch eager", "f32")
    return "compile" not in way or dtype == "f16"
