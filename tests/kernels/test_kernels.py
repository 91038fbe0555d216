"""The WGSL of every kind of dispatch: it compiles, computes what the reference says in both schedules, and tells where
each of its lines comes from."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import networks
import numpy as np
import plans
import pytest
from machine import needs
from matrix import MATRIX, also
from places import REPO

from gdlab import kernels, ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError
from gdlab.base.formats import decode, encode
from gdlab.base.types import DType
from gdlab.devices.base import Device
from gdlab.devices.choose import device
from gdlab.graph import Graph, Value
from gdlab.kernels.pieces import WgslText
from gdlab.kernels.product import Product
from gdlab.kernels.workgroup_tiles import shared_tiles
from gdlab.op import REGISTRY, Shader, reference
from gdlab.op.numpy_form import NumpyForm
from gdlab.ops import packed
from gdlab.plan import compile, spread
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.dispatch import SCALARS, Dispatch, Matmul, Reduce
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.update import Recipe, update_of
from gdlab.plan.verify import verify

SCHEDULES = ("software", "hardware")
SHADERS = REPO / "shaders"


@pytest.fixture(params=SCHEDULES)
def adapter(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Target]]:
    """Any adapter, and a target whose schedules are those of each class in turn."""
    needs("wgpu")
    found = device("wgpu")
    yield found, replace(found.target, adapter_class=request.param)


def graph_of(build: Callable[[], Value | list[Value]]) -> Graph:
    with Graph() as g:
        g.set_outputs(build())
    return g


def check(adapter: tuple[Device, Target], graph: Graph, feeds: dict[str, Any] | None = None) -> ExecutionPlan:
    """Compile for the target, run twice with poisoned slots, compare every output with the reference."""
    found, target = adapter
    feeds = plans.feeds_of(graph) if feeds is None else feeds
    plan = compile(graph, mode="inference", target=target)
    program = plans.load(found, plan, feeds)
    program.step(None)
    program.poison()
    program.step(None)
    with np.errstate(all="ignore"):
        want = reference.evaluate(graph, feeds)
        scale = reference.magnitudes(graph, want)
    for got, id in zip(plans.outputs(program), graph.output_ids, strict=True):
        assert reference.compare(got, want[id], scale[id], 2e-4) is None, (plan.dispatches[-1].label, target)
    program.close()
    return plan


# values in both schedules ---------------------------------------------------------------------------------------------
EXTENTS = [(1, 129, 33), (17, 33, 2), (33, 65, 129), (16, 16, 64), (40, 132, 36)]
MORE_EXTENTS = {  # of one layout each; `make matrix`: of all
    "matmul": [(1, 1, 1), (129, 1, 17), (2, 3, 65)], "matmul_at": [(65, 17, 1), (3, 130, 5)],
    "matmul_bt": [(64, 10, 128), (4, 4, 3)],
}  # fmt: skip


@pytest.mark.parametrize("name", ["matmul", "matmul_at", "matmul_bt"])
def test_products_with_an_epilogue(adapter: tuple[Device, Target], name: str) -> None:
    def product(m: int, n: int, k: int) -> Value:
        a = ops.input("a", (k, m) if name == "matmul_at" else (m, k))
        b = ops.input("b", (n, k) if name == "matmul_bt" else (k, n))
        return ops.tanh(ops.bias_add(getattr(ops, name)(a, b), ops.input("c", (n,)))) * ops.input("d", (m, n))

    more = (size for sizes in MORE_EXTENTS.values() for size in sizes) if MATRIX else MORE_EXTENTS[name]
    for m, n, k in (*EXTENTS, *more):
        plan = check(adapter, graph_of(lambda m=m, n=n, k=k: product(m, n, k)))  # type: ignore[misc]
        assert len(plan.dispatches) == 1


SIZES = ((133, 70, 5), (37, 130, 64), (64, 128, 33), (129, 65, 129))
# rows, columns, steps; rows and columns per invocation; parts of K in a group, and beside one another
TILINGS = [
    (128, 128, 16, 8, 8, 1, 1), (64, 128, 16, 8, 8, 1, 2), (64, 64, 16, 8, 4, 1, 1), (64, 64, 16, 8, 4, 2, 1),
    (32, 64, 16, 4, 4, 2, 3), (32, 32, 16, 4, 4, 1, 4), (32, 32, 16, 4, 4, 4, 1), (128, 128, 8, 8, 8, 1, 1),
    (128, 64, 8, 8, 8, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("name", also(["matmul_at", "matmul_bt"], "matmul"))
def test_shared_tiles_of_every_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tiling, in one buffer and in two, with and without tails, K in parts that end early or are empty: each at
    one size, another for each name (`make driver`: at two). Two of the names have both layouts of either
    factor."""
    needs("wgpu")
    found = device("wgpu")
    buffers, first = set(), ("matmul", "matmul_at", "matmul_bt").index(name)
    for number, tiling in enumerate(TILINGS):
        nbytes = (16384, 32768)[number % 2] if tiling[5] == 1 else 32768
        limits = replace(found.target.limits, workgroup_bytes=nbytes)
        target = Target("wgpu", "hardware", limits)
        forced = lambda p, t, *_, tiling=tiling: spread.shared_tiles(p, tiling, t.limits)  # noqa: E731
        monkeypatch.setattr(spread, "matmul", forced)
        sizes = SIZES[number % 2 :: 2] if "GDLAB_SIZES" in os.environ else [SIZES[(number + first) % 4]]
        for m, n, k in sizes:
            a, b = (k, m) if name == "matmul_at" else (m, k), (n, k) if name == "matmul_bt" else (k, n)
            build = lambda a=a, b=b: ops.tanh(getattr(ops, name)(ops.input("a", a), ops.input("b", b)) * 0.25)  # noqa: E731
            plan = check((found, target), graph_of(build))
            assert [d.kernel for d in plan.dispatches] == ["matmul"] + ["reduce"] * (tiling[6] > 1)
            buffers.add(plan.dispatches[0].params[5])
    assert buffers == {1, 2}


def test_few_sums_over_many_steps_are_split() -> None:
    """K-parallel groups alone would walk 4,096 steps each: tiles of a sixteenth, added by a second dispatch."""
    needs("wgpu")
    found = device("wgpu")
    target = Target("wgpu", "hardware", found.target.limits)
    for k, variant in ((4096, "tile 32x32x16 inside 2 split 16"), (2048, "k-parallel 4x16")):
        build = lambda k=k: ops.matmul_bt(ops.input("a", (33, k)), ops.input("b", (40, k))) * 0.25  # noqa: E731
        plan = check((found, target), graph_of(build))
        assert plan.dispatches[0].variant == variant


@pytest.mark.parametrize("name", ["matmul", "matmul_at", "matmul_bt"])
def test_small_results_have_more_groups_with_fewer_rows(name: str) -> None:
    """Tiles of 4, 8 and 16 rows, with and without tails of rows, columns and K."""
    needs("wgpu")
    found = device("wgpu")
    target = Target("wgpu", "hardware", found.target.limits)
    sizes = [(33, 250, 1027, 4), (100, 100, 130, 8), (64, 256, 256, 8), (250, 250, 130, 16), (9, 16, 128, 4)]
    for m, n, k, rows in also(sizes, (17, 20, 131, 4), (64, 256, 40, 16)):
        a, b = (k, m) if name == "matmul_at" else (m, k), (n, k) if name == "matmul_bt" else (k, n)
        build = lambda a=a, b=b: ops.tanh(getattr(ops, name)(ops.input("a", a), ops.input("b", b)) * 0.25)  # noqa: E731
        plan = check((found, target), graph_of(build))
        assert [d.variant for d in plan.dispatches] == [f"k-parallel {rows}x16"]


@pytest.mark.parametrize("name", ["matmul", "matmul_bt"])
def test_few_rows_read_every_weight_once(name: str) -> None:
    """1 to 8 rows, with and without tails of K, of columns and of a group; nine rows are tiles again."""
    needs("wgpu")
    found = device("wgpu")
    target = Target("wgpu", "hardware", found.target.limits)
    few = (1, 40, 2048), (1, 6, 33), (2, 17, 64), (3, 64, 130), (4, 20, 511), (1, 1, 32), (8, 300, 1030)
    few = *few, (2, 1060, 64), (1, 4102, 40)  # wide enough for columns side by side in a group
    for m, n, k in (*few, (9, 20, 64)):
        b = (n, k) if name == "matmul_bt" else (k, n)
        build = lambda m=m, n=n, k=k, b=b: ops.tanh(  # noqa: E731
            getattr(ops, name)(ops.input("a", (m, k)), ops.input("b", b)) * 0.25 + ops.input("c", (n,))
        )
        plan = check((found, target), graph_of(build))
        assert (plan.dispatches[0].variant.split()[0] == "vector") == (m < 9)


def normed_products(m: int, n: int, k: int, name: str) -> Callable[[], list[Value]]:
    """Two products of the same normalized rows, one of them beside the rows themselves."""

    def build() -> list[Value]:
        x, b = ops.input("x", (m, k)), (n, k) if name == "matmul_bt" else (k, n)
        rows = ops.rms_norm(x * 3.0, ops.input("w", (k,)), eps=1e-5)
        first = getattr(ops, name)(rows, ops.input("b", b)) * 0.25 + ops.input("c", (n,))
        return [ops.tanh(first), ops.matmul(rows, ops.input("square", (k, k))) + x]

    return build


@pytest.mark.parametrize("kind", ["wgpu", "cpu"])
@pytest.mark.parametrize("name", ["matmul", "matmul_bt"])
def test_few_rows_are_normalized_as_they_are_read(name: str, kind: Literal["wgpu", "cpu"]) -> None:
    """Every product of few rows of fours does it: no dispatch writes the normalized rows. Four rows have one that does,
    and rows of 33 and of 30 elements."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    sizes = [(1, 40, 2048), (2, 17, 64), (3, 300, 1028), (2, 1060, 64), (1, 4102, 40)]
    for m, n, k in also(sizes, (1, 6, 36), (3, 64, 132)):
        plan = check((device(kind), target), graph_of(normed_products(m, n, k, name)))
        assert [d.matmul.norm is not None for d in plan.dispatches if d.matmul is not None] == [True, True], plan
        assert [d.kernel for d in plan.dispatches] == ["pointwise", "matmul", "matmul"]
        assert f"(rms_norm)[{m}x{n}x{k}]" in plan.dispatches[1].label
        norms = {node for d in plan.dispatches[1:] for node in d.origin if plan.graph.node(node).op == "rms_norm"}
        assert len(norms) == 1 and all(norms < set(d.origin) for d in plan.dispatches[1:])
    for m, n, k in ((4, 20, 64), (9, 20, 30), (1, 20, 33)):
        plan = check((device(kind), target), graph_of(normed_products(m, n, k, name)))
        assert not any(d.matmul.norm for d in plan.dispatches if d.matmul is not None)


def test_normalized_rows_that_others_read_are_written() -> None:
    """For an output, another op, the second operand of a product, a product that reads columns or other rows. Products
    with K in parts normalize them all the same, and need not wait for the dispatch that writes them."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    for m, others in product((1, 20), (
        lambda rows: rows,
        lambda rows: ops.exp(rows).sum_all(),
        lambda rows: ops.matmul_bt(ops.input("a", (3, 64)), rows),
        lambda rows: ops.matmul_at(rows, ops.input("a", (rows.shape[0], 3))),
        lambda rows: ops.matmul(rows.reshape(2 * rows.shape[0], 32), ops.input("a", (32, 3))),
    )):  # fmt: skip

        def build(m: int = m, others: Any = others) -> list[Value]:
            rows = ops.rms_norm(ops.input("x", (m, 64)), ops.input("w", (64,)), eps=1e-3)
            return [ops.matmul(rows, ops.input("b", (64, 5))), others(rows)]

        plan = check((device("wgpu"), target), graph_of(build))
        inside = [d for d in plan.dispatches if d.matmul is not None and d.matmul.norm is not None]
        (stored,) = (d for d in plan.dispatches if d.custom is not None)
        (node,) = (n.id for n in plan.graph.nodes if n.op == "rms_norm")
        assert [d.group for d in inside] == [stored.group] * (m > 1), "both read x alone"
        assert plan.node_buffers[node] in stored.writes


def test_normalized_rows_are_read_where_the_buffers_of_a_dispatch_suffice() -> None:
    """A product in column ranges writes a buffer for each, and reads one more where it normalizes."""
    needs("wgpu")
    target = Target("wgpu", "hardware", Target.portable().limits)
    for count in (4, 5, 6):

        def build(count: int = count) -> list[Value]:
            rows = ops.rms_norm(ops.input("x", (2, 64)), ops.input("w", (64,)), eps=1e-3)
            wide = ops.matmul(rows, ops.input("b", (64, 4 * count)))
            return [ops.tanh(packed.columns(wide, 4 * i, 4 * i + 4)) for i in range(count)]

        plan = check((device("wgpu"), target), graph_of(build))
        (d,) = (d for d in plan.dispatches if d.matmul is not None)
        assert d.matmul is not None and (d.matmul.norm is not None) == (count + 3 <= target.limits.storage_buffers)
        assert len(d.results) == count and len(d.operands) + len(d.results) <= target.limits.storage_buffers


def gated_products(m: int, n: int, k: int, name: str, norm: bool, dtype: DType = DType.f32) -> Callable[[], Value]:
    """The gated half of a transformer's feed-forward block."""

    def build() -> Value:
        x, b = ops.input("x", (m, k)), (n, k) if name == "matmul_bt" else (k, n)
        rows = ops.rms_norm(x, ops.input("w", (k,)), eps=1e-5) if norm else x
        gate, up = (getattr(ops, name)(rows, ops.parameter(each, b, dtype=dtype)) for each in ("gate", "up"))
        return ops.swiglu(gate * 0.5, up) + ops.input("c", (n,))

    return build


@pytest.mark.parametrize("kind", ["wgpu", "cpu"])
@pytest.mark.parametrize("name", ["matmul", "matmul_bt"])
def test_two_products_of_few_rows_for_one_chain_are_one_dispatch(name: str, kind: Literal["wgpu", "cpu"]) -> None:
    """With and without a norm of the rows, up to 4 of them; of five to eight rows they are two dispatches."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    for m, n, k, norm in ((1, 40, 2048, True), (2, 17, 64, False), (3, 64, 132, True), (4, 30, 45, False)):
        plan = check((device(kind), target), graph_of(gated_products(m, n, k, name, norm)))
        (d,) = plan.dispatches
        assert d.matmul is not None and d.matmul.dual is not None and (d.matmul.norm is not None) == norm
        assert d.label.startswith("DualMatMul") and d.label.endswith(f"[{m}x{n}x{k}] + scale + swiglu + add")
        both = {node for node in d.origin if plan.graph.node(node).op == name}
        assert both == {d.matmul.node, d.matmul.dual} and d.flops > 4 * m * n * k
        assert {n for _, nodes in plan.wgsl(0)[1] for n in nodes} >= both
    for m in (5, 8):
        plan = check((device(kind), target), graph_of(gated_products(m, 20, 64, name, norm=False)))
        assert [d.matmul.dual for d in plan.dispatches if d.matmul is not None] == [None, None]


# rows, columns, K, rows of a tile: with and without tails of a tile's rows, of 16 and of 4 columns, of K in its parts;
# of each layout, and in `make matrix` all of both
SMALL_RESULTS = {
    "matmul": [(64, 256, 256, 8), (250, 250, 132, 16), (17, 22, 140, 4), (9, 16, 36, 16)],
    "matmul_bt": [(64, 272, 40, 16), (100, 100, 132, 8), (33, 247, 1028, 4), (21, 6, 260, 4)],
}


def small_results(name: str) -> list[tuple[int, int, int, int]]:
    return [each for sizes in SMALL_RESULTS.values() for each in sizes] if MATRIX else SMALL_RESULTS[name]


@pytest.mark.parametrize("kind", ["wgpu", "cpu"])
@pytest.mark.parametrize("name", ["matmul", "matmul_bt"])
def test_parts_of_k_normalize_the_rows_that_they_read(name: str, kind: Literal["wgpu", "cpu"]) -> None:
    """Both products do it, in tiles of 16, 8 and 4 rows, with an addend behind: no dispatch writes normalized rows."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    for m, n, k, rows in small_results(name):
        plan = check((device(kind), target), graph_of(normed_products(m, n, k, name)))
        assert [d.kernel for d in plan.dispatches] == ["pointwise", "matmul", "matmul"]
        d = plan.dispatches[1]
        assert all(d.matmul is not None and d.matmul.norm is not None for d in plan.dispatches[1:])
        assert d.variant == f"k-parallel {rows}x16" and f"(rms_norm)[{m}x{n}x{k}]" in d.label
        (norm,) = (node for node in d.origin if plan.graph.node(node).op == "rms_norm")
        assert norm in {node for _, nodes in plan.wgsl(1)[1] for node in nodes}
        assert plan.wgsl(1)[0].count("var<workgroup>") == 1, "16 KiB, as many as every adapter has"


@pytest.mark.parametrize("kind", ["wgpu", "cpu"])
@pytest.mark.parametrize("name", ["matmul", "matmul_bt"])
def test_two_products_in_parts_of_k_for_one_chain_are_one_dispatch(name: str, kind: Literal["wgpu", "cpu"]) -> None:
    """With and without a norm of the rows, in tiles of 16, 8 and 4 rows; where there is none, K may be any number."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    for m, n, k, rows in small_results(name):
        for norm in (True, False):
            k = k if norm else k - 1 - k % 3
            plan = check((device(kind), target), graph_of(gated_products(m, n, k, name, norm)))
            (d,) = plan.dispatches
            assert d.matmul is not None and d.matmul.dual is not None and (d.matmul.norm is not None) == norm
            assert d.variant.startswith("k-parallel") and (d.variant == f"k-parallel {rows}x16" or not norm)
            assert d.label.startswith("DualMatMul") and d.label.endswith(f"[{m}x{n}x{k}] + scale + swiglu + add")
            both = {node for node in d.origin if plan.graph.node(node).op == name}
            assert both == {d.matmul.node, d.matmul.dual}
            assert {n for _, nodes in plan.wgsl(0)[1] for n in nodes} >= both
            assert plan.wgsl(0)[0].count("var<workgroup>") == 1


@pytest.mark.parametrize("kind", ["wgpu", "cpu"])
@pytest.mark.parametrize(
    "name, m, n, k, tile",
    also(
        [("matmul", 520, 1012, 40, 64), ("matmul_bt", 1030, 1034, 17, 128)],
        ("matmul", 1030, 1034, 17, 128), ("matmul_bt", 521, 1010, 44, 64), ("matmul_bt", 1024, 1100, 16, 128),
    ),
)  # fmt: skip
def test_two_products_in_tiles_for_one_chain_are_one_dispatch(
    name: str, m: int, n: int, k: int, tile: int, kind: Literal["wgpu", "cpu"]
) -> None:
    """A tile has half of its columns of each: with and without tails of rows, of columns, of fours, of K."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)
    plan = check((device(kind), target), graph_of(gated_products(m, n, k, name, norm=False)))
    (d,) = plan.dispatches
    assert d.matmul is not None and d.matmul.dual is not None and d.params[:2] == (tile, tile)
    assert d.variant.startswith(f"tile {tile}x{tile}") and d.label.startswith("DualMatMul")
    assert math.prod(d.workgroups) == -(-m // tile) * -(-2 * n // tile)
    assert f"of {tile}x{tile // 2} of both products" in d.variant_reason
    both = {node for node in d.origin if plan.graph.node(node).op == name}
    assert both == {d.matmul.node, d.matmul.dual}
    assert {n for _, nodes in plan.wgsl(0)[1] for n in nodes} >= both


def test_two_products_in_tiles_that_do_not_fit_are_refused() -> None:
    target = Target.portable()
    plan = compile(graph_of(gated_products(520, 1012, 40, "matmul", False)), mode="inference", target=target)
    (d,) = plan.dispatches
    assert d.matmul is not None and d.params == (64, 64, 16, 8, 8, 1, 1, 1) and from_json(to_json(plan)) == plan
    wrong = [
        replace(d, params=(*d.params[:4], 4, *d.params[5:])), replace(d, params=(*d.params[:6], 2, 1)),
        replace(d, params=(*d.params[:7], 2)), replace(d, params=d.params[:4]), replace(d, operands=d.operands[:2]),
        replace(d, variant="vector 4x16"), replace(d, matmul=replace(d.matmul, dual_rows=True)),
    ]  # fmt: skip
    for bad in wrong:
        with pytest.raises(CompileError, match="norm|operand|dual"):
            verify(replace(plan, dispatches=(bad,)))


def test_products_that_are_split_or_in_small_tiles_stay_apart() -> None:
    """Their invocations have not the same four columns of both: 128 rows of 128 steps, K in parts, 4 columns each."""
    for m, n, k in ((260, 260, 4096), (96, 1024, 24)):
        target = Target.portable()
        plan = compile(graph_of(gated_products(m, n, k, "matmul", False)), mode="inference", target=target)
        products = [d for d in plan.dispatches if d.matmul is not None]
        assert [d.matmul.dual for d in products if d.matmul is not None] == [None, None]
        assert all(d.variant.startswith("tile") for d in products), [d.variant for d in products]


def test_products_with_too_much_work_for_parts_of_k_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds, in tiles of workgroup memory, without fusion, with tiles asked for, and on software adapters.
    """
    portable = Target.portable()
    inside = lambda plan: [  # noqa: E731
        (d.matmul.norm is not None, d.matmul.dual is not None) for d in plan.dispatches if d.matmul is not None
    ]
    of = lambda m, n, target=portable, **options: inside(  # noqa: E731
        compile(graph_of(gated_products(m, n, 256, "matmul", True)), mode="inference", target=target,
                options=CompileOptions(**options))  # fmt: skip
    )
    assert of(64, 1024) == [(True, True)]
    assert of(64, 1024, tile=(32, 32)) == of(64, 1024, fuse_dispatches=False) == [(False, False)] * 2
    little = replace(portable, limits=replace(portable.limits, workgroup_bytes=8192))
    software = replace(portable, adapter_class="software")
    assert of(64, 4096) == of(64, 1024, little) == of(64, 1024, software) == [(False, False)] * 2
    monkeypatch.setattr(spread, "DUAL_WORK", (1 << 24) - 1)
    assert of(64, 1024) == [(True, False)] * 2
    monkeypatch.setattr(spread, "NORMALIZED_WORK", (1 << 24) - 1)
    assert of(64, 1024) == [(False, False)] * 2
    monkeypatch.setattr(spread, "DUAL_WORK", 1 << 24)
    assert of(64, 1024) == [(False, True)]


def test_columns_of_many_rows_are_not_normalized() -> None:
    """A product that reads its first operand by columns would normalize along the wrong axis: of a square one too."""
    needs("wgpu")
    target = Target("wgpu", "hardware", device("wgpu").target.limits)

    def build() -> Value:
        rows = ops.rms_norm(ops.input("x", (64, 64)), ops.input("w", (64,)), eps=1e-3)
        return ops.matmul_at(rows, ops.input("b", (64, 20)))

    plan = check((device("wgpu"), target), graph_of(build))
    assert [d.kernel for d in plan.dispatches] == ["custom", "matmul"]


@pytest.mark.parametrize("rows", [1, 2, 12])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_stored_matrix_times_itself(dtype: str, rows: int) -> None:
    """One buffer is both factors: its elements are decoded one by one for both."""
    needs("wgpu")
    found, w = device("wgpu"), np.random.default_rng(5).standard_normal((rows, 64)).astype(np.float32)
    with Graph() as g:
        stored = ops.parameter("w", w.shape, dtype=DType[dtype])
        g.output(ops.matmul_bt(stored, stored))
    words = encode(w, DType[dtype])
    want = decode(words, DType[dtype], w.shape).astype(np.float64)
    for adapter in ("software", "hardware"):
        plan = compile(g, mode="inference", target=Target("wgpu", adapter, found.target.limits))
        program = found.load(plan)
        program.upload_words(plan.stored_params[0][1], words)
        program.step(None)
        (got,) = plans.outputs(program)
        program.close()
        np.testing.assert_allclose(got, want @ want.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8", "q4", "q8_0", "q4_0", "q4_k"])
@pytest.mark.parametrize("m", [2, 18])
def test_two_products_decode_both_of_their_weights(m: int, dtype: str) -> None:
    """In a product of few rows, and in parts of K."""
    needs("wgpu")
    found, (n, k) = device("wgpu"), (24, 256)
    target, random = Target("wgpu", "hardware", found.target.limits), np.random.default_rng(3)
    name, shape = ("matmul", (k, n)) if dtype in ("q8", "q4") else ("matmul_bt", (n, k))
    values = {each: random.standard_normal(shape).astype(np.float32) for each in ("gate", "up")}
    graph = graph_of(gated_products(m, n, k, name, norm=False, dtype=DType[dtype]))
    plan = compile(graph, mode="inference", target=target)
    (d,) = plan.dispatches
    assert d.matmul is not None and d.matmul.dual is not None
    program = found.load(plan)
    x, c = random.standard_normal((m, k)).astype(np.float32), random.standard_normal(n).astype(np.float32)
    for each, buffer in plan.input_buffers:
        program.upload(buffer, {"x": x, "c": c}[each])
    words = {each: encode(value, DType[dtype]) for each, value in values.items()}
    for each, buffer in plan.stored_params:
        program.upload_words(buffer, words[each])
    program.step(None)
    (got,) = plans.outputs(program)
    program.close()
    weights = (decode(words[each], DType[dtype], shape).astype(np.float64) for each in ("gate", "up"))
    gate, up = (x @ (w if name == "matmul" else w.T) for w in weights)
    gate *= 0.5
    np.testing.assert_allclose(got, gate / (1 + np.exp(-gate)) * up + c, rtol=1e-4, atol=1e-3)


def test_products_that_others_read_or_of_other_rows_are_dispatches_of_their_own() -> None:
    """For an output, another op, other rows, other extents; or where buffers do not suffice."""
    needs("wgpu")
    target = Target("wgpu", "hardware", Target.portable().limits)

    def build(case: str) -> list[Value]:
        rows, other = ops.input("x", (2, 64)), ops.input("y", (2, 64))
        gate = ops.matmul(rows, ops.input("gate", (64, 8)))
        up = ops.matmul(other if case == "rows" else rows, ops.input("up", (64, 1 if case == "extents" else 8)))
        h = ops.tanh(gate) * up
        if case == "buffers":
            h = h + sum((ops.input(f"c{i}", (2, 8)) for i in range(4)), ops.input("c", (8,)))
        return [h, *([gate] if case == "output" else []), *([ops.exp(gate).sum_all()] if case == "op" else [])]

    for case in ("plain", "rows", "extents", "buffers", "output", "op"):
        plan = check((device("wgpu"), target), graph_of(lambda case=case: build(case)))  # type: ignore[misc]
        dual = [d.matmul.dual is not None for d in plan.dispatches if d.matmul is not None]
        assert dual == ([True] if case == "plain" else [False, False]), case
    alone = CompileOptions(fuse_dispatches=False)
    off = compile(graph_of(lambda: build("plain")), mode="inference", target=target, options=alone)
    assert not any(d.matmul.dual is not None for d in off.dispatches if d.matmul is not None)


def test_a_dual_product_that_does_not_fit_its_dispatch_is_refused() -> None:
    plan = compile(graph_of(gated_products(2, 40, 64, "matmul", True)), mode="inference", target=Target.portable())
    (d,) = plan.dispatches
    assert d.matmul is not None and d.matmul.dual is not None and from_json(to_json(plan)) == plan
    wrong = [
        replace(d, variant="k-parallel 4x16"),
        replace(d, variant="tile 32x32x16"),
        replace(d, operands=d.operands[:3]),
        replace(d, matmul=replace(d.matmul, dual=None)),
        replace(d, operands=(*d.operands[:3], replace(d.operands[3], dtype=DType.f16), *d.operands[4:])),
    ]
    for bad in wrong:
        with pytest.raises(CompileError, match="norm|operand|dual"):
            verify(replace(plan, dispatches=(bad,)))


def test_a_norm_and_a_dual_product_in_parts_of_k_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compile(graph_of(gated_products(64, 40, 64, "matmul", True)), mode="inference", target=Target.portable())
    (d,) = plan.dispatches
    p = d.matmul
    assert p is not None and p.dual is not None and p.norm is not None and d.params == (16, 16, 16)
    assert from_json(to_json(plan)) == plan
    wrong = [
        replace(d, variant="vector 4x16"),
        replace(d, variant="tile 16x16x16"),
        replace(d, params=(16, 16, 8)),
        replace(d, params=(2, 16, 128)),
        replace(d, workgroup_size=(128, 1, 1)),
        replace(d, operands=d.operands[:3]),
        replace(d, matmul=replace(p, dual=None)),
        replace(d, matmul=replace(p, norm=replace(p.norm, eps=0.0))),
        replace(d, matmul=replace(p, a="km")),
        replace(d, operands=(*d.operands[:3], replace(d.operands[3], dtype=DType.f16), *d.operands[4:])),
    ]
    for bad in wrong:
        with pytest.raises(CompileError, match="norm|operand|dual"):
            verify(replace(plan, dispatches=(bad,)))
    for rows in (4, 8):
        verify(replace(plan, dispatches=(replace(d, params=(rows, 16, 256 // rows)),)))
    monkeypatch.setattr(spread, "NORMALIZED_WORK", 64)
    with pytest.raises(CompileError, match="norm"):
        verify(replace(plan, dispatches=(replace(d, label="another"),)))


def test_a_norm_inside_a_product_that_cannot_have_one_is_refused() -> None:
    plan = compile(graph_of(normed_products(2, 40, 64, "matmul")), mode="inference", target=Target.portable())
    d = plan.dispatches[1]
    assert d.matmul is not None and d.matmul.norm is not None and from_json(to_json(plan)) == plan
    wrong = [
        replace(d, matmul=replace(d.matmul, norm=replace(d.matmul.norm, eps=0.0))),
        replace(d, matmul=replace(d.matmul, norm=replace(d.matmul.norm, eps=float("nan")))),
        replace(d, variant="k-parallel 4x16"),
        replace(d, operands=d.operands[:2]),
    ]
    for bad in wrong:
        with pytest.raises(CompileError, match="norm|operand"):
            verify(replace(plan, dispatches=(plan.dispatches[0], bad, *plan.dispatches[2:])))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"])
def test_few_rows_decode_four_stored_weights_at_a_time(dtype: str) -> None:
    needs("wgpu")
    found = device("wgpu")
    target = Target("wgpu", "hardware", found.target.limits)
    random = np.random.default_rng(7)
    for m, n, k in ((1, 37, 512), (3, 8, 256), (2, 30, 1280)):
        x, w = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((n, k)).astype(np.float32)
        with Graph() as g:
            g.output(ops.matmul_bt(ops.input("x", x.shape), ops.parameter("w", w.shape, dtype=DType[dtype])))
        plan = compile(g, mode="inference", target=target)
        (d,) = plan.dispatches
        assert d.variant.startswith("vector")
        steps = {"q8_0": 32, "q4_0": 32}.get(dtype, 8 if m > 1 and dtype.endswith("16") else 4)
        assert d.params[3] == steps and ("in1_four(" in plan.wgsl(0)[0]) == (steps == 4)
        words = encode(w, DType[dtype])
        program = found.load(plan)
        program.upload(plan.input_buffers[0][1], x)
        program.upload_words(plan.stored_params[0][1], words)
        program.step(None)
        (got,) = plans.outputs(program)
        program.close()
        decoded = decode(words, DType[dtype], w.shape).astype(np.float64)
        np.testing.assert_allclose(got, x @ decoded.T, rtol=1e-4, atol=1e-4)


def test_shared_tiles_fit_every_adapter() -> None:
    """Whatever is asked for, workgroup memory and the invocations of a group suffice: fewer steps, then fewer parts."""
    asked = [*TILINGS, (128, 128, 32, 8, 8, 1, 1), (64, 64, 16, 4, 4, 1, 2), (32, 32, 32, 4, 4, 4, 2)]
    for nbytes, (a, b), tiling in product((16384, 17000, 32768, 49152), product(("mk", "km"), ("kn", "nk")), asked):
        limits = replace(Target.portable().limits, workgroup_bytes=nbytes)
        p = Matmul(300, 300, 300, a, b, 0)
        schedule = spread.shared_tiles(p, tiling, limits)
        text = WgslText()
        shared_tiles(text, Product(p, "a", "b", True, True, True), schedule.params)
        sizes = [int(n) for n in re.findall(r"var<workgroup> \w+: array<vec4<f32>, (\d+)>", text.done()[0])]
        assert len(sizes) >= 2 and 16 * sum(sizes) <= nbytes, (tiling, schedule.params, nbytes)
        assert schedule.workgroup_size[0] <= limits.invocations
        assert schedule.params[-1] == tiling[-1]  # the second dispatch counts on so many parts


@pytest.mark.parametrize("name", ["matmul_at", "matmul_bt"])
def test_shared_tiles_of_every_layout(adapter: tuple[Device, Target], name: str) -> None:
    """Steps beyond K and elements beyond the edge are zero, also where memory goes on with the next row."""
    for m, n, k in ((70, 66, 8), (37, 41, 19)):
        a, b = (k, m) if name == "matmul_at" else (m, k), (n, k) if name == "matmul_bt" else (k, n)
        build = lambda a=a, b=b: getattr(ops, name)(ops.input("a", a), ops.input("b", b))  # noqa: E731
        plan = check(adapter, graph_of(build))
        assert len(plan.dispatches) == 1


def mm(m: int, n: int, k: int) -> Value:
    return ops.input("a", (m, k)) @ ops.input("b", (k, n))


def test_products_with_themselves(adapter: tuple[Device, Target]) -> None:
    for n in (4, 7):
        check(adapter, graph_of(lambda n=n: ops.matmul_bt(x := ops.input("x", (n, n)), x) + x))  # type: ignore[misc]


@pytest.mark.parametrize("shape, axes", [
    ((200_000,), (0,)), ((3, 5000), (1,)), ((5000, 3), (0,)), ((7, 33, 5), (1,)), ((300, 2), (1,)), ((2, 300), (0,)),
    ((1, 1), (0,)), ((4, 3, 2, 5), (0, 2)),
])  # fmt: skip
def test_folds(adapter: tuple[Device, Target], shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for fold in ("sum", "max"):
        check(adapter, graph_of(lambda f=fold: getattr(ops, f)(ops.square(ops.input("x", shape)), axes) * 0.5))  # type: ignore[misc]


def row_op(name: str, shape: tuple[int, ...]) -> Value:
    x, w = ops.input("x", shape), ops.input("w", shape[-1:])
    if name == "layer_norm":
        return ops.layer_norm(x, w, ops.input("b", shape[-1:]), 1e-5)
    return ops.rms_norm(x, w, 1e-5) if name == "rms_norm" else getattr(ops, name)(x)


ROW_OPS = ["softmax", "log_softmax", "rms_norm", "layer_norm"]
ROWS = also(
    [(3, 1), (5, 3), (3, 8), (65, 10), (2, 257), (3, 68), (2, 1028), (1, 50257), (70, 12)], (2, 2), (4, 5), (9, 64)
)


@pytest.mark.parametrize("name", ROW_OPS)
def test_rows(adapter: tuple[Device, Target], name: str) -> None:
    for shape in ROWS:
        check(adapter, graph_of(lambda shape=shape: row_op(name, shape).scale(2.0)))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_gradients_of_norms(adapter: tuple[Device, Target], name: str) -> None:
    """One dispatch gives the gradient of x: nothing is larger than x, and little is as large."""
    for shape in also([(4, 5), (3, 64), (2, 1028)], (3, 2)):
        with Graph() as g:
            x, w = ops.parameter("x", shape), ops.parameter("w", shape[-1:])
            more = (ops.parameter("b", shape[-1:]),) if name == "layer_norm" else ()
            g.set_outputs([ops.sum_all(getattr(ops, name)(x, w, *more, 1e-5) * ops.input("g", shape))])
        plan = check(adapter, differentiate(g)[0])
        # the norm, and g; what the gradient of a layer norm's weights reads twice, x - mean
        large = sum(b.shape == shape and b.kind == "intermediate" for b in plan.buffers)
        assert large <= (3 if more else 2)


@pytest.mark.parametrize("length", [4, 8, 1024, 4096, 16384, 32768])
def test_rows_in_registers(length: int) -> None:
    """The kernel for hardware keeps whole rows: one workgroup has one or several."""
    needs("wgpu")
    found = device("wgpu")
    target = replace(found.target, adapter_class="hardware")
    for name in ("softmax", "layer_norm"):
        plan = check((found, target), graph_of(lambda name=name: row_op(name, (5, length))))  # type: ignore[misc]
        lanes = {16384: 512, 32768: 512}.get(length, min(256, max(1, length // 16)))
        assert plan.dispatches[0].variant == f"{max(1, 64 // lanes)}x{lanes} registers"


def test_rows_in_registers_of_a_small_adapter() -> None:
    """In groups of at most 256 invocations each keeps twice as much in registers."""
    needs("wgpu")
    found = device("wgpu")
    limits = replace(found.target.limits, invocations=256)
    target = replace(found.target, adapter_class="hardware", limits=limits)
    plan = check((found, target), graph_of(lambda: row_op("layer_norm", (3, 16384))))
    assert plan.dispatches[0].variant == "1x256 registers"


def test_rows_by_four_on_software() -> None:
    """Many rows: one per lane, without an exchange; few: eight lanes share one; rows that end within a four do not."""
    target = replace(Target.portable(), adapter_class="software")
    for name, (shape, variant, by_four) in product(ROW_OPS, (
        ((64, 12), "8x1", True), ((63, 12), "1x8", True), ((64, 10), "8x1", False), ((2, 1 << 19), "1x32", False),
    )):  # fmt: skip
        d = compile(graph_of(lambda n=name, s=shape: row_op(n, s)), mode="inference", target=target).dispatches[0]  # type: ignore[misc]
        assert d.variant == variant and d.custom is not None and d.custom.file.endswith("_fours.wgsl") == by_four


@pytest.mark.parametrize("shape", [(16411, 4), (16411,), (3, 16411), (257, 16), (4099, 64)])
def test_folds_of_prime_lengths(shape: tuple[int, ...]) -> None:
    """They have no parts of a size, so one dispatch folds them, tails included."""
    needs("wgpu")
    found = device("wgpu")
    target = replace(found.target, adapter_class="hardware")
    axis = 1 if shape == (3, 16411) else 0
    for fold in ("sum", "max"):
        plan = check((found, target), graph_of(lambda f=fold: getattr(ops, f)(ops.input("x", shape), (axis,))))  # type: ignore[misc]
        assert len(plan.dispatches) == 1


@pytest.mark.parametrize("outer, length, inner", [
    (1, 1 << 20, 1), (1, 65536, 4), (2, 3 * 65537, 1), (1, 65537, 4), (1, 2 * 9973, 8), (5, 7, 3), (1, 97 * 89 * 64, 1),
])  # fmt: skip
def test_parts_of_a_fold_are_equal(outer: int, length: int, inner: int) -> None:
    parts = spread._fold_parts(outer, length, inner)
    assert length % parts == 0 and (parts == 1 or length // parts >= (4096 if inner == 1 else 64))
    assert (parts > 1) == ((outer, length, inner) not in ((1, 65537, 4), (5, 7, 3)))


def test_softmax_of_rows_without_one(adapter: tuple[Device, Target]) -> None:
    """Rows of -inf, with +inf or with NaN are NaN, their neighbours are not; -inf among numbers has weight 0."""
    for width in (8, 5, 1028):
        x = np.random.default_rng(0).normal(size=(6, width)).astype(np.float32)
        x[0], x[1, 1], x[2, 3], x[4, width // 2] = -np.inf, np.inf, np.nan, -np.inf
        for name in ("softmax", "log_softmax"):
            check(adapter, graph_of(lambda w=width, n=name: row_op(n, (6, w))), {"x": x, "w": x[0]})  # type: ignore[misc]


@pytest.mark.parametrize("shape, axes", [
    ((5, 16), (1,)), ((3, 1000), (1,)), ((2, 70004), (1,)), ((70004, 4), (0,)), ((3, 33, 8), (1,)), ((600, 132), (0,)),
    ((8, 4096), (0, 1)), ((1030, 64), (0,)), ((4, 1156), (0,)), ((3, 64), (0,)),
])  # fmt: skip
def test_folds_by_four(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """On hardware four elements at a time: along the fold or across it, tails included; in one dispatch or two."""
    needs("wgpu")
    found = device("wgpu")
    target = replace(found.target, adapter_class="hardware")
    for fold in ("sum", "max"):
        build = lambda f=fold: getattr(ops, f)(ops.tanh(ops.input("x", shape)) * ops.input("r", shape[-1:]), axes) * 0.5  # noqa: E731
        plan = check((found, target), graph_of(build))
        assert all(" a" in d.variant or d.reduce.length < 16 for d in plan.dispatches if d.reduce)


def test_a_fold_that_an_invocation_takes_alone_shares_its_group_with_others() -> None:
    """Groups of 128 where there are so many; of at most the invocations that an adapter allows."""
    target = Target("wgpu", "hardware", Limits())

    def size(length: int, inner: int, target: Target = target) -> tuple[int, str]:
        schedule = spread.reduce(Reduce("sum", "acc", 1, length, inner, length, 0), target)
        return schedule.workgroup_size[0], schedule.variant

    assert size(4, 524288) == size(8, 524288) == (128, "128x1 across")
    assert size(4, 64) == (16, "16x1 across"), "four neighbours each"
    assert size(9, 524288) == (64, "32x2 across")
    assert size(4, 524288, replace(target, limits=Limits(invocations=64))) == (64, "64x1 across")


def test_streams(adapter: tuple[Device, Target]) -> None:
    """More than 2^20 elements, with a tail: several fours per invocation."""
    for size in ((1 << 20) + 12, (1 << 20) + 5):
        check(adapter, graph_of(lambda size=size: ops.tanh(ops.input("x", (size,))) * ops.input("s", (1,))))  # type: ignore[misc]


def test_cross_entropy_over_50257_classes(adapter: tuple[Device, Target]) -> None:
    """More than the 65535 loop trips after which lavapipe stops silently, were they one invocation's."""
    check(adapter, graph_of(lambda: ops.cross_entropy_loss(ops.input("z", (2, 50257)), ops.input("y", (2, 50257)))))


def test_pointwise_of_every_access_and_tail(adapter: tuple[Device, Target]) -> None:
    def chain(rows: int, columns: int) -> Value:
        x, r = ops.input("x", (rows, columns)), ops.input("r", (columns,))
        c, s = ops.input("c", (rows, 1)), ops.input("s", (1,))
        return ops.sigmoid(x * r) + c * s

    for rows, columns in ((3, 4), (8, 8), (3, 5), (1, 1), (7, 64), (65, 33)):
        check(adapter, graph_of(lambda r=rows, c=columns: chain(r, c)))  # type: ignore[misc]


def test_grids_that_fold_into_y(adapter: tuple[Device, Target]) -> None:
    found, target = adapter
    small = replace(target, limits=replace(target.limits, workgroups_per_axis=12))
    builds: list[Callable[[], Value]] = [
        lambda: ops.tanh(ops.input("x", (4001,))),
        lambda: ops.sum_inner(ops.input("x", (3000, 3))),
        lambda: ops.softmax(ops.input("x", (3000, 3))),
        lambda: ops.transpose(ops.input("x", (30, 31))),
        lambda: mm(200, 200, 40),
    ]
    for build in builds:
        plan = check((found, small), graph_of(build))
        assert plan.dispatches[0].workgroups[1] > 1


def test_copies_of_u32(adapter: tuple[Device, Target]) -> None:
    data = np.array([[0, 1, 2], [7, 2**31, 2**32 - 1]], np.uint32)
    g = graph_of(lambda: [ops.input_u32("x", (2, 3)), ops.reshape(ops.input_u32("y", (2, 3)), (3, 2))])
    plan = compile(g, mode="inference", target=adapter[1])
    program = plans.load(adapter[0], plan, {"x": data, "y": data})
    program.step(None)
    same, other = plans.outputs(program)
    assert same.tolist() == data.tolist() and other.tolist() == data.reshape(3, 2).tolist()


def test_values_that_no_literal_has(adapter: tuple[Device, Target]) -> None:
    """1 / 0 between constants is an error in WGSL; computed, it is infinite."""
    zero = lambda: ops.full((5,), 0.0)  # noqa: E731
    check(adapter, graph_of(lambda: [1.0 / zero(), ops.log(zero()), ops.input("x", (5,)) / zero()]))


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_updates(adapter: tuple[Device, Target], rule: str) -> None:
    """Ten updates on the adapter and on cpu from the same gradients, sizes with and without a tail."""
    with Graph() as g:
        ws = [ops.parameter("w", (5, 3)), ops.parameter("v", (8, 8))]
        xs = [ops.input("x", (5, 3)), ops.input("y", (8, 8))]
        g.set_outputs([ops.sum_all(ws[0] * xs[0]), *xs])
        g.set_output_ids(zip(g.output_ids, g.output_names, strict=True), gradients=2)
    feeds = plans.feeds_of(g)
    results = []
    for found, target in (adapter, (device("cpu"), device("cpu").target)):
        plan = compile(g, mode="training", target=target)
        program = plans.load(found, plan, feeds)
        program.configure(update_of(plan, Recipe(rule, {"w": 0.5})))
        for t in range(1, 11):
            values = dict(lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8)  # noqa: C408
            values |= {"correction1": 1 / (1 - 0.9**t), "correction2": 1 / (1 - 0.999**t)}
            program.step(np.array([values.get(name, 0.0) for name in SCALARS], np.float32))
        results.append([program.download(b) for _, b in plan.param_buffers])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


# the text -------------------------------------------------------------------------------------------------------------
def every_plan() -> Iterator[ExecutionPlan]:
    for graph in (differentiate(networks.mlp())[0], differentiate(networks.transformer())[0]):
        for name in SCHEDULES:
            target = replace(Target.portable(), adapter_class=name)  # type: ignore[arg-type]
            yield compile(graph, mode="training", target=target)


def test_every_op_of_a_chain_has_its_line() -> None:
    kinds = set()
    for plan in every_plan():
        for d in plan.dispatches:
            kinds.add(d.kernel)
            text, line_map = plan.wgsl(d.index)
            lines, nodes = text.split("\n"), dict(line_map)
            assert text.startswith(f"// {d.label}\n") and text.endswith("}\n")
            for op in (*d.prologue, *d.epilogue):
                at = [i for i, line in enumerate(lines, 1) if line.endswith(f"// {op.op}")]
                assert any(op.node in nodes.get(i, ()) for i in at), (d.label, op.op)
            assert {n for some in nodes.values() for n in some} <= set(d.origin)
            assert all(1 <= i <= len(lines) and lines[i - 1].strip() for i in nodes)
            assert max(map(len, lines)) <= 160
    assert kinds == {"pointwise", "matmul", "reduce", "custom", "movement"}


def test_the_text_of_an_update_names_what_it_moves() -> None:
    plan = compile(plans.regression(), mode="training")
    for update, moved in ((update_of(plan, Recipe("sgd")), {2, 3}), (update_of(plan, Recipe("adam")), {2})):
        text, line_map = kernels.wgsl(update.dispatches[0], plan.target)
        lines, nodes = text.split("\n"), dict(line_map)
        assert "vec4<f32>(lr() * 1.0)" in text and {n for _, some in line_map for n in some} == moved
        for k, node in enumerate(sorted(moved)):  # what touches a parameter's buffers stands for this parameter alone
            touching = [i for i, line in enumerate(lines, 1) if f"weight{k}[i]" in line or f"gradient{k}[i]" in line]
            assert len(touching) >= 2 and {nodes[i] for i in touching} == {(node,)}


def test_kernels_declare_exactly_their_bindings() -> None:
    for plan in every_plan():
        for d in plan.dispatches:
            declared = re.findall(r"@binding\((\d+)\) var<storage, (read|read_write)>", plan.wgsl(d.index)[0])
            modes = {"r": "read", "w": "read_write"}
            assert declared == [(str(i), modes[access]) for i, (_, access) in enumerate(d.bindings)]


def test_a_kernel_stays_within_workgroup_memory() -> None:
    limits = Target.portable().limits
    for plan in every_plan():
        for d in plan.dispatches:
            text = plan.wgsl(d.index)[0]
            sizes = [int(n) * (4 if "vec4" in kind else 1) for kind, n in re.findall(r"array<(\S+), (\d+)>", text)]
            assert 4 * sum(sizes) <= limits.workgroup_bytes


def test_unknown_kernels_and_files_are_refused() -> None:
    d: Dispatch = compile(plans.regression(), mode="training").dispatches[0]
    with pytest.raises(CompileError, match="dispatch 0: kernel: given frob, wanted one of pointwise, matmul"):
        kernels.wgsl(replace(d, kernel="frob"), Target.portable())  # type: ignore[arg-type]
    with pytest.raises(CompileError, match="kernels: shader file: given none.wgsl, wanted a file of shaders/"):
        from gdlab.kernels.pieces import shader

        shader("none.wgsl")


def test_shaders_are_found_in_a_wheel_and_in_a_checkout(tmp_path: Path) -> None:
    assert kernels.shader_folder() == SHADERS
    package = tmp_path / "gdlab"
    shutil.copytree(SHADERS, package / "shaders")
    assert kernels.shader_folder(package) == package / "shaders"
    with pytest.raises(CompileError, match="kernels: shader files: given none beside elsewhere"):
        kernels.shader_folder(tmp_path / "elsewhere")


def test_every_shader_file_begins_with_what_it_computes() -> None:
    for path in sorted(SHADERS.glob("*.wgsl")):
        assert path.read_text(encoding="utf-8").startswith("// "), path.name


def test_every_shader_has_its_files_and_its_numpy_form() -> None:
    forms: dict[str, NumpyForm] = {}
    for op in REGISTRY.values():
        form = op.kernel
        for kernel in [k for k in (form, getattr(form, "in_place", None)) if isinstance(k, Shader)]:
            assert kernel.numpy_form is not None, op.name
            same = forms.setdefault(kernel.name, kernel.numpy_form)
            assert kernel.numpy_form is same, f"{kernel.name} of {op.name}: one file, one NumPy form"
        for shader in form.forms if isinstance(form, Shader) else ():
            assert all((SHADERS / file).is_file() for file in shader.file.split(" + ")), shader.file


def test_a_kernel_has_no_function_or_workgroup_memory_that_it_does_not_use() -> None:
    for plan in every_plan():
        for d in plan.dispatches:
            text = plan.wgsl(d.index)[0]
            declared = re.findall(r"^(?:fn|var<workgroup>|var<private>) (\w+)", text, re.MULTILINE)
            unused = [name for name in declared if name != "main" and len(re.findall(rf"\b{name}\b", text)) == 1]
            assert unused == [], (d.label, unused)


def test_texts_use_plain_ascii_code() -> None:
    """Browsers and drivers disagree on anything else."""
    for plan in every_plan():
        for d in plan.dispatches:
            code = [line.split("//")[0] for line in plan.wgsl(d.index)[0].split("\n")]
            assert all(line.isascii() for line in code)
