"""Digits that are no numbers (`²`), those of other scripts, and numbers of 5,000 digits: one error of gdlab's each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from counting import counter

import gdlab as gd
from gdlab.__main__ import main
from gdlab.base.words import natural
from gdlab.devices.wgpu.wgpu_device import chosen_adapter
from gdlab.study.model_files import parse_dims
from gdlab.study.study import Study

WRONG = {"superscript": "²", "arabic": "٣", "long": "9" * 5000}
USES: dict[str, Callable[[Study, str], object]] = {
    "feed": lambda study, n: study.run(1, feed=f"random:{n}"),
    "step": lambda study, n: study.break_at(f"step {n}"),
    "dispatch": lambda study, n: study.break_at(f"dispatch {n}"),
    "rises": lambda study, n: study.break_at(f"loss rises {n}"),
    "node": lambda study, n: study.break_at(f"node %{n}"),
    "watch": lambda study, n: study.watch(f"%{n}"),
    "axis": lambda study, n: study.break_at(f"write w if shape(w)[{n}] > 1"),
    "shape": lambda study, n: study.break_at(f"write w if shape(w) == [{n}]"),
    "run_to": lambda study, n: study.run_to(n),
    "check_gradient": lambda study, n: study.check_gradient(f"%{n}"),
    "dims": lambda study, n: parse_dims(f"batch={n}"),
    "adapter": lambda study, n: chosen_adapter(n, ["one"]),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("use", USES)
def test_what_is_no_number_is_refused_in_words(use: str, kind: str) -> None:
    study = counter()
    with pytest.raises(gd.GdlabError, match=": given "):
        USES[use](study, WRONG[kind])
    assert study.session.step_count == 0
    study.close()


@pytest.mark.parametrize("kind", WRONG)
def test_a_condition_of_digits_that_are_none(kind: str) -> None:
    study = counter()
    if kind == "long":  # as a float: infinity
        study.prepare(until=f"loss < -{WRONG[kind]}")
    else:
        with pytest.raises(gd.GdlabError, match="until: test: given "):
            study.prepare(until=f"loss < {WRONG[kind]}")
    study.close()


@pytest.mark.parametrize("kind", WRONG)
def test_the_command_line_refuses_them(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--dims", f"a={WRONG[kind]}"], ["--at", f"node:{WRONG[kind]}"]):
        assert main(["explain", "missing.onnx", *options]) != 0
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_natural_number() -> None:
    assert [natural(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    assert {natural(text) for text in ("", "-1", "+1", " 1", "1_0", "1.0", "²", "٣", "9" * 19)} == {None}
