"""One queue per program: what it submits, in how many parts, with how many in flight, and what it counts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs
from wgpu_plans import Load, dispatch, doubling, loading, make_plan, on_owner, tensor

import gdlab
from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.devices.base import BufferCopy, Clear, Copy, owner
from gdlab.devices.buffer_pool import Pool, size_class
from gdlab.devices.cpu.cpu_queue import CpuQueue
from gdlab.devices.wgpu import readback, wgpu_device
from gdlab.devices.wgpu import wgpu_queue as room
from gdlab.devices.wgpu.readback import Fence
from gdlab.devices.wgpu.wgpu_queue import FIRST_PART, PART_BYTES, WgpuQueue
from gdlab.graph import Graph
from gdlab.session import build_inference_session

MANY = 4 * FIRST_PART


@pytest.fixture
def load() -> Iterator[Load]:
    needs("wgpu")
    with loading() as load:
        yield load


@pytest.fixture
def queue(device: str) -> Any:
    return CpuQueue() if device == "cpu" else on_owner(lambda: WgpuQueue(wgpu_device.open().gpu))


def chain(count: int = MANY) -> Any:
    """x ← 2 x, so many times."""
    buffers = [tensor(0, "x", 64, "state"), tensor(1, "y", 64, "state")]
    return make_plan(buffers, [dispatch(k, "double", str(k % 2), 1 - k % 2) for k in range(count)])


# who submits ----------------------------------------------------------------------------------------------------------
def test_only_the_queue_submits_and_writes() -> None:
    folder = Path(gdlab.__file__).parent
    calls = re.compile(r"\.(QueueSubmit\w*|QueueWriteBuffer)\(")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if calls.search(path.read_text())}
    assert found == {str(Path("devices/wgpu/wgpu_queue.py"))}


# parts ----------------------------------------------------------------------------------------------------------------
def test_a_list_goes_in_growing_parts_once_it_has_run_whole(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program, parts = load(chain()), list[int]()
    record = room.record_pass

    def noted(gpu: Any, rows: Any, encoder: Any, start: int = 0, stop: int | None = None, **more: Any) -> None:
        parts.append((len(rows) if stop is None else stop) - start)
        record(gpu, rows, encoder, start, stop, **more)

    monkeypatch.setattr(room, "record_pass", noted)
    on_owner(program.upload, 0, np.ones(64, np.float32))
    for wanted in ([MANY], [32, 64, 32], [32, 64, 32]):
        parts.clear()
        before, landing = program.counters.submissions, on_owner(program.queue.readback, 4)
        on_owner(lambda end: program.step(None, landing=end), landing)
        assert parts == wanted and program.counters.submissions - before == len(wanted)
        on_owner(program.wait)
    assert program.counters.dispatches == 3 * MANY == program.counters.workgroups and program.counters.forwards == 3
    np.testing.assert_array_equal(on_owner(program.download, 0), np.full(64, np.inf, np.float32))


def test_a_list_goes_whole_while_the_adapter_has_something_else_to_do(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load(chain())
    step = lambda: on_owner(lambda: program.step(None, landing=program.queue.readback(4)))  # noqa: E731
    step()
    on_owner(program.wait)
    assert not on_owner(program.queue._is_busy)
    monkeypatch.setattr(program.gpu, "poll", lambda *given: None)  # nothing is known to have ended from now on
    found = []
    for _ in range(3):
        before = program.counters.submissions
        step()
        found.append(program.counters.submissions - before)
    assert on_owner(program.queue._is_busy) and found == [3, 1, 1]
    monkeypatch.undo()
    on_owner(program.wait)
    assert program.counters.dispatches == 4 * MANY


def test_what_has_been_waited_for_keeps_the_adapter_busy_no_more(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu brings the bytes of a submission before it says that nothing is under way."""
    program = load(chain())
    gpu, landings = program.gpu, [on_owner(program.queue.readback, 4) for _ in range(2)]
    monkeypatch.setitem(readback.SPIN_SECONDS, gpu.adapter_class, 10.0)  # no sleep until a certain submission has run
    poll = gpu.raw.DevicePoll
    for early, landing in zip((False, True), landings, strict=True):
        monkeypatch.setattr(gpu.raw, "DevicePoll", lambda *given: 0)  # brings nothing
        on_owner(lambda end=landing: program.step(None, landing=end))  # type: ignore[misc]
        monkeypatch.setattr(gpu.raw, "DevicePoll", lambda *given: poll(*given) * 0)  # never says that nothing is left
        while early and not landing.ready:
            on_owner(gpu.poll)
        assert landing.ready == early and gpu.ended < gpu.submitted
        on_owner(landing.wait)
        assert gpu.ended == gpu.submitted and not on_owner(program.queue._is_busy)
    monkeypatch.undo()
    on_owner(program.wait)


@pytest.mark.parametrize("count", [1, 31, 32, 63, 64, 95, 96, 97, 300])
def test_parts_cover_a_list_and_the_last_is_no_crumb(count: int, load: Load) -> None:
    made = load(chain(2))
    recorded = room.WgpuRecorded(made.gpu, [made.launches[0]] * count)
    assert recorded.cuts() == []
    recorded.whole = True
    cuts = [0, *recorded.cuts(), count]
    sizes = [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
    assert sum(sizes) == count and min(sizes) >= min(count, FIRST_PART)
    assert all(size == FIRST_PART * 2**k for k, size in enumerate(sizes[:-1]))


def test_a_list_that_failed_is_not_cut(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(chain())
    monkeypatch.setattr(room, "record_pass", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on_owner(program.step, None)
    monkeypatch.undo()
    assert not program._whole(True).whole and program.counters.forwards == program.counters.submissions == 0
    on_owner(program.step, None)
    assert program.counters.submissions == 1 and len(program.queue.flying) == 1


# copies and readbacks -------------------------------------------------------------------------------------------------
def test_copies_clears_and_readbacks_run_in_order(queue: Any) -> None:
    def body() -> None:
        a, b = queue.make(256), queue.make(256)
        queue.write("test", a, np.arange(64, dtype=np.uint32))
        queue.write("test", b, np.full(64, 7, np.uint32))
        one, two = queue.readback(16), queue.readback(256)
        items = [Copy(a, 8, b, 0, 16), Copy(b, 0, one, 0, 16), Clear(a), Copy(a, 0, two, 0, 128),
                 Copy(b, 0, two, 128, 128)]  # fmt: skip
        queue.submit("test", items, two)
        two.wait()
        if hasattr(one, "request"):
            one.request("test", two.submission)
        one.wait()
        assert np.frombuffer(one.view(), np.uint32).tolist() == [2, 3, 4, 5]
        assert np.frombuffer(two.view(), np.uint32).tolist() == [0] * 32 + [2, 3, 4, 5] + [7] * 28
        assert one.address != two.address and queue.counters.copies == 1
        one.release()
        two.release()
        two.release()
        made = queue.counters.buffers_created
        assert made <= 4 and queue.readback(250).nbytes == 250 and queue.counters.buffers_created == made
        queue.wait()
        queue.release(a)
        queue.make(200)
        assert queue.counters.buffers_created == made and queue.counters.waits == 1

    on_owner(body)


@pytest.mark.parametrize("nbytes", [4, 256, 1 << 20])
def test_memory_whose_map_is_under_way_is_lent_to_nobody(
    nbytes: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = load(doubling()).queue

    def body() -> None:
        a = queue.make(nbytes)
        first, other = queue.readback(nbytes), queue.readback(nbytes)
        for number in (1, 2, 3):
            queue.write("test", a, np.full(1, number, np.uint32))
            with monkeypatch.context() as patch:
                patch.setattr(queue.gpu, "poll", lambda submission=None: None)  # no news of the map
                queue.submit("test", [Copy(a, 0, first, 0, 4)], first)
            first.release()  # nobody waited
            second = queue.readback(nbytes)
            assert second.mapped is not first.mapped is not other.mapped
            queue.write("test", a, np.full(1, number + 10, np.uint32))
            queue.submit("test", [Copy(a, 0, second, 0, 4)], second)
            second.mapped.ended(second.mapped.maps - 1, 4)  # the news of an earlier map come late
            second.wait()
            assert np.frombuffer(second.view(), np.uint32)[0] == number + 10
            second.release()
            first = queue.readback(nbytes)
            assert first.mapped is second.mapped, "what was waited for is used again"
        queue.wait()

    on_owner(body)


def test_at_most_depth_steps_are_in_flight(load: Load) -> None:
    program = load(doubling())
    queue = program.queue
    queue.depth = 3

    def body() -> list[int]:
        seen = []
        for _ in range(8):
            readback = queue.readback(4)
            queue.submit("step", [program.launches[0], Copy(queue.scalars, 0, readback, 0, 4)], readback)
            seen.append(len(queue.flying))
        queue.wait()
        return seen

    assert max(on_owner(body)) <= 3 and not queue.flying and queue.counters.waits == 1


def test_a_list_that_is_submitted_alone_on_hardware_tells_its_pace(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(doubling())
    queue, list = program.queue, program._whole(True)

    def fence(items: Any) -> Fence:
        made = Fence(queue.gpu)
        queue.submit("step", items, made)
        return made

    def body() -> None:
        queue.wait()
        queue.gpu.poll(queue.gpu.submitted)
        monkeypatch.setattr(queue.gpu, "adapter_class", "software")
        assert fence([list]).pace is None, "a software adapter's threads need the core"
        queue.wait()
        monkeypatch.setattr(queue.gpu, "adapter_class", "hardware")
        first, begun = fence([list]), list.pace.begun
        assert first.pace is list.pace and begun > 0
        monkeypatch.setattr(queue.gpu, "ended", queue.gpu.submitted - 1)  # as where the first has not ended
        assert fence([list]).pace is None and list.pace.begun == begun, "it waits for the first"
        queue.wait()
        assert fence([list, list]).pace is None, "two lists"
        queue.wait()

    on_owner(body)


def test_a_door_cuts_where_it_likes(load: Load) -> None:
    program = load(chain(6))

    def body() -> None:
        program.upload(0, np.ones(64, np.float32))
        program.queue.submit("list", program.launches, cuts=[1, 4])
        assert program.counters.submissions == 3 and program.counters.dispatches == 6
        assert program.download(0).tolist() == [64.0] * 64

    on_owner(body)


def test_large_tensors_are_read_in_parts_of_which_several_are_under_way(queue: Any) -> None:
    def body() -> None:
        n = 5 * PART_BYTES // 8 + 7
        memory, x = queue.make(4 * n), np.random.default_rng(0).integers(0, 2**32, n, np.uint32)
        queue.write("test", memory, x)
        for start in (0, 4, 1000):
            out = np.empty(n - start // 4, np.uint32)
            queue.read("test", memory, out.data.cast("B"), start)
            np.testing.assert_array_equal(out, x[start // 4 :])
        queue.release(memory)

    on_owner(body)


# memory ---------------------------------------------------------------------------------------------------------------
def test_sizes_have_few_classes_and_waste_little() -> None:
    assert [size_class(n) for n in (0, 1, 256, 257, 1024, 1025, 1281, 5000)] == [
        256, 256, 256, 512, 1024, 1280, 1536, 5120,
    ]  # fmt: skip
    for n in range(257, 1 << 15, 97):
        size = size_class(n)
        assert size % 256 == 0 and n <= size <= max(n + 255, 1.25 * n)
    assert len({size_class(n) for n in range(1 << 20)}) < 50


def test_the_free_memory_made_first_is_used_first_and_is_bounded() -> None:
    made = list[int]()

    def make(nbytes: int) -> int:
        made.append(nbytes)
        return len(made)

    pool = Pool(make, 1024)
    taken = [pool.take(256) for _ in range(6)]
    assert [number for number, _ in taken] == [1, 2, 3, 4, 5, 6] == [memory for _, memory in taken]
    for number, memory in reversed(taken):
        pool.give(256, number, memory)
    assert pool.free_bytes == 1024  # 6, 5, 4, 3; the others are dropped
    assert [pool.take(256)[1] for _ in range(5)] == [3, 4, 5, 6, 7] and pool.created == 7
    pool.clear()
    assert pool.free_bytes == 0

    def fails(nbytes: int) -> int:
        raise SessionError("device", "memory", nbytes, "less")

    broken = Pool(fails, 1024)
    with pytest.raises(SessionError):
        broken.take(256)
    assert broken.created == broken.free_bytes == 0


# kernels --------------------------------------------------------------------------------------------------------------
def test_a_rebind_makes_only_what_binds_the_buffer(load: Load) -> None:
    buffers = [tensor(0, "x", 64, "input"), tensor(1, "y", 64, "output"), tensor(2, "z", 64, "output")]
    program = load(make_plan(buffers, [dispatch(0, "double", "0", 1), dispatch(1, "double", "1", 2)]))
    first, second = program.launches
    before = program.counters.bindings_created
    memory = on_owner(program.gpu.buffer, 256)
    on_owner(program.rebind, 0, memory)
    assert program.launches[0] is not first and program.launches[1] is second
    assert program.counters.bindings_created == before + 1 and program.counters.pipelines_created <= 1
    on_owner(program.upload, 0, np.ones(64, np.float32))
    on_owner(program.step, None)
    assert on_owner(program.download, 2).tolist() == [4.0] * 64


def test_a_steady_state_makes_nothing(load: Load) -> None:
    program = load(chain())
    x = np.ones(64, np.float32)

    def steps(count: int) -> dict[str, int]:
        for _ in range(count):
            program.upload(0, x)
            program.step(None)
            program.download(1)
        return {k: v for k, v in program.counters.as_dict().items() if k.endswith("created")}

    before = on_owner(steps, 2)
    assert on_owner(steps, 50) == before and program.counters.forwards == 52


# a step with copies ---------------------------------------------------------------------------------------------------
def test_a_step_lands_its_outputs_and_feeds_an_input(device: str) -> None:
    """y = 2 x; x ← y, three times in a row: one launch each, nothing uploaded after the first."""
    with Graph() as g:
        g.set_outputs([ops.input("x", (3,)) * 2.0])
    with build_inference_session(g, device) as session:
        plan, program = session.plan(), session.loaded.program
        (_, x), y = plan.input_buffers[0], plan.output_buffers[0]
        landing = owner().call(lambda: program.queue.readback(12))
        uploads, read = [(x, np.array([1, 2, 3], np.float32))], []
        for _ in range(3):
            session.steps.launch(uploads, [BufferCopy(y, 0, x, 0, 12), BufferCopy(y, 0, landing, 0, 12)], landing)
            uploads = []
            owner().call(landing.wait)
            read.append(np.frombuffer(landing.view(), np.float32).tolist())
            owner().call(landing.release)
            landing = owner().call(lambda: program.queue.readback(12))
        assert read == [[2, 4, 6], [4, 8, 12], [8, 16, 24]]
        assert session.read_buffer(x).tolist() == [8, 16, 24] and session.step_count == 3
        c = session.traffic
        assert (c.uploads, c.upload_bytes, c.copies, c.forwards) == (1, 12, 3, 3)
        assert (c.readbacks, c.readback_bytes) == (4, 48)  # three landings, one read_buffer


def test_landings_that_were_released_are_in_flight_no_more(device: str) -> None:
    """Their memory is that of the next landing: who waits for it must not wait for its next arrival."""
    with Graph() as g:
        g.set_outputs([ops.input("x", (3,)) * 2.0])
    with build_inference_session(g, device) as session:
        program = session.loaded.program
        (_, x), y = session.plan().input_buffers[0], session.plan().output_buffers[0]

        def body() -> None:
            for k in range(6):
                landing = program.queue.readback(12)
                session.steps.launch([(x, np.full(3, k, np.float32))], [BufferCopy(y, 0, landing, 0, 12)], landing)
                landing.wait()
                assert landing.ready and np.frombuffer(landing.view(), np.float32).tolist() == [2 * k] * 3
                landing.release()
                assert landing.ready
                landing.wait()
            program.wait()

        session.loaded.exclusively(body)
        assert session.traffic.throttle_waits == 0 and session.traffic.waits == 1


def test_random_numbers_are_those_of_the_draw(device: str) -> None:
    with Graph() as g:
        g.set_outputs([ops.rand_uniform((4,), seed=3)])
    with build_inference_session(g, device) as session:
        drawn = []
        for offset in (0, 0, -2, 5):
            session.progress.draw_offset = offset
            session.step()
            drawn.append(session.read_output().tolist())
        assert drawn[0] == drawn[2] and len({tuple(d) for d in drawn}) == 3


# steps that bring nothing back ----------------------------------------------------------------------------------------
def test_a_step_without_a_loss_is_over_when_it_has_been_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    monkeypatch.setattr(room, "AHEAD_BYTES", 0)  # else a step may be over when the next one is recorded
    with Graph() as g:
        h = ops.input("x", (128, 128))
        for _ in range(12):
            h = h @ h
        g.output(h)
    session = build_inference_session(g, "wgpu")
    session.set_input("x", np.eye(128))
    session.step()
    session.wait()  # what the driver compiles at first use
    program = session.loaded.program

    def timed() -> tuple[float, float, bool]:
        start = time.perf_counter()
        program.step(None)
        fence = program.queue.flying[-1]
        early = fence.ready
        program.wait()
        waited = time.perf_counter() - start
        start = time.perf_counter()
        program.queue.read("test", program._memory_of(program.plan.output_buffers[0]), memoryview(bytearray(4)))
        assert fence.ready and not program.queue.flying
        return waited, time.perf_counter() - start, early

    times = [on_owner(timed) for _ in range(5)]
    # One may be: this thread may have no processor until all has run.
    assert not all(early for _, _, early in times), "wgpu says in the lowest byte of its answer whether all has run"
    assert min(read for _, read, _ in times) < 0.5 * min(waited for waited, _, _ in times)
    before = session.loaded.program.counters.readbacks
    session.step(3)
    session.wait()
    assert session.loaded.program.counters.readbacks == before
    session.close()
