"""Graphs that every layout must draw, made by code: `layout_corpus.py FILE` dumps them with their layouts.

The JSON is what another implementation of the layouts is compared with: nodes in, `Layout.to_json()` out.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gdlab.view.layout.drawn import Density, Drawn, Layout
from gdlab.view.layout.lanes import lanes
from gdlab.view.layout.layered import layered
from gdlab.view.layout.short_names import short_names
from gdlab.view.picture.draw import NodeStyle

ENGINES: dict[str, Callable[..., Layout]] = {"layered": layered, "lanes": lanes}
DENSITIES: tuple[Density, ...] = (0, 1, 2, 3)


@dataclass
class GraphWriter:
    """A graph being written: each method adds one node and returns its index."""

    nodes: list[Drawn] = field(default_factory=list)
    lane: str = "forward"
    twin: int = -1

    def leaf(self, op: str, name: str, type: str) -> int:
        self.nodes.append(Drawn(op, name, type, (), True))
        return len(self.nodes) - 1

    def input(self, name: str, type: str = "f32[32, 64]") -> int:
        return self.leaf("input", name, type)

    def parameter(self, name: str, type: str = "f32[64, 64]") -> int:
        return self.leaf("parameter", name, type)

    def op(self, op: str, *inputs: int, name: str = "", type: str = "") -> int:
        kind = type or (self.nodes[inputs[0]].type if inputs else "f32[1]")
        self.nodes.append(Drawn(op, name, kind, inputs, False, self.lane, self.twin))
        return len(self.nodes) - 1

    def linear(self, x: int, name: str, out: int) -> int:
        rows, columns = self.nodes[x].type[4:-1].split(", ")
        w = self.parameter(f"w{name}", f"f32[{columns}, {out}]")
        b = self.parameter(f"b{name}", f"f32[{out}]")
        return self.op("bias_add", self.op("matmul", x, w, type=f"f32[{rows}, {out}]"), b)


# The derivative, as far as a picture needs it: for each input the new op, and what it reads: g or an operand's number.
VJPS: dict[str, tuple[tuple[str, str], ...]] = {
    "matmul": (("matmul_bt", "g1"), ("matmul_at", "g0")),
    "add": (("", "g"), ("", "g")),
    "bias_add": (("", "g"), ("sum_rows", "g")),
    "relu": (("where", "g0"),),
    "broadcast_to": (("sum_rows", "g"),),
    "reshape": (("reshape", "g"),),
    "rope": (("rope_grad", "g"),),
    "mul": (("mul", "g1"), ("mul", "g0")),
    "rms_norm": (("rms_norm_grad_x", "g01"), ("rms_norm_grad_w", "g0")),
    "causal_attention": (("attention_grad_q", "g012"), ("attention_grad_k", "g012"), ("attention_grad_v", "g012")),
    "cross_entropy_loss": (("cross_entropy_logits_grad", "01"), ("", "")),
    "mse_loss": (("mse_loss_grad", "01"), ("", "")),
    "fused_matmul_add": (("matmul_bt", "g1"), ("matmul_at", "g0"), ("sum_rows", "g")),
}


def differentiate(draft: GraphWriter, loss: int, lane: str = "adjoint", wrt: str = "parameter") -> dict[int, int]:
    """Add the derivative of `loss` for every leaf of op `wrt`; the gradient node of each node that has one."""
    count = len(draft.nodes)
    wanted = [False] * count
    for i, node in enumerate(draft.nodes):
        wanted[i] = node.op == wrt or any(wanted[a] for a in node.inputs)
    draft.lane = lane
    parts: dict[int, list[int]] = {loss: []}
    grad: dict[int, int] = {}
    for i in range(count - 1, -1, -1):
        if i not in parts or not wanted[i]:
            continue
        node, draft.twin = draft.nodes[i], i
        for part in parts[i]:
            grad[i] = draft.op("add", grad[i], part, type=node.type) if i in grad else part
        if not node.leaf:
            _backward(draft, i, grad.get(i), wanted, parts)
    for i, g in grad.items():
        if draft.nodes[i].op == "parameter" and g >= count:
            draft.nodes[g] = replace(draft.nodes[g], name=f"∂{draft.nodes[i].name}")
    draft.lane, draft.twin = "forward", -1
    return grad


def _backward(draft: GraphWriter, i: int, g: int | None, wanted: list[bool], parts: dict[int, list[int]]) -> None:
    node = draft.nodes[i]
    if node.op == "sigmoid" and g is not None:
        rest = draft.op("sub", draft.op("mul", g, i), i)
        parts.setdefault(node.inputs[0], []).append(draft.op("mul", rest, i))
        return
    operands = "g" + "".join(str(k) for k in range(min(9, len(node.inputs))))
    known = VJPS.get(node.op, tuple((f"{node.op}_grad", operands) for _ in node.inputs))
    for a, (op, reads) in zip(node.inputs, known, strict=False):
        if not wanted[a]:
            continue
        ports = [int(c) for c in reads if c != "g" and int(c) < len(node.inputs)]
        found = [g] if g is not None and "g" in reads else []
        found += [node.inputs[k] for k in ports]
        if found:
            made = found[0] if not op else draft.op(op, *found, type=draft.nodes[a].type)
            parts.setdefault(a, []).append(made)


# The graphs


def empty() -> GraphWriter:
    return GraphWriter()


def one_leaf() -> GraphWriter:
    draft = GraphWriter()
    draft.input("x")
    return draft


def one_op() -> GraphWriter:
    draft = GraphWriter()
    draft.op("random_normal", type="f32[4]")
    return draft


def chain(length: int) -> GraphWriter:
    draft = GraphWriter()
    last = draft.input("x")
    for i in range(length - 1):
        last = draft.op(("relu", "tanh", "bias_add_and_more")[i % 3], last)
    return draft


def wide(width: int) -> GraphWriter:
    draft = GraphWriter()
    x = draft.input("x")
    for _ in range(width):
        draft.op("relu", x)
    return draft


def diamond() -> GraphWriter:
    draft = GraphWriter()
    x = draft.op("relu", draft.input("x"))
    draft.op("add", draft.op("tanh", x), draft.op("sigmoid", x))
    return draft


def shared_weights() -> GraphWriter:
    draft = GraphWriter()
    h, w = draft.input("x"), draft.parameter("w")
    for i in range(4):
        h = draft.op("tanh", draft.op("matmul", h, w), name=f"h{i}")
    return draft


def leaf_twice() -> GraphWriter:
    draft = GraphWriter()
    x, w = draft.input("x"), draft.parameter("w")
    square = draft.op("mul", x, x)
    draft.op("where", square, w, w)
    return draft


def unread_leaves() -> GraphWriter:
    draft = GraphWriter()
    for i in range(5):
        draft.input(f"x{i}")
    draft.op("relu", draft.parameter("w"))
    return draft


def many_pills() -> GraphWriter:
    draft = GraphWriter()
    names = ("scale", "a name that is much too long for a pill", "b", "running_mean", "running_var")
    ps = [draft.parameter(name, f"f32[{3**i}]") for i, name in enumerate(names)]
    h = draft.op("batch_norm", draft.input("x"), *ps)
    draft.op("layer_norm", h, ps[0], ps[1], ps[2])
    draft.op("add", ps[3], ps[4])
    return draft


def long_names() -> GraphWriter:
    """Paths of a language model as files name them, with gradients; phrases; one name in another script."""
    draft = GraphWriter()
    h = draft.op("matmul", draft.input("input_ids"), draft.parameter("model.embed_tokens.weight"))
    parts = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "post_attention_layernorm", "mlp.gate_proj")
    for i in range(12):
        for part in parts:
            h = draft.op("fused_matmul_add", h, draft.parameter(f"model.layers.{i}.{part}.weight"))
    for name in ("a name that is much too long for a pill", "a name that was much too long for a pill"):
        h = draft.op("add", h, draft.parameter(name))
    for side in ("encoder", "decoder"):
        h = draft.op("matmul", h, draft.parameter(f"{side}.block.0.attention.self.query.weight"))
    h = draft.op("add", h, draft.parameter("\N{DESERET SMALL LETTER YEE}" * 30))
    h = draft.op("matmul_at", h, name="∂model.layers.0.mlp.gate_proj.weight")
    draft.op("rms_norm_grad_w", h, name="∂model.embed_tokens.weight")
    return draft


def branches_of_parameters() -> GraphWriter:
    """A batch norm folded by hand, far down: three ops of parameters alone, then one that two ops share."""
    draft = GraphWriter()
    h = draft.input("x")
    for i in range(4):
        h = draft.linear(h, str(i), 64)
    root = draft.op("rsqrt", draft.op("add_scalar", draft.parameter("var", "f32[64]")))
    factor = draft.op("mul", root, draft.parameter("gamma", "f32[64]"))
    h = draft.op("bias_mul", h, factor)
    draft.op("bias_add", draft.op("relu", h), draft.op("neg", factor))
    return draft


def broadcast_biases() -> tuple[GraphWriter, int]:
    """`x @ w + b` three times, as operators write it: each bias is broadcast, one scale is reshaped before it."""
    draft = GraphWriter()
    h, y = draft.input("x", "f32[32, 64]"), draft.input("y", "f32[32, 64]")
    for i in range(3):
        product = draft.op("matmul", h, draft.parameter(f"w{i}"))
        wide = draft.op("broadcast_to", draft.parameter(f"b{i}", "f32[64]"), type="f32[32, 64]")
        h = draft.op("relu", draft.op("add", product, wide))
    row = draft.op("reshape", draft.parameter("scale", "f32[64]"), type="f32[1, 64]")
    h = draft.op("mul", h, draft.op("broadcast_to", row, type="f32[32, 64]"))
    return draft, draft.op("mse_loss", h, y, type="f32[1]")


def broadcast_training() -> GraphWriter:
    draft, loss = broadcast_biases()
    differentiate(draft, loss)
    return draft


def chains_of_shapes() -> GraphWriter:
    """A table that is read by itself and transposed; one with two readers, one with none, one of an input."""
    draft = GraphWriter()
    table = draft.parameter("table", "f32[100, 64]")
    x = draft.op("reshape", draft.input("x", "f32[2048]"), type="f32[32, 64]")
    h = draft.op("embed", x, table, type="f32[32, 64]")
    wide = draft.op("broadcast_to", draft.leaf("constant", "", "f32[64]"), type="f32[32, 64]")
    h = draft.op("mul", draft.op("add", h, wide), wide)
    draft.op("matmul", h, draft.op("transpose", table, type="f32[64, 100]"), type="f32[32, 100]")
    draft.op("transpose", draft.op("reshape", draft.parameter("unread"), type="f32[4096]"), type="f32[4096]")
    return draft


def early_branches() -> GraphWriter:
    """Append the branches of a diffusion network's time step: a few ops at the top, read by every block far below."""
    draft = GraphWriter()
    t = draft.op("sin", draft.input("t"))
    h = draft.input("x")
    for block in range(3):
        for i in range(9):
            h = draft.linear(h, f"{block}.{i}", 64)
        h = draft.op("add", h, draft.linear(draft.op("silu", t), f"{block}.t", 64))
    return draft


def rails(count: int, span: int) -> GraphWriter:
    draft = GraphWriter()
    last = draft.op("relu", draft.input("x"))
    line = [last]
    for _ in range(count + span):
        last = draft.op("tanh", last)
        line.append(last)
        if len(line) > span + 1:
            last = draft.op("add", last, line[-span - 1])
            line.append(last)
    return draft


def crowded_gutter() -> GraphWriter:
    """Forty rails that overlap: the last track is a bundle."""
    draft = GraphWriter()
    x = draft.input("x")
    heads = [draft.op("relu", x) for _ in range(40)]
    last = heads[0]
    for _ in range(9):
        last = draft.op("tanh", last)
    for head in heads[1:]:
        draft.op("add", last, head)
    return draft


def mlp() -> tuple[GraphWriter, int]:
    draft = GraphWriter()
    x, y = draft.input("x", "f32[64, 64]"), draft.input("y", "f32[64, 10]")
    h = draft.op("relu", draft.linear(x, "1", 128))
    draft.nodes[h] = replace(draft.nodes[h], name="h")
    z = draft.linear(h, "2", 10)
    draft.nodes[z] = replace(draft.nodes[z], name="z")
    return draft, draft.op("cross_entropy_loss", z, y, type="f32[1]")


def mlp_fused() -> tuple[GraphWriter, int]:
    draft = GraphWriter()
    x, y = draft.input("x", "f32[64, 64]"), draft.input("y", "f32[64, 10]")
    w1, b1 = draft.parameter("w1", "f32[64, 128]"), draft.parameter("b1", "f32[128]")
    w2, b2 = draft.parameter("w2", "f32[128, 10]"), draft.parameter("b2", "f32[10]")
    h = draft.op("relu", draft.op("fused_matmul_add", x, w1, b1, type="f32[64, 128]"), name="h")
    z = draft.op("fused_matmul_add", h, w2, b2, name="z", type="f32[64, 10]")
    return draft, draft.op("cross_entropy_loss", z, y, type="f32[1]")


def mlp_forward() -> GraphWriter:
    return mlp()[0]


def mlp_training() -> GraphWriter:
    draft, loss = mlp()
    differentiate(draft, loss)
    return draft


def mlp_update() -> GraphWriter:
    """With an optimizer lane: moments are leaves beside the updates."""
    draft, loss = mlp()
    grad = differentiate(draft, loss)
    for p in [i for i in grad if draft.nodes[i].op == "parameter"]:
        node = draft.nodes[p]
        moments = [draft.leaf("state", f"{m}.{node.name}", node.type) for m in "mv"]
        draft.lane, draft.twin = "optimizer", p
        draft.op("adam", p, grad[p], *moments, name=node.name)
    return draft


def block(draft: GraphWriter, x: int, name: str, primitives: bool = False, stream: str = "f32[64, 256]") -> int:
    """One transformer block after x."""
    wide = stream.replace("256", "1024")

    def weight(part: str, type: str) -> int:
        return draft.parameter(f"{name}.{part}", type)

    normed = draft.op("rms_norm", x, weight("norm1", "f32[256]"))
    q, k, v = (draft.op("matmul", normed, weight(p, "f32[256, 256]")) for p in "qkv")
    attended = draft.op("causal_attention", draft.op("rope", q), draft.op("rope", k), v)
    residual = draft.op("add", x, draft.op("matmul", attended, weight("o", "f32[256, 256]")), name="r")
    normed = draft.op("rms_norm", residual, weight("norm2", "f32[256]"))
    gate = draft.op("matmul", normed, weight("gate", "f32[256, 1024]"), type=wide)
    up = draft.op("matmul", normed, weight("up", "f32[256, 1024]"), type=wide)
    if primitives:
        fused = draft.op("mul", draft.op("mul", gate, draft.op("sigmoid", gate)), up)
    else:
        fused = draft.op("swiglu", gate, up)
    return draft.op("add", residual, draft.op("matmul", fused, weight("down", "f32[1024, 256]"), type=stream))


def transformer(blocks: int, primitives: bool = False) -> tuple[GraphWriter, int]:
    draft = GraphWriter()
    h = draft.input("x", "f32[64, 256]")
    y = draft.input("y", "f32[64, 256]")
    for i in range(blocks):
        h = block(draft, h, f"b{i}", primitives)
    return draft, draft.op("mse_loss", h, y, type="f32[1]")


def block_forward() -> GraphWriter:
    return transformer(1)[0]


def transformer_training(blocks: int, primitives: bool = False) -> GraphWriter:
    draft, loss = transformer(blocks, primitives)
    differentiate(draft, loss)
    return draft


def second_derivative() -> GraphWriter:
    draft, loss = mlp()
    grad = differentiate(draft, loss)
    w = next(i for i in grad if draft.nodes[i].name == "w1")
    norm = draft.op("sum", draft.op("square", grad[w]), type="f32[1]")
    draft.nodes[norm] = replace(draft.nodes[norm], name="norm", lane="forward2")
    differentiate(draft, norm, "adjoint2")
    return draft


def gradient_penalty() -> GraphWriter:
    """A forward op that reads an adjoint opens the lane forward2, whatever lane it names."""
    draft, loss = mlp()
    grad = differentiate(draft, loss, wrt="input")
    x = next(i for i in grad if draft.nodes[i].name == "x")
    penalty = draft.op("mean", draft.op("square", grad[x]), type="f32[1]")
    draft.op("add", loss, penalty, name="total")
    differentiate(draft, len(draft.nodes) - 1, "adjoint2")
    return draft


def scattered(seed: int) -> GraphWriter:
    """A random graph: leaves, ops of one to four inputs, half of them differentiated."""
    rng = random.Random(seed)
    draft = GraphWriter()
    for i in range(rng.randint(1, 6)):
        draft.leaf(rng.choice(("input", "parameter", "full")), f"v{i}" * rng.randint(0, 3), "f32[8, 8]")
    for _ in range(rng.randint(1, 70)):
        count, reach = rng.randint(1, 4), rng.choice((4, 12, 200))
        choices = range(max(0, len(draft.nodes) - reach), len(draft.nodes))
        op = rng.choice(("add", "mul", "matmul", "relu", "sigmoid", "rms_norm", "cross_entropy_logits_grad", "where"))
        if rng.random() < 0.2:
            op, count = rng.choice(("broadcast_to", "reshape")), 1
        draft.op(op, *(rng.choice(choices) for _ in range(count)), name=rng.choice(("", "", "h", "a_rather_long_name")))
        if rng.random() < 0.15:
            draft.leaf(rng.choice(("input", "parameter")), f"p{len(draft.nodes)}", "f32[8]")
    ops = [i for i, node in enumerate(draft.nodes) if not node.leaf]
    if seed % 2:
        differentiate(draft, ops[-1])
    return draft


GRAPHS: dict[str, Callable[[], GraphWriter]] = {
    "empty": empty,
    "one_leaf": one_leaf,
    "one_op": one_op,
    "chain_5000": lambda: chain(5000),
    "wide_2000": lambda: wide(2000),
    "diamond": diamond,
    "shared_weights": shared_weights,
    "leaf_twice": leaf_twice,
    "unread_leaves": unread_leaves,
    "many_pills": many_pills,
    "long_names": long_names,
    "branches_of_parameters": branches_of_parameters,
    "early_branches": early_branches,
    "broadcast_biases": lambda: broadcast_biases()[0],
    "broadcast_training": broadcast_training,
    "chains_of_shapes": chains_of_shapes,
    "skips_of_6": lambda: rails(8, 3),
    "skips_of_16": lambda: rails(12, 16),
    "crowded_gutter": crowded_gutter,
    "mlp_forward": mlp_forward,
    "mlp_training": mlp_training,
    "mlp_update": mlp_update,
    "block_forward": block_forward,
    "block_training": lambda: transformer_training(1),
    "block_primitives": lambda: transformer_training(1, True),
    "transformer_training": lambda: transformer_training(4),
    "transformer_12": lambda: transformer_training(12),
    "second_derivative": second_derivative,
    "gradient_penalty": gradient_penalty,
    **{f"random_{seed}": partial(scattered, seed) for seed in range(60)},
}

FAMILIES = {
    "leaf": "input parameter full state",
    "contraction": "matmul matmul_at matmul_bt fused_matmul_add causal_attention "
    "attention_grad_q attention_grad_k attention_grad_v",
    "reduction": "sum mean sum_rows rms_norm rms_norm_grad_x rms_norm_grad_w batch_norm",
    "loss": "cross_entropy_loss mse_loss cross_entropy_logits_grad mse_loss_grad",
    "random": "random_normal",
    "update": "adam",
}


def styles(nodes: Sequence[Drawn], stage: int = 0) -> list[NodeStyle]:
    """A style for each node, by its op."""
    families = {op: family for family, ops in FAMILIES.items() for op in ops.split()}
    return [
        NodeStyle(
            families.get(node.op, "elementwise"),
            node.op.startswith("fused_"),
            node.op.endswith("_loss"),
            node.op.endswith("_loss"),
            f"node:{stage}.{i}",
        )
        for i, node in enumerate(nodes)
    ]


def fixtures() -> list[dict[str, object]]:
    """Every graph with every layout, and most at every density, as plain JSON; the seconds are left at 0."""
    return [
        {
            "name": name,
            "engine": engine,
            "density": density,
            "nodes": [[n.op, n.name, n.type, list(n.inputs), n.leaf, n.lane, n.twin] for n in nodes],
            "layout": {**lay(nodes, density).to_json(), "seconds": 0},
            "short": {str(most): dict(short_names((n.name for n in nodes), most)) for most in (24, 11, 5)},
        }
        for name, make in GRAPHS.items()
        for nodes in (make().nodes,)
        for engine, lay in ENGINES.items()
        for density in DENSITIES[: 4 if len(nodes) < 60 else 1]
    ]


def dump(path: str) -> None:
    """Write the fixtures to a file."""
    Path(path).write_text(json.dumps(fixtures(), separators=(",", ":"), ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    dump(sys.argv[1])
