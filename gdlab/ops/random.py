"""Random numbers as ops: `rand_uniform`, `rand_normal`, `bernoulli_mask`, `dropout`.

An op draws from the Philox4x32-10 stream of its attributes: `seed` is the key, `call` tells the draws of a graph apart
(by default the first number that no draw of the graph has with this seed), and every step of a session is a stream of
its own, counted from 0. The same (seed, call, step) gives the same bits on every device and in the reference, which
counts as step 0 unless it is evaluated inside `with at_step(s):`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from gdlab.base import philox
from gdlab.base.errors import ArgumentError
from gdlab.base.types import Array, Shape, TensorType, check_shape
from gdlab.graph import Graph, Node, Value
from gdlab.op import (
    Bad,
    Grads,
    Sample,
    Shader,
    Work,
    fused,
    op,
    ops_that,
    want,
)
from gdlab.op.numpy_form import KernelBuilder, KernelConstants

_step: ContextVar[int] = ContextVar("gdlab_reference_step", default=0)
STEP = ("step_low", "step_high")


@contextmanager
def at_step(step: int) -> Iterator[None]:
    """Let the reference draw the numbers of this step, 0 … 2³² − 1, inside the block."""
    if not isinstance(step, (int, np.integer)) or not 0 <= step < 2**32:
        raise ArgumentError("at_step", "step", repr(step), "an int in 0 … 2^32 − 1")
    token = _step.set(int(step))
    try:
        yield
    finally:
        _step.reset(token)


def _numbered(home: Graph | Value, call: int | None, **attrs: Any) -> dict[str, Any]:
    """Return the attributes with a number for the draw; by default one above those in the graph."""
    if call is None:
        graph = home.graph if isinstance(home, Value) else home
        call = graph.next_draw(attrs["seed"], _draws)
    want(0 <= attrs["seed"] < 2**64, "an int in 0 … 2^64 − 1", attrs["seed"], "seed")
    want(0 <= call < 2**32, "an int in 0 … 2^32 − 1", call, "call")
    return {"call": call, **attrs}


def _draws(nodes: Iterable[Node]) -> Iterable[Node]:
    """Return those of the nodes that draw random numbers."""
    names = ops_that(lambda op: op.canonical is _numbered, nodes)
    return (n for n in nodes if n.op in names)


def _draw(numbers: Callable[..., Array], shape: Shape, seed: int, call: int) -> Array:
    count = int(np.prod(shape))
    return numbers(count, seed, call=call, step=_step.get()).astype(np.float64).reshape(shape)


def _drawing(types: tuple[TensorType, ...], result: TensorType, attrs: Any) -> Work:
    """Return the work with one block of four words per unit."""
    seed, count = attrs["seed"], result.num_elements
    key = {"KEY_LOW": seed & 0xFFFFFFFF, "KEY_HIGH": seed >> 32, "CALL": attrs["call"], "COUNT": count}
    keep = {"KEEP": float(attrs["keep_prob"])} if "keep_prob" in attrs else {}
    return Work(-(-count // 4), constants=key | keep, flops=40 * count)


def _draw_form(numbers: Callable[..., Array], builder: KernelBuilder, c: KernelConstants) -> None:
    """Draw (count, seed, call, step) -> numbers anew in every run."""
    out, seed, call = builder.out((c["COUNT"],)), c["KEY_HIGH"] << 32 | c["KEY_LOW"], c["CALL"]
    low, high = (builder.scalars[name] for name in STEP)

    def draw() -> None:
        out[...] = numbers(out.size, seed, call=call, step=int(high) << 16 | int(low))

    builder.calls.append((draw, ()))


def _mask_form(builder: KernelBuilder, c: KernelConstants) -> None:
    keep = np.float32(dict(c.numbers)["KEEP"])
    _draw_form(lambda *count, **stream: philox.uniform(*count, **stream) < keep, builder, c)


SHAPES = ((3, 5), (70,), (1,), (2, 2, 4))
SEEDS = ((0, 0), (42, 1), (2**64 - 1, 2**32 - 1), (7, 3))
DRAWN = tuple(Sample(attrs={"shape": s, "seed": k, "call": c}) for s, (k, c) in zip(SHAPES, SEEDS, strict=True))
MISDRAWN = (
    Bad((), "ints ≥ 1", {"shape": (0,)}),
    Bad((), "seed: given -1, wanted an int in 0 … 2^64 − 1", {"shape": (3,), "seed": -1}),
    Bad((), "seed: given 0.5, wanted an int", {"shape": (3,), "seed": 0.5}),
    Bad((), "call: given 4294967296, wanted an int in 0 … 2^32 − 1", {"shape": (3,), "call": 2**32}),
)


@op(
    numpy=lambda shape, seed, call: _draw(philox.uniform, shape, seed, call),
    kernel=Shader(
        "rand_uniform.wgsl", _drawing, linear=True, scalars=STEP, numpy_form=partial(_draw_form, philox.uniform)
    ),
    samples=DRAWN,
    bad=MISDRAWN,
    family="random",
    no_grad="ends",
    canonical=_numbered,
)
def rand_uniform(shape: tuple[int, ...], seed: int = 0, call: int | None = None) -> TensorType:
    """Uniform in [0, 1), exact multiples of 2⁻²⁴: f32[shape]; new numbers in every step.

    Philox4x32-10: Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.
    """
    return TensorType(check_shape(shape, "rand_uniform"))


@op(
    numpy=lambda shape, seed, call: _draw(philox.normal, shape, seed, call),
    kernel=Shader(
        "rand_normal.wgsl", _drawing, linear=True, scalars=STEP, numpy_form=partial(_draw_form, philox.normal)
    ),
    samples=DRAWN,
    bad=MISDRAWN,
    family="random",
    no_grad="ends",
    canonical=_numbered,
)
def rand_normal(shape: tuple[int, ...], seed: int = 0, call: int | None = None) -> TensorType:
    """Standard normal, √(−2 ln u₁) · cos 2πu₂ of two uniforms each: f32[shape]; new numbers in every step.

    G. E. P. Box, M. E. Muller, A note on the generation of random normal deviates, 1958.
    """
    return TensorType(check_shape(shape, "rand_normal"))


def _probability(p: float, name: str) -> None:
    want(0 <= p <= 1, "a number in 0 … 1", p, name)


def _mask(shape: Shape, keep_prob: float, seed: int, call: int) -> Array:
    return np.where(_draw(philox.uniform, shape, seed, call) < np.float32(keep_prob), 1.0, 0.0)


@op(
    numpy=_mask,
    kernel=Shader("bernoulli_mask.wgsl", _drawing, linear=True, scalars=STEP, numpy_form=_mask_form),
    samples=tuple(Sample(attrs={**s.attrs, "keep_prob": k}) for s, k in zip(DRAWN, (0.5, 0.9, 0.0, 1.0), strict=True)),
    bad=(
        *(Bad(b.types, b.message, {**b.attrs, "keep_prob": 0.5}) for b in MISDRAWN),
        Bad((), "keep_prob: given 1.5, wanted a number in 0 … 1", {"shape": (3,), "keep_prob": 1.5}),
        Bad((), "keep_prob: given nan, wanted a finite number", {"shape": (3,), "keep_prob": float("nan")}),
    ),
    family="random",
    no_grad="ends",
    canonical=_numbered,
)
def bernoulli_mask(shape: tuple[int, ...], keep_prob: float, seed: int = 0, call: int | None = None) -> TensorType:
    """1 with this probability, else 0: f32[shape]; 1 where `rand_uniform` of the same seed and call is below it."""
    _probability(keep_prob, "keep_prob")
    return TensorType(check_shape(shape, "bernoulli_mask"))


def _dropped(x: Value, p: float, seed: int, call: int | None) -> None:
    want(0 <= p < 1, "0 <= p < 1", p, "p")


@fused(
    label="",
    family="random",
    samples=(Sample((3, 5), attrs={"p": 0.5, "seed": 42, "call": 0}),
             Sample((70,), attrs={"p": 0.1, "seed": 7, "call": 2}),
             Sample((1, 1), attrs={"p": 0.0, "seed": 0, "call": 0}),
             Sample((2, 4), attrs={"p": 0.5, "seed": 42, "call": 0}, grads=([[0, 2, 2, 2], [0, 2, 0, 2]],))),
    bad=(Bad(("f32[3]",), "dropout: p: given 1.0, wanted 0 <= p < 1", {"p": 1.0}),
         Bad(("f32[3]",), "dropout: p: given -0.5, wanted 0 <= p < 1", {"p": -0.5}),
         Bad(("f32[3]",), "dropout: p: given nan, wanted a finite number", {"p": float("nan")}),
         Bad(("f32[3]",), "dropout: seed: given -1, wanted an int", {"p": 0.5, "seed": -1}),
         Bad(("u32[3]",), "wanted f32 operands", {"p": 0.5})),
    check=_dropped,
)  # fmt: skip
def dropout(x: Value, p: float, seed: int = 0, call: int | None = None) -> Value:
    """Each element 0 with probability p, else over 1 − p: f32[...] -> f32[...]; 0 ≤ p < 1, another choice every step.

    N. Srivastava and others, Dropout: a simple way to prevent neural networks from overfitting, 2014.
    """
    return (x * bernoulli_mask(x.shape, 1 - p, seed, call)).scale(1 / (1 - p))


dropout.canonical = _numbered


@dropout.vjp
def _(g: Value, out: Value, x: Value, p: float, seed: int, call: int) -> Grads:
    """∂x = dropout(g, p, seed, call)"""
    return (dropout(g, p, seed, call),)
