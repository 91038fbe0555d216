"""The fast paths of steps, sessions and recordings change nothing: the same values, the same errors, whole steps."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from child import run_child
from clock import seconds_here
from machine import needs

from benchmarks import steps
from benchmarks.passes import LARGE
from gdlab import kernels, ops
from gdlab.autodiff import differentiate
from gdlab.devices import native
from gdlab.devices.base import KEPT, owner
from gdlab.devices.cpu.call_lanes import flat
from gdlab.devices.cpu.chain_calls import Scratch, array, build, emit
from gdlab.devices.cpu.cpu_device import TINY, flush
from gdlab.devices.cpu.update_calls import BLOCK
from gdlab.devices.wgpu import compile_progress, pass_recording
from gdlab.devices.wgpu.wgpu_device import WgpuProgram
from gdlab.graph import Graph
from gdlab.session import Session, build_session, build_session_cached

chains: Any = importlib.import_module("gdlab.devices.cpu.chain_calls")
SHARED = 2  # a shared machine may take twice the time of a bar


def falling() -> Session:
    """A parameter that loses exactly 1 per step."""
    with Graph() as g:
        g.output((ops.parameter("p", (4,)) * ops.input("x", (4,))).sum())
    session = build_session(g, "cpu")
    session.set_parameter("p", np.zeros(4))
    session.set_input("x", np.ones(4))
    session.set_learning_rate(1.0)
    return session


# on the caller's thread -----------------------------------------------------------------------------------------------
def test_the_cpu_steps_on_the_thread_that_asks() -> None:
    with falling() as session:
        seen = []
        made = session.loaded.program.step
        session.loaded.program.step = lambda *a: (seen.append(threading.get_ident()), made(*a))[1]  # type: ignore[assignment]
        session.step()
        owner().call(session.step)
        assert seen == [threading.get_ident(), owner().ident]


INTERRUPTED = """
import _thread, threading, time
import numpy as np
from gdlab import Graph, build_session, ops

with Graph() as g:
    g.output((ops.parameter("p", (4,)) * ops.input("x", (4,))).sum())
session = build_session(g, "cpu")
session.set_parameter("p", np.zeros(4))
session.set_input("x", np.ones(4))
session.set_learning_rate(1.0)
ready, over = threading.Semaphore(0), threading.Event()

def interrupt():
    while ready.acquire() and not over.is_set():
        time.sleep(0.003)
        _thread.interrupt_main()

sender = threading.Thread(target=interrupt, daemon=True)
sender.start()
caught, end = 0, time.monotonic() + 30
while caught < 40 and time.monotonic() < end:
    try:
        ready.release()  # one interrupt, which falls into this block
        while time.monotonic() < end:
            session.step()
            session.set_input("x", np.ones(4))
    except KeyboardInterrupt:
        caught += 1
over.set()
ready.release()
sender.join()
made = session.step_count
assert caught == 40 and made == session.traffic.forwards > 0
np.testing.assert_array_equal(session.read_param("p"), np.full(4, -float(made)))
assert session.read_loss() == -4.0 * (made - 1)
session.close()
"""


def test_an_interrupt_cuts_no_step_in_two() -> None:
    run_child(INTERRUPTED)  # in this process an interrupt may also cut what other tests left behind


def test_losses_that_nobody_takes_are_let_go() -> None:
    with falling() as session:
        for _ in range(KEPT + 100):
            session.step()
        told = owner().call(lambda: session.take_losses(True))
        assert [step for step, _ in told] == list(range(101, KEPT + 101))


def test_work_inside_work_runs_at_once_and_an_error_lets_others_work() -> None:
    assert owner().here(lambda: owner().call(lambda: owner().here(threading.get_ident))) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        owner().here(lambda: 1 // 0)
    assert owner().call(lambda: 2) == 2 and owner().here(lambda: 3) == 3


def test_nobody_works_while_the_owner_does() -> None:
    began, go, found = threading.Event(), threading.Event(), list[int]()

    def slow() -> int:
        began.set()
        go.wait(10)
        return 1

    first = threading.Thread(target=lambda: found.append(owner().call(slow)))
    first.start()
    began.wait(10)
    second = threading.Thread(target=lambda: found.append(owner().here(lambda: 2)))
    second.start()
    second.join(0.05)
    assert second.is_alive() and not found
    go.set()
    first.join(10)
    second.join(10)
    assert sorted(found) == [1, 2]


# chains of NumPy calls ------------------------------------------------------------------------------------------------
def made(text: str, shape: tuple[int, ...], **operands: Any) -> tuple[Any, list[Any]]:
    out = np.full(shape, np.nan, np.float32)
    return out, emit(build(text, {n: array(a) for n, a in operands.items()}), out, Scratch(), set())


def run(calls: list[Any]) -> None:
    with np.errstate(all="ignore"):
        for function, args in calls:
            function(*args)


@pytest.mark.parametrize("text", ["sigmoid_stable(x) * y + x", "select(0.0, y, x > 0.0) * r", "max_nan(x * r, y) - x"])
def test_chains_in_parts_give_the_same_bits(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((103, 24)).astype(np.float32) for _ in range(2))
    operands = {"x": x, "y": y, "r": rng.standard_normal((1, 24)).astype(np.float32)}
    whole, calls = made(text, x.shape, **operands)
    run(calls)
    monkeypatch.setattr(chains, "LARGE", 100)
    monkeypatch.setattr(chains, "PART", 10 * 24)
    parts, more = made(text, x.shape, **operands)
    run(more)
    assert len(flat(more)) > 5 * len(calls)
    np.testing.assert_array_equal(parts.view(np.uint32), whole.view(np.uint32))


def test_operands_that_are_repeated_first_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, row, column = (rng.standard_normal(s).astype(np.float32) for s in ((64, 10), (1, 10), (64, 1)))
    deep, calls = made("(x + r) * (x * c - r) + c * (x - r)", x.shape, x=x, r=row, c=column)
    run(calls)
    np.testing.assert_array_equal(deep, (x + row) * (x * column - row) + column * (x - row))
    out, calls = made("(x + r) * c", x.shape, x=x, r=row, c=column)
    run(calls)
    np.testing.assert_array_equal(out, (x + row) * column)
    monkeypatch.setattr(chains, "FLAT", 0)
    assert len(made("(x + r) * c", x.shape, x=x, r=row, c=column)[1]) == len(calls) - 2


def test_a_scalar_operand_is_no_literal() -> None:
    s, x = np.zeros((), np.float32), np.array([-1.0, 0.5, 3.0], np.float32)
    out, calls = made("max_nan(x, s)", (3,), x=x, s=s)
    run(calls)
    assert out.tolist() == [0.0, 0.5, 3.0]
    s[...] = 2.0
    run(calls)
    assert out.tolist() == [2.0, 2.0, 3.0]


def test_tiny_moments_become_zero_and_no_other_changes() -> None:
    moment = np.random.default_rng(2).standard_normal(2 * BLOCK + 7).astype(np.float32)
    moment[[3, BLOCK, -1]] = 1e-39, -1e-40, TINY / 2
    moment[[4, -2]] = TINY, -TINY
    wanted = np.where(np.abs(moment) < TINY, np.float32(0), moment)
    flush(moment)
    np.testing.assert_array_equal(moment, wanted)
    assert moment[[3, BLOCK, -1]].tolist() == [0, 0, 0] and moment[4] == TINY


@pytest.mark.parametrize("m", [3, 64, 65])
def test_long_products_by_a_transposed_matrix(m: int) -> None:
    rng = np.random.default_rng(m)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, 300), (130, 300)))
    with Graph() as g:
        g.output(ops.relu(ops.input("x", x.shape) @ ops.parameter("w", w.shape).T))
    from gdlab.session import build_inference_session

    with build_inference_session(g, "cpu") as session:
        session.set_parameter("w", w)
        session.set_input("x", x)
        session.step()
        wanted = np.maximum(x.astype(np.float64) @ w.T, 0)
        np.testing.assert_allclose(session.read_output(), wanted, atol=2e-5 * np.abs(wanted).max())


# recording ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def no_loop() -> Iterator[None]:
    """As on a machine without a compiler."""
    pass_recording.loop.cache_clear()
    yield
    pass_recording.loop.cache_clear()


def losses(count: int) -> tuple[list[float], bool]:
    """Of the first steps of the tour's network on wgpu, and whether they were recorded in C."""
    images, labels, _ = networks.digits()
    with build_session(networks.mlp(), "wgpu") as session:
        session.initialize(0)
        session.set_adam(1e-2)
        found = []
        for step in range(count):
            session.set_input("x", images[64 * step : 64 * step + 64])
            session.set_input("y", labels[64 * step : 64 * step + 64])
            session.step()
            found.append(session.read_loss())
        assert isinstance(session.loaded.program, WgpuProgram)
        return found, session.loaded.program._whole(True).rows.address != 0


def test_the_c_loop_records_what_python_records(no_loop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    found, in_c = losses(4)
    assert in_c == (pass_recording.loop() is not None)
    pass_recording.loop.cache_clear()
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert losses(4) == (found, False) and len(set(found)) == 4


def test_a_compiler_that_fails_is_as_none(
    no_loop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native.shutil, "which", lambda name: str(tmp_path / "cc"))
    assert pass_recording.loop() is None and not list(tmp_path.rglob("*.so"))


@pytest.fixture
def written() -> Iterator[list[str]]:
    """The labels of the dispatches whose text is written."""
    needs("wgpu")
    found, usual = list[str](), kernels.wgsl
    kernels.wgsl = lambda d, target: (found.append(d.label), usual(d, target))[1]
    yield found
    kernels.wgsl = usual


def test_the_text_of_equal_dispatches_is_written_once(written: list[str]) -> None:
    with build_session(networks.transformer(2), "wgpu") as session:
        plan, device = session.plan(), session.loaded.device
    written.clear()
    owner().call(device.load(plan).close)
    assert not written, "another program on this adapter has written them"
    device.gpu.recipes.clear()  # type: ignore[attr-defined]
    owner().call(device.load(plan).close)
    assert len(written) == len({d.source_hash for d in plan.dispatches}) < len(plan.dispatches)


# first things ---------------------------------------------------------------------------------------------------------
@pytest.mark.clock
@pytest.mark.parametrize(("device", "case"), [("cpu", "tour"), ("cpu", "mlp"), ("wgpu", "tour")])
def test_the_first_step_takes_no_longer_than_three_others(device: str, case: str) -> None:
    if device == "wgpu":
        needs("wgpu")
    bar = 3 * SHARED if (device, case) == ("cpu", "tour") else 3  # of 0.06 ms, with nothing of it in any cache
    found = []
    for _ in range(4):  # other processes may take the cores at any moment
        found.append(steps.first_by_median(device, case))
        if found[-1] <= bar:
            return
    pytest.fail(f"{case} on {device}: {found}, wanted one ≤ {bar}")


def test_long_work_tells_how_far_it_is(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO", "gdlab.devices")
    assert list(compile_progress.logged_progress("warm-up", [1, 2])) == [1, 2] and not caplog.messages
    times = iter([0.0, 0.5, 2.5, 2.9, 3.6, 4.0])
    monkeypatch.setattr(compile_progress.time, "monotonic", lambda: next(times))
    assert list(compile_progress.logged_progress("warm-up", "abcd")) == ["a", "b", "c", "d"]
    assert caplog.messages == ["warm-up: 1 of 4", "warm-up: 3 of 4", "warm-up: all 4 in 4.0 s"]


@pytest.mark.clock
def test_a_large_graph_becomes_a_session_in_time(device: str, tmp_path: Path) -> None:
    graph = networks.written_with(LARGE, lambda graph: len(differentiate(graph)[0]))
    bars = {build_session: 1.5, partial(build_session_cached, cache_path=tmp_path / "plan"): 0.4}
    build_session_cached(graph, tmp_path / "plan", device).close()
    for make, bar in bars.items():
        taken = [np.inf]
        while min(taken) > seconds_here(SHARED * bar) and len(taken) < 5:
            start = time.process_time()
            make(graph, device=device).close()
            taken.append(time.process_time() - start)
        assert min(taken) <= seconds_here(SHARED * bar), (make, taken)
