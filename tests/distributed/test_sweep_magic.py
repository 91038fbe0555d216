"""`%graph_sweep`: lists of settings in a line, the sweep bound at once, shown again, completed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networks
import pytest
from shells import complete, run

from gdlab.base.words import sig
from gdlab.distributed.sweep import made_sweep, sweep_of
from gdlab.jupyter.commands import COMMANDS
from gdlab.jupyter.sweeping import rates, seeds
from gdlab.jupyter.widget import Panel
from gdlab.study.study import Study


@pytest.fixture
def study(shell: Any) -> Study:
    made = shell.user_ns["mlp"] = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    return made


def test_a_line_makes_a_sweep(shell: Any, study: Study, tmp_path: Path) -> None:
    line = f"%graph_sweep mlp 20 --feed random:1 --adam 1e-3,1e-2 --init 0:2 --set alias=on,off --store {tmp_path}/runs"
    done, error = run(shell, f"{line} --as found --save {tmp_path}/a.svg")
    assert error is None, error
    found = shell.user_ns["found"]
    assert len(found) == 8 and found.count("done") == 8 and found is sweep_of(study)
    assert found[1].settings == {"adam": 1e-3, "init": 0, "alias": False}
    assert "mlp: 8 of 8 points done; best: adam 0.01, init " in done.stdout
    assert f", loss {sig(found.best().loss)}\n" in done.stdout, "written as in the table"
    assert (
        "image/svg+xml" in done.outputs[0].data and "sweep: 8 points × 20 steps" in done.outputs[0].data["text/plain"]
    )
    assert len(list((tmp_path / "runs").iterdir())) == 8 and (tmp_path / "a.svg").stat().st_size > 1000
    done, error = run(shell, "%graph_sweep mlp --quiet")
    assert error is None and "adam" in done.stdout and done.stdout.count("done") >= 8


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("5 --adam 1e-3,x", "wanted rates > 0"), ("5 --init 3:1", "wanted seeds"), ("5 --set alias", "wanted KEY="),
        ("5 --set tyle=8", "key: given tyle"), ("5 --init 0 --feed random --on nowhere", "--on: given nowhere"),
        ("5 --init 0 --feed random --on mlp", "on: given Study"), ("", "given no steps"), ("5", "grid: given nothing"),
    ],
)  # fmt: skip
def test_a_bad_line_is_one_red_line(shell: Any, study: Study, rest: str, said: str) -> None:
    done, error = run(shell, f"%graph_sweep mlp {rest}")
    assert said in f"{done.stderr}{done.stdout}{error}"


def test_values_and_completion(shell: Any, study: Study) -> None:
    assert rates("1e-4:1e-1:4") == [1e-4, 1e-3, 1e-2, 1e-1] and seeds("2:5") == [2, 3, 4] and seeds("7") == [7]
    assert {"--adam", "--on", "--store"} <= set(complete("%graph_sweep mlp 10 --", shell.user_ns))
    assert "mlp" in complete("%graph_sweep m", shell.user_ns)
    assert complete("%graph_sweep mlp 10 --on l", shell.user_ns) == ["local"]


def test_the_page_hears_of_a_sweep_and_commands_it(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames while it runs at most every quarter of a second; the last one has the end."""
    sent: list[Any] = []
    monkeypatch.setattr(Panel, "_send", lambda self, message, buffers=None: sent.append(message))
    panel = Panel(study)
    panel.show(study.doc)
    sweep = made_sweep(study, {"sgd": [0.1, 0.2], "init": [0]}, steps=5, feed="random:1")
    panel.report(10.0)
    first = [m for m in sent if type(m).__name__ == "Sweep"]
    assert [point["state"] for point in first[-1].section["points"]] == ["waiting", "waiting"]
    assert panel.document.data["sweep"]["key"] == sweep.key
    COMMANDS["sweep"](study, {"do": "stop_point", "point": 1})
    sweep.run()
    panel.report(10.1)
    last = [m for m in sent if type(m).__name__ == "Sweep"][-1].section
    assert last["state"] == "done" and [point["state"] for point in last["points"]] == ["done", "done"]
    name = COMMANDS["sweep"](study, {"do": "open", "point": 0})
    assert name == {"name": "point 0: sgd 0.1, init 0"} and name["name"] in study.variants
    for bad in ({"do": "open", "point": 9}, {"do": "open"}, {"do": "dance"}):
        with pytest.raises((ValueError, KeyError)):
            COMMANDS["sweep"](study, bad)
    panel.close()
