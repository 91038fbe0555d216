"""Searches and paths that page and Python must find alike: `query_corpus.py FILE` writes the answers."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from unittest import mock

import networks
from nested_calls import network

from gdlab.study.study import Study
from gdlab.view.ask.paths import path_counts, paths_between
from gdlab.view.ask.query import search
from gdlab.view.document import shortened
from gdlab.view.document.document import Document

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


def wired(seed: int) -> list[list[int]]:
    """The inputs of each node of a random graph; of the last one, so that there are more lengths than are wanted."""
    some, count = random.Random(seed), 200 if seed == 60 else 2 + seed
    most = 2 if seed == 60 else seed % 4
    return [some.sample(range(max(0, i - 6), i), min(i, some.randrange(most and 1, most + 1))) for i in range(count)]


def routes() -> list[dict[str, object]]:
    """Graphs, two ends in each, and the ways between them."""
    found: list[dict[str, object]] = []
    for seed in range(61):
        inputs = wired(seed)
        ends = sorted((random.Random(seed).randrange(len(inputs) // 2), len(inputs) - 1), reverse=seed % 2 > 0)
        answer = paths_between(inputs, *ends)
        told_so = {"paths": answer.paths, "whole": answer.whole, "told": path_counts(answer)}
        found.append({"inputs": inputs, "ends": ends, **told_so})
    return found


def dump(path: str) -> None:
    """Write the document and the answer to every query."""
    doc = document()
    answers = {query: search(doc, query) for query in QUERIES}
    grouped = Study(network(12), train=True, device="cpu", name="blocks").doc
    found = {"doc": json.loads(doc.json()), "answers": answers, "groups": json.loads(grouped.json())}
    found["routes"] = routes()
    with mock.patch.object(shortened, "LARGE", 1):
        found["short"] = shortened.shortened(found["doc"])
    Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    dump(sys.argv[1])
