"""Products of one operand made by one (F14): the dispatch that makes them, its buffers, its kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attending import FOURS_T, ROWS, Heads, K, both, forms, layer, plan_of, products, ran
from machine import needs
from matrix import also
from optimizing import graph_of, p
from plans import feeds_of

from benchmarks.peer_models import CASES
from gdlab import ops
from gdlab.base.errors import CompileError
from gdlab.devices.choose import device as device_of
from gdlab.graph import Value
from gdlab.models import TransformerLmConfig, transformer_lm
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.ops.packed import columns, packed
from gdlab.plan import codec, compile, spread
from gdlab.plan.dispatch import Dispatch, Result
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.verify import verify
from gdlab.session import SessionConfig
from gdlab.session.builders import compiled


def columns_of(d: Dispatch) -> list[tuple[int, int, int]]:
    return [(r.columns.start, r.columns.stop, r.columns.width) for r in d.results if r.columns is not None]


# plans ----------------------------------------------------------------------------------------------------------------
@forms
def test_one_dispatch_writes_a_buffer_for_each(heads: Heads) -> None:
    plan = plan_of(layer(heads), "training")
    (d,) = (d for d in plan.dispatches if d.in_columns)
    assert d.kernel == "matmul" and d.phase == "forward" and d.in_columns
    a, b, n = heads.wide, heads.wide + heads.narrow, heads.wide + 2 * heads.narrow
    assert d.label == f"MatMul{'BT' * heads.turned}[{ROWS}x{n}x{K}]"
    assert columns_of(d) == [(0, a, n), (a, b, n), (b, n, n)]
    assert [plan.buffers[o].name for o in d.outputs] == ["qq", "kk", "vv"] and d.writes == d.outputs
    assert [plan.buffers[o].shape for o in d.outputs] == [(ROWS, w) for w in heads.widths.values()]
    assert d.bytes_written == 4 * ROWS * n and d.type.shape == (ROWS, heads.wide)
    assert not any(e.kernel == "movement" for e in plan.dispatches)
    product = next(n for n in plan.graph if n.op.startswith("matmul") and n.type.shape == (ROWS, n_of(plan)))
    assert product.id in d.origin and {r.node for r in d.results} <= set(d.origin)
    assert plan.fused_nodes[product.id][1] == f"fused, in dispatch {d.index}"
    assert codec.from_json(codec.to_json(plan)) == plan
    apart = compiled(layer(heads), SessionConfig(), plan.target).plan
    phases = [sum(e.phase == phase for e in p.dispatches) for p in (apart, plan) for phase in ("forward", "backward")]
    assert phases[0] - phases[2] == 2 and phases[1] - phases[3] == 3


def n_of(plan: ExecutionPlan) -> int:
    return plan.derived_params[0].shape[plan.derived_params[0].axis]


def test_ranges_live_and_die_alone() -> None:
    """No buffer of the whole product; each range is placed by its own life."""
    plan = plan_of(layer())
    (d,) = (d for d in plan.dispatches if d.in_columns)
    lives = [plan.memory.intervals[b] for b in d.outputs]
    assert {i.first for i in lives} == {d.index}
    assert not any(b.shape == (ROWS, 32) for b in plan.buffers)


def test_a_product_that_something_else_reads_is_cut_by_copies() -> None:
    def make(read: Callable[[Value], list[Value]]) -> list[str]:
        def build() -> list[Value]:
            y = ops.input("x", (4, 3)) @ packed([p("a", 3, 4), p("b", 3, 4)], 1)
            return [columns(y, 0, 4).exp(), columns(y, 4, 8).tanh(), *read(y)]

        graph = graph_of(build)
        plan = compile(graph, mode="inference", target=device_of("cpu").target)
        feeds = feeds_of(graph)
        program = device_of("cpu").load(plan)
        program.upload(plan.input_buffers[0][1], feeds["x"])
        program.upload(plan.derived_params and dict(plan.stored_params)["a+b"], np.hstack([feeds["a"], feeds["b"]]))
        program.poison()
        program.step(None)
        want = evaluate(graph, feeds)
        for got, id in zip(plan.output_buffers, graph.output_ids, strict=True):
            np.testing.assert_allclose(program.download(got), want[id].reshape(program.download(got).shape), rtol=1e-5)
        return [re.sub(r"\[\w+\]", "", d.label) for d in plan.dispatches]

    assert make(lambda y: []) == ["MatMul", "Pointwise(exp)", "Pointwise(tanh)"]
    assert make(lambda y: [y]) == ["MatMul", "Columns + exp", "Columns + tanh"]
    assert make(lambda y: [y.relu()]) == ["MatMul", "Columns + exp", "Columns + tanh", "Pointwise(relu)"]
    assert make(lambda y: [columns(y, 1, 3)]) == ["MatMul", "Pointwise(exp)", "Pointwise(tanh)"]  # they meet


def test_without_fusion_the_ranges_are_copies_and_the_values_the_same() -> None:
    graph, found = layer(), []
    for options in (CompileOptions(), CompileOptions(fuse_dispatches=False), CompileOptions(alias=False)):
        plan = plan_of(graph, target=device_of("cpu").target, compile=options)
        assert any(d.in_columns for d in plan.dispatches) is options.fuse_dispatches
        found.append(ran(plan, feeds_of(graph)))
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_an_output_can_be_a_range_and_a_range_can_be_unread() -> None:
    def make() -> list[Value]:
        y = ops.input("x", (4, 3)) @ packed([p("a", 3, 4), p("b", 3, 3), p("c", 3, 2)], 1)
        columns(y, 4, 7)
        return [columns(y, 0, 4), columns(y, 7, 9).relu()]

    graph = graph_of(make)
    plan = compile(graph, mode="inference", target=device_of("cpu").target)
    d, _ = plan.dispatches
    assert columns_of(d) == [(0, 4, 9), (7, 9, 9)]
    assert plan.buffers[d.output].kind == "output"
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds)
    for got, id in zip(ran(plan, feeds), graph.output_ids, strict=True):
        np.testing.assert_allclose(got, want[id], rtol=1e-5)


def edited(plan: ExecutionPlan, index: int, **fields: Any) -> ExecutionPlan:
    dispatches = list(plan.dispatches)
    dispatches[index] = replace(dispatches[index], **fields)
    return replace(plan, dispatches=tuple(dispatches))


def test_a_plan_with_wrong_ranges_is_refused() -> None:
    plan = plan_of(layer())
    (d,) = (d for d in plan.dispatches if d.in_columns)
    first, *rest = d.results
    assert first.columns is not None

    def moved(r: Result, **fields: int) -> Result:
        assert r.columns is not None
        return replace(r, columns=replace(r.columns, **fields))

    faults: list[tuple[tuple[Result, ...], str]] = [
        ((), "results: given none"),
        ((first, first, rest[1]), "outputs: given"),
        (tuple(replace(r, columns=None) for r in d.results), "outputs: given 3, wanted 1"),
        ((moved(first, start=8, stop=24), *rest[::-1]), ""),
        ((moved(first, stop=20), *rest), "columns: given 0 … 19, wanted 16"),
        ((moved(first, start=20, stop=36), *rest), "columns: given 20 … 35"),
        ((first, moved(rest[0], width=40), rest[1]), "columns: given of 40, wanted of 32"),
        (tuple(moved(r, width=40) for r in d.results), "elements: given 160, wanted 200"),
        ((replace(first, type=rest[0].type), *rest), "output: given"),
    ]
    for results, message in faults:
        if message:
            with pytest.raises(CompileError, match=re.escape(message)):
                verify(edited(plan, d.index, results=results))
        else:
            verify(edited(plan, d.index, results=results))  # other columns, but all inside


# kernels --------------------------------------------------------------------------------------------------------------
TILINGS = [None, (32, 32, 16, 4, 4, 1, 1), (32, 32, 16, 4, 4, 2, 1), (64, 64, 16, 8, 8, 1, 3)]


@pytest.mark.parametrize("widths", also([(32, 32, 64), (5, 3, 2), (1, 1, 1)], (4, 8, 4)), ids=str)
@pytest.mark.parametrize("kind", ["software", "hardware"])
def test_every_schedule_stores_every_range(
    widths: tuple[int, ...], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and widths that end inside a tile, K in parts that a second dispatch adds up."""
    needs("wgpu")
    target = replace(device_of("wgpu").target, adapter_class=kind)
    plain = spread.matmul
    for (m, k), tiling in itertools.product([(5, 7), (36, 64)], TILINGS if kind == "hardware" else [None]):
        if tiling is not None:
            forced = lambda p, t, *_, tiling=tiling: spread.shared_tiles(p, tiling, t.limits)  # noqa: E731
            monkeypatch.setattr(spread, "matmul", forced)
        else:
            monkeypatch.setattr(spread, "matmul", plain)
        graph = products(m, k, *widths)
        plan = plan_of(graph, target=target)
        split = tiling is not None and tiling[-1] > 1
        assert [d.kernel for d in plan.dispatches] == ["matmul"] + ["reduce"] * split
        assert len(plan.dispatches[-1].outputs) == len(widths)
        feeds = feeds_of(graph)
        want = evaluate(graph, feeds)
        scale = magnitudes(graph, want)
        for got, id in zip(ran(plan, feeds, "wgpu"), graph.output_ids, strict=True):
            assert compare(got.reshape(want[id].shape), want[id], scale[id], 2e-4) is None, plan.dispatches[0].variant


def test_the_cpu_runs_a_plan_for_hardware() -> None:
    graph = products(64, 1024, 1024, 1024, 1024)
    (split,) = {len(plan_of(graph).dispatches)}
    plan = plan_of(graph, target=Target("cpu", "hardware", Target.portable().limits))
    assert split == 2 and len(plan.dispatches[-1].outputs) == 3
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds)
    for got, id in zip(ran(plan, feeds), graph.output_ids, strict=True):
        np.testing.assert_allclose(got, want[id], rtol=1e-3, atol=1e-3)


@both
def test_the_text_tells_whose_line_it_is(heads: Heads) -> None:
    plan = plan_of(layer(heads))
    (d,) = (d for d in plan.dispatches if d.in_columns)
    text, lines = plan.wgsl(d.index)
    of_line = dict(lines)
    for name, r in zip(("out[", "out1[", "out2["), d.results, strict=True):
        stored = [n for n, line in enumerate(text.split("\n"), 1) if f"{name}" in line and "stored" in line]
        assert [of_line[n] for n in stored] == [(r.node,)]
    declared = re.findall(r"@binding\((\d)\) var<storage, (\w+)> (\w+): array<(.+)>;", text)
    kind = "vec4<f32>" if heads.wide % 4 == 0 else "f32"
    assert [(mode, name, element) for _, mode, name, element in declared[2:]] == [
        ("read_write", name, kind) for name in ("out", "out1", "out2")
    ]
    assert len({plan.dispatches[d.index].source_hash, plan_of(layer(FOURS_T)).dispatches[1].source_hash}) == 2


def test_other_widths_are_other_kernels() -> None:
    """Two products of one size, cut at different places, share no pipeline."""

    def made(*widths: int) -> Dispatch:
        return plan_of(products(4, 4, *widths)).dispatches[0]

    assert made(4, 8).label == made(8, 4).label and made(4, 8).source_hash != made(8, 4).source_hash
    assert made(4, 8).source_hash == made(4, 8).source_hash


@pytest.mark.parametrize("training", [True, False])
def test_the_transformer_of_the_benchmarks_has_one_product_per_layer(training: bool) -> None:
    graph, mode = CASES["xf"].graph(training), "training" if training else "inference"
    plan, plain = plan_of(graph, mode), compiled(graph, SessionConfig(mode=mode), Target.portable()).plan  # type: ignore[arg-type]
    wide = [d for d in plan.dispatches if d.in_columns]
    assert [(d.label, len(d.outputs)) for d in wide] == [("MatMul(rms_norm)[64x768x256]", 3)] * 4
    assert not any(d.kernel == "movement" for d in plan.dispatches)
    saved = [sum(d.phase == p for d in plain.dispatches) - sum(d.phase == p for d in plan.dispatches)
             for p in ("forward", "backward")]  # fmt: skip
    assert saved == [8, 12 * training]


def test_a_language_model_reads_its_prompt_with_fewer_launches() -> None:
    config = TransformerLmConfig(16, 8, 2, 2, 1, 16)
    for mode, saved in (("training", 10), ("prefill", 4), ("decode", 4)):
        graph = transformer_lm(config, 8, mode)  # type: ignore[arg-type]
        how: Any = "training" if mode == "training" else "inference"
        plain = compiled(graph, SessionConfig(mode=how), Target.portable()).plan
        assert len(plain.dispatches) - len(plan_of(graph, how).dispatches) == saved, mode
