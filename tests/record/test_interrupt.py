"""Ctrl-C ends the wait for a list; the list runs to its end, and executor, buffers and pending work stay usable."""

from __future__ import annotations

import json

import pytest
from child import run_child

CODE = """
import json, signal, threading, time
import numpy as np
import gdlab as gd

ex = gd.GraphExecutor({device!r})
n = 1 << 18
x, a, b = (ex.alloc_buffer(4 * n, gd.f32, (n,)) for _ in range(3))
x.write(np.full(n, 0.5, np.float32))

def recorded(pairs):
    s = ex.begin_recorded(auto_barrier=True)
    s.elementwise_add(x, x, a, n, gd.f32)
    for _ in range(pairs):
        s.elementwise_add(a, x, b, n, gd.f32)
        s.elementwise_add(b, x, a, n, gd.f32)
    return s

def seconds(pairs):
    begun = time.perf_counter()
    recorded(pairs).finish()
    return time.perf_counter() - begun

seconds(2)
pairs = int(20 * 0.6 / seconds(20)) + 20  # 0.6 s
whole = seconds(pairs)
fired = []
thread = threading.Thread(target=lambda: (time.sleep(0.15), fired.append(time.perf_counter()),
                                          signal.raise_signal(signal.SIGINT)))
s, work = recorded(pairs), None
if {how!r} == "wait" and {device!r} != "cpu":
    work = s.commit()
thread.start()
try:
    s.finish() if work is None else work.wait_until_completed()
    ended = "ran to its end"
except KeyboardInterrupt:
    ended = time.perf_counter() - fired[0]
thread.join()
if work is not None:
    work.wait_until_completed()
    work.wait_until_completed()
value = a.read()
again = recorded(1)
again.finish()
print(json.dumps([ended, whole, float(value.min()), float(value.max()), 1 + pairs, float(a.read()[0])]))
del work, s, again
ex.close()
"""


@pytest.mark.clock
@pytest.mark.parametrize(("device", "how"), [("cpu", "finish"), ("wgpu", "wait")])
def test_an_interrupt_ends_the_wait_and_the_list_completes(device: str, how: str) -> None:
    ended, whole, low, high, wanted, again = json.loads(run_child(CODE.format(device=device, how=how), 90))
    assert isinstance(ended, float), ended
    assert ended < max(0.1, 0.35 * whole)
    assert low == high == wanted and again == 2.0
