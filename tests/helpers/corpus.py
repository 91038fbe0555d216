"""The graphs that gdlab ships, small enough to evaluate node by node: its models, and the cells of its notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import networks
import numpy as np
from places import NOTEBOOKS

from gdlab import models, ops
from gdlab.base.types import u32
from gdlab.graph import Graph, Value
from gdlab.jupyter.cell import run_cell

LM = models.TransformerLmConfig(32, 8, 2, 2, 1, 12)
TIED = models.TransformerLmConfig(32, 8, 1, 2, 2, 12, tied=True)
RESNET = models.ResNetConfig(image_size=16, width=4, blocks=(1, 2), classes=5)
BOTTLENECKS = models.ResNetConfig(image_size=16, width=4, blocks=(1, 1), classes=5, block="bottleneck")
TEXT = models.TextConfig(20, 8, 2, 2, 12, 6)
UNET = models.UnetConfig(
    sample_size=8, block_out_channels=(4, 8), attention_head_dim=4, norm_num_groups=2, in_channels=2, out_channels=2
)  # fmt: skip
VIT = models.VitConfig(image_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, mlp_dim=16, classes=5)
WHISPER = models.WhisperConfig(n_mels=5, n_audio_ctx=6, n_audio_state=8, n_audio_head=2, n_audio_layer=2)

TRAINED: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: models.mlp(models.MlpConfig(6, (5, 4), 3, "gelu"), 2),
    "transformer_lm": lambda: models.transformer_lm(LM, 6),
    "transformer_lm, tied": lambda: models.transformer_lm(TIED, 6),
    "resnet18": lambda: models.resnet18(RESNET, 2),
    "unet_small": lambda: models.unet_small(UNET, 2),
    "vit_encoder": lambda: models.vit_encoder(VIT, 2, "training"),
    "decomposed": lambda: networks.decomposed(2, length=4, width=8, inner=8, heads=2),
}
READ: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: models.mlp(models.MlpConfig(6, (5, 4), 3), 2, "inference"),
    "transformer_lm, prefill": lambda: models.transformer_lm(LM, 6, "prefill"),
    "transformer_lm, decode": lambda: models.transformer_lm(LM, 6, "decode"),
    "resnet18": lambda: models.resnet18(RESNET, 2, "inference"),
    "residual_network": lambda: models.residual_network(BOTTLENECKS, 2, "inference"),
    "text_encoder": lambda: models.text_encoder(TEXT, 5, 2, "masked"),
    "unet_small": lambda: models.unet_small(UNET, 2, "inference"),
    "vit_encoder": lambda: models.vit_encoder(VIT, 2),
    "whisper_encoder": lambda: models.whisper_encoder(WHISPER, 2),
}


@cache
def cells() -> dict[str, tuple[str, str]]:
    """Magic line and body of every `%%graph` cell, by `notebook/name`."""
    found = {}
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(file.read_text("utf-8"))["cells"]:
            head, _, body = "".join(cell["source"]).partition("\n")
            if cell["cell_type"] == "code" and head.startswith("%%graph "):
                found[f"{file.stem}/{head.split()[1]}"] = head, body
    return found


def of_cell(name: str) -> tuple[Graph, bool]:
    """The graph of a cell, and whether it is to be trained."""
    head, body = cells()[name]
    return run_cell(name, head, body, {"np": np}, 1).graph, "--train" in head


def chain(n: int, between: Callable[[Value, int], Value] = lambda x, i: x) -> Graph:
    """A parameter scaled n times, each time by another factor near 1, with something between two factors."""
    with Graph() as g:
        x = ops.parameter("x", (3,))
        for i in range(n):
            x = between(x.scale(1 + ((i * 37) % 101 - 50) / 997), i)
        g.set_outputs(x.mean_all())
    return g


CHAINS: dict[str, Callable[[], Graph]] = {
    "factors": lambda: chain(200),
    "factors and shapes": lambda: chain(60, lambda x, i: x.reshape((1, 3) if i % 2 else (3, 1))),
    "factors and signs": lambda: chain(150, lambda x, i: ops.neg(ops.neg(x))),
    "factors and steps": lambda: chain(60, lambda x, i: x if i % 9 else ops.relu(x)),
}


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """A value for every input and parameter; of u32 small numbers, which are places in everything."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for node in (*graph.inputs, *graph.parameters):
        whole = node.type.dtype is u32
        drawn = rng.integers(0, 3, node.type.shape) if whole else rng.uniform(-1, 1, node.type.shape)
        feeds[node.name] = drawn.astype(node.type.dtype.numpy)
    return feeds
