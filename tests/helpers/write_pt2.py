"""Write the exported programs that the tests open, with what PyTorch makes of them. PyTorch is needed here alone:

    python -m venv env && env/bin/pip install torch==2.9.1 numpy    # also 2.5.1, which writes the older layout
    cd tests/helpers; env/bin/python write_pt2.py ../load/pt2

Each `NAME.pt2` has a `NAME.npz`: `in.NAME` the inputs, `out.I` the outputs, `grad.PARAMETER` the gradients of output 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class TorchMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 3)

    def forward(self, x, target):
        y = self.head(self.body(x))
        return F.mse_loss(y, target), y


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6), nn.SiLU())
        self.head = nn.Linear(6, 4)

    def forward(self, image, labels):
        x = F.max_pool2d(self.stem(image), 2)
        x = self.deep(x)
        logits = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return F.cross_entropy(logits, labels), logits


class TorchAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class TorchBlock(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = TorchAttention(width, 3)
        parts = nn.Linear(width, 24), nn.GELU(approximate="tanh"), nn.Linear(24, width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(*parts)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TorchBlock(), TorchBlock()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean(), x


class TorchEmbedding(nn.Module):
    """Words and places, a head that shares the table, a mask from a buffer, a change of a part in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Embedding(6, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.tril(torch.ones(6, 6)))

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        scores = (x @ x.transpose(1, 2)).masked_fill(self.seen == 0, float("-inf"))
        scores[:, 0, 0] = 2.0
        with torch.no_grad():
            fixed = self.places.weight.mean()
        logits = self.head(scores.softmax(-1) @ x * self.scale) + fixed
        return logits.logsumexp(-1).mean(), logits


EXAMPLES = {
    "mlp": (TorchMlp, lambda: {"x": torch.randn(4, 6), "target": torch.randn(4, 3)}),
    "cnn": (Cnn, lambda: {"image": torch.randn(2, 3, 10, 10), "labels": torch.tensor([1, 3])}),
    "block": (Blocks, lambda: {"x": torch.randn(2, 5, 12)}),
    "embedding": (TorchEmbedding, lambda: {"ids": torch.tensor([[1, 4, 0, 9, 2, 2], [10, 3, 3, 0, 0, 1]])}),
}
OLD = ("mlp", "cnn")


def write(folder: Path, name: str) -> None:
    make, examples = EXAMPLES[name]
    torch.manual_seed(0)
    net, fed = make().eval(), examples()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(part.bias)
    outputs = net(*fed.values())
    outputs[0].backward()
    held = {f"in.{k}": v.numpy() for k, v in fed.items()}
    held |= {f"out.{i}": v.detach().numpy() for i, v in enumerate(outputs)}
    held |= {f"grad.{k}": p.grad.numpy() for k, p in net.named_parameters()}
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)
    path = folder / (f"{name}_old" if old else name)
    torch.export.save(torch.export.export(net, tuple(fed.values()), strict=False), f"{path}.pt2")
    np.savez(f"{path}.npz", **held)


if __name__ == "__main__":
    for each in OLD if torch.__version__ < "2.8" else EXAMPLES:
        write(Path(sys.argv[1]), each)
