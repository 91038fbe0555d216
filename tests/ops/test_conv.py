"""Convolution, pooling and channels beyond what the registry tests: other spellings of the same numbers, random shapes
against sums written out pixel by pixel, both schedules, and what the kernels hold in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plans
import pytest
from machine import needs
from matrix import also

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError, GraphError, ShapeError
from gdlab.base.types import Shape
from gdlab.devices.base import Device
from gdlab.devices.choose import device
from gdlab.graph import Graph, Value
from gdlab.op import reference
from gdlab.ops.conv import conv_work
from gdlab.ops.conv.pool import max_pool_2d_grad
from gdlab.plan import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target

Array = np.ndarray[Any, Any]
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


def open_device(name: str) -> Device:
    return device("wgpu" if name == "wgpu" else "cpu")


def graph_of(build: Callable[[], list[Value]]) -> Graph:
    with Graph() as g:
        g.set_outputs(build())
    return g


def values(build: Callable[[], list[Value]], name: str = "cpu", **feeds: Array) -> list[Array]:
    """Compute the values that `build` lists on a device."""
    graph = graph_of(build)
    return plans.run(open_device(name), graph, plans.feeds_of(graph) | feeds)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# pixel by pixel -------------------------------------------------------------------------------------------------------
def places(case: Case) -> list[tuple[int, int, int, int, int, int]]:
    """(output row, output column, kernel row, kernel column, row, column) of every product that a plane needs."""
    (_, _, h, w), (_, _, kh, kw), a = case
    (sh, sw), (ph, pw), (dh, dw) = a["stride"], a["padding"], a["dilation"]
    oh, ow = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    grid = np.ndindex(oh, ow, kh, kw)
    found = ((r, c, i, j, r * sh + i * dh - ph, c * sw + j * dw - pw) for r, c, i, j in grid)
    return [p for p in found if 0 <= p[4] < h and 0 <= p[5] < w]


def written_out(case: Case, x: Array, k: Array, g: Array) -> tuple[Array, Array, Array]:
    """The convolution and its two gradients, one product of a pixel and a weight after the other."""
    x, k, g = (a.astype(np.float64) for a in (x, k, g))
    y, to_x, to_k = np.zeros(g.shape), np.zeros(x.shape), np.zeros(k.shape)
    out, inside = k.shape[0] // case[2]["groups"], k.shape[1]
    for r, c, i, j, row, column in places(case):
        for o in range(k.shape[0]):
            own = slice(o // out * inside, (o // out + 1) * inside)
            y[:, o, r, c] += x[:, own, row, column] @ k[o, :, i, j]
            to_x[:, own, row, column] += np.outer(g[:, o, r, c], k[o, :, i, j])
            to_k[o, :, i, j] += g[:, o, r, c] @ x[:, own, row, column]
    return y, to_x, to_k


def random_cases(count: int, seed: int) -> list[Case]:
    """Shapes with stride, padding, dilation and groups all at once."""
    rng, found = np.random.default_rng(seed), list[Case]()
    while len(found) < count:
        groups, pairs = int(rng.integers(1, 4)), rng.integers([1, 0, 1], [4, 4, 4], size=(2, 3))
        stride, padding, dilation = (tuple(map(int, p)) for p in pairs.T)
        kh, kw, h, w = map(int, rng.integers([1, 1, 1, 1], [5, 5, 10, 10]))
        if any(n + 2 * p < d * (m - 1) + 1 for n, p, d, m in zip((h, w), padding, dilation, (kh, kw), strict=True)):
            continue
        n, inside, out = map(int, rng.integers(1, [4, 5, 6]))
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        found.append(((n, inside * groups, h, w), (out * groups, inside, kh, kw), attrs))
    return found


def all_three(case: Case, tag: str = "") -> list[Value]:
    """A convolution and its two gradients on inputs of their own."""
    x, k = ops.input(f"x{tag}", case[0]), ops.input(f"k{tag}", case[1])
    y = ops.conv2d_hw(x, k, **case[2])
    g = ops.input(f"g{tag}", y.shape)
    return [
        y,
        ops.conv2d_grad_input(g, k, size=x.shape[2:], **case[2]),
        ops.conv2d_grad_weight(g, x, size=k.shape[2:], **case[2]),
    ]


@pytest.mark.parametrize(("name", "count"), [("cpu", 32), ("wgpu", 6)])
def test_random_shapes_against_products_written_out(name: str, count: int) -> None:
    if name == "wgpu":
        needs("wgpu")
    cases = random_cases(count, seed=7)
    graph = graph_of(lambda: [v for i, case in enumerate(cases) for v in all_three(case, str(i))])
    feeds = plans.feeds_of(graph)
    got = plans.run(open_device(name), graph, feeds)
    for i, case in enumerate(cases):
        want = written_out(case, *(feeds[f"{letter}{i}"] for letter in "xkg"))
        for a, b in zip(got[3 * i :], want, strict=False):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(b).max())), err_msg=str(case))


# the two schedules ----------------------------------------------------------------------------------------------------
PLAIN: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
# tiles of several rows and columns that are not full, steps that are no multiple of 16, groups
TILED: list[Case] = [
    ((3, 40, 7, 9), (70, 40, 3, 2), PLAIN | {"padding": (1, 1), "stride": (1, 2)}),
    ((2, 66, 5, 5), (34, 33, 1, 1), PLAIN | {"groups": 2}),
]


@pytest.mark.parametrize("case", TILED)
def test_tiles_in_workgroup_memory(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for hardware and much work, on any adapter."""
    needs("wgpu")
    monkeypatch.setattr(conv_work, "FEWEST_TILES", 1)
    target = replace(open_device("wgpu").target, adapter_class="hardware")
    plan, got = run_for(target, graph_of(lambda: all_three(case)))
    assert [d.variant for d in plan.dispatches] == ["groups"] * 3
    check(plan, got)


SHARED: list[tuple[tuple[Shape, Shape], tuple[int, ...], list[int]]] = [  # which of the three are computed, their lanes
    (((2, 12, 11, 9), (14, 12, 3, 3)), (0,), [4]),  # 8 x 8 sums each, the others 4 x 4 and less
    (((1, 40, 4, 3), (1, 40, 3, 3)), (0,), [16]),
    (((1, 2, 4, 3), (40, 2, 3, 3)), (1,), [16]),
    (((2, 4, 11, 9), (5, 4, 3, 3)), (2,), [8]),
    (((1, 2, 40, 40), (3, 2, 3, 3)), (2,), [64]),  # sums in two steps
]


@pytest.mark.parametrize(("shapes", "chosen", "lanes"), also(SHARED, (SHARED[0][0], (0, 1, 2), [4, 4, 8])))
def test_sums_that_invocations_share(
    shapes: tuple[Shape, Shape], chosen: tuple[int, ...], lanes: list[int]
) -> None:  # fmt: skip
    """The kernel for hardware and few results, on any adapter. 8 x 8 sums cost lavapipe seconds a kernel: one has them,
    and `make matrix` all three."""
    needs("wgpu")
    target = replace(open_device("wgpu").target, adapter_class="hardware")
    case = (*shapes, PLAIN | {"padding": (1, 2)})
    plan, got = run_for(target, graph_of(lambda: [value for i, value in enumerate(all_three(case)) if i in chosen]))
    assert [d.params[1] for d in plan.dispatches] == lanes
    check(plan, got)


@pytest.mark.parametrize(("case", "forms"), [
    (((8, 32, 32, 32), (64, 32, 3, 3), PLAIN | {"padding": (1, 1)}), "shared shared shared"),
    (((64, 64, 56, 56), (64, 64, 3, 3), PLAIN | {"padding": (1, 1)}), "tiles tiles shared"),
    (((1, 512, 14, 14), (512, 512, 3, 3), PLAIN | {"padding": (1, 1)}), "shared shared tiles"),
    (((16, 96, 56, 56), (96, 1, 3, 3), PLAIN | {"padding": (1, 1), "groups": 96}), "alone alone shared"),
])  # fmt: skip
def test_hardware_is_kept_busy(case: Case, forms: str) -> None:
    """Tiles where there are many, lanes that share the steps where there are few."""
    plan = compile(graph_of(lambda: all_three(case)), mode="inference", target=Target.portable())
    found = ["tiles" if d.variant == "groups" else "shared" if d.params[1] > 1 else "alone" for d in plan.dispatches]
    assert " ".join(found) == forms
    assert min(d.workgroups[0] * d.workgroups[1] * d.workgroup_size[0] for d in plan.dispatches) >= 96 * 128


def run_for(target: Target, graph: Graph) -> tuple[ExecutionPlan, list[Array]]:
    plan = compile(graph, mode="inference", target=target)
    program = plans.load(open_device("wgpu"), plan, plans.feeds_of(graph))
    program.step(None)
    return plan, plans.outputs(program)


def check(plan: ExecutionPlan, got: list[Array]) -> None:
    """Outputs are those of the reference."""
    want = reference.evaluate(plan.graph, plans.feeds_of(plan.graph))
    scale = reference.magnitudes(plan.graph, want)
    for a, id in zip(got, plan.graph.output_ids, strict=True):
        assert reference.compare(a, want[id], scale[id], 2e-4) is None


def test_a_long_sum_is_shared() -> None:
    """Few weights and 300,000 pixels: more steps than a software adapter's loop may have."""
    needs("wgpu")
    case = ((1, 1, 500, 601), (2, 1, 1, 2), PLAIN)
    target = replace(open_device("wgpu").target, adapter_class="software")
    plan, got = run_for(target, graph_of(lambda: all_three(case)[2:]))
    assert plan.dispatches[0].params[1] > 1  # lanes
    check(plan, got)


def test_an_epilogue_runs_inside() -> None:
    """Bias and relu cost no pass over the image: they run where the convolution stores."""
    x, k, b = (2, 3, 8, 8), (8, 3, 3, 3), (8,)

    def build() -> list[Value]:
        y = ops.conv2d(ops.input("x", x), ops.input("k", k), padding=1)
        return [y.add_per_channel(ops.input("b", b)).relu()]

    plan = compile(graph_of(build), mode="inference", target=Target.portable())
    assert [d.label for d in plan.dispatches][-1] == "Conv2dHw[8x128x27] + add + relu"
    assert max(b.nbytes for b in plan.buffers if b.kind == "intermediate") == 2 * 8 * 4  # the table of biases


def test_no_kernel_holds_patches() -> None:
    """Training buffers are no larger than images, whatever the window."""

    def build() -> list[Value]:
        y = ops.conv2d(ops.input("x", (2, 4, 16, 16)), ops.parameter("k", (4, 4, 5, 5)), padding=2)
        return [y.square().mean_all()]

    full, _ = differentiate(graph_of(build))
    plan = compile(full, mode="training", target=Target.portable())
    assert max(b.nbytes for b in plan.buffers) == 2 * 4 * 16 * 16 * 4


# other spellings ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["cpu", "wgpu"])
def test_a_pointwise_kernel_is_a_product(name: str) -> None:
    """1 x 1 with several images of several pixels: channels are not the last axis."""
    if name == "wgpu":
        needs("wgpu")
    x, k = random(3, 5, 4, 6), random(7, 5, 1, 1, seed=1)
    (got,) = values(lambda: [ops.conv2d(ops.input("x", x.shape), ops.input("k", k.shape))], name, x=x, k=k)
    np.testing.assert_allclose(got, np.einsum("nchw,oc->nohw", x, k[:, :, 0, 0]), rtol=1e-5, atol=1e-5)


def test_groups_are_slices_side_by_side() -> None:
    def build() -> list[Value]:
        x, k = ops.input("x", (2, 6, 7, 5)), ops.input("k", (9, 2, 3, 3))
        parts = [ops.conv2d(x[:, 2 * i : 2 * i + 2], k[3 * i : 3 * i + 3], stride=2, padding=1) for i in range(3)]
        return [ops.conv2d(x, k, stride=2, padding=1, groups=3), *parts]

    whole, *parts = values(build)
    np.testing.assert_allclose(whole, np.concatenate(parts, axis=1), rtol=1e-5, atol=1e-6)


def test_depthwise_is_a_sum_of_shifted_planes() -> None:
    x, k = random(2, 3, 6, 5), random(3, 1, 2, 2, seed=1)
    (got,) = values(lambda: [ops.conv2d_dw(ops.input("x", x.shape), ops.input("k", k.shape))], x=x, k=k)
    want = sum(k[None, :, 0, i, j, None, None] * x[:, :, i : i + 5, j : j + 4] for i in range(2) for j in range(2))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_transposed_is_dilate_pad_and_a_turned_kernel() -> None:
    """Zeros between pixels, a border of k − 1 − padding, and a convolution with the kernel turned by 180 degrees."""
    x, k = random(2, 3, 4, 5), random(3, 4, 3, 3, seed=1)
    turned = np.ascontiguousarray(k.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])

    def build() -> list[Value]:
        a, b = ops.input("x", x.shape), ops.input("k", k.shape)
        spread = ops.dilate_w(ops.dilate_h(a, 2), 2)
        return [ops.conv_transpose_2d(a, b, stride=2, padding=1),
                ops.conv2d(spread, ops.input("turned", turned.shape), padding=1)]  # fmt: skip

    got, want = values(build, x=x, k=k, turned=turned)
    assert got.shape == (2, 4, 7, 9)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_the_transposed_convolution() -> None:
    """⟨y, conv(x)⟩ = ⟨conv_transpose(y), x⟩."""
    x, k = random(1, 2, 7, 7), random(3, 2, 3, 3, seed=1)
    y = random(1, 3, 4, 4, seed=2)

    def build() -> list[Value]:
        a, b, c = ops.input("x", x.shape), ops.input("k", k.shape), ops.input("y", y.shape)
        return [ops.conv2d(a, b, stride=2, padding=1), ops.conv_transpose_2d(c, b, stride=2, padding=1)]

    forward, back = values(build, x=x, k=k, y=y)
    assert float((forward * y).sum()) == pytest.approx(float((back * x).sum()), rel=1e-4)


def test_a_mean_pool_is_a_convolution_with_equal_weights() -> None:
    x = random(2, 1, 7, 6)

    def build() -> list[Value]:
        a = ops.input("x", x.shape)
        weights = ops.full((1, 1, 3, 3), 1.0)
        ones = ops.conv2d(ops.full(x.shape, 1.0), weights, stride=2, padding=1)
        sums = ops.conv2d(a, weights, stride=2, padding=1)
        both = [ops.avg_pool_2d(a, 3, 2, 1, count_include_pad=count) for count in (True, False)]
        return [*both, sums.scale(1 / 9), sums / ones]

    padded, inside, want_padded, want_inside = values(build, x=x)
    np.testing.assert_allclose(padded, want_padded, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inside, want_inside, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cpu", "wgpu"])
def test_overlapping_windows_add_at_the_first_maximum(name: str) -> None:
    """A plane of equal pixels: every window's gradient goes to its own corner. A NaN takes all windows that see it."""
    if name == "wgpu":
        needs("wgpu")
    x = np.zeros((1, 2, 4, 4), np.float32)
    x[0, 1, 1, 2] = np.nan

    def build() -> list[Value]:
        a = ops.input("x", x.shape)
        y = ops.max_pool_2d(a, 2, 1)
        return [max_pool_2d_grad(ops.full(y.shape, 1.0), a, 2, 1), y]

    gradient, y = values(build, name, x=x)
    assert gradient[0, 0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert gradient[0, 1].tolist() == [[1, 0, 0, 0], [1, 0, 4, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert np.isnan(y[0, 1]).sum() == 4
    assert not np.isnan(y[0, 0]).any()


def test_a_border_of_minus_infinity_never_wins() -> None:
    """All pixels are −inf too: the gradient still goes to a pixel, not to the border."""
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)

    def build() -> list[Value]:
        a = ops.input("x", x.shape)
        y = ops.max_pool_2d(a, 3, 1, 1)
        return [y, max_pool_2d_grad(ops.full(y.shape, 1.0), a, 3, 1, 1)]

    y, gradient = values(build, x=x)
    assert np.isneginf(y).all()
    assert gradient[0, 0].tolist() == [[4, 0], [0, 0]]


def test_group_norm_far_from_zero() -> None:
    """Mean 10,000 and spread 0.01: E[x²] − μ² in float32 would be noise; one group per channel and one of all agree
    with the formula."""
    x = (10_000 + 0.01 * np.arange(2 * 4 * 16).reshape(2, 4, 4, 4)).astype(np.float32)

    def build() -> list[Value]:
        a, ones, zeros = ops.input("x", x.shape), ops.full((4,), 1.0), ops.zeros((4,))
        return [ops.group_norm(a, ones, zeros, groups, 1e-9) for groups in (1, 4)]

    for got, axes in zip(values(build, x=x), ((1, 2, 3), (2, 3)), strict=True):
        exact = x.astype(np.float64)
        want = (exact - exact.mean(axes, keepdims=True)) / exact.std(axes, keepdims=True)
        np.testing.assert_allclose(got, want, atol=0.02)


def test_one_group_is_a_layer_norm() -> None:
    x = random(3, 2, 5)

    def build() -> list[Value]:
        a, ones, zeros = ops.input("x", x.shape), ops.full((2,), 1.0), ops.zeros((2,))
        row = ops.layer_norm(a.reshape((3, 10)), ops.full((10,), 1.0), ops.zeros((10,)), 1e-5)
        return [ops.group_norm(a, ones, zeros, 1, 1e-5), row.reshape(x.shape)]

    got, want = values(build, x=x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_pixels_land_where_the_formula_says() -> None:
    x = random(1, 6, 2, 3)

    def build() -> list[Value]:
        a = ops.input("x", x.shape)
        larger = [ops.upsample_nearest(a, 2, 3), ops.upsample_2x(a)]
        return [ops.pixel_shuffle_w(a, 2), ops.crop_2d(a, 1, 0, 0, 2), *larger]

    shuffled, cropped, repeated, twice = values(build, x=x)
    for c, h, w, k in np.ndindex(3, 2, 3, 2):
        assert shuffled[0, c, h, 2 * w + k] == x[0, k * 3 + c, h, w]
    assert (repeated == np.kron(x, np.ones((1, 1, 2, 3)))).all()
    assert cropped.tolist() == x[:, :, 1:, :1].tolist()
    assert (twice == x.repeat(2, axis=2).repeat(2, axis=3)).all()


def test_one_number_is_a_pair() -> None:
    with Graph() as g:
        x, k = ops.input("x", (1, 2, 9, 9)), ops.input("k", (2, 2, 3, 3))
        same = ops.conv2d_hw(x, k, 2, 1), ops.conv2d_hw(x, k, (2, 2), (1, 1))
        pools = ops.max_pool_2d(x, 3, 2, 1), ops.max_pool_2d(x, (3, 3), (2, 2), (1, 1))
    assert same[0].node.key == same[1].node.key
    assert pools[0].node.key == pools[1].node.key
    attrs = "dilation=(1, 1), groups=1, padding=(1, 1), stride=(2, 2)"
    assert str(g).splitlines()[2] == f"%2 = conv2d_hw(%0, %1, {attrs}) : f32[1, 2, 5, 5]"


def test_error_classes() -> None:
    with Graph():
        x, k = ops.input("x", (1, 4, 5, 5)), ops.input("k", (4, 4, 3, 3))
        with pytest.raises(ShapeError, match="conv2d: operands: given a window of 3 x 3 in an image of 2 x 2"):
            ops.conv2d(x[:, :, :2, :2], k)
        with pytest.raises(ShapeError, match="with groups=3"):
            ops.conv2d(x, k, groups=3)
        with pytest.raises(GraphError, match="conv2d: stride: given"):
            ops.conv2d(x, k, stride=0)
        with pytest.raises(GraphError, match="max_pool_2d: padding: given"):
            ops.max_pool_2d(x, 2, 2, 2)


def test_a_loop_that_a_software_adapter_cannot_finish_is_refused() -> None:
    """A window of 300 x 300 has more pixels than one invocation may look at."""
    graph = graph_of(lambda: [ops.max_pool_2d(ops.input("x", (1, 1, 300, 300)), 300, 1)])
    software = replace(Target.portable(), kind="wgpu", adapter_class="software")
    with pytest.raises(CompileError, match="loop trips"):
        compile(graph, mode="inference", target=software)
