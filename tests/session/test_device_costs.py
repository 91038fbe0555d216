"""Costs and verdicts by the machine at hand: measured at first use, once, kept, and named."""

from __future__ import annotations

import _thread
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import pytest
import recording as rec

import gdlab as gd
from gdlab import ops
from gdlab.base.errors import SessionError
from gdlab.devices import calibrate, choose
from gdlab.devices.base import Device
from gdlab.graph import Graph
from gdlab.op.cost import priced, roofline
from gdlab.op.machines import Machine, automatic_machine, calibration_file, keep_machine, kept_machines
from gdlab.session import SessionConfig, build
from gdlab.session.roof import known_machine, machine_of
from gdlab.study.study import Study

Measured = list[str]
CPU = choose.device("cpu")
NAME = f"cpu, {CPU.info.name}"
DEAR_LAUNCHES, DEAR_FLOPS = Machine(1e-3, 1e12, 1e12, NAME), Machine(1e-9, 1e15, 1e6, NAME)


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """The names of devices that are measured, in a process that knows none yet."""
    seen: Measured = []
    measure = calibrate.measure

    def noted(device: Device, effort: calibrate.Effort = calibrate.CAREFUL) -> Machine:
        seen.append(device.info.kind)
        return measure(device, effort)

    monkeypatch.setattr(calibrate, "measure", noted)
    monkeypatch.setattr(calibrate, "_measured_here", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return seen


def gated() -> Graph:
    """σ(x), and x·σ(x)·u: SwiGLU where launches are dear, two products where arithmetic is."""
    with Graph() as graph:
        x, u = ops.input("x", (64, 64)), ops.input("u", (64, 64))
        s = ops.sigmoid(x)
        graph.set_outputs([s, x * s * u])
    return graph


def config(**more: Any) -> SessionConfig:
    return SessionConfig(**{"mode": "inference", "device": "cpu", "optimize": {"cost": "device"}, **more})


def fused(graph: Graph) -> bool:
    return "swiglu" in [n.op for n in graph]


def test_a_build_measures_its_device_once_and_says_whose_costs_it_took(device: str, measured: Measured) -> None:
    for _ in range(2):
        session, report = build(gated(), config(device=device))
        session.close()
    assert measured == [device] and len(kept_machines()) == 1
    machine = kept_machines()[0]
    assert machine.name == f"{session.device.kind}, {session.device.name}"
    assert report.cost_model == f"roofline({machine.rounded})"
    assert priced(report.cost_model) == f"modelled for {machine.name}" and report.cost_after > 0


def test_nothing_is_measured_unless_asked(measured: Measured) -> None:
    session, report = build(networks.mlp(), SessionConfig(device="cpu"))
    with session:
        session.initialize(0)
        assert report.cost_model == "roofline" and known_machine(CPU) == Machine()
    assert measured == [] and not calibration_file().exists()


@pytest.mark.parametrize("machine", [DEAR_LAUNCHES, DEAR_FLOPS], ids=["launches", "arithmetic"])
def test_every_door_optimizes_for_the_kept_machine(machine: Machine, measured: Measured) -> None:
    keep_machine(machine)
    wanted = machine is DEAR_LAUNCHES
    session, _ = build(gated(), config())
    with session, gd.build_compiled_graph(gated(), "cpu", optimize={"cost": "device"}) as compiled:
        assert fused(session.plan().graph) == fused(compiled.plan.graph) == wanted
    study = Study(gated(), device="cpu", cost="device")
    assert fused(study.final) == wanted and study.report.cost_model == f"roofline({machine.rounded})"
    plain = Study(gated(), device="cpu")
    assert "cost" not in plain.options and fused(plain.final)
    variant = plain.variant(cost="device")
    assert fused(variant.final) == wanted and variant.name == f"costs modelled for {NAME}"
    assert pickle.loads(pickle.dumps(study)).report.cost_model == study.report.cost_model
    assert measured == []


def test_a_variant_for_another_device_has_its_costs(measured: Measured) -> None:
    another = choose.device("cpu")
    another.info = replace(CPU.info, name="another")
    keep_machine(DEAR_LAUNCHES)
    keep_machine(replace(DEAR_FLOPS, name="cpu, another"))
    study = Study(gated(), device=CPU, cost="device")
    assert fused(study.final) and not fused(study.variant(cost="device", device=another).final)
    assert measured == []


def test_cached_plans_belong_to_the_figures(tmp_path: Path, measured: Measured) -> None:
    def hit(machine: Machine) -> bool:
        keep_machine(machine)
        session, report = build(gated(), config(cache=tmp_path / "plan"))
        with session:
            assert fused(session.plan().graph) == (machine.launch_seconds > 1e-4)
        return report.stop_reason == "cache-hit"

    alike = Machine(1.03e-3, 1.02e12, 0.98e12, NAME)  # measured again: the rounded figures are the same
    found = [hit(m) for m in (DEAR_LAUNCHES, DEAR_LAUNCHES, alike, DEAR_FLOPS, DEAR_FLOPS)]
    assert found == [False, True, True, False, True] and measured == []


def test_a_broken_file_is_measured_anew(measured: Measured) -> None:
    calibration_file().parent.mkdir()
    calibration_file().write_text('{"automatic": "", "machines": [{"launch_seconds": NaN}]}')
    assert known_machine(CPU) == Machine()
    machine = machine_of(CPU)
    assert measured == ["cpu"] and machine.name == NAME and kept_machines() == [machine]
    assert 0 <= machine.launch_seconds < 1e-3 and 1e8 < machine.bytes_per_second < 1e13


def test_without_a_folder_the_process_keeps_the_figures(measured: Measured) -> None:
    calibration_file().parent.write_text("a file where the folder should be")
    models = set()
    for _ in range(2):
        session, report = build(gated(), config())
        session.close()
        models.add(report.cost_model)
    assert measured == ["cpu"] and len(models) == 1 and NAME in models.pop()


def test_the_choice_of_auto_is_kept_for_those_without_a_device(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_machine(DEAR_FLOPS)
    build(gated(), config())[0].close()
    assert automatic_machine() is None  # "cpu" was asked for by name
    monkeypatch.setattr("gdlab.devices.wgpu.wgpu_device.adapters", list)
    build(gated(), config(device="auto"))[0].close()
    assert automatic_machine() == DEAR_FLOPS and measured == []
    result, report = gd.optimize(gated(), phase="inference", cost="device")
    assert not fused(result) and report.cost_model == f"roofline({DEAR_FLOPS.rounded})"


# verdicts -------------------------------------------------------------------------------------------------------------
def test_a_trace_measures_the_device_and_a_picture_does_not(device: str, measured: Measured) -> None:
    study = Study(networks.mlp(8), train=True, device=device, name="mlp")
    study.prepare(feed="random:0", adam=1e-3, init=0)
    study.run(2)
    assert study.doc.data["plan"]["machine"]["name"] == "nominal" and measured == []
    profile = study.trace(2)
    machine = known_machine(study.device)
    assert measured == [device] and machine.name and profile.machine == f"{machine.name} ({machine.figures})"
    assert study.doc.data["plan"]["machine"]["name"] == machine.name
    study.trace(1)
    study.close()
    assert measured == [device]


def test_a_profile_of_a_list_measures_and_the_time_on_the_device_does_not(measured: Measured) -> None:
    executor = rec.executor("cpu")
    few = rec.buffer(executor, rec.data(7))
    calls: list[tuple[Callable[[gd.GraphSession], Any], Measured]] = [
        (lambda session: session.finish_with_gpu_time(), []), (executor.profile, ["cpu"]),
    ]  # fmt: skip
    for call, wanted in calls:
        session = executor.begin_recorded()
        session.gelu(few, few)
        call(session)
        assert measured == wanted


def test_a_device_that_cannot_be_measured_has_nominal_verdicts_and_no_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Machine:
        raise SessionError("session", "memory", "none", "some")

    monkeypatch.setattr(calibrate, "measure", refuse)
    assert machine_of(CPU) == Machine()
    with pytest.raises(SessionError, match="session: memory"):
        build(gated(), config())
    assert not calibration_file().exists()


# threads --------------------------------------------------------------------------------------------------------------
def test_two_threads_measure_side_by_side(device: str) -> None:
    """A device is measured in its turn: neither waits for the other for ever, and both have figures."""
    opened, found = choose.device(device), []
    threads = [threading.Thread(target=lambda: found.append(machine_of(opened)), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and all(m.name for m in found) and len(kept_machines()) == 1


def test_ctrl_c_ends_a_measurement(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = choose.device(device)
    monkeypatch.setattr(calibrate, "QUICK", calibrate.Effort(3, 2.0))
    threading.Timer(0.3, _thread.interrupt_main).start()
    begun = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        machine_of(opened)
    assert time.perf_counter() - begun < 4 and not calibration_file().exists()
    monkeypatch.setattr(calibrate, "QUICK", calibrate.Effort(1, 0.001))
    assert machine_of(opened).name


def test_a_roofline_by_hand_has_the_exact_figures() -> None:
    odd = Machine(3e-6, 1.1e12, 1.7e13, NAME)
    keep_machine(odd)
    assert roofline(CPU).machine == odd and calibrate.device_roofline(CPU).machine == odd.rounded != odd
