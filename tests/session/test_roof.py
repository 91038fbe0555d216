"""Measured against predicted: the roofline of a dispatch, its verdict in words, the times in documents and texts; what
the plan did not fuse; what sharing saves and what is alive at the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import networks
import pytest
from documents import checked, doc_of

from gdlab import CompileOptions
from gdlab.base.words import cell, nbytes
from gdlab.op.machines import Machine, keep_machine
from gdlab.session.roof import bound, known_machine, machine_of, machine_words, predicted, verdict
from gdlab.study.study import Study
from gdlab.view.document.columns import column
from gdlab.view.document.document import load_doc
from gdlab.view.document.runs import times_of
from gdlab.view.text.plan_text import at_peak, own_lines, reuse_words
from gdlab.view.text.twin import twin

MACHINE = Machine(1e-6, 1e9, 1e10, "cpu, test")


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    made = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    made.prepare(feed="random:0", adam=1e-3, init=0)
    made.run(2)
    made.trace(3)
    yield made
    made.close()


def dispatch(study: Study, read: int, written: int, flops: int):  # type: ignore[no-untyped-def]
    return replace(study.plan.dispatches[0], bytes_read=read, bytes_written=written, flops=flops)


def test_the_roofline_by_hand(study: Study) -> None:
    moves, counts, little = dispatch(study, 3000, 1000, 10), dispatch(study, 8, 8, 10**6), dispatch(study, 8, 8, 8)
    assert predicted(MACHINE, moves) == pytest.approx(1e-6 + 4000 / 1e9) and bound(MACHINE, moves) == "memory"
    assert predicted(MACHINE, counts) == pytest.approx(1e-6 + 1e6 / 1e10) and bound(MACHINE, counts) == "compute"
    assert predicted(MACHINE, little) == pytest.approx(1e-6 + 16e-9) and bound(MACHINE, little) == "launch"
    assert verdict(MACHINE, moves, 10e-6) == "memory-bound, 50 % of the roof"
    assert verdict(MACHINE, counts, 404e-6) == "compute-bound, 25 % of the roof"
    assert verdict(MACHINE, little, 1e-9) == "launch-bound, over 100 % of the roof"
    assert verdict(MACHINE, little, 1.0) == "launch-bound, under 1 % of the roof"


def test_the_machine_is_the_measured_one_or_said_to_be_nominal(study, tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = "a nominal machine (3 µs per launch, 1 TB/s, 20 TFLOP/s): "
    assert machine_words(known_machine(study.device)).startswith(told)
    info = study.device.info
    keep_machine(replace(MACHINE, name=f"{info.kind}, {info.name}"))
    assert machine_of(study.device).launch_seconds == 1e-6
    told = f"{info.kind}, {info.name} (1 µs per launch, 1 GB/s, 10 GFLOP/s)"
    assert machine_words(known_machine(study.device)) == told


def test_profile_document_and_text_say_the_same(study: Study, tmp_path) -> None:  # type: ignore[no-untyped-def]
    profile, document = study.session.last_profile, doc_of(study)
    assert profile is not None and study.session.step_count == 2, "steps that are timed do not count"
    machine = machine_of(study.device)
    dispatches = (*study.plan.dispatches, *study.session.update_dispatches())
    assert [d.predicted for d in profile.dispatches] == [predicted(machine, d) for d in dispatches]
    assert [d.verdict for d in profile.dispatches] == [
        verdict(machine, d, p.median) for d, p in zip(dispatches, profile.dispatches, strict=True)
    ]
    raw = document.data["runs"][-1]["dispatch_seconds"]
    assert raw["samples"] == 3 and raw["median"] == [d.median for d in profile.dispatches]
    assert column(raw["verdict"], len(dispatches), "") == [d.verdict for d in profile.dispatches]
    text = twin(document, "plan")
    for k, d in enumerate(profile.dispatches):
        row = next(line for line in text.splitlines() if line.split()[:1] == [f"dispatch:{k}"])
        assert row.endswith(f"{cell(d.predicted * 1e6)}  {d.verdict}") and f"  {cell(d.median * 1e6)}  " in row
    assert f"median of 3 steps; predicted by the roofline of {profile.machine}" in text
    first = profile.dispatches[0]
    assert cell(first.median * 1e6) in str(profile) and first.verdict in str(profile)
    assert f"dispatches 0, {cell(first.median * 1e6)} µs; " in twin(document, "kernels")
    timeless = checked(load_doc(document.save(tmp_path / "a.gdlab.json", timeless=True)))
    told = twin(timeless, "plan")
    assert times_of(timeless) is None and "median" not in told and "µs" not in told.replace(" µs predicted", "")


def test_totals_are_sums_of_their_dispatches(study: Study) -> None:
    document = doc_of(study)
    times, rows = times_of(document), list(document.plan("dispatches"))
    assert times is not None
    lines = {line.split("  ")[1]: line.split() for line in twin(document, "plan").split("total  ")[1].splitlines()}
    for name, own in (("backward", "phase"), ("family update", "family")):
        mine = [k for k, d in enumerate(rows) if d[own] == name.split()[-1]]
        assert len(mine) > 1 and lines[name][-1] == cell(sum(times["median"][k] for k in mine) * 1e6)
        assert str(len(mine)) in lines[name]


def test_times_of_another_update_rule_are_not_shown() -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", adam=1e-3, init=0)
    study.run(1)
    study.trace(1)
    assert times_of(study.doc) is not None
    study.session.set_learning_rate(0.1)  # SGD: other dispatches behind the plan
    assert study.session.last_profile is None and times_of(study.doc) is None
    study.reset()
    study.run(1)
    assert "dispatch_seconds" not in study.doc.data["runs"][0], "an earlier run has no times of the present one"
    study.close()


# why two, what sharing saves, what is alive ---------------------------------------------------------------------------
def test_why_two_dispatches_and_not_one(study: Study) -> None:
    lines, missed = twin(doc_of(study), "plan").splitlines(), study.missed
    assert len(missed) >= 2
    for m in missed:
        told = [line for line in lines if "not fused with " in line and line.endswith(f"(node:3.{m.node})")]
        mine = [d.index for d in study.plan.dispatches if m.node in d.origin]
        assert [line.split()[0] for line in told] == [f"dispatch:{k}" for k in mine] != []


@pytest.mark.parametrize("network", [networks.mlp, lambda: networks.transformer(length=8, width=16, inner=16)])
def test_reuse_saves_what_a_plan_without_it_needs_more(network) -> None:  # type: ignore[no-untyped-def]
    study = Study(network(), train=True, device="cpu", name="net")
    alone = study.variant(compile=CompileOptions(alias=False)).plan.memory
    memory = study.doc.data["plan"]["memory"]
    saved = alone.physical_bytes - study.plan.memory.physical_bytes
    told = f"reuse saves {nbytes(saved)}: without it {nbytes(alone.physical_bytes)}"
    assert saved > 0 and reuse_words(memory) == told
    assert reuse_words(memory) in twin(study.doc, "arena")


@pytest.mark.parametrize("network", [networks.mlp, lambda: networks.transformer(length=8, width=16, inner=16)])
def test_what_is_alive_at_the_peak_adds_up_to_it(network) -> None:  # type: ignore[no-untyped-def]
    study = Study(network(), train=True, device="cpu", name="net")
    study.prepare(feed="random:0", adam=1e-3, init=0)  # its state is alive too
    document = doc_of(study)
    rows = list(document.plan("intervals"))
    found = at_peak(document)
    assert sum(rows[i]["padded"] for i in found) == study.session.totals().peak_bytes
    assert {row["name"] for row in rows if row["kind"] == "state"} <= {rows[i]["name"] for i in found}
    assert [rows[i]["nbytes"] for i in found] == sorted((rows[i]["nbytes"] for i in found), reverse=True)
    text = twin(document, "arena").split("at the peak, ")[1]
    assert text.startswith(f"in group {study.plan.memory.peak_group}: {len(found)} buffers")
    assert [line.split()[0] for line in text.splitlines()[2:]] == [f"interval:{i}" for i in found]
    study.close()


def test_own_lines_are_without_callers(study: Study) -> None:
    document = doc_of(study)
    node = next(i for i, n in enumerate(document.nodes("final")) if n["op"] == "relu")
    lines = own_lines(document, f"node:3.{node}")
    assert lines and all("relu" in source_line(document, line) for line in lines)
    assert len(lines) < sum(e.startswith("line:") for e in document.select(f"node:3.{node}"))


def source_line(document, row: int) -> str:  # type: ignore[no-untyped-def]
    line = document.lines[row]
    source = document.data["sources"][line["source"]]
    return source["text"].split("\n")[line["line"] - source["first_line"]]  # type: ignore[no-any-return]
