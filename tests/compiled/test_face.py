"""The face of a compiled graph: the original's methods, capabilities, no method that does nothing (C-29, C-30)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, ready, recurrence, same, small

from gdlab import Graph, ops
from gdlab.base.errors import GdlabError
from gdlab.base.formats import BOUNDARY
from gdlab.compiled import CompiledGraph, build_compiled_graph, load_compiled_graph
from gdlab.compiled.capabilities import METHODS

# Of the original (rlx 0.2.2).
ORIGINAL = """device set_param run run_raw run_slots arena_ptr bind_handle read_handle bind_gpu_handle has_gpu_handle
set_gpu_handle_feed read_gpu_handle run_feed_gpu_handle set_active_extent commit_no_wait sync_pending run_pipelined
set_param_typed run_typed clone clone_from""".split()
EXPERTS = """set_moe_resident_experts set_moe_resident_experts_per_layer enable_moe_topk_capture take_moe_topk_capture
take_moe_residency_stats""".split()
H = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
STEP = np.full((5, 4), 0.5, np.float32)


def test_the_methods_of_the_original_are_there() -> None:
    assert set(ORIGINAL) <= set(dir(CompiledGraph))
    assert set(EXPERTS) <= set(dir(CompiledGraph))


# probes: each fails where its method does nothing ---------------------------------------------------------------------
def fed(device: str) -> CompiledGraph:
    graph = ready(recurrence(), device, optimize=None)
    graph.bind_gpu_handle("h", H)
    graph.bind_handle("x", STEP)
    return graph


def probe_runs(device: str) -> bool:
    graph = fed(device)
    (y, s), again = graph.run(), graph(x=STEP)
    typed = graph.run_typed([])
    some = graph.run_read_outputs({}, [1])
    out = np.zeros_like(y)
    filled = graph.run(out=[out, None])
    row = graph.read_output_row(0, 1)
    good = y.any() and np.allclose(s, y.sum(1), atol=1e-4) and same(again["out0"], y) and filled[0] is out
    return bool(good) and typed[0] == (y.tobytes(), "f32") and same(some[1], s) and same(out, y) and same(row, y[1])


def probe_views(device: str) -> bool:
    graph = fed(device)
    want = graph.run()
    raw = graph.run_raw()
    good = same([r.numpy() for r in raw], want) and graph.arena_ptr() == raw[0].address
    (at, count), _ = graph.run_slots([None, None])
    return good and bytes(graph.arena_view()[at : at + 4 * count]) == want[0].tobytes()


def probe_handles(device: str) -> bool:
    graph = fed(device)
    want = graph.run()
    graph.bind_handle("x", STEP * 2)
    other = graph.run()
    bound = graph.read_handle("x")
    good = not same(other, want) and bound is not None and same(bound, STEP * 2)
    good = good and graph.has_gpu_handle("h") is True and graph.has_gpu_handle("z") is False
    graph.bind_handle("h", H)
    good = good and graph.unbind_gpu_handle("h") is True and graph.has_gpu_handle("h") is False
    graph.set_handle_feed("h", 0)
    graph.run()
    fed_now = graph.read_handle("h")
    return (
        good
        and fed_now is not None
        and same(fed_now, other[0])
        and graph.unbind_handle("x")
        and not graph.unbind_handle("x")
    )


def probe_feeds(device: str) -> bool:
    graph = fed(device)
    first = graph.run_feed_gpu_handle({}, "h", 0)
    held = graph.read_gpu_handle("h")
    cleared = graph.clear_gpu_handle_feed("h")
    graph.run()
    kept = graph.read_gpu_handle("h")
    graph.set_gpu_handle_feed("h", 0)
    later = graph.run()[0]
    now = graph.read_gpu_handle("h")
    return cleared and same(held, first) and same(kept, first) and same(now, later) and not same(later, first)


def busy() -> Generator[None, None, None]:
    """Work in the turn of the device, ahead of a forward."""
    time.sleep(0.02)
    return
    yield


def probe_flights(device: str) -> bool:
    graph = fed(device)
    want = graph.run()
    graph.session.loaded.turn.post(busy())
    graph.commit_no_wait({"x": STEP * 2})
    graph.sync_pending()
    if graph.flights.under_way:
        return False
    other = graph.read_outputs()
    future, many = graph.run_async(), graph.run_pipelined([{}, {"x": STEP * 2}])
    return not same(other, want) and same(future.result(10), want) and same(many, [want, other]) and graph.epoch == 5


def probe_parameters(device: str) -> bool:
    graph = build_compiled_graph(recurrence(), device, optimize=None)
    graph.initialize(1)
    first = graph.read_param("w")
    graph.set_param_typed("w", np.eye(4).tobytes(), "f64")
    eye = graph.read_param("w")
    graph.load_params({"w": np.eye(4) * 2})
    two = graph.read_param("w")
    graph.set_param("w", np.eye(4) * 3)
    return bool(first.any()) and [w[0, 0] for w in (eye, two, graph.read_param("w"))] == [1, 2, 3]


def probe_copies(device: str) -> bool:
    graph = fed(device)
    want = graph.run()
    other, over = graph.clone(), graph.context()
    graph.set_param("w", np.zeros((4, 4)))
    good = same(other.run(), want) and not over.read_param("w").any() and not over.has_gpu_handle("h")
    graph.clone_from(other)
    return good and same(graph.run(), want) and over.read_param("w").any()


def probe_extent(device: str) -> bool:
    graph = build_compiled_graph(small(), device, bucket_axes=True, optimize=None)
    graph.initialize()
    graph.set_active_extent((1, 2))
    y, x = graph.run({"x": X})
    return y.shape == (2, 4) and not y[1].any() and same(x[0], X[0]) and graph.last_run_stats()["extent"] == 1


def probe_counters(device: str) -> bool:
    graph = fed(device)
    graph.run()
    counters, stats = graph.counters(), graph.last_run_stats()
    memory, able, document = graph.memory_summary(), graph.capabilities(), graph.doc("d")
    graph.close()
    good = document.data["title"] == "d" and (
        counters["forwards"] == stats["forwards"] == 1 and memory["plan_bytes"] > 0 and able.pipelined
    )
    try:
        graph.run()
    except GdlabError:
        return good
    return False


def probe_states(device: str) -> bool:
    with Graph() as g:
        g.set_outputs([ops.cache_write(ops.input("x", (1, 3)), ops.parameter("c", (2, 3)), ops.input_u32("at", (1,)))])
    graph = ready(g, device, optimize=None)
    graph.reset_state()
    return graph.run({"x": [[1, 2, 3]], "at": [1]})[0].tolist() == [[0, 0, 0], [1, 2, 3]]


def probe_experts(device: str) -> bool:
    with Graph() as g:
        x = ops.input("x", (4, 2))
        idx = ops.top_k_indices(x, k=1).reshape((4,))
        g.set_outputs([ops.grouped_matmul(x, ops.parameter("w", (2, 2, 3)), idx)])
    graph = ready(g, device)
    feed = {"x": [[1, 0], [0, 1], [2, 0], [3, 0]]}
    want, whole = graph.run(feed), graph.memory_summary()["moe_resident_bytes"]
    graph.set_moe_resident_experts_per_layer([[False, False]])
    host = graph.memory_summary()["moe_host_bytes"]
    graph.set_moe_resident_experts([True, False])
    good = graph.enable_moe_topk_capture(2) is True and graph.enable_moe_topk_capture(3) is False
    good = good and same(graph.run(feed), want) and (whole, host) == (48, 48)
    stats, taken = graph.take_moe_residency_stats(), graph.take_moe_topk_capture()
    good = good and stats is not None and (stats.gpu_tokens, stats.cpu_tokens) == (3, 1) and taken is not None
    graph.disable_moe_topk_capture()
    graph.run(feed)
    return good and taken[0].tolist() == [0, 1, 0, 0] and graph.take_moe_topk_capture() is None


def probe_memory(device: str) -> bool:
    graph, other = fed(device), fed(device)
    want = graph.run()
    other.bind_input("x", graph.output_buffer(0))
    first = other.run()
    graph.bind_output(0, other.input_buffer("h"))
    graph.run()
    other.bind_handle("x", STEP) if other.unbind_gpu_handle("x") else None
    held = other.read_gpu_handle("h")
    return not same(first, want) and held is not None and same(held, want[0])


def probe_files(device: str) -> bool:
    graph = fed(device)
    want, held = graph.run(), graph.snapshot()
    with TemporaryDirectory() as folder:
        graph.save(Path(folder) / "g", weights=True)
        graph.save_checkpoint(Path(folder) / "c")
        other = load_compiled_graph(Path(folder) / "g", device)
        good = same(other.run({"h": H, "x": STEP}), want)
        other.set_param("w", np.zeros((4, 4)))
        other.load_checkpoint(Path(folder) / "c")
        good = good and same(other.run({"h": H, "x": STEP}), want)
    graph.set_param("w", np.zeros((4, 4)))
    graph.restore(held)
    profile = graph.profile(2)
    return good and same(graph.run(), want) and profile.samples == 2 and graph.epoch == 2


PROBES: tuple[Callable[[str], bool], ...] = (
    probe_runs, probe_views, probe_handles, probe_feeds, probe_flights, probe_parameters, probe_copies, probe_extent,
    probe_counters, probe_states, probe_files, probe_memory,
    probe_experts,
)  # fmt: skip
INERT = {"share", "run_request"}  # of the door's own use: `set_param` and `run` are judged


def test_the_probes_hold(device: str) -> None:
    assert [probe.__name__ for probe in PROBES if not probe(device)] == []


def noticed() -> bool:
    for probe in PROBES:
        try:
            if not probe("cpu"):
                return True
        except Exception:
            return True
    return False


METHODS_OF_ALL = [n for n, m in vars(CompiledGraph).items() if callable(m) and not n.startswith("_") and n not in INERT]


@pytest.mark.parametrize("name", METHODS_OF_ALL)
def test_no_method_could_do_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of `return None`, `return True` or `return self` is noticed by a probe."""
    bodies: tuple[Callable[..., Any], ...] = (
        lambda self, *_, **__: None, lambda self, *_, **__: True, lambda self, *_, **__: self,
    )  # fmt: skip
    for body in bodies:
        with monkeypatch.context() as patch:
            patch.setattr(CompiledGraph, name, body)
            assert noticed(), name


# C-29 -----------------------------------------------------------------------------------------------------------------
FLAGS: dict[str, tuple[Callable[[str], bool], ...]] = {
    "persistent_handles": (probe_handles,), "gpu_handles": (probe_handles, probe_feeds), "clone": (probe_copies,),
    "gpu_handle_feeds": (probe_feeds,), "zero_copy_outputs": (probe_views,), "slots": (probe_views,),
    "active_extent": (probe_extent,), "async_commit": (probe_flights,), "pipelined": (probe_flights,),
    "typed_params": (probe_parameters,), "typed_io": (probe_runs,), "contexts": (probe_copies,),
    "moe_residency": (probe_experts,), "moe_topk_capture": (probe_experts,), "moe_stats": (probe_experts,),
}  # fmt: skip


def test_capabilities_are_what_the_probes_find(device: str) -> None:
    graph = ready(small(), device, max_in_flight=3)
    able = graph.capabilities()
    assert set(FLAGS) == set(METHODS)
    for flag, probes in FLAGS.items():
        assert getattr(able, flag) is (bool(probes) and all(probe(device) for probe in probes)), flag
    assert able.boundary_dtypes == tuple(BOUNDARY) and len(BOUNDARY) == 11 and able.max_in_flight == 3
    assert able.adapter_class == graph.device.adapter_class and able.limits["binding_bytes"] > 0
    assert able.timestamps in (True, False)
    with pytest.raises(AttributeError):
        able.slots = False  # type: ignore[misc]


def test_a_method_that_is_missing_is_a_flag_that_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ready(small(), "cpu")
    for flag, names in METHODS.items():
        for name in names:
            if hasattr(CompiledGraph, name):
                with monkeypatch.context() as patch:
                    patch.delattr(CompiledGraph, name)
                    assert getattr(graph.capabilities(), flag) is False
