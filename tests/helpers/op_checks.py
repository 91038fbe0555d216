"""Check the laws of every op × sample: plain functions, so that an op added a moment ago can be checked too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plans
import pytest
from matrix import count
from structure import same_structure

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import GdlabError
from gdlab.base.types import Array, TensorType, f32, u32
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Bad, Leaf, Op, Sample
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.op.text import parse

H = 1e-6
RTOL = {"cpu": 1e-5, "wgpu": 2e-4}


def working_ops() -> list[Op]:
    """Every op that computes something."""
    return [op for op in REGISTRY.values() if not isinstance(op.kernel, Leaf)]


def op_cases() -> list[Any]:
    return [pytest.param(op, id=op.name) for op in working_ops()]


def sample_cases() -> list[Any]:
    return [pytest.param(op, s, id=f"{op.name}-{i}") for op in working_ops() for i, s in enumerate(op.samples)]


def bad_cases() -> list[Any]:
    return [pytest.param(op, b, id=f"{op.name}-{i}") for op in working_ops() for i, b in enumerate(op.bad)]


# one op mid-graph: Σ cotangent · op(1 · x, …) -------------------------------------------------------------------------
@dataclass
class Wired:
    """An op between other nodes; output 0 is the loss, `inputs` are its f32 operands, `feeds` has all operands and the
    `cotangent`."""

    graph: Graph
    inputs: list[Value]
    out: Value
    feeds: dict[str, Array]


def wire(op: Op, sample: Sample, *, inline: bool = False) -> Wired:
    """The op (or, `inline`, its decomposition) on inputs that it does not read directly, and a weighted sum of it."""
    feeds = dict(zip(op.operand_names(len(sample.shapes)), sample.arrays(seed=1), strict=True))
    with Graph() as g:
        leaves = [leaf(name, array) for name, array in feeds.items()]
        inputs = [x for x in leaves if x.type.dtype is not u32]
        operands = op.spread([x.scale(1.0) if x in inputs else x for x in leaves])
        out = op.body(*operands, **sample.attrs) if inline and op.body else op(*operands, **sample.attrs)
        numbers = out.to_f32() if out.type.dtype is u32 else out
        loss = (numbers * ops.input("cotangent", out.shape)).sum_all()
        g.set_outputs([loss])
    feeds["cotangent"] = exact(np.random.default_rng(2).uniform(0.5, 2.0, out.shape))
    return Wired(g, inputs, out, feeds)


def leaf(name: str, array: Array) -> Value:
    """An input for this array."""
    return (ops.input_u32 if array.dtype == np.uint32 else ops.input)(name, array.shape)


def exact(data: Any) -> Array:
    """float64 that float32 holds."""
    return np.asarray(data, np.float32).astype(np.float64)


def run(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """All values in float64, the feeds unrounded, so that they can be moved by a millionth."""
    values: list[Array] = []
    for node in graph:
        attrs = dict(node.attrs)
        operands = [values[i] for i in node.inputs]
        if node.op == "constant":
            values.append(attrs["data"].array.astype(np.float64))
            continue
        values.append(feeds[attrs["name"]] if "name" in attrs else REGISTRY[node.op].reference(operands, attrs))
    return values


# checks ---------------------------------------------------------------------------------------------------------------
def check_shape_rule(op: Op, sample: Sample) -> None:
    """The type that the rule says is what NumPy computes."""
    with Graph() as g:
        names, arrays = op.operand_names(len(sample.shapes)), sample.arrays()
        operands = [leaf(name, array) for name, array in zip(names, arrays, strict=True)]
        out = op(*op.spread(operands), **sample.attrs)
    value = op.reference(spread(g, out, arrays), dict(out.node.attrs))
    assert out.type == TensorType(value.shape, out.type.dtype)
    assert value.dtype == (np.uint32 if out.type.dtype is u32 else np.float64)
    assert sample.kink or np.isfinite(value).all()


def check_reference_dtype(op: Op, sample: Sample) -> None:
    """Check that long double gives long double: a tape may be wider than float64 (eager_session.md ES 9)."""
    arrays = [a if a.dtype == np.uint32 else a.astype(np.longdouble) for a in sample.arrays()]
    with Graph() as g:
        names = op.operand_names(len(sample.shapes))
        operands = [leaf(name, array) for name, array in zip(names, arrays, strict=True)]
        out = op(*op.spread(operands), **sample.attrs)
    value = op.reference(spread(g, out, arrays), dict(out.node.attrs))
    assert value.dtype == (np.uint32 if out.type.dtype is u32 else np.longdouble)


def spread(graph: Graph, out: Value, arrays: Sequence[Array]) -> list[Array]:
    """The operands as the node reads them, after visible broadcasts."""
    read = [graph.node(i).type.shape for i in out.node.inputs]
    return [np.broadcast_to(a, shape) for a, shape in zip(arrays, read, strict=True)]


def check_gradient(op: Op, sample: Sample) -> None:
    """First and second derivative under a random cotangent agree with central differences in float64."""
    w = wire(op, sample)
    check_slope(w.graph, w.inputs, w.feeds)
    full, _ = differentiate(w.graph, wrt=w.inputs)
    gradients = full.outputs[1:]
    rng = np.random.default_rng(3)
    with full:
        along = [ops.input(f"v{i}", g.shape) for i, g in enumerate(gradients)]
        parts = [(g * v).sum_all() for g, v in zip(gradients, along, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        full.set_outputs([total])
    feeds = w.feeds | {f"v{i}": exact(rng.uniform(-1, 1, g.shape)) for i, g in enumerate(gradients)}
    leaves = [full.value(x.id) for x in w.inputs] + [full.value(full.leaf("cotangent").id)]  # type: ignore[union-attr]
    check_slope(full, leaves, feeds)


def check_slope(graph: Graph, wrt: Sequence[Value], feeds: dict[str, Array]) -> None:
    """⟨gradient, dx⟩ is how much output 0 rises along dx, for random directions in each of `wrt`."""
    full, _ = differentiate(graph, wrt=wrt)
    values = run(full, feeds)
    rng = np.random.default_rng(4)
    for value, id in zip(wrt, full.output_ids[-len(wrt) :], strict=True):
        gradient, x = values[id], feeds[value.name]
        assert gradient.shape == x.shape
        for _ in range(count(2, 4)):
            dx = rng.uniform(-1, 1, x.shape) * np.sqrt(np.maximum(1.0, np.abs(x)))
            up, down = (run(graph, feeds | {value.name: x + h * dx})[graph.output_ids[0]] for h in (H, -H))
            rise, want = float((up - down)[0]) / (2 * H), float((gradient * dx).sum())
            allowed = 1e-6 * (1 + np.abs(gradient * dx).sum())
            assert abs(rise - want) <= allowed, f"{value.name}: ⟨gradient, dx⟩ = {want}, the loss rises by {rise}"


def check_kink(op: Op, sample: Sample) -> None:
    """At a kink the gradient is what the sample states."""
    assert sample.grads is not None
    w = wire(op, sample)
    full, _ = differentiate(w.graph, wrt=w.inputs)
    values = run(full, w.feeds | {"cotangent": np.full(w.out.shape, 2.0)})
    stated = [grad for i, grad in enumerate(sample.grads) if i not in sample.integers]
    for x, id, want in zip(w.inputs, full.output_ids[1:], stated, strict=True):
        wanted = np.broadcast_to(0.0 if want is None else want, x.shape)
        np.testing.assert_allclose(values[id], 2.0 * np.asarray(wanted), rtol=1e-7, err_msg=x.name)


def check_decomposition(op: Op, sample: Sample) -> None:
    """A fused op and its own gradient equal its body and the gradient of that."""
    spellings = []
    for inline in (False, True):
        w = wire(op, sample, inline=inline)
        full, _ = differentiate(w.graph, wrt=w.inputs)
        values = evaluate(full, w.feeds)
        scales = magnitudes(full, values)
        ids = [w.out.id, *full.output_ids[1:]]
        spellings.append([(values[id], scales[id]) for id in ids])
    for (got, m), (want, n) in zip(*spellings, strict=True):
        assert compare(got, want, np.maximum(m, n), 1e-7) is None


def check_bad(op: Op, bad: Bad) -> None:
    """A call that must be refused says why, and leaves the graph as it was."""
    with Graph() as g:
        types = [TensorType.parse(text) for text in bad.types]
        operands = [(ops.input_u32 if t.dtype is u32 else ops.input)(f"x{i}", t.shape) for i, t in enumerate(types)]
        before = g.fingerprint()
        with pytest.raises(GdlabError) as refused:
            op(*op.spread(operands), **bad.attrs)
    assert bad.message in str(refused.value)
    assert g.fingerprint() == before


def check_text(op: Op, sample: Sample) -> None:
    """Printing and parsing are inverse."""
    graph = wire(op, sample).graph
    again = parse(graph.text())
    assert same_structure(again, graph)
    assert again.text() == graph.text()


# devices --------------------------------------------------------------------------------------------------------------
@dataclass
class Board:
    """All samples of one op in one graph: values, values with a NaN, gradients; each output with its label."""

    graph: Graph
    feeds: dict[str, Array]
    labels: list[str]


def board(op: Op, left: Collection[int] = (), gradients: Collection[int] | None = None) -> Board:
    """Outputs are operands of nothing, so lowering has to keep each of them. Without the samples of the numbers `left`,
    and with the gradients of some (None: of all)."""
    feeds: dict[str, Array] = {}
    outs: list[tuple[str, Value]] = []
    with Graph() as g:
        terms, inputs = [], []
        for tag, sample, arrays in boarded(op, left):
            names = [f"{tag}.{name}" for name in op.operand_names(len(arrays))]
            feeds |= zip(names, arrays, strict=True)
            operands = [checked(name, feeds, sample.kink) for name in names]
            out = op(*op.spread(operands), **sample.attrs)
            outs.append((f"{op.name}-{tag}", out))
            wanted = not tag.endswith("nan") and (gradients is None or int(tag) in gradients)
            if op.no_grad is None and wanted and out.type.dtype is f32:
                weights = exact(np.random.default_rng(2).uniform(0.5, 2.0, out.shape))
                feeds[f"{tag}.cotangent"] = weights
                terms.append((out * ops.input(f"{tag}.cotangent", out.shape)).sum_all())
                inputs += [(f"{op.name}-{tag} gradient of {v.name}", v) for v in operands if v.type.dtype is f32]
        g.set_outputs([terms[0] if terms else outs[0][1]])
        for term in terms[1:]:
            g.set_outputs([g.outputs[0] + term])
    if not inputs:
        g.set_outputs([v for _, v in outs])
        return Board(g, feeds, [label for label, _ in outs])
    full, report = differentiate(g, wrt=[v for _, v in inputs])
    gradients = zip((label for label, _ in inputs), report.wrt, full.outputs[1:], strict=True)
    kept = [(label, v) for label, x, v in gradients if x not in report.zero_gradients]
    outs = [(label, full.value(v.id)) for label, v in outs] + kept
    full.set_outputs([v for _, v in outs])
    return Board(full, feeds, [label for label, _ in outs])


def checked(name: str, feeds: dict[str, Array], kink: bool) -> Value:
    """An input; at a kink indices are a constant, because a session refuses to be fed one that is out of range."""
    if kink and feeds[name].dtype == np.uint32:
        return ops.constant_u32(feeds.pop(name))
    return leaf(name, feeds[name])


def boarded(op: Op, left: Collection[int]) -> Iterator[tuple[str, Sample, list[Array]]]:
    """(tag, sample, operands): each sample, and one more time with a NaN in the first operand of numbers."""
    for i, sample in enumerate(op.samples):
        if i in left:
            continue
        arrays = sample.arrays(seed=i)
        yield str(i), sample, arrays
        first = next((k for k, a in enumerate(arrays) if a.dtype == np.float64), None)
        if first is not None and i < 2:
            yield f"{i}-nan", sample, [with_nan(a) if k == first else a for k, a in enumerate(arrays)]


def with_nan(array: Array) -> Array:
    spoilt = array.copy()
    spoilt.flat[spoilt.size // 2] = np.nan
    return spoilt


def check_device(
    op: Op, device: str, left: Collection[int] = (), gradients: Collection[int] | None = None
) -> None:  # fmt: skip
    """Compare a device's results with the reference, gradients and NaN rows included: see `board`."""
    from gdlab.session import build_inference_session

    b = board(op, left, gradients)
    values = evaluate(b.graph, b.feeds)
    scales = magnitudes(b.graph, values)
    with build_inference_session(b.graph, device=device) as session:
        for name in session.input_names():
            data = b.feeds[name]
            if data.dtype == np.uint32:
                session.set_input_u32(name, data)
            else:
                session.set_input(name, data.astype(np.float32))
        session.step()
        for i, (label, id) in enumerate(zip(b.labels, b.graph.output_ids, strict=True)):
            got = session.read_output_by_index(i)
            assert got.dtype == b.graph.node(id).type.dtype.numpy
            failure = compare(got, values[id], scales[id], RTOL[device])
            assert failure is None, f"{label} on {device}: {failure}"


def check_hardware_form(op: Op, left: Collection[int] = (), gradients: Collection[int] | None = None) -> None:
    """Check on a software adapter the kernels that hardware adapters get: more lanes, other forms."""
    from gdlab.devices.choose import device as open_device
    from gdlab.plan import compile
    from gdlab.plan.target import Limits, Target
    from gdlab.session.update_settings import Optimizer, scalars

    b = board(op, left, gradients)
    values = evaluate(b.graph, b.feeds)
    scales = magnitudes(b.graph, values)
    plan = compile(b.graph, mode="inference", target=Target("wgpu", "hardware", Limits()))
    program = plans.load(open_device("wgpu"), plan, b.feeds)
    try:
        program.step(scalars(Optimizer(), 0))
        for label, id, got in zip(b.labels, b.graph.output_ids, plans.outputs(program), strict=True):
            failure = compare(got, values[id], scales[id], RTOL["wgpu"])
            assert failure is None, f"{label} by the form for hardware: {failure}"
    finally:
        program.close()
