"""Products with weights in codes (graph_session.md S-05): every width, group and length, packed bit by bit."""

from __future__ import annotations

import itertools

import numpy as np
import plans
import pytest
from machine import needs

from gdlab import ops
from gdlab.base.types import Array
from gdlab.devices.choose import device as open_device
from gdlab.graph import Graph
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.target import Limits, Target
from gdlab.session import build_inference_session
from gdlab.session.update_settings import Optimizer, scalars

HARDWARE = Target("wgpu", "hardware", Limits())

# so many codes in so many bytes, as graph_session.md section 5 spells them
PACKS = {4: (8, 4), 6: (4, 3), 8: (4, 4)}


def packed(numbers: Array, bits: int) -> Array:
    """Rows of integers as words, by arithmetic on one large integer per row."""
    per_pack, nbytes = PACKS[bits]
    width = -(-numbers.shape[1] // per_pack) * nbytes
    rows = [sum(int(c) << bits * i for i, c in enumerate(row)).to_bytes(width, "little") for row in numbers]
    stream = b"".join(rows)
    return np.frombuffer(stream + bytes(-len(stream) % 4), "<u4")


def product(x: Array, codes: Array, scales: Array, biases: Array, bits: int, group: int, device: str) -> Array:
    with Graph() as g:
        leaves = ops.input("x", x.shape), ops.input_u32("codes", codes.shape)
        steps = ops.input("scales", scales.shape), ops.input("biases", biases.shape)
        g.set_outputs([ops.matmul_affine(*leaves, *steps, bits, group)])
    (dispatch,) = compile(g, mode="inference").dispatches
    assert dispatch.custom is not None, "the matrix never lies in memory"
    with build_inference_session(g, device=device) as session:
        session.set_input_u32("codes", codes)
        for name, data in (("x", x), ("scales", scales), ("biases", biases)):
            session.set_input(name, data)
        session.step()
        return np.asarray(session.read_output()).copy()


@pytest.mark.parametrize(
    ("bits", "words", "want"),
    [(4, [0x76543210], range(8)), (8, [0x04030201], (1, 2, 3, 4)), (6, [0x00103081], (1, 2, 3, 4))],
)
def test_vectors_of_packing(bits: int, words: list[int], want: range | tuple[int, ...], device: str) -> None:
    """Rows of the identity read the codes of one row."""
    count, one = len(want), np.ones((1, 1), np.float32)
    codes = np.array(words, np.uint32)
    got = product(np.eye(count, dtype=np.float32), codes, one, 0 * one, bits, 32, device)
    np.testing.assert_array_equal(got[:, 0], [*want])


GRID = [*itertools.product((4, 6, 8), (32, 64, 128), (1, 31, 64, 100, 256), (1, 3))]


def check(bits: int, group: int, k: int, m: int, device: str, n: int = 5) -> None:
    rng = np.random.default_rng(k + bits)
    numbers = rng.integers(1 << bits, size=(n, k))
    x = rng.normal(size=(m, k)).astype(np.float32)
    scales, biases = (rng.normal(size=(n, -(-k // group))).astype(np.float32) for _ in range(2))
    got = product(x, packed(numbers, bits), scales, biases, bits, group, device)
    which = np.arange(k) // group
    weights = scales.astype(np.float64)[:, which] * numbers + biases[:, which]
    size = np.abs(x.astype(np.float64)) @ np.abs(weights).T
    assert (np.abs(got - x @ weights.T) <= 1e-5 * np.maximum(size, 1)).all(), (bits, group, k, m)


def test_every_width_group_and_length_on_cpu() -> None:
    for case in GRID:
        check(*case, "cpu")


def test_every_width_group_and_length_on_wgpu() -> None:
    """One of five: a kernel is compiled for each."""
    needs("wgpu")
    for case in GRID[::5]:
        check(*case, "wgpu")


def test_the_kernel_on_hardware_computes_what_the_reference_says() -> None:
    """Many invocations share a long row, or a short one."""
    needs("wgpu")
    rng = np.random.default_rng(1)
    for m, k in ((1, 200), (5, 31), (3, 1)):
        numbers, groups = rng.integers(64, size=(3, k)), -(-k // 64)
        with Graph() as g:
            leaves = ops.input("x", (m, k)), ops.constant_u32(packed(numbers, 6))
            steps = ops.input("scales", (3, groups)), ops.input("biases", (3, groups))
            g.set_outputs([ops.matmul_affine(*leaves, *steps, 6, 64)])
        feeds = plans.feeds_of(g)
        program = plans.load(open_device("wgpu"), compile(g, mode="inference", target=HARDWARE), feeds)
        try:
            program.step(scalars(Optimizer(), 0))
            (got,) = plans.outputs(program)
        finally:
            program.close()
        np.testing.assert_allclose(got, evaluate(g, feeds)[g.output_ids[0]], rtol=2e-4, atol=2e-3)


def test_scales_may_be_stored_in_16_bits(device: str) -> None:
    rng = np.random.default_rng(0)
    numbers, x = rng.integers(16, size=(4, 40)), rng.normal(size=(2, 40)).astype(np.float32)
    scales, biases = (rng.normal(size=(4, 2)).astype(np.float16) for _ in range(2))
    with Graph() as g:
        steps = ops.parameter_f16("scales", (4, 2)), ops.parameter_f16("biases", (4, 2))
        codes = ops.constant_u32(packed(numbers, 4))
        g.set_outputs([ops.matmul_affine(ops.input("x", x.shape), codes, *steps, 4, 32)])
    assert [node.op for node in g].count("to_f32") == 0
    with build_inference_session(g, device=device) as session:
        session.set_parameter("scales", scales)
        session.set_parameter("biases", biases)
        session.set_input("x", x)
        session.step()
        got = np.asarray(session.read_output())
    which = np.arange(40) // 32
    weights = scales.astype(np.float64)[:, which] * numbers + biases.astype(np.float64)[:, which]
    np.testing.assert_allclose(got, x @ weights.T, rtol=1e-4, atol=1e-4)


def test_references_keep_their_dtype() -> None:
    codes = np.array([0x76543210], np.uint32)
    one, x = np.ones((1, 1), np.longdouble), np.ones((1, 8), np.longdouble)
    got = REGISTRY["affine_weights"].reference([codes, one, one], {"k": 8, "bits": 4, "group": 32})
    assert got.dtype == np.longdouble
    assert (x @ got.T).item() == 36
