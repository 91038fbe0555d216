"""Compute the extents of a convolution, and divide its work among the invocations of kernels, for `ops/conv.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gdlab.base.types import Shape, TensorType
from gdlab.graph import Value
from gdlab.op import Shader, Work, WorkRule, want
from gdlab.op.numpy_form import NumpyForm
from gdlab.ops.conv.conv_numpy import conv2d_form, grad_input_form, grad_weight_form
from gdlab.ops.conv.windows import Pair, Windows, pair

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]
Extents = tuple[int, int, int]  # rows, columns and steps of the product in each group
OPERANDS = "x[n, ci, h, w] and k[co, ci/groups, kh, kw]"


@dataclass(frozen=True, slots=True)
class Conv:
    """The extents of a convolution: images of `ci` channels become `n` images of `co` channels."""

    n: int
    ci: int
    co: int
    groups: int
    windows: Windows

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of x, k and the result."""
        w = self.windows
        return (self.n, self.ci, *w.size), (self.co, self.ci // self.groups, *w.kernel), (self.n, self.co, *w.count)

    @property
    def constants(self) -> Mapping[str, int]:
        """The extents by the names that shaders use."""
        inside = {"CI": self.ci, "CO": self.co, "IN": self.ci // self.groups, "OUT": self.co // self.groups}
        return {"N": self.n, **inside, **self.windows.constants}

    @property
    def sizes(self) -> Extents:
        """Extents of the product of a group: output channels, pixels of the result, elements of a window."""
        (_, _, oh, ow), (_, per_group, kh, kw) = self.shapes[2], self.shapes[1]
        return self.co // self.groups, self.n * oh * ow, per_group * kh * kw


def conv_of(x: Shape, k: Shape, attrs: Attributes) -> Conv:
    windows = Windows(x[2:], k[2:], attrs["stride"], attrs["padding"], attrs["dilation"])  # type: ignore[arg-type]
    return Conv(x[0], x[1], k[0], attrs["groups"], windows)


def checked(x: Shape, k: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Conv:
    """Return the convolution of these shapes, or raise if there is none."""
    want(groups >= 1, "an int ≥ 1", groups, "groups")
    fits = x[1] == k[1] * groups and k[0] % groups == 0
    want(fits, f"{OPERANDS}, ci and co multiples of groups", _named(groups, x=x, k=k))
    conv = conv_of(x, k, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})
    conv.windows.check()
    return conv


def _named(groups: int, **shapes: Shape) -> str:
    return " and ".join(f"{name}{list(shape)}" for name, shape in shapes.items()) + f" with groups={groups}"


def canonical_pairs(
    *operands: Value, stride: Shape, padding: Shape, dilation: Shape, groups: int, size: Shape | None = None
) -> dict[str, Any]:
    steps = {"stride": pair(stride, "stride"), "padding": pair(padding, "padding")}
    sized = {} if size is None else {"size": pair(size, "size")}
    return {**steps, "dilation": pair(dilation, "dilation"), "groups": groups, **sized}


# kernels: in each group a product of left[rows, steps] and right[steps, columns] --------------------------------------
MOST_STEPS = 50_000  # of one invocation: a software adapter stops silently after 65535
LARGE = 1 << 17  # multiply-adds of a group from which a large tile is worth its compilation
FEW_UNITS = 16  # fewer are not worth a whole adapter: lanes share one
TILE_ROWS, TILE_COLUMNS = 64, 128
FEWEST_TILES = 96  # that keep hardware busy
BUSY = 1 << 16  # invocations that do


def _registers(sizes: Extents, conv: Conv) -> Work:
    """Return the work with a tile of TALL x BROAD sums per invocation, or per several that share the steps."""
    units, steps = _units(sizes, conv), sizes[2]
    alone = steps // 4 <= MOST_STEPS and (units >= FEW_UNITS or steps < 64)
    return _in_registers(sizes, conv, 1 if alone else -(-steps // 4))


def _shared(sizes: Extents, conv: Conv) -> Work | None:
    """Return the work for hardware: invocations share the steps until there are enough, with four turns or more."""
    lanes = min(BUSY // _units(sizes, conv), sizes[2] // 32, 256)
    return _in_registers(sizes, conv, 4 * lanes) if lanes > 1 else None


def _tile(sizes: Extents) -> Pair:
    """Return rows and columns of the tile that one invocation adds up."""
    rows, columns, steps = sizes
    large = rows * columns * steps >= LARGE
    return 1 if rows == 1 else 8 if large and rows > 4 else 4, 8 if large and columns > 4 else 4


def _units(sizes: Extents, conv: Conv) -> int:
    tall, broad = _tile(sizes)
    return conv.groups * -(-sizes[0] // tall) * -(-sizes[1] // broad)


def _in_registers(sizes: Extents, conv: Conv, length: int) -> Work:
    tall, broad = _tile(sizes)
    constants = {"TALL": tall, "BROAD": broad, "DOWN": -(-sizes[0] // tall), "WIDE": -(-sizes[1] // broad)}
    return _work(sizes, conv, constants, _units(sizes, conv), length)


def _tiles(sizes: Extents, conv: Conv) -> Work | None:
    """Return the work with a tile of 64 x 128 sums per group of 128, where there are enough that are mostly full."""
    rows, columns, _ = sizes
    down, across = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    units = conv.groups * down * across
    if rows < TILE_ROWS // 4 or columns < TILE_COLUMNS // 4 or units < FEWEST_TILES:
        return None
    return _work(sizes, conv, {"DOWN": down, "WIDE": across}, units, group=128)


def _work(
    sizes: Extents, conv: Conv, constants: Mapping[str, int], units: int, length: int = 0, group: int = 0
) -> Work:
    rows, columns, steps = sizes
    product = {"ROWS": rows, "COLUMNS": columns, "STEPS": steps}
    flops = 2 * conv.groups * rows * columns * steps
    extents = "x".join(map(str, (conv.groups, *sizes) if conv.groups > 1 else sizes))
    return Work(units, length, {**conv.constants, **product, **constants}, flops, group, extents=extents)


def _kernel(
    file: str, form: NumpyForm, conv_from: Callable[[Types, TensorType, Attributes], Conv],
    extents: Callable[[Conv], Extents],
) -> Shader:  # fmt: skip
    """Return the kernel in registers; for hardware the one in workgroup memory, or for few tiles shared registers."""

    def rule(work: Callable[[Extents, Conv], Work | None]) -> WorkRule:
        def of(types: Types, result: TensorType, attrs: Attributes) -> Work | None:
            conv = conv_from(types, result, attrs)
            return work(extents(conv), conv)

        return of

    registers, tiles = f"{file}.wgsl + product_registers.wgsl", f"{file}.wgsl + product_tiles.wgsl"
    shared = Shader(registers, rule(_shared), linear=True, in_bounds=True)
    hardware = Shader(tiles, rule(_tiles), shared, linear=True, in_bounds=True)
    return Shader(registers, rule(_registers), hardware, linear=True, numpy_form=form)


def forward_kernel() -> Shader:
    """Return the kernel of [x, k]: output channels by pixels of the result, over the elements of a window."""
    return _kernel(
        "conv2d", conv2d_form, lambda types, result, attrs: conv_of(types[0].shape, types[1].shape, attrs),
        lambda c: c.sizes,
    )  # fmt: skip


def input_kernel() -> Shader:
    """Return the kernel of [g, k]: input channels by pixels of the image, over output channels and window places."""

    def extents(conv: Conv) -> Extents:
        (n, ci, h, w), (co, _, kh, kw) = conv.shapes[:2]
        return ci // conv.groups, n * h * w, co // conv.groups * kh * kw

    return _kernel(
        "conv2d_grad_input", grad_input_form,
        lambda types, result, attrs: conv_of(result.shape, types[1].shape, attrs), extents,
    )  # fmt: skip


def weight_kernel() -> Shader:
    """Return the kernel of [g, x]: output channels by elements of a window, over pixels of the result."""

    def extents(conv: Conv) -> Extents:
        rows, pixels, window = conv.sizes
        return rows, window, pixels

    return _kernel(
        "conv2d_grad_weight", grad_weight_form,
        lambda types, result, attrs: conv_of(types[1].shape, result.shape, attrs), extents,
    )  # fmt: skip
