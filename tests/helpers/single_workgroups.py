"""Run one workgroup of a kernel alone on the adapter, and say which elements of the result it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import wgpu

from gdlab import kernels
from gdlab.kernels.coverage import Coverage
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.target import Target

_UNTOUCHED = np.uint32(0x4640E6B6)  # a float that no kernel of the tests computes
_WANTED = (
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-storage-buffers-per-shader-stage",
)


@cache
def _device() -> Any:
    adapter = wgpu.gpu.request_adapter_sync()
    return adapter.request_device_sync(required_limits={name: adapter.limits[name] for name in _WANTED})


def _alone(text: str) -> str:
    """The text of a kernel whose workgroups return at once, apart from one."""
    group = re.search(r"@builtin\(workgroup_id\) (\w+)", text)
    groups = re.search(r"@builtin\(num_workgroups\) (\w+)", text)
    assert group and groups
    flat = "({g}.z * {n}.y + {g}.y) * {n}.x + {g}.x".format(g=group[1], n=groups[1])
    at = text.index(") {", groups.start()) + len(") {")
    head = "@group(1) @binding(0) var<uniform> only_group: u32;\n"
    return f"{head}{text[:at]}\n    if ({flat} != only_group) {{ return; }}{text[at:]}"


def written_by(d: Dispatch, target: Target, workgroups: Sequence[int]) -> Iterator[set[int]]:
    """For each of these workgroups yield the elements of the first result that it writes; operands are random."""
    device, usage, rng = _device(), wgpu.BufferUsage, np.random.default_rng(0)
    stages = wgpu.ShaderStage.COMPUTE
    dtypes = {o.buffer: o.dtype.value for o in d.operands}
    sizes = {o.buffer: math.prod(o.shape) for o in d.operands} | {r.buffer: r.type.num_elements for r in d.results}
    buffers = []
    for buffer, _ in d.bindings:
        count = -(-sizes[buffer] // 4) * 4
        data = rng.random(count, np.float32) if dtypes.get(buffer, "f32") == "f32" else np.zeros(count, np.uint32)
        both = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        buffers.append(device.create_buffer_with_data(data=data, usage=both))
    kinds = [{"type": "read-only-storage" if a == "r" else "storage"} for _, a in d.bindings]
    layouts = [
        device.create_bind_group_layout(
            entries=[{"binding": i, "visibility": stages, "buffer": kind} for i, kind in enumerate(some)]
        )
        for some in (kinds, [{"type": "uniform"}])
    ]
    number = device.create_buffer(size=16, usage=usage.UNIFORM | usage.COPY_DST)
    bound = [
        device.create_bind_group(
            layout=layout,
            entries=[
                {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}} for i, b in enumerate(some)
            ],
        )
        for layout, some in zip(layouts, (buffers, [number]), strict=True)
    ]
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=layouts),
        compute={"module": device.create_shader_module(code=_alone(kernels.wgsl(d, target)[0])), "entry_point": "main"},
    )
    result = buffers[[buffer for buffer, _ in d.bindings].index(d.output)]
    for workgroup in workgroups:
        device.queue.write_buffer(result, 0, np.full(result.size // 4, _UNTOUCHED, np.uint32))
        device.queue.write_buffer(number, 0, np.array([workgroup, 0, 0, 0], np.uint32))
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        for i, group in enumerate(bound):
            work.set_bind_group(i, group)
        work.dispatch_workgroups(*d.workgroups)
        work.end()
        device.queue.submit([encoder.finish()])
        now = np.frombuffer(device.queue.read_buffer(result), np.uint32)[: d.num_elements]
        yield set(np.flatnonzero(now != _UNTOUCHED).tolist())


def drawn_for(covered: Coverage, workgroup: int) -> set[int]:
    """The elements of the result that the picture gives to a workgroup."""
    batch, rows, columns = covered.shape
    high, wide = covered.cell
    down, across = -(-rows // high), -(-columns // wide)
    first = workgroup // covered.share * covered.per
    found = set[int]()
    for cell in range(first, min(first + covered.per, batch * down * across)):
        b, r, c = cell // (down * across), cell // across % down, cell % across
        if covered.over == "input":  # a number of each row, or of each column
            found |= {b * columns + q for q in range(c * wide, c * wide + wide)} if across > 1 else {cell}
            continue
        r = down - 1 - r if covered.flip else r
        for i in range(r * high, min(rows, r * high + high)):
            found |= {(b * rows + i) * columns + j for j in range(c * wide, min(columns, c * wide + wide))}
    return found
