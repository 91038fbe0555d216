"""Read a kernel's expression, one text that is both WGSL and Python: its syntax tree, its names, its value.

Functions as in WGSL: `exp log sqrt inverseSqrt tanh abs sign floor ceil trunc`, `round` (halves to even) and
`select(if_false, if_true, condition)`; ours, exact about NaN and overflow: `max_nan min_nan relu_nan sigmoid_stable
pow_abs is_nan log1p expm1 tanh_precise sin_precise cos_precise remainder modulus round_f16 round_bf16`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.formats import round_bf16, round_f16


def _sigmoid(x: Any) -> Any:
    tail = np.exp(-np.abs(x))
    return np.where(x >= 0, np.float32(1), tail) / (np.float32(1) + tail)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "inverseSqrt": lambda x: np.float32(1) / np.sqrt(x),
    "tanh": np.tanh,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "select": lambda if_false, if_true, condition: np.where(condition, if_true, if_false),
    "max_nan": np.maximum,
    "min_nan": np.minimum,
    "relu_nan": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid_stable": _sigmoid,
    "pow_abs": lambda x, exponent: np.power(np.abs(x), exponent),
    "is_nan": np.isnan,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh_precise": np.tanh,
    "sin_precise": np.sin,
    "cos_precise": np.cos,
    "remainder": np.fmod,
    "modulus": np.mod,
    "round_f16": round_f16,
    "round_bf16": round_bf16,
}


@lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise CompileError("kernel", "expression", repr(text), "an expression that WGSL and Python both read") from None


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """Return the operands, attributes and functions that an expression names."""
    return frozenset(node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name))


def evaluate(text: str, values: Mapping[str, float]) -> float:
    """Evaluate the expression in float32 arithmetic when every name is a number."""
    scope = {name: np.float32(value) for name, value in values.items()}
    with np.errstate(all="ignore"):
        return float(np.float32(eval(_code(text), {"__builtins__": {}, **FUNCTIONS}, scope)))


@lru_cache(maxsize=4096)
def _code(text: str) -> Any:
    parse(text)  # its error is the one that people should see
    return compile(text, "<kernel>", "eval")
