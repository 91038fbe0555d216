"""Weights that lie packed in one: the rules that pack them, what they refuse and why, their gradients and plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gated import SWIGLU, Form, K, N, both, ffn, forms
from optimizing import check_laws, count, graph_of, p, transformer
from plans import feeds_of

from gdlab import nn, ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ShapeError
from gdlab.graph import Graph, Value
from gdlab.op import text
from gdlab.op.reference import evaluate
from gdlab.op.storage import DerivedParam, SourceRange, derived_parameters, stored_in, stored_parameters
from gdlab.ops.packed import packed
from gdlab.plan import codec, compile
from gdlab.plan.target import Target
from gdlab.rewrite import RULES, optimize
from gdlab.rewrite.rules.packing import PACKING
from gdlab.session import SessionConfig, build, compile_training_graph
from gdlab.session.builders import compiled


# the rules ------------------------------------------------------------------------------------------------------------
@forms
@pytest.mark.parametrize("engine", ["egglog", "fallback"])
def test_two_products_become_one_by_either_engine(form: Form, engine: Any) -> None:
    graph = ffn(form)
    result, report = optimize(graph, phase="forward", engine=engine)
    assert dict(report.rules_fired)[RULES[form.rule].label] == 1
    assert (count(result, "packed"), count(result, "swiglu") + count(result, "geglu")) == (1, 0)
    products = [n.type.shape for n in result if n.op == form.product.__name__]
    assert products == [(4, 2 * N)]  # the other one, `down`, is fused with its bias
    shape = (K, 2 * N) if form.axis else (2 * N, K)
    wanted = DerivedParam("gate+up", (("gate", N), ("up", N)), form.axis, shape, "concat")
    assert derived_parameters(result) == (wanted,)
    assert next(n.name for n in result if n.op == "packed") == "gate+up"
    assert stored_in(result) == {"gate": "gate+up", "up": "gate+up"} and derived_parameters(graph) == ()
    assert [n.name for n in result.parameters] == ["gate", "up", "down", "bias"]
    check_laws(graph, result, report, feeds_of(graph))


@forms
def test_packing_again_gains_nothing(form: Form) -> None:
    once, first = optimize(ffn(form), phase="forward")
    twice, second = optimize(once, phase="forward")
    assert second.rules_fired == () and second.cost_after == first.cost_after
    assert twice.fingerprint() == once.fingerprint() and derived_parameters(twice) == derived_parameters(once)


def test_the_written_out_gate_is_packed_and_the_gate_comes_first() -> None:
    def make() -> Value:
        h, up, gate = ops.input("x", (4, K)), p("up", K, N), p("gate", K, N)
        z = h @ gate
        return (h @ up) * (ops.sigmoid(z) * z)

    (derived,) = derived_parameters(optimize(graph_of(make), phase="forward")[0])
    assert derived.name == "gate+up" and derived.part("up", 9) == (9, 1, N, 2 * N)


def test_the_layer_of_nn_is_packed() -> None:
    def make() -> Value:
        return nn.SwiGluFfn("mlp", 6, 8)(ops.input("x", (2, 6)))

    (derived,) = derived_parameters(optimize(graph_of(make), phase="inference")[0])
    assert derived.sources == (("mlp.gate_proj.weight", 8), ("mlp.up_proj.weight", 8))
    assert derived.name == "mlp.gate_proj.weight+mlp.up_proj.weight"


def refused(make: Callable[[Value, Value, Value], Any], phase: Any = "forward", graph: Graph | None = None) -> Any:
    """(reason, detail) of the packing rule that nearly matched; nothing is packed."""
    if graph is None:
        graph = graph_of(lambda: make(ops.input("x", (4, K)), p("gate", K, N), p("up", K, N)))
    result, report = optimize(graph, phase=phase)
    assert count(result, "packed") == 0
    found = [(m.reason, m.detail) for m in report.missed if m.label == RULES["pack_swiglu"].label]
    assert len(found) == 1
    return found[0]


def test_a_refusal_says_why_in_words() -> None:
    of = SWIGLU.of
    assert refused(lambda h, g, u: of(h, g, u) + ops.mean_all(u)) == ("weight_shared", "up, %2, is used 2 times")
    assert refused(lambda h, g, u: [of(h, g, u), ops.exp(h @ g)])[0] == "multi_use"  # the product itself is needed
    assert refused(lambda h, g, u: of(h, g, ops.exp(u))) == ("weight_not_parameter", "up is a exp")
    assert refused(lambda h, g, u: of(h, h.T @ h @ g, u)) == ("weight_not_parameter", "gate is a matmul")
    assert refused(lambda h, g, u: [of(h, g, u), g]) == ("is_output", "gate, %1, is an output")
    assert refused(lambda h, g, u: of(h, g, g)) == ("weight_shared", "gate and up are both %1")


def test_a_product_that_something_else_reads_is_not_made_twice() -> None:
    def make() -> list[Value]:
        x, gate, up = ops.input("x", (4, K)), p("gate", K, N), p("up", K, N)
        return [SWIGLU.of(x, gate, up), ops.exp(x @ gate)]

    result, _ = optimize(graph_of(make), phase="forward")
    assert count(result, "matmul") == 2 and derived_parameters(result) == ()


def test_weights_with_gradients_of_their_own_stay_apart() -> None:
    """Packed, they would leave a gradient too many."""
    full, _ = differentiate(optimize(ffn(), phase="forward", disable=PACKING)[0])
    reason, detail = refused(lambda *_: None, "full", full)
    assert reason == "weight_shared" and "is used 2 times" in detail
    compile(optimize(full, phase="full")[0], mode="training")


# graphs ---------------------------------------------------------------------------------------------------------------
def test_what_counts_as_storage() -> None:
    def derived(make: Callable[[Value, Value], Any]) -> list[str]:
        return [d.name for d in derived_parameters(graph_of(lambda: make(p("a", K, N), p("b", K, N))))]

    assert derived(lambda a, b: packed([a, b], 1)) == ["a+b"]
    assert derived(lambda a, b: packed([b, a], 0)) == ["b+a"]
    assert derived(lambda a, b: [packed([a, b], 1), a.exp()]) == []
    assert derived(lambda a, b: [packed([a, b], 1), b]) == []
    assert derived(lambda a, b: packed([a, a], 1)) == []
    assert derived(lambda a, b: packed([a, b.exp()], 1)) == []
    assert derived(lambda a, b: packed([a], 1)) == []
    assert derived(lambda a, b: [packed([a, b], 1), p("a+b", 2).exp()]) == ["a+b+"]
    with pytest.raises(ShapeError, match="packed: operands: given f32.3, 5. and f32.3., wanted f32 matrices"):
        graph_of(lambda: packed([p("a", K, N), p("c", K)], 0))


def test_text_and_copies_keep_it() -> None:
    result, _ = optimize(ffn(), phase="forward")
    read = text.parse(result.text())
    assert derived_parameters(read) == derived_parameters(result.copy()) == derived_parameters(result)
    assert read.fingerprint() == result.fingerprint()


@forms
def test_the_whole_has_one_gradient_in_place_of_its_sources(form: Form) -> None:
    graph = ffn(form)
    result, _ = optimize(graph, phase="forward")
    full, report = differentiate(result)
    assert [name for _, name in stored_parameters(full)] == [full.node(i).name for i in report.wrt]
    assert sorted(full.node(i).name for i in report.wrt) == ["bias", "down", "gate+up"]
    assert full.num_param_grad_outputs == 3 and derived_parameters(full) == derived_parameters(result)
    feeds = feeds_of(graph)
    plain, _ = differentiate(graph)
    want, got = evaluate(plain, feeds), evaluate(full, feeds)
    gradient = dict(zip([n.name for n in plain.parameters], plain.output_ids[2:], strict=True))
    mine = {full.node(i).name: got[o] for i, o in zip(report.wrt, full.output_ids[2:], strict=True)}
    together = np.concatenate([want[gradient["gate"]], want[gradient["up"]]], form.axis)
    np.testing.assert_allclose(mine["gate+up"], together, rtol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_gradients_of_many_layers_keep_their_places(layers: int) -> None:
    """By name, through both optimizations: nothing but the order says which gradient is whose."""
    graph = transformer(layers)
    packed_plan, plain_plan = (
        compiled(graph, SessionConfig(optimize={"disable": off}), Target.portable()).plan for off in ((), PACKING)
    )
    assert len(packed_plan.derived_params) == layers and plain_plan.derived_params == ()
    feeds = feeds_of(graph)
    found: list[dict[str, np.ndarray]] = []
    for plan in (packed_plan, plain_plan):
        values, by_name = evaluate(plan.graph, feeds), {}
        gradients = plan.graph.output_ids[plan.graph.num_user_outputs :]
        for (_, name), id in zip(stored_parameters(plan.graph), gradients, strict=True):
            by_name[name] = values[id]
        for d in plan.derived_params:
            whole = by_name.pop(d.name)
            by_name |= {n: whole[:, d.part(n, 0).start : d.part(n, 0).stop] for n, _ in d.sources}
        found.append(by_name)
    assert found[0].keys() == found[1].keys() == {n.name for n in graph.parameters}
    for name, want in found[1].items():
        np.testing.assert_allclose(found[0][name], want, rtol=1e-5, atol=1e-9, err_msg=name)


def test_a_gradient_can_still_be_asked_of_a_source() -> None:
    graph = ffn()
    result, _ = optimize(graph, phase="forward")
    up = next(n.id for n in result.parameters if n.name == "up")
    full, _ = differentiate(result, wrt=result.value(up))
    plain, _ = differentiate(graph, wrt=graph.value(graph.parameters[1].id))
    feeds = feeds_of(graph)
    want, got = evaluate(plain, feeds)[plain.output_ids[-1]], evaluate(full, feeds)[full.output_ids[-1]]
    np.testing.assert_allclose(got, want, rtol=1e-12)


# plans ----------------------------------------------------------------------------------------------------------------
@both
def test_the_sources_are_ranges_of_one_buffer(form: Form) -> None:
    plan = compile_training_graph(ffn(form))
    names, places = zip(*plan.param_buffers, strict=True)
    assert names == ("gate", "up", "down", "bias")
    gate, up, down, bias = places
    ref, axis, start, stop = gate
    assert (axis, start, stop) == (form.axis, 0, N) and up == SourceRange(ref, form.axis, N, 2 * N)
    assert plan.buffers[ref].kind == "derived" and plan.buffers[ref].name == "gate+up"
    assert [b.name for b in plan.buffers if b.kind in ("parameter", "derived")] == ["down", "gate+up", "bias"]
    assert plan.param_types["up"].shape == form.weight and [d.name for d in plan.derived_params] == ["gate+up"]
    pairs = {plan.buffers[p].name: plan.buffers[g] for p, g in plan.param_grad_pairs}
    assert {n: g.nbytes for n, g in pairs.items()} == {"down": 4 * N * 2, "bias": 8, "gate+up": 4 * K * 2 * N}
    assert pairs["gate+up"].name == "∂gate+up"
    assert dict(plan.memory.pinned)[ref] == "kept from step to step"
    reasons = {plan.graph.node(n).name: why for n, (_, why) in plan.fused_nodes.items()}
    assert reasons["gate"] == reasons["up"] == "aliased: a range of gate+up"
    assert codec.from_json(codec.to_json(plan)) == plan
    apart = compiled(ffn(form), SessionConfig(optimize={"disable": PACKING}), plan.target).plan
    assert len(plan.dispatches) < len(apart.dispatches)


def test_what_is_not_storage_is_a_copy(device: str) -> None:
    """Weights that something else reads too, packed by hand: they keep their buffers, and the pack is computed."""
    with Graph() as g:
        x, a, b = ops.input("x", (4, K)), p("a", K, N), p("b", K, N)
        g.set_outputs([ops.mean_all(ops.swiglu_concat(x @ packed([a, b], 1))), ops.mean_all(a)])
    session, _ = build(g, SessionConfig(device=device, optimize=None))
    assert session.plan().derived_params == () and len(session.plan().param_grad_pairs) == 2
    session.initialize(1)
    session.set_input("x", np.ones((4, K)))
    session.step()
    feeds = {n: session.read_param(n) for n in "ab"} | {"x": np.ones((4, K))}
    full, _ = differentiate(g)
    want = evaluate(full, feeds)
    assert session.read_loss() == pytest.approx(float(want[full.output_ids[0]][0]), rel=1e-5)
    for name, id in zip("ab", full.output_ids[2:], strict=True):
        np.testing.assert_allclose(session.read_param_grad(name), want[id], rtol=1e-4, atol=1e-7)


def test_compiling_for_another_target_packs_the_same() -> None:
    plan = compile_training_graph(ffn(), Target.portable())
    assert [d.label for d in plan.dispatches][:2] == ["MatMul[4x10x3]", "SwiGLUConcat[4x5]"]
