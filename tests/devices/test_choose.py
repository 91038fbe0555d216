"""One adapter of several by number or name, several open at once, and errors that list them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdlab as gd
import gdlab.ops as ops
from gdlab.__main__ import main
from gdlab.base.errors import ArgumentError, DeviceUnavailableError
from gdlab.devices.base import owner
from gdlab.devices.wgpu import wgpu_device as room
from gdlab.graph import Graph
from gdlab.session import build_inference_session
from gdlab.study.study import Study

NAMES = ("NVIDIA H200", "NVIDIA H200", "llvmpipe (LLVM 15)", "Intel Arc")


def graph() -> Graph:
    with Graph() as g:
        g.set_outputs({"y": ops.input("x", (4,)) * 2.0 + 1.0})
    return g


def y_of(device: Any) -> Any:
    session = build_inference_session(graph(), device)
    session.set_input("x", np.arange(4, dtype=np.float32))
    session.step()
    value = session.read_output()
    session.close()
    return value


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1", 1), ("3", 3), ("llvm", 2), ("INTEL", 3), ("arc", 3)])
def test_a_number_or_a_part_of_one_name_chooses(text: str, number: int) -> None:
    assert room.chosen_adapter(text, NAMES) == number


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4", 'given "wgpu:4", wanted a number of the list: 0 NVIDIA H200, 1 NVIDIA H200, 2 llvmpipe (LLVM 15), 3 '),
        ("nvidia", '"wgpu:nvidia", which fits several, wanted "wgpu:0" or "wgpu:1", of the list: 0 NVIDIA H200, 1 '),
        ("AMD", 'given "wgpu:AMD", wanted a number, or a part of a name, of the list: 0 NVIDIA H200, 1 NVIDIA H200'),
        ("-1", 'given "wgpu:-1", wanted a number, or a part of a name, of the list: 0 NVIDIA H200'),
    ],
)
def test_what_fits_none_or_several_lists_the_adapters(text: str, told: str) -> None:
    with pytest.raises(ArgumentError) as error:
        room.chosen_adapter(text, NAMES)
    assert told in str(error.value)


def test_without_an_adapter_the_error_says_what_to_install() -> None:
    with pytest.raises(DeviceUnavailableError, match="given no adapter, wanted a Vulkan driver"):
        room.chosen_adapter("1", ())


@pytest.mark.parametrize("kind", ["wgpu:", "wgpu: ", "cpu:0", "gpu", "", 1, None])
def test_a_name_that_is_no_device_says_which_there_are(kind: Any) -> None:
    with pytest.raises(ArgumentError, match='wanted "auto", "wgpu", "wgpu:1", "wgpu:NVIDIA", "cpu" or a Device'):
        gd.device(kind)


def test_the_adapter_of_this_machine_by_number_and_name() -> None:
    first = room.adapters()[0].name
    for kind in ("wgpu:0", f"wgpu:{first[:6].upper()}"):
        opened = gd.device(kind)
        assert (opened.info.kind, opened.info.name) == ("wgpu", first)
        assert np.array_equal(y_of(kind), [1, 3, 5, 7])
    assert gd.device("wgpu:0").gpu is gd.device("wgpu").gpu  # type: ignore[attr-defined]
    study = Study(graph(), name="s", device="wgpu:0")
    assert study.check(devices=("cpu", "wgpu:0"))


@pytest.fixture
def two_adapters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one adapter of this machine listed twice."""
    found = room._adapters
    monkeypatch.setattr(room, "_adapters", lambda: [*found(), *found()])
    monkeypatch.setattr(room, "_opened", {})
    yield
    owner().call(lambda: None)


def test_two_adapters_are_open_at_once(two_adapters: None) -> None:
    a, b = gd.device("wgpu:0"), gd.device("wgpu:1")
    assert a.gpu is not b.gpu and b.gpu is gd.device("wgpu:1").gpu  # type: ignore[attr-defined]
    sessions = [build_inference_session(graph(), device) for device in (a, b, "wgpu:1")]
    for k in range(3):
        for i, session in enumerate(sessions):
            session.set_input("x", np.full(4, i + k, np.float32))
            session.step()
        assert [session.read_output()[0] for session in sessions] == [2 * (i + k) + 1 for i in range(3)]
    for session in sessions:
        session.close()
    with pytest.raises(ArgumentError, match='which fits several, wanted "wgpu:0" or "wgpu:1"'):
        gd.device(f"wgpu:{a.info.name[:6]}")


def test_the_command_line_takes_an_adapter(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text("import gdlab.ops as ops\nfrom gdlab.graph import Graph\n"
                    "with Graph() as g:\n    g.set_outputs(ops.input('x', (4,)) * 2.0)\n")  # fmt: skip
    assert main(["run", str(file), "--steps", "1", "--feed", "random", "--device", "wgpu:0"]) == 0
    assert "device: wgpu, " in capsys.readouterr().out
    assert main(["run", str(file), "--steps", "1", "--feed", "random", "--device", "wgpu:9"]) != 0
    assert 'given "wgpu:9", wanted a number of the list: 0 ' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", str(file), "--device", "tpu"])
    assert "given tpu, wanted auto, wgpu, cpu, wgpu:NUMBER or wgpu:NAME" in capsys.readouterr().err
