"""Read `rope_scaling` and `rope_parameters` of config.json: the scaling of the rates of rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gdlab.base.errors import LoadError
from gdlab.models.config_fields import flag, natural, optional, positive
from gdlab.models.family import WHERE
from gdlab.models.rope_scaling import RopeScaling

Readers = dict[str, tuple[str, Callable[[Any], Any]]]
POSITIONS, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
LONGEST = 1 << 14  # pairs of a head
OLDER = {"su": "longrope"}  # names that older files have


def share(given: Any) -> float:
    """Read a number above 0 and at most 1."""
    if positive(given) > 1:
        raise ValueError("a number above 0, at most 1")
    return float(given)


def times(given: Any) -> float:
    """Read a factor that float32 can divide by."""
    if not 1e-6 <= positive(given) <= 1e6:
        raise ValueError("factors in 10^-6 … 10^6")
    return float(given)


def each_pair(given: Any) -> tuple[float, ...]:
    """Read a number for each pair."""
    if not isinstance(given, list) or not 0 < len(given) <= LONGEST:
        raise ValueError("a list with a number for each pair of a head")
    return tuple(map(times, given))


# rope_type -> the fields that it has, those that it may have, and ours
REQUIRED: dict[str, Readers] = {
    "default": {},
    "linear": {"factor": ("factor", times)},
    "dynamic": {"factor": ("factor", times)},
    "llama3": {
        "factor": ("factor", times), "low_freq_factor": ("low", times), "high_freq_factor": ("high", times),
        ORIGINAL: ("original", natural),
    },
    "yarn": {"factor": ("factor", times)},
    "longrope": {"short_factor": ("short", each_pair), "long_factor": ("long", each_pair)},
}  # fmt: skip
OPTIONAL: dict[str, Readers] = {
    "yarn": {
        ORIGINAL: ("original", optional(natural)), "attention_factor": ("magnitude", optional(times)),
        "beta_fast": ("high", optional(times)), "beta_slow": ("low", optional(times)),
        "mscale": ("mscale", optional(times)), "mscale_all_dim": ("mscale_all_dim", optional(times)),
        "truncate": ("truncate", flag),
    },
    "longrope": {
        ORIGINAL: ("original", optional(natural)), "attention_factor": ("magnitude", optional(times)),
        "factor": ("factor", optional(times)),
    },
}  # fmt: skip


def rotary(given: Any) -> dict[str, Any]:
    """Return our fields of `rope_scaling`, or of `rope_parameters`, which also holds theta and the rotating part. What
    positions say besides is added by `completed`."""
    if not isinstance(given, Mapping):
        raise ValueError("an object with rope_type")
    rest = dict(given)
    kinds = {rest.pop(name) for name in ("rope_type", "type") if name in rest and isinstance(rest[name], str)}
    kinds = {OLDER.get(kind, kind) for kind in kinds}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or kind not in REQUIRED:
        raise ValueError(f"rope_type one of {', '.join(REQUIRED)}")
    values: dict[str, Any] = {}
    if "rope_theta" in rest:
        values["rope_theta"] = positive(rest.pop("rope_theta"))
    if "partial_rotary_factor" in rest:
        values["rotary_share"] = share(rest.pop("partial_rotary_factor"))
    required, more = REQUIRED[kind], OPTIONAL.get(kind, {})
    if not required.keys() <= rest.keys() <= (required | more).keys():
        besides = f", and of {', '.join(more)} some" if more else ""
        raise ValueError(f"of rope_type {kind} the fields {', '.join(required) or 'rope_theta alone'}{besides}")
    read = {ours: reader(rest[name]) for name, (ours, reader) in (required | more).items() if name in rest}
    if kind in ("llama3", "yarn") and not (read.get("low") or 1.0) < (read.get("high") or 32.0):
        names = "beta_slow below beta_fast" if kind == "yarn" else "low_freq_factor below high_freq_factor"
        raise ValueError(names)
    if kind != "default":
        values["rope_scaling"] = {"kind": kind, **{name: value for name, value in read.items() if value is not None}}
    return values


def completed(given: Mapping[str, Any], positions: int | None, original: int | None) -> RopeScaling:
    """Return the scaling of the fields for a model of so many positions; `original`: the positions that it was trained
    for, if config.json has them outside of these fields."""
    fields = dict(given)
    kind = fields["kind"]
    mscale, all_dim = fields.pop("mscale", None), fields.pop("mscale_all_dim", None)
    if kind in ("dynamic", "yarn"):
        fields.setdefault("original", _needed(positions, POSITIONS, kind))
    if kind == "longrope":
        before = original or fields.get("original") or _needed(positions, POSITIONS, kind)
        if fields.get("original", before) != before:
            both = f"{before:,}, and {fields['original']:,} in rope_scaling"
            raise LoadError(WHERE, f"config.json: {ORIGINAL}", both, "the same in both places")
        if original or "original" in fields:
            fields["factor"] = _needed(positions, POSITIONS, kind) / before
        elif "factor" not in fields and "magnitude" not in fields:
            _needed(None, ORIGINAL, kind)
        fields["original"] = before
        factor = fields.setdefault("factor", 1.0)
        if before < 2:
            raise LoadError(WHERE, f"config.json: {ORIGINAL}", before, "2 positions or more")
        fields.setdefault("magnitude", math.sqrt(1 + math.log(factor) / math.log(before)) if factor > 1 else 1.0)
    if kind == "yarn":
        fields.setdefault("high", 32.0)
        numerator, denominator = (mscale, all_dim) if mscale and all_dim else (1.0, 0.0)
        fields.setdefault("magnitude", _mscale(fields["factor"], numerator) / _mscale(fields["factor"], denominator))
    return RopeScaling(**fields)


def extended(scaling: RopeScaling, length: int) -> RopeScaling:
    """Return the scaling of a model that is to be built for so many positions."""
    return replace(scaling, extended=scaling.kind == "longrope" and length > scaling.original)


def _mscale(factor: float, times: float) -> float:
    return 0.1 * times * math.log(factor) + 1.0 if factor > 1 else 1.0


def _needed(given: int | None, name: str, kind: str) -> int:
    if given is None:
        raise LoadError(WHERE, f"config.json: {name}", "none", f"a number: rope_type {kind} depends on it")
    return given
