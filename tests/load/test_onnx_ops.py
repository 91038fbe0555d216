"""Every ONNX op that is taken, with its attributes and with the forms that it had in other opsets, against ONNX."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import agree, given, model
from places import REPO

import gdlab as gd
from gdlab.autodiff import differentiate
from gdlab.graph import Value
from gdlab.load.nnef.operations import OPERATIONS
from gdlab.load.onnx.onnx_model import TABLE
from gdlab.op.reference import evaluate

RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 2, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def mask(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


@dataclass
class Case:
    """A node: its fed operands, or held ones (a tuple), None where one is left out."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

    def __str__(self) -> str:
        told = [f"{k}={v}" for k, v in self.attrs.items() if not hasattr(v, "dims")]
        return f"{self.op}-{self.opset}-{'-'.join(told)}"


def held(array: Any) -> tuple[np.ndarray]:
    """An initializer."""
    return (np.asarray(array),)


def C(op: str, *operands: Any, opset: int = 17, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, operands, attrs, opset, outputs)


MATH = [
    *(C(op, f(2, 3), f(2, 3)) for op in ("Add", "Sub", "Mul")),
    *(C(op, f(2, 1, 3), f(4, 1)) for op in ("Add", "Sub", "Mul")),
    *(C(op, f(2, 3), held(np.float32(1.5))) for op in ("Add", "Sub", "Mul", "Div")),
    *(C(op, held(np.float32(1.5)), pos(2, 3)) for op in ("Add", "Sub", "Mul", "Div", "Pow")),
    *(C(op, f(3), held(pos(1, 1, 1))) for op in ("Add", "Sub", "Mul", "Div")),
    C("Add", f(2, 3), held(f(3))), C("Add", f(), f()), C("Add", f(2), held(np.float32(-np.inf))),
    C("Div", f(2, 3), pos(3)), C("Div", f(3), held(np.float32(0))),
    C("Pow", f(2, 3), held(np.float32(2))), C("Pow", pos(2, 3), held(np.float32(0.5))), C("Pow", pos(2, 3), f(3)),
    C("Pow", f(3), held(ints(3))),
    *(C(op, f(2, 3)) for op in ("Neg", "Abs", "Exp", "Erf", "Relu", "Sigmoid", "Tanh", "Softplus", "Sin", "Cos",
                                "Sign", "Identity")),
    *(C(op, pos(2, 3)) for op in ("Log", "Sqrt", "Reciprocal")),
    C("Gelu", f(2, 3), opset=20), C("Gelu", f(2, 3), opset=20, approximate="tanh"),
    C("Swish", f(2, 3), opset=24), C("Swish", f(2, 3), opset=24, alpha=1.7),
    C("LeakyRelu", f(2, 3)), C("LeakyRelu", f(2, 3), alpha=0.3), C("Elu", f(2, 3)), C("Elu", f(2, 3), alpha=0.5),
    C("HardSigmoid", 3 * f(2, 3)), C("HardSigmoid", f(2, 3), alpha=0.5, beta=0.1), C("HardSwish", 3 * f(2, 3)),
    C("PRelu", f(2, 3), held(f(3))), C("PRelu", f(2, 3), f(1)),
    C("Clip", f(2, 3), opset=7, min=-0.5, max=0.7), C("Clip", f(2, 3), opset=7, max=0.7),
    C("Clip", f(2, 3), held(np.float32(-0.5)), held(np.float32(0.7))), C("Clip", f(2, 3)),
    C("Clip", f(2, 3), None, held(np.float32(0.7))), C("Clip", f(2, 3), held(np.float32(0.1))),
    C("Clip", f(2, 3), f(), held(np.float32(0.7))), C("Clip", f(2, 3), held(np.float32(0.7)), held(np.float32(-1))),
    C("Clip", f(2, 3), held(np.float32(-np.inf)), held(np.float32(0))),
    *(C(op, f(2, 3), f(3), f(2, 1)) for op in ("Min", "Max", "Sum", "Mean")),
    *(C(op, f(2, 3)) for op in ("Min", "Max", "Sum", "Mean")), C("Max", f(2, 3), held(np.float32(0))),
    C("Where", mask(2, 3), f(2, 3), f(3)), C("Where", held(mask(2, 3)), f(2, 3), held(np.float32(-np.inf))),
    C("Where", mask(2, 1), held(np.float32(1)), f(3)), C("Where", mask(3), held(np.float32(1)), held(np.float32(0))),
    *(C(op, f(2, 3), f(3)) for op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")),
    *(C(op, f(2, 3), held(np.float32(0.1))) for op in ("Greater", "Less", "Equal")),
    *(C(op, held(np.float32(0.1)), f(2, 3)) for op in ("Greater", "Less", "LessOrEqual")),
    C("Equal", ints(1, 2, 3), held(ints(2))), *(C(op, mask(2, 3), mask(3)) for op in ("And", "Or", "Xor")),
    C("And", mask(3), held(np.bool_(True))), C("Not", mask(2, 3)),
    C("Add", ints(1, 2, 3), held(ints(4))), C("Div", ints(7, 8, 9, 1), held(ints(3))), C("Sub", ints(1, 5), ints(3, 3)),
]  # fmt: skip

CASTS = [
    C("Cast", 3 * f(2, 3), to=TensorProto.INT64), C("Cast", ints(0, 3, 70), to=TensorProto.FLOAT),
    C("Cast", mask(2, 3), to=TensorProto.FLOAT), C("Cast", mask(2, 3), to=TensorProto.INT32),
    C("Cast", f(2, 3), to=TensorProto.DOUBLE), C("Cast", ints(0, 3, 70), to=TensorProto.BOOL),
    C("Cast", held(f(3)), to=TensorProto.INT64), C("Cast", ints(1, 2), to=TensorProto.INT32),
    C("Cast", np.array([0, -0.0, 0.5, -2], np.float32), to=TensorProto.BOOL), C("CastLike", mask(3), f(1)),
]  # fmt: skip

REDUCE = [
    *(C(op, f(2, 3, 4), opset=11, axes=[1]) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    *(C(op, f(2, 3, 4), opset=11, axes=[0, -1], keepdims=0) for op in ("ReduceMean", "ReduceSum", "ReduceMax")),
    *(C(op, f(2, 3, 4), opset=11, keepdims=0) for op in ("ReduceMean", "ReduceSum", "ReduceMax")),
    *(C(op, f(2, 3, 4), opset=11) for op in ("ReduceMean", "ReduceSum", "ReduceMin")),
    *(C(op, f(2, 3, 4), held(ints(-1)), opset=18) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    *(C(op, f(2, 3, 4), held(ints(0, 2)), opset=18, keepdims=0) for op in ("ReduceMean", "ReduceSum")),
    C("ReduceSum", f(2, 3), held(ints(1)), opset=13), C("ReduceSum", f(2, 3), opset=13, noop_with_empty_axes=1),
    C("ReduceSum", f(2, 3), opset=13, keepdims=0),
    *(C(op, pos(2, 3, 4), opset=13, axes=[1]) for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")),
    C("ArgMax", f(3, 5)), C("ArgMax", f(3, 5), axis=1, keepdims=0), C("ArgMax", f(2, 3, 5), axis=-2),
    C("ArgMax", np.array([[1, 3, 3, 0], [2, 2, 0, 0]], np.float32), axis=1, select_last_index=1),
    C("ArgMax", f(5), axis=0, keepdims=0), C("ArgMin", f(3, 5), axis=1),
    *(C(op, f(2, 3, 4), axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (-1, 0, 1)),
    *(C(op, f(2, 3, 4)) for op in ("Softmax", "LogSoftmax")), *(C(op, f(5)) for op in ("Softmax", "LogSoftmax")),
    *(C(op, f(2, 3, 4), opset=11, axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (2, -1)),
]  # fmt: skip

LAYOUT = [
    C("Transpose", f(2, 3, 4)), C("Transpose", f(2, 3, 4), perm=[0, 2, 1]), C("Transpose", f(2, 3, 4), perm=[1, 0, 2]),
    C("Transpose", f(3, 4)), C("Transpose", f(3)),
    C("Reshape", f(2, 3, 4), held(ints(0, -1))), C("Reshape", f(2, 3, 4), held(ints(4, 6))),
    C("Reshape", f(2, 3, 4), held(ints(-1))), C("Reshape", f(2, 3, 4), held(ints(0, 0, 2, 2))),
    C("Reshape", f(1), held(np.zeros(0, np.int64))), C("Reshape", f(2, 3), held(ints(3, 2)), opset=14, allowzero=1),
    C("Reshape", held(f(2, 3)), held(ints(6))), C("Reshape", ints(1, 2, 3, 4), held(ints(2, -1))),
    *(C("Flatten", f(2, 3, 4), axis=axis) for axis in (0, 1, 2, 3, -1)), C("Flatten", f(2, 3, 4)),
    C("Squeeze", f(1, 3, 1), opset=11, axes=[0]), C("Squeeze", f(1, 3, 1), opset=11), C("Squeeze", f(1, 3, 1)),
    C("Squeeze", f(1, 3, 1), held(ints(-1))), C("Squeeze", f(1, 1), held(ints(0, 1))),
    C("Unsqueeze", f(3, 4), opset=11, axes=[0, 3]), C("Unsqueeze", f(3, 4), held(ints(-1, 1))),
    C("Unsqueeze", f(), held(ints(0, 1))),
    C("Concat", f(2, 3), f(1, 3), axis=0), C("Concat", f(2, 3), f(2, 1), f(2, 2), axis=-1), C("Concat", f(2), axis=0),
    C("Concat", f(2, 3), held(f(2, 1)), axis=1), C("Concat", ints(1, 2), held(ints(3)), axis=0),
    C("Split", f(6, 2), opset=11, outputs=3), C("Split", f(2, 6), opset=11, outputs=2, axis=1, split=[2, 4]),
    C("Split", f(2, 6), held(ints(1, 5)), outputs=2, axis=-1), C("Split", f(2, 6), outputs=2, axis=1),
    C("Split", f(7), opset=18, outputs=3, num_outputs=3), C("Split", f(6, 2), held(ints(4, 2)), opset=18, outputs=2),
    C("Slice", f(4, 6), opset=9, starts=[1, 0], ends=[3, 100]), C("Slice", f(4, 6), opset=9, starts=[-3], ends=[-1],
                                                                  axes=[1]),
    C("Slice", f(4, 6), held(ints(1)), held(ints(2**62)), held(ints(1)), held(ints(2))),
    C("Slice", f(4, 6), held(ints(0, -4)), held(ints(2, -1))), C("Slice", f(7), held(ints(-1)), held(ints(-2**62)),
                                                                 held(ints(0)), held(ints(-2))),
    C("Slice", f(4, 6), held(ints(5, 1)), held(ints(0, 3)), held(ints(1, 0)), held(ints(-1, 1))),
    C("Gather", f(5, 3), held(ints(0, 4, -1))), C("Gather", f(5, 3), held(np.int64(-2))),
    C("Gather", f(2, 5, 3), held(np.array([[0, 2], [-1, 1]])), axis=1), C("Gather", f(5, 3), ints(0, 4, 4, 1)),
    C("Gather", held(f(5, 3)), np.array([[0, 4], [4, 1]])), C("Gather", f(2, 5, 3), np.array([[0], [2]]), axis=-2),
    C("Gather", f(5, 3), np.int64(3)), C("Gather", f(6), held(ints(1, 3, 5))),
    C("Gather", ints(5, 6, 7), held(ints(2, 0))),
    C("Expand", f(3, 1), held(ints(2, 1, 4))), C("Expand", f(3, 4), held(ints(1))),
    C("Expand", f(3, 4), held(ints(3, 4))),
    C("Tile", f(2, 3), held(ints(2, 3))), C("Tile", f(2, 1, 3), held(ints(1, 4, 1))),
    C("Pad", f(2, 3), opset=7, pads=[1, 0, 0, 2]), C("Pad", f(2, 3), opset=7, pads=[1, 0, 0, 2], value=1.5),
    C("Pad", f(2, 3), held(ints(1, 0, 0, 2))), C("Pad", f(2, 3), held(ints(0, 1, 0, 1)), held(np.float32(-1.5))),
    C("Pad", f(2, 3), held(ints(1, 1)), None, held(ints(-1)), opset=18),
    *(C("Pad", f(4, 5), held(ints(1, 2, 3, 0)), mode=mode) for mode in ("reflect", "edge")),
    C("Pad", f(4, 5), held(ints(1, 2, 3, 0)), mode="wrap", opset=19),
    C("Dropout", f(2, 3)), C("Dropout", f(2, 3), outputs=2), C("Dropout", f(2, 3), opset=7, ratio=0.3),
    C("Dropout", f(2, 3), held(np.float32(0.5)), held(np.bool_(False))),
    C("Trilu", f(3, 4)), C("Trilu", f(2, 3, 3), held(np.int64(1)), upper=0), C("Trilu", f(3, 3), held(np.int64(-1))),
    C("Shape", f(2, 3, 4)), C("Shape", f(2, 3, 4), start=1), C("Shape", f(2, 3, 4), start=-2, end=-1),
    C("Size", f(2, 3, 4)), C("Range", held(np.int64(1)), held(np.int64(9)), held(np.int64(3))),
    C("Range", held(np.float32(1)), held(np.float32(-1)), held(np.float32(-0.5))),
    C("ConstantOfShape", held(ints(2, 3))),
    C("ConstantOfShape", held(ints(2)), value=numpy_helper.from_array(np.array([7], np.int64))),
    C("Constant", value=numpy_helper.from_array(f(2, 3))), C("Constant", value_float=1.5), C("Constant", value_int=3),
    C("Constant", value_floats=[1.0, -2.5]), C("Constant", value_ints=[1, 2]),
]  # fmt: skip

PRODUCTS = [
    C("MatMul", f(3, 4), f(4, 5)), C("MatMul", f(2, 3, 4), f(4, 5)), C("MatMul", f(2, 3, 4), f(2, 4, 5)),
    C("MatMul", f(2, 1, 3, 4), f(5, 4, 2)), C("MatMul", f(3, 4), f(2, 4, 5)), C("MatMul", f(4), f(4, 5)),
    C("MatMul", f(3, 4), f(4)), C("MatMul", f(4), f(4)), C("MatMul", f(2, 3, 4), f(4)), C("MatMul", f(4), f(2, 4, 5)),
    C("MatMul", f(1, 3, 4), f(1, 4, 5)), C("MatMul", f(2, 3, 4), held(f(1, 4, 5))),
    C("Gemm", f(3, 4), f(4, 5), f(5)), C("Gemm", f(3, 4), f(4, 5)),
    C("Gemm", f(4, 3), f(5, 4), f(3, 1), transA=1, transB=1),
    C("Gemm", f(3, 4), held(f(5, 4)), held(f(5)), transB=1), C("Gemm", f(4, 3), f(4, 5), f(1, 5), transA=1, alpha=0.5),
    C("Gemm", f(3, 4), f(4, 5), f(3, 5), beta=0.25), C("Gemm", f(3, 4), f(4, 5), f(1), alpha=2.0, beta=-1.5),
    C("Gemm", f(3, 4), f(4, 1), f(1)), C("Gemm", f(3, 4), f(4, 5), f(), beta=2.0), C("Gemm", f(3, 4), f(4, 5), f(5),
                                                                                   beta=0.0),
]  # fmt: skip

CONV = [
    C("Conv", f(2, 3, 7, 6), f(4, 3, 3, 2)),
    C("Conv", f(2, 3, 7, 6), held(f(4, 3, 3, 3)), held(f(4)), pads=[1, 1, 1, 1]),
    C("Conv", f(1, 3, 7, 6), f(4, 3, 3, 3), f(4), pads=[0, 1, 2, 1], strides=[2, 1]),
    C("Conv", f(1, 4, 9, 9), f(6, 2, 3, 3), f(6), group=2, dilations=[2, 1], pads=[1, 0, 1, 0]),
    C("Conv", f(1, 4, 6, 6), f(4, 1, 3, 3), group=4, kernel_shape=[3, 3]),
    C("Conv", f(2, 3, 10), f(4, 3, 3), f(4)), C("Conv", f(2, 3, 10), f(4, 3, 3), strides=[2], pads=[1, 1]),
    C("Conv", f(2, 4, 10), f(4, 2, 3), f(4), group=2, dilations=[2], pads=[2, 0]),
    *(C("Conv", f(1, 2, 7, 8), f(3, 2, 3, 3), auto_pad=auto, strides=[2, 2])
      for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    C("Conv", f(1, 2, 8), f(3, 2, 4), auto_pad="SAME_LOWER"),
    C("ConvTranspose", f(2, 3, 4, 5), f(3, 4, 3, 3)), C("ConvTranspose", f(2, 3, 4, 5), f(3, 4, 3, 3), f(4),
                                                         strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    C("ConvTranspose", f(1, 3, 4, 5), f(3, 2, 3, 3), strides=[2, 3], pads=[0, 1, 1, 0]),
    C("ConvTranspose", f(1, 2, 4, 4), f(2, 2, 3, 3), dilations=[2, 2]),
    C("ConvTranspose", f(1, 2, 4, 4), f(2, 2, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    C("ConvTranspose", f(1, 2, 5), f(2, 3, 4), f(3), strides=[2], pads=[1, 1]),
]  # fmt: skip

POOL = [
    C("MaxPool", f(2, 3, 7, 6), kernel_shape=[2, 3]), C("MaxPool", f(1, 2, 7, 6), kernel_shape=[3, 3], strides=[2, 2],
                                                        pads=[1, 1, 1, 1]),
    C("MaxPool", f(1, 2, 7, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0]),
    C("MaxPool", f(1, 2, 7, 6), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    C("MaxPool", f(1, 2, 8, 8), kernel_shape=[3, 3], strides=[1, 2], dilations=[2, 2]),
    C("MaxPool", f(1, 2, 9), kernel_shape=[3], strides=[2]), C("MaxPool", f(1, 2, 7, 7), kernel_shape=[3, 3],
                                                               strides=[2, 2], auto_pad="SAME_UPPER"),
    C("AveragePool", f(2, 3, 7, 6), kernel_shape=[2, 3]), C("AveragePool", f(1, 2, 7, 6), kernel_shape=[3, 3],
                                                            strides=[2, 2], pads=[1, 1, 1, 1]),
    C("AveragePool", f(1, 2, 7, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    C("AveragePool", f(1, 2, 7, 6), kernel_shape=[3, 3], pads=[0, 1, 1, 0], strides=[2, 1]),
    C("AveragePool", f(1, 2, 7, 6), kernel_shape=[3, 3], pads=[0, 1, 1, 0], count_include_pad=1),
    C("AveragePool", f(1, 2, 7, 6), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    C("AveragePool", f(1, 2, 8, 8), kernel_shape=[3, 2], strides=[1, 2], dilations=[2, 2], opset=19),
    C("AveragePool", f(1, 2, 9), kernel_shape=[3], strides=[2], pads=[1, 1]),
    C("AveragePool", f(1, 2, 7, 7), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    *(C(op, f(2, 3, 4, 5)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    C("GlobalAveragePool", f(2, 3, 4)),
]  # fmt: skip

NORM = [
    C("LayerNormalization", f(2, 3, 4), held(f(4)), held(f(4))),
    C("LayerNormalization", f(2, 3, 4), f(4), epsilon=1e-2),
    C("LayerNormalization", f(2, 3, 4), f(3, 4), f(3, 4), axis=1),
    C("LayerNormalization", f(2, 3, 4), f(4), f(4), axis=-2),
    C("LayerNormalization", f(5), f(5)), C("LayerNormalization", f(2, 3, 4), f(3, 4), f(3, 4), axis=1, outputs=3),
    C("RMSNormalization", f(2, 3, 4), held(f(4)), opset=23),
    C("RMSNormalization", f(2, 3, 4), f(3, 4), opset=23, axis=1,
                                                               epsilon=1e-2),
    C("GroupNormalization", f(2, 4, 3, 3), f(4), f(4), opset=21, num_groups=2),
    C("GroupNormalization", f(2, 4, 3), held(f(2)), held(f(2)), opset=18, num_groups=2, epsilon=0.1),
    C("InstanceNormalization", f(2, 3, 4, 5), f(3), f(3), epsilon=1e-3),
    C("BatchNormalization", f(2, 3, 4, 5), held(f(3)), held(f(3)), held(f(3)), held(pos(3))),
    C("BatchNormalization", f(2, 3), held(f(3)), held(f(3)), held(f(3)), held(pos(3)), epsilon=0.1),
    C("BatchNormalization", f(2, 3, 4), f(3), f(3), f(3), pos(3)),
]  # fmt: skip

RESIZE = [
    C("Resize", f(1, 2, 3, 4), None, held(np.array([1, 1, 2, 3], np.float32)), mode="nearest", opset=13),
    C("Resize", f(1, 2, 3, 4), None, None, held(ints(1, 2, 6, 8)), mode="nearest", opset=13),
    *(C("Resize", f(1, 2, 3, 4), None, held(np.array([1, 1, 2, 2], np.float32)), mode="nearest", opset=13,
        coordinate_transformation_mode=where, nearest_mode=how)
      for where, how in (("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "floor"),
                         ("asymmetric", "ceil"), ("pytorch_half_pixel", "floor"))),
    C("Resize", f(1, 2, 6, 4), None, held(np.array([1, 1, 0.5, 0.5], np.float32)), mode="nearest", opset=13),
    C("Resize", f(1, 2, 3, 4), None, held(np.array([2, 3], np.float32)), mode="nearest", opset=18, axes=[2, 3]),
    C("Upsample", f(1, 2, 3, 4), held(np.array([1, 1, 2, 3], np.float32)), mode="nearest", opset=9),
]  # fmt: skip

MORE = [
    *(C(op, 3 * f(2, 3)) for op in ("Floor", "Ceil", "Round", "Sinh", "Cosh", "Atan", "Asinh", "IsNaN",
                                    "IsInf")),
    *(C(op, f(2, 3) / 2.1, opset=22) for op in ("Tan", "Asin", "Acos", "Atanh")),
    C("Acosh", 1 + pos(2, 3)), C("Mish", f(2, 3), opset=18),
    *(C(op, held(f(2, 3) / 2.1), opset=22) for op in ("Floor", "Round", "Tan", "Asin", "IsNaN")),
    C("IsInf", np.array([np.inf, -np.inf, 1, np.nan], np.float32), detect_negative=0),
    C("IsInf", np.array([np.inf, -np.inf, 1, np.nan], np.float32), detect_positive=0),
    C("Mod", ints(7, 8, 3), held(ints(-3, 3, 2))), C("Mod", ints(7, 8, 3), ints(3, 5, 2), fmod=1),
    C("Mod", 3 * f(2, 3), pos(3), fmod=1), C("Mod", held(ints(7, -7)), held(ints(3))),
    C("BitShift", held(np.array([3, 8], np.uint64)), held(np.array([2, 1], np.uint64)), direction="RIGHT"),
    *(C(op, held(ints(5, 12)), held(ints(3, 10)), opset=18) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    C("BitwiseNot", held(ints(5, -12)), opset=18),
    C("Selu", f(2, 3)), C("Celu", f(2, 3), alpha=0.7), C("Shrink", f(2, 3), bias=0.3, lambd=0.9),
    C("ThresholdedRelu", f(2, 3), alpha=0.4), C("Hardmax", f(2, 3, 4)), C("Hardmax", f(2, 3, 4), axis=1),
    C("ReduceProd", f(2, 3, 5), held(ints(1)), opset=18), C("ReduceProd", f(2, 3, 5), opset=18, keepdims=0),
    C("ReduceProd", f(3, 7), opset=11, axes=[-1]), C("ReduceLogSum", pos(2, 3, 4), held(ints(0, 2)), opset=18),
    C("LpNormalization", f(2, 3), opset=22), C("LpNormalization", pos(2, 3), opset=22, axis=0, p=1),
    C("LpPool", f(1, 2, 5, 6), opset=18, kernel_shape=[2, 3], p=3),
    C("LpPool", f(1, 2, 5, 6), opset=18, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 0, 1]),
    *(C("DepthToSpace", f(2, 12, 2, 3), blocksize=2, mode=mode) for mode in ("DCR", "CRD")),
    C("SpaceToDepth", f(2, 3, 4, 6), blocksize=2), C("EyeLike", f(3, 4), k=1), C("EyeLike", f(3, 4), dtype=7),
    *(C("CumSum", f(2, 3, 4), held(np.int64(axis)), exclusive=e, reverse=r)
      for axis, e, r in ((0, 0, 0), (1, 1, 0), (2, 0, 1), (-2, 1, 1))),
    C("CumSum", held(ints(1, 2, 3)), held(np.int64(0)), exclusive=1),
    C("NonZero", held(np.array([[1, 0], [3, 0]]))),
    C("Compress", f(2, 3), held(np.array([True, False, True])), axis=1), C("Compress", f(2, 3), held(mask(6) | True)),
    *(C("Resize", f(1, 2, 3, 4), None, None, held(ints(1, 2, 5, 7)), mode=mode, opset=19)
      for mode in ("linear", "cubic")),
]  # fmt: skip

CASES = [*MORE, *MATH, *CASTS, *REDUCE, *LAYOUT, *PRODUCTS, *CONV, *POOL, *NORM, *RESIZE]


def built(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(case.operands)]
    named = dict(zip(names, case.operands, strict=True))
    fed = {n: np.asarray(x) for n, x in named.items() if x is not None and not isinstance(x, tuple)}
    fixed = {n: x[0] for n, x in named.items() if isinstance(x, tuple)}
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", **case.attrs)
    return model([node], fed, fixed, outputs, case.opset), fed


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_means_what_onnx_means(case: Case) -> None:
    data, fed = built(case)
    loaded = agree(data, fed)
    assert set(loaded.weights) == {n.name for n in loaded.graph.parameters}


# what ONNX's reference does not do, or does otherwise than ONNX says --------------------------------------------------
def flat_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1).astype(np.float64)
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).reshape(x.shape)


def scattered(x: np.ndarray, k: np.ndarray, groups: int, stride: tuple[int, int], pads: tuple[int, ...]) -> np.ndarray:
    """A transposed convolution, tap by tap."""
    n, ci, h, w = x.shape
    per, each = k.shape[1], ci // groups
    sizes = [(a - 1) * s + b for a, s, b in zip((h, w), stride, k.shape[2:], strict=True)]
    out = np.zeros((n, per * groups, *sizes))
    for c, i, j in np.ndindex(ci, *k.shape[2:]):
        own = slice(c // each * per, c // each * per + per)
        at = slice(i, i + (h - 1) * stride[0] + 1, stride[0]), slice(j, j + (w - 1) * stride[1] + 1, stride[1])
        out[:, own, at[0], at[1]] += x[:, c, None] * k[c, :, i, j][None, :, None, None]
    return out[:, :, pads[0] : sizes[0] - pads[2], pads[1] : sizes[1] - pads[3]]


def dilated_maxima(image: np.ndarray) -> np.ndarray:
    """3 x 2 elements, 2 and 3 apart, with two rows of border above and one column at each side."""
    padded = np.pad(image, ((0, 0), (2, 0), (1, 1)), constant_values=-np.inf)
    h, w = padded.shape[1] - 4, padded.shape[2] - 3
    return np.max([padded[:, i : i + h, j : j + w] for i in (0, 2, 4) for j in (0, 3)], 0)[None]


def local_response(x: np.ndarray, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    sums = [(x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1) for c in range(x.shape[1])]
    return x / (bias + alpha / size * np.stack(sums, 1)) ** beta


X3, X4, K4, PADDED, ROWS3 = f(2, 3, 4), f(1, 4, 4, 4), f(4, 2, 3, 3), f(4, 5), f(2, 3)
FOUR = [held(f(3)), held(f(3)), held(f(3)), held(pos(3))]
NORMED = (ROWS3 - FOUR[2][0]) / np.sqrt(FOUR[3][0] + 0.1) * FOUR[0][0] + FOUR[1][0]
DOUBLED = X4.repeat(2, 2).repeat(2, 3)
OTHERS = [
    *((C("Softmax", X3, opset=11, axis=axis), flat_softmax(X3, axis)) for axis in (0, 1)),
    *((C("LogSoftmax", X3, opset=11, axis=axis), np.log(flat_softmax(X3, axis))) for axis in (0, 1)),
    (C("Softmax", X3, opset=11), flat_softmax(X3, 1)),
    (C("Pad", PADDED, held(ints(-1, 1, 0, -2))), np.pad(PADDED[1:, :-2], ((0, 0), (1, 0)))),
    (C("ConvTranspose", X4, K4, group=2), scattered(X4, K4, 2, (1, 1), (0, 0, 0, 0))),
    (C("ConvTranspose", X4, K4, strides=[3, 2], output_shape=[10, 8]), scattered(X4, K4, 1, (3, 2), (1, 1, 1, 0))),
    (C("GlobalMaxPool", X3), X3.max(2, keepdims=True)),
    (C("BatchNormalization", ROWS3, *FOUR, epsilon=0.1, opset=9), NORMED),
    (C("Resize", X4, held(np.array([1, 1, 2, 2], np.float32)), mode="nearest", opset=10), DOUBLED),
    (C("Upsample", X4, opset=7, scales=[1.0, 1.0, 2.0, 2.0]), DOUBLED),
    (C("Clip", held(f(3)), opset=7, min=0.1), None),
    (C("Silu", X3), X3 / (1 + np.exp(-X3))),
    (C("Softsign", X3), X3 / (1 + np.abs(X3))),
    (C("Add", X4, f3 := f(4), opset=6, broadcast=1, axis=1), X4 + f3.reshape(1, 4, 1, 1)),
    (C("Mul", X4, X4[0, 0, 0], opset=6, broadcast=1), X4 * X4[0, 0, 0]),
    (C("PRelu", X4, f3, opset=6), np.where(X4 < 0, X4 * f3.reshape(1, 4, 1, 1), X4)),
    (C("BatchNormalization", ROWS3, *FOUR, epsilon=0.1, opset=6, is_test=1), NORMED),
    (C("Reshape", X3, opset=1, shape=[0, -1]), X3.reshape(2, 12)),
    (C("Pad", PADDED, opset=1, paddings=[0, 1, 2, 0], value=2.0),
     np.pad(PADDED, ((0, 2), (1, 0)), constant_values=2.0)),
    (C("MaxPool", DOUBLED, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1], ceil_mode=1), None),
    (C("Mod", held(ints(7, -7)), held(ints(3))), np.array([1, 2])),
    *((C("LRN", X4, size=size, alpha=0.5, beta=0.6, bias=2.0), local_response(X4, size, 0.5, 0.6, 2.0))
      for size in (1, 2, 3, 4)),
    (C("GlobalLpPool", X3), np.sqrt((X3**2).sum(2, keepdims=True))),
    *((C("CumProd", ROWS3, held(np.int64(1)), opset=26, exclusive=e, reverse=r), want) for e, r, want in (
        (0, 0, np.cumprod(ROWS3, 1)), (0, 1, np.cumprod(ROWS3[:, ::-1], 1)[:, ::-1]),
        (1, 0, np.cumprod(np.c_[np.ones(2), ROWS3[:, :-1]], 1)))),
    (C("CumProd", held(ints(3, 2, -4)), held(np.int64(0)), opset=26), np.array([3, 6, -24])),
    (C("Scatter", ROWS3, held(np.array([[1, 0, 1]])), X3[0, :1, :3], opset=9),
     np.where([[False, True, False], [True, False, True]], X3[0, :1, :3], ROWS3)),
    (C("Div", held(ints(7, -7)), held(ints(2))), np.array([3, -3])),
]  # fmt: skip


@pytest.mark.parametrize(("case", "want"), OTHERS, ids=str)
def test_an_op_means_what_its_text_says(case: Case, want: np.ndarray | None) -> None:
    data, fed = built(case)
    if want is None:
        want = dilated_maxima(DOUBLED[0]) if case.op == "MaxPool" else np.clip(case.operands[0][0], 0.1, None)
    got = given(gd.load_onnx(data), fed)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


ROW = """Add Sub Mul Div Pow Neg Abs Exp Log Sqrt Reciprocal Erf Relu Sigmoid Tanh Gelu Silu Softplus Clip Min Max Where
Cast MatMul Gemm Softmax LogSoftmax LayerNormalization RMSNormalization GroupNormalization BatchNormalization ReduceMean
ReduceSum ReduceMax ReduceMin ArgMax Transpose Reshape Flatten Squeeze Unsqueeze Concat Split Slice Gather Expand Pad
Identity Dropout Constant Shape Conv ConvTranspose MaxPool AveragePool GlobalAveragePool Resize""".split()


ELSEWHERE = set(
    """SimplifiedLayerNormalization GatherElements GatherND ScatterElements ScatterND TopK OneHot LSTM GRU RNN
QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearMatMul QLinearConv""".split()
)


def test_every_op_that_is_taken_is_tested() -> None:
    tried = {case.op for case in CASES} | {case.op for case, _ in OTHERS}
    assert set(ROW) <= set(TABLE)
    assert set(TABLE) - tried == ELSEWHERE, "in test_onnx_more.py, in test_onnx_quantized.py and with the models"


def test_the_page_lists_what_is_taken() -> None:
    page = (REPO / "docs" / "loading.md").read_text("utf-8")
    onnx, nnef = (text.split() for text in re.findall(r"Operat(?:ors|ions):\n(.*?)\.\n", page, re.DOTALL))
    assert onnx == sorted(TABLE) and nnef == sorted({*OPERATIONS, "external", "variable"})


ACTIVATIONS = {
    "Elu": {"alpha": 0.7}, "Selu": {}, "Celu": {"alpha": 0.7}, "Softplus": {}, "Mish": {}, "Gelu": {}, "Sigmoid": {},
    "Tanh": {}, "HardSwish": {}, "HardSigmoid": {}, "LeakyRelu": {}, "Softsign": {}, "ThresholdedRelu": {},
    "Shrink": {}, "Relu": {}, "Erf": {}, "LogSoftmax": {}, "Softmax": {},
}  # fmt: skip


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_gradients_of_activations_are_finite_where_e_to_the_x_is_not(op: str) -> None:
    x = np.array([[-1000.0, -1.0, 0.5, 1000.0]], np.float32)
    loaded = gd.load_onnx(model([helper.make_node(op, ["x"], ["y"], **ACTIVATIONS[op])], {"x": x}, {}, ["y"], 20))
    with loaded.graph as graph:
        graph.set_outputs(graph.outputs[0].sum_all())
    full, _ = differentiate(graph, wrt=Value(graph, graph.inputs[0].id))
    value, gradient = (np.asarray(evaluate(full, {"x": x})[i]) for i in full.output_ids)
    assert np.isfinite(gradient).all() and gradient.shape == x.shape, gradient
