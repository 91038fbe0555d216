"""`%graph_tune`: all schedules that were tried, their times, the rule's and the chosen; text twin, and `tuning`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machine import needs
from shells import BODY, run

from gdlab.__main__ import main
from gdlab.devices import tune as search
from gdlab.devices.choose import device
from gdlab.devices.tuning_file import Trial, TunedKernel, keep_kernels, kept_kernels
from gdlab.plan.candidates import candidates
from gdlab.study.study import Study
from gdlab.view.answer.tuning_answer import tuning_answer
from gdlab.view.text.tuning_text import landscape_text, plan_tuning_text

CELL = f"%%graph net --train --device wgpu --quiet\n{BODY}"
KERNEL = TunedKernel(
    "matmul 64x10x128 mk·kn f32",
    (Trial("registers 8x4", (8, 4), 569_000), Trial("registers 8x16", (8, 16), 357_000),
     Trial("registers 4x4", (4, 4), 0, "element 3 is 0, by the rule's schedule 2.5")),
)  # fmt: skip
GOLDEN = """\
matmul 64x10x128 mk·kn f32: registers 8x16, 357 µs instead of 569 µs; 3 schedules tried
     schedule          time  of the rule's
  →  registers 8x16  357 µs          0.627  chosen
     registers 8x4   569 µs              1  by rule
     registers 4x4        –                 refused: element 3 is 0, by the rule's schedule 2.5"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own; two candidates of each product, of which the second is the faster; times are given."""
    needs("wgpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(search, "candidates", lambda key, target: candidates(key, target)[:2])

    def seconds(bench: Any, schedule: Any, once: bool = False) -> float:
        return 2e-3 if schedule == candidates(bench.key, bench.target)[0] else 1e-3

    monkeypatch.setattr(search._Bench, "seconds", seconds)
    return tmp_path


def shown(out: Any) -> list[Any]:
    return [output.data for output in out.outputs]


def test_a_landscape_as_text() -> None:
    info = device("wgpu").info
    assert landscape_text(info, [KERNEL]) == f"{info}: 1 product, 1 with a faster schedule than by rule\n\n{GOLDEN}"
    same = TunedKernel("matmul 1x1x1 mk·kn f32", KERNEL.trials[:1])
    text = landscape_text(info, [KERNEL, same])
    assert "2 products, 1 with a faster schedule than by rule" in text
    assert text.endswith(
        "\n\nmatmul 1x1x1 mk·kn f32: registers 8x4 as by rule, 569 µs; 1 schedule tried\n"
        "     schedule         time  of the rule's\n"
        "  →  registers 8x4  569 µs              1  chosen: by rule, and no other is faster by more than 4 %"
    )


def test_the_magic_tells_how_it_is_getting_on_and_then_the_landscape(shell: Any) -> None:
    run(shell, CELL)
    out, error = run(shell, "%graph_tune net --seconds 60")
    assert error is None and out.stdout == ""
    study: Study = shell.user_ns["net"]
    found = study.tune(0)
    assert len(found.kernels) > 2 and found.untried == 0 and found.in_use
    last = shown(out)[-1]
    assert last["text/plain"] == plan_tuning_text(found)
    html = last["text/html"]
    for kernel, _ in found.kernels:
        assert kernel.kernel in html and all(trial.name in html for trial in kernel.trials)
        assert kernel.chosen is not kernel.rule
    assert html.count('<rect class="gd-answer-ok"') == len(found.kernels), "the chosen ones"
    assert html.count("gd-answer-predicted") >= 2 * len(found.kernels), "each bar has the rule's time"
    assert html.count(">by rule<") == len(found.kernels) == html.count(">chosen<") and "<script" not in html


def test_a_second_search_finds_everything_tried_and_zero_seconds_only_tell(shell: Any) -> None:
    run(shell, CELL)
    before, _ = run(shell, "%graph_tune net --seconds 0")
    assert "net: nothing was tried yet" in shown(before)[-1]["text/plain"]
    assert (
        "python -m gdlab bench --tune, %graph_tune NAME or SessionConfig(tune=seconds)"
        in shown(before)[-1]["text/plain"]
    )
    assert kept_kernels(device("wgpu").info) == {}
    first, _ = run(shell, "%graph_tune net --seconds 60")
    again, _ = run(shell, "%graph_tune net --seconds 0")
    assert shown(again)[-1]["text/plain"] == shown(first)[-1]["text/plain"]


def test_an_interrupted_search_shows_what_it_found(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(shell, CELL)
    check, left = search._Bench.check, [3]

    def interrupted(bench: Any, schedule: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return check(bench, schedule)

    monkeypatch.setattr(search._Bench, "check", interrupted)
    out, error = run(shell, "%graph_tune net --seconds 60")
    assert isinstance(error, KeyboardInterrupt)
    text = shown(out)[-1]["text/plain"]
    assert text.startswith("net: 2 products, 1 with a faster schedule than by rule; ") and "not tried yet" in text


def test_a_session_that_is_open_is_told(shell: Any) -> None:
    run(shell, CELL)
    run(shell, "%graph_run net 1 --feed random:0 --sgd 0.1 --init 0 --quiet")
    out, _ = run(shell, "%graph_tune net --seconds 60")
    for kind in ("text/plain", "text/html"):
        assert (
            "The plan does not run all chosen schedules: it has a session, which keeps its own" in shown(out)[-1][kind]
        )


def test_on_cpu_there_is_nothing_to_choose(shell: Any) -> None:
    run(shell, CELL.replace("wgpu", "cpu"))
    out, error = run(shell, "%graph_tune net")
    wanted = "net: nothing to choose on cpu, which has one form of each kernel"
    assert error is None and shown(out)[-1]["text/plain"].startswith(wanted)


def test_names_in_a_file_are_text_in_the_picture(shell: Any) -> None:
    run(shell, CELL)
    study: Study = shell.user_ns["net"]
    run(shell, "%graph_tune net --seconds 60")
    kernel, _ = study.tune(0).kernels[0]
    keep_kernels(device("wgpu").info, [TunedKernel(kernel.kernel, (*kernel.trials, Trial("<b>x</b>", (9,), 5)))])
    assert "<b>x</b>" not in tuning_answer(study.tune(0), study).sections[0].title
    out, _ = run(shell, "%graph_tune net --seconds 0")
    assert "<b>x" not in shown(out)[-1]["text/html"] and "&lt;b&gt;x" in shown(out)[-1]["text/html"]


@pytest.mark.parametrize("seconds", ["-1", "x", "inf", "nan"])
def test_a_bad_time_is_one_line(shell: Any, seconds: str) -> None:
    run(shell, CELL)
    out, error = run(shell, f"%graph_tune net --seconds {seconds}")
    assert "wanted seconds in 0 … 10⁹" in str(error) + out.stderr


# the command line ----------------------------------------------------------------------------------------------------
def test_bench_tune_fills_the_file_and_tuning_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tuning", "--device", "wgpu"]) == 0
    assert "nothing was tried yet; python -m gdlab bench --tune" in capsys.readouterr().out
    monkeypatch.setitem(search.USUAL, "software", ((8, 4, 16),))
    monkeypatch.setitem(search.USUAL, "hardware", ((8, 4, 16),))
    assert main(["bench", "--tune", "60", "--device", "wgpu"]) == 0
    made = capsys.readouterr()
    assert "matmul 8x4x16 mk·kn f32: " in made.out and "matmul 1x4096x1024 mk·nk q4_0: " in made.out
    assert "matmul 8x4x16 km·kn f32 …" in made.err
    assert main(["tuning", "--device", "wgpu"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(made.out.splitlines())
    assert len(kept_kernels(device("wgpu").info)) == 6


def test_the_commands_on_cpu_and_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tune", "1", "--device", "cpu"]) == 0
    assert "nothing to choose on cpu" in capsys.readouterr().out
    assert main(["bench", "--tune", "-1", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == "bench: tune: given -1.0, wanted a number of seconds in 0 … 10⁹\n"
    for wrong in (["--tune", "--calibrate"], ["--tune", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *wrong])
        assert ended.value.code == 2
