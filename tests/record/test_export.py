"""A list as a graph and as a study; the report in text (S-21, and the text twin of S-24)."""

from __future__ import annotations

import numpy as np
import pytest
import recording as rec

import gdlab as gd
from gdlab.base.errors import GraphError
from gdlab.base.formats import encode
from gdlab.base.types import DType
from gdlab.record import GgmlQuantizedMatmulParams, GraphSession, SdpaParams


@pytest.fixture
def ex(device: str) -> gd.GraphExecutor:
    return rec.executor(device)


def test_values_of_the_graph_are_those_of_the_session(ex: gd.GraphExecutor) -> None:
    layer = rec.Layer(ex)
    s = ex.begin_recorded(auto_barrier=True)
    layer.encode(s)
    graph = s.to_graph()
    names = [n.name for n in graph.inputs]
    assert names[:4] == ["x", "w0", "s0", f"b{layer.names['positions'].allocation_id}_0"] and len(names) == 10
    assert all(n.op != "reshape" or n.type.shape != graph.node(n.inputs[0]).type.shape for n in graph)
    study = s.to_study(name="layer")
    s.finish_with_fusion_and_reorder()
    kept = [n for n, b in layer.names.items() if not b.transient and n not in ("positions",)]
    study.step()
    order = ["z0", "q0", "k0", "v0", "a0", "g0", "x", "p0"]
    assert len(graph.outputs) == 1 + 4 * 7
    for i, name in enumerate(order):
        if name in kept:
            rec.close(study.session.read_output_by_index(i), layer.names[name].read(), 2e-5)
    assert study.name == "layer" and "rms_norm" in graph.text()
    study.close()


def test_versions_transients_and_copies(ex: gd.GraphExecutor) -> None:
    x, y = rec.buffer(ex, rec.data(2, 4), label="x"), rec.buffer(ex, rec.data(8), label="x")
    t, out = rec.zeros(ex, 8, transient=True), rec.zeros(ex, 8)
    s = ex.begin_recorded(auto_barrier=True)
    s.gelu(x, t)
    s.elementwise_add(t, y, out, 8, gd.f32)
    s.elementwise_add(out, out, out, 8, gd.f32)
    s.encoder_mut().copy_buffer(out, y)
    graph = s.to_graph()
    assert [n.name for n in graph.inputs] == ["x", "x_2"] and len(graph.outputs) == 2
    study = s.to_study()
    s.finish()
    study.step()
    for i, b in enumerate((out, y)):
        rec.close(study.session.read_output_by_index(i), b.read())
    rec.close(out.read(), 2 * (rec.gelu(rec.data(2, 4)).reshape(-1) + rec.data(8)))
    study.close()


def test_weights_in_blocks_and_attention_become_ordinary_ops(ex: gd.GraphExecutor) -> None:
    words = encode(rec.data(4, 32), DType.q8_0)
    w, q, out, seen = (
        rec.raw(ex, words.tobytes()),
        rec.buffer(ex, rec.data(2, 32)),
        rec.zeros(ex, 2, 4),
        rec.zeros(ex, 8),
    )
    s = ex.begin(auto_barrier=True)
    s.quantized_matmul_ggml(q, w, out, GgmlQuantizedMatmulParams(2, 4, 32, "Q8_0"))
    s.sdpa(out, out, out, seen, SdpaParams(1, 1, 4, 2, 2, 0.5), 1)
    study = s.to_study()
    s.finish()
    study.step()
    rec.close(study.session.read_output_by_index(0), out.read(), 1e-4)
    rec.close(study.session.read_output_by_index(1), seen.read(), 1e-4)
    study.close()


def test_ranges_that_overlap_in_part_are_refused(ex: gd.GraphExecutor) -> None:
    x, out = rec.zeros(ex, 16), rec.zeros(ex, 16)
    s = ex.begin(auto_barrier=True)
    s.gelu(x, out)
    s.gelu(out.slice_view(16, 4), x.slice_view(0, 4))
    wanted = rf"to_graph: ranges: given bytes 0 … 64 of allocation {out.allocation_id} and 16 … 32, wanted ranges"
    with pytest.raises(GraphError, match=wanted):
        s.to_graph()
    with pytest.raises(GraphError, match="to_graph: outputs: given none"):
        ex.begin().to_graph()


# the report -----------------------------------------------------------------------------------------------------------
def reported(ex: gd.GraphExecutor) -> GraphSession:
    """0→1, 1→2, 2→3, 10→11, 11→12, 12→13 (chains of three), reordered to three groups of two."""
    memory = [rec.zeros(ex, 8) for _ in range(8)]
    s = ex.begin_recorded(auto_barrier=True)
    for a in (0, 1, 2, 4, 5, 6):
        s.gelu(memory[a], memory[a + 1])
    s.finish_with_fusion_and_reorder()
    return s


def test_the_report_says_groups_moves_and_hazards(ex: gd.GraphExecutor) -> None:
    report = reported(ex).report
    lines = str(report).splitlines()
    assert lines[0] == "finish_with_fusion_and_reorder: 6 nodes in 1 submission"
    assert lines[1] == "groups 5 → 3, barriers 4 → 2, barriers that wgpu would place 4"
    assert lines[2].startswith("fusions 0, moved 4, copies through scratch 0")
    assert lines[3] == "group 0: 0 gelu, 1 gelu (was 3)" and lines[5].startswith("group 2: 4 gelu (was 2), 5 gelu")
    assert report.groups() == [[0, 1], [2, 3], [4, 5]]
    assert [h[:3] for h in report.hazards()] == [("raw", 0, 2), ("raw", 1, 3), ("raw", 2, 4), ("raw", 3, 5)]
    assert [line for line in lines if line.startswith("  raw: node 0 → node 2, bytes 0 … 32 of ")]
    assert (
        lines[-1].startswith("time: ")
        and repr(report) == "<Report of finish_with_fusion_and_reorder: 6 nodes, 0 fusions>"
    )
    assert np.sum(report.timing) > 0


# the document ---------------------------------------------------------------------------------------------------------
def test_the_document_replays_fusion_and_moves(ex: gd.GraphExecutor) -> None:
    """Two chains, one of them begun by a norm and its product: one fusion, then moves into three groups."""
    x, w, scale = rec.buffer(ex, rec.data(2, 8), label="x"), rec.buffer(ex, rec.data(8)), rec.buffer(ex, rec.data(2, 8))
    y, z, out = rec.zeros(ex, 2, 8, transient=True), rec.zeros(ex, 16), rec.zeros(ex, 16)
    a, b, c = (rec.zeros(ex, 16) for _ in range(3))
    s = ex.begin_recorded(auto_barrier=True)
    s.rms_norm(x, w, y, 2, 8)
    s.elementwise_mul(y, scale, z, 16)
    s.gelu(z, out)
    s.gelu(a, b)
    s.gelu(b, c)
    assert s.finish_with_fusion_and_reorder() == (1, 2)
    doc = s.report.doc
    found = doc.data["list"]
    assert [stage["title"] for stage in found["stages"]] == ["As recorded", "After fusion", "After reordering"]
    assert [stage["groups"] for stage in found["stages"]] == [
        [[0], [1], [2, 3], [4]],
        [[0], [1, 2], [3]],
        [[0, 1], [2, 3]],
    ]
    assert [(step["kind"], step["recorded"]) for step in found["steps"]] == [
        ("fuse", [0, 1]), ("move", [3]), ("move", [2]), ("submit", []),
    ]  # fmt: skip
    assert found["steps"][1]["text"] == "node 2 gelu moves to place 1"
    names = [doc.nodes(0)[int(e.split(".")[1])]["op"] for e in found["steps"][0]["about"]]
    assert "rms_norm" in names and "mul" in names
    assert [h["kind"] for h in found["stages"][2]["hazards"]] == ["raw", "raw"]
    (overlay,) = doc.data["overlays"]
    assert set(overlay["values"].values()) == {
        "group 0, place 0",
        "group 0, place 1",
        "group 1, place 2",
        "group 1, place 3",
    }
    assert "finish_with_fusion_and_reorder: 4 nodes, 2 groups, 1 barrier" in str(doc) and doc.json()
    again, other = (s.report.doc.id for _ in range(2))
    assert again == other and found["lines"][0].startswith("finish_with_fusion_and_reorder: 4 nodes")
    for text in found["lines"]:
        assert text in str(s.report)


def test_a_report_and_its_document_keep_no_buffer() -> None:
    import gc
    import weakref

    ex = gd.GraphExecutor("cpu")
    x, y = rec.buffer(ex, rec.data(16)), rec.zeros(ex, 16)
    alive = weakref.ref(y.allocation)
    for _ in range(2):  # the second is submitted as the first was
        s = ex.begin(auto_barrier=True)
        s.gelu(x, y)
        s.finish()
    report = s.report
    assert report.doc.data["list"]["stages"][0]["nodes"] == ["gelu"]
    del s, y
    gc.collect()
    assert alive() is None and report.doc.nodes(0)
    ex.close()


def test_a_document_of_a_list_without_results_is_refused_in_words() -> None:
    s = rec.executor("cpu").begin()
    s.finish()
    with pytest.raises(GraphError, match="to_graph: outputs: given none"):
        _ = s.report.doc
