"""D1: the closure rules and the invariants of plans hold for every notebook, every model and 200 random graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import networks
import pytest
from documents import checked, doc_of
from lessons import LESSONS, run_lesson
from random_graphs import random_graph
from small_models import SMALL, TRAINED

from gdlab.study.study import Study
from gdlab.view.ask.step_replay import after
from gdlab.view.document.document import document_id
from gdlab.view.document.make import Document


def plan_holds(document: Document) -> None:
    """What a reader of a plan may assert (view.md 2.3), said again without the code of `check`."""
    intervals, dispatches = list(document.plan("intervals")), list(document.plan("dispatches"))
    written = {i for i, interval in enumerate(intervals) if interval["first"] < 0}
    for k, dispatch in enumerate(dispatches):
        assert dispatch["writes"] and set(dispatch["reads"]) <= written, f"dispatch:{k}"
        written |= set(dispatch["writes"])
    for slot, one in enumerate(document.plan("slots")):
        tenants = [(i, intervals[i]) for i in one["tenants"]]
        for n, (i, a) in enumerate(tenants):
            assert a["slot"] == slot and a["offset"] >= 0 and a["offset"] + a["nbytes"] <= one["nbytes"]
            for j, b in tenants[n + 1 :]:
                apart = a["last_group"] < b["first_group"] or b["last_group"] < a["first_group"]
                assert apart or a["alias_of"] == j or b["alias_of"] == i, f"interval:{i} and interval:{j}"
    edges = [(group["start"], group["stop"]) for group in document.plan("groups")]
    assert [k for start, stop in edges for k in range(start, stop)] == list(range(len(dispatches)))


@pytest.mark.parametrize("block", range(15))
def test_random_graphs(block: int) -> None:
    """Seeds 50 … 199; those below are in `test_doc.py`."""
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


@pytest.mark.parametrize("name", [*LESSONS, "tour"])
def test_every_study_of_a_notebook(lesson_shell: Any, name: str) -> None:
    _, names = run_lesson(lesson_shell, name)
    studies = [value for key, value in list(names.items()) if isinstance(value, Study) and not key.startswith("_")]
    assert studies
    for study in studies:
        plan_holds(checked(study.doc))


@pytest.mark.parametrize("seed", range(0, 40, 4))
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
