"""Safetensors files of others: every dtype that is read, shards, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gdlab as gd

A = np.array([[1.5, -2, 3], [0.1, 65504, -0.0]], np.float32)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")


def raw(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], header: Any = None, tail: bytes = b"") -> Path:
    """A file written by hand: name → (dtype, shape, bytes)."""
    entries, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(entries if header is None else header(entries)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body + tail)
    return path


def test_float32_float16_and_bfloat16_are_read_exactly(tmp_path: Path) -> None:
    half, brain = A.astype(np.float16), bfloat16(A)
    path = raw(tmp_path / "m.safetensors", {
        "a": ("F32", [2, 3], A.tobytes()), "h": ("F16", [2, 3], half.tobytes()), "b": ("BF16", [3, 2], brain.tobytes()),
        "s": ("F32", [], A.tobytes()[:4]), "i": ("I64", [1], bytes(8)),
    })  # fmt: skip
    model = gd.load_safetensors(path)
    assert list(model) == model.tensor_names() == ["a", "h", "b", "s", "i"] and len(model) == 5
    np.testing.assert_array_equal(model.tensor_f32("a"), A)
    np.testing.assert_array_equal(model.tensor_f32("h"), half.astype(np.float32))
    want = (brain.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(model.tensor_f32("b"), want.reshape(3, 2))
    assert model["b"].dtype == np.float32 and model.tensor_f32("s").shape == () and model["s"] == 1.5
    info = model.tensor_info("b")
    assert (info.shape, info.dtype) == ((3, 2), "BF16")
    swapped = model.tensor_f32_transposed("a")
    np.testing.assert_array_equal(swapped, A.T)
    assert swapped.flags.c_contiguous and np.signbit(swapped[2, 1])
    with pytest.raises(gd.DTypeError, match="tensor 'i': given I64, wanted one of F32, F16, BF16"):
        model.tensor_f32("i")
    with pytest.raises(gd.ShapeError, match=r"tensor 's': given \[\], wanted a matrix"):
        model.tensor_f32_transposed("s")
    with pytest.raises(gd.UnknownNameError, match="one of a, h, b, s, i"):
        model.tensor_f32("w")


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    save_file({"w": A, "v": A[0]}, tmp_path / "m.safetensors", {"format": "pt"})
    model = gd.load_safetensors(str(tmp_path / "m.safetensors"))
    assert sorted(model) == ["v", "w"], "metadata is no tensor"
    np.testing.assert_array_equal(model["w"], A)


def sharded(folder: Path) -> Path:
    save_file({"a": A, "unlisted": A}, folder / "one.safetensors")
    save_file({"b": A + 1}, folder / "two.safetensors")
    index = {"metadata": {}, "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json"


def test_shards_are_found_through_their_index_or_their_folder(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    for path in (index, tmp_path):
        model = gd.load_safetensors(path)
        assert list(model) == ["b", "a", "unlisted"]
        np.testing.assert_array_equal(model["b"], A + 1)
        np.testing.assert_array_equal(model["unlisted"], A)
    save_file({"whole": A}, tmp_path / "model.safetensors")
    assert list(gd.load_safetensors(tmp_path)) == ["whole"]


def test_a_tensor_in_two_shards_is_where_the_index_says(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    save_file({"b": A + 1, "a": A + 2}, tmp_path / "two.safetensors")
    np.testing.assert_array_equal(gd.load_safetensors(index)["a"], A)
    save_file({"b": A + 1, "unlisted": A + 2}, tmp_path / "two.safetensors")
    with pytest.raises(gd.LoadError, match="tensor 'unlisted': given not in the index, but in two.* and one.*, wanted"):
        gd.load_safetensors(index)


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
HEADERS: dict[str, Any] = {
    "past the end": {"a": {**ENTRY, "shape": [2, 4], "data_offsets": [0, 32]}},
    "huge offsets": {"a": {**ENTRY, "shape": [2**61], "data_offsets": [0, 2**63]}},
    "shape and bytes differ": {"a": {**ENTRY, "shape": [2, 2]}},
    "backwards": {"a": {**ENTRY, "data_offsets": [24, 0]}},
    "negative": {"a": {**ENTRY, "data_offsets": [-24, 0]}},
    "overlap": {"a": ENTRY, "b": ENTRY},
    "a hole": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}},
    "unknown dtype": {"a": {**ENTRY, "dtype": "F31"}},
    "no shape": {"a": {"dtype": "F32", "data_offsets": [0, 24]}},
    "a list": [1, 2],
    "a number": {"a": 7},
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, what: str) -> None:
    path = raw(tmp_path / "m.safetensors", {"a": ("F32", [2, 3], A.tobytes())}, lambda _: HEADERS[what])
    with pytest.raises(gd.LoadError, match="load_safetensors"):
        gd.load_safetensors(path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    good = raw(tmp_path / "good.safetensors", {"a": ("F32", [2, 3], A.tobytes())}).read_bytes()
    bad = tmp_path / "bad.safetensors"
    size = struct.unpack("<Q", good[:8])[0]
    pieces = [b"", good[:5], good[:8], good[: 8 + size], good[:-1], good + b"x", b"\xff" * 8 + good[8:],
              good[:8] + b"x" * size + good[8 + size :], good.replace(b"F32", b"\xff\xfe\xfd")]  # fmt: skip
    for data in pieces:
        bad.write_bytes(data)
        with pytest.raises(gd.LoadError):
            gd.load_safetensors(bad)
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(gd.LoadError):
            gd.load_safetensors(path)


def test_a_file_that_shrinks_later_is_noticed(tmp_path: Path) -> None:
    path = raw(tmp_path / "m.safetensors", {"a": ("F32", [2, 3], A.tobytes())})
    model = gd.load_safetensors(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(gd.LoadError, match="tensor 'a': given 20 bytes, wanted 24"):
        model.tensor_f32("a")
    path.unlink()
    with pytest.raises(gd.LoadError, match="tensor 'a'"):
        model.tensor_f32("a")


INDEXES: dict[str, Any] = {
    "no map": {}, "an empty map": {"weight_map": {}}, "a list": [], "a map of numbers": {"weight_map": {"a": 3}},
    "another folder": {"weight_map": {"a": "../one.safetensors"}}, "a folder": {"weight_map": {"a": "."}},
    "a missing shard": {"weight_map": {"a": "none.safetensors"}},
    "not in its shard": {"weight_map": {"b": "one.safetensors"}},
}  # fmt: skip


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_lies_is_refused(tmp_path: Path, what: str) -> None:
    index = sharded(tmp_path)
    index.write_text(json.dumps(INDEXES[what]))
    with pytest.raises(gd.LoadError):
        gd.load_safetensors(index)
    index.write_text("{")
    with pytest.raises(gd.LoadError):
        gd.load_safetensors(index)
