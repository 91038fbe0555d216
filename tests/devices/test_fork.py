"""A process that was forked off after its parent used wgpu or imported egglog says so, and does not wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
from machine import needs

from gdlab.devices.cpu.cpu_queue import CpuQueue


@pytest.fixture(autouse=True)
def _posix() -> None:
    needs("posix")


def test_the_number_of_a_process_follows_a_fork() -> None:
    script = (
        "import os; from gdlab.base import process; first = process.id; child = os.fork()\n"
        "if child: os.waitpid(child, 0)\n"
        "print(process.id == os.getpid(), process.id == first, flush=True)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["True", "False", "True", "True"]


SCRIPT = """
import multiprocessing, sys, warnings
import numpy as np
from gdlab import ops
from gdlab.devices.choose import device
from gdlab.graph import Graph
from gdlab.session import build_session

def net():
    with Graph() as g:
        h = ops.relu(ops.bias_add(ops.input("x", (4, 6)) @ ops.parameter("w", (6, 5)), ops.parameter("b", (5,))))
        g.output(ops.cross_entropy_loss(h @ ops.parameter("v", (5, 3)), ops.input("y", (4, 3))))
    return g

def step(session):
    session.set_input("x", np.ones((4, 6)))
    session.set_input("y", np.full((4, 3), 1 / 3))
    session.initialize(0)
    session.step()
    return session.read_loss()

def child(run):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            print("child:", run(), flush=True)
        except Exception as error:
            print("child:", type(error).__name__, error, flush=True)
        for w in told:
            print("warning:", w.message, flush=True)

def forked(run):
    process = multiprocessing.get_context("fork").Process(target=child, args=(run,))
    process.start()
    process.join(40)
    if process.is_alive():
        process.kill()
        print("child: waits for ever", flush=True)
"""


def output_of(body: str) -> str:
    """Return the lines that a parent and its forked child print."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT + body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


REFUSED = 'wanted a process that is started with spawn, or device="cpu"'
CASES = {
    "a new session": 'build_session(net(), device="wgpu"); run = lambda: step(build_session(net(), device="wgpu"))',
    "an open device": 'device("wgpu"); run = lambda: step(build_session(net(), device="wgpu"))',
    "the parent's session": 's = build_session(net(), device="wgpu"); run = lambda: step(s)',
    "a read": 's = build_session(net(), device="wgpu"); step(s); run = s.read_loss',
    "a step": 's = build_session(net(), device="wgpu"); step(s); run = s.step',
}


@cache
def told_of_cases() -> dict[str, str]:
    """Return what each case prints, one behind the other in one parent."""
    body = "".join(f"\n{CASES[case]}\nforked(run)\nprint('end of a case', flush=True)" for case in CASES)
    return dict(zip(CASES, output_of(body).split("end of a case\n"), strict=False))


@pytest.mark.parametrize("case", CASES)
def test_wgpu_is_refused_in_a_process_forked_off_after_its_use(case: str) -> None:
    needs("wgpu")
    told = told_of_cases()[case]
    assert "child: SessionError" in told and "opened before this process was forked" in told and REFUSED in told, told


def test_cpu_and_auto_work_in_such_a_process() -> None:
    needs("wgpu")
    told = output_of("""
build_session(net(), device="wgpu")
forked(lambda: step(build_session(net(), device="cpu")) > 0)
forked(lambda: (device("auto").info.kind, device("auto").info.reason))
""")
    assert "child: True" in told and "waits" not in told, told
    assert "child: ('cpu', 'wgpu: one that was opened before this process was forked')" in told, told


DOORS = """
import gdlab as gd
X = np.ones((2, 3), np.float32)
with Graph() as g:
    g.set_outputs([ops.input("x", (2, 3)) * 2.0])
compiled, eager, executor = gd.build_compiled_graph(g, device=D), gd.EagerSession(device=D), gd.GraphExecutor(D)
tensor, buffer = eager.input(X), executor.alloc_buffer(24, gd.f32, (2, 3))
compiled.run({"x": X}), (tensor + tensor).numpy(), buffer.write(X), buffer.read()
recorded = executor.begin_recorded(auto_barrier=True)
recorded.elementwise_add(buffer, buffer, buffer, 6, gd.f32)
for run in (
    lambda: compiled.run({"x": X}), lambda: compiled.run_async({"x": X}).result(),
    lambda: compiled.commit_no_wait({"x": X}),
    lambda: (tensor * 2.0).numpy(), lambda: tensor.numpy(), buffer.read, lambda: buffer.write(X), recorded.finish,
    lambda: gd.EagerSession(device=D).input(X).numpy(), lambda: gd.build_compiled_graph(g, device=D).run({"x": X}),
    lambda: executor.alloc_buffer(24, gd.f32, (2, 3)).read(),
):
    forked(run)
for closing in (compiled, eager, executor):
    forked(closing.close)
"""


def test_the_other_doors_refuse_such_a_process_too() -> None:
    """New objects and those of the parent; closing what the parent opened ends."""
    needs("wgpu")
    told = [line for line in output_of('\nD = "wgpu"' + DOORS).splitlines() if line.startswith("child: ")]
    assert len(told) == 14 and told[11:] == ["child: None"] * 3, told
    assert not [line for line in told[:11] if "Error" not in line or REFUSED not in line]  # or GraphEncodeError


def test_the_other_doors_work_there_on_cpu() -> None:
    told = output_of('\nD = "cpu"' + DOORS)
    assert told.count("child: ") == 14 and "Error" not in told and "waits" not in told, told


def test_closing_the_parents_session_in_the_child_ends() -> None:
    needs("wgpu")
    told = output_of('\ns = build_session(net(), device="wgpu"); step(s)\nforked(s.close)')
    assert "child: None" in told, told


@pytest.mark.parametrize("before", ["import egglog.bindings", "import egglog", "build_session(net(), device='cpu')"])
def test_the_fallback_engine_works_in_a_process_forked_off_after_an_import_of_egglog(before: str) -> None:
    told = output_of(f"\n{before}\nforked(lambda: step(build_session(net(), device='cpu')) > 0)")
    assert "child: True" in told and "waits" not in told, told
    assert "imported before this process was forked off; start processes with spawn; the fallback engine" in told, told


def test_a_step_is_made_in_a_process_forked_off_in_the_middle_of_one() -> None:
    """The queue enters a context of NumPy's errors for each submission; in the child nobody ever leaves it."""
    queue = CpuQueue()

    def fork() -> int:
        child = os.fork()
        if child == 0:
            try:
                queue.submit("test", [])
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    found: list[int] = []
    queue._quiet.run(lambda: found.append(fork()))
    assert found == [0]
