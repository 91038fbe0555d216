"""Events that must do no harm: random wrong calls, threads beside a run, an exit in mid-run, a device that is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from machine import needs
from matrix import also
from places import HELPERS
from session_state import Y, fitted, line

from gdlab.session import build_session
from gdlab.session.run.runner import Runner
from gdlab.session.updates import UpdateSettings

CALLS = int(os.environ.get("GDLAB_FUZZ", "300"))  # `make faults`: 10,000
ROUNDS = int(os.environ.get("GDLAB_ROUNDS", "30"))  # `make faults`: 1,000


def child(*command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(HELPERS), os.environ.get("PYTHONPATH"))))
    given = [sys.executable, "-W", "error", *command]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(given, capture_output=True, text=True, env=env, timeout=timeout, check=False)


@pytest.mark.parametrize("share", [1.0, 0.3], ids=["cpu", "wgpu"])
def test_random_calls_change_nothing_when_they_are_refused(share: float) -> None:
    """In a process of its own, because a driver may abort; the seed is printed, and `session_fuzz.py` takes it."""
    device = "cpu" if share == 1 else "wgpu"
    if device == "wgpu":
        needs("wgpu")
    seed = random.randrange(10**6)
    print(f"session_fuzz.py {seed} {int(CALLS * share)} {device}")
    done = child(str(HELPERS / "session_fuzz.py"), str(seed), str(int(CALLS * share)), device, timeout=1200)
    assert (done.returncode, done.stderr) == (0, ""), f"seed {seed}: {done.stdout}{done.stderr}"
    assert done.stdout.startswith(f"seed {seed}: ")


def test_two_threads_step_read_and_set_beside_a_run(device: str) -> None:
    """Each call falls between two steps: a loss is that of a whole step, a parameter is whole."""
    rounds = ROUNDS
    with build_session(line(), device) as running, build_session(line(), device) as other:
        runner = Runner(fitted(running))
        running.set_learning_rate(1e-4)
        fitted(other)
        running.set_parameter("b", [0, 0])
        failures: list[BaseException] = []

        def first() -> None:
            for _ in range(rounds):
                running.set_input("y", Y)
                assert np.isfinite(running.read_loss())
                running.step()
                read = running.read_params(["w", "b"])
                assert np.isfinite(read["w"]).all()

        def second() -> None:
            for k in range(rounds):
                other.set_input("x", np.full((4, 3), k))
                other.set_parameter("w", np.full((3, 2), 1.0))
                other.step()
                assert (other.read_output_by_index(1) == 3 * k).all()
                assert running.step_count > 0 and running.read_param("b").shape == (2,)

        def guarded(work: object) -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        running.step()
        future = runner.start(10**9)
        threads = [threading.Thread(target=guarded, args=(work,)) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        runner.stop()
        runner.wait(future)
        assert failures == []
        assert running.step_count == running.traffic.forwards >= rounds and other.step_count == rounds
        steps = [step for step, _ in runner.losses]
        assert steps == sorted(set(steps)), "losses in order, each once"


EXITS = {
    "run": "runner = Runner(session); runner.start(10**9); time.sleep(0.2)",
    "step": "session.step(); session.step()",
    "save": "threading.Thread(target=lambda: [session.save_checkpoint(sys.argv[1]) for _ in range(10**6)], daemon=True)"
    ".start(); time.sleep(0.2)",
    "sys.exit": "runner = Runner(session); runner.start(10**9); time.sleep(0.1); sys.exit(0)",
}
BEGIN = """
import sys, threading, time
from session_state import fitted, line
from gdlab.session.run.runner import Runner
from gdlab.session import build_session
session = fitted(build_session(line(), sys.argv[2]))
session.set_adam(1e-4)
"""


@pytest.mark.parametrize(
    ("device", "how"),
    also(
        [("cpu", how) for how in EXITS] + [("wgpu", "run"), ("wgpu", "save")],
        ("wgpu", "step"),  # with a program: tests/devices/test_wgpu.py
    ),
)
def test_an_exit_in_mid_run_is_clean(device: str, how: str, tmp_path: Path) -> None:
    """`sys.exit` beside steps on wgpu: tests/devices/test_wgpu.py."""
    if device == "wgpu":
        needs(device)
    done = child("-c", BEGIN + EXITS[how], str(tmp_path / "a"), device)
    errors = [line for line in done.stderr.splitlines() if "owner thread: given closed" not in line]
    quiet = how != "save"  # a thread of the user's own may tell that the device is closed
    assert done.returncode == 0 and done.stdout == "" and (not quiet or errors == []), done.stderr


LOSS = """
import numpy as np
from session_state import X, Y, fitted, line
from gdlab.devices.base import owner
from gdlab.base.errors import SessionError
from gdlab.session import build_session
session = fitted(build_session(line(), "wgpu"))
session.step(); session.wait()
gpu = session.loaded.program.gpu
owner().call(gpu.device.destroy)
calls = [session.step, session.read_loss, session.wait, lambda: session.read_param("w"), lambda: session.set_adam(0.1),
         lambda: session.set_input("x", X), session.step_debug, lambda: session.save_checkpoint("never")]
seen = []
for call in calls * 2:
    try:
        call()
    except SessionError as error:
        seen.append(str(error))
assert len(seen) >= 2 * len(calls) - 2, seen
assert any("lost" in text for text in seen), seen
session.close(); session.close()
again = fitted(build_session(line(), "wgpu"))
again.step()
assert np.isfinite(again.read_loss())
print("alive")
"""


def test_a_lost_device_is_an_error_and_not_the_end() -> None:
    needs("wgpu")
    done = child("-c", LOSS)
    assert done.returncode == 0 and done.stdout == "alive\n", done.stdout + done.stderr


FIRST = """
from session_state import fitted, line
from gdlab.base.errors import SessionError
from gdlab.devices.base import owner
from gdlab.session import build_session
import sys
session = fitted(build_session(line(), "wgpu"))
session.set_learning_rate(0.1)
session.step(); session.wait()
owner().call(session.loaded.program.gpu.device.destroy)
for _ in range(2):
    try:
        eval(f"session.{sys.argv[1]}")
    except SessionError as error:
        print("lost" in str(error))
again = fitted(build_session(line(), "wgpu"))
again.step(); again.read_loss()
"""


@pytest.mark.parametrize(
    "call", ["set_adam(0.1)", "sgd_step(0.1)", "set_profiling(True)", "read_loss()", "snapshot()", "step_debug()"]
)
def test_the_loss_of_a_device_is_remembered_whoever_sees_it_first(call: str) -> None:
    needs("wgpu")
    done = child("-c", FIRST, call)
    assert done.returncode == 0 and done.stdout == "True\nTrue\n", done.stdout + done.stderr


def test_a_failed_update_leaves_the_configuration(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the device while an update is made ready, nothing of it is configured."""
    with build_session(line(), device) as session:
        fitted(session).set_learning_rate(0.1)
        session.step()

        def refuse(update: object) -> None:
            raise MemoryError("no memory")

        program = session.loaded.program
        monkeypatch.setattr(program, "configure", refuse)
        for call in (lambda: session.set_adam(0.1), lambda: session.set_grad_clip_norm(1.0),
                     lambda: session.set_grad_accumulate(3), lambda: session.set_lr_multiplier("w", 2.0)):  # fmt: skip
            with pytest.raises(MemoryError):
                call()
        monkeypatch.undo()
        assert str(session.optimizer) == "SGD, lr 0.1" and session.update.rule == "sgd"
        assert session.updates.settings == UpdateSettings()
        before = session.read_param("w")
        session.step()
        moved = before - np.float32(0.1) * session.read_param_grad("w")
        np.testing.assert_allclose(session.read_param("w"), moved, rtol=1e-5)
