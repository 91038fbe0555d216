"""Shortened lists: what is written short reads as it was, and a damaged form is one error."""

from __future__ import annotations

import json
import random
from typing import Any

import networks
import pytest
from documents import checked, keeps_its_size

import gdlab as gd
from gdlab.study.study import Study
from gdlab.view.document import pack, shortened
from gdlab.view.document.document import read_doc


def a_list(chance: random.Random, depth: int) -> list[Any]:
    """A list of some kind: numbers in runs or steps, texts that repeat, lists, records, or a mixture."""
    count = chance.randrange(40)
    kinds: list[Any] = [
        lambda: [chance.randrange(-3, 3) for _ in range(count)],
        lambda: [chance.choice((0, 0, 0, 1, 2**52, -(2**52))) for _ in range(count)],
        lambda: [5 * i - 7 for i in range(count)],
        lambda: [chance.choice(("a", "~", "é\n")) for _ in range(count)],
        lambda: [chance.choice((0.5, None, True, 1, "x", -0.0)) for _ in range(count)],
    ]
    if depth:
        kinds += [
            lambda: [a_list(chance, depth - 1) for _ in range(count)],
            lambda: [{"a": chance.randrange(2), "b": a_list(chance, 0)} for _ in range(count)],
            lambda: [dict.fromkeys(chance.choice((("a",), ("a", "b"), ())), 1) for _ in range(count)],
            lambda: [[], *a_list(chance, depth - 1)],
        ]
    return chance.choice(kinds)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(150))
def test_a_shortened_value_reads_as_it_was(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(shortened, "LARGE", chance.choice((1, 3, 20)))
    value = {"one": a_list(chance, 2), "two": {"three": [a_list(chance, 2), a_list(chance, 1)]}, "n": 3}
    short = json.loads(json.dumps(shortened.shortened(value)))
    assert json.dumps(shortened.restored(short)) == json.dumps(value)
    assert len(json.dumps(shortened.shortened(value["one"]))) <= len(json.dumps(value["one"])) + 200


def test_repetition_is_said_once() -> None:
    short = shortened.shortened({"start": list(range(0, 9000, 3)), "same": [4] * 9000, "few": [1, 1, 1]})
    assert short == {
        "start": {"~": "differences", "of": {"~": "runs", "of": [0, 3], "lengths": [1, 2999]}},
        "same": {"~": "runs", "of": [4], "lengths": [9000]},
        "few": [1, 1, 1],
    }


def test_a_document_with_every_list_shortened_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Study(networks.transformer(2), train=True, device="cpu", name="t").doc
    for module, name in ((pack, "LARGE"), (pack, "MANY"), (pack, "SHORTENED"), (shortened, "LARGE")):
        monkeypatch.setattr(module, name, 1)
    written = document.json()
    again = checked(read_doc(json.loads(written)), schema=False)
    assert again.json() == written
    for stage in range(len(document.data["stages"])):
        assert list(again.nodes(stage)) == list(document.nodes(stage))
    assert again.data["links"] == json.loads(json.dumps(document.data["links"]))


BAD: tuple[Any, ...] = (
    {"~": "runs", "of": [0], "lengths": [10**15]},
    {"~": "runs", "of": [0], "lengths": [-1]},
    {"~": "runs", "of": [0, 1], "lengths": [1]},
    {"~": "lists", "of": [0, 1], "lengths": [3]},
    {"~": "words", "words": [], "index": [0]},
    {"~": "records", "of": {"a": [1], "b": []}},
    {"~": "differences", "of": ["x", 1]},
    {"~": "unheard of"},
    {"~": []},
    [{"~": "runs", "of": [0], "lengths": [2**24]}] * 3,
)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_damaged_list_is_one_error(bad: Any) -> None:
    data = json.loads(Study(networks.mlp(), device="cpu").doc.json())
    data["stages"][0]["nodes"]["inputs"]["ids"] = bad
    with pytest.raises(gd.LoadError, match=r"^document: content: .+ an undamaged document"):
        read_doc(data)


def test_a_document_takes_130_bytes_a_node_and_32_in_gzip() -> None:
    """Five stages of a transformer in primitives (`spec/view2.md` 6); `experts(12)` is held to it where it is built."""
    document = Study(networks.transformer(60), train=True, device="cpu").doc
    keeps_its_size(document)
    assert all(not stage["layouts"] for stage in document.data["stages"])
