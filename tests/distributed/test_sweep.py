"""Many runs of a study: each point is a run of its own, and its result is the same wherever it is computed."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from documents import checked
from engines import regression

import gdlab as gd
from gdlab import ops
from gdlab.base.formats.packed_bytes import Packed
from gdlab.distributed.sweep import Sweep, made_sweep, sweep_of
from gdlab.graph import Graph
from gdlab.op.cost import Roofline
from gdlab.op.machines import Machine
from gdlab.study.study import Study
from gdlab.view.document.document import load_doc
from gdlab.view.document.sweeps import plotted_range
from gdlab.view.document.thinned import averaged
from gdlab.view.picture.picture import picture
from gdlab.view.text.twin import twin
from gdlab.view.things import document_of

GRID = {"adam": [1e-3, 1e-2], "init": range(3)}


@pytest.fixture
def study() -> Any:
    made = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    yield made
    made.close()


def same(a: Any, b: Any) -> bool:
    values = a.parameters(), b.parameters()
    return a.losses == b.losses and all(np.array_equal(values[0][n], values[1][n]) for n in values[0] | values[1])


def test_each_point_is_a_run_of_its_own(study: Study) -> None:
    """Losses and parameters are, bit by bit, those of `Study.run` with the same settings, also on a trained study."""
    found = study.sweep(GRID, steps=40, feed="random:1")
    assert len(found) == 6 and [point.state for point in found] == ["done"] * 6
    study.run(40, feed="random:1", adam=1e-2, init=2)
    assert study.runner.losses == found[5].losses and found[5].settings == {"adam": 1e-2, "init": 2}
    for name, value in found[5].parameters().items():
        assert np.array_equal(value, study.session.read_param(name))
    again = study.sweep(GRID, steps=40, feed="random:1")
    assert all(map(same, found, again))
    assert found.best("loss") is min(found, key=lambda point: point.losses[-1][1])
    row = found.table()[5]
    assert (row["adam"], row["init"], row["steps"], row["loss"]) == (1e-2, 2, 40, found[5].losses[-1][1])
    assert repr(found) == "<Sweep of mlp: 6 of 6 points done>" and "adam" in str(found)


def test_keys_are_those_of_run_optimizer_and_plan(study: Study) -> None:
    points = [
        {"sgd": 0.1, "init": 0, "steps": 3}, {"sgd": 0.1, "init": 0, "steps": 3, "alias": False, "allow": "exact"},
        {"sgd": 0.1, "init": 0, "until": "loss < 100"}, {"sgd": 0.1, "init": 0, "feed": "random:7"},
    ]  # fmt: skip
    found = study.sweep(points=points, steps=5, feed="random:1")
    assert [point.steps for point in found] == [3, 3, 1, 5]
    assert "until" in found[2].note and found[3].losses != found[0].losses[:5]
    variant = found[1].variant()
    assert variant in study.variants.values() and variant.compile.alias is False and variant.options["allow"] == "exact"
    for name, value in found[1].parameters().items():
        assert np.array_equal(value, variant.session.read_param(name))
    assert "variant:point 1: sgd 0.1, init 0, steps 3, alias off, allow exact" in [s.key for s in study.stages()]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"grid": {"adm": [1]}}, "key: given adm, wanted one of adam, sgd"),
        ({"grid": {"adam": 1e-3}}, "adam: given 0.001, wanted a list of values"),
        ({"grid": {"adam": []}}, "adam: given an empty list, wanted at least one value"),
        ({"grid": {"adam": [-1.0]}}, "adam: given -1.0, wanted a learning rate > 0"),
        ({"grid": {"adam": [1e-3], "sgd": [1e-3]}}, "wanted one update rule"),
        ({"grid": {"disable": ["Sillu"], "init": [0]}}, "wanted the id or label of a rule"),
        ({"grid": {"init": [0]}, "points": [{}]}, "grid, points: given both"),
        ({"grid": {"init": [0]}, "feed": iter([])}, "one that every point can begin anew"),
        ({"grid": {"init": [0]}, "feed": None}, "feed: given none"),
        ({"grid": {"adam": [1e-3]}}, "parameters: given no value for"),
        ({"grid": {"init": [0]}, "steps": 0}, "steps: given 0, wanted an int ≥ 1"),
        ({"grid": {"init": range(20_000)}}, "wanted at most 10,000 in all"),
    ],
)
def test_a_bad_call_is_one_line_and_runs_nothing(study: Study, call: dict[str, Any], said: str) -> None:
    with pytest.raises(gd.GdlabError) as caught:
        study.sweep(**{"steps": 2, "feed": "random:0", **call})
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert sweep_of(study) is None


def test_a_point_that_fails_is_told_and_the_others_go_on(study: Study) -> None:
    def feed(step: int) -> Any:
        stage[0] += step == 0  # the number of the point
        if step == 2 and stage[0] == 2:
            raise ValueError("no more data")
        return batch

    batch, stage = gd.session.run.feeds.random_batch(study.graph, 0), [0]  # type: ignore[attr-defined]
    found = study.sweep({"sgd": [0.1, 0.2, 1e18], "init": [0]}, steps=5, feed=feed)
    assert [point.state for point in found] == ["done", "failed", "failed"]
    assert found[1].error == "ValueError: no more data" and "not finite" in found[2].error
    assert "point 1: ValueError: no more data" in twin(study.doc, "sweep")
    with pytest.raises(gd.SessionError, match="failed: ValueError"):
        found[1].parameters()


def test_pause_stop_and_stop_of_one_point(study: Study) -> None:
    found = made_sweep(study, GRID, steps=10**6, feed="random:1")
    thread = threading.Thread(target=found.run)
    thread.start()
    wait(lambda: found[0].steps > 10)
    found.pause()
    assert found.state == "paused"
    made = settled_steps(found)
    found.resume()
    wait(lambda: found[0].steps > made)
    found.stop_point(0)
    found.stop_point(4)
    wait(lambda: found[1].steps > 0)
    assert [found[0].state, found[4].state] == ["stopped", "stopped"]
    found.stop()
    thread.join(30)
    assert found.state == "stopped" and found.count("waiting") == 3 and found.count("running") == 0


def wait(done: Any) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def settled_steps(found: Sweep) -> int:
    before = -1
    while before != found[0].steps:
        before = found[0].steps
        time.sleep(0.6)
    return before


def test_an_interrupt_keeps_what_is_done(study: Study) -> None:
    def feed(step: int) -> Any:
        calls[0] += 1
        if calls[0] == 13:
            raise KeyboardInterrupt
        return batch

    batch, calls = gd.session.run.feeds.random_batch(study.graph, 0), [0]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        study.sweep(GRID, steps=5, feed=feed)
    found = sweep_of(study)
    assert found is not None and [p.state for p in found] == [
        "done",
        "done",
        "stopped",
        "waiting",
        "waiting",
        "waiting",
    ]
    found.run()
    assert found.count("done") == 6 and calls[0] == 13 + 4 * 5


def test_a_folder_keeps_finished_points(study: Study, tmp_path: Path) -> None:
    """A second call reads what the first wrote, computes what is new, and does not trust a damaged file."""
    loader = gd.DataLoader.with_streams(
        [gd.InputStream(n.name, np.ones((64, int(np.prod(n.type.shape[1:])))), int(np.prod(n.type.shape[1:])))
         for n in study.graph.inputs], study.graph.inputs[0].type.shape[0])  # fmt: skip
    first = study.sweep(GRID, steps=9, feed=loader, store=tmp_path / "runs")
    files = sorted((tmp_path / "runs").iterdir())
    assert len(files) == 6
    again = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    more = again.sweep({"adam": [1e-3, 1e-2, 0.1], "init": range(3)}, steps=9, feed=loader, store=tmp_path / "runs")
    assert [point.engine for point in more] == ["file"] * 6 + ["here"] * 3 and all(map(same, first, more))
    other = again.sweep(GRID, steps=8, feed=loader, store=tmp_path / "runs")
    assert {point.engine for point in other} == {"here"}
    content = bytearray(files[2].read_bytes())
    content[len(content) // 2] ^= 1
    files[2].write_bytes(content)
    files[3].write_bytes(files[4].read_bytes())
    third = again.sweep(GRID, steps=9, feed=loader, store=tmp_path / "runs")
    assert sorted(point.engine for point in third) == ["file"] * 4 + ["here"] * 2 and all(map(same, first, third))
    told = " ".join(event.text for event in third.events)
    assert "digest" in told and "another point" in told
    again.close()


FACTOR = 1.0


def test_a_point_read_back_has_the_blocks_that_it_ended_with(tmp_path: Path) -> None:
    """The step of this block is 1; of its numbers, encoded again, it would be 5 / 127."""
    with Graph() as g:
        h = ops.input("x", (4, 64)) @ ops.parameter("first", (64, 64))
        g.output((h @ ops.parameter("w", (64, 2), dtype="q8")).mean_all())
    study = Study(g, train=True, device="cpu", name="blocks")
    block = (np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)) * 4
    study.session.set_parameter_packed("w", block)
    study.prepare(feed="random:0", init=0)
    for engine in ("here", "file"):
        (point,) = study.sweep({"sgd": [1e-3]}, steps=1, feed="random:0", store=tmp_path)
        assert point.engine == engine
        held = point.parameters()["w"]
        assert isinstance(held, Packed) and held.data == block
    study.close()


def scaled(step: int, scale: float) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {"x": scale * rng.standard_normal((8, 16)), "y": rng.standard_normal((8, 4))}


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, step: int) -> dict[str, Any]:
        return scaled(step, self.scale)


def keyword_default(scale: float) -> Any:
    def feed(step: int, *, by: float = scale) -> dict[str, Any]:
        return scaled(step, by)

    return feed


def numpy_scalar(scale: float) -> Any:
    number = np.float32(scale)
    return lambda step: scaled(step, number)


def in_a_comprehension(scale: float) -> Any:
    global FACTOR
    FACTOR = scale
    return lambda step: {name: data * FACTOR for name, data in scaled(step, 1.0).items()}


def of_a_range(scale: float) -> Any:
    numbers = range(int(scale))
    return lambda step: scaled(step, len(numbers))


def of_a_class(scale: float) -> Any:
    """The class is of one name, and its method another, as in a cell that was edited."""
    code = scaled if scale == 1 else lambda step, by: scaled(step, 3.0)
    return type("Feed", (), {"__module__": __name__, "__call__": lambda self, step: code(step, 1.0)})()


def cached(scale: float) -> Any:
    return functools.lru_cache(functools.partial(scaled, scale=scale))


NOTEBOOK = """
import functools, sys
from urllib.parse import urlsplit
from gdlab.distributed.engine_points import payload_of

@functools.lru_cache(maxsize=7, typed=True)
def squares(count): return [k * k for k in range(count)]

@functools.cache
def sums(count): return count and squares(count)[-1] + sums(count - 1)

class Loader:
    @functools.cache
    def size(self): return 5

def inner():
    rows = functools.cache(functools.partial(max, 1))
    return lambda step: rows(step)

rows, loader = inner(), Loader()
feed = lambda step: [sums(step), rows(step), loader.size(), squares.cache_parameters(), urlsplit]
assert feed(4)[:2] == [14, 4]
sys.stdout.buffer.write(payload_of([feed, sums], "run", "feed", "a list"))
"""
ENGINE = """
import sys
from urllib.parse import urlsplit
from gdlab.distributed.engine_points import value_of
feed, sums = value_of(sys.stdin.buffer.read())
*found, split = feed(4)
print(found, split is urlsplit, sums.cache_info().misses, sums is feed.__globals__["sums"])
"""


def test_functions_with_a_cache_are_sent_as_functions_without(tmp_path: Path) -> None:
    """They are of a notebook, which an engine cannot import, and their values stay behind."""
    sent = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, check=True).stdout
    run = subprocess.run([sys.executable, "-c", ENGINE], input=sent, capture_output=True, check=True)
    assert run.stdout.split(b"\n")[0].decode() == "[14, 4, 5, {'maxsize': 7, 'typed': True}] True 5 True"


def of_one_array_twice(scale: float) -> Any:
    small, large = np.ones((8, 16)), np.full((8, 16), 3.0)
    held = [small, small if scale == 1 else large, large]
    return lambda step: {**scaled(step, 1.0), "x": held[1]}


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: functools.partial(scaled, scale=scale), Slotted, keyword_default, numpy_scalar,
        in_a_comprehension, of_a_range, of_a_class, cached, of_one_array_twice,
    ],
    ids=["partial", "slots", "keyword default", "scalar", "comprehension", "range", "class", "cache", "array twice"],
)  # fmt: skip
def test_a_point_in_a_folder_belongs_to_the_content_of_its_feed(make: Any, tmp_path: Path) -> None:
    """A feed that differs in one number only is another feed; one that was made again is the same."""
    engines, losses = [], []
    for scale in (1.0, 3.0, 3.0):
        study = regression()
        (point,) = study.sweep({"sgd": [1e-2], "init": [0]}, steps=2, feed=make(scale), store=tmp_path)
        engines.append(point.engine)
        losses.append(point.loss)
        study.close()
    assert engines == ["here", "here", "file"] and losses[0] != losses[1] == losses[2]


def test_a_point_whose_feed_cannot_be_compared_is_computed_and_told(tmp_path: Path) -> None:
    """Nobody can read in advance what a generator will yield: no file of such a point is written or used."""
    lines = (float(scale) for scale in itertools.count(1))
    for _ in range(2):
        study = regression()
        points = study.sweep(
            {"sgd": [1e-2, 1e-3], "init": [0]}, steps=2, feed=lambda step: scaled(step, next(lines)), store=tmp_path)
        assert [point.engine for point in points] == ["here"] * 2 and not list(tmp_path.iterdir())
        assert "point 0 and 1 more: computed, for no file is used: the content of a generator" in str(points)
        study.close()


def test_close_rates_are_different_points(tmp_path: Path) -> None:
    study = regression()
    for rate in (0.0123456, 0.0123457):
        (point,) = study.sweep({"sgd": [rate], "init": [0]}, steps=1, feed="random:1", store=tmp_path)
        assert point.engine == "here"
    study.close()


@pytest.mark.parametrize("setting", ["multiplier", "clip", "accumulate", "input"])
def test_a_point_has_the_settings_of_the_session(setting: str, tmp_path: Path) -> None:
    """Losses are those of a run, also where the points name the rule, and the files of other settings are not used."""
    feed = (lambda step: {"x": scaled(step, 1.0)["x"]}) if setting == "input" else (lambda step: scaled(step, 1.0))
    engines = []
    for strong in (False, True):
        study = regression()
        match setting:
            case "multiplier":
                study.session.set_lr_multiplier("w", 50.0 if strong else 1.0)
            case "clip":
                study.session.set_grad_clip_norm(0.01 if strong else None)
            case "accumulate":
                study.session.set_grad_accumulate(3 if strong else 1)
            case "input":
                study.session.set_input("y", np.full((8, 4), 5.0 if strong else 1.0))
        (point,) = study.sweep({"sgd": [1e-2], "init": [0]}, steps=6, feed=feed, store=tmp_path)
        engines.append(point.engine)
        study.run(6, feed=feed, sgd=1e-2, init=0)
        assert study.runner.losses == point.losses
        study.close()
    assert engines == ["here", "here"]


def test_points_belong_to_the_costs_that_their_graph_was_optimized_for(tmp_path: Path) -> None:
    """A point in a folder is found again for the same figures of a machine alone."""
    for machine, wanted in (("a", "here"), ("a", "file"), ("b", "here")):
        cost = Roofline(Machine(1e-6 * ord(machine), 1e10, 1e11, "cpu, a"))
        study = Study(networks.mlp(), train=True, device="cpu", name="mlp", cost=cost)
        points = study.sweep({"sgd": [1e-2], "init": [0]}, steps=2, feed="random:1", store=tmp_path)
        assert [point.engine for point in points] == [wanted]
        study.close()


def test_the_document_holds_the_sweep(study: Study, tmp_path: Path) -> None:
    study.sweep({"sgd": [1e-2, 1e18], "init": [0]}, steps=300, feed="random:1")
    document = checked(study.doc)
    section = document.data["sweep"]
    assert [point["state"] for point in section["points"]] == ["done", "failed"] and section["best"] == 0
    assert 60 <= len(section["points"][0]["curve"]) <= 100 and section["points"][0]["curve"][-1][0] == 300
    saved = load_doc(document.save(tmp_path / "a.gdlab.json.gz"))
    assert saved.data["sweep"] == section and twin(saved, "sweep") == twin(document, "sweep")
    assert picture(saved, "sweep").count("<path data-point") == 2
    timeless = load_doc(document.save(tmp_path / "b.gdlab.json", timeless=True)).data["sweep"]
    assert timeless["seconds"] == 0 and timeless["points"][0]["cells"][5] == "–"
    older = sweep_of(study)
    study.sweep({"sgd": [0.1], "init": [0]}, steps=2, feed="random:1")
    assert len(document_of(older).data["sweep"]["points"]) == 2 and len(study.doc.data["sweep"]["points"]) == 1


def test_the_range_of_the_plot() -> None:
    steep = [(k, 10.0 / (k + 1)) for k in range(1000)]
    assert plotted_range([steep, [(0, 10.0), (1, 1e9)]]) == (0.01, 12.5, True)  # what diverges flattens nothing
    assert plotted_range([[(0, 2.0), (1, 1.0)]]) == (1.0, 2.0, False) and plotted_range([[]]) == (0.0, 1.0, False)
    assert averaged([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(2, 2.0), (3, 5.0)]
