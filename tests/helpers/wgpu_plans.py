"""Plans made by hand with kernels of one line, for the tests of the wgpu device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gdlab import kernels
from gdlab.base.types import Array, TensorType, f32
from gdlab.devices.base import owner
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.wgpu.wgpu_device import WgpuProgram
from gdlab.graph import Graph
from gdlab.plan.dispatch import Dispatch, Operand, Result
from gdlab.plan.records import BarrierGroup, ExecutionPlan, Interval, LineMap, MemoryPlan, PlanBuffer, Slot
from gdlab.plan.target import CompileOptions, Target

Load = Callable[..., WgpuProgram]

READ = "@group(0) @binding({}) var<storage, read> {}: array<f32>;\n"
WRITE = "@group(0) @binding({}) var<storage, read_write> {}: array<f32>;\n"
MAIN = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{ let i = at.x; {} }}\n"


def kernel(names: str, body: str) -> str:
    """Bindings in order, `>` before a written one: kernel("x >y", "y[i] = x[i];")."""
    words = names.split()
    lines = [(WRITE if word[0] == ">" else READ).format(i, word.lstrip(">")) for i, word in enumerate(words)]
    return "".join(lines) + MAIN.format(body)


KERNELS = {
    "count": kernel(">x", "if (i == 0) { x[0] = x[0] + 1.0; }"),
    "double": kernel("x >y", "if (i < arrayLength(&x)) { y[i] = 2.0 * x[i]; }"),
    "copy": kernel("x >y", "if (i < arrayLength(&x)) { y[i] = x[i]; }"),
    "add": kernel("x y >z", "if (i < arrayLength(&x)) { z[i] = x[i] + y[i]; }"),
    "sgd": kernel("g >p s", "if (i < arrayLength(&g)) { p[i] = p[i] - s[0] * g[i]; }"),
    "momentum": kernel("g >p >m s", "if (i < arrayLength(&g)) { m[i] = m[i] + g[i]; p[i] = p[i] - s[0] * m[i]; }"),
    "broken": kernel("x >y", "y[i] = z[i];"),
}


def join(dispatch: Dispatch, target: Target) -> tuple[str, LineMap]:
    """The kernel that the label names: for `gdlab.kernels.dispatch_wgsl`."""
    return KERNELS[dispatch.label], ()


@contextmanager
def loading() -> Iterator[Load]:
    """A function that loads hand-made plans on the best adapter; what it loaded is closed at the end."""
    device, made, joiners = room.open("for the tests"), list[WgpuProgram](), kernels.wgsl
    kernels.wgsl = join

    def load(plan: ExecutionPlan, **how: Any) -> WgpuProgram:
        made.append(device.load(plan, **how))
        return made[-1]

    try:
        yield load
    finally:
        kernels.wgsl = joiners
        for program in made:
            on_owner(program.close)


def tensor(number: int, name: str, n: int, kind: str) -> PlanBuffer:
    return PlanBuffer(number, 4 * n, f32, (n,), kind, name, ())  # type: ignore[arg-type]


def dispatch(index: int, label: str, reads: str = "", output: int = 0, in_place: str = "", **more: Any) -> Dispatch:
    operands = tuple(Operand(int(b), (1,)) for b in reads.split())
    places = tuple(int(b) for b in in_place.split())
    results = (Result(output, TensorType((64,))),)
    return Dispatch(index, "sgd", label, "forward", operands, results, places, group=index, **more)


def retyped(d: Dispatch, type: TensorType) -> Dispatch:
    return replace(d, results=(replace(d.results[0], type=type),))


def make_plan(
    buffers: list[PlanBuffer], dispatches: list[Dispatch], loss: int | None = None, **changes: Any
) -> ExecutionPlan:
    """A plan in which every buffer has its own slot and every dispatch its own group."""
    slots = tuple(Slot(-(-b.nbytes // 256) * 256, (b.id,)) for b in buffers)
    written = [b.kind in ("intermediate", "output", "loss") for b in buffers]
    life = tuple(Interval(0 if w else -1, len(dispatches), 0, 0) for w in written)
    pinned = tuple((b.id, b.kind) for b in buffers if b.kind != "intermediate")
    memory = MemoryPlan(tuple(range(len(buffers))), (0,) * len(buffers), slots, life, pinned, 0, 0, 0, 0)
    fields: dict[str, Any] = {
        "mode": "training", "buffers": tuple(buffers), "memory": memory, "loss_buffer": loss,
        "dispatches": tuple(retyped(d, TensorType(buffers[d.output].shape)) for d in dispatches),
        "groups": tuple(BarrierGroup(k, k + 1, ()) for k in range(len(dispatches))),
        "param_buffers": (), "input_buffers": (), "constant_buffers": (), "param_grad_pairs": (), "output_buffers": (),
        "places": (), "fates": (), "missed": (), "graph": Graph(), "options": CompileOptions(),
        "target": Target.portable(), "fingerprint": "by hand",
    }  # fmt: skip
    return ExecutionPlan(**{**fields, **changes})


def counting() -> ExecutionPlan:
    """Loss k at step k, through a chain of two dispatches."""
    buffers = [tensor(0, "count", 1, "state"), tensor(1, "loss", 1, "loss")]
    return make_plan(buffers, [dispatch(0, "count", "", 0, "0"), dispatch(1, "copy", "0", 1)], loss=1)


def doubling(n: int = 64) -> ExecutionPlan:
    """y = 2 x, no loss."""
    return make_plan([tensor(0, "x", n, "input"), tensor(1, "y", n, "output")], [dispatch(0, "double", "0", 1)])


def changed(plan: ExecutionPlan, **fields: Any) -> ExecutionPlan:
    """The plan with its first dispatch changed."""
    return replace(plan, dispatches=(replace(plan.dispatches[0], **fields), *plan.dispatches[1:]))


def on_owner(function: Callable[..., Any], *given: Any) -> Any:
    return owner().call(lambda: function(*given))


def encode_cost(program: WgpuProgram, steps: int, scalars: Array | None = None) -> float:
    """CPU seconds per dispatch of recording a step (with checks, without submission): the median of `steps`."""
    record, spent, costs = program.gpu.record, list[float](), list[float]()

    def timed(where: str, encode: Callable[[Any], None]) -> Any:
        start = time.thread_time()
        commands = record(where, encode)
        spent.append(time.thread_time() - start)
        return commands

    # within real steps: a command buffer that is never submitted costs some 60 µs to drop
    program.gpu.record = timed  # type: ignore[method-assign]
    try:
        for _ in range(steps):
            spent.clear()
            program.step(scalars)
            costs.append(sum(spent) / len(program.launches + program.update_launches))
        program.wait()
    finally:
        del program.gpu.record
    return statistics.median(costs)
