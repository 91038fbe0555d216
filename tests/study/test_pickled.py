"""Studies pickle what they are made from: graph, options, names, parameters, feed and update; sessions stay."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from contextlib import closing
from typing import Any

import networks
import numpy as np
import pytest
from clock import seconds_here

import gdlab as gd
from gdlab.base.errors import SessionError
from gdlab.plan.target import CompileOptions
from gdlab.study.study import Study

BATCH = {"x": np.ones((64, 64), np.float32), "y": np.eye(10, dtype=np.float32)[np.arange(64) % 10]}
COPIES = (copy.copy, copy.deepcopy, pickle.dumps)


def batches(step: int) -> dict[str, Any]:
    """A feed that a pickle finds by its name."""
    return {**BATCH, "x": BATCH["x"] * np.float32(1 + step / 10)}


def again(study: Study) -> Study:
    return pickle.loads(pickle.dumps(study))  # type: ignore[no-any-return]


def test_a_study_pickles_before_anything_was_made_of_it() -> None:
    options: dict[str, Any] = {"train": True, "device": "cpu", "name": "mlp", "egraph": False}
    options |= {"only": ["neg_neg", "bias_add_opened"]}
    study = Study(networks.mlp(), **options, compile=CompileOptions(alias=False), notes=["assumed"], source={"a": "b"})
    other = again(study)
    assert not study.has_session and not other.has_session and other.key != study.key
    assert other.graph.text() == study.graph.text() and other.graph.sources() == study.graph.sources()
    for name in ("name", "train", "options", "compile", "egraph", "source", "notes"):
        assert getattr(other, name) == getattr(study, name), name
    assert other.plan.fingerprint == study.plan.fingerprint
    assert other.doc.id == study.doc.id


@pytest.mark.parametrize("feed", ["random:3", BATCH, batches], ids=["random", "dict", "function"])
@pytest.mark.parametrize("rule", [{"sgd": 0.1}, {"adam": 1e-3}])
def test_a_study_goes_on_with_its_parameters_feed_and_update(feed: Any, rule: dict[str, float]) -> None:
    with closing(Study(networks.mlp(), train=True, device="cpu")) as study:
        study.run(3, feed=feed, init=0, **rule)
        study.session.set_lr_multiplier("w", 0.5)
        study.session.set_grad_clip_norm(1.0)
        with closing(again(study)) as other:
            for name in ("w1", "b1", "w2", "b2"):
                np.testing.assert_array_equal(other.session.read_param(name), study.session.read_param(name))
            assert other.session.step_count == 0 and str(other.session.optimizer) == str(study.session.optimizer)
            assert other.session.updates.settings == study.session.updates.settings
            other.run(2)
            assert other.session.step_count == 2 and study.session.step_count == 3
            expected = Study(networks.mlp(), train=True, device="cpu", weights=study.execution.parameters())
            with closing(expected):
                expected.session.set_lr_multiplier("w", 0.5)
                expected.session.set_grad_clip_norm(1.0)
                expected.run(2, feed=feed, **rule)
                np.testing.assert_array_equal(other.session.read_param("w1"), expected.session.read_param("w1"))


def test_a_copy_of_a_copy_that_was_never_opened_has_the_feed_too() -> None:
    with closing(Study(networks.mlp(), train=True, device="cpu")) as study:
        study.prepare(feed="random:1", init=4, sgd=0.1)
        with closing(again(again(study))) as other, closing(copy.deepcopy(study)) as deep:
            for each in (study, other, deep):
                each.run(1)
            assert study.session.read_loss() == other.session.read_loss() == deep.session.read_loss()


@pytest.mark.parametrize("feed", [lambda step: BATCH, (BATCH for _ in range(9))], ids=["lambda", "generator"])
def test_a_feed_that_cannot_be_pickled_is_named_in_the_notes(feed: Any) -> None:
    with closing(Study(networks.mlp(), train=True, device="cpu", name="mlp", notes=["one"])) as study:
        study.run(1, feed=feed, init=0, sgd=0.1)
        with closing(again(study)) as other:
            assert other.notes[0] == "one" and other.notes[1].startswith("the feed did not come along: a ")
            assert other.runner.feed is None and study.notes == ("one",)
            other.run(1, feed="random:0")


def test_a_feed_that_was_set_on_the_runner_comes_along() -> None:
    with closing(Study(networks.mlp(), train=True, device="cpu")) as study:
        study.run(1, feed="random:0", init=0)
        study.runner.feed = batches
        with closing(again(study)) as other:
            assert other.runner.feed is not None
            np.testing.assert_array_equal(other.runner.feed(2)["x"], batches(2)["x"])


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_study_and_one_for_inference_pickle(closed: bool) -> None:
    study = Study(networks.reader(4), device="cpu", weights={"b1": np.full(128, 2.0, np.float32)})
    study.run(1, feed="random:0", init=0)
    if closed:
        study.close()
    with closing(again(study)) as other:
        if closed:
            assert not other.has_session and "w1" in other.session.unset_parameters
        other.run(1, feed="random:0", init=0)
    study.close()


def test_another_process_opens_it(tmp_path: Any) -> None:
    with closing(Study(networks.mlp(), train=True, device="cpu", name="mlp")) as study:
        study.run(2, feed="random:0", init=0, adam=1e-3)
        (tmp_path / "study").write_bytes(pickle.dumps(study))
        study.run(1)
    code = "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); s.run(1); print(s.name, s.session.step_count)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "study")], capture_output=True, text=True, timeout=seconds_here(60)
    )
    assert done.stdout.split() == ["mlp", "1"], done.stderr


def test_what_owns_a_device_is_not_copied(device: str) -> None:
    study = Study(networks.mlp(), device=device, name="mlp")
    compiled, eager = gd.build_compiled_graph(networks.mlp(), device=device), gd.EagerSession(device=device)
    executor = gd.GraphExecutor(device)
    recorded = executor.begin()
    for owner, makes in (
        (study.session, COPIES), (study.runner, COPIES), (compiled, (pickle.dumps,)), (eager, COPIES),
        (executor, COPIES), (recorded, COPIES),
    ):  # fmt: skip
        for make in makes:
            with pytest.raises(SessionError, match="copy: .*: given one that owns device buffers, wanted "):
                make(owner)
    study.close()
    eager.close()
    executor.close()
