"""Products by expert (compiled_graph.md C-19): every way rows may fall on matrices, against a loop, on both devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import op_checks
import pytest
from machine import needs
from matrix import MATRIX

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import GdlabError
from gdlab.base.types import Array
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.indices import index_bounds
from gdlab.session import build_inference_session

GROUPED = ("grouped_matmul", "grouped_matmul_bt", "grouped_matmul_at")


@dataclass(frozen=True)
class Case:
    """So many rows on so many experts, and which."""

    rows: int
    experts: int
    numbers: tuple[int, ...]


RNG = np.random.default_rng(7)
CASES = {
    "random": Case(33, 4, tuple(RNG.integers(4, size=33).tolist())),
    "sorted": Case(12, 3, (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2)),
    "all the same": Case(9, 5, (3,) * 9),
    "experts without rows": Case(6, 8, (7, 0, 7, 0, 0, 7)),
    "one expert": Case(5, 1, (0,) * 5),
    "one row": Case(1, 3, (2,)),
}
K, N = 20, 36


def run(graph: Graph, device: str, feeds: dict[str, Array]) -> list[Array]:
    with build_inference_session(graph, device=device) as session:
        for name, data in feeds.items():
            (session.set_input_u32 if data.dtype == np.uint32 else session.set_input)(name, data)
        session.step()
        return [np.asarray(session.read_output_by_index(i)).copy() for i in range(len(graph.output_ids))]


def with_gradients(graph: Graph, wrt: Sequence[Value]) -> Graph:
    """The graph with the gradients of its loss as further outputs."""
    full, _ = differentiate(graph, wrt=wrt)
    full.set_outputs(full.outputs)
    return full


def data(case: Case) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(1)
    x, w, c = (rng.normal(size=s).astype(np.float32) for s in ((case.rows, K), (case.experts, K, N), (case.rows, N)))
    return x, w, c, np.array(case.numbers, np.uint32)


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_times_their_expert_and_all_gradients(case: Case, transposed: bool, device: str) -> None:
    x, w, c, idx = data(case)
    stored = np.ascontiguousarray(w.swapaxes(1, 2)) if transposed else w
    with Graph() as g:
        leaves = ops.input("x", x.shape), ops.input("w", stored.shape)
        numbers = ops.input_u32("idx", idx.shape)
        y = (ops.grouped_matmul_bt if transposed else ops.grouped_matmul)(*leaves, numbers)
        g.set_outputs([(y * ops.input("c", c.shape)).sum_all(), y])
    full = with_gradients(g, leaves)
    y, gx, gw = run(full, device, {"x": x, "w": stored, "idx": idx, "c": c})[1:]
    gw = gw.swapaxes(1, 2) if transposed else gw
    wide = [a.astype(np.float64) for a in (x, w, c)]
    want_y, want_x, want_w = np.zeros(y.shape), np.zeros(x.shape), np.zeros(w.shape)
    for i, e in enumerate(case.numbers):
        want_y[i] = wide[0][i] @ wide[1][e]
        want_x[i] = wide[1][e] @ wide[2][i]
        want_w[e] += np.outer(wide[0][i], wide[2][i])
    for got, want in ((y, want_y), (gx, want_x), (gw, want_w)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    unused = sorted({*range(case.experts)} - {*case.numbers})
    assert not gw[unused].any(), "an expert without rows has no gradient"


def test_each_expert_of_a_token_reads_its_row(device: str) -> None:
    x, w, _, _ = data(Case(4, 5, ()))
    stored = np.ascontiguousarray(w.swapaxes(1, 2))
    idx = np.array([0, 4, 4, 1, 3, 3, 2, 0, 1, 1, 1, 1], np.uint32)
    with Graph() as g:
        y = ops.input("x", x.shape).grouped_matmul_bt(ops.input("w", stored.shape), ops.input_u32("idx", (12,)), 3)
        g.set_outputs([y])
    (got,) = run(g, device, {"x": x, "w": stored, "idx": idx})
    np.testing.assert_allclose(got, np.stack([x[r // 3] @ w[e] for r, e in enumerate(idx)]), rtol=1e-4, atol=2e-5)


def outside(computed: bool) -> tuple[Graph, tuple[Value, Value]]:
    """Three experts; numbers that a node computes are floats of the input."""
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.input("w", (3, 3, 5))
        idx = ops.input("idx", (4,)).to_u32() if computed else ops.input_u32("idx", (4,))
        y = ops.grouped_matmul(x, w, idx)
        g.set_outputs([y.sum_all(), y])
    return g, (x, w)


def test_a_number_outside_that_comes_from_an_input_is_refused(device: str) -> None:
    graph, _ = outside(computed=False)
    assert index_bounds(graph) == (("idx", 3),)
    with build_inference_session(graph, device=device) as session:
        with pytest.raises(GdlabError, match="given index 3 at position 2, wanted 0 … 2"):
            session.set_input_u32("idx", np.array([0, 1, 3, 2], np.uint32))
        session.set_input_u32("idx", np.array([0, 1, 2, 2], np.uint32))


def test_numbers_of_every_kind_are_bounded_on_upload() -> None:
    with Graph() as g:
        x, c = ops.input("x", (4, 3)), ops.input("c", (4, 2))
        a, b = (ops.input_u32(name, (4,)) for name in "ab")
        y = ops.grouped_matmul_bt(x, ops.input("w", (6, 5, 3)), a)
        g.set_outputs([y, ops.grouped_matmul_at(x, c, b, 7)])
    assert index_bounds(g) == (("a", 6), ("b", 7))


def test_a_computed_number_outside_makes_its_row_zero(device: str) -> None:
    """Neither the row nor its gradients read a matrix; NaN in what is not read harms nobody."""
    graph, wrt = outside(computed=True)
    full = with_gradients(graph, wrt)
    rng = np.random.default_rng(2)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((4, 3), (3, 3, 5)))
    x[1], w[1] = np.nan, np.nan
    feeds = {"x": x, "w": w, "idx": np.array([2, 3, 0, 4e9], np.float32)}
    _, y, gx, gw = run(full, device, feeds)
    assert not y[[1, 3]].any() and not gx[[1, 3]].any() and not gw[1].any()
    np.testing.assert_allclose(y[[0, 2]], [x[0] @ w[2], x[2] @ w[0]], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gw[2], np.outer(x[0], np.ones(5)), rtol=1e-5)


@pytest.mark.parametrize("name", GROUPED)
def test_forms_for_hardware_compute_what_the_reference_says(name: str) -> None:
    """Gradients of one sample: their kernels are those of the other two, which have samples of their own."""
    needs("wgpu")
    op_checks.check_hardware_form(REGISTRY[name], *(() if MATRIX else ((2, 3, 5), (0,))))  # sizes as in test_ops.py


def test_a_row_has_the_same_bits_whatever_other_rows_there_are(device: str) -> None:
    """An expert can be paged in because a row is one sum in one order, wherever it stands."""
    x, w, _, idx = data(CASES["random"])
    alone = []
    for rows in (slice(None), slice(5, 12)):
        with Graph() as g:
            leaves = ops.input("x", x[rows].shape), ops.input("w", w.shape), ops.input_u32("idx", idx[rows].shape)
            g.set_outputs([ops.grouped_matmul(*leaves)])
        alone.append(run(g, device, {"x": x[rows], "w": w, "idx": idx[rows]})[0])
    if device == "wgpu":
        np.testing.assert_array_equal(alone[0][5:12], alone[1])
    np.testing.assert_allclose(alone[0][5:12], alone[1], rtol=1e-5, atol=1e-5)


def test_an_activation_runs_inside_the_product() -> None:
    with Graph() as g:
        y = ops.grouped_matmul(ops.input("x", (4, 3)), ops.input("w", (2, 3, 5)), ops.input_u32("idx", (4,)))
        g.set_outputs([y.relu()])
    (dispatch,) = compile(g, mode="inference").dispatches
    assert dispatch.label == "GroupedMatMul[4x5x3 of 2] + relu", dispatch.label


def test_references_keep_their_dtype() -> None:
    rng = np.random.default_rng(3)
    x, w, g = (rng.normal(size=s).astype(np.longdouble) for s in ((4, 3), (2, 3, 5), (4, 5)))
    idx = np.array([0, 1, 1, 7], np.uint32)
    calls = (("grouped_matmul", (x, w, idx), {}), ("grouped_matmul_bt", (g, w, idx), {"repeat": 1}),
             ("grouped_matmul_at", (x, g, idx), {"experts": 2}))  # fmt: skip
    for name, operands, attrs in calls:
        assert REGISTRY[name].reference(operands, attrs).dtype == np.longdouble


def test_a_mixture_of_experts_trains_as_dense_products_do(device: str) -> None:
    """A router chooses, its experts are the layers: the loss and the gradients of the same net in NumPy's float64."""
    graph, wrt = mixture()
    full = with_gradients(graph, wrt)
    rng = np.random.default_rng(5)
    feeds = {n.name: rng.normal(size=n.type.shape).astype(np.float32) for n in full.inputs}
    values = evaluate(full, feeds)
    for got, id in zip(run(full, device, feeds), full.output_ids, strict=True):
        np.testing.assert_allclose(got, values[id], rtol=2e-4, atol=2e-4)


def mixture() -> tuple[Graph, tuple[Value, ...]]:
    with Graph() as g:
        x, router = ops.input("x", (6, 8)), ops.input("router", (8, 4))
        up, down = ops.input("up", (4, 16, 8)), ops.input("down", (4, 16, 8))
        scores = x @ router
        idx = scores.argmax(1)
        h = ops.grouped_matmul_bt(x, up, idx).silu()
        y = ops.grouped_matmul(h, down, idx) * scores.softmax().max((1,), keepdims=True)
        g.set_outputs([y.square().mean_all()])
    return g, (x, router, up, down)


# the choice -----------------------------------------------------------------------------------------------------------
def chosen(x: Array, k: int, device: str) -> Array:
    with Graph() as g:
        g.set_outputs([ops.top_k_indices(ops.input("x", x.shape), k)])
    (got,) = run(g, device, {"x": x})
    assert got.dtype == np.uint32
    return got


def test_the_largest_come_first_and_of_equal_ones_the_first(device: str) -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1, 3, 3, 0], [nan, 5, inf, nan], [-inf, -inf, -inf, -1], [0.0, -0.0, 0.0, -0.0]], np.float32)
    want = [[1, 2, 0, 3], [0, 3, 2, 1], [3, 0, 1, 2], [0, 1, 2, 3]]
    for k in (1, 2, 4):
        np.testing.assert_array_equal(chosen(x, k, device), [row[:k] for row in want])


def test_the_first_choice_is_that_of_argmax(device: str) -> None:
    x = np.random.default_rng(4).integers(-3, 3, size=(40, 9)).astype(np.float32)
    x[::5, 3] = np.nan
    np.testing.assert_array_equal(chosen(x, 1, device)[:, 0], x.argmax(1))


def test_every_k_of_a_long_row(device: str) -> None:
    """As many readings of a row as one invocation of a software adapter may not make alone."""
    x = np.random.default_rng(6).integers(2000, size=(2, 8000)).astype(np.float32)
    np.testing.assert_array_equal(chosen(x, 40, device), np.argsort(-x, 1, kind="stable")[:, :40])


def test_the_choice_feeds_the_product_and_is_not_bounded_by_an_input() -> None:
    with Graph() as g:
        x, w = ops.input("x", (6, 4)), ops.input("w", (5, 3, 4))
        router = ops.input("router", (4, 5))
        idx = ops.top_k_indices(x @ router, 2).reshape((12,))
        g.set_outputs([ops.grouped_matmul_bt(x, w, idx, 2).sum_all()])
    assert index_bounds(g) == ()
    full = with_gradients(g, (x, w, router))
    feeds = {n.name: np.random.default_rng(8).normal(size=n.type.shape).astype(np.float32) for n in full.inputs}
    values = evaluate(full, feeds)
    for device in ("cpu", "wgpu"):
        for got, id in zip(run(full, device, feeds), full.output_ids, strict=True):
            np.testing.assert_allclose(got, values[id], rtol=2e-4, atol=2e-4)
    assert not values[full.output_ids[-1]].any(), "the path to the router ends"
