"""State products with weights in blocks: those of `matmul_affine` and of ggml, and products with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab import ops
from gdlab.base.errors import ArgumentError, DTypeError, ShapeError
from gdlab.base.types import FORMATS, DType, TensorType, u32
from gdlab.graph import Value
from gdlab.ops.quant import GROUPS, PACKS, row_bytes
from gdlab.plan.order import Range
from gdlab.record.buffers import Buffer, integer
from gdlab.record.finish import index_error
from gdlab.record.operation import OperandRange, Operation, checked_buffer, operation, part, tensor

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

Buffers = Sequence[Buffer]
GGML = {d.value.upper(): d for d, format in FORMATS.items() if format.axis == -1 and format.block > 1}
SIMD_ROWS, SIMD_STEPS = 8, 256


@dataclass(frozen=True, slots=True)
class QuantizedMatmulParams:
    """x[m, k] times a matrix of n rows of k codes of `bits` bits, with a scale and a bias per `group_size` codes."""

    m: int
    k: int
    n: int
    group_size: int
    bits: int


@dataclass(frozen=True, slots=True)
class GgmlQuantizedMatmulParams:
    """x[m, k] times a matrix of n rows in blocks of `ggml_type` ("Q4_K")."""

    m: int
    n: int
    k: int
    ggml_type: str | DType


@dataclass(frozen=True, slots=True)
class GgmlQuantizedMatmulIdParams:
    """x[n_tokens, k] times one of `n_experts` matrices for each of the `top_k` numbers of a token; `expert_stride`
    bytes lie between two matrices."""

    n_tokens: int
    top_k: int
    n: int
    k: int
    n_experts: int
    expert_stride: int
    ggml_type: str | DType


# in codes of a few bits -----------------------------------------------------------------------------------------------
def affine_product(x: Value, codes: Value, scales: Value, biases: Value, bits: int, group: int) -> Value:
    """Return x · (scale · code + bias)ᵀ."""
    return ops.matmul_affine(x, codes, scales, biases, bits, group)


def affine_sizes(where: str, params: Any) -> tuple[int, int, int, int, int]:
    """Return m, k, n, group size and bits of checked parameters."""
    if not isinstance(params, QuantizedMatmulParams):
        raise ArgumentError(where, "params", type(params).__name__, "QuantizedMatmulParams")
    m, k, n = (integer(where, name, getattr(params, name)) for name in ("m", "k", "n"))
    bits, group = integer(where, "bits", params.bits), integer(where, "group_size", params.group_size)
    if bits not in PACKS:
        raise ArgumentError(where, "bits", bits, f"one of {', '.join(map(str, PACKS))}")
    if group not in GROUPS:
        raise ArgumentError(where, "group_size", group, f"one of {', '.join(map(str, GROUPS))}")
    return m, k, n, group, bits


def quantized_matmul(ex: GraphExecutor, where: str, buffers: Buffers, params: Any) -> Operation:
    """Check and lower `quantized_matmul`; buffers: input, weight, scales, biases, output."""
    m, k, n, group, bits = affine_sizes(where, params)
    words, groups = -(-n * row_bytes(k, bits) // 4), -(-k // group)
    x = part(ex, where, "input", buffers, 0, tensor((m, k)), least=True)
    codes = part(ex, where, "weight", buffers, 1, tensor((words,), u32), least=True)
    scales, biases = (
        part(ex, where, name, buffers, i, tensor((n, groups), DType.bf16), least=True, words=True)
        for i, name in ((2, "scales"), (3, "biases"))
    )
    out = part(ex, where, "output", buffers, 4, tensor((m, n)))
    attrs = ("bits", bits), ("group", group)
    return operation(ex, where, affine_product, (x, codes, scales, biases), out, attrs, route=True)


def simd_route(params: QuantizedMatmulParams) -> str:
    """Return why the sum in another order does not fit these sizes, or an empty string."""
    reasons = (
        (params.bits not in (4, 8), f"bits {params.bits} are neither 4 nor 8"),
        (params.n % SIMD_ROWS != 0, f"n {params.n} is no multiple of {SIMD_ROWS}"),
        (params.k % SIMD_STEPS != 0, f"k {params.k} is no multiple of {SIMD_STEPS}"),
    )
    return next((reason for holds, reason in reasons if holds), "")


# in blocks of ggml ----------------------------------------------------------------------------------------------------
def block_product(x: Value, w: Value) -> Value:
    """Return x · wᵀ."""
    return ops.matmul_bt(x, w)


def expert_product(x: Value, w: Value, ids: Value, top_k: int, stride: int) -> Value:
    """Return x[r // top_k] · w[ids[r]]ᵀ for each row r."""
    return ops.grouped_matmul_bt(x, w, ids, top_k, stride)


def ggml_dtype(where: str, given: Any, k: int) -> DType:
    """Return the storage dtype of a format, whose blocks must divide a row."""
    name = given.value.upper() if isinstance(given, DType) else given
    if not isinstance(name, str) or name.upper() not in GGML:
        raise DTypeError(where, "ggml_type", repr(given), f"one of {', '.join(GGML)}")
    dtype = GGML[name.upper()]
    if k % FORMATS[dtype].block:
        raise ArgumentError(where, "k", k, f"a multiple of {FORMATS[dtype].block}")
    return dtype


def quantized_matmul_ggml(ex: GraphExecutor, where: str, buffers: Buffers, params: Any) -> Operation:
    """Check and lower `quantized_matmul_ggml`; buffers: input, weight, output."""
    if not isinstance(params, GgmlQuantizedMatmulParams):
        raise ArgumentError(where, "params", type(params).__name__, "GgmlQuantizedMatmulParams")
    m, n, k = (integer(where, name, getattr(params, name)) for name in ("m", "n", "k"))
    dtype = ggml_dtype(where, params.ggml_type, k)
    x = part(ex, where, "input", buffers, 0, tensor((m, k)), least=True)
    w = part(ex, where, "weight", buffers, 1, tensor((n, k), dtype), least=True)
    out = part(ex, where, "output", buffers, 2, tensor((m, n)), least=True)
    return operation(ex, where, block_product, (x, w), out, route=True)


def quantized_matmul_id_ggml(ex: GraphExecutor, where: str, buffers: Buffers, params: Any) -> Operation:
    """Check and lower `quantized_matmul_id_ggml`; buffers: input, weight, ids, output."""
    if not isinstance(params, GgmlQuantizedMatmulIdParams):
        raise ArgumentError(where, "params", type(params).__name__, "GgmlQuantizedMatmulIdParams")
    tokens, top_k, n, k, experts = (
        integer(where, name, getattr(params, name)) for name in ("n_tokens", "top_k", "n", "k", "n_experts")
    )
    dtype = ggml_dtype(where, params.ggml_type, k)
    slab = TensorType((n, k), dtype).data_bytes
    stride = integer(where, "expert_stride", params.expert_stride)
    if stride < slab:
        raise ArgumentError(where, "expert_stride", stride, f"at least {slab}, the bytes of one expert")
    x = part(ex, where, "input", buffers, 0, tensor((tokens, k)), least=True)
    w = _experts(ex, where, buffers, TensorType((experts, n, k), dtype), (experts - 1) * stride + slab, stride, slab)
    ids = part(ex, where, "ids", buffers, 2, tensor((tokens * top_k,), u32), least=True)
    out = part(ex, where, "output", buffers, 3, tensor((tokens * top_k, n)), least=True)
    attrs = ("top_k", top_k), ("stride", 0 if stride == slab else stride)
    return operation(ex, where, expert_product, (x, w, ids), out, attrs, checks=((ids, experts),), route=True)


def _experts(
    ex: GraphExecutor, where: str, buffers: Buffers, type: TensorType, nbytes: int, stride: int, slab: int
) -> OperandRange:
    buffer = checked_buffer(ex, where, "weight", buffers[1])
    if buffer.dtype is not u32:
        raise DTypeError(where, "weight", f"{buffer.dtype} elements", "u32 words")
    if buffer.nbytes < nbytes:
        raise ShapeError(where, "weight", f"{buffer.nbytes} bytes", f"at least {nbytes}")
    start = buffer.byte_offset
    stop = start + -(-nbytes // 4) * 4
    return OperandRange(1, Range(buffer.allocation.number, start, stop), type, 0 if stride == slab else stride, True)


def check_host_ids(where: str, ids: Any, count: int, experts: int) -> None:
    """Raise if the host wrote a number that no expert has."""
    if isinstance(ids, Buffer) and ids.is_open and ids.allocation.from_host:
        numbers = ids.read().reshape(-1)[:count]
        bad = np.flatnonzero(numbers >= experts)
        if bad.size:
            raise index_error(where, int(bad[0]), int(numbers[bad[0]]), experts)
