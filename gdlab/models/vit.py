"""A vision transformer (Dosovitskiy and others, 2020) under the parameter names of timm, or of another checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab import nn, ops
from gdlab.graph import Graph, Value
from gdlab.models.blocks import Mode, check_extents, check_mode, check_multiple, classified
from gdlab.models.encoder_block import BlockConfig, BlockNames, encoder_block, function


@dataclass(frozen=True, slots=True)
class VitNames:
    """The names of the parameters of `vit_encoder`; `block` has the place of the number."""

    token: str
    positions: str
    patch: str
    block: str
    parts: BlockNames
    norm: str
    head: str
    pooler: str = "pooler.dense"


TIMM = VitNames(
    "cls_token", "pos_embed", "patch_embed.proj", "blocks.{}",
    BlockNames(("norm1", "norm2"), "attn.proj", ("mlp.fc1", "mlp.fc2"), packed="attn.qkv",
               scales=("ls1.gamma", "ls2.gamma")),
    "norm", "head",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VitConfig:
    """The extents of `vit_encoder`; the defaults are those of ViT-B/16. `classes` 0: no head. `pooled` 0: no pooler,
    else its width, and `pooler_activation` its activation. `layer_scale`: a factor per channel behind each half of a
    block. `trainable`: the loss is a cross entropy (a file may say another)."""

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    classes: int = 0
    eps: float = 1e-6
    activation: str = "gelu"
    qkv_bias: bool = True
    layer_scale: bool = False
    pooled: int = 0
    pooler_activation: str = "tanh"
    trainable: bool = True
    names: VitNames = TIMM

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block."""
        without = frozenset() if self.qkv_bias else frozenset(("q", "k", "v"))
        return BlockConfig(self.embed_dim, self.num_heads, self.mlp_dim, self.names.parts, self.eps, "pre",
                           self.activation, without, self.layer_scale)  # type: ignore[arg-type]  # fmt: skip


def vit_encoder(config: VitConfig | None = None, batch: int = 1, mode: Mode = "inference") -> Graph:
    """Return the graph of an encoder: x f32[batch, channels, size, size] -> `features` f32[batch, 1 + patches,
    embed_dim] behind the last norm, the class token first, and with `pooled` `pooler_output` f32[batch, pooled]. With
    `classes`: `logits` f32[batch, classes] of that token; training (which needs them): input `labels`, output the cross
    entropy.

    Parameters `cls_token`, `pos_embed`, `patch_embed.proj.weight` and `.bias`, `blocks.{i}.norm1.*`,
    `.attn.qkv.*`, `.attn.proj.*`, `.norm2.*`, `.mlp.fc1.*`, `.mlp.fc2.*`, `norm.*`, `head.*`; matrices are [in, out].
    """
    c = VitConfig() if config is None else config
    check_mode("vit_encoder", mode)
    check_extents("vit_encoder", batch=batch, image_size=c.image_size, patch_size=c.patch_size, channels=c.channels,
                  embed_dim=c.embed_dim, depth=c.depth, num_heads=c.num_heads, mlp_dim=c.mlp_dim,
                  classes=c.classes if mode == "training" or c.classes else 1)  # fmt: skip
    check_multiple("vit_encoder", "image_size", c.image_size, c.patch_size)
    check_multiple("vit_encoder", "embed_dim", c.embed_dim, c.num_heads)
    function("vit_encoder", c.activation)
    pool = function("vit_encoder", c.pooler_activation)
    with Graph() as g:
        x = _tokens(c, batch)
        for i in range(c.depth):
            x = encoder_block(x, c.names.block.format(i), c.block, batch)
        x = nn.LayerNorm(c.names.norm, c.embed_dim, c.eps)(x).reshape((batch, -1, c.embed_dim))
        if c.classes:
            first = _first(x)
            g.output(*classified(nn.Linear(c.names.head, c.embed_dim, c.classes)(first), batch, c.classes, mode))
            return g
        g.output(x.named("features"), "features")
        if c.pooled:
            pooled = nn.Linear(c.names.pooler, c.embed_dim, c.pooled)(_first(x))
            g.output(pool(pooled).named("pooler_output"), "pooler_output")
    return g


def _first(x: Value) -> Value:
    """Return the class token of every image: f32[batch, tokens, embed_dim] -> f32[batch, embed_dim]."""
    batch, _, width = x.shape
    return x.slice((0, 0, 0), (batch, 1, width)).reshape((batch, width))


def _tokens(c: VitConfig, batch: int) -> Value:
    """Return the class token and the patches of every image with their positions: f32[batch · tokens, embed_dim]."""
    side, width = c.image_size // c.patch_size, c.embed_dim
    x = ops.input("x", (batch, c.channels, c.image_size, c.image_size))
    patches = nn.Conv2d(c.names.patch, c.channels, width, c.patch_size, c.patch_size)(x)
    patches = ops.transpose(patches.reshape((batch, width, side * side)))
    first = ops.parameter(c.names.token, (1, 1, width), init="zeros")
    places = ops.parameter(c.names.positions, (1, side * side + 1, width), init="normal(0.02)")
    firsts = first if batch == 1 else ops.broadcast_to(first, (batch, 1, width))
    return (ops.concat([firsts, patches], 1) + places).reshape((-1, width))
