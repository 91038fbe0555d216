"""Every door used inside a feed: none waits for the turn that the feed itself has."""

from __future__ import annotations

from child import run_in_shared_child

PROGRAM = """
import threading
import numpy as np
import gdlab as gd
import recording as rec
from counting import ONE, counter, made
from gdlab import ops
from gdlab.graph import Graph

DEVICE = {device!r}
X = np.ones((2, 3), np.float32)
with Graph() as g:
    g.set_outputs([(ops.input("x", (2, 3)) * 2.0).sum_all()])
compiled = gd.build_compiled_graph(g, device=DEVICE)
eager = gd.EagerSession(device=DEVICE)
executor = gd.GraphExecutor(device=DEVICE)

def one_future():
    return compiled.run_async({{"x": X}}).result()[0].tolist() == [12.0]

def futures_from_the_last_on():
    futures = [compiled.run_async({{"x": k * X}}) for k in range(4)]
    return [f.result(60)[0].tolist() for f in reversed(futures)] == [[36.0], [24.0], [12.0], [0.0]]

def an_exception_that_there_is_not():
    return compiled.run_async({{"x": X}}).exception() is None

def commits():
    for k in range(5):
        compiled.commit_no_wait({{"x": k * X}})
    return compiled.read_outputs()[0].tolist() == [48.0]

def a_future_of_another_thread():
    made = []
    thread = threading.Thread(target=lambda: made.append(compiled.run_async({{"x": X}})))
    thread.start()
    thread.join()
    return made[0].result()[0].tolist() == [12.0]

def threads_that_are_waited_for():
    # calls, futures, tapes, lists and a run of another study, each in a thread of its own
    other, found = counter(DEVICE, "other"), {{}}
    calls = {{
        "run": lambda: compiled.run({{"x": X}})[0].tolist() == [12.0], "future": one_future, "commits": commits,
        "tape": a_tape, "list": a_list, "study": lambda: (other.run(4), made(other) % 4)[1] == 0,
    }}
    def work(name):
        found[name] = calls[name]()
    for name in calls:  # one by one, then all at once
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    first, found = dict(found), {{}}
    def together(k):
        found[k] = compiled.run({{"x": k * X}})[0].tolist() == [12.0 * k]
    threads = [threading.Thread(target=together, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    mine = compiled.run({{"x": X}})[0].tolist() == [12.0]
    for thread in threads:
        thread.join()
    other.close()
    return mine and all(first.values()) and len(first) == len(calls) and all(found.values()) and len(found) == 4

def a_tape():
    x = eager.input(X)
    return (x * 2.0).sum_all().numpy().reshape(-1).tolist() == [12.0]

def a_list():
    x, out = rec.buffer(executor, X), rec.zeros(executor, 2, 3)
    with rec.recorded(executor) as s:
        s.elementwise_add(x, x, out, 6, gd.f32)
    return out.read().reshape(-1).tolist() == [2.0] * 6

USES = [
    one_future, futures_from_the_last_on, an_exception_that_there_is_not, commits,
    a_future_of_another_thread, threads_that_are_waited_for, a_tape, a_list,
]
for use in USES:
    study = counter(DEVICE)
    def feed(step):
        assert use(), use
        return ONE
    print(use.__name__, flush=True)
    study.run(3, feed=feed)
    assert made(study) == 3
    study.close()
for closing in (compiled, eager, executor):
    closing.close()
"""


def test_no_door_waits_for_the_turn_of_the_feed(device: str) -> None:
    run_in_shared_child(PROGRAM.format(device=device), 60)
