"""Diff, search and the packed form: classes part the nodes, queries find what they say, packed documents come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import networks
import pytest
from documents import checked
from random_graphs import random_graph

from gdlab import ops
from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.study.study import Study
from gdlab.view.ask.diff import diff, diff_doc, diff_text
from gdlab.view.ask.query import search
from gdlab.view.document import pack
from gdlab.view.document.document import Document, read_doc
from gdlab.view.document.make import graph_doc
from gdlab.view.text.twin import twin


@pytest.fixture(scope="module")
def mlp() -> Iterator[Document]:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    yield study.doc
    study.close()


# diff ----------------------------------------------------------------------------------------------------------------
def test_fusion_is_told_as_what_moved_where(mlp: Document) -> None:
    found = diff(mlp)
    assert found.summary() == "6 same, 2 rewired, 0 changed, 6 moved into 2, 0 removed, 0 added"
    ops_of = mlp.nodes(0).column("op")
    moved = [ops_of[i] for i, kind in enumerate(found.left) if kind == "moved"]
    assert sorted(set(moved)) == ["add", "broadcast_to", "matmul"]
    assert twin(mlp, "diff").splitlines()[-1] == found.summary()


@pytest.mark.parametrize("seed", range(12))
def test_classes_part_the_nodes_and_itself_is_all_same(seed: int) -> None:
    study = Study(random_graph(seed, scalar_loss=True), train=True, device="cpu")
    document = study.doc
    for a, b in ((0, 1), (1, 2), (2, 3), (0, 3)):
        found = diff(document, left_stage=a, right_stage=b)
        assert len(found.left) == len(document.nodes(a)) and len(found.right) == len(document.nodes(b))
        both = [kind for kind in found.left if kind in ("same", "rewired", "changed")]
        assert sorted(both) == sorted(k for k in found.right if k in ("same", "rewired", "changed"))
        assert len(both) == len(found.match)
    itself = graph_doc(random_graph(seed, scalar_loss=True))
    assert set(diff(itself, itself).left) <= {"same"}


def two(width: int, act: Any) -> Document:
    with Graph() as g:
        h = act(ops.input("x", (4, 8)) @ ops.parameter("w", (8, width))).named("h")
        g.set_outputs((h @ ops.parameter("v", (width, 3))).named("y"))
    return graph_doc(g, "g")


def test_two_documents_are_matched_by_hash_then_by_name() -> None:
    found = diff(two(8, ops.relu), two(8, ops.relu))
    assert set(found.left) == set(found.right) == {"same"}
    wider = diff(two(8, ops.relu), two(16, ops.relu))
    assert "changed" not in wider.left[:1] and wider.left[0] == "same", "x is as it was"
    other = diff(two(8, ops.relu), two(8, ops.tanh))
    assert other.summary().endswith("1 removed, 1 added") or "changed" in other.left


def test_the_document_of_a_diff_is_sound_and_says_the_same(mlp: Document) -> None:
    one, other = two(8, ops.relu), two(8, ops.tanh)
    both = checked(diff_doc(one, other))
    assert [s["title"] for s in both.data["stages"]] == ["g", "g"] and both.data["view"]["diff"] == [0, 1]
    assert diff(both).match == diff(one, other).match
    assert both.data["summary"].endswith(diff(one, other).summary())
    assert list(diff_text(one, other))[-1] == diff(one, other).summary()
    assert list(diff_text(one)) == ["one graph alone: nothing to compare with"]


RULES_OF_GATED = ["Mul+Sigmoid→Silu", "MatMul+BiasAdd→FusedMatMulAdd", "Silu+Mul→SwiGLU"]


@pytest.fixture(scope="module")
def gated() -> Iterator[Study]:
    """A study with a variant without each of three rules."""
    with Graph() as g:
        x = ops.input("x", (8, 16))
        h = x @ ops.parameter("w1", (16, 16)) + ops.parameter("b1", (16,)).broadcast_to((8, 16))
        s = (h * ops.sigmoid(h)) * (x @ ops.parameter("v", (16, 16)))
        z = s @ ops.parameter("w2", (16, 4)) + ops.parameter("b2", (4,)).broadcast_to((8, 4))
        g.set_outputs(ops.square(z).mean_all())
    study = Study(g, train=True, device="cpu", name="gated")
    for rule in RULES_OF_GATED:
        study.variant(disable=[rule])
    yield study
    study.close()


@pytest.mark.parametrize("left", ["optimized", *RULES_OF_GATED])
@pytest.mark.parametrize("right", ["optimized", *RULES_OF_GATED])
def test_equal_work_of_two_variants_is_no_difference(gated: Study, left: str, right: str) -> None:
    """V10: what a rule was kept from is one node on one side and several on the other; the rest is the same work."""
    document = gated.doc
    stages = [s if s == "optimized" else f"variant:no {s}" for s in (left, right)]
    found = diff(document, left_stage=stages[0], right_stage=stages[1])
    assert "removed" not in found.left and "added" not in found.right, found.summary()
    assert ("moved" in found.left or "made" in found.right) == (left != right)
    turned = diff(document, left_stage=stages[1], right_stage=stages[0])
    assert {y: x for x, y in found.match.items()} == turned.match


def test_the_text_has_the_table_of_variants_once(gated: Study) -> None:
    text = twin(gated.doc.with_view({"diff": [1, 5]}), "diff")
    assert text.count("µs/step") == 1 and all(line.strip() in text for line in gated.compare().splitlines())


# search --------------------------------------------------------------------------------------------------------------
def test_terms_are_joined_by_and(mlp: Document) -> None:
    matmuls = search(mlp, "op:matmul", [0])
    assert len(matmuls) == 2 and search(mlp, "op:matmul shape:[*,10]", [0]) == matmuls[1:]
    assert search(mlp, "flag:loss", [0]) == ["node:0.13"] and search(mlp, "", [0]) == [f"node:0.{i}" for i in range(14)]
    assert search(mlp, "kernel:matmul", [0]) == [] != search(mlp, "kernel:matmul", [3])


def test_a_bad_pattern_is_refused_in_words(mlp: Document) -> None:
    with pytest.raises(ArgumentError, match=r"search: pattern: given .*, wanted a regular expression"):
        search(mlp, "/(/")


# packing -------------------------------------------------------------------------------------------------------------
def test_a_packed_document_comes_back_as_it_was(mlp: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(json.dumps(mlp.data))
    monkeypatch.setattr(pack, "LARGE", 1)
    monkeypatch.setattr(pack, "MANY", 1)
    small = json.loads(mlp.json())
    assert len(mlp.json()) < len(json.dumps(plain, separators=(",", ":")))
    assert not any("back" in link for link in small["links"]) and any("index" in link["out"] for link in small["links"])
    again = checked(read_doc(small))
    assert again.data["links"] == plain["links"]
    assert [one["report"] for one in again.data["passes"]] == [one["report"] for one in plain["passes"]]
    assert [one["steps"] for one in again.data["passes"]] == [one["steps"] for one in plain["passes"]]
    for stage in range(len(plain["stages"])):
        assert list(again.nodes(stage)) == list(mlp.nodes(stage))
    for table in ("kernels", "dispatches", "groups", "intervals", "slots"):
        assert list(again.plan(table)) == list(mlp.plan(table))
    assert again.json() == mlp.json()
