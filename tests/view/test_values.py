"""The values of a run in its document: what is watched and looked at, in JSON, in text, in files, with its limits."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import checked, validator
from networks import small_mlp
from places import REPO

from gdlab import ops
from gdlab.base.statistics import Summary, heat, histogram_bars, summarize
from gdlab.graph import Graph
from gdlab.jupyter import display
from gdlab.study.study import Study
from gdlab.view.document.closure import value_faults
from gdlab.view.document.document import load_doc
from gdlab.view.document.reduced import NO_VALUES, without_growth, without_values
from gdlab.view.document.runs import MOST_VALUES
from gdlab.view.text.twin import twin


def made() -> Study:
    study = Study(small_mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    return study


@pytest.fixture
def study() -> Iterator[Study]:
    study = made()
    study.watch("h", "w1.grad")
    study.run(3)
    study.look("w2")
    yield study
    study.close()


def values(study: Study) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = checked(study.doc).data["runs"][-1]["values"]
    return found


def test_what_is_watched_and_what_was_looked_at(study: Study) -> None:
    h, grad, w2 = values(study)
    assert [v["name"] for v in (h, grad, w2)] == ["h", "w1.grad", "w2"]
    assert [v["about"] for v in (h, grad, w2)] == ["node:0.6", "interval:15", "node:0.7"]
    assert [(v["step"], v["dispatch"], v["place"]) for v in (h, grad, w2)] == [(3, -1, "after step 3")] * 3
    for value, data in ((grad, study.session.read_param_grad("w1")), (w2, study.session.read_param("w2"))):
        want = summarize(data).to_json()
        assert {name: value[name] for name in want} == want and value["shape"] == list(data.shape)
    (interval,) = [i for i, row in enumerate(study.doc.plan("intervals")) if row["name"] == "∂w1"]
    assert grad["about"] == f"interval:{interval}"


def test_a_tensor_whose_memory_others_took_over_is_told_when_a_run_is_over(study: Study) -> None:
    """As its last step left it; where a run stops before its end it was sampled by the clock, and is left out."""
    study.watch("z")
    assert "z" not in [v["name"] for v in values(study)], "nobody has looked in time"
    study.run(2)
    z = next(v for v in values(study) if v["name"] == "z")
    assert z["place"] == "after step 5" and z["mean"] == float(np.mean(study.runner.lookout.watches[3].mean))
    study.break_at("step 7")
    study.run(5)
    assert study.runner.state == "paused" and "z" not in [v["name"] for v in values(study)]


def test_no_step_and_nothing_looked_at_is_no_run() -> None:
    study = made()
    _ = study.session
    assert study.doc.data["runs"] == []
    study.look("w1")
    (run,) = checked(study.doc).data["runs"]
    assert [v["place"] for v in run["values"]] == ["after step 0"] and run["loss"] == []
    study.close()


def test_the_same_run_tells_the_same_and_telling_changes_nothing(study: Study) -> None:
    other = made()
    other.watch("h", "w1.grad")
    other.run(3)
    other.look("w2")
    first = study.doc.portable(timeless=True)
    assert study.doc.portable(timeless=True).json() == first.json()
    assert other.doc.portable(timeless=True).data["runs"] == first.data["runs"]
    other.close()


def test_a_look_is_told_as_it_was_and_a_reset_forgets_it(study: Study) -> None:
    before = values(study)[2]
    study.run(1)
    h, grad, w2 = values(study)
    assert w2 == before and h["step"] == grad["step"] == 4
    study.look("w2", against=None)
    assert values(study)[2]["step"] == 4 != before["step"]
    study.reset()
    study.run(1)
    earlier, now = checked(study.doc).data["runs"]
    assert earlier["values"] == [] and [v["name"] for v in now["values"]] == ["h", "w1.grad"]


def test_at_most_24_and_a_note_says_so() -> None:
    with Graph() as g:
        total = ops.input("x", (4, 4))
        for i in range(30):
            total = total + ops.parameter(f"p{i}", (4, 4))
        g.output(total)
    study = Study(g, device="cpu", name="many")
    study.prepare(feed="random:0", init=0)
    study.watch("p3")
    study.run(1)
    for i in range(30):
        study.look(f"p{i}")
    document = checked(study.doc)
    names = [v["name"] for v in document.data["runs"][-1]["values"]]
    assert names == ["p3", *(f"p{i}" for i in range(7, 30))] and len(names) == MOST_VALUES
    told = [note["text"] for note in document.data["notes"]]
    assert "24 of 30 tensors that were watched or looked at are kept here: the newest" in told
    study.close()


def test_in_files_and_from_them(study: Study, tmp_path: Path) -> None:
    loaded = load_doc(study.save(tmp_path / "g.gdlab.json.gz", timeless=True))
    assert loaded.data["runs"][-1]["values"] == values(study)
    args = [sys.executable, "-m", "gdlab", "explain", str(tmp_path / "g.gdlab.json.gz"), "--view", "session"]
    sliced = subprocess.run([*args, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(sliced.stdout)["runs"] == json.loads(loaded.json())["runs"]
    html = study.save(tmp_path / "g.html").read_text(encoding="utf-8")
    assert values(study)[0]["thumbnail"]["data"] in html


# text -----------------------------------------------------------------------------------------------------------------
def test_the_text_twin_has_bars_and_a_map(study: Study) -> None:
    lines = twin(study.doc, "session").split("\n")
    data = study.session.read_param("w2")
    told = summarize(data)
    at = lines.index("node:0.7 w2 : f32[16, 4], after step 3")
    assert lines[at + 1 : at + 4] == [f"node:0.7   {line}" for line in told.lines()]
    assert lines[at + 4 : at + 17] == [f"node:0.7   {line}" for line in told.picture()] and lines[at + 17] == ""
    assert "\N{MINUS SIGN}" in lines[at + 1] and "-0" not in lines[at + 1]
    only = twin(study.doc, "session", "interval:15").split("\n")
    assert [line for line in only if line.startswith("node:")] == [] and "interval:15 w1.grad : f32[12, 16]" in only[5]


def test_bars_begin_at_zero_and_maps_mark_what_is_not_finite() -> None:
    assert histogram_bars([0, 1, 50, 100]) == "▁▂▅█" and histogram_bars([]) == ""
    data = np.zeros((100, 200), np.float32)
    data[:, 100:], data[99, 0] = 1.0, np.inf
    small = heat(summarize(data).thumbnail)
    assert [len(small), len(small[0])] == [12, 48]
    assert small[0] == "▁" * 24 + "█" * 24 and small[11] == "×" + "▁" * 23 + "█" * 24
    assert heat(summarize(np.arange(4.0)).thumbnail) == ["▁▃▆█"]
    assert summarize(data).picture()[-1] == "▁ 0 … █ 1, × not finite"
    assert summarize(np.array([3.0])).picture() == [] == summarize(np.zeros((0, 3))).picture()


# rules ----------------------------------------------------------------------------------------------------------------
def test_a_value_that_does_not_add_up_is_found(study: Study) -> None:
    sound = json.loads(checked(study.doc).json())
    assert not list(value_faults(sound))

    def broken(change: Any) -> list[str]:
        data = copy.deepcopy(sound)
        change(data["runs"][-1]["values"][0])
        return list(value_faults(data))

    assert broken(lambda v: v.update(about="node:0.99")) == ["node:0.99: a value of run2 is about what is not there"]
    assert broken(lambda v: v.update(nan=1)) == [
        "node:0.6: the histogram of a value does not add up to its 128 elements"
    ]
    short = base64.b64encode(bytes(127)).decode()
    for change in (
        lambda v: v["thumbnail"].update(data=short),
        lambda v: v["thumbnail"].update(data="not base64!"),
        lambda v: v["histogram"].update(counts=[128]),
    ):
        assert broken(change) == ["node:0.6: the thumbnail or histogram of a value has another size than it says"]
    assert study.doc.check() == ()
    sound["runs"][-1]["values"][0].pop("thumbnail")
    assert [e.message for e in validator().iter_errors(sound)] == ["'thumbnail' is a required property"]


def test_values_are_left_out_of_outputs_that_are_too_large(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second, after how the e-graph grew."""
    document = without_growth(study.doc)
    bare = without_values(document)
    assert bare.data["runs"][-1]["values"] == [] and document.data["runs"][-1]["values"] != []
    assert bare.data["notes"][-1]["text"] == NO_VALUES and without_values(bare) is bare
    sizes = [len(display.pack(d.with_view({"show": ["session"], "height": None}))) for d in (document, bare)]
    monkeypatch.setattr(display, "_MAX_PACKED_BYTES", sum(sizes) // 2)
    assert sizes[1] < sizes[0]
    for whole in (document, study.doc):
        told = load(display.bundle(whole, ["session"])[0])
        assert told["runs"][-1]["values"] == [] and told["notes"][-1]["text"] == NO_VALUES


def load(data: dict[str, Any]) -> Any:
    import gzip

    return json.loads(gzip.decompress(base64.b64decode(data[display.MIME]["gz"])))


def test_a_summary_comes_back_from_json() -> None:
    for data in (np.array([np.nan, 1.0]), np.full(3, np.inf), np.arange(12.0).reshape(3, 4), np.zeros((2, 0))):
        told = summarize(data).to_json()
        assert Summary.from_json(json.loads(json.dumps(told, allow_nan=False))).to_json() == told


def test_the_page_knows_every_field(study: Study) -> None:
    text = (REPO / "labextension" / "src" / "live" / "messages.ts").read_text(encoding="utf-8")
    body = text.split("export interface TensorValue {")[1].split("}")[0]
    assert [line.split(":")[0].strip() for line in body.strip().split("\n")] == list(values(study)[0])
