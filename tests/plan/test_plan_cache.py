"""Plan cache files: found again when nothing changed, compiled anew when anything did, never trusted."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs

from gdlab import ops
from gdlab.devices.choose import device as choose_device
from gdlab.graph import Graph
from gdlab.plan import plan_cache
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.session import Session, SessionConfig, build, build_session_cached

CORRUPTIONS = int(os.environ.get("GDLAB_CORRUPTIONS", "40"))


def trained(session: Session) -> tuple[float, bytes]:
    with session:
        session.initialize(2)
        session.set_input("x", np.linspace(-1, 1, 8 * 64))
        session.set_input("y", np.eye(10)[:8])
        session.set_adam(0.01)
        for _ in range(3):
            session.step()
        return session.read_loss(), session.read_param("w1").tobytes()


def test_a_hit_is_the_same_plan_and_runs_the_same_bits(device: str, tmp_path: Path) -> None:
    path, graph = tmp_path / "model.plan.ron", networks.mlp(8)
    fresh, report = build(graph, SessionConfig(device=device, cache=path))
    assert report.rules_fired and path.exists() and json.loads(path.read_text(encoding="utf-8"))["format"] == 3
    cached, again = build(networks.mlp(8), SessionConfig(device=device, cache=path))
    assert again.stop_reason == "cache-hit" and not again.rules_fired and again.nodes_after == 0
    assert cached.plan() == fresh.plan()
    assert trained(cached) == trained(fresh)


def test_a_hit_knows_sources_and_nodes(tmp_path: Path) -> None:
    config = SessionConfig(device="cpu", cache=tmp_path / "a", mode="inference")
    for _ in range(2):
        with Graph() as g:
            x = ops.input("x", (4, 3))
            y = ops.tanh(ops.neg(ops.neg(x))).named("y")
            g.output(ops.exp(y))
        session, _ = build(g, config)
        with session:
            session.set_input("x", np.zeros((4, 3)))
            session.step()
            final = session.plan().graph
            sources = [final.source(n.id)[0].line for n in final if final.source(n.id)]
            assert len(sources) == len(final) and len(set(sources)) >= 3
            assert session.read_node(x).shape == (4, 3)
            try:
                assert not session.read_node(y).any()
            except RuntimeError as error:
                assert "dispatch" in str(error)


def graph_with(value: float = 1.0, name: str = "w", eps: float = 1e-5) -> Graph:
    with Graph() as g:
        x = ops.input("x", (4, 3)) * ops.constant([1.0, 2.0, value])
        g.output(ops.mean_all(ops.rms_norm(x, ops.parameter(name, (3,)), eps=eps)))
    return g


BASE = SessionConfig(device="cpu")
TARGET = choose_device("cpu").target
CHANGES: dict[str, Callable[[], str | None]] = {
    "a constant": lambda: key(graph_with(value=1.5)),
    "a name": lambda: key(graph_with(name="v")),
    "an attribute": lambda: key(graph_with(eps=1e-6)),
    "the mode": lambda: key(mode="inference"),
    "the rules": lambda: key(optimize={"disable": ("cse",)}),
    "the boldness": lambda: key(optimize={"allow": "exact"}),
    "no rules": lambda: key(optimize=None),
    "the second phase": lambda: key(skipped=True),
    "an option": lambda: key(options=CompileOptions(alias=False)),
    "a limit": lambda: key(target=replace(TARGET, limits=replace(TARGET.limits, storage_buffers=4))),
    "the device": lambda: key(target=Target("wgpu", "software", Limits())),
}


def key(graph: Graph | None = None, **change: Any) -> str | None:
    facts: dict[str, Any] = {
        "mode": "training", "optimize": {}, "skipped": False, "options": CompileOptions(), "target": TARGET,
    }  # fmt: skip
    return plan_cache.key_of(graph or graph_with(), **facts | change)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_plan_depends_on_changes_its_key(change: str) -> None:
    assert key() == key() and key() is not None
    assert CHANGES[change]() not in (None, key())


def test_another_version_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    for name in ("VERSION", "FORMAT"):
        with monkeypatch.context() as patch:
            patch.setattr(plan_cache, name, 99)
            assert key() != before
    monkeypatch.setattr(plan_cache, "_version", lambda: "99")
    assert key() != before


def test_a_cost_that_is_a_function_is_not_cached(tmp_path: Path) -> None:
    config = replace(BASE, cache=tmp_path / "a", optimize={"cost": lambda *_: 1.0})
    build(graph_with(), config)[0].close()
    assert not (tmp_path / "a").exists()


def test_another_graph_is_a_miss_and_writes_the_file_anew(tmp_path: Path) -> None:
    config = replace(BASE, cache=tmp_path / "a")
    seen = []
    for value in (1.0, 2.0, 2.0, 1.0):
        session, report = build(graph_with(value), config)
        seen.append(report.stop_reason == "cache-hit")
        session.close()
    assert seen == [False, False, True, False]


def hits(path: Path) -> bool:
    session, report = build(graph_with(), replace(BASE, cache=path))
    session.close()
    return report.stop_reason == "cache-hit"


def test_a_damaged_file_is_compiled_anew_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert not hits(path) and hits(path)
    whole = path.read_bytes()
    for damaged in (b"", b"{", whole[:-20], b"\xff" + whole[1:], b"[]", b"null", b'{"format": 1}'):
        path.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="plan cache: .* is damaged|cannot be read"):
            assert not hits(path)
        assert path.read_bytes() == whole, "written anew"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    needs("posix")
    os.mkfifo(tmp_path / "a")
    with pytest.warns(RuntimeWarning, match="cannot be read .*a pipe"):
        assert not hits(tmp_path / "a")


def test_no_damaged_byte_reaches_a_plan(tmp_path: Path) -> None:
    path, rng = tmp_path / "a", random.Random(3)
    hits(path)
    whole = path.read_bytes()
    good = plan_cache.load(path, str(json.loads(whole)["key"]), graph_with())
    assert good is not None
    for _ in range(CORRUPTIONS):
        place = rng.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[place] ^= rng.choice((1, 2, 8, 32, 128))
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = plan_cache.load(path, str(json.loads(whole)["key"]), graph_with())
        assert found is None or found.plan == good.plan


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "folder" / "a"):
        with pytest.warns(RuntimeWarning, match="plan cache: .* cannot be (read|written)"):
            session = build_session_cached(networks.mlp(8), path, "cpu")
        assert np.isfinite(trained(session)[0])
