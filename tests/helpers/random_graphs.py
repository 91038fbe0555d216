"""Seeded random graphs over whatever the registry holds: `random_graph(seed)`, `random_feeds(graph, seed)`.

Nodes are drawn from the ops' own samples and shape rules; no op is named but the few that the optimizer's rules speak
of and that chance would seldom bring together: chains, collapses, congruences, products with addends, gates, fills.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import gdlab.ops as ops
from gdlab.base.errors import GdlabError, GraphError
from gdlab.base.types import f32
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Elementwise, Leaf, Op, Sample

LARGEST = 600  # elements of operands that are made for an op
N = 4  # most extents are one of few, so that operands fit
POLES = (
    "exp", "log", "recip", "div", "pow", "pow_scalar", "sqrt", "rsqrt", "square", "tan", "sinh", "cosh", "arcsin",
    "arccos", "arccosh", "arctanh", "prod",
)  # fmt: skip
JUMPS = ("floor", "ceil", "trunc", "round", "mod", "fmod", "isnan", "isinf")
SHAPES = ((N, N), (N, 3), (3, N), (N,), (1,), (2, N, 3))


def smooth(op: Op) -> bool:
    """Whether values stay tame through it: no poles, no overflow in a few applications, and no jumps, where rounding
    changes the value."""
    return op.name not in POLES and op.name not in JUMPS


def calls() -> list[Op]:
    """Ops that a node is drawn from: they take operands, keep the dtype and have a meaning."""
    return [
        op
        for _, op in sorted(REGISTRY.items())
        if not isinstance(op.kernel, Leaf) and op.operands and op.samples and smooth(op) and op.kind != "private"
    ]


def random_graph(
    seed: int, nodes: int | None = None, *, scalar_loss: bool = False, every_op: bool = False
) -> Graph:
    """A graph of 5 … 60 nodes with several outputs; with `scalar_loss` output 0 is f32[1] and depends on parameters;
    with `every_op` also ops that have poles or grow fast, on operands that keep them tame."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 61)) if nodes is None else nodes
    with Graph() as g:
        pool = [ops.input(f"x{i}", SHAPES[int(rng.integers(len(SHAPES)))]) for i in range(2)]
        pool += [ops.parameter(f"w{i}", SHAPES[i % len(SHAPES)]) for i in range(int(rng.integers(2, 5)))]
        while len(g) < count:
            motifs = (*MOTIFS, tamed, tamed, heads) if every_op else MOTIFS
            grow = motifs[int(rng.integers(len(motifs)))] if rng.random() < 0.5 else any_op
            start = len(g)
            try:
                made = grow(rng, pool)
            except GdlabError:
                g.cut(start)
                continue
            pool += [v for v in made if v.type.dtype is f32 and v.type.num_elements <= 4096]
            if rng.random() < 0.1 and made and made[-1].node.inputs and not made[-1].name:
                made[-1].named(f"n{len(g)}")
        outputs = [pool[int(i)] for i in rng.integers(len(pool), size=int(rng.integers(1, 4)))]
        outputs += [pool[-1]]
        if scalar_loss:
            outputs.insert(0, (ops.mean_all(pool[-1]) + ops.mean_all(outputs[0])).named("loss"))
        g.set_outputs(outputs)
    return g


def random_feeds(graph: Graph, seed: int) -> dict[str, Any]:
    """A value for every input and parameter."""
    rng = np.random.default_rng([seed, 1])
    feeds: dict[str, Any] = {}
    for node in (*graph.inputs, *graph.parameters):
        feeds[node.name] = rng.uniform(-1.5, 1.5, node.type.shape).astype(node.type.dtype.numpy)
    return feeds


def pick(rng: np.random.Generator, pool: list[Value], shape: tuple[int, ...] | None = None) -> Value:
    """One of the pool, late ones more often; of this shape, if there is one, else a fill."""
    fits = pool if shape is None else [v for v in pool if v.shape == shape]
    if not fits:
        assert shape is not None
        return ops.full(shape, float(rng.integers(-2, 3)) / 2)
    return fits[-1 - int(min(rng.geometric(0.25) - 1, len(fits) - 1))]


def any_op(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """A random op on operands that fit a sample of it, or on equal shapes."""
    known = calls()
    op = known[int(rng.integers(len(known)))]
    sample = op.samples[int(rng.integers(len(op.samples)))]
    if sample.integers or op.variadic or rng.random() < 0.3:
        return [as_sampled(rng, pool, op, sample)]
    first = pick(rng, pool)
    if isinstance(op.kernel, Elementwise) or len(op.operands) == 1:
        operands = [first, *(pick(rng, pool, first.shape) for _ in op.operands[1:])]
    else:
        operands = [first, *(pick(rng, pool) for _ in op.operands[1:])]
    return [op(*operands, **sample.attrs)]


def as_sampled(rng: np.random.Generator, pool: list[Value], op: Op, sample: Sample) -> Value:
    """The op on the shapes of one of its samples: values of the pool where they fit, else new inputs."""
    size = sum(math.prod(shape) for shape in sample.shapes)
    if size > LARGEST:
        raise GraphError("random graph", "sample", f"{size} elements", f"at most {LARGEST}")
    operands = []
    for i, (shape, array) in enumerate(zip(sample.shapes, sample.arrays(), strict=True)):
        fits = [v for v in pool if v.shape == shape]
        if i in sample.integers:
            operands.append(ops.constant_u32(array))
        elif fits and rng.random() < 0.8:
            operands.append(pick(rng, pool, shape))
        else:
            operands.append(ops.input(f"x{len(pool[0].graph)}", shape))
    if op.writes_in_place:  # a parameter itself would be written in place, and others may read it
        operands[1] = ops.materialize(operands[1])
    made = op(*op.spread(operands), **sample.attrs)
    return made.stop_gradient() if op.no_grad == "refuses" else made


Motif = Callable[[np.random.Generator, list[Value]], list[Value]]


def unary_chain(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """The same unary op twice or three times: collapses."""
    makers: list[Callable[[Value], Value]] = [ops.neg, ops.relu, ops.transpose]
    make, x = makers[int(rng.integers(3))], pick(rng, pool)
    made = []
    for _ in range(int(rng.integers(2, 4))):
        x = make(x)
        made.append(x)
    return made


def reshapes(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """There, and often back again."""
    x = pick(rng, pool)
    flat = x.reshape((x.type.num_elements,))
    back = flat.reshape(x.shape if rng.random() < 0.5 else (1, x.type.num_elements))
    return [flat, back]


def product(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """A product in one of three layouts, then an addend or a bias, now and then with the product read twice."""
    a, b = pick(rng, pool, (N, N)), pick(rng, pool, (N, N))
    kinds = [ops.matmul, ops.matmul_at, ops.matmul_bt, lambda p, q: p @ q.T, lambda p, q: p.T @ q]
    p = kinds[int(rng.integers(len(kinds)))](a, b)
    tails: list[Callable[[], Value]] = [
        lambda: p + pick(rng, pool, (N, N)),
        lambda: pick(rng, pool, (N, N)) + p,
        lambda: ops.bias_add(p, pick(rng, pool, (N,))),
        lambda: p + pick(rng, pool, (N,)),
        lambda: p + kinds[int(rng.integers(3))](b, a),
    ]
    y = tails[int(rng.integers(len(tails)))]()
    return [y] if rng.random() < 0.7 else [p, y]


def gate(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """x · sigmoid(x) and what is multiplied with it, in any order."""
    x = pick(rng, pool)
    s = x * ops.sigmoid(x) if rng.random() < 0.5 else ops.sigmoid(x) * x
    u = pick(rng, pool, x.shape)
    y = s * u if rng.random() < 0.5 else u * s
    return [y] if rng.random() < 0.6 else [s, y]


def twins(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """The same twice, once with operands exchanged: congruences."""
    x = pick(rng, pool)
    y = pick(rng, pool, x.shape)
    a, b = (x + y, y + x) if rng.random() < 0.5 else (x * y, y * x)
    return [ops.tanh(a), ops.tanh(b), a - b]


def fills(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """Arithmetic on fills, and a product with one."""
    x = pick(rng, pool)
    c = ops.full(x.shape, float(rng.integers(-2, 3)))
    d = -c + ops.full(x.shape, 1.0)
    return [x * d, (x * ops.full(x.shape, 1.0)).tanh()]


def differences(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """a − (−b) and a + (−b)."""
    x = pick(rng, pool)
    y = pick(rng, pool, x.shape)
    return [x - (-y), x + (-y)]


def tamed(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """An op with a pole, or one that grows fast, where its operands keep away from both."""
    x = pick(rng, pool)
    small, far = x.tanh(), x.abs() + 0.5
    makers: tuple[Callable[[], Value], ...] = (
        small.exp, far.log, far.recip, lambda: pick(rng, pool, x.shape) / far, far.sqrt, far.rsqrt, small.square,
        lambda: far**small, lambda: far**1.5, lambda: small**3.0,
    )  # fmt: skip
    y = makers[int(rng.integers(len(makers)))]()
    return [y.tanh()] if rng.random() < 0.5 else [y.clamp(-4.0, 4.0)]


def heads(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """Attention of two heads of two over one head of keys, with or without turns."""
    q, k, v = (pick(rng, pool, (N, N)) for _ in range(3))
    if rng.random() < 0.5:
        q = ops.rope(q, 10.0, 2)
    attend = (ops.causal_attention, ops.full_attention)[int(rng.integers(2))]
    return [attend(q, k[:, :2], v[:, 2:], 2, 1, 2)]


MOTIFS: tuple[Motif, ...] = (unary_chain, reshapes, product, gate, twins, fills, differences)
