"""A module of PyTorch in the notebook: `%graph net --like x`, `%graph model.pt2` and `gdlab.show(net, like=x)`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch_standin
from IPython.core.interactiveshell import InteractiveShell
from pt2_files import FIXTURES
from shells import run_for_text

from gdlab.__main__ import main


@pytest.fixture
def shell(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    torch = torch_standin.install(monkeypatch)
    with np.load(FIXTURES / "mlp.npz") as held:
        fed = {"x": held["in.x"], "t": held["in.target"]}
    shell.push({"net": torch.nn.Module(), "number": 3, **fed})
    return shell


def test_a_module_opens_as_a_study_that_trains(shell: InteractiveShell) -> None:
    text, outputs = run_for_text(shell, "%graph net --like x,t --train --device cpu")
    assert "net_graph = the study of net" in text and len(outputs) == 1
    study = shell.user_ns["net_graph"]
    assert study.train and study.graph.num_user_outputs == 2
    study.session.set_input("x", shell.user_ns["x"])
    study.session.set_input("target", shell.user_ns["t"])
    study.step()
    with np.load(FIXTURES / "mlp.npz") as held:
        assert study.session.read_loss() == pytest.approx(float(held["out.0"]), rel=1e-4)
    assert any("after eval()" in note for note in study.notes)
    text, outputs = run_for_text(shell, "import gdlab; gdlab.show(net, like=(x, t), depth=0)")
    assert len(outputs) == 1, text


def test_a_file_opens_in_a_notebook_and_on_the_command_line(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(FIXTURES / "block.pt2", tmp_path / "my-block.pt2")
    text, outputs = run_for_text(shell, f"%graph {tmp_path / 'my-block.pt2'}")
    assert "my_block = the study of" in text and len(outputs) == 1
    groups = shell.user_ns["my_block"].doc.data["stages"][0]["groups"]
    assert {"layers.0", "layers.1", "attention"} <= set(groups["label"]["words"])
    assert main(["explain", str(tmp_path / "my-block.pt2")]) == 0
    assert "matmul" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "my-block.pt2"), "--dims", "batch=3"]) == 2
    assert "given batch=3, wanted none: all extents of the file are numbers" in capsys.readouterr().err


def test_what_a_module_needs_is_said(shell: InteractiveShell) -> None:
    for line, wanted in (
        ("%graph net", "given a module alone, wanted its example inputs: %graph net --like x"),
        ("%graph net --like y", "--like: given y, wanted a variable of this notebook"),
        ("%graph number --like x", "--like: given number, wanted a PyTorch module of this notebook"),
        ("import gdlab; gdlab.show(net)", "wanted the module's inputs: show(net, like=x)"),
        ("import gdlab; gdlab.show(3, like=x)", "wanted a module of PyTorch with it"),
        ("%%graph cell --like x\ng", "--like: given a cell, wanted %graph NET --like X"),
    ):
        text, outputs = run_for_text(shell, line)
        assert wanted in text and not outputs, text
