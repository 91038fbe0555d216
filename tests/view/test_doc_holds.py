"""Documents hold: what breaks them is told, the same input gives the same bytes, runs and columns come back."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from documents import STAGES, checked
from places import HELPERS

import gdlab.view.document.make as doc_module
from gdlab.base.errors import CompileError, UnknownNameError
from gdlab.op.machines import Machine, keep_machine
from gdlab.study.study import Study
from gdlab.view.document.closure import problems
from gdlab.view.document.columns import column, ragged, ragged_words, sparse, words
from gdlab.view.document.document import Document, canonical
from gdlab.view.document.make import decimated, study_doc


# what breaks ---------------------------------------------------------------------------------------------------------
def broken(document: Document, change: Any) -> tuple[str, ...]:
    data = copy.deepcopy(document.data)
    change(data)
    return problems(data)


def link_of(data: dict[str, Any], a: str, b: str) -> dict[str, Any]:
    return next(x for x in data["links"] if (x["a"], x["b"]) == (a, b))


def unlink(data: dict[str, Any], a: str, b: str) -> None:
    one = link_of(data, a, b)
    for way in ("out", "back"):
        one[way] = {"start": [0] * len(one[way]["start"]), "ids": []}


def test_each_rule_finds_its_breach(mlp: Document) -> None:
    def twist(data: dict[str, Any]) -> None:
        link_of(data, "dispatch", "kernel")["back"]["ids"][0] += 1

    def range_(data: dict[str, Any]) -> None:
        link_of(data, "node:0", "node:1")["out"]["ids"][-1] = 99

    def overlap(data: dict[str, Any]) -> None:
        data["plan"]["intervals"]["last_group"] = [9] * data["plan"]["intervals"]["count"]

    def early(data: dict[str, Any]) -> None:
        data["plan"]["dispatches"]["reads"]["ids"][0] = mlp.plan("dispatches")[9]["writes"][0]

    def lose_lines(data: dict[str, Any]) -> None:
        unlink(data, "line", "node:0")

    assert broken(mlp, twist)[0].startswith("dispatch–kernel: ")
    assert broken(mlp, range_) == ("node:0–node:1: rows out of range or out of order",)
    assert broken(mlp, lose_lines)[0] == "dispatch:0: reaches no source line"
    assert broken(mlp, lambda d: unlink(d, "node:0", "node:4"))[0] == "node:0.0: goes nowhere and has no fate"
    assert broken(mlp, lambda d: unlink(d, "node:3", "interval"))[0] == "node:3.0: goes nowhere and has no fate"
    assert broken(mlp, lambda d: unlink(d, "dispatch", "interval"))[0].endswith("nobody writes it")
    assert "nothing has written" in broken(mlp, early)[0]
    assert broken(mlp, lambda d: d["plan"]["kernels"].update(boilerplate={}))[0] == (
        "wgsl:0.1: has no node and is no boilerplate"
    )
    assert "while both live" in broken(mlp, overlap)[0]


def test_a_document_that_breaks_a_rule_is_shown_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc_module, "problems", lambda data, own_links: ("dispatch:3: reaches no source line",))
    (note,) = Study(networks.mlp(), device="cpu").doc.data["notes"]
    assert note["level"] == "warning" and note["text"].endswith("dispatch:3: reaches no source line")


def test_without_a_plan_the_rest_is_shown_and_the_reason_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise CompileError("compile", "tensor", "f32[9], 36 bytes", "at most 4 bytes", node=2)

    monkeypatch.setattr("gdlab.session.stages.compile_graph", refuse)
    document = checked(Study(networks.mlp(), train=True, device="cpu", name="big").doc)
    assert document.data["plan"] is None and [s["key"] for s in document.data["stages"]] == STAGES
    (note,) = document.data["notes"]
    assert note["text"].startswith("compile: tensor: given f32[9]") and note["about"] == "node:4.2"
    assert document.data["summary"].startswith("graph big: 14 nodes")


# stable and canonical ------------------------------------------------------------------------------------------------
SCRIPT = """
import sys, networks
from gdlab.study.study import Study
study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
study.run(2, feed="random:0", adam=1e-3, init=0)
sys.stdout.buffer.write(study.doc.portable(timeless=True).json())
"""


def test_the_same_bytes_in_every_process() -> None:
    def run(seed: str) -> bytes:
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HELPERS)}
        return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, check=True).stdout

    first, second = run("1"), run("2")
    assert len(first) > 50_000 and first == second


def test_the_id_is_of_the_content_alone(trained: Study, mlp: Document) -> None:
    made = (("other", 64), ("mlp", 64), ("mlp", 32))
    again, bare, moved = (
        study_doc(Study(networks.mlp(batch), train=True, device="cpu", name=name)) for name, batch in made
    )
    assert again.data["passes"][0]["seconds"] != mlp.data["passes"][0]["seconds"]
    assert again.id == bare.id != moved.id
    assert mlp.with_view({"show": ["plan"]}).id == mlp.id and len(mlp.id) == 16


def test_an_update_is_content_and_steps_are_not() -> None:
    study = Study(networks.mlp(), train=True, device="cpu")
    ids = [study.doc.id]
    for act in (lambda: study.prepare(feed="random:0", adam=1e-3, init=0), lambda: study.run(2), study.close):
        act()
        ids.append(study.doc.id)
    assert ids[0] != ids[1] == ids[2] and ids[3] == ids[0]


def test_timeless_zeroes_what_was_measured_alone(mlp: Document) -> None:
    data = mlp.portable(timeless=True).data
    report = data["passes"][0]["report"]
    assert data["passes"][0]["seconds"] == report["egglog_time"] == report["extract_time"] == 0
    assert {r["seconds"] for r in report["rules"]} == {0} and data["stages"][0]["layouts"]["auto"]["seconds"] == 0
    assert data["stages"][0]["nodes"]["cost_seconds"] == mlp.data["stages"][0]["nodes"]["cost_seconds"]
    assert data["passes"][0]["steps"] == mlp.data["passes"][0]["steps"] and "study" not in data


def test_the_machine_that_predicts_is_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of this machine are kept between two documents: the same study, the same file where no time is wanted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    study = Study(networks.mlp(), device="cpu")
    nominal = study.doc
    keep_machine(Machine(1e-6, 1e9, 1e10, f"cpu, {study.device.info.name}"))
    kept = study.doc
    names = [each.data["plan"]["machine"]["name"] for each in (nominal, kept, kept.portable(timeless=True))]
    assert names == ["nominal", f"cpu, {study.device.info.name}", "nominal"]
    assert kept.id == nominal.id and kept.portable(True).json() == nominal.portable(True).json()


def test_canonical_json() -> None:
    value = {"b": [1, 2.5], "a": {"z": float("nan"), "y": [float("inf"), -float("inf")]}, "ü": "\ud800x"}
    assert canonical(value) == '{"a":{"y":["inf","-inf"],"z":"nan"},"b":[1,2.5],"ü":"?x"}'.encode()


def test_it_is_plain_json_and_its_caches_are_not_shared(trained: Study, mlp: Document) -> None:
    assert json.loads(mlp.json()) == mlp.data
    first, second = study_doc(trained), study_doc(trained)
    assert first.json() == second.json()


# runs ----------------------------------------------------------------------------------------------------------------
def test_a_run_is_told(trained: Study, mlp: Document) -> None:
    (run,) = mlp.data["runs"]
    assert run["loss"] == [[step, loss] for step, loss in trained.runner.losses] and len(run["loss"]) == 3
    assert run["counters"]["dispatches"] == 3 * (len(trained.plan.dispatches) + 4) and run["counters"]["steps"] == 3
    assert run["memory"]["text"] == trained.session.memory_summary().text and not run["truncated"]
    assert mlp.data["study"] == trained.key and mlp.data["rev"] == trained.rev


def test_long_runs_keep_their_extremes() -> None:
    rng = np.random.default_rng(0)
    points = [(i, float(v)) for i, v in enumerate(rng.normal(size=50_001))]
    kept = decimated(points, 20_000)
    assert len(kept) <= 20_000 and kept == sorted(kept) and kept[-1] == points[-1]
    values = [v for _, v in kept]
    assert min(values) == min(v for _, v in points) and max(values) == max(v for _, v in points)
    assert decimated(points[:20_000], 20_000) == points[:20_000]


# columns -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (["a", "b", "a"], ["a", "b", "a"]),
        (words(["a", "b", "a"]), ["a", "b", "a"]),
        (ragged([[1, 2], [], [3]]), [[1, 2], [], [3]]),
        (ragged_words([["x", "y"], [], ["y"]]), [["x", "y"], [], ["y"]]),
        (sparse(["", "b", ""], ""), ["", "b", ""]),
        (None, ["", "", ""]),
    ],
)
def test_every_form_of_a_column_reads_alike(raw: Any, expected: list[Any]) -> None:
    assert column(raw, 3, "") == expected


def test_packed_forms() -> None:
    assert words(["a", "b", "a"]) == {"words": ["a", "b"], "index": [0, 1, 0]}
    assert ragged_words([["x", "y"], ["y"]]) == {"start": [0, 2, 3], "ids": [0, 1, 1], "words": ["x", "y"]}
    assert sparse([-1, 4, -1], -1) == {"1": 4}


def test_records_fill_in_what_is_absent(mlp: Document) -> None:
    record = mlp.nodes("written")[0]
    assert record["twin"] == -1 and record["after"] == [] and record["fate"] is None
    assert mlp.nodes("written")[13]["group"] == -1, "the loss is computed outside the helper function"
    with pytest.raises(IndexError, match="row 99 of"):
        mlp.nodes("written")[99]
    with pytest.raises(UnknownNameError, match="stage: given finale, wanted one of written, .*nearest: final"):
        mlp.nodes("finale")
