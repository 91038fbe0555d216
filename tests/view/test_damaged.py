"""Documents that were damaged on their way: one `LoadError` with file and reason, never a traceback of gdlab's own."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import pytest
from matrix import count

import gdlab as gd
from gdlab.__main__ import main
from gdlab.study.study import Study
from gdlab.view.picture.picture import picture
from gdlab.view.text.twin import twin

Data = dict[str, Any]


@pytest.fixture(scope="module")
def data() -> Data:
    return json.loads(Study(networks.transformer(1), train=True, device="cpu", name="t").doc.json())  # type: ignore[no-any-return]


DAMAGE: dict[str, Callable[[Data], Any]] = {
    "types: null": lambda d: d.update(types=None),
    "stages: a number": lambda d: d.update(stages=3),
    "an input out of range": lambda d: d["stages"][0]["nodes"]["inputs"]["ids"].__setitem__(0, 10**6),
    "a type out of range": lambda d: d["types"].update(count=1),
    "a short column": lambda d: d["stages"][1]["nodes"].update(op=["matmul"]),
    "a longer table": lambda d: d["plan"]["dispatches"].update(count=10**4),
    "a table of less than nothing": lambda d: d["plan"]["slots"].update(count=-4),
    "a kernel that is not there": lambda d: d["plan"]["kernels"].update(count=0),
    "an output of no node": lambda d: d["stages"][0]["outputs"].update(node=[10**6]),
    "links: texts": lambda d: d.update(links=["node"]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_error_with_file_and_reason(data: Data, kind: str, tmp_path: Path) -> None:
    broken = copy.deepcopy(data)
    DAMAGE[kind](broken)
    file = tmp_path / "lesson.gdlab.json"
    file.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(gd.LoadError, match=r"^document lesson\.gdlab\.json: content: .+ an undamaged document"):
        gd.load_doc(file)


def spoiled(data: Data, seed: int) -> Data:
    """A copy with one value, deep inside, gone or replaced."""
    chance, broken = random.Random(seed), copy.deepcopy(data)
    at: Any = broken
    for _ in range(chance.randint(1, 7)):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = chance.choice(keys)
        if not isinstance(at[key], (dict, list)) or not at[key]:
            break
        parent, at = at, at[key]
    else:
        at = parent
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = chance.choice(keys)
    if chance.random() < 0.3 and isinstance(at, dict):
        del at[key]
    else:
        at[key] = chance.choice([None, -7, 10**9, "x", [], {}, 0.5])
    return broken


@pytest.mark.parametrize("seed", range(count(30, 60)))
def test_what_is_read_can_be_told_or_is_refused(data: Data, seed: int, tmp_path: Path) -> None:
    file = tmp_path / "a.gdlab.json"
    file.write_text(json.dumps(spoiled(data, seed)), encoding="utf-8")
    try:
        document = gd.load_doc(file)
        for view in ("graph", "opt", "grad", "plan"):
            twin(document, view)
            picture(document, view)
    except gd.GdlabError as error:
        assert len(str(error).splitlines()) == 1


LATE: dict[str, Callable[[Data], Any]] = {  # read by some views alone
    "a range that is a number": lambda d: d["plan"]["kernels"]["boilerplate"].__setitem__(0, 1.5),
    "a range of three": lambda d: d["plan"]["kernels"]["boilerplate"][0].__setitem__(0, [1, 2, 3]),
    "words of a delta": lambda d: d["passes"][0]["deltas"][0]["added"]["op"].update(words=-1),
    "children of a delta": lambda d: d["passes"][0]["deltas"][0]["added"]["children"]["ids"].__setitem__(0, {}),
}
ASKED = ([], ["--view", "kernels"], ["--view", "egraph"], ["--json"], ["--step", "1"], ["--at", "node:0.3"],
         ["--assert", "dispatches > 0"])  # fmt: skip


@pytest.mark.parametrize("kind", LATE)
def test_explain_tells_of_damage_or_of_what_is_whole(
    data: Data, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, told = copy.deepcopy(data), 0
    LATE[kind](broken)
    file, whole = tmp_path / "broken.gdlab.json", tmp_path / "whole.gdlab.json"
    for path, each in ((file, broken), (whole, data)):
        path.write_text(json.dumps(each), encoding="utf-8")
    for asked in (*ASKED, [str(whole)]):
        status, text = main(["explain", str(file), *asked]), capsys.readouterr().err
        assert status == 0 or "content: " in text and "broken.gdlab.json" in text and len(text.splitlines()) == 1, text
        told += status != 0
    assert told, "some view reads it"
    status = main(["explain", str(whole), str(file)])
    assert status == 0 or "broken.gdlab.json" in capsys.readouterr().err, "the damaged one is named"
