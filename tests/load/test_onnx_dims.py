"""Extents that an ONNX file leaves open by name: numbers, assumptions, refusals; in Python, magics, shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from onnx import TensorProto, helper
from shells import run

import gdlab as gd
from gdlab.__main__ import main
from gdlab.view.document.make import load_doc

Shape = list[str | int | None]


def sums(**shapes: Shape) -> bytes:
    """One input for each keyword; the output is the sum of them all, each reduced to one number."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    nodes = [helper.make_node("ReduceSum", [n], [f"s_{n}"], keepdims=0) for n in shapes]
    nodes.append(helper.make_node("Sum", [f"s_{n}" for n in shapes], ["y"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def shapes_of(model: gd.OnnxModel) -> list[tuple[int, ...]]:
    return [node.type.shape for node in model.graph.inputs]


def test_a_first_axis_is_one_where_nobody_says_more() -> None:
    model = gd.load_onnx(sums(a=["batch", 3], b=["batch", 2]))
    assert shapes_of(model) == [(1, 3), (1, 2)] and model.assumed == {"batch": 1}
    model = gd.load_onnx(sums(a=["n", 3], b=["m", "seq"]), dims={"seq": 4, "n": 2})
    assert shapes_of(model) == [(2, 3), (1, 4)] and model.assumed == {"m": 1}
    assert gd.load_onnx(sums(a=["n", 3]), dims={"n": 2}).assumed == {}
    model = gd.load_onnx(sums(a=["n", "s"], b=["n", "s"]), shapes={"a": (2, 5)})
    assert shapes_of(model) == [(2, 5), (2, 5)] and model.assumed == {}, "one shape says what the names are"


@pytest.mark.parametrize(("given", "dims", "texts"), [
    ({"a": ["n", "seq"], "b": ["n", "seq", 4]}, {}, ["seq (axis 1 of input 'a', axis 1 of input 'b')", "{'seq': 128}"]),
    ({"a": ["n", "h", "w"]}, {"h": 3}, ["given w (axis 2 of input 'a'), wanted", "--dims w=128"]),
    ({"a": ["n", "h", "w"]}, {}, ["h (axis 1 of input 'a'); w (axis 2", "{'h': 128, 'w': 128}", "--dims h=128,w=128"]),
    ({"ids": ["seq"], "mask": ["n", "seq"]}, {}, ["seq (axis 0 of input 'ids', axis 1 of input 'mask')"]),
])  # fmt: skip
def test_all_other_names_are_listed_with_their_places(given: Any, dims: Any, texts: list[str]) -> None:
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(sums(**given), dims=dims)
    text = str(caught.value)
    assert text.startswith("load_onnx: named extents: given ") and all(each in text for each in texts), text


def test_a_thousand_names_make_a_short_text() -> None:
    with pytest.raises(gd.LoadError) as caught:
        gd.load_onnx(sums(**{f"i{k}": ["n", f"{k}" * 300] for k in range(1000)}))
    assert len(str(caught.value)) <= 4000 and len(caught.value.details) == 1000
    assert "more, wanted a number for each" in str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(sums(a=["batch", "seq"]))
    return path


ASSUMED = "extent batch is assumed to be 1: it is the first axis of an input; --dims batch=1 sets it"


def test_the_magic_takes_numbers_and_the_document_says_what_was_assumed(shell: InteractiveShell, file: Path) -> None:
    assert run(shell, f"%graph {file} --dims seq=128")[1] is None
    study = shell.user_ns["net"]
    assert study.graph.inputs[0].type.shape == (1, 128)
    assert study.doc.data["notes"] == [{"level": "info", "text": ASSUMED, "about": None}]
    saved = file.with_name("net.gdlab.json")
    assert run(shell, f"%graph_save net {saved}")[1] is None and load_doc(saved).data["notes"][0]["text"] == ASSUMED
    assert run(shell, f"%graph {file} --dims batch=2,seq=8")[1] is None
    assert shell.user_ns["net"].graph.inputs[0].type.shape == (2, 8) and not shell.user_ns["net"].doc.data["notes"]
    for line, message in (
        (f"%graph {file}", "seq (axis 1 of input 'a'), wanted a number for each: load_onnx(…, dims={'seq': 128})"),
        (f"%graph {file} --dims seq", "--dims: given seq, wanted NAME=N"),
        (f"%graph {file} --dims seq=0", "wanted NAME=N"), (f"%graph {file} --dims seq=1,seq=2", "wanted NAME=N"),
        (f"%graph {file} --dims sec=1", "dims: given sec, wanted one of batch, seq; nearest: seq"),
        ("%graph net --dims seq=1", "--dims: given net, wanted the name of a file of a model"),
        ("%%graph g --dims seq=1\ninput('x', (2,)) + 1", "--dims: given a cell"),
    ):  # fmt: skip
        assert message in str(run(shell, line)[1]), line


def test_show_takes_numbers(shell: InteractiveShell, file: Path) -> None:
    with capture_output() as out:
        gd.show(file, dims={"seq": 16}, static=True)
    assert "graph net: " in out.outputs[0].data["text/plain"]
    with pytest.raises(gd.LoadError, match="named extents"):
        gd.show(file)
    with pytest.raises(gd.ArgumentError, match="dims: given .*, wanted a file of a model with it"):
        gd.show(gd.load_onnx(file, dims={"seq": 2}).graph, dims={"seq": 2})


def test_the_command_line_explains_a_model(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(file), "--dims", "seq=128"]) == 0
    text = capsys.readouterr().out
    assert "f32[1, 128]" in text and f"info: {ASSUMED}" in text
    assert main(["explain", str(file)]) == 2
    assert "--dims seq=128" in capsys.readouterr().err
    assert main(["explain", str(file), "--dims", "seq"]) == 2
    assert "--dims: given seq, wanted NAME=N" in capsys.readouterr().err
    assert main(["explain", str(file), "--dims", "seq=4", "--assert", "nodes < 9"]) == 0
    assert main(["explain", str(tmp_path / "none.gdlab.json"), "--dims", "seq=4"]) == 2
    assert "wanted an .onnx or .gguf model, or a pretrained one" in capsys.readouterr().err
