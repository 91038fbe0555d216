"""Files of models that are broken as a stranger would: refused by name, in time, in memory, in a few lines."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clock import seconds_here
from machine import needs
from onnx import TensorProto, helper
from onnx_models import N, model
from pretrained_folders import YARN, folder_of

import gdlab as gd
from gdlab.models import from_pretrained

X = {"x": np.ones((2, 3), np.float32)}


def onnx(nodes: list[Any], **held: np.ndarray) -> Callable[[Path], Any]:
    return lambda folder: gd.load_onnx(model(nodes, X, held, ["y"]))


def outside(location: str, **fields: str) -> Callable[[Path], Any]:
    """A tensor whose elements are said to lie in another file."""

    def load(folder: Path) -> Any:
        (folder / "beside.bin").write_bytes(bytes(12))
        if location == "link.bin":
            needs("posix")
            (folder / location).symlink_to("/etc/hostname")
        tensor = TensorProto(name="w", data_type=1, dims=[3], data_location=1)
        for key, value in ({"location": location} | fields).items():
            tensor.external_data.add(key=key, value=value)
        typed = helper.make_tensor_value_info("x", 1, [2, 3]), helper.make_tensor_value_info("y", 1, None)
        graph = helper.make_graph([N("Add", ["x", "w"], ["y"])], "g", typed[:1], typed[1:], [tensor])
        path = folder / "m.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
        return gd.load_onnx(path)

    return load


def branches(depth: int) -> Any:
    inner = [N("Relu", ["x"], ["y"])] if not depth else [
        N("If", ["c"], ["y"], then_branch=branches(depth - 1), else_branch=branches(0))]  # fmt: skip
    return helper.make_graph(inner, "b", [], [helper.make_tensor_value_info("y", 1, None)])


def step(nodes: list[Any]) -> Any:
    """The body of a loop that carries v."""
    ends = [N("Identity", ["go"], ["on"])]
    inputs = [helper.make_tensor_value_info(n, kind, []) for n, kind in (("i", 7), ("go", 9))]
    value, made, on = (helper.make_tensor_value_info(n, kind, None) for n, kind in (("v", 1), ("v2", 1), ("on", 9)))
    return helper.make_graph(nodes + ends, "s", [*inputs, value], [on, made])


def pt2(entry: str, edit: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """The perceptron's archive with another JSON in an entry that ends so."""

    def load(folder: Path) -> Any:
        path = folder / "m.pt2"
        with zipfile.ZipFile(Path(__file__).parent / "pt2/mlp.pt2") as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                new.writestr(name, edit(json.loads(data)) if name.endswith(entry) else data)
        return gd.load_pt2(path)

    return load


def nodes_of(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"]


def first_takes(argument: Any) -> Callable[[Any], str]:
    def edit(program: Any) -> str:
        nodes_of(program)[0]["inputs"][0]["arg"] = argument
        return json.dumps(program)

    return edit


def reversed_nodes(program: Any) -> str:
    nodes_of(program).reverse()
    return json.dumps(program)


def config(text: str | None = None, **fields: Any) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        home = folder_of("llama 2", folder / "m", **fields)
        if text is not None:
            (home / "config.json").write_text(text)
        return from_pretrained(home)

    return load


def safetensors(header: bytes, data: bytes = bytes(8)) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        path = folder / "m.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return gd.load_safetensors(path)

    return load


def looped(folder: Path) -> Any:
    needs("posix")
    (folder / "m.safetensors").symlink_to("m.safetensors")
    return gd.load_safetensors(folder / "m.safetensors")


def nnef(line: str) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        text = f"version 1.0;\ngraph g(x) -> (y) {{\n x = external(shape=[2,3]);\n {line} }}\n"
        (folder / "graph.nnef").write_text(text)
        return gd.load_nnef(folder)

    return load


ONE = b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}'
CASES: dict[str, Callable[[Path], Any]] = {  # what the refusal says -> the file
    "Relu (b): input 'a': given nothing": onnx([N("Relu", ["a"], ["b"]), N("Relu", ["b"], ["a"])]),
    "OneHot (y): constant: given [2, 3, 1073741824], wanted at most": onnx(
        [N("OneHot", ["x", "d", "v"], ["y"])], d=np.array(1 << 30), v=np.array([0, 1], np.float32)),
    "wanted at most 2,097,152 elements": onnx(
        [N("Range", ["a", "b", "c"], ["r"]), N("Add", ["x", "r"], ["y"])],
        **{n: np.float32(v).reshape(()) for n, v in {"a": 0, "b": 1e30, "c": 1e-30}.items()}),
    "Resize (y): scales or sizes: given (nan, inf)": onnx(
        [N("Resize", ["x", "", "s"], ["y"], mode="linear")], s=np.array([np.nan, np.inf], np.float32)),
    "steps: given [0], [2], [0], [0]": onnx(
        [N("Slice", ["x", "a", "b", "a", "a"], ["y"])], a=np.array([0]), b=np.array([2])),
    "graphs: given If: a graph in graphs, wanted at most 16": onnx(
        [N("If", ["c"], ["y"], then_branch=branches(20), else_branch=branches(0))], c=np.array(True)),
    "Loop (y): a loop of more than 512 steps": onnx(
        [N("Loop", ["m", "", "x"], ["y"], body=step([N("Relu", ["v"], ["v2"])]))], m=np.array(2**62)),
    "nodes: given more than 16,384, wanted fewer, branches and loops written out": onnx(
        [N("Loop", ["m", "", "x"], ["y"], body=step([N("Relu", ["v"], ["v2"])] + [
            N("Identity", ["v"], [f"i{k}"]) for k in range(200)]))], m=np.array(500)),
    "given '../../etc/passwd', wanted a file beside": outside("../../etc/passwd"),
    "given 'link.bin', wanted a file beside": outside("link.bin"),
    "given 12 bytes at -8, wanted 12 bytes at 0": outside("beside.bin", offset="-8", length="12"),
    "input: given (Tensor(shape=..., ": pt2("model.json", first_takes({"as_tensors": [{"name": "x"}] * 15_000})),
    "given nothing, wanted an input, a tensor, or what a node before it gives": pt2("model.json", reversed_nodes),
    "given JSON nested too deeply": pt2("model.json", lambda program: "[" * 100_000 + "]" * 100_000),
    "config.json: layers: given 512, wanted at most 21": config(num_hidden_layers=512, hidden_size=1 << 24),
    "config.json: given ValueError": config('{"model_type": "llama", "vocab_size": ' + "9" * 6000 + "}"),
    "wanted factors in 10^-6": config(rope_scaling={"rope_type": "linear", "factor": 1e-300}),
    "attention_factor': nan}, wanted a finite number": config(rope_scaling=YARN | {"attention_factor": float("nan")}),
    "number out of range": safetensors(ONE % (b"9" * 5000)),
    "recursion limit exceeded": safetensors(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "Too many levels of symbolic links": looped,
    "label: given '../../etc/passwd'": nnef('w = variable(shape=[2,3], label="../../etc/passwd"); y = add(x, w);'),
    "wanted lists in lists, 8 deep": nnef("y = relu(" + "[" * 50_000 + "x" + "]" * 50_000 + ");"),
    "add (y): given z": nnef("y = add(x, z); z = relu(y);"),
}  # fmt: skip


@pytest.mark.parametrize("message", CASES)
def test_it_is_refused_by_name_in_time_and_in_memory(message: str, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    gd.load_onnx(model([N("Relu", ["x"], ["y"])], X, {}, ["y"]))  # what is imported at first use is not counted
    began = time.process_time()
    with pytest.raises(gd.GdlabError):
        CASES[message](tmp_path / "first")
    seconds = time.process_time() - began  # not of the second call: counting memory takes three times as long
    tracemalloc.start()
    try:
        with pytest.raises(gd.GdlabError) as refused:
            CASES[message](tmp_path / "second")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = str(refused.value)
    assert message in said and len(said) < 900 and said.count("\n") < 10
    files = sum(p.stat().st_size for p in (tmp_path / "second").rglob("*.*") if p.is_file())
    assert seconds < seconds_here(2) and peak < (64 << 20) + 4 * files


def test_a_file_is_read_into_as_much_memory_as_it_has_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([N("Add", ["x", "w"], ["y"])], X, {"w": np.ones(3, np.float32)}, ["y"]))
    tracemalloc.start()
    try:
        assert len(gd.load_onnx(path).weights) == 1
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
