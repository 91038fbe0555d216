"""Cost models: what a node costs on the nominal machine, on a measured one, and by a function of one's own."""

from __future__ import annotations

import json
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
from gdlab.devices.calibrate import measure
from gdlab.devices.choose import device
from gdlab.op.cost import (
    Machine,
    ast_size,
    calibration_file,
    cost_model,
    keep_machine,
    kept_machines,
    roofline,
)
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


@pytest.mark.parametrize("text", ["", "[{]", "{}", '[{"launch": 1}]', '[{"bytes_per_second": 0, "name": "cpu, x"}]',
                                  '[{"launch_seconds": "1", "name": "cpu, x"}]'])  # fmt: skip
def test_a_file_that_is_not_ours_counts_as_none(text: str) -> None:
    calibration_file().parent.mkdir()
    calibration_file().write_text(text)
    assert kept_machines() == []
    keep_machine(SLOW)
    assert kept_machines() == [SLOW] and json.loads(calibration_file().read_text())[0]["name"] == "cpu, an old one"


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
    machine = measure(device("cpu"))
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
        with pytest.raises(UnknownNameError, match="one of roofline, ast_size"):
            cost_model(bad)  # type: ignore[arg-type]
