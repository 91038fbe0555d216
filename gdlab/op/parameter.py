"""Parameters of a builder: operands, attributes coerced by their annotations, and refusals of a shape rule."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from gdlab.base.errors import GdlabError, GraphError, ShapeError
from gdlab.graph import AttrVar, ConstantData, Value

Values = tuple[Value, ...]
Extended = Annotated[float, "or an infinity"]  # annotates attributes such as the bounds of clamp


# refusals -------------------------------------------------------------------------------------------------------------
class Refused(Exception):
    """Raised by a shape rule: says only what it wants. `Op` adds the call and what was given."""

    def __init__(
        self, wanted: str, given: object = None, what: str = "operands", error: type[GdlabError] = ShapeError
    ) -> None:
        self.wanted, self.given, self.what, self.error = wanted, given, what, error
        super().__init__(wanted)


def want(condition: bool, wanted: str, given: object = None, what: str = "operands") -> None:
    """Refuse the call unless `condition`; an attribute (`what` other than operands) is refused with `GraphError`."""
    if not condition:
        about_shape = what.split()[0] in ("operands", "shape", "axes", "axis")  # `axis 0` too
        raise Refused(wanted, given, what, ShapeError if about_shape else GraphError)


# parameters -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a builder: an operand (`Value`; `Values`: any number of them, given as one sequence), or an
    attribute with its annotation and default."""

    name: str
    operand: bool
    annotation: Any
    default: Any


def is_number(value: object) -> bool:
    """Return whether `value` is a plain real number (a bool is none)."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


WANTED_VALUE = "a value of a graph"


def shown(given: object) -> str:
    """Return the text of an object that is no operand, in one line."""
    shape = f" of shape {list(given.shape)}" if isinstance(given, np.ndarray) and given.shape else f" {given!r:.60}"
    return type(given).__name__ + shape


_written = lru_cache(maxsize=1)(inspect.signature)  # both functions below ask for that of the op at hand


def parameters_of(rule: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a builder, from the signature of its rule."""
    written = _written(rule)
    for p in written.parameters.values():
        if p.annotation is p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise GraphError(f"op {rule.__name__}", "parameter", str(p), "one annotated Value or as an attribute")
    scope = inspect.unwrap(rule).__globals__
    hints = {p.name: _meaning(p.annotation, scope) for p in written.parameters.values() if p.name != "graph"}
    return tuple(
        Parameter(name, hint in (Value, Values), _required(hint), written.parameters[name].default)
        for name, hint in hints.items()
    )


def _meaning(annotation: Any, scope: dict[str, Any]) -> Any:
    """Return what an annotation stands for; nearly all are one word, and `eval` takes ten times as long."""
    if not isinstance(annotation, str):
        return annotation
    return scope[annotation] if annotation in scope else eval(annotation, scope)


class Spelled(str):
    """An annotation that shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature_of(rule: Callable[..., Any]) -> inspect.Signature:
    """Return the call as people read it: every op gives a value, whatever its shape rule answers."""
    written = _written(rule)
    spelled = {"Extended": "float", "Values": "Sequence[Value]"}
    plain = [
        p.replace(annotation=Spelled(spelled.get(p.annotation, p.annotation)))
        for p in written.parameters.values()
    ]
    return written.replace(parameters=plain, return_annotation=Spelled("Value"))


def _required(annotation: Any) -> Any:
    """`tuple[int, ...]` of `tuple[int, ...] | None`: a default None is filled in by `canonical`."""
    kinds = [k for k in get_args(annotation) if k is not type(None)] if isinstance(annotation, UnionType) else []
    return kinds[0] if len(kinds) == 1 else annotation


def coerce(where: str, parameter: Parameter, value: Any) -> Any:
    """Convert an attribute to the type of its annotation, so that equal calls make equal nodes; floats in full (see
    `as_f32`)."""
    kind, name = parameter.annotation, parameter.name
    if isinstance(value, AttrVar) or (value is None and parameter.default is None):
        return value
    try:
        if kind is float:
            return _finite(where, name, value)
        if kind == Extended:
            infinite = is_number(value) and math.isinf(value)
            return float(value) if infinite else _finite(where, name, value, _wanted(kind))
        if kind is int and not isinstance(value, bool):
            return operator.index(value)
        if kind is bool and isinstance(value, (bool, np.bool_)):
            return bool(value)
        if kind is str and isinstance(value, str):
            return value
        if kind == tuple[int, ...]:
            given = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
            if not any(isinstance(v, (bool, np.bool_)) for v in given):
                return tuple(operator.index(v) for v in given)
        if get_origin(kind) is Literal and isinstance(value, (str, int)) and value in get_args(kind):
            return value
        if kind is ConstantData and isinstance(value, ConstantData):
            return value
    except (TypeError, OverflowError):
        pass
    raise GraphError(where, name, f"{value!r:.80}", _wanted(kind))


_F32_LIMIT = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity


def _finite(where: str, name: str, value: Any, wanted: str = "a finite number") -> float:
    plain = float(value) if is_number(value) else float("nan")
    if not math.isfinite(plain):
        raise GraphError(where, name, repr(value), wanted)
    return plain


def as_f32(where: str, parameter: Parameter, value: Any) -> Any:
    """Return a coerced float attribute as float32 holds it."""
    if not isinstance(value, float) or math.isinf(value):
        return value
    if not -_F32_LIMIT < value < _F32_LIMIT:
        raise GraphError(where, parameter.name, repr(value), _wanted(parameter.annotation))
    return float(np.float32(value))


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, "ints")


_KINDS: dict[Any, str] = {
    float: "a finite number", Extended: "a number or an infinity", int: "an int", bool: "True or False", str: "a str",
}  # fmt: skip
