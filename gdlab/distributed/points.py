"""The points of a sweep: the product of lists of settings, each checked before the first run begins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np

from gdlab.base.errors import ArgumentError, unknown_name
from gdlab.base.words import sig, whole
from gdlab.op import Safety
from gdlab.op.cost import Roofline
from gdlab.plan.target import CompileOptions
from gdlab.rewrite import RULES

RUN_KEYS = ("adam", "sgd", "init", "until", "feed", "steps")
RULE_KEYS = ("disable", "enable", "only", "allow")
COMPILE_KEYS = tuple(field.name for field in fields(CompileOptions))
KEYS = (*RUN_KEYS, *RULE_KEYS, *COMPILE_KEYS)
MOST_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class PointSettings:
    """The settings of one point, by key: those of `Study.run`, of the optimizer, of `CompileOptions`."""

    values: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{key} {value_text(value)}" for key, value in self.values.items()) or "as it is"

    def part(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the settings that are among `keys`."""
        return {key: value for key, value in self.values.items() if key in keys}

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the optimizer: rules as tuples of names."""
        given = self.part(RULE_KEYS)
        return {key: value if key == "allow" else _rules(value) for key, value in given.items()}


def settings_of(grid: Any, points: Any) -> list[PointSettings]:
    """Return the settings of every point: the product of the lists of `grid`, or `points` as they stand."""
    if (grid is None) == (points is None):
        given = "neither" if grid is None else "both"
        raise ArgumentError("sweep", "grid, points", given, 'one of them: {"adam": [1e-3, 3e-3], "init": range(4)}')
    found = _listed(points) if grid is None else _product(grid)
    if not 1 <= len(found) <= MOST_POINTS:
        raise ArgumentError("sweep", "points", whole(len(found)), f"1 … {whole(MOST_POINTS)}")
    for settings in found:
        _check(settings)
    return found


def varied(points: Sequence[PointSettings]) -> tuple[str, ...]:
    """Return the keys whose values are not the same everywhere; all keys if every value is."""
    keys = list(dict.fromkeys(key for point in points for key in point.values))
    texts = {key: {value_text(point.values.get(key)) for point in points} for key in keys}
    return tuple([key for key in keys if len(texts[key]) > 1] or keys)


def value_text(value: Any) -> str:
    """Return a setting as people read it."""
    match value:
        case None:
            return "–"
        case bool():
            return "on" if value else "off"
        case int():
            return str(value)
        case float():
            return sig(value)
        case str():
            return value
        case Roofline():
            return value.__name__
        case list() | tuple():
            return ", ".join(map(value_text, value)) or "none"
    return type(value).__name__


def _product(grid: Any) -> list[PointSettings]:
    if not isinstance(grid, Mapping) or not grid:
        given = type(grid).__name__ if grid else "nothing"
        raise ArgumentError("sweep", "grid", given, 'a dict of lists: {"adam": [1e-3, 3e-3]}')
    lists = {_known(key): _values(key, values) for key, values in grid.items()}
    if math.prod(map(len, lists.values())) > MOST_POINTS:
        sizes = " × ".join(str(len(values)) for values in lists.values())
        raise ArgumentError("sweep", "points", sizes, f"at most {whole(MOST_POINTS)} in all")
    return [PointSettings(dict(zip(lists, chosen, strict=True))) for chosen in itertools.product(*lists.values())]


def _listed(points: Any) -> list[PointSettings]:
    if isinstance(points, (str, Mapping)) or not isinstance(points, Iterable):
        raise ArgumentError("sweep", "points", type(points).__name__, 'a list of dicts: [{"adam": 1e-3, "init": 0}]')
    found = []
    for point in points:
        if not isinstance(point, Mapping):
            raise ArgumentError("sweep", "a point", type(point).__name__, 'a dict: {"adam": 1e-3, "init": 0}')
        found.append(PointSettings({_known(key): _plain(value) for key, value in point.items()}))
    return found


def _known(key: Any) -> str:
    if not isinstance(key, str) or key not in KEYS:
        raise unknown_name("sweep", "key", str(key), KEYS)
    return key


def _values(key: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, (Iterable, np.ndarray)):
        raise ArgumentError("sweep", key, f"{values!r:.60}", "a list of values")
    found = [_plain(value) for value in values]
    if not found:
        raise ArgumentError("sweep", key, "an empty list", "at least one value")
    return found


def _plain(value: Any) -> Any:
    """Convert numbers of NumPy to those of Python, so that files and messages can hold them."""
    return value.item() if isinstance(value, np.generic) else value


def _rules(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _check(settings: PointSettings) -> None:
    """Raise for settings that could not run; the error names the key."""
    values = settings.values
    if "adam" in values and "sgd" in values:
        raise ArgumentError("sweep", "adam", f"sgd as well in the point {settings}", "one update rule")
    for key in ("adam", "sgd"):
        rate = values.get(key, 1.0)
        if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 < rate < math.inf:
            raise ArgumentError("sweep", key, f"{rate!r:.60}", "a learning rate > 0")
    for key, least in (("init", 0), ("steps", 1)):
        number = values.get(key, least)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ArgumentError("sweep", key, f"{number!r:.60}", f"an int ≥ {least}")
    if not isinstance(values.get("until", ""), str):
        raise ArgumentError("sweep", "until", f"{values['until']!r:.60}", 'a condition: "loss < 0.1"')
    if values.get("allow", "rounding") not in get_args(Safety):
        raise unknown_name("sweep", "allow", str(values["allow"]), get_args(Safety))
    for key in ("disable", "enable", "only"):
        RULES.named(_rules(values.get(key)), "sweep", key)
