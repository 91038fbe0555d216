"""Nobody outside notices that weights lie packed: values, gradients, moments, rates and files are by source."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated import (
    SWIGLU,
    SWIGLU_BT,
    Form,
    K,
    N,
    alike,
    both,
    crosswise,
    different,
    ffn,
    forms,
    recipe,
    same,
    session_of,
    two,
)
from machine import needs
from matrix import also
from optimizing import graph_of, p
from safetensors.numpy import load_file

from gdlab import ops
from gdlab.base.errors import GdlabError, SessionError, ShapeError, UnknownNameError
from gdlab.graph import Graph

# sessions -------------------------------------------------------------------------------------------------------------
from gdlab.session import Session, SessionConfig, build, build_inference_session, build_session_cached
from gdlab.session.builders import resolve_device


# sessions -------------------------------------------------------------------------------------------------------------
@both
def test_each_source_is_written_and_read_by_its_own_name(device: str, form: Form) -> None:
    with session_of(device, form) as s:
        data = different(form)
        assert s.param_names() == ["gate", "up", "down", "bias"] and s.param_size("up") == K * N
        assert s.unset_parameters == s.param_names() and s.has_param_grad("gate") and s.has_parameter("up")
        s.set_parameter("up", data["up"])
        assert s.unset_parameters == ["gate", "down", "bias"] and not s.read_param("gate").any()
        s.set_parameter("gate", data["gate"].reshape(-1))
        for name in data:
            assert np.array_equal(s.read_param(name), data[name])
        whole = s.read_param("gate+up")
        assert np.array_equal(whole, np.concatenate([data["gate"], data["up"]], form.axis))
        assert all(np.array_equal(v, data[n]) for n, v in s.read_params(["up", "gate"]).items())
        assert np.array_equal(s.read_param("gate", np.empty(form.weight, np.float32)), data["gate"])
        assert dict(s.read_all_param_norms())["up"] == pytest.approx(np.linalg.norm(data["up"]), rel=1e-6)
        s.set_parameter("gate+up", -whole)
        assert np.array_equal(s.read_param("up"), -data["up"])


def test_the_whole_gives_a_value_to_all_its_sources() -> None:
    with session_of("cpu") as s:
        s.set_parameter("gate+up", np.ones((K, 2 * N)))
        assert s.unset_parameters == ["down", "bias"] and s.has_param_grad("gate+up")


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda s: s.set_parameter("up", np.zeros(K * N - 1)), ShapeError, "given 14 values"),
        (lambda s: s.set_parameter("up", np.zeros((N, K))), ShapeError, "wanted"),
        (lambda s: s.set_parameter("gate+up", np.zeros(K * N)), ShapeError, "given 15 values, wanted 3 x 10 = 30"),
        (lambda s: s.read_param("gate + up"), UnknownNameError, "gate"),
        (lambda s: s.read_param_grad("up"), SessionError, "no step yet"),
        (lambda s: s.set_lr_multiplier("gatee", 2.0), UnknownNameError, "gate"),
    ],
)
def test_a_call_that_fails_changes_neither_source(
    act: Callable[[Session], Any], error: type[GdlabError], message: str
) -> None:
    with session_of("cpu") as s:
        s.initialize(2)
        before = s.read_param("gate+up")
        with pytest.raises(error, match=re.escape(message)):
            act(s)
        assert np.array_equal(s.read_param("gate+up"), before)


@forms
def test_initial_values_do_not_depend_on_packing(form: Form) -> None:
    a, b = two("cpu", form)
    for n in a.param_names():
        assert np.array_equal(a.read_param(n), b.read_param(n)) and (n == "bias" or a.read_param(n).any())
    a.close()
    b.close()


@both
def test_gradients_and_moments_are_those_of_the_source(device: str, form: Form) -> None:
    """Never short buffers, never the other half: each is compared with a session where the weights lie apart."""
    a, b = two(device, form)
    with a, b:
        for s in (a, b):
            s.set_adam(0.01)
            s.step()
        same(a, b, 2e-4)
        assert a.read_param_grad("gate").shape == form.weight
        assert not np.allclose(a.read_param_grad("gate"), a.read_param_grad("up"))
        want = dict(b.read_all_param_grad_norms())
        assert dict(a.read_all_param_grad_norms()) == pytest.approx(want, rel=1e-4) and list(want) == a.param_names()
        other = a.read_adam_m("up")
        a.write_adam_m("gate", np.full(form.weight, 3.0))
        assert np.array_equal(a.read_adam_m("up"), other) and (a.read_adam_m("gate") == 3).all()
        whole = a.read_adam_m("gate+up")
        assert np.array_equal(whole, np.concatenate([a.read_adam_m("gate"), other], form.axis))
        node = next(n.id for n in ffn(form).parameters if n.name == "up")
        np.testing.assert_array_equal(a.read_node(node), a.read_param("up"))
        assert a.memory_summary().adam_state_bytes == 3 * 2 * 256  # of gate+up, down and bias


RULES = "set_learning_rate", "set_adam", "set_adamw", "set_laprop"
# Every rule on cpu and, as what a rule of its own does per source is planned alike, one of each state on wgpu; the
# kernels of all rules: test_update_rules.py.
UPDATES = [
    *(("cpu", rule, SWIGLU) for rule in RULES), ("cpu", "set_adam", SWIGLU_BT),
    ("wgpu", "set_adamw", SWIGLU), ("wgpu", "set_adam", SWIGLU_BT),
]  # fmt: skip
EVERY_UPDATE = [(device, rule, form) for device in ("cpu", "wgpu") for rule in RULES for form in (SWIGLU, SWIGLU_BT)]
FURTHER = [each for each in EVERY_UPDATE if each not in UPDATES]


@pytest.mark.parametrize(("device", "rule", "form"), also(UPDATES, *FURTHER), ids=str, indirect=["device"])
def test_every_update_treats_each_source_as_a_parameter(device: str, form: Form, rule: str) -> None:
    a, b = two(device, form)
    with a, b:
        start = a.read_param("gate")
        for s in (a, b):
            recipe(s, rule)
        same(a, b, 1e-3 if device == "wgpu" else 1e-4)
        assert not np.allclose(a.read_param("gate"), start, atol=1e-4)


@both
def test_a_multiplier_of_one_half_leaves_the_other_alone(device: str, form: Form) -> None:
    with session_of(device, form) as s:
        s.initialize(7)
        before = {n: s.read_param(n) for n in s.param_names()}
        s.set_learning_rate(0.1)
        alike = s.update_dispatches()
        s.set_lr_multiplier("up", 0)
        assert len(s.update_dispatches()) == len(alike) and s.update_dispatches() != alike
        s.step()
        assert np.array_equal(s.read_param("up"), before["up"])
        want = before["gate"] - np.float32(0.1) * s.read_param_grad("gate")
        np.testing.assert_allclose(s.read_param("gate"), want, rtol=1e-6)
        assert s.read_param_grad("up").any()
        s.set_lr_multiplier("gate", 0)
        assert len(s.update_dispatches()) == 1  # both are alike again
        s.set_lr_multiplier("", 2)
        assert len(s.update_dispatches()) == 1


# training and checkpoints ---------------------------------------------------------------------------------------------
def tensors(s: Session, path: Path) -> Mapping[str, np.ndarray]:
    s.save_checkpoint(path)
    return load_file(path)


@forms
def test_twenty_steps_are_the_same_packed_or_not(device: str, form: Form, tmp_path: Path) -> None:
    a, b = two(device, form)
    with a, b:
        losses = []
        for s in (a, b):
            s.set_adam(0.01)
            rng, found = np.random.default_rng(1), []
            for _ in range(20):
                s.set_input("x", rng.normal(size=(4, K)))
                s.step()
                found.append(s.read_loss())
            losses.append(found)
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        assert losses[0][-1] < losses[0][0]
        mine, theirs = tensors(a, tmp_path / "a"), tensors(b, tmp_path / "b")
        assert "adam_v.up" in mine
        alike(mine, theirs)


def test_a_checkpoint_says_nothing_of_packing(device: str, tmp_path: Path) -> None:
    """Equal values make equal files, and each session takes the other's."""
    a, b = two(device)
    with a, b:
        crosswise(a, b, tmp_path, "up", build_inference_session(ffn(), device))


def test_a_cached_plan_is_packed_too(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with build_session_cached(ffn(), tmp_path / "plan.json", "cpu") as s:
            s.initialize(7)
            s.set_input("x", np.ones((4, K)))
            s.set_input("y", np.zeros((4, 2)))
            s.set_learning_rate(0.1)
            s.step()
            found.append((s.plan(), s.read_param("up").tobytes()))
    assert found[0] == found[1] and found[0][0].derived_params


# sharing --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pack", [True, False])
def test_a_session_that_shares_parameters_stores_them_as_the_other_does(device: str, pack: bool) -> None:
    with session_of(device, pack=pack) as training:
        options = {"disable": "neg_neg"}
        config = SessionConfig("inference", device, options, share_parameters_from=training)
        reading, _ = build(ffn(), config)
        assert reading.plan().derived_params == training.plan().derived_params
        data = different(SWIGLU)["up"]
        training.initialize(3)
        reading.set_parameter("up", data)
        assert np.array_equal(training.read_param("up"), data) and reading.unset_parameters == []
        reading.close()


def test_weights_that_lie_in_one_buffer_are_shared_together() -> None:
    with session_of("cpu") as training:
        config = SessionConfig("inference", "cpu", share_parameters_from=training, shared=("gate", "bias"))
        with pytest.raises(SessionError, match="parameter up: given .*, shared too"):
            build(ffn(), config)


def test_weights_that_lie_together_cannot_be_shared_apart() -> None:
    with session_of("cpu") as training:
        graph = graph_of(lambda: ops.input("x", (4, K)) @ p("up", K, N))
        with pytest.raises(SessionError, match=re.escape("parameter up: given one stored in gate+up")):
            build(graph, SessionConfig(mode="inference", device="cpu", share_parameters_from=training))


@both
def test_outputs_are_the_users_then_the_gradients_by_source(device: str, form: Form) -> None:
    with session_of(device, form) as s:
        s.initialize(0)
        for name in s.input_names():
            s.set_input(name, np.linspace(-1, 1, s.values.places.types[s.values.places.inputs[name]].num_elements))
        s.step()
        outputs = s.outputs()
        assert [o.name for o in outputs[s.num_outputs() :]] == [f"∂{name}" for name in s.param_names()]
        for index in range(s.num_outputs()):
            read = s.values.read(outputs[index].place).reshape(outputs[index].shape)
            assert np.array_equal(read, s.read_output_by_index(index))
        for output in outputs[s.num_outputs() :]:
            want = s.read_param_grad(output.name[1:])
            assert output.shape == want.shape and np.array_equal(s.values.read(output.place).reshape(want.shape), want)
    with pytest.raises(SessionError, match="closed"):
        s.outputs()


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_outputs_of_inference_have_no_gradients(device: str) -> None:
    with Graph() as g:
        y = ops.input("x", (2, 3)) @ ops.parameter("w", (3, 4))
        g.set_outputs({"y": y, "total": y.sum_all()})
    with build_inference_session(g, device) as s:
        assert [(o.name, o.shape) for o in s.outputs()] == [("y", (2, 4)), ("total", (1,))]


# on hardware ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", also([SWIGLU], SWIGLU_BT), ids=str)
def test_gates_stay_apart_on_hardware(form: Form) -> None:
    """One dispatch computes both products and the gate there, and where dispatches merge stores both for training; not
    where the caller asks for packed weights, or shares those of a session that has packed them."""
    needs("wgpu")
    found = resolve_device("wgpu")
    hardware, lanes = copy.copy(found), copy.copy(found)
    hardware.target = replace(found.target, adapter_class="hardware", merges=False)
    lanes.target = replace(found.target, adapter_class="software", merges=False)

    def opened(mode: Any, device: Any = hardware, **fields: Any) -> Session:
        session, _ = build(ffn(form), SessionConfig(mode=mode, device=device, **fields))
        return session

    def packs(session: Session) -> bool:
        return bool(session.plan().derived_params)

    merging = copy.copy(hardware)
    merging.target = replace(hardware.target, merges=True)
    with opened("training", merging) as trained, opened("training", lanes) as software:
        assert not packs(trained) and packs(software)
        for session in (trained, software):
            session.initialize(7)
            session.set_learning_rate(0.1)
            session.set_input("x", np.ones((4, K)))
            session.set_input("y", np.zeros((4, 2)))
            for _ in range(3):
                session.step()
        losses = [[loss for _, loss in session.take_losses(True)] for session in (trained, software)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
        for name in ("gate", "up"):
            np.testing.assert_allclose(trained.read_param(name), software.read_param(name), rtol=1e-3, atol=1e-5)
        assert any(r.value for d in trained.plan().dispatches for r in d.results)
    with opened("inference") as apart, opened("training") as trained, opened("inference", lanes) as software:
        assert [packs(s) for s in (apart, trained, software)] == [False, True, True]
        with opened("inference", share_parameters_from=trained) as shared:
            assert packs(shared)
        with opened("training", share_parameters_from=apart) as later:
            assert not packs(later)
        asked = {"enable": form.rule}, {"only": (form.rule,)}
        for options in asked:
            with opened("inference", optimize=options) as packed:
                assert packs(packed)
        for session in (apart, software):
            session.initialize(7)
            session.set_input("x", np.ones((4, K)))
            session.set_input("y", np.zeros((4, 2)))
            session.step()
        np.testing.assert_allclose(apart.read_output_by_index(1), software.read_output_by_index(1), rtol=1e-5)
