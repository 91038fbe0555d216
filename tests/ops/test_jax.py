"""An independent judge: values and gradients of our ops against JAX on the CPU, in float64."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax_cases import CASES, DECISIONS, Case, Decision, judged, operand

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import ShapeError
from gdlab.graph import Graph
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate

RTOL = 1e-6  # attributes are float32


def ours(case: Case, arrays: list[np.ndarray[Any, Any]], cotangent: np.ndarray[Any, Any] | None) -> list[Any]:
    """The value, then the gradient of each operand that has one."""
    with Graph() as g:
        operands = [operand(f"x{i}", a) for i, a in enumerate(arrays)]
        out = case.ours(*operands)
        g.set_outputs([out])
        wrt = [v for v, a in zip(operands, arrays, strict=True) if a.dtype != np.uint32]
        seed = None if cotangent is None else ops.input("seed", out.shape)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    if cotangent is None:
        return [evaluate(g, feeds)[out.id]]
    full, _ = differentiate(g, wrt=wrt, seed=seed)
    values = evaluate(full, feeds | {"seed": cotangent})
    return [values[i] for i in full.output_ids]


def theirs(case: Case, arrays: list[np.ndarray[Any, Any]], cotangent: np.ndarray[Any, Any] | None) -> list[Any]:
    if cotangent is None:
        return [case.theirs(*arrays)]
    places = [i for i, a in enumerate(arrays) if a.dtype != np.uint32]

    def of_numbers(*numbers: Any) -> Any:
        operands: list[Any] = list(arrays)
        for place, x in zip(places, numbers, strict=True):
            operands[place] = x
        return case.theirs(*operands)

    @jax.jit  # one compilation, instead of one for each primitive
    def pulled(seed: Any, *numbers: Any) -> Any:
        value, pull = jax.vjp(of_numbers, *numbers)
        return [value, *pull(seed)]

    return list(pulled(cotangent, *(arrays[i] for i in places)))


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_values_and_gradients_are_those_of_jax(case: Case) -> None:
    for number, arrays in enumerate(case.feeds()):
        shape = jax.eval_shape(case.theirs, *arrays).shape
        cotangent = None
        if not case.forward:
            cotangent = np.random.default_rng(number).uniform(0.5, 2, shape).astype(np.float32).astype(np.float64)
        got, want = ours(case, arrays, cotangent), theirs(case, arrays, cotangent)
        for what, a, b in zip(["value", *(f"gradient {i}" for i in range(9))], got, want, strict=False):
            scale = float(np.max(np.abs(b), initial=1.0))
            shapes = [x.shape for x in arrays]
            np.testing.assert_allclose(a, np.asarray(b), rtol=RTOL, atol=RTOL * scale, err_msg=f"{what} of {shapes}")
        assert len(got) == len(want)


def test_jax_judges_sixty_ops_with_their_gradients() -> None:
    names = judged() & REGISTRY.keys()
    assert len(names) >= 60, sorted(names)


@pytest.mark.parametrize("d", [pytest.param(d, id=f"{d.case.name} at {d.where} of {d.of}") for d in DECISIONS])
def test_where_we_decided_otherwise(d: Decision) -> None:
    """Both sides of each row of the table."""
    arrays = [np.array(v) for v in d.at]
    seed = np.ones(jax.eval_shape(d.case.theirs, *arrays).shape)
    np.testing.assert_array_equal(ours(d.case, arrays, seed)[1 + d.of], d.ours)
    np.testing.assert_array_equal(theirs(d.case, arrays, seed)[1 + d.of], d.theirs)
    assert d.why


def test_nothing_reduces_an_empty_tensor() -> None:
    """A graph cannot ask for the reduction of an empty axis, for which JAX answers 0, NaN or an error."""
    with Graph(), pytest.raises(ShapeError, match="ints ≥ 1"):
        ops.input("x", (3, 0))
