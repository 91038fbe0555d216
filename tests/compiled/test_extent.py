"""Graphs with bucket axes: bounded, they compute what the graph of the active extent computes, with NaN in the padding
(C-13); so do losses and gradients (C-14); what cannot is refused when it is built (C-15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ActiveExtentUnsupported, ArgumentError, CompileError, UnknownNameError
from gdlab.base.types import Array, u32
from gdlab.compiled import EXTENT, bounded, bounded_with_gradients, resolve_bucket_axes
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate
from gdlab.session import SessionConfig, build
from gdlab.session.session import Session

UPPER, WIDTH = 8, 4
EXTENTS = (0, 1, 3, 5, UPPER)
NAN, INF = np.nan, np.inf


@dataclass(frozen=True)
class Kind:
    """A graph of n entries; the bucket axes of its inputs; of each output without one its value where n = 0."""

    build: Callable[[int], Mapping[str, Value]]
    axes: dict[str, Any] = field(default_factory=lambda: {"x": 0})
    nothing: dict[str, float] = field(default_factory=dict)
    gradients: bool = False

    def graph(self, n: int) -> Graph:
        with Graph() as g:
            g.set_outputs(self.build(n))
        return g


def x_of(n: int, width: int = WIDTH) -> Value:
    return ops.input("x", (n, width))


def w_of(name: str, *shape: int) -> Value:
    return ops.parameter(name, shape)


def linear(n: int) -> dict[str, Value]:
    return {"y": (x_of(n) @ w_of("w", WIDTH, 3) + w_of("b", 3)).relu()}


def folds(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {
        "sum": x.sum(0), "max": x.max(0), "min": x.min((0, 1)), "mean": x.mean(0), "mean_all": x.mean_all(),
        "rows": x.sum_rows(), "across": x.mean(1), "inner": x.T.mean_inner(), "kept": x.max(0, keepdims=True),
    }  # fmt: skip


def softmaxes(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {"along": x.T.softmax(), "log": x.T.log_softmax(), "across": x.softmax()}


def norms(n: int) -> dict[str, Value]:
    x, w, b = x_of(n), w_of("w", n), w_of("b", n)
    v = w_of("v", WIDTH)
    return {
        "layer": x.T.layer_norm(w, b, 1e-5), "rms": x.T.rms_norm(w, 1e-5), "across": x.rms_norm(v, 1e-5),
    }  # fmt: skip


def losses(n: int) -> dict[str, Value]:
    x, y = x_of(n), ops.input("y", (n, WIDTH))
    return {
        "cross_entropy": x.cross_entropy_loss(y), "mse": x.mse_loss(y), "l1": x.l1_loss(y),
        "bce": x.sigmoid().bce_loss(y.sigmoid()), "classes": x.T.cross_entropy_loss(y.T),
    }  # fmt: skip


def running(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {
        "sums": x.T.cumsum(), "back": x.T.cumsum(True), "ahead": x.T.shift_inner(-1), "later": x.T.shift_inner(2),
    }  # fmt: skip


def batch_norm(n: int) -> dict[str, Value]:
    x = x_of(n)
    centred = x - x.mean(0)
    return {"y": centred * (centred.square().mean(0) + 1e-5).rsqrt() * w_of("w", WIDTH)}


def attention(name: str, keys: int | None = None, **more: Any) -> Callable[[int], dict[str, Value]]:
    """Attention of x to itself, or of `keys` queries that are no bucket axis to x."""

    def build(n: int) -> dict[str, Value]:
        x = x_of(n)
        q = ops.input("q", (keys, WIDTH)) if keys else x @ w_of("wq", WIDTH, WIDTH)
        k, v = x @ w_of("wk", WIDTH, WIDTH), x @ w_of("wv", WIDTH, WIDTH)
        return {"y": getattr(ops, name)(q, k, v, num_heads=2, num_kv_heads=2, head_dim=2, **more)}

    return build


def by_hand(n: int) -> dict[str, Value]:
    x = x_of(n)
    scores = (x @ w_of("wq", WIDTH, WIDTH)) @ (x @ w_of("wk", WIDTH, WIDTH)).T
    return {"y": scores.scale(0.5).softmax() @ (x @ w_of("wv", WIDTH, WIDTH)), "scores": scores}


def reshapes(n: int) -> dict[str, Value]:
    x = x_of(n)
    pairs = x.reshape((n * 2, 2))
    heads = x.reshape((n, 2, 2)).permute((1, 0, 2)).reshape((2 * n, 2))
    return {
        "pairs": pairs.max(0),
        "heads": (heads @ w_of("w", 2, 3)).reshape((2, n, 3)),
        "flat": x.reshape((n * WIDTH,)).sum_all(),
    }


def gram(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {"inside": x.T @ x, "outside": x @ x.T, "weighted": x.T @ w_of("w", n, 2)}


def indexed(n: int) -> dict[str, Value]:
    x, idx = x_of(n), ops.input_u32("idx", (n,))
    return {
        "rows": idx.embedding(w_of("table", 5, 3)), "columns": w_of("w", 2, 5).gather(idx, 1),
        "added": idx.scatter_add(x, 5), "first": x.argmax(0), "each": x.argmax(1), "idx": idx,
    }  # fmt: skip


def images(n: int) -> dict[str, Value]:
    x = ops.input("x", (n, 2, 4, 4))
    y = x.conv2d(w_of("k", 3, 2, 3, 3)).relu()
    return {"y": y, "pool": y.max_pool_2d((2, 2), (2, 2)), "mean": y.global_avg_pool().mean(0)}


def drawn(n: int) -> dict[str, Value]:
    x = x_of(n)
    return {"y": x.dropout(0.5, seed=3), "noise": (x + ops.rand_normal((n, WIDTH), seed=1)).sum(0)}


def neighbours(n: int) -> dict[str, Value]:
    """Two rows of y for each of x."""
    x, y = x_of(n), ops.input("y", (2 * n, 3))
    return {"y": y.reshape((n, 6)) * (x @ w_of("w", WIDTH, 6)), "mean": y.mean(0), "softmax": y.T.softmax()}


def written(n: int) -> dict[str, Value]:
    cache, pos = w_of("cache", 16, WIDTH), ops.input_u32("pos", (1,))
    return {"cache": x_of(n).cache_write(cache, pos)}


def turned(n: int) -> dict[str, Value]:
    x, at = x_of(n), ops.input_u32("at", (n,))
    return {"rope": x.rope(10000.0, 4), "at": x.rope_positions(at, 10000.0, 4), "gates": x.swiglu_concat()}


FOLDS = {"sum": 0.0, "max": -INF, "min": INF, "mean": NAN, "mean_all": NAN, "rows": 0.0, "inner": NAN, "kept": -INF}
LOSSES = {"cross_entropy": NAN, "mse": NAN, "l1": NAN, "bce": NAN, "classes": 0.0}
X_AND_Y = {"x": 0, "y": 0}
KINDS = {
    "linear": Kind(linear),
    "folds": Kind(folds, nothing=FOLDS),
    "softmaxes": Kind(softmaxes),
    "norms": Kind(norms),
    "losses": Kind(losses, X_AND_Y, LOSSES),
    "running": Kind(running),
    "batch_norm": Kind(batch_norm),
    "causal": Kind(attention("causal_attention")),
    "window": Kind(attention("sliding_window_attention", window=2)),
    "full": Kind(attention("full_attention")),
    "cross": Kind(attention("cross_attention", 3), nothing={"y": NAN}),
    "full_for_gradients": Kind(attention("full_attention"), gradients=True),
    "by_hand": Kind(by_hand),
    "reshapes": Kind(reshapes, nothing={"pairs": -INF, "flat": 0.0}),
    "gram": Kind(gram, nothing={"inside": 0.0, "weighted": 0.0}),
    "indexed": Kind(indexed, {"x": 0, "idx": 0}, {"added": 0.0, "first": 0.0}),
    "images": Kind(images, nothing={"mean": NAN}),
    "drawn": Kind(drawn, nothing={"noise": 0.0}),
    "neighbours": Kind(neighbours, X_AND_Y, {"mean": NAN}),
    "written": Kind(written),
    "turned": Kind(turned, {"x": 0, "at": 0}),
}
ON_WGPU = ("linear", "folds", "softmaxes", "full", "indexed", "gram")


# data -----------------------------------------------------------------------------------------------------------------
def data_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Values for all inputs and parameters; indices below 5."""
    rng = np.random.default_rng(seed)
    return {
        node.name: rng.integers(5, size=node.type.shape).astype(np.uint32)
        if node.type.dtype is u32
        else rng.normal(size=node.type.shape).astype(np.float32)
        for node in (*graph.inputs, *graph.parameters)
    }


def parts(whole: Mapping[str, Array], like: Graph) -> dict[str, Array]:
    """The first entries, as many as the smaller graph has."""
    small = {node.name: node.type.shape for node in (*like.inputs, *like.parameters)}
    return {name: whole[name][tuple(map(slice, shape))] for name, shape in small.items()}


def padded(
    whole: Mapping[str, Array], axes: Mapping[str, tuple[int, ...]], actual: int, index: int
) -> dict[str, Array]:
    """NaN, or an `index` without meaning, behind the active entries."""
    found = dict(whole)
    for name, chosen in axes.items():
        found[name] = whole[name].copy()
        for axis in chosen:
            start = whole[name].shape[axis] // UPPER * actual
            behind = (slice(None),) * axis + (slice(start, None),)
            found[name][behind] = index if whole[name].dtype == np.uint32 else NAN
    return found


def check(got: Array, want: Array, rtol: float) -> None:
    """Equal in the first entries, exactly 0 in the rest."""
    first = tuple(map(slice, want.shape))
    wide = np.max(np.abs(np.where(np.isfinite(want), want, 0.0)), initial=1.0)
    np.testing.assert_allclose(got[first].astype(float), want.astype(float), rtol=rtol, atol=rtol * wide)
    rest = got.copy()
    rest[first] = 0
    assert not rest.any() and not np.isnan(rest.astype(float)).any()


def of_graph(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    values = evaluate(graph, feeds)
    return [values[id] for id in graph.output_ids]


def outputs_of(session: Session, feeds: Mapping[str, Array]) -> list[Array]:
    for name, value in feeds.items():
        if session.has_input(name):
            session.set_input(name, value)
    session.step()
    return [session.read_output_by_index(i) for i in range(session.num_outputs())]


def compare(kind: Kind, run: Callable[[Mapping[str, Array]], list[Array]], rtol: float, index: int) -> None:
    """At every extent, the outputs of the bounded graph with those of the graph of that extent."""
    graph = kind.graph(UPPER)
    axes, _ = resolve_bucket_axes(graph, kind.axes)
    whole = data_of(graph)
    for actual in EXTENTS:
        got = run({EXTENT: np.array([actual], np.uint32), **padded(whole, axes, actual, index)})
        if actual == 0:
            for name, values in zip(graph.output_names, got, strict=True):
                if name == "cache":
                    np.testing.assert_array_equal(values, whole["cache"].astype(values.dtype))
                else:
                    np.testing.assert_array_equal(values, np.full(values.shape, kind.nothing.get(name, 0.0)))
            continue
        small = kind.graph(actual)
        for mine, want in zip(got, of_graph(small, parts(whole, small)), strict=True):
            check(mine, want, rtol)


def bounded_of(kind: Kind) -> Graph:
    graph = kind.graph(UPPER)
    return bounded(graph, *resolve_bucket_axes(graph, kind.axes), gradients=kind.gradients)[0]


# C-13 -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KINDS)
def test_a_bounded_graph_is_that_of_the_active_extent(name: str) -> None:
    made = bounded_of(KINDS[name])
    compare(KINDS[name], lambda feeds: of_graph(made, feeds), rtol=1e-6, index=4_000_000_000)


def compare_session(kind: Kind, device: str, rtol: float) -> None:
    made = bounded_of(kind)
    with build(made, SessionConfig(mode="inference", device=device))[0] as session:
        values = data_of(kind.graph(UPPER))

        def run(feeds: Mapping[str, Array]) -> list[Array]:
            for name in session.param_names():
                session.set_parameter(name, values[name])
            return outputs_of(session, feeds)

        compare(kind, run, rtol, index=4)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "drawn"])  # each step draws anew
def test_a_session_runs_it_on_the_cpu(name: str) -> None:
    compare_session(KINDS[name], "cpu", rtol=1e-4)


@pytest.mark.parametrize("name", ON_WGPU)
def test_a_session_runs_it_on_the_gpu(name: str) -> None:
    from machine import needs

    needs("wgpu")
    compare_session(KINDS[name], "wgpu", rtol=2e-4)


def test_rows_that_do_not_mix_are_those_of_a_full_run_bit_for_bit() -> None:
    kind = KINDS["linear"]
    whole = data_of(kind.graph(UPPER))
    with build(bounded_of(kind), SessionConfig(mode="inference", device="cpu"))[0] as session:
        for name in session.param_names():
            session.set_parameter(name, whole[name])
        full = outputs_of(session, {EXTENT: np.array([UPPER], np.uint32), **whole})[0]
        some = outputs_of(session, {EXTENT: np.array([3], np.uint32), **whole})[0]
    assert (some[:3] == full[:3]).all() and not some[3:].any() and full[3:].any()


def dispatches(graph: Graph, optimize: bool = True) -> int:
    options = {} if optimize else {"optimize": None}
    with build(graph, SessionConfig(mode="inference", device="cpu", **options))[0] as session:  # type: ignore[arg-type]
        return len(session.plan().dispatches)


def full_of_inputs(n: int) -> dict[str, Value]:
    q, k, v = (ops.input(name, (n, WIDTH)) for name in "qkv")
    return {"y": q.full_attention(k, v, 2, 2, 2)}


def test_masks_fuse_into_the_kernels_around_them() -> None:
    """Two more dispatches, of one element and of `upper`; `FullAttention`, into which the optimizer makes attention
    that is spelled out, becomes a `CachedAttention` whose keys and values are masked where they are inputs."""
    linear, hand = KINDS["linear"], KINDS["by_hand"]
    assert (dispatches(linear.graph(UPPER)), dispatches(bounded_of(linear))) == (1, 3)
    counts = dispatches(hand.graph(UPPER), optimize=False), dispatches(bounded_of(hand), optimize=False)
    assert counts[1] - counts[0] == 3  # the scores are an output, too: zeros behind them
    full = Kind(full_of_inputs, {"q": 0, "k": 0, "v": 0})
    assert (dispatches(full.graph(UPPER)), dispatches(bounded_of(full))) == (1, 7)


@pytest.mark.parametrize("name", KINDS)
def test_one_entry_is_an_extent_too(name: str) -> None:
    """A ladder may begin with a bucket of one entry."""
    kind = KINDS[name]
    graph = kind.graph(1)
    made, _ = bounded(graph, *resolve_bucket_axes(graph, kind.axes), gradients=kind.gradients)
    feeds = data_of(graph)
    for mine, want in zip(of_graph(made, {EXTENT: [1], **feeds}), of_graph(graph, feeds), strict=True):
        check(mine, want, rtol=1e-6)
    for output, mine in zip(made.output_names, of_graph(made, {EXTENT: [0], **feeds}), strict=True):
        if output != "cache":
            np.testing.assert_array_equal(mine, np.full(mine.shape, kind.nothing.get(output, 0.0)))


# C-14 -----------------------------------------------------------------------------------------------------------------
def training(n: int) -> dict[str, Value]:
    x, idx, y = x_of(n), ops.input_u32("idx", (n,)), ops.input("y", (n, 3))
    h = x + idx.embedding(w_of("table", 5, WIDTH))
    h = h.layer_norm(w_of("g", WIDTH), w_of("s", WIDTH), 1e-5) @ w_of("w1", WIDTH, WIDTH) + w_of("b1", WIDTH)
    centred = h - h.mean(0)
    h = (centred * (centred.square().mean(0) + 1e-3).rsqrt()).gelu()
    causal = h.causal_attention(h @ w_of("wk", WIDTH, WIDTH), h, 2, 2, 2)
    full = h.full_attention(h @ w_of("wq", WIDTH, WIDTH), causal, 2, 2, 2)
    pooled = (h + full).T.softmax().T * h
    return {"loss": ((h + full + pooled) @ w_of("w2", WIDTH, 3)).cross_entropy_loss(y), "full": full}


def literal(n: int) -> dict[str, Value]:
    """A factor that a person wrote stays, though it is 1 / upper."""
    error = x_of(n) @ w_of("w", WIDTH, 3) - ops.input("y", (n, 3))
    return {"loss": error.square().sum_all().scale(0.125)}


def mean_of_squares(n: int) -> dict[str, Value]:
    error = (x_of(n) @ w_of("w", WIDTH, 3) + w_of("b", 3)).tanh() - ops.input("y", (n, 3))
    return {"loss": error.square().mean_all()}


def of_images(n: int) -> dict[str, Value]:
    y = ops.input("x", (n, 2, 4, 4)).conv2d(w_of("k", 3, 2, 3, 3)).add_per_channel(w_of("b", 3)).relu()
    return {"loss": y.max_pool_2d((2, 2), (2, 2)).reshape((n, 3)).mse_loss(ops.input("y", (n, 3)))}


TRAINING = {
    "transformer": Kind(training, {"x": 0, "idx": 0, "y": 0}),
    "literal": Kind(literal, X_AND_Y),
    "mean": Kind(mean_of_squares, X_AND_Y),
    "images": Kind(of_images, X_AND_Y),
}


@pytest.mark.parametrize("name", TRAINING)
def test_loss_and_gradients_are_those_of_the_active_extent(name: str) -> None:
    kind = TRAINING[name]
    graph = kind.graph(UPPER)
    axes, upper = resolve_bucket_axes(graph, kind.axes)
    made, _ = bounded_with_gradients(graph, axes, upper)
    assert made.num_param_grad_outputs == len(graph.parameters)
    whole = data_of(graph)
    for actual in (1, 5, 8):
        small, _ = differentiate(kind.graph(actual))
        feeds = {EXTENT: [actual], **padded(whole, axes, actual, 4_000_000_000)}
        wanted = of_graph(small, parts(whole, small))
        for mine, want in zip(of_graph(made, feeds), wanted, strict=True):
            check(mine, want, rtol=2e-6)


def test_gradients_where_one_entry_is_all() -> None:
    kind = TRAINING["transformer"]
    graph = kind.graph(1)
    made, _ = bounded_with_gradients(graph, *resolve_bucket_axes(graph, kind.axes))
    feeds, (full, _) = data_of(graph), differentiate(graph)
    for mine, want in zip(of_graph(made, {EXTENT: [1], **feeds}), of_graph(full, feeds), strict=True):
        check(mine, want, rtol=2e-6)


def test_a_training_session_sees_the_active_rows_alone() -> None:
    kind = TRAINING["mean"]
    graph = kind.graph(UPPER)
    axes, upper = resolve_bucket_axes(graph, kind.axes)
    made, _ = bounded_with_gradients(graph, axes, upper)
    whole = data_of(graph)
    made.num_param_grad_outputs = 0  # gradients as plain outputs
    with build(made, SessionConfig(mode="inference", device="cpu"))[0] as session:
        for name in session.param_names():
            session.set_parameter(name, whole[name])
        for actual in (1, 5, 8):
            small, _ = differentiate(kind.graph(actual))
            feeds = {EXTENT: np.array([actual], np.uint32), **padded(whole, axes, actual, 0)}
            for mine, want in zip(outputs_of(session, feeds), of_graph(small, parts(whole, small)), strict=True):
                check(mine, want, rtol=1e-4)


def test_gradients_of_chosen_values() -> None:
    kind = TRAINING["mean"]
    graph = kind.graph(UPPER)
    axes, upper = resolve_bucket_axes(graph, kind.axes)
    made, _ = bounded_with_gradients(graph, axes, upper, wrt=[graph.value(graph.leaf("x").id)])  # type: ignore[union-attr]
    whole, small = data_of(graph), kind.graph(3)
    full, _ = differentiate(small, wrt=[small.value(small.leaf("x").id)])  # type: ignore[union-attr]
    got = of_graph(made, {EXTENT: [3], **padded(whole, axes, 3, 0)})
    check(got[1], of_graph(full, parts(whole, full))[1], rtol=1e-6)


def test_the_report_tells_where_nodes_came_from() -> None:
    graph = KINDS["folds"].graph(UPPER)
    made, report = bounded(graph, {"x": (0,)}, UPPER)
    mean = graph.output_ids[graph.output_names.index("mean")]
    steps = {step.node: step.action for step in report.steps}
    assert steps[mean] == "replaced" and steps[graph.output_ids[0]] == "masked"
    assert all(report.origin[id] == (mean,) for step in report.steps if step.node == mean for id in step.added)
    assert made.source(report.image[graph.leaf("x").id]) == graph.source(graph.leaf("x").id)  # type: ignore[union-attr]
    assert repr(report) == "<ExtentReport: upper 8, 9 nodes changed>"


# C-15 -----------------------------------------------------------------------------------------------------------------
REFUSED: dict[str, Callable[[Value], Value]] = {
    "slice": lambda x: x[1:3],
    "pad": lambda x: x.pad((1, 0), (0, 0)),
    "concat": lambda x: ops.concat([x, x], 0),
    "reshape": lambda x: x.reshape((4, 8)),
    "gather": lambda x: x.gather(ops.constant_u32([1, 2]), 0),
    "embedding": lambda x: ops.constant_u32([1, 2]).embedding(x),
    "max_pool_2d": lambda x: x.reshape((1, 1, 8, 4)).max_pool_2d((2, 2), (2, 2)),
    "conv2d": lambda x: x.reshape((1, 1, 8, 4)).conv2d(ops.parameter("k", (1, 1, 2, 2))),
    "argmax": lambda x: x.T.reshape((32,)).argmax(0),
    "rope": lambda x: x.reshape((8, 2, 2)).permute((1, 0, 2)).reshape((16, 2)).rope(10000.0, 2),
    "mul": lambda x: x.T * ops.rand_uniform((4, 8)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuts_a_bucket_axis_is_refused_with_its_line(name: str) -> None:
    with Graph() as g:
        x = x_of(UPPER)
        y = REFUSED[name](x)
        g.set_outputs([y])
    with pytest.raises(
        ActiveExtentUnsupported, match=rf"bucket_axes: %\d+ {name}: given .*, wanted ops that keep"
    ) as e:
        bounded(g, {"x": (0,)}, UPPER)
    assert isinstance(e.value, ValueError) and not isinstance(e.value, CompileError)
    assert g.node(e.value.node or 0).op == name
    assert "test_extent.py" in str(e.value) and "REFUSED" not in str(e.value)


def test_an_output_inside_another_axis_is_refused() -> None:
    with Graph() as g:
        g.set_outputs([ops.input("x", (2, UPPER, 3)).reshape((16, 3))])
    with pytest.raises(
        ActiveExtentUnsupported, match=r"reshape: given f32\[16, 3\] as an output, .* \(reshape it to an"
    ):
        bounded(g, {"x": (1,)}, UPPER)


def test_two_layouts_of_one_bucket_axis_do_not_meet() -> None:
    with Graph() as g:
        x = ops.input("x", (UPPER, 2, 2))
        g.set_outputs([x.reshape((16, 2)) + x.permute((1, 0, 2)).reshape((16, 2))])
    with pytest.raises(ActiveExtentUnsupported, match="%4 add: given two different bucket axes on one axis, wanted"):
        bounded(g, {"x": (0,)}, UPPER)


def test_random_numbers_along_another_axis_are_let_when_asked() -> None:
    with Graph() as g:
        g.set_outputs([x_of(UPPER).T.dropout(0.5)])
    with pytest.raises(
        ActiveExtentUnsupported, match=r"dropout: given random numbers .* \(bucket_random=True lets it\)"
    ):
        bounded(g, {"x": (0,)}, UPPER)
    assert bounded(g, {"x": (0,)}, UPPER, bucket_random=True)[0].outputs


def test_an_op_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY["exclusive_cumsum"], "follows", None)
    with Graph() as g:
        g.set_outputs([x_of(UPPER).cumsum()])
    with pytest.raises(ActiveExtentUnsupported, match="cumsum: given a bucket axis, of which its record says nothing"):
        bounded(g, {"x": (0,)}, UPPER)


def test_a_backward_op_without_a_rule_is_refused_at_its_forward_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY["scatter_add"], "follows", None)  # the gradient of an embedding
    with Graph() as g:
        rows = ops.input_u32("x", (UPPER,)).embedding(w_of("table", 5, 3))
        g.set_outputs([rows.square().mean_all()])
    with pytest.raises(ActiveExtentUnsupported, match=r"gradient of %2 embedding: %\d+ scatter_add: given a buck") as e:
        bounded_with_gradients(g, {"x": (0,)}, UPPER)
    assert e.value.node == rows.id and str(g.source(rows.id)[0]) in str(e.value)


def test_a_graph_that_is_differentiated_already_is_refused() -> None:
    graph, _ = differentiate(TRAINING["mean"].graph(UPPER))
    wanted = r"bucket_axes: graph: given 2 gradients, wanted the graph without gradients \(gradients=True adds them\)"
    with pytest.raises(ActiveExtentUnsupported, match=wanted):
        bounded(graph, {"x": (0,), "y": (0,)}, UPPER)


# the axes -------------------------------------------------------------------------------------------------------------
def slots() -> Graph:
    with Graph() as g:
        x, mask = ops.input("x", (8, 4)), ops.input("mask", (2, 3, 16, 8))
        g.set_outputs([x, mask, ops.input("y", (8,)), ops.input("bias", (4,))])
    return g


def test_bucket_axes_are_found_by_name_and_extent() -> None:
    graph = slots()
    assert resolve_bucket_axes(graph, True) == ({"x": (0,), "y": (0,)}, 8)
    assert resolve_bucket_axes(graph, {"x": 0, "mask": (3, 2)}) == ({"x": (0,), "mask": (2, 3)}, 8)
    assert resolve_bucket_axes(graph, {"mask": [-1]}) == ({"mask": (3,)}, 8)
    assert resolve_bucket_axes(graph, {"mask": 2, "x": 1}) == ({"mask": (2,), "x": (1,)}, 4)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"z": 0}, UnknownNameError, "bucket_axes: input: given z, wanted"),
        ({"x": 2}, ArgumentError, r"axis of 'x': given 2, wanted -2 … 1 \(f32\[8, 4\]\)"),
        ({"x": True}, ArgumentError, "axis of 'x': given True"),
        ({"x": 0.0}, ArgumentError, "axis of 'x': given 0.0"),
        ({"x": (0, -2)}, ArgumentError, r"axes of 'x': given \(0, -2\), wanted each axis once"),
        (
            {"x": 0, "mask": 1},
            ArgumentError,
            r"extents: given f32\[8, 4\] of 'x' along 0, .* multiples of the smallest, 3",
        ),
        ({}, ArgumentError, "axes: given {}, wanted at least one axis of an input"),
        ({"x": ()}, ArgumentError, "wanted at least one axis of an input"),
        (False, ArgumentError, "axes: given False, wanted"),
        (None, ArgumentError, "axes: given None, wanted"),
        ("x", ArgumentError, "axes: given 'x', wanted"),
    ],
)
def test_bad_bucket_axes(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_bucket_axes(slots(), given)


def test_names_of_hidden_inputs_are_refused() -> None:
    with Graph() as g:
        g.set_outputs([ops.input("·extent", (8,))])
    with pytest.raises(ArgumentError, match="input: given '·extent', wanted names that do not begin with ·"):
        resolve_bucket_axes(g, True)
