"""Runs over engines as views tell them: a row per engine in the session, the reduction among the plan's dispatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import networks
import pytest
from documents import checked
from engines import as_if_run

from gdlab.distributed.allreduce import allreduce_of, keep_prediction
from gdlab.distributed.part import EngineReport, losses_from
from gdlab.distributed.run import _PublishedFigures
from gdlab.distributed.run_record import engines_run_of
from gdlab.distributed.scaling import Scaling
from gdlab.jupyter.widget import Panel
from gdlab.study.study import Study
from gdlab.view.ask.slices import view_slice
from gdlab.view.document.document import load_doc
from gdlab.view.picture.picture import picture
from gdlab.view.text.twin import markdown, twin

HERE = Scaling("net", "cpu", (1, 2, 4), 0.01, 1_000_000, 0.002, 0.003, 1e9, 1e-5, 4, "8Gb/s", "10us")


@pytest.fixture
def study() -> Iterator[Study]:
    made = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    made.prepare(init=0, adam=1e-3, feed="random:1")
    yield made
    made.close()


def test_the_session_has_a_row_per_engine(study: Study, tmp_path: Path) -> None:
    """Times in steps, reduction and waiting, who is late, bytes and losses, in a document that files keep."""
    as_if_run(study)
    document = checked(study.doc)
    section = document.data["runs"][-1]["engines"]
    assert [(r["step_seconds"], r["reduce_seconds"], r["hidden_seconds"], r["wait_seconds"], r["late"])
            for r in section["rows"]] == [(1.0, 0.5, 0, 1.5, False), (2.5, 0.5, 0, 0.0, True)]  # fmt: skip
    assert [(row["nbytes"], row["loss"]) for row in section["rows"]] == [(40_000_000, 0.25), (40_000_000, "nan")]
    text = twin(document, "session")
    assert "on 2 engines, done, 40 of 40 steps, 3 s; late: engine 1" in text
    assert "engine 0 on node0 ended in step 31: started again from step 20" in text
    (first, second) = [line.split() for line in text.splitlines() if " node" in line and "cpu" in line]
    assert [row["share"] for row in section["rows"]] == [[33.3, 16.7, 50.0], [83.3, 16.7, 0.0]]
    assert first == ["0", "node0", "cpu", "40", "1", "s", "500", "ms", "0", "µs", "1.5", "s", "40", "MB", "0.25"]
    assert second[:2] == ["1", "late"] and second[-2:] == ["MB", "NaN"]
    assert twin(load_doc(document.save(tmp_path / "a.gdlab.json")), "session") == text
    assert "engines" not in load_doc(document.save(tmp_path / "b.gdlab.json", timeless=True)).data["runs"][-1]
    study.run(1)
    study.reset()
    assert engines_run_of(study) is None and not any("engines" in run for run in study.doc.data["runs"])


def test_the_plan_has_the_reduction_as_a_dispatch(study: Study, tmp_path: Path) -> None:
    """Between the gradients and the update: bytes, predicted and measured time; a prediction keeps what was measured
    with as many engines."""
    assert "allreduce" not in study.doc.data
    as_if_run(study)
    document = checked(study.doc)
    made, updates = document.data["allreduce"], document.data["plan"]["updates"]
    (bucket,) = made["buckets"]
    assert bucket["before"] == document.plan("dispatches").count - updates > 0
    assert (made["engines"], made["nbytes"], made["measured_seconds"]) == (2, 1_000_000, 0.0125)
    assert made["ring_seconds"] == pytest.approx(1e-3 + 2e-5) and made["read_seconds"] == 0.002
    lines = twin(document, "plan").splitlines()
    (row,) = [line for line in lines if line.strip().startswith("allreduce ")]
    assert "allreduce over 2 engines" in row and row.split()[-2:] == ["1", "MB"]
    assert f"dispatch:{bucket['before']}" in lines[lines.index(row) + 1]
    told = "1 MB of gradients over 2 engines, after every step: predicted 6.02 ms, measured 12.5 ms"
    assert f"  allreduce: {told}" in lines and "link 1 GB/s; latency 10 µs" in "\n".join(lines)
    assert "allreduce over 2 engines" in markdown(document) and view_slice(document, "plan")["allreduce"] == made
    svg = picture(document, "plan")
    assert svg.count("data-allreduce") == 1 and "predicted 6.02 ms, measured 12.5 ms" in svg
    timeless = load_doc(document.save(tmp_path / "b.gdlab.json", timeless=True)).data["allreduce"]
    assert (timeless["nbytes"], timeless["read_seconds"], timeless["measured_seconds"]) == (1_000_000, 0, 0)
    study.run(1)
    study.trace(1)
    timed = twin(study.doc, "plan")
    (row,) = [line for line in timed.splitlines() if line.strip().startswith("allreduce ")]
    assert "12,500" in row and "6,020" in row, row

    keep_prediction(study, HERE, 2)
    assert (again := allreduce_of(study)) is not None and (again.measured, again.accumulate) == (0.0125, 4)
    keep_prediction(study, HERE, 4)
    assert (other := allreduce_of(study)) is not None and (other.engines, other.measured) == (4, None)
    assert "after every 4 steps: predicted 6.56 ms\n" in twin(study.doc, "plan")


def test_each_bucket_of_the_reduction_is_a_row_of_the_plan(study: Study) -> None:
    """Before the dispatches that run beside it; the share that was hidden is no lost time."""
    as_if_run(study, buckets=3)
    document = checked(study.doc)
    made, end = document.data["allreduce"], document.plan("dispatches").count - document.data["plan"]["updates"]
    assert [bucket["before"] for bucket in made["buckets"]] == [end - 2, end - 1, end]
    assert [(b["measured_seconds"], b["hidden_seconds"]) for b in made["buckets"]] == [
        (pytest.approx(0.5 / 3 / 40), 0.0025)] * 2 + [(pytest.approx(0.5 / 3 / 40), 0)]  # fmt: skip
    read_and_write, ring = 0.005 * 333_333 / 1_000_000, 333_333 / 1e9 + 2e-5
    assert made["buckets"][0]["predicted_seconds"] == pytest.approx(read_and_write + ring)
    lines = twin(document, "plan").splitlines()
    names = [line.split()[0] for line in lines if line.split()]
    assert [names[names.index(f"dispatch:{k}") - 1] for k in (end - 2, end - 1, end)] == ["allreduce"] * 3
    assert "allreduce 3 of 3 over 2 engines" in next(line for line in reversed(lines) if " allreduce 3" in line)
    assert "in 3 buckets: predicted 6.02 ms, measured 12.5 ms, 5 ms of it beside the step" in "\n".join(lines)
    assert picture(document, "plan").count("data-allreduce") == 3
    rows = document.data["runs"][-1]["engines"]["rows"]
    assert rows[0]["cells"][5:7] == ["500 ms", "200 ms"] and rows[0]["share"] == [35.7, 10.7, 53.6]


def test_a_run_on_engines_is_live_in_the_panel(study: Study) -> None:
    """While it runs, the session counts as running: steps, losses and rows come from the engines; Stop stops them."""
    run = as_if_run(study, "running")
    panel = Panel(study)
    with panel.lock:
        panel.shown, panel.want_full = False, True  # the reporter leaves it alone
    with study.runner.elsewhere(40, "on 2 engines", run.stop):
        frame = panel._metrics()
        assert (frame.state, frame.reason, frame.step, frame.wanted) == ("running", "on 2 engines", 40, 40)
        assert frame.loss == [[1, 1.0], [40, 0.5]] and frame.engines is not None and len(frame.engines["rows"]) == 2
        run.points.append((41, 0.25))
        panel.want_full = False
        assert panel._metrics().loss == [[41, 0.25]] and not panel.idle
        with pytest.raises(Exception, match="given .* while 0 of 40 are done"):
            study.runner.start(1)
        assert not run.stopping
        study.runner.pause()
        assert run.stopping
    run.state = "stopped"
    assert panel._metrics().state == "ready" and panel._metrics().step == 0
    panel.close()


def test_losses_that_are_published_between_two_looks_are_all_heard(study: Study) -> None:
    """ipyparallel keeps the last value of a key: every report has its losses under a key of its own."""
    record = as_if_run(study)
    record.points, heard, published = [], _PublishedFigures(record), dict[str, object]()
    assert not heard.take([published, {}]) and record.points == []
    for first, losses in ((0, [3.0, 2.0]), (2, [1.0]), (3, [0.5, 0.25])):
        published |= {"report": asdict(EngineReport(step=first)), losses_from(first): losses}
    assert heard.take([published, {}]) and heard.take([published, {}])
    assert record.points == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5), (5, 0.25)]
    again = _PublishedFigures(record)  # engines that began again, from the checkpoint behind the third
    again.take([{losses_from(0): [3.0, 2.0, 1.0]}, {}])
    again.take([{losses_from(0): [3.0, 2.0, 1.0], losses_from(3): [0.5, 0.25, 0.125]}, {}])
    assert record.points[4:] == [(5, 0.25), (6, 0.125)]


def test_an_engine_is_late_above_one_and_a_half_times_the_median(study: Study) -> None:
    """After 20 updates; the median of all engines, of two the faster one; a millisecond more is nothing."""
    record = as_if_run(study)

    def late(*medians: float, losses: int = 20) -> list[bool]:
        record.rows = [replace(record.rows[0], late=False) for _ in medians]
        told = [asdict(EngineReport(median=median, losses=losses)) for median in medians]
        assert _PublishedFigures(record).take([{"report": each} for each in told])
        return [row.late for row in record.rows]

    assert late(0.010, 0.016) == [False, True] and late(0.010, 0.0145) == [False, False]
    assert late(0.010, 0.016, losses=19) == [False, False]
    assert late(0.010, 0.011, 0.012, 0.017) == [False, False, False, False]
    assert late(0.010, 0.011, 0.012, 0.018) == [False, False, False, True]
    assert late(0.0001, 0.0009) == [False, False]
