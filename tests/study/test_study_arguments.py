"""Arguments of another kind: a study says what was given and what is wanted, and stays as it was. Answers as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab.base.errors import GdlabError


def network() -> gd.Graph:
    with gd.Graph() as graph:
        x, w = gd.input("x", (4, 3)), gd.parameter("w", (3, 2))
        graph.output((x @ w).relu().sum_all())
    return graph


@pytest.fixture
def study() -> Any:
    with_session = gd.Study(network(), train=True, device="cpu", name="net")
    assert with_session.session
    yield with_session
    with_session.close()


FLAGS = np.array([1, 2])
OF_STUDIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "stage": (lambda s: s.stage(3), "stage: key: given 3, wanted a str"),
    "disable": (lambda s: s.variant(disable=None), "optimize: disable: given NoneType, wanted a list"),
    "only": (lambda s: s.variant(only=[1]), "optimize: only: given 1, wanted the names of rules"),
    "name": (lambda s: s.variant(["a"]), "variant: name: given list, wanted a str"),
    "allow": (lambda s: s.variant(allow=FLAGS), "variant: allow: given ndarray, wanted a str"),
    "compile": (lambda s: s.variant(compile=None), "variant: compile: given NoneType, wanted CompileOptions"),
    "variants": (lambda s: s.variants["a"], "variants: name: given a, wanted one of none: there are none"),
    "watch": (lambda s: s.watch("w", 3), "watch: tensor: given 3, wanted a str"),
    "on": (lambda s: s.run(3, on=True), "run: on: given True, wanted a cluster of gdlab.distributed"),
    "run": (lambda s: s.run(3, feed={1: 2}, sgd=0.1, init=0), "given 1, wanted one of x"),
    "feeds": (lambda s: s.feeds({1: 2}), "feed: input: given x, wanted one of 1"),
    "devices": (lambda s: s.check(devices=None), "check: devices: given NoneType, wanted a list"),
    "optimized": (lambda s: s.check_gradient("%3", optimized=FLAGS), "optimized: given ndarray, wanted True or False"),
    "against": (lambda s: s.look("w", against=FLAGS), "look: against: given ndarray, wanted a str"),
    "wrt": (lambda s: s.differentiate_wrt([["x"]]), "wrt: given ['x'], wanted one of x, w"),
    "save": (lambda s: s.save(None), "given NoneType, wanted a path, as a str or a Path"),
    "page": (lambda s: s.save("a.html", runnable=FLAGS), "runnable: given ndarray, wanted True or False"),
    "document": (lambda s: s.doc.save(3), "save: path: given 3, wanted a path, as a str or a Path"),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_STUDIES)
def test_a_study_refuses_an_argument_of_another_kind(study: gd.Study, what: str) -> None:
    call, words = OF_STUDIES[what]
    with pytest.raises(GdlabError) as refused:
        call(study)
    assert words in str(refused.value)
    assert not study.variants and not study.debug.execution.runner.lookout.watches and study.session.step_count == 0


X = np.ones((4, 3))
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no such setting": ({"feed": {"x": X}, "init": 0, "lr": 0.1}, "run: setting: given lr, wanted one of feed, sgd"),
    "two rules": ({"feed": {"x": X}, "init": 0, "sgd": 0.1, "adam": 0.2}, "adam: given 0.2, and sgd as well, wanted"),
    "no such input": ({"feed": {"q": X}, "init": 0, "sgd": 0.1}, "feed: name: given q, wanted one of x"),
    "another shape": ({"feed": {"x": X.T}, "init": 0, "sgd": 0.1}, "feed: 'x': given shape [3, 4]"),
    "an input left out": ({"feed": {}, "init": 0, "sgd": 0.1}, "no value for x, wanted each in the feed, or set_input"),
    "no parameters": ({"feed": {"x": X}, "sgd": 0.1}, "no value for w"),
    "no feed": ({"init": 0, "sgd": 0.1}, "no value for x"),
    "no condition": ({"feed": {"x": X}, "init": 0, "sgd": 0.1, "until": "w >"}, "until: "),
}  # fmt: skip


@pytest.mark.parametrize("what", RUNS)
def test_a_run_that_is_refused_sets_nothing(study: gd.Study, what: str) -> None:
    settings, words = RUNS[what]
    runner, session, rev = study.runner, study.session, study.rev
    with pytest.raises(GdlabError) as refused:
        study.run(3, **settings)
    assert words in str(refused.value)
    assert (runner.feed, runner.lookout.until, str(session.optimizer)) == (None, None, "no update rule")
    assert session.unset_parameters == ["w"] and session.step_count == 0 and study.rev == rev
    study.run(3, feed={"x": X}, init=0, sgd=0.1)
    assert session.step_count == 3


def test_a_run_on_a_cluster_names_the_setting_that_it_does_not_know(study: gd.Study) -> None:
    from gdlab.distributed.run import run_on

    with pytest.raises(GdlabError, match=r"run: setting: given acumulate, wanted .*accumulate"):
        run_on(None, study, 1, acumulate=2)  # type: ignore[arg-type]


def test_one_device_is_named_by_a_text(study: gd.Study) -> None:
    assert study.check(devices="cpu").columns == study.check(devices=["cpu"]).columns


def test_the_repr_of_an_answer_is_one_short_line(study: gd.Study) -> None:
    study.run(1, feed="random:0", init=0)
    shown = [repr(study.trace(2)), repr(study.look("w")), repr(study.device)]
    begins = ["<SessionProfile: 2 samples of ", "<Microscope: w, f32[3, 2], after step 1>", "<Device: cpu, NumPy "]
    assert all(text.startswith(begin) for text, begin in zip(shown, begins, strict=True)), shown
    assert max(map(len, shown)) < 100


OF_GRAPHS: dict[str, tuple[Callable[[gd.Graph], Any], str]] = {
    "study": (lambda g: gd.Study(g, name=3), "Study: name: given 3, wanted a str"),
    "train": (lambda g: gd.Study(g, train=FLAGS), "Study: train: given ndarray, wanted True or False"),
    "weights": (lambda g: gd.Study(g, weights=3), "Study: weights: given 3, wanted a mapping from names"),
    "rules": (lambda g: gd.Study(g, disable=None), "optimize: disable: given NoneType, wanted a list"),
    "wrt": (lambda g: gd.differentiate(g, wrt=True), "differentiate: wrt: given bool, wanted a value, or several"),
    "target": (lambda g: gd.compile_training_graph(g, []), "target: given list, wanted a Target"),
    "mode": (lambda g: gd.compile(g, mode=FLAGS), "compile: mode: given array([1, 2]), wanted training or inference"),
    "phase": (lambda g: gd.optimize(g, phase=FLAGS), "optimize: phase: given [1 2], wanted one of "),
    "engine": (lambda g: gd.optimize(g, phase="forward", engine=FLAGS), "optimize: engine: given [1 2], wanted one of"),
    "boundary": (lambda g: gd.build_compiled_graph(g, "cpu", boundary=FLAGS), "boundary: given ndarray, wanted a map"),
    "gradients": (lambda g: gd.build_compiled_graph(g, "cpu", gradients=FLAGS), "gradients: given ndarray, wanted Tr"),
    "inputs": (lambda g: gd.build_compiled_graph(g, "cpu").run(np.array(1)), "inputs: given ndarray, wanted a mapping"),
    "names": (lambda g: gd.build_session(g, device="cpu").read_params(np.array(1)), "names: given ndarray, wanted sev"),
    "outputs": (lambda g: g.set_outputs(np.array(1)), "set_outputs: outputs: given ndarray, wanted a value, several"),
    "attribute": (lambda g: gd.round_to(g.value(0), FLAGS), "given array([1, 2]), wanted "),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_GRAPHS)
def test_a_function_of_graphs_refuses_an_argument_of_another_kind(what: str) -> None:
    call, words = OF_GRAPHS[what]
    with pytest.raises(GdlabError) as refused:
        call(network())
    assert words in str(refused.value)
