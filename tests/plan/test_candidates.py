"""Candidates of products: all valid on their target, the rule's own first; a table chooses among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import networks
import pytest
from plans import graph_of

from gdlab import ops
from gdlab.base.types import DType
from gdlab.graph import Graph
from gdlab.kernels.pieces import WgslText
from gdlab.kernels.product import Product
from gdlab.kernels.workgroup_tiles import Tiling, shared_tiles
from gdlab.plan import compile, spread
from gdlab.plan.candidates import MOST, ProductKey, candidates, name_of, products_of, schedule_of
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Limits, Target, TunedSchedule, Tuning

PORTABLE = Target.portable()
SOFTWARE = Target("wgpu", "software", Limits())
MANY_BYTES = Target("wgpu", "hardware", Limits(workgroup_bytes=49152))
LARGE = Target("wgpu", "hardware", Limits(workgroup_bytes=49152, invocations=1024))
KEYS = [
    ProductKey(64, 10, 128), ProductKey(512, 1024, 1024), ProductKey(2048, 2048, 2048, "km"), ProductKey(64, 256, 2048),
    ProductKey(1, 2048, 2048, "mk", "nk", DType.q4_0), ProductKey(3, 5, 40), ProductKey(5, 300, 7, "km"),
    ProductKey(3, 2048, 5632, "mk", "nk", DType.f16, True, True), ProductKey(4, 64, 64, dual=True), ProductKey(1, 1, 1),
    ProductKey(3, 8192, 8192, norm=True, dual=True), ProductKey(64, 1024, 256, norm=True, dual=True),
    ProductKey(512, 4096, 1024, dual=True),
    ProductKey(20, 300, 64, "mk", "nk", DType.f16, True),
    ProductKey(40, 4096, 1024, "mk", "nk", DType.bf16), ProductKey(8, 1 << 16, 1 << 12),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_rules_choice_is_first_and_every_candidate_is_valid(key: ProductKey) -> None:
    little = replace(PORTABLE, limits=Limits(workgroup_bytes=8192, invocations=128))
    for target in (PORTABLE, LARGE, MANY_BYTES, SOFTWARE, little):
        found = candidates(key, target)
        p, limits = key.product, target.limits
        assert found[0] == spread.matmul(p, target, None, key.dtype)
        assert 1 <= len(found) <= MOST and len({s.params for s in found}) == len({name_of(s) for s in found}) == len(
            found
        )
        for s in found[1:]:
            size, kind = s.workgroup_size[0], s.variant.split()[0]
            assert size <= limits.invocations and max(s.workgroups) <= limits.workgroups_per_axis, s
            assert (kind == "registers") == (target is SOFTWARE)
            if target.adapter_class == "hardware" and (key.norm or key.dual):
                kinds = ("vector", "k-parallel") if key.norm else ("vector", "k-parallel", "tile")
                assert kind in kinds, "no other kernel normalizes rows or makes two products"
                assert kind != "tile" or spread.halves(s.params)
                assert spread.computes(p, kind)
            if kind == "vector":
                rows, wide, parts, steps = s.params
                assert (rows, wide * parts) == (key.m, size) and parts & (parts - 1) == 0
                assert steps == found[0].params[3]
            if kind == "k-parallel":
                assert limits.workgroup_bytes >= 16384


def test_shared_tiles_of_candidates_fit_workgroup_memory_and_scratch() -> None:
    """Every tile, in each layout, on adapters with much and with little memory: as the kernel declares it."""
    seen = set()
    for key, target in product(
        (ProductKey(300, 300, 3000, "km", "kn"), ProductKey(300, 260, 3000, "mk", "nk")), (PORTABLE, LARGE)
    ):
        for s in candidates(key, target):
            if s.variant.startswith("tile"):
                text = WgslText()
                shared_tiles(text, Product(key.product, "a", "b", True, True, True), s.params)
                t = Tiling(*s.params)
                sizes = t.inner * t.buffers * (t.size(key.product, "a") + t.size(key.product, "b"))
                assert 16 * (sizes + (t.inner - 1) * t.rows * t.columns // 4) <= target.limits.workgroup_bytes
                assert 4 * t.outer * key.m * key.n <= spread.SCRATCH or t.outer == 1
                seen.add((t.inner > 1, t.outer > 1))
    assert len(seen) >= 3, "parts of K in a group, beside others, and none"


def hidden(batch: int = 8) -> Graph:
    return graph_of(
        lambda: ops.tanh(ops.input("x", (batch, 96)) @ ops.parameter("w", (96, 40)) + ops.parameter("b", (40,)))
    )


def tuned(target: Target, key: ProductKey, params: tuple[int, ...], nanoseconds: int = 1500) -> Target:
    return replace(target, tuning=Tuning((TunedSchedule(str(key), params, nanoseconds, 2_000_000),)))


def plan_of(graph: Graph, target: Target, **options: object) -> ExecutionPlan:
    return compile(graph, mode="inference", target=target, options=CompileOptions(**options))  # type: ignore[arg-type]


def test_a_measured_schedule_is_used_and_says_its_times() -> None:
    by_rule = plan_of(hidden(), SOFTWARE)
    (key,) = products_of(by_rule)
    assert str(key) == "matmul 8x40x96 mk·kn f32" and by_rule.dispatches[0].variant == "registers 4x4"
    measured = plan_of(hidden(), tuned(SOFTWARE, key, (8, 8)))
    d = measured.dispatches[0]
    assert (d.variant, d.params) == ("registers 8x8", (8, 8)) and d.workgroups != by_rule.dispatches[0].workgroups
    assert d.variant_reason.endswith("; measured: 1.5 µs, registers 4x4 by rule 2 ms")
    assert measured.fingerprint != by_rule.fingerprint
    later = plan_of(hidden(), tuned(SOFTWARE, key, (8, 8), 1600))
    assert later.fingerprint == measured.fingerprint, "times are no part of it: the same plan"


@pytest.mark.parametrize("params", [(3, 4), (8, 8, 8), (), (1 << 30, 4), (0, 0), (16, 16, 16)])
def test_what_is_no_candidate_is_ignored(params: tuple[int, ...]) -> None:
    by_rule = plan_of(hidden(), SOFTWARE)
    (key,) = products_of(by_rule)
    assert plan_of(hidden(), tuned(SOFTWARE, key, params)).dispatches == by_rule.dispatches


def test_the_table_speaks_of_one_kernel_and_a_tile_that_is_asked_for_wins() -> None:
    by_rule = plan_of(hidden(), SOFTWARE)
    (key,) = products_of(by_rule)
    for other in (
        replace(key, m=9),
        replace(key, a="km"),
        replace(key, b="nk"),
        replace(key, dtype=DType.f16),
        replace(key, norm=True),
    ):
        assert plan_of(hidden(), tuned(SOFTWARE, other, (8, 8))).dispatches == by_rule.dispatches
    asked = plan_of(hidden(), tuned(SOFTWARE, key, (8, 8)), tile=(1, 4))
    assert asked.dispatches[0].params == (1, 4) and "measured" not in asked.dispatches[0].variant_reason


def test_a_measured_split_of_k_takes_its_second_dispatch_along() -> None:
    graph = graph_of(lambda: ops.tanh(ops.input("x", (130, 512)) @ ops.parameter("w", (512, 130))))
    by_rule = plan_of(graph, PORTABLE)
    (key,) = products_of(by_rule)
    whole = next(
        s for s in candidates(key, PORTABLE) if spread.split_of(s) != spread.split_of(candidates(key, PORTABLE)[0])
    )
    other = plan_of(graph, tuned(PORTABLE, key, whole.params))
    assert len({len(by_rule.dispatches), len(other.dispatches)}) == 2 and other.dispatches[0].params == whole.params
    assert from_json(to_json(other)) == other and from_json(to_json(other)).target.tuning == other.target.tuning


def test_a_schedule_of_the_rules_is_told_as_by_rule() -> None:
    key = ProductKey(64, 64, 64)
    rule = candidates(key, SOFTWARE)[0]
    assert schedule_of(key.product, tuned(SOFTWARE, key, rule.params), None, DType.f32) == rule


@pytest.mark.parametrize("make", [networks.mlp, networks.transformer], ids=["mlp", "transformer"])
def test_products_of_a_plan_come_with_their_dispatches_the_largest_first(make: Callable[[], Graph]) -> None:
    plan = compile(make(), mode="inference", target=PORTABLE)
    found = products_of(plan)
    listed = sorted(i for places in found.values() for i in places)
    assert listed == [d.index for d in plan.dispatches if d.matmul is not None] and len(listed) > 1
    work = [sum(plan.dispatches[i].flops for i in places) for places in found.values()]
    assert work == sorted(work, reverse=True)
    for key, places in found.items():
        for i in places:
            assert (
                plan.dispatches[i].matmul.m == key.m
                and plan.dispatches[i].params == candidates(key, PORTABLE)[0].params
            )  # type: ignore[union-attr]


def test_a_table_is_known_by_its_digest() -> None:
    one = Tuning((TunedSchedule("matmul 8x40x96 mk·kn f32", (8, 8), 10, 20),))
    assert Tuning().digest == "" and len(one.digest) == 16
    assert one.digest == Tuning((replace(one.schedules[0], nanoseconds=11),)).digest
    assert one.digest != Tuning((replace(one.schedules[0], params=(4, 8)),)).digest


def test_gradients_of_weights_in_middle_tiles_have_k_in_two_parts_inside_a_group() -> None:
    """They run beside other products; alone nothing is gained, and where rows lie along K it costs a tenth."""

    def params(target: Target, *key: object, **more: bool) -> tuple[int, ...]:
        return spread.matmul(ProductKey(*key, **more).product, target).params  # type: ignore[arg-type]

    inside = 64, 64, 16, 8, 8, 2, 2, 1
    assert params(LARGE, 1024, 1024, 512, "km") == params(MANY_BYTES, 1100, 1000, 256, "km") == inside
    assert params(LARGE, 1024, 1024, 512, "mk")[-2:] == params(LARGE, 1024, 1024, 512, "mk", "nk")[-2:] == (1, 1)
    assert params(LARGE, 1024, 1024, 255, "km")[-2:] == params(PORTABLE, 1024, 1024, 512, "km")[-2:] == (1, 1)
    assert params(LARGE, 2048, 2048, 512, "km")[:2] == (128, 128)
    assert params(LARGE, 1024, 512, 512, "km", dual=True)[-2:] == (1, 1), "an invocation has all of K of both"
    little = replace(LARGE, limits=replace(LARGE.limits, workgroup_bytes=32768))
    assert params(little, 1024, 1024, 512, "km")[-2:] == (1, 1)
