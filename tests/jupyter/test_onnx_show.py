"""An ONNX file in the notebook: `%graph model.onnx` and `gdlab.show` open it as a study with its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from onnx import helper
from onnx_models import model
from safetensors.numpy import save_file
from shells import run

import gdlab as gd
from gdlab.jupyter.display import MIME

W = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = tmp_path / "my-net.onnx"
    path.write_bytes(model(nodes, {"x": np.ones((4, 3), np.float32)}, {"w": W}, ["y"]))
    return path


def test_a_model_opens_as_a_study_with_its_weights(shell: InteractiveShell, file: Path) -> None:
    out, error = run(shell, f"%graph {file}")
    assert error is None and "my_net = the study of" in out.stdout
    study = shell.user_ns["my_net"]
    (shown,) = out.outputs
    assert shown.data[MIME]["study"] == study.key and shown.data["text/plain"].startswith("graph my_net: ")
    np.testing.assert_array_equal(study.feeds()["w"], W)
    np.testing.assert_array_equal(study.session.read_param("w"), W)
    study.session.set_input("x", np.ones((4, 3)))
    study.step()
    np.testing.assert_allclose(study.session.read_output(), np.ones((4, 3)) @ W)
    np.testing.assert_array_equal(study.variant("other", device="cpu").session.read_param("w"), W)
    again, error = run(shell, f"%graph {file} --show plan")
    assert error is None and shell.user_ns["my_net"] is not study and study.execution.opened is not None
    run(shell, "my_net = 3")
    out, error = run(shell, f"%graph {file}")
    assert error is None and shell.user_ns["my_net"] == 3 and out.stdout == ""


def test_safetensors_beside_a_model_have_the_last_word(shell: InteractiveShell, file: Path) -> None:
    beside = file.with_suffix(".safetensors")
    save_file({"w": W + 10, "other": W}, beside)
    for path in (file, beside):
        shell.user_ns.pop("my_net", None)
        assert run(shell, f"%graph {path}")[1] is None
        np.testing.assert_array_equal(shell.user_ns["my_net"].feeds()["w"], W + 10)
    save_file({"w": W.T.copy()}, beside)
    out, error = run(shell, f"%graph {file}")
    assert "my-net.safetensors: tensor 'w': given [2, 3], wanted [3, 2], as in my-net.onnx" in str(error)


def test_what_is_no_model_is_said_in_one_line(shell: InteractiveShell, file: Path) -> None:
    file.write_bytes(b"\xff" * 40)
    _, error = run(shell, f"%graph {file}")
    assert "load_onnx: model: given 40 bytes" in str(error)
    _, error = run(shell, f"%graph {file.with_name('none.onnx')}")
    assert "none.onnx: given no such file, wanted" in str(error)


def test_show_takes_a_model(shell: InteractiveShell, file: Path) -> None:
    with capture_output() as out:
        gd.show(str(file), static=True)
        gd.show(file, show="plan")
    assert [o.data["text/plain"].startswith("graph my_net: ") for o in out.outputs] == [True, True]
    with pytest.raises(gd.LoadError):
        gd.show(file.with_name("none.onnx"))
