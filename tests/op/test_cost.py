"""Cost models: what a node costs on the nominal machine, on a measured one, and by a function of one's own."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optimizing import graph_of, mlp_with_gate, p

import gdlab.ops as ops
from gdlab.__main__ import main
from gdlab.base.errors import OptimizeError, UnknownNameError
from gdlab.base.types import TensorType
from gdlab.devices.calibrate import QUICK, measure
from gdlab.devices.choose import device
from gdlab.graph import Graph
from gdlab.op.cost import ast_size, cost_model, priced, roofline
from gdlab.op.machines import Machine, calibration_file, keep_machine, kept_machines
from gdlab.rewrite import optimize

SLOW = Machine(1e-3, 1e9, 1e10, "cpu, an old one")
TYPE = TensorType((64, 64))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_nominal_roofline_is_launch_and_the_longer_of_two_times() -> None:
    moved, multiplied = 3 * 64 * 64 * 4, 2 * 64**3
    assert roofline("matmul", (), TYPE, (TYPE, TYPE)) == pytest.approx(3 + moved / 1e12 * 1e6)
    wide = TensorType((4096, 4096))
    assert roofline("matmul", (), wide, (wide, wide)) == pytest.approx(3 + 2 * 4096**3 / 2e13 * 1e6)
    assert roofline("reshape", (("shape", (4096,)),), TensorType((4096,)), (TYPE,)) == 0
    assert multiplied / 2e13 < moved / 1e12


def test_ast_size_counts_nodes() -> None:
    assert [ast_size(op, (), TYPE, (TYPE, TYPE)) for op in ("add", "swiglu", "reshape", "parameter")] == [10, 9, 0, 0]


def test_a_measured_device_decides_and_the_report_says_so() -> None:
    keep_machine(SLOW)
    graph = graph_of(lambda: ops.tanh(p("x", 1000)))
    _, report = optimize(graph, phase="forward", cost=roofline("cpu"))
    assert report.cost_after == pytest.approx(1e3 + 8000 / 1e9 * 1e6)
    assert report.cost_model == "roofline(cpu, an old one: 1 ms per launch, 1 GB/s, 10 GFLOP/s)"
    assert report.to_text().split("Cost: ")[1].split("\n")[0].endswith(f"us ({report.cost_model})")
    assert optimize(graph, phase="forward", cost=roofline)[1].cost_model == "roofline"


def test_kept_figures_are_found_by_device_info_and_kind() -> None:
    cpu = device("cpu")
    keep_machine(Machine(1e-6, 2e9, 3e9, f"cpu, {cpu.info.name}"))
    keep_machine(SLOW)
    keep_machine(Machine(2e-6, 2e9, 3e9, f"cpu, {cpu.info.name}"))  # measured again: the newer counts
    for given in (cpu, cpu.info, f"cpu, {cpu.info.name}"):
        assert roofline(given).machine.launch_seconds == 2e-6
    assert len(kept_machines()) == 2
    with pytest.raises(OptimizeError, match="roofline: device: given 'wgpu', wanted one that .*--calibrate"):
        roofline("wgpu")


def test_the_command_measures_keeps_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == "nominal: 3 µs per launch, 1 TB/s, 20 TFLOP/s\n"
    assert main(["bench", "--calibrate", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    found = re.match(r"measured: cpu, NumPy \S+ \S+: (\S+) [mµ]?s per launch, (\S+) [MGT]B/s, (\S+) [MGT]FLOP/s\n", out)
    assert found is not None and all(float(figure) > 0 for figure in found.groups())
    assert str(calibration_file()) in out
    graph = mlp_with_gate()
    result, report = optimize(graph, phase="forward", cost=roofline(device("cpu")))
    assert "swiglu" in [n.op for n in result] and report.cost_after < report.cost_before
    assert main(["bench"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_measured_figures_are_within_reason() -> None:
    for machine in (measure(device("cpu")), measure(device("cpu"), QUICK)):
        assert 0 < machine.launch_seconds < 1e-3  # a tiny product in NumPy takes a microsecond or so
        assert 1e8 < machine.bytes_per_second < 1e13 and 1e8 < machine.flops_per_second < 1e15


@pytest.mark.parametrize("answer", [-1.0, math.nan, math.inf, "cheap", None, True, 1j, np.float32("nan"), [1.0]])
def test_a_cost_that_is_no_price_is_refused(answer: Any) -> None:
    with pytest.raises(OptimizeError, match=r"optimize: cost of \w+ of .*: given .*, wanted a finite number ≥ 0"):
        optimize(mlp_with_gate(), phase="forward", cost=lambda op, attrs, type, operands: answer)


def test_a_cost_may_be_any_real_number() -> None:
    for answer in (0, 3, 2.5, np.float32(1.5), np.int64(7)):
        report = optimize(graph_of(lambda: ops.tanh(p("x", 3))), phase="forward", cost=lambda op, *_: answer)[1]  # noqa: B023
        assert report.cost_after == 2 * float(answer)


def test_models_are_named() -> None:
    assert cost_model("ast_size").name == "ast_size"
    for bad in ("rooflin", 3, None):
        with pytest.raises(UnknownNameError, match="one of roofline, ast_size, device"):
            cost_model(bad)  # type: ignore[arg-type]


# the machine at hand --------------------------------------------------------------------------------------------------
LAUNCHES = Machine(1e-3, 1e12, 1e12, "wgpu, launches are dear")
FLOPS = Machine(1e-9, 1e15, 1e6, "wgpu, arithmetic is dear")


def test_the_best_form_is_another_on_another_machine() -> None:
    """σ(x) is read, and x·σ(x)·u: two more products, or SwiGLU, one launch that computes σ once more."""
    with Graph() as graph:
        x, u = ops.input("x", (64, 64)), ops.input("u", (64, 64))
        s = ops.sigmoid(x)
        graph.set_outputs([s, x * s * u])
    forms = {}
    for machine in (LAUNCHES, FLOPS):
        keep_machine(machine, automatic=True)
        forms[machine], report = optimize(graph, phase="forward", cost="device")
        assert report.cost_model == f"roofline({machine.rounded})"
        assert priced(report.cost_model) == f"modelled for {machine.name}"
    assert [[n.op for n in g if n.inputs] for g in forms.values()] == [["sigmoid", "swiglu"], ["sigmoid", "mul", "mul"]]
    for machine, other in ((LAUNCHES, FLOPS), (FLOPS, LAUNCHES)):
        price = roofline(machine.name)
        spent = {m: sum(price(n.op, n.attrs, n.type, tuple(g.node(i).type for i in n.inputs)) for n in g)
                 for m, g in forms.items()}  # fmt: skip
        assert spent[machine] < 0.9 * spent[other], machine


def test_without_figures_of_this_machine_the_error_says_what_measures_them() -> None:
    wanted = r"optimize: cost: given 'device', of which nothing is kept here, wanted .* `python -m gdlab bench --calibr"
    wanted += "ate` measures them, as a Study with cost='device' on 'auto' does"
    keep_machine(SLOW)  # of some device, not of the one that "auto" chooses
    with pytest.raises(OptimizeError, match=wanted):
        optimize(mlp_with_gate(), phase="forward", cost="device")
    keep_machine(SLOW, automatic=True)
    assert "an old one" in optimize(mlp_with_gate(), phase="forward", cost="device")[1].cost_model


def test_the_command_measures_for_the_device_that_auto_chooses() -> None:
    assert main(["bench", "--calibrate"]) == 0
    chosen = device("auto").info
    model = cost_model("device").name
    assert model.startswith(f"roofline({chosen.kind}, {chosen.name}: ")
