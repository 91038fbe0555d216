"""A document that a page can run: its data are the session's own, and what no page can run is refused when saving."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import checked
from runnable_networks import NETWORKS

from benchmarks.memory import NETWORKS as MEMORY_NETWORKS
from gdlab import load_doc, ops
from gdlab.base import philox
from gdlab.base.errors import ArgumentError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import DType, TensorType
from gdlab.graph import Graph
from gdlab.plan.dispatch import SCALARS
from gdlab.session import Optimizer
from gdlab.session.initial import DOMAIN
from gdlab.session.update_settings import scalars
from gdlab.study.study import Study
from gdlab.view.document import runnable
from gdlab.view.document.runnable import runnable_doc


def made(name: str, **settings: Any) -> Study:
    study = Study(NETWORKS[name](), train=True, device="cpu", name=name)
    if settings:
        study.run(3, feed="random:1", **settings)
    return study


def run_of(study: Study, **options: Any) -> dict[str, Any]:
    return checked(runnable_doc(study, **options)).data["run"]  # type: ignore[no-any-return]


def unpacked(text: str, shape: Any = (-1,), dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def initial(run: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Stored parameters as a page makes them."""
    found = {}
    for buffer in run["plan"]["buffers"]:
        value = run["initial"].get(buffer["name"]) if buffer["kind"] in ("parameter", "derived") else None
        if value is None:
            continue
        shape, count = buffer["shape"], int(np.prod(buffer["shape"]))
        if "fill" in value:
            found[buffer["name"]] = np.full(shape, value["fill"], np.float32)
        elif "uniform" in value:
            u = value["uniform"]
            drawn = philox.uniform(count, u["seed"], domain=DOMAIN, call=u["stream"]).astype(np.float64)
            found[buffer["name"]] = ((2 * drawn - 1) * u["bound"]).astype(np.float32).reshape(shape)
        else:
            found[buffer["name"]] = numbers(value["data"], shape, DType[buffer["dtype"]])
    return found


def numbers(text: str, shape: list[int], dtype: DType) -> np.ndarray[Any, Any]:
    """Return the numbers that the bytes of a parameter stand for."""
    if not dtype.is_storage:
        return unpacked(text, shape)
    data = base64.b64decode(text)[: TensorType(tuple(shape), dtype).data_bytes]
    return np.asarray(Packed(dtype, tuple(shape), data))


def values_of(study: Study, plan: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Stored parameters as the session has them now."""
    return {name: study.session.values.read(b).reshape(plan.buffers[b].shape) for name, b in plan.stored_params}


# what is in it --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_those_before_the_first_step_or_those_of_now(name: str) -> None:
    study = made(name)
    study.prepare(feed="random:1", adam=1e-2, init=5)
    plan = study.pipeline.plan(runnable.PAGE)
    before = values_of(study, plan)
    study.run(3)
    after = values_of(study, plan)
    for wanted, run in ((before, run_of(study)), (after, run_of(study, weights=True))):
        found = initial(run)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert any("uniform" in each for each in run_of(study)["initial"].values()), "seeds are shorter than numbers"
    assert any(not np.array_equal(before[key], after[key]) for key in before)
    study.close()


@pytest.mark.parametrize("dtype", ("f16", "bf16", "q8", "q4", "q4_0"))
def test_parameters_in_a_storage_dtype_are_their_words(dtype: str) -> None:
    """Of a study that has run, too; and blocks that would be others when they are encoded again."""
    with Graph() as g:
        h = ops.input("x", (4, 64)) @ ops.parameter("first", (64, 64))
        rows = dtype == "q4_0"  # blocks of ggml lie along rows
        w = ops.parameter("w", (32, 64) if rows else (64, 32), dtype=dtype)
        g.output((ops.matmul_bt(h, w) if rows else h @ w).mean_all())
    study = Study(g, train=True, device="cpu", name="held")
    if dtype == "q8":
        study.session.set_parameter_packed("w", (np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)) * 64)
    study.prepare(feed="random:0", init=3, adam=1e-2)
    wanted = study.session.loaded.program.words(dict(study.plan.stored_params)["w"])
    for _ in range(2):
        for weights in (False, True):
            held = unpacked(run_of(study, weights=weights)["initial"]["w"]["data"], dtype=np.uint32)
            np.testing.assert_array_equal(held, wanted)
        study.run(2)
    study.close()


def test_a_study_without_a_session_begins_with_seed_0_and_says_that_its_inputs_are_random() -> None:
    study = made("gated")
    run = run_of(study)
    assert not study.has_session, "nothing is opened for it"
    assert run["note"] == "no feed was given: the inputs are random numbers (random:0)"
    study.prepare(feed="random:0", init=0)
    found, wanted = initial(run), values_of(study, study.pipeline.plan(runnable.PAGE))
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
    assert run["update"]["rule"] == "none" and run["plan"]["updates"] == 0
    study.close()


def test_batches_are_those_that_the_feed_gives_to_the_first_steps() -> None:
    study, asked = made("attention"), list[int]()

    def feed(step: int) -> dict[str, Any]:
        asked.append(step)
        return {"x": np.full((32, 64), step), "target": np.zeros((32, 64))}

    study.run(2, feed=feed, sgd=1e-3, init=0)
    run = run_of(study, batches=3)
    assert [unpacked(batch["x"])[0] for batch in run["batches"]] == [0, 1, 2] and asked == [0, 1, 0, 1, 2]
    study.run(1, feed=iter([{"x": np.full((32, 64), 9), "target": np.zeros((32, 64))}]))
    run = run_of(study, batches=3)
    assert [unpacked(batch["x"])[0] for batch in run["batches"]] == [9]
    assert run["note"] == "the feed cannot be asked twice: this is its last batch"
    study.close()


@pytest.mark.parametrize("rule", ["adam", "adamw", "laprop", "sgd", "momentum", "adagrad"])
def test_the_scalars_of_every_update_follow_from_those_of_the_first(rule: str) -> None:
    study = made("gated")
    optimizer = Optimizer.of(rule, lr=3e-3)
    study.prepare(feed="random:1", init=0)
    study.session.updates.configure("test", optimizer)
    update = run_of(study)["update"]
    for t in (1, 2, 50):
        row = np.array(update["first"], np.float32)
        if update["counts"]:
            row[4:6] = [1 / (1 - float(row[k]) ** t) for k in (1, 2)]
        wanted = scalars(optimizer, t)
        np.testing.assert_array_equal(row[: len(wanted)], wanted)
        assert len(row) >= len(SCALARS) and not row[len(wanted) :].any()
    study.close()


def test_dispatches_and_memory_are_those_of_the_plan() -> None:
    study = made("cnn", adam=1e-3, init=0)
    plan, run = study.pipeline.plan(runnable.PAGE), run_of(study)
    rows, update = run["plan"]["dispatches"], study.session.updates.update.dispatches
    assert [row["label"] for row in rows[: len(plan.dispatches)]] == [d.label for d in plan.dispatches]
    assert len(rows) == len(plan.dispatches) + run["plan"]["updates"] and run["plan"]["updates"] == len(update)
    for row, dispatch in zip(rows, plan.dispatches, strict=False):
        assert [tuple(each) for each in row["bind"]] == list(dispatch.bindings)
        assert run["plan"]["wgsl"][row["kernel"]].startswith("//") and row["workgroups"] == list(dispatch.workgroups)
    for buffer in run["plan"]["buffers"]:
        assert buffer["nbytes"] <= buffer["bound"] <= run["plan"]["slots"][buffer["slot"]]
    assert {int(row["seed"]) for row in run["random"]} == {7}, "dropout draws in every step"
    assert run["same"] and run["loss"] == plan.loss_buffer
    study.close()


def test_a_page_needs_no_offsets() -> None:
    """Buffers that stand side by side have slots of their own in the page; those that follow each other share one."""
    build, _ = MEMORY_NETWORKS["convolutions"]
    study = Study(build(), train=True, device="cpu", name="convolutions")
    plan, run = study.pipeline.plan(runnable.PAGE), run_of(study)["plan"]
    assert any(plan.memory.offset_of)
    tenants: dict[int, list[int]] = {}
    for b, buffer in enumerate(run["buffers"]):
        assert buffer["bound"] <= run["slots"][buffer["slot"]] and buffer["nbytes"] == plan.buffers[b].nbytes
        tenants.setdefault(buffer["slot"], []).append(b)
    assert max(map(len, tenants.values())) > 2
    for shared in tenants.values():
        lives = sorted((plan.memory.intervals[b].first_group, plan.memory.intervals[b].last_group) for b in shared)
        assert all(one[1] < other[0] for one, other in zip(lives, lives[1:], strict=False))
    assert plan.memory.physical_bytes <= sum(run["slots"]) <= sum(b["bound"] for b in run["buffers"])
    study.close()


def test_sums_of_one_invocation_lie_in_private_memory_of_a_page() -> None:
    study = made("attention", adam=1e-3, init=0)
    texts = [text for text in run_of(study)["plan"]["wgsl"] if "QUADS" in text]
    assert len(texts) == 3, "attention, the gradient of queries, that of keys and values"
    private = "var<private> sums: array<vec4<f32>, QUADS * 4u * (1u + STORES_VALUES)>;"
    for text in texts:
        assert private in text and "LANES + own" not in text
    study.close()


def test_a_document_is_the_same_with_and_without_its_data_but_for_them() -> None:
    study = made("gated", sgd=1e-3, init=0)
    with_data, without = runnable_doc(study).data, study.doc.data
    assert {key for key in with_data if with_data[key] != without.get(key)} - {"runs"} == {"run"}
    assert "run" not in without
    study.close()


# files ----------------------------------------------------------------------------------------------------------------
def test_files_keep_it_and_a_page_holds_the_engine(tmp_path: Path) -> None:
    study = made("gated", sgd=1e-3, init=0)
    for suffix in runnable_suffixes():
        path = study.save(tmp_path / f"net{suffix}", runnable=True)
        if suffix != ".html":
            assert load_doc(path).data["run"] == runnable_doc(study).data["run"]
    plain, runs = (
        study.save(tmp_path / f"{n}.html", runnable=n == "runs").read_text("utf-8") for n in ("plain", "runs")
    )
    assert '"run":' not in plain and len(runs) - len(plain) > 1.3 * 10_000, "the engine, and the data"
    again = load_doc(tmp_path / "net.gdlab.json").save(tmp_path / "again.html", runnable=True).read_text("utf-8")
    assert re.findall(r"sha256-\S+'", again) == re.findall(r"sha256-\S+'", runs)
    study.close()


def runnable_suffixes() -> tuple[str, ...]:
    from gdlab.view.saved_views import RUNNABLE

    return RUNNABLE


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(ArgumentError) as info:
        call()
    assert all(word in str(info.value) for word in words), str(info.value)


def test_what_no_page_can_run_is_refused_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made("gated", sgd=1e-3, init=0)
    path = tmp_path / "net.html"
    refused(lambda: study.doc.save(path, runnable=True), "given a document without its study, wanted a Study")
    refused(lambda: study.save(tmp_path / "net.svg", runnable=True), ".svg", ".html")
    for batches in (0, -1, True, 1.5, "2", 10**9):
        refused(lambda b=batches: study.save(path, runnable=True, batches=b), "batches", "1 … 10000")  # type: ignore[misc]
    study.session.set_grad_accumulate(4)
    refused(lambda: study.save(path, runnable=True), "gradients of 4 steps")
    study.session.set_grad_accumulate(1)
    monkeypatch.setattr(runnable, "MOST_BYTES", 1000)
    refused(lambda: study.save(path, runnable=True), "parameters and batches", "large=True")
    assert list(tmp_path.iterdir()) == []
    study.save(path, runnable=True, large=True)
    study.close()


def test_a_plan_that_needs_more_than_every_browser_has_is_refused_by_its_tensor(tmp_path: Path) -> None:
    with Graph() as g:
        h = ops.input("x", (8, 6000)) @ ops.parameter("wide", (6000, 6000))
        g.output(ops.mse_loss(h, ops.input("y", (8, 6000))))
    study = Study(g, train=True, device="cpu", name="wide")
    refused(lambda: study.save(tmp_path / "wide.html", runnable=True), "wide", "what every browser with WebGPU has")
    study.close()


def test_trained_weights_take_a_trained_study(tmp_path: Path) -> None:
    study = made("gated")
    refused(
        lambda: study.save(tmp_path / "net.html", runnable=True, weights=True), "no value for", "run the study first"
    )
    study.close()


def test_the_command_line_saves_a_page_that_runs(tmp_path: Path) -> None:
    lines = (
        "from gdlab import Graph, ops", "with Graph() as g:",
        "    h = ops.tanh(ops.input('x', (4, 3)) @ ops.parameter('w', (3, 2)))",
        "    g.output(ops.mse_loss(h, ops.input('y', (4, 2))))",
    )  # fmt: skip
    (tmp_path / "net.py").write_text("\n".join(lines), "utf-8")
    options = "--train --steps 2 --feed random:0 --sgd 0.1 --init 0 --device cpu --save net.gdlab.json --runnable"
    command = [sys.executable, "-m", "gdlab", "run", "net.py", *options.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "net.gdlab.json").read_text("utf-8"))["run"]["update"]["text"] == "SGD, lr 0.1"
