"""Record the dispatches of a step into a compute pass: in a C loop where there is a compiler, else call by call.

`loop.c` is compiled once per machine, when the first plan is loaded on an adapter, and kept beside other caches. It
does what the Python loop does, with the same arguments in the same order: 1.9 instead of 2.9 µs of CPU time per
dispatch, of which 1.3 are wgpu's own at the end (transformer of 8 layers with Adam, 337 dispatches, 2026-11-21).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab.devices.native import functions

if TYPE_CHECKING:
    from gdlab.devices.wgpu.wgpu_device import Gpu

Row = tuple[Any, Any, int, int, int]  # raw pipeline, raw bind group, workgroups
CALLS = (
    "ComputePassEncoderSetPipeline", "ComputePassEncoderSetBindGroup", "ComputePassEncoderDispatchWorkgroups",
    "ComputePassEncoderEnd", "ComputePassEncoderRelease",
)  # fmt: skip
_ROW = np.dtype([("pipeline", "u8"), ("group", "u8"), ("x", "u4"), ("y", "u4"), ("z", "u4"), ("unused", "u4")])
ROW_BYTES = _ROW.itemsize


class RecordedRows(list[Row]):
    """Rows of dispatches that are recorded again and again, also as a table for the C loop."""

    __slots__ = ("address", "in_c", "table")

    def __init__(self, gpu: Gpu, rows: Iterable[Row]) -> None:
        super().__init__(rows)
        self.address = 0  # of the table; 0 without a loop
        self.in_c: CLoop | None = None
        if loop() is not None and sys.maxsize > 1 << 32:
            handles = [(_address(gpu, p), _address(gpu, g), x, y, z, 0) for p, g, x, y, z in self]
            self.table = np.array(handles, _ROW)
            self.address = int(self.table.ctypes.data)
            self.in_c = _c_loop(gpu)


class CLoop:
    """`gdlab_record` as a foreign function like wgpu's own, which takes handles as they are, and the functions of wgpu
    that it calls. A pass of three rows takes 1.9 µs besides wgpu's work; by ctypes, with its end and release from
    Python, 4.9 (2 shared cores, 2026-11-28)."""

    __slots__ = ("calls", "record")

    def __init__(self, gpu: Gpu, function: Any) -> None:
        ffi = gpu.ffi
        self.calls = ffi.new("uintptr_t[]", [_address(gpu, getattr(gpu.raw, name)) for name in CALLS])
        address = ctypes.cast(function, ctypes.c_void_p).value
        self.record = ffi.cast("void(*)(WGPUComputePassEncoder, uintptr_t, size_t, uintptr_t *)", address)


def record_pass(
    gpu: Gpu, rows: Sequence[Row], encoder: Any, start: int = 0, stop: int | None = None, described: Any = None
) -> None:
    """Record one compute pass over rows start … stop − 1 (all by default), by raw calls alone. `described`: a pass
    descriptor of ours."""
    one_pass = gpu.raw.CommandEncoderBeginComputePass(encoder, described or gpu.null)
    stop = len(rows) if stop is None else stop
    if type(rows) is RecordedRows and (in_c := rows.in_c) is not None:
        in_c.record(one_pass, rows.address + start * ROW_BYTES, stop - start, in_c.calls)
    else:
        _one_by_one(gpu, rows[start:stop], one_pass)


def _one_by_one(gpu: Gpu, rows: Sequence[Row], one_pass: Any) -> None:
    """Make the calls of `gdlab_record`, in its order."""
    set_pipeline, set_group, dispatch, end, release = (getattr(gpu.raw, name) for name in CALLS)
    null, last = gpu.null, None
    for pipeline, group, x, y, z in rows:
        if pipeline is not last:
            set_pipeline(one_pass, pipeline)
            last = pipeline
        set_group(one_pass, 0, group, 0, null)
        dispatch(one_pass, x, y, z)
    end(one_pass)
    release(one_pass)


def _address(gpu: Gpu, handle: Any) -> int:
    return int(gpu.ffi.cast(gpu.address, handle))


def _c_loop(gpu: Gpu) -> CLoop:
    if gpu.c_loop is None:
        gpu.c_loop = CLoop(gpu, loop())
    return gpu.c_loop


# the C loop -----------------------------------------------------------------------------------------------------------
@cache
def loop() -> Any:
    """Return `gdlab_record` of `loop.c`; None where there is no compiler, or no folder for its output."""
    name = "gdlab_record"
    return functions("", {name: Path(__file__).with_name("loop.c").read_text("ascii")}).get(name)
