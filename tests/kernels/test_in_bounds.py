"""Kernels that are compiled without checks of their indices leave none of their operands and results.

Each is run as a probe: nothing is stored, and every index beyond its operand marks the first element of the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import op_checks
import pytest
from machine import needs
from matrix import MATRIX

from gdlab import kernels
from gdlab.base.memo import LruCache
from gdlab.base.types import Array
from gdlab.devices.base import Clear, owner
from gdlab.devices.choose import device as open_device
from gdlab.devices.wgpu.plan_replay import WgpuProgram
from gdlab.devices.wgpu.wgpu_device import WgpuDevice
from gdlab.graph import Graph
from gdlab.kernels import wgsl
from gdlab.op import REGISTRY, Op, Sample, Shader
from gdlab.plan import compile
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.spread import in_bounds
from gdlab.plan.target import Limits, Target

READ = re.compile(r"fn (\w+)_(at|four)\(i: u32\) -> (\S+) \{\n")
STORE = re.compile(r"fn (store\w*)\(i: u32, value: (\S+)\) \{\n.*?\n\}", re.DOTALL)


def probe(text: str, d: Dispatch) -> str:
    """The kernel, its reads checked and its stores replaced by checks."""
    c = d.custom
    assert c is not None
    read = dict(zip(c.names, (math.prod(o.shape) for o in d.operands), strict=False))
    written = {"store": d.results[0], "store4": d.results[0]}
    written |= {f"store_{name}": r for name, r in zip(c.results, d.results[1:], strict=True)}
    number = "u32" if "out: array<u32>" in text else "vec4<f32>" if "out: array<vec4<f32>>" in text else "f32"
    mark = f"out[0] = {number}(1)"

    def checked(found: re.Match[str]) -> str:
        last = "i + 3u" if found[2] == "four" else "i"
        return f"{found[0]}    if ({last} >= {read[found[1]]}u) {{ {mark}; }}\n" if found[1] in read else found[0]

    def kept(found: re.Match[str]) -> str:
        if found[1] not in written:
            return found[0]
        count = written[found[1]].type.num_elements
        last = "i + 3u" if found[1] == "store4" else "i"
        return f"fn {found[1]}(i: u32, value: {found[2]}) {{\n    if ({last} >= {count}u) {{ {mark}; }}\n}}"

    return STORE.sub(kept, READ.sub(checked, text))


ALIKE = ("full_attention", "multi_head_attn")  # kernels of cross_attention


def claimed() -> Iterator[Op]:
    for op in REGISTRY.values():
        if isinstance(op.kernel, Shader) and any(form.in_bounds for form in op.kernel.forms):
            if MATRIX or op.name not in ALIKE:
                yield op


def marks(op: Op, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the marks that the probes of an op's samples left in the first element of their results, by label."""

    def probing(d: Dispatch, target: Target) -> tuple[str, object]:
        text, lines = wgsl(d, target)
        return (probe(text, d) if d.custom is not None and in_bounds(d) else text), lines

    device = open_device("wgpu")
    assert isinstance(device, WgpuDevice)
    monkeypatch.setattr(kernels, "wgsl", probing)
    monkeypatch.setattr(device.gpu, "recipes", LruCache(1 << 20))  # no kernels of other tests
    with Graph() as g:
        calls = [
            op(*op.spread([op_checks.leaf(f"{i}{name}", a) for name, a in named(op, sample)]), **sample.attrs)
            for i, sample in enumerate(chosen(op.samples))
        ]
        g.set_outputs(calls)
    plan = compile(g, mode="inference", target=Target("wgpu", "hardware", Limits()))
    program = device.load(plan)
    try:
        return owner().call(lambda: dict(ran(program, plan)))
    finally:
        program.close()


def chosen(samples: Sequence[Sample]) -> Sequence[Sample]:
    """One amid them, and the last."""
    return [samples[i] for i in sorted({len(samples) // 2, len(samples) - 1})]


def named(op: Op, sample: Sample) -> Iterator[tuple[str, Array]]:
    arrays = sample.arrays(seed=0)
    yield from zip(op.operand_names(len(arrays)), arrays, strict=True)


def ran(program: WgpuProgram, plan: ExecutionPlan) -> Iterator[tuple[str, float]]:
    """Each probe alone, over memory of zeros."""
    for launch in program.launches:
        d = launch.dispatch
        if d.custom is not None and in_bounds(d):
            memory, found = program._memory_of(d.output), np.ones(1, np.uint32)
            program.queue.finish("probe", [Clear(memory)])
            program.queue.finish("probe", [launch])
            program.queue.read("probe", memory, memoryview(found).cast("B"))
            yield f"{d.label} {d.index}", float(found[0])


@pytest.mark.parametrize("op", list(claimed()), ids=lambda op: op.name)
def test_unchecked_kernels_stay_inside_their_operands(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    found = marks(op, monkeypatch)
    assert found and not any(found.values()), found


def test_an_index_beyond_the_operand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    op = REGISTRY["swiglu_concat"]
    whole = kernels.wgsl

    def wrong(d: Dispatch, target: Target) -> tuple[str, object]:
        text, lines = whole(d, target)
        return text.replace("+ WIDTH)", "+ WIDTH + 1u)"), lines

    monkeypatch.setitem(globals(), "wgsl", wrong)
    assert any(marks(op, monkeypatch).values())
