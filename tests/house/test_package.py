"""The wheel holds what it needs to work without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import REPO

SHARED = "gdlab-0.1.0.data/data/share/jupyter/labextensions/gdlab"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPO, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_ships_every_shader_inside_the_package(wheel: Path) -> None:
    shaders = {path.name: path.read_bytes() for path in (REPO / "shaders").glob("*.wgsl")}
    with zipfile.ZipFile(wheel) as files:
        shipped = {Path(name).name: files.read(name) for name in files.namelist() if name.startswith("gdlab/shaders/")}
    assert shaders and shipped == shaders


def test_the_wheel_reads_its_own_shaders(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from gdlab.kernels.pieces import *; print(shader_folder(), shader('functions.wgsl')[:2])"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "gdlab" / "shaders"), "//"], done.stderr


def test_wheel_ships_the_front_end_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    parts = {f"gdlab/static/{name}.js" for name in ("gdlab", "later", "engine", "loader")}
    assert {*parts, f"{SHARED}/install.json"} <= set(names)
    assert [name for name in names if name.startswith("gdlab/labextension/")] == []
    manifest = json.loads(zipfile.ZipFile(wheel).read(f"{SHARED}/package.json"))
    assert f"{SHARED}/{manifest['jupyterlab']['_build']['load']}" in names
