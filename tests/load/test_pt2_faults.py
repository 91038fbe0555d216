"""Archives that are damaged, lie or ask for too much: refused soon, with little memory, in a short text."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs
from pt2_files import FIXTURES, Name, entries_of, node, program, zipped

import gdlab as gd

X = np.ones((2, 3), np.float32)
W = np.arange(6, dtype=np.float32).reshape(2, 3)
HELD = {"body.weight": W}
MODEL, CONFIG, WEIGHT = "m/models/model.json", "m/data/weights/model_weights_config.json", "m/data/weights/weight_0"
PATIENCE = float(os.environ.get("GDLAB_PATIENCE", "3"))  # the machine of the tests is shared


def whole() -> dict[str, Any]:
    """The JSON of x + weight."""
    call = node("aten.add.Tensor", {"self": Name("x"), "other": Name("p_body.weight")}, ["y"])
    return program([call], {"x": X}, HELD, ["y"], {"y": X})


Change = Callable[[dict[str, Any], dict[str, Any]], object]


def changed(change: Change) -> bytes:
    """The archive with its program and the list of its weights changed."""
    made = whole()
    entries = entries_of(made, HELD)
    config = json.loads(entries[CONFIG])
    change(made, config["config"])
    return zipped({**entries, MODEL: json.dumps(made).encode(), CONFIG: json.dumps(config).encode()})


def refused(data: bytes) -> str:
    with pytest.raises(gd.LoadError) as caught:
        gd.load_pt2(data)
    text = str(caught.value)
    assert len(text) <= 4000 and text.count("\n") < 40
    return text


def values(made: dict[str, Any]) -> Any:
    return made["graph_module"]["graph"]["tensor_values"]


def weight(config: dict[str, Any]) -> Any:
    return config["body.weight"]["tensor_meta"]


def sizes(made: dict[str, Any], config: dict[str, Any], of: Any) -> None:
    values(made)["p_body.weight"]["sizes"] = of
    weight(config)["sizes"] = of


PROGRAMS: dict[str, tuple[Change, str]] = {
    "weights that do not fit": (lambda m, c: sizes(m, c, [{"as_int": 20}, {"as_int": 3}]), "24 bytes"),
    "elements that overlap": (lambda m, c: weight(c).update(strides=[{"as_int": 0}] * 2) or sizes(
        m, c, [{"as_int": 1 << 20}, {"as_int": 1 << 20}]), "24 bytes"),
    "an offset beyond the end": (lambda m, c: weight(c).update(storage_offset={"as_int": 4}), "24 bytes"),
    "negative strides": (lambda m, c: weight(c).update(strides=[{"as_int": -3}, {"as_int": 1}]), "given -3"),
    "an extent that is NaN": (lambda m, c: sizes(m, c, [{"as_int": float("nan")}]), "sizes: given nan"),
    "an extent that is huge": (lambda m, c: sizes(m, c, [{"as_int": 10**400}]), "sizes: given 1000"),
    "another shape in the graph": (
        lambda m, c: values(m)["p_body.weight"].update(sizes=[{"as_int": 6}]), "as the graph says"),
    "a dtype of quantized numbers": (lambda m, c: weight(c).update(dtype=17), "type 17 of PyTorch"),
    "weights of integers": (lambda m, c: weight(c).update(dtype=4), "int32[2, 3] in the archive"),
    "a missing weight": (lambda m, c: c.clear(), "parameter 'body.weight': given no tensor"),
    "a path that leaves": (lambda m, c: c["body.weight"].update(path_name="../../etc/passwd"), "no entry"),
    "a pickled weight": (lambda m, c: c["body.weight"].update(use_pickle=True), "a class of its own"),
    "dynamic extents": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "s0"}}, {"as_int": 3}]), "s0 (axis 0 of input 'x'; at least 1)"),
    "an open extent of a weight": (lambda m, c: values(m)["p_body.weight"].update(
        sizes=[{"as_expr": {"expr_str": "s0"}}, {"as_int": 3}]), "dynamic ones of p_body.weight"),
    "an extent that calls": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "__import__('os').abort()"}}]), "extent: given \"__import__('os').abort()"),
    "a huge power": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "9**9**9**9"}}]), "extent: given '9**9**9**9'"),
    "a division by 0": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "FloorDiv(4, 0)"}}]), "sums, products and quotients of whole numbers"),
    "an extent in many brackets": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "-" * 999 + "1"}}]), "extent: given '----"),
    "a long extent": (lambda m, c: values(m)["x"].update(
        sizes=[{"as_expr": {"expr_str": "1" * 1001}}]), "an expression of 1,001 characters"),
    "no expression": (lambda m, c: values(m)["x"].update(sizes=[{"as_expr": {"expr_str": "1 +"}}]), "an expression"),
    "an expression of another type": (lambda m, c: values(m)["x"].update(sizes=[{"as_expr": 7}]), "an expression"),
    "a later version": (lambda m, c: m["schema_version"].update(major=99), "version 99"),
    "no graph": (lambda m, c: m["graph_module"].pop("graph"), "graph: given None"),
    "a cycle": (lambda m, c: m["graph_module"]["graph"]["nodes"].insert(
        0, node("aten.add.Tensor", {"self": Name("y"), "other": 1}, ["z"])), "operand 'y': given nothing"),
    "a name twice": (lambda m, c: m["graph_module"]["graph"]["nodes"].append(
        node("aten.relu.default", {"self": Name("x")}, ["y"])), "a name that is taken"),
    "an output from nowhere": (lambda m, c: m["graph_module"]["signature"]["output_specs"].append(
        {"user_output": {"arg": {"as_tensor": {"name": "q"}}}}), "output 'q'"),
    "a buffer that changes": (lambda m, c: m["graph_module"]["signature"]["output_specs"].append(
        {"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "cache"}}), "buffer_mutation of 'cache'"),
    "graphs in graphs without end": (
        lambda m, c: m["graph_module"]["graph"]["nodes"].append(inner(20)), "graphs in graphs"),
    "a constant that is huge": (lambda m, c: m["graph_module"]["graph"]["nodes"].append(
        node("aten.eye.default", {"n": 1 << 20}, ["y2"])) or values(m).update(y2=values(m)["x"]), "elements computed"),
    "constants that are many": (lambda m, c: [(m["graph_module"]["graph"]["nodes"].append(
        node("aten.eye.default", {"n": 1400}, [f"e{i}"])), values(m).update({f"e{i}": {
            **values(m)["x"], "sizes": [{"as_int": 1400}] * 2, "strides": [{"as_int": 1400}, {"as_int": 1}]}}),
        m["graph_module"]["signature"]["output_specs"].append(
            {"user_output": {"arg": {"as_tensor": {"name": f"e{i}"}}}})) for i in range(40)], "while loading"),
}  # fmt: skip


def inner(depth: int) -> dict[str, Any]:
    call = node("higher_order.wrap_with_set_grad_enabled", {}, [])
    graph = {"nodes": [inner(depth - 1)] if depth else [], "tensor_values": {}, "inputs": [], "outputs": []}
    given = {"as_bool": False}, {"as_graph": {"name": "g", "graph": graph}}
    call["inputs"] = [{"name": "", "arg": value} for value in given]
    return call


def test_the_archive_of_these_tests_is_read() -> None:
    loaded = gd.load_pt2(changed(lambda made, config: None))
    np.testing.assert_array_equal(loaded.weights["body.weight"], W)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_that_cannot_be_is_refused(what: str) -> None:
    change, text = PROGRAMS[what]
    assert text in refused(changed(change))


def entries(**changes: bytes) -> dict[str, bytes]:
    names = {"model": MODEL, "config": CONFIG, "weight": WEIGHT}
    return {**entries_of(whole(), HELD), **{names.get(k, k): v for k, v in changes.items()}}


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "no zip": (lambda: b"hello" * 100, "no zip record"), "nothing": (lambda: b"", "no zip record"),
    "half of it": (lambda: zipped(entries())[:-200], "no zip record"),
    "a compressed entry": (lambda: zipped(entries(weight=bytes(1 << 20)), zipfile.ZIP_DEFLATED), "compressed"),
    "a bit in a weight": (lambda: damaged(zipped(entries()), zipped(entries()).index(W.tobytes())), "CRC"),
    "a path that leaves": (lambda: zipped(entries(**{"../evil": b"x"})), "leaves the archive"),
    "no model": (lambda: zipped({"a": b"1"}), "one model"),
    "two models": (lambda: zipped(entries(**{"m/models/b.json": b"{}"})), "m/models/b.json"),
    "JSON without end": (lambda: zipped(entries(model=b"[" * 200_000)), "nested too deeply"),
    "no JSON": (lambda: zipped(entries(model=b"{]")), "the JSON of a graph"),
    "long numbers": (lambda: zipped(entries(model=b"[" + b"1" * 100_000 + b"]")), "the JSON of a graph"),
    "many records": (lambda: zipped(entries(model=b"[" + b"{}," * 3_000_000 + b"{}]")), "a shorter graph"),
    "a list of entries that lies": (
        lambda: zipped(entries())[:-10] + struct.pack("<I", 1 << 31) + zipped(entries())[-6:], "a list of"),
    "many entries": (lambda: zipped({f"{i}" * 40: b"" for i in range(40_000)}), "a list of"),
}  # fmt: skip


@pytest.mark.parametrize("what", ARCHIVES)
def test_an_archive_that_is_damaged_is_refused(what: str) -> None:
    make, text = ARCHIVES[what]
    assert text in refused(make())


# pickles of the older layout ------------------------------------------------------------------------------------------
class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/owned",)


def old(data: bytes) -> bytes:
    """The older layout, with these bytes as the pickle of its weights."""
    with zipfile.ZipFile(FIXTURES / "mlp_old.pt2") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(io.BytesIO(held["serialized_state_dict.pt"])) as weights:
        inside = {name: weights.read(name) for name in weights.namelist()}
    inside[next(n for n in inside if n.endswith("data.pkl"))] = data or next(v for n, v in inside.items() if "pkl" in n)
    return zipped({**held, "serialized_state_dict.pt": zipped(inside)})


PICKLES: dict[str, tuple[bytes, str]] = {
    "a call": (pickle.dumps({"a": Evil()}, 2), "posix.system"), "a number": (pickle.dumps(3, 2), "given int"),
    "a call of another protocol": (pickle.dumps({"a": Evil()}, 4), "posix.system"),
    "a list": (pickle.dumps([1], 2), "EMPTY_LIST"), "a memo of 2³¹": (b"\x80\x02}r\xff\xff\xff\x7f.", "no tensor"),
    "an empty stack": (b"\x80\x02R.", "IndexError"), "no end": (b"\x80\x02}", "pickle"),
    "a text that is longer than the file": (b"\x80\x02X\xff\xff\xff\x7fa.", "ValueError"),
    "a storage of its own": (b"\x80\x02}X\x01\0\0\0a(U\x01atQs.", "SHORT_BINSTRING"),
}  # fmt: skip


@pytest.mark.parametrize("what", PICKLES)
def test_a_pickle_of_anything_but_tensors_is_refused(what: str) -> None:
    data, text = PICKLES[what]
    assert re.search(text.replace("posix", "(posix|nt)"), refused(old(data)))
    gd.load_pt2(old(b""))


# time and memory ------------------------------------------------------------------------------------------------------
CHILD = """
import pathlib, sys, time
import gdlab as gd

def peak():  # bytes at most so far, where the system says so
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)

gd.load_pt2(sys.argv[1])  # everything is imported
for path in sys.argv[2:]:
    start, before = time.process_time(), peak()
    try:
        gd.load_pt2(path)
        print("taken", end=" ")
    except gd.LoadError as error:
        print(str(error).replace(chr(10), " ")[:3000], end=" ")
    print("|", time.process_time() - start, peak() - before)
"""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    needs("posix")
    os.mkfifo(tmp_path / "pipe.pt2")
    with pytest.raises(gd.LoadError, match="a pipe"):
        gd.load_pt2(tmp_path / "pipe.pt2")


def test_archives_that_ask_for_much_are_refused_soon(tmp_path: Path) -> None:
    many = whole()
    relu = node("aten.relu.default", {"self": Name("x")}, ["y"])
    many["graph_module"]["graph"]["nodes"] = [relu] * 70_000
    heavy: list[tuple[bytes, str]] = [
        (zipped(entries(model=json.dumps(many).encode())), "nodes|shorter graph"),
        (zipped(entries(model=b"[" + b"{}," * 3_000_000 + b"{}]")), "a shorter graph"),
        (zipped({f"{i}" * 40: b"" for i in range(30_000)}), "a list of"),
        (old(b"\x80\x02" + b"(" * 2_000_000 + b"."), "data.pkl"), (old(b"\x80\x02" + b"}" * 3_000_000), "at most"),
        (changed(PROGRAMS["constants that are many"][0]), "while loading"),
    ]  # fmt: skip
    paths = []
    for i, (data, _) in enumerate(heavy):
        paths.append(tmp_path / f"{i}.pt2")
        paths[-1].write_bytes(data)
    run = subprocess.run([sys.executable, "-c", CHILD, FIXTURES / "mlp.pt2", *paths], capture_output=True, text=True,
                         timeout=120, check=True)  # fmt: skip
    for line, (data, text) in zip(run.stdout.splitlines(), heavy, strict=True):
        message, _, figures = line.rpartition("|")
        seconds, nbytes = map(float, figures.split())
        assert re.search(text, message), message
        assert seconds < 2 * PATIENCE and nbytes <= (64 << 20) + 4 * len(data), (message, seconds, nbytes)
