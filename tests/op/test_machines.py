"""Figures of machines in the user's cache folder: kept by name, rounded, bounded, and never trusted."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from machine import needs

from gdlab.base.errors import ArgumentError
from gdlab.base.files import cache_folder
from gdlab.op import machines
from gdlab.op.machines import (
    Machine,
    automatic_machine,
    calibration_file,
    find_machine,
    keep_machine,
    kept_machines,
)

CPU, GPU = Machine(1e-6, 2e10, 1.5e11, "cpu, NumPy"), Machine(2e-6, 2e12, 4e13, "wgpu, NVIDIA A10")
GOOD = asdict(CPU)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gdlab" / "calibration.json"


def test_figures_are_rounded_to_powers_of_the_root_of_two() -> None:
    rounded = Machine(3e-6, 1e12, 2e13, "cpu, x").rounded
    assert rounded.name == "cpu, x"
    for before, after in ((3e-6, rounded.launch_seconds), (1e12, rounded.bytes_per_second),
                          (2e13, rounded.flops_per_second)):  # fmt: skip
        steps = 2 * math.log2(after)
        assert steps == pytest.approx(round(steps), abs=1e-9) and 2**-0.25 <= after / before <= 2**0.25
    assert Machine(1.02e-6, 1.9e10, 1.6e11).rounded == Machine(0.97e-6, 2.0e10, 1.5e11).rounded
    assert rounded.rounded == rounded


def test_machines_are_kept_by_name_and_the_automatic_one_is_known(file: Path) -> None:
    assert keep_machine(GPU, automatic=True) == file and automatic_machine() == GPU
    keep_machine(CPU)
    assert kept_machines() == [GPU, CPU] and automatic_machine() == GPU
    newer = Machine(3e-6, 2e12, 4e13, GPU.name)
    keep_machine(newer)
    assert kept_machines() == [CPU, newer] and automatic_machine() == newer
    keep_machine(CPU, automatic=True)  # the GPU has gone
    assert automatic_machine() == CPU
    assert [p.name for p in file.parent.iterdir()] == ["calibration.json"]


def test_a_name_that_begins_alike_is_another_device() -> None:
    class Info:
        kind, name = "wgpu", "NVIDIA A1"

    keep_machine(GPU)
    assert find_machine(Info()) is None and find_machine("wgpu") == GPU and find_machine("wgp") is None


BAD_FIGURES: list[Any] = [math.nan, math.inf, 0, -1, -1e-6, 1e300, 10**400, "1", None, True, [1], {}]
FILES: list[Any] = [
    "", "[", "null", "3", "[]", "{}", "[" * 50_000, json.dumps([GOOD]), json.dumps({"machines": [GOOD]}),
    *({"automatic": "", "machines": rows} for rows in (None, 3, "x", {"a": 1})),
]  # fmt: skip


@pytest.mark.parametrize("made", FILES, ids=lambda made: str(made)[:20])
def test_a_file_that_is_not_ours_counts_as_none(file: Path, made: Any) -> None:
    file.parent.mkdir()
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    assert kept_machines() == [] and automatic_machine() is None
    keep_machine(CPU, automatic=True)
    assert kept_machines() == [CPU] and automatic_machine() == CPU


@pytest.mark.parametrize("field", ["launch_seconds", "bytes_per_second", "flops_per_second"])
@pytest.mark.parametrize("value", BAD_FIGURES, ids=lambda value: str(value)[:9])
def test_a_row_whose_figure_cannot_be_one_is_left_out(file: Path, field: str, value: Any) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"automatic": CPU.name, "machines": [asdict(GPU), {**GOOD, field: value}]}))
    assert kept_machines() == [GPU]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[31m", 1, None])
def test_a_name_that_cannot_be_shown_is_left_out(file: Path, name: Any) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"automatic": ["x"], "machines": [{**GOOD, "name": name}, {**GOOD, "more": 1}, GOOD]}))
    assert kept_machines() == [CPU] and automatic_machine() is None


def test_the_file_is_bounded(file: Path) -> None:
    for i in range(machines.MOST_MACHINES + 3):
        keep_machine(Machine(name=f"wgpu, {i}"))
    assert len(kept_machines()) == machines.MOST_MACHINES and kept_machines()[0].name == "wgpu, 3"
    file.write_text(json.dumps({"automatic": "", "machines": [GOOD]}) + " " * machines.MOST_BYTES)
    assert kept_machines() == []


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    needs("posix")
    file.parent.mkdir()
    os.mkfifo(file)
    assert kept_machines() == []


def test_a_relative_cache_folder_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries would be loaded from whatever folder somebody happens to stand in."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for given in ("", "cache", "./cache", "../cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder() == tmp_path / ".cache" / "gdlab"
        assert calibration_file().parent == cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "gdlab"


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(file: Path) -> None:
    file.parent.write_text("a file where the folder should be")
    assert calibration_file() == file and kept_machines() == []
    with pytest.raises(ArgumentError, match="calibrate: folder: given .*, wanted a folder that can be made"):
        keep_machine(CPU)
