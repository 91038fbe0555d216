"""`%graph_compiled`: slots, handles, feeds, extent, arena and counters in words, the plan as a picture, and what it
refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_graphs import ready, recurrence, small
from shells import BODY, complete, run

from gdlab.compiled import CompiledGraph, build_compiled_graph


def told(found: Any, error: Any) -> str:
    return f"{found.stderr}{found.stdout}{error}"


def test_a_compiled_graph_is_told(shell: Any) -> None:
    graph = ready(recurrence(), "cpu")
    graph.bind_gpu_handle("h", np.zeros((5, 4)))
    graph.set_gpu_handle_feed("h", 0)
    graph.bind_handle("x", np.ones((5, 4)))
    graph.run_raw()
    shell.user_ns["cell"] = graph
    found, error = run(shell, "%graph_compiled cell")
    text = found.stdout
    assert error is None, error
    assert "input h : f32[5, 4]; gpu handle, fed by output 0 out0" in text
    assert "input x : f32[5, 4]; host handle" in text
    assert "output 0 out0 : f32[5, 4]; bytes 0 … 79 of the arena" in text
    assert "output 1 out1 : f32[5]; bytes 256 … 275 of the arena" in text
    assert "extent: no bucket axes" in text and "arena: 512 bytes, of run 1" in text
    assert "forwards 1" in text and "copies 1" in text and "memory:" in text and "handle_bytes 80 B" in text
    (shown,) = found.outputs
    assert "gpu handle, fed by output 0" in shown.data["text/plain"] and "<svg" in shown.data["image/svg+xml"]
    graph.run()
    assert "arena: not filled by the last run" in run(shell, "%graph_compiled cell --quiet")[0].stdout


def test_the_extent_is_told(shell: Any) -> None:
    graph = build_compiled_graph(small(), "cpu", bucket_axes=True)
    shell.user_ns["b"] = graph
    assert "extent: 2 of 2 entries along x [0]" in run(shell, "%graph_compiled b --quiet")[0].stdout
    graph.set_active_extent((1, 2))
    assert "extent: 1 of 2 entries along x [0]" in run(shell, "%graph_compiled b --quiet")[0].stdout


def test_a_study_is_compiled_and_closed_or_bound(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[CompiledGraph] = []
    close = CompiledGraph.close
    monkeypatch.setattr(CompiledGraph, "close", lambda self: (closed.append(self), close(self))[1])
    assert run(shell, f"%%graph net --device cpu --quiet\n{BODY}")[1] is None
    found, error = run(shell, "%graph_compiled net --quiet --boundary x=f16")
    assert error is None and "input x : f16[8, 6]; a value in each call" in found.stdout and len(closed) == 1
    _, error = run(shell, "%graph_compiled net --quiet --as door")
    assert error is None and not shell.user_ns["door"].closed and len(closed) == 1
    shell.user_ns["door"].close()


def test_what_it_refuses(shell: Any) -> None:
    shell.user_ns["cell"] = ready(small(), "cpu")
    line = "graph_compiled: given other, wanted a variable that holds a CompiledGraph, or a study"
    assert line in told(*run(shell, "%graph_compiled other"))
    assert "--boundary: given cell, which is compiled already" in told(
        *run(shell, "%graph_compiled cell --boundary x=f16")
    )
    assert "--boundary: given x, wanted NAME=DTYPE" in told(*run(shell, "%graph_compiled cell --boundary x"))
    shell.user_ns["cell"].close()
    assert "given closed, wanted an open" in told(*run(shell, "%graph_compiled cell"))


def test_completion() -> None:
    graph = ready(small(), "cpu")
    assert complete("%graph_compiled ", {"cell": graph, "n": 3}) == ["cell"]
    assert {"--boundary", "--as", "--quiet"} <= set(complete("%graph_compiled cell --"))
    assert complete("%graph_record ", {"cell": graph}) == []


def test_a_compiled_graph_has_a_document_and_a_picture(shell: Any) -> None:
    graph = ready(small(), "cpu")
    document = graph.doc("small")
    assert document.data["title"] == "small" and document.data["compiled"]["outputs"][0]["nbytes"] == 32
    assert any(note["text"].startswith("input x : f32[2, 3]; a value") for note in document.data["notes"])
    assert document.data["overlays"][0]["id"] == "edge"
    data, _ = shell.display_formatter.format(graph)
    assert "<svg" in data["image/svg+xml"] and "extent: no bucket axes" in data["text/plain"]
