"""Numbers of 16 bits: the table of rounding (compiled_graph.md, section 8) by bits, in kernels of every place."""

from __future__ import annotations

import numpy as np
import plans
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError
from gdlab.base.types import Array
from gdlab.graph import Graph
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.session import build_inference_session

# (bits of x, bits of the result)
BRAIN = {
    0x3F808000: 0x3F800000, 0x3F818000: 0x3F820000, 0x7F7FFFFF: 0x7F800000, 0x7F7F7FFF: 0x7F7F0000,
    0xFF7FFFFF: 0xFF800000, 0x80000000: 0x80000000, 0x3F800001: 0x3F800000, 0xBF808001: 0xBF810000,
}  # fmt: skip
NUMBERS = {
    65519.996: 65504.0, 65520.0: np.inf, -65520.0: -np.inf, 2.0**-24: 2.0**-24, 2.0**-26: 0.0, 2.0**-25: 0.0,
    3 * 2.0**-25: 2.0**-23, 2049.0: 2048.0, 2051.0: 2052.0, 2.0**-14: 2.0**-14, -0.0: -0.0, np.inf: np.inf,
    1.00048828125: 1.0, 6.097555160522461e-05: 6.097555160522461e-05,
}  # fmt: skip
NANS = [0x7F800001, 0xFF800001, 0x7FC00000, 0x7F801FFF, 0x7FFFFFFF]


def bits(numbers: list[float]) -> Array:
    return np.asarray(numbers, np.float32).view(np.uint32)


VECTORS = {
    "bf16": (np.array([*BRAIN], np.uint32), np.array([*BRAIN.values()], np.uint32)),
    "f16": (bits([*NUMBERS]), bits([*NUMBERS.values()])),
}
DROPPED = {"f16": 0x1FFF, "bf16": 0xFFFF}  # bits that a boundary leaves out


def computed(graph: Graph, device: str, **feeds: Array) -> list[Array]:
    with build_inference_session(graph, device=device) as session:
        for name, data in feeds.items():
            session.set_input(name, data)
        session.step()
        return [np.asarray(session.read_output_by_index(i)).copy() for i in range(len(graph.output_ids))]


@pytest.mark.parametrize("to", VECTORS)
@pytest.mark.parametrize("constant", [False, True])
def test_vectors_of_rounding_by_bits(to: str, constant: bool, device: str) -> None:
    given, want = VECTORS[to]
    x = given.view(np.float32)
    with Graph() as g:
        g.set_outputs([ops.round_to(ops.constant(x) if constant else ops.input("x", x.shape), to)])
    (got,) = computed(g, device, **({} if constant else {"x": x}))
    assert [f"{b:08x}" for b in got.view(np.uint32)] == [f"{b:08x}" for b in want]


@pytest.mark.parametrize("to", VECTORS)
def test_nan_stays_nan_without_the_bits_that_a_boundary_drops(to: str, device: str) -> None:
    x = np.array(NANS, np.uint32).view(np.float32)
    with Graph() as g:
        g.set_outputs([ops.round_to(ops.input("x", x.shape), to)])
    got = computed(g, device, x=x)[0].view(np.uint32)
    assert not (got & DROPPED[to]).any()
    assert np.isnan((got & ~np.uint32(DROPPED[to])).view(np.float32)).all()


@pytest.mark.parametrize("to", VECTORS)
def test_one_number_is_rounded_as_a_literal_is(to: str, device: str) -> None:
    """A constant of one element becomes a literal of the kernel: no driver may fold the rounding wrongly."""
    given, want = VECTORS[to]
    with Graph() as g:
        x = ops.input("x", (1,))
        g.set_outputs([x + ops.round_to(ops.constant(n[None]), to) for n in given.view(np.float32)])
    got = np.concatenate(computed(g, device, x=np.zeros(1, np.float32)))
    np.testing.assert_array_equal(got, want.view(np.float32))


@pytest.mark.parametrize("to", VECTORS)
def test_rounding_fuses_before_a_sum_and_behind_a_product(to: str, device: str) -> None:
    with Graph() as g:
        x, w = ops.input("x", (4, 8)), ops.input("w", (8, 8))
        g.set_outputs([ops.round_to(x @ w, to), ops.round_to(x.scale(1.5), to).sum((1,))])
    assert len(plans.labels(g)) == 2, plans.labels(g)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((4, 8), (8, 8)))
    product, summed = computed(g, device, x=a, w=b)
    near = {"f16": lambda v: v.astype(np.float16).astype(np.float32)}.get(to, ref_brain)
    np.testing.assert_array_equal(product, near(product))
    np.testing.assert_allclose(summed, near(a * np.float32(1.5)).sum(1), rtol=1e-5, atol=1e-6)
    assert np.abs(product - a @ b).max() < 0.1 < np.abs(product).max()


def ref_brain(x: Array) -> Array:
    upper = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    return ((upper + 0x7FFF + (upper >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def test_there_is_one_way_to_round() -> None:
    """To 16 bits; `round` is to whole numbers."""
    assert [name for name in REGISTRY if name.startswith("round")] == ["round_to", "round"]


def test_ones_become_ones_in_a_brain_float() -> None:
    """The vector of regression: 1, 2, 3, 4 stay themselves."""
    with Graph() as g:
        g.set_outputs([ops.round_to(ops.input("x", (4,)), "bf16") + 0.0])
    np.testing.assert_array_equal(computed(g, "cpu", x=np.arange(1, 5, dtype=np.float32))[0], [1, 2, 3, 4])


# stored in 16 bits ----------------------------------------------------------------------------------------------------
FEW, FEWER = {"rtol": 5e-3, "atol": 5e-2}, {"rtol": 4e-2, "atol": 4e-1}  # of numbers up to 30
STORING = {"f16": ops.to_f16, "bf16": ops.to_bf16}
NEAR = {"f16": lambda v: v.astype(np.float16).astype(np.float32), "bf16": lambda v: ref_brain(v)}
SMALL = [0x00000001, 0x00007FFF, 0x00008000, 0x00008001, 0x00018000, 0x007FFFFF, 0x80408000, 0x7F800000, 0xFF800000]


@pytest.mark.parametrize("to", VECTORS)
@pytest.mark.parametrize("constant", [False, True])
def test_vectors_of_storing_by_bits(constant: bool, to: str, device: str) -> None:
    given, want = VECTORS[to]
    x = given.view(np.float32)
    with Graph() as g:
        y = STORING[to](ops.constant(x) if constant else ops.input("x", x.shape))
        g.set_outputs([y, y.to_f32()])
    assert str(y.type) == f"{to}[{x.size}]"
    stored, read = computed(g, device, **({} if constant else {"x": x}))
    assert stored.dtype == {"f16": np.float16, "bf16": np.float32}[to]
    np.testing.assert_array_equal(stored.astype(np.float32).view(np.uint32), want)
    np.testing.assert_array_equal(read, want.view(np.float32))


def test_brain_floats_of_any_bits_are_stored_and_read_as_the_formula_says(device: str) -> None:
    """Ties, infinities, both zeros, numbers below 2^-126; and 4,096 random words that are no NaN."""
    random = np.random.default_rng(16).integers(0, 1 << 32, 4096, np.uint32)
    words = np.concatenate([np.array(SMALL, np.uint32), random[~np.isnan(random.view(np.float32))]])
    x = words.view(np.float32)
    with Graph() as g:
        g.set_outputs([ops.to_bf16(ops.input("x", x.shape))])
    (stored,) = computed(g, device, x=x)
    np.testing.assert_array_equal(stored.view(np.uint32), ref_brain(x).view(np.uint32))


@pytest.mark.parametrize("to", VECTORS)
@pytest.mark.parametrize("size", [1, 2, 3, 70, 131])
def test_an_odd_number_of_halves_is_padded(size: int, to: str, device: str) -> None:
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    with Graph() as g:
        g.set_outputs([STORING[to](ops.input("x", x.shape)), ops.input("z", (1,)) * 2.0])
    stored, _ = computed(g, device, x=x, z=np.ones(1, np.float32))
    np.testing.assert_array_equal(stored, NEAR[to](x))
    kept = next(b for b in compile(g, mode="inference").buffers if str(b.dtype) == to)
    assert kept.nbytes == -(-size // 2) * 4, "two in a word"


@pytest.mark.parametrize("to", VECTORS)
def test_a_stored_nan_stays_one(to: str, device: str) -> None:
    x = np.array(NANS, np.uint32).view(np.float32)
    with Graph() as g:
        g.set_outputs([STORING[to](ops.input("x", x.shape))])
    assert np.isnan(computed(g, device, x=x)[0].astype(np.float32)).all()


@pytest.mark.parametrize("to", VECTORS)
def test_products_read_stored_halves_and_the_gradient_passes(to: str, device: str) -> None:
    """Activations in 16 bits, of every reader: a product, a reshape, an activation; and slots are shared with f32."""
    with Graph() as g:
        x, w = ops.input("x", (6, 8)), ops.input("w", (8, 8))
        h = STORING[to]((x @ w).tanh())
        y = (STORING[to](h @ w).reshape((8, 6)) * 2.0).relu()
        g.set_outputs([y.square().sum_all()])
    full, _ = differentiate(g, wrt=(x, w))
    full.set_outputs(full.outputs)
    rng = np.random.default_rng(1)
    feeds = {n.name: rng.normal(size=n.type.shape).astype(np.float32) for n in full.inputs}
    values = evaluate(full, feeds)
    for got, id in zip(computed(full, device, **feeds), full.output_ids, strict=True):
        np.testing.assert_allclose(got, values[id], **{"f16": FEW, "bf16": FEWER}[to])
    assert np.abs(values[full.output_ids[1]]).max() > 1


def test_a_parameter_in_16_bits_is_still_no_output() -> None:
    with Graph() as g:
        g.set_outputs([ops.parameter_f16("p", (4,)).reshape((2, 2))])
    with pytest.raises(CompileError, match=r"f16\[2, 2\], wanted f32 or u32"):
        compile(g, mode="inference")


@pytest.mark.parametrize(("to", "label", "number"), [("f16", "ToF16[3x5]", 1e6), ("bf16", "ToBf16[3x5]", 3.4e38)])
def test_the_search_finds_an_infinity_that_storing_made(to: str, label: str, number: float, device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (3, 5))
        g.set_outputs([STORING[to](x) @ ops.input("w", (5, 2))])
    with build_inference_session(g, device=device) as session:
        session.set_input("x", np.full((3, 5), number, np.float32))
        session.set_input("w", np.zeros((5, 2), np.float32))
        first = session.step_debug().first_bad()
    assert first is not None
    assert first.label == label


@pytest.mark.parametrize("to", VECTORS)
def test_a_plan_with_stored_results_is_read_back(to: str) -> None:
    with Graph() as g:
        g.set_outputs([STORING[to](ops.input("x", (3, 5)))])
    plan = compile(g, mode="inference")
    assert ExecutionPlan.from_json(plan.to_json()).to_json() == plan.to_json()
