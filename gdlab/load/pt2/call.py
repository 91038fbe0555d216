"""One call of an ATen operator with its tensors: the way in which the tables of operators read arguments and make
results.

A translation is a function whose parameters carry ATen's names, types and defaults: arguments are bound by name, and
one that the function does not have is refused. Operators that ONNX has too are translated by its table.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape
from gdlab.graph import Value
from gdlab.load.onnx.numbers import settled
from gdlab.load.onnx.onnx_layout import reshaped
from gdlab.load.onnx.onnx_model import TABLE as ONNX
from gdlab.load.onnx.tensor import DTYPES, GraphParameters, NodeRecord, OnnxCall, Tensor, axis_of, kind_of, known
from gdlab.load.pt2.program import AtenNode, Dtype, Meta, Opaque
from gdlab.load.shared import Malformed, Unsupported

OPSET = 21
CODES = {name: code for code, name in DTYPES.items()}
INDIFFERENT = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"))
RANK: dict[str, int] = {"bool": 0, "int": 1, "float": 2}
Ints = tuple[int, ...]
Number = int | float | bool
Operand = Tensor | int | float | bool
Tensors = tuple[Tensor, ...]
Maybe = tuple[Tensor | None, ...]
Result = Tensor | Sequence[Tensor]
Translate = Callable[..., Result]
Table = Mapping[str, Translate]


def _int(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def _number(v: Any) -> bool:
    return isinstance(v, (int, float, bool))


def _each(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, tuple) and all(map(test, v))


def _tensor(v: Any) -> bool:
    return isinstance(v, Tensor)


KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _tensor, "Tensors": _each(_tensor), "Maybe": _each(lambda v: v is None or _tensor(v)),
    "Operand": lambda v: _tensor(v) or _number(v), "int": _int, "bool": lambda v: isinstance(v, bool),
    "Number": _number, "float": lambda v: _number(v) and not isinstance(v, bool), "Ints": _each(_int),
    "Floats": _each(_number), "str": lambda v: isinstance(v, str), "Dtype": lambda v: isinstance(v, Dtype),
    "MaybeInts": _each(lambda v: v is None or _int(v)),
}  # fmt: skip
Floats = tuple[float, ...]
MaybeInts = tuple[int | None, ...]


class Aten:
    """A node that is being translated: its types, and the methods with which translations make results. `train`:
    gradients are wanted, and are PyTorch's."""

    def __init__(
        self, node: AtenNode, home: GraphParameters, metas: Sequence[Meta], train: bool, types: Mapping[str, Meta]
    ) -> None:
        self.node, self.home, self.metas, self.train, self.types = node, home, metas, train, types

    def laid_out(self, argument: str) -> list[tuple[int, int]]:
        """Return (extent, stride) of the axes of an operand that have more than one element, as the file says."""
        ref = dict(self.node.arguments)[argument]
        meta = self.types[ref.name]
        return [(n, s) for n, s in zip(meta.shape, meta.strides, strict=True) if n != 1]

    @property
    def meta(self) -> Meta:
        """The type of the first result."""
        if not self.metas:
            raise Malformed("results", "none", "one")
        return self.metas[0]

    # by ONNX
    def onnx(self, op: str, *inputs: Tensor | None, **attrs: Any) -> Tensor:
        """Return the result of an operator of ONNX."""
        return self.onnx_all(op, 1, *inputs, **attrs)[0]

    def onnx_all(self, op: str, outputs: int, *inputs: Tensor | None, **attrs: Any) -> tuple[Tensor, ...]:
        """Return all results of an operator of ONNX."""
        name = self.node.outputs[0] if self.node.outputs else self.node.target
        names = tuple(f"{i}" for i in range(len(inputs)))
        node = NodeRecord(op, name, "", names, tuple(f"{name}.{i}" for i in range(outputs)), attrs, OPSET)
        call = OnnxCall(node, inputs, self.home)
        made = ONNX[op](call)
        return tuple(settled(call, t) for t in ((made,) if isinstance(made, Tensor) else made))

    # operands
    def ints(self, numbers: Sequence[int]) -> Tensor:
        """Return numbers as a constant."""
        return replace(known(np.array(numbers, np.int64), "int"), dtype="int64")

    def number(self, value: Number, dtype: str) -> Tensor:
        """Return a number as a constant of a type."""
        kind = kind_of(dtype)
        made = np.float32(value) if kind == "float" else np.bool_(value) if kind == "bool" else np.int64(int(value))
        return replace(known(made, kind), dtype=dtype)

    def cast(self, x: Operand, dtype: str) -> Tensor:
        """Return an operand as another type of number."""
        if not isinstance(x, Tensor):
            return self.number(x, dtype)
        if dtype not in CODES:
            raise Unsupported(f"numbers of {dtype}")
        return x if x.dtype == dtype else self.onnx("Cast", x, to=CODES[dtype])

    def joint(self, *operands: Operand) -> list[Tensor]:
        """Convert operands to the type that they have in common."""
        tensors = [x for x in operands if isinstance(x, Tensor)]
        dtype = max((x.dtype or "float32" for x in tensors), key=lambda d: RANK[kind_of(d)])
        if any(isinstance(x, float) for x in operands) and kind_of(dtype) != "float":
            dtype = "float32"
        if kind_of(dtype) == "bool" and any(_int(x) for x in operands):
            dtype = "int64"
        return [self.cast(x, dtype) for x in operands]

    def value(self, x: Tensor) -> Value:
        """Return the tensor in the graph, as f32."""
        return self.home.number(x)

    # results
    def like(self, x: Tensor, made: Tensor) -> Tensor:
        """Give `made`, which holds elements of x, its type and bounds."""
        return replace(made, dtype=x.dtype, bounds=x.bounds)

    def reshaped(self, x: Tensor, shape: Shape) -> Tensor:
        """Return the elements of x in row-major order."""
        return self.like(x, reshaped(self.home, x, shape))

    def filled(self, shape: Shape, value: Number, dtype: str) -> Tensor:
        """Return a constant of equal elements."""
        data = self.number(value, dtype)
        if kind_of(dtype) == "float" and int(np.prod(shape, dtype=np.float64)) > self.home.most:
            return Tensor(shape, "float", ops.full(shape, float(value)), dtype=dtype)
        self.home.check_size(shape)
        return replace(known(np.full(shape, data.array), data.kind), dtype=dtype)

    def reduced(self, op: str, x: Tensor, axes: Ints | None, keepdim: bool) -> Tensor:
        """Return a reduction over axes, over all if none are given."""
        rank = len(x.shape)
        where = tuple(axis_of(a, rank) for a in axes) if axes else tuple(range(rank))
        if not rank:
            return x
        return self.onnx(op, x, self.ints(where), keepdims=int(keepdim))

    def along(self, x: Tensor, axis: int, matrix: Array) -> Tensor:
        """Return the product of an axis with a constant matrix [old, new]."""
        order = (*(i for i in range(len(x.shape)) if i != axis), axis)
        moved = self.onnx("Transpose", x, perm=order)
        made = self.onnx("MatMul", moved, replace(known(matrix.astype(np.float32)), dtype="float32"))
        return self.onnx("Transpose", made, perm=tuple(order.index(i) for i in range(len(order))))


def axis(number: int, x: Tensor) -> int:
    """Return an axis of x counted from the front; a scalar counts as having one."""
    return axis_of(number, max(len(x.shape), 1))


# arguments ------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _parameters(translate: Translate) -> dict[str, tuple[str, Any]]:
    """Return (type, default) of each argument of a translation."""
    found = list(inspect.signature(translate).parameters.values())[1:]
    return {p.name: (str(p.annotation), p.default) for p in found}


def unknown_arguments(translate: Translate, node: AtenNode) -> str:
    """Return the reason why these arguments are not understood, "" if they are."""
    wanted = _parameters(translate)
    for name, value in node.arguments:
        if name in INDIFFERENT and not isinstance(value, Opaque):
            continue
        if name not in wanted:
            return f"the argument {name:.40}={value!r:.60}, which is not understood"
        parts = value if isinstance(value, tuple) else (value,)
        opaque = next((v for v in parts if isinstance(v, Opaque)), None)
        if opaque is not None:
            return f"the argument {name:.40}, {opaque.kind}"
    return ""


def bound(translate: Translate, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, each of the type that the translation takes."""
    wanted, found = _parameters(translate), {}
    for name, (kind, default) in wanted.items():
        if name not in given:
            if default is inspect.Parameter.empty:
                raise Malformed(name, "nothing", f"{kind}")
            continue
        value = given[name]
        kind, optional = kind.removesuffix(" | None"), kind.endswith(" | None")
        if kind in ("Ints", "MaybeInts", "Floats") and _number(value):
            value = (value,)
        if value is None and not optional and default is not inspect.Parameter.empty:
            continue
        if not (value is None and optional) and not KINDS[kind](value):
            raise Malformed(name, f"{reprlib.repr(value):.60}", f"{kind}")
        found[name] = value
    return found
