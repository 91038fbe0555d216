"""A vision transformer (Dosovitskiy and others, 2020) under the parameter names of timm."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab import nn, ops
from gdlab.graph import Graph, Value
from gdlab.models.blocks import Mode, attend, check_extents, check_mode, check_multiple, classified, encoder_block


@dataclass(frozen=True, slots=True)
class VitConfig:
    """Extents of `vit_encoder`; the defaults are those of ViT-B/16. `classes` 0: no head."""

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    classes: int = 0
    eps: float = 1e-6


def vit_encoder(config: VitConfig | None = None, batch: int = 1, mode: Mode = "inference") -> Graph:
    """x f32[batch, channels, size, size] -> `features` f32[batch, 1 + patches, embed_dim] behind the last norm, the
    class token first. With `classes`: `logits` f32[batch, classes] of that token; training (which needs them): input
    `labels`, output the cross entropy.

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
    with Graph() as g:
        x = _tokens(c, batch)
        for i in range(c.depth):
            x = _block(f"blocks.{i}", x, c, batch)
        x = nn.LayerNorm("norm", c.embed_dim, c.eps)(x).reshape((batch, -1, c.embed_dim))
        if not c.classes:
            g.output(x.named("features"), "features")
            return g
        first = x.slice((0, 0, 0), (batch, 1, c.embed_dim)).reshape((batch, c.embed_dim))
        g.output(*classified(nn.Linear("head", c.embed_dim, c.classes)(first), batch, c.classes, mode))
    return g


def _tokens(c: VitConfig, batch: int) -> Value:
    """The class token and the patches of every image with their positions: f32[batch · tokens, embed_dim]."""
    side, width = c.image_size // c.patch_size, c.embed_dim
    x = ops.input("x", (batch, c.channels, c.image_size, c.image_size))
    patches = nn.Conv2d("patch_embed.proj", c.channels, width, c.patch_size, c.patch_size)(x)
    patches = ops.transpose(patches.reshape((batch, width, side * side)))
    first = ops.parameter("cls_token", (1, 1, width), init="zeros")
    places = ops.parameter("pos_embed", (1, side * side + 1, width), init="normal(0.02)")
    firsts = first if batch == 1 else ops.broadcast_to(first, (batch, 1, width))
    return (ops.concat([firsts, patches], 1) + places).reshape((-1, width))


def _block(name: str, x: Value, c: VitConfig, batch: int) -> Value:
    width = c.embed_dim

    def mix(h: Value) -> Value:
        q, k, v = nn.Linear(f"{name}.attn.qkv", width, 3 * width)(h).split([width] * 3, 1)
        return nn.Linear(f"{name}.attn.proj", width, width)(attend(q, k, v, batch, c.num_heads))

    return encoder_block(
        x, (f"{name}.norm1", f"{name}.norm2"), mix, (f"{name}.mlp.fc1", f"{name}.mlp.fc2"), c.mlp_dim, c.eps
    )
