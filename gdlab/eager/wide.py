"""Run update rules in a wider dtype than kernels: the NumPy calls of a rule, or its form by the references of ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base.types import Array
from gdlab.graph import Value, scratch
from gdlab.op import REGISTRY
from gdlab.op.numpy_form import NumpyCall
from gdlab.plan.rules import RULES, UpdateRule
from gdlab.session.update_settings import Optimizer


def moved(optimizer: Optimizer, t: int, arrays: Sequence[Array]) -> list[Array]:
    """Return parameter and states after update t; `arrays` are these and the gradient, of one shape and dtype."""
    record, dtype = RULES[optimizer.rule], arrays[0].dtype
    values = record.values(optimizer.numbers, max(t, 1), dtype.type)
    numbers = {name: np.array(value, dtype) for name, value in zip(record.scalars, values, strict=True)}
    for name, (function, *sources) in record.shared.items():
        numbers[name] = np.array(function(*(numbers[s] if isinstance(s, str) else dtype.type(s) for s in sources)))
    if record.numpy_form is None:
        return _formed(record, numbers, arrays)
    made = _WideCalls([*(a.copy() for a in arrays[:-1]), arrays[-1]], numbers)
    record.numpy_form(made)
    with np.errstate(all="ignore"):
        for function, operands in made.calls:
            function(*operands)
    return made.arrays[:-1]


class _WideCalls:
    """The NumPy calls of one parameter (an `UpdateBuilder`)."""

    factor = np.float32(1)
    is_clipped = False

    def __init__(self, arrays: list[Array], scalars: Mapping[str, Array]) -> None:
        self.arrays, self.scalars = arrays, scalars
        self.calls: list[NumpyCall] = []

    def number(self) -> Array:
        """Return a new array without axes."""
        return np.empty((), self.arrays[0].dtype)

    def second(self, block: Array) -> Array:
        """Return a new array in the shape of the block, which is the whole parameter."""
        return np.empty_like(block)

    def blocks(self) -> Iterator[tuple[Array, ...]]:
        """Yield all of the parameter, its states and gradient, and a temporary."""
        yield *self.arrays, np.empty_like(self.arrays[0])

    def clipped(self, gradient: Array, into: Array) -> Array:
        """Return the gradient."""
        return gradient

    def rate(self) -> Array:
        """Return the rate of the step."""
        return self.scalars["lr"]


def _formed(record: UpdateRule, numbers: Mapping[str, Array], arrays: Sequence[Array]) -> list[Array]:
    """Evaluate the form of a rule node by node."""
    assert record.form is not None  # a record has one or the other
    shape, dtype = arrays[0].shape, arrays[0].dtype
    feeds = [arrays[0], arrays[-1], *arrays[1:-1], *(np.broadcast_to(numbers[n], shape) for n in record.scalars)]
    with scratch() as graph:
        graph.exact = True
        leaves = [REGISTRY["input"](f"x{k}", shape) for k in range(len(feeds))]
        given = dict(zip(record.scalars, leaves[len(arrays) :], strict=True))
        results: Any = record.form(*leaves[: len(arrays)], **given)
    values: list[Array] = [*feeds]
    with np.errstate(all="ignore"):
        for node in graph.nodes[len(feeds) :]:
            attrs: dict[str, Any] = dict(node.attrs)
            values.append(np.asarray(REGISTRY[node.op].reference([values[i] for i in node.inputs], attrs, True), dtype))
    listed: Sequence[Value] = results if isinstance(results, tuple) else (results,)
    return [np.array(values[r.id]) for r in listed]
