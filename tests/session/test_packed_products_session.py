"""Sessions of a layer whose query, key and value are one product: by name all is as if they were three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attending import ENABLED, FOURS, ODD_T, ROWS, Heads, K, both, layer, session_of, two
from documents import checked
from gated import alike, crosswise, recipe, same
from matrix import also
from optimizing import graph_of, p
from plans import feeds_of
from safetensors.numpy import load_file
from slot_checker import in_order, judge

from gdlab import ops
from gdlab.graph import Graph, Value
from gdlab.models import TransformerLmConfig, transformer_lm
from gdlab.op import reference
from gdlab.plan.target import CompileOptions
from gdlab.session import (
    Session,
    SessionConfig,
    build,
    build_inference_session,
    build_session_cached,
    by_buffer,
)
from gdlab.study import parity
from gdlab.study.study import Study


# by name --------------------------------------------------------------------------------------------------------------
@both
def test_each_weight_is_written_and_read_by_its_own_name(device: str, heads: Heads) -> None:
    with session_of(device, heads) as s:
        assert s.param_names() == ["norm", "q", "k", "v", "o"] and s.param_size("k") == K * heads.narrow
        data = {n: (100 * i + np.arange(s.param_size(n))).reshape(heads.shape(n)) for i, n in enumerate("qkv")}
        for n in "vkq":
            s.set_parameter(n, data[n])
        assert s.unset_parameters == ["norm", "o"]
        for n in "qkv":
            assert np.array_equal(s.read_param(n), data[n])
        whole = s.read_param("q+k+v")
        assert np.array_equal(whole, np.concatenate([data[n] for n in "qkv"], heads.axis))
        s.set_parameter("q+k+v", -whole)
        assert np.array_equal(s.read_param("k"), -data["k"])


@pytest.mark.parametrize(
    ("device", "heads", "rule"),
    also(
        [(*case, rule) for case in (("cpu", FOURS), ("cpu", ODD_T)) for rule in ("set_learning_rate", "set_adam")]
        + [("wgpu", ODD_T, "set_adam")],
        ("wgpu", ODD_T, "set_learning_rate"),
    ),
    indirect=["device"],
)
def test_every_update_treats_each_weight_as_a_parameter(device: str, heads: Heads, rule: str) -> None:
    """Multipliers, clipping, accumulation, moments: compared with a session where the weights lie apart."""
    a, b = two(device, heads)

    class Renamed:
        """The recipe of a gate, on query and value."""

        def __init__(self, s: Session) -> None:
            self.s = s

        def __getattr__(self, name: str) -> Any:
            return getattr(self.s, name)

        def set_lr_multiplier(self, name: str, value: float) -> None:
            self.s.set_lr_multiplier({"gate": "q", "up": "v"}[name], value)

    with a, b:
        start = a.read_param("q")
        for s in (a, b):
            recipe(Renamed(s), rule)  # type: ignore[arg-type]
        same(a, b, 2e-3 if device == "wgpu" else 2e-4)
        assert not np.allclose(a.read_param("q"), start, atol=1e-4)
        want = dict(b.read_all_param_grad_norms())
        assert dict(a.read_all_param_grad_norms()) == pytest.approx(want, rel=1e-3) and list(want) == a.param_names()


def test_the_products_are_read_by_their_names(device: str) -> None:
    with session_of(device) as s:
        s.initialize(3)
        s.step()
        (made,) = (d for d in s.plan().dispatches if d.in_columns)
        buffers = [s.plan().buffers[b] for b in made.outputs]
        assert [b.name for b in buffers] == ["qq", "kk", "vv"]
        assert [b.shape for b in buffers] == [(ROWS, n) for n in FOURS.widths.values()]
    with session_of(device, compile=CompileOptions(pin=("kk",))) as s:
        s.initialize(3)
        s.step()
        x = s.read_input("x")
        h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * s.read_param("norm")
        np.testing.assert_allclose(s.read_node_by_name("kk"), h @ s.read_param("k"), rtol=1e-3, atol=1e-5)


# training and checkpoints ---------------------------------------------------------------------------------------------
def tensors(s: Session, path: Path) -> Mapping[str, np.ndarray]:
    s.save_checkpoint(path)
    return load_file(path)


@both
def test_ten_steps_are_the_same_packed_or_not(device: str, heads: Heads, tmp_path: Path) -> None:
    a, b = two(device, heads)
    with a, b:
        losses = []
        for s in (a, b):
            s.set_learning_rate(0.05)
            found = []
            for _ in range(10):
                s.step()
                found.append(s.read_loss())
            losses.append(found)
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        assert losses[0][-1] < losses[0][0]
        mine, theirs = tensors(a, tmp_path / "a"), tensors(b, tmp_path / "b")
        alike(mine, theirs)


def test_a_checkpoint_goes_both_ways(device: str, tmp_path: Path) -> None:
    a, b = two(device)
    with a, b:
        crosswise(a, b, tmp_path, "k", build_inference_session(layer(), device))


def test_a_cached_plan_is_packed_too(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        config = SessionConfig(device="cpu", optimize=ENABLED, cache=tmp_path / "plan.json")  # type: ignore[arg-type]
        s, report = build(layer(), config)
        with s:
            s.initialize(7)
            for name in "xy":
                s.set_input(name, np.ones((ROWS, K)))
            s.set_learning_rate(0.1)
            s.step()
            found.append((s.plan(), s.read_param("k").tobytes()))
    assert report.stop_reason == "cache-hit"
    assert found[0] == found[1] and found[0][0].derived_params
    with build_session_cached(layer(), tmp_path / "plan.json", "cpu") as other:  # without the rule: another plan
        assert other.plan().derived_params == ()


def test_a_session_that_shares_parameters_stores_them_as_the_other_does(device: str) -> None:
    with session_of(device) as training:
        config = SessionConfig("inference", device, ENABLED, share_parameters_from=training)  # type: ignore[arg-type]
        reading, _ = build(layer(), config)
        training.initialize(3)
        assert np.array_equal(reading.read_param("v"), training.read_param("v")) and reading.read_param("v").any()
        reading.close()


# looked at ------------------------------------------------------------------------------------------------------------
def test_every_range_is_looked_at(device: str) -> None:
    """A NaN in the last of three results is found in its dispatch, and traced to it."""
    with session_of(device) as s:
        s.initialize(3)
        (d,) = (d for d in s.plan().dispatches if d.in_columns)
        told = {each.index: data for each, data in s.dispatch_outputs()}
        assert len(told) == len(s.plan().dispatches) and told[d.index].shape == (ROWS, 32)
        parts = dict(by_buffer(d, (told[d.index],)))
        assert list(parts) == list(d.outputs) and [v.shape[1] for v in parts.values()] == [16, 8, 8]
        assert s.step_debug().anomalies == ()
        bad = s.read_param("v")
        bad[0, 0] = np.nan
        s.set_parameter("v", bad)
        rows = s.trace_dispatches()
        assert rows[0].index == d.index and rows[0].nan
        culprit = s.search.first_bad()
        assert culprit is not None and culprit.dispatch == d.index and culprit.first == 24
        first = s.step_debug().anomalies[0]
        assert (first.dispatch, first.first_index, first.has_nan) == (d.index, 24, True)


def test_its_time_is_one_dispatch(device: str) -> None:
    with session_of(device) as s:
        s.initialize(3)
        s.set_profiling(True)
        s.step()
        s.wait()
        labels = [label for _, label, _ in s.profiled_dispatch_timings()]
        assert len([label for label in labels if label.startswith("MatMul[5x32x6]")]) == 1


@pytest.mark.parametrize("options", [CompileOptions(reorder=True), CompileOptions(serial=True), CompileOptions()])
def test_any_order_inside_a_group_gives_the_same_bits(options: CompileOptions) -> None:
    with session_of("cpu", compile=options) as s:
        judge(s.plan())
        s.initialize(3)
        s.step()
        want = [s.read_loss(), *(s.read_param_grad(n).tobytes() for n in s.param_names())]
        plan = s.plan()
        order = [k for g in plan.groups for k in reversed(range(g.start, g.stop))]
        judge(replace(plan, dispatches=tuple(in_order(plan, order))))
    with session_of("cpu") as plain:
        plain.initialize(3)
        plain.step()
        assert [plain.read_loss(), *(plain.read_param_grad(n).tobytes() for n in plain.param_names())] == want


def lm() -> Graph:
    return transformer_lm(TransformerLmConfig(16, 8, 2, 2, 1, 16), 8)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make", [layer, lm])
def test_its_document_holds(make: Any, train: bool) -> None:
    study = Study(make(), train=train, device="cpu", enable=("pack_products",), name="layer")
    document = checked(study.doc)
    texts = document.data["plan"]["kernels"]
    assert document.data["notes"] == [] and texts["count"] > 3
    study.close()
    roles = [b["role"] for each in texts["bindings"] for b in each]
    assert roles.count("result") > texts["count"] - 1


def test_a_document_shows_a_kernel_for_every_way_to_cut() -> None:
    """Two products of one size whose first ranges are equal and whose others are not."""

    def make() -> list[Value]:
        found = []
        for side, widths in (("a", (4, 4, 8)), ("b", (4, 8, 4))):
            x = ops.input(side, (2, 4))
            found += [x @ p(f"{side}{i}", 4, n) for i, n in enumerate(widths)]
        return found

    study = Study(graph_of(make), device="cpu", enable=("pack_products",), name="cuts")
    document = checked(study.doc)
    assert [d.label for d in study.plan.dispatches] == ["MatMul[2x16x4]"] * 2
    assert document.data["plan"]["kernels"]["count"] == 2
    study.close()


def test_parity_looks_at_every_range(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(layer(), train=True, device="cpu", enable=("pack_products",), name="layer")
    feeds = feeds_of(study.graph)
    check = parity.check_execution(study.execution, feeds, ["cpu"])
    assert check.ok, str(check)
    keys = [n.id for n in study.final if n.name == "vv"]

    def bent(graph: Graph, given: Any) -> Any:
        values = dict(reference.evaluate(graph, given))
        for id in keys if graph is study.final else ():
            values[id] = values[id] + 1
        return values

    session, plan = session_of("cpu"), study.final
    with session:
        for name in session.param_names():
            session.set_parameter(name, feeds[name])
        for name in "xy":
            session.set_input(name, feeds[name])
        words, about = parity.first_dispatch(session, bent(plan, feeds), 1e-5)
        (d,) = (d for d in session.plan().dispatches if d.in_columns)
    assert about == f"dispatch:{d.index}" and "vv" in words
    study.close()
