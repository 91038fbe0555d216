"""One run on two engines is one session that accumulates over the same batches; what happens when an engine fails."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from engines import batches, gone, in_notebook, loader, one_session, regression
from machine import needs
from places import REPO

import gdlab as gd
from gdlab.base.errors import ArgumentError, DistributedUnavailableError, EngineLostError, SessionError
from gdlab.distributed import Cluster, calibrate, cluster, clusters, engine_feeds, run
from gdlab.distributed.engine import take_device
from gdlab.distributed.meeting import to_f16
from gdlab.distributed.run_record import DistributedRun
from gdlab.view.picture.scaling_picture import scaling_picture
from gdlab.view.text.twin import twin

BATCHES = batches(40)


def relative(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.max(np.abs(found - wanted) / np.abs(wanted)))


@in_notebook
def by_engine(step: int, engine: int, engines: int) -> dict[str, Any]:
    return batch_of(step * engines + engine)


@in_notebook
def batch_of(number: int) -> dict[str, Any]:
    return BATCHES[number % len(np.arange(40))]


# the cluster ----------------------------------------------------------------------------------------------------------
def test_a_cluster_tells_its_engines(two: Cluster) -> None:
    assert len(two) == 2 and [e.rank for e in two.engines] == [0, 1]
    assert repr(two) == "<Cluster: 2 engines on 1 host, cpu ×2>"
    head, *rows = two.rows()
    assert head[:4] == ("engine", "host", "process", "device") and len(rows) == 2
    assert rows[1][2] == str(two.view.apply_sync(os.getpid)[1]) and "no hardware adapter answers" in rows[1][4]
    threads = two.view.apply_sync(os.getenv, "OPENBLAS_NUM_THREADS")
    assert threads == [str(max(1, (os.cpu_count() or 1) // 2))] * 2
    html = two._repr_mimebundle_()["text/html"]
    assert html.count("<tr>") == 3 and "cpu ×2" in html and '<td style="text-align:left">no hardware' in html


def test_engines_and_notebook_share_the_cores_fairly(two: Cluster) -> None:
    """Trap: with a session of their own, engines on every core starved the notebook that wanted to end their run."""
    needs("posix")
    for engine in two.engines:
        assert os.getsid(engine.pid) == os.getsid(0), "one session, which Linux schedules as one"
        assert os.getpgid(engine.pid) != os.getpgid(0), "Ctrl-C in a terminal is not meant for engines"



# exactness ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", [{"sgd": 0.05}, {"adam": 1e-2}])
def test_two_engines_are_one_session_that_accumulates(two: Cluster, rule: dict[str, float]) -> None:
    study, other = regression(), regression()
    run = study.run(100, feed=list(BATCHES * 5), init=0, on=two, **rule)
    losses = one_session(other, 100, BATCHES * 5, 2, init=0, **rule)
    assert len(run.losses) == 100 and relative(run.losses, losses) <= 1e-5
    for name in "wbv":
        np.testing.assert_allclose(study.session.read_param(name), other.session.read_param(name), rtol=1e-5, atol=1e-7)
    assert study.session.step_count == 100 and study.session.adam_step_count() == (100 if "adam" in rule else 0)
    assert study.runner.losses[-1] == (100, run.losses[-1]) and run.state == "done"
    rows = study.doc.data["runs"][-1]["engines"]["rows"]
    assert [(row["engine"], row["cells"][3]) for row in rows] == [(0, "100"), (1, "100")]
    assert all(min(row["step_seconds"], row["reduce_seconds"], row["wait_seconds"]) > 0 for row in rows)
    assert {row["nbytes"] for row in rows} == {100 * 4 * (16 * 32 + 32 + 32 * 4)}
    made = study.doc.data["allreduce"]  # the reduction is among the dispatches, with what was predicted and measured
    assert (made["engines"], made["nbytes"]) == (2, 4 * (16 * 32 + 32 + 32 * 4)) and made["measured_seconds"] > 0
    assert made["ring_seconds"] > 0 == made["read_seconds"] == made["write_seconds"]  # memory of the host
    assert "on 2 engines, done, 100 of 100 steps" in twin(study.doc, "session")
    study.run(1, feed=BATCHES[0])  # the session goes on by itself
    assert study.runner.losses[-1][0] == 101


def test_accumulation_and_random_numbers_are_those_of_one_session(two: Cluster) -> None:
    """`accumulate=5` on two engines is 10 in one session; clipping sees the mean; dropout masks differ by engine."""
    study, other = regression(dropout=True), regression(dropout=True)
    for each in (study, other):
        each.session.set_grad_clip_norm(0.05)
    run = study.run(20, feed=by_engine, init=0, sgd=0.5, on=two, accumulate=5)
    losses = one_session(other, 4, BATCHES, 10, init=0, sgd=0.5)
    assert len(run.losses) == 4 and relative(run.losses, losses) <= 1e-5
    assert {row.report.nbytes for row in run.rows} == {4 * 4 * (16 * 32 + 32 + 32 * 4)}
    with pytest.raises(ArgumentError, match=r"^run: steps: given 7 with accumulate=2, wanted a multiple of accumulate"):
        study.run(7, on=two, accumulate=2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("wgpu", id="lavapipe")])
def test_buckets_of_gradients_are_reduced_beside_the_step(two: Cluster, device: str) -> None:
    """Buckets of 512 B: large gradients are cut, small ones are joined. Losses, and on cpu all bits, are those of one
    reduction behind the step; each bucket is a row of the plan, before the dispatches that run beside it."""
    if device == "wgpu":
        needs("lavapipe")
    study, whole, other = regression(), regression(), regression()
    settings = {"feed": list(BATCHES), "init": 0, "adam": 1e-2, "on": two}
    two.view.apply_sync(take_device, device)
    try:
        run = study.run(20, bucket_bytes=512, **settings)
        if device == "cpu":
            assert whole.run(20, **settings).losses == run.losses
    finally:
        two.view.apply_sync(take_device, "cpu")
    assert relative(run.losses, one_session(other, 20, BATCHES, 2, init=0, adam=1e-2)) <= (
        1e-5 if device == "cpu" else 2e-4)  # fmt: skip
    (mine, _) = (row.report for row in run.rows)
    assert [each.nbytes for each in mine.buckets] == [512, 512, 512, 512, 512, 128]
    assert mine.reducing == pytest.approx(sum(each.seconds for each in mine.buckets)) and mine.reducing > 0
    assert mine.buckets[0].stop < mine.buckets[-1].stop and mine.hidden < mine.reducing


def test_a_gradient_that_others_are_made_of_is_reduced_behind_them(two: Cluster) -> None:
    """∂p is the adjoint that ∂w is made of: a bucket that is reduced where it lies must not change it before."""
    losses = []
    for bucket_bytes in (64, None):
        with gd.Graph() as graph:
            x, w, p = gd.input("x", (6, 4)), gd.parameter("w", (4, 3)), gd.parameter("p", (6, 3))
            graph.output(gd.mse_loss((x @ w + p).tanh(), gd.input("y", (6, 3))))
        study = gd.Study(graph, train=True, device="cpu")
        run = study.run(30, feed="random:1", init=0, sgd=0.1, on=two, bucket_bytes=bucket_bytes)
        losses.append(run.losses)
    assert losses[0] == losses[1] and len(losses[0]) == 30 and losses[0][-1] != losses[0][0]


def test_an_epoch_of_a_loader_is_shared_out(two: Cluster) -> None:
    """Nine batches: each engine gets four of an epoch, none twice, and the ninth is left out."""
    study, other, data = regression(), regression(), loader(9)
    before = set(Path(tempfile.gettempdir()).glob("gdlab-feed-*"))
    run = study.run(8, feed=data, init=0, sgd=0.05, on=two)
    assert set(Path(tempfile.gettempdir()).glob("gdlab-feed-*")) <= before
    order = []
    for epoch in range(2):
        data.shuffle(epoch)
        order += [dict(b.tensors) for b in data][:8]
    assert relative(run.losses, one_session(other, 8, order, 2, init=0, sgd=0.05)) <= 1e-5


def test_a_second_run_goes_on_in_its_feed(two: Cluster) -> None:
    """A callable and a loader go on where the session stands, as in one session."""
    for feed in (by_engine, in_notebook(lambda number: batch_of(number)), loader(9)):
        split, whole = regression(), regression()
        for _ in range(2):
            split.run(3, feed=feed, sgd=0.05, on=two, **({} if split.session.step_count else {"init": 0}))
        whole.run(6, feed=feed, init=0, sgd=0.05, on=two)
        assert [loss for _, loss in split.runner.losses] == [loss for _, loss in whole.runner.losses]


@in_notebook
def shifted(number: int, by: int) -> Any:
    return batch_of(number + by)


class Shifted:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, number: int) -> Any:
        return shifted(number, self.by)


Shifted.__module__ = "__main__"


def test_any_callable_is_a_feed(two: Cluster) -> None:
    """A partial, an object with `__call__`, and its method are sent with what they read."""
    feeds = [functools.partial(shifted, by=1), Shifted(1), Shifted(1).__call__]
    losses = [regression().run(3, feed=feed, init=0, sgd=0.05, on=two).losses for feed in feeds]
    losses.append(regression().run(3, feed=list(BATCHES[1:7]), init=0, sgd=0.05, on=two).losses)
    assert losses[0] == losses[1] == losses[2] == losses[3]
    with pytest.raises(ArgumentError, match=r"^run: feed: given a function that cannot be sent \(cannot pickle"):
        lock = threading.Lock()
        regression().run(3, feed=lambda number: {"x": lock}, init=0, on=two)


def test_a_store_is_a_folder_wherever_the_notebook_is(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = regression().run(2, feed=BATCHES, init=0, sgd=0.05, on=two, store="runs")
    assert Path(run.checkpoint).parent == tmp_path / "runs"
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArgumentError, match=r"^run: store: given .*, wanted a folder that can be written"):
            regression().run(2, feed=BATCHES, init=0, on=two, store=wrong)
    before = set(Path(tempfile.gettempdir()).glob("gdlab-run-*"))
    with pytest.raises(Exception, match="no value for"):
        regression().run(2, feed=in_notebook(lambda number: {}), init=0, on=two)
    assert set(Path(tempfile.gettempdir()).glob("gdlab-run-*")) <= before


def test_an_interrupt_of_the_calibration_is_one(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap: a blocking call of ipyparallel swallows Ctrl-C and returns an unfinished result."""
    monkeypatch.setattr(two, "calibration", None)
    monkeypatch.setattr("gdlab.distributed.calibration.reduction_times", lambda *_: __import__("time").sleep(2))
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    study = regression()
    with pytest.raises(KeyboardInterrupt):
        study.run(2, feed=BATCHES, init=0, sgd=0.05, on=two, store=tmp_path)
    assert not list(tmp_path.iterdir()) and study.runner.state == "ready"
    monkeypatch.undo()
    assert study.run(2, feed=BATCHES, init=0, sgd=0.05, on=two).state == "done"


def test_random_batches_differ_by_engine_and_a_condition_ends_the_run(two: Cluster) -> None:
    study = regression()
    run = study.run(60, feed="random:3", init=0, sgd=0.05, on=two, until="loss < 0.8")
    assert run.state == "condition" and run.losses[-1] < 0.8 <= run.losses[-2]
    assert run.rows[0].report.loss != run.rows[1].report.loss


def test_the_example_of_the_page_runs(two: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "distributed.md").read_text("utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"__name__": "__main__", "two": two}
    exec(example.replace("with cluster(n=2) as two:", "if two:"), names)
    shown = capsys.readouterr().out
    assert "<Cluster: 2 engines on 1 host" in shown and "net: done, 200 of 200 steps" in shown
    assert names["study"].session.step_count == 200


def test_gradients_may_travel_in_16_bits(two: Cluster) -> None:
    """Half the bytes, the same bits on all engines (checked after every update), losses that stay near; the error that
    it makes is told."""
    runs = {wire: regression().run(60, feed=list(BATCHES * 3), init=0, sgd=0.05, on=two, check=1, wire=wire)
           for wire in ("f32", "f16")}  # fmt: skip
    size = 4 * 60 * (16 * 32 + 32 + 32 * 4)
    assert [row.report.nbytes for row in (*runs["f32"].rows, *runs["f16"].rows)] == [size, size, size // 2, size // 2]
    assert 0 < relative(runs["f16"].losses, runs["f32"].losses) < 5e-3
    (error,) = re.findall(r"gradients in 16 bits with a relative error of (\S+)", str(runs["f16"]))
    assert 5e-5 < float(error) < 5e-4 and "16 bits" in runs["f16"].fact() and "16 bits" not in runs["f32"].fact()
    values = to_f16(np.array([1e6, -1e6, np.inf, np.nan, 1.0], np.float32))
    assert np.isfinite(values).tolist() == [True, True, False, False, True] and values[0] == 65504
    with pytest.raises(ArgumentError, match=r"^run: wire: given 'f8', wanted one of f32, f16"):
        regression().run(2, feed=BATCHES, init=0, on=two, wire="f8")


def test_a_loader_goes_to_every_host_once() -> None:
    kept: list[tuple[int, Any]] = []

    class There:
        def __init__(self, id: int) -> None:
            self.id = id

        def apply_async(self, function: Any, streams: Any) -> Any:
            kept.append((self.id, sorted(streams)))
            return SimpleNamespace(get=lambda: f"folder{self.id}")

    engines = [SimpleNamespace(host=host, id=id) for id, host in enumerate("aabb")]
    far = SimpleNamespace(engines=engines, client={id: There(id) for id in range(4)})
    placed = run._placed(far, engine_feeds.to_send(loader(4)))  # type: ignore[arg-type]
    assert sorted(kept) == [(0, ["x", "y"]), (2, ["x", "y"])]
    assert placed.loader == ({"a": "folder0", "b": "folder2"}, 8)


def test_reductions_between_engines_are_measured(two: Cluster) -> None:
    """`calibrate` finds bandwidth and latency, and its points stand beside the prediction."""
    found = calibrate(two)
    assert two.calibration is found and found.engines == (2,) and found.link > 1e6 and 0 < found.latency < 0.1
    study = regression()
    scaling = study.scaling(engines=(1, 2, 4), link=found)
    (measured,) = scaling.measured
    assert (scaling.link, scaling.latency, measured.engines) == (found.link, found.latency, 2)
    assert measured.ring == found.seconds(2, scaling.nbytes)
    assert "measured between 2 engines: a reduction of 2.69 KB takes " in str(scaling)
    assert scaling_picture(scaling).count("data-measured") == 2


# refusals and errors --------------------------------------------------------------------------------------------------
def test_a_loss_that_is_not_finite_ends_the_run_before_its_update(two: Cluster) -> None:
    """Engine 1 has a bad batch in step 3: event and cause are those of a run here, and parameters stay finite."""

    @in_notebook
    def feed(step: int, engine: int, engines: int) -> Any:
        batch = dict(BATCHES[step])
        return {**batch, "x": batch["x"] * np.nan} if (step, engine) == (2, 1) else batch

    study = regression()
    run = study.run(6, feed=feed, init=0, sgd=0.05, on=two)
    assert (run.state, run.reason, study.session.step_count) == ("condition", "loss is NaN at step 3 on engine 1", 2)
    assert all(np.isfinite(study.session.read_param(name)).all() for name in "wbv") and len(run.losses) == 2
    first, cause = [event for event in study.runner.events if event.kind == "nonfinite"]
    assert (first.step, first.text) == (3, run.reason) and cause.text == str(study.runner.culprit)
    assert "first NaN: dispatch 0" in cause.text
    study.runner.set_watch("off")
    assert study.run(6, feed=feed, init=0, sgd=0.05, on=two).state == "done" and study.runner.culprit is None
    assert not np.isfinite(study.session.read_param("w")).all() or study.session.step_count == 8


def test_engines_that_differ_stop_the_run(two: Cluster) -> None:
    study = regression()

    @in_notebook
    def spoiled(step: int, engine: int, engines: int) -> Any:
        if step == 3 and engine == 1:
            from gdlab.distributed import part

            (session,) = part._KNOWN.values()
            session.set_parameter("b", session.read_param("b") + 1)
        return BATCHES[0]

    with pytest.raises(SessionError, match=r"^run: parameter b: given different values on the engines after step 4"):
        study.run(20, feed=spoiled, init=0, sgd=0.05, on=two, check=2)
    assert study.session.step_count == 4


def test_the_error_of_a_feed_is_shown_once_and_the_cluster_goes_on(two: Cluster) -> None:
    study = regression()

    @in_notebook
    def feed(step: int, engine: int, engines: int) -> Any:
        if step == 5 and engine == 1:
            raise ValueError("the fifth batch is gone")
        return BATCHES[0]

    with pytest.raises(Exception, match="the fifth batch is gone") as caught:
        study.run(20, feed=feed, init=0, sgd=0.05, on=two)
    traceback = str(caught.value.traceback)  # type: ignore[attr-defined]
    assert traceback.endswith(f"the fifth batch is gone\nengine 1 on {two.engines[1].host}")
    with pytest.raises(Exception, match="no value for y") as caught:
        study.run(4, feed=in_notebook(lambda step: {"x": BATCHES[0]["x"]}), init=0, sgd=0.05, on=two)
    assert str(caught.value.traceback).endswith(f"engine 1 on {two.engines[1].host}: the same")  # type: ignore[attr-defined]
    assert study.run(3, feed=BATCHES, on=two).state == "done"


def test_what_cannot_be_is_refused_before_anything_runs(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    study = regression()
    with pytest.raises(ArgumentError, match="wanted feed\\(step, engine, engines\\)"):
        study.run(5, feed=lambda a, b: {}, init=0, on=two)
    with pytest.raises(ArgumentError, match='wanted a number of steps, or seconds such as "30s"'):
        study.run(5, feed=BATCHES, on=two, save_every="soon")
    for wrong in (0, True, "4MB", 1 << 30):
        with pytest.raises(ArgumentError, match=r"^run: bucket_bytes: given .*, wanted bytes from 4 to 256 MiB"):
            study.run(5, feed=BATCHES, on=two, bucket_bytes=wrong)
    monkeypatch.setattr("gdlab.distributed.engine_feeds.MOST_BYTES", 1000)
    with pytest.raises(ArgumentError, match="give a feed that loads on the engine"):
        study.run(5, feed=loader(4), on=two)
    described = [clusters.Description(0, "a", 1, clusters.remote.versions(), (), 1, 0)]
    older = replace(described[0], versions=(("gdlab", "0.0.1"), *described[0].versions[1:]))
    clusters.check_versions(described)
    with pytest.raises(SessionError, match=r"^cluster: engine 0 on a: given gdlab 0\.0\.1, numpy .* as here"):
        clusters.check_versions([older])


def test_without_its_packages_every_name_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = r'wanted pip install "gdlab\[distributed\]"'
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ipyparallel", None)
        for settings in ({"n": 2}, {"profile": "slurm"}, {"engines": "local"}):
            with pytest.raises(
                DistributedUnavailableError, match=f"^cluster: ipyparallel: given not installed, {command}$"
            ):
                cluster(**settings)
    needs("mpi")
    with monkeypatch.context() as patch:
        patch.setattr("gdlab.distributed.clusters.shutil.which", lambda *_, **__: None)
        with pytest.raises(DistributedUnavailableError, match=f"^cluster: mpiexec: given none on the path, {command}"):
            cluster(2)


def test_engines_that_do_not_start_are_quoted() -> None:
    needs("mpi")
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with pytest.raises(SessionError, match=r"^cluster: 1 engine: given TimeoutError after at most 0\.01 s; their log"):
        cluster(1, engines="local", timeout=0.01)
    assert gone([p.pid for p in psutil.Process().children(recursive=True) if p.pid not in before], 5) is not None


def test_engines_of_a_host_share_its_adapters() -> None:
    one = clusters.Description(0, "a", 1, (), ((0, "H200"), (1, "H200")), 4, 0)
    hosts = [
        one,
        replace(one, rank=1, host="b"),
        replace(one, rank=2),
        replace(one, rank=3),
        replace(one, rank=4, host="c", adapters=()),
    ]
    assert [device for device, _, _ in clusters.place(hosts)] == ["wgpu:0", "wgpu:0", "wgpu:1", "wgpu:0", "cpu"]
    assert clusters.place([one], ["cpu"]) == [("cpu", "asked for by devices=", "")]


# interrupts and deaths ------------------------------------------------------------------------------------------------
@in_notebook
def slowly(step: int) -> Any:
    time.sleep(0.01)
    return BATCHES[step % 40]


def when(run_at: int, act: Any) -> Any:
    """Return a watcher that acts once when the run has made so many steps."""
    done: list[int] = []

    def watch(run: DistributedRun) -> None:
        if not done and run.step >= run_at:
            done.append(run.step)
            act()

    return watch


def test_an_interrupt_stops_all_engines_and_keeps_their_state(two: Cluster) -> None:
    study, other = regression(), regression()
    act = lambda: threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        study.run(10_000, feed=slowly, init=0, sgd=0.05, on=two, watch=when(10, act))
    made = study.session.step_count
    assert 10 <= made < 5000
    losses = one_session(other, made, lambda step: BATCHES[step % 40], 2, init=0, sgd=0.05)
    assert relative([loss for _, loss in study.runner.losses], losses) <= 1e-5
    assert study.run(3, feed=BATCHES, on=two).state == "done"


def test_a_run_goes_on_after_the_death_of_an_engine_where_it_may(two: Cluster, tmp_path: Path) -> None:
    study, other, steps = regression(), regression(), 300  # 3 s, in which the watcher finds its moment
    kill = lambda rank: os.kill(two.engines[rank].pid, signal.SIGKILL)  # noqa: E731
    settings = {"feed": slowly, "adam": 1e-2, "on": two, "save_every": 20}
    run = study.run(steps, init=0, resume=2, store=tmp_path, watch=when(50, lambda: kill(1)), **settings)
    (lost,) = run.lost
    assert (
        (lost.engine, lost.host) == (1, two.engines[1].host) and lost.step >= lost.again >= 40 and lost.again % 20 == 0
    )
    assert run.state == "done" and f"engine 1 on {lost.host} ended in step {lost.step + 1}: started again" in str(run)
    assert relative(run.losses, one_session(other, steps, lambda k: BATCHES[k % 40], 2, init=0, adam=1e-2)) <= 1e-5
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".npy"] * 3 + [".safetensors"] * 3

    died: list[float] = []
    act = lambda: (died.append(time.monotonic()), kill(0))  # noqa: E731
    before = study.session.read_param("w")
    with pytest.raises(EngineLostError) as caught:  # without resume; the last test of this cluster
        study.run(5000, store=tmp_path, watch=when(50, act), **settings)
    assert time.monotonic() - died[0] < 30  # 5 s where nothing else runs; tests run beside
    error = caught.value
    assert (error.engine, error.host) == (0, two.engines[0].host) and error.step >= 50
    assert error.saved is not None and Path(error.saved).parent == tmp_path and "resume=1" in str(error)
    assert study.session.step_count == steps and np.array_equal(study.session.read_param("w"), before)
    assert "of them ended>" in repr(two)  # and the next call says what to do
    with pytest.raises(SessionError, match=r"^run: cluster: given one whose engines 0.* of 2 have ended, wanted all"):
        study.run(5, feed=BATCHES, on=two)


ALONE = """
import sys, time
import psutil
from gdlab.distributed import cluster
made = cluster(1, timeout=120)
print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
time.sleep(600)
"""


def test_engines_end_with_the_process_that_started_them() -> None:
    needs("mpi")
    with subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) >= 4 and gone(pids, 10) is not None
