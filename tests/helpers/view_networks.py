"""The test networks of the picture (view2 §1): what people write, as plain functions that return a fresh graph."""

from __future__ import annotations

from collections.abc import Callable

import networks
import onnx_models

from gdlab import load_onnx, models, ops
from gdlab.graph import Graph, Value


def mlp_in_a_loop() -> Graph:
    """Three layers `h @ w + b` in a loop, and cross entropy."""
    sizes = (256, 256, 128, 10)
    with Graph() as g:
        h, y = ops.input("x", (32, 256)), ops.input("y", (32, 10))
        for i in range(3):
            w, b = ops.parameter(f"w{i}", sizes[i : i + 2]), ops.parameter(f"b{i}", sizes[i + 1 : i + 2])
            z = h @ w + b
            h = ops.relu(z) if i < 2 else z
        g.output(ops.cross_entropy_loss(h, y))
    return g


def attention() -> Graph:
    """One head written by hand, with its residual sum."""
    with Graph() as g:
        x, target = ops.input("x", (32, 64)), ops.input("target", (32, 64))
        q, k, v = (x @ ops.parameter(name, (64, 64)) for name in ("wq", "wk", "wv"))
        mixed = ops.softmax(q @ k.T * 0.125) @ v
        g.output(ops.mse_loss(mixed @ ops.parameter("wo", (64, 64)) + x, target))
    return g


def gated() -> Graph:
    """A gated layer with biases: 14 ops with names of some length."""
    with Graph() as g:
        x, target = ops.input("x", (64, 256)), ops.input("target", (64, 256))
        gate = x @ ops.parameter("gate_proj", (256, 512)) + ops.parameter("gate_bias", (512,))
        up = x @ ops.parameter("up_proj", (256, 512)) + ops.parameter("up_bias", (512,))
        h = gate * ops.sigmoid(gate) * up
        g.output(ops.mse_loss(h @ ops.parameter("down_proj", (512, 256)) + x, target))
    return g


def llama() -> Graph:
    """Two layers with the names that files of language models give: modules, and paths of any length."""
    with Graph() as g:
        h = ops.input("x", (64, 64)) @ ops.parameter("model.embed_tokens.weight", (64, 64))
        for i in range(2):
            path = f"model.layers.{i}."
            n = ops.rms_norm(h, ops.parameter(path + "input_layernorm.weight", (64,)), 1e-5)
            q, k, v = (n @ ops.parameter(path + f"self_attn.{part}_proj.weight", (64, 64)) for part in "qkv")
            mixed = ops.softmax(q @ k.T * 0.125) @ v
            h = mixed @ ops.parameter(path + "self_attn.o_proj.weight", (64, 64)) + h
            n = ops.rms_norm(h, ops.parameter(path + "post_attention_layernorm.weight", (64,)), 1e-5)
            gate, up = (n @ ops.parameter(path + f"mlp.{part}_proj.weight", (64, 128)) for part in ("gate", "up"))
            h = ops.silu(gate) * up @ ops.parameter(path + "mlp.down_proj.weight", (128, 64)) + h
        n = ops.rms_norm(h, ops.parameter("model.norm.weight", (64,)), 1e-5)
        g.output(ops.mse_loss(n @ ops.parameter("lm_head.weight", (64, 100)), ops.input("target", (64, 100))))
    return g


def unrolled_gru(steps: int = 3) -> Graph:
    """A recurrent cell, step after step in a loop: the same weights at each, no modules."""
    with Graph() as g:
        h = ops.input("h0", (16, 48))
        w = {s: ops.parameter(f"w_{s}", (32, 48)) for s in "zrh"}
        u = {s: ops.parameter(f"u_{s}", (48, 48)) for s in "zrh"}
        b = {s: ops.parameter(f"b_{s}", (48,)) for s in "zrh"}
        for t in range(steps):
            x = ops.input(f"x{t}", (16, 32))
            z, r = (ops.sigmoid(x @ w[s] + h @ u[s] + b[s]) for s in "zr")
            new = ops.tanh(x @ w["h"] + (r * h) @ u["h"] + b["h"])
            h = h + z * (new - h)
        g.output(ops.cross_entropy_loss(h @ ops.parameter("w_out", (48, 10)), ops.input("labels", (16, 10))))
    return g


def unet() -> Graph:
    """Two levels down and up again with what was kept on the way down, by functions of a person's own."""

    def conv(h: Value, name: str, channels: int, k: int = 3) -> Value:
        z = ops.conv2d(h, ops.parameter(f"{name}.w", (channels, h.shape[1], k, k)), padding=k // 2)
        return ops.add_per_channel(z, ops.parameter(f"{name}.b", (channels,)))

    def double(h: Value, name: str, channels: int) -> Value:
        return ops.relu(conv(ops.relu(conv(h, f"{name}.0", channels)), f"{name}.1", channels))

    with Graph() as g:
        x, target = ops.input("x", (4, 3, 32, 32)), ops.input("target", (4, 1, 32, 32))
        d1 = double(x, "down1", 16).named("d1")
        d2 = double(ops.max_pool_2d(d1, 2, 2), "down2", 32).named("d2")
        middle = double(ops.max_pool_2d(d2, 2, 2), "mid", 64).named("mid")
        u2 = double(ops.concat([ops.upsample_2x(middle), d2], 1), "up2", 32).named("u2")
        u1 = double(ops.concat([ops.upsample_2x(u2), d1], 1), "up1", 16).named("u1")
        g.output(ops.bce_loss(ops.sigmoid(conv(u1, "head", 1, 1)), target))
    return g


def experts() -> Graph:
    """A mixture of four experts in a loop, their results weighed by a softmax and added to the input."""
    with Graph() as g:
        x, target = ops.input("x", (64, 32)), ops.input("target", (64, 32))
        gate, y = ops.softmax(x @ ops.parameter("router", (32, 4))), x
        for i in range(4):
            h = ops.relu(x @ ops.parameter(f"expert{i}.w1", (32, 64)) + ops.parameter(f"expert{i}.b1", (64,)))
            y = y + (h @ ops.parameter(f"expert{i}.w2", (64, 32))) * gate[:, i : i + 1]
        g.output(ops.mse_loss(y, target))
    return g


def two_towers() -> Graph:
    """Images and texts through one function, each to a unit vector, and the contrastive loss of both."""

    def tower(h: Value, name: str) -> Value:
        h = ops.gelu(h @ ops.parameter(f"{name}.fc1", (48, 64)) + ops.parameter(f"{name}.bias1", (64,)))
        h = h @ ops.parameter(f"{name}.fc2", (64, 32))
        return h / ops.sqrt((h * h).sum_inner() + 1e-6)

    with Graph() as g:
        image = tower(ops.input("image", (16, 48)), "image_encoder").named("images")
        text = tower(ops.input("text", (16, 48)), "text_encoder").named("texts")
        logits, labels = (image @ text.T) * 14.3, ops.input("labels", (16, 16))
        g.output(0.5 * (ops.cross_entropy_loss(logits, labels) + ops.cross_entropy_loss(logits.T, labels)))
    return g


def autoencoder() -> Graph:
    """A variational autoencoder: mean and variance of a code, a sample of it, and two losses."""

    def linear(h: Value, name: str, width: int) -> Value:
        return h @ ops.parameter(f"{name}.w", (h.shape[1], width)) + ops.parameter(f"{name}.b", (width,))

    with Graph() as g:
        x = ops.input("x", (32, 64))
        h = ops.relu(linear(x, "enc", 48))
        mean, log_variance = linear(h, "mu", 8), linear(h, "logvar", 8)
        z = mean + ops.exp(log_variance * 0.5) * ops.rand_normal((32, 8), 1)
        shown = ops.sigmoid(linear(ops.relu(linear(z, "dec", 48)), "out", 64))
        kl = -0.5 * (1 + log_variance - mean * mean - ops.exp(log_variance)).mean_all()
        g.output(ops.bce_loss(shown, x) + 0.1 * kl)
    return g


def onnx_cnn() -> Graph:
    """An imported network with a loss: a convolution, its batch norm folded, pooling, a head."""
    g = load_onnx(onnx_models.cnn()).graph
    with g:
        loss = ops.mse_loss(g.outputs[0], ops.input("target", (2, 5)))
    g.set_output_ids([(loss.id, "")])
    return g


def input_read_often(times: int = 2000) -> Graph:
    """A flat chain in which one input is read this many times."""
    with Graph() as g:
        x = h = ops.input("x", (4, 8))
        for i in range(times):
            h = ops.tanh(h + x) if i % 2 else ops.tanh(h) * x
        g.output(ops.square(h).sum_all())
    return g


def branches(count: int = 1500) -> Graph:
    """An input that this many ops read, and nobody these."""
    with Graph() as g:
        x = ops.relu(ops.input("x", (4, 8)))
        for _ in range(count):
            g.output(ops.tanh(x))
    return g


def long_chain(count: int = 1500) -> Graph:
    """One op again and again, each on what the one before it made."""
    with Graph() as g:
        h = ops.input("x", (4, 8)) * ops.parameter("w", (4, 8))
        for _ in range(count):
            h = ops.tanh(h)
        g.output(h.square().mean_all())
    return g


def deep_mlp(count: int = 60) -> Graph:
    """Layers `relu(h @ w + b)` in a loop, without modules."""
    with Graph() as g:
        h = ops.input("x", (4, 8))
        for i in range(count):
            h = ops.relu(h @ ops.parameter(f"w{i}", (8, 8)) + ops.parameter(f"b{i}", (8,)))
        g.output(h.square().mean_all())
    return g


NETWORKS: dict[str, Callable[[], Graph]] = {
    "tour": networks.mlp,
    "mlp_in_a_loop": mlp_in_a_loop,
    "attention": attention,
    "gated": gated,
    "llama": llama,
    "unrolled_gru": unrolled_gru,
    "onnx_cnn": onnx_cnn,
    "transformer_lm": models.transformer_lm,
    "resnet18": models.resnet18,
}

# Networks with branches, skips and losses of several parts: they do not fit as they are written.
BRANCHED: dict[str, Callable[[], Graph]] = {"unet": unet, "experts": experts, "towers": two_towers, "vae": autoencoder}
