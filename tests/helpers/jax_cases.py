"""Compare our ops with JAX: for each case our spelling, JAX's own, operands over generated shapes, kinks and ties.

JAX shares nothing with us: its gradients are its own. Where we decided otherwise, `DECISIONS` says where, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matrix import also

from gdlab import ops
from gdlab.base.types import Shape
from gdlab.graph import Value

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # each function is compiled for one call
Array = Any
Shapes = tuple[Shape, ...]

@dataclass(frozen=True)
class Case:
    """`ours(*values)` is to equal `theirs(*arrays)`, with all gradients unless `forward` alone is compared."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[Shapes, ...]
    low: float = -2.0
    high: float = 2.0
    points: tuple[tuple[Any, ...], ...] = ()  # operands by value: kinks, ties
    integers: Mapping[int, int] = field(default_factory=dict)
    forward: bool = False
    ops: tuple[str, ...] = ()  # ops that it judges, where the name is not one

    def feeds(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Operands for every shape and every point, as float32 holds them; indices as uint32."""
        for number, shapes in enumerate(self.shapes):
            rng = np.random.default_rng([number, len(self.name)])
            yield [self._draw(rng, i, shape) for i, shape in enumerate(shapes)]
        for values in self.points:
            yield [np.asarray(v, np.float32).astype(np.float64) for v in values]

    def _draw(self, rng: np.random.Generator, i: int, shape: Shape) -> np.ndarray[Any, Any]:
        if i in self.integers:
            return rng.integers(self.integers[i], size=shape).astype(np.uint32)
        return rng.uniform(self.low, self.high, shape).astype(np.float32).astype(np.float64)


ONE: tuple[Shapes, ...] = (*also([((2, 3, 4),)], ((7,),), ((3, 5),)),)
TWO: tuple[Shapes, ...] = (*also([((4, 3), (3,)), ((2, 1, 3), (4, 1))], ((3, 5), (3, 5)), ((1,), (2, 5))),)
EQUAL: tuple[Shapes, ...] = (*also([((3, 5), (3, 5))], ((2, 3, 4), (2, 3, 4))),)
KINK = (([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0],),)
TIE = (([1.0, 2.0, -1.0, 0.0], [1.0, 1.0, -1.0, 0.5]),)
TIED_ROWS = (([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]],),)


def one(name: str, theirs: Callable[..., Any], low: float = -2.0, high: float = 2.0, kink: bool = False) -> Case:
    return Case(name, getattr(ops, name), theirs, ONE, low, high, KINK if kink else ())


def two(name: str, theirs: Callable[..., Any], low: float = -2.0, high: float = 2.0, tie: bool = False) -> Case:
    return Case(name, getattr(ops, name), theirs, TWO, low, high, TIE if tie else ())


# elementwise ----------------------------------------------------------------------------------------------------------
UNARY = (
    one("neg", lambda x: -x), one("abs", jnp.abs), one("relu", jax.nn.relu, kink=True),
    one("sigmoid", jax.nn.sigmoid, -30, 30), one("tanh", jnp.tanh, -9, 9), one("exp", jnp.exp),
    one("log", jnp.log, 0.1, 5), one("recip", lambda x: 1 / x, 0.2, 3), one("sqrt", jnp.sqrt, 0.1, 9),
    one("rsqrt", jax.lax.rsqrt, 0.1, 9), one("square", jnp.square), one("sin", jnp.sin, -9, 9),
    one("cos", jnp.cos, -9, 9), one("erf", jax.scipy.special.erf, -4, 4), one("silu", jax.nn.silu, -20, 20),
    one("gelu", lambda x: jax.nn.gelu(x, approximate=True), -6, 6),
    one("gelu_erf", lambda x: jax.nn.gelu(x, approximate=False), -6, 6),
    one("softplus", jax.nn.softplus, -30, 30), one("elu", jax.nn.elu),
    Case("softplus beta", lambda x: ops.softplus(x, 2.5), lambda x: jax.nn.softplus(2.5 * x) / 2.5, ONE,
         ops=("softplus",)),
    Case("scale", lambda x: ops.scale(x, -1.5), lambda x: -1.5 * x, ONE),
    Case("add_scalar", lambda x: ops.add_scalar(x, 0.75), lambda x: x + 0.75, ONE),
    Case("clamp", lambda x: ops.clamp(x, -0.75, 1.25), lambda x: jnp.clip(x, -0.75, 1.25), ONE),
    *(Case(f"pow_scalar {p}", lambda x, p=p: ops.pow_scalar(x, p), lambda x, p=p: x**p, ONE, low, 3,
           ops=("pow_scalar",))
      for p, low in ((2.0, -3), (3.0, -3), (-1.0, 0.3), (0.5, 0.3), (1.0, -3))),
    Case("stop_gradient", lambda x: ops.stop_gradient(x) * x, lambda x: jax.lax.stop_gradient(x) * x, ONE),
    Case("sign", lambda x: ops.sign(x) * x, lambda x: jax.lax.stop_gradient(jnp.sign(x)) * x, ONE, points=KINK),
)  # fmt: skip
BINARY = (
    two("add", jnp.add), two("sub", jnp.subtract), two("mul", jnp.multiply), two("div", jnp.divide, 0.3, 2),
    two("pow", jnp.power, 0.2, 3), two("maximum", jnp.maximum, tie=True), two("minimum", jnp.minimum, tie=True),
    Case("mul with itself", lambda x: ops.mul(x, x), lambda x: x * x, ONE, ops=("mul",)),
    Case("where", lambda c, a, b: ops.where(c > 0.0, a, b), lambda c, a, b: jnp.where(c > 0, a, b),
         (((3, 5), (3, 5), (3, 5)), ((4, 3), (3,), (1,)), ((2, 1, 3), (4, 1), (3,)))),
    *(Case(name, getattr(ops, name), lambda a, b, f=theirs: f(a, b).astype(np.float64), TWO, points=TIE, forward=True)
      for name, theirs in (("greater", jnp.greater), ("less", jnp.less), ("greater_equal", jnp.greater_equal),
                           ("less_equal", jnp.less_equal), ("equal", jnp.equal), ("not_equal", jnp.not_equal))),
    Case("bias_add", ops.bias_add, jnp.add, (((4, 3), (3,)), ((2, 4, 5), (5,)), ((1, 7), (7,)))),
    Case("bias_mul", ops.bias_mul, jnp.multiply, (((4, 3), (3,)), ((2, 4, 5), (5,)), ((1, 7), (7,)))),
    Case("swiglu", ops.swiglu, lambda g, u: jax.nn.silu(g) * u, EQUAL, -5, 5),
    Case("geglu", ops.geglu, lambda g, u: jax.nn.gelu(g) * u, EQUAL, -5, 5),
)  # fmt: skip


# products -------------------------------------------------------------------------------------------------------------
EXTENTS = also([(2, 3, 5)], (7, 1, 4), (1, 1, 1), (1, 17, 3), (33, 2, 1))


def products(a: str, b: str) -> tuple[Shapes, ...]:
    """Operand shapes spelled by letters, over the extents."""
    at = {"m": 0, "k": 1, "n": 2}
    return tuple((tuple(e[at[c]] for c in a), tuple(e[at[c]] for c in b)) for e in EXTENTS)


def batched(a: str, b: str) -> tuple[Shapes, ...]:
    return tuple(((3, *x), (3, *y)) for x, y in products(a, b))


LAYOUTS = (("matmul", "mk", "kn"), ("matmul_at", "km", "kn"), ("matmul_bt", "mk", "nk"))
PRODUCTS = (
    *(Case(name, getattr(ops, name), lambda x, y, s=f"{a},{b}->mn": jnp.einsum(s, x, y), products(a, b))
      for name, a, b in LAYOUTS),
    *(Case(f"batch_{name}", getattr(ops, f"batch_{name}"), lambda x, y, s=f"z{a},z{b}->zmn": jnp.einsum(s, x, y),
           batched(a, b)) for name, a, b in LAYOUTS),
    *(Case(f"fused_{name}_add", getattr(ops, f"fused_{name}_add"),
           lambda x, y, d, s=f"{a},{b}->mn": jnp.einsum(s, x, y) + d,
           tuple((x, y, (e[0], e[2])) for (x, y), e in zip(products(a, b), EXTENTS, strict=True)))
      for name, a, b in LAYOUTS),
)  # fmt: skip


# reductions, scans ----------------------------------------------------------------------------------------------------
def fold(name: str, axes: Any, keepdims: bool, shape: Shape, points: tuple[Any, ...] = ()) -> Case:
    theirs = getattr(jnp, name)

    def reduced(x: Array) -> Array:
        out = theirs(x, axis=axes, keepdims=keepdims)
        return out.reshape(1) if out.ndim == 0 else out

    title = f"{name} over {axes} of {shape}{' kept' if keepdims else ''}"
    return Case(
        title, lambda x: getattr(ops, name)(x, axes, keepdims), reduced, ((shape,),), points=points, ops=(name,)
    )  # fmt: skip


FOLDS = (
    *(fold(name, axes, keepdims, shape) for name in ("sum", "mean", "max", "min") for axes, keepdims, shape in (
        ((1,), False, (3, 5)), ((0,), True, (3, 5)), ((-1, 0), False, (2, 3, 4)), ((0, 1, 2), True, (2, 3, 4)))),
    fold("max", (1,), True, (2, 4), TIED_ROWS), fold("min", (0,), False, (2, 4), TIED_ROWS),
    Case("sum_all", ops.sum_all, lambda x: jnp.sum(x).reshape(1), ONE),
    Case("mean_all", ops.mean_all, lambda x: jnp.mean(x).reshape(1), ONE),
    Case("sum_rows", ops.sum_rows, lambda x: x.sum(0), (((3, 5),), ((1, 7),))),
    Case("sum_inner", ops.sum_inner, lambda x: x.sum(1, keepdims=True), (((3, 5),), ((1, 7),))),
    Case("mean_inner", ops.mean_inner, lambda x: x.mean(1, keepdims=True), (((3, 5),), ((4, 1),))),
    Case("max_inner", ops.max_inner, lambda x: x.max(1, keepdims=True), (((3, 5),), ((4, 1),)), points=TIED_ROWS),
    Case("argmax", lambda x: ops.argmax(x, 1), lambda x: jnp.argmax(x, 1).astype(np.uint32), (((3, 5),), ((2, 4, 3),)),
         points=TIED_ROWS, forward=True),
    Case("exclusive_cumsum", ops.exclusive_cumsum, lambda x: jnp.cumsum(x, 1) - x, (((3, 5),), ((1, 9),))),
    Case("exclusive_cumsum reversed", lambda x: ops.exclusive_cumsum(x, True),
         lambda x: jnp.cumsum(x[:, ::-1], 1)[:, ::-1] - x, (((3, 5),), ((2, 1),)), ops=("exclusive_cumsum",)),
)  # fmt: skip


# movement, indices ----------------------------------------------------------------------------------------------------
MOVES = (
    Case("reshape", lambda x: ops.reshape(x, (6, -1)), lambda x: x.reshape(6, -1), (((3, 4),), ((2, 3, 5),))),
    Case("transpose", ops.transpose, lambda x: jnp.swapaxes(x, -1, -2), (((3, 5),), ((2, 3, 4),))),
    Case("permute", lambda x: ops.permute(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (((2, 3, 4),), ((1, 5, 2),))),
    Case("broadcast_to", lambda x: ops.broadcast_to(x, (2, 4, 3)), lambda x: jnp.broadcast_to(x, (2, 4, 3)),
         (((3,),), ((4, 1),), ((2, 1, 3),))),
    Case("slice", lambda x: x[1:3, ::2], lambda x: x[1:3, ::2], (((4, 6),), ((3, 5),))),
    Case("pad", lambda x: ops.pad(x, (1, 0), (0, 2), 0.5), lambda x: jnp.pad(x, ((1, 0), (0, 2)), constant_values=0.5),
         (((4, 6),), ((1, 1),))),
    Case("concat", lambda a, b, c: ops.concat([a, b, c], 1), lambda a, b, c: jnp.concatenate([a, b, c], 1),
         (((2, 3), (2, 1), (2, 4)), ((3, 1, 2), (3, 5, 2), (3, 2, 2)))),
    Case("split", lambda x: ops.split(x, (2, 3), 1)[0] * 2.0 + ops.split(x, (2, 3), 1)[1][:, 1:],
         lambda x: x[:, :2] * 2 + x[:, 3:], (((4, 5),),), ops=("slice",)),
    Case("embedding", ops.embedding, lambda i, t: t[i], (((6,), (4, 3)), ((1,), (5, 2))), integers={0: 4}),
    Case("gather", lambda x, i: ops.gather(x, i, 1), lambda x, i: jnp.take(x, i, axis=1),
         (((2, 4), (6,)), ((3, 5, 2), (3,))), integers={1: 4}),
    Case("scatter_add", lambda i, s: ops.scatter_add(i, s, 4), lambda i, s: jnp.zeros((4, s.shape[1])).at[i].add(s),
         (((6,), (6, 3)), ((1,), (1, 2))), integers={0: 4}),
)  # fmt: skip


# rows, losses ---------------------------------------------------------------------------------------------------------
EPS = 2.0**-16


def _normalized(x: Array, axes: Any, eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axes, keepdims=True) + eps)


def _group_norm(x: Array, w: Array, b: Array, groups: int) -> Array:
    parts = x.reshape(x.shape[0], groups, -1)
    unit = _normalized(parts, (2,), EPS).reshape(x.shape)
    channel = (1, -1) + (1,) * (x.ndim - 2)
    return unit * w.reshape(channel) + b.reshape(channel)


def _cross_entropy(z: Array, labels: Array) -> Array:
    return -(labels * jax.nn.log_softmax(z)).sum(1).mean().reshape(1)


def _bce(p: Array, t: Array) -> Array:
    return -(t * jnp.log(p) + (1 - t) * jnp.log(1 - p)).mean().reshape(1)


ROWS: tuple[Shapes, ...] = (*also([((1, 1),), ((2, 2, 7),)], ((3, 5),), ((4, 64),)),)
NORMS = (
    Case("softmax", ops.softmax, jax.nn.softmax, ROWS, -8, 8, TIED_ROWS),
    Case("log_softmax", ops.log_softmax, jax.nn.log_softmax, ROWS, -8, 8, TIED_ROWS),
    Case("rms_norm", lambda x, w: ops.rms_norm(x, w, EPS),
         lambda x, w: x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + EPS) * w,
         tuple((s[0], s[0][-1:]) for s in ROWS)),
    Case("layer_norm", lambda x, w, b: ops.layer_norm(x, w, b, EPS),
         lambda x, w, b: _normalized(x, (-1,), EPS) * w + b,
         tuple((s[0], s[0][-1:], s[0][-1:]) for s in (*ROWS[:1], *ROWS[2:]))),
    Case("group_norm", lambda x, w, b: ops.group_norm(x, w, b, 2, EPS), lambda x, w, b: _group_norm(x, w, b, 2),
         (((2, 4, 3, 3), (4,), (4,)), ((1, 6, 5), (6,), (6,)))),
    Case("cross_entropy_loss", ops.cross_entropy_loss, _cross_entropy, EQUAL[:1]),
    Case("bce_loss", ops.bce_loss, _bce, EQUAL, 0.05, 0.95),
    Case("mse_loss", ops.mse_loss, lambda p, t: jnp.mean((p - t) ** 2).reshape(1), EQUAL),
    Case("l1_loss", ops.l1_loss, lambda p, t: jnp.abs(p - t).mean().reshape(1), EQUAL),
)  # fmt: skip


# attention ------------------------------------------------------------------------------------------------------------
def _rope(x: Array, theta: float, d: int, positions: Array) -> Array:
    rows, width = x.shape
    heads = x.reshape(rows, width // d, d)
    angle = positions[:, None] * theta ** (-2.0 * jnp.arange(d // 2) / d)
    c, s = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = heads[..., : d // 2], heads[..., d // 2 :]
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def _attention(q: Array, k: Array, v: Array, heads: int, kv: int, d: int, allowed: Callable[..., Array]) -> Array:
    q4, k4, v4 = q.reshape(-1, heads, d), k.reshape(-1, kv, d), v.reshape(-1, kv, d)
    k4, v4 = (jnp.repeat(t, heads // kv, axis=1) for t in (k4, v4))
    scores = jnp.einsum("ihd,jhd->hij", q4, k4) / np.sqrt(d)
    i, j = jnp.arange(scores.shape[1])[:, None], jnp.arange(scores.shape[2])[None]
    weights = jax.nn.softmax(jnp.where(allowed(i, j), scores, -jnp.inf))
    return jnp.einsum("hij,jhd->ihd", weights, v4).reshape(q.shape)


def attention(name: str, allowed: Callable[..., Array], cross: bool = False, **attrs: int) -> Iterator[Case]:
    for heads, kv, d, rows in ((1, 1, 8, 1), (4, 2, 4, 7), (2, 2, 16, 5), (6, 2, 3, 9), (2, 1, 1, 4)):
        keys = rows + 3 if cross else rows
        yield Case(
            f"{name} of {heads}/{kv} heads of {d}, {rows} rows",
            lambda q, k, v, a=(heads, kv, d): getattr(ops, name)(q, k, v, *a, **attrs),
            lambda q, k, v, a=(heads, kv, d): _attention(q, k, v, *a, allowed),
            (((rows, heads * d), (keys, kv * d), (keys, kv * d)),), ops=(name,),
        )  # fmt: skip


ATTENTION = (
    Case("rope", lambda x: ops.rope(x, 10000.0, 4), lambda x: _rope(x, 10000.0, 4, jnp.arange(len(x))),
         (((5, 8),), ((1, 4),))),
    Case("rope_with_offset", lambda x: ops.rope_with_offset(x, 100.0, 7, 6),
         lambda x: _rope(x, 100.0, 6, 7 + jnp.arange(len(x))), (((5, 6),), ((3, 12),))),
    Case("rope_positions", lambda x, p: ops.rope_positions(x, p, 100.0, 4), lambda x, p: _rope(x, 100.0, 4, p),
         (((5, 8), (5,)),), integers={1: 40}),
    *attention("causal_attention", lambda i, j: j <= i), *attention("full_attention", lambda i, j: i == i),
    *attention("cross_attention", lambda i, j: i == i, cross=True),
    *attention("sliding_window_attention", lambda i, j: (j <= i) & (j > i - 3), window=3),
)  # fmt: skip


# convolution ----------------------------------------------------------------------------------------------------------
def _conv(x: Array, k: Array, stride: int, padding: int, dilation: int, groups: int) -> Array:
    return jax.lax.conv_general_dilated(
        x, k, (stride, stride), [(padding, padding)] * 2, rhs_dilation=(dilation, dilation),
        dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=groups,
    )  # fmt: skip


def convolutions() -> Iterator[Case]:
    for a in ((1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 2), (2, 3, 2, 4), (3, 0, 1, 4)):
        yield Case(
            f"conv2d stride {a[0]} padding {a[1]} dilation {a[2]} groups {a[3]}",
            lambda x, k, a=a: ops.conv2d(x, k, *a), lambda x, k, a=a: _conv(x, k, *a),
            (((2, 4, 7, 6), (8, 4 // a[3], 3, 2)), ((1, 4, 5, 5), (4, 4 // a[3], 1, 1))), ops=("conv2d",),
        )  # fmt: skip


def _max_pool(x: Array, k: int, stride: int, padding: int) -> Array:
    pads = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, k, k), (1, 1, stride, stride), pads)


def _mean_pool(x: Array, k: int, stride: int, padding: int, count_padding: bool) -> Array:
    pads = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    window, strides = (1, 1, k, k), (1, 1, stride, stride)
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, strides, pads)
    ones = jax.lax.reduce_window(jnp.ones_like(x), 0.0, jax.lax.add, window, strides, pads)
    return total / (k * k if count_padding else ones)


def pools() -> Iterator[Case]:
    tied = (np.round(np.random.default_rng(0).uniform(-1, 1, (1, 2, 6, 6)) * 2) / 2,)
    for k, stride, padding in ((2, 2, 0), (3, 1, 1), (3, 2, 1), (2, 3, 0)):
        a = (k, stride, padding)
        shapes = (((2, 3, 7, 6),), ((1, 1, 4, 5),))
        yield Case(f"max_pool_2d {a}", lambda x, a=a: ops.max_pool_2d(x, *a), lambda x, a=a: _max_pool(x, *a), shapes,
                   points=(tied,), ops=("max_pool_2d",))  # fmt: skip
        for counted in (False, True):
            yield Case(
                f"avg_pool_2d {a} {counted}",
                lambda x, a=a, c=counted: ops.avg_pool_2d(x, *a, count_include_pad=c),
                lambda x, a=a, c=counted: _mean_pool(x, *a, c), shapes, ops=("avg_pool_2d",),
            )  # fmt: skip


IMAGES = (((2, 3, 4, 5),), ((1, 1, 1, 3),))
CONVOLUTIONS = (
    *convolutions(), *pools(),
    Case("global_avg_pool", ops.global_avg_pool, lambda x: x.mean((2, 3)), IMAGES),
    Case("upsample_2x", ops.upsample_2x, lambda x: x.repeat(2, 2).repeat(2, 3), IMAGES),
    Case("upsample_nearest", lambda x: ops.upsample_nearest(x, 3, 2), lambda x: x.repeat(3, 2).repeat(2, 3), IMAGES),
    Case("mul_per_channel", ops.mul_per_channel, lambda x, g: x * g[:, :, None, None], (((2, 3, 4, 5), (2, 3)),)),
    Case("add_per_channel", ops.add_per_channel, lambda x, b: x + b[:, None, None], (((2, 3, 4, 5), (3,)),)),
)  # fmt: skip

# where we differ on purpose -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Decision:
    """At operands `at` the gradient of operand 0 (of the other one with `of`) is `ours`; JAX has `theirs`."""

    case: Case
    where: str
    at: tuple[Sequence[float], ...]
    ours: Sequence[float]
    theirs: Sequence[float]
    why: str
    of: int = 0


INF, NAN = float("inf"), float("nan")
_ABS, _POW, _MAX = one("abs", jnp.abs), two("pow", jnp.power), two("maximum", jnp.maximum)
_CLAMP = Case("clamp", lambda x: ops.clamp(x, -0.75, 1.25), lambda x: jnp.clip(x, -0.75, 1.25), ())
_TO_ZERO = Case("pow_scalar", lambda x: ops.pow_scalar(x, 0.0), lambda x: x**0.0, ())
DECISIONS = (
    Decision(_ABS, "0", ([0.0],), [0.0], [1.0], "the subgradient that is the same from both sides; l1_loss too"),
    Decision(_CLAMP, "a bound", ([-0.75],), [0.0], [0.5], "the interval is open, as for relu at 0"),
    Decision(_POW, "a = b = 0", ([0.0], [0.0]), [0.0], [NAN], "anything to the power 0 is constant"),
    Decision(_POW, "a = b = 0", ([0.0], [0.0]), [-INF], [0.0], "0 to the power b jumps there: 1 · ln 0", of=1),
    Decision(_TO_ZERO, "0 to the power 0", ([0.0],), [0.0], [NAN], "anything to the power 0 is constant"),
    Decision(_MAX, "one operand NaN", ([NAN, 1.0], [1.0, NAN]), [1.0, 0.0], [0.0, 0.0], "the NaN is what was taken"),
)

CASES: Sequence[Case] = (
    *UNARY, *BINARY, *PRODUCTS, *FOLDS, *MOVES, *NORMS, *ATTENTION, *CONVOLUTIONS,
)  # fmt: skip


def judged() -> set[str]:
    """The ops that some case with gradients judges."""
    return {name for case in CASES if not case.forward for name in (case.ops or (case.name,))}


def operand(name: str, array: np.ndarray[Any, Any]) -> Value:
    """An input for this array."""
    return (ops.input_u32 if array.dtype == np.uint32 else ops.input)(name, array.shape)
