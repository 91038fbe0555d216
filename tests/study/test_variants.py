"""Variants of a study under other rules and compile options, kept, compared; figures in Python, document and text."""

from __future__ import annotations

from collections.abc import Iterator

import networks
import numpy as np
import pytest
from documents import checked, doc_of

from gdlab import CompileOptions, ops
from gdlab.base.errors import ArgumentError, SessionError
from gdlab.graph import Graph, Value
from gdlab.rewrite import RULES, Rewrite, rule
from gdlab.study.study import Study
from gdlab.study.variants import HEAD
from gdlab.view.ask.diff import diff
from gdlab.view.document.document import load_doc
from gdlab.view.text.twin import twin

FUSED = "MatMul+BiasAdd→FusedMatMulAdd"


@pytest.fixture
def study() -> Iterator[Study]:
    made = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    yield made
    made.close()


def test_compile_options_make_other_plans(study: Study) -> None:
    plain, apart = study.figures(), study.variant(compile=CompileOptions(fuse_dispatches=False))
    alone = study.variant(compile=CompileOptions(alias=False))
    serial = study.variant(compile=CompileOptions(serial=True))
    assert list(study.variants) == [apart.name, alone.name, serial.name] == ["no fusion", "no aliasing", "serial"]
    assert apart.figures().dispatches > plain.dispatches and apart.figures().bytes_moved > plain.bytes_moved
    assert alone.figures().physical_bytes > plain.physical_bytes and alone.figures().dispatches == plain.dispatches
    assert serial.figures().groups == serial.figures().dispatches > plain.groups
    assert apart.compile.fuse_dispatches is False and apart.open_on(apart.device).plan().options == apart.compile


def test_the_figures_are_those_of_plan_and_reports(study: Study) -> None:
    study.variant("plain", disable=[FUSED])
    for one in (study, study.variants["plain"]):
        f, plan = one.figures(), one.plan
        assert (f.name, f.nodes) == (one.name, len(one.final))
        assert (f.dispatches, f.groups) == (len(plan.dispatches), len(plan.groups))
        assert f.bytes_moved == sum(d.bytes_read + d.bytes_written for d in plan.dispatches)
        assert (f.peak_bytes, f.physical_bytes) == (plan.memory.peak_bytes, plan.memory.physical_bytes)
        assert f.rewrites == sum(n for report in one.reports for _, n in report.rules_fired)
    assert [c.split() for c in study.compare().splitlines()[1:]] == [
        " ".join(one.figures().row()).split() for one in (study, study.variants["plain"])
    ]
    apart = study.variant(compile=CompileOptions(alias=False)).figures()
    assert apart.peak_bytes < apart.physical_bytes, "what lives at once, and slots: two columns"


def test_the_same_options_are_made_once(study: Study) -> None:
    first = study.variant(compile=CompileOptions(alias=False))
    study.variant("other")
    rev = study.rev
    assert study.variant(compile=CompileOptions(alias=False)) is first and study.rev == rev
    assert list(study.variants) == ["other", "no aliasing"], "the newest again"
    named = study.variant("named", compile=CompileOptions(alias=False))
    assert named is not first and named.plan is first.plan and named.name == "named" and first.name == "no aliasing"


def test_the_six_newest_are_there(study: Study) -> None:
    for name in "abcdefgh":
        study.variant(name)
    assert [*study.variants] == [*"cdefgh"]


def test_a_new_rule_makes_them_anew(study: Study) -> None:
    first = study.variant("plain")
    theirs = dict(RULES._theirs)
    try:

        @rule(label="Relu→Relu")
        def twice(x: Value) -> Rewrite:
            return ops.relu(ops.relu(x)) >> ops.relu(x)

        assert study.variant("plain") is not first
    finally:
        RULES._theirs = theirs
    assert list(study.variants) == ["plain"]


def test_a_variant_never_touches_the_running_session(study: Study) -> None:
    study.run(2, feed="random:0", sgd=0.1, init=0)
    before, session = study.session.read_param("w1"), study.session
    study.variant(compile=CompileOptions(fuse_dispatches=False))
    times = study.measure(steps=3)
    assert study.session is session and study.session.step_count == 2
    np.testing.assert_array_equal(study.session.read_param("w1"), before)
    assert list(times) == ["mlp", "no fusion"] and all(t.samples == 3 and t.median > 0 <= t.mad for t in times.values())
    assert study.step_time is times["mlp"] and str(times["mlp"]) in study.compare()
    with pytest.raises(ArgumentError, match="measure: steps: given 0, wanted an int ≥ 1"):
        study.measure(0)
    study.runner.stepper.state = "running"
    with pytest.raises(SessionError, match="run: session: given a measurement while"):
        study.measure(1)
    study.runner.stepper.state = "ready"


def test_median_and_deviation_are_of_the_steps(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([9.0, 9.0, 1.0, 2.0, 10.0])  # two steps to warm up
    monkeypatch.setattr("gdlab.study.variants._step_seconds", lambda session: next(took))
    found = study.measure(steps=3)["mlp"]
    assert (found.samples, found.median, found.mad) == (3, 2.0, 1.0) and str(found) == "2e6 ± 1e6"


def test_document_and_text_have_the_table(study: Study, tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert "variants" not in study.doc.data and "what if" not in twin(study.doc, "opt")
    study.variant("plain", disable=[FUSED])
    study.measure(steps=2)
    document = doc_of(study)
    rows = document.data["variants"]
    assert [document.stage(row["stage"])["key"] for row in rows] == ["optimized", "variant:plain"]
    for row, one in zip(rows, (study, study.variants["plain"]), strict=True):
        f = one.figures()
        assert all(row[name] == getattr(f, name) for name in ("nodes", "dispatches", "peak_bytes", "bytes_moved"))
        assert row["step_seconds"] == {"samples": 2, "median": one.step_time.median, "mad": one.step_time.mad}
    text = twin(document, "opt").split("what if:\n")[1]
    told = study.compare().splitlines()[1:]
    assert [line.split() for line in text.splitlines()[1:3]] == [line.split() for line in told]
    assert text.splitlines()[0].split() == " ".join(HEAD).split()
    timeless = checked(load_doc(document.save(tmp_path / "a.gdlab.json", timeless=True)))
    assert [row["step_seconds"] for row in timeless.data["variants"]] == [None, None]
    assert document.id == study.doc.id, "times are no content"


def test_what_two_results_made_alike_is_the_same(study: Study) -> None:
    """A variant under the same rules made the same fused nodes: its own keys, the same hashes."""
    study.variant("again", compile=CompileOptions(alias=False))
    keys = [stage["key"] for stage in study.doc.data["stages"]]
    found = diff(study.doc, None, keys.index("optimized"), keys.index("variant:again"))
    assert set(found.left) == set(found.right) == {"same"}
    study.variant("plain", disable=[FUSED])
    keys = [stage["key"] for stage in study.doc.data["stages"]]
    found = diff(study.doc, None, keys.index("optimized"), keys.index("variant:plain"))
    assert found.left.count("removed") + found.left.count("moved") == 2 and "added" in (*found.right, "added")


def test_nodes_made_twice_in_one_result_are_left_alone() -> None:
    """Two equal nodes cannot be told apart by their hash: only what is unique on both sides is matched."""
    with Graph() as g:
        x, w = ops.input("x", (2, 3)), ops.parameter("w", (3, 4))
        a, b = (ops.bias_add(x @ w, ops.parameter(f"b{i}", (4,))) for i in range(2))
        g.output(a + b)
    study = Study(g, device="cpu", name="pair")
    study.variant("again", compile=CompileOptions(alias=False))
    document = study.doc
    found = diff(document, None, 1, len(document.data["stages"]) - 1)
    assert len(found.match) == len(document.nodes(1)) and found.summary().startswith(f"{len(found.match)} same")
