"""Several results of one dispatch: attention that stores the logarithms of its sums for the derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from plans import feeds_of, load

from benchmarks.peer_models import CASES
from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError
from gdlab.devices.choose import device as device_of
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.dispatch import Dispatch, Result
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.verify import verify
from gdlab.session import SessionConfig, build, by_buffer

ROWS, HEADS = 9, (4, 2, 8)
attention_lse = REGISTRY["attention_lse"]
SEPARATE = CompileOptions(fuse_dispatches=False)
Attention = Callable[[Value, Value, Value], Value]

FORMS: dict[str, Attention] = {
    "causal": lambda q, k, v: ops.causal_attention(q, k, v, *HEADS),
    "full": lambda q, k, v: ops.full_attention(q, k, v, *HEADS),
    "window": lambda q, k, v: ops.sliding_window_attention(q, k, v, *HEADS, 3),
}


def training(attention: Attention = FORMS["causal"], rows: int = ROWS) -> Graph:
    """One layer of attention with a residual in its epilogue, and its derivative."""
    with Graph() as g:
        x = ops.input("x", (rows, 32))
        q, k, v = (x @ ops.parameter(name, (32, width)) for name, width in (("q", 32), ("k", 16), ("v", 16)))
        g.set_outputs([(attention(q, k, v) + x).square().mean_all()])
    return differentiate(g)[0]


def plan_of(graph: Graph, target: Target | None = None, options: CompileOptions | None = None) -> ExecutionPlan:
    target = target or Target.portable()
    return compile(graph, mode="training", target=target, options=options or CompileOptions())


def several(plan: ExecutionPlan) -> Dispatch:
    (d,) = (d for d in plan.dispatches if len(d.results) > 1 and d.phase == "forward")
    return d


@pytest.mark.parametrize("form", FORMS)
def test_attention_stores_its_logarithms_in_the_same_dispatch(form: str) -> None:
    plan, apart = (plan_of(training(FORMS[form]), options=o) for o in (None, SEPARATE))
    d = several(plan)
    assert d.custom is not None and d.custom.results == ("logarithm",) and d.phase == "forward"
    kept = plan.graph.nodes[d.results[1].node]
    assert kept.op == "attention_lse" and kept.id in d.origin and d.results[1].type.shape == (ROWS, 4)
    assert plan.lse_buffers[0][1] == d.results[1].buffer == plan.node_buffers[kept.id]
    assert d.writes == d.outputs and d.bytes_written == 4 * ROWS * (32 + 4)
    assert not any(e.label.startswith("AttentionLse") for e in plan.dispatches)
    assert any(e.label.startswith("AttentionLse") for e in apart.dispatches)
    assert all(len(e.results) == 1 for e in apart.dispatches)


def test_attention_without_a_derivative_stores_none() -> None:
    with Graph() as g:
        g.set_outputs([FORMS["causal"](*(ops.input(n, (ROWS, w)) for n, w in (("q", 32), ("k", 16), ("v", 16))))])
    (d,) = compile(g, mode="inference").dispatches
    assert len(d.results) == 1 and d.custom is not None and d.custom.results == ()


def test_logarithms_of_other_attention_stay_apart() -> None:
    """Of other keys, another window, or asked for before the attention itself can be computed."""
    with Graph() as g:
        q, k, other = (ops.input(n, (ROWS, w)) for n, w in (("q", 32), ("k", 16), ("other", 16)))
        out = FORMS["causal"](q, k, k)
        lse = [attention_lse(q, of, *HEADS, causal, window) for of, causal, window in
               ((other, True, 0), (k, False, 0), (k, True, 3))]  # fmt: skip
        g.set_outputs([out, *lse])
    assert all(len(d.results) == 1 for d in compile(g, mode="inference").dispatches)
    with Graph() as g:
        q, k = ops.input("q", (ROWS, 32)), ops.input("k", (ROWS, 16))
        lse = attention_lse(q, k, *HEADS, True, 0)
        v = (lse @ ops.parameter("w", (4, 16))).named("v")  # values made of the logarithms
        g.set_outputs([FORMS["causal"](q, k, v)])
    assert all(len(d.results) == 1 for d in compile(g, mode="inference").dispatches)


def test_a_binding_too_many_keeps_them_apart() -> None:
    with Graph() as g:
        q, k, v = (ops.input(n, (ROWS, w)) for n, w in (("q", 32), ("k", 16), ("v", 16)))
        g.set_outputs([FORMS["causal"](q, k, v).relu(), attention_lse(q, k, *HEADS, True, 0)])
    for buffers, dispatches in ((5, 1), (4, 2)):
        target = Target("wgpu", "software", replace(Limits(), storage_buffers=buffers))
        plan = compile(g, mode="inference", target=target)
        assert len(plan.dispatches) == dispatches and plan.dispatches[0].epilogue
        assert max(len(d.bindings) for d in plan.dispatches) <= buffers


@pytest.mark.parametrize("form", FORMS)
def test_both_results_are_right(form: str, device: str) -> None:
    graph = training(FORMS[form], 70)
    feeds = feeds_of(graph)
    feeds = {name: data * 0.3 for name, data in feeds.items()}
    want = evaluate(graph, feeds)
    plan = plan_of(graph, device_of(device).target)
    program = load(device_of(device), plan, feeds)
    program.step(None)
    d = several(plan)
    for r in d.results[1:]:
        np.testing.assert_allclose(program.download(r.buffer), want[r.node], rtol=2e-4, atol=2e-5)
    for (_, gradient), id in zip(plan.param_grad_pairs, graph.output_ids[1:], strict=True):
        np.testing.assert_allclose(program.download(gradient), want[id], rtol=2e-3, atol=2e-5)


NORMS: dict[str, Callable[[Value], Value]] = {
    "rms": lambda x: ops.rms_norm(x, ops.parameter("w", x.shape[-1:]), 1e-5),
    "layer": lambda x: ops.layer_norm(x, *(ops.parameter(name, x.shape[-1:]) for name in "wb"), 1e-5),
}
STORED = {"rms": ("size",), "layer": ("mean", "size")}


def normalized(norm: str, rows: int = ROWS, width: int = 32) -> Graph:
    """A norm of a product, and its derivative."""
    with Graph() as g:
        x = ops.input("x", (rows, 8)) @ ops.parameter("a", (8, width))
        g.set_outputs([(NORMS[norm](x) * ops.input("t", (rows, width))).square().mean_all()])
    return differentiate(g)[0]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_store_their_statistics_in_the_same_dispatch(norm: str) -> None:
    plan, apart = (plan_of(normalized(norm), options=o) for o in (None, SEPARATE))
    d = several(plan)
    assert d.custom is not None and d.custom.results == STORED[norm] and d.phase == "forward"
    assert all(r.type.shape == (ROWS, 1) for r in d.results[1:])
    separate = ("MeanInner", "RmsSize", "LayerSize")
    assert not any(e.label.startswith(separate) for e in plan.dispatches)
    assert sum(e.label.startswith(separate) for e in apart.dispatches) == len(STORED[norm])
    assert all(len(e.results) == 1 for e in apart.dispatches)
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("width", [32, 33, 1, 3000])
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_from_stored_statistics_are_right(norm: str, width: int, device: str) -> None:
    graph = normalized(norm, 70, width)
    feeds, target = feeds_of(graph), device_of(device).target
    want = evaluate(graph, feeds)
    plan = plan_of(graph, target)
    program = load(device_of(device), plan, feeds)
    program.step(None)
    assert len(several(plan).results) > 1
    for (_, gradient), id in zip(plan.param_grad_pairs, graph.output_ids[1:], strict=True):
        np.testing.assert_allclose(program.download(gradient), want[id], rtol=2e-3, atol=2e-5)


def test_a_mean_that_others_ask_for_is_the_norms_own() -> None:
    """A person's `mean_inner` of the same x; and not one of something else."""
    with Graph() as g:
        x, other = ops.input("x", (ROWS, 32)), ops.input("other", (ROWS, 32))
        g.set_outputs([NORMS["layer"](x), x.mean_inner(), other.mean_inner()])
    plan = compile(g, mode="inference")
    d = several(plan)
    assert d.custom is not None and d.custom.results == ("mean",) and len(plan.dispatches) == 2
    assert d.results[1].node == g.output_ids[1]


def test_text_and_lines_say_what_is_stored() -> None:
    plan = plan_of(training())
    d = several(plan)
    text, lines = plan.wgsl(d.index)
    numbered, of_line = text.split("\n"), dict(lines)
    stored = [n for n, line in enumerate(numbered, 1) if "out1[i] = value" in line]
    assert [of_line[n] for n in stored] and all(d.results[1].node in of_line[n] for n in stored)
    alone = next(e for e in plan_of(training(), options=SEPARATE).dispatches if e.label.startswith("CausalAtt"))
    assert alone.source_hash != d.source_hash


def test_a_plan_with_wrong_results_is_refused() -> None:
    plan = plan_of(training())
    d = several(plan)
    first, second = d.results
    faults: list[tuple[tuple[Result, ...], str]] = [
        ((), "results: given none"),
        ((first,), "outputs: given 1, wanted 2"),
        ((first, second, replace(second, buffer=first.buffer)), "output"),
        ((first, replace(first)), "outputs: given"),
        ((first, replace(second, type=first.type)), "output: given f32[9, 32]"),
    ]
    for results, message in faults:
        dispatches = tuple(replace(e, results=results) if e.index == d.index else e for e in plan.dispatches)
        with pytest.raises(CompileError, match=message.replace("[", r"\[")):
            verify(replace(plan, dispatches=dispatches))


@pytest.mark.parametrize("case", ["mlp", "xf"])
@pytest.mark.parametrize("train", [True, False])
def test_plans_round_trip(case: str, train: bool) -> None:
    made = build(CASES[case].graph(train), SessionConfig("training" if train else "inference", "cpu"))[0]
    with made as session:
        plan = session.plan()
        assert from_json(to_json(plan)) == plan and any(len(d.results) > 1 for d in plan.dispatches) == (
            case == "xf" and train
        )


def test_a_nan_in_the_second_result_is_found(device: str) -> None:
    graph = training()
    session, _ = build(graph, SessionConfig("training", device))
    with session:
        for name, data in feeds_of(graph).items():
            (session.set_input if session.has_input(name) else session.set_parameter)(name, data)
        rows = dict(session.inspection.each_dispatch(lambda d, results: (d.index, results)))
        d = several(session.plan())
        assert [r.shape for r in rows[d.index]] == [(ROWS, 32), (ROWS, 4)]
        assert dict(by_buffer(d, rows[d.index])).keys() == set(d.outputs)
        assert session.search.written_bad(d) is None
        logarithms = rows[d.index][1].copy()
        logarithms[2, 1] = np.nan
        session.loaded.exclusively(lambda: session.loaded.program.upload(d.outputs[1], logarithms))
        culprit = session.search.written_bad(d)
        assert culprit is not None and (culprit.dispatch, culprit.first) == (d.index, 9)
