"""A long-lived kernel stays as large as it is: studies that are made, run, shown and closed leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from machine import needs

from gdlab.base.memo import LruCache, remember

MEGABYTE = 1 << 20
STUDIES = int(os.environ.get("GDLAB_STUDIES", "0"))  # of the long form (make soak): 200, then 60 on wgpu
KEPT = 4  # megabytes of pipelines that the short form keeps: those of one study, so that few studies tell

# The child measures itself: the resident set by statm on Linux, by `ps` on macOS, by psapi on Windows.
CHILD = '''
import atexit, ctypes, gc, os, subprocess, sys, time

def resident():
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)  # what is free goes back: how much malloc keeps of it depends on the order of sizes
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        from ctypes import wintypes
        class Counters(ctypes.Structure):
            _fields_ = [("cb", wintypes.DWORD), ("PageFaultCount", wintypes.DWORD)] + [
                (name, ctypes.c_size_t) for name in ("peak", "now", "a", "b", "c", "d", "e", "f")]
        found = Counters(cb=ctypes.sizeof(Counters))
        me = wintypes.HANDLE(-1)
        ctypes.windll.psapi.GetProcessMemoryInfo(me, ctypes.byref(found), found.cb)
        return found.now
    return 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())]))

def study(k, device, layers=3):
    import gdlab as g
    from gdlab.study.study import Study
    from gdlab.jupyter.display import study_bundle
    w = 64 + 37 * k % 200 if layers > 1 else 16 + 8 * k  # no two alike; of three layers no larger with time
    with g.Graph() as graph:
        h, y = g.input("x", (8, w)), g.input("y", (8, 10))
        for i in range(layers):
            h = g.relu(g.bias_add(h @ g.parameter(f"w{i}", (w, w)), g.parameter(f"b{i}", (w,))))
        z = g.bias_add(h @ g.parameter("v", (w, 10)), g.parameter("c", (10,)))
        graph.set_outputs(g.cross_entropy_loss(z, y))
    made = Study(graph, train=True, device=device)
    made.run(1, feed="random:0", init=0, adam=1e-3)
    study_bundle(made, ["opt"], static=True)
    made.close()
    return made
'''
LOOP = CHILD + '''
device, first, last, megabytes, layers = sys.argv[1], *map(int, sys.argv[2:])
if megabytes:
    from gdlab.devices.wgpu import wgpu_device
    wgpu_device.KEPT_BYTES = megabytes << 20
sizes = []
for k in range(last):
    study(k, device, layers)
    if k >= first - 1 and (k + 1 - first) % 20 == 0 or k == last - 1:
        gc.collect()
        sizes.append(resident())
print("grown", max(sizes) - sizes[0])
if device == "wgpu":
    from gdlab.devices.wgpu import wgpu_device
    gpu = wgpu_device._opened[os.getpid(), 0]
    print("pipelines", len(gpu.pipelines), wgpu_device.KEPT_BYTES // wgpu_device.PIPELINE_BYTES)
print("ended", time.time(), flush=True)
'''
# Handlers run last in, first out: this one runs after all that the device registers.
EXIT = '''
import atexit, os, time
from gdlab.devices.wgpu import wgpu_device

kept = []
atexit.register(lambda: print("left", sum(p.keep._internal is None for p in kept), "of", len(kept), flush=True))
from gdlab.devices.base import owner
gpu = wgpu_device.open().gpu
text = """@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) { a[at.x] = a[at.x] * NUMBER.0; }"""
for k in range(150):
    kept.append(owner().call(lambda: gpu.pipeline("test", text.replace("NUMBER", str(k)), "w"))[1])
print("ended", time.time(), flush=True)
'''


def run(code: str, *arguments: object, seconds: float) -> dict[str, list[str]]:
    """The lines that a child prints, by their first words; `exit`: the seconds that it took to end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    now = time.time()
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    return {**found, "exit": [str(now - float(found["ended"][0]))]}


def test_memory_is_flat_after_the_twentieth_study_on_cpu() -> None:
    found = run(LOOP, "cpu", 20, STUDIES or 60, 0, 3, seconds=280 if not STUDIES else 3600)
    # the bounded caches fill until about the 90th study: 3 MB
    assert int(found["grown"][0]) < 5 * MEGABYTE, "40 studies grew by 10 MB when no cache had a bound"
    assert float(found["exit"][0]) < 5


def test_memory_is_flat_after_the_first_studies_on_wgpu() -> None:
    needs("wgpu")
    warm, studies, kept, layers, most_grown = (20, 60, 0, 3, 50) if STUDIES else (2, 7, KEPT, 1, 12)
    found = run(LOOP, "wgpu", warm, studies, kept, layers, seconds=280 if not STUDIES else 3600)
    assert int(found["grown"][0]) < most_grown * MEGABYTE, "5 MB and more a study when pipelines were kept for ever"
    kept, most = map(int, found["pipelines"])
    assert kept <= most, "closed studies keep none of their own"
    assert float(found["exit"][0]) < 5


def test_a_process_that_ends_takes_no_pipeline_apart() -> None:
    needs("wgpu")
    found = run(EXIT, seconds=120)
    assert found["left"] == ["150", "of", "150"]
    assert float(found["exit"][0]) < 5


# the cache ------------------------------------------------------------------------------------------------------------
def test_the_least_recently_used_leave_first_and_bytes_are_counted() -> None:
    cache: LruCache[str, str] = LruCache(10)
    for key in "abc":
        cache.put(key, key.upper(), 3)
    assert cache.get("a") == "A"
    cache.put("d", "D", 4)
    assert [cache.get(key) for key in "abcd"] == ["A", None, "C", "D"] and cache.nbytes == 10
    cache.put("a", "again", 1)
    assert cache.nbytes == 8 and len(cache) == 3
    cache.put("e", "larger than all", 11)
    assert cache.get("e") is None and len(cache) == 3
    cache.put("a", "larger than all", 11)
    assert cache.get("a") is None and cache.nbytes == 7, "an old value is not kept beside a new one"
    cache.clear()
    assert (len(cache), cache.nbytes, cache.get("d")) == (0, 0, None)


def test_a_function_remembers_by_bytes_and_no_failure() -> None:
    made = list[int]()

    @remember(100, len)
    def text(n: int) -> str:
        made.append(n)
        return "x" * (100 // n)

    assert [len(text(n)) for n in (2, 2, 4, 2, 1, 2)] == [50, 50, 25, 50, 100, 50]
    assert made == [2, 4, 1, 2]
    with pytest.raises(ZeroDivisionError):
        text(0)
    with pytest.raises(ZeroDivisionError):
        text(0)


def test_the_elements_of_a_constant_are_not_kept_by_what_is_known_of_it() -> None:
    """Digests are: a causal mask of 2048 queries is 16 MB."""
    import gc
    import weakref

    import numpy as np

    from gdlab.base.types import f32
    from gdlab.graph import ConstantData
    from gdlab.rewrite.rules.constant_conditions import mask_kinds

    class Watched(ConstantData):
        """A constant that can be watched."""

    mask = Watched(f32, (64, 64), np.tril(np.ones((64, 64), np.float32)).tobytes())
    kinds = mask_kinds(mask, (64, 64))
    assert kinds and mask_kinds(mask, (64, 64)) is kinds
    gone = weakref.ref(mask)
    del mask
    gc.collect()
    assert gone() is None
