"""Products with weights that lie in codes of a few bits, with a step and a minimum per group: `matmul_affine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError
from gdlab.base.types import Array, TensorType, u32
from gdlab.graph import Value
from gdlab.op import Bad, Grads, Refused, Sample, Shader, Work, fused, op, want
from gdlab.op.numpy_form import KernelBuilder, KernelConstants
from gdlab.ops.contract import matmul_bt
from gdlab.ops.leaves import full
from gdlab.ops.movement import pad, reshape

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Any]
PACKS = {2: (16, 4), 3: (8, 3), 4: (8, 4), 5: (8, 5), 6: (4, 3), 8: (4, 4)}  # bits: so many codes in so many bytes
GROUPS = (32, 64, 128)


def row_bytes(k: int, bits: int) -> int:
    """Return the bytes of a row of k codes: whole packs."""
    codes, nbytes = PACKS[bits]
    return -(-k // codes) * nbytes


def _numbers(codes: Array, n: int, k: int, bits: int) -> Array:
    """Return the codes of n rows as integers: u8[n, k]."""
    stream = np.ascontiguousarray(codes).view(np.uint8)[: n * row_bytes(k, bits)].reshape(n, -1)
    alone = np.unpackbits(stream, axis=1, count=k * bits, bitorder="little").reshape(n, k, bits)
    found: Array = np.packbits(alone, axis=2, bitorder="little")[..., 0]
    return found


def _weights(codes: Array, scales: Array, biases: Array, k: int, bits: int, group: int) -> Array:
    steps, minima = (np.repeat(v, group, 1)[:, :k] for v in (scales, biases))
    found: Array = steps * _numbers(codes, len(scales), k, bits) + minima
    return found


def _constants(n: int, k: int, attrs: Attributes) -> dict[str, int]:
    bits, group = attrs["bits"], attrs["group"]
    return {
        "N": n, "K": k, "BITS": bits, "GROUP": group, "GROUPS": -(-k // group), "ROW_BYTES": row_bytes(k, bits)
    }  # fmt: skip


def _operands(builder: KernelBuilder, c: KernelConstants, first: int) -> tuple[Array, ...]:
    """Return codes, steps and minima of a kernel, from operand `first` on."""
    codes = builder.operand(first, builder.operand_shape(first))
    return codes, *(builder.operand(i, (c["N"], c["GROUPS"])) for i in (first + 1, first + 2))


def _check_codes(codes: Value, scales: Value, biases: Value, k: int, bits: int, group: int, wanted: str) -> None:
    if codes.type.dtype is not u32 or scales.type.dtype is u32 or biases.type.dtype is u32:
        raise Refused(wanted, error=DTypeError)
    want(bits in PACKS, f"one of {', '.join(map(str, PACKS))}", bits, "bits")
    want(group in GROUPS, f"one of {', '.join(map(str, GROUPS))}", group, "group")
    want(codes.type.rank == 1 and scales.type.rank == 2 and scales.shape == biases.shape, wanted)
    groups, words = -(-k // group), -(-scales.shape[0] * row_bytes(k, bits) // 4)
    want(scales.shape[1] == groups, f"{wanted}: {scales.shape[1]} groups and ⌈{k} / {group}⌉ = {groups} differ")
    want(codes.shape[0] == words, f"{wanted}: {codes.shape[0]} words and {words} of {scales.shape[0]} rows differ")


# the matrix -----------------------------------------------------------------------------------------------------------
MATRIX = "codes[words] u32, scales[n, k / group] and biases of that shape"


def _elements(types: Types, result: TensorType, attrs: Attributes) -> Work:
    n, k = result.shape
    return Work(n * k, 0, _constants(n, k, attrs))


def _weights_form(builder: KernelBuilder, c: KernelConstants) -> None:
    out, operands = builder.out((c["N"], c["K"])), _operands(builder, c, 0)
    builder.calls.append((_decode, (*operands, c["BITS"], c["GROUP"], out)))


def _decode(codes: Array, scales: Array, biases: Array, bits: int, group: int, out: Array) -> None:
    out[...] = _weights(codes, scales, biases, out.shape[1], bits, group)


def _sample(n: int, length: int, bits: int, group: int, *x: tuple[int, int], **more: int) -> Sample:
    """Return a sample with a matrix of random codes, after other operands."""
    words, groups = -(-n * row_bytes(length, bits) // 4), -(-length // group)
    attrs = {"bits": bits, "group": group, **more}
    return Sample(*x, (words,), (n, groups), (n, groups), attrs=attrs, integers={len(x): 1 << 32})


@op(
    numpy=_weights,
    kernel=Shader("affine_weights.wgsl + affine_code.wgsl", _elements, numpy_form=_weights_form),
    samples=tuple(_sample(n, k, bits, group, k=k) for n, k, bits, group in
                  ((3, 70, 4, 32), (2, 33, 6, 32), (5, 7, 8, 64), (3, 130, 3, 128), (1, 1, 5, 32), (2, 64, 2, 32))),
    family="index",
    kind="private",
    any_dtype=True,
    reads_halves=True,
)  # fmt: skip
def affine_weights(codes: Value, scales: Value, biases: Value, k: int, bits: int, group: int) -> TensorType:
    """The matrix scale · code + bias of its group: u32[words], f32[n, ⌈k / group⌉] twice -> f32[n, k]."""
    want(k >= 1, "an int ≥ 1", k, "k")
    _check_codes(codes, scales, biases, k, bits, group, MATRIX)
    return TensorType((scales.shape[0], k))


@affine_weights.vjp
def _(g: Value, out: Value, codes: Value, scales: Value, biases: Value, k: int, bits: int, group: int) -> Grads:
    """∂scales = Σ g · codes over group,  ∂biases = Σ g over group"""

    def to_scales() -> Value:
        ones, zeros = (full(scales.shape, number, graph=g.graph) for number in (1.0, 0.0))
        return _by_group(g * affine_weights(codes, ones, zeros, k, bits, group), scales.shape[1], group)

    return None, to_scales, lambda: _by_group(g, scales.shape[1], group)


def _by_group(g: Value, groups: int, group: int) -> Value:
    """Return the sums of every row over its groups, the last of which may be shorter."""
    n, k = g.shape
    whole = g if k == groups * group else pad(g, (0, 0), (0, groups * group - k))
    return reshape(whole, (n, groups, group)).sum((2,))


# the product ----------------------------------------------------------------------------------------------------------
PRODUCT = "x[m, k], codes[words] u32, scales[n, k / group] and biases of that shape"


def _check(x: Value, codes: Value, scales: Value, biases: Value, bits: int, group: int) -> None:
    if x.type.dtype is u32:
        raise Refused(PRODUCT, error=DTypeError)
    want(x.type.rank == 2, PRODUCT)
    _check_codes(codes, scales, biases, x.shape[1], bits, group, PRODUCT)


def _products(types: Types, result: TensorType, attrs: Attributes) -> Work:
    (m, n), k = result.shape, types[0].shape[1]
    constants = {"ROWS": m, **_constants(n, k, attrs)}
    extents = f"{m}x{n}x{k} of {attrs['bits']} bits"
    return Work(-(-m // 4) * n, k, constants, 2 * m * n * k, extents=extents)


def _product_form(builder: KernelBuilder, c: KernelConstants) -> None:
    m, n, k = c["ROWS"], c["N"], c["K"]
    weights, operands = builder.temporary((n, k)), _operands(builder, c, 1)
    builder.calls.append((_decode, (*operands, c["BITS"], c["GROUP"], weights)))
    builder.product(builder.operand(0, (m, k)), weights.T, builder.out((m, n)))


@fused(
    label="",
    kernel=Shader("matmul_affine.wgsl + affine_code.wgsl", _products, numpy_form=_product_form),
    family="contraction",
    samples=tuple(_sample(n, k, bits, group, (m, k)) for m, n, k, bits, group in
                  ((3, 5, 64, 4, 32), (1, 3, 100, 6, 64), (1, 1, 1, 8, 128), (7, 4, 31, 5, 32), (2, 9, 256, 3, 128),
                   (4, 2, 33, 2, 32), (5, 6, 130, 6, 32))),
    bad=(Bad(("f32[3, 64]", "u32[40]", "f32[5, 2]", "f32[5, 2]"),
             "matmul_affine: bits: given 7, wanted one of 2, 3, 4, 5, 6, 8",
             {"bits": 7, "group": 32}),
         Bad(("f32[3, 64]", "u32[40]", "f32[5, 2]", "f32[5, 2]"),
             "matmul_affine: group: given 48, wanted one of 32, 64, 128",
             {"bits": 4, "group": 48}),
         Bad(("f32[3, 64]", "u32[41]", "f32[5, 2]", "f32[5, 2]"), "41 words and 40 of 5 rows differ",
             {"bits": 4, "group": 32}),
         Bad(("f32[3, 64]", "u32[40]", "f32[5, 3]", "f32[5, 3]"), "3 groups and ⌈64 / 32⌉ = 2 differ",
             {"bits": 4, "group": 32}),
         Bad(("f32[3, 64]", "f32[40]", "f32[5, 2]", "f32[5, 2]"), f"wanted {PRODUCT}", {"bits": 4, "group": 32}),
         Bad(("f32[3, 64]", "u32[40]", "f32[5, 2]", "f32[5, 1]"), f"wanted {PRODUCT}", {"bits": 4, "group": 32})),
    check=_check,
    any_dtype=True,
)  # fmt: skip
def matmul_affine(x: Value, codes: Value, scales: Value, biases: Value, bits: int, group: int) -> Value:
    """x · Wᵀ with W = scale · code + bias by group: f32[m, k], u32[words], f32[n, ⌈k / group⌉] twice -> f32[m, n].

    Code i of a row of W is bits i · bits … of the row's little-endian stream; a row is whole packs: 8 codes of 4 bits
    in 4 bytes, 4 of 6 bits in 3, 4 of 8 bits in 4. bits: 2, 3, 4, 5, 6, 8; group: 32, 64, 128.
    """
    return matmul_bt(x, affine_weights(codes, scales, biases, x.shape[1], bits, group))
