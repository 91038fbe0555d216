"""A tensor of an ONNX model that is being translated, by known elements or a value of the graph; and one node of the
model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

import numpy as np

from gdlab import ops
from gdlab.base.types import Array, Shape, u32
from gdlab.graph import Value
from gdlab.load.shared import Malformed, Unsupported

Kind = Literal["float", "int", "bool"]
Bounds = tuple[int, int]
MOST_KNOWN = 1 << 21  # elements that folding may make of one tensor, or the bytes of the file where those are more
MOST_WORK = 1 << 3  # times as many of all tensors
DTYPES: dict[int, str] = {  # TensorProto.DataType
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
HALVES: dict[str, Callable[[Value], Value]] = {
    "float16": partial(ops.round_to, to="f16"), "bfloat16": partial(ops.round_to, to="bf16"),
}  # fmt: skip
_KINDS: dict[str, Kind] = {"b": "bool", "f": "float"}
_STORED: dict[Kind, Any] = {"float": np.float32, "int": np.int64, "bool": np.bool_}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, by its known elements or a value of the graph. `shape` is ONNX's: () for a scalar, which a graph holds
    as [1]. Elements that are known lie in `array`; what has the name of a `parameter` becomes one as soon as the graph
    needs it. Masks are f32 of 0 and 1; integers are u32, or f32 where they were computed with. `dtype`: the type that
    ONNX gives it, as NumPy calls it, "" where the operands of its node say; `bounds`: between which its integers are,
    None where the type says."""

    shape: Shape
    kind: Kind = "float"
    value: Value | None = None
    array: Array | None = None
    parameter: str = ""
    dtype: str = ""
    bounds: Bounds | None = None

    @property
    def known(self) -> bool:
        """Whether the elements are constants."""
        return self.array is not None and not self.parameter

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def held(self) -> Shape:
        """The shape in a graph."""
        return self.shape or (1,)


def kind_of(dtype: str) -> Kind:
    """Return the kind of number (bool, float or int) of a type."""
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


def known(array: Any, kind: Kind | None = None) -> Tensor:
    """Return a tensor of known elements."""
    data = np.asarray(array)
    kind = _KINDS.get(data.dtype.kind, "int") if kind is None else kind
    if kind == "int" and data.dtype.kind in "iu":
        return Tensor(data.shape, kind, array=data)
    with np.errstate(all="ignore"):  # float64 beyond float32, NaN as an integer
        return Tensor(data.shape, kind, array=data.astype(_STORED[kind], copy=False))


def fitted(value: Value, shape: Shape, kind: Kind = "float") -> Tensor:
    """Return a value of the graph as a tensor of `shape`, reshaped if it differs by axes of 1."""
    held = shape or (1,)
    return Tensor(shape, kind, value if value.shape == held else ops.reshape(value, held))


@dataclass(slots=True)
class GraphParameters:
    """The values of the parameters that the graph gets. `taken`: the names of the file; `nbytes`: its size, by which
    what is computed while loading is bounded."""

    taken: frozenset[str] = frozenset()
    nbytes: int = 0
    weights: dict[str, Array] = field(default_factory=dict)
    work: int = 0  # elements computed so far
    stored: int = 0  # elements of constants of the graph

    @property
    def most(self) -> int:
        """The most elements of one tensor that may be folded."""
        return max(MOST_KNOWN, self.nbytes)

    def check_size(self, shape: Sequence[int], effort: int = 1) -> None:
        """Raise if a fold makes too many elements; `effort`: additions per element."""
        count = math.prod(shape)
        if count > self.most:
            raise Malformed("constant", f"{list(shape)}", f"at most {self.most:,} elements computed while loading")
        self.work += count * effort
        if self.work > MOST_WORK * self.most:
            given = f"more than {MOST_WORK * self.most:,} elements"
            raise Malformed("constants", given, "fewer that are computed while loading")

    def _store(self, size: int) -> None:
        self.stored += size
        if self.stored > 2 * self.most:
            raise Malformed("constants", f"more than {2 * self.most:,} elements", "fewer in the graph")

    def value(self, t: Tensor) -> Value:
        """Return the tensor in the graph; integers u32 where they can be."""
        if t.value is not None:
            return t.value
        assert t.array is not None  # a tensor has one of both
        if t.parameter:
            return self.parameter(t.parameter, t.array)
        if t.kind == "int" and t.size and 0 <= t.array.min() and t.array.max() < 2**32:
            self._store(t.size)
            return ops.constant_u32(t.array.reshape(t.held))
        if t.kind == "int":
            _check_exact(t.array)
        with np.errstate(over="ignore"):
            data = t.array.reshape(t.held).astype(np.float32)
        first = float(data.flat[0]) if data.size else 0.0
        if data.size > 1 and not math.isnan(first) and (data == data.flat[0]).all() and (first or not _negative(data)):
            return ops.full(t.held, first)  # no data is stored
        self._store(t.size)
        return ops.constant(data)

    def parameter(self, name: str, array: Array) -> Value:
        """Add the parameter `name` with the value `array`."""
        self.weights.setdefault(name, np.ascontiguousarray(array, np.float32))
        return ops.parameter(name, array.shape)

    def fresh(self, name: str, array: Array) -> Value:
        """Add a parameter that the file does not have, under a new name."""
        names = (name if i == 1 else f"{name}.{i}" for i in count(1))
        return self.parameter(next(n for n in names if n not in self.taken and n not in self.weights), array)

    def number(self, t: Tensor) -> Value:
        """Return the tensor as f32."""
        if t.known and t.kind == "int":
            _check_exact(np.asarray(t.array))
            return self.value(Tensor(t.shape, "float", array=t.array))
        value = self.value(t)
        return ops.to_f32(value) if value.type.dtype is u32 else value

    def indices(self, t: Tensor, extent: int) -> Value:
        """Return the tensor as u32; negative indices count from `extent`."""
        if t.known:
            assert t.array is not None  # known
            low, high = (int(t.array.min()), int(t.array.max())) if t.size else (0, 0)
            if not -extent <= low <= high < extent:
                raise Malformed("indices", f"{low} … {high}", f"{-extent} … {extent - 1}")
            self._store(t.size)
            at = t.array.astype(np.int64)
            return ops.constant_u32(np.where(at < 0, at + extent, at).reshape(t.held))
        value = self.value(t)
        if value.type.dtype is u32:
            return value
        return ops.to_u32(ops.where(ops.less(value, 0.0), value + float(extent), value))

    def operand(self, t: Tensor) -> Value | float:
        """Return a number where the tensor is one finite element, so that ops with a number are written; else f32."""
        if t.known and t.size == 1:
            assert t.array is not None  # known
            if t.kind == "int":
                _check_exact(t.array)
            number = float(t.array.reshape(-1)[0])
            if abs(number) < 3.4e38:
                return number
        return self.number(t)


def _check_exact(integers: Array) -> None:
    """Raise for integers that float32 cannot hold exactly."""
    large = np.unique(integers[(integers > 1 << 24) | (integers < -(1 << 24))])
    if len(large) > 100 or any(int(np.float32(n)) != int(n) for n in large.tolist()):
        raise Unsupported(f"the integer {large[0]}, which f32 does not have")


def _negative(data: Array) -> bool:
    return bool(np.signbit(data).any())


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node of the file."""

    op: str
    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int

    def __str__(self) -> str:
        where = self.name or next(filter(None, self.outputs), "?")
        return f"{f'{self.domain}.' if self.domain else ''}{self.op} ({where})"


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """A node with its operands, and the methods by which a translation reads them."""

    node: NodeRecord
    inputs: tuple[Tensor | None, ...]
    home: GraphParameters

    @property
    def opset(self) -> int:
        """The version of the operators that the node is written for."""
        return self.node.opset

    def tensor(self, i: int) -> Tensor:
        """Return operand i, which must be given."""
        found = self.optional(i)
        if found is None:
            raise Malformed("inputs", f"{len(self.inputs)}", f"input {i}")
        return found

    def optional(self, i: int) -> Tensor | None:
        """Return operand i, None if the model leaves it out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def number(self, i: int) -> Value:
        """Return operand i as f32."""
        return self.home.number(self.tensor(i))

    def static(self, i: int) -> Array | None:
        """Return the known elements of operand i, None if it is left out; raise if the graph computes it."""
        found = self.optional(i)
        if found is not None and found.array is None:
            raise Unsupported(f"input {i} computed in the graph, where it must be constant")
        return None if found is None else found.array

    def static_ints(self, i: int) -> tuple[int, ...] | None:
        """Return the known elements of operand i as ints, like `static`."""
        array = self.static(i)
        if array is not None and array.dtype.kind not in "iu":
            raise Malformed(f"input {i}", array.dtype, "integers")
        return None if array is None else tuple(map(int, array.reshape(-1)))

    def attr(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Return an attribute of that type."""
        given = self.node.attrs.get(name, default)
        if given is not default and not isinstance(given, kind):
            raise Malformed(name, f"{given!r:.60}", f"{getattr(kind, '__name__', 'numbers')}")
        return given

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is one int."""
        return int(self.attr(name, int, default))

    def real(self, name: str, default: float = 0.0) -> float:
        """Return an attribute that is one float."""
        return float(self.attr(name, float, default))

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a string."""
        return str(self.attr(name, str, default))

    def integers(self, name: str) -> tuple[Any, ...] | None:
        """Return an attribute that is a list of ints, or None."""
        given = self.attr(name, tuple, None)
        if given is not None and not all(isinstance(n, int) for n in given):
            raise Malformed(name, f"{given!r:.60}", "ints")
        return None if given is None else tuple(given)

    def only_output(self, names: str) -> None:
        """Raise if further outputs are named, which other nodes may read."""
        if any(self.node.outputs[1:]):
            raise Unsupported(f"more outputs than {names}")


Result = Tensor | Sequence[Tensor]
Translate = Callable[[OnnxCall], Result]
Table = Mapping[str, Translate]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < rank:
        raise Malformed("axis", axis, f"{-rank} … {rank - 1}")
    return axis % rank
