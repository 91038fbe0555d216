"""Searches that page and Python must answer alike: `python tests/query_corpus.py FILE` writes document and answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import networks
from test_view_groups import network

from gdlab.study import Study
from gdlab.view.document import Document
from gdlab.view.query import search

QUERIES = (
    "", "relu", "MATMUL", "op:matmul", "op:mat", "w1", "name:w", "f32[64, 10]", "shape:[64,*]", "shape:64,10",
    "shape:[*]", "shape:[]", "dtype:f32", "dtype:f16", "flag:output", "flag:loss", "flag:parameter shape:[*]",
    "lane:adjoint", "lane:adjoint op:add", "/^mat/", "/sum_|_grad/", "/w[12]$/", "attr:shape", "attr:shape=[64,10]",
    "attr:axis=0", "attr:axis<1", "attr:axis>=1", "attr:nothing", "attr:axis=x", "kernel:0", "kernel:MatMul",
    "kernel:99 relu", "op:relu h", "unknown:field", "op:", "/ /", "x y",
)  # fmt: skip


def document() -> Document:
    """The tour's network, trained: five stages and a plan."""
    return Study(networks.mlp(), train=True, device="cpu", name="mlp").doc


def dump(path: str) -> None:
    """Write the document and the answer to every query."""
    doc = document()
    answers = {query: search(doc, query) for query in QUERIES}
    grouped = Study(network(12), train=True, device="cpu", name="blocks").doc
    found = {"doc": json.loads(doc.json()), "answers": answers, "groups": json.loads(grouped.json())}
    Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    dump(sys.argv[1])
