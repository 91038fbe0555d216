"""`study.look`: a tensor in numbers, exact values, and the difference to the reference or the cpu device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from documents import checked
from gated import SWIGLU, SWIGLU_BT, Form, ffn
from networks import small_mlp

from gdlab import ops
from gdlab.base.errors import ArgumentError, GdlabError, SessionError
from gdlab.base.statistics import Summary, difference, summarize
from gdlab.graph import Graph
from gdlab.jupyter.commands import COMMANDS
from gdlab.op.reference import evaluate
from gdlab.session.tensors import find_tensor, initial_leaves
from gdlab.study.study import Study
from gdlab.view.text.twin import twin


@pytest.fixture
def study(device: str) -> Iterator[Study]:
    study = Study(small_mlp(), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    study.run(2)
    yield study
    study.close()


def of(study: Study, name: str) -> int:
    return next(n.id for n in study.graph if n.name == name)


@pytest.mark.parametrize("name", ["h", "z"])
def test_a_node_against_the_reference(study: Study, name: str) -> None:
    study.run_to(name)
    found = study.look(name, against="reference", row=3, col=1)
    dispatch, data = study.runner.output()
    feeds = {n: study.session.read_param(n) for n in study.session.param_names()}
    feeds |= {n: study.session.read_input(n) for n in study.session.input_names()}
    want = evaluate(study.graph, feeds)[of(study, name)]
    assert found.summary == summarize(data) and found.place == study.runner.place and dispatch.index in (0, 1)
    assert found.difference == difference(data, want, "the reference")
    assert found.difference.error < 1e-5 and np.array_equal(found.window.values, data[3:19, 1:17])


def test_a_gradient_and_parameters_when_the_update_has_run(study: Study) -> None:
    """The parameters that the step began with are known though Adam has changed them: the differences stay small."""
    count = len(study.session.step_dispatches())
    opening = study.session.read_param("w1")
    study.step_dispatch(count)
    assert study.session.step_count == 3 and not study.session.under_way
    kept = initial_leaves(study.session)
    assert kept is not None and np.array_equal(kept["w1"], opening)
    assert not np.array_equal(study.session.read_param("w1"), opening)
    for name in ("w1.grad", "b2.grad", "h"):
        told = study.look(name, against="reference").difference
        assert told is not None and told.error < 1e-5 and told.unlike == 0, name
        told = study.look(name, against="cpu").difference
        assert told is not None and (told.ulp == 0 or study.device.info.kind != "cpu"), name
    moved = study.look("w1", against="reference").difference
    way = float(np.abs(study.session.read_param("w1") - opening).max())
    assert moved is not None and moved.error == pytest.approx(way)


def test_between_steps_the_value_is_told_and_the_difference_is_not(study: Study) -> None:
    found = study.look("w1.grad")
    assert found.place == "after step 2" and found.difference is None
    assert found.summary == summarize(study.session.read_param_grad("w1"))
    with pytest.raises(SessionError, match=r"look: difference of w1.grad: given a step that is over, wanted a step by"):
        study.look("w1.grad", against="reference")
    with pytest.raises(ArgumentError, match="look: against: given 'gpu', wanted one of reference, cpu"):
        study.look("w1", against="gpu")  # type: ignore[arg-type]


def test_without_a_step_there_is_no_value() -> None:
    study = Study(small_mlp(), train=True, device="cpu", name="mlp")
    study.prepare(feed="random:0", sgd=0.1, init=0)
    with pytest.raises(SessionError, match="look: h: given no value yet, wanted a step by dispatches up to it"):
        study.look("h")
    assert study.look("w1").summary.n == 192, "a parameter has one"
    study.close()


def test_inference_is_compared_at_any_time(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (2, 3, 4, 8))
        g.output(ops.softmax(x * ops.parameter("s", (2, 3, 4, 8))).named("p"))
    study = Study(g, device=device, name="p")
    study.run(1, feed="random:0", init=0)
    found = study.look("p", against="reference", slice=(1, 2))
    assert found.difference is not None and found.difference.error < 1e-5 and found.window.slice == (1, 2)
    assert np.array_equal(found.window.values, study.session.read_output()[1, 2])
    study.close()


def test_weights_that_lie_packed_are_told_apart(device: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 8))
        parts = [x @ ops.parameter(name, (8, 6)) for name in ("q", "k", "v")]
        g.output(ops.sum_all(ops.square(parts[0]) * parts[1] + parts[2]))
    study = Study(g, train=True, device=device, name="qkv")
    study.prepare(feed="random:0", sgd=0.1, init=0)
    study.run(1)
    opening = {name: study.session.read_param(name) for name in "qkv"}
    study.step_dispatch(len(study.session.step_dispatches()))
    kept = initial_leaves(study.session)
    assert kept is not None and all(np.array_equal(kept[name], opening[name]) for name in "qkv")
    for name in "qkv":
        tensor = find_tensor(study.session, "test", f"{name}.grad")
        assert tensor.shape == (8, 6) and tensor.writers(study.session.step_dispatches())
        found = study.look(f"{name}.grad", against="reference")
        assert found.difference is not None and found.difference.error < 1e-4
        assert found.summary == summarize(study.session.read_param_grad(name))
    study.runner.back(1)
    assert all(np.array_equal(study.session.read_param(name), opening[name]) for name in "qkv") or (
        len(study.session.update_dispatches()) > 1
    )
    study.close()


@pytest.mark.parametrize("form", [SWIGLU, SWIGLU_BT], ids=str)
def test_a_part_of_a_packed_weight_and_the_whole(device: str, form: Form) -> None:
    study = Study(ffn(form), train=True, device=device, name="ffn")
    study.prepare(feed="random:0", adam=1e-2, init=0)
    (whole,) = [i for i, b in enumerate(study.plan.buffers) if b.name == "gate+up"]
    study.run(1)
    stepped(study)
    up, both = study.look("up"), study.look(f"interval:{whole}")
    assert np.array_equal(up.window.values, study.session.read_param("up")) and up.value.about == "node:0.3"
    assert np.array_equal(both.window.values, study.session.read_param("gate+up")) and both.name == "gate+up"
    assert up.read == both.read == 2 * up.summary.n * 4, "of a part the whole is read"
    for name in ("gate", "up"):
        found = study.look(f"{name}.grad", against="reference")
        assert np.array_equal(found.window.values, study.session.read_param_grad(name))
        assert found.difference is not None and found.difference.error < 1e-5 and found.difference.unlike == 0
        assert study.look(f"{name}.grad", against="cpu").difference is not None
    study.close()


def test_the_storage_of_weights_without_values_has_none() -> None:
    study = Study(ffn(SWIGLU), train=True, device="cpu", name="ffn")
    (whole,) = [i for i, b in enumerate(study.plan.buffers) if b.name == "gate+up"]
    with pytest.raises(SessionError, match=r"look: gate\+up: given no value yet"):
        study.look(f"interval:{whole}")
    study.close()


# what may be looked at ------------------------------------------------------------------------------------------------
def stepped(study: Study) -> None:
    """One whole step, dispatch by dispatch: what it began with is known."""
    study.step_dispatch(len(study.session.step_dispatches()))


def test_every_node_of_every_stage_is_its_reference(study: Study) -> None:
    """Of each of five graphs: on the device where it lies there, else by the reference, never another node's value."""
    feeds, seen = None, set[str]()
    dispatches = len(study.session.step_dispatches())
    study.step_dispatch(1)
    while study.session.under_way:
        feeds = initial_leaves(study.session)
        assert feeds is not None
        for stage, graph in enumerate(each.graph for each in study.stages()):
            values = evaluate(graph, feeds)
            for node in graph:
                if node.op in ("input", "parameter"):
                    continue
                try:
                    found = study.look(f"node:{stage}.{node.id}")
                except SessionError as error:
                    assert "given no value now, wanted a step by dispatches up to it" in str(error)
                    continue
                want = summarize(values[node.id])
                assert found.summary.mean == pytest.approx(want.mean, rel=1e-4, abs=1e-6), (stage, node.id)
                assert found.summary.l2 == pytest.approx(want.l2, rel=1e-4, abs=1e-6)
                assert found.value.shape == node.type.shape and found.value.step == 3
                seen.add(found.value.about)
        study.step_dispatch(1)
    assert dispatches > 4 and {"node:0.6", "node:0.3", "node:3.4", "interval:15"} <= seen


def test_edges_buffers_dispatches_lines_and_kernels(study: Study) -> None:
    stepped(study)
    plan = study.plan
    for entity, name, about in (
        ("edge:0.6.0", "%5", "node:0.5"), ("edge:0.8.0", "h", "node:0.6"), ("dispatch:0", "h", "interval:6"),
        ("interval:2", "w1", "interval:2"), ("kernel:0", "h", "interval:6"), ("%6", "h", "node:0.6"),
    ):  # fmt: skip
        try:
            found = study.look(entity)
            assert (found.name, found.value.about) == (name, about)
        except SessionError as error:  # its memory was taken over within the step
            assert f"look: {name}: given no" in str(error)
    moments = [i for i, b in enumerate(study.session.updates.state_buffers, len(plan.buffers)) if "w1" in b.name]
    read = [study.look(f"interval:{i}") for i in moments]
    assert [m.name for m in read] == ["adam_m.w1", "adam_v.w1"] and read[1].summary.min > 0
    assert read[0].read == 768 and read[0].value.type == "f32[12, 16]"
    line = next(row for row, each in enumerate(study.doc.lines) if study.doc.select(f"line:{row}") >= {"node:0.2"})
    assert study.look(f"line:{line}").value.about.startswith("node:0.")
    for entity, text in (
        ("edge:0.6.1", "look: entity: given edge:0.6.1, wanted an entity of the study's document"),
        ("node:9.0", "look: entity: given node:9.0, wanted an entity of the study's document"),
        ("node:4", r"look: entity: given node:4, wanted node:S.N, edge:S.N.P, interval:I or dispatch:D"),
        ("interval:99", r"look: interval: given 99, wanted 0 … 23: 24 buffers"),
        ("dispatch:99", r"look: dispatch: given 99, wanted 0 … \d+: a step has \d+"),
        ("hh", "look: tensor: given hh, wanted one of"),
    ):
        with pytest.raises(GdlabError, match=text):
            study.look(entity)


def test_a_node_without_memory_is_told_by_the_reference(study: Study) -> None:
    with pytest.raises(SessionError, match=r"look: %5: given no memory of its own: it went into dispatch 0 \(.*"):
        study.look("%5")  # the last step has changed the parameters
    study.step_dispatch(1)
    found, feeds = study.look("%5"), initial_leaves(study.session)
    assert feeds is not None and found.read == 0
    assert np.array_equal(found.window.values, evaluate(study.graph, feeds)[5][:16, :16])
    assert found.place.startswith("by the reference in float64, for it went into dispatch 0 (")
    with pytest.raises(SessionError, match="given a value of the reference, wanted one that a device has computed"):
        study.look("%5", against="cpu")


def test_another_executor_has_the_blocks_of_the_session(device: str) -> None:
    """The step of this block is 1; of its numbers, encoded again, it would be 5 / 127."""
    with Graph() as g:
        weight = ops.parameter("w", (64, 2), dtype="q8")
        g.output((ops.input("x", (4, 64)) @ weight).named("y"))
    study = Study(g, device=device)
    study.session.set_parameter_packed("w", (np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)) * 4)
    study.prepare(feed={"x": np.ones((4, 64))})
    study.run(1)
    for against in ("reference", "cpu"):
        told = study.look("y", against=against).difference
        assert told is not None and told.error == 0
    study.close()


def test_a_value_says_how_old_it_is(study: Study) -> None:
    """Kept where its memory was taken over; of an older step it says so."""
    study.watch("z")
    study.step_dispatch(2)
    assert study.look("z").value.step == 3 and study.look("z").value.dispatch == 1
    study.step_dispatch(len(study.session.step_dispatches()) - 2)
    kept = study.look("z")
    assert (kept.value.step, kept.value.dispatch, kept.place) == (3, -1, "after step 3")
    study.clear(1)
    study.run(1)
    old = study.look("z")
    if old.value.step == 3:  # its memory was taken over: the newest value that was kept
        assert old.value == replace(kept.value, dispatch=1, place="after dispatch 1 of step 3") and old.read == 0
    else:
        assert old.place == "after step 4" and old.read == 128


def test_names_that_look_like_entities_and_worse(device: str) -> None:
    names = ["interval:0", "node:0.0", "__proto__", "</script><img onerror=x>", "x" * 10_000, "\u202eabc\u200b", "a\nb"]
    with Graph() as g:
        value = ops.input("x", (3, 4))
        for name in names:
            value = ops.softmax(value * 2.0).named(name)
        g.output(value)
    study = Study(g, device=device, name="odd")
    study.run(1, feed="random:0")
    values = evaluate(study.graph, {"x": study.session.read_input("x")})
    for name in names:
        try:
            found = study.look(name)
        except SessionError as error:
            assert "given no value now" in str(error)
            continue
        assert found.name == name
        node = next(n.id for n in study.graph if n.name == name)
        assert found.value.about == f"node:0.{node}"
        assert found.summary.max == pytest.approx(values[node].max(), rel=1e-5)
    assert study.look(names[-1]).name == "a\nb"
    lines = twin(checked(study.doc), "session").split("\n")
    assert all(ord(c) >= 32 for line in lines for c in line) and any("a b : f32[3, 4]" in line for line in lines)
    study.close()


@pytest.mark.parametrize("shape", [(1,), (7,), (70, 130), (2, 3, 4), (2, 3, 20, 5)])
def test_every_rank_with_what_is_not_finite(device: str, shape: tuple[int, ...]) -> None:
    """The device's own values against NumPy: NaN, infinities, zeros, denormals, the largest float."""
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3.4e38, -3.4e38], np.float32)[: data.size]
    data.reshape(-1)[: odd.size] = odd
    with Graph() as g:
        g.output(ops.input("x", shape) + 0.0)
    study = Study(g, device=device, name="odd")
    study.session.set_input("x", data)
    picked = tuple(n - 1 for n in shape[:-2])
    found = study.look("x", slice=picked)
    plane = data.reshape(1, -1) if data.ndim < 2 else data[picked]
    good = data[np.isfinite(data)].astype(np.float64)
    s = found.summary
    assert (s.n, s.nan, s.inf, s.zero) == (data.size, np.isnan(data).sum(), np.isinf(data).sum(), (data == 0).sum())
    if good.size:
        assert [s.min, s.max, s.mean, s.std] == pytest.approx([good.min(), good.max(), good.mean(), good.std()])
    assert found.window.texts() == [[str(v) for v in row[:16]] for row in plane[:16]]
    assert found.value.slice == picked and found.value.shape == shape and found.read == data.nbytes
    json.dumps(found.to_json(), allow_nan=False)
    assert Summary.from_json(json.loads(json.dumps(s.to_json()))).to_json() == s.to_json()
    study.close()


def test_indices_and_half_floats(device: str) -> None:
    with Graph() as g:
        rows = ops.gather(ops.parameter_f16("table", (10, 6)), ops.input_u32("at", (4,)), axis=0)
        g.output(rows * 2.0)
    study = Study(g, device=device, name="rows")
    table = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float16)
    study.session.set_parameter("table", table.astype(np.float32))
    study.session.set_input_u32("at", np.array([1, 9, 0, 1], np.uint32))
    study.step()
    at, held = study.look("at"), study.look("table", against="reference")
    assert at.window.texts() == [["1", "9", "0", "1"]] and at.summary.zero == 1 and at.value.type == "u32[4]"
    assert np.array_equal(held.window.values, table) and held.difference is not None and held.difference.ulp == 0
    study.close()


def test_windows_end_where_the_tensor_ends(study: Study) -> None:
    assert study.look("w1", row=11, col=15).window.values.shape == (1, 1)
    assert study.look("w1", row=3, col=1).window.values.shape == (9, 15)
    for at, text in (
        ((12, 0), "look: row: given 12, wanted 0 … 11"),
        ((0, 16), "look: column: given 16, wanted 0 … 15"),
    ):
        with pytest.raises(ArgumentError, match=text):
            study.look("w1", row=at[0], col=at[1])


def test_a_run_that_goes_on_is_not_looked_at(study: Study) -> None:
    study.runner.set_speed(5)
    future = study.runner.start(50)
    with pytest.raises(
        SessionError, match="run: session: given a look while . of 50 are done, wanted a ready or paused"
    ):
        study.look("w1")
    study.pause()
    study.runner.wait(future)
    assert study.look("w1").place == f"after step {study.session.step_count}"


# the page's command ---------------------------------------------------------------------------------------------------
def test_the_command_says_what_python_says(study: Study) -> None:
    ask = COMMANDS["value"]
    study.step_dispatch(1)
    found = study.look("h", row=2, col=3, against="cpu")
    assert ask(study, {"name": "h", "row": 2, "col": 3, "against": "cpu", "slice": []}) == found.to_json()
    assert ask(study, {"name": "h", "against": None}) == study.look("h").to_json()
    assert ask(study, {"name": "%3"})["why"].startswith("difference of %3: given a value of the reference")  # type: ignore[index]
    for args, text in (
        ({}, "value: name: given None, wanted a text"),
        ({"name": "h", "row": -1}, "value: row: given -1, wanted an int ≥ 0"),
        ({"name": "h", "col": True}, "value: col: given True, wanted an int ≥ 0"),
        ({"name": "h", "row": 1.5}, "value: row: given 1.5, wanted an int ≥ 0"),
        ({"name": "h", "slice": "0"}, "value: slice: given '0', wanted a list of ints ≥ 0"),
        ({"name": "h", "slice": [-1]}, "value: slice: given -1, wanted an int ≥ 0"),
        ({"name": "h", "slice": [0]}, "look: slice: given [0], wanted none: the tensor has at most two axes"),
        ({"name": "h", "against": "gpu"}, "look: against: given 'gpu', wanted one of reference, cpu"),
        ({"name": "nope:3"}, "look: tensor: given nope:3, wanted one of x, y, "),
    ):
        with pytest.raises(GdlabError) as caught:
            ask(study, args)
        assert str(caught.value).startswith(text) and "\n" not in str(caught.value)
