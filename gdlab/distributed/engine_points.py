"""Run points of a sweep on an engine: the functions that are called there by name."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from gdlab.base.errors import ArgumentError
from gdlab.distributed.engine import device_name, host_name, interrupts
from gdlab.distributed.point_run import PointProgress, PointResult, PointRunner
from gdlab.distributed.points import PointSettings
from gdlab.session import DeviceLike

_ANY = ("auto", "wgpu", None)  # devices that name no adapter
_MOST_SWEEPS = 2  # that an engine keeps
_runners: dict[str, PointRunner] = {}


def identity() -> tuple[str, int]:
    """Return host and process of this engine."""
    return host_name(), os.getpid()


def adopt(key: str, payload: bytes) -> tuple[str, int]:
    """Keep the start of the points of sweep `key`; return host and process."""
    if key not in _runners:
        start = value_of(payload)
        _runners[key] = PointRunner(start, device=_device(start.device))
        while len(_runners) > _MOST_SWEEPS:
            del _runners[next(iter(_runners))]
    return identity()


def _device(asked: DeviceLike) -> DeviceLike:
    """Return the device of this engine if the study names no adapter, else the one that it names."""
    own = device_name()
    fits = asked in _ANY and own != "auto" and (asked != "wgpu" or own.startswith("wgpu"))
    return own if fits else asked


def run_point(key: str, settings: bytes, steps: int) -> PointResult | None:
    """Run one point and publish its progress; return None if this engine does not know the sweep. An interrupt ends the
    point, not the engine."""
    try:
        runner = _runners.get(key)
        if runner is None:
            return None
        publish = _publisher()
        with interrupts(signal.default_int_handler):
            publish(identity())
            return runner.run(PointSettings(value_of(settings)), steps, publish)
    except KeyboardInterrupt:
        return PointResult("stopped", note="stopped")


def _publisher() -> Callable[[PointProgress | tuple[str, int]], None]:
    """Return a function that sends news of the running task to its client, each with its own number."""
    from ipyparallel.engine.datapub import publish_data

    count = 0

    def publish(news: PointProgress | tuple[str, int]) -> None:
        nonlocal count
        publish_data({f"news{count}": news})
        count += 1

    return publish


def payload_of(value: Any, where: str, what: str, kind: str) -> bytes:
    """Return a value as bytes, with the functions of a notebook and the globals that they read. Raise `ArgumentError`
    about argument `what`, given `kind` "that cannot be sent"."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:  # whatever an object's own method raises
        given = f"{kind} that cannot be sent ({' '.join(str(error).split())})"
        raise ArgumentError(where, what, given, "one that opens on the engine what it reads") from error
    return buffer.getvalue()


def _reduce_cached(one: Any) -> Any:
    """Reduce a function of `functools.lru_cache` to its name if a module has it, else to the function, whose cache
    begins empty: cloudpickle writes the name alone, which an engine does not find for a function of a notebook."""
    name = getattr(one, "__qualname__", "")
    found: Any = sys.modules.get(one.__module__) if one.__module__ != "__main__" else None
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is one else (_cached, (one.cache_parameters(), one.__wrapped__))


def _cached(parameters: Mapping[str, Any], function: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    dispatch_table = ChainMap({functools._lru_cache_wrapper: _reduce_cached}, cloudpickle.Pickler.dispatch_table)


def value_of(payload: bytes) -> Any:
    """Return the value that `payload_of` made bytes of, in another process."""
    return cloudpickle.loads(payload)
