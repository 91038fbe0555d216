"""`SessionConfig(tune=seconds)`: measured schedules are used when asked for, kept in plans, and never otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs

from gdlab.base.errors import ArgumentError
from gdlab.devices import tune as search
from gdlab.devices.choose import device as choose_device
from gdlab.devices.tuning_file import Trial, TunedKernel, keep_kernels, kept_kernels, tuning_path
from gdlab.plan.candidates import candidates, name_of, products_of
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.spread import Schedule
from gdlab.plan.target import CompileOptions, Tuning
from gdlab.session import Session, SessionConfig, build, builders, open_session
from gdlab.study.study import Study


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def keep_other_schedules(plan: ExecutionPlan) -> dict[str, tuple[int, ...]]:
    """Write a file by hand which says that the last candidate of each product is the fastest; none is left to try."""
    device, chosen = choose_device("wgpu"), {}
    kernels = []
    for key in products_of(plan):
        found = candidates(key, device.target)
        trials = tuple(Trial(name_of(s), s.params, 1000 if s is found[-1] else 9000) for s in found)
        kernels.append(TunedKernel(str(key), trials))
        chosen[str(key)] = found[-1].params
    keep_kernels(device.info, kernels)
    return chosen


def used(plan: ExecutionPlan) -> dict[str, tuple[int, ...]]:
    return {str(key): plan.dispatches[places[0]].params for key, places in products_of(plan).items()}


def trained(session: Session) -> tuple[np.ndarray[Any, Any], bytes]:
    """Two steps: the losses, and the bits of a parameter."""
    with session:
        session.initialize(2)
        session.set_input("x", np.linspace(-1, 1, 8 * 64))
        session.set_input("y", np.eye(10)[:8])
        session.set_adam(0.01)
        losses = []
        for _ in range(2):
            session.step()
            losses.append(session.read_loss())
        return np.array(losses), session.read_param("w1").tobytes()


def made(**config: Any) -> Session:
    return build(networks.mlp(8), SessionConfig(**{"device": "wgpu", **config}))[0]


@pytest.fixture
def plain() -> ExecutionPlan:
    needs("wgpu")
    return made().plan()


def test_a_file_changes_nothing_for_those_who_do_not_ask(plain: ExecutionPlan) -> None:
    before = trained(made())
    keep_other_schedules(plain)
    after = made()
    assert after.plan() == plain and after.plan().target.tuning == Tuning() and after.plan().target.tuning.digest == ""
    assert trained(after)[1] == before[1]


def test_the_kept_schedules_are_used_when_asked_for(plain: ExecutionPlan) -> None:
    chosen = keep_other_schedules(plain)
    session = made(tune=5)
    plan = session.plan()
    assert used(plan) == chosen and all(chosen[name] != params for name, params in used(plain).items())
    assert plan.fingerprint != plain.fingerprint
    reasons = [plan.dispatches[places[0]].variant_reason for places in products_of(plan).values()]
    assert all("; measured: 1 µs, " in reason and reason.endswith(" by rule 9 µs") for reason in reasons)
    losses, _ = trained(session)
    np.testing.assert_allclose(losses, trained(made())[0], rtol=1e-4)


def test_one_plan_has_one_text_and_one_result(plain: ExecutionPlan) -> None:
    keep_other_schedules(plain)
    one, two = made(tune=5), made(tune=0.5)
    assert one.plan() == two.plan() and trained(one)[1] == trained(two)[1]


def test_a_saved_plan_keeps_its_schedules_without_the_file(plain: ExecutionPlan) -> None:
    chosen = keep_other_schedules(plain)
    first = made(tune=5)
    text = first.plan().to_json()
    tuning_path(choose_device("wgpu").info).unlink()
    plan = ExecutionPlan.from_json(text)
    assert plan == first.plan() and used(plan) == chosen and plan.target.tuning.digest
    assert trained(open_session(plan, choose_device("wgpu")))[1] == trained(first)[1]


def test_a_plan_cache_knows_its_schedules(
    plain: ExecutionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, compiled, count = tmp_path / "plan", builders.compiled, [0]

    def counted(*given: Any) -> Any:
        count[0] += 1
        return compiled(*given)

    monkeypatch.setattr(builders, "compiled", counted)
    made(cache=path)
    chosen = keep_other_schedules(plain)
    assert made(cache=path).plan() == plain and count == [1], "a hit: nobody asked for the file"
    assert used(made(cache=path, tune=5).plan()) == chosen and count == [2]
    assert used(made(cache=path, tune=5).plan()) == chosen and count == [2], "a hit with the same table"
    assert made(cache=path).plan() == plain and count == [3]


def test_a_tile_that_is_asked_for_wins(plain: ExecutionPlan) -> None:
    keep_other_schedules(plain)
    tile = (2, 4) if plain.target.adapter_class == "software" else (32, 32)
    asked = made(compile=CompileOptions(tile=tile), tune=5).plan()
    assert asked == made(compile=CompileOptions(tile=tile)).plan() and asked.target.tuning == Tuning()


def test_what_the_file_says_of_unknown_schedules_is_ignored(plain: ExecutionPlan) -> None:
    device = choose_device("wgpu")
    tried = [[Trial(name_of(s), s.params, 9000) for s in candidates(key, device.target)] for key in products_of(plain)]
    kernels = [
        TunedKernel(str(key), (*trials, Trial("a faster one", (7, 1 << 30), 1)))
        for key, trials in zip(products_of(plain), tried, strict=True)
    ]
    keep_kernels(device.info, kernels)
    plan = made(tune=5).plan()
    assert plan.dispatches == plain.dispatches and plan.target.tuning.digest


def test_a_damaged_file_is_searched_anew(plain: ExecutionPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "candidates", lambda key, target: candidates(key, target)[:2])
    keep_other_schedules(plain)
    tuning_path(choose_device("wgpu").info).write_bytes(b"{]")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        made(tune=60)
    assert {*kept_kernels(choose_device("wgpu").info)} == {str(key) for key in products_of(plain)}


def test_what_is_missing_is_searched_within_the_budget(plain: ExecutionPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "candidates", lambda key, target: candidates(key, target)[:2])
    monkeypatch.setattr(search._Bench, "seconds", lambda self, s, once=False: 1.0 if s.params == (8, 8) else 0.5)
    session = made(tune=1e-6)
    assert len(kept_kernels(choose_device("wgpu").info)) == 1, "the first product, by the rule's schedule"
    assert session.plan() == plain
    plan = made(tune=60).plan()
    known = kept_kernels(choose_device("wgpu").info)
    assert {*known} == {str(key) for key in products_of(plain)}
    assert used(plan) == {name: known[name].chosen.params for name in used(plain)}


def test_what_was_found_is_used_where_it_cannot_be_kept(
    plain: ExecutionPlan, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "candidates", lambda key, target: candidates(key, target)[:2])

    def seconds(bench: Any, schedule: Schedule, once: bool = False) -> float:
        return 1.0 if schedule == candidates(bench.key, bench.target)[0] else 0.1

    monkeypatch.setattr(search._Bench, "seconds", seconds)
    (cache / "gdlab").write_text("no folder")
    with pytest.warns(RuntimeWarning, match="cannot be (read|written)"):
        plan = made(tune=60).plan()
    assert used(plan) and used(plan) == {str(key): candidates(key, plain.target)[1].params for key in products_of(plan)}


@pytest.mark.parametrize("tune", [-1, float("nan"), float("inf"), True, "5", None])
def test_a_bad_time_is_refused_before_anything_is_made(tune: Any) -> None:
    with pytest.raises(ArgumentError, match="build: tune: given .*, wanted a number of seconds in 0 … 10⁹"):
        build(networks.mlp(8), SessionConfig(device="cpu", tune=tune))


@pytest.mark.parametrize("tune", [np.float32(60), np.float64(60), np.int64(60)])
def test_on_cpu_there_is_nothing_to_search(cache: Path, tune: Any) -> None:
    assert made(device="cpu", tune=tune).plan() == made(device="cpu").plan()
    assert list(cache.rglob("tuning-*")) == []


# a study -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def study() -> Study:
    needs("wgpu")
    return Study(networks.mlp(8), train=True, device="wgpu", name="mlp")


def test_a_study_takes_what_is_kept_unless_a_session_is_open(study: Study) -> None:
    plain = study.plan
    chosen, rev = keep_other_schedules(plain), study.rev
    assert study.plan is plain
    found = study.tune(0)
    assert found.in_use and found.untried == 0 and used(study.plan) == chosen and study.rev > rev
    assert [kernel.chosen.params for kernel, _ in found.kernels] == [
        chosen[kernel.kernel] for kernel, _ in found.kernels
    ]
    assert [places for _, places in found.kernels] == list(products_of(study.plan).values())
    study.run(1, feed="random:0", sgd=0.1, init=0)
    assert study.session.plan() is study.plan
    check = study.check(devices=("wgpu",))
    assert check.ok
    study.close()


def test_an_open_session_keeps_its_schedules(study: Study) -> None:
    study.run(1, feed="random:0", sgd=0.1, init=0)
    plain = study.plan
    keep_other_schedules(plain)
    found = study.tune(0)
    assert not found.in_use and study.plan is plain and study.session.plan() is plain
    study.close()


def test_a_time_of_a_study_is_checked(study: Study) -> None:
    with pytest.raises(ArgumentError, match="tune: tune: given -1, wanted a number of seconds in 0 … 10⁹"):
        study.tune(-1)


def test_products_without_a_kept_schedule_are_counted(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study.tune(0)
    assert found.kernels == () and found.untried == len(products_of(study.plan)) > 2
    monkeypatch.setattr(search, "candidates", lambda key, target: candidates(key, target)[:2])
    found = study.tune(1e-6)
    assert len(found.kernels) == 1 and found.untried == len(products_of(study.plan)) - 1
