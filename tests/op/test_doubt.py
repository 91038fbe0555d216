"""The benefit of the doubt: given at jumps within rounding, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import numpy as np
import op_checks
import pytest

import gdlab.study.parity as parity
from gdlab import ops
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Op, Sample, Shader
from gdlab.op.doubt import Doubts, doubts
from gdlab.op.reference import compare, evaluate, magnitudes, tolerance
from gdlab.plan.dispatch import Dispatch
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.making import check_answer

RTOL = 1e-5


def rounded(x: Value) -> Value:
    """x as a sum with rounding in it: x + 0.5 − 0.5."""
    column = x.reshape((x.type.num_elements, 1))
    halves = [ops.full(column.shape, half) for half in (0.5, -0.5)]
    return ops.sum_inner(ops.concat([column, *halves], axis=1)).reshape(x.shape)


def judged(op: Op, sample: Sample) -> tuple[Graph, Value, list[Value], dict[int, Array]]:
    """One op on operands that were computed (of rotations the first: angles are exact), and the values of all nodes."""
    feeds = dict(zip(op.operand_names(len(sample.shapes)), sample.arrays(seed=1), strict=True))
    rotates = isinstance(op.kernel, Shader) and op.kernel.bound is not None
    with Graph() as g:
        leaves = []
        for name, array in feeds.items():
            if array.dtype == u32.numpy:
                leaves.append(ops.input_u32(name, array.shape))
            else:
                leaf = ops.input(name, array.shape)
                leaves.append(leaf if rotates and leaves else rounded(leaf))
        out = op(*((leaves,) if op.variadic else leaves), **sample.attrs)
    return g, out, leaves, evaluate(g, feeds)


def moved(arrays: list[Array], scales: list[Array], rng: np.random.Generator) -> list[Array]:
    """Operands, each element off by less than its tolerance; equal elements are equally far off."""
    _, which = np.unique(np.concatenate([np.ravel(a) for a in arrays]), return_inverse=True)
    shares = np.split(rng.uniform(-0.9, 0.9, which.size)[which], np.cumsum([a.size for a in arrays])[:-1])
    found = []
    for x, m, share in zip(arrays, scales, shares, strict=True):
        step = np.where(np.isfinite(x), RTOL * share.reshape(x.shape) * m, 0.0)
        found.append(x if x.dtype == u32.numpy else x + step)
    return found


def in_doubt(x: Array) -> bool:
    """Whether elements are equal, or whole numbers, or known to less than one: there every decision is in doubt."""
    return bool(np.unique(x).size < x.size or np.any(x == np.rint(x)) or np.any(np.abs(x) > 1e3))


def meets_a_pole(op: Op, sample: Sample) -> bool:
    """Whether something in the body of a fused op is infinite or NaN."""
    arrays = sample.arrays(seed=1)
    if op.body is None:
        return False
    types = tuple(TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in arrays)
    values = list(arrays)
    for node in op.trace(types, tuple(sorted(sample.attrs.items()))).nodes[len(arrays) :]:
        values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs)))
    return not all(np.isfinite(v).all() for v in values)


# every op -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "sample"), op_checks.sample_cases())
def test_operands_off_by_rounding_are_within_the_doubt(op: Op, sample: Sample) -> None:
    """Only where the reference has a number: a pole within rounding is no jump."""
    if not sample.shapes or meets_a_pole(op, sample):
        return
    g, out, leaves, values = judged(op, sample)
    m = magnitudes(g, values)
    amount = doubts(g, values, m, RTOL).amount[out.id]
    rng, want = np.random.default_rng(3), values[out.id]
    exact = {x.id for x in leaves if g.nodes[x.id].op == "input"}
    for _ in range(3):
        scales = [m[x.id] * (x.id not in exact) for x in leaves]
        got = op.reference(moved([values[x.id] for x in leaves], scales, rng), dict(g.nodes[out.id].attrs))
        got = np.where(np.isfinite(got) & np.isfinite(want), got, want)
        assert compare(got, want, m[out.id], 8 * RTOL, doubt=amount) is None


@pytest.mark.parametrize(("op", "sample"), op_checks.sample_cases())
def test_a_fault_at_an_ordinary_element_is_found(op: Op, sample: Sample) -> None:
    if not sample.shapes or sample.kink:
        return
    g, out, leaves, values = judged(op, sample)
    if out.type.dtype is u32 and any(in_doubt(values[x.id]) for x in leaves):
        return
    m, want = magnitudes(g, values), values[out.id]
    amount = doubts(g, values, m, RTOL).amount[out.id]
    fault = 1.0 if out.type.dtype is u32 else 0.01 * float(np.max(m[out.id], initial=0.0)) or 1.0
    missed = np.count_nonzero(fault <= tolerance(m[out.id], RTOL) + amount)
    assert missed <= want.size // 8


# networks -------------------------------------------------------------------------------------------------------------
def at_the_jump(build: Callable[[Value], Value]) -> tuple[Study, dict[str, Array]]:
    """A network whose 32 hidden sums are 0 but for rounding in sample 0, as after training that pushed them there."""
    rng = np.random.default_rng(5)
    with Graph() as g:
        x, w, b = ops.input("x", (8, 16)), ops.parameter("w", (16, 32)), ops.parameter("b", (32,))
        h = (x @ w + b).named("h")
        g.output((build(h) * ops.input("t", (8, 32))).mean_all())
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
             (("x", (8, 16)), ("w", (16, 32)), ("t", (8, 32)))}  # fmt: skip
    feeds["b"] = -(feeds["x"][0].astype(np.float64) @ feeds["w"].astype(np.float64)).astype(np.float32)
    return Study(g, train=True, device="cpu", name="near"), feeds


def chosen(h: Value) -> Value:
    """Rows that compete: the first two columns are nearly equal, and an index decides."""
    return ops.take_along_axis(h * 3, ops.argmax(h, axis=1).reshape((8, 1)), axis=1) + h


JUMPS: dict[str, Callable[[Value], Value]] = {
    "relu": ops.relu,
    "comparison": lambda h: (h > 0) * (h.tanh() + 1),
    "where": lambda h: ops.where(h > 0, h + 1, h.square()),
    "sign": lambda h: h.sign() + h,
    "abs": ops.abs,
    "clamp": lambda h: ops.clamp(h, 0.0, 0.5),
    "floor": lambda h: ops.floor(h * 2) + h,
    "round": lambda h: ops.round(h + 0.5) + h,
    "maximum": lambda h: ops.maximum(h, ops.full((8, 32), 0.0)) + h,
    "argmax": chosen,
    "max": lambda h: h.max((1,), keepdims=True) + h,
    "max_pool": lambda h: ops.concat([ops.max_pool_2d(h.reshape((8, 1, 4, 8)), 2, 2, 0).reshape((8, 8))] * 4, 1) + h,
    "top_k": lambda h: ops.take_along_axis(h, ops.top_k_indices(h, k=2), axis=1).sum((1,), keepdims=True) + h,
}  # fmt: skip


@pytest.mark.parametrize("kind", JUMPS)
def test_a_network_whose_sums_are_zero_but_for_rounding_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study, feeds = at_the_jump(JUMPS[kind])
    check = parity.check_execution(study.execution, feeds, ["cpu"])
    assert check.ok, check.verdict
    doubted = sum(row.cells["cpu"].doubted for row in check.rows)
    said = check.notes[-1]
    assert doubted and said.startswith(f"cpu: {doubted} element") and said in str(check)
    assert escape(said) in answer_html(check_answer(check, study))

    def none(graph: Graph, values: object, scales: dict[int, Array], rtol: float) -> Doubts:
        return Doubts({id: np.zeros(m.shape) for id, m in scales.items()}, {})

    monkeypatch.setattr(parity, "doubts", none)
    strict = parity.check_execution(study.execution, feeds, ["cpu"])
    assert not strict.ok and strict.first["cpu"] and not strict.notes


def test_a_wrong_kernel_is_found_beside_the_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element of a dispatch is off by as much as the largest one, or by 1 index: one dispatch at a time."""
    study, feeds = at_the_jump(lambda h: ops.relu(h) + JUMPS["max_pool"](h) + chosen(ops.clamp(h, -1, 1)))
    want = evaluate(study.final, feeds)
    real, kinds = parity.by_buffer, set()
    with study.open_on(study.device) as session:
        for name, data in feeds.items():
            (session.set_parameter if name in "wb" else session.set_input)(name, data)
        plan = session.plan()
        for wrong in (d for d in plan.dispatches if any(plan.buffers[b].nodes for b in d.outputs)):

            def bent(d: Dispatch, results: Any, wrong: Dispatch = wrong) -> Iterator[tuple[int, Array]]:
                for buffer, data in real(d, results):
                    data = np.array(data)
                    data.flat[-1] += np.abs(data).max() * (d.index == wrong.index)
                    yield buffer, data

            monkeypatch.setattr(parity, "by_buffer", bent)
            assert parity.first_dispatch(session, want, RTOL)[1] == f"dispatch:{wrong.index}", wrong.label
            kinds.add(wrong.kernel)
        monkeypatch.setattr(parity, "by_buffer", real)
        assert parity.first_dispatch(session, want, RTOL) == ("", "")
    assert kinds >= {"matmul", "reduce", "custom", "pointwise"}


def test_an_exact_operand_is_never_in_doubt() -> None:
    """Inputs, comparisons of exact numbers and sums of small integers are what they are; a computed one may be off."""
    with Graph() as g:
        x, y = ops.input("x", (3,)), ops.input("y", (3,))
        whole = ops.equal(x, ops.full((3,), 2.0)) + ops.floor(x + 1)
        computed = ops.floor(x / y)
    values = evaluate(g, {"x": [2.0, 3.0, 7.0], "y": [1.1, 3.0, 7.1]})
    found = doubts(g, values, magnitudes(g, values), RTOL)
    assert not found.amount[whole.id].any() and not found.amount[computed.id][[0, 2]].any()
    assert found.jumps == {}


def test_a_maximum_and_the_element_that_it_is_move_together() -> None:
    with Graph() as g:
        x = rounded(ops.input("x", (2, 3)))
        mask = ops.equal(x, x.max((1,), keepdims=True))
    values = evaluate(g, {"x": [[1.0, 2.0, 3.0], [5.0, 4.0, 5.0 - 1e-6]]})
    found = doubts(g, values, magnitudes(g, values), RTOL)
    assert (found.amount[mask.id] > 0).tolist() == [[False] * 3, [True, False, True]]
    assert found.jumps[mask.id] == 2
