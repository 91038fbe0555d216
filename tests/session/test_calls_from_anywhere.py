"""Every public method of session, runner and study from a feed, a callback, a continuation, a second thread and a
forked child: none hangs, and none ends the owner thread. Each runs in a child process with a time limit."""

from __future__ import annotations

import pytest
from child import run_child
from machine import needs

CALLS = """
import inspect, threading, time, warnings
import numpy as np
import gdlab as gd
from counting import ONE, counter, made
from gdlab.devices.base import owner

warnings.simplefilter("ignore")
KIND, PLACE, DEVICE = {kind!r}, {place!r}, {device!r}
ARGUMENTS = dict(
    name="w", names=["w"], data=np.ones(1, np.float32), steps=2, dispatches=1, dispatch=0, samples=1, text="step 10000",
    mode="loss", node=0, where="test", space="forward", lr=0.5, max=None, clip=None, n=1, seed=0, index=0, ref=0,
    prefix="w", k=1.0, on=False, start=0, stop=1, slot="x", what=0, given="something", count=1, steps_per_second=None,
    id=1, t=1, wait=True, key="w", weights={{}},
)
LEFT_OUT = {{"save", "save_checkpoint", "load_checkpoint", "controls", "measure", "check", "variant", "compare"}}
before, calls = owner(), [0]

def arguments(method, subject):
    for p in inspect.signature(method).parameters.values():
        if p.default is not p.empty or p.kind is p.KEYWORD_ONLY or p.kind is p.VAR_KEYWORD:
            continue
        if p.name == "snapshot":
            yield subject.snapshot()
        elif p.name == "device":
            yield study.device
        elif p.name == "future":
            yield study.runner.start(2) if study.runner.state != "running" else current[0]
        elif p.kind is p.VAR_POSITIONAL:
            yield "w"
        else:
            yield ARGUMENTS.get(p.name, "w")

def subject_of(study):
    return study if KIND == "study" else getattr(study, KIND)

def call(study, name):
    calls[0] += 1
    try:
        subject = subject_of(study)
        found = getattr(subject, name)
        if callable(found):
            found(*arguments(found, subject))
    except (gd.GdlabError, ArithmeticError, ValueError, TypeError, OSError) as error:
        assert "Session(): use" not in str(error)

"""
PROGRAM = CALLS + """
def feed_calling(called, name):
    def feed(step):
        if step == 1:
            call(called, name)
        return ONE
    return feed

class Callback(gd.MetricCallback):
    def __init__(self, called, name):
        self.called, self.name = called, name
    def on_step(self, metrics):
        if metrics.step == 1:
            call(self.called, self.name)

def second_thread(called, name):
    thread = threading.Thread(target=lambda: [call(called, name) for _ in range(3)])
    thread.start()
    return thread

def go(own, called, name):
    try:
        if PLACE == "feed":
            current[0] = own.runner.start(3, feed_calling(called, name))
            own.runner.wait(current[0])
        elif PLACE == "callback":
            trainer = gd.Trainer(own.session, gd.TrainConfig(gd.Optimizer.sgd(1.0), data_input="x"), [])
            trainer.callbacks.append(Callback(called, name))
            trainer._inputs_of = lambda loader: {{"x": "x", "labels": "x"}}
            trainer.train(gd.DataLoader(np.ones((3, 1), np.float32), np.ones((3, 1), np.float32), 1, 1, 1), 1)
        elif PLACE == "continuation":
            current[0], ended = own.runner.start(10**6, lambda step: ONE), threading.Event()
            current[0].add_done_callback(lambda future: (call(called, name), ended.set()))
            current[0].cancel()
            try:
                own.runner.wait(current[0])
            finally:  # the callback runs on a thread of its own
                assert ended.wait(30), name
        else:
            current[0] = own.runner.start(300, lambda step: ONE)
            thread = second_thread(called, name)
            try:
                own.runner.wait(current[0])
            finally:  # a thread that goes on would close the session under what follows
                thread.join()
    except gd.GdlabError:  # a call that closed, reset or changed the session
        pass

current = [None]
study = counter(DEVICE)
names = [n for n in dir(type(subject_of(study))) if n[0] != "_" and n not in LEFT_OUT]
study.close()
for name in names:
    for other in (False, True):
        study = counter(DEVICE)
        called = counter(DEVICE, "other") if other else study
        print(name, other, flush=True)
        go(study, called, name)
        for used in {{study, called}}:
            if used.has_session:
                if used.runner.state == "running":
                    used.runner.stop()
                while used.runner.state == "running":
                    time.sleep(0.001)
            used.close()
        assert owner() is before and owner().call(lambda: 7) == 7, name
assert calls[0] >= 2 * len(names) > 40
"""


FORKED = CALLS + """
import faulthandler, os, sys

FILES = {{"save_checkpoint", "load_checkpoint", "controls"}}

def ended(name, running):
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    faulthandler.dump_traceback_later(20, exit=True)  # with the stack of what waits
    try:
        call(study, name)
        study.close()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(3)

current = [None]
study = counter(DEVICE)
study.run(2, feed=lambda step: ONE)
subject_of(study)
for running in (False, True) if DEVICE == "cpu" else (False,):
    if running:
        current[0] = study.runner.start(10**9, lambda step: ONE)
    left_out = LEFT_OUT if running else FILES
    for name in [n for n in dir(type(subject_of(study))) if n[0] != "_" and n not in left_out]:
        print(name, running, flush=True)
        code = ended(name, running)
        assert code == 0, (name, running, code)
        calls[0] += 1
    assert owner() is before and owner().call(lambda: 7) == 7
study.runner.stop()
study.close()
assert calls[0] > 20
"""


@pytest.mark.parametrize("place", ["feed", "callback", "continuation", "thread"])
@pytest.mark.parametrize("kind", ["session", "runner", "study"])
def test_no_call_hangs_or_ends_the_owner_thread(kind: str, place: str) -> None:
    run_child(PROGRAM.format(kind=kind, place=place, device="cpu"), 120)


@pytest.mark.parametrize("place", ["feed", "continuation"])
def test_nor_does_one_on_a_gpu(place: str) -> None:
    run_child(PROGRAM.format(kind="runner", place=place, device="wgpu"), 120)


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
@pytest.mark.parametrize("kind", ["session", "runner", "study"])
def test_a_forked_child_ends_whatever_it_calls(kind: str, device: str) -> None:
    """Also one that was forked off while a run of the parent was under way."""
    needs("posix")
    if device == "wgpu":
        needs(device)
    run_child(FORKED.format(kind=kind, place="fork", device=device), 120)
