"""The peers in PyTorch on an NVIDIA GPU: eager, and with its compiler; float32 without TF32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.peer_models import RATES, Arrays, Case, logits_of

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")


def _rms_norm(x: Any, w: Any, eps: float) -> Any:
    return torch.nn.functional.rms_norm(x, w.shape, w, eps)


def _rope(x: Any, theta: float) -> Any:
    rows, _, d = x.shape
    pairs = torch.arange(d // 2, device=x.device, dtype=torch.float32)
    angle = torch.arange(rows, device=x.device)[:, None] * theta ** (-2.0 * pairs / d)
    cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    heads = (t.transpose(0, 1)[None] for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0].transpose(0, 1)


F = SimpleNamespace(
    relu=torch.relu, silu=torch.nn.functional.silu, rms_norm=_rms_norm, rope=_rope, attention=_attention
)


class Torch:
    """One case with one rule; `compiled` puts forward and loss through `torch.compile`."""

    def __init__(self, case: Case, rule: str, compiled: bool = False, device: str = "cuda") -> None:
        self.case, self.rule, self.device = case, rule, device
        training = rule != "inference"
        self.p = {n: torch.tensor(a, device=device, requires_grad=training) for n, a in case.weights().items()}
        given = {n: torch.tensor(a.astype("int64") if a.dtype.kind == "u" else a) for n, a in case.data().items()}
        self.data = {n: a.to(device) for n, a in given.items()}
        self.forward = torch.compile(self._forward) if compiled else self._forward
        optimizer = torch.optim.SGD if rule == "SGD" else torch.optim.Adam
        self.optimizer = optimizer(list(self.p.values()), lr=RATES[rule]) if training else None
        self.out: Any = None

    def _forward(self, p: Arrays, data: Arrays) -> Any:
        logits = logits_of(F, self.case, p, data)
        return torch.nn.functional.cross_entropy(logits, data["labels"]) if self.optimizer else logits

    def step(self) -> None:
        """Start one."""
        if self.optimizer is None:
            with torch.no_grad():
                self.out = self.forward(self.p, self.data)
            return
        self.optimizer.zero_grad()
        self.out = self.forward(self.p, self.data)
        self.out.backward()
        self.optimizer.step()

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def read_loss(self) -> float:
        """Of the last step."""
        return float(self.out.detach())
