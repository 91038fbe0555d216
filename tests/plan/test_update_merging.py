"""Updates over lists: one dispatch moves many parameters, each by its own factors and clips, with the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine import needs

from gdlab import kernels, ops
from gdlab.base.errors import CompileError
from gdlab.base.types import Array, TensorType
from gdlab.devices.base import Device, owner
from gdlab.devices.choose import device
from gdlab.graph import Graph
from gdlab.ops.packed import packed
from gdlab.plan import compile
from gdlab.plan.codec import decode, encode
from gdlab.plan.dispatch import Dispatch, ParameterUpdate, Stretch
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.rules import RULES
from gdlab.plan.schedule import numbered
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.update import MERGED, Clip, Recipe, parts_of, update_dispatches, update_of
from gdlab.plan.verify import verify_update
from gdlab.session import Optimizer, SessionConfig, build, build_session
from gdlab.session.update_settings import scalars

SIZES = {"a": (5, 3), "gate": (6, 5), "up": (6, 5), "b": (257,), "c": (1,), "d": (33, 9)}


def target(buffers: int, kind: Any = "hardware") -> Target:
    return Target("wgpu", kind, Limits(storage_buffers=buffers))


def parameters(count: int, states: int, size: int = 10) -> list[ParameterUpdate]:
    """Each with buffers of its own: itself, its states, its gradient."""
    step = 2 + states
    return [
        ParameterUpdate(
            TensorType((size,)), tuple(range(k, k + 1 + states)), k + 1 + states, (Stretch(size, 1.0 + k),), k // step
        )
        for k in range(0, count * step, step)
    ]


def sizes(dispatches: Sequence[Dispatch]) -> list[int]:
    return [len(d.update.parameters) for d in dispatches if d.update is not None]


# what one dispatch takes ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "states", "buffers", "wanted"),
    [
        ("adam", 2, 8, [1] * 20), ("adam", 2, 9, [2] * 10), ("adam", 2, 32, [7, 7, 6]), ("adam", 2, 1 << 19, [20]),
        ("sgd", 0, 8, [3, 3, 3, 3, 3, 3, 2]), ("sgd", 0, 32, [15, 5]), ("momentum", 1, 8, [2] * 10),
    ],
)  # fmt: skip
def test_one_dispatch_takes_what_its_bindings_allow(rule: str, states: int, buffers: int, wanted: list[int]) -> None:
    made = update_dispatches(RULES[rule], parameters(20, states), target(buffers))
    assert sizes(made) == wanted
    for d in made:
        assert len(d.bindings) + bool(d.scalars) <= buffers and d.scalars == RULES[rule].scalars
    assert [p for d in made if d.update for p in d.update.parameters] == parameters(20, states)  # each once, in order


def test_text_and_software_bound_what_is_merged() -> None:
    assert sizes(update_dispatches(RULES["sgd"], parameters(150, 0), target(1 << 19))) == [
        MERGED,
        MERGED,
        150 - 2 * MERGED,
    ]
    assert sizes(update_dispatches(RULES["sgd"], parameters(20, 0), target(32), merge=False)) == [1] * 20
    large, small = parameters(6, 0, 20_000)[:2], parameters(6, 0, 100)[2:]
    mixed = [large[0], small[0], large[1], *small[1:]]
    assert sizes(update_dispatches(RULES["sgd"], mixed, target(32, "software"))) == [1, 4, 1]
    assert sizes(update_dispatches(RULES["sgd"], mixed, target(32))) == [6]


def test_a_gradient_of_two_parameters_is_bound_once() -> None:
    one, two = parameters(2, 0)
    (d,) = update_dispatches(RULES["sgd"], [one, replace(two, gradient=one.gradient)], target(4))
    assert [b for b, _ in d.bindings] == [1, 0, 2] and len(d.operands) == 1


def test_what_a_merged_dispatch_says() -> None:
    (d,) = update_dispatches(RULES["adam"], parameters(3, 2, 1000), target(32))
    assert d.label == "Adam[3 parameters, 3,000]" and d.entry == "adam" and d.phase == "update"
    assert d.origin == (0, 1, 2) and [r.buffer for r in d.results] == [0, 4, 8] and len(d.in_place) == 9
    assert d.flops == 13 * 3000 and d.bytes_read == 16 * 3000 and d.bytes_written == 12 * 3000
    assert d.workgroups == (12, 1, 1)  # of 64 times four elements: four groups for each
    parts = parts_of(d)
    assert [p.origin for p in parts] == [(0,), (1,), (2,)] and [p.reads for p in parts][1] == (7, 4, 5, 6)
    assert {(p.index, p.label) for p in parts} == {(d.index, d.label)}
    assert decode(encode(d), Dispatch) == d
    halved = [replace(p, stretches=(Stretch(1000, 0.5),)) for p in parameters(3, 2, 1000)]
    (other,) = update_dispatches(RULES["adam"], halved, target(32))
    digests = {numbered([x], [0], [0])[0].source_hash for x in (d, other)}
    assert len(digests) == 2, "factors are constants of the text"


def test_every_line_stands_for_its_parameter() -> None:
    made = [replace(p, node=k + 1) for k, p in enumerate(parameters(3, 2))]
    (d,) = update_dispatches(RULES["adam"], made, target(32))
    text, line_map = kernels.wgsl(d, target(32))
    nodes = dict(line_map)
    for i, line in enumerate(text.split("\n"), 1):
        own = re.search(r"(?:weight|adam_m|adam_v|gradient)(\d)\[", line)
        assert own is None or nodes[i] == (int(own[1]) + 1,)
        assert "sqrt" not in line or nodes[i] == (1, 2, 3)
    assert text.count("sqrt(") == 1, "the arithmetic is written once"


# bits -----------------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["cpu", "software", "hardware"])
def where(request: Any) -> Iterator[tuple[Device, Target]]:
    if request.param == "cpu":
        found = device("cpu")
        yield found, replace(found.target, limits=replace(found.target.limits, storage_buffers=32))
    else:
        needs("wgpu")
        found = device("wgpu")
        yield found, replace(found.target, adapter_class=request.param)


def graph() -> Graph:
    """Gradients that are inputs; gate and up lie in one derived parameter."""
    with Graph() as g:
        p = {n: ops.parameter(n, s) for n, s in SIZES.items()}
        x = {n: ops.input(f"x.{n}", s) for n, s in SIZES.items() if n not in ("gate", "up")}
        both = packed([p["gate"], p["up"]], 1)
        gradient = ops.input("x.packed", (6, 10))
        loss = ops.sum_all(p["a"] * x["a"]) + ops.sum_all(both * gradient)
        g.set_outputs([loss, *x.values(), gradient])
        g.set_output_ids(zip(g.output_ids, g.output_names, strict=True), gradients=5)
    return g


RECIPES = {
    "plain": Recipe(),
    "factors": Recipe(multipliers={"gate": 0.5, "up": 0.0, "d": 3.0}),
    "norm": Recipe(clip=Clip("norm", 0.5), multipliers={"up": 0.25}),
    "adaptive": Recipe(clip=Clip("adaptive", 0.02, 1e-3), accumulate=2),
}


@pytest.mark.parametrize(("recipe", "rule"), [
    *((recipe, rule) for recipe in RECIPES for rule in ("sgd", "adam")),
    *(("plain", rule) for rule in ("adamw", "laprop", "momentum", "adadelta")),
])  # fmt: skip
def test_merged_updates_have_the_bits_of_single_ones(where: tuple[Device, Target], recipe: str, rule: str) -> None:
    found, target = where
    plan = compile(graph(), mode="training", target=target)
    assert len(plan.param_grad_pairs) == 5 and plan.derived_params
    single = replace(plan, options=replace(plan.options, fuse_dispatches=False))
    results, counts = [], []
    for each in (plan, single):
        update = update_of(each, replace(RECIPES[recipe], rule=rule))
        counts.append(len([d for d in update.dispatches if d.update and d.update.rule == rule]))
        results.append(moved(found, each, update, rule))
    assert counts[0] < counts[1] == 5
    for merged, alone in zip(*results, strict=True):
        assert np.array_equal(merged, alone)


def moved(found: Device, plan: ExecutionPlan, update: Any, rule: str) -> list[Array]:
    """Parameters and states after four updates."""
    rng, optimizer = np.random.default_rng(1), Optimizer.of(rule, lr=0.05)

    def run() -> list[Array]:
        program = found.load(plan)
        program.configure(update)
        for b in plan.buffers:
            if b.kind in ("input", "parameter", "derived", "gradient", "output"):
                program.upload(b.id, rng.standard_normal(b.shape, np.float32))
        for t in range(1, 5):
            program.step(scalars(optimizer, t), t % 2 == 0 or update.early == 0)
        buffers = [p for p, _ in plan.param_grad_pairs] + [b.id for b in update.buffers]
        read = [program.download(b) for b in buffers]
        program.close()
        return read

    return owner().call(run)


# the plan around them -------------------------------------------------------------------------------------------------
def test_without_fusing_none_is_merged() -> None:
    for fuse, wanted in ((False, [1, 1]), (True, [2])):
        config = SessionConfig(device="cpu", compile=CompileOptions(fuse_dispatches=fuse))
        session, _ = build(graph_of_two(), config)
        with session:
            session.set_learning_rate(0.1)
            assert sizes(session.update_dispatches()) == wanted


def graph_of_two() -> Graph:
    with Graph() as g:
        terms = [ops.sum_all(ops.parameter(n, (4,)) * ops.input(f"x.{n}", (4,))) for n in "pq"]
        g.set_outputs(terms[0] + terms[1])
    return g


def test_the_search_names_the_parameter_of_a_merged_update() -> None:
    with build_session(graph_of_two(), device="cpu") as session:
        for n, bad in (("p", 0.5), ("q", 3e38)):
            session.set_parameter(n, np.full(4, -bad, np.float32))
            session.set_input(f"x.{n}", np.full(4, bad, np.float32) * np.array([1, 1, 1, 0], np.float32))
        session.set_learning_rate(2.0)
        report = session.step_debug()
        graph = session.plan().graph
        bad = [a for a in report.anomalies if a.label.startswith("SGD")]
        assert len(bad) == 1 and [graph.node(i).name for i in bad[0].origin] == ["q"]
        assert str(report).count("SGD[2 parameters, 8]") >= 1


Parameters = tuple[ParameterUpdate, ...]


def other_gradient(ps: Parameters) -> Parameters:
    return (replace(ps[0], gradient=ps[1].gradient), *ps[1:])


def short_stretch(ps: Parameters) -> Parameters:
    return (replace(ps[0], stretches=(Stretch(4),)), *ps[1:])


def damaged(**changes: Any) -> tuple[ExecutionPlan, Any]:
    plan = compile(graph(), mode="training", target=target(32))
    update = update_of(plan, Recipe("adam"))
    first, *rest = update.dispatches
    core = first.update
    assert core is not None and sizes(update.dispatches) == [5]
    if "core" in changes:
        changes["update"] = replace(core, parameters=changes.pop("core")(core.parameters))
    return plan, replace(update, dispatches=(replace(first, **changes), *rest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core": lambda ps: ps[:-1]}, "outputs: given results .* wanted each of the update's parameters and states"),
        ({"workgroups": (1, 1, 1)}, r"workgroups: given \[1, 1, 1\], wanted 7 for all elements of the update"),
        ({"core": other_gradient}, "of the update: given 1028 bytes, wanted 60"),
        ({"core": short_stretch}, r"stretches: given \[4\], wanted ascending"),
        ({"operands": ()}, r"operands: given \[\], wanted gradient and clip factors of buffer"),
    ],
)  # fmt: skip
def test_a_damaged_update_is_refused(changes: dict[str, Any], message: str) -> None:
    plan, update = damaged()
    verify_update(plan, update)
    with pytest.raises(CompileError, match=message):
        verify_update(*damaged(**changes))
