"""A pretrained model's folder in the notebook and on the command line: `%graph folder/`, `gdlab.show`, `explain`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from pretrained_folders import PROMPT, folder_of, tensors_of
from shells import run_for_text

import gdlab as gd
from gdlab.__main__ import main

ASSUMED = "a prompt of 64 positions is assumed; --dims length=64 sets it"


def test_a_folder_opens_by_its_modules_with_its_weights(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("qwen3", tmp_path / "Qwen3-0.1")
    assert f"Qwen3_0_1 = the study of {folder}" in run_for_text(shell, f"%graph {folder}/ --dims length={PROMPT}")[0]
    study = shell.user_ns["Qwen3_0_1"]
    groups = study.doc.data["stages"][0]["groups"]
    assert {"layers.0", "layers.1", "self_attn", "mlp"} <= set(groups["label"]["words"])
    assert not study.doc.data["notes"] and study.graph.inputs[0].type.shape == (PROMPT,)
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(study.weights[name], tensors_of("qwen3")[name].T)
    monkeypatch.chdir(tmp_path)
    assert "the study of Qwen3-0.1" in run_for_text(shell, "%graph Qwen3-0.1/")[0]
    assert [note["text"] for note in shell.user_ns["Qwen3_0_1"].doc.data["notes"]] == [ASSUMED]
    for line, message in (
        (f"%graph {folder} --dims seq=4", "--dims: given seq=4, wanted length=N, the positions of a language model"),
        (f"%graph {tmp_path}", "given a folder, wanted the file of a document or model"),
        (f"%graph {folder_of('qwen3', tmp_path / 'bad', model_type='rwkv')}", "model_type: given 'rwkv', wanted one"),
    ):
        assert message in run_for_text(shell, line)[0], line


def test_show_and_explain_take_a_folder(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of("llama 2", tmp_path / "model")
    with capture_output() as out:
        gd.show(folder, dims={"length": 8}, static=True)
    assert "graph model: " in out.outputs[0].data["text/plain"]
    assert main(["explain", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "model.layers.1.mlp.down_proj" in text and f"info: {ASSUMED}" in text
    (folder / "config.json").write_text("{}")
    assert main(["explain", str(folder)]) == 2
    assert "config.json: model_type: given None" in capsys.readouterr().err
