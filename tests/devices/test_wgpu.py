"""The wgpu device: exact losses in order, nothing left behind, a clean end; on the best adapter."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clock import seconds_here
from machine import needs
from places import HELPERS
from wgpu_plans import (
    KERNELS,
    Load,
    changed,
    counting,
    dispatch,
    doubling,
    encode_cost,
    kernel,
    loading,
    make_plan,
    on_owner,
    tensor,
)

from gdlab.base.errors import ArgumentError, DeviceUnavailableError
from gdlab.base.threads import Job, wait_for
from gdlab.base.types import u32
from gdlab.devices.base import IN_FLIGHT, QueueCounters, owner
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.wgpu.readback import Mapped
from gdlab.devices.wgpu.wgpu_device import RAW, WgpuProgram
from gdlab.devices.wgpu.wgpu_queue import PART_BYTES
from gdlab.plan.records import PlanBuffer


@pytest.fixture
def load() -> Iterator[Load]:
    needs("wgpu")
    with loading() as load:
        yield load


# what it computes -----------------------------------------------------------------------------------------------------
def test_2000_losses_are_exact_in_order_and_none_is_missing(load: Load) -> None:
    program, seen, depths = load(counting()), list[tuple[int, float]](), set[int]()

    def run() -> Job[None]:
        for _ in range(2000):
            program.step(None)
            depths.add(len(program.queue.flying))
            seen.extend(program.losses(wait=False))
            yield

    wait_for(owner().post(run()))
    seen.extend(on_owner(program.losses, True))
    assert seen == [(k, float(k)) for k in range(1, 2001)]
    assert max(depths) <= IN_FLIGHT == 2
    assert (program.counters.forwards, program.counters.submissions, program.counters.dispatches) == (2000, 2000, 4000)


def test_two_steps_are_in_flight_even_if_nothing_tells_that_they_ended(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, depths = load(counting()), list[int]()
    poll, success = program.gpu.poll, program.gpu.lib.WGPUMapAsyncStatus_Success

    def late(submission: int | None = None) -> None:
        if submission is not None:  # somebody sleeps until the oldest has run
            poll(submission)
            for readback in program.queue.flying:
                readback.mapped.status = success if readback.submission == submission else 0

    monkeypatch.setattr(Mapped, "ended", lambda self, map, status: None)
    monkeypatch.setattr(program.gpu, "poll", late)
    for _ in range(6):
        on_owner(program.step, None)
        depths.append(len(program.queue.flying))
    assert depths == [1, 2, 2, 2, 2, 2]
    assert on_owner(program.losses, True) == [(k, float(k)) for k in range(1, 7)]


def test_upload_and_download_without_a_loss(load: Load) -> None:
    program, x = load(doubling(64)), np.arange(64, dtype=np.float32)
    on_owner(program.upload, 0, x)
    on_owner(program.step, None)
    np.testing.assert_array_equal(on_owner(program.download, 1), 2 * x)
    assert on_owner(program.losses, True) == []
    assert (program.counters.upload_bytes, program.counters.readback_bytes, program.counters.forwards) == (256, 256, 1)


def test_uploads_act_from_the_next_step_on(load: Load) -> None:
    buffers = [tensor(0, "x", 1, "input"), tensor(1, "loss", 1, "loss")]
    program = load(make_plan(buffers, [dispatch(0, "copy", "0", 1)], loss=1))
    for k in range(6):
        on_owner(program.upload, 0, np.full(1, k, np.float32))
        on_owner(program.step, None)
    assert [loss for _, loss in on_owner(program.losses, True)] == [0, 1, 2, 3, 4, 5]


def test_a_loss_that_is_not_a_number_comes_through(load: Load) -> None:
    buffers = [tensor(0, "x", 1, "input"), tensor(1, "loss", 1, "loss")]
    program = load(make_plan(buffers, [dispatch(0, "copy", "0", 1)], loss=1))
    for value in (1.0, float("nan"), float("-inf"), 2.0):
        on_owner(program.upload, 0, np.full(1, value, np.float32))
        on_owner(program.step, None)
    np.testing.assert_array_equal([x for _, x in on_owner(program.losses, True)], [1.0, np.nan, -np.inf, 2.0])


def test_big_tensors_go_up_and_down_in_pieces(load: Load) -> None:
    n = 5 * PART_BYTES // 8 + 7  # 2.5 pieces, and a tail
    program = load(make_plan([tensor(0, "x", n, "input")], []))
    x = np.random.default_rng(0).standard_normal(n, np.float32)
    on_owner(program.upload, 0, x)
    np.testing.assert_array_equal(on_owner(program.download, 0), x)
    made = program.counters.buffers_created
    np.testing.assert_array_equal(on_owner(program.download, 0), x)
    assert program.counters.buffers_created == made and program.counters.readbacks == 2


def test_integers_keep_their_dtype_and_shape(load: Load) -> None:
    buffer = PlanBuffer(0, 24, u32, (2, 3), "input", "labels", ())
    program = load(make_plan([buffer], []))
    labels = np.array([[1, 2, 3], [4, 5, 2**32 - 1]], np.uint32)
    on_owner(program.upload, 0, labels)
    read = on_owner(program.download, 0)
    assert read.dtype == np.uint32 and read.tolist() == labels.tolist()


def test_an_upload_of_another_size_or_dtype_is_refused(load: Load) -> None:
    program = load(doubling())
    for data in (np.zeros(5, np.float32), np.zeros(64, np.uint32)):
        with pytest.raises(ArgumentError, match=r"upload: data of x: given \w+, \d+ bytes, wanted f32, 256 bytes"):
            on_owner(program.upload, 0, data)
    with pytest.raises(ArgumentError, match="download: buffer: given 9, wanted one of the 2 buffers"):
        on_owner(program.download, 9)


def test_constants_are_there_from_the_start(load: Load) -> None:
    data = np.arange(64, dtype=np.float32)
    program = load(replace(doubling(), constant_buffers=((0, data.tobytes()),)))
    on_owner(program.step, None)
    np.testing.assert_array_equal(on_owner(program.download, 1), 2 * data)


def test_loading_leaves_zeros_although_it_ran_the_kernels(load: Load) -> None:
    program = load(counting())
    assert [on_owner(program.download, b).tolist() for b in (0, 1)] == [[0.0], [0.0]]
    c = program.counters
    assert c == QueueCounters(readbacks=2, readback_bytes=8, buffers_created=c.buffers_created, bindings_created=2,
                         pipelines_created=c.pipelines_created)  # fmt: skip


def test_poison_fills_intermediate_slots_alone_and_changes_no_result(load: Load) -> None:
    buffers = [tensor(i, name, 64, kind) for i, (name, kind) in enumerate(CHAIN)]
    program = load(make_plan(buffers, [dispatch(0, "double", "0", 1), dispatch(1, "double", "1", 2)]))
    on_owner(program.upload, 0, np.ones(64, np.float32))
    on_owner(program.poison)
    values = [on_owner(program.download, b) for b in range(4)]
    assert [bool(np.isnan(v).all()) for v in values] == [False, True, False, False]
    on_owner(program.step, None)
    assert on_owner(program.download, 2).tolist() == [4.0] * 64


CHAIN = (("x", "input"), ("twice", "intermediate"), ("y", "output"), ("m", "state"))


# which adapter --------------------------------------------------------------------------------------------------------
def test_the_software_driver_is_listed() -> None:
    needs("lavapipe")
    software = [info for info in room.adapters() if info.adapter_class == "software"]
    assert len(software) == 1 and software[0].name.startswith("llvmpipe")


def test_the_best_adapter_is_opened_once() -> None:
    needs("wgpu")
    device = room.open("for the tests")
    assert device.info == replace(room.adapters()[0], reason="for the tests")
    assert device.target.adapter_class == device.info.adapter_class
    assert room.open().gpu is device.gpu
    limits = device.target.limits
    assert (limits.workgroups_per_axis, limits.alignment) == (65535, 256)
    assert limits.binding_bytes >= 128 << 20 and limits.workgroup_bytes >= 16384 and limits.storage_buffers >= 8


def test_hardware_comes_before_software() -> None:
    kinds = ("CPU", "IntegratedGPU", "unheard of", "DiscreteGPU", "VirtualGPU")
    found = [SimpleNamespace(info={"adapter_type": kind}) for kind in kinds]
    ordered = [a.info["adapter_type"] for a in room.best_first(found)]
    assert ordered == ["DiscreteGPU", "IntegratedGPU", "VirtualGPU", "unheard of", "CPU"]


def test_no_adapter_and_no_library_have_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_opened", {})
    monkeypatch.setattr(room, "_adapters", list)
    wanted = 'device: wgpu: given no adapter, wanted a Vulkan driver (Debian: mesa-vulkan-drivers) or device="cpu"'
    with pytest.raises(DeviceUnavailableError, match=f"^{re.escape(wanted)}$"):
        room.open()
    monkeypatch.undo()
    monkeypatch.setattr(room, "_opened", {})
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(
        DeviceUnavailableError, match='device: wgpu: given .*wgpu.*, wanted wgpu 0.32 .* or device="cpu"'
    ):
        room.open()
    assert room.adapters() == []


def test_an_adapter_that_does_not_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("Request device failed (4): no memory")

    info = {"device": "Acme 9", "adapter_type": "DiscreteGPU"}
    monkeypatch.setattr(room, "_opened", {})
    adapter = SimpleNamespace(info=info, features=(), request_device_sync=refuse)
    monkeypatch.setattr(room, "_adapters", lambda: [adapter])
    with pytest.raises(DeviceUnavailableError, match=r"given Acme 9, which does not open \(.*no memory\)"):
        room.open()


# beside others, and the end -------------------------------------------------------------------------------------------
def test_a_second_thread_reads_writes_and_steps_beside_a_run(load: Load) -> None:
    running, other = load(counting()), load(doubling())
    stop, seen = threading.Event(), list[tuple[int, float]]()

    def run() -> Job[None]:
        while not stop.is_set():
            running.step(None)
            seen.extend(running.losses(wait=False))
            yield

    future = owner().post(run())
    counts = []
    for k in range(333):
        on_owner(other.upload, 0, np.full(64, k, np.float32))
        on_owner(other.step, None)
        assert on_owner(other.download, 1).tolist() == [2.0 * k] * 64
        counts.append(on_owner(running.download, 0)[0])
    stop.set()
    wait_for(future)
    seen.extend(on_owner(running.losses, True))
    assert seen == [(k, float(k)) for k in range(1, running.counters.forwards + 1)]
    assert counts == sorted(counts) and 0 < counts[0] < counts[-1] <= running.counters.forwards


def test_every_raw_function_that_is_allowed_is_called(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, calls = load(counting()).gpu, Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(gpu.raw, name)

        def call(*given: Any) -> Any:
            calls[name] += 1
            return function(*given)

        return call

    monkeypatch.setattr(gpu, "raw", SimpleNamespace(**{name: counted(name) for name in RAW}))
    program = load(counting())
    on_owner(program.upload, 0, np.full(1, 41, np.float32))
    on_owner(program.step, np.zeros(8, np.float32))
    on_owner(program.step, np.ones(8, np.float32))
    on_owner(program.step, np.zeros(8, np.float32))  # recorded ahead, with numbers that change
    assert on_owner(program.losses, True) == [(1, 42.0), (2, 43.0), (3, 44.0)]
    assert on_owner(program.download, 0).tolist() == [44.0]
    assert on_owner(program.profile, (0, 1)) == program.gpu.no_stamps == ""
    on_owner(program.step, None)
    assert [index for index, _ in on_owner(program.timings)] == [0]
    empty = f"@compute @workgroup_size(1) fn main() {{ }}  // {time.time()}"
    on_owner(lambda: gpu.pipeline("unchecked", empty, "r", True))
    assert sorted(calls) == sorted(RAW)


def test_stamps_are_taken_with_a_pass_for_each_dispatch_too(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on adapters that cannot stamp inside a pass."""
    buffers = [tensor(0, "x", 64, "state"), tensor(1, "y", 64, "state")]
    program = load(make_plan(buffers, [dispatch(k, "double", str(k % 2), 1 - k % 2) for k in range(6)]))
    monkeypatch.setattr(program.gpu, "stamps_inside", False)
    on_owner(program.upload, 0, np.ones(64, np.float32))
    on_owner(program.profile, (1, 4))
    on_owner(program.step, None)
    assert on_owner(program.download, 0).tolist() == [64.0] * 64
    times = on_owner(program.timings)
    assert [index for index, _ in times] == [1, 2, 3] and all(0 < seconds < 1 for _, seconds in times)


def test_an_adapter_without_stamps_says_so(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(doubling())
    monkeypatch.setattr(program.gpu, "no_stamps", "this adapter has no timestamp-query")
    assert on_owner(program.profile, (0, 1)) == "this adapter has no timestamp-query"
    on_owner(program.step, None)
    assert on_owner(program.timings) == []


def test_500_steps_leave_nothing_behind(load: Load) -> None:
    from wgpu.backends.wgpu_native import ffi, lib
    from wgpu.backends.wgpu_native._helpers import get_wgpu_instance

    program, x = load(counting()), np.zeros(1, np.float32)

    def kept() -> dict[str, int]:
        report = ffi.new("WGPUGlobalReport *")
        lib.wgpuGenerateReport(get_wgpu_instance(), report)
        hub = report.hub
        return {name: getattr(hub, name).numKeptFromUser for name in ("buffers", "bindGroups", "commandBuffers")}

    def steps(count: int) -> dict[str, int]:
        for k in range(count):
            program.upload(0, x)
            program.step(None)
            if k % 50 == 0:
                gc.collect()  # a raw handle must not die with an object that only looks unused
                program.download(1)
        program.losses(True)
        return kept()

    before = on_owner(steps, 5)
    assert before["buffers"] > 0
    assert on_owner(steps, 500) == before


def test_programs_dropped_in_mid_flight_give_their_memory_back(load: Load) -> None:
    device = room.open()
    for _ in range(20):
        program = device.load(counting())
        on_owner(program.step, None)
        on_owner(program.step, None)
    on_owner(program.close)
    del program
    gc.collect()
    on_owner(device.gpu.poll)
    assert len(device.gpu.mapped) == sum(len(free) for free in device.gpu.readbacks._free.values())


@pytest.mark.clock
def test_the_first_step_is_not_the_one_that_compiles(load: Load) -> None:
    unlike = f"{time.time() % 1000:.6f}"  # else the driver finds it in its disk cache
    body = f"var s = x[0]; for (var k = 0; k < 40; k++) {{ s = sin(s) * exp(-s) + tanh(s * {unlike}); }} y[i % 64] = s;"
    KERNELS["fresh"] = kernel("x >y", body)
    program = load(changed(doubling(), label="fresh"))
    seconds = [on_owner(timed_step, program) for _ in range(21)]
    assert seconds[0] <= max(3 * sorted(seconds)[10], seconds_here(0.003))


def timed_step(program: WgpuProgram) -> float:
    start = time.perf_counter()
    program.step(None)
    program.wait()
    return time.perf_counter() - start


@pytest.mark.clock
def test_encoding_costs_microseconds(load: Load) -> None:
    buffers = [tensor(0, "x", 64, "state"), tensor(1, "y", 64, "state")]
    program = load(make_plan(buffers, [dispatch(k, "double", str(k % 2), 1 - k % 2) for k in range(300)]))
    cost = on_owner(encode_cost, program, 21)
    print(f"encoding: {cost * 1e6:.2f} µs per dispatch")
    # 1.7 µs on two busy cores (2025-11); 11 is what wgpu's own layer takes with a pass per dispatch
    assert cost < seconds_here(11e-6)


# in a process of its own ----------------------------------------------------------------------------------------------
CHILD = """
import sys, time
import wgpu_plans as T
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.devices.base import owner
T.kernels.wgsl = T.join
def run(program):
    while True:
        program.step(None)
        program.losses(False)
        yield
program = room.open().load(T.counting())
"""
EXITS = {
    "end of the script": "owner().post(run(program)); time.sleep(0.2)",
    "sys.exit": "owner().post(run(program)); time.sleep(0.2); sys.exit(0)",
    "in flight, not waited for": "owner().call(lambda: (program.step(None), program.step(None)))",
}


def child(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run it as a fresh user: no cache folder yet, no runtime folder."""
    env = {k: v for k, v in os.environ.items() if k not in ("MESA_SHADER_CACHE_DIR", "XDG_RUNTIME_DIR")}
    path = os.pathsep.join(filter(None, (str(HELPERS), os.environ.get("PYTHONPATH"))))
    env |= {"XDG_CACHE_HOME": str(tmp_path / "a" / "b"), "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.parametrize("how", EXITS)
def test_exit_in_mid_run_is_clean(how: str, tmp_path: Path) -> None:
    needs("wgpu")
    done = child(CHILD + EXITS[how], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_kernel_cache_is_made_and_the_environment_left_alone(tmp_path: Path) -> None:
    needs("lavapipe")
    code = CHILD + "import os; print(os.environ['MESA_SHADER_CACHE_DIR'], 'XDG_RUNTIME_DIR' in os.environ)"
    done = child(code, tmp_path)
    folder = tmp_path / "a" / "b" / "gdlab" / "mesa"
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(folder), "False"], "")
    assert any(folder.rglob("*"))


def test_importing_the_room_imports_no_wgpu() -> None:
    code = "import sys, gdlab.devices.wgpu.wgpu_device; print('wgpu' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
