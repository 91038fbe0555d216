"""The peers in PyTorch on an NVIDIA GPU as a user who cares writes them: fused optimizers, rotary tables made once, the
whole step in a CUDA graph, and that with its compiler too; float32 without TF32."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.peer_models import RATES, Arrays, PeerCase, logits_of

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")


def _rms_norm(x: Any, w: Any, eps: float) -> Any:
    return torch.nn.functional.rms_norm(x, w.shape, w, eps)


@cache
def _tables(rows: int, d: int, theta: float, device: str) -> Any:
    pairs = torch.arange(d // 2, device=device, dtype=torch.float32)
    angle = torch.arange(rows, device=device)[:, None] * theta ** (-2.0 * pairs / d)
    return torch.cos(angle)[:, None], torch.sin(angle)[:, None]


def _rope(x: Any, theta: float) -> Any:
    rows, _, d = x.shape
    cos, sin = _tables(rows, d, theta, str(x.device))
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    heads = (t.transpose(0, 1)[None] for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0].transpose(0, 1)


F = SimpleNamespace(
    relu=torch.relu, silu=torch.nn.functional.silu, rms_norm=_rms_norm, rope=_rope, attention=_attention
)


class Torch:
    """One case with one rule; `compiled` puts forward and loss through `torch.compile`, `graphed` records a whole step
    into a CUDA graph."""

    def __init__(
        self, case: PeerCase, rule: str, compiled: bool = False, graphed: bool = False, device: str = "cuda"
    ) -> None:  # fmt: skip
        self.case, self.rule, self.device = case, rule, device
        training = rule != "inference"
        self.p = {n: torch.tensor(a, device=device, requires_grad=training) for n, a in case.weights().items()}
        given = {n: torch.tensor(a.astype("int64") if a.dtype.kind == "u" else a) for n, a in case.data().items()}
        self.data = {n: a.to(device) for n, a in given.items()}
        self._tables_first()
        self.forward = torch.compile(self._forward) if compiled else self._forward
        self.optimizer = self._optimizer() if training else None
        self.out: Any = None
        self.graph = self._recorded() if graphed else None

    def _tables_first(self) -> None:
        """Make the rotary tables outside of what is compiled or recorded."""
        with torch.no_grad():
            logits_of(F, self.case, self.p, self.data)

    def _optimizer(self) -> Any:
        fused = self.device == "cuda"
        if self.rule == "SGD":
            return torch.optim.SGD(list(self.p.values()), lr=RATES["SGD"], fused=fused)
        return torch.optim.Adam(list(self.p.values()), lr=RATES["Adam"], fused=fused, capturable=fused)

    def _forward(self, p: Arrays, data: Arrays) -> Any:
        logits = logits_of(F, self.case, p, data)
        return torch.nn.functional.cross_entropy(logits, data["labels"]) if self.rule != "inference" else logits

    def _recorded(self) -> Any:
        """A CUDA graph of one step; the steps that warm it up are taken back."""
        first = {name: a.detach().clone() for name, a in self.p.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step(fresh=False)
        with torch.no_grad():
            for name, a in self.p.items():
                a.copy_(first[name])
            for state in self.optimizer.state.values() if self.optimizer is not None else ():
                for value in state.values():
                    if torch.is_tensor(value):
                        value.zero_()
        return graph

    def step(self) -> None:
        """Start one."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step()

    def _step(self, fresh: bool = True) -> None:
        if self.optimizer is None:
            with torch.no_grad():
                self.out = self.forward(self.p, self.data)
            return
        if fresh:
            self.optimizer.zero_grad(set_to_none=True)
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
