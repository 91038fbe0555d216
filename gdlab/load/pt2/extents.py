"""Give numbers to the extents that an exported program leaves open, and compute those that depend on them.

A file has them as expressions of SymPy, in the form of `str` or of `srepr`. They are read as syntax and computed here:
names, whole numbers, sums, products, quotients and comparisons; nothing in them is executed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdlab.base.errors import LoadError, unknown_name
from gdlab.load.pt2.archive import WHERE
from gdlab.load.shared import Malformed, open_extents

LONGEST = 1000  # characters of an expression
MOST = 1 << 31  # of an extent that is given
Number = int | bool
def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 62:
        raise ValueError
    return int(base**exponent)


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Pow: _power,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Integer": lambda n: n, "Add": lambda *parts: sum(parts), "Mul": lambda *parts: math.prod(parts),
    "Max": max, "Min": min, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "Mod": operator.mod,
    "PythonMod": operator.mod, "CeilDiv": lambda a, b: -(-a // b), "Eq": operator.eq, "Ne": operator.ne,
    "Equality": operator.eq, "Unequality": operator.ne, "StrictLessThan": operator.lt, "LessThan": operator.le,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge, "Not": operator.not_,
    "And": lambda *parts: all(parts), "Or": lambda *parts: any(parts), "Pow": _power,
}  # fmt: skip
Numbers = Mapping[str, int]


# expressions ----------------------------------------------------------------------------------------------------------
def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise Malformed("extent", f"an expression of {len(text):,} characters", f"at most {LONGEST:,}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed("extent", f"{text!r:.80}", "an expression") from None


def names_of(text: str) -> list[str]:
    """Return the names in an expression."""
    nodes = list(ast.walk(_parsed(text)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    found = [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    found += [name for node in nodes if (name := _symbol(node)) is not None]
    return list(dict.fromkeys(found))


def _symbol(node: ast.AST) -> str | None:
    """Return the name of a call `Symbol('s0', integer=True)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "Symbol":
        return None
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def computed(text: str, numbers: Numbers) -> Number | None:
    """Return the value of an expression, None if a name in it has no number."""
    if any(name not in numbers for name in names_of(text)):
        return None
    try:
        value = _value(_parsed(text), numbers)
    except (ArithmeticError, TypeError, ValueError, RecursionError):
        raise Malformed("extent", f"{text!r:.80}", "sums, products and quotients of whole numbers") from None
    return value


def _value(node: ast.expr, numbers: Numbers) -> Number:
    name = _symbol(node) or (node.id if isinstance(node, ast.Name) else None)
    if name is not None:
        return numbers[name]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        made: Any = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        made = -_value(node.operand, numbers)
    elif isinstance(node, ast.BinOp):
        made = _applied(_OPERATORS.get(type(node.op)), _value(node.left, numbers), _value(node.right, numbers))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = _value(node.left, numbers), _value(node.comparators[0], numbers)
        made = _applied(_OPERATORS.get(type(node.ops[0])), *sides)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        made = _applied(_FUNCTIONS.get(node.func.id), *(_value(arg, numbers) for arg in node.args))
    else:
        made = None
    if not isinstance(made, int) or abs(made) >= 2**63:
        raise ValueError
    return made


def _applied(function: Callable[..., Any] | None, *operands: Number) -> Any:
    return None if function is None else function(*operands)


# what the user says ---------------------------------------------------------------------------------------------------
def numbers_for(
    inputs: Mapping[str, Sequence[Any]], ranges: Any, dims: Mapping[str, int] | None
) -> dict[str, int]:  # fmt: skip
    """Return a number for each name in the sizes of inputs; `ranges`: the bounds that the file gives. Names that the
    file does not have, and extents without a number, are refused together."""
    given, places, hints = dict(dims or {}), dict[str, list[str]](), dict[str, int]()
    for record, sizes in inputs.items():
        for axis, size in enumerate(sizes):
            text = expression(size)
            if text is None:
                continue
            names = names_of(text)
            for name in names:
                places.setdefault(name, []).append(f"axis {axis} of input {record!r:.60}")
            hint = size["as_expr"].get("hint")
            example = hint.get("as_int") if isinstance(hint, dict) else None
            if len(names) == 1 and isinstance(example, int) and computed(text, {names[0]: example}) == example:
                hints.setdefault(names[0], example)
    for name, n in given.items():
        if not places:
            raise Malformed("dims", f"{name}={n}"[:80], "none: all extents of the file are numbers")
        if name not in places:
            raise unknown_name(WHERE, "dims", str(name), sorted(places))
    limits = {name: _range(ranges, name) for name in places}
    missing = [name for name in places if name not in given]
    if missing:
        listed = [f"{name:.60} ({', '.join(places[name][:4])}{' …' if len(places[name]) > 4 else ''}; "
                  f"{_told(limits[name])})" for name in missing]  # fmt: skip
        raise open_extents(WHERE, listed, {name: hints.get(name, max(8, limits[name][0])) for name in missing})
    for name, n in given.items():
        low, high = limits[name]
        if isinstance(n, bool) or not isinstance(n, int) or not low <= n <= min(high, MOST):
            raise LoadError(WHERE, f"extent {name:.60}", f"{n!r:.40}", f"{_told(limits[name])}, as the file says")
    return given


def _range(ranges: Any, name: str) -> tuple[int, int]:
    record = ranges.get(name) if isinstance(ranges, dict) else None
    low, high = (record.get(key) if isinstance(record, dict) else None for key in ("min_val", "max_val"))
    return (max(low, 1) if isinstance(low, int) else 1), (high if isinstance(high, int) else MOST)


def _told(limits: tuple[int, int]) -> str:
    low, high = limits
    return f"at least {low}" if high >= MOST else f"{low} … {high}"


def expression(size: Any) -> str | None:
    """Return the expression of an extent, None if it is a number."""
    record = size.get("as_expr") if isinstance(size, dict) else None
    if record is None:
        return None
    text = record.get("expr_str") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise Malformed("extent", f"{record!r:.80}", "an expression")
    return text
