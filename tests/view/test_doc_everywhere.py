"""D1: the closure rules and the invariants of plans hold for every model and 50 random graphs (`make matrix`: 200)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import networks
import pytest
from documents import doc_of, plan_holds
from matrix import count
from random_graphs import random_graph
from small_models import SMALL, TRAINED

from gdlab.study.study import Study
from gdlab.view.ask.step_replay import after
from gdlab.view.document.document import document_id
from gdlab.view.document.make import Document

BLOCKS, SCRUBBED = count(3, 15), count(3, 10)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs(block: int) -> None:
    """Seeds 50 … 79, or … 199; those below are in `test_doc.py`."""
    for seed in range(50 + 10 * block, 60 + 10 * block):
        train = seed % 2 == 0
        graph = random_graph(seed, scalar_loss=train, every_op=seed % 3 == 0)
        document = doc_of(Study(graph, train=train, device="cpu"), schema=seed % 10 == 0)
        assert document.data["notes"] == [], seed
        plan_holds(document)


@pytest.mark.parametrize("name", SMALL)
def test_models_to_read(name: str) -> None:
    plan_holds(doc_of(Study(SMALL[name](), device="cpu")))


@pytest.mark.parametrize("name", TRAINED)
def test_models_that_learn(name: str) -> None:
    plan_holds(doc_of(Study(TRAINED[name](), train=True, device="cpu")))


@pytest.mark.parametrize("train", [True, False])
def test_networks_of_the_tests(train: bool) -> None:
    for make in (networks.mlp, networks.transformer, networks.decomposed):
        plan_holds(doc_of(Study(make(), train=train, device="cpu")))


@pytest.mark.parametrize("seed", range(0, 4 * SCRUBBED, 4))
def test_every_position_of_the_scrubber_is_a_graph(seed: int) -> None:
    """D2: k steps give a valid graph for every k, all of them the next stage, and labels count as the report says."""
    document = Study(random_graph(seed, scalar_loss=True), train=True, device="cpu").doc
    for p, one in enumerate(document.data["passes"]):
        if one["role"] != "optimize":
            continue
        steps = list(document.steps(p))
        for k in range(len(steps) + 1):
            moment, seen = after(document, p, k), set()
            for key, node in moment.nodes.items():
                assert set(node["inputs"]) <= seen, (p, k, key)
                seen.add(key)
            assert set(moment.outputs) <= seen
        assert list(moment.nodes) == document.nodes(one["to"]).column("key")
        labels = Counter(step["label"] for step in steps if step["label"] != "sweep")
        assert labels == Counter({label: n for label, n in one["report"]["rules_fired"] if n})


def test_the_order_of_dictionaries_does_not_matter() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(each) for each in value] if isinstance(value, list) else value

    study = Study(networks.transformer(), train=True, device="cpu")
    study.run(2, feed="random:0", adam=1e-3, init=0)
    document = study.doc
    other = Document(turned(document.data))
    assert other.json() == document.json() and document_id(other.data) == document.id
