"""ATen operators that layers are made of: products, convolutions, pools, norms, attention, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gdlab import ops
from gdlab.load.onnx.tensor import Tensor, fitted, known
from gdlab.load.pt2.aten_layout import repeated, unsqueezed
from gdlab.load.pt2.call import Aten, Floats, Ints, MaybeInts, Number, Table, Tensors, Translate
from gdlab.load.shared import Malformed, Unsupported

LOW = -3.0e38  # of a score that a mask leaves out


# products -------------------------------------------------------------------------------------------------------------
def _linear(c: Aten, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if len(weight.shape) != 2 or not input.shape:
        raise Malformed("weight", list(weight.shape), "[out, in], and an input of rank ≥ 1")
    rows = c.reshaped(input, (-1 if input.size == 0 else input.size // input.shape[-1], input.shape[-1]))
    made = c.onnx("Gemm", rows, weight, bias, transB=1)
    return c.reshaped(made, (*input.shape[:-1], weight.shape[0]))


def _matmul(c: Aten, self: Tensor, other: Tensor) -> Tensor:
    return c.onnx("MatMul", self, other)


def _mm(c: Aten, self: Tensor, mat2: Tensor) -> Tensor:
    return c.onnx("MatMul", self, mat2)


def _mv(c: Aten, self: Tensor, vec: Tensor) -> Tensor:
    return c.onnx("MatMul", self, vec)


def _dot(c: Aten, self: Tensor, tensor: Tensor) -> Tensor:
    return c.onnx("MatMul", self, tensor)


def _outer(c: Aten, self: Tensor, vec2: Tensor) -> Tensor:
    dtype = c.meta.dtype
    return c.onnx("Mul", unsqueezed(c, c.cast(self, dtype), 1), unsqueezed(c, c.cast(vec2, dtype), 0))


def _addmm(c: Aten, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return c.onnx("Gemm", mat1, mat2, self, alpha=float(alpha), beta=float(beta))


def _baddbmm(c: Aten, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    made = c.onnx("MatMul", batch1, batch2)
    made = made if alpha == 1 else c.onnx("Mul", made, c.number(alpha, made.dtype))
    if beta == 0:
        return made
    return c.onnx("Add", made, self if beta == 1 else c.onnx("Mul", self, c.number(beta, made.dtype)))


def _einsum(c: Aten, equation: str, tensors: Tensors, path: Ints | None = None) -> Tensor:
    """Return the einsum of one or two operands: axes that both have are matched or summed, as one batched product."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    labels = [*"".join(terms)]
    if not arrow or len(terms) != len(tensors) or len(tensors) > 2 or "." in equation:
        raise Unsupported(f"the equation {equation!r:.60}: one or two operands and a result are taken")
    if any(len(set(t)) != len(t) for t in (*terms, out)) or not set(out) <= set(labels):
        raise Unsupported(f"the equation {equation!r:.60}: an axis twice, or one from nowhere")
    extents: dict[str, int] = {}
    for term, t in zip(terms, tensors, strict=True):
        if len(term) != len(t.shape) or any(extents.setdefault(a, n) != n for a, n in zip(term, t.shape, strict=True)):
            raise Malformed("operands", [list(t.shape) for t in tensors], f"shapes for {equation!r:.60}")
    parts = []
    for i, (term, t) in enumerate(zip(terms, tensors, strict=True)):
        needed = {*out, *(terms[1 - i] if len(terms) > 1 else "")}
        lost = tuple(k for k, a in enumerate(term) if a not in needed)
        parts.append((t if not lost else c.reduced("ReduceSum", t, lost, False), [a for a in term if a in needed]))
    if len(parts) == 1:
        return c.onnx("Transpose", parts[0][0], perm=tuple(parts[0][1].index(a) for a in out))
    return _contracted(c, parts, out, extents)


def _contracted(c: Aten, parts: Sequence[tuple[Tensor, list[str]]], out: str, extents: dict[str, int]) -> Tensor:
    (x, a), (y, b) = parts
    both = [k for k in a if k in b and k in out]
    summed = [k for k in a if k in b and k not in out]
    rows, columns = [k for k in a if k not in b], [k for k in b if k not in a]

    def size(axes: Sequence[str]) -> int:
        return math.prod(extents[k] for k in axes)

    lead = tuple(extents[k] for k in both)
    x = c.onnx("Transpose", x, perm=tuple(a.index(k) for k in (*both, *rows, *summed)))
    y = c.onnx("Transpose", y, perm=tuple(b.index(k) for k in (*both, *summed, *columns)))
    made = c.onnx("MatMul", c.reshaped(x, (*lead, size(rows), size(summed))),
                  c.reshaped(y, (*lead, size(summed), size(columns))))  # fmt: skip
    order = [*both, *rows, *columns]
    made = c.reshaped(made, tuple(extents[k] for k in order))
    return c.onnx("Transpose", made, perm=tuple(order.index(k) for k in out))


# windows --------------------------------------------------------------------------------------------------------------
def _lined(given: Ints, rank: int, what: str) -> Ints:
    """Return `given` as one number per spatial axis, or raise."""
    numbers = given * rank if len(given) == 1 else given
    if len(numbers) != rank:
        raise Malformed(what, list(given), f"{rank} ints")
    return numbers


def _spatial(x: Tensor, kernel: Tensor) -> int:
    if len(x.shape) != len(kernel.shape) or len(x.shape) not in (3, 4):
        shapes = f"{list(x.shape)} by {list(kernel.shape)}"
        raise Unsupported(f"a convolution of {shapes}: [n, c, w] and [n, c, h, w] are taken")
    return len(x.shape) - 2


def _conv(
    c: Aten, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = (1,), padding: Ints = (0,),
    dilation: Ints = (1,), groups: int = 1,
) -> Tensor:  # fmt: skip
    rank = _spatial(input, weight)
    pads = _lined(padding, rank, "padding")
    return c.onnx("Conv", input, weight, bias, strides=_lined(stride, rank, "stride"), pads=(*pads, *pads),
                  dilations=_lined(dilation, rank, "dilation"), group=groups)  # fmt: skip


def _conv_named(
    c: Aten, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = (1,), padding: str = "valid",
    dilation: Ints = (1,), groups: int = 1,
) -> Tensor:  # fmt: skip
    rank = _spatial(input, weight)
    if padding not in ("same", "valid"):
        raise Malformed("padding", repr(padding), "same or valid")
    spread = _lined(dilation, rank, "dilation")
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(spread, weight.shape[2:], strict=True)]
    pads = (*(n // 2 for n in total), *(n - n // 2 for n in total))
    return c.onnx("Conv", input, weight, bias, strides=_lined(stride, rank, "stride"), pads=pads, dilations=spread,
                  group=groups)  # fmt: skip


def _conv_transpose(
    c: Aten, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = (1,), padding: Ints = (0,),
    output_padding: Ints = (0,), groups: int = 1, dilation: Ints = (1,),
) -> Tensor:  # fmt: skip
    rank = _spatial(input, weight)
    pads = _lined(padding, rank, "padding")
    return c.onnx("ConvTranspose", input, weight, bias, strides=_lined(stride, rank, "stride"), pads=(*pads, *pads),
                  output_padding=_lined(output_padding, rank, "output_padding"), group=groups,
                  dilations=_lined(dilation, rank, "dilation"))  # fmt: skip


def _convolution(
    c: Aten, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Tensor:  # fmt: skip
    if transposed:
        return _conv_transpose(c, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(c, input, weight, bias, stride, padding, dilation, groups)


def _images(c: Aten, x: Tensor, kernel: Ints) -> tuple[Tensor, int]:
    """Return x with an axis of images, and the number of spatial axes."""
    rank = len(x.shape) - 2
    if rank not in (1, 2) or len(kernel) not in (1, rank):
        raise Unsupported(f"a pool of {list(x.shape)}: [n, c, w] and [n, c, h, w] are taken")
    return x, rank


def _max_pool(
    c: Aten, self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    x, rank = _images(c, self, kernel_size)
    size, pads = _lined(kernel_size, rank, "kernel_size"), _lined(padding, rank, "padding")
    return c.onnx("MaxPool", x, kernel_shape=size, strides=_lined(stride or size, rank, "stride"), pads=(*pads, *pads),
                  dilations=_lined(dilation, rank, "dilation"), ceil_mode=int(ceil_mode))  # fmt: skip


def _avg_pool(
    c: Aten, self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    if divisor_override is not None:
        raise Unsupported(f"divisor_override={divisor_override}")
    x, rank = _images(c, self, kernel_size)
    size, pads = _lined(kernel_size, rank, "kernel_size"), _lined(padding, rank, "padding")
    return c.onnx("AveragePool", x, kernel_shape=size, strides=_lined(stride or size, rank, "stride"),
                  pads=(*pads, *pads), ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad))  # fmt: skip


def _adaptive_avg_pool(c: Aten, self: Tensor, output_size: MaybeInts) -> Tensor:
    """Return the mean of windows that begin at ⌊i·n/m⌋ and end before ⌈(i + 1)·n/m⌉."""
    first = len(self.shape) - len(output_size)
    wanted = [n if m is None else m for n, m in zip(self.shape[first:], output_size, strict=True)]
    if first < 1 or min(wanted) < 1:
        raise Malformed("output_size", list(output_size), f"extents ≥ 1 for {list(self.shape)}")
    if set(wanted) == {1}:
        return c.reduced("ReduceMean", self, tuple(range(first, len(self.shape))), True)
    if first == 2 and all(n % m == 0 for n, m in zip(self.shape[2:], wanted, strict=True)):
        return _avg_pool(c, self, tuple(n // m for n, m in zip(self.shape[2:], wanted, strict=True)))
    for axis, m in enumerate(wanted, first):
        n = self.shape[axis]
        if m != n:
            c.home.check_size((n, m))
            matrix = np.zeros((n, m))
            for i in range(m):
                low, high = i * n // m, -(-(i + 1) * n // m)
                matrix[low:high, i] = 1 / (high - low)
            self = c.along(self, axis, matrix)
    return self


def _adaptive_max_pool(c: Aten, self: Tensor, output_size: Ints) -> Tensor:
    extents = self.shape[-len(output_size) :]
    if len(self.shape) != len(output_size) + 2 or min(output_size) < 1 or any(
        n % m for n, m in zip(extents, output_size, strict=True)
    ):  # fmt: skip
        raise Unsupported(f"output_size={list(output_size)} of {list(self.shape)}, where a divisor is taken")
    return _max_pool(c, self, tuple(n // m for n, m in zip(extents, output_size, strict=True)))


# norms ----------------------------------------------------------------------------------------------------------------
def _normed(
    c: Aten, input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: Number
) -> Tensor:
    """Return (x − mean) / √(variance + ε) · γ + β per channel; the statistics of the file are constants."""
    factor = c.onnx("Reciprocal", c.onnx("Sqrt", c.onnx("Add", variance, c.number(eps, "float32"))))
    factor = factor if weight is None else c.onnx("Mul", weight, factor)
    offset = c.onnx("Neg", c.onnx("Mul", mean, factor))
    offset = offset if bias is None else c.onnx("Add", bias, offset)
    lined = (mean.size, *(1,) * (len(input.shape) - 2))
    scaled = c.onnx("Mul", input, c.reshaped(factor, lined))
    if len(input.shape) == 4:
        return fitted(ops.add_per_channel(c.value(scaled), c.value(offset)), input.shape)
    return c.onnx("Add", scaled, c.reshaped(offset, lined))


def _batch_norm(
    c: Aten, input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: Number = 0.1, eps: Number = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise Unsupported("statistics of the batch: export the module after eval()")
    if len(input.shape) < 2 or running_mean.shape != input.shape[1:2] or running_var.shape != input.shape[1:2]:
        raise Malformed("running_mean", list(running_mean.shape), f"one number per channel of {list(input.shape)}")
    return _normed(c, input, weight, bias, running_mean, running_var, eps)


def _batch_norm_core(
    c: Aten, input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: Number = 0.1, eps: Number = 1e-5,
) -> Tensor:  # fmt: skip
    return _batch_norm(c, input, weight, bias, running_mean, running_var, False, momentum, eps)


def _layer_norm(
    c: Aten, input: Tensor, normalized_shape: Ints, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: Number = 1e-5, cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    if not normalized_shape or input.shape[-len(normalized_shape) :] != normalized_shape:
        raise Malformed("normalized_shape", list(normalized_shape), f"the last axes of {list(input.shape)}")
    return c.onnx("LayerNormalization", input, weight, bias, axis=-len(normalized_shape), epsilon=float(eps))


def _rms_norm(
    c: Aten, input: Tensor, normalized_shape: Ints, weight: Tensor | None = None, eps: Number | None = None
) -> Tensor:
    if not normalized_shape or input.shape[-len(normalized_shape) :] != normalized_shape:
        raise Malformed("normalized_shape", list(normalized_shape), f"the last axes of {list(input.shape)}")
    small = float(np.finfo(np.float32).eps) if eps is None else float(eps)
    return c.onnx("RMSNormalization", input, weight, axis=-len(normalized_shape), epsilon=small)


def _group_norm(
    c: Aten, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: Number = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    if len(input.shape) < 2:
        raise Malformed("input", list(input.shape), "[n, c, …]")
    channels = input.shape[1:2]
    scale = c.filled(channels, 1, "float32") if weight is None else weight
    shift = c.filled(channels, 0, "float32") if bias is None else bias
    return c.onnx("GroupNormalization", input, scale, shift, num_groups=num_groups, epsilon=float(eps))


def _group_norm_core(
    c: Aten, input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int,
    eps: Number,
) -> Tensor:  # fmt: skip
    if (N, C, N * C * HxW) != (*input.shape[:2], input.size):
        raise Malformed("N, C, HxW", f"{N}, {C}, {HxW}", f"those of {list(input.shape)}")
    return _group_norm(c, input, group, weight, bias, eps)


def _instance_norm(
    c: Aten, input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: Number, eps: Number, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    if use_input_stats:
        return _group_norm(c, input, input.shape[1], weight, bias, eps)
    return _batch_norm(c, input, weight, bias, running_mean, running_var, False, momentum, eps)


# attention ------------------------------------------------------------------------------------------------------------
def _attention(
    c: Aten, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: Number = 0.0,
    is_causal: bool = False, scale: Number | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return softmax(q · kᵀ · scale + mask) · v; a query that sees no key gives 0."""
    if dropout_p:
        raise Unsupported("dropout while training: export the module after eval()")
    if min(len(t.shape) for t in (query, key, value)) < 2:
        raise Malformed("query", list(query.shape), "rank 2 or more")
    if enable_gqa and len(query.shape) > 2:
        heads = query.shape[-3]
        if heads % key.shape[-3] or heads % value.shape[-3]:
            raise Malformed("key", list(key.shape), f"heads that divide {heads}")
        key, value = (repeated(c, t, len(t.shape) - 3, heads // t.shape[-3]) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    order = (*range(len(key.shape) - 2), len(key.shape) - 1, len(key.shape) - 2)
    scores = c.onnx("MatMul", query, c.onnx("Transpose", key, perm=order))
    scores = c.onnx("Mul", scores, c.number(factor, scores.dtype))
    seen = None
    if is_causal:
        if attn_mask is not None:
            raise Malformed("attn_mask", "a mask", "none beside is_causal")
        c.home.check_size(scores.shape[-2:])
        attn_mask = replace(known(np.tri(*scores.shape[-2:], dtype=np.bool_), "bool"), dtype="bool")
    if attn_mask is not None and attn_mask.kind == "bool":
        scores = c.onnx("Where", attn_mask, scores, c.number(LOW, scores.dtype))
        if not attn_mask.known or not np.asarray(attn_mask.array).any(-1).all():
            seen = c.cast(attn_mask, "int64")
    elif attn_mask is not None:
        if attn_mask.known and (np.asarray(attn_mask.array) == -np.inf).all(-1).any():
            raise Unsupported("a mask of −∞ alone for some query")
        scores = c.onnx("Add", scores, c.cast(attn_mask, scores.dtype))
    shares = c.onnx("Softmax", scores, axis=-1)
    if seen is not None:
        shares = c.onnx("Mul", shares, c.cast(c.reduced("ReduceMax", seen, (-1,), True), shares.dtype))
    return c.onnx("MatMul", shares, value)


def _attention_core(
    c: Aten, query: Tensor, key: Tensor, value: Tensor, dropout_p: Number = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: Number | None = None,
) -> Tensor:  # fmt: skip
    return _attention(c, query, key, value, attn_mask, dropout_p, is_causal, scale)


# resizing -------------------------------------------------------------------------------------------------------------
def _resize(c: Aten, x: Tensor, size: Ints | None, scales: Floats | None, mode: str, corners: bool) -> Tensor:
    count = len(x.shape) - 2
    if corners and scales and len(scales) == count:  # places follow from the extents alone
        size, scales = tuple(math.floor(n * s) for n, s in zip(x.shape[2:], scales, strict=True)), None
    sizes = None if scales else c.ints((*x.shape[:2], *_lined(size or (), count, "output_size")))
    factors = None
    if scales:
        if len(scales) != count or min(scales) <= 0:
            raise Malformed("scale_factors", list(scales), f"{count} numbers above 0")
        factors = replace(known(np.array((1, 1, *scales), np.float64)), dtype="float32")
    where = "align_corners" if corners else "asymmetric" if mode == "nearest" else "half_pixel"
    return c.onnx("Resize", x, None, factors, sizes, mode=mode, coordinate_transformation_mode=where,
                  nearest_mode="floor", cubic_coeff_a=-0.75)  # fmt: skip


def _upsample(mode: str) -> Translate:
    def translate(
        c: Aten, input: Tensor, output_size: Ints | None, align_corners: bool = False,
        scale_factors: Floats | None = None,
    ) -> Tensor:  # fmt: skip
        return _resize(c, input, output_size, scale_factors, mode, align_corners)

    return translate


def _upsample_core(mode: str) -> Translate:
    def translate(
        c: Aten, self: Tensor, output_size: Ints, align_corners: bool = False, scales_h: Number | None = None,
        scales_w: Number | None = None, scales: Number | None = None,
    ) -> Tensor:  # fmt: skip
        given = [s for s in (scales_h, scales_w, scales) if s is not None]
        return _resize(c, self, output_size, tuple(map(float, given)) or None, mode, align_corners)

    return translate


LAYERS: Table = {
    "linear": _linear, "matmul": _matmul, "mm": _mm, "bmm": _mm, "mv": _mv, "dot": _dot, "outer": _outer,
    "addmm": _addmm, "baddbmm": _baddbmm, "einsum": _einsum,
    "conv1d": _conv, "conv2d": _conv, "conv1d.padding": _conv_named, "conv2d.padding": _conv_named,
    "conv_transpose1d": _conv_transpose, "conv_transpose2d.input": _conv_transpose, "convolution": _convolution,
    "max_pool1d": _max_pool, "max_pool2d": _max_pool, "max_pool2d_with_indices": _max_pool, "avg_pool1d": _avg_pool,
    "avg_pool2d": _avg_pool, "adaptive_avg_pool1d": _adaptive_avg_pool, "adaptive_avg_pool2d": _adaptive_avg_pool,
    "_adaptive_avg_pool2d": _adaptive_avg_pool, "adaptive_max_pool1d": _adaptive_max_pool,
    "adaptive_max_pool2d": _adaptive_max_pool,
    "batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm_core, "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm,
    "native_group_norm": _group_norm_core, "instance_norm": _instance_norm,
    "scaled_dot_product_attention": _attention, "_scaled_dot_product_flash_attention_for_cpu": _attention_core,
    "upsample_nearest1d.vec": _upsample("nearest"), "upsample_nearest2d.vec": _upsample("nearest"),
    "upsample_linear1d.vec": _upsample("linear"), "upsample_bilinear2d.vec": _upsample("linear"),
    "upsample_bicubic2d.vec": _upsample("cubic"), "upsample_nearest2d": _upsample_core("nearest"),
    "upsample_bilinear2d": _upsample_core("linear"), "upsample_bicubic2d": _upsample_core("cubic"),
}  # fmt: skip
