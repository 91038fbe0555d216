"""Enter data into a graph: `input`, `input_u32`, `parameter` (`_f16`, `_q4`, `_q8`), `constant`, `full`, `zeros`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.base.errors import DTypeError, GraphError, ShapeError
from gdlab.base.formats import narrowed
from gdlab.base.types import FORMATS, DType, TensorType, check_shape, f16, f32, q4, q8, u32
from gdlab.graph import ConstantData, Graph, Value, current_graph
from gdlab.op import Bad, Extended, Fill, Sample, leaf, op

__all__ = [
    "constant", "constant_u32", "full", "input", "input_u32", "parameter", "parameter_f16", "parameter_q4",
    "parameter_q8", "scalar", "zeros",
]  # fmt: skip


@leaf(saved=True)
def input(name: str, shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """A per-step data slot: f32[shape]. The name is unique in the graph."""
    return _slot("input", name, shape, f32, graph)


def input_u32(name: str, shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """A per-step slot for indices: u32[shape]. The name is unique in the graph."""
    return _slot("input", name, shape, u32, graph)


@leaf(saved=False)
def parameter(
    name: str,
    shape: tuple[int, ...],
    *,
    init: str | None = None,
    dtype: DType | str = f32,
    graph: Graph | None = None,
) -> Value:
    """A trainable weight: f32[shape]. The same name with the same type is the same node: weight sharing.

    `init` declares how `session.initialize(seed)` fills it: see `gdlab.nn.init`. `dtype` may be a storage dtype, such
    as `"q4_k"`: those weights are not trained.
    """
    return _slot("parameter", name, shape, _stored(dtype), graph, init)


def parameter_f16(name: str, shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """A weight stored in half precision and computed with in f32: f16[shape]. It is not trained."""
    return _slot("parameter", name, shape, f16, graph)


def parameter_q4(name: str, shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """A weight in blocks of 32 elements of a column, 5 bits each: q4[k, n]. Operand b of `matmul` only, not trained."""
    return _slot("parameter", name, shape, q4, graph)


def parameter_q8(name: str, shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """A weight in blocks of 32 elements of a column, 9 bits each: q8[k, n]. Operand b of `matmul` only, not trained."""
    return _slot("parameter", name, shape, q8, graph)


@leaf(saved=False)
def constant(data: Any, shape: tuple[int, ...] | None = None, *, graph: Graph | None = None) -> Value:
    """Fixed elements, part of the graph: f32[shape]. `shape` must hold as many elements as `data`."""
    return _constant("constant", data, shape, f32, graph)


def constant_u32(data: Any, shape: tuple[int, ...] | None = None, *, graph: Graph | None = None) -> Value:
    """Fixed elements, part of the graph: u32[shape]."""
    return _constant("constant_u32", data, shape, u32, graph)


def scalar(value: float, *, graph: Graph | None = None) -> Value:
    """One f32 element: f32[1]."""
    return constant([value], (1,), graph=graph)


@op(
    numpy=lambda shape, value: np.full(shape, np.float64(value)),
    kernel=Fill("value"),
    samples=(Sample(attrs={"shape": (3, 5), "value": 2.5}), Sample(attrs={"shape": (1,), "value": -0.0}),
             Sample(attrs={"shape": (70,), "value": 1e-3})),
    bad=(Bad((), "ints ≥ 1", {"shape": (0,), "value": 1.0}),
         Bad((), "a number or an infinity", {"shape": (2,), "value": "x"})),
    no_grad="ends",
    saved=False,
)  # fmt: skip
def full(shape: tuple[int, ...], value: Extended) -> TensorType:
    """Every element `value`: f32[shape]; no data is stored in graph or plan."""
    return TensorType(check_shape(shape, "full"))


def zeros(shape: tuple[int, ...], *, graph: Graph | None = None) -> Value:
    """Every element 0: f32[shape]; no data is stored."""
    return full(shape, 0.0, graph=graph)


def _stored(dtype: DType | str) -> DType:
    """Return the dtype of a parameter, given itself or by name."""
    found = DType.__members__.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, DType) or not (found is f32 or found.is_storage):
        given = str(dtype) if isinstance(dtype, DType) else repr(dtype)
        raise DTypeError("parameter", "dtype", given, f"f32 or one of {', '.join(map(str, FORMATS))}")
    return found


def _slot(
    kind: str, name: str, shape: Any, dtype: DType, graph: Graph | None, init: str | None = None
) -> Value:  # fmt: skip
    home = current_graph(kind, graph)
    if not isinstance(name, str) or not name:
        raise GraphError(kind, "name", repr(name), "a non-empty str")
    if init is not None and (not isinstance(init, str) or not init):
        raise GraphError(kind, "init", repr(init), "the name of an initializer, such as 'zeros' or 'normal(0.02)'")
    type = TensorType(check_shape(shape, kind), dtype)
    old = home.leaf(name)
    if old is None:
        attrs = (("name", name),) if init is None else (("init", str(init)), ("name", name))
        return home.make_leaf(kind, attrs, type, name)
    if kind == old.op == "parameter" and old.type == type:
        declared = dict(old.attrs).get("init")
        if init not in (None, declared):
            raise GraphError(kind, "init", f"{init!r} for {name!r} again", f"{declared!r}, as the first time, or none")
        return home.value(old.id)
    raise GraphError(kind, "name", f"{name!r} again, as {type}", f"a new name: {name!r} is the {old.op} {old.type}")


def _constant(where: str, data: Any, shape: Any, dtype: DType, graph: Graph | None) -> Value:
    home = current_graph(where, graph)
    given = _elements(where, data, dtype)
    extents = check_shape(given.shape or (1,) if shape is None else shape, where)
    result = TensorType(extents, dtype)
    if result.num_elements != given.size:
        raise ShapeError(where, "data", f"{given.size} values", f"{result.num_elements} ({result})")
    with np.errstate(over="ignore"):
        near = given.astype(dtype.numpy) if home.exact else narrowed(where, "data", given, dtype)
    return home.make_constant(ConstantData(dtype, extents, near.tobytes()), given.reshape(extents))


def _elements(where: str, data: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Return `data` as an array, not rounded yet; values that `dtype` cannot hold are refused, never wrapped or cut."""
    try:
        array = np.asarray(data)
    except (TypeError, ValueError):
        raise GraphError(where, "data", f"{type(data).__name__}", f"numbers that {dtype} holds") from None
    if array.dtype.kind not in "fiub":
        raise GraphError(where, "data", f"{type(data).__name__} of {array.dtype}", f"numbers that {dtype} holds")
    if dtype is u32 and array.size:
        low, high = array.min(), array.max()
        if array.dtype.kind == "f" or not 0 <= int(low) <= int(high) < 2**32:
            raise GraphError(where, "data", f"{array.dtype} values {low} … {high}", "integers in 0 … 2^32 − 1")
    return array
