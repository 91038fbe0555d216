"""Every public method of session, runner and study from a feed, a callback, a continuation, a second thread and a
forked child: none hangs, and none ends the owner thread. Each place is a child process with a time limit, which prints
what it is about to call: to begin a child costs as much as fifty calls."""

from __future__ import annotations

import pytest
from child import run_child
from machine import needs
from matrix import MATRIX

CALLS = """
import inspect, threading, time, warnings
import numpy as np
import gdlab as gd
from counting import ONE, counter, made
from gdlab.devices.base import owner

warnings.simplefilter("ignore")
KINDS, PLACE, DEVICE, OTHERS = {kinds!r}, {place!r}, {device!r}, {others!r}
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

def subject_of(study, kind):
    return study if kind == "study" else getattr(study, kind)

def names_of(study, kind, left_out):
    return [name for name in dir(type(subject_of(study, kind))) if name[0] != "_" and name not in left_out]

def call(study, kind, name):
    calls[0] += 1
    try:
        subject = subject_of(study, kind)
        found = getattr(subject, name)
        if callable(found):
            found(*arguments(found, subject))
    except (gd.GdlabError, ArithmeticError, ValueError, TypeError, OSError) as error:
        assert "Session(): use" not in str(error)

"""
PROGRAM = (
    CALLS
    + """
def feed_calling(called, kind, name):
    def feed(step):
        if step == 1:
            call(called, kind, name)
        return ONE
    return feed

class Callback(gd.MetricCallback):
    def __init__(self, called, kind, name):
        self.called, self.kind, self.name = called, kind, name
    def on_step(self, metrics):
        if metrics.step == 1:
            call(self.called, self.kind, self.name)

def second_thread(called, kind, name):
    thread = threading.Thread(target=lambda: [call(called, kind, name) for _ in range(3)])
    thread.start()
    return thread

def go(own, called, kind, name):
    try:
        if PLACE == "feed":
            current[0] = own.runner.start(3, feed_calling(called, kind, name))
            own.runner.wait(current[0])
        elif PLACE == "callback":
            trainer = gd.Trainer(own.session, gd.TrainConfig(gd.Optimizer.sgd(1.0), data_input="x"), [])
            trainer.callbacks.append(Callback(called, kind, name))
            trainer._inputs_of = lambda loader: {{"x": "x", "labels": "x"}}
            trainer.train(gd.DataLoader(np.ones((3, 1), np.float32), np.ones((3, 1), np.float32), 1, 1, 1), 1)
        elif PLACE == "continuation":
            current[0], ended = own.runner.start(10**6, lambda step: ONE), threading.Event()
            current[0].add_done_callback(lambda future: (call(called, kind, name), ended.set()))
            current[0].cancel()
            try:
                own.runner.wait(current[0])
            finally:  # the callback runs on a thread of its own
                assert ended.wait(30), name
        else:
            current[0] = own.runner.start(100, lambda step: ONE)
            thread = second_thread(called, kind, name)
            try:
                own.runner.wait(current[0])
            finally:  # a thread that goes on would close the session under what follows
                thread.join()
    except gd.GdlabError:  # a call that closed, reset or changed the session
        pass

current = [None]
study = counter(DEVICE)
names = [(kind, name) for kind in KINDS for name in names_of(study, kind, LEFT_OUT)]
study.close()
for kind, name in names:
    for other in OTHERS:
        study = counter(DEVICE)
        called = counter(DEVICE, "other") if other else study
        print(kind, name, other, flush=True)
        go(study, called, kind, name)
        for used in {{study, called}}:
            if used.has_session:
                if used.runner.state == "running":
                    used.runner.stop()
                while used.runner.state == "running":
                    time.sleep(0.001)
            used.close()
        assert owner() is before and owner().call(lambda: 7) == 7, (kind, name)
assert calls[0] >= len(OTHERS) * len(names) > 20 * len(OTHERS) * len(KINDS)
"""
)


FORKED = (
    CALLS
    + """
import faulthandler, gc, os, sys

gc.freeze()  # else the first collection of each child copies the memory of all objects
FILES = {{"save_checkpoint", "load_checkpoint", "controls"}}

def ended(kind, name):
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    faulthandler.dump_traceback_later(20, exit=True)  # with the stack of what waits
    try:
        call(study, kind, name)
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
for running in (False, True) if DEVICE == "cpu" else (False,):
    if running:
        current[0] = study.runner.start(10**9, lambda step: ONE)
    for kind in KINDS:
        names = names_of(study, kind, LEFT_OUT if running else FILES)
        for name in names:
            print(kind, name, running, flush=True)
            code = ended(kind, name)
            assert code == 0, (kind, name, running, code)
        assert len(names) > 20
        assert owner() is before and owner().call(lambda: 7) == 7
study.runner.stop()
study.close()
"""
)


EVERY = ("session", "runner", "study")


def others(place: str) -> tuple[bool, ...]:
    """Return whether the calls go to the study itself and to another one: of the places that are inside a turn of the
    owner thread, and of those outside, one has both, as all have in `make matrix`."""
    return (False, True) if MATRIX or place in ("feed", "thread") else (False,)


@pytest.mark.parametrize("place", ["feed", "callback", "continuation", "thread"])
def test_no_call_hangs_or_ends_the_owner_thread(place: str) -> None:
    run_child(PROGRAM.format(kinds=EVERY, place=place, device="cpu", others=others(place)), 240)


@pytest.mark.parametrize("place", ["feed", "continuation"])
def test_nor_does_one_on_a_gpu(place: str) -> None:
    run_child(PROGRAM.format(kinds=("runner",), place=place, device="wgpu", others=others(place)), 120)


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_a_forked_child_ends_whatever_it_calls(device: str) -> None:
    """Also one that was forked off while a run of the parent was under way."""
    needs("posix")
    if device == "wgpu":
        needs(device)
    run_child(FORKED.format(kinds=EVERY, place="fork", device=device, others=()), 240)
