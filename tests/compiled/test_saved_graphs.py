"""Compiled graphs in files (C-31), profiles and checkpoints: what they hold, what they refuse, what they leave as it
is."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from compiled_graphs import X, graph_of, ready, recurrence, same, small, state
from places import REPO
from safetensors.numpy import load, save

from gdlab import ops
from gdlab.base.errors import (
    ArgumentError,
    CheckpointError,
    LoadError,
    MissingInputError,
    ParamNotSetError,
    SessionError,
)
from gdlab.base.types import DType
from gdlab.compiled import CompiledGraph, build_compiled_graph, load_compiled_graph, saved
from gdlab.graph import Graph
from gdlab.session import build_inference_session

CHILD = """
import sys, time
import gdlab.rewrite.optimizer, gdlab.session.stages, gdlab.plan.compiler, gdlab.plan.lower
def never(*_, **__): raise SystemExit("compiled again")
gdlab.session.stages.optimize = gdlab.session.stages.compile_graph = gdlab.plan.compiler.compile = never
gdlab.plan.compiler.lower = never
import numpy as np, gdlab as gd
path, device = sys.argv[1:]
graph = gd.load_compiled_graph(path)
assert graph.device.kind == device and graph.counters()["forwards"] == 0
(y,) = graph.run({"x": np.arange(12).reshape(4, 3) / 8})
print(y.tobytes().hex(), graph.counters()["pieces_created"])
"""


def mixed() -> Graph:
    """A packed weight, one in 16 bits, a state, and random numbers."""
    with Graph() as g:
        x, at = ops.input("x", (1, 4)), ops.input_u32("at", (1,))
        h = ops.cache_write(x, ops.parameter("cache", (3, 4)), at)
        q, k = (h @ ops.parameter(name, (4, 4)) for name in "qk")
        z = h @ ops.parameter("half", (4, 64), dtype=DType.f16).to_f32()
        return graph_of({"y": q * k, "z": z, "r": ops.rand_uniform((3,), seed=1)}, g)


def network(rows: int = 4) -> Graph:
    with Graph() as g:
        return graph_of({"y": (ops.input("x", (rows, 3)) @ ops.parameter("w", (3, 5))).softmax()}, g)


# save and load --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [small, recurrence, mixed])
def test_a_saved_graph_is_the_same_graph(device: str, make: Callable[[], Graph], tmp_path: Path) -> None:
    graph, path = ready(make(), device, max_in_flight=3, strict_views=True), tmp_path / "g.gdlab"
    if graph.states:
        graph.reset_state()
    feed = {
        spec.name: np.ones(spec.shape, spec.dtype.replace("f32", "float32").replace("u32", "uint32"))
        for spec in graph.inputs
    }
    graph.save(path, weights=True)
    want = [graph.run(feed) for _ in range(2)]
    other = load_compiled_graph(path)
    assert other.device.kind == graph.device.kind and other.plan == graph.plan
    for name in ("inputs", "outputs", "params", "states", "output_slots"):
        assert getattr(other, name) == getattr(graph, name), name
    assert other.signature.max_in_flight == 3 and other.signature.strict_views
    assert same([other.run(feed) for _ in range(2)], want)
    assert other.epoch == 2 and other.counters()["uploads"] >= len(feed)
    assert not [p for p in tmp_path.iterdir() if p != path]


def test_boundary_axes_and_gradients_are_saved(device: str, tmp_path: Path) -> None:
    path = tmp_path / "g"
    graph = build_compiled_graph(network(), device, boundary={"x": "bf16", "y": "f16"}, bucket_axes=True)
    graph.initialize(1)
    graph.set_active_extent((3, 4))
    x = {"x": np.linspace(-1, 1, 12)}
    want = graph.run(x)
    graph.save(path, weights=True)
    other = load_compiled_graph(path, device)
    assert other.active_extent is None and other.signature.axes == {"x": (0,)} and other.outputs[0].dtype == "f16"
    other.set_active_extent((3, 4))
    assert same(other.run(x), want) and not other.run(x)[0][3].any()
    with Graph() as g:
        graph_of([(ops.input("x", (2, 3)) @ ops.parameter("w", (3, 4))).mean_all()], g)
    trained = ready(g, device, gradients=True)
    trained.save(path, weights=True)
    again = load_compiled_graph(path)
    assert again.output_names == ("out0", "∂w") and same(again.run({"x": X}), trained.run({"x": X}))


def test_without_weights_every_parameter_is_unset(device: str, tmp_path: Path) -> None:
    graph = ready(small(), device)
    graph.save(tmp_path / "a")
    other = load_compiled_graph(tmp_path / "a")
    with pytest.raises(ParamNotSetError, match="no value for w"):
        other.run({"x": X})
    other.set_param("w", graph.read_param("w"))
    assert same(other.run({"x": X}), graph.run({"x": X}))
    fresh = build_compiled_graph(small(), device)
    fresh.save(tmp_path / "b", weights=True)  # nothing is made up for what has no value
    with pytest.raises(ParamNotSetError, match="no value for w"):
        load_compiled_graph(tmp_path / "b").run({"x": X})


def test_another_process_opens_it_without_compiling(device: str, tmp_path: Path) -> None:
    graph, path = ready(network(), device), tmp_path / "g"
    graph.save(path, weights=True)
    (y,) = graph.run({"x": np.arange(12).reshape(4, 3) / 8})
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), device], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [y.tobytes().hex(), "0"]


def test_a_damaged_file_is_refused_and_nothing_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path = ready(small(), "cpu"), tmp_path / "g"
    graph.save(path, weights=True)
    whole = path.read_bytes()
    opened: list[object] = []
    monkeypatch.setattr("gdlab.compiled.build_compiled.open_session", lambda *_: opened.append(1))
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(LoadError, match="load_compiled_graph: file"):
            load_compiled_graph(path, "cpu")
    for cut in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(LoadError, match="wanted what CompiledGraph.save writes"):
            load_compiled_graph(path, "cpu")
    path.write_bytes(save({"head": np.frombuffer(b"[" * 100_000, np.uint8)}))
    with pytest.raises(LoadError, match="given RecursionError"):
        load_compiled_graph(path, "cpu")
    with pytest.raises(LoadError, match="FileNotFoundError"):
        load_compiled_graph(tmp_path / "none", "cpu")
    for given in (5, b"g", "a\0b"):
        with pytest.raises(ArgumentError, match="load_compiled_graph: path: given .*, wanted a path"):
            load_compiled_graph(given, "cpu")  # type: ignore[arg-type]
    with pytest.raises(LoadError, match="IsADirectoryError"):
        load_compiled_graph(tmp_path, "cpu")
    assert not opened


# hostile files: their digest is right -------------------------------------------------------------------------------
def bucketed(path: Path) -> dict[str, np.ndarray]:
    """Save a bucketed graph with 16-bit boundaries; return the tensors of the file."""
    graph = build_compiled_graph(network(), "cpu", boundary={"x": "bf16", "y": "f16"}, bucket_axes=True)
    graph.initialize(1)
    graph.save(path, weights=True)
    return load(path.read_bytes())


def rewrite(path: Path, tensors: dict[str, np.ndarray], body: bytes) -> None:
    """Write the file again with another body, and the digest of it."""
    held = {**tensors, "body": np.frombuffer(body, np.uint8)}
    del held["head"]
    head = json.dumps({"format": saved.FORMAT, "versions": saved.versions(), "digest": saved._digest(held)})
    path.write_bytes(save({"head": np.frombuffer(head.encode(), np.uint8), **held}))


SPOILED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "an input less": (("edge", "inputs"), []),
    "an output more": (("edge", "outputs"), ["f16", "f32"]),
    "an unknown dtype": (("edge", "outputs"), ["f8"]),
    "an unknown state": (("edge", "states"), ["v"]),
    "an unknown parameter": (("edge", "unset"), ["v"]),
    "no such input": (("edge", "axes"), [["z", [0]]]),
    "no such axis": (("edge", "axes"), [["x", [2]]]),
    "another extent": (("edge", "upper"), 5),
    "no extent": (("edge", "upper"), None),
    "no axes": (("edge", "axes"), []),
    "too many in flight": (("edge", "max_in_flight"), 1 << 40),
    "no landing": (("edge", "landing_bytes"), 0),
    "no pages": (("edge", "moe_transient"), -1),
    "a layer": (("edge", "layers"), [{"number": 0, "experts": [1 << 50], "weights": [], "routed": False,
                                      "bounded": True, "live": False}]),
    "a plan for training": (("plan", "mode"), "training"),
    "an output of another node": (("plan", "graph", "outputs", 0, 0), 0),
    "a name that is no text": (("plan", "graph", "outputs", 0, 1), 7),
    "a wide shape": (("plan", "buffers", 0, "shape", 0), 1 << 40),
    "much memory": (("plan", "memory", "slots", 0, "bytes"), 1 << 33),
    "a long kernel": (("plan", "dispatches", 0, "params"), [1, 1, 1, 1 << 40]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_file_that_is_wrong_with_a_right_digest_is_refused(tmp_path: Path, name: str) -> None:
    path, (keys, value) = tmp_path / "g", SPOILED[name]
    tensors = bucketed(path)
    body = at = json.loads(tensors["body"].tobytes())
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    rewrite(path, tensors, json.dumps(body).encode())
    with pytest.raises(LoadError, match="load_compiled_graph: file .* wanted what CompiledGraph.save writes"):
        load_compiled_graph(path)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"plan":' * 50_000, b'{"plan": {}}', b"9" * 5_000, b"\xff"])
def test_a_body_that_is_no_plan_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "g"
    rewrite(path, bucketed(path), body)
    with pytest.raises(LoadError, match="load_compiled_graph: file"):
        load_compiled_graph(path)


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in rows:
        yield (*above, key)
        yield from places(value, (*above, key))


def test_a_file_with_any_wrong_value_is_refused_or_loaded(tmp_path: Path) -> None:
    """A mutation that stays a valid plan is loaded; nothing but `LoadError` is raised, and none takes long."""
    path, random = tmp_path / "g", Random(7)
    tensors = bucketed(path)
    whole = json.loads(tensors["body"].tobytes())
    keys = list(places(whole))
    refused = 0
    for _ in range(400):
        body = at = copy.deepcopy(whole)
        *above, last = random.choice(keys)
        for key in above:
            at = at[key]
        at[last] = random.choice([None, True, -1, 0, 3, 1 << 31, 1 << 62, 0.5, "", "x", "f32[4, 4]", [], {}, [0]])
        rewrite(path, tensors, json.dumps(body).encode())
        begun = perf_counter()
        try:
            load_compiled_graph(path).close()
        except LoadError:
            refused += 1
        assert perf_counter() - begun < 10, (above, last)
    assert 200 < refused < 400


def test_another_version_and_another_target_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path = ready(small(), "cpu"), tmp_path / "g"
    with monkeypatch.context() as patch:
        patch.setattr(saved, "versions", lambda: "1 of gdlab 0.0.1")
        graph.save(path)
    with pytest.raises(LoadError, match="another version: format 1, plans 1 of gdlab 0.0.1, wanted format 1, plans"):
        load_compiled_graph(path)
    graph.save(path)
    with pytest.raises(LoadError, match="a plan for cpu, cpu, .*, wanted one for this device: wgpu, software"):
        load_compiled_graph(path, "wgpu")
    load_compiled_graph(path, "auto").close()


def test_what_save_refuses(tmp_path: Path) -> None:
    graph = ready(small(), "cpu")
    graph.save(tmp_path / "g")
    before, held = state(graph), (tmp_path / "g").read_bytes()
    with pytest.raises(ArgumentError, match="save: weights: given str, wanted True or False"):
        graph.save(tmp_path / "g", weights="all")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="wanted a folder that exists"):
        graph.save(tmp_path / "no" / "g")
    assert state(graph) == before and (tmp_path / "g").read_bytes() == held
    graph.close()
    with pytest.raises(SessionError, match="save: compiled graph: given closed"):
        graph.save(tmp_path / "g", weights=True)


# profile --------------------------------------------------------------------------------------------------------------
def test_a_profile_times_dispatches_and_counts_no_run(device: str) -> None:
    graph = ready(recurrence(), device)
    graph.bind_gpu_handle("h", np.ones((5, 4)))
    graph.set_gpu_handle_feed("h", 0)
    x = {"x": np.full((5, 4), 0.5, np.float32)}
    first = graph.run(x)
    held, draw = graph.read_gpu_handle("h"), graph.draw
    profile = graph.profile(2, {"x": np.zeros((5, 4))})
    assert profile.samples == 2 and (len(profile.dispatches) == graph.plan.dispatches.__len__() or profile.reason)
    assert graph.epoch == 1 and graph.draw == draw and graph.counters()["forwards"] == 1
    assert same(graph.read_outputs(), first) and same(graph.read_gpu_handle("h"), held)
    twin = ready(recurrence(), device)
    twin.bind_gpu_handle("h", first[0])
    assert same(graph.run(x), twin.run(x))
    with pytest.raises(ArgumentError, match="profile: runs: given 0, wanted an int"):
        graph.profile(0)
    with pytest.raises(MissingInputError, match="profile: inputs: given no value for x"):
        graph.profile()


def test_the_memory_summary_is_that_of_the_session_and_more(device: str) -> None:
    graph = ready(small(), device)
    graph.bind_handle("x", X)
    memory = graph.memory_summary()
    assert memory["plan_bytes"] == memory["total_buffer_bytes"] == graph.session.memory_summary().total_buffer_bytes
    assert memory["handle_bytes"] == 24 and memory["arena_bytes"] == memory["retired_bytes"] == 0
    graph.run_raw()
    assert graph.memory_summary()["arena_bytes"] == 512


# checkpoints ----------------------------------------------------------------------------------------------------------
def test_checkpoints_are_those_of_sessions(device: str, tmp_path: Path) -> None:
    graph, path = ready(small(), device), tmp_path / "c"
    want = graph.run({"x": X})
    graph.save_checkpoint(path)
    snapshot = graph.snapshot()
    graph.set_param("w", np.zeros((3, 4)))
    graph.restore(snapshot)
    assert same(graph.run({"x": X}), want) and graph.draw == 2
    other = build_compiled_graph(small(), device)
    with pytest.raises(ParamNotSetError, match="snapshot: parameters: given no value for w"):
        other.snapshot()
    with pytest.raises(CheckpointError, match="no value for w"):
        other.save_checkpoint(tmp_path / "none")
    other.load_checkpoint(path)
    assert same(other.run({"x": X}), want)
    with build_inference_session(small(), device) as session:
        session.load_checkpoint(path)
        assert np.array_equal(session.read_param("w"), graph.read_param("w"))
    before = state(graph)
    with pytest.raises(CheckpointError):
        ready(network(), device).load_checkpoint(path)
    assert state(graph) == before


def test_the_class_has_them() -> None:
    for name in ("save", "profile", "snapshot", "restore", "save_checkpoint", "load_checkpoint", "doc"):
        assert callable(getattr(CompiledGraph, name))
